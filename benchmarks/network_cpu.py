"""The paper's network on a CPU, forward and backward, beside its plain layers.

    -> {"windows_per_second": {"training": {"ours", "plain"}, "evaluation": ..}, "ratio", "share_of_matmul", ..}

Both run on the same windows in turn, medians of several rounds; before that, their features must agree. Plain
layers in training write out every attention weight (0.8 MB a window and layer, several times over), so their batch
is smaller: a window costs them the same there, and 8192 would take a minute and 20 GB.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.common import SEED, Disagreement, peak_added, tell, timed
from raxss.method.backbones import PatchTST, n_parameters
from raxss.method.backbones import patchtst_numba as compiled

LENGTH = 1024
BATCH = 8192
PLAIN_BATCH = 1024  # in training
DIFFERENCE = 3e-6  # of features in single precision, over the largest


def run(batch: int = BATCH, plain_batch: int = PLAIN_BATCH, n_rounds: int = 3) -> dict[str, Any]:
    """Windows a second of a training step's forward and backward pass, and of evaluation."""
    torch.manual_seed(SEED)
    network = PatchTST(1, LENGTH, 1)
    windows = torch.randn(batch, 1, LENGTH).cumsum(dim=-1)
    difference = _agree(network, windows[:64])
    memory, _ = peak_added(lambda: _step(network, windows, compiled.features))  # compiles as well
    some = windows[:plain_batch]
    rates = {
        "training": _in_turn(
            n_rounds,
            ours=(batch, lambda: _step(network, windows, compiled.features)),
            plain=(plain_batch, lambda: _step(network, some, PatchTST.plain_features)),
        ),
        "evaluation": _in_turn(
            n_rounds,
            ours=(batch, lambda: _evaluate(network, windows, compiled.features)),
            plain=(batch, lambda: _evaluate(network, windows, PatchTST.plain_features)),
        ),
    }
    matmul = _matmul_rate()
    flops = {"evaluation": forward_flops(network), "training": 3 * forward_flops(network)}
    return {
        "n_parameters": n_parameters(network),
        "threads": torch.get_num_threads(),
        "batch": {"ours": batch, "plain, training": plain_batch, "plain, evaluation": batch},
        "windows_per_second": rates,
        "ratio": {part: rate["ours"] / rate["plain"] for part, rate in rates.items()},
        "matmul_gflops": matmul / 1e9,
        "share_of_matmul": {part: rates[part]["ours"] * flops[part] / matmul for part in rates},
        "difference": difference,
        "step_gb": memory / 1e9,
    }


def forward_flops(network: PatchTST) -> float:
    """Two for each product and sum of one window's matrix products; a training step has three times as many.

    >>> round(forward_flops(PatchTST(1, 1024, 1)) / 1e6, 1)
    10.6
    """
    n_tokens, width = network.positions.shape
    n_hidden = sum(layer.feed_forward[0].out_features for layer in network.encoder)  # type: ignore[union-attr, index]
    linear = network.patch_length * width + 4 * width * width * len(network.encoder) + 2 * width * n_hidden
    return 2.0 * n_tokens * (linear + 2 * n_tokens * width * len(network.encoder) + width)


def _step(network: PatchTST, windows: Tensor, features: Callable[[PatchTST, Tensor], Tensor]) -> None:
    network.train().zero_grad()
    functional.softplus(network.head(features(network, windows))).mean().backward()


def _evaluate(network: PatchTST, windows: Tensor, features: Callable[[PatchTST, Tensor], Tensor]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = network.eval().head(features(network, windows))
    return logits


def _agree(network: PatchTST, windows: Tensor) -> float:
    """The largest difference of features, without dropout, by batch moments and by running ones."""
    largest = 0.0
    for training in (True, False):
        item, other = copy.deepcopy(network), copy.deepcopy(network)
        for twin in (item, other):
            twin.train(training)
            for layer in twin.encoder:
                layer.attention_dropout = 0.0  # type: ignore[assignment]
                layer.feed_forward[2].p = 0.0  # type: ignore[union-attr, index]
        with torch.no_grad():
            expected = other.plain_features(windows)
            found = compiled.features(item, windows)
        largest = max(largest, float((found - expected).abs().max() / expected.abs().max()))
    if not largest <= DIFFERENCE:
        raise Disagreement(
            f"features differ by {largest:.1e}, more than {DIFFERENCE:.0e}: compiled and plain layers"
        )
    return largest


def _in_turn(n_rounds: int, **contenders: tuple[int, Callable[[], Any]]) -> dict[str, float]:
    """Windows a second of each, medians of rounds in which all run."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(n_rounds):
        for name, (n_windows, work) in contenders.items():
            seconds[name].append(timed(work)[0])
            tell(f"network, round {number + 1}: {name} {n_windows / seconds[name][-1]:,.0f} windows/s")
    return {name: contenders[name][0] / statistics.median(seconds[name]) for name in contenders}


def _matmul_rate(n: int = 2048, n_repeats: int = 8) -> float:
    """Operations a second of a large float32 product on the same threads, at best."""
    matrix = torch.randn(n, n)
    return 2 * n**3 / min(timed(lambda: matrix @ matrix)[0] for _ in range(n_repeats))


if __name__ == "__main__":
    import json

    print(json.dumps(run(), indent=2))
