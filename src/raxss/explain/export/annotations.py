"""Export of the strongest windows to MNE annotations.

    Evidence of one or several channels -> mne.Annotations: one a window, on its channel

`raw.set_annotations` takes them, and MNE writes them to FIF or EDF.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from raxss.data.names import match_channels
from raxss.data.training_overlap import MARKED, MARKS
from raxss.errors import DataError, MissingExtraError, display_name, join_names
from raxss.explain.escape import plain
from raxss.explain.evidence import Evidence
from raxss.explain.findings import N_WINDOWS, strongest_apart


def mne_annotations(
    evidence: Evidence | Iterable[Evidence],
    *,
    n_windows: int = N_WINDOWS,
    class_: Any = None,
    raw: Any = None,
) -> Any:
    """The strongest windows as ``mne.Annotations``, such as ``raxss/soz p=0.93 rank 1``.

    A mark in brackets follows where the model was fitted on the channel. Without ``raw`` there is no ``orig_time``:
    onsets count from the first sample of the recording, as ``raw.set_annotations`` takes them. A series of several
    variates marks all channels.

    Parameters
    ----------
    evidence
        Of one series, or of several channels of one recording.
    n_windows
        Of each channel; those that add most and do not overlap.
    class_
        By default the predicted one of each channel.
    raw
        The ``mne.io.Raw`` that they are for. Channels then have its names (``POL G1`` for ``G1``) and times its
        date, so that they can be added to its own: ``raw.set_annotations(raw.annotations + these)``. Crop it
        afterwards: its first sample must be that of the explained recording.

    Examples
    --------
    >>> import numpy as np
    >>> from raxss.method.aggregation import aggregate
    >>> from raxss.explain import trace
    >>> from raxss.data.series import Series
    >>> from raxss.method.retrieval import retrieve
    >>> from raxss.method.windows import windows_of
    >>> series = Series(np.sin(np.arange(24.0)), rate=4, name="run:C3", origin={"channel": "C3"})
    >>> found = retrieve(series.samples, window_length=8, stride=4, n_neighbors=2)
    >>> prediction = aggregate(np.tile([0.2, 0.8], (5, 1)), found.support, temperature=0.1)
    >>> windows = windows_of(series, window_length=8, stride=4)
    >>> marks = mne_annotations(trace(series, windows, found, prediction, classes=["rest", "sine"]), n_windows=1)
    >>> marks.description.tolist(), marks.duration.tolist(), marks.ch_names.tolist()
    (['raxss/sine p=0.80 rank 1'], [2.0], [('C3',)])
    """
    try:
        from mne import Annotations
    except ImportError as error:
        raise MissingExtraError(
            "annotations for MNE need the package mne, which is not installed. Install it with: pip install "
            "'raxss[bids]'"
        ) from error
    several = [evidence] if isinstance(evidence, Evidence) else list(evidence)
    date = None if raw is None else raw.info["meas_date"]
    start = 0.0 if date is None else raw.first_time  # MNE counts from the date, before the first sample
    onsets, durations, descriptions, channels = [], [], [], []
    for item, channel in zip(several, _channels(several, raw), strict=True):
        name = plain(item.class_named(class_), 40)
        seen = f" ({MARKS[item.seen_in_training]})" if item.seen_in_training in MARKED else ""
        for row in strongest_apart(item, n_windows, class_).to_dict("records"):
            onsets.append(start + row["start_s"])
            durations.append(row["end_s"] - row["start_s"])
            descriptions.append(f"raxss/{name} p={row['probability']:.2f} rank {row['rank']}{seen}")
            channels.append(channel)
    return Annotations(onsets, durations, descriptions, orig_time=date, ch_names=channels or None)


def _channels(evidence: Sequence[Evidence], raw: Any) -> list[tuple[str, ...]]:
    """Channel of each series as ``raw`` spells it; an empty tuple, which MNE reads as all, for several channels."""
    own = ["" if item.series is None else item.series.origin.get("channel", "") for item in evidence]
    if raw is None:
        return [(name,) if name else () for name in own]
    names = list(dict.fromkeys(name for name in own if name))  # stretches of one channel share its name
    places = dict(zip(names, match_channels(names, raw.ch_names), strict=True))
    if lost := [name for name, place in places.items() if place is None]:
        raise DataError(
            f"{len(lost)} of {len(names)} channels have no certain partner in raw.ch_names: "
            f"{join_names(map(display_name, lost), 5)}. Give the recording that was explained."
        )
    at = {name: place for name, place in places.items() if place is not None}
    return [(raw.ch_names[at[name]],) if name else () for name in own]
