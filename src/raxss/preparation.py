"""What happens to the samples before windows are cut?

    Series -> Series, float64, scaled

Scaling is fitted once, on training series, and applied to every other. Next: windows.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from raxss.errors import EmptyDataError, SignalError, SignalWarning, VariateMismatchError
from raxss.recordings.series import Series

SHORTEST_SIGNAL = 8  # fewer samples are a row of numbers, where being equal is no fault

CONSTANT_SHARE = 1e-12  # of the mean: the mean of equal float64 values is off by less than this


@dataclass(frozen=True, eq=False)
class Scaling:
    """Take a mean away and divide by a deviation, variate by variate.

    ``train``: the same two numbers a variate for every series, fitted on the training set, so that level
    and amplitude stay informative. ``series``: each series by its own (z-score). ``none``: as it is.

    Examples
    --------
    >>> scaling = Scaling.fit([Series([0.0, 2.0]), Series([4.0, 6.0])], "train")
    >>> scaling.mean, scaling.deviation.round(3)
    (array([3.]), array([2.236]))
    >>> Scaling.fit([], "series").apply(Series([1.0, 3.0])).samples
    array([[-1.,  1.]])
    """

    mode: Literal["train", "series", "none"]
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]

    @classmethod
    def fit(cls, series: Sequence[Series], mode: Literal["train", "series", "none"]) -> Scaling:
        """Find the two numbers a variate; gaps do not count."""
        if mode != "train":
            return cls(mode, np.zeros(0), np.ones(0))
        n_variates = series[0].n_variates
        count, total = np.zeros(n_variates), np.zeros(n_variates)
        for one in series:
            finite = np.isfinite(one.samples)
            count += finite.sum(axis=1)
            total += one.samples.sum(axis=1, dtype=np.float64, where=finite)
        mean = total / np.maximum(count, 1)
        # A second pass: squares of large offsets would swallow a small deviation.
        squares = np.zeros(n_variates)
        for one in series:
            centred = one.samples.astype(np.float64) - mean[:, None]
            squares += np.square(centred).sum(axis=1, where=np.isfinite(centred))
        return cls(mode, mean, _nonzero(np.sqrt(squares / np.maximum(count, 1)), mean))

    def apply(self, series: Series) -> Series:
        """The scaled series, float64."""
        samples = series.samples.astype(np.float64)
        if self.mode == "train":
            return series.with_samples((samples - self.mean[:, None]) / self.deviation[:, None])
        if self.mode == "none":
            return series.with_samples(samples)
        gaps = ~np.isfinite(samples)
        masked = np.where(gaps, 0.0, samples)
        count = np.maximum((~gaps).sum(axis=1, keepdims=True), 1)
        mean = masked.sum(axis=1, keepdims=True) / count
        centred = np.where(gaps, 0.0, samples - mean)
        deviation = np.sqrt(np.square(centred).sum(axis=1, keepdims=True) / count)
        return series.with_samples((samples - mean) / _nonzero(deviation, mean))


def _nonzero(deviation: NDArray[np.float64], mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """A constant variate is centred and left at that; what rounding leaves of it is no deviation."""
    return np.where(deviation > CONSTANT_SHARE * np.abs(mean), deviation, 1.0)


def check_series(series: Sequence[Series], *, n_variates: int | None = None) -> None:
    """Refuse series that cannot be worked with, by name; warn about those that say nothing.

    Parameters
    ----------
    n_variates
        What the model was fitted on; without it, what the first series has.
    """
    if len(series) == 0:
        raise EmptyDataError("no series were given (0 samples, an empty list); at least one is needed.")
    expected = series[0].n_variates if n_variates is None else n_variates
    reference = (
        f"the first series, {series[0].name!r}, has" if n_variates is None else "the model was fitted on"
    )
    for one in series:
        if one.n_variates != expected:
            raise VariateMismatchError(
                f"series {one.name!r} has {one.n_variates} variates, but {reference} {expected}. "
                f"All series need the same; select {expected} channels of each."
            )
        _check_signal(one)


def _check_signal(series: Series) -> None:
    samples = series.samples
    finite = np.isfinite(samples)
    if not finite.all():
        n_bad = int((~finite).sum())
        first = int(np.flatnonzero(~finite.all(axis=0))[0])
        if not series.gaps_marked:
            raise SignalError(
                f"series {series.name!r} has {n_bad} of {samples.size} samples that are NaN or infinity, "
                f"the first at sample {first}; finite samples are needed. Fill or cut the gap, or mark it on "
                "purpose with Series(..., gaps_marked=True): windows that touch it then get weight 0."
            )
        if not finite.any():
            raise SignalError(
                f"series {series.name!r} has no finite sample among {samples.size}. Leave it out."
            )
    highest = np.where(finite, samples, -np.inf).max(axis=1)
    lowest = np.where(finite, samples, np.inf).min(axis=1)
    if series.n_samples >= SHORTEST_SIGNAL and not (highest > lowest).any():
        warnings.warn(
            f"series {series.name!r} is constant over all its {series.n_samples} samples; its score says "
            "nothing about the signal. Check the electrode or leave the series out.",
            SignalWarning,
            stacklevel=4,
        )
