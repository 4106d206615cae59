"""What every part shares: the signal, the machine, how work is timed, how results are written and told.

    part -> {"part", "date", "machine", "settings", "seed", "seconds", "results"}

A result file names hardware and versions but neither host nor folder, so that it can be committed as it is.
Next: peaks.py, what the machine could do at best.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEED = 69421
RESULTS = Path(__file__).parent / "results"
PACKAGES = ("numpy", "numba", "torch", "triton", "faiss-cpu", "usearch", "stumpy", "raxss")


class Disagreement(AssertionError):
    """Two contenders gave different answers, so their times must not be compared."""


def make_signal(n_samples: int, seed: int = SEED) -> NDArray[np.float64]:
    """A random walk with drifting oscillations and a little noise, at 256 samples a second."""
    rng = np.random.default_rng(seed)
    seconds = np.arange(n_samples) / 256
    phase = rng.normal(size=n_samples).cumsum() * 0.02
    walk = rng.normal(size=n_samples).cumsum() * 0.3
    waves = 5 * np.sin(2 * np.pi * 9 * seconds + phase) + 3 * np.sin(2 * np.pi * 3.3 * seconds - phase)
    return walk + waves + rng.normal(size=n_samples)


def timed(work: Callable[[], Any], device: str = "cpu") -> tuple[float, Any]:
    """Wall seconds of one call, and what it returned; a GPU is waited for on both sides."""
    _wait_for(device)
    begin = time.perf_counter()
    result = work()
    _wait_for(device)
    return time.perf_counter() - begin, result


def median_seconds(work: Callable[[], Any], *, n_repeats: int, device: str = "cpu") -> float:
    """Median of several calls after one that is not counted."""
    timed(work, device)
    return statistics.median(timed(work, device)[0] for _ in range(n_repeats))


def peak_added(work: Callable[[], Any]) -> tuple[int, Any]:
    """How far the memory of this process rose above where it was, in bytes, and what the call returned.

    Meant for a process of its own. Where Linux tells, the peak is that of this program and of this call alone:
    the peak in `resource` starts at that of the process that started this one.
    """
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not status.exists():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = work()
        unit = 1 if sys.platform == "darwin" else 1024
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit, result
    with suppress(OSError):
        reset.write_text("5")  # the peak is now what is held now
    before = _kilobytes(status, "VmRSS")
    result = work()
    return (_kilobytes(status, "VmHWM") - before) * 1024, result


def _kilobytes(status: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(name))


def _wait_for(device: str) -> None:
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize()


def n_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_name(device: str) -> str:
    """The folder of this machine's results: ``cpu2`` for two cores, ``h200`` for that GPU.

    >>> machine_name("cpu").startswith("cpu")
    True
    """
    if device == "cpu":
        return f"cpu{n_cores()}"
    import torch

    return short_gpu_name(torch.cuda.get_device_name(device))


def short_gpu_name(name: str) -> str:
    """The model of a GPU as a folder name.

    >>> short_gpu_name("NVIDIA H200"), short_gpu_name("NVIDIA GeForce RTX 4090"), short_gpu_name("Tesla T4")
    ('h200', 'rtx-4090', 't4')
    """
    words = re.findall(r"[a-z0-9]+", name.lower())
    return "-".join(word for word in words if word not in ("nvidia", "geforce", "tesla")) or "gpu"


def machine() -> dict[str, Any]:
    """Hardware, versions and load, without anything that names the host."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    if versions["raxss"] == "not installed":  # run from a source tree
        versions["raxss"] = str(__import__("raxss").__version__)
    return {
        "cpu": _cpu_model(),
        "cores": n_cores(),
        "memory_gb": _memory_gb(),
        "gpu": _gpu(),
        "system": f"{platform.system()} {platform.machine()}",
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "versions": versions,
    }


def _cpu_model() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def cpu_flags() -> set[str]:
    """What instructions the processor says it has; empty where the system does not tell."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    return set(next((line.split(":", 1)[1] for line in lines if line.startswith("flags")), "").split())


def _memory_gb() -> float | None:
    if not hasattr(os, "sysconf"):
        return None
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def _gpu() -> dict[str, Any] | None:
    """Name, memory and driver of the first GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    known = torch.cuda.get_device_properties(0)
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        driver = "unknown"
    return {
        "name": known.name,
        "memory_gb": round(known.total_memory / 2**30, 1),
        "driver": driver,
        "cuda": torch.version.cuda,
    }


def recorded(part: str, device: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run one part and wrap what it measured with date, machine and duration."""
    here = machine()  # before the part itself raises the load
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    begin = time.perf_counter()
    results = run()
    return {
        "part": part,
        "device": device,
        "date": today,
        "seconds": round(time.perf_counter() - begin, 1),
        "seed": SEED,
        "machine": here,
        "results": results,
    }


def tell(text: str) -> None:
    """A line about progress, on stderr: tables go to stdout."""
    print(text, file=sys.stderr, flush=True)


def number(value: Any) -> str:
    """A figure with three digits that count, and commas in large ones; other things as they are.

    >>> number(39796), number(0.99512), number(1234.5), number(3.2e-9), number(True), number(None)
    ('39,796', '0.995', '1,234', '3.2e-09', 'yes', '')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e15:
        return f"{value:.2g}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table, padded so that it also reads in a terminal.

    >>> print(table(["", "s"], [["ours", 1.0], ["theirs", 20]]))
    |        | s   |
    |--------|-----|
    | ours   | 1   |
    | theirs | 20  |
    """
    cells = [[str(item) for item in header]] + [[number(item) for item in row] for row in rows]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)
