"""``raxss check``, run as a user runs it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from corpus import edf as corpus
from raxss.cli import app
from raxss.cli.check import lines_of
from raxss.data.inspection import CODES, Inspection, Problem


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder with a sound file, a doubtful one and a broken one; the working folder is around it."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.edf").write_bytes(corpus.plain().bytes())
    (folder / "b.edf").write_bytes(corpus.one_signal(unit="").bytes())
    (folder / "c.edf").write_bytes(corpus.plain(seconds="0").bytes())
    monkeypatch.chdir(tmp_path)
    return folder


def check(*arguments):
    return CliRunner().invoke(app, ["check", *arguments])


def test_json_is_a_list_of_path_verdict_and_problems_and_nothing_else(files):
    result = check("data", "--json")
    found = json.loads(result.stdout)
    assert [item["path"] for item in found] == ["data/a.edf", "data/b.edf", "data/c.edf"]
    assert [item["verdict"] for item in found] == ["ok", "warning", "refused"]
    codes = [[problem["code"] for problem in item["problems"]] for item in found]
    assert codes == [[], ["blank-unit"], ["bad-rate"]]
    assert all(set(item) == {"path", "verdict", "problems"} for item in found)
    assert all(set(problem) == {"code", "message"} for item in found for problem in item["problems"])


def test_the_exit_code_is_1_if_anything_was_refused(files):
    assert check("data/a.edf", "data/b.edf").exit_code == 0
    assert check("data/a.edf", "data/c.edf").exit_code == 1
    assert check("data/a.edf", "data/absent.edf").exit_code == 1
    assert check().exit_code == 2


def test_a_person_reads_one_line_a_file_and_one_a_problem(files):
    lines = check("data").stdout.splitlines()
    assert lines[0] == "ok       data/a.edf"
    assert lines[1] == "warning  data/b.edf"
    assert lines[2].startswith("    blank-unit: the file has 1 channel without a unit: 'EEG Fpz-Cz' (0).")
    assert lines[3] == "refused  data/c.edf"
    assert lines[4].startswith("    bad-rate: the header says that a record lasts 0 s;")
    assert len(lines) == 5


def test_signals_are_read_by_default(files):
    flat = corpus.plain(signals=(corpus.Signal(low=7, high=8), corpus.TWO[1]))
    (files / "flat.edf").write_bytes(flat.bytes())
    assert json.loads(check("data/flat.edf", "--json").stdout)[0]["problems"][0]["code"] == "flat"
    assert json.loads(check("data/flat.edf", "--json", "--no-signals").stdout)[0]["verdict"] == "ok"


def test_control_characters_never_reach_the_terminal(tmp_path):
    path = tmp_path / "a\x1b[2J\n.edf"
    path.write_bytes(corpus.one_signal(label=b"C3\x1b[31m", unit="").bytes())
    out = check(str(path)).stdout
    assert "\x1b" not in out
    assert "a?[2J?.edf" in out
    assert len(out.splitlines()) == 3  # the file, its unit, its characters
    lines = lines_of(Inspection("x", (Problem("flat", "one\ntwo\x07"),)))
    assert lines == ["warning  x", "    flat: one?two?"]


def test_names_that_are_not_utf_8_are_printed_somehow(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/n\xffght.edf")
    with open(path, "wb") as file:
        file.write(corpus.plain().bytes())
    command = [sys.executable, "-m", "raxss", "check", path]
    for arguments in ([], ["--json"]):
        done = subprocess.run([*command, *arguments], capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert b"ght.edf" in done.stdout


def test_a_folder_called_tilde_is_not_the_home(tmp_path, monkeypatch):
    for folder, low in (("~", 7), ("home", -5000)):
        (tmp_path / folder).mkdir()
        file = corpus.plain(signals=(corpus.Signal(low=low, high=abs(low) + 1), corpus.TWO[1]), seconds="2")
        (tmp_path / folder / "a.edf").write_bytes(file.bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert "flat: 'a.edf' has 1 channel" in check("~/a.edf").stdout


def test_headers_are_checked_without_any_heavy_package(files):
    """Interpreter and all: a refusal takes no second."""
    script = (
        "import sys; from raxss.cli import app\n"
        "try: app(['check', 'data/c.edf'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('mne', 'pandas', 'torch', 'edfio', 'wfdb', 'scipy') if name in sys.modules])"
    )
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
    assert time.monotonic() - begun < 3  # the goal is 1


def test_every_code_is_explained_in_the_guide():
    guide = (Path(__file__).parents[1] / "docs" / "data.md").read_text()
    for code, (severity, meaning) in CODES.items():
        assert f"| {severity} | `{code}` | {meaning} |" in guide, code
    assert guide.count("\n| refused | `") + guide.count("\n| warning | `") == len(CODES)
