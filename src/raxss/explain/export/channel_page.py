"""Why does one channel have its score, on one sheet of A4?

    SeriesEvidence -> a page: signal and heat strip, its strongest windows with their best neighbours, the sum

Next: pdf.py binds these pages behind the ranking of all channels.
"""

from __future__ import annotations

import textwrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.text import Annotation, Text
from matplotlib.ticker import MaxNLocator

from raxss.data.training_overlap import MARKS
from raxss.explain.escape import FONT, plain
from raxss.explain.evidence import Evidence
from raxss.explain.figures import (
    FAINT,
    HEAT,
    INK,
    STEP,
    draw_match,
    draw_signal,
    draw_strips,
    plot_contributions,
    series_of,
    span_of,
    time_label,
)
from raxss.explain.findings import strongest_apart, under_other_weights, without_name
from raxss.method.weighting.protocol import weighting_named

WIDTH, HEIGHT = 8.27, 11.69  # A4 in inches
LEFT, RIGHT = 0.65, WIDTH - 0.65
N_SHOWN, N_NEIGHBORS = 3, 4  # windows at full resolution, neighbours laid over each
PANEL, PANEL_END = (
    1.72,
    RIGHT - 0.28,
)  # inches from the left edge; before it their names, behind it a colour bar
SAME = 0.01  # probabilities that are closer are the same to a reader

Facts = dict[str, str]


def write_at(
    page: Figure,
    left: float,
    top: float,
    text: str,
    *,
    size: float,
    room: float | None = None,
    **options: Any,
) -> Text:
    """Text whose upper left corner is so many inches from that of the page; smaller where it would not fit."""
    if room is None:
        room = left - LEFT if options.get("ha") == "right" else RIGHT - left
    at, style = (left / WIDTH, 1 - top / HEIGHT), {"va": "top", "color": INK, "parse_math": False}
    return page.text(*at, text, fontsize=fitted(text, size, room), **{**style, **options})


def fitted(text: str, size: float, room: float) -> float:
    """The font size at which text is at most so many inches wide: the one given, or a smaller one.

    >>> fitted("short", 9.0, 1.0), fitted("W" * 40, 9.0, 2.0) < 4.0
    (9.0, True)
    """
    font = get_font(findfont(FONT))
    font.set_size(size, 72)
    font.set_text(text)
    wide = font.get_width_height()[0] / 64 / 72
    return size if wide <= room else size * room / wide


def channel_page(
    evidence: Evidence, *, class_: Any = None, rank: int | None = None, n_channels: int = 1
) -> Figure:
    """One channel: what was said, where it comes from in time, on which windows it rests, how they add up.

    Parameters
    ----------
    class_
        What to explain; the predicted class by default.
    rank, n_channels
        Its place among all channels of the recording; None where it is the only one.
    """
    series, name = series_of(evidence), evidence.class_named(class_)
    page = Figure(figsize=(WIDTH, HEIGHT))
    best = strongest_apart(evidence, N_SHOWN, name)
    _write_headings(page, evidence, name, rank, n_channels)

    wide = PANEL_END - PANEL
    signal = _axes(page, PANEL, 1.75, wide, 1.1)
    strip = _axes(page, PANEL, 2.93, wide, 0.22, sharex=signal)
    bar = _axes(page, PANEL_END + 0.06, 2.93, 0.1, 0.22)
    weights = _axes(page, PANEL, 3.25, wide, 0.42, sharex=signal)
    draw_signal(signal, series, 4000)
    draw_strips(strip, weights, bar, evidence, series, name)
    _mark(signal, best, series.seconds)
    signal.set_xlim(series.start_seconds, series.start_seconds + series.seconds)
    for ax in (signal, strip):
        ax.tick_params(labelbottom=False)
    weights.set_xlabel(time_label(series), fontsize=8.5)

    top = _draw_windows(page, 4.2, evidence, best, name)
    _draw_sum(page, top, evidence, name)
    _draw_other_weights(page, top, evidence, name)
    _write_warnings(page, evidence)
    for ax in page.axes:
        _make_small(ax)
    return page


def _mark(signal: Axes, best: Any, seconds: float) -> None:
    """The strongest windows in the signal, with their numbers; one a step higher where two would meet."""
    middles: list[float] = []
    for rank, row in enumerate(best.to_dict("records"), start=1):
        signal.axvspan(
            row["start_s"], row["end_s"], facecolor="#d9d9d9", edgecolor=INK, linewidth=0.8, zorder=0
        )
        middle = (row["start_s"] + row["end_s"]) / 2
        step = sum(abs(middle - item) < 0.025 * seconds for item in middles)
        middles.append(middle)
        signal.annotate(
            f"{rank}",
            (middle, 1.0),
            (0, 2 + 9 * step),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=7.5,
        )


def _make_small(ax: Axes) -> None:
    """Ticks and the names of panels as a printed page has room for."""
    ax.tick_params(labelsize=7.5)
    for text in ax.texts:
        if isinstance(text, Annotation) and text.xyann == (-40, 0):
            text.xyann = (-30, 0)
            text.set_fontsize(8)


def _axes(
    page: Figure, left: float, top: float, wide: float, tall: float, sharex: Axes | None = None
) -> Axes:
    place = left / WIDTH, 1 - (top + tall) / HEIGHT, wide / WIDTH, tall / HEIGHT
    return page.add_axes(place, sharex=sharex)


def _write_headings(page: Figure, evidence: Evidence, name: Any, rank: int | None, n_channels: int) -> None:
    channel = (
        evidence.name if evidence.series is None else evidence.series.origin.get("channel", evidence.name)
    )
    title = plain(channel, 44) if rank is None else f"{rank}.  {plain(channel, 38)}"
    write_at(page, LEFT, 0.55, title, size=15, room=3.9)
    said = f"P({plain(name, 20)}) = {evidence.probability_of(name):.3f}"
    write_at(page, RIGHT, 0.55, said, size=15, ha="right", room=2.9)
    if mark := MARKS[evidence.seen_in_training]:
        write_at(page, RIGHT, 0.785, mark, size=8.5, ha="right", weight="bold", room=2.9)
    chances = zip(evidence.classes[:5], evidence.probability, strict=False)
    all_said = ", ".join(f"{plain(class_, 16)} {chance:.3f}" for class_, chance in chances)
    label = "" if evidence.label is None else f", labelled {plain(evidence.label, 20)}"
    place = "" if rank is None else f"   ·   rank {rank} of {n_channels} channels"
    write_at(
        page,
        LEFT,
        0.92,
        f"predicted {plain(evidence.predicted, 20)}{label}   ({all_said}){place}",
        size=8.5,
        color=FAINT,
    )
    n_usable = int((~evidence.columns["nonfinite"]).sum())
    share = f"{100 * evidence.effective_share:.3g} %"
    facts = f"{evidence.effective_windows:,.4g} of {n_usable:,} windows effective ({share})"
    if evidence.overlap_share == evidence.overlap_share:
        facts += f"   ·   {100 * evidence.overlap_share:.3g} % of listed neighbours overlap their window"
    write_at(page, LEFT, 1.1, facts, size=8.5, color=FAINT)
    if told := said_of_doubt(evidence, name):
        write_at(page, LEFT, 1.28, told, size=8.5, color=FAINT)


def said_of_doubt(evidence: Evidence, name: Any) -> str:
    """Interval, uncalibrated score and prediction set of a class, on one line."""
    place, parts = evidence.classes.index(name), []
    if evidence.interval is not None:
        low, high = evidence.interval.low[place], evidence.interval.high[place]
        parts.append(f"{low:.3f} to {high:.3f} ({evidence.interval.method})")
    if evidence.calibrated_probability is not None:
        parts.append(f"windows add up to {evidence.series_probability[place]:.3f}, uncalibrated")
    if evidence.prediction_set is not None:
        held = ", ".join(plain(item, 12) for item in evidence.prediction_set[:4]) or "no class"
        share = f"{100 * (1 - evidence.settings['conformal_alpha']):.3g} %"
        parts.append(f"{share} set: {held}{' (abstains)' if evidence.abstains else ''}")
    return "   ·   ".join(parts)


def _draw_windows(page: Figure, top: float, evidence: Evidence, best: Any, name: Any) -> float:
    """The strongest windows at full resolution, each with the windows that support it laid over it."""
    series = series_of(evidence)
    write_at(
        page, LEFT, top, "The strongest windows, and the windows that support them", size=10, weight="bold"
    )
    top += 0.24
    n_usable = int((~evidence.columns["nonfinite"]).sum())
    for place, row in enumerate(best.to_dict("records")):
        query = evidence.windows.iloc[int(row["window"])]
        told = (
            f"{place + 1}   {span_of(query)}   ·   P({plain(name, 16)}) = {row['probability']:.3f}   ·   weight "
            f"{row['weight']:.3g} ({row['weight'] * n_usable:.3g} × uniform)   ·   adds {row['contribution']:.3g}"
        )
        write_at(page, LEFT, top, told, size=8)
        neighbors = evidence.leaderboard(int(row["window"])).head(N_NEIGHBORS)
        shades = [HEAT(0.15 + 0.7 * index / max(N_NEIGHBORS - 1, 1)) for index in range(N_NEIGHBORS)]
        laid = [(iterrow, shade) for (_, iterrow), shade in zip(neighbors.iterrows(), shades, strict=False)]
        ax = _axes(page, PANEL, top + 0.21, 3.1, 0.78)
        draw_match(ax, series, query, laid, evidence, 2000)
        legend = ax.get_legend()
        if legend is not None:
            for text in [*legend.get_texts(), legend.get_title()]:
                text.set_fontsize(7.5)
        if place == len(best) - 1:
            ax.set_xlabel(time_label(series).replace("time", "time in the window"), fontsize=8.5)
        top += 1.27
    return top + 0.3


def _draw_sum(page: Figure, top: float, evidence: Evidence, name: Any) -> None:
    write_at(page, LEFT, top, "How the windows add up", size=10, weight="bold")
    ax = _axes(page, PANEL + 0.1, top + 0.25, 2.75, 1.35)
    plot_contributions(evidence, ax=ax, n=6, class_=name)
    ax.set_title("", loc="left")
    label = ax.get_xlabel().partition("\n")[0]
    ax.set_xlabel(label, fontsize=fitted(label, 8, 3.2), parse_math=False)
    rows = [*(text.get_text() for text in ax.get_yticklabels()[:-1]), f"sum = P({plain(name, 8)})"]
    ax.set_yticks(ax.get_yticks(), rows, parse_math=False)
    ax.xaxis.set_major_locator(MaxNLocator(4))
    for text in ax.texts:
        text.set_fontsize(7.5)


def _draw_other_weights(page: Figure, top: float, evidence: Evidence, name: Any) -> None:
    """What uniform and inverted weights would have said, and what follows for a reader."""
    left = 5.55
    write_at(page, left - 0.35, top, "Under other weights", size=10, weight="bold")
    place = evidence.classes.index(name)
    other = under_other_weights(evidence)
    own = evidence.sum_of(name)
    bars = {"as weighted": own} | {
        label: float(other[key][place]) for key, label in (("uniform", "uniform"), ("inverse", "inverted"))
    }
    ax = _axes(page, left + 0.5, top + 0.28, RIGHT - left - 0.95, 0.62)
    ax.barh(range(3), [1] * 3, height=0.7, color="#ececec")
    ax.barh(range(3), list(bars.values()), height=0.7, color=[INK, STEP, "#8c8c8c"])
    for row, value in enumerate(bars.values()):
        ax.annotate(
            f"{value:.3f}",
            (1, row),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
            annotation_clip=False,
        )
    ax.set_yticks(range(3), list(bars), fontsize=7.5)
    ax.set_xlim(0, 1)
    ax.set_xticks([0, 0.5, 1])
    ax.invert_yaxis()
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    for line, text in enumerate(textwrap.wrap(_what_follows(evidence, bars), 42)):
        write_at(page, left - 0.35, top + 1.2 + 0.15 * line, text, size=7.5, color=FAINT)


def _what_follows(evidence: Evidence, bars: dict[str, float]) -> str:
    if not weighting_named(evidence.settings["weighting"]).needs_retrieval:
        return "The weights of this model are uniform: the neighbours do not enter them."
    if abs(bars["as weighted"] - bars["inverted"]) < SAME:
        return "Inverted weights say the same, so here the weights explain little: the windows agree by themselves."
    if abs(bars["as weighted"] - bars["uniform"]) < SAME:
        return "Uniform weights say the same; inverted ones do not."
    return "The weights matter here: with others the answer moves by what is shown."


def _write_warnings(page: Figure, evidence: Evidence) -> None:
    told = [plain(without_name(warning, evidence.name), 400) for warning in evidence.warnings]
    lines = [line for item in told for line in textwrap.wrap(f"• {item}", 118)]
    if len(lines) > 4:
        lines = [*lines[:3], "• more in evidence.json"]
    for line, text in enumerate(lines):
        write_at(page, LEFT, HEIGHT - 0.68 - 0.14 * (len(lines) - line), text, size=7.2)
