"""MultiView: three readings of a window, each against a slow one, and thresholds that stay with the model."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import naive
from network_claims import build, seeded_on_one_thread
from raxss import RAxSSClassifier
from raxss.benchmark.baselines.mil import MILClassifier
from raxss.errors import ConfigError
from raxss.estimator.fit import show_windows
from raxss.method.backbones import multiview
from raxss.method.backbones.multiview import VIEWS, log_bands, with_derivatives
from toys import SMALL, StopAfter, pool_of, waves

_seeded = pytest.fixture(autouse=True)(seeded_on_one_thread)


# Shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("views", "length", "expected"),  # tensors of "ppv" in model folders keep their former name
    [
        (VIEWS, 15, ["shapes"]),
        (VIEWS, 31, ["shapes", "textures"]),
        (VIEWS, 32, ["shapes", "rhythms", "textures"]),
        *((view, 64, [{"ppv": "textures"}.get(view, view)]) for view in VIEWS),
        (["ppv"], 16, ["textures"]),
    ],
)
def test_a_network_has_the_views_that_are_asked_for_and_that_its_windows_are_long_enough_for(
    views, length, expected
):
    network = build("multiview", window_length=length, views=views)
    assert list(network.views) == expected
    assert network(torch.randn(3, 1, length)).shape == (3, 1)


# What it reads ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 50])
def test_derivatives_are_differences_at_unit_deviation(rng, length):
    windows = rng.normal(size=(3, 2, length))
    expected, last = [windows], windows
    for _ in range(2):
        last = np.diff(last, axis=-1, prepend=last[..., :1])
        deviation = np.sqrt(last.var(axis=-1, keepdims=True) + 1e-10)
        expected.append((last - last.mean(axis=-1, keepdims=True)) / deviation)
    found = with_derivatives(torch.tensor(windows), 2)
    np.testing.assert_allclose(found, np.concatenate(expected, axis=1), atol=1e-12)


def test_power_in_bands_is_that_of_numpys_fourier_transform(rng):
    view = build("multiview", n_variates=2, window_length=128).views["rhythms"]
    windows = rng.normal(size=(3, 2, 128)).cumsum(axis=-1)
    frame, hop = 32, 4
    hann = np.sin(np.pi * (np.arange(frame) + 0.5) / frame) ** 2
    frames = np.lib.stride_tricks.sliding_window_view(windows, frame, axis=-1)[:, :, ::hop]
    spectrum = np.fft.rfft(hann * (frames - frames.mean(axis=-1, keepdims=True)))[..., 1:]
    power = np.abs(spectrum) ** 2 / frame @ log_bands(16, 32).double().numpy()
    power = power / (power.mean(axis=(2, 3), keepdims=True) + 1e-10)
    expected = np.log(power + 1e-6).transpose(0, 1, 3, 2).reshape(3, -1, power.shape[2])
    found = view.log_power(torch.tensor(windows, dtype=torch.float32))
    np.testing.assert_allclose(found, expected, atol=2e-3)
    assert view.frame == frame


@pytest.mark.parametrize(("n_frequencies", "n_most"), [(4, 32), (16, 32), (128, 32), (2048, 32), (16, 1)])
def test_bands_are_means_and_every_frequency_is_in_one(n_frequencies, n_most):
    bands = log_bands(n_frequencies, n_most)
    assert bands.shape[1] <= n_most
    assert_close(bands.sum(dim=0), torch.ones(bands.shape[1]))
    assert ((bands > 0).sum(dim=1) == 1).all()
    assert (bands.argmax(dim=1).diff() >= 0).all()


def test_very_long_windows_have_frames_whose_transform_fits_into_memory():
    view = multiview.Rhythms(1, 10**7)
    assert view.frame == 4096
    assert view.waves.shape == (4096, 4096)


def test_textures_are_shares_of_the_window_and_its_derivative(rng):
    network = build("multiview", window_length=40, n_dilations=2, n_cuts=3, views=["ppv"]).eval()
    windows = torch.from_numpy(rng.normal(size=(20, 1, 40)).cumsum(-1).astype(np.float32))
    network.look_at(windows[1:])  # no place of the first is exactly at a threshold
    view = network.views["textures"]
    assert view.rows.tolist() == [0, 1, 0, 1]
    assert view.dilations.tolist() == [1, 1, 4, 4]
    channels = with_derivatives(windows[:1], 1)[0]
    counted = naive.shares(channels.numpy(), view.rows.tolist(), view.dilations.tolist(), view.cuts.numpy())
    scaled = (torch.tensor(counted.ravel()) - view.mean) / view.deviation
    assert_close(network.features(windows[:1])[0], view.map(scaled.float()), atol=1e-4, rtol=1e-4)


def test_of_many_channels_kernels_see_random_sums_of_them():
    network = build("multiview", n_variates=5, window_length=64)
    view = network.views["textures"]
    n_groups = len(spread := view.dilations.unique()) * 4
    assert view.mixes
    assert view.mixture.shape == (n_groups, 10)
    assert view.rows.tolist() == list(range(n_groups))
    assert view.dilations.tolist() == [int(item) for item in spread for _ in range(4)]
    channels = torch.randn(2, 10, 64)
    chosen = view.mixture[3] > 0
    expected = channels[:, chosen].sum(dim=1) / math.sqrt(int(chosen.sum()))
    assert_close(view.mixed(channels)[:, 3], expected)


# Learning ---------------------------------------------------------------------------------------------------------


# The hook ---------------------------------------------------------------------------------------------------------


def test_the_seed_alone_draws_the_windows_that_are_looked_at(rng):
    pool = pool_of(waves(rng, n_series=60))
    found = []
    for seed in (3, 3, 4):
        network = build("multiview", window_length=32)
        torch.rand(7 * len(found))  # whatever else was drawn before
        show_windows(network, pool, seed=seed)
        found.append(network.views["textures"].cuts.clone())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_a_network_is_shown_scaled_training_windows_and_no_more_than_memory_bears(rng, monkeypatch):
    class Looking(nn.Module):
        def __init__(self, n_variates, window_length, n_outputs):
            super().__init__()
            self.head = nn.Linear(window_length, n_outputs)
            self.register_buffer("level", torch.zeros(()))

        def look_at(self, windows):
            self.seen = windows
            self.level.copy_(windows.abs().max())

        def forward(self, windows):
            return self.head(windows[:, 0])

    series = waves(rng)
    model = RAxSSClassifier(Looking, weighting="uniform", validation_fraction=0, **SMALL).fit(series)
    seen = model.backbone_.seen
    assert seen.shape[1:] == (1, 32)
    assert 0.5 < seen.std() < 1.5
    pool = pool_of(series)
    assert len(seen) == len(pool) < 1024
    monkeypatch.setattr("raxss.estimator.fit.SAMPLES_TO_LOOK_AT", 5 * 32)
    show_windows(model.backbone_, pool, seed=0)
    assert model.backbone_.seen.shape == (5, 1, 32)


@pytest.mark.parametrize("pooling", ["attention", "conjunctive"])
def test_the_networks_of_other_systems_are_shown_windows_too(rng, pooling):
    settings = SMALL | {"max_epochs": 1, "validation_fraction": 0}
    model = MILClassifier(pooling, backbone="multiview", **settings).fit(waves(rng))
    assert model.backbone_.backbone.views["textures"].cuts.any()


# Kept and loaded --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_variates", [1, 5])
def test_thresholds_moments_and_sums_stay_with_the_model(rng, tmp_path, n_variates):
    """Sums of channels are drawn where a network is built: loading must put the old ones back."""
    series = waves(rng, n_variates=n_variates)
    model = RAxSSClassifier("multiview", weighting="uniform", **SMALL).fit(series)
    torch.manual_seed(1)
    loaded = RAxSSClassifier.from_pretrained(model.save_pretrained(tmp_path / "m"), device="cpu")
    np.testing.assert_array_equal(loaded.predict_proba(series), model.predict_proba(series))
    mine, theirs = model.backbone_.state_dict(), loaded.backbone_.state_dict()
    for name in ("cuts", "mean", "deviation", "mixture"):
        key = f"views.textures.{name}"
        assert torch.equal(mine[key], theirs[key])
        assert bool(mine[key].any()) or n_variates == 1
    assert not any(name.endswith(("rows", "dilations", "waves", "bands")) for name in mine)


def test_killed_and_resumed_ends_bit_for_bit_where_it_would_have(rng, tmp_path):
    series, path = waves(rng, n_variates=3), tmp_path / "run.checkpoint"
    settings = {**SMALL, "backbone": "multiview", "weighting": "uniform", "max_epochs": 3, "patience": 0}
    settings |= {"backbone_options": {"width": 4, "n_dilations": 3}}
    whole = RAxSSClassifier(**settings).fit(series)
    for stop in (1, 2):
        with pytest.raises(SystemExit):
            RAxSSClassifier(**settings, callbacks=[StopAfter(stop)]).fit(series, checkpoint=path, resume=True)
    resumed = RAxSSClassifier(**settings).fit(series, checkpoint=path, resume=True)
    for name, value in whole.backbone_.state_dict().items():
        assert torch.equal(value, resumed.backbone_.state_dict()[name]), name


# Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"views": ["shapes", "rythms"]}, r"'rythms'; did you mean 'rhythms'\? Known: shapes, rhythms"),
        ({"views": "pvv"}, "views is 'pvv'; did you mean 'ppv'"),
        (
            {"window_length": 15, "views": ["ppv"]},
            r"\['ppv'\] leave nothing to read a window of 15 .* Add 'shapes'",
        ),
        ({"views": []}, r"views \[\] leave nothing"),
        ({"derivatives": -1}, "derivatives must be a whole number of at least 0, got -1"),
    ],
)
def test_options_that_make_no_network_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        build("multiview", **options)
