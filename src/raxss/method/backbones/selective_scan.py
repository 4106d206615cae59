"""Selective scan: the state-space recurrence of Mamba (Gu & Dao, 2023).

x, delta (batch, length, width), A (width, n_states), B, C (batch, length, n_states), D (width,)
    -> y (batch, length, width)

h_t = exp(delta_t A) h_{t-1} + delta_t B_t x_t,    y_t = C_t h_t + D x_t,    h_0 = 0
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from raxss.errors import BackboneError

CHUNK = (
    64  # steps; of longer sequences one state a chunk is kept, the others are computed again for the gradient
)


def selective_scan(x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """Run the recurrence over a batch of sequences, each from a state of zeros: ``(batch, length, width)``.

    h_t = exp(delta_t A) h_{t-1} + delta_t B_t x_t,    y_t = C_t h_t + D x_t

    A is negative: delta A is the logarithm of what is kept. Computed in float32 also under autocast, in float64
    where the inputs are. Nothing is divided or taken the logarithm of, so a strong decay loses no precision. A
    sequence does not depend on its neighbours in the batch, and two calls give the same bits.

    Examples
    --------
    A state that halves at every step, and takes the input in as it is:

    >>> x, ones = torch.tensor([[[1.0], [0.0], [4.0]]]), torch.ones(1, 3, 1)
    >>> selective_scan(x, ones, -torch.tensor([[2.0]]).log(), ones, ones, torch.zeros(1)).flatten()
    tensor([1.0000, 0.5000, 4.2500])
    """
    _check_shapes(x, delta, A, B, C, D)
    with torch.autocast(x.device.type, enabled=False):
        kind = torch.float64 if x.dtype == torch.float64 else torch.float32
        x, delta, A, B, C, D = (value.to(kind) for value in (x, delta, A, B, C, D))
        steps = [value.transpose(0, 1).split(CHUNK) for value in (x, delta, B, C)]  # time first
        state, outputs = x.new_zeros(len(x), *A.T.shape), []
        for chunk in zip(*steps, strict=True):
            if torch.is_grad_enabled() and x.shape[1] > CHUNK:
                y, state = checkpoint(
                    _scan_chunk, state, A.T, *chunk, use_reentrant=False, preserve_rng_state=False
                )
            else:
                y, state = _scan_chunk(state, A.T, *chunk)
            outputs.append(y)
        return torch.cat(outputs).transpose(0, 1) + D * x


def _scan_chunk(
    state: Tensor,  # (batch, n_states, width)
    A: Tensor,  # (n_states, width)
    x: Tensor,  # (length, batch, width)
    delta: Tensor,
    B: Tensor,  # (length, batch, n_states)
    C: Tensor,
) -> tuple[Tensor, Tensor]:
    """C_t h_t at each step of a chunk, and the state after it."""
    kept = torch.exp(delta[:, :, None] * A)  # (length, batch, n_states, width)
    states = _Recurrence.apply(kept, B[..., None] * (delta * x)[:, :, None], state)  # type: ignore[no-untyped-call]
    return (C[:, :, None] @ states).squeeze(2), states[-1].clone()  # not a view, which would keep all states


class _Recurrence(torch.autograd.Function):
    """h_t = kept_t h_{t-1} + entering_t; with g_t the gradient of h_t, g_t += kept_{t+1} g_{t+1}."""

    @staticmethod
    def forward(ctx: Any, kept: Tensor, entering: Tensor, state: Tensor) -> Tensor:
        """All states, in the memory of ``entering``."""
        ctx.mark_dirty(entering)
        ctx.save_for_backward(kept, entering, state)
        for keep, h in zip(kept, entering, strict=True):
            state = h.addcmul_(keep, state)
        return entering

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gradient of every input."""
        kept, states, state = ctx.saved_tensors
        grad = grad_outputs[0].clone()
        for t in range(len(grad) - 1, 0, -1):
            grad[t - 1].addcmul_(kept[t], grad[t])
        return grad * torch.cat([state[None], states[:-1]]), grad, kept[0] * grad[0]


def _check_shapes(x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> None:
    if x.ndim != 3 or x.shape[1] < 1:
        raise BackboneError(
            f"x of a selective scan has shape {tuple(x.shape)}; (batch, length, width) with a length of at least 1 "
            "is needed."
        )
    batch, length, width = x.shape
    n_states = A.shape[-1] if A.ndim else 0
    needed = {
        "delta": (delta, (batch, length, width)),
        "A": (A, (width, n_states)),
        "B": (B, (batch, length, n_states)),
        "C": (C, (batch, length, n_states)),
        "D": (D, (width,)),
    }
    for name, (tensor, shape) in needed.items():
        if tuple(tensor.shape) != shape:
            raise BackboneError(
                f"{name} of a selective scan has shape {tuple(tensor.shape)}; with x of shape {tuple(x.shape)} and "
                f"{n_states} states, {shape} is needed."
            )
