"""Cases: the labelled windows of a library as arrays, and the standardisation of their keys.

    patient files -> Cases: keys (n, d), label, case, group, site (n,), times, quality
    keys of groups -> Standardisation: mean and scale (d,) -> standardised features

A *case* is a labelled recording; each of its rows is one window. Next: search.py finds the nearest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raxss.errors import LibraryError

ROWS_AT_ONCE = 2**14  # that are turned to float64 together


@dataclass(frozen=True, eq=False, kw_only=True)
class Cases:
    """Windows of labelled recordings. Indices point into the tuples of names, which are in ascending order.

    Examples
    --------
    >>> one, two = (
    ...     Cases(keys=np.full((2, 3), value, np.float32), label=np.array([1, 1]), case=np.array([0, 0]),
    ...           group=np.zeros(2, int), site=np.zeros(2, int), start_s=np.array([0.0, 2.0]),
    ...           end_s=np.array([2.0, 4.0]), quality=np.ones(2, np.float32), classes=("no", "yes"),
    ...           case_names=(f"{name}1",), group_names=(name,), group_units=("patient",), site_names=("bern",),
    ...           digests=("0" * 16,))
    ...     for value, name in ((1, "a"), (2, "b")))
    >>> both = Cases.joined([one, two])
    >>> both.group, both.case_names, both.case_groups, both.site_names
    (array([0, 0, 1, 1]), ('a1', 'b1'), array([0, 1]), ('bern',))
    """

    keys: NDArray[np.float32]  # (n, d), not standardised; of a block a read-only view of the file
    label: NDArray[np.int64]  # (n,) into classes
    case: NDArray[np.int64]  # (n,) into case_names and digests
    group: NDArray[np.int64]  # (n,) into group_names and group_units
    site: NDArray[np.int64]  # (n,) into site_names
    start_s: NDArray[np.float64]  # (n,) seconds within the recording
    end_s: NDArray[np.float64]  # (n,)
    quality: NDArray[np.float32]  # (n,) share of samples that are present
    classes: tuple[Any, ...]  # that the encoder knows
    case_names: tuple[str, ...]  # pseudonyms of the recordings
    group_names: tuple[str, ...]  # pseudonyms of the groups
    group_units: tuple[str, ...]  # what each is: "patient", "pair" or "recording"
    site_names: tuple[str, ...]
    digests: tuple[str, ...]  # of the samples of each recording, `Series.digest`; other units have another

    def __len__(self) -> int:
        return len(self.label)

    @property
    def width(self) -> int:
        """Number of features of a key."""
        return self.keys.shape[1]

    @property
    def case_groups(self) -> NDArray[np.int64]:
        """``(n_cases,)`` the group of each case."""
        return self._first_of_each_case(self.group)

    @property
    def case_labels(self) -> NDArray[np.int64]:
        """``(n_cases,)`` the label of each case, into ``classes``."""
        return self._first_of_each_case(self.label)

    @property
    def case_sites(self) -> NDArray[np.int64]:
        """``(n_cases,)`` the site of each case."""
        return self._first_of_each_case(self.site)

    @classmethod
    def joined(cls, blocks: Sequence[Cases]) -> Cases:
        """Several blocks, one behind the other; no two of them hold the same group."""
        if not blocks:
            raise LibraryError(
                "there are no cases to join; at least one block is needed. Add recordings first."
            )
        sites = sorted({name for block in blocks for name in block.site_names})
        shifts = {"case": 0, "group": 0}
        parts: dict[str, list[NDArray[np.int64]]] = {"case": [], "group": [], "site": []}
        for block in blocks:
            parts["case"].append(block.case + shifts["case"])
            parts["group"].append(block.group + shifts["group"])
            own = np.array([sites.index(name) for name in block.site_names], dtype=np.int64)
            parts["site"].append(own[block.site])
            shifts["case"] += len(block.case_names)
            shifts["group"] += len(block.group_names)
        return cls(
            keys=np.concatenate([block.keys for block in blocks]),
            label=np.concatenate([block.label for block in blocks]),
            case=np.concatenate(parts["case"]),
            group=np.concatenate(parts["group"]),
            site=np.concatenate(parts["site"]),
            start_s=np.concatenate([block.start_s for block in blocks]),
            end_s=np.concatenate([block.end_s for block in blocks]),
            quality=np.concatenate([block.quality for block in blocks]),
            classes=blocks[0].classes,
            case_names=tuple(name for block in blocks for name in block.case_names),
            group_names=tuple(name for block in blocks for name in block.group_names),
            group_units=tuple(unit for block in blocks for unit in block.group_units),
            site_names=tuple(sites),
            digests=tuple(digest for block in blocks for digest in block.digests),
        )

    def _first_of_each_case(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        _, first = np.unique(self.case, return_index=True)  # a case has one row at least
        return values[first]


@dataclass(frozen=True, eq=False)
class Standardisation:
    """Mean and scale of the features of a place.

    Every group counts the same, however many windows it has: mean = mean over groups g of m_g, variance = mean over
    g of (v_g + (m_g - mean)²), with m_g and v_g over the windows of g. So one patient with many recordings does not
    decide what is usual. Sums are taken in the order of the groups, in float64, and computed anew from the keys
    each time: of a library that a group left they are, bit for bit, those of a library that never had it.

    Examples
    --------
    >>> found = Standardisation.of([np.array([[0.0], [2.0]]), np.array([[5.0]])])
    >>> found.mean, found.scale.round(4)
    (array([3.]), array([2.1213]))
    >>> found.apply([[3.0]])
    array([[0.]], dtype=float32)
    """

    mean: NDArray[np.float64]  # (d,)
    scale: NDArray[np.float64]  # (d,) above 0: 1 where a feature never changes
    n_groups: int
    n_windows: int

    @classmethod
    def of(cls, groups: Iterable[ArrayLike]) -> Standardisation:
        """From the features ``(n_windows, d)`` of each group: keys of a library, or recordings without a label."""
        means, variances, lowest, highest, n_windows = [], [], [], [], 0
        for features in groups:
            rows = np.asarray(features)
            if len(rows) == 0:
                continue
            mean = _sum(rows) / len(rows)
            variances.append(_sum(rows, squares_around=mean) / len(rows))
            means.append(mean)
            lowest.append(rows.min(axis=0))
            highest.append(rows.max(axis=0))
            n_windows += len(rows)
        if not means:
            raise LibraryError(
                "there is no window to standardise features by; at least one is needed. Add recordings of this "
                "place."
            )
        mean = sum(means[1:], means[0]) / len(means)
        spread = [variance + np.square(own - mean) for variance, own in zip(variances, means, strict=True)]
        scale = np.sqrt(sum(spread[1:], spread[0]) / len(means))
        # Rounding gives a feature that never changes a small deviation, by which noise would become large.
        changes = np.min(lowest, axis=0) < np.max(highest, axis=0)
        return cls(mean, np.where(changes & (scale > 0), scale, 1.0), len(means), n_windows)

    def apply(self, features: ArrayLike) -> NDArray[np.float32]:
        """Standardised features ``(n, d)``, computed in float64."""
        rows = np.asarray(features)
        found = np.empty(rows.shape, dtype=np.float32)
        for first in range(0, len(rows), ROWS_AT_ONCE):
            part = slice(first, first + ROWS_AT_ONCE)
            found[part] = (rows[part].astype(np.float64) - self.mean) / self.scale
        return found


def _sum(rows: NDArray[Any], *, squares_around: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Sum over the rows, or over their squared distances from a point, a part at a time."""
    total = np.zeros(rows.shape[1])
    for first in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[first : first + ROWS_AT_ONCE].astype(np.float64)
        total += (part if squares_around is None else np.square(part - squares_around)).sum(axis=0)
    return total
