"""Signals of a report: envelopes, strips over time, and the spans that are kept sample by sample.

A night of 128 channels does not fit into a file that opens at once. The windows behind a score are kept as they
are; the rest as an envelope that is labelled so.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raxss.explain.figures import covering_mean

N_BINS = 2000  # of an envelope or a heat strip: more than a screen resolves
FULL_BYTES = 6_500_000  # of samples as they are, in one report: 8.7 MB as text
GAP = -32768  # a sample that is not finite
NO_WINDOW = 255  # a moment that no window covers
PAGE_SECONDS = 10.0  # what is shown at once, and kept around the strongest window

Span = tuple[int, int]  # first sample, and the one after the last


def encoded(array: NDArray[Any]) -> str:
    """An array as text: base64 of its little-endian bytes."""
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode()


def decoded(text: str, dtype: str) -> NDArray[Any]:
    """Inverse of `encoded`."""
    return np.frombuffer(base64.b64decode(text, validate=True), dtype=np.dtype(dtype).newbyteorder("<"))


@dataclass(frozen=True, eq=False)
class QuantisationSteps:
    """How samples become whole numbers: sample = middle + step × number, one of each a variate."""

    middle: NDArray[np.float64]  # (n_variates,)
    step: NDArray[np.float64]  # (n_variates,)

    @classmethod
    def of(cls, samples: NDArray[Any]) -> QuantisationSteps:
        """Steps in which the largest and smallest sample still fit; gaps do not count."""
        known = np.where(np.isfinite(samples), samples, np.nan).astype(np.float64)
        low, high = (np.nan_to_num(outer.reduce(known, axis=1)) for outer in (np.fmin, np.fmax))
        step = (high / 2 - low / 2) / 32767
        step[step == 0] = 1.0
        return cls(low / 2 + high / 2, step)

    def numbers(self, samples: NDArray[Any]) -> NDArray[np.int16]:
        """Samples in steps, rounded; gaps are `GAP`."""
        steps = (samples - self.middle[:, np.newaxis]) / self.step[:, np.newaxis]
        finite = np.isfinite(steps)
        rounded = np.clip(np.rint(np.where(finite, steps, 0.0)), -32767, 32767)
        return np.where(finite, rounded, GAP).astype(np.int16)


def envelope(samples: NDArray[Any], n_bins: int = N_BINS) -> tuple[int, NDArray[Any], NDArray[Any]]:
    """Samples a bin, and the lowest and highest of each bin ``(n_variates, n_bins)``; NaN where all is gap."""
    n_samples = samples.shape[1]
    size = -(-n_samples // n_bins)
    known = np.where(np.isfinite(samples), samples, np.nan).astype(np.float64)
    low, high = (outer.reduceat(known, np.arange(0, n_samples, size), axis=1) for outer in (np.fmin, np.fmax))
    return size, low, high


def columns_over_time(
    start_s: NDArray[np.float64],  # (n_windows,)
    end_s: NDArray[np.float64],  # (n_windows,)
    values: NDArray[np.float64],  # (n_windows,), NaN: leave this window out
    *,
    begin: float,
    seconds: float,
    highest: float = 1.0,
) -> NDArray[np.uint8]:  # (N_BINS,)
    """Mean of the windows over each moment, 0 to 254 for 0 to ``highest``; `NO_WINDOW` where there is none."""
    times = begin + seconds * (np.arange(N_BINS) + 0.5) / N_BINS
    means = covering_mean(start_s, end_s, values, times)
    shown = np.rint(254 * np.clip(np.nan_to_num(means) / highest, 0, 1))
    return np.where(np.isnan(means), NO_WINDOW, shown).astype(np.uint8)


@dataclass(eq=False)
class Kept:
    """Spans of one channel that a report has sample by sample; overlapping ones become one.

    >>> kept = Kept(n_samples=100, bytes_a_sample=2)
    >>> kept.cost([(10, 30), (20, 40), (-5, 5)])
    70
    >>> kept.add([(10, 30), (20, 40), (-5, 5)])
    >>> kept.spans
    [(0, 5), (10, 40)]
    """

    n_samples: int
    bytes_a_sample: int
    spans: list[Span] = field(default_factory=list)

    def cost(self, more: Iterable[Span]) -> int:
        """Bytes that these spans would add."""
        before = sum(last - first for first, last in self.spans)
        after = sum(last - first for first, last in self._with(more))
        return (after - before) * self.bytes_a_sample

    def add(self, more: Iterable[Span]) -> None:
        """Add spans."""
        self.spans = self._with(more)

    def _with(self, more: Iterable[Span]) -> list[Span]:
        within = [(max(first, 0), min(last, self.n_samples)) for first, last in more]
        merged: list[Span] = []
        for first, last in sorted([*self.spans, *within]):
            if merged and first <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(last, merged[-1][1])
            elif last > first:
                merged.append((first, last))
        return merged


@dataclass(frozen=True, eq=False)
class Wanted:
    """Spans of one channel that should be kept sample by sample."""

    n_samples: int
    n_variates: int
    groups: Sequence[Sequence[Span]]  # an evidence window and its neighbours, most important first
    context: Span  # a page around the strongest window


def spans_to_keep(channels: Sequence[Wanted], order: Sequence[int], budget: int = FULL_BYTES) -> list[Kept]:
    """Share the budget: everything if it fits; else the strongest window of each channel, then the others.

    ``order`` has positions of channels, best rank first.
    """
    kept = [Kept(channel.n_samples, 2 * channel.n_variates) for channel in channels]
    if sum(item.n_samples * item.bytes_a_sample for item in kept) <= budget:
        for item in kept:
            item.add([(0, item.n_samples)])
        return kept
    first = [(place, [*channels[place].groups[0], channels[place].context]) for place in order]
    later = [(place, group) for place in order for group in channels[place].groups[1:]]
    for place, spans in [*first, *later]:
        cost = kept[place].cost(spans)
        if cost <= budget:
            kept[place].add(spans)
            budget -= cost
    return kept
