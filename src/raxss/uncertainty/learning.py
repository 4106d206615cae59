"""Learning report: training and validation figures of a fitted model beside chance and a reference forest.

    targets, posteriors of the model on training series and on series that it was not trained on
        -> LearningReport: balanced accuracies with intervals, difference from the forest; ReferenceForest

Series that the model was not trained on are its validation set, or the training series out of fold; the forest is
scored on the same series. Probabilities are divided by the shares of the classes in training before the largest is
taken, so that a rare class counts as much as a frequent one. Next: not_learned.py says whether, and probably why,
the model has not learned.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from raxss.data.series import Series
from raxss.uncertainty.reference_forest import ReferenceForest, drawn_series, most_series
from raxss.uncertainty.reliability import CLAMP

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

N_DRAWS = 4000
MOST_GROUPS = 500  # that are drawn; of more, several are drawn together
LEVEL = 0.95
SEED = 69421  # of the draws: an interval depends on nothing but the figures
MARGIN = 0.05  # of balanced accuracy, by which a forest must be better
PRIOR_WEIGHT = (
    0.25  # of each of four outcomes (both right, one right, ...), in series; Jeffreys' for each system
)
LAST = 0.25  # share of the epochs over which the last change of the loss is taken


class Posteriors(NamedTuple):
    """Posteriors of some series: their places among all series ``(n,)``, and probabilities ``(n, C)``."""

    places: Integers
    probabilities: Floats


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Balanced accuracy with its 95 % interval, and log loss, of one model on one set of series."""

    balanced_accuracy: float
    low: float
    high: float
    log_loss: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Model and forest on the same series; the difference is that of balanced accuracies, model less forest."""

    n_series: int
    n_groups: int
    chance: float  # balanced accuracy of always naming one class
    prior: float  # share of the largest class, which is the accuracy of always naming it
    model: Figures
    forest: Figures
    difference: float
    low: float
    high: float
    #: Posterior probability that the forest is better by more than `MARGIN`: from these series; from these for the
    #: model and training series out of fold for the forest.
    forest_better: float
    forest_better_unpaired: float


@dataclass(frozen=True, kw_only=True)
class TrainingSummary:
    """Steps, losses and windows of a fit, by which the cause of a failure is guessed."""

    window_length: int
    median_length: int  # of the training series
    n_windows: int  # of the series of median length
    share_padded: float  # of the series, that fill less than half of a window
    n_steps: int | None = None  # of the optimiser; None for a model that is fitted at once
    first_loss: float | None = None  # mean over the first epoch
    last_loss: float | None = None
    falling: float | None = (
        None  # by how much the loss fell over the last quarter of the epochs, in shares of the first
    )

    @classmethod
    def of(
        cls,
        lengths: Sequence[int],
        *,
        window_length: int,
        stride: int,
        losses: Sequence[float] = (),
        n_steps: int | None = None,
    ) -> Self:
        """From the lengths of the training series and the training loss of each epoch.

        >>> TrainingSummary.of([40, 100, 150, 900], window_length=100, stride=50, losses=[0.8, 0.6, 0.4], n_steps=9)
        TrainingSummary(window_length=100, median_length=125, n_windows=1, share_padded=0.25, n_steps=9,
                        first_loss=0.8, last_loss=0.4, falling=0.2...)
        """
        median = int(np.median(list(lengths)))
        windows: dict[str, Any] = {
            "window_length": int(window_length),
            "median_length": median,
            "n_windows": 1 + max(median - window_length, 0) // stride,
            "share_padded": float(np.mean(2 * np.asarray(lengths) < window_length)),
        }
        values = np.asarray(losses, dtype=np.float64)
        if not n_steps or len(values) == 0:
            return cls(**windows)
        n_last = max(int(LAST * len(values)), 1)
        start = max(abs(float(values[0])), CLAMP)
        fall = 0.0
        if len(values) > 1:
            before = values[max(len(values) - 2 * n_last, 0) : len(values) - n_last]
            fall = float(before.mean() - values[-n_last:].mean()) / start
        ends = float(values[0]), float(values[-1])
        return cls(**windows, n_steps=int(n_steps), first_loss=ends[0], last_loss=ends[1], falling=fall)


@dataclass(frozen=True, kw_only=True)
class LearningReport:
    """What a model has learned, beside chance and a `ReferenceForest`; no series, no names.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> series = [Series(rng.normal(size=300) + 2 * (index % 2)) for index in range(60)]
    >>> targets = np.arange(60) % 2
    >>> guess = np.full((60, 2), 0.5)  # a model that has not learned the level
    >>> report, forest = learning_report(
    ...     series, targets, n_classes=2, train=np.arange(40), training=Posteriors(np.arange(40), guess[:40]),
    ...     evaluation=Posteriors(np.arange(40, 60), guess[40:]), window_length=100, stride=50)
    >>> for line in report.describe():
    ...     print(line)
    training, 40 series: balanced accuracy 0.50 (forest 1.00, chance 0.50)
    validation, 20 series: balanced accuracy 0.50 [0.29, 0.71], forest 1.00 [0.88, 1.00], chance 0.50 (largest class
    0.50)
    """

    n_train: int  # training series that the figures are of
    chance: float  # of the balanced accuracy on them
    training_accuracy: float  # balanced
    forest_training_accuracy: float
    forest_out_of_fold: Figures | None  # on training series; None for a single group
    evaluation: Comparison | None  # on series that the model was not trained on; None where there were none
    is_out_of_fold: bool  # whether these are training series out of fold, not a validation set
    training: TrainingSummary

    def describe(self) -> list[str]:
        """Lines about training and validation, as `fit` logs them."""
        lines = [
            f"training, {self.n_train} series: balanced accuracy {self.training_accuracy:.2f} (forest "
            f"{self.forest_training_accuracy:.2f}, chance {self.chance:.2f})"
        ]
        found, forest = self.evaluation, self.forest_out_of_fold
        if found is not None:
            groups = "" if found.n_groups == found.n_series else f" of {found.n_groups} groups"
            lines.append(
                f"{'out of fold' if self.is_out_of_fold else 'validation'}, {found.n_series} series{groups}: "
                f"balanced accuracy {_with_interval(found.model)}, forest {_with_interval(found.forest)}, chance "
                f"{found.chance:.2f} (largest class {found.prior:.2f})"
            )
        elif forest is not None:
            lines.append(f"no validation series; forest, out of fold: {_with_interval(forest)}")
        return lines

    def to_json(self) -> dict[str, Any]:
        """The entry of config.json."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read back what `to_json` gave; anything else is refused with a ValueError."""
        plain = _record(
            value,
            {
                "n_train": int,
                "chance": float,
                "training_accuracy": float,
                "forest_training_accuracy": float,
                "is_out_of_fold": bool,
            },
            parts=("forest_out_of_fold", "evaluation", "training"),
        )
        forest, evaluation = value["forest_out_of_fold"], value["evaluation"]
        return cls(
            **plain,
            forest_out_of_fold=None if forest is None else Figures(**_record(forest, _FIGURES)),
            evaluation=None if evaluation is None else _comparison(evaluation),
            training=TrainingSummary(**_record(value["training"], _TRAINING, optional=_OPTIONAL)),
        )


_FIGURES: dict[str, type] = dict.fromkeys(("balanced_accuracy", "low", "high", "log_loss"), float)
_COMPARISON: dict[str, type] = {"n_series": int, "n_groups": int} | dict.fromkeys(
    ("chance", "prior", "difference", "low", "high", "forest_better", "forest_better_unpaired"), float
)
_TRAINING: dict[str, type] = dict.fromkeys(("window_length", "median_length", "n_windows"), int) | {
    "share_padded": float
}
_OPTIONAL: dict[str, type] = {"n_steps": int} | dict.fromkeys(("first_loss", "last_loss", "falling"), float)
_NOT_SHARES = ("log_loss", "first_loss", "last_loss", "falling", "difference", "low", "high")


def _record(
    value: Any, kinds: dict[str, type], *, optional: dict[str, type] | None = None, parts: Sequence[str] = ()
) -> dict[str, Any]:
    """Plain entries of a dict, checked: whole numbers of at least 0, finite numbers, shares from 0 to 1."""
    both = kinds | (optional or {})
    if not isinstance(value, dict) or set(value) != {*both, *parts}:
        raise ValueError("its learning report has other entries than those that fit makes")
    found: dict[str, Any] = {}
    for name, kind in both.items():
        entry = value[name]
        if entry is None and optional and name in optional:
            found[name] = None
            continue
        sound = type(entry) in ((int, float) if kind is float else (kind,))
        sound = sound and math.isfinite(entry) and (kind is not int or 0 <= entry < 2**53)
        if not sound or (kind is float and name not in _NOT_SHARES and not 0 <= entry <= 1):
            raise ValueError(f"its learning report has {str(entry)[:40]!r} as {name}")
        found[name] = kind(entry)
    return found


def _comparison(value: Any) -> Comparison:
    plain = _record(value, _COMPARISON, parts=("model", "forest"))
    model, forest = (Figures(**_record(value[name], _FIGURES)) for name in ("model", "forest"))
    return Comparison(**plain, model=model, forest=forest)


def learning_report(
    series: Sequence[Series],
    targets: Integers,  # (n,)
    *,
    n_classes: int,
    train: Integers,
    training: Posteriors,
    evaluation: Posteriors | None,
    window_length: int,
    stride: int,
    groups: NDArray[Any] | None = None,  # (n,)
    weights: Floats | None = None,  # (C,)
    losses: Sequence[float] = (),
    n_steps: int | None = None,
    seed: int = 0,
) -> tuple[LearningReport, ReferenceForest]:
    """Compare a fitted model with chance and with a reference forest, which is grown on the same training series.

    Parameters
    ----------
    series, targets, groups
        All series as they were given, before scaling, their class indices and groups.
    train
        Places of the training series.
    training
        Posteriors of the model on training series, all or some.
    evaluation
        Posteriors on series that the model was not trained on: of a validation set, or of training series out of
        fold. None: there are none.
    window_length, stride, losses, n_steps
        Of the fit: windows, training loss of each epoch, steps of the optimiser. Without steps: a model that is
        fitted at once.
    weights
        Class weights of the fit, for the forest as well.

    Returns
    -------
    The report, and the forest.

    Notes
    -----
    Of many series a part is scored, drawn by the seed, so that all takes two seconds at most.
    """
    targets, train = np.asarray(targets, dtype=np.int64), np.asarray(train, dtype=np.int64)
    priors = class_priors(targets[train], n_classes, weights)
    keys = np.arange(len(series)) if groups is None else np.unique(groups, return_inverse=True)[1]
    training = _some(training, targets, most_series(series[0].n_variates), seed=seed)
    scored, others = None, np.zeros(0, dtype=np.int64)
    if evaluation is not None:
        evaluation = _some(evaluation, targets, most_series(series[0].n_variates) // 2, seed=seed)
        others = evaluation.places[~np.isin(evaluation.places, train)]
        scored = np.flatnonzero(np.isin(train, evaluation.places))
    forest = ReferenceForest.fit(
        [series[place] for place in train],
        targets[train],
        None if groups is None else keys[train],
        n_classes=n_classes,
        weights=weights,
        seed=seed,
        scored=scored,
        n_others=len(others),
    )
    own = _known(train, forest.out_of_fold)
    own_draws = None
    if len(own.places):
        own_draws = accuracy_draws(own, own, targets, keys, priors=priors, seed=SEED + 1)[:, 0]
    compared = None
    if evaluation is not None:
        reference = _joined(own, _predicted(forest, series, others))
        compared = _compared(evaluation, reference, own_draws, targets, keys, priors)
    report = LearningReport(
        n_train=len(training.places),
        chance=1 / len(np.unique(targets[training.places])),
        training_accuracy=balanced_accuracy(training, targets, priors),
        forest_training_accuracy=balanced_accuracy(_known(train, forest.fitted), targets, priors),
        forest_out_of_fold=None if own_draws is None else _figures(own, targets, priors, own_draws),
        evaluation=compared,
        is_out_of_fold=compared is not None and len(others) == 0,
        training=TrainingSummary.of(
            [series[place].n_samples for place in train],
            window_length=window_length,
            stride=stride,
            losses=losses,
            n_steps=n_steps,
        ),
    )
    return report, forest


def _compared(
    model: Posteriors,
    forest: Posteriors,
    out_of_fold: Floats | None,  # draws of the forest's balanced accuracy on training series
    targets: Integers,
    keys: Integers,
    priors: Floats,
) -> Comparison | None:
    """Model and forest on the series that both have a posterior of; None where there are none."""
    places, ours, theirs = np.intersect1d(model.places, forest.places, return_indices=True)
    if len(places) == 0:
        return None
    model = Posteriors(places, model.probabilities[ours])
    reference = Posteriors(places, forest.probabilities[theirs])
    draws = accuracy_draws(model, reference, targets, keys, priors=priors, seed=SEED)
    gain = draws[:, 1] - draws[:, 0]
    elsewhere = gain if out_of_fold is None else out_of_fold - draws[:, 0]
    counts = np.bincount(targets[model.places])
    accuracies = [balanced_accuracy(item, targets, priors) for item in (model, reference)]
    difference = accuracies[0] - accuracies[1]
    low, high = _interval(-gain, difference)
    return Comparison(
        n_series=len(model.places),
        n_groups=len(np.unique(keys[model.places])),
        chance=1 / int((counts > 0).sum()),
        prior=float(counts.max() / counts.sum()),
        model=_figures(model, targets, priors, draws[:, 0]),
        forest=_figures(reference, targets, priors, draws[:, 1]),
        difference=difference,
        low=low,
        high=high,
        forest_better=float((gain > MARGIN).mean()),
        forest_better_unpaired=float((elsewhere > MARGIN).mean()),
    )


def class_priors(targets: Integers, n_classes: int, weights: Floats | None) -> Floats:
    """Share of each class in the training series, as a model with these class weights learns it: ``(C,)``.

    >>> class_priors(np.array([0, 0, 0, 1]), 2, None), class_priors(np.array([0, 0, 0, 1]), 2, np.array([1, 3]))
    (array([0.75, 0.25]), array([0.5, 0.5]))
    """
    counts = np.bincount(targets, minlength=n_classes) * (1.0 if weights is None else np.asarray(weights))
    counts = np.maximum(counts, CLAMP * counts.sum())
    shares: Floats = counts / counts.sum()
    return shares


def balanced_accuracy(found: Posteriors, targets: Integers, priors: Floats) -> float:
    """Mean recall of the classes that there are.

    The predicted class is the one with the largest p_c / pi_c: a model of rare classes that tells them apart may
    still find the frequent one more probable for every series.

    >>> found = Posteriors(np.arange(3), np.array([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4]]))
    >>> balanced_accuracy(found, np.array([0, 0, 1]), np.array([2 / 3, 1 / 3]))
    1.0
    """
    truth = targets[found.places]
    right = _right(found, truth, priors)
    return float(np.mean([right[truth == label].mean() for label in np.unique(truth)]))


def accuracy_draws(
    first: Posteriors, second: Posteriors, targets: Integers, keys: Integers, *, priors: Floats, seed: int
) -> Floats:
    """Draws of the balanced accuracies of two models on the same series, ``(N_DRAWS, 2)``.

    A Bayesian bootstrap over groups (Rubin, 1981) with one more series that is unknown:

    A = (sum over groups g of w_g a_g + u b) / (sum over groups g of w_g t_g + u (b + b')),   w_g ~ Exp(1)

    t_g is the weight of the series of a group, each 1 / (P n_c) for a class with n_c series among P classes, and
    a_g that of the right ones; u = sum of t_g^2 is the weight of one of 1 / u equal groups, and b, b' ~ Gamma(1/2).
    For single series and equal classes A ~ Beta(k + 1/2, n - k + 1/2), Jeffreys' posterior: few series that are
    all right are not taken for certainty, as they are by a plain bootstrap.

    Examples
    --------
    >>> right, targets = np.eye(2)[[0, 1, 0, 1]], np.array([0, 1, 0, 1])
    >>> found = Posteriors(np.arange(4), right)
    >>> draws = accuracy_draws(found, found, targets, np.arange(4), priors=np.array([0.5, 0.5]), seed=0)
    >>> np.quantile(draws[:, 0], [0.025, 0.5]).round(1)
    array([0.6, 0.9])
    """
    generator, places = np.random.default_rng(seed), first.places
    truth, count = targets[places], np.bincount(targets[places])
    weight = 1 / (count[truth] * (count > 0).sum())
    _, group = np.unique(keys[places], return_inverse=True)
    if group.max() >= MOST_GROUPS:
        group = generator.permutation(group.max() + 1)[group] % MOST_GROUPS
    one, other = (_right(item, truth, priors) for item in (first, second))
    outcome = np.zeros((int(group.max()) + 1, 4))  # both right, first, second, none
    np.add.at(outcome, (group, np.where(one, np.where(other, 0, 1), np.where(other, 2, 3))), weight)
    unit = np.square(outcome.sum(axis=1)).sum()
    sums = generator.exponential(size=(N_DRAWS, len(outcome))) @ outcome
    sums += unit * generator.gamma(PRIOR_WEIGHT, size=sums.shape)
    shares = sums / sums.sum(axis=1, keepdims=True)
    return np.stack([shares[:, 0] + shares[:, 1], shares[:, 0] + shares[:, 2]], axis=1)


def _right(found: Posteriors, truth: Integers, priors: Floats) -> NDArray[np.bool_]:
    right: NDArray[np.bool_] = (found.probabilities / priors).argmax(axis=1) == truth
    return right


def _figures(found: Posteriors, targets: Integers, priors: Floats, draws: Floats) -> Figures:
    accuracy = balanced_accuracy(found, targets, priors)
    picked = found.probabilities[np.arange(len(found.places)), targets[found.places]]
    low, high = _interval(draws, accuracy)
    loss = float(-np.log(picked.clip(CLAMP, 1 - CLAMP)).mean())
    return Figures(balanced_accuracy=accuracy, low=low, high=high, log_loss=loss)


def _interval(draws: Floats, value: float) -> tuple[float, float]:
    """The middle 95 % of the draws, and the value itself."""
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return min(float(low), value), max(float(high), value)


def _some(found: Posteriors, targets: Integers, most: int, *, seed: int) -> Posteriors:
    """Posteriors of at most about ``most`` series, in the order of their places; without those that are NaN."""
    found = _known(*found)
    order = np.argsort(found.places)
    kept = order[drawn_series(targets[found.places[order]], most, seed=seed)]
    return Posteriors(found.places[kept], found.probabilities[kept])


def _predicted(forest: ReferenceForest, series: Sequence[Series], places: Integers) -> Posteriors:
    return Posteriors(places, forest.predict_proba([series[place] for place in places]))


def _joined(first: Posteriors, second: Posteriors) -> Posteriors:
    parts = zip(first, second, strict=True)
    return Posteriors(*(np.concatenate(pair) for pair in parts))


def _known(places: Integers, probabilities: Floats) -> Posteriors:
    """Without series that have none."""
    known = ~np.isnan(probabilities).any(axis=1)
    return Posteriors(places[known], probabilities[known])


def _with_interval(figures: Figures) -> str:
    return f"{figures.balanced_accuracy:.2f} [{figures.low:.2f}, {figures.high:.2f}]"
