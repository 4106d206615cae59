"""Preprocessing of samples: pooling, resampling, z-score, and the scaling of a model.

    Series -> Preparation: pooled or resampled, z-scored -> Series, float32
    Series -> Scaling                                    -> Series, float64

A `Preparation` knows nothing of other series, so it can be done once, on disk (folder.py). `Scaling` belongs to a
model: fitted once, on training series, and applied to every other. Next: method/windows.py.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from raxss.data.prepare.streaming import Pooling, Resampling, Stream, Unchanged, gaps_as_nan
from raxss.data.series import Series
from raxss.errors import (
    ConfigError,
    DataError,
    EmptyDataError,
    SignalError,
    SignalWarning,
    VariateMismatchError,
    one_of,
)

UNKNOWN_RATE = 1.0  # of a series whose rate is not known
SAME_RATE = 0.01  # of a rate: closer ones are taken as equal

SHORTEST_SIGNAL = 8  # fewer samples are a row of numbers, where being equal is no fault

CONSTANT_SHARE = 1e-12  # of the mean: the mean of equal float64 values is off by less than this

CHUNK = 1 << 18  # samples that statistics are summed over at once; part of the result's last bits, so fixed


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Preprocessing of each series on its own, before a model sees it.

    Attributes
    ----------
    gap
        Samples of this value are missing, that is NaN from here on; NaN: those that are NaN already.
    pooling
        Kernel and stride of an average over the raw signal (the paper: 24 and 12). A last kernel that is not full
        is dropped. The time of a pooled sample is the centre of its kernel.
    rate
        Samples per second to resample to, without aliasing. Not together with pooling.
    scaling
        ``series``: each channel has its mean taken away and is divided by its deviation (z-score), over what
        is kept; gaps do not count; a constant channel becomes zeros. ``none``: as it is.

    Samples are computed in float64 and kept as float32. A sample that is not finite makes every output sample that
    would use it NaN, and no other.

    Examples
    --------
    >>> preparation = Preparation(pooling=(24, 12), scaling="series")
    >>> str(preparation)
    'pool 24/12, z-score'
    >>> Preparation.parse("gap -999, resample 250 Hz")
    Preparation(pooling=None, rate=250.0, scaling='none', gap=-999.0)
    >>> preparation.apply(Series(np.arange(1200.0), rate=1000.0, name="ramp"))
    Series('ramp', 1 variate, 99 samples at 83.3333 Hz = 1.188 s)
    """

    pooling: tuple[int, int] | None = None
    rate: float | None = None
    scaling: Literal["none", "series"] = "none"
    gap: float | None = None

    def __post_init__(self) -> None:
        if self.gap is not None:
            object.__setattr__(self, "gap", gap_value(self.gap))
        if self.pooling is not None and self.rate is not None:
            raise ConfigError(
                f"pooling {self.pooling[0]}/{self.pooling[1]} and resampling to {self.rate:g} Hz were both asked "
                "for; each sets the rate in its own way. Choose one."
            )
        if self.pooling is not None:
            kernel, stride = self.pooling
            if int(kernel) != kernel or int(stride) != stride or kernel < 1 or stride < 1:
                raise ConfigError(
                    f"pooling needs a kernel and a stride, whole numbers of 1 and more, such as 24/12; got "
                    f"{kernel}/{stride}."
                )
            object.__setattr__(self, "pooling", (int(kernel), int(stride)))
        if self.rate is not None:
            if not (math.isfinite(self.rate) and self.rate > 0):
                raise ConfigError(f"the rate to resample to must be finite and above 0 Hz, got {self.rate}.")
            object.__setattr__(self, "rate", float(self.rate))
        if self.scaling not in ("none", "series"):
            raise ConfigError(f"scaling must be 'none' or 'series', got {self.scaling!r}.")

    def __str__(self) -> str:
        words = []
        if self.gap is not None:
            words.append(f"gap {repr(self.gap).removesuffix('.0')}")
        if self.pooling is not None:
            words.append(f"pool {self.pooling[0]}/{self.pooling[1]}")
        if self.rate is not None:
            words.append(f"resample {repr(self.rate).removesuffix('.0')} Hz")
        if self.scaling == "series":
            words.append("z-score")
        return ", ".join(words)

    @property
    def settings(self) -> dict[str, Any]:
        """The fields as JSON has them; a gap as text, which may be NaN, and only where there is one."""
        found: dict[str, Any] = {"pooling": self.pooling, "rate": self.rate, "scaling": self.scaling}
        return found if self.gap is None else found | {"gap": repr(self.gap)}

    @classmethod
    def parse(cls, text: str) -> Preparation:
        """The preparation that ``str`` has put into these words."""
        step = r"gap ([^\s,]+)|pool (\d+)/(\d+)|resample (\S+) Hz|(z-score)"
        found = [re.fullmatch(step, word) for word in text.split(", ")] if text else []
        try:
            if not all(found):
                raise ValueError
            parts = [match.groups() for match in found if match is not None]
            gap, kernel, stride, rate, scaled = (
                next((part[place] for part in parts if part[place]), None) for place in range(5)
            )
            preparation = cls(
                gap=float(gap) if gap else None,
                pooling=(int(kernel), int(stride)) if kernel and stride else None,
                rate=float(rate) if rate else None,
                scaling="series" if scaled else "none",
            )
        except ValueError:  # a ConfigError is one, too
            preparation = None
        if preparation is None or str(preparation) != text:
            raise ConfigError(
                f"{text!r} is no preparation; such are 'pool 24/12', 'resample 250 Hz', 'z-score', the first two "
                "also with ', z-score' after them, all with 'gap -999, ' or another number before them, and '' for "
                "none."
            )
        return preparation

    def stream(self, rate: float, n_samples: int) -> Stream:
        """Pooling or resampling of a signal that comes in blocks; the z-score needs all of it and comes after."""
        stream: Stream = Unchanged(n_samples)
        if self.pooling is not None:
            stream = Pooling(*self.pooling, n_samples)
        elif self.rate is not None and rate == UNKNOWN_RATE:
            raise DataError(
                f"it cannot be resampled to {self.rate:g} Hz, because its own rate is not known. Say it: in a "
                "column 'rate' of the manifest, in the file, or as Series(..., rate=...)."
            )
        elif self.rate is not None and self.rate != rate:
            stream = Resampling(rate, self.rate, n_samples)
        stream.centred = self.scaling == "series"
        stream.gap = self.gap
        return stream

    def timing(self, rate: float, start_seconds: float) -> tuple[float, float]:
        """Rate and time of the first sample after it, from those before."""
        if self.pooling is not None:
            kernel, stride = self.pooling
            return rate / stride, start_seconds + (kernel - 1) / 2 / rate
        return self.rate or rate, start_seconds

    def apply(self, series: Series) -> Series:
        """The prepared series. One that this has been done to already comes back as it is."""
        if series.preparation == str(self):
            gaps_marked = series.gaps_marked or not bool(np.isfinite(series.samples).all())
            return series if gaps_marked == series.gaps_marked else replace(series, gaps_marked=True)
        if series.preparation:
            raise DataError(
                f"series {series.name!r} was prepared already ({series.preparation!r}), which cannot be undone, "
                f"and {str(self) or 'no preparation'!r} is asked for. Start from the recording."
            )
        try:
            stream = self.stream(series.rate, series.n_samples)
        except DataError as error:
            raise DataError(f"series {series.name!r}: {error}") from error
        samples = np.concatenate([stream.push(series.samples), stream.finish()], axis=1)
        if samples.size == 0:
            raise EmptyDataError(
                f"series {series.name!r} has {series.n_samples} samples, of which {str(self)!r} leaves none. "
                "Leave this series out, or choose a smaller kernel."
            )
        if self.scaling == "series":
            for row in samples:
                mean, deviation = level(row.__getitem__, len(row))
                row[:] = z_scored(row, mean, deviation)
        rate, start_seconds = self.timing(series.rate, series.start_seconds)
        return replace(
            series,
            samples=samples,
            rate=rate,
            start_seconds=start_seconds,
            gaps_marked=series.gaps_marked or not bool(np.isfinite(samples).all()),
            preparation=str(self),
        )


def gap_value(value: Any) -> float:
    """The value of missing samples, a number or NaN.

    >>> gap_value("-999"), gap_value("nan")
    (-999.0, nan)
    """
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.inf
    if math.isinf(found) or isinstance(value, bool):
        raise ConfigError(
            f"the value of missing samples is {value!r}; needed is a number, such as -999, or nan. Infinities stay "
            "errors."
        )
    return found


def is_rate_known(rate: float, preparation: str = "") -> bool:
    """Whether a rate, after this preparation, is a known one: pooling divides unknown rates as well."""
    pooling = Preparation.parse(preparation).pooling
    return not math.isclose(rate * (pooling[1] if pooling else 1), UNKNOWN_RATE)


def resampled(series: Series, rate: float) -> Series:
    """A raw series at another rate, without aliasing, with a note that says so.

    Examples
    --------
    >>> slow = resampled(Series(np.sin(np.arange(1000.0)), rate=500.0, name="a"), 250.0)
    >>> slow, slow.notes
    (Series('a', 1 variate, 500 samples at 250 Hz = 2 s), ("series 'a' was resampled from 500 to 250 Hz.",))
    """
    if series.preparation:
        raise DataError(
            f"series {series.name!r} was prepared already ({series.preparation!r}), which cannot be undone, and is "
            f"to be resampled to {rate:g} Hz. Start from the recording."
        )
    note = f"series {series.name!r} was resampled from {series.rate:g} to {rate:g} Hz"
    if rate > series.rate:
        note += f": it holds nothing above {series.rate / 2:g} Hz, which the model may look at"
    found = Preparation(rate=rate).apply(series)
    return replace(found, preparation="", notes=(*series.notes, f"{note}."))


def level(read: Callable[[slice], NDArray[Any]], n_samples: int) -> tuple[float, float]:
    """Mean and deviation of one channel, chunk by chunk; gaps do not count.

    ``read`` gives the samples of a slice: of an array, ``array.__getitem__``. Chunks are merged in order (Chan,
    Golub, LeVeque), so that neither memory nor a large offset is a problem. A constant channel deviates by 0.

    >>> level(np.array([1.0, 3.0, np.nan]).__getitem__, 3)
    (2.0, 1.0)
    """
    count, mean, squares = 0, 0.0, 0.0
    for start in range(0, n_samples, CHUNK):
        chunk = read(slice(start, min(start + CHUNK, n_samples))).astype(np.float64)
        chunk = chunk[np.isfinite(chunk)]
        if not len(chunk):
            continue
        chunk_mean = float(chunk.sum()) / len(chunk)
        difference, total = chunk_mean - mean, count + len(chunk)
        squares += float(np.square(chunk - chunk_mean).sum()) + difference**2 * count * len(chunk) / total
        mean += difference * len(chunk) / total
        count = total
    deviation = math.sqrt(squares / count) if count else 0.0
    return mean, deviation if deviation > CONSTANT_SHARE * abs(mean) else 0.0


def z_scored(samples: NDArray[np.float32], mean: float, deviation: float) -> NDArray[np.float32]:
    """Samples less their mean, by their deviation; zeros where that is 0. Gaps stay."""
    if deviation == 0:
        return np.where(np.isfinite(samples), np.float32(0), samples)
    return ((samples.astype(np.float64) - mean) / deviation).astype(np.float32)


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
        for item in series:
            finite = np.isfinite(item.samples)
            count += finite.sum(axis=1)
            total += item.samples.sum(axis=1, dtype=np.float64, where=finite)
        mean = total / np.maximum(count, 1)
        # A second pass: squares of large offsets would swallow a small deviation.
        squares = np.zeros(n_variates)
        for item in series:
            centred = item.samples.astype(np.float64) - mean[:, None]
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


def with_marked_gaps(series: Series) -> Series:
    """The series with its NaN marked as missing; one with infinities is left as it is, to be refused.

    >>> with_marked_gaps(Series([1.0, np.nan])).gaps_marked, with_marked_gaps(Series([np.inf, np.nan])).gaps_marked
    (True, False)
    """
    if series.gaps_marked or np.isinf(series.samples).any() or not np.isnan(series.samples).any():
        return series
    return replace(series, gaps_marked=True)


def with_gap_value(series: Series, value: float) -> Series:
    """A raw series whose samples of this value are missing; NaN: those that are NaN already.

    >>> with_gap_value(Series([1.0, -999.0]), -999.0).samples
    array([[ 1., nan]])
    """
    return with_marked_gaps(series.with_samples(gaps_as_nan(series.samples, value)))


def check_series(series: Sequence[Series], *, n_variates: int | None = None) -> None:
    """Raise for series that cannot be used; warn about constant ones. ``n_variates``: those of the model."""
    if len(series) == 0:
        raise EmptyDataError("no series were given (0 samples, an empty list); at least one is needed.")
    expected = series[0].n_variates if n_variates is None else n_variates
    reference = (
        f"the first series, {series[0].name!r}, has" if n_variates is None else "the model was fitted on"
    )
    for item in series:
        if item.n_variates != expected:
            raise VariateMismatchError(
                f"series {item.name!r} has {item.n_variates} variates, but {reference} {expected}. "
                f"All series need the same number; pass series with {expected} variate(s)."
            )
        _check_signal(item)


def _check_signal(series: Series) -> None:
    samples = series.samples
    finite = np.isfinite(samples)
    if not finite.all():
        n_bad = int((~finite).sum())
        first = int(np.flatnonzero(~finite.all(axis=0))[0])
        if not series.gaps_marked:
            raise SignalError(
                f"series {series.name!r} has {n_bad} of {samples.size} samples that are NaN or infinity, "
                f"the first at sample {first}; finite samples are needed. Cut the gap, or mark it on purpose "
                "with missing='nan' or Series(..., gaps_marked=True): the samples then count as missing."
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


@dataclass(frozen=True, kw_only=True)
class PreparationConfig:
    """Scaling of the samples before windows are cut, and what NaN means."""

    scaling: Literal["train", "series", "none"] = "train"  # one mean and deviation a variate; z-score; as is
    missing: Literal["refuse", "nan"] = "refuse"  # "nan": NaN is a missing sample

    def __post_init__(self) -> None:
        one_of("preparation.scaling", self.scaling, ("train", "series", "none"))
        one_of("preparation.missing", self.missing, ("refuse", "nan"))
