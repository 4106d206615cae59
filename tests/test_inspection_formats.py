"""Inspection of BrainVision, WFDB, arrays and BIDS trees, beyond the verdicts that tests/test_corpus.py checks."""

import os
import warnings
from pathlib import Path

import mne
import numpy as np
import pytest
import wfdb as wfdb_package
from numpy.testing import assert_allclose

from corpus import bids as bids_corpus
from corpus.brainvision import Triplet
from corpus.wfdb import Record
from mutants import mutated_header
from raxss.data.formats import FORMATS, brainvision, format_of, wfdb
from raxss.data.formats.fields import microvolts_per
from raxss.data.inspection import bids
from raxss.data.inspection.sidecars import sidecars_of
from raxss.data.problems import REFUSED, refusals

BRAINVISION, WFDB = FORMATS["BrainVision"], FORMATS["WFDB"]


def accepted_mutants(path, inspect, rng, count):
    """Write each mutant over the header and yield where it is not refused; test_formats.py looks at messages."""
    original = path.read_bytes()
    for _ in range(count):
        path.write_bytes(mutated_header(original, rng))
        if not refusals(inspect(path, path.parent)):
            yield


def compared_with_mne(folder, rng, count, every):
    """How many mutants of a header were accepted and compared; mne takes its time, so not each of them is."""
    path = Triplet(common={"DataPoints": "400"}).write(folder)
    n_compared = 0
    for place, _ in enumerate(accepted_mutants(path, BRAINVISION.inspect, rng, count)):
        if place % every:
            continue
        header = brainvision.examine(path, path.parent, [])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            raw = mne.io.read_raw_brainvision(path, verbose="ERROR")
        assert (len(raw.ch_names), raw.n_times) == (len(header.names), header.n_samples)
        assert raw.info["sfreq"] == pytest.approx(header.rate)
        microvolts = [microvolts_per(unit) for unit in header.units]
        if None not in microvolts:  # a blank unit is microvolts; mne takes ``Ch1=a,,1,`` for volts
            assert_allclose(raw._cals, 1e-6 * np.multiply(header.resolutions, microvolts))
        n_compared += 1
    return n_compared


def compared_with_wfdb(folder, rng, count, every):
    path = Record().write(folder)
    n_compared = 0
    for place, _ in enumerate(accepted_mutants(path, WFDB.inspect, rng, count)):
        if place % every:
            continue
        mine, theirs = wfdb.examine(path, path.parent, []), wfdb_package.rdheader(str(path.with_suffix("")))
        assert (theirs.fs, theirs.sig_len, theirs.n_sig) == (mine.rate, mine.n_samples, len(mine.signals))
        assert theirs.file_name == [signal.file for signal in mine.signals]
        assert theirs.fmt == [signal.format for signal in mine.signals]
        assert [item or 0 for item in theirs.byte_offset] == [signal.offset for signal in mine.signals]
        assert [item or 0 for item in theirs.skew] == [signal.skew for signal in mine.signals]
        assert theirs.adc_gain == [signal.gain or 200.0 for signal in mine.signals]
        assert theirs.units == [signal.unit or "mV" for signal in mine.signals]
        assert [item or "" for item in theirs.sig_name] == [signal.name for signal in mine.signals]
        n_compared += 1
    return n_compared


class TestBrainVision:
    @pytest.mark.parametrize(
        ("count", "every", "least"), [(1000, 10, 15), pytest.param(10_000, 5, 350, marks=pytest.mark.slow)]
    )
    def test_mne_sees_the_same_in_every_mutant_that_is_accepted(self, tmp_path, rng, count, every, least):
        assert compared_with_mne(tmp_path, rng, count, every) > least


def _begins_otherwise(path):
    """Whether the first sample of a record of cinc2017 is not the one that its header tells."""
    _, line, *_ = path.read_text().splitlines()
    first = np.fromfile(path.with_suffix(".mat"), "<i2", count=1, offset=24)
    return int(line.split()[5]) != int(first[0])


class TestWfdb:
    def test_all_records_of_cinc2017_are_sound(self, shared_data):
        records = sorted((shared_data / "cinc2017" / "training2017").glob("*.hea"))
        assert len(records) == 2000
        problems = {path.stem: WFDB.inspect(path, path.parent) for path in records}
        found = {name: {item.code for item in several} for name, several in problems.items() if several}
        # The headers of these have a first value that the data does not begin with; found without our reader.
        others = {path.stem for path in records if _begins_otherwise(path)}
        assert len(others) == 107
        assert found == {name: {"first-value"} for name in others}

    @pytest.mark.parametrize(
        ("count", "least"), [(1200, 50), pytest.param(20_000, 1000, marks=pytest.mark.slow)]
    )
    def test_wfdb_sees_the_same_in_every_mutant_that_is_accepted(self, tmp_path, rng, count, least):
        assert compared_with_wfdb(tmp_path, rng, count, every=5) > least


class TestArrays:
    def codes(self, path):
        return [item.code for item in format_of(path).inspect(path, path.parent)]

    def saved(self, path, *args, **arrays):
        np.save(path, *args, **arrays) if path.suffix == ".npy" else np.savez(path, **arrays)
        return path

    @pytest.mark.parametrize(
        ("array", "codes"),
        [
            (np.zeros((2, 5)), []),
            (np.zeros((5, 2)), ["shape-doubtful"]),
            (np.arange(5), []),
            (np.array([np.nan, 1.0]), []),  # samples are looked at by signals.py
            (np.zeros(5, dtype=complex), ["not-supported"]),
            (np.zeros((2, 2, 2)), ["not-supported"]),
            (np.zeros(3, dtype=[("a", "f8")]), ["not-supported"]),
            (np.array(["a", "b"]), ["not-supported"]),
            (np.zeros((0, 5)), ["no-data"]),
            (np.zeros(()), ["not-supported"]),
        ],
    )
    def test_an_array_is_judged_by_its_header(self, tmp_path, array, codes):
        untimed = [] if {*codes} & {*REFUSED} else ["rate-unknown"]
        assert self.codes(self.saved(tmp_path / "a.npy", array)) == [*codes, *untimed]
        assert self.codes(self.saved(tmp_path / "a.npz", samples=array, rate=250.0)) == codes

    def test_objects_are_refused_and_never_unpickled(self, tmp_path):
        marker = tmp_path / "was-run"

        class Trap:
            def __reduce__(self):
                return os.mkdir, (str(marker),)

        for path in (tmp_path / "a.npy", tmp_path / "a.npz"):
            trap = np.array([Trap()], dtype=object)
            np.save(path, trap) if path.suffix == ".npy" else np.savez(path, samples=trap)
            assert self.codes(path) == ["not-supported"]
        assert not marker.exists()

    @pytest.mark.parametrize("name", ["a.npy", "a.npz"])
    @pytest.mark.parametrize(
        "content", [b"", b"PK\3\4", b"\x93NUMPY\1\0\xff\xff", b"\x93NUMPY\3\0", b"hello" * 99]
    )
    def test_what_is_no_array_is_refused(self, tmp_path, name, content):
        (tmp_path / name).write_bytes(content)
        assert self.codes(tmp_path / name) == ["not-this-format"]

    @pytest.mark.parametrize(
        ("arrays", "codes"),
        [
            ({"signals": np.zeros(5)}, ["not-this-format"]),
            ({"samples": np.zeros(5), "rate": 0.0}, ["bad-rate"]),
            ({"samples": np.zeros(5), "rate": np.nan}, ["bad-rate"]),
            ({"samples": np.zeros(5), "rate": np.array([1.0, 2.0])}, ["bad-rate"]),
            ({"samples": np.zeros(5), "rate": "fast"}, ["bad-rate"]),
            ({"samples": np.zeros((2, 5)), "channels": ["a", "a"], "rate": 5}, ["duplicate-channel"]),
            ({"samples": np.zeros((2, 5)), "channels": ["a", ""], "rate": 5}, ["nameless-channel"]),
            ({"samples": np.zeros((1, 1)), "times_s": np.arange(1.0)}, ["header-damaged"]),
        ],
    )
    def test_the_arrays_of_an_archive_must_go_together(self, tmp_path, arrays, codes):
        assert self.codes(self.saved(tmp_path / "a.npz", **arrays)) == codes

    @pytest.mark.parametrize(
        ("text", "codes"),
        [
            ("5,2\n3,4\n", []),
            ("1.0,2.0\n3,4\n", []),
            ("\ufeffleft,right\r\n1,10\r\n2,20\r\n", []),
            ('"a,b",c\n1,2\n3,4\n', []),
            ("5,2\n", ["shape-doubtful"]),
            ("0,1\n3.5,4\n", ["header-doubtful"]),
            ("1,2\n3.5,4\n", ["header-doubtful"]),
            ("1, 2,3\n7,8,9\n", ["header-doubtful"]),
            ("0\n0.5\n", ["header-doubtful"]),
            ("0\n1\n", []),
            ("1,nan\n2,3\n", ["nan-run"]),
            ("a,a\n1,2\n3,4\n", ["duplicate-channel"]),
            ("", ["no-data"]),
            ("left,right\n", ["no-data"]),
            ("5,2\n3\n", ["header-damaged"]),
            ("left,right\n1,2,3\n", ["header-damaged"]),
            ("5,2\n3,Jane Doe\n", ["header-damaged"]),
            ("1_0,2\n", ["header-damaged"]),
            ("1," * 100_000, ["too-large"]),
            ("1,\0\n", ["not-this-format"]),
            ("5,2\n" * 5000 + "3\n", ["header-damaged"]),
            ("1;2\n3;4\n", ["header-damaged"]),
            ("5,2\n\n3,\n", ["header-damaged"]),
        ],
    )
    def test_every_line_of_a_table_is_looked_at(self, tmp_path, text, codes):
        (tmp_path / "a.csv").write_text(text, newline="")
        problems = FORMATS["CSV"].inspect(tmp_path / "a.csv", tmp_path)
        untimed = [] if {*codes} & {*REFUSED} else ["rate-unknown"]
        assert [problem.code for problem in problems] == [*codes, *untimed]
        assert not any("Jane" in problem.message for problem in problems)


class TestBids:
    def inspected(self, folder, changes):
        return bids.inspect_bids_root(bids_corpus.writer(changes)(folder))

    def test_the_root_comes_first_and_then_each_recording(self, tmp_path):
        second = bids_corpus.SIGNAL.replace("run-01", "run-02")
        root, first, other = self.inspected(tmp_path, {second: bids_corpus.EDF.bytes()})
        assert root.path == str(tmp_path / "tree")
        assert first.path == str(tmp_path / "tree" / bids_corpus.SIGNAL)
        assert (root.verdict, first.verdict) == ("ok", "ok")
        assert [problem.code for problem in other.problems] == ["sidecar-missing", "sidecar-missing"]

    def test_two_channels_of_one_name_go_by_position_if_the_table_has_them_too(self, tmp_path):
        names = ("G1", "G2", "G2")
        signals = tuple(bids_corpus.Signal(name, seed=place) for place, name in enumerate(names))
        changes = {bids_corpus.SIGNAL: bids_corpus.File(signals=signals).bytes()}
        changes[bids_corpus.CHANNELS] = bids_corpus.channels(names)
        _, recording = self.inspected(tmp_path, changes)
        assert [problem.code for problem in recording.problems] == ["duplicate-channel"]

    def test_what_a_sidecar_applies_to_is_told_by_its_entities(self, tmp_path):
        far, near = "sub-01/sub-01_channels.tsv", f"{bids_corpus.FOLDER}sub-01_ses-1_channels.tsv"
        other = f"{bids_corpus.FOLDER}sub-01_ses-1_task-other_channels.tsv"
        tables = dict.fromkeys((far, near, other), bids_corpus.channels())
        root = bids_corpus.writer(tables)(tmp_path)
        found = sidecars_of(root / bids_corpus.SIGNAL, root, "channels.tsv")
        assert found == [root / name for name in (bids_corpus.CHANNELS, near, far)]

    def test_the_real_trees_are_not_refused(self, shared_data):
        root, recording = bids.inspect_bids_root(shared_data / "ds003029-pt01")
        assert root.verdict == "ok"
        assert [problem.code for problem in recording.problems] == ["channels-renamed"]
        assert "97 of 98 channels" in recording.problems[0].message
        root, recording = bids.inspect_bids_root(shared_data / "ds003498-clip")
        assert root.verdict == "ok"
        assert [problem.code for problem in recording.problems] == ["units-in-volts"]  # as it was published
        assert "50 channels the unit V" in recording.problems[0].message

    def test_the_missing_signals_of_ds003029_are_one_statement_and_106_refusals(self, shared_data):
        root, *runs = bids.inspect_bids_root(shared_data / "ds003029")
        (problem,) = root.problems
        assert problem.code == "not-found"
        assert problem.message.startswith("106 of 106 recordings have no signals here")
        assert len(runs) == 106
        assert {tuple(item.code for item in run.problems) for run in runs} == {("not-found",)}
        assert len({Path(run.path).name.split("_")[0] for run in runs}) == 35
