"""How is a network of a baseline trained?

    batches of an epoch, loss of a batch, figures on validation -> the best epoch's weights in the network

The optimiser, schedule, seeds and choice of the epoch are those of training.py, which trains RAxSS; what differs is
what a batch is and what its loss. On a GPU the host only queues work: it waits for an answer once an epoch.
Next: sequences.py, whose batches are whole series; mil.py, whose batches are windows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raxss.method.aggregation import log_posteriors
from raxss.method.backbones.protocol import n_outputs_for
from raxss.method.training.checkpoints import Progress
from raxss.method.training.loop import Trained, epoch_seed, refuse_divergence
from raxss.method.training.settings import TrainingConfig, TrainingPlan
from raxss.method.training.step import Learner, adam, learning_rate, reproducible, set_learning_rate

Indices = NDArray[np.int64]
Network = TypeVar("Network", bound=nn.Module)


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
    names = [one.name for one in dataclasses.fields(TrainingConfig)]
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
