"""Cells of a packed study as the JSON files that they were packed from."""

import json
import shutil
import tempfile
from pathlib import Path

from raxss._core.atomic import write_json
from raxss.benchmark.analyses.probe import Probed
from raxss.benchmark.packed import PACKED, cells_in, facts_of, read_cell, trials_in
from raxss.benchmark.result import CellResult
from raxss.errors import DataError


def result_of(place):
    """The result of a cell, with a probe or without."""
    try:
        return read_cell(place, CellResult)
    except DataError:
        return read_cell(place, Probed)


def unpack(folder):
    """Write the files of all packed cells back, and remove the packed file."""
    if (folder / PACKED).exists():
        for place in [*cells_in(folder), *trials_in(folder)]:
            if not place.exists():
                facts = facts_of(place)
                result_of(place).write(place)
                if facts:
                    write_json(place.with_suffix(".facts.json"), facts)
        (folder / PACKED).unlink()
    return folder


def as_files(folder):
    """Path in the folder -> content of every file, cells as if they were not packed."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(shutil.copytree(folder, Path(scratch) / "copy", ignore=shutil.ignore_patterns("data")))
        unpack(copy)
        return {
            item.relative_to(copy): item.read_bytes() for item in sorted(copy.rglob("*")) if item.is_file()
        }


def contents(folder):
    """Path -> result and facts of every cell and trial, as text."""
    return {
        place.relative_to(folder).as_posix(): (_json_of(result_of(place)), json.dumps(facts_of(place)))
        for place in [*cells_in(folder), *trials_in(folder)]
    }


def _json_of(result):
    own = result.result if isinstance(result, Probed) else result
    answers = getattr(result, "answers", ())
    told = [
        [dict(answer.question), answer.probabilities.tolist(), dict(answer.validation)] for answer in answers
    ]
    return json.dumps([own.to_json(), told])
