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

NOISE_MEMORY = 0.5  # coloured noise: each sample keeps half of the one before
N_HARMONICS = 8  # of one cycle per motif; smooth, and still rich enough to differ from its peers
# In motif lengths: longer series get more shapes, so that their share stays about equal.
SAMPLES_PER_SHAPE = 4


@dataclass(frozen=True, eq=False)
class MotifCollection:
    """Series, labelled ``motif`` and ``noise`` in turn, with the first samples of the motifs planted in each."""

    series: SeriesCollection
    motif_starts: list[NDArray[np.int64]]  # one array a series, in order; empty for ``noise``
    motif: NDArray[np.float64]  # (n_variates, motif_length), the same at every place

    @property
    def motif_length(self) -> int:
        """Samples in one motif."""
        return int(self.motif.shape[1])


def make_motif_series(
    n_series: int = 40,
    *,
    n_samples: tuple[int, int] = (2000, 6000),
    motif_length: int = 128,
    n_motifs: int = 5,
    n_variates: int = 1,
    amplitude: float = 2.0,
    rate: float = 100.0,
    seed: int = 69421,
) -> MotifCollection:
    """Noise of different lengths; in every other series the same motif recurs at known places.

    The series of the other class get as many shapes of the same energy and spectrum, but every one is
    different: neither amplitude nor bandwidth gives the class away, only the motif does.

    Parameters
    ----------
    n_samples
        Shortest and longest length, both included.
    n_motifs
        Places in a series, at least; a long series has one per four motif lengths. They never overlap.
    amplitude
        Root mean square of the motif, in standard deviations of the noise.

    Examples
    --------
    >>> planted = make_motif_series(4, n_samples=(900, 1000), motif_length=64)
    >>> planted.series
    SeriesCollection(4 series of ... samples, labels: motif 2, noise 2)
    >>> [len(starts) for starts in planted.motif_starts]
    [5, 0, 5, 0]
    """
    shortest, longest = n_samples
    if n_series < 1 or motif_length < 4 or n_motifs < 1 or n_variates < 1 or not amplitude > 0:
        raise ConfigError(
            "n_series, n_motifs and n_variates must be at least 1, motif_length at least 4 and amplitude above "
            f"0; got n_series={n_series}, n_motifs={n_motifs}, n_variates={n_variates}, "
            f"motif_length={motif_length}, amplitude={amplitude}."
        )
    if not n_motifs * motif_length <= shortest <= longest:
        raise ConfigError(
            f"{n_motifs} motifs of {motif_length} samples need series of at least {n_motifs * motif_length} "
            f"samples, and n_samples must be (shortest, longest); got {n_samples}. Make the series longer or "
            "the motifs fewer."
        )
    rng = np.random.default_rng(seed)
    motif = _random_shape(rng, n_variates, motif_length)
    series, motif_starts = [], []
    for index in range(n_series):
        label = "noise" if index % 2 else "motif"
        length = int(rng.integers(shortest, longest, endpoint=True))
        samples = _noise(rng, n_variates, length)
        starts = _apart(
            rng, length, max(n_motifs, length // (SAMPLES_PER_SHAPE * motif_length)), motif_length
        )
        for start in starts:
            shape = motif if label == "motif" else _random_shape(rng, n_variates, motif_length)
            samples[:, start : start + motif_length] += amplitude * shape
        name = f"{label}-{index:03d}"
        series.append(Series(samples.astype(np.float32), rate, label=label, group=name, name=name))
        motif_starts.append(starts if label == "motif" else starts[:0])
    return MotifCollection(SeriesCollection(series), motif_starts, motif)


def _random_shape(rng: np.random.Generator, n_variates: int, length: int) -> NDArray[np.float64]:
    """A random band-limited waveform that fades in and out, of root mean square 1 in each variate."""
    phase = 2 * np.pi * np.arange(length) / length
    n_harmonics = min(N_HARMONICS, length // 2 - 1)
    waves = np.concatenate(
        [wave(np.outer(np.arange(1, n_harmonics + 1), phase)) for wave in (np.sin, np.cos)]
    )
    shape = (rng.normal(size=(n_variates, len(waves))) @ waves) * np.hanning(length)
    shape -= shape.mean(axis=1, keepdims=True)
    return np.asarray(shape / np.sqrt(np.mean(shape**2, axis=1, keepdims=True)))


def _noise(rng: np.random.Generator, n_variates: int, length: int) -> NDArray[np.float64]:
    """First-order autoregressive noise of variance 1, ``(n_variates, length)``."""
    from scipy.signal import lfilter  # takes a second to import, and every dataset comes by here

    shocks = rng.normal(size=(n_variates, length)) * np.sqrt(1 - NOISE_MEMORY**2)
    shocks[:, 0] /= np.sqrt(1 - NOISE_MEMORY**2)  # starts as it goes on
    return np.asarray(lfilter([1.0], [1.0, -NOISE_MEMORY], shocks, axis=1))


def _apart(rng: np.random.Generator, length: int, count: int, width: int) -> NDArray[np.int64]:
    """Random starts of ``count`` stretches of ``width`` samples that do not overlap, in order."""
    room = length - count * width
    offsets = np.sort(rng.integers(0, room, size=count, endpoint=True))
    return np.asarray(offsets + width * np.arange(count), dtype=np.int64)
