"""Deletion and insertion curves: scores while stretches are replaced in the order that evidence gives them.

Deletion starts from the signal and takes the first of an order away first; insertion starts from the baseline and
puts them back. The score is that of the class that was predicted. The less area under deletion and the more under
insertion, the better an order; orders are judged by their distance from random ones.

Dropping windows from the sum instead lowers it by construction and tests nothing; it is computed as a check only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raxss.data.series import Series
from raxss.explain.faithfulness.model_adapter import NO_GRADIENTS, ModelAdapter, WindowAttribution
from raxss.explain.faithfulness.perturbation import BASELINES, FADE, replaced, taken_stretches
from raxss.explain.faithfulness.timeline import over_stretches, stretch_edges, stretch_length

Floats = NDArray[np.float64]
CONTRIBUTION, WEIGHT, POSTERIOR, GRADIENT, OCCLUSION, RANDOM = ORDERS = (
    "contribution",
    "weight",
    "posterior",
    "gradient",
    "occlusion",
    "random",
)
DELETION, INSERTION = DIRECTIONS = ("deletion", "insertion")
N_STEPS = 10  # of a curve
LEAST_CHANGE = 0.02  # of the score: shares of less are not meaningful
N_RANDOM = 3  # random orders, whose mean is what others are compared with


@dataclass(frozen=True, eq=False, kw_only=True)
class Stretches:
    """A series in stretches, and the baselines that replace them."""

    series: Series
    edges: NDArray[np.int64]  # (n_stretches + 1,)
    baselines: dict[str, Floats]  # by name, (n_variates, n_samples)
    effects: dict[str, Floats] = field(default_factory=dict)  # what `alone` found, by baseline

    @classmethod
    def of(
        cls, series: Series, window_length: int, *, seed: int, effects: dict[str, Floats] | None = None
    ) -> Stretches:
        """Cut by `stretch_length`; baselines depend on the seed alone."""
        length = stretch_length(series.n_samples, window_length)
        made = {name: make(series.samples, seed) for name, make in BASELINES.items()}
        edges = stretch_edges(series.n_samples, length)
        return cls(series=series, edges=edges, baselines=made, effects={} if effects is None else effects)

    def __len__(self) -> int:
        return len(self.edges) - 1

    @property
    def shares(self) -> Floats:
        """``(n_stretches,)`` of the whole length."""
        return np.diff(self.edges) / self.series.n_samples

    def without(self, baseline: str, chosen: NDArray[np.bool_]) -> Series:
        """The series with the chosen stretches ``(n_stretches,)`` replaced."""
        fade = int(self.edges[1]) // FADE
        return replaced(self.series, self.baselines[baseline], taken_stretches(chosen, self.edges), fade=fade)


@dataclass(frozen=True, eq=False, kw_only=True)
class Curve:
    """Score while stretches are replaced (deletion) or restored (insertion)."""

    baseline: str
    order: str
    direction: str
    removed: Floats  # (n_steps + 1,) share of the samples that is replaced; of insertion it falls
    scores: Floats  # (n_steps + 1,) probability of the class that was predicted

    @property
    def area(self) -> float:
        """Area under the curve over the share that is changed, from 0 to 1."""
        changed = self.removed if self.direction == DELETION else 1.0 - self.removed
        return float(np.trapezoid(self.scores, changed))


@dataclass(frozen=True, eq=False, kw_only=True)
class Deleted:
    """All curves of one series."""

    curves: list[Curve]
    missing: dict[str, str] = field(default_factory=dict)  # orders that do not exist, with the reason
    gradient_found: dict[str, float] = field(default_factory=dict)  # share of the change, by baseline
    dropped: dict[str, float] = field(default_factory=dict)  # of `dropped_windows`

    def gain(self, order: str, baseline: str) -> float:
        """By how much an order's areas are better than random ones, mean of both directions."""
        return float(np.mean(list(gains_over_random(mean_areas(self.rows()), order, baseline).values())))

    def rows(self) -> list[dict[str, Any]]:
        """A row for each curve: where it comes from, its area and its points."""
        return [
            {
                "stand_in": curve.baseline,
                "order": curve.order,
                "direction": curve.direction,
                "area": curve.area,
                "removed": curve.removed.round(6).tolist(),
                "scores": curve.scores.round(8).tolist(),
            }
            for curve in self.curves
        ]


def mean_areas(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str], float]:
    """Rows of `Deleted.rows` -> mean area by baseline, order and direction."""
    areas: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        areas.setdefault((row["stand_in"], row["order"], row["direction"]), []).append(row["area"])
    return {key: float(np.mean(some)) for key, some in areas.items()}


def gains_over_random(
    areas: Mapping[tuple[str, str, str], float], order: str, baseline: str
) -> dict[str, float]:
    """Direction -> by how much the area of an order is better than that of random ones; NaN where it has none."""
    own, random = (
        {direction: areas.get((baseline, name, direction), np.nan) for direction in DIRECTIONS}
        for name in (order, RANDOM)
    )
    return {name: sign * (own[name] - random[name]) for name, sign in ((DELETION, -1), (INSERTION, 1))}


def delete_and_insert(
    adapter: ModelAdapter,
    attribution: WindowAttribution,
    *,
    seed: int = 0,
    n_steps: int = N_STEPS,
    n_random: int = N_RANDOM,
    effects: dict[str, Floats] | None = None,
) -> Deleted:
    """All curves of one series: every baseline, order and direction.

    Orders, all for the class that was predicted, the mean over a stretch first: ``contribution``, weight ×
    (posterior − series probability); ``weight`` alone; ``posterior`` alone; ``gradient``, integrated gradients from
    the baseline; ``random``. ``occlusion`` is no evidence but a ceiling to compare with: what replacing each
    stretch alone does to the score. It is kept in ``effects``, where that is given, for `smallest_flips` of the
    same adapter, series and seed.
    """
    stretches = Stretches.of(attribution.series, attribution.window_length, seed=seed, effects=effects)
    class_ = attribution.predicted
    curves: list[Curve] = []
    missing: dict[str, str] = {}
    found: dict[str, float] = {}
    generator = np.random.default_rng(seed)
    for baseline in BASELINES:
        orders = values_of(adapter, attribution, stretches, baseline, missing, found, seed=seed)
        orders[OCCLUSION] = attribution.probability[class_] - alone(adapter, stretches, baseline)[:, class_]
        ranked = [(name, np.argsort(-order, kind="stable")) for name, order in orders.items()]
        ranked += [(RANDOM, generator.permutation(len(stretches))) for _ in range(n_random)]
        curves += _curves(adapter, attribution, stretches, baseline, ranked, n_steps)
    return Deleted(
        curves=curves,
        missing=missing,
        gradient_found=found,
        dropped=dropped_windows(attribution, class_, generator),
    )


def values_of(
    adapter: ModelAdapter,
    attribution: WindowAttribution,
    stretches: Stretches,
    baseline: str,
    missing: dict[str, str],
    found: dict[str, float],
    *,
    seed: int,
) -> dict[str, Floats]:
    """Order -> a value for each stretch, the highest first; what does not exist goes into ``missing``."""
    class_ = attribution.predicted
    by_window = {CONTRIBUTION: attribution.contributions(class_), POSTERIOR: attribution.centred(class_)}
    if attribution.weights_differ:
        by_window[WEIGHT] = attribution.weights
    else:
        missing[WEIGHT] = "all windows weigh the same"
    on_samples = {}
    for name, values in by_window.items():
        if np.ptp(values) == 0:
            missing[name] = "there is one window, or all say the same"
        else:
            on_samples[name] = attribution.over_time(values)
    gradients = adapter.gradient_attribution(attribution, class_, baseline, seed=seed)
    if gradients is None:
        missing[GRADIENT] = (
            NO_GRADIENTS if adapter.is_fitted_at_once else "no gradient of this network reaches the samples"
        )
    else:
        on_samples[GRADIENT] = gradients.samples
        if abs(gradients.change) >= LEAST_CHANGE:
            found[baseline] = gradients.found / gradients.change
    return {name: over_stretches(values, stretches.edges) for name, values in on_samples.items()}


def alone(adapter: ModelAdapter, stretches: Stretches, baseline: str) -> Floats:
    """Probabilities ``(n_stretches, C)`` with one stretch replaced at a time; computed once."""
    if baseline not in stretches.effects:
        each = np.eye(len(stretches), dtype=bool)
        copies = (stretches.without(baseline, chosen) for chosen in each)
        stretches.effects[baseline] = adapter.probabilities(copies)
    return stretches.effects[baseline]


def _curves(
    adapter: ModelAdapter,
    attribution: WindowAttribution,
    stretches: Stretches,
    baseline: str,
    ranked: Sequence[tuple[str, NDArray[np.intp]]],
    n_steps: int,
) -> Iterator[Curve]:
    """Each order in both directions; every set of stretches is scored once."""
    n, class_ = len(stretches), attribution.predicted
    sizes = np.round(np.linspace(0, n, n_steps + 1)).astype(int)
    distinct: dict[bytes, NDArray[np.bool_]] = {}
    wanted = []
    for name, order in ranked:
        place = np.empty(n, dtype=int)
        place[order] = np.arange(n)
        for direction in DIRECTIONS:
            sets = [place < size if direction == DELETION else place >= size for size in sizes]
            distinct |= {chosen.tobytes(): chosen for chosen in sets}
            wanted.append((name, direction, sets))
    copies = (stretches.without(baseline, chosen) for chosen in distinct.values())
    score = dict(zip(distinct, adapter.probabilities(copies)[:, class_], strict=True))
    for name, direction, sets in wanted:
        yield Curve(
            baseline=baseline,
            order=name,
            direction=direction,
            removed=np.array([stretches.shares[chosen].sum() for chosen in sets]),
            scores=np.array([score[chosen.tobytes()] for chosen in sets]),
        )


def dropped_windows(
    attribution: WindowAttribution, class_: int, generator: np.random.Generator
) -> dict[str, float]:
    """Area when windows are left out of the sum and the other weights are scaled up; by construction it falls.

    >>> attribution = WindowAttribution(series=Series(np.zeros(4)), starts=np.arange(2), window_length=2,
    ...                    posteriors=np.array([[0.9, 0.1], [0.5, 0.5]]), weights=np.array([0.5, 0.5]),
    ...                    probability=np.array([0.7, 0.3]))
    >>> dropped_windows(attribution, 0, np.random.default_rng(0))["contribution"]  # .7, then .5
    0.6
    """
    orders = {
        CONTRIBUTION: np.argsort(-attribution.contributions(class_), kind="stable"),
        RANDOM: generator.permutation(len(attribution.weights)),
    }
    areas = {}
    for name, order in orders.items():
        weights, posteriors = attribution.weights[order], attribution.posteriors[order, class_]
        left = np.cumsum((weights * posteriors)[::-1])[::-1] / np.maximum(
            np.cumsum(weights[::-1])[::-1], 1e-300
        )
        areas[name] = float(np.mean(left))
    return areas
