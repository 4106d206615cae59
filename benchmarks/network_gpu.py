"""PatchTST itself on one GPU, forward and backward, beside eager and compiled layers.

    python -c "from benchmarks import network_gpu; print(network_gpu.run())"

One batch of the paper's size and settings on the device, no data loading, no optimiser. Contenders take turns;
medians of CUDA events. The floors say what the device could do at best: matrix products at the bf16 rate,
exponentials at the rate of its special units, and the tokens our kernels read and write at the copy rate.
"""

from __future__ import annotations

import contextlib
import copy
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from raxss.method.backbones import patchtst_triton
from raxss.method.backbones.patchtst import PatchTST

BATCH, LENGTH = 8192, 1024
MATRIX_RATE, COPY_RATE = 806e12, 4.27e12  # measured on an H200: bf16 operations, bytes a second
EXPONENTIALS = 16  # a clock and multiprocessor
TOKEN_TENSORS = 55  # tensors of all tokens that our kernels read or write in one step

Step = Callable[[], Any]


def plain(network: PatchTST, windows: Tensor) -> Tensor:
    """The layers themselves, whatever `PatchTST.features` would choose."""
    padded = functional.pad(network.revin(windows), (0, network.n_padded), mode="replicate")
    patches = padded.unfold(-1, network.patch_length, network.patch_stride).flatten(0, 1)
    tokens: Tensor = network.encoder(network.projection(patches) + network.positions)
    return tokens.reshape(len(windows), -1)


def training_step(features: Callable[[PatchTST, Tensor], Tensor], *, bf16: bool) -> Step:
    network, windows, labels = inputs()

    def step() -> Tensor:
        network.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16) if bf16 else contextlib.nullcontext():
            logits = network.head(features(network, windows)).float().squeeze(1)
        loss = functional.binary_cross_entropy_with_logits(logits, labels)
        loss.backward()
        return loss.detach()

    return step


def evaluation(features: Callable[[PatchTST, Tensor], Tensor], *, bf16: bool) -> Step:
    network, windows, _ = inputs()
    network.eval()

    def step() -> Tensor:
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16) if bf16 else contextlib.nullcontext():
            logits: Tensor = network.head(features(network, windows))
        return logits

    return step


def inputs() -> tuple[PatchTST, Tensor, Tensor]:
    torch.manual_seed(69421)
    network = PatchTST(1, LENGTH, 1).cuda()
    windows = torch.randn(BATCH, 1, LENGTH, device="cuda").cumsum(-1)
    return network, windows, (torch.rand(BATCH, device="cuda") < 0.5).float()


def captured(step: Step) -> Step:
    """The same step as one CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def milliseconds(step: Step, n_times: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(n_times):
        step()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / n_times


def in_turn(contenders: dict[str, Step], n_rounds: int = 5, n_times: int = 5) -> dict[str, dict[str, float]]:
    """Windows a second and the peak memory of one step of each."""
    results: dict[str, dict[str, float]] = {}
    for name, step in contenders.items():
        step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        results[name] = {"peak_added_gb": (torch.cuda.max_memory_allocated() - before) / 1e9}
    rounds = [
        {name: milliseconds(step, n_times) for name, step in contenders.items()} for _ in range(n_rounds)
    ]
    for name, result in results.items():
        result["milliseconds"] = statistics.median(item[name] for item in rounds)
        result["windows_per_second"] = BATCH / result["milliseconds"] * 1000
    return results


def floors() -> dict[str, float]:
    """Milliseconds of one training step if only one thing took time."""
    n_tokens, width, hidden, n_heads, n_layers = 128, 32, 128, 4, 2
    products = 4 * n_tokens * width**2 + 2 * n_tokens**2 * width + 2 * n_tokens * width * hidden
    operations = 3 * 2 * (n_layers * products + n_tokens * 16 * width)  # forward once, backward twice
    exponentials = (
        2 * n_layers * (n_heads * n_tokens**2 + 2 * n_tokens * hidden)
    )  # GELU: an exp and a reciprocal
    device = torch.cuda.get_device_properties(0)
    clock = 1000 * float(getattr(device, "clock_rate", 1_980_000))
    rate = EXPONENTIALS * device.multi_processor_count * clock
    return {
        "products": BATCH * operations / MATRIX_RATE * 1000,
        "exponentials": BATCH * exponentials / rate * 1000,
        "bytes": BATCH * TOKEN_TENSORS * n_tokens * width * 2 / COPY_RATE * 1000,
        "random_words": BATCH
        * n_layers
        * (n_heads * n_tokens**2 + n_tokens * hidden),  # a count, for each pass
    }


def run(*, compiled: bool = True) -> dict[str, Any]:
    """Every contender on the GPU of this machine; ``{}`` where there is none."""
    if not torch.cuda.is_available():
        return {}
    contenders = {
        "eager fp32": training_step(plain, bf16=False),
        "eager bf16": training_step(plain, bf16=True),
        "raxss": training_step(patchtst_triton.features, bf16=True),
        "raxss, captured": captured(training_step(patchtst_triton.features, bf16=True)),
    }
    if compiled:
        contenders["torch.compile bf16"] = training_step(torch.compile(copy.copy(plain)), bf16=True)
    in_evaluation = {
        "eager fp32": evaluation(plain, bf16=False),
        "eager bf16": evaluation(plain, bf16=True),
        "raxss": evaluation(patchtst_triton.features, bf16=True),
        "raxss, captured": captured(evaluation(patchtst_triton.features, bf16=True)),
    }
    return {
        "device": torch.cuda.get_device_name(),
        "batch": BATCH,
        "training": in_turn(contenders),
        "evaluation": in_turn(in_evaluation),
        "floors_ms": floors(),
    }
