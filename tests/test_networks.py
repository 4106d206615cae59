"""Tests of every registered network: a new one needs one line in PARAMETERS. Other files test what is its own."""

import inspect
import re
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from network_claims import build, seeded_on_one_thread
from raxss import RAxSSClassifier, Series, SeriesCollection
from raxss.errors import BackboneError, ConfigError
from raxss.method.backbones import (
    BACKBONES,
    PatchTST,
    RevIN,
    build_backbone,
    features_of,
    n_parameters,
    register_backbone,
    sizes,
)
from raxss.method.backbones.protocol import known_n_features, n_features
from raxss.method.backbones.sizes import MOST, at_most_parameters, check_allocation, check_network
from toys import SMALL, Tiny

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
    assert set(PARAMETERS) <= set(re.findall(r'``"([^"]+)"``', RAxSSClassifier.__doc__))


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
    network, windows = build(name, 6, length, 3).double(), torch.randn(8, 6, length, dtype=torch.float64)
    functional.cross_entropy(network(windows), torch.arange(8) % 3).backward()
    gradients = {key: parameter.grad for key, parameter in network.named_parameters()}
    missing = [key for key, grad in gradients.items() if grad is None or grad.abs().max() < 1e-12]
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
    assert option in MOST, (
        f"add {option!r} to MOST in sizes.py, and pass it to check_at_least_1 and check_at_most"
    )
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


# Limits: what no folder may hold is not trained, and what weights do not fit is not built


SHAPES = [(1, 64, 1), (3, 200, 4), (2, 10, 1)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("n_variates", "length", "n_outputs"), SHAPES)
def test_networks_of_the_package_need_not_be_tried(name, n_variates, length, n_outputs):
    """What is known of their features is so, and weights bring back the same network."""
    shape = {"n_variates": n_variates, "window_length": length, "n_outputs": n_outputs}
    network = build_backbone(name, **shape).eval()
    width = features_of(network, torch.zeros(2, n_variates, length)).shape[1]
    assert known_n_features(network) == n_features(network, n_variates, length) == width
    state = network.state_dict()
    n_numbers = sum(value.numel() for value in state.values())
    again = build_backbone(name, **shape, n_numbers=n_numbers).eval()
    again.load_state_dict(state)
    windows = torch.randn(3, n_variates, length, generator=torch.Generator().manual_seed(17))
    with torch.no_grad():
        assert torch.equal(again(windows), network(windows))


def test_a_network_of_ones_own_is_tried():
    class WithFeatures(Tiny):
        def features(self, windows):
            assert not self.training
            return windows.flatten(1)[:, :5]

    network = WithFeatures(1, 8, 1)
    assert known_n_features(network) is None
    assert n_features(network, 1, 8) == 5
    assert network.training


@pytest.mark.parametrize("name", NAMES)
def test_a_network_that_its_weights_do_not_fit_is_refused_while_it_is_built(name, monkeypatch):
    monkeypatch.setattr(sizes, "SPARE_PARAMETERS", 0)  # the head of a small network has fewer
    shape = {"n_variates": 3, "window_length": 2**8, "n_outputs": 40_000}
    with pytest.raises(
        ConfigError, match=r"the network would have [\d,]+ parameters or more, but the weights are 7"
    ):
        build_backbone(name, **shape, n_numbers=7)


def test_other_threads_build_what_they_like():
    built = []
    with at_most_parameters(10):
        thread = threading.Thread(target=lambda: built.append(nn.Linear(2000, 2000)))
        thread.start()
        thread.join()
        with pytest.raises(ConfigError, match="4,000,000 parameters or more, but the weights are 10 numbers"):
            nn.Linear(2000, 2000)
    assert len(built) == 1
    nn.Linear(2000, 2000)
    check_allocation(10**12)  # where no weights are known, nothing is refused


def test_windows_that_no_folder_may_hold_are_not_trained_on(monkeypatch, rng):
    monkeypatch.setattr(sizes, "MOST_IN_WINDOW", 63)
    series = [rng.normal(size=(2, 100)) for _ in range(6)]
    with pytest.raises(
        ConfigError, match="windows of 2 variates x 32 samples are too large: at most 63 numbers"
    ):
        RAxSSClassifier("convnet", **SMALL).fit(series, [0, 1] * 3)


def test_networks_that_no_folder_may_hold_are_not_trained(monkeypatch, rng):
    monkeypatch.setattr(sizes, "MOST_WEIGHT_BYTES", 2000)
    with pytest.raises(ConfigError, match=r"has 2 tensors of 0\.0 MB; .* at most 10,000 tensors"):
        check_network(nn.Linear(20, 20))
    with pytest.raises(ConfigError, match="Choose a smaller one in backbone_options"):
        RAxSSClassifier("convnet", **SMALL).fit([rng.normal(size=100) for _ in range(6)], [0, 1] * 3)


# Construction, and networks of a user's own


class LastValue(nn.Module):
    """The smallest network of a user's own; it has no features."""

    def __init__(self, n_variates, window_length, n_outputs, *, gain=1.0, width=None):
        super().__init__()
        self.gain = gain
        self.head = nn.Linear(n_variates, n_outputs if width is None else width)

    def forward(self, windows):
        return self.head(self.gain * windows[:, :, -1])


def test_trying_the_network_leaves_its_modes_and_statistics_alone():
    def make(n_variates, window_length, n_outputs):
        network = nn.Sequential(
            nn.BatchNorm1d(1), nn.Flatten(), nn.Dropout(), nn.Linear(window_length, n_outputs)
        )
        network[0].eval()
        return network

    network = build(make)
    assert [item.training for item in network] == [False, True, True, True]
    assert network[0].num_batches_tracked == 0


def test_a_registered_network_is_known_by_name_and_the_name_is_not_given_twice():
    try:
        register_backbone("last")(LastValue)
        register_backbone("last")(LastValue)  # a notebook cell that runs again
        assert isinstance(build("last"), LastValue)
        with pytest.raises(ConfigError, match=r"'last' belongs to .*LastValue already.*PatchTST"):
            register_backbone("last")(PatchTST)
    finally:
        BACKBONES.pop("last", None)


def test_revin_scales_each_window_and_variate_then_applies_the_learned_pair():
    revin, windows = RevIN(2), torch.randn(5, 2, 200)
    scale, offset = torch.rand(5, 2, 1) * 10 + 1, torch.randn(5, 2, 1) * 5
    assert_close(revin(windows * scale + offset), revin(windows), atol=1e-4, rtol=1e-4)
    assert torch.equal(revin(torch.full((2, 2, 50), 7.0)), torch.zeros(2, 2, 50))
    revin.gain.data[:], revin.offset.data[:] = 3.0, -1.0
    variance, mean = torch.var_mean(revin(windows), dim=-1, correction=0)
    assert_close(mean, torch.full((5, 2), -1.0), atol=1e-4, rtol=0)
    assert_close(variance, torch.full((5, 2), 9.0), atol=1e-2, rtol=0)


@pytest.mark.parametrize("name", ["convnet", "multiview"])
def test_only_with_revin_level_and_scale_of_a_window_say_nothing(name):
    blind, seeing = build(name, window_length=256, revin=True), build(name, window_length=256)
    windows = torch.randn(40, 1, 256).cumsum(-1)
    for network in (blind, seeing):
        if hasattr(network, "look_at"):
            network.look_at(windows)
    moved = [(item.eval()(3 * windows + 7) - item(windows)).abs().max() for item in (blind, seeing)]
    assert moved[0] < 0.2 * moved[1]


@pytest.mark.parametrize(("name", "options"), [("convnet", {}), ("multiview", {"derivatives": 0})])
def test_rows_of_features_differ_by_place(name, options):
    """A mean over places would make both rows the same."""
    network = build(name, window_length=4, **options).eval()
    features = network.features(torch.tensor([[[9.0, 0, 0, 0]], [[0, 0, 0, 9.0]]]))
    assert features.shape == (2, 4 * 128)
    assert not torch.allclose(features[0], features[1], atol=1e-3)


def returning(network):
    return lambda n_variates, window_length, n_outputs: network


TWO_LOGITS = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))


def test_a_network_of_ones_own_has_its_options_and_may_have_two_logits_for_two_classes():
    network = build(LastValue, n_variates=2, n_outputs=4, gain=3.0)
    assert isinstance(network, LastValue)
    assert network.gain == 3.0
    assert network.training
    assert build(returning(TWO_LOGITS)) is TWO_LOGITS


@pytest.mark.parametrize(
    ("error", "backbone", "options", "message"),
    [
        (ConfigError, "patchts", {}, r"'patchts'; did you mean 'patchtst'\? Known: convnet, .*patchtst"),
        (
            ConfigError,
            "patchtst",
            {"n_layer": 3},
            r"'patchtst' has no option 'n_layer'; did you mean 'n_layers'",
        ),
        (ConfigError, LastValue, {"qqq": 3}, r"'LastValue' has no option 'qqq'\. Known: gain, width\.$"),
        (ConfigError, "patchtst", {"n_heads": 5}, "n_heads=5, d_model=32"),
        (BackboneError, returning({}), {}, r"returned dict; a torch\.nn\.Module is needed"),
        (BackboneError, LastValue, {"width": 3}, r"shape \(2, 3\).*\(2, 1\) or \(2, 2\) are needed"),
        (BackboneError, LastValue, {"n_outputs": 4, "width": 2}, r"shape \(2, 2\).*shape \(2, 4\) are"),
        (BackboneError, returning(nn.Identity()), {}, r"returned shape \(2, 1, 64\)"),
        (BackboneError, returning(nn.Linear(63, 1)), {}, r"failed on windows of shape \(2, 1, 64\).*63x1"),
        (BackboneError, LastValue(1, 64, 1), {}, r"a LastValue that is built already.*Pass the class"),
        (BackboneError, 3, {}, "backbone is 3 of type int"),
    ],
)
def test_what_makes_no_network_is_refused_with_what_was_found(error, backbone, options, message):
    with pytest.raises(error, match=message):
        build(backbone, **options)


def test_shapes_are_no_options():
    with pytest.raises(ConfigError, match=r"'convnet' has no option 'n_outputs'"):
        build_backbone("convnet", n_variates=1, window_length=4, n_outputs=1, options={"n_outputs": 2})


def test_features_that_are_missing_or_of_the_wrong_shape_are_refused():
    network, windows = LastValue(1, 64, 1), torch.zeros(2, 1, 64)
    with pytest.raises(BackboneError, match=r"LastValue has no method features\(windows\).*space='signal'"):
        features_of(network, windows)
    network.features = lambda windows: windows
    with pytest.raises(BackboneError, match=r"returned shape \(2, 1, 64\) for 2 windows; \(2, d\) is needed"):
        features_of(network, windows)
