"""Weights of the members of a mixture: the largest likelihood of series that the members were not fitted on.

    posteriors of windows by each member (n_members, n, C), true classes, series -> weights (n_members,)

Next: mixture.py uses them for its members, disturbed_members.py for those of disturbed windows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raxss.method.backbones.window_classifiers import Floats

PRIOR = 2.0  # series that each member has explained before any was seen
LEAST_LIKELIHOOD = 1e-3  # of a series, so that one that a member gets entirely wrong does not decide alone


def mixture_weights(
    posteriors: Floats,  # (n_members, n, C) of windows
    targets: NDArray[np.int64],  # (n,)
    series: NDArray[np.int64],  # (n,)
    weights: Floats | None = None,  # (n,) class weights, equal within a series; None: 1
    *,
    n_rounds: int = 200,
) -> Floats:  # (n_members,)
    """Weights of the members with the largest likelihood of the series, by expectation maximisation.

    With l_ms, the mean posterior of the true class over the windows of series s by member m, and the class weights
    c_s, a round is

        r_ms = w_m l_ms / sum over m of w_m l_ms,    w_m = (sum over s of c_s r_ms + PRIOR) / total

    Each member starts out as if it had explained `PRIOR` series, so that few series move the weights little.

    >>> right, wrong = np.array([[0.9, 0.1]] * 40), np.array([[0.2, 0.8]] * 40)
    >>> mixture_weights(np.stack([right, wrong]), np.zeros(40, dtype=int), np.arange(40)).round(2)
    array([0.94, 0.06])
    """
    _, first, place = np.unique(series, return_index=True, return_inverse=True)
    own = posteriors[:, np.arange(len(targets)), targets]
    means = np.stack([np.bincount(place, weights=row) for row in own]) / np.bincount(place)
    likelihood = np.clip(means, LEAST_LIKELIHOOD, None)  # (n_members, n_series)
    count = np.ones(len(first)) if weights is None else weights[first]
    found = np.full(len(posteriors), 1 / len(posteriors))
    for _ in range(n_rounds):
        share = found[:, None] * likelihood
        share /= share.sum(axis=0)
        found = share @ count + PRIOR
        found /= found.sum()
    return found
