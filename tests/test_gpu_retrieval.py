"""On a CUDA device: lists are those of brute force and of the CPU, together as alone, and in too little memory."""

import logging

import numpy as np
import pytest
import torch

import naive
from raxss.method.retrieval import cuda_layout, on_cuda, on_torch
from raxss.method.retrieval.cuda_layout import SHAPES
from raxss.method.retrieval.front import plan_search, retrieve, retrieve_many

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]

CLOSE = 1e-9  # similarities closer than this may be in either order: they were summed in another one


def signals(n_samples=9000):
    rng = np.random.default_rng(69421)
    noise = rng.normal(size=n_samples)
    loud, gaps, dead, bursts = noise.copy(), noise.copy(), noise.copy(), noise.copy()
    loud[n_samples // 4 : n_samples // 4 + 40] *= 1e6
    gaps[n_samples // 2 : n_samples // 2 + 3] = np.nan
    gaps[-700] = np.inf
    holes = np.where(rng.random(n_samples) < 0.01, np.nan, noise)
    holes[n_samples // 3 : n_samples // 3 + 300] = np.nan
    dead[n_samples // 3 : n_samples // 2] = 7.0
    bursts[::700] *= 1e5
    return {
        "noise": noise,
        "walk": noise.cumsum(),
        "offset": noise + 1e9,
        "drift": noise + np.linspace(0, 1e6, n_samples),
        "step": noise + 1e6 * (np.arange(n_samples) > n_samples // 2),
        "loud": loud,
        "bursts": bursts,
        "gaps": gaps,
        "holes": holes,
        "dead": dead,
        "tiny": noise * 1e-150,
        "ties": np.tile(rng.integers(-5, 6, size=60), n_samples // 60).astype(float),
        "variates": rng.normal(size=(3, n_samples // 2)).cumsum(axis=1),
    }


SETTINGS = {
    "plain": {"window_length": 256, "stride": 5},
    "short windows": {"window_length": 16, "stride": 3, "n_neighbors": 3},
    "every sample": {"window_length": 100, "stride": 1, "n_neighbors": 1},
    "exclusion": {"window_length": 256, "stride": 5, "exclusion": 128},
    "cosine": {"window_length": 128, "stride": 4, "measure": "cosine", "n_neighbors": 32},
    "local": {"window_length": 128, "stride": 5, "bank": "local", "bank_size": 301},
    "coarse": {"window_length": 128, "stride": 32},
}


def assert_same_lists(found, similarity, neighbors, atol=CLOSE):
    """The same similarities, and the same neighbors wherever their similarities differ."""
    np.testing.assert_allclose(found.similarity, similarity, rtol=0, atol=atol)
    swapped = found.neighbors != neighbors
    if swapped.any():
        beside = np.full(similarity.shape, np.inf)
        steps = np.abs(np.diff(similarity, axis=1))
        beside[:, 1:] = steps
        beside[:, :-1] = np.minimum(beside[:, :-1], steps)
        beside[:, -1] = 0.0  # the next one is not listed
        assert (beside[swapped] <= atol).all()
        assert swapped.mean() < 1e-3


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", signals())
def test_lists_are_those_of_brute_force(name, settings):
    samples = signals(1800)[name]
    found = retrieve(samples, **SETTINGS[settings], device="cuda")
    assert_same_lists(found, *naive.nearest_at_once(samples, found))


@pytest.mark.parametrize("name", ["walk", "loud", "gaps", "holes", "dead", "ties"])
def test_lists_are_those_of_the_cpu(name):
    samples = signals()[name]
    settings = {"window_length": 256, "stride": 5, "exclusion": 20}
    on_cpu = retrieve(samples, **settings)
    on_gpu = retrieve(samples, **settings, device="cuda")
    assert_same_lists(on_gpu, on_cpu.similarity, on_cpu.neighbors)
    np.testing.assert_array_equal(on_gpu.flags, on_cpu.flags)
    np.testing.assert_allclose(on_gpu.support, on_cpu.support, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("spread", [0, 50])
@pytest.mark.parametrize("measure", ["pearson", "cosine"])
def test_lists_with_a_spread_are_those_of_the_cpu(measure, spread):
    samples = np.random.default_rng(1).normal(size=(2, 20_000)).cumsum(axis=1) + 1e4
    samples[0, 5000:5100] = np.nan
    samples[:, 9000:9800] = 1.0
    settings = {"window_length": 256, "stride": 5, "exclusion": 128, "spread": spread, "measure": measure}
    on_cpu, on_gpu = (retrieve(samples, **settings, device=device) for device in ("cpu", "cuda"))
    np.testing.assert_array_equal(on_cpu.flags, on_gpu.flags)
    np.testing.assert_allclose(on_cpu.similarity, on_gpu.similarity, rtol=0, atol=CLOSE)
    assert (on_cpu.neighbors != on_gpu.neighbors).mean() < 1e-4


def test_a_sampled_bank_answers_alone():
    samples = signals()["walk"]
    settings = {"window_length": 256, "stride": 5, "bank": "sampled", "bank_size": 400}
    found = retrieve(samples, **settings, device="cuda")
    search = plan_search(samples, **settings).search
    assert set(found.neighbors.ravel()) <= set(search.bank)
    assert_same_lists(found, *on_torch.nearest_by_products(search, torch.device("cuda")))


def test_many_lengths_in_one_launch_have_the_lists_that_each_has_alone():
    rng = np.random.default_rng(5)
    lengths = (1, 5, 64, 65, 70, 101, 333, 1000, 4097, 20_000)
    series = [rng.normal(size=n).cumsum() for n in lengths]
    together = retrieve_many(series, window_length=64, stride=1, device="cuda")
    for item, found in zip(series, together, strict=True):
        alone = retrieve(item, window_length=64, stride=1, device="cuda")
        np.testing.assert_array_equal(found.neighbors, alone.neighbors)
        np.testing.assert_array_equal(found.flags, alone.flags)
        np.testing.assert_allclose(found.similarity, alone.similarity, rtol=0, atol=CLOSE)


def test_series_of_other_numbers_of_variates_go_together():
    rng = np.random.default_rng(6)
    series = [rng.normal(size=(n_variates, 700)) for n_variates in (1, 3, 2, 1)]
    for item, found in zip(
        series, retrieve_many(series, window_length=32, stride=2, device="cuda"), strict=True
    ):
        assert_same_lists(found, *naive.nearest_at_once(item, found))


def test_the_same_bits_come_twice():
    samples = np.random.default_rng(7).normal(size=30_000).cumsum()
    first, second = (retrieve(samples, window_length=512, stride=2, device="cuda") for _ in range(2))
    np.testing.assert_array_equal(first.similarity, second.similarity)
    np.testing.assert_array_equal(first.neighbors, second.neighbors)


@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_of_another_shape_give_the_same_lists(shape, monkeypatch):
    samples = signals()["bursts"]
    before = retrieve(samples, window_length=128, stride=5, device="cuda")
    monkeypatch.setattr(cuda_layout, "SHAPES", [shape])
    after = retrieve(samples, window_length=128, stride=5, device="cuda")
    np.testing.assert_array_equal(after.neighbors, before.neighbors)
    np.testing.assert_allclose(after.similarity, before.similarity, rtol=0, atol=CLOSE)


def test_launches_of_little_memory_give_the_same_lists(monkeypatch):
    series = [signals()["loud"], signals()["walk"]]
    before = retrieve_many(series, window_length=128, stride=5, device="cuda")
    monkeypatch.setattr(on_cuda, "_most_products", lambda device: 100_000)
    after = retrieve_many(series, window_length=128, stride=5, device="cuda")
    for item, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(item.neighbors, other.neighbors)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"n_neighbors": 33}, "n_neighbors is 33"),
        ({}, "ran out of memory"),
        ({}, "compute capability 7.5"),
        ({}, "1.0 MB free"),
    ],
)
def test_where_the_kernel_cannot_be_used_a_warning_is_logged_once_and_the_lists_are_the_same(
    settings, reason, monkeypatch, caplog
):
    samples = signals()["walk"]
    before = retrieve(samples, window_length=128, stride=5, device="cuda")
    on_torch._warn_once.cache_clear()
    on_cuda.why_not.cache_clear()
    if reason.startswith("ran out"):
        monkeypatch.setattr(on_torch, "nearest_on_cuda", _no_memory)
    if reason.startswith("compute"):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    if reason.endswith("free"):
        monkeypatch.setattr(on_torch, "free_on_gpu", lambda place: 1_000_000)
    with caplog.at_level(logging.WARNING, logger="raxss"):
        for _ in range(2):
            after = retrieve(samples, window_length=128, stride=5, **settings, device="cuda")
    on_cuda.why_not.cache_clear()
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len(set(messages))
    assert any(reason in message for message in messages)
    np.testing.assert_array_equal(after.neighbors[:, :10], before.neighbors)


def _no_memory(*_):
    raise torch.OutOfMemoryError("no memory left")
