"""An archive predicted recording by recording gives the table of a single run, and nothing is computed twice."""

import json
import os
import shutil
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from raxss import RAxSSClassifier
from raxss.cli import app, main
from raxss.data.files import read_inputs
from raxss.errors import ConfigError, RAxSSError, RAxSSWarning, RecordingError
from raxss.estimator.batch import predict_archive, sources_of
from resealed import reseal
from toys import SMALL, waves

LOCAL = ("--engine", "local", "--workers", "1", "--device", "cpu")


def raxss(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def archive_table(model, inputs, parts):
    return predict_archive(model, inputs, parts, n_workers=1, device="cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("archive") / "model"
    RAxSSClassifier(**SMALL).fit(waves(np.random.default_rng(69421))).save_pretrained(folder)
    return folder


@pytest.fixture
def recordings(tmp_path, rng):
    """Six recordings of three formats in two folders, two of them of the same name."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    paths = []
    for index, wave in enumerate(waves(rng, n_series=6)):
        path = tmp_path / "ab"[index % 2] / f"rec{index // 2}.{('npz', 'npy', 'csv')[index // 2]}"
        if path.suffix == ".npz":
            np.savez(path, samples=wave.samples, rate=10.0)
        elif path.suffix == ".npy":
            np.save(path, wave.samples)
        else:
            np.savetxt(path, wave.samples.T, delimiter=",")
        paths.append(path)
    return paths


@pytest.fixture
def prepare(tmp_path):
    """Writes a manifest and prepares it, unscaled."""

    def run(lines):
        manifest, folder = tmp_path / "m.csv", tmp_path / "prepared"
        manifest.write_text("path,label,group\n" + "".join(f"{line}\n" for line in lines))
        raxss("prepare", manifest, "--out", folder, "--scaling", "none", "--workers", "1")
        return folder

    return run


@pytest.fixture
def serial(model, tmp_path):
    """The bytes of a run without an engine."""

    def run(*inputs, ending="csv"):
        out = tmp_path / f"serial.{ending}"
        raxss("predict", model, *inputs, "--out", out, "--device", "cpu", "--overwrite")
        return out.read_bytes()

    return run


@pytest.fixture
def computed(monkeypatch):
    """Names of the series that the network scored, in this process."""
    scored = []
    score_series = RAxSSClassifier.score_series

    def counting(self, series):
        scored.extend(item.name for item in series)
        return score_series(self, series)

    monkeypatch.setattr(RAxSSClassifier, "score_series", counting)
    return scored


# The same table -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ending", "n_workers"), [("csv", 1), ("parquet", 1), ("csv", 2)])
def test_recordings_one_by_one_give_the_bytes_of_a_single_run(
    model, recordings, serial, tmp_path, ending, n_workers
):
    out = tmp_path / f"p.{ending}"
    command = ("predict", model, *recordings, "--out", out, *LOCAL, "--workers", n_workers)
    assert "6 predictions" in raxss(*command)
    assert out.read_bytes() == serial(*recordings, ending=ending)


def test_lines_of_a_manifest_keep_their_order_labels_and_channels(model, serial, tmp_path, rng):
    for name in "xy":
        np.savez(tmp_path / f"{name}.npz", samples=rng.normal(size=(3, 150)), rate=10.0)
    lines = ["path,label,channel", "x.npz,slow,2", "y.npz,fast,0", "x.npz,,1", "x.npz,slow,0"]
    manifest = tmp_path / "m.csv"
    manifest.write_text("\n".join(lines) + "\n")
    out = tmp_path / "p.csv"
    raxss("predict", model, manifest, "--out", out, *LOCAL)
    assert out.read_bytes() == serial(manifest)
    first_cells = [line.split(",")[0] for line in out.read_text().splitlines()]
    assert first_cells == ["name", "x:2", "y:0", "x:1", "x:0"]
    assert [len(source.lines) for source in sources_of([manifest])] == [1, 1, 2]


def test_a_bids_tree_a_prepared_folder_and_files_together(model, recordings, serial, prepare, tmp_path):
    pytest.importorskip("pybv")
    from make_bids import make_bids

    # a tenth off the 10 Hz of the training series, which is warned about
    truth = make_bids(tmp_path / "tree", n_centres=1, patients_per_centre=1, seconds=8, rate=11)
    # the files come last, as without an engine, wherever they are named
    inputs = (recordings[4], prepare(f"{path},slow,g" for path in recordings[:3]), truth.root)
    out = tmp_path / "p.csv"
    with pytest.warns(RAxSSWarning):
        expected = serial(*inputs)
    with pytest.warns(RAxSSWarning):
        raxss("predict", model, *inputs, "--out", out, *LOCAL)
    assert out.read_bytes() == expected
    assert len(list(sources_of(inputs))) == len({source.name for source in sources_of(inputs)})


def test_the_test_part_of_a_split_is_taken_from_a_prepared_folder_alone(model, serial, prepare, tmp_path):
    lines = []
    unseen = waves(np.random.default_rng(1), n_series=18)  # by the model
    for index, wave in enumerate(unseen):
        np.savez(tmp_path / f"r{index}.npz", samples=wave.samples, rate=10.0)
        lines.append(f"r{index}.npz,{wave.label},g{index // 2}")
    chosen = (prepare(lines), "--split", tmp_path / "s.json")
    raxss("split", chosen[0], "--by", "patient", "--seed", "5", "--out", tmp_path / "s.json")
    out = tmp_path / "p.csv"
    raxss("predict", model, *chosen, "--out", out, *LOCAL)
    assert out.read_bytes() == serial(*chosen)
    named = json.loads((tmp_path / "s.json").read_text())["test"]
    assert len(out.read_text().splitlines()) == 1 + len(named)
    with pytest.raises(ConfigError, match=r"'m\.csv' is none"):
        raxss("predict", model, tmp_path / "m.csv", *chosen[1:], "--out", tmp_path / "q.csv", *LOCAL)


# Nothing twice ------------------------------------------------------------------------------------------------


def test_a_rerun_computes_what_is_missing_and_no_more(model, recordings, serial, computed, tmp_path):
    command = ("predict", model, *recordings, "--out", tmp_path / "p.csv", *LOCAL, "--overwrite")
    raxss("predict", model, *recordings[:4], *command[2 + len(recordings) :])
    assert len(computed) == 4
    raxss(*command)
    assert sorted(computed[4:]) == ["a/rec2", "b/rec2"]
    whole = (tmp_path / "p.csv").read_bytes()
    raxss(*command)
    assert len(computed) == 6
    assert (tmp_path / "p.csv").read_bytes() == whole == serial(*recordings)


def test_what_changed_is_computed_again_and_what_was_touched_is_not(model, recordings, computed, tmp_path):
    command = ("predict", model, *recordings, "--out", tmp_path / "p.csv", *LOCAL, "--overwrite")
    raxss(*command)
    del computed[:]
    os.utime(recordings[0], (1, 1))
    before, stamp = np.load(recordings[2]), recordings[2].stat()
    np.save(recordings[2], before[:, ::-1])  # as long as it was, and as old
    os.utime(recordings[2], ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    raxss(*command)
    assert computed == ["a/rec1"]
    raxss(*command, "--bank", "local", "--bank-size", "4")  # other settings, other numbers
    assert len(computed) == 7


def test_another_model_has_parts_of_its_own(model, recordings, computed, tmp_path):
    other = shutil.copytree(model, tmp_path / "other")
    for folder in (model, other):
        archive_table(folder, recordings[:2], tmp_path / "parts")
    assert len(computed) == 2  # a copy is the same model
    reseal(other, lambda facts: facts.update(temperature=7.0))
    archive_table(other, recordings[:2], tmp_path / "parts")
    assert len(computed) == 4


@pytest.mark.parametrize(
    "damage", [lambda text: text[:-20], lambda text: text.replace("0.", "0.1", 1), lambda _: ""]
)
def test_a_damaged_part_is_computed_again(model, recordings, computed, tmp_path, damage):
    parts = tmp_path / "parts"
    first, _ = archive_table(model, recordings, parts)
    place = sorted(parts.iterdir())[0]
    text = place.read_text()
    assert damage(text) != text
    place.write_text(damage(text))
    again, _ = archive_table(model, recordings, parts)
    assert len(computed) == 7
    assert again.equals(first)
    assert place.read_text() == text


# What fails ---------------------------------------------------------------------------------------------------


def test_a_recording_that_fails_is_told_and_the_others_are_written(
    model, recordings, serial, tmp_path, monkeypatch, capsys
):
    good = recordings[3].read_bytes()
    recordings[3].write_bytes(good[:40])
    arguments = ["predict", model, *recordings, "--out", tmp_path / "p.csv", *LOCAL]
    monkeypatch.setattr(sys, "argv", ["raxss", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    errors = capsys.readouterr().err
    assert "recording 'b/rec1' was not predicted: RecordingError: " in errors
    assert "1 recording could not be predicted" in str(ended.value)
    assert "'p.csv' has the 5 rows of the others" in str(ended.value)
    written = (tmp_path / "p.csv").read_text().splitlines()
    recordings[3].write_bytes(good)
    raxss(*arguments, "--overwrite")
    assert (tmp_path / "p.csv").read_bytes() == serial(*recordings)
    whole = (tmp_path / "p.csv").read_text().splitlines()
    assert written == [line for line in whole if not line.startswith("b/rec1,")]
    assert len(written) == 6


def test_no_table_is_written_where_nothing_could_be_predicted(model, tmp_path):
    (tmp_path / "x.npz").write_bytes(b"no archive")
    with pytest.raises(RAxSSError, match=r"'p\.csv' was not written"):
        raxss("predict", model, tmp_path / "x.npz", "--out", tmp_path / "p.csv", *LOCAL)
    assert not (tmp_path / "p.csv").exists()


def test_a_series_that_is_given_twice_far_apart_is_refused(model, tmp_path, rng):
    pytest.importorskip("edfio")
    from edfio import Edf, EdfSignal

    signals = [EdfSignal(rng.normal(size=400), 10.0, label=name) for name in ("C3", "C4")]
    Edf(signals).write(tmp_path / "x.edf")
    np.save(tmp_path / "y.npy", rng.normal(size=150))
    (tmp_path / "m.csv").write_text("path,channel\nx.edf,C3\ny.npy,\nx.edf,0\n")
    with pytest.raises(RecordingError, match="'x:C3' is given twice"):
        read_inputs([tmp_path / "m.csv"])
    with pytest.raises(RecordingError, match="'x:C3' is given twice"):
        raxss("predict", model, tmp_path / "m.csv", "--out", tmp_path / "p.csv", *LOCAL)


def test_warnings_of_workers_are_told_here_also_when_nothing_was_computed(model, tmp_path, rng):
    np.savez(tmp_path / "x.npz", samples=rng.normal(size=150), rate=10.5)
    command = ("predict", model, tmp_path / "x.npz", "--out", tmp_path / "p.csv", "--overwrite")
    for options in (("--device", "cpu"), LOCAL, LOCAL):
        with pytest.warns(RAxSSWarning, match=r"'x' has a rate of 10\.5 Hz"):
            raxss(*command, *options)


def test_a_prepared_file_that_was_changed_is_refused(model, recordings, prepare, tmp_path):
    folder = prepare(f"{path},slow,g" for path in recordings[:2])
    file = sorted((folder / "samples").iterdir())[0]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    table, failures = archive_table(model, [folder], tmp_path / "parts")
    assert len(table) == 1
    assert [str(failure) for failure in failures.values()] == [
        f"RecordingError: the prepared folder 'prepared' is damaged: 'samples/{file.name}' was changed after it "
        "was written. Remove it, and prepare it again."
    ]


def test_options_of_engines_need_an_engine(model, recordings, tmp_path):
    result = CliRunner().invoke(
        app, ["predict", str(model), str(recordings[0]), "--out", str(tmp_path / "p.csv"), "--workers", "2"]
    )
    assert result.exit_code == 2
    assert "--engine" in result.output
