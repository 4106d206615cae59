"""Single recordings read as series, whole or damaged."""

import io
import os
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from corpus.arrays import header
from plain_files import SAMPLES, manifest, read_series, write_plain, write_record
from raxss.data.files import read_inputs, read_manifest
from raxss.data.formats.opening import open_recording
from raxss.errors import RecordingError


@pytest.fixture
def folder(tmp_path):
    return write_plain(tmp_path)


@pytest.fixture
def record(tmp_path):
    return write_record(tmp_path)


def npy_bytes(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


# Recordings


@pytest.mark.parametrize("name", ["a.npz", "b.npy", "c.csv"])
def test_every_format_gives_the_same_variates_by_time(folder, name):
    series = read_series(folder / name)
    assert_array_equal(series.samples, SAMPLES)
    assert series.name == name[0]
    assert series.samples.flags.c_contiguous


def test_the_rate_comes_from_the_file_or_the_caller_or_counts_samples(folder):
    assert read_series(folder / "a.npz").rate == 50
    assert read_series(folder / "b.npy", rate=8).rate == 8
    assert read_series(folder / "b.npy").rate == 1
    assert read_series(folder / "a.npz", rate=50).rate == 50
    with pytest.raises(RecordingError, match=r"'a\.npz' says 50 Hz itself, and 60 Hz was asked"):
        read_series(folder / "a.npz", rate=60)
    for rate in (0, -1, np.nan, np.inf):
        with pytest.raises(RecordingError, match=rf"'b\.npy' has a rate of {rate}"):
            read_series(folder / "b.npy", rate=rate)


@pytest.mark.parametrize(
    ("name", "channel"), [("a.npz", "C4"), ("a.npz", 1), ("b.npy", "1"), ("c.csv", "C4")]
)
def test_a_channel_is_picked_by_name_or_position(folder, name, channel):
    series = read_series(folder / name, channel=channel)
    assert_array_equal(series.samples, SAMPLES[1:])
    assert series.name == f"{name[0]}:{channel}"


@pytest.mark.parametrize(
    ("name", "channel", "message"),
    [
        (
            "a.npz",
            "C44",
            r"'a\.npz' has no channel 'C44'; did you mean 'C4'\? Known: C3, C4\. A position from 0 to 1",
        ),
        ("b.npy", 2, r"'b\.npy' has 2 channels, so there is none at position 2; positions go from 0 to 1"),
        ("b.npy", -1, "none at position -1"),
        ("twice.npz", "C3", "2 channels named 'C3'; give the position"),
    ],
)
def test_a_channel_that_is_not_there_is_answered_with_those_that_are(folder, name, channel, message):
    np.savez(folder / "twice.npz", samples=SAMPLES, channels=["C3", "C3"])
    with pytest.raises(RecordingError, match=message):
        read_series(folder / name, channel=channel)


@pytest.mark.parametrize("text", ["1\nnan\n3", "\ufeffsignal\r\n1\r\n\r\nnan\r\n3\r\n"])
def test_a_csv_may_have_a_header_blank_lines_a_byte_order_mark_and_gaps(tmp_path, text):
    (tmp_path / "x.csv").write_bytes(text.encode())
    assert_array_equal(read_series(tmp_path / "x.csv").samples, [[1, np.nan, 3]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b\n1,2\n3,Jane\n", r"\[header-damaged\] line 3 has a word"),
        (b"5,2\n\n3,\n", r"line 3 has ''.*Write nan"),
        (b"1;2\n3;4\n", r"line 2 has '3;4'; numbers separated by commas"),
        (b"a,b\n1\n2\n", r"line 2 has 1 values, and the lines before 2"),
        (b"1\n\xff\xfe\x00\n2\n", "not text in UTF-8"),
    ],
)
def test_a_csv_that_is_no_table_of_numbers_is_refused_with_its_line(tmp_path, content, message):
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(RecordingError, match=rf"'x\.csv' was not opened: .*{message}"):
        read_series(tmp_path / "x.csv")


def test_a_missing_file_a_folder_and_an_unknown_type_are_refused_without_the_machines_folders(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "sub").mkdir()
    for name, message in {
        "none.npz": r"'none\.npz' was not found",
        "none.hea": r"'none\.hea' was not found",
        "none": "'none' was not found",
        "notes.txt": r"'notes\.txt' is of type '\.txt'.*\.npz.*\.npy.*\.csv",
        "sub": "'sub' is a folder",
    }.items():
        with pytest.raises(RecordingError, match=message) as caught:
            read_series(tmp_path / name)
        assert str(tmp_path) not in str(caught.value)


def test_a_path_that_cannot_be_looked_at_is_named_in_short(folder):
    long = "n" * 300
    for name in (long, f"{long}.npz", f"{long}.hea", f"{long}.csv"):
        with pytest.raises(
            RecordingError, match=r"recording 'n{40}\.\.\..*cannot be read \(file name too long"
        ) as caught:
            read_inputs([folder / name])
        assert len(str(caught.value)) < 350
    with pytest.raises(
        RecordingError, match=r"manifest 'all\.csv', line 3: recording 'n{40}\.\.\..*file name too long"
    ):
        read_manifest(manifest(folder, f"path,label\na.npz,x\n{long}.npz,y\n"))
    with pytest.raises(RecordingError, match=r"manifest 'n{40}\.\.\..*cannot be read.*file name too long"):
        read_manifest(folder / f"{long}.csv")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is closed to root")
def test_a_folder_that_may_not_be_entered_is_named(folder):
    closed = folder / "closed"
    closed.mkdir()
    (closed / "d.npy").write_bytes(npy_bytes(SAMPLES))
    closed.chmod(0)
    try:
        with pytest.raises(RecordingError, match=r"'d\.npy' cannot be read \(permission denied.*permissions"):
            read_series(closed / "d.npy")
        with pytest.raises(RecordingError, match=r"line 2: recording 'd\.npy' .*cannot be read \(permission"):
            read_manifest(manifest(folder, "path,label\nclosed/d.npy,x\n"))
    finally:
        closed.chmod(0o700)


@pytest.mark.parametrize("name", ["sub", "sub.csv", "sub.npz", "sub.dat", "sub.hea"])
def test_a_folder_is_no_recording_whatever_it_is_called(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(RecordingError, match=rf"'{name}' is a folder; a file of type .*write a manifest"):
        read_inputs([tmp_path / name])
    with pytest.raises(RecordingError, match=rf"manifest '{name}' cannot be read: .*is a folder"):
        read_manifest(tmp_path / name)
    for nameless in (".", "..", "", "/"):
        with pytest.raises(RecordingError, match="is a folder"):
            read_inputs([nameless])


def test_a_name_that_is_not_utf8_is_spelled_out(folder):
    path = os.fsdecode(os.fsencode(folder) + b"/caf\xe9.npy")
    try:
        Path(path).write_bytes(npy_bytes(SAMPLES))
    except OSError:
        pytest.skip("this file system has UTF-8 names only")
    assert read_series(path).name == read_inputs([path]).names[0] == r"caf\udce9"
    assert read_inputs([path], channel=1).names[0].encode() == rb"caf\udce9:1"
    (folder / r"caf\udce9.npy").write_bytes(npy_bytes(SAMPLES))
    with pytest.raises(RecordingError, match="would have the same name; rename one"):
        read_inputs([path, folder / r"caf\udce9.npy"])


# Files that lie or break


@pytest.mark.parametrize("shape", [(10**11,), (2, 10**18), (-1,), (1000,)])
def test_an_array_that_declares_more_than_the_file_holds_is_refused(tmp_path, shape):
    (tmp_path / "bomb.npy").write_bytes(header(shape, "<f8"))
    with pytest.raises(RecordingError, match=r"'bomb\.npy' .* declares [-\d,]+ bytes of samples and has 0"):
        read_series(tmp_path / "bomb.npy")


def zeros_in_few_bytes(path):
    np.savez_compressed(path, samples=np.zeros(10_000_000, "i1"), rate=250.0)


@pytest.mark.parametrize("read", ["inputs", "manifest"])
@pytest.mark.parametrize(
    ("name", "write", "code"),
    [
        ("a.npz", os.mkfifo, "not-readable"),
        ("a.csv", os.mkfifo, "not-readable"),
        ("a.npy", lambda path: path.symlink_to(path.parents[1] / "b.npy"), "outside"),
        ("a.csv", lambda path: path.symlink_to(path.parents[1] / "c.csv"), "outside"),
        ("a.csv", lambda path: path.symlink_to("/dev/zero"), "outside"),
        ("a.npz", lambda path: np.savez(path, samples=SAMPLES, rate=1e9), "bad-rate"),
        ("a.npz", zeros_in_few_bytes, "too-large"),
    ],
)
def test_what_check_refuses_nothing_reads(folder, read, name, write, code):
    inside = folder / "inside"
    inside.mkdir()
    write(inside / name)
    listed = manifest(folder, f"path,label\ninside/{name},x\n")
    with pytest.raises(RecordingError, match=rf"recording '{name}' was not opened: \[{code}\]"):
        read_inputs([inside / name]) if read == "inputs" else read_manifest(listed)


def test_of_integers_only_what_is_asked_for_becomes_floats(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((4, 10_000_000), "i1"))
    with open_recording(tmp_path / "a.npy") as recording:
        tracemalloc.start()
        assert recording.read([1], start=10, stop=1010).dtype == np.float64
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (True,), }",
        "{'descr': '|S0', 'fortran_order': False, 'shape': (1000000000000000000000000000000,), }",
        "{'descr': '|S0', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1" + "0" * 4000 + ",), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (3",  # tokenize.TokenError
        "{'descr': '<f8', 'fortran_order': False, 'shape': \x00}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}\n  x\n y",  # IndentationError
        "(" * 5000,  # too deep to parse
        "-" * 9000 + "1",
        "{'descr': {1: 2}, 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f8', 'fortran_order': 3, 'shape': (1,)}",
        "{[]: 1}",
        "",
    ],
)
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_a_header_that_no_parser_likes_is_refused_by_name(tmp_path, header, suffix):
    text = header.encode("latin1") + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(8)
    path = tmp_path / f"odd.{suffix}"
    if suffix == "npy":
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("samples.npy", content)
    with pytest.raises(RecordingError, match=rf"recording 'odd\.{suffix}'") as caught:
        read_series(path)
    assert len(str(caught.value)) < 500


# WFDB


@pytest.mark.parametrize("suffix", ["", ".hea", ".dat"])
def test_a_wfdb_record_is_read_by_any_of_its_names_in_physical_units(record, suffix):
    series = read_series(f"{record}{suffix}")
    assert_allclose(series.samples, SAMPLES / 10, atol=1e-9)
    assert (series.rate, series.name) == (250, "rec")
    assert_allclose(read_series(record, channel="II").samples, SAMPLES[1:] / 10, atol=1e-9)


def test_a_wfdb_channel_without_a_name_has_a_position_and_a_record_needs_its_header(record):
    record.with_suffix(".hea").write_text("rec 2 250 6\nrec.dat 16 1000/mV\nrec.dat 16 1000/mV\n")
    assert_allclose(read_series(record, channel=1).samples, SAMPLES[1:] / 10, atol=1e-9)
    with pytest.raises(
        RecordingError, match=r"'rec' has no channel 'I'\. Known: none\. A position from 0 to 1"
    ):
        read_series(record, channel="I")
    record.with_suffix(".dat").rename(record.with_name("other.dat"))
    with pytest.raises(RecordingError, match=r"'other\.dat' was not opened: \[not-found\] 'other\.hea'"):
        read_series(record.with_name("other.dat"))
