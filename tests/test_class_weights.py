"""Class weights: their values, and their part in the loss and in the choice of the epoch."""

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from raxss import RAxSSClassifier
from raxss.errors import ConfigError, LabelError, ModelError
from raxss.estimator.config import Config
from raxss.method.class_weights import checked_class_weight, class_weights
from raxss.method.training.loop import train, validate
from raxss.method.training.step import Learner, batch_loss
from resealed import reseal
from toys import SIGNAL, SMALL, Tiny, pool_of, training_plan, waves

# The weights ---------------------------------------------------------------------------------------------------


def test_balanced_weights_are_those_of_scikit_learn(rng):
    targets = np.concatenate([np.arange(3), rng.integers(0, 3, size=50)])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=targets)
    np.testing.assert_allclose(class_weights("balanced", np.array(["a", "b", "c"]), targets), expected)


@pytest.mark.parametrize("setting", ["balanced", {"a": 3, "b": 0.5}, {"b": 10}])
def test_the_mean_weight_of_the_training_series_is_one(setting):
    targets = np.array([0, 0, 0, 0, 1])
    assert class_weights(setting, np.array(["a", "b"]), targets)[targets].mean() == pytest.approx(1)


def test_only_ratios_of_the_weights_matter():
    classes, targets = np.array([0, 1]), np.array([0, 0, 1])
    found = [class_weights({0: 2 * scale, 1: 7 * scale}, classes, targets) for scale in (1, 1000)]
    np.testing.assert_allclose(*found)
    assert found[0][1] / found[0][0] == pytest.approx(3.5)


@pytest.mark.parametrize(
    ("classes", "named"),
    [
        (np.array([0, 1]), {0: 1, 1: 4}),
        (np.array([0, 1]), {"0": 1, "1": 4}),  # as a settings file has it
        (np.array([0.0, 1.0]), {0: 1, 1: 4}),
        (np.array([False, True]), {False: 1, True: 4}),
        (np.array([False, True]), {0: 1, 1: 4}),
        (np.array(["no", "yes"]), {"yes": 4}),
        (np.array(["no", "yes"], dtype=object), {"no": 1, "yes": 4, "perhaps": 9}),
        (np.array([0, 1]), {np.int64(0): 1, np.int64(1): np.float64(4)}),
    ],
)
def test_labels_are_found_by_value_or_as_text(classes, named):
    weights = class_weights(named, classes, np.array([0, 1]))
    assert weights[1] / weights[0] == pytest.approx(4)


def test_no_setting_weighs_all_the_same():
    for setting in (None, {}):
        np.testing.assert_array_equal(class_weights(setting, np.array([3, 5]), np.array([0, 0, 1])), [1, 1])


@pytest.mark.parametrize("setting", ["even", 3, [1, 2], {"a": -1}, {"a": "two"}, {"a": True}, {1: 2, "1": 3}])
def test_what_is_no_weight_of_classes_is_refused_with_the_setting(setting):
    with pytest.raises(ConfigError, match=r"training\.class_weight"):
        checked_class_weight(setting)


def test_a_label_that_is_no_class_is_named(rng):
    with pytest.raises(LabelError, match=r"'slw', and the classes .* 'fast', 'slow'"):
        RAxSSClassifier(**SMALL, class_weight={"slw": 5}).fit(waves(rng))
    with pytest.raises(LabelError, match="0 for every class of the 2 training series"):
        class_weights({"a": 0, "b": 0, "c": 1}, np.array(["a", "b"]), np.array([0, 1]))


@pytest.mark.parametrize("setting", ["balanced", {"0": 1, "1": 25.5}, {"a class": 2}])
def test_a_settings_file_keeps_them(setting):
    config = Config.from_parameters({"class_weight": setting})
    assert Config.from_toml(config.to_toml()) == config
    assert config.training.class_weight == setting
    assert config.hash != Config().hash == Config.from_parameters({"class_weight": None}).hash


def test_a_mapping_changed_in_place_is_noticed(rng):
    weights = {"slow": 1, "fast": 2}
    model = RAxSSClassifier(**SMALL, class_weight=weights).fit(waves(rng))
    weights["fast"] = 3
    assert model.config.training.class_weight == {"slow": 1, "fast": 3}


@pytest.mark.parametrize(
    ("labels", "setting"),
    [
        ((0, 1), {0: 1, 1: 2.5}),
        ((0, 1), {"0": 1, "1": 5}),
        ((0, 1), {np.int64(1): np.float64(4)}),
        ((0.0, 2.0), {0: 1, 2.0: 3}),
        ((False, True), {False: 1, True: 2}),
        (("no", "yes"), {"yes": 2}),
        ((0, 1), "balanced"),
        ((0, 1), None),
    ],
)
def test_a_saved_model_keeps_the_labels_as_they_were_given(rng, tmp_path, labels, setting):
    targets = np.array(labels)[np.arange(12) % 2]
    options = {"view": "statistics"}
    model = RAxSSClassifier("ridge", backbone_options=options, random_state=0, class_weight=setting)
    model.fit(rng.normal(size=(12, 20)), targets)
    folder = model.save_pretrained(tmp_path / "model")
    again = RAxSSClassifier.from_pretrained(folder)
    assert again.get_params()["class_weight"] == model.get_params()["class_weight"]
    assert again.config_ == model.config_
    once_more = RAxSSClassifier.from_pretrained(again.save_pretrained(tmp_path / "again"))
    assert once_more.class_weight == setting
    if isinstance(setting, dict):
        reseal(folder, lambda facts: facts.pop("class_weight"))  # as folders before had none
        old = RAxSSClassifier.from_pretrained(folder).class_weight
        assert set(old) <= set(labels)
        assert list(old.values()) == list(setting.values())
        reseal(folder, lambda facts: facts.update(class_weight=[[0, 7]]))
        with pytest.raises(ModelError, match="its class_weight is not that of its settings"):
            RAxSSClassifier.from_pretrained(folder)


# Their part in the loss ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("losses", [(1.0, 0.0), (0.0, 1.0), (0.5, 2.0)])
def test_the_weighted_loss_is_the_naive_sum(rng, losses):
    window, whole = losses
    logits, targets = torch.from_numpy(rng.normal(size=(12, 3))), torch.tensor([0, 2, 1])
    series, weights = torch.tensor([0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]), torch.tensor([0.5, 3.0, 1.25])
    found = batch_loss(
        logits,
        torch.zeros(12),
        series,
        targets,
        temperature=torch.tensor(1.0),
        window_loss_weight=window,
        series_loss_weight=whole,
        class_weights=weights,
    )
    posteriors, expected = torch.softmax(logits, dim=1), 0.0
    for place in range(12):
        label = int(targets[series[place]])
        expected -= window * float(weights[label] * torch.log(posteriors[place, label])) / 12
    for index in range(3):
        label = int(targets[index])
        expected -= (
            whole * float(weights[label] * torch.log(posteriors[series == index].mean(dim=0)[label])) / 3
        )
    assert float(found) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("whole", [False, True])
def test_weights_of_one_are_no_weights(rng, whole):
    series = waves(rng)
    options = {"window_loss_weight": float(not whole), "series_loss_weight": float(whole)}
    plain, weighted = (
        RAxSSClassifier(Tiny, **SIGNAL, **options, class_weight=setting).fit(series)
        for setting in (None, {"slow": 7, "fast": 7})
    )
    np.testing.assert_allclose(plain.predict_proba(series), weighted.predict_proba(series), rtol=1e-5)


def test_a_class_without_weight_teaches_nothing(rng):
    series = waves(rng, n_series=18, n_classes=3)
    model = RAxSSClassifier(**{**SMALL, "max_epochs": 8}, class_weight={"faster": 0}).fit(series)
    assert "faster" not in model.predict(series)


def test_validation_has_the_weighted_loss_and_accuracy_beside_the_plain_ones(rng):
    pool = pool_of(waves(rng))
    learner = Learner(Tiny(1, 32, 1), temperature=0.1, learned=False)
    plain = validate(learner, pool)
    weighted = validate(learner, pool, class_weights=torch.tensor([0.25, 1.75]))
    assert "validation_weighted_accuracy" not in plain
    for name in ("validation_accuracy", "validation_balanced_accuracy", "validation_f1"):
        assert weighted[name] == plain[name]
    assert weighted["validation_loss"] != plain["validation_loss"]
    even = validate(learner, pool, class_weights=torch.tensor([1.0, 1.0]))
    assert even["validation_weighted_accuracy"] == pytest.approx(plain["validation_accuracy"])
    assert even["validation_loss"] == pytest.approx(plain["validation_loss"])


def test_the_best_epoch_is_by_the_weighted_accuracy(rng):
    pool, validation = pool_of(waves(rng)), pool_of(waves(rng))
    learner = Learner(Tiny(1, 32, 1), temperature=0.1, learned=False)
    config, weights = training_plan(max_epochs=6, patience=0, lr=0.1), np.array([0.1, 1.9])
    trained = train(
        learner, pool, validation, config=config, seed=1, fingerprint="toy", class_weights=weights
    )
    best = max(
        trained.history, key=lambda row: (row["validation_weighted_accuracy"], -row["validation_loss"])
    )
    assert trained.best_epoch == best["epoch"]
