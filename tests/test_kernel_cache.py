"""Compiled kernels on disk: private, checked before use, and compiled again whenever anything is wrong."""

import grp
import hashlib
import importlib
import importlib.util
import logging
import os
import pickle
import pkgutil
import pwd
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core.caching import NullCache
from numba.core.dispatcher import Dispatcher

import raxss
from raxss._core import kernel_cache
from raxss._core.kernel_cache import (
    SUFFIX,
    KernelCache,
    cached,
    kernel_folder,
    private_folder,
    source_folders,
    why_not_private,
)

X = np.linspace(-1.0, 1.0, 101)
needs_modes = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="owners and modes are POSIX")


def plain(x):
    total = 0.0
    for value in x:
        total += value * value
    return total


def fresh(function=plain):
    """A dispatcher that has compiled nothing, as in a new process."""
    return cached(numba.njit(function))


def run_fresh(function=plain):
    """The kernel's result, and whether its code came from the cache."""
    kernel = fresh(function)
    result = kernel(X)
    return result, sum(kernel.stats.cache_hits.values()) == 1


@pytest.fixture
def folder(tmp_path, monkeypatch):
    place = tmp_path / "cache" / "compiled"
    monkeypatch.setenv("RAXSS_COMPILED", str(place))
    monkeypatch.setattr(kernel_cache, "_warned", set())
    return place


def entries(folder):
    return sorted(folder.glob(f"*{SUFFIX}"))


def warnings_in(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


class Command:
    """An object whose unpickling runs a command."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return os.system, (f"touch '{self.canary}'",)


def plant(folder, canary):
    """Replace every entry by one that has the right name and the right digest, and runs a command."""
    for entry in entries(folder):
        entry.write_bytes(signed(pickle.dumps(Command(canary))))


# Keeping ------------------------------------------------------------------------------------------------------


def test_a_kernel_is_compiled_once_and_loaded_with_the_same_bits(folder):
    first, was_there = run_fresh()
    assert not was_there
    second, was_there = run_fresh()
    assert was_there
    assert first.hex() == second.hex() == plain(X).hex()
    assert len(entries(folder)) == 1
    if hasattr(os, "geteuid"):  # closed to others, also the folder that was made by the way
        modes = [place.stat().st_mode & 0o777 for place in (folder, folder.parent, *entries(folder))]
        assert modes == [0o700, 0o700, 0o600]


def test_the_folder_is_in_the_caches_folder_or_turned_off(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("RAXSS_COMPILED", "off")
    assert run_fresh() == run_fresh() == (plain(X), False)
    assert not folder.exists()
    monkeypatch.delenv("RAXSS_COMPILED")
    monkeypatch.setenv("RAXSS_CACHE", str(tmp_path / "mine"))
    assert kernel_folder() == tmp_path / "mine" / "compiled"
    monkeypatch.setenv("RAXSS_CACHE", "off")  # of the time when retrievals were kept on disk too
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert kernel_folder() == tmp_path / "xdg" / "raxss" / "compiled"


OTHERS = {
    "raxss": lambda patch: patch.setattr(kernel_cache, "__version__", "9.9"),
    "numba": lambda patch: patch.setattr(kernel_cache.numba, "__version__", "9.9"),
    "llvmlite": lambda patch: patch.setattr(kernel_cache.llvmlite, "__version__", "9.9"),
    "processor": lambda patch: patch.setattr(
        type(fresh().targetctx.codegen()), "magic_tuple", lambda self: ("x86_64", "another", "+avx1024")
    ),
    "sources": lambda patch: patch.setattr(kernel_cache, "source_digest", lambda function: "another"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_an_entry_of_another_version_processor_or_source_is_not_used(folder, what):
    run_fresh()
    with pytest.MonkeyPatch.context() as patch:
        OTHERS[what](patch)
        kernel_cache._versions.cache_clear()
        assert run_fresh() == (plain(X), False)
    kernel_cache._versions.cache_clear()
    assert len(entries(folder)) == 2
    kernel = cached(numba.njit(fastmath={"contract", "reassoc"})(plain))  # other options
    kernel(X)
    assert not kernel.stats.cache_hits


def test_a_changed_file_is_compiled_again(folder, tmp_path):
    file = tmp_path / "kernels.py"
    for factor in (2.0, 3.0):  # a constant of the module, which is no part of the function's own code
        file.write_text(f"FACTOR = {factor}\n\ndef scaled(x):\n    return FACTOR * x.sum()\n")
        spec = importlib.util.spec_from_file_location("kernels", file)
        module = importlib.util.module_from_spec(spec)
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        spec.loader.exec_module(module)
        sys.dont_write_bytecode = before
        kernel_cache._digest_of.cache_clear()
        assert fresh(module.scaled)(np.ones(4)) == 4 * factor


def test_every_kernel_of_the_package_uses_this_cache_or_none():
    found = 0
    for module in pkgutil.walk_packages(raxss.__path__, "raxss."):
        parts = module.name.split(".")
        if "triton" in module.name or parts[-1] == "__main__":
            continue
        file = importlib.util.find_spec(module.name).origin
        if "compiled" not in Path(file).read_text("utf-8"):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Dispatcher) and value.py_func.__module__.startswith("raxss."):
                found += isinstance(value._cache, KernelCache)
                assert isinstance(value._cache, KernelCache | NullCache), value
                if value.py_func.__module__ == module.name:
                    assert os.path.dirname(file) in source_folders(value.py_func)
                if (
                    value.py_func.__module__ == "raxss.method.backbones.patchtst_kernels"
                ):  # calls those of _core
                    places = [Path(place).name for place in source_folders(value.py_func)]
                    assert places == ["_core", "backbones"]
    assert found > 30


def test_any_kernel_of_a_folder_may_change_all_of_its_kernels(tmp_path):
    (tmp_path / "a.py").write_text("import numba\nCONSTANT = 1\n")
    (tmp_path / "b.py").write_text("nothing of the kind\n")
    before = kernel_cache._digest_of_kernels.__wrapped__(str(tmp_path))
    (tmp_path / "b.py").write_text("still nothing\n")
    assert kernel_cache._digest_of_kernels.__wrapped__(str(tmp_path)) == before
    (tmp_path / "a.py").write_text("import numba\nCONSTANT = 2\n")
    assert kernel_cache._digest_of_kernels.__wrapped__(str(tmp_path)) != before


def test_old_entries_make_room(folder, monkeypatch):
    run_fresh()
    old = entries(folder)[0]
    os.utime(old, (0, 0))
    monkeypatch.setattr(kernel_cache, "MAX_BYTES", int(1.5 * old.stat().st_size))
    fresh()(X.astype(np.float32))
    assert old not in entries(folder)
    assert len(entries(folder)) == 1


# Damage -------------------------------------------------------------------------------------------------------


def content_of(change):
    """A damage that changes the bytes of an entry."""
    return lambda entry: entry.write_bytes(change(entry.read_bytes()))


def flipped(content):
    changed = bytearray(content)
    for place in np.random.default_rng(69421).integers(0, len(changed), 20):
        changed[place] ^= 0x10
    return bytes(changed)


def signed(payload):
    """An entry with the right digest."""
    return hashlib.sha256(payload).digest() + payload


def replaced(make):
    """A damage that puts something else in the place of an entry."""

    def damage(entry):
        entry.unlink()
        make(entry)

    return damage


DAMAGES = {
    "empty": content_of(lambda content: b""),
    "cut": content_of(lambda content: content[: len(content) // 2]),
    "cut in the digest": content_of(lambda content: content[:10]),
    "longer": content_of(lambda content: content + b"\0"),
    "zeros": content_of(lambda content: bytes(len(content))),
    "flipped bits": content_of(flipped),
    "no pickle": content_of(lambda content: signed(b"no pickle")),
    "another object": content_of(lambda content: signed(pickle.dumps({"not": "a kernel"}))),
    "a folder": replaced(lambda entry: entry.mkdir()),
    "removed": replaced(lambda entry: None),
    "a dangling link": replaced(lambda entry: entry.symlink_to("nowhere")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_compiled_again_with_the_same_bits(folder, damage):
    expected, _ = run_fresh()
    DAMAGES[damage](entries(folder)[0])
    result, was_there = run_fresh()
    assert not was_there
    assert result.hex() == expected.hex()
    if damage != "a folder":  # nothing of ours; it stays in the way, and costs time alone
        assert run_fresh() == (expected, True)


def test_a_folder_that_is_removed_or_a_file_is_no_error(folder, caplog):
    for obstacle in (False, True):
        run_fresh()
        shutil.rmtree(folder)
        if obstacle:
            folder.write_text("in the way")
        assert run_fresh() == (plain(X), False)
    assert "is not a folder" in caplog.text


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that nobody can write")
def test_a_folder_that_cannot_be_made_is_one_warning(folder, monkeypatch, caplog):
    monkeypatch.setenv("RAXSS_COMPILED", "/proc/nothing/compiled")
    assert run_fresh() == run_fresh() == (plain(X), False)
    (message,) = warnings_in(caplog)
    assert "'/proc/nothing/compiled'" in message
    assert "RAXSS_COMPILED" in message


def test_a_full_disk_while_keeping_is_no_error(folder, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kernel_cache.os, "replace", full)
    assert run_fresh() == (plain(X), False)
    assert list(folder.iterdir()) == []


# Planted code -------------------------------------------------------------------------------------------------


def test_a_planted_entry_would_run_where_it_is_trusted(folder, tmp_path):
    """Without this the tests below could pass because the planted entries are of no use."""
    run_fresh()
    plant(folder, tmp_path / "canary")
    assert run_fresh() == (plain(X), False)
    assert (tmp_path / "canary").exists()


def behind_a_link(folder):
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.with_name("elsewhere"))


def link(entry):
    place = entry.parent.parent / entry.name
    entry.rename(place)
    entry.symlink_to(place)


def each_entry(change):
    return lambda folder: [change(entry) for entry in entries(folder)]


def give_away(path):
    os.chown(path, 12345, 12345)


#: How a folder or its entries are opened to others, and the reason in the warning (None: there is none).
OPEN_PLACES = {
    "to all": (lambda folder: folder.chmod(0o777), r"can be written by others \(mode 777; 700 is needed\)"),
    "to a group": (lambda folder: folder.chmod(0o770), r"can be written by others \(mode 770"),
    "below an open folder": (
        lambda folder: folder.parent.chmod(0o777),
        r"lies in '.*/cache', which others can write to \(mode 777\)",
    ),
    "behind a link": (behind_a_link, "is a link"),
    "of somebody else": (give_away, "belongs to another user"),
    "below a folder of somebody else": (
        lambda folder: give_away(folder.parent),
        "lies in '.*/cache', which belongs to another user",
    ),
    "entries of somebody else": (each_entry(give_away), None),
    "entries open to all": (each_entry(lambda entry: entry.chmod(0o666)), None),
    "entries that are links": (each_entry(link), None),
}


@needs_modes
@pytest.mark.parametrize("opened", OPEN_PLACES)
def test_what_others_could_have_planted_is_never_run(folder, tmp_path, opened, caplog):
    if "somebody" in opened and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    run_fresh()
    plant(folder, tmp_path / "canary")
    change, reason = OPEN_PLACES[opened]
    change(folder)
    assert run_fresh() == (plain(X), False)
    assert not (tmp_path / "canary").exists()
    if reason is not None:
        assert why_not_private(folder) is not None
        (message,) = warnings_in(caplog)
        assert re.search(reason, message)
        assert str(folder) in message


@needs_modes
def test_a_sticky_folder_above_is_no_obstacle_and_links_above_are_followed(tmp_path, monkeypatch):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    (tmp_path / "link").symlink_to(tmp_path / "shared")
    monkeypatch.setenv("RAXSS_COMPILED", str(tmp_path / "link" / "me" / "compiled"))
    assert private_folder() == tmp_path / "shared" / "me" / "compiled"


@needs_modes
@pytest.mark.parametrize(
    ("name", "members", "is_private"),
    [("me", [], True), ("me", ["me"], True), ("me", ["mallory"], False), ("staff", [], False)],
)
def test_the_group_of_the_user_alone_may_write_above_and_other_groups_may_not(
    tmp_path, monkeypatch, name, members, is_private
):
    (tmp_path / "cache" / "compiled").mkdir(parents=True, mode=0o700)
    (tmp_path / "cache").chmod(0o775)
    real, about = os.lstat, os.lstat(tmp_path / "cache")

    def of_group(path, **options):
        found = real(path, **options)
        is_above = os.path.samestat(found, about)
        return os.stat_result((*found[:5], 4321, *found[6:])) if is_above else found

    monkeypatch.setattr(os, "lstat", of_group)
    monkeypatch.setattr(grp, "getgrgid", lambda number: grp.struct_group((name, "x", 4321, members)))
    user = pwd.struct_passwd(("me", "x", os.geteuid(), 4321, "", "", ""))
    monkeypatch.setattr(pwd, "getpwuid", lambda number: user)
    kernel_cache._is_own_group.cache_clear()
    assert (why_not_private(tmp_path / "cache" / "compiled") is None) == is_private
    kernel_cache._is_own_group.cache_clear()


OLD_PLACES = """
    import os, pickle, sys
    from pathlib import Path
    import numba, numpy as np
    from raxss._core.kernel_cache import cached

    class Command:
        def __reduce__(self):
            return os.system, (f"touch '{sys.argv[2]}'",)

    import kernels
    planted = pickle.dumps(numba.__version__) + pickle.dumps(Command())
    numba.njit(cache=True)(kernels.summed)(np.ones(3))  # numba says where it would look
    places = [*Path("__pycache__").glob("*.nb?"), *Path(os.environ.get("NUMBA_CACHE_DIR", "no")).rglob("*.nb?")]
    assert len(places) == 2, places
    for place in places:
        place.write_bytes(planted if place.suffix == ".nbi" else pickle.dumps(Command()))
    kernel = numba.njit(kernels.summed)
    if sys.argv[1] == "ours":
        kernel = cached(kernel)
    else:
        kernel.enable_caching()
    try:
        print(kernel(np.ones(3)))
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize("variable", [False, True])
@pytest.mark.parametrize("whose", ["numbas", "ours"])
def test_what_is_planted_where_numba_looks_is_not_read(tmp_path, whose, variable):
    """numba itself runs it, which shows that it was planted well."""
    (tmp_path / "kernels.py").write_text("def summed(x):\n    return x.sum()\n")
    environment = os.environ | {"RAXSS_COMPILED": str(tmp_path / "compiled")}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    environment.pop("NUMBA_CACHE_DIR", None)
    if variable:
        environment["NUMBA_CACHE_DIR"] = str(tmp_path / "numba")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OLD_PLACES), whose, tmp_path / "canary"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (tmp_path / "canary").exists() == (whose == "numbas")
    if whose == "ours":
        assert done.stdout == "3.0\n"


# Several processes --------------------------------------------------------------------------------------------

SIDE_BY_SIDE = """
    import sys, time
    import numba, numpy as np
    from raxss._core.kernel_cache import cached

    def plain(x, k):
        total = 0.0
        for value in x:
            total += value * value
        return total + k

    print("ready", flush=True)
    sys.stdin.readline()
    for kind in (np.float64, np.float32, np.int64, np.int32):
        assert cached(numba.njit(plain))(np.ones(5, dtype=kind), 1) == 6
"""


def test_processes_that_compile_at_once_leave_whole_entries(folder):
    command = [sys.executable, "-c", textwrap.dedent(SIDE_BY_SIDE)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    assert sorted(folder.iterdir()) == entries(folder)  # nothing half-written beside
    assert len(entries(folder)) == 4
    for entry in entries(folder):
        assert kernel_cache._read(entry) is not None


PREDICT = """
    import hashlib, sys
    from raxss import RAxSSClassifier
    from raxss.data.datasets import load_synthetic
    model = RAxSSClassifier.from_pretrained(sys.argv[1], device="cpu")
    print(model.predict_proba(load_synthetic(8)).tobytes().hex())
"""


@pytest.mark.slow
def test_predictions_are_the_same_whatever_happens_to_the_entries(folder, tmp_path):
    """With the real kernels: all entries damaged in each way, in turn."""
    from raxss import RAxSSClassifier
    from raxss.data.datasets import load_synthetic

    model = RAxSSClassifier(window_length=128, stride=64, max_epochs=1, random_state=0, device="cpu")
    model.fit(load_synthetic(8)).save_pretrained(tmp_path / "model")
    for entry in entries(folder):
        entry.unlink()  # also of kernels that fitting alone uses

    def predicted():
        command = [sys.executable, "-c", textwrap.dedent(PREDICT), tmp_path / "model"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    expected = predicted()
    assert len(entries(folder)) > 3
    assert predicted() == expected
    for damage in ("empty", "cut", "flipped bits", "zeros"):
        for entry in entries(folder):
            DAMAGES[damage](entry)
        assert predicted() == expected
        assert all(kernel_cache._read(entry) is not None for entry in entries(folder))
