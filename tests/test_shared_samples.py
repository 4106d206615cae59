"""Windows with missing samples: similarity over the samples that both have, by every path the same."""

import time

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

import naive
from raxss.method.retrieval import retrieve, retrieve_many, shared_samples
from raxss.method.retrieval.front import plan_search
from raxss.method.retrieval.shared_samples import join_gaps, shared_similarity
from raxss.method.retrieval.shared_walk import suits_walk, walk_gaps

SETTINGS = {
    "plain": {"window_length": 64, "stride": 5},
    "cosine": {"window_length": 48, "stride": 3, "measure": "cosine", "exclusion": 24},
    "coarse": {"window_length": 64, "stride": 40, "n_neighbors": 3},
    "local": {"window_length": 32, "stride": 2, "bank": "local", "bank_size": 41},
}


def with_gaps(rng, n_samples=1500, n_variates=1, share=0.2, longest=60):
    """Noise with gaps of random lengths that cover about this share of it."""
    samples = rng.normal(size=(n_variates, n_samples)).cumsum(axis=1)
    while np.isfinite(samples).all(axis=0).mean() > 1 - share:
        first, variate = rng.integers(n_samples), rng.integers(n_variates)
        samples[variate, first : first + rng.integers(1, longest)] = np.nan
    return samples


@pytest.mark.parametrize("n_variates", [1, 3])
@pytest.mark.parametrize("share", [0.01, 0.3])
@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_lists_are_those_of_a_plain_comparison(settings, device, share, n_variates):
    # "cpu:0" is a torch device and takes the path of one
    samples = with_gaps(np.random.default_rng(3), share=share, n_variates=n_variates)
    found = retrieve(samples, **SETTINGS[settings], device=device)
    assert found.with_gaps.any()
    similarity, neighbors = naive.nearest_at_once(samples, found)
    assert_allclose(found.similarity, similarity, rtol=0, atol=1e-9)
    assert (found.neighbors == neighbors).mean() > 0.999


@pytest.mark.parametrize("spread", [0, 20])
@pytest.mark.parametrize(
    "bank", [{}, {"bank": "sampled", "bank_size": 60}, {"bank": "local", "bank_size": 60}]
)
def test_small_blocks_on_a_torch_device_and_the_cpu_give_the_same(monkeypatch, bank, spread):
    samples = with_gaps(np.random.default_rng(4), n_variates=2)
    settings = {"window_length": 50, "stride": 4, "exclusion": 25, "spread": spread, "n_neighbors": 6, **bank}
    expected = retrieve(samples, **settings)
    monkeypatch.setattr(shared_samples, "_BLOCK_VALUES", 2000)
    found = retrieve(samples, **settings, device="cpu:0")
    assert_array_equal(found.flags, expected.flags)
    assert_allclose(found.similarity, expected.similarity, rtol=0, atol=1e-9)
    assert (found.neighbors == expected.neighbors).mean() > 0.999


def loud(samples):
    """A burst a million times as loud as what is around it, and a quiet stretch with a gap."""
    samples[:, 500:503] *= 1e6
    samples[:, 900:1000] *= 1e-3
    samples[:, 960:980] = np.nan
    return samples


@pytest.mark.parametrize("measure", ["pearson", "cosine"])
@pytest.mark.parametrize(
    "change",
    [lambda samples: samples, lambda samples: samples + 1e6, loud],
    ids=["as it is", "offset", "loud"],
)
def test_a_walk_along_diagonals_finds_what_matrix_products_find(change, measure):
    samples = change(with_gaps(np.random.default_rng(13), n_variates=2))
    settings = {"window_length": 64, "stride": 3, "exclusion": 20, "n_neighbors": 7, "measure": measure}
    search = plan_search(samples, **settings).search
    assert suits_walk(search)
    expected = join_gaps(search, search.empty_lists())
    for n_threads in (1, 3):
        similarity, neighbors = walk_gaps(search, search.empty_lists(), side=100, n_threads=n_threads)
        assert_allclose(similarity, expected[0], rtol=0, atol=1e-9)
        assert (neighbors == expected[1]).mean() > 0.999


def test_the_walk_is_taken_where_windows_overlap_much_and_nothing_is_spread():
    samples = with_gaps(np.random.default_rng(14))
    suited = {"window_length": 64, "stride": 8, "n_neighbors": 3}
    assert suits_walk(plan_search(samples, **suited).search)
    assert not suits_walk(plan_search(np.nan_to_num(samples), **suited).search)
    for other in ({"stride": 9}, {"spread": 20}):
        assert not suits_walk(plan_search(samples, **suited | other).search)


def test_a_shifted_copy_with_other_gaps_is_found_again():
    rng = np.random.default_rng(5)
    motif, samples = rng.normal(size=40), rng.normal(size=400)
    samples[20:60], samples[240:280] = motif, 3 * motif + 7
    samples[25:40] = samples[270:275] = np.nan
    found = retrieve(samples, window_length=40, stride=20, n_neighbors=1)
    assert found.neighbors[1, 0] == 12
    assert found.neighbors[12, 0] == 1
    assert found.similarity[1, 0] == 1.0
    assert found.with_gaps[[1, 12]].all()
    assert not found.nonfinite.any()


def test_half_missing_is_compared_and_more_is_not():
    samples = np.random.default_rng(6).normal(size=60)
    samples[10:15], samples[40:46] = np.nan, np.nan  # windows of 10 samples: 5 and 6 of one are missing
    found = retrieve(samples, window_length=10, stride=10, n_neighbors=2)
    assert_array_equal(np.flatnonzero(found.with_gaps), [1])
    assert_array_equal(np.flatnonzero(found.nonfinite), [4])
    assert np.isfinite(found.support[1])
    assert np.isnan(found.support[4])
    assert 4 not in found.neighbors


def test_windows_with_less_than_a_quarter_in_common_are_no_neighbors():
    samples = np.random.default_rng(7).normal(size=24)
    samples[0:4] = samples[12:16] = (
        np.nan
    )  # the first window has its last four samples, the second its first four
    found = retrieve(
        np.r_[samples[:8], samples[8:12], samples[12:20]], window_length=8, stride=12, n_neighbors=1
    )
    assert_array_equal(found.neighbors[:, 0], [1, 0])  # both lack their first four
    samples = np.random.default_rng(7).normal(size=16)
    samples[0:4] = samples[12:16] = np.nan  # nothing in common
    found = retrieve(samples, window_length=8, stride=8, n_neighbors=1)
    assert found.lonely.all()
    assert_array_equal(found.support, [0.0, 0.0])


def test_a_window_without_shape_in_the_shared_samples_has_similarity_0():
    samples = np.random.default_rng(8).normal(size=20)
    samples[:5] = 2.0  # flat where the other window has its samples
    samples[15:] = np.nan
    found = retrieve(samples, window_length=10, stride=10, n_neighbors=1)
    assert_array_equal(found.similarity, [[0.0], [0.0]])
    assert not found.flat.any()


def test_whole_windows_among_themselves_are_compared_as_without_gaps_elsewhere():
    samples = np.random.default_rng(9).normal(size=2000).cumsum()
    marred = np.r_[samples, np.random.default_rng(1).normal(size=70) * 1e-3]
    marred[2000:2003] = np.nan
    whole = plan_search(marred, window_length=64, stride=4).search.without_gaps
    assert not whole.with_gaps.any()
    assert whole.without_gaps is whole
    assert len(whole.bank) < plan_search(marred, window_length=64, stride=4).search.bank.size


def test_series_with_and_without_gaps_are_searched_together_as_alone():
    rng = np.random.default_rng(10)
    series = [rng.normal(size=300), with_gaps(rng, 400), rng.normal(size=300), with_gaps(rng, 300)]
    for device in ("cpu", "cpu:0"):
        together = retrieve_many(series, window_length=30, stride=3, device=device)
        for item, found in zip(series, together, strict=True):
            alone = retrieve(item, window_length=30, stride=3, device=device)
            assert_array_equal(found.neighbors, alone.neighbors)
            assert_array_equal(found.similarity, alone.similarity)


def test_shared_similarity_is_symmetric_and_1_of_a_window_with_itself():
    rng = np.random.default_rng(11)
    windows = torch.from_numpy(rng.normal(size=(6, 2, 30)))
    present = torch.from_numpy((rng.random((6, 30)) > 0.3).astype(float))
    windows = windows * present[:, None]
    windows = windows / windows.flatten(1).norm(dim=1)[:, None, None]
    for centred in (True, False):
        found = shared_similarity(windows, present, windows, present, centred=centred)
        torch.testing.assert_close(found, found.T)
        torch.testing.assert_close(found.diagonal(), torch.ones(6, dtype=torch.float64))


def test_a_gap_in_a_long_series_costs_little():
    samples = np.random.default_rng(12).normal(size=40_000)
    settings = {"window_length": 512, "stride": 8}
    retrieve(samples[:4000], **settings)  # compiled
    began = time.perf_counter()
    retrieve(samples, **settings)
    whole = time.perf_counter() - began
    samples[20_000] = np.nan
    began = time.perf_counter()
    retrieve(samples, **settings)
    assert time.perf_counter() - began < 8 * whole + 1
