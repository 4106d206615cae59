"""How are theta, and where asked for tau, found?

    WindowPool (all windows of all training series) -> epochs of Alg. 1 -> the best epoch's weights

`train_epoch` reads like Alg. 1; `train` adds schedule, validation, early stopping and checkpoints. On a GPU the
windows lie on the device and the host only queues work: it waits for an answer once an epoch, not once a step.
Next: estimator.py puts the chain together.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

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
from raxss.backbones import features_of
from raxss.checkpoints import Progress, load_checkpoint, save_checkpoint, state_of
from raxss.config import TrainingConfig
from raxss.errors import TrainingError
from raxss.memory import available_memory, refuse_too_large
from raxss.prediction import exact_arithmetic
from raxss.recordings.series import Series
from raxss.sampling import epoch_orders
from raxss.windows import window_starts

logger = logging.getLogger("raxss")

#: (windows, series, starts, flat) of one batch -> support
BatchSupport = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

WINDOWS_A_PASS = {"cpu": 4096, "cuda": 8192}  # scored at once where nothing is learned
SHARE_FOR_THE_POOL = 0.5  # of a GPU's free memory; the rest is for the steps
STEPS_BEFORE_REPLAY = 3  # of a CUDA graph
MOST_FOR_MOMENTS = 2**17  # windows whose features are averaged; more would not change the third digit
#: Windows in the trial that tells how much memory a step needs. A GPU has a fixed part, for all its processors, in
#: use from some hundred windows on.
N_TRIAL = {"cpu": 32, "cuda": 512}
PEAK_OF_A_STEP = 1.25  # times what the way forward keeps: measured with PatchTST, layer by layer
BYTES_A_WINDOW = 8 + 8 + 8 + 4 + 1  # start, series and place in the epoch's order, influence, flat


class Batch(NamedTuple):
    """What a step needs of some windows, on the device that trains."""

    windows: Tensor  # (batch, n_variates, window_length)
    series: Tensor  # (batch,)
    starts: Tensor  # (batch,)
    influence: Tensor  # (batch,)
    flat: Tensor  # (batch,)


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
    device
        Where batches are needed.
    on_host
        Keep the strip in the host's memory and copy each batch to the device, which is slower. Without a word
        from the caller that is done where a GPU has no room for the pool.
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
        on_host: bool | None = None,
    ) -> None:
        self.window_length = window_length
        self.device = device
        self.n_series = len(series)
        self.n_samples = np.array([one.n_samples for one in series])
        usable = [~np.isnan(one) for one in influence]
        self.n_windows = np.array([one.sum() for one in usable])
        self.on_host = self._too_large(series) if on_host is None else on_host
        place = torch.device("cpu") if self.on_host else device
        strips, starts, offset = [], [], 0
        for one, mask in zip(series, usable, strict=True):
            strip = np.nan_to_num(one.samples.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
            strip = np.pad(strip, ((0, 0), (0, max(window_length - one.n_samples, 0))))
            within = window_starts(one.n_samples, window_length=window_length, stride=stride)[mask]
            strips.append(strip)
            starts.append(within + offset)
            offset += strip.shape[1]
        self.strip = torch.from_numpy(np.concatenate(strips, axis=1)).to(place)
        self.starts = torch.from_numpy(np.concatenate(starts)).to(place)
        self.series = torch.from_numpy(np.repeat(np.arange(self.n_series), self.n_windows)).to(place)
        kept = [one[mask] for one, mask in zip(influence, usable, strict=True)]
        self.influence = torch.from_numpy(np.concatenate(kept).astype(np.float32)).to(place)
        without_shape = [one[mask] for one, mask in zip(flat, usable, strict=True)]
        self.flat = torch.from_numpy(np.concatenate(without_shape)).to(place)
        self.targets = torch.from_numpy(np.asarray(targets, dtype=np.int64)).to(device)

    def __len__(self) -> int:
        return len(self.starts)

    def _too_large(self, series: Sequence[Series]) -> bool:
        """Whether a GPU has no room for this pool; says so, with both numbers. Refuses what no memory bears."""
        n_values = sum(one.n_variates * max(one.n_samples, self.window_length) for one in series)
        needed = 4 * n_values + BYTES_A_WINDOW * int(self.n_windows.sum())
        refuse_too_large(
            needed + 4 * n_values,  # while it is put together
            f"training on {int(self.n_windows.sum()):,} windows of {len(series)} series",
            "Train on fewer series, or with a longer stride.",
        )
        free = available_bytes(self.device)
        if self.device.type != "cuda" or free is None or needed <= SHARE_FOR_THE_POOL * free:
            return False
        logger.warning(
            "the windows of %d series need %s of memory and %s has %s free; they stay in the host's memory and "
            "every batch is copied, which is slower",
            len(series),
            _gigabytes(needed),
            self.device,
            _gigabytes(free),
        )
        return True

    def gather(self, indices: Tensor) -> Tensor:
        """Windows ``(batch, n_variates, window_length)`` by their index in the pool."""
        views = self.strip.unfold(1, self.window_length, 1)
        return self._on_device(views[:, self.starts[indices]].transpose(0, 1))

    def take(self, indices: Tensor) -> Batch:
        """Everything about the windows with these indices, which lie where the pool lies."""
        columns = (self.series, self.starts, self.influence, self.flat)
        return Batch(self.gather(indices), *(self._on_device(column[indices]) for column in columns))

    def all_windows(self, *, every: int = 1) -> Iterator[Tensor]:
        """Every window once, or every so-manieth, in order, as many at a time as memory bears."""
        n_at_once = WINDOWS_A_PASS[self.device.type]
        for indices in torch.arange(0, len(self), every, device=self.starts.device).split(n_at_once):
            yield self.gather(indices)

    def _on_device(self, values: Tensor) -> Tensor:
        if self.on_host and self.device.type == "cuda":  # from pinned memory a copy does not stop the host
            return values.pin_memory().to(self.device, non_blocking=True)
        return values


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


def take_step(
    learner: Learner,
    pool: WindowPool,
    optimizer: torch.optim.Optimizer,
    indices: Tensor,  # (batch,)
    *,
    config: TrainingConfig,
    batch_support: BatchSupport | None = None,
    autocast: torch.dtype | None = None,
) -> Tensor:  # ()
    """The body of Alg. 1's loop for one batch; returns its loss, which a GPU may still be computing.

    Retrieve(w_k, x^(i)) of the algorithm sees neither labels nor theta, so it was done before the first
    epoch and lies in ``pool.influence``; with ``batch_support`` it is done here, among the batch's windows.
    """
    windows, series, starts, influence, flat = pool.take(indices)
    if batch_support is not None:
        influence = batch_support(windows, series, starts, flat)
    with _mixed_precision(pool.device, autocast):
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
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()  # theta <- Update(theta, L_batch)
    return loss.detach()


class ReplayedStep:
    """A step recorded once as a CUDA graph and replayed from then on, with the same result.

    A step of the paper's network is some three hundred small pieces of work. A GPU does them in 6 ms, but the host
    needs 10 ms to queue them one by one; a graph is queued as one.

    Parameters
    ----------
    step
        Takes the indices of a batch to its loss, without ever waiting for the device.
    n_windows
        In a batch that is replayed; another size (the last batch of an epoch) is stepped through plainly.
    """

    def __init__(self, step: Callable[[Tensor], Tensor], n_windows: int) -> None:
        self._step, self._n_windows = step, n_windows
        self._n_plain = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._indices = self._loss = torch.zeros(0)

    def __call__(self, indices: Tensor) -> Tensor:
        """Take one step; the loss is overwritten by the next one."""
        if len(indices) != self._n_windows:
            return self._step(indices)
        if self._n_plain < STEPS_BEFORE_REPLAY:  # they compile kernels and make the optimiser's memory
            self._n_plain += 1
            return self._step(indices)
        if self._graph is None and not self._record(indices):
            return self._step(indices)
        assert self._graph is not None, "it was recorded"
        self._indices.copy_(indices)
        self._graph.replay()
        return self._loss

    def _record(self, indices: Tensor) -> bool:
        """Record a step without taking it; where that cannot be, say so once and go on plainly."""
        graph, self._indices = torch.cuda.CUDAGraph(), indices.clone()
        try:
            with torch.cuda.graph(graph):
                self._loss = self._step(self._indices)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            logger.warning("a step cannot be recorded (%s); it is queued in pieces, which is slower", error)
            self._n_windows = -1  # no batch has this size
            return False
        self._graph = graph
        return True


def step_for(
    learner: Learner,
    pool: WindowPool,
    optimizer: torch.optim.Optimizer,
    *,
    config: TrainingConfig,
    batch_support: BatchSupport | None = None,
    autocast: torch.dtype | None = None,
) -> Callable[[Tensor], Tensor]:
    """`take_step` for this learner, pool and optimiser: indices of a batch -> its loss.

    It is replayed as a CUDA graph where all lies on a GPU and nothing asks the device for a number; of a network
    its attribute ``capturable`` tells that.
    """
    step: Callable[[Tensor], Tensor] = partial(
        take_step, learner, pool, optimizer, config=config, batch_support=batch_support, autocast=autocast
    )
    on_gpu = pool.device.type == "cuda" and not pool.on_host
    if on_gpu and batch_support is None and getattr(learner.backbone, "capturable", False):
        return ReplayedStep(step, config.batch_size)
    return step


def train_epoch(
    step: Callable[[Tensor], Tensor],
    learner: Learner,
    pool: WindowPool,
    optimizer: torch.optim.Optimizer,
    *,
    config: TrainingConfig,
    order: NDArray[np.int64],
    first_step: int,
    on_step: Callable[[int], None] = lambda step: None,
) -> float:
    """Visit every window once and update theta after each batch (Alg. 1).

    Parameters
    ----------
    step
        From `step_for`: indices of a batch -> its loss.
    order
        ``(n_windows,)`` the order of the windows, from `raxss.sampling.epoch_order`.

    Returns
    -------
    The mean loss over the batches.

    Notes
    -----
    Nothing between the first batch and the last waits for a GPU; with the batch as the bank it does.
    """
    learner.train()
    total, n_batches = torch.zeros((), device=pool.device), 0
    places = torch.from_numpy(order).to(pool.starts.device)  # once, so that a batch is a piece of it
    for indices in places.split(config.batch_size):  # W_0 <- Sample(W, B), without replacement
        set_learning_rate(optimizer, learning_rate(config, first_step + n_batches, len(pool)))
        total += step(indices)
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


def adam(learner: Learner, config: TrainingConfig, device: torch.device) -> torch.optim.Adam:
    """The optimiser; on a GPU as one kernel for all of theta, with its rate on the device as well."""
    own = [value for name, value in learner.named_parameters() if name == "log_temperature"]
    groups = [
        {"params": list(learner.backbone.parameters()), "weight_decay": config.weight_decay},
        {"params": own, "weight_decay": 0.0},  # decay would draw tau towards 1
    ]
    groups = [group for group in groups if group["params"]]
    if device.type == "cpu":
        return torch.optim.Adam(groups, lr=config.lr)
    return torch.optim.Adam(groups, lr=torch.tensor(config.lr, device=device), fused=True, capturable=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use this rate from the next step on."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # where a recorded step looks for it
        else:
            group["lr"] = rate


def pool_posteriors(backbone: nn.Module, pool: WindowPool, *, autocast: torch.dtype | None = None) -> Tensor:
    """Posteriors ``(n_windows, C)`` of every window of a pool, dropout off; in float32 unless told otherwise."""
    backbone.eval()
    precision = _mixed_precision(pool.device, autocast) if autocast else exact_arithmetic()
    with torch.inference_mode(), precision:
        return torch.cat([posteriors_of(backbone(windows).float()) for windows in pool.all_windows()])


def feature_moments(backbone: nn.Module, pool: WindowPool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and deviation ``(d,)`` of each feature over the windows of a pool, for retrieval in feature space.

    Over evenly spread windows where there are more than 131,072. Summed on the device in float64; a feature that
    never changes gets the deviation 1.
    """
    backbone.eval()
    mean, squares = torch.zeros(2, dtype=torch.float64, device=pool.device)
    n_seen = 0
    with torch.inference_mode(), exact_arithmetic():
        for windows in pool.all_windows(every=math.ceil(len(pool) / MOST_FOR_MOMENTS)):
            part = features_of(backbone, windows).double()
            # Chan's update: all features at once would not fit into memory, plain sums would lose digits.
            variance, centre = torch.var_mean(part, dim=0, correction=0)
            shift, n_both = centre - mean, n_seen + len(part)
            squares = squares + variance * len(part) + shift**2 * (n_seen * len(part) / n_both)
            mean, n_seen = mean + shift * (len(part) / n_both), n_both
        scale = (squares / n_seen).sqrt()
        return mean.cpu().numpy(), torch.where(scale > 0, scale, 1.0).cpu().numpy()


def validate(learner: Learner, pool: WindowPool, *, autocast: torch.dtype | None = None) -> dict[str, float]:
    """Loss, accuracy and F1 of the series probabilities over all windows of the pool."""
    place, series, n_series = pool.series.device, pool.series, pool.n_series
    posteriors = pool_posteriors(learner.backbone, pool, autocast=autocast).to(place)
    with torch.inference_mode():
        temperature = learner.temperature.to(place)
        weights = window_weights(pool.influence, temperature=temperature, series=series, n_series=n_series)
        probability = series_probability(posteriors, weights, series=series, n_series=n_series).cpu()
        targets = pool.targets.cpu()
        loss = float(negative_log_likelihood(probability, targets).mean())
    truth, guess = targets.numpy(), probability.argmax(dim=1).numpy()
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
    device = pool.device
    optimizer = adam(learner, config, device)
    progress = Progress()
    if resume and checkpoint is not None and checkpoint.exists():
        progress = load_checkpoint(checkpoint, learner, optimizer, fingerprint=fingerprint)
        logger.info("resuming after epoch %d of %d", progress.epoch, config.max_epochs)
    if progress.epoch < config.max_epochs:
        with _memory_that_ends_is_told(config, device):
            check_step_memory(learner.backbone, pool, config)
    autocast = autocast_type(config, device)
    step = step_for(learner, pool, optimizer, config=config, batch_support=batch_support, autocast=autocast)
    interrupted = False
    epochs = range(progress.epoch, config.max_epochs)
    orders = epoch_orders(pool.n_windows, pool.n_samples, seed=seed, epochs=epochs)
    for callback in callbacks:
        callback.on_train_begin(config.max_epochs, steps_an_epoch(config, len(pool)))
    try:
        with reproducible(device), _memory_that_ends_is_told(config, device), closing(orders):
            while progress.epoch < config.max_epochs and not _out_of_patience(progress, config):
                record = _one_epoch(
                    step,
                    learner,
                    pool,
                    validation,
                    optimizer,
                    progress,
                    config=config,
                    seed=seed,
                    order=next(orders),
                    callbacks=callbacks,
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
    step: Callable[[Tensor], Tensor],
    learner: Learner,
    pool: WindowPool,
    validation: WindowPool | None,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    *,
    config: TrainingConfig,
    seed: int,
    order: NDArray[np.int64],
    callbacks: Sequence[Callback],
) -> dict[str, Any]:
    """Train one epoch, look at the validation part, and note both in ``progress``."""
    began, epoch, device = time.perf_counter(), progress.epoch, pool.device
    # On a GPU validation is as fast as training; what is predicted later is always float32.
    autocast = autocast_type(config, device) if device.type == "cuda" else None

    def on_step(step: int) -> None:
        for callback in callbacks:
            callback.on_step(epoch, step)

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(_epoch_seed(seed, epoch))  # dropout
        loss = train_epoch(
            step,
            learner,
            pool,
            optimizer,
            config=config,
            order=order,
            first_step=progress.step,
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
        record |= validate(learner, validation, autocast=autocast)
    accuracy = record.get("validation_accuracy", float(progress.epoch))  # without validation: the last epoch
    better = (accuracy, -record.get("validation_loss", 0.0)) > (progress.best_accuracy, -progress.best_loss)
    if better:
        progress.best, progress.best_epoch = state_of(learner), progress.epoch
        progress.best_accuracy, progress.best_loss = accuracy, record.get("validation_loss", 0.0)
    record |= {
        "best": better,
        "temperature": learner.temperature.item(),
        "lr": float(optimizer.param_groups[0]["lr"]),
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
    if config.precision == "float32" or device.type != "cuda":
        return None
    in_hardware = torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if in_hardware else None


def _mixed_precision(device: torch.device, autocast: torch.dtype | None) -> AbstractContextManager[Any]:
    return torch.autocast(device.type, autocast) if autocast else nullcontext()


@contextmanager
def reproducible(device: torch.device) -> Iterator[None]:
    """Ask CUDA for the same sums in the same order every time; the CPU does so by itself."""
    if device.type != "cuda":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    # It would also write NaN into every tensor that a kernel is about to fill, which costs time and finds nothing
    # in code that reads only what it wrote.
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        memory.fill_uninitialized_memory = filled
        torch.use_deterministic_algorithms(before, warn_only=warn_only)


# Memory ---------------------------------------------------------------------------------------------------


def available_bytes(device: torch.device) -> int | None:
    """Memory that is free on a device, or None where the system does not tell.

    >>> free = available_bytes(torch.device("cpu"))
    >>> free is None or free > 0
    True
    """
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch's own reserve
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    return available_memory()


def step_bytes(
    backbone: nn.Module, pool: WindowPool, n_windows: int, *, autocast: torch.dtype | None = None
) -> int:
    """The least memory that one step on so many windows needs.

    Found by a trial on few windows, which leaves weights, buffers and random generators as they were. On a GPU the
    allocator tells the peak; on a CPU it is what the way forward keeps for the way back.
    """
    n_trial = N_TRIAL[pool.device.type]
    few, more = (_bytes_of_a_trial(backbone, pool, n, autocast) for n in (n_trial, 2 * n_trial))
    return (more - few) * n_windows // n_trial


def _bytes_of_a_trial(
    backbone: nn.Module, pool: WindowPool, n_windows: int, autocast: torch.dtype | None
) -> int:
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    before, device = {name: value.clone() for name, value in backbone.state_dict().items()}, pool.device
    windows = pool.gather(torch.arange(n_windows, device=pool.starts.device) % len(pool))
    backbone.train()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        if device.type == "cuda":
            held = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
            with _mixed_precision(device, autocast):
                logits = backbone(windows)
            logits.float().sum().backward()
            n_bytes = torch.cuda.max_memory_allocated(device) - held
            backbone.zero_grad(set_to_none=True)
        else:
            with (
                torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
                _mixed_precision(device, autocast),
            ):
                logits = backbone(windows)
            n_bytes = sum(storages.values())
            del logits  # until here, so that no two storages had the same place
    backbone.load_state_dict(before)
    return n_bytes


def check_step_memory(backbone: nn.Module, pool: WindowPool, config: TrainingConfig) -> None:
    """Refuse a batch that cannot fit into memory before the first epoch, and warn of one that hardly can."""
    free = available_bytes(pool.device)
    if free is None:
        return
    n_windows = min(config.batch_size, len(pool))
    needed = step_bytes(backbone, pool, n_windows, autocast=autocast_type(config, pool.device))
    if PEAK_OF_A_STEP * needed <= free:
        return
    told = (
        f"one step on a batch of {n_windows} windows needs at least {_gigabytes(needed)} of memory, and "
        f"{_gigabytes(free)} are free on {_told(pool.device)}. Set batch_size to "
        f"{_advised(n_windows * free / needed)} or less, or train on a device with more memory."
    )
    if needed > free:
        raise TrainingError(told)
    logger.warning("this may not fit: %s", told)


@contextmanager
def _memory_that_ends_is_told(config: TrainingConfig, device: torch.device) -> Iterator[None]:
    """Turn an allocation that failed inside a step into an error that says what to do."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "can't allocate" not in str(error):
            raise
        raise TrainingError(
            f"the memory of {_told(device)} ended in a step with batch_size={config.batch_size} ({error}). Set "
            f"batch_size to {_advised(config.batch_size)} or less, end what else uses the device, or train on "
            "one with more memory. Checkpoints and models from before are as they were."
        ) from error


def _advised(n_windows: float) -> int:
    """The power of two at or below half of what would just fit."""
    return 2 ** max(int(math.log2(max(n_windows / 2, 1))), 0)


def _gigabytes(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.1f} MB"


def _told(device: torch.device) -> str:
    return "this machine" if device.type == "cpu" else str(device)
