"""Batch-norm statistics recomputed over the training windows, as `torch.optim.swa_utils.update_bn` does.

    backbone, WindowPool -> running_mean and running_var of every batch-norm layer, in place

In training, a batch-norm layer keeps exponential averages over the last batches. After few steps, or with small
batches, these lag behind the weights or are noise; plain averages over all windows under the current weights are
not.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from raxss.method.training.window_pool import SAMPLES_A_PASS, WindowPool

MOST_WINDOWS = 4096  # enough for means and variances


def update_batch_norm(backbone: nn.Module, pool: WindowPool, *, seed: int) -> None:
    """Set the statistics of every batch-norm layer to the averages over the windows of a pool.

    mu = mean over batches b of mu_b,   sigma^2 = mean over batches b of sigma_b^2

    ``seed`` draws at most `MOST_WINDOWS` windows; dropout draws from torch's own generator, as in training. Other
    networks are left unchanged.
    """
    norms = [layer for layer in backbone.modules() if isinstance(layer, _BatchNorm)]
    norms = [layer for layer in norms if layer.track_running_stats and layer.momentum is not None]
    if not norms or len(pool) == 0:
        return
    drawn = np.random.default_rng(seed).permutation(len(pool))[:MOST_WINDOWS]
    at_once = max(SAMPLES_A_PASS[pool.device.type] // (len(pool.strip) * pool.window_length), 2)
    n_batches = -(-len(drawn) // at_once)  # of nearly equal size: a single window has no variance
    momentum = [layer.momentum for layer in norms]
    was_training = backbone.training
    backbone.train()
    try:
        with torch.no_grad():
            for layer in norms:
                layer.reset_running_stats()
                layer.momentum = None  # a plain average, also over several uses of one layer
            for indices in np.array_split(drawn, n_batches):
                backbone(pool.gather(torch.from_numpy(indices).to(pool.starts.device)))
    finally:
        for layer, value in zip(norms, momentum, strict=True):
            layer.momentum = value
        backbone.train(was_training)
