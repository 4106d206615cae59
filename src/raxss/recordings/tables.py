"""What is in this table?

    .tsv, .csv, a worksheet of an .xlsx file -> Table: cells as text, by line and column

Tables come from many hands: byte order marks, Windows line ends, titles above the header, formulas, damage. Errors
name file, line and column, and never a cell, because cells may be about a person.
Next: labels.py finds contacts and labels in tables; bids.py reads a dataset's own.
"""

from __future__ import annotations

import csv
import io
import re
import stat
import warnings
import zipfile
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from raxss.errors import MissingExtraError, RecordingError, shown

MAX_TABLE_BYTES, MAX_TABLE_COLUMNS = 2**25, 5_000
MAX_SHEET_BYTES = 2**24  # unpacked
MAX_SHEET_ROWS, MAX_SHEET_COLUMNS, MAX_SHEET_MEMBERS = 20_000, 500, 2_000

Rows = list[tuple[int, list[str]]]  # line, cells


@dataclass(frozen=True)
class Table:
    """A table as text: columns by their plain names, rows as (line, cells by column); a worksheet has a title."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[tuple[int, Mapping[str, str]], ...]
    title: str = ""

    def column(self, names: Iterable[str]) -> str | None:
        """The first of these columns that the table has."""
        return next((name for name in names if name in self.columns), None)

    def values(self, column: str) -> tuple[str, ...] | None:
        """All cells of a column, or None where there is none of that name."""
        return tuple(cells[column] for _, cells in self.rows) if column in self.columns else None


def read_table(path: Path) -> Table:
    """A ``.tsv`` or ``.csv`` file, all cells as text; ``n/a`` becomes "".

    Names of columns are made plain: ``SOZ Contacts (final)`` is ``soz_contacts``.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "channels.tsv"
    >>> _ = path.write_text("name\\tstatus\\nG1\\tn/a\\n")
    >>> read_table(path).rows
    ((2, {'name': 'G1', 'status': ''}),)
    """
    what, text = f"table {shown(path)}", _text(path)
    tabs = path.suffix.lower() != ".csv"
    separator = "\t" if tabs else ","
    for line, row in enumerate(io.StringIO(text), start=1):
        if row.count(separator) >= MAX_TABLE_COLUMNS:
            raise RecordingError(
                f"{what} has more than {MAX_TABLE_COLUMNS:,} values in line {line}; is it a table?"
            )
    lines = io.StringIO(text, newline="")
    # tsv has no quotes by BIDS's rules, and a stray one in a free text would swallow the lines after it
    reader = (
        csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(lines, strict=True)
    )
    try:
        numbered = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:  # an open quote, a cell longer than any real one
        raise RecordingError(
            f"{what} cannot be read from line {reader.line_num} on ({error}). Write it again as text."
        ) from error
    return _table(path, numbered, what)


def _table(
    path: Path,
    numbered: Sequence[tuple[int, Sequence[str]]],
    what: str,
    needed: Collection[str] | None = None,
    title: str = "",
) -> Table:
    """Rows under a header, with as many cells each as there are columns; every (needed) column once."""
    if not numbered:
        raise RecordingError(f"{what} is empty; a line with the names of the columns is needed first.")
    columns = tuple(plain_name(cell) for cell in numbered[0][1])
    for name, count in Counter(columns).items():
        if name and count > 1 and (needed is None or name in needed):
            raise RecordingError(f"{what} has the column {name[:40]!r} {count} times; once is needed.")
    rows = []
    for line, cells in numbered[1:]:
        if len(cells) != len(columns):
            raise RecordingError(
                f"{what} has {len(cells)} values in line {line} and {len(columns)} columns; one value a column is "
                "needed."
            )
        rows.append((line, {name: _cell(cell) for name, cell in zip(columns, cells, strict=True) if name}))
    return Table(path, columns, tuple(rows), title)


def _text(path: Path) -> str:
    """The content of a text file of sensible size, without byte order mark."""
    what = f"table {shown(path)}"
    try:
        _refuse_irregular(path, what)
        size = path.stat().st_size
        if size > MAX_TABLE_BYTES:
            raise RecordingError(
                f"{what} has {size:,} bytes; at most {MAX_TABLE_BYTES:,} are read. Is it a table at all?"
            )
        content = path.read_bytes()
    except OSError as error:
        raise RecordingError(f"{what} cannot be read: {error.strerror or type(error).__name__}.") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RecordingError(f"{what} is not UTF-8 in line {line}. Save it again as UTF-8.") from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise RecordingError(
            f"{what} has a zero byte in line {line}, so it is no text. Copy or write it again."
        )
    return text


def _refuse_irregular(path: Path, what: str) -> None:
    """A pipe would be waited for without end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise RecordingError(f"{what} is not a regular file; check the path.")


def plain_name(name: str) -> str:
    """A column's name in small letters, without what stands in brackets, words joined by ``_``."""
    return re.sub(r"[^0-9a-z]+", "_", name.split("(")[0].strip().lower()).strip("_")


def _cell(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1].strip()
    if (
        not text.isprintable()
    ):  # escape sequences would be carried out by a terminal; contacts may be on two lines
        text = "".join(one for one in text if one.isprintable() or one in "\n\t")
    return "" if text.lower() in ("n/a", "nan") else text


def read_workbook(path: Path, *, marks: Collection[str], needed: Collection[str]) -> list[Table]:
    """The worksheets of an ``.xlsx`` file that have one of the columns ``marks``; a title above them goes.

    Of the columns ``needed`` there must be one each, and no formula that nobody computed.
    """
    what = f"sheet {shown(path)}"
    try:
        import openpyxl
    except ImportError as error:
        raise MissingExtraError(
            f"{what} needs the package openpyxl, which is not installed. Install it with: pip install 'raxss[bids]'"
        ) from error
    try:
        _refuse_irregular(path, what)
        _refuse_large_archive(path, what)
        with open(path, "rb") as file:
            titles, found = _sheets(openpyxl, file, what, data_only=True)
            stored = [_from_header(rows, marks) for rows in found]
            _, found = _sheets(openpyxl, file, what, data_only=False)
            written = [_from_header(rows, marks) for rows in found]
        _refuse_formulas(stored, written, what, needed)
        titled = zip(titles, stored, strict=True)
        return [_table(path, rows, what, needed, title) for title, rows in titled if rows]
    except (RecordingError, MissingExtraError):
        raise
    except OSError as error:
        raise RecordingError(f"{what} cannot be read: {error.strerror or type(error).__name__}.") from error
    except Exception as error:  # openpyxl raises whatever zip or XML it stumbles over, and may quote cells
        raise RecordingError(
            f"{what} is not a whole .xlsx file ({type(error).__name__}). Save it again, or export it as .csv."
        ) from error


def _sheets(openpyxl: Any, file: IO[bytes], what: str, *, data_only: bool) -> tuple[list[str], list[Rows]]:
    """Titles and cells of all worksheets as text, blank rows left out; nothing is computed, no link is followed."""
    file.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about styles and menus that are not kept
        book = openpyxl.load_workbook(file, read_only=True, data_only=data_only, keep_links=False)
        sheets = [_rows(sheet, what) for sheet in book.worksheets]
        titles = [str(sheet.title) for sheet in book.worksheets]
    book.close()
    return titles, sheets


def _rows(sheet: Any, what: str) -> Rows:
    rows: Rows = []
    # with limits, because a sheet may declare millions of empty cells
    found = sheet.iter_rows(max_row=MAX_SHEET_ROWS + 1, max_col=MAX_SHEET_COLUMNS + 1, values_only=True)
    for line, values in enumerate(found, start=1):
        if values.count(None) == len(values):
            continue
        cells = [_as_text(value) for value in values]
        while cells and not cells[-1].strip():
            cells.pop()
        if cells and (line > MAX_SHEET_ROWS or len(cells) > MAX_SHEET_COLUMNS):
            raise RecordingError(
                f"{what} has more than {MAX_SHEET_ROWS:,} rows or {MAX_SHEET_COLUMNS} columns; is it the right one?"
            )
        if cells:
            rows.append((line, cells))
    return rows


def _as_text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # an id or score that the spreadsheet made a decimal number of
    return "" if value is None else str(value)


def _from_header(rows: Rows, marks: Collection[str]) -> Rows:
    """From the row with one of these columns on, every row as long as that one."""
    for place, (_, cells) in enumerate(rows):
        if set(marks) & {plain_name(cell) for cell in cells}:
            width = len(cells)
            return [(line, (cells + [""] * width)[:width]) for line, cells in rows[place:]]
    return []


def _refuse_formulas(stored: list[Rows], written: list[Rows], what: str, needed: Collection[str]) -> None:
    """A formula whose result nobody stored looks like an empty cell, which means something else."""
    for results, formulas in zip(stored, written, strict=True):
        known = dict(results)
        header = [plain_name(name) for name in formulas[0][1]] if formulas else []
        for line, cells in formulas:
            for place, (name, cell) in enumerate(zip(header, cells, strict=True)):
                result = known.get(line, [""] * len(cells))[place]
                if name in needed and cell.startswith("=") and not result:
                    raise RecordingError(
                        f"{what} has a formula without a stored result in line {line}, column {name!r}; formulas "
                        "are not computed. Save the file in a spreadsheet program, or put the text there."
                    )


def _refuse_large_archive(path: Path, what: str) -> None:
    """An .xlsx is a zip archive, and a small one can unpack to anything."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    unpacked = sum(member.file_size for member in members)
    if unpacked > MAX_SHEET_BYTES or len(members) > MAX_SHEET_MEMBERS:
        raise RecordingError(
            f"{what} would unpack to {unpacked:,} bytes in {len(members):,} parts; at most {MAX_SHEET_BYTES:,} in "
            f"{MAX_SHEET_MEMBERS:,} are read. Export the sheet as .csv."
        )
