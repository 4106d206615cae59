"""Values of windows over time: spread over samples, averaged over stretches, compared by rank.

    values of windows (n_windows,) -> samples (n_samples,) -> stretches (n_stretches,)

A sample has the mean of the windows that cover it; stretches, which do not overlap, are replaced and compared.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Floats = NDArray[np.float64]
TOP_SHARE = 0.1  # of the stretches: those that a reader looks at first


def spread(
    values: Floats,  # (n_windows,)
    starts: NDArray[np.int64],  # (n_windows,)
    *,
    window_length: int,
    n_samples: int,
) -> Floats:  # (n_samples,)
    """The mean of the windows that cover each sample; 0 where none does."""
    ends = np.minimum(starts + window_length, n_samples)
    total, count = np.zeros(n_samples + 1), np.zeros(n_samples + 1)
    for change, place, sign in ((total, starts, values), (total, ends, -values)):
        np.add.at(change, place, sign)
    np.add.at(count, starts, 1.0)
    np.add.at(count, ends, -1.0)
    covered = np.cumsum(count)[:-1]
    return np.where(covered > 0, np.cumsum(total)[:-1] / np.maximum(covered, 1.0), 0.0)


def stretch_edges(n_samples: int, length: int) -> NDArray[np.int64]:
    """First sample of each stretch, and the end; what is left over makes the last one longer.

    >>> stretch_edges(10, 3)
    array([ 0,  3,  6, 10])
    """
    n = max(n_samples // length, 1)
    return np.append(np.arange(n, dtype=np.int64) * length, n_samples)


def stretch_length(n_samples: int, window_length: int) -> int:
    """Samples of a stretch: an eighth of a window, where that makes 10 to 40 stretches of the series.

    Finer than the windows, because they overlap; long enough that replacing one changes something, and few enough
    that each can be tried.

    >>> stretch_length(4096, 1024), stretch_length(600, 1024), stretch_length(100_000, 1024)
    (128, 60, 2500)
    """
    return max(min(max(window_length // 8, -(-n_samples // 40)), n_samples // 10), 1)


def over_stretches(values: Floats, edges: NDArray[np.int64]) -> Floats:
    """Mean of values ``(n_samples,)`` over each stretch, ``(n_stretches,)``."""
    return np.add.reduceat(values, edges[:-1]) / np.diff(edges)


def rank_correlation(first: Floats, second: Floats) -> float:
    """Spearman's; 0 where one of them is the same everywhere, because then it orders nothing.

    >>> rank_correlation(np.array([1.0, 2.0, 9.0]), np.array([0.1, 0.2, 0.3]))
    1.0
    >>> rank_correlation(np.array([1.0, 2.0, 9.0]), np.zeros(3))
    0.0
    """
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.round(np.corrcoef(rankdata(first), rankdata(second))[0, 1], 12))


def top_overlap(first: Floats, second: Floats, share: float = TOP_SHARE) -> float:
    """Which part of the top of one is in the top of the other; by chance it is ``share``.

    >>> top_overlap(np.arange(20.0), np.arange(20.0)), top_overlap(np.arange(20.0), -np.arange(20.0))
    (1.0, 0.0)
    """
    n = max(round(share * len(first)), 1)
    tops = [set(np.argsort(-item, kind="stable")[:n].tolist()) for item in (first, second)]
    return len(tops[0] & tops[1]) / n
