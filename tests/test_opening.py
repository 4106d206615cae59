"""Opening real formats: against bytes written by hand, against other writers, and on real files."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from memory import PEAK
from raxss.data.files import read_recording, read_series
from raxss.data.formats.opening import open_recording
from raxss.data.recording import Channel
from raxss.errors import MissingExtraError, RecordingError
from test_files import mutants

for package in ("edfio", "mne", "pybv", "wfdb"):
    pytest.importorskip(package)

DIGITAL = {"edf": (-32768, 32767), "bdf": (-8388608, 8388607)}


def field(value, width):
    return str(value).encode("latin-1").ljust(width)


def tal(onset, n_bytes):
    """The time-keeping annotation of a record."""
    return f"+{onset}".encode().ljust(0) + b"\x14\x14\x00" + b"\x00" * (n_bytes - len(f"+{onset}") - 3)


def write_edf(path, signals, *, seconds=1, kind="", onsets=None, n_declared=None):
    """Write EDF or BDF (by suffix), byte by byte.

    ``signals``: dicts of label, unit, physical (min, max) and digital ``(n_records, samples a record)`` integers.
    """
    bdf = path.suffix == ".bdf"
    width = 3 if bdf else 2
    n_records = len(signals[0]["digital"])
    rows = [
        {"unit": "uV", "physical": (-3276.8, 3276.7), "limits": DIGITAL[path.suffix[1:]], **signal}
        for signal in signals
    ]
    if onsets is not None:
        label = f"{'BDF' if bdf else 'EDF'} Annotations"
        texts = [tal(onset, 20 * width) for onset in onsets]
        limits = DIGITAL[path.suffix[1:]]
        rows.append({"label": label, "unit": "", "physical": (-1, 1), "limits": limits, "texts": texts})
    columns = [
        ([row["label"] for row in rows], 16),
        ([""] * len(rows), 80),
        ([row["unit"] for row in rows], 8),
        ([row["physical"][0] for row in rows], 8),
        ([row["physical"][1] for row in rows], 8),
        ([row["limits"][0] for row in rows], 8),
        ([row["limits"][1] for row in rows], 8),
        ([""] * len(rows), 80),
        ([20 if "texts" in row else row["digital"].shape[1] for row in rows], 8),
        ([""] * len(rows), 32),
    ]
    header = (
        (b"\xffBIOSEMI" if bdf else field("0", 8))
        + field("X X X X", 80)
        + field("Startdate X X X X", 80)
        + b"01.01.0000.00.00"
        + field(256 * (len(rows) + 1), 8)
        + field(kind, 44)
        + field(n_records if n_declared is None else n_declared, 8)
        + field(seconds, 8)
        + field(len(rows), 4)
        + b"".join(field(value, size) for values, size in columns for value in values)
    )
    records = b"".join(
        row["texts"][number]
        if "texts" in row
        else b"".join(int(value).to_bytes(width, "little", signed=True) for value in row["digital"][number])
        for number in range(n_records)
        for row in rows
    )
    path.write_bytes(header + records)
    return path


def physical(item, suffix="edf"):
    """What the specification makes of stored integers."""
    (low, high), (least, most) = item["physical"], item.get("limits", DIGITAL[suffix])
    return low + (item["digital"].reshape(-1) - least) * (high - low) / (most - least)


def stored(rng, n_records, n_samples, suffix="edf"):
    low, high = DIGITAL[suffix]
    return rng.integers(low, high, (n_records, n_samples), endpoint=True)


# EDF and BDF


@pytest.mark.parametrize("suffix", ["edf", "bdf"])
def test_every_signal_has_its_own_rate_range_and_unit(tmp_path, rng, suffix):
    def some(n_samples):
        return stored(rng, 5, n_samples, suffix)

    signals = [
        {"label": "A1", "unit": "uV", "physical": (-500, 500), "digital": some(10)},
        {"label": "A2", "unit": "mV", "physical": (-5, 7.5), "digital": some(4)},
        {
            "label": "Temp",
            "unit": "degC",
            "physical": (34, 40.2),
            "limits": (-2048, 2047),
            "digital": some(1) % 4096 - 2048,
        },
        {"label": "", "unit": "", "physical": (3, -3), "digital": some(10)},  # inverted, as the format allows
        {"label": "Volt", "unit": "V", "physical": (-1, 1), "digital": some(10)},
        {"label": "nano", "unit": "nV", "physical": (-1, 1), "digital": some(10)},
        {"label": "mu", "unit": "\u00b5V", "physical": (-1, 1), "digital": some(10)},
    ]
    path = write_edf(tmp_path / f"hand.{suffix}", signals, seconds=0.5)
    with open_recording(path) as recording:
        assert recording.channels == (
            Channel("A1", 20, "uV"),
            Channel("A2", 8, "uV"),
            Channel("Temp", 2, "degC"),
            Channel("", 20, ""),
            Channel("Volt", 20, "uV"),
            Channel("nano", 20, "uV"),
            Channel("mu", 20, "uV"),
        )
        assert [(segment.start_seconds, segment.seconds) for segment in recording.segments] == [(0, 2.5)]
        for place, factor in enumerate([1, 1000, 1, 1, 1e6, 1e-3, 1]):
            expected = physical(signals[place], suffix) * factor
            assert recording.n_samples(place) == len(expected)
            assert_allclose(recording.read([place])[0], expected, rtol=1e-9, atol=1e-9)
        expected = physical(signals[0], suffix)
        for start, stop in ((0, 1), (7, 33), (10, 20), (49, 50), (12, None), (30, 99), (5, 5)):
            read = recording.read([3, 0], start=start, stop=stop)
            assert_allclose(read[1], expected[start:stop], rtol=1e-9, atol=1e-9)
        assert {problem.code for problem in recording.problems} >= {
            "mixed-rates",
            "blank-unit",
            "nameless-channel",
        }
        with pytest.raises(RecordingError, match=r"channels asked for at 8, 20 Hz"):
            recording.read([0, 1])


@pytest.mark.parametrize("suffix", ["edf", "bdf"])
def test_a_long_stretch_is_put_together_from_its_blocks_without_a_seam(tmp_path, rng, suffix, monkeypatch):
    monkeypatch.setattr("raxss.data.formats.edf.reading.BLOCK_BYTES", 500)
    signals = [
        {"label": name, "physical": (-100, 100), "digital": stored(rng, 40, 25, suffix)} for name in "ab"
    ]
    path = write_edf(tmp_path / f"long.{suffix}", signals)
    with open_recording(path) as recording:
        for start, stop in ((0, 1000), (13, 987), (499, 501)):
            read = recording.read([1, 0], start=start, stop=stop)
            assert_allclose(read[0], physical(signals[1], suffix)[start:stop], rtol=1e-9)
            assert_allclose(read[1], physical(signals[0], suffix)[start:stop], rtol=1e-9)


@pytest.mark.parametrize("suffix", ["edf", "bdf"])
def test_a_gap_ends_a_segment_and_is_never_glued(tmp_path, rng, suffix):
    digital = stored(rng, 6, 8, suffix)
    onsets = [100.5, 101.5, 3700.5, 3701.5, 3702.5, 9000.25]
    path = write_edf(
        tmp_path / f"gaps.{suffix}",
        [{"label": "C3", "physical": (-100, 100), "digital": digital}],
        kind=f"{suffix.upper()}+D",
        onsets=onsets,
    )
    with open_recording(path) as recording:
        assert [channel.name for channel in recording.channels] == ["C3"]  # annotations are no channel
        assert [(entry.start_seconds, entry.seconds) for entry in recording.segments] == [
            (0, 2),
            (3600, 3),
            (8899.75, 1),
        ]
        expected = physical({"digital": digital, "physical": (-100, 100)}, suffix)
        for segment, (first, last) in enumerate([(0, 16), (16, 40), (40, 48)]):
            assert recording.n_samples(0, segment) == last - first
            assert_allclose(recording.read([0], segment=segment)[0], expected[first:last], rtol=1e-9)
        assert_allclose(recording.read([0], segment=1, start=5, stop=9)[0], expected[21:25], rtol=1e-9)
        assert "gaps" in {problem.code for problem in recording.problems}
    series = read_recording(path)
    assert series.names == ["gaps:C3", "gaps:C3@3600s", "gaps:C3@8899.75s"]
    assert [item.start_seconds for item in series] == [0, 3600, 8899.75]
    with pytest.raises(RecordingError, match=r"'gaps\.\wdf' has 2 gaps.*segment=0 to 2.*read_recording"):
        read_series(path)
    assert_allclose(read_series(path, segment=2).samples[0], expected[40:], rtol=1e-6)
    with pytest.raises(RecordingError, match=r"has no segment 3; it has 3"):
        read_series(path, segment=3)


def test_jitter_below_half_a_sample_is_no_gap(tmp_path, rng):
    signal = {"label": "C3", "digital": stored(rng, 4, 10)}
    path = write_edf(tmp_path / "jitter.edf", [signal], kind="EDF+D", onsets=[0, 1.04, 2, 3])
    with open_recording(path) as recording:
        assert len(recording.segments) == 1
        assert recording.n_samples(0) == 40
    path = write_edf(tmp_path / "gap.edf", [signal], kind="EDF+D", onsets=[0, 1, 2.1, 3.1])
    with open_recording(path) as recording:
        assert [segment.start_seconds for segment in recording.segments] == [0, 2.1]


def test_only_records_that_are_declared_and_whole_are_read(tmp_path, rng):
    signal = {"label": "C3", "physical": (-100, 100), "digital": stored(rng, 6, 8)}
    longer = write_edf(tmp_path / "longer.edf", [signal], n_declared=4)
    unknown = write_edf(tmp_path / "unknown.edf", [signal], n_declared=-1)
    cut = write_edf(tmp_path / "cut.edf", [signal])
    cut.write_bytes(cut.read_bytes()[:-5])
    for path, n_samples, code in (
        (longer, 32, "data-longer"),
        (unknown, 48, "header-inconsistent"),
        (cut, 40, "data-truncated"),
    ):
        with open_recording(path) as recording:
            assert recording.n_samples(0) == n_samples
            assert_allclose(recording.read([0])[0], physical(signal)[:n_samples], rtol=1e-9)
            assert [problem.code for problem in recording.problems] == [code]


def test_what_edfio_and_mne_write_is_read_back(tmp_path, rng):
    import edfio
    import mne

    samples = rng.normal(scale=50, size=(3, 2000))
    signals = [
        edfio.EdfSignal(row, 200, label=name, physical_dimension="uV", physical_range=(-400, 400))
        for row, name in zip(samples, ("C3", "C4", "Cz"), strict=True)
    ]
    notes = [edfio.EdfAnnotation(1.5, None, "note"), edfio.EdfAnnotation(3, 2.0, "other")]
    edfio.Edf(signals, annotations=notes).write(tmp_path / "edfio.edf")
    raw = mne.io.RawArray(samples * 1e-6, mne.create_info(["C3", "C4", "Cz"], 200, "eeg"), verbose="ERROR")
    mne.export.export_raw(tmp_path / "mne.edf", raw, physical_range=(-400, 400), verbose="ERROR")
    mne.export.export_raw(tmp_path / "mne.bdf", raw, physical_range=(-400, 400), verbose="ERROR")
    for name, step in {"edfio.edf": 800 / 65535, "mne.edf": 800 / 65535, "mne.bdf": 800 / 2**24}.items():
        with open_recording(tmp_path / name) as recording:
            assert [channel.name for channel in recording.channels] == ["C3", "C4", "Cz"]
            assert_allclose(recording.read([0, 1, 2]), samples, atol=step)


@pytest.mark.parametrize("suffix", ["edf", "bdf"])
def test_one_channel_of_a_huge_file_costs_little_memory_and_time(tmp_path, suffix):
    """A day of 16 channels at 1 kHz, as a file with holes."""
    path = write_edf(
        tmp_path / f"day.{suffix}",
        [{"label": f"C{place}", "digital": np.zeros((1, 1000), int)} for place in range(16)],
        n_declared=86400,
    )
    with open(path, "r+b") as file:
        file.truncate(256 * 17 + 86400 * 16 * 1000 * (2 if suffix == "edf" else 3))
    script = f"""{PEAK}
import time
from raxss.data.formats.opening import open_recording
import edfio
before, began = peak(), time.perf_counter()
with open_recording({str(path)!r}) as recording:
    for hour in (0, 11, 23):
        samples = recording.read([5], start=hour * 3_600_000, stop=hour * 3_600_000 + 600_000)
        assert samples.shape == (1, 600_000)
print(peak() - before, time.perf_counter() - began)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    kilobytes, seconds = map(float, found.stdout.split())
    assert kilobytes < 100_000  # the file has 2.7 GB or more
    assert seconds < 10


def test_reading_every_block_of_a_long_file_does_not_pile_up_memory(tmp_path):
    path = write_edf(
        tmp_path / "hours.edf",
        [{"label": f"C{place}", "digital": np.zeros((1, 1000), int)} for place in range(16)],
        n_declared=14400,
    )
    with open(path, "r+b") as file:
        file.truncate(256 * 17 + 14400 * 32000)
    script = f"""{PEAK}
from raxss.data.formats.opening import open_recording
import edfio
before = peak()
with open_recording({str(path)!r}) as recording:
    for start in range(0, 14_400_000, 100_000):
        recording.read(range(16), start=start, stop=start + 100_000)
print(peak() - before)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(found.stdout) < 120_000  # kilobytes; all pages of the file would be 460,000


# BrainVision


def write_brainvision(
    path, data, *, orientation, binary, channels, interval=1000, markers=(), encoding="utf-8"
):
    """``data (n_channels, n_samples)`` as stored; ``channels``: what stands behind Ch1=."""
    kinds = {"INT_16": "<i2", "INT_32": "<i4", "IEEE_FLOAT_32": "<f4"}
    values = np.asarray(data).T if orientation == "MULTIPLEXED" else np.asarray(data)
    path.with_suffix(".eeg").write_bytes(np.ascontiguousarray(values).astype(kinds[binary]).tobytes())
    listed = "\n".join(f"Ch{place}={text}" for place, text in enumerate(channels, start=1))
    text = f"""Brain Vision Data Exchange Header File Version 1.0
[Common Infos]
DataFile={path.stem}.eeg
MarkerFile={path.stem}.vmrk
DataFormat=BINARY
DataOrientation={orientation}
NumberOfChannels={len(channels)}
DataPoints={np.shape(data)[1]}
SamplingInterval={interval}
[Binary Infos]
BinaryFormat={binary}
[Channel Infos]
{listed}
[Comment]
Channels
what anybody likes to write
"""
    path.write_bytes(text.encode(encoding))
    lines = ["Mk1=New Segment,,1,1,0,20260101120000000000", *markers]
    path.with_suffix(".vmrk").write_bytes(
        ("Brain Vision Data Exchange Marker File, Version 1.0\n[Marker Infos]\n" + "\n".join(lines)).encode(
            encoding
        )
    )
    return path


@pytest.mark.parametrize("orientation", ["MULTIPLEXED", "VECTORIZED"])
@pytest.mark.parametrize("binary", ["INT_16", "INT_32", "IEEE_FLOAT_32"])
def test_brainvision_bytes_become_microvolts(tmp_path, rng, orientation, binary, monkeypatch):
    monkeypatch.setattr("raxss.data.formats.brainvision.reading.BLOCK_BYTES", 1000)  # several blocks
    limit = 2**15 if binary == "INT_16" else 2**20
    data = rng.integers(-limit, limit, (8, 300))
    channels = [
        "C3,,0.5,\u00b5V",
        "C4,,2,mV",
        "Cz,ref,0.001,V",
        "Pz,,3,nV",
        "O1,,0.1",
        "Temp,,0.25,\u00b0C",
        "SC,,2,\u00b5S",
        "C3,,,uV",
    ]
    factors = [0.5, 2000, 1000, 0.003, 0.1, 0.25, 2, 1]
    path = write_brainvision(
        tmp_path / "x.vhdr", data, orientation=orientation, binary=binary, channels=channels
    )
    expected = data * np.array(factors)[:, np.newaxis]
    with open_recording(path) as recording:
        assert [item.unit for item in recording.channels] == ["uV"] * 5 + ["\u00b0C", "\u00b5S", "uV"]
        assert [item.name for item in recording.channels] == [
            "C3",
            "C4",
            "Cz",
            "Pz",
            "O1",
            "Temp",
            "SC",
            "C3",
        ]
        assert {item.rate for item in recording.channels} == {1000}
        assert_allclose(recording.read(range(8)), expected, rtol=1e-6)
        assert_allclose(recording.read([6, 2], start=17, stop=290), expected[[6, 2], 17:290], rtol=1e-6)
        assert recording.read([0], start=4, stop=4).shape == (1, 0)
    assert read_recording(path, channels=[0, "Cz"]).names == ["x:C3#0", "x:Cz"]
    for other in (".eeg", ".vmrk"):
        assert_allclose(read_series(path.with_suffix(other), channel="C4").samples[0], expected[1], rtol=1e-6)


def test_a_new_segment_of_brainvision_ends_the_one_before(tmp_path, rng):
    path = write_brainvision(
        tmp_path / "pause.vhdr",
        rng.integers(-9, 9, (1, 100)),
        orientation="MULTIPLEXED",
        binary="INT_16",
        channels=["C3,,1,uV"],
        interval=100_000,
        markers=["Mk2=Stimulus,S  1,20,1,0", "Mk3=New Segment,,41,1,0,20260101120100500000"],
    )
    data = np.fromfile(path.with_suffix(".eeg"), "<i2")
    with open_recording(path) as recording:
        assert [(item.start_seconds, item.seconds) for item in recording.segments] == [(0, 4), (60.5, 6)]
        assert_array_equal(recording.read([0], segment=1)[0], data[40:])
        assert_array_equal(recording.read([0], segment=1, start=58, stop=90)[0], data[98:])


def test_names_and_markers_in_an_old_code_page_are_no_trouble(tmp_path, rng):
    path = write_brainvision(
        tmp_path / "alt.vhdr",
        rng.integers(-9, 9, (1, 10)),
        orientation="MULTIPLEXED",
        binary="INT_16",
        channels=["F\u00fchler,,1,\u00b5V"],
        markers=["Mk2=Comment,m\u00fcde,2,1,0"],
        encoding="latin-1",
    )
    with open_recording(path) as recording:
        assert recording.channels == (Channel("F\u00fchler", 1000, "uV"),)


@pytest.mark.parametrize("fmt", ["binary_float32", "binary_int16"])
def test_what_pybv_writes_is_read_back(tmp_path, rng, fmt):
    import pybv

    samples = rng.normal(scale=50e-6, size=(3, 500))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about resolution, not about us
        pybv.write_brainvision(
            data=samples,
            sfreq=250,
            ch_names=["C3", "C4", "Cz"],
            fname_base="p",
            folder_out=tmp_path,
            fmt=fmt,
            resolution=0.1,
            unit=["\u00b5V", "mV", "\u00b5V"] if fmt == "binary_float32" else "\u00b5V",
        )
    with open_recording(tmp_path / "p.vhdr") as recording:
        assert {channel.unit for channel in recording.channels} == {"uV"}
        assert_allclose(recording.read(range(3)), samples * 1e6, atol=0.101 if "int" in fmt else 1e-3)


# WFDB


def write_wfdb(folder, name, samples, *, fmt="16", rate=250, units="mV"):
    import wfdb

    n_signals = samples.shape[0]
    wfdb.wrsamp(
        name,
        rate,
        [units] * n_signals,
        [f"S{place}" for place in range(n_signals)],
        np.ascontiguousarray(samples.T),
        fmt=[fmt] * n_signals,
        adc_gain=[200] * n_signals,
        baseline=[0] * n_signals,
        write_dir=str(folder),
    )
    return folder / f"{name}.hea"


@pytest.mark.parametrize("fmt", ["16", "212", "24", "32", "80"])
def test_a_wfdb_record_is_read_in_parts_as_in_whole_and_in_its_own_unit(tmp_path, rng, fmt, monkeypatch):
    monkeypatch.setattr("raxss.data.formats.wfdb.reading.BLOCK_BYTES", 1000)
    samples = rng.integers(-100, 100, (2, 700)) / 200
    path = write_wfdb(tmp_path, "rec", samples, fmt=fmt)
    with open_recording(path) as recording:
        assert recording.channels == (Channel("S0", 250, "mV"), Channel("S1", 250, "mV"))
        assert_allclose(recording.read([0, 1]), samples, atol=1e-9)
        for start, stop in ((1, 698), (333, 334), (500, 9999)):
            assert_allclose(
                recording.read([1, 0], start=start, stop=stop), samples[::-1, start:stop], atol=1e-9
            )


def test_a_null_segment_of_wfdb_is_a_gap_and_neighbours_are_one_stretch(tmp_path, rng):
    parts = [rng.integers(-100, 100, (2, length)) / 200 for length in (100, 50, 80)]
    for number, part in enumerate(parts):
        write_wfdb(tmp_path, f"part{number}", part)
    (tmp_path / "all.hea").write_text("all/4 2 250 480\npart0 100\npart1 50\n~ 250\npart2 80\n")
    with open_recording(tmp_path / "all.hea") as recording:
        assert [(item.start_seconds, item.seconds) for item in recording.segments] == [(0, 0.6), (1.6, 0.32)]
        assert_allclose(recording.read([0, 1]), np.hstack(parts[:2]), atol=1e-9)
        assert_allclose(
            recording.read([1], start=90, stop=110)[0], np.hstack(parts[:2])[1, 90:110], atol=1e-9
        )
        assert_allclose(recording.read([0], segment=1)[0], parts[2][0], atol=1e-9)
    assert read_recording(tmp_path / "all").names == ["all:S0", "all:S0@1.6s", "all:S1", "all:S1@1.6s"]
    with pytest.raises(RecordingError, match=r"'all' has 1 gaps.*read_recording"):
        read_series(tmp_path / "all")
    assert_allclose(read_series(tmp_path / "all", segment=1).samples, parts[2], atol=1e-9)


def test_segments_with_other_signals_are_refused(tmp_path, rng):
    write_wfdb(tmp_path, "a", rng.integers(-9, 9, (2, 40)) / 200)
    write_wfdb(tmp_path, "b", rng.integers(-9, 9, (2, 40)) / 200, units="uV")
    (tmp_path / "all.hea").write_text("all/2 2 250 80\na 40\nb 40\n")
    with pytest.raises(RecordingError, match=r"'all\.hea' was not opened: \[not-supported\] .*units"):
        open_recording(tmp_path / "all.hea")


def test_several_samples_a_frame_are_read_at_their_own_rate(tmp_path, rng, monkeypatch):
    monkeypatch.setattr("raxss.data.formats.wfdb.reading.BLOCK_BYTES", 200)
    slow, fast = rng.integers(-100, 100, 60), rng.integers(-100, 100, (60, 4))
    frames = np.column_stack([slow, fast])
    (tmp_path / "multi.dat").write_bytes(frames.astype("<i2").tobytes())
    (tmp_path / "multi.hea").write_text(
        "multi 2 100 60\nmulti.dat 16 200/mV 16 0 0 0 0 slow\nmulti.dat 16x4 200/mV 16 0 0 0 0 fast\n"
    )
    with open_recording(tmp_path / "multi.hea") as recording:
        assert recording.channels == (Channel("slow", 100, "mV"), Channel("fast", 400, "mV"))
        assert recording.n_samples(1) == 240
        assert_allclose(recording.read([0])[0], slow / 200, atol=1e-9)
        assert_allclose(recording.read([1])[0], fast.reshape(-1) / 200, atol=1e-9)
        assert_allclose(recording.read([1], start=7, stop=201)[0], fast.reshape(-1)[7:201] / 200, atol=1e-9)
    assert [item.rate for item in read_recording(tmp_path / "multi")] == [100, 400]


def test_a_wfdb_header_without_a_length_leaves_it_to_the_data(tmp_path, rng):
    samples = rng.integers(-100, 100, (2, 60)) / 200
    path = write_wfdb(tmp_path, "rec", samples)
    path.write_text(path.read_text().replace(" 250 60", " 250", 1))
    with open_recording(path) as recording:
        assert recording.n_samples(0) == 60
        assert_allclose(recording.read([1], start=10)[0], samples[1, 10:], atol=1e-9)


@pytest.mark.parametrize("fmt", ["61", "160", "212", "310", "311"])
def test_packed_wfdb_formats_are_read_in_parts_as_in_whole(tmp_path, rng, fmt):
    import wfdb

    (tmp_path / "p.dat").write_bytes(rng.bytes(1200))
    (tmp_path / "p.hea").write_text(f"p 2 250 300\np.dat {fmt} 200/mV\np.dat {fmt} 200/mV\n")
    whole = wfdb.rdrecord(str(tmp_path / "p")).p_signal.T
    with open_recording(tmp_path / "p.hea") as recording:
        assert_array_equal(recording.read([0, 1]), whole)
        for start, stop in ((1, 300), (2, 3), (151, 277)):
            assert_array_equal(recording.read([1], start=start, stop=stop)[0], whole[1, start:stop])


def test_silence_in_flac_is_read_as_long_as_it_is_small_in_memory(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    silence = np.zeros(1_000_000, "i2")
    soundfile.write(tmp_path / "f.flac", silence, 96000, format="FLAC", subtype="PCM_16")
    assert (tmp_path / "f.flac").stat().st_size < 20_000
    line = "f.flac 516 200(0)/mV 16 0 0 0 0 A\n"
    (tmp_path / "f.hea").write_text(f"f 1 1000 1000000\n{line}")
    with open_recording(tmp_path / "f.hea") as recording:
        assert_array_equal(recording.read([0], start=999_000)[0], np.zeros(1000))
    for first, code in (("f 1 1000 10000000", "too-large"), ("f 1 1000", "not-supported")):
        (tmp_path / "f.hea").write_text(f"{first}\n{line}")
        with pytest.raises(
            RecordingError, match=rf"'f\.hea' was not opened: \[{code}\].* data file of signal 1"
        ):
            open_recording(tmp_path / "f.hea")


# Arrays


def test_times_give_rate_and_start(tmp_path):
    times = np.arange(-1000, 2001) / 1000
    np.savez(tmp_path / "x.npz", data=np.zeros((2, 3001)), channels=["A", "B"], times_s=times)
    with open_recording(tmp_path / "x.npz") as recording:
        assert [channel.name for channel in recording.channels] == ["A", "B"]
        assert (recording.channels[0].rate, recording.segments[0].start_seconds) == (1000, -1)
    assert read_series(tmp_path / "x.npz").start_seconds == -1
    for wrong, message in (
        (np.sort(np.random.default_rng(0).random(3001)), "does not rise evenly"),
        (times[:-1], r"has shape \(3000,\)"),
        (-times, "does not rise evenly"),
    ):
        np.savez(tmp_path / "y.npz", data=np.zeros((2, 3001)), times_s=wrong)
        with pytest.raises(RecordingError, match=rf"'y\.npz'.*{message}"):
            read_series(tmp_path / "y.npz")
    np.savez(tmp_path / "z.npz", samples=np.zeros((2, 3001)), rate=500.0, times_s=times)
    with pytest.raises(RecordingError, match=r"a rate of 500 Hz and times at 1000 Hz"):
        read_series(tmp_path / "z.npz")


# What is not opened, and what is not said


def test_a_refused_file_is_never_decoded_and_answered_with_its_codes(tmp_path, rng):
    path = write_edf(
        tmp_path / "nan.edf", [{"label": "C3", "physical": ("nan", "nan"), "digital": stored(rng, 2, 4)}]
    )
    with pytest.raises(RecordingError, match=r"'nan\.edf' was not opened: \[bad-range\].*'C3'") as caught:
        open_recording(path)
    assert str(tmp_path) not in str(caught.value)
    with pytest.raises(RecordingError, match=r"'none\.edf' was not opened: \[not-found\]"):
        open_recording(tmp_path / "none.edf")


def test_a_data_file_outside_of_the_root_is_never_opened(tmp_path, rng):
    (tmp_path / "in").mkdir()
    path = write_brainvision(
        tmp_path / "in" / "x.vhdr",
        rng.integers(-9, 9, (1, 10)),
        orientation="MULTIPLEXED",
        binary="INT_16",
        channels=["C3,,1,uV"],
    )
    path.with_suffix(".eeg").rename(tmp_path / "secret.eeg")
    path.write_text(path.read_text().replace("DataFile=x.eeg", "DataFile=../secret.eeg"))
    with pytest.raises(RecordingError, match=r"'x\.vhdr' was not opened: \[outside\]"):
        open_recording(path)


def test_damage_after_the_inspection_is_told_in_our_words(tmp_path, rng):
    path = write_edf(tmp_path / "x.edf", [{"label": "C3", "digital": stored(rng, 50, 400)}])
    with open_recording(path) as recording:
        path.write_bytes(b"0       Jane Doe, born 1 JAN 1970")
        with pytest.raises(RecordingError, match=r"'x\.edf' cannot be decoded \(\w+\)") as caught:
            recording.read([0])
        assert caught.value.__cause__ is None
        assert "Jane" not in str(caught.value)


def test_nothing_is_printed_warned_or_logged_by_decoders(tmp_path, rng, capfd, caplog):
    signal = {"label": "C3", "digital": stored(rng, 6, 8)}
    edf = write_edf(tmp_path / "a.edf", [signal, signal], n_declared=4)
    brainvision = write_brainvision(
        tmp_path / "b.vhdr",
        rng.integers(-9, 9, (2, 10)),
        orientation="MULTIPLEXED",
        binary="INT_16",
        channels=["C3,,1,uV", "C3,,1,uV"],
    )
    brainvision.with_suffix(".vmrk").unlink()
    for path in (edf, brainvision, write_wfdb(tmp_path, "c", rng.random((1, 30)))):
        read_recording(path)  # warnings are errors in tests
    assert capfd.readouterr() == ("", "")
    assert caplog.text == ""


@pytest.mark.parametrize(("name", "package"), [("x.edf", "edfio"), ("x.vhdr", "mne")])
def test_without_the_decoder_the_error_says_how_to_install_it(tmp_path, rng, monkeypatch, name, package):
    write_edf(tmp_path / "x.edf", [{"label": "C3", "digital": stored(rng, 2, 4)}])
    write_brainvision(
        tmp_path / "x.vhdr",
        rng.integers(-9, 9, (1, 10)),
        orientation="MULTIPLEXED",
        binary="INT_16",
        channels=["C3,,1,uV"],
    )
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(MissingExtraError, match=rf"'{name}' needs the package {package}.*'raxss\[bids\]'"):
        open_recording(tmp_path / name)


@pytest.mark.parametrize("name", ["x.edf", "x.bdf", "x.vhdr", "x.vmrk"])
def test_a_header_with_random_damage_is_read_or_refused_and_nothing_else(tmp_path, rng, name):
    signals = [{"label": "C3", "digital": stored(rng, 3, 5)}, {"label": "C4", "digital": stored(rng, 3, 2)}]
    for suffix in ("edf", "bdf"):
        write_edf(tmp_path / f"x.{suffix}", signals, kind=f"{suffix.upper()}+D", onsets=[0, 1, 7])
    write_brainvision(
        tmp_path / "x.vhdr",
        rng.integers(-9, 9, (2, 10)),
        orientation="MULTIPLEXED",
        binary="INT_16",
        channels=["C3,,1,uV", "C4,,1,uV"],
        markers=["Mk2=New Segment,,5,1,0,20260101120100500000"],
    )
    whole, outcomes = (tmp_path / name).read_bytes(), set()
    for bad in mutants(whole, seed=3, n=300):
        (tmp_path / name).write_bytes(bad)
        try:
            series = read_recording(tmp_path / name)
        except RecordingError:
            outcomes.add("refused")
            continue
        outcomes.add("read")
        assert all(np.isfinite(item.samples).all() and 0 < item.rate <= 1e5 for item in series)
    assert outcomes == {"read", "refused"}


# Real recordings


def test_the_real_edf_is_as_its_readme_says_and_as_mne_reads_it(shared_data):
    import mne

    (path,) = (shared_data / "ds003029-pt01").rglob("*_ieeg.edf")
    with open_recording(path) as recording:
        assert len(recording.channels) == 98
        assert {(channel.rate, channel.unit) for channel in recording.channels} == {(1000, "uV")}
        assert {recording.n_samples(place) for place in range(98)} == {15500}
        assert [segment.start_seconds for segment in recording.segments] == [0]
        names, samples = [channel.name for channel in recording.channels], recording.read(range(98))
    raw = mne.io.read_raw_edf(path, verbose="ERROR")
    assert names == raw.ch_names
    assert_allclose(samples, raw.get_data() * 1e6, atol=1e-6)
    series = read_recording(path, channels=["POL AD1", 97])
    assert [item.origin["channel"] for item in series] == ["POL AD1", "POL"]


def test_the_real_brainvision_recording_is_its_bytes(shared_data):
    (path,) = (shared_data / "ds003498-clip").rglob("*_ieeg.vhdr")
    with open_recording(path) as recording:
        assert len(recording.channels) == 50
        assert {(channel.rate, channel.unit) for channel in recording.channels} == {(2000, "uV")}
        stored_values = np.fromfile(path.with_suffix(".eeg"), "<f4").reshape(-1, 50)
        assert stored_values.shape == (10000, 50)
        assert_allclose(recording.read(range(50)), stored_values.T * 0.1, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "n_channels", "n_samples", "start"), [("84ch", 84, 3001, -1), ("14ch", 14, 30001, -10)]
)
def test_the_real_clips_are_as_their_readme_says(shared_data, name, n_channels, n_samples, start):
    (path,) = (shared_data / "ds003029-pt01").glob(f"*{name}*.npz")
    with open_recording(path) as recording:
        assert len(recording.channels) == n_channels
        assert recording.n_samples(0) == n_samples
        assert (recording.channels[0].rate, recording.segments[0].start_seconds) == (1000, start)
        assert {"ATT1", "AD4", "PD1"} <= {channel.name for channel in recording.channels}
        assert_array_equal(recording.read([3])[0], np.load(path)["data"][3])


def test_every_ecg_of_cinc2017_is_read(shared_data):
    folder = shared_data / "cinc2017" / "training2017"
    names = (folder / "RECORDS").read_text().split()
    lengths = []
    for name in names:
        with open_recording(folder / f"{name}.hea") as recording:
            assert recording.channels == (Channel("ECG", 300, "mV"),)
            lengths.append(recording.n_samples(0))
            if len(lengths) % 40 == 1:
                values = np.frombuffer((folder / f"{name}.mat").read_bytes()[24:], "<i2")
                assert_allclose(recording.read([0])[0], values / 1000, atol=1e-9)
    assert len(names) == 2000
    assert (min(lengths), max(lengths), np.median(lengths)) == (2766, 18140, 9000)
    assert len(set(lengths)) == 399


def test_one_long_bdf_record_is_read_in_small_parts(tmp_path, rng, monkeypatch):
    """edfio would decode all of a record for each of its blocks."""
    signals = [
        {
            "label": f"C{place}",
            "unit": "uV",
            "physical": (-300, 300),
            "digital": stored(rng, 1, 50_000, "bdf"),
        }
        for place in range(3)
    ]
    monkeypatch.setattr("raxss.data.formats.edf.reading.BLOCK_BYTES", 2**14)
    path = tmp_path / "one.bdf"
    write_edf(path, signals, seconds=50)
    largest = 0
    with open_recording(path) as recording:
        decode = recording._edfio.read_bdf

        def measured(raw, **options):
            nonlocal largest
            largest = max(largest, len(raw))
            return decode(raw, **options)

        monkeypatch.setattr(recording._edfio, "read_bdf", measured)
        read = recording.read([2, 0], start=123, stop=49_321)
    for row, item in zip(read, (signals[2], signals[0]), strict=True):
        assert_allclose(row, physical(item, "bdf").ravel()[123:49_321])
    assert 0 < largest < 2**13


def test_a_segment_of_wfdb_that_became_shorter_is_told_in_our_words(tmp_path, rng):
    write_wfdb(tmp_path, "s1", rng.normal(size=(1, 500)))
    (tmp_path / "s1.hea").write_text("s1 1 250\ns1.dat 16 200/mV 12 0 0 0 0 II\n")
    (tmp_path / "m.hea").write_text("m/1 1 250 500\ns1 500\n")
    with open_recording(tmp_path / "m.hea") as recording:
        (tmp_path / "s1.dat").write_bytes(bytes(200))
        with pytest.raises(RecordingError, match="'m' cannot be decoded"):
            recording.read([0])


def test_a_folder_that_wfdb_takes_for_an_address_is_refused_from_inside_too(tmp_path, rng, monkeypatch):
    folder = tmp_path / "x::y"
    folder.mkdir()
    write_wfdb(folder, "r", rng.normal(size=(1, 500)))
    monkeypatch.chdir(folder)
    with pytest.raises(RecordingError, match="outside"):
        open_recording("r.hea")
