"""Every path of retrieval against the naive double loops, on thousands of small series and a few larger."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import naive
from raxss._core.threads import run_on_threads
from raxss.method.retrieval import Retrieval, retrieve
from raxss.method.retrieval.blocked import nearest_by_blocks
from raxss.method.retrieval.diagonal import (
    _Tiles,
    nearest_by_diagonals,
    suits_diagonals,
    tile_side,
)
from raxss.method.retrieval.on_torch import nearest_of_each
from raxss.method.retrieval.search import Search, search_features, search_signal
from raxss.method.retrieval.shared_samples import join_gaps
from raxss.method.retrieval.shared_walk import walk_gaps

TOLERANCE = 1e-6
PATHS = ("diagonal", "blocked", "torch", "walk")


def search_of(samples: np.ndarray, **settings: Any) -> Search:
    """A search of the whole series, unless the settings change it."""
    chosen = {"measure": "pearson", "bank": None, "n_neighbors": 5, "exclusion": 0, "spread": 0}
    return search_signal(samples, **chosen | settings)


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
        noise[:, place : place + 2] *= 10 ** rng.uniform(3, 12)
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
        "n_bad": st.sampled_from([0, 0, 0, 1, 2, 9]),
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
    checks = list(HealthCheck)
    return settings(
        max_examples=n, derandomize=True, deadline=None, database=None, suppress_health_check=checks
    )


def scaled_down(samples: np.ndarray) -> np.ndarray:
    """The oracle squares, so it cannot have 1e150; a power of two changes no digits."""
    finite = np.abs(samples[np.isfinite(samples)])
    return np.ldexp(samples, -math.frexp(finite.max())[1]) if finite.size else samples


def expect_lists(
    similarity: np.ndarray,
    neighbors: np.ndarray,
    expected: naive.Lists,
    chosen: dict[str, Any],
    bank: list[int] | None = None,
    reach: int | None = None,
) -> None:
    """Each neighbor was the best one left, its similarity is the oracle's, and so is the whole list.

    Only with spread may lists differ from the oracle's: of windows as near as 1e-9 either may come first, and
    the one chosen keeps others out.
    """
    matrix, starts = expected.matrix, expected.starts
    listed = np.where(neighbors < 0, np.nan, np.take_along_axis(matrix, neighbors, axis=1))
    listed[expected.nonfinite] = np.nan
    similarity = np.where(np.isnan(listed), np.nan, similarity)
    assert_allclose(similarity, listed, atol=TOLERANCE)
    if chosen["spread"] == 0:
        assert_allclose(similarity, expected.similarity, atol=TOLERANCE)
    may = np.isin(np.arange(len(starts)), range(len(starts)) if bank is None else bank) & ~expected.nonfinite
    for k in np.flatnonzero(~expected.nonfinite):
        left = may & (np.abs(starts - starts[k]) > chosen["exclusion"]) & (matrix[k] > -np.inf)
        if reach is not None:
            left &= np.abs(np.arange(len(starts)) - k) <= reach
        for j in neighbors[k]:
            assert (j >= 0) == left.any()
            if j < 0:
                break
            assert left[j]
            assert matrix[k, j] >= matrix[k, left].max() - naive.TIE
            left &= np.abs(starts - starts[j]) > chosen["spread"]
            left[j] = False


def expect_retrieval(found: Retrieval, expected: naive.Lists, chosen: dict[str, Any]) -> None:
    assert_array_equal(found.starts, expected.starts)
    expect_lists(found.similarity, found.neighbors, expected, chosen)
    support, lonely = naive.support_of(found.similarity, expected.flat, expected.nonfinite)
    assert_allclose(found.support, support, atol=1e-12)
    if chosen["spread"] == 0:
        assert_allclose(found.support, expected.support, atol=TOLERANCE)
    assert_array_equal(found.flat, expected.flat)
    assert_array_equal(found.nonfinite, expected.nonfinite)
    assert_array_equal(found.lonely, lonely)
    assert_array_equal(found.lonely, expected.lonely)


def check_path(
    path: str,
    samples: np.ndarray,
    chosen: dict[str, Any],
    bank: list[int] | None = None,
    reach: int | None = None,
) -> None:
    indices = None if bank is None else np.unique(np.array(bank, np.int64))
    search = search_signal(samples, bank=indices, reach=reach, **chosen)
    similarity, neighbors = run_path(path, search)
    expected = naive.retrieve(scaled_down(samples), bank=bank, reach=reach, **chosen)
    assert_array_equal(search.flat, expected.flat)
    assert_array_equal(search.nonfinite, expected.nonfinite)
    expect_lists(similarity, neighbors, expected, chosen, bank, reach)


def on_torch(search: Search, **settings: int) -> tuple[np.ndarray, np.ndarray]:
    return nearest_of_each([search], "cpu", **settings)[0]


def run_path(path: str, search: Search) -> tuple[np.ndarray, np.ndarray]:
    """Each path with blocks so small that their borders are everywhere."""
    if path == "torch":
        return on_torch(search, block_values=128)
    whole = search.without_gaps
    if path == "diagonal":
        return join_gaps(search, nearest_by_diagonals(whole, tile=7, n_threads=2))
    found = nearest_by_blocks(whole, block_values=64)
    if path == "walk" and search.with_gaps.any() and search.spread_gap == 1:
        return walk_gaps(search, found, side=5, n_threads=2)
    return join_gaps(search, found)


# -- Every path against the oracle ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@many(600)
@given(case=cases())
def test_every_path_finds_what_the_double_loop_finds(path, case):
    check_path(path, *case)


@many(600)
@given(
    cases(n_windows=16),
    st.one_of(st.none(), st.lists(st.integers(0, 15), max_size=9)),
    st.one_of(st.none(), st.integers(0, 16)),
    st.sampled_from(PATHS),
)
def test_only_windows_of_the_bank_and_within_reach_are_neighbors(case, bank, reach, path):
    check_path(path, *case, bank=bank, reach=reach)


@many(60)
@given(
    cases(n_windows=110, window_length=9, n_variates=1),
    st.one_of(st.none(), st.integers(1, 120)),
    st.sampled_from([7, 40, 64]),
    st.integers(0, 2**32 - 1),
)
def test_blocks_of_the_diagonal_kernel_fit_together(case, reach, tile, seed):
    # More columns than any block has, tiles that end within one, and banks of scattered windows.
    samples, chosen = case
    rng = np.random.default_rng(seed)
    bank = None if seed % 2 else np.flatnonzero(rng.random(110) < rng.choice([0.2, 0.9]))
    search = search_signal(samples, bank=bank, reach=reach, **chosen).without_gaps
    similarity, neighbors = nearest_by_diagonals(search, tile=tile, n_threads=2)
    expected = nearest_by_blocks(search)
    compared = ~search.nonfinite
    assert_allclose(similarity[compared], expected[0][compared], atol=1e-8)
    if chosen["spread"] == 0:
        assert (neighbors[compared] == expected[1][compared]).mean() > 0.98  # a tie may fall either way


@many(400)
@given(cases())
def test_the_front_door_gives_the_oracles_lists_support_and_flags(case):
    samples, chosen = case
    expect_retrieval(retrieve(samples, **chosen), naive.retrieve(scaled_down(samples), **chosen), chosen)


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
        present = np.isfinite(samples[:, start : start + chosen["window_length"]]).all(axis=0)
        gone[k] |= present.mean() < 0.5
    expect_retrieval(found, naive.retrieve_features(features, scaled_down(samples), **chosen), chosen)
    assert_array_equal(found.nonfinite, gone)
    assert found.space == "features"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("measure", ["pearson", "cosine"])
def test_a_dead_signal_is_flat_in_feature_space_too(measure, path):
    rng = np.random.default_rng(8)
    samples = rng.normal(size=(2, 400))
    samples[:, 100:200] = 3.0
    samples[0, 300] = np.nan
    dead = np.arange(10, 19)  # windows of 20 samples that lie within the quarter
    features = rng.normal(size=(39, 6))
    features[dead] = features[dead[0]]  # a network gives equal windows equal vectors
    chosen = {"window_length": 20, "stride": 10, "n_neighbors": 3, "exclusion": 10}
    signal = search_of(samples, measure=measure, **chosen)
    search = search_features(features, signal, measure=measure)
    assert_array_equal(np.flatnonzero(search.flat), dead)
    assert_array_equal(search.unit_windows(dead), 0.0)
    similarity, neighbors = run_path(path, search)
    expected = naive.retrieve_features(
        features, samples, 20, 10, measure=measure, n_neighbors=3, exclusion=10
    )
    compared = ~search.nonfinite
    assert_array_equal(neighbors[compared], expected.neighbors[compared])
    assert_allclose(similarity[compared], expected.similarity[compared], atol=TOLERANCE)
    assert_array_equal(similarity[dead], 0.0)


@many(300)
@given(
    st.lists(st.sampled_from([-1.0, 1.0]), min_size=4, max_size=4),
    st.integers(6, 25),
    st.integers(1, 4),
    st.sampled_from(PATHS),
)
def test_of_equally_near_windows_the_earlier_start_comes_first(pattern, n_windows, n_neighbors, path):
    # Any four ±1 repeated: under cosine similarities are exactly -1, -.5, 0, .5 or 1, and most of them tie.
    samples = np.tile(pattern, 8)[: n_windows + 3].reshape(1, -1)
    chosen: dict[str, Any] = {"measure": "cosine", "n_neighbors": n_neighbors, "exclusion": 1}
    _, neighbors = run_path(path, search_of(samples, window_length=4, stride=1, **chosen))
    assert_array_equal(neighbors, naive.retrieve(samples, 4, 1, **chosen).neighbors)


# -- Larger series, real tile sizes --------------------------------------------------------------------------


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
def test_thousands_of_windows_agree_with_one_product_of_all(
    length, stride, n_windows, n_variates, exclusion, measure
):
    rng = np.random.default_rng(length + stride)
    samples = rng.normal(size=(n_variates, (n_windows - 1) * stride + length)).cumsum(axis=1) + 300
    samples[:, 5000:5040] *= 1e4
    found = retrieve(
        samples, window_length=length, stride=stride, exclusion=exclusion, measure=measure, n_neighbors=7
    )
    assert found.n_windows == n_windows
    assert_allclose(found.similarity, naive.nearest_at_once(samples, found)[0], atol=TOLERANCE)


def hostile_signals() -> dict[str, np.ndarray]:
    """Signals that ruin running sums: offsets, steps, drift, artefacts, decay, stretches just short of flat."""
    noise = np.random.default_rng(17).normal(size=(1, 9000))
    ramp = np.arange(9000.0)
    quiet = np.where((ramp > 2000) & (ramp < 6000), 5e-6, 1.0)
    spike = np.where(np.isin(ramp, [3500, 5200, 5201]), 7e5, 0.0)
    return {
        "on 1e9": noise + 1e9,
        "loud, then quiet": noise * np.where(ramp < 4500, 1.0, 1e-4),
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
    found = retrieve(samples, window_length=512, stride=5, measure=measure, n_neighbors=20, exclusion=256)
    assert_allclose(found.similarity, naive.nearest_at_once(samples, found)[0], atol=1e-9)


@pytest.mark.parametrize("nearest", [nearest_by_diagonals, nearest_by_blocks, on_torch])
def test_copies_tie_exactly_across_blocks_of_a_real_size(nearest):
    motif = np.random.default_rng(4).normal(size=300).cumsum()
    samples = np.tile(motif, 50).reshape(1, -1)
    search = search_of(samples, window_length=300, stride=5, n_neighbors=4, exclusion=150)
    assert search.n_windows > 3 * tile_side(search.n_windows)
    similarity, neighbors = nearest(search)
    assert_array_equal(similarity, 1.0)
    for k in range(search.n_windows):
        assert_array_equal(neighbors[k], [60 * copy + k % 60 for copy in range(5) if copy != k // 60][:4])


@pytest.mark.parametrize("changed", [{}, {"reach": 700}, {"bank": np.arange(500, 2900)}, {"spread": 50}])
def test_any_number_of_threads_lists_the_same_bits_at_a_real_size(changed):
    samples = np.round(np.random.default_rng(5).normal(size=(1, 12_000)).cumsum(axis=1), 1)
    samples[:, 7000:] *= 1e-3  # sums start anew
    search = search_of(samples, window_length=128, stride=3, exclusion=64, **changed)
    assert suits_diagonals(search)
    similarity, neighbors = nearest_by_diagonals(search, n_threads=1)
    for n_threads in (2, 7):
        other = nearest_by_diagonals(search, n_threads=n_threads)
        assert similarity.tobytes() == other[0].tobytes()
        assert neighbors.tobytes() == other[1].tobytes()
    by_blocks = nearest_by_blocks(search)
    assert_allclose(similarity, by_blocks[0], atol=1e-9)
    assert (neighbors == by_blocks[1]).mean() > 0.999


def test_every_tile_within_reach_is_handed_out_once_and_no_two_share_windows():
    tiles = _Tiles(n_windows=95, tile=10, gap=12, reach=41)
    seen, held = [], []
    while (tile := tiles.claim()) is not None:
        seen.append(tile)
        held.append(tile)
        if len(held) == 3:
            windows = [block for item in held for block in set(item)]
            assert len(windows) == len(set(windows))
            tiles.release(held.pop(0))
        elif len(seen) >= len(tiles) - 3:  # few are left, and they may be neighbours
            tiles.release(held.pop())
    assert len(seen) == len(set(seen)) == len(tiles)
    needed = {(i // 10, j // 10) for i in range(95) for j in range(i + 12, min(i + 42, 95))}
    assert needed <= set(seen)
    assert all(column - row <= 5 for row, column in seen)


def test_a_pair_costs_no_more_in_a_long_series_than_in_a_short_one():
    samples = np.random.default_rng(2).normal(size=(1, 110_000)).cumsum(axis=1)
    seconds = {}
    for n_samples in (22_000, 110_000):
        some = samples[:, :n_samples]
        search = search_of(some, window_length=1024, stride=5, n_neighbors=10, exclusion=512)
        nearest_by_diagonals(search, n_threads=1)
        begin = time.thread_time()
        nearest_by_diagonals(search, n_threads=1)
        seconds[n_samples] = (time.thread_time() - begin) / search.n_windows**2
    assert seconds[110_000] < 3 * seconds[22_000]


def test_the_fast_path_is_taken_where_windows_overlap_and_not_elsewhere():
    def suits(**changed: Any) -> bool:
        samples = np.random.default_rng(0).normal(size=(1, 2000))
        if changed.get("measure") == "cosine":
            samples[0, 500:] *= 1e-120
        return suits_diagonals(search_of(samples, **{"window_length": 64, "stride": 5} | changed))

    assert suits()
    assert suits(spread=20)
    assert suits(stride=32)  # half a window on, but each pair serves both its windows
    assert not suits(stride=32, spread=40)
    assert not suits(stride=33)
    assert suits(bank=np.arange(0, 388, 2))  # walked over
    assert not suits(bank=np.arange(0, 388, 40))
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


@pytest.mark.parametrize("n_threads", [1, 3])
def test_what_progress_raises_stops_every_thread(n_threads):
    rounds = []

    def work() -> Iterator[None]:
        for _ in range(1000):
            time.sleep(0.01)
            rounds.append(1)
            yield

    def interrupt(share: float) -> None:
        assert 0 < share < 0.5
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_on_threads(work, n_tasks=1000 * n_threads, n_threads=n_threads, on_progress=interrupt)
    stopped = len(rounds)
    assert stopped < 100 * n_threads
    time.sleep(0.05)
    assert len(rounds) == stopped
