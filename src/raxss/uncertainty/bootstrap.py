"""Bootstrap interval of a series score: a block bootstrap over the windows of the series.

    weights (n_windows,), contributions (n_windows, C), starts (n_windows,) -> Interval: low (C,), high (C,)

Windows that start within one stretch of L samples are drawn together, with replacement, because they overlap
and have nearly the same posterior; the weights of each draw are normalised to sum to 1. The interval shows how
much the score depends on which stretches of the recording there were, not whether the network is right. Series
scores calibrated by Venn-Abers have an interval of another kind (calibration/maps.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raxss.metrics import draw_counts

N_DRAWS = 1000
LEVEL = 0.95
FEWEST_BLOCKS = 5  # fewer can be drawn in too few ways
MOST_BLOCKS = 2000  # longer series have longer blocks, not more
SEED = 69421  # fixed: the interval of a series does not depend on what else is predicted
BOOTSTRAP, VENN_ABERS = "block bootstrap over windows", "Venn-Abers"


@dataclass(frozen=True, eq=False)
class Interval:
    """Interval of the probability of each class; of Venn-Abers a pair of which one probability is calibrated."""

    low: NDArray[np.float64]  # (C,)
    high: NDArray[np.float64]  # (C,)
    method: str  # "block bootstrap over windows" or "Venn-Abers"
    level: float | None  # share of the draws within it; None for Venn-Abers

    def to_json(self) -> dict[str, Any]:
        """As a dict of plain types."""
        return vars(self) | {"low": self.low.tolist(), "high": self.high.tolist()}


def bootstrap_interval(
    weights: NDArray[np.float64],  # (n_windows,) alpha_k
    contributions: NDArray[np.float64],  # (n_windows, C) alpha_k times the posterior of the window
    starts: NDArray[np.int64],  # (n_windows,) first samples
    *,
    window_length: int,
    after: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
) -> Interval | None:
    """The middle 95 % of the scores of 1000 draws of blocks of windows; None for fewer than 5 blocks.

    Windows of neighbouring blocks still overlap, and a recording is seldom stationary, so the interval is rather
    too narrow than too wide. ``after`` is a calibration of series scores ``(n, C)``, applied to each draw.
    """
    blocks = (starts - starts.min()) // window_length
    if blocks.max() >= MOST_BLOCKS:
        blocks = blocks * MOST_BLOCKS // (blocks.max() + 1)
    parts = np.column_stack([weights, contributions])
    sums = np.zeros((int(blocks.max()) + 1, parts.shape[1]))
    np.add.at(sums, blocks, parts)
    sums = sums[sums[:, 0] > 0]  # a draw of blocks without weight would have no score
    if len(sums) < FEWEST_BLOCKS:
        return None
    drawn = draw_counts(len(sums), N_DRAWS, np.random.default_rng(SEED)) @ sums
    scores = drawn[:, 1:] / drawn[:, :1]
    if after is not None:
        scores = after(scores)
    low, high = np.quantile(scores, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return Interval(low, high, BOOTSTRAP, LEVEL)
