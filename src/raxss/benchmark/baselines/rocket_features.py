"""ROCKET features: random convolution kernels (Dempster, Petitjean and Webb 2020).

    length, seed -> draw_kernels -> Kernels
    samples (n_series, n_variates, length), Kernels -> kernel_features -> (n_series, 2 * n_kernels)

A kernel slides over the series, and two numbers are kept of its outputs: the proportion of positive values (PPV)
and the maximum. With several variates a kernel reads some of them. Next: rocket.py classifies by these features.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from raxss.errors import ConfigError, VariateMismatchError

LENGTHS = (7, 9, 11)
# Float32 outputs of one kernel at a time: 1 MB and 32 MB, which caches of CPUs and of large GPUs hold.
CPU_VALUES, GPU_VALUES = 2**18, 2**23


class Kernels(NamedTuple):
    """Random kernels, one after the other; a channel is a variate that a kernel reads."""

    weights: NDArray[np.float32]  # (sum of lengths * n_channels,), one channel of a kernel after the other
    lengths: NDArray[np.int32]  # (n_kernels,)
    biases: NDArray[np.float32]  # (n_kernels,)
    dilations: NDArray[np.int32]  # (n_kernels,) samples from tap to tap
    paddings: NDArray[np.int32]  # (n_kernels,) zeros on either side of the series
    n_channels: NDArray[np.int32]  # (n_kernels,)
    channels: NDArray[np.int32]  # (sum of n_channels,)

    def n_outputs(self, n_samples: int) -> NDArray[np.int64]:
        """``(n_kernels,)`` places of each kernel in a series; 0 if it is longer than the series."""
        reach = (self.lengths.astype(np.int64) - 1) * self.dilations
        return np.maximum(n_samples + 2 * self.paddings - reach, 0)


def draw_kernels(length: int, *, n_kernels: int = 10_000, n_variates: int = 1, seed: int) -> Kernels:
    """Draw kernels as ROCKET does for series of ``length`` samples.

    Of length 7, 9 or 11; weights normal, centred in each channel; bias uniform in [-1, 1); dilation floor(2^x), x
    uniform from 0 to where the kernel spans the series; padded, with probability 1/2, so that its middle reaches
    the first sample and the last; floor(2^x) channels, x uniform from 0 to log2(1 + the lesser of ``n_variates``
    and the kernel's length).

    >>> draw_kernels(1000, n_kernels=3, n_variates=5, seed=0).lengths
    array([11,  9,  9], dtype=int32)
    """
    given: Any = n_kernels  # by a study file
    if not isinstance(given, int | np.integer) or given < 1:
        raise ConfigError(f"n_kernels is {n_kernels!r}; a whole number of at least 1 is needed.")
    rng = np.random.default_rng(seed)
    lengths = rng.choice(LENGTHS, n_kernels)
    longest = np.log2(np.maximum((length - 1) / (lengths - 1), 1))
    dilations = np.exp2(rng.uniform(0, longest)).astype(np.int32)
    paddings = (lengths - 1) * dilations // 2 * rng.integers(2, size=n_kernels)
    biases = rng.uniform(-1, 1, n_kernels)
    most = np.minimum(n_variates, lengths)
    n_channels = np.minimum(np.exp2(rng.uniform(0, np.log2(most + 1))).astype(np.int64), most)
    channels = [rng.choice(n_variates, n, replace=False) for n in n_channels]
    shapes = zip(n_channels, lengths, strict=True)
    weights = [rng.normal(size=shape).astype(np.float32) for shape in shapes]  # (n_channels, length) each
    centred = [(weight - weight.mean(axis=1, keepdims=True)).ravel() for weight in weights]
    return Kernels(
        weights=np.concatenate(centred),
        lengths=lengths.astype(np.int32),
        biases=biases.astype(np.float32),
        dilations=dilations,
        paddings=paddings.astype(np.int32),
        n_channels=n_channels.astype(np.int32),
        channels=np.concatenate(channels).astype(np.int32),
    )


def normalised(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each variate of each series ``(n_series, n_variates, length)`` with mean 0 and deviation 1, or flat at 0.

    >>> normalised(np.array([[[1, 3], [5, 5]]], dtype=np.float32))
    array([[[-1.,  1.],
            [ 0.,  0.]]], dtype=float32)
    """
    found = np.empty_like(samples)
    for sample, out in zip(samples, found, strict=True):
        exact = sample.astype(np.float64)  # so that the deviation of what is flat is 0, not rounding
        deviation = exact.std(axis=-1, keepdims=True)
        out[:] = (exact - exact.mean(axis=-1, keepdims=True)) / np.where(deviation == 0, 1, deviation)
    return found


def kernel_features(
    samples: NDArray[np.float32],
    kernels: Kernels,
    *,
    device: torch.device | None = None,
    values: int | None = None,
) -> NDArray[np.float32]:
    """PPV and maximum of every kernel over every series.

    One pass over all outputs a tap and no convolution of the library: those choose their algorithm, and with it the
    order of the sum, by device and shape, and are slow for one channel at a large dilation.

    Samples are ``(n_series, n_variates, length)``, finite; the length need not be the one that kernels were drawn
    for. ``values`` is the number of outputs of a kernel that are in memory at a time. Returns
    ``(n_series, 2 * n_kernels)``: PPV and maximum of the first kernel, of the second, ... Both are 0 for a kernel
    without padding that is longer than the series.

    >>> series = np.sin(np.arange(300, dtype=np.float32)).reshape(1, 1, 300)
    >>> kernel_features(series, draw_kernels(300, n_kernels=2, seed=0)).round(2)
    array([[0.6 , 2.52, 0.65, 2.65]], dtype=float32)
    """
    needed, n_variates = int(kernels.channels.max()) + 1, samples.shape[1]
    if needed > n_variates:
        raise VariateMismatchError(
            f"the series have {n_variates} variates, but a kernel looks at variate {needed}. Draw kernels with "
            f"n_variates={n_variates}."
        )
    samples = np.asarray(samples, dtype=np.float32)
    if values is None:
        values = CPU_VALUES if device is None or device.type == "cpu" else GPU_VALUES
    at_once = max(values // (samples.shape[1] * samples.shape[2]), 1)
    features = np.empty((len(samples), 2 * len(kernels.lengths)), np.float32)
    for first in range(0, len(samples), at_once):
        part = slice(first, first + at_once)
        features[part] = _features_of_batch(torch.from_numpy(samples[part]).to(device), kernels)
    return features


def _features_of_batch(samples: torch.Tensor, kernels: Kernels) -> NDArray[np.float32]:
    margin = int(kernels.paddings.max())
    n_outputs = kernels.n_outputs(samples.shape[2])
    between_zeros = functional.pad(samples, (margin, margin))
    shape = len(n_outputs), len(samples)
    n_positive = torch.zeros(shape, dtype=torch.int64, device=samples.device)
    largest = torch.zeros(shape, device=samples.device)
    # As lists: indexing an array takes longer than a pass over small outputs.
    weights, channels = iter(kernels.weights.tolist()), iter(kernels.channels.tolist())
    arrays = (kernels.lengths, kernels.biases, kernels.dilations, kernels.paddings, kernels.n_channels)
    each = zip(*(values.tolist() for values in (*arrays, n_outputs)), strict=True)
    for which, (length, bias, dilation, padding, n_channels, n) in enumerate(each):
        outputs = samples.new_full((len(samples), n), bias)
        for _ in range(n_channels):
            channel, first = between_zeros[:, next(channels)], margin - padding
            for _ in range(length):
                outputs.add_(channel[:, first : first + n], alpha=next(weights))
                first += dilation
        if n > 0:
            torch.sum(outputs > 0, dim=1, out=n_positive[which])
            torch.amax(outputs, dim=1, out=largest[which])
    places = torch.from_numpy(np.maximum(n_outputs, 1)).to(samples.device)
    ppv = (n_positive.double() / places[:, None]).float()
    return torch.stack([ppv, largest], dim=1).flatten(0, 1).T.cpu().numpy()
