"""From a hospital's folder to scores: check, prepare, split, audit, fit, predict, as a user runs them."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from make_bids import make_bids
from raxss.data.prepare import read_prepared
from test_cli import CPU, raxss

FIT = ["--window-length", "128", "--stride", "64", "--max-epochs", "3", *CPU]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A BIDS tree of four centres, prepared, split by patient, a model fitted on its training set."""
    folder = tmp_path_factory.mktemp("study")
    truth = make_bids(folder / "tree", n_centres=4, patients_per_centre=3, runs=2, seed=69421)
    raxss("check", truth.root, "--json")
    raxss("prepare", truth.root, "--out", folder / "prepared", "--rate", "125", "--scaling", "series")
    raxss("split", folder / "prepared", "--seed", "69421", "--out", folder / "split.json")
    raxss("audit-split", folder / "prepared", "--split", folder / "split.json")
    raxss("fit", folder / "prepared", "--split", folder / "split.json", "--out", folder / "model", *FIT)
    return folder, truth


def test_the_prepared_series_are_those_the_clinicians_labelled(study):
    folder, truth = study
    prepared = read_prepared(folder / "prepared")
    assert {item.name: item.label for item in prepared} == truth.labels
    assert {item.origin["centre"] for item in prepared} == set(truth.centres.values())
    assert {item.rate for item in prepared} == {125.0}
    assert {item.group for item in prepared} == {item.origin["patient"] for item in prepared}


def test_what_did_not_match_is_listed_by_name(study):
    folder, truth = study
    problems = (folder / "prepared" / "problems.json").read_text()
    for name in (*truth.unmatched_contact, truth.without_soz):
        assert name in problems


def test_unseen_patients_are_scored_far_above_chance(study):
    folder, truth = study
    split = ["--split", folder / "split.json"]
    raxss("predict", folder / "model", folder / "prepared", *split, "--out", folder / "test.csv", *CPU)
    table = pd.read_csv(folder / "test.csv")
    parts = json.loads((folder / "split.json").read_text())
    patients = {item.name: item.origin["patient"] for item in read_prepared(folder / "prepared")}
    tested = {patients[name] for name in table["name"]}
    assert tested
    assert tested.isdisjoint(patients[name] for name in [*parts["train"], *parts["validation"]])
    assert roc_auc_score(table["label"] == "soz", table["probability_soz"]) > 0.8
    assert dict(zip(table["name"], table["label"], strict=True)).items() <= truth.labels.items()


def test_a_raw_tree_scores_as_its_prepared_series_do(study):
    folder, truth = study
    for source, out in ((truth.root, "raw.csv"), (folder / "prepared", "same.csv")):
        raxss("predict", folder / "model", source, "--out", folder / out, *CPU)
    raw, same = (
        pd.read_csv(folder / out).set_index("name")["probability_soz"] for out in ("raw.csv", "same.csv")
    )
    assert set(raw.index) > set(same.index)  # patients without annotation are scored, too
    np.testing.assert_array_equal(raw[same.index], same)


def test_a_split_under_which_the_model_has_seen_the_test_is_refused(study):
    folder, _ = study
    raxss("split", folder / "prepared", "--seed", "1", "--out", folder / "other.json")
    parts = [json.loads((folder / name).read_text()) for name in ("split.json", "other.json")]
    seen = set(parts[1]["test"]) - set(parts[0]["test"])
    assert seen
    split = ["--split", folder / "other.json"]
    error = raxss(
        "predict", folder / "model", folder / "prepared", *split, "--out", folder / "no.csv", code=1
    )
    assert f"learned from {len(seen)} of {len(parts[1]['test'])} series of the test set" in error
    assert not (folder / "no.csv").exists()


def test_one_changed_bit_of_the_samples_stops_training_and_prediction(study, tmp_path):
    folder, _ = study
    shutil.copytree(folder / "prepared", tmp_path / "prepared")
    file = sorted((tmp_path / "prepared" / "samples").iterdir())[3]
    content = bytearray(file.read_bytes())
    content[-1000] ^= 1
    file.write_bytes(content)
    for command in (
        ("fit", tmp_path / "prepared", "--out", tmp_path / "model", *FIT),
        ("predict", folder / "model", tmp_path / "prepared", "--out", tmp_path / "p.csv"),
    ):
        assert f"{file.name!r} was changed after it was written" in raxss(*command, code=1)


def test_what_was_chosen_is_recorded_with_the_result(study, tmp_path):
    _, truth = study
    raxss("prepare", truth.root, "--crop", "-2,5", "--pool", "4/2", "--out", tmp_path / "cropped")
    facts = json.loads((tmp_path / "cropped" / "prepared.json").read_text())
    assert facts["settings"] == {
        "pooling": [4, 2],
        "rate": None,
        "scaling": "series",
        "crop": "-2,5",
        "classes": None,
        "unlabelled": False,
    }
