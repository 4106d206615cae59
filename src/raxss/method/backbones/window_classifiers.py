"""Window classifiers: backbones that are fitted at once on features of windows, not trained by gradients.

    TrainingWindows: windows, class indices, series, folds -> WindowClassifier.fit_windows
    windows (batch, n_variates, length) -> view (views.py) -> posteriors (batch, C), as logits

A window classifier is a torch module as every backbone is: buffers hold what was fitted, so it is saved as plain
arrays, and prediction, retrieval, evidence and reports use it like a network. It is also fitted without each fold
of the series (`held_out`), so that every training series has a posterior from a model that did not see its group.
Next: ridge.py, logistic.py, trees.py, any_classifier.py are the classifiers; mixture.py is a mean of several.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.extmath import randomized_svd
from torch import Tensor, nn

from raxss.method.backbones.protocol import split_mask
from raxss.method.backbones.views import WindowView, build_view, features_once
from raxss.method.context import N_CONTEXT, split_context, takes_context

Floats = NDArray[np.float64]

N_COMPONENTS = 16  # principal components of the features, by which windows are compared
LEAST_POSTERIOR = 1e-6  # so that logits are finite
NUMBERS_AT_ONCE = 2**24  # in memory while features are computed
LEAST_DEVIATION = 1e-2  # of a feature, by which it is divided: one that hardly varies would be noise


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingWindows:
    """What a window classifier is fitted on.

    A fold holds whole groups of series. -1 stands for windows that are in no fold and so never held out.
    """

    windows: Tensor  # (n, n_variates, length) scaled, with further rows for mask and context
    targets: NDArray[np.int64]  # (n,) class indices
    series: NDArray[np.int64]  # (n,) index of the series that a window is of
    folds: NDArray[np.int64]  # (n,) from 0, or -1
    n_classes: int
    weights: Floats  # (n,) class weight of each window, at least 0, mean 1
    seed: int
    groups: NDArray[np.int64] | None = None  # (n,) of the series, such as patients; None: each is its own

    def __post_init__(self) -> None:
        shapes = {
            len(self.windows),
            *(len(item) for item in (self.targets, self.series, self.folds, self.weights)),
        }
        if len(shapes) > 1 or 0 in shapes:
            raise ValueError(f"arrays of {sorted(shapes)} windows: each needs the same number, at least 1")
        if self.n_folds and any((self.folds == fold).all() for fold in range(self.n_folds)):
            raise ValueError("one fold holds every window; at least two folds are needed, or -1 for none")

    @property
    def n_folds(self) -> int:
        """Number of folds; 0 where nothing is held out."""
        return int(self.folds.max()) + 1


class WindowClassifier(nn.Module):
    """Base class: a view of windows, and a classifier on its features.

    Features x of a window are standardised by the training windows, z = (x - mean) / deviation. A subclass has
    `_fit`, `_posteriors` and `_held_out_posteriors`, which get z.

    Parameters
    ----------
    view
        Features of a window: ``"statistics"``, ``"ppv"``, ``"multirocket"``, ``"hydra"`` or, for ECGs,
        ``"beats"``, see views.py.
    normalise
        Bring each window to mean 0 and deviation 1 first.
    share_missing
        The share of missing samples is one more feature (`share_missing_of`).
    context
        Position, level and amplitude of the window in its series are three more (`window_context`).
    rate
        Samples per second, for the view ``"beats"``; `RAxSSClassifier.fit` sets it where the series have one.

    Examples
    --------
    >>> from raxss.method.backbones.ridge import Ridge
    >>> noise = torch.randn(40, 1, 64, generator=torch.Generator().manual_seed(0))
    >>> noise[1::2] *= 3  # the second class is louder
    >>> training = TrainingWindows(
    ...     windows=noise, targets=np.arange(40) % 2, series=np.arange(40), folds=np.arange(40) // 20,
    ...     n_classes=2, weights=np.ones(40), seed=0)
    >>> classifier = Ridge(1, 64, n_outputs=1, view="statistics")
    >>> out_of_fold = classifier.fit_windows(training)
    >>> out_of_fold.shape, (out_of_fold.argmax(axis=1) == training.targets).mean()
    ((40, 2), np.float64(1.0))
    >>> classifier(torch.zeros(3, 1, 64)).shape
    torch.Size([3, 1])
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
        share_missing: bool = False,
        context: bool = False,
        rate: float | None = None,
    ) -> None:
        super().__init__()
        self.n_variates, self.n_outputs = n_variates, n_outputs
        self.n_classes = 2 if n_outputs == 1 else n_outputs
        self.described_view = f"{view} at unit deviation" if normalise else view
        self.describe_as = f"{type(self).__name__} on {self.described_view}"
        self.view: WindowView = build_view(view, n_variates, window_length, normalise=normalise, rate=rate)
        self.share_missing = share_missing
        self.takes_context = context
        self.d = self.view.d + int(share_missing) + N_CONTEXT * int(context)
        self.register_buffer("mean", torch.zeros(self.d))
        self.register_buffer("deviation", torch.ones(self.d))
        self.register_buffer("components", torch.zeros(self.d, N_COMPONENTS))
        self.widths = [N_COMPONENTS]  # of `features`, known without a trial

    def fit_windows(self, training: TrainingWindows) -> Floats:
        """Fit on windows, on all of them and without each fold.

        Returns the out-of-fold posteriors of the windows, ``(n, C)`` in float64; NaN for windows in no fold.
        """
        windows, present = split_mask(self._split_context(training.windows)[0], self.n_variates)
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
            found[rows] = self._held_out_posteriors(standard[torch.from_numpy(rows)], fold).cpu().numpy()
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
        """Features ``(n, d)`` of windows, with rows for mask and context or without; some at a time."""
        windows, context = self._split_context(windows)
        found = features_once(self.view, windows, lambda: self._in_parts(windows))
        numbers = [share_missing_of(windows, self.n_variates)[:, None]] if self.share_missing else []
        if self.takes_context:
            numbers.append(self.context_mean.expand(len(windows), -1) if context is None else context)
        return torch.cat([found, *(some.to(found.dtype) for some in numbers)], dim=1) if numbers else found

    def _in_parts(self, windows: Tensor) -> Tensor:
        n_at_once = max(NUMBERS_AT_ONCE // self.view.size, 1)
        parts = (split_mask(some, self.n_variates) for some in windows.split(n_at_once))
        return torch.cat([self.view(some, present) for some, present in parts])

    def _split_context(self, windows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Windows without their context, and this, ``(n, 3)``, where it is a feature and they have one."""
        return split_context(windows, self.n_variates) if self.takes_context else (windows, None)

    @property
    def context_mean(self) -> Tensor:
        """Mean context of the training windows ``(3,)``, for `mean_context`."""
        return self.mean[self.d - N_CONTEXT :]

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
        self.takes_context = takes_context(base)

    @property
    def context_mean(self) -> Tensor:
        """That of the backbone: over the windows of all folds."""
        found: Tensor = self.base.context_mean
        return found

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


def share_missing_of(windows: Tensor, n_variates: int) -> Tensor:  # (n,)
    """Share of missing samples before the last that is present, so that padding does not count; 0 without a mask.

    >>> mask = torch.tensor([[[1.0, 0.0, 1.0, 1.0, 0.0, 0.0]]])
    >>> share_missing_of(torch.cat([torch.zeros(1, 1, 6), mask], dim=1), n_variates=1)
    tensor([0.2500])
    """
    _, present = split_mask(windows, n_variates)
    if present is None:
        return torch.zeros(len(windows), device=windows.device)
    mask = (present[:, 0] != 0).to(torch.float32)
    n_before = mask.flip(1).cummax(dim=1).values.sum(dim=1)  # samples up to the last present
    return 1 - mask.sum(dim=1) / n_before.clamp(min=1) - (n_before == 0).to(torch.float32)


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


def series_log_loss(
    posteriors: Floats,  # (n, C) of windows
    targets: NDArray[np.int64],  # (n,)
    series: NDArray[np.int64],  # (n,)
    weights: Floats,  # (n,) equal within a series
) -> float:
    """Negative log-likelihood of the series, each with the mean posterior of its windows; weighted mean.

    >>> posteriors = np.array([[0.9, 0.1], [0.7, 0.3], [0.5, 0.5]])
    >>> round(series_log_loss(posteriors, np.array([0, 0, 1]), np.array([4, 4, 7]), np.ones(3)), 3)  # of .8 and .5
    0.458
    """
    _, first, place = np.unique(series, return_index=True, return_inverse=True)
    own = posteriors[np.arange(len(targets)), targets]
    means = np.bincount(place, weights=own) / np.bincount(place)
    return float(np.average(-np.log(np.clip(means, LEAST_POSTERIOR, None)), weights=weights[first]))


def principal_components(standard: Tensor, *, seed: int) -> Tensor:
    """Directions ``(d, 16)`` of largest variance of standardised features ``(n, d)``; zeros beyond their rank."""
    values = standard.double().cpu().numpy()
    found = torch.zeros(values.shape[1], N_COMPONENTS)
    rank = min(N_COMPONENTS, *values.shape)
    if rank:
        _, sizes, directions = randomized_svd(
            values, rank, power_iteration_normalizer="QR", random_state=seed % 2**32
        )
        keep = sizes > 1e-9 * max(sizes[0], 1e-9)
        found[:, :rank] = torch.from_numpy((directions * keep[:, None]).T.copy()).float()
    return found
