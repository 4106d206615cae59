"""The loops of ppv.py on a CPU.

    windows (n_windows, n_rows, length), cuts (n_groups, 84, n_cuts) -> shares (n_windows, n_groups, 84, n_cuts)

A window stays in the nearest cache while every kernel passes over it, and the output of a kernel is never stored:
it is compared with four thresholds as it comes. Next: ppv.py hands out the windows to threads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raxss._core.threads import compiled

Floats = NDArray[np.float32]


@compiled
def shares_of_windows(
    x: Floats,  # (n_windows, n_rows, length)
    rows: NDArray[np.int32],  # (n_groups,)
    dilations: NDArray[np.int32],  # (n_groups,)
    cuts: Floats,  # (n_groups, 84, n_cuts)
    shares: Floats,  # (n_windows, n_groups, 84, n_cuts) out
) -> None:
    """`raxss.method.backbones.ppv.plain_shares`, with the same sums in the same order."""
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
