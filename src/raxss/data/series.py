"""Series: a labelled sequence of samples; SeriesCollection: several of them.

    samples (n_variates, n_samples), rate, label, group, name  ->  Series
    several Series                                             ->  SeriesCollection

For iEEG a series is one channel of one run. Next: method/windows.py cuts a series into windows.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raxss.errors import DataError, EmptyDataError, LabelError, did_you_mean

AT_ONCE = 2**20  # samples that are turned to float32 at a time for a digest
ORIGINS = ("centre", "patient", "recording", "electrode", "pair", "channel")  # widest first


@dataclass(frozen=True, eq=False)
class Series:
    """One sequence of samples with what is known about it.

    Parameters
    ----------
    samples
        x^(i): ``(n_samples,)`` or ``(n_variates, n_samples)``; kept as 2-D, never copied if it need not be.
    rate
        Samples per second. 1.0 where it is not known: times then count samples.
    label
        y^(i), or None where it is not known.
    group
        What must not sit in training and test at once: a patient, a pair, a centre.
    name
        How errors and evidence call this series.
    start_seconds
        Time of the first sample within its recording.
    gaps_marked
        True where the non-finite samples are meant as gaps, that is missing. A window with more than half of its
        samples missing gets weight 0. Without the mark, fitting and predicting refuse such samples.
    origin
        Where it comes from, as far as known, widest first: ``centre``, ``patient``, ``recording``,
        ``electrode``, ``pair``, ``channel``. Splits are made, and audited, by these.
    preparation
        What was done to the samples before, in the words of
        `raxss.data.prepare.preprocessing.Preparation`; empty: nothing.
    notes
        Sentences on how the samples were read, shown beside a score.

    Examples
    --------
    >>> series = Series([0.0, 1.0, 0.0, -1.0], rate=2.0, label="sine", name="toy")
    >>> series
    Series('toy', 1 variate, 4 samples at 2 Hz = 2 s, label='sine')
    >>> series.samples.shape
    (1, 4)
    """

    samples: NDArray[Any]
    rate: float = 1.0
    label: Any = None
    group: Hashable = None
    name: str = "series"
    start_seconds: float = 0.0
    gaps_marked: bool = False
    origin: Mapping[str, str] = field(default_factory=dict)
    preparation: str = ""
    notes: tuple[str, ...] = ()

    def __init__(
        self,
        samples: ArrayLike,
        rate: float = 1.0,
        label: Any = None,
        group: Hashable = None,
        name: str = "series",
        start_seconds: float = 0.0,
        gaps_marked: bool = False,
        origin: Mapping[str, str] | None = None,
        preparation: str = "",
        notes: Sequence[str] = (),
    ) -> None:
        try:
            array = np.asarray(samples)
        except ValueError as error:
            raise DataError(
                f"series {name!r} is no array ({error}); needed is (n_samples,) or (n_variates, n_samples), every "
                "variate with as many samples. Pass one series at a time."
            ) from error
        if array.ndim == 1:
            array = array[np.newaxis, :]
        if array.ndim != 2:
            raise DataError(
                f"series {name!r} has an array of {array.ndim} dimensions, shape {array.shape}; needed is "
                "(n_samples,) or (n_variates, n_samples). Pass one series at a time."
            )
        if array.size == 0:
            raise EmptyDataError(
                f"series {name!r} has no samples (shape {array.shape}); at least one is needed. "
                "Leave this series out."
            )
        if not (np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)):
            array = _as_float(array, name)
        if not (np.isfinite(rate) and rate > 0):
            raise DataError(
                f"series {name!r} has a rate of {rate} Hz; a finite number above 0 is needed. "
                "Where the rate is unknown, leave it out: times then count samples."
            )
        for name_of, value in {
            "samples": array,
            "rate": float(rate),
            "label": label,
            "group": group,
            "name": str(name),
            "start_seconds": float(start_seconds),
            "gaps_marked": bool(gaps_marked),
            "origin": _checked_origin(origin or {}, name),
            "preparation": str(preparation),
            "notes": tuple(notes),
        }.items():
            object.__setattr__(self, name_of, value)

    @property
    def n_variates(self) -> int:
        """How many sequences run side by side."""
        return int(self.samples.shape[0])

    @property
    def n_samples(self) -> int:
        """T_i, the number of time points."""
        return int(self.samples.shape[1])

    @property
    def seconds(self) -> float:
        """Duration."""
        return self.n_samples / self.rate

    @property
    def digest(self) -> str:
        """Sixteen hex digits that are the same for the same samples, whatever they are called."""
        digest = hashlib.sha256(f"{self.samples.shape}".encode())
        with np.errstate(over="ignore"):  # beyond float32 samples become infinite, for every series alike
            for row in self.samples:
                for begin in range(0, len(row), AT_ONCE):  # a day of signal is not copied
                    digest.update(np.ascontiguousarray(row[begin : begin + AT_ONCE], dtype="<f4").data)
        return digest.hexdigest()[:16]

    def with_samples(self, samples: ArrayLike) -> Series:
        """The same series with other samples, as preparation returns it."""
        return replace(self, samples=np.asarray(samples))

    def __repr__(self) -> str:
        label = "" if self.label is None else f", label={self.label!r}"
        plural = "" if self.n_variates == 1 else "s"
        return (
            f"Series({self.name!r}, {self.n_variates} variate{plural}, {self.n_samples} samples at "
            f"{self.rate:g} Hz = {self.seconds:g} s{label})"
        )


def _checked_origin(origin: Mapping[str, str], name: str) -> Mapping[str, str]:
    for level in origin:
        if level not in ORIGINS:
            raise DataError(f"series {name!r} has an unknown origin {level!r}{did_you_mean(level, ORIGINS)}")
    return {level: str(origin[level]) for level in ORIGINS if level in origin}


def _as_float(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Convert objects and booleans to float64."""
    if np.issubdtype(array.dtype, np.complexfloating):
        raise DataError(
            f"series {name!r} has complex samples, and complex data is not supported; real numbers are "
            "needed. Pass real and imaginary parts as two variates."
        )
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"series {name!r} has samples of type {array.dtype}, which are not numbers ({error}); "
            "integers or floats are needed."
        ) from error


class SeriesCollection(Sequence[Series]):
    """Several series in a fixed order, with their labels and groups side by side.

    Examples
    --------
    >>> collection = SeriesCollection([Series([1, 2, 3], label="a"), Series([4, 5], label="b")])
    >>> collection
    SeriesCollection(2 series of 2 to 3 samples, labels: a 1, b 1)
    >>> collection.labels
    array(['a', 'b'], dtype='<U1')
    >>> collection[[1]]
    SeriesCollection(1 series of 2 samples, labels: b 1)
    """

    def __init__(self, series: Iterable[Series]) -> None:
        self._series = tuple(series)

    def __len__(self) -> int:
        return len(self._series)

    def __iter__(self) -> Iterator[Series]:
        return iter(self._series)

    @overload
    def __getitem__(self, key: int) -> Series: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int] | NDArray[Any]) -> SeriesCollection: ...
    def __getitem__(self, key: int | slice | Sequence[int] | NDArray[Any]) -> Series | SeriesCollection:
        if isinstance(key, int | np.integer):
            return self._series[key]
        if isinstance(key, slice):
            return SeriesCollection(self._series[key])
        chosen = np.asarray(key)
        positions = np.arange(len(self))[chosen if chosen.size else []]  # masks and indices alike
        return SeriesCollection(self._series[position] for position in positions)

    @property
    def labels(self) -> NDArray[Any]:
        """One label a series; an error names the first series that has none."""
        for item in self:
            if item.label is None:
                raise LabelError(
                    f"series {item.name!r} has no label; every series needs one here. "
                    "Set Series(label=...) or pass labels beside the series."
                )
        return np.asarray([item.label for item in self])

    @property
    def groups(self) -> NDArray[Any] | None:
        """One group a series, or None where no series has one; all or none of them must."""
        groups = [item.group for item in self]
        missing = [item.name for item in self if item.group is None]
        if len(missing) == len(groups):
            return None
        if missing:
            raise DataError(
                f"{len(missing)} of {len(groups)} series have no group, the first is {missing[0]!r}; all or none "
                "need one, or series of one patient could sit on both sides of a split. Set Series(group=...)."
            )
        if not any(isinstance(group, tuple) for group in groups):
            return np.asarray(groups)
        array = np.empty(len(groups), dtype=object)  # (patient, run) stays one group, not a row of two
        array[:] = groups
        return array

    @property
    def names(self) -> list[str]:
        """How each series is called."""
        return [item.name for item in self]

    def __repr__(self) -> str:
        if not self:
            return "SeriesCollection(empty)"
        lengths = [item.n_samples for item in self]
        span = f"{min(lengths)}" if min(lengths) == max(lengths) else f"{min(lengths)} to {max(lengths)}"
        counts = Counter(item.label for item in self if item.label is not None)
        labels = ", ".join(f"{label} {count}" for label, count in sorted(counts.items(), key=str))
        return f"SeriesCollection({len(self)} series of {span} samples" + (
            f", labels: {labels})" if labels else ")"
        )
