"""Heart beats of an ECG: their places, intervals, shapes and noise; the sampling rate that the view needs."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from network_claims import seeded_on_one_thread
from raxss import RAxSSClassifier, Series
from raxss.errors import ConfigError
from raxss.method.backbones import build_backbone
from raxss.method.backbones.beats import (
    _standardised,
    beat_features,
    find_beats,
    n_beat_features,
    names,
    shows_beats,
)
from raxss.method.backbones.mixture import BEATS
from raxss.method.backbones.views import VIEWS

RATE = 250.0
WAVES = [
    (0.12, -0.16, 0.025),
    (-0.15, -0.03, 0.01),
    (1.0, 0.0, 0.012),
    (-0.2, 0.03, 0.012),
    (0.25, 0.28, 0.05),
]

_seeded = pytest.fixture(autouse=True)(seeded_on_one_thread)


def ecg(intervals, rate=RATE, *, seconds=12.0, noise=0.02, waves=WAVES, seed=0):
    """An ECG with baseline wander, and the times of its R peaks."""
    peaks = 0.4 + np.concatenate([[0.0], np.cumsum(intervals)])
    peaks = peaks[peaks < seconds - 0.1]
    time = np.arange(int(seconds * rate)) / rate
    line = 0.3 * np.sin(2 * np.pi * 0.2 * time) + noise * np.random.default_rng(seed).normal(size=len(time))
    for height, delay, width in waves:
        line += height * np.exp(-((time[:, None] - peaks - delay) ** 2) / 2 / width**2).sum(axis=1)
    return line, peaks


def regular(n=20):
    return np.full(n, 0.8)


def irregular(n=20, seed=0):
    return np.random.default_rng(seed).uniform(0.5, 1.1, size=n)


def found_in(line, rate=RATE, present=None):
    """Seconds of the beats that are found, and intervals."""
    lines = np.where(True if present is None else present, line, np.nan)[None]
    there = np.isfinite(lines)
    beats = find_beats(_standardised(lines, there), there, rate)
    return beats.places[0][np.isfinite(beats.places[0])] / rate, beats.intervals[0]


def features(line, rate=RATE):
    table = beat_features(torch.from_numpy(np.atleast_2d(line))[None], rate)[0]
    return dict(zip(names(), table.tolist(), strict=False))


# Places


@pytest.mark.parametrize("rate", [60.0, 125.0, 250.0, 300.0, 1000.0])
@pytest.mark.parametrize("intervals", [regular(), irregular(), np.full(40, 0.35), np.full(9, 1.6)])
def test_every_peak_is_found_at_any_rate_and_nothing_else(rate, intervals):
    line, peaks = ecg(intervals, rate)
    found, _ = found_in(line, rate)
    assert_allclose(found, peaks, atol=0.6 / rate + 0.004)


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.1])
def test_noise_does_not_hide_beats(noise):
    line, peaks = ecg(irregular(), noise=noise)
    assert_allclose(found_in(line)[0], peaks, atol=0.02)


def test_tall_t_waves_are_no_beats():
    waves = [*WAVES[:-1], (0.7, 0.28, 0.05)]
    line, peaks = ecg(regular(), waves=waves)
    assert_allclose(found_in(line)[0], peaks, atol=0.02)


def test_one_artefact_does_not_hide_the_beats_around_it():
    line, peaks = ecg(regular())
    line[1000:1003] += 30
    found, _ = found_in(line)
    assert all(np.abs(found - peak).min() < 0.02 for peak in peaks if abs(peak - 4.0) > 0.3)


def test_small_beats_beside_large_ones_are_found():
    line, peaks = ecg(regular())
    line[line.size // 2 :] *= 0.45
    assert_allclose(found_in(line)[0], peaks, atol=0.02)


# Intervals


def test_intervals_are_those_of_the_peaks():
    line, peaks = ecg(irregular(), noise=0.01)
    found, rr = features(line), np.diff(peaks)
    expected = {
        "rate": 60 / np.median(rr),
        "rr_mean": rr.mean(),
        "rr_median": np.median(rr),
        "rr_deviation": rr.std(),
        "rr_cv": rr.std() / rr.mean(),
        "rmssd": np.sqrt((np.diff(rr) ** 2).mean()),
        "pnn50": (np.abs(np.diff(rr)) > 0.05).mean(),
        "rr_75": np.quantile(rr, 0.75) / np.median(rr),
        "step_50": np.median(np.abs(np.diff(rr))) / np.median(rr),
        "sd1": np.diff(rr).std() / np.sqrt(2) / rr.mean(),
        "turning_points": (np.diff(rr)[1:] * np.diff(rr)[:-1] < 0).mean(),
        "beats_per_second": len(peaks) / 12,
        "too_few": 0,
    }
    assert_allclose([found[name] for name in expected], list(expected.values()), rtol=0.02, atol=1e-6)


def test_irregular_intervals_have_larger_numbers():
    one, other = features(ecg(regular())[0]), features(ecg(irregular())[0])
    for name in ("rr_cv", "rmssd", "pnn50", "rr_entropy", "step_entropy", "sample_entropy", "sd1", "sd2"):
        assert other[name] > one[name] + 0.02, name


def test_an_early_beat_and_a_pause_are_counted():
    intervals = regular()
    intervals[4:6] = 0.55, 1.05
    intervals[9] = 1.5
    found = features(ecg(intervals)[0])
    assert found["early"] == pytest.approx(1 / 12, abs=0.02)
    assert found["pauses"] == pytest.approx(1 / 13, abs=0.02)
    assert features(ecg(regular())[0])["early"] == 0


def test_an_interval_across_a_gap_is_not_counted():
    line, peaks = ecg(regular())
    present = np.ones(len(line), dtype=bool)
    present[int(4.3 * RATE) : int(6.2 * RATE)] = False  # hides the beats at 4.4, 5.2 and 6.0 s
    found, intervals = found_in(line, present=present)
    hidden = (peaks > 4.3) & (peaks < 6.2)
    assert_allclose(found, peaks[~hidden], atol=0.02)
    known = intervals[np.isfinite(intervals)]
    assert_allclose(known, 0.8, atol=0.02)
    assert len(known) == len(found) - 2
    present[[300, 1900, 1901]] = False  # too short to hide a beat
    assert_allclose(found_in(line, present=present)[0], found, atol=0.01)


def test_padding_does_not_change_intervals():
    line, _ = ecg(irregular())
    padded = np.concatenate([line, np.full(1000, np.nan)])
    one, other = features(line), features(padded)
    for name in ("rr_cv", "rmssd", "alike_mean", "qrs_width", "beats_per_second", "kurtosis"):
        assert other[name] == pytest.approx(one[name], rel=0.03, abs=1e-3), name


# Shapes and noise


@pytest.mark.parametrize(
    "change", [lambda x: 2.0**-10 * x, lambda x: 8 * x + 3, lambda x: -x, lambda x: 500 - 4 * x]
)
def test_gain_offset_and_polarity_do_not_matter(change):
    line, _ = ecg(irregular())
    one, other = features(line), features(change(line))
    assert_allclose(list(other.values()), list(one.values()), rtol=1e-3, atol=1e-4)


def test_an_extrasystole_is_unlike_the_median_beat():
    line, peaks = ecg(regular())
    time = np.arange(len(line)) / RATE
    line -= 2 * np.exp(-((time - peaks[5] - 0.05) ** 2) / 2 / 0.06**2)
    one, other = features(ecg(regular())[0]), features(line)
    assert other["alike_0"] < one["alike_0"] - 0.1
    assert other["alike_50"] == pytest.approx(one["alike_50"], abs=0.02)


def test_waves_that_every_beat_has_stay_in_the_median_beat():
    intervals = 0.75 + irregular() / 4  # a T wave ends before the next P wave
    with_p = features(ecg(intervals)[0])
    line, _ = ecg(intervals, waves=WAVES[1:])
    line += 0.08 * np.sin(2 * np.pi * 6.3 * np.arange(len(line)) / RATE)  # fibrillation waves
    without = features(line)
    assert with_p["p_repeats"] > 0.9
    assert without["p_repeats"] < 0.6
    assert with_p["p_time"] == pytest.approx(-0.16, abs=0.03)
    assert with_p["t_time"] == pytest.approx(0.28, abs=0.03)


def test_a_wide_complex_is_wide():
    wide = [(height, 3 * delay, 3 * width) for height, delay, width in WAVES[1:4]]
    assert (
        features(ecg(regular(), waves=wide)[0])["qrs_width"] > features(ecg(regular())[0])["qrs_width"] + 0.02
    )


def test_noise_is_measured_where_it_is():
    line, _ = ecg(regular())
    time = np.arange(len(line)) / RATE
    clean = features(line)
    assert features(line + 0.3 * np.sin(2 * np.pi * 50 * time))["fast"] > clean["fast"] + 0.1
    assert features(line + 2 * np.sin(2 * np.pi * 0.3 * time))["slow"] > clean["slow"] + 0.1
    assert features(np.where(time < 4, 0.0, line))["flat"] > clean["flat"] + 0.3
    assert features(np.clip(line, -0.2, 0.2))["clipped"] > clean["clipped"] + 0.05


# Windows of all kinds


def test_of_many_variates_the_one_with_the_clearest_beats_is_taken():
    rng, (line, _) = np.random.default_rng(0), ecg(irregular())
    lines = rng.normal(size=(5, len(line)))
    lines[3] = line
    found, alone = features(lines), features(line)
    assert_allclose([found[name] for name in names()], [alone[name] for name in names()], rtol=1e-5)
    table = beat_features(torch.from_numpy(lines)[None], RATE)
    assert table.shape == (1, n_beat_features(5))
    two = beat_features(torch.from_numpy(lines[2:4])[None], RATE)[0]
    assert_allclose(two[len(names()) :], list(alone.values()), rtol=1e-5)


@pytest.mark.parametrize("n_peaks", [0, 1, 2])
def test_fewer_than_three_beats_are_neutral_and_said_so(n_peaks):
    line, _ = ecg(np.full(n_peaks, 4.0)[1:], noise=0.0, waves=WAVES if n_peaks else [], seconds=9.0)
    found = features(line if n_peaks else np.zeros(2250))
    assert found["too_few"] == 1
    for name in ("rr_cv", "rate", "alike_mean", "shape_12", "qrs_width"):
        assert found[name] == 0


@pytest.mark.parametrize("length", [1, 2, 7, 60, 1000])
@pytest.mark.parametrize("rate", [20.0, 250.0, 100_000.0])
def test_hostile_windows_have_finite_features(length, rate):
    rng = np.random.default_rng(length)
    lines = np.stack(
        [
            np.zeros(length),
            np.full(length, np.nan),
            np.full(length, 3e38),
            rng.normal(size=length) * 1e38,
            rng.normal(size=length) * 1e-40,
            np.arange(length) % 2,
            np.where(rng.random(length) < 0.5, np.nan, rng.normal(size=length)),
            np.where(rng.random(length) < 0.5, np.inf, 1e6 + rng.normal(size=length)),
            np.r_[1e30, np.zeros(length - 1)],
            np.arange(length) == length - 1,
        ]
    )
    found = beat_features(torch.from_numpy(lines)[:, None], rate)
    assert found.shape == (len(lines), len(names()))
    assert found.isfinite().all()
    assert found.abs().max() < 1e4


def test_a_window_has_the_same_features_in_any_batch():
    lines = torch.from_numpy(np.stack([ecg(irregular(seed=k))[0] for k in range(40)]))[:, None]
    lines[5, 0, 300:] = torch.nan
    together = beat_features(lines, RATE)
    assert_array_equal(torch.cat([beat_features(item[None], RATE) for item in lines]), together)
    assert beat_features(lines[:0], RATE).shape == (0, len(names()))


# The sampling rate


@pytest.mark.parametrize("rate", [None, 0.0, 10, -300.0, float("nan"), float("inf"), "300", True, 1e9])
def test_a_rate_is_needed(rate):
    with pytest.raises(ConfigError, match=r"needs the sampling rate in Hz.*Series\(samples, rate=300.0\)"):
        VIEWS["beats"](1, 1000, rate=rate)
    with pytest.raises(ConfigError, match="needs the sampling rate"):
        build_backbone(
            "ridge", n_variates=1, window_length=1000, n_outputs=1, options={"view": "beats", "rate": rate}
        )


def rhythms(n=24, rate=RATE):
    series = [Series(ecg((regular, irregular)[k % 2](), seed=k, seconds=8.0)[0], rate=rate) for k in range(n)]
    return series, np.array(["regular", "irregular"])[np.arange(n) % 2]


SETTINGS = [
    {"backbone": "extra-trees", "backbone_options": {"view": "beats", "n_trees": 40}},
    {
        "backbone": "mixture",
        "backbone_options": {
            "members": [{"backbone": "logistic"}, {"backbone": "extra-trees", "view": "beats", "n_trees": 40}]
        },
    },
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_fit_fills_in_the_rate_and_a_loaded_model_has_it(tmp_path, settings):
    series, labels = rhythms()
    model = RAxSSClassifier(**settings, random_state=0).fit(series[:16], labels[:16])
    options = model.config_.backbone.backbone_options
    assert options.get("members", [options])[-1]["rate"] == RATE
    assert "rate" not in str(model.backbone_options)  # what the caller gave stays as it is
    assert (model.predict(series[16:]) == labels[16:]).mean() > 0.8
    model.save_pretrained(tmp_path / "model")
    again = RAxSSClassifier.from_pretrained(tmp_path / "model")
    assert_array_equal(again.predict_proba(series), model.predict_proba(series))


def test_a_rate_that_is_given_stays_and_unknown_rates_are_refused():
    series, labels = rhythms(8)
    plain = [item.samples[0] for item in series]
    with pytest.raises(ConfigError, match="needs the sampling rate"):
        RAxSSClassifier("ridge", backbone_options={"view": "beats"}).fit(plain, labels)
    for given, rows in ((200.0, plain), (RATE * 1.05, series)):
        options = {"view": "beats", "rate": given}
        model = RAxSSClassifier("ridge", backbone_options=options, random_state=0).fit(rows, labels)
        assert model.config_.backbone.backbone_options["rate"] == given


@pytest.mark.parametrize("in_mixture", [False, True])
def test_a_rate_that_is_not_that_of_the_series_is_refused(in_mixture):
    series, labels = rhythms(8)
    table = {"view": "beats", "rate": RATE / 2}
    options = {"members": [{"backbone": "ridge", **table}]} if in_mixture else table
    model = RAxSSClassifier("mixture" if in_mixture else "ridge", backbone_options=options)
    with pytest.raises(ConfigError, match=f"rate = {RATE / 2:g} Hz, but the series have {RATE:g} Hz; needed"):
        model.fit(series, labels)


# Whether series show beats


def test_ecgs_show_beats_and_other_signals_do_not(rng):
    lines = np.stack([ecg(irregular(seed=seed), seed=seed)[0] for seed in range(8)])[:, None]
    noise = rng.normal(size=lines.shape).cumsum(axis=2)
    assert shows_beats(lines, RATE)
    assert shows_beats(np.concatenate([noise, lines], axis=1), RATE)  # one lead is enough
    assert shows_beats(1e3 - 50 * lines, RATE)
    assert not shows_beats(noise, RATE)
    assert not shows_beats(np.zeros_like(lines), RATE)
    assert not shows_beats(np.concatenate([lines[:3], noise]), RATE)  # most do not
    for rate in (None, 5.0, 1e4):
        assert not shows_beats(lines, rate)
    assert not shows_beats(lines[:, :, : int(3 * RATE)], RATE)
    with_gap = lines.copy()
    with_gap[:, :, 1000:1100] = np.nan
    assert shows_beats(with_gap, RATE)
    assert not shows_beats(np.full_like(lines, np.nan), RATE)


def test_the_default_has_members_for_beats_where_series_show_them(tmp_path):
    series = [Series(ecg(regular() if k % 2 else irregular(seed=k), seed=k)[0], rate=RATE) for k in range(24)]
    targets = np.arange(24) % 2
    model = RAxSSClassifier(random_state=0).fit(series[:16], targets[:16])
    again = RAxSSClassifier.from_pretrained(model.save_pretrained(tmp_path / "model"))
    for table in BEATS:
        assert dict(table) | {"rate": RATE} in again.backbone_options["members"]
    assert dict(BEATS[0]) | {"rate": RATE} in again.backbone_options["disturbed"]
    assert model.score(series[16:], targets[16:]) == 1
    assert_array_equal(again.predict_proba(series[16:]), model.predict_proba(series[16:]))
