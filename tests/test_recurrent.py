"""The networks that read patches in order: GRU, LSTM and Mamba with its selective scan."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

import naive_networks as naive
from network_claims import build, seeded_on_one_thread
from raxss.errors import BackboneError, EmptyDataError
from raxss.method.backbones.mamba import CHUNK, FASTEST, SLOWEST, Mamba, MambaBlock, selective_scan
from raxss.method.backbones.recurrent import PatchTokens, _states
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
@pytest.mark.parametrize(
    ("length", "n_samples", "message"),
    [
        (0, None, r"shape \(2, 1, 0\), a length of 0"),
        (80, [70, 0], r"n_samples is \[70, 0\]; needed are 2 numbers from 1 to 80"),
        (80, [3, 81], r"n_samples is \[3, 81\]; needed are"),
        (80, [1, 2, 3], r"n_samples is \[1, 2, 3\]; needed are 2 numbers"),
    ],
)
def test_empty_series_and_lengths_beyond_the_batch_are_refused(name, length, n_samples, message):
    with pytest.raises(EmptyDataError, match=message):
        build(name)(torch.zeros(2, 1, length), None if n_samples is None else torch.tensor(n_samples))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(4, 3, 80), (4, 1, 80), (2, 80)])
def test_other_shapes_are_refused_with_what_is_needed(name, shape):
    with pytest.raises(BackboneError, match=r"\(batch, 2, length\) is needed"):
        build(name, n_variates=2)(torch.zeros(shape))


# Mamba


def assert_within(found, expected):
    bound = 1e-4 * max(float(expected.detach().abs().max()), 1e-6)
    torch.testing.assert_close(found, expected, rtol=0, atol=bound)


@pytest.mark.parametrize(("d_model", "length"), [(32, 100), (16, 1), (20, 37)])
def test_outputs_and_gradients_of_a_block_are_those_of_mambapy(d_model, length):
    reference = pytest.importorskip("mambapy.mamba")
    theirs = rough(reference.MambaBlock(reference.MambaConfig(d_model=d_model, n_layers=1)))
    ours = MambaBlock(d_model)
    ours.load_state_dict(theirs.state_dict())  # the names are theirs
    tokens, given = torch.randn(3, length, d_model), torch.randn(3, length, d_model)
    inputs = [tokens.clone().requires_grad_() for _ in range(2)]
    found, expected = ours(inputs[0]), theirs(inputs[1])
    assert_within(found, expected)
    found.backward(given)
    expected.backward(given)
    assert_within(inputs[0].grad, inputs[1].grad)
    for (name, own), (same, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert name == same
        assert_within(own.grad, other.grad)


def test_the_whole_network_is_the_one_of_mambapy_between_embedding_and_mean():
    reference = pytest.importorskip("mambapy.mamba")
    network = rough(Mamba(1, 1024, 1)).eval()
    theirs = reference.Mamba(reference.MambaConfig(d_model=32, n_layers=2))
    for layer, norm, block in zip(theirs.layers, network.norms, network.blocks, strict=True):
        layer.norm.load_state_dict(norm.state_dict())
        layer.mixer.load_state_dict(block.state_dict())
    windows = torch.randn(2, 1, 1024)
    assert_within(network.features(windows), theirs(network.patches(windows)).mean(dim=1))


def test_a_new_block_takes_steps_between_the_slowest_and_the_fastest():
    block = MambaBlock(256)
    steps = torch.nn.functional.softplus(block.dt_proj.bias.detach())
    assert SLOWEST * 0.99 < steps.min() < SLOWEST * 1.2
    assert FASTEST * 0.8 < steps.max() < FASTEST * 1.01
    assert abs(steps.log().mean() - math.log(SLOWEST * FASTEST) / 2) < 0.2
    np.testing.assert_allclose((-block.A_log.exp())[3].detach(), -np.arange(1, 17), rtol=1e-6)


def test_under_autocast_what_blocks_add_is_added_in_float32_and_float64_stays():
    network, windows = rough(Mamba(1, 256, 1)).eval(), torch.randn(3, 1, 256)
    seen = []
    for norm in network.norms:
        norm.register_forward_hook(lambda norm, inputs, output: seen.append(inputs[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        assert network.features(windows).dtype == torch.float32
    assert seen == [torch.float32] * 2
    assert network.double().features(windows.double()).dtype == torch.float64


# The selective scan

INPUTS = ("x", "delta", "A", "B", "C", "D")
# batch, length, width, n_states: shorter than a chunk, exact chunks, one step more
SHAPES = [(2, 1, 1, 1), (1, 5, 16, 3), (3, CHUNK, 7, 16), (2, 2 * CHUNK + 1, 33, 5), (1, 300, 32, 16)]


def scan_inputs(batch, length, width, n_states, *, kind=torch.float32, device="cpu"):
    """Inputs as Mamba gives them: steps of very different sizes, decays from weak to strong."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    inputs = (
        normal(batch, length, width),
        functional.softplus(2 * normal(batch, length, width) - 1),
        -normal(width, n_states).exp(),
        normal(batch, length, n_states),
        normal(batch, length, n_states),
        normal(width),
    )
    return [value.to(device, kind).requires_grad_() for value in inputs]


def outcome(inputs):
    """y and all gradients, for a gradient of y that is always the same."""
    for value in inputs:
        value.grad = None
    y = selective_scan(*inputs)
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(5)).to(y))
    gradients = {name: value.grad for name, value in zip(INPUTS, inputs, strict=True)}
    return {name: value.detach().cpu().numpy() for name, value in ({"y": y} | gradients).items()}


def assert_near(found, exact, tolerance=1e-5):
    """Within a share of the largest number, for each of them."""
    assert found.keys() == exact.keys()
    for name in exact:
        bound = tolerance * max(np.abs(exact[name]).max(), 1e-3)
        np.testing.assert_allclose(found[name], exact[name], rtol=0, atol=bound, err_msg=name)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outputs_equal_a_loop_over_series_channels_steps_and_states(shape, kind):
    inputs = scan_inputs(*shape, kind=kind)
    exact = naive.selective_scan(*(value.detach().double().numpy() for value in inputs))
    found = selective_scan(*inputs)
    np.testing.assert_allclose(found.detach(), exact, rtol=0, atol=2e-6 * np.abs(exact).max())
    with torch.no_grad():
        assert torch.equal(selective_scan(*inputs), found)


def test_gradients_are_the_slopes():
    assert torch.autograd.gradcheck(
        selective_scan, scan_inputs(2, CHUNK + 3, 2, 2, kind=torch.float64), fast_mode=True
    )
    assert torch.autograd.gradcheck(selective_scan, scan_inputs(1, 4, 2, 3, kind=torch.float64))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("shape", [*SHAPES, (32, 640, 64, 16), (8, 4000, 64, 16)], ids=str)
def test_on_a_gpu_the_numbers_agree_the_bits_repeat_and_nothing_synchronises(shape):
    inputs = scan_inputs(*shape, device="cuda")
    passes = [outcome(inputs) for _ in range(2)]
    with waiting("error"):
        selective_scan(*inputs).sum().backward()
    for name, value in passes[0].items():
        np.testing.assert_array_equal(passes[1][name], value, err_msg=name)
    assert_near(passes[0], outcome(scan_inputs(*shape, kind=torch.float64)), tolerance=1e-4)


@pytest.mark.parametrize("log_keep", [-1e-7, -1e-5, -1e-3, -0.3])
def test_errors_of_the_exponential_do_not_add_up_in_a_long_memory(log_keep):
    x, ones = torch.ones(1, 4000, 16), torch.ones(1, 4000, 1)
    y = selective_scan(x, torch.ones_like(x), torch.full((16, 1), log_keep), ones, ones, torch.zeros(16))
    keep = np.exp(np.float64(np.float32(log_keep)))
    exact = (1 - keep ** np.arange(1, 4001)) / (1 - keep)  # a geometric series
    np.testing.assert_allclose(y[0, :, 3], exact, rtol=1e-4)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_bits_depend_neither_on_the_batch_nor_on_the_number_of_threads(n_threads):
    before = torch.get_num_threads()
    inputs = scan_inputs(5, 50, 24, 6)
    single = outcome(inputs)
    x, delta, A, B, C, D = inputs
    try:
        torch.set_num_threads(n_threads)
        again = outcome(inputs)
        alone = selective_scan(x[3:4], delta[3:4], A, B[3:4], C[3:4], D).detach().numpy()
    finally:
        torch.set_num_threads(before)
    for name, expected in single.items():
        np.testing.assert_array_equal(again[name], expected, err_msg=name)
    np.testing.assert_array_equal(alone[0], single["y"][3])


def test_float64_stays_and_lower_precision_is_computed_in_float32():
    assert selective_scan(*scan_inputs(1, 3, 2, 2, kind=torch.float64)).dtype == torch.float64
    inputs = scan_inputs(1, 30, 16, 2, kind=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        found = selective_scan(*inputs)
    assert found.dtype == torch.float32
    assert torch.equal(found, selective_scan(*(value.float() for value in inputs)))


def test_of_a_long_sequence_autograd_keeps_one_state_a_chunk():
    inputs = scan_inputs(2, 1000, 32, 64)
    with torch.profiler.profile(profile_memory=True) as profile:
        y = selective_scan(*inputs)
    kept = sum(event.self_cpu_memory_usage for event in profile.key_averages())
    states = -(-1000 // CHUNK) * inputs[0][:, 0].numel() * 64
    assert 0 < kept < 4 * (states + 2 * y.numel())  # all states are 64 times y
