"""ModernTCN (Luo and Wang, 2024): depthwise convolutions with large kernels over patches.

    windows (batch, n_variates, length) -> patches (batch, n_variates, width, n_patches)
        -> stages, each half as long: along time, then across features, then across variates
        -> features (batch, n_variates * width * n_places) -> logits (batch, n_outputs)

As classifier. Next: ../aggregation.py aggregates the scores of many windows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from raxss.errors import ConfigError
from raxss.method.backbones.convnet import SteadyBatchNorm
from raxss.method.backbones.protocol import FeatureNetwork, register_backbone
from raxss.method.backbones.sizes import check_at_least_1, check_at_most

MOST_STAGES = 64  # each half as long as the one before


@register_backbone("moderntcn")
class ModernTCN(FeatureNetwork):
    """Patches of each variate, then stages of large-kernel blocks; one linear layer over all that is left.

    With the defaults, windows of 1024 samples, one variate and one output: 29,505 parameters.

    Parameters
    ----------
    widths
        Features of a patch, one number per stage; from one stage to the next two places become one.
    n_blocks
        Blocks in each stage.
    patch_length, patch_stride
        Samples in a patch and from one patch to the next; the last value is repeated at the end.
    large_kernel, small_kernel
        Places that the two depthwise convolutions of a block see, odd; in training they stand side by side, at
        prediction the small one is part of the large.
    expansion
        How many times wider a feed-forward layer is inside.
    dropout, head_dropout
        Inside the feed-forward layers, and on the features before the head.

    Notes
    -----
    Settings are from the public scripts for UEA: two stages of one block with 32 and 64 features and
    patches 8 / 4 (EthanolConcentration), kernels of 51 and 5 (UWaveGestureLibrary, SelfRegulationSCP2); dropout is
    that of SSS. SSS ran another network under this name, of which the figure in the paper's table is: one stage of
    32 features, kernels of 9 and 5, feed-forward layers four times as wide inside. Where it departs from the
    authors' code: kernels are clipped to ``2 * n_places - 1``, beyond which there is only padding; the last patch
    begins at the last multiple of ``patch_stride``, so that every sample is seen; the patch embedding has no bias,
    and RevIN, which the public classifier builds but never calls, is not built.

    Examples
    --------
    >>> network = ModernTCN(6, 1024, 3)
    >>> network.features(torch.zeros(2, 6, 1024)).shape  # 6 variates, 64 features, 128 places
    torch.Size([2, 49152])
    """

    capturable = True  # no step waits for the device, so it can be replayed as a CUDA graph

    def __init__(
        self,
        n_variates: int,
        window_length: int,
        n_outputs: int,
        *,
        widths: Sequence[int] = (32, 64),
        n_blocks: int = 1,
        patch_length: int = 8,
        patch_stride: int = 4,
        large_kernel: int = 51,
        small_kernel: int = 5,
        expansion: int = 1,
        dropout: float = 0.3,
        head_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if not 1 <= len(widths) <= MOST_STAGES:
            raise ConfigError(
                f"widths needs from 1 to {MOST_STAGES} numbers, one a stage; got {len(widths)}."
            )
        sizes = {"n_blocks": n_blocks, "patch_stride": patch_stride, "expansion": expansion}
        check_at_least_1(widths=min(widths), **sizes)
        check_at_most(widths=max(widths), patch_length=patch_length, large_kernel=large_kernel, **sizes)
        if patch_length < patch_stride:
            raise ConfigError(
                f"patch_length must be at least patch_stride, or samples between patches are never seen; got "
                f"patch_length={patch_length}, patch_stride={patch_stride}."
            )
        if not 1 <= small_kernel <= large_kernel or small_kernel % 2 == 0 or large_kernel % 2 == 0:
            raise ConfigError(
                "small_kernel and large_kernel must be odd, and the small one no larger than the large; got "
                f"small_kernel={small_kernel}, large_kernel={large_kernel}."
            )
        self.patch_length, self.patch_stride = patch_length, patch_stride
        n_places = -(-window_length // patch_stride)  # rounded up
        self.n_padded = (n_places - 1) * patch_stride + patch_length - window_length
        # no bias: the normalisation that follows has its own
        self.embedding = nn.Sequential(
            nn.Conv1d(1, widths[0], patch_length, patch_stride, bias=False), SteadyBatchNorm(widths[0])
        )
        self.stages = nn.ModuleList()
        for stage, width in enumerate(widths):
            shrink: nn.Module = nn.Identity()
            if stage:
                shrink = Halve(widths[stage - 1], width)
                n_places = -(-n_places // 2)
            large, small = (min(size, 2 * n_places - 1) for size in (large_kernel, small_kernel))
            blocks = (TCNBlock(n_variates, width, large, small, expansion, dropout) for _ in range(n_blocks))
            self.stages.append(nn.Sequential(shrink, *blocks))
        self.dropout = nn.Dropout(head_dropout)
        self.head = nn.Linear(n_variates * widths[-1] * n_places, n_outputs)

    def features(self, windows: Tensor) -> Tensor:
        """``(batch, n_variates, length)`` -> ``(batch, n_variates * width * n_places)``."""
        padded = functional.pad(windows, (0, self.n_padded), mode="replicate")
        maps: Tensor = self.embedding(padded.flatten(0, 1).unsqueeze(1))
        maps = maps.unflatten(0, windows.shape[:2])
        for stage in self.stages:
            maps = stage(maps)
        return functional.gelu(maps).flatten(1)


class Halve(nn.Module):
    """Two places become one: ``(batch, n_variates, n_in, n_places)`` -> ``(.., n_out, n_places / 2)``."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.norm = SteadyBatchNorm(n_in)
        self.join = nn.Conv1d(n_in, n_out, kernel_size=2, stride=2)

    def forward(self, maps: Tensor) -> Tensor:
        """The last place is repeated where their number is odd."""
        flat = maps.flatten(0, 1)
        if flat.shape[-1] % 2:
            flat = torch.cat([flat, flat[..., -1:]], dim=-1)
        joined: Tensor = self.join(self.norm(flat))
        return joined.unflatten(0, maps.shape[:2])


class TCNBlock(nn.Module):
    """Mix along time, across features, across variates: ``(batch, n_variates, width, n_places)`` both ways."""

    def __init__(
        self, n_variates: int, width: int, large: int, small: int, expansion: int, dropout: float
    ) -> None:
        super().__init__()
        self.along_time = TwoKernels(n_variates * width, large, small)
        self.norm = SteadyBatchNorm(width)
        self.across_features = FeedForward(n_variates, width, expansion, dropout)
        self.across_variates = FeedForward(width, n_variates, expansion, dropout)

    def forward(self, maps: Tensor) -> Tensor:
        """``(batch, n_variates, width, n_places)`` -> the same."""
        mixed = self.along_time(maps.flatten(1, 2)).view_as(maps)
        mixed = self.norm(mixed.flatten(0, 1)).view_as(maps)
        mixed = self.across_features(mixed)
        mixed = self.across_variates(mixed.transpose(1, 2)).transpose(1, 2)
        return maps + mixed


class TwoKernels(nn.Module):
    """A large and a small depthwise convolution side by side, added up into one kernel at prediction.

    Both are linear once their normalisation is fixed (structural re-parameterisation).
    """

    def __init__(self, n_rows: int, large: int, small: int) -> None:
        super().__init__()
        self.large = nn.Conv1d(n_rows, n_rows, large, groups=n_rows, bias=False)
        self.small = nn.Conv1d(n_rows, n_rows, small, groups=n_rows, bias=False)
        self.large_norm, self.small_norm = SteadyBatchNorm(n_rows), SteadyBatchNorm(n_rows)

    def forward(self, rows: Tensor) -> Tensor:
        """``(batch, n_rows, n_places)`` -> the same."""
        if self.training:
            large = self.large_norm(depthwise(rows, self.large.weight))
            mixed: Tensor = large + self.small_norm(depthwise(rows, self.small.weight))
            return mixed
        return depthwise(rows, *self.merged())

    def merged(self) -> tuple[Tensor, Tensor]:
        """The one kernel ``(n_rows, 1, large)``, and its bias, that does the same as both with their norms."""
        kernel, bias = _normalised(self.large, self.large_norm)
        small_kernel, small_bias = _normalised(self.small, self.small_norm)
        beside = (kernel.shape[2] - small_kernel.shape[2]) // 2
        return kernel + functional.pad(small_kernel, (beside, beside)), bias + small_bias


class FeedForward(nn.Module):
    """Two layers with GELU between, with weights of its own for each of ``n_groups``, the same at all places.

    ``(batch, n_groups, width, n_places)`` both ways.
    """

    def __init__(self, n_groups: int, width: int, expansion: int, dropout: float) -> None:
        super().__init__()
        inside = n_groups * width * expansion
        self.widen = nn.Conv1d(n_groups * width, inside, 1, groups=n_groups)
        self.narrow = nn.Conv1d(inside, n_groups * width, 1, groups=n_groups)
        self.dropout = nn.Dropout(dropout)

    def forward(self, maps: Tensor) -> Tensor:
        """``(batch, n_groups, width, n_places)`` -> the same."""
        inside = functional.gelu(self.dropout(self.widen(maps.flatten(1, 2))))
        mixed: Tensor = self.dropout(self.narrow(inside))
        return mixed.unflatten(1, maps.shape[1:3])


def depthwise(rows: Tensor, kernels: Tensor, bias: Tensor | None = None) -> Tensor:
    """Each row with its own kernel, zeros beyond the ends: ``(batch, n_rows, n_places)`` -> the same.

    Time lies along the height of an image one pixel wide: a CPU convolves several times as fast as along its width.

    >>> depthwise(torch.tensor([[[1.0, 2.0, 3.0]]]), torch.tensor([[[1.0, 0.0, 10.0]]]))
    tensor([[[20., 31.,  2.]]])
    """
    size = kernels.shape[2]
    images = functional.conv2d(
        rows[..., None], kernels[..., None], bias, padding=(size // 2, 0), groups=len(kernels)
    )
    return images.squeeze(-1)


def _normalised(convolution: nn.Conv1d, norm: nn.BatchNorm1d) -> tuple[Tensor, Tensor]:
    """Kernel and bias of a convolution that is followed by a normalisation with its running statistics."""
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None, "it keeps statistics"
    assert variance is not None, "it keeps statistics"
    scale = norm.weight * torch.rsqrt(variance + norm.eps)
    return convolution.weight * scale[:, None, None], norm.bias - mean * scale
