"""Localisation: average precision of evidence against known events in time.

    WindowAttribution, events in samples -> truth (n_samples,) -> average precision, and by chance

Where events are: `raxss.data.synthetic.make_motif_series` knows what it planted; for recordings marks.py
reads a table of events. Contributions to a class count, spread over samples, so that evidence may be no finer than
its windows and still count. Chance is the mean area with the events moved in time: evidence that is smooth over
seconds lies on events by luck more often than samples in a random order do.
Next: marks.py reads marked events; localisation_baselines.py compares with plain detectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raxss.explain.faithfulness.model_adapter import WindowAttribution

Floats = NDArray[np.float64]
Truth = NDArray[np.bool_]
MOST_SHIFTS, FEWEST_SHIFTS = 256, 16  # of events in time
SAMPLES_SHIFTED = 2**26  # of all shifts together, where that leaves enough of them
SAMPLES_SUMMED = 2**22  # at once


@dataclass(frozen=True)
class Found:
    """How well one series' evidence finds its events.

    Attributes
    ----------
    area
        Under the precision-recall curve (average precision) of contributions, over samples.
    chance
        Mean of that area with the events moved along the series, in a circle, as it goes for evidence as smooth.
    base_rate
        Share of the samples that lie in an event: the area of an order of samples at random.
    by_weight, by_posterior
        The same of weights alone (None where they are equal) and of posteriors alone.
    """

    area: float
    chance: float
    base_rate: float
    by_weight: float | None
    by_posterior: float


def located(attribution: WindowAttribution, truth: NDArray[np.bool_], class_: int) -> Found | None:
    """Compare evidence for a class with the truth; None where all or no samples lie in events.

    Examples
    --------
    >>> from raxss import Series
    >>> attribution = WindowAttribution(series=Series(np.zeros(4)), starts=np.array([0, 2]), window_length=2,
    ...                    posteriors=np.array([[0.9, 0.1], [0.3, 0.7]]), weights=np.array([0.5, 0.5]),
    ...                    probability=np.array([0.6, 0.4]))
    >>> located(attribution, np.array([False, False, True, True]), 1).area
    1.0
    """
    if truth.all() or not truth.any():
        return None
    contributions = attribution.over_time(attribution.contributions(class_))
    n_shifts = min(max(SAMPLES_SHIFTED // len(truth), FEWEST_SHIFTS), MOST_SHIFTS)
    shifts = np.unique(np.linspace(0, len(truth), n_shifts, endpoint=False).astype(int))
    area, *moved = average_precisions(contributions, moved_in_time(truth, shifts)).tolist()
    (by_posterior,) = average_precisions(
        attribution.over_time(attribution.centred(class_)), truth[None]
    ).tolist()
    by_weight = None
    if attribution.weights_differ:
        (by_weight,) = average_precisions(attribution.over_time(attribution.weights), truth[None]).tolist()
    return Found(area, float(np.mean(moved)), float(truth.mean()), by_weight, by_posterior)


def moved_in_time(truth: Truth, shifts: NDArray[np.int64]) -> Truth:
    """The truth, moved along the series in a circle by so many samples: ``(n_shifts, n_samples)``.

    >>> moved_in_time(np.array([True, False, False]), np.arange(3))
    array([[ True, False, False],
           [False,  True, False],
           [False, False,  True]])
    """
    return np.stack([np.roll(truth, shift) for shift in shifts])


def average_precisions(scores: Floats, truths: Truth) -> Floats:
    """The area under the precision-recall curve of one score against many truths, samples of equal score together.

    Parameters
    ----------
    scores
        ``(n_samples,)``.
    truths
        ``(k, n_samples)``, each with at least one True.

    Returns
    -------
    ``(k,)``, each as `sklearn.metrics.average_precision_score` has it.

    Examples
    --------
    >>> average_precisions(np.array([0.9, 0.1, 0.5]), np.array([[True, False, False], [False, True, False]]))
    array([1.        , 0.33333333])
    """
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    last = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)  # of each score's samples
    found = []
    at_once = max(SAMPLES_SUMMED // len(scores), 1)
    for first in range(0, len(truths), at_once):
        hits = np.cumsum(truths[first : first + at_once, order], axis=1)[:, last].astype(np.float64)
        gained = np.diff(hits, axis=1, prepend=0.0) / hits[:, -1:]
        found.append((gained * hits / (last + 1.0)).sum(axis=1))
    return np.concatenate(found)


def truth_of(events: Sequence[tuple[int, int]], n_samples: int) -> NDArray[np.bool_]:
    """First samples and lengths -> which samples lie in an event.

    >>> truth_of([(1, 2)], 4)
    array([False,  True,  True, False])
    """
    truth = np.zeros(n_samples, dtype=bool)
    for start, length in events:
        truth[max(start, 0) : max(start + length, 0)] = True
    return truth
