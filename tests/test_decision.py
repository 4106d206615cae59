"""Decision threshold: tuned against every threshold there is, out of fold, kept, shown and switched off."""

import json
import logging

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import TunedThresholdClassifierCV
from typer.testing import CliRunner

from raxss import RAxSSClassifier
from raxss.cli import app
from raxss.errors import ConfigError, DataError, ModelError
from raxss.estimator import at_once
from raxss.estimator import fit as steps
from raxss.estimator.out_of_fold import plan_folds
from raxss.estimator.persistence import describe_model
from raxss.explain.series_evidence import SeriesEvidence
from raxss.method import windows
from raxss.method.backbones import mixture
from raxss.uncertainty.decision import (
    INTERRUPTED,
    DecisionThreshold,
    balanced_accuracy,
    describe_factors,
    threshold_in_use,
    tuned_factors,
)
from resealed import reseal
from toys import NETWORK, StopAfter, waves

# Factors --------------------------------------------------------------------------------------------------------


def drawn(rng, n_classes, n_series=60):
    """Class indices, the last class rare, and probabilities that are too small for it."""
    share = np.array([4.0] * (n_classes - 1) + [1.0])
    targets = np.concatenate(
        [np.arange(n_classes), rng.choice(n_classes, size=n_series, p=share / share.sum())]
    )
    logits = rng.normal(size=(len(targets), n_classes))
    logits[np.arange(len(targets)), targets] += 2
    logits[:, -1] -= 2
    rows = np.exp(logits)
    return targets, rows / rows.sum(axis=1, keepdims=True)


def test_of_two_classes_no_threshold_has_a_larger_balanced_accuracy(rng):
    for _ in range(20):
        targets, rows = drawn(rng, 2)
        factors = tuned_factors(targets, rows)
        found = balanced_accuracy_score(targets, (rows * factors).argmax(axis=1))
        every = [balanced_accuracy_score(targets, rows[:, 1] > t) for t in (*rows[:, 1], 0.0)]
        assert found == pytest.approx(max(every))
        np.testing.assert_array_equal((rows * factors).argmax(axis=1), rows[:, 1] > factors[0])


def test_of_more_classes_no_factor_of_one_class_is_better(rng):
    for _ in range(10):
        targets, rows = drawn(rng, 4)
        factors = tuned_factors(targets, rows)
        found = balanced_accuracy_score(targets, (rows * factors).argmax(axis=1))
        assert found >= balanced_accuracy_score(targets, rows.argmax(axis=1))
        for class_ in range(4):
            for change in np.exp(np.linspace(-6, 6, 121)):
                other = np.where(np.arange(4) == class_, factors * change, factors)
                assert balanced_accuracy_score(targets, (rows * other).argmax(axis=1)) <= found + 1e-12
        assert factors.sum() == pytest.approx(1)


def test_what_cannot_be_improved_is_left_as_it_is():
    rows = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9]])
    np.testing.assert_array_equal(tuned_factors(np.array([0, 0, 1]), rows), [0.5, 0.5])
    constant = np.full((6, 2), 0.5)
    np.testing.assert_array_equal(tuned_factors(np.array([0, 0, 0, 0, 1, 1]), constant), [0.5, 0.5])


def test_probabilities_of_zero_are_no_obstacle():
    rows = np.array([[1.0, 0.0], [1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    assert (rows * tuned_factors(np.array([0, 0, 1, 1]), rows)).argmax(axis=1).tolist() == [0, 0, 1, 1]


def test_an_improvement_within_a_standard_error_is_not_made_use_of(rng):
    """Two of a hundred common series fewer are no reason to move the threshold towards four rare ones."""
    second = np.concatenate([rng.uniform(0, 0.4, size=98), [0.55, 0.56, 0.7, 0.8, 0.9, 0.95]])
    rows, targets = np.stack([1 - second, second], axis=1), np.repeat([0, 1], [100, 4])
    assert 0.56 < tuned_factors(targets, rows)[0] < 0.7
    tuned = DecisionThreshold.tuned(targets, rows)
    assert tuned.threshold == 0.5
    assert tuned.figures["argmax"] == tuned.figures["tuned"]
    many = DecisionThreshold.tuned(np.repeat(targets, 30), np.repeat(rows, 30, axis=0))
    assert 0.56 < many.threshold < 0.7
    assert many.figures["tuned"]["specificity"] == 1


def test_balanced_accuracy_is_that_of_scikit_learn_with_an_error_for_few(rng):
    targets, rows = drawn(rng, 3)
    guess = rows.argmax(axis=1)
    value, error = balanced_accuracy(targets, guess, 3)
    assert value == pytest.approx(balanced_accuracy_score(targets, guess))
    assert balanced_accuracy(np.array([0, 0, 1]), np.array([0, 0, 1]), 2)[1] > 0.1
    assert error < balanced_accuracy(targets[:12], guess[:12], 3)[1]


def test_a_class_that_is_missing_is_refused():
    with pytest.raises(DataError, match=r"of 3 classes 2 series have 2\."):
        tuned_factors(np.array([0, 1]), np.full((2, 3), 1 / 3))


def test_rules_in_words():
    assert describe_factors([0.1, 0.9], np.array([0, 1])) == "1 from a probability of 0.1 on, else 0"
    assert DecisionThreshold.of_interrupted(3).describe("abc").startswith("the largest of 0.333 P('a')")


# Out of fold ----------------------------------------------------------------------------------------------------


def test_folds_hold_whole_groups_and_every_class(rng):
    targets, groups = np.repeat([0, 1], [40, 8]), np.arange(48) // 2
    folds = plan_folds(targets, groups, targets[:0], n_classes=2, seed=3)
    assert len(folds) == 3
    assert sorted(np.concatenate([test for _, test in folds])) == list(range(48))
    for train, test in folds:
        assert not set(groups[train]) & set(groups[test])
        assert set(targets[train]) == {0, 1}


def test_a_validation_set_with_ten_of_each_class_needs_no_refits():
    targets = np.repeat([0, 1], 30)
    assert plan_folds(targets, None, targets[20:40], n_classes=2, seed=0) == []
    assert len(plan_folds(targets, None, targets[21:40], n_classes=2, seed=0)) == 3


def test_two_series_of_a_class_give_two_folds_and_one_is_refused(rng):
    assert len(plan_folds(np.array([0, 0, 0, 1, 1]), None, np.zeros(0, int), n_classes=2, seed=0)) == 2
    series = waves(rng, n_series=12)
    labels = np.array(["common"] * 11 + ["rare"])
    with pytest.raises(DataError, match=r"a class has 1 groups .* two groups of each class.*'argmax'"):
        RAxSSClassifier(**NETWORK, decision_threshold="tuned").fit([item.samples for item in series], labels)


@pytest.fixture(scope="module")
def series():
    return waves(np.random.default_rng(5), n_series=60)


@pytest.fixture(scope="module")
def by_refits(series):
    return RAxSSClassifier(**NETWORK, decision_threshold="tuned").fit(series[:30])


CLASSIFIERS = [{"backbone": "ridge", "view": "statistics"}, {"backbone": "extra-trees", "n_trees": 20}]


@pytest.fixture(scope="module")
def out_of_fold(series):
    options = {"members": CLASSIFIERS}
    model = RAxSSClassifier(backbone_options=options, decision_threshold="tuned", random_state=0)
    return model.fit(series[:45])


def test_of_window_classifiers_it_is_tuned_on_training_series_out_of_fold(out_of_fold, tmp_path):
    threshold = out_of_fold.decision_threshold_
    assert (threshold.source, threshold.n_series, threshold.n_folds) == ("out-of-fold", 45, 0)
    assert threshold.origin.startswith(
        "45 training series, each scored out of fold, by the model without its group"
    )
    folder = out_of_fold.save_pretrained(tmp_path / "model")
    assert RAxSSClassifier.from_pretrained(folder).decision_threshold_.origin == threshold.origin
    card = (folder / "README.md").read_text()
    assert "## Performance out of fold\n45 training series, scored out of fold, each by" in card
    for wrong in ("validation set", "validation series", "early stopping", "network", "best epoch"):
        assert wrong not in card, wrong


def test_rare_series_beyond_those_drawn_are_scored_for_the_threshold(series, monkeypatch):
    monkeypatch.setattr(at_once, "MOST_SERIES", 30)
    options = {"view": "statistics"}
    model = RAxSSClassifier("ridge", backbone_options=options, decision_threshold="tuned", random_state=0)
    labels = np.array(["common"] * 48 + ["rare"] * 12)
    model.fit([item.samples for item in series], labels)
    threshold = model.decision_threshold_
    assert (threshold.source, model.validation_report_.n_series) == ("out-of-fold", 30)
    assert 30 < threshold.n_series < 60
    assert threshold.figures["tuned"]["largest_share"] < 0.8


def test_refits_are_of_the_model_that_was_fitted(series, monkeypatch):
    """The default has a network from 45 series on here; a refit has 30 and would choose a mixture without it."""
    for module in (mixture, steps, windows):
        monkeypatch.setattr(module, "MANY_SERIES", 45)
    monkeypatch.setattr(mixture, "CLASSIFIERS", tuple(CLASSIFIERS))
    monkeypatch.setattr(mixture, "MORE_VIEWS", ())
    monkeypatch.setattr(mixture, "NETWORK", {"backbone": "convnet", "width": 4})
    fits, fit = [], RAxSSClassifier.fit
    monkeypatch.setattr(
        RAxSSClassifier,
        "fit",
        lambda model, *items, **named: fits.append(fit(model, *items, **named)) or model,
    )
    RAxSSClassifier(decision_threshold="tuned", max_epochs=1, random_state=0).fit(series[:48])
    *refits, whole = fits  # which is over last
    assert len(refits) == 3
    assert [table["backbone"] for table in whole.config_.backbone.backbone_options["members"]][
        -1
    ] == "convnet"
    for refit in refits:
        assert refit.config_.backbone == whole.config_.backbone
        assert refit.config_.augmentation == whole.config_.augmentation

        assert refit.config_.windows == whole.config_.windows


@pytest.fixture(scope="module")
def on_validation(series):
    return RAxSSClassifier(**NETWORK, decision_threshold="tuned").fit(series[:30], validation=series[30:])


def test_the_source_of_the_series_is_kept_and_logged(series, by_refits, on_validation, caplog):
    assert (by_refits.decision_threshold_.source, by_refits.decision_threshold_.n_series) == (
        "cross-validation",
        30,
    )
    assert (on_validation.decision_threshold_.source, on_validation.decision_threshold_.n_series) == (
        "validation",
        30,
    )
    assert "30 validation series" in on_validation.decision_threshold_.origin
    with caplog.at_level(logging.INFO, logger="raxss"):
        RAxSSClassifier(**NETWORK, decision_threshold="tuned").fit(series[:30])
    assert "refit 3 of 3" in caplog.text
    assert "tuned on 30 series, each scored by the one of 3 refits" in caplog.text


def test_refits_never_see_the_series_that_they_score(series, monkeypatch):
    fits, scored = [], []
    fit, predict_proba = RAxSSClassifier.fit, RAxSSClassifier.predict_proba

    def noting_fit(model, X, *arguments, **options):
        fits.append({item.digest for item in X})
        return fit(model, X, *arguments, **options)

    def noting_predict(model, X):
        scored.append({item.digest for item in X})
        return predict_proba(model, X)

    monkeypatch.setattr(RAxSSClassifier, "fit", noting_fit)
    monkeypatch.setattr(RAxSSClassifier, "predict_proba", noting_predict)
    model = RAxSSClassifier(**NETWORK, decision_threshold="tuned").fit(series[:30])
    whole, *refits = fits
    assert len(refits) == len(scored) == 3
    assert set.union(*scored) == whole
    groups = {item.digest: item.group for item in series}
    for seen, asked in zip(refits, scored, strict=True):
        assert not {groups[item] for item in seen} & {groups[item] for item in asked}
    assert model.decision_threshold_.n_folds == 3


def test_the_network_is_that_of_argmax(series, by_refits):
    plain = RAxSSClassifier(**NETWORK).fit(series[:30])
    np.testing.assert_array_equal(plain.predict_proba(series), by_refits.predict_proba(series))
    assert plain.decision_threshold_ is None
    np.testing.assert_array_equal(
        plain.predict(series), plain.classes_[plain.predict_proba(series).argmax(axis=1)]
    )


def test_an_interrupted_training_has_the_most_probable_class(series):
    class Interrupt(StopAfter):
        def on_epoch_end(self, record):
            raise KeyboardInterrupt

    model = RAxSSClassifier(**NETWORK, decision_threshold="tuned", callbacks=[Interrupt(1)]).fit(series[:30])
    assert model.interrupted_
    assert model.decision_threshold_.source == INTERRUPTED
    np.testing.assert_array_equal(
        model.predict(series), model.classes_[model.predict_proba(series).argmax(axis=1)]
    )


# What is made of it ---------------------------------------------------------------------------------------------


@pytest.fixture
def moved(on_validation, series, monkeypatch):
    """The model, with a threshold at the median of the probabilities, so that it decides otherwise than argmax."""
    median = float(np.median(on_validation.predict_proba(series)[:, 1]))
    away = median if abs(median - 0.5) > 0.01 else 0.3
    fitted = on_validation.decision_threshold_
    moved = DecisionThreshold.from_json({**fitted.to_json(), "factors": [away, 1 - away]}, 2)
    monkeypatch.setattr(on_validation, "decision_threshold_", moved)
    return on_validation


def test_predictions_evidence_reports_and_tables_follow_the_threshold(moved, series):
    probability, threshold = moved.predict_proba(series), moved.decision_threshold_.threshold
    expected = moved.classes_[(probability[:, 1] > threshold).astype(int)]
    np.testing.assert_array_equal(moved.predict(series), expected)
    evidence = moved.explain(series[:6])
    assert [item.predicted for item in evidence] == expected[:6].tolist()
    assert f"tuned threshold: 'slow' from a probability of {threshold:.3g} on, else 'fast'" in repr(
        evidence[0]
    )
    assert evidence[0].settings["decision_factors"] == [threshold, 1 - threshold]
    assert moved.report(series[:2]).contents["settings"]["decision_factors"] == [threshold, 1 - threshold]
    assert [moved.classes_[item.predicted] for item in moved.score_series(series[:6])] == expected[
        :6
    ].tolist()


def test_it_can_be_switched_off_and_on(moved, series):
    before = moved.predict(series)
    try:
        moved.set_params(decision_threshold="argmax")
        argmax = moved.classes_[moved.predict_proba(series).argmax(axis=1)]
        np.testing.assert_array_equal(moved.predict(series), argmax)
        assert "decision_factors" not in moved.explain(series[0]).settings
    finally:
        moved.set_params(decision_threshold="tuned")
    np.testing.assert_array_equal(moved.predict(series), before)


def test_one_that_was_not_tuned_cannot_be_switched_on(waves_model):
    model, series = waves_model
    with pytest.raises(ConfigError, match="fitted with decision_threshold = 'argmax'"):
        model.set_params(decision_threshold="tuned").predict(series)
    assert threshold_in_use(None, "argmax") is None
    with pytest.raises(ConfigError, match="decision_threshold"):
        RAxSSClassifier(decision_threshold=0.3).check_settings()


def test_other_settings_than_those_it_was_tuned_under_are_noted(moved, series):
    assert not any("tuned under other settings" in note for note in moved.explain(series[0]).warnings)
    try:
        moved.set_params(weighting="uniform")
        assert any("tuned under other settings" in note for note in moved.explain(series[0]).warnings)
    finally:
        moved.set_params(weighting="support")


def test_a_model_folder_keeps_it_and_its_card_says_what_it_was_tuned_on(moved, series, tmp_path):
    moved.save_pretrained(tmp_path / "model")
    again = RAxSSClassifier.from_pretrained(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(series), moved.predict(series))
    assert again.decision_threshold_.to_json() == moved.decision_threshold_.to_json()
    card = (tmp_path / "model" / "README.md").read_text()
    assert "a tuned decision threshold" in card
    assert "30 validation series" in card
    assert "balanced accuracy" in card
    assert "Always\nnaming the most frequent class would have an accuracy of 0.500" in card
    plain = again.set_params(decision_threshold="argmax")
    plain.save_pretrained(tmp_path / "plain")
    assert "Disabled in these settings" in (tmp_path / "plain" / "README.md").read_text()
    read = RAxSSClassifier.from_pretrained(tmp_path / "plain")
    np.testing.assert_array_equal(read.predict(series), plain.predict(series))


def test_a_folder_without_the_threshold_of_its_settings_is_refused(moved, tmp_path):
    folder = moved.save_pretrained(tmp_path / "model")
    reseal(folder, lambda facts: facts.update(decision_threshold=None))
    with pytest.raises(ModelError, match="tuned decision threshold, but it has none"):
        RAxSSClassifier.from_pretrained(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"factors": [0.5]},
        {"factors": [0.5, -0.5]},
        {"factors": [0.7, 0.7]},
        {"factors": [float("nan"), 0.5]},
        {"source": "the test set"},
        {"figures": {"best": {}}},
        {"figures": {"argmax": {"accuracy": float("inf")}, "tuned": {}}},
    ],
)
def test_an_entry_that_was_not_written_by_raxss_is_refused(on_validation, change):
    entry = {**on_validation.decision_threshold_.to_json(), **change}
    with pytest.raises(ValueError, match="decision threshold"):
        DecisionThreshold.from_json(entry, 2)
    with pytest.raises(ValueError, match="decision threshold"):
        DecisionThreshold.from_json([], 2)


def test_evidence_files_keep_the_rule(moved, series, tmp_path):
    evidence = moved.explain(series[0])
    read = SeriesEvidence.load(evidence.save(tmp_path))
    assert read.predicted == evidence.predicted
    assert read.settings["decision_factors"] == evidence.settings["decision_factors"]
    assert "tuned threshold" in repr(read)


def test_the_command_writes_and_prints_the_threshold(moved, series, tmp_path):
    moved.save_pretrained(tmp_path / "model")
    for index in range(2):
        pd.DataFrame({"x": series[index].samples[0]}).to_csv(tmp_path / f"{index}.csv", index=False)
    arguments = ["predict", tmp_path / "model", tmp_path / "0.csv", tmp_path / "1.csv", "--rate", "10"]
    done = CliRunner().invoke(
        app, [*map(str, arguments), "--out", str(tmp_path / "all.csv"), "--device", "cpu"]
    )
    assert done.exit_code == 0, done.output
    assert "by a tuned threshold: 'slow' from a probability" in done.output
    table = pd.read_csv(tmp_path / "all.csv")
    threshold = moved.decision_threshold_.threshold
    assert (table["threshold_slow"] == threshold).all()
    assert (table["predicted"] == np.where(table["probability_slow"] > threshold, "slow", "fast")).all()


def test_more_than_two_classes(rng, tmp_path):
    series = waves(rng, n_series=36, n_classes=3)
    model = RAxSSClassifier(**NETWORK, decision_threshold="tuned").fit(series)
    assert model.decision_threshold_.threshold is None
    factors = model.decision_threshold_.factors
    expected = model.classes_[(model.predict_proba(series) * factors).argmax(axis=1)]
    np.testing.assert_array_equal(model.predict(series), expected)
    facts = describe_model(model)
    assert json.loads(json.dumps(facts))["decision_threshold"]["factors"] == factors.tolist()
    assert set(facts["trial"]["classification"]["uncalibrated"]) == {
        "largest_share",
        "accuracy",
        "balanced_accuracy",
    }


def test_the_tuner_of_scikit_learn_works_too(series):
    model = TunedThresholdClassifierCV(
        RAxSSClassifier(**NETWORK), cv=2, scoring="balanced_accuracy", thresholds=5
    )
    rows = [item.samples[0, :60] for item in series]
    model.fit(np.stack(rows), series.labels)
    assert model.predict(np.stack(rows)).shape == (60,)
