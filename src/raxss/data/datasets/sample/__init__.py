"""Sample dataset: 400 short ECGs that come with the package.

    cinc2017.npz -> 400 Series: (1, n_samples) in mV at 300 Hz, label "AF" or "normal"

Where they come from and under which licence: README.md and LICENSE.txt beside this file.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from raxss.data.series import Series, SeriesCollection

RATE = 300.0  # samples per second
UNITS_PER_MV = 1000.0  # the recorder counts microvolts


def load_sample() -> SeriesCollection:
    """Atrial fibrillation against normal rhythm: 200 + 200 single-lead ECGs of 9 to 61 s.

    Drawn from the PhysioNet/CinC Challenge 2017 (ODC-By 1.0, see the README beside the data). The publisher
    names no patients, so each record is its own group: a split by patient is impossible.

    Examples
    --------
    >>> sample = load_sample()
    >>> sample
    SeriesCollection(400 series of ... samples, labels: AF 200, normal 200)
    >>> sample[0].rate, sample[0].samples.dtype
    (300.0, dtype('float32'))
    """
    resource = files("raxss.data.datasets.sample").joinpath("cinc2017.npz")
    with resource.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        names, labels = stored["names"].tolist(), stored["labels"].tolist()
        ends = np.cumsum(stored["lengths"])[:-1]
        counts = decode(stored["planes"])
    return SeriesCollection(
        Series(item.astype(np.float32) / np.float32(UNITS_PER_MV), RATE, label=label, group=name, name=name)
        for item, name, label in zip(np.split(counts, ends), names, labels, strict=True)
    )


def encode(samples: NDArray[np.int16]) -> NDArray[np.uint8]:
    """Byte planes that deflate well: ``(n,)`` 16-bit samples -> ``(2, n)`` bytes, low and high.

    An ECG is smooth, so second differences are small; folding the sign into the lowest bit (0, -1, 1, -2 ->
    0, 1, 2, 3) makes nearly all high bytes 0. Arithmetic wraps at 16 bits and loses nothing.

    Examples
    --------
    >>> encode(np.array([3, 5, 7, 6], dtype=np.int16))
    array([[6, 1, 0, 5],
           [0, 0, 0, 0]], dtype=uint8)
    """
    bends = np.diff(samples, n=2, prepend=np.zeros(2, np.int16)).astype(np.int16)
    folded = ((bends << 1) ^ (bends >> 15)).view(np.uint16)
    return np.stack([folded & 0xFF, folded >> 8]).astype(np.uint8)


def decode(planes: NDArray[np.uint8]) -> NDArray[np.int16]:
    """Undo `encode`: ``(2, n)`` bytes -> ``(n,)`` samples.

    Examples
    --------
    >>> decode(encode(np.array([3, 5, 7, 6], dtype=np.int16)))
    array([3, 5, 7, 6], dtype=int16)
    """
    folded = planes[0].astype(np.uint16) | (planes[1].astype(np.uint16) << 8)
    bends = ((folded >> 1) ^ -(folded & 1).astype(np.int16).view(np.uint16)).view(np.int16)
    return np.cumsum(np.cumsum(bends, dtype=np.int16), dtype=np.int16)
