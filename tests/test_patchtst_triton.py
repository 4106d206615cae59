"""The kernels against the plain layers: through Triton's interpreter, and at full size where there is a GPU.

Run as a script, this file is the interpreted half: ``python tests/test_patchtst_triton.py FOLDER`` writes what the
kernels give for every case. It needs a process of its own, since Triton decides once whether to interpret.
"""

import copy
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from network_claims import sizes_of_terms
from raxss.method.backbones import patchtst_triton
from raxss.method.backbones.patchtst import PatchTST

# windows, variates, samples: fewer patches than a block holds, and as many
CASES = {"padded": (2, 2, 72), "full": (2, 1, 256)}
LAYERS = {"padded": 2, "full": 1}
MOVED = {  # parameters that are moved together, by the ends of their names
    "attention": ("query.weight", "key.weight", "value.weight", "value.bias"),
    "the rest": ("projection.weight", "feed_forward.0.weight", "feed_forward.3.weight", "norm.weight"),
}
STEP = 4e-3


def make(case: str, **options) -> tuple[PatchTST, torch.Tensor, torch.Tensor]:
    """A network away from its start, windows, and the gradient of its features."""
    n_windows, n_variates, length = CASES[case]
    torch.manual_seed(69421)
    options = {"attention_dropout": 0.0, "dropout": 0.0, "n_layers": LAYERS[case]} | options
    network = PatchTST(n_variates, length, 1, **options)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    windows = torch.randn(n_windows, n_variates, length).cumsum(-1) + 7
    return network, windows, torch.randn(n_windows, network.head.in_features)


def outcome(network, windows, given, run) -> dict[str, np.ndarray]:
    """Features, every gradient, every buffer, and the features in evaluation afterwards."""
    found = run(network, windows)
    found.backward(given)
    result = {"features": found.detach()}
    result |= {
        name: named_parameter.grad
        for name, named_parameter in network.named_parameters()
        if not name.startswith("head.")
    }
    result |= dict(network.named_buffers())
    with torch.no_grad():
        result["evaluation"] = run(network.eval(), windows)
    return {name: item.double().numpy() for name, item in result.items()}


def interpreted(folder: Path) -> None:
    """All that the tests below compare, by the kernels themselves."""
    global kernels, tl  # where Triton looks for the names in a kernel
    import triton
    import triton.language as tl

    from raxss.method.backbones import patchtst_triton_kernels as kernels

    for name, launch in patchtst_triton.LAUNCHES.items():  # programs that take several pieces in turn
        patchtst_triton.LAUNCHES[name] = launch._replace(programs=2)

    def run(network, windows):
        return patchtst_triton.run(network, windows, dtype=torch.float32)

    for case in CASES:
        np.savez(folder / f"{case}.npz", **outcome(*make(case), run))

    network, windows, given = make("full", attention_dropout=0.3, dropout=0.6)

    def dropped(seed: int, of: PatchTST = network) -> torch.Tensor:
        torch.manual_seed(seed)
        return run(of, windows)

    first = dropped(1)
    first.backward(given)
    results = {"first": first, "again": dropped(1), "other": dropped(2)}
    for name, ends in MOVED.items():
        torch.manual_seed(5)
        ways = {
            named_parameter: torch.randn_like(x)
            for named_parameter, x in network.named_parameters()
            if named_parameter.endswith(ends)
        }
        results[f"predicted {name}"] = sum(
            (network.get_parameter(item).grad * way).sum() for item, way in ways.items()
        )
        sums = []
        for step in (STEP, -STEP):
            moved = copy.deepcopy(network)
            with torch.no_grad():
                for item, way in ways.items():
                    moved.get_parameter(item).add_(way, alpha=step)
                sums.append((dropped(1, moved).double() * given).sum())
        results[f"measured {name}"] = (sums[0] - sums[1]) / (2 * STEP)
    np.savez(folder / "dropout.npz", **{name: result.detach().numpy() for name, result in results.items()})

    @triton.jit
    def draw(seed, out, limit, STREAM: tl.constexpr, N: tl.constexpr):
        rows, columns = tl.arange(0, 128), tl.arange(0, 64)
        stream = kernels.stream_key(seed, STREAM)
        for part in range(N):
            key = kernels.part_key(stream, part)
            bits = kernels.words(
                kernels.row_key(key, rows)[:, None], kernels.column_key(key, columns)[None, :]
            )
            place = out + part * 128 * 128 + rows[:, None] * 128 + columns[None, :]
            tl.store(place, (bits >= limit).to(tl.int8))
            tl.store(place + 64, ((bits << 16) >= limit).to(tl.int8))

    limit = round(0.3 * 2**16) << 16
    drawn = torch.zeros(3, 64, 128, 128, dtype=torch.int8)
    draw[(1,)](torch.tensor([12345678901]), drawn[0], limit, STREAM=0, N=64)
    draw[(1,)](torch.tensor([12345678902]), drawn[1], limit, STREAM=0, N=64)
    draw[(1,)](torch.tensor([12345678901]), drawn[2], limit, STREAM=1, N=64)
    np.save(folder / "drawn.npy", drawn.numpy())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("triton")
    path = tmp_path_factory.mktemp("interpreted")
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, __file__, path], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return path


@pytest.mark.parametrize("case", CASES)
def test_features_gradients_and_statistics_are_those_of_the_plain_layers(folder, case):
    network, windows, given = make(case)
    standardised: list[torch.Tensor] = []

    def keep(module: torch.nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        if output.requires_grad:
            output.retain_grad()
            standardised.append(output)

    network.revin.register_forward_hook(keep)
    plain = outcome(network.double(), windows.double(), given.double(), PatchTST.plain_features)
    sums = sizes_of_terms(network.revin, standardised[0])
    ours = np.load(folder / f"{case}.npz")
    assert set(ours) == set(plain)
    for name, expected in plain.items():
        # a gradient that is nothing but rounding (a bias before a normalisation) is held to an absolute bound
        bound = 2e-6 * sums[name] if name in sums else 2e-5 * max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(ours[name], expected, rtol=0, atol=bound, err_msg=name)


def test_the_same_seed_drops_the_same_and_another_seed_others(folder):
    found = np.load(folder / "dropout.npz")
    np.testing.assert_array_equal(found["again"], found["first"])
    assert np.abs(found["other"] - found["first"]).mean() > 0.05


@pytest.mark.parametrize("name", MOVED)
def test_the_gradient_under_dropout_is_the_slope_at_the_same_masks(folder, name):
    found = np.load(folder / "dropout.npz")
    predicted, measured = found[f"predicted {name}"], found[f"measured {name}"]
    assert abs(predicted) > 1  # large enough for float32
    np.testing.assert_allclose(predicted, measured, rtol=0.02, atol=0.2)


def test_decisions_are_kept_at_the_right_rate_and_know_nothing_of_each_other(folder):
    drawn = np.load(folder / "drawn.npy").astype(float)
    n = drawn[0].size
    assert abs(drawn.mean() - 0.7) < 4 * np.sqrt(0.21 / drawn.size)
    kept = (drawn - 0.7) / np.sqrt(0.21)
    item = kept[0]
    for axis in (
        (0, 1),
        (0, 2),
        (1, 2),
    ):  # each column, row and part by itself: mean squares as of chance alone
        sums = item.sum(axis) / np.sqrt(n / item.shape[({0, 1, 2} - set(axis)).pop()])
        assert abs((sums**2).mean() - 1) < 6 * np.sqrt(2 / sums.size)
    pairs = {
        "two halves of a word": item[:, :, :64] * item[:, :, 64:],
        "neighbouring rows": item[:, 1:] * item[:, :-1],
        "neighbouring columns": item[:, :, 1:] * item[:, :, :-1],
        "neighbouring heads": item[1:] * item[:-1],
        "squares": item[:, 1:, 1:] * item[:, :-1, 1:] * item[:, 1:, :-1] * item[:, :-1, :-1],
        "next seed": kept[0] * kept[1],
        "next layer": kept[0] * kept[2],
    }
    for name, product in pairs.items():
        assert abs(product.mean()) < 4.5 / np.sqrt(product.size), name


def test_other_sizes_types_and_modes_are_left_to_the_plain_layers():
    windows = torch.zeros(2, 1, 256)
    assert patchtst_triton.has_sizes(PatchTST(1, 256, 1), windows)
    others = [{"d_model": 16}, {"n_heads": 2}, {"d_ff": 64}, {"patch_length": 65}, {"dropout": 1.0}]
    for options in (*others, {"patch_stride": 1}):  # 257 patches
        assert not patchtst_triton.has_sizes(PatchTST(1, 256, 1, **options), windows), options
    network = PatchTST(1, 256, 1)
    assert not patchtst_triton.has_sizes(network, windows.long())
    with torch.autocast("cpu", torch.bfloat16):
        assert not patchtst_triton.suits(network, windows)
    network.encoder[0].norm.eval()
    assert not patchtst_triton.has_sizes(network, windows)


@pytest.mark.parametrize(
    ("device", "capability", "reason"),
    [
        ("Tesla T4", (7, 5), "Tesla T4 has no bf16 matrix units"),
        ("NVIDIA H200", (9, 0), "pip install triton"),
    ],
)
def test_what_keeps_the_kernels_from_running_is_logged_once(caplog, monkeypatch, device, capability, reason):
    monkeypatch.setitem(sys.modules, "triton", None)  # what an import finds where it is not installed
    patchtst_triton.why_not.cache_clear()
    with caplog.at_level(logging.INFO, logger="raxss"):
        for _ in range(3):
            assert reason in patchtst_triton.why_not(device, capability)
    patchtst_triton.why_not.cache_clear()
    assert len(caplog.records) == 1
    assert reason in caplog.text


def test_the_module_imports_without_triton():
    code = "import sys; sys.modules['triton'] = None; import raxss.method.backbones.patchtst_triton"
    subprocess.run([sys.executable, "-c", code], check=True)


# On a GPU
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


def one_step(network, windows, labels, features):
    network.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16):
        logits = network.head(features(network, windows))
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits.float().squeeze(1), labels)
    loss.backward()
    return {name: named_parameter.grad.clone() for name, named_parameter in network.named_parameters()}


def on_gpu(n_windows=512, n_variates=1, length=1024, **options):
    torch.manual_seed(69421)
    network = PatchTST(n_variates, length, 1, **options).cuda()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    windows = torch.randn(n_windows, n_variates, length, device="cuda").cumsum(-1)
    return network, windows, (torch.rand(n_windows, device="cuda") < 0.5).float()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("shape", [(512, 1, 1024), (65, 3, 1000), (7, 2, 200)])
def test_on_the_gpu_gradients_are_as_near_to_float32_as_those_of_autocast(shape):
    network, windows, labels = on_gpu(*shape, attention_dropout=0.0, dropout=0.0)
    with torch.autocast("cuda", torch.bfloat16):
        assert patchtst_triton.suits(network, windows)
    exact_network = copy.deepcopy(network)
    logits = exact_network.head(exact_network.plain_features(windows)).squeeze(1)
    torch.nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
    usual = one_step(copy.deepcopy(network), windows, labels, PatchTST.plain_features)
    ours = one_step(network, windows, labels, patchtst_triton.features)
    for name, parameter in exact_network.named_parameters():
        exact = parameter.grad
        if name.endswith(("key.bias", "value.bias", "mix.bias", "feed_forward.3.bias")):
            continue  # zero but for rounding
        error, usual_error = ((item[name] - exact).norm() / exact.norm() for item in (ours, usual))
        assert error < 0.03 + 2 * usual_error, (name, error, usual_error)
    for buffer, other in zip(network.buffers(), exact_network.buffers(), strict=True):
        torch.testing.assert_close(buffer.float(), other.float(), rtol=0.02, atol=0.02)


@pytest.mark.gpu
@needs_gpu
def test_on_the_gpu_evaluation_agrees_with_float32():
    network, windows, _ = on_gpu(1000)
    network.eval()
    with torch.no_grad():
        exact = network.plain_features(windows)
        with torch.autocast("cuda", torch.bfloat16):
            assert patchtst_triton.suits(network, windows)
            error = (patchtst_triton.features(network, windows) - exact).norm() / exact.norm()
    assert error < 0.02
    with torch.autocast("cuda", torch.bfloat16):
        assert not patchtst_triton.suits(network, windows)  # a gradient in evaluation: not ours


if __name__ == "__main__":
    interpreted(Path(sys.argv[1]))
