"""Mamba against a public implementation of it. test_recurrent.py has what it shares with other networks."""

import math

import numpy as np
import pytest
import torch

from raxss.method.backbones import Mamba
from raxss.method.backbones.mamba import FASTEST, SLOWEST, MambaBlock


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(69421)


def assert_near(found, expected, most=1e-4):
    bound = most * max(float(expected.detach().abs().max()), 1e-6)
    torch.testing.assert_close(found, expected, rtol=0, atol=bound)


def rough(network):
    """Every parameter away from where it began."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return network


@pytest.mark.parametrize(("d_model", "length"), [(32, 100), (16, 1), (20, 37)])
def test_outputs_and_gradients_of_a_block_are_those_of_mambapy(d_model, length):
    reference = pytest.importorskip("mambapy.mamba")
    theirs = rough(reference.MambaBlock(reference.MambaConfig(d_model=d_model, n_layers=1)))
    ours = MambaBlock(d_model)
    ours.load_state_dict(theirs.state_dict())  # the names are theirs
    tokens, given = torch.randn(3, length, d_model), torch.randn(3, length, d_model)
    inputs = [tokens.clone().requires_grad_() for _ in range(2)]
    found, expected = ours(inputs[0]), theirs(inputs[1])
    assert_near(found, expected)
    found.backward(given)
    expected.backward(given)
    assert_near(inputs[0].grad, inputs[1].grad)
    for (name, own), (same, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert name == same
        assert_near(own.grad, other.grad)


def test_the_whole_network_is_the_one_of_mambapy_between_embedding_and_mean():
    reference = pytest.importorskip("mambapy.mamba")
    network = rough(Mamba(1, 1024, 1)).eval()
    theirs = reference.Mamba(reference.MambaConfig(d_model=32, n_layers=2))
    for layer, norm, block in zip(theirs.layers, network.norms, network.blocks, strict=True):
        layer.norm.load_state_dict(norm.state_dict())
        layer.mixer.load_state_dict(block.state_dict())
    windows = torch.randn(2, 1, 1024)
    assert_near(network.features(windows), theirs(network.patches(windows)).mean(dim=1))


def test_a_new_block_takes_steps_between_the_slowest_and_the_fastest():
    block = MambaBlock(256)
    steps = torch.nn.functional.softplus(block.dt_proj.bias.detach())
    assert SLOWEST * 0.99 < steps.min() < SLOWEST * 1.2
    assert FASTEST * 0.8 < steps.max() < FASTEST * 1.01
    assert abs(steps.log().mean() - math.log(SLOWEST * FASTEST) / 2) < 0.2
    np.testing.assert_allclose((-block.A_log.exp())[3].detach(), -np.arange(1, 17), rtol=1e-6)


def test_a_block_does_not_look_ahead():
    block, tokens = rough(MambaBlock(32)), torch.randn(2, 50, 32)
    later = tokens.clone()
    later[:, 30:] = 100.0
    torch.testing.assert_close(block(later)[:, :30], block(tokens)[:, :30])
    assert not torch.allclose(block(later)[:, 30:], block(tokens)[:, 30:])


def test_under_autocast_what_blocks_add_is_added_in_float32_and_float64_stays():
    network, windows = rough(Mamba(1, 256, 1)).eval(), torch.randn(3, 1, 256)
    seen = []
    for norm in network.norms:
        norm.register_forward_hook(lambda norm, inputs, output: seen.append(inputs[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        assert network.features(windows).dtype == torch.float32
    assert seen == [torch.float32] * 2
    assert network.double().features(windows.double()).dtype == torch.float64
