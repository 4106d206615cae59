"""Preparation that is stopped, killed or short of disk, and resumed: the same bytes in the end."""

import fcntl
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from raxss._core.atomic import canonical_hash
from raxss.data.manifests import plan_manifest
from raxss.data.prepare import preparing, units
from raxss.data.prepare.folder import is_prepared, read_prepared
from raxss.data.prepare.preparing import prepare
from raxss.data.prepare.preprocessing import Preparation
from raxss.data.recording import ArrayRecording
from raxss.data.series import Series
from raxss.errors import OutputError, OutputInUseError, RecordingError
from test_prepared import PAPER, content_of, flip, needs_proc, plan_of_recordings, raxss, write_recordings
from toys import hears_ctrl_c

PREPARE = [sys.executable, "-m", "raxss", "prepare", "--rate", "90", "--workers", "2"]


@pytest.fixture
def manifest(tmp_path):
    return write_recordings(tmp_path / "data", 3)


@pytest.fixture
def folder(manifest, tmp_path):
    return prepare(plan_manifest(manifest), tmp_path / "out", PAPER)


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


@pytest.mark.parametrize("version", ["this", "0.1"])
def test_what_is_finished_is_not_done_again(manifest, folder, tmp_path, monkeypatch, version):
    plan, out = plan_manifest(manifest), tmp_path / "again"
    stopped(plan, out, monkeypatch, after=2)
    units_left = sorted((tmp_path / "again.preparing").glob("*.json"))
    assert len(units_left) == 2
    for place in units_left if version == "0.1" else ():  # as raxss 0.1 wrote them
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
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}

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
    command = [sys.executable, "-c", KILLER, manifest, home, *map(str, steps)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_a_kill_before_some_changes_of_the_disk_leaves_nothing_torn(manifest, tmp_path):
    report = killed_at(manifest, tmp_path / "home", 1, 200, 7)
    assert report["finished"]
    assert report["killed"] >= 8
    assert "assembling" in report["stages"]
    assert len(report["stages"]) >= 3


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
    """Start the command, kill -9 it ``delay`` seconds after so many units; the stage that it was at."""
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
    command = [*PREPARE, str(manifest), "--out"]
    settings = {"crop": None, "classes": None, "unlabelled": False}  # as the command records them
    plan = replace(plan_manifest(manifest), settings=settings)
    preparation = Preparation(rate=90.0, scaling="series")
    whole = content_of(prepare(plan, tmp_path / "whole", preparation))
    for n_units in (0, 3):
        out = tmp_path / f"out{n_units}"
        stage = killed_while_working([*command, str(out)], out, 0.05, n_units=n_units)
        assert content_of(prepare(plan, out, preparation)) == whole, stage
        assert not list(tmp_path.glob("*out?.*")), "something was left behind"


def dying_once(flag, samples):
    """A recording whose first reader does not survive it."""
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return ArrayRecording("x", samples, rate=100.0)


def test_a_worker_that_dies_is_replaced(tmp_path):
    def plan(flag):
        return plan_of_recordings(partial(dying_once, flag, np.full((1, 99), float(k))) for k in range(4))

    (tmp_path / "calm").touch()
    calm = prepare(plan(tmp_path / "calm"), tmp_path / "one", Preparation())
    shaken = prepare(plan(tmp_path / "deadly"), tmp_path / "two", Preparation(), workers=2)
    assert (tmp_path / "deadly").exists()
    assert content_of(calm) == content_of(shaken)


def test_a_full_disk_is_an_error_and_the_older_folder_stays(manifest, folder, tmp_path):
    before = content_of(folder)
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (4000, 4000))  # as a full disk: writes fail
    arguments = ("prepare", manifest, "--scaling", "none", "--overwrite", "--out", folder)
    environment = {name: text for name, text in os.environ.items() if not name.startswith("COVERAGE")}
    run = raxss(*arguments, preexec_fn=limit, env=environment)  # where coverage could not write either
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
    command = [*PREPARE, str(manifest), "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=hears_ctrl_c)
    until = time.monotonic() + 60
    while not list(tmp_path.glob("out.preparing/*.json")) and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    workers = processes_below(process.pid)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 130, message
    assert "Traceback" not in message
    await_end(workers)
    assert not out.exists()
    prepare(plan_manifest(manifest), out, Preparation(rate=90.0, scaling="series"))
    assert len(read_prepared(out, verify=True)) == 12
