"""Plans of manifests and of recordings beside a label table, and ``raxss prepare``."""

import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from raxss.cli.prepare import plan_source, preparation_from
from raxss.data.files import read_manifest
from raxss.data.manifests import plan_labelled, plan_manifest
from raxss.data.plan import read_plan
from raxss.data.prepare.folder import read_prepared
from raxss.data.prepare.preparing import prepare
from raxss.data.prepare.preprocessing import Preparation
from raxss.errors import ConfigError, DataError, LabelError, RAxSSWarning, RecordingError
from test_prepared import content_of, raxss, write_recordings


@pytest.fixture
def manifest(tmp_path):
    return write_recordings(tmp_path / "data", 3)


def write_arrays(folder, *names, channels=("A1",)):
    """Three seconds of noise for each name; a manifest or label table beside them says what they are."""
    rng = np.random.default_rng(69421)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        samples = rng.normal(size=(len(channels), 90))
        np.savez(folder / name, samples=samples, rate=30.0, channels=list(channels))
    return folder


def test_a_manifest_is_planned_as_it_is_read(tmp_path, rng):
    write_arrays(tmp_path, "a.npz", "b.npz", channels=("C3", "C4"))
    np.save(tmp_path / "c.npy", rng.normal(size=(1, 90)))
    rows = ["a.npz,x,p1,north,C4,", "b.npz,y,p2,south,,30", "c.npy,x,p3,south,0,12.5"]
    (tmp_path / "m.csv").write_text("\n".join(["path,label,patient,centre,channel,rate", *rows, ""]))
    plan = plan_manifest(tmp_path / "m.csv")
    for planned, read in zip(read_plan(plan), read_manifest(tmp_path / "m.csv"), strict=True):
        for field in ("name", "label", "group", "rate", "origin", "start_seconds"):
            assert getattr(planned, field) == getattr(read, field), field
        assert_array_equal(planned.samples, read.samples)
    assert plan.group_by == "patient"
    assert [file.name for file in plan.recordings[2].files] == ["c.npy", "m.csv"]


def test_inputs_of_one_name_in_two_places_are_both_hashed(tmp_path):
    write_arrays(tmp_path, "here/a.npz", "there/a.npz")
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "m.csv").write_text("path,label\n../here/a.npz,x\n../there/a.npz,y\n")
    folder = prepare(plan_manifest(tmp_path / "lists" / "m.csv"), tmp_path / "out", Preparation())
    inputs = read_prepared(folder).facts["inputs"]
    expected = {content_of(tmp_path / place)["a.npz"] for place in ("here", "there")}
    assert {digest for name, digest in inputs.items() if name != "m.csv"} == expected
    assert str(tmp_path) not in (folder / "prepared.json").read_text()


@pytest.mark.parametrize(
    ("rows", "level"),
    [
        ("path,label,group,channel\na.npz,x,p1,0\n", "patient"),
        ("path,label,group,centre,channel\na.npz,x,north,north,0\n", "centre"),
        ("path,label,channel\na.npz,x,0\n", "recording"),
    ],
)
def test_the_group_of_a_manifest_is_a_level_of_origin(tmp_path, rows, level):
    write_arrays(tmp_path, "a.npz")
    (tmp_path / "m.csv").write_text(rows)
    plan = plan_manifest(tmp_path / "m.csv")
    assert plan.group_by == level
    assert level in next(iter(plan))[1].origin


def test_a_group_that_contradicts_the_patient_is_refused(tmp_path):
    write_arrays(tmp_path, "a.npz")
    (tmp_path / "m.csv").write_text("path,label,group,patient\na.npz,x,g1,p1\n")
    with pytest.raises(RecordingError, match=r"'m.csv' has the columns 'group' and 'patient', which differ"):
        plan_manifest(tmp_path / "m.csv")


def test_recordings_beside_a_label_table_are_planned_by_channel(tmp_path):
    write_arrays(tmp_path / "data", "one.npz", "deep/two.npz", channels=("A1", "A2", "B1"))
    (tmp_path / "labels.csv").write_text(
        "recording,channel,label\none,A1,soz\none,B1,other\ntwo,A2,soz\ntwo,Z9,soz\nfour,A1,soz\n"
    )
    plan = plan_labelled(tmp_path / "data", tmp_path / "labels.csv")
    prepared = prepare(plan, tmp_path / "out", Preparation())
    assert read_prepared(prepared).names == ["deep/two:A2", "one:A1", "one:B1"]
    assert list(read_prepared(prepared).groups) == ["deep/two", "one", "one"]
    unmatched = json.loads((prepared / "problems.json").read_text())["unmatched"]
    assert "channel 'Z9' of the label table is not in recording 'deep/two'." in unmatched
    assert "recording 'four' of the label table was not found." in unmatched
    item = plan_labelled(tmp_path / "data" / "one.npz", tmp_path / "labels.csv")
    assert [series.name for _, series in item if series.label] == ["one:A1", "one:B1"]


def test_a_label_table_labels_no_recording_that_it_does_not_name(tmp_path):
    write_arrays(tmp_path / "data", "night.npz", "night_2.npz", "p1/rec.npz", "p2/rec.npz")
    table = tmp_path / "labels.csv"
    table.write_text("recording,channel,label\nnight,A1,soz\np1/rec.npz,A1,soz\n")
    plan = plan_labelled(tmp_path / "data", table)
    assert [item.name for _, item in plan if item.label] == ["night:A1", "p1/rec:A1"]
    table.write_text("recording,channel,label\nrec,A1,soz\n")
    with pytest.raises(LabelError, match=r"'rec', which could be 'data/p1/rec', 'data/p2/rec'"):
        plan_labelled(tmp_path / "data", table)


def test_patient_and_centre_of_a_label_table_reach_the_series(tmp_path):
    write_arrays(tmp_path / "data", "p1/a.npz", "p2/a.npz", channels=("G1", "AD1"))
    lines = [
        f"{patient}/a.npz,{channel},{label},{patient},{centre}"
        for patient, centre in (("p1", "NIH"), ("p2", "JHH"))
        for channel, label in (("G1", "other"), ("AD1", "soz"))
    ]
    labels = tmp_path / "labels.csv"
    labels.write_text("\n".join(["recording,channel,label,patient,centre", *lines]) + "\n")
    plan = plan_labelled(tmp_path / "data", labels)
    assert plan.group_by == "patient"
    assert {
        (item.origin["patient"], item.origin["centre"], item.origin["electrode"]) for _, item in plan
    } == {
        ("p1", "NIH", "p1/G"),
        ("p1", "NIH", "p1/AD"),
        ("p2", "JHH", "p2/G"),
        ("p2", "JHH", "p2/AD"),
    }
    labels.write_text(labels.read_text() + "p1/a.npz,G2,other,p2,NIH\n")
    with pytest.raises(LabelError, match=r"two values of 'patient', in line 6"):
        plan_labelled(tmp_path / "data", labels)


def test_what_the_label_table_does_not_name_is_reported(tmp_path):
    data = write_arrays(tmp_path / "data", "good.npz", "extra.npz", channels=("G1",))
    (data / "broken.edf").write_bytes(b"0" * 100)
    (data / "torn.edf").write_bytes(b"0" * 100)
    (data / "analysis.mat").write_bytes(b"not ours")
    labels = tmp_path / "labels.csv"
    labels.write_text("recording,channel,label\ngood,G1,soz\nbroken,G1,soz\n")
    plan = plan_labelled(data, labels)
    assert [item.name for _, item in plan] == ["good:G1"]
    assert set(plan.unmatched) == {
        "recording 'extra' is not in the label table.",
        "recording 'torn' is not in the label table.",
    }
    (refused,) = plan.refused
    assert refused.startswith("recording 'broken' is left out: ")
    assert "[not-this-format]" in refused
    with pytest.warns(RAxSSWarning, match=r"1 recordings of 'data' cannot be read:\n  recording 'broken'"):
        prepare(plan, tmp_path / "out", Preparation())
    assert json.loads((tmp_path / "out" / "problems.json").read_text())["refused"] == [refused]
    with pytest.raises(RecordingError, match="recording 'broken' is left out"):
        prepare(plan, tmp_path / "strict", Preparation(), strict=True)


def test_the_segments_of_a_wfdb_record_are_no_recordings_of_their_own(tmp_path, rng):
    data = tmp_path / "data"
    data.mkdir()
    for name in ("s1", "s2"):
        rng.integers(-500, 500, size=300).astype("<i2").tofile(data / f"{name}.dat")
        (data / f"{name}.hea").write_text(f"{name} 1 100 300\n{name}.dat 16 200/mV 16 0 0 0 0 II\n")
    (data / "rec.hea").write_text("rec/3 1 100 700\ns1 300\n~ 100\ns2 300\n")
    labels = tmp_path / "labels.csv"
    labels.write_text("channel,label\nII,ill\n")
    plan = plan_labelled(data, labels)
    assert [item.name for _, item in plan] == ["rec:II", "rec:II@4s"]


# The command --------------------------------------------------------------------------------------------------


def test_the_command_prints_what_it_made_and_the_next_step(manifest, tmp_path):
    run = raxss("prepare", manifest, "--pool", "24/12", "--out", tmp_path / "out")
    assert run.returncode == 0, run.stderr
    assert "6 series of 3 recordings; labels: ill 1, well 5" in run.stdout
    assert "preparation: pool 24/12, z-score; groups: patient" in run.stdout
    assert f"next: raxss fit {tmp_path / 'out'}" in run.stdout
    assert "series with gaps 1" in run.stderr
    assert str(manifest.parent) not in run.stderr


def test_classes_choose_among_labels(manifest):
    assert {item.label for _, item in plan_source(str(manifest), classes="ill")} == {"ill"}
    with pytest.raises(LabelError, match=r"no series of 'all.csv' has the label 'il'; did you mean 'ill'"):
        plan_source(str(manifest), classes="il")


def test_a_named_dataset_is_planned_by_its_name_or_its_folder(shared_data):
    by_name = plan_source("bonn", root=shared_data, classes="F,N")
    by_folder = plan_source(str(shared_data / "bonn"), classes="F,N")
    assert len(by_name) == len(by_folder) == 200
    with pytest.raises(ConfigError, match="'bonn' takes no option 'crop'"):
        plan_source("bonn", root=shared_data, crop="-10,20")


def test_sources_without_labels_or_with_a_wrong_crop_are_refused(manifest):
    for source, options, error, message in (
        (manifest.parent, {}, RecordingError, r"folder 'data' is neither a BIDS tree .* --labels TABLE"),
        (manifest.parent / "r0.npz", {}, RecordingError, r"recording 'r0.npz' needs labels"),
        (manifest, {"crop": "-10,20"}, ConfigError, "--crop counts from the seizure's onset"),
        (manifest, {"crop": "-10"}, ConfigError, "--crop is '-10'"),
        ("bon", {}, DataError, r"'bon'.*bonn"),
    ):
        with pytest.raises(error, match=message):
            plan_source(str(source), **options)


@pytest.mark.parametrize("pool", ["24", "a/b", "24/", "24/-1"])
def test_a_pooling_that_is_none_is_refused(pool):
    with pytest.raises(ConfigError, match=f"--pool is '{pool}'"):
        preparation_from(pool, None, "none")


# Real recordings ----------------------------------------------------------------------------------------------


def test_the_sidecars_of_ds003029_alone_give_one_list_of_what_is_absent(shared_data, tmp_path):
    run = raxss("prepare", shared_data / "ds003029", "--out", tmp_path / "out")
    assert run.returncode == 1
    assert "there is no signal to prepare." in run.stderr
    assert "files of 'ds003029' are absent:\n  sub-jh101/" in run.stderr
    assert "raxss datasets download ds003029" in run.stderr
    assert not list(tmp_path.iterdir())
