"""Counts of competing kernels (HYDRA): how often, and how strongly, each of eight random kernels fits best.

    x (batch, n_rows, length), NaN where a sample is missing, kernels (n_groups, 8, 9)
        -> wins and losses (batch, n_groups, 2, 8)

At every place the eight kernels of a group compete. The one with the largest output wins, and its output is added
up; the one with the smallest loses, and that is counted. Nothing here is learned: kernels are drawn at random.
`plain_contests` is the definition; `contests` takes a faster way to the same numbers on a CPU, compiled loops.

After Dempster, Schmidt and Webb, "Hydra", Data Mining and Knowledge Discovery 2023.
Next: views.py makes features of windows of the counts.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from raxss._core.threads import compiled, compiled_sum
from raxss.method.backbones.ppv import N_TAPS, on_threads

Floats = NDArray[np.float32]

N_RIVALS = 8  # kernels of a group
CENTRE = N_TAPS // 2
PLACES_AT_ONCE = 2**18  # in torch, so that the outputs of a group fit into memory


def doubled_dilations(length: int) -> list[int]:
    """Distances between taps: 1, 2, 4, ..., up to kernels as long as the window.

    >>> doubled_dilations(9), doubled_dilations(1024)
    ([1], [1, 2, 4, 8, 16, 32, 64])
    """
    longest = max((length - 1) / (N_TAPS - 1), 1.0)
    return [2**k for k in range(int(math.log2(longest)) + 1)]


def drawn_kernels(n_groups: int) -> Tensor:
    """Random kernels ``(n_groups, 8, 9)``: normal weights of sum 0, whose absolute values add up to 1."""
    weights = torch.randn(n_groups, N_RIVALS, N_TAPS)
    weights = weights - weights.mean(dim=2, keepdim=True)
    return weights / weights.abs().sum(dim=2, keepdim=True)


def contests(x: Tensor, rows: Tensor, dilations: Tensor, kernels: Tensor) -> Tensor:
    """Wins and losses ``(batch, n_groups, 2, 8)`` of the kernels of each group.

    With the outputs o_k(t) = sum over j of kernel_gk[j] · (x[row_g, t + (j - 4) · dilation_g] - x[row_g, t]),

        wins_k   = mean over t of o_k(t) [k has the largest output at t]
        losses_k = mean over t of [k has the smallest output at t]

    The weights of a kernel add up to 0, so the sample at t changes no output: it makes them exactly 0 where the
    window is flat, and there nobody wins or loses. A tap on a missing sample or outside of the window adds nothing.
    The means are over the places whose own sample is present. The result is float32, without a gradient.

    Parameters
    ----------
    x
        ``(batch, n_rows, length)``, NaN where a sample is missing.
    rows, dilations
        Row of x and distance between taps of each group, ``(n_groups,)``.
    kernels
        ``(n_groups, 8, 9)``, weights of sum 0.

    Examples
    --------
    Two kernels that look for a rise and for a fall, beside six that see nothing, on a ramp:

    >>> kernels = torch.zeros(1, 8, 9)
    >>> kernels[0, 0, 3:6] = torch.tensor([-1.0, 0.0, 1.0])
    >>> kernels[0, 1] = -kernels[0, 0]
    >>> group = torch.zeros(1, dtype=torch.int32)
    >>> wins, losses = contests(torch.arange(10.0).view(1, 1, 10), group, group + 1, kernels)[0, 0]
    >>> wins[:3], losses[:3]  # the output is 2, and 1 at both ends
    (tensor([1.8000, 0.0000, 0.0000]), tensor([0., 1., 0.]))
    """
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        x, kernels = x.detach().float().contiguous(), kernels.float().contiguous()
        if x.device.type == "cpu":
            shape = (len(kernels), 2, N_RIVALS)
            return on_threads(_contests_of_windows, x, rows, dilations, kernels, shape=shape)
        return plain_contests(x, rows, dilations, kernels)


def plain_contests(x: Tensor, rows: Tensor, dilations: Tensor, kernels: Tensor) -> Tensor:
    """The same in torch, some windows at a time."""
    groups = list(zip(rows.tolist(), dilations.tolist(), kernels, strict=True))
    found = x.new_zeros((len(x), len(groups), 2, N_RIVALS))
    n_at_once = max(PLACES_AT_ONCE // x.shape[2], 1)
    for begin in range(0, len(x), n_at_once):
        some = x[begin : begin + n_at_once]
        n_places = some.isfinite().sum(dim=2).clamp_min(1)  # (n, n_rows)
        for group, (row, dilation, weights) in enumerate(groups):
            outputs = (weights @ _from_centre(some[:, row], dilation).flatten(1)).view(
                N_RIVALS, len(some), -1
            )
            best, worst = outputs.amax(dim=0), outputs.amin(dim=0)
            wins = ((outputs == best) * best).sum(dim=2)
            losses = ((outputs == worst) & (worst < best)).sum(dim=2)
            counts = torch.stack([wins, losses.to(wins)]) / n_places[:, row]
            found[begin : begin + n_at_once, group] = counts.movedim(2, 0)
    return found


def _from_centre(lines: Tensor, dilation: int) -> Tensor:
    """Samples under the nine taps at each place, less the sample there; ``(n, length)`` -> ``(9, n, length)``.

    0 where one of both is missing.
    """
    reach, length = CENTRE * dilation, lines.shape[1]
    padded = functional.pad(lines, (reach, reach), value=math.nan)
    near = torch.stack([padded[:, j * dilation : j * dilation + length] for j in range(N_TAPS)])
    return (near - lines).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


@compiled
def _contests_of_windows(
    x: Floats,  # (n_windows, n_rows, length)
    rows: NDArray[np.int32],  # (n_groups,)
    dilations: NDArray[np.int32],  # (n_groups,)
    kernels: Floats,  # (n_groups, 8, 9)
    found: Floats,  # (n_windows, n_groups, 2, 8) out
) -> None:
    """`plain_contests`. Groups in a sequence that look at the same samples share the differences of these."""
    length = x.shape[2]
    near = np.zeros((8, length), np.float32)  # of the taps beside the centre
    outputs = np.empty((8, length), np.float32)
    best, worst = np.empty(length, np.float32), np.empty(length, np.float32)
    for window in range(len(x)):
        n_places = 0
        for group in range(len(rows)):
            line, reach = x[window, rows[group]], dilations[group]
            if group == 0 or rows[group] != rows[group - 1] or reach != dilations[group - 1]:
                n_places = 0
                for t in range(length):
                    n_places += np.isfinite(line[t])
                for tap in range(8):
                    offset = (tap - 4 + (tap >= 4)) * reach
                    _differences(line, offset, near[tap])
            _outputs(near, kernels[group], outputs, best, worst)
            share = np.float32(1) / np.float32(max(n_places, 1))
            for k in range(8):
                wins, losses = _counts(outputs[k], best, worst)
                found[window, group, 0, k] = wins * share
                found[window, group, 1, k] = losses * share


@compiled
def _differences(line: Floats, offset: int, near: Floats) -> None:
    """Samples at an offset less those at the centre; 0 where one of both is missing or outside."""
    length = len(line)
    begin = min(max(-offset, 0), length)
    end = max(min(length - offset, length), begin)
    near[:begin] = 0
    near[end:] = 0
    for t in range(begin, end):
        step = line[t + offset] - line[t]
        near[t] = step if abs(step) < np.inf else np.float32(0)


@compiled
def _outputs(near: Floats, weights: Floats, outputs: Floats, best: Floats, worst: Floats) -> None:
    """Outputs of eight kernels, the largest and the smallest; where all are equal, minus infinity as smallest."""
    length = near.shape[1]
    a, b, c, d, e, f, g, h = near[0], near[1], near[2], near[3], near[4], near[5], near[6], near[7]
    for k in range(8):
        p, q, r, s = weights[k, 0], weights[k, 1], weights[k, 2], weights[k, 3]
        u, v, w, x = weights[k, 5], weights[k, 6], weights[k, 7], weights[k, 8]
        output = outputs[k]
        for t in range(length):
            output[t] = p * a[t] + q * b[t] + r * c[t] + s * d[t] + u * e[t] + v * f[t] + w * g[t] + x * h[t]
    best[:] = outputs[0]
    worst[:] = outputs[0]
    for k in range(1, 8):
        output = outputs[k]
        for t in range(length):
            best[t] = output[t] if output[t] > best[t] else best[t]
            worst[t] = output[t] if output[t] < worst[t] else worst[t]
    for t in range(length):
        worst[t] = worst[t] if worst[t] < best[t] else np.float32(-np.inf)


@compiled_sum
def _counts(output: Floats, best: Floats, worst: Floats) -> tuple[np.float32, np.float32]:
    """Sum of the outputs that are the best, and number of those that are the worst."""
    wins, losses = np.float32(0), np.float32(0)
    for t in range(len(output)):
        wins += output[t] if output[t] == best[t] else np.float32(0)
        losses += np.float32(1) if output[t] == worst[t] else np.float32(0)
    return wins, losses
