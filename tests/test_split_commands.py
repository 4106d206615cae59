"""The commands ``raxss split`` and ``raxss audit-split``."""

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose
from typer.testing import CliRunner

from raxss import RAxSSClassifier
from raxss.data.leakage import read_fitted
from raxss.data.splits import split_series
from raxss.errors import ModelError, RAxSSError
from toys import SMALL, waves

QUICK = {**SMALL, "max_epochs": 1, "stride": 200, "scaling": "train"}


def raxss(*arguments, code=0):
    from raxss.cli import app

    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, RAxSSError):
        assert code == 1, result.exception
        return str(result.exception)
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


@pytest.fixture
def manifest(tmp_path):
    """72 recordings of 18 patients on disk."""
    rng = np.random.default_rng(3)
    lines = ["path,label,group,rate"]
    for index in range(72):
        np.save(tmp_path / f"rec{index:02d}.npy", rng.normal(size=600).cumsum())
        lines.append(f"rec{index:02d}.npy,{'ab'[index % 2]},person{index // 4},100")
    path = tmp_path / "manifest.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_split_then_audit_then_spoil_it(manifest, tmp_path):
    file = tmp_path / "split.json"
    assert "patient: train" in raxss("split", manifest, "--by", "patient", "--seed", "5", "--out", file)
    assert "\nclean" in raxss("audit-split", manifest, "--split", file)

    kept = json.loads(file.read_text())
    np.save(tmp_path / f"{kept['test'][0]}.npy", -np.load(tmp_path / f"{kept['train'][0]}.npy"))
    output = raxss("audit-split", manifest, "--split", file, code=1)
    assert f"{kept['train'][0]} (train) = {kept['test'][0]} (test)" in output
    assert "NOT clean" in output
    found = json.loads(raxss("audit-split", manifest, "--split", file, "--json", code=1))
    assert found["clean"] is False
    assert {item["code"] for item in found["findings"]} == {"copied-stretch", "one-patient-two-ids"}
    assert set(found["findings"][0]) == {"code", "severity", "message", "split"}


def test_the_papers_split_is_called_leaky_on_the_command_line(manifest, tmp_path):
    assert "channel (leaky): train 50" in raxss(
        "split", manifest, "--by", "paper", "--out", tmp_path / "s.json"
    )
    output = raxss("audit-split", manifest, "--by", "channel", code=1)
    assert "split: channel (leaky)" in output
    assert "leak: shared-patient" in output


def test_folds_and_groups_left_out_make_a_folder(manifest, tmp_path):
    raxss("split", manifest, "--folds", "3", "--out", tmp_path / "folds")
    assert sorted(file.name for file in (tmp_path / "folds").glob("*.json")) == [
        f"fold-{k}.json" for k in range(3)
    ]
    assert raxss("audit-split", manifest, "--split", tmp_path / "folds").count("\nclean") == 3
    raxss("split", manifest, "--leave-out", "patient", "--out", tmp_path / "left")
    assert len(list((tmp_path / "left").glob("*.json"))) == 18
    assert "give one of them" in raxss(
        "split", manifest, "--folds", "3", "--leave-out", "patient", "--out", tmp_path / "no", code=1
    )
    assert "'0.7;0.3'" in raxss("split", manifest, "--fractions", "0.7;0.3", "--out", tmp_path / "no", code=1)


def test_a_model_fitted_on_everything_is_caught(manifest, tmp_path):
    from raxss.data.files import read_manifest

    collection = read_manifest(manifest)
    split = split_series(collection, seed=5)
    split.save(tmp_path / "split.json", collection.names)
    for name, members in (("honest", split.parts(collection)[0]), ("spoilt", collection)):
        RAxSSClassifier(**QUICK).fit(members).save_pretrained(tmp_path / name)
    arguments = ("audit-split", manifest, "--split", tmp_path / "split.json", "--model")
    assert "\nclean" in raxss(*arguments, tmp_path / "honest")
    assert "leak: training-saw-test" in raxss(*arguments, tmp_path / "spoilt", code=1)


def test_what_a_model_was_fitted_on_is_read_without_its_network(tmp_path, rng):
    collection = waves(rng)
    model = RAxSSClassifier(**QUICK).fit(collection)
    model.save_pretrained(tmp_path / "model")
    scaling, digests = read_fitted(tmp_path / "model")
    assert_allclose(scaling.mean, model.scaling_.mean)
    assert_allclose(scaling.deviation, model.scaling_.deviation)
    assert digests == sorted(item.digest for item in collection)
    (tmp_path / "model" / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ModelError, match="'model' cannot be audited"):
        read_fitted(tmp_path / "model")


def test_training_names_come_from_a_file(manifest, tmp_path):
    file = tmp_path / "split.json"
    raxss("split", manifest, "--out", file)
    kept = json.loads(file.read_text())
    (tmp_path / "names.txt").write_text("\n".join([*kept["train"], kept["test"][1]]))
    arguments = ("--split", file, "--training-names", tmp_path / "names.txt")
    leak = f"training-saw-test: 1 series of the test set are among the training names: {kept['test'][1]!r}"
    assert f"leak: {leak}" in raxss("audit-split", manifest, *arguments, code=1)


def test_weak_parts_are_warned_of_and_a_seed_below_zero_is_refused(manifest, tmp_path):
    assert "warning:" not in raxss("split", manifest, "--leave-out", "patient", "--out", tmp_path / "left")
    manifest.write_text(manifest.read_text().replace(",b,", ",a,").replace("rec01.npy,a", "rec01.npy,b"))
    output = raxss("split", manifest, "--seed", "5", "--out", tmp_path / "weak.json")
    assert "warning: the test set has one class only, 'a'." in output
    assert "seed is -1; needed is an integer of at least 0" in raxss(
        "split", manifest, "--seed", "-1", "--out", tmp_path / "no.json", code=1
    )
    assert not (tmp_path / "no.json").exists()
