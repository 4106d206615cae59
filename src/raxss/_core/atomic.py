"""Atomic writes of files and folders.

A file or folder is written beside its place, flushed to the disk and renamed. A run that dies in between
leaves the old content as it was. Of two writers of one output the first wins, and the other gets an error
(`output_lock`). What must not be overwritten is put into place by a rename that replaces nothing, which also
holds where there are no locks. Nothing here, and nothing that reads what this wrote, uses pickle.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import hashlib
import json
import math
import os
import platform
import re
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raxss._core.bounded_parquet import read_parquet_table
from raxss._core.outputs import absolute
from raxss._core.outputs import make_folder as make_folder  # here too: who writes files needs these
from raxss._core.outputs import named_output as named_output
from raxss._core.outputs import output_lock as output_lock
from raxss._core.outputs import remove as remove
from raxss.errors import DataError, OutputError, OutputInUseError, RAxSSError, display_name

if TYPE_CHECKING:
    import pandas as pd

MARK = ".raxss"  # in every folder that was written whole
PARTIAL = ".partial"  # ends the name of what is being written
READY = ".raxss-ready"  # ends the name of a folder whose files only need to be moved into place
NEITHER = "choose another place, or overwrite it (--overwrite on the command line, overwrite=True in Python)"
LARGE_TABLE = 100_000_000  # bytes in memory


def write_bytes(path: Path | str, content: bytes, *, overwrite: bool | None = None) -> None:
    """Write a file so that a reader sees the old content or the new; ``overwrite`` as in `whole_file`."""
    with whole_file(path, overwrite=overwrite) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path | str, text: str, *, overwrite: bool | None = None) -> None:
    """`write_bytes` for text, as UTF-8."""
    write_bytes(path, text.encode(), overwrite=overwrite)


def write_json(path: Path | str, value: Any, *, overwrite: bool | None = None) -> None:
    """`write_bytes` for JSON; NaN becomes null, because JSON has none."""
    text = json.dumps(json_ready(value), indent=2, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n", overwrite=overwrite)


def read_parquet(path: Path | str) -> pd.DataFrame:
    """A Parquet table, read by the calling thread alone; refused if it would unpack to far more than its size.

    Arrow's own threads, which `pandas.read_parquet` starts, now and then abort a process that ends soon after
    (apache/arrow issue 34314).
    """
    try:
        table = read_parquet_table(path)
        # a large table column by column, each freed when it is converted, so that it is not held twice
        is_large = table.nbytes >= LARGE_TABLE
        return table.to_pandas(use_threads=False, split_blocks=is_large, self_destruct=is_large)
    except (RAxSSError, FileNotFoundError):
        raise
    except Exception as error:  # Arrow raises whatever its parser stumbles over
        raise DataError(
            f"{display_name(Path(path))} is not a whole Parquet table ({type(error).__name__})."
        ) from error


@contextmanager
def whole_file(
    path: Path | str, *, overwrite: bool | None = None, flushed: bool = True, advice: str | None = None
) -> Iterator[Path]:
    """Atomic write of a file: yields a temporary path, and moves it into place if the block succeeds.

    ``overwrite`` says whether a file that is there may be replaced; the output is locked meanwhile. None: it
    is part of an output whose writers lock the whole or all write the same; it replaces, without a lock.
    ``flushed``: whether to wait for the disk; not needed for a part that holds its own hash. ``advice`` ends
    error messages, which then name the file without its folder.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with whole_file(folder / "a.txt") as temporary:
    ...     _ = temporary.write_text("all of it")
    >>> [file.name for file in folder.iterdir()]
    ['a.txt']
    """
    path = absolute(path)
    make_folder(path.parent)
    with ExitStack() as held:
        if overwrite is not None:
            held.enter_context(output_lock(path))
            refuse_existing(path, overwrite=overwrite)
        temporary = _place_beside(path) if flushed else _hidden_beside(path)
        try:
            with named_output(path) if advice is None else named_output(path.name, advice):
                yield temporary
                if flushed:
                    flush(temporary)
                if overwrite is False:
                    _rename_new(temporary, path)
                else:
                    os.replace(temporary, path)
                if flushed:
                    flush(path.parent)
        finally:
            remove(temporary)


@contextmanager
def whole_folder(path: Path | str, *, overwrite: bool = False) -> Iterator[Path]:
    """Atomic write of a folder: yields a temporary one, and moves it into place if the block succeeds.

    An existing folder is replaced only with ``overwrite`` and only if raxss made it, which the file
    ``.raxss`` in it says; on Linux in one step, elsewhere in two. The folder is locked meanwhile.
    """
    path = absolute(path)
    with reserved_output(path, overwrite=overwrite):
        temporary = _place_beside(path)
        try:
            with named_output(path):
                temporary.mkdir()
                (temporary / MARK).write_text(
                    "Written by raxss, which may replace this folder if told to overwrite it.\n"
                )
                yield temporary
                _flush_all(temporary)
                if overwrite and path.exists():
                    refuse_existing(path, overwrite=True)
                    _exchange(temporary, path)
                else:
                    _rename_new(temporary, path)
                flush(path.parent)
        except OutputError as error:  # of a file inside: name the final place
            text = str(error.strerror).replace(str(temporary), str(path)).replace(temporary.name, path.name)
            raise OutputError(error.errno, text) from error
        finally:
            remove(temporary)


@contextmanager
def whole_files(root: Path | str, name: str) -> Iterator[Path]:
    """Atomic write of several files under ``root``: yields a temporary folder to fill.

    Several names cannot be exchanged in one step. So the filled folder is renamed to ready in one step and
    emptied then: where a process dies in between, the next call, or `finish_files`, goes on. ``name`` stands
    for what belongs together and is locked meanwhile; others may write other names at the same time.
    """
    root = make_folder(absolute(root))
    with output_lock(root / name):
        finish_files(root)
        temporary = _place_beside(root / name)
        try:
            with named_output(root / name):
                temporary.mkdir()
                yield temporary
                _flush_all(temporary)
                ready = root / f".{name}{READY}"
                os.rename(temporary, ready)
                flush(root)
                _empty_into(ready, root)
        finally:
            remove(temporary)


def finish_files(root: Path | str) -> None:
    """Finish what a process that died in `whole_files` left to do."""
    for ready in sorted(Path(root).glob(f".*{READY}")):
        name = ready.name.removeprefix(".").removesuffix(READY)
        with suppress(OutputInUseError), output_lock(Path(root) / name):
            if ready.is_dir():
                with named_output(ready):
                    _empty_into(ready, Path(root))


def _empty_into(ready: Path, root: Path) -> None:
    for file in sorted(ready.rglob("*")):
        if file.is_file():
            place = root / file.relative_to(ready)
            place.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # another process may be finishing this too
                os.replace(file, place)
            flush(place.parent)
    remove(ready)


def refuse_existing(path: Path | str, *, overwrite: bool) -> None:
    """Raise if ``path`` is taken; with ``overwrite`` a file, or a folder that raxss made, may be replaced."""
    path = absolute(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if overwrite and path.is_dir() and not (path / MARK).exists():
        raise OutputError(
            errno.EEXIST,
            f"the folder {path.name!r} was not made by raxss and was left as it is, because overwriting would "
            "delete what is in it; choose another place",
        )
    if not overwrite:
        raise OutputError(errno.EEXIST, f"{path.name!r} exists already and was left as it is; {NEITHER}")


def check_writable(path: Path | str) -> None:
    """Raise, before any work, if nothing can be written at ``path``."""
    path = absolute(path)
    folder = make_folder(path.parent)
    with named_output(path), tempfile.TemporaryFile(dir=folder):
        pass


@contextmanager
def reserved_output(path: Path | str, *, overwrite: bool) -> Iterator[None]:
    """`output_lock` of an output that can and may be written, or an error."""
    refuse_existing(path, overwrite=overwrite)
    check_writable(path)
    with output_lock(path):
        refuse_existing(path, overwrite=overwrite)  # another writer may have ended just now
        yield


def sha256_of(path: Path | str) -> str:
    """Hex digest of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical_hash(value: Any) -> str:
    """SHA-256 of a value's canonical JSON.

    >>> canonical_hash({"b": 1, "a": 2.5}) == canonical_hash({"a": 2.5, "b": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _place_beside(path: Path) -> Path:
    """A hidden name beside ``path`` with host and process; removes what killed processes of this host left."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.{_host()}-*{PARTIAL}"):
        process = left.name.removesuffix(PARTIAL).split("-")[-2]
        if process.isdigit() and not _runs(int(process)):
            remove(left)
    return _hidden_beside(path)


def _hidden_beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{_host()}-{os.getpid()}-{secrets.token_hex(4)}{PARTIAL}")


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", platform.node())


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 only checks
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def flush(path: Path) -> None:
    """Ask the system to put a file or folder on the disk."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_all(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        flush(path)


def _rename_new(source: Path, target: Path) -> None:
    """Rename, and fail if there is something of that name, even if it appeared just now."""
    try:
        if source.is_dir():
            if os.name == "nt" and target.is_dir():
                target.rmdir()
            os.rename(source, target)  # of a folder: replaces an empty folder and nothing else
            return
        failed = _renamed_at(source, target, RENAME_NOREPLACE)
        if failed is None:
            return
        if failed == errno.EEXIST:
            raise FileExistsError(failed, os.strerror(failed))
        try:
            os.link(source, target)  # fails if there is something; the other name is removed afterwards
        except FileExistsError:
            raise
        except OSError:  # a disk without hard links
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
            os.rename(source, target)  # Windows replaces nothing either; elsewhere the lock has to do
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR):
            raise
        raise OutputError(
            errno.EEXIST,
            f"{target.name!r} was written by somebody else meanwhile and was left as it is; what this run made is "
            f"lost: {NEITHER}",
        ) from error


RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2


def _renamed_at(source: Path, target: Path, flag: int) -> int | None:
    """Linux' renameat2: None, or the number of its error; ENOSYS where there is none."""
    at_fdcwd = -100
    library = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
    if library is None or not hasattr(library, "renameat2"):
        return errno.ENOSYS
    if library.renameat2(at_fdcwd, os.fsencode(source), at_fdcwd, os.fsencode(target), flag) == 0:
        return None
    return ctypes.get_errno()


def _exchange(first: Path, second: Path) -> None:
    """Swap two folders by name, at once on Linux, by two renames elsewhere."""
    if _renamed_at(first, second, RENAME_EXCHANGE) is None:
        return
    aside = second.with_name(f".{second.name}.{os.getpid()}.previous")
    os.rename(second, aside)
    os.rename(first, second)
    os.rename(aside, first)


def json_ready(value: Any) -> Any:
    """Numpy numbers and arrays as plain ones; values that are not finite as null."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    return value


def without_formula(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula, made plain with a leading apostrophe.

    >>> without_formula("=cmd()"), without_formula("C3"), without_formula(-0.5)
    ("'=cmd()", 'C3', -0.5)
    """
    is_formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if is_formula else value
