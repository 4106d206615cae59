"""Aggregation of window posteriors into a series probability (Eq. 3, Alg. 2), and its loss.

    weights, posteriors (n_windows, C) -> contributions (n_windows, C) -> series_probability (C,)

Posteriors may be smoothed over a window's neighbours before they are weighted. Equal weights are plain
Stochastic Sparse Sampling (SSS). In training one vectorised pass serves the windows of many series;
``series`` then holds the series of each window. weighting/ makes the weights (Eq. 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from raxss._core.settings import is_number
from raxss.errors import ConfigError, SignalError, one_of
from raxss.method.weighting.protocol import WEIGHTINGS, influence, weighting_named, window_weights

CLAMP = 1e-6  # least distance of a probability from 0 and 1 inside a logarithm; float32 resolves 1 - 1e-6


def log_posteriors(logits: Tensor) -> Tensor:
    """Logarithms of the window posteriors ``(n, C)``; one logit z means classes (1 - sigma(z), sigma(z))."""
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    if logits.shape[-1] == 1:
        return torch.cat([F.logsigmoid(-logits), F.logsigmoid(logits)], dim=-1)
    return F.log_softmax(logits, dim=-1)


def posteriors_of(logits: Tensor) -> Tensor:
    """p_k, the class probabilities of each window: ``(n, 1)`` or ``(n, C)`` logits -> ``(n, C)``.

    >>> posteriors_of(torch.tensor([[0.0]]))
    tensor([[0.5000, 0.5000]])
    """
    return log_posteriors(logits).exp()


def series_probability(
    posteriors: Any,  # (n_windows, C)
    weights: Any,  # (n_windows,)
    *,
    series: Tensor | None = None,  # (n_windows,)
    n_series: int = 1,
) -> Any:  # (C,), or (n_series, C) where ``series`` is given
    """Add up the weighted window posteriors. Implements Eq. (3).

    p-hat = sum_k alpha_k p_k, a convex combination

    Tensors, or for one series arrays of numpy.

    Examples
    --------
    >>> series_probability(torch.tensor([[0.2, 0.8], [0.6, 0.4]]), torch.tensor([0.75, 0.25]))
    tensor([0.3000, 0.7000])
    """
    contributions = weights[:, None] * posteriors
    if series is None:
        return contributions.sum(0)
    total = torch.zeros(n_series, posteriors.shape[1], dtype=contributions.dtype, device=posteriors.device)
    return total.index_add(0, series, contributions)


def aggregate_batch(
    posteriors: Tensor,  # (n_windows, C)
    influence: Tensor,  # (n_windows,)
    *,
    temperature: float | Tensor,
    series: Tensor,  # (n_windows,)
    n_series: int,
) -> Tensor:  # (n_series, C)
    """Twin of `aggregate` (Alg. 2) for the windows of many series at once: in training, validation and on a GPU.

    Influence in place of support, nothing smoothed, no parts kept; gradients pass.
    """
    weights = window_weights(influence, temperature=temperature, series=series, n_series=n_series)
    return series_probability(posteriors, weights, series=series, n_series=n_series)


def negative_log_likelihood(
    probability: Tensor,  # (n, C)
    targets: Tensor,  # (n,) class index
) -> Tensor:  # (n,)
    """-log p_y of probabilities that are averages, clamped in float32 (for two classes: cross-entropy)."""
    picked = probability.float().gather(1, targets[:, None])[:, 0]
    return -torch.log(picked.clamp(CLAMP, 1 - CLAMP))


def effective_windows(weights: ArrayLike) -> float:
    """Effective number of windows, 1 / sum(alpha^2)."""
    squared = float(np.square(np.asarray(weights, dtype=np.float64)).sum())
    return 1.0 / squared if squared > 0 else 0.0


def smooth_posteriors(
    posteriors: NDArray[np.float64],  # (n_windows, C)
    neighbors: NDArray[np.int64],  # (n_windows, m), -1 where there is none
    smoothing: float,
    *,
    left_out: NDArray[np.bool_] | None = None,  # (n_windows,)
) -> NDArray[np.float64]:  # (n_windows, C)
    r"""Mix the posterior of each window with the mean over its neighbours.

    p~_k = (1 - lambda) p_k + lambda · mean over j in N_k of p_j

    A window without neighbours keeps its own posterior. A window that is ``left_out`` (flat, or unusable)
    keeps its own and enters no mean: a flat window is similar to nothing, so its list is one of places alone.

    Notes
    -----
    A score is still a convex sum of the posteriors of single windows (where all have neighbours):

    sum_k alpha_k p~_k = sum_j p_j [ (1 - lambda) alpha_j + lambda sum_{k: j in N_k} alpha_k / |N_k| ]

    Examples
    --------
    >>> posteriors = np.array([[0.0, 1.0], [0.4, 0.6], [1.0, 0.0]])
    >>> smooth_posteriors(posteriors, np.array([[1, 2], [0, -1], [-1, -1]]), 0.5)
    array([[0.35, 0.65],
           [0.2 , 0.8 ],
           [1.  , 0.  ]])
    """
    totals, counts = np.zeros_like(posteriors), np.zeros((len(posteriors), 1))
    for rank in neighbors.T:  # one at a time: all together would be m times as large as the posteriors
        used = rank >= 0
        if left_out is not None:
            used &= ~left_out & ~left_out[rank]
        totals[used] += posteriors[rank[used]]
        counts[used] += 1.0
    means = totals / np.maximum(counts, 1.0)
    return np.where(counts > 0, (1.0 - smoothing) * posteriors + smoothing * means, posteriors)


@dataclass(frozen=True, eq=False)
class Aggregation:
    """A series probability and the parts it is made of, all float64.

    weights = softmax(influence / temperature), contributions = weights × (smoothed) posteriors
    """

    posteriors: NDArray[np.float64]  # (n_windows, C)
    support: NDArray[np.float64]  # (n_windows,)
    influence: NDArray[np.float64]  # (n_windows,)
    weights: NDArray[np.float64]  # (n_windows,)
    contributions: NDArray[np.float64]  # (n_windows, C)
    series_probability: NDArray[np.float64]  # (C,) the sum of the contributions
    weighting: str
    temperature: float
    smoothing: float = 0.0
    smoothed: NDArray[np.float64] | None = None  # (n_windows, C); None without smoothing
    gate: NDArray[np.float64] | None = None  # (n_windows,) part of the influence; None without a gate

    @property
    def effective_windows(self) -> float:
        """1 / sum(alpha^2)."""
        return effective_windows(self.weights)


def aggregate(
    posteriors: Tensor | ArrayLike,  # (n_windows, C)
    support: Tensor | ArrayLike,  # (n_windows,)
    *,
    temperature: float = 0.1,
    weighting: str = "support",
    seed: int = 0,
    gate: ArrayLike | None = None,  # (n_windows,)
    smoothing: float = 0.0,
    neighbors: NDArray[np.int64] | None = None,  # (n_windows, m)
    flat: NDArray[np.bool_] | None = None,  # (n_windows,)
) -> Aggregation:
    """Predict one series from its windows, keeping every part. Implements Alg. 2.

    Parameters
    ----------
    posteriors, support
        p_k and s-bar_k of the windows. NaN support: a window that cannot be used.
    seed
        For the ``shuffled`` and ``random`` controls.
    gate
        For the gated weightings: added to the support of each window.
    smoothing, neighbors, flat
        lambda from 0 to 1, the neighbor lists, and windows that keep their posterior: see `smooth_posteriors`.

    Examples
    --------
    >>> prediction = aggregate([[0.2, 0.8], [0.6, 0.4]], [0.9, 0.7], temperature=0.1)
    >>> prediction.weights.round(4), prediction.series_probability.round(4)
    (array([0.8808, 0.1192]), array([0.2477, 0.7523]))
    """
    tau: Any = temperature
    if not (isinstance(tau, int | float | np.number) and np.isfinite(tau) and tau > 0):
        raise ConfigError(
            f"temperature must be a number > 0, got {temperature!r}. For the plain SSS mean, set "
            "weighting='uniform'."
        )
    posteriors_, support_ = _float64(posteriors), _float64(support)
    if posteriors_.ndim != 2 or support_.shape != posteriors_.shape[:1]:
        raise ConfigError(
            f"posteriors of shape {posteriors_.shape} and support of shape {support_.shape} do not go "
            "together; needed are (n_windows, n_classes) and (n_windows,)."
        )
    gate_ = _float64(gate) if gate is not None and weighting_named(weighting).needs_gate else None
    influence_ = influence(support_, weighting, seed=seed, gate=gate_)
    unusable = np.isnan(influence_)
    if unusable.all():
        raise SignalError(
            f"none of the {len(support_)} windows can be used: more than half of the samples of each are missing. "
            "Leave this series out, or fill its gaps."
        )
    finite = np.isfinite(posteriors_)
    if not finite.all():
        bad = ~finite.all(axis=1) & ~unusable
        if bad.any():
            raise SignalError(
                f"the posteriors of {int(bad.sum())} windows are not finite, the first of window "
                f"{int(np.flatnonzero(bad)[0])}; the network has diverged. Check the scaling, or lower lr."
            )
    # A posterior without weight must not reach the sum, not even as 0 × NaN.
    posteriors_[unusable] = np.nan_to_num(posteriors_[unusable])
    weights = window_weights(torch.from_numpy(influence_), temperature=temperature).numpy()
    smoothed = None
    if smoothing > 0:
        if neighbors is None:
            raise ConfigError(f"smoothing is {smoothing}, which needs neighbors; pass retrieval.neighbors.")
        left_out = unusable if flat is None else unusable | flat
        smoothed = smooth_posteriors(posteriors_, neighbors, smoothing, left_out=left_out)
    mixed = posteriors_ if smoothed is None else smoothed
    return Aggregation(
        posteriors_,
        support_,
        influence_,
        weights,
        weights[:, None] * mixed,
        series_probability(mixed, weights),
        weighting,
        float(temperature),
        float(smoothing),
        smoothed,
        gate_,
    )


def _float64(values: Tensor | ArrayLike) -> NDArray[np.float64]:
    """A float64 copy on the host."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    return np.array(values, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class AggregationConfig:
    """How windows share the series decision (Eqs. 2-3)."""

    weighting: str = "support"  # a registered weighting; "uniform" is plain SSS
    temperature: float | Literal["learned"] = 0.5  # tau > 0; the paper reports no value
    smoothing: float = 0.0  # share of the neighbours' mean in a window's posterior; 0 to 1

    def __post_init__(self) -> None:
        one_of("aggregation.weighting", self.weighting, tuple(WEIGHTINGS))
        if not (is_number(self.smoothing) and 0 <= self.smoothing <= 1):
            raise ConfigError(
                f"aggregation.smoothing must be a number from 0 (a window's own posterior) to 1 (the mean of its "
                f"neighbours), got {self.smoothing!r}."
            )
        if self.temperature != "learned" and not (is_number(self.temperature) and self.temperature > 0):
            raise ConfigError(
                f"aggregation.temperature must be a number > 0 or 'learned', got {self.temperature!r}. For the "
                "plain SSS mean, set aggregation.weighting = 'uniform'."
            )
