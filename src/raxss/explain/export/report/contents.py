"""Contents of a report: everything that the page shows, as one dict of numbers, texts and packed arrays.

Numbers are those of the evidence, unrounded, so that a report can be read back and compared with a new computation;
only signals and strips are rounded, to what an eye can see. Of a file's header it has the name of the recording and
those of its channels, nothing else.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raxss._core.atomic import json_ready
from raxss._core.version import __version__
from raxss.data.names import loosest
from raxss.data.series import Series
from raxss.data.training_overlap import summary_of
from raxss.errors import DataError
from raxss.explain.evidence import Evidence
from raxss.explain.export.report.page import FORMAT, Report
from raxss.explain.export.report.signals import (
    FULL_BYTES,
    PAGE_SECONDS,
    QuantisationSteps,
    Span,
    Wanted,
    columns_over_time,
    encoded,
    envelope,
    spans_to_keep,
)
from raxss.explain.findings import (
    class_of,
    model_facts,
    recording_of,
    under_other_weights,
    weighted_probabilities,
)

N_TOP = 12  # windows of a channel and class that are shown with their neighbours
LONGEST_TEXT = 300
LONGEST_CONTEXT = 20_000  # samples around the strongest window, where a page at a high rate has more
# Unicode categories: control and direction marks, halves of characters, line separators
INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
CONTACT = re.compile(r"([A-Z$][A-Z$_.]*'*)-?([0-9]{1,3})(?:-.*)?")  # electrode and number in a channel name
MOST_ON_A_SHAFT = 19  # depth electrodes end at 18 contacts; what has 20 and more is a grid
A_ROW = 8  # contacts of a grid that are drawn side by side: names do not tell its width


def report_of(
    evidence: Evidence | Iterable[Evidence],
    *,
    name: str | None = None,
    model: Mapping[str, Any] | None = None,
    positive: Any = None,
    full_bytes: int = FULL_BYTES,
) -> Report:
    """Make the report of one series, or of the series of one recording.

    Parameters
    ----------
    evidence
        As `RAxSSClassifier.explain_each` gives it: taken one by one, so that not all neighbour lists are held at
        once. Their samples are.
    name
        Name of the recording; by default that of its series without the channel.
    model
        Facts about the model, as in config.json of its folder.
    positive
        The class by whose probability channels are ranked when the page opens; the page can rank by any. By
        default the one with the fewest training series, or of a single series the predicted one.
    full_bytes
        Room for samples as they are, two bytes each; what does not fit is there as an envelope.

    Examples
    --------
    >>> from raxss import RAxSSClassifier
    >>> from raxss.data.datasets import load_synthetic
    >>> series = load_synthetic(8)
    >>> model = RAxSSClassifier("dlinear", window_length=128, stride=32, max_epochs=1, random_state=0).fit(series)
    >>> report_of(model.explain(series[0]))
    Report('motif-000', 1 channel)
    """
    channels: list[dict[str, Any]] = []
    samples: list[Series] = []
    classes: tuple[Any, ...] = ()
    settings: dict[str, Any] = {}
    predicted: Any = None
    for item in [evidence] if isinstance(evidence, Evidence) else evidence:
        if item.series is None:
            raise DataError(
                f"the evidence of {item.name!r} was loaded without its samples, which a report shows. Pass them: "
                "SeriesEvidence.load(folder, series=...)."
            )
        if classes and item.classes != classes:
            raise DataError(
                f"series {item.name!r} was scored for the classes {', '.join(map(repr, item.classes))}, those "
                f"before it for {', '.join(map(repr, classes))}; one report needs one model."
            )
        classes, settings, predicted = item.classes, item.settings, item.predicted
        samples.append(item.series)
        channels.append(_channel(item, item.series))
        del item  # or its lists would be held while the next is computed
    if not channels:
        raise DataError("there is no evidence to report: no series were given. Give one at least.")
    if positive is None and len(channels) == 1:
        focus = classes.index(predicted)
    else:
        focus = classes.index(class_of(classes, positive, model))
    _add_signals(channels, samples, focus, full_bytes)
    names = [channel["name"] for channel in channels]
    facts = model_facts(model or {})
    facts.pop("classes", None)  # those of the evidence are the same
    training = facts.pop("training_data")
    trial, faithful = (facts.pop(name, None) for name in ("trial", "faithfulness"))
    contents = {
        "format": FORMAT,
        "version": __version__,
        "recording": title_of(recording_of(samples[0]) if name is None else name),
        "classes": [plain_text(class_) for class_ in classes],
        "seen_in_training": summary_of([channel["seen_in_training"] for channel in channels]),
        "focus": focus,
        "n_top": N_TOP,
        "page_seconds": PAGE_SECONDS,
        "settings": _plain(settings),
        "model": _plain(facts) if model else None,
        "training": _plain(training) or None,
        "trial": _plain(trial),
        "faithfulness": _plain(faithful),
        "electrodes": _plain(electrodes(names)) if len(channels) > 1 else [],
        "grid_row": A_ROW,
        "channels": channels,
    }
    return Report(contents)


def title_of(name: str) -> str:
    """Name of a recording on the page: without folders.

    >>> title_of("ward 7/night")
    'night'
    """
    return plain_text(name).rpartition("/")[2]


def plain_text(value: Any, longest: int = LONGEST_TEXT) -> str:
    """Any value as one line of text: invisible characters and direction marks replaced, long texts cut.

    >>> plain_text("C3\\u202e4\\n"), plain_text("a" * 400, longest=5)
    ('C3\ufffd4\ufffd', 'aaaa…')
    """
    text = "".join("\ufffd" if unicodedata.category(item) in INVISIBLE else item for item in str(value))
    return text if len(text) <= longest else text[: longest - 1] + "…"


def electrodes(names: Sequence[str]) -> list[dict[str, Any]]:
    """Electrodes in the order in which they first appear: name, kind, pairs of contact number and channel position.

    Empty where no electrode has two contacts, or most names cannot be read so.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for place, name in enumerate(names):
        match = CONTACT.fullmatch(loosest(name))
        if match:
            found.setdefault(match[1], []).append((int(match[2]), place))
    several = {name: contacts for name, contacts in found.items() if len(contacts) > 1}
    if 2 * sum(map(len, several.values())) < len(names) or not several:
        return []
    return [
        {
            "name": name,
            "kind": "grid" if max(contacts)[0] > MOST_ON_A_SHAFT else "shaft",
            "contacts": sorted(contacts),
        }
        for name, contacts in found.items()
    ]


def _channel(evidence: Evidence, series: Series) -> dict[str, Any]:
    """The numbers of one series: its score, also under other weights, and its windows."""
    table = evidence.columns
    recording = recording_of(series)
    name = series.name.removeprefix(f"{recording}:") or series.name
    usable = ~table["nonfinite"]
    relative = np.where(usable, table["weight"] * usable.sum(), np.nan)
    highest = float(np.nanmax(relative, initial=0.0)) or 1.0

    def over_time(values: NDArray[np.float64], highest: float = 1.0) -> NDArray[np.uint8]:
        begin, seconds = series.start_seconds, series.seconds
        times = table["start_s"], table["end_s"]
        return columns_over_time(*times, values, begin=begin, seconds=seconds, highest=highest)

    posteriors = np.where(usable[:, np.newaxis], weighted_probabilities(evidence), np.nan)
    other = under_other_weights(evidence)
    calibrated, held = evidence.calibrated_probability, evidence.prediction_set
    return {
        "name": plain_text(name),
        "label": None if evidence.label is None else plain_text(evidence.label),
        "seen_in_training": evidence.seen_in_training,
        "rate": series.rate,
        "start_s": series.start_seconds,
        "n_samples": series.n_samples,
        "n_variates": series.n_variates,
        "preparation": plain_text(series.preparation),
        "probability": evidence.series_probability.tolist(),
        "doubt": {
            "calibrated": None if calibrated is None else calibrated.tolist(),
            "interval": None if evidence.interval is None else evidence.interval.to_json(),
            "set": None if held is None else [class_ in held for class_ in evidence.classes],
            "abstains": evidence.abstains,
        },
        "uniform": other["uniform"].tolist(),
        "inverse": other["inverse"].tolist(),
        "effective_windows": evidence.effective_windows,
        "effective_share": json_ready(float(evidence.effective_share)),
        "overlap_share": json_ready(float(evidence.overlap_share)),
        "n_windows": len(usable),
        "n_usable": int(usable.sum()),
        "window_samples": round((table["end_s"][0] - table["start_s"][0]) * series.rate),
        "warnings": [plain_text(warning, 1000) for warning in evidence.warnings],
        "heat": encoded(np.stack([over_time(values) for values in posteriors.T])),
        "weights": encoded(over_time(relative, highest)),
        "highest_weight": highest,
        **_windows(evidence, series),
    }


def _windows(evidence: Evidence, series: Series) -> dict[str, Any]:
    """The windows that add most to each class, by time, and the neighbours of each."""
    columns, classes = evidence.columns, evidence.classes
    tops = [evidence.top_windows(N_TOP, class_)["window"].to_numpy() for class_ in classes]
    chosen = np.unique(np.concatenate(tops))
    place = {int(window): row for row, window in enumerate(chosen)}

    def starts(seconds: NDArray[np.float64]) -> list[int]:
        return np.rint((seconds - series.start_seconds) * series.rate).astype(int).tolist()

    lists = evidence.leaderboards(chosen)
    neighbors = []
    for window in chosen:
        rows = lists[lists["window"] == window]
        neighbors.append(
            {
                "window": rows["neighbor"].tolist(),
                "start": starts(rows["start_s"].to_numpy()),
                "similarity": json_ready(rows["similarity"].to_numpy()),
                "weight_change": json_ready(rows["weight_change"].to_numpy()),
            }
        )
    return {
        "top": [[place[int(window)] for window in top] for top in tops],
        "windows": {
            "window": chosen.tolist(),
            "start": starts(columns["start_s"][chosen]),
            "weight": columns["weight"][chosen].tolist(),
            "support": json_ready(columns["support"][chosen]),
            "posterior": [columns[f"posterior_{class_}"][chosen].tolist() for class_ in classes],
            "smoothed": weighted_probabilities(evidence)[chosen].T.tolist()
            if "smoothing" in evidence.settings
            else None,
            "contribution": [columns[f"contribution_{class_}"][chosen].tolist() for class_ in classes],
        },
        "neighbors": neighbors,
    }


def _add_signals(
    channels: list[dict[str, Any]], series: Sequence[Series], focus: int, full_bytes: int
) -> None:
    """Envelopes of all channels, and samples as they are as far as there is room, variate by variate in a span."""
    order = sorted(range(len(channels)), key=lambda place: -channels[place]["probability"][focus])
    wanted = [_wanted(channel, focus) for channel in channels]
    kept = spans_to_keep(wanted, order, full_bytes)
    for channel, item, each in zip(channels, series, kept, strict=True):
        steps = QuantisationSteps.of(item.samples)
        size, low, high = envelope(item.samples)
        channel["steps"] = {"middle": steps.middle.tolist(), "step": steps.step.tolist()}
        channel["envelope"] = {
            "samples": size,
            "low": encoded(steps.numbers(low)),
            "high": encoded(steps.numbers(high)),
        }
        parts = [steps.numbers(item.samples[:, first:last]).ravel() for first, last in each.spans]
        channel["full"] = {
            "spans": [list(span) for span in each.spans],
            "samples": encoded(np.concatenate([np.zeros(0, dtype=np.int16), *parts])),
        }


def _wanted(channel: Mapping[str, Any], focus: int) -> Wanted:
    """Windows of the class in focus first, then of the others."""
    length = channel["window_samples"]
    windows = channel["windows"]
    rows = list(dict.fromkeys([*channel["top"][focus], *(row for top in channel["top"] for row in top)]))

    def group(row: int) -> list[Span]:
        starts = [windows["start"][row], *channel["neighbors"][row]["start"]]
        return [(start, start + length) for start in starts]

    strongest = windows["start"][rows[0]] + length // 2
    around = min(round(PAGE_SECONDS * channel["rate"]), LONGEST_CONTEXT) // 2
    return Wanted(
        channel["n_samples"],
        channel["n_variates"],
        [group(row) for row in rows],
        (strongest - around, strongest + around),
    )


def _plain(value: Any) -> Any:
    """As JSON has it, every text made harmless to look at."""
    value = json_ready(value)
    if isinstance(value, dict):
        return {plain_text(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float) else plain_text(value)
