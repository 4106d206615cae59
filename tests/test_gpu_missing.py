"""On a CUDA device: missing samples in training and prediction, as on the CPU and without a wait."""

import warnings
from functools import partial

import numpy as np
import pytest
import torch

from raxss import RAxSSClassifier, Series
from raxss.estimator.config import Config
from raxss.estimator.fit import show_windows, support_in_batch
from raxss.method.augmentation import LIGHT, AugmentationConfig
from raxss.method.backbones import build_backbone
from raxss.method.backbones.ppv import plain_shares, shares
from raxss.method.backbones.protocol import handles_missing
from raxss.method.retrieval import retrieve_many
from raxss.method.training.step import Learner, adam, reproducible, step_for, take_step
from raxss.method.training.window_pool import WindowPool
from raxss.method.window_scorer import score_windows
from raxss.method.windows import windows_of
from toys import assert_same_bits, training_plan, waiting, weights_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]

DEVICE, LENGTH = torch.device("cuda"), 256
NETWORKS = ["convnet-fine", "multiview", "patchtst"]


def series_with_gaps(n=24, seed=0, n_samples=2000, n_variates=1):
    rng, found = np.random.default_rng(seed), []
    for k in range(n):
        samples = rng.normal(size=(n_variates, n_samples)) + np.sin(
            np.arange(n_samples) * (0.05 + 0.2 * (k % 2))
        )
        while np.isfinite(samples).all(axis=0).mean() > 1 - 0.3 * (k % 2):
            first = rng.integers(n_samples)
            samples[rng.integers(n_variates), first : first + rng.integers(1, 40)] = np.nan
        found.append(Series(samples, label=k % 2, group=k, name=f"series-{k}", gaps_marked=True))
    return found


def made(backbone, n_variates=1):
    series = series_with_gaps(n_variates=n_variates)
    pool = WindowPool.of_equals(series, np.arange(24) % 2, window_length=LENGTH, stride=32, device=DEVICE)
    torch.manual_seed(0)
    network = build_backbone(backbone, n_variates=n_variates, window_length=LENGTH, n_outputs=1)
    learner = Learner(network, temperature=0.1, learned=False).to(DEVICE)
    pool.with_mask, pool.plants_gaps = handles_missing(network), True
    show_windows(network, pool, seed=0)
    return pool, learner


@pytest.mark.parametrize("bank", ["series", "batch"])
@pytest.mark.parametrize("backbone", NETWORKS)
def test_no_step_with_gaps_waits_for_the_device(backbone, bank):
    pool, learner = made(backbone)
    config = training_plan(batch_size=128, series_loss_weight=1.0)
    settings = Config.from_parameters({"bank": bank, "series_loss_weight": 1.0})
    support = support_in_batch(settings, LENGTH, n_series=24)
    optimizer = adam(learner, config, DEVICE)
    options = {"augmentation": AugmentationConfig(**LIGHT), "batch_support": support}
    step = partial(take_step, learner, pool, optimizer, config=config, **options)
    with reproducible(DEVICE):
        step(torch.arange(128, device=DEVICE))
        with waiting("error"):
            for first in (128, 256):
                loss = step(torch.arange(first, first + 128, device=DEVICE))
    assert torch.isfinite(loss)


@pytest.mark.parametrize("backbone", NETWORKS)
def test_replayed_steps_with_gaps_are_the_plain_ones(backbone):
    found = []
    for replayed in (True, False):
        pool, learner = made(backbone)
        config = training_plan(batch_size=128, series_loss_weight=1.0)
        optimizer = adam(learner, config, DEVICE)
        torch.manual_seed(7)
        learner.train()
        with reproducible(DEVICE):
            step = step_for(learner, pool, optimizer, config=config) if replayed else partial(
                take_step, learner, pool, optimizer, config=config
            )  # fmt: skip
            for k in range(8):
                step(torch.arange(128 * (k % 4), 128 * (k % 4) + 128, device=DEVICE))
        found.append(weights_of(learner))
    assert_same_bits(*found)


@pytest.mark.parametrize("n_variates", [1, 6])
@pytest.mark.parametrize("backbone", NETWORKS)
def test_scores_with_gaps_are_those_of_the_cpu(backbone, n_variates):
    _, learner = made(backbone, n_variates)
    for item in series_with_gaps(4, seed=3, n_variates=n_variates):
        windows = windows_of(item, window_length=LENGTH, stride=16)
        on_gpu, on_cpu = (
            score_windows(learner.backbone, windows, device=torch.device(device), with_features=True)
            for device in ("cuda", "cpu")
        )
        close = 5e-2 if backbone == "multiview" else 1e-3  # a share may change by a place
        torch.testing.assert_close(on_gpu[0], on_cpu[0], atol=close, rtol=1e-3)


@pytest.mark.parametrize("dilation", [1, 7])
def test_the_kernel_counts_no_place_with_a_missing_tap(dilation):
    x = torch.randn(9, 2, 300, generator=torch.Generator().manual_seed(0))
    x[torch.rand(9, 2, 300, generator=torch.Generator().manual_seed(1)) < 0.02] = torch.nan
    cuts = torch.randn(2, 84, 4, generator=torch.Generator().manual_seed(2))
    rows = torch.tensor([0, 1], dtype=torch.int32)
    steps = torch.full((2,), dilation, dtype=torch.int32)
    found = shares(x.to(DEVICE), rows.to(DEVICE), steps.to(DEVICE), cuts.to(DEVICE))
    torch.testing.assert_close(found.cpu(), plain_shares(x, rows, steps, cuts))


@pytest.mark.parametrize("spread", [0, 60])
def test_many_series_with_and_without_gaps_have_the_lists_of_the_cpu(spread):
    some = [item.samples for item in series_with_gaps(10)]
    settings = {"window_length": 128, "stride": 4, "exclusion": 64, "spread": spread}
    on_gpu, on_cpu = (retrieve_many(some, **settings, device=device) for device in ("cuda", "cpu"))
    for one, other in zip(on_gpu, on_cpu, strict=True):
        np.testing.assert_array_equal(one.flags, other.flags)
        np.testing.assert_allclose(one.similarity, other.similarity, rtol=0, atol=1e-9)
        assert (one.neighbors != other.neighbors).mean() < 1e-3


def test_a_fit_with_gaps_is_the_same_again():
    found = []
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = RAxSSClassifier(
                window_length=LENGTH, stride=64, max_epochs=3, batch_size=64, random_state=0, device="cuda"
            ).fit(series_with_gaps())
        found.append(model.predict_proba(series_with_gaps(6, seed=9)))
        assert model.gap_finding_.differ
    np.testing.assert_array_equal(*found)
