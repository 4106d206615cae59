"""An HTTP server that misbehaves on request, for the tests of downloads."""

import hashlib
import random
import threading
from collections import defaultdict
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from raxss.data.datasets.download import download
from raxss.data.datasets.listing import ListedFile


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
