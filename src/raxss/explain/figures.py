"""Figures of evidence and of reliability, by matplotlib.

    Evidence           -> plot_overlay        the paper's overlay: signal, probabilities, supporting windows
                       -> plot_contributions  the windows that add up to the score
    reliability tables -> plot_reliability    predicted probability against observed share

Figures are plain objects: pyplot is not used, nothing is shown, no backend is chosen. Colours differ in lightness
too, so that they can be told apart by every eye, and on grey paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from raxss.data.series import Series
from raxss.data.training_overlap import MARKED, MARKS
from raxss.errors import DataError
from raxss.explain.escape import plain
from raxss.explain.evidence import NOTE, Evidence, percent

INK, FAINT, GAP, STEP = "#1a1a1a", "#6b6b6b", "#d9d9d9", "#31688e"
HEAT = colormaps["cividis"].with_extremes(bad=GAP)
SMALL, NORMAL, LARGE = 8.5, 9.5, 13.0  # points
LEFT = 1.45  # inches before the panels, for their names
MARKERS = {"calibrated": ("o", STEP), "uncalibrated": ("s", FAINT)}
N_COLUMNS = 1200  # of the strips: more than a printed page resolves


def plot_overlay(
    evidence: Evidence,
    *,
    window: int | None = None,
    n_support: int = 5,
    class_: Any = None,
    max_points: int = 4000,
    figure: Figure | None = None,
) -> Figure:
    """Lay signal, window probabilities and supporting windows over one another in time.

    From the top: the signal as recorded, one window outlined and the windows that support it shaded; these
    windows by rank, with their similarity; the probability of the class at each time (mean of the windows
    that cover it, smoothed where posteriors are) and the weight there; and the window with its neighbours laid
    over it, each scaled to mean 0 and deviation 1.

    Parameters
    ----------
    window
        Which window to explain. By default the one that adds most to the class.
    n_support
        How many of its neighbours to show, the best first.
    class_
        By default the predicted one.
    max_points
        Points drawn a variate. A longer signal is drawn as its envelope, so that spikes survive.
    figure
        To draw into; a new one by default.
    """
    series = evidence.series
    if series is None:
        raise DataError(
            f"the evidence of {evidence.name!r} was loaded without its samples, which are needed to draw it. "
            "Pass them: SeriesEvidence.load(folder, series=...)."
        )
    if window is None:
        window = int(evidence.top_windows(1, class_)["window"].iloc[0])
    neighbors = evidence.leaderboard(window).head(n_support)
    query = evidence.windows.iloc[window]
    colors = [HEAT(shade) for shade in np.linspace(0.1, 0.85, max(len(neighbors), 1))]
    lanes_of = [(row, color) for (_, row), color in zip(neighbors.iterrows(), colors, strict=False)]

    # The page in inches, top to bottom: each panel has a height and the space above it.
    panels = {
        "signal": (0.95, min(1.7 + 0.5 * (series.n_variates - 1), 9.0)),
        "lanes": (0.06, 0.2 * (len(neighbors) + 1) + 0.06),
        "strip": (0.14, 0.3),
        "weights": (0.14, 0.5),
        "match": (0.8, min(1.8 + 0.4 * (series.n_variates - 1), 7.0)),
    }
    width, height = 10.5, sum(space + tall for space, tall in panels.values()) + 0.75
    figure = Figure(figsize=(width, height)) if figure is None else figure

    def axes_at(left: float, top: float, wide: float, tall: float, sharex: Axes | None = None) -> Axes:
        place = (left / width, 1 - (top + tall) / height, wide / width, tall / height)
        return figure.add_axes(place, sharex=sharex)

    axes: dict[str, Axes] = {}
    top = 0.0
    for name, (space, tall) in panels.items():
        top += space
        sharex = axes["signal"] if name in ("lanes", "strip", "weights") else None
        axes[name] = axes_at(LEFT, top, 5.7 if name == "match" else 8.5, tall, sharex)
        if name == "strip":
            bar = axes_at(LEFT + 8.6, top, 0.12, tall)
        top += tall

    _draw_signal(axes["signal"], series, max_points)
    for row, color in lanes_of:
        axes["signal"].axvspan(
            row["start_s"], row["end_s"], facecolor=color, alpha=0.22, linewidth=0, zorder=0
        )
    axes["signal"].axvspan(
        query["start_s"], query["end_s"], fill=False, edgecolor=INK, linewidth=1.6, zorder=4
    )
    _draw_lanes(axes["lanes"], series, query, lanes_of)
    _draw_strips(axes["strip"], axes["weights"], bar, evidence, series, class_)
    _draw_match(axes["match"], series, query, lanes_of, evidence, max_points)

    axes["signal"].set_xlim(series.start_seconds, series.start_seconds + series.seconds)
    for name in ("signal", "lanes", "strip"):
        axes[name].tick_params(labelbottom=False)
    axes["weights"].set_xlabel(_time_label(series), fontsize=NORMAL)
    axes["match"].set_xlabel(_time_label(series).replace("time", "time in the window"), fontsize=NORMAL)
    for axis in figure.axes:
        axis.tick_params(labelsize=SMALL)
    _write_headings(figure, evidence, class_, width, height)
    return figure


def plot_contributions(
    evidence: Evidence, *, ax: Axes | None = None, n: int = 15, class_: Any = None
) -> Axes:
    """Show how the windows add up to the score, as a staircase: all others, then the strongest, the sum.

    Where the strongest windows make up little of the score, the first and last bar are cut, and marked so, to
    leave room for the steps.
    """
    top = evidence.top_windows(n, class_).iloc[::-1]  # the largest step comes last
    if ax is None:
        ax = Figure(figsize=(8.0, 1.5 + 0.25 * (len(top) + 2)), layout="constrained").add_subplot()
    name = evidence.class_named(class_)
    score = float(evidence.series_probability[evidence.classes.index(name)])  # before any calibration
    steps = top[f"contribution_{name}"].to_numpy()
    n_others = len(evidence.windows) - len(top)
    others = max(score - float(steps.sum()), 0.0) if n_others else 0.0

    widths = np.array([others, *steps, score])
    lefts = np.array([0.0, *(others + np.cumsum(steps) - steps), 0.0])
    rows = np.arange(len(widths))
    cut = others - 0.5 * (score - others) if others > 0.75 * score else 0.0
    ax.barh(rows, widths, left=lefts, height=0.72, color=["#b5b5b5", *[STEP] * len(steps), INK])
    ends = lefts[:-1] + widths[:-1]
    ax.vlines(ends, rows[:-1] - 0.36, rows[1:] + 0.36, color=FAINT, linewidth=0.7)
    for row, end in enumerate([*ends, score]):
        sign = "+" if 0 < row < len(widths) - 1 else ""
        _beside(ax, f"{sign}{widths[row]:#.3g}", end, row)
    if cut:
        for row in (0, len(widths) - 1):
            ax.annotate(
                "//", (cut, row), (6, 0), textcoords="offset points", va="center", color="w", fontsize=NORMAL
            )
    class_text = plain(name, 24)
    ax.set_yticks(
        rows,
        [f"the other {n_others:,}", *[_span(row) for _, row in top.iterrows()], f"sum = P({class_text})"],
        fontsize=SMALL,
        parse_math=False,
    )
    ax.invert_yaxis()
    ax.set_xlim(cut, score + 0.12 * (score - cut) if score > cut else 1.0)
    cut_text = " (axis cut on the left)" if cut else ""
    ax.set_xlabel(f"contribution to P({class_text}){cut_text}\n{NOTE}", fontsize=NORMAL, parse_math=False)
    ax.tick_params(axis="x", labelsize=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    seen = f" ({MARKS[evidence.seen_in_training]})" if evidence.seen_in_training in MARKED else ""
    ax.set_title(
        f"{plain(evidence.name, 34)}{seen}: the windows that add most",
        loc="left",
        fontsize=LARGE,
        parse_math=False,
    )
    return ax


def plot_reliability(
    tables: Mapping[str, Sequence[Mapping[str, Any]]], *, class_: Any = None, ax: Axes | None = None
) -> Axes:
    """Draw predicted probabilities against observed shares, with the 95 % interval of each share.

    Parameters
    ----------
    tables
        Rows of `raxss.uncertainty.reliability.reliability_table` by name: ``model.validation_report_.reliability``.
    class_
        The class that the probabilities are of, for the labels: the second of two. Without it they are those of
        the class that was most likely.
    ax
        Axes to draw into; of a new figure by default.

    Examples
    --------
    >>> rows = [{"from": 0.8, "to": 0.9, "n": 4, "said": 0.9, "found": 0.75, "low": 0.3, "high": 0.95}]
    >>> ax = plot_reliability({"uncalibrated": rows}, class_="AF")
    >>> ax.get_xlabel(), [text.get_text() for text in ax.texts]
    ("predicted probability of 'AF'", ['4'])
    """
    if not any(len(rows) for rows in tables.values()):
        raise DataError(
            "there is nothing to draw: the reliability tables have no rows. Fit with a validation set."
        )
    if ax is None:
        ax = Figure(figsize=(3.6, 3.6), layout="constrained").add_subplot()
    ax.plot([0, 1], [0, 1], color=FAINT, linestyle="--", linewidth=1, zorder=1)
    for name, rows in tables.items():
        marker, color = MARKERS.get(name, ("o", INK))
        found = np.array([row["found"] for row in rows])
        low, high = (np.array([row[end] for row in rows]) for end in ("low", "high"))
        ax.errorbar(
            [row["said"] for row in rows],
            found,
            yerr=np.maximum([found - low, high - found], 0.0),
            label=name,
            color=color,
            marker=marker,
            markersize=5.0,
            linewidth=1,
            elinewidth=0.8,
            zorder=2,
        )
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    for row in list(tables.values())[-1]:  # those of two tables would lie on each other
        place, beside = (row["said"], row["found"]), (4, -9)
        ax.annotate(str(row["n"]), place, beside, textcoords="offset points", fontsize=SMALL - 1.5)
    what = "the most likely class" if class_ is None else repr(plain(class_))
    ax.set_xlabel(f"predicted probability of {what}", fontsize=NORMAL, parse_math=False)
    ax.set_ylabel("observed frequency", fontsize=NORMAL)
    ax.tick_params(labelsize=SMALL)
    if len(tables) > 1:
        ax.legend(fontsize=SMALL, frameon=False, loc="upper left")
    return ax


def covering_mean(
    start_s: NDArray[np.float64],  # (n_windows,) ascending
    end_s: NDArray[np.float64],  # (n_windows,) ascending
    values: NDArray[np.float64],  # (n_windows,), NaN: leave this window out
    times: NDArray[np.float64],  # (n_times,)
) -> NDArray[np.float64]:  # (n_times,)
    """Mean of the windows that cover each time (start included, end not); NaN where none does."""
    # Windows of one length begin and end in the same order, so those that cover a time stand side by side.
    first = np.searchsorted(end_s, times, side="right")
    last = np.searchsorted(start_s, times, side="right")
    counted = ~np.isnan(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(counted, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(counted)])
    n = counts[last] - counts[first]
    return np.where(n > 0, (sums[last] - sums[first]) / np.maximum(n, 1), np.nan)


def envelope(
    times: NDArray[np.float64],  # (n,)
    values: NDArray[np.float64],  # (n,), NaN in gaps
    max_points: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """At most ``max_points`` points that keep the smallest and largest value of every stretch."""
    n_bins = max(max_points // 2, 1)
    if len(values) <= 2 * n_bins:
        return times, values
    size = -(-len(values) // n_bins)
    n_bins = -(-len(values) // size)
    bins = np.pad(values, (0, n_bins * size - len(values)), mode="edge").reshape(n_bins, size)
    gaps = np.isnan(bins)
    low = np.where(gaps, np.inf, bins).argmin(axis=1)
    high = np.where(gaps, -np.inf, bins).argmax(axis=1)
    places = np.sort(np.stack([low, high], axis=1), axis=1) + size * np.arange(n_bins)[:, np.newaxis]
    places = np.minimum(places.ravel(), len(values) - 1)
    return times[places], values[places]


def _draw_signal(ax: Axes, series: Series, max_points: int) -> None:
    """The samples as they are; several variates one above the other, each scaled to its own range."""
    times = series.start_seconds + np.arange(series.n_samples) / series.rate
    samples = _with_gaps(series.samples)
    n = len(samples)
    for variate, values in enumerate(samples):
        drawn = values if n == 1 else n - 1 - variate + 0.9 * _within_unit_range(values)
        ax.plot(*envelope(times, drawn, max_points), color=INK, linewidth=0.7, zorder=3)
    if n == 1:
        _name_at_left(ax, "signal")
        ax.yaxis.set_major_locator(MaxNLocator(4))
        ax.ticklabel_format(axis="y", scilimits=(-3, 4))
        ax.yaxis.get_offset_text().set_fontsize(SMALL)
        ax.margins(y=0.08)
    else:
        ax.set_yticks(n - 1 - np.arange(n) + 0.45, [f"variate {variate + 1}" for variate in range(n)])
        ax.set_ylim(-0.1, n)
        ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right"]].set_visible(False)


def _draw_lanes(ax: Axes, series: Series, query: pd.Series[Any], neighbors: list[tuple[Any, Any]]) -> None:
    """The window and its neighbours, a lane each, so that overlapping ones can still be told apart."""
    middle = series.start_seconds + series.seconds / 2
    lanes = [(query, INK, f"window {int(query['window'])}, weight {query['weight']:.2g}")]
    lanes += [(row, color, f"{int(row['rank'])}  ({row['similarity']:.3f})") for row, color in neighbors]
    for lane, (row, color, text) in enumerate(lanes):
        ax.barh(lane, row["end_s"] - row["start_s"], left=row["start_s"], height=0.6, color=color)
        if row["end_s"] - row["start_s"] > 0.6 * series.seconds:  # no room on either side
            dark = sum(to_rgb(color)) < 1.5
            at = (row["start_s"] + row["end_s"]) / 2, lane
            ax.annotate(text, at, ha="center", va="center", fontsize=SMALL, color="w" if dark else INK)
        elif (row["start_s"] + row["end_s"]) / 2 <= middle:
            _beside(ax, text, row["end_s"], lane)
        else:
            _beside(ax, text, row["start_s"], lane, before=True)
    ax.set_ylim(len(lanes) - 0.4, -0.6)
    ax.set_yticks([])
    ax.tick_params(axis="x", length=0)
    _name_at_left(ax, "supporting\nwindows\n(similarity)" if neighbors else "window")
    ax.spines[["top", "right", "left", "bottom"]].set_visible(False)


def _draw_strips(
    strip: Axes, weights: Axes, bar: Axes, evidence: Evidence, series: Series, class_: Any
) -> None:
    """Heat strip of the class probability, and the weight, over time."""
    table = evidence.windows
    usable = ~table["nonfinite"].to_numpy()
    begin, end = series.start_seconds, series.start_seconds + series.seconds
    edges = np.linspace(begin, end, N_COLUMNS + 1)
    times = (edges[1:] + edges[:-1]) / 2

    def at_each_time(column: str) -> NDArray[np.float64]:
        values = np.where(usable, table[column].to_numpy(), np.nan)
        return covering_mean(table["start_s"].to_numpy(), table["end_s"].to_numpy(), values, times)

    name = evidence.class_named(class_)
    added_up = f"smoothed_{name}" if f"smoothed_{name}" in table else f"posterior_{name}"
    image = strip.imshow(
        at_each_time(added_up)[np.newaxis],
        aspect="auto",
        interpolation="nearest",
        extent=(begin, end, 0, 1),
        cmap=HEAT,
        vmin=0,
        vmax=1,
    )
    strip.set_yticks([])
    strip.tick_params(axis="x", length=0)
    strip.spines[:].set_visible(False)
    _name_at_left(strip, f"probability\nof {plain(name, 8)}")
    colorbar = bar.figure.colorbar(image, cax=bar, ticks=[0, 1])
    colorbar.outline.set_visible(False)
    relative = at_each_time("weight") * usable.sum()
    weights.fill_between(times, np.nan_to_num(relative), color="#8c8c8c", linewidth=0, step="mid")
    weights.axhline(1.0, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    highest = float(np.nanmax(relative, initial=0.0))
    weights.set_ylim(0, max(1.3, 1.08 * highest))
    weights.set_yticks([0, 1] if highest < 3 else [0, int(highest)])
    _name_at_left(weights, "weight,\n1 = uniform")
    weights.spines[["top", "right"]].set_visible(False)


def _draw_match(
    ax: Axes,
    series: Series,
    query: pd.Series[Any],
    neighbors: list[tuple[Any, Any]],
    evidence: Evidence,
    max_points: int,
) -> None:
    """The window with its neighbours laid over it, each variate of each scaled by itself."""
    curves = []
    for row, color in neighbors:
        overlaps = ", overlaps" if row["overlaps"] else ""
        text = f"{int(row['rank'])}:  {_span(row)}  ({row['similarity']:.3f}{overlaps})"
        curves.append((row, color, 1.0, text))
    curves.append((query, INK, 1.8, f"window {int(query['window'])}:  {_span(query)}"))
    for layer, (row, color, width, text) in enumerate(curves):
        first, last = (round((row[at] - series.start_seconds) * series.rate) for at in ("start_s", "end_s"))
        for variate, values in enumerate(_with_gaps(series.samples[:, first:last])):
            times = np.arange(len(values)) / series.rate
            x, y = envelope(times, _standardised(values) - 6.0 * variate, max_points)
            ax.plot(x, y, color=color, linewidth=width, zorder=2 + layer * 0.1, label="" if variate else text)
    handles, texts = ax.get_legend_handles_labels()
    order = [len(handles) - 1, *range(len(handles) - 1)]
    compared = "features" if evidence.settings.get("space") == "features" else "signal"
    legend = ax.legend(
        [handles[item] for item in order],
        [texts[item] for item in order],
        loc="upper left",
        bbox_to_anchor=(1.02, 1.03),
        borderaxespad=0,
        frameon=False,
        fontsize=SMALL,
        title=f"rank:  time  ({evidence.settings.get('measure', '')} similarity of the {compared})"
        if neighbors
        else "no eligible neighbour",
        title_fontsize=SMALL,
        alignment="left",
    )
    legend.get_title().set_color(FAINT)
    ax.set_yticks([])
    ax.margins(x=0)
    _name_at_left(ax, "laid over\none another\n(z-scored)" if neighbors else "window\n(z-scored)")
    ax.spines[["top", "right", "left"]].set_visible(False)


def _write_headings(figure: Figure, evidence: Evidence, class_: Any, width: float, height: float) -> None:
    """Title, key numbers, and the note about research use."""
    name = evidence.class_named(class_)
    predicted, probability = plain(evidence.predicted, 14), f"{evidence.probability_of(class_):.3f}"
    same = name == evidence.predicted
    title = f"{plain(evidence.name, 34)}: predicted {predicted}"
    title += f" (P = {probability})" if same else f", P({plain(name, 14)}) = {probability}"
    title += "" if evidence.label is None else f", labelled {plain(evidence.label, 14)}"
    n_usable = int((~evidence.windows["nonfinite"]).sum())
    share = percent(evidence.effective_share)
    facts = [MARKS[evidence.seen_in_training]] if MARKS[evidence.seen_in_training] else []
    facts += [f"{evidence.effective_windows:,.4g} of {n_usable:,} windows effective ({share})"]
    if not np.isnan(evidence.overlap_share):
        facts.append(f"{percent(evidence.overlap_share)} of listed neighbours overlap their window")
    if evidence.warnings:
        facts.append(f"{len(evidence.warnings)} warning{'s' if len(evidence.warnings) > 1 else ''}")
    left = LEFT / width
    size = LARGE * min(1.0, 76 / len(title))  # letters that fit side by side
    figure.text(left, 1 - 0.22 / height, title, fontsize=size, va="top", color=INK, parse_math=False)
    figure.text(left, 1 - 0.52 / height, "  ·  ".join(facts), fontsize=NORMAL, va="top", color=FAINT)
    figure.text(1 - 0.15 / width, 0.12 / height, NOTE, fontsize=7.5, ha="right", va="bottom", color=FAINT)


def _with_gaps(samples: NDArray[Any]) -> NDArray[np.float64]:
    """Float samples, NaN wherever they are not finite."""
    samples = np.asarray(samples, dtype=np.float64)
    return np.where(np.isfinite(samples), samples, np.nan)


def _within_unit_range(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shifted and scaled to 0 to 1; a constant lies in the middle."""
    low, high = np.nanmin(values, initial=np.inf), np.nanmax(values, initial=-np.inf)
    return (values - low) / (high - low) if high > low else np.where(np.isnan(values), np.nan, 0.5)


def _standardised(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean 0 and deviation 1 over the finite values; a constant becomes 0."""
    finite = values[~np.isnan(values)]
    if not len(finite):
        return values
    return (values - finite.mean()) / (finite.std() or 1.0)


def _beside(ax: Axes, text: str, x: float, y: float, *, before: bool = False) -> None:
    """Small text just right of a point, or just left."""
    shift, side = ((-4, 0), "right") if before else ((4, 0), "left")
    ax.annotate(
        text, (x, y), shift, textcoords="offset points", ha=side, va="center", fontsize=SMALL, color=INK
    )


def _name_at_left(ax: Axes, text: str) -> None:
    """A panel's name, upright, where its axis label would be."""
    ax.annotate(
        text,
        (0, 0.5),
        (-40, 0),
        xycoords="axes fraction",
        textcoords="offset points",
        ha="right",
        va="center",
        fontsize=NORMAL,
        color=INK,
        parse_math=False,
    )


def _span(row: pd.Series[Any]) -> str:
    """Start and end of a window as text."""
    decimals = 2 if row["end_s"] < 1000 else 1
    return f"{row['start_s']:.{decimals}f} to {row['end_s']:.{decimals}f} s"


def _time_label(series: Series) -> str:
    """Label of the time axis; a rate of 1 means that it is unknown and times count samples."""
    return "time (samples, or s at 1 Hz)" if series.rate == 1.0 else "time (s)"
