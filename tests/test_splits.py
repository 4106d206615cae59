"""Setting series aside: whole groups, every class, always the same."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from raxss.errors import DataError
from raxss.recordings.series import Series, SeriesCollection
from raxss.splits import hold_out

grouped = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), min_size=1, max_size=60)
fractions = st.floats(0.01, 0.99)
seeds = st.integers(0, 2**32)


@given(series=grouped, fraction=fractions, seed=seeds)
def test_no_group_is_on_both_sides_and_no_series_is_lost(series, fraction, seed):
    labels, groups = map(np.array, zip(*series, strict=True))
    kept, held = hold_out(labels, groups=groups, fraction=fraction, seed=seed)
    assert not set(groups[kept]) & set(groups[held])
    assert sorted([*kept, *held]) == list(range(len(labels)))
    assert (np.diff(kept) > 0).all()
    assert (np.diff(held) > 0).all()


@given(series=grouped, fraction=fractions, seed=seeds)
def test_every_class_of_two_groups_is_on_both_sides(series, fraction, seed):
    labels = np.array([label for label, _ in series])
    groups = np.array([f"{label}{group}" for label, group in series])  # each group is of one class
    kept, held = hold_out(labels, groups=groups, fraction=fraction, seed=seed)
    for label in set(labels):
        assert label in labels[kept]
        assert (label in labels[held]) == (len(set(groups[labels == label])) >= 2)


@given(
    counts=st.lists(st.integers(2, 60), min_size=1, max_size=4), fraction=st.floats(0.05, 0.95), seed=seeds
)
def test_each_class_gives_its_share(counts, fraction, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    _, held = hold_out(labels, fraction=fraction, seed=seed)
    for label, count in enumerate(counts):
        n_held = int((labels[held] == label).sum())
        assert 1 <= n_held <= count - 1
        assert abs(n_held - fraction * count) <= 1


def test_a_group_of_several_labels_counts_under_the_most_frequent():
    labels = ["a", "a", "b", "b"]
    kept, held = hold_out(labels, groups=[1, 1, 1, 2], fraction=0.5, seed=0)
    assert kept.tolist() == [0, 1, 2, 3]  # one group under a, one under b: neither can be spared
    assert held.tolist() == []


def test_the_split_is_fixed_by_its_seed():
    labels = np.arange(40) % 2
    first, again = (hold_out(labels, fraction=0.3, seed=5) for _ in range(2))
    assert_array_equal(first[1], again[1])
    assert len({tuple(hold_out(labels, fraction=0.3, seed=seed)[1]) for seed in range(20)}) > 15


def test_every_group_is_held_out_as_often_as_any_other():
    labels = np.zeros(8, dtype=int)
    counts = Counter(index for seed in range(4000) for index in hold_out(labels, fraction=0.25, seed=seed)[1])
    assert len(counts) == 8
    assert all(abs(count - 1000) < 5 * 27.4 for count in counts.values())  # binomial: deviation 27.4


@pytest.mark.parametrize("kind", [str, int, lambda index: ("patient", index), lambda index: index / 2])
def test_groups_may_be_anything_that_a_series_has(kind):
    series = SeriesCollection(Series([1.0], label=k % 2, group=kind(k // 4)) for k in range(40))
    kept, held = hold_out(series.labels, groups=series.groups, fraction=0.3, seed=1)
    sides = [{series[int(index)].group for index in side} for side in (kept, held)]
    assert [len(side) for side in sides] == [7, 3]
    assert not sides[0] & sides[1]


def test_as_many_groups_as_series_are_needed():
    with pytest.raises(DataError, match="3 groups were given for 2 series"):
        hold_out(["a", "b"], groups=[1, 2, 3], fraction=0.5, seed=0)
