"""Perturbations against numbers worked out by hand: extent, strength, reproducibility."""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from raxss import Series
from raxss.benchmark.analyses.artefacts import (
    ARTEFACTS,
    MIXED,
    drift,
    dropouts,
    line_noise,
    noisy,
    pops,
    shortened,
    spoiled,
    stretches,
)
from raxss.errors import ConfigError

KINDS = (*ARTEFACTS, MIXED)
SHARES = (0.05, 0.1, 0.2, 0.35, 0.5)


def wave(name="a", n=4097, rate=173.61, n_variates=1, seed=0):
    """Noise, so that no two neighbouring samples are alike."""
    return Series(np.random.default_rng(seed).normal(size=(n_variates, n)), rate=rate, name=name)


# One stretch


def test_a_drift_rises_to_five_deviations_in_its_middle_and_begins_at_nothing(rng):
    still, deviation = np.zeros((2, 8)), np.array([[1.0], [3.0]])
    made = drift(still, deviation, rate=100.0, generator=rng)
    by_hand = [5 * (1 - math.cos(2 * math.pi * k / 8)) / 2 for k in range(8)]
    assert by_hand[4] == 5.0
    assert_allclose(abs(made), [by_hand, [3 * item for item in by_hand]], atol=1e-12)


def test_line_noise_is_a_sine_of_fifty_hertz_and_two_deviations(rng):
    made = line_noise(np.zeros((1, 500)), np.array([[1.5]]), rate=500.0, generator=rng)[0]
    power = abs(np.fft.rfft(made)) ** 2
    assert power.argmax() == 50  # one second: a bin is a hertz
    assert power[50] / power.sum() > 0.999
    assert math.sqrt(2 * np.mean(made**2)) == pytest.approx(2 * 1.5)


def test_line_noise_that_a_series_cannot_hold_is_slowed_to_what_it_can(rng):
    made = line_noise(np.zeros((1, 100)), np.array([[1.0]]), rate=100.0, generator=rng)[0]
    assert abs(np.fft.rfft(made)).argmax() == 40  # 100 / 2.5


def test_a_pop_jumps_by_eight_deviations_and_decays(rng):
    made = pops(np.zeros((1, 100)), np.array([[0.5]]), rate=100.0, generator=rng)[0]
    assert abs(made[0]) == pytest.approx(4.0)
    assert abs(made[25] / made[0]) == pytest.approx(math.exp(-1))
    assert len(set(np.sign(made))) == 1


def test_a_dropout_holds_its_first_value(rng):
    made = dropouts(rng.normal(size=(2, 50)), np.ones((2, 1)), rate=100.0, generator=rng)
    assert (made == made[:, :1]).all()


# Where


@pytest.mark.parametrize("share", SHARES)
def test_stretches_meet_the_share_to_the_sample_and_do_not_overlap(share):
    for seed in range(30):
        found = stretches(5000, share=share, rate=100.0, generator=np.random.default_rng(seed))
        lengths = [last - first for first, last in found]
        assert sum(lengths) == round(share * 5000)
        assert found[0][0] >= 0
        assert found[-1][1] <= 5000
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(found))
        assert max(lengths) <= 200
        assert sum(length < 20 for length in lengths) <= 1  # the one that was cut


def test_every_part_of_a_series_is_spoiled_as_often():
    covered = np.zeros(1000)
    for seed in range(2000):
        for first, last in stretches(1000, share=0.2, rate=100.0, generator=np.random.default_rng(seed)):
            covered[first:last] += 1 / 2000
    tenths = covered.reshape(10, 100).mean(axis=1)
    assert_allclose(tenths[1:-1], 0.2, atol=0.04)
    assert covered.mean() == pytest.approx(0.2)
    assert tenths.min() > 0.1  # a stretch that must lie within the series seldom covers its very ends


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_given_share_of_samples_changes(kind, share):
    clean = wave()
    n_changed = (spoiled(clean, kind, share).samples != clean.samples).sum()
    n_asked = round(share * clean.n_samples)
    n_starts = 0 if kind in ("pops", "line noise") else 40  # others begin at the signal, stretch by stretch
    assert n_asked - n_starts <= n_changed <= n_asked


def test_mixed_artefacts_are_of_every_kind():
    clean = Series(np.random.default_rng(1).normal(size=100_000), rate=100.0, name="long")
    made = spoiled(clean, "mixed", 0.5).samples[0]
    added = made - clean.samples[0]
    assert abs(added).max() == pytest.approx(8 * clean.samples.std(), rel=1e-6)  # pops
    assert (np.diff(made) == 0).sum() > 1000  # dropouts
    assert np.isclose(abs(added), 5 * clean.samples.std(), rtol=1e-3).any()  # drifts
    assert (np.abs(np.diff(np.sign(added))) == 2).sum() > 1000  # line noise changes its sign all the time


# For whom


@pytest.mark.parametrize("kind", KINDS)
def test_artefacts_depend_on_the_name_of_the_series_alone(kind):
    clean = wave()
    labelled = Series(clean.samples, rate=clean.rate, name="a", label="x", group="g")
    assert_array_equal(spoiled(clean, kind, 0.2).samples, spoiled(labelled, kind, 0.2).samples)
    other = Series(clean.samples, rate=clean.rate, name="b")
    assert (spoiled(other, kind, 0.2).samples != spoiled(clean, kind, 0.2).samples).any()


@pytest.mark.parametrize("kind", KINDS)
def test_strength_counts_from_the_series_own_deviation(kind):
    clean = wave(n_variates=2)
    loud = clean.with_samples(1000 * clean.samples)
    assert_allclose(spoiled(loud, kind, 0.2).samples, 1000 * spoiled(clean, kind, 0.2).samples, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_gaps_stay_gaps_and_nothing_else_becomes_one(kind):
    samples = wave().samples.copy()
    samples[0, 100:900] = np.nan
    gap = Series(samples, rate=173.61, name="gap", gaps_marked=True)
    made = spoiled(gap, kind, 0.5)
    assert_array_equal(np.isnan(made.samples), np.isnan(samples))
    assert made.gaps_marked


def test_the_type_of_samples_stays_where_it_has_fractions():
    single = Series(wave().samples.astype(np.float32), rate=100.0)
    assert spoiled(single, "drift", 0.2).samples.dtype == np.float32
    assert noisy(single, 10).samples.dtype == np.float32
    counts = Series(np.arange(1000), rate=100.0)
    assert spoiled(counts, "pops", 0.2).samples.dtype == np.float64


@pytest.mark.parametrize("decibels", [20, 10, 5, 0])
def test_noise_lies_so_many_decibels_below_the_signal(decibels):
    clean = Series(np.array([[1.0], [50.0]]) * np.sin(np.arange(50_000)), name="a")
    added = noisy(clean, decibels).samples - clean.samples
    ratio = 10 * np.log10(clean.samples.var(axis=1) / added.var(axis=1))
    assert_allclose(ratio, decibels, atol=0.15)
    neighbours = np.corrcoef(added[0, 1:], added[0, :-1])[0, 1]
    assert abs(neighbours) < 0.02  # white


@pytest.mark.parametrize(("share", "expected"), [(0.5, 500), (0.25, 250), (0.1, 128)])
def test_a_shortened_series_is_one_part_of_it_and_a_window_at_least(share, expected):
    clean = Series(np.arange(1000.0), name="a", label="x")
    part = shortened(clean, share, at_least=128)
    assert part.n_samples == expected
    assert (np.diff(part.samples[0]) == 1).all()
    assert part.label == "x"
    starts = {
        shortened(Series(clean.samples, name=str(k)), share, at_least=128).samples[0, 0] for k in range(20)
    }
    assert len(starts) > 10


def test_a_series_shorter_than_a_window_stays_whole():
    assert shortened(Series(np.arange(50.0)), 0.1, at_least=128).n_samples == 50


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: spoiled(wave(), "drifts", 0.2), r"kind of an artefact is 'drifts'; did you mean 'drift'"),
        (
            lambda: spoiled(wave(), "drift", 20),
            r"share of samples to spoil is 20; needed is a number from 0 to 1",
        ),
        (lambda: shortened(wave(), 1.5, at_least=1), r"share of a series to keep is 1\.5"),
    ],
)
def test_what_cannot_be_done_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        change()
