"""Forests of trees on features of windows: extra trees and random forest, kept as arrays.

    standardised features (n, d) -> the leaf of each tree that a window falls into
        -> p_c = w_c s_c / sum over c of w_c s_c, with class weights w and mean class shares s: posteriors (n, C)

scikit-learn grows the trees; here they are arrays (feature, threshold, children, shares), so that a model folder
needs no pickle, and a compiled loop descends them. They are grown until a leaf has one class, so weights of windows
would hardly change them: class weights multiply shares instead, Bayes' rule for classes of another frequency. The
trees are divided among the folds of the training series, and those of a fold are grown without it: there is one
forest, and every series has a posterior from trees that did not see its group.
"""

from __future__ import annotations

from collections.abc import Sequence
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
LEAST_WEIGHT = 1e-9  # of a class, so that posteriors are defined where there is no other
DTYPES = {
    "tree_starts": torch.int64,  # (n_trees,) place of the root in the nodes
    "tree_folds": torch.int64,  # (n_trees,) the fold that a tree was grown without, or -1
    "node_features": torch.int64,  # (n_nodes,) the feature that a node compares, or LEAF
    "node_thresholds": torch.float64,  # (n_nodes,) up to it a window goes to the first child
    "node_children": torch.int64,  # (n_nodes, 2) places in the nodes; of a leaf, twice its place in the shares
    "leaf_shares": torch.float64,  # (n_leaves, C) shares of classes times class weights, of which the largest is 1
}
ARRAYS = tuple(DTYPES)


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
        share_missing: bool = False,
        context: bool = False,
        rate: float | None = None,
        n_trees: int = 300,
    ) -> None:
        options: dict[str, Any] = {"normalise": normalise, "share_missing": share_missing}
        options |= {"context": context, "rate": rate}
        super().__init__(n_variates, window_length, n_outputs, view=view, **options)
        at_least("n_trees", n_trees, 1)
        check_at_most(n_trees=n_trees)
        self.n_trees = n_trees
        # Until it is fitted: one leaf, at which classes have equal shares.
        self.register_buffer("tree_starts", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("tree_folds", torch.full((1,), -1, dtype=torch.int64))
        self.register_buffer("node_features", torch.full((1,), LEAF, dtype=torch.int64))
        self.register_buffer("node_thresholds", torch.zeros(1, dtype=torch.float64))
        self.register_buffer("node_children", torch.zeros(1, 2, dtype=torch.int64))
        equal = torch.full((1, self.n_classes), 1 / self.n_classes, dtype=torch.float64)
        self.register_buffer("leaf_shares", equal)
        self._on_host: list[NDArray[Any]] | None = None  # the same as arrays

    def _fit(self, standard: Tensor, training: TrainingWindows) -> None:
        x = standard.float().cpu().numpy()
        folds = range(training.n_folds) if training.n_folds else [-1]
        grown: list[tuple[int, Any, NDArray[np.int64]]] = []
        for place, fold in enumerate(folds):
            used = training.folds != fold if training.n_folds else np.ones(len(x), dtype=bool)
            n_trees = self.n_trees // len(folds) + (place < self.n_trees % len(folds))
            forest = self._forest(max(n_trees, 1), x.shape[1], seed=(training.seed + place) % 2**32)
            forest.fit(x[used], training.targets[used])
            grown += [(fold, tree.tree_, forest.classes_) for tree in forest.estimators_]
        for name, array in zip(ARRAYS, arrays_of(grown, class_weights(training)), strict=True):
            setattr(self, name, torch.from_numpy(array))
        self._on_host = None

    def _forest(self, n_trees: int, n_features: int, *, seed: int) -> Any:
        """A forest of scikit-learn that is not fitted yet."""
        raise NotImplementedError

    def _posteriors(self, standard: Tensor) -> Tensor:
        return self._mean_shares(standard, np.ones(len(self.tree_starts), dtype=bool))

    def _held_out_posteriors(self, standard: Tensor, fold: int) -> Tensor:
        return self._mean_shares(standard, self.tree_folds.cpu().numpy() == fold)

    def _mean_shares(self, standard: Tensor, used: NDArray[np.bool_]) -> Tensor:
        x = np.ascontiguousarray(standard.float().cpu().numpy())
        if self._on_host is None:  # a GPU would copy them back for every batch
            self._on_host = [getattr(self, name).cpu().numpy() for name in ARRAYS]
        starts, _, features, thresholds, children, shares = self._on_host
        total = np.zeros((len(x), self.n_classes))
        _add_shares(x, starts[used], features, thresholds, children, shares, total)
        return torch.from_numpy(total / np.maximum(total.sum(axis=1, keepdims=True), np.finfo(float).tiny))

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *others: Any) -> None:
        """Take arrays of any size, if they are those of trees."""
        found = [state[prefix + name] for name in ARRAYS if prefix + name in state]
        if len(found) == len(ARRAYS):  # else reported by torch
            refuse_no_trees(found, n_features=self.d, n_classes=self.n_classes)
            for name, tensor in zip(ARRAYS, found, strict=True):
                setattr(self, name, torch.empty_like(tensor, device=getattr(self, name).device))
            self._on_host = None
        super()._load_from_state_dict(state, prefix, *others)


@register_classifier("extra-trees")
class ExtraTrees(Trees):
    """Extremely randomised trees; by default on statistics of windows.

    Fitted at once: 0 parameters that are trained.

    Parameters
    ----------
    view, normalise, share_missing, context, rate
        See `WindowClassifier`.
    n_trees
        In all, over the folds.

    Examples
    --------
    >>> ExtraTrees(n_variates=1, window_length=64, n_outputs=1)(torch.zeros(2, 1, 64)).sigmoid()  # not fitted yet
    tensor([[0.5000],
            [0.5000]], dtype=torch.float64)
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
    view, normalise, share_missing, context, rate
        See `WindowClassifier`.
    n_trees
        In all, over the folds.

    Examples
    --------
    >>> RandomForest(n_variates=1, window_length=64, n_outputs=1, n_trees=100).features(torch.zeros(2, 1, 64)).shape
    torch.Size([2, 16])
    """

    def _forest(self, n_trees: int, n_features: int, *, seed: int) -> Any:
        return RandomForestClassifier(n_trees, random_state=seed, n_jobs=torch.get_num_threads())


def class_weights(training: TrainingWindows) -> Floats:  # (C,)
    """The weight of each class, of which the largest is 1; 1 for a class without windows."""
    found = np.ones(training.n_classes)
    found[training.targets] = np.maximum(training.weights / training.weights.max(), LEAST_WEIGHT)
    return found


def arrays_of(trees: list[tuple[int, Any, NDArray[np.int64]]], weights: Floats) -> tuple[NDArray[Any], ...]:
    """Trees of scikit-learn, each with its fold and classes, as the arrays that are named in `ARRAYS`.

    Parameters
    ----------
    weights
        Of the classes, ``(C,)``.

    Examples
    --------
    Nodes and leaves are counted over all trees.

    >>> forest = RandomForestClassifier(2, max_depth=1, bootstrap=False).fit([[0.0], [1.0]], [0, 1])
    >>> trees = [(-1, tree.tree_, forest.classes_) for tree in forest.estimators_]
    >>> for name, array in zip(ARRAYS, arrays_of(trees, np.ones(2))):
    ...     print(name, array.tolist())
    tree_starts [0, 3]
    tree_folds [-1, -1]
    node_features [0, -1, -1, 0, -1, -1]
    node_thresholds [0.5, 0.0, 0.0, 0.5, 0.0, 0.0]
    node_children [[1, 2], [0, 0], [1, 1], [4, 5], [2, 2], [3, 3]]
    leaf_shares [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]
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
        own = np.zeros((int(leaf.sum()), len(weights)))
        values = tree.value[leaf, 0]
        own[:, classes] = values / values.sum(axis=1, keepdims=True)
        shares.append(own * weights)
        n_nodes, n_leaves = n_nodes + len(leaf), n_leaves + len(own)
    return (
        np.array(starts, dtype=np.int64),
        np.array(folds, dtype=np.int64),
        np.concatenate(features).astype(np.int64),
        np.concatenate(thresholds),
        np.concatenate(children).astype(np.int64),
        np.concatenate(shares),
    )


def refuse_no_trees(tensors: Sequence[Tensor], *, n_features: int, n_classes: int) -> None:
    """Raise a ValueError for tensors that are not trees: a descent must end, within them, at shares of classes."""
    if [tensor.dtype for tensor in tensors] != list(DTYPES.values()):
        raise ValueError(
            f"the arrays of its trees have the types {[str(tensor.dtype) for tensor in tensors]}"
        )
    starts, folds, features, thresholds, children, shares = (tensor.cpu().numpy() for tensor in tensors)
    n, n_leaves = features.size, len(shares) if shares.ndim == 2 else 0
    needed = [(starts.size,), (starts.size,), (n,), (n,), (n, 2), (n_leaves, n_classes)]
    found = [item.shape for item in (starts, folds, features, thresholds, children, shares)]
    if found != needed or 0 in (starts.size, n, n_leaves):
        raise ValueError(f"the arrays of its trees have the shapes {found}, which do not belong together")
    leaf, places = features == LEAF, np.arange(n)
    inner, at_leaves = children[~leaf], children[leaf]
    sound = (
        ((starts >= 0) & (starts < n)).all()
        and ((features >= LEAF) & (features < n_features)).all()
        and ((inner > places[~leaf, None]) & (inner < n)).all()  # downwards, so that a descent ends
        and ((at_leaves >= 0) & (at_leaves < n_leaves)).all()
        and np.isfinite(thresholds).all()
        and ((shares >= 0) & (shares <= 1)).all()
        and (shares.sum(axis=1) >= LEAST_WEIGHT / 2).all()  # of classes of any weight
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
    """Add up the shares of the leaves that each row falls into; `<=` goes to the first child."""
    for row in range(len(x)):
        for start in starts:
            node = start
            while features[node] >= 0:
                node = children[node, 0 if x[row, features[node]] <= thresholds[node] else 1]
            leaf = children[node, 0]
            for k in range(total.shape[1]):
                total[row, k] += shares[leaf, k]
