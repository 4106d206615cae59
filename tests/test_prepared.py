"""A prepared folder holds what the recordings hold, whatever happens while it is made."""

import csv
import fcntl
import hashlib
import itertools
import json
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from raxss._core.atomic import canonical_hash
from raxss._core.store import seal_of
from raxss.data.manifests import plan_labelled, plan_manifest
from raxss.data.plan import CollectionPlan, RecordingPlan, SeriesPlan, read_plan
from raxss.data.prepare import preparing, units
from raxss.data.prepare.folder import COLUMNS, N_OPEN, is_prepared, read_prepared
from raxss.data.prepare.preparing import prepare
from raxss.data.prepare.preprocessing import Preparation
from raxss.data.recording import ArrayRecording, Channel, Recording, Segment
from raxss.data.series import Series
from raxss.errors import (
    ConfigError,
    DataError,
    EmptyDataError,
    LabelError,
    OutputError,
    OutputInUseError,
    RAxSSWarning,
    RecordingError,
)
from toys import hears_ctrl_c

needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks into /proc")
PAPER = Preparation(pooling=(24, 12), scaling="series")


def write_recordings(folder, n_recordings, *, seconds=4.0, rate=500.0, seed=69421):
    """As many .npz files of two channels, one of them with a gap, and a manifest of them."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "all.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "label", "group", "channel"])
        for number in range(n_recordings):
            samples = rng.normal(number, 1 + number, size=(2, round(seconds * rate))).astype(np.float32)
            if number == 1:
                samples[0, 50:60] = np.nan
            np.savez(folder / f"r{number}.npz", samples=samples, rate=rate, channels=["C3", "C4"])
            table.writerow([f"r{number}.npz", "ill" if number % 2 else "well", f"p{number // 2}", "C3"])
            table.writerow([f"r{number}.npz", "well", f"p{number // 2}", "C4"])
    return folder / "all.csv"


def content_of(folder):
    """Name and hash of every file: equal for folders that are the same to the last byte."""
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def raxss(*arguments, **options):
    """The real command line, in a process of its own."""
    command = [sys.executable, "-m", "raxss", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options)


@pytest.fixture
def manifest(tmp_path):
    return write_recordings(tmp_path / "data", 3)


@pytest.fixture
def folder(manifest, tmp_path):
    return prepare(plan_manifest(manifest), tmp_path / "out", PAPER)


# What is in the folder ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "block_bytes"),
    [
        *itertools.product(["", "z-score", "pool 24/12, z-score"], [16, 5000, 1 << 24]),
        *itertools.product(["resample 100 Hz, z-score"], [5000, 1 << 24]),
        ("resample 173.61 Hz", 1 << 24),
    ],
)
def test_samples_on_disk_are_the_bits_that_apply_gives_in_memory(
    manifest, tmp_path, monkeypatch, text, block_bytes
):
    monkeypatch.setattr(units, "BLOCK_BYTES", block_bytes)
    plan, preparation = plan_manifest(manifest), Preparation.parse(text)
    prepared = read_prepared(prepare(plan, tmp_path / "out", preparation), verify=True)
    for item, raw in zip(prepared, read_plan(plan), strict=True):
        expected = preparation.apply(raw)
        assert item.samples.tobytes() == expected.samples.astype(np.float32).tobytes()
        for known in (
            "rate",
            "start_seconds",
            "label",
            "group",
            "name",
            "preparation",
            "n_samples",
            "origin",
        ):
            assert getattr(item, known) == getattr(expected, known), known
        assert item.gaps_marked == (not np.isfinite(expected.samples).all())


class Night(Recording):
    """Two segments, three channels of two rates; each sample tells its channel, segment and place."""

    def __init__(self):
        self.name = "night"
        self.channels = (Channel("A", 100.0, "uV"), Channel("B", 100.0, "uV"), Channel("C", 50.0))
        self.segments = (Segment(0.0, 20.0), Segment(3600.0, 10.0))

    def read(self, channels, *, segment=0, start=0, stop=None):
        start, stop = self.stretch(channels, segment, start, stop)
        return np.array(
            [[channel * 1e6 + segment * 1e5 + place for place in range(start, stop)] for channel in channels]
        )


def plan_of(*series, opener=Night, **known):
    return CollectionPlan("toy", Path("."), (RecordingPlan("night", (), opener, series),), **known)


def test_channels_segments_crops_and_rates_land_in_their_own_place(tmp_path):
    plan = plan_of(
        SeriesPlan("both", (1, 0), label="x", origin={"patient": "p1"}),
        SeriesPlan("late", (0,), 1, label="y", crop=(3602.0, 3604.5)),
        SeriesPlan("slow", (2,), label="x"),
        SeriesPlan("again", (0,), label="y", crop=(1.0, 2.0)),
        group_by="patient",
    )
    prepared = read_prepared(prepare(plan, tmp_path / "out", Preparation()))
    both, late, slow, again = prepared
    assert_array_equal(both.samples, [1e6 + np.arange(2000), np.arange(2000)])
    assert_array_equal(late.samples, [1e5 + np.arange(200, 450)])
    assert_array_equal(slow.samples, [2e6 + np.arange(1000)])
    assert_array_equal(again.samples, [np.arange(100, 200)])
    assert [item.start_seconds for item in prepared] == [0.0, 3602.0, 0.0, 1.0]
    assert [item.rate for item in prepared] == [100.0, 100.0, 50.0, 100.0]
    assert [item.group for item in prepared] == ["p1", None, None, None]
    assert list(prepared.table["unit"]) == ["uV", "uV", "", "uV"]
    assert list(prepared.table.columns) == list(COLUMNS)
    assert list(prepared.labels) == ["x", "y", "x", "y"]


def test_the_table_and_the_facts_tell_where_everything_comes_from(folder, manifest):
    facts = json.loads((folder / "prepared.json").read_text())
    table = pd.read_parquet(folder / "series.parquet")
    assert facts["format"] == "raxss-prepared-1"
    assert facts["preparation"] == "pool 24/12, z-score"
    assert facts["settings"] == {"pooling": [24, 12], "rate": None, "scaling": "series"}
    assert (facts["source"], facts["group_by"], facts["labels"]) == (
        "all.csv",
        "patient",
        {"ill": 1, "well": 5},
    )
    for name, told in facts["inputs"].items():
        assert told == hashlib.sha256((manifest.parent / name).read_bytes()).hexdigest()
    assert set(facts["inputs"]) == {"all.csv", "r0.npz", "r1.npz", "r2.npz"}
    on_disk = content_of(folder)
    assert {name: told["sha256"] for name, told in facts["outputs"].items()} == {
        name: told for name, told in on_disk.items() if name not in (".raxss", "prepared.json")
    }
    for row in table.itertuples():
        samples = np.load(folder / row.file)[row.offset : row.offset + row.n_variates * row.n_samples]
        assert hashlib.sha256(samples.tobytes()).hexdigest() == row.sha256
        assert row.finite_share == np.isfinite(samples).mean()
    assert json.loads((folder / "problems.json").read_text())["with_gaps"] == ["r1:C3"]
    assert str(manifest.parent) not in (folder / "prepared.json").read_text()


@needs_proc
def test_series_are_light_until_their_samples_are_asked_for(manifest, tmp_path):
    rng = np.random.default_rng(1)
    recordings = tuple(
        RecordingPlan(
            f"r{number}",
            (),
            partial(ArrayRecording, "a", rng.normal(size=(1, 50)), rate=10.0),
            (SeriesPlan(f"s{number}", (0,), label="a"),),
        )
        for number in range(N_OPEN + 20)
    )
    prepared = read_prepared(
        prepare(CollectionPlan("many", tmp_path, recordings), tmp_path / "out", Preparation())
    )
    before = len(os.listdir("/proc/self/fd"))
    kept = list(prepared[np.arange(len(prepared))])
    assert len(os.listdir("/proc/self/fd")) == before
    total = sum(float(item.samples.sum()) for item in kept)
    assert np.isfinite(total)
    assert len(os.listdir("/proc/self/fd")) <= before + N_OPEN
    assert not kept[0].samples.flags.writeable
    assert kept[0].samples.base is not None


def test_a_mapped_series_can_be_copied_changed_and_sent_away(folder):
    item = read_prepared(folder)[0]
    away = pickle.loads(pickle.dumps(item))
    assert away.samples.tobytes() == item.samples.tobytes()
    assert len(pickle.dumps(item)) < 2000  # where it lies, not what it holds
    other = replace(item, label="else")
    assert (other.label, other.name, other.samples.tobytes()) == ("else", item.name, item.samples.tobytes())
    assert item.with_samples([1.0, 2.0]).samples.tolist() == [[1.0, 2.0]]
    assert item.with_samples([1.0, 2.0]).n_samples == 2
    assert isinstance(item, Series)
    assert repr(item).startswith("Series('r0:C3', 1 variate, ")


def test_a_folder_that_takes_the_place_of_another_is_read_anew(manifest, tmp_path):
    first = read_prepared(prepare(plan_manifest(manifest), tmp_path / "out", Preparation()))
    kept = first[0].samples[0, :5].copy()
    second = read_prepared(prepare(plan_manifest(manifest), tmp_path / "out", PAPER, overwrite=True))
    assert second[0].samples[0, 0] != kept[0]


# Damage -------------------------------------------------------------------------------------------------------


def flip(file, place):
    content = bytearray(file.read_bytes())
    content[place % len(content)] ^= 1 << (place % 8)
    file.write_bytes(content)


@pytest.mark.parametrize("name", ["prepared.json", "series.parquet", "problems.json"])
def test_no_flipped_bit_of_facts_table_or_problems_goes_unseen(folder, name, rng):
    whole = (folder / name).read_bytes()
    for place in rng.integers(0, len(whole) * 8, size=40):
        flip(folder / name, int(place))
        with pytest.raises(RecordingError, match="'out' is"):
            read_prepared(folder)
        (folder / name).write_bytes(whole)
    assert len(read_prepared(folder)) == 6


def test_a_flipped_bit_of_the_samples_is_seen_when_asked_to_verify(folder, rng):
    file = next((folder / "samples").iterdir())
    whole = file.read_bytes()
    for place in rng.integers(0, len(whole) * 8, size=20):
        flip(file, int(place))
        with pytest.raises(RecordingError, match=f"'{file.name}' was changed after it was written"):
            read_prepared(folder, verify=True)
        file.write_bytes(whole)


def reseal(folder, change):
    """Change the facts so that only their meaning is wrong, as somebody who means ill would."""
    facts = json.loads((folder / "prepared.json").read_text())
    change(facts)
    (folder / "prepared.json").write_text(json.dumps({**facts, "seal": seal_of(facts)}))


def test_missing_cut_off_and_foreign_files_are_named(folder, tmp_path):
    with pytest.raises(RecordingError, match=r"'nothing' is no prepared collection: it has no prepared.json"):
        read_prepared(tmp_path / "nothing")
    file = next((folder / "samples").iterdir())
    whole = file.read_bytes()
    file.write_bytes(whole[:-4])
    with pytest.raises(
        RecordingError, match=f"'{file.name}' has {len(whole) - 4:,} bytes, not {len(whole):,}"
    ):
        read_prepared(folder)
    file.unlink()
    with pytest.raises(RecordingError, match=f"'{file.name}' cannot be read: No such file"):
        read_prepared(folder)
    (tmp_path / "else.npy").write_bytes(whole)
    file.symlink_to(tmp_path / "else.npy")
    with pytest.raises(RecordingError, match=f"'{file.name}' leads out of it"):
        read_prepared(folder)
    file.unlink()
    file.write_bytes(whole)
    (folder / ".raxss").unlink()
    with pytest.raises(RecordingError, match=r"the file .raxss that marks it is missing"):
        read_prepared(folder)


ZEROS = {"sha256": "0" * 64, "n_bytes": 1}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda facts: facts.update(format="raxss-prepared-9"), "its format is 'raxss-prepared-9'"),
        (lambda facts: facts.update(preparation="pool it"), "prepared.json lacks something"),
        (lambda facts: facts.pop("outputs"), "prepared.json lacks something"),
        (lambda facts: facts["outputs"].update({"../x.npy": ZEROS}), "'../x.npy' is no name of a sample file"),
        (lambda facts: facts["outputs"].pop("series.parquet"), "was changed after"),
        (lambda facts: facts["outputs"].popitem(), "'out' is damaged"),
    ],
)  # fmt: skip
def test_facts_with_a_false_meaning_are_refused(folder, change, told):
    reseal(folder, change)
    with pytest.raises(RecordingError, match=told):
        read_prepared(folder)


def test_a_pickle_in_the_place_of_samples_is_not_opened(folder):
    file = next((folder / "samples").iterdir())
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    name = f"samples/{file.name}"
    told = {"sha256": hashlib.sha256(file.read_bytes()).hexdigest(), "n_bytes": file.stat().st_size}
    reseal(folder, lambda facts: facts["outputs"].update({name: told}))
    with pytest.raises(RecordingError, match=r"impossible figures|cannot be read"):
        [item.samples for item in read_prepared(folder)]


# Same bytes, always -------------------------------------------------------------------------------------------


def test_the_number_of_workers_changes_nothing(manifest, tmp_path):
    plan = plan_manifest(manifest)
    folders = [prepare(plan, tmp_path / f"of{n}", PAPER, workers=n) for n in (1, 2, 3)]
    first, *others = (content_of(item) for item in folders)
    assert others == [first, first]
    assert not list(tmp_path.glob("*preparing*"))


def test_the_same_again_is_left_as_it_is(folder, manifest, caplog):
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    with caplog.at_level("INFO", "raxss"):
        assert prepare(plan_manifest(manifest), folder, PAPER) == folder
    assert "'out' holds just this already" in caplog.text
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before
    assert not folder.with_name("out.preparing").exists()


def test_the_same_again_is_not_taken_for_granted(folder, manifest):
    before = content_of(folder)
    flip(next((folder / "samples").iterdir()), 4321)
    with pytest.raises(
        RecordingError, match=r"was changed after it was written. Remove it, and prepare it again"
    ):
        prepare(plan_manifest(manifest), folder, PAPER)
    prepare(plan_manifest(manifest), folder, PAPER, overwrite=True)
    assert content_of(folder) == before


def test_something_else_is_refused_unless_told_to_overwrite(folder, manifest, tmp_path):
    before = content_of(folder)
    with pytest.raises(OutputError, match="'out' was prepared from other inputs or with other settings"):
        prepare(plan_manifest(manifest), folder, Preparation())
    assert content_of(folder) == before
    assert not folder.with_name("out.preparing").exists()
    prepare(plan_manifest(manifest), folder, Preparation(), overwrite=True)
    assert content_of(folder) == content_of(
        prepare(plan_manifest(manifest), tmp_path / "fresh", Preparation())
    )


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_raxss_did_not_make_is_never_touched(manifest, tmp_path, overwrite):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("dear to somebody")
    with pytest.raises(OutputError, match="'thesis'"):
        prepare(plan_manifest(manifest), tmp_path / "thesis", PAPER, overwrite=overwrite)
    assert content_of(tmp_path / "thesis").keys() == {"chapter.txt"}


def test_what_is_the_same_does_not_depend_on_the_place_of_the_data(manifest, tmp_path):
    shutil.copytree(manifest.parent, tmp_path / "elsewhere" / "deep")
    item, two = (
        prepare(plan_manifest(path), tmp_path / out, PAPER)
        for path, out in ((manifest, "a"), (tmp_path / "elsewhere" / "deep" / "all.csv", "b"))
    )
    assert content_of(item) == content_of(two)


# Stopped and gone on ------------------------------------------------------------------------------------------


def stopped(plan, out, monkeypatch, after):
    """A run that ends by an error after some units."""
    real, count = preparing.write_unit, itertools.count(1)

    def limited(unit, work):
        if next(count) > after:
            raise KeyboardInterrupt
        return real(unit, work)

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "write_unit", limited)
        with pytest.raises(KeyboardInterrupt):
            prepare(plan, out, PAPER)


def counted(monkeypatch):
    done, real = [], preparing.write_unit
    monkeypatch.setattr(
        preparing, "write_unit", lambda unit, work: done.append(unit.recording.name) or real(unit, work)
    )
    return done


def test_what_is_finished_is_not_done_again(manifest, folder, tmp_path, monkeypatch):
    plan, out = plan_manifest(manifest), tmp_path / "again"
    stopped(plan, out, monkeypatch, after=2)
    assert len(list((tmp_path / "again.preparing").glob("*.npy"))) == 2
    done = counted(monkeypatch)
    prepare(plan, out, PAPER)
    assert done == ["r2"]
    assert content_of(out) == content_of(folder)


def test_units_that_raxss_0_1_left_are_taken_up(manifest, folder, tmp_path, monkeypatch):
    plan, out = plan_manifest(manifest), tmp_path / "again"
    stopped(plan, out, monkeypatch, after=2)
    for place in (tmp_path / "again.preparing").glob("*.json"):  # as it wrote them
        result = {name: value for name, value in json.loads(place.read_text()).items() if name != "seal"}
        result["seal"] = canonical_hash(result)
        place.write_text(json.dumps(result, ensure_ascii=True, allow_nan=False), "utf-8")
    done = counted(monkeypatch)
    prepare(plan, out, PAPER)
    assert done == ["r2"]
    assert content_of(out) == content_of(folder)


@pytest.mark.parametrize("suffix", [".npy", ".json"])
def test_a_damaged_unit_is_done_again(manifest, folder, tmp_path, monkeypatch, rng, suffix):
    plan = plan_manifest(manifest)
    done = counted(monkeypatch)
    for place in rng.integers(0, 1 << 20, size=8):
        out = tmp_path / f"again{place}"
        stopped(plan, out, monkeypatch, after=2)
        flip(next((tmp_path / f"{out.name}.preparing").glob(f"r1-*{suffix}")), int(place))
        (tmp_path / f"{out.name}.preparing" / ".r9.npy.1.partial").write_bytes(b"half")
        done.clear()
        prepare(plan, out, PAPER)
        assert done == ["r1", "r2"]
        assert content_of(out) == content_of(folder)


def test_a_changed_input_is_done_again(manifest, tmp_path, monkeypatch):
    out = tmp_path / "out"
    stopped(plan_manifest(manifest), out, monkeypatch, after=2)
    changed = np.random.default_rng(5).normal(size=(2, 1000))
    np.savez(manifest.parent / "r0.npz", samples=changed, rate=500.0, channels=["C3", "C4"])
    done = counted(monkeypatch)
    prepare(plan_manifest(manifest), out, PAPER)
    assert done == ["r0", "r2"]
    expected = PAPER.apply(Series(changed[:1], 500.0)).samples
    assert_array_equal(read_prepared(out)[0].samples, expected)
    np.savez(manifest.parent / "r1.npz", samples=changed, rate=500.0, channels=["C3", "C4"])
    with pytest.raises(OutputError, match="prepared from other inputs"):
        prepare(plan_manifest(manifest), out, PAPER)


def test_an_input_that_changes_while_it_is_read_is_refused(manifest, tmp_path, monkeypatch):
    real = units._write_samples

    def touched(unit, recording, path):
        os.utime(unit.recording.files[0], ns=(1, 1))
        return real(unit, recording, path)

    monkeypatch.setattr(units, "_write_samples", touched)
    with pytest.raises(
        RecordingError, match=r"3 of 3 recordings cannot be prepared. the file 'r0.npz' changed"
    ):
        prepare(plan_manifest(manifest), tmp_path / "out", PAPER)
    assert not is_prepared(tmp_path / "out")


def test_a_second_run_at_once_is_refused_and_a_dead_ones_lock_is_not(manifest, tmp_path):
    with open(tmp_path / ".out.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OutputInUseError, match="'out' is being written by another raxss process"):
            prepare(plan_manifest(manifest), tmp_path / "out", PAPER)
    assert not (tmp_path / "out.preparing").exists()
    assert is_prepared(prepare(plan_manifest(manifest), tmp_path / "out", PAPER))
    assert not (tmp_path / "out.preparing").exists()
    assert not (tmp_path / ".out.lock").exists()


KILLER = """
import hashlib, json, os, pathlib, signal, sys
from raxss.data.prepare.preprocessing import Preparation
from raxss.data.prepare.preparing import prepare
from raxss.data.manifests import plan_manifest
import pyarrow.parquet, pandas  # before any fork

manifest, home, first, last, step = sys.argv[1], pathlib.Path(sys.argv[2]), *map(int, sys.argv[3:])
DEADLY = ("replace", "rename", "link", "unlink", "rmdir", "mkdir", "fsync", "open")

def run(out, n):
    # prepare in a child that kills itself before the n-th call that changes something; how it ended
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    count = 0
    def deadly(real):
        def call(*arguments, **options):
            nonlocal count
            count += 1
            if count == n:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)
        return call
    for name in DEADLY:
        setattr(os, name, deadly(getattr(os, name)))
    prepare(plan_manifest(manifest), out, Preparation(pooling=(24, 12), scaling="series"))
    os._exit(0)

def content(folder):
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(one.relative_to(folder)): hashlib.sha256(one.read_bytes()).hexdigest() for one in files}

assert run(home / "whole", -1) == 0
whole, killed, stages = content(home / "whole"), 0, {}
for n in range(first, last, step):
    out, work = home / f"out{n}", home / f"out{n}.preparing"
    ended = run(out, n)
    if ended == 0:
        break
    assert ended == -signal.SIGKILL, ended
    killed += 1
    there = out.exists()
    assert not there or content(out) == whole, f"torn after {n} calls"
    stage = "placed" if there else f"{len(list(work.glob('*.json')))} units" if work.exists() else "begun"
    if any(home.glob(f".out{n}.*.partial")):
        stage = "assembling"
    stages[stage] = stages.get(stage, 0) + 1
    assert run(out, -1) == 0
    assert content(out) == whole, f"different after {n} calls"
    assert not work.exists()
    left = [f.name for f in home.iterdir() if f.name not in ("whole", *[f"out{k}" for k in range(last)])]
    assert not left, left
print(json.dumps({"killed": killed, "stages": stages, "finished": ended == 0}))
"""


def killed_at(manifest, home, *steps):
    home.mkdir()
    run = subprocess.run(
        [sys.executable, "-c", KILLER, manifest, home, *map(str, steps)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_a_kill_before_some_changes_of_the_disk_leaves_nothing_torn(manifest, tmp_path):
    told = killed_at(manifest, tmp_path / "home", 1, 200, 7)
    assert told["finished"]
    assert told["killed"] >= 8
    assert "assembling" in told["stages"]
    assert len(told["stages"]) >= 3


def processes_below(process):
    """Children of a process, and theirs."""
    try:
        listed = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []
    return [item for child in listed for item in (int(child), *processes_below(int(child)))]


def await_end(workers):
    """Workers end with the run that started them, if not in the same moment."""
    until = time.monotonic() + 30
    while left := [worker for worker in workers if Path(f"/proc/{worker}").exists()]:
        assert time.monotonic() < until, f"{len(left)} workers outlive the run that started them"
        time.sleep(0.02)


def killed_while_working(command, out, delay, *, n_units=0):
    """Start the command, wait for so many units, then as long as told, and kill -9 it; at which stage it was."""
    work = out.with_name(out.name + ".preparing")
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    while process.poll() is None and not (work.exists() and len(list(work.glob("*.json"))) >= n_units):
        time.sleep(0.002)
    time.sleep(delay)
    workers = processes_below(process.pid)
    process.kill()
    ended = process.wait()
    await_end(workers)
    if ended == 0:
        return "finished"
    n_units = len(list(work.glob("*.json"))) if work.exists() else 0
    halves = any(work.glob(".*.partial")) if work.exists() else False
    if is_prepared(out):
        return "folder placed"
    if any(out.parent.glob(f".{out.name}.*.partial")):
        return "assembling"
    return f"{n_units} units" + (" and a half" if halves else "")


@needs_proc
def test_a_killed_command_goes_on_and_ends_with_the_same_bytes(tmp_path):
    manifest = write_recordings(tmp_path / "data", 6, seconds=400.0)
    command = [
        sys.executable,
        "-m",
        "raxss",
        "prepare",
        str(manifest),
        "--rate",
        "90",
        "--workers",
        "2",
        "--out",
    ]
    plan, preparation = plan_manifest(manifest), Preparation(rate=90.0, scaling="series")
    whole = content_of(prepare(plan, tmp_path / "whole", preparation))
    for number, delay in enumerate((0.05, 1.6)):
        out = tmp_path / f"out{number}"
        stage = killed_while_working([*command, str(out)], out, delay)
        assert content_of(prepare(plan, out, preparation)) == whole, stage
        assert not list(tmp_path.glob("*out?.*")), "something was left behind"


def dying_once(flag, samples):
    """A recording whose first reader does not survive it."""
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return ArrayRecording("x", samples, rate=100.0)


def test_a_worker_that_dies_is_replaced(tmp_path, rng):
    def plan(flag):
        return CollectionPlan(
            "toys",
            tmp_path,
            tuple(
                RecordingPlan(
                    f"r{number}",
                    (),
                    partial(dying_once, flag, np.full((1, 99), float(number))),
                    (SeriesPlan(f"s{number}", (0,), label="a"),),
                )
                for number in range(4)
            ),
        )

    (tmp_path / "calm").touch()
    calm = prepare(plan(tmp_path / "calm"), tmp_path / "one", Preparation())
    shaken = prepare(plan(tmp_path / "deadly"), tmp_path / "two", Preparation(), workers=2)
    assert (tmp_path / "deadly").exists()
    assert content_of(calm) == content_of(shaken)


def test_a_full_disk_is_told_and_the_older_folder_stays(manifest, folder, tmp_path):
    before = content_of(folder)
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (4000, 4000))  # as a full disk: writes fail
    arguments = ("prepare", manifest, "--scaling", "none", "--overwrite", "--out", folder)
    run = raxss(*arguments, preexec_fn=limit)
    assert run.returncode == 1
    assert "cannot write 'r0-" in run.stderr
    assert "File too large" in run.stderr
    assert "Traceback" not in run.stderr
    assert content_of(folder) == before
    prepare(plan_manifest(manifest), folder, Preparation(), overwrite=True)
    assert read_prepared(folder, verify=True).preparation == Preparation()


@needs_proc
def test_ctrl_c_leaves_finished_recordings_and_no_worker(tmp_path):
    manifest = write_recordings(tmp_path / "data", 6, seconds=1000.0)
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "raxss",
        "prepare",
        manifest,
        "--rate",
        "90",
        "--workers",
        "2",
        "--out",
        out,
    ]
    process = subprocess.Popen(
        list(map(str, command)),
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hears_ctrl_c,
    )
    until = time.monotonic() + 60
    while (
        not list(tmp_path.glob("out.preparing/*.json"))
        and time.monotonic() < until
        and process.poll() is None
    ):
        time.sleep(0.01)
    workers = processes_below(process.pid)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "Traceback" not in told
    await_end(workers)
    assert not out.exists()
    prepare(plan_manifest(manifest), out, Preparation(rate=90.0, scaling="series"))
    assert len(read_prepared(out, verify=True)) == 12


# What is absent, unlabelled or empty --------------------------------------------------------------------------


def test_absent_files_are_one_list_and_an_error_only_if_nothing_is_left_or_all_is_needed(tmp_path):
    absent = tuple(f"sub-{number:02d}.edf" for number in range(23))
    some = plan_of(SeriesPlan("a", (0,), label="x"), absent=absent, where_to_get="Ask for it.")
    with pytest.warns(
        RAxSSWarning, match=r"23 files of 'toy' are absent:\n  sub-00.edf\n(.*\n){21}  sub-22.edf\nAsk"
    ):
        folder = prepare(some, tmp_path / "some", Preparation())
    assert json.loads((folder / "problems.json").read_text())["absent"] == list(absent)
    with pytest.raises(RecordingError, match=r"23 files of 'toy' are absent:\n  sub-00.edf"):
        prepare(some, tmp_path / "strict", Preparation(), strict=True)
    with pytest.raises(RecordingError, match=r"there is no signal to prepare. 23 files"):
        prepare(replace(some, recordings=()), tmp_path / "none", Preparation())
    assert sorted(item.name for item in tmp_path.iterdir()) == ["some"]


def test_series_without_a_label_enter_only_if_asked_for(tmp_path):
    plan = plan_of(SeriesPlan("a", (0,), label="x"), SeriesPlan("b", (1,)))
    assert read_prepared(prepare(plan, tmp_path / "one", Preparation())).names == ["a"]
    both = read_prepared(prepare(plan, tmp_path / "two", Preparation(), unlabelled=True))
    assert [item.label for item in both] == ["x", None]
    with pytest.raises(EmptyDataError, match="'toy' has no series to prepare: 1 are planned"):
        prepare(plan_of(SeriesPlan("b", (1,))), tmp_path / "three", Preparation())


def test_a_series_of_which_nothing_is_left_is_listed(tmp_path):
    plan = plan_of(SeriesPlan("a", (0,), label="x"), SeriesPlan("gone", (0,), label="x", crop=(30.0, 40.0)))
    folder = prepare(plan, tmp_path / "out", Preparation())
    assert read_prepared(folder).names == ["a"]
    listed = json.loads((folder / "problems.json").read_text())["left_out"]
    assert listed == ["series 'gone' has 0 samples from 30 to 40 s, too few to be prepared."]
    with pytest.raises(EmptyDataError, match="1 series cannot be prepared: series 'gone' has 0 samples"):
        prepare(plan, tmp_path / "strict", Preparation(), strict=True)
    with pytest.raises(EmptyDataError, match="nothing is left of 'toy', 1 series: series 'gone'"):
        prepare(plan_of(plan.recordings[0].series[1]), tmp_path / "none", Preparation())


def test_recordings_that_cannot_be_read_are_told_together_and_the_others_kept(manifest, tmp_path):
    plan = plan_manifest(manifest)
    for name in ("r0.npz", "r2.npz"):
        (manifest.parent / name).write_bytes(b"not a zip")
    with pytest.raises(RecordingError, match=r"2 of 3 recordings cannot be prepared. .*'r0.npz'.*'r2.npz'"):
        prepare(plan, tmp_path / "out", PAPER)
    assert len(list((tmp_path / "out.preparing").glob("*.npy"))) == 1


def test_names_that_are_not_unique_are_refused(tmp_path):
    with pytest.raises(DataError, match="several series named 'a'"):
        prepare(plan_of(SeriesPlan("a", (0,)), SeriesPlan("a", (1,))), tmp_path / "out", Preparation())


def test_channels_of_two_rates_are_no_one_series(tmp_path):
    with pytest.raises(RecordingError, match="'night' has the channels asked for at 50, 100 Hz"):
        prepare(plan_of(SeriesPlan("a", (0, 2), label="x")), tmp_path / "out", Preparation())


def test_warnings_of_preparing_are_in_the_list_of_problems(tmp_path):
    folder = prepare(plan_of(SeriesPlan("a", (0,), label="x")), tmp_path / "out", Preparation(rate=200.0))
    told = json.loads((folder / "problems.json").read_text())["recordings"]["night"]["warnings"]
    assert len(told) == 1
    assert told[0].startswith("100 Hz is below the 200 Hz asked for")


# Plans of manifests and tables --------------------------------------------------------------------------------


def test_a_manifest_is_planned_as_it_is_read(tmp_path, rng):
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", samples=rng.normal(size=(2, 90)), rate=30.0, channels=["C3", "C4"])
    np.save(tmp_path / "c.npy", rng.normal(size=(1, 90)))
    (tmp_path / "m.csv").write_text(
        "path,label,patient,centre,channel,rate\na.npz,x,p1,north,C4,\nb.npz,y,p2,south,,30\nc.npy,x,p3,south,0,12.5\n"
    )
    plan = plan_manifest(tmp_path / "m.csv")
    from raxss.data.files import read_manifest

    for planned, read in zip(read_plan(plan), read_manifest(tmp_path / "m.csv"), strict=True):
        for known in ("name", "label", "group", "rate", "origin", "start_seconds"):
            assert getattr(planned, known) == getattr(read, known), known
        assert_array_equal(planned.samples, read.samples)
    assert plan.group_by == "patient"
    assert [file.name for file in plan.recordings[2].files] == ["c.npy", "m.csv"]


def test_inputs_of_one_name_in_two_places_are_both_hashed(tmp_path, rng):
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        np.savez(tmp_path / place / "a.npz", samples=rng.normal(size=(1, 90)), rate=30.0)
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "m.csv").write_text("path,label\n../here/a.npz,x\n../there/a.npz,y\n")
    folder = prepare(plan_manifest(tmp_path / "lists" / "m.csv"), tmp_path / "out", Preparation())
    inputs = read_prepared(folder).facts["inputs"]
    expected = {
        hashlib.sha256((tmp_path / place / "a.npz").read_bytes()).hexdigest() for place in ("here", "there")
    }
    assert {told for name, told in inputs.items() if name != "m.csv"} == expected
    assert str(tmp_path) not in (folder / "prepared.json").read_text()


@pytest.mark.parametrize(
    ("rows", "level"),
    [
        ("path,label,group,channel\na.npz,x,p1,0\n", "patient"),
        ("path,label,group,centre,channel\na.npz,x,north,north,0\n", "centre"),
        ("path,label,channel\na.npz,x,0\n", "recording"),
    ],
)
def test_the_group_of_a_manifest_is_a_level_of_origin(tmp_path, rows, level):
    np.savez(tmp_path / "a.npz", samples=np.zeros((1, 9)), rate=3.0)
    (tmp_path / "m.csv").write_text(rows)
    plan = plan_manifest(tmp_path / "m.csv")
    assert plan.group_by == level
    assert level in next(iter(plan))[1].origin


def test_a_group_that_contradicts_the_patient_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", samples=np.zeros((1, 9)), rate=3.0)
    (tmp_path / "m.csv").write_text("path,label,group,patient\na.npz,x,g1,p1\n")
    with pytest.raises(RecordingError, match=r"'m.csv' has the columns 'group' and 'patient', which differ"):
        plan_manifest(tmp_path / "m.csv")


def test_recordings_beside_a_label_table_are_planned_by_channel(tmp_path, rng):
    (tmp_path / "data" / "deep").mkdir(parents=True)
    for name in ("one.npz", "deep/two.npz"):
        samples = rng.normal(size=(3, 90))
        np.savez(tmp_path / "data" / name, samples=samples, rate=30.0, channels=["A1", "A2", "B1"])
    (tmp_path / "labels.csv").write_text(
        "recording,channel,label\none,A1,soz\none,B1,other\ntwo,A2,soz\ntwo,Z9,soz\nfour,A1,soz\n"
    )
    plan = plan_labelled(tmp_path / "data", tmp_path / "labels.csv")
    prepared = prepare(plan, tmp_path / "out", Preparation())
    assert read_prepared(prepared).names == ["deep/two:A2", "one:A1", "one:B1"]
    assert list(read_prepared(prepared).groups) == ["deep/two", "one", "one"]
    told = json.loads((prepared / "problems.json").read_text())["unmatched"]
    assert "channel 'Z9' of the label table is not in recording 'deep/two'." in told
    assert "recording 'four' of the label table was not found." in told
    item = plan_labelled(tmp_path / "data" / "one.npz", tmp_path / "labels.csv")
    assert [series.name for _, series in item if series.label] == ["one:A1", "one:B1"]


def test_a_label_table_labels_no_recording_that_it_does_not_name(tmp_path):
    for name in ("night.npz", "night_2.npz", "p1/rec.npz", "p2/rec.npz"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        np.savez(tmp_path / "data" / name, samples=np.ones((1, 9)), rate=3.0, channels=["A1"])
    table = tmp_path / "labels.csv"
    table.write_text("recording,channel,label\nnight,A1,soz\np1/rec.npz,A1,soz\n")
    plan = plan_labelled(tmp_path / "data", table)
    assert [item.name for _, item in plan if item.label] == ["night:A1", "p1/rec:A1"]
    table.write_text("recording,channel,label\nrec,A1,soz\n")
    with pytest.raises(LabelError, match=r"'rec', which could be 'data/p1/rec', 'data/p2/rec'"):
        plan_labelled(tmp_path / "data", table)


# The command --------------------------------------------------------------------------------------------------


def test_the_command_tells_what_it_made_and_what_comes_next(manifest, tmp_path):
    run = raxss("prepare", manifest, "--pool", "24/12", "--out", tmp_path / "out")
    assert run.returncode == 0, run.stderr
    assert "6 series of 3 recordings; labels: ill 1, well 5" in run.stdout
    assert "preparation: pool 24/12, z-score; groups: patient" in run.stdout
    assert f"next: raxss fit {tmp_path / 'out'}" in run.stdout
    assert "series with gaps 1" in run.stderr
    assert str(manifest.parent) not in run.stderr


def plan_source(*arguments, **options):
    from raxss.cli.prepare import plan_source as planned

    return planned(*arguments, **options)


def test_classes_choose_among_labels(manifest):
    assert {item.label for _, item in plan_source(str(manifest), classes="ill")} == {"ill"}
    with pytest.raises(LabelError, match=r"no series of 'all.csv' has the label 'il'; did you mean 'ill'"):
        plan_source(str(manifest), classes="il")


def test_a_named_dataset_is_planned_by_its_name_or_its_folder(shared_data):
    by_name = plan_source("bonn", root=shared_data, classes="F,N")
    by_folder = plan_source(str(shared_data / "bonn"), classes="F,N")
    assert len(by_name) == len(by_folder) == 200
    with pytest.raises(ConfigError, match="'bonn' takes no option 'crop'"):
        plan_source("bonn", root=shared_data, crop="-10,20")


def test_sources_that_say_too_little_are_refused_with_what_to_do(manifest, tmp_path):
    with pytest.raises(RecordingError, match=r"folder 'data' is neither a BIDS tree .* --labels TABLE"):
        plan_source(str(manifest.parent))
    with pytest.raises(RecordingError, match=r"recording 'r0.npz' needs labels"):
        plan_source(str(manifest.parent / "r0.npz"))
    with pytest.raises(ConfigError, match="--crop counts from the seizure's onset"):
        plan_source(str(manifest), crop="-10,20")
    with pytest.raises(ConfigError, match="--crop is '-10'"):
        plan_source(str(manifest), crop="-10")
    with pytest.raises(DataError, match=r"'bon'.*bonn"):
        plan_source("bon")


@pytest.mark.parametrize("pool", ["24", "a/b", "24/", "24/-1"])
def test_a_pooling_that_is_none_is_refused(pool):
    from raxss.cli.prepare import preparation_from

    with pytest.raises(ConfigError, match=f"--pool is '{pool}'"):
        preparation_from(pool, None, "none")


# Real recordings ----------------------------------------------------------------------------------------------


def test_the_pt01_recording_is_prepared_with_its_ten_onset_channels(shared_data, tmp_path):
    root = shared_data / "ds003029-pt01"
    plan = plan_source(str(root), labels=root / "soz.tsv")
    prepared = read_prepared(prepare(plan, tmp_path / "out", Preparation(pooling=(24, 12))), verify=True)
    assert dict(zip(*np.unique(prepared.labels, return_counts=True), strict=True)) == {"other": 74, "soz": 10}
    item, (recording, wanted) = prepared[0], next(iter(plan))
    with recording.open_recording() as opened:
        samples = opened.read(wanted.channels)
    assert samples.shape[1] == 15500  # as the folder's README says
    expected = [samples[0, start : start + 24].mean() for start in range(0, 15500 - 23, 12)]
    np.testing.assert_allclose(item.samples[0], expected, rtol=1e-5, atol=1e-4)
    assert item.rate == pytest.approx(1000 / 12)


def test_the_sidecars_of_ds003029_alone_give_one_list_of_what_is_absent(shared_data, tmp_path):
    run = raxss("prepare", shared_data / "ds003029", "--out", tmp_path / "out")
    assert run.returncode == 1
    assert "there is no signal to prepare." in run.stderr
    assert "files of 'ds003029' are absent:\n  sub-jh101/" in run.stderr
    assert "raxss datasets download ds003029" in run.stderr
    assert not list(tmp_path.iterdir())


# Recordings beside a label table -----------------------------------------------------------------------------


def test_patient_and_centre_of_a_label_table_reach_the_series(tmp_path, rng):
    for patient in ("p1", "p2"):
        (tmp_path / "data" / patient).mkdir(parents=True)
        for run in ("a", "b"):
            np.savez(
                tmp_path / "data" / patient / f"{run}.npz",
                samples=rng.normal(size=(2, 300)),
                rate=100.0,
                channels=["G1", "AD1"],
            )
    lines = [
        f"{patient}/{run}.npz,{channel},{label},{patient},{centre}"
        for patient, centre in (("p1", "NIH"), ("p2", "JHH"))
        for run in ("a", "b")
        for channel, label in (("G1", "other"), ("AD1", "soz"))
    ]
    labels = tmp_path / "labels.csv"
    labels.write_text("\n".join(["recording,channel,label,patient,centre", *lines]) + "\n")
    plan = plan_labelled(tmp_path / "data", labels)
    assert plan.group_by == "patient"
    assert {
        (item.origin["patient"], item.origin["centre"], item.origin["electrode"]) for _, item in plan
    } == {
        ("p1", "NIH", "p1/G"),
        ("p1", "NIH", "p1/AD"),
        ("p2", "JHH", "p2/G"),
        ("p2", "JHH", "p2/AD"),
    }
    labels.write_text(labels.read_text() + "p1/a.npz,G2,other,p2,NIH\n")
    with pytest.raises(LabelError, match=r"two values of 'patient', in line 10"):
        plan_labelled(tmp_path / "data", labels)


def test_what_the_label_table_does_not_name_stops_nothing_and_is_told(tmp_path, rng):
    data = tmp_path / "data"
    data.mkdir()
    np.savez(data / "good.npz", samples=rng.normal(size=(1, 300)), rate=100.0, channels=["G1"])
    np.savez(data / "extra.npz", samples=rng.normal(size=(1, 300)), rate=100.0, channels=["G1"])
    (data / "broken.edf").write_bytes(b"0" * 100)
    (data / "torn.edf").write_bytes(b"0" * 100)
    (data / "analysis.mat").write_bytes(b"not ours")
    labels = tmp_path / "labels.csv"
    labels.write_text("recording,channel,label\ngood,G1,soz\nbroken,G1,soz\n")
    plan = plan_labelled(data, labels)
    assert [item.name for _, item in plan] == ["good:G1"]
    assert set(plan.unmatched) == {
        "recording 'extra' is not in the label table.",
        "recording 'torn' is not in the label table.",
    }
    (told,) = plan.refused
    assert told.startswith("recording 'broken' is left out: ")
    assert "[not-this-format]" in told
    with pytest.warns(RAxSSWarning, match=r"1 recordings of 'data' cannot be read:\n  recording 'broken'"):
        prepare(plan, tmp_path / "out", Preparation())
    assert json.loads((tmp_path / "out" / "problems.json").read_text())["refused"] == [told]
    with pytest.raises(RecordingError, match="recording 'broken' is left out"):
        prepare(plan, tmp_path / "strict", Preparation(), strict=True)


def test_the_segments_of_a_wfdb_record_are_no_recordings_of_their_own(tmp_path, rng):
    data = tmp_path / "data"
    data.mkdir()
    for name in ("s1", "s2"):
        rng.integers(-500, 500, size=300).astype("<i2").tofile(data / f"{name}.dat")
        (data / f"{name}.hea").write_text(f"{name} 1 100 300\n{name}.dat 16 200/mV 16 0 0 0 0 II\n")
    (data / "rec.hea").write_text("rec/3 1 100 700\ns1 300\n~ 100\ns2 300\n")
    labels = tmp_path / "labels.csv"
    labels.write_text("channel,label\nII,ill\n")
    plan = plan_labelled(data, labels)
    assert [item.name for _, item in plan] == ["rec:II", "rec:II@4s"]
