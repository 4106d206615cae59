"""How does the selective scan run on a CPU without ever writing its states down?

    x, delta (batch, length, width), A (width, n_states), B, C (batch, length, n_states), D (width,)
        -> y (batch, length, width)

One series after the other, neighbouring channels in one register, the steps in order. The states are kept once in
`CHUNK` steps; the gradient starts from these, walks each chunk forward again and then back. What belongs to
a series is computed from that series alone, and sums over series are taken in their order, so results depend
neither on the batch nor on the number of threads.

Next: selective_scan_kernels.py has the loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable
from torch.nn import functional

from raxss._core.threads import each_on_threads


def suits(*inputs: Tensor) -> bool:
    """Whether `scan` gives what `plain_scan` would: float32 on the CPU, numbers and first derivatives alone.

    Examples
    --------
    >>> suits(torch.zeros(2, 3, 4)), suits(torch.zeros(2, 3, 4).double())
    (True, False)
    """
    return (
        all(item.device.type == "cpu" and item.dtype == torch.float32 for item in inputs)
        and all(type(item) in (Tensor, nn.Parameter) and item.numel() > 0 for item in inputs)
        and not torch.compiler.is_compiling()
        and torch._C._get_tracing_state() is None
        and torch._C._functorch.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
    )


def scan(x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """`plain_scan` by compiled loops, on as many threads as torch uses; see `selective_scan`.

    Examples
    --------
    >>> x, B, C = torch.randn(2, 100, 3), torch.randn(2, 100, 4), torch.randn(2, 100, 4)
    >>> scan(x, x.exp(), -torch.ones(3, 4), B, C, torch.zeros(3)).shape
    torch.Size([2, 100, 3])
    """
    from raxss._core.vector_code import LANES

    width = x.shape[-1]
    spare = -width % LANES  # channels that fill the last register
    if spare:
        x, delta, D = (functional.pad(item, (0, spare)) for item in (x, delta, D))
        A = functional.pad(A, (0, 0, 0, spare))
    inputs = (x, delta, A, B, C, D)
    keeps = torch.is_grad_enabled() and any(entry.requires_grad for entry in inputs)
    y: Tensor = _CompiledScan.apply(keeps, *(entry.contiguous() for entry in inputs))  # type: ignore[no-untyped-call]
    return y[..., :width] if spare else y


class _CompiledScan(torch.autograd.Function):
    """The scan as one step of autograd."""

    @staticmethod
    def forward(ctx: Any, keeps: bool, *inputs: Tensor) -> Tensor:
        """y; a state in `CHUNK` steps is kept where there will be a gradient."""
        from raxss.method.backbones.selective_scan_kernels import CHUNK, forward_one

        x, delta, A, B, C, D = (item.detach().numpy() for item in inputs)
        batch, length, width = x.shape
        states = np.empty((batch, -(-length // CHUNK) if keeps else 0, A.shape[1], width), np.float32)
        y, turned = np.empty_like(x), A.T.copy()
        each_on_threads(
            lambda i: forward_one(x[i], delta[i], turned, B[i], C[i], D, y[i], states[i]), range(batch)
        )
        ctx.save_for_backward(*inputs, torch.from_numpy(states))
        return torch.from_numpy(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of every input."""
        from raxss.method.backbones.selective_scan_kernels import backward_one

        x, delta, A, B, C, D, states = (saved_tensor.detach().numpy() for saved_tensor in ctx.saved_tensors)
        grad_y = grad_outputs[0].contiguous().numpy()
        batch, _, width = x.shape
        grad_x, grad_delta, grad_B, grad_C = (np.empty_like(item) for item in (x, delta, B, C))
        grad_A = np.empty((batch, A.shape[1], width), np.float32)
        grad_D, turned = np.empty((batch, width), np.float32), A.T.copy()

        def of_one(i: int) -> None:
            backward_one(
                x[i], delta[i], turned, B[i], C[i], D, grad_y[i], states[i],
                grad_x[i], grad_delta[i], grad_A[i], grad_B[i], grad_C[i], grad_D[i],
            )  # fmt: skip

        each_on_threads(of_one, range(batch))
        gradients = (grad_x, grad_delta, grad_A.sum(0).T.copy(), grad_B, grad_C, grad_D.sum(0))
        return (None, *map(torch.from_numpy, gradients))
