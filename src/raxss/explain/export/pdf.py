"""What would a clinician want on paper?

    RecordingFindings, facts about the model -> A4 pages: the recording, its channels ranked, the best with reasons

Drawn by matplotlib, without a browser. The same findings give the same bytes: no dates, nobody's own settings,
fonts in the file itself. Text from outside is drawn as it reads and never as mathematics.
Before this: channel_page.py draws the page of one channel.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure

from raxss._core.atomic import whole_file
from raxss._core.version import __version__
from raxss.data.training_overlap import EITHER, NO, PART, TRAINING, UNKNOWN, VALIDATION
from raxss.explain.escape import FONT, plain
from raxss.explain.evidence import NOTE
from raxss.explain.export.channel_page import (
    HEIGHT,
    LEFT,
    RIGHT,
    WIDTH,
    Facts,
    channel_page,
    fitted,
    write_at,
)
from raxss.explain.figures import FAINT, INK, STEP
from raxss.explain.findings import ChannelFindings, RecordingFindings, without_name
from raxss.explain.reliability_figure import MARKS, draw_reliability

N_CHANNELS = 6  # that get a page of their own
MOST_CLASSES = 20  # of one channel, the most likely
ROW = 0.19  # inches of the table of channels
BOTTOM = 0.75  # inches that the footer needs
DIAGRAM = 1.4  # inches of the reliability diagram, each way
SEEN_IN = {  # as short as a column of the table of channels
    TRAINING: "training",
    VALIDATION: "validation",
    EITHER: "training/val.",
    PART: "training, part",
    NO: "–",
    UNKNOWN: "unknown",
}
FEWEST_ROWS = 3  # of a table; where fewer fit, it begins on the next page
SETTINGS = {
    "font.family": FONT,
    "pdf.fonttype": 42,  # TrueType, whole outlines: text can be searched, copied and printed anywhere
    "text.parse_math": False,
    "text.usetex": False,
}


def write_pdf(findings: RecordingFindings, path: Path | str, *, model: Mapping[str, Any]) -> None:
    """Write the pages of one recording; the file appears whole or not at all.

    Parameters
    ----------
    findings
        With the evidence of the channels that get a page of their own in ``best``.
    model
        What `raxss.explain.findings.told_of_model` tells.

    Examples
    --------
    >>> import tempfile
    >>> from raxss import RAxSSClassifier
    >>> from raxss.data.datasets import load_synthetic
    >>> from raxss.explain.findings import watched
    >>> series = load_synthetic()
    >>> model = RAxSSClassifier("dlinear", window_length=128, stride=32, max_epochs=1, random_state=0).fit(series)
    >>> place = Path(tempfile.mkdtemp())
    >>> about = {"config_hash": model.config_.hash, "training_data": model.training_data_}
    >>> print_it = lambda found: write_pdf(found, place / f"{found.name}.pdf", model=about)
    >>> for one in watched(model.explain_each(series[:2]), print_it, n_best=1):
    ...     pass
    >>> sorted(file.name for file in place.iterdir())
    ['motif-000.pdf', 'noise-001.pdf']
    """
    metadata = {"CreationDate": None, "Creator": f"raxss {__version__}", "Title": NOTE}
    with (
        style.context(["default", SETTINGS]),
        whole_file(path) as temporary,
        PdfPages(temporary, metadata=metadata) as pdf,
    ):
        for page in pages_of(findings, model=model):
            pdf.savefig(page)


def pages_of(findings: RecordingFindings, *, model: Mapping[str, Any]) -> Iterator[Figure]:
    """The pages as figures, each made when it is asked for."""
    ranked = findings.ranked()
    # A reader of one channel asks why it is what it is said to be; of many, why they come first.
    class_ = findings.class_ if len(ranked) > 1 else ranked[0].predicted
    first, n_shown = _first_page(findings, model, ranked, class_)
    per_page = int((HEIGHT - 1.6 - BOTTOM) / ROW)
    more = [ranked[at : at + per_page] for at in range(n_shown, len(ranked), per_page)]
    n_pages = 1 + len(more) + len(findings.best)
    yield _with_footer(first, findings, 1, n_pages)
    for number, rows in enumerate(more):
        page, n_before = Figure(figsize=(WIDTH, HEIGHT)), n_shown + number * per_page
        if len(ranked) == 1:
            write_at(page, LEFT, 0.6, "The answer", size=13)
            _draw_answer(page, 1.15, rows[0], findings.classes)
        else:
            title = f"Channels by probability{', continued' if n_before else ''}"
            write_at(page, LEFT, 0.6, title, size=13)
            _draw_table(page, 1.15, rows, n_before, findings, class_)
        yield _with_footer(page, findings, 2 + number, n_pages)
    for number, evidence in enumerate(findings.best):
        rank = number + 1 if len(ranked) > 1 else None
        page = channel_page(evidence, class_=class_, rank=rank, n_channels=len(ranked))
        yield _with_footer(page, findings, 2 + len(more) + number, n_pages)


def _first_page(
    findings: RecordingFindings, model: Mapping[str, Any], ranked: list[ChannelFindings], class_: Any
) -> tuple[Figure, int]:
    """What this is about, and as many channels as there is room for below it; their number."""
    page = Figure(figsize=(WIDTH, HEIGHT))
    title = _title(findings, 62)
    write_at(page, LEFT, 0.55, title, size=15 if len(title) < 44 else 11.5)
    write_at(page, LEFT, 0.9, "Which channels, when, and on what evidence", size=10, color=FAINT)
    box = {"boxstyle": "square,pad=0.45", "facecolor": "w", "edgecolor": INK, "linewidth": 1.2}
    write_at(page, LEFT + 0.06, 1.27, NOTE, size=10.5, weight="bold", bbox=box)
    top = 1.66
    marked = any(item.seen_in_training != NO for item in ranked)
    for line in textwrap.wrap(findings.seen_in_training, 88 if marked else 100):
        write_at(page, LEFT, top, line, size=9.5 if marked else 8.5, weight="bold" if marked else "normal")
        top += 0.17
    top += 0.12
    for heading, facts in _facts(findings, model, class_).items():
        top = _draw_facts(page, top, heading, facts)
    if model.get("trial"):
        top = _draw_trial(page, top, model["trial"], findings.classes)
    top = _draw_warnings(page, top, findings)
    room = int((HEIGHT - BOTTOM - top - 0.56) / ROW)
    needed = min(len(findings.classes), MOST_CLASSES) if len(ranked) == 1 else min(len(ranked), FEWEST_ROWS)
    if room < needed:
        return page, 0
    if len(ranked) == 1:
        _draw_answer(page, _draw_heading(page, top, "The answer"), ranked[0], findings.classes)
        return page, 1
    top = _draw_heading(page, top, f"Channels by probability of {plain(class_, 20)}")
    _draw_table(page, top, ranked[:room], 0, findings, class_)
    return page, min(room, len(ranked))


def _title(findings: RecordingFindings, longest: int) -> str:
    """How the pages call the recording: without folders, as its report does."""
    return plain(findings.name.rpartition("/")[2], longest)


def _facts(findings: RecordingFindings, model: Mapping[str, Any], class_: Any) -> dict[str, Facts]:
    """What a reader must know before looking at a number."""
    settings, data = findings.settings, model.get("training_data", {})
    rates = " and ".join(f"{rate:g} Hz" for rate in sorted(findings.rates)[:4])
    n = len(findings.channels)
    window = settings["window_length"] / min(findings.rates)
    counts = [f"{plain(name, 24)} {count}" for name, count in list(data.get("classes", {}).items())[:12]]
    n_groups = data.get("n_groups")
    return {
        "Recording": {
            "length": f"{findings.seconds:,.4g} s at {rates} as the model reads it",
            "channels": f"{n} scored"
            + (f", ranked by the probability of {plain(class_, 30)}" if n > 1 else ""),
        },
        "Model": {
            "settings": f"{plain(settings.get('config_hash', 'not known'), 20)} (hash), weights "
            f"{plain(model.get('weights_sha256') or 'not known', 64)[:12]} (SHA-256), raxss {__version__}",
            "network": plain(model.get("network") or "not known", 70),
            "classes": ", ".join(plain(label, 24) for label in findings.classes[:12]),
            "windows": f"{settings['window_length']:,} samples ({window:.3g} s), a new one every "
            f"{settings['stride']:,}; calibration: {plain(settings.get('calibration', 'none'), 20)}",
            "weights": f"{settings['weighting']}, temperature {settings['temperature']:.3g}; "
            f"{settings['measure']} similarity of {settings['space']}, {settings['n_neighbors']} neighbours, "
            f"exclusion {settings['exclusion']:,} samples",
        },
        "Training data": {
            "series": f"{data.get('n_series', 'not known')} ({', '.join(counts) or 'classes not known'}), "
            f"{data.get('n_validation', 'not known')} of them for validation",
            "groups": "not given: one person may be on both sides of that split"
            if n_groups is None
            else f"{n_groups}, each on one side of that split",
            **({"split": plain(data["split"], 160)} if data.get("split") else {}),
        },
    }


def _draw_heading(page: Figure, top: float, text: str) -> float:
    write_at(page, LEFT, top, text, size=10.5, weight="bold")
    return top + 0.26


def _draw_facts(page: Figure, top: float, heading: str, facts: Facts) -> float:
    """Names on the left, what is to be said on the right, as many lines as it takes."""
    top = _draw_heading(page, top, heading)
    for name, text in facts.items():
        lines = textwrap.wrap(text, 90) or [""]
        write_at(page, LEFT, top, name, size=8.5, color=FAINT)
        for line in lines:
            write_at(page, LEFT + 0.95, top, line, size=8.5)
            top += 0.165
    return top + 0.1


def _draw_trial(page: Figure, top: float, trial: Mapping[str, Any], classes: tuple[Any, ...]) -> float:
    """Said against found on the validation part; beside it the errors, and what the diagram is of."""
    top = _draw_heading(page, top, "How the model did on series that it had not learned from")
    left, wide, tall = LEFT + 0.55, DIAGRAM / WIDTH, DIAGRAM / HEIGHT
    ax = page.add_axes((left / WIDTH, 1 - (top + 0.05) / HEIGHT - tall, wide, tall))
    draw_reliability(ax, trial["reliability"], markersize=3.5)
    ax.set(xlim=(-0.05, 1.05), ylim=(-0.05, 1.05))  # whole marks at 0 and 1
    ax.set_xticks([0, 0.5, 1], ["0", "0.5", "1"], fontsize=7.5)
    ax.set_yticks([0, 0.5, 1], ["0", "0.5", "1"], fontsize=7.5)
    of = f"P({plain(classes[1], 20)})" if len(classes) == 2 else "the largest probability"
    ax.set_xlabel(f"said: {of}", fontsize=fitted(f"said: {of}", 8, DIAGRAM + 0.5), parse_math=False)
    ax.set_ylabel("found: share that was so", fontsize=8)
    beside, line = left + DIAGRAM + 0.45, top + 0.03
    for name, figures in trial["figures"].items():
        marker, color = MARKS[name]
        write_at(page, beside, line, {"o": "●", "s": "■"}[marker], size=8.5, color=color)
        told = f"{name}: calibration error {figures['ece']:.3f}, Brier score {figures['brier']:.3f}"
        write_at(page, beside + 0.17, line, f"{told}, log loss {figures['log_loss']:.3f}", size=8.5)
        line += 0.19
    cross_fitted = (
        " The calibration is judged by maps that were fitted without the series' own group."
        if "calibrated" in trial["figures"]
        else ""
    )
    n, n_groups = trial["n_series"], trial["n_groups"]
    in_groups = f" in {n_groups:,} groups" if n_groups != n else ""  # else each is one, or none were given
    about = (
        f"From the validation part of the training data: {n:,} series{in_groups}. "
        "The network did not learn from them, but early stopping has looked at them, so new series will "
        f"do slightly worse.{cross_fitted} On the dashed line, what was said to be 0.8 was so in 8 of 10. Bars are "
        "95 % intervals."
    )
    for text in textwrap.wrap(about, 66):
        write_at(page, beside, line + 0.05, text, size=8.5)
        line += 0.165
    return top + 0.05 + DIAGRAM + 0.5


def _draw_warnings(page: Figure, top: float, findings: RecordingFindings) -> float:
    """Each warning once, in the words it has for the first channel, and how many channels have it."""
    kinds: dict[str, list[str]] = {}
    for channel in findings.ranked():
        for warning in (without_name(item, channel.name) for item in channel.warnings):
            kinds.setdefault(re.sub(r"[\d.,]+", "0", warning), []).append(warning)
    if not kinds:
        return top
    top = _draw_heading(page, top, "Before trusting this")
    n = len(findings.channels)
    for same in list(kinds.values())[:5]:
        others = "" if n == 1 else f" ({'all' if len(same) == n else f'{len(same)} of {n}'} channels"
        others += "" if len(set(same)) == 1 else "; the numbers are those of the first"
        others += ")" if others else ""
        lines = textwrap.wrap(plain(same[0], 400) + others, 102)[:4]
        write_at(page, LEFT, top, "•", size=8.5)
        for line in lines:
            write_at(page, LEFT + 0.14, top, line, size=8.5)
            top += 0.165
    if len(kinds) > 5:
        write_at(page, LEFT + 0.14, top, f"and {len(kinds) - 5} more kinds of warning", size=8.5)
        top += 0.165
    return top + 0.1


def _draw_answer(
    page: Figure, top: float, channel_findings: ChannelFindings, classes: tuple[Any, ...]
) -> None:
    """Of one channel: every class with its probability, the highest first."""
    order = sorted(range(len(classes)), key=lambda place: -float(channel_findings.probability[place]))[
        :MOST_CLASSES
    ]
    ax = _table_axes(page, top, len(order))
    for row, place in enumerate(order, start=1):
        value = float(channel_findings.probability[place])
        _cell(ax, 0.1, row, plain(classes[place], 24), room=1.8)
        ax.barh(row, 3.0, left=2.0, height=0.62, color="#ececec")
        ax.barh(row, 3.0 * value, left=2.0, height=0.62, color=STEP)
        _cell(
            ax,
            5.1,
            row,
            f"{value:.3f}" + ("   predicted" if classes[place] == channel_findings.predicted else ""),
        )


def _table_axes(page: Figure, top: float, n_rows: int) -> Axes:
    """Axes in inches from the left margin, and in rows from the top; row 0 is for headings."""
    wide, tall = RIGHT - LEFT, ROW * (n_rows + 1)
    ax = page.add_axes((LEFT / WIDTH, 1 - (top + tall) / HEIGHT, wide / WIDTH, tall / HEIGHT))
    ax.set_xlim(0, wide)
    ax.set_ylim(n_rows + 0.5, -0.5)
    ax.axis("off")
    return ax


def _draw_table(
    page: Figure,
    top: float,
    rows: list[ChannelFindings],
    n_before: int,
    findings: RecordingFindings,
    class_: Any,
) -> None:
    """One line a channel: rank, name, probability as a bar, whether the model was fitted on it, and the rest."""
    ax = _table_axes(page, top, len(rows))
    columns = {
        "rank": 0.3,
        "channel": 0.42,
        "": 2.0,
        "seen in": 3.45,
        "predicted": 4.25,
        "effective windows": 5.05,
        "strongest at": 6.23,
    }
    for text, x in columns.items():
        name = text or f"probability of {plain(class_, 16)}"
        _cell(ax, x, 0, name, right=text == "rank", color=FAINT)
    ax.axhline(0.5, color=INK, linewidth=0.6)
    place = findings.classes.index(class_)
    for row, item in enumerate(rows, start=1):
        value = float(item.probability[place])
        _cell(ax, columns["rank"], row, f"{n_before + row}", right=True)
        _cell(ax, columns["channel"], row, plain(item.channel or item.name, 20), room=1.5)
        ax.barh(row, 1.0, left=2.0, height=0.62, color="#ececec")
        ax.barh(row, 1.0 * value, left=2.0, height=0.62, color=STEP)
        _cell(ax, 3.05, row, f"{value:.3f}")
        seen = SEEN_IN[item.seen_in_training]
        _cell(ax, columns["seen in"], row, seen, room=0.75)
        _cell(ax, columns["predicted"], row, plain(item.predicted, 12), room=0.75)
        share = f"{item.effective_windows:,.4g} ({100 * item.effective_share:.3g} %)"
        _cell(ax, columns["effective windows"], row, share)
        if math.isfinite(item.strongest_s):
            _cell(ax, columns["strongest at"], row, f"{item.strongest_s:,.2f} s")


def _cell(
    ax: Axes, x: float, row: int, text: str, *, right: bool = False, color: str = INK, room: float = 2.1
) -> None:
    side = "right" if right else "left"
    ax.text(x, row, text, ha=side, va="center", fontsize=fitted(text, 8, room), color=color, parse_math=False)


def _with_footer(page: Figure, findings: RecordingFindings, number: int, n_pages: int) -> Figure:
    """On every page, because pages get separated: what it is of, that it is for research, which page."""
    write_at(page, LEFT, HEIGHT - 0.45, _title(findings, 46), size=7.5, color=FAINT, room=2.9)
    write_at(page, WIDTH / 2 + 0.5, HEIGHT - 0.45, NOTE, size=7.5, color=FAINT, ha="center")
    write_at(page, RIGHT, HEIGHT - 0.45, f"page {number} of {n_pages}", size=7.5, color=FAINT, ha="right")
    return page
