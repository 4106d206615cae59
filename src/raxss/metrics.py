"""Metrics of series probabilities (AUC, F1, calibration error), with bootstrap intervals.

    labels (n_series,), probabilities (n_series, C) -> score                 one figure a metric
    the same, weights (n_draws, n_series)           -> weighted_scores       one a draw, for a bootstrap
    the same, groups (n_series,)                    -> score_with_intervals  figures with 95 % intervals

Every figure is written as a sum over series, so that thousands of draws are a few matrix products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raxss.errors import DataError, LabelError, join_names

METRICS = ("f1", "auc", "accuracy", "average_precision", "balanced_accuracy", "brier", "ece")
N_BINS = 10  # of the expected calibration error
# For an interval: with five, even groups that all agree give a two-sided sign test of 2 / 2^5 > .05.
FEWEST_GROUPS = 6
N_AT_ONCE = 100_000  # draws x series worked on in one go: arrays that stay in the cache
MOST_TRIES = 1000  # draws tried for each that holds every class

Floats = NDArray[np.float64]


def score(
    labels: ArrayLike,
    probabilities: ArrayLike,
    *,
    classes: ArrayLike,
    positive: Any = None,
    f1_classes: Sequence[Any] = (),
) -> dict[str, float]:
    """All figures of series probabilities: those of the paper first, then the others.

    Two classes: F1, AUC, average precision and Brier score of ``positive`` (the last class where it is not given).
    More: macro averages over the classes that there are, one against the rest; F1 also counts a class that was
    only predicted, as 0, and is the mean over ``f1_classes`` alone where they are given: a series of another class
    that is called one of these still counts against it (the score of the CinC 2017 challenge, with normal, AF and
    other). The predicted class is the most probable one, the first of equals.

    - ``average_precision``: precision at each probability that occurs, weighted by the recall it adds.
    - ``balanced_accuracy``: mean recall of the classes that there are.
    - ``brier``: mean over series of (p - y)² for the positive class; for more than two classes of the sum of
      (p_c - y_c)² over all of them (0 to 2).
    - ``ece``: expected calibration error, sum over 10 bins of equal width of n_b / n |accuracy_b - confidence_b|.
      Two classes: bins of the positive probability, against the share of positives (Naeini et al., 2015).
      More: bins of the largest probability, against the share of right predictions (Guo et al., 2017). A bin
      takes its upper edge. With few series it is too large, even for a calibrated model.

    A model that gives every series the same probabilities has AUC .5, and the share of positives as average
    precision. Labels of one class are refused; so are labels that are none of ``classes``.

    Examples
    --------
    >>> figures = score(["a", "b", "b"], [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], classes=["a", "b"])
    >>> {name: round(value, 3) for name, value in figures.items()}
    {'auc': 1.0, 'f1': 0.667, 'accuracy': 0.667, 'average_precision': 1.0, 'balanced_accuracy': 0.75,
     'brier': 0.137, 'ece': 0.3}
    """
    _refuse_one_class(labels)
    figures = weighted_scores(
        labels, probabilities, classes=classes, positive=positive, f1_classes=f1_classes
    )
    return {name: float(values[0]) for name, values in figures.items()}


def score_with_intervals(
    labels: ArrayLike,
    probabilities: ArrayLike,
    *,
    classes: ArrayLike,
    positive: Any = None,
    groups: ArrayLike | None = None,
    n_resamples: int = 2000,
    seed: int = 69421,
) -> dict[str, dict[str, float]]:
    """`score`, each figure with the 95 % percentile interval of a bootstrap over groups.

    Groups are drawn with replacement, each with all its series; a draw that misses a class is drawn again,
    because AUC does not exist there. The interval of ``ece`` is that of a biased figure: drawing again makes
    every bin look worse, so that the value can lie below it.

    Examples
    --------
    >>> figures = score_with_intervals([0, 0, 1, 1], [[0.9, 0.1], [0.4, 0.6], [0.3, 0.7], [0.1, 0.9]],
    ...                                classes=[0, 1])
    >>> figures["auc"]
    {'value': 1.0, 'low': 1.0, 'high': 1.0}
    """
    labels = np.asarray(labels)
    _refuse_one_class(labels)
    keys = np.arange(len(labels)) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    weights = _draws_with_every_class(labels, keys, n_resamples, np.random.default_rng(seed))
    values = score(labels, probabilities, classes=classes, positive=positive)
    draws = weighted_scores(labels, probabilities, classes=classes, positive=positive, weights=weights)
    intervals = {name: np.percentile(draws[name], [2.5, 97.5]) for name in values}
    return {
        name: {"value": value, "low": float(intervals[name][0]), "high": float(intervals[name][1])}
        for name, value in values.items()
    }


def draw_counts(n_groups: int, n_draws: int, generator: np.random.Generator) -> NDArray[np.int32]:
    """How often each group is in each of ``n_draws`` bootstrap draws: ``(n_draws, n_groups)``.

    Examples
    --------
    >>> draw_counts(4, 2, np.random.default_rng(0))
    array([[0, 1, 2, 1],
           [3, 1, 0, 0]], dtype=int32)
    """
    picked = generator.integers(n_groups, size=(n_draws, n_groups))
    flat = picked + n_groups * np.arange(n_draws)[:, np.newaxis]
    counts = np.bincount(flat.ravel(), minlength=n_draws * n_groups)
    return counts.reshape(n_draws, n_groups).astype(np.int32)


def weighted_scores(
    labels: ArrayLike,
    probabilities: ArrayLike,
    *,
    classes: ArrayLike,
    positive: Any = None,
    f1_classes: Sequence[Any] = (),
    weights: ArrayLike | None = None,
) -> dict[str, Floats]:
    """The figures of `score` for many weightings of the same series at once, arrays ``(n_draws,)`` by metric.

    ``weights`` ``(n_draws, n_series)``: how often a series is in a draw, 0 for one that is not; once each by
    default. NaN where a figure does not exist: all where a draw is empty, AUC where it has one class only, average
    precision and F1 where nothing is positive (F1: nor called so).

    Examples
    --------
    >>> weighted_scores([0, 1, 1], [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], classes=[0, 1],
    ...                 weights=[[1, 1, 1], [2, 0, 1], [0, 1, 1]])["accuracy"].round(3)
    array([0.667, 0.667, 0.5  ])
    """
    labels, probabilities, classes = np.asarray(labels), np.asarray(probabilities), np.asarray(classes)
    _check_inputs(labels, probabilities, classes, positive, f1_classes)
    weights = np.ones((1, len(labels))) if weights is None else np.asarray(weights)
    if weights.ndim != 2 or weights.shape[1] != len(labels):
        raise DataError(f"weights have the shape {weights.shape}; needed is (n_draws, {len(labels)}).")
    truth = labels[:, np.newaxis] == classes
    if len(classes) == 2:
        scored = [1 if positive is None else int(np.flatnonzero(classes == positive)[0])]
    else:
        scored = list(range(len(classes)))
    in_f1 = [int(np.flatnonzero(classes == f1_label)[0]) for f1_label in f1_classes] or scored
    n_block = max(1, N_AT_ONCE // max(1, len(labels)))
    with np.errstate(divide="ignore", invalid="ignore"):  # 0/0 is NaN: the figure does not exist
        blocks = [
            _figures(truth, probabilities, weights[first : first + n_block].astype(np.float64), scored, in_f1)
            for first in range(0, max(1, len(weights)), n_block)
        ]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def _figures(
    truth: NDArray[np.bool_],
    probabilities: NDArray[Any],
    weights: Floats,
    scored: list[int],
    in_f1: list[int],
) -> dict[str, Floats]:
    """Of all draws; ``scored`` are the columns over which one-against-the-rest figures are averaged, F1 apart."""
    predicted = probabilities.argmax(axis=1)
    guess = predicted[:, np.newaxis] == np.arange(truth.shape[1])
    hits, n_true, n_guess = (
        weights @ item for item in ((truth & guess).astype(float), truth * 1.0, guess * 1.0)
    )
    total = weights.sum(axis=1)
    ranking = [_ranking_figures(truth[:, k], probabilities[:, k], weights) for k in scored]
    errors = ((probabilities - truth) ** 2)[:, scored].sum(axis=1)
    return {
        "auc": _mean_of_known(np.stack([auc for auc, _ in ranking], axis=1)),
        "f1": _mean_of_known((2 * hits / (n_true + n_guess))[:, in_f1]),
        "accuracy": hits.sum(axis=1) / total,
        "average_precision": _mean_of_known(np.stack([item for _, item in ranking], axis=1)),
        "balanced_accuracy": _mean_of_known(hits / n_true),
        "brier": weights @ errors / total,
        "ece": _calibration_error(truth, probabilities, weights, scored) / total,
    }


def _ranking_figures(
    truth: NDArray[np.bool_], probability: NDArray[Any], weights: Floats
) -> tuple[Floats, Floats]:
    """AUC, the share of pairs in which the true one is more probable (ties count half), and average precision."""
    # Series are counted by probability, from the lowest, so that equal ones are one step.
    order = np.argsort(probability, kind="stable")
    last = np.flatnonzero(np.append(np.diff(probability[order]) > 0, True))  # of the equal ones
    drawn = weights.T[order]  # series by draws: what follows runs down the columns
    drawn_so_far = np.cumsum(drawn, axis=0)[last]
    true_so_far = np.cumsum(drawn * truth[order, np.newaxis], axis=0)[last]
    false_so_far = drawn_so_far - true_so_far
    n_true, n_false = (np.diff(item, axis=0, prepend=0.0) for item in (true_so_far, false_so_far))
    all_true, all_false = true_so_far[-1], false_so_far[-1]
    auc = (n_true * (false_so_far - n_false / 2)).sum(axis=0) / (all_true * all_false)

    true_above = all_true - true_so_far + n_true  # this step's among them
    false_above = all_false - false_so_far + n_false
    precision = true_above / np.maximum(true_above + false_above, 1e-300)  # nothing above: nothing true here
    return auc, (n_true * precision).sum(axis=0) / all_true


def _calibration_error(
    truth: NDArray[np.bool_], probabilities: NDArray[Any], weights: Floats, scored: list[int]
) -> Floats:
    """Sum over bins of |sum over the bin's series of (confidence - outcome)|."""
    if len(scored) == 1:
        confidence, outcome = probabilities[:, scored[0]], truth[:, scored[0]]
    else:
        confidence = probabilities.max(axis=1)
        outcome = truth[np.arange(len(truth)), probabilities.argmax(axis=1)]
    bins = np.searchsorted(np.linspace(0, 1, N_BINS + 1)[1:-1], confidence)
    gaps = np.where(bins[:, np.newaxis] == np.arange(N_BINS), (confidence - outcome)[:, np.newaxis], 0.0)
    return np.abs(weights @ gaps).sum(axis=1)


def _mean_of_known(values: Floats) -> Floats:
    """Mean of each row without its NaN."""
    known = ~np.isnan(values)
    return np.where(known, values, 0.0).sum(axis=1) / known.sum(axis=1)


def _draws_with_every_class(
    labels: NDArray[Any], keys: NDArray[np.int64], n_draws: int, generator: np.random.Generator
) -> NDArray[np.int32]:
    """Weights ``(n_draws, n_series)`` of whole groups, every class in every draw."""
    n_groups = int(keys.max()) + 1
    kinds, codes = np.unique(labels, return_inverse=True)
    holds = np.zeros((n_groups, len(kinds)))
    np.add.at(holds, (keys, codes), 1)
    kept: list[NDArray[np.int32]] = []
    for _ in range(MOST_TRIES):
        counts = draw_counts(n_groups, n_draws, generator)
        kept.append(counts[(counts @ holds > 0).all(axis=1)])
        if sum(map(len, kept)) >= n_draws:
            return np.concatenate(kept)[:n_draws, keys]
    raise LabelError(
        f"of {MOST_TRIES * n_draws} draws of {n_groups} groups, fewer than {n_draws} held all {len(kinds)} "
        "classes: too few groups have the rare ones for an interval. Merge classes, or use `score`."
    )


def _refuse_one_class(labels: ArrayLike) -> None:
    found = np.unique(np.asarray(labels)).tolist()
    if len(found) < 2:
        raise LabelError(
            f"the {np.size(np.asarray(labels))} labels are of {len(found)} class "
            f"({', '.join(map(repr, found)) or 'none'}); at least two classes are needed to score a model."
        )


def _check_inputs(
    labels: NDArray[Any],
    probabilities: NDArray[Any],
    classes: NDArray[Any],
    positive: Any,
    f1_classes: Sequence[Any],
) -> None:
    """Raise on classes, labels or probabilities that do not go together."""
    for f1_label in f1_classes:
        if f1_label not in classes or len(classes) == 2:
            raise LabelError(
                f"f1_classes has {f1_label!r}, and the classes are {classes.tolist()}; needed are some of more "
                "than two. Of two, name the one that F1 is about as positive."
            )
    if positive is not None and positive not in classes:
        raise LabelError(f"the positive class {positive!r} is not among the classes: {classes.tolist()}.")
    if probabilities.shape != (len(labels), len(classes)):
        raise DataError(
            f"probabilities have the shape {probabilities.shape}; needed is ({len(labels)}, {len(classes)}): a row "
            "for each label, a column for each class."
        )
    unknown = np.unique(labels[~np.isin(labels, classes)]).tolist()
    if unknown:
        raise LabelError(
            f"labels {join_names(map(repr, unknown))} are none of the classes {classes.tolist()}; give all "
            "classes, of the labels' type."
        )
    broken = np.flatnonzero(~np.isfinite(probabilities).all(axis=1))
    if len(broken):
        raise DataError(
            f"the probabilities of {len(broken)} of {len(labels)} series are not finite, first those of number "
            f"{broken[0]}; a model that answers so cannot be scored."
        )
