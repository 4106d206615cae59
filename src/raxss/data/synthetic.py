"""Synthetic series: noise with a motif planted at known starts.

    seed -> series of noise; in one class a motif recurs at known starts

A classifier should find the motif, retrieval should find its recurrences, and evidence should point at them.
Next: method/windows.py cuts series into windows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raxss.data.series import Series, SeriesCollection
from raxss.errors import ConfigError

RATE = 100.0  # samples per second
AMPLITUDE = 2.0  # root mean square of the motif, in standard deviations of the noise
N_MOTIFS = 5  # places in a series, at least; longer series have more, so that their share stays about equal
SAMPLES_PER_MOTIF = 4  # in motif lengths
NOISE_MEMORY = 0.5  # coloured noise: each sample keeps half of the one before
N_HARMONICS = 8  # of one cycle per motif; smooth, and still rich enough to differ from its peers


@dataclass(frozen=True, eq=False)
class MotifCollection:
    """Series, labelled ``motif`` and ``noise`` in turn, with the first samples of the motifs planted in each."""

    series: SeriesCollection
    motif_starts: list[NDArray[np.int64]]  # one array per series, in order; empty for ``noise``
    motif: NDArray[np.float64]  # (1, motif_length), the same at every place

    @property
    def motif_length(self) -> int:
        """Samples in one motif."""
        return int(self.motif.shape[1])


def make_motif_series(
    n_series: int = 40,
    *,
    n_samples: tuple[int, int] = (2000, 6000),
    motif_length: int = 128,
    seed: int = 69421,
) -> MotifCollection:
    """Noise of different lengths; in every other series the same motif recurs at known places.

    The series of the other class get as many shapes of the same energy and spectrum, but every one is
    different: neither amplitude nor bandwidth gives the class away, only the motif does. Places never overlap.

    Parameters
    ----------
    n_samples
        Shortest and longest length, both included.

    Examples
    --------
    >>> planted = make_motif_series(4, n_samples=(900, 1000), motif_length=64)
    >>> planted.series
    SeriesCollection(4 series of ... samples, labels: motif 2, noise 2)
    >>> [len(starts) for starts in planted.motif_starts]
    [5, 0, 5, 0]
    """
    shortest, longest = n_samples
    if n_series < 1 or motif_length < 4 or not N_MOTIFS * motif_length <= shortest <= longest:
        raise ConfigError(
            f"{N_MOTIFS} motifs of {motif_length} samples need series of at least {N_MOTIFS * motif_length} "
            f"samples, n_samples must be (shortest, longest), motif_length at least 4 and n_series at least 1; got "
            f"n_samples={n_samples}, n_series={n_series}. Make the series longer or the motif shorter."
        )
    rng = np.random.default_rng(seed)
    motif = _random_shape(rng, motif_length)
    series, motif_starts = [], []
    for index in range(n_series):
        label = "noise" if index % 2 else "motif"
        length = int(rng.integers(shortest, longest, endpoint=True))
        samples = _noise(rng, length)
        n_motifs = max(N_MOTIFS, length // (SAMPLES_PER_MOTIF * motif_length))
        starts = _apart(rng, length, n_motifs, motif_length)
        for start in starts:
            shape = motif if label == "motif" else _random_shape(rng, motif_length)
            samples[:, start : start + motif_length] += AMPLITUDE * shape
        name = f"{label}-{index:03d}"
        series.append(Series(samples.astype(np.float32), RATE, label=label, group=name, name=name))
        motif_starts.append(starts if label == "motif" else starts[:0])
    return MotifCollection(SeriesCollection(series), motif_starts, motif)


def _random_shape(rng: np.random.Generator, length: int) -> NDArray[np.float64]:
    """A random band-limited waveform that fades in and out, of root mean square 1: ``(1, length)``."""
    phase = 2 * np.pi * np.arange(length) / length
    n_harmonics = min(N_HARMONICS, length // 2 - 1)
    waves = np.concatenate(
        [wave(np.outer(np.arange(1, n_harmonics + 1), phase)) for wave in (np.sin, np.cos)]
    )
    shape = (rng.normal(size=(1, len(waves))) @ waves) * np.hanning(length)
    shape -= shape.mean(axis=1, keepdims=True)
    return np.asarray(shape / np.sqrt(np.mean(shape**2, axis=1, keepdims=True)))


def _noise(rng: np.random.Generator, length: int) -> NDArray[np.float64]:
    """First-order autoregressive noise of variance 1: ``(1, length)``."""
    from scipy.signal import lfilter  # takes a second to import, and every dataset comes by here

    shocks = rng.normal(size=(1, length)) * np.sqrt(1 - NOISE_MEMORY**2)
    shocks[:, 0] /= np.sqrt(1 - NOISE_MEMORY**2)  # starts as it goes on
    return np.asarray(lfilter([1.0], [1.0, -NOISE_MEMORY], shocks, axis=1))


def _apart(rng: np.random.Generator, length: int, count: int, width: int) -> NDArray[np.int64]:
    """Random starts of ``count`` stretches of ``width`` samples that do not overlap, in order."""
    room = length - count * width
    offsets = np.sort(rng.integers(0, room, size=count, endpoint=True))
    return np.asarray(offsets + width * np.arange(count), dtype=np.int64)
