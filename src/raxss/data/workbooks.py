"""Excel workbooks (.xlsx), read within bounds.

    .xlsx -> Table for each worksheet that has a column of interest

An .xlsx is a zip archive of XML, and one of a few kilobytes can unpack to anything: numbers of parts, bytes, XML
tags, cells and letters are limited, and each part is unpacked piece by piece before openpyxl sees it, because the
directory of an archive may state other sizes than its parts have.
"""

from __future__ import annotations

import io
import re
import stat
import warnings
import zipfile
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

from raxss.data.tables import Record, Table, columns_of, plain_cell, plain_name
from raxss.errors import MissingExtraError, RecordingError, display_name

MAX_SHEET_BYTES = 2**24  # unpacked
MAX_SHEET_ROWS, MAX_SHEET_COLUMNS, MAX_SHEET_MEMBERS = 20_000, 500, 2_000
MAX_SHEETS, MAX_SHEET_CELLS = 100, 500_000
MAX_SHEET_LETTERS = 2**25  # in all cells together; a text that many cells share counts in each
MAX_DIRECTORY_BYTES = 2**20  # of the archive: 500 for each of 2,000 parts
CHUNK = 2**16
# openpyxl makes objects of all of them; a workbook has a few sheets, and a few hundred formats
MAX_TAGS = {
    "workbook": 5_000,
    "styles": 50_000,
    "shared texts": 200_000,
    "worksheets": 2_000_000,
    "worksheets' formats and links": 50_000,
}
CONTENT_TYPES = "[Content_Types].xml"
_PART = re.compile(rb"<[^<>]*/xl/worksheets/[^<>]*>", re.IGNORECASE)
_OF_CELLS = re.compile(rb"</?(?:[\w.-]+:)?(?:row|c|v|f|is|t|r|rPr|b|i|u|sz|color|rFont|family|scheme)[\s/>]")
_FORMULA = re.compile(rb"<(?:[\w.-]+:)?f[\s/>]")
NOT_READ = (
    "docprops/", "customxml/", "xl/theme/", "xl/drawings/", "xl/charts/", "xl/media/", "xl/embeddings/",
    "xl/externallinks/", "xl/pivot", "xl/calcchain.xml", "xl/comments", "xl/threadedcomments/", "xl/tables/",
    "xl/printersettings/", "xl/ctrlprops/", "xl/persons/", "xl/worksheets/_rels/",
)  # fmt: skip


def read_workbook(path: Path, *, marks: Collection[str], needed: Collection[str]) -> list[Table]:
    """The worksheets of an ``.xlsx`` file that have one of the columns ``marks``; a title above them goes.

    Of the columns ``needed`` there must be one each, and no formula that nobody computed.
    """
    what = f"sheet {display_name(path)}"
    try:
        import openpyxl
    except ImportError as error:
        raise MissingExtraError(
            f"{what} needs the package openpyxl, which is not installed. Install it with: pip install 'raxss[bids]'"
        ) from error
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for without end
            raise RecordingError(f"{what} is not a regular file; check the path.")
        with open(path, "rb") as file:
            book, has_formulas = _unpacked(file, what)
        sheets = _sheets(openpyxl, book, what, marks, data_only=True)
        if has_formulas:
            written = _sheets(openpyxl, book, what, marks, data_only=False)
            for (_, results), (_, formulas) in zip(sheets, written, strict=True):
                _refuse_formulas(results, formulas, what, needed)
        return [_table(path, rows, what, needed, title) for title, rows in sheets if rows]
    except (RecordingError, MissingExtraError):
        raise
    except OSError as error:
        raise RecordingError(f"{what} cannot be read: {error.strerror or type(error).__name__}.") from error
    except Exception as error:  # openpyxl raises whatever zip or XML it stumbles over, and may quote cells
        raise RecordingError(
            f"{what} is not a whole .xlsx file ({type(error).__name__}). Save it again, or export it as .csv."
        ) from error


def _table(path: Path, rows: list[Record], what: str, needed: Collection[str], title: str) -> Table:
    columns = columns_of(rows[0][1], what, needed)
    named = [(line, zip(columns, cells, strict=True)) for line, cells in rows[1:]]  # all are of one width
    made = tuple((line, {name: plain_cell(cell) for name, cell in cells if name}) for line, cells in named)
    return Table(path, columns, made, title)


# --- the archive


class _Pieces:
    """A file for `zipfile` that refuses to read much at once, which the directory of an archive can ask for."""

    def __init__(self, file: IO[bytes], what: str) -> None:
        self._file, self._what = file, what
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(MAX_DIRECTORY_BYTES + 1 if size < 0 or size > MAX_DIRECTORY_BYTES else size)
        if len(content) > MAX_DIRECTORY_BYTES:
            raise RecordingError(
                f"{self._what} has a list of parts of more than {MAX_DIRECTORY_BYTES:,} bytes; no more is read, "
                f"because at most {MAX_SHEET_MEMBERS:,} parts are. Export the sheet as .csv."
            )
        return content


def _unpacked(file: IO[bytes], what: str) -> tuple[io.BytesIO, bool]:
    """The parts that are needed, checked, in an archive without compression; and whether there is a formula."""
    pieces: Any = _Pieces(file, what)
    book = io.BytesIO()
    counted, has_formulas = dict.fromkeys(MAX_TAGS, 0), False
    with zipfile.ZipFile(pieces) as archive, zipfile.ZipFile(book, "w") as plain:
        members = archive.infolist()
        stated = sum(member.file_size for member in members)
        if stated > MAX_SHEET_BYTES or len(members) > MAX_SHEET_MEMBERS:
            raise RecordingError(
                f"{what} would unpack to {stated:,} bytes in {len(members):,} parts; at most {MAX_SHEET_BYTES:,} "
                f"in {MAX_SHEET_MEMBERS:,} are read, because a clinical sheet has no more. Export it as .csv."
            )
        for member in members:
            name = member.filename.lower()
            if name.endswith((".xml", ".rels")) and not name.startswith(NOT_READ):
                content = _member(archive, member, what)
                _check_part(member.filename, content, counted, what)
                has_formulas = has_formulas or _FORMULA.search(content) is not None
                plain.writestr(member.filename, content)
    return book, has_formulas


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, what: str) -> bytes:
    """One part, unpacked piece by piece: never more than the directory says, and what there is must be all."""
    # other methods take memory as they like
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise RecordingError(
            f"{what} is packed with a method that no spreadsheet program uses. Save it again, or export it as .csv."
        )
    content = bytearray()
    with archive.open(member) as file:
        while piece := file.read(CHUNK):
            content += piece
    if len(content) != member.file_size:
        raise zipfile.BadZipFile
    return bytes(content)


def _check_part(name: str, content: bytes, counted: dict[str, int], what: str) -> None:
    """XML in UTF-8 without definitions of its own, and no more tags than there may be."""
    start = content[:200].removeprefix(b"\xef\xbb\xbf")
    encoding = re.match(rb"""<\?xml[^>]*encoding\s*=\s*["']([^"']*)""", start)
    if b"\0" in content or (encoding and encoding.group(1).lower() not in (b"utf-8", b"us-ascii", b"ascii")):
        raise RecordingError(f"{what} has a part that is not UTF-8. Save it again, or export it as .csv.")
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content:
        raise RecordingError(
            f"{what} has a part with definitions of its own (DOCTYPE), which can unfold to any size and no "
            "spreadsheet program writes. Save it again, or export it as .csv."
        )
    # by its kind, openpyxl would look for the workbook or the shared texts where more tags are allowed
    if name == CONTENT_TYPES and (
        b"&" in content or any(b"worksheet+xml" not in tag.lower() for tag in _PART.findall(content))
    ):
        raise RecordingError(
            f"{what} has a part among its worksheets that is none. Save it again, or export it as .csv."
        )
    for kind, n_tags in _tags(name.lower(), content):
        counted[kind] += n_tags
        if counted[kind] > MAX_TAGS[kind]:
            raise RecordingError(
                f"{what} has more than {MAX_TAGS[kind]:,} XML tags in its {kind}; no more are read, because "
                "each becomes an object that takes memory and time. Export the sheet as .csv."
            )


def _tags(name: str, content: bytes) -> list[tuple[str, int]]:
    """How many tags a part adds to each kind that is limited."""
    n_tags = content.count(b"<")
    if name.startswith("xl/worksheets/"):
        n_of_cells = sum(1 for _ in _OF_CELLS.finditer(content))
        return [("worksheets", n_tags), ("worksheets' formats and links", n_tags - n_of_cells)]
    if "sharedstrings" in name:
        return [("shared texts", n_tags)]
    return [("styles" if "styles" in name else "workbook", n_tags)]


# --- cells


def _sheets(
    openpyxl: Any, file: io.BytesIO, what: str, marks: Collection[str], *, data_only: bool
) -> list[tuple[str, list[Record]]]:
    """Title and cells of all worksheets from their header on; nothing is computed, no link is followed."""
    file.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about styles and menus that are not kept
        book = openpyxl.load_workbook(file, read_only=True, data_only=data_only, keep_links=False)
        if len(book.worksheets) > MAX_SHEETS:
            raise RecordingError(
                f"{what} has {len(book.worksheets):,} worksheets; at most {MAX_SHEETS} are read, because each is "
                "looked through. Remove those that are not needed."
            )
        counted = Counter[str]()
        sheets = [
            (str(sheet.title), _from_header(_rows(sheet, counted, what), marks)) for sheet in book.worksheets
        ]
    book.close()
    return sheets


def _rows(sheet: Any, counted: Counter[str], what: str) -> list[Record]:
    """The rows of a worksheet; ``counted`` are cells and letters of all worksheets."""
    rows: list[Record] = []
    # with limits, because a sheet may declare millions of empty cells
    found = sheet.iter_rows(max_row=MAX_SHEET_ROWS + 1, max_col=MAX_SHEET_COLUMNS + 1, values_only=True)
    for line, values in enumerate(found, start=1):
        if values.count(None) == len(values):
            continue
        cells = [_as_text(value) for value in values]
        while cells and not cells[-1].strip():
            cells.pop()
        if not cells:
            continue
        if line > MAX_SHEET_ROWS or len(cells) > MAX_SHEET_COLUMNS:
            raise RecordingError(
                f"{what} has more than {MAX_SHEET_ROWS:,} rows or {MAX_SHEET_COLUMNS} columns; is it the right one?"
            )
        counted.update(cells=len(cells), letters=sum(map(len, cells)))
        if counted["cells"] > MAX_SHEET_CELLS or counted["letters"] > MAX_SHEET_LETTERS:
            raise RecordingError(
                f"{what} has more than {MAX_SHEET_CELLS:,} cells or {MAX_SHEET_LETTERS:,} letters in its "
                "worksheets; no more are read, because a clinical sheet has a row for each patient. Remove what is "
                "not needed, or export the sheet as .csv."
            )
        rows.append((line, cells))
    return rows


def _as_text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # an id or score that the spreadsheet made a decimal number of
    return "" if value is None else str(value)


def _from_header(rows: list[Record], marks: Collection[str]) -> list[Record]:
    """From the row with one of these columns on, every row as long as that one."""
    for place, (_, cells) in enumerate(rows):
        if set(marks) & {plain_name(cell) for cell in cells}:
            width = len(cells)
            return [(line, (cells + [""] * width)[:width]) for line, cells in rows[place:]]
    return []


def _refuse_formulas(stored: list[Record], written: list[Record], what: str, needed: Collection[str]) -> None:
    """A formula whose result nobody stored looks like an empty cell, which means something else."""
    results = dict(stored)
    header = [plain_name(name) for name in written[0][1]] if written else []
    for line, cells in written:
        for place, (name, cell) in enumerate(zip(header, cells, strict=True)):
            result = results.get(line, [""] * len(cells))[place]
            if name in needed and cell.startswith("=") and not result:
                raise RecordingError(
                    f"{what} has a formula without a stored result in line {line}, column {name!r}; formulas "
                    "are not computed. Save the file in a spreadsheet program, or put the text there."
                )
