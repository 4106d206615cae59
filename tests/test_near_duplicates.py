"""The near-duplicate search finds copies whatever was done to them, and nothing else."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.signal import resample_poly

from raxss.data.near_duplicates import find_near_duplicates, resampled_similarity
from raxss.data.series import Series
from test_leakage import pooled


def found(copies):
    return [(item.first, item.second, item.kind) for item in copies]


def spike_in(samples, at, height):
    samples[at] += height
    return samples


# Signals that are not distinctive; each call draws a new one of 3000 samples at 500 Hz.
TIME = np.arange(3000) / 500
POOR = {
    "mains with 1 % noise": lambda rng: (
        np.sin(2 * np.pi * (50 * TIME + rng.random())) + 0.01 * rng.normal(size=3000)
    ),
    "mains with harmonics": lambda rng: sum(
        np.sin(2 * np.pi * n * (50 * TIME + phase)) / n for phase in [rng.random()] for n in range(1, 5)
    ),
    "slow sine": lambda rng: np.sin(2 * np.pi * (0.7 * TIME + rng.random())),
    "slower sine with noise": lambda rng: (
        np.sin(2 * np.pi * (0.2 * TIME + rng.random())) + 0.02 * rng.normal(size=3000)
    ),
    "ramp with noise": lambda rng: TIME * rng.uniform(5, 20) + rng.normal(size=3000),
    "flat with a spike": lambda rng: spike_in(np.zeros(3000), rng.integers(600, 2400), rng.uniform(50, 90)),
    "noise with a spike": lambda rng: spike_in(
        rng.normal(size=3000), rng.integers(600, 2400), rng.uniform(900, 950)
    ),
    "one step with noise": lambda rng: (
        20.0 * (np.arange(3000) > rng.integers(800, 2200)) + rng.normal(size=3000)
    ),
    "square waves": lambda rng: 1.0 * ((np.arange(3000) + rng.integers(100)) % 100 < 50),
    "square waves with noise": lambda rng: (
        1.0 * ((np.arange(3000) + rng.integers(100)) % 100 < 50) + 0.03 * rng.normal(size=3000)
    ),
    "regular pulses": lambda rng: 1.0 * ((np.arange(3000) + rng.integers(125)) % 125 < 5),
    "settling electrode": lambda rng: np.exp(-TIME) * rng.uniform(50, 90) + 0.2 * rng.normal(size=3000),
}


@pytest.mark.parametrize("name", POOR)
def test_signals_that_are_not_distinctive_are_no_copies(name):
    for length in (3000, 520):
        rng = np.random.default_rng(length)
        series = [Series(POOR[name](rng)[-length:], 500.0) for _ in range(12)]
        copies = find_near_duplicates(series, np.arange(len(series)) % 3)
        assert {item.kind for item in copies} <= {"identical"}  # as pulses of one phase are


def test_identical_values_are_found_in_poor_signals_but_not_in_flat_ones():
    rng = np.random.default_rng(1)
    sine, pulses = (POOR[name](rng) for name in ("slow sine", "regular pulses"))
    copies = find_near_duplicates([Series(sine), Series(pulses), Series(sine), Series(pulses)], [0, 0, 1, 1])
    assert found(copies) == [(0, 2, "identical"), (1, 3, "identical")]
    flat = [Series(np.full(1000, value)) for value in (0.0, 0.0, 3.0, np.nan)]
    assert find_near_duplicates(flat, [0, 1, 1, 0]) == []


def test_a_copy_is_found_where_one_variate_is_mains_only(rng):
    both = np.stack([rng.normal(size=1500).cumsum(), np.sin(0.3 * np.arange(1500))])
    copies = find_near_duplicates([Series(both[::-1]), Series(3 * both[::-1][:, 200:])], [0, 1])
    assert found(copies) == [(0, 1, "stretch")]


def test_a_copy_is_found_beside_gaps(rng):
    samples = rng.normal(size=2000).cumsum()
    other = 2 - 3 * samples
    other[300:340] = np.nan
    copies = find_near_duplicates([Series(samples), Series(other, gaps_marked=True)], [0, 1])
    assert found(copies) == [(0, 1, "stretch")]


def test_a_stretch_is_found_across_the_borders_of_what_is_read_at_once(rng, monkeypatch, tmp_path):
    monkeypatch.setattr("raxss.data.near_duplicates.CHUNK", 1500)
    long = rng.normal(size=20_000).cumsum().astype(np.float32)
    np.save(tmp_path / "long.npy", long)
    mapped = Series(np.load(tmp_path / "long.npy", mmap_mode="r"), 100.0)
    crops = [Series(long[begin : begin + 900], 100.0) for begin in (1, 1100, 2600, 8470, 19_100)]
    others = [Series(rng.normal(size=900).cumsum(), 100.0) for _ in range(5)]
    copies = find_near_duplicates([mapped, *crops, *others], [0] + [1] * 10)
    assert found(copies) == [(0, k, "stretch") for k in range(1, 6)]
    halved = Series(resample_poly(long, 1, 2), 50.0)
    assert [item.kind for item in find_near_duplicates([mapped, halved, *others], [0] + [1] * 6)] == [
        "resampled"
    ]


def test_all_variates_must_be_copied(rng):
    first, second = rng.normal(size=(2, 3, 1500)).cumsum(axis=2)
    mixed = first.copy()
    mixed[2] = second[2]
    assert len(find_near_duplicates([Series(first), Series(first[:, 100:] * [[2], [-1], [5]])], [0, 1])) == 1
    assert find_near_duplicates([Series(first), Series(mixed)], [0, 1]) == []


def test_pooling_is_undone_exactly(rng):
    samples = rng.normal(size=5000)
    assert_allclose(
        resampled_similarity(Series(samples, 1000.0), Series(pooled(samples), 1000 / 12)), 1, atol=1e-9
    )
    other = rng.normal(size=5000)
    assert resampled_similarity(Series(other, 1000.0), Series(pooled(samples), 1000 / 12)) < 0.5
