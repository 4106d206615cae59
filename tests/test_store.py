"""The store of partial results: whole or absent, resumed after a kill, also where earlier versions left off."""

import ast
import json
import logging
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import raxss
from raxss._core.atomic import canonical_hash
from raxss._core.bounded import read_json
from raxss._core.store import Store, computed_once, sealed, unsealed, write_sealed
from raxss.errors import DataError, OutputError

KEY = canonical_hash({"model": "m", "file": "a"})


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path, format="toy 1")


def test_a_part_is_computed_once(store):
    calls = []

    def compute():
        calls.append(1)
        return {"rows": [np.float64(0.5), np.nan], "n": np.int64(3)}

    assert store.read("a", KEY) is None
    first = store.get("a", KEY, compute)
    assert first == store.get("a", KEY, compute) == store.read("a", KEY) == store.require("a", KEY)
    assert first == {"format": "toy 1", "key": KEY, "rows": [0.5, None], "n": 3}
    assert len(calls) == 1
    assert [file.name for file in store.folder.iterdir()] == ["a.json"]


def test_a_part_of_other_inputs_counts_as_missing_and_is_replaced(store, caplog):
    store.write("a", KEY, {"rows": [1]})
    assert store.read("a", "another") is None
    with pytest.raises(DataError, match=r"the part 'a\.json' cannot be read \(it has another key\)"):
        store.require("a", "another")
    assert store.get("a", "another", lambda: {"rows": [2]})["rows"] == [2]
    assert store.read("a", KEY) is None
    assert caplog.text == ""  # other inputs are no damage
    assert Store(store.folder, format="toy 2").read("a", "another") is None


def test_no_changed_byte_of_a_part_goes_unseen(store, rng, caplog):
    store.write("a", KEY, {"rows": list(range(20)), "text": "ü"})
    whole = store.path("a").read_bytes()
    body = json.loads(whole)
    for place in rng.integers(0, len(whole), size=60):
        damaged = bytearray(whole)
        damaged[place] ^= int(rng.integers(1, 256))
        store.path("a").write_bytes(damaged)
        with caplog.at_level(logging.ERROR, logger="raxss"):
            found = store.read("a", KEY)
        if found is not None:  # white space between values
            assert json.loads(damaged) == body
    for length in (0, 1, len(whole) // 2, len(whole) - 3):
        store.path("a").write_bytes(whole[:length])
        assert store.read("a", KEY) is None
        assert "the part a.json is damaged" in caplog.text
        with pytest.raises(DataError, match=r"'a\.json' cannot be read .*cut short or changed"):
            store.require("a", KEY)
        caplog.clear()
    store.path("a").write_bytes(whole)
    assert store.read("a", KEY) is not None


@pytest.mark.parametrize("content", ["[]", "3", "null", '"text"', "{}", '{"seal": 1}', "[" * 10_000])
def test_json_that_is_no_part_is_damage(store, content):
    store.path("a").write_text(content)
    assert store.read("a", KEY) is None
    assert computed_once(store.path("a"), KEY, lambda: 5) == 5


def test_an_unwritable_place_is_an_output_error_with_the_advice_of_the_store(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for flushed in (True, False):
        with pytest.raises(OutputError, match="'file'"):
            Store(tmp_path / "file", flushed=flushed).write("a", KEY, {})
    (tmp_path / "a.json").mkdir()
    with pytest.raises(OutputError, match=r"cannot write 'a\.json': .*\. Make room first"):
        Store(tmp_path, flushed=False, advice="Make room first").write("a", KEY, {})
    assert [file.name for file in tmp_path.glob(".*")] == []


def test_files_beside_parts_are_kept_or_removed_together(store):
    for name in ("a", "b"):
        store.write(name, KEY, {})
        with store.file(f"{name}.npy") as temporary:
            temporary.write_bytes(b"samples")
    (store.folder / ".c.npy.host-1-ab.partial").write_bytes(b"half")
    store.keep_only({"a.json", "a.npy"})
    assert sorted(file.name for file in store.folder.iterdir()) == ["a.json", "a.npy"]


KILLED = """
import os, signal, sys
from pathlib import Path
from raxss._core.store import Store

n, calls = 0, 0
def deadly(real):
    def call(*arguments, **options):
        global calls
        calls += 1
        if calls == n:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    return call

for child in range(1, 40):  # one process a number of calls survived, so that modules are loaded once
    process = os.fork()
    if not process:
        n = child
        for name in ("open", "replace", "fsync", "unlink", "mkdir"):
            setattr(os, name, deadly(getattr(os, name)))
        store = Store(Path(sys.argv[1]) / str(child), format="toy 1", flushed=child % 2 == 0)
        for part in "abc":
            store.get(part, f"key {part}", lambda: {"rows": [part] * 1000})
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert ended in (0, -signal.SIGKILL), ended
    print(child, ended)
"""


def test_a_run_killed_before_any_change_of_the_disk_is_resumed(tmp_path):
    command = [sys.executable, "-c", KILLED, tmp_path]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    ended = dict(line.split() for line in run.stdout.splitlines())
    assert list(ended.values()).count("-9") >= 6
    stages = set()
    for child in ended:
        store = Store(tmp_path / child, format="toy 1")
        there = [part for part in "abc" if store.read(part, f"key {part}") is not None]
        stages.add(len(there))
        assert there == list("abc")[: len(there)]  # none torn, none skipped
        changed = {part: store.path(part).stat().st_mtime_ns for part in there}
        for part in "abc":
            assert (
                store.get(part, f"key {part}", lambda part=part: {"rows": [part] * 1000})["rows"][0] == part
            )
        assert {part: store.path(part).stat().st_mtime_ns for part in there} == changed  # not written again
    assert stages >= {0, 1, 2, 3}


def test_two_writers_of_one_part_leave_it_whole(store):
    threads = [
        threading.Thread(
            target=lambda: [store.write("a", KEY, {"rows": list(range(500))}) for _ in range(10)]
        )
        for _ in range(4)
    ]
    seen = []
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        seen.append(store.read("a", KEY))
    for thread in threads:
        thread.join()
    assert {len(item["rows"]) for item in [*seen, store.read("a", KEY)] if item is not None} == {500}
    assert [file.name for file in store.folder.iterdir()] == ["a.json"]


# --- what earlier versions wrote


def test_a_sealed_part_of_an_earlier_version_is_read(tmp_path):
    """As batch prediction and the cells of studies were written: JSON with format, key and seal."""
    rows = [{"name": "a", "probabilities": [0.25]}]
    content = {"format": "raxss part 3", "key": KEY, "rows": rows, "warnings": []}
    seal = canonical_hash(content)
    (tmp_path / f"{KEY}.json").write_text(json.dumps({**content, "seal": seal}, indent=2) + "\n")
    store = Store(tmp_path, format="raxss part 3")
    assert store.read(KEY, KEY) == content
    before = (tmp_path / f"{KEY}.json").read_bytes()
    store.write(KEY, KEY, {"rows": content["rows"], "warnings": []})
    assert (tmp_path / f"{KEY}.json").read_bytes() == before


def test_a_value_without_a_seal_is_taken_as_it_was_before(tmp_path):
    place = tmp_path / "stability" / "0001-a.json"
    place.parent.mkdir()
    place.write_text(json.dumps({"answer": [0.5]}))
    assert computed_once(place, "k", lambda: [0.7]) == [0.5]
    place.write_text('{"answer": [0.5')
    assert computed_once(place, "k", lambda: (0.7, np.inf)) == [0.7, None]
    assert json.loads(place.read_text())["answer"] == [0.7, None]  # which earlier versions read too
    assert computed_once(place, "other", lambda: [0.9]) == [0.9]
    assert computed_once(tmp_path / "0001-a.b.json", "k", lambda: 1) == 1  # a name with dots keeps them
    assert (tmp_path / "0001-a.b.json").exists()


def test_sealed_json_is_read_back_or_refused(tmp_path):
    place = tmp_path / "a.json"
    write_sealed(place, {"format": "toy 1", "numbers": np.arange(3) / 2}, indent=None)
    assert place.read_text().count("\n") == 1
    content = read_json(place)
    assert unsealed(content, "toy 1") == {"format": "toy 1", "numbers": [0.0, 0.5, 1.0]}
    assert content == sealed(unsealed(content))
    with pytest.raises(ValueError, match="does not fit its seal"):
        unsealed(content | {"numbers": [9]})
    with pytest.raises(ValueError, match="its format is 'toy 1', needed is 'toy 2'"):
        unsealed(content, "toy 2")


# --- one lock


def test_locks_of_the_system_are_taken_in_one_module():
    """All others hold `output_lock`."""
    found = set()
    for file in Path(raxss.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = (
                [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            )
            taken = isinstance(node, ast.Attribute) and node.attr in ("O_EXCL", "flock", "lockf", "locking")
            if taken or {"fcntl", "msvcrt", "filelock"} & set(names):
                found.add(file.name)
    assert found == {"outputs.py"}
