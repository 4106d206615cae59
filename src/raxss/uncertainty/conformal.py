"""Which classes can not be ruled out?

    1 - p of the true class of series not learned from (n,), alpha -> threshold
    probabilities (n_series, C), threshold                         -> sets (n_series, C) of bool

Split conformal prediction: a class stays in the set unless it is less likely than the true class was in all but a
share alpha of the series that were tried. If a new series is like those (exchangeable with them), its set holds the
true class with probability 1 - alpha at least, whatever the network is. A set of one class is an answer; one of
several, or of none, is a reason to abstain. That is so on average over trials; of one trial on few series, or on
few groups whose series are alike, the share may lie some way off. The score is LAC's (Sadinle et al., 2019), which
has the smallest sets.
Next: validation.py keeps the scores of the series that were tried.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raxss.errors import ConfigError

ROUNDING = 1e-9  # of (n + 1)(1 - alpha), which is a whole number more often than floats say


def nonconformity(probabilities: ArrayLike, targets: ArrayLike) -> NDArray[np.float64]:
    """How unlikely the true class was: 1 - p_y, ascending, ``(n,)``.

    >>> nonconformity([[0.9, 0.1], [0.4, 0.6]], [0, 0]).round(3)
    array([0.1, 0.6])
    """
    values, classes = np.asarray(probabilities, dtype=np.float64), np.asarray(targets, dtype=np.int64)
    return np.sort(1.0 - values[np.arange(len(values)), classes])


def conformal_threshold(scores: ArrayLike, alpha: float) -> float:
    """The score that a share 1 - alpha of new series stays below: the ⌈(n + 1)(1 - alpha)⌉-th smallest.

    Infinite where there are fewer scores than that, so that every set holds every class.

    Examples
    --------
    >>> conformal_threshold([0.1, 0.2, 0.3, 0.8], 0.25), conformal_threshold([0.1, 0.2, 0.3, 0.8], 0.1)
    (0.8, inf)
    """
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha is {alpha!r}; a number above 0 and below 1 is needed.")
    ordered = np.sort(np.asarray(scores, dtype=np.float64))
    rank = math.ceil((len(ordered) + 1) * (1 - alpha) - ROUNDING)
    return float(ordered[rank - 1]) if rank <= len(ordered) else math.inf


def fewest_series(alpha: float) -> int:
    """How many series must have been tried before a set can leave a class out.

    >>> fewest_series(0.1), fewest_series(0.05)
    (9, 19)
    """
    return math.ceil((1 - alpha) / alpha - ROUNDING)


def prediction_sets(probabilities: ArrayLike, threshold: float) -> NDArray[np.bool_]:
    """The classes whose 1 - p is not above the threshold.

    >>> prediction_sets([[0.9, 0.1], [0.5, 0.5]], 0.6)
    array([[ True, False],
           [ True,  True]])
    """
    sets: NDArray[np.bool_] = 1.0 - np.asarray(probabilities, dtype=np.float64) <= threshold
    return sets
