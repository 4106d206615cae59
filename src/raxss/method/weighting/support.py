"""Weights by support: the paper's weighting, plain SSS, and their controls.

support   softmax(s / tau), the paper's
uniform   equal weights, plain Stochastic Sparse Sampling (SSS)
inverse   softmax(-s / tau), a control
shuffled  supports permuted within the series, a control
random    normal values of the same mean and variance, a control
"""

from __future__ import annotations

import functools

import numpy as np
from torch import Tensor

from raxss.method.weighting.protocol import (
    Floats,
    Inverted,
    Shuffled,
    SupportLists,
    Weighting,
    add_weightings,
)

UNIFORM = "uniform"  # the reference that other weightings are compared with


class BySupport(Weighting):
    """The influence of a window is its support (Eq. 2), plus a gate in subclasses."""

    no_batch = ""
    phrase = ""

    def influence(self, support: Floats, *, gate: Floats | None = None, seed: int = 0) -> Floats:
        """The support itself."""
        return support.copy()

    def batch_influence(self, support: Tensor, series: Tensor, n_series: int) -> Tensor:
        """The support within the batch."""
        return support

    def mean_support(self, mean_influence: float) -> float:
        """The mean itself."""
        return mean_influence

    def leave_one_out(self, lists: SupportLists, *, temperature: float, sign: int = 1) -> Floats:
        """Twin of `Weighting.leave_one_out` in closed form, in logarithms: weights may differ by 1e300."""
        similarity, support, rows, gate = lists.row_similarity, lists.support, lists.rows, lists.gate
        listed = ~np.isnan(similarity)
        usable = ~np.isnan(support)
        sharpness = sign / temperature
        offset = (np.zeros(len(support)) if gate is None else gate) * sharpness
        own, n_listed = support[rows, np.newaxis], listed.sum(axis=1, keepdims=True)
        only = n_listed == 1
        has_list, borrows, flat = lists.has_list, lists.borrows, lists.flat
        n_lists = int(has_list.sum())
        scores = np.where(usable & ~borrows, support * sharpness + offset, -np.inf)
        before = np.concatenate([[-np.inf], np.logaddexp.accumulate(scores)[:-1]])
        after = np.concatenate([[-np.inf], np.logaddexp.accumulate(scores[::-1])[:-1]])[::-1]
        others = np.logaddexp(before[rows], after[rows])[:, np.newaxis]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            others_sum = support[has_list].sum() - own
            others_mean = others_sum / (n_lists - 1)
            shorter = (n_listed * own - similarity) / (n_listed - 1)
            without = np.where(only, np.where(flat[rows, np.newaxis], 0.0, others_mean), shorter)
            borrowed = np.where(only, others_mean, (others_sum + without) / n_lists)
            borrowers = borrowed * sharpness + np.logaddexp.reduce(offset[borrows], initial=-np.inf)
            score = without * sharpness + offset[rows, np.newaxis]
            total = functools.reduce(np.logaddexp, (others, score, borrowers))  # of logarithms
            weights = np.exp(score - total)
            if n_lists == 1:
                alone = np.exp(offset[rows, np.newaxis] - np.logaddexp.reduce(offset[usable]))
                weights = np.where(only, alone, weights)
        return np.where(listed, weights, np.nan)


class Uniform(Weighting):
    """Equal weights: the mean over windows of plain SSS."""

    needs_retrieval = False
    no_batch = ""
    no_batch_gradient = "under which support does not enter the weights"
    no_learned_temperature = "under which there is nothing to learn it from"

    def influence(self, support: Floats, *, gate: Floats | None = None, seed: int = 0) -> Floats:
        """0 for every usable window."""
        return np.where(np.isnan(support), np.nan, 0.0)

    def batch_influence(self, support: Tensor, series: Tensor, n_series: int) -> Tensor:
        """0 for every window."""
        return support * 0.0

    def leave_one_out(self, lists: SupportLists, *, temperature: float, sign: int = 1) -> Floats:
        """Twin of `Weighting.leave_one_out`: the weight does not depend on the lists."""
        return np.where(np.isnan(lists.row_similarity), np.nan, 1.0 / (~np.isnan(lists.support)).sum())

    def note(self) -> str:
        """A remark that neighbours do not enter."""
        return "weights are uniform by setting (the SSS mean): the neighbours do not enter them."


class Random(Weighting):
    """A control: normal values of the same mean and variance as the support."""

    is_control = True
    needs_generator = True
    no_batch = "whose weights belong to a whole series"
    no_learned_temperature = "under which there is nothing to learn it from"

    def influence(self, support: Floats, *, gate: Floats | None = None, seed: int = 0) -> Floats:
        """Drawn anew for each series."""
        values, usable = support.copy(), ~np.isnan(support)
        mean, deviation = (values[usable].mean(), values[usable].std()) if usable.any() else (0.0, 0.0)
        values[usable] = np.random.default_rng(seed).normal(mean, deviation, size=int(usable.sum()))
        return values


SUPPORT = BySupport("support", inverse="inverse", shuffled="shuffled")
add_weightings(
    SUPPORT,
    Uniform(UNIFORM, family="support", inverse=UNIFORM),
    Inverted(SUPPORT),
    Shuffled(SUPPORT),
    Random("random", family="support"),
)
