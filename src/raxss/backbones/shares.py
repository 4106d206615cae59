"""On what share of a window's places is a fixed kernel above a threshold? MiniROCKET's question, window by window.

    x (batch, n_rows, length), cuts (n_groups, 84, n_cuts) -> shares (batch, n_groups, 84, n_cuts)

The 84 kernels have nine taps, three of them 2 and six -1, so they see shape and not level. A group is a row of x
and a distance between taps. Nothing here is learned: `fitted_cuts` takes thresholds from some training windows,
and what is made of the shares is the network's part. `plain_shares` is the definition; `shares` takes a faster way to the same
numbers: compiled loops on a CPU, a kernel of our own on a GPU.

After Dempster, Schmidt and Webb, "MiniRocket", KDD 2021. Next: multiview.py is what it is for.
"""

from __future__ import annotations

import functools
import logging
import math
from importlib import resources
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from raxss.backbones.shares_loops import shares_of_window
from raxss.compiled import each_on_threads

logger = logging.getLogger("raxss")

N_TAPS, N_KERNELS = 9, 84  # all ways to choose three of nine
LONGEST = 65_535  # a count has 16 bits on the GPU
PLACES_OF_A_WARP = 256  # as in shares.cu
N_SAID = 4096  # places that a kernel's thresholds are taken from, at least
LEAST_CAPABILITY = (8, 0)  # sums over a warp in one instruction


def kernels() -> Tensor:
    """``(84, 9)``: three taps are 2, the others -1.

    >>> kernels()[0]
    tensor([ 2.,  2.,  2., -1., -1., -1., -1., -1., -1.])
    >>> bool((kernels().sum(1) == 0).all())
    True
    """
    taps = torch.full((N_KERNELS, N_TAPS), -1.0)
    for kernel, three in enumerate(combinations(range(N_TAPS), 3)):
        taps[kernel, list(three)] = 2.0
    return taps


def spread_dilations(length: int, n_most: int) -> list[int]:
    """Distances between taps, evenly on a logarithmic scale, up to kernels as long as the window.

    >>> spread_dilations(1024, 8)
    [1, 2, 3, 7, 15, 31, 63, 127]
    """
    longest = max((length - 1) / (N_TAPS - 1), 1.0)
    return sorted({int(longest ** (k / max(n_most - 1, 1)) + 1e-9) for k in range(n_most)})


def shares(x: Tensor, rows: Tensor, dilations: Tensor, cuts: Tensor) -> Tensor:
    """Shares of places at which each kernel of each group is above each threshold.

    share[g, k, q] = mean over t of [sum over j of kernel_k[j] · x[row_g, t + (j - 4) · dilation_g] > cut[g, k, q]]

    Samples before the window and behind it count as 0.

    Parameters
    ----------
    x
        ``(batch, n_rows, length)``.
    rows, dilations
        ``(n_groups,)`` which row of x a group looks at, and the distance between its taps; int32.
    cuts
        Thresholds ``(n_groups, 84, n_cuts)``.

    Returns
    -------
    ``(batch, n_groups, 84, n_cuts)`` in float32, without a gradient.

    Examples
    --------
    A lone spike is seen by the taps that stand on it:

    >>> x = torch.zeros(1, 1, 10)
    >>> x[0, 0, 5] = 1.0
    >>> group = torch.zeros(1, dtype=torch.int32)
    >>> shares(x, group, group + 1, torch.zeros(1, 84, 1))[0, 0, :2, 0]  # at three places of ten
    tensor([0.3000, 0.3000])
    """
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        x = x.detach().float().contiguous()
        if x.device.type == "cpu":
            return _on_threads(x, rows, dilations, cuts)
        if x.device.type == "cuda" and x.shape[2] <= LONGEST and cuts.shape[2] % 2 == 0 and len(x):
            kernel = _kernel(x.device, cuts.shape[2] // 2)
            if kernel is not None:
                return _on_gpu(kernel, x, rows, dilations, cuts)
        return plain_shares(x, rows, dilations, cuts)


def plain_shares(x: Tensor, rows: Tensor, dilations: Tensor, cuts: Tensor) -> Tensor:
    """The same by torch's convolutions."""
    found = [
        (response[:, :, None] > cut[..., None]).float().mean(-1)
        for response, cut in zip(responses(x, rows, dilations), cuts, strict=True)
    ]
    return torch.stack(found, 1)


def responses(x: Tensor, rows: Tensor, dilations: Tensor) -> Any:
    """What the 84 kernels of each group say at each place: ``(batch, 84, length)``, group by group."""
    taps = kernels()[:, None].to(x)
    for row, dilation in zip(rows.tolist(), dilations.tolist(), strict=True):
        yield functional.conv1d(x[:, row : row + 1], taps, dilation=dilation, padding=4 * dilation)


def fitted_cuts(x: Tensor, rows: Tensor, dilations: Tensor, n_cuts: int) -> Tensor:
    """Thresholds ``(n_groups, 84, n_cuts)`` at quantiles of what the kernels say about these windows.

    The quantiles are a low-discrepancy sequence over all kernels, so that two neighbouring kernels do not ask the
    same question.

    Examples
    --------
    >>> x, group = torch.randn(8, 1, 100), torch.zeros(1, dtype=torch.int32)
    >>> cuts = fitted_cuts(x, group, group + 1, 2)
    >>> half = shares(x, group, group + 1, cuts).mean()
    >>> bool(abs(half - 0.5) < 0.02)
    True
    """
    ranks = (
        torch.arange(1, len(rows) * N_KERNELS * n_cuts + 1, dtype=torch.float64) * (math.sqrt(5) + 1) / 2 % 1
    )
    ranks = ranks.view(len(rows), N_KERNELS, n_cuts).to(x.device)
    found = []
    every = max(x.shape[0] * x.shape[2] // N_SAID, 1)
    for response, rank in zip(responses(x.float(), rows, dilations), ranks, strict=True):
        said = response.transpose(0, 1).flatten(1)[:, ::every].sort(dim=1).values  # (84, some places)
        places = (rank * (said.shape[1] - 1)).round().long()
        found.append(said.gather(1, places))
    return torch.stack(found)


def _on_threads(x: Tensor, rows: Tensor, dilations: Tensor, cuts: Tensor) -> Tensor:
    """By compiled loops, windows shared between threads."""
    found = np.empty((len(x), *cuts.shape), np.float32)
    values, groups, steps, levels = (one.numpy() for one in (x, rows, dilations, cuts.contiguous()))
    each_on_threads(lambda i: shares_of_window(values[i], groups, steps, levels, found[i]), range(len(x)))
    return torch.from_numpy(found)


def _on_gpu(kernel: Any, x: Tensor, rows: Tensor, dilations: Tensor, cuts: Tensor) -> Tensor:
    """By shares.cu, a block for each window and group."""
    n_windows, n_rows, length = x.shape
    found = torch.empty((n_windows, *cuts.shape), device=x.device)
    warps = min(-(-length // PLACES_OF_A_WARP), 4)
    with torch.cuda.device(x.device):
        kernel(
            grid=(n_windows, len(rows), 1),
            block=(32 * warps, 1, 1),
            args=[x, rows, dilations, cuts.contiguous(), found, n_rows, len(rows), length],
        )
    return found


@functools.cache
def _kernel(device: torch.device, pairs: int) -> Any:
    """shares.cu for so many pairs of thresholds, or None where it cannot be compiled; said once."""
    try:
        if torch.version.hip is not None or torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
            raise RuntimeError(f"{torch.cuda.get_device_name(device)} lacks an instruction")
        source = resources.files("raxss.backbones").joinpath("shares.cu").read_text(encoding="utf-8")
        with torch.cuda.device(device):
            return torch.cuda._compile_kernel(source, "shares", nvcc_options=[f"-DPAIRS={pairs}"])  # type: ignore[attr-defined]
    except Exception as error:  # the compiler, the driver or their versions: torch raises what it finds
        logger.warning("shares are counted with plain convolutions, some fifty times as slow: %s", error)
        return None
