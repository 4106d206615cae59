"""Disturbances of windows, and members of a mixture that know disturbed windows."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.metrics import log_loss

from classifier_claims import N_FOLDS, build, posteriors_by, rhythms, training_on
from raxss import RAxSSClassifier, Series
from raxss.benchmark.analyses.artefacts import noisy
from raxss.errors import ConfigError
from raxss.method.backbones import disturbed_members
from raxss.method.backbones.disturbed_members import thinned, with_copies
from raxss.method.disturbances import DISTURBANCES, MOST_DECIBELS, disturbed
from raxss.method.windows import windows_of

TREES = {"backbone": "extra-trees", "n_trees": 60}
RIDGE = {"backbone": "ridge"}


def waves(n=400, n_variates=2, length=200):
    generator = torch.Generator().manual_seed(0)
    return 3 + torch.randn(n, n_variates, length, generator=generator).cumsum(dim=2)


@pytest.mark.parametrize("length", [1, 2, 9, 200])
def test_disturbed_windows_are_finite_and_of_the_same_shape(length):
    windows = waves(length=length)
    found = disturbed(windows, seed=3)
    assert found.shape == windows.shape
    assert found.isfinite().all()
    assert torch.equal(disturbed(windows[:0], seed=3), windows[:0])
    assert torch.equal(
        disturbed(torch.ones(20, 1, length), seed=3), torch.ones(20, 1, length)
    )  # no deviation


def test_every_disturbance_occurs_and_most_leave_a_part_of_the_window_unchanged():
    windows = waves()
    changed = (disturbed(windows, seed=3) != windows).any(dim=1)
    assert changed.any(dim=1).all()
    whole = changed.all(dim=1).float().mean()
    assert 0.5 / len(DISTURBANCES) < whole < 2 / len(DISTURBANCES)  # white noise alone
    assert 0.05 <= changed.float().mean(dim=1).min() < 0.2


def test_white_noise_has_the_stated_strength():
    windows = waves()
    found = disturbed(windows, seed=3)
    whole = (found != windows).any(dim=1).all(dim=1)
    power = (found - windows)[whole].square().mean(dim=2) / windows[whole].var(dim=2, correction=0)
    decibels = -10 * power.log10()
    assert -1.5 < decibels.min() < 3
    assert MOST_DECIBELS - 3 < decibels.max() < MOST_DECIBELS + 1.5


def test_scales_of_variates_do_not_matter():
    windows, factors = waves(), torch.tensor([[[1.0], [1024.0]]])
    assert_allclose(disturbed(windows * factors, seed=3) / factors, disturbed(windows, seed=3), rtol=1e-4)


@pytest.mark.parametrize("n", [40, 4000])
def test_windows_to_copy_hold_every_series_and_copies_follow_them(n):
    targets = np.arange(n) // 2 % 2
    groups = np.arange(n) // 4
    training = training_on(torch.randn(n, 1, 16), targets, groups=groups, weights=np.full(n, 1.0))
    some = thinned(training)
    assert len(some.targets) == min(n, max(disturbed_members.MOST_WINDOWS, n // 2))  # two windows a series
    assert set(some.series) == set(training.series)
    assert_allclose(some.weights.mean(), 1)
    both = with_copies(some, 1)
    half = len(some.targets)
    assert torch.equal(both.windows[:half], some.windows)
    for name in ("targets", "series", "folds", "weights", "groups"):
        first, second = np.split(getattr(both, name), 2)
        np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(first, getattr(some, name))


def test_copies_miss_what_the_windows_miss():
    windows, mask = torch.randn(40, 1, 64), torch.ones(40, 1, 64)
    mask[::2, :, 10:30] = 0
    both = with_copies(
        training_on(torch.cat([windows * mask, mask], dim=1), np.arange(40) // 2 % 2), n_variates=1
    )
    copies, present = both.windows[40:, :1], both.windows[40:, 1:]
    assert torch.equal(present, mask)
    assert (copies[present == 0] == 0).all()


@pytest.fixture(scope="module")
def two():
    """The same members with and without others for disturbed windows, and windows of another draw."""
    rng = np.random.default_rng(5)
    windows, targets = rhythms(rng, n=120)
    training = training_on(windows, targets)
    members = {"members": [RIDGE, TREES]}
    plain, guarded = build("mixture", **members), build("mixture", **members, disturbed=[RIDGE, TREES])
    for classifier in (plain, guarded):
        torch.manual_seed(0)
        classifier.eval().fit_windows(training)
    return plain, guarded, rhythms(rng, n=120)


def test_clean_windows_are_classified_as_without_them(two):
    plain, guarded, (windows, targets) = two
    without, found = posteriors_by(plain, windows), posteriors_by(guarded, windows)
    assert (found.argmax(axis=1) == targets).mean() >= (without.argmax(axis=1) == targets).mean() - 0.02
    assert np.abs(found - without).mean() < 0.1


def test_the_forest_tells_disturbed_windows(two):
    _, guarded, (windows, _) = two
    with torch.no_grad():
        clean = guarded.disturbed.share(windows)
        noise = guarded.disturbed.share(windows + torch.randn(windows.shape) * windows.std())
    assert clean.median() == 0
    assert noise.median() > 0.7


def test_posteriors_are_the_convex_combination(two):
    _, guarded, (windows, _) = two
    windows = torch.cat([windows[:60], windows[60:] + torch.randn(60, 1, windows.shape[2])])
    with torch.no_grad():
        for fold in (None, *range(N_FOLDS)):
            g, other = (
                guarded.disturbed.share(windows, fold=fold)[:, None],
                guarded.disturbed(windows, fold=fold),
            )
            assert ((g == 0) | (g >= 0.05)).all()
            assert 0 < (g > 0).sum() < len(g)
            members = torch.stack([guarded._member(k, windows, fold=fold)[0] for k in range(2)])
            expected = (1 - g) * torch.tensordot(guarded.weights, members, dims=1) + g * other
            logits, _ = guarded.logits_and_features(windows, fold=fold)
            found = logits.sigmoid()[:, 0]
            assert_allclose(found, expected[:, 1], atol=1e-6)
    assert_allclose(guarded.disturbed.weights.sum(), 1)


def test_with_a_network_members_are_weighed_by_disturbed_copies_of_validation_windows():
    rng = np.random.default_rng(5)
    windows, targets = rhythms(rng, n=120)
    members = [{"backbone": "convnet", "width": 4}, RIDGE]
    classifier = build(
        "mixture", members=members, disturbed=[RIDGE, {"backbone": "extra-trees", "n_trees": 1}]
    )
    classifier.eval().fit_windows(training_on(windows, targets, folds=np.full(120, -1)))
    np.testing.assert_array_equal(classifier.disturbed.weights, [0.5, 0.5])  # nothing was held out
    other, labels = rhythms(rng, n=120)
    classifier.weigh_by_validation(list(other.split(50)), labels, np.arange(120) // 2)
    ridge, tree = classifier.disturbed.weights.tolist()
    assert ridge + tree == pytest.approx(1)
    assert ridge > 0.6  # a single tree is worse


def test_members_for_disturbed_windows_are_window_classifiers():
    for name in ("convnet", "mixture"):
        with pytest.raises(
            ConfigError, match=rf"disturbed has the backbones .*{name}.*needed are window classif"
        ):
            build("mixture", disturbed=[{"backbone": name}])
    with pytest.raises(ConfigError, match=r"disturbed is .*a table for each member"):
        build("mixture", disturbed=["ridge"])


def evidence_windows(model, series):
    """The windows of a series as the model scores them."""
    scaled = model.scaling_.apply(series)
    return windows_of(scaled, window_length=model.window_length_, stride=model.stride_).samples.copy()


def test_series_in_noise_are_classified_better_and_the_model_is_saved(tmp_path):
    rng = np.random.default_rng(3)
    targets, time = np.arange(60) % 2, np.arange(400)
    waves = np.sin(2 * np.pi * time * (0.03 + 0.01 * targets[:, None]) + rng.uniform(0, 6, size=(60, 1)))
    series = [
        Series(row, name=str(place)) for place, row in enumerate(waves + 0.1 * rng.normal(size=waves.shape))
    ]
    spoiled = [noisy(item, 0.0) for item in series[40:]]
    members, found = [RIDGE, TREES], {}
    for name, others in (("plain", []), ("guarded", members)):
        options = {"members": members, "disturbed": others}
        model = RAxSSClassifier(backbone_options=options, window_length=128, stride=64, random_state=0)
        model.fit(series[:40], targets[:40])
        found[name] = log_loss(targets[40:], model.predict_proba(spoiled))
    assert found["guarded"] < 0.8 * found["plain"]
    evidence = model.explain(spoiled[0])
    shares = evidence.windows["disturbed_share"].to_numpy()
    with torch.inference_mode():
        scaled = torch.from_numpy(evidence_windows(model, spoiled[0])).float()
        np.testing.assert_allclose(shares, model.backbone_.disturbed.share(scaled).numpy(), atol=1e-12)
    assert f"{len(shares)} windows look as if noise or artefacts disturbed them" in " ".join(
        evidence.warnings
    )
    assert not any("disturbed" in note for note in model.explain(series[40]).warnings)
    again = RAxSSClassifier.from_pretrained(model.save_pretrained(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict_proba(spoiled), model.predict_proba(spoiled))
    assert "; of disturbed windows " in model.backbone_.describe_as
