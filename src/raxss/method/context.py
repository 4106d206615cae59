"""Context of windows: where a window is in its series, and how it differs from the rest, only where it is on.

    Windows of a series -> context (n_windows, 3): position, level, amplitude
    windows (batch, rows, length), context (batch, 3) -> windows with the context as one more row, and apart again

Three numbers a window, which depend on its series and so not on its samples alone. They reach backbones as
the mask of missing samples does, as a further row behind the others (``takes_context`` in backbones/protocol.py).
Next: backbones/window_classifiers.py has them as features, backbones/window_numbers.py as inputs of a head.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from raxss.method.windows import Windows, missing_samples, n_missing

CONTEXT = ("position", "level", "amplitude")
N_CONTEXT = len(CONTEXT)
LEAST_RATIO = 1e-3  # of deviations, so that the logarithm of a flat window is finite

#: Context of the windows of a series ``(n_windows, 3)``: `window_context`, or what a probe puts in its place.
ContextRule = Callable[[Windows], NDArray[np.float32]]


def window_context(windows: Windows) -> NDArray[np.float32]:  # (n_windows, 3)
    """Position, level and amplitude of each window; 0 where the series is a single window.

        position   start / (T - L): 0 at the beginning of the series, 1 at its end
        level      mean over variates of (mean of the window - mean of the series) / deviation of the series
        amplitude  mean over variates of log(deviation of the window / deviation of the series)

    Over the samples that are present. start/T and 1 - end/T, the times from both ends, would add up to 1 - L/T
    and so tell the length of the recording, which is often an artefact of how the classes were collected; the
    position alone does not. Level and amplitude are the same before and after scaling.

    >>> from raxss.data.series import Series
    >>> from raxss.method.windows import windows_of
    >>> windows = windows_of(Series([0.0, 2, 0, 2, 5, 7]), window_length=2, stride=2)
    >>> window_context(windows).round(2)
    array([[ 0.  , -0.65, -0.94],
           [ 0.5 , -0.65, -0.94],
           [ 1.  ,  1.3 , -0.94]], dtype=float32)
    """
    found = np.zeros((len(windows), N_CONTEXT), dtype=np.float32)
    if len(windows) == 1:
        return found
    found[:, 0] = windows.starts / (windows.strip.shape[1] - windows.length)
    missing = missing_samples(windows.strip)
    n_present = windows.length - n_missing(missing, windows.length, windows.stride)
    level, amplitude = np.zeros(len(windows)), np.zeros(len(windows))
    for samples in windows.strip:  # one variate after the other: the sums of a long recording are large
        own = _against_series(
            np.asarray(samples, dtype=np.float64), missing, windows, np.maximum(n_present, 1)
        )
        level += own[0] / len(windows.strip)
        amplitude += own[1] / len(windows.strip)
    found[:, 1], found[:, 2] = level, amplitude
    found[n_present == 0, 1:] = 0.0
    return found


def _against_series(
    samples: NDArray[np.float64],  # (n_samples,) of one variate
    missing: NDArray[np.bool_],  # (n_samples,)
    windows: Windows,
    n_present: NDArray[np.int64],  # (n_windows,) at least 1
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Level and logarithm of the ratio of deviations, ``(n_windows,)`` each; 0 for a series without variance."""
    present = samples[~missing]
    deviation = float(present.std()) if len(present) else 0.0
    if deviation == 0.0:
        return np.zeros(len(windows)), np.zeros(len(windows))
    standard = np.where(missing, 0.0, (samples - present.mean()) / deviation)
    means, squares = (
        np.diff(np.concatenate([[0.0], np.cumsum(values)])[_ends(windows)], axis=0)[0] / n_present
        for values in (standard, standard**2)
    )
    ratio = np.sqrt(np.maximum(squares - means**2, LEAST_RATIO**2))
    return means, np.log(ratio)


def _ends(windows: Windows) -> NDArray[np.int64]:
    """First sample of each window, and the first behind it: ``(2, n_windows)``."""
    return np.stack([windows.starts, windows.starts + windows.length])


def constant_context(windows: Windows, *, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The same context ``(3,)`` for every window of a series: a `ContextRule`."""
    return np.tile(np.asarray(values, dtype=np.float32), (len(windows), 1))


def add_context(windows: Tensor, context: Tensor | None) -> Tensor:
    """Windows ``(batch, rows, length)`` with their context ``(batch, 3)`` in a further row, which 0 fills up.

    Windows of fewer than three samples have several such rows.

    >>> add_context(torch.zeros(1, 1, 4), torch.tensor([[0.5, 1.0, -1.0]]))
    tensor([[[ 0.0000,  0.0000,  0.0000,  0.0000],
             [ 0.5000,  1.0000, -1.0000,  0.0000]]])
    """
    if context is None:
        return windows
    length = windows.shape[2]
    filled = functional.pad(context.to(windows.dtype), (0, n_context_rows(length) * length - N_CONTEXT))
    return torch.cat([windows, filled.view(len(windows), -1, length)], dim=1)


def split_context(windows: Tensor, n_variates: int) -> tuple[Tensor, Tensor | None]:
    """Windows as they were before `add_context`, and their context ``(batch, 3)``.

    For a backbone that takes context; None where there are the variates alone, as on a trial of shapes.

    >>> values, context = split_context(add_context(torch.zeros(1, 1, 2), torch.tensor([[0.5, 1.0, -1.0]])), 1)
    >>> values, context
    (tensor([[[0., 0.]]]), tensor([[ 0.5000,  1.0000, -1.0000]]))
    """
    if windows.shape[1] == n_variates:
        return windows, None
    n_rows = n_context_rows(windows.shape[2])
    return windows[:, :-n_rows], windows[:, -n_rows:].flatten(1)[:, :N_CONTEXT]


def n_context_rows(length: int) -> int:
    """How many rows of a window hold its context: one, or more where it has fewer than three samples.

    >>> n_context_rows(1024), n_context_rows(1)
    (1, 3)
    """
    return -(-N_CONTEXT // length)


def takes_context(backbone: nn.Module) -> bool:
    """Whether a backbone takes the context of windows, as the last row."""
    return bool(getattr(backbone, "takes_context", False))


def mean_context(backbone: nn.Module) -> NDArray[np.float32]:
    """Mean context ``(3,)`` of the training windows of a backbone that takes it."""
    found: Tensor = backbone.context_mean  # type: ignore[assignment]
    values: NDArray[np.float32] = found.detach().cpu().numpy().astype(np.float32)
    return values
