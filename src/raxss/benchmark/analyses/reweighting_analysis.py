"""Analysis of the weights of windows: do they carry information, and do they improve the score?

    fits evaluated under every setting -> tidy rows -> answers.csv, comparisons.csv, without-weights.csv, chosen.csv
    these alone                        -> plots/*.png, README.md

A weighting that carries information does worse when it is inverted. Differences are paired: the same posteriors,
the same bootstrap draws. The sentences of the page follow from the numbers by the rules in `verdict`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raxss._core.atomic import json_ready
from raxss.benchmark.analyses.analysis import Analysis, Plots, register_analysis
from raxss.benchmark.analyses.evaluation import EvaluatedRun, Evaluation, FittedModel
from raxss.benchmark.analyses.reweighting import Cross, cross_for, reweighted, twins
from raxss.benchmark.evaluation_set import slug
from raxss.benchmark.pages.figures import FAINT, INK, STEP, WARM, open_axes, png
from raxss.benchmark.pages.markdown import (
    NONE,
    PERCENT,
    TITLES,
    Markdown,
    difference,
    number,
    p_text,
    shown,
    table,
)
from raxss.benchmark.pages.tidy import (
    VALIDATION,
    Row,
    compared,
    difference_row,
    draws_of,
    evaluation_rows,
    fit_of,
    headline,
    mean_row,
    of_fits,
    over_seeds,
    part,
    runs_by,
    settings_of,
    tidy,
    wide,
)
from raxss.benchmark.reading import fields_of, refuse_unknown
from raxss.benchmark.result import RunResult
from raxss.benchmark.statistics import N_RESAMPLES, Resampled, corrected
from raxss.method.weighting.protocol import weighting_named

SETTING = ("space", "exclusion", "weighting", "temperature", "pooling", "smoothing")
AS_FITTED, CHOSEN, ALONE = "as fitted", "chosen on validation", "uniform weights"
OWN, INVERTED, SHUFFLED, UNIFORM, PLAIN = "own", "inverted", "shuffled", "uniform", "plain mean"
#: Pairs that are compared, among a weighting and its controls -> prefix of columns in comparisons.csv.
PREFIXES = {
    (OWN, UNIFORM): "",
    (INVERTED, UNIFORM): "inverted_",
    (SHUFFLED, UNIFORM): "shuffled_",
    (OWN, INVERTED): "over_inverted_",
    (OWN, SHUFFLED): "over_shuffled_",
}
SPOKEN = 0.1  # the sentences are about the temperature nearest to this; the paper's is not known
PLACES = {"signal": "the signal", "features": "the network's features"}

Frame = pd.DataFrame
Setting = Mapping[str, Any]


@register_analysis("reweighting")
@dataclass(frozen=True, kw_only=True)
class Reweighting(Analysis):
    """Test and validation series under every setting of a cross; in a study file its settings are those of `Cross`.

    A model that was fitted with a gate is evaluated with gated weights too.
    """

    title: ClassVar[str] = "do the weights of windows help?"
    template: ClassVar[str] = "reweighting.md.j2"

    cross: Cross = field(default_factory=Cross)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """From the settings of a cross."""
        refuse_unknown(f"[analysis.{cls.name}]", settings, fields_of(Cross))
        return cls(cross=Cross(**{name: tuple(value) for name, value in settings.items()}))

    def decides(self) -> dict[str, Any]:
        """The cross."""
        return {"reweighting": json_ready(asdict(self.cross))}

    def evaluate(self, fitted: FittedModel) -> list[Evaluation]:
        """One evaluation a setting, in the order of ``cross.rows()``."""
        cross = cross_for(fitted.model, self.cross)
        settings = [
            {str(name): None if value != value else value for name, value in row.items()}  # JSON has no NaN
            for row in cross.rows().to_dict("records")
        ]
        tested = reweighted(fitted.model, fitted.test, cross, positive=fitted.positive)
        scores: list[dict[str, float]] = [{}] * len(settings)
        if len(fitted.validation):
            validated = reweighted(fitted.model, fitted.validation, cross, positive=fitted.positive)
            scores = [fitted.validation_score(probabilities) for probabilities in validated]
        return [
            Evaluation(settings=setting, probabilities=probabilities, validation=score)
            for setting, probabilities, score in zip(settings, tested, scores, strict=True)
        ]

    def rows(self, runs: Sequence[EvaluatedRun], *, n_resamples: int = N_RESAMPLES) -> Frame:
        """Metrics of every fit and setting, what validation chose, differences from equal weights and controls."""
        rows = evaluation_rows(runs)
        for dataset, of_dataset in runs_by("dataset", runs):
            for system, own in runs_by("system", of_dataset):
                metric = headline(own[0].result)
                picks = [pick(run, metric) for run in own]
                draws = _draws(own, picks, metric, n_resamples)
                settings = [evaluation.settings for evaluation in own[0].evaluations]
                found = [
                    *_weighted_rows(settings, draws, metric),
                    *_unweighted_rows(settings, draws, metric),
                ]
                rows += [{"dataset": dataset, "system": system, "metric": metric} | row for row in found]
                for run, place in zip(own, picks, strict=True):
                    chosen = run.evaluations[place]
                    at = fit_of(run.result) | {"what": CHOSEN} | settings_of(chosen.settings)
                    test = draws[CHOSEN].figures[run.result.seed, run.result.fold or ""][metric][0]
                    rows.append(at | {"metric": metric, "value": float(test)})
                    validation = chosen.validation.get(metric)
                    rows.append(at | {"metric": f"{VALIDATION}{metric}", "value": validation})
        return tidy(rows)

    def tables(self, rows: Frame) -> dict[str, Frame]:
        """``answers``, ``comparisons``, ``without-weights`` and ``chosen``."""
        at, fit = ["dataset", "system", "metric"], ["dataset", "system", "seed", "fold"]
        fits, beside, means = of_fits(rows), compared(rows), over_seeds(rows, differences=False)
        evaluated = fits[fits["what"].isna()]
        weighted, others = beside[beside["reference"] != PLAIN], beside[beside["reference"] == PLAIN]
        return {
            "answers": wide(evaluated, [*fit, *SETTING]),
            "comparisons": _comparisons(weighted, [*at, *SETTING]),
            "without-weights": _without(means[means["what"] == PLAIN], others, at),
            "chosen": _chosen(fits[fits["what"] == CHOSEN], evaluated, fit),
        }

    def page(self, rows: Frame, metric: str) -> tuple[dict[str, Any], Plots]:
        """Sentences, plot and tables of each system."""
        dataset, plots, systems = rows["dataset"].iloc[0], {}, []
        for system in dict.fromkeys(rows["system"]):
            tables = self.tables(part(rows, system=system))
            compared, without = tables["comparisons"], tables["without-weights"]
            place = f"plots/{slug(dataset)}-{slug(system)}.png"
            plots[place] = png(plot_twins, compared, metric)
            systems.append(
                {
                    "name": system,
                    "sentences": [
                        fitted_sentence(without, metric),
                        *sentences(compared, metric),
                        chosen_sentence(without, metric),
                    ],
                    "plot": Markdown(place),
                    "table": _main_table(compared, metric),
                    "without": _without_table(without, metric),
                    "chosen": _chosen_table(tables["chosen"], metric),
                }
            )
        return {"systems": systems}, plots


# Rows ---------------------------------------------------------------------------------------------------------


def pick(run: EvaluatedRun, metric: str) -> int:
    """Index of the setting that the validation series choose: by the metric, ties by Brier, then the simplest.

    Controls cannot be chosen. Equal weights win ties; without validation scores they are chosen.
    """

    def rank(place: int) -> tuple[float, float, bool, int]:
        evaluation = run.evaluations[place]
        scores, equal = evaluation.validation, evaluation.settings["temperature"] is None
        return scores.get(metric, -np.inf), -scores.get("brier", np.inf), equal, -place

    candidates = [
        place
        for place, evaluation in enumerate(run.evaluations)
        if evaluation.settings["temperature"] is None or evaluation.settings["weighting"] in twins()
    ]
    return max(candidates, key=rank)


def name_of(setting: Setting) -> str:
    """One setting as a name."""
    return json.dumps([setting[name] for name in SETTING])


def _draws(
    own: Sequence[EvaluatedRun], picks: Sequence[int], metric: str, n_resamples: int
) -> dict[str, Resampled]:
    """Setting -> the metric in the same bootstrap draws; also of the model as fitted, and of what was chosen."""
    results: dict[str, list[RunResult]] = {}
    for run, chosen in zip(own, picks, strict=True):
        for place, evaluation in enumerate(run.evaluations):
            results.setdefault(name_of(evaluation.settings), []).append(run.as_result(place))
        results.setdefault(AS_FITTED, []).append(run.result)
        results.setdefault(CHOSEN, []).append(run.as_result(chosen))
    return draws_of(results, metric, n_resamples)


def _weighted_rows(settings: Sequence[Setting], draws: Mapping[str, Resampled], metric: str) -> list[Row]:
    """Each weighting and its controls against equal weights in the same block, and against each other."""
    means, rows = [], []
    equal = {_block(setting): name_of(setting) for setting in settings if setting["temperature"] is None}
    for setting in settings:
        if setting["weighting"] not in twins():
            continue
        names = {
            twin: name_of({**setting, "weighting": weighting})
            for twin, weighting in zip((OWN, INVERTED, SHUFFLED), twins()[setting["weighting"]], strict=True)
        }
        names[UNIFORM] = equal[_block(setting)]
        means.append(settings_of(setting) | {"twin": OWN, "value": _value(draws[names[OWN]], metric)})
        for twin, reference in PREFIXES:
            found = difference_row(draws[names[twin]], draws[names[reference]], metric)
            rows.append(settings_of(setting) | {"twin": twin, "reference": reference} | found)
    return means + corrected(rows, lambda row: (row["twin"], row["reference"]))


def _unweighted_rows(settings: Sequence[Setting], draws: Mapping[str, Resampled], metric: str) -> list[Row]:
    """Poolings without weights, the model as fitted and what was chosen, against the plain mean."""
    alone = [setting for setting in settings if setting["temperature"] is None]
    plain = next(item for item in alone if item["pooling"] == "mean" and item["smoothing"] == 0)  # SSS's mean
    home = plain["space"], plain["exclusion"]
    # Without smoothing there are no neighbours: the same in every space and with every exclusion.
    others = [
        item
        for item in alone
        if item["smoothing"] > 0 or (item["pooling"] != "mean" and (item["space"], item["exclusion"]) == home)
    ]
    named = [({"what": AS_FITTED}, AS_FITTED), ({"what": CHOSEN}, CHOSEN)]
    named += [({"what": ALONE, **settings_of(other)}, name_of(other)) for other in others]
    means = [{"what": PLAIN, **settings_of(plain), "value": _value(draws[name_of(plain)], metric)}]
    means += [at | {"value": _value(draws[name], metric)} for at, name in named]
    rows = [
        at | {"reference": PLAIN} | difference_row(draws[name], draws[name_of(plain)], metric)
        for at, name in named
    ]
    return means + corrected(rows)


def _block(setting: Setting) -> str:
    """All but the weights: settings of one block share their equal weights."""
    return json.dumps([setting[name] for name in ("space", "exclusion", "pooling", "smoothing")])


def _value(draws: Resampled, metric: str) -> float:
    """Mean over seeds, not resampled."""
    return float(mean_row(draws, metric)["value"])


# Views --------------------------------------------------------------------------------------------------------


def _comparisons(beside: Frame, index: list[str]) -> Frame:
    """A row for each weighting that is no control: its value, then each comparison by its prefix."""
    prefixes = [PREFIXES[key] for key in zip(beside["twin"], beside["reference"], strict=True)]
    beside = beside.assign(prefix=prefixes)
    values = ("difference", "low", "high", "p")
    own = beside.loc[beside["prefix"] == "", [*index, "value", "n_seeds", "n_groups"]]
    found = own.merge(wide(beside, index, columns="prefix", values=(*values, "p_holm")), on=index)
    parts = [f"{prefix}{value}" for prefix in PREFIXES.values() for value in values]
    corrected = [f"{prefix}p_holm" for prefix in PREFIXES.values()]
    return found[[*index, "value", *parts, "n_seeds", "n_groups", *corrected]]


def _without(plain: Frame, others: Frame, at: list[str]) -> Frame:
    """Of each dataset and system the plain mean, then what differs from it."""
    found = pd.concat([plain.assign(what=ALONE), others.astype({"what": object})], ignore_index=True)
    found = found.sort_values(at[:2], kind="stable", key=lambda column: pd.factorize(column)[0])
    numbers = ["value", "difference", "low", "high", "p", "n_seeds", "n_groups", "p_holm"]
    return found[[*at, "what", *SETTING, *numbers]]


def _chosen(chosen: Frame, evaluated: Frame, fit: list[str]) -> Frame:
    """The setting that each seed's validation series choose, with its scores and the plain mean's."""
    validated = chosen["metric"].str.startswith(VALIDATION)
    found = chosen[~validated].rename(columns={"value": "test"})
    validation = chosen[validated].assign(metric=chosen["metric"].str.removeprefix(VALIDATION))
    plain = evaluated[
        evaluated["temperature"].isna() & (evaluated["pooling"] == "mean") & (evaluated["smoothing"] == 0)
    ]
    on = [*fit, "metric"]
    for name, some in (("validation", validation), ("test_uniform", plain.drop_duplicates(on))):
        found = found.merge(some.rename(columns={"value": name})[[*on, name]], how="left", on=on)
    kept = ["dataset", "system", "metric", "seed", "fold", *SETTING, "validation", "test", "test_uniform"]
    return found[kept]


# Sentences ----------------------------------------------------------------------------------------------------


def verdict(row: Mapping[str, Any]) -> str:
    """Whether the weights of a row of ``comparisons`` carry information, and whether they improve the score.

    By 95 % intervals of the differences from the inverted control and from equal weights.

    >>> twin = {"over_inverted_difference": 0.02, "over_inverted_low": 0.01, "over_inverted_high": 0.03}
    >>> verdict({**twin, "low": -0.01, "high": 0.01})
    'they carry information, and cannot be told from uniform ones by the score'
    >>> twin = {"over_inverted_difference": -0.001, "over_inverted_low": -0.01, "over_inverted_high": 0.01}
    >>> verdict({**twin, "low": -0.01, "high": 0.01})
    'that they carry information is not shown: inverted, they cannot be told from what they are'
    """
    low, high = row["over_inverted_low"], row["over_inverted_high"]
    if np.isnan(low):
        return "there are too few groups to say whether they carry information"
    if high < 0:
        return "they mislead: inverted, they do better"
    if low <= 0:
        return "that they carry information is not shown: inverted, they cannot be told from what they are"
    if row["low"] > 0:
        return "they carry information, and do better than uniform ones"
    if row["high"] < 0:
        return "they carry information, and yet do worse than uniform ones"
    return "they carry information, and cannot be told from uniform ones by the score"


def sentences(compared: Frame, metric: str) -> list[str]:
    """The comparisons of one dataset and system in sentences."""
    found = []
    for (weighting, space, exclusion), rows in _blocks(compared):
        distances = (np.log(rows["temperature"]) - np.log(SPOKEN)).abs()
        row = rows.loc[distances.idxmin()].to_dict()
        kind = weighting_named(weighting).phrase
        found.append(
            f"Weights from {PLACES.get(space, space)}{kind}, {_exclusion(exclusion)}, at temperature "
            f"{row['temperature']:g} differ from uniform ones by {difference(row, metric)}, inverted by "
            f"{_part(row, 'inverted_', metric)}, shuffled by {_part(row, 'shuffled_', metric)}: {verdict(row)}."
        )
    better = (compared["p_holm"] < 0.05) & (compared["difference"] > 0)
    worse = (compared["p_holm"] < 0.05) & (compared["difference"] < 0)
    informed = (compared["over_inverted_p_holm"] < 0.05) & (compared["over_inverted_difference"] > 0)
    found.append(
        f"Of all {len(compared)} settings, corrected for their number (Holm, 5 %): {int(better.sum())} do better "
        f"than uniform weights, {int(worse.sum())} do worse; {int(informed.sum())} do better than their inverted "
        "twins."
    )
    return found


def fitted_sentence(without: Frame, metric: str) -> str:
    """Test score of the weights that the model was fitted with."""
    row = without[without["what"] == AS_FITTED].iloc[0].to_dict()
    if row["difference"] == row["low"] == row["high"] == 0:
        return "As fitted, its weights are uniform."
    return f"Its weights as fitted differ from uniform ones by {difference(row, metric)}."


def chosen_sentence(without: Frame, metric: str) -> str:
    """Test score of the setting that validation chose."""
    row = without[without["what"] == CHOSEN].iloc[0].to_dict()
    helps = "this cannot be told from no difference"
    if np.isnan(row["low"]):
        helps = "there are too few groups for an interval"
    elif row["low"] > 0:
        helps = "choosing pays"
    elif row["high"] < 0:
        helps = "choosing does harm"
    return (
        "The setting that each seed's validation part chooses differs from the plain mean by "
        f"{difference(row, metric)}: {helps}."
    )


def _plain_rows(compared: Frame) -> Frame:
    """The rows that the page shows: without smoothing, weighted means of probabilities."""
    return compared[(compared["pooling"] == "mean") & (compared["smoothing"] == compared["smoothing"].min())]


def _blocks(compared: Frame) -> list[tuple[tuple[str, str, str], Frame]]:
    """Those rows by weighting, space and exclusion."""
    grouped = _plain_rows(compared).groupby(["weighting", "space", "exclusion"], sort=False)
    return [((str(key[0]), str(key[1]), str(key[2])), rows) for key, rows in grouped]


def _exclusion(value: str) -> str:
    if value == "0":
        return "no exclusion"
    return f"exclusion {value} windows" if "." in value else f"exclusion {value} samples"


def _part(row: Mapping[Any, Any], prefix: str, metric: str) -> str:
    return difference({name: row[f"{prefix}{name}"] for name in ("difference", "low", "high")}, metric)


# Tables and plots of the page --------------------------------------------------------------------------------


def _main_table(compared: Frame, metric: str) -> Markdown:
    header = ["weights", "from", "exclusion", "τ", TITLES[metric], "difference", "p", "inverted", "shuffled",
              "over inverted", "p "]  # fmt: skip
    rows = [
        [row["weighting"], row["space"], row["exclusion"], f"{row['temperature']:g}", number(row["value"], metric),
         difference(row, metric), p_text(row["p_holm"]), _part(row, "inverted_", metric),
         _part(row, "shuffled_", metric), _part(row, "over_inverted_", metric), p_text(row["over_inverted_p_holm"])]
        for row in _plain_rows(compared).to_dict("records")
    ]  # fmt: skip
    return table(header, rows)


def _without_table(without: Frame, metric: str) -> Markdown:
    rows = []
    for row in without.to_dict("records"):
        smoothed = row["smoothing"] > 0
        if smoothed and row["pooling"] != "mean":
            continue  # in the file
        by = f"{row['smoothing']:g} in {row['space']}, {_exclusion(row['exclusion'])}" if smoothed else NONE
        figures = [number(row["value"], metric), difference(row, metric), p_text(row["p_holm"])]
        rows.append([row["what"], shown(row["pooling"], str), by, *figures])
    return table(["what", "pooling", "smoothing", TITLES[metric], "difference", "p"], rows)


def _chosen_table(chosen: Frame, metric: str) -> Markdown:
    rows = []
    for row in chosen.to_dict("records"):
        retrieved = row["temperature"] == row["temperature"] or row["smoothing"] > 0
        near = (row["space"], row["exclusion"]) if retrieved else (NONE, NONE)
        how = [row["weighting"], *near, shown(row["temperature"], "{:g}".format), row["pooling"]]
        figures = [
            shown(row[name], lambda value: number(value, metric))
            for name in ("validation", "test", "test_uniform")
        ]
        rows.append([int(row["seed"]), *how, f"{row['smoothing']:g}", *figures])
    parts = [f"{TITLES[metric]}, validation", "test", "test, plain mean"]
    return table(["seed", "weights", "from", "exclusion", "τ", "pooling", "smoothing", *parts], rows)


def plot_twins(compared: Frame, metric: str) -> Axes:
    """Difference from equal weights by temperature: of weights with their interval, inverted and shuffled.

    ``compared`` has the rows of ``comparisons`` of one dataset and system.
    """
    blocks = _blocks(compared)
    figure = Figure(figsize=(2.9 * len(blocks) + 0.6, 3.0), layout="constrained")
    panels = figure.subplots(1, len(blocks), sharey=True, squeeze=False)[0]
    scale = 100.0 if metric in PERCENT else 1.0
    for ax, ((weighting, space, exclusion), rows) in zip(panels, blocks, strict=True):
        x = rows["temperature"]
        ax.axhline(0, color=FAINT, lw=0.8)
        ax.fill_between(x, scale * rows["low"], scale * rows["high"], color=STEP, alpha=0.18, lw=0)
        ax.plot(x, scale * rows["difference"], "o-", color=STEP, ms=4, label=weighting)
        ax.plot(x, scale * rows["inverted_difference"], "s--", color=WARM, ms=4, label="inverted")
        ax.plot(x, scale * rows["shuffled_difference"], "^:", color=INK, ms=4, label="shuffled")
        ax.set_xscale("log")
        ax.set_xticks(x, [f"{item:g}" for item in x])
        ax.minorticks_off()
        ax.set_title(f"{weighting}, {space}, {_exclusion(exclusion)}", fontsize=8.5)
        open_axes(ax, xlabel="temperature")
    _set_symlog(panels[0], scale)
    panels[0].set_ylabel(f"{TITLES[metric]}, difference from uniform")
    panels[0].legend(frameon=False, fontsize=8)
    first: Axes = panels[0]
    return first


def _set_symlog(ax: Axes, scale: float) -> None:
    """Logarithmic away from 0, so that a thousandth shows beside an inverted control that loses half."""
    bottom, top = ax.get_ylim()
    ax.set_yscale("symlog", linthresh=0.02 * scale)
    steps = np.array([0.01, 0.02, 0.05, 0.1, 0.2, 0.5]) * scale
    ticks = [float(item) for item in (*-steps[::-1], 0.0, *steps) if bottom <= item <= top]
    ax.set_yticks(ticks, [f"{tick:g}".replace("-", "−") for tick in ticks])
    ax.minorticks_off()
    ax.set_ylim(1.1 * bottom, 1.1 * top)  # room for the marks at the ends
