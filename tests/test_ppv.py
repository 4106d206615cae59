"""Shares of places above thresholds: those of a plain loop and of aeon's, the same bits on every path."""

import functools
import math

import numpy as np
import pytest
import torch

import naive
from network_claims import seeded_on_one_thread
from raxss.method.backbones import ppv as module
from raxss.method.backbones.ppv import N_KERNELS, fitted_cuts, plain_shares, shares, spread_dilations

PATHS = {"as called": shares, "plain": plain_shares}
LENGTHS = [1, 2, 8, 31, 64, 257]

# On one thread: aeon leaves torch with another number of them.
_seeded = pytest.fixture(autouse=True)(seeded_on_one_thread)


def groups_of(length, n_rows=2, n_dilations=4, device="cpu"):
    """Rows and dilations of every pair of both."""
    dilations = spread_dilations(length, n_dilations)
    rows = torch.arange(n_rows, dtype=torch.int32).repeat(len(dilations))
    steps = torch.tensor(dilations, dtype=torch.int32).repeat_interleave(n_rows)
    return rows.to(device), steps.to(device)


def case(rng, length, n_windows=3, n_cuts=4, **options):
    """Random walks of two rows with thresholds that some of their places are exactly at."""
    x = torch.from_numpy(rng.normal(size=(n_windows, 2, length)).cumsum(-1).astype(np.float32))
    groups = groups_of(length, **options)
    return x, *groups, fitted_cuts(x, *groups, n_cuts)


# What they are ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("length", LENGTHS)
def test_shares_of_whole_numbers_are_those_of_the_slow_loop(rng, length, path):
    """Of small whole numbers every sum is exact, so no place can be on the other side of a threshold."""
    x = torch.from_numpy(rng.integers(-9, 10, size=(2, 2, length)).astype(np.float32))
    rows, dilations = groups_of(length, n_dilations=2)
    cuts = torch.from_numpy(rng.integers(-30, 31, size=(len(rows), 84, 3)).astype(np.float32))
    found = PATHS[path](x, rows, dilations, cuts)
    expected = [naive.shares(window.numpy(), rows.tolist(), dilations.tolist(), cuts) for window in x]
    np.testing.assert_array_equal(found.numpy(), np.array(expected, dtype=np.float32))
    assert found.dtype == torch.float32


@pytest.mark.parametrize("length", [9, 50, 200])
def test_padded_kernels_have_the_shares_of_aeons_minirocket(rng, length):
    """aeon leaves the padding out for every second kernel; the others must agree with ours."""
    convolution_based = pytest.importorskip("aeon.transformations.collection.convolution_based")
    samples = rng.integers(-20, 21, size=(6, 1, length)).astype(np.float32)
    theirs = convolution_based.MiniRocket(n_kernels=84 * 6, random_state=0)
    features = np.asarray(theirs.fit_transform(samples))
    _, _, dilations, n_by_dilation, biases = theirs.parameters
    at, n_compared = 0, 0
    for j, (dilation, n_cuts) in enumerate(zip(dilations, n_by_dilation, strict=True)):
        part = slice(at, at + N_KERNELS * n_cuts)
        cuts = torch.from_numpy(biases[part]).view(1, N_KERNELS, n_cuts)
        group = torch.zeros(1, dtype=torch.int32)
        found = shares(torch.from_numpy(samples), group, group + int(dilation), cuts)[:, 0]
        expected = features[:, part].reshape(-1, N_KERNELS, n_cuts)
        padded = (j + np.arange(N_KERNELS)) % 2 == 0
        np.testing.assert_allclose(found.numpy()[:, padded], expected[:, padded], rtol=1e-6)
        n_compared += padded.sum() * n_cuts
        at += N_KERNELS * n_cuts
    assert n_compared == 84 * 6 // 2


@pytest.mark.parametrize("length", [16, 64, 100, 256, 1000, 1024, 5000])
@pytest.mark.parametrize("n_most", [1, 8, 16])
def test_dilations_are_aeons(length, n_most):
    minirocket = pytest.importorskip("aeon.transformations.collection.convolution_based._minirocket")
    expected, _ = minirocket._fit_dilations(length, 84 * n_most, n_most)
    assert spread_dilations(length, n_most) == expected.tolist()


# Thresholds ------------------------------------------------------------------------------------------------------


def test_thresholds_are_at_quantiles_of_the_outputs_of_the_kernels(rng):
    """Of few places all are looked at: the share above a threshold is one minus its rank, counted by hand."""
    x, rows, dilations, cuts = case(rng, 100, n_windows=8, n_cuts=3)
    found = shares(x, rows, dilations, cuts).double().mean(dim=0).flatten()
    golden = (math.sqrt(5) + 1) / 2
    ranks = torch.tensor([k * golden % 1 for k in range(1, len(found) + 1)])
    above = 799 - (ranks * 799).round()  # of 800 places, sorted; walks have no two alike
    # A tolerance for ties at the zeros of the padding.
    torch.testing.assert_close(found * 800, above.double(), atol=3, rtol=0)


def test_of_many_places_every_n_th_gives_the_thresholds(rng):
    x, rows, dilations, cuts = case(rng, 1024, n_windows=64, n_dilations=3)
    ranks = (torch.arange(1, cuts.numel() + 1, dtype=torch.float64) * (math.sqrt(5) + 1) / 2) % 1
    found = shares(x, rows, dilations, cuts).double().mean(dim=0).flatten()
    assert (found - (1 - ranks)).abs().max() < 0.03
    outputs = module.responses(module.taps(x[:, 1], int(dilations[1])))  # of group 1, which looks at row 1
    assert all(bool((outputs[k] == cuts[1, k, 0]).any()) for k in range(0, 84, 7))


# The same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_cuts", range(1, 10))
@pytest.mark.parametrize("length", [1, 31, 257])
def test_loops_and_torch_count_the_same_even_at_the_threshold(rng, length, n_cuts, monkeypatch):
    given = case(rng, length, n_cuts=n_cuts)
    found = shares(*given)
    assert torch.equal(found, plain_shares(*given))
    monkeypatch.setattr(module, "PLACES_AT_ONCE", 2 * length)  # some windows at a time
    assert torch.equal(found, plain_shares(*given))


@pytest.mark.parametrize("length", [16, 1500])
def test_threads_and_tasks_do_not_change_a_bit(rng, length, monkeypatch):
    given = case(rng, length, n_windows=13)
    threads, found = torch.get_num_threads(), []
    try:
        for n_threads in (1, 3):
            torch.set_num_threads(n_threads)
            for samples in (1, 5 * length, 10**9):
                monkeypatch.setattr(module, "SAMPLES_OF_A_TASK", samples)
                found.append(shares(*given))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(item, found[0]) for item in found)
    assert found[0].std() > 0.1


def test_strided_double_and_half_windows_under_autocast_are_counted_in_float32(rng):
    x, *others = case(rng, 64)
    expected = shares(x, *others)
    assert torch.equal(shares(x.transpose(1, 2).contiguous().transpose(1, 2), *others), expected)
    assert torch.equal(shares(x.double(), *others), expected)
    assert torch.equal(shares(x, *others[:2], others[2].double()), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(shares(x, *others), expected)
    assert shares(x.bfloat16(), *others).dtype == torch.float32


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_window_that_is_not_finite_counts_alike_on_both_paths_and_leaves_the_others_alone(rng, value):
    x, *others = case(rng, 64)
    expected = shares(x, *others)
    x[1, 0, 20] = value
    found = shares(x, *others)
    assert torch.equal(found, plain_shares(x, *others))
    assert torch.equal(found[[0, 2]], expected[[0, 2]])
    assert found.isfinite().all()


# On a GPU --------------------------------------------------------------------------------------------------------


def on_a_gpu(test):
    skip = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
    return pytest.mark.gpu(skip(test))


def there(*given):
    return [item.cuda() for item in given]


@on_a_gpu
@pytest.mark.parametrize("n_cuts", range(1, 9))
@pytest.mark.parametrize("length", [1, 31, 257, 1024, 5000])
@pytest.mark.parametrize("path", PATHS)
def test_a_gpu_counts_what_the_cpu_counts_bit_for_bit(rng, length, n_cuts, path):
    given = case(rng, length, n_windows=2 if length == 5000 else 9, n_cuts=n_cuts)
    assert torch.equal(PATHS[path](*there(*given)).cpu(), shares(*given))


@on_a_gpu
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_counts_on_a_gpu_as_on_the_cpu(rng, value):
    given = case(rng, 300)
    given[0][1, 0, 200] = value
    assert torch.equal(shares(*there(*given)).cpu(), shares(*given))


@on_a_gpu
@pytest.mark.parametrize("length", [65_535, 65_536])
def test_a_gpu_counts_windows_that_are_longer_than_a_count_has_bits(rng, length):
    given = case(rng, length, n_windows=2, n_dilations=1, n_cuts=2)
    given[-1][:, :, 0] = -math.inf  # below every place
    found = shares(*there(*given)).cpu()
    assert torch.equal(found, shares(*given))
    assert (found[..., 0] == 1).all()


@on_a_gpu
def test_a_gpu_without_the_kernel_warns_once_and_counts_the_same(rng, monkeypatch, caplog):
    given = case(rng, 64)
    monkeypatch.setattr(module, "LEAST_CAPABILITY", (99, 0))
    monkeypatch.setattr(module, "_kernel", functools.cache(module._kernel.__wrapped__))
    for _ in range(2):
        assert torch.equal(shares(*there(*given)).cpu(), shares(*given))
    assert caplog.text.count("shares are counted in torch") == 1
