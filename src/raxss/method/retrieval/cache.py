"""In-memory cache of retrievals (least recently used first out).

Support depends on the signal and the settings alone, never on the model, so `predict_proba` and `explain`
share one search per series.
"""

from __future__ import annotations

import hashlib
import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raxss.data.series import Series
from raxss.method.retrieval.front import retrieve, retrieve_many
from raxss.method.retrieval.search import Retrieval

MEMORY_BYTES = 256 * 2**20

_ARRAYS = ("similarity", "neighbors", "support", "starts", "flags")


def cached_retrieve_many(
    samples: Sequence[ArrayLike | Series],
    *,
    features: Sequence[ArrayLike] | None = None,
    on_progress: Callable[[float], None] | None = None,
    **settings: Any,
) -> list[Retrieval]:
    """`retrieve_many`, computed once per series and settings; the last results stay in memory, up to 256 MB.

    Series that are not in the cache are searched together.

    Examples
    --------
    >>> first = cached_retrieve_many([[0, 1, 0, 5, 5, 0, 1, 0]], window_length=3)
    >>> cached_retrieve_many([[0, 1, 0, 5, 5, 0, 1, 0]], window_length=3)[0] is first[0]
    True
    """
    series = [item if isinstance(item, Series) else Series(item, name="samples") for item in samples]
    vectors = [None] * len(series) if features is None else features
    keys = [
        _key(item.samples, settings | {"features": some}) for item, some in zip(series, vectors, strict=True)
    ]
    found = [_memory.get(key) for key in keys]
    missing = [which for which, item in enumerate(found) if item is None]
    if missing:
        computed = retrieve_many(
            [series[which] for which in missing],
            features=None if features is None else [features[which] for which in missing],
            on_progress=on_progress,
            **settings,
        )
        for which, item in zip(missing, computed, strict=True):
            _memory.put(keys[which], item)
            found[which] = item
    elif on_progress is not None:
        on_progress(1.0)
    return [item for item in found if item is not None]


def clear_cache() -> None:
    """Empty the cache."""
    _memory.clear()


class _Memory:
    """The most recently used retrievals, up to ``limit`` bytes; thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._n_bytes = 0  # of all entries
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
            if n_bytes > self._limit:  # it cannot be kept, so nothing is evicted for it
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


def _n_bytes(retrieval: Retrieval) -> int:
    return sum(getattr(retrieval, name).nbytes for name in _ARRAYS)


def _key(samples: NDArray[Any], settings: Mapping[str, Any]) -> str:
    """A hash of the samples and every setting, defaults written out."""
    bound = inspect.signature(retrieve).bind(None, **settings)
    bound.apply_defaults()
    digest = hashlib.sha256(b"raxss retrieval")
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
