"""Out-of-distribution detection: recordings unlike the training data are warned of, others mostly not."""

import copy
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import load_file
from scipy.signal import welch

from raxss import RAxSSClassifier, Series
from raxss.data.datasets import load_dataset, load_sample
from raxss.uncertainty.ood import EDGES, N_BANDS, OODDetector, RobustDistribution, spectrum_shares
from toys import SMALL, waves


def ieeg_like(rng, n_series, rate=512.0, n_samples=10_240):
    """Coloured noise with a slope of bern-barcelona's kind, each series with its own."""
    series = []
    for place in range(n_series):
        frequency = np.fft.rfftfreq(n_samples)[1:]
        amplitude = frequency ** -rng.uniform(1.0, 1.4) / (1 + (frequency / rng.uniform(0.2, 0.25)) ** 4)
        phases = np.exp(2j * np.pi * rng.uniform(size=len(frequency)))
        samples = np.fft.irfft(np.append(0, amplitude * phases), n_samples)
        series.append(Series(samples / samples.std(), rate=rate, label=place % 2, name=f"channel {place}"))
    return series


def notes_about(detector, series):
    return [detector.notes(item) for item in series]


def kinds(notes):
    """What they are about: recording (its length), spectrum, windows (their support)."""
    return {note.split()[1] for note in notes}


def test_shares_are_those_of_welchs_periodogram_in_the_same_bands(rng):
    samples = rng.normal(size=5120).cumsum()
    series = Series(samples, rate=200.0)
    n_segments = 9  # which welch takes half overlapping, as we do
    frequency, power = welch(samples, nperseg=1024, detrend="linear", scaling="spectrum")
    power[[0, -1]] /= 2  # welch doubles what has a twin at negative frequencies; so do all but these two
    bands = [(frequency > low) & (frequency <= high) for low, high in itertools.pairwise(EDGES)]
    expected = np.array([power[band].sum() for band in bands])
    assert 2 * len(samples) // 1024 - 1 == n_segments
    shares = spectrum_shares(series)
    assert_allclose(shares, expected / expected.sum(), rtol=0.02)
    assert_allclose(
        spectrum_shares(Series(1e3 * samples - 7, rate=250.0)), shares, rtol=1e-9
    )  # scale, offset, rate
    samples[100:120] = np.nan
    assert_allclose(spectrum_shares(Series(samples)), shares, atol=0.02)


@pytest.mark.parametrize("n_samples", [1, 2, 3, 40, 1023, 1024, 1025])
def test_short_and_flat_series_have_shares_too(rng, n_samples):
    assert spectrum_shares(Series(rng.normal(size=n_samples))).shape == (N_BANDS,)
    assert_array_equal(spectrum_shares(Series(np.full(n_samples, 3.0))), np.zeros(N_BANDS))


def test_of_a_day_no_more_is_read_than_of_a_minute(rng):
    class Watched(np.ndarray):
        read = 0

        def __getitem__(self, key):
            found = super().__getitem__(key)
            if isinstance(key, tuple):
                Watched.read += np.size(found)
            return found

    series = Series(np.zeros((1, 2_000_000), dtype=np.float32))
    object.__setattr__(series, "samples", series.samples.view(Watched))
    spectrum_shares(series)
    assert 0 < Watched.read <= 2 * 64 * 1024  # cut out, then stacked


def test_ecg_is_unlike_ieeg_and_the_other_way_round_whatever_the_rate_says(rng):
    ieeg, ecg = ieeg_like(rng, 60), [replace(item, rate=512.0) for item in load_sample()[:150]]
    of_ieeg, of_ecg = OODDetector.of(ieeg), OODDetector.of(ecg)
    others = [replace(item, rate=512.0) for item in load_sample()[150:]]
    for detector, same, foreign in ((of_ieeg, ieeg_like(rng, 100), ecg), (of_ecg, others, ieeg)):
        assert np.mean(["spectrum" in kinds(item) for item in notes_about(detector, foreign)]) > 0.9
        assert np.mean([bool(item) for item in notes_about(detector, same)]) < 0.1


def test_the_note_names_the_band_that_is_most_unusual(rng):
    detector = OODDetector.of([Series(rng.normal(size=2000), rate=100.0) for _ in range(40)])
    hum = np.sin(2 * np.pi * 0.3 * np.arange(2000))  # 30 Hz
    (note,) = detector.notes(Series(rng.normal(size=2000) + 3 * hum, rate=100.0))
    low, high = (float(item) for item in note.split("between ")[1].split(" Hz")[0].split(" and "))
    assert low < 30 <= high
    share = float(note.split("one band: ")[1].split(" %")[0])
    assert share == pytest.approx(100 * (4.5 + 0.2) / 5.5, abs=6)


@pytest.mark.parametrize(("n_samples", "word"), [(49, "shorter"), (50, None), (400, None), (401, "longer")])
def test_lengths_beyond_twice_those_of_training_are_noted(rng, n_samples, word):
    detector = OODDetector.of([Series(rng.normal(size=n)) for n in (100, 150, 200)])
    notes = detector.notes(Series(rng.normal(size=n_samples)))
    assert len(notes) == (word is not None)
    assert all(word in note and str(n_samples) in note for note in notes)


def test_unusual_supports_are_noted_with_both_numbers(rng):
    series = [Series(rng.normal(size=100)) for _ in range(50)]
    detector = OODDetector.of(series, rng.normal(0.4, 0.02, size=50))
    assert detector.notes(series[0], 0.41) == []
    assert detector.notes(series[0], np.nan) == detector.notes(series[0]) == []
    (note,) = detector.notes(series[0], 0.8)
    assert "more similar" in note
    assert "0.800" in note
    (note,) = detector.notes(series[0], 0.1)
    assert "less similar" in note
    few = OODDetector.of(series[:19], [0.5] * 19)  # too few to say what is usual
    assert (few.spectrum, few.support, few.notes(series[20], -1.0)) == (None, None, [])


def test_of_series_of_one_kind_about_as_many_are_warned_of_as_are_meant_to_be(rng):
    values = rng.normal(size=(1500, 8)) @ rng.normal(size=(8, 8))
    usual = RobustDistribution.of(values[:500], farthest=0.975)
    beyond = np.mean([usual.distance(value) > usual.limit for value in values[500:]])
    assert 0.01 < beyond < 0.05


# In a model -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def series():
    return waves(np.random.default_rng(69421), n_series=60)


@pytest.fixture(scope="module")
def fitted(series):
    return RAxSSClassifier(**SMALL).fit(series[:40])


def test_a_model_warns_of_what_it_has_not_learned_from(fitted, series, rng):
    found = [fitted.explain(item).warnings for item in series[40:]]
    assert (
        np.mean(
            [any("spectrum differs" in note or "similar to each" in note for note in item) for item in found]
        )
        < 0.2
    )
    noise = Series(rng.normal(size=(1, 150)).cumsum(axis=1) ** 3, rate=10.0, name="other")
    assert any("spectrum differs" in note for note in fitted.explain(noise).warnings)
    long = Series(np.tile(series[0].samples, 9), rate=10.0)
    assert any("longer than any" in note for note in fitted.explain(long).warnings)


def test_supports_are_those_of_prediction_and_are_not_compared_under_other_settings(fitted, series):
    predictor = fitted.predictor()
    means = [
        np.nanmean(prediction.aggregation.support) for prediction in predictor.predictions(list(series[:40]))
    ]
    assert fitted.ood_detector_.support.middle[0] == pytest.approx(np.median(means), abs=1e-6)
    changed = copy.deepcopy(fitted)
    changed.ood_detector_ = replace(
        fitted.ood_detector_, support=replace(fitted.ood_detector_.support, limit=-1.0)
    )
    assert any("similar to each other" in note for note in changed.explain(series[0]).warnings)
    changed.set_params(n_neighbors=3)
    assert not any("similar to each other" in note for note in changed.explain(series[0]).warnings)


@pytest.mark.parametrize("space", ["signal", "features"])
def test_a_series_without_neighbours_has_no_support_to_compare(rng, space):
    short = [item.with_samples(item.samples[:, :32]) for item in waves(rng, n_series=30)]  # one window each
    settings = SMALL | {"window_length": 32, "space": space, "validation_fraction": 0.7}
    model = RAxSSClassifier(**settings).fit(short)
    assert model.ood_detector_.support is None
    notes = model.explain(Series(np.tile(short[0].samples, 3), rate=10.0)).warnings
    assert not any("similar to each other" in note for note in notes)


def test_a_new_series_without_neighbours_is_not_called_less_similar(fitted, series):
    strict = copy.deepcopy(fitted)
    support = replace(fitted.ood_detector_.support, limit=-1.0)  # every support is noted
    strict.ood_detector_ = replace(fitted.ood_detector_, support=support)
    one = Series(series[0].samples[:, : fitted.window_length_], rate=10.0)
    assert any("similar to each other" in note for note in strict.explain(series[0]).warnings)
    assert not any("similar to each other" in note for note in strict.explain(one).warnings)


def test_it_comes_back_from_the_model_folder_and_holds_no_samples(fitted, series, tmp_path):
    fitted.save_pretrained(tmp_path / "model")
    again = RAxSSClassifier.from_pretrained(tmp_path / "model", device="cpu")
    arrays, others = fitted.ood_detector_.arrays(), again.ood_detector_.arrays()
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        assert_array_equal(array, others[name])
    kept = load_file(tmp_path / "model" / "model.safetensors")
    assert sum(item.size for name, item in kept.items() if name.startswith("familiar/")) < 400
    assert "familiar" not in json.loads((tmp_path / "model" / "config.json").read_text())


@pytest.mark.parametrize(
    "change",
    [
        {"n_samples": np.array([5.0, 2.0])},
        {"n_samples": np.array([np.nan, 2.0])},
        {"spectrum/middle": np.zeros(3)},
        {"spectrum/spread": np.zeros(N_BANDS)},
        {"spectrum/limit": np.array([np.inf])},
        {"support/middle": np.array([np.nan])},
        {"other": np.zeros(1)},
    ],
)
def test_arrays_that_are_no_summary_are_refused(fitted, change):
    with pytest.raises(ValueError, match="training data"):
        OODDetector.from_arrays(fitted.ood_detector_.arrays() | change)


# Real recordings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "classes", "foreign"),
    [("bern-barcelona", None, "ecg"), ("bonn", ["F", "N"], "ecg"), ("cinc2017", None, "ieeg")],
)
def test_real_recordings_of_another_kind_are_warned_of_and_of_the_same_kind_mostly_not(
    shared_data, rng, name, classes, foreign
):
    own = load_dataset(name, root=shared_data, classes=classes)
    own = [own[int(place)] for place in rng.permutation(len(own))[:300]]
    n_known = int(0.7 * len(own))
    detector = OODDetector.of(own[:n_known])
    assert np.mean([bool(item) for item in notes_about(detector, own[n_known:])]) <= 0.08
    others = (
        load_sample()[:100] if foreign == "ecg" else load_dataset("bern-barcelona", root=shared_data)[:100]
    )
    assert np.mean(["spectrum" in kinds(item) for item in notes_about(detector, others)]) > 0.9
