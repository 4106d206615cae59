"""Patch tokens: a series of any length as a sequence of tokens, and the mean over them.

    windows (batch, n_variates, length), n_samples (batch,) -> tokens (batch, n_patches, d_model)
        -> a network that reads them in order -> states (batch, n_patches, d) -> their mean (batch, d)

Shorter series of a batch are padded at their end. Of a series of n samples the patches that lie in it wholly
count, max(n - patch_length, 0) // patch_stride + 1 of them; one shorter than a patch is a single patch with zeros
at its end. Scores do not depend on the padding.

Next: recurrent.py and mamba.py read the tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from raxss.errors import BackboneError, EmptyDataError
from raxss.method.backbones.protocol import FeatureNetwork
from raxss.method.backbones.revin import RevIN
from raxss.method.backbones.sizes import check_at_least_1, check_at_most


class PatchTokens(nn.Module):
    """Patches of all variates together, one linear layer for all of them; with RevIN over the real samples."""

    def __init__(
        self,
        n_variates: int,
        d_model: int,
        *,
        patch_length: int = 64,
        patch_stride: int = 16,
        revin: bool = True,
    ) -> None:
        super().__init__()
        sizes = {"d_model": d_model, "patch_length": patch_length, "patch_stride": patch_stride}
        check_at_least_1(n_variates=n_variates, **sizes)
        check_at_most(**sizes)
        self.n_variates = n_variates
        self.patch_length = patch_length
        self.patch_stride = patch_stride
        self.revin = RevIN(n_variates) if revin else None
        self.embedding = nn.Linear(n_variates * patch_length, d_model)

    def forward(self, windows: Tensor, n_samples: Tensor | None = None) -> Tensor:
        """``(batch, n_variates, length)`` -> ``(batch, n_patches, d_model)``, those of the padding included."""
        self._check(windows, n_samples)
        windows = self._levelled(windows, n_samples)
        windows = functional.pad(windows, (0, max(self.patch_length - windows.shape[-1], 0)))
        patches = windows.unfold(
            -1, self.patch_length, self.patch_stride
        )  # (batch, n_variates, n_patches, ..)
        tokens: Tensor = self.embedding(patches.transpose(1, 2).flatten(2))
        return tokens

    def n_patches(self, n_samples: Tensor) -> Tensor:
        """Number of patches that count in series of so many samples."""
        return (n_samples - self.patch_length).clamp(min=0) // self.patch_stride + 1

    def mean(self, states: Tensor, n_samples: Tensor | None = None) -> Tensor:
        """``(batch, n_patches, d)`` -> ``(batch, d)``, over the patches that count."""
        if n_samples is None:
            return states.mean(dim=1)
        n_patches = self.n_patches(n_samples.to(states.device))[:, None]
        counts = torch.arange(states.shape[1], device=states.device) < n_patches
        return torch.where(counts[..., None], states, 0.0).sum(dim=1) / n_patches

    def _levelled(self, windows: Tensor, n_samples: Tensor | None) -> Tensor:
        """RevIN over the real samples, and zeros in the padding."""
        if n_samples is None:
            return windows if self.revin is None else self.revin(windows)
        n_samples = n_samples.to(windows.device)[:, None, None]
        real = torch.arange(windows.shape[-1], device=windows.device) < n_samples
        windows = torch.where(real, windows, 0.0)
        if self.revin is None:
            return windows
        mean = windows.sum(dim=-1, keepdim=True) / n_samples
        centred = torch.where(real, windows - mean, 0.0)
        variance = centred.square().sum(dim=-1, keepdim=True) / n_samples
        scaled = centred * torch.rsqrt(variance + self.revin.eps)
        return torch.where(real, scaled * self.revin.gain + self.revin.offset, 0.0)

    def _check(self, windows: Tensor, n_samples: Tensor | None) -> None:
        """Refuse wrong shapes and lengths; lengths on a GPU stay there unchecked."""
        if windows.ndim != 3 or windows.shape[1] != self.n_variates:
            raise BackboneError(
                f"windows have shape {tuple(windows.shape)}; (batch, {self.n_variates}, length) is needed."
            )
        if windows.shape[-1] == 0:
            raise EmptyDataError(
                f"windows have shape {tuple(windows.shape)}, a length of 0; at least 1 sample is needed. Leave "
                "empty series out."
            )
        if n_samples is None:
            return
        if n_samples.shape != windows.shape[:1] or n_samples.is_floating_point():
            raise BackboneError(
                f"n_samples is {n_samples.dtype} of shape {tuple(n_samples.shape)}; whole numbers of shape "
                f"({len(windows)},) are needed, one a series."
            )
        if n_samples.device.type == "cpu" and len(n_samples):
            fewest, most = map(int, n_samples.aminmax())
            if fewest < 1 or most > windows.shape[-1]:
                raise EmptyDataError(
                    f"n_samples goes from {fewest} to {most}; each must be from 1 to {windows.shape[-1]}, the "
                    "length of the padded batch."
                )


class SequenceNetwork(FeatureNetwork):
    """A `FeatureNetwork` over series of any length, of which ``n_samples (batch,)`` samples each are real."""

    def features(self, windows: Tensor, n_samples: Tensor | None = None) -> Tensor:
        """``(batch, n_variates, length)``, ``(batch,)`` -> ``(batch, d)``."""
        raise NotImplementedError

    def forward(self, windows: Tensor, n_samples: Tensor | None = None) -> Tensor:
        """``(batch, n_variates, length)`` -> logits ``(batch, n_outputs)``."""
        return self.logits_of(self.features(windows, n_samples))

    logits_of = FeatureNetwork.logits_of  # here as well, so that `has_head` finds it beside this forward
