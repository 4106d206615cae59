"""Packed results of a study: predictions and facts of all its runs in one Parquet file.

    DIR/cells/*/*.json, DIR/choices/*/*.json -> pack_runs -> DIR/cells.parquet
    place of a cell -> its JSON file where there is one, otherwise its rows of DIR/cells.parquet

While a study runs, a run is a JSON file, because workers write side by side; `raxss table` packs the files at its
end. A JSON file wins over packed rows of the same run, so a packed study is resumed like any other.

The table has one row for each test series of each run. A row without ``series`` describes the whole run and comes
before the rows of its series:

    cell, dataset, system, seed     every row; ``cell`` is the path of the JSON file without its suffix
    series, group, label, p_0, ...  a test series; ``label`` and the columns p_0, p_1, ... count through ``classes``
    answer                          of a run with a probe: number of the answer; null for the model as fitted
    format, fold, ..., facts        rows without series; settings, split, facts and others are JSON text

Probabilities are float64. ``seal`` is the SHA-256 of the JSON that a run was packed from; a run whose rows do not
give back exactly that JSON is refused.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from raxss._core.atomic import output_lock, whole_file
from raxss._core.bounded import json_of, read_json
from raxss._core.bounded_parquet import read_parquet_table
from raxss._core.store import unsealed
from raxss.benchmark.analyses.evaluation import EvaluatedRun
from raxss.benchmark.result import FORMAT as RUN_FORMAT
from raxss.benchmark.result import RunResult, damage_reported
from raxss.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

PACKED = "cells.parquet"
FOLDERS = ("cells", "choices")  # of results, and of the trials that choices are made by
FACTS, ERROR = ".facts.json", ".error.json"  # ends of the names of files beside a result

#: Columns of every row, of rows about a series, and of rows about a run: plain values, then JSON texts.
KEYS = {"cell": "string", "dataset": "string", "system": "string", "seed": "int64"}
SERIES = {"answer": "int64", "series": "string", "group": "string", "label": "int64"}
PLAIN = {"format": "string", "config_hash": "string", "fold": "string", "window_accuracy": "double"}
PLAIN |= {"n_parameters": "int64", "seal": "string"}
ENTRIES = ("classes", "positive", "f1_classes", "changes", "settings", "split", "validation")
NESTED = (*ENTRIES, "question", "more", "facts")
BY_SERIES = ("names", "groups", "labels", "probabilities")
ZSTD_LEVEL = 9  # higher levels take longer and save little

Kept = TypeVar("Kept", RunResult, EvaluatedRun)
logger = logging.getLogger("raxss")


def read_run(place: Path, kind: type[Kept]) -> Kept:
    """Read the result of a run from its file, or from the packed file of its study; DataError if damaged."""
    rows = None if place.exists() else _packed_rows(place)
    if rows is None:
        return kind.read(place)
    with damage_reported(place):
        return kind.from_sealed(_content_of(rows))


def is_kept(place: Path) -> bool:
    """Whether there is a result of a run, in a file of its own or packed."""
    return place.exists() or _packed_rows(place) is not None


def facts_of(place: Path) -> dict[str, Any]:
    """Duration, hardware and versions of a run; empty where they are absent or cannot be read."""
    file = place.with_suffix(FACTS)
    if file.exists():
        return read_facts(file)
    rows = _packed_rows(place)
    return {} if rows is None else _packed_facts(rows)


def read_facts(file: Path) -> dict[str, Any]:
    """Read a JSON file of facts or of an error; empty where that fails, since both are for readers only."""
    try:
        found = read_json(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def trials_in(folder: Path) -> list[Path]:
    """Places of all trials of a study folder, in the order of their files."""
    files = {
        file.with_name(file.name.removesuffix(FACTS) + ".json") for file in folder.glob(f"choices/*/*{FACTS}")
    }
    packed = {folder / f"{key}.json" for key in _packed(folder) if key.startswith("choices/")}
    return sorted(files | packed, key=lambda place: place.with_suffix(FACTS))


def runs_in(folder: Path) -> list[Path]:
    """Places of all runs of a study folder that have a result, trials left out."""
    files = {file for file in folder.glob("cells/*/*.json") if not file.name.endswith((FACTS, ERROR))}
    packed = {folder / f"{key}.json" for key in _packed(folder) if key.startswith("cells/")}
    return sorted(files | packed)


def pack_runs(folder: Path | str) -> Path | None:
    """Move all runs and trials of a study folder into its packed file; None where there is nothing to pack.

    The packed file replaces an earlier one in one step, after it was read back and each new run compared with its
    JSON; then the JSON files are removed. A process that dies in between leaves some runs in both, which reads the
    same. Errors stay files, as do results that were cut short, and all of them where the table would be larger than
    `raxss._core.bounded_parquet` reads. The folder is locked meanwhile.

    """
    folder = Path(folder)
    with output_lock(os.path.realpath(folder)):
        found = _run_files(folder)
        if found:
            try:
                _write(folder / PACKED, {**_packed(folder), **found}, new=list(found))
            except DataError as error:
                logger.warning("the runs of %r stay files of their own: %s", folder.name, error)
                return None
            for key in found:
                (folder / f"{key}.json").unlink(missing_ok=True)
        _remove_leftovers(folder)
    return folder / PACKED if (folder / PACKED).exists() else None


# From JSON to rows ----------------------------------------------------------------------------------------------


def _run_files(folder: Path) -> dict[str, pa.Table]:
    """Key -> rows of every run that is a whole file."""
    found = {}
    for name in FOLDERS:
        for place in sorted((folder / name).glob("*/*.json")):
            content = read_facts(place)
            if "seal" not in content:  # facts, errors and choices have none
                continue
            try:
                rows = _rows_of(_key(place), content, facts_of(place))
                _check(rows)
            except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
                logger.warning(
                    "%r stays a file of its own; it is not the whole result of a run: %s", place.name, error
                )
                continue
            found[_key(place)] = rows
    return found


def _rows_of(key: str, content: Mapping[str, Any], facts: Mapping[str, Any]) -> pa.Table:
    """The rows of one run, from the sealed JSON of a `RunResult` or a `EvaluatedRun`."""
    import pyarrow as pa

    run = content.get("cell", content)
    keys = {"cell": key} | {name: run[name] for name in ("dataset", "system", "seed")}
    positions = {_text(item): k for k, item in enumerate(run["classes"])}
    series = [
        keys | {"series": name, "group": group, "label": positions[_text(label)]}
        for name, group, label in zip(run["names"], run["groups"], run["labels"], strict=True)
    ]
    entries = {name: run.get(name) for name in PLAIN} | {name: content[name] for name in ("format", "seal")}
    entries |= {name: _text(run[name]) for name in NESTED if name in run}
    more = _others(run, (*KEYS, *PLAIN, *NESTED, *BY_SERIES))
    rows = [keys | entries | {"more": more, "facts": _text(facts) if facts else None}]
    rows += _with_probabilities(series, None, run["probabilities"])
    for number, answer in enumerate(content.get("answers", ())):
        texts = {name: _text(answer[name]) for name in ("question", "validation")}
        more = _others(answer, ("question", "validation", "probabilities"))
        rows += [keys | {"answer": number, "more": more} | texts]
        rows += _with_probabilities(series, number, answer["probabilities"])
    return pa.Table.from_pylist(rows, schema=_schema(len(run["classes"])))


def _others(entries: Mapping[str, Any], known: Sequence[str]) -> str | None:
    """JSON of the entries that have no column; None where there are none."""
    found = {name: value for name, value in entries.items() if name not in known}
    return _text(found) if found else None


def _with_probabilities(
    series: Sequence[Mapping[str, Any]], answer: int | None, probabilities: Sequence[Sequence[float]]
) -> list[dict[str, Any]]:
    return [
        {**item, "answer": answer} | {f"p_{k}": value for k, value in enumerate(row)}
        for item, row in zip(series, probabilities, strict=True)
    ]


def _schema(n_classes: int) -> pa.Schema:
    import pyarrow as pa

    probabilities = {f"p_{k}": "double" for k in range(n_classes)}
    columns = KEYS | SERIES | probabilities | PLAIN | dict.fromkeys(NESTED, "string")
    return pa.schema([pa.field(name, pa.type_for_alias(kind)) for name, kind in columns.items()])


def _text(value: Any) -> str:
    """JSON without spaces; entries stay in their order, so that a run can be written as the file it was."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _write(place: Path, runs: Mapping[str, pa.Table], *, new: Sequence[str]) -> None:
    """Write the table of these runs; it takes its place when the new ones were read back from it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.concat_tables([runs[key] for key in sorted(runs)], promote_options="default").combine_chunks()
    n_classes = sum(name.startswith("p_") for name in table.column_names)
    table = table.select(_schema(n_classes).names)
    with whole_file(place) as temporary:
        pq.write_table(
            table,
            temporary,
            compression="zstd",
            compression_level=ZSTD_LEVEL,
            use_dictionary=False,
            write_statistics=False,
            row_group_size=max(len(table), 1),
        )
        written = _index(temporary)
        for key in new:
            _check(written[key])
            if _packed_facts(written[key]) != _packed_facts(runs[key]):
                raise DataError(f"the facts of {key!r} came back changed")


def _check(rows: pa.Table) -> None:
    """Raise unless rows give back the JSON that they were made from, which their seal is the hash of."""
    content = _content_of(rows)
    unsealed(content, content["format"])


def _remove_leftovers(folder: Path) -> None:
    """Remove facts that are packed, beside results that are, and folders that are empty."""
    packed = _packed(folder)
    for name in FOLDERS:
        for file in (folder / name).glob(f"*/*{FACTS}"):
            place = file.with_name(file.name.removesuffix(FACTS) + ".json")
            rows = None if place.exists() else packed.get(_key(place))
            if rows is not None and _packed_facts(rows) == read_facts(file):
                file.unlink(missing_ok=True)
        for empty in (*(folder / name).glob("*/"), folder / name):
            with suppress(OSError):
                empty.rmdir()


# From rows to JSON ----------------------------------------------------------------------------------------------


def _packed(folder: Path) -> Mapping[str, pa.Table]:
    """Key -> rows of every run in the packed file of a folder; empty where there is none."""
    place = Path(os.path.abspath(folder)) / PACKED
    try:
        found = os.stat(place)
    except FileNotFoundError:
        return {}
    return _index_of(place, (found.st_ino, found.st_mtime_ns, found.st_size))


@lru_cache(maxsize=2)
def _index_of(place: Path, state: tuple[int, int, int]) -> Mapping[str, pa.Table]:
    """`_index`, read once while the file stays as it is."""
    return _index(place)


def _index(place: Path) -> dict[str, pa.Table]:
    try:
        table = read_parquet_table(place)
    except DataError:
        raise
    except Exception as error:  # Arrow raises whatever its parser stumbles over
        raise DataError(
            f"{PACKED!r} of the study {place.parent.name!r} is not a whole Parquet table ({type(error).__name__}). "
            "Restore it, or remove it and run the study again: what is missing is computed anew."
        ) from error
    expected = _schema(sum(name.startswith("p_") for name in table.column_names))
    if not table.schema.equals(expected) or table.column("cell").null_count:
        raise DataError(
            f"{PACKED!r} of the study {place.parent.name!r} has other columns than the runs of a study have. "
            "Restore it, or remove it and run the study again."
        )
    keys = table.column("cell").to_pylist()
    starts = [k for k, key in enumerate(keys) if k == 0 or key != keys[k - 1]]
    found = {keys[a]: table.slice(a, b - a) for a, b in pairwise([*starts, len(keys)])}
    if len(found) < len(starts):
        raise DataError(f"{PACKED!r} of the study {place.parent.name!r} has a run twice. Restore it.")
    return found


def _content_of(rows: pa.Table) -> dict[str, Any]:
    """The sealed JSON that the rows of a run were made from."""
    heads = [k for k, name in enumerate(rows.column("series").to_pylist()) if name is None]
    first, *answers = (rows.slice(a, b - a) for a, b in pairwise([*heads, len(rows)]))
    plain = [name for name in (*KEYS, *PLAIN) if name not in ("cell", "format", "seal")]
    run: dict[str, Any] = {name: _value(first, name) for name in plain}
    run |= {name: _nested(first, name) for name in ENTRIES if _value(first, name) is not None}
    series, classes = first.slice(1), run["classes"]
    run["names"], run["groups"] = series.column("series").to_pylist(), series.column("group").to_pylist()
    run["labels"] = [classes[k] for k in series.column("label").to_pylist()]
    run["probabilities"] = _probabilities(first, len(classes))
    run |= _more(first)
    sealed = {"format": _value(first, "format"), "seal": _value(first, "seal")}
    if not answers and sealed["format"] == RUN_FORMAT:
        return run | sealed
    evaluations = [
        {name: _nested(answer, name) for name in ("question", "validation")}
        | {"probabilities": _probabilities(answer, len(classes))}
        | _more(answer)
        for answer in answers
    ]
    return {"cell": run, "answers": evaluations} | sealed


def _value(rows: pa.Table, name: str) -> Any:
    return rows.column(name)[0].as_py()


def _nested(rows: pa.Table, name: str) -> Any:
    return json_of(_value(rows, name).encode(), f"{name} of a packed run")


def _more(rows: pa.Table) -> dict[str, Any]:
    return {} if _value(rows, "more") is None else dict(_nested(rows, "more"))


def _probabilities(rows: pa.Table, n_classes: int) -> list[list[float]]:
    columns = (rows.column(f"p_{k}").to_pylist()[1:] for k in range(n_classes))
    return [list(row) for row in zip(*columns, strict=True)]


def _packed_facts(rows: pa.Table) -> dict[str, Any]:
    try:
        facts = _nested(rows, "facts") if _value(rows, "facts") is not None else {}
    except DataError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _packed_rows(place: Path) -> pa.Table | None:
    """The rows of a run in the packed file of its study; None if there are none."""
    return _packed(place.parents[2]).get(_key(place))


def _key(place: Path) -> str:
    """``cells/bonn/sss-1-0123456789ab`` of the file of a run; names may have points."""
    return "/".join((*place.parts[-3:-1], place.name.removesuffix(".json")))
