"""Distinct windows of many perturbed copies of a series.

    Windows of each copy -> Distinct: every window that occurs, once, and which of them each copy has
        -> passes of the network over these alone, on its device: (n, n_variates, length)

Copies differ in some stretches, so most of their windows are the same, sample by sample; the output of a network
depends on the window alone, so it is computed once. Scaled windows are compared: where a copy is scaled by its own
deviation, all its windows are new. Many copies at once also fill a GPU, which a single series does not.
Next: perturbed_series.py adds the windows of each copy up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raxss.data.series import Series
from raxss.method.window_scorer import WINDOWS_A_PASS
from raxss.method.windows import Windows, window_starts

SAMPLES_A_PASS = 2**23  # of all windows of a pass on a GPU
WINDOWS_AT_ONCE = 2**16  # of all copies that are looked at together, the same or not
N_FINGERPRINTS = 2  # of 64 bits: two windows that differ have the same ones once in 2^66 pairs at most


@dataclass(frozen=True, eq=False)
class Distinct:
    """Every window that occurs in some copies of a series, once.

    Attributes
    ----------
    strips
        ``(n_copies, n_variates, n_samples)`` as the network sees them.
    copies, windows
        ``(n_distinct,)`` a copy that has the window, and its place there.
    places
        ``(n_copies, n_windows)`` which of the distinct windows each is.
    """

    strips: Tensor
    length: int
    stride: int
    copies: NDArray[np.int64]
    windows: NDArray[np.int64]
    places: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.copies)

    def passes(self, device: torch.device) -> Iterator[tuple[slice, Tensor]]:
        """All of them, ``(n, n_variates, length)`` at a time on the device; the strips go there once."""
        cut = self.strips.to(device).unfold(2, self.length, self.stride).transpose(1, 2)
        copies, windows = (torch.from_numpy(item).to(device) for item in (self.copies, self.windows))
        at_once = WINDOWS_A_PASS
        if device.type != "cpu":
            at_once = max(SAMPLES_A_PASS // (self.strips.shape[1] * self.length), 1)
        for first in range(0, len(self), at_once):
            which = slice(first, first + at_once)
            yield which, cut[copies[which], windows[which]]


def portions(
    copies: Sequence[Series], *, window_length: int, stride: int, most: int = WINDOWS_AT_ONCE
) -> Iterator[list[int]]:
    """Which copies to look at together: of one length, with so many windows at most; one copy at least.

    >>> list(portions([Series(np.zeros(n)) for n in (8, 9, 8, 8)], window_length=4, stride=2, most=6))
    [[0, 2], [3], [1]]
    """
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for place, copy in enumerate(copies):
        by_shape.setdefault(copy.samples.shape, []).append(place)
    for (_, n_samples), places in by_shape.items():
        step = max(most // len(window_starts(n_samples, window_length=window_length, stride=stride)), 1)
        for first in range(0, len(places), step):
            yield places[first : first + step]


def distinct_windows(of_copies: Sequence[Windows]) -> Distinct:
    """Find the windows that differ, of copies with the same number of samples.

    Only windows with the same start are compared, by sums of their samples' bits times random numbers, which are
    differences of running sums: no window is looked at.

    Examples
    --------
    >>> from raxss.method.windows import windows_of
    >>> copies = [Series([0.0, 1.0, 2.0, 3.0, last]) for last in (4.0, 5.0)]
    >>> found = distinct_windows([windows_of(one, window_length=2, stride=1) for one in copies])
    >>> found.places  # the last windows differ
    array([[0, 1, 2, 3],
           [0, 1, 2, 4]])
    """
    item = of_copies[0]
    strips = np.stack([np.asarray(windows.strip, dtype=np.float32) for windows in of_copies])
    strips = np.nan_to_num(strips, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
    n_copies, n_windows = len(of_copies), len(item)
    keys = [np.broadcast_to(np.arange(n_windows, dtype=np.uint64), (n_copies, n_windows))]
    generator = np.random.default_rng(0)
    for _ in range(N_FINGERPRINTS):
        factors = generator.integers(0, 2**64, size=strips.shape[1:], dtype=np.uint64)
        sums = np.zeros((n_copies, strips.shape[2] + 1), dtype=np.uint64)  # they wrap around
        np.cumsum((strips.view(np.uint32) * factors).sum(axis=1), axis=1, out=sums[:, 1:])
        keys.append(sums[:, item.starts + item.length] - sums[:, item.starts])
    table = np.stack([key.ravel() for key in keys])
    order = np.lexsort(table[::-1])
    new = np.append(True, (np.diff(table[:, order], axis=1) != 0).any(axis=0))
    first = np.minimum.reduceat(
        order, np.flatnonzero(new)
    )  # the first that has it, so that copies are in order
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    places = np.empty(len(order), dtype=np.int64)
    places[order] = rank[np.cumsum(new) - 1]
    first = np.sort(first).astype(np.int64)
    return Distinct(
        torch.from_numpy(strips),
        item.length,
        item.stride,
        first // n_windows,
        first % n_windows,
        places.reshape(n_copies, n_windows),
    )
