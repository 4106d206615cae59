"""What messages say about recordings: never a header's text, what was not looked into, sizes in numbers."""

import io
import os
import sys
import zipfile
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
from test_agreement import BV_GAP, EDF, WFDB, compressed, csv, matlab, npy, npz, segmented

PERSON = "Canary_Jane"  # in place of each field in turn


def told_about(path: Path) -> str:
    """All that a user can get to read about a file."""
    told = [problem.message for problem in inspect_file(path, signals=True).problems]
    try:
        with open_recording(path) as recording:
            recording.read([0])
    except RAxSSError as error:
        told.append(str(error))
    return " ".join(told)


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
        if (
            name.endswith(".hea")
            and raw[:start].count(b"\n")
            and raw[start - 1 : start] == b" "
            and _names(raw, start)
        ):
            continue
        for word in (PERSON, f"{PERSON}.dat", f"19510502.{PERSON}"):
            file.write_bytes(replaced(raw, start, end, word))
            told = told_about(path)
            assert "Canary" not in told, (raw[start:end], told)
            n_refused += bool(told)
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
    assert "Canary" not in told_about(path)


def test_a_header_that_slipped_shows_no_patient(tmp_path):
    """Bytes put in or lost move the patient's name into fields that are numbers."""
    path = EDF(tmp_path)
    raw = edf.plain(patient="Canary_" * 11, recording="Canary " * 11).bytes()
    for shift in range(-80, 80, 4):
        path.write_bytes(
            raw[: 8 - min(shift, 0)] + raw[8:] if shift < 0 else raw[:8] + b" " * shift + raw[8:]
        )
        assert "Canary" not in told_about(path)


def test_names_of_arrays_do_not_come_out_again(tmp_path):
    for name, arrays in {
        "a": {PERSON: np.zeros(5)},
        "b": {PERSON: np.zeros(5), "samples": np.zeros(5)},
    }.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        assert "Canary" not in told_about(tmp_path / f"{name}.npz")


@pytest.mark.parametrize(
    ("package", "write"),
    [("edfio", EDF), ("mne", BV_GAP), ("wfdb", WFDB), ("wfdb", segmented), ("soundfile", compressed)],
    ids=["edf", "brainvision", "wfdb", "wfdb-segments", "wfdb-flac"],
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


@pytest.mark.parametrize("write", [npy, npz(), csv], ids=["npy", "npz", "csv"])
def test_arrays_and_tables_are_read_without_any_extra(write, tmp_path, monkeypatch):
    for package in ("edfio", "mne", "wfdb", "soundfile"):
        monkeypatch.setitem(sys.modules, package, None)
    codes = {problem.code for problem in inspect_file(write(tmp_path), signals=True).problems}
    assert codes <= {"rate-unknown"}


# --- recordings that are larger than the memory of any machine that runs this; holes take no room on the disk


def large_edf(folder: Path) -> Path:
    file = edf.plain(signals=[edf.Signal(n=30_000)], n_records_text="40000000")
    (folder / "a.edf").write_bytes(file.header())
    os.truncate(folder / "a.edf", len(file.header()) + 40_000_000 * 60_000)
    return folder / "a.edf"


def large_bdf(folder: Path) -> Path:
    file = edf.bdf(signals=[edf.BDF_TWO[0].__class__(**{**edf.BDF_TWO[0].__dict__, "n": 20_000})],
                   n_records_text="40000000")  # fmt: skip
    (folder / "a.bdf").write_bytes(file.header())
    os.truncate(folder / "a.bdf", len(file.header()) + 40_000_000 * 60_000)
    return folder / "a.bdf"


def large_brainvision(folder: Path) -> Path:
    path = Triplet(channels=("Fz,,0.5,µV",), n_samples=1).write(folder)
    os.truncate(folder / "a.eeg", 2_400_000_000_000)
    return path


def large_wfdb(folder: Path) -> Path:
    path = Record(n_samples=1, declared="600000000000").write(folder)
    os.truncate(folder / "r.dat", 2_400_000_000_000)
    return path


def large_wfdb_of_unknown_length(folder: Path) -> Path:
    path = Record(n_samples=1, first="r 2 250").write(folder)
    os.truncate(folder / "r.dat", 2_400_000_000_000)
    return path


def large_npy(folder: Path) -> Path:
    raw = array_header((2, 150_000_000_000), "<f8")
    (folder / "a.npy").write_bytes(raw)
    os.truncate(folder / "a.npy", len(raw) + 2_400_000_000_000)
    return folder / "a.npy"


LARGE = [large_edf, large_bdf, large_brainvision, large_wfdb, large_wfdb_of_unknown_length, large_npy]


@pytest.mark.skipif(available_memory() is None, reason="the system does not tell how much memory is free")
@pytest.mark.parametrize("write", LARGE)
def test_a_recording_larger_than_memory_is_an_error_in_numbers(write, tmp_path):
    try:
        path = write(tmp_path)
    except OSError:
        pytest.skip("this file system has no room for holes of this size")
    with (
        pytest.raises(
            RecordingError, match=r"needs [\d,]+\.\d GB of memory, but [\d,]+\.\d GB are free"
        ) as error,
        open_recording(path) as recording,
    ):
        recording.read([0])
    assert path.stem in str(error.value)


def test_an_array_larger_than_memory_is_not_called_damaged(tmp_path):
    try:
        path = large_npy(tmp_path)
    except OSError:
        pytest.skip("this file system has no room for holes of this size")
    problem = inspect_file(path, signals=True).problems[-1]
    assert problem.code == "too-large"
    assert "needs 2,400.0 GB of memory" in problem.message


def test_a_short_stretch_of_it_is_read(tmp_path):
    for write in (large_edf, large_bdf, large_brainvision, large_wfdb):
        try:
            path = write(tmp_path)
        except OSError:
            pytest.skip("this file system has no room for holes of this size")
        with open_recording(path) as recording:
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
    with pytest.raises(RecordingError, match="packed with LZMA"):
        open_recording(path)
    with pytest.raises(RecordingError, match="packed with LZMA"):
        open_recording(path, inspect=False)
    raw = io.BytesIO()
    np.save(raw, np.zeros((1, 100)))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("samples.npy", raw.getvalue())
    assert "bzip2" in inspect_file(path).problems[0].message
