"""Old names in files: read with a warning at the user's line, written under the new name, hashed as before."""

import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from torch import nn

from raxss import Config, RAxSSClassifier
from raxss._core import renames
from raxss._core.renames import (
    BACKBONE,
    COLUMN,
    KEY,
    RENAMES,
    SECTION,
    SETTING,
    STUDY,
    VALUES,
    current_backbone,
    current_names,
    current_settings,
    former_settings,
    former_tables,
)
from raxss.benchmark.study import Study
from raxss.errors import ConfigError, ModelError
from raxss.explain.series_evidence import SeriesEvidence
from raxss.method.backbones import BACKBONES, build_backbone, register_backbone
from resealed import reseal
from toys import SMALL, waves

OLD = """
[backbone]
backbone = "committee"
backbone_options = { of = "multiview", members = 2, options = { views = ["textures"], d_textures = 8 } }
"""
#: The defaults of that time, which a file did not have to name.
DEFAULTS = """
[windows]
window_length = 1024
stride = 128
[retrieval]
space = "signal"
[aggregation]
temperature = 0.1
[training]
validation_fraction = 0.125
"""
NEW = OLD.replace("committee", "ensemble").replace("textures", "ppv")


def test_the_table_is_one_to_one_and_no_name_is_old_and_new():
    assert set(VALUES.values()) <= set(RENAMES)
    for kind, names in RENAMES.items():
        assert len(set(names.values())) == len(names), kind
        assert not set(names) & set(names.values()), kind


def test_new_names_are_those_that_there_are():
    assert set(RENAMES[BACKBONE].values()) <= set(BACKBONES)
    assert not set(RENAMES[BACKBONE]) & set(BACKBONES)
    options = {
        "views": list(RENAMES["view of multiview"].values()),
        **dict.fromkeys(RENAMES["option of multiview"].values(), 8),
    }
    build_backbone("multiview", n_variates=1, window_length=64, n_outputs=1, options=options)
    homes = Config().parameters()
    assert set(RENAMES[SETTING].values()) <= set(homes)
    assert set(RENAMES[SECTION].values()) <= set(Config().tables())


def test_old_settings_are_read_with_a_warning_at_the_users_line():
    with pytest.warns(DeprecationWarning, match="is called") as caught:
        config = Config.from_toml(OLD)
    assert config == Config.from_toml(NEW)
    assert {str(item.message) for item in caught} == {
        "the backbone 'committee' is called 'ensemble' now; the old name is still read, but use the new one.",
        "the view of multiview 'textures' is called 'ppv' now; the old name is still read, but use the new one.",
        "the option of multiview 'd_textures' is called 'd_ppv' now; the old name is still read, but use the new "
        "one.",
    }
    assert {item.filename for item in caught} == {__file__}


def test_new_names_give_no_warning_and_are_what_is_written():
    config = Config.from_toml(NEW)
    assert "ensemble" in config.to_toml()
    assert "committee" not in config.to_toml()
    assert "textures" not in config.to_toml()
    assert Config.from_toml(config.to_toml()) == config


def test_hashes_are_those_from_before_the_names():
    text = f"{NEW}{DEFAULTS}[augmentation]"  # none, as it was the default then
    assert Config.from_toml(text).hash == "47a829719b43"
    windows = {"windows": {"window_length": 1024, "stride": 128}}
    presets = {name: Config.preset(name).updated(windows).hash for name in ("paper", "sss", "tuned")}
    assert presets == {"paper": "d03895445e62", "sss": "a0bbeffc38fc", "tuned": "6c99b9a5c82c"}
    signals = {
        name: Config.preset("tuned", signal=name).updated(windows).hash for name in ("eeg", "ecg", "motion")
    }
    assert signals == {"eeg": "93f58d5d9c47", "ecg": "1bf1ecd55828", "motion": "f9fa74d041ce"}


def lines_of(call):
    """Files that the warnings of a call are attributed to."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return {item.filename for item in caught if item.category is DeprecationWarning}


STUDY_TEXT = """
    seeds = [1]
    systems = ["mine"]
    [dataset]
    data = "synthetic"
    windows = { window_length = 128, stride = 64 }
    [system.mine]
    base = "tuned"
    backbone_options = { views = ["textures"] }
"""


@pytest.mark.parametrize(
    "call",
    [
        lambda: RAxSSClassifier("committee").config,
        lambda: RAxSSClassifier(backbone="multiview", backbone_options={"views": "textures"}).config,
        lambda: Config().updated({"backbone": {"backbone": "committee"}}),
        lambda: build_backbone(
            "committee", n_variates=1, window_length=32, n_outputs=1, options={"of": "dlinear"}
        ),
        lambda: Study.from_toml(STUDY_TEXT),
        lambda: sorted([OLD], key=lambda text: Config.from_toml(text).hash),  # called by another library
    ],
)
def test_whoever_uses_an_old_name_is_told_at_the_own_line(call):
    assert lines_of(call) == {__file__}


def test_a_study_under_old_names_is_the_same_study():
    new = Study.from_toml(STUDY_TEXT.replace("textures", "ppv")).compared()["mine"]
    with pytest.warns(DeprecationWarning, match="'textures' is called 'ppv'"):
        old = Study.from_toml(STUDY_TEXT).compared()["mine"]
    assert (old.settings, old.description) == (new.settings, new.description)
    changed = STUDY_TEXT.replace('base = "tuned"', 'base = "tuned"\n    backbone = "committee"')
    with pytest.warns(DeprecationWarning, match="'committee' is called 'ensemble'"):
        assert (
            Study.from_toml(changed.replace('{ views = ["textures"] }', "{}"))
            .compared()["mine"]
            .settings["backbone"]
            == "ensemble"
        )


def test_the_command_line_reports_an_old_name_once(tmp_path):
    (tmp_path / "study.toml").write_text(STUDY_TEXT)
    command = [sys.executable, "-m", "raxss", "table", tmp_path / "study.toml", "--out", tmp_path / "out"]
    run = subprocess.run(
        [*command, "--dry-run", "--device", "cpu"], capture_output=True, text=True, check=True
    )
    assert run.stderr.count("raxss: warning: the view of multiview 'textures' is called 'ppv' now") == 1
    assert "to do  synthetic, mine, seed 1" in run.stdout


def test_a_model_folder_of_old_names_loads_and_predicts_the_same_bits(rng, tmp_path):
    series = waves(rng)
    options = {
        "of": "multiview",
        "members": 2,
        "options": {"views": ["shapes", "ppv"], "width": 2, "d_ppv": 4},
    }
    model = RAxSSClassifier("ensemble", backbone_options=options, **SMALL).fit(series)
    folder = model.save_pretrained(tmp_path / "model")
    before = json.loads((folder / "config.json").read_text())

    def older(facts):
        facts["settings"]["backbone"] = {
            "backbone": "committee",
            "backbone_options": {
                "of": "multiview",
                "members": 2,
                "options": {"views": ["shapes", "textures"], "width": 2, "d_textures": 4},
            },
        }

    reseal(folder, older, keep_hash=True)
    with pytest.warns(DeprecationWarning, match="is called") as caught:
        again = RAxSSClassifier.from_pretrained(folder)
    assert {item.filename for item in caught} == {__file__}
    np.testing.assert_array_equal(again.predict_proba(series), model.predict_proba(series))
    assert again.current_config == model.current_config
    assert before["config_hash"] == again.current_config.hash
    assert before["settings"]["backbone"]["backbone"] == "ensemble"  # what is written has the new name


def test_a_setting_under_both_names_is_refused():
    with pytest.raises(ConfigError, match="option of multiview 'd_ppv' is given twice"):
        current_names({"d_ppv": 8, "d_textures": 16}, "option of multiview", warn=False)
    with pytest.warns(DeprecationWarning, match="is called"), pytest.raises(ConfigError, match="given twice"):
        Config.from_toml(
            '[backbone]\nbackbone = "multiview"\nbackbone_options = { d_ppv = 8, d_textures = 8 }'
        )


def test_options_of_other_networks_are_their_own():
    """A network of somebody else may have views that are called textures, or an option of that name."""
    options = {"views": ["textures", "committee"], "d_textures": 3, "of": "committee"}

    class Mine(nn.Module):
        pass

    for backbone in ("spectrum", Mine):
        assert current_backbone(backbone, options) == (backbone, options)
        assert former_settings({"backbone": backbone, "backbone_options": options}) == {
            "backbone": backbone,
            "backbone_options": options,
        }


@pytest.mark.parametrize(
    "options",
    [None, 3, [], {"views": 3}, {"views": [["textures"]]}, {"of": ["x"], "options": 4, "members": 3}, {3: 4}],
)
@pytest.mark.parametrize("backbone", ["committee", "multiview", None, 3, ["ensemble"]])
def test_what_is_no_setting_at_all_passes_for_others_to_refuse(backbone, options):
    name, _ = current_backbone(backbone, options, warn=False)
    assert name == ("ensemble" if backbone == "committee" else backbone)
    former_settings({"backbone": backbone, "backbone_options": options})


def test_there_and_back_is_the_same():
    rng = np.random.default_rng(7)
    for _ in range(50):
        views = [str(item) for item in rng.permutation(["shapes", "rhythms", "ppv"])[: rng.integers(1, 4)]]
        own = {"views": views, "d_ppv": int(rng.integers(1, 9))}
        settings = (
            {"backbone": "multiview", "backbone_options": own}
            if rng.random() < 0.5
            else {"backbone": "ensemble", "backbone_options": {"members": [own, {}], "options": own}}
        )
        old = former_settings(settings)
        assert not {"ppv", "ensemble", "d_ppv"} & set(json.dumps(old).replace('"', " ").split())
        assert current_settings(old, warn=False) == settings
        assert former_settings(old) == old


def test_nobody_takes_an_old_name_for_a_network_of_their_own():
    with pytest.raises(ConfigError, match="the backbone name 'committee' belongs to"):
        register_backbone("committee")(nn.Identity)


# Kinds of names that have no entry yet ------------------------------------------------------------------------


@pytest.fixture
def renamed(monkeypatch):
    """As if these had been renamed."""
    for kind, names in {
        SECTION: {"matching": "retrieval"},
        SETTING: {"phi": "measure", "epochs": "max_epochs"},
        STUDY: {"data": "dataset"},
        COLUMN: {"mean_similarity": "support"},
    }.items():
        monkeypatch.setitem(renames.RENAMES, kind, names)


def test_sections_and_settings(renamed):
    with pytest.warns(DeprecationWarning, match="is called"):
        config = Config.from_toml("[matching]\nphi = 'cosine'")
    assert config.retrieval.measure == "cosine"
    assert "phi" not in config.to_toml()
    tables = former_tables(config.tables())
    assert tables["matching"]["phi"] == "cosine"
    assert "retrieval" not in tables
    with pytest.warns(DeprecationWarning, match="setting 'phi'"):
        assert Config.from_parameters({"phi": "cosine"}).retrieval.measure == "cosine"


def test_sections_and_settings_of_a_study(renamed):
    text = (
        STUDY_TEXT.replace("[dataset]", "[data]").replace("textures", "ppv")
        + "\n    phi = 'cosine'\n    [training]\n    epochs = 2"
    )
    with pytest.warns(DeprecationWarning, match="is called") as caught:
        study = Study.from_toml(text)
    with pytest.warns(DeprecationWarning, match="'phi' is called 'measure'"):
        system = study.compared()["mine"]
    assert {item.filename for item in caught} == {__file__}
    assert study.training == {"max_epochs": 2}
    assert system.settings["measure"] == "cosine"


def test_keys_of_config_json(monkeypatch, tmp_path):
    monkeypatch.setitem(renames.RENAMES, KEY, {"labels_of_old": "classes"})
    old = Path(shutil.copytree(Path(__file__).parent / "data" / "model_0_1", tmp_path / "model"))
    facts = json.loads((old / "config.json").read_text())
    facts["labels_of_old"] = facts.pop("classes")
    (old / "config.json").write_text(json.dumps(facts))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = RAxSSClassifier.from_pretrained(old)
    assert any(
        "key of config.json 'labels_of_old' is called 'classes'" in str(item.message) for item in caught
    )
    assert model.classes_.tolist() == facts["labels_of_old"]
    facts["classes"] = facts["labels_of_old"]
    (old / "config.json").write_text(json.dumps(facts))
    with pytest.warns(Warning, match="not sealed|is called"), pytest.raises(ModelError, match="given twice"):
        RAxSSClassifier.from_pretrained(old)


def test_columns_of_evidence(rng, monkeypatch, tmp_path):
    series = waves(rng)
    model = RAxSSClassifier("dlinear", **SMALL).fit(series)
    folder = model.explain(series[0]).save(tmp_path / "why")
    windows = pd.read_parquet(folder / "windows.parquet")
    name = next(iter(windows))
    monkeypatch.setitem(renames.RENAMES, COLUMN, {"what_it_was": name})
    windows.rename(columns={name: "what_it_was"}).to_parquet(folder / "windows.parquet")
    with pytest.warns(DeprecationWarning, match="column 'what_it_was'"):
        again = SeriesEvidence.load(folder)
    assert again.series_probability == pytest.approx(model.explain(series[0]).series_probability)
