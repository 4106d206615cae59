"""How good is a system that has not looked?

    labels -> one class -> probability 1 for it, of every series

Two classes: the positive one, whose F1 is what a balanced test part gives for nothing (.667). More: the most
frequent one.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raxss.benchmark.baselines.common import Baseline
from raxss.data.series import Series
from raxss.errors import ConfigError, nearest


class AllPositiveClassifier(Baseline):
    """Says the same class of every series.

    Parameters
    ----------
    positive
        The class that F1 and AUC are about, of two; the last of ``classes_`` where it is not given.
    random_state, device
        As of the other estimators; nothing here depends on them.

    Examples
    --------
    >>> from raxss.data.datasets import load_synthetic
    >>> series = load_synthetic(4)
    >>> AllPositiveClassifier(positive="motif").fit(series).predict_proba(series[:2])
    array([[1., 0.],
           [1., 0.]])
    """

    def __init__(self, positive: Any = None, *, device: str = "auto", random_state: Any = None) -> None:
        self.positive = positive
        self.device = device
        self.random_state = random_state

    def fit(
        self, X: Any, y: ArrayLike | None = None, groups: ArrayLike | None = None, *, validation: Any = None
    ) -> Self:
        """Look at the labels. ``validation`` is checked, not used."""
        given = self._receive(X, y, groups, validation)
        if len(self.classes_) > 2:
            self.said_ = int(np.bincount(given.targets).argmax())
        elif self.positive is None:
            self.said_ = 1
        elif self.positive in self.classes_.tolist():
            self.said_ = self.classes_.tolist().index(self.positive)
        else:
            known = [str(one) for one in self.classes_]
            raise ConfigError(
                f"there is no positive class {self.positive!r}{nearest(str(self.positive), known)}"
            )
        self.is_fitted_ = True
        return self

    def _probabilities(self, series: list[Series]) -> NDArray[np.float64]:
        return np.tile(np.eye(len(self.classes_))[self.said_], (len(series), 1))
