import pytest
import torch
from torch import nn
from torch.testing import assert_close

from network_claims import build, seeded_on_one_thread
from raxss.errors import BackboneError, ConfigError
from raxss.method.backbones import (
    BACKBONES,
    PatchTST,
    RevIN,
    build_backbone,
    features_of,
    register_backbone,
)

_seeded = pytest.fixture(autouse=True)(seeded_on_one_thread)


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
