"""Tables of BIDS derivatives: rows of channels.tsv and events.tsv, and descriptions of their columns.

    RecordingFindings, rows of the source's channels.tsv -> rows of channels.tsv and events.tsv, their sidecars

Of the source's tables only what cannot name a person is copied.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from raxss._core.atomic import json_ready, without_formula
from raxss._core.version import __version__
from raxss.data.training_overlap import STATES
from raxss.explain.evidence import NOTE
from raxss.explain.findings import N_WINDOWS, ChannelFindings, RecordingFindings
from raxss.uncertainty.bootstrap import BOOTSTRAP, LEVEL, VENN_ABERS

# Columns of channels.tsv that are copied, and what a cell may be. Descriptions, references and columns of
# somebody's own are left out: they are free text, and free text may name a person.
NUMBER = r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"
COPIED = {
    "type": r"[A-Z]{1,12}",
    "units": r"(f|p|n|u|µ|μ|m|c|k|M|G)?(V|T|T/m|S|Hz|s|Pa|g|m|rad|deg|Ohm|Ω|A|oC|°C)(\^?[-0-9/]{1,4})?",
    "low_cutoff": NUMBER,
    "high_cutoff": NUMBER,
    "sampling_frequency": NUMBER,
    "notch": NUMBER,
    "status": "good|bad",
}
A_SHARE = {"Units": "arbitrary", "Minimum": 0, "Maximum": 1}
NEEDED = ("type", "units", "low_cutoff", "high_cutoff")  # by BIDS, in this order


def channel_rows(
    source: Sequence[Mapping[str, str]] | None, findings: RecordingFindings, kind: str
) -> list[dict[str, Any]]:
    """Rows of the source's table with the findings; without one, a row a scored channel of type ``kind``."""
    if source is None:
        source = [{"name": entry.channel, "type": kind} for entry in findings.channels]
    copied = [
        *NEEDED,
        *(name for name in COPIED if name not in NEEDED and any(name in item for item in source)),
    ]
    scored = {
        id(item): _scored_cells(item, rank, findings.classes)
        for rank, item in enumerate(findings.ranked(), start=1)
    }
    unscored = dict.fromkeys(next(iter(scored.values())))
    rows = []
    for cells, found in zip(source, _found_of(source, findings), strict=True):
        row: dict[str, Any] = {"name": cells.get("name", "")}
        row |= {name: _allowed(name, cells.get(name, "")) for name in copied}
        rows.append(row | (unscored if found is None else scored[id(found)]))
    return rows


def _scored_cells(item: ChannelFindings, rank: int, classes: Sequence[Any]) -> dict[str, Any]:
    """Score of a channel and its uncertainty, by column; None where that is not known.

    All columns are always there, so that tables of many recordings can be concatenated. They are those of
    ``raxss predict``, but ``low_`` and ``high_`` have other names: BIDS has a ``low_cutoff``, and a class may be
    called so.
    """
    found = item.evidence
    cells: dict[str, Any] = dict(
        zip(class_columns("probability", classes), found.probability.tolist(), strict=True)
    )
    cells |= {
        "rank": rank,
        "predicted": without_formula(str(found.predicted)),
        "n_windows": item.n_windows,
        "effective_windows": found.effective_windows,
        "seen_in_training": found.seen_in_training,
    }
    interval, held = found.interval, found.prediction_set
    sums = None if found.calibrated_probability is None else found.series_probability
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    for name, values in (("uncalibrated", sums), ("interval_low", low), ("interval_high", high)):
        for place, column in enumerate(class_columns(name, classes)):
            cells[column] = None if values is None else float(values[place])
    cells["interval_method"] = None if interval is None else interval.method
    for class_, column in zip(classes, class_columns("in_set", classes), strict=True):
        cells[column] = None if held is None else class_ in held
    notes = [note.replace(f"series {found.name!r}", "the series") for note in found.notes or ()]
    return cells | {"abstains": found.abstains, "warnings": " ".join(notes)}


def event_rows(findings: RecordingFindings) -> list[dict[str, Any]]:
    """The strongest windows of every channel, in order of time."""
    rows = [
        {
            "onset": row["start_s"],
            "duration": row["end_s"] - row["start_s"],
            "trial_type": f"raxss/{item.evidence.predicted}",
            "channel": item.channel,
            **{name: row[name] for name in ("probability", "weight", "contribution", "rank")},
        }
        for item in findings.channels
        for row in item.windows.to_dict("records")
    ]
    return sorted(rows, key=lambda row: (row["onset"], row["rank"]))


def class_columns(what: str, classes: Sequence[Any]) -> list[str]:
    """Column name of each class: letters, digits and ``_`` alone, each name once."""
    names: list[str] = []
    for class_ in classes:
        slug = re.sub(r"[^A-Za-z0-9]+", "_", str(class_)).strip("_")[:40] or "class"
        name = f"{what}_{slug}"
        number = 2
        while name in names:
            name, number = f"{what}_{slug}_{number}", number + 1
        names.append(name)
    return names


def about_channels(findings: RecordingFindings) -> dict[str, Any]:
    """Descriptions of the columns of channels.tsv that BIDS does not define."""
    classes, alpha = findings.classes, findings.settings.get("conformal_alpha")
    held = "a level that the model does not tell" if alpha is None else f"{100 * (1 - alpha):.4g} %"
    too_short = "n/a where the channel is too short for an interval."
    no_sets = "n/a where the model has no prediction sets."

    def each(what: str, description: str, **more: Any) -> dict[str, Any]:
        columns = zip(class_columns(what, classes), classes, strict=True)
        return {
            column: {"Description": description.format(f"the class '{class_}'"), **more}
            for column, class_ in columns
        }

    return {
        "Description": f"Each channel's probabilities, by raxss {__version__}. {NOTE}",
        **each(
            "probability",
            "Probability of {}: the weighted mean over the channel's windows, calibrated where the model "
            "calibrates scores of channels; of several stretches the one with the highest probability of the class "
            "that channels are ranked by.",
            **A_SHARE,
        ),
        "rank": {
            "Description": f"Rank of the channel by its probability of '{findings.class_}'; 1 is the highest."
        },
        "predicted": {
            "Description": "Class with the highest probability, or by the tuned decision threshold of the model.",
            "Levels": {
                cell_text(without_formula(str(label))): f"the class '{label}' of the model"
                for label in classes
            },
        },
        "n_windows": {"Description": "Number of windows that the channel was cut into."},
        "effective_windows": {
            "Description": "Effective number of windows, 1 / sum of the squared weights: near n_windows all count "
            "alike, near 1 one decides."
        },
        "seen_in_training": {
            "Description": "Whether the model was fitted on this channel, known by its samples, whatever its name. "
            "The score of a channel that the model was fitted on shows what it remembers, not how it does on new "
            "recordings. n/a where the channel was not scored.",
            "Levels": dict(STATES),
        },
        **each(
            "uncalibrated",
            "What the channel's windows add up to for {}, before calibration. n/a where the model does not "
            "calibrate scores of channels: its probability is that sum.",
            **A_SHARE,
        ),
        **each(
            "interval_low", f"Lower end of the interval of the probability of {{}}. {too_short}", **A_SHARE
        ),
        **each(
            "interval_high", f"Upper end of the interval of the probability of {{}}. {too_short}", **A_SHARE
        ),
        "interval_method": {
            "Description": f"What the interval is. {too_short}",
            "Levels": {
                BOOTSTRAP: f"the middle {100 * LEVEL:.3g} % of what other draws of stretches of the same channel "
                "would have said; it tells how much the score depends on which stretches there were, not whether "
                "the network is right",
                VENN_ABERS: "two probabilities of which one is calibrated; the farther they are apart, the less is "
                "known of scores like this one",
            },
        },
        **each(
            "in_set",
            "Whether {} is in the channel's prediction set: it cannot be ruled out. Sets hold the true class in "
            f"{held} of channels or more, if these are like the model's validation set. {no_sets}",
            Levels={"true": "in the set", "false": "ruled out"},
        ),
        "abstains": {
            "Description": f"Whether the prediction set is no answer: it holds several classes, or none. {no_sets}",
            "Levels": {"true": "no answer", "false": "the set holds one class alone"},
        },
        "warnings": {
            "Description": "How the channel is unlike what the model has learned from: its rate, length or "
            "spectrum, or how alike its windows are; and whether its calibration was fitted under other settings. "
            "n/a where nothing was noticed, which does not say that nothing is unlike."
        },
    }


def about_events(findings: RecordingFindings) -> dict[str, Any]:
    """Descriptions of the columns of events.tsv that BIDS does not define."""
    return {
        "Description": "Windows that add most to the predicted class of their channel, at most "
        f"{N_WINDOWS} a channel, none overlapping another of the same channel. {NOTE}",
        "trial_type": {
            "Description": "The class that the window speaks for.",
            "Levels": {cell_text(f"raxss/{label}"): f"for the class '{label}'" for label in findings.classes},
        },
        "channel": {"Description": "Channel that the window is of."},
        "probability": {"Description": "Probability of that class in this window, as it is weighted."},
        "weight": {"Description": "Weight of the window; the weights of all windows of a channel sum to 1."},
        "contribution": {
            "Description": "Weight times probability; over all windows of a channel these sum to its probability, "
            "before calibration where its score is calibrated (uncalibrated_ in the table of channels)."
        },
        "rank": {"Description": "Rank among the listed windows of the channel by contribution; 1 adds most."},
    }


def _found_of(
    source: Sequence[Mapping[str, str]], findings: RecordingFindings
) -> list[ChannelFindings | None]:
    """Findings of each row of the source, None for unscored rows; channels of one name are matched in order."""
    place = findings.classes.index(findings.class_)
    stretches: dict[tuple[str, str], ChannelFindings] = {}  # the best of each channel
    for entry in findings.channels:
        key = entry.channel, re.sub(r"#\d+$", "", entry.evidence.name)
        best = stretches.get(key)
        if best is None or entry.evidence.probability[place] > best.evidence.probability[place]:
            stretches[key] = entry
    by_name: dict[str, list[ChannelFindings]] = {}
    for (channel, _), stretch in stretches.items():
        by_name.setdefault(channel, []).append(stretch)
    good = [cells.get("status", "").lower() != "bad" for cells in source]
    found: list[ChannelFindings | None] = []
    for cells, is_good in zip(source, good, strict=True):
        name = cells.get("name", "")
        rows = [
            item for item, fine in zip(source, good, strict=True) if fine and item.get("name", "") == name
        ]
        channels = by_name.get(name, [])
        certain = is_good and len(rows) == len(channels)
        found.append(channels[next(at for at, row in enumerate(rows) if row is cells)] if certain else None)
    return found


def _allowed(column: str, cell: str) -> str:
    """The cell if it matches the pattern of its column, else an empty text."""
    text = cell.strip().upper() if column == "type" else cell.strip()
    return text if re.fullmatch(COPIED[column], text) else ""


def tsv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table with tabs, the columns of the first row above."""
    lines = ["\t".join(rows[0]), *("\t".join(map(cell_text, row.values())) for row in rows)] if rows else []
    return "".join(f"{line}\n" for line in lines)


def cell_text(value: Any) -> str:
    """Text of a cell: numbers with nine digits, ``n/a`` for nothing, no character that would end the cell.

    >>> cell_text(0.25), cell_text(True), cell_text(None), cell_text("a\\tb")
    ('0.25', 'true', 'n/a', 'a\\\\tb')
    """
    if value is None or value == "" or value != value:
        return "n/a"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.9g}"
    text = str(value).encode("utf-8", "backslashreplace").decode()
    return "".join(item if item.isprintable() else item.encode("unicode_escape").decode() for item in text)


def json_text(value: Any) -> str:
    """JSON in ASCII, so that any name can be written."""
    return json.dumps(json_ready(value), indent=2, ensure_ascii=True, allow_nan=False, default=str) + "\n"
