"""Measures of faithfulness: the results of all probes as a table, with means and intervals over groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

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
from raxss.explain.faithfulness.perturbation import BASELINES
from raxss.explain.faithfulness.running import Parts
from raxss.metrics import FEWEST_GROUPS, draw_counts

Frame = pd.DataFrame
Row = tuple[str, str, str, float | None]  # probe, of, measure, value
COLUMNS = ["probe", "of", "measure"]
N_RESAMPLES = 2000
NETWORK_MEASURES = ("rank_correlation", "top_overlap", "posterior_correlation", "weight_correlation", "moved")
SEED = 69421


def measures_of(parts: Parts) -> Frame:
    """A row for each series, probe and measure: ``series, group, probe, of, measure, value``."""
    counts = Counter(item["label"] for item in parts.series)
    rows = [
        (facts["name"], facts["group"], *names, np.nan if value is None else float(value))
        for place, facts in enumerate(parts.series)
        for *names, value in _measures(parts, place, counts)
    ]
    return pd.DataFrame(rows, columns=["series", "group", *COLUMNS, "value"])


def _measures(parts: Parts, place: int, counts: Mapping[Any, int]) -> Iterator[Row]:
    facts, classes = parts.series[place], parts.about["classes"]
    right, worth = facts["predicted"] == facts["label"], 0.0
    if facts["label"] is not None and len(counts) > 1:
        # The mean of these over series is the balanced accuracy.
        worth = len(parts.series) / (len(counts) * counts[facts["label"]])
        yield "decision", "model", "balanced accuracy", worth * right
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
    for row in results.get("context") or ():
        for name in ("fall", "moved", "flipped"):
            yield "context", row["change"], name, row[name]
        if worth:
            now = classes[int(np.argmax(row["probability"]))] == facts["label"]
            yield "context", row["change"], "balanced accuracy lost", worth * (float(right) - float(now))
    for row in (parts.of_all.get("retrieval") or [[]] * (place + 1))[place]:
        for name in ("moved", "weights_moved", "rank_correlation", "top_overlap", "flipped"):
            yield "retrieval", row["control"], name, row[name]
        if worth:
            now = classes[int(np.argmax(row["probability"]))] == facts["label"]
            yield "retrieval", row["control"], "balanced accuracy lost", worth * (float(right) - float(now))
    for step in parts.of_all.get("network") or ():
        row = step[place]
        for name in NETWORK_MEASURES:
            yield "network", f"step {row['step']}", name, row[name]
            if name.endswith("correlation") and row[name] is not None:
                # A score turned upside down still shows what it showed before.
                yield "network", f"step {row['step']}", f"{name}, size", abs(row[name])


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
        rows.append((*key, mean, low, high, n))
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
            means = float(np.mean(shares)), float(np.mean(seconds))
            rows.append((baseline, order, direction, step, *means, mean, low, high))
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


def mean_interval(values: ArrayLike, groups: Sequence[Hashable]) -> tuple[float, float, float]:
    """Mean, and the 2.5th and 97.5th percentile over draws of groups; values that do not exist are left out.

    Examples
    --------
    >>> mean, low, high = mean_interval([0.1, 0.2, 0.3, 0.1, 0.2, 0.3, np.nan], list("abcdefg"))
    >>> round(mean, 6), 0.1 < low < 0.2 < high < 0.3
    (0.2, True)
    >>> mean_interval([0.5, 0.7], ["a", "b"])  # too few groups
    (0.6, nan, nan)
    """
    numbers = np.asarray(values, dtype=np.float64)
    kept = np.isfinite(numbers)
    numbers = numbers[kept]
    if not len(numbers):
        return np.nan, np.nan, np.nan
    names = {group: place for place, group in enumerate(dict.fromkeys(groups))}
    places = np.array([names[group] for group in groups])[kept]
    _, places = np.unique(places, return_inverse=True)
    n = int(places.max()) + 1
    mean = float(numbers.mean())
    if n < FEWEST_GROUPS:
        return mean, np.nan, np.nan
    sums, counts = np.bincount(places, numbers, n), np.bincount(places, minlength=n)
    drawn = draw_counts(n, N_RESAMPLES, np.random.default_rng(SEED))
    means = (drawn @ sums) / (drawn @ counts)
    low, high = np.percentile(means, [2.5, 97.5])
    return mean, float(low), float(high)
