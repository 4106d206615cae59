"""Forests as arrays: the posteriors of scikit-learn, and arrays that are no trees."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

import naive_classifiers
from classifier_claims import N_FOLDS, build, rhythms, training_on
from network_claims import seeded_on_one_thread
from raxss.errors import ConfigError
from raxss.method.backbones import trees
from raxss.method.backbones.sizes import MOST

_seeded = pytest.fixture(autouse=True)(seeded_on_one_thread)


# Trees


def fitted_forest(rng, kind=RandomForestClassifier, n_classes=3):
    x = rng.normal(size=(80, 12)).astype(np.float32)
    return kind(9, random_state=0).fit(x, rng.integers(n_classes, size=80)), x


@pytest.mark.parametrize("kind", [RandomForestClassifier, ExtraTreesClassifier])
def test_trees_as_arrays_give_the_posteriors_of_scikit_learn(rng, kind):
    forest, x = fitted_forest(rng, kind)
    grown = [(-1, tree.tree_, forest.classes_) for tree in forest.estimators_]
    starts, _, *nodes = trees.arrays_of(grown, np.ones(3))
    total = np.zeros((len(x), 3))
    trees._add_shares(x, starts, *nodes, total)
    assert_allclose(total / 9, forest.predict_proba(x), rtol=0, atol=1e-12)
    expected = [
        naive_classifiers.mean_leaf_shares(row, [tree.tree_ for tree in forest.estimators_], 3) for row in x
    ]
    assert_allclose(total / 9, expected, rtol=0, atol=1e-12)


def test_class_weights_multiply_the_posteriors_of_trees(rng):
    windows, targets = rhythms(rng, noise=3.0)
    weights = np.where(targets == 1, 4.0, 1.0)
    plain = build("forest").fit_windows(training_on(windows, targets))
    found = build("forest").fit_windows(training_on(windows, targets, weights=weights / weights.mean()))
    expected = plain * [1.0, 4.0]
    assert_allclose(found, expected / expected.sum(axis=1, keepdims=True), rtol=1e-9)


@pytest.mark.parametrize(("n_trees", "expected"), [(2, 3), (10, 10), (30, 30)])
def test_trees_are_dealt_over_the_folds(rng, n_trees, expected):
    windows, targets = rhythms(rng)
    classifier = build("forest", n_trees=n_trees)
    classifier.fit_windows(training_on(windows, targets))
    counts = torch.bincount(classifier.tree_folds, minlength=N_FOLDS)
    assert counts.sum() == expected
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("name", ["extra-trees", "forest"])
def test_numbers_of_trees_out_of_range_are_refused(name):
    with pytest.raises(ConfigError, match=f"n_trees must be at most {MOST['n_trees']}, got 1000000000"):
        build(name, n_trees=10**9)
    with pytest.raises(ConfigError, match="n_trees must be a whole number of at least 1, got 0"):
        build(name, n_trees=0)


def up(state):
    state["node_children"][0] = 0


def beside(state):
    inner = int((state["node_features"] >= 0).nonzero()[-1])
    state["node_children"][inner, 1] = inner


def below_the_last(state):
    state["node_children"][0, 1] = len(state["node_features"])


def leaf_beyond_shares(state):
    leaf = int((state["node_features"] < 0).nonzero()[0])
    state["node_children"][leaf] = len(state["leaf_shares"])


def leaf_before_shares(state):
    leaf = int((state["node_features"] < 0).nonzero()[0])
    state["node_children"][leaf, 0] = -1


def beyond_features(state):
    state["node_features"][0] = 10**6


def before_features(state):
    state["node_features"][0] = -2


def root_beyond_nodes(state):
    state["tree_starts"][-1] = len(state["node_features"])


def root_before_nodes(state):
    state["tree_starts"][0] = -1


def negative_shares(state):
    state["leaf_shares"][0] = torch.tensor([-0.5, 1.5])


def shares_of_nan(state):
    state["leaf_shares"][0] = torch.nan


def shares_beyond_one(state):
    state["leaf_shares"][0] = 1e308


def shares_of_no_class(state):
    state["leaf_shares"][0] = 0.0


def thresholds_of_nan(state):
    state["node_thresholds"][0] = torch.nan


def of_float32(name):
    def change(state):
        state[name] = state[name].float()

    change.__name__ = f"{name}-float32"
    return change


def of_shape(name, function):
    def change(state):
        state[name] = function(state[name])

    change.__name__ = f"{name}-{function.__name__}"
    return change


def cut(tensor):
    return tensor[:-1]


def empty(tensor):
    return tensor[:0]


def deeper(tensor):
    return tensor[..., None]


def scalar(tensor):
    return tensor.flatten()[0]


HOSTILE = [
    *(up, beside, below_the_last, leaf_beyond_shares, leaf_before_shares, beyond_features, before_features),
    *(root_beyond_nodes, root_before_nodes, negative_shares, shares_of_nan, shares_beyond_one),
    *(shares_of_no_class, thresholds_of_nan),
    *(of_float32(name) for name in trees.ARRAYS),
    *(of_shape(name, function) for name in trees.ARRAYS for function in (empty, deeper, scalar)),
    *(of_shape(name, cut) for name in ("tree_folds", "node_thresholds", "node_children", "leaf_shares")),
]


@pytest.mark.parametrize("change", HOSTILE, ids=lambda change: change.__name__)
def test_arrays_that_are_no_trees_are_refused(rng, change):
    windows, targets = rhythms(rng)
    classifier = build("extra-trees", n_trees=6)
    classifier.fit_windows(training_on(windows, targets))
    state = {name: value.clone() for name, value in classifier.state_dict().items()}
    build("extra-trees").load_state_dict(state)
    change(state)
    with pytest.raises(ValueError, match="the arrays of its trees"):
        build("extra-trees").load_state_dict(state)


@pytest.mark.parametrize("name", trees.ARRAYS)
def test_missing_arrays_of_trees_are_named(name):
    state = build("forest").state_dict()
    del state[name]
    with pytest.raises(RuntimeError, match=name):
        build("forest").load_state_dict(state)
