"""Locks on outputs: of two writers one wins, the other gets an error, and nothing is lost."""

import errno
import multiprocessing
import os
import platform
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from raxss._core import atomic as storage
from raxss._core import outputs
from raxss._core.atomic import reserved_output, whole_file, whole_files, whole_folder
from raxss._core.outputs import output_lock
from raxss.errors import OutputError, OutputInUseError

needs_locks = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks")

HOLD = """
    import sys
    from raxss._core.outputs import output_lock
    with output_lock(sys.argv[1]):
        print("ready", flush=True)
        sys.stdin.readline()
"""


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def take(path):
    with output_lock(path):
        pass


def write_while(output, meanwhile):
    """Write an output, of which something else happens before it is put into its place."""
    with output as temporary:
        (temporary / "a" if temporary.is_dir() else temporary).write_text("mine")
        meanwhile()


def started(script, *arguments):
    """A process that has printed that it is ready."""
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.fixture
def in_a_thread():
    """Hold outputs in a thread of this process, until the test is over."""
    ended, threads = threading.Event(), []

    def hold(path):
        holding = threading.Event()

        def run():
            with output_lock(path):
                holding.set()
                ended.wait(60)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        assert holding.wait(10)

    yield hold
    ended.set()
    for thread in threads:
        thread.join()


# The lock -----------------------------------------------------------------------------------------------------


@needs_locks
def test_the_error_of_another_process_names_the_holder_and_the_lock_file_goes_at_the_end(tmp_path):
    with started(HOLD, tmp_path / "model") as process:
        who = rf"pid {process.pid} on host {re.escape(platform.node())}, since \d{{4}}-\d\d-\d\d \d\d:\d\d"
        with pytest.raises(
            OutputInUseError, match=rf"'model' is being written by another .*process \({who}\)"
        ):
            take(tmp_path / "model")
        assert names(tmp_path) == [".model.lock"]
        process.communicate("\n")
    with output_lock(tmp_path / "model"):
        assert names(tmp_path) == [".model.lock"]
    assert names(tmp_path) == []


def test_another_thread_is_refused_and_the_same_thread_may_go_on(tmp_path, in_a_thread):
    in_a_thread(tmp_path / "held")
    with pytest.raises(OutputInUseError, match="'held' is being written by another thread of this process"):
        take(tmp_path / "held")
    with output_lock(tmp_path / "mine"), output_lock(tmp_path / "mine"):
        with whole_folder(tmp_path / "mine"):
            pass
        assert ".mine.lock" in names(tmp_path)
    assert names(tmp_path) == [".held.lock", "mine"]


def test_an_output_is_the_same_by_all_its_paths(tmp_path, in_a_thread, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    in_a_thread(tmp_path / "folder" / "x")
    monkeypatch.chdir(tmp_path / "folder")
    for path in ("x", "../folder/x", tmp_path / "link" / "x"):
        with pytest.raises(OutputInUseError):
            take(path)


@needs_locks
def test_what_a_killed_process_left_is_in_nobodys_way(tmp_path):
    with started(HOLD, tmp_path / "model") as process:
        process.send_signal(signal.SIGKILL)
    assert names(tmp_path) == [".model.lock"]
    with output_lock(tmp_path / "model"):
        pass
    assert names(tmp_path) == []


@needs_locks
def test_a_forked_child_does_not_hold_on_to_what_its_parent_held(tmp_path):
    script = """
        import os, sys, time
        from raxss._core.outputs import output_lock
        with output_lock(sys.argv[1]):
            if os.fork() == 0:
                print("ready", flush=True)  # by the child: what a fork does in it is done by then
                time.sleep(60)
                os._exit(0)
            time.sleep(60)
    """
    process = started(script, tmp_path / "model")
    child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
    try:
        with pytest.raises(OutputInUseError):
            take(tmp_path / "model")
        process.kill()
        process.wait()
        os.kill(child, 0)  # it lives
        with output_lock(tmp_path / "model"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()


@needs_locks
def test_words_in_a_lock_file_that_raxss_did_not_write_are_not_repeated(tmp_path):
    import fcntl

    with open(tmp_path / ".x.lock", "w") as file:
        file.write("\x1b[31mpatient Jones\t1\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(OutputInUseError, match="'x' is being written by another raxss process; wait"):
            take(tmp_path / "x")


def test_a_disk_without_locks_is_a_warning_and_nothing_is_replaced_even_so(tmp_path, monkeypatch, caplog):
    def no_locks(file):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(outputs, "lock", no_locks)
    with pytest.raises(OutputError, match="'x' was written by somebody else meanwhile"):
        write_while(whole_folder(tmp_path / "x"), lambda: appear(tmp_path / "x" / "a"))
    assert "'x' cannot be locked (No locks available)" in caplog.text
    assert (tmp_path / "x" / "a").read_text() == "theirs"
    assert names(tmp_path) == ["x"]


def test_where_no_file_can_lie_beside_an_output_the_lock_is_inside(tmp_path, monkeypatch):
    """As with a disk that is mounted at the output itself."""
    real = os.open

    def read_only(path, *arguments, **options):
        if os.path.dirname(path) == str(tmp_path):
            raise OSError(errno.EROFS, "Read-only file system")
        return real(path, *arguments, **options)

    (tmp_path / "out").mkdir()
    monkeypatch.setattr(outputs.os, "open", read_only)
    with output_lock(tmp_path / "out"):
        assert names(tmp_path / "out") == [".lock"]
    assert names(tmp_path / "out") == []
    with pytest.raises(OutputError, match=r"cannot write 'new' in the folder .*Read-only file system"):
        take(tmp_path / "new")


# What appeared meanwhile --------------------------------------------------------------------------------------


def appear(path):
    path.parent.mkdir(exist_ok=True)
    path.write_text("theirs")


def test_a_file_that_appeared_meanwhile_is_not_replaced(tmp_path):
    output = whole_file(tmp_path / "x.csv", overwrite=False)
    with pytest.raises(OutputError, match=r"'x\.csv' was written by somebody else meanwhile"):
        write_while(output, lambda: appear(tmp_path / "x.csv"))
    assert (tmp_path / "x.csv").read_text() == "theirs"
    assert names(tmp_path) == ["x.csv"]


@pytest.mark.parametrize("without", ["renameat2", "renameat2 and links"])
def test_a_file_is_not_replaced_where_the_system_can_do_less(tmp_path, monkeypatch, without):
    monkeypatch.setattr(storage.ctypes, "CDLL", lambda *arguments, **options: object())
    if "links" in without:

        def no_links(*arguments):
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(storage.os, "link", no_links)
    storage.write_text(tmp_path / "new", "mine", overwrite=False)
    assert (tmp_path / "new").read_text() == "mine"
    test_a_file_that_appeared_meanwhile_is_not_replaced(tmp_path / "folder")
    assert names(tmp_path) == ["folder", "new"]


def test_a_folder_that_raxss_did_not_make_and_that_appeared_meanwhile_is_not_overwritten(tmp_path):
    output = whole_folder(tmp_path / "x", overwrite=True)
    with pytest.raises(OutputError, match="'x' was not made by raxss"):
        write_while(output, lambda: appear(tmp_path / "x" / "thesis"))
    assert (tmp_path / "x" / "thesis").read_text() == "theirs"


def test_reserving_looks_again_when_it_has_the_lock(tmp_path, monkeypatch):
    """Another writer may end between the first look and the lock."""
    real = storage.check_writable

    def other_ends(path):
        real(path)
        appear(Path(path))

    monkeypatch.setattr(storage, "check_writable", other_ends)
    output = reserved_output(tmp_path / "x.csv", overwrite=False)
    with pytest.raises(OutputError, match=r"'x\.csv' exists already"):
        output.__enter__()


# Many rounds --------------------------------------------------------------------------------------------------


def write(kind, place, text, overwrite):
    """One of the three ways to write, with a moment in the middle."""
    if kind == "file":
        with whole_file(place, overwrite=overwrite) as temporary:
            temporary.write_text(text)
            time.sleep(0.001)
    elif kind == "folder":
        with whole_folder(place, overwrite=overwrite) as folder:
            for name in ("a", "b"):
                (folder / name).write_text(text)
                time.sleep(0.001)
    else:
        with whole_files(place.parent, place.name) as folder:
            for name in ("a", "b"):
                (folder / f"{place.name}-{name}").write_text(text)
                time.sleep(0.001)


def texts(kind, place):
    """What is there afterwards: one text if it is whole."""
    if kind == "file":
        return {place.read_text()}
    files = [place / name if kind == "folder" else Path(f"{place}-{name}") for name in ("a", "b")]
    return {file.read_text() for file in files}


def attempt(kind, place, text, overwrite):
    try:
        write(kind, place, text, overwrite)
        return "done"
    except OutputInUseError:
        return "in use"
    except OutputError as error:
        return "there" if error.errno == errno.EEXIST else repr(error)


def write_in_rounds(kind, root, n_rounds, overwrite, barrier, found, who):
    """A process with two threads that write the same as everyone else, round by round."""
    with ThreadPoolExecutor(2) as threads:
        for number in range(n_rounds):
            barrier.wait(60)
            place = root / str(number)
            each = [threads.submit(attempt, kind, place, f"{who}.{index}", overwrite) for index in range(2)]
            found.put((number, {f"{who}.{item}": future.result() for item, future in enumerate(each)}))


def rounds_of(target, n_rounds, *arguments):
    """Every writer's outcome in every round, of two processes."""
    context = multiprocessing.get_context("spawn")
    barrier, found = context.Barrier(2), context.Queue()
    processes = [context.Process(target=target, args=(*arguments, barrier, found, who)) for who in range(2)]
    for process in processes:
        process.start()
    outcomes = [{} for _ in range(n_rounds)]
    for _ in range(2 * n_rounds):
        number, some = found.get(timeout=300)
        outcomes[number] |= some
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return outcomes


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", ["file", "folder", "files"])
def test_of_many_writers_one_wins_and_the_others_get_an_error(tmp_path, kind, overwrite):
    """Two processes with two threads each, 120 rounds; `whole_files` always replaces."""
    outcomes = rounds_of(write_in_rounds, 120, kind, tmp_path, 120, overwrite)
    for number, some in enumerate(outcomes):
        assert len(some) == 4
        assert set(some.values()) <= {"done", "in use", "there"}, some
        done = [who for who, outcome in some.items() if outcome == "done"]
        assert done, some
        if not overwrite and kind != "files":
            assert len(done) == 1, some
        (text,) = texts(kind, tmp_path / str(number))  # whole, and of a writer that succeeded
        assert text in done
    assert sum(outcome == "in use" for some in outcomes for outcome in some.values()) > 60  # they did meet
    assert not [name for name in names(tmp_path) if name.startswith(".")]


def fit_in_rounds(root, n_rounds, barrier, found, who):
    """``raxss fit`` again and again, with a seed of its own, by which a model tells whose it is."""
    from raxss.cli import app

    for number in range(n_rounds):
        barrier.wait(120)
        arguments = [
            "fit", root / "manifest.csv", "--out", root / f"model-{number}", "--window-length", 128, "--stride", 64,
            "--max-epochs", 1, "--device", "cpu", "--seed", who, "--config", root / "small.toml",
        ]  # fmt: skip
        done = CliRunner().invoke(app, [str(argument) for argument in arguments])
        found.put((number, {who: "done" if done.exit_code == 0 else str(done.exception)}))


def write_manifest(folder, series):
    rows = ["path,label,group"]
    for item in series:
        np.savez(folder / f"{item.name}.npz", samples=item.samples, rate=item.rate)
        rows.append(f"{item.name}.npz,{item.label},{item.name}")
    (folder / "manifest.csv").write_text("\n".join(rows) + "\n")


@pytest.mark.parametrize("n_rounds", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_two_fits_of_one_model_at_once(tmp_path, n_rounds):
    from raxss import RAxSSClassifier
    from raxss.data.datasets import load_synthetic

    write_manifest(tmp_path, load_synthetic(8))
    (tmp_path / "small.toml").write_text('[backbone]\nbackbone = "dlinear"\n')
    outcomes = rounds_of(fit_in_rounds, n_rounds, tmp_path, n_rounds)
    for number, some in enumerate(outcomes):
        (winner,) = [who for who, outcome in some.items() if outcome == "done"]
        error = re.escape(f"'model-{number}'") + " (is being written by another raxss process|exists already)"
        assert re.search(error, some[1 - winner]), some
        assert RAxSSClassifier.from_pretrained(tmp_path / f"model-{number}").seed_ == winner
    left = [name for name in names(tmp_path) if not name.endswith(".npz")]
    assert left == sorted(["manifest.csv", "small.toml", *(f"model-{number}" for number in range(n_rounds))])
    met = sum("being written" in outcome for some in outcomes for outcome in some.values())
    assert met > (25 if n_rounds == 30 else 0)


# Every command ------------------------------------------------------------------------------------------------

STUDY = """
systems = ["sss"]
seeds = [1]
training = { max_epochs = 1 }
[dataset]
data = "synthetic"
windows = { window_length = 128, stride = 64 }
"""

#: Commands that write, with arguments that would fail later or take long: the lock is checked first.
COMMANDS = {
    "fit": ["fit", "no-such-data", "--out", "out"],
    "prepare": ["prepare", "no-such-data", "--out", "out"],
    "split": ["split", "no-such-data", "--out", "out.json"],
    "predict": ["predict", "no-such-model", "x.edf", "--out", "out.csv"],
    "predict with an engine": ["predict", "no-such-model", "x.edf", "--out", "out.csv", "--engine", "local"],
    "explain to a folder": ["explain", "no-such-model", "x.edf", "--out", "out"],
    "explain to a page": ["explain", "no-such-model", "x.edf", "--out", "out.html"],
    "faithfulness of a model": ["faithfulness", "no-such-model", "x.edf", "--out", "out"],
    "faithfulness of a study": ["faithfulness", "study.toml", "--out", "out"],
    "faithfulness of controls": ["faithfulness", "--out", "out"],
    "table": ["table", "study.toml", "--out", "out"],
    "analyse": ["analyse", "coverage", "study.toml", "--out", "out"],
    "reweigh": ["reweigh", "study.toml", "--out", "out"],
    "robustness": ["robustness", "study.toml", "--out", "out"],
    "results": ["results", "out"],
    "demo": ["demo", "--out", "out"],
    "download": ["datasets", "download", "ds003029", "--root", "data", "--base", "http://127.0.0.1:9/x"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_at_once_that_its_output_is_being_written(
    tmp_path, in_a_thread, monkeypatch, command
):
    from raxss.cli import app

    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY)
    arguments = COMMANDS[command]
    held = next((argument for argument in arguments if argument.startswith("out")), "data/ds003029")
    if command in ("results", "download"):
        Path(held).mkdir(parents=True)
    in_a_thread(Path(held))
    before = tree(tmp_path)
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, OutputInUseError), (done.exception, done.output)
    assert f"{Path(held).name!r} is being written by another thread of this process" in str(done.exception)
    assert tree(tmp_path).keys() == before.keys()


def tree(folder):
    """Every file and folder with its content and time of change."""
    return {
        str(item.relative_to(folder)): (
            item.read_bytes() if item.is_file() else None,
            item.lstat().st_mtime_ns,
        )
        for item in sorted(folder.rglob("*"))
    }


def test_every_command_that_has_an_output_is_in_this_table():
    from typer.main import get_command

    from raxss.cli import app

    with_output = {
        name
        for name, command in get_command(app).commands.items()
        if any(param.name in ("out", "bids_derivatives") for param in command.params)
    }
    assert with_output | {"results", "datasets"} == {arguments[0] for arguments in COMMANDS.values()}


# From Python --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    from raxss import RAxSSClassifier
    from raxss.data.datasets import load_synthetic

    series = load_synthetic(8)
    model = RAxSSClassifier(
        "dlinear", window_length=128, stride=64, max_epochs=1, random_state=0, device="cpu"
    )
    return model.fit(series), series


def savers(fitted, folder):
    """What writes an output from Python: its path, and the call."""
    from raxss.data.splits import split_series
    from raxss.explain import report_of

    model, series = fitted
    evidence = model.explain(series[0])
    report = report_of([evidence], name="a", model={})
    split = split_series(series, seed=0)
    return {
        "model": (folder / "model", partial(model.save_pretrained, folder / "model")),
        "evidence": (folder / evidence.name, partial(evidence.save, folder, figures=False)),
        "report": (folder / "a.html", partial(report.save, folder / "a.html")),
        "split": (folder / "s.json", partial(split.save, folder / "s.json", series.names)),
    }


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("what", ["model", "evidence", "report", "split"])
def test_outputs_from_python_are_held_too(fitted, tmp_path, in_a_thread, what, overwrite):
    place, save = savers(fitted, tmp_path)[what]
    in_a_thread(place)
    with pytest.raises(OutputInUseError, match=re.escape(repr(place.name))):
        save(overwrite=overwrite)
    assert names(tmp_path) == [f".{place.name}.lock"]


def test_a_checkpoint_is_held_while_training(fitted, tmp_path, in_a_thread):
    from sklearn.base import clone

    model, series = fitted
    in_a_thread(tmp_path / "c.checkpoint")
    with pytest.raises(OutputInUseError, match=r"'c\.checkpoint'"):
        clone(model).fit(series, checkpoint=tmp_path / "c.checkpoint")
    assert names(tmp_path) == [".c.checkpoint.lock"]


# Commands that only look --------------------------------------------------------------------------------------


def test_commands_that_only_look_write_nothing(fitted, tmp_path, monkeypatch):
    from raxss.cli import app
    from raxss.estimator.persistence import describe_model
    from raxss.explain import report_of
    from raxss.explain.findings import model_facts

    model, series = fitted
    write_manifest(tmp_path, series)
    model.save_pretrained(tmp_path / "model")
    name = series[0].name
    about = model_facts(describe_model(model))
    report_of([model.explain(series[0])], name=name, model=about).save(tmp_path / "report.html")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAXSS_DATA", str(tmp_path))
    before = tree(tmp_path)
    for command in (
        ["datasets"],
        ["datasets", "--json"],
        ["datasets", "summary", "sample"],
        ["check", ".", f"{name}.npz"],
        ["audit-split", "manifest.csv", "--model", "model"],
        ["verify", "report.html", "model", f"{name}.npz", "--device", "cpu"],
    ):
        done = CliRunner().invoke(app, command)
        assert done.output, (command, done.exception)
        assert tree(tmp_path) == before, command
