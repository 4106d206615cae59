"""Ray on this machine: the same results, a quiet and closed cluster, nothing left behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from raxss import RAxSSClassifier
from raxss._core.jobs import each_result
from raxss.cli import app
from raxss.errors import ConfigError
from test_jobs import (
    Unreadable,
    environment,
    killed,
    largest_eigenvalue,
    raises,
    runs_alone,
    sleep,
    started,
    unreadable,
    wait_until,
)
from toys import SMALL, waves

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    # not imported here: that comes after its variables are set
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
TWO = {"engine": "ray", "n_workers": 2}


def parent_of(process):
    """None if it is gone."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def descendants(process):
    """Ids of all processes that this one started, and those that these did."""
    parents = {
        int(item.name): parent_of(item.name) for item in Path("/proc").iterdir() if item.name.isdigit()
    }
    found = {process}
    while more := {entry for entry, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {process}


def of_ray(processes):
    return {
        process for process in processes if runs_alone(process) and b"ray" in _of(process, "cmdline").lower()
    }


def _of(process, what):
    try:
        return Path(f"/proc/{process}/{what}").read_bytes()
    except OSError:
        return b""


def listening(processes):
    """Local addresses, in hex as the system has them, on which these processes wait for connections."""
    inodes = set()
    for process in processes:
        for file in Path(f"/proc/{process}/fd").glob("*"):
            try:
                inodes.add(os.readlink(file).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()
    ]
    return {cells[1].partition(":")[0] for cells in lines if cells[3] == "0A" and cells[9] in inodes}


def test_ray_gives_what_one_process_gives_and_is_closed_to_others():
    with closing(each_result(largest_eigenvalue, range(6), **TWO, n_threads=1)) as results:
        first = next(results)
        processes = descendants(os.getpid())
        begun = of_ray(processes)
        commands = b" ".join(_of(item, "cmdline") for item in begun)
        assert b"gcs_server" in commands
        assert b"raylet" in commands
        addresses = listening({*begun, os.getpid()})
        assert len(addresses) >= 1
        assert addresses <= set(LOOPBACK)
        # Python processes of Ray write their title over their environment; these two start all others.
        servers = [
            item for item in begun if os.readlink(f"/proc/{item}/exe").endswith(("gcs_server", "raylet"))
        ]
        assert len(servers) == 2
        for process in servers:
            variables = _of(process, "environ").split(b"\0")
            assert b"RAY_USAGE_STATS_ENABLED=0" in variables, process
            assert b"RAY_AUTH_MODE=token" in variables, process
        assert dict([first, *results]) == {seed: largest_eigenvalue(seed) for seed in range(6)}
    wait_until(lambda: not of_ray(begun))
    assert "RAY_AUTH_TOKEN" not in os.environ


def test_a_killed_worker_of_ray_costs_nothing_but_time_and_says_nothing(tmp_path, capfd):
    found = dict(each_result(killed, [(tmp_path, item) for item in range(6)], **TWO, retries=1))
    assert found.pop(2).kind == "WorkerDied"
    assert found == {item: largest_eigenvalue(item) for item in (0, 1, 3, 4, 5)}
    assert [len(list(tmp_path.glob(f"{item}-*"))) for item in (2, 3)] == [2, 2]
    assert capfd.readouterr() == ("", "")


def test_failures_and_threads_on_ray_are_those_of_one_process(tmp_path):
    failing = [(raises, (tmp_path, item)) for item in range(4)]
    alone = dict(each_result(call, failing))
    work = [*failing, (environment, None), (unreadable, 1), (largest_eigenvalue, Unreadable())]
    found = dict(each_result(call, work, **TWO, n_threads=3))
    assert [str(found[item]) for item in range(4)] == [str(alone[item]) for item in range(4)]
    assert len(list(tmp_path.iterdir())) == 8  # each once by either engine: what raises is not run again
    assert set(found[4].values()) == {"3"}
    for position in (5, 6):
        assert "no number" in found[position].message


def call(work):
    function, item = work
    return function(item)


def test_an_archive_predicted_on_ray_has_the_bytes_of_a_single_run(tmp_path, rng):
    model = RAxSSClassifier(**SMALL).fit(waves(rng)).save_pretrained(tmp_path / "model")
    for wave in waves(rng, n_series=6):
        np.savez(tmp_path / f"{wave.name}.npz", samples=wave.samples, rate=10.0)
    command = ("predict", model, *sorted(tmp_path.glob("*.npz")), "--device", "cpu", "--out")
    for name, options in (("one", ()), ("ray", ("--engine", "ray", "--workers", "2"))):
        result = CliRunner().invoke(app, [*map(str, command), str(tmp_path / f"{name}.csv"), *options])
        assert result.exception is None, result.exception
        assert result.output.startswith("6 predictions are in ")
    assert (tmp_path / "ray.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()
    assert len(list((tmp_path / "ray.csv.parts").glob("*.json"))) == 6


def test_ctrl_c_leaves_nothing_of_ray_behind(tmp_path):
    driver, workers = started(tmp_path, "ray")
    begun = of_ray(descendants(driver.pid))
    assert begun >= set(workers)
    os.killpg(driver.pid, signal.SIGINT)
    output, _ = driver.communicate(timeout=30)
    assert driver.returncode == -signal.SIGINT, output
    assert output.rstrip().endswith("KeyboardInterrupt")
    wait_until(lambda: not any(map(runs_alone, begun)))


def test_a_cluster_that_was_given_is_used_and_left_running(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip()
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 2}
    variables = os.environ | token | {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [Path(sys.executable).with_name("ray"), "start", "--head", "--block", f"--port={port}"]
    options = ["--num-cpus=2", "--include-dashboard=false", f"--temp-dir={folder}"]
    cluster = subprocess.Popen(
        [*command, *options], env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: any(b"raylet" in _of(each, "cmdline") for each in descendants(cluster.pid)), 60)
        address = f"127.0.0.1:{port}"
        with pytest.MonkeyPatch.context() as patch:
            for name, value in token.items():
                patch.setenv(name, value)
            given = {"engine": "ray", "address": address, "n_threads": 1}
            found = dict(each_result(largest_eigenvalue, range(4), **given, n_workers=None))
            assert found == {seed: largest_eigenvalue(seed) for seed in range(4)}
            assert cluster.poll() is None
            assert dict(each_result(largest_eigenvalue, [7], **given)) == {0: largest_eigenvalue(7)}
            with pytest.raises(ConfigError, match=r"3 threads.*has 2 cores"):
                list(each_result(sleep, [0.0], engine="ray", address=address, n_threads=3))
            patch.setenv("RAY_AUTH_TOKEN", "f" * 32)
            with pytest.raises(ConfigError, match=f"{address}.*cannot be used.*token"):
                list(each_result(sleep, [0.0], engine="ray", address=address))
        assert cluster.poll() is None
    finally:
        below = descendants(cluster.pid)
        cluster.terminate()
        cluster.wait(timeout=60)
        wait_until(lambda: not any(map(runs_alone, below)), 60)
        subprocess.run(["rm", "-rf", folder], check=True)
    # and one of its own can be started in this process afterwards, closed to others again
    with closing(each_result(largest_eigenvalue, range(2), **TWO)) as results:
        next(results)
        assert listening({*of_ray(descendants(os.getpid())), os.getpid()}) <= set(LOOPBACK)


def test_something_else_that_answers_is_not_waited_for_without_end():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(ConfigError, match=f"{address}.*did not answer as one within 40 s"):
            list(each_result(sleep, [0.0], engine="ray", address=address))
        assert time.monotonic() - began < 60
