"""`retrieve`: neighbors, support, flags, settings."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import naive
from raxss.data.series import Series
from raxss.errors import ConfigError, DataError, EmptyDataError
from raxss.method.retrieval import WindowFlag, retrieve

TOLERANCE = 1e-6


@pytest.fixture
def walk() -> np.ndarray:
    return np.random.default_rng(11).normal(size=400).cumsum()


def test_a_planted_motif_is_found_across_the_series():
    rng = np.random.default_rng(2)
    samples = rng.normal(size=1000)
    motif = 4 * np.sin(np.arange(50) / 2)
    for place in (100, 430, 800):
        samples[place : place + 50] += motif
    found = retrieve(samples, window_length=50, stride=10, n_neighbors=2, exclusion=25)
    assert set(found.starts[found.neighbors[10]]) == {430, 800}
    assert found.support.argmax() in (10, 43, 80)
    assert found.overlap_share < retrieve(samples, window_length=50, stride=10, n_neighbors=2).overlap_share


def test_overlap_is_counted_for_each_listed_neighbor():
    found = retrieve([0, 1, 0, 5, 5, 0, 1, 0], window_length=3, n_neighbors=2, exclusion=2)
    assert not found.overlaps.any()
    assert found.overlap_share == 0.0
    found = retrieve([0, 1, 0, 5], window_length=3, n_neighbors=3)
    assert_array_equal(found.overlaps, [[True, False, False]] * 2)
    assert found.overlap_share == 1.0
    assert math.isnan(retrieve([1, 2, 3], window_length=3).overlap_share)


def test_a_constant_series_is_flat_wherever_it_lies():
    for level in (0.0, 0.1, 1e9 / 3, -1e-300):
        found = retrieve(np.full(50, level), window_length=8, stride=1, n_neighbors=2)
        assert found.flat.all()
        assert_array_equal(found.support, 0.0)


def test_flat_begins_at_a_millionth_of_the_largest_distance_from_the_mean():
    ripple = np.tile([1.0, -1.0], 50)
    for deviation, flat in ((0.97e-6, True), (1.03e-6, False)):
        samples = np.concatenate([deviation * ripple, [1.0, -1.0]])
        assert retrieve(samples, window_length=10, stride=10).flat.all() == flat
        assert retrieve(0.1 + 1e-3 * samples, window_length=10, stride=10).flat.all() == flat


def test_flatness_is_judged_by_variate_and_needs_all_of_them(walk):
    both = np.stack([walk, walk])
    both[0, 100:200] = 3.0
    assert not retrieve(both, window_length=32, stride=5).flat.any()
    both[1, 120:200] = -1.0
    assert_array_equal(np.flatnonzero(retrieve(both, window_length=32, stride=5).flat), np.arange(24, 34))


def test_a_series_of_gaps_only_has_no_support_at_all():
    found = retrieve(np.full(20, np.nan), window_length=4, stride=2)
    assert found.nonfinite.all()
    assert not found.lonely.any()
    assert np.isnan(found.support).all()


def test_without_any_neighbor_every_support_is_zero(walk):
    for found in (
        retrieve(walk, window_length=32, stride=5, exclusion=1000),
        retrieve(walk[:32], window_length=32),
    ):
        assert found.lonely.all()
        assert (found.neighbors < 0).all()
        assert_array_equal(found.support, 0.0)


def test_a_series_shorter_than_a_window_is_one_padded_lonely_window():
    found = retrieve([1.0, 2.0, 4.0], window_length=8, stride=2, n_neighbors=3)
    assert found.flags.tolist() == [WindowFlag.LONELY | WindowFlag.PADDED]
    assert found.padded.all()
    assert_array_equal(found.support, [0.0])
    assert_array_equal(found.starts, [0])
    assert found.neighbors.shape == (1, 3)
    assert retrieve([1.0, np.nan, np.nan], window_length=8).nonfinite.all()
    assert retrieve([1.0, np.nan], window_length=8).with_gaps.all()


def test_a_series_object_and_other_number_types_give_the_same_in_double_precision(walk):
    counts = np.round(walk * 10)
    expected = retrieve(counts, window_length=32, stride=5).similarity
    assert expected.dtype == np.float64
    types = [counts.astype(kind) for kind in (np.int32, np.float32, np.float16)]
    for samples in (Series(counts, rate=100), *types, counts[None]):
        assert_array_equal(retrieve(samples, window_length=32, stride=5).similarity, expected)
    types[-1][9] = np.inf  # what half precision cannot hold
    assert retrieve(types[-1], window_length=32, stride=5).with_gaps.sum() == 2


def test_samples_are_not_changed_and_results_cannot_be(walk):
    walk[7] = np.nan
    before = walk.copy()
    found = retrieve(walk, window_length=32, stride=5)
    assert_array_equal(walk, before)
    for name in ("similarity", "neighbors", "support", "starts", "flags"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(found, name)[0] = 0


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        ({"window_length": 0}, "window_length must be a whole number of at least 1, got 0"),
        ({"stride": 0}, "stride must be a whole number of at least 1, got 0"),
        ({"stride": 2.5}, r"stride must be .* \(it counts samples; .*\), got 2.5"),
        ({"n_neighbors": 0}, "n_neighbors must be .* at least 1, got 0"),
        ({"n_neighbors": True}, "n_neighbors .* got True"),
        ({"exclusion": -1}, "exclusion must be .* at least 0, got -1"),
        ({"spread": -3}, "spread .* got -3"),
        ({"measure": "Cosinus"}, "measure is 'Cosinus'; did you mean 'cosine'"),
        ({"bank": "locale"}, "bank is 'locale'; did you mean 'local'.*Known: series, local, sampled"),
        ({"bank": "local", "bank_size": 0}, "bank_size must be .* at least 1, got 0"),
        ({"device": "cudda"}, "device 'cudda' cannot be used"),
        ({"features": np.zeros((9, 3))}, r"shape \(9, 3\), but the series has 10 windows; .* \(10, d\)"),
    ],
)
def test_a_setting_out_of_range_is_named(settings_, words):
    chosen = {"window_length": 11, "stride": 1} | settings_
    with pytest.raises(DataError if "features" in settings_ else ConfigError, match=words):
        retrieve(np.arange(20.0) ** 2, **chosen)


def test_a_series_without_samples_is_refused():
    with pytest.raises(EmptyDataError, match=r"'samples' has no samples \(shape \(1, 0\)\)"):
        retrieve([], window_length=4)


# -- Banks for very long series ------------------------------------------------------------------------------


def test_a_local_bank_holds_half_its_size_on_either_side(walk):
    chosen = {"window_length": 16, "stride": 3, "n_neighbors": 6, "exclusion": 7}
    found = retrieve(walk, bank="local", bank_size=21, **chosen)
    expected = naive.retrieve(walk, 16, 3, n_neighbors=6, exclusion=7, reach=10)
    assert_array_equal(found.neighbors, expected.neighbors)
    assert_allclose(found.support, expected.support, atol=TOLERANCE)
    distance = np.abs(found.neighbors - np.arange(found.n_windows)[:, None])
    assert distance[found.neighbors >= 0].max() == 10
    assert (found.bank, found.bank_size) == ("local", 21)


def test_a_sampled_bank_is_spread_over_the_series_and_the_same_for_every_window(walk):
    chosen = {"window_length": 16, "stride": 3, "exclusion": 7, "bank": "sampled", "bank_size": 40}
    found = retrieve(walk, n_neighbors=6, **chosen)
    bank = np.unique(retrieve(walk, n_neighbors=200, **chosen).neighbors)[1:]  # the first is -1
    assert len(bank) == 40
    assert_array_equal(np.histogram(bank, bins=8, range=(0, found.n_windows))[0], 5)
    expected = naive.retrieve(walk, 16, 3, n_neighbors=6, exclusion=7, bank=bank.tolist())
    assert_array_equal(found.neighbors, expected.neighbors)
    assert_allclose(found.support, expected.support, atol=TOLERANCE)
    assert (found.bank, found.bank_size) == ("sampled", 40)


def test_a_bank_as_large_as_the_series_is_the_series(walk):
    chosen = {"window_length": 32, "stride": 5, "n_neighbors": 4}
    whole = retrieve(walk, **chosen)
    for bank in ("local", "sampled"):
        for bank_size in (whole.n_windows, 65_536):
            found = retrieve(walk, bank=bank, bank_size=bank_size, **chosen)
            assert found.similarity.tobytes() == whole.similarity.tobytes()
            assert found.neighbors.tobytes() == whole.neighbors.tobytes()
            assert (found.bank, found.bank_size) == ("series", 0)
        assert retrieve(walk, bank=bank, bank_size=whole.n_windows - 1, **chosen).bank == bank


# -- Progress, memory, number types --------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [1, 40])  # along diagonals, and by blocks
def test_progress_rises_to_one_and_is_reported_at_most_ten_times_a_second(stride):
    samples = np.random.default_rng(3).normal(size=20_000)
    reports: list[tuple[float, float]] = []
    begin = time.monotonic()
    retrieve(
        samples, window_length=64, stride=stride, on_progress=lambda s: reports.append((s, time.monotonic()))
    )
    shares = [share for share, _ in reports]
    assert shares[-1] == 1.0
    assert shares == sorted(shares)
    assert shares[0] > 0.0
    assert len(reports) <= 10 * (time.monotonic() - begin) + 1
    apart = np.diff([moment for _, moment in reports[:-1]])
    assert (apart >= 0.1).all()


def test_a_search_that_does_not_fit_into_memory_is_refused_with_its_size(walk, monkeypatch):
    monkeypatch.setattr("raxss._core.memory.available_memory", lambda: 3 * 10**9)
    words = r"74 windows with 100000000 neighbors each needs 118.4 GB of memory, but 3.0 GB are free"
    with pytest.raises(DataError, match=words):
        retrieve(walk, window_length=32, stride=5, n_neighbors=10**8)
    assert retrieve(walk, window_length=32, stride=5, n_neighbors=50).n_windows == 74
