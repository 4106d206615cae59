"""The support of a bounded bank beside the exact one.

    signals -> exact support, support with a local and a sampled bank of 1/2, 1/8 and 1/32 of the windows

    python -m benchmarks bank

A made recording that changes its state as a long one does, and the longest real clips at hand, if they are. Banks
are judged by what the method uses: the support of each window, its rank among the others, and who is listed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.stats import spearmanr

from benchmarks.common import SEED, timed
from raxss.method.retrieval import Retrieval, retrieve

CLIP = Path(__file__).parents[2] / "shared" / "data" / "ds003029-pt01" / "pt01_seizure1_14ch_-10s_+20s.npz"
SHARES = (2, 8, 32)  # of the windows: a half, an eighth, a thirty-second
STRIDE, N_NEIGHBORS = 5, 10


def run() -> dict[str, Any]:
    """Every signal, exclusion and bank; the differences are means and maxima over all windows of the signals."""
    signals = {"made, 300,000 samples": ([long_recording(300_000)], 1024)}
    if CLIP.is_file():
        with np.load(CLIP) as clip:
            signals["ECoG, 14 channels of 30,001 samples"] = (list(clip["data"]), 256)
    rows = [
        row
        for name, (several, length) in signals.items()
        for exclusion in (0, length // 2)
        for row in compare_banks(name, several, length, exclusion)
    ]
    return {"stride": STRIDE, "n_neighbors": N_NEIGHBORS, "rows": rows}


def compare_banks(
    name: str, several: list[NDArray[np.float64]], length: int, exclusion: int
) -> list[dict[str, Any]]:
    """One row for each kind and size of bank, over several series."""
    chosen: dict[str, Any] = {"window_length": length, "stride": STRIDE, "n_neighbors": N_NEIGHBORS}
    exact_seconds, exact = timed(lambda: [retrieve(item, exclusion=exclusion, **chosen) for item in several])
    rows = []
    for bank in ("local", "sampled"):
        for share in SHARES:
            size = exact[0].n_windows // share
            chosen_bank: dict[str, Any] = {"bank": bank, "bank_size": size, "exclusion": exclusion}
            seconds, found = timed(lambda: [retrieve(item, **chosen_bank, **chosen) for item in several])  # noqa: B023
            figures = [_difference(item, other) for item, other in zip(found, exact, strict=True)]
            rows.append(
                {"signal": name, "window_length": length, "exclusion": exclusion}
                | {"n_windows": exact[0].n_windows, "bank": bank, "share": 1 / share, "bank_size": size}
                | {key: float(np.mean([figure[key] for figure in figures])) for key in figures[0]}
                | {"largest_difference": max(figure["largest_difference"] for figure in figures)}
                | {"seconds": seconds, "exact_seconds": exact_seconds}
            )
    return rows


def _difference(found: Retrieval, exact: Retrieval) -> dict[str, float]:
    """Support apart, order of supports, and share of the exact neighbors that are listed."""
    apart = np.abs(found.support - exact.support)
    listed = (found.neighbors[:, :, np.newaxis] == exact.neighbors[:, np.newaxis, :]).any(axis=1)
    return {
        "mean_difference": float(apart.mean()),
        "largest_difference": float(apart.max()),
        "identical_neighbors": float(listed[exact.neighbors >= 0].mean()),
        "rank_correlation": float(spearmanr(found.support, exact.support).statistic),
    }


def long_recording(n_samples: int, seed: int = SEED) -> NDArray[np.float64]:
    """A signal in states that last and come back, as vigilance does, with the same event now and then.

    Each state is noise with a resonance of its own; loudness drifts; the event has one shape and many sizes.
    """
    rng = np.random.default_rng(seed)
    rates = np.array([3.0, 6.0, 10.0, 14.0, 22.0]) / 250  # of the resonances, in cycles a sample
    pieces: list[NDArray[np.float64]] = []
    while sum(map(len, pieces)) < n_samples:
        rate, width = rng.choice(rates) * rng.normal(1, 0.03), rng.uniform(0.94, 0.985)
        noise = rng.normal(size=int(rng.uniform(2_000, 20_000)))
        pieces.append(lfilter([1.0 - width], [1.0, -2 * width * np.cos(2 * np.pi * rate), width**2], noise))
        pieces[-1] /= pieces[-1].std()
    samples = np.concatenate(pieces)[:n_samples]
    samples *= np.exp(0.5 * np.sin(np.arange(n_samples) / 40_000))
    place = np.arange(160)
    event = (np.exp(-(((place - 40) / 6) ** 2)) - 0.5 * np.exp(-(((place - 90) / 30) ** 2))) * 6
    for start in rng.integers(0, n_samples - 160, n_samples // 4_000):
        samples[start : start + 160] += rng.uniform(0.5, 1.5) * event
    return samples + 0.3 * rng.normal(size=n_samples).cumsum() / 10
