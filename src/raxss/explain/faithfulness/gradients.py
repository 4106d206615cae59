"""Integrated gradients of a network's output with respect to samples (Sundararajan et al., 2017).

windows, baseline (n, n_variates, length), a function's gradient -> attributions (n, n_variates, length)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

GRADIENT_STEPS = 16


def integrated_gradients(
    gradient: Callable[[Tensor], Tensor],
    windows: Tensor,
    baseline: Tensor,
    *,
    n_steps: int = GRADIENT_STEPS,
    at_once: int = 1,
) -> Tensor:
    """(x - x') · mean over the path of the gradient; the sum is f(x) - f(x') up to the steps' error.

    By the middle of equal steps along the straight line (captum's "riemann_middle").
    The path starts at the baseline of deletion: from zeros it would be silent in networks that normalise
    each window, because those do not see its scale.

    ``gradient``: windows -> gradient of f there, of the same shape. ``at_once``: steps of one pass, ``(at_once * n,
    n_variates, length)``, for which f must be a sum over windows.
    """
    way = windows - baseline
    total = torch.zeros_like(windows)
    for first in range(0, n_steps, at_once):
        steps = range(first, min(first + at_once, n_steps))
        points = torch.cat([baseline + (step + 0.5) / n_steps * way for step in steps])
        total += gradient(points).view(len(steps), *windows.shape).sum(dim=0)
    return way * total / n_steps


def gradient_of(value: Callable[[Tensor], Tensor], windows: Tensor, network: nn.Module) -> Tensor | None:
    """Gradient of a sum over windows, ``(n, n_variates, length)``; None where no gradient reaches the samples."""
    # cuDNN computes no gradients of recurrent layers outside of training.
    recurrent = any(isinstance(module, nn.RNNBase) for module in network.modules())
    enabled = torch.backends.cudnn.enabled and not recurrent
    with (
        torch.enable_grad(),
        torch.backends.cudnn.flags(enabled=enabled, benchmark=False, deterministic=True, allow_tf32=False),
    ):
        leaf = windows.detach().clone().requires_grad_(True)
        total = value(leaf)
        if not total.requires_grad:
            return None
        (found,) = torch.autograd.grad(total, leaf, allow_unused=True)
    return found
