"""Every system can be made with its settings, and refuses unknown ones."""

import json

import numpy as np
import pytest
from sklearn.base import clone

from raxss import AutoRAxSS, RAxSSClassifier
from raxss._core.atomic import json_ready
from raxss.benchmark.systems import BUDGET, LENGTHS, ONE_ITEM_A_SERIES, PEERS, SYSTEMS, System, find_system
from raxss.errors import ConfigError
from raxss.estimator.config import Config, without_additions
from raxss.method.windows import WindowConfig, window_starts
from toys import waves

WINDOWS = WindowConfig(window_length=64, stride=16)
PAPER = (
    "raxss-cosine raxss-pearson sss sss-calibrated patchtst timesnet moderntcn dlinear rocket mamba gru lstm"
)
MORE = "patchtst-window attention-mil conjunctive-mil minirocket features-forest all-positive tuned"
TABLE = [*PAPER.split(), *MORE.split(), "recommended", "auto"]
FIXED = ("patchtst", "timesnet", "moderntcn", "dlinear")


def test_the_table_has_the_systems_of_the_paper_and_further_baselines():
    assert list(SYSTEMS) == TABLE
    assert not set(SYSTEMS) & set(PEERS)
    known = {**SYSTEMS, **PEERS}
    assert all(system.name == name and system.description for name, system in known.items())


@pytest.mark.parametrize("name", [*TABLE, *PEERS])
def test_every_system_makes_an_estimator_that_clones_and_can_be_written_down(name):
    system = find_system(name)
    model = system.make(WINDOWS, seed=7, device="cpu", choice=system.choices_for(500)[0], longest=500)
    assert (model.random_state, model.device) == (7, "cpu")
    assert clone(model).get_params() == model.get_params()
    written = json.loads(json.dumps(json_ready(system.parameters(WINDOWS, longest=500))))
    assert written
    assert not {"random_state", "device"} & set(written)


def test_systems_differ_from_the_paper_in_what_they_are_about_and_nothing_else():
    paper = Config.preset("paper").parameters() | {"window_length": 64, "stride": 16}

    def differences(name):
        found = SYSTEMS[name].parameters(WINDOWS)
        return {key: found[key] for key in paper if found[key] != paper[key]}

    assert differences("raxss-pearson") == {}
    assert differences("raxss-cosine") == {"measure": "cosine"}
    assert differences("sss") == {"weighting": "uniform"}
    assert differences("patchtst-window") == {
        "weighting": "uniform",
        "window_loss_weight": 1.0,
        "series_loss_weight": 0.0,
    }
    calibrated, plain = (SYSTEMS[name].parameters(WINDOWS) for name in ("sss-calibrated", "sss"))
    assert {key: value for key, value in calibrated.items() if value != plain[key]} == {
        "calibration": "isotonic"
    }
    tuned = Config.preset("tuned").parameters()
    found = SYSTEMS["tuned"].parameters(WINDOWS)
    assert all(found[key] == value for key, value in tuned.items() if key not in ("window_length", "stride"))


@pytest.mark.parametrize(
    ("longest", "lengths"),
    [
        (400, [1000]),
        (1000, [1000]),
        (1001, [1000, 3000]),
        (4097, [1000, 3000, 5000]),
        (90_000, list(LENGTHS)),
    ],
)
def test_lengths_go_up_to_the_first_that_is_not_below_the_longest_series(longest, lengths):
    for name in (*FIXED, "rocket", "minirocket"):
        assert SYSTEMS[name].choices_for(longest) == [{"window_length": length} for length in lengths]
    for name in set(TABLE) - {*FIXED, "rocket", "minirocket"}:
        assert SYSTEMS[name].choices_for(longest) == [{}]


@pytest.mark.parametrize("longest", [300, 1000, 4097, 20_000])
def test_a_fixed_length_network_sees_one_window_a_series(longest):
    for choice in SYSTEMS["patchtst"].choices_for(longest):
        model = SYSTEMS["patchtst"].make(WINDOWS, seed=1, choice=choice, longest=longest)
        assert model.window_length == choice["window_length"]
        for n_samples in (1, longest // 2, longest):
            starts = window_starts(n_samples, window_length=model.window_length, stride=model.stride)
            assert starts.tolist() == [0]


def test_a_fixed_length_network_hears_nothing_of_what_lies_behind_the_first_samples(rng):
    data = waves(rng, n_series=12)
    longest = max(item.n_samples for item in data)
    model = SYSTEMS["patchtst"].with_settings("short", {"window_length": 50})
    model = model.make(WINDOWS, seed=1, device="cpu", longest=longest, training={"max_epochs": 1}).fit(data)
    tail = [item.with_samples(np.r_[item.samples[0, :50], np.zeros(longest - 50)]) for item in data]
    scaled = [model.scaling_.apply(item).samples[:, :50] for item in data]
    cut = [model.scaling_.apply(item).samples[:, :50] for item in tail]
    assert all(
        item.std() > 0 for item in scaled
    )  # PatchTST normalises each window, so the scale of the rest is gone
    assert not np.allclose(scaled[0], cut[0])
    np.testing.assert_allclose(model.predict_proba(tail), model.predict_proba(data), atol=1e-4)


def test_the_budget_reaches_networks_and_its_batches_of_windows_only_those_with_windows():
    budget = {"max_epochs": 3, "batch_size": 512, "lr": 0.01}
    for name, system in SYSTEMS.items():
        found = system.parameters(WINDOWS, training=budget, longest=500)
        if system.kind in ("windows", "mil"):
            assert {key: found[key] for key in budget} == budget, name
        elif system.is_network:
            expected = budget | {key: ONE_ITEM_A_SERIES[key] for key in ("batch_size", "lr")}
            assert {key: found[key] for key in budget} == expected, name
        elif not system.is_on_its_own:
            assert not set(budget) & set(found), name


def test_a_systems_own_settings_win_over_the_budget():
    mine = SYSTEMS["gru"].with_settings("gru", {"batch_size": 4, "max_epochs": 9})
    found = mine.parameters(WINDOWS, training={"max_epochs": 3, "batch_size": 512})
    assert (found["batch_size"], found["max_epochs"]) == (4, 9)


def test_settings_that_a_system_does_not_have_are_refused():
    with pytest.raises(ConfigError, match=r"'mine' has no setting 'stride'"):
        SYSTEMS["patchtst"].with_settings("mine", {"stride": 8})
    by_hand = System(name="hand", description="", kind="forest", settings={"n_tree": 3})
    with pytest.raises(ConfigError, match=r"'hand' has no setting 'n_tree'; did you mean 'n_trees'\?"):
        by_hand.make(WINDOWS, seed=1)


def test_a_value_is_checked_with_what_the_base_says_and_not_with_defaults():
    # the paper has a series loss alone, the defaults a window loss alone: without either nothing is learned
    SYSTEMS["raxss-pearson"].with_settings("mine", {"window_loss_weight": 0.0})
    with pytest.raises(ConfigError, match=r"system 'mine': .* both 0"):
        SYSTEMS["raxss-pearson"].with_settings("mine", {"series_loss_weight": 0.0})
    with pytest.raises(ConfigError, match=r"system 'mine': training.batch_size .* got 'many'"):
        SYSTEMS["gru"].with_settings("mine", {"batch_size": "many"})
    SYSTEMS["features-forest"].with_settings(
        "mine", {"n_trees": 3}
    )  # no setting of RAxSS; the forest's to judge


def test_the_budget_knows_only_settings_of_training():
    assert set(BUDGET) < set(Config.preset("paper").tables()["training"])


def test_window_accuracy_is_only_of_systems_that_score_windows():
    scoring = {name for name, system in SYSTEMS.items() if system.scores_windows}
    ours = "raxss-cosine raxss-pearson sss sss-calibrated patchtst-window tuned recommended"
    assert scoring == {*ours.split(), "conjunctive-mil"}


# Systems on their own ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["recommended", "auto"])
def test_nothing_that_a_study_says_reaches_a_system_on_its_own(name):
    system = SYSTEMS[name]
    plain = system.parameters(WINDOWS)
    budget = {"max_epochs": 3, "batch_size": 512, "lr": 0.01, "patience": 2, "weight_decay": 1.0}
    other = WindowConfig(window_length=7, stride=3)
    choice = {"window_length": 5}
    assert system.parameters(other, training=budget, choice=choice, longest=9, positive="b") == plain
    assert system.choices_for(90_000) == [{}]
    assert system.learns_from_all(plain)
    assert (system.uses_windows, system.is_network, system.is_on_its_own) == (False, False, True)


def test_recommended_is_the_estimator_without_any_setting():
    made = SYSTEMS["recommended"].make(WINDOWS, seed=7, device="cpu", training={"max_epochs": 3})
    assert made.get_params() == RAxSSClassifier(random_state=7, device="cpu").get_params()
    with pytest.raises(
        ConfigError, match=r"'recommended' .* sets n_neighbors of it\. .* base = \"recommended\""
    ):
        SYSTEMS["recommended"].with_settings("recommended", {"n_neighbors": 3})
    mine = SYSTEMS["recommended"].with_settings("mine", {"n_neighbors": 3})
    assert mine.make(WINDOWS, seed=7).get_params()["window_length"] == "auto"
    assert (mine.parameters(WINDOWS)["n_neighbors"], mine.base) == (3, "recommended")


def test_the_search_has_a_number_of_trials_and_no_time():
    made = SYSTEMS["auto"].make(WINDOWS, seed=7, device="cpu")
    assert made.get_params() == AutoRAxSS(n_trials=8, random_state=7, device="cpu").get_params()
    quick = SYSTEMS["auto"].with_settings("auto", {"n_trials": 2})
    assert quick.parameters(WINDOWS)["n_trials"] == 2
    for setting, value in (("budget", "5min"), ("candidates", [])):
        with pytest.raises(ConfigError, match=rf"system 'auto' sets '{setting}'; set n_trials"):
            SYSTEMS["auto"].with_settings("auto", {setting: value})
    with pytest.raises(ConfigError, match="'auto' sets 'folder', which the study decides"):
        SYSTEMS["auto"].with_settings("auto", {"folder": "here"})


# Settings that came later -------------------------------------------------------------------------------------


def test_a_system_may_change_its_training_windows_and_a_wrong_kind_is_named():
    mine = SYSTEMS["sss"].with_settings("mine", {"augmentation": {"flip": 0.5}})
    assert mine.make(WINDOWS, seed=1).config.augmentation.flip == 0.5
    assert without_additions(mine.parameters(WINDOWS))["augmentation"] == {"flip": 0.5}
    with pytest.raises(ConfigError, match=r"system 'mine': unknown setting 'augmentation\.flp'; .*'flip'"):
        SYSTEMS["sss"].with_settings("mine", {"augmentation": {"flp": 0.5}})
    with pytest.raises(ConfigError, match="augmentation"):
        SYSTEMS["attention-mil"].with_settings("mine", {"augmentation": {"flip": 0.5}})
