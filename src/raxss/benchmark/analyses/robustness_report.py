"""What do weights save when signals are spoiled, and where?

    Probed results under every condition -> answers.csv      a row for each fit, condition and weighting
                                         -> comparisons.csv  by condition: weights against equal ones, against SSS
    these alone                          -> plots/*.png, README.md

Differences are paired: the same spoiled series, the same draws of groups. The mean over the levels of a kind is of
the same draws too, so it has an interval of its own. artefacts.py says what each kind does to a signal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raxss.benchmark.analyses.probe import Probed
from raxss.benchmark.analyses.robustness import CLEAN, LEVELS, NOISE, OWN, SHORT, TRAINING, UNIFORM
from raxss.benchmark.evaluation_set import slug
from raxss.benchmark.pages.markdown import TITLES, Markdown, difference, number, render, table
from raxss.benchmark.pages.report import csv_text, png, read_table
from raxss.benchmark.prediction_tables import (
    about,
    answers_table,
    by_dataset,
    devices_in,
    failures,
    headline,
    write_all,
)
from raxss.benchmark.statistics import (
    INK,
    N_RESAMPLES,
    REFERENCES,
    Resampled,
    holm,
    mean_over_systems,
    resampled,
)
from raxss.benchmark.statistics import difference as difference_of

REFERENCE = REFERENCES[0]
FROM_UNIFORM, FROM_REFERENCE = "own weights − uniform weights", f"system − {REFERENCE}"
MEAN = "mean"  # in the place of a level: over all levels of a kind
COLOURS = ("#31688e", "#c2572b", "#3b8f5a", "#8a5aa8", "#a3892b", "#7a7a7a")

Frame = pd.DataFrame
Key = tuple[str, str, float, str]  # system, kind, level, weights


def write_robustness(
    probed: Sequence[Probed],
    *,
    facts: Sequence[Mapping[str, Any]],
    errors: Sequence[Mapping[str, Any]],
    out: Path | str,
    study_name: str,
    n_resamples: int = N_RESAMPLES,
) -> list[Path]:
    """Write tables, plots and page; each file appears whole, the page last.

    Parameters
    ----------
    probed
        Fits that were asked by `raxss.benchmark.analyses.robustness.Robustness`.
    facts, errors
        What was noted beside the results, and of those that failed.
    """
    tables = tables_of(probed, n_resamples=n_resamples)
    shown = {name: _read_back(one) for name, one in tables.items()}
    datasets, plots = [], {}
    for name, own in by_dataset(probed):
        parts = {key: one[one["dataset"] == name] if len(one) else one for key, one in shown.items()}
        metric, place = headline(own[0].result), f"plots/{slug(name)}.png"
        with matplotlib.style.context("default"):  # not the reader's style: same results, same bytes
            plots[place] = png(plot_curves(parts["answers"], metric))
        datasets.append(_dataset(name, own, parts, metric) | {"plot": Markdown(place)})
    page = render(
        "robustness.md.j2",
        study=study_name,
        n_done=len(probed),
        datasets=datasets,
        failed=failures(errors),
        n_failed=len(errors),
        devices=devices_in(facts),
        reference=REFERENCE,
    )
    return write_all(out, tables, plots, page)


# Tables -------------------------------------------------------------------------------------------------------


def tables_of(probed: Sequence[Probed], *, n_resamples: int = N_RESAMPLES) -> dict[str, Frame]:
    """``answers`` and ``comparisons``, as `write_robustness` writes them."""
    rows: list[dict[str, Any]] = []
    for dataset, own in by_dataset(probed):
        metric = headline(own[0].result)
        draws = _draws(own, metric, n_resamples)
        for system in dict.fromkeys(system for system, *_ in draws):
            for what, other in ((FROM_UNIFORM, (system, UNIFORM)), (FROM_REFERENCE, (REFERENCE, OWN))):
                if other == (system, OWN):
                    continue  # the reference itself
                found = _family(draws, (system, OWN), other, metric)
                where = {"dataset": dataset, "metric": metric, "comparison": what, "system": system}
                rows += [where | row for row in found]
    return {"answers": answers_table(probed), "comparisons": pd.DataFrame(rows)}


def _draws(probed: Sequence[Probed], metric: str, n_resamples: int) -> dict[Key, Resampled]:
    """The figure of every system, condition and weighting of one dataset in the same draws of groups."""
    results, keys = [], {}
    for one in probed:
        for place, answer in enumerate(one.answers):
            asked = answer.question
            key = one.result.system, str(asked["kind"]), float(asked["level"]), str(asked["weights"])
            keys[repr(key)] = key
            results.append(one.answer_as_result(place, repr(key)))
    found = {one.system: one for one in resampled(results, n_resamples=n_resamples, metrics=[metric])}
    return {key: found[name] for name, key in keys.items()}


def _family(
    draws: Mapping[Key, Resampled], one: tuple[str, str], other: tuple[str, str], metric: str
) -> list[dict[str, Any]]:
    """One (system, weights) against another under every condition that both were asked about, and by kind."""
    rows, means = [], []
    for kind, levels in LEVELS.items():
        keys = [(level, (one[0], kind, level, one[1]), (other[0], kind, level, other[1])) for level in levels]
        both = [(level, draws[a], draws[b]) for level, a, b in keys if a in draws and b in draws]
        rows += [_row(a, b, metric, kind, f"{level:g}") for level, a, b in both]
        if len(levels) > 1 and len(both) == len(levels):
            own = mean_over_systems([a for _, a, _ in both], MEAN)
            means.append(_row(own, mean_over_systems([b for _, _, b in both], MEAN), metric, kind, MEAN))
    for family in (rows, means):
        for row, p in zip(family, holm([row["p"] for row in family]), strict=True):
            row["p_holm"] = float(p)
    return rows + means


def _row(own: Resampled, other: Resampled, metric: str, kind: str, level: str) -> dict[str, Any]:
    found = difference_of(own, other, metric)
    kept = ("difference", "low", "high", "p", "n_seeds", "n_groups")
    return {"kind": kind, "level": level, **{name: found[name] for name in kept}}


def _read_back(one: Frame) -> Frame:
    """As its file has it: the page says no more than the tables do."""
    return read_table(csv_text(one)) if len(one) else one


# Words --------------------------------------------------------------------------------------------------------


def sentences(compared: Frame, metric: str) -> list[str]:
    """In plain words, what the comparisons of one dataset say, kind by kind.

    By the mean over the levels of a kind, corrected (Holm) over kinds.
    """
    said = []
    for (what, system), rows in compared.groupby(["comparison", "system"], sort=False):
        clean = rows[rows["kind"] == CLEAN]
        means = rows[rows["level"] == MEAN]
        if means.empty:
            continue
        against = "its weights against uniform ones" if what == FROM_UNIFORM else f"against {REFERENCE}"
        begin = f"{system}, {against}"
        if len(clean):
            begin += f", on clean signals: {difference(clean.iloc[0].to_dict(), metric)}"
        sure = means[means["p_holm"] < 0.05]
        better, worse = sure[sure["difference"] > 0], sure[sure["difference"] < 0]
        told = [f"{word} under {_listed(some, metric)}" for word, some in (("better", better), ("worse", worse))
                if len(some)]  # fmt: skip
        if means["p_holm"].isna().all():
            told = ["there are too few groups to say more"]
        elif not told:
            told = ["under no kind of disturbance can the two be told apart"]
        elif len(sure) < len(means):
            told.append("under the others the two cannot be told apart")
        end = "; ".join(told)
        said.append(f"{begin}. {end[0].upper()}{end[1:]}.")
    return said


def _listed(rows: Frame, metric: str) -> str:
    return ", ".join(f"{_kind(row['kind'])} {difference(row, metric)}" for row in rows.to_dict("records"))


def _kind(kind: str) -> str:
    return {SHORT: "shortening", TRAINING: "few training series", "mixed": "mixed artefacts"}.get(kind, kind)


def level_text(kind: str, level: str) -> str:
    """A level as a reader would say it.

    >>> level_text("drift", "0.05"), level_text("noise", "20"), level_text("drift", "mean")
    ('5 %', '20 dB', 'all levels')
    """
    if level == MEAN:
        return "all levels"
    if kind == CLEAN:
        return "–"
    return f"{float(level):g} dB" if kind == NOISE else f"{100 * float(level):g} %"


# Page ---------------------------------------------------------------------------------------------------------


def _dataset(name: str, probed: Sequence[Probed], tables: Mapping[str, Frame], metric: str) -> dict[str, Any]:
    compared = tables["comparisons"]
    comparisons = [] if compared.empty else list(dict.fromkeys(compared["comparison"]))
    return {
        "name": name,
        "metric": TITLES[metric],
        "sentences": [] if compared.empty else sentences(compared, metric),
        "figures": _figures_table(tables["answers"], metric),
        "differences": [
            (what, _difference_table(compared[compared["comparison"] == what], metric))
            for what in comparisons
        ],
        **about(probed),
    }


def _figures_table(answers: Frame, metric: str) -> Markdown:
    """Mean over seeds of every system under every condition."""
    means = _means(answers, metric)
    names = list(means)
    rows = [
        [_kind(kind), level_text(kind, f"{level:g}"), *(
            number(means[name][kind, level], metric) if (kind, level) in means[name] else "–" for name in names
        )]
        for kind, levels in LEVELS.items() for level in levels
    ]  # fmt: skip
    return table(["kind", "level", *names], rows)


def _means(answers: Frame, metric: str) -> dict[str, dict[tuple[str, float], float]]:
    """System, or system with uniform weights -> condition -> mean over seeds (over a seed's folds first)."""
    answers = answers.assign(level=pd.to_numeric(answers["level"]))
    by_seed = answers.groupby(["system", "weights", "kind", "level", "seed"], sort=False)[metric].mean()
    means = by_seed.groupby(level=["system", "weights", "kind", "level"], sort=False).mean()
    found: dict[str, dict[tuple[str, float], float]] = {}
    for one in means.reset_index().to_dict("records"):
        name = one["system"] if one["weights"] == OWN else f"{one['system']}, uniform"
        found.setdefault(name, {})[one["kind"], one["level"]] = float(one[metric])
    return found


def _difference_table(compared: Frame, metric: str) -> Markdown:
    systems = list(dict.fromkeys(compared["system"]))
    rows = []
    for kind, levels in LEVELS.items():
        for level in [f"{one:g}" for one in levels] + ([MEAN] if len(levels) > 1 else []):
            here = compared[(compared["kind"] == kind) & (compared["level"] == level)]
            of_system = {row["system"]: row for row in here.to_dict("records")}
            shown = [_marked(of_system[one], metric) if one in of_system else "–" for one in systems]
            rows.append([_kind(kind), level_text(kind, level), *shown])
    return table(["kind", "level", *systems], rows)


def _marked(row: Mapping[Any, Any], metric: str) -> str:
    """A difference; with an asterisk where it stands after correction."""
    return difference(row, metric) + (" *" if row["p_holm"] < 0.05 else "")


def plot_curves(answers: Frame, metric: str) -> Axes:
    """One panel a kind: the figure of each system by level, clean at the left; dashed: with uniform weights.

    Parameters
    ----------
    answers
        Rows of ``answers`` of one dataset.
    """
    means = _means(answers, metric)
    systems = list(dict.fromkeys(name.removesuffix(", uniform") for name in means))
    others = [one for one in systems if one != REFERENCE]
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
            style = "-" if name == system else "--"
            ax.plot(
                range(len(scaled)), scaled, style, marker="o", ms=3, lw=1.3, color=colours[system], label=name
            )
        ticks = ["clean" if kind != TRAINING else "all", *(level_text(kind, f"{one:g}") for one in levels)]
        ax.set_xticks(range(len(ticks)), ticks, fontsize=7.5)
        ax.set_title(_kind(kind), fontsize=9)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="y", color="#eeeeee", lw=0.8)
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
