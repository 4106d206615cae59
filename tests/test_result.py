"""Result of one run: read back unchanged, and refused when damaged."""

import dataclasses
import json

import numpy as np
import pytest

from raxss.benchmark.result import RunResult
from raxss.errors import DataError


@pytest.fixture
def result(rng):
    probability = rng.random(5)
    return RunResult(
        dataset="toy",
        system="sss",
        seed=69421,
        fold="2",
        config_hash="0123456789ab",
        classes=(0, 1),
        positive=1,
        settings={"stride": 64, "exclusion": 0.5, "weights": np.float32(0.25)},
        split={"by": "pair", "leaky": False},
        names=("a", "b", "ü|c", "d", "e"),
        labels=(0, 1, 1, 0, 1),
        groups=("p1", "p1", "p2", "p2", "p3"),
        probabilities=np.stack([1 - probability, probability], axis=1),
        window_accuracy=0.75,
        validation={"f1": float("nan")},
        n_parameters=34_019,
    )


def test_a_result_is_read_as_it_was_written(tmp_path, result):
    result.write(tmp_path / "a.json")
    read = RunResult.read(tmp_path / "a.json")
    assert np.array_equal(read.probabilities, result.probabilities)  # to the last bit
    for name in ("dataset", "system", "seed", "fold", "classes", "positive", "names", "labels", "groups"):
        assert getattr(read, name) == getattr(result, name)
    assert read.settings == {"stride": 64, "exclusion": 0.5, "weights": 0.25}
    assert read.validation == {"f1": None}  # JSON has no number for it


def test_what_was_done_to_the_data_is_written_where_something_was(tmp_path, result):
    result.write(tmp_path / "plain.json")
    assert not {"f1_classes", "changes"} & json.loads((tmp_path / "plain.json").read_text()).keys()
    changed = dataclasses.replace(result, f1_classes=(0, 1), changes={"crop": [0.2, 1.0], "seed": 7})
    changed.write(tmp_path / "changed.json")
    read = RunResult.read(tmp_path / "changed.json")
    assert (read.f1_classes, read.changes) == ((0, 1), {"crop": [0.2, 1.0], "seed": 7})
    assert RunResult.read(tmp_path / "plain.json").f1_classes == ()


def test_the_same_result_gives_the_same_bytes(tmp_path, result):
    for name in ("a", "b"):
        result.write(tmp_path / f"{name}.json")
    RunResult.read(tmp_path / "a.json").write(tmp_path / "c.json")
    assert len({(tmp_path / f"{name}.json").read_bytes() for name in "abc"}) == 1


def test_a_file_cut_short_anywhere_is_refused_by_name(tmp_path, result):
    result.write(tmp_path / "whole.json")
    content = (tmp_path / "whole.json").read_bytes()
    for length in range(0, len(content) - 2, 41):  # without its last line break it is still whole
        (tmp_path / "cut.json").write_bytes(content[:length])
        with pytest.raises(DataError, match=r"'cut\.json' cannot be read"):
            RunResult.read(tmp_path / "cut.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "does not fit its seal"),
        ({"format": "raxss cell 0"}, "'raxss cell 0'"),
        ({"seal": None}, "does not fit its seal"),
    ],
)
def test_a_changed_file_is_refused(tmp_path, result, change, message):
    result.write(tmp_path / "a.json")
    content = json.loads((tmp_path / "a.json").read_text())
    (tmp_path / "a.json").write_text(json.dumps(content | change))
    with pytest.raises(DataError, match=message):
        RunResult.read(tmp_path / "a.json")


@pytest.mark.parametrize("content", ["[]", "null", "{}", '{"seal": 1, "format": "raxss cell 1"}', "\ud800"])
def test_what_is_no_result_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(DataError, match=r"a\.json"):
        RunResult.read(tmp_path / "a.json")
