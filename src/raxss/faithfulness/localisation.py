"""Does evidence lie where something is known to have happened?

    Judgement, events in samples -> truth (n_samples,) -> area under the precision-recall curve, base rate

Where events are: `raxss.recordings.synthetic.make_motif_series` knows what it planted; for recordings marks.py
reads a table of events. Contributions to a class count, spread over samples, so that
evidence may be no finer than its windows and still be found.
Next: marks.py, and beside_marks.py, which asks what else would have found them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score

from raxss.faithfulness.subject import Judgement

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Found:
    """How well one series' evidence finds its events.

    Attributes
    ----------
    area
        Under the precision-recall curve (average precision) of contributions, over samples.
    base_rate
        Share of the samples that lie in an event: the area of an order at random.
    by_weight, by_posterior
        The same of weights alone (None where they are equal) and of posteriors alone.
    """

    area: float
    base_rate: float
    by_weight: float | None
    by_posterior: float


def located(judged: Judgement, truth: NDArray[np.bool_], class_: int) -> Found | None:
    """Compare evidence for a class with the truth; None where all or no samples lie in events.

    Examples
    --------
    >>> from raxss import Series
    >>> judged = Judgement(series=Series(np.zeros(4)), starts=np.array([0, 2]), window_length=2,
    ...                    posteriors=np.array([[0.9, 0.1], [0.3, 0.7]]), weights=np.array([0.5, 0.5]),
    ...                    probability=np.array([0.6, 0.4]))
    >>> located(judged, np.array([False, False, True, True]), 1).area
    1.0
    """
    if truth.all() or not truth.any():
        return None
    told = judged.contributions(class_), judged.centred(class_)
    area, by_posterior = (float(average_precision_score(truth, judged.over_time(one))) for one in told)
    by_weight = None
    if judged.weights_differ:
        by_weight = float(average_precision_score(truth, judged.over_time(judged.weights)))
    return Found(area, float(truth.mean()), by_weight, by_posterior)


def truth_of(events: Sequence[tuple[int, int]], n_samples: int) -> NDArray[np.bool_]:
    """First samples and lengths -> which samples lie in an event.

    >>> truth_of([(1, 2)], 4)
    array([False,  True,  True, False])
    """
    truth = np.zeros(n_samples, dtype=bool)
    for start, length in events:
        truth[max(start, 0) : max(start + length, 0)] = True
    return truth
