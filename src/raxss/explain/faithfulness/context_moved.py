"""Context probe: windows get the context of others, while their samples stay.

    shifted    each window has the context of the one half a series later; the first half, that of the second
    shuffled   contexts are permuted within the series
    neutral    each window has the mean context of the training windows

How far scores move, and how many decisions change, is how much rests on where windows are and how they differ
from the rest of their series; see method/context.py.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raxss.explain.faithfulness.model_adapter import ModelAdapter, WindowAttribution, WindowModelAdapter
from raxss.method.context import ContextRule, constant_context, mean_context, window_context
from raxss.method.windows import Windows

SHIFTED, SHUFFLED, NEUTRAL = CHANGES = ("shifted", "shuffled", "neutral")


def moved_context(
    adapter: ModelAdapter, attribution: WindowAttribution, *, seed: int = 0
) -> list[dict[str, Any]] | None:
    """A row for each change of the context; None where the model takes none, or the series is one window.

    Rows: ``change``; ``fall`` of the probability of the class that was predicted, and ``moved``, its size;
    ``flipped``; ``probability``, of each class.
    """
    if not isinstance(adapter, WindowModelAdapter) or not adapter.takes_context:
        return None
    if len(attribution.starts) < 2:
        return None
    class_, rows = attribution.predicted, []
    for name, rule in _changes(adapter, seed):
        after = next(iter(adapter.with_context(rule).attributions([attribution.series])))
        fall = float(attribution.probability[class_] - after.probability[class_])
        rows.append(
            {
                "change": name,
                "fall": fall,
                "moved": abs(fall),
                "flipped": bool(after.predicted != class_),
                "probability": after.probability.round(8).tolist(),
            }
        )
    return rows


def _changes(adapter: WindowModelAdapter, seed: int) -> Iterator[tuple[str, ContextRule]]:
    yield SHIFTED, shifted_context
    yield SHUFFLED, functools.partial(shuffled_context, seed=seed)
    yield NEUTRAL, functools.partial(constant_context, values=mean_context(adapter.network))


def shifted_context(windows: Windows) -> NDArray[np.float32]:
    """Context of the window half a series later, and from the second half on of those from the first on.

    >>> from raxss.data.series import Series
    >>> from raxss.method.windows import windows_of
    >>> shifted_context(windows_of(Series(np.arange(10.0)), window_length=2, stride=2))[:, 0].tolist()
    [0.5, 0.75, 1.0, 0.0, 0.25]
    """
    return np.roll(window_context(windows), -(len(windows) // 2), axis=0)


def shuffled_context(windows: Windows, *, seed: int) -> NDArray[np.float32]:
    """Contexts of the windows of a series, permuted."""
    return window_context(windows)[np.random.default_rng(seed).permutation(len(windows))]
