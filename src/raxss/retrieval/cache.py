"""Has this series been searched before?

    samples, settings -> key (a hash of both) -> Retrieval, from memory, from disk, or computed

Support depends on the signal and the settings alone, never on the model, so it is computed once per series.
An entry on disk is believed only if its content hashes to what it says.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from raxss import storage
from raxss.errors import OutputError
from raxss.recordings.series import Series
from raxss.retrieval.front import retrieve
from raxss.retrieval.result import Retrieval

KERNEL_VERSION = 2  # raise it when any path may list other neighbors or round otherwise
MEMORY_BYTES = 256 * 2**20
LEAST_WINDOWS_ON_DISK = 4096  # smaller searches are faster than a file

_ARRAYS = ("similarity", "neighbors", "support", "starts", "flags")
_log = logging.getLogger("raxss")


def cached_retrieve(samples: ArrayLike | Series, **settings: Any) -> Retrieval:
    """`retrieve`, computed once per series and settings.

    The last results stay in memory (up to 256 MB), those of at least 4096 windows also on disk: in the folder
    that the environment variable ``RAXSS_CACHE`` names (``off``: nowhere), else in ``raxss`` under the user's
    cache folder.

    Examples
    --------
    >>> first = cached_retrieve([0, 1, 0, 5, 5, 0, 1, 0], window_length=3)
    >>> cached_retrieve([0, 1, 0, 5, 5, 0, 1, 0], window_length=3) is first
    True
    """
    series = samples if isinstance(samples, Series) else Series(samples, name="samples")
    key = _key(series.samples, settings)
    found = _memory.get(key)
    if found is None:
        found = _read(key)
        if found is None:
            found = retrieve(series, **settings)
            if found.n_windows >= LEAST_WINDOWS_ON_DISK:
                _write(key, found)
        _memory.put(key, found)
    return found


def clear_cache() -> None:
    """Forget every retrieval, in memory and on disk."""
    _memory.clear()
    folder = _folder()
    if folder is not None and folder.is_dir():
        for file in folder.glob("*.safetensors"):
            file.unlink(missing_ok=True)


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
        with self._lock:
            if key in self._entries:
                self._n_bytes -= _n_bytes(self._entries.pop(key))
            self._entries[key] = retrieval
            self._n_bytes += _n_bytes(retrieval)
            while self._n_bytes > self._limit:
                self._n_bytes -= _n_bytes(self._entries.popitem(last=False)[1])

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._n_bytes = 0


_memory = _Memory(MEMORY_BYTES)


def _n_bytes(retrieval: Retrieval) -> int:
    return sum(getattr(retrieval, name).nbytes for name in _ARRAYS)


def _key(samples: NDArray[Any], settings: Mapping[str, Any]) -> str:
    """A hash of the samples, every setting (defaults written out) and the kernels' version."""
    bound = inspect.signature(retrieve).bind(None, **settings)
    bound.apply_defaults()
    digest = hashlib.sha256(f"raxss retrieval {KERNEL_VERSION}".encode())
    _add(digest, np.asarray(samples, dtype=np.float64))
    for name, value in sorted(bound.arguments.items()):
        if name == "samples":
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
    digest.update(np.ascontiguousarray(array).tobytes())


def _folder() -> Path | None:
    """Where entries lie on disk, or None where they should not."""
    chosen = os.environ.get("RAXSS_CACHE")
    if chosen is not None and chosen.lower() == "off":
        return None
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path(os.path.expanduser("~")) / ".cache") / "raxss"


def _write(key: str, retrieval: Retrieval) -> None:
    """Put an entry on disk; a folder that cannot be written costs time, not the result."""
    folder = _folder()
    if folder is None:
        return
    arrays = {name: getattr(retrieval, name) for name in _ARRAYS}
    others = {one.name: getattr(retrieval, one.name) for one in fields(retrieval) if one.name not in _ARRAYS}
    settings = json.dumps(others, sort_keys=True)
    metadata = {"key": key, "settings": settings, "sha256": _content_hash(key, settings, arrays)}
    try:
        storage.write_bytes(folder / f"{key}.safetensors", save(arrays, metadata))
    except OutputError as error:
        _log.warning(
            "a retrieval was not cached and will be computed again next time: %s. "
            "Set RAXSS_CACHE to a folder that can be written, or to 'off'.",
            error.strerror,
        )


def _read(key: str) -> Retrieval | None:
    """Read an entry if there is one and it is what it claims to be."""
    folder = _folder()
    path = None if folder is None else folder / f"{key}.safetensors"
    if path is None or not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in _ARRAYS}
        settings = metadata["settings"]
        if metadata["key"] != key or metadata["sha256"] != _content_hash(key, settings, arrays):
            raise ValueError("its content does not match its hash")
        return Retrieval(**arrays, **json.loads(settings))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        _log.warning("the cached retrieval %s is damaged (%s); it is computed again.", path.name, error)
        return None


def _content_hash(key: str, settings: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(f"{key}\0{settings}".encode())
    for name in _ARRAYS:
        _add(digest, arrays[name])
    return digest.hexdigest()
