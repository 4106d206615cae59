"""How far would a score go if other stretches of the same recording had been seen?

    weights (n_windows,), contributions (n_windows, C), starts (n_windows,) -> Interval: low (C,), high (C,)

A block bootstrap: windows that start within one stretch of L samples are drawn together, with replacement,
because they overlap and say nearly the same; the weights of each draw are made to sum to 1 again. The interval
is about the recording, not about the class: it says how much the score depends on which stretches there were,
and nothing of whether the network is right. A model whose series scores are calibrated by Venn-Abers has an
interval of the other kind (calibration/venn_abers.py). Next: explain/series_evidence.py shows either, by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from raxss.metrics import draw_counts

N_DRAWS = 1000
LEVEL = 0.95
FEWEST_BLOCKS = 5  # fewer can be drawn in too few ways
MOST_BLOCKS = 2000  # of a longer series stretches go together: blocks get longer, not more
SEED = 69421  # one for all: the same windows have the same interval, whatever else is predicted
BOOTSTRAP, VENN_ABERS = "block bootstrap over windows", "Venn-Abers"


@dataclass(frozen=True, eq=False)
class Interval:
    """Where the probability of each class may lie.

    Attributes
    ----------
    low, high
        ``(C,)`` each.
    method
        ``"block bootstrap over windows"`` or ``"Venn-Abers"``.
    level
        Share of the draws within it; None for Venn-Abers, which has none: it is a pair of probabilities of which
        one is calibrated.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    method: str
    level: float | None

    def to_json(self) -> dict[str, Any]:
        """In plain types."""
        told = {"low": self.low.tolist(), "high": self.high.tolist()}
        return told | {"method": self.method, "level": self.level}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read back what `to_json` gave."""
        low, high = (np.array(value[name], dtype=np.float64) for name in ("low", "high"))
        return cls(low, high, str(value["method"]), value["level"])


def bootstrap_interval(
    weights: NDArray[np.float64],  # (n_windows,)
    contributions: NDArray[np.float64],  # (n_windows, C)
    starts: NDArray[np.int64],  # (n_windows,)
    *,
    window_length: int,
    after: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
) -> Interval | None:
    """The middle 95 % of the scores of 1000 draws of blocks of windows; None where there are fewer than 5 blocks.

    Parameters
    ----------
    weights, contributions
        alpha_k, and alpha_k times what the window says.
    starts
        First sample of each window.
    after
        What is done to scores ``(n, C)`` when they have been added up: a calibration of series.

    Notes
    -----
    Windows of neighbouring blocks still overlap, and a recording is seldom stationary, so the interval is rather
    too narrow than too wide.

    Examples
    --------
    Ten stretches, of which every second says yes.

    >>> starts = np.arange(0, 10_000, 100)
    >>> weights = np.full(100, 0.01)
    >>> yes = (starts // 1000) % 2
    >>> said = weights[:, None] * np.stack([1 - yes, yes], axis=1)
    >>> interval = bootstrap_interval(weights, said, starts, window_length=1000)
    >>> interval.low.round(1), interval.high.round(1)
    (array([0.2, 0.2]), array([0.8, 0.8]))
    """
    blocks = (starts - starts.min()) // window_length
    if blocks.max() >= MOST_BLOCKS:
        blocks = blocks * MOST_BLOCKS // (blocks.max() + 1)
    parts = np.column_stack([weights, contributions])
    sums = np.zeros((int(blocks.max()) + 1, parts.shape[1]))
    np.add.at(sums, blocks, parts)
    sums = sums[sums[:, 0] > 0]  # the others count for nothing, and a draw of them alone for less
    if len(sums) < FEWEST_BLOCKS:
        return None
    counts = draw_counts(len(sums), N_DRAWS, np.random.default_rng(SEED))
    drawn = counts @ sums
    scores = drawn[:, 1:] / drawn[:, :1]
    if after is not None:
        scores = after(scores)
    low, high = np.quantile(scores, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return Interval(low, high, BOOTSTRAP, LEVEL)
