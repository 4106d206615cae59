"""Bootstrap interval of a mean over series, by groups.

    values of series, their groups -> mean, with a 95 % interval from draws of groups

Series of one patient are not independent, so groups are resampled, as in studies.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from raxss.metrics import FEWEST_GROUPS, draw_counts

N_RESAMPLES = 2000
SEED = 69421


def mean_interval(values: ArrayLike, groups: Sequence[Hashable]) -> tuple[float, float, float]:
    """Mean, and the 2.5th and 97.5th percentile over draws of groups; values that do not exist are left out.

    Examples
    --------
    >>> mean, low, high = mean_interval([0.1, 0.2, 0.3, 0.1, 0.2, 0.3, np.nan], list("abcdefg"))
    >>> round(mean, 6), 0.1 < low < 0.2 < high < 0.3
    (0.2, True)
    >>> mean_interval([0.5, 0.7], ["a", "b"])  # too few groups
    (0.6, nan, nan)
    """
    numbers = np.asarray(values, dtype=np.float64)
    kept = np.isfinite(numbers)
    numbers = numbers[kept]
    if not len(numbers):
        return np.nan, np.nan, np.nan
    names = {group: place for place, group in enumerate(dict.fromkeys(groups))}
    places = np.array([names[group] for group in groups])[kept]
    _, places = np.unique(places, return_inverse=True)
    n = int(places.max()) + 1
    mean = float(numbers.mean())
    if n < FEWEST_GROUPS:
        return mean, np.nan, np.nan
    sums, counts = np.bincount(places, numbers, n), np.bincount(places, minlength=n)
    drawn = draw_counts(n, N_RESAMPLES, np.random.default_rng(SEED))
    means = (drawn @ sums) / (drawn @ counts)
    low, high = np.percentile(means, [2.5, 97.5])
    return mean, float(low), float(high)
