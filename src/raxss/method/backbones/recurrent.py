"""GRU and LSTM over the patches of a series, and the patch tokens that mamba.py reads as well.

    windows (batch, n_variates, length), n_samples (batch,) -> tokens (batch, n_patches, d_model)
        -> states (batch, n_patches, d) -> features: their mean (batch, d) -> logits (batch, n_outputs)

For windows, and for whole series of any length: shorter ones of a batch are padded at their end. Of a series of n
samples the patches that lie in it wholly count, max(n - patch_length, 0) // patch_stride + 1 of them; one shorter
than a patch is a single patch with zeros at its end. Scores do not depend on the padding.
"""

from __future__ import annotations

from functools import partialmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from raxss.errors import BackboneError, EmptyDataError
from raxss.method.backbones.protocol import FeatureNetwork, register_backbone
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
        # (batch, n_variates, n_patches, patch_length)
        patches = windows.unfold(-1, self.patch_length, self.patch_stride)
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
        length = windows.shape[-1]
        if windows.ndim != 3 or windows.shape[1] != self.n_variates:
            raise BackboneError(
                f"windows have shape {tuple(windows.shape)}; (batch, {self.n_variates}, length) is needed."
            )
        if length == 0:
            raise EmptyDataError(
                f"windows have shape {tuple(windows.shape)}, a length of 0; at least 1 sample is needed. Leave "
                "empty series out."
            )
        if n_samples is None or n_samples.device.type != "cpu":
            return
        if n_samples.shape != windows.shape[:1] or not bool(((n_samples >= 1) & (n_samples <= length)).all()):
            raise EmptyDataError(
                f"n_samples is {n_samples.tolist()}; needed are {len(windows)} numbers from 1 to {length}, one a "
                "series of the padded batch."
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


class Recurrent(SequenceNetwork):
    """Layers of one kind of cell over the tokens, in one direction or in both. `GRU` and `LSTM` are the two."""

    cell: type[nn.GRU] | type[nn.LSTM]

    def __init__(
        self,
        n_variates: int,
        window_length: int,
        n_outputs: int,
        *,
        d_model: int = 32,
        n_layers: int = 3,
        bidirectional: bool = True,
        dropout: float = 0.3,
        revin: bool = True,
        patch_length: int = 64,
        patch_stride: int = 16,
    ) -> None:
        super().__init__()
        check_at_least_1(n_layers=n_layers)
        check_at_most(n_layers=n_layers)
        self.patches = PatchTokens(
            n_variates, d_model, patch_length=patch_length, patch_stride=patch_stride, revin=revin
        )
        n_ways = 2 if bidirectional else 1
        # Layers of their own, not torch's stack: going back must begin at each series' own end, for which torch
        # would need the lengths on the host.
        self.layers = nn.ModuleList(
            nn.ModuleList(
                self.cell(d_model if layer == 0 else n_ways * d_model, d_model, batch_first=True)
                for _ in range(n_ways)
            )
            for layer in range(n_layers)
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(n_ways * d_model, n_outputs)

    def features(self, windows: Tensor, n_samples: Tensor | None = None) -> Tensor:
        """``(batch, n_variates, length)`` -> mean of the last layer's states, ``(batch, d)``.

        ``n_samples (batch,)``: how many samples of each are real, all by default.
        """
        states = self.patches(windows, n_samples)
        backwards = self._backwards(states, n_samples)
        for number, ways in enumerate(self.layers):
            if number > 0:
                states = self.dropout(states)
            states = self._read(ways, states, backwards)
        return self.patches.mean(states, n_samples)

    def _backwards(self, tokens: Tensor, n_samples: Tensor | None) -> Tensor:
        """Places of the tokens of each reversed series, padding left in place: ``(batch, n_patches)``."""
        batch, n_tokens, _ = tokens.shape
        places = torch.arange(n_tokens, device=tokens.device)
        if n_samples is None:
            return places.flip(0).expand(batch, n_tokens)
        n_real = self.patches.n_patches(n_samples.to(tokens.device))[:, None]
        return torch.where(places < n_real, n_real - 1 - places, places)

    def _read(self, ways: Any, tokens: Tensor, backwards: Tensor) -> Tensor:
        """One layer: ``(batch, n_patches, d)`` -> the same, or twice as wide: forwards, then backwards."""
        states = _states(ways[0], tokens)
        if len(ways) == 1:
            return states
        turned = _Turned.apply  # its own inverse
        from_end = turned(_states(ways[1], turned(tokens, backwards)), backwards)  # type: ignore[no-untyped-call]
        return torch.cat([states, from_end], dim=-1)


@register_backbone("gru")
class GRU(Recurrent):
    """Three layers of gated recurrent units, read in both directions, and the mean of their states.

    With the defaults, one variate and one output: 52,451 parameters, for series of any length.

    Parameters
    ----------
    d_model
        Numbers in a token, and in the state of one direction.
    bidirectional
        Read the series backwards as well, from its own end, in every layer.
    dropout
        Between layers, and before the head.
    revin
        Normalise each series first (`RevIN`).
    patch_length, patch_stride
        Samples in a patch and from one patch to the next.

    Notes
    -----
    Sizes are those that the public code of SSS gives its GRU and LSTM. It departs from that code in
    three ways: patches end where the series does, so up to ``patch_stride - 1`` samples at its end are not read
    (SSS repeats the last value for one stride); a patch holds all variates together (SSS reads each by itself);
    weights begin as torch's layers do (SSS draws them by Xavier's rule).

    Examples
    --------
    >>> network = GRU(1, 1024, 1)
    >>> series = torch.randn(2, 1, 1024)
    >>> network.features(series).shape
    torch.Size([2, 64])
    >>> network(series, n_samples=torch.tensor([1024, 300])).shape
    torch.Size([2, 1])
    """

    cell = nn.GRU


@register_backbone("lstm")
class LSTM(Recurrent):
    """Two layers of long short-term memory, read forwards, and the mean of their states.

    With the defaults, one variate and one output: 272,643 parameters, for series of any length. Options and notes
    are those of `GRU`.

    Examples
    --------
    >>> LSTM(3, 1024, 1).features(torch.randn(2, 3, 1024)).shape
    torch.Size([2, 128])
    """

    cell = nn.LSTM
    __init__ = partialmethod(Recurrent.__init__, d_model=128, n_layers=2, bidirectional=False)


def _states(cells: Any, tokens: Tensor) -> Tensor:
    # In float32 also under autocast: for bfloat16 cuDNN would take float16, in which small gradients underflow.
    with torch.autocast(tokens.device.type, enabled=False):
        states: Tensor = cells(tokens.to(cells.weight_hh_l0.dtype))[0]
        return states


class _Turned(torch.autograd.Function):
    """Tokens of each series in another order, its own inverse: ``(batch, n_patches, d)`` both ways.

    The permutation is its own gradient; torch's for a gather adds in a random order on a GPU.
    """

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, order: Tensor) -> Tensor:
        """Token ``order[i, t]`` of series i at place t."""
        ctx.save_for_backward(order)
        return tokens.take_along_dim(order[..., None], dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        """The same order undoes itself."""
        (order,) = ctx.saved_tensors
        return grad_outputs[0].take_along_dim(order[..., None], dim=1), None
