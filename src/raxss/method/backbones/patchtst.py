"""PatchTST (Nie et al., 2023): a transformer over the patches of each variate.

    windows (batch, n_variates, length)
        -> patches (batch * n_variates, n_patches, patch_length) -> tokens (.., n_patches, d_model)
        -> features (batch, n_variates * n_patches * d_model) -> logits (batch, n_outputs)

With the settings of the paper, as classifier. patchtst_numba.py and patchtst_triton.py do the same in fewer passes
over memory, on a CPU and on a GPU.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from raxss.errors import ConfigError
from raxss.method.backbones import patchtst_numba, patchtst_triton
from raxss.method.backbones.protocol import FeatureNetwork, register_backbone
from raxss.method.backbones.revin import RevIN
from raxss.method.backbones.sizes import check_allocation, check_at_least_1, check_at_most

MOST_AT_ONCE = 65_535  # sequences in one attention call; CUDA kernels take no more


@register_backbone("patchtst")
class PatchTST(FeatureNetwork):
    """Patches as tokens, a transformer encoder, one linear layer over all tokens.

    With the defaults, windows of 1024 samples, one variate and one output: 128 patches and 34,019 parameters,
    as many as the public code of SSS has.

    Parameters
    ----------
    revin
        Normalise each window first (`RevIN`, with learned scale and offset).
    patch_length, patch_stride
        Samples in a patch and from one patch to the next. The last value is repeated one stride beyond the end,
        so that the end of the window is seen as often as its middle.
    attention_dropout, dropout
        On the attention weights, and inside each feed-forward layer.

    Notes
    -----
    Follows SSS's code where it departs from the textbook encoder: both sums of an encoder layer share one
    batch normalisation (which is why there are 2 * 64 parameters fewer than the textbook's 34,147), and the
    second sum adds the attention's own output, not its normalised sum.

    Examples
    --------
    >>> network = PatchTST(1, 1024, 1)
    >>> network.features(torch.zeros(2, 1, 1024)).shape  # 128 patches of 32 numbers
    torch.Size([2, 4096])
    """

    capturable = True  # no step waits for the device, so it can be replayed as a CUDA graph

    def __init__(
        self,
        n_variates: int,
        window_length: int,
        n_outputs: int,
        *,
        revin: bool = True,
        patch_length: int = 16,
        patch_stride: int = 8,
        d_model: int = 32,
        n_layers: int = 2,
        n_heads: int = 4,
        d_ff: int = 128,
        attention_dropout: float = 0.3,
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        lengths = {"patch_length": patch_length, "patch_stride": patch_stride}
        check_at_least_1(**lengths, n_heads=n_heads)
        if d_model % n_heads:
            raise ConfigError(f"n_heads must divide d_model; got n_heads={n_heads}, d_model={d_model}.")
        check_at_most(**lengths, d_model=d_model, n_layers=n_layers, d_ff=d_ff)
        self.patch_length = patch_length
        self.patch_stride = patch_stride
        self.revin = RevIN(n_variates) if revin else nn.Identity()
        self.n_padded = max(patch_length - window_length, 0) + patch_stride
        n_patches = (window_length + self.n_padded - patch_length) // patch_stride + 1
        check_allocation(n_patches * d_model)  # of the positions
        self.projection = nn.Linear(patch_length, d_model)
        self.positions = nn.Parameter(torch.empty(n_patches, d_model).uniform_(-0.02, 0.02))
        self.encoder = nn.Sequential(
            *(EncoderLayer(d_model, n_heads, d_ff, attention_dropout, dropout) for _ in range(n_layers))
        )
        self.dropout = nn.Identity()
        self.head = nn.Linear(n_variates * n_patches * d_model, n_outputs)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def features(self, windows: Tensor) -> Tensor:
        """``(batch, n_variates, length)`` -> ``(batch, n_variates * n_patches * d_model)``."""
        for fused in (patchtst_triton, patchtst_numba):
            if fused.suits(self, windows):
                return fused.features(self, windows)
        return self.plain_features(windows)

    def as_built(self, windows: Tensor) -> bool:
        """Whether a fused path may stand in for the layers: windows and modules are of the kinds it knows.

        No hooks or replaced layers that it would pass by, one mode and type for all, and windows of the length that
        the network was built for (for others the plain layers raise).
        """
        n_patches = (windows.shape[-1] + self.n_padded - self.patch_length) // self.patch_stride + 1
        modules = [self.projection, *self.encoder.modules()]
        kinds = [nn.Linear, nn.Sequential, *LAYER_KINDS * len(self.encoder)]
        numbers = [*self.parameters(), *(item for item in self.buffers() if item.is_floating_point())]
        return (
            windows.ndim == 3
            and windows.numel() > 0
            and n_patches == len(self.positions)
            and len(self.encoder) > 0
            and [type(module) for module in modules] == kinds
            and not any(_hooked(module) or module.training != self.training for module in modules)
            and all(item.dtype == torch.float32 and item.device == windows.device for item in numbers)
            and all(cast(EncoderLayer, layer).as_built() for layer in self.encoder)
        )

    def plain_features(self, windows: Tensor) -> Tensor:
        """The same, layer by layer: what the fused paths compute, and what runs where none of them suits."""
        windows = functional.pad(self.revin(windows), (0, self.n_padded), mode="replicate")
        patches = windows.unfold(-1, self.patch_length, self.patch_stride).flatten(0, 1)
        tokens: Tensor = self.encoder(self.projection(patches) + self.positions)
        return tokens.reshape(len(windows), -1)


class EncoderLayer(nn.Module):
    """Every token looks at every other, then is transformed by itself: ``(batch, n_tokens, d_model)`` both ways."""

    def __init__(
        self, d_model: int, n_heads: int, d_ff: int, attention_dropout: float, dropout: float
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.attention_dropout = attention_dropout
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.mix = nn.Linear(d_model, d_model)
        self.feed_forward = nn.Sequential(
            nn.Linear(d_model, d_ff), nn.GELU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model)
        )
        self.norm = nn.BatchNorm1d(d_model)

    @property
    def hidden_dropout(self) -> float:
        """Share that is dropped inside the feed-forward layer."""
        return cast(nn.Dropout, self.feed_forward[2]).p

    def as_built(self) -> bool:
        """Whether settings of its parts are those that a fused path knows."""
        exact = cast(nn.GELU, self.feed_forward[1]).approximate == "none"
        shares = self.attention_dropout, self.hidden_dropout
        statistics = self.norm.affine and self.norm.track_running_stats
        return exact and statistics and all(0 <= share < 1 for share in shares)

    def attend(self, tokens: Tensor) -> Tensor:
        """softmax(Q K^T / sqrt(d)) V, with ``n_heads`` of them side by side."""
        query, key, value = (
            linear(tokens).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        dropout = self.attention_dropout if self.training else 0.0
        parts = zip(*(item.split(MOST_AT_ONCE) for item in (query, key, value)), strict=True)
        heads = torch.cat(
            [functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout) for q, k, v in parts]
        )
        mixed: Tensor = self.mix(heads.transpose(1, 2).flatten(2))
        return mixed

    def normalise(self, tokens: Tensor) -> Tensor:
        """Mean 0 and deviation 1 for each of the ``d_model`` numbers, over batch and tokens."""
        normalised: Tensor = self.norm(tokens.transpose(1, 2)).transpose(1, 2)
        return normalised

    def forward(self, tokens: Tensor) -> Tensor:
        """``(batch, n_tokens, d_model)`` -> the same."""
        attended = self.attend(tokens)
        return self.normalise(self.feed_forward(self.normalise(tokens + attended)) + attended)


# Of the modules of an encoder layer, in the order of `nn.Module.modules`.
LAYER_KINDS: list[type[nn.Module]] = [EncoderLayer, *[nn.Linear] * 4, nn.Sequential]
LAYER_KINDS += [nn.Linear, nn.GELU, nn.Dropout, nn.Linear, nn.BatchNorm1d]


def _hooked(module: nn.Module) -> bool:
    forward = module._forward_hooks or module._forward_pre_hooks
    return bool(forward or module._backward_hooks or module._backward_pre_hooks)
