"""What does each window of one series say?

    windows (n_windows, n_variates, length) -> logits (n_windows, n_outputs), features (n_windows, d)

One series at a time and always in the same batches, so that the score of a series does not depend on what
else is predicted in the same call. Next: aggregation.py adds the windows up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raxss.backbones import features_of
from raxss.errors import ConfigError, nearest

WINDOWS_A_BATCH = 512


def pick_device(device: str) -> torch.device:
    """Resolve ``"auto"`` (a CUDA device if there is one, else the CPU) and check that a device is there.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"unknown device {device!r}{nearest(device, ('auto', 'cpu', 'cuda'))}") from error
    if resolved.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {device!r} is not supported; use 'auto', 'cpu' or 'cuda'.")
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"device {device!r} was asked for, but torch {torch.__version__} sees no CUDA device. "
            "Use device='auto' or device='cpu'."
        )
    return resolved


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Full float32 on the GPU: its default for convolutions keeps ten bits of the mantissa."""
    with torch.backends.cudnn.flags(
        enabled=torch.backends.cudnn.enabled, benchmark=False, deterministic=True, allow_tf32=False
    ):
        yield


def score_windows(
    backbone: nn.Module,
    windows: NDArray[np.floating],
    *,
    device: torch.device,
    with_features: bool = False,
) -> tuple[Tensor, NDArray[np.float64] | None]:
    """Run the backbone over the windows of one series, dropout off.

    Windows that touch non-finite samples are scored with zeros there; they get weight 0 later.

    Returns
    -------
    logits ``(n_windows, n_outputs)`` on the CPU, and features ``(n_windows, d)`` where asked for.
    """
    backbone.eval()
    logits, features = [], []
    with torch.inference_mode(), exact_arithmetic():
        for first in range(0, len(windows), WINDOWS_A_BATCH):
            chunk = np.nan_to_num(
                windows[first : first + WINDOWS_A_BATCH].astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0
            )
            batch = torch.from_numpy(chunk).to(device)
            logits.append(backbone(batch).float().cpu())
            if with_features:
                features.append(features_of(backbone, batch).double().cpu().numpy())
    return torch.cat(logits), np.concatenate(features) if with_features else None
