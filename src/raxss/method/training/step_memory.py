"""Will a step fit into memory?

    backbone, pool, batch size -> bytes, or an error that says so before the first epoch

Next: loop.py asks before it begins.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from raxss._core.memory import available_bytes, gigabytes
from raxss.errors import TrainingError
from raxss.method.augmentation import AugmentationConfig, augment
from raxss.method.training.settings import TrainingPlan
from raxss.method.training.step import autocast_type, mixed_precision
from raxss.method.training.window_pool import WindowPool

#: Windows in the trial that tells how much memory a step needs, where a step has so many. A GPU has a fixed part,
#: for all its processors, in use from some hundred windows on.
N_TRIAL = {"cpu": 32, "cuda": 512}
PEAK_OF_A_STEP = 1.25  # times what the way forward keeps: measured with PatchTST, layer by layer

logger = logging.getLogger("raxss")


def step_bytes(
    backbone: nn.Module,
    pool: WindowPool,
    n_windows: int,
    *,
    augmentation: AugmentationConfig | None = None,
    autocast: torch.dtype | None = None,
) -> int:
    """The least memory that one step on so many windows needs.

    Found by a trial on few windows, which leaves weights, buffers and random generators as they were. On a GPU the
    allocator tells the peak; on a CPU it is what the way forward keeps for the way back.
    """
    n_trial = min(N_TRIAL[pool.device.type], n_windows)
    few, more = (_bytes_of_a_trial(backbone, pool, n, augmentation, autocast) for n in (n_trial, 2 * n_trial))
    return (more - few) * n_windows // n_trial


def _bytes_of_a_trial(
    backbone: nn.Module,
    pool: WindowPool,
    n_windows: int,
    augmentation: AugmentationConfig | None,
    autocast: torch.dtype | None,
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
            # On a CPU the changes leave nothing for the way back, so there they are not asked.
            seen = windows if augmentation is None else augment(windows, augmentation)
            with mixed_precision(device, autocast):
                logits = backbone(seen)
            logits.float().sum().backward()
            n_bytes = torch.cuda.max_memory_allocated(device) - held
            backbone.zero_grad(set_to_none=True)
        else:
            with (
                torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
                mixed_precision(device, autocast),
            ):
                logits = backbone(windows)
            n_bytes = sum(storages.values())
            del logits  # until here, so that no two storages had the same place
    backbone.load_state_dict(before)
    return n_bytes


def check_step_memory(
    backbone: nn.Module,
    pool: WindowPool,
    config: TrainingPlan,
    augmentation: AugmentationConfig | None = None,
) -> None:
    """Refuse a batch that cannot fit into memory before the first epoch, and warn of one that hardly can."""
    free = available_bytes(pool.device)
    if free is None:
        return
    n_windows = min(config.batch_size, len(pool))
    needed = step_bytes(
        backbone, pool, n_windows, augmentation=augmentation, autocast=autocast_type(config, pool.device)
    )
    if PEAK_OF_A_STEP * needed <= free:
        return
    told = (
        f"one step on a batch of {n_windows} windows needs at least {gigabytes(needed)} of memory, and "
        f"{gigabytes(free)} are free on {_told(pool.device)}. Set batch_size to "
        f"{_advised(n_windows * free / needed)} or less, or train on a device with more memory."
    )
    if needed > free:
        raise TrainingError(told)
    logger.warning("this may not fit: %s", told)


@contextmanager
def hint_on_out_of_memory(config: TrainingPlan, device: torch.device) -> Iterator[None]:
    """Turn an allocation that failed inside a step into an error that says what to do."""
    advice = f"Set batch_size to {_advised(config.batch_size)} or less"
    with _memory_told(f"in a step with batch_size={config.batch_size}", advice, device):
        yield


@contextmanager
def hint_on_out_of_memory_between_epochs(device: torch.device) -> Iterator[None]:
    """Likewise where the features of all windows are compared: no batch is to blame."""
    advice = "Set a longer stride, refresh='never' or a network with fewer features"
    with _memory_told("while the features of all windows were looked at", advice, device):
        yield


@contextmanager
def _memory_told(where: str, advice: str, device: torch.device) -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "can't allocate" not in str(error):
            raise
        raise TrainingError(
            f"the memory of {_told(device)} ended {where} ({error}). {advice}, end what else uses the device, or "
            "train on one with more memory. Checkpoints and models from before are as they were."
        ) from error


def _advised(n_windows: float) -> int:
    """The power of two at or below half of what would just fit."""
    return 2 ** max(int(math.log2(max(n_windows / 2, 1))), 0)


def _told(device: torch.device) -> str:
    return "this machine" if device.type == "cpu" else str(device)
