"""Packed runs as the JSON files that they were packed from, and results made up for tests."""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np

from raxss._core.atomic import write_json
from raxss.benchmark.analyses.evaluation import EvaluatedRun
from raxss.benchmark.packed import PACKED, facts_of, read_run, runs_in, trials_in
from raxss.benchmark.result import RunResult
from raxss.benchmark.statistics import COMPARED, REFERENCES, differences, resampled
from raxss.errors import DataError


def result_of(place):
    """The result of a run, with a probe or without."""
    try:
        return read_run(place, RunResult)
    except DataError:
        return read_run(place, EvaluatedRun)


def unpack(folder):
    """Write the files of all packed runs back, and remove the packed file."""
    if (folder / PACKED).exists():
        for place in [*runs_in(folder), *trials_in(folder)]:
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
        for place in [*runs_in(folder), *trials_in(folder)]
    }


def _json_of(result):
    own = result.result if isinstance(result, EvaluatedRun) else result
    evaluations = getattr(result, "evaluations", ())
    evaluated = [
        [dict(item.settings), item.probabilities.tolist(), dict(item.validation)] for item in evaluations
    ]
    return json.dumps([own.to_json(), evaluated])


def paired_bootstrap(results, references=REFERENCES, metrics=COMPARED, **options):
    """Differences of results from references in the same draws."""
    return differences(resampled(results, **options), references, metrics)


def made_result(labels, probabilities, *, names=None, groups=None, **entries):
    """A result of two classes or more; of two the positive one is the first, unless ``positive`` is given."""
    probabilities = np.asarray(probabilities, dtype=float)
    classes = entries.get("classes", ("yes", "no"))
    names = tuple(f"s{k}" for k in range(len(probabilities))) if names is None else tuple(map(str, names))
    facts = {
        "dataset": "toy",
        "system": "sss",
        "seed": 1,
        "config_hash": "ab12",
        "classes": classes,
        "positive": classes[0] if len(classes) == 2 else None,
    }
    groups = names if groups is None else tuple(map(str, groups))
    about = {"names": names, "labels": tuple(labels), "groups": groups, "probabilities": probabilities}
    return RunResult(**facts | about | entries)
