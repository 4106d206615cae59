"""Packed results: read back to the last bit, and nothing is lost when packing fails or is killed."""

import json
import logging
import struct
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raxss._core import bounded_parquet
from raxss._core.atomic import output_lock, write_json
from raxss._core.store import sealed
from raxss.benchmark import packed
from raxss.benchmark.analyses.evaluation import EvaluatedRun, Evaluation
from raxss.benchmark.packed import PACKED, facts_of, is_kept, pack_runs, read_run, runs_in, trials_in
from raxss.benchmark.result import RunResult
from raxss.errors import DataError, OutputInUseError
from unpacked import contents, made_result, unpack

HASH = "0123456789ab"


def result(system="sss", seed=1, *, classes=("a", "b"), n_series=6, probabilities=None, **changes):
    shares = np.random.default_rng(seed).random((n_series, len(classes)))
    facts = {
        "system": system,
        "seed": seed,
        "config_hash": HASH,
        "positive": classes[1] if len(classes) == 2 else None,
        "settings": {"stride": 8, "backbone_options": {"views": ["shapes"], "width": 0.1}, "choice": {}},
        "split": {"description": "by patient", "fractions": [0.7, 0.1, 0.2]},
        "labels": tuple(classes[k % len(classes)] for k in range(n_series)),
        "groups": tuple(f"g{k // 2}" for k in range(n_series)),
        "window_accuracy": 2 / 3,
        "validation": {"auc": 1 / 3, "f1": None},
        "n_parameters": 12,
    }
    probabilities = shares / shares.sum(axis=1, keepdims=True) if probabilities is None else probabilities
    return made_result(probabilities=probabilities, classes=classes, **facts | changes)


def trial(seed=1):
    return result(seed=seed, names=(), labels=(), groups=(), probabilities=np.zeros((0, 2)))


def probed(seed=1):
    rng = np.random.default_rng(seed)
    evaluations = tuple(
        Evaluation(
            settings={"kind": "noise", "level": level}, probabilities=rng.random((6, 2)), validation=judged
        )
        for level, judged in ((10.0, {}), (5, {"auc": 0.25}))
    )
    return EvaluatedRun(result=result(seed=seed), evaluations=evaluations)


def written(folder, item, place="cells/toy/sss-1"):
    path = folder / f"{place}-{HASH}.json"
    item.write(path)
    write_json(
        path.with_suffix(".facts.json"), {"seconds": 0.1, "seconds_by_part": {"fit": 0.1}, "warnings": ["é"]}
    )
    return path


def study(folder):
    """A folder with a cell, one of three classes, a trial, and a file that says what was chosen."""
    written(folder, result())
    written(folder, result("gru", 2, classes=("x", "y", "z")), "cells/other/gru-2")
    written(folder, trial(), "choices/toy/gru-1-1000")
    write_json(folder / "choices" / "toy" / "gru.json", {"choice": {"window_length": 1000}})
    return folder


def files_in(folder):
    return {
        item.relative_to(folder).as_posix(): item.read_bytes() for item in folder.rglob("*") if item.is_file()
    }


def rows_of(folder):
    return pq.read_table(folder / PACKED).to_pylist()


def replace_rows(folder, change):
    """The packed file with its rows changed by a function of the list of rows."""
    table = pq.read_table(folder / PACKED)
    changed = pa.Table.from_pylist(change(table.to_pylist()), schema=table.schema)
    pq.write_table(changed, folder / PACKED, compression="zstd", use_dictionary=False)


def test_what_is_packed_is_written_back_as_the_same_files(tmp_path):
    study(tmp_path)
    written(tmp_path, probed(), "cells/toy/asked-1")
    before = files_in(tmp_path)
    assert pack_runs(tmp_path) == tmp_path / PACKED
    assert set(files_in(tmp_path)) == {PACKED, "choices/toy/gru.json"}
    assert files_in(unpack(tmp_path)) == before


def test_probabilities_come_back_to_the_last_bit(tmp_path):
    limits = np.finfo(float)
    values = [5e-324, limits.tiny, limits.max, 0.1 + 0.2, 1 / 3, -0.0, 1.0, np.nextafter(1, 0)]
    drawn = np.random.default_rng(3).integers(0, 2**62, 56).view(np.float64)
    numbers = np.array([*values, *drawn]).reshape(-1, 2)
    item = result(n_series=len(numbers), probabilities=numbers)
    place = written(tmp_path, item)
    pack_runs(tmp_path)
    assert read_run(place, RunResult).probabilities.tobytes() == numbers.tobytes()
    columns = pq.read_table(tmp_path / PACKED).to_pandas()[["p_0", "p_1"]].to_numpy()[1:]
    assert columns.tobytes() == numbers.tobytes()
    assert struct.pack("<d", -0.0) in numbers.tobytes()


@pytest.mark.parametrize(
    "classes", [(0, 1), (False, True), (1, 1.5), ("1", 1), ("a", "b", "c", "d"), ("=é\u2028", "")]
)
def test_classes_of_any_kind_come_back(tmp_path, classes):
    item = result(classes=classes, positive=classes[1])
    place = written(tmp_path, item)
    pack_runs(tmp_path)
    back = read_run(place, RunResult)
    assert (back.classes, back.labels, back.positive) == (item.classes, item.labels, item.positive)
    assert [type(label) for label in back.labels] == [type(label) for label in item.labels]


def test_the_same_cells_are_the_same_bytes_however_they_were_packed(tmp_path):
    at_once, one_by_one = tmp_path / "a", tmp_path / "b"
    for seed in (1, 2, 3):
        written(at_once, result(seed=seed), f"cells/toy/sss-{seed}")
    for seed in (3, 1, 2):
        written(one_by_one, result(seed=seed), f"cells/toy/sss-{seed}")
        pack_runs(one_by_one)
    assert pack_runs(at_once).read_bytes() == (one_by_one / PACKED).read_bytes()
    assert len(rows_of(at_once)) == 3 * (1 + 6)


def test_a_table_of_predictions_is_read_with_pandas_alone(tmp_path):
    item = result()
    written(tmp_path, item)
    pack_runs(tmp_path)
    series = pq.read_table(tmp_path / PACKED).to_pandas().dropna(subset="series")
    assert (series["series"].tolist(), series["group"].tolist()) == (list(item.names), list(item.groups))
    assert [item.classes[k] for k in series["label"].astype(int)] == list(item.labels)
    assert set(series["system"]) == {"sss"}
    np.testing.assert_array_equal(series[["p_0", "p_1"]].to_numpy(), item.probabilities)


def test_entries_that_are_newer_than_the_table_are_packed_too(tmp_path):
    """Of the cell, and of an answer: nothing is lost where a result comes to say more."""
    place = tmp_path / "cells" / "toy" / f"asked-1-{HASH}.json"
    probed().write(place)
    content = json.loads(place.read_text())
    del content["seal"]
    content["cell"]["later"] = {"numbers": [0.1 + 0.2, None, "é"]}
    content["answers"][0]["values"] = {"coverage": [1 / 3, 5e-324], "sizes": [[1.0], [2.0]]}
    place.write_text(json.dumps(sealed(content)))
    pack_runs(tmp_path)
    assert not place.exists()
    (rows,) = packed._packed(tmp_path).values()
    assert packed._content_of(rows) == sealed(content)


def test_a_newer_file_wins_and_is_packed_next(tmp_path):
    study(tmp_path)
    pack_runs(tmp_path)
    newer = result(window_accuracy=0.5)
    place = tmp_path / "cells" / "toy" / f"sss-1-{HASH}.json"
    newer.write(place)
    write_json(place.with_suffix(".facts.json"), {"seconds": 9})
    more = written(tmp_path, result(seed=5), "cells/toy/sss-5")
    before = contents(tmp_path)
    assert read_run(place, RunResult).window_accuracy == 0.5
    assert facts_of(place) == {"seconds": 9}
    assert more in runs_in(tmp_path)
    assert len(runs_in(tmp_path)) == 3
    pack_runs(tmp_path)
    assert not place.exists()
    assert contents(tmp_path) == before
    assert [item.name for item in trials_in(tmp_path)] == [f"gru-1-1000-{HASH}.json"]


def test_nothing_to_pack_is_nothing_written(tmp_path):
    assert pack_runs(tmp_path) is None
    assert files_in(tmp_path) == {}
    assert not is_kept(tmp_path / "cells" / "toy" / "sss-1-ab.json")
    with pytest.raises(DataError, match=r"'sss-1-ab\.json' cannot be read as the result of a run"):
        read_run(tmp_path / "cells" / "toy" / "sss-1-ab.json", RunResult)
    study(tmp_path)
    pack_runs(tmp_path)
    before = files_in(tmp_path), (tmp_path / PACKED).stat().st_mtime_ns
    pack_runs(tmp_path)
    assert (files_in(tmp_path), (tmp_path / PACKED).stat().st_mtime_ns) == before


def test_errors_and_results_that_were_cut_short_stay_files(tmp_path, caplog):
    study(tmp_path)
    error = tmp_path / "cells" / "toy" / f"gru-3-{HASH}.error.json"
    write_json(error, {"type": "ConfigError"})
    cut = written(tmp_path, result(seed=4), "cells/toy/sss-4")
    cut.write_bytes(cut.read_bytes()[:200])
    forged = written(tmp_path, result(seed=5), "cells/toy/sss-5")
    forged.write_text(forged.read_text().replace('"seed": 5', '"seed": 6'))
    with caplog.at_level(logging.WARNING):
        pack_runs(tmp_path)
    assert f"'{forged.name}' stays a file of its own" in caplog.text
    for file in (error, cut, cut.with_suffix(".facts.json"), forged, forged.with_suffix(".facts.json")):
        assert file.exists()
    assert len({row["cell"] for row in rows_of(tmp_path)}) == 3


@pytest.mark.parametrize(
    "unfit", [{"groups": ("g",)}, {"labels": ("c",) * 6}, {"seed": 2**70}, {"names": tuple("\ud800abcde")}]
)
def test_what_does_not_fit_the_table_stays_a_file(tmp_path, unfit, caplog):
    item = result(**unfit) if "names" not in unfit else result()
    place = tmp_path / "cells" / "toy" / f"sss-1-{HASH}.json"
    item.write(place)
    if "names" in unfit:
        place.write_text(place.read_text().replace('"s0"', '"\\ud800"'))
    before = files_in(tmp_path)
    pack_runs(tmp_path)
    assert files_in(tmp_path) == before
    assert "stays a file of its own" in caplog.text


# A pack that ends early ---------------------------------------------------------------------------------------


class Killed(BaseException):
    """As if the process ended here."""


@pytest.mark.parametrize("packed_before", [False, True])
def test_a_pack_that_is_killed_while_it_writes_changes_nothing(tmp_path, monkeypatch, packed_before):
    study(tmp_path)
    if packed_before:
        pack_runs(tmp_path)
        written(tmp_path, result(seed=7), "cells/toy/sss-7")
    before = files_in(tmp_path)

    def die(table, place, **options):
        place.write_bytes(b"PAR1 half of it")
        raise Killed

    monkeypatch.setattr(pq, "write_table", die)
    with pytest.raises(Killed):
        pack_runs(tmp_path)
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("n_removed", range(8))
def test_a_pack_that_is_killed_while_it_removes_files_loses_nothing(tmp_path, monkeypatch, n_removed):
    study(tmp_path)
    before = contents(tmp_path)
    unlink, removed = packed.Path.unlink, []

    def die(path, missing_ok=False):
        if path.suffix == ".json":
            if len(removed) == n_removed:
                raise Killed
            removed.append(path)
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(packed.Path, "unlink", die)
    if n_removed < 6:
        with pytest.raises(Killed):
            pack_runs(tmp_path)
    else:
        pack_runs(tmp_path)
    monkeypatch.undo()
    assert contents(tmp_path) == before
    pack_runs(tmp_path)
    assert set(files_in(tmp_path)) == {PACKED, "choices/toy/gru.json"}
    assert contents(tmp_path) == before


def test_a_table_that_does_not_read_back_takes_no_place(tmp_path, monkeypatch, caplog):
    study(tmp_path)
    before = files_in(tmp_path)
    write = pq.write_table

    def lossy(table, place, **options):
        position = table.schema.get_field_index("p_0")
        single = table.column("p_0").cast(pa.float32()).cast(pa.float64())
        write(table.set_column(position, "p_0", single), place, **options)

    monkeypatch.setattr(pq, "write_table", lossy)
    with pytest.raises(ValueError, match="does not fit its seal"):
        pack_runs(tmp_path)
    assert files_in(tmp_path) == before


def test_a_table_that_would_be_refused_is_not_written(tmp_path, monkeypatch, caplog):
    study(tmp_path)
    before = files_in(tmp_path)
    monkeypatch.setattr(bounded_parquet, "MAX_UNPACKED", 1000)
    assert pack_runs(tmp_path) is None
    assert files_in(tmp_path) == before
    assert "stay files of their own" in caplog.text


def test_two_writers_are_kept_apart(tmp_path):
    study(tmp_path / "study")
    before = contents(tmp_path / "study")
    held, done = threading.Event(), threading.Event()

    def other():
        with output_lock(tmp_path / "study"):
            held.set()
            done.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    held.wait(60)
    try:
        with pytest.raises(OutputInUseError, match="'study' is being written by another thread"):
            pack_runs(tmp_path / "study")
    finally:
        done.set()
        thread.join()
    assert not (tmp_path / "study" / PACKED).exists()
    assert contents(tmp_path / "study") == before


# Files that were changed --------------------------------------------------------------------------------------


def test_a_changed_prediction_is_refused_and_other_cells_are_read(tmp_path):
    study(tmp_path)
    pack_runs(tmp_path)
    place = tmp_path / "cells" / "toy" / f"sss-1-{HASH}.json"

    def nudged(rows):
        (item,) = (row for row in rows if row["cell"].startswith("cells/toy") and row["series"] == "s3")
        item["p_1"] = float(np.nextafter(item["p_1"], 1))
        return rows

    replace_rows(tmp_path, nudged)
    with pytest.raises(DataError, match=f"'{place.name}' cannot be read .* does not fit its seal"):
        read_run(place, RunResult)
    read_run(tmp_path / "cells" / "other" / f"gru-2-{HASH}.json", RunResult)


CHANGES = {
    "a label that is no class": lambda row: row | {"label": 7},
    "no label": lambda row: row | {"label": None},
    "no classes": lambda row: row | {"classes": None},
    "classes that are a number": lambda row: row | {"classes": "3"},
    "settings that are no JSON": lambda row: row | {"settings": "{" * 100},
    "deep settings": lambda row: row | {"settings": "[" * 5000 + "]" * 5000},
    "no series about the cell": lambda row: row | {"series": row["series"] or "s"},
    "another format": lambda row: row | {"format": "raxss cell 9"},
    "another system": lambda row: row | {"system": "tuned"},
    "no seal": lambda row: row | {"seal": None},
}


@pytest.mark.parametrize("change", CHANGES)
def test_rows_that_were_changed_are_refused(tmp_path, change):
    place = written(tmp_path, result())
    pack_runs(tmp_path)
    replace_rows(tmp_path, lambda rows: [CHANGES[change](row) for row in rows])
    with pytest.raises(DataError, match=f"'{place.name}' cannot be read as the result of a run"):
        read_run(place, RunResult)
    assert facts_of(place) in ({}, {"seconds": 0.1, "seconds_by_part": {"fit": 0.1}, "warnings": ["é"]})


@pytest.mark.parametrize("cut", [0, 4, 200, -20, -1])
def test_a_file_that_was_cut_short_is_refused_by_name(tmp_path, cut):
    place = written(tmp_path, result())
    pack_runs(tmp_path)
    file = tmp_path / PACKED
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"cells\.parquet"):
        read_run(place, RunResult)
    with pytest.raises(DataError, match=r"cells\.parquet"):
        pack_runs(tmp_path)


def test_a_table_with_other_columns_or_a_cell_twice_is_refused(tmp_path):
    place = written(tmp_path, result())
    written(tmp_path, result(seed=2), "cells/toy/sss-2")
    pack_runs(tmp_path)
    whole = (tmp_path / PACKED).read_bytes()
    replace_rows(tmp_path, lambda rows: [*rows, rows[0]])
    with pytest.raises(DataError, match="has a run twice"):
        read_run(place, RunResult)
    (tmp_path / PACKED).write_bytes(whole)
    table = pq.read_table(tmp_path / PACKED)
    for other in (
        table.drop_columns(["seal"]),
        table.append_column("another", pa.array([0.0] * len(table))),
        table.set_column(3, "seed", table.column("seed").cast(pa.float64())),
    ):
        pq.write_table(other, tmp_path / PACKED)
        with pytest.raises(DataError, match="has other columns"):
            read_run(place, RunResult)


def test_a_table_that_would_fill_the_memory_is_refused(tmp_path):
    place = written(tmp_path, result())
    pack_runs(tmp_path)
    table = pq.read_table(tmp_path / PACKED)
    n = 3_000_000
    columns = {field.name: pa.nulls(n, field.type) for field in table.schema}
    columns["cell"] = pa.array(["cells/toy/x"]).take(pa.array(np.zeros(n, dtype=np.int64)))
    pq.write_table(pa.table(columns, schema=table.schema), tmp_path / PACKED)
    assert (tmp_path / PACKED).stat().st_size < 1_000_000
    with pytest.raises(DataError, match="would unpack to"):
        read_run(place, RunResult)
