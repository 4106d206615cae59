"""The selective scan against a loop over series, channels, steps and states in float64."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import naive_networks as naive
from raxss.errors import BackboneError
from raxss.method.backbones.mamba import CHUNK, selective_scan
from toys import waiting

NAMES = ("x", "delta", "A", "B", "C", "D")
# batch, length, width, n_states: shorter than a chunk, exact chunks, one step more
SHAPES = [(2, 1, 1, 1), (1, 5, 16, 3), (3, CHUNK, 7, 16), (2, 2 * CHUNK + 1, 33, 5), (1, 300, 32, 16)]


def make(batch, length, width, n_states, *, kind=torch.float32, device="cpu"):
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
    gradients = {name: value.grad for name, value in zip(NAMES, inputs, strict=True)}
    return {name: value.detach().cpu().numpy() for name, value in ({"y": y} | gradients).items()}


def assert_near(found, exact, tolerance=1e-5):
    """Within a share of the largest number, for each of them."""
    assert found.keys() == exact.keys()
    for name in exact:
        bound = tolerance * max(np.abs(exact[name]).max(), 1e-3)
        np.testing.assert_allclose(found[name], exact[name], rtol=0, atol=bound, err_msg=name)


# The numbers


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outputs_equal_a_loop_over_series_channels_steps_and_states(shape, kind):
    inputs = make(*shape, kind=kind)
    exact = naive.selective_scan(*(value.detach().double().numpy() for value in inputs))
    found = selective_scan(*inputs)
    np.testing.assert_allclose(found.detach(), exact, rtol=0, atol=2e-6 * np.abs(exact).max())
    with torch.no_grad():
        assert torch.equal(selective_scan(*inputs), found)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_in_float32_are_near_those_in_float64(shape):
    assert_near(outcome(make(*shape)), outcome(make(*shape, kind=torch.float64)))


def test_gradients_are_the_slopes():
    assert torch.autograd.gradcheck(
        selective_scan, make(2, CHUNK + 3, 2, 2, kind=torch.float64), fast_mode=True
    )
    assert torch.autograd.gradcheck(selective_scan, make(1, 4, 2, 3, kind=torch.float64))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("shape", [*SHAPES, (32, 640, 64, 16), (8, 4000, 64, 16)], ids=str)
def test_on_a_gpu_the_numbers_agree_the_bits_repeat_and_nothing_synchronises(shape):
    inputs = make(*shape, device="cuda")
    passes = [outcome(inputs) for _ in range(2)]
    with waiting("error"):
        selective_scan(*inputs).sum().backward()
    for name, value in passes[0].items():
        np.testing.assert_array_equal(passes[1][name], value, err_msg=name)
    assert_near(passes[0], outcome(make(*shape, kind=torch.float64)), tolerance=1e-4)


def test_a_decay_so_strong_that_nothing_is_kept_leaves_the_input_of_each_step():
    x, delta, A, B, C, D = make(2, 100, 16, 4)
    delta, A = torch.full_like(delta, 50.0, requires_grad=True), torch.full_like(A, -40.0, requires_grad=True)
    found = outcome([x, delta, A, B, C, D])
    expected = (delta * x * (B * C).sum(-1, keepdim=True) + D * x).detach().numpy()
    np.testing.assert_allclose(found["y"], expected, rtol=1e-4, atol=1e-4)
    assert all(np.isfinite(value).all() for value in found.values())
    assert np.abs(found["A"]).max() < 1e-30


@pytest.mark.parametrize("log_keep", [-1e-7, -1e-5, -1e-3, -0.3])
def test_errors_of_the_exponential_do_not_add_up_in_a_long_memory(log_keep):
    x, ones = torch.ones(1, 4000, 16), torch.ones(1, 4000, 1)
    y = selective_scan(x, torch.ones_like(x), torch.full((16, 1), log_keep), ones, ones, torch.zeros(16))
    keep = np.exp(np.float64(np.float32(log_keep)))
    exact = (1 - keep ** np.arange(1, 4001)) / (1 - keep)  # a geometric series
    np.testing.assert_allclose(y[0, :, 3], exact, rtol=1e-4)


# What it depends on


@pytest.mark.parametrize("n_threads", [1, 2])
def test_bits_depend_neither_on_the_batch_nor_on_the_number_of_threads(n_threads):
    before = torch.get_num_threads()
    inputs = make(5, 50, 24, 6)
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


def test_only_inputs_that_require_a_gradient_get_one():
    x, *others = make(2, 20, 16, 4)
    expected = outcome([x, *others])["x"]
    others = [value.detach() for value in others]
    x.grad = None
    y = selective_scan(x, *others)
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(5)))
    np.testing.assert_allclose(x.grad, expected, rtol=1e-5, atol=1e-5)
    assert all(value.grad is None for value in others)
    with torch.no_grad():
        assert not selective_scan(x, *others).requires_grad


def test_float64_stays_and_lower_precision_is_computed_in_float32():
    assert selective_scan(*make(1, 3, 2, 2, kind=torch.float64)).dtype == torch.float64
    inputs = make(1, 30, 16, 2, kind=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        found = selective_scan(*inputs)
    assert found.dtype == torch.float32
    assert torch.equal(found, selective_scan(*(value.float() for value in inputs)))


def test_of_a_long_sequence_autograd_keeps_one_state_a_chunk():
    inputs = make(2, 1000, 32, 64)
    with torch.profiler.profile(profile_memory=True) as profile:
        y = selective_scan(*inputs)
    kept = sum(event.self_cpu_memory_usage for event in profile.key_averages())
    states = -(-1000 // CHUNK) * inputs[0][:, 0].numel() * 64
    assert 0 < kept < 4 * (states + 2 * y.numel())  # all states are 64 times y


# Errors


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("delta", (2, 4, 3)),
        ("A", (3, 4, 1)),
        ("B", (2, 5, 3)),
        ("C", (1, 5, 4)),
        ("D", (4,)),
        ("x", (2, 0, 3)),
    ],
)
def test_shapes_that_do_not_fit_are_refused_by_name(name, shape):
    inputs = dict(zip(NAMES, make(2, 5, 3, 4), strict=True))
    inputs[name] = torch.zeros(shape)
    found = str(shape).replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(BackboneError, match=f"^{name} of a selective scan has shape {found}"):
        selective_scan(**inputs)
