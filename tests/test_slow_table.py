"""Studies that take a while: every system, several processes, kills, Ray."""

import os
import signal
import subprocess
import sys
import time

import pytest

from raxss.benchmark.systems import SYSTEMS
from test_runs import check_that_test_labels_are_not_used
from test_table import SMOKE, cells_in, rows_in, run, written
from toys import hears_ctrl_c
from unpacked import contents

pytestmark = pytest.mark.slow


def test_every_system_gives_the_same_bytes_again(tmp_path):
    for out in ("first", "second"):
        assert run(SMOKE, "--out", tmp_path / out).exit_code == 0
    assert len(cells_in(tmp_path / "first")) == len(SYSTEMS)
    assert cells_in(tmp_path / "first") == cells_in(tmp_path / "second")


@pytest.mark.parametrize("system", SYSTEMS)
def test_labels_of_the_test_part_never_reach_a_system(system, tmp_path):
    short = SYSTEMS[system].kind in ("fixed", "rocket")
    text = f"[system.{system}]\nwindow_length = 200" if short else ""
    check_that_test_labels_are_not_used(tmp_path, system, text)


# Ends that nobody planned -------------------------------------------------------------------------------------


def command(study, out, *options):
    given = ["table", str(study), "--out", str(out), "--device", "cpu"]
    return [sys.executable, "-m", "raxss", *given, *options]


def figures_in(out):
    """The table without what differs from run to run."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows_in(out)]


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    """The study as one process does it, and the folder with its result."""
    folder = tmp_path_factory.mktemp("serial")
    study = written(folder)
    subprocess.run(command(study, folder / "out"), check=True, capture_output=True)
    assert len(cells_in(folder / "out")) == 6
    return study, folder / "out"


def loose_cells(out):
    """Cells of a run that has not ended: one file each."""
    files = (out / "cells").rglob("*.json") if (out / "cells").exists() else ()
    return sorted(file.relative_to(out).as_posix() for file in files if len(file.suffixes) == 1)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_run_that_was_killed_goes_on_and_ends_with_the_same_table(serial, tmp_path, workers):
    study, whole = serial
    out = tmp_path / "out"
    process = subprocess.Popen(
        command(study, out, "--workers", workers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not loose_cells(out) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = {place: contents(out)[place] for place in loose_cells(out)}  # with facts, among them the seconds
    assert 1 <= len(kept) < 6
    subprocess.run(command(study, out, "--workers", workers), check=True, capture_output=True)
    assert loose_cells(out) == []  # packed
    assert {place: contents(out)[place] for place in kept} == kept  # not computed again
    assert cells_in(out) == cells_in(whole)
    assert figures_in(out) == figures_in(whole)


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_a_worker_that_dies_in_the_middle_changes_nothing(serial, tmp_path, engine):
    if engine == "ray":
        pytest.importorskip("ray")
    study, whole = serial
    out, mark = tmp_path / "out", tmp_path / "died"
    response = subprocess.run(
        command(study, out, "--engine", engine, "--workers", "2"),
        capture_output=True,
        text=True,
        env={**os.environ, "DIE_ONCE": str(mark)},
    )
    assert response.returncode == 0, response.stderr
    assert mark.exists()
    assert cells_in(out) == cells_in(whole)
    assert figures_in(out) == figures_in(whole)


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(serial, tmp_path):
    study, whole = serial
    out = tmp_path / "out"
    process = subprocess.Popen(
        command(study, out), stderr=subprocess.PIPE, text=True, preexec_fn=hears_ctrl_c
    )
    while not loose_cells(out) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate()
    assert process.returncode == 130, message
    assert "the same command goes on" in message
    assert len(loose_cells(out)) < 6
    subprocess.run(command(study, out), check=True, capture_output=True)
    assert cells_in(out) == cells_in(whole)
