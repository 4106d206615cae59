import numpy as np
import pytest
import torch
from torch.testing import assert_close

import naive_networks
from network_claims import build, double, numpy_weights, seeded_on_one_thread, trained_a_little
from raxss.method.backbones import timesnet
from raxss.method.backbones.timesnet import (
    TimesBlock,
    fold,
    group_folds,
    strongest_periods,
)

_seeded = pytest.fixture(autouse=True)(seeded_on_one_thread)


def noisy_waves(rng, length, width, periods):
    """(length, width): one sine a period, each weaker than the last, and a little noise."""
    time = np.arange(length)[:, None]
    phases = rng.uniform(0, 6, size=(len(periods), width))
    sines = [
        np.sin(2 * np.pi * time / period + phase) / (1 + place)
        for place, (period, phase) in enumerate(zip(periods, phases, strict=True))
    ]
    return sum(sines) + 0.05 * rng.normal(size=(length, width))


@pytest.mark.parametrize(("length", "top_k"), [(2, 3), (3, 3), (24, 1), (31, 3)])
def test_periods_and_weights_match_the_fourier_sum_written_out(rng, length, top_k):
    samples = 0.3 * rng.normal(size=(4, length, 3))
    periods, weights = strongest_periods(double(samples), top_k)
    for window, found, shares in zip(samples, periods, weights, strict=True):
        expected = naive_networks.strongest_periods(window, top_k)
        assert found.tolist() == [period for period, _ in expected]
        assert_close(shares, double([weight for _, weight in expected]))


def test_each_window_has_its_own_periods(rng):
    waves = [noisy_waves(rng, 120, 2, periods) for periods in ([12, 30], [8, 40])]
    periods, weights = strongest_periods(double(waves), top_k=2)
    assert periods.tolist() == [[12, 30], [8, 40]]
    assert (weights[:, 0] > weights[:, 1]).all()


@pytest.mark.parametrize("amplitude", [0.1, 10.0])  # all periods count, or the first alone
@pytest.mark.parametrize("length", [24, 31])
def test_a_layer_matches_one_that_folds_window_by_window_and_period_by_period(rng, length, amplitude):
    layer = TimesBlock(3, 4, top_k=3, n_kernels=3).double()
    samples = amplitude * rng.normal(size=(6, length, 3))
    weights = {f"x.{name}": value for name, value in numpy_weights(layer).items()}
    expected = [naive_networks.times_block(window, weights, "x", top_k=3) for window in samples]
    assert_close(layer(double(samples)).detach(), double(expected), rtol=1e-6, atol=1e-6)


def test_frequencies_with_one_period_are_folded_once_with_the_sum_of_their_weights(rng, monkeypatch):
    layer = TimesBlock(2, 4, top_k=3, n_kernels=2).double()
    folded = []
    monkeypatch.setattr(timesnet, "fold", lambda item, period: folded.append(period) or fold(item, period))
    samples = 0.05 * noisy_waves(rng, 30, 2, [30 / 11, 30 / 12, 30 / 13])  # 30 // 11 = 30 // 12 = 30 // 13
    weights = {f"x.{name}": value for name, value in numpy_weights(layer).items()}
    found = layer(double(samples)[None])[0].detach()
    assert folded == [2]
    assert_close(found, double(naive_networks.times_block(samples, weights, "x", top_k=3)))


def test_a_period_without_weight_is_not_folded_at(rng, monkeypatch):
    folded = []
    monkeypatch.setattr(timesnet, "fold", lambda item, period: folded.append(period) or fold(item, period))
    samples = 10 * noisy_waves(rng, 120, 2, [12, 30])
    TimesBlock(2, 4, top_k=2, n_kernels=2).double()(double(samples)[None])
    assert strongest_periods(double(samples)[None], 2)[0].tolist() == [[12, 30]]
    assert folded == [12]  # the amplitudes differ by hundreds, and exp(-100) adds nothing


def test_folds_are_grouped_by_period_and_each_is_done_once(rng):
    periods = torch.tensor(rng.integers(0, 5, size=(40, 3)))
    order, groups = group_folds(periods, most=7)
    assert sorted(order.tolist()) == periods.flatten().nonzero().flatten().tolist()
    assert max(n_folds for _, n_folds in groups) <= 7
    expected = [period for period, n_folds in groups for _ in range(n_folds)]
    assert periods.flatten()[order].tolist() == expected


@pytest.mark.parametrize(("n_variates", "length"), [(1, 24), (3, 13)])
def test_the_network_matches_a_slow_reading_of_the_paper(rng, n_variates, length):
    options = {"d_model": 6, "d_ff": 4, "n_kernels": 3, "top_k": 3, "n_layers": 2}
    network = trained_a_little(build("timesnet", n_variates, length, 3, **options), n_variates, length)
    for window in rng.normal(size=(3, n_variates, length)):
        expected = naive_networks.timesnet(window, numpy_weights(network), n_layers=2, top_k=3)
        assert_close(network(double(window)[None])[0].detach(), double(expected), rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_small_steps(rng):
    layer = TimesBlock(2, 3, top_k=2, n_kernels=2).double()
    samples = double(0.1 * noisy_waves(rng, 12, 2, [4, 6])[None]).requires_grad_()
    assert torch.autograd.gradcheck(layer, (samples,), atol=1e-6)


def test_the_score_does_not_depend_on_how_many_folds_are_done_at_once(monkeypatch):
    network = build("timesnet", window_length=64).eval()
    windows = torch.randn(20, 1, 64)
    at_once = network(windows)
    monkeypatch.setattr(timesnet, "SAMPLES_AT_ONCE", 3 * 64)
    assert_close(network(windows), at_once, atol=1e-5, rtol=1e-5)
