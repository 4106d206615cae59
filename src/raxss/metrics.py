"""How good are the series probabilities, and how sure is that figure?

labels (n_series,), probabilities (n_series, C) -> F1, AUC, accuracy, each with a bootstrap interval
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from raxss.errors import LabelError


def score(
    labels: ArrayLike, probabilities: ArrayLike, *, classes: ArrayLike, positive: Any = None
) -> dict[str, float]:
    """F1, AUC and accuracy of series probabilities.

    Two classes: F1 and AUC of ``positive`` (the last class where it is not given), threshold .5. More:
    macro averages, AUC one against the rest; a class without a series has no AUC and is left out.

    Examples
    --------
    >>> score(["a", "b", "b"], [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], classes=["a", "b"])
    {'auc': 1.0, 'f1': 0.6666666666666666, 'accuracy': 0.6666666666666666}
    """
    labels, probabilities, classes = np.asarray(labels), np.asarray(probabilities), np.asarray(classes)
    _check_labels(labels, classes, positive)
    predicted = classes[probabilities.argmax(axis=1)]
    if len(classes) == 2:
        which = 1 if positive is None else int(np.flatnonzero(classes == positive)[0])
        truth = labels == classes[which]
        auc, f1 = _auc(truth, probabilities[:, which]), _f1(truth, predicted == classes[which])
    else:
        present = [k for k, one in enumerate(classes) if (labels == one).any()]
        auc = float(np.mean([_auc(labels == classes[k], probabilities[:, k]) for k in present]))
        f1 = float(np.mean([_f1(labels == one, predicted == one) for one in np.union1d(labels, predicted)]))
    return {"auc": auc, "f1": f1, "accuracy": float((labels == predicted).mean())}


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
    because AUC does not exist there.

    Examples
    --------
    >>> figures = score_with_intervals([0, 0, 1, 1], [[0.9, 0.1], [0.4, 0.6], [0.3, 0.7], [0.1, 0.9]],
    ...                                classes=[0, 1])
    >>> figures["auc"]
    {'value': 1.0, 'low': 1.0, 'high': 1.0}
    """
    labels, probabilities = np.asarray(labels), np.asarray(probabilities)
    _check_labels(labels, np.asarray(classes), positive)
    keys = np.arange(len(labels)) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    members = [np.flatnonzero(keys == key) for key in range(keys.max() + 1)]
    n_classes = len(np.unique(labels))

    def one_draw(generator: np.random.Generator) -> dict[str, float]:
        while True:
            picked = generator.integers(len(members), size=len(members))
            rows = np.concatenate([members[group] for group in picked])
            if len(np.unique(labels[rows])) == n_classes:
                return score(labels[rows], probabilities[rows], classes=classes, positive=positive)

    return _with_percentiles(
        score(labels, probabilities, classes=classes, positive=positive), one_draw, n_resamples, seed
    )


def _auc(truth: NDArray[np.bool_], probability: NDArray[Any]) -> float:
    """Share of pairs in which the true one has the higher probability; ties count half.

    Counted by ranks: a bootstrap asks for this thousands of times.
    """
    n_true, n_false = int(truth.sum()), int((~truth).sum())
    return float((rankdata(probability)[truth].sum() - n_true * (n_true + 1) / 2) / (n_true * n_false))


def _f1(truth: NDArray[np.bool_], guess: NDArray[np.bool_]) -> float:
    return float(2 * (truth & guess).sum() / (truth.sum() + guess.sum()))


def _check_labels(labels: NDArray[Any], classes: NDArray[Any], positive: Any) -> None:
    """Refuse labels for which a figure does not exist."""
    found = np.unique(labels).tolist()
    if len(found) < 2:
        raise LabelError(
            f"the {len(labels)} labels are of {len(found)} class ({', '.join(map(repr, found)) or 'none'}); at "
            "least two classes are needed to score a model."
        )
    if positive is not None and positive not in classes:
        raise LabelError(f"the positive class {positive!r} is not among the classes: {classes.tolist()}.")


def _with_percentiles(
    values: dict[str, float],
    one_draw: Callable[[np.random.Generator], dict[str, float]],
    n_resamples: int,
    seed: int,
) -> dict[str, dict[str, float]]:
    generator = np.random.default_rng(seed)
    draws = [one_draw(generator) for _ in range(n_resamples)]
    intervals = {name: np.percentile([draw[name] for draw in draws], [2.5, 97.5]) for name in values}
    return {
        name: {"value": value, "low": float(intervals[name][0]), "high": float(intervals[name][1])}
        for name, value in values.items()
    }
