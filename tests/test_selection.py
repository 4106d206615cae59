"""A file that is named by itself is read by the sidecars that its tree is read by."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from make_bids import BAD, CHANNELS, OTHER_TYPE, make_bids
from raxss.data.bids import plan_bids
from raxss.data.files import read_inputs, read_recording, read_series
from raxss.data.names import canonical
from raxss.errors import RAxSSWarning, RecordingError

GOOD = [name for name in CHANNELS if name != BAD]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A patient of NIH, whose EDF channels are called POL AD1: one BrainVision and one EDF run."""
    return make_bids(tmp_path_factory.mktemp("made") / "tree", n_centres=2, patients_per_centre=1, seconds=4)


@pytest.fixture
def root(made, tmp_path):
    return Path(shutil.copytree(made.root, tmp_path / "tree"))


def signals(root):
    return [path for path in sorted(root.rglob("*_ieeg.*")) if path.suffix in (".vhdr", ".edf")]


def channels_of(series):
    return [canonical(item.origin["channel"]) for item in series]


def test_a_single_file_has_the_channels_that_its_tree_has(root):
    plan = plan_bids(root, only_labelled=False)
    for path in signals(root):
        run = path.stem.removesuffix("_ieeg")
        of_tree = [item.origin["channel"] for recording, item in plan if recording.name == run]
        assert channels_of(read_recording(path)) == channels_of(read_inputs([path])) == of_tree == GOOD


@pytest.mark.parametrize("description", [True, False])
def test_sidecars_are_inherited_from_above_as_in_a_tree(root, description):
    if not description:
        (root / "dataset_description.json").unlink()
    path = signals(root)[1]
    own = path.with_name(path.name.replace("_ieeg.edf", "_channels.tsv"))
    table = own.read_text().replace("AD1\tECOG", "AD1\tTRIG")
    own.unlink()
    path.with_suffix(".json").unlink()  # which counts the types
    (root / "task-ictal_channels.tsv").write_text(table)
    assert channels_of(read_recording(path)) == [name for name in GOOD if name != "AD1"]


@pytest.mark.parametrize("kind", ["TRIG", "ECG", "EKG", "EOG", "EMG", "MISC", "REF", "OTHER", "n/a"])
def test_channels_of_other_types_are_left_out(root, kind):
    path = signals(root)[0]
    table = path.with_name(path.name.replace("_ieeg.vhdr", "_channels.tsv"))
    table.write_text(table.read_text().replace("G1\tECOG", f"G1\t{kind}"))
    path.with_suffix(".json").unlink()  # which counts the types
    assert channels_of(read_recording(path)) == [name for name in GOOD if name != "G1"]


@pytest.mark.parametrize(("signal", "table"), [
    ("sub-9_task-x_ieeg.edf", "sub-9_task-x_channels.tsv"), ("sub-9_task-x_ieeg.edf", "sub-9_channels.tsv"),
    ("night_ieeg.edf", "night_channels.tsv"), ("night.edf", "night_channels.tsv"),
])  # fmt: skip
def test_a_file_outside_of_any_tree_is_read_by_the_table_beside_it(root, tmp_path, signal, table):
    path = signals(root)[1]
    place = tmp_path / "flat"
    place.mkdir()
    shutil.copy(path, place / signal)
    shutil.copy(path.with_name(path.name.replace("_ieeg.edf", "_channels.tsv")), place / table)
    assert channels_of(read_recording(place / signal)) == GOOD


def test_without_a_table_names_that_are_no_electrodes_are_left_out_and_named(root, tmp_path):
    shutil.copy(signals(root)[1], tmp_path / "night.edf")
    with pytest.warns(
        RAxSSWarning, match=f"'night.edf' has no channels.tsv, and 1 of 10 channels.*'{OTHER_TYPE}'"
    ):
        assert channels_of(read_recording(tmp_path / "night.edf")) == list(CHANNELS)
    with pytest.warns(RAxSSWarning, match="by their names no electrodes"):
        assert channels_of(read_inputs([tmp_path / "night.edf"])) == list(CHANNELS)


def test_a_recording_of_nothing_but_ecg_is_read(tmp_path):
    from edfio import Edf, EdfSignal

    samples = np.sin(np.arange(1000.0))
    Edf([EdfSignal(samples, 250, label=name) for name in ("ECG I", "ECG II")]).write(tmp_path / "heart.edf")
    assert read_recording(tmp_path / "heart.edf").names == ["heart:ECG I", "heart:ECG II"]


def test_channels_that_are_named_are_read_whatever_the_table_says(root):
    path = signals(root)[0]
    assert read_recording(path, channels=[OTHER_TYPE, BAD]).names[0].endswith(f":{OTHER_TYPE}")
    assert read_series(path, channel=OTHER_TYPE).n_samples
    assert len(read_inputs([path], channel=OTHER_TYPE)) == 1


def test_a_file_without_any_electrode_says_why(root):
    path = signals(root)[0]
    table = path.with_name(path.name.replace("_ieeg.vhdr", "_channels.tsv"))
    table.write_text(table.read_text().replace("good", "bad"))
    with pytest.raises(RecordingError, match="all of its ECOG or SEEG channels are bad"):
        read_recording(path)


def test_channels_that_the_table_lacks_are_left_out_and_named(root):
    path = signals(root)[0]
    table = path.with_name(path.name.replace("_ieeg.vhdr", "_channels.tsv"))
    table.write_text(table.read_text().replace("ATT2\t", "ATT9\t"))
    with pytest.warns(RAxSSWarning, match="lacks channels of its channels.tsv: 'ATT9'.*left out: 'ATT2'"):
        assert "ATT2" not in channels_of(read_recording(path))
