"""Preparation against naive implementations, scaling against numpy, and checks of series."""

import itertools
import math
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from raxss.data.prepare.preprocessing import Preparation, Scaling, check_series
from raxss.data.prepare.streaming import REACH, _filter, rate_ratio
from raxss.data.series import Series
from raxss.errors import (
    ConfigError,
    DataError,
    EmptyDataError,
    SignalError,
    SignalWarning,
    VariateMismatchError,
)


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
    together = np.concatenate([item.samples for item in series], axis=1)
    scaling = Scaling.fit(series, "train")
    assert_allclose(scaling.mean, np.nanmean(together, axis=1), rtol=1e-12)
    assert_allclose(scaling.deviation, np.nanstd(together, axis=1), rtol=1e-12)
    other = ragged(rng)[1]
    expected = (other.samples - scaling.mean[:, None]) / scaling.deviation[:, None]
    assert_allclose(scaling.apply(other).samples, expected, rtol=1e-14)


@pytest.mark.parametrize("gaps", [0.0, 0.2])
def test_series_scaling_is_the_z_score_of_each_variate(rng, gaps):
    scaling = Scaling.fit([], "series")
    for item in ragged(rng, gaps=gaps):
        mean = np.nanmean(item.samples, axis=1, keepdims=True)
        deviation = np.nanstd(item.samples, axis=1, keepdims=True)
        assert_allclose(scaling.apply(item).samples, (item.samples - mean) / deviation, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mode", ["train", "series"])
def test_an_offset_of_100_mv_on_a_microvolt_signal_costs_no_digits(rng, mode):
    plain = [Series(rng.normal(size=(1, n)), name=f"{n}") for n in (500, 2000)]
    lifted = [item.with_samples(item.samples + 100_000.0) for item in plain]  # both in µV
    without, with_offset = Scaling.fit(plain, mode), Scaling.fit(lifted, mode)
    for item, other in zip(plain, lifted, strict=True):
        assert_allclose(with_offset.apply(other).samples, without.apply(item).samples, atol=1e-9)


@pytest.mark.parametrize("mode", ["train", "series"])
@given(value=st.floats(-1e9, 1e9), length=st.integers(1, 3000))
def test_a_constant_variate_is_centred_and_not_blown_up(mode, value, length):
    samples = np.stack([np.full(length, value), np.arange(length) % 2.0])
    scaled = Scaling.fit([Series(samples)], mode).apply(Series(samples)).samples
    assert_allclose(scaled[0], 0.0, atol=1e-6)
    assert np.isfinite(scaled).all()
    if mode == "train":  # later values stay at their scale
        scaling = Scaling.fit([Series(np.full(1000, 0.1))], "train")
        assert_allclose(scaling.apply(Series([0.1, 0.3])).samples, [[0.0, 0.2]], atol=1e-12)


@pytest.mark.parametrize("mode", ["train", "series", "none"])
def test_gaps_stay_gaps_and_touch_nothing_else(mode):
    samples = np.array([[1.0, np.nan, 3.0, np.inf, 5.0]])
    series = Series(samples, gaps_marked=True)
    scaled = Scaling.fit([series], mode).apply(series)
    assert scaled.samples.dtype == np.float64
    assert scaled.gaps_marked
    assert_array_equal(np.isfinite(scaled.samples), np.isfinite(samples))
    kept = scaled.samples[np.isfinite(samples)]
    assert_allclose(kept, [1, 3, 5] if mode == "none" else [-np.sqrt(1.5), 0, np.sqrt(1.5)], rtol=1e-12)


# Checks -------------------------------------------------------------------------------------------------------


def test_sound_series_pass_without_a_warning(rng):
    check_series(ragged(rng))
    check_series(ragged(rng, gaps=0.3))
    check_series([Series([3.0])])  # one sample: constant by necessity
    check_series([Series([3.0, 3.0])])  # a row of numbers rather than a signal
    check_series([Series([[0.0, 0.0, 0.0], [0.0, np.nan, 1.0]], gaps_marked=True)])
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
    with pytest.raises(SignalError, match="'lost' has no finite sample among 5"):
        check_series([Series([bad] * 5, name="lost", gaps_marked=True)])


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


def test_the_series_with_other_variates_is_named_in_the_error(rng):
    series = [Series(rng.normal(size=(n, 20)), name=f"lead set {n}") for n in (2, 2, 3)]
    for n_variates, message in (
        (None, "'lead set 3' has 3 variates, but the first series, 'lead set 2', has 2"),
        (1, "'lead set 2' has 2 variates, but the model was fitted on 1"),
    ):
        with pytest.raises(VariateMismatchError, match=message):
            check_series(series, n_variates=n_variates)


# Preparation, in words ----------------------------------------------------------------------------------------

WORDS = {
    "": Preparation(),
    "z-score": Preparation(scaling="series"),
    "pool 24/12": Preparation(pooling=(24, 12)),
    "pool 24/12, z-score": Preparation(pooling=(24, 12), scaling="series"),
    "resample 250 Hz": Preparation(rate=250),
    "resample 173.61 Hz, z-score": Preparation(rate=173.61, scaling="series"),
    "resample 0.1 Hz": Preparation(rate=0.1),
}


@pytest.mark.parametrize("text", WORDS)
def test_a_preparation_and_its_words_are_the_same_thing(text):
    assert str(WORDS[text]) == text
    assert Preparation.parse(text) == WORDS[text]


@pytest.mark.parametrize(
    "text",
    [
        "pool 24", "pool 24/12,z-score", "z-score, pool 24/12", "resample 250", "resample 250.0 Hz", ", z-score",
        " ", "pool 0/1", "pool 024/12", "resample nan Hz", "resample -1 Hz", "Pool 24/12",
    ],
)  # fmt: skip
def test_words_that_no_preparation_has_are_refused(text):
    with pytest.raises(ConfigError, match=re.escape(f"{text!r} is no preparation")):
        Preparation.parse(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": (24, 12), "rate": 250.0}, "pooling 24/12 and resampling to 250 Hz were both"),
        ({"pooling": (0, 1)}, "got 0/1"),
        ({"pooling": (3, 0)}, "got 3/0"),
        ({"pooling": (2.5, 1)}, "got 2.5/1"),
        ({"rate": 0.0}, "got 0"),
        ({"rate": math.inf}, "got inf"),
        ({"scaling": "train"}, "got 'train'"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Preparation(**options)


# Naive twins --------------------------------------------------------------------------------------------------


def naive_pool(samples, kernel, stride):
    """Each mean by itself, exactly summed."""
    out, start = [], 0
    while start + kernel <= len(samples):
        window = [float(value) for value in samples[start : start + kernel]]
        out.append(math.fsum(window) / kernel if all(map(math.isfinite, window)) else math.nan)
        start += stride
    return np.array(out)


def naive_resample(samples, rate, target):
    """Each output sample as the sum over all taps that fall on an input sample; the ends go on as they are."""
    ratio = rate_ratio(rate, target)
    up, down = ratio.numerator, ratio.denominator
    taps = _filter(up, down)
    half, last = len(taps) // 2, len(samples) - 1
    out, m = [], 0
    while Fraction(m * down, up) <= last:
        low, high = math.ceil(Fraction(m * down - half, up)), math.floor(Fraction(m * down + half, up))
        held = [float(samples[min(max(k, 0), last)]) for k in range(low, high + 1)]
        seen = [taps[m * down - k * up + half] for k in range(low, high + 1)]
        whole = all(map(math.isfinite, held))
        out.append(math.fsum(x * h for x, h in zip(held, seen, strict=True)) if whole else math.nan)
        m += 1
    return np.array(out)


def in_blocks(preparation, samples, rate, cuts):
    """The stream's output, if the signal comes in these pieces."""
    stream = preparation.stream(rate, samples.shape[1])
    edges = [0, *sorted(cuts), samples.shape[1]]
    pieces = [stream.push(samples[:, a:b]) for a, b in itertools.pairwise(edges)]
    out = np.concatenate([*pieces, stream.finish()], axis=1)
    assert out.shape[1] == stream.n_out
    return out


@pytest.mark.parametrize(("kernel", "stride"), [(24, 12), (5, 5), (1, 1), (3, 7), (1, 4), (7, 2)])
@pytest.mark.parametrize("length", [24, 25, 100, 301])
def test_pooling_is_the_mean_of_each_full_kernel(rng, kernel, stride, length):
    samples = rng.normal(3.0, 2.0, size=(2, length))
    pooled = Preparation(pooling=(kernel, stride)).apply(Series(samples)).samples
    assert pooled.dtype == np.float32
    for row in range(2):
        assert_allclose(pooled[row], naive_pool(samples[row], kernel, stride), rtol=1e-7)


def test_a_kernel_that_touches_a_gap_gives_none_and_no_other_does(rng):
    samples = rng.normal(size=100)
    samples[[30, 71]] = np.nan, -np.inf
    pooled = Preparation(pooling=(10, 5)).apply(Series(samples))
    assert_allclose(pooled.samples[0], naive_pool(samples, 10, 5), rtol=1e-6)
    assert np.isnan(pooled.samples).sum() == 4
    assert pooled.gaps_marked


def test_the_time_of_a_pooled_sample_is_the_centre_of_its_kernel():
    clock = Series(20.0 + np.arange(5000) / 500.0, rate=500.0, start_seconds=20.0)  # samples are times
    pooled = Preparation(pooling=(24, 12)).apply(clock)
    times = pooled.start_seconds + np.arange(pooled.n_samples) / pooled.rate
    assert_allclose(pooled.samples[0], times, atol=2e-6)
    assert pooled.rate == 500 / 12
    assert pooled.preparation == "pool 24/12"


@pytest.mark.parametrize(
    ("rate", "target"),
    [
        (1000.0, 250.0),
        (512.0, 200.0),
        (100.0, 100.0),
        (7.0, 3.0),
        (249.853, 100.0),
        (3.0, 7.0),
        (100.0, 120.0),
    ],
)
@pytest.mark.parametrize("gaps", [(), (0,), (57, 58), (199,)])
@pytest.mark.filterwarnings("ignore:.*interpolated")
def test_resampling_is_the_sum_over_the_taps(rng, rate, target, gaps):
    samples = rng.normal(size=200)
    samples[list(gaps)] = [np.nan, np.inf][: len(gaps)]
    resampled = Preparation(rate=target).apply(Series(samples, rate=rate))
    expected = samples if rate == target else naive_resample(samples, rate, target)
    assert_allclose(resampled.samples[0], np.where(np.isfinite(expected), expected, np.nan), atol=1e-6)
    assert (resampled.rate, resampled.start_seconds) == (target, 0.0)
    assert resampled.gaps_marked == bool(gaps)


BLOCKED = [
    (Preparation(), 100.0),
    (Preparation(pooling=(24, 12)), 100.0),
    (Preparation(pooling=(3, 8)), 100.0),
    (Preparation(rate=25.0), 100.0),
    (Preparation(rate=100.0), 249.853),
    (Preparation(rate=30.0), 70.0),
    (Preparation(rate=90.0), 70.0),
]


@pytest.mark.filterwarnings("ignore:.*interpolated")
@pytest.mark.parametrize(("preparation", "rate"), BLOCKED)
@settings(max_examples=25)
@given(data=st.data())
def test_blocks_of_any_size_give_the_same_bits(preparation, rate, data):
    length = data.draw(st.integers(1, 700))
    cuts = data.draw(st.lists(st.integers(0, length), max_size=12))
    bad = data.draw(st.lists(st.integers(0, length - 1), max_size=3))
    samples = np.random.default_rng(length).normal(1e3, 5.0, size=(2, length))
    samples[0, bad] = np.nan
    whole, pieces = (in_blocks(preparation, samples, rate, some) for some in ([], cuts))
    assert whole.tobytes() == pieces.tobytes()


# What resampling does to a signal -----------------------------------------------------------------------------

REAL_RATES = [249.853, 499.707, 512.0, 999.412, 1000.0, 1024.6, 2000.0]  # of ds003029, and of Bern-Barcelona


def sine(frequency, rate, seconds):
    times = np.arange(round(seconds * rate)) / rate
    return Series(np.sin(2 * np.pi * frequency * times), rate=rate)


@pytest.mark.parametrize("rate", REAL_RATES)
@pytest.mark.filterwarnings("ignore:.*interpolated")
def test_what_the_new_rate_can_hold_passes_and_what_it_cannot_is_gone(rate):
    preparation, nyquist = Preparation(rate=250.0), min(rate, 250.0) / 2
    for share in (0.01, 0.3, 0.79):
        kept = preparation.apply(sine(share * nyquist, rate, 20.0)).samples[0, 100:-100]
        assert np.sqrt(2 * np.mean(np.square(kept.astype(np.float64)))) == pytest.approx(1.0, abs=0.01)
        assert np.abs(kept).max() <= 1.01
    for frequency in (1.01 * nyquist, 1.3 * nyquist, 0.49 * rate):
        if nyquist < frequency < rate / 2:
            gone = preparation.apply(sine(frequency, rate, 20.0)).samples[0, 100:-100]
            assert 20 * np.log10(np.abs(gone).max()) < -60


@pytest.mark.parametrize("rate", REAL_RATES)
@pytest.mark.filterwarnings("ignore:.*interpolated")
def test_an_impulse_stays_in_place_and_a_constant_constant_and_time_does_not_drift(rate):
    samples, at = np.zeros(round(40 * rate)), round(20 * rate)
    samples[at] = 1.0
    resampled = Preparation(rate=250.0).apply(Series(samples, rate=rate)).samples[0].astype(np.float64)
    assert abs(int(resampled.argmax()) / 250 - at / rate) <= 0.5 / 250 + 1e-9
    centre = (np.arange(len(resampled)) / 250 * resampled).sum() / resampled.sum()
    assert centre == pytest.approx(at / rate, abs=1e-4)
    constant = Preparation(rate=250.0).apply(Series(np.full(5000, 1e5), rate=rate)).samples
    assert_allclose(constant, 1e5, rtol=1e-7)
    drift = abs(float(rate_ratio(rate, 250.0) / (Fraction(250.0) / Fraction(rate)) - 1)) * 1000 * 250
    assert drift < 0.002  # output samples; half of one is what could be borne
    slow = Preparation(rate=250.0).apply(sine(2.0, rate, 1000.0)).samples[0]
    times = np.arange(len(slow)) / 250
    assert_allclose(slow[-5000:-100], np.sin(2 * np.pi * 2.0 * times)[-5000:-100], atol=5e-4)


def test_a_gap_takes_away_what_the_filter_reaches_and_not_one_bit_more(rng):
    samples = rng.normal(size=4000)
    whole = Preparation(rate=250.0).apply(Series(samples, rate=1000.0)).samples[0]
    samples[2000] = np.nan
    holed = Preparation(rate=250.0).apply(Series(samples, rate=1000.0)).samples[0]
    lost = np.flatnonzero(np.isnan(holed))
    assert lost.tolist() == list(range(500 - REACH, 500 + REACH + 1))
    assert np.delete(whole, lost).tobytes() == np.delete(holed, lost).tobytes()


def test_more_samples_than_there_were_are_warned_about_and_impossible_rates_refused():
    with pytest.warns(SignalWarning, match=r"100 Hz is below the 250 Hz asked for.*above 50 Hz"):
        Preparation(rate=250.0).apply(Series(np.zeros(50), rate=100.0))
    with pytest.raises(ConfigError, match=r"from 1000 to 0.001 Hz would need"):
        Preparation(rate=0.001).apply(Series(np.zeros(50), rate=1000.0))


# z-score and the rest of apply --------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 1e5])
def test_the_z_score_is_of_what_is_kept_and_gaps_do_not_count(rng, offset):
    samples = (offset + rng.normal(size=(2, 600_000)) * [[1.0], [20.0]]).astype(np.float32)
    samples[0] += np.linspace(0, 50, 600_000, dtype=np.float32)  # parts that are summed apart differ
    samples[1, 100:300_000:7] = np.nan
    scaled = Preparation(scaling="series").apply(Series(samples)).samples
    for row in range(2):
        kept = samples[row].astype(np.float64)
        assert_allclose(scaled[row], (kept - np.nanmean(kept)) / np.nanstd(kept), rtol=1e-6, atol=1e-6)
    pooled = (
        Preparation(pooling=(24, 12), scaling="series").apply(Series(rng.normal(5, 3, size=5000))).samples
    )
    assert_allclose([pooled.mean(), pooled.std()], [0, 1], atol=1e-5)
    constant = Series([[0.1] * 3 + [np.nan], [1.0, 2.0, 3.0, 4.0]])
    assert_array_equal(Preparation(scaling="series").apply(constant).samples[0], [0, 0, 0, np.nan])


def test_what_was_prepared_is_not_prepared_again(rng):
    pooling = Preparation(pooling=(24, 12))
    once = pooling.apply(Series(rng.normal(size=500), name="C3"))
    assert pooling.apply(once) is once
    for other in (Preparation(), Preparation(rate=10.0)):
        with pytest.raises(DataError, match=r"'C3' was prepared already \('pool 24/12'\)"):
            other.apply(once)


def test_a_series_shorter_than_the_kernel_is_named():
    with pytest.raises(EmptyDataError, match="'blip' has 23 samples, of which 'pool 24/12' leaves none"):
        Preparation(pooling=(24, 12)).apply(Series(np.zeros(23), name="blip"))


@pytest.mark.parametrize("words", ["z-score", "pool 5/3, z-score", "resample 30 Hz, z-score"])
def test_a_large_offset_does_not_swallow_the_signal(rng, words):
    samples = rng.normal(size=(2, 4000))
    preparation = Preparation.parse(words)
    plain, lifted = (preparation.apply(Series(samples + offset, rate=100.0)).samples for offset in (0.0, 1e9))
    np.testing.assert_allclose(lifted, plain, atol=1e-5)


def test_a_series_of_unknown_rate_is_not_resampled(rng):
    series = Series(rng.normal(size=300), name="nameless")
    with pytest.raises(DataError, match=r"'nameless'.*resampled to 50 Hz.*rate is not known"):
        Preparation(rate=50.0).apply(series)
    assert Preparation(pooling=(3, 3)).apply(series).n_samples == 100


def test_gaps_are_marked_also_where_there_is_nothing_else_to_do(rng):
    samples = rng.normal(size=100)
    samples[7] = np.nan
    assert Preparation().apply(Series(samples)).gaps_marked
    assert not Preparation().apply(Series(samples[8:])).gaps_marked
