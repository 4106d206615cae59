"""Bipolar montage: differences of two contacts.

    contacts of recordings (a Series each), names such as AHR3-4 -> bipolar channels (a Series each)

Clinicians mark events on differences of neighbouring contacts, while files hold single contacts. A difference of
series that were scaled one by one would be no voltage between contacts, so it is formed before that.
Next: prepare/preprocessing.py resamples and scales; explain/faithfulness/marks.py reads what was marked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from raxss.data.contacts import electrode_of, poles_of
from raxss.data.names import match_channels
from raxss.data.series import Series, SeriesCollection
from raxss.errors import DataError, RecordingError, join_names

Z_SCORED = "z-score"  # as prepare/preprocessing.py words it


def bipolar(contacts: Sequence[Series], pairs: Iterable[str]) -> SeriesCollection:
    """The first contact of each pair minus the second, for every recording and segment that has both.

    Parameters
    ----------
    contacts
        Single contacts, each with ``origin["channel"]`` or a name that ends in ``:channel``.
    pairs
        Names: ``AHR3-4`` and ``AHR3-AHR4`` are the same one. Series keep the name as it is given here.

    Examples
    --------
    >>> contacts = [Series([5.0, 7.0], name=f"night:{name}", origin={"channel": name}) for name in ("AD1", "AD2")]
    >>> (made,) = bipolar(contacts, ["AD1-2"])
    >>> made.name, made.samples.tolist(), dict(made.origin)
    ('night:AD1-2', [[0.0, 0.0]], {'electrode': 'AD', 'channel': 'AD1-2'})
    """
    wanted = list(dict.fromkeys(pairs))
    for name in wanted:
        if len(poles_of(name)) != 2:
            raise DataError(
                f"{name!r} is no pair of contacts; needed are names such as 'AHR3-4' or 'AHR3-AHR4'."
            )
    recordings: dict[tuple[str, float], list[Series]] = {}
    for contact in contacts:
        recordings.setdefault((_recording(contact), contact.start_seconds), []).append(contact)
    differences = [_difference(some, name) for some in recordings.values() for name in wanted]
    made = [item for item in differences if item is not None]
    found = {item.origin["channel"] for item in made}
    if lacking := [name for name in wanted if name not in found]:
        raise RecordingError(
            f"no recording has both contacts of {join_names(lacking)}; there are "
            f"{join_names(map(channel_of, contacts))}. Give the recordings that these pairs belong to."
        )
    return SeriesCollection(made)


def channel_of(series: Series) -> str:
    """What the channel of a series is called within its recording.

    >>> channel_of(Series([0.0], name="night:C3")), channel_of(Series([0.0], origin={"channel": "C4"}))
    ('C3', 'C4')
    """
    return series.origin.get("channel", series.name.rpartition(":")[2])


def _recording(series: Series) -> str:
    return series.origin.get("recording", series.name.rpartition(":")[0])


def _difference(contacts: Sequence[Series], pair: str) -> Series | None:
    """None where one of the two contacts is not among these."""
    places = match_channels(poles_of(pair), [channel_of(contact) for contact in contacts])
    if None in places:
        return None
    first, second = (contacts[place] for place in places if place is not None)
    for item in (first, second):
        if Z_SCORED in item.preparation:
            raise DataError(
                f"series {item.name!r} was scaled on its own ({item.preparation!r}), so the difference {pair!r} "
                "would be no voltage. Start from the recording, or prepare it without z-score."
            )
    if (first.rate, first.samples.shape) != (second.rate, second.samples.shape):
        raise DataError(
            f"series {first.name!r} has {first.n_samples} samples at {first.rate:g} Hz and {second.name!r} "
            f"{second.n_samples} at {second.rate:g} Hz; the difference {pair!r} needs the same of both."
        )
    before = _recording(first)
    electrode = first.origin.get("electrode", electrode_of(pair))
    return replace(
        first,
        samples=np.asarray(first.samples, dtype=np.float64) - second.samples,
        label=first.label if first.label == second.label else None,
        name=f"{before}:{pair}" if before else pair,
        gaps_marked=first.gaps_marked or second.gaps_marked,
        origin={**first.origin, "electrode": electrode, "channel": pair},
    )
