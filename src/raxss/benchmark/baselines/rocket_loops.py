"""The inner loops of ROCKET on a CPU, for one series.

    samples between zeros (n_variates, width), random kernels -> features (2 * n_kernels,)

`LANES` neighbouring outputs of a kernel sit in one register, four registers at a time; a series stays in the
nearest cache while every kernel passes over it, and no output is ever stored. The taps of an output are added in
their order, whatever the processor, so the features are the same on every one that fuses products and sums.

Next: rocket_features.py calls this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from raxss._core.vector_code import (
    LANES,
    Floats,
    compiled,
    every,
    fused,
    larger,
    load,
    splat,
    store,
    total,
    where_positive,
)

if TYPE_CHECKING:
    from raxss.benchmark.baselines.rocket_features import Kernels

BLOCK = 4 * LANES  # outputs at a time


@compiled
def features_of_one(
    between_zeros: Floats,  # (n_variates, width): margin zeros, the samples, margin + BLOCK zeros or more
    n_samples: int,
    margin: int,  # no kernel's padding is larger
    kernels: Kernels,
    features: Floats,  # out, (2 * n_kernels,): of each kernel PPV and maximum
) -> None:
    """PPV and maximum of every kernel's outputs; 0 and 0 of a kernel that is longer than the series."""
    weights, lengths, biases, dilations, paddings, n_channels, channels = kernels
    width = between_zeros.shape[1]
    samples = between_zeros.ravel()
    item, none = every(np.float32(1.0)), every(np.float32(-np.inf))
    # Added to the last block: nothing for outputs that there are, -inf for those beyond the last.
    beyond = np.zeros(2 * BLOCK, np.float32)
    beyond[BLOCK:] = -np.inf
    lanes = np.empty(LANES, np.float32)
    weight_at, channel_at = 0, 0
    for kernel in range(len(lengths)):
        length, dilation, padding = lengths[kernel], dilations[kernel], paddings[kernel]
        n_outputs = n_samples + 2 * padding - (length - 1) * dilation
        positive, most = every(np.float32(0.0)), none
        for first in range(0, n_outputs, BLOCK):
            a = b = c = d = splat(biases, kernel)
            which = weight_at
            for channel in range(channel_at, channel_at + n_channels[kernel]):
                at = channels[channel] * width + margin - padding + first
                for _ in range(length):
                    weight = splat(weights, which)
                    a = fused(weight, load(samples, at), a)
                    b = fused(weight, load(samples, at + LANES), b)
                    c = fused(weight, load(samples, at + 2 * LANES), c)
                    d = fused(weight, load(samples, at + 3 * LANES), d)
                    at += dilation
                    which += 1
            if first + BLOCK > n_outputs:
                left = BLOCK - (n_outputs - first)
                a = a + load(beyond, left)
                b = b + load(beyond, left + LANES)
                c = c + load(beyond, left + 2 * LANES)
                d = d + load(beyond, left + 3 * LANES)
            most = larger(larger(larger(a, b), larger(c, d)), most)
            positive = where_positive(a, positive + item, positive)
            positive = where_positive(b, positive + item, positive)
            positive = where_positive(c, positive + item, positive)
            positive = where_positive(d, positive + item, positive)
        features[2 * kernel : 2 * kernel + 2] = 0.0
        if n_outputs > 0:
            store(lanes, 0, most)
            features[2 * kernel] = total(positive) / n_outputs
            features[2 * kernel + 1] = lanes.max()
        weight_at += length * n_channels[kernel]
        channel_at += n_channels[kernel]
