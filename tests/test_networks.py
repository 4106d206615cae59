"""Tests of every registered network: a new one needs one line in PARAMETERS. Other files test what is its own."""

import inspect

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from network_claims import build, parameters_without_gradient, seeded_on_one_thread
from raxss import RAxSSClassifier, Series, SeriesCollection
from raxss.errors import ConfigError
from raxss.method.backbones import BACKBONES, n_parameters
from raxss.method.backbones.sizes import MOST

#: Parameters for windows of 1024 samples, one variate and one output, as a docstring gives it.
PARAMETERS = {
    "convnet": 334_929,
    "convnet-fine": 334_929,
    "dlinear": 2_100_225,
    "ensemble": 3_949_268,
    "gru": 52_451,
    "lstm": 272_643,
    "mamba": 22_019,
    "moderntcn": 29_505,
    "multiview": 987_317,
    "patchtst": 34_019,
    "timesnet": 188_883,
}
NAMES = sorted(BACKBONES)
OF_PATCHES = ("gru", "lstm", "mamba")  # of 64 samples
LENGTH = 256

_seeded = pytest.fixture(autouse=True)(seeded_on_one_thread)


def waves(n_windows, n_variates):
    """A rhythm of its own for each window, and a little noise."""
    periods = torch.tensor([8.0, 12.0, 20.0, 32.0]).repeat(n_windows)[:n_windows, None, None]
    angles = 2 * torch.pi * torch.arange(LENGTH) / periods + torch.arange(n_variates)[:, None]
    return angles.sin() + 0.1 * torch.randn(n_windows, n_variates, LENGTH)


def sawtooths(rng):
    """Ten series of two classes: rising and falling teeth, with the same spectrum, wherever they begin."""
    series = []
    for index in range(10):
        tooth = (np.arange(64) + rng.integers(16)) % 16 / 8 - 1
        samples = (tooth if index % 2 else -tooth) + 0.1 * rng.normal(size=64)
        series.append(Series(samples, label=index % 2, group=f"group {index}", name=f"tooth {index}"))
    return SeriesCollection(series)


def test_every_registered_network_has_its_line():
    assert set(PARAMETERS) == set(BACKBONES)


@pytest.mark.parametrize("name", NAMES)
def test_the_parameter_count_is_the_documented_one(name):
    assert n_parameters(build(name, window_length=1024)) == PARAMETERS[name]
    documented = BACKBONES["convnet" if name == "convnet-fine" else name].__doc__
    assert f"{PARAMETERS[name]:,} parameters" in documented


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("n_variates", "length", "n_outputs"),
    [
        (1, 1, 1),
        (6, 1, 3),
        (1, 2, 3),
        (1, 15, 1),
        (3, 16, 1),
        (6, 17, 3),
        (1, 31, 1),
        (2, 32, 3),
        (6, 1024, 1),
    ],
)
def test_windows_become_one_row_of_logits_each(name, n_variates, length, n_outputs):
    network = build(name, n_variates, length, n_outputs)
    windows = torch.randn(3, n_variates, length)
    assert network.train()(windows).shape == (3, n_outputs)
    assert network(windows[:1]).shape == (1, n_outputs)  # the last batch of an epoch
    assert network.eval()(windows).shape == (3, n_outputs)
    assert torch.equal(network.logits_of(network.features(windows)), network(windows))
    if hasattr(network, "head"):
        assert network.features(windows).shape == (3, network.head.in_features)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("n_variates", "length"), [(1, 1024), (6, 65)])
def test_a_window_is_scored_alone_as_among_others(name, n_variates, length):
    network = build(name, n_variates, length, 3).eval()
    windows = torch.randn(9, n_variates, length) * torch.tensor([0.1, 1, 10] * 3)[:, None, None]
    with torch.inference_mode():
        together = network(windows)
        assert torch.equal(network(windows), together)
        alone = torch.cat([network(window[None]) for window in windows])
        shuffled = network(windows.flip(0)).flip(0)
    assert_close(alone, together, atol=1e-5, rtol=1e-5)
    assert_close(shuffled, together, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if "dropout" in inspect.signature(BACKBONES[name]).parameters]
)
def test_dropout_makes_two_training_calls_differ(name):
    network, windows = build(name, dropout=0.5).train(), torch.randn(6, 1, 64)
    assert not torch.allclose(network(windows), network(windows))


@pytest.mark.parametrize(
    ("name", "length"),
    [(name, length) for name in NAMES for length in (17, 256) if length > 64 or name not in OF_PATCHES],
)
def test_gradients_reach_every_parameter(name, length):
    missing = parameters_without_gradient(name, 6, length)
    # Softmax removes what a key's bias adds to all scores of a query, batch normalisation a bias before it.
    without = ("key.bias", "mix.bias", "feed_forward.3.bias") if name == "patchtst" else ()
    assert [key for key in missing if not key.endswith(without)] == []


@pytest.mark.parametrize("name", NAMES)
def test_flat_windows_have_finite_logits_and_gradients(name):
    network = build(name).train()
    logits = network(torch.zeros(4, 1, 64))
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_ten_series_are_overfitted(name, rng):
    series = sawtooths(rng)
    model = RAxSSClassifier(
        backbone=name,
        window_length=64,
        stride=64,
        lr=5e-3,
        warmup_steps=5,
        max_epochs=60,
        batch_size=64,
        augmentation=None,
        validation_fraction=0,
        device="cpu",
        random_state=0,
    ).fit(series)
    assert model.score(series, [item.label for item in series]) == 1.0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_variates", [1, 3])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_under_autocast_logits_are_near_those_of_float32_and_gradients_finite(name, n_variates, mode):
    options = {"attention_dropout": 0.0} if name == "patchtst" else {}
    network = build(name, n_variates, LENGTH, 3, **options).train(mode == "train")
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    windows, logits = waves(8, n_variates), []
    for enabled in (False, True):
        network.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            found = network(windows)
        logits.append(found.detach())
        functional.cross_entropy(found.float(), torch.arange(8) % 3).backward()
        assert all(parameter.grad.isfinite().all() for parameter in network.parameters())
    exact, mixed = logits
    torch.testing.assert_close(mixed.float(), exact, rtol=0, atol=0.05 * float(exact.abs().max()))
    mean_of_posteriors = name == "ensemble" and mode == "eval"
    assert mixed.dtype == (torch.float32 if mean_of_posteriors else torch.bfloat16)


def sizes_of(name):
    """Options that are whole numbers, without heads and small kernels, which other sizes bind."""
    options = {
        key: parameter.default for key, parameter in inspect.signature(BACKBONES[name]).parameters.items()
    }
    whole = [key for key, value in options.items() if type(value) is int]
    others = [key for key in ("n_components", "widths") if key in options]
    return [key for key in whole + others if key not in ("n_heads", "small_kernel")]


@pytest.mark.parametrize(("name", "option"), [(name, option) for name in NAMES for option in sizes_of(name)])
@pytest.mark.parametrize("size", [10**9, 10**12])
def test_sizes_beyond_the_limit_are_refused_at_once(name, option, size):
    size += option in ("average_over", "large_kernel")  # which must be odd
    with pytest.raises(ConfigError, match=f"^{option} must be at most {MOST[option]}, got {size}"):
        build(name, **{option: [size] if option == "widths" else size})


#: Sizes that may be 0, or that PatchTST leaves to torch.
MAY_BE_0 = {
    ("multiview", "derivatives"),
    *(("patchtst", option) for option in ("d_model", "d_ff", "n_layers")),
}


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, option) for name in NAMES for option in sizes_of(name) if (name, option) not in MAY_BE_0],
)
def test_a_size_of_0_is_refused_by_name(name, option):
    with pytest.raises(ConfigError, match=rf"\b{option}\b.*\b0\b"):
        build(name, **{option: [0] if option == "widths" else 0})
