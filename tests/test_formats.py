"""Claims that every registered file format must meet; a new one needs one line in EXAMPLES.

The formats are those of the registry, and one from outside (raw_format.py), registered for these tests alone.
"""

import contextlib
import json
import os
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from typer.testing import CliRunner

import raw_format
from corpus import Case, brainvision, edf, wfdb
from mutants import mutated_header
from raxss.cli import app
from raxss.data.bids_tree import open_tree, runs_of
from raxss.data.files import lines_of_inputs, read_inputs
from raxss.data.formats import (
    FORMATS,
    Format,
    files_of,
    format_of,
    header_of,
    open_recording,
    register_format,
)
from raxss.data.formats.array_files import array_format
from raxss.data.formats.opening import UNEXPECTED
from raxss.data.formats.registry import all_suffixes, searched_suffixes
from raxss.data.inspection import inspect_file, inspect_paths
from raxss.data.inspection.sidecars import facts_of
from raxss.data.recording import ArrayRecording
from raxss.errors import ConfigError, MissingExtraError, RAxSSError, RecordingError
from test_agreement import SAMPLES, csv, edf_file, npy, npz, segmented

NAMES = [*FORMATS, raw_format.RAW.name]
PACKAGES = {"WFDB": ("wfdb",)}  # that decode a format


def array_case(name, write, rate=1.0, names=("0", "1"), codes=("rate-unknown",)):
    return Case(name, write, "warning" if codes else "ok", codes, samples=dict(enumerate(SAMPLES)), names=names,
                rates=(rate, rate), units=("", ""))  # fmt: skip


# A small sound recording of each format: how it is written, and what it must decode to.
EXAMPLES = {
    "EDF": replace(edf.case("a", edf.plain(), "ok"), units=("uV", "uV")),
    "BDF": replace(edf.case("a", edf.bdf(), "ok"), units=("uV", "uV")),
    "BrainVision": replace(
        brainvision.accepted("a", brainvision.Triplet(common={"DataPoints": "400"})), units=("uV",) * 3
    ),
    "WFDB": replace(wfdb.accepted("a", wfdb.Record(comments="")), units=("mV", "mV")),
    "NPZ": array_case("a", npz(), 250.0, ("C3", "C4"), ()),
    "NPY": array_case("a", npy),
    "CSV": array_case("a", csv, names=("C3", "C4")),
    "RAW": raw_format.EXAMPLE,
}


@pytest.fixture(autouse=True)
def _format_from_outside(monkeypatch):
    """RAW is registered as a user would, and forgotten again."""
    monkeypatch.setitem(FORMATS, "RAW", raw_format.RAW)  # restores the registry afterwards
    register_format(raw_format.RAW)


@pytest.fixture(params=NAMES)
def known(request) -> Format:
    for package in PACKAGES.get(request.param, ()):
        pytest.importorskip(package)
    return FORMATS[request.param]


@pytest.fixture
def example(known) -> Case:
    return EXAMPLES[known.name]


@pytest.fixture
def path(example, tmp_path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return example.write(folder)


def test_every_registered_format_has_an_example():
    assert set(FORMATS) == set(EXAMPLES) == set(NAMES)


# Inspecting


def test_a_sound_file_has_no_problem(known, example, path):
    inspection = inspect_file(path, signals=True)
    assert [problem.code for problem in inspection.problems] == list(example.codes), inspection.problems
    assert not known.self_describing or inspection.verdict == "ok"


def test_headers_are_inspected_without_the_packages_that_decode(known, example, path, monkeypatch):
    packages = PACKAGES.get(known.name, ())
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    assert [problem.code for problem in inspect_file(path).problems] == list(example.codes)
    if packages:
        with pytest.raises(MissingExtraError, match=rf"package {packages[0]}.*raxss\[bids\]"):
            open_recording(path)


def test_a_recording_is_known_by_any_of_its_files(known, path):
    assert format_of(path) is known
    assert path.suffix in known.suffixes
    files = files_of(path)
    assert files[0] == path
    assert len(set(files)) == len(files)
    for file in files[1:]:
        assert file.suffix in known.companions
        assert header_of(file) == path
    if known.bare_names:
        assert header_of(path.with_suffix("")) == path


def test_a_link_out_of_the_folder_is_refused(path, tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    for file in files_of(path):
        (inside / file.name).symlink_to(file)
    (problem,) = inspect_file(inside / path.name).problems
    assert problem.code == "outside"
    with pytest.raises(RecordingError, match=r"\[outside\]"):
        open_recording(inside / path.name)


def test_a_file_pointed_to_that_is_a_link_out_of_the_folder_is_refused(path, tmp_path):
    for file in files_of(path)[1:]:
        elsewhere = tmp_path / file.name
        file.rename(elsewhere)
        file.symlink_to(elsewhere)
        assert "outside" in {problem.code for problem in inspect_file(path).problems}, file.name
        with pytest.raises(RecordingError, match="outside"):
            open_recording(path)
        file.unlink()
        elsewhere.rename(file)


# Opening and reading


def test_an_opened_file_states_names_units_rates_and_length(known, example, path):
    with open_recording(path) as recording:
        assert tuple(channel.name for channel in recording.channels) == example.names
        assert tuple(channel.unit for channel in recording.channels) == example.units
        assert tuple(channel.rate for channel in recording.channels) == example.rates
        lengths = [recording.n_samples(place) for place in range(len(recording.channels))]
        assert lengths == [len(example.samples[place]) for place in range(len(lengths))]
        assert [(segment.start_seconds, segment.seconds) for segment in recording.segments] == [
            (0.0, lengths[0] / example.rates[0])
        ]
        facts = facts_of(path, path.parent)
        assert (tuple(facts.names), tuple(facts.rates)) == (example.names, example.rates)
        assert facts.seconds == recording.segments[0].seconds


def test_the_samples_are_those_that_were_written(example, path):
    with open_recording(path) as recording:
        for place, expected in example.samples.items():
            assert_allclose(recording.read([place])[0], expected, rtol=1e-9, atol=1e-9)


def test_reads_in_blocks_equal_the_whole_read(example, path):
    with open_recording(path) as recording:
        places = list(range(len(recording.channels)))[::-1]
        whole = recording.read(places)
        length = whole.shape[1]
        blocks = [recording.read(places, start=start, stop=start + 97) for start in range(0, length, 97)]
        assert_array_equal(np.concatenate(blocks, axis=1), whole)
        assert_array_equal(recording.read(places[:1], start=3, stop=50), whole[:1, 3:50])
        assert recording.read(places, start=length, stop=length + 5).shape == (len(places), 0)
        assert recording.read(places, start=length - 2, stop=length + 5).shape == (len(places), 2)


def test_what_streams_is_not_read_into_memory_when_it_is_opened(known, path):
    with open_recording(path) as recording:
        is_in_memory = isinstance(recording, ArrayRecording) and not isinstance(recording.samples, np.memmap)
        assert is_in_memory == (known.open.__module__ == array_format.__module__)


# Damage


FURTHER = {  # kinds of these formats with other things to damage
    "EDF+C": edf_file(edf.plus(n_records=3)),
    "EDF+D": edf_file(edf.plus("EDF+D", n_records=3)),
    "BDF+D": edf_file(edf.bdf(reserved="BDF+D", onsets=edf.EVEN), "a.bdf"),
    "WFDB segments": segmented,
}


@pytest.mark.parametrize("name", [*NAMES, *FURTHER])
def test_a_file_with_random_damage_is_read_or_refused_and_nothing_else(name, tmp_path):
    write = FURTHER[name] if name in FURTHER else EXAMPLES[name].write
    rng, path, outcomes = np.random.default_rng(8), write(tmp_path), Counter()
    files = files_of(path)
    for file in files:
        raw = file.read_bytes()
        for _ in range((600 if name[:3] in ("EDF", "BDF") else 300) // len(files)):
            file.write_bytes(mutated_header(raw, rng))
            begun = time.process_time()
            inspection = inspect_file(path)
            assert time.process_time() - begun < 1.0
            messages = " ".join(problem.message for problem in inspection.problems)
            assert UNEXPECTED not in messages
            assert edf.PERSON not in messages
            outcomes[inspection.verdict == "refused"] += 1
            if inspection.verdict == "refused":
                continue
            with contextlib.suppress(RAxSSError), open_recording(path, inspect=False) as recording:
                assert all(0 < channel.rate <= 1e5 for channel in recording.channels)
                for place in range(len(recording.channels)):
                    for segment in range(len(recording.segments)):
                        samples = recording.read([place], segment=segment)
                        if name[:3] in ("EDF", "BDF"):
                            assert np.isfinite(samples.astype(np.float32)).all()
        file.write_bytes(raw)
    assert min(outcomes[True], outcomes[False]) > 50, outcomes


# Finding


def test_check_finds_it_by_its_suffix(known, example, path):
    found = json.loads(CliRunner().invoke(app, ["check", str(path), "--json"]).stdout)
    assert [(entry["path"], entry["verdict"]) for entry in found] == [(str(path), example.verdict)]
    below = inspect_paths([path.parent])
    assert [entry.path for entry in below] == [str(path if known.searched else path.parent)]
    assert (below[0].verdict == "refused") == (not known.searched)
    assert (path.suffix in searched_suffixes()) == known.searched


def test_messages_about_other_files_list_its_suffixes(known, tmp_path):
    assert {*known.suffixes, *known.companions} <= set(all_suffixes())
    (tmp_path / "a.docx").touch()
    (problem,) = inspect_file(tmp_path / "a.docx").problems
    assert all(suffix in problem.message for suffix in (*known.suffixes, *known.companions))


def test_inputs_and_manifests_find_it_by_its_suffix(known, example, path):
    series = read_inputs([path])
    stem = path.stem
    assert series.names == ([f"{stem}:{name}" for name in example.names] if known.by_channel else [stem])
    assert series[0].n_variates == (1 if known.by_channel else len(example.names))
    manifest = path.parent / "all.csv"
    manifest.write_text(f"path,channel\n{path.name},1\n")
    (line,) = lines_of_inputs([manifest])
    assert header_of(line.path) == path
    assert_allclose(read_inputs([manifest])[0].samples[0], example.samples[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("datatype", ["ieeg", "eeg"])
def test_a_bids_tree_finds_it_where_it_may_occur(known, datatype, tmp_path):
    folder = tmp_path / "sub-01" / datatype
    folder.mkdir(parents=True)
    for suffix in (known.suffixes[0], *known.companions):
        (folder / f"sub-01_task-rest_{datatype}{suffix}").write_bytes(b"x")
    runs = runs_of(open_tree(tmp_path))
    assert [(run.name, run.absent) for run in runs] == (
        [("sub-01_task-rest", ())] if datatype in known.datatypes else []
    )


@pytest.mark.filterwarnings("ignore::raxss.errors.ModelWarning")  # the model is of raxss 0.1
def test_predict_reads_a_format_that_was_registered_from_outside(tmp_path):
    path = raw_format.write_raw(tmp_path)
    model = Path(__file__).parent / "data" / "model_0_1"
    out = tmp_path / "scores.csv"
    result = CliRunner().invoke(app, ["predict", str(model), str(path), "--out", str(out), "--device", "cpu"])
    assert result.exit_code == 0, result.output
    lines = out.read_text().splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == ["night:C3", "night:C4"]


# Registering


def test_a_suffix_belongs_to_one_format():
    with pytest.raises(
        ConfigError, match=r"format 'mine' has the suffix '\.edf', which belongs to format 'EDF'"
    ):
        register_format(replace(raw_format.RAW, name="mine", suffixes=(".edf",)))
    with pytest.raises(ConfigError, match=r"suffix '\.vmrk', which belongs to format 'BrainVision'"):
        register_format(replace(raw_format.RAW, name="mine", suffixes=(".vmrk",)))
    assert "mine" not in FORMATS


@pytest.mark.parametrize("suffixes", [(), ("raw",), (".RAW",), (".",), (".a/b",)])
def test_a_suffix_is_a_dot_and_small_letters(suffixes):
    with pytest.raises(ConfigError, match=r"a dot and small letters or digits are needed, such as '\.edf'"):
        register_format(replace(raw_format.RAW, name="mine", suffixes=suffixes))


def test_a_name_belongs_to_one_format_and_the_same_may_be_registered_again():
    assert register_format(replace(raw_format.RAW)) == raw_format.RAW
    with pytest.raises(ConfigError, match=r"the format name 'EDF' belongs to raxss\.data\.formats\."):
        register_format(replace(FORMATS["NPY"], name="EDF"))


def test_a_suffix_of_two_formats_belongs_to_the_one_whose_header_is_there(tmp_path):
    data = tmp_path / "a.dat"
    assert header_of(data).name == "a.hea"
    (tmp_path / "a.vhdr").touch()
    assert header_of(data).name == "a.vhdr"
    (tmp_path / "a.hea").touch()
    assert header_of(data).name == "a.hea"
    os.remove(tmp_path / "a.hea")
    (tmp_path / "a.HEA").touch()
    assert header_of(data).name == "a.HEA"
