"""Does evidence lie where something is known to have happened?

    Judgement, events in samples -> truth (n_samples,) -> area under the precision-recall curve, base rate

Where events are: `raxss.recordings.synthetic.make_motif_series` knows what it planted; for recordings a table of
marked events (onset, duration, channel) does. Contributions to a class count, spread over samples, so that
evidence may be no finer than its windows and still be found.
Next: retrieval_control.py and network_control.py destroy what evidence should depend on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score

from raxss.errors import DataError, listed, shown
from raxss.faithfulness.subject import Judgement
from raxss.recordings.series import Series

Floats = NDArray[np.float64]
ONSET, DURATION, CHANNEL = ("onset", "duration", ("channels", "channel", "name"))


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


def read_marks(path: Path | str, series: Sequence[Series]) -> dict[str, NDArray[np.bool_]]:
    """Marked events of a tab-separated table -> truth by name of series, for those series that have any.

    Needed are the columns ``onset`` and ``duration`` in seconds of the recording, and ``channels``, ``channel`` or
    ``name``. A series is meant by its channel, or by its whole name.

    Examples
    --------
    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "marks.tsv"
    >>> _ = place.write_text("onset\\tduration\\tlabel\\tchannels\\n0.2\\t0.1\\thfo\\tC3\\n")
    >>> read_marks(place, [Series(np.zeros(5), rate=10.0, name="night:C3", origin={"channel": "C3"})])
    {'night:C3': array([False, False,  True, False, False])}
    """
    try:
        table = pd.read_csv(path, sep="\t", encoding="utf-8-sig", dtype=str)
    except (OSError, ValueError) as error:
        raise DataError(
            f"the marks {shown(path)} cannot be read ({error}); a tab-separated table is needed."
        ) from error
    channel = next((name for name in CHANNEL if name in table), None)
    if channel is None or ONSET not in table or DURATION not in table:
        raise DataError(
            f"the marks {shown(path)} have the columns {listed(map(str, table.columns))}; needed are 'onset', "
            "'duration' and one of 'channels', 'channel', 'name'."
        )
    times = table[[ONSET, DURATION]].apply(pd.to_numeric, errors="coerce")
    found: dict[str, NDArray[np.bool_]] = {}
    for one in series:
        names = {one.name, one.origin.get("channel", one.name), one.name.rpartition(":")[2]}
        own = times[table[channel].isin(names)].dropna()
        events = [
            (round((onset - one.start_seconds) * one.rate), max(round(duration * one.rate), 1))
            for onset, duration in own.to_numpy()
        ]
        truth = truth_of(events, one.n_samples)
        if truth.any():
            found[one.name] = truth
    if not found:
        known = table[channel].dropna().unique()
        raise DataError(
            f"none of the {len(series)} series ({listed(one.name for one in series)}) has a mark in {shown(path)}, "
            f"which is about {listed(map(str, known))}. Give marks of these recordings."
        )
    return found
