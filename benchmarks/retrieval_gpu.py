"""Retrieval on a GPU beside a matrix product and topk, and beside the limits of the device.

    python -m benchmarks.retrieval_gpu

One series of 200,000 samples (L = 1024, stride 5, top 10: 39,796 windows), with the data on the device: torch in
tf32, torch in float64, and the fused kernel, in turn; then the same from samples to lists, end to end. A hundred
series of 25,000 samples in one launch, against one by one. Errors against float64 brute force on signals that are
hard to sum. Two floors: the bytes that must move over the rate of a copy, and the operations over the rate of the
float64 matrix units, on which the kernel runs; what the plain units would need stands beside it.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.common import SEED, Disagreement, make_signal, median_seconds, tell
from raxss.method.retrieval import retrieve
from raxss.method.retrieval.cuda_layout import Layout, lay_out_on
from raxss.method.retrieval.cuda_plan import plan
from raxss.method.retrieval.front import plan_search, retrieve_many
from raxss.method.retrieval.on_cuda import anchors_products, launch
from raxss.method.retrieval.on_torch import nearest_by_products
from raxss.method.retrieval.search import Search

SETTINGS: dict[str, Any] = {"window_length": 1024, "stride": 5, "n_neighbors": 10}
N_SAMPLES, N_SERIES, SERIES_SAMPLES = 200_000, 100, 25_000
REPEATS = 9

_CHAINS = """
extern "C" __global__ void chains(const REAL* start, REAL* out, int n) {
    REAL x = start[threadIdx.x & 31], sums[8];
    for (int k = 0; k < 8; ++k) sums[k] = x + k;
    for (int i = 0; i < n; ++i)
        for (int k = 0; k < 8; ++k) sums[k] = sums[k] * (REAL)0.999 + x;
    REAL total = 0;
    for (int k = 0; k < 8; ++k) total += sums[k];
    out[blockIdx.x * blockDim.x + threadIdx.x] = total;
}
"""

# The same on the matrix units. An instruction of 16 rows, 8 columns and 4 factors, or two of 8 rows where there is
# none of 16 (compute capability below 9.0): 512 multiply-adds of a warp.
_MATRIX_CHAINS = """
extern "C" __global__ void chains(const double* start, double* out, int n) {
    double a = start[threadIdx.x & 31], b = start[(threadIdx.x + 9) & 31], sums[8][4];
    for (int k = 0; k < 8; ++k)
        for (int part = 0; part < 4; ++part) sums[k][part] = a * part + k;
    for (int i = 0; i < n; ++i)
#pragma unroll
        for (int k = 0; k < 8; ++k) {
#if __CUDA_ARCH__ >= 900
            asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 "
                         "{%0, %1, %2, %3}, {%4, %4}, {%5}, {%0, %1, %2, %3};"
                         : "+d"(sums[k][0]), "+d"(sums[k][1]), "+d"(sums[k][2]), "+d"(sums[k][3])
                         : "d"(a), "d"(b));
#else
            for (int half = 0; half < 4; half += 2)
                asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                             : "+d"(sums[k][half]), "+d"(sums[k][half + 1])
                             : "d"(a), "d"(b));
#endif
        }
    double total = 0;
    for (int k = 0; k < 8; ++k)
        for (int part = 0; part < 4; ++part) total += sums[k][part];
    out[blockIdx.x * blockDim.x + threadIdx.x] = total;
}
"""


def run() -> dict[str, Any]:
    """Every figure, in milliseconds where no other unit is named; only with a CUDA device."""
    device = torch.device("cuda", torch.cuda.current_device())
    samples = make_signal(N_SAMPLES)
    search = search_of(samples)
    tell("retrieval on the GPU: one series")
    layout = lay_out_on(device, [search])
    unit = _unit_windows(samples, device)
    torch.backends.cuda.matmul.allow_tf32 = True
    times = _in_turn(
        {
            "torch_tf32_ms": lambda: _matmul_and_topk(unit),
            "torch_float64_ms": lambda: nearest_by_products(search, device),
            "ours_ms": _kernels(layout),
            "anchors_ms": _anchors_only(layout),
        }
    )
    torch.backends.cuda.matmul.allow_tf32 = False
    end_to_end = median_seconds(
        lambda: retrieve(samples, **SETTINGS, device="cuda"), n_repeats=REPEATS, device="cuda"
    )
    preparing = median_seconds(lambda: search_of(samples), n_repeats=REPEATS)
    tell("retrieval on the GPU: many series")
    many = _many(device)
    tell("retrieval on the GPU: hard signals")
    errors = {name: error_of(hard_signal) for name, hard_signal in hard_signals().items()}
    floors = _floors(search, device)
    return {
        **times,
        "end_to_end_ms": 1e3 * end_to_end,
        "preparing_on_the_cpu_ms": 1e3 * preparing,
        "n_windows": search.n_windows,
        "settings": SETTINGS,
        "many": many,
        "errors": errors,
        "error": max(errors.values()),
        "floors": floors,
        "share_of_float64_matrix_floor": floors["float64_matrix_ms"] / times["ours_ms"],
    }


def search_of(samples: NDArray[np.float64]) -> Search:
    """A series laid out for the search."""
    extra: dict[str, Any] = {
        "measure": "pearson",
        "exclusion": 0,
        "spread": 0,
        "bank": "series",
        "features": None,
    }
    return plan_search(samples, **SETTINGS, **extra).search


def _unit_windows(samples: NDArray[np.float64], device: torch.device) -> torch.Tensor:
    """All windows normalised in single precision, ``(n_windows, window_length)``."""
    windows = torch.from_numpy(samples - samples.mean()).to(device).float()
    windows = windows.unfold(0, SETTINGS["window_length"], SETTINGS["stride"])
    return torch.nn.functional.normalize(windows - windows.mean(dim=1, keepdim=True), dim=1)


def _matmul_and_topk(unit: torch.Tensor) -> None:
    for first in range(0, len(unit), 8192):
        (unit[first : first + 8192] @ unit.T).topk(SETTINGS["n_neighbors"], dim=1)


def _kernels(layout: Layout) -> Callable[[], None]:
    """All kernels of one launch, with everything on the device."""
    (tables,) = plan(layout, 2**40)
    shape = layout.n_places, layout.searches[0].n_neighbors
    keys = torch.zeros(shape, dtype=torch.int64, device=layout.phases.device)
    return lambda: launch(layout, tables, keys)


def _anchors_only(layout: Layout) -> Callable[[], object]:
    (tables,) = plan(layout, 2**40)
    return lambda: anchors_products(layout, tables)


def _in_turn(contenders: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median milliseconds on the device, contenders alternating."""
    seen: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(REPEATS + 2):
        for name, work in contenders.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            work()
            end.record()
            torch.cuda.synchronize()
            if turn >= 2:
                seen[name].append(begin.elapsed_time(end))
    return {name: statistics.median(times) for name, times in seen.items()}


def _many(device: torch.device) -> dict[str, Any]:
    """Many short series: the kernel alone in one launch, and end to end, together and one by one."""
    series = [make_signal(SERIES_SAMPLES, SEED + which) for which in range(N_SERIES)]
    layout = lay_out_on(device, [search_of(item) for item in series])
    kernel = _in_turn({"kernel_ms": _kernels(layout)})
    together = median_seconds(
        lambda: retrieve_many(series, **SETTINGS, device="cuda"), n_repeats=3, device="cuda"
    )
    one_by_one = median_seconds(
        lambda: [retrieve(item, **SETTINGS, device="cuda") for item in series], n_repeats=2, device="cuda"
    )
    joint = retrieve_many(series[:5], **SETTINGS, device="cuda")
    for item, found in zip(series, joint, strict=False):
        if not np.array_equal(retrieve(item, **SETTINGS, device="cuda").neighbors, found.neighbors):
            raise Disagreement("a series searched together with others has other neighbors than alone")
    return {
        **kernel,
        "n_series": N_SERIES,
        "n_windows_each": layout.searches[0].n_windows,
        "end_to_end_ms": 1e3 * together,
        "one_by_one_ms": 1e3 * one_by_one,
    }


def hard_signals(n_samples: int = 20_000) -> dict[str, NDArray[np.float64]]:
    """Signals on which careless sums lose their digits."""
    rng = np.random.default_rng(SEED)
    noise = rng.normal(size=n_samples)
    loud = noise.copy()
    loud[n_samples // 4 : n_samples // 4 + 40] *= 1e6
    holes = noise.copy()
    holes[n_samples // 2 : n_samples // 2 + 3] = np.nan
    dead = noise.copy()
    dead[n_samples // 3 : n_samples // 3 + 3000] = 7.0
    return {
        "noise": noise,
        "random walk": noise.cumsum(),
        "offset 1e9": noise + 1e9,
        "drift": noise + np.linspace(0, 1e6, n_samples),
        "step 1e6": noise + 1e6 * (np.arange(n_samples) > n_samples // 2),
        "loud artefact 1e6": loud,
        "missing samples": holes,
        "dead stretch": dead,
        "exact ties": np.tile(rng.normal(size=200), n_samples // 200),
    }


def error_of(samples: NDArray[np.float64]) -> float:
    """Largest difference of a listed similarity from float64 brute force, rank by rank."""
    found = retrieve(samples, **SETTINGS, device="cuda")
    finite = np.nan_to_num(samples - np.nanmean(samples))
    windows = torch.from_numpy(finite).unfold(0, SETTINGS["window_length"], SETTINGS["stride"]).cuda()
    windows = windows - windows.mean(dim=1, keepdim=True)
    windows /= windows.norm(dim=1, keepdim=True)
    windows[torch.from_numpy(found.flat | found.nonfinite).cuda()] = 0.0
    exact = windows @ windows.T
    exact.fill_diagonal_(-torch.inf)
    exact[:, torch.from_numpy(found.nonfinite).cuda()] = -torch.inf
    best = exact.topk(SETTINGS["n_neighbors"], dim=1).values.cpu().numpy()
    shaped = ~found.nonfinite
    return float(np.abs(found.similarity - best)[shaped].max())


def _floors(search: Search, device: torch.device) -> dict[str, float]:
    """What no kernel of this recurrence can beat: bytes over the copy rate, operations over the measured rates."""
    n = search.n_windows
    n_bytes = search.samples.nbytes + n * search.n_neighbors * 16
    n_operations = 2.0 * (2 * search.stride) * n * n
    source = torch.empty(2**28, device=device)
    target = torch.empty_like(source)
    copy = 2 * source.nbytes / _best_seconds(lambda: target.copy_(source))
    float64 = _rate(_CHAINS.replace("REAL", "double"), torch.float64, 1, device)
    float32 = _rate(_CHAINS.replace("REAL", "float"), torch.float32, 1, device)
    float64_matrix = _rate(_MATRIX_CHAINS, torch.float64, 16, device)  # 512 of 32 threads
    return {
        "bytes": n_bytes,
        "copy_tb_per_s": copy / 1e12,
        "bytes_ms": 1e3 * n_bytes / copy,
        "operations": n_operations,
        "float64_matrix_tflops": float64_matrix / 1e12,
        "float64_tflops": float64 / 1e12,
        "float32_tflops": float32 / 1e12,
        "float64_matrix_ms": 1e3 * n_operations / float64_matrix,
        "float64_ms": 1e3 * n_operations / float64,
        "float32_ms": 1e3 * n_operations / float32,
        "float32_ms_of_plain_products": 1e3 * 2.0 * search.window_length * n * n / float32,
    }


def _rate(chains: str, kind: torch.dtype, n_at_once: int, device: torch.device) -> float:
    """Operations a second of 8 chains a thread, of ``n_at_once`` multiply-adds a step: each is two operations."""
    kernel = torch.cuda._compile_kernel(chains, "chains")
    n_blocks, n_steps = 16 * torch.cuda.get_device_properties(device).multi_processor_count, 4000
    start = torch.rand(32, dtype=kind, device=device)
    out = torch.empty(256 * n_blocks, dtype=kind, device=device)
    seconds = _best_seconds(
        lambda: kernel(grid=(n_blocks, 1, 1), block=(256, 1, 1), args=[start, out, n_steps])
    )
    return 2.0 * n_at_once * 8 * n_steps * 256 * n_blocks / seconds


def _best_seconds(work: Callable[[], object]) -> float:
    """The shortest of several calls, on the device's own clock."""
    shortest = float("inf")
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        shortest = min(shortest, begin.elapsed_time(end) / 1e3)
    return shortest


if __name__ == "__main__":
    if not torch.cuda.is_available():
        raise SystemExit("this part needs a CUDA device, and torch sees none on this machine.")
    print(json.dumps(run(), indent=2))
