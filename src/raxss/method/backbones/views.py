"""Views: fixed features of windows, for window classifiers.

    windows (batch, n_variates, length), their mask (batch, 1, length) or None -> features (batch, d)

``"statistics"`` are those of statistics.py. The others come from convolution kernels that see a window and its
differences: ``"ppv"`` the PPV features of MiniROCKET (ppv.py), ``"multirocket"`` these and three more of each
kernel (multirocket.py), ``"hydra"`` counts of competing kernels (hydra.py). None is learned; thresholds and scales
come from some training windows. ``"beats"`` are expert features of ECGs (beats.py); it needs the sampling rate.
With ``normalise`` each window is brought to mean 0 and deviation 1 first, for signals whose level and scale carry
no information. Next: window_classifiers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from raxss.errors import one_of
from raxss.method.backbones.beats import beat_features, checked_rate, n_beat_features
from raxss.method.backbones.hydra import N_RIVALS, contests, doubled_dilations, drawn_kernels
from raxss.method.backbones.multirocket import N_POOLED, pooled
from raxss.method.backbones.ppv import N_KERNELS, N_TAPS, fitted_cuts, shares, spread_dilations
from raxss.method.backbones.sizes import check_allocation
from raxss.method.backbones.statistics import n_statistics, window_statistics

N_PPV = 5000  # features, roughly
N_MULTIROCKET = 5000  # kernels and thresholds, roughly, with four features each
N_CONTESTS = 64  # groups of rivals of each dilation, half of them of differences
N_DILATIONS = 16
MOST_CHANNELS = 4  # of windows and differences; beyond so many, kernels see sums of some variates
N_SUMS = 8  # of each dilation, half of them of differences
MOST_SUMMED = 9  # variates
WINDOWS_TO_LOOK_AT = 256
TINY = 1e-6


class WindowView(nn.Module):
    """Fixed features of windows."""

    needs_rate: ClassVar[bool] = False  # the sampling rate is one more argument, ``rate``
    d: int  # number of features
    size: int  # numbers in memory for each window while its features are computed
    made_of: Hashable = None  # equal for views of equal features; None where these depend on training windows

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
        self.made_of = ("statistics", normalise)
        self.size = self.d + n_variates * window_length

    def forward(self, windows: Tensor, present: Tensor | None = None) -> Tensor:
        """``(batch, n_variates, length)`` -> ``(batch, d)``."""
        if present is not None:
            windows = windows.masked_fill(present == 0, torch.nan)
        return window_statistics(standardised(windows) if self.normalise else windows)


class PPVView(WindowView):
    """PPV features of a window and of its differences.

    Missing samples and padding count as 0, the mean of the scaled signal, and so do differences across the edges of
    gaps, which would be jumps otherwise. What is missing up to the end of a window is taken as padding, whose edge
    is a jump, as it is in series without gaps. Skipping the places that see them, as
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
    n_kernels = N_PPV  # with thresholds, roughly

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
        n_cuts = max(round(self.n_kernels / (len(groups) * N_KERNELS)), 1)
        self.register_buffer("cuts", torch.zeros(len(groups), N_KERNELS, n_cuts))
        self.d = self.cuts.numel()
        self.size = self.d + (len(groups) if self.mixes else n_rows) * self.length

    def look_at(self, windows: Tensor, present: Tensor | None = None) -> None:
        """Thresholds from some of these windows, evenly spread."""
        channels = self._channels(*some_windows(windows, present))
        self.cuts.copy_(fitted_cuts(channels, self.rows, self.dilations, self.cuts.shape[2]))

    def forward(self, windows: Tensor, present: Tensor | None = None) -> Tensor:
        """``(batch, n_variates, length)`` -> ``(batch, d)``."""
        return shares(self._channels(windows, present), self.rows, self.dilations, self.cuts).flatten(1)

    def _channels(self, windows: Tensor, present: Tensor | None) -> Tensor:
        """Rows that the kernels see: ``(batch, n_rows, length)``."""
        windows = with_gaps(windows, present, normalise=self.normalise).nan_to_num(nan=0.0)
        gaps = None if present is None else gaps_before_the_end(present)
        return windows_and_steps(windows, self.mixture, self.length, outside=0.0, gaps=gaps)


class MultiRocketView(PPVView):
    """Share, excess, mean place and longest stretch above the threshold of each kernel (`multirocket.pooled`).

    An excess is divided by its mean over some training windows, so that it has no unit. Missing samples and sums of
    variates are those of `PPVView`.

    >>> view = MultiRocketView(1, 64)
    >>> view.look_at(torch.randn(8, 1, 64))
    >>> view(torch.zeros(3, 1, 64)).shape[1] == view.d
    True
    """

    scales: Tensor
    n_kernels = N_MULTIROCKET

    def __init__(self, n_variates: int, window_length: int, *, normalise: bool = False) -> None:
        super().__init__(n_variates, window_length, normalise=normalise)
        self.register_buffer("scales", torch.ones_like(self.cuts))
        self.size += (N_POOLED - 1) * self.d
        self.d *= N_POOLED

    def look_at(self, windows: Tensor, present: Tensor | None = None) -> None:
        """Thresholds and scales from some of these windows, evenly spread."""
        super().look_at(windows, present)
        channels = self._channels(*some_windows(windows, present))
        excess = pooled(channels, self.rows, self.dilations, self.cuts)[..., 1].mean(dim=0)
        self.scales.copy_(torch.where(excess > 0, excess, 1.0))

    def forward(self, windows: Tensor, present: Tensor | None = None) -> Tensor:
        """``(batch, n_variates, length)`` -> ``(batch, d)``."""
        found = pooled(self._channels(windows, present), self.rows, self.dilations, self.cuts)
        found[..., 1] /= self.scales
        return found.flatten(1)


class HydraView(WindowView):
    """Wins and losses of competing kernels (`hydra.contests`).

    Wins are divided by the mean of the largest output of a group over some training windows, so that they have no
    unit. Missing samples and padding add nothing. With more than one variate, each group of kernels sees a sum of
    some of them. Kernels and sums are drawn once.

    >>> view = HydraView(1, 64)
    >>> view.look_at(torch.randn(8, 1, 64))
    >>> view(torch.zeros(3, 1, 64)).shape[1] == view.d
    True
    """

    mixture: Tensor
    rows: Tensor
    dilations: Tensor
    kernels: Tensor
    scales: Tensor

    def __init__(self, n_variates: int, window_length: int, *, normalise: bool = False) -> None:
        super().__init__()
        self.normalise, self.length = normalise, max(window_length, N_TAPS)
        spread = doubled_dilations(self.length)
        n_groups, mixes = len(spread) * N_CONTESTS, n_variates > 1
        check_allocation(n_groups * n_variates if mixes else 0)
        both = torch.arange(2).repeat_interleave(N_CONTESTS // 2)
        rows = torch.arange(n_groups) if mixes else both.repeat(len(spread))
        self.register_buffer("rows", rows.int(), persistent=False)
        steps = torch.tensor(spread, dtype=torch.int32).repeat_interleave(N_CONTESTS)
        self.register_buffer("dilations", steps, persistent=False)
        self.register_buffer("mixture", sums_of_some(n_variates, n_groups if mixes else 0))
        self.register_buffer("kernels", drawn_kernels(n_groups))
        self.register_buffer("scales", torch.ones(n_groups))
        self.d = n_groups * 2 * N_RIVALS
        self.size = self.d + (n_groups if mixes else 2) * self.length

    def look_at(self, windows: Tensor, present: Tensor | None = None) -> None:
        """Scales from some of these windows, evenly spread."""
        wins = self._contests(*some_windows(windows, present))[:, :, 0]
        largest = wins.sum(dim=2).mean(dim=0)
        self.scales.copy_(torch.where(largest > 0, largest, 1.0))

    def forward(self, windows: Tensor, present: Tensor | None = None) -> Tensor:
        """``(batch, n_variates, length)`` -> ``(batch, d)``."""
        found = self._contests(windows, present)
        found[:, :, 0] /= self.scales[:, None]
        return found.flatten(1)

    def _contests(self, windows: Tensor, present: Tensor | None) -> Tensor:
        """`contests` of windows and differences: ``(batch, n_groups, 2, 8)``."""
        windows = with_gaps(windows, present, normalise=self.normalise)
        channels = windows_and_steps(windows, self.mixture, self.length, outside=torch.nan)
        return contests(channels, self.rows, self.dilations, self.kernels)


class BeatsView(WindowView):
    """Intervals between the heart beats of an ECG, their shape, and noise (`beats.beat_features`).

    They do not depend on offset, scale and polarity of a window, so ``normalise`` changes nothing. Beats are looked
    for in the samples that are present; an interval across a gap of more than 40 ms is not counted.

    Parameters
    ----------
    rate
        Samples per second, from 20 to 100,000.

    >>> BeatsView(1, 1024, rate=250.0)(torch.zeros(3, 1, 1024)).shape
    torch.Size([3, 104])
    """

    needs_rate = True

    def __init__(
        self, n_variates: int, window_length: int, *, normalise: bool = False, rate: float | None = None
    ) -> None:
        super().__init__()
        self.rate, self.d = checked_rate(rate), n_beat_features(n_variates)
        self.made_of = ("beats", self.rate)
        self.size = self.d + n_variates * window_length

    def forward(self, windows: Tensor, present: Tensor | None = None) -> Tensor:
        """``(batch, n_variates, length)`` -> ``(batch, d)``."""
        return beat_features(with_gaps(windows, present, normalise=False), self.rate)


_COMPUTED: ContextVar[dict[Any, tuple[Tensor, Tensor]] | None] = ContextVar("computed", default=None)


@contextmanager
def computed_once() -> Iterator[None]:
    """Within it, views of equal features (`made_of`) are computed once for the same tensor of windows."""
    token = _COMPUTED.set({})
    try:
        yield
    finally:
        _COMPUTED.reset(token)


def features_once(view: WindowView, windows: Tensor, compute: Callable[[], Tensor]) -> Tensor:
    """What ``compute`` returns for a view of these windows, or has returned before within `computed_once`."""
    computed = _COMPUTED.get()
    if computed is None or view.made_of is None:
        return compute()
    place = (view.made_of, id(windows))
    if place not in computed:
        computed[place] = (windows, compute())  # with the windows, so that no others get their id
    return computed[place][1]


VIEWS: dict[str, type[WindowView]] = {
    "statistics": StatisticsView,
    "ppv": PPVView,
    "multirocket": MultiRocketView,
    "hydra": HydraView,
    "beats": BeatsView,
}


def build_view(
    name: str, n_variates: int, window_length: int, *, normalise: bool = False, rate: float | None = None
) -> WindowView:
    """The view of this name; ``rate``, in Hz, is for those that need it.

    >>> build_view("statistics", 1, 64).d
    395
    >>> build_view("beats", 1, 1024)
    Traceback (most recent call last):
    raxss.errors.ConfigError: the view 'beats' needs the sampling rate in Hz, ...
    """
    view = VIEWS[one_of("view", name, tuple(VIEWS))]
    options = {"rate": rate} if view.needs_rate else {}
    return view(n_variates, window_length, normalise=normalise, **options)


def some_windows(windows: Tensor, present: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """At most 256 of these windows, evenly spread, and their mask."""
    places = torch.linspace(0, len(windows) - 1, min(len(windows), WINDOWS_TO_LOOK_AT)).long()
    return windows[places], None if present is None else present[places]


def with_gaps(windows: Tensor, present: Tensor | None, *, normalise: bool) -> Tensor:
    """Windows with NaN where a sample is missing; with ``normalise``, `standardised`."""
    if present is not None:
        windows = windows.masked_fill(present == 0, torch.nan)
    return standardised(windows) if normalise else windows


def gaps_before_the_end(present: Tensor) -> Tensor:
    """Where samples are missing before the last that is present: what is missing behind it may be padding.

    >>> gaps_before_the_end(torch.tensor([[[1, 0, 1, 0]]]))
    tensor([[[False,  True, False, False]]])
    """
    known = (present != 0).int()
    return (known == 0) & (known.flip(2).cummax(dim=2).values.flip(2) != 0)


def windows_and_steps(
    windows: Tensor, mixture: Tensor, length: int, *, outside: float, gaps: Tensor | None = None
) -> Tensor:
    """Windows and their differences, or sums of their variates: ``(batch, n_rows, length)``.

    Parameters
    ----------
    mixture
        ``(n_rows, n_variates)``: the weight of each variate in a sum, of windows and of differences in turn.
        Without rows, all variates and then their differences.
    length
        At least that of the windows.
    outside
        The value behind the windows, and of the difference before the first.
    gaps
        ``(batch, 1, n)``, true where a sample is missing: differences with it are ``outside``, so that the edge of
        a gap is no jump of the signal.

    Examples
    --------
    >>> windows = torch.tensor([[[1.0, 3.0], [10.0, 10.0]]])
    >>> windows_and_steps(windows, torch.ones(2, 2), 3, outside=torch.nan)
    tensor([[[11., 13., nan],
             [nan,  2., nan]]])
    """
    windows = functional.pad(windows, (0, length - windows.shape[2]), value=outside)
    steps = functional.pad(windows.diff(dim=2), (1, 0), value=outside)
    if gaps is not None:
        touched = gaps | functional.pad(gaps[:, :, :-1], (1, 0), value=False)
        behind = functional.pad(touched, (0, length - touched.shape[2]), value=False)
        steps = steps.masked_fill(behind, outside)
    if not len(mixture):
        return torch.cat([windows, steps], dim=1)
    found = windows.new_empty(len(windows), len(mixture), length)
    found[:, 0::2] = mixture[0::2] @ windows
    found[:, 1::2] = mixture[1::2] @ steps
    return found


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
