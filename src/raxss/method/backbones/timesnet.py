"""TimesNet (Wu et al., 2023): 2-D convolutions over a window folded at its strongest periods.

    windows (batch, n_variates, length) -> samples with positions (batch, length, d_model)
        -> each layer: the strongest periods of each window; fold (n_rows, period), convolve in 2-D, unfold, add up
        -> features (batch, length * d_model) -> logits (batch, n_outputs)

In a folded window a step to the right is one sample later and a step down one period later, so a small kernel sees
both at once. Next: moderntcn.py reaches far with one long kernel instead.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from raxss.method.backbones.protocol import FeatureNetwork, register_backbone
from raxss.method.backbones.revin import RevIN
from raxss.method.backbones.sizes import check_allocation, check_at_least_1, check_at_most

LEAST_SHARE = 2.0**-24  # a period with less of the weight than float32 can add to the rest is left out
SAMPLES_AT_ONCE = 2**13  # of one convolution on a CPU: what it makes of them stays in the caches

Kernel = tuple[Tensor, Tensor]  # weights (n_out, n_in, height, width), biases (n_out,)


@register_backbone("timesnet")
class TimesNet(FeatureNetwork):
    """Fold each window at its strongest periods, convolve in two dimensions, and add the results up.

    With the defaults, windows of 1024 samples, one variate and one output: 188,883 parameters.

    Parameters
    ----------
    d_model, d_ff
        Numbers kept of each sample, between the layers and inside them.
    n_layers
        How often periods are looked for, and the window is folded at them.
    top_k
        Periods of a window in each layer.
    n_kernels
        Square kernels of 1, 3, 5, ... samples that a convolution is the mean of.
    dropout
        On the embedded samples, and on the features before the head.
    revin
        Normalise each window first (`RevIN`, with learned scale and offset).

    Notes
    -----
    Where it departs from the paper:

    - The public code takes the periods of the mean spectrum of a batch, so that the score of a window depends on
      what else is in its batch. Here each window has its own periods, weighted by the softmax of its amplitudes.
    - The mean of ``n_kernels`` convolutions is done as one with their mean kernel. Frequencies with the same
      period are folded once, and a period whose weight is below 2^-24 is left out. None of this changes more than
      rounding.
    - Sizes are those of Time-Series-Library's scripts for UEA (JapaneseVowels and others), with 4 kernels
      (FaceDetection) instead of 6 for speed; RevIN and dropout are those of SSS, whose own TimesNet has d_model 64.

    Examples
    --------
    >>> network = TimesNet(1, 1024, 1)
    >>> network.features(torch.zeros(2, 1, 1024)).shape  # 1024 samples of 16 numbers
    torch.Size([2, 16384])
    """

    def __init__(
        self,
        n_variates: int,
        window_length: int,
        n_outputs: int,
        *,
        d_model: int = 16,
        d_ff: int = 32,
        n_layers: int = 2,
        top_k: int = 3,
        n_kernels: int = 4,
        dropout: float = 0.3,
        revin: bool = True,
    ) -> None:
        super().__init__()
        sizes = {
            "d_model": d_model,
            "d_ff": d_ff,
            "n_layers": n_layers,
            "top_k": top_k,
            "n_kernels": n_kernels,
        }
        check_at_least_1(**sizes)
        check_at_most(**sizes)
        check_allocation(window_length * d_model)  # of the positions; the head has as many for each output
        self.revin = RevIN(n_variates) if revin else nn.Identity()
        self.embedding = nn.Conv1d(
            n_variates, d_model, kernel_size=3, padding=1, padding_mode="circular", bias=False
        )
        nn.init.kaiming_normal_(self.embedding.weight, nonlinearity="leaky_relu")
        self.register_buffer("positions", waves_of_positions(window_length, d_model), persistent=False)
        self.layers = nn.ModuleList(TimesBlock(d_model, d_ff, top_k, n_kernels) for _ in range(n_layers))
        self.norm = nn.LayerNorm(d_model)  # one for all layers, as published
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(window_length * d_model, n_outputs)

    def features(self, windows: Tensor) -> Tensor:
        """``(batch, n_variates, length)`` -> ``(batch, length * d_model)``."""
        samples: Tensor = self.embedding(self.revin(windows)).transpose(1, 2) + self.positions
        samples = self.dropout(samples)
        for layer in self.layers:
            samples = self.norm(layer(samples))
        return functional.gelu(samples).flatten(1)


class TimesBlock(nn.Module):
    """x + sum over periods p of weight_p · unfold(convolve(fold(x, p))): ``(batch, length, d_model)`` both ways."""

    def __init__(self, d_model: int, d_ff: int, top_k: int, n_kernels: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.widen = Inception(d_model, d_ff, n_kernels)
        self.narrow = Inception(d_ff, d_model, n_kernels)

    def forward(self, samples: Tensor) -> Tensor:
        """``(batch, length, d_model)`` -> the same."""
        periods, weights = each_period_once(*strongest_periods(samples, self.top_k))
        batch, length, _ = samples.shape
        most = batch if samples.is_cuda else max(SAMPLES_AT_ONCE // length, 1)  # a GPU does all at once
        order, groups = group_folds(periods, most)
        windows = order // periods.shape[1]  # which one each fold is of
        # Left in float32, though autocast then rounds them anew for each group: the gradients of the groups are
        # added up in float32 so.
        kernels = self.widen.mean_kernel(), self.narrow.mean_kernel()
        parts = samples.index_select(0, windows).split([n_folds for _, n_folds in groups])
        varied = torch.cat(
            [vary(part, period, *kernels) for part, (period, _) in zip(parts, groups, strict=True)]
        )
        shares = weights.flatten().index_select(0, order)[:, None, None]
        return samples.index_add(0, windows, (varied * shares).to(samples.dtype))


class Inception(nn.Module):
    """The mean of convolutions with square kernels of 1, 3, 5, ... samples."""

    def __init__(self, n_in: int, n_out: int, n_kernels: int) -> None:
        super().__init__()
        sizes = [2 * reach + 1 for reach in range(n_kernels)]
        self.weights = nn.ParameterList(torch.empty(n_out, n_in, size, size) for size in sizes)
        self.biases = nn.ParameterList(torch.zeros(n_out) for _ in sizes)
        for weight in self.weights:
            nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu")

    def mean_kernel(self) -> Kernel:
        """The one kernel whose convolution is the mean of all: the smaller ones amid zeros."""
        farthest = len(self.weights) - 1
        padded = [functional.pad(weight, [farthest - reach] * 4) for reach, weight in enumerate(self.weights)]
        return torch.stack(padded).mean(dim=0), torch.stack(list(self.biases)).mean(dim=0)


def waves_of_positions(length: int, d_model: int) -> Tensor:
    """Sines and cosines of the place in the window, ever slower from one pair of columns to the next."""
    speeds = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10_000.0) / d_model))
    angles = torch.arange(length)[:, None] * speeds
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :d_model]


def strongest_periods(samples: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Periods of the ``top_k`` largest amplitudes of each window's spectrum, and their weights, ``(batch, k)``.

    A_f = mean over columns of |FFT(x)|_f for f > 0;  p_i = length // f_i;  weights = softmax(A_f1, ..., A_fk)

    >>> wave = torch.sin(torch.arange(12) * 2 * torch.pi / 4)
    >>> strongest_periods(wave[None, :, None], top_k=1)
    (tensor([[4]]), tensor([[1.]]))
    """
    length = samples.shape[1]
    precise = samples.to(torch.promote_types(samples.dtype, torch.float32))  # there is no FFT of bfloat16
    amplitudes = torch.fft.rfft(precise, dim=1).abs().mean(dim=2)
    if length > 1:
        amplitudes = amplitudes[:, 1:]  # without the mean, which is all that a single sample has
    largest, places = amplitudes.topk(min(top_k, amplitudes.shape[1]))
    return length // (places + 1), largest.softmax(dim=1)


def each_period_once(periods: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Frequencies with the same period as one, and a period of 0 where there is nothing left to fold."""
    same = periods[:, :, None] == periods[:, None, :]
    named_before = same.tril(diagonal=-1).any(dim=2)
    weights = (weights[:, None, :] * same).sum(dim=2)
    return periods.masked_fill(named_before | (weights < LEAST_SHARE), 0), weights


def group_folds(periods: Tensor, most: int) -> tuple[Tensor, list[tuple[int, int]]]:
    """Places in ``periods.flatten()``, group after group, and (period, number of folds) of each group.

    Those of one period are done together, at most ``most`` at once.
    """
    flat = periods.flatten().cpu().numpy()  # the one place where the host waits: shapes depend on it
    order = np.argsort(flat, kind="stable")[np.count_nonzero(flat == 0) :]
    groups = []
    for period, n_folds in zip(*np.unique(flat[order], return_counts=True), strict=True):
        for first in range(0, n_folds, most):
            groups.append((int(period), int(min(most, n_folds - first))))
    return torch.from_numpy(order).to(periods.device), groups


def fold(samples: Tensor, period: int) -> Tensor:
    """One row a period, padded with zeros: ``(batch, length, d)`` -> ``(batch, d, n_rows, period)``.

    >>> fold(torch.arange(1.0, 6.0)[None, :, None], period=3)
    tensor([[[[1., 2., 3.],
              [4., 5., 0.]]]])
    """
    n_missing = -samples.shape[1] % period
    rows = functional.pad(samples, (0, 0, 0, n_missing)).unflatten(1, (-1, period))
    return rows.permute(0, 3, 1, 2)


def vary(samples: Tensor, period: int, widen: Kernel, narrow: Kernel) -> Tensor:
    """Fold, convolve twice, unfold: ``(batch, length, d_model)`` -> the same."""
    inside = functional.gelu(functional.conv2d(fold(samples, period), *widen, padding="same"))
    images = functional.conv2d(inside, *narrow, padding="same")
    return images.permute(0, 2, 3, 1).flatten(1, 2)[:, : samples.shape[1]]
