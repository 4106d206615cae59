"""Keys of short stretches of a signal, by which crops and rescaled copies of it are recognised.

    series -> anchors, points that the signal itself chooses -> 256 samples around each -> one 64-bit key a stretch

A model keeps keys of its training series, not samples (training_overlap.py). Every prediction asks for the keys of
its series, so anchors and stretches are found by compiled loops that release the interpreter lock; their slow twin
is `stretch_keys` in tests/naive.py. Next: training_overlap.py compares the keys.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raxss._core.threads import compiled
from raxss.data.near_duplicates import CHUNK, NARROWEST_ANCHOR, SHAPE_BLOCK, SHAPE_RADIUS, first_varying
from raxss.data.series import Series

SURROUNDINGS = SHAPE_RADIUS // 2  # samples whose mean an anchor departs from
STEPS_A_DEVIATION = 32  # that a stretch is rounded to before it is hashed; 256 samples must agree in all
MOSTLY_CHANGING = 0.75  # of the samples of a stretch with a key differ from the one before


def stretch_keys(series: Series) -> NDArray[np.uint64]:
    """One-way keys of stretches of 256 samples around anchors; a crop has those of the original that lie in it.

    An anchor is a sample where the mean of 8 departs more from the mean of 64 around it than anywhere within 64
    samples. The stretch around it is centred, divided by its deviation, turned upright and rounded to steps of 1/32
    deviation before it is hashed. So offset, gain, sign, units and the type of the samples do not change a key,
    whereas another channel of the same recording has other keys. Stretches in which many samples repeat their
    predecessor (saturation, flat lines, square waves) have no key: they would be alike without being copies. A
    series shorter than 256 samples has none, and neither rounding nor noise below 1/1000 deviation changes most of
    them.

    Examples
    --------
    >>> noise = np.random.default_rng(0).normal(size=4000)
    >>> keys, of_crop = stretch_keys(Series(noise)), stretch_keys(Series(-2e-6 * noise[1500:3000] + 7))
    >>> len(keys), len(of_crop), np.isin(of_crop, keys).sum().item()
    (27, 8, 8)
    """
    row = series.samples[first_varying(series) or 0]
    margin = NARROWEST_ANCHOR + SHAPE_RADIUS  # that an anchor and its stretch may look at
    hashes = []
    for begin in range(0, len(row), CHUNK):
        low = max(begin - margin, 0)
        samples = np.asarray(row[low : begin + CHUNK + margin], dtype=np.float64)
        anchors = _anchors(samples, begin - low, min(begin + CHUNK, len(row)) - low)
        steps = _rounded_stretches(samples, anchors)
        hashes += [hashlib.blake2b(stretch.tobytes(), digest_size=8).digest() for stretch in steps]
    return np.unique(np.frombuffer(b"".join(hashes), dtype="<u8")).astype(np.uint64)


@compiled
def _anchors(samples: Any, first: int, last: int) -> Any:
    """Places from ``first`` up to ``last`` whose departure is the largest within `NARROWEST_ANCHOR` samples."""
    n, radius, reach = len(samples), NARROWEST_ANCHOR, SHAPE_RADIUS
    found = np.empty(n // (radius + 1) + 2, dtype=np.int64)
    n_found = 0
    if n < 2 * reach:
        return found[:0]
    height = _departures(samples)
    largest = np.empty(n, dtype=np.int64)  # a queue of places, each lower than the one before
    head, tail, n_queued = 0, 0, 0
    candidate = -radius - 1
    for place in range(n):
        ahead = min(place + radius, n - 1)
        while n_queued <= ahead:
            while tail > head and height[largest[tail - 1]] < height[n_queued]:
                tail -= 1
            largest[tail] = n_queued
            tail += 1
            n_queued += 1
        while largest[head] < place - radius:
            head += 1
        if height[place] > 0 and height[place] == height[largest[head]]:
            fits = first <= place < last and reach <= place <= n - reach
            if place - candidate <= radius:  # of equal heights the first: what repeats says little
                fits = False
            candidate = place
            if fits and np.isfinite(samples[place - reach : place + reach]).all():
                found[n_found] = place
                n_found += 1
    return found[:n_found]


@compiled
def _departures(samples: Any) -> Any:
    """How far the mean of `SHAPE_BLOCK` samples around each departs from that of `SURROUNDINGS`; 0 at the ends."""
    n = len(samples)
    height = np.zeros(n)
    clean = np.empty(n)
    level = 0.0
    for place in range(n):  # a large offset would cost the running sums their digits
        if np.isfinite(samples[place]):
            level = samples[place]
            break
    for place in range(n):
        clean[place] = samples[place] - level if np.isfinite(samples[place]) else 0.0
    near, around = SHAPE_BLOCK // 2, SURROUNDINGS // 2
    sum_near, sum_around = 0.0, 0.0
    for place in range(SURROUNDINGS):
        sum_around += clean[place]
    for place in range(around - near, around - near + SHAPE_BLOCK):
        sum_near += clean[place]
    for place in range(around, n - around):
        height[place] = abs(sum_near / SHAPE_BLOCK - sum_around / SURROUNDINGS)
        if place + around < n:
            sum_around += clean[place + around] - clean[place - around]
            sum_near += clean[place + near] - clean[place - near]
    return height


@compiled
def _rounded_stretches(samples: Any, anchors: Any) -> Any:
    """The stretch around each anchor in steps of its deviation, upright ``(n, 256)``; few changes: left out."""
    width, reach = 2 * SHAPE_RADIUS, SHAPE_RADIUS
    steps = np.empty((len(anchors), width), dtype=np.int32)
    n_kept = 0
    for anchor in anchors:
        stretch = samples[anchor - reach : anchor + reach]
        n_changes = 0
        for place in range(1, width):
            if stretch[place] != stretch[place - 1]:
                n_changes += 1
        if n_changes < MOSTLY_CHANGING * width:
            continue
        mean = stretch.mean()
        deviation = np.sqrt(((stretch - mean) ** 2).mean())
        near = stretch[reach - SHAPE_BLOCK // 2 : reach + SHAPE_BLOCK // 2].mean()
        upright = (
            1.0 if near >= stretch[reach - SURROUNDINGS // 2 : reach + SURROUNDINGS // 2].mean() else -1.0
        )
        for place in range(width):
            steps[n_kept, place] = np.int32(
                np.rint(STEPS_A_DEVIATION * upright * (stretch[place] - mean) / deviation)
            )
        n_kept += 1
    return steps[:n_kept]
