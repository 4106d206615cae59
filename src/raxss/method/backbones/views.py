"""Views: fixed features of windows, for window classifiers.

    windows (batch, n_variates, length), their mask (batch, 1, length) or None -> features (batch, d)

``"statistics"`` are those of statistics.py, ``"ppv"`` the PPV features of MiniROCKET (ppv.py) of a window and of
its differences. Neither is learned; thresholds of PPV features come from some training windows.
With ``normalise`` each window is brought to mean 0 and deviation 1 first, for signals whose level and scale carry
no information. Next: window_classifiers.py.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from raxss.method.backbones.ppv import N_KERNELS, N_TAPS, fitted_cuts, shares, spread_dilations
from raxss.method.backbones.sizes import check_allocation
from raxss.method.backbones.statistics import n_statistics, window_statistics

N_PPV = 5000  # features, roughly
N_DILATIONS = 16
MOST_CHANNELS = 4  # of windows and differences; beyond so many, kernels see sums of some variates
N_SUMS = 8  # of each dilation, half of them of differences
MOST_SUMMED = 9  # variates
WINDOWS_FOR_CUTS = 256
TINY = 1e-6


class WindowView(nn.Module):
    """Fixed features of windows."""

    d: int  # number of features
    size: int  # numbers in memory for each window while its features are computed

    def look_at(self, windows: Tensor, present: Tensor | None = None) -> None:
        """Take thresholds from training windows ``(batch, n_variates, length)``; most views need none."""

    def forward(self, windows: Tensor, present: Tensor | None = None) -> Tensor:
        """``(batch, n_variates, length)``, and 1 and 0 where samples are present or not -> ``(batch, d)``."""
        raise NotImplementedError


class StatisticsView(WindowView):
    """`window_statistics` of the samples that are present.

    >>> StatisticsView(1, 64)(torch.zeros(3, 1, 64)).shape
    torch.Size([3, 395])
    """

    def __init__(self, n_variates: int, window_length: int, *, normalise: bool = False) -> None:
        super().__init__()
        self.normalise, self.d = normalise, n_statistics(n_variates, window_length)
        self.size = self.d + n_variates * window_length

    def forward(self, windows: Tensor, present: Tensor | None = None) -> Tensor:
        """``(batch, n_variates, length)`` -> ``(batch, d)``."""
        if present is not None:
            windows = windows.masked_fill(present == 0, torch.nan)
        return window_statistics(standardised(windows) if self.normalise else windows)


class PPVView(WindowView):
    """PPV features of a window and of its differences.

    Missing samples and padding count as 0, the mean of the scaled signal: skipping the places that see them, as
    `multiview` does, lowered the accuracy of ridge regression from .871 to .843 for padding, and for gaps of 10 and
    30 % in half of the series from .842 to .815 and from .785 to .752 (means of five sets of series of unequal
    length, one window each, in five folds of the training parts). With more than two variates, kernels see eight
    sums of some of them for each dilation, drawn once.

    >>> view = PPVView(1, 64)
    >>> view.look_at(torch.randn(8, 1, 64))
    >>> view(torch.zeros(3, 1, 64)).shape[1] == view.d
    True
    """

    mixture: Tensor
    rows: Tensor
    dilations: Tensor
    cuts: Tensor

    def __init__(self, n_variates: int, window_length: int, *, normalise: bool = False) -> None:
        super().__init__()
        self.normalise, self.length = normalise, max(window_length, N_TAPS)
        self.mixes = 2 * n_variates > MOST_CHANNELS
        spread = spread_dilations(self.length, N_DILATIONS)
        n_rows = N_SUMS if self.mixes else 2 * n_variates
        groups = [(row, dilation) for dilation in spread for row in range(n_rows)]
        rows = range(len(groups)) if self.mixes else [row for row, _ in groups]
        check_allocation(len(groups) * n_variates if self.mixes else 0)
        self.register_buffer("rows", torch.tensor(list(rows), dtype=torch.int32), persistent=False)
        steps = torch.tensor([dilation for _, dilation in groups], dtype=torch.int32)
        self.register_buffer("dilations", steps, persistent=False)
        drawn = sums_of_some(n_variates, len(groups)) if self.mixes else torch.zeros(0, n_variates)
        self.register_buffer("mixture", drawn)
        n_cuts = max(round(N_PPV / (len(groups) * N_KERNELS)), 1)
        self.register_buffer("cuts", torch.zeros(len(groups), N_KERNELS, n_cuts))
        self.d = self.cuts.numel()
        self.size = self.d + (len(groups) if self.mixes else n_rows) * self.length

    def look_at(self, windows: Tensor, present: Tensor | None = None) -> None:
        """Thresholds from some of these windows, evenly spread."""
        places = torch.linspace(0, len(windows) - 1, min(len(windows), WINDOWS_FOR_CUTS)).long()
        channels = self._channels(windows[places], None if present is None else present[places])
        self.cuts.copy_(fitted_cuts(channels, self.rows, self.dilations, self.cuts.shape[2]))

    def forward(self, windows: Tensor, present: Tensor | None = None) -> Tensor:
        """``(batch, n_variates, length)`` -> ``(batch, d)``."""
        return shares(self._channels(windows, present), self.rows, self.dilations, self.cuts).flatten(1)

    def _channels(self, windows: Tensor, present: Tensor | None) -> Tensor:
        """Rows that the kernels see: ``(batch, n_rows, length)``."""
        if present is not None:
            windows = windows.masked_fill(present == 0, torch.nan)
        windows = (standardised(windows) if self.normalise else windows).nan_to_num(nan=0.0)
        windows = functional.pad(windows, (0, self.length - windows.shape[2]))
        steps = functional.pad(windows.diff(dim=2), (1, 0))
        if not self.mixes:
            return torch.cat([windows, steps], dim=1)
        found = windows.new_empty(len(windows), len(self.mixture), self.length)
        found[:, 0::2] = self.mixture[0::2] @ windows
        found[:, 1::2] = self.mixture[1::2] @ steps
        return found


VIEWS: dict[str, type[WindowView]] = {"statistics": StatisticsView, "ppv": PPVView}


def standardised(windows: Tensor) -> Tensor:
    """Each variate of each window at mean 0 and deviation 1 over its finite samples; NaN stays.

    >>> standardised(torch.tensor([[[1.0, 3.0, torch.nan]]]))
    tensor([[[-1.0000,  1.0000,     nan]]])
    """
    centred = windows - windows.nanmean(dim=2, keepdim=True)
    return centred / (centred.square().nanmean(dim=2, keepdim=True).sqrt() + TINY)


def sums_of_some(n_variates: int, n_rows: int) -> Tensor:
    """``(n_rows, n_variates)``: each row a random set of at most nine variates, divided by the root of its size."""
    most = min(n_variates, MOST_SUMMED)
    sizes = (2 ** (torch.rand(n_rows) * torch.log2(torch.tensor(most + 1.0)))).long().clamp(1, most)
    order = torch.rand(n_rows, n_variates).argsort(dim=1)
    return (order < sizes[:, None]).float() / sizes[:, None].sqrt()
