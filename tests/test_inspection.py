"""Looking at recordings before they are decoded: what may be opened, EDF headers, times, signals, front door.

Whole files with their verdicts are in test_corpus.py; here are the parts, against independent readers.
"""

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from corpus import edf as corpus
from raxss.data.confinement import leads_outside, root_of
from raxss.data.formats import FORMATS, open_recording
from raxss.data.formats.edf import examine
from raxss.data.formats.fields import Refused
from raxss.data.inspection import Inspection, Problem, inspect_file, inspect_paths
from raxss.data.inspection.front import iter_paths, with_signals
from raxss.data.inspection.sidecars import facts_of
from raxss.data.inspection.signals import inspect_signals, signal_problems
from raxss.data.recording import ArrayRecording, Segment
from raxss.errors import RecordingError


def written(folder, file, name="night.edf"):
    path = folder / name
    path.write_bytes(file.bytes())
    return path


def codes(problems):
    return {problem.code for problem in problems}


def header_of_edf(folder, file, name="night.edf"):
    return examine(written(folder, file, name), folder, [])


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


def test_the_root_is_the_nearest_dataset_or_else_the_folder(tmp_path):
    recording = tmp_path / "sub-1" / "eeg" / "sub-1_eeg.edf"
    assert root_of(recording) == recording.parent
    (tmp_path / "dataset_description.json").write_text("{}")
    assert root_of(recording) == tmp_path


def test_a_file_without_permission_is_not_readable(tmp_path):
    path = written(tmp_path, corpus.plain())
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    assert codes(inspect_file(path).problems) == {"not-readable"}


# --- EDF headers


def test_a_refused_file_has_no_header_and_the_error_names_the_field(tmp_path):
    field = r"'EEG Fpz-Cz' \(0\): the header has text of 4 characters as samples in a record"
    with pytest.raises(RecordingError, match=rf"'night\.edf' is refused: {field}"):
        open_recording(written(tmp_path, corpus.one_signal(n_text="lots")), inspect=False)


def test_messages_name_ten_channels_and_count_the_rest(tmp_path):
    many = [replace(corpus.TWO[0], label=f"G{k}", unit="") for k in range(64)]
    message = inspect_file(written(tmp_path, corpus.plain(signals=many))).problems[0].message
    assert "has 64 channels without a unit: 'G0' (0), " in message
    assert "'G9' (9) and 54 more" in message
    assert "'G10'" not in message


# --- when records began

FAST = [replace(corpus.TWO[0], n=30_000)]  # at 30 kHz a millisecond is 30 samples
LONG = [replace(item, n=40_000) for item in corpus.TWO]
LATE = ["+7.25", "+8.25", "+20.25", "+21.25", "+90.25"]
RUNS = [  # times of records, signals, and stretches without a gap: first record, last, seconds of the start
    (LATE, corpus.TWO, ((0, 2, 0.0), (2, 4, 13.0), (4, 5, 83.0))),
    (LATE, LONG, ((0, 2, 0.0), (2, 4, 13.0), (4, 5, 83.0))),  # of large records only annotations are read
    (["+0", "+1.0005", "+2"], corpus.TWO, ((0, 3, 0.0),)),
    (["+0", "+1.02", "+2.02"], corpus.TWO, ((0, 1, 0.0), (1, 3, 1.02))),
    (["+0", "+1.0009", "+2.0018"], FAST, ((0, 1, 0.0), (1, 2, 1.0009), (2, 3, 2.0018))),  # 27 samples late
    (["+0", "+1.0001", "+2", "+3.0001"], FAST, ((0, 4, 0.0),)),  # rounded to four digits
    (["+0", "+1.00003", "+2.00003", "+3"], FAST, ((0, 4, 0.0),)),  # one sample late
    (["+0", "+1.001", "+2", "+3.001"], FAST, ((0, 4, 0.0),)),  # rounded to milliseconds
]


@pytest.mark.parametrize(("onsets", "signals", "runs"), RUNS)
def test_records_are_apart_where_their_times_are(onsets, signals, runs, tmp_path):
    file = corpus.plus("EDF+D", onsets, signals=signals, n_records=len(onsets))
    assert header_of_edf(tmp_path, file).runs == runs


def test_a_record_without_a_time_follows_the_one_before(tmp_path):
    onsets = [b"\0", "+1", b"\0", b"\0", "+90", b"\0", "+92", b"\0"]
    assert header_of_edf(tmp_path, corpus.plus("EDF+C", onsets)).runs == ((0, 4, 0.0), (4, 8, 90.0))


def test_more_than_2000_pieces_or_32_rates_are_refused(tmp_path):
    signal = replace(corpus.TWO[0], n=10)
    for count, expected in ((2000, "gaps"), (2001, "too-many-pieces")):
        onsets = [f"+{2 * k}" for k in range(count)]
        file = corpus.plus("EDF+D", onsets, signals=[signal], n_records=count)
        (problem,) = inspect_file(written(tmp_path, file)).problems
        assert problem.code == expected
    assert "in 2,001 pieces" in problem.message
    for count, expected in ((32, "mixed-rates"), (33, "too-many-pieces")):
        rates = [replace(signal, n=k + 1, label=f"C{k}") for k in range(count)]
        assert codes(inspect_file(written(tmp_path, corpus.plain(signals=rates))).problems) == {expected}


def test_an_error_about_times_names_the_record_and_no_text(tmp_path):
    early = corpus.plus("EDF+D", [*corpus.EVEN[:5], "+4.5", "+6", "+7"])
    with pytest.raises(Refused, match=r"record 5 began at 4.5 s, before record 4, from 4 s, was over"):
        header_of_edf(tmp_path, early)
    texts = corpus.plus("EDF+D", [*corpus.EVEN[:5], b"+5\x14Jane Doe\x14\0", "+6", "+7"])
    with pytest.raises(Refused, match="annotations in record 5 that do not begin") as caught:
        header_of_edf(tmp_path, texts)
    assert "Jane" not in str(caught.value)


def test_times_that_drift_from_the_duration_are_told(tmp_path):
    onsets = [f"+{number * 1.0009:.4f}" for number in range(2000)]
    file = corpus.plus("EDF+C", onsets, n_records=2000, signals=[replace(corpus.TWO[0], n=10)])
    problems = inspect_file(written(tmp_path, file)).problems
    assert codes(problems) == {"header-inconsistent"}
    assert "drift away from the records' duration by 1.8 s" in problems[0].message


def test_a_hundred_thousand_times_are_read_in_seconds(tmp_path):
    """As many as a day of records of a second has."""
    count = 100_000
    file = corpus.plus(
        "EDF+D", [f"+{k}" for k in range(count)], n_records=count, signals=[replace(corpus.TWO[0], n=2)]
    )
    path, begun = written(tmp_path, file), time.monotonic()
    assert examine(path, tmp_path, []).runs == ((0, count, 0.0),)
    assert time.monotonic() - begun < 3


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
    _, made = PATHOLOGIES[pathology]
    samples[1, mask] = np.broadcast_to(made(times, samples[1], ceiling), n)[mask]
    return ArrayRecording("night", samples, rate=RATE, names=["C3", "C4", "O1"]), (-ceiling, ceiling)


def sine(hertz, times):
    return np.sin(2 * np.pi * hertz * times)


PATHOLOGIES = {  # name: (code, samples by times, the sound ones and the limit of the converter)
    "flat": ("flat", lambda times, sound, most: 17.0),
    "flat to a step": ("flat", lambda times, sound, most: 17.0 + (np.arange(len(times)) // 3) % 2),
    "dead at zero": ("flat", lambda times, sound, most: 0.0),
    "railed above": ("railed", lambda times, sound, most: most),
    "railed below": ("railed", lambda times, sound, most: -most),
    "railed both ways": ("railed", lambda times, sound, most: most * np.sign(sine(1, times))),
    "clipped": ("railed", lambda times, sound, most: np.clip(3 * most * sine(1.3, times), -most, most)),
    "not a number": ("nan-run", lambda times, sound, most: np.nan),
    "infinite": ("nan-run", lambda times, sound, most: np.inf),
    "hum 50": ("line-noise", lambda times, sound, most: sound * 0.1 + 2000 * sine(50, times)),
    "hum 60": ("line-noise", lambda times, sound, most: sound * 0.1 + 2000 * sine(60, times)),
    "hum and harmonics": (
        "line-noise",
        lambda times, sound, most: sound * 0.1 + 900 * np.sign(sine(50, times + 0.1 / (2 * np.pi * 50))),
    ),
}


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("pathology", PATHOLOGIES)
def test_a_bad_channel_is_named_wherever_it_is_bad(pathology, placement, rng):
    recording, limits = spoilt(pathology, placement, rng)
    problems = signal_problems(recording, limits=[limits] * 3)
    named = [problem for problem in problems if problem.code == PATHOLOGIES[pathology][0]]
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


def test_what_is_found_in_a_real_recording_is_there(shared_data):
    """Two channels without a contact are constant, at the limit; the DC inputs are cut off; no other channel is."""
    path = next((shared_data / "ds003029-pt01").rglob("*.edf"))
    messages = {problem.code: problem.message for problem in inspect_signals(path, root_of(path))[0]}
    names = facts_of(path, path.parent).names
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


def test_a_fault_of_ours_is_a_refusal_and_not_a_traceback(tmp_path, monkeypatch):
    def broken(path, root):
        raise ZeroDivisionError("of Jane Doe")

    monkeypatch.setitem(FORMATS, "EDF", replace(FORMATS["EDF"], inspect=broken))
    (problem,) = inspect_file(written(tmp_path, corpus.plain())).problems
    assert problem.code == "header-damaged"
    assert "ZeroDivisionError" in problem.message
    assert "Jane" not in problem.message


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
