"""The default of the estimator: windows chosen from the data, and a mixture that is validated out of fold."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from raxss import RAxSSClassifier, Series
from raxss.data.datasets import load_sample
from raxss.errors import ConfigError
from raxss.estimator.at_once import FoldPredictor, drawn_windows, series_folds, some_series
from raxss.estimator.candidates import Facts
from raxss.estimator.config import Config
from raxss.estimator.fit import augmentation_for
from raxss.method.augmentation import LIGHT, STRONG, AugmentationConfig
from raxss.method.backbones.mixture import Mixture, members_for
from raxss.method.windows import WindowConfig, plan_windows
from toys import planted

SMALL = [
    {"backbone": "ridge", "view": "statistics"},
    {"backbone": "extra-trees", "n_trees": 20},
    {"backbone": "convnet", "width": 4},
]


@pytest.mark.parametrize(
    ("lengths", "rate", "window_length", "stride"),
    [
        ([150] * 50, None, 150, 18),  # each series is one window
        ([7, 29, 12], None, 29, 3),
        ([1], None, 1, 1),
        ([1536], 1.0, 1536, 192),
        ([1700] * 9, None, 850, 106),  # half of the median
        ([4097] * 9, None, 1024, 128),
        ([3000] * 9, None, 1024, 128),  # between a quarter and half
        ([10_240] * 9, 512.0, 2560, 320),  # a quarter of the median
        ([9000] * 9, 100.0, 1024, 128),  # ten seconds are 1000 samples, and 1024 are the fewest
        ([10**6] * 3, 1000.0, 4096, 512),
        ([6000] * 400, 100.0, 3000, 375),  # half of the median of many series
        ([9000] * 400, 300.0, 4096, 512),
        ([10**6] * 3000, 1000.0, 4096, 2048),  # stride of half a window at most
    ],
)
def test_windows_are_chosen_from_lengths_rate_and_number(lengths, rate, window_length, stride):
    plan = plan_windows(WindowConfig(), lengths, rate=rate)
    assert (plan.window_length, plan.stride) == (window_length, stride)
    assert plan.reason


@pytest.mark.parametrize("given", [{"window_length": 64}, {"stride": 5}, {"window_length": 64, "stride": 5}])
def test_what_is_given_is_kept(given):
    plan = plan_windows(WindowConfig(**given), [300, 500])
    assert {name: getattr(plan, name) for name in given} == given
    assert plan.settings(given.get("window_length", "auto")).stride == plan.stride


def test_a_given_window_is_cut_to_the_longest_series_and_the_setting_stays():
    plan = plan_windows(WindowConfig(window_length=1000), [300, 500])
    assert (plan.window_length, plan.settings(1000).window_length) == (500, 1000)


@pytest.mark.parametrize(
    ("window_length", "n_series", "trains", "chosen"),
    [(256, 399, True, LIGHT), (256, 400, True, STRONG), (256, 400, False, {}), (16, 400, True, {})],
)
def test_augmentation_depends_on_the_number_of_series(window_length, n_series, trains, chosen):
    found = augmentation_for(Config(), window_length, n_series=n_series, trains=trains)
    assert found == AugmentationConfig(**chosen)
    given = Config(augmentation=AugmentationConfig(gain=0.5))
    assert augmentation_for(given, window_length, n_series=n_series, trains=trains).gain == 0.5


@pytest.fixture(scope="module")
def fitted():
    series, targets = planted("frequency", 60, seed=1)
    groups = np.arange(60) // 2
    return RAxSSClassifier(random_state=0).fit(series[:40], targets[:40], groups[:40]), series, targets


def test_without_settings_it_learns_and_no_series_is_set_aside(fitted):
    model, series, targets = fitted
    assert (model.predict(series[40:]) == targets[40:]).mean() > 0.9
    assert model.training_data_["n_validation"] == 0
    assert model.validation_report_.n_series == 40
    assert model.learning_report_.is_out_of_fold


@pytest.mark.parametrize(
    ("n_series", "length", "n_variates", "more", "network"),
    [
        (50, 150, 1, True, False),
        (50, 1536, 1, True, False),
        (50, 1537, 1, False, False),  # longer series are several windows
        (512, 1024, 1, True, True),
        (512, 1025, 1, False, True),  # more samples
        (50, 1024, 11, False, False),
        (0, 0, 1, False, False),
    ],
)
def test_members_follow_number_and_lengths_of_series(n_series, length, n_variates, more, network):
    views = [member.get("view") for member in members_for([length] * n_series, n_variates)]
    assert ("multirocket" in views, "hydra" in views) == (more, more)
    assert (None in views) == network  # a network has none
    assert views[:4] == ["ppv", "ppv", "statistics", "statistics"]


def test_the_choice_is_in_the_settings_of_a_saved_model(fitted, tmp_path):
    model, series, _ = fitted
    again = RAxSSClassifier.from_pretrained(model.save_pretrained(tmp_path / "model"))
    assert (again.window_length, again.stride) == (model.window_length_, model.stride_)
    assert len(again.backbone_options["members"]) == 6
    assert model.get_params()["window_length"] == "auto"
    np.testing.assert_array_equal(again.predict_proba(series[40:]), model.predict_proba(series[40:]))


def test_the_card_names_the_members_and_no_augmentation_that_nothing_used(fitted, tmp_path):
    card = (fitted[0].save_pretrained(tmp_path / "model") / "README.md").read_text()
    (line,) = [line for line in card.splitlines() if line.startswith("- windows are scored by: ")]
    members, _, disturbed = line.partition("; of disturbed windows ")
    for part, n_of_each in ((members, 2), (disturbed, 1)):
        weights = [float(word) for word in part.replace(",", " ").split() if word.startswith(".")]
        assert part.count("Ridge on ppv") == part.count("ExtraTrees on statistics") == n_of_each
        assert sum(weights) == pytest.approx(1, abs=0.03)
    assert "augmentation" not in card


def test_out_of_fold_predictions_are_those_of_the_backbone_without_the_fold(fitted):
    model, series, _ = fitted
    folds = np.arange(6) % 3
    found = list(FoldPredictor(model.predictor(), folds).predictions(model.known_series(series[:6])))
    for fold, item in zip(folds, found, strict=True):
        alone = FoldPredictor(model.predictor(), np.array([fold]))
        (again,) = alone.predictions([item.series])
        np.testing.assert_array_equal(again.probability, item.probability)


def test_groups_share_a_fold_and_one_group_has_none():
    groups = np.arange(40) // 4
    folds = series_folds(np.arange(40) % 2, groups, seed=0)
    assert all(len(set(folds[groups == group])) == 1 for group in set(groups))
    assert series_folds(np.array([0, 1]), np.array(["a", "a"]), seed=0).tolist() == [-1, -1]


def test_some_series_are_usable_and_in_a_fold():
    folds, usable = np.array([0, -1, 1, 1]), np.array([True, True, False, True])
    assert some_series(folds, usable, seed=0).tolist() == [0, 3]


def test_every_series_has_a_window_among_those_drawn():
    class Pool:
        series, targets = torch.arange(500).repeat_interleave(20), torch.arange(500) % 2
        strip, window_length = np.zeros((1, 1)), 2**16

        def __len__(self):
            return len(self.series)

    drawn = drawn_windows(Pool(), seed=0)
    assert len(drawn) == len(set(drawn.tolist())) == 2**27 // 2**16
    assert set(Pool.series[drawn].tolist()) == set(range(500))


def test_a_network_in_a_mixture_is_weighed_by_the_validation_set(tmp_path):
    series, targets = planted("frequency", 48, seed=2)
    model = RAxSSClassifier(backbone_options={"members": SMALL}, max_epochs=2, random_state=0)
    model.fit(series, targets)
    weights = model.backbone_.weights.numpy()
    assert weights.sum() == pytest.approx(1)
    assert weights[2] < 0.3 < weights[0]  # two epochs are too few for the network, and it began with a third
    assert model.training_data_["n_validation"] == 6
    again = RAxSSClassifier.from_pretrained(model.save_pretrained(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict_proba(series), model.predict_proba(series))


def test_class_weights_reach_the_weights_of_a_mixture_with_a_network(monkeypatch):
    given, weigh = [], Mixture.weigh_by_validation
    monkeypatch.setattr(
        Mixture, "weigh_by_validation", lambda *items: given.append(items[1:]) or weigh(*items)
    )
    series, targets = planted("frequency", 48, seed=2)
    for setting in (None, {0: 1, 1: 3}):
        options = {"members": SMALL}
        RAxSSClassifier(backbone_options=options, max_epochs=1, random_state=0, class_weight=setting).fit(
            series, targets
        )
    (*_, none), (_, classes, _, weights) = given
    assert none is None
    np.testing.assert_allclose(weights, np.where(classes == 1, 1.5, 0.5))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"lr": 1.0}, "lr has no effect: the backbone Mixture is fitted at once"),
        (
            {"lr": 1.0, "max_epochs": 3, "augmentation": {"flip": 0.5}},
            "max_epochs, lr and augmentation have no effect",
        ),
        ({"class_weight": "balanced", "validation_fraction": 0.2, "augmentation": None}, ""),
        ({}, ""),
    ],
)
def test_settings_without_effect_are_named_in_the_log(settings, line, caplog):
    series, targets = planted("frequency", 24, seed=3)
    options = {"members": SMALL[:2]}
    RAxSSClassifier(backbone_options=options, random_state=0, **settings).fit(series, targets)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == bool(line)
    assert line in "".join(warned)


@pytest.mark.parametrize(
    "settings", [{"series_loss_weight": 1.0}, {"refresh": "epoch"}, {"bank": "batch", "space": "signal"}]
)
def test_settings_of_networks_are_refused_with_a_remedy(settings):
    series, targets = planted("frequency", 12, seed=3)
    with pytest.raises(ConfigError, match=r"is for networks, .* or choose a network as backbone"):
        RAxSSClassifier(**settings).fit(series, targets)


# Single series and windows that do not suit


def test_one_long_series_does_not_change_windows_and_members_of_the_others():
    usual, with_one = [150] * 99, [150] * 99 + [1650]
    assert plan_windows(WindowConfig(), with_one).window_length == 150
    assert members_for(with_one) == members_for(usual)
    many = [150] * 80 + [1650] * 20
    assert plan_windows(WindowConfig(), many).window_length == 75


def test_windows_hold_heart_beats_where_series_show_them(caplog):
    sample = load_sample()[list(range(12))]
    short = RAxSSClassifier(window_length=256, random_state=0).fit(sample)
    assert not any("beats" in part for part in short.backbone_.describe_as.split(", "))
    faster = [replace(item, samples=item.samples.repeat(4, axis=1), rate=4 * item.rate) for item in sample]
    facts = Facts.of(faster)
    assert (facts.window_length, facts.has_beats) == (
        4096,
        False,
    )  # 3.4 s; four seconds would be 4800 samples
    doubled = [replace(item, samples=item.samples.repeat(3, axis=1), rate=3 * item.rate) for item in sample]
    facts = Facts.of(doubled)
    assert (facts.window_length, facts.has_beats) == (4096, True)


def test_too_few_windows_for_the_neighbours_are_said(caplog):
    rng = np.random.default_rng(0)
    with caplog.at_level("INFO", logger="raxss"):
        RAxSSClassifier(backbone="ridge", window_length=100, stride=50).fit(
            rng.normal(size=(8, 200)), [0, 1] * 4
        )
    assert (
        "8 of 8 series have fewer than 11 windows, so that these have fewer than 10 neighbours" in caplog.text
    )


def test_another_gain_is_no_disturbance():
    rng = np.random.default_rng(1)
    waves = np.sin(np.arange(200) * rng.choice([0.2, 0.3], size=(40, 1)))
    X = waves + 0.1 * rng.normal(size=(40, 200))
    model = RAxSSClassifier(random_state=0).fit(X[:30], (waves[:30, 1] > 0.25).astype(int))
    scaled = torch.from_numpy(np.stack([model.scaling_.apply(Series(row)).samples for row in X[30:]])).float()
    members = model.backbone_.disturbed
    shares = [members.share(gain * scaled).mean().item() for gain in (1.0, 2.0, 4.0)]
    assert max(shares) <= shares[0] + 1e-6
    assert members.share(scaled + 2 * torch.randn(scaled.shape)).mean() > 0.5
