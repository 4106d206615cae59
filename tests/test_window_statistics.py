"""Statistics of windows against plain loops, missing samples and padding, and views."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import naive_classifiers
from classifier_claims import LENGTH
from network_claims import seeded_on_one_thread
from raxss.method.backbones.statistics import window_statistics
from raxss.method.backbones.views import VIEWS, PPVView, StatisticsView, build_view

_seeded = pytest.fixture(autouse=True)(seeded_on_one_thread)


# Statistics of windows


@pytest.mark.parametrize(
    ("n_variates", "length"), [(1, 1), (1, 2), (2, 3), (1, 5), (3, 7), (2, 64), (1, 130)]
)
@pytest.mark.parametrize("missing", [0.0, 0.3, 0.7])
def test_statistics_are_those_of_plain_loops(rng, n_variates, length, missing):
    windows = rng.normal(size=(6, n_variates, length)).cumsum(axis=2)
    windows[rng.random(windows.shape) < missing] = np.nan
    windows[:, :, 0] = 1.0  # one sample is there
    found = window_statistics(torch.from_numpy(windows)).numpy()
    with np.errstate(divide="ignore"):
        expected = [naive_classifiers.window_statistics(window) for window in windows]
    assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_missing_samples_leave_quantiles_and_mean_of_the_others(rng):
    windows = torch.from_numpy(rng.normal(size=(1, 1, 50)))
    gone = rng.random(50) < 0.3
    gone[-1] = False
    holed = windows.clone()
    holed[..., gone] = torch.nan
    assert torch.equal(window_statistics(holed)[:, :6], window_statistics(windows[..., ~gone])[:, :6])


def test_padding_behind_a_short_series_does_not_change_statistics(rng):
    short = torch.from_numpy(rng.normal(size=(4, 2, 40)))
    padded = torch.full((4, 2, 64), torch.nan, dtype=torch.float64)
    padded[..., :40] = short
    n_quantiles = 4 * 15 * 6 * 2  # of four signals, 15 intervals, two variates
    assert torch.equal(window_statistics(padded)[:, :n_quantiles], window_statistics(short)[:, :n_quantiles])
    view = StatisticsView(2, 64)
    present = padded.isfinite()[:, :1].float()
    assert torch.equal(view(padded.nan_to_num(nan=7.0), present), window_statistics(padded))


def test_a_window_without_samples_has_zeros(rng):
    windows = torch.from_numpy(rng.normal(size=(3, 1, 20)))
    windows[1] = torch.nan
    found = window_statistics(windows)
    assert (found[1] == 0).all()
    assert (found[0] != 0).any()


def test_correlation_of_variates_is_over_the_samples_present(rng):
    windows = np.repeat(rng.normal(size=(1, 1, 400)), 2, axis=1)
    windows[:, :, rng.random(400) < 0.5] = np.nan
    assert_allclose(window_statistics(torch.from_numpy(windows))[0, -1], 1.0, atol=1e-4)


def test_ppv_thresholds_come_from_windows_of_all_series():
    windows = torch.zeros(1000, 1, LENGTH)
    windows[500:] = torch.randn(500, 1, LENGTH)
    view = PPVView(1, LENGTH)
    view.look_at(windows)
    assert (view.cuts != 0).float().mean() > 0.3


def test_views_say_what_they_hold_in_memory():
    for n_variates, length in ((1, 64), (3, 200)):
        for name in VIEWS:
            made = build_view(name, n_variates, length, rate=100.0)
            assert made(torch.zeros(2, n_variates, length)).shape == (2, made.d)
            assert made.size >= made.d + n_variates * length
