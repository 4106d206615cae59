"""Keys of stretches: those of the naive loops. test_training_overlap.py has crops, other units and what repeats."""

import numpy as np
import pytest

import naive
from raxss.data.series import Series
from raxss.data.training_overlap import stretch_keys

SIGNALS = {
    "noise": lambda rng: rng.normal(size=3000),
    "random walk": lambda rng: rng.normal(size=3000).cumsum(),
    "large offset": lambda rng: 1e5 + rng.normal(size=3000),
    "small numbers": lambda rng: 1e-6 * rng.normal(size=3000),
    "whole numbers": lambda rng: rng.integers(-2000, 2000, size=3000).astype(np.int16),
    "a gap": lambda rng: np.where(np.arange(3000) // 200 == 7, np.nan, rng.normal(size=3000)),
    "saturated": lambda rng: np.clip(rng.normal(size=3000), -0.1, 0.1),
    "a square wave": lambda rng: np.sign(np.sin(np.arange(3000) / 30)),
    "a sine": lambda rng: np.sin(np.arange(3000) / 30),
    "flat": lambda rng: np.zeros(3000),
    "one stretch": lambda rng: rng.normal(size=256),
    "too short": lambda rng: rng.normal(size=255),
    "one sample": lambda rng: rng.normal(size=1),
}


@pytest.mark.parametrize("make", SIGNALS.values(), ids=SIGNALS)
def test_keys_are_those_of_the_plain_loops(make, rng):
    samples = make(rng)
    found, expected = set(stretch_keys(Series(samples)).tolist()), naive.stretch_keys(samples)
    # a sum in another order may move a value over the middle between two steps; it never did here
    assert found == expected


def test_pieces_that_are_read_one_after_the_other_give_the_keys_of_the_whole(rng, monkeypatch):
    series = Series(rng.normal(size=6000).cumsum())
    whole = stretch_keys(series)
    monkeypatch.setattr("raxss.data.near_duplicates.CHUNK", 700)
    np.testing.assert_array_equal(stretch_keys(series), whole)
    assert len(whole) > 20
