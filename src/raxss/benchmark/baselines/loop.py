"""Training loop of the baselines that are networks.

    batches of an epoch, loss of a batch, figures on validation -> the best epoch's weights in the network

The optimiser, schedule, seeds and choice of the epoch are those of raxss.method.training; a subclass defines what a
batch is and what its loss. On a GPU the host waits once an epoch. Next: sequences.py, whose batches are whole
series; mil.py, whose batches are windows.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from raxss.benchmark.baselines.common import Baseline, Given, require_finite
from raxss.data.prepare.preprocessing import Scaling
from raxss.data.series import Series
from raxss.method.aggregation import log_posteriors, posteriors_of
from raxss.method.backbones.protocol import n_outputs_for
from raxss.method.training.checkpoints import Progress
from raxss.method.training.loop import epoch_seed, refuse_divergence
from raxss.method.training.settings import TrainingConfig, TrainingPlan
from raxss.method.training.step import Learner, adam, learning_rate, reproducible, set_learning_rate
from raxss.method.training.window_pool import WindowPool
from raxss.method.window_scorer import pick_device

Indices = NDArray[np.int64]


@dataclass(eq=False, repr=False, kw_only=True)
class NetworkBaseline(Baseline):
    """A network, trained until the epochs are over or validation stops improving.

    The best epoch has the highest validation accuracy, ties by loss; without a validation set it is the last. A
    subclass adds ``backbone``, the fields of `TrainingConfig` in which it differs, and the abstract methods.
    """

    backbone_options: Mapping[str, Any] | None = None
    scaling: Literal["train", "series", "none"] = "series"
    start_lr: float = 0.0
    final_lr: float = 1e-6
    max_epochs: int = 50
    validation_fraction: float = 0.125

    def _check_parameters(self) -> None:
        self._training_config()
        pick_device(self.device)

    def _training_config(self) -> TrainingConfig:
        names = [field.name for field in dataclasses.fields(TrainingConfig)]
        return TrainingConfig(**{name: getattr(self, name) for name in names if hasattr(self, name)})

    def _learn(self, given: Given) -> None:
        device = pick_device(self.device)
        self.scaling_ = Scaling.fit(given.series, self.scaling)
        pool = self._pool(given.series, given.targets, device)
        plan = self._training_config().for_windows(len(pool))
        held_out = (
            self._pool(given.validation, given.validation_targets, device) if given.validation else None
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed_)
            self.backbone_ = self._build(n_outputs_for(len(self.classes_))).to(device)
        self._before_training(pool)
        learner = Learner(self.backbone_, temperature=1.0, learned=False).to(device)  # as `adam` takes it
        optimizer, progress = adam(learner, plan, device), Progress()
        with reproducible(device):
            while progress.epoch < plan.max_epochs and not progress.out_of_patience(plan.patience):
                loss = self._train_epoch(pool, plan, optimizer, progress)
                record = {"epoch": progress.epoch, "train_loss": loss}
                if held_out is not None:
                    logarithms = log_posteriors(self._logits(held_out).float())
                    picked, best = logarithms.gather(1, held_out.targets[:, None]), logarithms.argmax(dim=1)
                    record["validation_loss"] = float(-picked.mean())
                    record["validation_accuracy"] = float((best == held_out.targets).double().mean())
                progress.note(record, self.backbone_)
        self.backbone_.load_state_dict(progress.best)
        self.history_, self.best_epoch_ = pd.DataFrame(progress.history), progress.best_epoch

    def _train_epoch(
        self, pool: WindowPool, plan: TrainingPlan, optimizer: torch.optim.Optimizer, progress: Progress
    ) -> float:
        """One pass over all batches; counts epoch and steps in ``progress``; returns the mean loss."""
        self.backbone_.train()
        loss_of = self._loss_over(pool, plan)
        total, n_before = torch.zeros((), device=pool.device), progress.step
        with torch.random.fork_rng(devices=[pool.device] if pool.device.type == "cuda" else []):
            torch.manual_seed(epoch_seed(self.seed_, progress.epoch))  # dropout
            for batch in self._batches(pool, plan, progress.epoch):
                set_learning_rate(optimizer, learning_rate(plan, progress.step, len(pool)))
                loss = loss_of(batch)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                total += loss.detach()
                progress.step += 1
        mean = float(total) / (progress.step - n_before)
        refuse_divergence(mean, progress.epoch, plan)
        progress.epoch += 1
        return mean

    def _probabilities(self, series: list[Series]) -> NDArray[np.float64]:
        logits = torch.cat([self._logits(pool) for pool in self._pools_one_by_one(series)])
        return require_finite(posteriors_of(logits.double()).cpu().numpy(), series)

    def _before_training(self, pool: WindowPool) -> None:
        """What the network takes from the training series before its first step."""

    @abstractmethod
    def _build(self, n_outputs: int) -> Any:
        """The network, with its initial weights."""

    @abstractmethod
    def _pool(self, series: list[Series], targets: NDArray[np.int64], device: torch.device) -> WindowPool:
        """Scaled series on the device."""

    @abstractmethod
    def _pools_one_by_one(self, series: list[Series]) -> Iterator[WindowPool]:
        """The series in as many pools as are scored one after the other; the network is on the device then."""

    @abstractmethod
    def _batches(self, pool: WindowPool, config: TrainingPlan, epoch: int) -> Sequence[Indices]:
        """The items of each batch of an epoch."""

    @abstractmethod
    def _loss_over(self, pool: WindowPool, config: TrainingPlan) -> Callable[[Indices], Tensor]:
        """A function of a batch: its loss, which a GPU may still be computing."""

    @abstractmethod
    def _logits(self, pool: WindowPool) -> Tensor:
        """``(n_series, n_outputs)`` on the device of the pool, dropout off."""
