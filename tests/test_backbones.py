import pytest
import torch
from sklearn.datasets import make_blobs
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from network_claims import build, seeded_on_one_thread
from raxss.errors import BackboneError, ConfigError
from raxss.method.backbones import (
    BACKBONES,
    PatchTST,
    RevIN,
    build_backbone,
    features_of,
    patchtst,
    register_backbone,
)

_seeded = pytest.fixture(autouse=True)(seeded_on_one_thread)


def train(network, windows, targets, n_steps, batch_size=32):
    """Plain Adam on random batches."""
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(n_steps):
        batch = torch.randint(len(windows), (batch_size,))
        loss = functional.cross_entropy(network.train()(windows[batch]), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return (network.eval()(windows).argmax(dim=1) == targets).float().mean().item()


class LastValue(nn.Module):
    """The smallest network of a user's own; it has no features."""

    def __init__(self, n_variates, window_length, n_outputs, *, gain=1.0, width=None):
        super().__init__()
        self.gain = gain
        self.head = nn.Linear(n_variates, n_outputs if width is None else width)

    def forward(self, windows):
        return self.head(self.gain * windows[:, :, -1])


# What the networks are


def test_a_batch_beyond_the_limit_of_one_attention_call_is_read_in_parts(monkeypatch):
    network = build("patchtst", n_variates=3).eval()
    windows = torch.randn(5, 3, 64)
    at_once = network(windows)
    monkeypatch.setattr(patchtst, "MOST_AT_ONCE", 4)
    assert_close(network(windows), at_once)


# RevIN


def test_revin_ignores_scale_and_offset_of_each_window_and_variate():
    windows = torch.randn(4, 3, 200)
    scale, offset = torch.rand(4, 3, 1) * 10 + 1, torch.randn(4, 3, 1) * 5
    assert_close(RevIN(3)(windows * scale + offset), RevIN(3)(windows), atol=1e-4, rtol=1e-4)


def test_revin_gives_mean_zero_and_deviation_one_then_the_learned_pair():
    revin = RevIN(2)
    revin.gain.data[:], revin.offset.data[:] = 3.0, -1.0
    variance, mean = torch.var_mean(revin(torch.randn(5, 2, 100)), dim=-1, correction=0)
    assert_close(mean, torch.full((5, 2), -1.0), atol=1e-4, rtol=0)
    assert_close(variance, torch.full((5, 2), 9.0), atol=1e-2, rtol=0)


def test_revin_turns_a_flat_window_into_zeros():
    assert torch.equal(RevIN(1)(torch.full((2, 1, 50), 7.0)), torch.zeros(2, 1, 50))


def test_only_revin_makes_convnet_blind_to_the_level_of_a_window():
    windows = torch.randn(3, 1, 64)
    blind, seeing = build("convnet", revin=True).eval(), build("convnet").eval()
    assert_close(blind(windows + 100), blind(windows), atol=1e-3, rtol=1e-3)
    assert not torch.allclose(seeing(windows + 100), seeing(windows), atol=1e-3)


# Learning


def test_convnet_separates_rows_of_two_features_by_place():
    rows, targets = make_blobs(300, n_features=2, centers=3, random_state=0)
    windows = torch.tensor((rows - rows.mean()) / rows.std(), dtype=torch.float32)[:, None]
    assert train(build("convnet", 1, 2, 3), windows, torch.tensor(targets), n_steps=150) > 0.9


# A network of one's own


def test_a_class_of_ones_own_is_built_with_its_options():
    network = build(LastValue, n_variates=2, n_outputs=4, gain=3.0)
    assert isinstance(network, LastValue)
    assert network.gain == 3.0
    assert network.training


def test_a_function_may_return_any_module_and_two_logits_for_two_classes():
    network = build(lambda n_variates, length, n_outputs: nn.Sequential(nn.Flatten(), nn.Linear(length, 2)))
    assert network(torch.zeros(3, 1, 64)).shape == (3, 2)


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


# Errors


def returning(network):
    return lambda n_variates, window_length, n_outputs: network


@pytest.mark.parametrize(
    ("backbone", "options", "message"),
    [
        ("patchts", {}, r"'patchts'; did you mean 'patchtst'\? Known: convnet, .*patchtst"),
        ("patchtst", {"n_layer": 3}, r"'patchtst' has no option 'n_layer'; did you mean 'n_layers'"),
        (LastValue, {"qqq": 3}, r"'LastValue' has no option 'qqq'\. Known: gain, width\.$"),
        ("patchtst", {"n_heads": 5}, "n_heads=5, d_model=32"),
        ("convnet", {"width": 0}, "width must be at least 1, got 0"),
    ],
)
def test_unknown_names_and_sizes_that_make_no_network_are_refused(backbone, options, message):
    with pytest.raises(ConfigError, match=message):
        build(backbone, **options)


def test_shapes_are_no_options():
    with pytest.raises(ConfigError, match=r"'convnet' has no option 'n_outputs'"):
        build_backbone("convnet", n_variates=1, window_length=4, n_outputs=1, options={"n_outputs": 2})


@pytest.mark.parametrize(
    ("backbone", "options", "message"),
    [
        (returning({}), {}, r"returned dict; a torch\.nn\.Module is needed"),
        (LastValue, {"width": 3}, r"returned shape \(2, 3\).*\(2, 1\) or \(2, 2\) are needed"),
        (LastValue, {"n_outputs": 4, "width": 2}, r"shape \(2, 2\).*shape \(2, 4\) are needed"),
        (returning(nn.Identity()), {}, r"returned shape \(2, 1, 64\)"),
        (
            returning(nn.Sequential(nn.Flatten(), nn.Linear(63, 1))),
            {},
            r"failed on windows of shape \(2, 1, 64\).*2x64 and 63x1",
        ),
        (LastValue(1, 64, 1), {}, r"a LastValue that is built already.*Pass the class"),
        (3, {}, "backbone is 3 of type int"),
    ],
)
def test_what_is_no_backbone_is_refused_with_what_was_found(backbone, options, message):
    with pytest.raises(BackboneError, match=message):
        build(backbone, **options)


def test_a_network_without_features_is_named_with_what_to_do():
    with pytest.raises(BackboneError, match=r"LastValue has no method features\(windows\).*space='signal'"):
        features_of(LastValue(1, 64, 1), torch.zeros(2, 1, 64))


def test_features_of_the_wrong_shape_are_refused():
    network = LastValue(1, 64, 1)
    network.features = lambda windows: windows
    with pytest.raises(BackboneError, match=r"returned shape \(2, 1, 64\) for 2 windows; \(2, d\) is needed"):
        features_of(network, torch.zeros(2, 1, 64))
