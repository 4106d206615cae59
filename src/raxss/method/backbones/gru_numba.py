"""How does a GRU run on a CPU when each of its steps is too small for torch's layers?

    of_tokens (batch, n_tokens, 3 * width): W_i x_t + b_i for reset, update and new, one product for all tokens
        -> states (batch, n_tokens, width)

    r = sigmoid(of_r + W_r h),  z = sigmoid(of_z + W_z h),  n = tanh(of_n + r (W_n h)),  h <- (1 - z) n + z h

torch steps through a dozen layers for each token. Here a series is walked by one compiled loop, its state in
registers and the weights in the nearest cache. Gradients of the weights are one product over all tokens again.
Results depend neither on the batch nor on the number of threads.

Next: gru_kernels.py has the loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from raxss._core.threads import each_on_threads
from raxss.method.backbones import selective_scan_numba


def suits(cells: nn.Module, tokens: Tensor) -> bool:
    """Whether `states` gives what ``cells(tokens)[0]`` would: a plain layer in float32, a width that fills vectors.

    Examples
    --------
    >>> suits(nn.GRU(5, 32, batch_first=True), torch.zeros(2, 3, 5)), suits(nn.GRU(5, 3), torch.zeros(2, 3, 5))
    (True, False)
    """
    if tokens.device.type != "cpu":
        return False
    from raxss._core.vector_code import LANES

    return (
        type(cells) is nn.GRU
        and cells.num_layers == 1
        and cells.batch_first
        and cells.bias
        and not cells.bidirectional
        and cells.hidden_size % LANES == 0
        and not (cells._forward_hooks or cells._forward_pre_hooks or cells._backward_hooks)
        and not torch.is_autocast_enabled("cpu")
        and selective_scan_numba.suits(tokens, *cells.parameters())
    )


def states(cells: nn.GRU, tokens: Tensor) -> Tensor:
    """All states over ``(batch, n_tokens, d)``, each series from zeros: ``(batch, n_tokens, width)``.

    Examples
    --------
    >>> cells, tokens = nn.GRU(5, 32, batch_first=True), torch.randn(2, 3, 5)
    >>> torch.allclose(states(cells, tokens), cells(tokens)[0], atol=1e-6)
    True
    """
    weight_ih, weight_hh, bias_ih, bias_hh = (
        getattr(cells, name) for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    )
    of_tokens = functional.linear(tokens, weight_ih, bias_ih)
    inputs = (of_tokens, weight_hh, bias_hh)
    keeps = torch.is_grad_enabled() and any(item.requires_grad for item in inputs)
    found: Tensor = States.apply(keeps, *(item.contiguous() for item in inputs))  # type: ignore[no-untyped-call]
    return found


class States(torch.autograd.Function):
    """The recurrence as one step of autograd."""

    @staticmethod
    def forward(ctx: Any, keeps: bool, *inputs: Tensor) -> Tensor:
        """All states; r, z, n and W_n h + b_n are kept where there will be a gradient."""
        from raxss.method.backbones.gru_kernels import forward_one

        of_tokens, weight, bias = (item.detach().numpy() for item in inputs)
        batch, n_tokens, width = len(of_tokens), of_tokens.shape[1], weight.shape[1]
        found = np.empty((batch, n_tokens, width), np.float32)
        gates = np.empty((batch, n_tokens if keeps else 0, 4 * width), np.float32)
        turned = weight.T.copy()  # (width, 3 * width)
        each_on_threads(lambda i: forward_one(of_tokens[i], turned, bias, found[i], gates[i]), range(batch))
        result = torch.from_numpy(found)
        ctx.save_for_backward(inputs[1], result, torch.from_numpy(gates))
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of every input."""
        from raxss.method.backbones.gru_kernels import backward_one

        weight, found, gates = ctx.saved_tensors
        batch, n_tokens, width = found.shape
        grad_states = grad_outputs[0].contiguous().numpy()
        of_tokens, of_states = np.empty((2, batch, n_tokens, 3 * width), np.float32)
        rows, kept, known = weight.detach().numpy(), gates.numpy(), found.detach().numpy()

        def of_one(i: int) -> None:
            backward_one(rows, known[i], kept[i], grad_states[i], of_tokens[i], of_states[i])

        each_on_threads(of_one, range(batch))
        before = functional.pad(found.detach()[:, :-1], (0, 0, 1, 0))  # the state that each step began with
        of_states = torch.from_numpy(of_states).flatten(0, 1)
        return None, torch.from_numpy(of_tokens), of_states.T @ before.flatten(0, 1), of_states.sum(dim=0)
