"""Windows: overlapping segments of a series, as views of its samples.

    samples (n_variates, n_samples) -> starts (n_windows,) -> windows (n_windows, n_variates, length)

At stride 5 and length 1024 copies would be 200 times the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from raxss._core.settings import at_least
from raxss.data.series import Series
from raxss.errors import ConfigError

# For "auto"; chosen by cross-validation within the training parts of 25 public sets.
LONGEST_WHOLE = 1536  # samples of the usual longest series: up to here each series is one window
USUAL_SHARE = 0.9  # of the series are no longer than the usual longest, so that single ones do not decide
LONGEST_HALF = 1024  # samples of a window that is half of the median series; of many series `LONGEST_WINDOW`
LONGEST_WINDOW = 4096
#: From here on a network joins the default, windows are longer, and changed more in training. An eighth of it, 50,
#: is the fewest validation series that choose an epoch.
MANY_SERIES = 400
MOST_WINDOWS = 200_000


def window_starts(n_samples: int, *, window_length: int, stride: int) -> NDArray[np.int64]:
    """First sample of each window; a series no longer than one window has a single window, which starts at 0.

    >>> window_starts(10, window_length=4, stride=3)
    array([0, 3, 6])
    """
    if window_length < 1 or stride < 1:
        raise ConfigError(
            f"window_length and stride must be at least 1, got window_length={window_length} and "
            f"stride={stride}."
        )
    return np.arange(0, max(n_samples - window_length, 0) + 1, stride, dtype=np.int64)


def missing_samples(samples: NDArray[Any]) -> NDArray[np.bool_]:
    """``(n_variates, n_samples)`` -> ``(n_samples,)``: a sample is missing where any variate is not finite."""
    return np.logical_not(np.isfinite(samples).all(axis=0))


def n_missing(missing: NDArray[np.bool_], window_length: int, stride: int) -> NDArray[np.int64]:
    """How many of the missing samples ``(n_samples,)`` each window holds, ``(n_windows,)``.

    >>> n_missing(np.array([True, False, False, True, True, False]), 4, 2)
    array([2, 2])
    """
    n_before = np.concatenate([[0], np.cumsum(missing, dtype=np.int64)])
    found: NDArray[np.int64] = (n_before[window_length:] - n_before[: len(n_before) - window_length])[
        ::stride
    ]
    return found


def mostly_missing(counts: NDArray[np.int64], window_length: int) -> NDArray[np.bool_]:
    """Windows that cannot be used: more than half of their samples are missing.

    >>> mostly_missing(np.array([0, 2, 3]), 4)
    array([False, False,  True])
    """
    return 2 * counts > window_length


def network_strip(samples: NDArray[Any], *, with_mask: bool) -> NDArray[np.float32]:
    """Scaled samples as a network gets them, float32: 0, the neutral value, in every variate where one is missing.

    With a mask there is one more row, 1 where a sample is present and 0 where it is missing.

    >>> network_strip(np.array([[1.0, np.nan, 3.0]]), with_mask=True)
    array([[1., 0., 3.],
           [1., 0., 1.]], dtype=float32)
    """
    missing = missing_samples(samples)
    strip = np.array(samples, dtype=np.float32)
    if missing.any():
        strip[:, missing] = 0.0
    return np.concatenate([strip, ~missing[np.newaxis]], dtype=np.float32) if with_mask else strip


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows of one series, as a view of its samples."""

    strip: NDArray[Any]  # (n_variates, n_samples) with the padding of a short series
    starts: NDArray[np.int64]  # (n_windows,) first sample of each window
    length: int  # L, padding included
    stride: int
    rate: float
    offset_seconds: float
    n_padded: int  # zeros appended to a series shorter than one window

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def samples(self) -> NDArray[Any]:
        """``(n_windows, n_variates, length)``, a read-only view of the strip."""
        return sliding_window_view(self.strip, self.length, axis=1)[:, :: self.stride].transpose(1, 0, 2)

    @property
    def missing_share(self) -> NDArray[np.float64]:
        """``(n_windows,)`` share of each window's samples that are missing in any variate, padding left out."""
        return self._n_missing / (self.length - self.n_padded)

    @property
    def unusable(self) -> NDArray[np.bool_]:
        """``(n_windows,)`` windows with more than half of their samples missing: weight 0, no one's neighbour."""
        return mostly_missing(self._n_missing, self.length - self.n_padded)

    @property
    def has_gaps(self) -> bool:
        """Whether any sample of the series is missing."""
        return bool(missing_samples(self.strip).any())

    @property
    def _n_missing(self) -> NDArray[np.int64]:
        return n_missing(missing_samples(self.strip), self.length, self.stride)

    @property
    def start_seconds(self) -> NDArray[np.float64]:
        """``(n_windows,)`` when each window begins."""
        return self.offset_seconds + self.starts / self.rate

    @property
    def end_seconds(self) -> NDArray[np.float64]:
        """``(n_windows,)`` when each window ends; padding is not counted."""
        return self.offset_seconds + (self.starts + self.length - self.n_padded) / self.rate


def windows_of(series: Series, *, window_length: int, stride: int) -> Windows:
    """All windows of a series, without copying it.

    A series shorter than ``window_length`` gives one window, padded with zeros behind (`pad_trunc`).

    Examples
    --------
    >>> windows = windows_of(Series([0, 1, 2, 3, 4, 5], rate=2), window_length=4, stride=2)
    >>> windows.samples[:, 0]
    array([[0, 1, 2, 3],
           [2, 3, 4, 5]])
    >>> windows.start_seconds, windows.end_seconds
    (array([0., 1.]), array([2., 3.]))
    """
    starts = window_starts(series.n_samples, window_length=window_length, stride=stride)
    n_padded = max(window_length - series.n_samples, 0)
    strip = np.pad(series.samples, ((0, 0), (0, n_padded))) if n_padded else series.samples
    return Windows(strip, starts, window_length, stride, series.rate, series.start_seconds, n_padded)


@dataclass(frozen=True, kw_only=True)
class WindowConfig:
    """How a series is cut into windows."""

    window_length: int | Literal["auto"] = "auto"  # L; `plan_windows` says what "auto" becomes
    stride: int | Literal["auto"] = "auto"  # the paper's 5 goes with its pooled iEEG

    def __post_init__(self) -> None:
        for name in ("window_length", "stride"):
            if getattr(self, name) != "auto":
                at_least(f"windows.{name}", getattr(self, name), 1, otherwise=" or 'auto'")


@dataclass(frozen=True, kw_only=True)
class WindowPlan:
    """Window length and stride for given series, with the reason where they were chosen."""

    window_length: int
    stride: int
    reason: str  # empty where both were given

    def settings(self, requested: int | Literal["auto"]) -> WindowConfig:
        """The settings with what was chosen; a requested length stays, even if it is longer than every series."""
        length = self.window_length if requested == "auto" else requested
        return WindowConfig(window_length=length, stride=self.stride)


def usual_longest(lengths: Sequence[int]) -> int:
    """Samples of the longest series; if it has more than 1536, of the longest but for a tenth of them.

    >>> usual_longest([100, 1500]), usual_longest([150] * 99 + [9000]), usual_longest([150, 9000])
    (1500, 150, 9000)
    """
    longest = max(lengths, default=0)
    return longest if longest <= LONGEST_WHOLE else int(np.quantile(lengths, USUAL_SHARE, method="higher"))


def plan_windows(
    config: WindowConfig, lengths: Sequence[int], *, rate: float | None = None, least_seconds: float = 0.0
) -> WindowPlan:
    """Resolve ``"auto"`` for series of these lengths.

    Series of up to 1536 samples are one window each; up to a tenth of them may be longer, and are divided. Of
    longer ones a window is a quarter of the median length, or half of it up to 1024 samples, and at most ten
    seconds, which are taken as 1024 to 4096 samples. From 400 series on it is half of the median length, and at
    most 4096 samples. The stride is an eighth of a window, or more where there would be over 200,000 windows. A
    window is never longer than every series.

    Parameters
    ----------
    rate
        Samples per second; None where it is not known.
    least_seconds
        Of an automatic window, where the median series is as long and 4096 samples are enough.

    Examples
    --------
    >>> plan = plan_windows(WindowConfig(), [10_000] * 50, rate=300.0)
    >>> plan.window_length, plan.stride
    (2500, 312)
    >>> print(plan.reason)
    a quarter of the median length, 10000 samples
    >>> plan_windows(WindowConfig(), [10_000] * 50, rate=1000.0, least_seconds=4.0).window_length
    4000
    >>> print(plan_windows(WindowConfig(), [10_000] * 500, rate=300.0).reason)
    at most 4096 samples of a median of 10000
    >>> plan_windows(WindowConfig(window_length=64), [96, 150]).stride
    8
    """
    longest, usual, median = max(lengths), usual_longest(lengths), int(np.median(lengths))
    reasons = []
    if config.window_length != "auto":
        window_length = min(config.window_length, longest)
    elif usual <= LONGEST_WHOLE:
        window_length = usual
        who = "series have" if usual == longest else "nine in ten series have"
        reasons.append(f"{who} up to {usual} samples, so each is one window")
    else:
        many = len(lengths) >= MANY_SERIES
        if many or median // 2 <= LONGEST_HALF:
            share, window_length = "half", max(median // 2, 1)
        elif median // 4 < LONGEST_HALF:
            share, window_length = "between a quarter and half", LONGEST_HALF
        else:
            share, window_length = "a quarter", median // 4
        reasons.append(f"{share} of the median length, {median} samples")
        ten_seconds = LONGEST_WINDOW if many or rate is None else int(10 * rate)
        most = min(max(ten_seconds, LONGEST_HALF), LONGEST_WINDOW)
        if window_length > most:
            by_rate = not many and rate is not None and most == ten_seconds
            why = f", ten seconds at {rate:g} Hz," if by_rate else ""
            window_length, reasons = most, [f"at most {most} samples{why} of a median of {median}"]
        needed = math.ceil(least_seconds * rate) if rate else 0
        if window_length < needed <= min(median, LONGEST_WINDOW):
            window_length, reasons = needed, [f"{least_seconds:g} seconds, the least that heart beats need"]
    if config.stride != "auto":
        stride = config.stride
    else:
        stride = max(window_length // 8, 1)
        n_windows = sum(max(length - window_length, 0) // stride + 1 for length in lengths)
        if n_windows > MOST_WINDOWS:
            stride = min(-(-stride * n_windows // MOST_WINDOWS), max(window_length // 2, stride))
            reasons.append(f"at stride {stride}, since there are {len(lengths)} series")
    return WindowPlan(window_length=window_length, stride=stride, reason="; ".join(reasons))
