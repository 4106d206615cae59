"""Analysis of the weights of windows: do they carry information, and do they help?

    fits asked under every setting -> tidy rows -> answers.csv, comparisons.csv, without-weights.csv, chosen.csv
    these alone                    -> plots/*.png, README.md

A weighting that carries information does worse when it is inverted; one whose inverted twin does as well explains
nothing, however good its score. All differences are paired: the same posteriors, the same draws of groups. The
words of the page follow from the numbers by the rules in `verdict`. Next: robustness.py asks about spoiled signals.
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
from raxss.benchmark.analyses.probe import Answer, Asked, Probed
from raxss.benchmark.analyses.reweighting import Cross, cross_for, reweighted, twins
from raxss.benchmark.evaluation_set import slug
from raxss.benchmark.pages.figures import FAINT, INK, STEP, WARM, open_axes, png
from raxss.benchmark.pages.markdown import PERCENT, TITLES, Markdown, difference, number, p_text, table
from raxss.benchmark.pages.tidy import (
    VALIDATION,
    Row,
    answer_rows,
    compared,
    corrected,
    difference_row,
    draws_of,
    fit_of,
    headline,
    of_fits,
    over_seeds,
    part,
    settings_of,
    tidy,
    wide,
)
from raxss.benchmark.prediction_tables import by_dataset, by_system
from raxss.benchmark.reading import fields_of, refuse_unknown
from raxss.benchmark.result import CellResult
from raxss.benchmark.statistics import N_RESAMPLES, Resampled
from raxss.method.weighting.protocol import weighting_named

SETTING = ("space", "exclusion", "weighting", "temperature", "pooling", "smoothing")
AS_FITTED, CHOSEN, ALONE = "as fitted", "chosen on validation", "uniform weights"
OWN, INVERTED, SHUFFLED, UNIFORM, PLAIN = "own", "inverted", "shuffled", "uniform", "plain mean"
#: Of a weighting and its twins, who is compared with whom; and the prefix of columns in comparisons.csv.
PREFIXES = {
    (OWN, UNIFORM): "",
    (INVERTED, UNIFORM): "inverted_",
    (SHUFFLED, UNIFORM): "shuffled_",
    (OWN, INVERTED): "over_inverted_",
    (OWN, SHUFFLED): "over_shuffled_",
}
SPOKEN = 0.1  # the temperature that the page speaks of, or the nearest to it; the paper's is not known
PLACES = {"signal": "the signal", "features": "the network's features"}

Frame = pd.DataFrame
Question = Mapping[str, Any]


@register_analysis("reweighting")
@dataclass(frozen=True, kw_only=True)
class Reweighting(Analysis):
    """Every setting of a cross, on the test part and on the validation part.

    A model that was fitted with a gate is asked about gated weights too. In a study file the settings are those of
    `Cross`.
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

    def ask(self, asked: Asked) -> list[Answer]:
        """One answer a setting, in the order of ``cross.rows()``."""
        cross = cross_for(asked.model, self.cross)
        questions = [
            {str(name): None if value != value else value for name, value in item.items()}  # JSON has no NaN
            for item in cross.rows().to_dict("records")
        ]
        tested = reweighted(asked.model, asked.test, cross, positive=asked.positive)
        judged: list[dict[str, float]] = [{}] * len(questions)
        if len(asked.validation):
            seen = reweighted(asked.model, asked.validation, cross, positive=asked.positive)
            judged = [asked.judged(item) for item in seen]
        return [
            Answer(question=question, probabilities=item, validation=figures)
            for question, item, figures in zip(questions, tested, judged, strict=True)
        ]

    # Rows and tables

    def rows(self, probed: Sequence[Probed], *, n_resamples: int = N_RESAMPLES) -> Frame:
        """Figures of every fit and setting, what validation chose, differences from equal weights and twins."""
        rows = answer_rows(probed)
        for dataset, of_dataset in by_dataset(probed):
            for system, own in by_system(of_dataset):
                metric = headline(own[0].result)
                picks = [pick(item, metric) for item in own]
                draws = _draws(own, picks, metric, n_resamples)
                questions = [entry.question for entry in own[0].answers]
                found = [
                    *_weighted_rows(questions, draws, metric),
                    *_unweighted_rows(questions, draws, metric),
                ]
                rows += [{"dataset": dataset, "system": system, "metric": metric} | row for row in found]
                for item, place in zip(own, picks, strict=True):
                    answer = item.answers[place]
                    at = fit_of(item.result) | {"what": CHOSEN} | settings_of(answer.question)
                    test = draws[CHOSEN].figures[item.result.seed, item.result.fold or ""][metric][0]
                    rows.append(at | {"metric": metric, "value": float(test)})
                    seen = answer.validation.get(metric)
                    rows.append(at | {"metric": f"{VALIDATION}{metric}", "value": seen})
        return tidy(rows)

    def tables(self, rows: Frame) -> dict[str, Frame]:
        """``answers``, ``comparisons``, ``without-weights`` and ``chosen``."""
        at, fit = ["dataset", "system", "metric"], ["dataset", "system", "seed", "fold"]
        fits, beside, means = of_fits(rows), compared(rows), over_seeds(rows, differences=False)
        asked = fits[fits["what"].isna()]
        weighted, others = beside[beside["reference"] != PLAIN], beside[beside["reference"] == PLAIN]
        return {
            "answers": wide(asked, [*fit, *SETTING]),
            "comparisons": _comparisons(weighted, [*at, *SETTING]),
            "without-weights": _without(means[means["what"] == PLAIN], others, at),
            "chosen": _chosen(fits[fits["what"] == CHOSEN], asked, fit),
        }

    # Page

    def page(self, rows: Frame, metric: str) -> tuple[dict[str, Any], Plots]:
        """Sentences, plot and tables of each system."""
        dataset, plots, systems = rows["dataset"].iloc[0], {}, []
        for system in dict.fromkeys(rows["system"]):
            tables = self.tables(part(rows, system=system))
            compared, without = tables["comparisons"], tables["without-weights"]
            place = f"plots/{slug(dataset)}-{slug(system)}.png"
            plots[place] = png(plot_twins, compared, metric)
            said = [
                fitted_sentence(without, metric),
                *sentences(compared, metric),
                chosen_sentence(without, metric),
            ]
            systems.append(
                {
                    "name": system,
                    "sentences": said,
                    "plot": Markdown(place),
                    "table": _main_table(compared, metric),
                    "without": _without_table(without, metric),
                    "chosen": _chosen_table(tables["chosen"], metric),
                }
            )
        return {"systems": systems}, plots


# Rows ---------------------------------------------------------------------------------------------------------


def pick(probed: Probed, metric: str) -> int:
    """The place of the setting that the validation part chose: by the figure, ties by Brier, then the simplest.

    Twins are not among what is chosen from. Equal weights are simpler than others, so they win ties; where nothing
    could be judged, they are chosen.
    """

    def rank(place: int) -> tuple[float, float, bool, int]:
        answer = probed.answers[place]
        figures = answer.validation
        plain = answer.question["temperature"] is None  # equal weights
        return figures.get(metric, -np.inf), -figures.get("brier", np.inf), plain, -place

    open_to = [
        place
        for place, item in enumerate(probed.answers)
        if item.question["temperature"] is None or item.question["weighting"] in twins()
    ]
    return max(open_to, key=rank)


def name_of(question: Question) -> str:
    """One setting as a name."""
    return json.dumps([question[name] for name in SETTING])


def _draws(
    own: Sequence[Probed], picks: Sequence[int], metric: str, n_resamples: int
) -> dict[str, Resampled]:
    """By setting, the figure in the same draws of groups; also of what was fitted, and of what was chosen."""
    results: dict[str, list[CellResult]] = {}
    for item, chosen in zip(own, picks, strict=True):
        for place, answer in enumerate(item.answers):
            results.setdefault(name_of(answer.question), []).append(item.answer_as_result(place, ""))
        results.setdefault(AS_FITTED, []).append(item.result)
        results.setdefault(CHOSEN, []).append(item.answer_as_result(chosen, ""))
    return draws_of(results, metric, n_resamples)


def _weighted_rows(questions: Sequence[Question], draws: Mapping[str, Resampled], metric: str) -> list[Row]:
    """Each weighting and its twins against equal weights in the same block, and against each other."""
    means, rows = [], []
    equal = {_block(question): name_of(question) for question in questions if question["temperature"] is None}
    for question in questions:
        if question["weighting"] not in twins():
            continue
        names_of_twins = dict(zip((OWN, INVERTED, SHUFFLED), twins()[question["weighting"]], strict=True))
        names = {
            twin: name_of({**question, "weighting": weighting}) for twin, weighting in names_of_twins.items()
        }
        names[UNIFORM] = equal[_block(question)]
        means.append(settings_of(question) | {"twin": OWN, "value": _value(draws[names[OWN]], metric)})
        for twin, reference in PREFIXES:
            found = difference_row(draws[names[twin]], draws[names[reference]], metric)
            rows.append(settings_of(question) | {"twin": twin, "reference": reference} | found)
    return means + corrected(rows, lambda row: (row["twin"], row["reference"]))


def _unweighted_rows(questions: Sequence[Question], draws: Mapping[str, Resampled], metric: str) -> list[Row]:
    """What does without weights, what was fitted and what was chosen, against the plain mean."""
    alone = [question for question in questions if question["temperature"] is None]
    plain = next(item for item in alone if item["pooling"] == "mean" and item["smoothing"] == 0)  # SSS's mean
    others = [item for item in alone if item["smoothing"] > 0 or item["pooling"] != "mean"]
    # A window that speaks for itself has no neighbours: the same in every space and with every exclusion.
    home = plain["space"], plain["exclusion"]
    others = [
        other for other in others if other["smoothing"] > 0 or (other["space"], other["exclusion"]) == home
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


def _block(question: Question) -> str:
    """All but the weights: what has this in common has equal weights to be compared with."""
    return json.dumps([question[name] for name in ("space", "exclusion", "pooling", "smoothing")])


def _value(draws: Resampled, metric: str) -> float:
    """Mean over seeds of the test part as it is."""
    by_seed: dict[int, list[float]] = {}
    for (seed, _), figures in draws.figures.items():
        by_seed.setdefault(seed, []).append(float(figures[metric][0]))
    return float(np.nanmean([np.nanmean(item) for item in by_seed.values()]))


# Views --------------------------------------------------------------------------------------------------------


def _comparisons(beside: Frame, index: list[str]) -> Frame:
    """A row for each weighting that is no twin: its figure, then each comparison by its prefix."""
    prefixes = [PREFIXES[key] for key in zip(beside["twin"], beside["reference"], strict=True)]
    beside = beside.assign(prefix=prefixes)
    values, tests = ("difference", "low", "high", "p"), ("p_holm",)
    own = beside.loc[beside["prefix"] == "", [*index, "value", "n_seeds", "n_groups"]]
    found = own.merge(wide(beside, index, columns="prefix", values=values), on=index)
    found = found.merge(wide(beside, index, columns="prefix", values=tests), on=index)
    parts = [f"{prefix}{value}" for prefix in PREFIXES.values() for value in values]
    return found[
        [*index, "value", *parts, "n_seeds", "n_groups", *(f"{item}p_holm" for item in PREFIXES.values())]
    ]


def _without(plain: Frame, others: Frame, at: list[str]) -> Frame:
    """Of each dataset and system the plain mean, then what differs from it."""
    found = pd.concat([plain.assign(what=ALONE), others.astype({"what": object})], ignore_index=True)
    found = found.sort_values(at[:2], kind="stable", key=lambda column: pd.factorize(column)[0])
    numbers = ["value", "difference", "low", "high", "p", "n_seeds", "n_groups", "p_holm"]
    return found[[*at, "what", *SETTING, *numbers]]


def _chosen(chosen: Frame, asked: Frame, fit: list[str]) -> Frame:
    """What the validation part of each seed chose, its figures there and on test, beside the plain mean on test."""
    seen = chosen["metric"].str.startswith(VALIDATION)
    found = chosen[~seen].rename(columns={"value": "test"})
    validation = chosen[seen].assign(metric=chosen["metric"].str.removeprefix(VALIDATION))
    plain = asked[asked["temperature"].isna() & (asked["pooling"] == "mean") & (asked["smoothing"] == 0)]
    on = [*fit, "metric"]
    for name, some in (("validation", validation), ("test_uniform", plain.drop_duplicates(on))):
        found = found.merge(some.rename(columns={"value": name})[[*on, name]], how="left", on=on)
    kept = ["dataset", "system", "metric", "seed", "fold", *SETTING, "validation", "test", "test_uniform"]
    return found[kept]


# Words --------------------------------------------------------------------------------------------------------


def verdict(row: Mapping[str, Any]) -> str:
    """What one row of ``comparisons`` says: whether weights carry information, and whether they help.

    By 95 % intervals: of the difference from the inverted twin, and of the difference from equal weights.

    Examples
    --------
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
    """In plain words, what the rows of one dataset and system say."""
    said = []
    for (weighting, space, exclusion), rows in _blocks(compared):
        distances = (np.log(rows["temperature"]) - np.log(SPOKEN)).abs()
        row = rows.loc[distances.idxmin()].to_dict()
        kind = weighting_named(weighting).phrase
        said.append(
            f"Weights from {PLACES.get(space, space)}{kind}, {_exclusion(exclusion)}, at temperature "
            f"{row['temperature']:g} differ from uniform ones by {difference(row, metric)}, inverted by "
            f"{_part(row, 'inverted_', metric)}, shuffled by {_part(row, 'shuffled_', metric)}: {verdict(row)}."
        )
    better = (compared["p_holm"] < 0.05) & (compared["difference"] > 0)
    worse = (compared["p_holm"] < 0.05) & (compared["difference"] < 0)
    informed = (compared["over_inverted_p_holm"] < 0.05) & (compared["over_inverted_difference"] > 0)
    said.append(
        f"Of all {len(compared)} settings, corrected for their number (Holm, 5 %): {int(better.sum())} do better "
        f"than uniform weights, {int(worse.sum())} do worse; {int(informed.sum())} do better than their inverted "
        "twins."
    )
    return said


def fitted_sentence(without: Frame, metric: str) -> str:
    """What the weights that the model was fitted with give on test."""
    row = without[without["what"] == AS_FITTED].iloc[0].to_dict()
    if row["difference"] == row["low"] == row["high"] == 0:
        return "As fitted, its weights are uniform."
    return f"Its weights as fitted differ from uniform ones by {difference(row, metric)}."


def chosen_sentence(without: Frame, metric: str) -> str:
    """What the setting that validation chose gives on test."""
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
    """The rows that the page shows: windows speak for themselves and are added up as probabilities."""
    return compared[(compared["pooling"] == "mean") & (compared["smoothing"] == compared["smoothing"].min())]


def _blocks(compared: Frame) -> list[tuple[tuple[str, str, str], Frame]]:
    """Those rows by weighting, space and exclusion: all temperatures together."""
    grouped = _plain_rows(compared).groupby(["weighting", "space", "exclusion"], sort=False)
    return [((str(key[0]), str(key[1]), str(key[2])), rows) for key, rows in grouped]


def _exclusion(value: str) -> str:
    """As in the tables: samples, or windows with a point in it."""
    if value == "0":
        return "no exclusion"
    return f"exclusion {value} windows" if "." in value else f"exclusion {value} samples"


def _part(row: Mapping[Any, Any], part: str, metric: str) -> str:
    found = {name: row[f"{part}{name}"] for name in ("difference", "low", "high")}
    return difference(found, metric)


# Tables and plots of the page --------------------------------------------------------------------------------


def _main_table(compared: Frame, metric: str) -> Markdown:
    header = ["weights", "from", "exclusion", "τ", TITLES[metric], "difference", "p", "inverted", "shuffled",
              "over inverted", "p "]  # fmt: skip
    rows = []
    for item in _plain_rows(compared).to_dict("records"):
        rows.append(
            [item["weighting"], item["space"], item["exclusion"], f"{item['temperature']:g}",
             number(item["value"], metric), difference(item, metric), p_text(item["p_holm"]),
             _part(item, "inverted_", metric), _part(item, "shuffled_", metric),
             _part(item, "over_inverted_", metric), p_text(item["over_inverted_p_holm"])]
        )  # fmt: skip
    return table(header, rows)


def _without_table(without: Frame, metric: str) -> Markdown:
    rows = []
    for item in without.to_dict("records"):
        smoothed = not np.isnan(item["smoothing"]) and item["smoothing"] > 0
        if smoothed and item["pooling"] != "mean":
            continue  # in the file
        by = f"{item['smoothing']:g} in {item['space']}, {_exclusion(item['exclusion'])}" if smoothed else "–"
        figures = [number(item["value"], metric), difference(item, metric), p_text(item["p_holm"])]
        rows.append([item["what"], "–" if pd.isna(item["pooling"]) else item["pooling"], by, *figures])
    return table(["what", "pooling", "smoothing", TITLES[metric], "difference", "p"], rows)


def _chosen_table(chosen: Frame, metric: str) -> Markdown:
    rows = []
    for item in chosen.to_dict("records"):
        weighted = not np.isnan(item["temperature"])
        near = (item["space"], item["exclusion"]) if weighted or item["smoothing"] > 0 else ("–", "–")
        sharp = f"{item['temperature']:g}" if weighted else "–"
        how = [item["weighting"], *near, sharp, item["pooling"], f"{item['smoothing']:g}"]
        figures = [item[name] for name in ("validation", "test", "test_uniform")]
        shown = ["–" if np.isnan(value) else number(value, metric) for value in figures]
        rows.append([int(item["seed"]), *how, *shown])
    parts = [f"{TITLES[metric]}, validation", "test", "test, plain mean"]
    return table(["seed", "weights", "from", "exclusion", "τ", "pooling", "smoothing", *parts], rows)


def plot_twins(compared: Frame, metric: str) -> Axes:
    """By temperature, the difference from equal weights: of weights with their interval, inverted and shuffled.

    Parameters
    ----------
    compared
        Rows of ``comparisons`` of one dataset and system.
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
    _tell_small_from_large(panels[0], scale)
    panels[0].set_ylabel(f"{TITLES[metric]}, difference from uniform")
    panels[0].legend(frameon=False, fontsize=8)
    first: Axes = panels[0]
    return first


def _tell_small_from_large(ax: Axes, scale: float) -> None:
    """An axis on which a thousandth shows beside an inverted twin that loses half: logarithmic away from 0."""
    bottom, top = ax.get_ylim()
    ax.set_yscale("symlog", linthresh=0.02 * scale)
    steps = np.array([0.01, 0.02, 0.05, 0.1, 0.2, 0.5]) * scale
    ticks = [float(item) for item in (*-steps[::-1], 0.0, *steps) if bottom <= item <= top]
    ax.set_yticks(ticks, [f"{tick:g}".replace("-", "−") for tick in ticks])
    ax.minorticks_off()
    ax.set_ylim(1.1 * bottom, 1.1 * top)  # room for the marks at the ends
