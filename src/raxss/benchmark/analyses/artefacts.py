"""Perturbations of signals: artefacts, white noise, shortening.

    a stretch (n_variates, n), deviation (n_variates, 1) -> (n_variates, n)   drift, line_noise, pops, dropouts
    Series, kind, share -> Series with that share of its samples spoiled      spoiled
    Series, decibels    -> Series in white noise                              noisy
    Series, share       -> a part of it                                       shortened

Strengths are relative to the deviation of the series; places are drawn from its name, the kind and the level alone,
so that all systems see the same. Samples that are not finite stay so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raxss.data.series import Series
from raxss.errors import ConfigError, one_of

SECONDS = (0.2, 2.0)  # of one stretch, from and to
DRIFT = 5.0  # highest point of a slow wave, in deviations of the series
LINE = 2.0  # amplitude of line noise
POP = 8.0  # height of a step
LINE_HERTZ = 50.0
SLOWEST_FOR_LINE = 2.5  # samples a cycle, at least; series at a lower rate get the fastest that they can hold
DECAY = 4.0  # time constants that a step has until its stretch ends: 1.8 % of it are left there

Floats = NDArray[np.float64]
Artefact = Callable[..., Floats]


# One stretch --------------------------------------------------------------------------------------------------


def drift(stretch: Floats, deviation: Floats, *, rate: float, generator: np.random.Generator) -> Floats:
    """A slow wave: from the signal up or down to `DRIFT` deviations and back, once."""
    n = stretch.shape[1]
    wave = (1 - np.cos(2 * np.pi * np.arange(n) / n)) / 2
    return stretch + _sign(generator) * DRIFT * deviation * wave


def line_noise(stretch: Floats, deviation: Floats, *, rate: float, generator: np.random.Generator) -> Floats:
    """A sine of 50 Hz and `LINE` deviations, at a random phase.

    Series with fewer than 125 samples a second cannot hold it, and get one of 2.5 samples a cycle.
    """
    hertz = min(LINE_HERTZ, rate / SLOWEST_FOR_LINE)
    phase = generator.uniform(0, 2 * np.pi)
    wave = np.sin(2 * np.pi * hertz / rate * np.arange(stretch.shape[1]) + phase)
    return stretch + LINE * deviation * wave


def pops(stretch: Floats, deviation: Floats, *, rate: float, generator: np.random.Generator) -> Floats:
    """A step of `POP` deviations, up or down, that decays."""
    n = stretch.shape[1]
    return stretch + _sign(generator) * POP * deviation * np.exp(-DECAY * np.arange(n) / n)


def dropouts(stretch: Floats, deviation: Floats, *, rate: float, generator: np.random.Generator) -> Floats:
    """The first value, held to the end."""
    return np.repeat(stretch[:, :1], stretch.shape[1], axis=1)


def _sign(generator: np.random.Generator) -> float:
    return float(generator.choice([-1.0, 1.0]))


#: By the name of the kind.
ARTEFACTS: dict[str, Artefact] = {
    "drift": drift,
    "line noise": line_noise,
    "pops": pops,
    "dropouts": dropouts,
}
MIXED = "mixed"  # each stretch is one of them, at random


# A whole series -----------------------------------------------------------------------------------------------


def spoiled(series: Series, kind: str, share: float) -> Series:
    """A series with artefacts of one kind, or ``"mixed"``, in a share of its samples.

    Stretches of 0.2 to 2 s lie at random places, one after the other at the closest; the last that is drawn is cut
    so that the share is met to the sample.
    """
    one_of("the kind of an artefact", kind, (*ARTEFACTS, MIXED))
    _check_share("of samples to spoil", share)
    generator = generator_of(series.name, kind, share)
    samples = _as_floats(series)
    deviation = _deviation(samples)
    for first, last in stretches(series.n_samples, share=share, rate=series.rate, generator=generator):
        name = str(generator.choice(list(ARTEFACTS))) if kind == MIXED else kind
        stretch = samples[:, first:last]
        made = ARTEFACTS[name](stretch, deviation, rate=series.rate, generator=generator)
        samples[:, first:last] = np.where(np.isfinite(stretch) & np.isfinite(made), made, stretch)
    return _like(series, samples)


def stretches(
    n_samples: int, *, share: float, rate: float, generator: np.random.Generator
) -> list[tuple[int, int]]:
    """Random stretches without overlap that cover a share of the samples, in the order of time."""
    n_left = round(share * n_samples)
    lengths: list[int] = []
    while n_left > 0:
        drawn = max(round(generator.uniform(*SECONDS) * rate), 1)
        lengths.append(min(drawn, n_left))
        n_left -= lengths[-1]
    lengths = generator.permutation(np.array(lengths, dtype=np.int64)).tolist()  # the cut one anywhere
    n_clean = n_samples - sum(lengths)
    gaps = np.sort(generator.integers(n_clean + 1, size=len(lengths))).tolist()  # clean samples before each
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    return [(gap + end - length, gap + end) for gap, end, length in zip(gaps, ends, lengths, strict=True)]


def noisy(series: Series, decibels: float) -> Series:
    """A series in white noise whose power is ``decibels`` below its own, variate by variate."""
    samples = _as_floats(series)
    generator = generator_of(series.name, "noise", decibels)
    noise = generator.normal(size=samples.shape) * _deviation(samples) * 10 ** (-decibels / 20)
    return _like(series, samples + noise)


def shortened(series: Series, share: float, *, at_least: int) -> Series:
    """A random part of a series: a share of its length, but ``at_least`` so many samples if it has them."""
    _check_share("of a series to keep", share)
    n_kept = min(max(round(share * series.n_samples), at_least, 1), series.n_samples)
    generator = generator_of(series.name, "shortened", share)
    first = int(generator.integers(series.n_samples - n_kept + 1))
    return series.with_samples(series.samples[:, first : first + n_kept])


def generator_of(name: str, kind: str, level: float) -> np.random.Generator:
    """Generator seeded by the name of a series, the kind and the level."""
    digest = hashlib.sha256(f"{kind}/{level:g}/{name}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8]))


def _check_share(what: str, share: float) -> None:
    if not 0 <= share <= 1:
        raise ConfigError(f"the share {what} is {share}; needed is a number from 0 to 1.")


def _as_floats(series: Series) -> Floats:
    return np.array(series.samples, dtype=np.float64)


def _deviation(samples: Floats) -> Floats:  # (n_variates, n_samples) -> (n_variates, 1)
    """Of the finite samples; 0 without any."""
    finite = np.isfinite(samples)
    counts = np.maximum(finite.sum(axis=1, keepdims=True), 1)
    known = np.where(finite, samples, 0.0)
    centred = np.where(finite, samples - known.sum(axis=1, keepdims=True) / counts, 0.0)
    return np.sqrt((centred**2).sum(axis=1, keepdims=True) / counts)


def _like(series: Series, samples: Floats) -> Series:
    """In the dtype of the series if that is floating."""
    kind: Any = series.samples.dtype
    return series.with_samples(samples.astype(kind) if np.issubdtype(kind, np.floating) else samples)
