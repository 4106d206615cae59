"""`AutoRAxSS`: settings chosen by a search on the training series, as a scikit-learn estimator.

    series, labels, groups -> inner folds -> successive halving over candidates (search.py, candidates.py)
        -> the preferred one, fitted on all series: best_estimator_, and the table of what was tried

A finished fit of a candidate without a fold is kept in ``folder``, named by the hash of all that decides it, so
that a search which was killed goes on where it was. Only the series given to `fit` are looked at.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin
from sklearn.utils.validation import check_is_fitted

from raxss._core.atomic import MARK, canonical_hash, json_ready, output_lock, write_text
from raxss._core.outputs import LOCK
from raxss._core.progress import progress_bar
from raxss._core.settings import at_least
from raxss._core.store import DAMAGE, Store
from raxss._core.version import __version__
from raxss.data.prepare.preprocessing import PreparationConfig, check_series
from raxss.data.series import Series, SeriesCollection
from raxss.errors import ConfigError, DataError, OutputError, SearchWarning, display_name
from raxss.estimator import inputs
from raxss.estimator.at_once import MOST_SERIES, is_by_gradients, with_members
from raxss.estimator.candidates import DEFAULT, Candidate, Facts, candidates_for
from raxss.estimator.classifier import RAxSSClassifier
from raxss.estimator.encoder import ModelEncoder
from raxss.estimator.fit import augmentation_for, chosen_settings, drawn_seed, quiet
from raxss.estimator.persistence import save_model
from raxss.estimator.search import (
    Budget,
    Deadline,
    Fold,
    FoldFit,
    Halving,
    HeldOutLosses,
    Trial,
    in_one_line,
    in_words,
    inner_folds,
    seconds_of,
)
from raxss.estimator.search_report import SearchReport
from raxss.estimator.with_library import CaseModel
from raxss.explain.export.report.page import Report
from raxss.explain.series_evidence import SeriesEvidence
from raxss.method.backbones.beats import FEWEST_SECONDS_OF_BEATS, holds_beats
from raxss.method.backbones.protocol import BackboneConfig
from raxss.method.class_weights import class_weights
from raxss.method.window_scorer import pick_device
from raxss.method.windows import plan_windows
from raxss.uncertainty.calibration import CalibrationConfig, Decision, Level, Method
from raxss.uncertainty.decision import ARGMAX
from raxss.uncertainty.summary import ScoredSeries

if TYPE_CHECKING:
    from raxss.explain.faithfulness.running import SeriesFaithfulness
    from raxss.library.case_library import CaseLibrary

logger = logging.getLogger("raxss")

FORMAT = "raxss-search-1"
DATA = "search"  # the part that says of which series the folder is
REFITS_OF_TUNING = 3.0  # fits on two thirds, three of them, and the fit itself: at most three times as long
#: Parameters that every candidate gets as they are.
SHARED = (
    "missing", "share_missing", "calibration", "calibration_level", "conformal_alpha", "decision_threshold",
    "class_weight", "device",
)  # fmt: skip


class AutoRAxSS(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Choose settings of `RAxSSClassifier` by successive halving on the training series, and fit them.

    A short list of candidates (`raxss.estimator.candidates.CANDIDATES`) is compared by the log loss of series that
    they were not fitted on, in an inner cross-validation that keeps groups together. After each fold the better
    half goes on. The default always does, and another candidate is chosen only if its log loss on the same series
    is smaller by at least half of the standard error of that difference over groups: a switch on noise would give
    up the robustness of the default for nothing. The choice is fitted on all series.

    Parameters
    ----------
    budget
        Time for search and final fit: seconds, or a text such as ``"90s"``, ``"10min"`` or ``"2h"``. A fit is begun
        only if there is time for it, and for the final fit after it. If there is no time for the default, the
        choice is among what is quicker, with a `SearchWarning`; the fit of the quickest candidate is always done.
        With a budget, which candidates are compared depends on the machine. None: only with ``n_trials``.
    n_trials
        Number of candidates that enter the first fold, in the order of the list, in place of a budget: the result
        then depends on data and seed alone. 1: the default.
    n_folds
        Inner folds, at most; fewer where a class is in fewer groups. Where one is in a single group, nothing can be
        compared: the default is fitted, with a `SearchWarning`.
    candidates
        `raxss.estimator.candidates.Candidate` objects in place of the list; the others are judged beside the first.
    folder
        Where finished fits are kept: `fit` with the same series and seed goes on from there, also after a kill.
        None: nothing is kept. The time of kept fits counts as used. A folder with other files is refused.
    missing, share_missing, class_weight, calibration, calibration_level, conformal_alpha, decision_threshold
        Of every candidate, see `RAxSSClassifier`. Class weights also weigh the log loss. Decision thresholds are
        tuned for the choice alone.
    device
        ``"auto"``, ``"cpu"``, ``"cuda"``.
    verbose
        1 shows a progress bar of the search, and those of the final fit, on stderr.
    random_state
        Draws the inner folds, and is the seed of every fit. None: with a ``folder``, the seed of the search in it.

    Attributes
    ----------
    best_estimator_
        The `RAxSSClassifier` fitted on all series; predictions and explanations are its own.
    best_params_, best_index_, best_score_
        Parameters in which the choice differs from the defaults; its place in ``cv_results_``; its mean score, NaN
        where nothing was compared.
    cv_results_
        As of `sklearn.model_selection.GridSearchCV`; scores are negative log losses, NaN where a candidate was not
        fitted. ``mean_test_score`` is the mean over the series of all its folds. Further columns: ``candidate``,
        ``reason``, ``rung`` (on how many folds it was scored), ``difference`` of the log loss from the reference on
        the same series with its standard error over groups, ``std_difference``, on how many folds both have,
        ``n_paired``, and ``outcome``. Log losses of candidates with another ``rung`` are not comparable.
    search_report_
        `raxss.estimator.search_report.SearchReport`: ``table()`` for the terminal, ``html()``, ``to_json()``.
    n_splits_, refit_time_, search_seconds_, seed_, classes_, n_features_in_
        ``search_seconds_``: all the time used, with that of earlier runs.

    Examples
    --------
    >>> from raxss.data.datasets import load_synthetic
    >>> from raxss.estimator.candidates import CANDIDATES
    >>> series = load_synthetic(24, seed=1)
    >>> some = [candidate for candidate in CANDIDATES if candidate.name in ("trees", "ridge")]
    >>> auto = AutoRAxSS(n_trials=2, n_folds=2, candidates=some, random_state=0).fit(series)
    >>> list(auto.cv_results_["candidate"]), auto.predict_proba(series[:5]).shape
    (['trees', 'ridge'], (5, 2))
    """

    best_estimator_: RAxSSClassifier
    best_params_: dict[str, Any]
    best_index_: int
    best_score_: float
    cv_results_: dict[str, Any]
    search_report_: SearchReport
    classes_: NDArray[Any]
    n_splits_: int
    refit_time_: float
    search_seconds_: float
    seed_: int

    def __init__(
        self,
        budget: str | float | None = "10min",
        *,
        n_trials: int | None = None,
        n_folds: int = 3,
        candidates: Sequence[Candidate] | None = None,
        folder: Path | str | None = None,
        missing: Literal["refuse", "nan"] = PreparationConfig.missing,
        share_missing: bool = BackboneConfig.share_missing,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        calibration: Method = CalibrationConfig.calibration,
        calibration_level: Level = CalibrationConfig.calibration_level,
        conformal_alpha: float = CalibrationConfig.conformal_alpha,
        decision_threshold: Decision = CalibrationConfig.decision_threshold,
        device: str = "auto",
        verbose: int = 0,
        random_state: Any = None,
    ) -> None:
        self.budget = budget
        self.n_trials = n_trials
        self.n_folds = n_folds
        self.candidates = candidates
        self.folder = folder
        self.missing = missing
        self.share_missing = share_missing
        self.class_weight = class_weight
        self.calibration = calibration
        self.calibration_level = calibration_level
        self.conformal_alpha = conformal_alpha
        self.decision_threshold = decision_threshold
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "nan"
        return tags

    # Fitting ----------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: ArrayLike | None = None, groups: ArrayLike | None = None) -> Self:
        """Search, and fit the choice on all series.

        Parameters
        ----------
        X, y, groups
            As of `RAxSSClassifier.fit`. Series of a group are on one side of every inner fold.
        """
        inputs.forget_fit(self)
        budget = self._checked_budget()
        series = inputs.as_series(X, estimator=self, reset=True)
        labels = inputs.as_labels(y, series)
        groups = inputs.as_groups(groups, series)
        check_series(series)
        self.classes_, targets = inputs.as_classes(labels)
        facts = Facts.of(series)
        trials = [
            Trial(candidate, candidate.settings(facts))
            for candidate in candidates_for(facts, self.candidates, most=self.n_trials)
        ]
        for trial in trials:
            self._estimator(trial.params).check_settings()  # before anything is fitted
        with ExitStack() as held:
            store, data = None, ""
            if self.folder is not None:
                refuse_foreign_folder(self.folder)  # before the lock, which may lie inside
                held.enter_context(output_lock(self.folder))
                store = Store(Path(self.folder), format=FORMAT, indent=None, entries={"content": dict})
                data = data_hash(series, labels, groups)
            self.seed_ = self._seed_of(store, data)
            sizes = {"n_folds": self.n_folds, "n_classes": len(self.classes_)}
            folds = inner_folds(targets, groups, seed=self.seed_, **sizes) if len(trials) > 1 else []
            given = class_weights(self.class_weight, self.classes_, targets) if self.class_weight else None
            keys = np.arange(len(targets)) if groups is None else np.unique(groups, return_inverse=True)[1]
            weights = np.ones(len(targets)) if given is None else given[targets]
            scores = HeldOutLosses(folds, targets, weights, keys, are_series=groups is None)
            evaluate = _Evaluation(self, store, data, budget, series, labels, groups, folds)
            search = Halving(trials, scores, evaluate, budget, self._refit_factors(folds))
            with _progress(search, quiet=not self.verbose) as search.on_unit:
                search.run()
            began = time.perf_counter()
            chosen, notes = self._fit_choice(
                search, lambda trial: self._refitted(trial, X, labels, groups, evaluate)
            )
        self.refit_time_ = time.perf_counter() - began
        self.search_seconds_ = budget.elapsed
        self.search_report_ = SearchReport.of(
            search,
            chosen=chosen,
            groups=None if groups is None else len(np.unique(keys)),
            is_weighted=given is not None,
            budget=self._in_words(len(trials)),
            search_seconds=self.search_seconds_,
            refit_seconds=self.refit_time_,
            seed=self.seed_,
            notes=notes,
        )
        names = [trial.name for trial in trials]
        self.cv_results_ = self.search_report_.cv_results(names)
        self.best_index_ = names.index(chosen.name)
        self.best_score_ = float(self.cv_results_["mean_test_score"][self.best_index_])
        self.best_params_ = dict(chosen.params)
        self.n_splits_ = len(folds)
        logger.info(self.search_report_.summary)
        for note in notes:
            warnings.warn(note, SearchWarning, stacklevel=2)
        return self

    def _checked_budget(self) -> Budget:
        if self.budget is None and self.n_trials is None:
            raise ConfigError(
                "budget is None and n_trials is None; needed is one of them, which ends the search. Set budget to "
                "a time, such as '10min', or n_trials to a number of candidates."
            )
        seconds = None if self.budget is None else seconds_of(self.budget)
        at_least("n_folds", self.n_folds, 2)
        if self.n_trials is not None:
            at_least("n_trials", self.n_trials, 1, otherwise=" or None")
        return Budget(None if self.n_trials is not None else seconds)

    def _in_words(self, n_trials: int) -> str:
        if self.n_trials is not None or self.budget is None:
            return f"n_trials = {n_trials}"
        return f"budget {in_words(seconds_of(self.budget))}"

    def _seed_of(self, store: Store | None, data: str) -> int:
        """The seed: that of the folder, if it has one; a folder of other series, folds or seed is refused."""
        is_given = isinstance(self.random_state, int | np.integer)
        seed = drawn_seed(self.random_state)
        if store is None:
            return seed
        key = canonical_hash([FORMAT, data, int(self.n_folds)])
        if store.path(DATA).exists():
            kept = store.read(DATA, key)
            found = None if kept is None else kept["content"].get("seed")
            if type(found) is int and (found == seed or not is_given):
                return found
            raise DataError(
                f"the folder {display_name(store.folder)} holds a search of other series, labels, groups, folds "
                "or seed, or was changed; needed is an empty folder, or the one of this search. Choose another "
                "folder, or delete this one."
            )
        write_text(store.folder / MARK, "Written by raxss, as a search for settings that can be resumed.\n")
        store.write(DATA, key, {"content": {"seed": seed}})
        return seed

    def _refit_factors(self, folds: Sequence[Fold]) -> tuple[float, float]:
        """How many times the fit without a fold, and the prediction of a fold, a fit on all series takes."""
        if not folds:
            return 1.0, 0.0
        n_series = sum(map(len, folds[0]))
        tuned = 1.0 if self.decision_threshold == ARGMAX else REFITS_OF_TUNING
        n_train, n_test = (float(np.mean([len(fold[part]) for fold in folds])) for part in (0, 1))
        return tuned * n_series / n_train, tuned * min(n_series, MOST_SERIES) / n_test

    def _fit_choice(
        self, search: Halving, refit: Callable[[Trial], RAxSSClassifier]
    ) -> tuple[Trial, list[str]]:
        """Fit the choice on all series; one that fails now and failed before gives way to the best that did not."""
        chosen, notes = self._choice(search)
        try:
            self.best_estimator_ = refit(chosen)
        except Exception as error:
            others = [trial for trial in search.preferred() if trial is not chosen and not trial.failure]
            if not chosen.failure or not others:
                raise
            notes = [
                f"{_called(chosen)} could not be fitted, neither without a fold ({chosen.failure}) nor on all "
                f"series ({in_one_line(error)}); {others[0].name!r}, the best of the others, was fitted in its "
                "place."
            ]
            chosen = others[0]
            self.best_estimator_ = refit(chosen)
        return chosen, notes

    def _choice(self, search: Halving) -> tuple[Trial, list[str]]:
        """The preferred trial that there is time to fit, and what is to be said of it."""
        first = search.trials[0]
        if not search.scores.folds:
            if len(search.trials) == 1:
                return first, []
            what = "series" if search.scores.are_series else "groups"
            one = "has one series alone" if search.scores.are_series else "is in one group of series alone"
            return first, [
                f"nothing could be compared: a class {one}, and needed are two {what} of each class. "
                f"{first.name!r} was fitted without a search. Give more {what}, or use RAxSSClassifier."
            ]
        if first.failure:
            return _after_failure(search)
        order = search.preferred()
        chosen = next((trial for trial in order if search.has_time_for(trial)), None)
        if chosen is None:
            chosen = min(order, key=search.refit_seconds) if order else search.cheapest
        if first.units and (chosen is order[0] or search.has_time_for(first)):
            return chosen, []
        what = _called(first)
        text = f"there was no time to fit {what} within the budget of {in_words(search.budget.seconds or 0)}"
        text += f" (about {in_words(search.refit_seconds(first))} are needed)" if first.units else ""
        among = len([trial for trial in order if search.has_time_for(trial)])
        why = "the quickest candidate" if among < 2 else f"the best of {among} candidates that fit into it"
        return chosen, [f"{text}; {chosen.name!r}, {why}, was fitted. Give a larger budget, or n_trials."]

    def _estimator(self, params: Mapping[str, Any], **further: Any) -> RAxSSClassifier:
        """A candidate with the parameters that all share."""
        shared = {name: getattr(self, name) for name in SHARED}
        return RAxSSClassifier(**{**shared, **params, **further})

    def _refitted(
        self, chosen: Trial, X: Any, labels: NDArray[Any], groups: Any, evaluation: _Evaluation
    ) -> RAxSSClassifier:
        """The choice fitted on all series; a network goes on from its checkpoint in the folder."""
        model = self._estimator(chosen.params, random_state=self.seed_, verbose=self.verbose)
        store = evaluation.store
        checkpoint = None
        if store is not None:
            checkpoint = store.folder / f"{chosen.name}-{evaluation.key(chosen, -1)[:12]}.checkpoint"
        logger.info("fitting %s on all series", chosen.name)
        model.fit(X, labels, groups, checkpoint=checkpoint, resume=checkpoint is not None)
        return model

    # Prediction -------------------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Series probabilities ``(n_series, C)``, columns as in ``classes_``."""
        return self._fitted.predict_proba(self._known(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each series ``(n_series,)``, from ``classes_``."""
        return self._fitted.predict(self._known(X))

    def predict_set(self, X: Any, *, alpha: float | None = None) -> NDArray[np.bool_]:
        """Which classes cannot be ruled out: ``(n_series, C)``; see `RAxSSClassifier.predict_set`."""
        return self._fitted.predict_set(self._known(X), alpha=alpha)

    def score_series(self, X: Any) -> Iterator[ScoredSeries]:
        """Probability, interval, prediction set and notes of each series."""
        return self._fitted.score_series(self._known(X))

    def explain(self, X: Any) -> Any:
        """Evidence of the prediction of one series, or a list for several; see `RAxSSClassifier.explain`."""
        return self._fitted.explain(X)

    def explain_each(
        self, X: Any, *, on_progress: Callable[[float], None] | None = None
    ) -> Iterator[SeriesEvidence]:
        """`explain` many series one after the other; see `RAxSSClassifier.explain_each`."""
        return self._fitted.explain_each(X, on_progress=on_progress)

    def window_probabilities(self, X: Any) -> Iterator[NDArray[np.float64]]:
        """The posteriors of the windows of each series; see `RAxSSClassifier.window_probabilities`."""
        return self._fitted.window_probabilities(self._known(X))

    def encoder(self) -> ModelEncoder:
        """What a case library needs of the fitted model; see `RAxSSClassifier.encoder`."""
        return self._fitted.encoder()

    def with_library(self, library: CaseLibrary, mode: str = "evidence", **settings: Any) -> CaseModel:
        """``best_estimator_`` with a case library; see `RAxSSClassifier.with_library`."""
        return self._fitted.with_library(library, mode, **settings)

    def faithfulness(self, X: Any, *, seed: int = 0) -> SeriesFaithfulness:
        """Faithfulness tests of the evidence of one series; see `RAxSSClassifier.faithfulness`."""
        return self._fitted.faithfulness(X, seed=seed)

    def report(self, X: Any, *, name: str | None = None, positive: Any = None) -> Report:
        """Evidence as one HTML page; see `RAxSSClassifier.report`."""
        return self._fitted.report(X, name=name, positive=positive)

    def save_pretrained(self, folder: Path | str, *, overwrite: bool = False) -> Path:
        """Write the model folder of ``best_estimator_``, with the search in its card, search.html and search.json.

        `RAxSSClassifier.from_pretrained` reads it: the choice is in the settings of the model. Saved again, it has
        no search in its card and none of the two files, which are not read.
        """
        return save_model(self._fitted, Path(folder), overwrite=overwrite, search=self.search_report_)

    @property
    def _fitted(self) -> RAxSSClassifier:
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_

    def _known(self, X: Any) -> list[Series]:
        """Series in any accepted form; tables are compared with that of `fit`."""
        check_is_fitted(self, "best_estimator_")
        return inputs.as_series(X, estimator=self, reset=False)


class _Evaluation:
    """Fits a trial without a fold, or reads what an earlier run has kept of it."""

    def __init__(
        self,
        auto: AutoRAxSS,
        store: Store | None,
        data: str,
        budget: Budget,
        series: Sequence[Series],
        labels: NDArray[Any],
        groups: NDArray[Any] | None,
        folds: Sequence[Fold],
    ) -> None:
        self.auto, self.store, self.data, self.budget = auto, store, data, budget
        self.series, self.labels, self.groups, self.folds = series, labels, groups, folds

    def __call__(self, trial: Trial, fold: int, limit: float) -> FoldFit:
        """The unit of a trial and a fold; OutOfTimeError if it would take longer than ``limit`` seconds."""
        shape = len(self.folds[fold][1]), len(self.auto.classes_)
        if self.store is None:
            return self._fit(trial, fold, limit)
        key = self.key(trial, fold)
        name = f"{trial.name}-{fold + 1}-{key[:12]}"
        kept = self.store.read(name, key)
        if kept is not None:
            try:
                unit = FoldFit.from_json(kept["content"], shape)
            except DAMAGE as error:
                logger.warning("the part %s is damaged (%s); it is computed again.", name, error)
            else:
                self.budget.before += unit.seconds
                return unit
        self.store.write(name, key, {"content": self._fit(trial, fold, limit).to_json()})
        return FoldFit.from_json(self.store.require(name, key)["content"], shape)

    def key(self, trial: Trial, fold: int) -> str:
        """Hash of all that decides a unit; fold -1: a fit on all series."""
        settings = self._settings(trial, fold)
        tables = self.auto._estimator(settings).check_settings().tables()
        device = pick_device(self.auto.device).type
        parts = [
            FORMAT,
            __version__,
            self.data,
            self.auto.seed_,
            len(self.folds),
            fold,
            trial.name,
            tables,
            device,
        ]
        return canonical_hash(json_ready(parts))

    @functools.cached_property
    def _facts(self) -> Facts:
        return Facts.of(self.series)

    def _settings(self, trial: Trial, fold: int) -> dict[str, Any]:
        """Parameters of a fit.

        Without a fold, what is chosen from the data is what it would be on all series: windows, augmentation and
        the members of a mixture. What the probabilities do not depend on is left out: tuning of a threshold, and
        the validation of what is not trained by gradients.
        """
        if fold < 0:
            return trial.params
        settings = {**trial.params, "decision_threshold": ARGMAX, "conformal_alpha": 0.0}
        facts, lengths, rate = self._facts, self._facts.lengths, inputs.known_rate(self.series)
        config = self.auto._estimator(settings).config
        least = FEWEST_SECONDS_OF_BEATS if facts.has_beats else 0.0
        plan = plan_windows(config.windows, lengths, rate=rate, least_seconds=least)
        config = with_members(
            config,
            lengths,
            facts.n_variates,
            rate=rate,
            has_beats=facts.has_beats and holds_beats(plan.window_length, rate),
        )
        trains = is_by_gradients(config, lengths)
        augmentation = augmentation_for(config, plan.window_length, n_series=len(lengths), trains=trains)
        settings |= chosen_settings(config, plan, augmentation)
        if self.auto.calibration == "none" and not trains:
            settings["validation_fraction"] = 0.0
        return settings

    def _fit(self, trial: Trial, fold: int, limit: float) -> FoldFit:
        train, test = self.folds[fold]
        deadline = Deadline(limit)
        model = self.auto._estimator(
            self._settings(trial, fold), random_state=self.auto.seed_, callbacks=[deadline]
        )
        began = time.perf_counter()
        with quiet():
            model.fit(
                SeriesCollection([self.series[place] for place in train]),
                self.labels[train],
                None if self.groups is None else self.groups[train],
            )
            if model.interrupted_:
                raise KeyboardInterrupt
            fitted = time.perf_counter()
            found = model.predict_proba([self.series[place] for place in test])
        return FoldFit(found, fitted - began, time.perf_counter() - fitted, trained=deadline.trained)


def _called(first: Trial) -> str:
    return "the default" if first.name == DEFAULT else f"the first candidate, {first.name!r},"


def _after_failure(search: Halving) -> tuple[Trial, list[str]]:
    """The choice where the first candidate failed without a fold, and what is to be said of it.

    On all series, which are more, it may well be fitted; the others were not compared with it.
    """
    first = search.trials[0]
    others = [trial for trial in search.preferred() if trial is not first and not trial.failure]
    order = [first, *others]
    chosen = next((trial for trial in order if search.has_time_for(trial)), None)
    chosen = chosen or min(order, key=search.refit_seconds)
    what = f"{_called(first)} could not be fitted without a fold ({first.failure})"
    what += ", so that no other was compared with it" if others else ", and no other candidate could either"
    end = (
        "was fitted on all series" if chosen is first else "was fitted, since there was no time for the first"
    )
    return chosen, [
        f"{'' if others else 'nothing could be compared: '}{what}; {chosen.name!r} {end}. Change what fails, or "
        "give more groups of each class."
    ]


def refuse_foreign_folder(folder: Path | str) -> None:
    """Raise unless a folder is absent, empty or that of a search: in another one nothing is written or removed.

    A marked folder that holds something else, such as a model, is refused as well.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp())
    >>> refuse_foreign_folder(place)
    >>> _ = (place / "notes.txt").write_text("mine")
    >>> refuse_foreign_folder(place)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    raxss.errors.OutputError: [Errno 17] ..., holds other files than those of a search, and was left as it is; ...
    """
    place = Path(folder)
    if not place.exists():
        return
    if place.is_dir():
        names = {item.name for item in place.iterdir()} - {LOCK}
        # hidden files: a search that was killed before its first part left them beside the mark
        is_own = MARK in names and (f"{DATA}.json" in names or all(name.startswith(".") for name in names))
        if is_own or not names:
            return
    what = "holds other files than those of a search" if place.is_dir() else "is a file, not a folder"
    raise OutputError(
        errno.EEXIST,
        f"{display_name(place)}, where the fits of a search would be kept, {what}, and was left as it is; needed "
        "is a folder that is empty, absent or that of an earlier search. Choose another place, or move it away.",
    )


def data_hash(series: Sequence[Series], labels: NDArray[Any], groups: NDArray[Any] | None) -> str:
    """Hash of samples, rates, labels and groups; names and paths do not enter.

    >>> one, other = [Series([0.0, 1.0])], [Series([0.0, 2.0])]
    >>> data_hash(one, np.array([1]), None) == data_hash(other, np.array([1]), None)
    False
    """
    digest = hashlib.sha256()
    for item in series:
        digest.update(f"{item.samples.shape} {item.samples.dtype} {item.rate} {item.preparation}".encode())
        digest.update(np.ascontiguousarray(item.samples).data)
    digest.update(repr([labels.tolist(), None if groups is None else groups.tolist()]).encode())
    return digest.hexdigest()


@contextmanager
def _progress(search: Halving, *, quiet: bool) -> Iterator[Callable[[Trial, int], None]]:
    """A bar over the fits of a search; where stderr is not a terminal, one line a fit instead."""
    n, total = len(search.trials), 0
    for _ in search.scores.folds:
        total, n = total + n, -(-n // 2) + 1
    with progress_bar(unit="fits", quiet=quiet) as bar:
        task = bar.add_task("searching", total=total)

        def on_unit(trial: Trial, fold: int) -> None:
            line = (
                f"fold {fold + 1} of {len(search.scores.folds)}, {trial.name}: log loss "
                f"{search.scores.loss(trial, [fold]):.4f}, {in_words(trial.units[fold].seconds)}"
            )
            bar.update(task, advance=1, description=line)
            if bar.disable and not quiet:
                print(line, file=sys.stderr, flush=True)

        yield on_unit
        bar.update(task, total=bar.tasks[0].completed)
