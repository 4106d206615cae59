"""PPV features of fixed kernels (MiniROCKET): the share of places at which a kernel is above a threshold.

    x (batch, n_rows, length), cuts (n_groups, 84, n_cuts) -> shares (batch, n_groups, 84, n_cuts)

The 84 kernels have nine taps, three of them 2 and six -1, so they see shape and not level. A group is a row of x
and a distance between taps. Nothing here is learned: `fitted_cuts` takes thresholds from some training windows,
and what is made of the shares is the network's part. `plain_shares` is the definition; `shares` takes a faster way
to the same numbers: compiled loops on a CPU, a kernel of our own on a GPU (ppv.cu).

After Dempster, Schmidt and Webb, "MiniRocket", KDD 2021. Next: multiview.py is what it is for.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterator
from importlib import resources
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from raxss._core.threads import compiled, run_on_threads

logger = logging.getLogger("raxss")

Floats = NDArray[np.float32]

N_TAPS = 9
TRIOS = tuple(combinations(range(N_TAPS), 3))  # which taps of a kernel are 2
N_KERNELS = len(TRIOS)  # 84
LONGEST = 65_535  # a count has 16 bits on the GPU
PLACES_OF_A_WARP = 256  # as in ppv.cu
PLACES_AT_ONCE = 2**16  # in torch, so that the outputs of all kernels fit into memory
SAMPLES_OF_A_TASK = 4096  # that a thread takes at a time
N_PLACES = 4096  # that a kernel's thresholds are taken from, at least
LEAST_CAPABILITY = (8, 0)  # sums over a warp in one instruction


def spread_dilations(length: int, n_most: int) -> list[int]:
    """Distances between taps, evenly on a logarithmic scale, up to kernels as long as the window; none twice."""
    longest = max((length - 1) / (N_TAPS - 1), 1.0)
    return sorted({int(longest ** (k / max(n_most - 1, 1)) + 1e-9) for k in range(n_most)})


def shares(x: Tensor, rows: Tensor, dilations: Tensor, cuts: Tensor) -> Tensor:
    """Shares ``(batch, n_groups, 84, n_cuts)`` of places at which each kernel is above each of its thresholds.

    share[g, k, q] = mean over t of [sum over j of kernel_k[j] · x[row_g, t + (j - 4) · dilation_g] > cut[g, k, q]]

    Samples outside of the window count as 0. The result is float32, without a gradient.

    Examples
    --------
    A lone spike is seen by the taps on it:

    >>> x = torch.zeros(1, 1, 10)
    >>> x[0, 0, 5] = 1.0
    >>> group = torch.zeros(1, dtype=torch.int32)
    >>> shares(x, group, group + 1, torch.zeros(1, 84, 1))[0, 0, :2, 0]  # at three places of ten
    tensor([0.3000, 0.3000])
    """
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        x, cuts = x.detach().float().contiguous(), cuts.float().contiguous()
        if x.device.type == "cpu":
            return on_threads(_shares_of_windows, x, rows, dilations, cuts, shape=cuts.shape)
        if x.device.type == "cuda" and x.shape[2] <= LONGEST and len(x):
            kernel = _kernel(x.device, -(-cuts.shape[2] // 2))
            if kernel is not None:
                return _on_gpu(kernel, x, rows, dilations, cuts)
        return plain_shares(x, rows, dilations, cuts)


def plain_shares(x: Tensor, rows: Tensor, dilations: Tensor, cuts: Tensor) -> Tensor:
    """The same in torch, some windows at a time."""
    groups = list(zip(rows.tolist(), dilations.tolist(), cuts, strict=True))
    length, found = x.shape[2], []
    every = torch.tensor(length, device=x.device)  # a GPU would take a bare number's reciprocal, a bit off
    for some in x.split(max(PLACES_AT_ONCE // length, 1)):
        for row, dilation, cut in groups:
            above = responses(taps(some[:, row], dilation))[:, None] > cut[:, :, None, None]
            found.append(above.sum(dim=-1) / every)  # (84, n_cuts, some windows)
    by_window = [torch.stack(found[k : k + len(groups)]) for k in range(0, len(found), len(groups))]
    return torch.cat(by_window, dim=-1).movedim(-1, 0)


def of_places_present(found: Tensor, present: Tensor, dilations: list[int], *, otherwise: Tensor) -> Tensor:
    """Shares of the places whose nine taps are all present, from `shares` of rows with NaN where missing.

    Parameters
    ----------
    found
        ``(batch, n_groups, 84, n_cuts)``: a place with a missing tap is above no threshold there, and counts.
    present
        ``(batch, 1, length)`` of 1 and 0.
    dilations
        Of each group.
    otherwise
        In place of shares where no place is whole; broadcast to ``(n_groups, 84, n_cuts)``.
    """
    length, lines = present.shape[2], 1 - present[:, 0].float()
    whole = {step: (taps(lines, step).sum(dim=0) == 0).sum(dim=1) for step in set(dilations)}  # (batch,)
    n_whole = torch.stack([whole[step] for step in dilations], dim=1)[:, :, None, None]
    known = found * (length / n_whole.clamp_min(1))
    return torch.where(n_whole > 0, known, otherwise.to(known))


def taps(lines: Tensor, dilation: int) -> Tensor:
    """Samples under the nine taps of a kernel at each place, ``(n, length)`` -> ``(9, n, length)``."""
    reach, length = N_TAPS // 2 * dilation, lines.shape[1]
    padded = functional.pad(lines, (reach, reach))
    return torch.stack([padded[:, j * dilation : j * dilation + length] for j in range(N_TAPS)])


def responses(near: Tensor) -> Tensor:
    """Outputs of the 84 kernels where their taps are on these samples, ``(9, ...)`` -> ``(84, ...)``.

    Three taps are 2 and six are -1: 3 (x_a + x_b + x_c) - (x_0 + ... + x_8), added up in this order here and on
    both faster paths, so that all give the same bits.

    >>> responses(torch.eye(9))[0]  # the first kernel has its three at the beginning
    tensor([ 2.,  2.,  2., -1., -1., -1., -1., -1., -1.])
    """
    first, second, third = near[torch.tensor(TRIOS, device=near.device).T]
    everything = functools.reduce(torch.add, near)
    return torch.add(-everything, first + second + third, alpha=3)


def fitted_cuts(x: Tensor, rows: Tensor, dilations: Tensor, n_cuts: int) -> Tensor:
    """Thresholds ``(n_groups, 84, n_cuts)`` at quantiles of the outputs of the kernels on these windows.

    The quantiles are a low-discrepancy sequence over all kernels, so that those of neighbouring kernels differ.
    """
    ranks = (
        torch.arange(1, len(rows) * N_KERNELS * n_cuts + 1, dtype=torch.float64) * (math.sqrt(5) + 1) / 2 % 1
    )
    ranks = ranks.view(len(rows), N_KERNELS, n_cuts).to(x.device)
    every = max(x.shape[0] * x.shape[2] // N_PLACES, 1)
    found = []
    for row, dilation, rank in zip(rows.tolist(), dilations.tolist(), ranks, strict=True):
        outputs = responses(taps(x[:, row].float(), dilation).flatten(1)[:, ::every])  # (84, some places)
        n_known = (outputs.shape[1] - outputs[0].isnan().sum()).clamp_min(
            1
        )  # missing samples are sorted last
        places = (rank * (n_known - 1)).round().long()
        found.append(_sorted(outputs).gather(1, places).nan_to_num(0.0))
    return torch.stack(found)


def _sorted(rows: Tensor) -> Tensor:
    """Each row in ascending order, NaN last; numpy's vectorised sort takes a tenth of torch's time on a CPU."""
    if rows.device.type != "cpu":
        return rows.sort(dim=1).values
    return torch.from_numpy(np.sort(rows.numpy(), axis=1))


def on_threads(loop: Callable[..., None], x: Tensor, *arguments: Tensor, shape: tuple[int, ...]) -> Tensor:
    """What a compiled loop writes, ``(batch, *shape)`` in float32, some windows to a thread at a time.

    ``loop(windows, *arguments, found)`` gets some of the windows ``(batch, n_rows, length)``, and their part of it.
    """
    found = np.empty((len(x), *shape), np.float32)
    values, *others = (item.numpy() for item in (x, *arguments))
    n = max(SAMPLES_OF_A_TASK // x.shape[2], 1)
    pending = iter(range(0, len(x), n))

    def work() -> Iterator[None]:
        for k in pending:
            loop(values[k : k + n], *others, found[k : k + n])
            yield

    run_on_threads(work, n_tasks=-(-len(x) // n))
    return torch.from_numpy(found)


@compiled
def _shares_of_windows(
    x: Floats,  # (n_windows, n_rows, length)
    rows: NDArray[np.int32],  # (n_groups,)
    dilations: NDArray[np.int32],  # (n_groups,)
    cuts: Floats,  # (n_groups, 84, n_cuts)
    shares: Floats,  # (n_windows, n_groups, 84, n_cuts) out
) -> None:
    """`plain_shares`, with the same sums in the same order.

    A window stays in the nearest cache while every kernel passes over it, and the output of a kernel is never
    stored: it is compared with four thresholds as it comes.
    """
    length = x.shape[2]
    margin = 4 * dilations.max()
    padded = np.zeros(length + 2 * margin, np.float32)
    everything, two = np.empty(length, np.float32), np.empty(length, np.float32)
    for window in range(len(x)):
        for group in range(len(rows)):
            reach = dilations[group]
            begin = margin - 4 * reach
            padded[margin : margin + length] = x[window, rows[group]]
            everything[:] = 0
            for tap in range(9):
                near = padded[begin + tap * reach : begin + tap * reach + length]
                for t in range(length):
                    everything[t] += near[t]
            kernel = 0
            for a in range(9):
                first = padded[begin + a * reach : begin + a * reach + length]
                for b in range(a + 1, 9):
                    second = padded[begin + b * reach : begin + b * reach + length]
                    for t in range(length):
                        two[t] = first[t] + second[t]
                    for c in range(b + 1, 9):
                        third = padded[begin + c * reach : begin + c * reach + length]
                        _count(two, third, everything, cuts[group, kernel], shares[window, group, kernel])
                        kernel += 1


@compiled
def _count(two: Floats, third: Floats, everything: Floats, cuts: Floats, shares: Floats) -> None:
    """Shares ``(n_cuts,)`` of one kernel; where no four thresholds are left, the last stands in for the others."""
    length, last = len(two), len(cuts) - 1
    for at in range(0, len(cuts), 4):
        i, j, k = min(at + 1, last), min(at + 2, last), min(at + 3, last)
        p, q, r, s = cuts[at], cuts[i], cuts[j], cuts[k]
        above_p = above_q = above_r = above_s = np.int32(0)
        for t in range(length):
            output = np.float32(3) * (two[t] + third[t]) - everything[t]
            # 32 bits throughout, or half as many fit into a register
            above_p = np.int32(above_p + np.int32(output > p))
            above_q = np.int32(above_q + np.int32(output > q))
            above_r = np.int32(above_r + np.int32(output > r))
            above_s = np.int32(above_s + np.int32(output > s))
        shares[k] = np.float32(above_s) / np.float32(length)
        shares[j] = np.float32(above_r) / np.float32(length)
        shares[i] = np.float32(above_q) / np.float32(length)
        shares[at] = np.float32(above_p) / np.float32(length)


def _on_gpu(kernel: Any, x: Tensor, rows: Tensor, dilations: Tensor, cuts: Tensor) -> Tensor:  # GPU only
    """By ppv.cu, a block for each window and group."""
    n_windows, n_rows, length = x.shape
    n_cuts = cuts.shape[2]
    cuts = functional.pad(cuts, (0, n_cuts % 2), value=math.inf)  # they are counted in pairs
    found = torch.empty((n_windows, *cuts.shape), device=x.device)
    warps = min(-(-length // PLACES_OF_A_WARP), 4)
    with torch.cuda.device(x.device):
        kernel(
            grid=(n_windows, len(rows), 1),
            block=(32 * warps, 1, 1),
            args=[x, rows, dilations, cuts, found, n_rows, len(rows), length],
        )
    return found[..., :n_cuts]


@functools.cache
def _kernel(device: torch.device, pairs: int) -> Any:  # GPU only
    """ppv.cu for so many pairs of thresholds, or None where it cannot be compiled; logged once."""
    try:
        if torch.version.hip is not None or torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
            raise RuntimeError(f"{torch.cuda.get_device_name(device)} lacks an instruction")
        source = resources.files("raxss.method.backbones").joinpath("ppv.cu").read_text(encoding="utf-8")
        with torch.cuda.device(device):
            return torch.cuda._compile_kernel(source, "shares", nvcc_options=[f"-DPAIRS={pairs}"])
    except Exception as error:  # the compiler, the driver or their versions: torch raises what it finds
        logger.warning("shares are counted in torch, which is many times as slow: %s", error)
        return None
