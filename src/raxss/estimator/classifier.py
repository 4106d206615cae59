"""The whole chain behind scikit-learn's contract.

    series, labels -> fit -> predict_proba (n_series, C), predict, explain -> SeriesEvidence

`fit` prepares, retrieves, trains and calibrates (fitting.py). Before this: answering.py has what a fitted model
says, and model_folder.py keeps it. Next: cli/ asks from the command line.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from raxss._core.atomic import output_lock
from raxss._core.progress import ProgressBar
from raxss.data.prepare.preprocessing import Scaling, check_series
from raxss.estimator.answering import Answering
from raxss.estimator.config import Config
from raxss.estimator.fit import (
    balanced_training_accuracy,
    check_calibration_part,
    describe_windows,
    drawn_seed,
    epoch_refresh,
    feature_scaling,
    fitted_calibration,
    fitted_series_calibration,
    fitted_temperature,
    fresh_learner,
    mean_supports,
    run_fingerprint,
    show_windows,
    support_in_batch,
    trial_of,
    tried_series,
    validation_split,
    warn_if_not_learned,
    window_pool,
)
from raxss.estimator.inputs import (
    as_classes,
    as_groups,
    as_labels,
    as_series,
    check_rates,
    check_validation,
    common_preparation,
    forget_fit,
    groups_or_own,
    tell_shared_groups,
)
from raxss.estimator.persistence import describe_data, load_model, save_model
from raxss.method.aggregation import Weighting
from raxss.method.augmentation import AugmentationConfig
from raxss.method.backbones.convnet import ROW_LENGTH
from raxss.method.backbones.protocol import describe
from raxss.method.inference import Prediction
from raxss.method.training.loop import Callback, train
from raxss.method.window_scorer import pick_device
from raxss.uncertainty.calibration import Level, Method
from raxss.uncertainty.ood import Familiar

logger = logging.getLogger("raxss")


class RAxSSClassifier(Answering):
    """Classify series of any length from sparsely sampled windows, weighted by within-series retrieval.

    Series may be given as a `SeriesCollection`, a list of arrays of differing lengths, each
    ``(n_samples,)`` or ``(n_variates, n_samples)``, a 3-D array ``(n_series, n_variates, n_samples)``, or a
    2-D array of series of one length (then ``n_features_in_`` is enforced).

    Parameters
    ----------
    backbone, backbone_options
        The network that scores a window: ``"convnet-fine"``, ``"convnet"``, ``"patchtst"``, ``"timesnet"``,
        ``"moderntcn"``, ``"dlinear"``, ``"gru"``, ``"lstm"``, ``"mamba"``, ``"multiview"``, ``"ensemble"``, or a
        callable ``(n_variates, window_length, n_outputs, **options) -> torch module``.
    window_length, stride
        L, and the step from one window to the next, in samples.
    scaling
        ``"train"``: one mean and deviation a variate, fitted on the training set. ``"series"``: z-score of
        each series. ``"none"``.
    weighting, temperature
        Eq. (2): ``"support"``; ``"uniform"`` is plain SSS; ``"inverse"``, ``"shuffled"`` and ``"random"``
        are controls. ``"gated"``: support plus what a gate learns from the window's features by the series loss;
        of a model fitted so, ``"gated-inverse"`` and ``"gated-shuffled"`` are the controls of the sum, and the
        others leave the gate out. tau > 0, or ``"learned"``.
    smoothing
        lambda, from 0 to 1: at prediction a window's (calibrated) posterior becomes (1 - lambda) times its own
        plus lambda times the mean of its neighbors'. Evidence shows both.
    space, measure, n_neighbors, exclusion, spread
        Eq. (1): compare windows of the signal or their features; ``"pearson"`` or ``"cosine"``; m; how far
        neighbors must start from the query, and from one another, in samples (int) or window lengths
        (float).
    refresh
        Of support in feature space, which changes with the network, in training. ``"never"``: training uses equal
        weights, and retrieval begins at prediction. ``"epoch"``: from the features of all windows as each epoch
        finds them. ``"batch"``: among the windows of each batch, so that the series loss teaches the network to
        compare. Support within a batch is another quantity than that over the series, which prediction uses: the
        best of a few neighbors are less alike than the best of all. The fewer windows of a series a batch holds,
        the further they are apart; fewer than five on average are warned of, as for a gate or a learned tau.
    projection
        With ``refresh="batch"``: compare features by the cosine of so many linear combinations, learned with the
        network. 0: by the features themselves.
    bank, bank_size
        Which windows may be neighbors. ``"series"``: all of the series, exactly. ``"local"``: the ``bank_size``
        windows nearest in time; ``"sampled"``: so many, in stretches spread evenly over the series; both for
        recordings that are too long to compare all with all, and the evidence says so. ``"batch"``: in
        training those of the batch, at prediction all.
    calibration, calibration_level
        ``"none"``, or a map of probabilities to how often they are right: ``"isotonic"`` (SSS's headline has
        it), ``"temperature"`` or ``"venn-abers"``. Of window posteriors, before they are added up
        (``"window"``), or of the sum (``"series"``); then evidence shows both numbers, and contributions add up
        to the uncalibrated one. Fitted on the validation part, which must have series of every class.
    conformal_alpha
        `predict_set` may leave the true class out of this share of the sets; 0: evidence has no sets. They need
        1 / alpha - 1 validation series at least.
    augmentation
        Random changes of training windows that leave their class as it is, drawn anew for each window in each step:
        a mapping of any of ``flip`` and ``reverse`` (probabilities that the sign changes, or that time runs
        backwards), ``gain`` (deviation of the logarithm of a factor), ``noise`` (largest deviation of added white
        noise, in units of the scaled signal), ``stretch`` (0.1: time runs .9 to 1.1 times as fast), ``mask`` (up to
        this share of a window is hidden), ``mirror`` (variates, from 0, whose signs change together in every second
        window), ``rotate`` (deviation in radians of a turn of the variates, three by three) and ``drop``
        (probability that a variate is 0). Support from the signal is that of the windows as they are. ``"auto"``:
        a little gain, noise, stretch and mask, and none for windows of up to 16 samples; None: none.
    window_loss_weight, series_loss_weight
        How much the loss of single windows and of the series probability count (the paper: 0 and 1). With
        the window loss alone, weights and temperature enter validation and prediction, not the gradient.
    lr, start_lr, final_lr, warmup_steps, schedule_steps, weight_decay, batch_size, max_epochs, patience
        Adam with warm-up and a cosine; windows a batch; when to stop. ``"auto"``: an eighth of the windows a batch,
        from 8 to 64; 20 epochs, or as many more (200 at most) as make 600 steps, unless the loss falls below
        .005 before; a quarter of the epochs, and with fewer than 50 validation series no early stopping: the last
        epoch is kept.
    validation_fraction
        Share of the series, whole groups at a time, that early stopping looks at, and that a calibration or a
        learned temperature may be fitted on. 0: none.
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
    classes_, n_variates_, window_length_, preparation_, backbone_, scaling_, temperature_, history_, seed_,
    interrupted_
    calibration_, calibration_level_
        The fitted `raxss.uncertainty.calibration.Calibration`, or None, and what it is a map of.
    trial_
        What was said of the validation part, `raxss.uncertainty.validation.Trial`: reliability, and scores that
        prediction sets are made with. None without a validation part.
    familiar_
        What is usual among the training series, `raxss.uncertainty.ood.Familiar`: evidence warns of others.
    heads_
        Gate and projection, `raxss.method.feature_heads.FeatureHeads`, or None.

    Notes
    -----
    Weighting, temperature, smoothing, space, measure, n_neighbors, exclusion, spread, bank, bank_size and stride
    can be changed after fitting, with `set_params`; conformal_alpha, too. A calibration, a gate or a projection
    that was fitted can be switched off and on.

    Examples
    --------
    >>> from raxss.data.datasets import load_synthetic
    >>> series = load_synthetic()
    >>> model = RAxSSClassifier(window_length=128, stride=32, max_epochs=3, random_state=0).fit(series)
    >>> model.predict_proba(series[:2]).shape
    (2, 2)
    >>> evidence = model.explain(series[0])
    >>> float(evidence.windows["weight"].sum().round(12))
    1.0
    """

    def __init__(
        self,
        backbone: Any = "convnet-fine",
        *,
        backbone_options: Mapping[str, Any] | None = None,
        window_length: int = 1024,
        stride: int = 128,
        scaling: Literal["train", "series", "none"] = "train",
        weighting: Weighting = "support",
        temperature: float | Literal["learned"] = 0.1,
        smoothing: float = 0.0,
        space: Literal["signal", "features"] = "signal",
        measure: Literal["pearson", "cosine"] = "pearson",
        n_neighbors: int = 10,
        exclusion: int | float = 0.5,
        spread: int | float = 0,
        bank: Literal["series", "batch", "local", "sampled"] = "series",
        bank_size: int = 65_536,
        refresh: Literal["never", "epoch", "batch"] = "never",
        projection: int = 0,
        calibration: Method = "none",
        calibration_level: Level = "window",
        conformal_alpha: float = 0.1,
        augmentation: Mapping[str, Any] | Literal["auto"] | None = "auto",
        window_loss_weight: float = 1.0,
        series_loss_weight: float = 0.0,
        lr: float = 1e-3,
        start_lr: float = 0.0,
        final_lr: float = 1e-6,
        warmup_steps: int = 100,
        schedule_steps: int = 0,
        weight_decay: float = 1e-6,
        batch_size: int | Literal["auto"] = "auto",
        max_epochs: int | Literal["auto"] = "auto",
        patience: int | Literal["auto"] = "auto",
        validation_fraction: float = 0.125,
        precision: Literal["auto", "float32", "bfloat16"] = "auto",
        update_batch_norm: bool = True,
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
        self.device = device
        self.callbacks = callbacks
        self.verbose = verbose
        self.random_state = random_state

    # Settings ---------------------------------------------------------------------------------------------

    @classmethod
    def from_config(cls, config: Config, **parameters: Any) -> Self:
        """An unfitted estimator with these settings; ``parameters`` override them."""
        return cls(**(config.parameters() | parameters))

    @classmethod
    def from_preset(cls, name: str, *, signal: str | None = None, **parameters: Any) -> Self:
        """An unfitted estimator with the settings of `paper`, `sss` or `recommended`.

        Parameters
        ----------
        signal
            ``"eeg"``, ``"ecg"`` or ``"motion"``, for what `recommended` does otherwise with such signals.
        **parameters
            Any parameter of the estimator, on top.

        >>> RAxSSClassifier.from_preset("paper").backbone
        'patchtst'
        """
        return cls.from_config(Config.preset(name, signal=signal), **parameters)

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
        """Learn from labelled series.

        Parameters
        ----------
        X, y
            Series and one label each. Labels may also be in the series themselves.
        groups
            What must not sit in training and validation at once. May also be in the series.
        validation
            Labelled `Series` that early stopping looks at and a calibration is fitted on, as a split made them; an
            empty list: nothing is. Without them, ``validation_fraction`` of X is set aside.
        checkpoint, resume
            File to write after every epoch, and whether to go on from it.
        """
        forget_fit(self)
        config = self.config
        config.check_fit(validation_given=validation is not None and len(validation) > 0)
        device = pick_device(self.device)
        series = as_series(X, estimator=self, reset=True)
        labels = as_labels(y, series)
        groups = as_groups(groups, series)
        n_given = len(series)
        tried_groups: NDArray[Any] | None = None
        if validation is not None and len(validation):
            others = as_series(validation, estimator=self, reset=False)
            labels = np.concatenate([labels, as_labels(None, others)])
            tell_shared_groups(groups, others)
            series = series + others
            tried_groups = groups_or_own(others)
        check_series(series)
        self.preparation_ = common_preparation(series)
        check_rates(series)
        self.classes_, targets = as_classes(labels)
        self.seed_ = drawn_seed(self.random_state)
        self.n_variates_ = series[0].n_variates
        config.augmentation.check_variates(self.n_variates_)
        self.window_length_ = min(config.windows.window_length, max(one.n_samples for one in series))
        if (
            self.augmentation == "auto" and self.window_length_ <= ROW_LENGTH
        ):  # rows of features are not in time
            config = replace(config, augmentation=AugmentationConfig())
        if validation is None:
            fraction = config.training.validation_fraction
            kept, held = validation_split(labels, groups, fraction=fraction, seed=self.seed_)
            tried_groups = None if groups is None else groups[held]
        else:
            kept, held = np.arange(n_given), np.arange(n_given, len(series))
            check_validation(series, labels, n_given)

        self.scaling_ = Scaling.fit([series[index] for index in kept], config.preparation.scaling)
        pools = [
            window_pool(
                [self.scaling_.apply(series[index]) for index in part],
                targets[part],
                config,
                window_length=self.window_length_,
                seed=self.seed_,
                device=device,
                bar=functools.partial(self._bar, "retrieving"),
            )
            for part in (kept, held)
            if len(part)
        ]
        pool, validation = pools[0], pools[1] if len(pools) == 2 else None
        usable = np.zeros(0, dtype=bool) if validation is None else validation.n_windows > 0
        unseen = held[usable]
        method, level = config.calibration.calibration, config.calibration.calibration_level
        if method != "none":
            check_calibration_part(labels[unseen], self.classes_, method)

        plan = config.training.for_windows(len(pool), n_validation=len(unseen))
        line, unexpected = describe_windows(
            pool.n_samples.tolist(),
            asked=config.windows.window_length,
            window_length=self.window_length_,
            stride=config.windows.stride,
        )
        logger.log(logging.WARNING if unexpected else logging.INFO, line)
        shape = self.n_variates_, self.window_length_, len(self.classes_)
        learner = fresh_learner(config, *shape, seed=self.seed_).to(device)
        self.backbone_ = learner.backbone
        show_windows(self.backbone_, pool, seed=self.seed_)
        logger.info(
            "training %s on %d windows of %d series, %d at a time, for up to %d epochs",
            describe(self.backbone_),
            len(pool),
            len(kept),
            plan.batch_size,
            plan.max_epochs,
        )
        if len(unseen) and not plan.chooses_epoch:
            logger.info(
                "%d validation series are too few to choose an epoch by; the last is kept", len(unseen)
            )
        with nullcontext() if checkpoint is None else output_lock(checkpoint):
            trained = train(
                learner,
                pool,
                validation,
                config=plan,
                seed=self.seed_,
                fingerprint=run_fingerprint(series, targets, groups, held, config=config, seed=self.seed_),
                checkpoint=None if checkpoint is None else Path(checkpoint),
                resume=resume,
                augmentation=config.augmentation,
                batch_support=support_in_batch(config, self.window_length_, n_series=pool.n_series),
                refresh=epoch_refresh(config, self.window_length_, seed=self.seed_),
                callbacks=[*(self.callbacks or ()), *([ProgressBar()] if self.verbose else [])],
            )
        self.history_ = pd.DataFrame(trained.history)
        self.best_epoch_ = trained.best_epoch
        self.interrupted_ = trained.interrupted
        self.temperature_ = learner.temperature.item()
        self.feature_mean_, self.feature_scale_ = feature_scaling(self.backbone_, pool)
        self.heads_ = None if learner.heads is None else learner.heads.cpu().double()
        self.calibration_ = None
        self.calibration_level_ = level
        answered = [series[index] for index in unseen], targets[unseen]
        if method != "none" and level == "window":
            self.calibration_ = fitted_calibration(method, self._predictor(None), *answered)
        if config.fits_temperature_on_validation and len(unseen):
            self.temperature_ = fitted_temperature(self._predictor(self.calibration_), *answered)
        self.trial_ = None
        tried: list[Prediction] = []
        if len(unseen):
            tried = tried_series(self._predictor(None), answered[0])
            if method != "none" and level == "series":
                self.calibration_ = fitted_series_calibration(method, tried, targets[unseen])
            tried_groups = None if tried_groups is None else tried_groups[usable]
            self.trial_ = trial_of(
                tried, targets[unseen], tried_groups, config, n_classes=len(self.classes_), seed=self.seed_
            )
        self.familiar_ = Familiar.of(series, mean_supports(pools, tried, config))
        self.training_data_ = describe_data(series, labels, groups, held)
        self.config_ = config  # last: it marks the model as fitted
        reached = balanced_training_accuracy(self.backbone_, pool)
        warn_if_not_learned(reached, pool, plan, n_classes=len(self.classes_), n_epochs=len(self.history_))
        return self

    # Keeping ----------------------------------------------------------------------------------------------

    def save_pretrained(self, folder: Path | str, *, overwrite: bool = False) -> Path:
        """Write a model folder: weights, settings, history, model card. It appears whole or not at all."""
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
