"""Checkpoints of training: weights, best weights, optimiser and history in one file.

    Progress (weights, best weights, optimiser, history) <-> one safetensors file

Written atomically after every epoch. The file has the fingerprint of settings and data, which a resumed run must
share, and a SHA-256 over every byte: numbers, names, dtypes, shapes and progress. Sampling and dropout need no
saved generator: they are drawn from seed and epoch.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from raxss._core.atomic import write_bytes
from raxss._core.sealing import (
    MIB,
    MOST_HEADER_BYTES,
    MOST_TENSORS,
    MOST_WEIGHT_BYTES,
    TensorHeader,
    bounded_json,
    digest_around,
    open_plain,
    read_all,
    read_tensor_header,
)
from raxss.errors import ModelError, join_names

FORMAT = "raxss-checkpoint-2"
COPIES = 5  # of each tensor of a network: current, best, and Adam's three
NO_DIGEST = "0" * 64  # in place of the SHA-256 of a checkpoint while that is computed
START_AGAIN = "Start again without resuming."
DTYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
"""By the name that safetensors has for them; others are refused."""


@dataclass
class Progress:
    """State of a training run besides the current weights."""

    epoch: int = 0  # done
    step: int = 0  # optimiser steps done
    best: dict[str, Tensor] = field(default_factory=dict)  # weights of the best epoch so far, by validation
    best_epoch: int = -1
    best_accuracy: float = -1.0
    best_loss: float = float("inf")
    history: list[dict[str, Any]] = field(default_factory=list)  # one row an epoch
    interrupted: bool = False  # by Ctrl-C; not kept in a checkpoint

    def note(self, record: dict[str, Any], module: nn.Module | None, *, chooses: bool = True) -> None:
        """Add an epoch to the history, and keep its weights where it is the best so far.

        The best has the highest validation accuracy, weighted where there are class weights, ties by loss. Without
        a validation set, or with ``chooses`` False, it is the last. An epoch without a module is no candidate.
        """
        accuracy, loss = float(self.epoch), 0.0
        if chooses:
            accuracy = record.get("validation_accuracy", accuracy)
            accuracy = record.get("validation_weighted_accuracy", accuracy)
            loss = record.get("validation_loss", loss)
        better = (accuracy, -loss) > (self.best_accuracy, -self.best_loss)
        record["best"] = module is not None and better
        if module is not None and better:
            self.best, self.best_epoch = state_of(module), self.epoch
            self.best_accuracy, self.best_loss = accuracy, loss
        self.history.append(record)

    def is_over(self, max_epochs: int, patience: int, stop_loss: float) -> bool:
        """Whether training ends: by number of epochs, by patience (0: never), or by the loss of the last epoch."""
        learned = bool(self.history) and float(self.history[-1]["train_loss"]) < stop_loss
        return self.epoch >= max_epochs or learned or self.out_of_patience(patience)

    def out_of_patience(self, patience: int) -> bool:
        """Whether the last ``patience`` epochs brought no improvement; 0: never."""
        return 0 < patience <= self.epoch - self.best_epoch and self.best_epoch > 0


_PLAIN = ("epoch", "step", "best_epoch", "best_accuracy", "best_loss", "history")


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """A copy of a module's parameters and buffers, on the CPU."""
    return {name: value.detach().to("cpu", copy=True) for name, value in module.state_dict().items()}


def save_checkpoint(
    path: Path, progress: Progress, module: nn.Module, optimizer: torch.optim.Optimizer, *, fingerprint: str
) -> None:
    """Write all that the next epoch depends on."""
    tensors = {f"module/{name}": value for name, value in state_of(module).items()}
    tensors |= {f"best/{name}": value for name, value in progress.best.items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{name}": value.detach().cpu() for name, value in state.items()}
    facts = json.dumps({name: getattr(progress, name) for name in _PLAIN})
    metadata = {"format": FORMAT, "fingerprint": fingerprint, "progress": facts, "sha256": NO_DIGEST}
    content = save({name: value.contiguous() for name, value in tensors.items()}, metadata)
    digest = hashlib.sha256(content).hexdigest()
    sealed = content.replace(f'"sha256":"{NO_DIGEST}"'.encode(), f'"sha256":"{digest}"'.encode(), 1)
    # Written by us, not by safetensors, whose error for a full disk is no OSError.
    write_bytes(path, sealed)


def load_checkpoint(
    path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, *, fingerprint: str
) -> Progress:
    """Restore module and optimiser from a checkpoint; a refused one leaves both unchanged."""
    label = f"the checkpoint {path.name!r}"
    state = module.state_dict()
    n_bytes = sum(value.numel() * value.element_size() for value in state.values())
    most = COPIES * (n_bytes + MIB) + MOST_HEADER_BYTES
    with open_plain(path, label, most=most, advice=START_AGAIN) as file:
        header = read_tensor_header(file, label, most_tensors=COPIES * MOST_TENSORS, advice=START_AGAIN)
        _refuse_other_run(header.metadata, path.name, fingerprint)
        content = read_all(file, label, advice=START_AGAIN)
    found = header.metadata.get("sha256", "")
    if digest_around(content, found, header.start) != found or len(found) != len(NO_DIGEST):
        raise ModelError(f"{label} is damaged: its content does not match its own SHA-256. {START_AGAIN}")
    try:
        progress = _read_progress(header.metadata.get("progress", ""), label)
        parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        refuse_other_tensors(header, "module/", state)
        refuse_other_tensors(header, "best/", state if progress.best_epoch >= 0 else {})
        _refuse_other_optimizer(header, optimizer)
        tensors = load(content)
        refuse_not_finite(
            tensors, never_infinite=[part + name for part in ("module/", "best/") for name in parameters]
        )
        progress.best = _under(tensors, "best/")
    except (ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{label} does not fit this run: {error}. {START_AGAIN}") from error
    module.load_state_dict(_under(tensors, "module/"))
    kept: dict[int, dict[str, Tensor]] = {}
    for name, value in _under(tensors, "optimizer/").items():
        index, key = name.split("/")
        kept.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": kept, "param_groups": optimizer.state_dict()["param_groups"]})
    return progress


def refuse_other_tensors(
    header: TensorHeader, prefix: str, expected: Mapping[str, Tensor], *, any_size: Container[str] = ()
) -> None:
    """Raise a ValueError where names, dtypes or shapes of tensors are not those of a network; reads none.

    Of the names in ``any_size`` the number of dimensions is compared, not their sizes.
    """
    found = {name.removeprefix(prefix) for name in header.dtypes if name.startswith(prefix)}
    if found != set(expected):
        missing = join_names(sorted(set(expected) - found), most=3) or "none"
        raise ValueError(
            f"missing are the tensors {missing} of the network, and {len(found - set(expected))} that are there "
            "are not of it"
        )
    for name, value in expected.items():
        dtype, shape = header.dtypes[prefix + name], header.shapes[prefix + name]
        same = len(shape) == value.ndim if name in any_size else shape == tuple(value.shape)
        if DTYPES.get(dtype) != value.dtype or not same:
            raise ValueError(
                f"size mismatch: tensor {name!r} is {dtype} of shape {shape}, needed is "
                f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
            )


def refuse_not_finite(tensors: Mapping[str, Tensor], *, never_infinite: Iterable[str]) -> None:
    """Raise a ValueError for NaN, and for infinity in ``never_infinite``: a buffer may be a mask of -inf."""
    named = set(never_infinite)
    for name, value in tensors.items():
        if not (value.is_floating_point() or value.is_complex()) or bool(value.isfinite().all()):
            continue
        if name in named or bool(value.isnan().any()):
            raise ValueError(f"tensor {name!r} has numbers that are not finite")


def epoch_of_checkpoint(path: Path) -> int | None:
    """Number of epochs in a checkpoint, by its header; None where it cannot be read."""
    try:
        with open_plain(path, path.name, most=COPIES * MOST_WEIGHT_BYTES) as file:
            header = read_tensor_header(file, path.name, most_tensors=COPIES * MOST_TENSORS)
        return _read_progress(header.metadata["progress"], path.name).epoch
    except (ModelError, ValueError, KeyError, TypeError):
        return None


def _refuse_other_run(metadata: Mapping[str, str], name: str, fingerprint: str) -> None:
    if metadata.get("format") != FORMAT:
        raise ModelError(
            f"{name!r} is not a checkpoint of this version: its format is "
            f"{metadata.get('format')!r}, needed is {FORMAT!r}. {START_AGAIN}"
        )
    if metadata.get("fingerprint") != fingerprint:
        raise ModelError(
            f"the checkpoint {name!r} belongs to another run: its settings, data or seed have the "
            f"fingerprint {metadata.get('fingerprint')!r}, this run has {fingerprint!r}. Resume with what "
            "the first run was given, or start again without resuming."
        )


def _read_progress(text: str, label: str) -> Progress:
    """Progress without weights, checked."""
    facts = bounded_json(text.encode(), f"the progress in {label}", advice=START_AGAIN)
    if not isinstance(facts, dict) or set(facts) != set(_PLAIN):
        raise ValueError(f"its progress needs the entries {', '.join(_PLAIN)}")
    epoch, step, best_epoch = (facts[name] for name in ("epoch", "step", "best_epoch"))
    whole = all(type(value) is int for value in (epoch, step, best_epoch))
    if not whole or step < 0 or not -1 <= best_epoch <= epoch or epoch < 0:
        raise ValueError("its counts of epochs and steps are not those of a run")
    for name in ("best_accuracy", "best_loss"):
        if type(facts[name]) not in (int, float) or math.isnan(facts[name]):
            raise ValueError(f"its {name} is not a number")
    if not isinstance(facts["history"], list) or not all(isinstance(row, dict) for row in facts["history"]):
        raise ValueError("its history is not one row an epoch")
    return Progress(**facts)


def _refuse_other_optimizer(header: TensorHeader, optimizer: torch.optim.Optimizer) -> None:
    """Raise a ValueError for a state that is not Adam's for the parameters of this run."""
    if not all(name.startswith(("module/", "best/", "optimizer/")) for name in header.dtypes):
        raise ValueError("it has tensors that are neither of the network nor of its optimiser")
    kept = {name.split("/")[1] for name in header.dtypes if name.startswith("optimizer/")}
    parameters = [value for group in optimizer.param_groups for value in group["params"]]
    expected: dict[str, Tensor] = {}
    for place, value in enumerate(parameters):
        if str(place) in kept:
            state = {"step": torch.zeros(()), "exp_avg": value, "exp_avg_sq": value}
            expected |= {f"{place}/{key}": number for key, number in state.items()}
    refuse_other_tensors(header, "optimizer/", expected)


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
