"""Limits on networks: what no folder may hold is not trained, and what weights do not fit is not built."""

import threading

import pytest
import torch
from torch import nn

from raxss import RAxSSClassifier
from raxss.errors import ConfigError
from raxss.method.backbones import BACKBONES, build_backbone, features_of, sizes
from raxss.method.backbones.protocol import known_n_features, n_features
from raxss.method.backbones.sizes import at_most_parameters, check_allocation, check_network
from toys import SMALL, Tiny

SHAPES = [(1, 64, 1), (3, 200, 4), (2, 10, 1)]


@pytest.mark.parametrize("name", sorted(BACKBONES))
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


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_a_network_that_its_weights_do_not_fit_is_refused_while_it_is_built(name):
    # So many outputs make a head of any network larger than SPARE_PARAMETERS.
    shape = {"n_variates": 3, "window_length": 2**8, "n_outputs": 40_000}
    with pytest.raises(
        ConfigError, match=r"the network would have [\d,]+ parameters or more, but the weights are 7"
    ):
        build_backbone(name, **shape, n_numbers=7)


def test_other_threads_build_what_they_like():
    built = []

    def build():
        built.append(nn.Linear(2000, 2000))

    with at_most_parameters(10):
        thread = threading.Thread(target=build)
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
