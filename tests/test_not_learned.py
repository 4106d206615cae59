"""Training accuracy: the default learns small sets, and a fit that has not learned warns."""

import logging

import numpy as np
import pytest

from raxss import RAxSSClassifier
from raxss.data.series import Series
from raxss.errors import NotLearnedWarning
from raxss.estimator.fit import describe_windows


def waves(rng, n_series=24, length=120):
    """Two classes of whole cycles that a network learns in a few steps."""
    time = np.arange(length)
    labels = np.arange(n_series) % 2
    cycles = np.where(labels == 1, 12, 4)
    phases = rng.uniform(0, 2 * np.pi, size=n_series)
    signals = np.sin(2 * np.pi * cycles[:, None] * time / length + phases[:, None])
    return [Series(signal + 0.1 * rng.normal(size=length)) for signal in signals], labels


# A fit that has not learned warns -----------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
def test_a_fit_that_has_learned_does_not_warn(rng):
    series, labels = waves(rng)
    model = RAxSSClassifier(random_state=0).fit(series, labels)
    assert model.score(series, labels) >= 0.9


FAILURES = {
    "no steps that change anything": {"lr": 0.0, "start_lr": 0.0, "final_lr": 0.0, "max_epochs": 1},
    "running averages after one step": {"batch_size": 64, "max_epochs": 1, "update_batch_norm": False},
}


@pytest.mark.parametrize("settings", FAILURES.values(), ids=FAILURES)
def test_a_fit_at_chance_warns_with_the_figure_and_the_steps_at_the_line_that_fits(settings, rng):
    series, labels = waves(rng)
    with pytest.warns(
        NotLearnedWarning, match=r"the \d+ series .* accuracy on them is 0\.\d\d .*took \d+ steps?"
    ) as caught:
        RAxSSClassifier("convnet-fine", random_state=0, **settings).fit(series, labels)
    assert [item.filename for item in caught if item.category is NotLearnedWarning] == [__file__]


def test_a_rare_class_that_is_never_predicted_is_not_hidden_by_the_common_one(rng):
    series, _ = waves(rng, n_series=50)
    labels = np.array([1] * 2 + [0] * 48)
    with pytest.warns(NotLearnedWarning, match=r"balanced accuracy on them is 0\.50"):
        RAxSSClassifier(
            "convnet-fine",
            random_state=0,
            lr=1e-9,
            start_lr=0.0,
            final_lr=0.0,
            max_epochs=1,
            validation_fraction=0.0,
        ).fit(series, labels)


# One log line describes the windows ---------------------------------------------------------------------------


def test_windows_that_shrink_to_the_whole_series_are_logged_as_a_warning(rng, caplog):
    series, labels = waves(rng)
    with caplog.at_level(logging.WARNING, "raxss"):
        RAxSSClassifier(window_length=1024, random_state=0).fit(series, labels)
    assert "window_length=1024 is longer than every series: windows have 120 samples" in caplog.text
    assert "each series is one window" in caplog.text


def test_windows_that_were_chosen_are_logged_with_the_reason(rng, caplog):
    series, labels = waves(rng)
    with caplog.at_level(logging.INFO, "raxss"):
        RAxSSClassifier(random_state=0).fit(series, labels)
    (record,) = [item for item in caplog.records if item.message.startswith("windows have")]
    assert record.levelno == logging.INFO
    assert "120 samples (series have up to 120 samples, so each is one window)" in record.message


def test_windows_as_requested_are_logged(rng, caplog):
    series, labels = waves(rng)
    with caplog.at_level(logging.INFO, "raxss"):
        RAxSSClassifier(window_length=60, stride=30, random_state=0, max_epochs=1).fit(series, labels)
    (record,) = [item for item in caplog.records if item.message.startswith("windows have")]
    assert record.levelno == logging.INFO
    assert "60 samples at a stride of 30, 3 a series" in record.message


def test_a_window_longer_than_most_series_is_unexpected():
    line, unexpected = describe_windows([100, 90, 500], requested=400, window_length=400, stride=50)
    assert unexpected
    assert "2 of 3 series are shorter and are padded" in line


# The default learns on small public sets ----------------------------------------------------------------------

AT_LEAST = {"GunPoint": 0.90, "BasicMotions": 0.80, "OSULeaf": 0.80, "TwoLeadECG": 0.95}


def public_set(name, part, shared_data):
    if name == "TwoLeadECG":
        with np.load(shared_data / "more" / name / f"{name}.npz") as file:
            flat, lengths = file["flat"].astype(np.float32), file["lengths"]
            chosen = np.char.lower(file["split"].astype(str)) == part
            labels = file["y"][chosen]
        pieces = np.split(flat, np.cumsum(lengths)[:-1], axis=1)
        return [piece for piece, wanted in zip(pieces, chosen, strict=True) if wanted], labels
    datasets = pytest.importorskip("aeon.datasets")
    series, labels = datasets.load_classification(name, split=part)
    return [np.asarray(item, dtype=np.float32) for item in series], labels


@pytest.mark.slow
@pytest.mark.parametrize("name", AT_LEAST)
@pytest.mark.filterwarnings("error::raxss.errors.NotLearnedWarning")
def test_the_default_learns_small_public_sets(name, shared_data):
    (series, labels), (others, truth) = (public_set(name, part, shared_data) for part in ("train", "test"))
    scores = [
        (RAxSSClassifier(random_state=seed).fit(series, labels).predict(others) == truth).mean()
        for seed in range(3)
    ]
    assert np.mean(scores) >= AT_LEAST[name], scores
