"""Temperature and Venn-Abers: against scikit-learn, the venn-abers package and slow twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import brentq
from sklearn.isotonic import IsotonicRegression

from raxss.errors import ConfigError
from raxss.uncertainty.calibration import (
    CALIBRATIONS,
    TemperatureCalibration,
    VennAbersCalibration,
)
from test_calibration import overconfident


def two_sided(scores):
    scores = np.asarray(scores, dtype=float)
    return np.stack([1 - scores, scores], axis=1)


# Venn-Abers -------------------------------------------------------------------------------------------------


def slow_pair(scores, hits, new):
    """p0 and p1 as they are defined: two isotonic fits with the new score among the others."""
    return [
        IsotonicRegression(y_min=0, y_max=1)
        .fit(np.append(scores, new), np.append(hits, label))
        .predict([new])[0]
        for label in (0.0, 1.0)
    ]


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.booleans()),
        min_size=2,
        max_size=15,
    ).filter(lambda drawn: len({hit for _, hit in drawn}) == 2),
    st.lists(st.integers(0, 40), min_size=1, max_size=5),
)
def test_the_pair_is_that_of_two_isotonic_fits_also_between_and_beyond_the_scores(drawn, new):
    scores = np.array([score / 20 for score, _ in drawn])
    hits = np.array([float(hit) for _, hit in drawn])
    calibration = VennAbersCalibration.fit(two_sided(scores), hits.astype(int))
    new = np.array(new) / 40
    low, high = calibration.interval(two_sided(new))
    expected = np.array([slow_pair(scores, hits, item) for item in new])
    assert_allclose(np.stack([low[:, 1], high[:, 1]], axis=1), expected, atol=1e-9)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_maps_are_those_of_the_venn_abers_package(rng):
    peer = pytest.importorskip("venn_abers")
    bold, targets = overconfident(rng, n_windows=400)
    others, _ = overconfident(rng, n_windows=300)
    theirs = peer.VennAbers()
    theirs.fit(bold, targets)
    single, pairs = theirs.predict_proba(others)
    ours = VennAbersCalibration.fit(bold, targets)
    low, high = ours.interval(others)
    assert_allclose(low[:, 1], pairs[:, 0], atol=1e-9)
    assert_allclose(high[:, 1], pairs[:, 1], atol=1e-9)
    assert_allclose(ours(others), single, atol=1e-9)
    assert_allclose(low[:, 0], 1 - high[:, 1])


def test_several_classes_have_a_pair_each_and_share_one_whole(rng):
    bold, targets = overconfident(rng, n_windows=500, n_classes=3)
    calibration = VennAbersCalibration.fit(bold, targets)
    low, high = calibration.interval(bold[:50])
    for c in range(3):
        alone = VennAbersCalibration.fit(two_sided(bold[:, c]), (targets == c).astype(int))
        expected = alone.interval(two_sided(bold[:50, c]))
        assert_array_equal(low[:, c], expected[0][:, 1])
        assert_array_equal(high[:, c], expected[1][:, 1])
    single = high / (1 - low + high)
    assert_allclose(calibration(bold[:50]), single / single.sum(axis=1, keepdims=True))


def test_what_it_keeps_grows_much_slower_than_what_it_is_fitted_on(rng):
    scores = rng.uniform(size=20_000)
    calibration = VennAbersCalibration.fit(two_sided(scores), (rng.uniform(size=20_000) < scores).astype(int))
    assert calibration.lower[0].shape[1] + calibration.upper[0].shape[1] < 2000


# Temperature ------------------------------------------------------------------------------------------------


def test_temperatures_that_are_known(rng):
    assert TemperatureCalibration.fit(*overconfident(rng, 20_000, 3)).temperature == pytest.approx(
        3, rel=0.05
    )
    bold = TemperatureCalibration.fit([[0.6, 0.4], [0.4, 0.6]], [0, 1])  # all right: not infinitely bold
    assert bold.temperature == pytest.approx(0.05)
    calibration = TemperatureCalibration(2.0, 2)  # log-odds are divided
    odds = np.sqrt(0.9 / 0.1)
    assert_allclose(calibration([[0.1, 0.9]])[0, 1], odds / (1 + odds))
    assert_allclose(calibration([[1.0, 0.0]])[0], [1.0, 0.0], atol=1e-100)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_the_temperature_is_where_the_loss_has_no_slope(rng, n_classes):
    bold, targets = overconfident(rng, 500, n_classes)
    logs, hot = np.log(bold), np.eye(n_classes)[targets]

    def slope(sharpness):  # of the mean loss by 1 / T: expected minus true log-probability
        powers = np.exp(sharpness * logs)
        scaled = powers / powers.sum(axis=1, keepdims=True)
        return ((scaled - hot) * logs).sum()

    found = TemperatureCalibration.fit(bold, targets).temperature
    assert 1 / found == pytest.approx(brentq(slope, 0.05, 20), rel=1e-5)


# Every map --------------------------------------------------------------------------------------------------


ONE = np.array([[0.5], [0.5]])
TWO_CLASSES = {"n_classes": np.array([2.0])}


@pytest.mark.parametrize(
    ("method", "arrays", "message"),
    [
        ("isotonic", {}, "has 0 maps"),
        ("isotonic", {"0": ONE, "1": ONE}, "has 2 maps"),
        ("isotonic", {"first": ONE}, "named 'first'; needed are '0'"),
        ("isotonic", {"0": ONE.astype(np.float32)}, r"map 0 .* is float32 of shape \(2, 1\)"),
        ("isotonic", {"0": np.array([0.5, 0.5])}, r"float64 of shape \(2,\)"),
        ("isotonic", {"0": np.array([[0.1, 0.2], [0.0, 1.5]])}, "its 2 knots must lie between 0 and 1"),
        ("isotonic", {"0": np.array([[0.1, np.nan], [0.0, 1.0]])}, "its 2 knots"),
        ("isotonic", {"0": np.array([[0.2, 0.2, 0.3], [0.0, 0.5, 1.0]])}, "its 3 knots .* ascend"),
        (
            "isotonic",
            {"0": np.array([[0.1, 0.2, 0.3, 0.4], [0.0, 0.5, 0.4, 1.0]])},
            "its 4 knots .* never fall",
        ),
        ("venn-abers", {}, "0 maps of p0 and 0 of p1"),
        ("venn-abers", {"0/p0": ONE}, "named '0/p0'"),
        ("venn-abers", {"0/p0": ONE, "0/p1": np.array([[0.5, 0.4], [0.5, 0.6]])}, "its 2 steps"),
        ("venn-abers", {"0/p0": np.array([[0.5], [1.5]]), "0/p1": ONE}, "lower map 0"),
        ("venn-abers", {"0/p0": np.zeros((2, 0)), "0/p1": ONE}, r"shape \(2, 0\)"),
        ("temperature", {"temperature": np.array([2.0])}, "needed are 'n_classes' and 'temperature'"),
        (
            "temperature",
            {"temperature": np.array([2.0, 3.0]), **TWO_CLASSES},
            r"'temperature' float64 \(2,\)",
        ),
        (
            "temperature",
            {"temperature": np.array([0.0]), **TWO_CLASSES},
            r"is 0\.0; needed is one from 0\.05",
        ),
        ("temperature", {"temperature": np.array([np.nan]), **TWO_CLASSES}, "is nan"),
        ("temperature", {"temperature": np.array([2.0]), "n_classes": np.array([1.5])}, r"of 1\.5 classes"),
        ("temperature", {"temperature": np.array([2.0]), "n_classes": np.array([np.inf])}, "of inf classes"),
    ],
)
def test_arrays_that_are_no_map_are_refused_by_what_is_wrong(method, arrays, message):
    with pytest.raises(ConfigError, match=message):
        CALIBRATIONS[method].from_arrays(arrays)


@pytest.mark.parametrize("method", CALIBRATIONS)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_maps_come_back_from_their_arrays_and_keep_rows_whole_and_nan_nan(rng, method, n_classes):
    calibration = CALIBRATIONS[method].fit(*overconfident(rng, n_classes=n_classes))
    assert calibration.n_classes == n_classes
    others, _ = overconfident(rng, n_classes=n_classes)
    others[7] = np.nan
    mapped = calibration(others)
    assert_array_equal(CALIBRATIONS[method].from_arrays(calibration.arrays())(others), mapped)
    assert np.isnan(mapped[7]).all()
    assert_allclose(np.delete(mapped, 7, axis=0).sum(axis=1), 1, atol=1e-12)


@pytest.mark.parametrize("method", CALIBRATIONS)
def test_maps_bring_posteriors_nearer_to_the_truth_out_of_sample(rng, method):
    def loss(scaled, targets):
        return -np.log(np.clip(scaled[np.arange(len(scaled)), targets], 1e-6, 1)).mean()

    calibration = CALIBRATIONS[method].fit(*overconfident(rng, 3000, 3))
    others, targets = overconfident(rng, 3000, 3)
    assert loss(calibration(others), targets) < 0.85 * loss(others, targets)
