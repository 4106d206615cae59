import io
import math
import os
import sys
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from raxss.data.files import read_inputs, read_manifest, read_recording, read_series
from raxss.data.formats import fields
from raxss.data.formats.opening import open_recording
from raxss.errors import EmptyDataError, LabelError, MissingExtraError, RecordingError

CINC2017 = Path(__file__).parents[2] / "shared" / "data" / "cinc2017" / "training2017"
SAMPLES = np.arange(12.0).reshape(2, 6)


@pytest.fixture
def folder(tmp_path):
    """One recording of each plain format, all with the same two variates."""
    np.savez(tmp_path / "a.npz", samples=SAMPLES, rate=50.0, channels=["C3", "C4"])
    np.save(tmp_path / "b.npy", SAMPLES)
    (tmp_path / "c.csv").write_text(
        "C3,C4\n" + "\n".join(f"{left},{right}" for left, right in SAMPLES.T) + "\n"
    )
    return tmp_path


def npy_bytes(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def npy_header(shape):
    """The header of an array that is not there."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def manifest(folder, text, name="all.csv"):
    (folder / name).write_text(text)
    return folder / name


# Recordings


@pytest.mark.parametrize("name", ["a.npz", "b.npy", "c.csv"])
def test_every_format_gives_the_same_variates_by_time(folder, name):
    series = read_series(folder / name, label="x", group="p")
    assert_array_equal(series.samples, SAMPLES)
    assert (series.name, series.label, series.group) == (name[0], "x", "p")
    assert series.samples.flags.c_contiguous


def test_the_rate_comes_from_the_file_or_the_caller_or_counts_samples(folder):
    assert read_series(folder / "a.npz").rate == 50
    assert read_series(folder / "b.npy", rate=8).rate == 8
    assert read_series(folder / "b.npy").rate == 1
    assert read_series(folder / "a.npz", rate=50).rate == 50
    with pytest.raises(RecordingError, match=r"'a\.npz' says 50 Hz itself, and 60 Hz was asked"):
        read_series(folder / "a.npz", rate=60)


@pytest.mark.parametrize("rate", [0, -1, np.nan, np.inf])
def test_a_rate_that_is_no_rate_is_refused(folder, rate):
    with pytest.raises(RecordingError, match=rf"'b\.npy' has a rate of {rate}"):
        read_series(folder / "b.npy", rate=rate)


@pytest.mark.parametrize(
    ("name", "channel"), [("a.npz", "C4"), ("a.npz", 1), ("b.npy", "1"), ("c.csv", "C4")]
)
def test_a_channel_is_picked_by_name_or_position(folder, name, channel):
    series = read_series(folder / name, channel=channel)
    assert_array_equal(series.samples, SAMPLES[1:])
    assert series.name == f"{name[0]}:{channel}"


def test_a_channel_that_is_not_there_is_answered_with_those_that_are(folder):
    with pytest.raises(
        RecordingError,
        match=r"'a\.npz' has no channel 'C44'; did you mean 'C4'\? Known: C3, C4\. A position from 0 to 1",
    ):
        read_series(folder / "a.npz", channel="C44")
    with pytest.raises(
        RecordingError,
        match=r"'b\.npy' has 2 channels, so there is none at position 2; positions go from 0 to 1",
    ):
        read_series(folder / "b.npy", channel=2)
    with pytest.raises(RecordingError, match="none at position -1"):
        read_series(folder / "b.npy", channel=-1)
    np.savez(folder / "twice.npz", samples=SAMPLES, channels=["C3", "C3"])
    with pytest.raises(RecordingError, match="2 channels named 'C3'; give the position"):
        read_series(folder / "twice.npz", channel="C3")


def test_gaps_in_the_samples_are_left_to_later_stages(tmp_path):
    np.save(tmp_path / "gap.npy", [1.0, np.nan, 3.0])
    assert np.isnan(read_series(tmp_path / "gap.npy").samples[0, 1])
    (tmp_path / "gap.csv").write_text("1\nnan\n3\n")
    assert_array_equal(read_series(tmp_path / "gap.csv").samples, [[1, np.nan, 3]])


@pytest.mark.parametrize(
    "text", ["1\n2\n3\n", "1\n2\n3", "signal\n1\n2\n3\n", "\ufeffsignal\r\n1\r\n\r\n2\r\n3\r\n"]
)
def test_a_csv_may_have_a_header_blank_lines_and_a_byte_order_mark(tmp_path, text):
    (tmp_path / "x.csv").write_bytes(text.encode())
    assert_array_equal(read_series(tmp_path / "x.csv").samples, [[1, 2, 3]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3,Jane\n", r"'x\.csv' was not opened: \[header-damaged\] line 3 has a word"),
        ("5,2\n3\n", r"line 2 has 1 values, and the lines before 2"),
        ("5,2\n\n3,\n", r"line 3 has ''.*Write nan"),
        ("1;2\n3;4\n", r"line 2 has '3;4'; numbers separated by commas"),
        ("a,b\n1\n2\n", r"line 2 has 1 values, and the lines before 2"),
        ("a,b\n", r"'x\.csv' was not opened: \[no-data\]"),
        ("", r"'x\.csv' was not opened: \[no-data\]"),
    ],
)
def test_a_csv_that_is_no_table_of_numbers_is_refused_with_its_line(tmp_path, text, message):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(RecordingError, match=message):
        read_series(tmp_path / "x.csv")


def test_a_csv_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"1\n\xff\xfe\x00\n2\n")
    with pytest.raises(RecordingError, match=r"'x\.csv' was not opened: .*not text in UTF-8"):
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
        for read in (read_series, lambda path: read_inputs([path])):
            with pytest.raises(
                RecordingError, match=r"recording 'n{40}\.\.\..*cannot be read \(file name too long"
            ) as caught:
                read(folder / name)
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


@pytest.mark.parametrize("name", [".", "..", "", "/"])
def test_a_path_without_a_name_is_a_folder_too(name):
    with pytest.raises(RecordingError, match="is a folder"):
        read_inputs([name])


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
    (tmp_path / "bomb.npy").write_bytes(npy_header(shape))
    with pytest.raises(RecordingError, match=r"'bomb\.npy' .* declares [-\d,]+ bytes of samples and has 0"):
        read_series(tmp_path / "bomb.npy")


def test_an_archived_array_that_declares_more_than_it_holds_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w") as archive:
        archive.writestr("samples.npy", npy_header((10**11,)))
    with pytest.raises(
        RecordingError, match=r"'bomb\.npz' .*\[too-large\] array 'samples' declares 800,000,000,000 bytes"
    ):
        read_series(tmp_path / "bomb.npz")


def test_an_archive_that_unpacks_to_far_more_than_recordings_do_is_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "flat.npz", samples=np.zeros(1_000_000))
    assert read_series(tmp_path / "flat.npz").n_samples == 1_000_000  # small enough, however well packed
    monkeypatch.setattr(fields, "ALWAYS_ALLOWED", 1_000_000)
    with pytest.raises(
        RecordingError, match=r"'flat\.npz' .*\[too-large\] the archive takes .* would unpack to 8,000,128"
    ):
        read_series(tmp_path / "flat.npz")


def zeros_in_few_bytes(path):
    np.savez_compressed(path, samples=np.zeros(10_000_000, "i1"), rate=250.0)


@pytest.mark.parametrize("read", ["series", "recording", "inputs", "manifest"])
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
    readers = {
        "series": read_series,
        "recording": read_recording,
        "inputs": lambda path: read_inputs([path]),
        "manifest": lambda path: read_manifest(manifest(folder, f"path,label\ninside/{name},x\n")),
    }
    with pytest.raises(RecordingError, match=rf"recording '{name}' was not opened: \[{code}\]"):
        readers[read](inside / name)


def test_a_manifest_that_is_a_pipe_or_a_link_out_of_its_folder_is_not_opened(folder):
    inside = folder / "inside"
    inside.mkdir()
    os.mkfifo(inside / "pipe.csv")
    with pytest.raises(RecordingError, match=r"manifest 'pipe\.csv' cannot be read: .*a pipe"):
        read_manifest(inside / "pipe.csv")
    (inside / "link.csv").symlink_to(manifest(folder, "path,label\na.npz,x\n"))
    with pytest.raises(
        RecordingError, match=r"manifest 'link\.csv' cannot be read: .*leads out of the folder"
    ):
        read_manifest(inside / "link.csv")


def test_a_link_to_a_file_beside_it_is_read(folder):
    (folder / "link.npz").symlink_to("a.npz")
    assert_array_equal(read_series(folder / "link.npz").samples, SAMPLES)


def test_of_integers_only_what_is_asked_for_becomes_floats(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((4, 10_000_000), "i1"))
    with open_recording(tmp_path / "a.npy") as recording:
        tracemalloc.start()
        assert recording.read([1], start=10, stop=1010).dtype == np.float64
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_pickled_objects_are_never_loaded(tmp_path, suffix):
    path = tmp_path / f"evil.{suffix}"
    array = np.array([{"a": 1}, None], dtype=object)
    if suffix == "npy":
        np.save(path, array, allow_pickle=True)
    else:
        np.savez(path, samples=array)
    with pytest.raises(RecordingError, match=rf"'evil\.{suffix}'.*holds Python objects"):
        read_series(path)


def test_damaged_files_are_refused_by_name(folder):
    whole = (folder / "a.npz").read_bytes()
    broken = bytearray(whole)
    broken[whole.index(b"NUMPY") + 130] ^= 0xFF  # a sample: the checksum no longer fits
    for name, content in {
        "cut.npz": whole[: len(whole) // 2],
        "flipped.npz": bytes(broken),
        "empty.npz": b"",
        "text.npz": b"not a zip",
        "text.npy": b"not an array",
        "empty.npy": b"",
        "cut.npy": npy_bytes(SAMPLES)[:-8],
    }.items():
        (folder / name).write_bytes(content)
        with pytest.raises(RecordingError, match=f"recording '{name}'"):
            read_series(folder / name)


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


def mutants(content, seed, n):
    """The content with a few bytes changed, cut out, doubled or made to look like numbers."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        bad = bytearray(content)
        for _ in range(rng.integers(1, 5)):
            place, length = int(rng.integers(len(bad) + 1)), int(rng.integers(1, 9))
            change = rng.integers(5)
            if change == 0:
                bad[place : place + length] = rng.bytes(length)
            elif change == 1:
                del bad[place : place + length]
            elif change == 2:
                bad[place:place] = bad[place : place + length]
            elif change == 3:
                bad[place : place + 1] = rng.choice(
                    [b"9", b"-", b"(", b"'", b",", b"\n", b" ", b":", b"99999999"]
                )
            else:
                del bad[place:]
        yield bytes(bad)


def expect_a_series_or_a_recording_error(path):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as on a command line, where a warning stops nothing
            series = read_series(path)
    except RecordingError:
        return "refused"
    assert math.isfinite(series.rate)
    assert series.rate > 0
    return "read"


@pytest.mark.parametrize("name", ["a.npz", "b.npy", "c.csv"])
def test_a_file_with_random_damage_is_read_or_refused_and_nothing_else(folder, name):
    content = (folder / name).read_bytes()
    path = folder / f"bad{Path(name).suffix}"
    outcomes = set()
    for bad in mutants(content, seed=1, n=300):
        path.write_bytes(bad)
        outcomes.add(expect_a_series_or_a_recording_error(path))
    assert outcomes == {"read", "refused"}


def test_an_archive_without_samples_is_refused_without_naming_what_it_has(tmp_path):
    """Archives of one array a patient have their names as keys."""
    np.savez(tmp_path / "x.npz", Jane_Doe=SAMPLES, fs=5)
    with pytest.raises(RecordingError, match=r"'x\.npz' .* no array 'samples' among its 2 members") as error:
        read_series(tmp_path / "x.npz")
    assert "Jane" not in str(error.value)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"samples": np.zeros((2, 2, 2))}, r"3 dimensions, shape \(2, 2, 2\)"),
        ({"samples": np.zeros(())}, r"0 dimensions"),
        ({"samples": np.zeros((3, 0))}, r"no samples, shape \(3, 0\)"),
        ({"samples": np.array(["a", "b"])}, r"values of type '<U1'"),
        ({"samples": np.zeros(3, complex)}, r"values of type 'complex128'"),
        ({"samples": SAMPLES, "rate": [1.0, 2.0]}, r"'rate' has 2 values"),
        ({"samples": SAMPLES, "rate": "fast"}, r"'rate' has 1 values of type '<U4'"),
        ({"samples": SAMPLES, "channels": ["C3"]}, r"'channels' has 1 names, and 'samples' 2 variates"),
    ],
)
def test_an_archive_with_the_wrong_arrays_is_refused_with_what_was_found(tmp_path, arrays, message):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(RecordingError, match=rf"'x\.npz'.*{message}"):
        read_series(tmp_path / "x.npz")


# WFDB


@pytest.fixture
def record(tmp_path):
    wfdb = pytest.importorskip("wfdb")
    wfdb.wrsamp(
        "rec",
        250,
        ["mV", "mV"],
        ["I", "II"],
        SAMPLES.T / 10,
        fmt=["16", "16"],
        adc_gain=[1000, 1000],
        baseline=[0, 0],
        write_dir=str(tmp_path),
    )
    return tmp_path / "rec"


@pytest.mark.parametrize("suffix", ["", ".hea", ".dat"])
def test_a_wfdb_record_is_read_by_any_of_its_names_in_physical_units(record, suffix):
    series = read_series(f"{record}{suffix}")
    assert_allclose(series.samples, SAMPLES / 10, atol=1e-9)
    assert (series.rate, series.name) == (250, "rec")
    assert_allclose(read_series(record, channel="II").samples, SAMPLES[1:] / 10, atol=1e-9)


@pytest.mark.skipif(
    not CINC2017.is_dir(), reason="the source folder of CinC 2017 is not beside this checkout"
)
@pytest.mark.parametrize("suffix", ["", ".hea", ".mat"])
def test_a_real_wfdb_record_is_what_the_sample_holds(suffix):
    from raxss.data.datasets import load_sample

    item = load_sample()[0]
    series = read_series(CINC2017 / f"{item.name}{suffix}")
    assert series.rate == item.rate
    assert_allclose(series.samples, item.samples, atol=1e-6)


def test_a_wfdb_header_that_declares_more_than_its_data_file_holds_is_refused(record):
    header = record.with_suffix(".hea")
    header.write_text(header.read_text().replace(" 250 6", " 250 99999999999"))
    with pytest.raises(
        RecordingError,
        match=r"'rec' .*\[too-large\].*declares 99,999,999,999 samples.* data file of signals 1 to 2, which has 24",
    ):
        read_series(record)


def test_a_wfdb_header_cannot_point_outside_its_folder(record):
    header = record.with_suffix(".hea")
    header.write_text(header.read_text().replace("rec.dat", "../rec.dat"))
    with pytest.raises(RecordingError, match=r"'rec' was not opened: \[outside\]"):
        read_series(record)


def test_a_wfdb_record_without_its_header_or_data_is_refused(record):
    record.with_suffix(".dat").rename(record.with_name("other.dat"))
    with pytest.raises(
        RecordingError,
        match=r"'rec' was not opened: \[not-found\] the line of signal 1 names a file .* not there",
    ):
        read_series(record)
    with pytest.raises(RecordingError, match=r"'other\.dat' was not opened: \[not-found\] 'other\.hea'"):
        read_series(record.with_name("other.dat"))
    record.with_suffix(".hea").write_text("nonsense\n")
    with pytest.raises(RecordingError, match=r"recording 'rec' was not opened: \[header-damaged\]"):
        read_series(record)


def test_a_wfdb_header_with_random_damage_is_read_or_refused_and_nothing_else(record):
    header = record.with_suffix(".hea")
    outcomes = set()
    for bad in mutants(header.read_bytes(), seed=2, n=300):
        header.write_bytes(bad)
        outcomes.add(expect_a_series_or_a_recording_error(record))
    assert outcomes == {"read", "refused"}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("rec 1 100 200\n", "declares 1 signals and describes 0"),
        ("rec 2 100 6\nrec.dat 16 1000/mV\n", "declares 2 signals and describes 1"),
        ("rec 1 100 6\nrec.dat 16:9999999999 1000/mV\n", "lags by more samples than the record has"),
        (
            "rec 1 100 6\nrec.dat 16 1000/mV 0 0 0 0 0\nrec.dat 16 1000/mV\n",
            "declares 1 signals and describes 2",
        ),
    ],
)
def test_a_wfdb_header_that_contradicts_itself_is_refused(record, header, message):
    record.with_suffix(".hea").write_text(header)
    with pytest.raises(RecordingError, match=rf"'rec' was not opened: \[header-damaged\].*{message}"):
        read_series(record)


def test_a_wfdb_channel_without_a_name_has_a_position(record):
    record.with_suffix(".hea").write_text("rec 2 250 6\nrec.dat 16 1000/mV\nrec.dat 16 1000/mV\n")
    assert_allclose(read_series(record, channel=1).samples, SAMPLES[1:] / 10, atol=1e-9)
    with pytest.raises(
        RecordingError, match=r"'rec' has no channel 'I'\. Known: none\. A position from 0 to 1"
    ):
        read_series(record, channel="I")


def test_without_wfdb_the_error_says_how_to_install_it(record, monkeypatch):
    monkeypatch.setitem(sys.modules, "wfdb", None)  # as if it were not installed
    with pytest.raises(MissingExtraError, match=r"'rec' needs the package wfdb.*pip install 'raxss\[bids\]'"):
        read_series(record)


# Manifests


def test_the_columns_of_origin_say_where_a_series_comes_from(folder):
    series = read_manifest(
        manifest(
            folder,
            "path,label,patient,centre,electrode,pair,channel\na.npz,x,p1,c,A,a-b,C4\nb.npy,y,p2,c,,,\n",
        )
    )
    assert series[0].origin == {
        "centre": "c",
        "patient": "p1",
        "recording": "a",
        "electrode": "A",
        "pair": "a-b",
        "channel": "C4",
    }
    assert series[1].origin == {"centre": "c", "patient": "p2", "recording": "b"}
    assert series.groups.tolist() == ["p1", "p2"]
    series = read_manifest(manifest(folder, "path,label,patient,group,recording\na.npz,x,p1,g,night\n"))
    assert (series[0].group, series[0].origin) == ("g", {"patient": "p1", "recording": "night"})
    with pytest.raises(RecordingError, match=r"no group in 1 of 2 lines \(the first is line 3\)"):
        read_manifest(manifest(folder, "path,label,patient\na.npz,x,p\nb.npy,y,\n"))


def test_a_manifest_becomes_one_series_a_line_named_as_written(folder):
    (folder / "deep").mkdir()
    np.save(folder / "deep" / "d.npy", SAMPLES)
    path = manifest(
        folder,
        "path,label,group,rate,channel\n"
        "a.npz,ill,p1,,C4\n"
        "\n"
        "deep/d.npy,well,p2,20,\n"
        ' c.csv ,"well, or so",p2,,0\n',
    )
    series = read_manifest(path)
    assert series.names == ["a:C4", "deep/d", "c:0"]
    assert series.labels.tolist() == ["ill", "well", "well, or so"]
    assert series.groups.tolist() == ["p1", "p2", "p2"]
    assert [item.rate for item in series] == [50, 20, 1]
    assert [item.n_variates for item in series] == [1, 2, 1]


def test_groups_may_be_empty_in_all_lines_but_not_in_some(folder):
    assert read_manifest(manifest(folder, "path,label,group\na.npz,x,\nb.npy,y,\n")).groups is None
    with pytest.raises(RecordingError, match=r"no group in 1 of 2 lines \(the first is line 3\)"):
        read_manifest(manifest(folder, "path,label,group\na.npz,x,p\nb.npy,y,\n"))


def test_labels_may_be_absent_for_prediction_only(folder):
    path = manifest(folder, "path\na.npz\n")
    assert read_manifest(path, labels_required=False)[0].label is None
    with pytest.raises(LabelError, match=r"'all\.csv' has no column 'label' \(found: path\)"):
        read_manifest(path)
    path = manifest(folder, "path,label\na.npz,x\nb.npy,\n")
    assert read_manifest(path, labels_required=False)[1].label is None
    with pytest.raises(LabelError, match=r"no label in line 3 \('b\.npy'\)"):
        read_manifest(path)


def test_an_absolute_path_is_named_by_as_few_of_its_parts_as_tell_it_apart(tmp_path):
    for part in ("p1/x", "p2/x", "p2/y"):
        (tmp_path / part).parent.mkdir(exist_ok=True)
        np.save(tmp_path / f"{part}.npy", SAMPLES)
    files = [tmp_path / "p1/x.npy", tmp_path / "p2/x.npy", tmp_path / "p2/y.npy"]
    path = manifest(tmp_path, "path,label\n" + "".join(f"{file},z\n" for file in files))
    assert read_manifest(path).names == read_inputs(files).names == ["p1/x", "p2/x", "y"]


def test_files_that_differ_in_suffix_alone_keep_it(folder):
    np.save(folder / "a.npy", SAMPLES)
    path = manifest(folder, "path,label\na.npz,x\na.npy,x\nb.npy,x\n")
    assert read_manifest(path).names == ["a.npz", "a.npy", "b"]
    assert read_inputs([folder / "a.npz", folder / "a.npy"]).names == ["a.npz", "a.npy"]


def test_all_missing_files_are_named_together_with_their_lines(folder):
    lines = "".join(f"gone{number}.npz,x,\n" for number in range(12))
    with pytest.raises(
        RecordingError,
        match=r"names 12 of 13 recordings.*'gone0\.npz' \(line 3\), .*'gone9\.npz' \(line 12\) and 2 more",
    ) as caught:
        read_manifest(manifest(folder, "path,label,group\na.npz,x,\n" + lines))
    assert str(folder) not in str(caught.value)


def test_a_recording_that_cannot_be_read_is_named_with_its_line(folder):
    (folder / "bad.npz").write_bytes(b"no")
    with pytest.raises(RecordingError, match=r"manifest 'all\.csv', line 3: recording 'bad\.npz'"):
        read_manifest(manifest(folder, "path,label\na.npz,x\nbad.npz,y\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,lable\na.npz,x\n", r"column 'lable'; did you mean 'label'\? Known: path, label"),
        ("path,label,zzz\na.npz,x,1\n", r"column 'zzz'\. Known: path, label.* remove it"),
        ("path,label,label\na.npz,x,y\n", r"the column 'label' 2 times"),
        ("label,group\nx,y\n", r"no column 'path' in its first line \(found: label, group\)"),
        ("", r"no column 'path' in its first line \(found: nothing\)"),
        ("path,label\na.npz,x,y\n", r"3 values in line 2 and 2 columns \(path, label\)"),
        ("path,label\na.npz,x\na.npz,y\n", r"lists 'a' in lines 2 and 3|lists 'a\.npz' in lines 2 and 3"),
        ("path,label,rate\na.npz,x,fast\n", r"the rate 'fast' in line 2"),
        ("path,label,rate\na.npz,x,-3\n", r"the rate '-3' in line 2"),
        ("path,label\n,x\n", r"no path in line 2"),
        ('path,label\na.npz,"x\n', r"not a CSV file"),
    ],
)
def test_a_manifest_that_is_wrong_is_refused_with_what_was_found(folder, text, message):
    with pytest.raises(RecordingError, match=rf"manifest 'all\.csv'.*(?:{message})"):
        read_manifest(manifest(folder, text))


def test_an_empty_manifest_a_missing_one_and_one_that_is_no_text_are_refused(folder):
    with pytest.raises(EmptyDataError, match=r"'all\.csv' lists no recordings"):
        read_manifest(manifest(folder, "path,label,group\n"))
    with pytest.raises(RecordingError, match=r"'none\.csv' was not found"):
        read_manifest(folder / "none.csv")
    with pytest.raises(RecordingError, match=r"manifest 'a\.npz' is not a CSV file in UTF-8"):
        read_manifest(folder / "a.npz")


# Recordings of many channels


@pytest.fixture
def edf(folder):
    """Three channels, two of one name, as EDF."""
    edfio = pytest.importorskip("edfio")
    samples = np.random.default_rng(5).normal(size=(3, 400))
    signals = [
        edfio.EdfSignal(row, 100, label=name, physical_dimension="uV", physical_range=(-9, 9))
        for row, name in zip(samples, ("C3", "Cz", "Cz"), strict=True)
    ]
    edfio.Edf(signals).write(folder / "night.edf")
    return folder / "night.edf", samples


def test_a_recording_gives_one_series_a_channel(edf):
    path, samples = edf
    series = read_recording(path, label="x", group="p")
    assert series.names == ["night:C3", "night:Cz#1", "night:Cz#2"]
    assert [item.origin for item in series] == [
        {"recording": "night", "channel": "C3"},
        {"recording": "night", "channel": "Cz#1"},
        {"recording": "night", "channel": "Cz#2"},
    ]
    assert [(item.rate, item.label, item.group) for item in series] == [(100, "x", "p")] * 3
    assert_allclose(np.vstack([item.samples for item in series]), samples, atol=18 / 65535)
    assert read_recording(path, channels=["2", "C3", 1]).names == ["night:Cz#2", "night:C3", "night:Cz#1"]
    with pytest.raises(RecordingError, match=r"'night\.edf' has 2 channels named 'Cz'; give the position"):
        read_recording(path, channels=["Cz"])
    with pytest.raises(
        RecordingError, match=r"'night\.edf' has no channel 'C4'\. Known: C3, Cz, Cz\. A position from 0 to 2"
    ):
        read_recording(path, channels=["C4"])
    with pytest.raises(RecordingError, match=r"3 channels, so there is none at position 3"):
        read_recording(path, channels=[3])


def test_of_many_channels_one_must_be_named_for_one_series(edf):
    path, samples = edf
    series = read_series(path, channel="C3", label="x")
    assert (series.name, series.label, series.rate) == ("night:C3", "x", 100)
    assert_allclose(series.samples, samples[:1], atol=18 / 65535)
    assert read_series(path, channel=2, name="mine").name == "mine"
    with pytest.raises(RecordingError, match=r"'night\.edf' has 3 channels, each of which.*read_recording"):
        read_series(path)
    with pytest.raises(RecordingError, match=r"'night\.edf' says 100 Hz itself, and 50 Hz was asked"):
        read_series(path, channel=0, rate=50)
    with pytest.raises(RecordingError, match=r"'a\.npz' has no segment 1; it has 1"):
        read_series(path.with_name("a.npz"), segment=1)


def test_a_manifest_names_channels_of_recordings(edf):
    path, samples = edf
    listed = manifest(
        path.parent, "path,label,patient,channel\nnight.edf,x,p,C3\nnight.edf,y,p,2\na.npz,x,q,0\n"
    )
    series = read_manifest(listed)
    assert series.names == ["night:C3", "night:Cz#2", "a:0"]
    assert series.labels.tolist() == ["x", "y", "x"]
    assert series[1].origin == {"patient": "p", "recording": "night", "channel": "Cz#2"}
    assert_allclose(series[1].samples, samples[2:], atol=18 / 65535)
    with pytest.raises(
        RecordingError, match=r"'all\.csv', line 2: .*'night\.edf' has 3 channels.*column 'channel'"
    ):
        read_manifest(manifest(path.parent, "path,label\nnight.edf,x\n"))
    with pytest.raises(RecordingError, match=r"'all\.csv', line 3: the series 'night:C3' is given twice"):
        read_manifest(manifest(path.parent, "path,label,channel\nnight.edf,x,C3\nnight.edf,y,0\n"))


def test_a_recording_of_many_channels_among_the_inputs_gives_all_of_them(edf):
    path, _ = edf
    names = ["night:C3", "night:Cz#1", "night:Cz#2"]
    assert read_inputs([path, path.with_name("a.npz")]).names == [*names, "a"]
    assert read_inputs([path], channel="C3").names == ["night:C3"]
    listed = manifest(path.parent, "path,channel\nnight.edf,C3\n")
    with pytest.raises(RecordingError, match=r"the series 'night:C3' is given twice"):
        read_inputs([listed, path])


def test_a_wfdb_record_with_gaps_in_a_manifest_gives_each_stretch(record):
    record.with_name("all.hea").write_text("all/3 2 250 22\nrec 6\n~ 10\nrec 6\n")
    series = read_manifest(manifest(record.parent, "path,label,channel\nall,x,\nall,y,II\n"))
    assert series.names == ["all", "all@0.064s", "all:II", "all:II@0.064s"]
    assert series.labels.tolist() == ["x", "x", "y", "y"]
    assert_allclose(series[3].samples, SAMPLES[1:] / 10, atol=1e-9)
    assert series[3].start_seconds == 0.064


# The command line's inputs


def test_inputs_are_recordings_and_manifests_in_the_order_given(folder):
    path = manifest(folder, "path,label\na.npz,x\nb.npy,y\n")
    series = read_inputs([folder / "c.csv", path])
    assert [item.label for item in series] == [None, "x", "y"]
    assert series.names == ["c", "a", "b"]


def test_rate_and_channel_apply_to_the_recordings_among_the_inputs(folder):
    series = read_inputs([folder / "b.npy"], rate=4, channel=1)
    assert (series[0].rate, series.names) == (4, ["b:1"])


def test_recordings_of_the_same_name_are_told_apart_by_as_few_folders_as_needed(tmp_path, monkeypatch):
    for place in ("A", "B", "C/B", "C"):
        (tmp_path / place).mkdir(exist_ok=True, parents=True)
        np.save(tmp_path / place / "x.npy", SAMPLES)
        np.save(tmp_path / place / f"only{place[0]}.npy", SAMPLES)
    for place in ("A", "B"):
        manifest(tmp_path / place, f"path\nx.npy\nonly{place}.npy\n", name="m.csv")
    expected = ["A/x", "onlyA", "B/x", "onlyB"]
    assert read_inputs([tmp_path / "A/m.csv", tmp_path / "B/m.csv"]).names == expected
    assert read_inputs([tmp_path / "A/m.csv", tmp_path / "C/x.npy"]).names == ["A/x", "onlyA", "C/x"]
    files = [tmp_path / f"{place}/x.npy" for place in ("A", "B", "C/B")]
    assert read_inputs(files).names == ["A/x", f"{tmp_path.name}/B/x", "C/B/x"]
    monkeypatch.chdir(tmp_path / "A")
    assert read_inputs(["m.csv", "../B/m.csv"]).names == expected
    assert read_inputs(["x.npy", "../B/x.npy"], channel=0).names == ["A/x:0", "B/x:0"]
    assert read_inputs(["./x.npy", "../A/onlyA.npy"]).names == ["x", "onlyA"]
    monkeypatch.chdir(tmp_path)  # a folder may be called after a patient
    assert read_inputs(["C/B/x.npy", "A/onlyA.npy"]).names == ["x", "onlyA"]


def test_one_recording_by_channel_has_one_name(folder):
    item = manifest(folder, "path,channel\na.npz,0\n", name="one.csv")
    two = manifest(folder, "path,channel\na.npz,1\nb.npy,\n", name="two.csv")
    assert read_inputs([item, two]).names == ["a:0", "a:1", "b"]


def test_the_same_series_twice_among_the_inputs_is_refused(folder, monkeypatch):
    item = manifest(folder, "path\nb.npy\na.npz\n", name="one.csv")
    (folder / "link.npz").symlink_to(folder / "a.npz")
    monkeypatch.chdir(folder)
    for again in (folder / "a.npz", "a.npz", "./a.npz", "link.npz", f"../{folder.name}/a.npz"):
        with pytest.raises(
            RecordingError,
            match=r"same series is given twice, by input 1 \(manifest 'one\.csv', line 3\) and by input 2 "
            rf"\('{Path(again).name}'\)",
        ) as caught:
            read_inputs([item, again])
        assert str(folder) not in str(caught.value)
    with pytest.raises(RecordingError, match=r"by input 1 \(.*line 2\) and by input 3 \(.*line 2\)"):
        read_inputs([item, "c.csv", item])
    assert read_inputs([item, "a.npz"], channel=0).names == ["b", "a", "a:0"]
    listed = manifest(folder, "path,channel\na.npz,0\n")
    with pytest.raises(RecordingError, match="given twice"):
        read_inputs([listed, "a.npz"], channel=0)


@pytest.mark.parametrize("again", ["./a.npz", "sub/../a.npz", "link.npz", "{folder}/a.npz"])
def test_a_recording_under_two_spellings_is_one_recording(folder, again):
    (folder / "sub").mkdir()
    (folder / "link.npz").symlink_to("a.npz")
    again = again.format(folder=folder)
    message = r"'all\.csv' lists 'a\.npz:0' in lines 2 and 4 \(there as '.*\.npz'\); each series once"
    with pytest.raises(RecordingError, match=message):
        read_manifest(manifest(folder, f"path,label,channel\na.npz,x,0\nb.npy,x,0\n{again},y,0\n"))
    assert len(read_manifest(manifest(folder, f"path,label,channel\na.npz,x,0\n{again},y,1\n"))) == 2


def test_a_wfdb_record_by_two_of_its_names_is_one_recording(record):
    for again in ("rec.hea", "rec.dat"):
        with pytest.raises(RecordingError, match=rf"lists 'rec' in lines 2 and 3 \(there as '{again}'\)"):
            read_manifest(manifest(record.parent, f"path,label\nrec,x\n{again},y\n"))


def test_no_inputs_are_refused():
    with pytest.raises(EmptyDataError, match="no input was given"):
        read_inputs([])
