"""Networks over whole series: GRU, LSTM and Mamba on padded batches.

    series of any length -> batches of similar length, padded (batch, n_variates, longest), n_samples (batch,)
        -> logits (batch, n_outputs) -> series probabilities (n_series, C)

The baselines of SSS, where one series was one step; here a batch of series of similar length is. The network
masks the padding. Next: mil.py, which pools windows instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from raxss.benchmark.baselines.loop import Indices, NetworkBaseline
from raxss.data.series import Series
from raxss.errors import BackboneError
from raxss.method.aggregation import log_posteriors
from raxss.method.backbones.protocol import build_backbone
from raxss.method.training.settings import TrainingPlan
from raxss.method.training.window_pool import WindowPool
from raxss.method.window_scorer import exact_arithmetic, pick_device

LENGTH_TO_TRY = 1024  # a network over patches takes any; a new one is tried on this
BATCHES_A_BUCKET = 4  # series are shuffled, then sorted by length within so many batches
SAMPLES_A_PASS = {"cpu": 2**20, "cuda": 2**23}  # padding counted, where nothing is learned


@dataclass(eq=False, repr=False)
class SequenceClassifier(NetworkBaseline):
    """A network over whole series of any length.

    Parameters
    ----------
    backbone, backbone_options
        ``"gru"``, ``"lstm"``, ``"mamba"``, or a callable that builds a network whose call also takes
        ``n_samples (batch,)``, how many leading samples are real.
    scaling
        As of `RAxSSClassifier`.
    batch_size
        Series a step.
    lr, start_lr, final_lr, warmup_steps, schedule_steps, weight_decay, max_epochs, patience
        Adam with warm-up and a cosine; when to stop.
    validation_fraction
        Share of the series that early stopping looks at, where `fit` is given no validation set.
    device, random_state
        Where; and what draws initial weights, dropout and the order of the series.

    Attributes
    ----------
    classes_, backbone_, scaling_, history_, best_epoch_
    """

    backbone: Any = "gru"
    _: KW_ONLY
    lr: float = 1e-3
    warmup_steps: int = 20
    schedule_steps: int = 0
    weight_decay: float = 1e-4
    batch_size: int = 16
    patience: int = 15

    def _pools_one_by_one(self, series: list[Series]) -> Iterator[WindowPool]:
        device = pick_device(self.device)
        self.backbone_.to(device)
        yield self._pool(series, np.zeros(len(series), dtype=np.int64), device)

    def _batches(self, pool: WindowPool, config: TrainingPlan, epoch: int) -> list[Indices]:
        """Series of similar lengths."""
        return similar_lengths(pool.n_samples, config.batch_size, seed=self.seed_, epoch=epoch)

    def _loss_over(self, pool: WindowPool, config: TrainingPlan) -> Callable[[Indices], Tensor]:
        """A batch of series -> mean of -log p."""

        def loss_of(batch: Indices) -> Tensor:
            windows, n_samples, targets = padded_batch(pool, batch)
            picked = log_posteriors(self.backbone_(windows, n_samples)).gather(1, targets[:, None])
            return -picked.mean()

        return loss_of

    def _pool(self, series: list[Series], targets: NDArray[np.int64], device: torch.device) -> WindowPool:
        """The scaled series end to end on the device.

        As windows of one sample with a stride that leaves one a series: the strip holds every sample, and the
        starts are where series begin.
        """
        n_series, longest = len(series), max(item.n_samples for item in series)
        return WindowPool(
            [self.scaling_.apply(item) for item in series],
            targets,
            [np.zeros(1)] * n_series,
            [np.zeros(1, dtype=np.bool_)] * n_series,
            window_length=1,
            stride=longest,
            device=device,
        )

    def _build(self, n_outputs: int) -> nn.Module:
        network = build_backbone(
            self.backbone,
            n_variates=self.n_variates_,
            window_length=LENGTH_TO_TRY,
            n_outputs=n_outputs,
            options=self.backbone_options,
        )
        if "n_samples" not in inspect.signature(network.forward).parameters:
            raise BackboneError(
                f"backbone {type(network).__name__} reads windows of one length: its call does not take n_samples, "
                "how many samples of each padded series are real. Use 'gru', 'lstm' or 'mamba', or put it into "
                "RAxSSClassifier, which cuts windows."
            )
        return network

    def _logits(self, pool: WindowPool) -> Tensor:
        """``(n_series, n_outputs)`` on the device of the pool, dropout off."""
        self.backbone_.eval()
        order = np.argsort(pool.n_samples, kind="stable")
        with torch.inference_mode(), exact_arithmetic():
            parts = []
            for batch in _passes(pool.n_samples, order, SAMPLES_A_PASS[pool.device.type]):
                windows, n_samples, _ = padded_batch(pool, batch)
                parts.append(self.backbone_(windows, n_samples).float())
            logits = torch.cat(parts)
            back = torch.from_numpy(np.argsort(order, kind="stable")).to(logits.device)
            return logits[back]


def similar_lengths(n_samples: ArrayLike, batch_size: int, *, seed: int, epoch: int) -> list[Indices]:
    """Every series once, in batches whose series have similar lengths.

    All series are shuffled; within every four batches of them they are sorted by length, so that little is padded
    and yet no epoch has the batches of another. The batches then come in random order.

    >>> lengths = [90, 10, 80, 20, 70, 30, 60]
    >>> [[lengths[place] for place in batch] for batch in similar_lengths(lengths, 3, seed=1, epoch=0)]
    [[90], [60, 70, 80], [10, 20, 30]]
    """
    lengths = np.asarray(n_samples)
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(len(lengths))
    batches = []
    for first in range(0, len(order), BATCHES_A_BUCKET * batch_size):
        bucket = order[first : first + BATCHES_A_BUCKET * batch_size]
        bucket = bucket[np.argsort(lengths[bucket], kind="stable")]
        batches += [bucket[begin : begin + batch_size] for begin in range(0, len(bucket), batch_size)]
    return [batches[place] for place in generator.permutation(len(batches))]


def padded_batch(pool: WindowPool, batch: Indices) -> tuple[Tensor, Tensor, Tensor]:
    """Whole series of a `SequenceClassifier`'s pool, padded with zeros, without waiting for the device.

    Returns samples ``(batch, n_variates, longest)``, how many are real ``(batch,)``, and class indices
    ``(batch,)``.
    """
    place = pool.strip.device
    indices = torch.from_numpy(batch).to(place)
    n_samples = torch.from_numpy(pool.n_samples[batch]).to(place)
    time = torch.arange(int(pool.n_samples[batch].max()), device=place)
    places = (pool.starts[indices][:, None] + time).clamp_max(pool.strip.shape[1] - 1)  # (batch, longest)
    real = time < n_samples[:, None]
    windows = (pool.strip[: pool.n_variates, places] * real).transpose(0, 1)
    return windows.to(pool.device), n_samples.to(pool.device), pool.targets[indices.to(pool.device)]


def _passes(n_samples: NDArray[np.int64], order: Indices, most: int) -> list[Indices]:
    """Cut an order of ascending lengths into batches of at most ``most`` samples, padding counted."""
    passes: list[list[int]] = [[]]
    for index in order:
        if passes[-1] and (len(passes[-1]) + 1) * n_samples[index] > most:
            passes.append([])
        passes[-1].append(int(index))
    return [np.array(item, dtype=np.int64) for item in passes]
