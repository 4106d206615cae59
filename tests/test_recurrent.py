"""The networks that read patches in order: GRU, LSTM and Mamba. test_mamba.py has what is Mamba's alone."""

import numpy as np
import pytest
import torch

import naive_networks as naive
from network_claims import build, seeded_on_one_thread
from raxss.errors import BackboneError, EmptyDataError
from raxss.method.backbones.recurrent import PatchTokens
from raxss.method.backbones.recurrent import _states
from raxss.method.window_scorer import exact_arithmetic
from toys import waiting

NAMES = ["gru", "lstm", "mamba"]
LENGTHS = [1, 63, 64, 65, 1024, 5000]


_seeded = pytest.fixture(autouse=True)(seeded_on_one_thread)


def rough(network):
    """Every parameter away from where it began."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network


def padded(series, length, fill=0.0):
    """Bare series ``(n_variates, n)`` of different lengths as one batch, and their lengths."""
    batch = torch.full((len(series), series[0].shape[0], length), fill)
    for row, item in zip(batch, series, strict=True):
        row[:, : item.shape[1]] = item
    return batch, torch.tensor([item.shape[1] for item in series])


# What they compute


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("n_variates", [1, 2])
def test_patches_are_64_samples_every_16_of_all_variates_together(length, n_variates):
    reader = PatchTokens(n_variates, 64 * n_variates, revin=False)
    with torch.no_grad():
        reader.embedding.weight.copy_(torch.eye(64 * n_variates))
        reader.embedding.bias.zero_()
    series = torch.randn(n_variates, length)
    expected = naive.patches(series.numpy(), 64, 16)
    np.testing.assert_allclose(reader(series[None])[0].detach(), expected, rtol=1e-6)
    assert reader.n_patches(torch.tensor([length])).tolist() == [len(expected)]


@pytest.mark.parametrize("name", ["gru", "lstm"])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_a_batch_of_one_length_is_read_as_by_the_layers_of_torch(name, bidirectional):
    network = rough(build(name, d_model=24, n_layers=2, bidirectional=bidirectional)).eval()
    stack = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[name]
    theirs = stack(24, 24, num_layers=2, batch_first=True, bidirectional=bidirectional)
    weights = {}
    for layer, ways in enumerate(network.layers):
        for way, cells in zip(("", "_reverse"), ways, strict=False):
            weights |= {
                key.replace("_l0", f"_l{layer}{way}"): value for key, value in cells.state_dict().items()
            }
    theirs.load_state_dict(weights)
    windows = torch.randn(3, 1, 400)
    torch.testing.assert_close(network.features(windows), theirs(network.patches(windows))[0].mean(dim=1))


@pytest.mark.parametrize(("name", "d_model"), [("gru", 32), ("lstm", 16)])
def test_under_autocast_the_states_and_their_gradients_are_those_of_float32(name, d_model):
    network = rough(build(name, d_model=d_model, n_layers=1, bidirectional=False))
    cells, tokens = network.layers[0][0], torch.randn(2, 40, d_model).bfloat16()
    found, expected = (item.requires_grad_() for item in (tokens.clone(), tokens.float()))
    with torch.autocast("cpu", torch.bfloat16):
        states = _states(cells, found)
    torch.testing.assert_close(states, cells(expected)[0])
    grads = [
        torch.autograd.grad(1e-6 * item.sum(), cells.parameters()) for item in (states, cells(expected)[0])
    ]
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4 * float(theirs.abs().max()))
    assert _states(cells.double(), tokens.double()).dtype == torch.float64


@pytest.mark.parametrize("name", NAMES)
def test_level_and_scale_of_a_series_matter_only_without_revin(name):
    series, n_samples = padded([torch.randn(1, 300), torch.randn(1, 70)], 300)
    moved = 7 * series + 100
    blind, seeing = rough(build(name)).eval(), rough(build(name, revin=False)).eval()
    torch.testing.assert_close(blind(moved, n_samples), blind(series, n_samples), atol=1e-3, rtol=1e-3)
    assert not torch.allclose(seeing(moved, n_samples), seeing(series, n_samples), atol=1e-2)


# Padding


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_variates", [1, 2])
def test_a_padded_series_scores_as_the_bare_one_alone_and_among_others(name, n_variates):
    network = rough(build(name, n_variates, n_outputs=3)).eval()
    series = [5 * torch.randn(n_variates, length) - 2 for length in (1, 63, 64, 65, 79, 80, 500, 1024)]
    bare = torch.cat([network(item[None]) for item in series])
    batch, n_samples = padded(series, 1100)
    torch.testing.assert_close(network(batch, n_samples), bare, atol=1e-5, rtol=1e-5)
    alone = torch.cat([network(batch[i : i + 1], n_samples[i : i + 1]) for i in range(len(series))])
    torch.testing.assert_close(alone, bare, atol=1e-5, rtol=1e-5)
    assert bare.std(dim=0).min() > 1e-3  # they do differ


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fill", [1e4, float("nan")])
def test_padding_is_never_read(name, fill):
    network = rough(build(name)).eval()
    series = [torch.randn(1, 40), torch.randn(1, 300)]
    clean, n_samples = padded(series, 400)
    filled, _ = padded(series, 400, fill=fill)
    assert torch.equal(network(filled, n_samples), network(clean, n_samples))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_a_padded_batch_are_those_of_the_bare_series_summed(name):
    network = rough(build(name, dropout=0.0))
    series = [torch.randn(1, 50), torch.randn(1, 200), torch.randn(1, 333)]
    batch, n_samples = padded(series, 400)
    network(batch, n_samples).sum().backward()
    together = {key: named_parameter.grad.clone() for key, named_parameter in network.named_parameters()}
    network.zero_grad()
    for item in series:
        network(item[None]).sum().backward()
    for key, named_parameter in network.named_parameters():
        bound = 1e-4 * float(named_parameter.grad.abs().max())
        torch.testing.assert_close(together[key], named_parameter.grad, rtol=0, atol=bound, msg=key)


# Learning


@pytest.mark.parametrize("name", NAMES)
def test_two_backward_passes_give_the_same_bits(name):
    network = build(name, dropout=0.0)
    windows, n_samples = padded([torch.randn(1, n) for n in (256, 200, 120, 90)], 256)
    passes = []
    for _ in range(2):
        network.zero_grad()
        network(windows, n_samples).square().sum().backward()
        passes.append([parameter.grad.clone() for parameter in network.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*passes, strict=True))


# On a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("name", NAMES)
def test_cpu_and_gpu_agree_and_a_forward_pass_never_waits(name):
    network = rough(build(name)).eval()
    batch, n_samples = padded([torch.randn(1, n) for n in (40, 300, 1024)], 1024)
    with torch.no_grad(), exact_arithmetic():
        expected = network(batch, n_samples)
        network, batch, n_samples = network.cuda(), batch.cuda(), n_samples.cuda()
        network(batch, n_samples)  # compiles
        with waiting("error"):
            found = network(batch, n_samples)
    torch.testing.assert_close(found.cpu(), expected, atol=1e-5, rtol=1e-4)


# Errors


@pytest.mark.parametrize("name", NAMES)
def test_series_without_samples_and_lengths_beyond_the_batch_are_refused_by_name(name):
    network = build(name)
    with pytest.raises(EmptyDataError, match=r"shape \(2, 1, 0\), a length of 0"):
        network(torch.zeros(2, 1, 0))
    with pytest.raises(EmptyDataError, match="n_samples goes from 0 to 70; each must be from 1 to 80"):
        network(torch.zeros(2, 1, 80), torch.tensor([70, 0]))
    with pytest.raises(EmptyDataError, match="n_samples goes from 3 to 81"):
        network(torch.zeros(2, 1, 80), torch.tensor([3, 81]))


@pytest.mark.parametrize("name", NAMES)
def test_other_shapes_are_refused_with_what_is_needed(name):
    network = build(name, n_variates=2)
    with pytest.raises(BackboneError, match=r"shape \(4, 3, 80\); \(batch, 2, length\) is needed"):
        network(torch.zeros(4, 3, 80))
    with pytest.raises(BackboneError, match=r"n_samples is torch.int64 of shape \(3,\).*\(4,\) are needed"):
        network(torch.zeros(4, 2, 80), torch.tensor([1, 2, 3]))
    with pytest.raises(BackboneError, match=r"n_samples is torch.float32"):
        network(torch.zeros(4, 2, 80), torch.ones(4))
