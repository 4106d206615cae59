"""How cost grows with length, batch and channels, and the cost of a large archive.

    python -m benchmarks scaling [--device cuda] [--json FILE]

Three quick series of measurements: retrieval over the length of a series, the network over the size of its batch,
prediction with evidence over the number of channels. Straight lines through them are the model, and the model
says what an archive costs. Next: scaling_page.py writes docs/scaling.md from what was measured.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import SEED, make_signal, median_seconds, n_cores, tell, timed

WINDOW_LENGTH, STRIDE, N_NEIGHBORS = 1024, 5, 10  # the paper's
BATCHES = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
CPU_LENGTHS = (12_500, 25_000, 50_000, 100_000, 200_000)
GPU_LENGTHS = (50_000, 100_000, 200_000, 400_000, 1_000_000, 4_000_000)
TERMS = ("call", "sample", "multiply_add", "pair", "pair_and_sample", "entry")  # of `terms_of_retrieval`
POOLED_SAMPLES = 24_999  # 300 s at 1 kHz, pooled 24/12: one channel of a recording


# ----------------------------------------------------------------------------------------------- measuring


def run(
    device: str = "cpu",
    *,
    lengths: Sequence[int] | None = None,
    batches: Sequence[int] = BATCHES,
    channels: Sequence[int] = (1, 2, 4, 8, 16),
    channel_samples: int | None = None,
    n_repeats: int = 3,
) -> dict[str, Any]:
    """Measure all three; on a CPU shorter series and shorter channels, since the lines are as straight there."""
    on_gpu = device != "cpu"
    lengths = lengths or (GPU_LENGTHS if on_gpu else CPU_LENGTHS)
    channel_samples = channel_samples or (POOLED_SAMPLES if on_gpu else POOLED_SAMPLES // 4)
    return {
        "settings": {
            "window_length": WINDOW_LENGTH,
            "stride": STRIDE,
            "n_neighbors": N_NEIGHBORS,
            "threads": n_cores(),
            "channel_samples": channel_samples,
        },
        "retrieval": over_lengths(device, lengths, n_repeats),
        "network": over_batches(device, batches, n_repeats),
        "prediction": over_channels(device, channels, channel_samples, n_repeats),
    }


def n_windows_of(n_samples: int, window_length: int = WINDOW_LENGTH, stride: int = STRIDE) -> int:
    """How many windows a series has; a short one is one padded window."""
    return max(n_samples - window_length, 0) // stride + 1


def over_lengths(device: str, lengths: Sequence[int], n_repeats: int) -> list[dict[str, Any]]:
    """Retrieval alone, from samples to lists."""
    from raxss.method.retrieval import retrieve

    rows = []
    for n_samples in lengths:
        samples = make_signal(n_samples)

        def search(samples: NDArray[np.float64] = samples) -> Any:
            return retrieve(
                samples, window_length=WINDOW_LENGTH, stride=STRIDE, n_neighbors=N_NEIGHBORS, device=device
            )

        seconds = median_seconds(search, n_repeats=n_repeats, device=device)
        n = n_windows_of(n_samples)
        rows.append({"n_samples": n_samples, "n_windows": n, "pairs": n * (n - 1) // 2, "seconds": seconds})
        tell(f"scaling, retrieval: {n_samples:,} samples, {n:,} windows: {seconds:.3g} s")
    return rows


def over_batches(device: str, batches: Sequence[int], n_repeats: int) -> list[dict[str, Any]]:
    """The paper's network alone, dropout off, on windows that are on the device already."""
    import torch

    from raxss.method.backbones.patchtst import PatchTST

    generator = torch.Generator().manual_seed(SEED)
    network = PatchTST(1, WINDOW_LENGTH, 1).eval().to(device)
    windows = torch.randn(max(batches), 1, WINDOW_LENGTH, generator=generator).to(device)
    rows = []
    for batch in batches:

        def forward(some: torch.Tensor = windows[:batch]) -> torch.Tensor:
            with torch.inference_mode():
                return network(some)

        seconds = median_seconds(forward, n_repeats=n_repeats, device=device)
        rows.append({"batch": batch, "seconds": seconds, "windows_per_s": batch / seconds})
        tell(f"scaling, network: batch {batch:,}: {batch / seconds:,.0f} windows/s")
    return rows


def over_channels(
    device: str, channels: Sequence[int], channel_samples: int, n_repeats: int
) -> list[dict[str, Any]]:
    """The whole chain, from prepared series to evidence on disk."""
    from benchmarks.prediction import POOLED_RATE, barely_trained
    from raxss import Series
    from raxss.explain import write_tables
    from raxss.method.retrieval import clear_cache

    model = barely_trained(device, WINDOW_LENGTH, STRIDE)
    signals = [make_signal(channel_samples, seed=SEED + channel) for channel in range(max(channels))]
    series = [Series(signal, POOLED_RATE, name=f"channel {place}") for place, signal in enumerate(signals)]
    n = n_windows_of(channel_samples)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for n_channels in channels:
            place = Path(folder) / str(n_channels)

            def predict(some: list[Any] = series[:n_channels], place: Path = place) -> None:
                clear_cache()  # else the second run would find its neighbours in memory
                write_tables(model.explain_each(some), place, overwrite=True)

            if not rows:
                timed(predict, device)  # compiles what is left to compile
            durations = sorted(timed(predict, device)[0] for _ in range(n_repeats if n_channels <= 4 else 1))
            written = sum(file.stat().st_size for file in place.rglob("*.parquet"))
            rows.append(
                {
                    "channels": n_channels,
                    "n_windows": n * n_channels,
                    "pairs": n * (n - 1) // 2 * n_channels,
                    "seconds": durations[len(durations) // 2],
                    "evidence_bytes": written,
                }
            )
            tell(f"scaling, prediction: {n_channels} channels: {rows[-1]['seconds']:.3g} s")
    return rows


# ----------------------------------------------------------------------------------------------- the model


@dataclass(frozen=True)
class Costs:
    """What one machine takes; fitted to what it was measured to take.

    Attributes
    ----------
    call_s
        Before the first pair of a series.
    pair_s
        Of retrieval, for every two windows that are compared, at the paper's length and stride.
    entry_s
        Of retrieval, for every entry of a list of neighbours that is made, also where a better one replaces it.
    batch_s, network_s
        Of the network alone: to start a batch, and for each window in it.
    window_s
        Of the whole chain but the search for neighbours: cutting, network, weights, evidence on disk.
    evidence_bytes
        On disk, for each window.
    """

    call_s: float
    pair_s: float
    entry_s: float
    batch_s: float
    network_s: float
    window_s: float
    evidence_bytes: float


def fit(columns: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Coefficients of a sum that comes nearest to the seconds, in relative terms; none is negative.

    >>> [round(one, 6) for one in fit([[1, 1, 1], [10, 20, 40]], [7, 12, 22])]
    [2.0, 0.5]
    """
    from scipy.optimize import nnls

    rows = np.array(columns, dtype=np.float64).T / np.array(seconds, dtype=np.float64)[:, np.newaxis]
    scale = np.abs(rows).max(axis=0)
    found, _ = nnls(rows / scale, np.ones(len(rows)))
    return [float(item) for item in found / scale]


def costs_of(scaling: dict[str, Any], kernel: dict[str, Any] | None = None) -> Costs:
    """The model's constants from one run of this part.

    Parameters
    ----------
    kernel
        What the part retrieval-gpu measured on the same machine. A GPU does a pair so fast that the host's work on
        the lists hides it at all lengths measured here, so its price is taken from the kernel alone.
    """
    retrieval, network, prediction = (scaling[name] for name in ("retrieval", "network", "prediction"))
    seconds = [item["seconds"] for item in retrieval]
    pairs = [item["pairs"] for item in retrieval]
    others = [[1.0] * len(retrieval), [entries(item["n_windows"]) for item in retrieval]]
    if kernel is None:
        call_s, entry_s, pair_s = fit([*others, pairs], seconds)
    else:
        n = kernel["n_windows"]
        pair_s = kernel["ours_ms"] / 1e3 / (n * (n - 1) / 2)
        rest = [
            max(second - many * pair_s, 0.1 * second) for second, many in zip(seconds, pairs, strict=True)
        ]
        call_s, entry_s = fit(others, rest)
    batch_s, network_s = fit(
        [[1.0] * len(network), [item["batch"] for item in network]], [item["seconds"] for item in network]
    )
    launch_s = call_s if kernel is None else 0.0  # short series of a GPU share one launch
    searched = [
        item["pairs"] * pair_s
        + item["channels"] * (launch_s + entries(item["n_windows"] // item["channels"]) * entry_s)
        for item in prediction
    ]
    rest = [max(item["seconds"] - part, 0.0) for item, part in zip(prediction, searched, strict=True)]
    largest = prediction[-1]
    return Costs(
        call_s=call_s,
        pair_s=pair_s,
        entry_s=entry_s,
        batch_s=batch_s,
        network_s=network_s,
        window_s=max(rest[-1] / largest["n_windows"], network_s),
        evidence_bytes=largest["evidence_bytes"] / largest["n_windows"],
    )


def entries(n_windows: int, bank_size: int | None = None, n_neighbors: int = N_NEIGHBORS) -> float:
    """How often a list of neighbours is changed: n m (1 + ln(b / m)), where b windows are met in no order.

    The k-th window that is met is among the best m so far with probability m / k.

    >>> entries(10), round(entries(3_796) / 3_796)
    (100.0, 69)
    """
    bank = min(n_windows, bank_size or n_windows)
    return n_windows * n_neighbors * (1 + math.log(max(bank / n_neighbors, 1.0)))


def terms_of_retrieval(cases: Sequence[dict[str, Any]]) -> dict[str, float]:
    """What retrieval costs on the CPU, split up.

    seconds = call + samples x d + pairs x (2 stride x a + b + L x c) + entries x e

    a: one multiply-add of the recurrence; b: what every pair costs besides (scaling, comparing with the lists);
    c: full products at the edges of tiles, where the recurrence starts anew; d: means, norms and layout; e: one
    change of a list.
    """
    if len(cases) < len(TERMS):
        return {}
    found = fit(
        [[values[term] for values in map(_amounts, cases)] for term in TERMS],
        [case["ours"]["seconds"] for case in cases],
    )
    return dict(zip(TERMS, found, strict=True))


def modelled_seconds(terms: dict[str, float], case: dict[str, Any]) -> float:
    """What the terms say about one case."""
    return sum(terms[term] * amount for term, amount in _amounts(case).items())


def _amounts(case: dict[str, Any]) -> dict[str, float]:
    pairs = float(case["pairs"])
    amounts = (1.0, case["n_samples"], pairs * 2 * case["stride"], pairs, pairs * case["window_length"])
    return dict(zip(TERMS, (*amounts, entries(case["n_windows"])), strict=True))


@dataclass(frozen=True)
class Archive:
    """Recordings of many patients, all of one shape, pooled as the paper does."""

    n_patients: int = 10_000
    n_channels: int = 100
    hours: float = 24.0
    rate: float = 1_000.0
    pool_length: int = 24
    pool_stride: int = 12
    window_length: int = WINDOW_LENGTH
    stride: int = STRIDE

    @property
    def n_series(self) -> int:
        """Channels of all patients."""
        return self.n_patients * self.n_channels

    @property
    def windows_per_series(self) -> int:
        """Of one channel.

        >>> Archive(hours=300 / 3600).windows_per_series
        4796
        """
        n_samples = round(self.hours * 3600 * self.rate)
        pooled = (n_samples - self.pool_length) // self.pool_stride + 1
        return n_windows_of(pooled, self.window_length, self.stride)


def pairs_within(n_windows: int, bank_size: int | None) -> int:
    """Every two windows once that are compared: all, or those at most half a bank apart where there are more.

    >>> pairs_within(5, None), pairs_within(5, 2), pairs_within(5, 5)
    (10, 4, 10)
    """
    reach = n_windows - 1 if bank_size is None or n_windows <= bank_size else bank_size // 2
    return reach * n_windows - reach * (reach + 1) // 2


def archive_cost(
    costs: Costs, archive: Archive, *, bank_size: int | None = None, workers: float = 1.0
) -> dict[str, float]:
    """Hours to predict an archive with evidence, by the model.

    Parameters
    ----------
    bank_size
        Windows of a local bank; None compares all windows of a channel with one another.
    workers
        How many times the machine of ``costs``: 64 for 64 GPUs, 0.5 for one core where two were measured.
        Channels are independent of each other, so nothing is lost between workers.

    Returns
    -------
    ``search_hours`` (retrieval), ``window_hours`` (all else), ``hours`` (both), ``n_windows``, ``pairs``, and
    ``evidence_tb`` on disk.
    """
    n_windows = archive.windows_per_series
    pairs = pairs_within(n_windows, bank_size)
    listed = entries(n_windows, bank_size)
    search_s = archive.n_series * (costs.call_s + pairs * costs.pair_s + listed * costs.entry_s) / workers
    window_s = archive.n_series * n_windows * costs.window_s / workers
    return {
        "n_windows": float(archive.n_series * n_windows),
        "pairs": float(archive.n_series * pairs),
        "search_hours": search_s / 3600,
        "window_hours": window_s / 3600,
        "hours": (search_s + window_s) / 3600,
        "evidence_tb": archive.n_series * n_windows * costs.evidence_bytes / 1e12,
    }
