"""Missing is missing: gaps that differ by class are not learned, and a model that has learned them says so."""

import logging
import re
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score
from sklearn.naive_bayes import GaussianNB

from raxss import RAxSSClassifier, Series
from raxss.data.prepare.preprocessing import Preparation, gap_value, with_gap_value
from raxss.errors import ConfigError, DataError, GapsLearnedWarning, NotLearnedWarning, SignalError
from raxss.estimator.at_once import check_settings, with_members
from raxss.estimator.config import Config
from raxss.explain import Report
from raxss.method.backbones import build_backbone
from raxss.method.backbones.protocol import (
    WINDOW_CLASSIFIERS,
    describe,
    has_head,
    logits_and_features,
    n_features,
)
from raxss.method.backbones.window_classifiers import TrainingWindows, share_missing_of
from raxss.method.backbones.window_numbers import with_numbers
from raxss.method.training.window_pool import WindowPool
from raxss.method.windows import missing_samples
from raxss.uncertainty.gaps import GapFinding, gap_statistics, gaps_by_class, shift_by_gaps, with_gaps_of
from test_cli import raxss

CPU = torch.device("cpu")
SETTINGS = {
    "window_length": 128, "stride": 64, "max_epochs": 12, "batch_size": 32, "device": "cpu", "random_state": 0,
}  # fmt: skip
SMALL_MIXTURE = {
    "backbone_options": {
        "members": [{"backbone": "ridge", "view": "ppv"}, {"backbone": "extra-trees", "n_trees": 50}]
    }
}
NETWORK = SETTINGS | {"backbone": "convnet-fine", "space": "signal", "temperature": 0.1}


def noise(n, seed, *, share=0.3, length=700, amplitude=1.0, of_class=(1,)):
    """Series of noise without any information on the class; those of some classes have gaps."""
    rng, found = np.random.default_rng(seed), []
    for k in range(n):
        samples, label = rng.normal(size=length), k % 2
        if label:
            samples *= amplitude
        while label in of_class and np.isnan(samples).mean() < share:
            first = rng.integers(length)
            samples[first : first + rng.integers(1, 30)] = np.nan
        found.append(Series(samples, label=label, group=k, name=f"noise-{k}"))
    return found


def auc(model, series):
    return roc_auc_score([item.label for item in series], model.predict_proba(series)[:, 1])


# The proof --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backbone", ["mixture", "convnet-fine", "multiview", "patchtst"])
def test_gaps_that_differ_by_class_are_not_learned(backbone, caplog):
    found = []
    for seed in (0,) if backbone == "mixture" else (0, 1):  # a fit of which takes longest
        with warnings.catch_warnings():
            warnings.simplefilter("error", GapsLearnedWarning)
            warnings.simplefilter("ignore", NotLearnedWarning)  # as it should be: there is nothing to learn
            caplog.set_level(logging.INFO, "raxss")
            settings = SETTINGS | {"random_state": seed, "missing": "nan"}
            settings |= {"stride": 128} if backbone == "mixture" else {}  # half the windows, half the time
            model = RAxSSClassifier(backbone, **settings).fit(noise(40, seed))
        assert "gaps of the other classes are planted on training windows" in caplog.text
        finding = model.gap_finding_
        assert finding.differ
        assert finding.accuracy > 0.95
        assert not finding.learned
        assert "does not follow them" in finding.describe()
        found.append(auc(model, noise(100, 100 + seed)))
    assert 0.25 < np.mean(found) < 0.75


@pytest.mark.filterwarnings("ignore::raxss.errors.NotLearnedWarning")
@pytest.mark.parametrize(
    ("settings", "described"),
    [(SETTINGS, "mixture of"), (NETWORK, "FineConvNet with the share of missing samples")],
    ids=["mixture", "network"],
)
def test_a_model_that_has_learned_the_gaps_says_so_everywhere(tmp_path, caplog, settings, described):
    caplog.set_level(logging.INFO, "raxss")
    with pytest.warns(
        GapsLearnedWarning, match=r"learned from gaps.*accuracy of (1\.00|0\.9\d), chance is 0\.50"
    ):
        model = RAxSSClassifier(**settings, missing="nan", share_missing=True).fit(noise(40, 0))
    test = noise(40, 100)
    assert auc(model, test) > 0.95
    assert "share of missing samples is an input" in caplog.text
    assert "planted" not in caplog.text
    finding = model.gap_finding_
    assert finding.learned
    assert finding.low > 0.05
    folder = model.save_pretrained(tmp_path / "model")
    card = (folder / "README.md").read_text()
    assert described in card
    assert "the share of missing samples of a window is one of its inputs" in card
    assert f"The model follows them: the score of a class moves by {finding.shift:.2f}" in card.replace(
        "\n", " "
    )
    again = RAxSSClassifier.from_pretrained(folder, device="cpu")
    assert again.gap_finding_ == finding
    np.testing.assert_array_equal(again.predict_proba(test), model.predict_proba(test))
    for fitted in (model, again):
        evidence = fitted.explain(test[1])
        assert any("the model has learned from gaps" in warning for warning in evidence.warnings)
        assert evidence.settings["share_missing"] is True
        assert any("learned from gaps" in note for note in next(iter(fitted.score_series(test[:1]))).notes)
    page = str(model.report(test[:2]).contents)
    assert "the model has learned from gaps" in page


def test_a_signal_is_still_learned_beside_gaps_that_differ_by_class():
    train, test = noise(40, 0, amplitude=2.0), noise(40, 100, amplitude=2.0)
    model = RAxSSClassifier(**SETTINGS, missing="nan").fit(train)
    assert not model.gap_finding_.learned
    assert auc(model, test) > 0.95
    whole = noise(40, 100, amplitude=2.0, of_class=())
    assert auc(model, whole) > 0.95


def test_gaps_of_all_classes_alike_are_noted_and_nothing_is_planted(caplog):
    caplog.set_level(logging.INFO, "raxss")
    train = noise(40, 3, amplitude=2.0, share=0.1, of_class=(0, 1))
    model = RAxSSClassifier(**NETWORK, missing="nan").fit(train)
    finding = model.gap_finding_
    assert (finding.n_with_gaps, finding.n_series) == (36, 36)
    assert not finding.differ
    assert finding.shift is None
    assert finding.notes == []
    assert "Gaps do not tell the class" in caplog.text
    assert "planted" not in caplog.text


def test_without_gaps_there_is_no_finding_and_share_missing_changes_no_score_of_a_pool(tmp_path):
    series = noise(12, 0, amplitude=3.0, of_class=())
    plain = RAxSSClassifier(**NETWORK | {"max_epochs": 2}).fit(series)
    assert plain.gap_finding_ is None
    folder = plain.save_pretrained(tmp_path / "model")
    assert "Missing samples" not in (folder / "README.md").read_text()
    assert RAxSSClassifier.from_pretrained(folder, device="cpu").gap_finding_ is None


# Planting ---------------------------------------------------------------------------------------------------


def test_planted_gaps_are_those_of_one_window_of_every_other_class(rng):
    series, targets = [], np.array([0, 1, 2])
    for k in range(3):  # class k misses every window's samples 10 k to 10 k + 4
        samples = rng.normal(size=300)
        samples[(np.arange(300) % 50 >= 10 * k) & (np.arange(300) % 50 < 10 * k + 5)] = np.nan
        series.append(Series(samples, gaps_marked=True))
    for with_mask in (True, False):
        pool = WindowPool.of_equals(series, targets, window_length=50, stride=50, device=CPU)
        pool.with_mask = with_mask
        batch = pool.take(torch.arange(len(pool)))
        planted = pool.plant_gaps(batch)
        expected = np.ones(50)
        expected[[*range(5), *range(10, 15), *range(20, 25)]] = 0
        np.testing.assert_array_equal(planted.present[:, 0], np.tile(expected, (len(pool), 1)))
        np.testing.assert_array_equal(planted.values, batch.values * planted.present)
        assert planted.windows.shape[1] == 1 + with_mask
        assert (batch.present.mean() > planted.present.mean()).item()


def test_padding_of_other_windows_is_not_planted():
    one, other = np.arange(1.0, 11), np.arange(1.0, 6)  # the second is padded to twice its length
    one[8], other[2] = np.nan, np.nan
    series = [Series(one, gaps_marked=True), Series(other, gaps_marked=True)]
    pool = WindowPool.of_equals(
        series, np.array([0, 1]), window_length=10, stride=10, device=CPU, marks_padding=True
    )
    planted = pool.plant_gaps(pool.take(torch.arange(2))).present[:, 0]
    assert planted[0].tolist() == [1, 1, 0, 1, 1, 1, 1, 1, 0, 1]
    assert planted[1].tolist() == [1, 1, 0, 1, 1, 0, 0, 0, 0, 0]  # its own padding stays


def test_a_class_without_windows_plants_nothing():
    series = [
        Series(np.r_[np.nan, np.arange(9.0)], gaps_marked=True),
        Series(np.full(10, np.nan), gaps_marked=True),
    ]
    pool = WindowPool.of_equals(series, np.array([0, 1]), window_length=10, stride=10, device=CPU)
    batch = pool.take(torch.arange(1))
    torch.testing.assert_close(pool.plant_gaps(batch).present, batch.present)


# Series without usable windows --------------------------------------------------------------------------------


def mostly_gaps(labels, series):
    """The same, of which those of some labels miss three quarters of every stretch of 16 samples."""
    missing = np.arange(series[0].n_samples) % 16 < 12
    return [
        item.with_samples(np.where(missing, np.nan, item.samples)) if item.label in labels else item
        for item in series
    ]


@pytest.mark.parametrize("settings", [SETTINGS, NETWORK], ids=["mixture", "network"])
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ((1,), r"some classes do not have a usable training window: in every window of '1' \(\d+ series\)"),
        ((0, 1), r"no class has a usable training window: .*'0' \(\d+ series\), '1' .*smaller window_length"),
    ],
    ids=["one class", "all classes"],
)
def test_a_class_without_usable_windows_is_refused(settings, labels, message):
    with pytest.raises(DataError, match=message):
        RAxSSClassifier(**settings, missing="nan").fit(mostly_gaps(labels, noise(12, 0, of_class=())))


def test_series_without_usable_windows_are_counted(caplog):
    series = noise(12, 0, of_class=(), amplitude=3.0)
    series = [*mostly_gaps((0, 1), series[:2]), *series[2:]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = RAxSSClassifier("ridge", **SETTINGS, missing="nan").fit(series)
    assert "2 of 12 training series have no usable window" in caplog.text
    assert model.predict_proba(series[2:]).shape == (10, 2)


# Statistics of gaps -----------------------------------------------------------------------------------------


def test_gap_statistics_count_gaps_of_any_variate():
    samples = np.zeros((2, 20))
    samples[0, 3:6] = samples[1, 5:7] = samples[1, 19] = np.nan
    found = gap_statistics([Series(samples)])[0]
    np.testing.assert_allclose(found[:6], [5 / 20, 2 / 20, 4 / 20, 2.5 / 20, 3 / 20, 1])
    np.testing.assert_allclose(found[6:], [0, 4 / 5, 4 / 5, 0, 0, 0, 0, 2 / 5])


def at_places(n, seed, *, length=200):
    """Noise with as many and as long gaps in both classes: those of class 0 are early, of class 1 late."""
    rng, found = np.random.default_rng(seed), []
    for k in range(n):
        samples, first = rng.normal(size=length), (10, 130)[k % 2] + rng.integers(10)
        samples[first : first + 50] = np.nan
        found.append(Series(samples, label=k % 2, name=f"noise-{k}", gaps_marked=True))
    return found


def test_gaps_at_other_places_differ_by_class():
    targets = np.arange(40) % 2
    found = gaps_by_class(at_places(40, 0), targets, None, seed=0)
    assert found.differ
    assert found.accuracy > 0.95


def test_gaps_at_other_places_of_the_windows_differ_by_class(rng):
    series, targets = [], np.arange(40) % 2
    for target in targets:
        samples = rng.normal(size=1003)
        for window in rng.permutation(15)[:6]:
            first = 64 * window + (10, 40)[target]
            samples[first : first + 8] = np.nan
        series.append(Series(samples, gaps_marked=True))
    statistics = gap_statistics(series, window_length=64, stride=64)
    np.testing.assert_allclose(statistics[:, 14:].sum(axis=1), 6 * 8 / 15 / 8)
    found = gaps_by_class(series, targets, None, window_length=64, stride=64, seed=0)
    assert found.accuracy > gaps_by_class(series, targets, None, seed=0).accuracy
    assert found.accuracy > 0.95


def test_padding_is_no_gap():
    found = gap_statistics([Series(np.zeros(10))], window_length=64, stride=8)
    np.testing.assert_array_equal(found[0], [0, 0, 0, 0, 1, 0] + [0] * 16)


@pytest.mark.filterwarnings(
    "ignore::raxss.errors.NotLearnedWarning", "ignore::raxss.errors.GapsLearnedWarning"
)
def test_scores_do_not_follow_the_places_of_gaps_unless_there_is_a_warning(caplog):
    caplog.set_level(logging.INFO, "raxss")
    found = []
    for seed in range(3):
        caplog.clear()
        model = RAxSSClassifier(**SMALL_MIXTURE, random_state=seed, missing="nan").fit(at_places(40, seed))
        assert "planted" in caplog.text
        assert model.gap_finding_.differ
        assert model.gap_finding_.shift is not None
        found.append(0.5 if model.gap_finding_.learned else auc(model, at_places(100, 100 + seed)))
    assert 0.25 < np.mean(found) < 0.75


# What a fitted model makes of gaps --------------------------------------------------------------------------


def always_the_same_gap(n, seed):
    """Noise, of which class 1 always misses the same samples."""
    samples = np.random.default_rng(seed).normal(size=(n, 100))
    samples[1::2, 5:35] = np.nan
    return [Series(row, label=k % 2, name=f"noise-{k}", gaps_marked=True) for k, row in enumerate(samples)]


@pytest.mark.filterwarnings(
    "ignore::raxss.errors.NotLearnedWarning", "ignore::raxss.errors.GapsLearnedWarning"
)
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_the_shift_is_about_as_large_as_with_new_series(seed):
    model = RAxSSClassifier(**SMALL_MIXTURE, random_state=seed, missing="nan").fit(
        always_the_same_gap(40, seed)
    )
    new = model.predict_proba(always_the_same_gap(200, 100 + seed))[:, 1]
    finding = model.gap_finding_
    assert finding.shift == pytest.approx(new[1::2].mean() - new[::2].mean(), abs=0.05)
    assert not finding.of_training
    if seed == 2:  # away from the class that has the gap
        assert finding.high < -0.05
        assert finding.learned


@pytest.mark.filterwarnings(
    "ignore::raxss.errors.NotLearnedWarning", "ignore::raxss.errors.GapsLearnedWarning"
)
def test_a_network_is_tested_with_validation_series_where_there_are_enough():
    settings = {"backbone": "convnet-fine", "max_epochs": 1, "device": "cpu", "random_state": 0}
    few, many = (
        RAxSSClassifier(**settings, missing="nan", validation_fraction=fraction).fit(
            always_the_same_gap(40, 0)
        )
        for fraction in (0.0, 0.5)
    )
    assert few.gap_finding_.of_training
    assert "which it was fitted on" in few.gap_finding_.describe()
    assert not many.gap_finding_.of_training
    assert "fitted on" not in many.gap_finding_.describe()


class Recorder:
    """Scores half for each class and keeps which series it was asked for."""

    window_length, stride = 8, 8

    def __init__(self):
        self.asked = []

    def scores(self, series, places):
        self.asked.append((list(series), places.tolist()))
        return np.full((len(series), 2), 0.5)


def test_gaps_are_imposed_on_the_tested_series_alone():
    series = [Series(np.r_[np.nan if k % 2 else 0.0, np.arange(15.0)], gaps_marked=True) for k in range(40)]
    finding, recorder = GapFinding(40, 20, 0.1, 0.5, accuracy=1.0, p_value=0.01), Recorder()
    tested = np.arange(10, 30)
    found = shift_by_gaps(finding, recorder, series, np.arange(40) % 2, tested=tested, seed=0)
    (imposed, places), (before, same) = recorder.asked
    assert sorted(places) == list(range(10, 30, 2))  # those of the class without gaps
    assert places == same
    assert all(item is series[place] for item, place in zip(before, places, strict=True))
    assert all(np.isnan(item.samples[0, 0]) for item in imposed)
    assert (found.shift, found.of_training) == (0.0, False)
    assert shift_by_gaps(finding, recorder, series, np.arange(40) % 2, tested=tested[:8], seed=0) == finding


def test_gaps_are_exchanged_where_too_little_would_be_left_with_both():
    halves = np.arange(20) < 9
    series = [
        Series(np.where(halves if k % 2 else halves[::-1], np.nan, 1.0 + k), gaps_marked=True)
        for k in range(20)
    ]
    finding, recorder = GapFinding(20, 20, 0.45, 0.5, accuracy=1.0, p_value=0.01), Recorder()
    recorder.window_length = recorder.stride = 20
    found = shift_by_gaps(finding, recorder, series, np.arange(20) % 2, tested=np.arange(20), seed=0)
    assert found.shift == 0.0
    for item, place in zip(*recorder.asked[0], strict=True):
        other = series[place ^ 1]
        np.testing.assert_array_equal(np.isnan(item.samples), np.isnan(other.samples))
        assert np.nanmin(item.samples) == np.nanmax(item.samples) == 1.0 + place


def test_a_shift_away_from_the_class_is_called_what_it_is():
    finding = GapFinding(40, 20, 0.1, 0.5, accuracy=0.9, p_value=0.01, shift=-0.3, low=-0.4, high=-0.2)
    assert finding.learned
    (note,) = finding.notes
    assert note.startswith("the scores of the model depend on gaps:")
    assert "a score moves by 0.30 (0.20 to 0.40) away from a class when its gaps are imposed." in note
    assert (
        "The model depends on them: the score of a class moves by -0.30 (-0.40 to -0.20)"
        in finding.describe()
    )
    assert not replace(finding, high=0.1).learned
    assert not replace(finding, shift=-0.04, low=-0.05, high=-0.03).learned


def test_a_finding_of_a_model_saved_before_is_of_training_series():
    finding = GapFinding(40, 20, 0.1, 0.5, accuracy=0.9, p_value=0.01, shift=0.3, low=0.2, high=0.4)
    before = {name: value for name, value in finding.to_json().items() if name != "of_training"}
    assert GapFinding.from_json(before) == replace(finding, of_training=True)
    untested = before | {"shift": None, "low": None, "high": None}
    assert not GapFinding.from_json(untested).of_training


def test_whole_groups_are_permuted_so_that_many_series_of_few_patients_prove_nothing(rng):
    series, targets, groups = [], [], []
    for patient in range(6):
        share = rng.uniform(0.05, 0.4)  # of the patient, not of the class
        for _ in range(20):
            series.append(Series(np.where(rng.random(400) < share, np.nan, 0.0)))
            targets.append(patient % 2)
            groups.append(f"patient-{patient}")
    by_group = gaps_by_class(series, np.array(targets), np.array(groups), seed=0)
    assert by_group.p_value > 0.05
    few = gaps_by_class(series[:40], np.array(targets[:40]), np.array(groups[:40]), seed=0)
    assert few.p_value is None
    assert few.may_differ
    assert not few.differ
    assert "too few series" in few.describe()


def test_imposed_gaps_are_those_of_the_donor():
    series = Series(np.arange(6.0), label="a", name="base")
    found = with_gaps_of(series, Series([0.0, np.nan, 0.0]))
    np.testing.assert_array_equal(missing_samples(found.samples), [False, True, False, False, True, False])
    assert (found.name, found.label, found.gaps_marked) == ("base", "a", True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"p_value": None}, "do not go together"),
        ({"shift": None}, "do not go together"),
        ({"chance": None}, "lacks a number"),
        ({"accuracy": float("nan")}, "finite numbers"),
        ({"accuracy": "high"}, "finite numbers"),
        ({"more": 1}, "entries"),
        ({"of_training": 1}, "training series"),
    ],
)
def test_a_finding_that_was_changed_is_refused(change, message):
    finding = GapFinding(40, 20, 0.1, 0.5, accuracy=0.9, p_value=0.01, shift=0.3, low=0.2, high=0.4)
    assert GapFinding.from_json(finding.to_json()) == finding
    with pytest.raises(ValueError, match=message):
        GapFinding.from_json(finding.to_json() | change)


# Settings ---------------------------------------------------------------------------------------------------


def test_nan_is_refused_unless_it_means_missing():
    series = noise(12, 0, amplitude=3.0)
    arrays, labels = [item.samples for item in series], [item.label for item in series]
    small = NETWORK | {"max_epochs": 1}
    with pytest.raises(SignalError, match=r"series 1'.* samples that are NaN or infinity.*missing='nan'"):
        RAxSSClassifier(**small).fit(arrays, labels)
    model = RAxSSClassifier(**small, missing="nan")
    assert model.__sklearn_tags__().input_tags.allow_nan
    assert not RAxSSClassifier().__sklearn_tags__().input_tags.allow_nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(arrays, labels)
    assert model.predict_proba(arrays[:3]).shape == (3, 2)
    bad = arrays[1].copy()
    bad[0, 0] = np.inf
    with pytest.raises(SignalError, match="NaN or infinity"):
        model.predict_proba([bad])
    with pytest.raises(ConfigError, match=r"preparation\.missing is 'drop'"):
        RAxSSClassifier(missing="drop").config  # noqa: B018
    with pytest.raises(ConfigError, match=r"share_missing must be true or false, got 1"):
        RAxSSClassifier(share_missing=1).config  # noqa: B018


def test_statistics_of_scaling_skip_missing_samples():
    series = noise(12, 0, amplitude=3.0)
    filled = [item.with_samples(np.nan_to_num(item.samples, nan=1e6)) for item in series]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = RAxSSClassifier(**NETWORK | {"max_epochs": 1}, missing="nan", validation_fraction=0).fit(
            series
        )
    known = np.concatenate([item.samples[0][~np.isnan(item.samples[0])] for item in series])
    np.testing.assert_allclose(model.scaling_.mean, known.mean(), rtol=1e-12)
    np.testing.assert_allclose(model.scaling_.deviation, known.std(), rtol=1e-12)
    assert np.mean(filled[1].samples) > 1e5


def test_settings_from_before_keep_their_hash():
    assert Config().hash == Config.from_parameters({"missing": "refuse", "share_missing": False}).hash
    assert Config().hash != Config.from_parameters({"share_missing": True}).hash
    assert Config().hash != Config.from_parameters({"missing": "nan"}).hash


# Share missing ----------------------------------------------------------------------------------------------


class NoFeatures(torch.nn.Module):
    """Two logits for two classes, and no features."""

    def __init__(self, n_variates, window_length, n_outputs):
        super().__init__()
        self.last = torch.nn.Linear(n_variates * window_length, 2)

    def forward(self, windows):
        return self.last(windows.flatten(1))


@pytest.mark.parametrize("backbone", ["convnet", "patchtst", NoFeatures])
def test_the_share_missing_is_added_to_the_logits(rng, backbone):
    torch.manual_seed(0)
    network = build_backbone(backbone, n_variates=2, window_length=64, n_outputs=1).eval()
    whole = with_numbers(network, 2, 64, 1, share_missing=True).eval()
    windows = torch.from_numpy(rng.normal(size=(3, 2, 64))).float()
    present = torch.ones(3, 1, 64)
    present[1, :, :16] = 0.0
    with torch.no_grad():
        torch.testing.assert_close(whole(windows), network(windows))
        masked = torch.cat([windows * present, present], dim=1)
        inner = masked if backbone == "convnet" else windows * present
        expected = network(inner)
        expected[:, -1] += whole.share.weight[0, 0] * torch.tensor([0.0, 0.25, 0.0])
        torch.testing.assert_close(whole(masked), expected)
        if backbone is NoFeatures:
            assert whole.features is None
            assert not has_head(whole)
            return
        logits, features = logits_and_features(whole, masked)
        torch.testing.assert_close(logits, expected)
        assert features.shape[1] == n_features(whole, 2, 64) == n_features(network, 2, 64) + 1
        torch.testing.assert_close(features[:, -1], torch.tensor([0.0, 0.25, 0.0]))
    assert re.search("with the share of missing samples, .* parameters", describe(whole))


# Values that mean missing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "gap"), [("gap -999", -999.0), ("gap 0.5, pool 24/12, z-score", 0.5), ("gap 0, z-score", 0.0)]
)
def test_a_preparation_names_the_value_of_missing_samples(text, gap):
    preparation = Preparation.parse(text)
    assert preparation.gap == gap
    assert str(preparation) == text
    assert str(Preparation.parse("gap nan")) == "gap nan"


@pytest.mark.parametrize(
    "text", ["gap", "gap inf", "gap x", "z-score, gap 1", "gap 1, gap 2", "gap 1,z-score"]
)
def test_what_is_no_preparation_with_gaps_is_refused(text):
    with pytest.raises(ConfigError, match=re.escape(repr(text))):
        Preparation.parse(text)


def test_samples_of_the_gap_value_are_missing_before_anything_else(rng):
    samples = rng.normal(5, 2, size=240)
    samples[50:60] = -999.9
    for values in (samples, samples.astype(np.float32)):
        found = Preparation(gap=-999.9, pooling=(4, 4), scaling="series").apply(Series(values, rate=10.0))
        assert found.gaps_marked
        assert np.flatnonzero(np.isnan(found.samples[0])).tolist() == [12, 13, 14]
        assert abs(np.nanmean(found.samples)) < 1e-6
        assert found.preparation == "gap -999.9, pool 4/4, z-score"
    whole = Preparation(gap=-1.0).apply(Series(samples))
    assert not whole.gaps_marked
    raw = with_gap_value(Series(samples), -999.9)
    assert raw.gaps_marked
    assert raw.preparation == ""
    assert not with_gap_value(Series([1.0, np.inf, -1.0]), -1.0).gaps_marked


@pytest.mark.parametrize("value", ["inf", "x", None, True])
def test_a_gap_value_is_a_number_or_nan(value):
    with pytest.raises(ConfigError, match=re.escape(repr(value))):
        gap_value(value)


def test_a_model_knows_the_gap_value_of_its_training_series(tmp_path):
    series = noise(16, 0, amplitude=3.0)
    files = [replace(item, samples=np.nan_to_num(item.samples, nan=-999.0)) for item in series]
    prepared = [Preparation(gap=-999.0).apply(item) for item in files]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = RAxSSClassifier(**NETWORK | {"max_epochs": 1}).fit(prepared)
    folder = model.save_pretrained(tmp_path / "model")
    again = RAxSSClassifier.from_pretrained(folder, device="cpu")
    found = again.preparation_of_model().apply(files[1])
    np.testing.assert_array_equal(np.isnan(found.samples), np.isnan(series[1].samples))
    assert again.predict_proba([found]).shape == (1, 2)
    with pytest.raises(
        DataError, match="prepared by nothing, but the model was fitted on series prepared by 'gap -999'"
    ):
        again.predict_proba([files[1]])


# Command line -----------------------------------------------------------------------------------------------


@pytest.fixture
def manifest(tmp_path):
    """Sixteen recordings with -999 where samples are missing, and the manifest that lists them."""
    lines = ["path,label,group,rate"]
    for k, item in enumerate(noise(16, 0, amplitude=3.0)):
        values = np.nan_to_num(item.samples, nan=-999.0)
        np.savez(tmp_path / f"rec{k}.npz", samples=values, rate=10.0)
        lines.append(f"rec{k}.npz,{'ab'[item.label]},p{k},10")
    path = tmp_path / "manifest.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


FIT = ["--window-length", "64", "--stride", "32", "--max-epochs", "1", "--device", "cpu"]


@pytest.mark.filterwarnings("ignore::raxss.errors.RAxSSWarning")
def test_the_command_line_marks_a_value_as_missing_and_models_remember_it(manifest, tmp_path):
    model, files = tmp_path / "model", [tmp_path / "rec1.npz", tmp_path / "rec2.npz"]
    raxss("fit", manifest, "--out", model, *FIT, "--gap", "-999", "--share-missing")
    fitted = RAxSSClassifier.from_pretrained(model, device="cpu")
    assert fitted.preparation_ == "gap -999"
    assert fitted.share_missing
    assert fitted.gap_finding_.n_with_gaps == 7 or fitted.gap_finding_.n_with_gaps == 8
    raxss("predict", model, *files, "--out", tmp_path / "scores.csv", "--device", "cpu")
    scores = pd.read_csv(tmp_path / "scores.csv")
    samples = np.load(files[0])["samples"]
    expected = fitted.preparation_of_model().apply(Series(samples, rate=10.0))
    assert np.isnan(expected.samples).any()
    assert scores.filter(like="probability_b").iloc[0, 0] == pytest.approx(
        fitted.predict_proba([expected])[0, 1]
    )
    raxss("explain", model, files[0], "--out", tmp_path / "report.html", "--device", "cpu")
    assert "windows have missing samples, up to half" in str(Report.read(tmp_path / "report.html").contents)


@pytest.mark.filterwarnings("ignore::raxss.errors.RAxSSWarning")
def test_a_value_can_be_marked_at_prediction_or_by_prepare_as_well(manifest, tmp_path):
    prepared, model = tmp_path / "prepared", tmp_path / "model"
    raxss("prepare", manifest, "--out", prepared, "--gap", "-999", "--scaling", "series")
    raxss("fit", prepared, "--out", model, *FIT)
    assert RAxSSClassifier.from_pretrained(model, device="cpu").preparation_ == "gap -999, z-score"
    assert "prepared already" in raxss(
        "fit", prepared, "--out", tmp_path / "other", *FIT, "--gap", "0", code=1
    )
    plain = tmp_path / "plain"
    raxss("fit", manifest, "--out", plain, *FIT)
    scores = []
    for options in ([], ["--gap", "-999"], ["--gap", "-999", "--engine", "local", "--workers", "1"]):
        out = tmp_path / f"scores{len(scores)}.csv"
        raxss("predict", plain, tmp_path / "rec1.npz", "--out", out, "--device", "cpu", *options)
        scores.append(pd.read_csv(out).filter(like="probability_").to_numpy())
    assert not np.allclose(scores[0], scores[1])
    np.testing.assert_allclose(scores[1], scores[2], atol=1e-9)
    assert "'many'" in raxss("fit", manifest, "--out", tmp_path / "x", *FIT, "--gap", "many", code=1)


# The share missing of window classifiers ----------------------------------------------------------------------


def test_the_share_missing_counts_gaps_and_no_padding():
    mask = torch.tensor(
        [[1, 0, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]]
    )
    windows = torch.cat([torch.randn(5, 2, 6), mask[:, None].float()], dim=1)
    torch.testing.assert_close(share_missing_of(windows, 2), torch.tensor([1 / 4, 0, 5 / 6, 0, 0]))
    assert share_missing_of(windows[:, :2], 2).tolist() == [0] * 5


@pytest.mark.parametrize("name", sorted(set(WINDOW_CLASSIFIERS) - {"mixture"}))
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_window_classifiers_have_the_share_missing_as_one_more_feature(rng, name, n_outputs):
    shape = {"n_variates": 2, "window_length": 32, "n_outputs": n_outputs}
    plain, more = (
        build_backbone(name, **shape, options={"view": "statistics", "share_missing": share})
        for share in (False, True)
    )
    assert more.d == plain.d + 1
    n_classes, n = max(n_outputs, 2), 60
    targets = np.arange(n) % n_classes
    mask = torch.from_numpy(rng.random((n, 1, 32)) > 0.2 * targets[:, None, None]).float()
    mask[:, :, -1] = 1
    windows = torch.cat([torch.from_numpy(rng.normal(size=(n, 2, 32))).float() * mask, mask], dim=1)
    training = TrainingWindows(
        windows=windows, targets=targets, series=np.arange(n), folds=np.arange(n) // 20,
        n_classes=n_classes, weights=np.ones(n), seed=0,
    )  # fmt: skip
    found = more.fit_windows(training)
    torch.testing.assert_close(more._view(windows)[:, -1], 1 - mask[:, 0].mean(dim=1))
    assert (found.argmax(axis=1) == targets).mean() > (0.8 if n_classes == 2 else 0.6)
    logits, features = more.logits_and_features(windows)
    assert torch.equal(logits, more(windows))
    assert features.shape == (n, n_features(more, 2, 32))
    again = build_backbone(name, **shape, options={"view": "statistics", "share_missing": True})
    again.load_state_dict(more.state_dict())
    assert torch.equal(again(windows), logits)


def test_the_share_missing_goes_to_the_window_classifiers_alone():
    def options(**settings):
        return with_members(Config.from_parameters(settings), [5000] * 400, 1).backbone.backbone_options

    members = options(share_missing=True)["members"]
    assert [member.get("share_missing", False) for member in members] == [True] * 4 + [False]
    assert all("share_missing" not in member for member in options()["members"])
    own = [{"backbone": "ridge"}, {"backbone": "convnet"}]
    found = options(backbone_options={"members": own}, share_missing=True)["members"]
    assert found == [{"backbone": "ridge", "share_missing": True}, {"backbone": "convnet"}]
    assert own == [{"backbone": "ridge"}, {"backbone": "convnet"}]
    assert options(backbone="logistic", share_missing=True) == {"share_missing": True}
    assert options(backbone=GaussianNB(), share_missing=True) == {"share_missing": True}
    assert options(backbone="convnet", share_missing=True) == {}


def test_a_window_classifier_that_takes_no_share_missing_is_refused_with_it():
    config = Config.from_parameters({"share_missing": True})
    with pytest.raises(ConfigError, match=r"share_missing is true, but the backbone Ridge takes no share"):
        check_settings(config, build_backbone("ridge", n_variates=1, window_length=32, n_outputs=1))
