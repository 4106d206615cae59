"""A series is searched once: what the cache keeps, and what it refuses to believe."""

from __future__ import annotations

import logging
import os
import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest

from raxss.data.series import Series
from raxss.errors import ConfigError
from raxss.method.retrieval import Retrieval, cached_retrieve, clear_cache, retrieve
from raxss.method.retrieval import cache as cache_module
from raxss.method.retrieval.cache import cached_retrieve_many


@pytest.fixture
def walk() -> np.ndarray:
    return np.random.default_rng(11).normal(size=400).cumsum()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RAXSS_CACHE", str(tmp_path / "cache"))
    cache_module._memory.clear()
    yield tmp_path / "cache"
    cache_module._memory.clear()


@pytest.fixture(scope="module")
def long_walk() -> np.ndarray:
    return np.random.default_rng(4).normal(size=4200).cumsum()


@pytest.fixture(autouse=True)
def _files_for_short_searches(monkeypatch):
    """Searches that are worth a file take long; the rules are the same for those that do not."""
    monkeypatch.setattr(cache_module, "LEAST_WINDOWS_ON_DISK", 4096)


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


def test_a_gpu_writes_only_what_would_take_it_longer_than_a_file(folder, walk, long_walk):
    found = retrieve(long_walk, **CHOSEN)
    cache_module._keep("a" * 64, found, {"device": "cuda"})
    assert not folder.exists()
    cache_module._keep("b" * 64, found, {"device": "cpu"})
    assert len(list(folder.iterdir())) == 1


def test_those_not_used_for_longest_make_room_on_disk(folder, long_walk, monkeypatch):
    walks = [long_walk + 0.1 * one * (np.arange(4200) > 99) for one in range(4)]
    cached_retrieve(walks[0], **CHOSEN)
    (first,) = folder.iterdir()
    monkeypatch.setenv("RAXSS_CACHE_BYTES", str(int(2.5 * first.stat().st_size)))
    cached_retrieve(walks[1], **CHOSEN)
    (second,) = set(folder.iterdir()) - {first}
    for age, file in enumerate([first, second]):
        os.utime(file, ns=(10**18 + age, file.stat().st_mtime_ns))  # both long ago, the second later
    cache_module._memory.clear()
    cached_retrieve(walks[0], **CHOSEN)  # read from the disk, so the first is now the fresher one
    cached_retrieve(walks[2], **CHOSEN)
    assert first in set(folder.iterdir())
    assert second not in set(folder.iterdir())
    assert len(list(folder.iterdir())) == 2
    monkeypatch.setenv("RAXSS_CACHE_BYTES", "1000")
    cached_retrieve(walks[3], **CHOSEN)
    assert len(list(folder.iterdir())) == 2  # what is larger than all room is not written


@pytest.mark.parametrize("wrong", ["2 GB", "-1", "1e9"])
def test_a_limit_that_is_no_number_is_named(folder, long_walk, monkeypatch, wrong):
    monkeypatch.setenv("RAXSS_CACHE_BYTES", wrong)
    with pytest.raises(ConfigError, match=f"RAXSS_CACHE_BYTES is '{wrong}'"):
        cached_retrieve(long_walk, **CHOSEN)


def test_many_are_looked_up_and_only_the_others_searched_together(folder, walk, long_walk, monkeypatch):
    series = [walk, long_walk, walk[:200], -walk[:300]]
    on_disk, in_memory = cached_retrieve(long_walk, **CHOSEN), cached_retrieve(walk[:200], **CHOSEN)
    cache_module._memory.clear()
    cache_module._memory.put(cache_module._key(Series(walk[:200]).samples, CHOSEN), in_memory)
    asked: list[int] = []

    def counting(some, **settings):
        asked.append(len(some))
        return real(some, **settings)

    real = cache_module.retrieve_many
    monkeypatch.setattr(cache_module, "retrieve_many", counting)
    found = cached_retrieve_many(series, **CHOSEN)
    assert asked == [2]
    assert found[2] is in_memory
    assert same(found[1], on_disk)
    for one, samples in zip(found, series, strict=True):
        assert same(one, retrieve(samples, **CHOSEN))
    again = cached_retrieve_many(series[::-1], **CHOSEN)
    assert asked == [2]
    assert all(one is other for one, other in zip(again, found[::-1], strict=True))


def test_who_watches_does_not_change_the_key(folder, walk):
    told: list[float] = []
    first = cached_retrieve(walk, **CHOSEN, on_progress=told.append)
    assert cached_retrieve(walk, **CHOSEN) is first
    assert told[-1] == 1.0
    told.clear()
    assert cached_retrieve_many([walk], **CHOSEN, on_progress=told.append) == [first]
    assert cached_retrieve(walk, **CHOSEN, on_progress=told.append) is first
    assert told == [1.0, 1.0]  # found at once is done at once


def test_keys_are_made_without_a_copy_of_the_samples():
    samples = np.zeros((1, 2_000_000))
    tracemalloc.start()
    cache_module._key(samples, CHOSEN)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < samples.nbytes / 10


def test_an_entry_too_large_for_memory_does_not_drive_out_the_others(walk):
    small, large = retrieve(walk[:100], **CHOSEN), retrieve(walk, **CHOSEN)
    memory = cache_module._Memory(cache_module._n_bytes(large) - 1)
    memory.put("small", small)
    memory.put("large", large)
    assert memory.get("small") is small
    assert memory.get("large") is None
