"""What messages say about recordings: never a header's text, what was not looked into, sizes in numbers."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from corpus import edf
from corpus.arrays import header as array_header
from corpus.arrays import lzma_dictionary
from corpus.brainvision import Triplet
from corpus.wfdb import Record
from raxss._core.memory import available_memory
from raxss.cli.check import lines_of
from raxss.data.formats.opening import open_recording
from raxss.data.inspection import inspect_file
from raxss.errors import RAxSSError, RecordingError
from test_agreement import BDF, BV_GAP, EDF, WFDB, compressed, csv, matlab, npy, npz, segmented

PERSON = "Canary_Jane"  # in place of each field in turn


def messages_about(path: Path) -> str:
    """All messages that a user can get about a file."""
    messages = [problem.message for problem in inspect_file(path, signals=True).problems]
    try:
        with open_recording(path) as recording:
            recording.read([0])
    except RAxSSError as error:
        messages.append(str(error))
    return " ".join(messages)


def replaced(raw: bytes, start: int, end: int, word: str = PERSON) -> bytes:
    return raw[:start] + word.encode() + raw[end:]


def values_of(raw: bytes, separators: bytes) -> list[tuple[int, int]]:
    """Where each value between separators begins and ends."""
    found, start = [], 0
    for place, byte in enumerate(raw + separators[:1]):
        if byte in separators:
            if place > start:
                found.append((start, place))
            start = place + 1
    return found


@pytest.mark.parametrize(
    ("write", "name", "separators"),
    [
        (BV_GAP, "a.vhdr", b"=\r\n"),
        (BV_GAP, "a.vhdr", b"=,\r\n"),
        (BV_GAP, "a.vmrk", b"=,\r\n"),
        (WFDB, "r.hea", b" \n"),
        (WFDB, "r.hea", b" ./()+\n"),
        (matlab, "r.hea", b" \n"),
        (segmented, "m.hea", b" /\n"),
        (segmented, "s2.hea", b" \n"),
    ],
    ids=["vhdr", "vhdr-parts", "vmrk", "hea", "hea-parts", "hea-mat", "hea-segments", "hea-of-a-segment"],
)
def test_no_field_of_a_text_header_comes_out_again(write, name, separators, tmp_path):
    path = write(tmp_path)
    file = tmp_path / name
    raw = file.read_bytes()
    own_names = [line.split(b",")[0].split(b"=")[-1] for line in raw.split(b"\r\n") if line.startswith(b"Ch")]
    n_refused = 0
    for start, end in values_of(raw, separators):
        if raw[start:end] in (*own_names, b"MLII", b"V5"):  # the name of a channel is shown on purpose
            continue
        is_below = raw[:start].count(b"\n") and raw[start - 1 : start] == b" "
        if name.endswith(".hea") and is_below and _names(raw, start):
            continue
        for word in (PERSON, f"{PERSON}.dat", f"19510502.{PERSON}"):
            file.write_bytes(replaced(raw, start, end, word))
            messages = messages_about(path)
            assert "Canary" not in messages, (raw[start:end], messages)
            n_refused += bool(messages)
    assert n_refused > 10


def _names(raw: bytes, start: int) -> bool:
    """Whether a text in place of this number begins the description, which is the name of the signal."""
    line = raw[raw.rfind(b"\n", 0, start) + 1 : start]
    return line.count(b" ") >= 3


@pytest.mark.parametrize("place", [*range(8, 256, 8), *range(256 + 32, 768, 8)])
def test_no_field_of_an_edf_header_comes_out_again(place, tmp_path):
    """Labels, the first 16 bytes of each signal, are shown on purpose."""
    path = EDF(tmp_path)
    raw = path.read_bytes()
    path.write_bytes(raw[:place] + b"CanaryJ " + raw[place + 8 :])
    assert "Canary" not in messages_about(path)


def test_a_header_that_slipped_shows_no_patient(tmp_path):
    """Bytes put in or lost move the patient's name into fields that are numbers."""
    path = EDF(tmp_path)
    raw = edf.plain(patient="Canary_" * 11, recording="Canary " * 11).bytes()
    for shift in range(-80, 80, 4):
        path.write_bytes(
            raw[: 8 - min(shift, 0)] + raw[8:] if shift < 0 else raw[:8] + b" " * shift + raw[8:]
        )
        assert "Canary" not in messages_about(path)


def test_names_of_arrays_do_not_come_out_again(tmp_path):
    for name, arrays in {
        "a": {PERSON: np.zeros(5)},
        "b": {PERSON: np.zeros(5), "samples": np.zeros(5)},
    }.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        assert "Canary" not in messages_about(tmp_path / f"{name}.npz")


@pytest.mark.parametrize(
    ("package", "write"),
    [("wfdb", WFDB), ("wfdb", segmented), ("soundfile", compressed)],
    ids=["wfdb", "wfdb-segments", "wfdb-flac"],
)
def test_without_its_package_no_recording_is_ok(package, write, tmp_path, monkeypatch):
    path = write(tmp_path)
    for name in [module for module in sys.modules if module == package or module.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    if package == "soundfile":  # wfdb asks for it when it is imported, or when it meets FLAC
        for name in [module for module in sys.modules if module.startswith("wfdb")]:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    inspection = inspect_file(path, signals=True)
    assert inspection.verdict == "warning"
    problem = inspection.problems[-1]
    assert problem.code == "signals-not-read"
    assert "were looked at, not its signals" in problem.message
    assert "pip install 'raxss[bids]'" in problem.message
    assert lines_of(inspection)[0].startswith("warning")


@pytest.mark.parametrize(
    "write", [EDF, BDF, BV_GAP, npy, npz(), csv], ids=["edf", "bdf", "brainvision", "npy", "npz", "csv"]
)
def test_all_but_wfdb_is_read_without_any_extra(write, tmp_path, monkeypatch):
    for package in ("edfio", "mne", "wfdb", "soundfile"):
        monkeypatch.setitem(sys.modules, package, None)
    codes = {problem.code for problem in inspect_file(write(tmp_path), signals=True).problems}
    assert codes <= {"rate-unknown", "gaps"}


# --- recordings that are larger than the memory of any machine that runs this; holes take no room on the disk


TERABYTES = 2_400_000_000_000
FAST_EDF = edf.plain(signals=[edf.Signal(n=30_000)], n_records_text="40000000")
FAST_BDF = edf.bdf(signals=[replace(edf.BDF_TWO[0], n=20_000)], n_records_text="40000000")
HEADERS = {  # file that is given, what writes it, and the file that has the hole
    "edf": ("a.edf", lambda folder: (folder / "a.edf").write_bytes(FAST_EDF.header()), "a.edf"),
    "bdf": ("a.bdf", lambda folder: (folder / "a.bdf").write_bytes(FAST_BDF.header()), "a.bdf"),
    "brainvision": ("a.vhdr", Triplet(channels=("Fz,,0.5,µV",), n_samples=1).write, "a.eeg"),
    "wfdb": ("r.hea", Record(n_samples=1, declared="600000000000").write, "r.dat"),
    "wfdb-of-unknown-length": ("r.hea", Record(n_samples=1, first="r 2 250").write, "r.dat"),
    "npy": (
        "a.npy",
        lambda folder: (folder / "a.npy").write_bytes(array_header((2, 150_000_000_000), "<f8")),
        "a.npy",
    ),
}


def large(name: str, folder: Path) -> Path:
    """A recording of terabytes, which are a hole."""
    given, write, holed = HEADERS[name]
    write(folder)
    offset = (folder / holed).stat().st_size if given == holed else 0
    try:
        os.truncate(folder / holed, offset + TERABYTES)
    except OSError:
        pytest.skip("this file system has no room for holes of this size")
    return folder / given


@pytest.mark.skipif(available_memory() is None, reason="the system does not tell how much memory is free")
@pytest.mark.parametrize("name", HEADERS)
def test_a_recording_larger_than_memory_is_an_error_in_numbers(name, tmp_path):
    path, message = large(name, tmp_path), r"needs [\d,]+\.\d GB of memory, but [\d,]+\.\d GB are free"
    with pytest.raises(RecordingError, match=message) as error, open_recording(path) as recording:
        recording.read([0])
    assert path.stem in str(error.value)


def test_an_array_larger_than_memory_is_not_called_damaged(tmp_path):
    problem = inspect_file(large("npy", tmp_path), signals=True).problems[-1]
    assert problem.code == "too-large"
    assert "needs 2,400.0 GB of memory" in problem.message


@pytest.mark.parametrize("name", ["edf", "bdf", "brainvision", "wfdb"])
def test_a_short_stretch_of_it_is_read(name, tmp_path):
    with open_recording(large(name, tmp_path)) as recording:
        assert recording.read([0], start=10**10, stop=10**10 + 100).shape == (1, 100)


def test_a_table_that_outgrows_memory_is_an_error_in_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr("raxss._core.memory.available_memory", lambda: 10**5)
    monkeypatch.setattr("raxss.data.formats.csv_tables.SMALL_BYTES", 10**4)
    monkeypatch.setattr("raxss.data.recording.SMALL_BYTES", 10**4)
    np.savetxt(tmp_path / "a.csv", np.random.default_rng(0).normal(size=(20_000, 2)), delimiter=",")
    with pytest.raises(RecordingError, match=r"the table needs .* GB of memory, but .* GB are free"):
        open_recording(tmp_path / "a.csv")


def test_packings_that_numpy_does_not_write_are_refused_by_name(tmp_path):
    path = lzma_dictionary(tmp_path)
    (problem,) = inspect_file(path).problems
    assert problem.code == "not-supported"
    assert "array 'samples' is packed with LZMA; stored or deflated is needed" in problem.message
    for inspect in (True, False):
        with pytest.raises(RecordingError, match="packed with LZMA"):
            open_recording(path, inspect=inspect)
