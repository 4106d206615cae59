"""Claims that every registered network must meet; a new one needs one line in PARAMETERS.

Files of their own say what is special to each.
"""

import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional

from network_claims import (
    accuracy_on_ten_series,
    assert_scored_alone_as_among_others,
    build,
    seeded_on_one_thread,
)
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
LENGTH = 256


@pytest.fixture(autouse=True)
def _seeded_on_one_thread():
    yield from seeded_on_one_thread()


def waves(n_windows, n_variates):
    """A rhythm of its own for each window, and a little noise."""
    periods = torch.tensor([8.0, 12.0, 20.0, 32.0]).repeat(n_windows)[:n_windows, None, None]
    angles = 2 * torch.pi * torch.arange(LENGTH) / periods + torch.arange(n_variates)[:, None]
    return angles.sin() + 0.1 * torch.randn(n_windows, n_variates, LENGTH)


def test_every_registered_network_has_its_line():
    assert set(PARAMETERS) == set(BACKBONES)


@pytest.mark.parametrize("name", NAMES)
def test_the_parameter_count_is_the_documented_one(name):
    assert n_parameters(build(name, window_length=1024)) == PARAMETERS[name]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("n_variates", "length", "n_outputs"), [(1, 1, 1), (3, 17, 3), (2, 100, 1)])
def test_windows_become_one_row_of_logits_each(name, n_variates, length, n_outputs):
    network = build(name, n_variates, length, n_outputs)
    windows = torch.randn(3, n_variates, length)
    assert network.train()(windows).shape == (3, n_outputs)
    assert network(windows[:1]).shape == (1, n_outputs)  # the last batch of an epoch
    assert network.eval()(windows).shape == (3, n_outputs)
    assert torch.equal(network.logits_of(network.features(windows)), network(windows))


@pytest.mark.parametrize("name", NAMES)
def test_a_window_is_scored_alone_as_among_others(name):
    assert_scored_alone_as_among_others(name, 2, 65)


@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_is_computed_for_every_parameter(name):
    network = build(name, 2, LENGTH, 3).train()
    functional.cross_entropy(network(torch.randn(8, 2, LENGTH)), torch.arange(8) % 3).backward()
    assert [key for key, named_parameter in network.named_parameters() if named_parameter.grad is None] == []


@pytest.mark.parametrize("name", NAMES)
def test_ten_series_are_learned_by_heart(name, rng):
    assert accuracy_on_ten_series(name, rng) == 1.0


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
def test_a_size_that_would_be_built_for_ever_is_refused_at_once(name, option, size):
    size += option in ("average_over", "large_kernel")  # which must be odd
    with pytest.raises(ConfigError, match=f"^{option} must be at most {MOST[option]}, got {size}"):
        build(name, **{option: [size] if option == "widths" else size})


def test_so_is_a_network_of_too_many_stages():
    with pytest.raises(ConfigError, match="from 1 to 64 numbers, one a stage; got 65"):
        build("moderntcn", widths=[1] * 65)
