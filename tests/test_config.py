"""Settings: presets as decided, TOML there and back, and errors that name the setting."""

import dataclasses
import functools
import math
import os
import subprocess
import sys
import tomllib
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raxss import RAxSSClassifier
from raxss.errors import ConfigError
from raxss.estimator.config import ADDED_LATER, PRESETS, SIGNALS, Config, setting_homes
from raxss.method.aggregation import AggregationConfig
from raxss.method.augmentation import AugmentationConfig
from raxss.method.backbones.protocol import BackboneConfig
from raxss.method.retrieval.front import REFRESHES, RetrievalConfig
from raxss.method.training.settings import TrainingConfig
from raxss.method.weighting import WEIGHTINGS
from raxss.method.windows import WindowConfig
from raxss.uncertainty.calibration import METHODS, CalibrationConfig

MEASURED = tuple(name for name in PRESETS if name != "recommended")  # "auto" is for any data

numbers = st.integers(0, 10**9) | st.floats(0, 1e12)
distances = st.integers(0, 10**6) | st.floats(0, 8)
whole = st.integers(1, 10**9)
options = st.dictionaries(
    st.text(),
    st.recursive(
        st.text() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.booleans(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=5,
    ),
    max_size=3,
)
configs = st.builds(
    Config,
    windows=st.builds(WindowConfig, window_length=whole, stride=whole),
    backbone=st.builds(BackboneConfig, backbone=st.text(), backbone_options=options),
    retrieval=st.builds(
        RetrievalConfig, exclusion=distances, spread=distances, refresh=st.sampled_from(REFRESHES)
    ),
    aggregation=st.builds(
        AggregationConfig,
        weighting=st.sampled_from(sorted(WEIGHTINGS)),
        temperature=st.just("learned") | st.floats(1e-300, 1e300),
    ),
    calibration=st.builds(CalibrationConfig, calibration=st.sampled_from(METHODS)),
    augmentation=st.just("auto")
    | st.builds(
        AugmentationConfig,
        flip=st.integers(0, 1) | st.floats(0, 1),
        mirror=st.lists(st.integers(0, 99), unique=True),
    ),
    training=st.builds(TrainingConfig, batch_size=whole, lr=numbers),
)


# Presets ------------------------------------------------------------------------------------------------------


def test_the_paper_preset_is_what_the_paper_says():
    settings = Config.preset("paper").parameters()
    expected = {
        "backbone": "patchtst",
        "measure": "pearson",
        "n_neighbors": 10,
        "exclusion": 0,
        "temperature": 0.1,
    }
    expected |= {"window_loss_weight": 0.0, "series_loss_weight": 1.0, "batch_size": 8192, "max_epochs": 50}
    expected |= {"lr": 3e-4, "warmup_steps": 100, "schedule_steps": 700, "weight_decay": 1e-6}
    assert {name: settings[name] for name in expected} == expected
    assert isinstance(settings["exclusion"], int)  # in samples: a float would be a share of the window


def test_sss_is_the_paper_with_uniform_weights():
    paper, sss = Config.preset("paper").parameters(), Config.preset("sss").parameters()
    assert {name: sss[name] for name in sss if sss[name] != paper[name]} == {"weighting": "uniform"}


def test_recommended_is_the_default_of_the_estimator():
    assert Config.preset("recommended") == Config()
    default = RAxSSClassifier().get_params()
    for made in (RAxSSClassifier.from_preset("recommended"), RAxSSClassifier.from_config(Config())):
        assert made.get_params() == default
        assert repr(made.get_params()) == repr(default)  # 1 == 1.0, though they are a sample and a window
        assert made.config == Config()


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_kind_of_signal_changes_what_it_names_and_nothing_else(signal):
    plain, own = Config.preset("tuned").tables(), Config.preset("tuned", signal=signal).tables()
    named = tomllib.loads(
        (resources.files("raxss.estimator") / "presets" / f"signal-{signal}.toml").read_text("utf-8")
    )
    changed = {
        (stage, name) for stage in own for name in own[stage] if own[stage][name] != plain[stage].get(name)
    }
    assert changed == {(stage, name) for stage in named for name in named[stage]}
    assert not {"retrieval", "aggregation", "windows"} & set(named)  # the method is one


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_leaves_length_and_stride_to_the_data(name):
    assert Config.preset(name).windows == WindowConfig()


# TOML there and back ------------------------------------------------------------------------------------------


@given(config=configs)
def test_any_settings_written_down_read_the_same(config):
    again = Config.from_toml(config.to_toml())
    assert again == config
    assert repr(again) == repr(config)  # 1 and 1.0 are equal, but samples and windows are not
    assert again.hash == config.hash


def test_what_is_written_holds_every_setting_under_a_name_of_its_own(tmp_path):
    (tmp_path / "settings.toml").write_text(Config().to_toml())
    lines = Config().to_toml().splitlines()
    written = [line.split(" = ")[0] for line in lines if " = " in line]
    kinds = {kind.name for kind in dataclasses.fields(AugmentationConfig)}  # one parameter of the estimator
    assert sorted(written) == sorted(setting_homes())  # each name once
    explicit = dataclasses.replace(Config(), augmentation=AugmentationConfig()).to_toml().splitlines()
    written = [line.split(" = ")[0] for line in explicit if " = " in line]
    assert sorted(written) == sorted(set(setting_homes()) - {"augmentation"} | kinds)
    assert Config.from_file(tmp_path / "settings.toml") == Config()


def test_a_preset_line_starts_from_that_preset():
    config = Config.from_toml('preset = "paper"\n[retrieval]\nmeasure = "cosine"')
    assert config == Config.preset("paper").updated({"retrieval": {"measure": "cosine"}})
    assert config.training.batch_size == 8192
    ecg = Config.from_toml('preset = "tuned"\nsignal = "ecg"')
    assert ecg == Config.preset("tuned", signal="ecg")


def test_a_start_is_kept_where_the_text_says_nothing_and_gives_way_to_a_preset_line():
    start = Config.preset("paper")
    assert Config.from_toml("[aggregation]\ntemperature = 0.5", start=start).training == start.training
    assert Config.from_toml('preset = "tuned"', start=start) == Config.preset("tuned")
    assert Config.from_toml('preset = "recommended"', start=start) == Config()


def test_plain_parameters_find_their_stages():
    assert Config.from_parameters(Config.preset("paper").parameters()) == Config.preset("paper")
    assert Config.from_parameters({"measure": "cosine"}).retrieval.measure == "cosine"


def network(n_variates, window_length, n_outputs):
    raise NotImplementedError


@pytest.mark.parametrize("backbone", [network, functools.partial(network, n_outputs=1)])
def test_a_backbone_of_ones_own_is_written_by_its_name(backbone):
    config = Config(backbone=BackboneConfig(backbone=backbone))
    assert config.tables()["backbone"]["backbone"] == f"{__name__}:network"
    assert f'"{__name__}:network"' in config.to_toml()


# The hash -----------------------------------------------------------------------------------------------------


def test_the_hash_is_the_same_in_another_process():
    script = "from raxss.estimator.config import Config; print(Config.preset('paper').hash)"
    environment = os.environ | {"PYTHONHASHSEED": "12345"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True)
    assert done.stdout.decode().strip() == Config.preset("paper").hash
    assert len(Config().hash) == 12


def test_the_hash_changes_with_every_setting():
    changes = {
        "scaling": "none",
        "missing": "nan",
        "share_missing": True,
        "context": True,
        "backbone": "patchtst",
        "backbone_options": {"dropout": 0.1},
        "window_length": 128,
        "stride": 16,
        "validation_fraction": 0.25,
        "space": "signal",
        "measure": "cosine",
        "bank": "batch",
        "refresh": "epoch",
        "weighting": "uniform",
        "temperature": "learned",
        "calibration": "isotonic",
        "calibration_level": "series",
        "augmentation": {"flip": 0.5},
        "precision": "float32",
        "batch_size": 32,
        "max_epochs": 3,
        "patience": 3,
        "update_batch_norm": False,
        "class_weight": {"ill": 5},
        "decision_threshold": "tuned",
    }
    hashes = {Config().hash}
    for name, value in Config().parameters().items():
        other = changes[name] if name in changes else value + (0.25 if isinstance(value, float) else 1)
        hashes.add(Config.from_parameters({name: other}).hash)
    assert len(hashes) == 1 + len(setting_homes())


def test_settings_have_the_hash_from_before_there_were_others():
    hashes = {"paper": "d03895445e62", "sss": "a0bbeffc38fc", "tuned": "6c99b9a5c82c"}
    windows = {"windows": {"window_length": 1024, "stride": 128}}  # their defaults before they were chosen
    assert {name: Config.preset(name).updated(windows).hash for name in MEASURED} == hashes


def test_automatic_augmentation_is_no_setting_of_a_fitted_model():
    with pytest.raises(ConfigError, match="augmentation is 'auto', which fit resolves"):
        Config.from_tables(Config().tables())


def test_a_section_replaces_automatic_augmentation_and_the_word_replaces_a_section():
    flipped = Config().updated({"augmentation": {"flip": 0.5}})
    assert flipped.augmentation == AugmentationConfig(flip=0.5)
    assert Config.from_toml("[augmentation]").augmentation == AugmentationConfig()
    assert Config.from_toml('augmentation = "auto"', start=flipped) == Config()
    assert len({Config().hash, flipped.hash, Config.from_toml("[augmentation]").hash}) == 3


def test_settings_of_an_earlier_version_get_what_stood_for_those_that_came_later():
    tables = Config().tables()
    for stage in tables.values():
        for name in set(stage) & set(ADDED_LATER):
            del stage[name]
    del tables["augmentation"]
    read = Config.from_tables(tables).parameters()
    assert {name: read[name] for name in ADDED_LATER} == dict(ADDED_LATER)


@pytest.mark.parametrize("preset", MEASURED)
def test_the_numbers_of_a_preset_do_not_depend_on_the_data(preset):
    training = Config.preset(preset).training
    assert not training.update_batch_norm
    for n_windows, n_validation in ((1, 0), (50, 6), (10**6, 1000)):
        plan = training.for_windows(n_windows, n_validation=n_validation)
        assert plan.chooses_epoch
        assert dataclasses.asdict(plan).items() >= dataclasses.asdict(training).items()


@pytest.mark.parametrize("n_windows", [1, 2, 7, 8, 9, 23, 44, 63, 64, 65, 175, 511, 512, 513, 4096, 10**6])
def test_however_small_the_data_there_are_enough_steps(n_windows):
    plan = TrainingConfig().for_windows(n_windows, n_validation=0)
    n_steps = math.ceil(n_windows / plan.batch_size) * plan.max_epochs
    assert n_steps >= 600 or plan.max_epochs == 200
    assert 8 <= plan.batch_size <= 64
    assert plan.max_epochs >= 20 or 4000 <= n_steps < 4000 + n_steps / plan.max_epochs


@pytest.mark.parametrize("name", ["batch_size", "max_epochs", "patience"])
def test_a_number_that_was_given_is_kept_beside_automatic_ones(name):
    plan = TrainingConfig(**{name: 3}).for_windows(44, n_validation=6)
    assert getattr(plan, name) == 3


def test_few_validation_series_choose_no_epoch_unless_patience_was_given():
    assert not TrainingConfig().for_windows(500, n_validation=49).chooses_epoch
    assert TrainingConfig().for_windows(500, n_validation=50).chooses_epoch
    assert TrainingConfig(patience=5).for_windows(500, n_validation=6).chooses_epoch


@pytest.mark.parametrize("name", ["batch_size", "max_epochs", "patience"])
def test_another_word_than_auto_is_refused_with_the_setting(name):
    with pytest.raises(ConfigError, match=rf"training.{name} must be .* or 'auto', got 'automatic'"):
        TrainingConfig(**{name: "automatic"})


def test_one_sample_and_one_window_of_exclusion_are_told_apart():
    one_sample, one_window = RetrievalConfig(exclusion=1), RetrievalConfig(exclusion=1.0)
    assert one_sample.samples_of("exclusion", 256) == 1
    assert one_window.samples_of("exclusion", 256) == 256
    assert Config(retrieval=one_sample).hash != Config(retrieval=one_window).hash
    with pytest.raises(ConfigError, match=r"retrieval\.exclusion = 512\.0 .* as an integer: 512"):
        RetrievalConfig(exclusion=512.0)


# Bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("retrieval.mesure = 'cosine'", r"unknown setting 'retrieval.mesure'; did you mean 'measure'"),
        ("retreival.measure = 'cosine'", r"unknown section 'retreival'; did you mean 'retrieval'"),
        ("preset = 'recomended'", r"unknown preset 'recomended'; did you mean 'recommended'"),
        ("preset = 5", r"unknown preset 5"),
        ("preset = 'tuned'\nsignal = 'ekg'", r"signal.*'ekg'.*ecg"),
        ("preset = 'paper'\nsignal = 'eeg'", r"signal = 'eeg' goes with the preset 'tuned'"),
        ("preset = 'recommended'\nsignal = 'eeg'", r"'recommended' is one method for all .* Choose 'tuned'"),
        ("augmentation = 'light'", r"'augmentation' must be a section .* got 'light'"),
        ("signal = 'eeg'", r"unknown section 'signal'"),
        ("retrieval = 3", r"'retrieval' must be a section with settings, \[retrieval\], got 3"),
        ("retrieval.measure = 'pearsn'", r"retrieval.measure is 'pearsn'; did you mean 'pearson'"),
        ("retrieval.bank = 'locl'", r"retrieval.bank is 'locl'; did you mean 'local'"),
        ("retrieval.bank_size = 0", r"retrieval.bank_size must be a whole number of at least 1, got 0"),
        ("retrieval.n_neighbors = 2.5", r"retrieval.n_neighbors must be a whole number.* got 2\.5"),
        ("retrieval.n_neighbors = true", r"retrieval.n_neighbors .* got True"),
        ("retrieval.exclusion = -1", r"retrieval.exclusion must be a number of at least 0, got -1"),
        ("retrieval.spread = 'wide'", r"retrieval.spread must be a number of at least 0, got 'wide'"),
        ("windows.window_length = '1024'", r"windows.window_length .* got '1024'"),
        ("preparation.scaling = 'zscore'", r"preparation.scaling is 'zscore'\. Known: train, series, none"),
        ("backbone.backbone_options = 3", r"backbone.backbone_options must be a mapping.* got 3"),
        ("aggregation.weighting = 'unifrom'", r"aggregation.weighting is 'unifrom'; did you mean 'uniform'"),
        ("aggregation.temperature = 0", r"temperature must be a number > 0 or 'learned', got 0\."),
        ("aggregation.temperature = nan", r"aggregation.temperature .* got nan"),
        ("aggregation.temperature = 'learnd'", r"aggregation.temperature .* got 'learnd'"),
        ("aggregation.smoothing = 1.5", r"aggregation.smoothing must be a number from 0 .* to 1 .* got 1\.5"),
        ("retrieval.projection = -1", r"retrieval.projection must be a whole number of at least 0, got -1"),
        ("retrieval.refresh = 'epochs'", r"retrieval.refresh is 'epochs'; did you mean 'epoch'"),
        ("calibration.calibration = 'isotonik'", r"calibration is 'isotonik'; did you mean 'isotonic'"),
        ("augmentation.flp = 0.5", r"unknown setting 'augmentation.flp'; did you mean 'flip'"),
        ("augmentation.flip = 2", r"augmentation.flip must be a number from 0 to 1, got 2"),
        ("training.batch_size = 0", r"batch_size must be a whole number of at least 1 or 'auto', got 0"),
        ("training.patience = -1", r"patience must be a whole number of at least 0 or 'auto', got -1"),
        ("training.lr = nan", r"training.lr must be a number of at least 0, got nan"),
        ("training.lr = -1e-3", r"training.lr must be a number of at least 0, got -0\.001"),
        ("training.validation_fraction = 1", r"training.validation_fraction .* below 1, or 'auto', got 1"),
        ("training.precision = 'float16'", r"training.precision is 'float16'; did you mean 'bfloat16'"),
        ("training.window_loss_weight = 0", r"training.window_loss_weight and .* both 0"),
        ("[retrieval\n", r"not valid TOML: .*line 1"),
    ],
)
def test_a_setting_that_is_wrong_is_named_with_its_value(text, message):
    with pytest.raises(ConfigError, match=message):
        Config.from_toml(text)


IN_FEATURES = {"space": "features", "refresh": "epoch"}
IN_BATCH = {"space": "features", "refresh": "batch"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bank": "batch", "spread": 5, "space": "signal"}, r"spread = 5 and space = 'signal'"),
        ({"bank": "batch", "space": "features"}, r"spread = 0 and space = 'features'"),
        ({"bank": "batch", "weighting": "random", "space": "signal"}, r"weighting = 'random'"),
        ({"refresh": "epoch", "space": "signal"}, r"refresh = 'epoch' goes with .* got space = 'signal'"),
        (IN_FEATURES | {"spread": 5}, r"got spread = 5 and bank = 'series'"),
        (IN_FEATURES | {"bank": "local"}, r"got spread = 0 and bank = 'local'"),
        (IN_BATCH, r"refresh = 'batch' is for the series loss, but training.series_loss_weight is 0"),
        (
            IN_BATCH | {"weighting": "shuffled", "series_loss_weight": 1},
            r"refresh = 'batch' does not go with aggregation.weighting = 'shuffled'",
        ),
        ({"weighting": "gated"}, r"'gated' is learned by the series loss, .* is 0"),
        ({"weighting": "gated-inverse"}, r"'gated-inverse' is a control, for prediction"),
        (
            {"space": "features", "weighting": "gated", "series_loss_weight": 1},
            r"'gated' in space = 'features' .*refresh is 'never'",
        ),
        ({"projection": 8}, r"projection = 8 is learned .* got refresh = 'never'"),
        (
            IN_BATCH | {"projection": 8, "weighting": "uniform", "series_loss_weight": 1},
            r"projection = 8 is learned .* weighting = 'uniform'",
        ),
        ({"temperature": "learned", "weighting": "uniform"}, r"weighting = 'uniform'"),
        ({"temperature": "learned", "validation_fraction": 0}, r"validation_fraction is 0"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_in_training(settings, message):
    config = Config.from_parameters(settings)
    with pytest.raises(ConfigError, match=message):
        config.check_fit()


def test_an_unknown_parameter_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match="unknown setting 'temprature'; did you mean 'temperature'"):
        Config.from_parameters({"temprature": 0.1})


@pytest.mark.parametrize(
    ("value", "message"),
    [(None, "holds None"), (2**63, "holds 9223372036854775808, which is larger than the 64")],
)
def test_an_option_that_no_file_can_hold_is_refused_before_training(value, message):
    with pytest.raises(ConfigError, match=f"backbone_options {message}"):
        BackboneConfig(backbone_options={"dropout": value})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "settings file 'mine.toml': No such file"),
        (b"\xff\xfe", "settings file 'mine.toml': .*not UTF-8 in line 1"),
        (b"a = = 1", "settings file 'mine.toml': .*not valid TOML"),
        (b"[windows]\nstrid = 3", "settings file 'mine.toml': .*'windows.strid'; did you mean 'stride'"),
    ],
)
def test_a_settings_file_that_cannot_be_used_is_named(tmp_path, content, message):
    if content is not None:
        (tmp_path / "mine.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        Config.from_file(tmp_path / "mine.toml")


def test_settings_do_not_change_once_made():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().training.lr = 1.0
