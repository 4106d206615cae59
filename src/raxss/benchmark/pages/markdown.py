"""Markdown of study pages: numbers, tables and templates.

    a number, a metric -> text; a header, rows -> a Markdown table; a template, values -> a page

Everything that is put into a page is escaped, except `Markdown`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any

import jinja2
import numpy as np
import pandas as pd

TITLES = {
    "f1": "F1",
    "auc": "AUC",
    "accuracy": "accuracy %",
    "average_precision": "average precision",
    "balanced_accuracy": "balanced accuracy %",
    "brier": "Brier",
    "ece": "ECE",
    "window_accuracy": "window accuracy %",
}
PERCENT = frozenset({"accuracy", "balanced_accuracy", "window_accuracy"})
#: Headers of left-aligned columns.
TEXTS = frozenset(
    ("dataset", "system", "chosen", "error", "weights", "from", "kind", "level", "what", "pooling", "folder",
     "device", "versions", "figure", "verdict", "why", "candidate")
)  # fmt: skip
NONE = "–"


class Markdown(str):
    """Text that is Markdown and not escaped any more."""

    __slots__ = ()


def plain(text: object) -> str:
    r"""Any text as one line of escaped Markdown, in a table too.

    >>> print(plain("a|b <i>\n*c*"))
    a\|b &lt;i&gt; \*c\*
    """
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in str(text)).split())
    special = r"[\\`*\[\]|~#$]|\b_+|_+\b"  # an underscore within a word means nothing
    line = re.sub(
        special, lambda found: "".join(f"\\{sign}" for sign in found[0]), html.escape(line, quote=False)
    )
    return re.sub(r"^(\d*)([-+.)])(?=\s|$)", r"\1\\\2", line)  # else the item of a list


def render(template: str, **values: Any) -> str:
    """A page from a template of this package; values other than `Markdown` are escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        autoescape=False,  # it is no HTML: finalize escapes
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markdown) else plain(value),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return re.sub(r"\n{3,}", "\n\n", environment.get_template(template).render(**values))


def render_html(template: str, **values: Any) -> str:
    """A page in HTML, in which every value is escaped."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.from_string(_template(template)).render(**values)


def _template(name: str) -> str:
    return (resources.files("raxss.benchmark.pages") / name).read_text("utf-8")


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> Markdown:
    """A Markdown table; the header is Markdown already, columns of `TEXTS` are left-aligned.

    >>> print(table(["system", "AUC"], [["a|b", 0.5]]))
    | system | AUC |
    | --- | ---: |
    | a\\|b | 0.5 |
    """
    lines = [list(header), ["---" if name in TEXTS else "---:" for name in header]]
    lines += [[text if isinstance(text, Markdown) else plain(text) or " " for text in row] for row in rows]
    return Markdown("\n".join(f"| {' | '.join(map(str, line))} |" for line in lines))


def data_table(frame: pd.DataFrame) -> Markdown:
    """A whole table: floats with three digits, a dash for NaN.

    >>> print(data_table(pd.DataFrame({"system": ["sss"], "auc_low": [0.5]})))
    | system | auc low |
    | --- | ---: |
    | sss | 0.500 |
    """
    rows = [
        [shown(value, "{:.3f}".format) if isinstance(value, float) else value for value in row]
        for row in frame.to_numpy(dtype=object).tolist()
    ]
    return table([str(name).replace("_", " ") for name in frame], rows)


def shown(value: Any, form: Callable[[Any], str]) -> str:
    """A value as text, a dash where it is missing.

    >>> shown(0.5, str), shown(np.nan, str)
    ('0.5', '–')
    """
    return NONE if pd.isna(value) else form(value)


def number(value: float, metric: str, sign: str = "") -> str:
    """A value of a metric: three digits, or percent with one.

    >>> number(-0.0123, "auc", "+"), number(0.5, "accuracy")
    ('−0.012', '50.0')
    """
    text = f"{100 * value:{sign}.1f}" if metric in PERCENT else f"{value:{sign}.3f}"
    return text.replace("-", "−")


def with_interval(value: float, low: float, high: float, metric: str, sign: str = "") -> str:
    """A value of a metric and its interval, as far as there are any.

    >>> with_interval(0.81, 0.7, 0.9, "auc"), with_interval(0.81, np.nan, np.nan, "auc")
    ('0.810 (0.700 to 0.900)', '0.810')
    """
    if np.isnan(value):
        return NONE
    between = "" if np.isnan(low) else f" ({number(low, metric, sign)} to {number(high, metric, sign)})"
    return number(value, metric, sign) + between


def difference(row: Mapping[Any, Any], metric: str) -> str:
    """A difference with its interval, from a row with ``difference``, ``low`` and ``high``."""
    return with_interval(row["difference"], row["low"], row["high"], metric, "+")


def p_text(value: float) -> str:
    """A p-value as text.

    >>> p_text(0.0004), p_text(0.25)
    ('<0.001', '0.250')
    """
    return NONE if np.isnan(value) else "<0.001" if value < 0.001 else f"{value:.3f}"
