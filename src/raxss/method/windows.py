"""Windows: overlapping segments of a series, as views of its samples.

    samples (n_variates, n_samples) -> starts (n_windows,) -> windows (n_windows, n_variates, length)

At stride 5 and length 1024 copies would be 200 times the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from raxss._core.settings import at_least
from raxss.data.series import Series
from raxss.errors import ConfigError


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

    window_length: int = 1024  # L
    stride: int = 128  # the paper's 5 goes with its pooled iEEG; belongs to the data, not to the method

    def __post_init__(self) -> None:
        at_least("windows.window_length", self.window_length, 1)
        at_least("windows.stride", self.stride, 1)
