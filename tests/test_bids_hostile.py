"""BIDS trees that are damaged or hostile: what is left out is listed, and nothing outside of the root is read."""

# ruff: noqa: F401, F811 (fixtures of test_bids.py)

import os
import shutil
import sys

import pytest

from raxss.data.bids import bids_table, plan_bids
from raxss.data.bids_tree import open_tree, runs_of
from raxss.errors import LabelError, MissingExtraError, RecordingError
from test_bids import FIRST, RUN, SECOND, folder_of, has, one_patient, runs_in, tree


def test_a_damaged_recording_is_listed_and_the_others_are_planned(tree):
    (folder_of(tree) / f"{SECOND}_ieeg.edf").write_bytes(b"0       " + b"x" * 500)
    plan = plan_bids(tree)
    assert runs_in(plan) == {FIRST}
    (refused,) = plan.refused
    assert refused.startswith(f"recording {SECOND} is left out: ")
    assert str(tree.parent) not in refused


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"name\ttype\nG1\n", "line 2"), (b"type\nECOG\n", "no column 'name'"), (b"\xff", "UTF-8")],
)
def test_a_damaged_channels_tsv_leaves_out_its_run(tree, content, message):
    (folder_of(tree) / f"{FIRST}_channels.tsv").write_bytes(content)
    plan = plan_bids(tree)
    assert runs_in(plan) == {SECOND}
    assert has(plan.refused, FIRST, message)
    with pytest.raises(RecordingError, match=message):
        bids_table(tree)


@pytest.fixture
def outside(tmp_path):
    """A folder beside the tree with a secret in every file; the mark must never come out."""
    folder = tmp_path / "outside"
    (folder / "ses-presurgery" / "ieeg").mkdir(parents=True)
    return folder


def test_folders_that_are_links_out_of_the_root_are_not_entered(tree, outside):
    name = "sub-out_ses-presurgery_task-ictal_run-01"
    (outside / "ses-presurgery" / "ieeg" / f"{name}_channels.tsv").write_text("name\ttype\nSECRET1\tECOG\n")
    (tree / "sub-out").symlink_to(outside)
    (tree / "sub-in" / "ses-1").mkdir(parents=True)
    (tree / "sub-in" / "ses-1" / "ieeg").symlink_to(outside / "ses-presurgery" / "ieeg")
    plan = plan_bids(tree, only_labelled=False)
    assert "folder 'sub-out' was not read: a link leads out of the dataset." in plan.unmatched
    assert "folder 'sub-in/ses-1/ieeg' was not read: a link leads out of the dataset." in plan.unmatched
    assert "SECRET" not in repr(plan) + bids_table(tree).to_csv()


@pytest.mark.parametrize("suffix", ["channels.tsv", "ieeg.edf", "events.tsv"])
def test_a_file_that_is_a_link_out_of_the_root_leaves_out_its_run(tree, outside, suffix):
    path = folder_of(tree) / f"{SECOND}_{suffix}"
    shutil.move(path, outside / path.name)
    path.symlink_to(outside / path.name)
    plan = plan_bids(tree, crop=(-1, 1))
    assert runs_in(plan) == {FIRST}
    assert has(plan.refused, SECOND, "[outside]")


@pytest.mark.parametrize("name", ["participants.tsv", "sourcedata"])
def test_tables_of_the_root_that_are_links_out_of_it_are_refused(tree, outside, name):
    shutil.move(tree / name, outside / name)
    (tree / name).symlink_to(outside / name)
    with pytest.raises(RecordingError, match=r"\[outside\]"):
        plan_bids(tree)


@pytest.mark.parametrize(
    "name",
    [
        "sub-jh101_bogus-1_ieeg.edf",
        "sub-other_run-01_ieeg.edf",
        "sub-jh101_run-1_run-2_ieeg.edf",
        "sub-jh101_ieeg_ieeg.edf",
    ],
)
def test_files_whose_names_break_the_rules_are_listed(tree, name):
    shutil.copy(folder_of(tree) / f"{SECOND}_ieeg.edf", folder_of(tree) / name)
    plan = plan_bids(tree)
    assert len(plan) == 16
    assert has(plan.unmatched, f"file '{name}' was not read")


def test_subjects_that_the_sheet_cannot_distinguish_are_refused_by_name(tree):
    (tree / "own.csv").write_text("subject,soz_contacts\njh101,AD1\nJH_0101,AD2\n")
    with pytest.raises(LabelError, match="'jh101', 'JH_0101' of the sheet and subjects 'jh101'"):
        plan_bids(tree, labels=tree / "own.csv")


def test_a_format_that_is_not_read_and_a_description_that_is_no_json_are_reported(tree):
    (folder_of(tree) / f"{RUN.format('jh101', 3)}_ieeg.nwb").write_bytes(b"x")
    (tree / "dataset_description.json").write_text("{")
    plan = plan_bids(tree)
    assert len(plan) == 16
    assert has(plan.unmatched, f"{RUN.format('jh101', 3)} is left out: raxss does not read .nwb files.")
    assert has(plan.unmatched, "'dataset_description.json' is not JSON")


def test_a_folder_that_is_no_bids_root_is_refused(tmp_path):
    with pytest.raises(RecordingError, match="'nowhere' is not a folder"):
        plan_bids(tmp_path / "nowhere")
    with pytest.raises(RecordingError, match=f"'{tmp_path.name}' has no folder 'sub-"):
        plan_bids(tmp_path)
    (tmp_path / "sub-1").mkdir()
    assert len(plan_bids(tmp_path)) == 0


def test_without_the_extra_the_error_says_how_to_install_it(tree, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(MissingExtraError, match=r"openpyxl.*pip install 'raxss\[bids\]'"):
        plan_bids(tree)


def test_scalp_recordings_are_read_by_their_type(tree):
    folder = folder_of(tree)
    scalp = folder.parent / "eeg"
    scalp.mkdir()
    for suffix in ("channels.tsv", "events.tsv"):
        shutil.move(folder / f"{SECOND}_{suffix}", scalp)
    shutil.move(folder / f"{SECOND}_ieeg.edf", scalp / f"{SECOND}_eeg.edf")
    for file in [*tree.rglob("*_scans.tsv"), folder / f"{SECOND}_ieeg.json"]:
        file.unlink()
    table = scalp / f"{SECOND}_channels.tsv"
    table.write_text(table.read_text().replace("\tECOG\t", "\tEEG\t"))
    assert len(plan_bids(tree)) == 16
    assert {run.name for run in runs_of(open_tree(tree)) if run.datatype == "eeg"} == {SECOND}


def test_channels_that_share_a_name_are_distinguished_by_position(tree):
    path = folder_of(tree) / f"{FIRST}_ieeg.vhdr"
    path.write_text(path.read_text().replace("=ATT2,", "=ATT1,"))
    (folder_of(tree) / f"{FIRST}_channels.tsv").unlink()
    names = [item.name for recording, item in plan_bids(tree) if recording.name == FIRST]
    assert len(set(names)) == len(names)
    assert names[:3] == [f"{FIRST}:{name}" for name in ("ATT1@0", "ATT1@1", "ATT3")]


def test_tables_that_were_not_fetched_or_point_elsewhere_or_steer_a_terminal_do_no_harm(tree):
    scans = "filename\nieeg/../../../x_ieeg.edf\n/etc/x_ieeg.edf\nieeg/..\\x_ieeg.edf\neeg/x_eeg.edf\n"
    next(tree.rglob("*_scans.tsv")).write_text(scans)
    path = folder_of(tree) / f"{SECOND}_channels.tsv"
    path.write_text(path.read_text().replace("ATT2\t", "ATT2\x1b[31m\t"))
    assert len(runs_of(open_tree(tree))) == 2
    plan = plan_bids(tree)
    assert plan.absent == ()
    remarks = " ".join(plan.unmatched)
    assert "ATT2[31m" in remarks
    assert "x_ieeg" not in remarks
    assert remarks.isprintable()
    sheet = tree / "sourcedata" / "clinical_data_summary.xlsx"
    sheet.write_text("/annex/objects/MD5E-s30699--7a10f682.xlsx\n")
    plan = plan_bids(tree)
    assert (plan.absent, len(plan)) == (("sourcedata/clinical_data_summary.xlsx",), 0)


def test_subjects_of_unknown_centre_are_reported(tree):
    (tree / "participants.tsv").write_text("participant_id\tsite\nsub-zz9\tNIH\n")
    plan = plan_bids(tree)
    assert "subjects without a row in participants.tsv, of unknown centre: jh101." in plan.unmatched
    # the clinical sheet knows the centre as well
    assert {item.origin["centre"] for _, item in plan} == {"JHH"}
    (tree / "participants.tsv").write_text("participant_id\tsite\nsub-jh101\tNIH\nsub-jh101\tJHH\n")
    with pytest.raises(RecordingError, match=r"'participants.tsv' has a second, different row .* line 3"):
        plan_bids(tree)


def test_a_label_file_that_is_a_pipe_is_not_waited_for(tree):
    for name in ("pipe.csv", "pipe.xlsx"):
        os.mkfifo(tree / name)
        with pytest.raises(RecordingError, match=f"'{name}' is not a regular file"):
            plan_bids(tree, labels=tree / name)
