"""CSV and TSV tables, read as text within bounds: the one reader of such tables in raxss.

    .tsv, .csv -> Table: cells as text, by line and column
    content, or one line -> records, cells_of: rows of cells, where a table has rules of its own

Errors name file, line and column, and never a cell, because cells may be about a person. A table stays as compact
as its file: rows are made on request, and numbers of lines and cells are limited.
"""

from __future__ import annotations

import csv
import re
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raxss._core import bounded
from raxss.errors import RecordingError, display_name

MAX_TABLE_BYTES = 2**25
MAX_TABLE_COLUMNS = 5_000
MAX_TABLE_ROWS = 1_000_000  # lines, empty ones included: more than ten events a second for a day
MAX_KEPT_ROWS = 100_000  # of tables whose rows are held as such: channels, participants, scans
CELLS_A_ROW = 20  # on average, at most, in a table of as many rows as it may have
MAX_RECORD_BYTES = 2**22  # one row, which may go over several lines inside quotes

Row = tuple[int, Mapping[str, str]]  # line, cells by column
Record = tuple[int, list[str]]  # line, cells


class MalformedCsvError(csv.Error, ValueError):
    """A text is not CSV; readers of a kind of file say which, and what to do."""


@dataclass(frozen=True)
class Table:
    """A table as text: columns by their plain names, rows as (line, cells by column); a worksheet has a title."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[Row, ...] | TextRows
    title: str = ""

    def column(self, names: Iterable[str]) -> str | None:
        """The first of these columns that the table has."""
        return next((name for name in names if name in self.columns), None)

    def values(self, column: str) -> tuple[str, ...] | None:
        """All cells of a column, or None where there is none of that name."""
        if column not in self.columns:
            return None
        if isinstance(self.rows, TextRows):
            return tuple(self.rows.values(column))
        return tuple(cells[column] for _, cells in self.rows)


@dataclass(frozen=True, eq=False)
class TextRows:
    """The rows below the header of a text table, cut from its bytes whenever they are iterated."""

    content: bytes
    columns: tuple[str, ...]
    tabs: bool
    places: array[int] = field(
        default_factory=lambda: array("Q")
    )  # of each row: its last line, start, length

    def __len__(self) -> int:
        return len(self.places) // 3

    def __iter__(self) -> Iterator[Row]:
        for line, cells in zip(self.places[::3], self._cells(), strict=True):
            named = zip(self.columns, cells, strict=True)
            yield line, {name: plain_cell(cell) for name, cell in named if name}

    def values(self, column: str) -> Iterator[str]:
        """The cells of one column."""
        place = self.columns.index(column)
        return (plain_cell(cells[place]) for cells in self._cells())

    def _cells(self) -> Iterator[list[str]]:
        places = zip(self.places[1::3], self.places[2::3], strict=True)
        texts = (self.content[start : start + length].decode() for start, length in places)
        return _reader(texts, tabs=self.tabs)


def read_table(path: Path, *, most_rows: int = MAX_TABLE_ROWS) -> Table:
    """A ``.tsv`` or ``.csv`` file, all cells as text; ``n/a`` becomes "".

    Names of columns are made plain: ``SOZ Contacts (final)`` is ``soz_contacts``. More than ``most_rows`` lines, or
    twenty times as many cells, are refused: what is made of the rows takes memory.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "channels.tsv"
    >>> _ = path.write_text("name\\tstatus\\nG1\\tn/a\\n")
    >>> list(read_table(path).rows)
    [(2, {'name': 'G1', 'status': ''})]
    """
    what = f"table {display_name(path)}"
    content = _content(path, what)
    tabs = path.suffix.lower() != ".csv"
    rows: TextRows | None = None
    n_cells = 0
    try:
        for line, cells, start, length in _scanned(content, what, most_rows, tabs=tabs):
            if rows is None:
                rows = TextRows(content, columns_of(cells, what), tabs)
                continue
            if len(cells) != len(rows.columns):
                raise RecordingError(
                    f"{what} has {len(cells)} values in line {line} and {len(rows.columns)} columns; one value a "
                    "column is needed."
                )
            n_cells += len(cells)
            if n_cells > most_rows * CELLS_A_ROW:
                raise RecordingError(
                    f"{what} has more than {most_rows * CELLS_A_ROW:,} values up to line {line}; no more are read, "
                    "because they would not fit into the memory set aside for a table. Leave out columns."
                )
            rows.places.extend((line, start, length))
    except MalformedCsvError as error:
        raise RecordingError(f"{what} cannot be read from {error}. Write it again as text.") from error
    if rows is None:
        raise RecordingError(f"{what} is empty; a line with the names of the columns is needed first.")
    return Table(path, rows.columns, rows)


def records(content: bytes, what: str, most_rows: int, *, tabs: bool = False) -> Iterator[Record]:
    """(number of its last line, cells) of each row of a text in CSV that is not blank, header included.

    ``tabs``: cells are separated by tabs and never quoted. A stray or open quote in CSV raises `MalformedCsvError`.

    >>> list(records(b'path,label\\n\\n"a,b",ill\\n', "manifest 'all.csv'", 100))
    [(1, ['path', 'label']), (3, ['a,b', 'ill'])]
    """
    return ((line, cells) for line, cells, _, _ in _scanned(content, what, most_rows, tabs=tabs))


def _scanned(
    content: bytes, what: str, most_rows: int, *, tabs: bool
) -> Iterator[tuple[int, list[str], int, int]]:
    """Of each row that is not blank: the number of its last line, its cells, its start and length in bytes."""
    lines = _Lines(content, b"\t" if tabs else b",", most_rows, what)
    reader = _reader(lines, tabs=tabs)
    try:
        for cells in reader:
            start, length = lines.record()
            if any(cell.strip() for cell in cells):
                yield reader.line_num, cells, start, length
    except csv.Error as error:  # an open quote, a cell longer than any real one
        raise MalformedCsvError(f"line {reader.line_num}: {error}") from error


def cells_of(line: str) -> list[str]:
    """The cells of one line of CSV, where no more of a file may be read."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error as error:
        raise MalformedCsvError(str(error)) from error


def _reader(lines: Iterable[str], *, tabs: bool) -> Any:
    # tsv has no quotes by BIDS's rules, and a stray one in a free text would swallow the lines after it
    if tabs:
        return csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    return csv.reader(lines, strict=True)


class _Lines:
    """The lines of a text for `csv.reader`, each limited before it is decoded, and where they lie."""

    def __init__(self, content: bytes, separator: bytes, most: int, what: str) -> None:
        self._lines = re.finditer(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", content)
        self._separator, self._most, self._what = separator, most, what
        self._n_lines = self._start = self._end = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        found = next(self._lines)
        line, self._end = found.group(), found.end()
        self._n_lines += 1
        if line.count(self._separator) >= MAX_TABLE_COLUMNS:
            raise RecordingError(
                f"{self._what} has more than {MAX_TABLE_COLUMNS:,} values in line {self._n_lines}; is it a table?"
            )
        if self._n_lines > self._most + 1:
            raise RecordingError(
                f"{self._what} has more than {self._most:,} lines below its first; no more are read, because they "
                "would not fit into the memory set aside for a table. Split it, or check what wrote it."
            )
        if self._end - self._start > MAX_RECORD_BYTES:
            raise RecordingError(
                f"{self._what} has a row of more than {MAX_RECORD_BYTES:,} bytes up to line {self._n_lines}; no "
                "row of a table is so long. Is a quote not closed?"
            )
        return line.decode()

    def record(self) -> tuple[int, int]:
        """Start and length in bytes of what was read since the last call."""
        start, self._start = self._start, self._end
        return start, self._end - start


def columns_of(header: Sequence[str], what: str, needed: Collection[str] | None = None) -> tuple[str, ...]:
    """Plain names of the columns; every (needed) one once."""
    columns = tuple(plain_name(cell) for cell in header)
    for name, count in Counter(columns).items():
        if name and count > 1 and (needed is None or name in needed):
            raise RecordingError(f"{what} has the column {name[:40]!r} {count} times; once is needed.")
    return columns


def _content(path: Path, what: str) -> bytes:
    """The bytes of a text file of sensible size, without byte order mark."""
    why = "no table of events, channels or labels is longer"
    try:
        content = bounded.read_bytes(path, what, MAX_TABLE_BYTES, why=why, error=RecordingError)
    except OSError as error:
        raise RecordingError(f"{what} cannot be read: {error.strerror or type(error).__name__}.") from error
    bounded.refuse_no_text(content, what, error=RecordingError)
    return content.removeprefix(b"\xef\xbb\xbf")


def plain_name(name: str) -> str:
    """A column's name in small letters, without what stands in brackets, words joined by ``_``."""
    return re.sub(r"[^0-9a-z]+", "_", name.split("(")[0].strip().lower()).strip("_")


def plain_cell(text: str) -> str:
    """A cell without blanks and quotes around it; "" where it says that there is nothing."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1].strip()
    if not text.isprintable():  # a terminal would execute escape sequences; contacts may be on two lines
        text = "".join(letter for letter in text if letter.isprintable() or letter in "\n\t")
    return "" if text.lower() in ("n/a", "nan") else text
