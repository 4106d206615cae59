"""Cache of retrievals, in memory and on disk.

    samples, settings -> key (a hash of both) -> Retrieval, from memory, from disk, or computed

Support depends on the signal and the settings alone, never on the model, so it is computed once per series.
Entries on disk are files of a `raxss._core.store.Store`: one is used only if its content has the hash that it
states, and those not used for longest make room.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from raxss._core.kernel_cache import user_cache_folder
from raxss._core.store import Store
from raxss.data.series import Series
from raxss.errors import ConfigError, OutputError
from raxss.method.retrieval.front import retrieve, retrieve_many
from raxss.method.retrieval.result import Retrieval

KERNEL_VERSION = 3  # raise it when any path may list other neighbors or round otherwise
MEMORY_BYTES = 256 * 2**20
DISK_BYTES = 2 * 2**30
LEAST_WINDOWS_ON_DISK = 2**14  # smaller searches are faster than a file
GPU_ADVANTAGE = 8  # so many times more windows are searched in the time of a file

SUFFIX = ".safetensors"
_ARRAYS = ("similarity", "neighbors", "support", "starts", "flags")
_log = logging.getLogger("raxss")


def cached_retrieve(
    samples: ArrayLike | Series, *, on_progress: Callable[[float], None] | None = None, **settings: Any
) -> Retrieval:
    """`retrieve`, computed once per series and settings.

    The last results stay in memory (up to 256 MB), those of at least 16,384 windows also on disk (131,072 where a
    GPU searches): in the folder that the environment variable ``RAXSS_CACHE`` names (``off``: nowhere), else in
    ``raxss`` under the user's cache folder. There they take up to 2 GB, or ``RAXSS_CACHE_BYTES``; those not used
    for longest make room.

    Examples
    --------
    >>> first = cached_retrieve([0, 1, 0, 5, 5, 0, 1, 0], window_length=3)
    >>> cached_retrieve([0, 1, 0, 5, 5, 0, 1, 0], window_length=3) is first
    True
    """
    series = _series(samples)
    key = _key(series.samples, settings)
    found = _look_up(key)
    if found is None:
        found = retrieve(series, **settings, on_progress=on_progress)
        _keep(key, found, settings)
    elif on_progress is not None:
        on_progress(1.0)
    return found


def cached_retrieve_many(
    samples: Sequence[ArrayLike | Series],
    *,
    on_progress: Callable[[float], None] | None = None,
    **settings: Any,
) -> list[Retrieval]:
    """`cached_retrieve` of many series: those that are not known are searched together, in one call.

    Examples
    --------
    >>> first = cached_retrieve([0, 1, 0, 5, 5, 0, 1, 0], window_length=3)
    >>> both = cached_retrieve_many([[0, 1, 0, 5, 5, 0, 1, 0], [3, 1, 4, 1, 5, 9]], window_length=3)
    >>> both[0] is first, both[1].n_windows
    (True, 4)
    """
    series = [_series(one) for one in samples]
    keys = [_key(one.samples, settings) for one in series]
    found = [_look_up(key) for key in keys]
    missing = [place for place, one in enumerate(found) if one is None]
    if missing:
        computed = retrieve_many([series[place] for place in missing], **settings, on_progress=on_progress)
        for place, one in zip(missing, computed, strict=True):
            _keep(keys[place], one, settings)
            found[place] = one
    elif on_progress is not None:
        on_progress(1.0)
    return [one for one in found if one is not None]


def clear_cache() -> None:
    """Forget every retrieval, in memory and on disk."""
    _memory.clear()
    store = _store()
    if store is not None:
        store.make_room(0, f"*{SUFFIX}")


class _Memory:
    """The most recently used retrievals, up to so many bytes; safe to share between threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._n_bytes = 0  # of all entries, so that none need be looked at again
        self._entries: OrderedDict[str, Retrieval] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> Retrieval | None:
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, key: str, retrieval: Retrieval) -> None:
        n_bytes = _n_bytes(retrieval)
        with self._lock:
            if key in self._entries:
                self._n_bytes -= _n_bytes(self._entries.pop(key))
            if n_bytes > self._limit:  # the others need not go for what cannot stay
                return
            self._entries[key] = retrieval
            self._n_bytes += n_bytes
            while self._n_bytes > self._limit:
                self._n_bytes -= _n_bytes(self._entries.popitem(last=False)[1])

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._n_bytes = 0


_memory = _Memory(MEMORY_BYTES)


def _look_up(key: str) -> Retrieval | None:
    found = _memory.get(key)
    if found is None and (found := _read(key)) is not None:
        _memory.put(key, found)
    return found


def _keep(key: str, retrieval: Retrieval, settings: Mapping[str, Any]) -> None:
    least = LEAST_WINDOWS_ON_DISK * (1 if settings.get("device", "cpu") == "cpu" else GPU_ADVANTAGE)
    if retrieval.n_windows >= least:
        _write(key, retrieval)
    _memory.put(key, retrieval)


def _series(samples: ArrayLike | Series) -> Series:
    return samples if isinstance(samples, Series) else Series(samples, name="samples")


def _n_bytes(retrieval: Retrieval) -> int:
    return sum(getattr(retrieval, name).nbytes for name in _ARRAYS)


def _key(samples: NDArray[Any], settings: Mapping[str, Any]) -> str:
    """A hash of the samples, every setting (defaults written out) and the kernels' version."""
    bound = inspect.signature(retrieve).bind(None, **settings)
    bound.apply_defaults()
    digest = hashlib.sha256(f"raxss retrieval {KERNEL_VERSION}".encode())
    _add(digest, np.asarray(samples, dtype=np.float64))
    for name, value in sorted(bound.arguments.items()):
        if name in ("samples", "on_progress"):
            continue
        digest.update(f"\0{name}=".encode())
        if value is None or isinstance(value, str | int | float):
            digest.update(repr(value).encode())
        else:
            _add(digest, np.asarray(value))
    return digest.hexdigest()


def _add(digest: Any, array: NDArray[Any]) -> None:
    """Hash an array with its shape and type, so that no two arrays read the same."""
    digest.update(f"\0{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).data)  # not copied: a day's lists are 230 MB


def _store() -> Store | None:
    """Where entries lie on disk, or None where they should not."""
    chosen = os.environ.get("RAXSS_CACHE")
    if chosen is not None and chosen.lower() == "off":
        return None
    return Store(Path(chosen) if chosen else user_cache_folder())


def _disk_bytes() -> int:
    """How much all entries on disk may take."""
    chosen = os.environ.get("RAXSS_CACHE_BYTES", "")
    if not chosen:
        return DISK_BYTES
    if not chosen.isdecimal():
        raise ConfigError(
            f"the environment variable RAXSS_CACHE_BYTES is {chosen!r}; a whole number of bytes is needed, such as "
            f"{DISK_BYTES}. To cache nothing on disk, set RAXSS_CACHE=off."
        )
    return int(chosen)


def _write(key: str, retrieval: Retrieval) -> None:
    """Put an entry on disk; a folder that cannot be written costs time, not the result."""
    store, limit = _store(), _disk_bytes()
    if store is None or _n_bytes(retrieval) > limit:
        return
    arrays = {name: getattr(retrieval, name) for name in _ARRAYS}
    others = {one.name: getattr(retrieval, one.name) for one in fields(retrieval) if one.name not in _ARRAYS}
    settings = json.dumps(others, sort_keys=True)
    metadata = {"key": key, "settings": settings, "sha256": _content_hash(key, settings, arrays)}
    try:
        with store.file(f"{key}{SUFFIX}") as temporary:
            save_file(arrays, temporary, metadata)
        store.make_room(limit, f"*{SUFFIX}")
    except OutputError as error:
        _log.warning(
            "a retrieval was not cached and will be computed again next time: %s. "
            "Set RAXSS_CACHE to a folder that can be written, or to 'off'.",
            error.strerror,
        )


def _read(key: str) -> Retrieval | None:
    """Read an entry if there is one and it is what it claims to be."""
    store, filename = _store(), f"{key}{SUFFIX}"
    found = None if store is None else store.recover(filename, partial(_unpacked, key))
    if store is not None and found is not None:
        store.mark_used(filename)
    return found


def _unpacked(key: str, path: Path) -> Retrieval:
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in _ARRAYS}
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    settings = metadata["settings"]
    if metadata["key"] != key or metadata["sha256"] != _content_hash(key, settings, arrays):
        raise ValueError("its content does not match its hash")
    return Retrieval(**arrays, **json.loads(settings))


def _content_hash(key: str, settings: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(f"{key}\0{settings}".encode())
    for name in _ARRAYS:
        _add(digest, arrays[name])
    return digest.hexdigest()
