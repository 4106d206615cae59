"""Steps of `RAxSSClassifier.fit`: validation split, window pool, fresh network, calibration, validation report.

    labels, groups -> indices of training and validation series
    series, targets -> WindowPool: every window with its support
    settings, seed -> Learner: a network with initial weights; a fingerprint of the run
    trained network, validation series -> calibration, temperature, validation report

classifier.py calls these in order, with method/training/loop.py in between.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, fields, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from torch import Tensor, nn

from raxss.data.series import Series
from raxss.data.splits import hold_out
from raxss.errors import BackboneError, ConfigError, DataError, GapsLearnedWarning, RAxSSWarning
from raxss.estimator.at_once import AnyPredictor, PlainScorer, check_settings, drawn_windows, trained_part
from raxss.estimator.config import Config
from raxss.method.aggregation import smooth_posteriors
from raxss.method.augmentation import LIGHT, STRONG, AugmentationConfig
from raxss.method.backbones.convnet import ROW_LENGTH
from raxss.method.backbones.mixture import Mixture
from raxss.method.backbones.protocol import (
    build_backbone,
    describe,
    features_of,
    n_outputs_for,
    n_parameters,
)
from raxss.method.backbones.sizes import check_network, check_window
from raxss.method.backbones.window_classifiers import is_fitted_at_once
from raxss.method.backbones.window_numbers import with_numbers
from raxss.method.feature_heads import FeatureHeads
from raxss.method.inference import Prediction, Predictor, retrieval_settings
from raxss.method.retrieval.batch import batch_support
from raxss.method.retrieval.cache import cached_retrieve_many
from raxss.method.retrieval.front import windows_without_shape
from raxss.method.training.feature_support import EpochRefresh, Refresh, feature_moments, moments
from raxss.method.training.loop import fit_temperature
from raxss.method.training.settings import TrainingConfig, TrainingPlan
from raxss.method.training.step import BatchSupport, Learner
from raxss.method.training.window_pool import Batch, WindowPool
from raxss.method.weighting.protocol import weighting_named
from raxss.method.windows import MANY_SERIES, WindowPlan, window_starts
from raxss.uncertainty.calibration import calibration_named
from raxss.uncertainty.calibration.maps import Calibration
from raxss.uncertainty.gaps import GapFinding, gaps_by_class, shift_by_gaps
from raxss.uncertainty.validation import CALIBRATED, UNCALIBRATED, ValidationReport, cross_fitted

logger = logging.getLogger("raxss")

#: Settings of training that window classifiers follow, or that `check_settings` refuses.
USED_AT_ONCE = ("class_weight", "validation_fraction", "series_loss_weight")
WINDOWS_TO_LOOK_AT = 1024  # before training, by networks that take thresholds from the data
SAMPLES_TO_LOOK_AT = 2**24  # of all their variates: fewer windows where these are very long


@contextmanager
def quiet() -> Iterator[None]:
    """No lines and warnings about fits on a part of the series: the fit on all of them gives its own."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RAxSSWarning)
            yield
    finally:
        logger.setLevel(level)


def drawn_seed(random_state: Any) -> int:
    """The seed itself, or one drawn from a generator or, for None, from numpy's."""
    if isinstance(random_state, int | np.integer):
        if not 0 <= random_state < 2**63:
            raise ConfigError(
                f"random_state is {random_state}; a whole number from 0 to 2**63 - 1 is needed."
            )
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def augmentation_for(
    config: Config, window_length: int, *, n_series: int, trains: bool
) -> AugmentationConfig:
    """The changes of training windows; ``"auto"`` is light for few series and strong for many.

    It is none where a window is a row of features, and unless the backbone ``trains`` by gradients.
    """
    if isinstance(config.augmentation, AugmentationConfig):
        return config.augmentation
    if not trains or window_length <= ROW_LENGTH:
        return AugmentationConfig()
    chosen: dict[str, Any] = dict(STRONG if n_series >= MANY_SERIES else LIGHT)
    return AugmentationConfig(**chosen)


def chosen_settings(config: Config, plan: WindowPlan, augmentation: AugmentationConfig) -> dict[str, Any]:
    """Parameters of the estimator that `fit` chose from the data, for fits on a part of them.

    Such a fit would choose by the size of its part: other windows, and below 400 series no network. Search and
    tuning of the decision threshold judge the model that is fitted on all series.

    Parameters
    ----------
    config
        With the members of a mixture named (`raxss.estimator.at_once.with_members`).

    Examples
    --------
    >>> chosen = chosen_settings(Config(), WindowPlan(window_length=64, stride=8, reason=""), AugmentationConfig())
    >>> chosen["window_length"], chosen["stride"], chosen["augmentation"]["flip"]
    (64, 8, 0.0)
    """
    return {
        "backbone_options": dict(config.backbone.backbone_options),
        "window_length": plan.window_length,
        "stride": plan.stride,
        "augmentation": asdict(augmentation),
    }


def fresh_learner(
    config: Config, n_variates: int, window_length: int, n_classes: int, *, seed: int
) -> tuple[Learner | None, nn.Module]:
    """The backbone, with initial weights that depend on the seed alone, and what of it is trained by gradients.

    The latter has the initial temperature; it is None for a window classifier.
    """
    check_window(n_variates, window_length)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = build_backbone(
            config.backbone.backbone,
            n_variates=n_variates,
            window_length=window_length,
            n_outputs=n_outputs_for(n_classes),
            options=config.backbone.backbone_options,
        )
        check_network(backbone)
        check_settings(config, backbone)
        in_features = config.retrieval.space == "features"
        if (
            in_features
            and weighting_named(config.aggregation.weighting).needs_retrieval
            and not callable(getattr(backbone, "features", None))
        ):  # refused now rather than after training
            features_of(backbone, torch.zeros(2, n_variates, window_length))
        if not is_fitted_at_once(backbone):  # else they are among its features
            numbers = {"share_missing": config.backbone.share_missing, "context": config.backbone.context}
            shape = n_variates, window_length, n_outputs_for(n_classes)
            backbone = with_numbers(backbone, *shape, **numbers)
        heads = None
        if config.learns_from_features:
            backbone.eval()
            with torch.no_grad():
                width = features_of(backbone, torch.zeros(2, n_variates, window_length)).shape[1]
            gated = weighting_named(config.aggregation.weighting).needs_gate
            heads = FeatureHeads(width, projection=config.retrieval.projection, gated=gated)
    network = trained_part(backbone)
    if network is None:
        return None, backbone
    if n_parameters(network) == 0:
        raise BackboneError(
            f"backbone {type(backbone).__name__} has no parameters, so there is nothing to train. Add a layer, "
            "such as torch.nn.Linear, as its head."
        )
    learned = config.learns_temperature_by_gradient
    return Learner(network, temperature=initial_temperature(config), learned=learned, heads=heads), backbone


def initial_temperature(config: Config) -> float:
    """The temperature as set, or the first value of one that is learned."""
    temperature = config.aggregation.temperature
    return 0.1 if temperature == "learned" else float(temperature)


def announce_training(network: nn.Module, pool: WindowPool, plan: TrainingPlan, *, n_validation: int) -> None:
    """Log what will be trained."""
    logger.info(
        "training %s on %d windows of %d series, %d at a time, for up to %d epochs",
        describe(network),
        len(pool),
        pool.n_series,
        plan.batch_size,
        plan.max_epochs,
    )
    if n_validation and not plan.chooses_epoch:
        logger.info("%d validation series are too few to choose an epoch by; the last is kept", n_validation)


def look_at_gaps(
    pools: Sequence[WindowPool],
    backbone: nn.Module,
    series: Sequence[Series],
    groups: NDArray[Any] | None,
    *,
    stride: int,
    share_missing: bool,
    seed: int,
) -> GapFinding | None:
    """How far gaps tell the class of the training series, of which the first pool is made; None without gaps.

    Masks and context go to networks that take them. Where gaps tell the class and are not an input, training plants
    them.
    """
    pool = pools[0]
    for item in pools:
        item.has_rows_for(backbone)
    windows = {"window_length": pool.window_length, "stride": stride}
    finding = gaps_by_class(series, pool.targets.cpu().numpy(), groups, **windows, seed=seed)
    if finding is None:
        return None
    logger.info(finding.describe_gaps())
    if share_missing:
        logger.info("the share of missing samples is an input of the backbone (share_missing)")
    elif finding.may_differ:
        pool.plants_gaps = True
        logger.info("gaps of the other classes are planted on training windows, so that they tell nothing")
    return finding


def gaps_learned(
    finding: GapFinding | None,
    predictor: Predictor,
    series: Sequence[Series],
    targets: NDArray[np.int64],
    *,
    train: NDArray[np.int64],  # places of the training series, the others were not trained on
    folds: NDArray[np.int64],  # of the training series; -1 where they are not predicted out of fold
    seed: int,
) -> GapFinding | None:
    """The finding with what the fitted model makes of gaps; warns where its scores follow them.

    Gaps are imposed on series that the model was not fitted on and, by the backbone without their fold, on training
    series. A model knows the samples of the series that it was fitted on: they take the part of the others only
    where there are too few of these.
    """
    if finding is None or not finding.differ:
        return finding
    fold = np.full(len(series), -1)
    fold[train] = folds
    unseen = fold >= 0
    unseen[np.setdiff1d(np.arange(len(series)), train)] = True
    scorer = PlainScorer(predictor, fold)
    finding = shift_by_gaps(finding, scorer, series, targets, tested=np.flatnonzero(unseen), seed=seed)
    if finding.shift is None:
        everything = np.arange(len(series))
        finding = shift_by_gaps(
            finding, scorer, series, targets, tested=everything, of_training=True, seed=seed
        )
    if finding.learned:
        warnings.warn(
            f"{finding.notes[0]} Its scores are not about the signal alone. Set share_missing=False, "
            "balance the gaps of the classes, or leave out series with many of them.",
            GapsLearnedWarning,
            stacklevel=3,
        )
    else:
        logger.log(logging.WARNING if finding.shift is None else logging.INFO, finding.describe())
    return finding


def warn_of_unused_settings(config: Config, augmentation: AugmentationConfig, backbone: nn.Module) -> None:
    """Log, as a warning, the settings of training by gradients that were changed, where nothing is trained so."""
    default = TrainingConfig()
    changed = [
        item.name
        for item in fields(TrainingConfig)
        if item.name not in USED_AT_ONCE
        and getattr(config.training, item.name) != getattr(default, item.name)
    ]
    changed += ["augmentation"] if augmentation != AugmentationConfig() else []
    if changed:
        logger.warning(
            "%s %s no effect: the backbone %s is fitted at once, without training by gradients. Choose a network "
            "as backbone%s, or leave the defaults.",
            " and ".join(filter(None, [", ".join(changed[:-1]), changed[-1]])),
            "has" if len(changed) == 1 else "have",
            type(backbone).__name__,
            f" (a mixture has one from {MANY_SERIES} series on)" if isinstance(backbone, Mixture) else "",
        )


def show_windows(backbone: nn.Module, pool: WindowPool, *, seed: int) -> None:
    """Give a network with a method ``look_at`` some training windows, drawn by the seed, before training."""
    look_at = getattr(backbone, "look_at", None)
    if callable(look_at):
        most = max(SAMPLES_TO_LOOK_AT // (len(pool.strip) * pool.window_length), 1)
        drawn = np.random.default_rng(seed).permutation(len(pool))[: min(WINDOWS_TO_LOOK_AT, most)]
        look_at(pool.gather(torch.from_numpy(drawn).to(pool.starts.device)))


def validation_split(
    labels: NDArray[Any], groups: NDArray[Any] | None, *, fraction: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of training and validation series."""
    everything = np.arange(len(labels)), np.arange(0)
    if fraction == 0:
        return everything
    train, validation = hold_out(labels, groups=groups, fraction=fraction, seed=seed)
    missing = set(np.unique(labels).tolist()) - set(np.unique(labels[train]).tolist())
    if len(validation) == 0 or missing:
        logger.warning(
            "could not set aside a validation set (%d series in %s groups); the last epoch is used",
            len(labels),
            "no" if groups is None else len(np.unique(groups)),
        )
        return everything
    return train, validation


def describe_windows(
    lengths: Sequence[int],
    *,
    requested: int | Literal["auto"],
    window_length: int,
    stride: int,
    reason: str = "",
    n_neighbors: int = 0,
) -> tuple[str, bool]:
    """One line about the training windows, and whether they are shorter than requested or mostly padded.

    ``reason`` is that of a window length that was chosen; its padding is expected. ``n_neighbors`` is m, 0 where no
    neighbours are needed.

    >>> describe_windows([300, 900], requested=256, window_length=256, stride=128)
    ('windows have 256 samples at a stride of 128, 1 to 6 a series.', False)
    """
    counts = [len(window_starts(length, window_length=window_length, stride=stride)) for length in lengths]
    fewest, most = min(counts), max(counts)
    per_series = f"{fewest} a series" if fewest == most else f"{fewest} to {most} a series"
    if most == 1:
        per_series = "each series is one window"
    n_short = sum(length < window_length for length in lengths)
    padded = f"; {n_short} of {len(lengths)} series are shorter and are padded with zeros" if n_short else ""
    n_few = sum(count <= n_neighbors for count in counts)
    if n_few and most > 1:
        padded += (
            f"; {n_few} of {len(lengths)} series have fewer than {n_neighbors + 1} windows, so that these "
        )
        padded += f"have fewer than {n_neighbors} neighbours"
    if requested == "auto":
        return (
            f"windows have {window_length} samples ({reason}) at a stride of {stride}, {per_series}{padded}.",
            False,
        )
    if window_length < requested:
        start = f"window_length={requested} is longer than every series: windows have {window_length} samples"
        return f"{start}, and {per_series}{padded}.", True
    line = f"windows have {window_length} samples at a stride of {stride}, {per_series}{padded}."
    return line, 2 * n_short > len(lengths)


def log_windows(
    lengths: Sequence[int], plan: WindowPlan, *, requested: int | Literal["auto"], n_neighbors: int
) -> None:
    """Log how series were cut into windows; as a warning where that was not to be expected."""
    line, unexpected = describe_windows(
        lengths,
        requested=requested,
        window_length=plan.window_length,
        stride=plan.stride,
        reason=plan.reason,
        n_neighbors=n_neighbors,
    )
    logger.log(logging.WARNING if unexpected else logging.INFO, line)


def check_usable_windows(pools: Sequence[WindowPool], classes: NDArray[Any]) -> None:
    """Refuse a class without any usable training window; log how many series have none.

    The first pool is that of the training series, the second, if there is one, that of the validation series.
    """
    for pool, part in zip(pools, ("training", "validation"), strict=False):
        without = int((pool.n_windows == 0).sum())
        if without:
            logger.warning(
                "%d of %d %s series have no usable window (more than half of the samples of each are missing) and "
                "are left out",
                without,
                pool.n_series,
                part,
            )
    targets = pools[0].targets.cpu().numpy()
    n_windows = np.bincount(targets, weights=pools[0].n_windows, minlength=len(classes))
    empty = [(str(classes[index]), int((targets == index).sum())) for index in np.flatnonzero(n_windows == 0)]
    if not empty:
        return
    what = "no class has" if len(empty) == len(classes) else "some classes do not have"
    found = ", ".join(f"{label!r} ({count} series)" for label, count in empty)
    raise DataError(
        f"{what} a usable training window: in every window of {found} more than half of the samples are missing; "
        "needed is one window of each class at least. Set a smaller window_length, so that windows fit between "
        "the gaps, crop the series to where there is signal, or leave the class out."
    )


def check_calibration_part(labels: NDArray[Any], classes: NDArray[Any], method: str) -> None:
    """Refuse validation series that a calibration cannot be fitted on, before training rather than after."""
    missing = sorted(set(classes.tolist()) - set(labels.tolist()), key=str)
    if missing:
        raise DataError(
            f"calibration = {method!r} is fitted on the validation set, but of its {len(labels)} series with "
            f"usable windows none is of class {', '.join(map(repr, missing))}; needed is one of each class at "
            "least. Give fit more groups, a larger validation_fraction or a validation set of your own, or set "
            "calibration = 'none'."
        )


def window_pool(
    scaled: list[Series],
    targets: NDArray[np.int64],
    config: Config,
    *,
    window_length: int,
    seed: int,
    device: torch.device,
    marks_padding: bool = False,
    with_context: bool = False,
    bar: Callable[[list[Series]], AbstractContextManager[Callable[[float], None] | None]],
) -> WindowPool:
    """Windows of scaled series with their supports, for Alg. 1; ``bar`` shows the progress of retrieval."""
    shape: dict[str, Any] = {"window_length": window_length, "stride": config.windows.stride}
    cutting = shape | {"device": device, "marks_padding": marks_padding, "with_context": with_context}
    retrieval, weighting = config.retrieval, weighting_named(config.aggregation.weighting)
    if retrieval.refresh != "never":  # equal until the network has features to compare
        without = [windows_without_shape(item.samples, **shape) for item in scaled]
        equal = [np.where(nonfinite, np.nan, 0.0) for _, nonfinite in without]
        return WindowPool(scaled, targets, equal, [flat for flat, _ in without], **cutting)
    if not weighting.needs_retrieval or retrieval.space == "features":
        return WindowPool.of_equals(scaled, targets, **cutting)
    with bar(scaled) as on_progress:
        settings = retrieval_settings(config.retrieval, **shape, device=device)
        found = cached_retrieve_many([item.samples for item in scaled], **settings, on_progress=on_progress)
    influences = [weighting.pool_influence(item.support, seed=seed + i) for i, item in enumerate(found)]
    pool = WindowPool(scaled, targets, influences, [item.flat for item in found], **cutting)
    pool.has_neighbors = np.array([item.has_neighbors for item in found])
    return pool


def support_in_batch(config: Config, window_length: int, *, n_series: int) -> BatchSupport | None:
    """Retrieval among the windows of a batch, of the signal or of features; None where training has none."""
    retrieval, weighting = config.retrieval, weighting_named(config.aggregation.weighting)
    in_features = retrieval.refresh == "batch"
    if not weighting.needs_retrieval or not (in_features or retrieval.bank == "batch"):
        return None

    def support(batch: Batch, compared: Tensor | None) -> Tensor:
        vectors, present = batch.values, batch.present
        if compared is not None and in_features:
            vectors, present = compared[:, None], None
        found = batch_support(
            vectors,
            batch.series,
            batch.starts,
            batch.flat,
            measure="cosine" if in_features else retrieval.measure,
            n_neighbors=retrieval.n_neighbors,
            exclusion=retrieval.samples_of("exclusion", window_length),
            n_series=n_series,
            present=present,
        )
        return weighting.batch_influence(found, batch.series, n_series)

    return support


def epoch_refresh(config: Config, window_length: int, *, seed: int) -> Refresh | None:
    """Support from the features of all windows, computed after every epoch; None where training needs none."""
    retrieval, weighting = config.retrieval, weighting_named(config.aggregation.weighting)
    in_features = retrieval.refresh != "never" and weighting.needs_retrieval
    if not in_features and not config.learns_from_features:
        return None
    return EpochRefresh(
        n_neighbors=retrieval.n_neighbors,
        exclusion=retrieval.samples_of("exclusion", window_length),
        weighting=weighting.name,
        of_training=retrieval.refresh == "epoch" and config.training.series_loss_weight > 0,
        of_validation=in_features,
        seed=seed,
    )


def run_fingerprint(
    series: Sequence[Series],
    targets: NDArray[np.int64],
    groups: NDArray[Any] | None,
    validation: NDArray[np.int64],
    *,
    config: Config,
    seed: int,
) -> str:
    """Hash of settings, data, split and seed; names and paths do not enter."""
    digest = hashlib.sha256(f"{config.hash} {seed}".encode())
    for item in series:
        digest.update(f"{item.samples.shape} {item.samples.dtype}".encode())
        digest.update(np.ascontiguousarray(item.samples).data)
    digest.update(np.ascontiguousarray(targets).data)
    digest.update(repr(None if groups is None else groups.tolist()).encode())
    digest.update(validation.astype(np.int64).data)
    return digest.hexdigest()[:16]


def feature_scaling(backbone: nn.Module, pool: WindowPool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and deviation of each feature over the training windows; empty for a network without features."""
    if is_fitted_at_once(backbone):
        drawn = torch.from_numpy(drawn_windows(pool, seed=0)[:WINDOWS_TO_LOOK_AT]).to(pool.starts.device)
        backbone.eval()
        with torch.inference_mode():
            mean, scale = moments([features_of(backbone, pool.gather(drawn))])
        return mean.cpu().numpy(), scale.cpu().numpy()
    if callable(getattr(backbone, "features", None)):
        return feature_moments(backbone, pool)
    return np.zeros(0), np.ones(0)


def fitted_calibration(
    method: str, predictor: AnyPredictor, series: list[Series], targets: NDArray[np.int64]
) -> Calibration:
    """A map fitted on the windows of validation series."""
    posteriors = list(predictor.window_probabilities(series))
    logger.info("calibrating on %d windows of %d validation series", sum(map(len, posteriors)), len(series))
    return fitted_on_windows(calibration_named(method), posteriors, targets)


def fitted_on_windows(
    kind: type[Calibration], posteriors: Sequence[NDArray[np.float64]], targets: NDArray[np.int64]
) -> Calibration:
    """A map from the windows of each series ``(n_windows, C)``, each window with the target of its series."""
    return kind.fit(np.concatenate(posteriors), np.repeat(targets, list(map(len, posteriors))))


def validation_predictions(predictor: AnyPredictor, series: list[Series]) -> list[Prediction]:
    """Uncalibrated predictions of validation series; neighbours are kept where smoothing needs them."""
    found = predictor.predictions(series, with_lists=False)
    return [item if predictor.smoothing else replace(item, retrieval=None) for item in found]


def fitted_series_calibration(
    method: str, predictions: Sequence[Prediction], targets: NDArray[np.int64]
) -> Calibration:
    """A map fitted on the scores of validation series."""
    logger.info("calibrating on the scores of %d validation series", len(predictions))
    return calibration_named(method).fit(_sums(predictions), targets)


def validation_report_of(
    predictions: Sequence[Prediction],
    targets: NDArray[np.int64],
    groups: NDArray[Any] | None,
    config: Config,
    *,
    n_classes: int,
    seed: int,
) -> ValidationReport:
    """The validation report, with a calibration cross-fitted over groups: see `raxss.uncertainty.validation`."""
    method, smoothing = config.calibration.calibration, config.aggregation.smoothing
    sums = _sums(predictions)
    probabilities = {UNCALIBRATED: sums}
    if method != "none":
        kind = calibration_named(method)

        def by_series(train: NDArray[np.int64], test: NDArray[np.int64]) -> NDArray[np.float64]:
            return kind.fit(sums[train], targets[train])(sums[test])

        def by_windows(train: NDArray[np.int64], test: NDArray[np.int64]) -> NDArray[np.float64]:
            posteriors = [predictions[place].usable_posteriors for place in train]
            calibration = fitted_on_windows(kind, posteriors, targets[train])
            return np.stack([_recalibrated(predictions[place], calibration, smoothing) for place in test])

        fit_and_apply = by_windows if config.calibration.calibration_level == "window" else by_series
        found = cross_fitted(targets, groups, fit_and_apply, n_classes=n_classes, seed=seed)
        probabilities |= {} if found is None else {CALIBRATED: found}
    n_groups = len(targets) if groups is None else len(np.unique(groups))
    report = ValidationReport.of(targets, probabilities, n_groups=n_groups, settings=config.score_hash)
    alpha = config.calibration.conformal_alpha
    if alpha > 0 and (why := report.why_no_sets(alpha, calibrated=method != "none")):
        logger.info("there will be no prediction sets: %s", why)
    return report


def mean_supports(
    pools: Sequence[WindowPool], predictions: Sequence[Prediction], config: Config
) -> list[float]:
    """The mean support of each series, as in prediction; empty where there is none.

    Support of the signal is that of all series, in feature space that of the validation series: the network knows
    its training windows. A series in which no window has a neighbour is left out: its support 0 was not measured.
    """
    weighting = weighting_named(config.aggregation.weighting)
    if config.retrieval.space == "signal":
        found = [weighting.mean_support(mean) for pool in pools for mean in _means_by_series(pool)]
        return [mean for mean in found if mean is not None]
    if not weighting.needs_retrieval and config.aggregation.smoothing == 0:
        return []
    supports = [item.aggregation.support for item in predictions]
    return [float(np.nanmean(support)) for support in supports if np.nan_to_num(support).any()]


def _means_by_series(pool: WindowPool) -> list[float]:
    values = pool.influence.double().cpu()
    sums = torch.zeros(pool.n_series, dtype=torch.float64).index_add(0, pool.series.cpu(), values)
    known = zip(sums, pool.n_windows, pool.has_neighbors, strict=True)
    return [float(total) / n for total, n, has_neighbors in known if n and has_neighbors]


def _sums(predictions: Sequence[Prediction]) -> NDArray[np.float64]:
    return np.stack([item.aggregation.series_probability for item in predictions])


def _recalibrated(item: Prediction, calibration: Calibration, smoothing: float) -> NDArray[np.float64]:
    """The score ``(C,)`` of a series whose window posteriors are calibrated by another map."""
    posteriors = calibration(item.aggregation.posteriors)
    if smoothing > 0 and item.retrieval is not None:
        mute = np.isnan(item.aggregation.influence) | item.retrieval.flat
        posteriors = smooth_posteriors(posteriors, item.retrieval.neighbors, smoothing, left_out=mute)
    score: NDArray[np.float64] = item.aggregation.weights @ posteriors  # twin of `series_probability`
    return score


def fitted_temperature(predictor: AnyPredictor, series: list[Series], targets: NDArray[np.int64]) -> float:
    """The temperature with the least loss on validation series."""
    parts = [prediction.aggregation for prediction in predictor.predictions(series, with_lists=False)]
    posteriors = [
        torch.from_numpy(part.posteriors if part.smoothed is None else part.smoothed) for part in parts
    ]
    return fit_temperature(posteriors, [part.influence for part in parts], targets)
