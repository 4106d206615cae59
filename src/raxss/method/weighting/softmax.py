"""Softmax over the windows of each series (Eq. 2).

    influence (n_windows,), temperature -> weights (n_windows,), of sum 1 within each series

Next: protocol.py has the weightings, which make the influence from support.
"""

from __future__ import annotations

import torch
from torch import Tensor


def window_weights(
    support: Tensor,  # (n_windows,)
    *,
    temperature: float | Tensor,
    series: Tensor | None = None,  # (n_windows,) index of each window's series
    n_series: int = 1,
) -> Tensor:  # (n_windows,)
    r"""Turn each window's support into its share of the series decision. Implements Eq. (2).

    alpha_k = exp(s_k / tau) / sum_t exp(s_t / tau), the sum over the windows of the same series

    Parameters
    ----------
    support
        Mean similarity to the top neighbors (s-bar_k), in [-1, 1]. NaN marks a window that cannot be
        used; it gets weight 0.
    temperature
        tau > 0. Small: a few windows decide. Large: approaches the SSS mean.
    series, n_series
        For a batch: the series of each window, 0 to n_series - 1. Without it all windows are of one.

    Returns
    -------
    Nonnegative weights that sum to 1 within each series.

    Notes
    -----
    Alg. 2 exponentiates directly, which overflows in float32 below tau = 0.0113. The largest support of
    each series is subtracted first, which is equal on paper. A series with no usable window gets zeros.
    Sums run in float64: in float32 the weights of 10,000 windows would miss 1 by 1e-5.

    Examples
    --------
    >>> window_weights(torch.tensor([0.9, 0.9, 0.7]), temperature=0.1)
    tensor([0.4683, 0.4683, 0.0634])
    >>> two_series = torch.tensor([0, 1, 1])
    >>> window_weights(torch.tensor([0.9, 0.9, 0.7]), temperature=0.1, series=two_series, n_series=2)
    tensor([1.0000, 0.8808, 0.1192])
    """
    if series is None:
        series = torch.zeros(len(support), dtype=torch.long, device=support.device)
    usable = ~torch.isnan(support)
    lowest = torch.full((n_series,), -torch.inf, dtype=support.dtype, device=support.device)
    masked = support.detach().masked_fill(~usable, -torch.inf)
    largest = lowest.scatter_reduce(0, series, masked, "amax")
    # The difference is at most 0 for usable windows; elsewhere -inf - -inf must not become NaN. It is taken
    # before the division, because small differences of large quotients lose digits.
    differences = torch.where(usable, support, 0.0) - torch.nan_to_num(largest, neginf=0.0)[series]
    powers = torch.exp(torch.where(usable, differences / temperature, -torch.inf))
    exact = torch.zeros(n_series, dtype=torch.float64, device=powers.device)
    totals = exact.index_add(0, series, powers.double()).to(powers.dtype)
    return powers / totals.clamp_min(torch.finfo(powers.dtype).tiny)[series]
