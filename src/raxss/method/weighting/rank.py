r"""Weights by the rank of support within the series.

    rank  alpha_k = softmax(r_k / tau),  r_k = (number of windows with less support + half of those with the same)
                                               / (n - 1), from 0 (least support) to 1 (most)

Only the order of the supports counts, so that one outlier cannot take all the weight and the spread of the
weights depends on n alone. Ties share their mean rank; a single usable window has r = 0; unusable windows are
not counted.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from raxss.method.weighting.protocol import Floats, SupportLists, Weighting, register_weighting

ROWS_AT_ONCE = 1024  # windows of a minibatch that are compared with all others together


@register_weighting("rank")
class Rank(Weighting):
    """The influence of a window is the normalised rank of its support."""

    no_batch = ""
    phrase = " by rank"
    no_batch_gradient = (
        "whose ranks do not change with small changes of support, so that no gradient reaches it"
    )

    def influence(self, support: Floats, *, gate: Floats | None = None, seed: int = 0) -> Floats:
        """Normalised ranks; ties share their mean rank."""
        values, usable = support.copy(), ~np.isnan(support)
        n = int(usable.sum())
        values[usable] = (rankdata(support[usable]) - 1.0) / max(n - 1, 1)
        return values

    def batch_influence(self, support: Tensor, series: Tensor, n_series: int) -> Tensor:
        """Normalised ranks within the series of each window."""
        support = support.detach()
        parts = []
        for rows in torch.arange(len(support), device=support.device).split(ROWS_AT_ONCE):
            same = series[rows, None] == series
            less = (same & (support < support[rows, None])).sum(dim=1)
            equal = (same & (support == support[rows, None])).sum(dim=1)
            n = same.sum(dim=1)
            parts.append((less + 0.5 * (equal - 1)) / (n - 1).clamp_min(1))
        return torch.cat(parts).to(support.dtype)

    def leave_one_out(self, lists: SupportLists, *, temperature: float, sign: int = 1) -> Floats:
        """Twin of `Weighting.leave_one_out` by running sums over sorted supports, for all neighbours at once.

        When one window moves within the order, those that it passes move by one rank and the others keep
        theirs. Where windows borrow their support, and so move as well, all is computed again.
        """
        if lists.borrows.any():
            return super().leave_one_out(lists, temperature=temperature, sign=sign)
        similarity, support, has_list = lists.row_similarity, lists.support, lists.has_list
        listed = ~np.isnan(similarity)
        n_listed = listed.sum(axis=1, keepdims=True)
        own = np.broadcast_to(support[lists.rows, np.newaxis], similarity.shape)
        rest = np.nansum(similarity, axis=1, keepdims=True) - similarity  # exact: multiples of 2^-32
        without = rest / np.maximum(n_listed - 1, 1)
        which = lists.row_indices
        for row in np.flatnonzero(n_listed == 1):  # without its only neighbour: the mean of the others
            others = has_list & (np.arange(len(support)) != which[row])
            borrows = others.any() and not lists.flat[which[row]]
            without[row] = support[others].mean() if borrows else 0.0
        weights = np.full(similarity.shape, np.nan)
        # The inverse of an order is the order of the negatives.
        weights[listed] = _weights_after_moves(
            sign * support[~np.isnan(support)], sign * own[listed], sign * without[listed], temperature
        )
        return weights

    def note(self) -> str:
        """A remark that sizes do not count."""
        return (
            "weights follow the rank of support within the series, not its size: the window with the most support "
            "weighs most however small its lead."
        )


def _weights_after_moves(values: Floats, old: Floats, new: Floats, temperature: float) -> Floats:
    """Weight of a window whose value moves from ``old`` to ``new``, ``(n_moves,)`` each, among ``values (n,)``."""
    n = len(values)
    if n == 1:
        return np.ones(len(old))
    step = 1.0 / ((n - 1) * temperature)  # between the logits of neighbouring ranks
    groups, counts = np.unique(values, return_counts=True)
    below = np.append(0, np.cumsum(counts))  # windows before each group, and all
    logits = step * (below[:-1] + (counts - 1) / 2)
    terms = np.log(counts) + logits
    nothing = [-np.inf]
    up_to = np.concatenate([nothing, np.logaddexp.accumulate(terms)])  # groups before each place
    down_to = np.concatenate(
        [np.logaddexp.accumulate(terms[::-1])[::-1], nothing]
    )  # groups from each place on
    left = np.searchsorted(groups, old)
    place = np.searchsorted(groups, new)
    joins = np.append(groups, np.nan)[place] == new
    rises = new > old
    # Those that the window leaves behind, or passes, give way by one rank; a group that it leaves or joins by half.
    first = np.where(rises, left + 1, place + joins)
    last = np.where(rises, place, left)
    shift = np.where(rises, -step, step)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        passed = up_to[last] + np.log1p(-np.exp(up_to[first] - up_to[last])) + shift
        passed = np.where(last > first, passed, -np.inf)
        behind = np.log(counts[left] - 1.0) + logits[left] + shift / 2
        met = np.minimum(place, len(groups) - 1)
        n_joined = np.where(joins, counts[met], 0)
        alone = step * (below[place] - rises)
        logit = np.where(joins, logits[met] + shift / 2, alone)
        moved = np.log(n_joined + 1.0) + logit
        lower = up_to[np.where(rises, left, place)]
        upper = down_to[np.where(rises, place + joins, left + 1)]
        total = functools.reduce(np.logaddexp, (lower, passed, behind, moved, upper))
        stays = np.exp(logits[left] - up_to[-1])
        return np.where(new == old, stays, np.exp(logit - total))
