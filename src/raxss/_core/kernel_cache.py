"""Disk cache for compiled kernels, in a private folder.

numba's own cache unpickles whatever lies in ``__pycache__`` or ``NUMBA_CACHE_DIR``, so whoever can write
there can run code, and a truncated file there is an error for ever. Instead:

- Entries are pickles, because numba can keep compiled code in no other form, so the folder is used only if nobody
  else can write to it (`why_not_private`).
- An entry is named after everything that decides its code, and unpickled only if its content has the SHA-256 that
  it begins with. Whatever is wrong with an entry or the folder, the kernel is compiled.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import platform
import re
import stat
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import llvmlite
import numba
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from raxss._core.atomic import whole_file
from raxss._core.version import __version__

FOLDER_VARIABLE = "RAXSS_COMPILED"
SUFFIX = ".kernel"
MAX_BYTES = 512 * 2**20  # of all entries; those written first make room
DIGEST_BYTES = 32

_log = logging.getLogger("raxss")
_warned: set[str] = set()
Function = TypeVar("Function", bound=Callable[..., Any])


def cached(function: Function) -> Function:
    """Give a numba function that was made without ``cache=True`` this cache; returns the same function."""
    if hasattr(function, "py_func"):  # with NUMBA_DISABLE_JIT it is a plain function
        function._cache = KernelCache(function.py_func, function.targetoptions)  # type: ignore[attr-defined]
    return function


def kernel_folder() -> Path | None:
    """The folder ``RAXSS_COMPILED`` (``off``: None), else ``compiled`` in ``RAXSS_CACHE`` or the user's cache.

    ``RAXSS_CACHE=off``, from when retrievals were cached on disk, counts as not set.
    """
    chosen = os.environ.get(FOLDER_VARIABLE, "")
    if chosen.lower() == "off":
        return None
    if chosen:
        return Path(os.path.abspath(chosen))
    shared = os.environ.get("RAXSS_CACHE", "")
    if shared.lower() in ("", "off"):
        shared = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "raxss")
    return Path(os.path.abspath(shared)) / "compiled"


def private_folder() -> Path | None:
    """`kernel_folder`, made if it is not there; None, with one warning, if others can write to it."""
    folder = kernel_folder()
    if folder is None:
        return None
    # Links above the folder are followed once, here; what is used and checked is where they lead.
    place = Path(os.path.realpath(folder.parent)) / folder.name
    try:
        missing = [item for item in (place, *place.parents) if not item.exists()]
        for item in reversed(missing):  # parents=True would give those above the usual mode
            item.mkdir(mode=0o700, exist_ok=True)
        why = why_not_private(place)
    except OSError as error:
        why = f"cannot be used ({error.strerror or type(error).__name__})"
    if why is None:
        return place
    if str(place) not in _warned:  # once a process, not once a kernel
        _warned.add(str(place))
        _log.warning(
            "compiled kernels are not kept on disk, and every process compiles them again: the folder %r %s. Set "
            "%s to a folder of your own that nobody else can write to, or to 'off'.",
            str(folder),
            why,
            FOLDER_VARIABLE,
        )
    return None


def why_not_private(folder: Path) -> str | None:
    """Why others could have written files of a folder; None if nobody can: it is a folder of the user's, with
    no other writers, below folders of the user or of root with no other writers.
    """
    about = os.lstat(folder)
    if not stat.S_ISDIR(about.st_mode):
        return "is a link" if stat.S_ISLNK(about.st_mode) else "is not a folder"
    if not hasattr(os, "geteuid"):
        return None  # Windows: no modes; folders of a user profile are closed to others by default
    if about.st_uid != os.geteuid():
        return "belongs to another user"
    if about.st_mode & 0o022:
        return f"can be written by others (mode {stat.S_IMODE(about.st_mode):o}; 700 is needed)"
    for above in folder.parents:
        about = os.lstat(above)
        if about.st_uid not in (0, os.geteuid()):
            return f"lies in {str(above)!r}, which belongs to another user"
        if about.st_mode & stat.S_ISVTX:
            continue  # as in /tmp: others cannot rename what is not theirs
        if about.st_mode & 0o002 or (about.st_mode & 0o020 and not _is_own_group(about.st_gid)):
            return f"lies in {str(above)!r}, which others can write to (mode {stat.S_IMODE(about.st_mode):o})"
    return None


@cache
def _is_own_group(group: int) -> bool:
    """Whether a group is that of this user alone, as many systems make one for each user, or of root."""
    import grp
    import pwd

    if group == 0:
        return True
    try:
        found, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return (
        found.gr_gid == user.pw_gid and found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}
    )


class KernelCache(NullCache):  # type: ignore[misc]
    """Loads and saves the compiled code of a numba dispatcher; see the module's header."""

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self._function = function
        self._options = sorted((name, _in_order(value)) for name, value in options.items())

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The compiled function, or None where it must be compiled."""
        target_context.refresh()
        try:
            folder = private_folder()
            if folder is None:
                return None
            payload = _read(folder / self._name(signature, target_context.codegen()))
            return None if payload is None else CompileResult._rebuild(target_context, *pickle.loads(payload))
        except Exception as error:  # an entry that cannot be used must never be worse than none
            _log.debug("a compiled kernel cannot be read (%s: %s)", type(error).__name__, error)
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Write a compiled function to disk; a failure costs time, not the result."""
        if any(not item.can_cache for item in compiled.lifted) or compiled.library.has_dynamic_globals:
            return
        try:
            folder = private_folder()
            if folder is not None:
                payload = dumps(compiled._reduce())
                _write(folder / self._name(signature, compiled.codegen), payload)
                _make_room(folder)
        except Exception as error:
            _log.debug("a compiled kernel cannot be kept (%s: %s)", type(error).__name__, error)

    def _name(self, signature: Any, codegen: Any) -> str:
        """Of the entry: the function, and a hash of everything that decides its code."""
        code = self._function.__code__
        closure = tuple(cell.cell_contents for cell in self._function.__closure__ or ())
        decides = (
            *_versions(),
            source_digest(self._function),
            self._options,
            self._function.__module__,
            self._function.__qualname__,
            code.co_firstlineno,
            code.co_code.hex(),
            hashlib.sha256(dumps(closure) if closure else b"").hexdigest(),
            [repr(co_const) for co_const in code.co_consts if not hasattr(co_const, "co_code")],
            str(signature),
            [str(item) for item in codegen.magic_tuple()],  # target, processor, its features
        )
        stem = re.sub(r"[^\w.]", "-", f"{self._function.__module__}.{self._function.__qualname__}")[-100:]
        return f"{stem}-{hashlib.sha256(repr(decides).encode()).hexdigest()[:32]}{SUFFIX}"


@cache
def _versions() -> tuple[str, ...]:
    implementation = f"{platform.python_implementation()} {sys.version} {getattr(sys, 'abiflags', '')}"
    return __version__, numba.__version__, llvmlite.__version__, implementation


def _in_order(value: Any) -> str:
    """A setting as text; sets have another order in every process."""
    return repr(sorted(value) if isinstance(value, set | frozenset) else value)


@cache
def _digest_of(file: str) -> str:
    """Of the file that a function is in; empty for one that was typed at a prompt, whose code is all there is."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""


def source_digest(function: Callable[..., Any]) -> str:
    """Digest of all files that a kernel may have code from: its own, and the kernels of `source_folders`."""
    parts = [_digest_of(function.__code__.co_filename), *map(_digest_of_kernels, source_folders(function))]
    return " ".join(parts)


def source_folders(function: Callable[..., Any]) -> list[str]:
    """Folders of the package with the kernel, kernels that it can call, and the code of vectors."""
    called = (
        getattr(item, "py_func", None) or getattr(item, "_defn", None)
        for item in function.__globals__.values()
    )
    codes = [getattr(item, "__code__", None) for item in (function, *called)]
    files = [__file__, *(code.co_filename for code in codes if code is not None)]
    package = str(Path(__file__).parents[1])
    return sorted({os.path.dirname(file) for file in files if file.startswith(package + os.sep)})


@cache
def _digest_of_kernels(folder: str) -> str:
    digest = hashlib.sha256()
    for file in sorted(Path(folder).glob("*.py")):
        content = file.read_bytes()
        if b"numba" in content or b"@compiled" in content:
            digest.update(f"{file.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _read(path: Path) -> bytes | None:
    """The content of an entry that is ours and whole."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        about = os.fstat(file.fileno())
        theirs = hasattr(os, "geteuid") and (about.st_uid != os.geteuid() or about.st_mode & 0o022)
        if theirs or not stat.S_ISREG(about.st_mode):
            return None
        content = file.read()
    digest, payload = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    return payload if hashlib.sha256(payload).digest() == digest else None


def _write(path: Path, payload: bytes) -> None:
    """Write an entry atomically, so that processes which compile the same at once see whole entries."""
    with whole_file(path, flushed=False) as temporary:
        temporary.touch(mode=0o600)
        temporary.write_bytes(hashlib.sha256(payload).digest() + payload)


def _make_room(folder: Path) -> None:
    """Remove what was written first, if all of it takes too much."""
    entries = []
    for file in os.scandir(folder):
        with suppress(OSError):
            about = file.stat(follow_symlinks=False)
            entries.append((about.st_mtime_ns, about.st_size, file.path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= MAX_BYTES:
            return
        with suppress(OSError):
            os.unlink(path)
        total -= size
