"""Window classifiers as plain loops in float64: features of a window, descent of trees, ridge, mixture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from naive import kernel_outputs


def window_statistics(window: NDArray[Any]) -> NDArray[np.float64]:
    """Statistics of one window ``(n_variates, length)`` with NaN where samples are missing, one after the other."""
    length = window.shape[1]
    present = [bool(np.isfinite(window[:, t]).all()) for t in range(length)]
    extent = max(t for t in range(length) if present[t]) + 1
    cut = np.where(present, window, np.nan)[:, :extent].astype(np.float64)
    by_variate = np.array([_statistics(variate, length) for variate in cut])
    known = [_standard(variate)[np.isfinite(variate)] for variate in cut]
    pairs = [np.mean(known[i] * known[j]) for i, j in combinations(range(len(cut)), 2)]
    return np.nan_to_num(np.concatenate([by_variate.T.flatten(), pairs]), nan=0.0)


def _standard(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return (x - np.nanmean(x)) / (np.nanstd(x) + 1e-6)


def _statistics(x: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    """Of one variate, up to its last sample that is present."""
    n, standard = len(x), _standard(x)
    known = standard[np.isfinite(standard)]
    first = np.array([x[t + 1] - x[t] for t in range(n - 1)]) if n > 1 else np.zeros(1)
    second = np.array([first[t + 1] - first[t] for t in range(n - 2)]) if n > 2 else np.zeros(n)
    n_points = max(n, 4)
    spectrum = []
    for k in range(1, n_points // 2 + 1):
        turns = [
            np.exp(-2j * np.pi * k * t / n_points) * (x[t] - np.nanmean(x)) for t in range(n) if x[t] == x[t]
        ]
        spectrum.append(abs(sum(turns)) / math.sqrt(len(turns)))
    amplitudes = np.array(spectrum)
    found = [*_intervals(x), *_intervals(first), *_intervals(second), *_intervals(np.log(amplitudes + 1e-6))]
    log_deviations = [_log_deviation(values) for values in (x, first, second)]
    found += [_mean(x), log_deviations[0], _mean(known**3), _mean(known**4), _mean(abs(first))]
    found += [log_deviations[1] - log_deviations[0], log_deviations[2] - log_deviations[1]]
    found += [_sign_changes(standard), _sign_changes(first), np.nanargmax(x) / n, np.nanargmin(x) / n]
    power = amplitudes**2 / (math.fsum(amplitudes**2) + 1e-12)
    places = np.arange(1, len(power) + 1) / len(power)
    centre = math.fsum(power * places)
    found += [
        centre,
        math.sqrt(math.fsum(power * (places - centre) ** 2)),
        -math.fsum(power * np.log(power + 1e-12)),
    ]
    filled = np.nan_to_num(standard, nan=0.0)
    for lag in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256):
        if lag < length:
            products = [filled[t] * filled[t + lag] for t in range(n - lag)]
            found.append(math.fsum(products) / (math.fsum(filled**2) + 1e-12))
    half = max(length // 2, 2)
    edges = sorted({round(half ** (k / 10)) - 1 for k in range(11)} | {half})
    for low, high in pairwise(edges):
        begin = min(int(low / half * len(power)), len(power) - 1)
        end = max(int(high / half * len(power)), begin + 1)
        found.append(math.log(math.fsum(power[begin:end]) + 1e-6))
    return np.array(found)


def _intervals(values: NDArray[np.float64]) -> list[float]:
    """Quartiles and mean of the values, their halves, quarters and eighths."""
    n, found = len(values), []
    for n_parts in (1, 2, 4, 8):
        for part in range(n_parts):
            begin = min(n * part // n_parts, n - 1)
            some = [v for v in values[begin : max(n * (part + 1) // n_parts, begin + 1)] if v == v]
            ordered = sorted(some) or [math.nan]
            found += [ordered[round(share * (len(ordered) - 1))] for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
            found.append(_mean(some))
    return found


def _mean(values: Any) -> float:
    known = [float(value) for value in values if value == value]
    return math.fsum(known) / len(known) if known else math.nan


def _log_deviation(values: NDArray[np.float64]) -> float:
    mean = _mean(values)
    return math.log(math.sqrt(_mean([(value - mean) ** 2 for value in values])) + 1e-6)


def _sign_changes(values: NDArray[np.float64]) -> float:
    pairs = [(a > 0) != (b > 0) for a, b in pairwise(values) if a == a and b == b]
    return sum(pairs) / max(len(pairs), 1)


def mean_leaf_shares(row: NDArray[Any], trees: Sequence[Any], n_classes: int) -> NDArray[np.float64]:
    """Mean over trees of scikit-learn of the class shares of the leaf that a row of features falls into."""
    total = np.zeros(n_classes)
    for tree in trees:
        node = 0
        while tree.children_left[node] >= 0:
            left = row[tree.feature[node]] <= tree.threshold[node]
            node = tree.children_left[node] if left else tree.children_right[node]
        total += tree.value[node, 0] / tree.value[node, 0].sum()
    return total / len(trees)


def ridge_outputs(
    x: NDArray[np.float64], y: NDArray[np.float64], weights: NDArray[np.float64], penalty: float, new: Any
) -> NDArray[np.float64]:
    """Outputs for new rows by weighted ridge regression with an intercept, from its normal equations."""
    design = np.column_stack([np.ones(len(x)), x])
    penalties = penalty * np.eye(design.shape[1])
    penalties[0, 0] = 0.0
    solution = np.linalg.solve(
        design.T @ (weights[:, None] * design) + penalties, design.T @ (weights[:, None] * y)
    )
    return np.column_stack([np.ones(len(new)), new]) @ solution


def mixture_likelihood(
    weights: Sequence[float], likelihood: NDArray[np.float64], counts: Sequence[float], prior: float
) -> float:
    """Log-likelihood of series under a mixture; likelihood ``(n_members, n_series)`` of their classes."""
    total = prior * math.fsum(math.log(weight) for weight in weights)
    for column, count in zip(likelihood.T, counts, strict=True):
        total += count * math.log(math.fsum(w * value for w, value in zip(weights, column, strict=True)))
    return total


def contests(
    samples: NDArray[Any],  # (n_rows, n_samples), NaN where missing
    rows: Sequence[int],
    dilations: Sequence[int],
    kernels: NDArray[Any],  # (n_groups, n_rivals, n_taps)
) -> NDArray[np.float64]:
    """HYDRA's wins and losses ``(n_groups, 2, n_rivals)`` of one window, place by place."""
    n_groups, n_rivals, n_taps = kernels.shape
    found = np.zeros((n_groups, 2, n_rivals))
    for group, (row, dilation) in enumerate(zip(rows, dilations, strict=True)):
        line = samples[row]
        places = [t for t in range(len(line)) if math.isfinite(line[t])]
        for t in places:
            outputs = [0.0] * n_rivals
            for j in range(n_taps):
                at = t + (j - n_taps // 2) * dilation
                if at in places:
                    for k in range(n_rivals):
                        outputs[k] += kernels[group, k, j] * (line[at] - line[t])
            for k in range(n_rivals):
                if outputs[k] == max(outputs):
                    found[group, 0, k] += outputs[k] / len(places)
                if outputs[k] == min(outputs) < max(outputs):
                    found[group, 1, k] += 1 / len(places)
    return found


def pooled(
    samples: NDArray[Any],  # (n_rows, n_samples)
    rows: Sequence[int],
    dilations: Sequence[int],
    cuts: NDArray[Any],  # (n_groups, 84, n_cuts)
) -> NDArray[np.float64]:
    """MultiROCKET's four features of each kernel and threshold ``(n_groups, 84, n_cuts, 4)`` of one window."""
    found = np.zeros((*cuts.shape, 4))
    n = samples.shape[1]
    for group, (row, dilation) in enumerate(zip(rows, dilations, strict=True)):
        for kernel, three in enumerate(combinations(range(9), 3)):
            taps = [[2.0 if j in three else -1.0 for j in range(9)]]
            outputs = kernel_outputs(samples, taps, [row], bias=0.0, dilation=dilation, padding=4 * dilation)
            for which, cut in enumerate(cuts[group, kernel]):
                above = [t for t in range(n) if outputs[t] > cut]
                runs = "".join("x" if value > cut else " " for value in outputs).split()
                found[group, kernel, which] = (
                    len(above) / n,
                    math.fsum(outputs[t] - cut for t in above) / max(len(above), 1),
                    math.fsum((t + 0.5) / n for t in above) / len(above) if above else 0.5,
                    max(map(len, runs), default=0) / n,
                )
    return found
