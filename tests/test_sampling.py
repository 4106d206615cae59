"""Sampling: the distribution of Alg. 1, and that an epoch is a permutation fixed by seed and epoch."""

import threading
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy.stats import chisquare

from raxss.method import sampling
from raxss.method.sampling import epoch_batches, epoch_order, epoch_orders, share_alone

pools = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10_000)), max_size=12)


def law_of_alg_1(n_windows, n_samples):
    """Probability of every sequence of series in an epoch, by walking through Alg. 1 draw by draw."""
    if not any(n_windows):
        return {(): 1.0}
    law = {}
    total = sum(length for count, length in zip(n_windows, n_samples, strict=True) if count)
    for i, count in enumerate(n_windows):
        if count:
            left = [other - (j == i) for j, other in enumerate(n_windows)]
            for rest, probability in law_of_alg_1(left, n_samples).items():
                law[(i, *rest)] = n_samples[i] / total * probability
    return law


def orders(n_windows, n_samples, n_epochs, seed=69421):
    return [epoch_order(n_windows, n_samples, seed=seed, epoch=epoch) for epoch in range(n_epochs)]


def p_value(counts, law):
    """Chi-square of what was seen against what is expected; rare outcomes are put together."""
    n = sum(counts.values())
    assert set(counts) <= set(law)
    common = [key for key in law if n * law[key] >= 5]
    seen = [counts[key] for key in common]
    expected = [n * law[key] for key in common]
    if n - sum(expected) > 1e-6:
        seen.append(n - sum(seen))
        expected.append(n - sum(expected))
    return chisquare(seen, expected).pvalue


@pytest.mark.parametrize("n_samples", [[50, 20, 10], [10, 10, 200], [1, 1, 1]])
def test_the_order_of_series_has_the_law_of_drawing_one_by_one(n_samples):
    n_windows = [2, 1, 3]
    law = law_of_alg_1(n_windows, n_samples)
    assert len(law) == 60
    assert sum(law.values()) == pytest.approx(1.0)
    owner = np.repeat(np.arange(3), n_windows)
    whole = Counter(tuple(owner[order].tolist()) for order in orders(n_windows, n_samples, 12_000))
    assert p_value(whole, law) > 0.001


def test_within_a_series_every_order_of_windows_is_as_likely():
    within = Counter(
        tuple(order[order >= 2].tolist()) for order in orders([2, 3], [70, 30], 6000) if order[0] < 2
    )
    law = dict.fromkeys(permutations((2, 3, 4)), 1 / 6)
    assert p_value(within, law) > 0.001


def test_epochs_and_seeds_differ():
    seen = {
        tuple(epoch_order([30, 50], [300, 500], seed=seed, epoch=epoch))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(seen) == 9


@given(pool=pools, batch_size=st.integers(1, 50))
def test_batches_cut_the_epoch_into_pieces_of_one_size(pool, batch_size):
    counts, lengths = [count for count, _ in pool], [length for _, length in pool]
    batches = list(epoch_batches(counts, lengths, batch_size=batch_size, seed=5, epoch=2))
    assert [len(batch) for batch in batches[:-1]] == [batch_size] * max(len(batches) - 1, 0)
    assert all(0 < len(batch) <= batch_size for batch in batches)
    joined = [index for batch in batches for index in batch.tolist()]
    assert joined == epoch_order(counts, lengths, seed=5, epoch=2).tolist()


def slow_order(n_windows, n_samples, *, seed, epoch):
    """The definition, by one sort over all windows."""
    generator = np.random.default_rng([seed, epoch])
    series = np.repeat(np.arange(len(n_windows)), n_windows)
    waits, keys = generator.exponential(size=len(series)), generator.random(len(series))
    arrivals, clock = np.cumsum(waits), 0.0
    for i in range(len(n_windows)):
        mine = series == i
        last = arrivals[mine][-1] if mine.any() else clock
        arrivals[mine] = (arrivals[mine] - clock) / n_samples[i]
        clock = last
    return np.lexsort((keys, series))[np.argsort(arrivals, kind="stable")]


@given(pool=pools, seed=st.integers(0, 2**32), epoch=st.integers(0, 500))
def test_the_order_is_that_of_one_sort_over_all_windows(pool, seed, epoch):
    counts, lengths = [count for count, _ in pool], [length for _, length in pool]
    assert_array_equal(
        epoch_order(counts, lengths, seed=seed, epoch=epoch),
        slow_order(counts, lengths, seed=seed, epoch=epoch),
    )


def test_the_order_of_a_seed_and_epoch_stays_what_it_was():
    """Pinned: a run must be repeatable with later versions."""
    order = epoch_order([4, 0, 7, 3], [60, 10, 95, 40], seed=69421, epoch=3)
    assert order.tolist() == [1, 11, 12, 0, 6, 4, 7, 10, 5, 3, 8, 13, 2, 9]


def test_orders_prepared_ahead_are_those_of_their_epochs():
    ahead = list(epoch_orders([30, 50], [300, 500], seed=7, epochs=range(3, 8)))
    assert len(ahead) == 5
    for epoch, order in zip(range(3, 8), ahead, strict=True):
        assert_array_equal(order, epoch_order([30, 50], [300, 500], seed=7, epoch=epoch))
    assert list(epoch_orders([3], [3], seed=0, epochs=[])) == []


def test_the_next_order_is_prepared_while_this_one_is_used(monkeypatch):
    drawn = {epoch: threading.Event() for epoch in range(3)}

    def noted(*arguments, epoch, **settings):
        drawn[epoch].set()
        return epoch

    monkeypatch.setattr(sampling, "epoch_order", noted)
    orders = epoch_orders([3], [3], seed=0, epochs=range(3))
    assert next(orders) == 0
    assert drawn[1].wait(timeout=10)  # before it is requested
    assert not drawn[2].is_set()
    orders.close()
    assert not any(item.name.startswith("raxss-order") for item in threading.enumerate())


def test_an_error_while_an_order_is_prepared_arrives_where_it_is_used():
    with pytest.raises(ValueError, match=r"broadcast .*\(3,\) \(2,\)"):
        list(epoch_orders([3, 4], [1, 2, 3], seed=0, epochs=range(2)))


@pytest.mark.parametrize("batch_size", [1, 8, 40, 120])
@pytest.mark.parametrize("n_windows", [[100] * 30, [20, 50, 80, 300, 900, 0] * 5], ids=["alike", "unlike"])
def test_the_share_of_windows_alone_of_their_series_is_that_of_drawn_batches(n_windows, batch_size):
    series = np.repeat(np.arange(len(n_windows)), n_windows)
    n_alone = n_drawn = 0
    for epoch in range(6):
        lengths = np.maximum(n_windows, 1)
        for batch in epoch_batches(n_windows, lengths, batch_size=batch_size, seed=7, epoch=epoch):
            if len(batch) == batch_size:  # the last one is not meant
                n_alone += (np.bincount(series[batch]) == 1).sum()
                n_drawn += batch_size
    assert share_alone(n_windows, batch_size) == pytest.approx(n_alone / n_drawn, abs=0.02)
