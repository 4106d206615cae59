"""Over two hundred files and trees that are broken on purpose: every verdict, and nothing read that is wrong.

The corpus is in tests/corpus, one module a format; its cases know what must be found.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import raxss
from corpus import all_cases
from corpus import edf as edf_corpus
from raxss.data.confinement import root_of
from raxss.data.formats.opening import UNEXPECTED, open_recording
from raxss.data.inspection import inspect_file, inspect_paths
from raxss.errors import RecordingError

CASES = {case.name: case for case in all_cases()}
BOMBS = [name for name, case in CASES.items() if "bomb" in case.tags]
ESCAPES = [name for name, case in CASES.items() if "escape" in case.tags]
READABLE = [name for name, case in CASES.items() if case.samples is not None]
# The goals are 1 s and 256 MB; a slow machine gets three times as long.
SECONDS_FOR_A_BOMB = 3.0  # of its own work: how long a busy machine lets it wait is another matter
BYTES_FOR_A_BOMB = 256 * 2**20
SECONDS_FOR_ANYTHING = 5.0


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """Every case in a folder of its own: name -> what to pass to raxss check."""
    base = tmp_path_factory.mktemp("corpus")
    paths = {}
    for name, case in CASES.items():
        (base / name).mkdir()
        paths[name] = case.write(base / name)
    return paths


def worst(verdicts):
    return next(item for item in ("refused", "warning", "ok") if item in verdicts)


def test_the_corpus_is_large_and_a_good_share_must_be_accepted():
    """A tool that refused everything would pass otherwise."""
    assert len(CASES) == len(all_cases())  # no two of one name
    least = {"edf": 100, "bv": 40, "wfdb": 30, "arrays": 20, "bids": 30}
    for format_name, count in least.items():
        assert sum(name.startswith(f"{format_name}-") for name in CASES) >= count, format_name
    verdicts = [case.verdict for case in CASES.values()]
    assert (verdicts.count("ok") >= 40, verdicts.count("warning") >= 60) == (True, True)
    assert (len(BOMBS) >= 15, len(ESCAPES) >= 20) == (True, True)


@pytest.mark.parametrize("name", CASES)
def test_every_verdict_is_right(name, written):
    case, begun = CASES[name], time.monotonic()
    inspections = inspect_paths([written[name]], signals=True)
    assert time.monotonic() - begun < SECONDS_FOR_ANYTHING
    problems = [problem for item in inspections for problem in item.problems]
    assert worst([item.verdict for item in inspections]) == case.verdict, problems
    assert set(case.codes) <= {problem.code for problem in problems}, problems
    assert not any(UNEXPECTED in problem.message for problem in problems), problems


@pytest.mark.parametrize("name", READABLE)
def test_what_is_accepted_decodes_to_what_was_written(name, written):
    case = CASES[name]
    with open_recording(_recording_in(written[name])) as recording:
        if case.names is not None:
            assert tuple(channel.name for channel in recording.channels) == case.names
        if case.rates is not None:
            assert_allclose([channel.rate for channel in recording.channels], case.rates, rtol=1e-9)
        if case.starts is not None:
            assert_allclose([item.start_seconds for item in recording.segments], case.starts, atol=1e-9)
        for place, expected in case.samples.items():
            found = [recording.read([place], segment=index)[0] for index in range(len(recording.segments))]
            part = recording.read([place], segment=len(found) - 1, start=3, stop=40)[0]
            assert_array_equal(part, found[-1][3:40])
            size = np.abs(expected).max()
            assert_allclose(np.concatenate(found), expected, rtol=1e-6, atol=1e-6 * size)


def _recording_in(path):
    """The file itself, or the one recording of a tree."""
    (file,) = (found for found in map(Path, (item.path for item in inspect_paths([path]))) if found.is_file())
    return file


def test_what_is_refused_is_never_opened(written):
    """Trees are left out: a recording may be sound and refused for what lies around it."""
    refused = {
        name: path
        for name, path in written.items()
        if not path.is_dir() and inspect_file(path).verdict == "refused"
    }
    assert len(refused) > 150
    for name, path in refused.items():
        with pytest.raises(RecordingError, match="|".join(CASES[name].codes)):
            open_recording(path)


def test_the_command_says_the_same_of_the_whole_corpus_in_one_run(written):
    paths = [str(path) for path in written.values()]
    done = _check(*paths, "--json")
    assert done.returncode == 1
    assert done.stderr == ""
    found = json.loads(done.stdout)
    for name, path in written.items():
        mine = [item for item in found if item["path"] == str(path) or item["path"].startswith(f"{path}/")]
        assert worst([item["verdict"] for item in mine]) == CASES[name].verdict, name
        codes = {problem["code"] for item in mine for problem in item["problems"]}
        assert set(CASES[name].codes) <= codes, name


def test_no_patient_and_no_folder_is_ever_named(written):
    """Files have a patient, dates and texts of events; messages have names of files and nothing before them."""
    found = inspect_paths(written.values(), signals=True)
    messages = [problem.message for inspection in found for problem in inspection.problems]
    assert len(messages) > 150
    base = str(next(iter(written.values())).parents[1])
    secrets = (
        "Haagse",
        "Harry",
        "Canary",
        "MCH-0234567",
        "1951",
        "02.03.02",
        "20200102",
        "Jane",
        "SECRET",
        base,
    )
    for secret in secrets:
        assert not [message for message in messages if secret in message]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_at_once_and_in_little_memory(name, written, idle_bytes):
    assert sum(file.stat().st_size for file in _files(written[name])) <= 10 * 2**20
    code, peak, seconds = _measured(str(written[name]))
    assert seconds < SECONDS_FOR_A_BOMB
    assert code == 1
    assert peak - idle_bytes < BYTES_FOR_A_BOMB


@pytest.fixture(scope="session")
def idle_bytes(written):
    """What the command takes for a file of two kilobytes."""
    code, peak, _ = _measured(str(written["edf-empty"]))
    assert code == 1
    return peak


def _files(path):
    folder = path if path.is_dir() else path.parent
    return [file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]


# The kernel's own peak of this process alone: what getrusage tells begins at the size of the parent.
MEASURED = """
import sys
from raxss.cli import main
try:
    main()
finally:
    with open("/proc/self/status") as status:
        print(next(line for line in status if line.startswith("VmHWM")), file=sys.stderr)
"""


def _measured(path):
    """Exit code, peak memory in bytes and seconds of work of ``raxss check``."""
    command = [sys.executable, "-c", MEASURED, "check", path, "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.returncode, 1024 * int(done.stderr.split()[1]), seconds


# Every path that Python opens is noted down, by open() and os.open() alike.
WATCHED = """
import json, os, sys
opened, where = [], sys.argv.pop(1)
def note(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        opened.append(os.path.realpath(os.fsdecode(arguments[0])))
sys.addaudithook(note)
from raxss.cli import main
try:
    main()
finally:
    seen = list(opened)
    with open(where, "w") as file:
        json.dump(seen, file)
"""


def test_no_escape_opens_a_file_outside(written, tmp_path):
    arguments = [str(written[name]) for name in ESCAPES]
    command = [sys.executable, "-c", WATCHED, str(tmp_path / "opened.json"), "check", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout)
    assert edf_corpus.SECRET.decode() not in done.stdout + done.stderr
    opened = [Path(name) for name in json.loads((tmp_path / "opened.json").read_text())]
    roots = [Path(os.path.realpath(p if p.is_dir() else root_of(p))) for p in map(Path, arguments)]
    own = [Path(sys.prefix), Path(sys.base_prefix), Path(raxss.__file__).parent]
    allowed = [*roots, *(Path(os.path.realpath(item)) for item in own)]
    strangers = [item for item in opened if not any(item.is_relative_to(place) for place in allowed)]
    assert strangers == []


def test_the_hook_of_the_test_above_sees_a_file_outside(tmp_path):
    (tmp_path / "a.edf").write_bytes(edf_corpus.plain().bytes())
    command = [sys.executable, "-c", WATCHED, str(tmp_path / "opened.json"), "check", str(tmp_path / "a.edf")]
    subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert str((tmp_path / "a.edf").resolve()) in json.loads((tmp_path / "opened.json").read_text())


def _check(*arguments):
    command = [sys.executable, "-m", "raxss", "check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)
