"""CSV tables of study pages: written beside the page and its plots, and read back."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from raxss._core.atomic import without_formula, write_bytes
from raxss._core.bounded import decoded, read_bytes
from raxss._core.renames import current_columns
from raxss.data.tables import MalformedCsvError, records
from raxss.errors import DataError, display_name
from raxss.metrics import METRICS

MAX_CSV_BYTES, MAX_CSV_ROWS, MAX_CSV_VALUES = 2**24, 200_000, 2_000_000
FIGURES = ("f1", "auc", "accuracy", "window_accuracy", *METRICS[3:])
NUMBERS = re.compile(
    r"(seed|n_.*|seconds|seconds_of_choice|each_once|difference|low|high|p|p_holm|leaky|shuffled)|.*_(mean|sd|low|high)"
)

Frame = pd.DataFrame


def write_all(
    out: Path | str, tables: Mapping[str, Frame], files: Mapping[str, bytes], page: str
) -> list[Path]:
    """Write tables as CSV, other files, and the page last."""
    contents = {
        f"{name}.csv": csv_text(table).encode() for name, table in tables.items() if len(table.columns)
    }
    contents |= {**files, "README.md": page.encode()}
    for name, content in contents.items():
        write_bytes(Path(out) / name, content)
    return [Path(out) / name for name in contents]


def csv_text(table: Frame) -> str:
    """A table as CSV, without formulas for a spreadsheet.

    >>> csv_text(pd.DataFrame({"system": ["=1+1"], "auc": [1 / 3]}))
    "system,auc\\n'=1+1,0.3333333333\\n"
    """
    return table.map(without_formula).to_csv(index=False, float_format="%.10g", lineterminator="\n")


def csv_of(path: Path) -> str:
    """The text of a CSV table of bounded size."""
    what = f"table {display_name(path)}"
    content = read_bytes(path, what, MAX_CSV_BYTES, why="no table of results is longer")
    text = decoded(content, what)
    n_values = 0
    try:
        for line, cells in records(content, what, MAX_CSV_ROWS):
            n_values += len(cells)
            if n_values > MAX_CSV_VALUES:
                raise DataError(
                    f"{what} has more than {MAX_CSV_VALUES:,} values up to line {line}; no table of results has."
                )
    except MalformedCsvError as error:
        raise DataError(f"{what} is not a CSV file ({error}). Run its study again.") from error
    return text


def read_table(text: str) -> Frame:
    """A table from CSV; a system called ``nan``, ``007`` or ``-x`` keeps its name.

    >>> read_table("dataset,system,seed,auc\\n007,nan,1,0.5\\n007,'-x,1,0.5\\n").values.tolist()
    [['007', 'nan', 1, 0.5], ['007', '-x', 1, 0.5]]
    """
    table = current_columns(pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False), warn=False)
    for name in table:
        if name in FIGURES or NUMBERS.fullmatch(str(name)):
            table[name] = pd.to_numeric(table[name])
        else:
            table[name] = [item[1:] if without_formula(item[1:]) == item else item for item in table[name]]
    return table
