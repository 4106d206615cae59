"""What does a reliability diagram look like?

    rows of a reliability table, by name -> plot_reliability: a figure with its labels
                                         -> draw_reliability: the marks alone, where labels stand elsewhere

Said against found: on the dashed line .8 means 8 of 10. Next: export/pdf.py puts it on paper; export/report/ draws
the same in a page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raxss.errors import DataError
from raxss.explain.escape import plain
from raxss.explain.figures import FAINT, INK, NORMAL, SMALL, STEP

MARKS = {"calibrated": ("o", STEP), "uncalibrated": ("s", FAINT)}


def plot_reliability(
    tables: Mapping[str, Sequence[Mapping[str, Any]]], *, class_: Any = None, ax: Axes | None = None
) -> Axes:
    """Draw what was said against what was found, with the 95 % interval of each share.

    Parameters
    ----------
    tables
        Rows of `raxss.uncertainty.reliability.reliability_table` by name: ``model.validation_report_.reliability``.
    class_
        The class that the probabilities are of, for the labels: the second of two. Without it they are those of
        the class that was most likely.
    ax
        To draw into; one of a new figure by default.

    Examples
    --------
    >>> rows = [{"from": 0.8, "to": 0.9, "n": 4, "said": 0.9, "found": 0.75, "low": 0.3, "high": 0.95}]
    >>> ax = plot_reliability({"uncalibrated": rows}, class_="AF")
    >>> ax.get_xlabel(), [text.get_text() for text in ax.texts]
    ("said: probability of 'AF'", ['4'])
    """
    if not any(len(rows) for rows in tables.values()):
        raise DataError(
            "there is nothing to draw: the reliability tables have no rows. Fit with a validation part."
        )
    if ax is None:
        ax = Figure(figsize=(3.6, 3.6), layout="constrained").add_subplot()
    draw_reliability(ax, tables)
    for row in list(tables.values())[-1]:  # those of two tables would lie on each other
        place, beside = (row["said"], row["found"]), (4, -9)
        ax.annotate(str(row["n"]), place, beside, textcoords="offset points", fontsize=SMALL - 1.5)
    what = "the most likely class" if class_ is None else repr(plain(class_))
    ax.set_xlabel(f"said: probability of {what}", fontsize=NORMAL, parse_math=False)
    ax.set_ylabel("found: share that was so", fontsize=NORMAL)
    ax.tick_params(labelsize=SMALL)
    if len(tables) > 1:
        ax.legend(fontsize=SMALL, frameon=False, loc="upper left")
    return ax


def draw_reliability(
    ax: Axes, tables: Mapping[str, Sequence[Mapping[str, Any]]], *, markersize: float = 5.0
) -> None:
    """The dashed line, and of each table its marks with their intervals.

    Examples
    --------
    >>> rows = [{"from": 0.8, "to": 0.9, "n": 4, "said": 0.9, "found": 0.75, "low": 0.3, "high": 0.95}]
    >>> ax = Figure().add_subplot()
    >>> draw_reliability(ax, {"uncalibrated": rows})
    >>> [float(found) for found in ax.containers[0].lines[0].get_ydata()]
    [0.75]
    """
    ax.plot([0, 1], [0, 1], color=FAINT, linestyle="--", linewidth=1, zorder=1)
    for name, rows in tables.items():
        marker, color = MARKS.get(name, ("o", INK))
        said, found = [row["said"] for row in rows], [row["found"] for row in rows]
        below = [max(row["found"] - row["low"], 0.0) for row in rows]
        above = [max(row["high"] - row["found"], 0.0) for row in rows]
        style: dict[str, Any] = {"color": color, "marker": marker, "markersize": markersize, "linewidth": 1}
        ax.errorbar(said, found, yerr=[below, above], label=name, elinewidth=0.8, zorder=2, **style)
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
