"""Four features of each kernel and threshold: those of a plain loop, on every path."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import naive_classifiers
from network_claims import seeded_on_one_thread
from raxss.method.backbones import multirocket as module
from raxss.method.backbones import ppv
from raxss.method.backbones.multirocket import plain_pooled, pooled
from raxss.method.backbones.ppv import shares
from test_ppv import case, groups_of

PATHS = {"as called": pooled, "plain": plain_pooled}

_seeded = pytest.fixture(autouse=True)(seeded_on_one_thread)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("length", [1, 2, 8, 31, 64])
def test_features_of_whole_numbers_are_those_of_the_slow_loop(rng, length, path):
    x = torch.from_numpy(rng.integers(-9, 10, size=(2, 2, length)).astype(np.float32))
    rows, dilations = groups_of(length, n_dilations=2)
    cuts = torch.from_numpy(rng.integers(-30, 31, size=(len(rows), 84, 2)).astype(np.float32))
    found = PATHS[path](x, rows, dilations, cuts)
    expected = [
        naive_classifiers.pooled(window.numpy(), rows.tolist(), dilations.tolist(), cuts.numpy())
        for window in x
    ]
    assert_allclose(found.numpy(), expected, rtol=1e-5)
    assert found.dtype == torch.float32


@pytest.mark.parametrize("path", PATHS)
def test_the_first_is_the_share_of_ppv_bit_for_bit(rng, path):
    given = case(rng, 257)
    assert torch.equal(PATHS[path](*given)[..., 0], shares(*given))


@pytest.mark.parametrize("length", [1, 31, 257, 1024])
def test_loops_and_torch_find_the_same(rng, length, monkeypatch):
    given = case(rng, length, n_cuts=3)
    found = pooled(*given)
    for _ in range(2):
        plain = plain_pooled(*given)
        assert torch.equal(found[..., 3], plain[..., 3])
        assert_allclose(found, plain, rtol=1e-4, atol=1e-4)
        monkeypatch.setattr(module, "PLACES_AT_ONCE", 2 * length)  # some windows at a time


@pytest.mark.parametrize("path", PATHS)
def test_of_no_place_or_all_places(rng, path):
    x, rows, dilations, cuts = case(rng, 50, n_cuts=2)
    cuts[..., 0], cuts[..., 1] = 1e6, -1e6
    found = PATHS[path](x, rows, dilations, cuts)
    for four, expected in ((found[..., 0, :], [0.0, 0.5, 0.0]), (found[..., 1, :], [1.0, 0.5, 1.0])):
        assert_allclose(four[..., [0, 2, 3]], np.broadcast_to(expected, (*four.shape[:3], 3)), rtol=1e-5)
    assert (found[..., 0, 1] == 0).all()
    assert_allclose(found[..., 1, 1], 1e6, rtol=1e-4)


@pytest.mark.parametrize("length", [16, 1500])
def test_threads_and_tasks_do_not_change_a_bit(rng, length, monkeypatch):
    given = case(rng, length, n_windows=13, n_cuts=1)
    threads, found = torch.get_num_threads(), []
    try:
        for n_threads in (1, 3):
            torch.set_num_threads(n_threads)
            for samples in (1, 5 * length, 10**9):
                monkeypatch.setattr(ppv, "SAMPLES_OF_A_TASK", samples)
                found.append(pooled(*given))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(item, found[0]) for item in found)


def test_strided_double_and_half_windows_under_autocast_are_pooled_in_float32(rng):
    x, *others = case(rng, 64)
    expected = pooled(x, *others)
    assert torch.equal(pooled(x.transpose(1, 2).contiguous().transpose(1, 2), *others), expected)
    assert torch.equal(pooled(x.double(), *others), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(pooled(x, *others), expected)
    assert pooled(x.bfloat16(), *others).dtype == torch.float32


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("length", [1, 31, 1024])
def test_a_gpu_finds_what_the_cpu_finds(rng, length):
    given = case(rng, length)
    found = pooled(*(item.cuda() for item in given)).cpu()
    assert torch.equal(found[..., [0, 3]], pooled(*given)[..., [0, 3]])
    assert_allclose(found, pooled(*given), rtol=1e-4, atol=1e-4)
