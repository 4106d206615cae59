"""DLinear, TimesNet and ModernTCN against plain loops over windows in float64 (naive_networks.py)."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import naive_networks
from network_claims import build, double, numpy_weights, seeded_on_one_thread, trained_a_little
from raxss.errors import ConfigError
from raxss.method.backbones import n_parameters, timesnet
from raxss.method.backbones.moderntcn import TwoKernels, depthwise
from raxss.method.backbones.timesnet import TimesBlock, fold, strongest_periods

_seeded = pytest.fixture(autouse=True)(seeded_on_one_thread)

TIMES = {"d_model": 6, "d_ff": 4, "n_kernels": 3, "top_k": 3, "n_layers": 2}
DEEP = {"widths": (4, 6, 8), "n_blocks": 2, "expansion": 2}
SINGLE = {"patch_length": 6, "patch_stride": 6, "widths": [5]}


@pytest.mark.parametrize(
    (
        "name",
        "n_variates",
        "length",
        "options",
        "stated",
    ),  # stated: what the plain loops cannot read from weights
    [
        ("dlinear", 1, 30, {"average_over": 5}, {"average_over": 5}),
        ("dlinear", 3, 17, {}, {"average_over": 25}),
        ("dlinear", 2, 1, {"average_over": 3}, {"average_over": 3}),
        ("timesnet", 1, 24, TIMES, {"n_layers": 2, "top_k": 3}),
        ("timesnet", 3, 13, TIMES, {"n_layers": 2, "top_k": 3}),
        ("moderntcn", 1, 64, {}, {"n_stages": 2, "n_blocks": 1, "patch_stride": 4}),
        ("moderntcn", 3, 43, DEEP, {"n_stages": 3, "n_blocks": 2, "patch_stride": 4}),
        ("moderntcn", 2, 21, SINGLE, {"n_stages": 1, "n_blocks": 1, "patch_stride": 6}),
    ],
)
def test_a_network_matches_a_slow_reading_of_the_paper(rng, name, n_variates, length, options, stated):
    network = trained_a_little(build(name, n_variates, length, 3, **options), n_variates, length)
    for window in rng.normal(size=(2, n_variates, length)):
        expected = getattr(naive_networks, name)(window, numpy_weights(network), **stated)
        assert_close(network(double(window)[None])[0].detach(), double(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dlinear", {"average_over": 24}, "average_over must be odd and at least 1, got 24"),
        ("dlinear", {"window_length": 0}, "at least 1; got window_length=0"),
        ("moderntcn", {"widths": []}, "from 1 to 64 numbers, one a stage; got 0"),
        ("moderntcn", {"widths": [1] * 65}, "from 1 to 64 numbers, one a stage; got 65"),
        ("moderntcn", {"widths": (8, 0)}, "widths=0"),
        ("moderntcn", {"patch_length": 3}, "patch_length=3, patch_stride=4"),
        ("moderntcn", {"large_kernel": 50}, "small_kernel=5, large_kernel=50"),
        ("moderntcn", {"large_kernel": 3}, "small_kernel=5, large_kernel=3"),
    ],
)
def test_sizes_that_make_no_network_are_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        build(name, **options)


def test_at_ten_thousand_samples_dlinear_keeps_1024_components():
    network = build("dlinear", n_variates=6, window_length=10_000)
    assert n_parameters(network) == 2 * (10_000 * 1024 + 1024) + 6 * 1024 + 1


# TimesNet


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


@pytest.mark.parametrize("amplitude", [0.1, 10.0])  # all periods count, or the first alone
@pytest.mark.parametrize("length", [24, 31])
def test_a_layer_matches_one_that_folds_window_by_window_and_period_by_period(rng, length, amplitude):
    layer = TimesBlock(3, 4, top_k=3, n_kernels=3).double()
    samples = amplitude * rng.normal(size=(6, length, 3))
    weights = {f"x.{name}": value for name, value in numpy_weights(layer).items()}
    expected = [naive_networks.times_block(window, weights, "x", top_k=3) for window in samples]
    assert_close(layer(double(samples)).detach(), double(expected), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("amplitude", "length", "periods", "expected"),
    [
        (0.05, 30, [30 / 11, 30 / 12, 30 / 13], [2]),  # three frequencies with one period, 30 // f
        (10, 120, [12, 30], [12]),  # amplitudes differ by hundreds, and exp(-100) adds nothing
    ],
)
def test_a_period_is_folded_once_and_without_weight_not_at_all(
    rng, monkeypatch, amplitude, length, periods, expected
):
    folded = []
    monkeypatch.setattr(timesnet, "fold", lambda item, period: folded.append(period) or fold(item, period))
    layer = TimesBlock(2, 4, top_k=len(periods), n_kernels=2).double()
    samples = amplitude * noisy_waves(rng, length, 2, periods)
    weights = {f"x.{name}": value for name, value in numpy_weights(layer).items()}
    found = layer(double(samples)[None])[0].detach()
    assert folded == expected
    assert_close(found, double(naive_networks.times_block(samples, weights, "x", top_k=len(periods))))


def test_the_score_does_not_depend_on_how_many_folds_are_done_at_once(monkeypatch):
    network = build("timesnet", window_length=64).eval()
    windows = torch.randn(20, 1, 64)
    at_once = network(windows)
    monkeypatch.setattr(timesnet, "SAMPLES_AT_ONCE", 3 * 64)
    assert_close(network(windows), at_once, atol=1e-5, rtol=1e-5)


# ModernTCN


@pytest.mark.parametrize(("large", "small"), [(51, 5), (7, 7), (3, 1)])
def test_at_prediction_one_kernel_does_what_two_did(large, small):
    both = trained_a_little(torch.nn.Sequential(TwoKernels(4, large, small)), 4, 60)[0].float()
    rows = torch.randn(5, 4, 60)
    side_by_side = both.large_norm(depthwise(rows, both.large.weight))
    side_by_side = side_by_side + both.small_norm(depthwise(rows, both.small.weight))
    assert_close(both(rows), side_by_side, atol=1e-5, rtol=1e-5)


def test_the_last_sample_is_seen_whatever_the_length():
    for length in range(1, 14):
        network = build("moderntcn", window_length=length).eval()
        windows = torch.randn(1, 1, length).repeat(2, 1, 1)
        windows[1, 0, -1] += 1
        first, second = network.features(windows)
        assert not torch.allclose(first, second), length


@pytest.mark.parametrize(("length", "sizes"), [(1, [1, 1]), (24, [11, 5]), (1024, [51, 51])])
def test_kernels_reach_no_further_than_the_window(length, sizes):
    network = build("moderntcn", window_length=length)
    assert [stage[1].along_time.large.kernel_size[0] for stage in network.stages] == sizes
