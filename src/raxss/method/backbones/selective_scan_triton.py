"""How does the selective scan run on a GPU? Stretches of time in parallel, states in registers.

    x, delta (batch, length, width), A (width, n_states), B, C (batch, length, n_states), D (width,)
        -> y (batch, length, width)

For float32 on an NVIDIA GPU from Ampere on, with Triton; all else runs as `plain_scan`. Nothing asks the device for
a number, so a step can be replayed as a CUDA graph. Sizes are not tuned on a device yet.

Next: selective_scan_triton_kernels.py holds the kernels.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

logger = logging.getLogger("raxss")

STEPS, CHANNELS = 64, 16  # in a stretch: 8 numbers a thread of 4 warps
N_WARPS = 4


def suits(*inputs: Tensor) -> bool:
    """Whether `scan` can stand in for `plain_scan`: device, precision, Triton.

    Examples
    --------
    >>> suits(torch.zeros(2, 3, 4))  # not on a GPU
    False
    """
    return (
        all(item.device.type == "cuda" and item.dtype == torch.float32 for item in inputs)
        and all(item.numel() > 0 for item in inputs)
        and not torch.compiler.is_compiling()
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch.cuda.get_device_capability(inputs[0].device) >= (8, 0)
        and has_triton()
    )


@cache
def has_triton() -> bool:
    """Whether Triton can be imported; logged once where not."""
    try:
        import triton  # type: ignore[import-untyped]  # noqa: F401
    except ImportError as error:
        logger.info(
            "Mamba scans with plain layers on the GPU: Triton cannot be imported (%s); `pip install triton` makes "
            "this several times as fast.",
            error,
        )
        return False
    return True


def scan(x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """`plain_scan` by Triton kernels; see `selective_scan`."""
    with torch.cuda.device(x.device):
        return run(x, delta, A, B, C, D)


def run(*inputs: Tensor) -> Tensor:
    """`scan` on the device that is current; tests run it through Triton's interpreter."""
    y: Tensor = _TritonScan.apply(*(item.contiguous() for item in inputs))  # type: ignore[no-untyped-call]
    return y


class _TritonScan(torch.autograd.Function):
    """The scan as one step of autograd."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        """y; the states between stretches are kept."""
        from raxss.method.backbones import selective_scan_triton_kernels as kernels

        x, A = inputs[0], inputs[2]
        batch, length, width = x.shape
        n_states = A.shape[1]
        y = torch.empty_like(x)
        states = x.new_zeros(batch, -(-length // STEPS) + 1, n_states, width)
        kernels.forward[(batch, -(-width // CHANNELS))](
            *inputs, y, states, length, width, n_states, STEPS=STEPS, CHANNELS=CHANNELS, num_warps=N_WARPS
        )
        ctx.save_for_backward(*inputs, states)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, ...]:
        """The gradient of every input."""
        from raxss.method.backbones import selective_scan_triton_kernels as kernels

        x, delta, A, B, C, D, states = ctx.saved_tensors
        (batch, length, width), n_states = x.shape, A.shape[1]
        n_parts = -(-width // CHANNELS)
        grad_x, grad_delta = torch.empty_like(x), torch.empty_like(x)
        carries = torch.zeros_like(states)
        grad_A = x.new_empty(batch, states.shape[1] - 1, n_states, width)
        grad_B, grad_C = x.new_empty(2, batch, n_parts, length, n_states)
        grad_D = x.new_empty(batch, width)
        kernels.backward[(batch, n_parts)](
            x, delta, A, B, C, D, grad_outputs[0].contiguous(), states, grad_x, grad_delta, grad_A, grad_B, grad_C,
            grad_D, carries, length, width, n_states, STEPS=STEPS, CHANNELS=CHANNELS, num_warps=N_WARPS,
        )  # fmt: skip
        return grad_x, grad_delta, grad_A.sum((0, 1)).T, grad_B.sum(1), grad_C.sum(1), grad_D.sum(0)
