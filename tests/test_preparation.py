"""Scaling against numpy, and series that cannot be worked with."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from raxss.errors import EmptyDataError, SignalError, SignalWarning, VariateMismatchError
from raxss.preparation import Scaling, check_series
from raxss.recordings.series import Series


def ragged(rng, n_variates=2, offset=0.0, gaps=0.0):
    """Series of different lengths, a different scale for each variate."""
    series = []
    for length in (30, 400, 71):
        samples = offset + rng.normal(size=(n_variates, length)) * np.arange(1, n_variates + 1)[:, None]
        samples[rng.random(samples.shape) < gaps] = np.nan
        series.append(Series(samples, name=f"s{length}", gaps_marked=gaps > 0))
    return series


# Scaling ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gaps", [0.0, 0.2])
def test_train_scaling_is_the_mean_and_deviation_of_all_training_samples(rng, gaps):
    series = ragged(rng, gaps=gaps)
    together = np.concatenate([one.samples for one in series], axis=1)
    scaling = Scaling.fit(series, "train")
    assert_allclose(scaling.mean, np.nanmean(together, axis=1), rtol=1e-12)
    assert_allclose(scaling.deviation, np.nanstd(together, axis=1), rtol=1e-12)
    other = ragged(rng)[1]
    expected = (other.samples - scaling.mean[:, None]) / scaling.deviation[:, None]
    assert_allclose(scaling.apply(other).samples, expected, rtol=1e-14)


@pytest.mark.parametrize("gaps", [0.0, 0.2])
def test_series_scaling_is_the_z_score_of_each_variate(rng, gaps):
    scaling = Scaling.fit([], "series")
    for one in ragged(rng, gaps=gaps):
        mean = np.nanmean(one.samples, axis=1, keepdims=True)
        deviation = np.nanstd(one.samples, axis=1, keepdims=True)
        assert_allclose(scaling.apply(one).samples, (one.samples - mean) / deviation, rtol=1e-9, atol=1e-12)


def test_no_scaling_leaves_values_and_makes_them_float64():
    scaled = Scaling.fit([], "none").apply(Series(np.array([1, 2, 3], dtype=np.int16), name="x", rate=5))
    assert scaled.samples.dtype == np.float64
    assert scaled.samples.tolist() == [[1.0, 2.0, 3.0]]
    assert (scaled.name, scaled.rate) == ("x", 5.0)


@pytest.mark.parametrize("mode", ["train", "series"])
def test_an_offset_of_100_mv_on_a_microvolt_signal_costs_no_digits(rng, mode):
    plain = [Series(rng.normal(size=(1, n)), name=f"{n}") for n in (500, 2000)]
    lifted = [one.with_samples(one.samples + 100_000.0) for one in plain]  # both in µV
    without, with_offset = Scaling.fit(plain, mode), Scaling.fit(lifted, mode)
    for one, other in zip(plain, lifted, strict=True):
        assert_allclose(with_offset.apply(other).samples, without.apply(one).samples, atol=1e-9)


@pytest.mark.parametrize("mode", ["train", "series"])
@given(value=st.floats(-1e9, 1e9), length=st.integers(1, 3000))
def test_a_constant_variate_is_centred_and_not_blown_up(mode, value, length):
    samples = np.stack([np.full(length, value), np.arange(length) % 2.0])
    scaled = Scaling.fit([Series(samples)], mode).apply(Series(samples)).samples
    assert_allclose(scaled[0], 0.0, atol=1e-6)
    assert np.isfinite(scaled).all()


def test_a_constant_training_variate_leaves_later_values_at_their_scale():
    scaling = Scaling.fit([Series(np.full(1000, 0.1))], "train")
    assert_allclose(scaling.apply(Series([0.1, 0.3])).samples, [[0.0, 0.2]], atol=1e-12)


@pytest.mark.parametrize("mode", ["train", "series", "none"])
def test_gaps_stay_gaps_and_touch_nothing_else(mode):
    samples = np.array([[1.0, np.nan, 3.0, np.inf, 5.0]])
    series = Series(samples, gaps_marked=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaled = Scaling.fit([series], mode).apply(series)
    assert scaled.gaps_marked
    assert_array_equal(np.isfinite(scaled.samples), np.isfinite(samples))
    kept = scaled.samples[np.isfinite(samples)]
    assert_allclose(kept, [1, 3, 5] if mode == "none" else [-np.sqrt(1.5), 0, np.sqrt(1.5)], rtol=1e-12)


def test_scaling_leaves_the_series_it_was_given():
    samples = np.array([[1.0, 2.0, 4.0]])
    Scaling.fit([Series(samples)], "series").apply(Series(samples))
    assert samples.tolist() == [[1.0, 2.0, 4.0]]


# Checks -------------------------------------------------------------------------------------------------------


def test_sound_series_pass_without_a_word(rng):
    check_series(ragged(rng))
    check_series(ragged(rng, gaps=0.3))
    check_series([Series([3.0])])  # one sample: constant by necessity
    check_series([Series([3.0, 3.0])])  # a row of numbers rather than a signal


def test_no_series_at_all_are_refused():
    with pytest.raises(EmptyDataError, match="no series were given"):
        check_series([])


@pytest.mark.parametrize(("bad", "where"), [(np.nan, 7), (np.inf, 3), (-np.inf, 0)])
def test_samples_that_are_not_finite_are_named_counted_and_placed(rng, bad, where):
    samples = rng.normal(size=(2, 40))
    samples[1, [where, where + 2, 30]] = bad
    with pytest.raises(
        SignalError, match=f"'ECG 4' has 3 of 80 samples .* the first at sample {where};.*gaps_marked=True"
    ):
        check_series([Series(rng.normal(size=(2, 9))), Series(samples, name="ECG 4")])


def test_a_series_of_gaps_alone_is_refused_even_if_marked():
    with pytest.raises(SignalError, match="'lost' has no finite sample among 5"):
        check_series([Series([np.nan] * 5, name="lost", gaps_marked=True)])


@pytest.mark.parametrize(
    "samples",
    [
        np.zeros(50),
        np.full((2, 50), [[3.0], [4.0]]),
        np.full(50, 7, dtype=np.int16),
        [2.0, np.nan, *[2.0] * 8],
        [[np.nan] * 9, [1.0] * 9],
    ],
)
def test_a_constant_series_is_warned_about_by_name(samples):
    series = Series(samples, name="unplugged", gaps_marked=True)
    with pytest.warns(
        SignalWarning, match=f"'unplugged' is constant over all its {series.n_samples} samples"
    ):
        check_series([series])


def test_one_variate_that_varies_is_enough():
    check_series([Series([[0.0, 0.0, 0.0], [0.0, np.nan, 1.0]], gaps_marked=True)])


def test_the_series_with_other_variates_is_named_in_the_error(rng):
    series = [Series(rng.normal(size=(n, 20)), name=f"lead set {n}") for n in (2, 2, 3)]
    with pytest.raises(
        VariateMismatchError, match="'lead set 3' has 3 variates, but the first series, 'lead set 2', has 2"
    ):
        check_series(series)
    with pytest.raises(
        VariateMismatchError, match="'lead set 2' has 2 variates, but the model was fitted on 1"
    ):
        check_series(series, n_variates=1)
