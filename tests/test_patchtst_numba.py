"""The compiled PatchTST against the plain layers: same numbers, same gradients, same running moments."""

from __future__ import annotations

import copy
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from network_claims import sizes_of_terms
from raxss.method.backbones import PatchTST, patchtst
from raxss.method.backbones import patchtst_numba as compiled


def make(
    n_variates: int = 1, length: int = 100, *, rough: float = 0.1, dropout: float = 0.0, **options
) -> PatchTST:
    """A network whose parameters are all away from 0 and 1."""
    torch.manual_seed(0)
    network = PatchTST(n_variates, length, 1, attention_dropout=dropout, dropout=dropout, **options)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(rough * torch.randn_like(parameter))
        for name, buffer in network.named_buffers():
            if name.endswith(("mean", "var")):
                buffer.add_(torch.rand_like(buffer))
    return network


def windows_of(batch: int, network: PatchTST, length: int, seed: int = 1) -> Tensor:
    n_variates = network.head.in_features // network.positions.numel()
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, n_variates, length, generator=generator).cumsum(dim=-1)


def assert_near(
    found: Tensor, exact: Tensor, usual: Tensor, name: str, floor: float = 0.0, most: float = 1e-5
) -> None:
    """Within ``most`` of the largest number of ``exact``, or about as near as plain float32 comes.

    ``floor`` is for those that are 0 but for rounding, and for sums whose terms cancel.
    """
    scale = max(float(exact.detach().abs().max()), floor)
    error = float((found.detach().double() - exact.detach()).abs().max()) / scale
    usual_error = float((usual.detach().double() - exact.detach()).abs().max()) / scale
    assert error <= max(most, 4 * usual_error), (
        f"{name}: off by {error:.2e}, plain float32 by {usual_error:.2e}"
    )


SHAPES = [
    {"batch": 7, "length": 1024},
    {"batch": 65, "n_variates": 2, "length": 100},
    {"batch": 2, "n_variates": 3, "length": 60},
    {"batch": 1, "length": 1000},
    {"batch": 5, "length": 5},  # shorter than a patch
    {"batch": 9, "length": 200, "d_model": 64, "n_heads": 8, "d_ff": 36, "n_layers": 3},
    {"batch": 3, "length": 90, "patch_length": 12, "patch_stride": 5, "n_layers": 1, "revin": False},
]


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_features_gradients_and_running_moments_are_those_of_the_plain_layers(
    shape: dict, training: bool
) -> None:
    options = dict(shape)
    batch, length = options.pop("batch"), options["length"]
    network = make(**options).train(training)
    reference = copy.deepcopy(network).double()
    windows = windows_of(batch, network, length).requires_grad_()
    exact = windows.detach().double().requires_grad_()
    assert compiled.suits(network, windows)

    plain = copy.deepcopy(network)
    standardised: list[Tensor] = []
    reference.revin.register_forward_hook(lambda *passed: standardised.append(passed[-1]))
    inputs = (windows, exact, windows.detach().clone().requires_grad_())
    outputs = (
        compiled.features(network, inputs[0]),
        reference.plain_features(exact),
        plain.plain_features(inputs[2]),
    )
    probe = torch.randn(outputs[0].shape, generator=torch.Generator().manual_seed(2))
    standardised[0].retain_grad()
    for output in outputs:
        (output * probe.to(output.dtype)).sum().backward()

    assert_near(*outputs, "features")
    assert_near(*(item.grad for item in inputs), "windows")
    sums = sizes_of_terms(reference.revin, standardised[0])
    floor = max(float(parameter.grad.abs().max()) for parameter in reference.encoder.parameters())
    three = zip(network.named_parameters(), reference.parameters(), plain.parameters(), strict=True)
    for (name, found), expected, usual in three:
        if expected.grad is None:
            assert found.grad is None  # the head has no part in features
        elif name in sums:
            assert_near(found.grad, expected.grad, usual.grad, name, sums[name], most=2e-6)
        else:  # a bias before a normalisation has a gradient of 0, and rounding
            assert_near(found.grad, expected.grad, usual.grad, name, floor / 4)
    for (name, found), expected in zip(network.named_buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(found.double(), expected.double(), rtol=1e-6, atol=1e-7, msg=name)


def test_a_window_has_the_same_features_alone_and_in_any_batch() -> None:
    network = make(length=1024).eval()
    windows = windows_of(70, network, 1024)
    with torch.no_grad():
        together = compiled.features(network, windows)
        for index in (0, 31, 32, 69):
            assert torch.equal(compiled.features(network, windows[index : index + 1])[0], together[index])
        assert torch.equal(compiled.features(network, windows.flip(0)).flip(0), together)
    assert torch.equal(compiled.features(network, windows), together)  # also where gradients are wanted


def step(network: PatchTST, windows: Tensor, seed: int = 3) -> list[Tensor]:
    """Features, gradients and running moments of one training step on a copy."""
    network = copy.deepcopy(network).train()
    torch.manual_seed(seed)
    features = compiled.features(network, windows)
    features.square().sum().backward()
    return [
        features.detach(),
        *(parameter.grad for parameter in network.parameters() if parameter.grad is not None),
        *network.buffers(),
    ]


def test_a_step_depends_on_the_seed_and_not_on_the_number_of_threads() -> None:
    network = make(length=200, dropout=0.3)
    windows = windows_of(150, network, 200)
    n_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = step(network, windows)
        torch.set_num_threads(3)
        shared = step(network, windows)
    finally:
        torch.set_num_threads(n_threads)
    assert all(torch.equal(item, other) for item, other in zip(alone, shared, strict=True))
    assert not torch.equal(step(network, windows, seed=4)[0], alone[0])


def test_every_call_draws_once_from_torchs_generator() -> None:
    network = make(dropout=0.3)
    windows = windows_of(2, network, 100)
    torch.manual_seed(5)
    compiled.features(network, windows)
    after = torch.randint(2**62, ())
    torch.manual_seed(5)
    torch.randint(2**62, ())
    assert after == torch.randint(2**62, ())


@pytest.mark.parametrize("which", ["attention", "hidden"])
def test_the_backward_pass_uses_the_forward_masks(which: str) -> None:
    """Along a direction in the parameters, the difference quotient at a fixed seed is the gradient's."""
    network = make(length=200, dropout=0.0).train()
    for layer in network.encoder:
        if which == "attention":
            layer.attention_dropout = 0.4
        else:
            layer.feed_forward[2].p = 0.4
    windows = windows_of(20, network, 200)
    probe = torch.randn(20, network.head.in_features, generator=torch.Generator().manual_seed(6))

    def value() -> Tensor:
        torch.manual_seed(7)
        return (compiled.features(network, windows).double() * probe).sum()

    value().backward()
    generator = torch.Generator().manual_seed(8)
    parameters = [parameter for parameter in network.parameters() if parameter.grad is not None]
    directions = [torch.randn(parameter.shape, generator=generator) for parameter in parameters]
    slope = sum(
        float((parameter.grad.double() * way).sum())
        for parameter, way in zip(parameters, directions, strict=True)
    )
    ends = []
    for move in (1e-4, -2e-4):
        with torch.no_grad():
            for parameter, way in zip(parameters, directions, strict=True):
                parameter.add_(move * way)
            ends.append(float(value()))
    assert (ends[0] - ends[1]) / 2e-4 == pytest.approx(slope, rel=2e-3)


def kept_shares(probability: float, n_windows: int = 60) -> np.ndarray:
    """(window, query, feature) -> outputs of a head for values that are all 1, under dropout."""
    network = make(length=1024, rough=0.0, n_layers=1).eval()
    layer = network.encoder[0]
    layer.attention_dropout = probability
    with torch.no_grad():
        for linear in (layer.query, layer.key, layer.value):
            linear.weight.zero_()
            linear.bias.zero_()
        layer.value.bias.fill_(1.0)
    network.training = True  # dropout alone: the normalisation stays in evaluation
    plan = compiled._plan(network, seed=11)
    series, features = np.zeros((n_windows, 1024), np.float32), compiled._zeros(n_windows, 4096)
    (computed,), _ = compiled._encoded(network, plan, series, features)
    return computed.heads.reshape(n_windows, plan.layout.width, plan.layout.n_slots)[:, :: compiled.HEAD]


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.75])
def test_dropout_keeps_the_right_share_and_the_mean_output_of_a_head(probability: float) -> None:
    outputs = kept_shares(probability)  # each is the sum of 128 kept ones / 128 / (1 - probability)
    n_decisions = outputs.size * 128
    keep = 1 - probability
    deviation = np.sqrt(probability / keep / n_decisions)
    assert abs(outputs.mean(dtype=np.float64) - 1) < 4 * deviation
    spread = outputs.var(dtype=np.float64) / (probability / keep / 128)  # 1 if keys are dropped independently
    assert abs(spread - 1) < 5 * np.sqrt(2 / outputs.size)


def test_masks_of_windows_heads_and_queries_are_uncorrelated() -> None:
    outputs = kept_shares(0.3).astype(np.float64) - 1
    for axis in range(3):
        neighbours = np.moveaxis(outputs, axis, 0)
        products = neighbours[1:] * neighbours[:-1]
        assert abs(products.mean()) < 5 * outputs.var() / np.sqrt(products.size), f"axis {axis}"


def test_dropout_of_the_feed_forward_layer_is_right_on_average() -> None:
    """With one layer and fixed moments, features are linear in its mask."""
    network = make(length=200, n_layers=1).eval()
    network.encoder[0].feed_forward[2].p = 0.3
    windows = windows_of(1, network, 200).expand(4000, 1, 200)
    with torch.no_grad():
        expected = compiled.features(network, windows[:1])[0].double()
        network.training = True  # dropout alone: the normalisation stays in evaluation
        found = compiled.features(network, windows).double()
    assert not network.encoder[0].norm.training
    off = (found.mean(dim=0) - expected) / (found.std(dim=0) / np.sqrt(4000))
    assert float(off.square().mean()) == pytest.approx(1, abs=0.3)


def test_the_plain_layers_read_a_batch_beyond_the_limit_of_one_attention_call_in_parts(monkeypatch) -> None:
    network = make(n_variates=3).eval()
    windows = windows_of(5, network, 100)
    at_once = network.plain_features(windows)
    monkeypatch.setattr(patchtst, "MOST_AT_ONCE", 4)
    torch.testing.assert_close(network.plain_features(windows), at_once)


def test_large_scores_do_not_overflow() -> None:
    network = make(length=200, rough=0.0)
    with torch.no_grad():
        for layer in network.encoder:
            layer.query.weight.mul_(60)
            layer.key.weight.mul_(60)
    reference = copy.deepcopy(network).double()
    windows = windows_of(6, network, 200)
    found, expected = compiled.features(network, windows), reference.plain_features(windows.double())
    assert_near(found, expected, copy.deepcopy(network).plain_features(windows), "features")
    found.square().sum().backward()
    assert all(
        parameter.grad is None or parameter.grad.isfinite().all() for parameter in network.parameters()
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_window_that_is_not_a_number_spoils_itself_alone_in_evaluation(value: float) -> None:
    network = make(length=200).eval()
    windows = windows_of(3, network, 200)
    with torch.no_grad():
        clean = compiled.features(network, windows)
        windows[1, 0, 17] = value
        found = compiled.features(network, windows)
    assert found[1].isnan().all()
    assert network.plain_features(windows)[1].isnan().all()
    assert torch.equal(found[[0, 2]], clean[[0, 2]])


def test_what_the_loops_cannot_do_is_left_to_the_plain_layers() -> None:
    network, windows = make(), torch.zeros(2, 1, 100)
    assert compiled.suits(network, windows)
    assert not compiled.suits(network, windows.double())
    assert not compiled.suits(copy.deepcopy(network).double(), windows)
    assert not compiled.suits(network, windows[:0])
    assert not compiled.suits(network, torch.zeros(2, 1, 300))  # the plain layers raise
    assert not compiled.suits(make(d_model=32, n_heads=2), windows)  # heads of 16
    assert not compiled.suits(make(patch_length=10), windows)
    assert not compiled.suits(make(dropout=1.0), windows)
    with torch.autocast("cpu", torch.bfloat16):
        assert not compiled.suits(network, windows)
    hooked, frozen, replaced = make(), make(), make()
    hooked.encoder[0].query.register_forward_hook(lambda *_: None)
    frozen.encoder[0].norm.eval()
    replaced.encoder[0].norm = nn.Identity()
    assert not any(compiled.suits(item, windows) for item in (hooked, frozen, replaced))
    assert not torch.func.vmap(lambda item: torch.tensor(compiled.suits(network, item[None])))(windows).any()


def test_only_inputs_that_require_a_gradient_get_one() -> None:
    network = make()
    network.projection.requires_grad_(False)
    compiled.features(network, windows_of(2, network, 100)).sum().backward()
    assert network.projection.weight.grad is None
    assert network.positions.grad is not None


def test_parameters_that_change_before_the_backward_pass_are_noticed() -> None:
    network = make()
    features = compiled.features(network, windows_of(2, network, 100))
    with torch.no_grad():
        network.encoder[0].mix.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        features.sum().backward()


# As processors without 512-bit registers run it

FEATURES = "+sse4.2,+popcnt,+avx,+f16c,+avx2,+fma,+bmi,+bmi2"


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names features of x86-64")
def test_narrow_vectors_give_what_the_plain_layers_give(tmp_path: Path) -> None:
    narrow = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": FEATURES, "NUMBA_CACHE_DIR": str(tmp_path)}
    environment = {**os.environ, **narrow}
    lanes = "from raxss._core.vector_code import LANES; print(LANES)"
    process = subprocess.run(
        [sys.executable, "-c", lanes], env=environment, capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "8"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
