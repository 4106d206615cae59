"""Opening real formats: parts of recordings, other writers, memory, and real files.

That every kind of file decodes to what was written is checked in test_corpus.py.
"""

import os
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from corpus import edf
from corpus.brainvision import NEW_SEGMENT, Triplet
from corpus.wfdb import Record, Segmented
from memory import PEAK
from plain_files import read_series
from raxss.data.files import read_inputs
from raxss.data.formats.opening import open_recording
from raxss.data.recording import Channel
from raxss.errors import RecordingError

for package in ("edfio", "mne", "pybv", "wfdb"):
    pytest.importorskip(package)

FILES = {"edf": edf.plain(), "bdf": edf.bdf()}
both_families = pytest.mark.parametrize("suffix", FILES)


def written(folder, file, name="a", *, n_bytes=0):
    """An EDF or BDF file; with ``n_bytes``, its header and a hole of this size."""
    path = folder / f"{name}.{file.family.lower()}"
    path.write_bytes(file.header() if n_bytes else file.bytes())
    if n_bytes:
        os.truncate(path, len(file.header()) + n_bytes)
    return path


# EDF and BDF


@both_families
@pytest.mark.parametrize("block_bytes", [2**23, 500])
def test_every_signal_is_read_at_its_own_rate_in_any_part(tmp_path, suffix, block_bytes, monkeypatch):
    monkeypatch.setattr("raxss.data.formats.edf.BLOCK_BYTES", block_bytes)
    fast, slow = FILES[suffix].signals
    file = replace(FILES[suffix], signals=(fast, replace(slow, n=8), replace(fast, seed=5)), seconds="0.5")
    expected = [signal.physical(8) for signal in file.signals]
    with open_recording(written(tmp_path, file)) as recording:
        assert [channel.rate for channel in recording.channels] == [200, 16, 200]
        assert [(segment.start_seconds, segment.seconds) for segment in recording.segments] == [(0, 4)]
        assert_allclose(recording.read([1])[0], expected[1], rtol=1e-9, atol=1e-9)
        for start, stop in ((0, 1), (7, 333), (100, 200), (799, 800), (12, None), (30, 999), (5, 5)):
            read = recording.read([2, 0], start=start, stop=stop)
            assert_allclose(read, [expected[2][start:stop], expected[0][start:stop]], rtol=1e-9, atol=1e-9)
        with pytest.raises(RecordingError, match=r"requested channels at 16, 200 Hz"):
            recording.read([0, 1])


@both_families
def test_a_gap_ends_a_segment_and_is_never_glued(tmp_path, suffix):
    onsets = ["+100.5", "+101.5", "+3700.5", "+3701.5", "+3702.5", "+9000.25"]
    signals = FILES[suffix].signals[:1]
    file = edf.plus(f"{suffix.upper()}+D", onsets, signals=[replace(signals[0], label="C3")], n_records=6)
    path, expected = written(tmp_path, file, "gaps"), signals[0].physical(6)
    with open_recording(path) as recording:
        assert [channel.name for channel in recording.channels] == ["C3"]  # annotations are no channel
        lengths = [(segment.start_seconds, segment.seconds) for segment in recording.segments]
        assert lengths == [(0, 2), (3600, 3), (8899.75, 1)]
        for segment, (first, last) in enumerate([(0, 200), (200, 500), (500, 600)]):
            assert recording.n_samples(0, segment) == last - first
            assert_allclose(
                recording.read([0], segment=segment)[0], expected[first:last], rtol=1e-9, atol=1e-9
            )
        part = recording.read([0], segment=1, start=5, stop=150)[0]
        assert_allclose(part, expected[205:350], rtol=1e-9, atol=1e-9)
    series = read_inputs([path])
    assert series.names == ["gaps:C3", "gaps:C3@3600s", "gaps:C3@8899.75s"]
    assert [item.start_seconds for item in series] == [0, 3600, 8899.75]
    assert_allclose(series[2].samples[0], expected[500:], rtol=1e-6, atol=1e-6)


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


@both_families
def test_samples_are_bit_for_bit_those_of_edfio(tmp_path, suffix, rng):
    import edfio

    family, most = suffix.upper(), 2**15 if suffix == "edf" else 2**23
    read, factors = getattr(edfio, f"read_{suffix}"), {"uV": 1.0, "mV": 1e3, "V": 1e6, "%": 1.0}
    for seed in range(20):
        signals = []
        for unit in factors:
            low, high = np.sort(rng.choice(2 * most, 2, replace=False)) - most
            pmin, pmax = (f"{value:.4f}"[:8] for value in rng.normal(size=2) * 10.0 ** rng.integers(0, 4))
            limits = {"pmin": pmin, "pmax": pmax, "dmin": str(low), "dmax": str(high)}
            signals.append(edf.Signal(unit, unit, **limits, low=-most, high=most, seed=seed, n=90 + seed))
        path = written(tmp_path, edf.File(signals=signals, family=family))
        with open_recording(path) as recording:
            for place, theirs in enumerate(read(path).signals):
                expected = theirs.data * factors[signals[place].unit]
                assert_array_equal(recording.read([place])[0], expected)


def peak_of(script):
    """What a script prints: kilobytes that it took at its peak, and perhaps more."""
    script = f"{PEAK}\nimport time\nfrom raxss.data.formats.opening import open_recording\n{script}"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return [float(number) for number in found.stdout.split()]


@both_families
def test_one_channel_of_a_huge_file_costs_little_memory_and_time(tmp_path, suffix):
    """A day of 16 channels at 1 kHz, as a file with holes."""
    signals = [replace(FILES[suffix].signals[0], n=1000)] * 16
    file = replace(FILES[suffix], signals=signals, n_records=86400)
    path = written(tmp_path, file, n_bytes=86400 * 16 * 1000 * file.width)
    kilobytes, seconds = peak_of(f"""
before, began = peak(), time.perf_counter()
with open_recording({str(path)!r}) as recording:
    for hour in (0, 11, 23):
        samples = recording.read([5], start=hour * 3_600_000, stop=hour * 3_600_000 + 600_000)
        assert samples.shape == (1, 600_000)
print(peak() - before, time.perf_counter() - began)
""")
    assert kilobytes < 100_000  # the file has 2.7 GB or more
    assert seconds < 10


def test_reading_every_block_of_a_long_file_does_not_pile_up_memory(tmp_path):
    file = edf.plain(signals=[replace(edf.TWO[0], n=1000)] * 16, n_records=14400)
    path = written(tmp_path, file, n_bytes=14400 * 32000)
    (kilobytes,) = peak_of(f"""
before = peak()
with open_recording({str(path)!r}) as recording:
    for start in range(0, 14_400_000, 100_000):
        recording.read(range(16), start=start, stop=start + 100_000)
print(peak() - before)
""")
    assert kilobytes < 120_000  # all pages of the file would be 460,000


# BrainVision


@pytest.mark.parametrize("orientation", ["MULTIPLEXED", "VECTORIZED"])
@pytest.mark.parametrize("binary", ["INT_16", "INT_32", "IEEE_FLOAT_32"])
def test_brainvision_bytes_become_microvolts(tmp_path, orientation, binary, monkeypatch):
    monkeypatch.setattr("raxss.data.formats.brainvision.BLOCK_BYTES", 1000)  # several blocks
    voltages = ["C3,,0.5,\u00b5V", "C4,,2,mV", "Cz,ref,0.001,V", "Pz,,3,nV", "O1,,0.1"]
    channels = (*voltages, "Temp,,0.25,\u00b0C", "SC,,2,\u00b5S", "C3,,,uV")
    common = {"DataOrientation": orientation, "DataPoints": "400"}
    triplet = Triplet(channels=channels, common=common, binary={"BinaryFormat": binary})
    path, expected = triplet.write(tmp_path), np.stack(list(triplet.decoded().values()))
    with open_recording(path) as recording:
        assert [item.unit for item in recording.channels] == ["uV"] * 5 + ["\u00b0C", "\u00b5S", "uV"]
        assert [item.name for item in recording.channels] == [line.split(",")[0] for line in channels]
        assert {item.rate for item in recording.channels} == {500}
        assert_allclose(recording.read(range(8)), expected, rtol=1e-6)
        assert_allclose(recording.read([6, 2], start=17, stop=390), expected[[6, 2], 17:390], rtol=1e-6)
        assert recording.read([0], start=4, stop=4).shape == (1, 0)
    assert [read_series(path, channel=channel).name for channel in (0, "Cz")] == ["a:C3#0", "a:Cz"]
    for other in (".eeg", ".vmrk"):
        assert_allclose(read_series(path.with_suffix(other), channel="C4").samples[0], expected[1], rtol=1e-6)


@pytest.mark.parametrize("fmt", ["binary_float32", "binary_int16"])
def test_what_pybv_writes_is_read_back(tmp_path, rng, fmt):
    import pybv

    samples = rng.normal(scale=50e-6, size=(3, 500))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about resolution, not about us
        units = ["\u00b5V", "mV", "\u00b5V"] if fmt == "binary_float32" else "\u00b5V"
        how = {"sfreq": 250, "ch_names": ["C3", "C4", "Cz"], "fmt": fmt, "resolution": 0.1, "unit": units}
        pybv.write_brainvision(data=samples, fname_base="p", folder_out=tmp_path, **how)
    with open_recording(tmp_path / "p.vhdr") as recording:
        assert {channel.unit for channel in recording.channels} == {"uV"}
        assert_allclose(recording.read(range(3)), samples * 1e6, atol=0.101 if "int" in fmt else 1e-3)


# WFDB


@pytest.mark.parametrize("fmt", ["16", "212", "24", "32", "80"])
@pytest.mark.parametrize("is_long_stated", [True, False])
def test_a_wfdb_record_is_read_in_parts_as_in_whole(tmp_path, fmt, is_long_stated, monkeypatch):
    monkeypatch.setattr("raxss.data.formats.wfdb.BLOCK_BYTES", 1000)
    record = Record(fmt=fmt, first=None if is_long_stated else "r 2 250")
    samples = np.stack(list(record.decoded().values()))
    with open_recording(record.write(tmp_path)) as recording:
        assert recording.channels == (Channel("MLII", 250, "mV"), Channel("V5", 250, "mV"))
        for start, stop in ((0, 500), (1, 498), (333, 334), (400, 9999)):
            read = recording.read([1, 0], start=start, stop=stop)
            assert_allclose(read, samples[::-1, start:stop], atol=1e-9)


def test_a_null_segment_of_wfdb_is_a_gap_and_neighbours_are_one_stretch(tmp_path):
    records = {name: Record(name, n_samples=n) for name, n in (("s1", 100), ("s2", 50), ("s3", 80))}
    parts = [np.stack(list(record.decoded().values())) for record in records.values()]
    path = Segmented(["s1 100", "s2 50", "~ 250", "s3 80"], records, "480").write(tmp_path)
    with open_recording(path) as recording:
        assert [(item.start_seconds, item.seconds) for item in recording.segments] == [(0, 0.6), (1.6, 0.32)]
        whole = np.hstack(parts[:2])
        assert_allclose(recording.read([0, 1]), whole, atol=1e-9)
        assert_allclose(recording.read([1], start=90, stop=110)[0], whole[1, 90:110], atol=1e-9)
        assert_allclose(recording.read([0], segment=1)[0], parts[2][0], atol=1e-9)
    series = read_inputs([tmp_path / "m"])
    assert series.names == ["m", "m@1.6s"]
    assert_allclose(series[1].samples, parts[2], atol=1e-9)


def test_several_samples_a_frame_are_read_at_their_own_rate(tmp_path, rng, monkeypatch):
    monkeypatch.setattr("raxss.data.formats.wfdb.BLOCK_BYTES", 200)
    slow, fast = rng.integers(-100, 100, 60), rng.integers(-100, 100, (60, 4))
    (tmp_path / "multi.dat").write_bytes(np.column_stack([slow, fast]).astype("<i2").tobytes())
    (tmp_path / "multi.hea").write_text(
        "multi 2 100 60\nmulti.dat 16 200/mV 16 0 0 0 0 slow\nmulti.dat 16x4 200/mV 16 0 0 0 0 fast\n"
    )
    with open_recording(tmp_path / "multi.hea") as recording:
        assert recording.channels == (Channel("slow", 100, "mV"), Channel("fast", 400, "mV"))
        assert recording.n_samples(1) == 240
        assert_allclose(recording.read([0])[0], slow / 200, atol=1e-9)
        assert_allclose(recording.read([1], start=7, stop=201)[0], fast.reshape(-1)[7:201] / 200, atol=1e-9)
    assert [read_series(tmp_path / "multi", channel=place).rate for place in (0, 1)] == [100, 400]


def test_a_segment_of_wfdb_that_became_shorter_is_an_error_of_raxss(tmp_path):
    path = Segmented(["s1 500"], {"s1": Record("s1", first="s1 2 250")}, "500").write(tmp_path)
    with open_recording(path) as recording:
        (tmp_path / "s1.dat").write_bytes(bytes(200))
        with pytest.raises(RecordingError, match="'m' cannot be decoded"):
            recording.read([0])


def test_a_folder_that_wfdb_takes_for_an_address_is_refused_from_inside_too(tmp_path, monkeypatch):
    folder = tmp_path / "x::y"
    folder.mkdir()
    Record().write(folder)
    monkeypatch.chdir(folder)
    with pytest.raises(RecordingError, match="outside"):
        open_recording("r.hea")


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


# Errors and warnings of decoders


def test_damage_after_the_inspection_is_an_error_without_text_of_the_file(tmp_path):
    path = written(tmp_path, edf.plain())
    with open_recording(path) as recording:
        path.write_bytes(b"0       Jane Doe, born 1 JAN 1970")
        with pytest.raises(RecordingError, match=r"'a\.edf' cannot be decoded \(\w+\)") as caught:
            recording.read([0])
        assert caught.value.__cause__ is None
        assert "Jane" not in str(caught.value)


def test_nothing_is_printed_warned_or_logged_by_decoders(tmp_path, capfd, caplog):
    twice = edf.plain(signals=(edf.TWO[0], edf.TWO[0]), n_records_text="4")
    pause = Triplet(channels=("C3,,1,uV", "C3,,1,uV"), markers=(NEW_SEGMENT, "New Segment,,201,1,0"))
    for path in (written(tmp_path, twice), pause.write(tmp_path), Record().write(tmp_path)):
        read_inputs([path])  # warnings are errors in tests
    assert capfd.readouterr() == ("", "")
    assert caplog.text == ""


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
    series = [read_series(path, channel=channel) for channel in ("POL AD1", 97)]
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
