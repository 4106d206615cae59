"""Reliability table, calibration figures and classification figures of predicted probabilities.

    class indices (n,), probabilities (n, C) -> table: one row per bin, mean probability and observed share
                                             -> Brier score, log loss, expected calibration error
                                             -> accuracy beside what it hides: prior, balanced accuracy, ...

validation.py computes these on the validation set; explain/figures.py draws the table.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm

from raxss.metrics import N_BINS, weighted_scores

CLAMP = 1e-6  # as in the training loss: a calibration map may give 0
Z = float(norm.ppf(0.975))


def reliability_table(targets: ArrayLike, probabilities: ArrayLike) -> list[dict[str, Any]]:
    """Mean predicted probability and observed share, bin by bin; empty bins are left out.

    Two classes: bins of the probability of the second, against the share of it. More: bins of the largest
    probability, against the accuracy. Bins are of equal width and take their upper edge.

    Returns
    -------
    ``from, to, n, said, found, low, high`` of each bin: ``said`` the mean probability, ``found`` the share, with
    its 95 % interval (Wilson's).

    Examples
    --------
    >>> second = np.array([0.9, 0.9, 0.9, 0.9, 0.3])
    >>> for row in reliability_table([1, 1, 0, 1, 0], np.stack([1 - second, second], axis=1)):
    ...     print({name: round(value, 2) for name, value in row.items()})
    {'from': 0.2, 'to': 0.3, 'n': 1, 'said': 0.3, 'found': 0.0, 'low': 0.0, 'high': 0.79}
    {'from': 0.8, 'to': 0.9, 'n': 4, 'said': 0.9, 'found': 0.75, 'low': 0.3, 'high': 0.95}
    """
    classes, values = np.asarray(targets), np.asarray(probabilities, dtype=np.float64)
    if values.shape[1] == 2:
        predicted, hits = values[:, 1], classes == 1
    else:
        predicted, hits = values.max(axis=1), values.argmax(axis=1) == classes
    edges = np.linspace(0.0, 1.0, N_BINS + 1)
    bins = np.searchsorted(edges[1:-1], predicted)
    rows = []
    for place in np.unique(bins):
        inside = bins == place
        n, share = int(inside.sum()), float(hits[inside].mean())
        row = {"from": float(edges[place]), "to": float(edges[place + 1]), "n": n}
        row |= {"said": float(predicted[inside].mean()), "found": share}
        rows.append(row | dict(zip(("low", "high"), _wilson(share, n), strict=True)))
    return rows


def calibration_figures(targets: ArrayLike, probabilities: ArrayLike) -> dict[str, float]:
    """Brier score and expected calibration error, as `raxss.metrics.score` has them, and the log loss."""
    classes, values = np.asarray(targets), np.asarray(probabilities, dtype=np.float64)
    scores = weighted_scores(classes, values, classes=np.arange(values.shape[1]))
    picked = np.clip(values[np.arange(len(values)), classes], CLAMP, 1.0 - CLAMP)
    figures = {name: float(scores[name][0]) for name in ("brier", "ece")}
    return figures | {"log_loss": float(-np.log(picked).mean())}


def classification_figures(
    targets: ArrayLike, probabilities: ArrayLike, *, predicted: ArrayLike | None = None
) -> dict[str, float]:
    """Accuracy, and beside it the figures that show what it is worth where a class is rare.

    - ``largest_share``: share of the most frequent class, which is the accuracy of always naming it;
    - ``accuracy``, ``balanced_accuracy``: share of right predictions, mean recall of the classes that there are;
    - two classes: ``sensitivity`` and ``specificity``, the recall of the second and of the first, and
      ``average_precision`` of the second, which is its share for probabilities that say nothing.

    Figures that do not exist, because a class is missing, are left out.

    Parameters
    ----------
    targets, probabilities
        Class indices ``(n,)`` and probabilities ``(n, C)``.
    predicted
        Class indices ``(n,)``; by default those of the largest probabilities.

    Examples
    --------
    >>> rows = np.array([[0.9, 0.1]] * 49 + [[0.6, 0.4]])
    >>> classification_figures([0] * 49 + [1], rows)
    {'largest_share': 0.98, 'accuracy': 0.98, 'balanced_accuracy': 0.5, 'sensitivity': 0.0, 'specificity': 1.0,
     'average_precision': 1.0}
    """
    truth, values = np.asarray(targets), np.asarray(probabilities, dtype=np.float64)
    guess = values.argmax(axis=1) if predicted is None else np.asarray(predicted)
    right, counts = truth == guess, np.bincount(truth, minlength=values.shape[1])
    recalls = [
        float(right[truth == class_].mean()) if counts[class_] else np.nan for class_ in range(len(counts))
    ]
    figures = {
        "largest_share": float(counts.max() / counts.sum()),
        "accuracy": float(right.mean()),
        "balanced_accuracy": float(np.nanmean(recalls)),
    }
    if len(counts) == 2:
        scores = weighted_scores(truth, values, classes=np.arange(2))
        figures |= {"sensitivity": recalls[1], "specificity": recalls[0]}
        figures["average_precision"] = float(scores["average_precision"][0])
    return {name: value for name, value in figures.items() if np.isfinite(value)}


def _wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share of n."""
    middle = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * np.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    return max(float(middle - half), 0.0), min(float(middle + half), 1.0)
