"""Measures of faithfulness: the results of all probes as a table, with means and intervals over groups.

    Parts -> measures: a row for each series, probe and measure -> summary: its mean with interval over groups
          -> curves: the mean deletion and insertion curve of every order

Next: verdict.py puts a summary into words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from raxss.explain.faithfulness.deletion import (
    CONTRIBUTION,
    DELETION,
    DIRECTIONS,
    ORDERS,
    POSTERIOR,
    RANDOM,
    WEIGHT,
    gains_over_random,
    mean_areas,
)
from raxss.explain.faithfulness.mean_intervals import mean_interval
from raxss.explain.faithfulness.perturbation import BASELINES
from raxss.explain.faithfulness.running import Parts

Frame = pd.DataFrame
Row = tuple[str, str, str, float | None]  # probe, of, measure, value
COLUMNS = ["probe", "of", "measure"]


def measures_of(parts: Parts) -> Frame:
    """A row for each series, probe and measure: ``series, group, probe, of, measure, value``."""
    n = len(parts.series)
    counts = Counter(item["label"] for item in parts.series)
    rows = []
    for place in range(n):
        facts = {"series": parts.series[place]["name"], "group": parts.series[place]["group"]}
        for probe, of, measure, value in _measures(parts, place, counts):
            number = np.nan if value is None else float(value)
            rows.append({**facts, "probe": probe, "of": of, "measure": measure, "value": number})
    return pd.DataFrame(rows, columns=["series", "group", *COLUMNS, "value"])


def _measures(parts: Parts, place: int, counts: Mapping[Any, int]) -> Iterator[Row]:
    facts = parts.series[place]
    if facts["label"] is not None and len(counts) > 1:
        # The mean of these over series is the balanced accuracy.
        worth = len(parts.series) / (len(counts) * counts[facts["label"]])
        yield "decision", "model", "balanced accuracy", worth * (facts["predicted"] == facts["label"])
    results = {probe: answers[place] for probe, answers in parts.by_series.items()}
    if results.get("deletion"):
        yield from _deletion(results["deletion"])
    if results.get("counterfactual"):
        yield from _counterfactual(results["counterfactual"])
    for row in results.get("stability") or ():
        for name in ("rank_correlation", "top_overlap", "moved", "flipped"):
            yield "stability", row["change"], name, row[name]
    if results.get("localisation"):
        found = results["localisation"]
        for name in ("area", "chance", "base_rate", "by_posterior", "by_weight"):
            yield "localisation", "contributions", name, found[name]
        yield "localisation", "contributions", "above chance", found["area"] - found["chance"]
    worth_right = _right(parts, place, counts)
    for row in (parts.of_all.get("retrieval") or [[]] * (place + 1))[place]:
        for name in ("moved", "weights_moved", "rank_correlation", "top_overlap", "flipped"):
            yield "retrieval", row["control"], name, row[name]
        if worth_right is not None:
            yield "retrieval", row["control"], "balanced accuracy lost", worth_right(row["probability"])
    for step in parts.of_all.get("network") or ():
        row = step[place]
        for name in (
            "rank_correlation",
            "top_overlap",
            "posterior_correlation",
            "weight_correlation",
            "moved",
        ):
            yield "network", f"step {row['step']}", name, row[name]
            if name.endswith("correlation") and row[name] is not None:
                # A score turned upside down still shows what it showed before.
                yield "network", f"step {row['step']}", f"{name}, size", abs(row[name])


def _right(parts: Parts, place: int, counts: Mapping[Any, int]) -> Any:
    """Probabilities -> how much of the balanced accuracy this series loses by them; None without labels."""
    facts, classes = parts.series[place], parts.about["classes"]
    if facts["label"] is None or len(counts) < 2:
        return None
    worth = len(parts.series) / (len(counts) * counts[facts["label"]])

    def lost(probability: list[float]) -> float:
        now = classes[int(np.argmax(probability))] == facts["label"]
        return worth * (float(facts["predicted"] == facts["label"]) - float(now))

    return lost


def _deletion(found: Mapping[str, Any]) -> Iterator[Row]:
    area = mean_areas(found["curves"])
    for baseline in BASELINES:
        gains = {}
        for order in ORDERS:
            if (baseline, order, DELETION) not in area:
                continue
            of = f"{baseline}, {order}"
            for direction in DIRECTIONS:
                yield "deletion", of, f"{direction} area", area[baseline, order, direction]
            better = gains_over_random(area, order, baseline)
            gains[order] = sum(better.values()) / 2
            if order != RANDOM:
                for direction, value in better.items():
                    yield "deletion", of, f"{direction} gain", value
                yield "deletion", of, "gain", gains[order]
        if {WEIGHT, CONTRIBUTION, POSTERIOR} <= gains.keys():  # equal weights have nothing to add
            yield "deletion", baseline, "gain of weights", gains[CONTRIBUTION] - gains[POSTERIOR]
        if baseline in found["gradient_found"]:
            yield "deletion", baseline, "gradient found", found["gradient_found"][baseline]
    dropped = found["dropped"]
    yield "check", "windows dropped from the sum", "gain", dropped[RANDOM] - dropped[CONTRIBUTION]


def _counterfactual(found: Mapping[str, Any]) -> Iterator[Row]:
    falls = {(item["by"], item["window"]): item["fall"] for item in found["windows"]}
    for by in dict.fromkeys(by for by, _ in falls):
        strongest, any_one = falls.get((by, "strongest")), falls.get((by, "random"))
        yield "counterfactual", by, "fall, strongest window", strongest
        yield "counterfactual", by, "fall, random window", any_one
        if strongest is not None and any_one is not None:
            yield "counterfactual", by, "fall beyond random", strongest - any_one
    for baseline, flip in found["flips"].items():
        yield "flip", baseline, "decision can be changed", flip["flips"]
        yield "flip", baseline, "share replaced", flip["share"]
        yield "flip", baseline, "seconds replaced", flip["seconds"]


def summarised(measures: Frame) -> Frame:
    """Mean of each measure over series, with its interval: ``probe, of, measure, mean, low, high, n_series``."""
    rows = []
    for key, own in measures.groupby(COLUMNS, sort=False):
        mean, low, high = mean_interval(own["value"].to_numpy(), own["group"].tolist())
        n = int(own["value"].notna().sum())
        rows.append(
            dict(zip(COLUMNS, key, strict=True)) | {"mean": mean, "low": low, "high": high, "n_series": n}
        )
    return pd.DataFrame(rows, columns=[*COLUMNS, "mean", "low", "high", "n_series"])


def mean_curves(parts: Parts) -> Frame:
    """Points of the mean curves: ``stand_in, order, direction, step, share, seconds, score, low, high``.

    ``share`` and ``seconds`` are what is replaced, the mean over series.
    """
    answers = parts.by_series.get("deletion") or []
    points: dict[tuple[str, str, str], dict[int, list[tuple[str, float, float, float]]]] = {}
    for facts, found in zip(parts.series, answers, strict=bool(answers)):
        sums: dict[tuple[str, str, str], list[Any]] = {}
        for item in found["curves"]:
            sums.setdefault((item["stand_in"], item["order"], item["direction"]), []).append(item)
        for key, some in sums.items():
            removed = np.mean([item["removed"] for item in some], axis=0)
            scores = np.mean([item["scores"] for item in some], axis=0)
            for step, (share, score) in enumerate(zip(removed, scores, strict=True)):
                point = (facts["group"], float(share), float(share) * facts["seconds"], float(score))
                points.setdefault(key, {}).setdefault(step, []).append(point)
    rows = []
    for (baseline, order, direction), steps in points.items():
        for step, own in steps.items():
            groups, shares, seconds, scores = zip(*own, strict=True)
            mean, low, high = mean_interval(scores, groups)
            rows.append(
                {
                    "stand_in": baseline,
                    "order": order,
                    "direction": direction,
                    "step": step,
                    "share": float(np.mean(shares)),
                    "seconds": float(np.mean(seconds)),
                    "score": mean,
                    "low": low,
                    "high": high,
                }
            )
    columns = ["stand_in", "order", "direction", "step", "share", "seconds", "score", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def missing_orders(parts: Parts) -> dict[str, str]:
    """Orders that do not exist for some series, with the reason and how many.

    Short series have no weights that differ; a network may have no gradient.
    """
    reasons: Counter[tuple[str, str]] = Counter()
    for found in parts.by_series.get("deletion") or []:
        reasons.update(found["missing"].items())
    n = len(parts.series)
    return {order: f"{reason} ({count} of {n} series)" for (order, reason), count in reasons.items()}
