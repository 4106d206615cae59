"""The measurement of doubt: what it computes from one pass is what models say that were fitted so."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from raxss import Config, RAxSSClassifier
from raxss.benchmark.analyses.coverage import (
    WAYS,
    calibrated_otherwise,
    coverage_of,
    figures_of,
    held_out_answers,
)
from raxss.data.splits import folds
from raxss.errors import ConfigError
from raxss.uncertainty.reliability import calibration_figures
from toys import SMALL, waves

SETTINGS = {name: value for name, value in SMALL.items() if name not in ("random_state", "device")}


@pytest.fixture(scope="module")
def series():
    return waves(np.random.default_rng(69421), n_series=60)


@pytest.fixture(scope="module")
def answers(series):
    config = Config.from_parameters(SETTINGS)
    return pd.concat(
        held_out_answers(series, config, n_folds=3, validation=0.3, device="cpu", alphas=(0.1, 0.3))
    )


def test_every_series_is_answered_once_in_every_way(answers, series):
    counts = answers.groupby(["calibration", "level"]).size()
    assert counts.to_dict() == {way: len(series) for way in WAYS}
    assert sorted(answers.loc[answers["calibration"] == "none", "series"]) == sorted(series.names)


@pytest.mark.parametrize(
    ("method", "level"), [("none", "window"), ("isotonic", "window"), ("venn-abers", "series")]
)
def test_what_is_measured_is_what_a_model_fitted_so_says(answers, series, method, level):
    split = folds(series, n_folds=3, validation=0.3, seed=69421)[0]
    train, held, test = split.parts(series)
    settings = {
        **SETTINGS,
        "calibration": method,
        "calibration_level": level,
        "conformal_alpha": 0.3,
        "augmentation": None,
    }
    model = RAxSSClassifier(**settings, random_state=69421, device="cpu").fit(train, validation=held)
    some = answers[(answers["fold"] == 0) & (answers["calibration"] == method) & (answers["level"] == level)]
    assert_allclose(some[["probability_0", "probability_1"]], model.predict_proba(test), atol=1e-9)
    assert (some[["set_0.3_0", "set_0.3_1"]].to_numpy() == model.predict_set(test)).all()
    said = list(model.score_series(test))
    best = model.predict_proba(test).argmax(axis=1)
    low = [
        np.nan if item.interval is None else item.interval.low[c] for item, c in zip(said, best, strict=True)
    ]
    assert_allclose(some["low"], low, atol=1e-9)
    assert some["warned"].tolist() == [bool(item.notes) for item in said]


def test_figures_and_coverage_are_those_of_the_rows(answers):
    figures = figures_of(answers).set_index(["calibration", "level"])
    some = answers[answers["calibration"] == "none"]
    by_hand = calibration_figures(some["target"], some[["probability_0", "probability_1"]].to_numpy())
    assert figures.loc[("none", ""), "brier"] == pytest.approx(by_hand["brier"])
    table = coverage_of(answers)
    row = table[(table["calibration"] == "none") & np.isclose(table["nominal"], 0.7)].iloc[0]
    sets = some[["set_0.3_0", "set_0.3_1"]].to_numpy()
    assert row["coverage"] == pytest.approx(
        np.mean([item[c] for item, c in zip(sets, some["target"], strict=True)])
    )
    assert row["abstains"] == pytest.approx(np.mean(sets.sum(axis=1) != 1))


def test_smoothed_predictions_are_not_calibrated_otherwise(series):
    model = RAxSSClassifier(**SMALL, smoothing=0.5).fit(series[:20])
    (item,) = model.predictor().predictions([series[30]])
    with pytest.raises(ConfigError, match=r"smoothing is 0\.5"):
        calibrated_otherwise(item, None, "window")
