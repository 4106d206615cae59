"""Download of a dataset's files: parallel, resumed after interruption, verified by checksum.

    listed files, base address -> folder: every file with the listed length and checksum, or an error that names it

A file is received into ``.NAME.partial`` beside its place and moved there when its checksum is right; so it appears
whole or not at all, and a download that was stopped, even by ``kill -9``, goes on where it was. Files
that are complete already are not fetched again. Proxy variables are honoured (``https_proxy``, ``no_proxy``).
Next: plans.py says what is there, and what is in it.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import io
import os
import random
import shutil
import socket
import ssl
import stat
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlsplit

from raxss._core.atomic import flush, make_folder, named_output, output_lock
from raxss._core.version import __version__
from raxss.data.confinement import leads_outside
from raxss.data.datasets.dataset import ListedFile, local_path, safe_path
from raxss.errors import ConfigError, OutputError, RecordingError, join_names

BASE_VARIABLE = "RAXSS_DATA_URL"
RECORD = ".raxss-downloaded.tsv"  # which files were found right, with their time of change
CHUNK = 2**20
MAX_WRONG = 3  # times that a file may arrive with wrong bytes
PROGRESS_BYTES = 2**20  # an attempt that brings as much was no failure: long files may drop often
MIN_BYTES = 2**12  # in ``timeout`` seconds; slower counts as a dropped connection
MAX_WAIT = 60.0  # seconds between attempts
KEPT = "What was received is kept; after mending this, the same command goes on from there"
TRY_AGAIN = (408, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True)
class Downloaded:
    """Files that were received, those of them that replaced other content, and how many were right already."""

    fetched: tuple[str, ...]
    replaced: tuple[str, ...]
    n_right: int


class _Dropped(Exception):
    """The connection failed; another attempt may succeed."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


class _WrongBytes(Exception):
    """The bytes received are not those listed."""


class _Refused(Exception):
    """No further attempt can help."""


class _Stopped(Exception):
    """The download was stopped."""


def download(
    listed: Sequence[ListedFile],
    folder: Path | str,
    *,
    base: str,
    jobs: int = 4,
    attempts: int = 6,
    timeout: float = 30.0,
    backoff: float = 1.0,
    verify: bool = False,
    on_bytes: Callable[[int], None] | None = None,
) -> Downloaded:
    """Fetch files below ``base`` into ``folder``, so that each is there whole and with the right checksum.

    Parameters
    ----------
    attempts
        How often in a row a connection may fail before a file is given up.
    timeout
        Seconds without an answer's headers, or with hardly any bytes, after which a connection counts as dropped.
    backoff
        Seconds before the second attempt, twice as many before the next, up to a minute.
    verify
        Read files again that were found right before; otherwise their length and time of change are believed.
    on_bytes
        Called with the number of bytes more (or fewer, after a fresh start), by one thread at a time.
    """
    _check_address(base)
    for item in listed:
        safe_path(item.path)
    twice = [path for path, n in Counter(item.path for item in listed).items() if n > 1]
    if twice:
        raise RecordingError(f"the list of files names {twice[0]!r} twice; one line per file is needed.")
    folder = make_folder(folder)
    with output_lock(os.path.realpath(folder)), _opened_record(folder) as record:
        work = _Download(listed, folder, base, record, attempts, timeout, backoff, verify, on_bytes)
        work.check_room()
        # Daemons: one that waits for a silent server must not keep a stopped program alive.
        threads = [threading.Thread(target=work.run, daemon=True) for _ in range(min(jobs, len(listed)))]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
        finally:
            work.stop.set()
            end = time.monotonic() + 1.0  # for all of them together
            for thread in threads:
                if thread.is_alive():
                    thread.join(max(end - time.monotonic(), 0.0))
        return work.result()


def _check_address(base: str) -> None:
    try:  # messages never quote the address: it may hold a password
        address = urlsplit(base)
        _ = address.port, (address.hostname or "").encode("idna")  # where wrong ones are noticed
        plain = base.isascii() and base.isprintable() and " " not in base
    except ValueError:
        plain = False
    wrong = ""
    if not plain:
        wrong = (
            "is not valid; one such as https://archive.example/ds003029 is needed, without blanks and letters of "
            "other alphabets"
        )
    elif address.scheme not in ("http", "https") or not address.hostname or "@" in address.netloc:
        wrong = f"has the scheme {address.scheme[:10]!r}; 'http' or 'https' and a host without user name are needed"
    elif address.query or address.fragment:
        wrong = "has a '?' or '#'; paths are put behind it, so it must have neither"
    if wrong:
        raise ConfigError(f"the base address {wrong}. Check --base and the variable {BASE_VARIABLE}.")


@dataclass
class _Download:
    """State that the threads of one download share."""

    listed: Sequence[ListedFile]
    folder: Path
    base: str
    record: IO[str]
    attempts: int
    timeout: float
    backoff: float
    verify: bool
    on_bytes: Callable[[int], None] | None

    def __post_init__(self) -> None:
        self.waiting = iter(self.listed)
        self.stop, self.lock = threading.Event(), threading.Lock()
        self.reported: dict[str, int] = {}
        self.fetched: list[str] = []
        self.replaced: list[str] = []
        self.failed: dict[str, str] = {}
        self.error: BaseException | None = None
        self.known = _read_record(self.record)
        self.opener = urllib.request.build_opener(_SafeRedirects, _TimelyAnswers)

    def check_room(self) -> None:
        """Fail before the first byte if the disk cannot hold what is missing."""
        missing = 0
        for item in self.listed:
            path = self._place(item)
            if _size(path) != item.size:
                missing += max(item.size - (_size(_partial(path)) or 0), 0)
        free = shutil.disk_usage(self.folder).free
        if missing > free:
            raise OutputError(
                errno.ENOSPC,
                f"the files need {missing / 1e9:.2f} GB more and the disk of {self.folder.name!r} has "
                f"{free / 1e9:.2f} GB free; nothing was fetched. Make room, choose another --root, or fewer files "
                "with --only",
            )

    def run(self) -> None:
        """One thread: take file after file, until none waits."""
        try:
            while not self.stop.is_set():
                with self.lock:
                    item = next(self.waiting, None)
                if item is None:
                    return
                try:
                    self._provide(item)
                except _Refused as error:
                    with self.lock:
                        self.failed[item.path] = _printable(str(error))
        except _Stopped:
            return
        except BaseException as error:
            self.error = error
            self.stop.set()

    def result(self) -> Downloaded:
        """What was done, or the error that stopped it."""
        n_listed = len(self.listed)
        if self.error is not None:
            raise self.error
        if self.failed:
            named = join_names(f"{path} ({reason})" for path, reason in sorted(self.failed.items()))
            others = "The others are there and right; the" if len(self.failed) < n_listed else "The"
            raise RecordingError(
                f"{len(self.failed)} of {n_listed} files could not be fetched: {named}. {others} same command "
                "tries these again. Bytes that are wrong every time mean that the server has another version, or "
                "that something in between changes them."
            )
        return Downloaded(
            tuple(sorted(self.fetched)), tuple(sorted(self.replaced)), n_listed - len(self.fetched)
        )

    def _place(self, file: ListedFile) -> Path:
        path = local_path(self.folder, file)
        if leads_outside(path.parent, self.folder):
            raise RecordingError(
                f"{file.path!r} would be written outside of the dataset's folder, because a folder on its "
                "way is a link; nothing was fetched. Remove the link."
            )
        return path

    def _provide(self, file: ListedFile) -> None:
        """Make one file complete."""
        path = self._place(file)
        there = os.path.lexists(path)
        if self._is_right(file, path):
            return self._report(file, file.size)
        make_folder(path.parent)
        failures = wrong = 0
        while True:
            before = _size(_partial(path)) or 0
            try:
                self._receive(file, _partial(path))
                self._settle(file, _partial(path), path)
                break
            except _WrongBytes as error:
                wrong += 1
                with named_output(file.path, KEPT):
                    _partial(path).unlink(missing_ok=True)
                self._report(file, 0)
                if wrong >= MAX_WRONG:
                    raise _Refused(f"{error}, {wrong} times") from error
                wait = self.backoff
            except _Dropped as error:
                grown = (_size(_partial(path)) or 0) - before
                failures = 1 if grown >= PROGRESS_BYTES else failures + 1
                if failures >= self.attempts:
                    raise _Refused(f"{error}, {failures} times in a row") from error
                wait = max(error.wait, self.backoff * 2 ** (failures - 1))
            if self.stop.wait(min(wait, MAX_WAIT) * random.uniform(0.75, 1.25)):
                raise _Stopped
        with self.lock:
            self.fetched.append(file.path)
            if there:
                self.replaced.append(file.path)

    def _is_right(self, file: ListedFile, path: Path) -> bool:
        """Whether the file is there with the right content, by what is recorded or by reading it."""
        try:
            found = path.stat()
        except OSError:
            return False
        if not stat.S_ISREG(found.st_mode) or found.st_size != file.size:
            return False
        if not self.verify and self.known.get(file.path) == (found.st_mtime_ns, file.digest):
            return True
        with named_output(file.path, KEPT):
            if self._digest(file, path) != file.digest:
                return False
        self._remember(file, found.st_mtime_ns)
        return True

    def _receive(self, file: ListedFile, partial: Path) -> None:
        """Fetch what a partial file lacks."""
        have = _size(partial)
        if have is not None and (partial.is_symlink() or have > file.size):
            with named_output(file.path, KEPT):
                partial.unlink()
            have = None
        if have == file.size:
            return  # only the check is left to do
        have = have or 0
        self._report(file, have)
        request = urllib.request.Request(
            f"{self.base.rstrip('/')}/{quote(file.path)}",
            headers={"User-Agent": f"raxss/{__version__}", "Accept-Encoding": "identity"}
            | ({"Range": f"bytes={have}-"} if have else {}),
        )
        with self._answer(request, partial) as response:
            start = _first_byte(response, file, have)
            with (
                named_output(file.path, KEPT),
                open(partial, "r+b" if start else "wb", buffering=0) as target,
            ):
                target.seek(start)
                self._copy(response, target, file, start)

    def _copy(self, response: _Response, target: Any, file: ListedFile, start: int) -> None:
        position = renewed = start
        self._report(file, position)
        while True:
            with _network():
                chunk = response.read1(CHUNK)
            if self.stop.is_set():
                raise _Stopped
            if not chunk:
                break
            if position + len(chunk) > file.size:
                raise _WrongBytes(f"more than the listed {file.size:,} bytes arrived")
            target.write(chunk)
            position += len(chunk)
            self._report(file, position)
            if position - renewed >= MIN_BYTES:
                response.give_time()
                renewed = position
        if position < file.size:
            raise _Dropped(f"the connection ended after {position:,} of {file.size:,} bytes")

    def _answer(self, request: urllib.request.Request, partial: Path) -> _Response:
        try:
            with _network():
                return self.opener.open(request, timeout=self.timeout)
        except urllib.error.HTTPError as error:
            error.close()  # it holds a connection
            reason = f"HTTP {error.code} {str(error.reason)[:100]}"
            if error.code == 416:  # the server has fewer bytes than the partial file
                partial.unlink(missing_ok=True)
                raise _Dropped(reason) from error
            if error.code in TRY_AGAIN:
                seconds = error.headers.get("Retry-After", "")
                raise _Dropped(reason, float(seconds) if seconds.isdecimal() else 0.0) from error
            raise _Refused(reason) from error

    def _settle(self, file: ListedFile, partial: Path, path: Path) -> None:
        """Check all of a partial file, and put it into its place."""
        with named_output(file.path, KEPT):
            if self._digest(file, partial) != file.digest:
                raise _WrongBytes(f"the {file.algorithm} sum is not the listed one")
            with open(partial, "rb+") as whole:
                os.fsync(whole.fileno())
            changed = partial.stat().st_mtime_ns
            os.replace(partial, path)
            flush(path.parent)
        self._remember(file, changed)

    def _digest(self, file: ListedFile, path: Path) -> str:
        checksum = hashlib.new(file.algorithm, usedforsecurity=False)
        with open(path, "rb", buffering=0) as content:
            while chunk := content.read(CHUNK):
                if self.stop.is_set():
                    raise _Stopped
                checksum.update(chunk)
        return checksum.hexdigest()

    def _remember(self, file: ListedFile, changed: int) -> None:
        with self.lock:
            if not self.stop.is_set():
                self.record.write(f"{file.path}\t{changed}\t{file.digest}\n")
                self.record.flush()

    def _report(self, file: ListedFile, position: int) -> None:
        """Report the bytes that are there since the last report."""
        with self.lock:
            more = position - self.reported.get(file.path, 0)
            self.reported[file.path] = position
            if more and self.on_bytes is not None:
                self.on_bytes(more)


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from https to something unencrypted."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        """Refuse, or let the usual handler go on."""
        fp.close()  # the usual handler would read all that comes with the redirect, which may have no end
        old, new = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if new not in ("http", "https") or (old == "https" and new != "https"):
            raise _Refused(f"the server redirects from {old} to {new[:10]}, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


class _Timely(io.RawIOBase):
    """Bytes of a connection, until a deadline; a socket's own timeout restarts with every byte."""

    def __init__(self, raw: io.RawIOBase, connection: socket.socket) -> None:
        self.raw, self.connection, self.timeout = raw, connection, connection.gettimeout() or MAX_WAIT
        self.give_time()

    def give_time(self) -> None:
        self.deadline = time.monotonic() + self.timeout

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.connection.settimeout(left)
        try:
            return self.raw.readinto(buffer)
        finally:
            self.connection.settimeout(self.timeout)

    def close(self) -> None:
        self.raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """A response with a deadline, which `give_time` extends."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        timely = _Timely(self.fp.detach(), sock)
        self.fp = io.BufferedReader(timely)
        self.give_time = timely.give_time


class _TimelyAnswers(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens connections, http and https, whose responses are a _Response."""

    def do_open(self, http_class: Any, req: urllib.request.Request, **options: Any) -> Any:
        def connect(*args: Any, **more: Any) -> http.client.HTTPConnection:
            connection: http.client.HTTPConnection = http_class(*args, **more)
            connection.response_class = _Response
            return connection

        return super().do_open(connect, req, **options)


def _first_byte(response: http.client.HTTPResponse, file: ListedFile, have: int) -> int:
    """First byte of the file in the response; an error unless it answers the request."""
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise _WrongBytes(f"the server packs files ({encoding[:20]})")
    start = 0  # a server that does not know ranges sends all of it
    if response.status == 206:
        sent = response.headers.get("Content-Range", "")
        wanted = f"bytes {have}-{file.size - 1}"
        if sent.strip() not in (f"{wanted}/{file.size}", f"{wanted}/*"):
            raise _WrongBytes(f"{wanted}/{file.size} were asked for, the server sends {sent[:60]!r}")
        start = have
    elif response.status != 200:
        raise _Refused(f"HTTP {response.status}")
    length = response.headers.get("Content-Length")
    if length is not None and length.strip() != str(file.size - start):
        raise _WrongBytes(f"the server announces {length[:20]} bytes where {file.size - start} are listed")
    return start


@contextmanager
def _network() -> Iterator[None]:
    """Turn failures of a connection into _Dropped, those of a certificate into _Refused."""
    try:
        yield
    except urllib.error.HTTPError:
        raise
    except (ValueError, http.client.InvalidURL) as error:  # not quoted: it may hold a password
        raise _Dropped("the address of a redirect or of the proxy is not valid") from error
    except (OSError, http.client.HTTPException) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise _Refused(f"the server's certificate is not valid: {cause.verify_message}") from error
        reason = str(getattr(cause, "strerror", None) or str(cause) or type(cause).__name__)[:100]
        if isinstance(cause, TimeoutError):
            reason = "no answer in time, or hardly any"
        what = "the connection failed" if cause is error else "no connection"
        raise _Dropped(f"{what} ({reason})") from error


def _printable(text: str) -> str:
    """One line without control characters, because servers' texts are in it."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def _size(path: Path) -> int | None:
    try:
        return path.lstat().st_size
    except OSError:
        return None


@contextmanager
def _opened_record(folder: Path) -> Iterator[IO[str]]:
    """The list of files found right; a link in its place is not followed."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
    with named_output(folder.name, "Choose another --root"):
        descriptor = os.open(folder / RECORD, flags, 0o666)
    with open(descriptor, "a+", encoding="utf-8", errors="replace") as record:
        yield record


def _read_record(record: IO[str]) -> dict[str, tuple[int, str]]:
    """Path -> time of change and checksum; incomplete lines are ignored."""
    record.seek(0)
    known = {}
    text = record.read()
    for line in text.splitlines():
        parts = line.split("\t")
        if len(parts) == 3 and parts[1].isdecimal() and len(parts[1]) < 30:
            known[parts[0]] = (int(parts[1]), parts[2])
    if text and not text.endswith("\n"):
        record.write("\n")
    return known
