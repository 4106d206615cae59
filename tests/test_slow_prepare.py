"""What takes long to show of `raxss prepare`: a day in little memory, and kills at any moment."""

import json
import shutil
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from raxss.data.prepare import read_prepared
from test_prepared import content_of, write_recordings
from test_prepared_resumed import PREPARE, killed_at, killed_while_working

pytestmark = pytest.mark.slow

N_CHANNELS, RATE = 16, 1000

MEASURE = """
import json, os, subprocess, sys, time
start = time.monotonic()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
print(json.dumps({"ended": status, "megabytes": used.ru_maxrss / 1024, "seconds": time.monotonic() - start}))
"""  # a process of its own: what it starts would count the memory of pytest as its own peak


def write_edf(path, n_seconds, rng):
    """A plain EDF, a record a second: a minute of noise over and over, with the number of the hour added."""

    def fields(values, width):
        return b"".join(str(value).encode().ljust(width) for value in values)

    n_header = 256 * (N_CHANNELS + 1)
    fixed = [("0", 8), ("X X X X", 80), ("Startdate X X X X", 80), ("01.01.85", 8), ("00.00.00", 8)]
    fixed += [(n_header, 8), ("", 44), (n_seconds, 8), (1, 8), (N_CHANNELS, 4)]
    channels = [([f"EEG {number}" for number in range(N_CHANNELS)], 16), ([""] * N_CHANNELS, 80)]
    channels += [([value] * N_CHANNELS, 8) for value in ("uV", -3276.8, 3276.7, -32768, 32767)]
    channels += [([""] * N_CHANNELS, 80), ([RATE] * N_CHANNELS, 8), ([""] * N_CHANNELS, 32)]
    minute = rng.normal(0, 800, size=(60, N_CHANNELS, RATE)).astype("<i2")
    with open(path, "wb") as file:
        file.write(b"".join(fields([value], width) for value, width in fixed))
        file.write(b"".join(fields(values, width) for values, width in channels))
        for start in range(0, n_seconds, 60):
            file.write((minute[: n_seconds - start] + np.int16(start // 3600)).tobytes())
    return minute


@pytest.mark.timeout(1800)
def test_a_day_of_sixteen_channels_takes_no_more_memory_than_an_hour(tmp_path, rng, record_property):
    report = {}
    for hours in (1, 24):
        folder = tmp_path / f"{hours}h"
        folder.mkdir()
        minute = write_edf(folder / "night.edf", hours * 3600, rng)
        lines = [
            f"night.edf,{'soz' if number < 4 else 'other'},p1,EEG {number}" for number in range(N_CHANNELS)
        ]
        (folder / "all.csv").write_text("\n".join(["path,label,group,channel", *lines]) + "\n")
        command = [sys.executable, "-m", "raxss", "prepare", folder / "all.csv", "--pool", "24/12"]
        command = [*map(str, command), "--out", str(folder / "out")]
        run = subprocess.run(
            [sys.executable, "-c", MEASURE, *command], capture_output=True, text=True, check=True
        )
        report[hours] = json.loads(run.stdout)
        assert report[hours]["ended"] == 0, run.stderr
        prepared = read_prepared(folder / "out")
        assert {item.n_samples for item in prepared} == {(hours * 3600 * RATE - 24) // 12 + 1}
        raw = minute[:, 5].reshape(-1)[: 24 + 12 * 99].astype(np.float64) * 0.1
        pooled = np.array([raw[12 * place : 12 * place + 24].mean() for place in range(100)])
        found = prepared[5].samples[0, :100]
        assert np.corrcoef(found, pooled)[0, 1] > 0.999999  # the z-score moves and stretches, no more
        (folder / "night.edf").unlink()
    print(f"\n{report}")
    record_property("prepare", report)
    assert report[24]["megabytes"] < 1000
    assert report[24]["megabytes"] < 1.05 * report[1]["megabytes"]


def test_a_kill_before_every_change_of_the_disk_leaves_nothing_torn(tmp_path):
    manifest = write_recordings(tmp_path / "data", 3)
    report = killed_at(manifest, tmp_path / "home", 1, 400, 1)
    print(f"\n{report}")
    assert report["finished"]
    assert report["killed"] > 60
    assert {"begun", "assembling", "placed"} <= report["stages"].keys()


@pytest.mark.timeout(1200)
def test_twenty_kills_at_random_moments_change_not_one_byte(tmp_path, rng):
    manifest = write_recordings(tmp_path / "data", 12, seconds=1200.0)
    command = [*PREPARE, str(manifest), "--out"]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)
    whole, stages = content_of(tmp_path / "whole"), Counter()
    for number in range(20):
        out = tmp_path / f"out{number}"
        moment = {"delay": float(rng.uniform(0, 0.2)), "n_units": int(rng.integers(0, 13))}
        stages[killed_while_working([*command, str(out)], out, **moment)] += 1
        again = subprocess.run([*command, str(out)], capture_output=True, text=True, check=False)
        assert again.returncode == 0, f"{moment}: {again.returncode}\n{again.stderr}"
        assert content_of(out) == whole
        assert not list(tmp_path.glob("*out?*.*")), "something was left behind"
        shutil.rmtree(out)
    print(f"\n{dict(stages)}")
    assert sum(count for stage, count in stages.items() if stage not in ("finished", "0 units")) >= 5
