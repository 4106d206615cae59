"""Downloads from a real HTTP server that misbehaves in every way we could think of."""

import hashlib
import json
import os
import random
import re
import resource
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections import defaultdict
from contextlib import suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from urllib.parse import unquote

import pytest
from typer.testing import CliRunner

from raxss.cli import app
from raxss.data.datasets import dataset as dataset_module
from raxss.data.datasets import download as download_module
from raxss.data.datasets import listing
from raxss.data.datasets.download import RECORD, _Refused, _SafeRedirects, download
from raxss.data.datasets.listing import ListedFile
from raxss.errors import ConfigError, OutputError, RecordingError
from toys import hears_ctrl_c

FAST = {"backoff": 0.01, "timeout": 5.0}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = unquote(self.path).removeprefix("/base/")
        asked = self.headers.get("Range")
        with self.server.lock:
            self.server.requests.append((path, asked))
            tricks = self.server.tricks[path]
            trick = tricks.pop(0) if tricks else None
        try:
            content = self.server.content.get(path)
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
            if trick is not None:
                trick(self, content, start)
            elif content is None:
                self.answer(404, b"no such thing")
            elif start >= len(content) and start:
                self.answer(416, b"")
            else:
                self.serve(content, start)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def serve(self, content, start, *, body=None, **headers):
        """Send what was asked for, or ``body`` in its place."""
        sent = content[start:] if body is None else body
        told = {"Content-Length": str(len(content) - start)}
        if start:
            told["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.head(
            206 if start else 200, told | {name.replace("_", "-"): value for name, value in headers.items()}
        )
        self.wfile.write(sent)
        if len(sent) != len(content) - start:
            self.close_connection = True

    def answer(self, status, body, **headers):
        self.head(status, {"Content-Length": str(len(body))} | headers)
        self.wfile.write(body)

    def head(self, status, headers):
        self.send_response(status)
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()

    def count(self, more):
        with self.server.lock:
            self.server.active += more
            self.server.most = max(self.server.most, self.server.active)

    def log_message(self, *_):
        pass


def drop_after(n):
    return lambda handler, content, start: handler.serve(content, start, body=content[start : start + n])


def status(code, **headers):
    return lambda handler, content, start: handler.answer(code, b"trouble", **headers)


def other_bytes(handler, content, start):
    handler.serve(content, start, body=bytes(byte ^ 1 for byte in content[start:]))


def all_of_it(handler, content, start):
    handler.serve(content, 0)


def short_object(handler, content, start):
    handler.serve(content[: len(content) // 2], 0)


def long_object(handler, content, start):
    handler.serve(content + b"more", 0)


def long_without_length(handler, content, start):
    handler.serve(content, 0, body=content + b"more", Content_Length=None)


def no_length(handler, content, start):
    handler.head(200, {"Connection": "close"})
    handler.wfile.write(content)
    handler.close_connection = True


def packed(handler, content, start):
    handler.serve(content, 0, Content_Encoding="gzip")


def range_from(shift, total=None):
    def serve(handler, content, start):
        first, size = start + shift, total or len(content)
        handler.serve(
            content, start, Content_Range=f"bytes {first}-{len(content) - 1}/{size}", Content_Length=None
        )
        handler.close_connection = True

    return serve


def silent(handler, content, start):
    handler.server.release.wait(20)
    handler.close_connection = True


def drip(handler, content, start):
    handler.head(200, {"Content-Length": str(len(content))})
    for place in range(len(content)):
        handler.wfile.write(content[place : place + 1])
        if handler.server.release.wait(0.05):
            break
    handler.close_connection = True


def drip_for_ever(begin):
    """Some bytes, and then one at a time."""

    def serve(handler, content, start):
        handler.wfile.write(begin)
        while not handler.server.release.wait(0.05):
            handler.wfile.write(b"x")

    return serve


def flood(begin, again):
    """Some bytes, and then others as fast as they go; ``CONTENT`` stands for the file in one chunk."""

    def serve(handler, content, start):
        whole = b"%x\r\n%b\r\n0\r\n" % (len(content), content)
        handler.wfile.write(begin.replace(b"CONTENT", whole))
        while not handler.server.release.is_set():
            handler.wfile.write(again * 1000)

    return serve


def raw(answer):
    def serve(handler, content, start):
        handler.wfile.write(answer)
        handler.close_connection = True

    return serve


def redirect_to(address):
    return lambda handler, content, start: handler.answer(302, b"", Location=address)


def slowly(handler, content, start):
    handler.head(
        206 if start else 200,
        {"Content-Length": str(len(content) - start)}
        | ({"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}),
    )
    handler.count(1)
    for place in range(start, len(content), 2**14):
        if handler.server.release.wait(0.01):
            break
        if place + 2**14 >= len(content):
            handler.count(-1)  # before the client knows that it is done
        handler.wfile.write(content[place : place + 2**14])


class Always(list):
    """Tricks that never end."""

    def pop(self, _=0):
        return self[0]


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        http.content, http.tricks = {}, defaultdict(list)
        http.requests, http.active, http.most = [], 0, 0
        http.lock, http.release = threading.Lock(), threading.Event()
        http.base = f"http://127.0.0.1:{http.server_port}/base"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield http
        http.release.set()
        http.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("RAXSS_DATA_URL", raising=False)
    monkeypatch.delenv("RAXSS_DATA", raising=False)


def listed(path, content, algorithm="md5"):
    return ListedFile(path, len(content), algorithm, hashlib.new(algorithm, content).hexdigest())


def offer(server, **sizes):
    """Random content of some sizes on the server, and the list of it."""
    rng = random.Random(69421)
    server.content |= {name: rng.randbytes(size) for name, size in sizes.items()}
    algorithms = ("md5", "sha256")
    return [
        listed(name, server.content[name], algorithms[place % 2]) for place, name in enumerate(server.content)
    ]


def files_in(folder):
    """Content of every file by path, without the record."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and file.name != RECORD
    }


def ranges(server, path):
    return [asked for name, asked in server.requests if name == path]


# --- all goes well


def test_every_file_arrives_whole_and_several_at_a_time(server, tmp_path):
    names = [f"sub-{n}/ieeg/a b+{n}.eeg" for n in range(12)]
    wanted = offer(server, **dict.fromkeys(names, 20_000), empty=0)
    for name in names:
        server.tricks[name].append(slowly)
    told = []
    done = download(wanted, tmp_path / "ds", base=server.base, jobs=4, on_bytes=told.append, **FAST)
    assert files_in(tmp_path / "ds") == server.content
    assert done.fetched == tuple(sorted(server.content))
    assert (done.n_right, done.replaced) == (0, ())
    assert sum(told) == 12 * 20_000
    assert 2 <= server.most <= 4


def test_what_is_there_and_right_is_not_fetched_again(server, tmp_path):
    wanted = offer(server, a=5000, b=6000, c=7000)
    (tmp_path / "a").write_bytes(server.content["a"])  # put there by somebody else
    told = []
    done = download(wanted, tmp_path, base=server.base, on_bytes=told.append, **FAST)
    assert (done.fetched, done.n_right) == (("b", "c"), 1)
    server.requests.clear()
    assert download(wanted, tmp_path, base=server.base, verify=True, **FAST).n_right == 3
    assert server.requests == []
    assert sum(told) == 18_000


def test_a_file_found_right_is_believed_by_length_and_time_and_read_again_on_demand(server, tmp_path):
    wanted = offer(server, a=5000)
    download(wanted, tmp_path, base=server.base, **FAST)
    changed = (tmp_path / "a").stat().st_mtime_ns
    (tmp_path / "a").write_bytes(bytes(5000))
    os.utime(tmp_path / "a", ns=(changed, changed))  # as a failing disk would
    assert download(wanted, tmp_path, base=server.base, **FAST).n_right == 1
    done = download(wanted, tmp_path, base=server.base, verify=True, **FAST)
    assert (done.fetched, done.replaced) == (("a",), ("a",))
    assert files_in(tmp_path) == server.content


@pytest.mark.parametrize("content", [b"", b"short", bytes(5000)])
def test_a_file_with_other_content_is_replaced_and_named(server, tmp_path, content):
    wanted = offer(server, a=5000)
    (tmp_path / "a").write_bytes(content)
    assert download(wanted, tmp_path, base=server.base, **FAST).replaced == ("a",)
    assert files_in(tmp_path) == server.content


# --- the connection fails


def test_a_dropped_connection_goes_on_at_the_byte_where_it_was(server, tmp_path):
    wanted = offer(server, a=100_000)
    server.tricks["a"] = [drop_after(30_000), drop_after(1), drop_after(40_000)]
    told = []
    download(wanted, tmp_path, base=server.base, on_bytes=told.append, **FAST)
    assert files_in(tmp_path) == server.content
    assert ranges(server, "a") == [None, "bytes=30000-", "bytes=30001-", "bytes=70001-"]
    assert sum(told) == 100_000


def test_a_server_that_ignores_ranges_makes_it_start_again(server, tmp_path):
    wanted = offer(server, a=100_000)
    server.tricks["a"] = [drop_after(30_000), all_of_it]
    told = []
    download(wanted, tmp_path, base=server.base, on_bytes=told.append, **FAST)
    assert files_in(tmp_path) == server.content
    assert sum(told) == 100_000
    assert min(told) == -30_000


@pytest.mark.parametrize("answer", [range_from(-1), range_from(1), range_from(0, total=99)])
def test_a_range_that_was_not_asked_for_is_not_glued_on(server, tmp_path, answer):
    wanted = offer(server, a=10_000)
    server.tricks["a"] = [drop_after(3000), answer]
    download(wanted, tmp_path, base=server.base, **FAST)
    assert files_in(tmp_path) == server.content
    assert ranges(server, "a") == [None, "bytes=3000-", None]  # afterwards all of it


@pytest.mark.parametrize("told", ["bytes {}-9999/10000", "bytes 3000-{}/10000", "bytes 3000-9999/{}"])
def test_a_range_with_thousands_of_digits_is_a_wrong_one(server, tmp_path, told):
    wanted = offer(server, a=10_000)
    long_range = told.format("9" * 5000)
    server.tricks["a"] = [
        drop_after(3000),
        lambda handler, content, start: handler.serve(content, start, Content_Range=long_range),
    ]
    download(wanted, tmp_path, base=server.base, **FAST)
    assert files_in(tmp_path) == server.content
    assert ranges(server, "a") == [None, "bytes=3000-", None]


def test_a_range_that_is_always_wrong_is_an_error(server, tmp_path):
    def misled(handler, content, start):
        (range_from(5) if start else drop_after(10))(handler, content, start)

    wanted = offer(server, a=10_000)
    server.tricks["a"] = Always([misled])
    told = r"a \(bytes 10-9999/10000 were asked for, the server sends 'bytes 15-9999/10000', 3 times\)"
    with pytest.raises(RecordingError, match=told):
        download(wanted, tmp_path, base=server.base, **FAST)
    assert files_in(tmp_path) == {}


@pytest.mark.parametrize("code", [500, 502, 503, 504, 429, 408])
def test_a_server_in_trouble_is_asked_again(server, tmp_path, code):
    wanted = offer(server, a=1000)
    server.tricks["a"] = [status(code), status(code)]
    download(wanted, tmp_path, base=server.base, **FAST)
    assert files_in(tmp_path) == server.content


def test_a_server_that_says_when_to_come_back_is_given_that_time(server, tmp_path):
    wanted = offer(server, a=1000)
    server.tricks["a"] = [status(503, **{"Retry-After": "1"})]
    begin = time.monotonic()
    download(wanted, tmp_path, base=server.base, **FAST)
    assert time.monotonic() - begin >= 0.7


@pytest.mark.parametrize("code", [400, 401, 403, 404, 410])
def test_a_file_that_the_server_will_not_give_is_named_and_the_others_arrive(server, tmp_path, code):
    wanted = offer(server, a=1000, b=1000, c=1000)
    server.tricks["b"] = Always([status(code)])
    with pytest.raises(RecordingError, match=rf"1 of 3 files could not be fetched: b \(HTTP {code}"):
        download(wanted, tmp_path, base=server.base, **FAST)
    assert sorted(files_in(tmp_path)) == ["a", "c"]
    assert len(ranges(server, "b")) == 1
    server.tricks["b"] = []
    assert download(wanted, tmp_path, base=server.base, **FAST).fetched == ("b",)


def test_a_server_that_stays_in_trouble_is_given_up_after_so_many_attempts(server, tmp_path):
    wanted = offer(server, a=1000)
    server.tricks["a"] = Always([status(503)])
    with pytest.raises(RecordingError, match=r"a \(HTTP 503 .*, 3 times in a row\)"):
        download(wanted, tmp_path, base=server.base, attempts=3, **FAST)
    assert len(ranges(server, "a")) == 3


def test_nobody_at_the_address_is_an_error_that_names_the_file(tmp_path):
    with pytest.raises(RecordingError, match=r"a \(no connection \(Connection refused\), 2 times in a row\)"):
        download([listed("a", b"abc")], tmp_path, base="http://127.0.0.1:9", attempts=2, **FAST)


def test_a_connection_that_drops_often_but_brings_much_is_no_failure(server, tmp_path):
    wanted = offer(server, a=8 * 2**20)
    server.tricks["a"] = [drop_after(2**20 + 5)] * 7
    download(wanted, tmp_path, base=server.base, attempts=2, **FAST)
    assert files_in(tmp_path) == server.content


def test_a_connection_that_drops_often_and_brings_little_is_given_up(server, tmp_path):
    wanted = offer(server, a=100_000)
    server.tricks["a"] = Always([drop_after(10)])
    with pytest.raises(
        RecordingError, match=r"a \(the connection ended after 40 of 100,000 bytes, 4 times in a row"
    ):
        download(wanted, tmp_path, base=server.base, attempts=4, **FAST)
    assert files_in(tmp_path) == {".a.partial": server.content["a"][:40]}


@pytest.mark.parametrize(
    "trick",
    [
        silent,
        drip,
        drip_for_ever(b""),
        drip_for_ever(b"HTTP/1.1 200 OK\r\nX-Slow: "),
        drip_for_ever(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5; extension="),
        flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        flood(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nCONTENT", b"X: a trailer\r\n"),
    ],
    ids=["silent", "body", "status", "header", "extension", "continue", "trailer"],
)
def test_a_server_that_hardly_answers_counts_as_dropped(server, tmp_path, trick):
    wanted = offer(server, a=10_000)
    server.tricks["a"] = [trick]
    begin = time.monotonic()
    download(wanted, tmp_path, base=server.base, timeout=0.3, backoff=0.01)
    assert time.monotonic() - begin < 5
    assert files_in(tmp_path) == server.content


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 \x1b[31mno\x07\r\n\r\n",
        b"HTTP/1.1 503 \x1b]0;mine\x07\x9b1m\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: \x1b[31m\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\x1b[31m\r\n\r\n",
        b"\x1b[31mhello\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: /base/a\r\nContent-Length: 0\r\n\r\n",  # urllib's text has line ends
    ],
)
def test_what_a_server_says_cannot_steer_a_terminal(server, tmp_path, answer):
    wanted = offer(server, a=1000)
    server.tricks["a"] = Always([raw(answer)])
    with pytest.raises(RecordingError, match=r"1 of 1 files could not be fetched: a \(") as raised:
        download(wanted, tmp_path, base=server.base, attempts=2, **FAST)
    assert str(raised.value).isprintable()


def test_other_files_are_called_right_only_where_there_are_some(server, tmp_path):
    wanted = offer(server, a=1000, b=1000)
    server.tricks["a"] = server.tricks["b"] = Always([status(404)])
    with pytest.raises(RecordingError, match=r"2 of 2 files") as raised:
        download(wanted, tmp_path, base=server.base, **FAST)
    assert "others" not in str(raised.value)
    server.tricks["b"] = []
    with pytest.raises(RecordingError, match=r"1 of 2 files .* The others are there and right"):
        download(wanted, tmp_path, base=server.base, **FAST)


# --- the bytes are wrong


def test_wrong_bytes_are_thrown_away_and_fetched_again(server, tmp_path):
    wanted = offer(server, a=50_000, b=50_000)
    server.tricks["a"] = [other_bytes]
    server.tricks["b"] = [drop_after(20_000), other_bytes]  # right at first, then wrong
    download(wanted, tmp_path, base=server.base, **FAST)
    assert files_in(tmp_path) == server.content
    assert ranges(server, "b") == [None, "bytes=20000-", None]


@pytest.mark.parametrize(
    ("trick", "told"),
    [
        (other_bytes, r"the md5 sum is not the listed one, 3 times"),
        (short_object, r"the server announces 5000 bytes where 10000 are listed, 3 times"),
        (long_object, r"the server announces 10004 bytes where 10000 are listed, 3 times"),
        (long_without_length, r"more than the listed 10,000 bytes arrived, 3 times"),
        (packed, r"the server packs files \(gzip\), 3 times"),
    ],
)
def test_bytes_that_are_always_wrong_are_an_error_and_leave_nothing(server, tmp_path, trick, told):
    wanted = offer(server, a=10_000, b=10_000)
    server.tricks["a"] = Always([trick])
    with pytest.raises(RecordingError, match=rf"1 of 2 files could not be fetched: a \({told}\)"):
        download(wanted, tmp_path, base=server.base, **FAST)
    assert files_in(tmp_path) == {"b": server.content["b"]}
    assert len(ranges(server, "a")) == 3


def test_a_body_without_a_length_is_taken_if_it_is_right(server, tmp_path):
    wanted = offer(server, a=10_000)
    server.tricks["a"] = [no_length]
    download(wanted, tmp_path, base=server.base, **FAST)
    assert files_in(tmp_path) == server.content


@pytest.mark.parametrize("left", [b"", b"x" * 400, b"x" * 1000, b"x" * 2000])
def test_a_partial_file_with_wrong_bytes_ends_right(server, tmp_path, left):
    wanted = offer(server, a=1000)
    (tmp_path / ".a.partial").write_bytes(left)
    download(wanted, tmp_path, base=server.base, **FAST)
    assert files_in(tmp_path) == server.content


def test_a_whole_partial_file_needs_no_request(server, tmp_path):
    wanted = offer(server, a=1000)
    (tmp_path / ".a.partial").write_bytes(server.content["a"])
    download(wanted, tmp_path, base=server.base, **FAST)
    assert files_in(tmp_path) == server.content
    assert server.requests == []


# --- redirects


def test_a_redirect_is_followed_and_keeps_the_range(server, tmp_path):
    wanted = offer(server, a=10_000)
    server.content["elsewhere"] = server.content["a"]
    server.tricks["a"] = [drop_after(4000), redirect_to(f"{server.base}/elsewhere")]
    download(wanted, tmp_path, base=server.base, **FAST)
    assert files_in(tmp_path) == {"a": server.content["a"]}
    assert ranges(server, "elsewhere") == ["bytes=4000-"]


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://127.0.0.1/a", "data:,hello"])
def test_a_redirect_to_something_else_than_http_is_refused(server, tmp_path, address):
    wanted = offer(server, a=1000)
    server.tricks["a"] = Always([redirect_to(address)])
    with pytest.raises(RecordingError, match=r"1 of 1 files could not be fetched: a \((HTTP 302|.*ftp)"):
        download(wanted, tmp_path, base=server.base, **FAST)
    assert files_in(tmp_path) == {}


@pytest.mark.parametrize(
    "address", ["http://[::1", "http://a..b/", "http://127.0.0.1:99999999/", "http://127.0.0.1:x/"]
)
def test_a_redirect_to_no_address_concerns_that_file_only(server, tmp_path, address):
    wanted = offer(server, a=1000, b=1000)
    server.tricks["a"] = Always([redirect_to(address)])
    with pytest.raises(
        RecordingError, match=r"1 of 2 files could not be fetched: a \(.*, 2 times in a row\)"
    ):
        download(wanted, tmp_path, base=server.base, attempts=2, **FAST)
    assert files_in(tmp_path) == {"b": server.content["b"]}
    server.tricks["a"] = [redirect_to(address)]
    assert download(wanted, tmp_path, base=server.base, **FAST).fetched == ("a",)


def test_what_comes_with_a_redirect_is_not_waited_for(server, tmp_path):
    wanted = offer(server, a=1000)
    server.content["elsewhere"] = server.content["a"]
    to = f"HTTP/1.1 302 Found\r\nLocation: {server.base}/elsewhere\r\n\r\n"
    server.tricks["a"] = [flood(to.encode(), b"no end")]
    download(wanted, tmp_path, base=server.base, **FAST)
    assert files_in(tmp_path) == {"a": server.content["a"]}


def test_redirects_in_a_circle_end(server, tmp_path):
    wanted = offer(server, a=1000)
    server.tricks["a"] = Always([redirect_to(f"{server.base}/a")])
    with pytest.raises(RecordingError, match=r"a \(HTTP 302"):
        download(wanted, tmp_path, base=server.base, **FAST)


def test_a_redirect_from_https_to_http_is_refused():
    request = urllib.request.Request("https://archive.example/a")
    for address, refused in (("http://archive.example/a", True), ("https://mirror.example/a", False)):
        answer = BytesIO()
        arguments = (request, answer, 302, "Found", Message(), address)
        if refused:
            with pytest.raises(_Refused, match="from https to http"):
                _SafeRedirects().redirect_request(*arguments)
            assert answer.closed
        else:
            assert _SafeRedirects().redirect_request(*arguments).full_url == address


@pytest.fixture
def certificate(server, tmp_path):
    """The server speaks https; a file with its certificate, which it signed itself."""
    files = ["-keyout", "key.pem", "-out", "cert.pem"]
    name = ["-subj", "/CN=a", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *name, *files],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("openssl cannot make a certificate here")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # the client hangs up
    server.base = server.base.replace("http://", "https://")
    return tmp_path / "cert.pem"


def test_a_certificate_that_nobody_vouches_for_is_refused_at_once(server, certificate, tmp_path):
    wanted = offer(server, a=1000)
    with pytest.raises(RecordingError, match=r"a \(the server's certificate is not valid: self.signed"):
        download(wanted, tmp_path / "ds", base=server.base, **FAST)
    assert server.requests == []


def test_https_with_a_good_certificate_arrives_though_it_drops_and_drips(
    server, certificate, tmp_path, monkeypatch
):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    wanted = offer(server, a=100_000)
    server.tricks["a"] = [drop_after(30_000), drip_for_ever(b"HTTP/1.1 200 OK\r\nX-Slow: ")]
    begin = time.monotonic()
    download(wanted, tmp_path / "ds", base=server.base, timeout=0.5, backoff=0.01)
    assert time.monotonic() - begin < 5
    assert files_in(tmp_path / "ds") == server.content
    assert ranges(server, "a")[:3] == [None, "bytes=30000-", "bytes=30000-"]


def test_the_proxy_of_the_environment_is_asked(server, tmp_path, monkeypatch):
    wanted = offer(server, a=1000)
    server.content["http://archive.example/ds/a"] = server.content[
        "a"
    ]  # a proxy is asked for whole addresses
    monkeypatch.setenv("http_proxy", server.base.removesuffix("/base"))
    download(wanted, tmp_path, base="http://archive.example/ds", **FAST)
    assert files_in(tmp_path) == {"a": server.content["a"]}
    assert [path for path, _ in server.requests] == ["http://archive.example/ds/a"]


# --- the disk


@pytest.mark.parametrize("path", ["../out", "/tmp/out", "a/../../out", "a\\..\\out"])
def test_a_path_that_leaves_the_folder_is_refused_before_any_request(server, tmp_path, path):
    with pytest.raises(RecordingError, match=re.escape(repr(path))):
        download([ListedFile(path, 1, "md5", "0" * 32)], tmp_path / "ds", base=server.base, **FAST)
    assert server.requests == []
    assert files_in(tmp_path) == {}


def test_a_folder_that_is_a_link_out_is_refused(server, tmp_path):
    wanted = offer(server, **{"sub-1/a": 100})
    (tmp_path / "ds").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "ds" / "sub-1").symlink_to(tmp_path / "outside")
    with pytest.raises(RecordingError, match=r"'sub-1/a' would be written outside"):
        download(wanted, tmp_path / "ds", base=server.base, **FAST)
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_link_in_the_files_place_is_replaced_not_followed(server, tmp_path):
    wanted = offer(server, a=100)
    (tmp_path / "ds").mkdir()
    (tmp_path / "secret").write_bytes(b"keep me")
    for name in ("a", ".a.partial"):
        (tmp_path / "ds" / name).symlink_to(tmp_path / "secret")
    download(wanted, tmp_path / "ds", base=server.base, **FAST)
    assert (tmp_path / "secret").read_bytes() == b"keep me"
    assert not (tmp_path / "ds" / "a").is_symlink()
    assert (tmp_path / "ds" / "a").read_bytes() == server.content["a"]


def test_too_little_room_is_said_before_the_first_byte(server, tmp_path):
    wanted = [ListedFile("a", 10**18, "md5", "0" * 32)]
    with pytest.raises(
        OutputError, match=r"need 1000000000.00 GB more and the disk of 'ds' has \d+\.\d\d GB free"
    ):
        download(wanted, tmp_path / "ds", base=server.base, **FAST)
    assert server.requests == []


def test_a_full_disk_stops_the_download_and_keeps_what_came(server, tmp_path):
    wanted = offer(server, a=200_000, b=200_000)
    told = r"cannot write 'a': File too large. What was received is kept"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))  # a write beyond it fails: EFBIG
    try:
        with pytest.raises(OutputError, match=told):
            download(wanted, tmp_path / "ds", base=server.base, jobs=1, **FAST)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert files_in(tmp_path / "ds") == {".a.partial": server.content["a"][:50_000]}
    download(wanted, tmp_path / "ds", base=server.base, **FAST)
    assert files_in(tmp_path / "ds") == server.content


def test_a_place_that_cannot_be_written_is_an_error(server, tmp_path):
    (tmp_path / "ds").write_bytes(b"")
    with pytest.raises(OutputError, match=r"there is a file of that name"):
        download(offer(server, a=1), tmp_path / "ds", base=server.base, **FAST)


def test_two_downloads_into_one_folder_do_not_meet(server, tmp_path):
    wanted = offer(server, a=100_000)
    server.tricks["a"] = [silent]
    errors = []

    def first():
        try:
            download(wanted, tmp_path, base=server.base, **FAST)
        except RecordingError as error:
            errors.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    wait_until(lambda: server.requests)
    with pytest.raises(OutputError, match=f"{tmp_path.name!r} is being written by another thread"):
        download(wanted, tmp_path, base=server.base, **FAST)
    server.release.set()
    thread.join()
    assert errors == []
    assert files_in(tmp_path) == server.content


def test_a_record_that_a_kill_cut_off_does_no_harm(server, tmp_path):
    wanted = offer(server, a=1000, b=1000)
    download(wanted, tmp_path, base=server.base, **FAST)
    record = (tmp_path / RECORD).read_bytes()
    digits = b"a\t" + b"9" * 5000 + b"\tno sum\n"
    for left in (record[:-20], record[:10], b"\xff\x00 nonsense\n\n\t\t\n", digits, b""):
        (tmp_path / RECORD).write_bytes(left)
        assert download(wanted, tmp_path, base=server.base, **FAST).n_right == 2
        assert download(wanted, tmp_path, base=server.base, **FAST).n_right == 2


# --- settings


@pytest.mark.parametrize(
    ("base", "told"),
    [
        ("ftp://archive.example", r"the scheme 'ftp'"),
        ("file:///etc", r"the scheme 'file'"),
        ("archive.example/ds", r"the scheme ''"),
        ("https://user:word@archive.example", r"without user name"),
        ("https://archive.example/ds?key=1", r"has a '\?' or '#'"),
        ("http://[::1", r"the base address .* --base"),
        ("https://user:word@[::1", r"the base address .* --base"),
        ("http://a..b", r"the base address .* --base"),
        (f"http://{'a' * 64}.example", r"the base address .* --base"),
        ("http://archive.example:word", r"the base address .* --base"),
        ("http://archive.example:99999", r"the base address .* --base"),
        ("http://\u03b1rchive.example", r"the base address .* --base"),
        ("http://archive.example/a word", r"the base address .* --base"),
        ("http://archive.example/w\u00f6rd", r"the base address .* --base"),
    ],
)
def test_an_address_that_is_no_plain_one_is_refused(tmp_path, base, told):
    with pytest.raises(ConfigError, match=told) as raised:
        download([], tmp_path, base=base)
    assert "word" not in str(raised.value)
    assert raised.value.__cause__ is None  # nor in what a debug run shows


def test_a_file_listed_twice_and_numbers_out_of_range_are_refused(tmp_path):
    item = listed("a", b"abc")
    with pytest.raises(RecordingError, match=r"names 'a' twice"):
        download([item, item], tmp_path, base="http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"jobs is 0"):
        download([item], tmp_path, base="http://127.0.0.1:9", jobs=0)


def test_a_size_with_thousands_of_digits_is_refused_in_few_words():
    table = f"path\tsize_bytes\tmd5\na\t{'9' * 5000}\t{'0' * 32}\n"
    with pytest.raises(
        RecordingError, match=r"line 2, has '9+\.\.\.9+' as size and '0{32}' as md5"
    ) as raised:
        listing.read_listing(table)
    assert len(str(raised.value)) < 300


def test_nothing_to_fetch_is_no_error(tmp_path):
    assert download([], tmp_path, base="http://127.0.0.1:9").fetched == ()


def test_a_fault_of_our_own_in_a_thread_reaches_the_caller(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download_module, "_first_byte", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        download(offer(server, a=10, b=10), tmp_path, base=server.base, **FAST)


# --- somebody ends the process


DOWNLOADS = (  # one for each line that comes in: to import all of it every time would take longest
    "import json, os, sys\n"
    "from raxss.data.datasets.download import download\n"
    "from raxss.data.datasets.listing import ListedFile\n"
    "wanted = [ListedFile(*one) for one in json.loads(sys.argv[1])]\n"
    "for _ in sys.stdin:\n"
    "    if (process := os.fork()) == 0:\n"
    "        download(wanted, sys.argv[2], base=sys.argv[3], jobs=3)\n"
    "        os._exit(0)\n"
    "    print(process, flush=True)\n"
    "    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)\n"
)


def arguments(script, wanted, folder, base):
    rows = json.dumps([(item.path, item.size, item.algorithm, item.digest) for item in wanted])
    return [sys.executable, "-c", script, rows, str(folder), base]


def wait_until(holds, seconds=20.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def received(folder):
    """Bytes of all files that are there, while another process may rename them."""
    total = 0
    for file in folder.rglob("*.eeg*"):
        with suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


def test_a_download_that_is_killed_again_and_again_ends_byte_for_byte_the_same(server, tmp_path):
    names = [f"sub-{n}/a.eeg" for n in range(5)]
    wanted = offer(server, **dict.fromkeys(names, 1_500_000))
    for name in names:
        server.tricks[name] = Always([slowly])
    folder, rng = tmp_path / "ds", random.Random(69421)
    with subprocess.Popen(
        arguments(DOWNLOADS, wanted, folder, server.base),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as starter:
        for _ in range(4):
            grown = received(folder) + rng.randrange(100_000, 1_200_000)
            starter.stdin.write("\n")
            process = int(starter.stdout.readline())
            wait_until(lambda grown=grown: received(folder) > grown)
            os.kill(process, signal.SIGKILL)
            assert int(starter.stdout.readline()) == -signal.SIGKILL
            for path, content in files_in(folder).items():
                whole = server.content[path.replace("/.", "/").removesuffix(".partial")]
                assert whole.startswith(content)
                assert path.endswith(".partial") or content == whole  # whole, or not at all
    kept = received(folder)
    assert 0 < kept < 7_500_000
    server.requests.clear()
    server.tricks.clear()
    download(wanted, folder, base=server.base, **FAST)
    assert files_in(folder) == server.content
    resumed = [int(asked.removeprefix("bytes=").removesuffix("-")) for _, asked in server.requests if asked]
    whole_before = sum(name not in {path for path, _ in server.requests} for name in names)
    assert sum(resumed) + whole_before * 1_500_000 == kept  # nothing that was there came again


def test_ctrl_c_ends_at_once_and_the_same_command_goes_on(server, tmp_path, monkeypatch):
    wanted = offer(server, **dict.fromkeys("abcdefgh", 100_000))
    server.tricks |= {name: [silent] for name in "bcdefgh"} | {"a": [drop_after(60_000), silent]}
    script = (
        "import json, sys\n"
        "from raxss.data.datasets import dataset\n"
        "wanted = tuple(dataset.ListedFile(*one) for one in json.loads(sys.argv[1]))\n"
        "dataset.listed_files = lambda tables: wanted\n"
        "from raxss.cli import main\n"
        "command = ['raxss', 'datasets', 'download', 'ds003029', '--jobs', '8']\n"
        "sys.argv = [*command, '--root', sys.argv[2], '--base', sys.argv[3]]\n"
        "main()\n"
    )
    with subprocess.Popen(
        arguments(script, wanted, tmp_path, server.base),
        stderr=subprocess.PIPE,
        text=True,
        # what runs these tests may ignore Ctrl-C, and children inherit that
        preexec_fn=hears_ctrl_c,
    ) as process:
        wait_until(lambda: len(server.requests) == 9)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130
    assert time.monotonic() - begin < 5  # though all connections are silent
    assert "What was received is kept; the same command goes on." in said
    assert "Traceback" not in said
    assert files_in(tmp_path) == {"ds003029/.a.partial": server.content["a"][:60_000]}
    monkeypatch.setattr(dataset_module, "listed_files", lambda tables: tuple(wanted))
    assert "8 files are there and right: 8 fetched" in command(tmp_path, server.base).output
    assert files_in(tmp_path / "ds003029") == server.content
    assert ranges(server, "a")[-1] == "bytes=60000-"


# --- on the command line


def command(root, base, *more):
    line = ["datasets", "download", "ds003029", "--root", str(root), "--base", base, *more]
    return CliRunner().invoke(app, line, catch_exceptions=False)


def test_the_command_fetches_the_real_sidecars_and_names_what_the_server_lacks(shared_data, server, tmp_path):
    source = shared_data / "ds003029"
    server.content = {
        file.relative_to(source).as_posix(): file.read_bytes() for file in source.rglob("*") if file.is_file()
    }
    lacking = r"1 of \d+ files could not be fetched: sourcedata/clinical_data_summary.xlsx \(HTTP 404"
    with pytest.raises(RecordingError, match=lacking):
        command(tmp_path, server.base, "--only", "*.tsv", "--only", "*.json", "--jobs", "8")
    arrived = files_in(tmp_path / "ds003029")
    added = {"README.md", "annex_manifest.tsv", "SHA256SUMS"}
    assert arrived == {path: content for path, content in server.content.items() if path not in added}
    assert len(arrived) == 362


def test_a_download_without_a_place_says_how_to_give_one():
    with pytest.raises(ConfigError, match=r"where dataset 'ds003029' goes .* --root, .* RAXSS_DATA"):
        CliRunner().invoke(app, ["datasets", "download", "ds003029"], catch_exceptions=False)


def test_the_address_comes_from_the_variable_too(server, tmp_path, monkeypatch):
    wanted = offer(server, **{"participants.tsv": 100, "sub-a/x.eeg": 1000, "sub-b/x.eeg": 1000})
    monkeypatch.setattr(dataset_module, "listed_files", lambda tables: tuple(wanted))
    monkeypatch.setenv("RAXSS_DATA_URL", server.base)
    monkeypatch.setenv("RAXSS_DATA", str(tmp_path))
    told = CliRunner().invoke(
        app, ["datasets", "download", "ds003029", "--only", "a"], catch_exceptions=False
    )
    assert "2 files are there and right: 2 fetched, 0 were there before." in told.output
    assert sorted(files_in(tmp_path / "ds003029")) == ["participants.tsv", "sub-a/x.eeg"]
    assert str(tmp_path) not in told.output
    (tmp_path / "ds003029" / "sub-a" / "x.eeg").write_bytes(b"mine")
    told = command(tmp_path, server.base)
    assert "3 files are there and right: 2 fetched, 1 were there before." in told.output
    assert "1 had other content and were replaced: sub-a/x.eeg" in told.output
