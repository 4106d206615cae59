"""The loops of shares.py on a CPU: one window after the other, all places of a kernel in neighbouring registers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raxss.compiled import compiled


@compiled
def shares_of_window(
    x: NDArray[np.float32],  # (n_rows, length)
    rows: NDArray[np.int32],  # (n_groups,)
    dilations: NDArray[np.int32],  # (n_groups,)
    cuts: NDArray[np.float32],  # (n_groups, 84, n_cuts)
    shares: NDArray[np.float32],  # (n_groups, 84, n_cuts) out
) -> None:
    """`raxss.backbones.shares.plain_shares` of one window."""
    length, n_cuts = x.shape[1], cuts.shape[2]
    margin = 4 * dilations.max()
    padded = np.zeros(length + 2 * margin, np.float32)
    everything, response = np.empty(length, np.float32), np.empty(length, np.float32)
    for group in range(len(rows)):
        reach = dilations[group]
        padded[margin : margin + length] = x[rows[group]]
        begin = margin - 4 * reach
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
                        response[t] = np.float32(3) * (first[t] + second[t] + third[t]) - everything[t]
                    for which in range(n_cuts):
                        cut, count = cuts[group, kernel, which], np.int32(0)
                        for t in range(length):
                            count += np.int32(response[t] > cut)
                        shares[group, kernel, which] = np.float32(count) / np.float32(length)
                    kernel += 1
