"""Weighting strategies: softmax weights (Eq. 2), base class, registry, and the two controls of every strategy.

    support (n_windows,), gate (n_windows,) or None -> influence (n_windows,), the logits of Eq. (2)
    influence, temperature                          -> weights (n_windows,), of sum 1

What depends on the weighting in use is a method or attribute of its object; no other module compares its name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from raxss.errors import ConfigError

Floats = NDArray[np.float64]


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


@dataclass(frozen=True, eq=False)
class SupportLists:
    """Neighbour lists and support of one series, for weights with one neighbour left out (`leave_one_out`)."""

    similarity: Floats  # (n_windows, m), NaN where no neighbour is listed
    support: Floats  # (n_windows,), NaN where a window cannot be used
    flat: NDArray[np.bool_]  # (n_windows,)
    gate: Floats | None  # (n_windows,)
    rows: NDArray[np.int64] | slice  # windows whose weights are computed

    @property
    def row_similarity(self) -> Floats:
        """``(n_rows, m)``."""
        return self.similarity[self.rows]

    @property
    def row_indices(self) -> NDArray[np.int64]:
        """``(n_rows,)``."""
        return np.arange(len(self.support))[self.rows]

    @functools.cached_property
    def has_list(self) -> NDArray[np.bool_]:
        """``(n_windows,)`` windows with at least one neighbour."""
        return np.array(~np.isnan(self.similarity).all(axis=1), dtype=bool)

    @functools.cached_property
    def borrows(self) -> NDArray[np.bool_]:
        """``(n_windows,)`` usable windows without a neighbour, whose support is the mean of the others."""
        return ~np.isnan(self.support) & ~self.has_list & ~self.flat

    def support_without(self, k: int, j: int) -> Floats:
        """Support ``(n_windows,)`` of all windows without the j-th neighbour of window k, with no substitute.

        Windows without neighbours take the mean support of those that have some (0 where none has); flat ones
        keep 0.
        """
        changed, has_list, borrows = self.support.copy(), self.has_list.copy(), self.borrows.copy()
        rest = np.delete(self.similarity[k], j)
        rest = rest[~np.isnan(rest)]
        if len(rest):
            changed[k] = rest.sum() / len(rest)  # as retrieval does: equal lists keep equal supports
        else:
            has_list[k] = False
            changed[k], borrows[k] = 0.0, not self.flat[k]
        changed[borrows] = changed[has_list].mean() if has_list.any() else 0.0
        return changed


class Weighting:
    """A strategy that turns the support of the windows of one series into the logits of the softmax (Eq. 2).

    Subclass it, write `influence`, and register the class: see the example of `register_weighting`. The other
    methods and attributes have defaults that are correct, slow, or refuse with a reason. ``family`` is the
    name of the weighting that this one is a control of, or its own; ``inverse`` and ``shuffled`` are names of
    controls, or None.
    """

    is_control: bool = False  # should do worse than its family if support, or the gate, is informative
    needs_retrieval: bool = True  # False: support does not enter, and all usable windows weigh the same
    needs_gate: bool = False  # a gate, learned from the features of the network, is part of the influence
    needs_generator: bool = False  # draws random numbers; neighbour lists do not explain such weights
    # Relative clauses for errors, empty where supported: why it has no `batch_influence`, why that has no gradient
    # (refresh="batch"), why temperature="learned" is refused.
    no_batch: str = "which is not defined among the windows of a minibatch"
    no_batch_gradient: str = ""
    no_learned_temperature: str = ""
    phrase: str | None = None  # distinguishes these weights from weights by support, such as " by rank"

    def __init__(
        self,
        name: str,
        *,
        family: str | None = None,
        inverse: str | None = None,
        shuffled: str | None = None,
    ) -> None:
        self.name, self.family = name, family or name
        if self.phrase is None:
            self.phrase = f" ({name})"
        self.inverse, self.shuffled = inverse, shuffled

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def origin(self) -> str:
        """Module and name of the class; the same again when a notebook cell runs twice."""
        return f"{type(self).__module__}.{type(self).__qualname__}"

    def influence(self, support: Floats, *, gate: Floats | None = None, seed: int = 0) -> Floats:
        """Logits ``(n_windows,)`` of the softmax, before the temperature, for the windows of one series.

        NaN ``support`` marks a window that cannot be used and stays NaN; the array must not be modified.
        ``gate`` is given where ``needs_gate``, ``seed`` is for random numbers.
        """
        raise NotImplementedError

    def pool_influence(self, support: Floats, *, seed: int = 0) -> Floats:
        """Influence without the gate, as the window pool of training keeps it; steps add the gate."""
        gate = np.zeros_like(support) if self.needs_gate else None
        return self.influence(support, gate=gate, seed=seed)

    def batch_influence(
        self,
        support: Tensor,  # (batch,)
        series: Tensor,  # (batch,)
        n_series: int,
    ) -> Tensor:  # (batch,)
        """`pool_influence` within a minibatch, for all its series at once; must not synchronise with the device."""
        raise ConfigError(f"weighting {self.name!r}, {self.no_batch}, cannot be computed in a minibatch.")

    def mean_support(self, mean_influence: float) -> float | None:
        """Mean support of a series from the mean of its `pool_influence`; None where it does not determine it."""
        return None

    def leave_one_out(self, lists: SupportLists, *, temperature: float, sign: int = 1) -> Floats:
        """Weight ``(n_rows, m)`` of each window with one of its neighbours left out: see `weight_without`.

        By default all weights of the series are computed again for every neighbour, in quadratic time. NaN
        where there is no neighbour, and under weightings that draw random numbers. ``sign`` is -1 for the
        inverse.
        """
        similarity = lists.row_similarity
        weights = np.full(similarity.shape, np.nan)
        if self.needs_generator:
            return weights
        for row, k in enumerate(lists.row_indices):
            for j in np.flatnonzero(~np.isnan(similarity[row])):
                changed = self.influence(lists.support_without(k, j), gate=lists.gate)
                values = torch.from_numpy(sign * changed)
                weights[row, j] = window_weights(values, temperature=temperature)[k]
        return weights

    def note(self) -> str | None:
        """A remark about these weights for the evidence, or None."""
        if not self.is_control:
            return None
        what = "the gate" if self.needs_gate else "support"
        unexplained = ", and the lists do not explain the weights" if self.needs_generator else ""
        return (
            f"weighting {self.name!r} is a control, there to do worse if {what} means anything{unexplained}; this "
            "is not a prediction to use."
        )


class _Control(Weighting):
    """A control made from the influence of another weighting."""

    is_control = True
    kind: str

    def __init__(self, of: Weighting, name: str | None, *, inverse: str | None = None) -> None:
        assert name is not None, "a weighting with this control names it"
        super().__init__(name, family=of.family, inverse=inverse)
        self._of, self.needs_gate = of, of.needs_gate

    @property
    def origin(self) -> str:
        """Module and name of the class that it is a control of."""
        return f"the {self.kind} of {self._of.origin}"


class Inverted(_Control):
    """The inverted control of a weighting: minus its influence."""

    kind = "inverse"

    def __init__(self, of: Weighting) -> None:
        super().__init__(of, of.inverse, inverse=of.name)
        self.needs_generator, self.no_learned_temperature = of.needs_generator, of.no_learned_temperature
        self.no_batch, self.no_batch_gradient = of.no_batch, of.no_batch_gradient

    def influence(self, support: Floats, *, gate: Floats | None = None, seed: int = 0) -> Floats:
        """Minus the influence of the inverted weighting."""
        return -self._of.influence(support, gate=gate, seed=seed)

    def batch_influence(self, support: Tensor, series: Tensor, n_series: int) -> Tensor:
        """Likewise, in a minibatch."""
        if self.no_batch:
            return super().batch_influence(support, series, n_series)  # the error names this weighting
        return -self._of.batch_influence(support, series, n_series)

    def mean_support(self, mean_influence: float) -> float | None:
        """By the inverted weighting."""
        return self._of.mean_support(-mean_influence)

    def leave_one_out(self, lists: SupportLists, *, temperature: float, sign: int = 1) -> Floats:
        """By the inverted weighting."""
        return self._of.leave_one_out(lists, temperature=temperature, sign=-sign)


class Shuffled(_Control):
    """The shuffled control of a weighting: its influence, permuted within the series."""

    kind = "shuffled control"
    needs_generator = True
    no_batch = "whose weights belong to a whole series"
    no_learned_temperature = "under which there is nothing to learn it from"

    def __init__(self, of: Weighting) -> None:
        super().__init__(of, of.shuffled)

    def influence(self, support: Floats, *, gate: Floats | None = None, seed: int = 0) -> Floats:
        """A permutation of the influence of the usable windows."""
        values = self._of.influence(support, gate=gate, seed=seed)
        usable = ~np.isnan(values)
        values[usable] = np.random.default_rng(seed).permutation(values[usable])
        return values


WEIGHTINGS: dict[str, Weighting] = {}
"""Name -> weighting."""

Kind = TypeVar("Kind", bound=type[Weighting])


def register_weighting(name: str) -> Callable[[Kind], Kind]:
    """Register a class under a name for the setting ``weighting``, with controls: inverse and shuffled influence.

    Examples
    --------
    >>> @register_weighting("squared")
    ... class Squared(Weighting):
    ...     no_batch = ""
    ...     def influence(self, support, *, gate=None, seed=0):
    ...         return np.sign(support) * support**2
    ...     def batch_influence(self, support, series, n_series):
    ...         return support.sign() * support**2
    >>> influence([0.5, -1.0], "squared"), influence([0.5, -1.0], "squared-inverse")
    (array([ 0.25, -1.  ]), array([-0.25,  1.  ]))
    >>> for name in ("squared", "squared-inverse", "squared-shuffled"):
    ...     del WEIGHTINGS[name]
    """

    def register(kind: Kind) -> Kind:
        own = kind(name, inverse=f"{name}-inverse", shuffled=f"{name}-shuffled")
        add_weightings(own, Inverted(own), Shuffled(own))
        return kind

    return register


def add_weightings(*weightings: Weighting) -> None:
    """Add weightings to the registry, all or none; `register_weighting` also makes controls."""
    for weighting in weightings:
        taken = WEIGHTINGS.get(weighting.name)
        if taken is not None and taken.origin != weighting.origin:
            raise ConfigError(
                f"the weighting name {weighting.name!r} belongs to {taken.origin} already and cannot also mean "
                f"{weighting.origin}. Register it under another name."
            )
    WEIGHTINGS.update({weighting.name: weighting for weighting in weightings})


def weighting_named(name: str) -> Weighting:
    """The registered weighting of this name."""
    if name not in WEIGHTINGS:
        raise ConfigError(f"weighting must be one of {', '.join(WEIGHTINGS)}, got {name!r}.")
    return WEIGHTINGS[name]


def influence(
    support: ArrayLike, weighting: str = "support", *, seed: int = 0, gate: ArrayLike | None = None
) -> Floats:
    """Logits of the softmax (before the temperature) under a weighting, from the support of one series.

    ``support`` is the paper's; ``uniform`` makes all windows equal (SSS). Controls show whether support
    matters: ``inverse`` changes its sign, ``shuffled`` permutes it within the series, ``random`` draws normal
    values of the same mean and variance. ``gated`` adds a learned gate, ``rank`` uses the order of support
    alone. NaN stays NaN.

    Examples
    --------
    >>> influence([0.9, 0.5, np.nan], "inverse")
    array([-0.9, -0.5,  nan])
    >>> influence([0.9, 0.5, np.nan], "gated", gate=[-0.3, 0.2, 0.0])
    array([0.6, 0.7, nan])
    """
    chosen = weighting_named(weighting)
    values = np.array(support, dtype=np.float64)
    if not chosen.needs_gate:
        return chosen.influence(values, seed=seed)
    if gate is None:
        raise ConfigError(f"weighting is {weighting!r}, which needs the gate of each window; pass gate.")
    return chosen.influence(values, gate=np.asarray(gate, dtype=np.float64), seed=seed)
