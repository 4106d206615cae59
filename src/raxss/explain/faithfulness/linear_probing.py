"""Linear probing: which simple properties of a window can be predicted from the layers of a network.

    ModelAdapter, series -> windows: properties (n, k) and outputs of each layer (n, d)
        -> ridge regression, cross-validated by groups -> R² of each property from each layer

A property with R² near 1 is held by that layer, so windows alike there are alike in it; near 0 it is not, as far as
a linear map can tell. The same network scrambled is a control: what it also holds was never learned.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GroupKFold
from sklearn.preprocessing import StandardScaler

from raxss.data.series import Series
from raxss.explain.faithfulness.model_adapter import ModelAdapter
from raxss.method.windows import windows_of

Floats = NDArray[np.float64]
BANDS = ((0.5, 4.0), (4.0, 8.0), (8.0, 13.0), (13.0, 30.0), (30.0, 80.0), (80.0, 250.0))  # Hz
N_WINDOWS = 800  # in all; a linear map needs no more, and layers may be thousands wide
N_FOLDS = 5
WIDEST = 1024  # of a layer; wider ones are brought down by a random projection
SPIKE = 4.0  # distance from the median, in robust deviations


def properties(windows: Floats, rate: float) -> dict[str, Floats]:
    """Simple properties of windows ``(n, n_variates, length)``, each ``(n,)``, means over variates.

    Logarithm of the power in `BANDS` that the window can hold (relative to the whole); logarithm of amplitude
    (deviation) and of line length (mean step relative to the deviation); number of spikes a second, the runs of
    samples more than `SPIKE` robust deviations from the median.

    Examples
    --------
    >>> time = np.arange(200) / 100.0
    >>> found = properties(np.sin(2 * np.pi * 10 * time)[None, None], rate=100.0)
    >>> max((name for name in found if name.endswith("Hz")), key=lambda name: found[name][0])
    'power 8-13 Hz'
    >>> found["spikes"]
    array([0.])
    """
    n = windows.shape[-1]
    centred = windows - windows.mean(axis=-1, keepdims=True)
    power = np.abs(np.fft.rfft(centred * np.hanning(n), axis=-1)) ** 2
    hertz = np.fft.rfftfreq(n, 1 / rate)
    whole = power.sum(axis=-1) + 1e-20
    found: dict[str, Floats] = {}
    for low, high in BANDS:
        inside = (hertz >= low) & (hertz < high)
        if inside.sum() >= 2 and high <= rate / 2:
            share = power[..., inside].sum(axis=-1) / whole
            found[f"power {low:g}-{high:g} Hz"] = np.log(share + 1e-6).mean(axis=1)
    deviation = centred.std(axis=-1) + 1e-12
    found["amplitude"] = np.log(deviation).mean(axis=1)
    steps = np.abs(np.diff(windows, axis=-1)).mean(axis=-1)
    found["line length"] = np.log(steps / deviation + 1e-6).mean(axis=1)
    distance = np.abs(windows - np.median(windows, axis=-1, keepdims=True))
    robust = 1.4826 * np.median(distance, axis=-1, keepdims=True) + 1e-12
    far = distance > SPIKE * robust
    begins = far[..., 1:] & ~far[..., :-1]
    found["spikes"] = (begins.sum(axis=-1) + far[..., 0]).mean(axis=1) * rate / n
    return found


def linear_probe(layer: Floats, wanted: Floats, groups: Sequence[Hashable], *, seed: int = 0) -> Floats:
    """R² ``(k,)`` of properties ``(n, k)`` predicted from a layer ``(n, d)``, each group by a map of the others.

    Below 0 (worse than the mean) counts as it is; NaN for a property that is the same everywhere.
    """
    names = {fromkey: place for place, fromkey in enumerate(dict.fromkeys(groups))}
    places = np.array([names[group] for group in groups])
    if layer.shape[1] > WIDEST:
        mix = np.random.default_rng(seed).normal(size=(layer.shape[1], WIDEST)) / np.sqrt(WIDEST)
        layer = layer @ mix
    predicted = np.full(wanted.shape, np.nan)
    for kept, held in GroupKFold(min(N_FOLDS, len(names))).split(layer, groups=places):
        scale = StandardScaler().fit(layer[kept])
        mean, deviation = wanted[kept].mean(axis=0), wanted[kept].std(axis=0)
        ridge = RidgeCV(np.logspace(-1, 5, 13)).fit(
            scale.transform(layer[kept]), (wanted[kept] - mean) / np.where(deviation > 0, deviation, 1.0)
        )
        predicted[held] = (
            ridge.predict(scale.transform(layer[held])).reshape(len(held), -1) * deviation + mean
        )
    total = ((wanted - wanted.mean(axis=0)) ** 2).sum(axis=0)
    flat = total <= 1e-12 * len(wanted)
    return np.where(flat, np.nan, 1 - ((wanted - predicted) ** 2).sum(axis=0) / np.where(flat, 1.0, total))


def held_features(
    adapter: ModelAdapter, series: Sequence[Series], groups: Sequence[Hashable], *, seed: int = 0
) -> list[dict[str, Any]]:
    """A row for each layer and property: ``layer``, ``property``, ``r2``, ``width`` of the layer.

    Needs series of two groups at least; with fewer there is nothing to predict across.
    """
    if len(set(groups)) < 2:
        return []
    generator = np.random.default_rng(seed)
    n_each = max(N_WINDOWS // len(series), 2)
    wanted: list[Floats] = []
    outputs: dict[str, list[Floats]] = {}
    of: list[Hashable] = []
    names: list[str] = []
    for item, layers, group in zip(series, adapter.layers(series), groups, strict=True):
        windows = windows_of(item, window_length=adapter.window_length, stride=adapter.stride)
        usable = np.flatnonzero(windows.missing_share == 0)  # properties are of whole windows
        some = np.sort(generator.permutation(usable)[:n_each])
        own = properties(np.asarray(windows.samples[some], dtype=np.float64), item.rate)
        names = names or list(own)
        wanted.append(np.stack([own[name] for name in names], axis=1))
        for name, rows in layers.items():
            outputs.setdefault(name, []).append(rows[some])
        of += [group] * len(some)
    targets = np.concatenate(wanted)
    rows_out: list[dict[str, Any]] = []
    for layer, parts in outputs.items():
        values = np.concatenate(parts)
        for name, r2 in zip(names, linear_probe(values, targets, of, seed=seed), strict=True):
            rows_out.append({"layer": layer, "property": name, "r2": float(r2), "width": values.shape[1]})
    return rows_out
