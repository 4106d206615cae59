"""Preparation of a whole plan, by several processes, resumed after a kill.

    CollectionPlan, Preparation -> FOLDER (folder.py says what is in it)

Finished units (units.py) lie in the store ``FOLDER.preparing``; a run that was killed goes on from those that are
whole and whose key still fits. At the end they become the folder, in one step. The result depends neither on the
number of workers, nor on their order, nor on how often it was interrupted. Next: folder.py reads it.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, count
from pathlib import Path
from typing import Any, Final

from raxss._core.atomic import (
    canonical_hash,
    check_writable,
    named_output,
    output_lock,
    refuse_existing,
    sha256_of,
    whole_folder,
    write_json,
)
from raxss._core.jobs import each_result
from raxss._core.jobs.outcome import DIED, Failure
from raxss._core.progress import with_progress
from raxss._core.store import write_sealed
from raxss._core.version import __version__
from raxss.data.plan import CollectionPlan, RecordingPlan
from raxss.data.prepare.folder import COLUMNS, FACTS, FORMAT, PROBLEMS, TABLE, is_prepared, read_prepared
from raxss.data.prepare.preprocessing import Preparation
from raxss.data.prepare.units import KEPT, Input, Result, Unit, read_unit, units_in, write_unit
from raxss.errors import DataError, EmptyDataError, OutputError, RAxSSWarning, RecordingError, display_name

N_LISTED: Final = 10  # names that a message has one by one
VERSIONS_OF: Final = ("numpy", "scipy", "pandas", "pyarrow", "edfio", "mne", "wfdb")
N_DEATHS: Final = 3  # of workers at one recording, before the command gives up

log = logging.getLogger(__name__)


def prepare(
    plan: CollectionPlan,
    folder: Path | str,
    preparation: Preparation,
    *,
    workers: int = 1,
    unlabelled: bool = False,
    strict: bool = False,
    overwrite: bool = False,
    progress: bool = False,
) -> Path:
    """Prepare all series of a plan, and return the folder that holds them.

    If the folder holds the same already, nothing is done; if a run was stopped, this one goes on.

    Parameters
    ----------
    workers
        Processes that prepare recordings side by side.
    unlabelled
        Series without a label too; they are left out otherwise.
    strict
        An absent file, or a series of which nothing is left, is an error rather than a warning.
    overwrite
        Replace a folder that was prepared from something else, or prepare it anew.
    progress
        Draw a bar on stderr, if that is a terminal.

    Examples
    --------
    >>> import tempfile
    >>> from functools import partial
    >>> import numpy as np
    >>> from raxss.data.plan import SeriesPlan
    >>> from raxss.data.recording import ArrayRecording
    >>> opened = partial(ArrayRecording, "toy", np.arange(200.0).reshape(2, 100), rate=100.0)
    >>> wanted = (SeriesPlan("toy:0", (0,), label="a"), SeriesPlan("toy:1", (1,), label="b"))
    >>> plan = CollectionPlan("toys", Path("."), (RecordingPlan("toy", (), opened, wanted),))
    >>> folder = prepare(plan, Path(tempfile.mkdtemp()) / "out", Preparation(pooling=(24, 12)))
    >>> read_prepared(folder)
    SeriesCollection(2 series of 7 samples, labels: a 1, b 1)
    """
    folder = Path(os.path.abspath(folder))
    recordings = _wanted(plan, unlabelled=unlabelled)
    _report_absent(plan, recordings, strict=strict)
    if overwrite or not is_prepared(folder):
        refuse_existing(folder, overwrite=overwrite)
    check_writable(folder)
    work = folder.with_name(folder.name + ".preparing")
    with output_lock(folder), _work_folder(work):
        units, key = _units_and_key(plan, recordings, preparation, workers)
        if not overwrite and _is_there(folder, key):
            log.info("%r holds just this already; nothing to do.", folder.name)
        else:
            results = {unit.slug: result for unit in units if (result := read_unit(unit, work)) is not None}
            units_in(work).keep_only({f"{slug}{suffix}" for slug in results for suffix in (".npy", ".json")})
            if results:
                log.info("%d of %d recordings were prepared before.", len(results), len(units))
            left = [unit for unit in units if unit.slug not in results]
            results |= _work_through(left, work, workers, progress=progress)
            left_out = sorted(sentence for result in results.values() for sentence in result["left_out"])
            if strict and left_out:
                raise EmptyDataError(
                    f"{len(left_out)} series cannot be prepared: {' '.join(left_out[:N_LISTED])} "
                    "Choose another crop or a smaller kernel, or go on without them (not strict)."
                )
            _assemble(plan, folder, preparation, units, results, work, key, overwrite=overwrite)
        units_in(work).keep_only(())
    return folder


def is_prepared_from(plan: CollectionPlan, folder: Path | str, preparation: Preparation) -> bool:
    """Whether a folder holds just what `prepare` would make of a plan. Nothing is written."""
    if not is_prepared(Path(folder)):
        return False
    recordings = _wanted(plan, unlabelled=False)
    return (
        read_prepared(folder).facts.get("key") == _units_and_key(plan, recordings, preparation, workers=1)[1]
    )


def _units_and_key(
    plan: CollectionPlan, recordings: list[RecordingPlan], preparation: Preparation, workers: int
) -> tuple[list[Unit], str]:
    """One unit a recording, and a hash of all that the folder depends on."""
    names = _names({file for recording in recordings for file in recording.files}, plan.root)
    with ThreadPoolExecutor(max(1, workers)) as pool:  # threads do, because hashing lets others run
        inputs = dict(zip(names, pool.map(_hashed, names, names.values()), strict=True))
    units = [
        Unit(recording, preparation, tuple(inputs[file] for file in recording.files))
        for recording in recordings
    ]
    keys = [[unit.slug, unit.key] for unit in units]
    planned = [plan.source, dict(plan.settings), plan.group_by, plan.absent, plan.unmatched, plan.refused]
    return units, canonical_hash([FORMAT, str(preparation), planned, keys])


# What is wanted --------------------------------------------------------------------------------------------


def _wanted(plan: CollectionPlan, *, unlabelled: bool) -> list[RecordingPlan]:
    """The recordings that have series to be made, with those alone."""
    for kind, names in (
        ("recordings", [recording.name for recording in plan.recordings]),
        ("series", [series.name for _, series in plan]),
    ):
        if repeated := [name for name, count in Counter(names).items() if count > 1]:
            raise DataError(
                f"the plan of {plan.source!r} has several {kind} named {repeated[0]!r}; each needs its own name."
            )
    return list(plan.only(lambda series: unlabelled or series.label is not None).recordings)


def _report_absent(plan: CollectionPlan, recordings: list[RecordingPlan], *, strict: bool) -> None:
    """One list of what is absent; an error if nothing is left, or if all is needed."""
    files = "".join(f"\n  {item}" for item in _by_stem(plan.absent))  # all: a list to work through
    absent = f"{len(plan.absent)} files of {plan.source!r} are absent:{files}\n{plan.where_to_get}"
    if plan.absent and not recordings:
        raise RecordingError(f"there is no signal to prepare. {absent.rstrip()}")
    if plan.refused and not recordings:
        raise RecordingError(f"no recording of {plan.source!r} can be read:{_listed(plan.refused)}")
    if not recordings:
        raise EmptyDataError(
            f"{plan.source!r} has no series to prepare: {len(plan)} are planned, and none of them has a label. "
            "Give labels, or prepare without (--unlabelled on the command line, unlabelled=True in Python)."
            f"{_listed(plan.unmatched)}"
        )
    unread = f"{len(plan.refused)} recordings of {plan.source!r} cannot be read:{_listed(plan.refused)}"
    for sentence in [absent.rstrip()] * bool(plan.absent) + [unread] * bool(plan.refused):
        if strict:
            raise RecordingError(sentence)
        warnings.warn(sentence, RAxSSWarning, stacklevel=3)


def _by_stem(files: Sequence[str]) -> list[str]:
    """Files of one recording as one entry.

    >>> _by_stem(["sub-1/a.eeg", "sub-1/a.vhdr", "sheet.xlsx"])
    ['sub-1/a{.eeg,.vhdr}', 'sheet.xlsx']
    """
    suffixes: dict[str, list[str]] = {}
    for file in files:
        stem, suffix = os.path.splitext(file)
        suffixes.setdefault(stem, []).append(suffix)
    return [
        stem + (some[0] if len(some) == 1 else f"{{{','.join(sorted(some))}}}")
        for stem, some in suffixes.items()
    ]


def _listed(names: Sequence[str]) -> str:
    """One name a line, the first ten."""
    more = [f"and {len(names) - N_LISTED} more"] if len(names) > N_LISTED else []
    return "".join(f"\n  {line}" for line in [*names[:N_LISTED], *more])


def _hashed(file: Path, name: str) -> Input:
    try:
        before = os.stat(file)
        return Input(name, sha256_of(file), before.st_size, before.st_mtime_ns)
    except OSError as error:
        raise RecordingError(
            f"the file {display_name(name)} cannot be read: {error.strerror or 'unknown reason'}."
        ) from error


def _names(files: Iterable[Path], root: Path) -> dict[Path, str]:
    """Files as the dataset names them; of what lies elsewhere the last part alone, never this machine's folders."""
    names: dict[Path, str] = {}
    taken: set[str] = set()
    for file in sorted(files):
        try:
            name = Path(os.path.abspath(file)).relative_to(os.path.abspath(root)).as_posix()
        except ValueError:
            name = file.name
        numbered = (f"{name} ({number})" for number in count(2))
        names[file] = next(item for item in chain([name], numbered) if item not in taken)
        taken.add(names[file])
    return names


def _is_there(folder: Path, key: str) -> bool:
    """Whether the folder is made from just this, and still what it was; an error if it is something else."""
    if not is_prepared(folder):
        return False
    if read_prepared(folder).facts.get("key") != key:
        raise OutputError(
            errno.EEXIST,
            f"{folder.name!r} was prepared from other inputs or with other settings and was left as it is; choose "
            "another place, or overwrite it (--overwrite on the command line, overwrite=True in Python)",
        )
    read_prepared(folder, verify=True)
    return True


# The folder of units ------------------------------------------------------------------------------------------


@contextmanager
def _work_folder(work: Path) -> Iterator[None]:
    """Make the work folder; it goes again where nothing was put into it."""
    with named_output(work.name, KEPT):
        work.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):
            work.rmdir()  # if it is empty


# Work ---------------------------------------------------------------------------------------------------------


def _work_through(units: list[Unit], work: Path, workers: int, *, progress: bool) -> dict[str, Result]:
    """Every unit's result. Recordings that cannot be read are named together at the end; the others are kept."""
    results: dict[str, Result] = {}
    faults: list[str] = []
    attempts = each_result(
        partial(_attempt, work=work), units, n_workers=max(1, min(workers, len(units))), retries=N_DEATHS - 1
    )
    counted = with_progress(attempts, len(units), "preparing", unit="recordings", quiet=not progress)
    with closing(counted):
        for position, result in counted:
            unit = units[position]
            if isinstance(result, DataError):
                faults.append(str(result))
            elif isinstance(result, Exception):
                raise result
            elif isinstance(result, Failure):
                if result.kind == DIED:
                    n_left = len(units) - len(results) - len(faults)
                    raise OutputError(
                        errno.ENOMEM,
                        f"workers died {N_DEATHS} times, perhaps for lack of memory; {n_left} recordings are left. "
                        "Run the same command again with fewer workers: it goes on from there",
                    )
                faults.append(f"recording {unit.recording.name!r}: {result}.")
            else:
                results[unit.slug] = result
    if faults:
        more = f" And {len(faults) - N_LISTED} more." if len(faults) > N_LISTED else ""
        raise RecordingError(
            f"{len(faults)} of {len(units)} recordings cannot be prepared. "
            f"{' '.join(sorted(faults)[:N_LISTED])}{more} "
            "The others are kept; mend or remove these, and run the same command again."
        )
    return results


def _attempt(unit: Unit, work: Path) -> Result | Exception:
    """A unit's result, or why there is none: returned, so that its type is known to the parent process."""
    try:
        return write_unit(unit, work)
    except Exception as error:
        return error


# The folder -------------------------------------------------------------------------------------------------


def _assemble(
    plan: CollectionPlan,
    folder: Path,
    preparation: Preparation,
    units: list[Unit],
    results: dict[str, Result],
    work: Path,
    key: str,
    *,
    overwrite: bool,
) -> None:
    """Put the units, in the plan's order, into a folder that appears in one step."""
    rows = [
        {**row, "group": row.get(plan.group_by or ""), "file": f"samples/{unit.slug}.npy"}
        for unit in units
        for row in results[unit.slug]["series"]
    ]
    if not rows:
        left_out = [sentence for result in results.values() for sentence in result["left_out"]]
        raise EmptyDataError(
            f"nothing is left of {plan.source!r}, {len(left_out)} series: {' '.join(left_out[:N_LISTED])}"
        )
    full = [unit for unit in units if results[unit.slug]["series"]]
    with whole_folder(folder, overwrite=overwrite) as temporary:
        (temporary / "samples").mkdir()
        for unit in full:
            _link(work / f"{unit.slug}.npy", temporary / "samples" / f"{unit.slug}.npy")
        _write_table(rows, temporary / TABLE)
        write_json(temporary / PROBLEMS, _problems(plan, units, results))
        outputs = {
            f"samples/{unit.slug}.npy": {name: results[unit.slug][name] for name in ("sha256", "n_bytes")}
            for unit in full
        }
        for name in (TABLE, PROBLEMS):
            file = temporary / name
            outputs[name] = {"sha256": sha256_of(file), "n_bytes": file.stat().st_size}
        facts = {
            "format": FORMAT,
            "source": plan.source,
            "preparation": str(preparation),
            "settings": {**preparation.settings, **plan.settings},
            "group_by": plan.group_by,
            "n_recordings": len(full),
            "n_series": len(rows),
            "labels": dict(
                sorted(Counter(str(row["label"]) for row in rows if row["label"] is not None).items())
            ),
            "key": key,
            "collection_hash": canonical_hash([FORMAT, str(preparation), plan.group_by, rows]),
            "inputs": {item.name: item.sha256 for unit in units for item in unit.inputs},
            "outputs": outputs,
            "versions": _versions(),
        }
        write_sealed(temporary / FACTS, facts)


def _link(source: Path, target: Path) -> None:
    """A second name for the same file, where the system can; the unit stays until the folder is in its place."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _write_table(rows: list[dict[str, Any]], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"str": pa.string(), "int": pa.int64(), "float": pa.float64()}
    columns = {name: pa.array([row[name] for row in rows], types[kind]) for name, kind in COLUMNS.items()}
    pq.write_table(pa.table(columns), path)


def _problems(plan: CollectionPlan, units: list[Unit], results: dict[str, Result]) -> dict[str, Any]:
    """Contents of problems.json."""
    by_recording = {unit.recording.name: results[unit.slug] for unit in units}
    return {
        "absent": list(plan.absent),
        "where_to_get": plan.where_to_get,
        "unmatched": list(plan.unmatched),
        "refused": list(plan.refused),
        "left_out": [text for result in by_recording.values() for text in result["left_out"]],
        "with_gaps": [
            row["name"] for item in by_recording.values() for row in item["series"] if row["finite_share"] < 1
        ],
        "recordings": {
            name: {"problems": result["problems"], "warnings": result["warnings"]}
            for name, result in by_recording.items()
            if result["problems"] or result["warnings"]
        },
    }


def _versions() -> dict[str, str]:
    versions = {"raxss": __version__}
    for name in VERSIONS_OF:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions
