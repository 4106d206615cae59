"""Findings of a recording: its channels ranked, with the strongest windows of each.

    Evidence, one channel after the other -> RecordingFindings: channels ranked, the strongest windows of each

The evidence of one channel can be hundreds of megabytes; what tables need of it is small, and is taken while the
evidence passes by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raxss.data.series import Series
from raxss.errors import ConfigError, did_you_mean
from raxss.explain.evidence import Evidence
from raxss.method.aggregation import aggregate
from raxss.method.weighting.protocol import weighting_named
from raxss.method.weighting.support import UNIFORM

N_WINDOWS = 10  # of a channel, that do not overlap
MODEL_FIELDS = (  # of config.json in a model folder, that may be published
    "config_hash",
    "weights_sha256",
    "classes",
    "network",
    "n_variates",
    "window_length",
    "preparation",
    "scaling",
    "temperature",
    "calibration",
    "calibration_level",
    "trial",
    "faithfulness",
    "seed",
    "best_epoch",
    "interrupted",
    "versions",
)
TRAINING_FIELDS = ("n_series", "n_validation", "n_groups", "classes", "rates", "n_samples", "split")


def strongest_apart(evidence: Evidence, n: int = N_WINDOWS, class_: Any = None) -> pd.DataFrame:
    """The windows that add most to a class and do not overlap, best first.

    At a small stride the windows that add most are shifts of one another, so each window that is taken excludes
    those that share time with it. Columns: ``rank, window, start_s, end_s, probability, weight, contribution``; the
    probability is the weighted one, calibrated and smoothed where the model does so.
    """
    name, table = evidence.class_named(class_), evidence.columns
    left = np.where(table["weight"] > 0, table[f"contribution_{name}"], -np.inf)
    chosen: list[int] = []
    while len(chosen) < n and np.isfinite(left).any():
        best = int(left.argmax())
        first = np.searchsorted(table["end_s"], table["start_s"][best], side="right")
        last = np.searchsorted(table["start_s"], table["end_s"][best], side="left")
        left[min(first, best) : max(last, best + 1)] = -np.inf
        chosen.append(best)
    return pd.DataFrame(
        {
            "rank": np.arange(1, len(chosen) + 1),
            **{column: table[column][chosen] for column in ("window", "start_s", "end_s")},
            "probability": weighted_probabilities(evidence)[chosen, evidence.classes.index(name)],
            "weight": table["weight"][chosen],
            "contribution": table[f"contribution_{name}"][chosen],
        }
    )


def weighted_probabilities(evidence: Evidence) -> NDArray[np.float64]:
    """``(n_windows, C)`` posteriors as they are weighted: smoothed where the model smooths them."""
    table = evidence.columns
    kind = "smoothed" if f"smoothed_{evidence.predicted}" in table else "posterior"
    return np.stack([table[f"{kind}_{class_}"] for class_ in evidence.classes], axis=1)


def under_other_weights(evidence: Evidence) -> dict[str, NDArray[np.float64]]:
    """Series probabilities of the same windows under uniform and under inverted weights: ``(C,)`` each.

    If they do not change under inverted weights, the weights explain nothing. Inverted is the weighting that the
    model's own is a control of, or its own: under uniform weights, those by support.
    """
    inverse = weighting_named(weighting_named(evidence.settings["weighting"]).family).inverse
    assert inverse is not None, "a weighting that others are controls of has an inverse"
    temperature, table = float(evidence.settings["temperature"]), evidence.columns
    scores = {}
    for name, weighting in (("uniform", UNIFORM), ("inverse", inverse)):
        found = aggregate(
            weighted_probabilities(evidence),
            table["support"],
            temperature=temperature,
            weighting=weighting,
            gate=table.get("gate"),
        )
        scores[name] = found.series_probability
    return scores


@dataclass(frozen=True)
class ChannelFindings:
    """One channel: its score and its strongest windows."""

    evidence: Evidence  # without windows, neighbours and samples
    channel: str  # "" for a series of several channels
    n_windows: int
    windows: pd.DataFrame  # of `strongest_apart` for the predicted class


@dataclass
class RecordingFindings:
    """The channels of one recording, ranked."""

    name: str
    classes: tuple[Any, ...]
    class_: Any  # that channels are ranked by
    settings: dict[str, Any]  # of the evidence of the first channel; all have the same model
    channels: list[ChannelFindings] = field(default_factory=list)  # in the order of the recording

    def add(self, evidence: Evidence) -> None:
        """Add one more channel."""
        origin = {} if evidence.series is None else evidence.series.origin
        self.channels.append(
            ChannelFindings(
                replace(evidence, columns={}, lists=pd.DataFrame(), series=None),
                origin.get("channel", ""),
                len(evidence.columns["window"]),
                strongest_apart(evidence),
            )
        )

    def ranked(self) -> list[ChannelFindings]:
        """The channels by probability of ``class_``, highest first; of equals the earlier first."""
        place = self.classes.index(self.class_)
        return sorted(self.channels, key=lambda item: -float(item.evidence.probability[place]))


AnyEvidence = TypeVar("AnyEvidence", bound=Evidence)
WhenDone = Callable[[RecordingFindings], None]


def watched(
    evidence: Iterable[AnyEvidence],
    when_done: WhenDone | None,
    *,
    class_: Any = None,
    model: Mapping[str, Any] | None = None,
) -> Iterator[AnyEvidence]:
    """Pass evidence on, and call ``when_done`` with the findings of each recording after its last channel."""
    if when_done is None:
        yield from evidence
        return
    findings: RecordingFindings | None = None
    for item in evidence:
        name = item.name if item.series is None else recording_of(item.series)
        if findings is not None and findings.name != name:
            when_done(findings)
            findings = None
        if findings is None:
            ranked_by = class_of(item.classes, class_, model)
            findings = RecordingFindings(name, item.classes, ranked_by, item.settings)
        findings.add(item)
        yield item
        del item  # or it would be held while the next is computed
    if findings is not None:
        when_done(findings)


def recording_of(series: Series) -> str:
    """Recording of a series: its name without channel and stretch.

    The origin counts only where the name begins with it; a manifest may call the runs of many people "run-01".

    >>> recording_of(Series([0.0], name="night@12.5s", origin={"recording": "night"}))
    'night'
    >>> recording_of(Series([0.0], name="night:C3@12.5s", origin={"recording": "run-01", "channel": "C3"}))
    'night'
    >>> recording_of(Series([0.0], name="A00004"))
    'A00004'
    """
    recording, channel = series.origin.get("recording"), series.origin.get("channel")
    if recording and (series.name == recording or series.name.startswith((f"{recording}:", f"{recording}@"))):
        return recording
    before, found, _ = series.name.rpartition(f":{channel}")
    return before if channel is not None and found else series.name


def by_recording(series: Iterable[Series]) -> dict[str, list[Series]]:
    """Series of one recording together, in the order in which recordings first appear."""
    found: dict[str, list[Series]] = {}
    for item in series:
        found.setdefault(recording_of(item), []).append(item)
    return found


def class_of(classes: Sequence[Any], wanted: Any, model: Mapping[str, Any] | None = None) -> Any:
    """The class to rank by, which may be given as text.

    By default the one with the fewest training series, as far as ``model`` tells; of equals the last, as for F1 and
    AUC.
    """
    if wanted is None:
        counts = ((model or {}).get("training_data") or {}).get("classes", {})
        return min(reversed(classes), key=lambda item: counts.get(str(item), 0))
    for label in classes:
        if str(label) == str(wanted):
            return label
    raise ConfigError(
        f"{wanted!r} is not a class of this model{did_you_mean(str(wanted), map(str, classes))}"
    )


def model_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of a model's config.json that may be published: hashes, network, counts of training data.

    Digests of its training series are left out: with them one could find out who was among them.
    """
    data = facts.get("training_data") or {}
    if "settings" in facts:
        facts = {**facts, "scaling": facts["settings"]["preparation"]["scaling"]}
    public = {name: facts[name] for name in MODEL_FIELDS if name in facts}
    return public | {"training_data": {name: data[name] for name in TRAINING_FIELDS if name in data}}
