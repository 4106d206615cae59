"""Downloads from a real HTTP server that misbehaves in every way we could think of."""

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
from contextlib import suppress
from email.message import Message
from io import BytesIO

import pytest
from typer.testing import CliRunner

from bad_server import (
    ARRIVES,
    FAILS,
    Always,
    drip,
    drip_for_ever,
    drop_after,
    flood,
    listed,
    redirect_to,
    running_server,
    silent,
    slowly,
    status,
)
from raxss.cli import app
from raxss.data.datasets import dataset as dataset_module
from raxss.data.datasets import download as download_module
from raxss.data.datasets.dataset import ListedFile
from raxss.data.datasets.download import RECORD, _Refused, _SafeRedirects, download
from raxss.errors import ConfigError, OutputError, RecordingError
from toys import hears_ctrl_c


@pytest.fixture
def server():
    with running_server() as http:
        yield http


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.delenv("RAXSS_DATA_URL", raising=False)
    monkeypatch.delenv("RAXSS_DATA", raising=False)


def files_in(folder):
    """Content of every file by path, without the record."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and file.name != RECORD
    }


# --- all goes well


def test_every_file_arrives_whole_and_several_at_a_time(server, tmp_path):
    names = [f"sub-{n}/ieeg/a b+{n}.eeg" for n in range(12)]
    server.offer(**dict.fromkeys(names, 20_000), empty=0)
    for name in names:
        server.tricks[name].append(slowly)
    counts = []
    done = server.get(tmp_path / "ds", jobs=4, on_bytes=counts.append)
    assert files_in(tmp_path / "ds") == server.content
    assert done.fetched == tuple(sorted(server.content))
    assert (done.n_right, done.replaced) == (0, ())
    assert sum(counts) == 12 * 20_000
    assert 2 <= server.most <= 4


def test_what_is_there_and_right_is_not_fetched_again(server, tmp_path):
    server.offer(a=5000, b=6000, c=7000)
    (tmp_path / "a").write_bytes(server.content["a"])  # put there by hand
    counts = []
    done = server.get(tmp_path, on_bytes=counts.append)
    assert (done.fetched, done.n_right) == (("b", "c"), 1)
    server.requests.clear()
    assert server.get(tmp_path, verify=True).n_right == 3
    assert server.requests == []
    assert sum(counts) == 18_000


def test_a_file_found_right_is_believed_by_length_and_time_and_read_again_on_demand(server, tmp_path):
    server.offer(a=5000)
    server.get(tmp_path)
    changed = (tmp_path / "a").stat().st_mtime_ns
    (tmp_path / "a").write_bytes(bytes(5000))
    os.utime(tmp_path / "a", ns=(changed, changed))  # as a failing disk would
    assert server.get(tmp_path).n_right == 1
    done = server.get(tmp_path, verify=True)
    assert (done.fetched, done.replaced) == (("a",), ("a",))
    assert files_in(tmp_path) == server.content
    for content in (b"", b"short", bytes(5000)):
        (tmp_path / "a").write_bytes(content)
        assert server.get(tmp_path).replaced == ("a",)
        assert files_in(tmp_path) == server.content


# --- connections that fail and bytes that are wrong


@pytest.mark.parametrize("name", ARRIVES)
def test_a_file_arrives_in_spite_of(server, tmp_path, name):
    size, tricks, ranges = ARRIVES[name]
    server.offer(a=size)
    server.tricks["a"] = list(tricks)
    counts = []
    server.get(tmp_path, on_bytes=counts.append)
    assert files_in(tmp_path) == server.content
    assert server.ranges("a") == ranges
    assert sum(counts) == size


@pytest.mark.parametrize("name", FAILS)
def test_a_file_that_cannot_be_had_is_named_and_the_others_arrive(server, tmp_path, name):
    trick, reason, n_requests = FAILS[name]
    server.offer(a=10_000, b=10_000)
    server.tricks["a"] = Always([trick])
    with pytest.raises(RecordingError, match=rf"1 of 2 files could not be fetched: a \({reason}") as raised:
        server.get(tmp_path, attempts=4)
    assert str(raised.value).isprintable()
    assert "The others are there and right" in str(raised.value)
    assert n_requests in (None, len(server.ranges("a")))
    partial = {".a.partial": server.content["a"][:40]} if name == "few bytes" else {}
    assert files_in(tmp_path) == {"b": server.content["b"], **partial}
    server.tricks["a"] = []
    assert server.get(tmp_path).fetched == ("a",)
    server.tricks["a"], server.wanted = Always([status(404)]), server.wanted[:1]
    with pytest.raises(RecordingError, match=r"1 of 1 files") as raised:
        server.get(tmp_path / "alone")
    assert "others" not in str(raised.value)


def test_retry_after_is_waited_for(server, tmp_path):
    server.offer(a=1000)
    server.tricks["a"] = [status(503, **{"Retry-After": "1"})]
    begin = time.monotonic()
    server.get(tmp_path)
    assert time.monotonic() - begin >= 0.7


def test_nobody_at_the_address_is_an_error_that_names_the_file(tmp_path):
    with pytest.raises(RecordingError, match=r"a \(no connection \(Connection refused\), 2 times in a row\)"):
        download([listed("a", b"abc")], tmp_path, base="http://127.0.0.1:9", attempts=2, backoff=0.01)


def test_a_connection_that_drops_often_but_brings_much_is_no_failure(server, tmp_path):
    server.offer(a=8 * 2**20)
    server.tricks["a"] = [drop_after(2**20 + 5)] * 7
    server.get(tmp_path, attempts=2)
    assert files_in(tmp_path) == server.content


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
    server.offer(a=10_000)
    server.tricks["a"] = [trick]
    begin = time.monotonic()
    server.get(tmp_path, timeout=0.3, backoff=0.01)
    assert time.monotonic() - begin < 5
    assert files_in(tmp_path) == server.content


@pytest.mark.parametrize("left", [b"", b"x" * 400, b"x" * 1000, b"x" * 2000])
def test_a_partial_file_with_wrong_bytes_ends_right(server, tmp_path, left):
    server.offer(a=1000)
    (tmp_path / ".a.partial").write_bytes(left or server.content["a"])
    server.get(tmp_path)
    assert files_in(tmp_path) == server.content
    assert bool(left) == bool(server.requests)  # a whole one needs none


# --- redirects


def test_a_redirect_is_followed_and_keeps_the_range(server, tmp_path):
    server.offer(a=10_000)
    server.content["elsewhere"] = server.content["a"]
    server.tricks["a"] = [drop_after(4000), redirect_to(f"{server.base}/elsewhere")]
    server.get(tmp_path)
    assert files_in(tmp_path) == {"a": server.content["a"]}
    assert server.ranges("elsewhere") == ["bytes=4000-"]
    to = f"HTTP/1.1 302 Found\r\nLocation: {server.base}/elsewhere\r\n\r\n"
    server.tricks["a"] = [flood(to.encode(), b"no end")]  # what comes with a redirect is not waited for
    server.get(tmp_path / "again")
    assert files_in(tmp_path / "again") == {"a": server.content["a"]}


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
    server.offer(a=1000)
    with pytest.raises(RecordingError, match=r"a \(the server's certificate is not valid: self.signed"):
        server.get(tmp_path / "ds")
    assert server.requests == []


def test_https_with_a_good_certificate_arrives_though_it_drops_and_drips(
    server, certificate, tmp_path, monkeypatch
):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    server.offer(a=100_000)
    server.tricks["a"] = [drop_after(30_000), drip_for_ever(b"HTTP/1.1 200 OK\r\nX-Slow: ")]
    begin = time.monotonic()
    server.get(tmp_path / "ds", timeout=0.5, backoff=0.01)
    assert time.monotonic() - begin < 5
    assert files_in(tmp_path / "ds") == server.content
    assert server.ranges("a")[:3] == [None, "bytes=30000-", "bytes=30000-"]


def test_the_proxy_of_the_environment_is_used(server, tmp_path, monkeypatch):
    server.offer(a=1000)
    address = "http://archive.example/ds/a"  # a proxy gets whole addresses
    server.content[address] = server.content["a"]
    monkeypatch.setenv("http_proxy", server.base.removesuffix("/base"))
    server.get(tmp_path, base="http://archive.example/ds")
    assert files_in(tmp_path) == {"a": server.content["a"]}
    assert [path for path, _ in server.requests] == [address]


# --- the disk


@pytest.mark.parametrize("path", ["../out", "/tmp/out", "a/../../out", "a\\..\\out"])
def test_a_path_that_leaves_the_folder_is_refused_before_any_request(server, tmp_path, path):
    with pytest.raises(RecordingError, match=re.escape(repr(path))):
        download([ListedFile(path, 1, "md5", "0" * 32)], tmp_path / "ds", base=server.base)
    assert server.requests == []
    assert files_in(tmp_path) == {}


def test_a_folder_that_is_a_link_out_is_refused(server, tmp_path):
    server.offer(**{"sub-1/a": 100})
    (tmp_path / "ds").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "ds" / "sub-1").symlink_to(tmp_path / "outside")
    with pytest.raises(RecordingError, match=r"'sub-1/a' would be written outside"):
        server.get(tmp_path / "ds")
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_link_in_the_files_place_is_replaced_not_followed(server, tmp_path):
    server.offer(a=100)
    (tmp_path / "ds").mkdir()
    (tmp_path / "secret").write_bytes(b"keep me")
    for name in ("a", ".a.partial"):
        (tmp_path / "ds" / name).symlink_to(tmp_path / "secret")
    server.get(tmp_path / "ds")
    assert (tmp_path / "secret").read_bytes() == b"keep me"
    assert not (tmp_path / "ds" / "a").is_symlink()
    assert (tmp_path / "ds" / "a").read_bytes() == server.content["a"]


def test_too_little_room_is_an_error_before_the_first_byte(server, tmp_path):
    server.wanted = [ListedFile("a", 10**18, "md5", "0" * 32)]
    with pytest.raises(
        OutputError, match=r"need 1000000000.00 GB more and the disk of 'ds' has \d+\.\d\d GB free"
    ):
        server.get(tmp_path / "ds")
    assert server.requests == []


def test_a_full_disk_stops_the_download_and_keeps_what_came(server, tmp_path):
    server.offer(a=200_000, b=200_000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))  # a write beyond it fails: EFBIG
    try:
        with pytest.raises(OutputError, match=r"cannot write 'a': File too large. What was received is kept"):
            server.get(tmp_path / "ds", jobs=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert files_in(tmp_path / "ds") == {".a.partial": server.content["a"][:50_000]}
    server.get(tmp_path / "ds")
    assert files_in(tmp_path / "ds") == server.content


def test_a_place_that_cannot_be_written_is_an_error(server, tmp_path):
    server.offer(a=1)
    (tmp_path / "ds").write_bytes(b"")
    with pytest.raises(OutputError, match=r"there is a file of that name"):
        server.get(tmp_path / "ds")


def test_two_downloads_into_one_folder_do_not_meet(server, tmp_path):
    server.offer(a=100_000)
    server.tricks["a"] = [silent]
    errors = []

    def first():
        try:
            server.get(tmp_path)
        except RecordingError as error:
            errors.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    wait_until(lambda: server.requests)
    with pytest.raises(OutputError, match=f"{tmp_path.name!r} is being written by another thread"):
        server.get(tmp_path)
    server.release.set()
    thread.join()
    assert errors == []
    assert files_in(tmp_path) == server.content


def test_a_record_that_a_kill_cut_off_does_no_harm(server, tmp_path):
    server.offer(a=1000, b=1000)
    server.get(tmp_path)
    record = (tmp_path / RECORD).read_bytes()
    digits = b"a\t" + b"9" * 5000 + b"\tno sum\n"
    for left in (record[:-20], record[:10], b"\xff\x00 nonsense\n\n\t\t\n", digits, b""):
        (tmp_path / RECORD).write_bytes(left)
        assert server.get(tmp_path).n_right == 2
        assert server.get(tmp_path).n_right == 2


# --- settings


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("ftp://archive.example", r"the scheme 'ftp'"),
        ("file:///etc", r"the scheme 'file'"),
        ("archive.example/ds", r"the scheme ''"),
        ("https://user:word@archive.example", r"without user name"),
        ("https://archive.example/ds?key=1", r"has a '\?' or '#'"),
        *(
            (address, r"the base address .* --base")
            for address in (
                *("http://[::1", "https://user:word@[::1", "http://a..b", f"http://{'a' * 64}.example"),
                *(
                    "http://archive.example:word",
                    "http://archive.example:99999",
                    "http://\u03b1rchive.example",
                ),
                *("http://archive.example/a word", "http://archive.example/w\u00f6rd"),
            )
        ),
    ],
)
def test_an_address_that_is_no_plain_one_is_refused(tmp_path, base, message):
    with pytest.raises(ConfigError, match=message) as raised:
        download([], tmp_path, base=base)
    assert "word" not in str(raised.value)
    assert raised.value.__cause__ is None  # nor in what a debug run shows


def test_a_file_listed_twice_is_refused(tmp_path):
    item = listed("a", b"abc")
    with pytest.raises(RecordingError, match=r"names 'a' twice"):
        download([item, item], tmp_path, base="http://127.0.0.1:9")
    assert download([], tmp_path, base="http://127.0.0.1:9").fetched == ()


def test_a_fault_of_our_own_in_a_thread_reaches_the_caller(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download_module, "_first_byte", lambda *_: 1 / 0)
    server.offer(a=10, b=10)
    with pytest.raises(ZeroDivisionError):
        server.get(tmp_path)


# --- the process is killed


DOWNLOADS = (  # one for each line that comes in: to import all of it every time would take longest
    "import json, os, sys\n"
    "from raxss.data.datasets.download import download\n"
    "from raxss.data.datasets.dataset import ListedFile\n"
    "wanted = [ListedFile(*row) for row in json.loads(sys.argv[1])]\n"
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
    server.offer(**dict.fromkeys(names, 1_500_000))
    for name in names:
        server.tricks[name] = Always([slowly])
    folder, rng = tmp_path / "ds", random.Random(69421)
    with subprocess.Popen(
        arguments(DOWNLOADS, server.wanted, folder, server.base),
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
    server.get(folder)
    assert files_in(folder) == server.content
    resumed = [int(start.removeprefix("bytes=").removesuffix("-")) for _, start in server.requests if start]
    whole_before = sum(name not in {path for path, _ in server.requests} for name in names)
    assert sum(resumed) + whole_before * 1_500_000 == kept  # nothing that was there came again


def test_ctrl_c_ends_at_once_and_the_same_command_goes_on(server, tmp_path, monkeypatch):
    server.offer(**dict.fromkeys("abcdefgh", 100_000))
    server.tricks |= {name: [silent] for name in "bcdefgh"} | {"a": [drop_after(60_000), silent]}
    script = (
        "import json, sys\n"
        "from raxss.data.datasets import dataset\n"
        "wanted = tuple(dataset.ListedFile(*row) for row in json.loads(sys.argv[1]))\n"
        "dataset.listed_files = lambda tables: wanted\n"
        "from raxss.cli import main\n"
        "command = ['raxss', 'datasets', 'download', 'ds003029', '--jobs', '8']\n"
        "sys.argv = [*command, '--root', sys.argv[2], '--base', sys.argv[3]]\n"
        "main()\n"
    )
    with subprocess.Popen(
        arguments(script, server.wanted, tmp_path, server.base),
        stderr=subprocess.PIPE,
        text=True,
        # what runs these tests may ignore Ctrl-C, and children inherit that
        preexec_fn=hears_ctrl_c,
    ) as process:
        wait_until(lambda: len(server.requests) == 9)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        message = process.stderr.read()
    assert process.returncode == 130
    assert time.monotonic() - begin < 5  # though all connections are silent
    assert "What was received is kept; the same command goes on." in message
    assert "Traceback" not in message
    assert files_in(tmp_path) == {"ds003029/.a.partial": server.content["a"][:60_000]}
    monkeypatch.setattr(dataset_module, "listed_files", lambda tables: tuple(server.wanted))
    assert "8 files are there and right: 8 fetched" in command(tmp_path, server.base).output
    assert files_in(tmp_path / "ds003029") == server.content
    assert server.ranges("a")[-1] == "bytes=60000-"


# --- on the command line


def command(root, base, *more):
    line = ["datasets", "download", "ds003029", "--root", str(root), "--base", base, *more]
    return CliRunner().invoke(app, line, catch_exceptions=False)


def test_a_download_without_a_root_names_the_option():
    with pytest.raises(ConfigError, match=r"where dataset 'ds003029' goes .* --root, .* RAXSS_DATA"):
        CliRunner().invoke(app, ["datasets", "download", "ds003029"], catch_exceptions=False)


def test_the_address_comes_from_the_variable_too(server, tmp_path, monkeypatch):
    server.offer(**{"participants.tsv": 100, "sub-a/x.eeg": 1000, "sub-b/x.eeg": 1000})
    monkeypatch.setattr(dataset_module, "listed_files", lambda tables: tuple(server.wanted))
    monkeypatch.setenv("RAXSS_DATA_URL", server.base)
    monkeypatch.setenv("RAXSS_DATA", str(tmp_path))
    line = ["datasets", "download", "ds003029", "--only", "a"]
    output = CliRunner().invoke(app, line, catch_exceptions=False).output
    assert "2 files are there and right: 2 fetched, 0 were there before." in output
    assert sorted(files_in(tmp_path / "ds003029")) == ["participants.tsv", "sub-a/x.eeg"]
    assert str(tmp_path) not in output
    (tmp_path / "ds003029" / "sub-a" / "x.eeg").write_bytes(b"mine")
    output = command(tmp_path, server.base).output
    assert "3 files are there and right: 2 fetched, 1 were there before." in output
    assert "1 had other content and were replaced: sub-a/x.eeg" in output
