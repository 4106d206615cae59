"""Split conformal prediction: sets of classes that cannot be ruled out.

The score is LAC's (Sadinle et al., 2019), which has the smallest sets: a class stays in the set unless it is
less likely than the true class was in all but a share alpha of the validation series. If a new series is
exchangeable with those, its set holds the true class with probability 1 - alpha at least, whatever the network
is. A set of several classes, or of none, is a reason to abstain. The guarantee is on average over validation
sets; with few series, or few groups whose series are alike, the coverage of one of them may lie some way off.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raxss.errors import ConfigError

ROUNDING = 1e-9  # of (n + 1)(1 - alpha), which is often a whole number that floats miss


def nonconformity(probabilities: ArrayLike, targets: ArrayLike) -> NDArray[np.float64]:
    """1 - p of the true class, ascending, ``(n,)``."""
    values, classes = np.asarray(probabilities, dtype=np.float64), np.asarray(targets, dtype=np.int64)
    return np.sort(1.0 - values[np.arange(len(values)), classes])


def conformal_threshold(scores: ArrayLike, alpha: float) -> float:
    """The ⌈(n + 1)(1 - alpha)⌉-th smallest score; infinite (sets of all classes) where there are fewer scores.

    >>> conformal_threshold([0.1, 0.2, 0.3, 0.8], 0.25), conformal_threshold([0.1, 0.2, 0.3, 0.8], 0.1)
    (0.8, inf)
    """
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha is {alpha!r}; a number above 0 and below 1 is needed.")
    ordered = np.sort(np.asarray(scores, dtype=np.float64))
    rank = math.ceil((len(ordered) + 1) * (1 - alpha) - ROUNDING)
    return float(ordered[rank - 1]) if rank <= len(ordered) else math.inf


def fewest_series(alpha: float) -> int:
    """How many validation series are needed before a set can leave a class out."""
    return math.ceil((1 - alpha) / alpha - ROUNDING)


def prediction_sets(probabilities: ArrayLike, threshold: float) -> NDArray[np.bool_]:
    """The classes whose 1 - p is not above the threshold."""
    sets: NDArray[np.bool_] = 1.0 - np.asarray(probabilities, dtype=np.float64) <= threshold
    return sets
