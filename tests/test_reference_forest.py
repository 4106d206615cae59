"""Statistics of whole series, and the reference forest: out of fold, kept as arrays, hostile arrays refused."""

import numpy as np
import pytest

from raxss.data.series import Series
from raxss.uncertainty.reference_forest import ReferenceForest, drawn_series
from raxss.uncertainty.series_statistics import n_series_statistics, series_statistics
from raxss.uncertainty.validation import folds_of
from toys import planted

# Statistics of a series ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_variates", [1, 2, 5, 16, 61])
@pytest.mark.parametrize("length", [1, 2, 3, 10, 64, 700])
def test_a_series_of_any_shape_has_finite_statistics(n_variates, length, rng):
    found = series_statistics(rng.normal(size=(n_variates, length)), most_samples=512)
    assert found.shape == (n_series_statistics(n_variates),)
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    "samples",
    [np.zeros(50), np.full(50, np.nan), np.array([1e300, -1e300] * 9), np.arange(9), np.full(9, np.inf)],
)
def test_flat_missing_and_extreme_samples_have_finite_statistics(samples):
    assert np.isfinite(series_statistics(samples[None], most_samples=512)).all()


def test_stretches_stand_for_a_long_series(rng):
    samples = (
        np.sin(0.07 * np.arange(200_000))[None]
        + 0.3 * rng.normal(size=(1, 200_000))
        + np.linspace(0, 2, 200_000)
    )
    whole, part = (series_statistics(samples, most_samples=most) for most in (200_000, 16_384))
    means, bands = slice(0, 2), slice(16, 26)
    np.testing.assert_allclose(part[means], whole[means], atol=0.05)
    np.testing.assert_allclose(
        part[bands], whole[bands], atol=1.5
    )  # logarithms of shares, at other resolutions
    assert part[bands].argmax() == whole[bands].argmax()


def test_missing_samples_do_not_move_the_mean(rng):
    samples = 5 + rng.normal(size=(1, 400))
    holes = samples.copy()
    holes[0, 100:150] = np.nan
    np.testing.assert_allclose(
        series_statistics(holes, most_samples=512)[0],
        series_statistics(samples, most_samples=512)[0],
        atol=0.1,
    )


# Reference forest ---------------------------------------------------------------------------------------------


def test_out_of_fold_posteriors_are_those_of_trees_without_the_group(rng):
    # The level nearest to that of a group is of the other class: only trees that saw the group know its label.
    level, label = 10 * np.arange(4), np.arange(4) % 2
    groups = np.repeat(np.arange(4), 15)
    series = [Series(level[group] + rng.normal(size=100)) for group in groups]
    targets = label[groups]
    alone = ReferenceForest.fit(series, targets, n_classes=2)
    grouped = ReferenceForest.fit(series, targets, groups, n_classes=2)
    right = [(forest.out_of_fold.argmax(axis=1) == targets).mean() for forest in (alone, grouped)]
    assert right[0] > 0.9
    assert right[1] < 0.6
    assert (grouped.fitted.argmax(axis=1) == targets).mean() == 1.0


def test_a_single_group_has_no_out_of_fold_posteriors():
    series, targets = planted("level", n_series=10)
    forest = ReferenceForest.fit(series, targets, np.zeros(10), n_classes=2)
    assert np.isnan(forest.out_of_fold).all()
    assert (forest.predict_proba(series).argmax(axis=1) == targets).all()


def test_the_same_data_and_seed_give_the_same_forest():
    series, targets = planted("motif", n_series=40)
    one, same, other = (
        ReferenceForest.fit(series, targets, n_classes=2, seed=seed).arrays() for seed in (1, 1, 2)
    )
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not all(np.array_equal(one[name], other[name]) for name in one)


def test_a_forest_is_the_same_after_its_arrays_were_kept():
    series, targets = planted("motif", n_series=50, n_classes=3)
    forest = ReferenceForest.fit(series, targets, n_classes=3)
    again = ReferenceForest.from_arrays(forest.arrays(), n_classes=3, n_variates=1)
    np.testing.assert_allclose(again.predict_proba(series), forest.predict_proba(series), atol=1e-6)
    np.testing.assert_allclose(forest.predict_proba(series), forest.fitted)
    assert again.predict_proba([]).shape == (0, 3)


def _changed(name, change):
    def damage(arrays):
        return arrays | {name: change(arrays[name])}

    return damage


def _deep(arrays):
    """One tree that is a chain, deeper than any that is grown."""
    n = 60
    features = np.array([0] * n + [-1] * (n + 1), dtype=np.int32)
    places = np.arange(n)
    inner = np.stack([n + places, np.append(places[1:], 2 * n)], axis=1)
    children = np.concatenate([inner, np.zeros((n + 1, 2), dtype=int)]).astype(np.int32)
    one = np.zeros(1, dtype=np.int32)
    shares = np.full((1, 2), 0.5, dtype=np.float32)
    return arrays | {
        "tree_starts": one, "tree_folds": one, "node_features": features, "node_children": children,
        "node_thresholds": np.zeros(2 * n + 1), "leaf_shares": shares,
    }  # fmt: skip


@pytest.mark.parametrize(
    "damage",
    [
        lambda arrays: {name: array for name, array in arrays.items() if name != "leaf_shares"},
        lambda arrays: arrays | {"more": np.zeros(1)},
        _changed("leaf_shares", lambda array: array[:, :1]),
        _changed("leaf_shares", lambda array: array + 1),
        _changed("leaf_shares", lambda array: np.full_like(array, np.nan)),
        _changed("leaf_shares", lambda array: array.astype(np.float64)),
        _changed("node_children", lambda array: array * 0),
        _changed("node_children", lambda array: array + 1_000_000),
        _changed("node_features", lambda array: array + 1000),
        _changed("node_thresholds", lambda array: array * np.inf),
        _changed("tree_starts", lambda array: array - 1),
        _changed("tree_starts", lambda array: array[:0]),
        _changed("tree_starts", lambda array: array[:, None]),
        _changed("most_samples", lambda array: array * 0),
        _changed("most_samples", lambda array: array.astype(np.float64)),
        _changed("most_samples", lambda array: np.array([2**30], dtype=np.int32)),
        _deep,
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_arrays_that_are_no_forest_are_refused(damage):
    series, targets = planted("level", n_series=20)
    arrays = ReferenceForest.fit(series, targets, n_classes=2).arrays()
    with pytest.raises(ValueError, match="its "):
        ReferenceForest.from_arrays(damage(arrays), n_classes=2, n_variates=1)


def test_series_of_other_variates_are_named(rng):
    series, targets = planted("level", n_series=20)
    forest = ReferenceForest.fit(series, targets, n_classes=2)
    with pytest.raises(ValueError, match=r"'pair' has 2 variates, .* grown on 1"):
        forest.predict_proba([Series(rng.normal(size=(2, 50)), name="pair")])


def test_of_many_series_some_of_every_class_are_drawn():
    targets = np.array([0] * 5000 + [1] * 30 + [2] * 5)
    drawn = drawn_series(targets, 500, seed=0)
    assert np.bincount(targets[drawn]).tolist() == [496, 20, 5]
    assert (np.diff(drawn) > 0).all()


def test_folds_are_those_of_the_most_frequent_label_of_each_group(rng):
    for seed in range(20):
        targets = rng.integers(4, size=60)
        groups = rng.integers(15, size=60)
        found = folds_of(targets, groups, seed=seed)
        keys = np.unique(groups, return_inverse=True)[1]
        frequent = np.array([np.bincount(targets[keys == key]).argmax() for key in range(keys.max() + 1)])
        drawn = np.random.default_rng(seed).permutation(len(frequent))
        dealt = drawn[np.argsort(frequent[drawn], kind="stable")]
        folds = np.empty(len(frequent), dtype=int)
        folds[dealt] = np.arange(len(frequent)) % 5
        assert (found == folds[keys]).all()
