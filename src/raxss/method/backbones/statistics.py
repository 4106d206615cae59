"""Statistics of a window: moments, quantiles, differences, crossings, autocorrelation, band powers, extremes.

    windows (batch, n_variates, length), NaN where a sample is missing -> statistics (batch, d)

Nothing is learned, so they hold on ten series. Missing samples and the padding behind a short series are skipped:
intervals are shares of the part that is present. Quantiles over halves, quarters and eighths of a window, of its
differences and of its spectrum are those of interval forests (Dempster et al., "QUANT", 2024).
Next: window_classifiers.py fits classifiers on them.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor

DEPTH = 3  # intervals of a window: all of it, halves, quarters, eighths
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
PER_INTERVAL = len(QUANTILES) + 1  # with the mean
N_INTERVALS = 2 ** (DEPTH + 1) - 1
LAGS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
N_BANDS = 10  # on a logarithmic scale of frequency
MOST_PAIRS = 66  # of variates whose correlation is a statistic: all of twelve variates
SAMPLES_AT_ONCE = 2**21  # so that copies in float64 stay small
TINY = 1e-6


def n_statistics(n_variates: int, window_length: int) -> int:
    """Number of statistics of a window.

    >>> n_statistics(1, 1024), n_statistics(3, 1024)
    (401, 1206)
    """
    each = 4 * N_INTERVALS * PER_INTERVAL + 14 + len(_lags(window_length)) + len(_bands(window_length))
    return n_variates * each + len(_pairs(n_variates))


def window_statistics(windows: Tensor) -> Tensor:
    """Statistics ``(batch, d)`` of windows ``(batch, n_variates, length)``, in float32, without a gradient.

    A sample is skipped in all variates where one of them is not finite. A window without any sample has zeros.

    Examples
    --------
    >>> ramp = torch.arange(8.0).view(1, 1, 8)
    >>> padded = torch.cat([ramp, torch.full((1, 1, 4), torch.nan)], dim=2)
    >>> window_statistics(padded)[0, :6]  # least, quartiles, largest and mean of what is there
    tensor([0.0000, 2.0000, 4.0000, 5.0000, 7.0000, 3.5000])
    """
    windows = windows.detach()
    n, n_variates, length = windows.shape
    found = windows.new_zeros((n, n_statistics(n_variates, length)), dtype=torch.float32)
    present = windows.isfinite().all(dim=1)  # (n, length)
    places = torch.arange(1, length + 1, device=windows.device)
    extent = (present * places).amax(dim=1)  # last sample that is there
    n_at_once = max(SAMPLES_AT_ONCE // (n_variates * length), 1)
    for n_samples in torch.unique(extent).tolist():
        if n_samples == 0:
            continue
        for rows in torch.nonzero(extent == n_samples)[:, 0].split(n_at_once):
            some = windows[rows, :, :n_samples].double()
            some = some.masked_fill(~present[rows, None, :n_samples], torch.nan)
            found[rows] = _of_equal_extent(some, length).float()
    return found.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def _of_equal_extent(x: Tensor, length: int) -> Tensor:
    """``(batch, n_variates, n)``, the last sample present -> ``(batch, d)``; ``length``: of a whole window."""
    n = x.shape[2]
    mean, deviation = x.nanmean(dim=2, keepdim=True), _deviation(x)
    standard = (x - mean) / (deviation + TINY)
    first = x.diff(dim=2) if n > 1 else torch.zeros_like(x)
    second = first.diff(dim=2) if n > 2 else torch.zeros_like(x)
    spectrum = _spectrum(x - mean)
    columns: list[Tensor] = []
    for values in (x, first, second, (spectrum + TINY).log()):
        columns += _over_intervals(values)
    log_deviation = (deviation[..., 0] + TINY).log()
    log_first, log_second = ((_deviation(item)[..., 0] + TINY).log() for item in (first, second))
    columns += [
        mean[..., 0],
        log_deviation,
        standard.pow(3).nanmean(dim=2),
        standard.pow(4).nanmean(dim=2),
        first.abs().nanmean(dim=2),
        log_first - log_deviation,
        log_second - log_first,
        _changes_of_sign(standard),
        _changes_of_sign(first),
        x.nan_to_num(nan=-torch.inf).argmax(dim=2) / n,
        x.nan_to_num(nan=torch.inf).argmin(dim=2) / n,
        *_spectral_shape(spectrum),
    ]
    columns += _autocorrelation(standard, _lags(length))
    columns += _band_powers(spectrum, _bands(length))
    by_variate = torch.stack(columns, dim=1).flatten(1)
    pairs = _pairs(x.shape[1])
    if not pairs:
        return by_variate
    filled = standard.nan_to_num(nan=0.0)
    n_present = x[:, :1].isfinite().sum(dim=2, keepdim=True)
    products = filled @ filled.transpose(1, 2) / n_present
    one, other = torch.tensor(pairs, device=x.device).T
    return torch.cat([by_variate, products[:, one, other]], dim=1)


def _over_intervals(values: Tensor) -> list[Tensor]:
    """Quantiles and mean over the values, their halves, quarters and eighths: ``(batch, n_variates)`` each."""
    n, columns = values.shape[2], []
    whole = not bool(values.isnan().any())
    for depth in range(DEPTH + 1):
        for part in range(2**depth):
            begin = min(n * part // 2**depth, n - 1)
            some = values[..., begin : max(n * (part + 1) // 2**depth, begin + 1)]
            ordered = _sorted(some)
            if whole:  # as below, with fewer passes
                end = some.shape[2] - 1
                columns += [ordered[..., round(quantile * end)] for quantile in QUANTILES]
                columns.append(some.mean(dim=2))
                continue
            last = some.isfinite().sum(dim=2).sub(1).clamp(min=0)
            for quantile in QUANTILES:
                place = (quantile * last).round().long()[..., None]
                columns.append(ordered.gather(2, place)[..., 0])
            columns.append(some.nanmean(dim=2))
    return columns


def _sorted(values: Tensor) -> Tensor:
    """Values in ascending order along the last axis, NaN last; on a CPU by numpy, which is ten times as fast."""
    if values.device.type != "cpu":
        return values.sort(dim=-1).values
    return torch.from_numpy(np.sort(values.numpy(), axis=-1))


def _deviation(x: Tensor) -> Tensor:
    """Standard deviation over the samples that are there, ``(batch, n_variates, 1)``."""
    return (x - x.nanmean(dim=2, keepdim=True)).square().nanmean(dim=2, keepdim=True).sqrt()


def _spectrum(centred: Tensor) -> Tensor:
    """Amplitudes at the frequencies above 0, of unit scale; missing samples are at the mean and add nothing."""
    n = centred.shape[2]
    filled = centred.nan_to_num(nan=0.0)
    n_present = centred.isfinite().sum(dim=2, keepdim=True).clamp(min=1)
    amplitudes = torch.fft.rfft(filled, n=max(n, 4), dim=2)[..., 1:].abs()
    return amplitudes / n_present.sqrt()


def _spectral_shape(spectrum: Tensor) -> list[Tensor]:
    """Centre, width and entropy of the power."""
    power = spectrum.square()
    share = power / (power.sum(dim=2, keepdim=True) + TINY**2)
    n = share.shape[2]
    frequency = torch.arange(1, n + 1, dtype=share.dtype, device=share.device) / n
    centre = (share * frequency).sum(dim=2)
    width = (share * (frequency - centre[..., None]).square()).sum(dim=2).sqrt()
    return [centre, width, -(share * (share + TINY**2).log()).sum(dim=2)]


def _changes_of_sign(values: Tensor) -> Tensor:
    """Share of places at which the sign changes, among pairs of samples that are there."""
    if values.shape[2] < 2:
        return torch.zeros_like(values[..., 0])
    positive, there = values > 0, values.isfinite()
    both = there[..., 1:] & there[..., :-1]
    changes = (positive[..., 1:] != positive[..., :-1]) & both
    return changes.sum(dim=2) / both.sum(dim=2).clamp(min=1)


def _autocorrelation(standard: Tensor, lags: list[int]) -> list[Tensor]:
    n = standard.shape[2]
    power = torch.fft.rfft(standard.nan_to_num(nan=0.0), n=2 * max(n, 2), dim=2).abs().square()
    correlation = torch.fft.irfft(power, dim=2)
    correlation = correlation / (correlation[..., :1] + TINY**2)
    zero = torch.zeros_like(correlation[..., 0])
    return [correlation[..., lag] if lag < n else zero for lag in lags]


def _band_powers(spectrum: Tensor, bands: list[tuple[float, float]]) -> list[Tensor]:
    """Logarithm of the share of power in each band; a band is a pair of shares of the highest frequency."""
    power = spectrum.square()
    total, n = power.sum(dim=2) + TINY**2, power.shape[2]
    columns = []
    for low, high in bands:
        begin = min(int(low * n), n - 1)
        inside = power[..., begin : max(int(high * n), begin + 1)].sum(dim=2)
        columns.append((inside / total + TINY).log())
    return columns


def _lags(window_length: int) -> list[int]:
    return [lag for lag in LAGS if lag < window_length]


def _bands(window_length: int) -> list[tuple[float, float]]:
    """Bands as shares of the highest frequency, each at least one frequency of a whole window wide."""
    n = max(window_length // 2, 2)
    edges = sorted({round(n ** (k / N_BANDS)) - 1 for k in range(N_BANDS + 1)} | {n})
    return [(low / n, high / n) for low, high in itertools.pairwise(edges)]


def _pairs(n_variates: int) -> list[tuple[int, int]]:
    """Pairs of variates; of many, as many as there is room for, spread evenly."""
    every = list(itertools.combinations(range(n_variates), 2))
    return every[:: -(-len(every) // MOST_PAIRS)] if every else []
