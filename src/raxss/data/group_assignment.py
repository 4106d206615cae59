"""Parts of a split: whole groups assigned to them, and classes balanced within them.

    labels, groups, fractions of the parts -> the part of each series      assign_groups
    a part -> as many series of each class                                balanced

Next: splits.py makes splits with these.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from raxss.data.series import SeriesCollection
from raxss.errors import DataError

N_STARTS = 64  # random assignments, of which the best is kept
N_SWAPS = 100_000  # pairs of groups whose exchange is tried in one go, at most
NEAR = 0.005  # cost a series that is good enough: validation at 8.5 to 11.5 %, say, if all else is right
MOST_STEPS = 200  # moves and exchanges
MISSING_CLASS = {"train": 4e6, "validation": 1e6, "test": 2e6}  # worse than any deviation from the fractions


def assign_groups(
    collection: SeriesCollection,
    groups: Sequence[Hashable],
    pool: NDArray[np.int64],
    fractions: Sequence[float],
    parts: Sequence[str],
    seed: int,
    number: int = 0,
) -> NDArray[np.int64]:  # (len(pool),)
    """A part for each series of the pool, whole groups at a time.

    How far a choice is from the aim, over parts p and classes c:  Σ (n_pc - f_p N_c)² / (f_p N_c),  and the
    same for the totals. Groups are dealt out one by one to the part that is best for that, in many random orders at
    once. The first result that is near enough is taken, not the best: with ten patients the best would be the same
    under every seed. If none is near, the best is improved by moves and exchanges of groups. A class that a part
    lacks costs more than any deviation.
    """
    used = [place for place, fraction in enumerate(fractions) if fraction > 0]
    labels = collection.labels[pool]
    _, classes = np.unique(labels, return_inverse=True)
    order: dict[Hashable, int] = {}
    member = np.array([order.setdefault(groups[index], len(order)) for index in pool])
    n_groups = len(order)
    if n_groups < len(used):
        raise DataError(
            f"there are {n_groups} groups for {len(used)} parts; a group is never cut in two, so at least "
            f"{len(used)} are needed. Split by something narrower, or give a part the fraction 0."
        )
    counts = np.zeros((n_groups, classes.max() + 2))  # one column per class, and the total
    np.add.at(counts, (member, classes), 1)
    counts[:, -1] = counts[:, :-1].sum(axis=1)
    target = np.array([fractions[place] for place in used])[:, None] * counts.sum(axis=0)
    penalty = np.array([MISSING_CLASS[parts[place]] for place in used])
    aim = _Aim(counts, target, penalty, NEAR * counts[:, -1].sum())
    generator = np.random.default_rng([seed, 0, number])
    assigned = _improved(_dealt(aim, generator), aim, generator)
    return np.array(used)[assigned][member]


class _Aim(NamedTuple):
    counts: NDArray[np.float64]  # (n_groups, n_columns), what each group brings
    target: NDArray[np.float64]  # (n_parts, n_columns), what each part should get
    penalty: NDArray[np.float64]  # (n_parts,), for each class that the part lacks
    near: float  # a cost that is good enough

    def cost(self, filled: NDArray[np.float64]) -> Any:
        """Distance from the aim of ``filled (..., n_parts, n_columns)``."""
        deviation = ((filled - self.target) ** 2 / self.target).sum(axis=(-2, -1))
        return deviation + ((filled == 0) * self.penalty[:, None]).sum(axis=(-2, -1))


def _dealt(aim: _Aim, generator: np.random.Generator) -> NDArray[np.int64]:
    """Each group in turn goes where it is needed most; the first of several random turns that is near enough."""
    n_groups, target = len(aim.counts), aim.target
    starts = np.arange(N_STARTS)
    turns = generator.permuted(np.tile(np.arange(n_groups), (N_STARTS, 1)), axis=1)
    filled = np.zeros((N_STARTS, *target.shape))
    assigned = np.zeros((N_STARTS, n_groups), dtype=np.int64)
    # equal parts, as folds are, take turns at being first
    ties = 1e-9 * generator.random((N_STARTS, len(target)))
    for turn in turns.T:
        adding = aim.counts[turn][:, None, :]
        change = ((2 * (filled - target) + adding) * adding / target).sum(axis=2)
        chosen = np.argmin(change + ties, axis=1)
        filled[starts, chosen] += adding[:, 0]
        assigned[starts, turn] = chosen
    costs = aim.cost(filled)
    near = costs <= aim.near
    return assigned[int(np.argmax(near) if near.any() else np.argmin(costs))]


def _improved(assigned: NDArray[np.int64], aim: _Aim, generator: np.random.Generator) -> NDArray[np.int64]:
    """Move one group, or exchange two, until the parts are near enough to the aim or nothing helps."""
    n_groups, n_parts = len(aim.counts), len(aim.target)
    assigned = assigned.copy()
    moved, parts = (
        item.ravel() for item in np.meshgrid(np.arange(n_groups), np.arange(n_parts), indexing="ij")
    )
    for _ in range(MOST_STEPS):
        filled = np.stack([aim.counts[assigned == part].sum(axis=0) for part in range(n_parts)])
        now = float(aim.cost(filled))
        if now <= aim.near:
            break
        pairs = generator.integers(n_groups, size=(2, min(N_SWAPS, n_groups**2)))
        first = np.concatenate([moved, pairs[0]])
        second = np.concatenate([np.full(len(moved), -1), pairs[1]])
        to = np.concatenate([parts, assigned[pairs[1]]])
        useful = assigned[first] != to
        first, second, to = first[useful], second[useful], to[useful]
        costs = _costs_after(aim, filled, assigned[first], to, first, second)
        best = int(np.argmin(costs)) if len(costs) else 0
        if not len(costs) or costs[best] >= now - 1e-9:
            break  # nothing helps
        origin = assigned[first[best]]
        assigned[first[best]] = to[best]
        if second[best] >= 0:
            assigned[second[best]] = origin
    return assigned


def _costs_after(
    aim: _Aim,
    filled: NDArray[np.float64],
    origin: NDArray[np.int64],
    to: NDArray[np.int64],
    first: NDArray[np.int64],
    second: NDArray[np.int64],
) -> NDArray[np.float64]:
    """The cost if ``first`` went from ``origin`` to ``to`` and ``second`` (where not -1) the other way."""
    change = aim.counts[first] - np.where(second[:, None] >= 0, aim.counts[second], 0.0)
    own = ((filled - aim.target) ** 2 / aim.target).sum(axis=1) + (filled == 0).sum(axis=1) * aim.penalty
    total = np.full(len(first), own.sum())
    for place, new in ((origin, filled[origin] - change), (to, filled[to] + change)):
        total -= own[place]
        total += ((new - aim.target[place]) ** 2 / aim.target[place]).sum(axis=1)
        total += (new == 0).sum(axis=1) * aim.penalty[place]
    return total


def balanced(
    collection: SeriesCollection,
    part: NDArray[np.int64],
    generator: np.random.Generator,
    *,
    share: int = 1,
    keep_order: bool = False,
) -> NDArray[np.int64]:
    """As many series of each class as the smallest class has, or a ``share``-th of that."""
    by_name = part if keep_order else np.array(sorted(part, key=collection.names.__getitem__), dtype=np.int64)
    labels = collection.labels[by_name]
    classes, counts = np.unique(labels, return_counts=True)
    kept: set[int] = set()
    for label in classes:
        members = by_name[labels == label]
        kept.update(generator.permutation(members)[: counts.min() // share].tolist())
    return np.array([index for index in part if index in kept], dtype=np.int64)
