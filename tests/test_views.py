"""Every view: shapes, missing samples, what is saved; and the random parts of views with kernels."""

import pytest
import torch
from numpy.testing import assert_allclose

from network_claims import seeded_on_one_thread
from raxss.method.backbones.views import (
    N_CONTESTS,
    VIEWS,
    HydraView,
    MultiRocketView,
    PPVView,
    build_view,
    windows_and_steps,
)

NAMES = sorted(VIEWS)
RATE = 100.0  # Hz, for views that need it

_seeded = pytest.fixture(autouse=True)(seeded_on_one_thread)


def windows_of(n_variates, length, n=12):
    """Windows, one of them flat, and a mask: some have gaps, one no sample."""
    windows = torch.randn(n, n_variates, length).cumsum(dim=2)
    windows[1] = 3.3
    present = torch.ones(n, 1, length)
    present[4:] = (torch.rand(n - 4, 1, length) > 0.3).float()
    present[6] = 0
    return windows, present


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(("n_variates", "length"), [(1, 1), (4, 1), (2, 8), (1, 9), (1, 100), (12, 30)])
def test_windows_of_any_shape_have_finite_features(name, normalise, n_variates, length):
    view = build_view(name, n_variates, length, normalise=normalise, rate=RATE)
    windows, present = windows_of(n_variates, length)
    view.look_at(windows, present)
    for given in (present, None):
        found = view(windows, given)
        assert found.shape == (12, view.d)
        assert found.isfinite().all()
    assert view(windows[:0]).shape == (0, view.d)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_variates", [1, 3])
def test_a_state_dict_brings_back_a_view(name, n_variates):
    windows, present = windows_of(n_variates, 64)
    view, other = (build_view(name, n_variates, 64, rate=RATE) for _ in range(2))
    view.look_at(windows, present)
    other.load_state_dict(view.state_dict())
    assert torch.equal(other(windows, present), view(windows, present))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_variates", [1, 3])
def test_values_of_missing_samples_do_not_matter(name, n_variates):
    windows, present = windows_of(n_variates, 64)
    view = build_view(name, n_variates, 64, rate=RATE)
    view.look_at(windows, present)
    found = view(windows, present)
    assert torch.equal(view(windows * present + 9 * (1 - present), present), found)
    assert torch.equal(view(windows, torch.ones_like(present)), view(windows))


@pytest.mark.parametrize("length", [9, 64, 1024, 4096])
def test_numbers_of_features_of_kernels(length):
    assert PPVView(1, length).d in range(4000, 6001)
    assert MultiRocketView(1, length).d == 4 * PPVView(1, length).d
    n_dilations = {9: 1, 64: 3, 1024: 7, 4096: 9}[length]
    assert HydraView(1, length).d == n_dilations * N_CONTESTS * 16


def test_an_excess_and_wins_have_no_unit():
    windows, _ = windows_of(2, 64)
    for view in (MultiRocketView(2, 64), HydraView(2, 64)):
        view.look_at(windows)
        found = view(windows)
        view.look_at(1024 * windows)  # exact in floating point, so that no place moves over a threshold
        assert_allclose(view(1024 * windows), found, rtol=1e-5)


def test_competing_kernels_do_not_see_padding_and_see_every_variate():
    windows, _ = windows_of(3, 40)
    view = HydraView(3, 100)
    padded = torch.cat([windows, torch.full((12, 3, 60), 7.0)], dim=2)
    present = torch.ones(12, 1, 100)
    present[:, :, 40:] = 0
    short = HydraView(3, 40)
    n_shared = len(short.kernels)
    short.kernels.copy_(view.kernels[:n_shared])
    short.mixture.copy_(view.mixture[:n_shared])
    assert_allclose(view(padded, present)[:, : short.d], short(windows), atol=1e-5)
    assert (view.mixture != 0).any(dim=0).all()
    assert (view.mixture != 0).any(dim=1).all()


@pytest.mark.parametrize("kind", [PPVView, MultiRocketView])
@pytest.mark.parametrize("n_variates", [1, 3])
def test_the_edge_of_a_gap_is_no_jump_and_that_of_padding_as_without_gaps(kind, n_variates):
    view = kind(n_variates, 64)
    windows, present = torch.randn(4, n_variates, 64), torch.ones(4, 1, 64)
    present[1, :, 20:30] = present[2, :, :5] = 0
    present[3, :, 50:] = 0  # as behind a short series
    with_zeros = windows * present
    found = view._channels(with_zeros, present)
    expected = windows_and_steps(with_zeros, view.mixture, 64, outside=0.0)
    assert torch.equal(found[[0, 3]], expected[[0, 3]])
    if n_variates == 1:
        assert torch.equal(found[:, :1], expected[:, :1])
        assert found[1, 1].nonzero()[:, 0].tolist() == [*range(1, 20), *range(31, 64)]
        assert found[2, 1].nonzero()[:, 0].tolist() == list(range(6, 64))
        assert torch.equal(found[1, 1, 31:], expected[1, 1, 31:])


def test_steps_are_differences_and_sums_of_variates_take_turns():
    windows = torch.randn(2, 3, 10)
    steps = windows.diff(dim=2)
    found = windows_and_steps(windows, torch.zeros(0, 3), 12, outside=0.0)
    assert torch.equal(found[:, :3, :10], windows)
    assert torch.equal(found[:, 3:, 1:10], steps)
    assert (found[:, :, 11] == 0).all()
    assert (found[:, 3:, 0] == 0).all()
    mixture = torch.randn(4, 3)
    mixed = windows_and_steps(windows, mixture, 12, outside=torch.nan)
    assert_allclose(mixed[:, 2, :10], torch.einsum("v,bvt->bt", mixture[2], windows), rtol=1e-4, atol=1e-5)
    assert_allclose(mixed[:, 3, 1:10], torch.einsum("v,bvt->bt", mixture[3], steps), rtol=1e-4, atol=1e-5)
    assert mixed[:, :, 10:].isnan().all()
    assert mixed[:, 1::2, 0].isnan().all()
