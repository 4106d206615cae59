"""Locks on outputs, and errors that name the output.

output_lock(path) -> the file ``.NAME.lock`` beside it, locked until the block ends
"""

from __future__ import annotations

import errno
import logging
import os
import platform
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from raxss.errors import OutputError, OutputInUseError

LOCK = ".lock"  # ends the name of the file that is locked while an output is written
ADVICE = "Nothing was left half-written. Choose a folder that can be written and has room"

_log = logging.getLogger("raxss")


def absolute(path: Path | str) -> Path:
    """With a name even for ``.``, and with ``..`` resolved as text."""
    return Path(os.path.abspath(path))


def make_folder(path: Path | str) -> Path:
    """Create a folder and its parents; OutputError with the reason if that fails."""
    path = Path(path)
    with named_output(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(errno.ENOTDIR, "there is a file of that name, not a folder") from error
    return path


@contextmanager
def named_output(place: Path | str, advice: str = ADVICE) -> Iterator[None]:
    """Turn an OSError into an `OutputError` with advice; a path is named with its folder, a string as it is."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        name = (
            repr(place) if isinstance(place, str) else f"{place.name!r} in the folder {str(place.parent)!r}"
        )
        reason = error.strerror or type(error).__name__
        raise OutputError(error.errno or errno.EIO, f"cannot write {name}: {reason}. {advice}") from error


def remove(path: Path) -> None:
    """Remove a file or folder if it is there; a failure must not hide the error before it."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


# Locks --------------------------------------------------------------------------------------------------------


@dataclass
class _Held:
    """An output held by a thread of this process."""

    thread: int
    n_blocks: int = 0
    descriptor: int | None = None  # of the lock file; None where there are no locks
    place: Path | None = None


_held: dict[str, _Held] = {}
_guard = threading.Lock()


@contextmanager
def output_lock(path: Path | str) -> Iterator[None]:
    """Hold an output, so that no other process or thread writes it; else OutputInUseError says who does.

    The same thread may take it again. It is a lock of the system on the file ``.NAME.lock`` beside the output
    (inside of it, where its folder cannot be written), released however the process ends. Where there are no
    locks (Windows, some network disks) the work goes on, with a warning except on Windows.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "model"
    >>> with output_lock(place), output_lock(place):
    ...     [file.name for file in place.parent.iterdir()]
    ['.model.lock']
    """
    path = absolute(path)
    key = os.path.join(os.path.realpath(path.parent), path.name)
    with _guard:
        held = _held.setdefault(key, _Held(threading.get_ident()))
        if held.thread != threading.get_ident():
            raise _in_use(path, "another thread of this process")
        held.n_blocks += 1
    try:
        if held.n_blocks == 1:
            _take(held, path)
        yield
    finally:
        held.n_blocks -= 1
        if held.n_blocks == 0:
            _let_go(held)
            with _guard:
                _held.pop(key, None)


def lock(file: IO[Any] | int) -> bool:
    """Lock an open file until it is closed or the process ends; False if another process holds it."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _take(held: _Held, path: Path) -> None:
    """Lock the file beside an output, or raise."""
    make_folder(path.parent)
    inside = [path / LOCK] if path.is_dir() else []
    for place in (path.with_name(f".{path.name}{LOCK}"), *inside):
        try:
            while not _took(held, path, place):
                pass  # its holder ended just now and removed the file
            return
        except OutputError:
            raise
        except OSError as error:
            why = error
    if not inside:
        with named_output(path):  # where no lock file can be written, the output cannot either
            raise why
    _warn_of_no_lock(path, why)


def _took(held: _Held, path: Path, place: Path) -> bool:
    """Whether the lock file was there to be locked; OutputInUseError if another one holds it."""
    with ExitStack() as undo:
        descriptor = _opened(place)
        undo.callback(os.close, descriptor)
        try:
            is_ours = lock(descriptor)
        except OSError as error:  # no locks on this disk
            _warn_of_no_lock(path, error)
            remove(place)
            return True
        if not is_ours:
            raise _in_use(path, _holder(place))
        if not _is_at(descriptor, place):
            return False
        with suppress(OSError):  # only for the message that others get
            os.ftruncate(descriptor, 0)
            since = time.strftime("%Y-%m-%d %H:%M")
            os.write(descriptor, f"{os.getpid()}\t{platform.node()}\t{since}\n".encode())
        undo.pop_all()
    held.descriptor, held.place = descriptor, place
    return True


def _warn_of_no_lock(path: Path, error: OSError) -> None:
    _log.warning(
        "%r cannot be locked (%s); another raxss process that writes it at the same time will not be noticed",
        path.name,
        error.strerror or type(error).__name__,
    )


def _opened(place: Path) -> int:
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        return os.open(place, os.O_RDWR | os.O_CREAT | flags, 0o666)
    except PermissionError:
        if not place.exists():
            raise
        return os.open(place, os.O_RDONLY | flags)  # left by a killed run of somebody else


def _is_at(descriptor: int, place: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(place))
    except FileNotFoundError:
        return False


def _let_go(held: _Held) -> None:
    """Remove the lock file while it is still locked: a waiting opener then finds it gone (`_is_at`)."""
    if held.descriptor is not None and held.place is not None:
        if os.name == "nt":  # which removes no open file, and has no locks
            os.close(held.descriptor)
            return remove(held.place)
        remove(held.place)
        os.close(held.descriptor)


def _holder(place: Path) -> str:
    """Process, host and time in a lock file, if raxss wrote it."""
    for _ in range(5):
        try:
            with open(place, "rb") as file:
                text = file.read(200).decode(errors="replace")
        except OSError:
            text = ""
        fields = re.fullmatch(r"(\d{1,10})\t([A-Za-z0-9._-]{1,64})\t(\d{4}-\d\d-\d\d \d\d:\d\d)\n", text)
        if fields:
            return f"another raxss process (pid {fields[1]} on host {fields[2]}, since {fields[3]})"
        time.sleep(0.01)  # it may be about to write it
    return "another raxss process"


def _in_use(path: Path, who: str) -> OutputInUseError:
    return OutputInUseError(
        errno.EBUSY,
        f"{path.name!r} is being written by {who}; wait until it has finished, or choose another output",
    )


def _forget_locks() -> None:
    """In a forked child: close the parent's locks, so that they end with the parent."""
    global _guard
    _guard = threading.Lock()
    for held in _held.values():
        if held.descriptor is not None:
            os.close(held.descriptor)  # which lets go of nothing while the parent has it open
            held.descriptor = None
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)
