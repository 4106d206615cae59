"""Reference forest: a small random forest on statistics of whole series, to compare a fitted model with.

    series, class indices, groups -> ReferenceForest: predict_proba (n, C), out_of_fold (n, C)

It knows neither windows nor retrieval. A model that is clearly less accurate than it has missed something simple.
Its size is bounded by counts, not by a clock, so that the same data give the same forest: it takes less than two
seconds on one core. Trees are kept as arrays, as in method/backbones/trees.py. Next: learning.py compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier

from raxss.data.series import Series
from raxss.method.backbones.trees import ARRAYS, arrays_of, refuse_no_trees
from raxss.uncertainty.series_statistics import MOST_VARIATES, n_series_statistics, series_statistics
from raxss.uncertainty.validation import folds_of

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

N_TREES = 100
MOST_FOLDS = 5  # of `folds_of`; each has a tree at least
MOST_SHARES = 2**21  # class shares of all leaves, in which forests for many classes are large
MOST_TREES = 1000  # of a forest that is read
MOST_DEPTH = 24  # of a tree; a deeper one is refused when it is read
MOST_SERIES = 1500  # that a forest is grown on; of more, so many are drawn
FEWEST_A_CLASS = 20  # of these, at least, where a class has so many
MOST_SAMPLES = 2**23  # of all series and variates together
MOST_SAMPLES_A_SERIES = 2**17  # of each variate
FEWEST_SAMPLES_A_SERIES = 512
LEAST_WEIGHT = 1e-3  # of a class: trees cannot be grown on series that do not count
ROWS_AT_ONCE = 2**14  # rows times trees
WHOLE = {
    "node_children": np.int32,
    "node_features": np.int32,
    "tree_starts": np.int32,
    "tree_folds": np.int32,
}
LIMIT = "most_samples"  # name of the array that has the samples read of a series


@dataclass(frozen=True, eq=False)
class ReferenceForest:
    """A random forest on `raxss.uncertainty.series_statistics.series_statistics`.

    p(c | series) = mean over trees of the share of class c in the leaf that the series falls into

    Trees are dealt over folds of whole groups, and those of a fold are grown without it: `out_of_fold` is the mean
    over the trees that did not see the group of a series.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> series = [Series(rng.normal(size=200) * (1 + index % 2)) for index in range(20)]
    >>> forest = ReferenceForest.fit(series, np.arange(20) % 2, n_classes=2, seed=0)
    >>> forest.predict_proba(series).shape, bool((forest.out_of_fold.argmax(axis=1) == np.arange(20) % 2).all())
    ((20, 2), True)
    """

    trees: Mapping[str, NDArray[Any]]  # by the names in `raxss.method.backbones.trees.ARRAYS`
    n_classes: int
    n_variates: int
    most_samples: int  # of each variate of a series that are read
    #: (n, C) of the series given to `fit`: by the trees that did not see their group, and by all trees. NaN for
    #: series that were left out, and out of fold for a single group; empty in a forest that was read.
    out_of_fold: Floats
    fitted: Floats

    @classmethod
    def fit(
        cls,
        series: Sequence[Series],
        targets: Integers,  # (n,)
        groups: NDArray[Any] | None = None,  # (n,)
        *,
        n_classes: int,
        weights: Floats | None = None,  # (C,)
        seed: int = 0,
        scored: Integers | None = None,
        n_others: int = 0,
    ) -> Self:
        """Grow a forest on labelled series.

        Parameters
        ----------
        groups
            Series of a group are in one fold; by default each is a group of its own.
        weights
            Of the classes, as those of the model that it is compared with; by default all count the same.
        seed
            Draws series, where there are many, folds and trees.
        scored
            Places of the series that `out_of_fold` is needed of; by default all that the forest is grown on.
        n_others
            Number of further series that will be predicted, for which part of the samples is set aside.
        """
        targets = np.asarray(targets, dtype=np.int64)
        n_variates = series[0].n_variates
        drawn = drawn_series(targets, most_series(n_variates), seed=seed)
        wanted = np.union1d(drawn, drawn if scored is None else scored)
        n_samples = MOST_SAMPLES // (min(n_variates, MOST_VARIATES) * (len(wanted) + n_others))
        most_samples = int(np.clip(n_samples, FEWEST_SAMPLES_A_SERIES, MOST_SAMPLES_A_SERIES))
        table = statistics_table([series[place] for place in wanted], most_samples)
        rows = np.searchsorted(wanted, drawn)
        folds = folds_of(targets, groups, seed=seed)
        if folds.max() == 0:
            folds = np.full(len(series), -1, dtype=np.int64)  # a single group: nothing can be held out
        class_weights = np.ones(n_classes) if weights is None else np.maximum(weights, LEAST_WEIGHT)
        n_trees = int(np.clip(MOST_SHARES // (len(drawn) * n_classes), MOST_FOLDS, N_TREES))
        grown: list[tuple[int, Any, NDArray[np.int64]]] = []
        every = np.unique(folds)
        for place, fold in enumerate(every):
            used = (folds[drawn] != fold) | (fold < 0)
            if not used.any():
                continue
            forest = RandomForestClassifier(
                n_trees // len(every) + (place < n_trees % len(every)),
                max_depth=MOST_DEPTH,
                random_state=(seed + place) % 2**32,
            )
            truth = targets[drawn[used]]
            forest.fit(table[rows[used]], truth, sample_weight=class_weights[truth])
            grown += [(int(fold), tree.tree_, forest.classes_) for tree in forest.estimators_]
        trees = dict(zip(ARRAYS, arrays_of(grown, np.ones(n_classes)), strict=True))
        found, fitted = np.full((2, len(series), n_classes), np.nan)
        fitted[wanted] = _mean_shares(table, trees, trees["tree_folds"] >= -1)
        for fold in every[every >= 0]:
            held_out = folds[wanted] == fold
            of_fold = trees["tree_folds"] == fold
            if of_fold.any():
                found[wanted[held_out]] = _mean_shares(table[held_out], trees, of_fold)
        return cls(trees, n_classes, n_variates, most_samples, found, fitted)

    def predict_proba(self, series: Sequence[Series]) -> Floats:
        """Probabilities of series ``(n, C)``, by all trees."""
        other = next((item for item in series if item.n_variates != self.n_variates), None)
        if other is not None:
            raise ValueError(
                f"series {other.name!r} has {other.n_variates} variates, but the reference forest was grown on "
                f"{self.n_variates}; pass series with the variates of the training series."
            )
        everyone = np.ones(len(self.trees["tree_starts"]), dtype=bool)
        return _mean_shares(statistics_table(series, self.most_samples), self.trees, everyone)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As a model folder keeps it: trees in 32 bits, and how much of a series is read."""
        kept = {
            name: array.astype(WHOLE.get(name, np.float32 if name == "leaf_shares" else array.dtype))
            for name, array in self.trees.items()
        }
        return kept | {LIMIT: np.array([self.most_samples], dtype=np.int32)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], *, n_classes: int, n_variates: int) -> Self:
        """Read back `arrays`; anything else is refused with a ValueError."""
        kinds = {
            name: WHOLE.get(name, np.float32 if name == "leaf_shares" else np.float64) for name in ARRAYS
        }
        kinds[LIMIT] = np.int32
        if set(arrays) != set(kinds):
            raise ValueError(f"its reference forest has arrays named {sorted(arrays)[:10]}")
        if any(arrays[name].dtype != kind for name, kind in kinds.items()):
            raise ValueError("the arrays of its reference forest have other types of numbers")
        limit = arrays[LIMIT]
        if limit.shape != (1,) or not FEWEST_SAMPLES_A_SERIES <= limit[0] <= MOST_SAMPLES_A_SERIES:
            raise ValueError(f"its reference forest reads {str(limit[:1])[:20]} samples of a series")
        trees: dict[str, NDArray[Any]] = {
            name: arrays[name].astype(np.int64 if name in WHOLE else np.float64) for name in ARRAYS
        }
        if trees["leaf_shares"].ndim == 2 and len(trees["leaf_shares"]):  # rounded to 32 bits
            sums = trees["leaf_shares"].sum(axis=1, keepdims=True)
            trees["leaf_shares"] = np.where(np.abs(sums - 1) < 1e-4, trees["leaf_shares"] / sums, np.nan)
        refuse_no_trees(
            [torch.from_numpy(trees[name]) for name in ARRAYS],
            n_features=n_series_statistics(n_variates),
            n_classes=n_classes,
        )
        _refuse_deep_trees(trees)
        nothing = np.zeros((0, n_classes))
        return cls(trees, n_classes, n_variates, int(limit[0]), nothing, nothing)


def statistics_table(series: Sequence[Series], most_samples: int) -> NDArray[np.float32]:
    """`series_statistics` of each series, ``(n, d)``."""
    rows = [series_statistics(item.samples, most_samples=most_samples) for item in series]
    return np.stack(rows) if rows else np.zeros((0, 1), dtype=np.float32)


def most_series(n_variates: int) -> int:
    """Number of series that a forest is grown on at most: fewer of many variates.

    >>> most_series(1), most_series(12), most_series(64)
    (1500, 682, 512)
    """
    return min(MOST_SERIES, MOST_SAMPLES // (2 * FEWEST_SAMPLES_A_SERIES * min(n_variates, MOST_VARIATES)))


def drawn_series(targets: Integers, most: int, *, seed: int) -> Integers:
    """Places of about ``most`` series at most, in order: the same share of each class, of rare ones at least 20.

    >>> drawn_series(np.array([0] * 900 + [1] * 100), 100, seed=0).size
    110
    """
    if len(targets) <= most:
        return np.arange(len(targets))
    order = np.random.default_rng(seed).permutation(len(targets))
    classes, counts = np.unique(targets, return_counts=True)
    fewest = min(FEWEST_A_CLASS, max(most // len(classes), 1))
    wanted = np.maximum(counts * most // len(targets), fewest)
    kept = [order[targets[order] == label][:n] for label, n in zip(classes, wanted, strict=True)]
    return np.sort(np.concatenate(kept))


def _mean_shares(
    table: NDArray[np.float32], trees: Mapping[str, NDArray[Any]], used: NDArray[np.bool_]
) -> Floats:
    """Mean class shares ``(n, C)`` of the leaves that rows fall into; `<=` goes left, as in scikit-learn."""
    features, thresholds, children = (trees[name] for name in ARRAYS[2:5])
    starts, shares = trees["tree_starts"][used], trees["leaf_shares"]
    found = np.zeros((len(table), shares.shape[1]))
    at_once = max(ROWS_AT_ONCE // len(starts), 1)
    for begin in range(0, len(table), at_once):
        rows = table[begin : begin + at_once]
        nodes = np.broadcast_to(starts, (len(rows), len(starts))).copy()
        inner = np.argwhere(features[nodes] >= 0)
        while len(inner):
            row, tree = inner.T
            node = nodes[row, tree]
            right = rows[row, features[node]] > thresholds[node]
            nodes[row, tree] = children[node, right.astype(np.int64)]
            inner = inner[features[nodes[row, tree]] >= 0]
        found[begin : begin + at_once] = shares[children[nodes, 0]].mean(axis=1)
    return found


def _refuse_deep_trees(trees: Mapping[str, NDArray[Any]]) -> None:
    """Raise a ValueError for more or deeper trees than are grown: to predict by them could take any time."""
    nodes = np.unique(trees["tree_starts"])
    for _ in range(MOST_DEPTH + 1):
        inner = nodes[trees["node_features"][nodes] >= 0]
        nodes = np.unique(trees["node_children"][inner])
    if len(nodes) or len(trees["tree_starts"]) > MOST_TREES:
        raise ValueError(
            f"its reference forest has trees deeper than {MOST_DEPTH}, or more than {MOST_TREES}"
        )
