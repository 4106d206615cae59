"""Wins and losses of competing kernels: those of a plain loop and of aeon's, on every path."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import naive_classifiers
from network_claims import seeded_on_one_thread
from raxss.method.backbones import hydra as module
from raxss.method.backbones import ppv
from raxss.method.backbones.hydra import contests, doubled_dilations, drawn_kernels, plain_contests

PATHS = {"as called": contests, "plain": plain_contests}

_seeded = pytest.fixture(autouse=True)(seeded_on_one_thread)


def groups_of(length, n_rows=2):
    """Rows and dilations of two groups of each row and dilation."""
    spread = doubled_dilations(length)
    rows = torch.arange(n_rows).repeat_interleave(2).repeat(len(spread))
    return rows.int(), torch.tensor(spread, dtype=torch.int32).repeat_interleave(2 * n_rows)


def whole_numbers(rng, length, n_windows=3, missing=0.0):
    """Windows and kernels of whole numbers, of which every sum is exact."""
    x = torch.from_numpy(rng.integers(-9, 10, size=(n_windows, 2, length)).astype(np.float32))
    x[torch.from_numpy(rng.random(x.shape) < missing)] = torch.nan
    rows, dilations = groups_of(length)
    kernels = torch.from_numpy(rng.integers(-5, 6, size=(len(rows), 8, 9)).astype(np.float32))
    kernels[:, :, -1] -= kernels.sum(dim=2)
    return x, rows, dilations, kernels


def case(rng, length, n_windows=3):
    x = torch.from_numpy(rng.normal(size=(n_windows, 2, length)).cumsum(-1).astype(np.float32))
    rows, dilations = groups_of(length)
    return x, rows, dilations, drawn_kernels(len(rows))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("length", [1, 2, 8, 9, 31, 70])
@pytest.mark.parametrize("missing", [0.0, 0.3, 1.0])
def test_counts_of_whole_numbers_are_those_of_the_slow_loop(rng, path, length, missing):
    x, rows, dilations, kernels = whole_numbers(rng, length, missing=missing)
    found = PATHS[path](x, rows, dilations, kernels)
    expected = [
        naive_classifiers.contests(window.numpy(), rows.tolist(), dilations.tolist(), kernels.numpy())
        for window in x
    ]
    assert_allclose(found.numpy(), expected, rtol=1e-5)
    assert found.dtype == torch.float32
    assert not x.isfinite().any() or length == 1 or found.abs().max() > 0


def test_counts_are_those_of_aeons_hydra(rng):
    """aeon pads with zeros and gives ties to the first kernel: of windows that end in zeros the others agree."""
    convolution_based = pytest.importorskip("aeon.transformations.collection.convolution_based")
    samples = np.zeros((5, 1, 120), dtype=np.float32)
    samples[:, :, 40:80] = rng.normal(size=(5, 1, 40))
    theirs = convolution_based.HydraTransformer(random_state=0)
    features = theirs.fit_transform(samples).numpy().reshape(5, 4, 2, 2, 32, 8)[:, :, 0]  # not of differences
    weights = theirs._hydra.W[:, 0].reshape(4 * 32, 8, 9)
    assert theirs._hydra.dilations.tolist() == doubled_dilations(120)
    steps = theirs._hydra.dilations.int().repeat_interleave(32)
    found = contests(torch.from_numpy(samples), torch.zeros_like(steps), steps, weights)
    found = found.numpy().reshape(5, 4, 32, 2, 8).swapaxes(2, 3)[..., 1:] * 120
    assert_allclose(found, features[..., 1:], atol=1e-4)


@pytest.mark.parametrize("length", [1, 9, 64, 257, 1024])
def test_loops_and_torch_count_the_same(rng, length, monkeypatch):
    given = case(rng, length)
    found = contests(*given)
    assert_allclose(found, plain_contests(*given), atol=2e-5)
    monkeypatch.setattr(module, "PLACES_AT_ONCE", 2 * length)  # some windows at a time
    assert_allclose(found, plain_contests(*given), atol=2e-5)


@pytest.mark.parametrize("length", [16, 1500])
def test_threads_and_tasks_do_not_change_a_bit(rng, length, monkeypatch):
    given = case(rng, length, n_windows=13)
    threads, found = torch.get_num_threads(), []
    try:
        for n_threads in (1, 3):
            torch.set_num_threads(n_threads)
            for samples in (1, 5 * length, 10**9):
                monkeypatch.setattr(ppv, "SAMPLES_OF_A_TASK", samples)
                found.append(contests(*given))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(item, found[0]) for item in found)
    assert found[0].std() > 0.01


@pytest.mark.parametrize("path", PATHS)
def test_somebody_loses_at_every_place_that_is_not_flat(rng, path):
    x, *others = case(rng, 64)
    found = PATHS[path](x, *others)
    assert_allclose(found[:, :, 1].sum(dim=2), 1.0, rtol=1e-5)
    flat = torch.full_like(x, 3.3)
    assert (PATHS[path](flat, *others) == 0).all()


@pytest.mark.parametrize("path", PATHS)
def test_level_does_not_matter_and_scale_only_to_wins(rng, path):
    x, *others = whole_numbers(rng, 64)
    found, moved = PATHS[path](x, *others), PATHS[path](4 * x + 100, *others)
    assert torch.equal(moved[:, :, 1], found[:, :, 1])
    assert_allclose(moved[:, :, 0], 4 * found[:, :, 0], rtol=1e-5)


@pytest.mark.parametrize("path", PATHS)
def test_padding_behind_a_short_series_does_not_change_counts(rng, path):
    x, *_ = case(rng, 40)
    _, *others = case(rng, 100)  # with dilations beyond the short one
    padded = torch.full((3, 2, 100), torch.nan)
    padded[:, :, :40] = x
    assert_allclose(PATHS[path](padded, *others), PATHS[path](x, *others), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_missing_on_both_paths_and_leaves_other_windows_alone(rng, value):
    x, *others = whole_numbers(rng, 64)
    expected = contests(x, *others)
    x[1, 0, 20] = value
    found = contests(x, *others)
    assert_allclose(found, plain_contests(x, *others), rtol=1e-5)
    assert torch.equal(found[[0, 2]], expected[[0, 2]])
    x[1, 0, 20] = torch.nan
    assert torch.equal(found, contests(x, *others))


def test_strided_double_and_half_windows_under_autocast_are_counted_in_float32(rng):
    x, *others = case(rng, 64)
    expected = contests(x, *others)
    assert torch.equal(contests(x.transpose(1, 2).contiguous().transpose(1, 2), *others), expected)
    assert torch.equal(contests(x.double(), *others), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(contests(x, *others), expected)
    assert contests(x.bfloat16(), *others).dtype == torch.float32


def test_kernels_have_no_mean_and_one_scale():
    kernels = drawn_kernels(50)
    assert_allclose(kernels.sum(dim=2), 0.0, atol=1e-6)
    assert_allclose(kernels.abs().sum(dim=2), 1.0, rtol=1e-5)
    assert not torch.equal(kernels, drawn_kernels(50))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("length", [1, 31, 1024])
def test_a_gpu_counts_what_the_cpu_counts(rng, length):
    for given in (case(rng, length), whole_numbers(rng, length, missing=0.2)):
        there = [item.cuda() for item in given]
        assert_allclose(contests(*there).cpu(), contests(*given), atol=2e-3, rtol=1e-4)
