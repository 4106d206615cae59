"""How are theta, and where asked for tau, found?

    WindowPool (all windows of all training series) -> epochs of Alg. 1 -> the best epoch's weights

`train_epoch` reads like Alg. 1; `train` adds schedule, validation, early stopping and checkpoints.
Next: estimator.py puts the chain together.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from sklearn.metrics import f1_score
from torch import Tensor, nn

from raxss.aggregation import (
    log_posteriors,
    negative_log_likelihood,
    posteriors_of,
    series_probability,
    window_weights,
)
from raxss.checkpoints import Progress, load_checkpoint, save_checkpoint, state_of
from raxss.config import TrainingConfig
from raxss.errors import TrainingError
from raxss.prediction import exact_arithmetic
from raxss.recordings.series import Series
from raxss.sampling import epoch_batches
from raxss.windows import window_starts

logger = logging.getLogger("raxss")

#: (windows, series, starts, flat) of one batch -> support
BatchSupport = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

WINDOWS_A_PASS = 4096


class WindowPool:
    """All windows of a set of series, kept on the device as one long strip of samples.

    No window is copied until a batch is gathered. Windows that touch non-finite samples are left out.

    Parameters
    ----------
    series
        Scaled series. Shorter ones are padded with zeros to ``window_length``.
    targets
        ``(n_series,)`` class index of each.
    influence
        For each series what goes into the softmax, ``(n_windows_i,)``; NaN: leave the window out.
    flat
        For each series which windows have no shape to compare, ``(n_windows_i,)``.
    """

    def __init__(
        self,
        series: Sequence[Series],
        targets: NDArray[np.int64],
        influence: Sequence[NDArray[np.float64]],
        flat: Sequence[NDArray[np.bool_]],
        *,
        window_length: int,
        stride: int,
        device: torch.device,
    ) -> None:
        self.window_length = window_length
        self.n_series = len(series)
        self.n_samples = np.array([one.n_samples for one in series])
        usable = [~np.isnan(one) for one in influence]
        self.n_windows = np.array([one.sum() for one in usable])
        strips, starts, offset = [], [], 0
        for one, mask in zip(series, usable, strict=True):
            strip = np.nan_to_num(one.samples.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
            strip = np.pad(strip, ((0, 0), (0, max(window_length - one.n_samples, 0))))
            within = window_starts(one.n_samples, window_length=window_length, stride=stride)[mask]
            strips.append(strip)
            starts.append(within + offset)
            offset += strip.shape[1]
        self.strip = torch.from_numpy(np.concatenate(strips, axis=1)).to(device)
        self.starts = torch.from_numpy(np.concatenate(starts)).to(device)
        self.series = torch.from_numpy(np.repeat(np.arange(self.n_series), self.n_windows)).to(device)
        kept = [one[mask] for one, mask in zip(influence, usable, strict=True)]
        self.influence = torch.from_numpy(np.concatenate(kept).astype(np.float32)).to(device)
        without_shape = [one[mask] for one, mask in zip(flat, usable, strict=True)]
        self.flat = torch.from_numpy(np.concatenate(without_shape)).to(device)
        self.targets = torch.from_numpy(np.asarray(targets, dtype=np.int64)).to(device)

    def __len__(self) -> int:
        return len(self.starts)

    def gather(self, indices: Tensor) -> Tensor:
        """Windows ``(batch, n_variates, window_length)`` by their index in the pool."""
        views = self.strip.unfold(1, self.window_length, 1)
        return views[:, self.starts[indices]].transpose(0, 1)

    def all_windows(self) -> Iterator[Tensor]:
        """Every window once, in order, as many at a time as memory bears."""
        for indices in torch.arange(len(self), device=self.strip.device).split(WINDOWS_A_PASS):
            yield self.gather(indices)


class Learner(nn.Module):
    """What training changes: the backbone, and the temperature where it is learned."""

    def __init__(self, backbone: nn.Module, *, temperature: float, learned: bool) -> None:
        super().__init__()
        self.backbone = backbone
        log_temperature = torch.tensor(math.log(temperature))
        if learned:
            self.log_temperature = nn.Parameter(log_temperature)
        else:
            self.register_buffer("log_temperature", log_temperature)

    @property
    def temperature(self) -> Tensor:
        """tau, positive because its logarithm is what is learned."""
        return self.log_temperature.exp()


class Callback(Protocol):
    """What `train` tells those who want to watch it."""

    def on_train_begin(self, n_epochs: int, n_steps: int) -> None:
        """Before the first epoch: how many epochs there may be, and steps in each."""

    def on_step(self, epoch: int, step: int) -> None:
        """After each optimiser step."""

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """After each epoch: its row of the history."""

    def on_train_end(self) -> None:
        """Always, also after an interruption."""


@dataclass(frozen=True)
class Trained:
    """How training ended. The learner itself holds the best weights."""

    history: list[dict[str, Any]]
    best_epoch: int
    interrupted: bool


def batch_loss(
    logits: Tensor,  # (batch, n_outputs)
    influence: Tensor,  # (batch,)
    series: Tensor,  # (batch,) index into targets
    targets: Tensor,  # (n_series,)
    *,
    temperature: Tensor,
    window_loss_weight: float,
    series_loss_weight: float,
) -> Tensor:
    """Loss of one batch of windows from several series.

    L_batch = beta · mean over series i in the batch of L(p-hat^(i), y^(i))
            + alpha · mean over windows k in the batch of L(p_k, y^(i(k)))

    Notes
    -----
    The paper has alpha = 0 and beta = 1. The window part averages over windows, not series, so that a series
    counts as often as it was drawn. It sees neither weights nor temperature.
    """
    loss = torch.zeros((), device=logits.device)
    if window_loss_weight > 0:
        picked = log_posteriors(logits).gather(1, targets[series][:, None])
        loss = loss - window_loss_weight * picked.mean()
    if series_loss_weight > 0:
        n_series = len(targets)
        weights = window_weights(influence, temperature=temperature, series=series, n_series=n_series)
        probability = series_probability(posteriors_of(logits), weights, series=series, n_series=n_series)
        present = torch.zeros(n_series, device=logits.device).index_fill(0, series, 1.0)
        losses = negative_log_likelihood(probability, targets)
        loss = loss + series_loss_weight * (losses * present).sum() / present.sum()
    return loss


def train_epoch(
    learner: Learner,
    pool: WindowPool,
    optimizer: torch.optim.Optimizer,
    *,
    config: TrainingConfig,
    seed: int,
    epoch: int,
    first_step: int,
    batch_support: BatchSupport | None = None,
    autocast: torch.dtype | None = None,
    on_step: Callable[[int], None] = lambda step: None,
) -> float:
    """Visit every window once and update theta after each batch (Alg. 1).

    Retrieve(w_k, x^(i)) of the algorithm sees neither labels nor theta, so it was done before the first
    epoch and lies in ``pool.influence``; with ``batch_support`` it is done here, among the batch's windows.

    Returns
    -------
    The mean loss over the batches.
    """
    learner.train()
    device = pool.strip.device
    total, n_batches = torch.zeros((), device=device), 0
    batches = epoch_batches(
        pool.n_windows, pool.n_samples, batch_size=config.batch_size, seed=seed, epoch=epoch
    )
    for indices in batches:  # W_0 <- Sample(W, B), without replacement
        batch = torch.from_numpy(indices).to(device)
        windows, series, influence = pool.gather(batch), pool.series[batch], pool.influence[batch]
        if batch_support is not None:
            influence = batch_support(windows, series, pool.starts[batch], pool.flat[batch])
        with torch.autocast(device.type, autocast) if autocast else nullcontext():
            logits = learner.backbone(windows)  # Y_i <- f_theta(w) for all series at once
        loss = batch_loss(  # Aggregate, then the loss over the series present
            logits.float(),
            influence,
            series,
            pool.targets,
            temperature=learner.temperature,
            window_loss_weight=config.window_loss_weight,
            series_loss_weight=config.series_loss_weight,
        )
        set_learning_rate(optimizer, learning_rate(config, first_step + n_batches, len(pool)))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()  # theta <- Update(theta, L_batch)
        total += loss.detach()
        n_batches += 1
        on_step(n_batches)
    return float(total) / n_batches


def steps_an_epoch(config: TrainingConfig, n_windows: int) -> int:
    """Batches in one epoch."""
    return math.ceil(n_windows / config.batch_size)


def learning_rate(config: TrainingConfig, step: int, n_windows: int) -> float:
    """Linear warm-up, then half a cosine down to the final rate, which is kept.

    Examples
    --------
    >>> config = TrainingConfig(lr=3e-4, warmup_steps=100, schedule_steps=700, final_lr=1e-6)
    >>> [f"{learning_rate(config, step, 10_000):.1e}" for step in (0, 50, 100, 400, 700, 9000)]
    ['0.0e+00', '1.5e-04', '3.0e-04', '1.5e-04', '1.0e-06', '1.0e-06']
    """
    last = config.schedule_steps or config.max_epochs * steps_an_epoch(config, n_windows)
    warmup = min(config.warmup_steps, last // 2)  # a short run must not be all warm-up
    if step < warmup:
        return config.start_lr + (config.lr - config.start_lr) * step / warmup
    share = min((step - warmup) / max(last - warmup, 1), 1.0)
    return config.final_lr + (config.lr - config.final_lr) * (1 + math.cos(math.pi * share)) / 2


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use this rate from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def pool_posteriors(backbone: nn.Module, pool: WindowPool) -> Tensor:
    """Posteriors ``(n_windows, C)`` of every window of a pool, dropout off."""
    backbone.eval()
    with torch.inference_mode(), exact_arithmetic():
        return torch.cat([posteriors_of(backbone(windows).float()) for windows in pool.all_windows()])


def validate(learner: Learner, pool: WindowPool) -> dict[str, float]:
    """Loss, accuracy and F1 of the series probabilities over all windows of the pool."""
    posteriors = pool_posteriors(learner.backbone, pool)
    with torch.inference_mode():
        weights = window_weights(
            pool.influence, temperature=learner.temperature, series=pool.series, n_series=pool.n_series
        )
        probability = series_probability(posteriors, weights, series=pool.series, n_series=pool.n_series)
        loss = float(negative_log_likelihood(probability, pool.targets).mean())
    truth, guess = pool.targets.cpu().numpy(), probability.argmax(dim=1).cpu().numpy()
    average = "binary" if probability.shape[1] == 2 else "macro"
    return {
        "validation_loss": loss,
        "validation_accuracy": float((truth == guess).mean()),
        "validation_f1": float(f1_score(truth, guess, average=average, zero_division=0.0)),
    }


def train(
    learner: Learner,
    pool: WindowPool,
    validation: WindowPool | None,
    *,
    config: TrainingConfig,
    seed: int,
    fingerprint: str,
    checkpoint: Path | None = None,
    resume: bool = False,
    batch_support: BatchSupport | None = None,
    callbacks: Sequence[Callback] = (),
) -> Trained:
    """Train until the epochs are over, validation stops improving, or somebody interrupts.

    The best epoch is the one with the highest validation series accuracy, ties by loss; its weights are in
    ``learner`` at the end. Without a validation part the last epoch counts. Ctrl-C after the first epoch
    ends training and keeps the best so far.

    Parameters
    ----------
    checkpoint
        File to write after every epoch.
    resume
        Go on from that file if it is there. The result is bit for bit that of an uninterrupted run on the
        same device with the same number of threads.
    """
    device = pool.strip.device
    own = [value for name, value in learner.named_parameters() if name == "log_temperature"]
    groups = [
        {"params": list(learner.backbone.parameters()), "weight_decay": config.weight_decay},
        {"params": own, "weight_decay": 0.0},  # decay would draw tau towards 1
    ]
    optimizer = torch.optim.Adam([group for group in groups if group["params"]], lr=config.lr)
    progress = Progress()
    if resume and checkpoint is not None and checkpoint.exists():
        progress = load_checkpoint(checkpoint, learner, optimizer, fingerprint=fingerprint)
        logger.info("resuming after epoch %d of %d", progress.epoch, config.max_epochs)
    interrupted = False
    for callback in callbacks:
        callback.on_train_begin(config.max_epochs, steps_an_epoch(config, len(pool)))
    try:
        with reproducible(device):
            while progress.epoch < config.max_epochs and not _out_of_patience(progress, config):
                record = _one_epoch(
                    learner, pool, validation, optimizer, progress, config, seed, batch_support, callbacks
                )
                if checkpoint is not None:
                    save_checkpoint(checkpoint, progress, learner, optimizer, fingerprint=fingerprint)
                for callback in callbacks:
                    callback.on_epoch_end(record)
    except KeyboardInterrupt:
        if not progress.best:
            raise
        interrupted = True
        logger.warning("interrupted after epoch %d; the best model so far is kept", progress.epoch)
    finally:
        for callback in callbacks:
            callback.on_train_end()
    learner.load_state_dict(progress.best)
    return Trained(progress.history, progress.best_epoch, interrupted)


def fit_temperature(
    posteriors: Sequence[Tensor],  # of each series (n_windows_i, C)
    influence: Sequence[NDArray[np.float64]],  # (n_windows_i,)
    targets: NDArray[np.int64],  # (n_series,)
) -> float:
    """The temperature, between .001 and 10, under which these series are the most likely.

    For where the gradient of the loss does not see tau.
    """
    series = torch.from_numpy(np.repeat(np.arange(len(targets)), [len(one) for one in influence]))
    values, scores = (
        torch.cat([one.double() for one in posteriors]),
        torch.from_numpy(np.concatenate(influence)),
    )

    def loss(log_temperature: float) -> float:
        temperature = math.exp(log_temperature)
        weights = window_weights(scores, temperature=temperature, series=series, n_series=len(targets))
        probability = series_probability(values, weights, series=series, n_series=len(targets))
        return float(negative_log_likelihood(probability, torch.from_numpy(targets)).mean())

    found = minimize_scalar(loss, bounds=(math.log(1e-3), math.log(10.0)), method="bounded")
    return math.exp(found.x)


def _one_epoch(
    learner: Learner,
    pool: WindowPool,
    validation: WindowPool | None,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    config: TrainingConfig,
    seed: int,
    batch_support: BatchSupport | None,
    callbacks: Sequence[Callback],
) -> dict[str, Any]:
    """Train one epoch, look at the validation part, and note both in ``progress``."""
    began, epoch, device = time.perf_counter(), progress.epoch, pool.strip.device

    def on_step(step: int) -> None:
        for callback in callbacks:
            callback.on_step(epoch, step)

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(_epoch_seed(seed, epoch))  # dropout
        loss = train_epoch(
            learner,
            pool,
            optimizer,
            config=config,
            seed=seed,
            epoch=epoch,
            first_step=progress.step,
            batch_support=batch_support,
            autocast=autocast_type(config, device),
            on_step=on_step,
        )
    if not math.isfinite(loss):
        raise TrainingError(
            f"the loss is {loss} in epoch {epoch + 1} (learning rate {config.lr:g}); training has diverged. Lower "
            "lr, or check the scaling of the samples. Checkpoints and models from before are as they were."
        )
    progress.epoch += 1
    progress.step += steps_an_epoch(config, len(pool))
    record: dict[str, Any] = {"epoch": progress.epoch, "train_loss": loss}
    if validation is not None:
        record |= validate(learner, validation)
    accuracy = record.get("validation_accuracy", float(progress.epoch))  # without validation: the last epoch
    better = (accuracy, -record.get("validation_loss", 0.0)) > (progress.best_accuracy, -progress.best_loss)
    if better:
        progress.best, progress.best_epoch = state_of(learner), progress.epoch
        progress.best_accuracy, progress.best_loss = accuracy, record.get("validation_loss", 0.0)
    record |= {
        "best": better,
        "temperature": learner.temperature.item(),
        "lr": optimizer.param_groups[0]["lr"],
        "windows": len(pool),
        "seconds": time.perf_counter() - began,
    }
    progress.history.append(record)
    return record


def _out_of_patience(progress: Progress, config: TrainingConfig) -> bool:
    return 0 < config.patience <= progress.epoch - progress.best_epoch and progress.best_epoch > 0


def _epoch_seed(seed: int, epoch: int) -> int:
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])


def autocast_type(config: TrainingConfig, device: torch.device) -> torch.dtype | None:
    """The type for mixed precision, or None for plain float32.

    It pays on GPUs that multiply bfloat16 in hardware; on CPUs these small networks are slower with it.
    """
    if config.precision == "bfloat16":
        return torch.bfloat16
    automatic = config.precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.bfloat16 if automatic else None


@contextmanager
def reproducible(device: torch.device) -> Iterator[None]:
    """Ask CUDA for the same sums in the same order every time; the CPU does so by itself."""
    if device.type != "cuda":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
