"""Do the weights of windows carry information, and do they help?

    Probed results of every setting -> answers.csv, comparisons.csv, without-weights.csv, chosen.csv
    these alone                     -> plots/*.png, README.md

A weighting that carries information does worse when it is inverted; one whose inverted twin does as well explains
nothing, however good its score. The words of the page follow from the numbers by the rules in `verdict`.
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
from raxss.benchmark.analyses.reweighting_tables import AS_FITTED, CHOSEN, tables_of
from raxss.benchmark.evaluation_set import slug
from raxss.benchmark.pages.markdown import (
    PERCENT,
    TITLES,
    Markdown,
    difference,
    number,
    p_text,
    render,
    table,
)
from raxss.benchmark.pages.report import csv_text, png, read_table
from raxss.benchmark.prediction_tables import (
    about,
    by_dataset,
    by_system,
    devices_in,
    failures,
    headline,
    write_all,
)
from raxss.benchmark.statistics import FAINT, INK, N_RESAMPLES, STEP
from raxss.method.weighting.protocol import weighting_named

SPOKEN = 0.1  # the temperature that the page speaks of, or the nearest to it; the paper's is not known
PLACES = {"signal": "the signal", "features": "the network's features"}
WARM = "#c2572b"  # inverted
#: Columns that are no numbers.
IN_WORDS = ("dataset", "system", "metric", "fold", "what", "space", "exclusion", "weighting", "pooling")

Frame = pd.DataFrame


def write_reweighting(
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
        Fits that were asked by `raxss.benchmark.analyses.reweighting.Reweighting`.
    facts, errors
        What was noted beside the results, and of those that failed.
    """
    tables = tables_of(probed, n_resamples=n_resamples)
    shown = {name: _read_back(one) for name, one in tables.items()}
    blocks = [
        _dataset(dataset, own, {name: _of(one, dataset=dataset) for name, one in shown.items()})
        for dataset, own in by_dataset(probed)
    ]
    page = render(
        "reweighting.md.j2",
        study=study_name,
        n_done=len(probed),
        datasets=[one for one, _ in blocks],
        failed=failures(errors),
        n_failed=len(errors),
        devices=devices_in(facts),
    )
    plots = {name: content for _, some in blocks for name, content in some.items()}
    return write_all(out, tables, plots, page)


def _read_back(one: Frame) -> Frame:
    """As its file has it: the page says no more than the tables do."""
    if one.empty:
        return one
    found = read_table(csv_text(one))
    numbers = [name for name in found if name not in IN_WORDS]
    return found.assign(**{str(name): pd.to_numeric(found[name]) for name in numbers})


def _of(frame: Frame, **wanted: Any) -> Frame:
    for name, value in wanted.items():
        if name in frame:
            frame = frame[frame[name] == value]
    return frame


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


# Page ---------------------------------------------------------------------------------------------------------


def _dataset(
    name: str, probed: Sequence[Probed], tables: Mapping[str, Frame]
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """What the page says about one dataset, and its plots."""
    metric = headline(probed[0].result)
    systems, plots = [], {}
    for system, _ in by_system(probed):
        own = {key: _of(one, system=system) for key, one in tables.items()}
        place = f"plots/{slug(name)}-{slug(system)}.png"
        with matplotlib.style.context("default"):  # not the reader's style: same results, same bytes
            plots[place] = png(plot_twins(own["comparisons"], metric))
        systems.append(
            {
                "name": system,
                "sentences": [
                    fitted_sentence(own["without-weights"], metric),
                    *sentences(own["comparisons"], metric),
                    chosen_sentence(own["without-weights"], metric),
                ],
                "plot": Markdown(place),
                "table": _main_table(own["comparisons"], metric),
                "without": _without_table(own["without-weights"], metric),
                "chosen": _chosen_table(own["chosen"], metric),
            }
        )
    return {"name": name, "metric": TITLES[metric], "systems": systems, **about(probed)}, plots


def _main_table(compared: Frame, metric: str) -> Markdown:
    header = ["weights", "from", "exclusion", "τ", TITLES[metric], "difference", "p", "inverted", "shuffled",
              "over inverted", "p "]  # fmt: skip
    rows = []
    for one in _plain_rows(compared).to_dict("records"):
        rows.append(
            [one["weighting"], one["space"], one["exclusion"], f"{one['temperature']:g}",
             number(one["value"], metric), difference(one, metric), p_text(one["p_holm"]),
             _part(one, "inverted_", metric), _part(one, "shuffled_", metric),
             _part(one, "over_inverted_", metric), p_text(one["over_inverted_p_holm"])]
        )  # fmt: skip
    return table(header, rows)


def _without_table(without: Frame, metric: str) -> Markdown:
    rows = []
    for one in without.to_dict("records"):
        smoothed = not np.isnan(one["smoothing"]) and one["smoothing"] > 0
        if smoothed and one["pooling"] != "mean":
            continue  # in the file
        by = f"{one['smoothing']:g} in {one['space']}, {_exclusion(one['exclusion'])}" if smoothed else "–"
        figures = [number(one["value"], metric), difference(one, metric), p_text(one["p_holm"])]
        rows.append([one["what"], one["pooling"] or "–", by, *figures])
    return table(["what", "pooling", "smoothing", TITLES[metric], "difference", "p"], rows)


def _chosen_table(chosen: Frame, metric: str) -> Markdown:
    rows = []
    for one in chosen.to_dict("records"):
        weighted = weighting_named(one["weighting"]).needs_retrieval
        near = (one["space"], one["exclusion"]) if weighted or one["smoothing"] > 0 else ("–", "–")
        sharp = f"{one['temperature']:g}" if weighted else "–"
        how = [one["weighting"], *near, sharp, one["pooling"], f"{one['smoothing']:g}"]
        figures = [one[name] for name in ("validation", "test", "test_uniform")]
        shown = ["–" if np.isnan(value) else number(value, metric) for value in figures]
        rows.append([int(one["seed"]), *how, *shown])
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
    size = 2.9 * len(blocks) + 0.6, 3.0
    panels = Figure(figsize=size, layout="constrained").subplots(1, len(blocks), sharey=True, squeeze=False)[
        0
    ]
    scale = 100.0 if metric in PERCENT else 1.0
    for ax, ((weighting, space, exclusion), rows) in zip(panels, blocks, strict=True):
        x = rows["temperature"]
        ax.axhline(0, color=FAINT, lw=0.8)
        ax.fill_between(x, scale * rows["low"], scale * rows["high"], color=STEP, alpha=0.18, lw=0)
        ax.plot(x, scale * rows["difference"], "o-", color=STEP, ms=4, label=weighting)
        ax.plot(x, scale * rows["inverted_difference"], "s--", color=WARM, ms=4, label="inverted")
        ax.plot(x, scale * rows["shuffled_difference"], "^:", color=INK, ms=4, label="shuffled")
        ax.set_xscale("log")
        ax.set_xticks(x, [f"{one:g}" for one in x])
        ax.minorticks_off()
        ax.set_title(f"{weighting}, {space}, {_exclusion(exclusion)}", fontsize=8.5)
        ax.set_xlabel("temperature")
        ax.spines[["top", "right"]].set_visible(False)
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
    ticks = [float(one) for one in (*-steps[::-1], 0.0, *steps) if bottom <= one <= top]
    ax.set_yticks(ticks, [f"{one:g}".replace("-", "−") for one in ticks])
    ax.minorticks_off()
    ax.set_ylim(1.1 * bottom, 1.1 * top)  # room for the marks at the ends
