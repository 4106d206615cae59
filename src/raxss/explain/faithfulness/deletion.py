"""Does a score fall when the stretches go that evidence points at, and come back with them?

    ModelAdapter, Series -> an order of its stretches by each rule -> stretches replaced one after the other
        -> windows, retrieval and score anew -> curves over the seconds removed -> areas

Deletion starts from the signal and takes the first of an order away first; insertion starts from the stand-in and
puts them back. The score is that of the class that was predicted. The less area under deletion and the more under
insertion, the better an order; orders are judged by their distance from random ones.

Dropping windows from the sum instead lowers it by construction and tests nothing; it is computed as a check only.
Next: counterfactual.py looks at single windows and at decisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raxss.data.series import Series
from raxss.explain.faithfulness.model_adapter import ModelAdapter, WindowAttribution
from raxss.explain.faithfulness.perturbation import FADE, STAND_INS, replaced, taken_stretches
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
LEAST_CHANGE = 0.02  # of the score: of less, no share can be told
N_RANDOM = 3  # random orders, whose mean is what others are compared with


@dataclass(frozen=True, eq=False, kw_only=True)
class Stretches:
    """A series in stretches, and the stand-ins for them.

    Attributes
    ----------
    edges
        ``(n_stretches + 1,)``.
    stand_ins
        By name, ``(n_variates, n_samples)``.
    effects
        What `alone` found, by stand-in; may be shared by probes that ask the same.
    """

    series: Series
    edges: NDArray[np.int64]
    stand_ins: dict[str, Floats]
    effects: dict[str, Floats] = field(default_factory=dict)

    @classmethod
    def of(
        cls, series: Series, window_length: int, *, seed: int, effects: dict[str, Floats] | None = None
    ) -> Stretches:
        """Cut as `stretch_length` says; stand-ins are drawn from the seed alone."""
        length = stretch_length(series.n_samples, window_length)
        made = {name: make(series.samples, seed) for name, make in STAND_INS.items()}
        edges = stretch_edges(series.n_samples, length)
        return cls(series=series, edges=edges, stand_ins=made, effects={} if effects is None else effects)

    def __len__(self) -> int:
        return len(self.edges) - 1

    @property
    def shares(self) -> Floats:
        """``(n_stretches,)`` of the whole length."""
        return np.diff(self.edges) / self.series.n_samples

    def without(self, stand_in: str, chosen: NDArray[np.bool_]) -> Series:
        """The series with the chosen stretches ``(n_stretches,)`` replaced."""
        fade = int(self.edges[1]) // FADE
        return replaced(self.series, self.stand_ins[stand_in], taken_stretches(chosen, self.edges), fade=fade)


@dataclass(frozen=True, eq=False, kw_only=True)
class Curve:
    """A score while stretches go, or come back.

    Attributes
    ----------
    removed
        Share of the samples that is not, or no longer, the signal's own: ``(n_steps + 1,)``; of insertion it falls.
    scores
        Probability of the class that was predicted.
    """

    stand_in: str
    order: str
    direction: str
    removed: Floats
    scores: Floats

    @property
    def area(self) -> float:
        """Mean height over the share that is changed, from 0 to all."""
        changed = self.removed if self.direction == DELETION else 1.0 - self.removed
        return float(np.trapezoid(self.scores, changed))


@dataclass(frozen=True, eq=False, kw_only=True)
class Deleted:
    """All curves of one series.

    Attributes
    ----------
    missing
        Orders that do not exist for this model and series, with the reason.
    gradient_found
        Stand-in -> share of the change in score that integrated gradients add up to.
    dropped
        The check: the sum when windows are left out of it, by contribution and at random.
    """

    curves: list[Curve]
    missing: dict[str, str] = field(default_factory=dict)
    gradient_found: dict[str, float] = field(default_factory=dict)
    dropped: dict[str, float] = field(default_factory=dict)

    def gain(self, order: str, stand_in: str, direction: str | None = None) -> float:
        """By how much an order's areas are better than random ones; the mean of both directions by default."""
        directions = DIRECTIONS if direction is None else (direction,)
        found = [
            (1 if item == INSERTION else -1)
            * (self._area(order, stand_in, item) - self._area(RANDOM, stand_in, item))
            for item in directions
        ]
        return float(np.mean(found))

    def _area(self, order: str, stand_in: str, direction: str) -> float:
        key = (order, stand_in, direction)
        areas = [curve.area for curve in self.curves if (curve.order, curve.stand_in, curve.direction) == key]
        return float(np.mean(areas)) if areas else np.nan

    def rows(self) -> list[dict[str, Any]]:
        """A row for each curve: where it comes from, its area and its points."""
        return [
            {
                "stand_in": curve.stand_in,
                "order": curve.order,
                "direction": curve.direction,
                "area": curve.area,
                "removed": curve.removed.round(6).tolist(),
                "scores": curve.scores.round(8).tolist(),
            }
            for curve in self.curves
        ]


def delete_and_insert(
    subject: ModelAdapter,
    judged: WindowAttribution,
    *,
    seed: int = 0,
    n_steps: int = N_STEPS,
    n_random: int = N_RANDOM,
    effects: dict[str, Floats] | None = None,
) -> Deleted:
    """All curves of one series: every stand-in, order and direction.

    Orders, all for the class that was predicted, the mean over a stretch first: ``contribution``, weight ×
    (posterior − series probability); ``weight`` alone; ``posterior`` alone; ``gradient``, integrated gradients from
    the stand-in; ``random``. ``occlusion`` is no evidence but a ceiling to compare with: what replacing each
    stretch alone does to the score. It is kept in ``effects``, where that is given, for `smallest_flip` of the same
    subject, series and seed.

    Examples
    --------
    >>> from raxss import RAxSSClassifier
    >>> from raxss.data.datasets import load_synthetic
    >>> series = load_synthetic(8)
    >>> model = RAxSSClassifier(window_length=128, stride=128, max_epochs=1, random_state=0).fit(series)
    >>> subject = model.model_adapter()
    >>> deleted = delete_and_insert(subject, next(subject.judged([series[0]])), n_steps=2, n_random=1)
    >>> len(deleted.curves)  # two stand-ins, six orders, two directions
    24
    """
    stretches = Stretches.of(judged.series, judged.window_length, seed=seed, effects=effects)
    class_ = judged.predicted
    curves: list[Curve] = []
    missing: dict[str, str] = {}
    found: dict[str, float] = {}
    generator = np.random.default_rng(seed)
    for stand_in in STAND_INS:
        orders = values_of(subject, judged, stretches, stand_in, missing, found, seed=seed)
        orders[OCCLUSION] = judged.probability[class_] - alone(subject, stretches, stand_in)[:, class_]
        ranked = [(name, np.argsort(-order, kind="stable")) for name, order in orders.items()]
        ranked += [(RANDOM, generator.permutation(len(stretches))) for _ in range(n_random)]
        curves += _curves(subject, judged, stretches, stand_in, ranked, n_steps)
    return Deleted(
        curves=curves,
        missing=missing,
        gradient_found=found,
        dropped=dropped_windows(judged, class_, generator),
    )


def values_of(
    subject: ModelAdapter,
    judged: WindowAttribution,
    stretches: Stretches,
    stand_in: str,
    missing: dict[str, str],
    found: dict[str, float],
    *,
    seed: int,
) -> dict[str, Floats]:
    """Order -> a value for each stretch, the highest first; what does not exist goes into ``missing``."""
    class_ = judged.predicted
    told = {CONTRIBUTION: judged.contributions(class_), POSTERIOR: judged.centred(class_)}
    if judged.weights_differ:
        told[WEIGHT] = judged.weights
    else:
        missing[WEIGHT] = "all windows weigh the same"
    on_samples = {}
    for name, item in told.items():
        if np.ptp(item) == 0:
            missing[name] = "there is one window, or all say the same"
        else:
            on_samples[name] = judged.over_time(item)
    attribution = subject.attribution(judged, class_, stand_in, seed=seed)
    if attribution is None:
        missing[GRADIENT] = "no gradient of this network reaches the samples"
    else:
        on_samples[GRADIENT] = attribution.samples
        if abs(attribution.change) >= LEAST_CHANGE:
            found[stand_in] = attribution.found / attribution.change
    return {name: over_stretches(on_sample, stretches.edges) for name, on_sample in on_samples.items()}


def alone(subject: ModelAdapter, stretches: Stretches, stand_in: str) -> Floats:
    """Probabilities ``(n_stretches, C)`` when each stretch is replaced by itself; asked once."""
    if stand_in not in stretches.effects:
        each = np.eye(len(stretches), dtype=bool)
        copies = (stretches.without(stand_in, chosen) for chosen in each)
        stretches.effects[stand_in] = subject.probabilities(copies)
    return stretches.effects[stand_in]


def _curves(
    subject: ModelAdapter,
    judged: WindowAttribution,
    stretches: Stretches,
    stand_in: str,
    ranked: Sequence[tuple[str, NDArray[np.intp]]],
    n_steps: int,
) -> Iterator[Curve]:
    """Each order in both directions; every set of stretches is asked about once."""
    n, class_ = len(stretches), judged.predicted
    sizes = np.round(np.linspace(0, n, n_steps + 1)).astype(int)
    asked: dict[bytes, NDArray[np.bool_]] = {}
    wanted = []
    for name, order in ranked:
        place = np.empty(n, dtype=int)
        place[order] = np.arange(n)
        for direction in DIRECTIONS:
            sets = [place < size if direction == DELETION else place >= size for size in sizes]
            asked |= {item.tobytes(): item for item in sets}
            wanted.append((name, direction, sets))
    told = subject.probabilities(stretches.without(stand_in, entry) for entry in asked.values())[:, class_]
    score = dict(zip(asked, told, strict=True))
    for name, direction, sets in wanted:
        yield Curve(
            stand_in=stand_in,
            order=name,
            direction=direction,
            removed=np.array([stretches.shares[item].sum() for item in sets]),
            scores=np.array([score[item.tobytes()] for item in sets]),
        )


def dropped_windows(
    judged: WindowAttribution, class_: int, generator: np.random.Generator
) -> dict[str, float]:
    """Area when windows are left out of the sum and the other weights are scaled up; by construction it falls.

    >>> judged = WindowAttribution(series=Series(np.zeros(4)), starts=np.arange(2), window_length=2,
    ...                    posteriors=np.array([[0.9, 0.1], [0.5, 0.5]]), weights=np.array([0.5, 0.5]),
    ...                    probability=np.array([0.7, 0.3]))
    >>> dropped_windows(judged, 0, np.random.default_rng(0))["contribution"]  # .7, then .5
    0.6
    """
    orders = {
        CONTRIBUTION: np.argsort(-judged.contributions(class_), kind="stable"),
        RANDOM: generator.permutation(len(judged.weights)),
    }
    areas = {}
    for name, order in orders.items():
        weights, said = judged.weights[order], judged.posteriors[order, class_]
        left = np.cumsum((weights * said)[::-1])[::-1] / np.maximum(np.cumsum(weights[::-1])[::-1], 1e-300)
        areas[name] = float(np.mean(left))
    return areas
