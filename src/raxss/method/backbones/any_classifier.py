"""Any classifier of scikit-learn as a backbone: clones of it, fitted on features of windows.

    RAxSSClassifier(backbone=CalibratedClassifierCV(SVC()))
    standardised features (n, d) -> clone.fit, clone.predict_proba -> posteriors (n, C)

It needs ``predict_proba``; pipelines count. A model with such a backbone is not written to a model folder, which
holds arrays and no pickles. Next: ridge.py, logistic.py and trees.py can be saved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import has_fit_parameter
from torch import Tensor

from raxss.errors import BackboneError, ConfigError
from raxss.method.backbones.window_classifiers import Floats, TrainingWindows, WindowClassifier


class SklearnClassifier(WindowClassifier):
    """Clones of a classifier of scikit-learn, one fitted on all windows and one without each fold.

    Class weights are given to ``fit`` as ``sample_weight``. Where a ``random_state`` of the classifier is None, it
    is set to the seed of the fit.

    Parameters
    ----------
    estimator
        An instance that is a template: it is not fitted itself.
    view, normalise, share_missing, context, rate
        See `WindowClassifier`.

    Examples
    --------
    >>> from sklearn.naive_bayes import GaussianNB
    >>> backbone = SklearnClassifier(1, 64, n_outputs=1, estimator=GaussianNB())
    >>> backbone(torch.zeros(2, 1, 64)).sigmoid()  # not fitted yet
    tensor([[0.5000],
            [0.5000]], dtype=torch.float64)
    >>> print(backbone.cannot_be_saved)
    a model with the classifier GaussianNB of scikit-learn cannot be saved: it would need a pickle, ...
    """

    def __init__(
        self,
        n_variates: int,
        window_length: int,
        n_outputs: int,
        *,
        estimator: Any,
        view: str = "statistics",
        normalise: bool = False,
        share_missing: bool = False,
        context: bool = False,
        rate: float | None = None,
    ) -> None:
        options: dict[str, Any] = {"normalise": normalise, "share_missing": share_missing}
        options |= {"context": context, "rate": rate}
        super().__init__(n_variates, window_length, n_outputs, view=view, **options)
        self.estimator = _checked(estimator)
        self.describe_as = f"{type(estimator).__name__} on {self.described_view}"
        self.cannot_be_saved = (
            f"a model with the classifier {type(estimator).__name__} of scikit-learn cannot be saved: it would "
            "need a pickle, and a model folder holds arrays alone. Choose a backbone that is kept as arrays, such "
            "as 'logistic', 'ridge' or 'extra-trees'."
        )
        self._fitted: Any = None
        self._without: list[Any] = []  # for each fold

    def _fit(self, standard: Tensor, training: TrainingWindows) -> None:
        x = standard.double().cpu().numpy()
        self._fitted = self._clone_on(x, training, np.ones(len(x), dtype=bool))
        self._without = [self._clone_on(x, training, training.folds != k) for k in range(training.n_folds)]

    def _clone_on(self, x: Floats, training: TrainingWindows, used: NDArray[np.bool_]) -> Any:
        """A clone that is fitted on some of the windows."""
        targets, weights = training.targets[used], training.weights[used]
        if len(np.unique(targets)) == 1:  # which most classifiers refuse
            return DummyClassifier().fit(x[used], targets)
        fresh = clone(self.estimator).set_params(**_seeds(self.estimator, training.seed))
        try:
            return fresh.fit(x[used], targets, **self._fit_parameters(weights))
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            raise BackboneError(
                f"the classifier {self.estimator!r} could not be fitted on {len(targets)} windows of "
                f"{x.shape[1]} features: {error}. Change its parameters, or choose another backbone."
            ) from error

    def _fit_parameters(self, weights: Floats) -> dict[str, Floats]:
        """Class weights under the name by which ``fit`` takes them; nothing where all are equal."""
        if np.ptp(weights) == 0:
            return {}
        last, prefix = _last_step(self.estimator)
        if not self.takes_weights:
            raise ConfigError(
                f"class_weight is set, but {type(last).__name__}.fit takes no sample_weight, by which windows are "
                "weighted. Set class_weight=None, or choose a classifier that takes it."
            )
        return {f"{prefix}sample_weight": weights}

    @property
    def takes_weights(self) -> bool:
        """Whether ``fit`` of the classifier, or of the last step of a pipeline, takes ``sample_weight``."""
        return bool(has_fit_parameter(_last_step(self.estimator)[0], "sample_weight"))

    def _posteriors(self, standard: Tensor) -> Tensor:
        return self._posteriors_by(self._fitted, standard)

    def _held_out_posteriors(self, standard: Tensor, fold: int) -> Tensor:
        return self._posteriors_by(self._without[fold], standard)

    def _posteriors_by(self, fitted: Any, standard: Tensor) -> Tensor:
        if fitted is None:
            return torch.full((len(standard), self.n_classes), 1 / self.n_classes, dtype=torch.float64)
        found = np.zeros((len(standard), self.n_classes))
        if len(found):  # which scikit-learn would refuse
            found[:, fitted.classes_] = fitted.predict_proba(standard.double().cpu().numpy())
        return torch.from_numpy(found)


def _last_step(estimator: Any) -> tuple[Any, str]:
    """The classifier of a pipeline, and the prefix of its parameters; else the estimator itself and ``""``."""
    prefix = ""
    while isinstance(estimator, Pipeline):
        name, estimator = estimator.steps[-1]
        prefix += f"{name}__"
    return estimator, prefix


def maker_of(estimator: Any) -> Callable[..., SklearnClassifier]:
    """A function ``(n_variates, window_length, n_outputs, **options)`` that builds backbones of it.

    >>> from sklearn.naive_bayes import GaussianNB
    >>> maker_of(GaussianNB())(1, 64, 1, normalise=True).describe_as
    'GaussianNB on statistics at unit deviation'
    """
    _checked(estimator)

    def make(
        n_variates: int,
        window_length: int,
        n_outputs: int,
        *,
        view: str = "statistics",
        normalise: bool = False,
        share_missing: bool = False,
        context: bool = False,
        rate: float | None = None,
    ) -> SklearnClassifier:
        options: dict[str, Any] = {"normalise": normalise, "share_missing": share_missing}
        options |= {"context": context, "rate": rate}
        return SklearnClassifier(
            n_variates, window_length, n_outputs, estimator=estimator, view=view, **options
        )

    return make


def is_sklearn_classifier(backbone: object) -> bool:
    """Whether a backbone is an instance with ``fit`` and ``predict_proba``; classes and functions are not.

    >>> from sklearn.svm import LinearSVC
    >>> [is_sklearn_classifier(item) for item in (DummyClassifier(), DummyClassifier, LinearSVC(), "ridge")]
    [True, False, False, False]
    """
    fitted_by = (getattr(backbone, name, None) for name in ("fit", "predict_proba"))
    return not isinstance(backbone, type | torch.nn.Module) and all(map(callable, fitted_by))


def _checked(estimator: Any) -> Any:
    if not is_sklearn_classifier(estimator):
        name = type(estimator).__name__
        raise BackboneError(
            f"the backbone {estimator!r} has no predict_proba; posteriors of windows are needed. Wrap it, as in "
            f"CalibratedClassifierCV({name}(...)), or choose a classifier with predict_proba."
        )
    return estimator


def _seeds(estimator: Any, seed: int) -> dict[str, int]:
    """Every ``random_state`` of an estimator and its parts that is None, by its name, and the seed."""
    found = estimator.get_params(deep=True).items()
    names = [name for name, value in found if name.split("__")[-1] == "random_state" and value is None]
    return dict.fromkeys(names, seed % 2**32)
