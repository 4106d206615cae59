"""Tables, sheets, JSON and Parquet files of the worst shapes.

A shape is a function ``(path, n_bytes)`` that writes a file.
"""

from __future__ import annotations

import itertools
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

Shape = Callable[[Path, int], None]


def filled(path: Path, start: bytes, pieces: Iterable[bytes], end: bytes, n_bytes: int) -> None:
    """Write pieces until the file has its size."""
    with open(path, "wb") as file:
        n = file.write(start)
        for piece in pieces:
            if n + len(piece) + len(end) > n_bytes:
                break
            n += file.write(piece)
        file.write(end)


def repeated(piece: bytes, start: bytes = b"", end: bytes = b"") -> Shape:
    block = piece * max(1, 2**16 // len(piece))  # fewer writes
    return lambda path, n_bytes: filled(path, start, itertools.repeat(block), end, n_bytes)


def counted(row: str, start: str = "", end: str = "", most: int = 10**9) -> Shape:
    """Rows with a number in each, so that no two are equal; no more than ``most``."""

    def pieces() -> Iterator[bytes]:
        for first in range(0, most, 1000):
            yield "".join(row.format(k) for k in range(first, min(first + 1000, most))).encode()

    return lambda path, n_bytes: filled(path, start.encode(), pieces(), end.encode(), n_bytes)


def text_shapes(separator: str, columns: list[str], row: str, unique: str, most: int) -> dict[str, Shape]:
    """Of a table with these columns; ``row`` is its shortest line, ``unique`` has a number; ``most`` are read."""

    def line(cells: list[str], width: int = 0) -> str:
        return separator.join([*cells, *[""] * (width - len(cells))]) + "\n"

    def wide(width: int) -> tuple[str, str]:
        """A row with values in its own columns alone, and the header of so many columns."""
        header = line([*columns, *(f"c{k}" for k in range(width - len(columns)))])
        return line(["a"] * len(columns), width), header

    header = line(columns)
    return {
        "one line": repeated(b"x"),
        "separators": repeated(separator.encode()),
        "newlines": repeated(b"\n"),
        "quote over lines": repeated(b"\n", f'{header}"'.encode()),
        "quoted cells over lines": repeated(f'"\n"{separator}'.encode(), header.encode()),
        "rows of two characters": repeated(b"a\n"),
        "shortest rows": repeated(row.encode(), header.encode()),
        "rows that differ": counted(unique, header),
        "as many rows as are read": counted(unique, header, most=most),
        "as many values as are read": counted(*wide(20), most=most),
        "many columns": repeated(*(text.encode() for text in wide(4900))),
        "cells of 100 kB": repeated(line(["1" * 100_000] * len(columns)).encode(), header.encode()),
        "zero bytes": repeated(b"\0"),
    }


def json_shapes(start: str, unique: str, end: str) -> dict[str, Shape]:
    """Of a JSON file that is sound but for its size: ``start``, entries with numbers, ``end``."""
    shapes = {
        "entries that differ": counted(unique, start, end),
        "empty lists": repeated(b"[],", b"[", b"[]]"),
        "empty objects": repeated(b"{},", b"[", b"{}]"),
        "objects of one": repeated(b'{"a":0},', b"[", b"0]"),
        "nested lists": repeated(b"["),
        "nested objects": repeated(b'{"":'),
        "numbers": repeated(b"1e1,", b"[", b"0]"),
        "digits": repeated(b"9"),
        "texts": repeated(b'"ab",', b"[", b"0]"),
        "one text": repeated(b"x", b'["', b'"]'),
        "escapes": repeated(b"\\u0001", b'["', b'"]'),
        "keys": counted('"{}":0,', "{", '"":0}'),
        "newlines": repeated(b"\n"),
        "zero bytes": repeated(b"\0"),
    }
    return shapes | {f"{name}, as many as are read": _within(shape) for name, shape in shapes.items()}


def _within(shape: Shape) -> Shape:
    """The same of the size at which its memory is just allowed, if that is smaller."""

    def write(path: Path, n_bytes: int) -> None:
        from raxss._core.bounded import MAX_JSON_MEMORY, json_memory

        shape(path, 1_000_000)
        content = path.read_bytes()
        shape(path, min(n_bytes, int(0.97 * MAX_JSON_MEMORY * len(content) / json_memory(content))))

    return write


# --- worksheets

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
HEADER = (
    '<row r="1"><c r="A1" t="inlineStr"><is><t>subject</t></is></c>'
    '<c r="B1" t="inlineStr"><is><t>soz</t></is></c></row>'
)
TYPES = (
    '<?xml version="1.0"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Override PartName="/xl/workbook.xml" ContentType="application/vnd.openxmlformats-officedocument.'
    'spreadsheetml.sheet.main+xml"/>'
    '<Override PartName="/xl/worksheets/sheet1.xml" ContentType="application/vnd.openxmlformats-officedocument.'
    'spreadsheetml.worksheet+xml"/>'
    '<Override PartName="/xl/sharedStrings.xml" ContentType="application/vnd.openxmlformats-officedocument.'
    'spreadsheetml.sharedStrings+xml"/></Types>'
)
RELATION = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
RELATIONS = (
    '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{}</Relationships>'
)
SHEET = '<sheet name="s{k}" sheetId="{k}" r:id="rId1"/>'


def part(tag: str, *content: str) -> str:
    return f'<{tag} xmlns="{MAIN}" xmlns:r="{RELATION}">{"".join(content)}</{tag}>'


def workbook(path: Path, rows: str = "", *, method: int = zipfile.ZIP_DEFLATED, **parts: str) -> None:
    """An .xlsx file with these rows in its sheet below a header; any part can be given otherwise."""
    content = {
        "types": TYPES,
        "rels": RELATIONS.format(
            f'<Relationship Id="rId1" Type="{RELATION}/officeDocument" Target="xl/workbook.xml"/>'
        ),
        "workbook_rels": RELATIONS.format(
            f'<Relationship Id="rId1" Type="{RELATION}/worksheet" Target="worksheets/sheet1.xml"/>'
        ),
        "workbook": part("workbook", f"<sheets>{SHEET.format(k=1)}</sheets>"),
        "styles": part("styleSheet"),
        "strings": part("sst", "<si><t>p1</t></si>"),
        "sheet": part("worksheet", f"<sheetData>{HEADER}{rows}</sheetData>"),
        **parts,
    }
    names = {
        "types": "[Content_Types].xml",
        "rels": "_rels/.rels",
        "workbook_rels": "xl/_rels/workbook.xml.rels",
        "workbook": "xl/workbook.xml",
        "styles": "xl/styles.xml",
        "strings": "xl/sharedStrings.xml",
        "sheet": "xl/worksheets/sheet1.xml",
    }
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, text in content.items():
            archive.writestr(names[name], text)


def fill(piece: str, n_bytes: int) -> str:
    return piece * (n_bytes // len(piece))


def _lying(path: Path, n_bytes: int) -> None:
    """The directory says that the sheet has 1,000 bytes."""
    workbook(path, " " * n_bytes)
    content = bytearray(path.read_bytes())
    place = content.index(b"xl/worksheets/sheet1.xml", content.index(b"PK\1\2")) - 46 + 24
    content[place : place + 4] = struct.pack("<I", 1000)
    path.write_bytes(content)


def _many_members(path: Path, n_bytes: int) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for k in range(min(n_bytes // 100, 200_000)):
            archive.writestr(f"{k}", b"")


def _lzma(path: Path, n_bytes: int) -> None:
    """A dictionary of 4 GB is stated in front of the data of each part."""
    workbook(path, method=zipfile.ZIP_LZMA)
    content = path.read_bytes()
    path.write_bytes(
        content.replace(b"\x09\x04\x05\x00\x5d\x00\x00\x80\x00", b"\x09\x04\x05\x00\x5d\xff\xff\xff\xff")
    )


def _row(k: int, cells: str) -> str:
    return f'<row r="{k}">{cells}</row>'


def _rows(n: int, cells: Callable[[int], str]) -> str:
    return "".join(_row(k, cells(k)) for k in range(2, n))


def _sheet_with(*content: str) -> str:
    return part("worksheet", f"<sheetData>{HEADER}</sheetData>", *content)


# the most that is unpacked is 16 MB; what is in it decides
UNPACKED = 16_000_000 - 4_000
SHEETS: dict[str, Shape] = {
    "far cells": lambda path, _: workbook(path, _rows(20_001, lambda k: f'<c r="SF{k}"><v>1</v></c>')),
    "last cell of all": lambda path, _: workbook(path, _row(1048576, '<c r="XFD1048576"><v>1</v></c>')),
    "empty cells": lambda path, _: workbook(path, _row(2, fill("<c/>", UNPACKED))),
    "styles": lambda path, _: workbook(
        path, styles=part("styleSheet", "<cellXfs>", fill("<xf/>", UNPACKED), "</cellXfs>")
    ),
    "styles at the limit": lambda path, _: workbook(
        path, styles=part("styleSheet", "<cellXfs>", "<xf/>" * 49_990, "</cellXfs>")
    ),
    "shared texts": lambda path, _: workbook(path, strings=part("sst", fill("<si/>", UNPACKED))),
    "shared texts at the limit": lambda path, _: workbook(path, strings=part("sst", "<si/>" * 199_990)),
    "a long text in many cells": lambda path, _: workbook(
        path,
        _rows(20_000, lambda k: '<c t="s"><v>0</v></c><c t="s"><v>0</v></c>'),
        strings=part("sst", f'<si><t xml:space="preserve"> {"x" * 10_000_000}</t></si>'),
    ),
    "contacts in ranges": lambda path, _: workbook(
        path,
        _rows(20_000, lambda k: f'<c t="s"><v>0</v></c><c t="s"><v>{k % 2}</v></c>'),
        strings=part("sst", f"<si><t>p1</t></si><si><t>{'A1-512,' * 2_800}</t></si>"),
    ),
    "merged cells at the limit": lambda path, _: workbook(
        path, sheet=_sheet_with("<mergeCells>", "<mergeCell ref='A1:B2'/>" * 49_900, "</mergeCells>")
    ),
    "many sheets": lambda path, _: workbook(
        path,
        workbook=part("workbook", "<sheets>", *(SHEET.format(k=k) for k in range(1, 4_900)), "</sheets>"),
    ),
    "entities": lambda path, _: workbook(
        path,
        sheet=f'<!DOCTYPE x [<!ENTITY a "{"x" * 1_000_000}">]><worksheet xmlns="{MAIN}"><sheetData>{HEADER}'
        f'<row><c t="inlineStr"><is><t>{"&a;" * 1_000}</t></is></c></row></sheetData></worksheet>',
    ),
    "states less than it unpacks to": lambda path, n_bytes: _lying(path, 8 * n_bytes),
    "many parts": _many_members,
    "a dictionary of 4 GB": _lzma,
    "no archive": repeated(b"PK\3\4"),
}


# --- Parquet


def parquet(columns: dict[str, Callable[[int], object]], n_rows: int, **how: object) -> Shape:
    """A table of these columns, each made by a function of the number of rows."""
    return lambda path, _: write_parquet(path, {name: make(n_rows) for name, make in columns.items()}, **how)


def write_parquet(path: Path, columns: dict[str, object], **how: object) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path, **how)


def _constant(value: object) -> Callable[[int], object]:
    import pyarrow as pa

    return lambda n: pa.repeat(value, n)


def _texts(n: int) -> object:
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array([0] * n, pa.int32()), pa.array(["x" * 1_000_000]))


def _lists(n: int) -> object:
    import numpy as np
    import pyarrow as pa

    return pa.ListArray.from_arrays(pa.array([0, n], pa.int32()), pa.array(np.zeros(n)))


def _lying_pages(path: Path, n_bytes: int) -> None:
    """The end of the file states few rows, and one page unpacks to far more."""
    how = {"use_dictionary": False, "compression": "zstd", "data_page_size": 2**30}
    parquet({"window": _constant(1.5)}, 40_000_000, **how)(path, n_bytes)
    content = path.read_bytes()
    rows, few = _varint(2 * 40_000_000), _varint(2 * 1_000)
    few = bytes([few[0] | 128, few[1] | 128, 128, 0][: len(rows)]) if len(few) < len(rows) else few
    length = int.from_bytes(content[-8:-4], "little")
    end = content[-8 - length : -8]
    path.write_bytes(content[: -8 - length] + end.replace(rows, few) + content[-8:])


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


PARQUET: dict[str, Shape] = {
    "equal numbers": parquet({"window": _constant(1.5)}, 100_000_000),
    "a long text in many rows": parquet({"window": _texts}, 100_000),
    "a list of many": parquet({"window": _lists}, 30_000_000),
    "pages larger than stated": _lying_pages,
    "many columns": parquet({f"c{k}": _constant(1) for k in range(40_000)}, 1),
    "no table": repeated(b"PAR1"),
}
