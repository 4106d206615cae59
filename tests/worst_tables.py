"""How much memory and time each reader of raxss takes for files of the worst shapes (worst_shapes.py).

    python tests/worst_tables.py 50000000 [READER[:SHAPE] ...]   -> a line of JSON for each reader and shape

Each file is read in a process of its own, forked after the imports: its peak of memory is compared with what it
holds before it reads.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worst_shapes import PARQUET, SHEETS, Shape, counted, json_shapes, repeated, text_shapes


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
    function
        ``module:name`` below raxss; imported before memory is measured.
    call
        How the function is called with the path; the path alone by default.
    """

    file: str
    shapes: Mapping[str, Shape]
    function: str
    call: Callable[[Any, Path], object] = lambda function, path: function(path)

    def imported(self) -> Callable[[Path], object]:
        """The function that reads the file."""
        import openpyxl  # noqa: F401 (imported by the reader of sheets)
        import pandas  # noqa: F401
        import pyarrow.parquet  # noqa: F401

        module, _, names = self.function.partition(":")
        found = functools.reduce(getattr, names.split("."), importlib.import_module(f"raxss.{module}"))
        return functools.partial(self.call, found)


def _onset(read_events: Any, path: Path) -> object:
    from raxss.data.labels import seizure_onset

    return seizure_onset(read_events(path))


def _inspected(problems: Any, path: Path, *more: object) -> object:
    from raxss.data.inspection.sidecars import RecordingFacts

    facts = RecordingFacts(["a", "b"], [1.0, 1.0], ["uV", "uV"], 1e9)
    return list(problems(path, path.parent, facts, *more))


def _in_tree(read: Any, path: Path, *more: object) -> object:
    from raxss.data.bids_tree import Tree

    return read(Tree(path.parent), *more)


def _channels(rows: Any, path: Path) -> object:
    from raxss.data.bids_tree import BidsRun

    return _in_tree(rows, path, BidsRun("sub-01_task-a", "01", "ieeg", path.parent, None))


def _manifest(lines_of_inputs: Any, path: Path) -> object:
    import numpy as np

    from raxss.data.files import distinct_names

    np.save(path.parent / "a.npy", np.zeros(5))
    lines = lines_of_inputs([path])
    return lines, distinct_names(lines)


def _in_folder(read: Any, path: Path) -> object:
    return read(path.parent)


def _windows(load: Any, path: Path) -> object:
    (path.parent / "evidence.json").write_text(json.dumps(HEAD))
    return load(path.parent)


def _prepared_table(read_prepared: Any, path: Path) -> object:
    _prepared_facts(path.parent)
    return read_prepared(path.parent)


def _verdict(verdict_for_report: Any, path: Path) -> object:
    return verdict_for_report(path.parent, weights_sha256="0", beside=path.parent)


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
    from raxss.data.prepare.folder import COLUMNS, MAX_SERIES
    from raxss.data.prepare.preparing import _write_table

    row = {name: {"str": "x" * 20, "int": 1, "float": 1.0}[kind] for name, kind in COLUMNS.items()}
    row |= {"file": "samples/a.npy", "offset": 0}
    rows = [
        {**row, "name": f"recording-{k}:C{k}", "sha256": f"{k:064x}"}
        for k in range(min(n_bytes // 60, MAX_SERIES))
    ]
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
    "warnings": ["w"],
    "settings": {},
}
SPLIT = (
    '{"format":"raxss-split-1","by":"patient","leaky":false,"description":"","seed":0,"balance":"none","fold":null,'
    '"fractions":[0.7,0.1,0.2],"validation":[],"test":[],"dropped":[],"train":['
)
REPORT = '{"format":"raxss report 1","recording":"a","channels":[{"name":"a","weight":['
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

LOAD = "explain:SeriesEvidence.load"
READERS: dict[str, Reader] = {
    "events.tsv, onset": Reader("events.tsv", EVENTS, "data.labels:read_events", _onset),
    "events.tsv, marks": Reader("events.tsv", MARKS, "explain.faithfulness.marks:read_events"),
    "events.tsv, inspected": Reader(
        "events.tsv", EVENTS, "data.inspection.sidecars:_events_problems", _inspected
    ),
    "channels.tsv": Reader("sub-01_channels.tsv", CHANNELS, "data.bids_tree:channel_rows", _channels),
    "channels.tsv, inspected": Reader(
        "channels.tsv",
        CHANNELS,
        "data.inspection.sidecars:_channels_problems",
        lambda problems, path: _inspected(problems, path, Counter()),
    ),
    "participants.tsv": Reader(
        "participants.tsv", PARTICIPANTS, "data.bids_tree:read_participants", _in_tree
    ),
    "participants.tsv, inspected": Reader(
        "participants.tsv",
        PARTICIPANTS,
        "data.inspection.bids:_participants_problems",
        lambda problems, path: list(problems(path.parent, ["sub-01"])),
    ),
    "scans.tsv": Reader(
        "sub-01_scans.tsv",
        SCANS,
        "data.bids_tree:_scans",
        lambda scans, path: _in_tree(scans, path, path.parent, "ieeg"),
    ),
    "label table": Reader("labels.csv", LABELS, "data.labels:read_label_table"),
    "clinical sheet, csv": Reader("clinical.csv", CLINICAL, "data.labels:read_clinical_sheet"),
    "clinical sheet, xlsx": Reader("clinical.xlsx", SHEETS, "data.labels:read_clinical_sheet"),
    "manifest": Reader("all.csv", MANIFEST, "data.files:lines_of_inputs", _manifest),
    "manifest, files missing": Reader("all.csv", MISSING, "data.files:lines_of_inputs", _manifest),
    "results of a study": Reader("results.csv", CSV, "benchmark.rerun:committed_table", _in_folder),
    "names for audit-split": Reader("names.txt", MISSING, "cli.audit_split:read_names"),
    "split": Reader(
        "split.json",
        json_shapes(SPLIT, '"s{0}",', '"a"]}'),
        "data.splits:Split.read",
        lambda read, path: read(path, ["a", "b"]),
    ),
    "sidecar": Reader(
        "ieeg.json",
        json_shapes("{", '"k{0}":0,', '"a":0}'),
        "data.bids_tree:Tree",
        lambda tree, path: tree(path.parent).json(path),
    ),
    "evidence.json": Reader(
        "evidence.json",
        json_shapes(json.dumps(HEAD)[:-1] + ',"windows":[', "[{0}],", "0]}"),
        LOAD,
        _in_folder,
    ),
    "windows.parquet": Reader("windows.parquet", PARQUET, LOAD, _windows),
    "read_parquet": Reader("a.parquet", PARQUET, "_core.atomic:read_parquet"),
    "report": Reader(
        "report.html",
        {name: in_report(shape) for name, shape in json_shapes(REPORT, "{0}.5,", "0]}]}").items()},
        "explain.export.report:Report.read",
        lambda read, path: repr(read(path)),
    ),
    "part of an archive": Reader(
        "part.json",
        json_shapes('{"seal":0,"rows":[', '"s{0}",', '"a"]}'),
        "_core.store:Store",
        lambda store, path: store(path.parent).require("part", "key"),
    ),
    "prepared.json": Reader(
        "prepared.json",
        json_shapes('{"format":"raxss-prepared-1","outputs":{', '"s{0}":0,', '"a":0}}'),
        "data.prepare:read_prepared",
        _in_folder,
    ),
    "series.parquet": Reader(
        "series.parquet",
        {**PARQUET, "many series": _many_series},
        "data.prepare:read_prepared",
        _prepared_table,
    ),
    "result of a cell": Reader(
        "cell.json",
        json_shapes('{"seal":0,"format":0,"rows":[', '"s{0}",', '"a"]}'),
        "benchmark.result:RunResult.read",
    ),
    "verdict.json": Reader(
        "verdict.json",
        json_shapes('{"verdicts":{', '"s{0}":0,', '"a":0},"about":{}}'),
        "explain.faithfulness.verdict:verdict_for_report",
        _verdict,
    ),
    "study": Reader("study.toml", WRONG_TOML, "benchmark.study:Study.read"),
    "settings": Reader("mine.toml", WRONG_TOML, "estimator.config:Config.from_file"),
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
            outcome = work()
        except BaseException as error:
            outcome = {"failed": repr(error)[:300]}
        with os.fdopen(send, "w") as file:
            json.dump(outcome, file)
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
    read = about.imported()
    for shape in shapes or about.shapes:
        folder = Path(tempfile.mkdtemp())
        path = folder / about.file
        try:
            made = _forked(lambda shape=shape, path=path: about.shapes[shape](path, n_bytes))
            assert made is None, (reader, shape, made)
            size = path.stat().st_size
            outcome = _forked(lambda path=path: _read(read, path))
            assert isinstance(outcome, dict)
            yield {"reader": reader, "shape": shape, "bytes": size, **outcome}
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    size, *given = sys.argv[1:]
    for name in given or READERS:
        reader, _, shape = name.partition(":")
        for found in measured(reader, int(size), [shape] if shape else []):
            print(json.dumps(found), flush=True)
