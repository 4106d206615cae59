"""How fast is retrieval beside a blocked matrix product and topk?

    python -m benchmarks.retrieval [--samples 200000 --window-length 1024 --stride 5 --n-neighbors 10]

Every contender runs in a process of its own, in turn, several times: first on a small piece, so that nothing is
compiled or started while the clock runs, then on the whole series. Printed are medians, the peak memory of the
process, and what the search itself added to it. The contenders' lists are compared before any number is shown.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from raxss import storage
from raxss.retrieval import retrieve

FLOAT32_ERROR = 2e-5  # how far two honest answers may differ when one of them is in single precision


def make_signal(n_samples: int, seed: int = 69421) -> NDArray[np.float64]:
    """A random walk with drifting oscillations and a little noise, at 256 samples a second."""
    rng = np.random.default_rng(seed)
    seconds = np.arange(n_samples) / 256
    phase = rng.normal(size=n_samples).cumsum() * 0.02
    walk = rng.normal(size=n_samples).cumsum() * 0.3
    waves = 5 * np.sin(2 * np.pi * 9 * seconds + phase) + 3 * np.sin(2 * np.pi * 3.3 * seconds - phase)
    return walk + waves + rng.normal(size=n_samples)


def by_raxss(samples: NDArray[np.float64], settings: argparse.Namespace) -> NDArray[np.float64]:
    return retrieve(
        samples,
        window_length=settings.window_length,
        stride=settings.stride,
        n_neighbors=settings.n_neighbors,
        exclusion=settings.exclusion,
    ).similarity


def by_torch(samples: NDArray[np.float64], settings: argparse.Namespace) -> NDArray[np.float64]:
    """All windows normalised once in single precision, then a block of rows at a time."""
    windows = (
        torch.from_numpy(samples - samples.mean()).float().unfold(0, settings.window_length, settings.stride)
    )
    windows = windows - windows.mean(dim=1, keepdim=True)
    windows = torch.nn.functional.normalize(windows, dim=1)
    starts = torch.arange(len(windows)) * settings.stride
    found = torch.empty(len(windows), settings.n_neighbors)
    for first in range(0, len(windows), 1024):
        rows = slice(first, first + 1024)
        block = windows[rows] @ windows.T
        reach = settings.exclusion // settings.stride
        band = slice(max(first - reach, 0), first + 1024 + reach)
        near = (starts[rows, None] - starts[None, band]).abs() <= settings.exclusion
        block[:, band].masked_fill_(near, -torch.inf)
        found[rows] = block.topk(settings.n_neighbors, dim=1).values
    return found.double().numpy()


CONTENDERS: dict[str, Callable[[NDArray[np.float64], argparse.Namespace], NDArray[np.float64]]] = {
    "raxss": by_raxss,
    "blocked torch": by_torch,
}


def run_one(settings: argparse.Namespace) -> None:
    """In the contender's own process: warm up, search, report."""
    search = CONTENDERS[settings.contender]
    samples = make_signal(settings.samples)
    search(samples[: 20 * settings.window_length], settings)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin, begin_cpu = time.perf_counter(), time.process_time()
    similarity = search(samples, settings)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    np.save(settings.lists, similarity)
    print(
        json.dumps(
            {"seconds": seconds, "cpu": cpu, "peak_mb": peak / 1024, "added_mb": (peak - before) / 1024}
        )
    )


def run_in_turn(arguments: list[str], n_repeats: int) -> dict[str, dict[str, float]]:
    """Medians of each contender; an error if their lists disagree."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{name}.npy" for name in CONTENDERS}
        for _ in range(n_repeats):
            for name in CONTENDERS:
                command = [sys.executable, "-m", "benchmarks.retrieval", *arguments]
                command += ["--contender", name, "--lists", str(files[name])]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                runs[name].append(json.loads(output.splitlines()[-1]))
        ours, theirs = (np.load(file) for file in files.values())
    difference = float(np.abs(ours - theirs).max())
    if ours.shape != theirs.shape or not difference <= FLOAT32_ERROR:
        raise SystemExit(f"the contenders disagree: similarities differ by up to {difference:.2g}")
    medians = {
        name: {key: statistics.median(run[key] for run in one) for key in one[0]}
        for name, one in runs.items()
    }
    return {**medians, "agreement": {"largest_difference": difference}}


def machine() -> dict[str, Any]:
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(
            (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model
        )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "torch": torch.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--window-length", type=int, default=1024)
    parser.add_argument("--stride", type=int, default=5)
    parser.add_argument("--n-neighbors", type=int, default=10)
    parser.add_argument("--exclusion", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--lists", type=Path, help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.contender:
        run_one(settings)
        return
    names = ("samples", "window_length", "stride", "n_neighbors", "exclusion")
    chosen = {name: getattr(settings, name) for name in names}
    arguments = [
        word for name, value in chosen.items() for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    here = machine()
    results = run_in_turn(arguments, settings.repeats)
    n_windows = (settings.samples - settings.window_length) // settings.stride + 1
    print(", ".join(f"{name} {value}" for name, value in chosen.items()), f"-> {n_windows} windows")
    print(", ".join(f"{name} {value}" for name, value in here.items()))
    print(f"{'':16}{'wall s':>9}{'cpu s':>9}{'peak MB':>9}{'added MB':>10}")
    for name in CONTENDERS:
        one = results[name]
        print(f"{name:16}{one['seconds']:9.2f}{one['cpu']:9.2f}{one['peak_mb']:9.0f}{one['added_mb']:10.0f}")
    ratio = results["blocked torch"]["seconds"] / results["raxss"]["seconds"]
    print(f"raxss is {ratio:.1f} times as fast; similarities differ by at most ", end="")
    print(f"{results['agreement']['largest_difference']:.1g} (the other is in single precision)")
    if settings.json:
        storage.write_json(settings.json, {"settings": chosen, "machine": here, "ratio": ratio, **results})


if __name__ == "__main__":
    main()
