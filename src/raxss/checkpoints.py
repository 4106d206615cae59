"""Where did a run stop, so that it can go on as if it had not?

    Progress (weights, best weights, optimiser, history) <-> one safetensors file

One file, written whole, after every epoch. It carries the fingerprint of settings and data, and a run with
another fingerprint refuses it. Sampling and dropout need no saved generator: they are drawn afresh from
seed and epoch.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor, nn

from raxss.errors import ModelError
from raxss.storage import write_bytes

FORMAT = "raxss-checkpoint-1"


@dataclass
class Progress:
    """How far training has come.

    Attributes
    ----------
    epoch, step
        Epochs and optimiser steps done.
    best
        State of the best epoch so far, by validation.
    best_epoch, best_accuracy, best_loss
        Which one it was, and how good.
    history
        One row an epoch.
    """

    epoch: int = 0
    step: int = 0
    best: dict[str, Tensor] = field(default_factory=dict)
    best_epoch: int = -1
    best_accuracy: float = -1.0
    best_loss: float = float("inf")
    history: list[dict[str, Any]] = field(default_factory=list)

    def note(self, record: dict[str, Any], module: nn.Module | None, *, chooses: bool = True) -> None:
        """Add an epoch to the history, and keep its weights where it is the best so far.

        The best has the highest validation accuracy, ties by loss. Without a validation part, or with one that is
        too small to choose by (``chooses`` is False), it is the last. An epoch without a module is no candidate.
        """
        accuracy, loss = float(self.epoch), 0.0
        if chooses:
            accuracy = record.get("validation_accuracy", accuracy)
            loss = record.get("validation_loss", loss)
        better = (accuracy, -loss) > (self.best_accuracy, -self.best_loss)
        record["best"] = module is not None and better
        if module is not None and better:
            self.best, self.best_epoch = state_of(module), self.epoch
            self.best_accuracy, self.best_loss = accuracy, loss
        self.history.append(record)

    def is_over(self, max_epochs: int, patience: int, stop_loss: float) -> bool:
        """Whether there is nothing left to do: by number of epochs, by patience, or by the loss of the last one."""
        learned = bool(self.history) and float(self.history[-1]["train_loss"]) < stop_loss
        return self.epoch >= max_epochs or learned or self.out_of_patience(patience)

    def out_of_patience(self, patience: int) -> bool:
        """Whether the best epoch is so many epochs ago; 0 is never."""
        return 0 < patience <= self.epoch - self.best_epoch and self.best_epoch > 0


_PLAIN = ("epoch", "step", "best_epoch", "best_accuracy", "best_loss", "history")


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """A copy of a module's parameters and buffers, on the CPU."""
    return {name: value.detach().to("cpu", copy=True) for name, value in module.state_dict().items()}


def save_checkpoint(
    path: Path, progress: Progress, module: nn.Module, optimizer: torch.optim.Optimizer, *, fingerprint: str
) -> None:
    """Write everything that the next epoch depends on."""
    tensors = {f"module/{name}": value for name, value in state_of(module).items()}
    tensors |= {f"best/{name}": value for name, value in progress.best.items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{name}": value.detach().cpu() for name, value in state.items()}
    facts = {name: getattr(progress, name) for name in _PLAIN}
    metadata = {"format": FORMAT, "fingerprint": fingerprint, "progress": json.dumps(facts)}
    metadata["sha256"] = _digest(tensors, metadata["progress"])
    # Written by us, not by safetensors, whose error for a full disk is no OSError.
    write_bytes(path, save({name: value.contiguous() for name, value in tensors.items()}, metadata))


def load_checkpoint(
    path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, *, fingerprint: str
) -> Progress:
    """Put module and optimiser back to where the checkpoint left them."""
    try:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, safetensors.SafetensorError) as error:
        raise ModelError(
            f"the checkpoint {path.name!r} cannot be read ({error}); start again without resuming."
        ) from error
    if metadata.get("format") != FORMAT:
        raise ModelError(
            f"{path.name!r} is not a checkpoint of this version: its format is "
            f"{metadata.get('format')!r}, needed is {FORMAT!r}. Start again without resuming."
        )
    if metadata.get("fingerprint") != fingerprint:
        raise ModelError(
            f"the checkpoint {path.name!r} belongs to another run: its settings, data or seed have the "
            f"fingerprint {metadata.get('fingerprint')!r}, this run has {fingerprint!r}. Resume with what "
            "the first run was given, or start again without resuming."
        )
    if metadata.get("sha256") != _digest(tensors, metadata.get("progress", "")):
        raise ModelError(
            f"the checkpoint {path.name!r} is damaged: its content does not match its own SHA-256. Start again "
            "without resuming."
        )
    progress = Progress(**json.loads(metadata["progress"]))
    progress.best = _under(tensors, "best/")
    module.load_state_dict(_under(tensors, "module/"))
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in _under(tensors, "optimizer/").items():
        index, key = name.split("/")
        state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return progress


def _digest(tensors: dict[str, Tensor], facts: str) -> str:
    """SHA-256 of every tensor and fact, so that a flipped bit does not go on training."""
    digest = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
