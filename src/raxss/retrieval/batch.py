"""How far do the windows of one minibatch agree, each with those of its own series?

    windows (batch, n_variates, length), series (batch,), starts (batch,) -> support (batch,)

The bank is the batch (``bank="batch"``) instead of the whole series: Retrieve of Alg. 1 without a look at
windows that were not sampled. One vectorised pass, float32, on the device that trains.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROWS_AT_ONCE = 1024  # bounds the similarity block to ROWS_AT_ONCE × batch


def batch_support(
    windows: Tensor,  # (batch, n_variates, length)
    series: Tensor,  # (batch,)
    starts: Tensor,  # (batch,)
    flat: Tensor,  # (batch,) bool
    *,
    measure: str,
    n_neighbors: int,
    exclusion: int,
) -> Tensor:  # (batch,)
    """Mean similarity of each window to its top neighbors among the batch's windows of the same series.

    Eq. (1) with the batch as the bank. A window that has no neighbor there borrows the mean support of its
    series' other windows in the batch, 0 if there are none. A flat window keeps support 0 even then.

    Examples
    --------
    >>> ramp, steps = torch.arange(4.0), torch.tensor([0.0, 0.0, 1.0, 1.0])
    >>> windows = torch.stack([ramp, 2 * ramp, steps, ramp])[:, None]
    >>> series, starts = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 10, 20, 100])
    >>> batch_support(windows, series, starts, torch.zeros(4, dtype=torch.bool), measure="pearson",
    ...               n_neighbors=1, exclusion=0)
    tensor([1.0000, 1.0000, 0.8944, 0.0000])
    """
    if measure == "pearson":
        windows = windows - windows.mean(dim=2, keepdim=True)
    vectors = torch.nn.functional.normalize(windows.flatten(1).float(), dim=1)
    vectors = vectors.masked_fill(flat[:, None], 0.0)
    m = min(n_neighbors, len(vectors))
    supports, counts = [], []
    for rows in torch.arange(len(vectors), device=vectors.device).split(ROWS_AT_ONCE):
        eligible = (series[rows, None] == series) & ((starts[rows, None] - starts).abs() > exclusion)
        similarity = (vectors[rows] @ vectors.T).masked_fill(~eligible, -torch.inf)
        best = similarity.topk(m, dim=1).values
        listed = torch.isfinite(best)
        counts.append(listed.sum(dim=1))
        supports.append(torch.where(listed, best, 0.0).sum(dim=1) / counts[-1].clamp_min(1))
    support, lonely = torch.cat(supports), torch.cat(counts) == 0
    n_series = int(series.max()) + 1
    totals = torch.zeros(n_series, device=support.device).index_add(0, series[~lonely], support[~lonely])
    known = torch.zeros(n_series, device=support.device).index_add(
        0, series[~lonely], torch.ones_like(support[~lonely])
    )
    return torch.where(lonely & ~flat, (totals / known.clamp_min(1))[series], support)
