"""Mamba (Gu & Dao, 2023) over the patches of a series: blocks of selective state spaces.

    windows (batch, n_variates, length), n_samples (batch,) -> tokens (batch, n_patches, d_model)
        -> blocks -> features: mean over patches (batch, d_model) -> logits (batch, n_outputs)

For whole series of any length, with ``n_samples`` where shorter ones are padded, and for windows.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from raxss.method.backbones.protocol import register_backbone
from raxss.method.backbones.recurrent import PatchTokens, SequenceNetwork
from raxss.method.backbones.sizes import check_at_least_1, check_at_most

FASTEST, SLOWEST = 0.1, 0.001  # steps delta that a new network takes: memories of ten to a thousand tokens
# Steps; of longer sequences one state a chunk is kept, and the others are computed again for the gradient.
CHUNK = 64


@register_backbone("mamba")
class Mamba(SequenceNetwork):
    """Patches as tokens, blocks of selective state spaces, the mean of what they give.

    With the defaults, one variate and one output: 22,019 parameters, for series of any length. Nothing looks ahead,
    so padding is left out by leaving it out of the mean.

    Parameters
    ----------
    d_model, n_layers
        Numbers in a token, and how many blocks follow each other; as the public code of SSS has them.
    d_state, d_conv, expand
        States a channel, reach of the convolution, and how many times ``d_model`` channels a block has.
    dropout
        Before the head. Other options are those of `GRU`.

    Notes
    -----
    It departs from the public code of SSS as `GRU` does. SSS also sets the bias of ``dt_proj`` to zero, so that
    steps begin near softplus(0) = 0.7; here all begins as in Mamba's own code, with steps from 0.001 to 0.1.

    Examples
    --------
    >>> network = Mamba(1, 1024, 1)
    >>> series = torch.randn(2, 1, 1024)
    >>> network.features(series).shape
    torch.Size([2, 32])
    >>> network(series, n_samples=torch.tensor([1024, 300])).shape
    torch.Size([2, 1])
    """

    capturable = True  # no step waits for the device, so it can be replayed as a CUDA graph

    def __init__(
        self,
        n_variates: int,
        window_length: int,
        n_outputs: int,
        *,
        d_model: int = 32,
        n_layers: int = 2,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dropout: float = 0.3,
        revin: bool = True,
        patch_length: int = 64,
        patch_stride: int = 16,
    ) -> None:
        super().__init__()
        sizes = {"n_layers": n_layers, "d_state": d_state, "d_conv": d_conv, "expand": expand}
        check_at_least_1(**sizes)
        check_at_most(**sizes)
        self.patches = PatchTokens(
            n_variates, d_model, patch_length=patch_length, patch_stride=patch_stride, revin=revin
        )
        self.norms = nn.ModuleList(nn.RMSNorm(d_model, eps=1e-5) for _ in range(n_layers))
        self.blocks = nn.ModuleList(
            MambaBlock(d_model, d_state=d_state, d_conv=d_conv, expand=expand) for _ in range(n_layers)
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(d_model, n_outputs)

    def features(self, windows: Tensor, n_samples: Tensor | None = None) -> Tensor:
        """``(batch, n_variates, length)`` -> mean of the tokens after the last block, ``(batch, d_model)``.

        ``n_samples (batch,)``: how many samples of each are real, all by default.
        """
        tokens = self.patches(windows, n_samples)
        # Under autocast too, the sum of what the blocks add must not be rounded after each of them.
        tokens = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
        for norm, block in zip(self.norms, self.blocks, strict=True):
            tokens = tokens + block(norm(tokens))
        return self.patches.mean(tokens, n_samples)


class MambaBlock(nn.Module):
    """One selective state space with its convolution and gate: ``(batch, length, d_model)`` both ways.

    Names of the layers are those of the public implementations, so that weights can be carried over.
    """

    def __init__(self, d_model: int, *, d_state: int = 16, d_conv: int = 4, expand: int = 2) -> None:
        super().__init__()
        width, rank = expand * d_model, math.ceil(d_model / 16)
        self.sizes = (rank, d_state, d_state)
        self.in_proj = nn.Linear(d_model, 2 * width, bias=False)
        self.conv1d = nn.Conv1d(width, width, d_conv, padding=d_conv - 1, groups=width)
        self.x_proj = nn.Linear(width, sum(self.sizes), bias=False)
        self.dt_proj = nn.Linear(rank, width)
        # A = -1, .., -d_state
        self.A_log = nn.Parameter(torch.arange(1.0, d_state + 1).log().repeat(width, 1))
        self.D = nn.Parameter(torch.ones(width))
        self.out_proj = nn.Linear(width, d_model, bias=False)
        nn.init.uniform_(self.dt_proj.weight, -(rank**-0.5), rank**-0.5)
        low, high = math.log(SLOWEST), math.log(FASTEST)
        with torch.no_grad():  # delta begins between both, evenly in its logarithm
            steps = (low + (high - low) * torch.rand_like(self.dt_proj.bias)).exp()
            self.dt_proj.bias.copy_(steps + torch.log(-torch.expm1(-steps)))  # the inverse of softplus

    def forward(self, tokens: Tensor) -> Tensor:
        """``(batch, length, d_model)`` -> the same; what comes later is not seen."""
        x, gate = self.in_proj(tokens).chunk(2, dim=-1)
        mixed = self.conv1d(x.transpose(1, 2))[..., : x.shape[1]]  # this token and those before it
        x = functional.silu(mixed.transpose(1, 2))
        delta, B, C = self.x_proj(x).split(self.sizes, dim=-1)
        delta = functional.softplus(self.dt_proj(delta))
        y = selective_scan(x, delta, -self.A_log.exp(), B, C, self.D)
        out: Tensor = self.out_proj(y * functional.silu(gate))
        return out


def selective_scan(x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """Run the state-space recurrence over a batch of sequences, each from a state of zeros.

    x, delta (batch, length, width), A (width, n_states), B, C (batch, length, n_states), D (width,)
        -> y (batch, length, width)

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
