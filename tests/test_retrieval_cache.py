"""Cache of retrievals: a series is searched once per settings."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from raxss.data.series import Series
from raxss.method.retrieval import Retrieval, cached_retrieve_many, clear_cache, retrieve
from raxss.method.retrieval import cache as cache_module


@pytest.fixture
def walk() -> np.ndarray:
    return np.random.default_rng(11).normal(size=400).cumsum()


@pytest.fixture(autouse=True)
def _empty_cache():
    clear_cache()
    yield
    clear_cache()


CHOSEN: dict[str, Any] = {"window_length": 64, "stride": 1, "n_neighbors": 2}


def cached_retrieve(samples: Any, **settings: Any) -> Retrieval:
    return cached_retrieve_many([samples], **settings)[0]


def same(item: Retrieval, other: Retrieval) -> bool:
    arrays = ("similarity", "neighbors", "support", "starts", "flags")
    return all(np.array_equal(getattr(item, a), getattr(other, a), equal_nan=True) for a in arrays)


def test_the_same_series_and_settings_are_searched_once(walk):
    first = cached_retrieve(walk, **CHOSEN)
    assert cached_retrieve(Series(walk.copy()), **CHOSEN) is first
    assert cached_retrieve(walk, **CHOSEN, measure="pearson", exclusion=0) is first
    assert cached_retrieve(walk, **CHOSEN, exclusion=1) is not first
    changed = walk.copy()
    changed[5] += 1e-9
    assert cached_retrieve(changed, **CHOSEN) is not first


def test_a_cleared_cache_searches_again(walk):
    first = cached_retrieve(walk, **CHOSEN)
    clear_cache()
    again = cached_retrieve(walk, **CHOSEN)
    assert again is not first
    assert same(again, first)


def test_memory_keeps_the_most_recent_up_to_its_limit(walk):
    found = retrieve(walk, **CHOSEN)
    n_bytes = cache_module._n_bytes(found)
    memory = cache_module._Memory(2 * n_bytes)
    for key in "ab":
        memory.put(key, found)
    memory.get("a")
    memory.put("c", found)
    assert [memory.get(key) is found for key in "abc"] == [True, False, True]
    small, memory = retrieve(walk[:100], **CHOSEN), cache_module._Memory(n_bytes - 1)
    memory.put("small", small)
    memory.put("too large", found)
    assert [memory.get(key) for key in ("small", "too large")] == [small, None]


def test_memory_counts_its_bytes_as_entries_come_change_and_go(walk):
    rng = np.random.default_rng(6)
    sizes = [retrieve(walk[:length], window_length=64, stride=1, n_neighbors=2) for length in (80, 150, 400)]
    memory = cache_module._Memory(4 * cache_module._n_bytes(sizes[2]))
    evicted = 0
    for key in rng.integers(12, size=300):
        before = set(memory._entries)
        memory.put(str(key), sizes[rng.integers(3)])
        evicted += len(before - set(memory._entries))
        assert memory._n_bytes == sum(map(cache_module._n_bytes, memory._entries.values())) <= memory._limit
    assert evicted > 10
    memory.clear()
    assert memory._n_bytes == 0


def test_threads_share_the_cache(walk):
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: cached_retrieve(walk, **CHOSEN), range(8)))
    assert all(same(found[0], other) for other in found)


def test_many_are_looked_up_and_only_the_others_searched_together(walk, monkeypatch):
    series = [walk, walk[:200], -walk[:300]]
    known = cached_retrieve(walk[:200], **CHOSEN)
    searched: list[int] = []

    def counting(some, **settings):
        searched.append(len(some))
        return real(some, **settings)

    real = cache_module.retrieve_many
    monkeypatch.setattr(cache_module, "retrieve_many", counting)
    found = cached_retrieve_many(series, **CHOSEN)
    assert searched == [2]
    assert found[1] is known
    for item, samples in zip(found, series, strict=True):
        assert same(item, retrieve(samples, **CHOSEN))
    again = cached_retrieve_many(series[::-1], **CHOSEN)
    assert searched == [2]
    assert all(item is other for item, other in zip(again, found[::-1], strict=True))


def test_a_progress_callback_does_not_change_the_key(walk):
    shares: list[float] = []
    first = cached_retrieve(walk, **CHOSEN, on_progress=shares.append)
    assert cached_retrieve(walk, **CHOSEN) is first
    assert shares[-1] == 1.0
    shares.clear()
    assert cached_retrieve(walk, **CHOSEN, on_progress=shares.append) is first
    assert shares == [1.0]  # from the cache


def test_keys_are_made_without_a_copy_of_the_samples():
    samples = np.zeros((1, 2_000_000))
    tracemalloc.start()
    cache_module._key(samples, CHOSEN)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < samples.nbytes / 10
