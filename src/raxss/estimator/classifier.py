"""`RAxSSClassifier`: the method as a scikit-learn estimator.

    series, labels -> fit -> predict_proba (n_series, C), predict, predict_set, explain -> SeriesEvidence, report

`fit` prepares, retrieves, trains and calibrates (fit.py). Predictions and explanations share one path
(method/inference.py), so what is explained is what was predicted. persistence.py writes and reads model
folders.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import nn

from raxss._core.atomic import output_lock
from raxss._core.progress import ProgressBar, share_bar
from raxss._core.renames import RenamedAttribute
from raxss.data.prepare.preprocessing import Preparation, PreparationConfig, Scaling, check_series
from raxss.data.prepare.rates import ModelPreparation, check_rates_of_model, other_rate
from raxss.data.series import Series, SeriesCollection
from raxss.data.training_overlap import TrainingRecord, describe_data
from raxss.errors import SignalWarning
from raxss.estimator import at_once, inputs, learning, out_of_fold
from raxss.estimator import fit as steps
from raxss.estimator.config import Config
from raxss.estimator.encoder import ModelEncoder, encoder_of
from raxss.estimator.evidence import summary_of, traced
from raxss.estimator.persistence import describe_model, load_model, save_model
from raxss.estimator.with_library import CaseModel
from raxss.explain.export.report import report_of
from raxss.explain.export.report.page import Report
from raxss.explain.series_evidence import SeriesEvidence
from raxss.method.aggregation import AggregationConfig
from raxss.method.backbones.beats import FEWEST_SECONDS_OF_BEATS, holds_beats, shows_beats
from raxss.method.backbones.protocol import BackboneConfig
from raxss.method.backbones.window_classifiers import is_fitted_at_once
from raxss.method.class_weights import class_weights
from raxss.method.context import takes_context
from raxss.method.feature_heads import FeatureHeads, heads_in_use
from raxss.method.inference import Prediction, Predictor
from raxss.method.retrieval.front import RetrievalConfig
from raxss.method.training.loop import Callback, train
from raxss.method.training.settings import VALIDATION_FRACTION, TrainingConfig
from raxss.method.weighting.protocol import weighting_named
from raxss.method.window_scorer import pick_device
from raxss.method.windows import WindowConfig, plan_windows, window_starts
from raxss.uncertainty.calibration import CalibrationConfig, Decision, Level, Method, calibration_in_use
from raxss.uncertainty.calibration.maps import Calibration
from raxss.uncertainty.decision import INTERRUPTED, DecisionThreshold, threshold_in_use
from raxss.uncertainty.gaps import GapFinding
from raxss.uncertainty.learning import LearningReport
from raxss.uncertainty.not_learned import warn_if_not_learned
from raxss.uncertainty.ood import OODDetector
from raxss.uncertainty.reference_forest import ReferenceForest
from raxss.uncertainty.summary import ScoredSeries, UncertaintySummary
from raxss.uncertainty.validation import ValidationReport

if TYPE_CHECKING:
    from raxss.explain.faithfulness.model_adapter import WindowModelAdapter
    from raxss.explain.faithfulness.running import SeriesFaithfulness
    from raxss.library.case_library import CaseLibrary

logger = logging.getLogger("raxss")

SETTINGS = tuple(Config().parameters())
"""Parameters of the estimator that are settings of the method."""


class RAxSSClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classify series of any length from sparsely sampled windows, weighted by within-series retrieval.

    Series may be given as a `SeriesCollection`, a list of arrays of differing lengths, each
    ``(n_samples,)`` or ``(n_variates, n_samples)``, a 3-D array ``(n_series, n_variates, n_samples)``, or a
    2-D array of series of one length (then ``n_features_in_`` is enforced).

    Parameters
    ----------
    backbone, backbone_options
        What scores a window. Fitted at once on features of windows: ``"mixture"`` (the default: ridge and extra
        trees, from 400 series on also a network), ``"ridge"``, ``"logistic"``, ``"extra-trees"``, ``"forest"``, or
        a scikit-learn classifier. Networks, trained by gradients: ``"convnet-fine"``, ``"convnet"``,
        ``"patchtst"``, ``"timesnet"``, ``"moderntcn"``, ``"dlinear"``, ``"gru"``, ``"lstm"``, ``"mamba"``,
        ``"multiview"``, ``"ensemble"``, or a callable ``(n_variates, window_length, n_outputs, **options) -> torch
        module``. Settings of training by gradients have no effect on window classifiers, or are refused.
    window_length, stride
        L, and the step from one window to the next, in samples. ``"auto"``: from the lengths of the series, see
        `raxss.method.windows.plan_windows`. Up to 1536 samples a series is one window; else a window is a quarter
        of the median length, or half of it up to 1024 samples, at most ten seconds; from 400 series on half of it
        up to 4096 samples. The stride is an eighth of a window.
    scaling
        ``"train"``: one mean and deviation a variate, fitted on the training set. ``"series"``: z-score of
        each series. ``"none"``.
    missing
        ``"refuse"``: NaN in the samples is an error, unless the series says that its gaps are marked. ``"nan"``:
        NaN is a missing sample; infinities are still refused. Statistics skip missing samples, networks get 0 and a
        mask, windows are compared over the samples that both have, and one with more than half missing has weight
        0.
    share_missing
        Give the network the share of missing samples of each window as one more input. By default gaps are no
        information: where they differ by class, those of the other classes are planted on training windows.
    context
        Give the backbone the context of each window as further inputs: its position in the series, and its level
        and amplitude against the series (`raxss.method.context.window_context`). For series that are divided into
        several windows; evidence then says how much of a score comes from it. A network that is a member of a
        mixture does not get it.
    weighting, temperature
        Eq. (2): ``"support"``; ``"uniform"`` is plain SSS; ``"inverse"``, ``"shuffled"`` and ``"random"``
        are controls. ``"gated"``: support plus what a gate learns from the window's features by the series loss;
        of a model fitted so, ``"gated-inverse"`` and ``"gated-shuffled"`` are the controls of the sum, and the
        others leave the gate out. ``"rank"``: the order of support alone, with its controls ``"rank-inverse"`` and
        ``"rank-shuffled"``. Or a name of your own, see `raxss.method.weighting.register_weighting`. tau > 0, or
        ``"learned"``.
    smoothing
        lambda, from 0 to 1: at prediction a window's (calibrated) posterior becomes (1 - lambda) times its own
        plus lambda times the mean of its neighbors'. Evidence shows both.
    space, measure, n_neighbors, exclusion, spread
        Eq. (1): compare windows of the signal or their features; ``"pearson"`` or ``"cosine"``; m; how far
        neighbors must start from the query, and from one another, in samples (int) or window lengths
        (float).
    refresh
        When support in feature space is computed in training. ``"never"``: training uses equal weights, and
        retrieval begins at prediction. ``"epoch"``: from the features of all windows at the start of each epoch.
        ``"batch"``: among the windows of each batch, so that the series loss trains the features to be compared.
        Support within a batch is lower than that over the series, which prediction uses: the best of a few
        neighbors are less alike than the best of all. Fewer than five windows of a series in a batch, on average,
        are warned of, as for a gate or a learned tau.
    projection
        With ``refresh="batch"``: compare features by the cosine of so many linear combinations, learned with the
        network. 0: by the features themselves.
    bank, bank_size
        Which windows may be neighbors. ``"series"``: all of the series, exactly. ``"local"``: the ``bank_size``
        windows nearest in time; ``"sampled"``: so many, in stretches spread evenly over the series; both for
        recordings that are too long to compare all with all, and the evidence says so. ``"batch"``: in
        training those of the batch, at prediction all.
    calibration, calibration_level
        ``"none"``, or the calibration of probabilities: ``"isotonic"`` (SSS's headline has it),
        ``"temperature"`` or ``"venn-abers"``. Of window posteriors, before they are added up (``"window"``), or of
        the sum (``"series"``); then evidence shows both numbers, and contributions add up to the uncalibrated one.
        Fitted on the validation set, which must have series of every class.
    conformal_alpha
        `predict_set` may leave the true class out of this share of the sets; 0: evidence has no sets. They need
        1 / alpha - 1 validation series at least.
    decision_threshold
        How `predict` chooses a class. ``"argmax"``: the most probable one. ``"tuned"``: by the threshold, for more
        than two classes by a factor for each, that has the largest balanced accuracy out of fold, so that a rare
        class counts as much as the others. Out of fold: on the validation set, or with window classifiers
        alone on training series, each scored by the model without its group, if there are 10 of each class; else on
        X, by refits in a grouped cross-validation with three folds, which takes three times as long. An improvement
        within one standard error is not made use of. Probabilities stay as they are.
    augmentation
        Random changes of training windows that leave their class as it is, drawn anew for each window in each step:
        a mapping of any of ``flip`` and ``reverse`` (probabilities that the sign changes, or that time runs
        backwards), ``gain`` (deviation of the logarithm of a factor), ``noise`` (largest deviation of added white
        noise, in units of the scaled signal), ``stretch`` (0.1: time runs .9 to 1.1 times as fast), ``mask`` (up to
        this share of a window is hidden), ``mirror`` (variates, from 0, whose signs change together in every second
        window), ``rotate`` (deviation in radians of a turn of the variates, three by three) and ``drop``
        (probability that a variate is 0). Support from the signal is that of the windows as they are. ``"auto"``:
        a little gain, noise, stretch and mask; from 400 series on more of them, and flips (see
        `raxss.method.augmentation.STRONG`); none for windows of up to 16 samples. None: none.
    window_loss_weight, series_loss_weight
        How much the loss of single windows and of the series probability count (the paper: 0 and 1). With
        the window loss alone, weights and temperature enter validation and prediction, not the gradient.
    class_weight
        For classes that are rare: how much the losses of a series count, by its class. ``"balanced"``: n / (C n_c)
        for a class with n_c of the n training series. A mapping of labels to numbers, of which ratios matter. None:
        all count the same. With early stopping, the epoch is then chosen by the accuracy with these weights.
    lr, start_lr, final_lr, warmup_steps, schedule_steps, weight_decay, batch_size, max_epochs, patience
        Adam with warm-up and a cosine; windows a batch; when to stop. ``"auto"``: an eighth of the windows a batch,
        from 8 to 64; 20 epochs, or as many more (200 at most) or fewer as make 600 to 4000 steps, unless the loss
        falls below .005 before; a quarter of the epochs, and with fewer than 50 validation series no early
        stopping: the last epoch is kept.
    validation_fraction
        Share of the series, whole groups at a time, for early stopping, calibration and a learned temperature. 0:
        none. ``"auto"``: an eighth for networks; window classifiers are fitted on all series, and validated on the
        same by fits without each fold.
    precision
        ``"auto"``, ``"float32"`` or ``"bfloat16"`` in training. Prediction is always float32.
    update_batch_norm
        Recompute the statistics of batch-norm layers over the training windows after every epoch. False: running
        averages of the last steps, which after few steps do not hold.
    device
        ``"auto"``, ``"cpu"``, ``"cuda"``.
    callbacks
        Objects with the methods of `raxss.method.training.loop.Callback`.
    verbose
        1 shows a progress bar with the time left on stderr, in fitting and predicting.
    random_state
        Draws validation split, initial weights, dropout, augmentation and the order of windows.

    Attributes
    ----------
    classes_, n_variates_, window_length_, stride_, preparation_, backbone_, scaling_, temperature_, history_,
    seed_, interrupted_
    calibration_, calibration_level_
        The fitted `raxss.uncertainty.calibration.Calibration`, or None, and what it is a map of.
    validation_report_
        `raxss.uncertainty.validation.ValidationReport`: reliability on the validation set, and the scores that
        prediction sets are made with. None without a validation set.
    ood_detector_
        `raxss.uncertainty.ood.OODDetector`: evidence warns of series unlike the training series.
    gap_finding_
        `raxss.uncertainty.gaps.GapFinding`: whether missing samples differ by class, and whether the scores follow
        them; None where none are missing.
    learning_report_
        `raxss.uncertainty.learning.LearningReport`: accuracy on training series, and on validation series or out of
        fold, beside chance and the reference forest. Where a model has not learned, `fit` gives a
        `NotLearnedWarning` with the likely cause.
    reference_forest_
        `raxss.uncertainty.reference_forest.ReferenceForest`, on statistics of whole series.
    heads_
        Gate and projection, `raxss.method.feature_heads.FeatureHeads`, or None.
    decision_threshold_
        The tuned `raxss.uncertainty.decision.DecisionThreshold`, with its figures and what it was tuned on; None
        with ``decision_threshold="argmax"``.

    Notes
    -----
    Weighting, temperature, smoothing, space, measure, n_neighbors, exclusion, spread, bank, bank_size and stride
    can be changed after fitting, with `set_params`; conformal_alpha, too. A calibration, a gate, a projection or a
    decision threshold that was fitted can be switched off and on.

    Examples
    --------
    >>> from raxss.data.datasets import load_synthetic
    >>> series = load_synthetic()
    >>> model = RAxSSClassifier(window_length=128, stride=128, random_state=0).fit(series)
    >>> model.predict_proba(series[:2]).shape, model.predict_set(series[:3], alpha=0.2).shape
    ((2, 2), (3, 2))
    >>> for scored in model.score_series(series[:2]):
    ...     print(scored.series.name, scored.interval.method, scored.notes)
    motif-000 block bootstrap over windows ()
    noise-001 block bootstrap over windows ()
    >>> model.seen_in_training(series[7:10]), model.seen_in_training(load_synthetic(2, seed=0))
    (['training', 'training', 'training'], ['no', 'no'])
    >>> model.report(series[:2], name="two channels")
    Report('two channels', 2 channels)
    """

    # Set by `fit` or `from_pretrained`.
    config_: Config
    classes_: NDArray[Any]
    n_variates_: int
    window_length_: int
    stride_: int
    preparation_: str
    scaling_: Scaling
    backbone_: nn.Module
    feature_mean_: NDArray[np.float64]
    feature_scale_: NDArray[np.float64]
    heads_: FeatureHeads | None
    temperature_: float
    calibration_: Calibration | None
    calibration_level_: str
    validation_report_: ValidationReport | None
    ood_detector_: OODDetector | None
    decision_threshold_: DecisionThreshold | None
    gap_finding_: GapFinding | None
    learning_report_: LearningReport | None
    reference_forest_: ReferenceForest | None
    training_data_: dict[str, Any]
    seed_: int
    _checked: tuple[dict[str, Any], Config] | None = None  # settings, and the Config made of them

    def __init__(
        self,
        backbone: Any = BackboneConfig.backbone,
        *,
        backbone_options: Mapping[str, Any] | None = None,
        window_length: int | Literal["auto"] = WindowConfig.window_length,
        stride: int | Literal["auto"] = WindowConfig.stride,
        scaling: Literal["train", "series", "none"] = PreparationConfig.scaling,
        missing: Literal["refuse", "nan"] = PreparationConfig.missing,
        share_missing: bool = BackboneConfig.share_missing,
        context: bool = BackboneConfig.context,
        weighting: str = AggregationConfig.weighting,
        temperature: float | Literal["learned"] = AggregationConfig.temperature,
        smoothing: float = AggregationConfig.smoothing,
        space: Literal["signal", "features"] = RetrievalConfig.space,
        measure: Literal["pearson", "cosine"] = RetrievalConfig.measure,
        n_neighbors: int = RetrievalConfig.n_neighbors,
        exclusion: int | float = RetrievalConfig.exclusion,
        spread: int | float = RetrievalConfig.spread,
        bank: Literal["series", "batch", "local", "sampled"] = RetrievalConfig.bank,
        bank_size: int = RetrievalConfig.bank_size,
        refresh: Literal["never", "epoch", "batch"] = RetrievalConfig.refresh,
        projection: int = RetrievalConfig.projection,
        calibration: Method = CalibrationConfig.calibration,
        calibration_level: Level = CalibrationConfig.calibration_level,
        conformal_alpha: float = CalibrationConfig.conformal_alpha,
        decision_threshold: Decision = CalibrationConfig.decision_threshold,
        augmentation: Mapping[str, Any] | Literal["auto"] | None = "auto",
        window_loss_weight: float = TrainingConfig.window_loss_weight,
        series_loss_weight: float = TrainingConfig.series_loss_weight,
        lr: float = TrainingConfig.lr,
        start_lr: float = TrainingConfig.start_lr,
        final_lr: float = TrainingConfig.final_lr,
        warmup_steps: int = TrainingConfig.warmup_steps,
        schedule_steps: int = TrainingConfig.schedule_steps,
        weight_decay: float = TrainingConfig.weight_decay,
        batch_size: int | Literal["auto"] = TrainingConfig.batch_size,
        max_epochs: int | Literal["auto"] = TrainingConfig.max_epochs,
        patience: int | Literal["auto"] = TrainingConfig.patience,
        validation_fraction: float | Literal["auto"] = TrainingConfig.validation_fraction,
        precision: Literal["auto", "float32", "bfloat16"] = TrainingConfig.precision,
        update_batch_norm: bool = TrainingConfig.update_batch_norm,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        device: str = "auto",
        callbacks: Sequence[Callback] | None = None,
        verbose: int = 0,
        random_state: Any = None,
    ) -> None:
        self.backbone = backbone
        self.backbone_options = backbone_options
        self.window_length = window_length
        self.stride = stride
        self.scaling = scaling
        self.missing = missing
        self.share_missing = share_missing
        self.context = context
        self.weighting = weighting
        self.temperature = temperature
        self.smoothing = smoothing
        self.space = space
        self.measure = measure
        self.n_neighbors = n_neighbors
        self.exclusion = exclusion
        self.spread = spread
        self.bank = bank
        self.bank_size = bank_size
        self.refresh = refresh
        self.projection = projection
        self.calibration = calibration
        self.calibration_level = calibration_level
        self.conformal_alpha = conformal_alpha
        self.decision_threshold = decision_threshold
        self.augmentation = augmentation
        self.window_loss_weight = window_loss_weight
        self.series_loss_weight = series_loss_weight
        self.lr = lr
        self.start_lr = start_lr
        self.final_lr = final_lr
        self.warmup_steps = warmup_steps
        self.schedule_steps = schedule_steps
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.precision = precision
        self.update_batch_norm = update_batch_norm
        self.class_weight = class_weight
        self.device = device
        self.callbacks = callbacks
        self.verbose = verbose
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "nan"
        return tags

    # Settings ---------------------------------------------------------------------------------------------

    @classmethod
    def from_config(cls, config: Config, **parameters: Any) -> Self:
        """An unfitted estimator with these settings; ``parameters`` override them."""
        settings = config.parameters()
        for name in ("backbone_options", "class_weight"):
            settings[name] = settings[name] or None  # as the signature writes none
        return cls(**(settings | parameters))

    @classmethod
    def from_preset(cls, name: str, *, signal: str | None = None, **parameters: Any) -> Self:
        """An unfitted estimator with the settings of `paper`, `sss`, `tuned` or `recommended`.

        `recommended` is the estimator's default, `RAxSSClassifier()`.

        Parameters
        ----------
        signal
            ``"eeg"``, ``"ecg"`` or ``"motion"``, for what `tuned` does otherwise with such signals.
        **parameters
            Any parameter of the estimator, on top.

        >>> RAxSSClassifier.from_preset("paper").backbone
        'patchtst'
        """
        return cls.from_config(Config.preset(name, signal=signal), **parameters)

    @property
    def config(self) -> Config:
        """The current settings, checked."""
        given = self.get_params(deep=False)
        settings = {name: given[name] for name in SETTINGS}
        if self._checked is not None and self._checked[0] == settings:
            return self._checked[1]
        for name in ("backbone_options", "augmentation"):
            settings[name] = {} if settings[name] is None else settings[name]
        return Config.from_parameters(settings)

    def check_settings(self) -> Config:
        """Check the current settings, and cache the result until one of them changes."""
        self._checked = None
        config = self.config
        given = {name: getattr(self, name) for name in SETTINGS}
        for name in ("backbone_options", "augmentation", "class_weight"):  # may be changed in place
            given[name] = deepcopy(given[name])
        self._checked = given, config
        return config

    @property
    def current_config(self) -> Config:
        """The settings of `fit`, with those that may be changed since as they are now."""
        _ = self._calibration_in_use, self._heads_in_use, self._threshold_in_use  # or an error: not fitted
        if self._checked is not None and self.config is self._checked[1]:  # unchanged since
            return self.config_
        now = self.config.tables()
        now["retrieval"]["refresh"] = self.config_.retrieval.refresh  # of training
        changeable = {stage: now[stage] for stage in ("retrieval", "aggregation", "calibration")}
        stride = now["windows"]["stride"]
        return self.config_.updated(
            changeable | {"windows": {"stride": self.stride_ if stride == "auto" else stride}}
        )

    # Fitting ----------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        *,
        validation: Any = None,
        checkpoint: Path | str | None = None,
        resume: bool = False,
    ) -> Self:
        """Fit network, calibration and validation report on labelled series.

        Parameters
        ----------
        X, y
            Series and one label each. Labels may also be in the series themselves.
        groups
            Groups (patients) that must not be in training and validation set at once. May also be in the series.
        validation
            Labelled `Series` for early stopping and calibration; an empty list: none. By default,
            ``validation_fraction`` of X is set aside.
        checkpoint, resume
            File to write after every epoch, and whether to continue from it.
        """
        inputs.forget_fit(self)
        config = self.check_settings()
        config.check_fit(validation_given=validation is not None and len(validation) > 0)
        device = pick_device(self.device)
        series = inputs.as_series(X, estimator=self, reset=True)
        labels = inputs.as_labels(y, series)
        groups = inputs.as_groups(groups, series)
        n_given = len(series)
        validation_groups: NDArray[Any] | None = None
        if validation is not None and len(validation):
            others = inputs.as_series(validation, estimator=self, reset=False)
            labels = np.concatenate([labels, inputs.as_labels(None, others)])
            inputs.warn_of_shared_groups(groups, others)
            series = series + others
            validation_groups = inputs.groups_or_own(others)
        check_series(series)
        self.preparation_ = inputs.common_preparation(series)
        inputs.check_rates(series)
        self.classes_, targets = inputs.as_classes(labels)
        self.seed_ = steps.drawn_seed(self.random_state)
        self.n_variates_ = series[0].n_variates
        lengths = [item.n_samples for item in series]
        rate = inputs.known_rate(series)
        is_chosen = config.windows.window_length == "auto"
        beats = (is_chosen or at_once.chooses_members(config)) and shows_beats(
            [item.samples for item in series[:n_given]], rate
        )
        windows = plan_windows(
            config.windows,
            lengths[:n_given] if is_chosen else lengths,  # chosen by the training series alone
            rate=rate,
            least_seconds=FEWEST_SECONDS_OF_BEATS if beats else 0.0,
        )
        beats = beats and holds_beats(windows.window_length, rate)
        config = at_once.with_members(config, lengths[:n_given], self.n_variates_, rate=rate, has_beats=beats)
        self.window_length_, self.stride_ = windows.window_length, windows.stride
        requested = config.windows.window_length
        shape = self.n_variates_, self.window_length_, len(self.classes_)
        learner, self.backbone_ = steps.fresh_learner(config, *shape, seed=self.seed_)
        augmentation = steps.augmentation_for(
            config, self.window_length_, n_series=n_given, trains=learner is not None
        )
        augmentation.check_variates(self.n_variates_)
        if learner is None:
            steps.warn_of_unused_settings(config, augmentation, self.backbone_)
        chosen = steps.chosen_settings(config, windows, augmentation)
        config = replace(config, augmentation=augmentation, windows=windows.settings(requested))
        fraction = config.training.validation_fraction
        crosses = validation is None and fraction == "auto" and learner is None  # validated out of fold
        if validation is None:
            fraction = 0.0 if crosses else VALIDATION_FRACTION if fraction == "auto" else fraction
            train_indices, held_out = steps.validation_split(
                labels, groups, fraction=fraction, seed=self.seed_
            )
            validation_groups = None if groups is None else groups[held_out]
        else:
            train_indices, held_out = np.arange(n_given), np.arange(n_given, len(series))
            inputs.check_validation(series, labels, n_given)
        config = replace(config, training=replace(config.training, validation_fraction=fraction))

        self.scaling_ = Scaling.fit([series[index] for index in train_indices], config.preparation.scaling)
        pools = [
            steps.window_pool(
                [self.scaling_.apply(series[index]) for index in part],
                targets[part],
                config,
                window_length=self.window_length_,
                seed=self.seed_,
                device=device,
                marks_padding=getattr(self.backbone_, "marks_padding", False),
                with_context=takes_context(self.backbone_),
                bar=functools.partial(self._bar, "retrieving"),
            )
            for part in (train_indices, held_out)
            if len(part)
        ]
        steps.check_usable_windows(pools, self.classes_)
        pool, validation_pool = pools[0], pools[1] if len(pools) == 2 else None
        train_groups = None if groups is None else groups[train_indices]
        folds = np.full(len(train_indices), -1)
        if learner is None:
            folds = at_once.series_folds(targets[train_indices], train_groups, seed=self.seed_)
        rare = np.zeros(0, dtype=np.int64)  # scored out of fold, too, where classes are weighed alike
        if crosses:
            some = at_once.some_series(folds, pool.n_windows > 0, seed=self.seed_)
            rare = at_once.rare_series(
                folds, pool.n_windows > 0, targets[train_indices], some, seed=self.seed_
            )
            usable = np.isin(np.arange(len(folds)), some)
            validation_indices, validation_groups = train_indices[usable], groups
        else:
            usable = np.zeros(0, dtype=bool) if validation_pool is None else validation_pool.n_windows > 0
            validation_indices = held_out[usable]
        validation_series = [series[index] for index in validation_indices]
        validation_targets, n_validation = targets[validation_indices], len(validation_indices)
        rare_indices = train_indices[rare]
        rare_series = [series[index] for index in rare_indices]
        method, level = config.calibration.calibration, config.calibration.calibration_level
        if method != "none":
            steps.check_calibration_part(labels[validation_indices], self.classes_, method)

        tuning = out_of_fold.plan_tuning(
            config.calibration.decision_threshold,
            (series[:n_given], labels[:n_given], groups, None if validation is None else series[n_given:]),
            (validation_series + rare_series, np.concatenate([validation_targets, targets[rare_indices]])),
            self.classes_,
            seed=self.seed_,
        )
        setting = config.training.class_weight
        weights = class_weights(setting, self.classes_, targets[train_indices]) if setting else None
        plan = config.training.for_windows(len(pool), n_validation=n_validation)
        compares = weighting_named(config.aggregation.weighting).needs_retrieval
        n_neighbors = config.retrieval.n_neighbors if compares else 0
        steps.log_windows(pool.n_samples.tolist(), windows, requested=requested, n_neighbors=n_neighbors)
        gaps = steps.look_at_gaps(
            pools,
            self.backbone_,
            [series[index] for index in train_indices],
            train_groups,
            stride=self.stride_,
            share_missing=config.backbone.share_missing,
            seed=self.seed_,
        )
        history: list[dict[str, Any]] = []
        if is_fitted_at_once(self.backbone_):
            self.backbone_.to(device)
            sizes = {"n_classes": len(self.classes_), "seed": self.seed_}
            row = at_once.fit_at_once(self.backbone_, pool, folds, train_groups, weights, **sizes)
            history.append(row)
        self.best_epoch_, self.interrupted_ = len(history), False
        self.temperature_, self.heads_ = steps.initial_temperature(config), None
        if learner is not None:
            learner = learner.to(device)
            for item in pools:
                item.has_rows_for(learner.backbone)
            steps.show_windows(learner.backbone, pool, seed=self.seed_)
            steps.announce_training(learner.backbone, pool, plan, n_validation=n_validation)
            with nullcontext() if checkpoint is None else output_lock(checkpoint):
                trained = train(
                    learner,
                    pool,
                    validation_pool,
                    config=plan,
                    seed=self.seed_,
                    fingerprint=steps.run_fingerprint(
                        series, targets, groups, held_out, config=config, seed=self.seed_
                    ),
                    checkpoint=None if checkpoint is None else Path(checkpoint),
                    resume=resume,
                    augmentation=augmentation,
                    batch_support=steps.support_in_batch(config, self.window_length_, n_series=pool.n_series),
                    refresh=steps.epoch_refresh(config, self.window_length_, seed=self.seed_),
                    class_weights=weights,
                    callbacks=[*(self.callbacks or ()), *([ProgressBar()] if self.verbose else [])],
                )
            history = trained.history
            self.best_epoch_, self.interrupted_ = trained.best_epoch, trained.interrupted
            self.temperature_ = learner.temperature.item()
            self.heads_ = None if learner.heads is None else learner.heads.cpu().double()
            for item in pools:
                item.has_rows_for(self.backbone_)  # of which the network may be a part
            at_once.weigh_members(self.backbone_, validation_pool, weights, seed=self.seed_)
        self.history_ = pd.DataFrame(history)
        self.feature_mean_, self.feature_scale_ = steps.feature_scaling(self.backbone_, pool)
        self.calibration_, self.calibration_level_ = None, level

        def held_out_predictor(
            calibration: Calibration | None, *further: NDArray[np.int64]
        ) -> Predictor | at_once.FoldPredictor:
            predictor, places = self._predictor(calibration), (np.flatnonzero(usable), *further)
            return at_once.FoldPredictor(predictor, folds[np.concatenate(places)]) if crosses else predictor

        if method != "none" and level == "window":
            self.calibration_ = steps.fitted_calibration(
                method, held_out_predictor(None), validation_series, validation_targets
            )
        if config.fits_temperature_on_validation and n_validation:
            self.temperature_ = steps.fitted_temperature(
                held_out_predictor(self.calibration_), validation_series, validation_targets
            )
        self.validation_report_ = None
        predictions: list[Prediction] = []
        if n_validation:
            predictions = steps.validation_predictions(held_out_predictor(None), validation_series)
            if method != "none" and level == "series":
                self.calibration_ = steps.fitted_series_calibration(method, predictions, validation_targets)
            self.validation_report_ = steps.validation_report_of(
                predictions,
                validation_targets,
                None if validation_groups is None else validation_groups[usable],
                config,
                n_classes=len(self.classes_),
                seed=self.seed_,
            )
        rare_predictions: list[Prediction] = []
        if len(rare):
            predictor = at_once.FoldPredictor(self._predictor(None), folds[rare])
            rare_predictions = steps.validation_predictions(predictor, rare_series)
        self.decision_threshold_ = None
        if tuning is not None:
            self.decision_threshold_ = tuning.run(
                self,
                held_out_predictor(self.calibration_, rare),
                settings=config.decision_hash,
                parameters=chosen,
            )
            self.interrupted_ |= self.decision_threshold_.source == INTERRUPTED
        self.ood_detector_ = OODDetector.of(series, steps.mean_supports(pools, predictions, config))
        self.gap_finding_ = steps.gaps_learned(
            gaps,
            self._predictor(None),
            series,
            targets,
            train=train_indices,
            folds=folds,
            seed=self.seed_,
        )
        self.training_data_ = describe_data(series, labels, groups, held_out)
        self.learning_report_, self.reference_forest_ = learning.logged_report(
            self,
            series,
            targets,
            train=train_indices,
            pool=pool,
            evaluation=learning.validation_posteriors(
                predictions + rare_predictions, np.concatenate([validation_indices, rare_indices])
            ),
            groups=learning.groups_of_all(groups, validation_groups, len(series)),
            weights=weights,
            plan=None if learner is None else plan,
        )
        self.config_ = config  # last: it marks the model as fitted
        warn_if_not_learned(self.learning_report_)
        return self

    # Prediction -------------------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Series probabilities ``(n_series, C)``, columns as in ``classes_``."""
        series = self.known_series(X, warn=True)
        with self._bar("predicting", series) as on_progress:
            found = self.predictor().predictions(series, with_lists=False, on_progress=on_progress)
            return np.stack([item.probability for item in found])

    def predict_set(self, X: Any, *, alpha: float | None = None) -> NDArray[np.bool_]:
        """Which classes cannot be ruled out: ``(n_series, C)``, columns as in ``classes_``.

        A set holds the true class in a share 1 - alpha of the series at least, if these are exchangeable with the
        validation set (see `raxss.uncertainty.conformal`). Several classes in a set, or none, are a reason to
        abstain. Where the validation set is too small for the level, every set holds every class, with a warning.

        Parameters
        ----------
        alpha
            In place of ``conformal_alpha``.
        """
        probability = self.predict_proba(X)
        summary = self.uncertainty_summary()
        alpha = summary.alpha if alpha is None else alpha
        if why := summary.why_no_sets(alpha):
            warnings.warn(f"every prediction set holds every class: {why}.", SignalWarning, stacklevel=2)
        return summary.sets(probability, alpha)

    def score_series(self, X: Any) -> Iterator[ScoredSeries]:
        """Probability, interval, prediction set and notes of each series, one after the other."""
        return self._scored(self.known_series(X, warn=True))

    def seen_in_training(self, X: Any) -> list[str]:
        """Whether the model was fitted on each series, recognised by content, not by name.

        Returns
        -------
        For each series ``training``, ``validation``, ``training or validation`` (models fitted before the two were
        kept apart), ``in part`` (a stretch, or the same in other units), ``no``, or ``unknown`` (the model keeps no
        digests); see `raxss.data.training_overlap`.
        """
        series = self.known_series(X)
        with TrainingRecord.of(self.training_data_).states(series) as states:
            return list(states)

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each series, from ``classes_``: the most probable, or by ``decision_threshold_``."""
        probability = self.predict_proba(X)
        threshold = self._threshold_in_use
        decided = probability.argmax(axis=1) if threshold is None else threshold.decide(probability)
        return self.classes_[decided]

    def window_probabilities(self, X: Any) -> Iterator[NDArray[np.float64]]:
        """The posteriors of the windows of each series, ``(n_windows_i, C)``, one series after the other.

        Calibrated where the model is, in the order of time, as `explain` shows them. Windows with samples that are
        not finite have no weight and are left out.
        """
        return self._window_probabilities(self.known_series(X, warn=True))

    def explain(self, X: Any) -> Any:
        """Evidence of the prediction of a series: windows, weights and neighbors.

        Parameters
        ----------
        X
            One `Series` or array ``(n_samples,)`` or ``(n_variates, n_samples)``; or a list of them, then a
            list comes back.

        Returns
        -------
        `SeriesEvidence`, whose contributions sum to the result of `predict_proba`.
        """
        if isinstance(X, list | tuple | SeriesCollection):
            return list(self.explain_each(X))
        return next(self.explain_each([X if isinstance(X, Series) else Series(X)]))

    def explain_each(
        self, X: Any, *, on_progress: Callable[[float], None] | None = None
    ) -> Iterator[SeriesEvidence]:
        """`explain` many series one after the other, with the memory of one.

        Parameters
        ----------
        X
            Several series, in any of the forms that `predict_proba` takes.
        on_progress
            Called with the share of all work done, also within a series. Without it, ``verbose=1`` draws a bar.
        """
        return self._evidence(self.known_series(X), on_progress)

    def report(self, X: Any, *, name: str | None = None, positive: Any = None) -> Report:
        """Evidence as one HTML page: the series of a recording ranked, each with signal, windows and neighbours.

        Parameters
        ----------
        X
            One series, or those of one recording, usually its channels.
        name, positive
            Name of the recording, and the class that channels are ranked by when the page opens; for defaults see
            `raxss.explain.report_of`.

        Returns
        -------
        `raxss.explain.Report`, displayed in Jupyter, with ``save("report.html")``.
        """
        several = isinstance(X, list | tuple | SeriesCollection)
        series = X if several else [X if isinstance(X, Series) else Series(X)]
        return report_of(self.explain_each(series), name=name, model=describe_model(self), positive=positive)

    def faithfulness(self, X: Any, *, seed: int = 0) -> SeriesFaithfulness:
        """Faithfulness tests of the evidence of one series.

        Deletion in the order of the evidence, counterfactual windows, retrieval and parameter randomisation: some
        hundred predictions. `raxss faithfulness` does it for many series and ends with a verdict.

        Parameters
        ----------
        X
            One `Series` or array ``(n_samples,)`` or ``(n_variates, n_samples)``.
        seed
            Of surrogates, random orders and randomised layers.

        Returns
        -------
        `raxss.explain.faithfulness.SeriesFaithfulness`
        """
        from raxss.explain.faithfulness.running import faithfulness_of  # slow to import

        (series,) = self.known_series([X if isinstance(X, Series) else Series(X)])
        return faithfulness_of(self.model_adapter(), series, seed=seed)

    def model_adapter(self) -> WindowModelAdapter:
        """Adapter of the fitted model for `raxss.explain.faithfulness`."""
        from raxss.explain.faithfulness.model_adapter import WindowModelAdapter

        return WindowModelAdapter.of(self.predictor(), tuple(self.classes_.tolist()))

    def encoder(self) -> ModelEncoder:
        """What a case library needs of the fitted model, see `raxss.library.CaseLibrary`."""
        check_is_fitted(self, "config_")
        return encoder_of(self)

    def with_library(self, library: CaseLibrary, mode: str = "evidence", **settings: Any) -> CaseModel:
        """The fitted model with labelled cases of other recordings; ``settings`` are those of `CaseModel`."""
        return CaseModel(self, library, mode=mode, **settings)

    def known_series(self, X: Any, *, warn: bool = False) -> list[Series]:
        """Series in any accepted form, checked against the training data (variates, preparation, rate)."""
        check_is_fitted(self, "config_")
        series = inputs.as_series(X, estimator=self, reset=False)
        check_series(series, n_variates=self.n_variates_)
        inputs.check_preparation(series, self.preparation_)
        check_rates_of_model(series, self.training_data_["rates"])
        for item in series if warn else ():
            for note in other_rate(item, self.training_data_["rates"]):
                warnings.warn(note, SignalWarning, stacklevel=3)
        return series

    def preparation_of_model(self, *, resample: bool = False, gap: float | None = None) -> ModelPreparation:
        """The preparation of the training data; ``apply(series)`` prepares raw series likewise.

        Parameters
        ----------
        resample
            Bring series whose rate differs by more than a hundredth to the nearest rate of the training series.
        gap
            Samples of this value are missing; that of the training series, if they had one, is known.
        """
        check_is_fitted(self, "config_")
        rates = tuple(float(rate) for rate in self.training_data_["rates"])
        return ModelPreparation(Preparation.parse(self.preparation_), rates, resample, gap)

    def _window_probabilities(self, series: list[Series]) -> Iterator[NDArray[np.float64]]:
        predictor = self.predictor()
        with self._bar("predicting", series) as on_progress:
            yield from predictor.window_probabilities(series, on_progress=on_progress)

    def _scored(self, series: list[Series]) -> Iterator[ScoredSeries]:
        predictor, summary = self.predictor(), self.uncertainty_summary()
        with self._bar("predicting", series) as on_progress, summary.seen.states(series) as states:
            predictions = predictor.predictions(series, with_lists=False, on_progress=on_progress)
            for prediction, seen in zip(predictions, states, strict=True):
                yield summary.score(prediction, seen_in_training=seen)

    def _evidence(
        self, series: list[Series], on_progress: Callable[[float], None] | None
    ) -> Iterator[SeriesEvidence]:
        predictor = self.predictor()
        with self._bar("predicting", series, quiet=on_progress is not None) as bar:
            yield from traced(self, predictor, series, on_progress or bar)

    def uncertainty_summary(self) -> UncertaintySummary:
        """Validation report, OOD detector and calibration, under the current settings."""
        return summary_of(self, self._calibration_in_use, self._threshold_in_use)

    @property
    def _threshold_in_use(self) -> DecisionThreshold | None:
        return threshold_in_use(self.decision_threshold_, self.config.calibration.decision_threshold)

    @property
    def _calibration_in_use(self) -> Calibration | None:
        requested = self.config.calibration
        return calibration_in_use(
            self.calibration_,
            requested.calibration,
            fitted_level=self.calibration_level_,
            level=requested.calibration_level,
        )

    @property
    def _heads_in_use(self) -> FeatureHeads | None:
        return heads_in_use(self.heads_, projection=self.projection, weighting=self.weighting)

    def predictor(self) -> Predictor:
        """The fitted network under the current settings, for predictions and for other weights."""
        check_is_fitted(self, "config_")
        return self._predictor(self._calibration_in_use)

    def _predictor(self, calibration: Calibration | None) -> Predictor:
        config = self.config
        learned = config.aggregation.temperature == "learned"
        return Predictor(
            backbone=self.backbone_,
            device=pick_device(self.device),
            scaling=self.scaling_,
            window_length=self.window_length_,
            stride=self.stride_ if config.windows.stride == "auto" else config.windows.stride,
            retrieval=config.retrieval,
            weighting=config.aggregation.weighting,
            temperature=self.temperature_ if learned else float(config.aggregation.temperature),
            smoothing=float(config.aggregation.smoothing),
            calibration=calibration if self.calibration_level_ == "window" else None,
            series_calibration=calibration if self.calibration_level_ == "series" else None,
            feature_mean=self.feature_mean_,
            feature_scale=self.feature_scale_,
            heads=self._heads_in_use,
            seed=self.seed_,
        )

    def _bar(
        self, doing: str, series: list[Series], *, quiet: bool = False
    ) -> AbstractContextManager[Callable[[float], None] | None]:
        if quiet or not self.verbose:
            return nullcontext()
        length, stride = self.window_length_, self.stride_ if self.stride == "auto" else self.stride
        n_windows = sum(
            len(window_starts(item.n_samples, window_length=length, stride=stride)) for item in series
        )
        return share_bar(doing, n_windows, unit="windows")

    # Former names -----------------------------------------------------------------------------------------

    trial_ = RenamedAttribute("validation_report_")
    familiar_ = RenamedAttribute("ood_detector_")
    answers = RenamedAttribute("score_series")

    # Model folders ----------------------------------------------------------------------------------------

    def save_pretrained(self, folder: Path | str, *, overwrite: bool = False) -> Path:
        """Write a model folder (weights, settings, history, model card), atomically."""
        check_is_fitted(self, "config_")
        return save_model(self, Path(folder), overwrite=overwrite)

    @classmethod
    def from_pretrained(cls, folder: Path | str, *, backbone: Any = None, device: str = "auto") -> Self:
        """Read a model folder.

        Parameters
        ----------
        backbone
            The callable that built the network, where it was one of your own.
        """
        return load_model(cls, Path(folder), backbone=backbone, device=device)
