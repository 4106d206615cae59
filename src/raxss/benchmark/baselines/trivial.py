"""Constant classifier: the same class for every series.

    labels -> one class -> probability 1 for it, of every series

Two classes: the positive one, whose F1 is what a balanced test set gives for nothing (.667). More: the most
frequent one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raxss.benchmark.baselines.common import Baseline, Given
from raxss.data.series import Series
from raxss.errors import ConfigError, did_you_mean


@dataclass(eq=False, repr=False)
class AllPositiveClassifier(Baseline):
    """Predicts the same class for every series.

    Parameters
    ----------
    positive
        The class that F1 and AUC are about, of two; the last of ``classes_`` where it is not given.
    random_state, device
        As of the other estimators; nothing here depends on them.

    Attributes
    ----------
    classes_, predicted_
    """

    positive: Any = None

    def _learn(self, given: Given) -> None:
        if len(self.classes_) > 2:
            self.predicted_ = int(np.bincount(given.targets).argmax())
        elif self.positive is None:
            self.predicted_ = 1
        elif self.positive in self.classes_.tolist():
            self.predicted_ = self.classes_.tolist().index(self.positive)
        else:
            known = [str(item) for item in self.classes_]
            raise ConfigError(
                f"there is no positive class {self.positive!r}{did_you_mean(str(self.positive), known)}"
            )

    def _probabilities(self, series: list[Series]) -> NDArray[np.float64]:
        return np.tile(np.eye(len(self.classes_))[self.predicted_], (len(series), 1))
