"""Published networks as plain loops in float64: slow, obvious, and shared with nothing under test.

    one window (n_variates, length) and the weights of a network, by name -> logits (n_outputs,)

Dropout is off, and batch normalisation uses its running statistics: the networks as they predict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.signal import convolve2d
from scipy.special import ndtr

Array = NDArray[np.float64]
Weights = Mapping[str, Array]


# DLinear


def moving_average(row: Array, size: int) -> Array:
    means = []
    for place in range(len(row)):
        total = 0.0
        for step in range(-(size // 2), size // 2 + 1):
            total += row[min(max(place + step, 0), len(row) - 1)]
        means.append(total / size)
    return np.array(means)


def dlinear(window: Array, weights: Weights, average_over: int) -> Array:
    components = []
    for row in window:
        trend = moving_average(row, average_over)
        seasonal = weights["remainder.weight"] @ (row - trend) + weights["remainder.bias"]
        components.append(weights["trend.weight"] @ trend + weights["trend.bias"] + seasonal)
    return weights["head.weight"] @ np.concatenate(components) + weights["head.bias"]


# TimesNet


def strongest_periods(samples: Array, top_k: int) -> list[tuple[int, float]]:
    """(period, weight) of the largest amplitudes, without the mean of the window."""
    size = np.abs(np.fft.rfft(samples, axis=0)).mean(axis=1)
    found = sorted(range(1, len(size)), key=lambda frequency: -size[frequency])[:top_k]
    total = sum(math.exp(size[item] - size[found[0]]) for item in found)
    return [(len(samples) // item, math.exp(size[item] - size[found[0]]) / total) for item in found]


def fold(samples: Array, period: int) -> Array:
    """(length, width) -> (width, n_rows, period), zeros behind the end."""
    n_rows = math.ceil(len(samples) / period)
    image = np.zeros((samples.shape[1], n_rows, period))
    for time, values in enumerate(samples):
        image[:, time // period, time % period] = values
    return image


def convolve_2d(image: Array, kernel: Array, bias: Array) -> Array:
    """(n_in, height, width) -> (n_out, height, width), zeros around the image; scipy turns kernels round."""
    out = np.zeros((len(kernel), *image.shape[1:])) + bias[:, None, None]
    for row, own in zip(out, kernel, strict=True):
        for channel, weights in zip(image, own, strict=True):
            row += convolve2d(channel, weights[::-1, ::-1], mode="same")
    return out


def inception(image: Array, weights: Weights, prefix: str) -> Array:
    """Every kernel by itself, then their mean."""
    n_kernels = sum(name.startswith(f"{prefix}.weights.") for name in weights)
    each = [
        convolve_2d(image, weights[f"{prefix}.weights.{index}"], weights[f"{prefix}.biases.{index}"])
        for index in range(n_kernels)
    ]
    return sum(each[1:], each[0]) / n_kernels


def times_block(samples: Array, weights: Weights, prefix: str, top_k: int) -> Array:
    out = samples.copy()
    for period, weight in strongest_periods(samples, top_k):
        inner = gelu(inception(fold(samples, period), weights, f"{prefix}.widen"))
        image = inception(inner, weights, f"{prefix}.narrow")
        for time in range(len(samples)):
            out[time] += weight * image[:, time // period, time % period]
    return out


def timesnet(window: Array, weights: Weights, *, n_layers: int, top_k: int) -> Array:
    means, deviations = window.mean(axis=1), np.sqrt(window.var(axis=1) + 1e-5)
    window = (window - means[:, None]) / deviations[:, None]
    window = window * weights["revin.gain"] + weights["revin.offset"]
    kernel = weights["embedding.weight"]  # (width, n_variates, 3)
    (width, _, _), length = kernel.shape, window.shape[1]
    samples = np.zeros((length, width))
    for time in range(length):
        for step in (-1, 0, 1):
            samples[time] += kernel[:, :, step + 1] @ window[:, (time + step) % length]
        for column in range(width):
            angle = time / 10_000 ** (2 * (column // 2) / width)
            samples[time, column] += math.cos(angle) if column % 2 else math.sin(angle)
    for layer in range(n_layers):
        samples = times_block(samples, weights, f"layers.{layer}", top_k)
        for time, values in enumerate(samples):
            samples[time] = (values - values.mean()) / math.sqrt(values.var() + 1e-5)
        samples = samples * weights["norm.weight"] + weights["norm.bias"]
    return weights["head.weight"] @ gelu(samples).flatten() + weights["head.bias"]


# ModernTCN


def batch_norm(rows: Array, weights: Weights, prefix: str) -> Array:
    """(n_rows, n_places), with the running statistics."""
    mean, variance = weights[f"{prefix}.running_mean"], weights[f"{prefix}.running_var"]
    scaled = (rows - mean[:, None]) / np.sqrt(variance + 1e-5)[:, None]
    return scaled * weights[f"{prefix}.weight"][:, None] + weights[f"{prefix}.bias"][:, None]


def depthwise(rows: Array, kernels: Array) -> Array:
    """Each row with its own kernel, by numpy, which turns the kernel round."""
    beside = kernels.shape[2] // 2
    return np.array(
        [
            np.convolve(row, kernel[0, ::-1], mode="full")[beside : beside + len(row)]
            for row, kernel in zip(rows, kernels, strict=True)
        ]
    )


def two_kernels(rows: Array, weights: Weights, prefix: str) -> Array:
    """The large and the small convolution, each with its normalisation, added up."""
    out = np.zeros_like(rows)
    for item in ("large", "small"):
        found = depthwise(rows, weights[f"{prefix}.{item}.weight"])
        out += batch_norm(found, weights, f"{prefix}.{item}_norm")
    return out


def feed_forward(maps: Array, weights: Weights, prefix: str) -> Array:
    """(n_groups, width, n_places): each group through two layers of its own."""
    out = np.zeros_like(maps)
    n_groups = len(maps)
    for group, rows in enumerate(maps):
        inner = rows
        for layer in ("widen", "narrow"):
            kernels = weights[f"{prefix}.{layer}.weight"][:, :, 0]
            height = len(kernels) // n_groups
            own = slice(group * height, (group + 1) * height)
            inner = kernels[own] @ inner + weights[f"{prefix}.{layer}.bias"][own, None]
            if layer == "widen":
                inner = gelu(inner)
        out[group] = inner
    return out


def modern_block(maps: Array, weights: Weights, prefix: str) -> Array:
    """(n_variates, width, n_places) -> the same."""
    n_variates, width, n_places = maps.shape
    rows = maps.reshape(n_variates * width, n_places)
    mixed = two_kernels(rows, weights, f"{prefix}.along_time").reshape(maps.shape)
    mixed = np.array([batch_norm(item, weights, f"{prefix}.norm") for item in mixed])
    mixed = feed_forward(mixed, weights, f"{prefix}.across_features")
    mixed = feed_forward(mixed.transpose(1, 0, 2), weights, f"{prefix}.across_variates").transpose(1, 0, 2)
    return maps + mixed


def moderntcn(window: Array, weights: Weights, *, n_stages: int, n_blocks: int, patch_stride: int) -> Array:
    kernels = weights["embedding.0.weight"][:, 0]  # (width, patch_length)
    every = []
    for row in window:
        patches = []
        for start in range(0, len(row), patch_stride):
            patch = [row[min(start + step, len(row) - 1)] for step in range(kernels.shape[1])]
            patches.append(kernels @ np.array(patch))
        every.append(batch_norm(np.array(patches).T, weights, "embedding.1"))
    maps = np.array(every)
    for stage in range(n_stages):
        if stage:
            maps = halve(maps, weights, f"stages.{stage}.0")
        for block in range(n_blocks):
            maps = modern_block(maps, weights, f"stages.{stage}.{block + 1}")
    return weights["head.weight"] @ gelu(maps).flatten() + weights["head.bias"]


def halve(maps: Array, weights: Weights, prefix: str) -> Array:
    join, bias = weights[f"{prefix}.join.weight"], weights[f"{prefix}.join.bias"]
    halved = []
    for rows in maps:
        scaled = batch_norm(rows, weights, f"{prefix}.norm")
        n_places = scaled.shape[1]
        pairs = [(first, min(first + 1, n_places - 1)) for first in range(0, n_places, 2)]
        joined = [
            join[:, :, 0] @ scaled[:, pair] + join[:, :, 1] @ scaled[:, other] + bias for pair, other in pairs
        ]
        halved.append(np.array(joined).T)
    return np.array(halved)


def gelu(values: Array) -> Array:
    """x times the chance that a standard normal number is below x."""
    return values * ndtr(values)


# Networks over patches


def selective_scan(x, delta, A, B, C, D):
    """h_t = exp(delta_t A) h_{t-1} + delta_t B_t x_t, y_t = C_t h_t + D x_t, as it is written."""
    batch, length, width = x.shape
    y = np.zeros((batch, length, width))
    for series in range(batch):
        for channel in range(width):
            state = np.zeros(A.shape[1])
            for t in range(length):
                step, value = delta[series, t, channel], x[series, t, channel]
                for n in range(len(state)):
                    state[n] = np.exp(step * A[channel, n]) * state[n] + step * B[series, t, n] * value
                y[series, t, channel] = state @ C[series, t] + D[channel] * value
    return y


def patches(samples, patch_length, patch_stride):
    """The patches that lie wholly in one series ``(n_variates, n_samples)``, all variates of each in a row."""
    n_samples = samples.shape[1]
    if n_samples < patch_length:
        return np.pad(samples, ((0, 0), (0, patch_length - n_samples))).reshape(1, -1)
    starts = range(0, n_samples - patch_length + 1, patch_stride)
    return np.stack([samples[:, start : start + patch_length].ravel() for start in starts])
