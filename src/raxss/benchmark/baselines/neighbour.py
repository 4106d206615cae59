"""One nearest neighbour by dynamic time warping in a band, on whole series padded with zeros: aeon's distances.

    series of any length -> (n_series, n_variates, L), L the longest of training
        -> distances to every training series -> the nearest of each class -> series probabilities (n_series, C)

The oldest peer, and the slowest: time grows with the number of pairs and the square of the length. A few pairs are
timed first, and what would take too long is not begun. Next: statistics_forest.py.
"""

from __future__ import annotations

import time
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from raxss._core.settings import at_least
from raxss.benchmark.baselines.common import Baseline, Given, first_samples, longest_of, needs_aeon
from raxss.benchmark.baselines.rocket import left_no_trace
from raxss.data.series import Series
from raxss.errors import ConfigError, TooSlowError

PAIRS = 3  # that are timed, or four times as many, and so on, until
SECONDS = 0.3  # were needed for them, beside which a call is nothing
TIMED = 1000  # samples of them: a pair of long series takes gigabytes
TINY = 1e-12  # beside a distance: two classes may both have an equal series


@dataclass(eq=False, repr=False)
class NeighbourClassifier(Baseline):
    """The class of the nearest training series by dynamic time warping. Needs aeon.

    Probabilities go with one over the distance to the nearest series of a class, so that the most probable class is
    that of the nearest of all, and series can be ranked. They depend on the training series alone, not on a seed.

    Parameters
    ----------
    band
        How far two series may be shifted against each other (Sakoe and Chiba), as a share of the length.
    most_seconds
        `predict_proba` raises TooSlowError where its distances would take longer, by a few that are timed. A call
        is one fold of a study.
    device
        As of the other estimators; all is done on the CPU.
    random_state
        As of the other estimators; nothing here depends on it.

    Attributes
    ----------
    classes_, padded_, targets_, window_length_
    """

    band: float = 0.1
    _: KW_ONLY
    most_seconds: float = 600.0

    def _check_parameters(self) -> None:
        at_least("most_seconds", self.most_seconds, 0, whole=False)
        if not 0 <= self.band <= 1:
            raise ConfigError(f"band is {self.band}; needed is a share of the length, from 0 to 1.")

    def _learn(self, given: Given) -> None:
        self.window_length_ = longest_of(given.series)
        self.padded_ = first_samples(given.series, self.window_length_).astype(np.float64)
        self.targets_ = given.targets

    def _probabilities(self, series: list[Series]) -> NDArray[np.float64]:
        padded = first_samples(series, self.window_length_).astype(np.float64)
        self._refuse_slow(padded)
        distances = self._distances(padded, self.padded_)
        each = [distances[:, self.targets_ == k].min(axis=1) for k in range(len(self.classes_))]
        near = 1 / (np.stack(each, axis=1) + TINY)
        return np.asarray(near / near.sum(axis=1, keepdims=True))

    def _refuse_slow(self, padded: NDArray[np.float64]) -> None:
        """Raise TooSlowError if the distances to all training series would take too long."""
        seconds = self.seconds_for(padded)
        if seconds > self.most_seconds:
            n_test, n_train = len(padded), len(self.padded_)
            raise TooSlowError(
                f"nearest neighbours by DTW of {n_test} series among {n_train} would take about "
                f"{seconds / 60:.0f} min here ({n_test * n_train:,} pairs of {self.window_length_:,} samples, "
                f"{1000 * seconds / (n_test * n_train):.3g} ms each, band {self.band:g}); at most "
                f"{self.most_seconds / 60:g} min are allowed. Set most_seconds higher, or leave this out."
            )

    def seconds_for(self, padded: NDArray[np.float64]) -> float:
        """How long the distances of these series to all training series would take.

        By the first samples of a few pairs; time grows with the square of the length.
        """
        n_train, n_pairs = len(self.padded_), min(PAIRS, len(self.padded_))
        length = min(self.window_length_, TIMED)
        one, others = padded[:1, :, :length], self.padded_[:, :, :length]
        self._distances(one, others[:1])  # compiled
        while True:
            some = others[np.linspace(0, n_train - 1, n_pairs).astype(int)]
            began = time.perf_counter()
            self._distances(one, some)
            seconds = time.perf_counter() - began
            if seconds >= SECONDS or n_pairs == n_train:
                break
            n_pairs = min(4 * n_pairs, n_train)
        pair = seconds / n_pairs * (self.window_length_ / length) ** 2
        return pair * len(padded) * n_train / numba.get_num_threads()

    def _distances(self, ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> NDArray[np.float64]:
        """``(n_ours, n_theirs)``; a warped path of all variates together."""
        with needs_aeon("dtw-1nn"), left_no_trace():
            from aeon.distances import dtw_pairwise_distance

            # Both in the order of C: another is compiled anew.
            both = np.ascontiguousarray(ours), np.ascontiguousarray(theirs)
            found: Any = dtw_pairwise_distance(*both, window=self.band, n_jobs=numba.get_num_threads())
        return np.asarray(found)
