"""Forests of trees on features of windows: extra trees and random forest, kept as arrays.

    standardised features (n, d) -> for every tree the leaf that a window falls into -> mean of their class shares (n, C)

scikit-learn grows the trees; here they are arrays (feature, threshold, children, shares), so that a model folder needs
no pickle, and a compiled loop descends them. Trees are dealt over the folds of the training series, and those of a
fold are grown without it: the forest is one, and every series has a posterior from trees that did not see its group.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from torch import Tensor

from raxss._core.settings import at_least
from raxss._core.threads import compiled
from raxss.method.backbones.protocol import register_classifier
from raxss.method.backbones.sizes import check_at_most
from raxss.method.backbones.window_classifiers import Floats, TrainingWindows, WindowClassifier

LEAF = -1  # as a feature
ARRAYS = ("tree_starts", "tree_folds", "node_features", "node_thresholds", "node_children", "leaf_shares")


class Trees(WindowClassifier):
    """Base class of the two forests."""

    any_size: ClassVar[tuple[str, ...]] = ARRAYS  # as large as the trees have grown
    tree_starts: Tensor
    tree_folds: Tensor
    node_features: Tensor
    node_thresholds: Tensor
    node_children: Tensor
    leaf_shares: Tensor

    def __init__(
        self,
        n_variates: int,
        window_length: int,
        n_outputs: int,
        *,
        view: str = "statistics",
        normalise: bool = False,
        n_trees: int = 300,
    ) -> None:
        super().__init__(n_variates, window_length, n_outputs, view=view, normalise=normalise)
        at_least("n_trees", n_trees, 1)
        check_at_most(n_trees=n_trees)
        self.n_trees = n_trees
        # One leaf that knows nothing, until it is fitted.
        self.register_buffer("tree_starts", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("tree_folds", torch.full((1,), -1, dtype=torch.int64))
        self.register_buffer("node_features", torch.full((1,), LEAF, dtype=torch.int64))
        self.register_buffer("node_thresholds", torch.zeros(1, dtype=torch.float64))
        self.register_buffer("node_children", torch.zeros(1, 2, dtype=torch.int64))
        self.register_buffer("leaf_shares", torch.full((1, self.n_classes), 1 / self.n_classes).double())

    def _fit(self, standard: Tensor, training: TrainingWindows) -> None:
        x = standard.float().cpu().numpy()
        folds = range(training.n_folds) if training.n_folds else [-1]
        grown: list[tuple[int, Any, NDArray[np.int64]]] = []
        for place, fold in enumerate(folds):
            used = training.folds != fold if training.n_folds else np.ones(len(x), dtype=bool)
            n_trees = self.n_trees // len(folds) + (place < self.n_trees % len(folds))
            forest = self._forest(max(n_trees, 1), x.shape[1], seed=(training.seed + place) % 2**32)
            forest.fit(x[used], training.targets[used], sample_weight=training.weights[used])
            grown += [(fold, tree.tree_, forest.classes_) for tree in forest.estimators_]
        for name, array in zip(ARRAYS, arrays_of(grown, self.n_classes), strict=True):
            setattr(self, name, torch.from_numpy(array))

    def _forest(self, n_trees: int, n_features: int, *, seed: int) -> Any:
        raise NotImplementedError

    def _posteriors(self, standard: Tensor) -> Tensor:
        return self._mean_shares(standard, np.ones(len(self.tree_starts), dtype=bool))

    def _held_out_posteriors(self, standard: Tensor, fold: int) -> Tensor:
        return self._mean_shares(standard, self.tree_folds.cpu().numpy() == fold)

    def _mean_shares(self, standard: Tensor, used: NDArray[np.bool_]) -> Tensor:
        x = np.ascontiguousarray(standard.float().cpu().numpy())
        arrays = [getattr(self, name).cpu().numpy() for name in ARRAYS]
        shares = np.zeros((len(x), self.n_classes))
        _add_shares(x, arrays[0][used], *arrays[2:], shares)
        return torch.from_numpy(shares / max(int(used.sum()), 1))

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *others: Any) -> None:
        """Arrays of any size are taken, if they are those of trees."""
        found = [state.get(prefix + name) for name in ARRAYS]
        if all(item is not None for item in found):
            arrays = [np.asarray(item) for item in found]
            refuse_no_trees(*arrays, n_features=self.view.d, n_classes=self.n_classes)
            for name, array in zip(ARRAYS, arrays, strict=True):
                setattr(self, name, torch.from_numpy(array.copy()))
        super()._load_from_state_dict(state, prefix, *others)


@register_classifier("extra-trees")
class ExtraTrees(Trees):
    """Extremely randomised trees; by default on statistics of windows.

    Fitted at once: 0 parameters that are trained.

    Parameters
    ----------
    view, normalise
        See `WindowClassifier`.
    n_trees
        In all.
    """

    def _forest(self, n_trees: int, n_features: int, *, seed: int) -> Any:
        most = max(0.1, n_features**-0.5) if n_features < 3000 else "sqrt"
        return ExtraTreesClassifier(
            n_trees, criterion="entropy", max_features=most, random_state=seed, n_jobs=torch.get_num_threads()
        )


@register_classifier("forest")
class RandomForest(Trees):
    """A random forest; by default on statistics of windows.

    Fitted at once: 0 parameters that are trained.

    Parameters
    ----------
    view, normalise
        See `WindowClassifier`.
    n_trees
        In all.
    """

    def _forest(self, n_trees: int, n_features: int, *, seed: int) -> Any:
        return RandomForestClassifier(n_trees, random_state=seed, n_jobs=torch.get_num_threads())


def arrays_of(trees: list[tuple[int, Any, NDArray[np.int64]]], n_classes: int) -> tuple[NDArray[Any], ...]:
    """Trees of scikit-learn, each with its fold and classes, as the arrays that are named in `ARRAYS`.

    Children and leaves are counted over all trees: the children of an inner node are places in the nodes, and both
    "children" of a leaf its place in the shares.
    """
    starts, folds, features, thresholds, children, shares = [], [], [], [], [], []
    n_nodes = n_leaves = 0
    for fold, tree, classes in trees:
        leaf = tree.children_left < 0
        rows = np.where(leaf, np.cumsum(leaf) - 1 + n_leaves, 0)
        starts.append(n_nodes)
        folds.append(fold)
        features.append(np.where(leaf, LEAF, tree.feature))
        thresholds.append(np.where(leaf, 0.0, tree.threshold))
        inner = np.stack([tree.children_left, tree.children_right], axis=1) + n_nodes
        children.append(np.where(leaf[:, None], rows[:, None], inner))
        own = np.zeros((int(leaf.sum()), n_classes))
        values = tree.value[leaf, 0]
        own[:, classes] = values / values.sum(axis=1, keepdims=True)
        shares.append(own)
        n_nodes, n_leaves = n_nodes + len(leaf), n_leaves + len(own)
    return (
        np.array(starts, dtype=np.int64),
        np.array(folds, dtype=np.int64),
        np.concatenate(features).astype(np.int64),
        np.concatenate(thresholds),
        np.concatenate(children).astype(np.int64),
        np.concatenate(shares),
    )


def refuse_no_trees(
    starts: NDArray[np.int64],
    folds: NDArray[np.int64],
    features: NDArray[np.int64],
    thresholds: Floats,
    children: NDArray[np.int64],
    shares: Floats,
    *,
    n_features: int,
    n_classes: int,
) -> None:
    """Raise a ValueError for arrays that are not trees: a descent must end, inside of the arrays, at class shares."""
    n = len(features)
    shapes = thresholds.shape == (n,) and children.shape == (n, 2) and shares.shape[1:] == (n_classes,)
    whole = all(item.dtype == np.int64 for item in (starts, folds, features, children))
    if not (shapes and whole and n and len(shares) and len(starts) and starts.shape == folds.shape):
        raise ValueError("the arrays of its trees do not go together")
    leaf, places = features == LEAF, np.arange(n)
    inner = children[~leaf]
    sound = (
        bool(((starts >= 0) & (starts < n)).all())
        and bool(((features >= LEAF) & (features < n_features)).all())
        and bool(((inner > places[~leaf, None]) & (inner < n)).all())  # downwards, so that a descent ends
        and bool(((children[leaf] >= 0) & (children[leaf] < len(shares))).all())
        and bool(np.isfinite(thresholds).all() and np.isfinite(shares).all())
        and bool(((shares >= 0).all()) and np.allclose(shares.sum(axis=1), 1.0))
    )
    if not sound:
        raise ValueError(
            "the arrays of its trees lead out of them, or end at numbers that are no shares of classes"
        )


@compiled
def _add_shares(
    x: NDArray[np.float32],  # (n, d)
    starts: NDArray[np.int64],  # (n_trees,)
    features: NDArray[np.int64],  # (n_nodes,)
    thresholds: Floats,  # (n_nodes,)
    children: NDArray[np.int64],  # (n_nodes, 2)
    shares: Floats,  # (n_leaves, C)
    total: Floats,  # (n, C) out
) -> None:
    """Add the shares of the leaf that each row falls into, over all trees; `<=` goes left, as in scikit-learn."""
    for row in range(len(x)):
        for start in starts:
            node = start
            while features[node] >= 0:
                node = children[node, 0 if x[row, features[node]] <= thresholds[node] else 1]
            leaf = children[node, 0]
            for k in range(total.shape[1]):
                total[row, k] += shares[leaf, k]
