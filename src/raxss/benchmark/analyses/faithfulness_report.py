"""Pages of faithfulness: tables, plots, README.md and page.html, and the index of all datasets.

    Parts by model, of controls -> measures.csv, summary.csv, curves.csv, features.csv, statements.csv, verdict.json
    these alone                 -> plots/*.png, README.md, page.html

Every sentence follows from numbers by the rules of raxss.explain.faithfulness.verdict, which are on the page.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raxss._core.atomic import json_ready, write_bytes, write_json
from raxss._core.bounded import read_json
from raxss.benchmark.analyses.faithfulness_control import CONTEXT_CONTROLS, CONTROLS
from raxss.benchmark.evaluation_set import slug
from raxss.benchmark.pages.figures import open_axes, png
from raxss.benchmark.pages.files import csv_of, write_all
from raxss.benchmark.pages.markdown import NONE, Markdown, plain, render, render_html, table
from raxss.benchmark.pages.tidy import part, tidy, wide
from raxss.errors import join_names
from raxss.explain.faithfulness import verdict
from raxss.explain.faithfulness.deletion import DIRECTIONS, GRADIENT, OCCLUSION, ORDERS, RANDOM
from raxss.explain.faithfulness.measures import mean_curves, measures_of, missing_orders, summarised
from raxss.explain.faithfulness.perturbation import BASELINES
from raxss.explain.faithfulness.running import Parts
from raxss.explain.faithfulness.verdict import PAGE, Statement, statements

Frame = pd.DataFrame
COLOURS = {
    "contribution": "#31688e",
    "weight": "#a3892b",
    "posterior": "#3b8f5a",
    "gradient": "#c2572b",
    "occlusion": "#8a5aa8",
    "random": "#7a7a7a",
}
FAR_FROM_COMPLETE = 0.25  # of the change that integrated gradients should add up to
#: Column of the index -> beginning of the claims that it shows.
SHOWN = {
    "balanced accuracy": "The model decides",
    "area gained (surrogate, mean)": "The score rests",
    "evidence left without the network": "Evidence depends on what",
    "moved by other neighbours (shuffled, other series, inverted)": "The score depends on who",
}
#: Table of the page -> probe, and measures that are its columns.
CROSSED = {
    "retrieval": ("retrieval", ("moved", "weights_moved", "rank_correlation", "top_overlap", "flipped",
                                "balanced accuracy lost")),
    "network": ("network", ("rank_correlation", "posterior_correlation", "weight_correlation", "moved")),
    "windows": ("counterfactual", ("fall, strongest window", "fall, random window", "fall beyond random")),
    "flips": ("flip", ("decision can be changed", "share replaced", "seconds replaced")),
    "localisation": ("localisation", ("area", "chance", "base_rate", "by_posterior", "by_weight")),
    "context": ("context", ("moved", "fall", "flipped", "balanced accuracy lost")),
    "stability": ("stability", ("rank_correlation", "top_overlap", "moved", "flipped")),
}  # fmt: skip
MARKS = {"yes": "✓", "no": "✗", "unclear": "?"}


def write_faithfulness(
    found: Mapping[str, Parts],
    *,
    out: Path | str,
    title: str,
    controls: Mapping[str, Parts] | None = None,
) -> list[Path]:
    """Write tables, plots and page, the page last.

    ``found`` has the results of probes by model, ``controls`` those of models whose explanations are known to be
    faithful or not.
    """
    out, controls = Path(out), controls or {}
    everyone = {**found, **controls}
    tables = tables_of(rows_of(everyone))
    judged = {
        name: [
            item
            for item in statements(part(tables["summary"], model=name), n_classes=len(parts.about["classes"]))
            if item.probe not in parts.about.get("in_part", {})
        ]
        for name, parts in everyone.items()
    }
    verdicts = {
        name: verdict(some, has_layers="network" not in _not_of_the_whole(everyone[name]))
        for name, some in judged.items()
        if name not in CONTEXT_CONTROLS  # of one probe, not of whole explanations
    }
    rows = [{"model": name, **asdict(item)} for name, some in judged.items() for item in some]
    tables["statements"] = pd.DataFrame(rows)
    files: dict[str, bytes] = {}
    pictures: dict[str, list[str]] = {}
    models = []
    for name, parts in found.items():
        own = {key: part(entry, model=name) if len(entry) else entry for key, entry in tables.items()}
        plots = _plots(own)
        places = {key: f"plots/{slug(name)}-{key}.png" for key in plots}
        files |= {places[key]: plots[key] for key in plots}
        pictures[name] = [base64.b64encode(content).decode() for content in plots.values()]
        models.append(_model(name, parts, own, judged[name], verdicts[name], places))
    page = render(
        "faithfulness.md.j2",
        title=title,
        models=models,
        verdicts=table(
            ["system", "verdict", "why"],
            [[f"{name} (control)" if name in controls else name, *row] for name, row in verdicts.items()],
        ),
        claims=_claims(judged),
        rules=_rules(judged),
        has_controls=bool(controls),
        has_context_controls=any(name in controls for name in CONTEXT_CONTROLS),
    )
    reported = {
        name: {"verdict": word, "why": why, "said": [[item.holds, item.said] for item in judged[name]]}
        for name, (word, why) in verdicts.items()
    }
    missing = {name: _missing(parts) for name, parts in found.items()}
    about = {name: parts.about for name, parts in everyone.items()}
    write_json(out / "verdict.json", {"verdicts": reported, "about": json_ready(about)})
    html = render_html(
        "faithfulness.html.j2",
        title=title,
        verdicts=reported,
        probed=found,
        missing=missing,
        pictures=pictures,
        marks=MARKS,
    )
    return write_all(out, tables, files | {PAGE: html.encode()}, page)


def write_index(folder: Path | str) -> Path:
    """Write the table of the verdicts of all pages below a folder, with the numbers that they rest on.

    Controls are the same beside every dataset, and are listed once. The page begins with ``about.md``.
    """
    rows: list[list[object]] = []
    controls: list[list[object]] = []
    for place in sorted(Path(folder).glob("*/verdict.json")):
        claims = pd.read_csv(io.StringIO(csv_of(place.with_name("statements.csv"))))
        found = read_json(place)
        for name, item in found["verdicts"].items():
            own = claims[claims["model"].astype(str) == str(name)]
            line = [name, item["verdict"], *(_of_claim(own, start) for start in SHOWN.values())]
            dataset = found["about"].get(name, {}).get("dataset") or place.parent.name
            if name not in CONTROLS:
                rows.append([Markdown(f"[{plain(dataset)}]({place.parent.name}/README.md)"), *line])
            elif ["control", *line] not in controls:
                controls.append(["control", *line])
    by_hand = Path(folder) / "about.md"
    page = render(
        "faithfulness_index.md.j2",
        verdicts=table(["dataset", "system", "verdict", *SHOWN], rows + controls),
        about=Markdown(by_hand.read_text("utf-8").strip()) if by_hand.exists() else "",
    )
    write_bytes(Path(folder) / "README.md", page.encode())
    return Path(folder) / "README.md"


def _of_claim(claims: Frame, start: str) -> str:
    """Numbers of the claims that begin with ``start``."""
    own = claims[claims["claim"].str.startswith(start)]
    return ", ".join(f"{MARKS[row['holds']]} {row['mean']:.3f}" for row in own.to_dict("records")) or NONE


# Tables -------------------------------------------------------------------------------------------------------


CURVE, FEATURE = ["stand_in", "order", "direction", "step"], ["network", "layer", "property"]


def rows_of(found: Mapping[str, Parts]) -> Frame:
    """The tidy table of all models: measures of each series, their means, points of the mean curves, features."""
    rows = []
    for name, parts in found.items():
        measures, curves = measures_of(parts), mean_curves(parts)
        means = summarised(measures).rename(columns={"mean": "value"})
        names = [*FEATURE, "r2", "width"]
        features = pd.DataFrame(parts.of_all.get("features") or [], columns=names)
        points = [
            curves[[*CURVE, "low", "high"]].assign(metric=item, value=curves[item])
            for item in ("share", "seconds", "score")
        ]
        kept = [features[FEATURE].assign(metric=item, value=features[item]) for item in ("r2", "width")]
        some = [item.rename(columns={"measure": "metric"}) for item in (measures, means, *points, *kept)]
        rows += [item.assign(system=name) for item in some if len(item)]
    return tidy(pd.concat(rows, ignore_index=True) if rows else [])


def tables_of(rows: Frame) -> dict[str, Frame]:
    """``measures``, ``summary``, ``curves`` and ``features``, views of the rows."""
    rows = rows.reindex(
        columns=[*rows.columns, *({"probe", "of", "group", *CURVE, *FEATURE} - {*rows.columns})]
    )
    named = rows.rename(columns={"system": "model"})
    probed = named[named["probe"].notna()].rename(columns={"metric": "measure"})
    points, features = named[named["step"].notna()], named[named["layer"].notna()]
    single = ["model", "series", "group", "probe", "of", "measure", "value"]
    mean = ["model", "probe", "of", "measure", "mean", "low", "high", "n_series"]
    bounds = ["low", "high"]
    curves = wide(points, ["model", *CURVE, *bounds])
    return {
        "measures": probed.loc[probed["series"].notna(), single],
        "summary": probed[probed["series"].isna()].rename(columns={"value": "mean"})[mean],
        "curves": curves.reindex(columns=["model", *CURVE, "share", "seconds", "score", *bounds]),
        "features": wide(features, ["model", *FEATURE]).reindex(columns=["model", *FEATURE, "r2", "width"]),
    }


def _number(row: Mapping[Any, Any] | None, digits: int = 3) -> str:
    if row is None or np.isnan(row["mean"]):
        return NONE
    between = "" if np.isnan(row["low"]) else f" ({row['low']:.{digits}f} to {row['high']:.{digits}f})"
    return f"{row['mean']:.{digits}f}{between}".replace("-", "−")


def _by_measure(summary: Frame) -> dict[tuple[str, str, str], dict[Any, Any]]:
    return {(row["probe"], row["of"], row["measure"]): row for row in summary.to_dict("records")}


def _crossed(summary: Frame, probe: str, measures: Sequence[str]) -> Markdown | None:
    """A row for each subject of a probe, a column for each measure."""
    found = _by_measure(summary)
    subjects = list(dict.fromkeys(of for kind, of, _ in found if kind == probe))
    shown = [measure for measure in measures if any((probe, of, measure) in found for of in subjects)]
    rows = [[of, *(_number(found.get((probe, of, measure))) for measure in shown)] for of in subjects]
    return _known_rows(["what", *(measure.replace("_", " ") for measure in shown)], rows)


def _gains(summary: Frame) -> Markdown | None:
    found = _by_measure(summary)
    rows = [
        [order, *(_number(found.get(("deletion", f"{name}, {order}", "gain"))) for name in BASELINES)]
        for order in ORDERS
        if order != RANDOM
    ]
    return _known_rows(["what", *(f"replaced by the {name}" for name in BASELINES)], rows)


def _known_rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Markdown | None:
    """A table of the rows with any number."""
    known = [row for row in rows if any(text != NONE for text in row[1:])]
    return table(header, known) if known else None


def _claims(judged: Mapping[str, Sequence[Statement]]) -> Markdown:
    """A row for each claim, a column for each model."""
    claims = list(dict.fromkeys(item.claim for some in judged.values() for item in some))
    by_model = {name: {item.claim: item for item in some} for name, some in judged.items()}
    rows = [[claim, *(_marked(own.get(claim)) for own in by_model.values())] for claim in claims]
    return table(["what", *map(plain, by_model)], rows)


def _marked(statement: Statement | None) -> str:
    return NONE if statement is None else f"{MARKS[statement.holds]} {statement.mean:.3f}".replace("-", "−")


def _rules(judged: Mapping[str, Sequence[Statement]]) -> list[str]:
    """Each claim with its bound; with the models if bounds differ, because controls have other classes."""
    bounds: dict[str, dict[str, list[str]]] = {}
    for name, some in judged.items():
        for item in some:
            whose = bounds.setdefault(item.claim.split(" (")[0].rstrip("."), {}).setdefault(item.rule, [])
            if name not in whose:
                whose.append(name)
    return [
        f"{claim}: {next(iter(rules))}."
        if len(rules) == 1
        else f"{claim}: {'; '.join(f'{rule} ({join_names(whose)})' for rule, whose in rules.items())}."
        for claim, rules in bounds.items()
    ]


def _model(
    name: str,
    parts: Parts,
    tables: Mapping[str, Frame],
    judged: Sequence[Statement],
    given: tuple[str, str],
    places: Mapping[str, str],
) -> dict[str, Any]:
    summary = tables["summary"]
    found = part(summary, measure="gradient found")
    return {
        "name": name,
        "verdict": given[0],
        "why": given[1],
        "n_series": len(parts.series),
        "n_groups": len(set(parts.groups)),
        "sentences": [f"{item.said}." for item in judged],
        "missing": _missing(parts),
        "gradients": [
            f"Integrated gradients add up to {_number(row, 2)} of the change in score (stand-in: {row['of']})"
            + (
                ": layers without a slope decide, so their order means little."
                if abs(row["mean"] - 1) > FAR_FROM_COMPLETE
                else "."
            )
            for row in found.to_dict("records")
            if not np.isnan(row["mean"])
        ],
        "gains": _gains(summary),
        "check": _number(_by_measure(summary).get(("check", "windows dropped from the sum", "gain"))),
        **{key: _crossed(summary, probe, measures) for key, (probe, measures) in CROSSED.items()},
        "layers": [f"Step {k}: {item}" for k, item in enumerate(parts.about.get("layers", ()), start=1)],
        "held": _held(tables["features"], "model" if _not_of_the_whole(parts) else "network"),
        "plots": {key: Markdown(place) for key, place in places.items()},
    }


def _not_of_the_whole(parts: Parts) -> dict[str, str]:
    """Probe -> why the model cannot be asked, or which part of it was; older results have neither."""
    return {**parts.about.get("not_applicable", {}), **parts.about.get("in_part", {})}


def _missing(parts: Parts) -> list[str]:
    """Sentences about orders that do not exist, and about probes that do not apply to the whole model."""
    orders = [f"There is no order by {order}: {why}." for order, why in missing_orders(parts).items()]
    return orders + [f"{why}." for why in _not_of_the_whole(parts).values()]


def _held(features: Frame, kind: str) -> Markdown | None:
    """R² of each property from the features that are compared, and from those with the network scrambled."""
    own = part(features, layer="features")
    if own.empty:
        return None
    shown = [name for name in ("fitted", "scrambled") if name in set(own["network"])]
    found = wide(own, ["property"], columns="network", values=["r2"])
    found = found.reindex(columns=["property", *(f"{name}r2" for name in shown)])
    rows = [[name, *(f"{r2:.2f}".replace("-", "−") for r2 in values)] for name, *values in found.to_numpy()]
    headers = {"fitted": f"fitted {kind}", "scrambled": "scrambled network"}
    return table(["what", *(headers[name] for name in shown)], rows)


# Plots --------------------------------------------------------------------------------------------------------


def _plots(tables: Mapping[str, Frame]) -> dict[str, bytes]:
    drawn = {
        "deletion": (plot_curves, tables["curves"]),
        "network": (plot_cascade, part(tables["summary"], probe="network")),
        "features": (plot_held, tables["features"]),
    }
    return {name: png(plot, data) for name, (plot, data) in drawn.items() if len(data)}


def plot_curves(curves: Frame) -> Axes:
    """Mean score over the seconds replaced: a panel for each stand-in and direction, a line for each order."""
    figure = Figure(figsize=(9.5, 6.2), layout="constrained")
    panels = figure.subplots(len(BASELINES), len(DIRECTIONS), sharey=True, squeeze=False)
    for row, stand_in in zip(panels, BASELINES, strict=True):
        for ax, direction in zip(row, DIRECTIONS, strict=True):
            here = part(curves, stand_in=stand_in, direction=direction)
            for order in (item for item in ORDERS if item in set(here["order"])):
                own = part(here, order=order).sort_values("step")
                dashed = order in (OCCLUSION, GRADIENT, RANDOM)
                ax.plot(own["seconds"], own["score"], "--" if dashed else "-", color=COLOURS[order], lw=1.5,
                        label="at random" if order == RANDOM else f"by {order}")  # fmt: skip
                if order in ("contribution", RANDOM) and own["low"].notna().all():
                    ax.fill_between(
                        own["seconds"], own["low"], own["high"], color=COLOURS[order], alpha=0.15, lw=0
                    )
            if direction == "insertion":
                ax.invert_xaxis()  # time runs to the right: stretches come back
            what = "taken away" if direction == "deletion" else "put back"
            ax.set_title(f"{direction}: stretches {what}, stand-in: {stand_in}", fontsize=9)
            open_axes(ax, grid=True)
    for ax in panels[-1]:
        ax.set_xlabel("seconds replaced (mean over series)")
    for ax in panels[:, 0]:
        ax.set_ylabel("probability of the predicted class")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    first: Axes = panels[0, 0]
    return first


def plot_cascade(network: Frame) -> Axes:
    """How alike evidence stays while layers are scrambled from the top down."""
    ax: Axes = Figure(figsize=(5.5, 3.4), layout="constrained").subplots()
    shown = {"rank": "contribution", "posterior": "posterior", "weight": "weight"}
    for correlation, name in shown.items():
        own = part(network, measure=f"{correlation}_correlation")
        own = own.assign(step=own["of"].str.removeprefix("step ").astype(int)).sort_values("step")
        if own["mean"].isna().all():
            continue
        ax.plot(
            [0, *own["step"]], [1.0, *own["mean"]], "o-", ms=3, lw=1.4, color=COLOURS[name], label=f"{name}s"
        )
        if own["low"].notna().all():
            ax.fill_between(own["step"], own["low"], own["high"], color=COLOURS[name], alpha=0.15, lw=0)
    ax.axhline(0, color="#999999", lw=0.8)
    open_axes(
        ax, xlabel="steps of scrambled layers, from the last down", ylabel="rank correlation with the model"
    )
    ax.legend(frameon=False, fontsize=8)
    return ax


def plot_held(features: Frame) -> Axes:
    """R² of each property from each layer of the fitted model."""
    own = part(features, network="fitted")
    held = own.pivot_table(index="layer", columns="property", values="r2", sort=False, aggfunc="first")
    n_layers, n_properties = held.shape
    figure = Figure(figsize=(1.6 + 0.75 * n_properties, 1.4 + 0.3 * n_layers), layout="constrained")
    ax: Axes = figure.subplots()
    image = ax.imshow(held.to_numpy(dtype=float), vmin=0, vmax=1, cmap="viridis", aspect="auto")
    ax.set_xticks(range(n_properties), list(map(str, held.columns)), rotation=35, ha="right", fontsize=7.5)
    ax.set_yticks(range(n_layers), list(map(str, held.index)), fontsize=7.5)
    for label in (*ax.get_xticklabels(), *ax.get_yticklabels()):
        label.set_parse_math(False)  # names are not formulas
    for (row, column), value in np.ndenumerate(held.to_numpy(dtype=float)):
        if np.isfinite(value):
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 6.5}
            style["color"] = "black" if value > 0.6 else "white"
            ax.text(column, row, f"{value:.2f}".replace("-", "−"), **style)
    figure.colorbar(image, ax=ax, label="R²")
    return ax
