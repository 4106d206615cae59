"""Every setting from one pass of the network, against predictions of the model with each setting."""

import math
import time

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from raxss import RAxSSClassifier, Series, SeriesCollection
from raxss.benchmark.analyses.reweighting import Cross, reweigh
from raxss.errors import ConfigError
from raxss.method import inference
from raxss.method.window_scorer import Scorer
from toys import SMALL, waves

CROSS = Cross(exclusions=(0, 0.5), temperatures=(0.05, 0.5), smoothings=(0.0, 0.3))
SETTINGS = ["space", "exclusion", "weighting", "temperature", "smoothing"]


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(4)
    series = waves(rng, 18, n_classes=3)
    model = RAxSSClassifier(**SMALL | {"n_neighbors": 3, "calibration": "isotonic"})
    model.fit(series[:9], validation=series[9:15])
    gap = series[16].samples.copy()
    gap[:, 30] = np.nan
    some = [series[15], Series(gap, rate=10.0, label="fast", gaps_marked=True, name="gap"), series[17]]
    return model, SeriesCollection(some)


@pytest.fixture(scope="module")
def table(fitted):
    return reweigh(*fitted, CROSS)


def probabilities(table):
    return table.filter(like="probability_").to_numpy()


def test_every_row_of_means_is_what_the_model_predicts_with_these_settings(fitted, table):
    model, series = fitted
    means = table[table["pooling"] == "mean"]
    n_asked = 0
    for _, rows in means.groupby(SETTINGS, dropna=False):
        requested = rows[SETTINGS].iloc[0].to_dict()
        assert type(requested["exclusion"]) is (int if requested["exclusion"] == 0 else float)
        if math.isnan(requested["temperature"]):
            requested["temperature"] = 0.1
        expected = model.set_params(**requested).predict_proba(series)
        assert_allclose(probabilities(rows), expected, atol=1e-12)
        n_asked += 1
    assert n_asked == 2 * 2 * (3 * 2 + 1) * 2  # spaces, exclusions, weights, smoothings


def test_there_is_one_row_for_each_series_and_setting(fitted, table):
    _, series = fitted
    assert len(table) == len(series) * len(CROSS.rows())
    assert not table.duplicated(["series", *SETTINGS, "pooling"]).any()
    assert table["series"].unique().tolist() == [item.name for item in series]
    assert table.groupby("series")["label"].unique().str[0].to_dict() == {
        item.name: item.label for item in series
    }
    assert_allclose(probabilities(table).sum(axis=1), 1.0, atol=1e-12)


def test_logits_and_the_top_tenth_are_those_of_plain_loops(fitted, table):
    model, series = fitted
    model.set_params(weighting="support", temperature=0.05, space="features", exclusion=0.5, smoothing=0.3)
    for item in series:
        windows = model.explain(item).windows
        windows = windows[~windows["nonfinite"]]
        text = windows.filter(like="smoothed_").to_numpy().tolist()
        logs = [
            math.fsum(w * math.log(max(p[c], 1e-12)) for w, p in zip(windows["weight"], text, strict=True))
            for c in range(3)
        ]
        total = math.fsum(map(math.exp, logs))
        n_top = max(round(len(text) / 10), 1)
        surest = [math.fsum(sorted((p[c] for p in text), reverse=True)[:n_top]) / n_top for c in range(3)]
        here = table[
            (table["series"] == item.name)
            & (table["space"] == "features")
            & (table["exclusion"] == 0.5)
            & (table["smoothing"] == 0.3)
        ]
        logit = here[
            (here["pooling"] == "logit") & (here["weighting"] == "support") & (here["temperature"] == 0.05)
        ]
        assert_allclose(probabilities(logit)[0], np.exp(logs) / total, atol=1e-10)
        top = here[here["pooling"] == "top tenth"]
        assert_allclose(probabilities(top)[0], np.array(surest) / sum(surest), atol=1e-12)


@pytest.mark.parametrize("positive", ["slow", "fast"])
def test_the_surest_tenth_is_sure_of_the_positive_class(rng, positive):
    series = waves(rng, 8)
    model = RAxSSClassifier(**SMALL).fit(series)
    cross = Cross(spaces=["signal"], exclusions=[0], temperatures=[0.1], smoothings=[0.0])
    table = reweigh(model, series[:1], cross, positive=positive)
    row = table[table["pooling"] == "top tenth"].iloc[0]
    place = model.classes_.tolist().index(positive)
    text = sorted(next(model.window_probabilities(series[:1]))[:, place])
    n_top = max(round(len(text) / 10), 1)
    assert row[f"probability_{positive}"] == pytest.approx(np.mean(text[-n_top:]))


def test_the_network_looks_at_each_series_once_and_each_list_is_sought_once(fitted, monkeypatch):
    model, series = fitted
    passes, searches = [], []
    launch, retrieve_many = Scorer.launch, inference.retrieve_many
    monkeypatch.setattr(Scorer, "launch", lambda *a, **k: (passes.append(1), launch(*a, **k))[1])
    monkeypatch.setattr(
        inference, "retrieve_many", lambda *a, **k: (searches.append(1), retrieve_many(*a, **k))[1]
    )
    reweigh(model, series, CROSS)
    assert (len(passes), len(searches)) == (len(series), 4)


def test_a_hundred_settings_of_many_series_take_seconds(rng):
    series = waves(rng, 60)
    model = RAxSSClassifier(**SMALL | {"max_epochs": 1}).fit(series[:12])
    cross = Cross(temperatures=(0.02, 0.05, 0.1, 0.2, 0.5, 1.0), smoothings=(0.0, 0.25, 0.5))
    assert len(cross.rows()) > 400
    reweigh(model, series[:2], cross)  # compiles
    began = time.perf_counter()
    table = reweigh(model, series, cross)
    assert time.perf_counter() - began < 10.0
    assert isinstance(table, pd.DataFrame)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weightings": ["suport"]}, r"weightings is 'suport'; did you mean 'support'"),
        ({"temperatures": []}, r"temperatures of the cross is empty"),
        ({"weightings": []}, r"weightings of the cross is empty"),
        ({"smoothings": [0.5, 2.0]}, r"between 0 and 1, got \[0.5, 2.0\]"),
        ({"temperatures": [0.1, 0.0]}, r"must be above 0, got 0\.0"),
    ],
)
def test_a_cross_that_cannot_be_run_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Cross(**settings)
