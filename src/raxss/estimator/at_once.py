"""Fitting of window classifiers, and out-of-fold predictions with them.

    settings, lengths of series -> members of a mixture
    WindowPool, folds of the series -> TrainingWindows -> backbone.fit_windows, weights of a mixture
    fitted backbone, folds -> FoldPredictor: predictions of training series by a model without their fold

Networks are trained by method/training/loop.py; a mixture with a network uses both. classifier.py calls these.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from raxss._core.settings import is_number
from raxss.data.prepare.rates import OTHER_RATE
from raxss.data.series import Series
from raxss.errors import ConfigError
from raxss.estimator.config import Config
from raxss.method.backbones.any_classifier import is_sklearn_classifier
from raxss.method.backbones.mixture import Mixture, resolved
from raxss.method.backbones.protocol import WINDOW_CLASSIFIERS, describe
from raxss.method.backbones.views import VIEWS
from raxss.method.backbones.window_classifiers import TrainingWindows, WindowClassifier, is_fitted_at_once
from raxss.method.inference import Prediction, Predictor
from raxss.method.training.window_pool import WindowPool
from raxss.method.weighting.support import UNIFORM
from raxss.uncertainty.reference_forest import FEWEST_A_CLASS, drawn_series
from raxss.uncertainty.validation import folds_of

logger = logging.getLogger("raxss")

MOST_WINDOWS = 3000  # that window classifiers are fitted on; as many as they were compared with
MOST_SAMPLES = 2**27  # of these
#: Setting of a number of windows -> attribute of a window classifier that has it as a feature, and its name.
NUMBERS = {
    "share_missing": ("share_missing", "share of missing samples"),
    "context": ("takes_context", "context of windows"),
}
MOST_SERIES = 400  # that are predicted out of fold; the standard error of an accuracy over them is .025


def with_members(
    config: Config,
    lengths: Sequence[int],
    n_variates: int,
    *,
    rate: float | None = None,
    has_beats: bool = False,
) -> Config:
    """Settings in which the members of a mixture are named, for series of these lengths, with numbers of windows.

    These are the share missing and the context, as far as they are on.

    A view that needs the sampling rate and has none gets ``rate``, where that is known; it is saved with the rest.
    One among the options that differs from it by more than a tenth is refused.

    >>> config = Config.from_parameters({"backbone": "ridge", "backbone_options": {"view": "beats"}})
    >>> dict(with_members(config, [5000], 1, rate=250.0).backbone.backbone_options)
    {'view': 'beats', 'rate': 250.0}
    """
    backbone, options = config.backbone.backbone, dict(config.backbone.backbone_options)
    numbers = {name: True for name in NUMBERS if getattr(config.backbone, name)}
    if backbone == "mixture":
        options = resolved(options, lengths, n_variates, has_beats=has_beats)
        options["members"] = _members(options["members"], numbers, rate)
        if "disturbed" in options:  # they take no context
            share = {"share_missing": True} if config.backbone.share_missing else {}
            options["disturbed"] = _members(options["disturbed"], share, rate)
    elif _is_window_classifier(backbone):
        options = _with_rate(options | numbers, rate)
    return replace(config, backbone=replace(config.backbone, backbone_options=options))


def chooses_members(config: Config) -> bool:
    """Whether the members of a mixture follow from the data."""
    automatic = config.backbone.backbone_options.get("members", "auto") == "auto"
    return config.backbone.backbone == "mixture" and automatic


def _members(tables: Any, numbers: Mapping[str, bool], rate: float | None) -> Any:
    """Tables of members with numbers of windows and with the rate, where they are tables; else refused later."""
    if not isinstance(tables, list | tuple):
        return tables
    return [_with_rate(_with_numbers(table, numbers), rate) for table in tables]


def _with_numbers(member: Any, numbers: Mapping[str, bool]) -> Any:
    """The table of a member of a mixture; a window classifier gets numbers of windows as features."""
    if not isinstance(member, Mapping) or not _is_window_classifier(member.get("backbone")):
        return member
    return {**member, **numbers}


def _with_rate(options: Any, rate: float | None) -> Any:
    """Options of a window classifier, with the sampling rate where its view needs one; a wrong one is refused."""
    if rate is None or not isinstance(options, Mapping):
        return options
    view = VIEWS.get(str(options.get("view")))
    if view is None or not view.needs_rate:
        return options
    given = options.get("rate")
    if given is not None and is_number(given) and given > 0 and abs(given / rate - 1) > OTHER_RATE:
        raise ConfigError(
            f"the view {options['view']!r} has the option rate = {given:g} Hz, but the series have {rate:g} Hz; "
            "needed is their rate, to a tenth. Leave the option out: fit takes it from the series."
        )
    return options if given is not None else {**options, "rate": rate}


def _is_window_classifier(backbone: object) -> bool:
    """Whether a name, a class or a classifier of scikit-learn stands for a window classifier."""
    if isinstance(backbone, str):
        return backbone in WINDOW_CLASSIFIERS and backbone != "mixture"
    if isinstance(backbone, type):
        return issubclass(backbone, WindowClassifier)
    return is_sklearn_classifier(backbone)


def is_by_gradients(config: Config, lengths: Sequence[int]) -> bool:
    """Whether the backbone, fitted on series of these lengths, has a part that is trained by gradients.

    >>> is_by_gradients(Config(), [50] * 399), is_by_gradients(Config(), [50] * 400)
    (False, True)
    """
    backbone = with_members(config, lengths, n_variates=1).backbone
    if backbone.backbone != "mixture":
        return not _is_window_classifier(backbone.backbone)
    return not all(
        _is_window_classifier(table.get("backbone")) for table in backbone.backbone_options["members"]
    )


def trained_part(backbone: nn.Module) -> nn.Module | None:
    """What is trained by gradients: a network, the network of a mixture, or None."""
    if not is_fitted_at_once(backbone):
        return backbone
    network: nn.Module | None = getattr(backbone, "network", None)
    return network


def check_settings(config: Config, backbone: nn.Module) -> None:
    """Refuse settings of training by gradients that a window classifier cannot follow."""
    if not is_fitted_at_once(backbone):
        return
    name = type(backbone).__name__
    for setting, (attribute, what) in NUMBERS.items():
        if getattr(config.backbone, setting) and not getattr(backbone, attribute, False):
            raise ConfigError(
                f"backbone.{setting} is true, but the backbone {name} takes no {what} as a feature. Set it to "
                "false, or choose a WindowClassifier, such as 'ridge' or 'mixture'."
            )
    for setting, wrong, remedy in (
        ("training.series_loss_weight", config.training.series_loss_weight > 0, "0"),
        ("training.window_loss_weight", config.training.window_loss_weight == 0, "1"),
        ("retrieval.refresh", config.retrieval.refresh != "never", "'never'"),
        ("retrieval.bank", config.retrieval.bank == "batch", "'series'"),
        ("aggregation.weighting", config.learns_from_features, "'support'"),
    ):
        if wrong:
            stage, field = setting.split(".")
            raise ConfigError(
                f"{setting} = {getattr(getattr(config, stage), field)!r} is for networks, which are trained by "
                f"gradients; the backbone {name} is fitted at once, on the labels of windows. Set {setting} = "
                f"{remedy}, or choose a network as backbone."
            )


def series_folds(targets: NDArray[np.int64], groups: NDArray[Any] | None, *, seed: int) -> NDArray[np.int64]:
    """The fold of each series, whole groups at a time; -1 where there are fewer than two groups."""
    found = folds_of(targets, groups, seed=seed)
    return found if found.max() > 0 else np.full(len(targets), -1)


def drawn_windows(pool: WindowPool, *, seed: int) -> NDArray[np.int64]:
    """Windows of a pool that a classifier is fitted on: one of every series, the others at random.

    There are 3000, fewer where windows of all variates are long. Of more series than that, some are drawn by class
    (`drawn_series`): a rare class keeps 20 of them, or all it has, and `draw_weights` corrects its share.

    Returns
    -------
    Places in the pool, in order ``(n,)``.
    """
    most = min(MOST_WINDOWS, max(MOST_SAMPLES // (len(pool.strip) * pool.window_length), 256))
    series = pool.series.cpu().numpy()
    drawn = np.random.default_rng(seed).permutation(len(pool))
    scored, place = np.unique(series[drawn], return_index=True)
    kept = drawn_series(pool.targets.cpu().numpy()[scored], most, seed=seed)
    first = np.zeros(len(drawn), dtype=bool)
    first[place[kept]] = True
    chosen: NDArray[np.int64] = np.sort(drawn[np.argsort(~first, kind="stable")][: max(most, len(kept))])
    return chosen


def draw_weights(
    targets: NDArray[np.int64],  # (n_series,)
    drawn: NDArray[np.int64],  # (n_drawn,)
    *,
    n_classes: int,
) -> NDArray[np.float64]:  # (C,)
    """Weights by which drawn series have the class shares of all: (n_c / n) / (m_c / m), 1 for a class without any.

    With n_c of n series and m_c of m drawn ones in class c. A draw keeps more of a rare class, so that there is
    something to learn from; unweighted, it would raise the probability of this class in every prediction. All are 1
    where every series is drawn.

    Examples
    --------
    >>> targets = np.repeat([0, 1], [980, 20])
    >>> draw_weights(targets, targets[-60:], n_classes=2)  # 40 and 20 of them
    array([1.47, 0.06])
    >>> draw_weights(targets, targets, n_classes=2)
    array([1., 1.])
    """
    every, some = (np.bincount(item, minlength=n_classes) for item in (targets, drawn))
    shares = every / len(targets), np.maximum(some, 1) / len(drawn)
    return np.where(some > 0, shares[0] / shares[1], 1.0)


def fit_at_once(
    backbone: nn.Module,
    pool: WindowPool,
    folds: NDArray[np.int64],  # (n_series,)
    groups: NDArray[Any] | None,  # (n_series,)
    class_weights: NDArray[np.float64] | None,  # (C,)
    *,
    n_classes: int,
    seed: int,
) -> dict[str, Any]:
    """Fit the window classifiers of a backbone on windows of a pool; return the row of the history."""
    began = time.perf_counter()
    indices = torch.from_numpy(drawn_windows(pool, seed=seed)).to(pool.starts.device)
    series = pool.series[indices].cpu().numpy()
    every = pool.targets.cpu().numpy()
    targets, scored, drawn = every[series], np.flatnonzero(pool.n_windows), np.unique(series)
    _log_fit(backbone, n_windows=(len(targets), len(pool)), n_series=(len(drawn), len(scored)))
    weights = np.ones(n_classes) if class_weights is None else np.asarray(class_weights)
    if all(getattr(part, "takes_weights", True) for part in backbone.modules()):
        weights = weights * draw_weights(every[scored], every[drawn], n_classes=n_classes)
    weights = weights[targets]
    training = TrainingWindows(
        windows=pool.training_windows(indices, seed=seed),
        targets=targets,
        series=series,
        groups=None if groups is None else np.unique(groups, return_inverse=True)[1][series],
        folds=folds[series],
        n_classes=n_classes,
        weights=weights / weights.mean(),
        seed=seed,
    )
    backbone.eval()
    with torch.no_grad():
        found = backbone.fit_windows(training)  # type: ignore[operator]
    own = found[np.arange(len(targets)), targets]
    loss = float(-np.log(np.clip(own, 1e-6, None)).mean())
    return {
        "epoch": 1,
        "train_loss": loss,
        "windows": len(targets),
        "seconds": time.perf_counter() - began,
    }


def _log_fit(backbone: nn.Module, *, n_windows: tuple[int, int], n_series: tuple[int, int]) -> None:
    """Log on how many windows and series of all a backbone is fitted."""
    windows, series = (
        f"{some}" if some == every else f"{some} of {every}" for some, every in (n_windows, n_series)
    )
    logger.info("fitting %s on %s windows of %s series", describe(backbone), windows, series)


def spread_windows(pool: WindowPool, most: int, *, seed: int) -> NDArray[np.int64]:
    """About ``most`` windows of a pool, in order: every n-th.

    Where this would leave out series, it is every n-th window of each, beginning with its first; of more series
    than ``most``, some are drawn by class (`drawn_series`), so that a rare class is among them.
    """
    every = -(-len(pool) // most)
    series = pool.series.cpu().numpy()
    found = np.arange(0, len(series), max(every, 1))
    scored, first = np.unique(series, return_index=True)
    if len(np.unique(series[found])) == len(scored):
        return found
    kept = scored[drawn_series(pool.targets.cpu().numpy()[scored], most, seed=seed)]
    place_in_series = np.arange(len(series)) - first[np.searchsorted(scored, series)]
    chosen: NDArray[np.int64] = np.flatnonzero((place_in_series % every == 0) & np.isin(series, kept))
    return chosen


def weigh_members(
    backbone: nn.Module,
    validation: WindowPool | None,
    class_weights: NDArray[np.float64] | None,  # (C,)
    *,
    seed: int,
) -> None:
    """Set the weights of a mixture with a network by the windows of the validation set.

    With class weights c, a series of class y counts c_y times, as it does in the fit of the members.
    """
    if (
        not isinstance(backbone, Mixture)
        or backbone.network is None
        or validation is None
        or not len(validation)
    ):
        return
    places = spread_windows(validation, MOST_WINDOWS, seed=seed)
    series = validation.series.cpu().numpy()[places]
    targets = validation.targets.cpu().numpy()[series]
    weights = None if class_weights is None else np.asarray(class_weights)[targets]
    backbone.weigh_by_validation(list(validation.windows_at(places)), targets, series, weights)


@dataclass(frozen=True, eq=False)
class FoldPredictor:
    """Out-of-fold predictions of training series, each by the backbone without its fold.

    In place of a `Predictor` where series that the model was fitted on take the part of a validation set.
    """

    predictor: Predictor
    folds: NDArray[np.int64]  # of the series that are predicted; -1: by the whole backbone

    @property
    def smoothing(self) -> float:
        """That of the predictor."""
        return self.predictor.smoothing

    def predictions(
        self,
        series: list[Series],
        *,
        with_lists: bool = True,
        on_progress: Callable[[float], None] | None = None,
    ) -> Iterator[Prediction]:
        """As `Predictor.predictions`, for the series that folds are known of, in their order."""
        assert len(series) == len(self.folds), "folds are known of other series"
        found: dict[int, Prediction] = {}
        for fold in np.unique(self.folds).tolist():
            places = np.flatnonzero(self.folds == fold).tolist()
            own = self._without(fold).predictions([series[place] for place in places], with_lists=with_lists)
            found |= dict(zip(places, own, strict=True))
        return iter([found[place] for place in range(len(series))])

    def window_probabilities(self, series: list[Series]) -> Iterator[NDArray[np.float64]]:
        """As `Predictor.window_probabilities`."""
        plain = replace(self, predictor=replace(self.predictor, weighting="uniform", smoothing=0.0))
        return (item.usable_posteriors for item in plain.predictions(series, with_lists=False))

    def _without(self, fold: int) -> Predictor:
        if fold < 0:
            return self.predictor
        held_out = self.predictor.backbone.held_out(fold)  # type: ignore[operator]
        return replace(self.predictor, backbone=held_out)


@dataclass(frozen=True, eq=False)
class PlainScorer:
    """Mean window posteriors of series, training series of known folds by the backbone without these."""

    predictor: Predictor
    folds: NDArray[np.int64]  # of all series; -1 for those that the whole backbone scores

    @property
    def window_length(self) -> int:
        """That of the predictor."""
        return self.predictor.window_length

    @property
    def stride(self) -> int:
        """That of the predictor."""
        return self.predictor.stride

    def scores(self, series: Sequence[Series], places: NDArray[np.int64]) -> NDArray[np.float64]:
        """``(n, C)``: series k has the fold of the one at ``places[k]``; nothing is retrieved or calibrated."""
        plain = replace(
            self.predictor, weighting=UNIFORM, smoothing=0.0, calibration=None, series_calibration=None
        )
        found = FoldPredictor(plain, self.folds[places]).predictions(list(series), with_lists=False)
        return np.stack([item.probability for item in found])


#: Predicts series that it was not fitted on: of a validation set, or of training series out of fold.
AnyPredictor = Predictor | FoldPredictor


def some_series(folds: NDArray[np.int64], usable: NDArray[np.bool_], *, seed: int) -> NDArray[np.int64]:
    """Places of the training series that are predicted out of fold, at most `MOST_SERIES`, drawn at random.

    Calibration and figures need the class shares of the data, so that a rare class is rare here as well; see
    `rare_series`.
    """
    places = np.flatnonzero(usable & (folds >= 0))
    chosen: NDArray[np.int64] = np.sort(np.random.default_rng(seed).permutation(places)[:MOST_SERIES])
    return chosen


def rare_series(
    folds: NDArray[np.int64],  # (n_series,)
    usable: NDArray[np.bool_],  # (n_series,)
    targets: NDArray[np.int64],  # (n_series,)
    chosen: NDArray[np.int64],  # places, of `some_series`
    *,
    seed: int,
) -> NDArray[np.int64]:
    """Places of further series of classes with fewer than 20 chosen, until there are 20 or all.

    They are predicted out of fold as well, for what weighs classes alike: the learning report and the decision
    threshold. With many classes there are fewer of each, 400 in all.

    >>> folds, targets = np.zeros(900, dtype=int), np.repeat([0, 1], [897, 3])
    >>> rare_series(folds, folds == 0, targets, np.arange(400), seed=0)
    array([897, 898, 899])
    """
    candidates = np.setdiff1d(np.flatnonzero(usable & (folds >= 0)), chosen)
    if not len(candidates):
        return candidates
    order = np.random.default_rng(seed).permutation(candidates)
    classes = np.unique(targets)
    fewest = min(FEWEST_A_CLASS, max(MOST_SERIES // len(classes), 1))
    missing = [max(fewest - int((targets[chosen] == label).sum()), 0) for label in classes]
    found = [order[targets[order] == label][:n] for label, n in zip(classes, missing, strict=True)]
    return np.sort(np.concatenate(found))
