"""An HTTP server that misbehaves on request, for the tests of downloads."""

import hashlib
import random
import threading
from collections import defaultdict
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from raxss.data.datasets.dataset import ListedFile
from raxss.data.datasets.download import download


class Server(ThreadingHTTPServer):
    """Serves ``content`` below ``base``; a file with ``tricks`` uses them up first, one a request."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.tricks, self.wanted = {}, defaultdict(list), []
        self.requests, self.active, self.most = [], 0, 0
        self.lock, self.release = threading.Lock(), threading.Event()
        self.base = f"http://127.0.0.1:{self.server_port}/base"

    def offer(self, **sizes):
        """Random content of some sizes, and the list of it."""
        rng = random.Random(69421)
        self.content |= {name: rng.randbytes(size) for name, size in sizes.items()}
        algorithms = ("md5", "sha256")
        self.wanted = [
            listed(name, content, algorithms[place % 2])
            for place, (name, content) in enumerate(self.content.items())
        ]
        return self.wanted

    def get(self, folder, **options):
        """Download all that was offered."""
        return download(
            self.wanted, folder, **{"base": self.base, "backoff": 0.01, "timeout": 5.0, **options}
        )

    def ranges(self, path):
        return [requested for name, requested in self.requests if name == path]


def listed(path, content, algorithm="md5"):
    return ListedFile(path, len(content), algorithm, hashlib.new(algorithm, content).hexdigest())


@contextmanager
def running_server():
    with Server() as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield http
        http.release.set()
        http.shutdown()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = unquote(self.path).removeprefix("/base/")
        requested = self.headers.get("Range")
        with self.server.lock:
            self.server.requests.append((path, requested))
            tricks = self.server.tricks[path]
            trick = tricks.pop(0) if tricks else None
        try:
            content = self.server.content.get(path)
            start = int(requested.removeprefix("bytes=").removesuffix("-")) if requested else 0
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
        """Send the requested bytes, or ``body`` instead."""
        sent = content[start:] if body is None else body
        changes = {name.replace("_", "-"): value for name, value in headers.items()}
        self.head(206 if start else 200, self.usual_headers(content, start) | changes)
        self.wfile.write(sent)
        if len(sent) != len(content) - start:
            self.close_connection = True

    def usual_headers(self, content, start):
        headers = {"Content-Length": str(len(content) - start)}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        return headers

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
    """Some bytes, and then others as fast as they go; ``CONTENT`` is replaced by the file in one chunk."""

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
    handler.head(206 if start else 200, handler.usual_headers(content, start))
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


def digits(header):
    """A range with thousands of digits."""
    return lambda handler, content, start: handler.serve(
        content, start, Content_Range=header.format("9" * 5000)
    )


NO_ADDRESSES = ["http://[::1", "http://a..b/", "http://127.0.0.1:99999999/", "http://127.0.0.1:x/"]
ARRIVES = {  # size, tricks, ranges that are requested
    "dropped": (
        100_000,
        [drop_after(30_000), drop_after(1), drop_after(40_000)],
        [None, "bytes=30000-", "bytes=30001-", "bytes=70001-"],
    ),
    "ranges ignored": (100_000, [drop_after(30_000), all_of_it], [None, "bytes=30000-"]),
    "a range too early": (10_000, [drop_after(3000), range_from(-1)], [None, "bytes=3000-", None]),
    "a range too late": (10_000, [drop_after(3000), range_from(1)], [None, "bytes=3000-", None]),
    "a range of 99": (10_000, [drop_after(3000), range_from(0, total=99)], [None, "bytes=3000-", None]),
    "digits first": (
        10_000, [drop_after(3000), digits("bytes {}-9999/10000")], [None, "bytes=3000-", None]
    ),
    "digits last": (10_000, [drop_after(3000), digits("bytes 3000-{}/10000")], [None, "bytes=3000-", None]),
    "digits of": (10_000, [drop_after(3000), digits("bytes 3000-9999/{}")], [None, "bytes=3000-", None]),
    **{f"HTTP {code}": (1000, [status(code)] * 2, [None] * 3) for code in (500, 502, 503, 504, 429, 408)},
    **{f"to {address}": (1000, [redirect_to(address)], [None] * 2) for address in NO_ADDRESSES},
    "no length": (10_000, [no_length], [None]),
    "wrong bytes": (50_000, [other_bytes], [None] * 2),
    "wrong bytes later": (50_000, [drop_after(20_000), other_bytes], [None, "bytes=20000-", None]),
}  # fmt: skip


def misled(handler, content, start):
    (range_from(5) if start else drop_after(10))(handler, content, start)


FAILS = {  # trick, reason, number of requests
    "wrong ranges": (
        misled,
        r"bytes 10-9999/10000 were asked for, the server sends 'bytes 15-9999/10000', 3 times\)",
        6,
    ),
    **{f"HTTP {code}": (status(code), rf"HTTP {code}", 1) for code in (400, 401, 403, 404, 410)},
    "HTTP 503": (status(503), r"HTTP 503 .*, 4 times in a row\)", 4),
    "few bytes": (drop_after(10), r"the connection ended after 40 of 10,000 bytes, 4 times in a row", 4),
    "other bytes": (other_bytes, r"the md5 sum is not the listed one, 3 times\)", 3),
    "short": (short_object, r"the server announces 5000 bytes where 10000 are listed, 3 times\)", 3),
    "long": (long_object, r"the server announces 10004 bytes where 10000 are listed, 3 times\)", 3),
    "long without length": (
        long_without_length, r"more than the listed 10,000 bytes arrived, 3 times\)", 3
    ),
    "packed": (packed, r"the server packs files \(gzip\), 3 times\)", 3),
    **{
        f"to {address}": (redirect_to(address), r"(HTTP 302|.*ftp)", 1)
        for address in ("file:///etc/passwd", "ftp://127.0.0.1/a", "data:,hello")
    },
    **{f"to {address}": (redirect_to(address), r".*, 4 times in a row\)", 4) for address in NO_ADDRESSES},
    **{  # what a server sends cannot steer a terminal
        f"escapes {number}": (raw(answer), "", None)
        for number, answer in enumerate(
            [
                b"HTTP/1.1 404 \x1b[31mno\x07\r\n\r\n",
                b"HTTP/1.1 503 \x1b]0;mine\x07\x9b1m\r\n\r\n",
                b"HTTP/1.1 200 OK\r\nContent-Encoding: \x1b[31m\r\n\r\n",
                b"HTTP/1.1 200 OK\r\nContent-Length: 1\x1b[31m\r\n\r\n",
                b"\x1b[31mhello\r\n\r\n",
                b"HTTP/1.1 302 Found\r\nLocation: /base/a\r\nContent-Length: 0\r\n\r\n",  # urllib adds line ends
            ]
        )
    },
}  # fmt: skip
