"""Figures of study pages: colours, axes without a frame, PNG files that are the same bytes for the same data."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, FAINT, STEP, WARM, GRID = "#1a1a1a", "#6b6b6b", "#31688e", "#c2572b", "#eeeeee"
COLOURS = (STEP, WARM, "#3b8f5a", "#8a5aa8", "#a3892b", "#7a7a7a")


def png(plot: Callable[..., Axes], *data: Any) -> bytes:
    """Content of a PNG file of the figure that ``plot(*data)`` draws; deterministic."""
    buffer = io.BytesIO()
    with matplotlib.style.context("default"), warnings.catch_warnings():  # not the reader's own style
        warnings.filterwarnings("ignore", message="Glyph")  # a name in a script that the font lacks
        figure = plot(*data).get_figure()
        assert isinstance(figure, Figure)
        figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    return buffer.getvalue()


def open_axes(ax: Axes, *, grid: bool = False, **labels: Any) -> Axes:
    """Axes without a frame at the top and the right, with labels and grid lines."""
    ax.spines[["top", "right"]].set_visible(False)
    if grid:
        ax.grid(axis="y", color=GRID, lw=0.8)
    ax.set(**labels)
    return ax
