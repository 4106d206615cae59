"""Learning report: figures and intervals, the right warning for planted failures, and none for good fits."""

import dataclasses
import json
import logging
import time
import warnings

import numpy as np
import pytest

from raxss import RAxSSClassifier
from raxss.data.series import Series
from raxss.data.synthetic import make_motif_series
from raxss.errors import NotLearnedWarning
from raxss.estimator.learning import groups_of_all
from raxss.uncertainty.learning import (
    LearningReport,
    Posteriors,
    TrainingSummary,
    accuracy_draws,
    balanced_accuracy,
    learning_report,
)
from raxss.uncertainty.not_learned import diagnose, warn_if_not_learned
from toys import planted

EVEN = np.array([0.5, 0.5])


def report_of(training=0.95, summary=None):
    """A report of 40 training series of two classes, without others."""
    summary = summary or TrainingSummary(
        window_length=100, median_length=300, n_windows=5, share_padded=0.0, n_steps=600, first_loss=0.7,
        last_loss=0.1, falling=0.01,
    )  # fmt: skip
    return LearningReport(
        n_train=40, chance=0.5, training_accuracy=training, forest_training_accuracy=1.0,
        forest_out_of_fold=None, evaluation=None, is_out_of_fold=False, training=summary,
    )  # fmt: skip


def reported(series, targets, n_train, rows, **settings):
    """The report of a model that fits its training series, and gives ``rows`` for the others, or out of fold."""
    train = np.arange(n_train)
    others = np.arange(n_train, len(series)) if n_train < len(series) else train
    report, _ = learning_report(
        series,
        targets,
        n_classes=2,
        train=train,
        training=Posteriors(train, np.eye(2)[targets[:n_train]]),
        evaluation=Posteriors(others, rows),
        window_length=100,
        stride=50,
        **settings,
    )
    return report


def validated(right, kind="level"):
    """The report of a model that has these validation series right; the forest knows the level."""
    series, targets = planted(kind, n_series=40 + len(right), length=150)
    return reported(series, targets, 40, np.eye(2)[np.where(right, targets[40:], 1 - targets[40:])])


# Intervals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_right", [0, 7, 20])
def test_draws_of_single_series_are_jeffreys_posterior(n_right):
    stats = pytest.importorskip("scipy.stats")
    targets = np.arange(20) % 2
    rows = np.eye(2)[np.where(np.arange(20) < n_right, targets, 1 - targets)]
    found = Posteriors(np.arange(20), rows)
    draws = accuracy_draws(found, found, targets, np.arange(20), priors=EVEN, seed=0)[:, 0]
    known = stats.beta(n_right + 0.5, 20.5 - n_right)
    np.testing.assert_allclose(np.quantile(draws, [0.1, 0.5, 0.9]), known.ppf([0.1, 0.5, 0.9]), atol=0.015)


def test_series_of_one_group_count_as_little_as_one(rng):
    targets = np.arange(60) % 2
    groups = np.arange(60) // 10
    right = np.repeat(rng.permutation([True] * 3 + [False] * 3), 10)
    found = Posteriors(np.arange(60), np.eye(2)[np.where(right, targets, 1 - targets)])
    widths = []
    for keys in (groups, np.arange(60)):
        draws = accuracy_draws(found, found, targets, keys, priors=EVEN, seed=0)[:, 0]
        widths.append(np.diff(np.quantile(draws, [0.025, 0.975]))[0])
    assert widths[0] > 2 * widths[1]


def test_a_class_with_one_series_leaves_its_recall_open():
    targets = np.array([0] * 50 + [1])
    found = Posteriors(np.arange(51), np.eye(2)[targets])
    draws = accuracy_draws(found, found, targets, np.arange(51), priors=EVEN, seed=0)[:, 0]
    assert np.quantile(draws, 0.025) < 0.75


def test_the_most_probable_class_is_relative_to_its_prior():
    targets = np.array([0] * 9 + [1])
    rows = np.array([[0.95, 0.05]] * 9 + [[0.7, 0.3]])
    assert balanced_accuracy(Posteriors(np.arange(10), rows), targets, EVEN) == 0.5
    assert balanced_accuracy(Posteriors(np.arange(10), rows), targets, np.array([0.9, 0.1])) == 1.0


def test_groups_of_validation_series_follow_those_of_the_others():
    groups = np.array(["b", "a", "b"])
    assert groups_of_all(None, None, 3) is None
    assert groups_of_all(groups, groups[1:], 3).tolist() == [1, 0, 1]  # a part of them
    assert groups_of_all(groups, np.array([5, 4]), 5).tolist() == [1, 0, 1, 3, 2]


# Report -------------------------------------------------------------------------------------------------------


def test_a_report_is_the_same_after_it_was_kept_as_json():
    report = validated(np.ones(20, dtype=bool))
    kept = json.loads(json.dumps(report.to_json()))
    assert LearningReport.from_json(kept) == report
    without = dataclasses.replace(report, evaluation=None, forest_out_of_fold=None)
    assert LearningReport.from_json(json.loads(json.dumps(without.to_json()))) == without


@pytest.mark.parametrize(
    "change",
    [
        {"n_train": -1},
        {"n_train": 4.5},
        {"n_train": True},
        {"chance": 2.0},
        {"training_accuracy": float("nan")},
        {"training_accuracy": "high"},
        {"training_accuracy": None},
        {"is_out_of_fold": 1},
        {"training": None},
        {"evaluation": {}},
        {"evaluation": []},
        {"forest_out_of_fold": {"balanced_accuracy": 1.0}},
        {"more": 1},
    ],
)
def test_a_report_that_fit_does_not_make_is_refused(change):
    kept = report_of().to_json() | change
    with pytest.raises(ValueError, match="its learning report"):
        LearningReport.from_json(kept)


@pytest.mark.parametrize("value", [None, [], "report", {}])
def test_what_is_no_report_is_refused(value):
    with pytest.raises(ValueError, match="its learning report"):
        LearningReport.from_json(value)


def test_out_of_fold_series_are_scored_by_trees_without_their_group():
    series, targets = planted("none", n_series=60)
    report = reported(series, targets, 60, np.full((60, 2), 0.5))
    assert report.is_out_of_fold
    assert report.forest_training_accuracy == 1.0
    accuracies = [item.balanced_accuracy for item in (report.evaluation.forest, report.forest_out_of_fold)]
    assert accuracies[0] == accuracies[1] < 0.75
    assert report.describe()[1].startswith(
        "out of fold, 60 series: balanced accuracy 0.50 [0.38, 0.62], forest 0."
    )


def test_posteriors_of_nan_are_left_out():
    series, targets = planted("level", n_series=40)
    rows = np.eye(2)[targets]
    rows[:5] = np.nan
    assert reported(series, targets, 40, rows).evaluation.n_series == 35


def test_a_single_group_is_not_evaluated_out_of_fold():
    series, targets = planted("level", n_series=20)
    report = reported(series, targets, 20, np.eye(2)[targets], groups=np.zeros(20))
    assert report.evaluation is None
    assert report.forest_out_of_fold is None
    assert len(report.describe()) == 1


def test_the_report_of_many_long_series_takes_two_seconds_at_most(rng):
    base = rng.normal(size=9000).astype(np.float32)
    targets = rng.integers(4, size=2000)
    series = [Series(base * rng.uniform(1, 2)) for _ in targets]
    rows = np.full((2000, 4), 0.25)
    began = time.process_time()
    learning_report(
        series, targets, n_classes=4, train=np.arange(1500), training=Posteriors(np.arange(1500), rows[:1500]),
        evaluation=Posteriors(np.arange(1500, 2000), rows[1500:]), window_length=1000, stride=500,
    )  # fmt: skip
    assert time.process_time() - began < 4  # twice what is promised, for a slow machine


# Diagnosis ----------------------------------------------------------------------------------------------------


def test_a_model_that_fits_its_training_series_raises_no_alarm():
    assert diagnose(report_of()) is None
    assert diagnose(report_of(training=0.63)) is None


@pytest.mark.parametrize("n_validation", [2, 4, 6, 8])
def test_few_validation_series_of_which_half_are_wrong_raise_no_alarm(n_validation):
    assert diagnose(validated(np.arange(n_validation) % 4 < 2, kind="none")) is None


def test_validation_series_of_one_class_raise_no_alarm():
    series, targets = planted("level", n_series=60)
    targets[40:] = 1
    assert diagnose(reported(series, targets, 40, np.eye(2)[np.zeros(20, dtype=int)])) is None


def test_a_forest_that_is_better_by_a_few_series_raises_no_alarm():
    right = np.ones(40, dtype=bool)
    right[:3] = False
    assert diagnose(validated(right)) is None
    right[:20] = False
    assert diagnose(validated(right)).cause == "forest better"


def test_a_model_of_a_rare_class_that_is_never_the_most_probable_raises_no_alarm():
    series, targets = planted("none", n_series=100)
    targets = (np.arange(100) % 10 == 0).astype(int)
    rows = np.where(targets[:, None] == 1, [[0.7, 0.3]], [[0.95, 0.05]])
    report = reported(series, targets, 100, rows)
    assert report.evaluation.model.balanced_accuracy == 1.0
    assert diagnose(report) is None


def test_a_hard_task_that_is_learned_in_part_is_no_failure():
    report = validated(np.arange(40) % 5 > 0)  # four of five are right
    report = dataclasses.replace(report, training_accuracy=0.6)
    evaluation = dataclasses.replace(report.evaluation, forest_better=0.1, forest_better_unpaired=0.1)
    assert diagnose(dataclasses.replace(report, evaluation=evaluation)) is None
    assert diagnose(dataclasses.replace(report, evaluation=None)) is not None


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"n_steps": 50}, "too few steps"),
        ({"falling": 0.2}, "too few steps"),
        ({"last_loss": 0.69}, "too few steps"),
        ({"share_padded": 0.9}, "windows too long"),
        ({"n_windows": 1, "window_length": 5000}, "windows too long"),
        ({}, "training series not fitted"),
        (
            {"n_steps": None, "first_loss": None, "last_loss": None, "falling": None},
            "training series not fitted",
        ),
    ],
)
def test_the_cause_of_training_series_that_are_not_fitted_follows_from_the_training(changes, cause):
    report = report_of(training=0.5)
    summary = dataclasses.replace(report.training, last_loss=0.5)
    found = diagnose(dataclasses.replace(report, training=dataclasses.replace(summary, **changes)))
    assert found.cause == cause
    assert "Likely cause: " in found.message


def test_a_warning_names_finding_need_cause_and_remedy_at_the_line_that_fits():
    summary = TrainingSummary(window_length=100, median_length=300, n_windows=5, share_padded=0.0, n_steps=1)

    def fit():
        warn_if_not_learned(report_of(training=0.5, summary=summary))

    with pytest.warns(NotLearnedWarning) as caught:
        fit()
    (found,) = caught
    assert found.filename == __file__
    for part in (
        "the 40 series",
        "is 0.50",
        "0.62 is needed",
        "too few steps",
        "it took 1 step)",
        "raise max_epochs",
    ):
        assert part in str(found.message)


# Ten failures and twenty good fits ----------------------------------------------------------------------------

CONVNET = {
    "backbone": "convnet", "backbone_options": {"width": 4}, "window_length": 100, "stride": 100, "batch_size": 16,
    "max_epochs": 30, "lr": 5e-3, "warmup_steps": 10, "validation_fraction": 0.3, "random_state": 0,
}  # fmt: skip
RIDGE = {"backbone": "ridge", "random_state": 0}
TREES = {"backbone": "extra-trees", "backbone_options": {"n_trees": 60}, "random_state": 0}


def shuffled(kind, n_series, n_classes, seed):
    series, targets = planted(kind, n_series, n_classes, seed=seed)
    return series, np.random.default_rng(seed + 50).permutation(targets)


def grouped_labels(seed=2):
    """Groups with a frequency each and a label that has nothing to do with it."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(80), 2)
    labels = rng.permutation(np.arange(80) % 2)[groups]
    waves = np.sin(2 * np.pi * rng.uniform(0.02, 0.2, size=80)[groups, None] * np.arange(300))
    return [Series(wave + 0.5 * rng.normal(size=300)) for wave in waves], labels, groups


def mostly_padding(kind, n_classes, length=40, seed=7):
    """Short series, and one of 8000 samples in each class, which sets the length of the windows."""
    series, targets = planted(kind, 80, n_classes, length=length, seed=seed)
    long, _ = planted(kind, n_classes, n_classes, length=8000, seed=seed + 1)
    return [*long, *series[n_classes:]], targets


ONE_STEP = CONVNET | {"max_epochs": 1, "batch_size": 512, "update_batch_norm": False}
REVIN = CONVNET | {"backbone_options": {"width": 4, "revin": True}}
PADDED = CONVNET | {"window_length": 8000, "max_epochs": 25}
FAILURES = {
    "labels that were shuffled": (shuffled("frequency", 120, 2, 0), CONVNET, "classes that cannot be told"),
    "labels of three classes, shuffled": (shuffled("amplitude", 120, 3, 1), RIDGE, "classes that cannot be told"),
    "no difference": (planted("none", 100, seed=3), TREES, "classes that cannot be told"),
    "labels of groups": (grouped_labels(), TREES, "classes that cannot be told"),
    "constant signals": (
        ([Series(np.zeros(300))] * 80, np.arange(80) % 2), CONVNET, "classes that cannot be told"
    ),
    "one step": (
        planted("frequency", seed=1), ONE_STEP, "too few steps"
    ),
    "one epoch": (planted("motif", 60, 3, seed=1), CONVNET | {"max_epochs": 1}, "too few steps"),
    "steps that are too small": (
        planted("frequency", 90, seed=1), CONVNET | {"lr": 1e-7, "final_lr": 1e-8}, "too few steps"
    ),
    "windows of padding": (mostly_padding("frequency", 3), PADDED, "windows too long"),
    "windows of padding, a trend": (mostly_padding("trend", 2, length=60), PADDED, "windows too long"),
    "a level that scaling removes": (
        planted("level", 80, seed=1), CONVNET | {"scaling": "series"}, "forest better"
    ),
    "an amplitude that each window loses": (
        planted("amplitude", 80, seed=1), REVIN, "forest better"
    ),
    "a level that scaling removes, by ridge": (
        planted("level", 80, seed=2), RIDGE | {"scaling": "series"}, "forest better"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.filterwarnings("ignore::raxss.errors.SignalWarning")
def test_a_failure_warns_with_its_cause(name):
    data, settings, cause = FAILURES[name]
    with pytest.warns(NotLearnedWarning, match="Likely cause: .*"):
        model = RAxSSClassifier(**settings).fit(*data)
    assert diagnose(model.learning_report_).cause == cause, model.learning_report_.describe()


def matched(n_series, n_fresh, seed):
    """Series in which a motif recurs or others of the same spectrum are: statistics do not tell the classes."""
    series = make_motif_series(n_series + n_fresh, n_samples=(600, 900), motif_length=64, seed=seed).series
    return list(series), (series.labels == "motif").astype(int)


def rare(n_series, seed):
    """Every sixth series is of the second class."""
    series, targets = planted("frequency", 2 * n_series, seed=seed)
    own = [
        [item for item, target in zip(series, targets, strict=True) if target == label] for label in (0, 1)
    ]
    labels = (np.arange(n_series) % 6 == 0).astype(int)
    return [own[label].pop() for label in labels], labels


WHOLE = CONVNET | {"window_length": 200}
WIDE = CONVNET | {"backbone_options": {"width": 8}}
GOOD = [
    ("frequency", 30, 2, CONVNET),
    ("frequency", 60, 3, CONVNET),
    ("frequency", 120, 2, CONVNET | {"max_epochs": 15}),
    ("frequency", 200, 4, CONVNET | {"max_epochs": 12}),
    ("frequency", 80, 4, RIDGE),
    ("frequency", 40, 2, TREES),
    ("amplitude", 30, 2, CONVNET),
    ("amplitude", 60, 3, CONVNET),
    ("amplitude", 120, 2, CONVNET | {"max_epochs": 15}),
    ("amplitude", 80, 4, TREES),
    ("motif", 60, 2, WIDE),
    ("motif", 120, 2, WIDE | {"max_epochs": 20}),
    ("motif", 80, 4, RIDGE),
    ("motif", 40, 3, TREES),
    ("trend", 30, 2, WHOLE),
    ("trend", 60, 3, WHOLE),
    ("trend", 200, 4, WHOLE | {"max_epochs": 15}),
    ("trend", 80, 4, TREES),
    ("matched", 60, 2, RIDGE | {"window_length": 128, "stride": 32}),
    ("rare", 90, 2, TREES),
    ("level", 50, 2, {"random_state": 0}),  # the default
]


@pytest.mark.parametrize("number", range(len(GOOD)), ids=[f"{kind}-{n}-{c}" for kind, n, c, _ in GOOD])
@pytest.mark.filterwarnings("error")
def test_a_good_fit_does_not_warn(number):
    kind, n_series, n_classes, settings = GOOD[number]
    n_fresh = 60
    if kind == "matched":
        series, targets = matched(n_series, n_fresh, seed=number)
    elif kind == "rare":
        series, targets = rare(n_series + n_fresh, seed=number)
    else:
        series, targets = planted(kind, n_series + n_fresh, n_classes, seed=number)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = RAxSSClassifier(**settings).fit(series[:n_series], targets[:n_series])
    guess, truth = model.predict(series[n_series:]), targets[n_series:]
    recalls = [(guess[truth == label] == label).mean() for label in range(n_classes)]
    assert np.mean(recalls) >= 0.85  # it is a good fit, by series that neither fit nor forest have seen


def test_fit_logs_the_figures_and_keeps_report_and_forest(caplog):
    series, targets = planted("frequency", 40, seed=5)
    with caplog.at_level(logging.INFO, "raxss"):
        model = RAxSSClassifier(**TREES).fit(series, targets)
    assert set(model.learning_report_.describe()) <= {record.message for record in caplog.records}
    assert model.learning_report_.is_out_of_fold
    assert (model.reference_forest_.predict_proba(series).argmax(axis=1) == targets).mean() > 0.9


def test_report_and_forest_are_kept_in_the_model_folder(tmp_path):
    series, targets = planted("frequency", 40, seed=5)
    model = RAxSSClassifier(**TREES).fit(series, targets)
    again = RAxSSClassifier.from_pretrained(model.save_pretrained(tmp_path / "model"))
    assert again.learning_report_ == model.learning_report_
    found = [item.reference_forest_.predict_proba(series) for item in (model, again)]
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
    assert "| out of fold | 40 |" in (tmp_path / "model" / "README.md").read_text()
