"""RevIN: instance normalisation of windows.

    windows (batch, n_variates, length) -> the same shape, mean 0 and deviation 1 per window and variate

Only the way in: a classifier has nothing to scale back.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RevIN(nn.Module):
    """Instance normalisation of each window and variate, with a learned scale and offset per variate.

    x -> gain * (x - mean) / sqrt(variance + eps) + offset

    The learned pair starts at (1, 0). Two windows that differ in level or scale alone look the same to the
    network, and a flat window is all zeros.

    Examples
    --------
    >>> RevIN(1, affine=False)(torch.tensor([[[1.0, 2.0, 3.0]]]))
    tensor([[[-1.2247,  0.0000,  1.2247]]])
    """

    def __init__(self, n_variates: int, *, affine: bool = True, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.affine = affine
        if affine:
            self.gain = nn.Parameter(torch.ones(n_variates, 1))
            self.offset = nn.Parameter(torch.zeros(n_variates, 1))

    def forward(self, windows: Tensor, present: Tensor | None = None) -> Tensor:
        """``(batch, n_variates, length)`` -> the same; with a mask ``(batch, 1, length)``, over what is present."""
        if present is None:
            variance, mean = torch.var_mean(windows, dim=-1, correction=0, keepdim=True)
        else:
            n = present.sum(dim=-1, keepdim=True).clamp_min(1.0)
            mean = (windows * present).sum(dim=-1, keepdim=True) / n
            variance = ((windows - mean).square() * present).sum(dim=-1, keepdim=True) / n
        scaled = (windows - mean) * torch.rsqrt(variance + self.eps)
        scaled = scaled * self.gain + self.offset if self.affine else scaled
        return scaled if present is None else scaled * present
