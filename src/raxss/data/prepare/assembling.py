"""Assembly of finished units into a prepared folder.

    units, their results -> FOLDER, in one step (folder.py says what is in it)

The folder does not depend on time, machine or number of workers. Next: folder.py reads it.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from raxss._core.atomic import canonical_hash, sha256_of, whole_folder, write_json
from raxss._core.store import write_sealed
from raxss._core.version import __version__
from raxss.data.plan import CollectionPlan
from raxss.data.prepare.folder import COLUMNS, FACTS, FORMAT, PROBLEMS, TABLE
from raxss.data.prepare.preprocessing import Preparation
from raxss.data.prepare.units import Result, Unit
from raxss.errors import EmptyDataError

N_LISTED: Final = 10  # series that an error names one by one
VERSIONS_OF: Final = ("numpy", "scipy", "pandas", "pyarrow", "edfio", "mne", "wfdb")


def assemble(
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
            "settings": {
                "pooling": list(preparation.pooling) if preparation.pooling else None,
                "rate": preparation.rate,
                "scaling": preparation.scaling,
                **plan.settings,
            },
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
