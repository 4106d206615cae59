"""Model folders: what is read is what was written, and nothing else is read."""

import copy
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save

from raxss import Config, RAxSSClassifier
from raxss._core.atomic import MARK
from raxss._core.sealing import FACTS, SEALED
from raxss.errors import ModelError, ModelWarning
from resealed import reseal, unseal
from toys import SMALL, Tiny, waves


@pytest.fixture(scope="module")
def _fitted():
    series = waves(np.random.default_rng(69421))
    return RAxSSClassifier(**SMALL, temperature=0.07).fit(series), series


@pytest.fixture
def model_and_series(_fitted):
    """A model whose settings a test may change, and its training series."""
    return copy.copy(_fitted[0]), _fitted[1]


@pytest.fixture
def folder(model_and_series, tmp_path):
    return model_and_series[0].save_pretrained(tmp_path / "model")


def test_a_model_comes_back_as_it_went(model_and_series, folder):
    model, series = model_and_series
    loaded = RAxSSClassifier.from_pretrained(folder, device="cpu")
    np.testing.assert_array_equal(loaded.predict_proba(series), model.predict_proba(series))
    assert loaded.config == loaded.config_ == model.config_  # what "auto" became
    assert loaded.classes_.tolist() == model.classes_.tolist()
    assert loaded.history_["epoch"].tolist() == model.history_["epoch"].tolist()
    loaded.set_params(space="features")
    model.set_params(space="features")
    np.testing.assert_array_equal(loaded.predict_proba(series), model.predict_proba(series))


def test_how_the_training_data_were_prepared_and_split_stays_with_the_model(model_and_series, tmp_path):
    model = copy.deepcopy(model_and_series[0])
    model.preparation_ = "pool 24/12, z-score"
    model.training_data_["split"] = "channel (leaky)"
    loaded = RAxSSClassifier.from_pretrained(model.save_pretrained(tmp_path / "m"), device="cpu")
    assert loaded.preparation_ == "pool 24/12, z-score"
    assert loaded.training_data_["split"] == "channel (leaky)"
    card = (tmp_path / "m" / "README.md").read_text()
    assert "pool 24/12, z-score" in card
    assert "Split: channel (leaky)." in card


@pytest.mark.parametrize(
    "labels", [[1, 2], [1.0, 2.0], [False, True], ["ä", "b"], np.array(["x", "yy"], dtype=object)]
)
def test_classes_keep_their_type(model_and_series, tmp_path, labels):
    series = model_and_series[1]
    y = np.asarray(labels)[np.arange(len(series)) % 2]
    model = RAxSSClassifier(**SMALL).fit([item.samples for item in series], y)
    loaded = RAxSSClassifier.from_pretrained(model.save_pretrained(tmp_path / "m"), device="cpu")
    assert loaded.classes_.dtype == model.classes_.dtype
    assert loaded.predict([series[0]])[0] == model.predict([series[0]])[0] in list(labels)


def test_the_folder_holds_weights_settings_history_and_a_card(folder):
    names = sorted(file.name for file in folder.iterdir())
    assert names == sorted([MARK, FACTS, *SEALED])
    card = (folder / "README.md").read_text()
    headings = ("Research use only", "Intended use", "Training data", "Calibration", "Limits")
    assert all(text in card for text in (*headings, "| fast | 9 |"))
    assert "temperature = 0.07" in (folder / "settings.toml").read_text()


def test_a_folder_from_before_banks_had_a_size_still_loads(model_and_series, folder):
    model, series = model_and_series
    unseal(reseal(folder, lambda facts: facts["settings"]["retrieval"].pop("bank_size"), keep_hash=True))
    with pytest.warns(ModelWarning, match="'model' was written by raxss 0.1"):
        loaded = RAxSSClassifier.from_pretrained(folder, device="cpu")
    assert (loaded.bank, loaded.bank_size) == ("series", Config().retrieval.bank_size)
    np.testing.assert_array_equal(loaded.predict_proba(series), model.predict_proba(series))


def test_no_name_of_a_series_or_group_reaches_the_folder(folder):
    for file in folder.iterdir():
        content = file.read_bytes()
        assert b"wave 1" not in content
        assert b"group-0" not in content


def test_a_killed_save_leaves_the_old_model_whole(folder, tmp_path):
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    script = """
import os, signal, sys
import raxss.estimator.persistence as place
from raxss import Config, RAxSSClassifier
model = RAxSSClassifier.from_pretrained(sys.argv[1], device="cpu")
place._card = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
model.save_pretrained(sys.argv[1], overwrite=True)
"""
    ended = subprocess.run([sys.executable, "-c", script, str(folder)], check=False)
    assert ended.returncode == -9
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_network_of_ones_own_has_to_be_given_again(model_and_series, tmp_path):
    _, series = model_and_series
    model = RAxSSClassifier(Tiny, **SMALL, space="signal").fit(series)
    path = model.save_pretrained(tmp_path / "own")
    with pytest.raises(ModelError, match=r"toys:Tiny.*backbone=YourNetwork"):
        RAxSSClassifier.from_pretrained(path)
    loaded = RAxSSClassifier.from_pretrained(path, backbone=Tiny, device="cpu")
    np.testing.assert_array_equal(loaded.predict_proba(series), model.predict_proba(series))


def test_no_folder_and_a_file_instead_are_told_apart(tmp_path):
    with pytest.raises(ModelError, match="no model folder 'gone': nothing was found"):
        RAxSSClassifier.from_pretrained(tmp_path / "gone")
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="no model folder 'file': a file was found"):
        RAxSSClassifier.from_pretrained(tmp_path / "file")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null", b"[" * 200_000])
def test_a_config_that_is_no_json_object_is_refused(folder, content):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match="'model'"):
        RAxSSClassifier.from_pretrained(folder)


def test_weights_of_another_program_are_refused(folder):
    reseal(folder, weights=save({"something": torch.zeros(3)}))
    with pytest.raises(ModelError, match=r"'model' cannot be read.*1 of its tensors are not of a model"):
        RAxSSClassifier.from_pretrained(folder)


def test_pickled_weights_are_never_opened(folder, tmp_path):
    canary = tmp_path / "canary"

    class Bomb:
        def __reduce__(self):
            return os.system, (f"touch {canary}",)

    torch.save({"bomb": Bomb()}, folder / "model.safetensors")
    reseal(folder)
    with pytest.raises(ModelError, match="cannot be read"):
        RAxSSClassifier.from_pretrained(folder)
    assert not canary.exists()


@pytest.mark.parametrize("change", [{"scaling": "series"}, {"backbone": "patchtst"}, {"window_length": 7}])
def test_what_was_fitted_is_saved_whatever_the_parameters_say_since(model_and_series, tmp_path, change):
    model, series = model_and_series
    model.set_params(**change, n_neighbors=3)
    loaded = RAxSSClassifier.from_pretrained(model.save_pretrained(tmp_path / "m"), device="cpu")
    np.testing.assert_array_equal(loaded.predict_proba(series), model.predict_proba(series))
    assert (loaded.n_neighbors, loaded.scaling, loaded.backbone) == (3, "train", Config().backbone.backbone)


def test_names_of_features_are_kept(tmp_path):
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(12, 5)), columns=list("abcde"))
    model = RAxSSClassifier(**SMALL).fit(table, [0, 1] * 6)
    loaded = RAxSSClassifier.from_pretrained(model.save_pretrained(tmp_path / "m"), device="cpu")
    assert loaded.feature_names_in_.tolist() == list("abcde")
    with pytest.raises(ValueError, match="feature names"):
        loaded.predict(table[list("edcba")])


def test_a_class_name_cannot_bring_markup_into_the_card_or_break_its_table(model_and_series, tmp_path):
    _, series = model_and_series
    y = np.array(["a|b\n# heading", "<script>alert(1)</script>"])[np.arange(len(series)) % 2]
    model = RAxSSClassifier(**SMALL).fit([item.samples for item in series], y)
    card = (model.save_pretrained(tmp_path / "m") / "README.md").read_text()
    assert "| a/b # heading | 9 |" in card
    assert "\n# heading" not in card
    assert "<script>" not in card
