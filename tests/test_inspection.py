"""Looking at recordings before they are decoded: what may be opened, EDF headers, times, signals, front door.

Whole files with their verdicts are in test_corpus.py; here are the parts, against independent readers.
"""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from corpus import edf as corpus
from raxss.data.confinement import leads_outside, open_confined, problem_of_opening, root_of
from raxss.data.formats import FORMATS
from raxss.data.formats.edf import examine, inspect_edf, read_header
from raxss.data.formats.edf.header import EdfHeader, named_channels, parse_header, text_of
from raxss.data.formats.edf.onsets import contiguous_runs
from raxss.data.formats.fields import Refused, microvolts_per
from raxss.data.formats.registry import header_of
from raxss.data.inspection import CODES, Inspection, Problem, inspect_file, inspect_paths
from raxss.data.inspection.front import iter_paths, with_signals
from raxss.data.inspection.signals import inspect_signals, signal_problems
from raxss.data.problems import refusals
from raxss.data.recording import ArrayRecording, Segment
from raxss.errors import RecordingError


def written(folder, file, name="night.edf"):
    path = folder / name
    path.write_bytes(file.bytes())
    return path


def codes(problems):
    return {problem.code for problem in problems}


def header_of_edf(folder, file, name="night.edf"):
    return read_header(written(folder, file, name), folder)


# --- what may be opened


def test_a_path_is_outside_once_its_links_are_followed(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "in-too"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    (inside / "back").symlink_to("../in/a.edf")
    assert not leads_outside(inside / "a.edf", inside)
    assert not leads_outside(inside / "back", inside)
    assert not leads_outside(inside / "link" / ".." / "in" / "a.edf", inside)  # '..' of where the link leads
    assert leads_outside(inside / "link" / "a.edf", inside)
    assert leads_outside(outside / "a.edf", inside)  # a name that only begins alike
    assert leads_outside(inside / ".." / "a.edf", inside)
    assert leads_outside(Path(f"{inside}/a\0b.edf"), inside)


def test_the_root_itself_may_be_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert not leads_outside(tmp_path / "link" / "a.edf", tmp_path / "link")
    assert not leads_outside(tmp_path / "real" / "a.edf", tmp_path / "link")


def test_the_root_is_the_nearest_dataset_or_else_the_folder(tmp_path):
    recording = tmp_path / "sub-1" / "eeg" / "sub-1_eeg.edf"
    assert root_of(recording) == recording.parent
    (tmp_path / "dataset_description.json").write_text("{}")
    assert root_of(recording) == tmp_path


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_what_is_not_a_regular_file_is_never_opened(make, tmp_path):
    path = tmp_path / "night.edf"
    make(path)
    assert problem_of_opening(path, tmp_path).code == "not-readable"
    with pytest.raises(OSError, match=r"'night\.edf' is"):
        open_confined(path, tmp_path)


def test_a_file_without_permission_is_not_readable(tmp_path):
    path = written(tmp_path, corpus.plain())
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    assert [problem.code for problem in inspect_edf(path, tmp_path)] == ["not-readable"]


# --- problems


def test_the_verdict_is_the_worst_problem():
    warning, refused = Problem("flat", "a"), Problem("no-data", "b")
    assert Inspection("x").verdict == "ok"
    assert Inspection("x", (warning,)).verdict == "warning"
    assert Inspection("x", (warning, refused, warning)).verdict == "refused"
    assert refusals([warning, refused]) == [refused]
    assert {severity for severity, _ in CODES.values()} == {"warning", "refused"}


def test_as_json_has_the_three_promised_fields():
    found = Inspection("a/b.edf", (Problem("flat", "m"),), notes=("n",)).as_json()
    assert found == {"path": "a/b.edf", "verdict": "warning", "problems": [{"code": "flat", "message": "m"}]}


# --- EDF headers


@pytest.mark.parametrize("file", [corpus.plain(), corpus.plus("EDF+C"), corpus.bdf()])
def test_a_header_says_what_was_written(file, tmp_path):
    header = header_of_edf(tmp_path, file, f"a.{file.family.lower()}")
    assert header.n_records == header.n_records_declared == 8
    assert header.record_seconds == 1.0
    assert header.sample_bytes == file.width
    assert header.data_offset == len(file.header())
    assert header.record_bytes * 8 == len(file.records())
    for found, expected in zip(header.data_signals, file.signals, strict=True):
        assert (found.label, found.unit) == (expected.label, expected.unit)
        assert (found.physical_min, found.physical_max) == (float(expected.pmin), float(expected.pmax))
        assert header.rate(found) == expected.n


def test_the_offset_of_a_signal_leads_to_its_samples(tmp_path):
    file = corpus.plain(signals=(corpus.TWO[0], replace(corpus.TWO[1], n=10)))
    path = written(tmp_path, file)
    header, raw = read_header(path, tmp_path), path.read_bytes()
    start = header.data_offset + 3 * header.record_bytes + header.signals[1].offset
    assert_array_equal(np.frombuffer(raw, "<i2", 10, start), file.signals[1].integers(8)[3])


def test_a_refused_file_has_no_header_and_the_error_names_the_field(tmp_path):
    path = written(tmp_path, corpus.one_signal(n_text="lots"))
    header, problems = examine(path, tmp_path)
    assert header is None
    field = r"the header has text of 4 characters as samples in a record of 'EEG Fpz-Cz' \(0\)"
    with pytest.raises(RecordingError, match=rf"'night\.edf' is refused: {field}"):
        read_header(path, tmp_path)
    assert problems[0].code == "header-damaged"


def test_messages_name_ten_channels_and_count_the_rest(tmp_path):
    many = [replace(corpus.TWO[0], label=f"G{k}", unit="") for k in range(64)]
    message = inspect_edf(written(tmp_path, corpus.plain(signals=many)), tmp_path)[0].message
    assert "has 64 channels without a unit: 'G0' (0), " in message
    assert "'G9' (9) and 54 more" in message
    assert "'G10'" not in message
    assert named_channels(["a", "b"], [1]) == "'b' (1)"


def test_only_as_much_of_a_header_is_read_as_can_be_true(tmp_path):
    """A count of 9999 signals in a file of some kilobytes is refused on the first 256 bytes."""
    path = written(tmp_path, corpus.plain(n_signals="9999", header_bytes="2560000"))
    lengths = []

    class Counted:
        def __init__(self, file):
            self.file = file

        def read(self, n):
            lengths.append(n)
            return self.file.read(n)

    with open(path, "rb") as file, pytest.raises(Refused, match="declares 9999 signals"):
        parse_header(Counted(file), path.stat().st_size, ".edf", [])
    assert lengths == [256]


def test_a_header_agrees_with_two_other_readers_on_a_real_recording(shared_data):
    edfio, mne = pytest.importorskip("edfio"), pytest.importorskip("mne")
    path = next((shared_data / "ds003029-pt01").rglob("*.edf"))
    header = read_header(path, path.parent)
    theirs = edfio.read_edf(path)
    assert [signal.label for signal in header.data_signals] == [signal.label for signal in theirs.signals]
    rates = [header.rate(signal) for signal in header.data_signals]
    assert_allclose(rates, [signal.sampling_frequency for signal in theirs.signals])
    raw = mne.io.read_raw_edf(path, verbose="error")
    assert header.n_records * header.data_signals[0].n_samples == raw.n_times
    assert_allclose(rates, raw.info["sfreq"])
    assert inspect_edf(path, path.parent) == []


def test_units_of_voltage_are_known_however_micro_is_written():
    assert [microvolts_per(unit) for unit in ("uV", "µV", "μV", " mV ", "V", "nV", "", "UV", "%")] == [
        1.0, 1.0, 1.0, 1e3, 1e6, 1e-3, None, None, None
    ]  # fmt: skip
    assert [text_of(raw) for raw in (b"\xb5V   ", b"\xc2\xb5V", b"uV\0\0", b"a\x1b[1m")] == [
        "µV",
        "µV",
        "uV",
        "a?[1m",
    ]


# --- when records began


def test_onsets_count_from_the_first_record(tmp_path):
    file = corpus.plus("EDF+D", [f"+{second}.25" for second in (7, 8, 20, 21, 22, 90, 91, 92)])
    assert header_of_edf(tmp_path, file).runs == ((0, 2, 0.0), (2, 5, 13.0), (5, 8, 83.0))


def test_records_of_a_plain_file_follow_each_other(tmp_path):
    assert header_of_edf(tmp_path, corpus.plain(seconds="0.25")).runs == ((0, 8, 0.0),)


def test_a_record_without_a_time_follows_the_one_before(tmp_path):
    onsets = [b"\0", "+1", b"\0", b"\0", "+90", b"\0", "+92", b"\0"]
    assert header_of_edf(tmp_path, corpus.plus("EDF+C", onsets)).runs == ((0, 4, 0.0), (4, 8, 90.0))


@pytest.mark.parametrize("n", [100, 40000])
def test_onsets_are_the_same_from_small_records_and_large_ones(n, tmp_path):
    """Small records are read many at a time; of large ones only the annotation bytes."""
    signals = [replace(item, n=n) for item in corpus.TWO]
    file = corpus.plus("EDF+D", [*corpus.EVEN[:4], "+10", "+11", "+12", "+13"], signals=signals)
    assert header_of_edf(tmp_path, file).runs == ((0, 4, 0.0), (4, 8, 10.0))


def test_an_error_about_times_names_the_record_and_no_text(tmp_path):
    early = corpus.plus("EDF+D", [*corpus.EVEN[:5], "+4.5", "+6", "+7"])
    with pytest.raises(RecordingError, match=r"record 5 began at 4.5 s, before record 4, from 4 s, was over"):
        header_of_edf(tmp_path, early)
    texts = corpus.plus("EDF+D", [*corpus.EVEN[:5], b"+5\x14Jane Doe\x14\0", "+6", "+7"])
    with pytest.raises(RecordingError, match="annotations in record 5 that do not begin") as caught:
        header_of_edf(tmp_path, texts)
    assert "Jane" not in str(caught.value)


def test_times_that_drift_from_the_duration_are_told(tmp_path):
    onsets = [f"+{number * 1.0009:.4f}" for number in range(2000)]
    file = corpus.plus("EDF+C", onsets, n_records=2000, signals=[replace(corpus.TWO[0], n=10)])
    problems = inspect_edf(written(tmp_path, file), tmp_path)
    assert codes(problems) == {"header-inconsistent"}
    assert "drift away from the records' duration by 1.8 s" in problems[0].message


def test_a_hundred_thousand_times_are_read_in_seconds(tmp_path):
    """As many as a day of records of a second has."""
    count = 100_000
    file = corpus.plus(
        "EDF+D", [f"+{k}" for k in range(count)], n_records=count, signals=[replace(corpus.TWO[0], n=2)]
    )
    path, begun = written(tmp_path, file), time.monotonic()
    assert read_header(path, tmp_path).runs == ((0, count, 0.0),)
    assert time.monotonic() - begun < 3


def test_a_gap_is_what_is_longer_than_a_millisecond_or_half_a_sample():
    slow = EdfHeader("EDF+D", 3, 3, 1.0, 2, 512, ())
    assert contiguous_runs(np.array([0, 1.0005, 2.0]), slow) == [(0, 3)]
    assert contiguous_runs(np.array([0, 1.002, 2.0]), slow) == [(0, 1), (1, 3)]


@pytest.mark.parametrize(
    ("onsets", "n_runs"),
    [
        (["+0", "+1.0009", "+2.0018", "+3.0027"], 4),  # 27 samples late each time
        (["+0", "+1.0001", "+2", "+3.0001"], 1),  # rounded to four digits
        (["+0", "+1.00003", "+2.00003", "+3"], 1),  # one sample
        (["+0", "+1.001", "+2", "+3.001"], 1),  # rounded to milliseconds
    ],
)
def test_a_gap_of_many_samples_is_one_however_short(onsets, n_runs, tmp_path):
    """At 30 kHz a millisecond is 30 samples; what times were rounded to is no gap."""
    fast = [replace(corpus.TWO[0], n=30_000)]
    file = corpus.plus("EDF+D", onsets, signals=fast, n_records=4)
    assert len(header_of_edf(tmp_path, file).runs) == n_runs


@pytest.mark.parametrize("family", ["EDF", "BDF"])
def test_a_file_of_very_many_pieces_is_refused_at_once(family, tmp_path):
    """Decoders take milliseconds for each: 250,000 of them took minutes."""
    kind, suffix = f"{family}+D", f"{family.lower()}"
    signal = (corpus.BDF_TWO if family == "BDF" else corpus.TWO)[0]
    for count, verdict in ((2000, "warning"), (2001, "refused")):
        file = corpus.plus(
            kind, [f"+{2 * k}" for k in range(count)], signals=[replace(signal, n=10)], n_records=count
        )
        inspection = inspect_file(written(tmp_path, file, f"night.{suffix}"))
        assert inspection.verdict == verdict
    assert codes(inspection.problems) == {"too-many-pieces"}
    assert "in 2,001 pieces" in inspection.problems[0].message
    rates = [replace(signal, n=k + 1, label=f"C{k}") for k in range(33)]
    path = written(tmp_path, corpus.File(family=family, signals=rates), f"rates.{suffix}")
    assert codes(inspect_file(path).problems) == {"too-many-pieces"}
    path = written(tmp_path, corpus.File(family=family, signals=rates[:32]), f"rates.{suffix}")
    assert codes(inspect_file(path).problems) == {"mixed-rates"}


# --- signals

RATE = 250.0
PLACEMENTS = ("start", "middle", "end", "scattered", "whole")


def affected(placement, n):
    """A fifth of a recording, in one stretch or in many; or all of it."""
    mask = np.zeros(n, bool)
    fifth = n // 5
    if placement == "scattered":
        piece = int(1.5 * RATE)
        for start in np.linspace(0, n - piece, fifth // piece, dtype=int):
            mask[start : start + piece] = True
        return mask
    first, last = {
        "start": (0, fifth),
        "middle": (2 * fifth, 3 * fifth),
        "end": (n - fifth, n),
        "whole": (0, n),
    }[placement]
    mask[first:last] = True
    return mask


def spoilt(pathology, placement, rng, n=15_000):
    """Three channels of noise with some memory; the second is spoilt."""
    samples = np.cumsum(rng.normal(size=(3, n)), axis=1)
    samples = np.round(
        10 * (samples - np.array([np.convolve(row, np.ones(500) / 500, "same") for row in samples]))
    )
    mask, times = affected(placement, n), np.arange(n) / RATE
    ceiling = np.abs(samples[1]).max() + 50
    samples[1, mask] = {
        "flat": np.full(n, 17.0),
        "flat to a step": 17.0 + (np.arange(n) // 3) % 2,
        "dead at zero": np.zeros(n),
        "railed above": np.full(n, ceiling),
        "railed below": np.full(n, -ceiling),
        "railed both ways": ceiling * np.sign(np.sin(2 * np.pi * times)),
        "clipped": np.clip(3 * ceiling * np.sin(2 * np.pi * 1.3 * times), -ceiling, ceiling),
        "not a number": np.full(n, np.nan),
        "infinite": np.full(n, np.inf),
        "hum 50": samples[1] * 0.1 + 2000 * np.sin(2 * np.pi * 50 * times),
        "hum 60": samples[1] * 0.1 + 2000 * np.sin(2 * np.pi * 60 * times),
        "hum and harmonics": samples[1] * 0.1 + 900 * np.sign(np.sin(2 * np.pi * 50 * times + 0.1)),
    }[pathology][mask]
    return ArrayRecording("night", samples, rate=RATE, names=["C3", "C4", "O1"]), (-ceiling, ceiling)


PATHOLOGIES = {
    "flat": "flat",
    "flat to a step": "flat",
    "dead at zero": "flat",
    "railed above": "railed",
    "railed below": "railed",
    "railed both ways": "railed",
    "clipped": "railed",
    "not a number": "nan-run",
    "infinite": "nan-run",
    "hum 50": "line-noise",
    "hum 60": "line-noise",
    "hum and harmonics": "line-noise",
}


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("pathology", PATHOLOGIES)
def test_a_bad_channel_is_named_wherever_it_is_bad(pathology, placement, rng):
    recording, limits = spoilt(pathology, placement, rng)
    problems = signal_problems(recording, limits=[limits] * 3)
    named = [problem for problem in problems if problem.code == PATHOLOGIES[pathology]]
    assert len(named) == 1, problems
    assert "has 1 channel " in named[0].message
    assert "'C4' (1), " in named[0].message
    assert not [problem for problem in problems if "'C3'" in problem.message or "'O1'" in problem.message]


@pytest.mark.parametrize("placement", ["start", "middle", "end", "scattered"])
def test_rails_are_seen_without_knowing_the_limits(placement, rng):
    recording, _ = spoilt("railed above", placement, rng)
    assert "railed" in codes(signal_problems(recording))


def test_the_shares_that_messages_tell_are_those_that_were_spoilt(rng):
    recording, limits = spoilt("not a number", "middle", rng)
    assert signal_problems(recording, limits=[limits] * 3)[0].message.endswith("'C4' (1), 20 %.")
    recording, limits = spoilt("flat", "whole", rng)
    assert signal_problems(recording, limits=[limits] * 3)[0].message.endswith("'C4' (1), 100 %.")


def test_blocks_do_not_change_what_is_found(rng, monkeypatch):
    """The same in one piece and in pieces of a thousand samples, which cut every stretch."""
    from raxss.data.inspection import signals

    for pathology in PATHOLOGIES:
        recording, limits = spoilt(pathology, "middle", rng)
        whole = signal_problems(recording, limits=[limits] * 3)
        monkeypatch.setattr(signals, "BLOCK_SAMPLES", 1000)
        assert signal_problems(recording, limits=[limits] * 3) == whole
        monkeypatch.undo()


def test_sound_signals_are_left_in_peace(rng):
    """Noise, a heart beat with quiet in between, a slow wave, a switch, and one clipped peak."""
    times = np.arange(20_000) / RATE
    beat = np.round(1000 * np.exp(-(((times % 0.8) - 0.2) ** 2) / 0.0004) + rng.normal(size=len(times)))
    once = np.round(rng.normal(size=len(times)) * 100)
    once[500:502] = 5000
    samples = np.stack([np.round(50 * rng.normal(size=len(times))), beat, 1000 * np.sin(times), once])
    assert signal_problems(ArrayRecording("night", samples, rate=RATE)) == []


def test_a_switch_at_its_upper_value_is_not_railed(rng):
    switch = (np.arange(20_000) // 100 % 2).astype(float)[np.newaxis]
    assert "railed" not in codes(signal_problems(ArrayRecording("night", switch, rate=RATE)))


class TwoStretches(ArrayRecording):
    """The same samples, with a gap in the middle."""

    def __init__(self, samples, rate):
        super().__init__("night", samples, rate=rate)
        half = samples.shape[1] // 2
        self.segments = (Segment(0.0, half / rate), Segment(3600.0, half / rate))

    def n_samples(self, channel, segment=0):
        return self.samples.shape[1] // 2

    def read(self, channels, *, segment=0, start=0, stop=None):
        half = self.samples.shape[1] // 2
        return super().read(channels, start=segment * half + start, stop=segment * half + stop)


def test_nothing_goes_on_across_a_gap(rng):
    """Four seconds of silence before a gap and four after it are not eight."""
    samples = rng.normal(size=(1, 60_000))
    samples[:, 29_000:31_000] = 0.0
    assert codes(signal_problems(ArrayRecording("night", samples, rate=RATE))) == {"flat"}
    assert signal_problems(TwoStretches(samples, RATE)) == []


def test_low_rates_and_short_recordings_are_judged_too():
    assert "flat" in codes(signal_problems(ArrayRecording("a", np.zeros((1, 3)), rate=250.0)))
    assert "flat" in codes(signal_problems(ArrayRecording("a", np.zeros((1, 60)), rate=1.0)))
    wave = np.sin(np.arange(60.0))[np.newaxis]
    assert signal_problems(ArrayRecording("a", wave, rate=1.0)) == []
    assert signal_problems(ArrayRecording("a", wave[:, :1], rate=250.0)) == [
        Problem(
            "flat", "'a' has 1 channel without any change for 5 s or a tenth of the time: '0' (0), 100 %."
        )
    ]


def test_a_flat_file_is_found_by_its_path(tmp_path):
    path = written(tmp_path, corpus.plain(signals=(replace(corpus.TWO[0], low=7, high=8), corpus.TWO[1])))
    assert codes(inspect_signals(path, tmp_path)[0]) == {"flat"}


def test_what_is_found_in_a_real_recording_is_there(shared_data):
    """Two channels without a contact are constant, at the limit; the DC inputs are cut off; no other channel is."""
    path = next((shared_data / "ds003029-pt01").rglob("*.edf"))
    messages = {problem.code: problem.message for problem in inspect_signals(path, root_of(path))[0]}
    names = [signal.label for signal in read_header(path, path.parent).data_signals]
    named = {code: {name for name in names if f"{name!r} (" in text} for code, text in messages.items()}
    assert named["flat"] == {"POL $G11", "POL $G12"}
    assert named["railed"] == {"POL $G11", "POL $G12", "POL DC10", "POL DC11", "POL DC12"}
    assert "nan-run" not in named


# --- the front door


def test_a_folder_gives_each_recording_once(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    written(tmp_path, corpus.plain(), "b.edf")
    written(tmp_path / "deep" / "er", corpus.bdf(), "a.BDF")
    for name in ("c.vhdr", "c.eeg", "c.vmrk", "d.hea", "d.dat", "notes.txt", "table.csv"):
        (tmp_path / name).write_text("nonsense")
    found = [Path(inspect_path.path).relative_to(tmp_path) for inspect_path in inspect_paths([tmp_path])]
    assert [str(path) for path in found] == ["b.edf", "c.vhdr", "d.hea", "deep/er/a.BDF"]


def test_the_same_recording_named_twice_is_looked_at_once(tmp_path):
    path = written(tmp_path, corpus.plain())
    assert len(inspect_paths([path, tmp_path, tmp_path / "." / "night.edf"])) == 1
    for name in ("c.vhdr", "c.eeg", "c.vmrk"):
        (tmp_path / name).write_text("nonsense")
    assert len(inspect_paths([tmp_path / "c.eeg", tmp_path / "c.vmrk", tmp_path / "c.vhdr"])) == 1


def test_a_recording_is_known_by_its_header(tmp_path):
    assert header_of(Path("a/b.eeg")) == Path("a/b.vhdr")
    assert header_of(Path("a/b.dat")) == Path("a/b.hea")
    (tmp_path / "x.vhdr").touch()
    (tmp_path / "y.HEA").touch()
    (tmp_path / "z.hea").touch()
    assert header_of(tmp_path / "x.dat") == tmp_path / "x.vhdr"
    assert header_of(tmp_path / "y.dat") == tmp_path / "y.HEA"
    assert header_of(tmp_path / "z") == tmp_path / "z.hea"


def test_paths_are_told_as_they_were_written(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    written(tmp_path / "data", corpus.plain())
    monkeypatch.chdir(tmp_path)
    assert [item.path for item in iter_paths(["data"])] == ["data/night.edf"]
    assert inspect_file("data/night.edf").path == "data/night.edf"


def test_one_recording_of_a_dataset_is_judged_as_in_the_whole(tmp_path, monkeypatch):
    """By its sidecars too, whether the dataset, a subject's folder or the file is named."""
    folder = tmp_path / "set" / "sub-1" / "eeg"
    folder.mkdir(parents=True)
    (tmp_path / "set" / "dataset_description.json").write_text('{"Name": "x", "BIDSVersion": "1.8.0"}')
    written(folder, corpus.plain(), "sub-1_task-rest_eeg.edf")
    (folder / "sub-1_task-rest_channels.tsv").write_text("name\ttype\tunits\nC3\tEEG\tuV\nC4\tEEG\tuV\n")
    monkeypatch.chdir(tmp_path)
    file = "set/sub-1/eeg/sub-1_task-rest_eeg.edf"
    by_dataset, by_subject, by_file = (
        next(inspect_path for inspect_path in inspect_paths([path]) if inspect_path.path == file)
        for path in ("set", "set/sub-1", file)
    )
    assert by_dataset.problems == by_subject.problems == by_file.problems
    assert "channels-disagree" in codes(by_file.problems)
    assert inspect_file(file).verdict == "ok"  # of the file alone


def test_an_unknown_type_is_not_a_recording(tmp_path):
    (tmp_path / "a.docx").touch()
    (problem,) = inspect_file(tmp_path / "a.docx").problems
    assert problem.code == "not-a-recording"
    assert "'a.docx' is of type '.docx'" in problem.message


def test_a_fault_of_ours_is_a_refusal_and_not_a_traceback(tmp_path, monkeypatch):
    def broken(path, root):
        raise ZeroDivisionError("of Jane Doe")

    monkeypatch.setitem(FORMATS, "EDF", replace(FORMATS["EDF"], inspect=broken))
    (problem,) = inspect_file(written(tmp_path, corpus.plain())).problems
    assert problem.code == "header-damaged"
    assert "ZeroDivisionError" in problem.message
    assert "Jane" not in problem.message


def test_without_the_extra_headers_are_looked_at_and_a_warning_says_what_was_not(tmp_path, monkeypatch):
    path = written(tmp_path, corpus.plain())
    monkeypatch.setitem(sys.modules, "edfio", None)  # as if it were not installed
    inspection = inspect_file(path, signals=True)
    assert inspection.verdict == "warning"
    (problem,) = inspection.problems
    assert problem.code == "signals-not-read"
    assert "only the header and sizes of 'night.edf' were looked at, not its signals" in problem.message
    assert "pip install 'raxss[bids]'" in problem.message


def test_signals_of_a_refused_file_are_never_looked_at(tmp_path):
    refused = Inspection(str(tmp_path / "night.edf"), (Problem("no-data", "x"),))
    assert with_signals(refused) is refused


def test_of_very_many_stretches_some_are_looked_at_and_a_note_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("raxss.data.inspection.signals.MOST_STRETCHES", 2)
    gaps = corpus.plus("EDF+D", [f"+{10 * k}" for k in range(8)])
    inspection = inspect_file(written(tmp_path, gaps), signals=True)
    assert inspection.notes == ("the signals of one in 4 segments were looked at",)
    monkeypatch.undo()
    assert inspect_file(written(tmp_path, gaps), signals=True).notes == ()


def test_values_beyond_any_unit_are_told_and_trouble_nobody(rng):
    samples = rng.normal(size=(2, 1000))
    samples[1, :2] = 1e308, -1e308
    toy = ArrayRecording("toy", samples, rate=100.0, names=["C3", "C4"])
    (problem,) = signal_problems(toy)
    assert problem.code == "nan-run"
    assert problem.message.endswith("'C4' (1), 0.2 %.")
