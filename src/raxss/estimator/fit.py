"""What does training begin with, and what is fitted when it is over?

    labels, groups -> series to learn from, series to validate on
    series, targets -> WindowPool: every window with its support
    settings, seed -> Learner: a network with fresh weights; a fingerprint of the run
    trained network, validation series -> calibration, temperature, trial

Next: classifier.py calls these in order, and method/training/loop.py in their middle.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from torch import Tensor, nn

from raxss.data.series import Series
from raxss.data.splits import hold_out
from raxss.errors import BackboneError, ConfigError, DataError, NotLearnedWarning
from raxss.estimator.config import Config
from raxss.method.aggregation import smooth_posteriors
from raxss.method.backbones.protocol import build_backbone, features_of, n_outputs_for, n_parameters
from raxss.method.backbones.sizes import check_network, check_window
from raxss.method.feature_heads import FeatureHeads
from raxss.method.inference import Prediction, Predictor, retrieval_settings
from raxss.method.retrieval.batch import batch_support
from raxss.method.retrieval.cache import cached_retrieve_many
from raxss.method.retrieval.front import windows_without_shape
from raxss.method.training.feature_support import EpochRefresh, Refresh, feature_moments
from raxss.method.training.loop import fit_temperature, pool_posteriors
from raxss.method.training.settings import TrainingPlan
from raxss.method.training.step import BatchSupport, Learner, steps_an_epoch
from raxss.method.training.window_pool import Batch, WindowPool
from raxss.method.weighting.protocol import weighting_named
from raxss.method.windows import window_starts
from raxss.uncertainty.calibration import calibration_named
from raxss.uncertainty.calibration.maps import Calibration
from raxss.uncertainty.validation import CALIBRATED, UNCALIBRATED, ValidationReport, cross_fitted

logger = logging.getLogger("raxss")

WINDOWS_TO_LOOK_AT = 1024  # before training, by networks that take thresholds from the data
MOST_WINDOWS_TO_CHECK = 65_536  # of the training windows, for whether the model fits them
LEARNED = 0.25  # of the way from chance to all right; a model below it has not learned its training series
SAMPLES_TO_LOOK_AT = 2**24  # of all their variates: fewer windows where these are very long


def drawn_seed(random_state: Any) -> int:
    """The seed itself, or one drawn from a generator or, for None, from numpy's.

    >>> drawn_seed(69421)
    69421
    """
    if isinstance(random_state, int | np.integer):
        if not 0 <= random_state < 2**63:
            raise ConfigError(
                f"random_state is {random_state}; a whole number from 0 to 2**63 - 1 is needed."
            )
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def fresh_learner(
    config: Config, n_variates: int, window_length: int, n_classes: int, *, seed: int
) -> Learner:
    """The network with its initial weights, which the seed alone decides, and the temperature to begin with."""
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
        heads = _fresh_heads(config, backbone, n_variates, window_length)
    if n_parameters(backbone) == 0:
        raise BackboneError(
            f"backbone {type(backbone).__name__} has no parameters, so there is nothing to train. Add a layer, "
            "such as torch.nn.Linear, as its head."
        )
    temperature = config.aggregation.temperature
    return Learner(
        backbone,
        temperature=0.1 if temperature == "learned" else float(temperature),
        learned=config.learns_temperature_by_gradient,
        heads=heads,
    )


def show_windows(backbone: nn.Module, pool: WindowPool, *, seed: int) -> None:
    """Let a network that asks for it (``look_at``) see some training windows before it learns from any.

    Which ones, the seed alone decides.
    """
    look_at = getattr(backbone, "look_at", None)
    if callable(look_at):
        most = max(SAMPLES_TO_LOOK_AT // (len(pool.strip) * pool.window_length), 1)
        drawn = np.random.default_rng(seed).permutation(len(pool))[: min(WINDOWS_TO_LOOK_AT, most)]
        look_at(pool.gather(torch.from_numpy(drawn).to(pool.starts.device)))


def _fresh_heads(
    config: Config, backbone: nn.Module, n_variates: int, window_length: int
) -> FeatureHeads | None:
    """What reads the features of this network, where anything does."""
    if not config.learns_from_features:
        return None
    backbone.eval()
    with torch.no_grad():
        width = features_of(backbone, torch.zeros(2, n_variates, window_length)).shape[1]
    gated = weighting_named(config.aggregation.weighting).needs_gate
    return FeatureHeads(width, projection=config.retrieval.projection, gated=gated)


def validation_split(
    labels: NDArray[Any], groups: NDArray[Any] | None, *, fraction: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Series to learn from, and series that early stopping looks at; indices.

    Examples
    --------
    >>> kept, held = validation_split(np.array(["a", "b"] * 4), None, fraction=0.25, seed=0)
    >>> len(kept), len(held)
    (6, 2)
    """
    everything = np.arange(len(labels)), np.arange(0)
    if fraction == 0:
        return everything
    kept, held = hold_out(labels, groups=groups, fraction=fraction, seed=seed)
    missing = set(np.unique(labels).tolist()) - set(np.unique(labels[kept]).tolist())
    if len(held) == 0 or missing:
        logger.warning(
            "no validation part could be set aside (%d series in %s groups); the last epoch is kept",
            len(labels),
            "no" if groups is None else len(np.unique(groups)),
        )
        return everything
    return kept, held


def describe_windows(
    lengths: Sequence[int], *, asked: int, window_length: int, stride: int
) -> tuple[str, bool]:
    """What the windows of training became, in one line, and whether that is other than was asked for.

    Parameters
    ----------
    lengths
        Samples of each series.
    asked, window_length
        The setting, and what it became: no window is longer than the longest series.

    Examples
    --------
    >>> describe_windows([150, 150], asked=1024, window_length=150, stride=128)[0]
    'window_length=1024 is longer than every series: windows have 150 samples, and each series is one window.'
    >>> describe_windows([300, 900], asked=256, window_length=256, stride=128)
    ('windows have 256 samples at a stride of 128, 1 to 6 a series.', False)
    """
    counts = [len(window_starts(length, window_length=window_length, stride=stride)) for length in lengths]
    fewest, most = min(counts), max(counts)
    if most == 1:
        per_series = "each series is one window"
    else:
        per_series = f"{fewest} a series" if fewest == most else f"{fewest} to {most} a series"
    n_short = sum(length < window_length for length in lengths)
    padded = f"; {n_short} of {len(lengths)} series are shorter and are padded with zeros" if n_short else ""
    if window_length < asked:
        start = f"window_length={asked} is longer than every series: windows have {window_length} samples"
        return f"{start}, and {per_series}{padded}.", True
    line = f"windows have {window_length} samples at a stride of {stride}, {per_series}{padded}."
    return line, 2 * n_short > len(lengths)


def balanced_training_accuracy(backbone: nn.Module, pool: WindowPool) -> float:
    """Mean recall over the classes of the training series, each predicted by the mean posterior of its windows."""
    every = -(-len(pool) // MOST_WINDOWS_TO_CHECK)
    posteriors = pool_posteriors(backbone, pool, every=every).cpu().numpy()
    series, targets = pool.series[::every].cpu().numpy(), pool.targets.cpu().numpy()
    sums = np.zeros((pool.n_series, posteriors.shape[1]))
    np.add.at(sums, series, posteriors)
    scored = np.unique(series)  # a series whose windows all lie in gaps has none
    right, truth = sums[scored].argmax(axis=1) == targets[scored], targets[scored]
    return float(np.mean([right[truth == label].mean() for label in np.unique(truth)]))


def warn_if_not_learned(
    reached: float, pool: WindowPool, plan: TrainingPlan, *, n_classes: int, n_epochs: int
) -> None:
    """Warn where a model predicts its own training series no better, or hardly better, than chance.

    Parameters
    ----------
    reached
        From `balanced_training_accuracy`; chance is 1/C there, whatever the share of each class.
    """
    chance = 1 / n_classes
    needed = chance + LEARNED * (1 - chance)
    if reached >= needed:
        return
    steps = n_epochs * steps_an_epoch(plan, len(pool))
    warnings.warn(
        f"the model does not fit the {pool.n_series} series that it was trained on: its balanced accuracy on them "
        f"is {reached:.2f} (chance is {chance:.2f}, needed is {needed:.2f} at least), so its scores say little. It "
        f"took {steps} steps of {min(plan.batch_size, len(pool))} windows. Likely causes: too few steps (leave "
        "batch_size and max_epochs at 'auto', or raise max_epochs), windows that do not show the class (try "
        "another window_length or scaling), or labels that do not belong to these series.",
        NotLearnedWarning,
        stacklevel=3,
    )


def check_calibration_part(labels: NDArray[Any], classes: NDArray[Any], method: str) -> None:
    """Refuse validation series that a calibration cannot be fitted on, before training rather than after."""
    missing = sorted(set(classes.tolist()) - set(labels.tolist()), key=str)
    if missing:
        raise DataError(
            f"calibration = {method!r} is fitted on the validation part, but of its {len(labels)} series with "
            f"usable windows none is of class {', '.join(map(repr, missing))}; needed is one of each class at "
            "least. Give fit more groups, a larger validation_fraction or a validation part of your own, or set "
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
    bar: Callable[[list[Series]], AbstractContextManager[Callable[[float], None] | None]],
) -> WindowPool:
    """Scaled series and their supports, ready for Alg. 1.

    Parameters
    ----------
    bar
        Shows how far retrieval for these series is.
    """
    shape: dict[str, Any] = {"window_length": window_length, "stride": config.windows.stride}
    cutting = shape | {"device": device}
    retrieval, weighting = config.retrieval, weighting_named(config.aggregation.weighting)
    if retrieval.refresh != "never":  # all alike until the network has features to compare
        without = [windows_without_shape(item.samples, **shape) for item in scaled]
        equal = [np.where(nonfinite, np.nan, 0.0) for _, nonfinite in without]
        return WindowPool(scaled, targets, equal, [flat for flat, _ in without], **cutting)
    if not weighting.needs_retrieval or retrieval.space == "features":
        return WindowPool.of_equals(scaled, targets, **cutting)
    with bar(scaled) as on_progress:
        settings = retrieval_settings(config.retrieval, **cutting)
        found = cached_retrieve_many([item.samples for item in scaled], **settings, on_progress=on_progress)
    influences = [weighting.pool_influence(item.support, seed=seed + i) for i, item in enumerate(found)]
    return WindowPool(scaled, targets, influences, [item.flat for item in found], **cutting)


def support_in_batch(config: Config, window_length: int, *, n_series: int) -> BatchSupport | None:
    """Retrieval among the windows of a batch, of the signal or of features, where that is what training has."""
    retrieval, weighting = config.retrieval, weighting_named(config.aggregation.weighting)
    in_features = retrieval.refresh == "batch"
    if not weighting.needs_retrieval or not (in_features or retrieval.bank == "batch"):
        return None

    def support(batch: Batch, compared: Tensor | None) -> Tensor:
        vectors = batch.windows if compared is None or not in_features else compared[:, None]
        found = batch_support(
            vectors,
            batch.series,
            batch.starts,
            batch.flat,
            measure="cosine" if in_features else retrieval.measure,
            n_neighbors=retrieval.n_neighbors,
            exclusion=retrieval.samples_of("exclusion", window_length),
            n_series=n_series,
        )
        return weighting.batch_influence(found, batch.series, n_series)

    return support


def epoch_refresh(config: Config, window_length: int, *, seed: int) -> Refresh | None:
    """What is computed from all features after every epoch, where training needs any of it."""
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
    held: NDArray[np.int64],
    *,
    config: Config,
    seed: int,
) -> str:
    """The same for the same settings, data and seed; names and paths do not enter."""
    digest = hashlib.sha256(f"{config.hash} {seed}".encode())
    for item in series:
        digest.update(f"{item.samples.shape} {item.samples.dtype}".encode())
        digest.update(np.ascontiguousarray(item.samples).data)
    digest.update(np.ascontiguousarray(targets).data)
    digest.update(repr(None if groups is None else groups.tolist()).encode())
    digest.update(held.astype(np.int64).data)
    return digest.hexdigest()[:16]


def feature_scaling(backbone: nn.Module, pool: WindowPool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and deviation of each feature over the training windows; empty for a network without features."""
    if callable(getattr(backbone, "features", None)):
        return feature_moments(backbone, pool)
    return np.zeros(0), np.ones(0)


def fitted_calibration(
    method: str, predictor: Predictor, series: list[Series], targets: NDArray[np.int64]
) -> Calibration:
    """From the windows of series that were not learned from."""
    posteriors = list(predictor.window_probabilities(series))
    logger.info("calibrating on %d windows of %d validation series", sum(map(len, posteriors)), len(series))
    return fitted_on_windows(calibration_named(method), posteriors, targets)


def fitted_on_windows(
    kind: type[Calibration], posteriors: Sequence[NDArray[np.float64]], targets: NDArray[np.int64]
) -> Calibration:
    """A map from the windows of each series ``(n_windows, C)``, each window with the target of its series."""
    return kind.fit(
        np.concatenate(posteriors), np.repeat(targets, [len(posterior) for posterior in posteriors])
    )


def validation_predictions(predictor: Predictor, series: list[Series]) -> list[Prediction]:
    """What a chain without calibration says of series that were not learned from."""
    found = predictor.predictions(series, with_lists=False)
    return [item if predictor.smoothing else replace(item, retrieval=None) for item in found]


def fitted_series_calibration(
    method: str, tried: Sequence[Prediction], targets: NDArray[np.int64]
) -> Calibration:
    """From the scores of series that were not learned from."""
    logger.info("calibrating on the scores of %d validation series", len(tried))
    return calibration_named(method).fit(_sums(tried), targets)


def validation_report_of(
    tried: Sequence[Prediction],
    targets: NDArray[np.int64],
    groups: NDArray[Any] | None,
    config: Config,
    *,
    n_classes: int,
    seed: int,
) -> ValidationReport:
    """Probabilities of the validation part, as honest as that part allows: see `raxss.uncertainty.validation`."""
    method, level = config.calibration.calibration, config.calibration.calibration_level
    said = {UNCALIBRATED: _sums(tried)}
    if method != "none":
        kind, judge = calibration_named(method), _by_windows if level == "window" else _by_series

        def fit_and_apply(others: NDArray[np.int64], held: NDArray[np.int64]) -> NDArray[np.float64]:
            return judge(kind, tried, targets, others, held, config.aggregation.smoothing)

        found = cross_fitted(targets, groups, fit_and_apply, n_classes=n_classes, seed=seed)
        said |= {} if found is None else {CALIBRATED: found}
    n_groups = len(targets) if groups is None else len(np.unique(groups))
    trial = ValidationReport.of(targets, said, n_groups=n_groups, settings=config.score_hash)
    alpha = config.calibration.conformal_alpha
    if alpha > 0 and (why := trial.why_no_sets(alpha, calibrated=method != "none")):
        logger.info("there will be no prediction sets: %s", why)
    return trial


def mean_supports(pools: Sequence[WindowPool], tried: Sequence[Prediction], config: Config) -> list[float]:
    """The mean support of each series, as prediction will find it; empty where training had none to compare with.

    Support of the signal is that of all series. In feature space it is that of the validation part: the network
    knows the windows that it has learned from.
    """
    weighting = weighting_named(config.aggregation.weighting)
    if config.retrieval.space == "signal":
        found = [weighting.mean_support(mean) for pool in pools for mean in _means_by_series(pool)]
        return [item for item in found if item is not None]
    if not weighting.needs_retrieval and config.aggregation.smoothing == 0:
        return []
    return [float(np.nanmean(item.aggregation.support)) for item in tried]


def _means_by_series(pool: WindowPool) -> list[float]:
    values = pool.influence.double().cpu()
    sums = torch.zeros(pool.n_series, dtype=torch.float64).index_add(0, pool.series.cpu(), values)
    return [float(total) / n for total, n in zip(sums, pool.n_windows, strict=True) if n]


def _sums(tried: Sequence[Prediction]) -> NDArray[np.float64]:
    return np.stack([item.aggregation.series_probability for item in tried])


def _by_series(
    kind: type[Calibration],
    tried: Sequence[Prediction],
    targets: NDArray[np.int64],
    others: NDArray[np.int64],
    held: NDArray[np.int64],
    _: float,
) -> NDArray[np.float64]:
    sums = _sums(tried)
    return kind.fit(sums[others], targets[others])(sums[held])


def _by_windows(
    kind: type[Calibration],
    tried: Sequence[Prediction],
    targets: NDArray[np.int64],
    others: NDArray[np.int64],
    held: NDArray[np.int64],
    smoothing: float,
) -> NDArray[np.float64]:
    fitted = fitted_on_windows(kind, [tried[place].usable_posteriors for place in others], targets[others])
    told = []
    for place in held:
        item = tried[place]
        posteriors = fitted(item.aggregation.posteriors)
        if smoothing > 0 and item.retrieval is not None:
            mute = np.isnan(item.aggregation.influence) | item.retrieval.flat
            posteriors = smooth_posteriors(posteriors, item.retrieval.neighbors, smoothing, left_out=mute)
        told.append(item.aggregation.weights @ posteriors)  # twin of `series_probability`, as a product
    return np.stack(told)


def fitted_temperature(predictor: Predictor, series: list[Series], targets: NDArray[np.int64]) -> float:
    """The temperature that suits series that were not learned from, by what the predictor adds up."""
    parts = [prediction.aggregation for prediction in predictor.predictions(series, with_lists=False)]
    posteriors = [
        torch.from_numpy(part.posteriors if part.smoothed is None else part.smoothed) for part in parts
    ]
    return fit_temperature(posteriors, [part.influence for part in parts], targets)
