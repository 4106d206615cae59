"""Batch-norm statistics recomputed over the training windows."""

import pytest
import torch
from torch import nn

from raxss.data.series import Series
from raxss.method.backbones import BACKBONES, build_backbone
from raxss.method.training.loop import update_batch_norm
from raxss.method.training.window_pool import SAMPLES_A_PASS
from toys import pool_of


def noise(rng, n_series=12):
    series = [Series(rng.normal(3.0, 2.0, size=64 * 3)) for _ in range(n_series)]
    return pool_of(series, window_length=64, stride=64)


def first_layer():
    return nn.Sequential(nn.BatchNorm1d(1), nn.Flatten(), nn.Linear(64, 1))


def norms_of(network):
    return [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm1d)]


@pytest.mark.parametrize("n_batches", [1, 3])
def test_the_first_layer_gets_the_moments_of_all_windows_and_batches_count_alike(rng, monkeypatch, n_batches):
    pool, network = noise(rng), first_layer()
    monkeypatch.setitem(SAMPLES_A_PASS, "cpu", len(pool) // n_batches * 64)
    update_batch_norm(network, pool, seed=0)
    values = torch.cat(list(pool.all_windows()))
    assert int(network[0].num_batches_tracked) == n_batches
    assert network[0].running_mean.item() == pytest.approx(values.mean().item(), rel=1e-6)
    if n_batches == 1:
        assert network[0].running_var.item() == pytest.approx(values.var().item(), rel=1e-6)


# Those of the registry; an ensemble is made of the others, and PatchTST has dropout in its attention as well.
WITH_NORMS = [
    name
    for name in sorted(set(BACKBONES) - {"ensemble", "patchtst"})
    if norms_of(build_backbone(name, n_variates=1, window_length=64, n_outputs=1))
]


def test_a_layer_that_is_used_twice_gets_the_average_of_both_uses(rng):
    """PatchTST's encoder normalises before and after its feed-forward part by one layer."""
    pool = noise(rng)
    norm = nn.BatchNorm1d(1, affine=False)
    network = nn.Sequential(
        norm, nn.Flatten(), nn.Unflatten(1, (1, 64)), norm, nn.Flatten(), nn.Linear(64, 1)
    )
    update_batch_norm(network, pool, seed=0)
    values = torch.cat(list(pool.all_windows()))
    expected = values.mean().item() / 2  # the second use has mean 0
    assert norm.running_mean.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", WITH_NORMS)
def test_networks_score_a_batch_alike_in_training_and_in_prediction(name, rng):
    """Without dropout, the statistics of one batch that holds all windows are those of the pool."""
    pool = noise(rng)
    torch.manual_seed(0)
    network = build_backbone(
        name, n_variates=1, window_length=64, n_outputs=1, options={"dropout": 0.0}
    ).eval()
    before = [(layer.momentum, layer.training) for layer in norms_of(network)]
    parameters = {key: value.clone() for key, value in network.named_parameters()}
    update_batch_norm(network, pool, seed=0)
    assert [(layer.momentum, layer.training) for layer in norms_of(network)] == before
    assert all(torch.equal(value, parameters[key]) for key, value in network.named_parameters())
    windows = torch.cat(list(pool.all_windows()))
    with torch.no_grad():
        predicted, trained = network(windows), network.train()(windows)
    n = windows.shape[0] * 8  # running variances are unbiased, those of a batch are not
    assert torch.allclose(predicted, trained, atol=20 / n), (predicted - trained).abs().max()


def test_a_network_without_such_layers_is_left_alone(rng):
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 1))
    network.forward = lambda windows: pytest.fail("there is nothing to recompute")
    update_batch_norm(network, noise(rng), seed=0)
