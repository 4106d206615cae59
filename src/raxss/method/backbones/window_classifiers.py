"""Window classifiers: backbones that are fitted at once on features of windows, not trained by gradients.

    TrainingWindows: windows, class indices, series, folds -> WindowClassifier.fit_windows
    windows (batch, n_variates, length) -> view (views.py) -> posteriors (batch, C), as logits

A window classifier is a torch module as every backbone is: buffers hold what was fitted, so it is saved as plain
arrays, and prediction, retrieval, evidence and reports use it like a network. It is also fitted without each fold of
the series (`held_out`), so that every training series has a posterior from a model that did not see its group.
Subclasses: ridge.py, logistic.py, trees.py, any_classifier.py; mixture.py adds several up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.extmath import randomized_svd
from torch import Tensor, nn

from raxss.errors import one_of
from raxss.method.backbones.protocol import split_mask
from raxss.method.backbones.views import VIEWS, View

Floats = NDArray[np.float64]

N_COMPONENTS = 16  # principal components of the features, by which windows are compared
LEAST_POSTERIOR = 1e-6  # so that logits are finite
FEATURES_AT_ONCE = 2**24  # numbers
LEAST_DEVIATION = 1e-2  # of a feature, by which it is divided: one that hardly varies would be noise


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingWindows:
    """What a window classifier is fitted on."""

    windows: (
        Tensor  # (n, n_variates, length) scaled; with the mask of missing samples as one more row, or without
    )
    targets: NDArray[np.int64]  # (n,) class indices
    series: NDArray[np.int64]  # (n,) the series of each window
    folds: NDArray[
        np.int64
    ]  # (n,) the fold of each window, whole groups of series, from 0; -1: nothing is held out
    n_classes: int
    weights: Floats  # (n,) class weight of each window, mean 1
    seed: int

    @property
    def n_folds(self) -> int:
        """Number of folds; 0 where nothing is held out."""
        return int(self.folds.max()) + 1

    def only(self, kept: NDArray[Any]) -> TrainingWindows:
        """The windows at these places."""
        columns = {name: getattr(self, name)[kept] for name in ("targets", "series", "folds", "weights")}
        return replace(self, windows=self.windows[torch.from_numpy(np.asarray(kept))], **columns)


class WindowClassifier(nn.Module):
    """Base class: a view of windows, and a classifier on its features.

    A subclass has `_fit`, `_posteriors` and `_held_out_posteriors`.

    Parameters
    ----------
    view
        Features of a window: ``"statistics"`` or ``"ppv"``.
    normalise
        Bring each window to mean 0 and deviation 1 first.
    """

    handles_missing = True  # takes the mask of missing samples as one more row
    marks_padding = True  # in which the padding behind a short series is missing, too
    mean: Tensor
    deviation: Tensor
    components: Tensor

    def __init__(
        self,
        n_variates: int,
        window_length: int,
        n_outputs: int,
        *,
        view: str = "statistics",
        normalise: bool = False,
    ) -> None:
        super().__init__()
        one_of("view", view, tuple(VIEWS))
        self.n_variates, self.n_outputs = n_variates, n_outputs
        self.n_classes = 2 if n_outputs == 1 else n_outputs
        self.view: View = VIEWS[view](n_variates, window_length, normalise=normalise)
        self.register_buffer("mean", torch.zeros(self.view.d))
        self.register_buffer("deviation", torch.ones(self.view.d))
        self.register_buffer("components", torch.zeros(self.view.d, N_COMPONENTS))
        self.widths = [N_COMPONENTS]  # of `features`, known without a trial

    def fit_windows(self, training: TrainingWindows) -> Floats:
        """Fit on windows; return their out-of-fold posteriors ``(n, C)``, NaN where nothing is held out."""
        windows, present = split_mask(training.windows, self.n_variates)
        self.view.look_at(windows, present)
        features = self._view(training.windows)
        self.mean.copy_(features.mean(dim=0))
        self.deviation.copy_(features.std(dim=0, correction=0).clamp(min=LEAST_DEVIATION))
        standard = self._standardise(features)
        self.components.copy_(principal_components(standard, seed=training.seed))
        self._fit(standard, training)
        found = np.full((len(training.targets), self.n_classes), np.nan)
        for fold in range(training.n_folds):
            rows = np.flatnonzero(training.folds == fold)
            found[rows] = self._held_out_posteriors(standard[torch.from_numpy(rows)], fold).numpy()
        return found

    def held_out(self, fold: int) -> HeldOut:
        """The same classifier, fitted without the windows of a fold; known until the model is saved."""
        return HeldOut(self, fold)

    def forward(self, windows: Tensor) -> Tensor:
        """``(batch, n_variates, length)`` -> logits ``(batch, n_outputs)`` in float64."""
        return self.logits_and_features(windows)[0]

    def features(self, windows: Tensor) -> Tensor:
        """``(batch, n_variates, length)`` -> the first principal components of the view ``(batch, 16)``."""
        return self._standardise(self._view(windows)) @ self.components

    def logits_and_features(self, windows: Tensor, *, fold: int | None = None) -> tuple[Tensor, Tensor]:
        """Logits and features of the same windows from one pass; with ``fold`` those of `held_out`."""
        standard = self._standardise(self._view(windows))
        found = self._posteriors(standard) if fold is None else self._held_out_posteriors(standard, fold)
        return logits_of_posteriors(found.to(windows.device), self.n_outputs), standard @ self.components

    def _view(self, windows: Tensor) -> Tensor:
        windows, present = split_mask(windows, self.n_variates)
        n_at_once = max(FEATURES_AT_ONCE // max(self.view.d, windows.shape[1] * windows.shape[2]), 1)
        masks = [None] * len(windows) if present is None else present.split(n_at_once)
        parts = zip(windows.split(n_at_once), masks, strict=False)
        return torch.cat([self.view(some, mask) for some, mask in parts])

    def _standardise(self, features: Tensor) -> Tensor:
        return (features - self.mean) / self.deviation

    def _fit(self, standard: Tensor, training: TrainingWindows) -> None:
        """Fit on standardised features ``(n, d)``, on all of them and without each fold."""
        raise NotImplementedError

    def _posteriors(self, standard: Tensor) -> Tensor:
        """Standardised features ``(n, d)`` -> posteriors ``(n, C)`` in float64."""
        raise NotImplementedError

    def _held_out_posteriors(self, standard: Tensor, fold: int) -> Tensor:
        """`_posteriors` by what was fitted without a fold."""
        raise NotImplementedError


class HeldOut(nn.Module):
    """A fitted backbone as it is without the windows of one fold."""

    handles_missing = True

    def __init__(self, base: Any, fold: int) -> None:
        super().__init__()
        self.base, self.fold = base, fold
        self.marks_padding = getattr(base, "marks_padding", False)

    def forward(self, windows: Tensor) -> Tensor:
        """``(batch, n_variates, length)`` -> logits ``(batch, n_outputs)``."""
        logits: Tensor = self.logits_and_features(windows)[0]
        return logits

    def features(self, windows: Tensor) -> Tensor:
        """Those of the backbone, whatever the fold."""
        found: Tensor = self.base.features(windows)
        return found

    def logits_and_features(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        """Both from one pass."""
        found: tuple[Tensor, Tensor] = self.base.logits_and_features(windows, fold=self.fold)
        return found


def is_fitted_at_once(backbone: object) -> bool:
    """Whether a backbone is fitted by `fit_windows` instead of, or beside, training by gradients."""
    return callable(getattr(backbone, "fit_windows", None))


def logits_of_posteriors(posteriors: Tensor, n_outputs: int) -> Tensor:
    """Logits ``(n, n_outputs)`` whose softmax, or logistic function of one logit, are these posteriors ``(n, C)``.

    >>> logits_of_posteriors(torch.tensor([[0.2, 0.8]]), 1).sigmoid()
    tensor([[0.8000]])
    """
    logs = posteriors.clamp(LEAST_POSTERIOR, 1.0).log()
    return logs[:, 1:] - logs[:, :1] if n_outputs == 1 else logs


def principal_components(standard: Tensor, *, seed: int) -> Tensor:
    """Directions ``(d, 16)`` of largest variance of standardised features ``(n, d)``; zeros beyond their rank."""
    values = standard.double().cpu().numpy()
    found = torch.zeros(values.shape[1], N_COMPONENTS)
    rank = min(N_COMPONENTS, *values.shape)
    if rank:
        _, sizes, directions = randomized_svd(values, rank, random_state=seed % 2**32)
        keep = sizes > 1e-9 * max(sizes[0], 1e-9)
        found[:, :rank] = torch.from_numpy((directions * keep[:, None]).T.copy()).float()
    return found
