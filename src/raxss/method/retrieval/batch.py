"""Support within a minibatch (Eq. 1 with the batch as the bank), differentiable, in torch.

    windows (batch, n_variates, length), series (batch,), starts (batch,) -> support (batch,)
    features (n_windows, d) of whole series, one after the other          -> support (n_windows,)

Retrieve of Alg. 1 among the sampled windows alone, in one vectorised float32 pass on the training device.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from raxss._core.memory import in_batches
from raxss.method.retrieval.shared_samples import shared_similarity

ROWS_AT_ONCE = 1024  # windows that are compared with the batch in one block
BYTES_A_PAIR = 24  # of such a block, measured: distance of starts, eligibility, similarity
MOST_BYTES = 2**29  # of such a block, where a batch is one long series


def batch_support(
    windows: Tensor,  # (batch, n_variates, length)
    series: Tensor,  # (batch,)
    starts: Tensor,  # (batch,)
    flat: Tensor,  # (batch,) bool
    *,
    measure: str,
    n_neighbors: int,
    exclusion: int,
    n_series: int | None = None,
    present: Tensor | None = None,  # (batch, 1, length) of 1 and 0
) -> Tensor:  # (batch,)
    """Mean similarity of each window to its top neighbors among the batch's windows of the same series.

    Twin of `retrieve` (Eq. 1) with the batch as the bank; differentiable. A window without a neighbor there
    takes the mean support of its series' other windows in the batch, 0 if there are none or if it is flat.
    ``n_series`` is more than the largest of ``series``; without it a GPU must be waited for. With ``present``,
    windows are compared over the samples that both have.

    Examples
    --------
    >>> ramp, steps = torch.arange(4.0), torch.tensor([0.0, 0.0, 1.0, 1.0])
    >>> windows = torch.stack([ramp, 2 * ramp, steps, ramp])[:, None]
    >>> series, starts = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 10, 20, 100])
    >>> batch_support(windows, series, starts, torch.zeros(4, dtype=torch.bool), measure="pearson",
    ...               n_neighbors=1, exclusion=0)
    tensor([1.0000, 1.0000, 0.8944, 0.0000])
    """
    if present is not None:
        windows = windows.double()  # differences of sums need it
    elif windows.dtype != torch.float64:
        windows = windows.float()
    if measure == "pearson":
        windows = windows - _means(windows, present)
    vectors = torch.nn.functional.normalize(
        (windows if present is None else windows * present).flatten(1), dim=1
    )
    vectors = vectors.masked_fill(flat[:, None], 0.0)
    m = min(n_neighbors, len(vectors))
    supports, counts = [], []
    n_rows = max(min(ROWS_AT_ONCE, MOST_BYTES // (BYTES_A_PAIR * max(len(vectors), 1))), 1)
    for rows in torch.arange(len(vectors), device=vectors.device).split(n_rows):
        eligible = (series[rows, None] == series) & ((starts[rows, None] - starts).abs() > exclusion)
        if present is None:
            similarity = vectors[rows] @ vectors.T
        else:
            shape, masks = windows.shape[1:], present[:, 0].double()
            some, every = vectors[rows].unflatten(1, shape), vectors.unflatten(1, shape)
            similarity = shared_similarity(some, masks[rows], every, masks, centred=measure == "pearson")
        similarity = similarity.masked_fill(~eligible, -torch.inf)
        best = similarity.topk(m, dim=1).values
        listed = torch.isfinite(best)
        counts.append(listed.sum(dim=1))
        supports.append(torch.where(listed, best, 0.0).sum(dim=1) / counts[-1].clamp_min(1))
    support, lonely = torch.cat(supports), torch.cat(counts) == 0
    # Windows without a neighbor have support 0 so far, so they add nothing to the totals.
    nothing = support.new_zeros(int(series.max()) + 1 if n_series is None else n_series)
    totals = nothing.index_add(0, series, support)
    known = nothing.index_add(0, series, (~lonely).to(support.dtype))
    return torch.where(lonely & ~flat, (totals / known.clamp_min(1))[series], support)


def _means(windows: Tensor, present: Tensor | None) -> Tensor:
    """Mean of each variate of each window, ``(batch, n_variates, 1)``, over the samples that are present."""
    if present is None:
        return windows.mean(dim=2, keepdim=True)
    return (windows * present).sum(dim=2, keepdim=True) / present.sum(dim=2, keepdim=True).clamp_min(1.0)


def feature_support(
    features: Tensor,  # (n_windows, d)
    series: Tensor,  # (n_windows,) ascending
    starts: Tensor,  # (n_windows,)
    flat: Tensor,  # (n_windows,) bool
    *,
    n_windows: list[int],
    n_neighbors: int,
    exclusion: int,
    device: torch.device,
    compared: Callable[[Tensor], Tensor] = lambda features: features,
) -> Tensor:  # (n_windows,)
    """Mean cosine of each window's features to those of its top neighbors in the same series.

    Twin of `retrieve` (Eq. 1) in feature space, in float32, for all windows of a training set at once.
    Computed on ``device``; ``compared`` maps features, a part at a time, to the vectors whose cosine is
    taken.
    """
    parts, ends = [], np.cumsum(n_windows).tolist()
    for group in in_batches(range(len(n_windows)), n_windows.__getitem__, ROWS_AT_ONCE):
        some = slice(ends[group[0]] - n_windows[group[0]], ends[group[-1]])
        vectors, members, places, shapeless = (
            item[some].to(device) for item in (features, series, starts, flat)
        )
        support = batch_support(
            compared(vectors)[:, None],
            members - members[0],
            places,
            shapeless,
            measure="cosine",
            n_neighbors=n_neighbors,
            exclusion=exclusion,
        )
        parts.append(support.to(series.device))
    return torch.cat(parts)
