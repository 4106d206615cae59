"""Files and folders that appear whole or not at all, also when the run is killed."""

import errno
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from raxss._core import atomic as storage
from raxss.errors import OutputError


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def write_and_fail(place, error):
    with place as temporary:
        (temporary / "half" if temporary.is_dir() else temporary).write_text("half of it")
        raise error


# Several files ------------------------------------------------------------------------------------------------

FILL = """
import os, signal, sys
from pathlib import Path
from raxss._core import atomic as storage
calls = int(sys.argv[2])
def dying(function):
    def counted(*arguments, **options):
        global calls
        calls -= 1
        if calls < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return counted
for name in ("mkdir", "rename", "replace", "fsync", "rmdir", "unlink"):
    setattr(os, name, dying(getattr(os, name)))
with storage.whole_files(sys.argv[1], "run-1") as place:
    for file in ("sub-01/a.tsv", "sub-01/a.json", "top.json"):
        (place / file).parent.mkdir(exist_ok=True)
        (place / file).write_text("new")
"""


def test_files_that_belong_together_appear_together_wherever_a_run_is_killed(tmp_path):
    """Killed before every call that changes the disk; after it, and after the next run has looked."""
    seen = set()
    for n_calls in range(60):
        root = tmp_path / str(n_calls)
        (root / "sub-01").mkdir(parents=True)
        for file in ("sub-01/a.tsv", "sub-01/a.json", "top.json", "sub-01/other.tsv"):
            (root / file).write_text("old")
        done = subprocess.run([sys.executable, "-c", FILL, root, str(n_calls)], check=False)
        storage.finish_files(root)
        texts = {(root / file).read_text() for file in ("sub-01/a.tsv", "sub-01/a.json", "top.json")}
        assert len(texts) == 1, n_calls
        assert (root / "sub-01" / "other.tsv").read_text() == "old"
        assert not list(root.glob(".*-ready"))
        seen |= texts
        if done.returncode == 0:
            break
    assert done.returncode == 0
    assert n_calls > 8
    assert seen == {"old", "new"}
    assert names(root) == ["sub-01", "top.json"]


# One file -----------------------------------------------------------------------------------------------------


def test_readers_see_the_old_file_until_the_block_ends_and_nothing_beside_it(tmp_path):
    path = tmp_path / "a" / "b" / "result.json"
    storage.write_text(path, "größer")
    with storage.whole_file(path) as temporary:
        temporary.write_text("new")
        assert path.read_bytes() == "größer".encode()
        assert temporary.parent == path.parent  # another folder may be another disk, where renaming copies
    assert path.read_text() == "new"
    assert names(path.parent) == ["result.json"]


@pytest.mark.skipif(sys.platform == "win32", reason="limits on file sizes are POSIX")
def test_a_disk_without_room_is_an_output_error_and_the_old_file_stays(tmp_path):
    storage.write_text(tmp_path / "kept.txt", "old")
    script = """
        import errno, resource, signal, sys
        from raxss.errors import OutputError
        from raxss._core.atomic import write_bytes
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write over the limit then fails with an OSError
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            write_bytes(sys.argv[1], b"x" * 5000)
        except OutputError as error:
            assert error.errno == errno.EFBIG and "'kept.txt'" in str(error), error
        else:
            sys.exit("nothing was raised")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), tmp_path / "kept.txt"], check=True)
    assert (tmp_path / "kept.txt").read_text() == "old"
    assert names(tmp_path) == ["kept.txt"]


# Places that cannot be written --------------------------------------------------------------------------------

WRITERS = {
    "file": lambda path: storage.write_text(path, "text"),
    "folder": lambda path: storage.whole_folder(path).__enter__(),
    "check": storage.check_writable,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_place_below_a_file_or_of_a_folder_is_refused_by_name(tmp_path, writer):
    (tmp_path / "a file").write_text("in the way")
    with pytest.raises(OutputError, match=r"'a file'.*not a folder"):
        WRITERS[writer](tmp_path / "a file" / "out")
    with pytest.raises(OutputError, match=r"'deeper'.*a file.*Not a directory"):
        WRITERS[writer](tmp_path / "a file" / "deeper" / "out")
    assert (tmp_path / "a file").read_text() == "in the way"
    storage.check_writable(tmp_path / "out.json")  # leaves nothing
    (tmp_path / "taken").mkdir()
    with pytest.raises(OutputError, match="'taken'"):
        storage.write_text(tmp_path / "taken", "text")
    assert names(tmp_path) == ["a file", "taken"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that nobody can write")
@pytest.mark.parametrize("writer", WRITERS)
def test_an_unwritable_folder_is_refused_by_name(writer):
    with pytest.raises(OutputError, match="'out' in the folder '/proc'") as caught:
        WRITERS[writer](Path("/proc/out"))
    assert isinstance(caught.value, OSError)
    assert caught.value.errno in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS)


# One folder ---------------------------------------------------------------------------------------------------


def fill(path, content, **options):
    with storage.whole_folder(path, **options) as place:
        (place / "inner").mkdir()
        (place / "inner" / "a.txt").write_text(content)


def test_a_folder_appears_whole_and_is_left_as_it_is_by_others(tmp_path):
    (tmp_path / "deep" / "model").mkdir(parents=True)  # an empty folder is no obstacle
    fill(tmp_path / "deep" / "model", "one")
    with pytest.raises(OutputError, match=r"'model' exists already.*--overwrite"):
        fill(tmp_path / "deep" / "model", "two")
    assert names(tmp_path / "deep") == ["model"]
    assert names(tmp_path / "deep" / "model") == [".raxss", "inner"]
    assert (tmp_path / "deep" / "model" / "inner" / "a.txt").read_text() == "one"
    assert (tmp_path / "deep" / "model").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("can_exchange", [True, False])
def test_overwriting_replaces_the_whole_folder(tmp_path, monkeypatch, can_exchange):
    if not can_exchange:
        monkeypatch.setattr(storage.ctypes, "CDLL", lambda *arguments, **options: object())
    fill(tmp_path / "model", "one")
    (tmp_path / "model" / "left over").write_text("of the old one")
    fill(tmp_path / "model", "two", overwrite=True)
    assert names(tmp_path / "model") == [".raxss", "inner"]
    assert (tmp_path / "model" / "inner" / "a.txt").read_text() == "two"
    assert names(tmp_path) == ["model"]


def test_overwriting_a_file_or_a_link_by_a_folder_leaves_nothing_beside_it(tmp_path):
    (tmp_path / "file").write_text("old")
    fill(tmp_path / "file", "new", overwrite=True)
    fill(tmp_path / "target", "old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    fill(tmp_path / "link", "new", overwrite=True)
    assert names(tmp_path) == ["file", "link", "target"]
    assert (tmp_path / "file" / "inner" / "a.txt").read_text() == "new"
    assert (tmp_path / "link" / "inner" / "a.txt").read_text() == "new"
    assert (tmp_path / "target" / "inner" / "a.txt").read_text() == "old"


@pytest.mark.parametrize("error", [RuntimeError("half"), KeyboardInterrupt()])
def test_a_block_that_fails_leaves_the_old_content_and_no_partial(tmp_path, error):
    fill(tmp_path / "model", "one")
    storage.write_text(tmp_path / "result.json", "old")
    for output in (
        storage.whole_folder(tmp_path / "model", overwrite=True),
        storage.whole_file(tmp_path / "result.json"),
        storage.whole_files(tmp_path, "several"),
    ):
        with pytest.raises(type(error)):
            write_and_fail(output, error)
    assert (tmp_path / "model" / "inner" / "a.txt").read_text() == "one"
    assert (tmp_path / "result.json").read_text() == "old"
    assert names(tmp_path) == ["model", "result.json"]


# Content ------------------------------------------------------------------------------------------------------


def test_json_has_null_where_a_number_is_not_finite(tmp_path):
    value = {"inside": [np.inf, (1, -np.inf)], "array": np.array([[1.5, np.nan]]), "number": np.float32(0.5)}
    value |= {"count": np.int64(3), "flag": np.bool_(True), "name": "ü", 7: None}
    storage.write_json(tmp_path / "a.json", value)
    text = (tmp_path / "a.json").read_text("utf-8")
    assert "ü" in text
    plain = {"inside": [None, [1, None]], "array": [[1.5, None]], "number": 0.5}
    plain |= {"count": 3, "flag": True, "name": "ü", "7": None}
    assert json.loads(text, parse_constant=lambda name: pytest.fail(f"JSON holds {name}")) == plain
    with pytest.raises(TypeError, match="Path"):
        storage.write_json(tmp_path / "b.json", {"path": tmp_path})
    assert names(tmp_path) == ["a.json"]


KILLED = """
    import os, signal, sys
    from raxss._core.atomic import whole_file, whole_folder
    with whole_folder(sys.argv[1], overwrite=True) as place, whole_file(sys.argv[2]) as file:
        (place / "half").write_text("of it")
        file.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_leaves_the_old_content_and_what_it_left_is_cleared_by_the_next_run(tmp_path):
    fill(tmp_path / "result", "old")
    storage.write_text(tmp_path / "table.csv", "old")
    arguments = [str(tmp_path / "result"), str(tmp_path / "table.csv")]
    subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), *arguments], check=False)
    assert len(names(tmp_path)) == 5  # with two temporary ones, and the lock file of the folder
    assert names(tmp_path / "result") == [".raxss", "inner"]
    assert (tmp_path / "result" / "inner" / "a.txt").read_text() == "old"
    assert (tmp_path / "table.csv").read_text() == "old"
    living = storage._place_beside(tmp_path / "result")  # another writer's, alive
    living.mkdir()
    with storage.whole_folder(tmp_path / "result", overwrite=True) as place:
        partial = {name for name in names(tmp_path) if name.startswith(".result")}
        assert partial == {living.name, place.name, ".result.lock"}
        storage.write_text(tmp_path / "table.csv", "whole")
    assert names(tmp_path) == [living.name, "result", "table.csv"]
    assert names(tmp_path / "result") == [".raxss"]


# Tables -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
@pytest.mark.parametrize(("reader", "starts_some"), [("read_parquet", False), ("pd.read_parquet", True)])
def test_reading_a_table_starts_no_thread_that_could_abort_the_end_of_the_process(
    tmp_path, reader, starts_some
):
    pd.DataFrame({"a": np.arange(9), "b": list("abcdefghi")}).to_parquet(tmp_path / "a.parquet")
    script = f"""
        import os, sys
        import pandas as pd, pyarrow.parquet
        from raxss._core.atomic import read_parquet
        before = len(os.listdir("/proc/self/task"))
        {reader}(sys.argv[1])
        print(len(os.listdir("/proc/self/task")) - before)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "a.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=starts_some is False)
    assert (int(done.stdout) > 0) == starts_some


def test_what_is_no_table_is_an_error_of_its_reader(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match="Parquet"):
        storage.read_parquet(tmp_path / "a.parquet")
    with pytest.raises(OSError, match=r"b\.parquet"):
        storage.read_parquet(tmp_path / "b.parquet")
