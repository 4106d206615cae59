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


def decode(planes: NDArray[np.uint8]) -> NDArray[np.int16]:
    """Samples ``(n,)`` of byte planes ``(2, n)``: sign-folded second differences that wrap at 16 bits."""
    folded = planes[0].astype(np.uint16) | (planes[1].astype(np.uint16) << 8)
    bends = ((folded >> 1) ^ -(folded & 1).astype(np.int16).view(np.uint16)).view(np.int16)
    return np.cumsum(np.cumsum(bends, dtype=np.int16), dtype=np.int16)
