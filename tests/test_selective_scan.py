"""The scan against a loop that does what the formula says, by every way there is to it.

Run as a script, this file is the GPU's way on a machine without one: ``python tests/test_selective_scan.py FOLDER``
writes what the kernels give under Triton's interpreter, or, without TRITON_INTERPRET, what they compile to. These
need processes of their own, since Triton asks once whether it is to interpret.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

import naive_networks_scan as naive
from raxss.errors import BackboneError
from raxss.method.backbones import selective_scan_numba, selective_scan_triton
from raxss.method.backbones.selective_scan import CHUNK, plain_scan, selective_scan
from toys import waiting

NAMES = ("x", "delta", "A", "B", "C", "D")
# batch, length, width, n_states: shorter than a chunk, one step more than chunks, channels that fill no register
SHAPES = [(2, 1, 1, 1), (1, 5, 16, 3), (3, CHUNK, 7, 16), (2, 2 * CHUNK + 1, 33, 5), (1, 300, 32, 16)]
INTERPRETED = {"several stretches": (2, 19, 6, 2), "one step": (1, 1, 3, 2), "full": (1, 8, 4, 1)}


def make(batch, length, width, n_states, *, seed=0, kind=torch.float32):
    """Inputs as Mamba gives them: steps of very different sizes, decays from weak to strong."""
    generator = torch.Generator().manual_seed(seed)

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
    return [item.to(kind).requires_grad_() for item in inputs]


def outcome(scan, inputs):
    """y and all gradients, for a gradient of y that is drawn anew but always the same."""
    for item in inputs:
        item.grad = None
    y = scan(*inputs)
    given = torch.randn(y.shape, generator=torch.Generator().manual_seed(5))
    y.backward(given.to(y.dtype))
    return {"y": y.detach().numpy()} | {
        name: item.grad.numpy() for name, item in zip(NAMES, inputs, strict=True)
    }


def assert_near(found, exact, most=1e-5):
    """Within a share of the largest number, for each of them."""
    assert found.keys() == exact.keys()
    for name in exact:
        bound = most * max(np.abs(exact[name]).max(), 1e-3)
        np.testing.assert_allclose(found[name], exact[name], rtol=0, atol=bound, err_msg=name)


def interpreted(folder: Path) -> None:
    selective_scan_triton.STEPS, selective_scan_triton.CHANNELS = 8, 4
    for name, shape in INTERPRETED.items():
        np.savez(folder / f"{name}.npz", **outcome(selective_scan_triton.run, make(*shape)))


def compile_kernels(folder: Path) -> None:
    """For a GPU that need not be here, a Hopper one."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from raxss.method.backbones import selective_scan_triton_kernels as kernels

    constants = {"STEPS": selective_scan_triton.STEPS, "CHANNELS": selective_scan_triton.CHANNELS}
    kinds = dict.fromkeys(constants, "constexpr") | dict.fromkeys(("length", "width", "n_states"), "i32")
    for kernel in (kernels.forward, kernels.backward):
        source = ASTSource(kernel, {name: kinds.get(name, "*fp32") for name in kernel.arg_names}, constants)
        options = {"num_warps": selective_scan_triton.N_WARPS}
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        (folder / f"{kernel.__name__}.cubin").write_bytes(made.asm["cubin"])


def run_as_script(folder: Path, **environment: str) -> Path:
    pytest.importorskip("triton")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(folder)} | environment
    done = subprocess.run([sys.executable, __file__, folder], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run_as_script(tmp_path_factory.mktemp("interpreted"), TRITON_INTERPRET="1")


# The numbers


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_all_ways_give_what_a_loop_over_series_channels_steps_and_states_gives(shape):
    inputs = [item.detach() for item in make(*shape)]
    exact = naive.selective_scan(*(entry.double().numpy() for entry in inputs))
    assert selective_scan_numba.suits(*inputs)
    for found in (
        selective_scan(*inputs),
        selective_scan_numba.scan(*inputs),
        plain_scan(*inputs),
        plain_scan(*(entry.double() for entry in inputs)),
    ):
        np.testing.assert_allclose(found.numpy(), exact, rtol=0, atol=2e-6 * np.abs(exact).max())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_compiled_gradients_are_those_of_the_definition_in_float64(shape):
    exact = outcome(plain_scan, make(*shape, kind=torch.float64))
    assert_near(outcome(selective_scan_numba.scan, make(*shape)), exact)
    assert_near(outcome(plain_scan, make(*shape)), exact)


def test_the_gradient_of_the_definition_is_its_slope():
    inputs = make(2, CHUNK + 3, 2, 2, kind=torch.float64)
    assert torch.autograd.gradcheck(plain_scan, inputs, fast_mode=True)
    assert torch.autograd.gradcheck(plain_scan, make(1, 4, 2, 3, kind=torch.float64))


@pytest.mark.parametrize("name", INTERPRETED)
def test_the_kernels_of_a_gpu_give_what_the_definition_gives(folder, name):
    exact = outcome(plain_scan, make(*INTERPRETED[name], kind=torch.float64))
    assert_near(dict(np.load(folder / f"{name}.npz")), exact)


def test_the_kernels_of_a_gpu_are_compiled_to_its_instructions(tmp_path):
    pytest.importorskip("triton.backends.nvidia")
    found = sorted(item.name for item in run_as_script(tmp_path).glob("*.cubin"))
    assert found == ["backward.cubin", "forward.cubin"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("shape", [*SHAPES, (32, 640, 64, 16), (8, 4000, 64, 16)], ids=str)
def test_on_a_gpu_the_numbers_are_those_of_the_definition_the_same_bits_twice_and_nobody_waits(shape):
    inputs = [value.detach().cuda().requires_grad_() for value in make(*shape)]
    assert selective_scan_triton.suits(*inputs)
    selective_scan(*inputs).sum().backward()  # compiles
    passes = []
    for _ in range(2):
        for entry in inputs:
            entry.grad = None
        given = torch.randn(shape[:3], generator=torch.Generator().manual_seed(5)).cuda()
        with waiting("error"):
            y = selective_scan(*inputs)
            y.backward(given)
        passes.append({"y": y.detach()} | {n: entry.grad for n, entry in zip(NAMES, inputs, strict=True)})
    assert all(torch.equal(passes[0][name], passes[1][name]) for name in passes[0])
    exact = outcome(plain_scan, make(*shape, kind=torch.float64))
    assert_near({name: item.cpu().numpy() for name, item in passes[0].items()}, exact, most=1e-4)


@pytest.mark.parametrize("scan", [plain_scan, selective_scan_numba.scan], ids=["plain", "compiled"])
def test_a_decay_so_strong_that_nothing_is_kept_leaves_the_input_of_each_step(scan):
    x, delta, A, B, C, D = make(2, 100, 16, 4)
    delta, A = torch.full_like(delta, 50.0, requires_grad=True), torch.full_like(A, -40.0, requires_grad=True)
    found = outcome(scan, [x, delta, A, B, C, D])
    expected = (delta * x * (B * C).sum(-1, keepdim=True) + D * x).detach().numpy()
    np.testing.assert_allclose(found["y"], expected, rtol=1e-4, atol=1e-4)
    assert all(np.isfinite(item).all() for item in found.values())
    assert np.abs(found["A"]).max() < 1e-30


def test_without_decay_the_state_is_the_sum_of_all_that_entered():
    x = torch.randn(1, 5000, 16, generator=torch.Generator().manual_seed(0))
    item = torch.ones(1, 5000, 1)
    y = selective_scan(x, torch.ones_like(x), torch.zeros(16, 1), item, item, torch.zeros(16))
    np.testing.assert_allclose(y, x.double().cumsum(1), atol=1e-3)


@pytest.mark.parametrize("log_keep", [-1e-7, -1e-5, -1e-3, -0.3])
def test_small_errors_of_the_exponential_do_not_add_up_in_a_long_memory(log_keep):
    x, item = torch.ones(1, 4000, 16), torch.ones(1, 4000, 1)
    y = selective_scan(x, torch.ones_like(x), torch.full((16, 1), log_keep), item, item, torch.zeros(16))
    keep = np.exp(np.float64(np.float32(log_keep)))
    exact = (1 - keep ** np.arange(1, 4001)) / (1 - keep)  # a geometric series
    np.testing.assert_allclose(y[0, :, 3], exact, rtol=1e-4)


def test_a_long_sequence_stays_within_1e_4_of_a_float64_loop():
    inputs = [entry.detach() for entry in make(1, 4000, 2, 4)]
    exact = naive.selective_scan(*(item.double().numpy() for item in inputs))
    found = selective_scan(*inputs).numpy()
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4 * np.abs(exact).mean())


# What it depends on


@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_sequence_depends_neither_on_its_batch_nor_on_threads_and_two_calls_give_the_same_bits(n_threads):
    before = torch.get_num_threads()
    inputs = make(5, 50, 24, 6)
    single = outcome(selective_scan, inputs)
    x, delta, A, B, C, D = inputs
    try:
        torch.set_num_threads(n_threads)
        again = outcome(selective_scan, inputs)
        alone = selective_scan(x[3:4], delta[3:4], A, B[3:4], C[3:4], D).detach().numpy()
    finally:
        torch.set_num_threads(before)
    for name, expected in single.items():
        np.testing.assert_array_equal(again[name], expected, err_msg=name)
    np.testing.assert_array_equal(alone[0], single["y"][3])


@pytest.mark.parametrize("scan", [plain_scan, selective_scan_numba.scan], ids=["plain", "compiled"])
def test_what_comes_later_changes_nothing_before_it(scan):
    x, *others = [item.detach() for item in make(2, 90, 16, 4)]
    changed = x.clone()
    changed[:, 70:] = 1e6
    found = scan(changed, *others)
    assert torch.equal(found[:, :64], scan(x, *others)[:, :64])
    torch.testing.assert_close(found[:, :70], scan(x, *others)[:, :70])


def test_strided_inputs_are_read_as_they_are_meant():
    inputs = make(2, 20, 16, 4)
    turned = [item.detach().transpose(0, -1).contiguous().transpose(0, -1) for item in inputs]
    assert not turned[0].is_contiguous()
    assert torch.equal(selective_scan(*turned), selective_scan(*inputs))


def test_gradients_are_given_to_those_that_ask():
    x, *others = make(2, 20, 16, 4)
    others = [other.detach() for other in others]
    selective_scan(x, *others).sum().backward()
    same = x.detach().double().requires_grad_()
    plain_scan(same, *(other.double() for other in others)).sum().backward()
    assert_near({"x": x.grad.numpy()}, {"x": same.grad.numpy()})
    assert all(other.grad is None for other in others)
    with torch.no_grad():
        assert not selective_scan(x, *others).requires_grad


def test_float64_stays_and_lower_precision_is_computed_in_float32():
    assert selective_scan(*make(1, 3, 2, 2, kind=torch.float64)).dtype == torch.float64
    inputs = make(1, 30, 16, 2, kind=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        found = selective_scan(*inputs)
    assert found.dtype == torch.float32
    assert torch.equal(found, selective_scan(*(item.float() for item in inputs)))


@pytest.mark.parametrize("n_states", [1, 16, 64])
def test_for_the_gradient_autograd_keeps_the_inputs_and_a_state_every_16_steps(n_states):
    inputs, kept = make(2, 1000, 32, n_states), []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda entry: kept.append(entry.nbytes) or entry, lambda entry: entry
    ):
        selective_scan(*inputs)
    states = 2 * 63 * n_states * 32  # 1000 / 16, rounded up
    assert sum(kept) == sum(item.nbytes for item in inputs) + 4 * states


# Errors


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("delta", (2, 5, 3)),
        ("A", (3, 4, 1)),
        ("B", (2, 5, 3)),
        ("C", (1, 5, 4)),
        ("D", (4,)),
        ("x", (2, 0, 3)),
    ],
)
def test_what_does_not_fit_is_named_with_its_shape(name, shape):
    inputs = dict(zip(NAMES, make(2, 5, 3, 4), strict=True))
    if name == "delta":
        shape = (2, 4, 3)
    inputs[name] = torch.zeros(shape)
    found = str(shape).replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(BackboneError, match=f"^{name} of a selective scan has shape {found}"):
        selective_scan(**inputs)


if __name__ == "__main__":
    (interpreted if os.environ.get("TRITON_INTERPRET") else compile_kernels)(Path(sys.argv[1]))
