"""Stability of evidence under small changes: stride, offset, noise, training seed.

ModelAdapter, WindowAttribution -> another stride, half a stride's offset, a little noise, another seed
    -> new evidence over time -> rank correlation and overlap of the top, by stretches
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raxss.data.series import Series
from raxss.explain.faithfulness.model_adapter import ModelAdapter, WindowAttribution
from raxss.explain.faithfulness.timeline import (
    over_stretches,
    rank_correlation,
    stretch_edges,
    stretch_length,
    top_overlap,
)

Floats = NDArray[np.float64]
NOISES = (0.01, 0.05)  # of the deviation of each variate
SEED_CHANGE = "another seed"


def changed_a_little(
    adapter: ModelAdapter, attribution: WindowAttribution, *, other: ModelAdapter | None = None, seed: int = 0
) -> list[dict[str, Any]]:
    """A row for each small change: how alike evidence over time is before and after.

    Rows: ``change``; ``rank_correlation`` and ``top_overlap`` over stretches of contributions to the class that was
    predicted; ``moved``, the distance of its probability; ``flipped``. ``other`` is the same system trained
    with another seed.
    """
    class_ = attribution.predicted
    length = stretch_length(attribution.series.n_samples, attribution.window_length)
    edges = stretch_edges(attribution.series.n_samples, length)
    before = over_stretches(attribution.over_time(attribution.contributions(class_)), edges)
    rows = []
    for name, changed, series, offset in _changes(adapter, attribution.series, other, seed):
        after = next(iter(changed.attributions([series])))
        on_samples = np.zeros(attribution.series.n_samples)
        on_samples[offset:] = after.over_time(after.contributions(class_))
        now = over_stretches(on_samples, edges)
        rows.append(
            {
                "change": name,
                "rank_correlation": rank_correlation(before, now),
                "top_overlap": top_overlap(before, now),
                "moved": float(abs(after.probability[class_] - attribution.probability[class_])),
                "flipped": bool(after.predicted != class_),
            }
        )
    return rows


def _changes(
    adapter: ModelAdapter, series: Series, other: ModelAdapter | None, seed: int
) -> Iterator[tuple[str, ModelAdapter, Series, int]]:
    """Name of each change, adapter, series, and how many samples are missing at the beginning."""
    half = adapter.stride // 2
    if half:
        yield "half the stride", adapter.with_stride(half), series, 0
    yield "twice the stride", adapter.with_stride(2 * adapter.stride), series, 0
    if half and series.n_samples > adapter.window_length + half:
        yield "offset of half a stride", adapter, series.with_samples(series.samples[:, half:]), half
    generator = np.random.default_rng(seed)
    deviation = np.nanstd(np.asarray(series.samples, dtype=np.float64), axis=1, keepdims=True)
    noise = generator.normal(size=series.samples.shape) * deviation
    for level in NOISES:
        noisy = (series.samples + level * noise).astype(np.float32)
        yield f"{100 * level:g} % noise", adapter, replace(series, samples=noisy), 0
    if other is not None:
        yield SEED_CHANGE, other, series, 0
