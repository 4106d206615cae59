"""Memory of a training step: estimate before the first epoch, and errors that name a batch size that fits.

    backbone, pool, batch size -> bytes, or a TrainingError

Next: loop.py checks it before the first epoch.
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
from raxss.method.augmentation import AugmentationConfig
from raxss.method.training.settings import TrainingPlan
from raxss.method.training.step import augmented, autocast_type, mixed_precision
from raxss.method.training.window_pool import WindowPool

#: Windows of the pass that measures the memory of a step, at most. A GPU has a fixed part from some hundred on.
N_TRIAL = {"cpu": 32, "cuda": 512}
PEAK_OF_A_STEP = 1.25  # times what the forward pass keeps: measured with PatchTST, layer by layer

logger = logging.getLogger("raxss")


def step_bytes(
    backbone: nn.Module,
    pool: WindowPool,
    n_windows: int,
    *,
    augmentation: AugmentationConfig | None = None,
    autocast: torch.dtype | None = None,
) -> int:
    """The least memory in bytes of one step on ``n_windows``, measured on few windows.

    Leaves weights, buffers and random generators unchanged. On a GPU it is the peak of the allocator, on a CPU the
    tensors that the forward pass keeps for the backward pass.
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
    indices = torch.arange(n_windows, device=pool.starts.device) % len(pool)
    windows = pool.gather(indices)
    backbone.train()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        if device.type == "cuda":
            held = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
            # On a CPU augmentation keeps nothing for the backward pass, so it is left out there.
            seen = windows if augmentation is None else augmented(pool.take(indices), augmentation)
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
            del logits  # alive until here, so that no two storages have the same address
    backbone.load_state_dict(before)
    return n_bytes


def check_step_memory(
    backbone: nn.Module,
    pool: WindowPool,
    config: TrainingPlan,
    augmentation: AugmentationConfig | None = None,
) -> None:
    """Refuse a batch that does not fit into memory, and warn of one that hardly does."""
    free = available_bytes(pool.device)
    if free is None:
        return
    n_windows = min(config.batch_size, len(pool))
    needed = step_bytes(
        backbone, pool, n_windows, augmentation=augmentation, autocast=autocast_type(config, pool.device)
    )
    if PEAK_OF_A_STEP * needed <= free:
        return
    message = (
        f"one step on a batch of {n_windows} windows needs at least {gigabytes(needed)} of memory, and "
        f"{gigabytes(free)} are free on {_device_name(pool.device)}. Set batch_size to "
        f"{_advised(n_windows * free / needed)} or less, or train on a device with more memory."
    )
    if needed > free:
        raise TrainingError(message)
    logger.warning("this may not fit: %s", message)


@contextmanager
def hint_on_out_of_memory(device: torch.device, batch_size: int | None = None) -> Iterator[None]:
    """Turn a failed allocation into an error with advice: in a step, or where all features are compared."""
    where = "while the features of all windows were compared"
    advice = "Set a longer stride, refresh='never' or a network with fewer features"
    if batch_size is not None:
        where = f"in a step with batch_size={batch_size}"
        advice = f"Set batch_size to {_advised(batch_size)} or less"
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "can't allocate" not in str(error):
            raise
        raise TrainingError(
            f"the memory of {_device_name(device)} ended {where} ({error}). {advice}, end what else uses the "
            "device, or train on one with more memory. Checkpoints and models from before are as they were."
        ) from error


def _advised(n_windows: float) -> int:
    """The power of two at or below half of what would just fit."""
    return 2 ** max(int(math.log2(max(n_windows / 2, 1))), 0)


def _device_name(device: torch.device) -> str:
    return "this machine" if device.type == "cpu" else str(device)
