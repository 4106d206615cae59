"""Analysis of robustness: artefacts, noise, short recordings, and few training series.

    a fitted model, test series -> each condition -> changed copies -> probabilities with own and with equal weights
    evaluations -> tidy rows -> answers.csv, comparisons.csv, plots/*.png, README.md

The model is the one fitted on clean data; few training series are fits of their own, on some of the groups.
Differences are paired: the same changed series, the same bootstrap draws. artefacts.py has the perturbations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raxss.benchmark.analyses.analysis import Analysis, Plots, register_analysis
from raxss.benchmark.analyses.artefacts import ARTEFACTS, MIXED, noisy, shortened, spoiled
from raxss.benchmark.analyses.evaluation import EvaluatedRun, Evaluation, FittedModel, Probe
from raxss.benchmark.analyses.reweighting import weighed
from raxss.benchmark.evaluation_set import View, slug
from raxss.benchmark.pages.figures import COLOURS, INK, open_axes, png
from raxss.benchmark.pages.markdown import NONE, TITLES, Markdown, difference, number, table
from raxss.benchmark.pages.tidy import (
    Row,
    difference_row,
    draws_of,
    evaluation_rows,
    headline,
    of_fits,
    over_seeds,
    part,
    runs_by,
    tidy,
    wide,
)
from raxss.benchmark.result import RunResult
from raxss.benchmark.statistics import N_RESAMPLES, REFERENCES, Resampled, corrected, mean_over_systems
from raxss.data.prepare.folder import read_prepared
from raxss.data.series import Series, SeriesCollection
from raxss.data.splits import groups_by, hold_out
from raxss.errors import ConfigError, one_of

CLEAN, NOISE, SHORT, TRAINING = "clean", "noise", "shortened", "training"
SPOILED = (*ARTEFACTS, MIXED)
#: Kind -> levels, the mildest first: shares of the samples, decibels, shares of the length, of training groups.
LEVELS: dict[str, tuple[float, ...]] = {
    CLEAN: (0.0,),
    **dict.fromkeys(SPOILED, (0.05, 0.1, 0.2, 0.35, 0.5)),
    NOISE: (20.0, 10.0, 5.0, 0.0),
    SHORT: (0.5, 0.25, 0.1),
    TRAINING: (0.5, 0.25, 0.1),
}
OWN, UNIFORM = "own", "uniform"
REVISION = 1  # raised when the same conditions gave other signals than before

REFERENCE = REFERENCES[0]
#: Reference of a difference -> its name in comparisons.csv.
COMPARISONS = {UNIFORM: "own weights − uniform weights", REFERENCE: f"system − {REFERENCE}"}
MEAN = "mean"  # level of means over all levels of a kind

Condition = tuple[str, float]  # kind, level
Frame = pd.DataFrame


def conditions_at_test() -> tuple[Condition, ...]:
    """Conditions of test series, kind by kind."""
    return tuple((kind, level) for kind, levels in LEVELS.items() if kind != TRAINING for level in levels)


def changed(series: Series, kind: str, level: float, *, window_length: int) -> Series:
    """One series under a condition; a shortened one keeps at least ``window_length`` samples."""
    one_of("the kind of a condition", kind, tuple(LEVELS))
    if kind in SPOILED:
        return spoiled(series, kind, level)
    if kind == NOISE:
        return noisy(series, level)
    if kind == SHORT:
        return shortened(series, level, at_least=window_length)
    return series  # clean; or it is the training that was cut


@register_analysis("robustness")
@dataclass(frozen=True, kw_only=True)
class Robustness(Analysis):
    """Test series under every condition (kinds and levels of `LEVELS`), by own weights and by equal ones.

    ``training`` has shares of the training groups; each is a fit of its own.
    """

    title: ClassVar[str] = "what is left when signals are spoiled?"
    template: ClassVar[str] = "robustness.md.j2"

    conditions: Sequence[Condition] = conditions_at_test()
    training: Sequence[float] = LEVELS[TRAINING]

    def __post_init__(self) -> None:
        for kind, _ in self.conditions:
            one_of("the kind of a condition", kind, tuple(LEVELS))

    def decides(self) -> dict[str, Any]:
        """The conditions."""
        return {"robustness": [list(condition) for condition in self.conditions], "revision": REVISION}

    def fits(self, view: View, seed: int) -> list[tuple[View, Probe]]:
        """One fit for all conditions of test series, one for each share of training groups."""
        few: list[tuple[View, Probe]] = [
            (with_fewer_groups(view, seed, share), Robustness(conditions=((TRAINING, share),)))
            for share in self.training
        ]
        return [(view, self), *few]

    def evaluate(self, fitted: FittedModel) -> list[Evaluation]:
        """One evaluation a condition and weighting; a model whose weights are equal has one a condition."""
        weightings = list(dict.fromkeys([fitted.model.weighting, UNIFORM]))
        evaluations = []
        for kind, level in self.conditions:
            series = SeriesCollection(
                changed(item, kind, level, window_length=fitted.window_length) for item in fitted.test
            )
            evaluations += [
                Evaluation(settings={"kind": kind, "level": level, "weights": name}, probabilities=found)
                for name, found in zip(
                    (OWN, UNIFORM), weighed(fitted.model, series, weightings), strict=False
                )
            ]
        return evaluations

    def rows(self, runs: Sequence[EvaluatedRun], *, n_resamples: int = N_RESAMPLES) -> Frame:
        """Metrics of every fit and condition; differences from uniform weights and SSS, also over all levels."""
        rows = evaluation_rows(runs)
        for dataset, own in runs_by("dataset", runs):
            metric = headline(own[0].result)
            results: dict[Any, list[RunResult]] = {}
            for run in own:
                for place, evaluation in enumerate(run.evaluations):
                    condition = (evaluation.settings[name] for name in ("weights", "kind", "level"))
                    results.setdefault((run.result.system, *condition), []).append(run.as_result(place))
            draws = draws_of(results, metric, n_resamples)
            for system in dict.fromkeys(system for system, *_ in draws):
                for reference, other in ((UNIFORM, (system, UNIFORM)), (REFERENCE, (REFERENCE, OWN))):
                    if other != (system, OWN):  # else the reference itself
                        at = {"dataset": dataset, "system": system, "weights": OWN, "reference": reference}
                        rows += [at | row for row in _family(draws, (system, OWN), other, metric)]
        return tidy(rows)

    def tables(self, rows: Frame) -> dict[str, Frame]:
        """``answers`` and ``comparisons``."""
        return {
            "answers": wide(of_fits(rows), ["dataset", "system", "seed", "fold", "kind", "level", "weights"]),
            "comparisons": _comparisons(rows),
        }

    def page(self, rows: Frame, metric: str) -> tuple[dict[str, Any], Plots]:
        """Sentences, figures, differences and the plot."""
        compared = _comparisons(rows)
        fits = part(of_fits(rows), metric=metric)
        place = f"plots/{slug(rows['dataset'].iloc[0])}.png"
        block = {
            "plot": Markdown(place),
            "reference": REFERENCE,
            "sentences": sentences(compared, metric),
            "figures": _figures_table(fits, metric),
            "differences": [
                (what, _difference_table(own, metric))
                for what, own in compared.groupby("comparison", sort=False)
            ],
        }
        return block, {place: png(plot_curves, fits, metric)}


def with_fewer_groups(view: View, seed: int, share: float) -> View:
    """The view of one seed with a share of its training groups, stratified; smaller shares are nested in larger.

    Validation and test series stay as they are.
    """
    if not 0 < share < 1:
        raise ConfigError(f"the share of training groups is {share}; needed is a number between 0 and 1.")
    split = view.splits[seed]
    collection = read_prepared(view.folder)
    by = "channel" if split.by == "centre" else split.by  # there are few centres: single series are removed
    _, groups = groups_by(collection, by)
    codes = {group: code for code, group in enumerate(dict.fromkeys(groups))}
    kept, rest = hold_out(
        collection[split.train].labels,
        fraction=1 - share,
        seed=seed,
        groups=[codes[groups[index]] for index in split.train],
    )
    fewer = replace(
        split,
        train=split.train[kept],
        dropped=np.sort(np.concatenate([split.dropped, split.train[rest]])),
        description=f"{split.description}, {100 * share:g} % of the training groups",
    )
    recorded = view.as_recorded  # what a system on its own gets
    recorded = None if recorded is None else with_fewer_groups(recorded, seed, share)
    return replace(view, splits={seed: fewer}, as_recorded=recorded)


# Rows and views -----------------------------------------------------------------------------------------------


def _family(
    draws: Mapping[Any, Resampled], item: tuple[str, str], other: tuple[str, str], metric: str
) -> list[Row]:
    """One (system, weights) against another under every condition that both have, and over all levels of a kind."""
    rows, means = [], []
    for kind, levels in LEVELS.items():
        keys = [(level, (*item, kind, level), (*other, kind, level)) for level in levels]
        both = [(level, draws[a], draws[b]) for level, a, b in keys if a in draws and b in draws]
        rows += [{"kind": kind, "level": level} | difference_row(a, b, metric) for level, a, b in both]
        if len(levels) > 1 and len(both) == len(levels):
            a, b = (mean_over_systems(some, MEAN) for some in list(zip(*both, strict=True))[1:])
            means.append({"kind": kind} | difference_row(a, b, metric))  # of the same draws
    return corrected(rows) + corrected(means)


def _comparisons(rows: Frame) -> Frame:
    """Differences under every condition, the level as text: `MEAN` over all levels of a kind."""
    found = over_seeds(rows, differences=True).rename(columns={"value": "difference"})
    found = found.assign(
        comparison=found["reference"].map(COMPARISONS),
        level=[MEAN if level != level else f"{level:g}" for level in found["level"]],
    )
    numbers = ["difference", "low", "high", "p", "n_seeds", "n_groups", "p_holm"]
    return found[["dataset", "metric", "comparison", "system", "kind", "level", *numbers]]


# Sentences ----------------------------------------------------------------------------------------------------


def sentences(compared: Frame, metric: str) -> list[str]:
    """Comparisons of one dataset in sentences: means over the levels of a kind, corrected (Holm) over kinds."""
    found = []
    for (what, system), rows in compared.groupby(["comparison", "system"], sort=False):
        clean = rows[rows["kind"] == CLEAN]
        means = rows[rows["level"] == MEAN]
        if means.empty:
            continue
        own = what == COMPARISONS[UNIFORM]
        begin = f"{system}, {'its weights against uniform ones' if own else f'against {REFERENCE}'}"
        if len(clean):
            begin += f", on clean signals: {difference(clean.iloc[0].to_dict(), metric)}"
        sure = means[means["p_holm"] < 0.05]
        signs = {"better": sure[sure["difference"] > 0], "worse": sure[sure["difference"] < 0]}
        parts = [f"{word} under {_listed(some, metric)}" for word, some in signs.items() if len(some)]
        if means["p_holm"].isna().all():
            parts = ["there are too few groups to say more"]
        elif not parts:
            parts = ["under no kind of disturbance can the two be told apart"]
        elif len(sure) < len(means):
            parts.append("under the others the two cannot be told apart")
        end = "; ".join(parts)
        found.append(f"{begin}. {end[0].upper()}{end[1:]}.")
    return found


def _listed(rows: Frame, metric: str) -> str:
    return ", ".join(f"{_kind(row['kind'])} {difference(row, metric)}" for row in rows.to_dict("records"))


def _kind(kind: str) -> str:
    return {SHORT: "shortening", TRAINING: "few training series", "mixed": "mixed artefacts"}.get(kind, kind)


def level_text(kind: str, level: str) -> str:
    """A level as text.

    >>> level_text("drift", "0.05"), level_text("noise", "20"), level_text("drift", "mean")
    ('5 %', '20 dB', 'all levels')
    """
    if level == MEAN:
        return "all levels"
    if kind == CLEAN:
        return NONE
    return f"{float(level):g} dB" if kind == NOISE else f"{100 * float(level):g} %"


# Tables and plot of the page ---------------------------------------------------------------------------------


def _figures_table(fits: Frame, metric: str) -> Markdown:
    """Mean over seeds of every system under every condition."""
    texts = {
        name: {(kind, f"{level:g}"): number(value, metric) for (kind, level), value in own.items()}
        for name, own in _means(fits, metric).items()
    }
    return _by_condition(texts)


def _difference_table(compared: Frame, metric: str) -> Markdown:
    """Differences of every system, with an asterisk where they are significant after correction."""
    texts: dict[str, dict[tuple[str, str], str]] = {}
    for row in compared.to_dict("records"):
        text = difference(row, metric) + (" *" if row["p_holm"] < 0.05 else "")
        texts.setdefault(row["system"], {})[row["kind"], row["level"]] = text
    return _by_condition(texts, mean=True)


def _by_condition(texts: Mapping[str, Mapping[tuple[str, str], str]], *, mean: bool = False) -> Markdown:
    """A row for each kind and level, and with ``mean`` for all levels of a kind; a column for each system."""
    rows = [
        [_kind(kind), level_text(kind, level), *(own.get((kind, level), NONE) for own in texts.values())]
        for kind, levels in LEVELS.items()
        for level in [f"{item:g}" for item in levels] + ([MEAN] if mean and len(levels) > 1 else [])
    ]
    return table(["kind", "level", *texts], rows)


def _means(fits: Frame, metric: str) -> dict[str, dict[tuple[str, float], float]]:
    """System, or system with uniform weights -> condition -> mean over seeds (over a seed's folds first)."""
    by_seed = fits.groupby(["system", "weights", "kind", "level", "seed"], sort=False)["value"].mean()
    means = by_seed.groupby(level=["system", "weights", "kind", "level"], sort=False).mean()
    found: dict[str, dict[tuple[str, float], float]] = {}
    for item in means.reset_index().to_dict("records"):
        name = item["system"] if item["weights"] == OWN else f"{item['system']}, uniform"
        found.setdefault(name, {})[item["kind"], item["level"]] = float(item["value"])
    return found


def plot_curves(fits: Frame, metric: str) -> Axes:
    """One panel a kind: the metric of each system by level, clean at the left; dashed: with uniform weights.

    ``fits`` has the rows of single fits, of one dataset and metric.
    """
    means = _means(fits, metric)
    systems = list(dict.fromkeys(name.removesuffix(", uniform") for name in means))
    others = [entry for entry in systems if entry != REFERENCE]
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(others)} | {REFERENCE: INK}
    kinds = [kind for kind in LEVELS if kind != CLEAN]
    figure = Figure(figsize=(11, 5.4), layout="constrained")
    panels = figure.subplots(2, (len(kinds) + 1) // 2, sharey=True).ravel()
    for ax, kind in zip(panels, kinds, strict=False):
        levels = LEVELS[kind]
        for name, own in means.items():
            system = name.removesuffix(", uniform")
            values = [own.get((CLEAN, 0.0), np.nan), *(own.get((kind, level), np.nan) for level in levels)]
            scaled = np.array(values) * (100 if metric == "accuracy" else 1)
            style = {"ls": "-" if name == system else "--", "marker": "o", "ms": 3, "lw": 1.3}
            ax.plot(range(len(scaled)), scaled, color=colours[system], label=name, **style)
        ticks = ["clean" if kind != TRAINING else "all", *(level_text(kind, f"{item:g}") for item in levels)]
        ax.set_xticks(range(len(ticks)), ticks, fontsize=7.5)
        ax.set_title(_kind(kind), fontsize=9)
        open_axes(ax, grid=True)
    for ax in panels[len(kinds) :]:
        ax.set_axis_off()
    for ax in panels[:: (len(kinds) + 1) // 2]:
        ax.set_ylabel(TITLES[metric])
    handles, labels = panels[0].get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    for text in legend.get_texts():
        text.set_parse_math(False)  # names are not formulas
    first: Axes = panels[0]
    return first
