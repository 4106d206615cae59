"""Retrieval against the naive double loops, on every path, and what the front door promises."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import naive
from raxss.errors import ConfigError, DataError, EmptyDataError
from raxss.recordings.series import Series
from raxss.retrieval import Retrieval, WindowFlag, cached_retrieve, clear_cache, retrieve
from raxss.retrieval import cache as cache_module
from raxss.retrieval.blocked import nearest_by_blocks
from raxss.retrieval.compiled import run_on_threads
from raxss.retrieval.diagonal import fresh_starts, nearest_by_diagonals, suits_diagonals
from raxss.retrieval.on_torch import nearest_on_torch
from raxss.retrieval.search import Search, search_features, search_signal, sliding_means

TOLERANCE = 1e-6


# -- Cases ---------------------------------------------------------------------------------------------------

KINDS = ("noise", "walk", "integers", "square wave", "flat stretch", "steps", "artefact", "near flat")


def make_signal(kind: str, n_variates: int, n_samples: int, rng: np.random.Generator) -> np.ndarray:
    noise = rng.normal(size=(n_variates, n_samples))
    place = int(rng.integers(n_samples))
    end = place + int(rng.integers(1, n_samples + 1))
    if kind == "walk":
        return noise.cumsum(axis=1)
    if kind == "integers":
        return rng.integers(-1, 2, size=noise.shape).astype(float)
    if kind == "square wave":
        return np.tile(
            np.sign(np.sin(np.arange(n_samples) * 2 * np.pi / int(rng.integers(2, 9)))), (n_variates, 1)
        )
    if kind == "flat stretch":
        noise[:, place:end] = noise[:, place : place + 1]
    if kind == "steps":
        noise[:, place:] += 1e4
    if kind == "artefact":
        noise[:, place : place + 2] *= 1e5
    if kind == "near flat":  # just above what counts as flat
        noise[:, place:end] *= 5e-6
        noise[:, 0] = 2.0
    return noise


@st.composite
def cases(draw: st.DrawFn, **fixed: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """A small series and settings; anything may be fixed."""
    choose: dict[str, st.SearchStrategy[Any]] = {
        "kind": st.sampled_from(KINDS),
        "n_variates": st.sampled_from([1, 1, 1, 2, 3]),
        "window_length": st.integers(2, 12),
        "stride": st.integers(1, 5),
        "n_windows": st.integers(1, 22),
        "measure": st.sampled_from(["pearson", "cosine"]),
        "n_neighbors": st.integers(1, 6),
        "exclusion": st.sampled_from([0, 0, 1, 3, 7, 40]),
        "spread": st.sampled_from([0, 0, 1, 4, 9]),
        "offset": st.sampled_from([0.0, 1.0, 1e5]),
        "scale": st.sampled_from([1.0, 1e-6, 1e150]),
        "n_bad": st.sampled_from([0, 0, 0, 1, 2]),
    }
    case = {name: fixed[name] if name in fixed else draw(choice) for name, choice in choose.items()}
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_samples = (case["n_windows"] - 1) * case["stride"] + case["window_length"]
    n_samples += int(rng.integers(case["stride"]))
    samples = make_signal(case["kind"], case["n_variates"], n_samples, rng)
    samples = (samples + case["offset"]) * case["scale"]
    for _ in range(case["n_bad"]):
        bad = rng.choice([np.nan, np.inf, -np.inf])
        samples[rng.integers(case["n_variates"]), rng.integers(n_samples)] = bad
    names = ("window_length", "stride", "measure", "n_neighbors", "exclusion", "spread")
    return samples, {name: case[name] for name in names}


def many(n: int) -> Any:
    return settings(
        max_examples=n,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def scaled_down(samples: np.ndarray) -> np.ndarray:
    """The oracle squares, so it cannot have 1e150; a power of two changes no digits."""
    finite = np.abs(samples[np.isfinite(samples)])
    return np.ldexp(samples, -math.frexp(finite.max())[1]) if finite.size else samples


def expect_lists(
    similarity: np.ndarray,
    neighbors: np.ndarray,
    expected: naive.Lists,
    matrix: np.ndarray,
    starts: np.ndarray,
    chosen: dict[str, Any],
    bank: list[int] | None = None,
) -> None:
    """Each neighbor was the best one left, its similarity is the oracle's, and so is the whole list.

    Only with spread may lists differ from the oracle's: of windows as near as 1e-9 either may come first, and
    the one chosen keeps others out.
    """
    listed = np.where(neighbors < 0, np.nan, np.take_along_axis(matrix, neighbors, axis=1))
    listed[expected.nonfinite] = np.nan
    similarity = np.where(np.isnan(listed), np.nan, similarity)
    assert_allclose(similarity, listed, atol=TOLERANCE)
    if chosen["spread"] == 0:
        assert_allclose(similarity, expected.similarity, atol=TOLERANCE)
    may = np.isin(np.arange(len(starts)), range(len(starts)) if bank is None else bank) & ~expected.nonfinite
    for k in np.flatnonzero(~expected.nonfinite):
        left = may & (np.abs(starts - starts[k]) > chosen["exclusion"])
        for j in neighbors[k]:
            assert (j >= 0) == left.any()
            if j < 0:
                break
            assert left[j]
            assert matrix[k, j] >= matrix[k, left].max() - naive.TIE
            left &= np.abs(starts - starts[j]) > chosen["spread"]
            left[j] = False


def expect_retrieval(
    found: Retrieval, expected: naive.Lists, matrix: np.ndarray, chosen: dict[str, Any]
) -> None:
    expect_lists(found.similarity, found.neighbors, expected, matrix, found.starts, chosen)
    support, lonely = naive.support_of(found.similarity, expected.flat, expected.nonfinite)
    assert_allclose(found.support, support, atol=1e-12)
    if chosen["spread"] == 0:
        assert_allclose(found.support, expected.support, atol=TOLERANCE)
    assert_array_equal(found.flat, expected.flat)
    assert_array_equal(found.nonfinite, expected.nonfinite)
    assert_array_equal(found.lonely, lonely)
    assert_array_equal(found.lonely, expected.lonely)


def check_path(path: str, samples: np.ndarray, chosen: dict[str, Any], bank: list[int] | None = None) -> None:
    search = search_signal(samples, bank=None if bank is None else np.array(bank, np.int64), **chosen)
    similarity, neighbors = run_path(path, search)
    oracle = scaled_down(samples)
    length, stride, measure = chosen["window_length"], chosen["stride"], chosen["measure"]
    vectors_flat_nonfinite = naive.window_vectors(oracle, length, stride, measure)
    matrix = naive.similarity(oracle, length, stride, measure)
    starts = naive.starts_of(samples.shape[1], length, stride)
    lists = {name: chosen[name] for name in ("n_neighbors", "exclusion", "spread")}
    expected = naive.lists_of(matrix, starts, *vectors_flat_nonfinite[1:], bank=bank, **lists)
    assert_array_equal(search.flat, expected.flat)
    assert_array_equal(search.nonfinite, expected.nonfinite)
    expect_lists(similarity, neighbors, expected, matrix, np.array(starts), chosen, bank)


def run_path(path: str, search: Search) -> tuple[np.ndarray, np.ndarray]:
    """Each path with blocks so small that their borders are everywhere."""
    if path == "diagonal":
        return nearest_by_diagonals(search, tile=5, strip=3, n_threads=2)
    if path == "torch":
        return nearest_on_torch(search, "cpu", block_values=128)
    return nearest_by_blocks(search, block_values=64)


# -- Every path against the oracle ---------------------------------------------------------------------------


@many(800)
@given(cases(spread=0))
def test_the_diagonal_kernel_finds_what_the_double_loop_finds(case):
    check_path("diagonal", *case)


@many(300)
@given(cases())
def test_the_diagonal_kernel_keeps_neighbors_apart_by_the_spread(case):
    check_path("diagonal", *case)


@many(300)
@given(cases())
def test_the_blocked_path_finds_what_the_double_loop_finds(case):
    check_path("blocked", *case)


@many(300)
@given(cases())
def test_the_torch_path_finds_what_the_double_loop_finds(case):
    check_path("torch", *case)


@many(300)
@given(
    cases(n_windows=14),
    st.lists(st.integers(0, 13), max_size=9),
    st.sampled_from(["diagonal", "blocked", "torch"]),
)
def test_only_windows_of_the_bank_are_neighbors(case, bank, path):
    check_path(path, *case, bank=bank)


@many(400)
@given(
    cases(kind="walk", offset=1e5, scale=1e-6, n_bad=0, measure="pearson"),
    st.sampled_from(["diagonal", "blocked", "torch"]),
)
def test_an_offset_of_100_mv_on_microvolts_costs_no_accuracy(case, path):
    samples, chosen = case
    assert np.abs(samples).min() > 0.09
    check_path(path, samples, chosen)


@many(300)
@given(
    cases(measure="pearson", n_windows=22, window_length=8, n_bad=0, offset=0.0, scale=1.0),
    st.floats(1e3, 1e12),
)
def test_a_huge_artefact_beside_a_quiet_stretch_costs_no_accuracy(case, loud):
    samples, chosen = case
    samples[:, len(samples[0]) // 2] = loud
    check_path("diagonal", samples, chosen)


@many(400)
@given(cases())
def test_the_front_door_gives_the_oracles_lists_support_and_flags(case):
    samples, chosen = case
    found = retrieve(samples, **chosen)
    oracle = scaled_down(samples)
    expected = naive.retrieve(oracle, **chosen)
    matrix = naive.similarity(oracle, chosen["window_length"], chosen["stride"], chosen["measure"])
    expect_retrieval(found, expected, matrix, chosen)
    starts = naive.starts_of(samples.shape[1], chosen["window_length"], chosen["stride"])
    assert_array_equal(found.starts, starts)


@many(300)
@given(cases(), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_features_are_listed_by_the_same_rules_as_windows(case, width, seed):
    samples, chosen = case
    starts = naive.starts_of(samples.shape[1], chosen["window_length"], chosen["stride"])
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(len(starts), width))
    features[rng.integers(len(starts))] = rng.choice([0.0, 1.0, np.nan])
    found = retrieve(samples, features=features, **chosen)
    gone = ~np.isfinite(features).all(axis=1)
    for k, start in enumerate(starts):
        gone[k] |= not np.isfinite(samples[:, start : start + chosen["window_length"]]).all()
    lists = {name: chosen[name] for name in ("measure", "n_neighbors", "exclusion", "spread")}
    expected = naive.retrieve_features(features, starts, gone.tolist(), **lists)
    matrix = naive.similarity(
        np.where(gone[:, None], np.nan, features).reshape(-1), width, width, chosen["measure"]
    )
    expect_retrieval(found, expected, matrix, chosen)
    assert_array_equal(found.nonfinite, gone)
    assert found.space == "features"


@many(300)
@given(
    st.lists(st.sampled_from([-1.0, 1.0]), min_size=4, max_size=4),
    st.integers(6, 25),
    st.integers(1, 4),
    st.sampled_from(["diagonal", "blocked", "torch"]),
)
def test_of_equally_near_windows_the_earlier_start_comes_first(pattern, n_windows, n_neighbors, path):
    # Any four ±1 repeated: under cosine similarities are exactly -1, -.5, 0, .5 or 1, and most of them tie.
    samples = np.tile(pattern, 8)[: n_windows + 3].reshape(1, -1)
    chosen = {
        "window_length": 4,
        "stride": 1,
        "measure": "cosine",
        "n_neighbors": n_neighbors,
        "exclusion": 1,
    }
    _, neighbors = run_path(path, search_signal(samples, bank=None, spread=0, **chosen))
    del chosen["window_length"], chosen["stride"]
    assert_array_equal(neighbors, naive.retrieve(samples, 4, 1, **chosen).neighbors)


def test_repeated_copies_tie_exactly_on_every_path():
    motif = np.random.default_rng(3).normal(size=60) * 1e-5
    samples = np.tile(motif, 12).reshape(1, -1)
    chosen = {"window_length": 60, "stride": 5, "measure": "pearson", "n_neighbors": 5, "exclusion": 30}
    search = search_signal(samples, bank=None, spread=0, **chosen)
    expected = [
        [12 * copy + k % 12 for copy in range(12) if copy != k // 12][:5] for k in range(search.n_windows)
    ]
    expected = [[j for j in row if j < search.n_windows] for row in expected]
    for path in ("diagonal", "blocked", "torch"):
        similarity, neighbors = run_path(path, search)
        assert_array_equal(neighbors, expected)
        assert_array_equal(similarity, 1.0)


# -- Larger series, real tile sizes --------------------------------------------------------------------------


def brute_force(
    samples: np.ndarray, length: int, stride: int, m: int, exclusion: int, measure: str
) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(samples, length, axis=1)[:, ::stride]
    windows = windows - windows.mean(axis=2, keepdims=True) if measure == "pearson" else windows
    vectors = windows.transpose(1, 0, 2).reshape(windows.shape[1], -1)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    if measure == "pearson":
        farthest = np.abs(samples - samples.mean(axis=1, keepdims=True)).max(axis=1)
        vectors[(windows.std(axis=2) <= 1e-6 * farthest[:, None]).all(axis=0)] = 0.0
    matrix = vectors @ vectors.T
    starts = np.arange(len(matrix)) * stride
    matrix[np.abs(starts[:, None] - starts) <= exclusion] = -np.inf
    return -np.sort(-matrix, axis=1)[:, :m]


@pytest.mark.parametrize(
    ("length", "stride", "n_windows", "n_variates", "exclusion", "measure"),
    [
        (100, 1, 2600, 1, 50, "pearson"),
        (333, 5, 2300, 1, 0, "pearson"),
        (250, 7, 2100, 2, 125, "pearson"),
        (250, 7, 2100, 1, 125, "cosine"),
        (150, 64, 2000, 1, 75, "pearson"),
        (150, 140, 600, 1, 0, "cosine"),
    ],
)
def test_thousands_of_windows_agree_with_a_brute_force(
    length, stride, n_windows, n_variates, exclusion, measure
):
    rng = np.random.default_rng(length + stride)
    samples = rng.normal(size=(n_variates, (n_windows - 1) * stride + length)).cumsum(axis=1) + 300
    samples[:, 5000:5040] *= 1e4
    found = retrieve(
        samples, window_length=length, stride=stride, exclusion=exclusion, measure=measure, n_neighbors=7
    )
    assert found.n_windows == n_windows
    expected = brute_force(samples, length, stride, 7, exclusion, measure)
    assert_allclose(found.similarity, expected, atol=TOLERANCE)


def hostile_signals() -> dict[str, np.ndarray]:
    """Signals that ruin running sums: offsets, steps, drift, artefacts, decay, stretches just short of flat."""
    noise = np.random.default_rng(17).normal(size=(1, 9000))
    ramp = np.arange(9000.0)
    quiet = np.where((ramp > 2000) & (ramp < 6000), 5e-6, 1.0)
    spike = np.where(np.isin(ramp, [3500, 5200, 5201]), 7e5, 0.0)
    return {
        "microvolts on 100 mV": 0.1 + 1e-6 * noise.cumsum(axis=1) / 30,
        "step": noise + 5e5 * (ramp > 4000),
        "drift": noise + 50 * ramp,
        "artefacts": noise + spike,
        "decay": noise * np.exp(-ramp / 900),
        "near flat": noise * quiet + 2 * (ramp == 1),
        "near flat on a step": noise * quiet + 4 * ((ramp > 2500) & (ramp < 4200)),
    }


@pytest.mark.parametrize("measure", ["pearson", "cosine"])
@pytest.mark.parametrize("name", hostile_signals())
def test_no_signal_makes_the_recurrence_lose_more_than_1e_9(name, measure):
    samples = hostile_signals()[name]
    chosen: dict[str, Any] = {"window_length": 512, "stride": 5, "measure": measure, "n_neighbors": 20}
    search = search_signal(samples, bank=None, exclusion=256, spread=0, **chosen)
    assert suits_diagonals(search)
    similarity, _ = nearest_by_diagonals(search)
    assert_allclose(similarity, brute_force(samples, 512, 5, 20, 256, measure), atol=1e-9)


def test_wide_spread_at_a_real_size_agrees_on_both_paths():
    samples = np.random.default_rng(8).normal(size=(1, 4000)).cumsum(axis=1)
    search = search_signal(
        samples,
        window_length=128,
        stride=3,
        measure="pearson",
        bank=None,
        n_neighbors=6,
        exclusion=64,
        spread=64,
    )
    assert suits_diagonals(search)
    similarity, neighbors = nearest_by_diagonals(search)
    expected = nearest_by_blocks(search)
    assert_array_equal(neighbors, expected[1])
    assert_allclose(similarity, expected[0], atol=1e-9)
    apart = np.abs(neighbors[:, :, None] - neighbors[:, None, :]) * 3 + 1000 * np.eye(6)
    assert apart.min() > 64


def test_lists_are_the_same_bits_for_any_number_of_threads():
    samples = np.round(np.random.default_rng(5).normal(size=(1, 3000)).cumsum(axis=1))
    search = search_signal(
        samples,
        window_length=50,
        stride=2,
        measure="pearson",
        bank=None,
        n_neighbors=5,
        exclusion=9,
        spread=0,
    )
    one = nearest_by_diagonals(search, tile=64, strip=32, n_threads=1)
    for n_threads in (2, 3, 7):
        other = nearest_by_diagonals(search, tile=64, strip=32, n_threads=n_threads)
        assert one[0].tobytes() == other[0].tobytes()
        assert one[1].tobytes() == other[1].tobytes()


def test_the_fast_path_is_taken_where_windows_overlap_and_not_elsewhere():
    def suits(**changed: Any) -> bool:
        chosen: dict[str, Any] = {
            "window_length": 64, "stride": 5, "measure": "pearson", "bank": None, "n_neighbors": 3,
            "exclusion": 0, "spread": 0,
        } | changed  # fmt: skip
        samples = np.random.default_rng(0).normal(size=(1, 2000))
        if changed.get("measure") == "cosine":
            samples[0, 500:] *= 1e-120
        return suits_diagonals(search_signal(samples, **chosen))

    assert suits()
    assert suits(spread=20)
    assert not suits(stride=33)
    assert not suits(bank=np.arange(3))
    assert not suits(measure="cosine")  # made so faint that products would vanish


def test_a_window_a_hundred_digits_fainter_is_still_compared():
    samples = np.tile([1.0, -2.0, 0.5, 0.0, 3.0, 1.5], 6)
    samples[18:] *= 1e-170
    found = retrieve(samples, window_length=6, stride=6, measure="cosine", n_neighbors=5)
    assert_array_equal(found.similarity, 1.0)
    assert_allclose(
        retrieve(samples, window_length=6, stride=3, measure="cosine", n_neighbors=1).support[[0, 8]], 1
    )


def test_sums_start_anew_where_the_signal_turns_quiet():
    loud, quiet = [100.0] * 3, [1.0] * 3
    assert (
        fresh_starts(np.array(loud + quiet), np.zeros(6, bool)).tolist() == [False] * 3 + [True] + [False] * 2
    )
    skipped = np.array([False] * 3 + [True] * 3)
    assert not fresh_starts(np.array(loud + quiet), skipped).any()


def test_the_mean_of_a_quiet_stretch_survives_what_was_loud_before_it():
    samples = np.concatenate([np.full(50, 1e12), np.full(50, 1e-3)])
    assert_allclose(sliding_means(samples, 10)[50:], 1e-3, rtol=1e-15)


# -- What the front door promises ----------------------------------------------------------------------------


@pytest.fixture
def walk() -> np.ndarray:
    return np.random.default_rng(11).normal(size=400).cumsum()


def test_a_window_is_never_its_own_neighbor(walk):
    found = retrieve(walk, window_length=32, stride=5, n_neighbors=40)
    assert not (found.neighbors == np.arange(found.n_windows)[:, None]).any()


def test_support_matches_the_naive_double_loop(walk):
    found = retrieve(walk, window_length=32, stride=5, n_neighbors=4)
    assert_allclose(found.support, naive.support(walk, 32, 5, n_neighbors=4), atol=TOLERANCE)


def test_exclusion_is_inclusive(walk):
    for exclusion in (0, 4, 5, 9, 10, 64):
        found = retrieve(walk, window_length=32, stride=5, n_neighbors=40, exclusion=exclusion)
        distance = np.abs(found.starts[found.neighbors] - found.starts[:, None])[found.neighbors >= 0]
        assert distance.min() == (exclusion // 5 + 1) * 5


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


def test_a_flat_window_has_no_similarity_and_no_support(walk):
    walk[100:200] = walk[100]
    found = retrieve(walk, window_length=32, stride=5, n_neighbors=3)
    assert_array_equal(np.flatnonzero(found.flat), np.arange(20, 34))
    assert_array_equal(found.similarity[found.flat], 0.0)
    assert_array_equal(found.support[found.flat], 0.0)
    assert_array_equal(found.neighbors[25], [0, 1, 2])
    assert_array_equal(found.neighbors[20], [0, 1, 2])


def test_a_constant_series_is_flat_wherever_it_lies():
    for level in (0.0, 0.1, 1e9 / 3, -1e-300):
        found = retrieve(np.full(50, level), window_length=8, stride=1, n_neighbors=2)
        assert found.flat.all()
        assert_array_equal(found.support, 0.0)


def test_flatness_is_judged_by_variate_and_needs_all_of_them(walk):
    both = np.stack([walk, walk])
    both[0, 100:200] = 3.0
    assert not retrieve(both, window_length=32, stride=5).flat.any()
    both[1, 120:200] = -1.0
    assert_array_equal(np.flatnonzero(retrieve(both, window_length=32, stride=5).flat), np.arange(24, 34))


def test_a_window_that_touches_a_gap_is_no_neighbor_and_has_no_support(walk):
    walk[203] = np.nan
    walk[300] = np.inf
    found = retrieve(walk, window_length=32, stride=5, n_neighbors=70)
    touched = [
        k for k, start in enumerate(found.starts) if start <= 203 < start + 32 or start <= 300 < start + 32
    ]
    assert_array_equal(np.flatnonzero(found.nonfinite), touched)
    assert np.isnan(found.support[found.nonfinite]).all()
    assert (found.neighbors[found.nonfinite] == -1).all()
    assert not np.isin(found.neighbors, touched).any()
    assert np.isfinite(found.support[~found.nonfinite]).all()


def test_a_series_of_gaps_only_has_no_support_at_all():
    found = retrieve(np.full(20, np.nan), window_length=4, stride=2)
    assert found.nonfinite.all()
    assert not found.lonely.any()
    assert np.isnan(found.support).all()


def test_a_lonely_window_borrows_the_mean_support_of_the_others(walk):
    # Within 200 samples of 400 the middle windows have no eligible neighbor.
    found = retrieve(walk, window_length=32, stride=5, n_neighbors=3, exclusion=200)
    assert 0 < found.lonely.sum() < found.n_windows
    assert_allclose(found.support[found.lonely], found.support[~found.lonely].mean(), rtol=1e-12)
    assert (found.neighbors[found.lonely] == -1).all()
    assert np.isnan(found.similarity[found.lonely]).all()


def test_without_any_neighbor_every_support_is_zero(walk):
    for found in (
        retrieve(walk, window_length=32, stride=5, exclusion=1000),
        retrieve(walk, window_length=32, stride=5, bank=[]),
        retrieve(walk[:32], window_length=32),
    ):
        assert found.lonely.all()
        assert not found.any_neighbors
        assert_array_equal(found.support, 0.0)


def test_fewer_windows_than_neighbors_leave_the_rest_of_the_list_empty(walk):
    found = retrieve(walk[:42], window_length=32, stride=5, n_neighbors=10)
    assert found.similarity.shape == found.neighbors.shape == (3, 10)
    assert_array_equal((found.neighbors >= 0).sum(axis=1), 2)
    assert_allclose(found.support, found.similarity[:, :2].mean(axis=1), rtol=1e-12)


def test_a_series_shorter_than_a_window_is_one_padded_lonely_window():
    found = retrieve([1.0, 2.0, 4.0], window_length=8, stride=2, n_neighbors=3)
    assert found.flags.tolist() == [WindowFlag.LONELY | WindowFlag.PADDED]
    assert found.padded.all()
    assert_array_equal(found.support, [0.0])
    assert_array_equal(found.starts, [0])
    assert found.neighbors.shape == (1, 3)
    assert retrieve([1.0, np.nan], window_length=8).nonfinite.all()


def test_pearson_ignores_offset_and_gain_and_cosine_only_gain(walk):
    chosen = {"window_length": 32, "stride": 5, "n_neighbors": 4, "exclusion": 16}
    for measure, changed in (("pearson", 1e-6 * walk + 0.1), ("cosine", 1e-6 * walk)):
        one, other = (retrieve(x, measure=measure, **chosen) for x in (walk, changed))
        assert_array_equal(one.neighbors, other.neighbors)
        assert_allclose(one.similarity, other.similarity, atol=1e-9)


def test_a_series_object_and_other_number_types_give_the_same(walk):
    counts = np.round(walk * 100)
    expected = retrieve(counts, window_length=32, stride=5).similarity
    for samples in (
        Series(counts, rate=100),
        counts.astype(np.int32),
        counts.astype(np.float32),
        counts[None],
    ):
        assert_array_equal(retrieve(samples, window_length=32, stride=5).similarity, expected)


def test_the_samples_given_are_not_changed(walk):
    walk[7] = np.nan
    before = walk.copy()
    retrieve(walk, window_length=32, stride=5)
    assert_array_equal(walk, before)


def test_results_cannot_be_written_to(walk):
    found = retrieve(walk, window_length=32, stride=5)
    for name in ("similarity", "neighbors", "support", "starts", "flags"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(found, name)[0] = 0


def test_features_equal_to_the_windows_give_the_windows_lists(walk):
    windows = np.lib.stride_tricks.sliding_window_view(walk, 32)[::5]
    chosen = {"window_length": 32, "stride": 5, "exclusion": 16, "spread": 8, "n_neighbors": 4}
    for measure in ("pearson", "cosine"):
        one = retrieve(walk, measure=measure, **chosen)
        other = retrieve(walk, measure=measure, features=windows, **chosen)
        assert_array_equal(one.neighbors, other.neighbors)
        assert_allclose(one.similarity, other.similarity, atol=1e-9)
        assert (one.space, other.space) == ("signal", "features")


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        ({"window_length": 0}, "window_length must be a whole number of at least 1, got 0"),
        ({"stride": 0}, "stride must be a whole number of at least 1, got 0"),
        ({"stride": 2.5}, "stride must be .* got 2.5"),
        ({"n_neighbors": 0}, "n_neighbors must be .* at least 1, got 0"),
        ({"n_neighbors": True}, "n_neighbors .* got True"),
        ({"exclusion": -1}, "exclusion must be .* at least 0, got -1"),
        ({"spread": -3}, "spread .* got -3"),
        ({"measure": "person"}, "measure 'person' is unknown.*Did you mean 'pearson'"),
        ({"measure": "Cosinus"}, "measure 'Cosinus' is unknown.*Did you mean 'cosine'"),
        ({"bank": "batch"}, "bank 'batch' is unknown"),
        ({"bank": [0, 99]}, "bank names window 99, but the series has windows 0 to 9"),
        ({"bank": [-1]}, "bank names window -1"),
        ({"bank": [True, False]}, "bool.*shape \\(2,\\)"),
        ({"bank": [[1, 2]]}, "shape \\(1, 2\\)"),
        ({"device": "cudda"}, "device 'cudda' cannot be used"),
    ],
)
def test_a_setting_out_of_range_is_named(settings_, words):
    chosen = {"window_length": 11, "stride": 1} | settings_
    with pytest.raises(ConfigError, match=words):
        retrieve(np.arange(20.0) ** 2, **chosen)


def test_features_of_another_number_of_windows_are_refused():
    with pytest.raises(
        DataError, match=r"shape \(9, 3\), but the series has 10 windows; needed is \(10, d\)"
    ):
        retrieve(np.arange(20.0), window_length=11, features=np.zeros((9, 3)))


def test_a_series_without_samples_is_refused():
    with pytest.raises(EmptyDataError, match=r"'samples' has no samples \(shape \(1, 0\)\)"):
        retrieve([], window_length=4)


def test_an_error_in_one_thread_stops_the_others_and_is_raised():
    rounds = []
    failed = threading.Event()

    def work() -> Iterator[None]:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("broken tile 7")
        while True:
            rounds.append(1)
            yield

    with pytest.raises(RuntimeError, match="broken tile 7"):
        run_on_threads(work, n_tasks=9, n_threads=3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("spread", [0, 50])
def test_the_gpu_lists_what_the_cpu_lists(spread):
    samples = np.random.default_rng(1).normal(size=(2, 20_000)).cumsum(axis=1) + 1e4
    samples[0, 5000] = np.nan
    samples[:, 9000:9800] = 1.0
    chosen = {"window_length": 256, "stride": 5, "exclusion": 128, "spread": spread}
    for measure in ("pearson", "cosine"):
        one = retrieve(samples, measure=measure, **chosen)
        other = retrieve(samples, measure=measure, device="cuda", **chosen)
        assert_array_equal(one.flags, other.flags)
        assert_allclose(one.similarity, other.similarity, atol=1e-9)
        assert (one.neighbors != other.neighbors).mean() < 1e-4


# -- Cache ---------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RAXSS_CACHE", str(tmp_path / "cache"))
    cache_module._memory.clear()
    yield tmp_path / "cache"
    cache_module._memory.clear()


@pytest.fixture(scope="module")
def long_walk() -> np.ndarray:
    return np.random.default_rng(4).normal(size=4200).cumsum()


CHOSEN: dict[str, Any] = {"window_length": 64, "stride": 1, "n_neighbors": 2}


def same(one: Retrieval, other: Retrieval) -> bool:
    arrays = ("similarity", "neighbors", "support", "starts", "flags")
    return all(np.array_equal(getattr(one, a), getattr(other, a), equal_nan=True) for a in arrays)


def test_the_same_series_and_settings_are_searched_once(folder, walk):
    first = cached_retrieve(walk, **CHOSEN)
    assert cached_retrieve(Series(walk.copy()), **CHOSEN) is first
    assert cached_retrieve(walk, **CHOSEN, measure="pearson", exclusion=0) is first
    assert cached_retrieve(walk, **CHOSEN, exclusion=1) is not first
    changed = walk.copy()
    changed[5] += 1e-9
    assert cached_retrieve(changed, **CHOSEN) is not first
    assert cached_retrieve(walk, **CHOSEN, bank=[1, 2]) is not cached_retrieve(walk, **CHOSEN, bank=[1, 3])


def test_small_searches_stay_off_the_disk_and_large_ones_survive_on_it(folder, walk, long_walk):
    cached_retrieve(walk, **CHOSEN)
    assert not folder.exists()
    first = cached_retrieve(long_walk, **CHOSEN)
    (file,) = folder.iterdir()
    assert len(file.stem) == 64
    assert set(file.stem) <= set("0123456789abcdef")
    cache_module._memory.clear()
    before = file.stat().st_mtime_ns
    second = cached_retrieve(long_walk, **CHOSEN)
    assert second is not first
    assert same(first, second)
    assert second.measure == "pearson"
    assert not second.support.flags.writeable
    assert file.stat().st_mtime_ns == before


def test_a_damaged_or_foreign_entry_is_noticed_and_replaced(folder, long_walk, caplog):
    expected = cached_retrieve(long_walk, **CHOSEN)
    (file,) = folder.iterdir()
    good = file.read_bytes()
    flipped = bytearray(good)
    flipped[-5] ^= 1
    other = cached_retrieve(long_walk + 1.0 * (np.arange(4200) > 9), **CHOSEN)
    assert not same(expected, other)
    foreign = next(path for path in folder.iterdir() if path != file).read_bytes()
    for bad in (bytes(flipped), good[:1000], b"", b"not a cache", foreign):
        file.write_bytes(bad)
        cache_module._memory.clear()
        caplog.clear()
        assert same(cached_retrieve(long_walk, **CHOSEN), expected)
        assert f"{file.name} is damaged" in caplog.text
        cache_module._memory.clear()
        caplog.clear()
        assert same(cached_retrieve(long_walk, **CHOSEN), expected)
        assert caplog.text == ""  # the damaged entry was replaced


def test_a_folder_that_cannot_be_written_is_a_warning_not_a_failure(tmp_path, monkeypatch, long_walk, caplog):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("RAXSS_CACHE", str(tmp_path / "file"))
    cache_module._memory.clear()
    with caplog.at_level(logging.WARNING, logger="raxss"):
        found = cached_retrieve(long_walk, **CHOSEN)
    assert found.any_neighbors
    assert "was not cached" in caplog.text
    assert "RAXSS_CACHE" in caplog.text


def test_the_disk_can_be_left_alone(tmp_path, monkeypatch, long_walk):
    monkeypatch.setenv("RAXSS_CACHE", "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache_module._memory.clear()
    cached_retrieve(long_walk, **CHOSEN)
    assert list(tmp_path.iterdir()) == []


def test_the_users_cache_folder_is_the_default(tmp_path, monkeypatch, long_walk):
    monkeypatch.delenv("RAXSS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache_module._memory.clear()
    cached_retrieve(long_walk, **CHOSEN)
    assert len(list((tmp_path / "raxss").iterdir())) == 1
    clear_cache()
    assert list((tmp_path / "raxss").iterdir()) == []


def test_memory_keeps_the_most_recent_up_to_its_limit(walk):
    found = retrieve(walk, **CHOSEN)
    n_bytes = cache_module._n_bytes(found)
    memory = cache_module._Memory(2 * n_bytes)
    for key in "ab":
        memory.put(key, found)
    memory.get("a")
    memory.put("c", found)
    assert [memory.get(key) is found for key in "abc"] == [True, False, True]
    small = cache_module._Memory(n_bytes - 1)
    small.put("a", found)
    assert small.get("a") is None


def test_threads_share_the_cache(folder, walk):
    found: list[Retrieval] = []
    threads = [
        threading.Thread(target=lambda: found.append(cached_retrieve(walk, **CHOSEN))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(same(found[0], other) for other in found)


def test_a_search_of_features_is_prepared_like_a_search_of_windows():
    signal = search_signal(
        np.arange(30.0)[None] ** 2, window_length=4, stride=3, measure="cosine", bank=np.array([2, 5]),
        n_neighbors=3, exclusion=7, spread=4,
    )  # fmt: skip
    vectors = np.random.default_rng(0).normal(size=(signal.n_windows, 5))
    search = search_features(vectors, signal, measure="cosine")
    assert (
        (search.gap, search.spread_gap, search.n_neighbors) == (signal.gap, signal.spread_gap, 3) == (3, 2, 3)
    )
    assert_array_equal(search.bank, [2, 5])
    assert_allclose(
        search.unit_windows(slice(None)), vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    )
