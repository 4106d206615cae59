"""The whole chain behind scikit-learn's contract.

    series, labels -> fit -> predict_proba (n_series, C), predict, explain -> SeriesEvidence

`fit` prepares, retrieves, trains; `predict_proba` and `explain` share one path, so what is explained is what
was predicted. Models are kept by model_folder.py.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from raxss.aggregation import Aggregation, Weighting, aggregate, influence, posteriors_of
from raxss.backbones import build_backbone, describe, n_outputs_for, n_parameters
from raxss.config import Config, RetrievalConfig
from raxss.errors import BackboneError, ConfigError, DataError, LabelError, SignalWarning
from raxss.evidence import SeriesEvidence, trace
from raxss.inputs import (
    as_groups,
    as_labels,
    as_series,
    check_preparation,
    check_rates,
    common_preparation,
)
from raxss.model_folder import load_model, save_model
from raxss.pool import WindowPool
from raxss.prediction import Scorer, Scores, pick_device
from raxss.preparation import Scaling, check_series
from raxss.progress import ProgressBar, share_bar
from raxss.recordings.series import Series, SeriesCollection
from raxss.retrieval import Retrieval
from raxss.retrieval.batch import batch_support
from raxss.retrieval.cache import cached_retrieve, cached_retrieve_many
from raxss.splits import hold_out
from raxss.stepping import BatchSupport, Learner
from raxss.training import Callback, feature_moments, fit_temperature, train
from raxss.windows import Windows, windows_of

LISTED_AT_ONCE = 2**23  # neighbors of short series that a GPU finds together: 128 MB
SERIES_AHEAD = {"cpu": 0, "cuda": 3}  # a GPU works on the next while those before are added up and written
WINDOWS_OF_A_LONG_SERIES = 200_000  # from here on one ahead is enough: the lists of each take 32 MB and more
PAIRS_A_SCORE = 300_000  # windows compared in the time of scoring one, roughly, on CPU and GPU alike

logger = logging.getLogger("raxss")


@dataclass(frozen=True, eq=False)
class _Work:
    """One series on its way from samples to score; a GPU may still be at work on it."""

    series: Series
    windows: Windows
    scores: Scores
    retrieval: Retrieval | None  # None where only the score is wanted and its weights need none


@dataclass(frozen=True, eq=False)
class _Prediction:
    """One series and its score."""

    series: Series
    windows: Windows
    retrieval: Retrieval | None
    aggregation: Aggregation


class _ShareDone:
    """Adds what retrieval and network tell about one series after the other up to a share of all work."""

    def __init__(self, total: float, on_progress: Callable[[float], None] | None) -> None:
        self._total, self._done, self._on_progress = total, 0.0, on_progress

    def part(self, amount: float) -> Callable[[float], None] | None:
        """For the next part of the work, which is so much of it; None where nobody wants to know."""
        before, tell = self._done, self._on_progress
        self._done += amount
        return None if tell is None else lambda share: tell((before + share * amount) / self._total)


class RAxSSClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classify series of any length from sparsely sampled windows, weighted by within-series retrieval.

    Series may be given as a `SeriesCollection`, a list of arrays of differing lengths, each
    ``(n_samples,)`` or ``(n_variates, n_samples)``, a 3-D array ``(n_series, n_variates, n_samples)``, or a
    2-D array of series of one length (then ``n_features_in_`` is enforced).

    Parameters
    ----------
    backbone, backbone_options
        The network that scores a window: ``"convnet"``, ``"patchtst"``, or a callable
        ``(n_variates, window_length, n_outputs, **options) -> torch module``.
    window_length, stride
        L, and the step from one window to the next, in samples.
    scaling
        ``"train"``: one mean and deviation a variate, fitted on the training set. ``"series"``: z-score of
        each series. ``"none"``.
    weighting, temperature
        Eq. (2): ``"support"``; ``"uniform"`` is plain SSS; ``"inverse"``, ``"shuffled"`` and ``"random"``
        are controls. tau > 0, or ``"learned"``.
    space, measure, n_neighbors, exclusion, spread
        Eq. (1): compare windows of the signal or their features; ``"pearson"`` or ``"cosine"``; m; how far
        neighbors must start from the query, and from one another, in samples (int) or window lengths
        (float). With ``space="features"`` training uses equal weights, and retrieval begins at prediction.
    bank, bank_size
        Which windows may be neighbors. ``"series"``: all of the series, exactly. ``"local"``: the ``bank_size``
        windows nearest in time; ``"sampled"``: so many, in stretches spread evenly over the series; both for
        recordings that are too long to compare all with all, and the evidence says so. ``"batch"``: in
        training those of the batch, at prediction all.
    window_loss_weight, series_loss_weight
        How much the loss of single windows and of the series probability count (the paper: 0 and 1). With
        the window loss alone, weights and temperature enter validation and prediction, not the gradient.
    lr, start_lr, final_lr, warmup_steps, schedule_steps, weight_decay, batch_size, max_epochs, patience
        Adam with warm-up and a cosine; windows a batch; when to stop.
    validation_fraction
        Share of the series, whole groups at a time, that early stopping looks at. 0: none.
    precision
        ``"auto"``, ``"float32"`` or ``"bfloat16"`` in training. Prediction is always float32.
    device
        ``"auto"``, ``"cpu"``, ``"cuda"``.
    callbacks
        Objects with the methods of `raxss.training.Callback`.
    verbose
        1 shows a progress bar with the time left on stderr, in fitting and predicting.
    random_state
        Draws validation split, initial weights, dropout and the order of windows.

    Attributes
    ----------
    classes_, n_variates_, window_length_, preparation_, backbone_, scaling_, temperature_, history_, seed_,
    interrupted_

    Notes
    -----
    Weighting, temperature, space, measure, n_neighbors, exclusion, spread, bank, bank_size and stride can be
    changed after fitting, with `set_params`.

    Examples
    --------
    >>> from raxss.datasets import load_synthetic
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
        backbone: Any = "convnet",
        *,
        backbone_options: Mapping[str, Any] | None = None,
        window_length: int = 1024,
        stride: int = 128,
        scaling: Literal["train", "series", "none"] = "train",
        weighting: Weighting = "support",
        temperature: float | Literal["learned"] = 0.1,
        space: Literal["signal", "features"] = "signal",
        measure: Literal["pearson", "cosine"] = "pearson",
        n_neighbors: int = 10,
        exclusion: int | float = 0.5,
        spread: int | float = 0,
        bank: Literal["series", "batch", "local", "sampled"] = "series",
        bank_size: int = 65_536,
        window_loss_weight: float = 1.0,
        series_loss_weight: float = 0.0,
        lr: float = 1e-3,
        start_lr: float = 0.0,
        final_lr: float = 1e-6,
        warmup_steps: int = 100,
        schedule_steps: int = 0,
        weight_decay: float = 1e-6,
        batch_size: int = 64,
        max_epochs: int = 20,
        patience: int = 5,
        validation_fraction: float = 0.125,
        precision: Literal["auto", "float32", "bfloat16"] = "auto",
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
        self.space = space
        self.measure = measure
        self.n_neighbors = n_neighbors
        self.exclusion = exclusion
        self.spread = spread
        self.bank = bank
        self.bank_size = bank_size
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
    def from_preset(cls, name: str, **parameters: Any) -> Self:
        """An unfitted estimator with the settings of `paper`, `sss` or `recommended`.

        >>> RAxSSClassifier.from_preset("paper").backbone
        'patchtst'
        """
        return cls.from_config(Config.preset(name), **parameters)

    @property
    def config(self) -> Config:
        """The settings as they stand, checked."""
        given = self.get_params(deep=False)
        settings = {name: given[name] for name in Config().parameters()}
        settings["backbone_options"] = settings["backbone_options"] or {}
        return Config.from_parameters({name: _plain(value) for name, value in settings.items()})

    @property
    def current_config(self) -> Config:
        """What a fitted model stands for: as fitted, except for what may be changed since."""
        now = self.config.tables()
        changeable = {"retrieval": now["retrieval"], "aggregation": now["aggregation"]}
        return self.config_.updated(changeable | {"windows": {"stride": now["windows"]["stride"]}})

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
            Labelled `Series` that early stopping looks at, as a split made them; without them,
            ``validation_fraction`` of X is set aside.
        checkpoint, resume
            File to write after every epoch, and whether to go on from it.
        """
        self._forget()
        config = self.config
        config.check_fit()
        device = pick_device(self.device)
        series = as_series(X, estimator=self, reset=True)
        labels = as_labels(y, series)
        groups = as_groups(groups, series)
        n_given = len(series)
        if validation is not None:
            others = as_series(validation, estimator=self, reset=False)
            labels = np.concatenate([labels, as_labels(None, others)])
            series = series + others
        check_series(series)
        self.preparation_ = common_preparation(series)
        check_rates(series)
        self.classes_, targets = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise LabelError(
                f"all {len(labels)} labels are {self.classes_.tolist()[0]!r}, which is one class; at least two "
                "classes are needed to fit a classifier. Add series of another class."
            )
        self.seed_ = self._draw_seed()
        self.n_variates_ = series[0].n_variates
        self.window_length_ = min(config.windows.window_length, max(one.n_samples for one in series))
        if validation is None:
            kept, held = self._validation_split(labels, groups, config)
        else:
            kept, held = np.arange(n_given), np.arange(n_given, len(series))
            self._check_validation(series, labels, n_given)

        self.scaling_ = Scaling.fit([series[index] for index in kept], config.preparation.scaling)
        pools = [self._pool(series, targets, part, config, device) for part in (kept, held) if len(part)]
        pool, validation = pools[0], pools[1] if len(pools) == 2 else None

        self.backbone_ = self._fresh_backbone(config).to(device)
        learned = config.aggregation.temperature == "learned"
        learner = Learner(
            self.backbone_,
            temperature=0.1 if learned else float(config.aggregation.temperature),
            learned=config.learns_temperature_by_gradient,
        ).to(device)
        logger.info("training %s on %d windows of %d series", describe(self.backbone_), len(pool), len(kept))
        trained = train(
            learner,
            pool,
            validation,
            config=config.training,
            seed=self.seed_,
            fingerprint=self._fingerprint(series, targets, groups, held, config),
            checkpoint=None if checkpoint is None else Path(checkpoint),
            resume=resume,
            batch_support=self._batch_support(config),
            callbacks=[*(self.callbacks or ()), *([ProgressBar()] if self.verbose else [])],
        )
        self.history_ = pd.DataFrame(trained.history)
        self.best_epoch_ = trained.best_epoch
        self.interrupted_ = trained.interrupted
        self.temperature_ = learner.temperature.item()
        self._measure_features(pool)
        if learned and not config.learns_temperature_by_gradient and len(held):
            parts = [one.aggregation for one in self._predictions([series[index] for index in held])]
            self.temperature_ = fit_temperature(
                [torch.from_numpy(one.posteriors) for one in parts],
                [one.influence for one in parts],
                targets[held],
            )
        self.training_data_ = self._describe_data(series, labels, groups, held)
        self.config_ = config  # last: it marks the model as fitted
        return self

    def _forget(self) -> None:
        """Drop what an earlier fit left, so that a fit that fails does not leave a mixture of two."""
        for name in [name for name in vars(self) if name.endswith("_") and not name.startswith("_")]:
            delattr(self, name)

    def _fresh_backbone(self, config: Config) -> torch.nn.Module:
        """The network with its initial weights, which the seed alone decides."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed_)
            backbone = build_backbone(
                config.backbone.backbone,
                n_variates=self.n_variates_,
                window_length=self.window_length_,
                n_outputs=n_outputs_for(len(self.classes_)),
                options=config.backbone.backbone_options,
            )
        if n_parameters(backbone) == 0:
            raise BackboneError(
                f"backbone {type(backbone).__name__} has no parameters, so there is nothing to train. Add a layer, "
                "such as torch.nn.Linear, as its head."
            )
        return backbone

    def _draw_seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            if not 0 <= self.random_state < 2**63:
                raise ConfigError(
                    f"random_state is {self.random_state}; a whole number from 0 to 2**63 - 1 is needed."
                )
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _validation_split(
        self, labels: NDArray[Any], groups: NDArray[Any] | None, config: Config
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Series to learn from, and series that early stopping looks at."""
        everything = np.arange(len(labels)), np.arange(0)
        if config.training.validation_fraction == 0:
            return everything
        fraction = config.training.validation_fraction
        kept, held = hold_out(labels, groups=groups, fraction=fraction, seed=self.seed_)
        missing = set(np.unique(labels).tolist()) - set(np.unique(labels[kept]).tolist())
        if len(held) == 0 or missing:
            logger.warning(
                "no validation part could be set aside (%d series in %s groups); the last epoch is kept",
                len(labels),
                "no" if groups is None else len(np.unique(groups)),
            )
            return everything
        return kept, held

    def _check_validation(self, series: list[Series], labels: NDArray[Any], n_given: int) -> None:
        seen = {one.digest: one.name for one in series[:n_given]}
        for one in series[n_given:]:
            if one.digest in seen:
                raise DataError(
                    f"validation series {one.name!r} has the samples of training series {seen[one.digest]!r}; "
                    "early stopping would look at what was learned. Leave it out of one of them."
                )
        missing = set(labels[n_given:].tolist()) - set(labels[:n_given].tolist())
        if missing:
            raise LabelError(
                f"the validation series have labels that no training series has: {sorted(missing, key=str)}; each "
                "needs one to learn from. Move a group of that label into the training part."
            )

    def _pool(
        self,
        series: list[Series],
        targets: NDArray[np.int64],
        part: NDArray[np.int64],
        config: Config,
        device: torch.device,
    ) -> WindowPool:
        """Scaled series and their supports, ready for Alg. 1."""
        scaled = [self.scaling_.apply(series[index]) for index in part]
        n_short = sum(one.n_samples < self.window_length_ for one in scaled)
        if n_short:
            logger.info("%d of %d series are shorter than a window and are padded", n_short, len(scaled))
        # Feature-space support needs a trained network, so training goes with equal weights there.
        weighting = "uniform" if config.retrieval.space == "features" else config.aggregation.weighting
        if weighting == "uniform":
            # Nobody asks who is near; and which windows are flat matters to support in a batch alone.
            cut = [self._cut(one) for one in scaled]
            supports = [np.where(one.nonfinite, np.nan, 0.0) for one in cut]
            flat = [np.zeros(len(one), dtype=np.bool_) for one in cut]
        else:
            n_windows = sum(map(self._n_windows, scaled))
            with share_bar("retrieving", n_windows, unit="windows", quiet=not self.verbose) as on_progress:
                found = cached_retrieve_many(
                    [one.samples for one in scaled],
                    **self._retrieval_settings(config.retrieval, device),
                    on_progress=on_progress,
                )
            supports, flat = [one.support for one in found], [one.flat for one in found]
        return WindowPool(
            scaled,
            targets[part],
            [influence(one, weighting, seed=self.seed_ + i) for i, one in enumerate(supports)],
            flat,
            window_length=self.window_length_,
            stride=config.windows.stride,
            device=device,
        )

    def _batch_support(self, config: Config) -> BatchSupport | None:
        """Retrieval among the windows of a batch, where the bank is the batch."""
        if config.retrieval.bank != "batch" or config.aggregation.weighting == "uniform":
            return None
        retrieval, sign = config.retrieval, -1 if config.aggregation.weighting == "inverse" else 1

        def support(windows: Tensor, series: Tensor, starts: Tensor, flat: Tensor) -> Tensor:
            return sign * batch_support(
                windows,
                series,
                starts,
                flat,
                measure=retrieval.measure,
                n_neighbors=retrieval.n_neighbors,
                exclusion=retrieval.samples_of("exclusion", self.window_length_),
            )

        return support

    def _measure_features(self, pool: WindowPool) -> None:
        """Mean and deviation of each feature over the training windows, for retrieval in feature space."""
        self.feature_mean_: NDArray[np.float64] = np.zeros(0)
        self.feature_scale_: NDArray[np.float64] = np.ones(0)
        if callable(getattr(self.backbone_, "features", None)):
            self.feature_mean_, self.feature_scale_ = feature_moments(self.backbone_, pool)

    def _fingerprint(
        self,
        series: list[Series],
        targets: NDArray[np.int64],
        groups: NDArray[Any] | None,
        held: NDArray[np.int64],
        config: Config,
    ) -> str:
        """The same for the same settings, data and seed; names and paths do not enter."""
        digest = hashlib.sha256(f"{config.hash} {self.seed_}".encode())
        for one in series:
            digest.update(f"{one.samples.shape} {one.samples.dtype}".encode())
            digest.update(np.ascontiguousarray(one.samples).data)
        digest.update(np.ascontiguousarray(targets).data)
        digest.update(repr(None if groups is None else groups.tolist()).encode())
        digest.update(held.astype(np.int64).data)
        return digest.hexdigest()[:16]

    def _describe_data(
        self,
        series: list[Series],
        labels: NDArray[Any],
        groups: NDArray[Any] | None,
        held: NDArray[np.int64],
    ) -> dict[str, Any]:
        """What a model card says about the training data: counts and ranges, never names."""
        names, counts = np.unique(labels, return_counts=True)
        lengths = [one.n_samples for one in series]
        return {
            "n_series": len(series),
            "n_validation": len(held),
            "n_groups": None if groups is None else len(np.unique(groups)),
            "classes": {str(name): int(count) for name, count in zip(names, counts, strict=True)},
            "rates": sorted({one.rate for one in series}),
            "n_samples": [min(lengths), max(lengths)],
            "series": sorted(one.digest for one in series),  # so that others can see what the model has seen
            "split": None,  # what kept the test part away, where somebody says so
        }

    # Predicting -------------------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Series probabilities ``(n_series, C)``, columns as in ``classes_``."""
        check_is_fitted(self, "config_")
        series = as_series(X, estimator=self, reset=False)
        check_series(series, n_variates=self.n_variates_)
        check_preparation(series, self.preparation_)
        for one in series:
            for note in self._notes_about(one):
                warnings.warn(note, SignalWarning, stacklevel=2)
        with self._bar(series) as on_progress:
            found = self._predictions(series, with_lists=False, on_progress=on_progress)
            return np.stack([one.aggregation.series_probability for one in found])

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely class of each series, from ``classes_``."""
        probability = self.predict_proba(X)
        return self.classes_[probability.argmax(axis=1)]

    def explain(self, X: Any) -> Any:
        """Take the prediction of a series apart into windows, weights and neighbors.

        Parameters
        ----------
        X
            One `Series` or array ``(n_samples,)`` or ``(n_variates, n_samples)``; or a list of them, then a
            list comes back.

        Returns
        -------
        `SeriesEvidence`, whose contributions sum to what `predict_proba` says.
        """
        if isinstance(X, list | tuple | SeriesCollection):
            return list(self.explain_each(X))
        return next(self.explain_each([X if isinstance(X, Series) else Series(X)]))

    def explain_each(
        self, X: Any, *, on_progress: Callable[[float], None] | None = None
    ) -> Iterator[SeriesEvidence]:
        """`explain` many series one after the other, so that they need not all be held at once.

        Parameters
        ----------
        X
            Several series, in any of the forms that `predict_proba` takes.
        on_progress
            Told the share of all work done, also within a series. Without it, ``verbose=1`` draws a bar.

        Examples
        --------
        >>> from raxss.datasets import load_synthetic
        >>> series = load_synthetic()
        >>> model = RAxSSClassifier(window_length=128, stride=32, max_epochs=1, random_state=0).fit(series)
        >>> for evidence in model.explain_each(series[:2]):
        ...     print(evidence.name, len(evidence.windows))
        motif-000 140
        noise-001 138
        """
        check_is_fitted(self, "config_")
        series = as_series(X, estimator=self, reset=False)
        check_series(series, n_variates=self.n_variates_)
        check_preparation(series, self.preparation_)
        return self._evidence(series, on_progress)

    def _evidence(
        self, series: list[Series], on_progress: Callable[[float], None] | None
    ) -> Iterator[SeriesEvidence]:
        settings = {"config_hash": self.current_config.hash}
        with self._bar(series, quiet=on_progress is not None) as bar:
            for one in self._predictions(series, on_progress=on_progress or bar):
                assert one.retrieval is not None, "lists were asked for"
                yield trace(
                    one.series,
                    one.windows,
                    one.retrieval,
                    one.aggregation,
                    classes=self.classes_,
                    settings=settings,
                    notes=self._notes_about(one.series),
                )
                del one  # or its lists would be held while the next is computed

    def _predictions(
        self,
        series: list[Series],
        *,
        with_lists: bool = True,
        on_progress: Callable[[float], None] | None = None,
    ) -> Iterator[_Prediction]:
        """Samples -> windows -> posteriors and support -> series probability, one series after the other."""
        config, device = self.config, pick_device(self.device)
        scorer = Scorer(self.backbone_, device)
        n_pairs = [n * self._bank_of(n, config.retrieval) for n in map(self._n_windows, series)]
        total = sum(map(self._n_windows, series)) + sum(n_pairs) / PAIRS_A_SCORE
        progress = _ShareDone(total, on_progress)
        launched: deque[_Work] = deque()
        for group in self._groups(series, config.retrieval, device):
            for work in self._launched(group, config, device, scorer, progress, with_lists):
                n_ahead = SERIES_AHEAD[device.type]
                if len(work.windows) >= WINDOWS_OF_A_LONG_SERIES:
                    n_ahead = min(n_ahead, 1)
                launched.append(work)
                del work
                while len(launched) > n_ahead:
                    yield self._finished(launched.popleft())
        while launched:
            yield self._finished(launched.popleft())

    def _groups(
        self, series: list[Series], settings: RetrievalConfig, device: torch.device
    ) -> Iterator[list[Series]]:
        """Series to retrieve together: one by one, but short ones of a GPU in one launch."""
        alone = SERIES_AHEAD[device.type] == 0 or settings.space == "features"
        group: list[Series] = []
        n_listed = 0
        for one in series:
            more = self._n_windows(one) * settings.n_neighbors
            if group and (alone or n_listed + more > LISTED_AT_ONCE):
                yield group
                group, n_listed = [], 0
            group.append(one)
            n_listed += more
        yield group

    def _launched(
        self,
        group: list[Series],
        config: Config,
        device: torch.device,
        scorer: Scorer,
        progress: _ShareDone,
        with_lists: bool,
    ) -> Iterator[_Work]:
        """Retrieval for all of them, then the network for one after the other."""
        in_features = config.retrieval.space == "features"
        needs_lists = with_lists or config.aggregation.weighting != "uniform"
        settings = self._retrieval_settings(config.retrieval, device)
        scaled = [self.scaling_.apply(one) for one in group]
        sizes = [self._n_windows(one) for one in group]
        n_pairs = [n * self._bank_of(n, config.retrieval) / PAIRS_A_SCORE for n in sizes]
        found: list[Retrieval | None] = [None] * len(group)
        if needs_lists and not in_features:
            samples, told = [one.samples for one in scaled], progress.part(sum(n_pairs))
            found = [*cached_retrieve_many(samples, **settings, on_progress=told)]
        for place, one in enumerate(group):
            windows = self._cut(scaled[place])
            scores = scorer.launch(
                windows, with_features=in_features, on_progress=progress.part(sizes[place])
            )
            if scores.features is not None:
                scores.features[...] -= self.feature_mean_
                scores.features[...] /= self.feature_scale_
                settings |= {"measure": "cosine", "features": scores.features}
                told = progress.part(n_pairs[place])
                found[place] = cached_retrieve(scaled[place].samples, **settings, on_progress=told)
            yield _Work(one, windows, scores, found[place])
            found[place] = None

    def _finished(self, work: _Work) -> _Prediction:
        """Add the windows of one series up."""
        if work.retrieval is None:
            support = np.where(work.windows.nonfinite, np.nan, 0.0)
        else:
            support = work.retrieval.support
        aggregation = aggregate(
            posteriors_of(work.scores.logits().double()),
            support,
            temperature=self.temperature_ if self.temperature == "learned" else self.temperature,
            weighting=self.weighting,
            seed=self.seed_ + zlib.crc32(np.ascontiguousarray(work.series.samples).data),
        )
        return _Prediction(work.series, work.windows, work.retrieval, aggregation)

    def _retrieval_settings(self, settings: RetrievalConfig, device: torch.device) -> dict[str, Any]:
        """What `retrieve` is asked for (Eq. 1)."""
        return {
            "window_length": self.window_length_,
            "stride": self.stride,
            "bank": "series" if settings.bank == "batch" else settings.bank,
            "bank_size": settings.bank_size,
            "measure": settings.measure,
            "n_neighbors": settings.n_neighbors,
            "exclusion": settings.samples_of("exclusion", self.window_length_),
            "spread": settings.samples_of("spread", self.window_length_),
            "device": str(device),
        }

    def _cut(self, scaled: Series) -> Windows:
        return windows_of(scaled, window_length=self.window_length_, stride=self.stride)

    def _n_windows(self, series: Series) -> int:
        return max(series.n_samples - self.window_length_, 0) // self.stride + 1

    def _bank_of(self, n_windows: int, settings: RetrievalConfig) -> int:
        """How many windows each is compared with."""
        bounded = settings.bank in ("local", "sampled")
        return min(n_windows, settings.bank_size) if bounded else n_windows

    def _bar(
        self, series: list[Series], *, quiet: bool = False
    ) -> AbstractContextManager[Callable[[float], None] | None]:
        n_windows = sum(map(self._n_windows, series))
        return share_bar("predicting", n_windows, unit="windows", quiet=quiet or not self.verbose)

    def _notes_about(self, series: Series) -> list[str]:
        """What makes a series unlike those of the training set."""
        rates = self.training_data_["rates"]
        unknown = series.rate == 1.0 or rates == [1.0]  # 1 Hz stands for a rate that is not known
        if unknown or any(abs(series.rate - rate) <= 0.01 * rate for rate in rates):
            return []
        known = ", ".join(f"{rate:g}" for rate in rates[:5])
        return [
            f"series {series.name!r} has a rate of {series.rate:g} Hz, but the model was fitted at {known} Hz, so "
            "its windows last another time. Resample it first."
        ]

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


def _plain(value: Any) -> Any:
    """Numpy scalars, as a grid search gives them, as Python's."""
    return value.item() if isinstance(value, np.generic) else value
