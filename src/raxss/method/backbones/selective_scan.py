"""What does a state space remember of a sequence, when the sequence itself decides what to keep?

    x, delta (batch, length, width), A (width, n_states), B, C (batch, length, n_states), D (width,)
        -> y (batch, length, width)

    h_t = exp(delta_t A) h_{t-1} + delta_t B_t x_t,    y_t = C_t h_t + D x_t,    h_0 = 0

`plain_scan` is the definition, for any device and precision. `selective_scan` takes a faster way to the same
numbers where there is one: compiled loops on a CPU, Triton kernels on a GPU.

Next: selective_scan_numba.py, selective_scan_triton.py; mamba.py is what it is for.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from raxss.errors import BackboneError
from raxss.method.backbones import selective_scan_numba, selective_scan_triton

CHUNK = 64  # steps that are scanned side by side; what lies between two of them is computed again for the gradient


def selective_scan(x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """Run the recurrence over a batch of sequences, each from a state of zeros.

    h_t = exp(delta_t A) h_{t-1} + delta_t B_t x_t,    y_t = C_t h_t + D x_t

    Parameters
    ----------
    x, delta
        Inputs and step sizes, ``(batch, length, width)``.
    A
        How fast each state decays, ``(width, n_states)``, negative: delta A is the logarithm of what is kept.
    B, C
        What enters and what is read, ``(batch, length, n_states)``.
    D
        What passes by the state, ``(width,)``.

    Returns
    -------
    ``(batch, length, width)``, in float32 also under autocast; in float64 where the inputs are.

    Notes
    -----
    Only what is between 0 and 1 is ever multiplied up, and nothing is divided or taken the logarithm of, so a
    strong decay loses nothing but itself. For the gradient the ``width * n_states`` numbers of a state are kept
    every 16 steps (every 64 on a GPU), not every step; what lies between is computed again. A sequence does not
    depend on its neighbours in the batch, and two calls give the same bits.

    Examples
    --------
    A state that halves at every step, and takes the input in as it is:

    >>> x, one = torch.tensor([[[1.0], [0.0], [4.0]]]), torch.ones(1, 3, 1)
    >>> selective_scan(x, one, -torch.tensor([[2.0]]).log(), one, one, torch.zeros(1)).flatten()
    tensor([1.0000, 0.5000, 4.2500])
    """
    _check_shapes(x, delta, A, B, C, D)
    with torch.autocast(x.device.type, enabled=False):
        kind = torch.float64 if x.dtype == torch.float64 else torch.float32
        x, delta, A, B, C, D = (item.to(kind) for item in (x, delta, A, B, C, D))
        for fast in (selective_scan_triton, selective_scan_numba):
            if fast.suits(x, delta, A, B, C, D):
                return fast.scan(x, delta, A, B, C, D)
        return plain_scan(x, delta, A, B, C, D)


def plain_scan(x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """The same with torch alone, chunk by chunk: what runs where no kernel suits, and what kernels are held to.

    Examples
    --------
    >>> x, B, C = torch.randn(2, 100, 3), torch.randn(2, 100, 4), torch.randn(2, 100, 4)
    >>> plain_scan(x, x.exp(), -torch.ones(3, 4), B, C, torch.zeros(3)).shape
    torch.Size([2, 100, 3])
    """
    state = x.new_zeros(len(x), *A.shape)
    pieces = []
    parts = zip(*(item.split(CHUNK, dim=1) for item in (x, delta, B, C)), strict=True)
    for x_part, delta_part, B_part, C_part in parts:
        if torch.is_grad_enabled():  # keep the state alone; the rest of the chunk is computed again
            y, state = checkpoint(
                _scan_chunk, state, x_part, delta_part, A, B_part, C_part,
                use_reentrant=False, preserve_rng_state=False,
            )  # fmt: skip
        else:
            y, state = _scan_chunk(state, x_part, delta_part, A, B_part, C_part)
        pieces.append(y)
    return torch.cat(pieces, dim=1) + D * x


def _scan_chunk(
    state: Tensor,  # (batch, width, n_states)
    x: Tensor,  # (batch, length, width)
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
) -> tuple[Tensor, Tensor]:
    """What is read at each step of a chunk, and the state after it.

    Doubling: after k rounds every step has seen the 2^k steps up to itself, so six rounds do for 64.
    """
    kept = torch.exp(delta[..., None] * A)  # (batch, length, width, n_states)
    states = (delta * x)[..., None] * B[:, :, None]
    states = torch.cat([states[:, :1] + kept[:, :1] * state[:, None], states[:, 1:]], dim=1)
    reach, length = 1, x.shape[1]
    while reach < length:
        before = functional.pad(states[:, :-reach], (0, 0, 0, 0, reach, 0))
        states = states + kept * before
        kept = kept * functional.pad(kept[:, :-reach], (0, 0, 0, 0, reach, 0), value=1.0)
        reach *= 2
    return (states @ C[..., None]).squeeze(-1), states[:, -1]


def _check_shapes(x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> None:
    """Refuse what does not fit together, by name."""
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
