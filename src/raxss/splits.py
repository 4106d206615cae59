"""Which series are set aside, so that no group sits on both sides?

    labels (n_series,), groups (n_series,) -> two index arrays

Training gets only what it may see: the held-out series are never passed to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raxss.errors import DataError


def hold_out(
    labels: ArrayLike, *, fraction: float, seed: int, groups: ArrayLike | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Set a share of the series aside, stratified by label, whole groups at a time.

    Each group counts under its most frequent label. Of every label with at least two groups, at least one
    group lands on each side; a label with a single group stays in the first part.

    Returns
    -------
    Indices of the series kept and of those held out, each in ascending order.

    Examples
    --------
    >>> hold_out(["a", "a", "b", "b"], fraction=0.5, seed=0)
    (array([1, 3]), array([0, 2]))
    """
    labels = np.asarray(labels)
    groups = np.arange(len(labels)) if groups is None else np.asarray(groups)
    if len(groups) != len(labels):
        raise DataError(
            f"{len(groups)} groups were given for {len(labels)} series; one group a series is needed."
        )
    members: dict[Any, list[int]] = {}
    for index, group in enumerate(groups.tolist()):
        members.setdefault(group, []).append(index)
    strata: dict[Any, list[Any]] = {}
    for group, indices in members.items():
        strata.setdefault(_most_frequent(labels[indices].tolist()), []).append(group)

    generator = np.random.default_rng(seed)
    held: list[int] = []
    for label in sorted(strata, key=str):
        names = strata[label]
        n_held = int(np.clip(round(fraction * len(names)), 1, len(names) - 1)) if len(names) > 1 else 0
        for position in generator.permutation(len(names))[:n_held]:
            held.extend(members[names[position]])
    mask = np.zeros(len(labels), dtype=bool)
    mask[held] = True
    return np.flatnonzero(~mask), np.flatnonzero(mask)


def _most_frequent(labels: Sequence[Any]) -> Any:
    return Counter(labels).most_common(1)[0][0]
