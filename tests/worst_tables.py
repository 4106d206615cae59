"""Tables, sheets, JSON and Parquet files of the worst shapes, and what every reader of raxss takes for them.

    python tests/worst_tables.py 50000000 [READER[:SHAPE] ...]   -> a line of JSON for each reader and shape

A shape is a function ``(path, n_bytes)`` that writes a file. Each file is read in a process of its own, forked
after the imports: its peak of memory is compared with what it holds before it reads.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import struct
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
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
    header = separator.join(columns) + "\n"
    wide = separator.join(f"c{k}" for k in range(4900 - len(columns)))
    return {
        "one line": repeated(b"x"),
        "separators": repeated(separator.encode()),
        "newlines": repeated(b"\n"),
        "carriage returns": repeated(b"\r"),
        "header and newlines": repeated(b"\n", header.encode()),
        "quote never closed": repeated(b"x", f'{header}"'.encode()),
        "quote over lines": repeated(b"\n", f'{header}"'.encode()),
        "quoted cells over lines": repeated(f'"\n"{separator}'.encode(), header.encode()),
        "rows of two characters": repeated(b"a\n"),
        "header of one, rows of one": repeated(b"a\n", columns[0].encode() + b"\n"),
        "shortest rows": repeated(row.encode(), header.encode()),
        "rows that differ": counted(unique, header),
        "as many rows as are read": counted(unique, header, most=most),
        "as many values as are read": counted(
            separator.join(["a"] * len(columns)) + separator * (20 - len(columns)) + "\n",
            separator.join([*columns, *(f"c{k}" for k in range(20 - len(columns)))]) + "\n",
            most=most,
        ),
        "many columns": repeated(
            separator.join(["a"] * len(columns)).encode()
            + separator.encode() * (4900 - len(columns))
            + b"\n",
            f"{separator.join(columns)}{separator}{wide}\n".encode(),
        ),
        "forty columns": repeated(
            (separator.join(["a"] * len(columns)) + separator * (40 - len(columns)) + "\n").encode(),
            (separator.join([*columns, *(f"c{k}" for k in range(40 - len(columns)))]) + "\n").encode(),
        ),
        "cells of 100 kB": repeated(
            (separator.join(["1" * 100_000] * len(columns)) + "\n").encode(), header.encode()
        ),
        "zero bytes": repeated(b"\0"),
        "letters of four bytes": repeated("\U0001f9e0".encode(), header.encode()),
        "not UTF-8": repeated(b"\xff"),
    }


def json_shapes(start: str, unique: str, end: str) -> dict[str, Shape]:
    """Of a JSON file that is sound but for its size: ``start``, entries with numbers, ``end``."""
    shapes = {
        "entries that differ": counted(unique, start, end),
        "empty lists": repeated(b"[],", b"[", b"[]]"),
        "empty objects": repeated(b"{},", b"[", b"{}]"),
        "objects of one": repeated(b'{"a":0},', b"[", b"0]"),
        "lists of one": repeated(b"[1],", b"[", b"0]"),
        "nested lists": repeated(b"["),
        "nested objects": repeated(b'{"":'),
        "numbers": repeated(b"1e1,", b"[", b"0]"),
        "whole numbers": repeated(b"999,", b"[", b"0]"),
        "digits": repeated(b"9"),
        "texts": repeated(b'"ab",', b"[", b"0]"),
        "one text": repeated(b"x", b'["', b'"]'),
        "one text of four bytes a letter": repeated("\U0001f9e0".encode(), b'["', b'"]'),
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
SHEET = '<sheet name="s{k}" sheetId="{n}" r:id="rId1"/>'


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
        "workbook": f'<workbook xmlns="{MAIN}" xmlns:r="{RELATION}"><sheets>{SHEET.format(k=1, n=1)}</sheets>'
        "</workbook>",
        "styles": f'<styleSheet xmlns="{MAIN}"></styleSheet>',
        "strings": f'<sst xmlns="{MAIN}"><si><t>p1</t></si></sst>',
        "sheet": f'<worksheet xmlns="{MAIN}"><sheetData>{HEADER}{rows}</sheetData></worksheet>',
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
        for part, text in content.items():
            archive.writestr(names[part], text)


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


# the most that is unpacked is 16 MB; what is in it decides
UNPACKED = 16_000_000
SHEETS: dict[str, Shape] = {
    "far cells": lambda path, _: workbook(
        path, "".join(_row(k, f'<c r="SF{k}"><v>1</v></c>') for k in range(2, 20_001))
    ),
    "last cell of all": lambda path, _: workbook(path, _row(1048576, '<c r="XFD1048576"><v>1</v></c>')),
    "full cells": lambda path, _: workbook(
        path,
        "".join(_row(k, "".join(f"<c><v>{k}.{j}</v></c>" for j in range(45))) for k in range(2, 11_000)),
    ),
    "empty cells": lambda path, _: workbook(path, _row(2, fill("<c/>", UNPACKED - 2000))),
    "empty rows": lambda path, _: workbook(path, fill("<row/>", UNPACKED - 2000)),
    "other tags": lambda path, _: workbook(path, fill("<x/>", UNPACKED - 2000)),
    "spaces": lambda path, _: workbook(path, " " * (UNPACKED - 4000)),
    "styles": lambda path, _: workbook(
        path,
        styles=f'<styleSheet xmlns="{MAIN}"><cellXfs>{fill("<xf/>", UNPACKED - 4000)}</cellXfs></styleSheet>',
    ),
    "styles at the limit": lambda path, _: workbook(
        path, styles=f'<styleSheet xmlns="{MAIN}"><cellXfs>{"<xf/>" * 49_990}</cellXfs></styleSheet>'
    ),
    "fonts at the limit": lambda path, _: workbook(
        path, styles=f'<styleSheet xmlns="{MAIN}"><fonts>{"<font/>" * 49_990}</fonts></styleSheet>'
    ),
    "shared texts": lambda path, _: workbook(
        path, strings=f'<sst xmlns="{MAIN}">{fill("<si/>", UNPACKED - 4000)}</sst>'
    ),
    "shared texts at the limit": lambda path, _: workbook(
        path, strings=f'<sst xmlns="{MAIN}">{"<si/>" * 199_990}</sst>'
    ),
    "a long text in many cells": lambda path, _: workbook(
        path,
        "".join(_row(k, '<c t="s"><v>0</v></c><c t="s"><v>0</v></c>') for k in range(2, 20_000)),
        strings=f'<sst xmlns="{MAIN}"><si><t xml:space="preserve"> {"x" * 10_000_000}</t></si></sst>',
    ),
    "contacts in ranges": lambda path, _: workbook(
        path,
        "".join(_row(k, f'<c t="s"><v>0</v></c><c t="s"><v>{k % 2}</v></c>') for k in range(2, 20_000)),
        strings=f'<sst xmlns="{MAIN}"><si><t>p1</t></si><si><t>{"A1-512," * 2_800}</t></si></sst>',
    ),
    "merged cells at the limit": lambda path, _: workbook(
        path,
        sheet=f'<worksheet xmlns="{MAIN}"><sheetData>{HEADER}</sheetData><mergeCells>'
        + "<mergeCell ref='A1:B2'/>" * 49_900
        + "</mergeCells></worksheet>",
    ),
    "menus at the limit": lambda path, _: workbook(
        path,
        sheet=f'<worksheet xmlns="{MAIN}"><sheetData>{HEADER}</sheetData><dataValidations>'
        + "<dataValidation sqref='A1'/>" * 49_900
        + "</dataValidations></worksheet>",
    ),
    "names at the limit": lambda path, _: workbook(
        path,
        workbook=f'<workbook xmlns="{MAIN}" xmlns:r="{RELATION}"><sheets>{SHEET.format(k=1, n=1)}</sheets>'
        "<definedNames>" + "<definedName name='a'/>" * 4_900 + "</definedNames></workbook>",
    ),
    "many sheets": lambda path, _: workbook(
        path,
        workbook=f'<workbook xmlns="{MAIN}" xmlns:r="{RELATION}"><sheets>'
        f"{''.join(SHEET.format(k=k, n=k) for k in range(1, 4_900))}</sheets></workbook>",
    ),
    "entities": lambda path, _: workbook(
        path,
        sheet=f'<!DOCTYPE x [<!ENTITY a "{"x" * 1_000_000}">]><worksheet xmlns="{MAIN}"><sheetData>{HEADER}'
        f'<row><c t="inlineStr"><is><t>{"&a;" * 1_000}</t></is></c></row></sheetData></worksheet>',
    ),
    "unpacks to its size": lambda path, n_bytes: workbook(path, " " * n_bytes),
    "states less than it unpacks to": lambda path, n_bytes: _lying(path, 8 * n_bytes),
    "many parts": _many_members,
    "a dictionary of 4 GB": _lzma,
    "no archive": repeated(b"PK\3\4"),
}


# --- Parquet


def parquet(columns: dict[str, Callable[[int], object]], n_rows: int, **how: object) -> Shape:
    def write(path: Path, n_bytes: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({name: make(n_rows) for name, make in columns.items()}), path, **how)

    return write


def _constant(value: object) -> Callable[[int], object]:
    import pyarrow as pa

    return lambda n: pa.repeat(value, n)


def _texts(length: int) -> Callable[[int], object]:
    import pyarrow as pa

    def make(n: int) -> object:
        return pa.DictionaryArray.from_arrays(pa.array([0] * n, pa.int32()), pa.array(["x" * length]))

    return make


def _lists(n: int) -> object:
    import numpy as np
    import pyarrow as pa

    return pa.ListArray.from_arrays(pa.array([0, n], pa.int32()), pa.array(np.zeros(n)))


def _lying_pages(path: Path, n_bytes: int) -> None:
    """The end of the file states few rows, and one page unpacks to far more."""
    parquet(
        {"window": _constant(1.5)}, 40_000_000, use_dictionary=False, compression="zstd", data_page_size=2**30
    )(path, n_bytes)
    content = path.read_bytes()
    rows, few = _varint(2 * 40_000_000), _varint(2 * 1_000) + b""
    length = int.from_bytes(content[-8:-4], "little")
    end = content[-8 - length : -8]
    few = bytes([few[0] | 128, few[1] | 128, 128, 0][: len(rows)]) if len(few) < len(rows) else few
    path.write_bytes(content[: -8 - length] + end.replace(rows, few) + content[-8:])


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


PARQUET: dict[str, Shape] = {
    "equal numbers": parquet({"window": _constant(1.5)}, 100_000_000),
    "a long text in many rows": parquet({"window": _texts(1_000_000)}, 100_000),
    "a list of many": parquet({"window": lambda n: _lists(n)}, 30_000_000),
    "pages larger than stated": _lying_pages,
    "many columns": parquet({f"c{k}": _constant(1) for k in range(40_000)}, 1),
    "random numbers": lambda path, n_bytes: _random_numbers(path, n_bytes),
    "short texts": lambda path, n_bytes: _short_texts(path, n_bytes),
    "no table": repeated(b"PAR1"),
}


def _random_numbers(path: Path, n_bytes: int) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {f"c{k}": np.random.default_rng(k).standard_normal(n_bytes // 41) for k in range(5)}
    pq.write_table(pa.table(columns), path, use_dictionary=False)


def _short_texts(path: Path, n_bytes: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    n = n_bytes // 10
    pq.write_table(
        pa.table({"window": [f"{k:x}" for k in range(n)]}), path, compression="none", use_dictionary=False
    )


def report_page(path: Path, block: bytes) -> None:
    """A report around this block of data, with its hash."""
    from raxss.explain.export.report import page

    before, after = page._shell()
    path.write_bytes(before + page._opening(block) + block + after)


def in_report(shape: Shape) -> Shape:
    def write(path: Path, n_bytes: int) -> None:
        shape(path, n_bytes - 150_000)
        report_page(path, path.read_bytes())

    return write


# --- who reads them


@dataclass(frozen=True)
class Reader:
    """What reads a file.

    Attributes
    ----------
    file
        How the file must be called, below a folder of its own.
    imports
        Gives the function that reads the file; what it imports is there before memory is measured.
    """

    file: str
    shapes: Mapping[str, Shape]
    imports: Callable[[], Callable[[Path], object]]


def _labels_events() -> Callable[[Path], object]:
    from raxss.data.labels import read_events, seizure_onset

    return lambda path: seizure_onset(read_events(path))


def _marks() -> Callable[[Path], object]:
    from raxss.explain.faithfulness.marks import read_events

    return read_events


def _inspected_events() -> Callable[[Path], object]:
    from raxss.data.formats.registry import RecordingFacts
    from raxss.data.inspection.sidecars import _events_problems

    facts = RecordingFacts(["a", "b"], [1.0, 1.0], ["uV", "uV"], 1e9)
    return lambda path: _events_problems(path, path.parent, facts)


def _inspected_channels() -> Callable[[Path], object]:
    from raxss.data.formats.registry import RecordingFacts
    from raxss.data.inspection.sidecars import _channels_problems

    facts = RecordingFacts(["a", "b"], [1.0, 1.0], ["uV", "uV"], 1e9)
    return lambda path: _channels_problems(path, path.parent, facts, Counter())


def _inspected_participants() -> Callable[[Path], object]:
    from raxss.data.inspection.bids import _participants_problems

    return lambda path: _participants_problems(path.parent, ["sub-01"])


def _channels() -> Callable[[Path], object]:
    from raxss.data.bids import _channel_rows
    from raxss.data.bids_tree import Run, Tree

    def read(path: Path) -> object:
        run = Run("sub-01_task-a", "01", "ieeg", path.parent, {"subject": "01"}, None)
        return _channel_rows(Tree(path.parent), run)

    return read


def _participants() -> Callable[[Path], object]:
    from raxss.data.bids import _participants
    from raxss.data.bids_tree import Tree

    return lambda path: _participants(Tree(path.parent))


def _scans() -> Callable[[Path], object]:
    from raxss.data.bids_tree import Tree, _scans

    return lambda path: _scans(Tree(path.parent), path.parent, "ieeg")


def _label_table() -> Callable[[Path], object]:
    from raxss.data.labels import read_label_table

    return read_label_table


def _sheet() -> Callable[[Path], object]:
    import openpyxl  # noqa: F401 (imported by the reader)

    from raxss.data.labels import read_clinical_sheet

    return read_clinical_sheet


def _manifest() -> Callable[[Path], object]:
    import numpy as np

    from raxss.data.files import distinct_names, lines_of_inputs

    def read(path: Path) -> object:
        np.save(path.parent / "a.npy", np.zeros(5))
        lines = lines_of_inputs([path])
        return lines, distinct_names(lines)

    return read


def _results() -> Callable[[Path], object]:
    from raxss.benchmark.rerun import committed_table

    return lambda path: committed_table(path.parent)


def _names() -> Callable[[Path], object]:
    from raxss.cli.audit_split import read_names

    return read_names


def _split() -> Callable[[Path], object]:
    from raxss.data.splits import Split

    return lambda path: Split.read(path, ["a", "b"])


def _sidecar() -> Callable[[Path], object]:
    from raxss.data.bids_tree import Tree

    return lambda path: Tree(path.parent).json(path)


def _evidence() -> Callable[[Path], object]:
    from raxss.explain import SeriesEvidence

    return lambda path: SeriesEvidence.load(path.parent)


def _windows() -> Callable[[Path], object]:
    from raxss.explain import SeriesEvidence

    def read(path: Path) -> object:
        (path.parent / "evidence.json").write_text(json.dumps(HEAD))
        return SeriesEvidence.load(path.parent)

    return read


def _parquet() -> Callable[[Path], object]:
    import pandas as pd
    import pyarrow.parquet as pq

    from raxss._core.atomic import read_parquet

    pd.DataFrame({"a": ["x"]}), pq.ParquetFile
    return read_parquet


def _report() -> Callable[[Path], object]:
    from raxss.explain.export.report import Report

    return lambda path: repr(Report.read(path))


def _part() -> Callable[[Path], object]:
    from raxss.estimator.batch import _read_part

    return _read_part


def _prepared() -> Callable[[Path], object]:
    from raxss.data.prepare import read_prepared

    return lambda path: read_prepared(path.parent)


def _prepared_table() -> Callable[[Path], object]:
    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    from raxss.data.prepare import read_prepared

    def read(path: Path) -> object:
        _prepared_facts(path.parent)
        return read_prepared(path.parent)

    return read


def _cell() -> Callable[[Path], object]:
    from raxss.benchmark.result import RunResult

    return RunResult.read


def _verdict() -> Callable[[Path], object]:
    from raxss.explain.faithfulness.report_verdict import told_in_report

    return lambda path: told_in_report(path.parent, weights_sha256="0", beside=path.parent)


def _study() -> Callable[[Path], object]:
    from raxss.benchmark.study import Study

    return Study.read


def _settings() -> Callable[[Path], object]:
    from raxss.estimator.config import Config

    return Config.from_file


def _prepared_facts(folder: Path) -> None:
    """What a prepared folder has beside its table, with the hashes that it should have."""
    from raxss._core.atomic import MARK, sha256_of
    from raxss._core.store import seal_of
    from raxss.data.prepare import folder as prepared

    (folder / MARK).write_text("")
    (folder / prepared.PROBLEMS).write_text("{}")
    outputs = {
        name: {"sha256": sha256_of(folder / name), "n_bytes": (folder / name).stat().st_size}
        for name in (prepared.TABLE, prepared.PROBLEMS)
    }
    (folder / "samples").mkdir(exist_ok=True)
    (folder / "samples" / "a.npy").write_bytes(b"\0" * 1000)
    outputs["samples/a.npy"] = {"sha256": sha256_of(folder / "samples" / "a.npy"), "n_bytes": 1000}
    facts = {"format": prepared.FORMAT, "preparation": "", "outputs": outputs, "collection_hash": "0"}
    facts |= {"source": "a", "group_by": None, "n_recordings": 1, "n_series": 1, "labels": {}}
    (folder / prepared.FACTS).write_text(json.dumps({**facts, "seal": seal_of(facts)}))


def _many_series(path: Path, n_bytes: int) -> None:
    """A table as raxss writes it, of as many series as it may have, or as give the size."""
    import pyarrow as pa

    from raxss.data.prepare.assembling import _write_table
    from raxss.data.prepare.folder import COLUMNS, MAX_SERIES

    row = {name: {"str": "x" * 20, "int": 1, "float": 1.0}[kind] for name, kind in COLUMNS.items()}
    row |= {"file": "samples/a.npy", "offset": 0}
    rows = [
        {**row, "name": f"recording-{k}:C{k}", "sha256": f"{k:064x}"}
        for k in range(min(n_bytes // 60, MAX_SERIES))
    ]
    assert pa
    _write_table(rows, path)


HEAD = {
    "format": "raxss evidence 1",
    "name": "a",
    "label": None,
    "rate": 100.0,
    "seconds": 10.0,
    "classes": ["no", "yes"],
    "series_probability": [0.5, 0.5],
    "predicted": "no",
    "effective_windows": 1.0,
    "effective_share": 1.0,
    "overlap_share": None,
    "warnings": [],
    "settings": {},
}
SPLIT = (
    '{"format":"raxss-split-1","by":"patient","leaky":false,"description":"","seed":0,"balance":"none","fold":null,'
    '"fractions":[0.7,0.1,0.2],"validation":[],"test":[],"dropped":[],"train":['
)
MOST, KEPT, LINES = 999_999, 99_999, 199_999
EVENTS = text_shapes("\t", ["onset", "duration", "trial_type"], "1\t1\ta\n", "{0}\t0.{0}\tonset_{0}\n", MOST)
MARKS = text_shapes("\t", ["onset", "duration", "channel"], "1\t1\ta\n", "{0}\t0.{0}\tA{0}\n", MOST)
CHANNELS = text_shapes("\t", ["name", "type"], "a\tb\n", "A{0}\tECOG\n", KEPT)
PARTICIPANTS = text_shapes("\t", ["participant_id", "age"], "a\t1\n", "sub-{0}\t{0}\n", KEPT)
SCANS = text_shapes("\t", ["filename", "acq_time"], "a\t1\n", "ieeg/sub-01_run-{0}_ieeg.edf\t{0}\n", KEPT)
LABELS = text_shapes(",", ["recording", "channel", "label"], "a,b,c\n", "r{0},C{0},x\n", 399_999)
CLINICAL = text_shapes(",", ["subject", "soz"], "a,A1\n", "p{0},A1-512\n", 900)
MANIFEST = text_shapes(",", ["path", "label", "channel"], "a,b,c\n", "a.npy,x,{0}\n", LINES)
MISSING = text_shapes(",", ["path"], "a\n", "{0}.npy\n", LINES)
CSV = text_shapes(",", ["dataset", "system", "seed"], "a,b,1\n", "a,b,{0}\n", LINES)
WRONG_TOML = {
    "tables": counted("[a{0}]\n"),
    "keys": counted("a{0}=1\n"),
    "dotted keys": repeated(b"a."),
    "nested lists": repeated(b"[", b"a="),
    "lists": repeated(b"[],", b"a=[", b"]"),
    "one text": repeated(b"x", b"a='", b"'"),
    "newlines": repeated(b"\n"),
    "comments": repeated(b"#\n"),
}

READERS: dict[str, Reader] = {
    "events.tsv, onset": Reader("events.tsv", EVENTS, _labels_events),
    "events.tsv, marks": Reader("events.tsv", MARKS, _marks),
    "events.tsv, inspected": Reader("events.tsv", EVENTS, _inspected_events),
    "channels.tsv": Reader("sub-01_channels.tsv", CHANNELS, _channels),
    "channels.tsv, inspected": Reader("channels.tsv", CHANNELS, _inspected_channels),
    "participants.tsv": Reader("participants.tsv", PARTICIPANTS, _participants),
    "participants.tsv, inspected": Reader("participants.tsv", PARTICIPANTS, _inspected_participants),
    "scans.tsv": Reader("sub-01_scans.tsv", SCANS, _scans),
    "label table": Reader("labels.csv", LABELS, _label_table),
    "clinical sheet, csv": Reader("clinical.csv", CLINICAL, _sheet),
    "clinical sheet, xlsx": Reader("clinical.xlsx", SHEETS, _sheet),
    "manifest": Reader("all.csv", MANIFEST, _manifest),
    "manifest, files missing": Reader("all.csv", MISSING, _manifest),
    "results of a study": Reader("results.csv", CSV, _results),
    "names for audit-split": Reader("names.txt", MISSING, _names),
    "split": Reader("split.json", json_shapes(SPLIT, '"s{0}",', '"a"]}'), _split),
    "sidecar": Reader("ieeg.json", json_shapes("{", '"k{0}":0,', '"a":0}'), _sidecar),
    "evidence.json": Reader(
        "evidence.json",
        json_shapes(
            json.dumps({**HEAD, "warnings": 0}).replace('"warnings": 0', '"warnings": ["w"]')[:-1]
            + ',"windows":[',
            "[{0}],",
            "0]}",
        ),
        _evidence,
    ),
    "windows.parquet": Reader("windows.parquet", PARQUET, _windows),
    "read_parquet": Reader("a.parquet", PARQUET, _parquet),
    "report": Reader(
        "report.html",
        {
            name: in_report(shape)
            for name, shape in json_shapes(
                '{"format":"raxss report 1","recording":"a","channels":[{"name":"a","weight":[',
                "{0}.5,",
                "0]}]}",
            ).items()
        },
        _report,
    ),
    "part of an archive": Reader("part.json", json_shapes('{"seal":0,"rows":[', '"s{0}",', '"a"]}'), _part),
    "prepared.json": Reader(
        "prepared.json",
        json_shapes('{"format":"raxss-prepared-1","outputs":{', '"s{0}":0,', '"a":0}}'),
        _prepared,
    ),
    "series.parquet": Reader("series.parquet", {**PARQUET, "many series": _many_series}, _prepared_table),
    "result of a cell": Reader(
        "cell.json", json_shapes('{"seal":0,"format":0,"rows":[', '"s{0}",', '"a"]}'), _cell
    ),
    "verdict.json": Reader(
        "verdict.json", json_shapes('{"verdicts":{', '"s{0}":0,', '"a":0},"about":{}}'), _verdict
    ),
    "study": Reader("study.toml", WRONG_TOML, _study),
    "settings": Reader("mine.toml", WRONG_TOML, _settings),
}


# --- measuring


def _status(name: str) -> int:
    """Bytes, from the kernel's status of this process."""
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(name))


def _forked(work: Callable[[], object]) -> object:
    """What the work gives as JSON, done in a process forked from this one."""
    receive, send = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(receive)
        try:
            told = work()
        except BaseException as error:
            told = {"failed": repr(error)[:300]}
        with os.fdopen(send, "w") as file:
            json.dump(told, file)
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as file:
        text = file.read()
    os.waitpid(process, 0)
    return json.loads(text) if text else {"failed": "the process was killed"}


def _read(read: Callable[[Path], object], path: Path) -> dict[str, object]:
    from raxss.data.formats.fields import Refused
    from raxss.errors import RAxSSError

    before, start, message, held = _status("VmRSS"), time.perf_counter(), "", None
    try:
        held = read(path)  # until memory is measured
        outcome = "read"
    except (RAxSSError, Refused) as error:
        outcome, message = "refused", str(error)
    except BaseException as error:
        outcome, message = "untyped", f"{type(error).__name__}: {str(error)[:200]}"
    seconds = time.perf_counter() - start
    del held
    return {
        "outcome": outcome,
        "message": message[:400],
        "mb": (_status("VmHWM") - before) / 1e6,
        "seconds": seconds,
    }


def measured(reader: str, n_bytes: int, shapes: Iterable[str] = ()) -> Iterator[dict[str, object]]:
    """How each shape of this size is read."""
    about = READERS[reader]
    read = about.imports()
    for shape in shapes or about.shapes:
        folder = Path(tempfile.mkdtemp())
        path = folder / about.file
        try:
            made = _forked(lambda shape=shape, path=path: about.shapes[shape](path, n_bytes))
            assert made is None, (reader, shape, made)
            size = path.stat().st_size
            told = _forked(lambda path=path: _read(read, path))
            assert isinstance(told, dict)
            yield {"reader": reader, "shape": shape, "bytes": size, **told}
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    size, *asked = sys.argv[1:]
    for name in asked or READERS:
        reader, _, shape = name.partition(":")
        for found in measured(reader, int(size), [shape] if shape else []):
            print(json.dumps(found), flush=True)
