"""From a BIDS tree to labelled series: nothing wrong attached, nothing dropped in silence, nothing read outside."""

import pickle
import shutil
from collections import Counter
from pathlib import Path

import edfio
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from corpus import edf
from make_bids import BAD, CHANNELS, OTHER_TYPE, UNMATCHED, make_bids
from raxss.data.bids import bids_table, plan_bids, read_bids
from raxss.data.bids_tree import open_tree, runs_of
from raxss.data.plan import read_plan
from raxss.errors import ConfigError, RAxSSWarning, RecordingError

RUN = "sub-{}_ses-presurgery_task-ictal_acq-ecog_run-0{}"
FIRST, SECOND = RUN.format("jh101", 1), RUN.format("jh101", 2)
BASE = "sub-jh101/ses-presurgery/ieeg"


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    """Four centres, two patients each, one run as BrainVision and one as EDF."""
    return make_bids(tmp_path_factory.mktemp("bids") / "tree", seconds=8)


@pytest.fixture(scope="module")
def one_patient(tmp_path_factory):
    """jh101 alone, whose contacts are AD1-3; copied by each test that spoils it."""
    return make_bids(
        tmp_path_factory.mktemp("one") / "tree", n_centres=1, patients_per_centre=1, runs=2, seconds=6
    )


@pytest.fixture
def tree(one_patient, tmp_path):
    return Path(shutil.copytree(one_patient.root, tmp_path / "tree"))


def folder_of(root: Path) -> Path:
    return root / BASE


def labels_of(plan):
    return {item.name: item.label for _, item in plan}


def runs_in(plan):
    return {recording.name for recording, _ in plan}


def has(sentences, *texts):
    """Whether one of the sentences has all these texts."""
    return any(all(text in sentence for text in texts) for sentence in sentences)


def sheet_of(tree: Path, cell: str) -> Path:
    (tree / "own.csv").write_text(f'subject,soz_contacts\njh101,"{cell}"\n')
    return tree / "own.csv"


# --- real trees


def test_pt01_has_its_ten_soz_and_74_other_channels_with_the_samples_of_the_file(shared_data):
    root = shared_data / "ds003029-pt01"
    series = read_bids(root, labels=root / "soz.tsv")
    assert Counter(series.labels) == {"soz": 10, "other": 74}
    assert {item.origin["channel"] for item in series if item.label == "soz"} == {
        "ATT1", "ATT2", "AD1", "AD2", "AD3", "AD4", "PD1", "PD2", "PD3", "PD4"
    }  # fmt: skip
    direct = edfio.read_edf(next(root.rglob("*.edf")))
    for name in ("AD2", "G1", "PD4"):
        item = next(item for item in series if item.origin["channel"] == name)
        signal = next(signal for signal in direct.signals if signal.label == f"POL {name}")
        assert signal.physical_dimension == "uV"
        assert item.rate == 1000.0
        assert_allclose(item.samples[0], signal.data, rtol=1e-6)
    assert item.name == "sub-pt01_ses-presurgery_task-monitor_acq-ecog_run-01:PD4"
    assert item.origin == {
        "centre": "NIH",
        "patient": "pt01",
        "recording": "sub-pt01_ses-presurgery_task-monitor_acq-ecog_run-01",
        "electrode": "pt01/PD",
        "channel": "PD4",
    }
    assert item.group == "pt01"


def test_pt01_is_left_out_of_a_crop_because_no_event_marks_an_onset(shared_data):
    root = shared_data / "ds003029-pt01"
    plan = plan_bids(root, labels=root / "soz.tsv", crop=(-1, 2))
    assert len(plan) == 0
    assert has(plan.unmatched, "run-01 is left out, because a crop")


def test_the_sidecars_of_ds003029_tell_all_that_is_missing(shared_data):
    root = shared_data / "ds003029"
    runs = runs_of(open_tree(root))
    assert len(runs) == 106
    assert len({run.patient for run in runs}) == 35
    plan = plan_bids(root)
    manifest = pd.read_csv(root / "annex_manifest.tsv", sep="\t")
    assert sorted(plan.absent) == sorted(manifest["path"])  # 3 files a run, and the clinical sheet
    assert plan.where_to_get == "raxss datasets download ds003029 --root FOLDER"
    assert len(plan) == 0
    assert has(plan.unmatched, "no SOZ labels were found")


def test_subjects_that_only_the_sheet_or_the_tree_has_are_named(shared_data, tmp_path):
    sheet = tmp_path / "sheet.csv"
    sheet.write_text('dataset_id,soz_contacts\npt1,"ATT1-2, AD1-4, PD"\njh106,n/a\nla01,A1\n')
    remarks = " ".join(plan_bids(shared_data / "ds003029", labels=sheet).unmatched)
    assert "without a subject in the tree: la01." in remarks
    assert "without a row" in remarks
    assert "pt17" in remarks


def test_the_clip_of_ds003498_has_fifty_channels_and_no_labels(shared_data):
    root = shared_data / "ds003498-clip"
    assert len(plan_bids(root)) == 0
    series = read_bids(root, only_labelled=False)
    assert len(series) == 50
    assert {(item.rate, item.n_samples, item.label) for item in series} == {(2000.0, 10000, None)}


# --- the generated tree, of which everything is known


def test_every_good_channel_of_every_annotated_patient_has_its_label(truth):
    plan = plan_bids(truth.root)
    assert labels_of(plan) == truth.labels
    assert not plan.absent
    assert plan.group_by == "patient"
    assert {(entry.origin["patient"], entry.origin["centre"]) for _, entry in plan} == {
        item for item in truth.centres.items() if item[0] != truth.without_soz
    }


def test_samples_of_both_formats_are_those_that_were_written(truth):
    with pytest.warns(RAxSSWarning, match=f"contact {UNMATCHED} has no certain channel"):
        series = read_bids(truth.root)
    assert len(series) == len(truth.labels)
    for item in series:
        written = truth.samples[item.origin["recording"]][CHANNELS.index(item.origin["channel"])]
        assert item.rate == truth.rate
        assert_allclose(item.samples[0], written, atol=0.01)


def test_what_did_not_match_is_named(truth):
    remarks = plan_bids(truth.root).unmatched
    patient, contact = truth.unmatched_contact
    assert f"patient {patient}: SOZ contact {contact} has no certain channel in 2 of 2 runs." in remarks
    assert f"patients without SOZ annotation, left out: {truth.without_soz}." in remarks
    assert "patient pt02: SOZ shaft AD is given without contacts; taken as all: AD1, AD2, AD3." in remarks
    assert len(remarks) == 3


def test_one_recording_is_planned_as_it_is_among_all(truth):
    whole = plan_bids(truth.root, labels=truth.clinical)
    rows = [sentence for sentence in whole.unmatched if "clinical sheet" in sentence]
    for recording in whole.recordings[::5]:
        alone = plan_bids(truth.root, labels=truth.clinical, recordings=[recording.name])
        assert [item.name for item in alone.recordings] == [recording.name]
        assert alone.recordings[0].series == recording.series
        assert [sentence for sentence in alone.unmatched if "clinical sheet" in sentence] == rows


def test_unlabelled_channels_need_their_option(truth):
    plan = plan_bids(truth.root, only_labelled=False)
    extra = set(labels_of(plan)) - set(truth.labels)
    assert {name.split("_")[0] for name in extra} == {f"sub-{truth.without_soz}"}
    assert {labels_of(plan)[name] for name in extra} == {None}


def test_a_crop_is_counted_from_the_onset(truth):
    series = read_plan(plan_bids(truth.root, crop=(-1.0, 2.0)))
    assert {item.name: item.label for item in series} == truth.labels
    for item in series:
        onset = truth.onsets[item.origin["recording"]]
        assert item.n_samples == 3 * truth.rate
        assert abs(item.start_seconds - (onset - 1)) <= 0.5001 / truth.rate
        first = round(item.start_seconds * truth.rate)
        written = truth.samples[item.origin["recording"]][CHANNELS.index(item.origin["channel"])]
        assert_allclose(item.samples[0], written[first : first + item.n_samples], atol=0.01)


def test_a_crop_that_a_recording_has_in_part_is_reported_with_the_seconds_kept(truth):
    whole = plan_bids(truth.root, crop=(-1.0, 2.0))
    assert not has(whole.unmatched, "of the crop")
    plan = plan_bids(truth.root, crop=(-1.0, 60.0))
    assert runs_in(plan)
    for name in runs_in(plan):
        seconds = truth.seconds[name] - truth.onsets[name] + 1
        assert has(plan.unmatched, f"{name} has {seconds:.4g} of the 61 s of the crop")


@pytest.mark.parametrize("crop", [(2.0, 2.0), (5.0, -5.0), (float("nan"), 1.0)])
def test_a_crop_that_is_none_is_refused_and_one_beyond_the_recording_leaves_it_out(tree, crop):
    with pytest.raises(ConfigError, match="crop is"):
        plan_bids(tree, crop=crop)
    plan = plan_bids(tree, crop=(100.0, 120.0))
    assert len(plan) == 0
    assert has(plan.unmatched, f"{SECOND} is left out: it ends before")


def test_a_plan_names_its_inputs_and_can_be_sent_to_another_process(truth):
    plan = plan_bids(truth.root, crop=(0, 1))
    vision = next(item for item in plan.recordings if item.name == RUN.format("pt01", 1))
    base = f"sub-pt01/ses-presurgery/ieeg/{vision.name}"
    assert [file.relative_to(plan.root).as_posix() for file in vision.files] == [
        *(f"{base}_ieeg{suffix}" for suffix in (".vhdr", ".eeg", ".vmrk")),
        f"{base}_channels.tsv",
        f"{base}_events.tsv",
        "participants.tsv",
        "sourcedata/clinical_data_summary.xlsx",
    ]
    with pickle.loads(pickle.dumps(vision.open_recording))() as recording:
        assert [channel.name for channel in recording.channels] == [*CHANNELS, OTHER_TYPE]


def test_no_name_date_or_event_is_in_a_plan(truth):
    text = repr(plan_bids(truth.root, crop=(0, 1))) + bids_table(truth.root).to_csv()
    assert not [word for word in truth.canaries if word in text]


def test_the_table_needs_no_signals_and_agrees_with_the_plan(truth, tmp_path):
    root = Path(shutil.copytree(truth.root, tmp_path / "tree"))
    for file in [*root.rglob("*.eeg"), *root.rglob("*.vhdr"), *root.rglob("*.vmrk"), *root.rglob("*.edf")]:
        file.unlink()
    table = bids_table(root)
    assert set(zip(table["rate"], table["seconds"], strict=True)) == {
        (truth.rate, float(seconds)) for seconds in truth.seconds.values()
    }
    kept = table[(table["status"] == "good") & table["type"].isin(["ECOG", "SEEG"]) & table["label"].notna()]
    assert dict(zip(kept["recording"] + ":" + kept["channel"], kept["label"], strict=True)) == truth.labels
    assert set(table["recording"]) == set(truth.onsets)
    assert len(table) == len(truth.onsets) * (len(CHANNELS) + 1)
    pd.testing.assert_frame_equal(table, bids_table(truth.root))
    runs = {file for file in plan_bids(root).absent if file.endswith(".edf")}
    assert len(runs) == len(truth.onsets) / 2  # scans.tsv says which format each run has


# --- what is absent


def test_git_annex_pointers_and_broken_links_are_absent_files(tree):
    folder = folder_of(tree)
    (folder / f"{FIRST}_ieeg.eeg").write_text("/annex/objects/MD5E-s76788000--e6725a33.eeg\n")
    (folder / f"{SECOND}_ieeg.edf").unlink()
    (folder / f"{SECOND}_ieeg.edf").symlink_to("../../../.git/annex/objects/x/MD5E-s1--a.edf")
    plan = plan_bids(tree)
    assert plan.absent == (f"{BASE}/{FIRST}_ieeg.eeg", f"{BASE}/{SECOND}_ieeg.edf")
    assert "git annex get" in plan.where_to_get
    assert len(plan) == 0


def test_reading_says_what_it_could_not_read(tree):
    folder = folder_of(tree)
    (folder / f"{FIRST}_ieeg.eeg").unlink()
    with pytest.warns(RAxSSWarning, match="1 file is absent: sub-jh101/.*run-01_ieeg.eeg") as caught:
        assert len(read_bids(tree, only_labelled=False)) == 8
    assert len(caught) == 1
    (folder / f"{SECOND}_ieeg.edf").write_bytes(b"")
    with pytest.raises(
        RecordingError, match=r"'tree' has no series to read. .*run-01_ieeg.eeg.*run-02 is left out"
    ):
        read_bids(tree, only_labelled=False)


def test_a_run_that_only_a_sidecar_knows_is_absent_too(tree):
    for file in [*folder_of(tree).glob("*_ieeg.*"), *tree.rglob("*_scans.tsv")]:
        if file.suffix != ".json":
            file.unlink()
    assert plan_bids(tree).absent == tuple(f"{BASE}/{run}_ieeg.*" for run in (FIRST, SECOND))


# --- sidecars


def test_a_sidecar_above_holds_for_the_runs_below_unless_one_is_nearer(tree):
    folder = folder_of(tree)
    table = (folder / f"{FIRST}_channels.tsv").read_text()
    (folder / f"{FIRST}_channels.tsv").unlink()
    (tree / "task-ictal_channels.tsv").write_text(table.replace("AD1\tECOG", "AD1\tMISC"))
    (tree / "task-rest_channels.tsv").write_text("name\nnonsense\n")
    plan = plan_bids(tree)
    assert f"{FIRST}:AD1" not in labels_of(plan)
    assert f"{SECOND}:AD1" in labels_of(plan)
    assert len(plan) == 2 * (len(CHANNELS) - 1) - 1
    above = next(recording for recording in plan.recordings if recording.name == FIRST)
    assert tree / "task-ictal_channels.tsv" in above.files
    assert len(runs_of(open_tree(tree))) == 2


def test_channels_that_only_table_or_recording_has_are_listed(tree):
    path = folder_of(tree) / f"{SECOND}_channels.tsv"
    path.write_text(path.read_text().replace("ATT2\t", "ATT9\t"))
    plan = plan_bids(tree)
    remarks = " ".join(plan.unmatched)
    assert "run-02 lacks channels of its channels.tsv: ATT9." in remarks
    assert "run-02 lacks channels of it: ATT2." in remarks
    assert not {f"{SECOND}:{name}" for name in ("ATT2", "ATT9")} & set(labels_of(plan))


def test_without_channels_tsv_all_channels_are_taken_with_a_remark(tree):
    (folder_of(tree) / f"{FIRST}_channels.tsv").unlink()
    plan = plan_bids(tree)
    assert f"{FIRST}:{BAD}" in labels_of(plan)
    assert f"{FIRST}:{OTHER_TYPE}" not in labels_of(plan)  # by its name no electrode
    why = f"1 of 10 channels are by their names no electrodes and left out: '{OTHER_TYPE}'"
    assert has(plan.unmatched, f"has no channels.tsv: {why}; the other 9 channels are taken as good")


def test_soz_contacts_on_bad_channels_are_reported(tree):
    for file in folder_of(tree).glob("*_channels.tsv"):
        file.write_text(file.read_text().replace("good", "bad", 5))  # ATT1-3, AD1, AD2
    plan = plan_bids(tree)
    assert "patient jh101: SOZ contacts on bad channels, left out: AD1, AD2." in plan.unmatched
    assert {name.split(":")[1] for name, label in labels_of(plan).items() if label == "soz"} == {"AD3"}


def test_where_no_contact_matches_no_channel_is_called_other(tree):
    plan = plan_bids(tree, labels=sheet_of(tree, "XY1-2"))
    assert len(plan) == 0
    assert "patient jh101: SOZ contact XY1 has no certain channel in 2 of 2 runs." in plan.unmatched
    assert has(plan.unmatched, "run-01 has channels without a label, left out: ATT1, ATT2")


@pytest.mark.parametrize(
    "cell",
    ["AD1 Johnny Smith 12-3-1980", "AD1, Smithson1980", "AD1; Jo, AD2", "JOHN, AD1", "AD1 (Canary said so)"],
)
def test_words_of_a_cell_that_may_be_a_name_are_counted_and_label_nothing(tree, cell):
    plan = plan_bids(tree, labels=sheet_of(tree, cell))
    assert len(plan) == 0
    assert not [
        word for word in ("JO", "SMITH", "1980", "CANARY") if word in repr(plan).upper().replace("JH101", "")
    ]
    assert has(plan.unmatched, "of the SOZ cell w", "not understood")


def test_a_contact_that_is_not_understood_is_named_and_leaves_no_other(tree):
    plan = plan_bids(tree, labels=sheet_of(tree, "AD1, G1-ATT2, XY9"))
    assert set(labels_of(plan).values()) == {"soz"}
    assert {item.origin["channel"] for _, item in plan} == {"AD1"}
    remarks = " ".join(plan.unmatched)
    assert "patient jh101: 'G1-ATT2' of the SOZ cell was not understood" in remarks
    assert "patient jh101: SOZ contact XY9 has no certain channel in 2 of 2 runs." in remarks
    assert "run-01 has channels without a label, left out: ATT1, ATT2, ATT3, AD2" in remarks
    assert "taken as all" not in remarks


def with_column(tree: Path, run: int, column: str, texts: dict[str, str], otherwise: str) -> None:
    file = folder_of(tree) / f"{RUN.format('jh101', run)}_channels.tsv"
    table = pd.read_csv(file, sep="\t", keep_default_na=False)
    table[column] = [texts.get(name, otherwise) for name in table["name"]]
    table.to_csv(file, sep="\t", index=False)


@pytest.mark.parametrize(
    ("column", "label"),
    [("soz", "soz"), ("status_description", "soz"), ("resect", "resect"), ("status_description", "resect")],
)
def test_labels_come_from_channels_tsv_and_a_channel_that_is_not_certain_has_none(tree, column, label):
    shutil.rmtree(tree / "sourcedata")
    yes, no, unknown = (label, "n/a", f"{label}?") if column == "status_description" else ("1", "0", "n/a")
    with_column(tree, 1, column, {"AD1": yes, "AD2": unknown}, no)
    with_column(tree, 2, column, {}, no)  # a run without a mark
    plan = plan_bids(tree, label=label)
    assert runs_in(plan) == {FIRST}
    found = {item.origin["channel"]: item.label for _, item in plan}
    assert Counter(found.values()) == {label: 1, "other": 6}
    assert found["AD1"] == label
    assert "AD2" not in found
    assert has(plan.unmatched, "run-01 has channels without a label, left out: AD2.")
    assert has(plan.unmatched, "run-02 has channels without a label, left out: ATT1")
    assert set(bids_table(tree).query("label == 'soz'")["channel"]) == ({"AD1"} if label == "soz" else set())


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("\ttype\t", "\tkind\t", "its channels.tsv has no column 'type', and ECOG or SEEG is needed"),
        ("\tECOG\t", "\tIEEG\t", "none of its channels is ECOG or SEEG; channels.tsv has IEEG, MISC"),
        ("\tgood", "\tbad", "all of its ECOG or SEEG channels are bad"),
    ],
)
def test_a_run_without_a_channel_to_read_is_left_out_with_the_reason(tree, old, new, why):
    file = folder_of(tree) / f"{SECOND}_channels.tsv"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    plan = plan_bids(tree)
    assert runs_in(plan) == {FIRST}
    assert f"recording {SECOND} is left out: {why}." in plan.unmatched


def test_recordings_of_a_label_table_that_are_not_there_are_listed(tree):
    table = tree / "labels.csv"
    run = FIRST
    table.write_text(
        f"recording,channel,label\n{run},G1,focal\n{run},G2,calm\nsub-zz,G1,calm\n{run},Q1,calm\n"
    )
    plan = plan_bids(tree, labels=table)
    assert labels_of(plan) == {f"{run}:G1": "focal", f"{run}:G2": "calm"}
    remarks = " ".join(plan.unmatched)
    assert "that the tree does not have: sub-zz." in remarks
    assert "contact Q1 has no certain channel in 1 of 2 runs" in remarks


# --- gaps


def test_the_stretches_around_a_gap_are_series_of_their_own(tree):
    gap = [f"+{second}" for second in (0, 1, 2, 3, 14, 15, 16, 17)]
    file = edf.plus("EDF+D", gap, signals=(edf.Signal("AD1"), edf.Signal("AD2", seed=2)))
    (folder_of(tree) / f"{SECOND}_ieeg.edf").write_bytes(file.bytes())
    (folder_of(tree) / f"{SECOND}_ieeg.json").unlink()
    channels = folder_of(tree) / f"{SECOND}_channels.tsv"
    channels.write_text("name\ttype\nAD1\tECOG\nAD2\tECOG\n")
    series = {item.name: item for item in read_plan(plan_bids(tree))}
    first, second = series[f"{SECOND}:AD1#1"], series[f"{SECOND}:AD1#2"]
    assert (first.start_seconds, first.seconds) == (0.0, 4.0)
    assert (second.start_seconds, second.seconds) == (14.0, 4.0)
    late = plan_bids(tree, crop=(10.0, 60.0))  # the onset is at 2.4 to 3.4 s, so this begins behind the gap
    kept = {item.name for recording, item in late if recording.name == SECOND}
    assert {name.split("#")[1] for name in kept} == {"2"}
