"""Evidence of a series score: windows, weights, neighbours and warnings.

windows, retrieval, aggregation of one series  ->  trace  ->  SeriesEvidence, with its warnings
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raxss.data.series import Series
from raxss.data.training_overlap import UNKNOWN
from raxss.errors import ConfigError
from raxss.explain.evidence import percent
from raxss.explain.neighbour_lists import NeighborLists
from raxss.explain.series_evidence import SeriesEvidence
from raxss.method.aggregation import Aggregation
from raxss.method.context import CONTEXT, window_context
from raxss.method.inference import Prediction
from raxss.method.retrieval.search import Retrieval
from raxss.method.weighting.protocol import weighting_named
from raxss.method.windows import Windows
from raxss.uncertainty.bootstrap import Interval

#: Banks that leave windows of the series out, and their names in errors and evidence.
BOUNDED = {"local": "the nearest in time", "sampled": "stretches spread evenly over the series"}

#: Effective windows above this share of the usable ones: the weights do next to nothing. Below the other,
#: a handful of windows decides.
NEARLY_UNIFORM, NEARLY_ONE = 0.95, 0.05
LEAST_FROM_CONTEXT = 0.005  # of a score, from which on it is stated
LEAST_DISTURBED = 0.05  # of the weights, from which on members for disturbed windows are stated


def trace(
    series: Series,
    windows: Windows,
    retrieval: Retrieval,
    aggregation: Aggregation,
    *,
    classes: Sequence[Any] | NDArray[Any],
    uncalibrated: NDArray[np.float64] | None = None,
    calibrated: NDArray[np.float64] | None = None,
    interval: Interval | None = None,
    prediction_set: NDArray[np.bool_] | None = None,
    predicted: int | None = None,
    settings: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
    seen_in_training: str = UNKNOWN,
    without_context: Prediction | None = None,
    disturbed: NDArray[np.float64] | None = None,
) -> SeriesEvidence:
    """Take the prediction of one series apart into windows, weights and neighbours.

    Parameters
    ----------
    series
        As it should be drawn; kept by reference.
    windows, retrieval, aggregation
        Of the same windows in the same order.
    classes
        The C labels, in the order of the posteriors' columns.
    uncalibrated
        ``(n_windows, C)`` the posteriors as the network gave them, where others were aggregated.
    calibrated
        ``(C,)`` the calibrated sum of the contributions, where series are calibrated.
    interval, prediction_set
        Interval of the probability, and the classes ``(C,)`` of the conformal set, as far as known.
    predicted
        Index of the predicted class, where a tuned threshold decides; by default that of the largest probability.
    settings
        More settings for outputs, such as the preset's name.
    notes
        Warnings of the caller, put before the others.
    seen_in_training
        Whether the model was fitted on this series: one of `raxss.data.training_overlap.STATES`.
    without_context
        The prediction with the mean context of the training windows, where the model takes the context of windows.
    disturbed
        ``(n_windows,)`` how far posteriors are those of members for disturbed windows, where a mixture has such.

    Examples
    --------
    >>> from raxss.method.aggregation import aggregate
    >>> from raxss.method.retrieval import retrieve
    >>> from raxss.method.windows import windows_of
    >>> series = Series(np.sin(np.arange(24.0)), rate=4, label="sine", name="toy")
    >>> retrieval = retrieve(series.samples, window_length=8, stride=4, n_neighbors=2)
    >>> prediction = aggregate(np.tile([0.2, 0.8], (5, 1)), retrieval.support, temperature=0.1)
    >>> windows = windows_of(series, window_length=8, stride=4)
    >>> evidence = trace(series, windows, retrieval, prediction, classes=["rest", "sine"])
    >>> evidence.predicted, evidence.windows["contribution_sine"].sum().round(6).item()
    ('sine', 0.8)
    >>> evidence.leaderboard(0)[["rank", "neighbor", "start_s", "overlaps"]]
       rank  neighbor  start_s  overlaps
    0     1         3      3.0     False
    1     2         2      2.0     False
    """
    classes = tuple(_plain(class_) for class_ in classes)
    _check_parts(series, windows, retrieval, aggregation, classes)
    usable = ~np.isnan(aggregation.influence)

    def by_class(what: str, values: NDArray[Any] | None) -> dict[str, NDArray[Any]]:
        return (
            {} if values is None else {f"{what}_{class_}": values[:, c] for c, class_ in enumerate(classes)}
        )

    gate = aggregation.gate
    share = windows.missing_share if windows.has_gaps else np.zeros(len(windows))
    table: dict[str, NDArray[Any]] = {
        "window": np.arange(len(windows), dtype=np.int64),
        "start_s": windows.start_seconds,
        "end_s": windows.end_seconds,
        **by_class("posterior", aggregation.posteriors),
        **by_class("uncalibrated", uncalibrated),
        **by_class("smoothed", aggregation.smoothed),
        "support": aggregation.support,
        **({} if gate is None else {"gate": gate, "influence": aggregation.influence}),
        "weight": aggregation.weights,
        **by_class("contribution", aggregation.contributions),
        **{name: getattr(retrieval, name) for name in ("flat", "nonfinite", "lonely", "padded")},
        **({"missing_share": share} if share.any() else {}),
        **({} if disturbed is None or not disturbed.any() else {"disturbed_share": disturbed}),
    }
    if without_context is not None:
        context = window_context(windows).astype(np.float64)
        table |= {f"context_{name}": context[:, place] for place, name in enumerate(CONTEXT)}
        moved = aggregation.posteriors - without_context.aggregation.posteriors
        table |= by_class("from_context", moved)
    lists = NeighborLists.of(windows, retrieval, aggregation)
    n_bank = len(windows) if retrieval.bank == "series" else retrieval.bank_size
    own = {
        "weighting": aggregation.weighting,
        "temperature": aggregation.temperature,
        **({"smoothing": aggregation.smoothing} if aggregation.smoothing else {}),
        **{
            name: getattr(retrieval, name)
            for name in ("measure", "n_neighbors", "exclusion", "spread", "space", "window_length", "stride")
        },
        "bank": retrieval.bank,
        "bank_size": n_bank,
        "bank_seconds": n_bank * retrieval.stride / series.rate,
    }
    effective = aggregation.effective_windows
    probability = aggregation.series_probability if calibrated is None else calibrated
    evidence = SeriesEvidence(
        name=series.name,
        label=_plain(series.label),
        rate=series.rate,
        seconds=series.seconds,
        classes=classes,
        series_probability=aggregation.series_probability,
        predicted=classes[int(np.argmax(probability)) if predicted is None else predicted],
        columns=table,
        lists=lists,
        effective_windows=effective,
        effective_share=effective / int(usable.sum()),
        overlap_share=lists.overlap_share,
        warnings=[],
        settings={**own, **{key: value for key, value in (settings or {}).items() if key not in own}},
        series=series,
        calibrated_probability=calibrated,
        interval=interval,
        prediction_set=None
        if prediction_set is None
        else tuple(item for item, inside in zip(classes, prediction_set, strict=True) if inside),
        notes=tuple(notes),
        seen_in_training=seen_in_training,
        from_context=None if without_context is None else probability - without_context.probability,
    )
    return replace(evidence, warnings=[*notes, *_warnings_about(evidence, lists)])


def trace_prediction(prediction: Prediction, classes: NDArray[Any], **options: Any) -> SeriesEvidence:
    """Evidence of a prediction that was made with lists of neighbours; options as in `trace`."""
    assert prediction.retrieval is not None, "the prediction was made without lists"
    return trace(
        prediction.series,
        prediction.windows,
        prediction.retrieval,
        prediction.aggregation,
        classes=classes,
        uncalibrated=prediction.uncalibrated,
        calibrated=prediction.calibrated,
        **options,
    )


def _check_parts(
    series: Series, windows: Windows, retrieval: Retrieval, aggregation: Aggregation, classes: tuple[Any, ...]
) -> None:
    """Refuse parts that do not belong together."""
    same = np.array_equal(windows.starts, retrieval.starts) and windows.length == retrieval.window_length
    if not same or len(aggregation.weights) != len(windows):
        raise ConfigError(
            f"the parts of series {series.name!r} are of different windows: {len(windows)} of length "
            f"{windows.length}, retrieval for {len(retrieval.starts)} of length {retrieval.window_length}, "
            f"weights for {len(aggregation.weights)}. All must come from the same window_length and stride."
        )
    if not np.allclose(retrieval.support, aggregation.support, rtol=0, atol=1e-5, equal_nan=True):
        raise ConfigError(
            f"series {series.name!r} was aggregated with other supports than its retrieval has; pass "
            "retrieval.support to aggregate, and set weighting to change what is made of it."
        )
    if len(classes) != len(aggregation.series_probability):
        raise ConfigError(
            f"series {series.name!r} has posteriors of {len(aggregation.series_probability)} classes, but "
            f"{len(classes)} were named: {', '.join(map(repr, classes))}."
        )
    if len({str(class_) for class_ in classes}) < len(classes):
        raise ConfigError(
            f"classes {', '.join(map(repr, classes))} read the same as text, and columns are named by them; "
            "rename one."
        )


def _warnings_about(evidence: SeriesEvidence, lists: NeighborLists) -> list[str]:
    """Warnings for a reader, with numbers."""
    windows, settings = evidence.columns, evidence.settings
    n, m = len(windows["window"]), settings["n_neighbors"]
    n_usable = n - int(windows["nonfinite"].sum())
    weighting = weighting_named(settings["weighting"])
    found = []
    if windows["padded"].any():
        short = windows["end_s"][0] - windows["start_s"][0]
        found.append(
            f"the series, {short:.4g} s, is shorter than one window and was padded with zeros behind."
        )
    if "missing_share" in windows:
        n_gaps = int(((windows["missing_share"] > 0) & ~windows["nonfinite"]).sum())
        if n_gaps:
            found.append(
                f"{n_gaps} of {n} windows have missing samples, up to half; they are compared "
                + (
                    "by the features of the samples that they have."
                    if settings.get("space") == "features"
                    else "over the samples that both windows have."
                )
            )
    if n_usable < n:
        found.append(
            f"{n - n_usable} of {n} windows have more than half of their samples missing; their weight is 0 and "
            "they are no one's neighbour."
        )
    if "disturbed_share" in windows:
        n_disturbed = int((windows["disturbed_share"] > 0).sum())
        in_score = float(windows["weight"] @ windows["disturbed_share"])
        if in_score >= LEAST_DISTURBED:
            found.append(
                f"{n_disturbed} of {n} windows look as if noise or artefacts disturbed them; {percent(in_score)} "
                "of the score come from members of the mixture for such windows."
            )
    if evidence.from_context is not None:
        place = evidence.classes.index(evidence.predicted)
        moved, now = float(evidence.from_context[place]), float(evidence.probability[place])
        if abs(moved) >= LEAST_FROM_CONTEXT:
            found.append(
                f"the score of {evidence.predicted!r}, {now:.2f}, does not rest on the samples of windows alone: "
                f"{moved:+.2f} of it come from their context (position in the series, level and amplitude against "
                f"it). With the mean context of the training windows it is {now - moved:.2f}."
            )
    n_flat = int(windows["flat"].sum())
    if n_flat:
        found.append(f"{n_flat} of {n} windows are flat: similarity 0 to all, support 0, posterior kept.")
    if settings["bank"] in BOUNDED:
        found.append(
            f"neighbours were sought among {settings['bank_size']:,} windows ({BOUNDED[settings['bank']]}, "
            f"{_duration(settings['bank_seconds'])}), not among all {n:,} ({_duration(evidence.seconds)}): "
            "supports can be lower than over the whole series."
        )
    note = weighting.note()
    if note is not None:
        found.append(note)
    if "smoothing" in settings:
        found.append(
            f"posteriors are smoothed: {percent(settings['smoothing'])} of what a window with neighbours says is "
            "the mean of theirs, so a contribution is not of that window alone."
        )
    if n_usable == 1:
        return [*found, "there is one usable window, and it decides alone."]
    if not lists.n_rows:
        alone = "the gate alone makes the weights" if weighting.needs_gate else "the weights are uniform"
        return [*found, f"none of the {n_usable} windows has an eligible neighbour: {alone}."]
    if weighting.needs_retrieval:
        share = (
            f"{evidence.effective_windows:.4g} of {n_usable} windows ({percent(evidence.effective_share)})"
        )
        if evidence.effective_share > NEARLY_UNIFORM:
            found.append(
                f"weights are nearly uniform: {share} are effective, so the score is close to the plain mean (SSS)."
            )
        if evidence.effective_share < NEARLY_ONE:
            found.append(
                f"few windows determine the score: {share} are effective. A higher temperature gives more uniform "
                "weights."
            )
    if evidence.overlap_share > 0.5:
        found.append(
            f"{percent(evidence.overlap_share)} of the listed neighbours overlap their query, so support "
            f"measures how smooth the signal is; set an exclusion such as half a window "
            f"({max(settings['window_length'] // 2, 1)} samples) to find recurrences."
        )
    shaped = ~(windows["nonfinite"] | windows["flat"])
    n_shaped = int(shaped.sum())
    n_short = int((lists.retrieval.neighbors[shaped, -1] < 0).sum())  # lists are filled from the front
    n_lonely = int(windows["lonely"][shaped].sum())
    if n_short:
        lonely = f"; {n_lonely} of them have none and take the mean support of the others" if n_lonely else ""
        found.append(
            f"{n_short} of {n_shaped} windows ({percent(n_short / n_shaped)}) have fewer than {m} "
            f"neighbours{lonely}."
        )
    return found


def _plain(value: Any) -> Any:
    """A numpy scalar as the Python value it holds."""
    return value.item() if isinstance(value, np.generic) else value


def _duration(seconds: float) -> str:
    """A time in the largest unit that fits."""
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
