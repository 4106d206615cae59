"""What did retrieval find?

    Retrieval: similarity, neighbors (n_windows, n_neighbors); support, starts, flags (n_windows,)

Next: ../weighting/ turns support into weights; explain/ turns the lists into leaderboards.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag

import numpy as np
from numpy.typing import NDArray


class WindowFlag(IntFlag):
    """What a reader should know about one window; flags add up."""

    FLAT = 1  # no shape to compare: similarity 0 to every window, support 0
    NONFINITE = 2  # touches a sample that is not finite: never a neighbor, support NaN, weight 0
    LONELY = 4  # finite, but no window was eligible as its neighbor
    PADDED = 8  # the series is shorter than one window


@dataclass(frozen=True, eq=False)
class Retrieval:
    """The nearest windows of every window of one series, and its support (Eq. 1).

    Attributes
    ----------
    similarity
        s_k^(j): ``(n_windows, n_neighbors)``, best first, NaN where there is no neighbor.
    neighbors
        N_k: ``(n_windows, n_neighbors)`` window indices, -1 where there is none.
    support
        s̄_k: ``(n_windows,)`` mean similarity of the neighbors that exist. 0 for a flat window, NaN for a
        window that touches non-finite samples. A lonely window borrows the mean support of the windows that
        have neighbors; if none has, all supports are 0.
    starts
        ``(n_windows,)`` first sample of each window.
    flags
        ``(n_windows,)`` sums of `WindowFlag`.
    space
        ``"signal"`` where windows themselves were compared, ``"features"`` where given vectors were.
    bank
        Which windows could be neighbors: ``"series"`` all, ``"local"`` those near the query, ``"sampled"`` some
        stretches of the series, ``"indices"`` those that the caller named.
    bank_size
        Windows of a local or sampled bank; 0 where nothing was bounded.

    The remaining attributes are the settings used. All arrays are read-only.
    """

    similarity: NDArray[np.float64]
    neighbors: NDArray[np.int64]
    support: NDArray[np.float64]
    starts: NDArray[np.int64]
    flags: NDArray[np.uint8]
    window_length: int
    stride: int
    measure: str
    n_neighbors: int
    exclusion: int
    spread: int
    space: str
    bank: str = "series"
    bank_size: int = 0

    def __post_init__(self) -> None:
        for array in (self.similarity, self.neighbors, self.support, self.starts, self.flags):
            array.setflags(write=False)

    @property
    def n_windows(self) -> int:
        """How many windows the series has."""
        return len(self.starts)

    @property
    def flat(self) -> NDArray[np.bool_]:
        """``(n_windows,)`` windows without a shape to compare."""
        return (self.flags & WindowFlag.FLAT) != 0

    @property
    def nonfinite(self) -> NDArray[np.bool_]:
        """``(n_windows,)`` windows that touch a sample that is not finite."""
        return (self.flags & WindowFlag.NONFINITE) != 0

    @property
    def lonely(self) -> NDArray[np.bool_]:
        """``(n_windows,)`` finite windows without any neighbor."""
        return (self.flags & WindowFlag.LONELY) != 0

    @property
    def padded(self) -> NDArray[np.bool_]:
        """``(n_windows,)`` true for the one window of a series shorter than it."""
        return (self.flags & WindowFlag.PADDED) != 0

    @property
    def any_neighbors(self) -> bool:
        """Whether any window has a neighbor. If not, weights are uniform and evidence says so."""
        return bool((self.neighbors >= 0).any())

    @property
    def overlaps(self) -> NDArray[np.bool_]:
        """``(n_windows, n_neighbors)`` listed neighbors that share samples with their query."""
        distance = np.abs(self.starts[self.neighbors] - self.starts[:, np.newaxis])
        return (self.neighbors >= 0) & (distance < self.window_length)

    @property
    def overlap_share(self) -> float:
        """Share of all listed neighbors that overlap their query; NaN where none is listed."""
        listed = int((self.neighbors >= 0).sum())
        return float(self.overlaps.sum() / listed) if listed else float("nan")

    def __repr__(self) -> str:
        counts = {
            flag.name.lower(): int(((self.flags & flag) != 0).sum()) for flag in WindowFlag if flag.name
        }
        flagged = "".join(f", {count} {name}" for name, count in counts.items() if count)
        return (
            f"Retrieval({self.n_windows} windows of {self.window_length} at stride {self.stride}, "
            f"{self.measure}, {self.n_neighbors} neighbors{flagged})"
        )
