"""Successive halving over the folds of an inner cross-validation, within a budget of seconds.

    class indices, groups -> inner folds;  candidates -> trials
    rung r: the trials that are left are fitted without fold r and scored on it; the better half goes on

The first candidate, usually the default, goes on to the last rung, so that the choice is made beside it: another is
preferred only if its log loss on the same series is smaller by at least half a standard error. Within a budget a
fit is begun only if there is time for it, and for fitting what would be chosen then on all series. auto.py fits and
keeps; search_report.py shows.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

from raxss._core.settings import is_number
from raxss.errors import ConfigError, RAxSSError, without_folders
from raxss.estimator.candidates import Candidate
from raxss.uncertainty.reliability import CLAMP

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Fold = tuple[Integers, Integers]  # training and test indices

UNITS = {
    "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "m": 60.0, "min": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hour": 3600.0, "hours": 3600.0,
}  # fmt: skip
GUESSED = 1.1  # by which a fit may take longer than costs of other candidates suggest
MEASURED = 1.1  # by which it may take longer than on the folds before
REFIT = 1.25  # by which a fit on all series may take longer than in proportion to their number
#: Standard errors by which the log loss of a choice must be below that of the reference. Of many candidates one is
#: often ahead by noise alone, and a switch on noise gives up what the default is robust against for nothing.
CLEARLY = 0.5
STEPS_TO_MEASURE = 10  # of training by gradients, before its time is projected
SHARE_OF_DEFAULT = (
    2.0  # a network may take as long as this many fits of the default, or its share of what is left
)


def seconds_of(budget: str | float) -> float:
    """A budget in seconds: a number of them, or a text with a unit.

    >>> seconds_of("10min"), seconds_of("10m"), seconds_of("1.5 h"), seconds_of(90)
    (600.0, 600.0, 5400.0, 90.0)
    """
    found = float(budget) if is_number(budget) else math.nan
    if isinstance(budget, str):
        parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", budget.lower())
        if parts and parts[2] in UNITS:
            found = float(parts[1]) * UNITS[parts[2]]
    if not 0 < found < math.inf:
        raise ConfigError(
            f"budget is {budget!r}; needed is a time above 0: a number of seconds, or one with s, min (m) or h, "
            "such as '90s', '10min' or '2h'."
        )
    return found


def in_words(seconds: float) -> str:
    """A time for tables and messages.

    >>> in_words(4.21), in_words(95), in_words(5400)
    ('4.2 s', '1 min 35 s', '1 h 30 min')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def inner_folds(
    targets: Integers, groups: NDArray[Any] | None, *, n_folds: int, seed: int, n_classes: int
) -> list[Fold]:
    """Training and test indices of each fold, stratified by class, whole groups at a time.

    Fewer folds where a class is in fewer groups (series, where there are no groups); none where a class is in one
    group alone, which cannot be in training and test part at once.

    Examples
    --------
    >>> targets, groups = np.array([0, 0, 0, 0, 1, 1]), np.array(["a", "a", "b", "c", "d", "e"])
    >>> [test.tolist() for _, test in inner_folds(targets, groups, n_folds=3, seed=0, n_classes=2)]
    [[0, 1, 4], [2, 3, 5]]
    """
    keys = np.arange(len(targets)) if groups is None else np.unique(groups, return_inverse=True)[1]
    fewest = min(len(np.unique(keys[targets == label])) for label in range(n_classes))
    for n in range(min(n_folds, fewest), 1, -1):
        kind = StratifiedKFold if groups is None else StratifiedGroupKFold
        splitter = kind(n, shuffle=True, random_state=seed % 2**32)
        found = list(splitter.split(np.zeros(len(targets)), targets, None if groups is None else keys))
        if all(len(test) and len(np.unique(targets[train])) == n_classes for train, test in found):
            return found
    return []


@dataclass
class Budget:
    """Seconds that a search may take; those of fits that an earlier run has kept count as well."""

    seconds: float | None  # None: the number of trials decides
    clock: Callable[[], float] = time.perf_counter
    before: float = 0.0  # seconds of fits of earlier runs

    def __post_init__(self) -> None:
        self._began = self.clock()

    @property
    def elapsed(self) -> float:
        """Seconds that were used."""
        return self.before + self.clock() - self._began

    @property
    def left(self) -> float:
        """Seconds that are left; infinite without a budget."""
        return math.inf if self.seconds is None else self.seconds - self.elapsed


class OutOfTimeError(Exception):
    """A fit in progress would take longer than it may; never leaves the search."""


class Deadline:
    """A callback of training that ends a fit which would take too long, and knows whether a network was trained."""

    def __init__(self, limit: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._limit, self._clock, self._began = limit, clock, clock()
        self.trained = False
        self._steps_done, self._first = 0, 0.0

    def on_train_begin(self, n_epochs: int, n_steps: int) -> None:
        """Count the steps that there will be at most."""
        self.trained, self._n_steps = True, n_epochs * n_steps

    def on_step(self, epoch: int, step: int) -> None:
        """Project the time of all steps from those done; the first, which may compile, is left out."""
        self._steps_done += 1
        now = self._clock()
        if self._steps_done == 1:
            self._first = now
        if self._steps_done <= STEPS_TO_MEASURE:
            return
        each = (now - self._first) / (self._steps_done - 1)
        if now - self._began + each * (self._n_steps - self._steps_done) > self._limit:
            raise OutOfTimeError

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """Nothing: a step says it all."""

    def on_train_end(self) -> None:
        """Nothing."""


@dataclass(frozen=True, eq=False)
class FoldFit:
    """One candidate without one fold: probabilities of the series of the fold, and what they took."""

    probabilities: Floats  # (n_test, C)
    fit_seconds: float
    score_seconds: float
    trained: bool = False  # whether a network was trained by gradients

    @property
    def seconds(self) -> float:
        """Of fit and prediction."""
        return self.fit_seconds + self.score_seconds

    def to_json(self) -> dict[str, Any]:
        """The content of its part in the folder."""
        return {
            "probabilities": self.probabilities.tolist(),
            "fit_seconds": self.fit_seconds,
            "score_seconds": self.score_seconds,
            "trained": self.trained,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any], shape: tuple[int, int]) -> Self:
        """Read back what `to_json` gave; anything else is refused with a ValueError."""
        rows = np.array(value["probabilities"], dtype=np.float64)
        seconds = float(value["fit_seconds"]), float(value["score_seconds"])
        if rows.shape != shape or not np.isfinite([*rows.flat, *seconds]).all() or min(seconds) < 0:
            raise ValueError(f"it has no probabilities of shape {shape} with the seconds that they took")
        return cls(rows, *seconds, trained=bool(value["trained"]))


@dataclass(eq=False)
class Trial:
    """A candidate in a search, with what is known of it."""

    candidate: Candidate
    params: dict[str, Any]
    units: dict[int, FoldFit] = field(default_factory=dict)  # by fold
    outcome: str = ""  # why it was not chosen, or that it was
    failure: str = ""  # the error of a fit without a fold

    @property
    def name(self) -> str:
        """That of the candidate."""
        return self.candidate.name

    @property
    def trained(self) -> bool:
        """Whether a network was trained."""
        return any(unit.trained for unit in self.units.values())


@dataclass(frozen=True, eq=False)
class HeldOutLosses:
    """What the probabilities of a fold are compared with."""

    folds: Sequence[Fold]
    targets: Integers  # (n,)
    weights: Floats  # (n,) class weights of the series
    keys: Integers  # (n,) groups as numbers
    are_series: bool = False  # whether each series is a group of its own, because no groups were given

    def losses(self, trial: Trial, folds: Sequence[int]) -> tuple[Floats, Integers]:
        """Log losses of the series of these folds, and the places of the series."""
        places = np.concatenate([self.folds[fold][1] for fold in folds])
        rows = np.concatenate([trial.units[fold].probabilities for fold in folds])
        own = rows[np.arange(len(places)), self.targets[places]]
        return -np.log(np.clip(own, CLAMP, 1 - CLAMP)), places

    def loss(self, trial: Trial, folds: Sequence[int] | None = None) -> float:
        """Mean log loss over the series of these folds (default: all that there are), weighted by class."""
        folds = sorted(trial.units) if folds is None else folds
        if not folds:
            return math.nan
        losses, places = self.losses(trial, folds)
        return float(np.average(losses, weights=self.weights[places]))

    def paired(self, trial: Trial, other: Trial) -> tuple[float, float, int]:
        """Mean difference of log losses on the folds that both have, its standard error, and how many folds.

        With d_i the difference on series i, of weight w_i (they sum to 1), D = sum of w_i d_i, and groups g of
        which there are G: error² = G / (G - 1) sum over g of (sum over i in g of w_i (d_i - D))².
        """
        both = sorted(set(trial.units) & set(other.units))
        if not both:
            return math.nan, math.nan, 0
        losses, places = self.losses(trial, both)
        gaps = losses - self.losses(other, both)[0]
        weights = self.weights[places] / self.weights[places].sum()
        mean = float(weights @ gaps)
        sums = np.bincount(np.unique(self.keys[places], return_inverse=True)[1], weights * (gaps - mean))
        n = len(sums)
        error = math.sqrt(n / (n - 1) * float(sums @ sums)) if n > 1 else math.nan
        return mean, error, len(both)


@dataclass(eq=False)
class Halving:
    """Successive halving.

    Parameters
    ----------
    trials
        The first is the reference, beside which the choice is made.
    scores
        Folds and truth.
    evaluate
        Fits a trial without a fold, within so many seconds, and scores the fold; a `OutOfTimeError` if it would
        take longer.
    budget
        The time that there is.
    refit_factors
        How many times the fit without a fold, and the prediction of a fold, a fit on all series takes: it has more
        series, and predicts them for its validation.
    """

    trials: list[Trial]
    scores: HeldOutLosses
    evaluate: Callable[[Trial, int, float], FoldFit]
    budget: Budget
    refit_factors: tuple[float, float] = (1.5, 3.0)
    on_unit: Callable[[Trial, int], None] = lambda trial, fold: None

    def __post_init__(self) -> None:
        self.reference = self.trials[0]
        self.cheapest = min(self.trials, key=lambda trial: trial.candidate.cost_hint)

    def run(self) -> None:
        """Evaluate the trials, until one is left, the folds are at an end, or the time is."""
        alive = list(self.trials)
        for fold in range(len(self.scores.folds)):
            if not (self._rung(alive, fold) if fold else self._first_rung(alive)):
                break
            alive = self._kept([trial for trial in alive if fold in trial.units], fold)
            if len(alive) < 2:
                break

    def preferred(self) -> list[Trial]:
        """The trials that were evaluated, the one to choose first.

        Those whose log loss on the same series is below that of the reference by `CLEARLY` standard errors come
        before it, if no other that is not the reference was compared on more folds.
        """
        reference = self.reference
        others = [trial for trial in self.trials if trial.units and trial is not reference]
        paired = {id(trial): self.scores.paired(trial, reference) for trial in others}
        most = max((paired[id(trial)][2] for trial in others if not trial.failure), default=0)
        better = [
            trial for trial in others if paired[id(trial)][2] == most and is_better(*paired[id(trial)][:2])
        ]
        better.sort(key=lambda trial: (paired[id(trial)][0], trial.candidate.cost_hint))
        front = [*better, *([reference] if reference.units else [])]
        found = [*front, *self.ranked([trial for trial in others if trial not in front])]
        return sorted(found, key=lambda trial: bool(trial.failure))  # a fit on all series may fail as well

    def ranked(self, trials: Sequence[Trial]) -> list[Trial]:
        """Those that were compared on more folds first, then by log loss; ties by cost, then as they came."""
        return sorted(
            trials,
            key=lambda trial: (-len(trial.units), self.scores.loss(trial), trial.candidate.cost_hint),
        )

    def refit_seconds(self, trial: Trial) -> float:
        """How long a fit on all series may take."""
        fitting, predicting = self.refit_factors
        known = [
            fitting * unit.fit_seconds + predicting * unit.score_seconds for unit in trial.units.values()
        ]
        return REFIT * (max(known) if known else self._refit_share() * self._unit_seconds(trial))

    def _refit_share(self) -> float:
        """A fit on all series beside one without a fold and its prediction, of those that were measured."""
        units = [unit for trial in self.trials for unit in trial.units.values()]
        seconds = sum(unit.seconds for unit in units)
        if seconds == 0:
            return max(self.refit_factors)
        fitting, predicting = self.refit_factors
        return sum(fitting * unit.fit_seconds + predicting * unit.score_seconds for unit in units) / seconds

    def has_time_for(self, trial: Trial) -> bool:
        """Whether there is time for a fit on all series."""
        return self.refit_seconds(trial) <= self.budget.left

    def _first_rung(self, alive: list[Trial]) -> bool:
        """Evaluate trials on the first fold, as far as there is time.

        Where there is none for the reference, or it fails, the cheapest that was evaluated takes its place.
        """
        order = list(alive)
        if self.budget.seconds is not None:  # whose time says what the others will take
            order.sort(key=lambda trial: trial is not self.cheapest)
        for place, trial in enumerate(order):
            n_waiting = len(order) - place
            done = self._evaluated(trial, 0, n_waiting=n_waiting)
            if done and self.reference.outcome == _no_time(0):  # by a guess that is better now
                self._evaluated(self.reference, 0, n_waiting=n_waiting)
        evaluated = [trial for trial in alive if trial.units]
        if evaluated and not self.reference.units:
            self.reference = min(evaluated, key=lambda trial: trial.candidate.cost_hint)
        return True

    def _rung(self, alive: list[Trial], fold: int) -> bool:
        """Evaluate the reference and then the others on a further fold; False: the search is at its end.

        The reference is first, so that no other has a fold which it is not compared on.
        """
        others = self.ranked([trial for trial in alive if trial is not self.reference])
        if not self._has_time_beside_reference(others[0]):
            return _ended([self.reference, *others], _no_time(fold))
        if not self._evaluated(self.reference, fold, n_waiting=len(alive)):
            failed = f"not compared on fold {fold + 1}, where {self.reference.name} failed"
            return _ended(others, failed if self.reference.failure else _no_time(fold))
        for place, trial in enumerate(others):
            done = self._evaluated(trial, fold, n_waiting=len(others) - place)
            is_best = all(better.failure for better in others[:place])
            if not done and not trial.failure and is_best:  # the choice is made on the folds that it has
                return _ended(others, _no_time(fold))
        return True

    def _has_time_beside_reference(self, trial: Trial) -> bool:
        """Whether trial and reference can both be fitted without a further fold, and the choice on all series."""
        pair = (self.reference, trial)
        reserve = max(self.refit_seconds(item) for item in (*pair, self.preferred()[0]))
        return sum(map(self._measured_or_guessed, pair)) + reserve <= self.budget.left

    def _evaluated(self, trial: Trial, fold: int, *, n_waiting: int) -> bool:
        """Evaluate a trial on a fold, if there is time and it does not fail."""
        limit = self._limit(trial, n_waiting)
        if self._measured_or_guessed(trial) > limit:
            trial.outcome = _no_time(fold)
            return False
        try:
            trial.units[fold] = self.evaluate(trial, fold, limit)
        except OutOfTimeError:
            trial.outcome = f"{_no_time(fold)}: training was projected to take too long"
            return False
        except Exception as error:  # of any library: one candidate must not end the search
            trial.failure = in_one_line(error)
            trial.outcome = f"failed: {trial.failure}"
            return False
        trial.outcome = ""
        self.on_unit(trial, fold)
        return True

    def _limit(self, trial: Trial, n_waiting: int) -> float:
        """Seconds that a unit may take: then the leader, and this trial, can still be fitted on all series."""
        left = self.budget.left
        if left == math.inf:
            return left
        known = self.preferred()
        reserve = self.refit_seconds(known[0]) if known else 0.0
        factor = 1.0 + self._refit_share() * REFIT
        if trial.units:
            return left - max(reserve, self.refit_seconds(trial))
        most = min(left - reserve, left / factor) if known else left
        if trial is self.reference or not known:
            return most
        share = max((left - reserve) / n_waiting, SHARE_OF_DEFAULT * self._unit_seconds(self.reference))
        return min(most, max(share, GUESSED * self._unit_seconds(trial)))

    def _measured_or_guessed(self, trial: Trial) -> float:
        """Seconds that a unit will hardly exceed; 0 where nothing is known."""
        return (MEASURED if trial.units else GUESSED) * self._unit_seconds(trial)

    def _unit_seconds(self, trial: Trial) -> float:
        """Seconds of a unit as measured, or by its cost and the most costly one measured without a network."""
        if trial.units:
            return max(unit.seconds for unit in trial.units.values())
        known = [item for item in self.trials if item.units and not item.trained]
        if not known:
            return 0.0
        basis = max(known, key=lambda item: item.candidate.cost_hint)
        seconds = max(unit.seconds for unit in basis.units.values())
        return trial.candidate.cost_hint / basis.candidate.cost_hint * seconds

    def _kept(self, alive: list[Trial], fold: int) -> list[Trial]:
        """The better half of the trials that have this fold, and the reference."""
        if fold + 1 == len(self.scores.folds):
            return alive
        order = self.ranked(alive)
        kept = order[: math.ceil(len(order) / 2)]
        for trial in order[len(kept) :]:
            if trial is not self.reference:
                trial.outcome = f"among the worse half after fold {fold + 1}"
        return [trial for trial in alive if trial in kept or trial is self.reference]


def _ended(waiting: Sequence[Trial], why: str) -> bool:
    """False: the search is at its end. Trials that were not begun on this fold get the reason as their outcome."""
    for trial in waiting:
        trial.outcome = trial.outcome or why
    return False


def is_better(difference: float, error: float) -> bool:
    """Whether a paired difference of log losses is below 0 by `CLEARLY` standard errors.

    >>> is_better(-0.02, 0.03), is_better(-0.01, 0.03), is_better(-0.01, math.nan)
    (True, False, False)
    """
    return difference < 0 and -difference >= CLEARLY * error


def in_one_line(error: Exception) -> str:
    """The message of an error, with its type unless raxss wrote it, without folders: tables are shown to others.

    >>> in_one_line(ConfigError("it is\\nwrong")), in_one_line(KeyError("a")), in_one_line(MemoryError())
    ('it is wrong', "KeyError: 'a'", 'MemoryError')
    """
    text = " ".join(without_folders(str(error)).split())[:200]
    if isinstance(error, RAxSSError) and text:
        return text
    return f"{type(error).__name__}: {text}".removesuffix(": ")


def _no_time(fold: int) -> str:
    """The outcome of a trial that was not begun."""
    return f"no time for fold {fold + 1}"
