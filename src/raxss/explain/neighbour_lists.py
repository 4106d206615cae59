"""Neighbour lists of every window, with the weight without each neighbour (Eq. 4).

    lists of all windows as retrieval keeps them -> rows of a table, for some windows or all

A day of signal has 14 million listed neighbours: kept as two arrays they take 230 MB, as a table of ten columns
over 1 GB. So rows are built on demand.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raxss.method.aggregation import Aggregation
from raxss.method.retrieval.search import Retrieval
from raxss.method.weighting.protocol import SupportLists, weighting_named
from raxss.method.windows import Windows

Columns = dict[str, NDArray[Any]]  # of equal length

WINDOWS_A_CHUNK = 2**16  # whose lists are looked at together: some 50 MB
BYTES_A_ROW = 73  # of the table: nine numbers and a truth value


@dataclass(frozen=True, eq=False)
class NeighborLists:
    """The neighbours of every window of one series; nothing is copied."""

    retrieval: Retrieval
    aggregation: Aggregation
    n_covered: int  # samples that a window covers, without padding
    rate: float
    offset_seconds: float

    @classmethod
    def of(cls, windows: Windows, retrieval: Retrieval, aggregation: Aggregation) -> NeighborLists:
        """Lists of the same windows."""
        n_covered = windows.length - windows.n_padded
        return cls(retrieval, aggregation, n_covered, windows.rate, windows.offset_seconds)

    @functools.cached_property
    def n_rows(self) -> int:
        """Number of listed neighbours of all windows."""
        return int(np.count_nonzero(self.retrieval.neighbors >= 0))

    @property
    def overlap_share(self) -> float:
        """Share of the listed neighbours that overlap their query; NaN where none are listed."""
        n_overlaps = 0
        n_apart = -(-self.n_covered // self.retrieval.stride)  # windows that are so far apart share nothing
        for which in self._chunks():
            neighbors = self.retrieval.neighbors[which]
            distance = np.abs(neighbors - np.arange(which.start, which.stop)[:, np.newaxis])
            n_overlaps += int(np.count_nonzero((distance < n_apart) & (neighbors >= 0)))
        return n_overlaps / self.n_rows if self.n_rows else np.nan

    def columns(self, windows: NDArray[np.int64] | None = None) -> Columns:
        """One entry a window and rank, for these windows (ascending) or for all."""
        found, aggregation, starts = self.retrieval, self.aggregation, self.retrieval.starts
        which = np.arange(found.n_windows) if windows is None else np.asarray(windows, dtype=np.int64)
        neighbors = found.neighbors[which]
        row, rank = np.nonzero(neighbors >= 0)
        query, neighbor = which[row], neighbors[row, rank].astype(np.int64)
        shared = np.maximum(self.n_covered - np.abs(starts[query] - starts[neighbor]), 0)
        without = weight_without(
            found.similarity,
            aggregation.support,
            found.flat,
            temperature=aggregation.temperature,
            weighting=aggregation.weighting,
            gate=aggregation.gate,
            rows=which,
        )[row, rank]
        return {
            "window": query,
            "rank": rank + 1,
            "neighbor": neighbor,
            "start_s": self.offset_seconds + starts[neighbor] / self.rate,
            "end_s": self.offset_seconds + (starts[neighbor] + self.n_covered) / self.rate,
            "similarity": found.similarity[query, rank],
            "overlaps": shared > 0,
            "overlap_s": shared / self.rate,
            "weight_without": without,
            "weight_change": aggregation.weights[query] - without,
        }

    def chunks(self) -> Iterator[Columns]:
        """`columns` of all windows, some at a time."""
        for which in self._chunks():
            yield self.columns(np.arange(which.start, which.stop))

    def _chunks(self) -> Iterator[slice]:
        n = self.retrieval.n_windows
        return (slice(at, min(at + WINDOWS_A_CHUNK, n)) for at in range(0, n, WINDOWS_A_CHUNK))


def columns_of(table: pd.DataFrame) -> Columns:
    """The columns of a table by name, not copied."""
    return {str(name): table[name].to_numpy() for name in table}


def weight_without(
    similarity: NDArray[np.float64],  # (n_windows, m), NaN where there is none
    support: NDArray[np.float64],  # (n_windows,), NaN where the window cannot be used
    flat: NDArray[np.bool_],  # (n_windows,)
    *,
    temperature: float,
    weighting: str = "support",
    gate: NDArray[np.float64] | None = None,  # (n_windows,) added to each support, under the gated weightings
    rows: NDArray[np.int64] | slice = slice(None),  # windows to compute
) -> NDArray[np.float64]:  # (n_rows, m)
    r"""The weight each window would have if one of its neighbours were left out of its list. Implements Eq. (4).

    The equation is a slope, d alpha_k / d s_k^(j) = alpha_k (1 - alpha_k) / (m tau), other supports held; this is
    the exact change, with and without the neighbour.

    s-bar_k without j is the mean over the m - 1 others. All that depends on s-bar_k changes with it: the sum under
    the softmax, and the supports of lonely windows, which are the mean support of the windows with neighbours. A
    window that loses its only neighbour becomes lonely (a flat one keeps support 0); if no window has neighbours
    then, all supports are 0. The gate stays. NaN under ``shuffled`` and ``random``, where lists do not make the
    weights.

    Examples
    --------
    >>> similarity = np.array([[0.9, 0.7], [0.9, 0.5]])
    >>> flat = np.array([False, False])
    >>> weight_without(similarity, similarity.mean(axis=1), flat, temperature=0.1).round(3)
    array([[0.5  , 0.881],
           [0.047, 0.731]])
    """
    lists = SupportLists(similarity, support, flat, gate, rows)
    return weighting_named(weighting).leave_one_out(lists, temperature=temperature)
