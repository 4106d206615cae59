"""Work that is shared out comes back as if it had been done one by one."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from raxss import __version__
from raxss._core.jobs import each_result
from raxss._core.jobs.local import _interrupts_held
from raxss._core.jobs.on_ray import QUIET
from raxss._core.jobs.outcome import attempt, failure_of, thread_settings
from raxss.errors import ConfigError, MissingExtraError, OutputError

# What workers are given to do; slow_ray takes them from here too ----------------------------------------------


def largest_eigenvalue(seed):
    """Some real work: a number that depends on every digit on the way."""
    matrix = np.random.default_rng(seed).normal(size=(40, 40))
    return float(np.linalg.eigvalsh(matrix @ matrix.T)[-1])


def note_run(folder, item):
    """How often an item was begun, counted in files."""
    runs = len(list(folder.glob(f"{item}-*")))
    (folder / f"{item}-{runs}").write_text(str(os.getpid()))
    return runs


def killed(work):
    """Item 2 kills its worker always, item 3 at first."""
    folder, item = work
    runs = note_run(folder, item)
    if item == 2 or (item == 3 and runs == 0):
        os.kill(os.getpid(), signal.SIGKILL)
    return largest_eigenvalue(item)


def raises(work):
    folder, item = work
    note_run(folder, item)
    if item == 1:
        raise KeyError(f"no item {item}")
    if item == 2:
        sys.exit("enough")
    return item


def sleep(seconds):
    time.sleep(seconds)
    return seconds


def sleep_long(folder):
    note_run(folder, os.getpid())
    time.sleep(100)


def threads(_):
    import numba
    import torch
    from threadpoolctl import threadpool_info

    pools = [pool["num_threads"] for pool in threadpool_info()]
    return torch.get_num_threads(), numba.get_num_threads(), *pools


def environment(_):
    return {name: os.environ.get(name) for name in thread_settings(1)}


class Unreadable:
    """Can be sent, and not be read where it arrives."""

    def __reduce__(self):
        return int, ("no number",)


def unreadable(item):
    return Unreadable() if item else item


def runs_alone(process):
    """Whether there is such a process, and it is not only waiting to be buried."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


# Results ------------------------------------------------------------------------------------------------------


def test_several_workers_give_what_one_gives():
    alone = dict(each_result(largest_eigenvalue, range(7), n_threads=1))
    assert alone == {seed: largest_eigenvalue(seed) for seed in range(7)}
    assert dict(each_result(largest_eigenvalue, range(7), n_workers=2, n_threads=1)) == alone
    assert list(each_result(sleep, [], n_workers=2)) == []


def first_waits_for_last(place):
    if place.name == "0":
        wait_until(place.with_name("3").exists, seconds=60)
    place.touch()
    return place.name


def test_results_come_as_they_finish_with_their_position(tmp_path):
    places = [tmp_path / str(number) for number in range(4)]
    found = list(each_result(first_waits_for_last, places, n_workers=2))
    assert found[:2] == [(1, "1"), (2, "2")]
    assert sorted(found) == list(enumerate("0123"))


@pytest.mark.parametrize("n_workers", [1, 2])
def test_items_are_taken_when_a_worker_is_free(n_workers):
    taken = []
    endless = (taken.append(number) or 0.0 for number in count())
    with closing(each_result(sleep, endless, n_workers=n_workers)) as results:
        next(results)
    assert len(taken) <= n_workers + 1


# Failures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_workers", [1, 2])
def test_what_raises_is_a_failure_is_not_run_again_and_harms_no_other(tmp_path, n_workers):
    found = dict(each_result(raises, [(tmp_path, item) for item in range(4)], n_workers=n_workers))
    assert (found[0], found[3]) == (0, 3)
    assert (found[1].kind, found[1].message) == ("KeyError", "'no item 1'")
    assert re.search(r"^test_jobs:\d+ in raises$", found[1].details, re.MULTILINE)
    assert ".py" not in found[1].details  # where in the code, and nothing of whose disk it is on
    assert str(found[2]) == "SystemExit: enough"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["0-0", "1-0", "2-0", "3-0"]


def test_an_item_whose_worker_is_killed_is_run_again_and_given_up_alone(tmp_path):
    work = [(tmp_path, item) for item in range(6)]
    found = dict(each_result(killed, work, n_workers=2, retries=1))
    failure = found.pop(2)
    assert failure.kind == "WorkerDied"
    assert "died 2 times (SIGKILL(-9))" in failure.message
    assert found == {item: largest_eigenvalue(item) for item in (0, 1, 3, 4, 5)}
    runs = sorted(entry.name for entry in tmp_path.iterdir())
    assert runs == ["0-0", "1-0", "2-0", "2-1", "3-0", "3-1", "4-0", "5-0"]  # the killed ones again, no other


def test_what_cannot_be_sent_is_a_failure_at_once():
    found = dict(each_result(unreadable, [0, 1, Unreadable(), 0], n_workers=2))
    assert (found[0], found[3]) == (0, 0)
    for position in (1, 2):
        assert "un-serialize" in found[position].message
        assert "no number" in found[position].details


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("[x] '/home/Ann Lee/night.edf' is short", "[x] 'night.edf' is short"),
        ('no "C:\\\\Users\\\\Ann\\\\a.edf"', 'no "a.edf"'),
        ("cannot open /data/Ann Lee/night.edf", "cannot open night.edf"),
        (
            "see https://example.org/a/b and 3/4 of it, or ./x",
            "see https://example.org/a/b and 3/4 of it, or ./x",
        ),
        ("a / b / c", "a / b / c"),
        ("<b>bold</b> is no path and /data/Ann/a.edf is", "<b>bold</b> is no path and a.edf is"),
        ("<open file /data/Ann/a.edf>", "<open file a.edf>"),
    ],
)
def test_the_message_of_a_failure_has_no_folders(text, kept):
    assert failure_of(ValueError(text)).message == kept


def test_a_failure_names_the_calls_that_led_to_it_and_to_its_cause():
    def inner():
        raise KeyError("/home/Ann Lee/x")

    def outer():
        try:
            inner()
        except KeyError as error:
            raise ValueError("no") from error

    try:
        outer()
    except ValueError as error:
        lines = [re.sub(r":\d+", "", line) for line in failure_of(error).details.splitlines()]
    here = "test_a_failure_names_the_calls_that_led_to_it_and_to_its_cause"
    assert lines == [
        "test_jobs in outer",
        "test_jobs in inner",
        "KeyError: 'x'",
        f"test_jobs in {here}",
        "test_jobs in outer",
        "ValueError: no",
    ]


# Surroundings -------------------------------------------------------------------------------------------------


def test_threads_are_fixed_in_this_process_and_in_others():
    before = threads(None)
    for n_workers in (1, 2):
        ((_, found),) = each_result(threads, [None], n_workers=n_workers, n_threads=1)
        assert set(found) == {1}, n_workers
    assert threads(None) == before
    ((_, found),) = each_result(environment, [None], n_workers=2, n_threads=3)
    assert set(found.values()) == {"3"}


def test_a_worker_without_the_shared_folder_or_of_another_version_is_a_failure(tmp_path):
    mark = tmp_path / "results" / ".mark"
    found = attempt(sleep, 0.0, mark=mark)
    assert found.kind == "FolderNotShared"
    assert "'results'" in found.message
    mark.parent.mkdir()
    mark.touch()
    assert attempt(sleep, 0.0, mark=mark) == 0.0
    found = attempt(sleep, 0.0, version="9.8.7")
    assert found.kind == "OtherVersion"
    assert f"has raxss {__version__}, and 9.8.7" in found.message


def test_the_folder_of_results_is_left_as_it_was(tmp_path):
    assert list(each_result(sleep, [0.0], shared_folder=tmp_path)) == [(0, 0.0)]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OutputError, match="'absent'"):
        list(each_result(sleep, [0.0], shared_folder=tmp_path / "absent"))


# Ends ---------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys
from pathlib import Path
from contextlib import closing
sys.path.insert(0, sys.argv[1])
import test_jobs
from raxss._core.jobs import each_result
list(each_result(test_jobs.sleep_long, [Path(sys.argv[2])] * 3, engine=sys.argv[3], n_workers=2))
"""


def started(folder, engine="local"):
    """A process with two workers at work, and the ids of these."""
    from toys import hears_ctrl_c  # which needs torch: workers import this module, and start sooner without

    command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(folder), engine]
    driver = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
        preexec_fn=hears_ctrl_c,
    )
    wait_until(lambda: len(list(folder.iterdir())) == 2 or driver.poll() is not None, seconds=60)
    assert driver.poll() is None, driver.stdout.read()
    return driver, [int(item.name.partition("-")[0]) for item in folder.iterdir()]


def test_ctrl_c_ends_all_workers_at_once(tmp_path):
    driver, workers = started(tmp_path)
    assert all(map(runs_alone, workers))
    os.killpg(driver.pid, signal.SIGINT)  # as a terminal does: to all of them
    output, _ = driver.communicate(timeout=15)
    assert driver.returncode == -signal.SIGINT
    assert output.count("Traceback") == 1  # of this process; the workers print nothing
    assert output.rstrip().endswith("KeyboardInterrupt")
    assert not any(map(runs_alone, workers))


HELD = """
import signal, threading, time
from raxss._core.jobs.local import _interrupts_held
other = threading.Thread(target=time.sleep, args=(3,), daemon=True)
other.start()
try:
    with _interrupts_held():
        signal.pthread_kill(other.ident, signal.SIGINT)
        time.sleep(0.2)
        print("whole")
    print("never")
except KeyboardInterrupt:
    print("then interrupted")
"""


def test_an_interrupt_waits_also_where_another_thread_is_handed_it():
    from toys import hears_ctrl_c

    command = [sys.executable, "-c", HELD]
    done = subprocess.run(command, capture_output=True, text=True, check=True, preexec_fn=hears_ctrl_c)
    assert done.stdout.split("\n") == ["whole", "then interrupted", ""]


def test_a_handler_that_python_did_not_set_is_left_in_place(monkeypatch):
    """A program around Python may have one; Python then knows None, and cannot put it back."""
    real, calls = signal.signal, []

    def noted(number, handler):
        calls.append(handler)
        return real(number, handler) and None  # a TypeError for None, as ever

    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.setattr(signal, "signal", noted)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        with _interrupts_held():
            assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    finally:
        real(signal.SIGINT, signal.default_int_handler)
    assert not calls


def test_workers_end_when_their_parent_was_killed(tmp_path):
    driver, workers = started(tmp_path)
    driver.kill()
    driver.communicate(timeout=15)
    wait_until(lambda: not any(map(runs_alone, workers)))


def test_leaving_early_ends_the_workers(tmp_path):
    with closing(each_result(leave_or_stay, [tmp_path / "a", tmp_path / "b"], n_workers=2)) as results:
        next(results)
        wait_until(lambda: (tmp_path / "b").exists())
        assert runs_alone(int((tmp_path / "b").read_text()))
    assert not runs_alone(int((tmp_path / "b").read_text()))


def leave_or_stay(place):
    if place.name == "b":
        place.with_name("c").write_text(str(os.getpid()))
        place.with_name("c").rename(place)
        time.sleep(100)


# Settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "rey"}, "engine is 'rey'.*did you mean 'ray'"),
        ({"n_workers": 0}, "n_workers is 0"),
        ({"n_threads": -1}, "n_threads is -1"),
        ({"retries": -2}, "retries is -2"),
        ({"address": "auto"}, "'auto'.*the engine is 'local'"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_runs(settings, message):
    with pytest.raises(ConfigError, match=message):
        each_result(sleep, [100.0], **settings)


def test_without_ray_the_error_has_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'raxss\[cluster\]'"):
        list(each_result(sleep, [0.0], engine="ray"))


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_an_address_where_no_cluster_is_is_refused_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    began, before = time.monotonic(), {name: os.environ.get(name) for name in QUIET}
    for address in ("nonsense", ":12", "host:port", f"127.0.0.1:{port}", "127.0.0.1:99999"):
        with pytest.raises(ConfigError, match=address):
            list(each_result(sleep, [0.0], engine="ray", address=address))
    assert time.monotonic() - began < 20  # importing Ray included
    assert {name: os.environ.get(name) for name in QUIET} == before


def test_the_number_of_threads_is_set_back_also_where_numba_starts_its_own():
    script = (
        "import torch\n"
        "from raxss._core.jobs.local import threads_limited\n"
        "for n in (1, 2):\n"
        "    with threads_limited(n):\n"
        "        assert torch.get_num_threads() == n\n"
        "    assert torch.get_num_threads() == 1, torch.get_num_threads()\n"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=300)
