"""How far is each weighting from equal weights, and how far are its twins?

    Probed results of every setting -> answers          a row for each fit and setting
                                    -> comparisons      weights against uniform ones, with their twins
                                    -> without-weights  other ways to add windows up
                                    -> chosen           what validation chose in each seed, and what it gave

All differences are paired: the same posteriors, the same draws of groups (statistics.py).
Next: reweighting_report.py puts them into words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from raxss.benchmark.analyses.probe import Answer, Probed
from raxss.benchmark.analyses.reweighting import twins
from raxss.benchmark.prediction_tables import answers_table, by_dataset, by_system, headline, told
from raxss.benchmark.statistics import N_RESAMPLES, Resampled, difference, holm, resampled
from raxss.method.weighting.protocol import weighting_named
from raxss.method.weighting.support import UNIFORM

SETTING = ("space", "exclusion", "weighting", "temperature", "pooling", "smoothing")
AS_FITTED, CHOSEN = "as fitted", "chosen on validation"

Frame = pd.DataFrame
Question = Mapping[str, Any]


def tables_of(probed: Sequence[Probed], *, n_resamples: int = N_RESAMPLES) -> dict[str, Frame]:
    """``answers``, ``comparisons``, ``without-weights`` and ``chosen``, as `write_reweighting` writes them."""
    compared: list[dict[str, Any]] = []
    without: list[dict[str, Any]] = []
    chosen: list[dict[str, Any]] = []
    for dataset, of_dataset in by_dataset(probed):
        for system, own in by_system(of_dataset):
            metric = headline(own[0].result)
            where = {"dataset": dataset, "system": system, "metric": metric}
            picks = [pick(one, metric) for one in own]
            draws = _draws(own, picks, metric, n_resamples)
            questions = [one.question for one in own[0].answers]
            compared += [where | row for row in _weighted_rows(questions, draws, metric)]
            without += [where | row for row in _unweighted_rows(questions, draws, metric)]
            chosen += [where | _chosen_row(*one, draws, metric) for one in zip(own, picks, strict=True)]
    return {
        "answers": answers_table(probed),
        "comparisons": pd.DataFrame(compared),
        "without-weights": pd.DataFrame(without),
        "chosen": pd.DataFrame(chosen),
    }


def pick(probed: Probed, metric: str) -> int:
    """The place of the setting that the validation part chose: by the figure, ties by Brier, then the simplest.

    Twins are not among what is chosen from. Equal weights are simpler than others, so they win ties; where nothing
    could be judged, they are chosen.
    """

    def rank(place: int) -> tuple[float, float, bool, int]:
        answer = probed.answers[place]
        figures = answer.validation
        plain = _is_uniform(answer.question)
        return figures.get(metric, -np.inf), -figures.get("brier", np.inf), plain, -place

    open_to = [
        place
        for place, one in enumerate(probed.answers)
        if _is_uniform(one.question) or one.question["weighting"] in twins()
    ]
    return max(open_to, key=rank)


def name_of(question: Question) -> str:
    """One setting as a name, as `resampled` needs it."""
    return json.dumps([question[name] for name in SETTING])


def _draws(
    own: Sequence[Probed], picks: Sequence[int], metric: str, n_resamples: int
) -> dict[str, Resampled]:
    """By setting, the figure in the same draws of groups; also of what was fitted, and of what was chosen."""
    results = [
        one.answer_as_result(place, name_of(answer.question))
        for one in own
        for place, answer in enumerate(one.answers)
    ]
    results += [replace(one.result, system=AS_FITTED) for one in own]
    results += [one.answer_as_result(place, CHOSEN) for one, place in zip(own, picks, strict=True)]
    found = resampled(results, n_resamples=n_resamples, metrics=[metric])
    return {one.system: one for one in found}


def _weighted_rows(
    questions: Sequence[Question], draws: Mapping[str, Resampled], metric: str
) -> list[dict[str, Any]]:
    """Each weighting against equal weights in the same block, beside what its twins do there."""
    rows = []
    for one in questions:
        if one["weighting"] not in twins():
            continue
        _, inverse, shuffled = (
            draws[name_of({**one, "weighting": twin})] for twin in twins()[one["weighting"]]
        )
        own = draws[name_of(one)]
        uniform = draws[name_of({**one, "weighting": UNIFORM, "temperature": None})]
        compared = {
            "": difference(own, uniform, metric),
            "inverted_": difference(inverse, uniform, metric),
            "shuffled_": difference(shuffled, uniform, metric),
            "over_inverted_": difference(own, inverse, metric),
            "over_shuffled_": difference(own, shuffled, metric),
        }
        row: dict[str, Any] = told(one) | {"value": _value(own, metric)}
        for part, found in compared.items():
            row |= {f"{part}{name}": found[name] for name in ("difference", "low", "high", "p")}
        rows.append(row | {name: compared[""][name] for name in ("n_seeds", "n_groups")})
    for part in ("", "inverted_", "shuffled_", "over_inverted_", "over_shuffled_"):
        corrected = holm([row[f"{part}p"] for row in rows])
        for row, p in zip(rows, corrected, strict=True):
            row[f"{part}p_holm"] = float(p)
    return rows


def _unweighted_rows(
    questions: Sequence[Question], draws: Mapping[str, Resampled], metric: str
) -> list[dict[str, Any]]:
    """What does without weights, what was fitted and what was chosen, against the plain mean."""
    alone = [one for one in questions if _is_uniform(one)]
    plain = _plain(questions)
    others = [one for one in alone if one["smoothing"] > 0 or one["pooling"] != "mean"]
    # A window that speaks for itself has no neighbours: the same in every space and with every exclusion.
    others = [one for one in others if one["smoothing"] > 0 or _home(one) == _home(plain)]
    named: list[tuple[str, str, Question]] = [(AS_FITTED, AS_FITTED, {}), (CHOSEN, CHOSEN, {})]
    named += [("uniform weights", name_of(one), told(one)) for one in others]
    rows: list[dict[str, Any]] = []
    for what, name, setting in named:
        found = difference(draws[name], draws[name_of(plain)], metric)
        kept = ("difference", "low", "high", "p", "n_seeds", "n_groups")
        rows.append(
            {"what": what, **{one: setting.get(one) for one in SETTING}, "value": _value(draws[name], metric)}
            | {one: found[one] for one in kept}
        )
    corrected = holm([row["p"] for row in rows])
    rows = [row | {"p_holm": float(p)} for row, p in zip(rows, corrected, strict=True)]
    reference = {"what": "uniform weights", **told(plain)}
    return [reference | {"value": _value(draws[name_of(plain)], metric)}, *rows]


def _is_uniform(question: Question) -> bool:
    return not weighting_named(question["weighting"]).needs_retrieval


def _home(question: Question) -> tuple[Any, Any]:
    return question["space"], question["exclusion"]


def _chosen_row(probed: Probed, place: int, draws: Mapping[str, Resampled], metric: str) -> dict[str, Any]:
    """What one seed's validation part chose, what it gave there, and on test beside the plain mean."""
    answer: Answer = probed.answers[place]
    seed, fold = probed.result.seed, probed.result.fold
    plain = _plain([one.question for one in probed.answers])
    figures = {
        "validation": answer.validation.get(metric),
        "test": float(draws[CHOSEN].figures[seed, fold or ""][metric][0]),
        "test_uniform": float(draws[name_of(plain)].figures[seed, fold or ""][metric][0]),
    }
    return {"seed": seed, "fold": fold, **told(answer.question), **figures}


def _plain(questions: Sequence[Question]) -> Question:
    """Equal weights of windows that speak for themselves, added up as probabilities: SSS's mean."""
    return next(
        one for one in questions if _is_uniform(one) and one["pooling"] == "mean" and one["smoothing"] == 0
    )


def _value(draws: Resampled, metric: str) -> float:
    """Mean over seeds of the test part as it is."""
    by_seed: dict[int, list[float]] = {}
    for (seed, _), figures in draws.figures.items():
        by_seed.setdefault(seed, []).append(float(figures[metric][0]))
    return float(np.nanmean([np.nanmean(one) for one in by_seed.values()]))
