"""What a recording states twice must agree: one row an agreement, and each row is a test.

    (format, what, with what, a sound file, how it is made to disagree, the problem that must be found)

The sound file of each row passes without that problem; so a row fails if the comparison is missing, and if it finds
something where nothing disagrees. docs/data.md has the same table for readers.
"""

import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from corpus import all_cases, edf
from corpus.arrays import header
from corpus.arrays import saved as array_file
from corpus.brainvision import NEW_SEGMENT, PAUSE, Triplet
from corpus.damages import Damage, Write, content, cut, flipped, more, put, text
from corpus.wfdb import Record, Segmented, compressed, summed
from raxss.data.inspection import CODES, inspect_file

GAP = [f"+{second}" for second in (0, 1, 2, 3, 3600, 3601, 3602, 3603)]


@dataclass(frozen=True)
class Row:
    """One agreement. ``allowed``: what the sound file may be warned about, because it is so."""

    format: str
    what: str
    with_what: str
    sound: Write
    disagree: Damage
    code: str
    allowed: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.format}: {self.what} / {self.with_what}".replace(" ", "-")


# --- sound files


def edf_file(file: edf.File, name: str = "a.edf") -> Write:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(file.bytes())
        return folder / name

    return write


def brainvision(**changes) -> Write:
    common = {"DataPoints": "400", **changes.pop("common", {})}
    return Triplet(common=common, **changes).write


def wfdb(**changes) -> Write:
    return summed(Record(**changes)).write


def segmented(folder: Path) -> Path:
    records = {name: summed(Record(name=name, n_samples=n)) for name, n in (("s1", 500), ("s2", 300))}
    return Segmented(["s1 500", "~ 250", "s2 300"], records, "1050").write(folder)


def matlab(folder: Path) -> Path:
    """As cinc2017 is stored: MATLAB's header of 24 bytes, then samples."""
    stored = Record().stored()
    header = np.array([30, 2, 500, 0, 4], "<i4").tobytes() + b"val\0"
    (folder / "r.mat").write_bytes(header + stored.astype("<i2").tobytes())
    lines = [
        f"r.mat 16+24 200/mV 12 0 {first} 0 0 {name}" for first, name in zip(stored[0], "AB", strict=True)
    ]
    (folder / "r.hea").write_text("\n".join(["r 2 250 500", *lines, ""]))
    return folder / "r.hea"


SAMPLES = np.random.default_rng(3).normal(size=(2, 4000))


npy = array_file("a.npy", SAMPLES)


def npz(packed: bool = False, **changes) -> Write:
    def write(folder: Path) -> Path:
        arrays = {
            "samples": SAMPLES,
            "rate": 250.0,
            "channels": ["C3", "C4"],
            "times_s": np.arange(4000) / 250,
        }
        (np.savez_compressed if packed else np.savez)(folder / "a.npz", **{**arrays, **changes})
        return folder / "a.npz"

    return write


def csv(folder: Path) -> Path:
    np.savetxt(folder / "a.csv", SAMPLES.T, delimiter=",", header="C3,C4", comments="")
    return folder / "a.csv"


# --- how they are made to disagree


def repacked(method: int) -> Damage:
    def damage(path: Path) -> None:
        with zipfile.ZipFile(path) as before:
            members = {item.filename: before.read(item) for item in before.infolist()}
        with zipfile.ZipFile(path, "w", method) as after:
            for name, raw in members.items():
                after.writestr(name, raw)

    return damage


def saved(**arrays) -> Damage:
    def damage(path: Path) -> None:
        with np.load(path) as before:
            every = {**before, **arrays}
        np.savez(path, **every)

    return damage


def shaped(shape: tuple[int, ...]) -> Damage:
    """Another shape in the header of an array, and the same samples."""
    return content(header(shape, "<f8") + SAMPLES.tobytes())


def onset(number: int, time: str) -> Damage:
    """Another time of a record of EDF+ with two signals of 100 samples and 60 bytes of annotations."""
    return put(256 * 4 + number * 460 + 400, f"{time}\x14\x14\0", 20)


EDF, PLUS_C, PLUS_D = edf_file(edf.plain()), edf_file(edf.plus()), edf_file(edf.plus("EDF+D", GAP))
BDF = edf_file(edf.bdf(), "a.bdf")
TWO_SEGMENTS = (NEW_SEGMENT, PAUSE, "Stimulus,S  1,300,1,0")
BV, BV_GAP = brainvision(), brainvision(markers=TWO_SEGMENTS)
VECTORIZED = brainvision(common={"DataOrientation": "VECTORIZED"})
EPOCHS = brainvision(common={"SegmentationType": "FIXTIME", "SegmentDataPoints": "100"})
WFDB = wfdb()
FIRST = int(Record().stored()[0, 0])
TIMES = np.arange(4000) / 250

ROWS = [
    # EDF and BDF
    Row("EDF", "size of the header", "number of signals", EDF, put(184, "1024"), "header-damaged"),
    Row("EDF", "number of signals", "size of the header", EDF, put(252, "3", 4), "header-damaged"),
    Row("EDF", "number of signals", "size of the file", EDF, content(lambda raw: raw[:700]), "header-damaged"),
    Row("EDF", "number of records", "size of the file", EDF, put(236, "9"), "data-truncated"),
    Row("EDF", "fewer records", "size of the file", EDF, put(236, "7"), "data-longer"),
    Row("EDF", "a cut of a byte", "number of records", EDF, cut(1), "data-truncated"),
    Row("EDF", "a cut of a record", "number of records", EDF, cut(400), "data-truncated"),
    Row("EDF", "samples in a record", "size of the file", EDF, put(256 + 216 * 2, "110"), "data-truncated"),
    Row("BDF", "a cut of 100 bytes", "number of records", BDF, cut(100), "data-truncated"),
    Row("EDF", "version", "ending of the name", EDF, content(edf.bdf().bytes()), "not-this-format"),
    Row("BDF", "version", "ending of the name", BDF, content(edf.plain().bytes()), "not-this-format"),
    Row("EDF", "digital limits", "16 bits", EDF, put(256 + 128 * 2, "65535"), "bad-range"),
    Row("EDF", "digital minimum", "digital maximum", EDF, put(256 + 120 * 2, "32767"), "bad-range"),
    Row("EDF", "physical minimum", "physical maximum", EDF, put(256 + 104 * 2, "3276.7"), "bad-range"),
    Row("EDF", "digital limits", "samples", EDF, lambda path: [put(256 + 120 * 2, "-99")(path),
        put(256 + 128 * 2, "99")(path)], "beyond-limits"),
    Row("EDF", "duration of a record", "samples in it", EDF, put(244, "0"), "bad-rate"),
    Row("EDF+", "continuous", "times of the records", PLUS_C, onset(4, "+99"), "header-damaged"),
    Row("EDF+", "continuous", "times of the records, a gap", edf_file(edf.plus()),
        content(edf.plus("EDF+C", GAP).bytes()), "header-inconsistent"),
    Row("EDF+", "discontinuous", "annotation signal", edf_file(edf.plain()), put(192, "EDF+D", 44),
        "header-damaged"),
    Row("EDF+", "continuous", "annotation signal", edf_file(edf.plain()), put(192, "EDF+C", 44),
        "header-inconsistent"),
    Row("EDF+", "annotation signal", "plain EDF", PLUS_C, put(192, "", 44), "header-inconsistent"),
    Row("EDF+", "times of the records", "duration of a record", PLUS_D, put(244, "2"), "header-damaged", ("gaps",)),
    Row("EDF+", "time of a record", "that of the one before", PLUS_D, onset(5, "+3599"), "header-damaged",
        ("gaps",)),
    Row("EDF+", "time of a record", "its annotations", PLUS_D, onset(5, "\0\0\0"), "header-damaged", ("gaps",)),
    Row("EDF", "number of records", "unknown", EDF, put(236, "-1"), "header-inconsistent"),
    Row("EDF", "labels", "each other", EDF, put(272, "EEG Fpz-Cz", 16), "duplicate-channel"),
    # BrainVision
    Row("BrainVision", "NumberOfChannels", "[Channel Infos]", BV,
        text("NumberOfChannels=3", "NumberOfChannels=2"), "header-damaged"),
    Row("BrainVision", "size of the data", "DataPoints", BV, cut(12, ".eeg"), "data-truncated"),
    Row("BrainVision", "size of the data", "channels and bytes of a sample",
        brainvision(common={"DataPoints": None}),
        cut(3, ".eeg"), "data-truncated"),
    Row("BrainVision", "longer data", "DataPoints", BV, more(bytes(60), ".eeg"), "header-inconsistent"),
    Row("BrainVision", "BinaryFormat", "DataPoints", BV, text("INT_16", "INT_32"), "data-truncated"),
    Row("BrainVision", "VECTORIZED data", "DataPoints", VECTORIZED, cut(600, ".eeg"), "data-missing"),
    Row("BrainVision", "VECTORIZED data, longer", "DataPoints", VECTORIZED, more(bytes(600), ".eeg"),
        "data-missing"),
    Row("BrainVision", "VECTORIZED", "DataPoints that are not there", VECTORIZED,
        text("DataPoints=400\r\n", ""), "not-supported"),
    Row("BrainVision", "DataFile", "not the header", BV, text("DataFile=a.eeg", "DataFile=a.vhdr"),
        "header-damaged"),
    Row("BrainVision", "DataFile", "not the marker file", BV, text("DataFile=a.eeg", "DataFile=a.vmrk"),
        "header-damaged"),
    Row("BrainVision", "DataFile", "not a link to the header", BV, lambda path: [
        path.with_suffix(".eeg").unlink(), path.with_suffix(".eeg").hardlink_to(path)], "header-damaged"),
    Row("BrainVision", "DataFile", "samples, not text", BV, lambda path: shutil.copy(
        path.with_suffix(".vmrk"), path.with_suffix(".eeg")), "header-damaged"),
    Row("BrainVision", "MarkerFile", "not the header", BV, text("MarkerFile=a.vmrk", "MarkerFile=a.vhdr"),
        "sidecar-damaged"),
    Row("BrainVision", "MarkerFile", "not the data", BV, text("MarkerFile=a.vmrk", "MarkerFile=a.eeg"),
        "sidecar-damaged"),
    Row("BrainVision", "MarkerFile", "a file", BV, lambda path: path.with_suffix(".vmrk").unlink(),
        "sidecar-missing"),
    Row("BrainVision", "MarkerFile", "the file of the header's name", BV,
        text("MarkerFile=a.vmrk", "MarkerFile=b.vmrk"), "header-inconsistent"),
    Row("BrainVision", "first line of the marker file", "the format", BV_GAP, text("Brain", "Brian", ".vmrk"),
        "sidecar-damaged", ("gaps",)),
    Row("BrainVision", "section of markers", "the format", BV_GAP, text(r"\[Marker Infos\]", "[Marker]", ".vmrk"),
        "sidecar-damaged", ("gaps",)),
    Row("BrainVision", "lines of the marker file", "the format", BV_GAP, text("Mk2=", "M2=", ".vmrk"),
        "sidecar-damaged", ("gaps",)),
    Row("BrainVision", "fields of a marker", "the format", BV_GAP, text(",201,", ",,", ".vmrk"), "sidecar-damaged",
        ("gaps",)),
    Row("BrainVision", "numbers of markers", "each other", BV_GAP, text("Mk2=[^\n]*\n", "", ".vmrk"),
        "markers-doubtful", ("gaps",)),
    Row("BrainVision", "type of a marker", "its date", BV_GAP, text("New Segment,,201", "New Segmeat,,201",
        ".vmrk"),
        "markers-doubtful", ("gaps",)),
    Row("BrainVision", "date of a marker", "the format", BV_GAP, text("20200102030505000000", "2020010203",
        ".vmrk"),
        "markers-doubtful", ("gaps",)),
    Row("BrainVision", "dates of markers", "samples between them", BV_GAP,
        text("20200102030505000000", "20200102030405000001", ".vmrk"), "header-inconsistent", ("gaps",)),
    Row("BrainVision", "last line of the marker file", "its end", BV_GAP, cut(2, ".vmrk"), "markers-doubtful",
        ("gaps",)),
    Row("BrainVision", "DataFile of the marker file", "that of the header", BV,
        text("DataFile=a.eeg", "DataFile=b.eeg", ".vmrk"), "markers-doubtful"),
    Row("BrainVision", "positions of markers", "number of samples", BV_GAP, text(",300,", ",401,", ".vmrk"),
        "events-outside", ("gaps",)),
    Row("BrainVision", "SegmentDataPoints", "number of samples", EPOCHS,
        text("SegmentDataPoints=100", "SegmentDataPoints=150"), "data-truncated", ("gaps",)),
    Row("BrainVision", "SegmentationType", "SegmentDataPoints", EPOCHS,
        text("SegmentDataPoints=100", "SegmentDataPoints=1OO"), "header-damaged", ("gaps",)),
    Row("BrainVision", "SegmentationType", "SegmentDataPoints that are not there", EPOCHS,
        text("SegmentDataPoints=100\r\n", ""), "header-damaged", ("gaps",)),
    Row("BrainVision", "SegmentDataPoints", "SegmentationType", EPOCHS, text("FIXTIME", "NOTSEGMENTED"),
        "header-inconsistent", ("gaps",)),
    # WFDB
    Row("WFDB", "number of signals", "lines of the header", WFDB, text("r 2 250", "r 3 250"), "header-damaged"),
    Row("WFDB", "number of samples", "size of the data", WFDB, cut(4, ".dat"), "data-missing"),
    Row("WFDB", "fewer samples", "size of the data", WFDB, text("250 500", "250 499"), "data-longer"),
    Row("WFDB", "size of the data", "whole frames", Record(first="r 2 250").write, cut(3, ".dat"),
        "data-truncated"),
    Row("WFDB", "format", "size of the data", WFDB, content(lambda raw: raw.replace(b"dat 16", b"dat 32")),
        "data-missing"),
    Row("WFDB", "formats of one file", "each other", WFDB, text("dat 16", "dat 212"), "header-damaged"),
    *(Row(f"WFDB format {fmt}", "first value", "first sample", wfdb(fmt=fmt),
          text(f" 0 {FIRST} ", f" 0 {FIRST + 1} "), "first-value")
      for fmt in ("16", "24", "32", "61", "80", "160", "212")),
    Row("WFDB FLAC", "first value", "first sample", compressed, text(f" {FIRST} ", f" {FIRST + 1} "),
        "first-value"),
    Row("WFDB", "beginning of the data", "first value", WFDB, content(lambda raw: raw[4:] + raw[:4], ".dat"),
        "first-value"),
    Row("WFDB", "offset of the data", "first value", WFDB, content(lambda raw: raw.replace(b"dat 16", b"dat 16+4")
        .replace(b"250 500", b"250 499")), "first-value"),
    Row("WFDB", "checksum", "all samples", WFDB, flipped(1000, ".dat"), "checksum"),
    Row("WFDB FLAC", "checksum", "all samples", compressed, text(r"(-?\d+) 0 MLII", "77 0 MLII"), "checksum"),
    Row("WFDB segments", "checksum", "all samples of a segment", segmented, lambda path: flipped(
        1000, ".dat")(path.with_name("s2.dat")), "checksum", ("gaps",)),
    Row("WFDB segments", "first value", "first sample of a segment", segmented, lambda path: [
        shutil.copy(path.with_name("s2.dat"), path.with_name("spare")),
        path.with_name("s2.dat").write_bytes(path.with_name("spare").read_bytes()[::-1])], "first-value",
        ("gaps",)),
    Row("WFDB segments", "number of samples", "lengths of the segments", segmented, text("250 1050", "250 1051"),
        "header-inconsistent", ("gaps",)),
    Row("WFDB segments", "length of a segment", "its header", segmented, text("s2 300", "s2 301"), "data-missing",
        ("gaps",)),
    Row("WFDB segments", "shorter length of a segment", "its header", segmented, text("s2 300", "s2 299"),
        "data-longer", ("gaps",)),
    Row("WFDB segments", "number of segments", "lines of the header", segmented, text("m/3", "m/2"),
        "header-damaged", ("gaps",)),
    Row("WFDB segments", "number of signals", "signals of the segments", segmented, text("m/3 2", "m/3 3"),
        "header-inconsistent", ("gaps",)),
    Row("WFDB segments", "signals of a segment", "those of the others", segmented, text("V5", "V6", name="s2.hea"),
        "not-supported", ("gaps",)),
    Row("WFDB segments", "rate of a segment", "that of the record", segmented, text(" 250 ", " 200 ",
        name="s2.hea"),
        "not-supported", ("gaps",)),
    Row("WFDB", "name of the record", "name of the file", WFDB, text("r 2 250", "q 2 250"), "header-inconsistent"),
    Row("WFDB", "data file", "not the header", WFDB, content(lambda raw: raw.replace(b"r.dat", b"r.hea")),
        "header-damaged"),
    Row("WFDB", "last line of the header", "its end", Record(comments="# x").write, lambda path: path.write_bytes(
        Record().header().partition("\n#")[0].encode()[:-1]), "may-be-cut"),
    Row("WFDB .mat", "offset", "length of MATLAB's header", matlab, content(lambda raw: raw.replace(b"+24", b"+4")),
        "header-damaged"),
    Row("WFDB .mat", "number of signals", "rows of the matrix", matlab,
        content(lambda raw: raw[:4] + bytes([4]) + raw[5:], ".mat"), "header-damaged"),
    Row("WFDB .mat", "format", "type of the matrix", matlab, content(lambda raw: bytes([20]) + raw[1:], ".mat"),
        "header-damaged"),
    Row("WFDB .mat", "number of samples", "columns of the matrix", matlab,
        content(lambda raw: raw[:8] + bytes([245]) + raw[9:], ".mat"), "header-inconsistent"),
    # arrays and tables
    Row(".npy", "shape", "number of bytes", npy, shaped((2, 4001)), "data-missing", ("rate-unknown",)),
    Row(".npy", "smaller shape", "number of bytes", npy, shaped((2, 3999)), "header-damaged", ("rate-unknown",)),
    Row(".npy", "bytes after the array", "shape", npy, more(bytes(8)), "header-damaged", ("rate-unknown",)),
    Row(".npz", "smaller shape", "number of bytes", npz(), lambda path: _shape_in_archive(path, (2, 3999)),
        "header-damaged"),
    Row(".npz", "channels", "shape of samples", npz(), saved(channels=["C3", "C4", "Cz"]), "header-damaged"),
    Row(".npz", "times", "shape of samples", npz(), saved(times_s=TIMES[:-1]), "header-damaged"),
    Row(".npz", "times", "rate", npz(), saved(rate=200.0), "header-damaged"),
    Row(".npz", "times", "even steps", npz(), saved(times_s=np.r_[TIMES[:2000], TIMES[2000:] + 3600]),
        "header-damaged"),
    Row(".npz", "samples", "no second array", npz(), saved(data=SAMPLES), "header-inconsistent"),
    Row(".npz", "samples", "CRC of the archive", npz(), flipped(30_000), "header-damaged"),
    Row(".npz", "packed samples", "CRC of the archive", npz(packed=True), lambda path: _other_crc(path),
        "header-damaged"),
    Row(".npz", "packing", "what numpy writes, not LZMA", npz(), repacked(zipfile.ZIP_LZMA), "not-supported"),
    Row(".npz", "packing", "what numpy writes, not bzip2", npz(), repacked(zipfile.ZIP_BZIP2), "not-supported"),
    Row(".npz", "archive", "its directory", npz(), cut(100), "not-this-format"),
    Row(".csv", "cells of a line", "cells of the first", csv, more(b"1.0\n"), "header-damaged", ("rate-unknown",)),
    Row(".csv", "last line", "its end", csv, cut(5), "may-be-cut", ("rate-unknown",)),
]  # fmt: skip


def _shape_in_archive(path: Path, shape: tuple[int, ...]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("samples.npy", header(shape, "<f8") + SAMPLES.tobytes())


def _other_crc(path: Path) -> None:
    """Another checksum of the samples in the directory; samples unpack without it."""
    with zipfile.ZipFile(path) as archive:
        (member,) = (item for item in archive.infolist() if item.filename == "samples.npy")
    raw = path.read_bytes()
    assert raw.count(member.CRC.to_bytes(4, "little")) >= 1
    path.write_bytes(raw.replace(member.CRC.to_bytes(4, "little"), (member.CRC ^ 1).to_bytes(4, "little")))


def codes(path: Path) -> dict[str, str]:
    return {problem.code: problem.message for problem in inspect_file(path, signals=True).problems}


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_what_must_agree_is_compared(row, tmp_path):
    path = row.sound(tmp_path)
    assert set(codes(path)) <= set(row.allowed), "the sound file of the row"
    row.disagree(path)
    found = codes(path)
    assert row.code in found, found
    assert not any("did not expect" in message for message in found.values())


def test_no_row_stands_there_twice():
    assert len({str(row) for row in ROWS}) == len(ROWS)


def test_every_code_is_that_of_a_row_or_of_a_case_of_the_corpus():
    from test_agreement_sidecars import TABLE

    found = {row.code for row in (*ROWS, *TABLE)} | {code for case in all_cases() for code in case.codes}
    # found by test_time_columns.py, test_header_messages.py and test_inspection.py
    elsewhere = {"time-column", "time-doubtful", "signals-not-read", "nan-run", "line-noise"}
    assert found | elsewhere == set(CODES)
    assert not found & elsewhere


def test_the_first_samples_are_those_that_wfdb_decodes(tmp_path):
    """All plain formats, on random bytes; format 310 and 311 have no writer."""
    import wfdb as package

    from raxss.data.formats.wfdb.checking import first_samples

    raw = bytearray(np.random.default_rng(5).bytes(240))
    raw[3::4] = bytes(byte & 0x3F for byte in raw[3::4])  # two bits of four bytes are not used in format 311
    (tmp_path / "r.dat").write_bytes(raw)
    for storage in ("16", "24", "32", "61", "80", "160", "212", "310", "311"):
        (tmp_path / "r.hea").write_text(f"r 1 250 30\nr.dat {storage} 200/mV\n")
        decoded = package.rdrecord(str(tmp_path / "r"), physical=False).d_signal[:, 0]
        np.testing.assert_array_equal(first_samples(bytes(raw), storage, 30), decoded, err_msg=storage)
