"""How is a network of a baseline trained?

    batches of an epoch, loss of a batch, figures on validation -> the best epoch's weights in the network

`NetworkBaseline` has the settings and the order of work that its subclasses share. The optimiser, schedule, seeds
and choice of the epoch are those of raxss.method.training, which trains RAxSS; what differs is what a batch is and
what its loss. On a GPU the host only queues work: it waits for an answer once an epoch.
Next: sequences.py, whose batches are whole series; mil.py, whose batches are windows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raxss.benchmark.baselines.common import Baseline, Given, require_finite
from raxss.data.prepare.preprocessing import Scaling
from raxss.data.series import Series
from raxss.method.aggregation import log_posteriors, posteriors_of
from raxss.method.backbones.protocol import n_outputs_for
from raxss.method.training.checkpoints import Progress
from raxss.method.training.loop import Trained, epoch_seed, refuse_divergence
from raxss.method.training.settings import TrainingConfig, TrainingPlan
from raxss.method.training.step import Learner, adam, learning_rate, reproducible, set_learning_rate
from raxss.method.training.window_pool import WindowPool
from raxss.method.window_scorer import pick_device

Indices = NDArray[np.int64]
Network = TypeVar("Network", bound=nn.Module)


@dataclass(eq=False, repr=False, kw_only=True)
class NetworkBaseline(Baseline):
    """A network that is trained by `train_network`.

    A subclass adds ``backbone`` and the fields of `TrainingConfig` in which it differs from others, and the methods
    below that raise.
    """

    backbone_options: Mapping[str, Any] | None = None
    scaling: Literal["train", "series", "none"] = "series"
    start_lr: float = 0.0
    final_lr: float = 1e-6
    max_epochs: int = 50
    validation_fraction: float = 0.125

    def _check_parameters(self) -> None:
        training_settings(self)
        pick_device(self.device)

    def _learn(self, given: Given) -> None:
        device = pick_device(self.device)
        self.scaling_ = Scaling.fit(given.series, self.scaling)
        pool = self._pool(given.series, given.targets, device)
        config = training_settings(self).for_windows(len(pool))
        held = self._pool(given.validation, given.validation_targets, device) if given.validation else None
        self.backbone_ = fresh_network(self._build, len(self.classes_), self.seed_).to(device)
        self._before_training(pool)
        trained = train_network(
            self.backbone_,
            n_items=len(pool),
            batches=lambda epoch: self._batches(pool, config, epoch),
            loss_of=self._loss_over(pool, config),
            evaluate=None if held is None else lambda: figures_of(self._logits(held), held.targets),
            config=config,
            seed=self.seed_,
            device=device,
        )
        self.history_, self.best_epoch_ = pd.DataFrame(trained.history), trained.best_epoch

    def _probabilities(self, series: list[Series]) -> NDArray[np.float64]:
        logits = torch.cat([self._logits(pool) for pool in self._pools_one_by_one(series)])
        return require_finite(posteriors_of(logits.double()).cpu().numpy(), series)

    def _build(self, n_outputs: int) -> Any:
        """The network, with its initial weights."""
        raise NotImplementedError

    def _before_training(self, pool: WindowPool) -> None:
        """What the network takes from the training series before its first step."""

    def _pool(self, series: list[Series], targets: NDArray[np.int64], device: torch.device) -> WindowPool:
        """Scaled series on the device."""
        raise NotImplementedError

    def _pools_one_by_one(self, series: list[Series]) -> Iterator[WindowPool]:
        """The series in as many pools as are scored one after the other; the network is on the device then."""
        raise NotImplementedError

    def _batches(self, pool: WindowPool, config: TrainingPlan, epoch: int) -> Sequence[Indices]:
        """The items of each batch of an epoch."""
        raise NotImplementedError

    def _loss_over(self, pool: WindowPool, config: TrainingPlan) -> Callable[[Indices], Tensor]:
        """A function of a batch: its loss."""
        raise NotImplementedError

    def _logits(self, pool: WindowPool) -> Tensor:
        """``(n_series, n_outputs)`` on the device of the pool, dropout off."""
        raise NotImplementedError


def train_network(
    network: nn.Module,
    *,
    n_items: int,
    batches: Callable[[int], Sequence[Indices]],
    loss_of: Callable[[Indices], Tensor],
    evaluate: Callable[[], dict[str, float]] | None,
    config: TrainingPlan,
    seed: int,
    device: torch.device,
) -> Trained:
    """Train until the epochs are over or validation stops improving; the network ends as it was in its best epoch.

    The best epoch has the highest validation accuracy, ties by loss; without a validation part it is the last.

    Parameters
    ----------
    n_items
        Of which an epoch takes ``batch_size`` at a time; for the schedule.
    batches
        Epoch -> the items of each of its batches.
    loss_of
        A batch -> its loss, which a GPU may still be computing.
    evaluate
        ``validation_loss`` and ``validation_accuracy`` of the network as it stands.
    """
    learner = Learner(network, temperature=1.0, learned=False).to(
        device
    )  # what `adam` takes; tau is not used
    optimizer, progress = adam(learner, config, device), Progress()
    with reproducible(device):
        while progress.epoch < config.max_epochs and not progress.out_of_patience(config.patience):
            loss = _train_epoch(network, batches, loss_of, optimizer, progress, n_items, config, seed, device)
            record = {"epoch": progress.epoch, "train_loss": loss, **(evaluate() if evaluate else {})}
            progress.note(record, network)
    network.load_state_dict(progress.best)
    return Trained(progress.history, progress.best_epoch, interrupted=False)


def training_settings(estimator: Any) -> TrainingConfig:
    """The parameters of an estimator that belong to its training, checked.

    >>> from types import SimpleNamespace
    >>> training_settings(SimpleNamespace(lr=0.01, patience=3, pooling="attention")).patience
    3
    """
    names = [field.name for field in dataclasses.fields(TrainingConfig)]
    return TrainingConfig(**{name: getattr(estimator, name) for name in names if hasattr(estimator, name)})


def fresh_network(build: Callable[[int], Network], n_classes: int, seed: int) -> Network:
    """A network with its initial weights, which the seed alone decides; ``build`` is told how many outputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(n_outputs_for(n_classes))


def figures_of(logits: Tensor, targets: Tensor) -> dict[str, float]:
    """Loss and accuracy of ``(n, n_outputs)`` logits, in the names of the history."""
    logarithms = log_posteriors(logits.float())
    return {
        "validation_loss": float(-logarithms.gather(1, targets[:, None]).mean()),
        "validation_accuracy": float((logarithms.argmax(dim=1) == targets).double().mean()),
    }


def _train_epoch(
    network: nn.Module,
    batches: Callable[[int], Sequence[Indices]],
    loss_of: Callable[[Indices], Tensor],
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    n_items: int,
    config: TrainingPlan,
    seed: int,
    device: torch.device,
) -> float:
    """One pass over all batches; counts epoch and steps in ``progress``; returns the mean loss."""
    network.train()
    total, n_before = torch.zeros((), device=device), progress.step
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(epoch_seed(seed, progress.epoch))  # dropout
        for batch in batches(progress.epoch):
            set_learning_rate(optimizer, learning_rate(config, progress.step, n_items))
            loss = loss_of(batch)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.detach()
            progress.step += 1
    mean = float(total) / (progress.step - n_before)
    refuse_divergence(mean, progress.epoch, config)
    progress.epoch += 1
    return mean
