"""Four features of each fixed kernel and threshold (MultiROCKET): share, excess, mean place, longest stretch.

    x (batch, n_rows, length), cuts (n_groups, 84, n_cuts) -> pooled (batch, n_groups, 84, n_cuts, 4)

Kernels, groups and thresholds are those of ppv.py, and the first of the four is its share of places; the other
three tell apart windows in which as many places are above the threshold. Nothing here is learned. `plain_pooled` is
the definition; `pooled` takes a faster way to the same numbers on a CPU, compiled loops.

After Tan, Dempster, Bergmeir and Webb, "MultiRocket", Data Mining and Knowledge Discovery 2022.
Next: views.py makes features of windows of them.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raxss._core.threads import compiled, compiled_sum
from raxss.method.backbones.ppv import on_threads, responses, taps

Floats = NDArray[np.float32]

N_POOLED = 4
PLACES_AT_ONCE = 2**14  # in torch, so that the outputs of all kernels fit into memory
MIDDLE = 0.5  # of a window: the mean place of none


def pooled(x: Tensor, rows: Tensor, dilations: Tensor, cuts: Tensor) -> Tensor:
    """Four features ``(batch, n_groups, 84, n_cuts, 4)`` of each kernel and threshold.

    With the output o(t) of a kernel as in `raxss.method.backbones.ppv.shares`, and the n places P of a window of
    L samples at which o(t) > cut,

        share   = n / L
        excess  = mean over t in P of o(t) - cut,           0 where P is empty
        place   = mean over t in P of (t + 1/2) / L,        1/2 where P is empty
        stretch = length of the longest run of places in P, divided by L

    Samples outside of the window count as 0. The result is float32, without a gradient.

    Examples
    --------
    A lone spike is seen at three of ten places, by the taps on it:

    >>> x = torch.zeros(1, 1, 10)
    >>> x[0, 0, 5] = 1.0
    >>> group = torch.zeros(1, dtype=torch.int32)
    >>> pooled(x, group, group + 1, torch.zeros(1, 84, 1))[0, 0, 0, 0]
    tensor([0.3000, 2.0000, 0.8500, 0.3000])
    """
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        x, cuts = x.detach().float().contiguous(), cuts.float().contiguous()
        if x.device.type == "cpu":
            shape = (*cuts.shape, N_POOLED)
            return on_threads(_pooled_of_windows, x, rows, dilations, cuts, shape=shape)
        return plain_pooled(x, rows, dilations, cuts)


def plain_pooled(x: Tensor, rows: Tensor, dilations: Tensor, cuts: Tensor) -> Tensor:
    """The same in torch, some windows at a time."""
    groups = list(zip(rows.tolist(), dilations.tolist(), cuts, strict=True))
    length = x.shape[2]
    found = x.new_zeros((len(x), *cuts.shape, N_POOLED))
    n_at_once = max(PLACES_AT_ONCE // length, 1)
    for begin in range(0, len(x), n_at_once):
        some = x[begin : begin + n_at_once]
        for group, (row, dilation, levels) in enumerate(groups):
            outputs = responses(taps(some[:, row], dilation))  # (84, some windows, length)
            for which, cut in enumerate(levels.T):
                excess = outputs - cut[:, None, None]
                four = _four(outputs > cut[:, None, None], excess)  # (84, some windows, 4)
                found[begin : begin + n_at_once, group, :, which] = four.transpose(0, 1)
    return found


def _four(above: Tensor, excess: Tensor) -> Tensor:
    """Share, excess, place and stretch, ``(..., length)`` -> ``(..., 4)``."""
    length = above.shape[-1]
    t = torch.arange(length, device=above.device)
    n = above.sum(dim=-1)
    last_below = torch.where(above, -1, t).cummax(dim=-1).values
    stretch = torch.where(above, t - last_below, 0).amax(dim=-1)
    mean_excess = torch.where(above, excess, 0.0).sum(dim=-1) / n.clamp_min(1)
    place = (torch.where(above, t, 0).sum(dim=-1) / n.clamp_min(1) + 0.5) / length
    place = torch.where(n > 0, place, MIDDLE)
    return torch.stack([n / length, mean_excess, place, stretch / length], dim=-1)


@compiled
def _pooled_of_windows(
    x: Floats,  # (n_windows, n_rows, length)
    rows: NDArray[np.int32],  # (n_groups,)
    dilations: NDArray[np.int32],  # (n_groups,)
    cuts: Floats,  # (n_groups, 84, n_cuts)
    found: Floats,  # (n_windows, n_groups, 84, n_cuts, 4) out
) -> None:
    """`plain_pooled`, with the same sums in the same order up to the outputs of the kernels."""
    length = x.shape[2]
    margin = 4 * dilations.max()
    padded = np.zeros(length + 2 * margin, np.float32)
    everything, output = np.empty(length, np.float32), np.empty(length, np.float32)
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
                    for c in range(b + 1, 9):
                        third = padded[begin + c * reach : begin + c * reach + length]
                        for t in range(length):
                            three = (first[t] + second[t]) + third[t]
                            output[t] = np.float32(3) * three - everything[t]
                        for q in range(cuts.shape[2]):
                            cut, out = cuts[group, kernel, q], found[window, group, kernel, q]
                            n, excess, places = _sums(output, cut)
                            out[0] = np.float32(n) / np.float32(length)
                            out[1] = excess / np.float32(n if n else 1)
                            out[2] = (places / n + 0.5) / length if n else MIDDLE
                            out[3] = np.float32(_longest(output, cut)) / np.float32(length)
                        kernel += 1


@compiled_sum
def _sums(output: Floats, cut: np.float32) -> tuple[np.int32, np.float32, np.float32]:
    """Number of places above the threshold, sum of what is above it, and sum of the places."""
    n, excess, places = np.int32(0), np.float32(0), np.float32(0)
    for t in range(len(output)):
        above = output[t] > cut
        n = np.int32(n + np.int32(above))
        excess += output[t] - cut if above else np.float32(0)
        places += np.float32(t) if above else np.float32(0)
    return n, excess, places


@compiled
def _longest(output: Floats, cut: np.float32) -> np.int32:
    """Length of the longest run of places above the threshold."""
    longest = run = np.int32(0)
    for t in range(len(output)):
        run = np.int32(run + 1) if output[t] > cut else np.int32(0)
        longest = run if run > longest else longest
    return longest
