"""What does a fitted model say of a series, and why?

    series -> predict_proba (n_series, C), predict, predict_set, answers, explain -> SeriesEvidence, report

Everything here reads what `fit` left behind, with the settings as they stand. Predictions and explanations share
one path (predicting.py), so what is explained is what was predicted. Next: estimator.py has the parameters, and
fits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import nn

from raxss._core.progress import share_bar
from raxss.data.prepare.preprocessing import Preparation, Scaling, check_series
from raxss.data.series import Series, SeriesCollection
from raxss.data.training_overlap import TrainingRecord
from raxss.errors import SignalWarning
from raxss.estimator.config import Config
from raxss.estimator.fit import score_settings
from raxss.estimator.inputs import (
    ModelPreparation,
    as_series,
    check_preparation,
    check_rates_of_model,
    other_rate,
)
from raxss.estimator.persistence import describe_model
from raxss.explain.export.report import report_of
from raxss.explain.export.report.page import Report
from raxss.explain.series_evidence import SeriesEvidence
from raxss.explain.tracing import trace_prediction
from raxss.method.augmentation import LIGHT
from raxss.method.feature_heads import FeatureHeads, heads_in_use
from raxss.method.inference import Predictor
from raxss.method.window_scorer import pick_device
from raxss.method.windows import window_starts
from raxss.uncertainty.calibration import calibration_in_use
from raxss.uncertainty.calibration.maps import Calibration
from raxss.uncertainty.ood import Familiar
from raxss.uncertainty.summary import Answer, Doubt
from raxss.uncertainty.validation import Trial

if TYPE_CHECKING:
    from raxss.explain.faithfulness.model_adapter import WindowSubject
    from raxss.explain.faithfulness.one_series import SeriesFaithfulness


class Answering(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The half of `raxss.RAxSSClassifier` that is asked; the other half is fitted, and says what all of this is."""

    # Parameters that are looked at here; `config` looks at all.
    stride: int
    space: Literal["signal", "features"]
    projection: int
    weighting: str
    device: str
    verbose: int

    # What `fit` leaves behind, or a model folder.
    config_: Config
    classes_: NDArray[Any]
    n_variates_: int
    window_length_: int
    preparation_: str
    scaling_: Scaling
    backbone_: nn.Module
    feature_mean_: NDArray[np.float64]
    feature_scale_: NDArray[np.float64]
    heads_: FeatureHeads | None
    temperature_: float
    calibration_: Calibration | None
    calibration_level_: str
    trial_: Trial | None
    familiar_: Familiar | None
    training_data_: dict[str, Any]
    seed_: int

    # Settings ---------------------------------------------------------------------------------------------

    @property
    def config(self) -> Config:
        """The settings as they stand, checked."""
        given = self.get_params(deep=False)
        settings = {name: given[name] for name in Config().parameters()}
        if isinstance(settings["augmentation"], str) and settings["augmentation"] == "auto":
            settings["augmentation"] = dict(LIGHT)
        for name in ("backbone_options", "augmentation"):
            settings[name] = {} if settings[name] is None else settings[name]
        return Config.from_parameters(settings)

    @property
    def current_config(self) -> Config:
        """What a fitted model stands for: as fitted, except for what may be changed since."""
        now = self.config.tables()
        _ = self._calibration_in_use  # or an error: a model cannot stand for what it has not
        _ = self._heads_in_use  # likewise
        now["retrieval"]["refresh"] = self.config_.retrieval.refresh  # how it was trained stays
        changeable = {stage: now[stage] for stage in ("retrieval", "aggregation", "calibration")}
        return self.config_.updated(changeable | {"windows": {"stride": now["windows"]["stride"]}})

    # Answers ----------------------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Series probabilities ``(n_series, C)``, columns as in ``classes_``."""
        series = self.known_series(X, warn=True)
        with self._bar("predicting", series) as on_progress:
            found = self.predictor().predictions(series, with_lists=False, on_progress=on_progress)
            return np.stack([one.probability for one in found])

    def predict_set(self, X: Any, *, alpha: float | None = None) -> NDArray[np.bool_]:
        """Which classes cannot be ruled out: ``(n_series, C)``, columns as in ``classes_``.

        A set holds the true class in a share 1 - alpha of the series at least, if these are like those of the
        validation part (see `raxss.uncertainty.conformal`). A row with one True is an answer;
        several, or none, are a reason to abstain. Where the validation part is too small for the level, every
        set holds every class, with a warning.

        Parameters
        ----------
        alpha
            In place of ``conformal_alpha``.

        Examples
        --------
        >>> from raxss import RAxSSClassifier
        >>> from raxss.data.datasets import load_synthetic
        >>> model = RAxSSClassifier(window_length=128, stride=32, max_epochs=1, random_state=0)
        >>> _ = model.set_params(validation_fraction=0.5).fit(load_synthetic())
        >>> model.predict_set(load_synthetic(3), alpha=0.2).shape
        (3, 2)
        """
        probability = self.predict_proba(X)
        doubt = self.doubt()
        level = doubt.alpha if alpha is None else alpha
        if why := doubt.why_no_sets(level):
            warnings.warn(f"every prediction set holds every class: {why}.", SignalWarning, stacklevel=2)
        return doubt.sets(probability, level)

    def answers(self, X: Any) -> Iterator[Answer]:
        """Probability, interval, prediction set and notes of each series, one after the other.

        Examples
        --------
        >>> from raxss import RAxSSClassifier
        >>> from raxss.data.datasets import load_synthetic
        >>> series = load_synthetic()
        >>> model = RAxSSClassifier(window_length=128, stride=32, max_epochs=1, random_state=0).fit(series)
        >>> for answer in model.answers(series[:2]):
        ...     print(answer.series.name, answer.interval.method, answer.notes)
        motif-000 block bootstrap over windows ()
        noise-001 block bootstrap over windows ()
        """
        return self._answers(self.known_series(X, warn=True))

    def seen_in_training(self, X: Any) -> list[str]:
        """Whether the model was fitted on each series, known by content, whatever the series are called.

        Returns
        -------
        For each series ``training``, ``validation``, ``training or validation`` (models fitted before the two were
        kept apart), ``in part`` (a stretch, or the same in other units), ``no``, or ``unknown`` (the model keeps no
        digests); see `raxss.data.training_overlap`.

        Examples
        --------
        >>> from raxss import RAxSSClassifier
        >>> from raxss.data.datasets import load_synthetic
        >>> series = load_synthetic()
        >>> model = RAxSSClassifier(window_length=128, stride=32, max_epochs=1, random_state=0)
        >>> model.fit(series[:20], validation=series[20:24]).seen_in_training(series[18:26])
        ['training', 'training', 'validation', 'validation', 'validation', 'validation', 'no', 'no']
        """
        series = self.known_series(X)
        with TrainingRecord.of(self.training_data_).states(series) as states:
            return list(states)

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely class of each series, from ``classes_``."""
        probability = self.predict_proba(X)
        return self.classes_[probability.argmax(axis=1)]

    def window_probabilities(self, X: Any) -> Iterator[NDArray[np.float64]]:
        """The posteriors of the windows of each series, ``(n_windows_i, C)``, one series after the other.

        They are what `explain` shows as posteriors, calibrated where the model is. Windows come in the order of
        time; those that touch samples that are not finite count for nothing in a score and are left out.

        Examples
        --------
        >>> from raxss import RAxSSClassifier
        >>> from raxss.data.datasets import load_synthetic
        >>> series = load_synthetic()
        >>> model = RAxSSClassifier(window_length=128, stride=32, max_epochs=1, random_state=0).fit(series)
        >>> [one.shape for one in model.window_probabilities(series[:2])]
        [(140, 2), (138, 2)]
        """
        return self._window_probabilities(self.known_series(X, warn=True))

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
        >>> from raxss import RAxSSClassifier
        >>> from raxss.data.datasets import load_synthetic
        >>> series = load_synthetic()
        >>> model = RAxSSClassifier(window_length=128, stride=32, max_epochs=1, random_state=0).fit(series)
        >>> for evidence in model.explain_each(series[:2]):
        ...     print(evidence.name, len(evidence.windows))
        motif-000 140
        noise-001 138
        """
        return self._evidence(self.known_series(X), on_progress)

    def report(self, X: Any, *, name: str | None = None, positive: Any = None) -> Report:
        """Show why as one page: the series of a recording ranked, each with signal, windows and neighbours.

        Parameters
        ----------
        X
            One series, or those of one recording, usually its channels.
        name, positive
            How the recording is called, and the class that channels are ranked by when the page opens; both have
            defaults, see `raxss.explain.export.report.contents.report_contents`.

        Returns
        -------
        `raxss.explain.Report`, which shows itself in Jupyter and has ``save("report.html")``.

        Examples
        --------
        >>> from raxss import RAxSSClassifier
        >>> from raxss.data.datasets import load_synthetic
        >>> series = load_synthetic()
        >>> model = RAxSSClassifier(window_length=128, stride=32, max_epochs=1, random_state=0).fit(series)
        >>> model.report(series[:2], name="two channels")
        Report('two channels', 2 channels)
        """
        several = isinstance(X, list | tuple | SeriesCollection)
        series = X if several else [X if isinstance(X, Series) else Series(X)]
        return report_of(self.explain_each(series), name=name, model=describe_model(self), positive=positive)

    def faithfulness(self, X: Any, *, seed: int = 0) -> SeriesFaithfulness:
        """Ask whether the score of one series rests on what its evidence shows.

        Stretches of the signal are replaced in the order of the evidence, windows exchanged, neighbours and layers
        randomised, and everything is computed anew. Some hundred predictions; `raxss faithfulness` does it for many
        series and ends with a verdict.

        Parameters
        ----------
        X
            One `Series` or array ``(n_samples,)`` or ``(n_variates, n_samples)``.
        seed
            Of surrogates, random orders and scrambled layers.

        Returns
        -------
        `raxss.explain.faithfulness.SeriesFaithfulness`
        """
        from raxss.explain.faithfulness.one_series import (
            faithfulness_of,  # with its statistics it takes a while to import
        )

        (series,) = self.known_series([X if isinstance(X, Series) else Series(X)])
        return faithfulness_of(self.subject(), series, seed=seed)

    def subject(self) -> WindowSubject:
        """The fitted model as the probes of `raxss.explain.faithfulness` see it."""
        from raxss.explain.faithfulness.model_adapter import WindowSubject

        return WindowSubject(self.predictor(), tuple(self.classes_.tolist()))

    def known_series(self, X: Any, *, warn: bool = False) -> list[Series]:
        """Series like those that were learned from, whatever form they were given in; others are refused."""
        check_is_fitted(self, "config_")
        series = as_series(X, estimator=self, reset=False)
        check_series(series, n_variates=self.n_variates_)
        check_preparation(series, self.preparation_)
        check_rates_of_model(series, self.training_data_["rates"])
        for one in series if warn else ():
            for note in other_rate(one, self.training_data_["rates"]):
                warnings.warn(note, SignalWarning, stacklevel=3)
        return series

    def preparation_of_model(self, *, resample: bool = False) -> ModelPreparation:
        """What makes raw series like those that were learned from; ``apply(series)`` does it.

        Parameters
        ----------
        resample
            Bring series whose rate differs by more than a hundredth to the nearest rate of the training series.
        """
        check_is_fitted(self, "config_")
        rates = tuple(float(rate) for rate in self.training_data_["rates"])
        return ModelPreparation(Preparation.parse(self.preparation_), rates, resample)

    def _window_probabilities(self, series: list[Series]) -> Iterator[NDArray[np.float64]]:
        predictor = self.predictor()
        with self._bar("predicting", series) as on_progress:
            yield from predictor.window_probabilities(series, on_progress=on_progress)

    def _answers(self, series: list[Series]) -> Iterator[Answer]:
        predictor, doubt = self.predictor(), self.doubt()
        with self._bar("predicting", series) as on_progress, doubt.seen.states(series) as states:
            found = predictor.predictions(series, with_lists=False, on_progress=on_progress)
            for one, seen in zip(found, states, strict=True):
                yield doubt.answer(one, seen_in_training=seen)

    def _evidence(
        self, series: list[Series], on_progress: Callable[[float], None] | None
    ) -> Iterator[SeriesEvidence]:
        settings: dict[str, Any] = {"config_hash": self.current_config.hash}
        calibration = self._calibration_in_use
        if calibration is not None:
            settings["calibration"] = calibration.method
            if self.calibration_level_ == "series":
                settings["calibration_level"] = "series"
        if self.projection and self.space == "features":
            settings["projection"] = self.projection
        predictor, doubt = self._predictor(calibration), self.doubt()
        if doubt.has_sets:
            settings |= {
                "conformal_alpha": doubt.alpha,
                "conformal_threshold": doubt.threshold(doubt.alpha),
            }
        quiet = on_progress is not None
        with self._bar("predicting", series, quiet=quiet) as bar, doubt.seen.states(series) as states:
            found = predictor.predictions(series, on_progress=on_progress or bar)
            for one, seen in zip(found, states, strict=True):
                said = doubt.answer(one, seen_in_training=seen)
                yield trace_prediction(
                    one,
                    self.classes_,
                    settings=settings,
                    notes=said.notes,
                    interval=said.interval,
                    prediction_set=said.prediction_set,
                    seen_in_training=said.seen_in_training,
                )
                del one  # or its lists would be held while the next is computed

    def doubt(self) -> Doubt:
        """What was fitted of it, with the settings as they stand."""
        calibration = self._calibration_in_use
        tried = score_settings(self.config_) if self.trial_ is None else self.trial_.settings
        return Doubt(
            trial=self.trial_,
            familiar=self.familiar_,
            alpha=float(self.config.calibration.conformal_alpha),
            calibrated=calibration is not None,
            series_calibration=calibration if self.calibration_level_ == "series" else None,
            changed=tried != score_settings(self.current_config),
            rates=self.training_data_["rates"],
            seen=TrainingRecord.of(self.training_data_),
        )

    @property
    def _calibration_in_use(self) -> Calibration | None:
        asked = self.config.calibration
        return calibration_in_use(
            self.calibration_,
            asked.calibration,
            fitted_level=self.calibration_level_,
            level=asked.calibration_level,
        )

    @property
    def _heads_in_use(self) -> FeatureHeads | None:
        return heads_in_use(self.heads_, projection=self.projection, weighting=self.weighting)

    def predictor(self) -> Predictor:
        """What was fitted, with the settings as they stand: what predicts, and other weights can be tried with."""
        check_is_fitted(self, "config_")
        return self._predictor(self._calibration_in_use)

    def _predictor(self, calibration: Calibration | None) -> Predictor:
        """What was fitted, with the settings as they stand."""
        config = self.config
        learned = config.aggregation.temperature == "learned"
        return Predictor(
            backbone=self.backbone_,
            device=pick_device(self.device),
            scaling=self.scaling_,
            window_length=self.window_length_,
            stride=config.windows.stride,
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
        length, stride = self.window_length_, self.stride
        n_windows = sum(
            len(window_starts(one.n_samples, window_length=length, stride=stride)) for one in series
        )
        return share_bar(doing, n_windows, unit="windows", quiet=quiet or not self.verbose)
