"""Training loop: epochs of Alg. 1 with schedule, validation, early stopping and checkpoints.

    WindowPool (all windows of all training series) -> epochs of Alg. 1 -> the best epoch's weights

`train_epoch` is Alg. 1; `train` adds the rest. On a GPU the host waits once an epoch, not once a step.
Next: estimator/fit.py puts the chain together.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from sklearn.metrics import f1_score
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from raxss.errors import TrainingError
from raxss.method.aggregation import aggregate_batch, negative_log_likelihood, posteriors_of
from raxss.method.augmentation import AugmentationConfig
from raxss.method.sampling import epoch_orders
from raxss.method.training.checkpoints import Progress, load_checkpoint, save_checkpoint
from raxss.method.training.feature_support import Refresh, pool_gates
from raxss.method.training.settings import TrainingConfig, TrainingPlan
from raxss.method.training.step import (
    BatchSupport,
    Learner,
    adam,
    autocast_type,
    learning_rate,
    mixed_precision,
    reproducible,
    set_learning_rate,
    step_for,
    steps_an_epoch,
    warn_of_small_batches,
)
from raxss.method.training.step_memory import check_step_memory, hint_on_out_of_memory
from raxss.method.training.window_pool import SAMPLES_A_PASS, WindowPool
from raxss.method.window_scorer import exact_arithmetic

MOST_WINDOWS = 4096  # enough for means and variances of batch normalisation

logger = logging.getLogger("raxss")


class Callback(Protocol):
    """Callbacks of `train`."""

    def on_train_begin(self, n_epochs: int, n_steps: int) -> None:
        """Before the first epoch: the most epochs, and steps of each."""

    def on_step(self, epoch: int, step: int) -> None:
        """After each optimiser step."""

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """After each epoch: its row of the history."""

    def on_train_end(self) -> None:
        """At the end, also after an interruption."""


def train_epoch(
    step: Callable[[Tensor], Tensor],
    learner: Learner,
    pool: WindowPool,
    optimizer: torch.optim.Optimizer,
    *,
    config: TrainingPlan,
    order: NDArray[np.int64],
    first_step: int,
    on_step: Callable[[int], None] = lambda step: None,
) -> float:
    """Visit every window once, update theta after each batch, return the mean loss. Implements Alg. 1.

    Parameters
    ----------
    step
        From `step_for`: indices of a batch -> its loss.
    order
        ``(n_windows,)`` from `raxss.method.sampling.epoch_order`.
    """
    learner.train()
    total, n_batches = torch.zeros((), device=pool.device), 0
    shuffled = torch.from_numpy(order).to(pool.starts.device)
    for indices in shuffled.split(config.batch_size):  # W_0 <- Sample(W, B), without replacement
        set_learning_rate(optimizer, learning_rate(config, first_step + n_batches, len(pool)))
        total += step(indices)
        n_batches += 1
        on_step(n_batches)
    return float(total) / n_batches


def update_batch_norm(backbone: nn.Module, pool: WindowPool, *, seed: int) -> None:
    """Set the statistics of every batch-norm layer to the averages over the windows of a pool.

    mu = mean over batches b of mu_b,   sigma^2 = mean over batches b of sigma_b^2

    As `torch.optim.swa_utils.update_bn` does. The exponential averages that training keeps are, after few steps or
    with small batches, noise or behind the weights; plain averages over all windows under the current weights are
    not. ``seed`` draws at most `MOST_WINDOWS` windows; dropout draws from torch's own generator, as in training.
    Other networks are left unchanged.
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


def pool_posteriors(
    backbone: nn.Module,
    pool: WindowPool,
    *,
    autocast: torch.dtype | None = None,
    places: NDArray[np.int64] | None = None,
) -> Tensor:
    """Posteriors ``(n_windows, C)`` of a pool's windows, dropout off; float32 without ``autocast``.

    ``places``: indices of the windows ``(n_windows,)``; None: all.
    """
    backbone.eval()
    precision = mixed_precision(pool.device, autocast) if autocast else exact_arithmetic()
    with torch.inference_mode(), precision:
        passes = pool.all_windows() if places is None else pool.windows_at(places)
        return torch.cat([posteriors_of(backbone(windows).float()) for windows in passes])


def validate(
    learner: Learner,
    pool: WindowPool,
    *,
    autocast: torch.dtype | None = None,
    class_weights: Tensor | None = None,  # (C,)
) -> dict[str, float]:
    """Loss, accuracy, balanced accuracy and F1 of the series probabilities over all windows of the pool.

    With class weights the loss is the weighted mean over series, and there is a weighted accuracy as well, by which
    the best epoch is chosen: sum over series of w_y [predicted = y] / sum over series of w_y.
    """
    place, series, n_series = pool.series.device, pool.series, pool.n_series
    posteriors = pool_posteriors(learner.backbone, pool, autocast=autocast).to(place)
    influence = pool.influence
    if learner.heads is not None and learner.heads.gate is not None:
        influence = influence + pool_gates(learner, pool, autocast=autocast).to(place)
    with torch.inference_mode():
        temperature = learner.temperature.to(place)
        probability = aggregate_batch(
            posteriors, influence, temperature=temperature, series=series, n_series=n_series
        ).cpu()
        targets = pool.targets.cpu()
        losses = negative_log_likelihood(probability, targets).numpy()
    truth, guess = targets.numpy(), probability.argmax(dim=1).numpy()
    right, average = truth == guess, "binary" if probability.shape[1] == 2 else "macro"
    figures = {
        "validation_loss": float(losses.mean()),
        "validation_accuracy": float(right.mean()),
        "validation_balanced_accuracy": float(np.mean([right[truth == k].mean() for k in np.unique(truth)])),
        "validation_f1": float(f1_score(truth, guess, average=average, zero_division=0.0)),
    }
    counts = np.ones(0) if class_weights is None else class_weights.cpu().numpy()[truth]
    if counts.sum() > 0:
        figures["validation_loss"] = float(np.average(losses, weights=counts))
        figures["validation_weighted_accuracy"] = float(np.average(right, weights=counts))
    return figures


def train(
    learner: Learner,
    pool: WindowPool,
    validation: WindowPool | None,
    *,
    config: TrainingPlan,
    seed: int,
    fingerprint: str,
    checkpoint: Path | None = None,
    resume: bool = False,
    augmentation: AugmentationConfig | None = None,
    batch_support: BatchSupport | None = None,
    refresh: Refresh | None = None,
    class_weights: NDArray[np.float64] | None = None,
    callbacks: Sequence[Callback] = (),
) -> Progress:
    """Train until the last epoch, early stopping or Ctrl-C; ``learner`` then holds the weights of the best epoch.

    The best epoch has the highest accuracy on the validation series, ties by loss, both weighted where there are
    class weights; without a validation set it is the last. Ctrl-C in the first epoch raises.

    Parameters
    ----------
    checkpoint, resume
        File written after every epoch, and whether to continue from it. The result is bit for bit that of an
        uninterrupted run on the same device with the same number of threads.
    augmentation
        Random changes of the windows of a step; validation uses none.
    refresh
        Writes supports that depend on the weights into the pools, before the first epoch and after every one.
    class_weights
        ``(C,)`` from `raxss.method.class_weights.class_weights`; None: every series counts the same.
    """
    device = pool.device
    weights = (
        None if class_weights is None else torch.tensor(class_weights, dtype=torch.float32, device=device)
    )
    optimizer = adam(learner, config, device)
    progress = Progress()
    if resume and checkpoint is not None and checkpoint.exists():
        progress = load_checkpoint(checkpoint, learner, optimizer, fingerprint=fingerprint)
        logger.info("resuming after epoch %d of %d", progress.epoch, config.max_epochs)
    if progress.epoch < config.max_epochs:
        with hint_on_out_of_memory(device, config.batch_size):
            check_step_memory(learner.backbone, pool, config, augmentation)
        warn_of_small_batches(learner, pool, config, batch_support)
    autocast = autocast_type(config, device)
    options = {"augmentation": augmentation, "batch_support": batch_support, "autocast": autocast}
    step = step_for(learner, pool, optimizer, config=config, class_weights=weights, **options)
    # Validation on a GPU uses the precision of training; prediction is always float32.
    scoring = autocast if device.type == "cuda" else None

    def refreshed() -> None:
        if refresh is not None:
            with hint_on_out_of_memory(device):
                refresh(learner, pool, validation, scoring)

    def on_step(step: int) -> None:
        for callback in callbacks:
            callback.on_step(progress.epoch, step)

    epochs = range(progress.epoch, config.max_epochs)
    orders = epoch_orders(pool.n_windows, pool.n_samples, seed=seed, epochs=epochs)
    n_steps = steps_an_epoch(config, len(pool))
    run_epoch = partial(train_epoch, step, learner, pool, optimizer, config=config, on_step=on_step)
    for callback in callbacks:
        callback.on_train_begin(config.max_epochs, n_steps)
    try:
        with reproducible(device), hint_on_out_of_memory(device, config.batch_size), closing(orders):
            refreshed()
            while not progress.is_over(config.max_epochs, config.patience, config.stop_loss):
                began, drawing = time.perf_counter(), epoch_seed(seed, progress.epoch)
                with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                    torch.manual_seed(drawing)  # dropout and augmentation
                    loss = run_epoch(order=next(orders), first_step=progress.step)
                    validates = config.validates(progress.epoch + 1, loss)
                    if validates and config.update_batch_norm:
                        update_batch_norm(learner.backbone, pool, seed=drawing)
                refuse_divergence(loss, progress.epoch, config)
                progress.epoch += 1
                progress.step += n_steps
                refreshed()
                record: dict[str, Any] = {"epoch": progress.epoch, "train_loss": loss}
                if validates and validation is not None:
                    record |= validate(learner, validation, autocast=scoring, class_weights=weights)
                record |= {
                    "temperature": learner.temperature.item(),
                    "lr": float(optimizer.param_groups[0]["lr"]),
                    "windows": len(pool),
                    "seconds": time.perf_counter() - began,
                }
                progress.note(record, learner if validates else None, chooses=config.chooses_epoch)
                if checkpoint is not None:
                    save_checkpoint(checkpoint, progress, learner, optimizer, fingerprint=fingerprint)
                for callback in callbacks:
                    callback.on_epoch_end(record)
    except KeyboardInterrupt:
        if not progress.best:
            raise
        progress.interrupted = True
        done, best = progress.epoch, progress.best_epoch
        logger.warning("interrupted after epoch %d; ending with the best epoch so far, %d", done, best)
    finally:
        for callback in callbacks:
            callback.on_train_end()
    learner.load_state_dict(progress.best)
    return progress


def fit_temperature(
    posteriors: Sequence[Tensor],  # of each series (n_windows_i, C)
    influence: Sequence[NDArray[np.float64]],  # (n_windows_i,)
    targets: NDArray[np.int64],  # (n_series,)
) -> float:
    """Maximum-likelihood temperature between .001 and 10, for a loss whose gradient does not reach tau."""
    series = torch.from_numpy(np.repeat(np.arange(len(targets)), [len(item) for item in influence]))
    values = torch.cat([posterior.double() for posterior in posteriors])
    scores = torch.from_numpy(np.concatenate(influence))

    def loss(log_temperature: float) -> float:
        probability = aggregate_batch(
            values, scores, temperature=math.exp(log_temperature), series=series, n_series=len(targets)
        )
        return float(negative_log_likelihood(probability, torch.from_numpy(targets)).mean())

    found = minimize_scalar(loss, bounds=(math.log(1e-3), math.log(10.0)), method="bounded")
    return math.exp(found.x)


def refuse_divergence(loss: float, epoch: int, config: TrainingConfig) -> None:
    """Raise if the loss is NaN or infinite."""
    if not math.isfinite(loss):
        raise TrainingError(
            f"the loss is {loss} in epoch {epoch + 1} (learning rate {config.lr:g}); training has diverged. Lower "
            "lr, or check the scaling of the samples. Checkpoints and models from before are as they were."
        )


def epoch_seed(seed: int, epoch: int) -> int:
    """Seed of dropout and augmentation in an epoch."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
