"""Peers on whole padded series: aeon's own classifiers, and DTW that is not begun where it takes too long."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.ensemble import RandomForestClassifier

from raxss import Series
from raxss.benchmark.baselines.common import first_samples
from raxss.benchmark.baselines.neighbour import NeighbourClassifier
from raxss.benchmark.baselines.padded import PaddedClassifier
from raxss.benchmark.baselines.statistics_forest import StatisticsForestClassifier, whole_series_features
from raxss.errors import ConfigError, TooSlowError
from toys import waves

pytest.importorskip("aeon")
ON_CPU = {"random_state": 3, "device": "cpu"}
MAKERS = {
    "minirocket": lambda: PaddedClassifier("minirocket", **ON_CPU),
    "multirocket-hydra": lambda: PaddedClassifier("multirocket-hydra", **ON_CPU),
    "dtw": lambda: NeighbourClassifier(**ON_CPU),
    "statistics": lambda: StatisticsForestClassifier(n_trees=20, **ON_CPU),
}
pytestmark = pytest.mark.filterwarnings("ignore::numba.NumbaPerformanceWarning")


@pytest.fixture(scope="module")
def data():
    """Training and test series of 2 variates and 3 classes, of different lengths."""
    series = waves(np.random.default_rng(5), n_series=36, n_classes=3, n_variates=2)
    return series[:24], series[24:]


def padded(series, length):
    return first_samples(list(series), length)


@pytest.mark.parametrize("name", MAKERS)
def test_a_peer_has_probabilities_of_every_series_of_any_length(name, data):
    train, test = data
    model = MAKERS[name]().fit(train, validation=[])
    longer = [*test, Series(np.tile(test[0].samples, (1, 9)), test[0].rate)]  # than any of training
    found = model.predict_proba(longer)
    assert found.shape == (13, 3)
    assert_allclose(found.sum(axis=1), 1)
    assert (model.predict(test) == test.labels).mean() > 0.5
    assert_array_equal(MAKERS[name]().fit(train, validation=[]).predict_proba(longer), found)


@pytest.mark.parametrize("name", ["minirocket", "multirocket-hydra"])
def test_kernels_and_ridge_are_those_of_aeons_classifier(name, data):
    from aeon.classification.convolution_based import MiniRocketClassifier, MultiRocketHydraClassifier

    train, test = data
    ours = MAKERS[name]().fit(train, validation=[])
    kind = MiniRocketClassifier if name == "minirocket" else MultiRocketHydraClassifier
    theirs = kind(random_state=3).fit(padded(train, ours.window_length_), train.labels)
    assert_array_equal(ours.predict(test), theirs.predict(padded(test, ours.window_length_)))


def test_two_classes_are_ranked_by_the_ridge_score(rng):
    series = waves(rng, n_series=30)
    model = PaddedClassifier("minirocket", **ON_CPU).fit(series[:20], validation=[])
    found = model.predict_proba(series[20:])
    assert len(np.unique(found[:, 1])) == 10  # not zeros and ones
    assert_array_equal(model.predict(series[20:]), model.classes_[(found[:, 1] > 0.5).astype(int)])


def test_the_nearest_neighbour_is_aeons(data):
    from aeon.classification.distance_based import KNeighborsTimeSeriesClassifier

    train, test = data
    ours = NeighbourClassifier(**ON_CPU).fit(train, validation=[])
    length = ours.window_length_
    theirs = KNeighborsTimeSeriesClassifier(n_neighbors=1, distance="dtw", distance_params={"window": 0.1})
    theirs.fit(padded(train, length).astype(float), train.labels)
    assert_array_equal(ours.predict(test), theirs.predict(padded(test, length).astype(float)))


def test_a_series_of_training_is_its_own_class_whatever_the_order(data):
    train, _ = data
    assert_array_equal(NeighbourClassifier(**ON_CPU).fit(train, validation=[]).predict(train), train.labels)
    turned = NeighbourClassifier(random_state=8, device="cpu").fit(train[::-1], validation=[])
    assert_array_equal(turned.predict(train), train.labels)


def test_dtw_that_would_take_too_long_is_refused_with_the_estimate(data):
    train, test = data
    model = NeighbourClassifier(most_seconds=0, **ON_CPU).fit(train, validation=[])
    with pytest.raises(
        TooSlowError, match=r"12 series among 24 .* about \d+ min .*288 pairs .* at most 0 min"
    ):
        model.predict_proba(test)


def test_the_estimate_is_of_the_time_that_it_takes_and_grows_with_the_square_of_the_length(monkeypatch, data):
    train, test = data
    model = NeighbourClassifier(**ON_CPU).fit(train, validation=[])
    seconds = iter([0.0, 3.0, 0.0, 3.0])  # for three pairs
    monkeypatch.setattr("raxss.benchmark.baselines.neighbour.time.perf_counter", lambda: next(seconds))
    monkeypatch.setattr("raxss.benchmark.baselines.neighbour.numba.get_num_threads", lambda: 1)
    given = padded(test, model.window_length_).astype(float)
    assert model.seconds_for(given) == pytest.approx(12 * 24)
    monkeypatch.setattr(model, "_distances", lambda *_: None)
    model.window_length_ = 2 * 10
    monkeypatch.setattr("raxss.benchmark.baselines.neighbour.TIMED", 10)
    assert model.seconds_for(given) == pytest.approx(4 * 12 * 24)


def test_more_pairs_are_timed_while_they_take_no_time(monkeypatch, data):
    """Else the time of a call would be that of its few pairs."""
    train, test = data
    model = NeighbourClassifier(**ON_CPU).fit(train, validation=[])
    counts = []
    seconds = iter([0.0, 0.1, 0.0, 0.1, 0.0, 0.24])
    monkeypatch.setattr("raxss.benchmark.baselines.neighbour.time.perf_counter", lambda: next(seconds))
    monkeypatch.setattr("raxss.benchmark.baselines.neighbour.numba.get_num_threads", lambda: 1)
    monkeypatch.setattr(model, "_distances", lambda _, theirs: counts.append(len(theirs)))
    assert model.seconds_for(padded(test, model.window_length_)) == pytest.approx(0.24 / 24 * 12 * 24)
    assert counts == [1, 3, 12, 24]


def test_settings_out_of_range_are_refused(data):
    with pytest.raises(ConfigError, match="transform is 'minirockt'; did you mean 'minirocket'"):
        PaddedClassifier("minirockt").fit(data[0])
    with pytest.raises(ConfigError, match=r"band is 2\.0; needed is a share"):
        NeighbourClassifier(band=2.0).fit(data[0])


def test_the_forest_is_scikit_learns_on_22_numbers_a_variate(data):
    train, test = data
    table = [np.stack([whole_series_features(item.samples) for item in part]) for part in data]
    assert table[0].shape == (24, 44)
    theirs = RandomForestClassifier(20, random_state=3).fit(table[0], train.labels)
    ours = MAKERS["statistics"]().fit(train, validation=[])
    assert_array_equal(ours.predict_proba(test), theirs.predict_proba(table[1]))


@pytest.mark.parametrize("samples", [[[1.0]], [[2.0, 2.0]], [[np.nan, 1.0, 3.0]], [[np.nan, np.inf]]])
def test_statistics_of_short_flat_and_broken_series_are_finite(samples):
    assert np.isfinite(whole_series_features(np.array(samples))).all()


def test_series_are_transformed_a_few_at_a_time_with_the_same_result(monkeypatch, data):
    train, test = data
    expected = PaddedClassifier("multirocket-hydra", **ON_CPU).fit(train, validation=[]).predict_proba(test)
    longest = max(item.n_samples for item in train)
    monkeypatch.setattr("raxss.benchmark.baselines.padded.SAMPLES_AT_ONCE", 9 * longest)
    before = torch.random.get_rng_state()
    found = PaddedClassifier("multirocket-hydra", **ON_CPU).fit(train, validation=[]).predict_proba(test)
    assert_allclose(found, expected, rtol=1e-3)
    assert torch.equal(torch.random.get_rng_state(), before)
