"""Eq. (1) with the batch as the bank, against the naive loop over the batch's windows of each series."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import naive
from raxss.data.series import Series
from raxss.method.retrieval import batch
from raxss.method.retrieval.batch import batch_support
from raxss.method.windows import windows_of

LENGTH, STRIDE = 12, 3


def draw_batch(rng, *, n_series, n_variates, measure, share, flat_stretch):
    """Some windows of several series in mixed order, and what each has from the naive lists."""
    windows, series, starts, flat, pairs = [], [], [], [], []
    for i in range(n_series):
        samples = np.cumsum(rng.normal(size=(n_variates, rng.integers(LENGTH, 120))), axis=1)
        if flat_stretch and samples.shape[1] > 60:
            quiet = rng.choice([0.0, 1e-9])  # exactly nothing, or too little to have a shape
            samples[:, 20:50] = quiet * rng.normal(size=(n_variates, 30))
        cut = windows_of(Series(samples), window_length=LENGTH, stride=STRIDE)
        chosen = np.flatnonzero(rng.random(len(cut)) < share)
        matrix = naive.similarity(samples, LENGTH, STRIDE, measure)[np.ix_(chosen, chosen)]
        _, without_shape, nonfinite = naive.window_vectors(samples, LENGTH, STRIDE, measure)
        pairs.append((matrix, cut.starts[chosen], [without_shape[k] for k in chosen], [False] * len(chosen)))
        assert not any(nonfinite)
        windows.append(cut.samples[chosen])
        series += [i] * len(chosen)
        starts += (cut.starts[chosen] + 1000 * i).tolist()  # one strip for all series, as in training
        flat += pairs[-1][2]
    order = rng.permutation(len(series))
    tensors = (
        torch.from_numpy(np.concatenate(windows)[order].astype(np.float32)),
        torch.tensor(series)[order],
        torch.tensor(starts)[order],
        torch.tensor(flat, dtype=torch.bool)[order],
    )
    return tensors, pairs, order


def naive_support(pairs, order, **settings):
    supports = [naive.lists_of(*pair, **settings).support for pair in pairs]
    return np.concatenate(supports)[order]


@given(
    seed=st.integers(0, 2**32),
    n_series=st.integers(1, 5),
    n_variates=st.integers(1, 2),
    measure=st.sampled_from(["pearson", "cosine"]),
    n_neighbors=st.sampled_from([1, 3, 50]),
    exclusion=st.sampled_from([0, 2, 3, 6, 40, 500]),
    share=st.sampled_from([0.1, 0.5, 1.0]),
    flat_stretch=st.booleans(),
)
def test_support_within_a_batch_matches_the_naive_lists_of_each_series(
    seed, n_series, n_variates, measure, n_neighbors, exclusion, share, flat_stretch
):
    rng = np.random.default_rng(seed)
    tensors, pairs, order = draw_batch(
        rng, n_series=n_series, n_variates=n_variates, measure=measure, share=share, flat_stretch=flat_stretch
    )
    if len(order) == 0:
        return
    support = batch_support(*tensors, measure=measure, n_neighbors=n_neighbors, exclusion=exclusion)
    expected = naive_support(pairs, order, n_neighbors=n_neighbors, exclusion=exclusion)
    assert_allclose(support, expected, atol=2e-5)


def test_rows_taken_in_parts_give_the_same(rng, monkeypatch):
    tensors, _, _ = draw_batch(rng, n_series=6, n_variates=1, measure="pearson", share=0.8, flat_stretch=True)
    settings = {"measure": "pearson", "n_neighbors": 4, "exclusion": 6}
    whole = batch_support(*tensors, **settings)
    monkeypatch.setattr(batch, "ROWS_AT_ONCE", 7)
    assert len(whole) > 14
    assert_allclose(batch_support(*tensors, **settings), whole, atol=1e-6)


def test_a_long_series_is_compared_in_blocks_of_bounded_memory(rng, monkeypatch):
    n, most = 3000, 2**22
    vectors = torch.from_numpy(rng.normal(size=(n, 1, 4))).float()
    series, flat = torch.zeros(n, dtype=torch.long), torch.zeros(n, dtype=torch.bool)
    arguments = vectors, series, 9 * torch.arange(n), flat
    settings = {"measure": "cosine", "n_neighbors": 5, "exclusion": 40, "n_series": 1}
    whole = batch_support(*arguments, **settings)
    monkeypatch.setattr(batch, "MOST_BYTES", most)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        found = batch_support(*arguments, **settings)
    assert_allclose(found, whole, atol=1e-6)
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    peak = np.cumsum([event.nbytes() for event in sorted(events, key=lambda item: item.start_ns())]).max()
    assert peak < most + 100 * n  # what a batch needs by itself: vectors, supports
    assert peak > most / 4
