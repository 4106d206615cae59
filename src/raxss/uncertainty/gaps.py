"""Gaps and classes: do missing samples tell the class, and has a model learned from them?

    series, classes, groups -> GapFinding: how well the gaps alone predict the class (out of fold)
    fitted model            -> its shift: how far a score moves when gaps of another class are imposed

Where patients of one class have more, or longer, gaps, a model can be right for a reason that has nothing to do
with the signal. estimator/fit.py looks before training and after it; the finding is kept with the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesClassifier

from raxss.data.series import Series
from raxss.method.windows import missing_samples, window_starts, windows_of
from raxss.uncertainty.validation import folds_of

FEWEST_GROUPS = 3  # of each class, to learn from some and test on another
N_PARTS = 8  # of a series, and of a window, whose shares of missing samples say where gaps are
N_PERMUTATIONS = 999
SIGNIFICANT = 0.05
N_TREES = 50
MOST_SERIES = 40  # on which gaps are imposed
FEWEST_SERIES = 8
LEAST_SHIFT = 0.05  # of a probability: less is not called learned
Z = 1.96

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class GapFinding:
    """What is known about the gaps of the training series.

    Attributes
    ----------
    n_series, n_with_gaps, missing_share
        Training series, those with missing samples, and the share of all samples that are missing.
    accuracy, chance, p_value
        Out-of-fold balanced accuracy of a forest that knows the gaps of a series and not its samples, 1 / C, and
        the share of permutations of the classes that reach it. None where there are too few series.
    shift, low, high
        Mean change of the probability of a class when the gaps of its series are imposed on series of other
        classes, with a 95 % interval. None where gaps do not tell the class.
    of_training
        Whether these are series that the model was fitted on. It may know them by heart, and then moves less than
        with new ones.
    """

    n_series: int
    n_with_gaps: int
    missing_share: float
    chance: float
    accuracy: float | None = None
    p_value: float | None = None
    shift: float | None = None
    low: float | None = None
    high: float | None = None
    of_training: bool = False

    @property
    def differ(self) -> bool:
        """Whether gaps tell the class."""
        return self.p_value is not None and self.p_value <= SIGNIFICANT

    @property
    def may_differ(self) -> bool:
        """Whether gaps tell the class, or too few series are known to rule it out."""
        return self.p_value is None or self.differ

    @property
    def learned(self) -> bool:
        """Whether the scores of the model follow the gaps, towards the class that has them or away from it."""
        if self.shift is None or self.low is None or self.high is None:
            return False
        return abs(self.shift) >= LEAST_SHIFT and (self.low > 0 or self.high < 0)

    @property
    def notes(self) -> list[str]:
        """A warning for readers of a score; empty where the model has not learned the gaps."""
        if not self.learned or self.shift is None or self.low is None or self.high is None:
            return []
        near, far = sorted((abs(self.low), abs(self.high)))
        where = "towards" if self.shift > 0 else "away from"
        return [
            f"{self._how}: in its training series missing samples differ by class (they alone give a balanced "
            f"accuracy of {self.accuracy:.2f}, chance is {self.chance:.2f}), and a score moves by "
            f"{abs(self.shift):.2f} ({near:.2f} to {far:.2f}) {where} a class when its gaps are imposed."
        ]

    @property
    def _how(self) -> str:
        """What is the case where `learned`; a move away from the class with the gaps is no rule of the data."""
        if self.shift is not None and self.shift > 0:
            return "the model has learned from gaps"
        return "the scores of the model depend on gaps"

    def describe_gaps(self) -> str:
        """Two sentences on the gaps themselves."""
        text = (
            f"{self.n_with_gaps} of {self.n_series} training series have missing samples, "
            f"{100 * self.missing_share:.2g} % of all."
        )
        if self.p_value is None:
            return f"{text} There are too few series to say whether gaps differ by class."
        told = f"balanced accuracy {self.accuracy:.2f} from the gaps alone, chance is {self.chance:.2f}"
        return f"{text} Gaps {'differ by class' if self.differ else 'do not tell the class'} ({told})."

    def describe(self) -> str:
        """The same, and whether the model follows the gaps: for logs and the model card."""
        if not self.differ:
            return self.describe_gaps()
        if self.shift is None:
            return f"{self.describe_gaps()} Whether the model follows them could not be tested."
        doing = "follows them" if self.learned else "does not follow them"
        if self.learned and self.shift < 0:
            doing = "depends on them"
        others = "other series"
        if self.of_training:
            others += ", which it was fitted on; too few others are known, with which it may move more"
        return (
            f"{self.describe_gaps()} The model {doing}: the score of a class moves by {self.shift:.2f} "
            f"({self.low:.2f} to {self.high:.2f}) when its gaps are imposed on {others}."
        )

    def to_json(self) -> dict[str, Any]:
        """The entry of config.json."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read back what `to_json` gave, now or before ``of_training``; else a ValueError."""
        if isinstance(value, dict):  # before, it was mostly of training series
            value = {"of_training": value.get("shift") is not None} | value
        if not isinstance(value, dict) or set(value) != set(cls.__dataclass_fields__):
            raise ValueError("its finding about gaps has not the entries of one")
        if type(value["of_training"]) is not bool:
            raise ValueError("its finding about gaps does not say whether it is of training series")
        numbers = [value[name] for name in value if name != "of_training" and value[name] is not None]
        if not all(type(number) in (int, float) and math.isfinite(number) for number in numbers):
            raise ValueError("its finding about gaps holds something other than finite numbers")
        if any(value[name] is None for name in ("n_series", "n_with_gaps", "missing_share", "chance")):
            raise ValueError("its finding about gaps lacks a number")
        if (value["p_value"] is None) != (value["accuracy"] is None) or (
            value["p_value"] is None and value["shift"]
        ):
            raise ValueError("the numbers of its finding about gaps do not go together")
        if len({value[name] is None for name in ("shift", "low", "high")}) > 1:
            raise ValueError("the numbers of its finding about gaps do not go together")
        return cls(**value)


def gap_statistics(
    series: Sequence[Series], *, window_length: int | None = None, stride: int = 1
) -> Floats:  # (n_series, 14), with windows (n_series, 22)
    """Gaps of each series in numbers: how many samples are missing, in how many gaps, and where.

    These are the share missing, gaps a sample, the longest and the mean gap (shares of the series); the first
    missing sample and the end of the last one (shares of the series, 1 and 0 without gaps); the share missing of
    each eighth of the series and, where a window length is given, of each eighth of a window, the mean over all
    windows.

    >>> found = gap_statistics([Series([1.0, np.nan, np.nan, 4.0]), Series([1.0, 2.0])])
    >>> found[:, :6]
    array([[0.5 , 0.25, 0.5 , 0.5 , 0.25, 0.75],
           [0.  , 0.  , 0.  , 0.  , 1.  , 0.  ]])
    >>> found[0, 6:]
    array([0., 0., 1., 1., 1., 1., 0., 0.])
    """
    rows = []
    for item in series:
        missing = missing_samples(item.samples)
        n = len(missing)
        edges = np.flatnonzero(np.diff(missing.astype(np.int8), prepend=0, append=0)) / n
        lengths = np.diff(edges)[::2]
        mean = float(lengths.mean()) if len(lengths) else 0.0
        row = [missing.mean(), len(lengths) / n, lengths.max(initial=0.0), mean]
        row += [edges.min(initial=1.0), edges.max(initial=0.0), *_missing_by_part(missing, np.zeros(1), n)]
        if window_length is not None:
            starts = window_starts(n, window_length=window_length, stride=stride)
            row += [*_missing_by_part(missing, starts, window_length)]
        rows.append(row)
    return np.array(rows, dtype=np.float64)


def _missing_by_part(missing: NDArray[np.bool_], starts: NDArray[Any], length: int) -> Floats:  # (N_PARTS,)
    """Share missing of each eighth of stretches of this length, the mean over all; padding is not missing.

    A sample that is in two parts counts in both, in proportion.
    """
    n_before = np.concatenate([[0.0], np.cumsum(missing)])
    edges = starts[:, np.newaxis] + np.linspace(0, length, N_PARTS + 1)
    counts = np.diff(np.interp(edges, np.arange(len(n_before)), n_before), axis=1)
    shares: Floats = counts.mean(axis=0) * N_PARTS / length
    return shares


def gaps_by_class(
    series: Sequence[Series],
    targets: NDArray[np.int64],
    groups: NDArray[Any] | None,
    *,
    window_length: int | None = None,
    stride: int = 1,
    seed: int,
) -> GapFinding | None:
    """How well gaps alone tell the class; None where no sample is missing.

    A small forest on `gap_statistics`, out of fold by groups; its p-value is the share of permutations of the
    classes, of whole groups where each is of one class, under which its predictions are as good. With a window
    length, it also knows where in the windows gaps are, as a model of windows does.

    Examples
    --------
    >>> some = [Series([0.0, np.nan, 1.0, 2.0] * (1 + k % 3)) for k in range(8)]
    >>> whole = [Series([0.0, 1.0, 2.0, 3.0] * (1 + k % 3)) for k in range(8)]
    >>> gaps_by_class(some + whole, np.repeat([0, 1], 8), None, seed=0).differ
    True
    """
    statistics = gap_statistics(series, window_length=window_length, stride=stride)
    if not statistics[:, 0].any():
        return None
    classes = np.unique(targets)
    lengths = np.array([item.n_samples for item in series])
    found = GapFinding(
        n_series=len(series),
        n_with_gaps=int((statistics[:, 0] > 0).sum()),
        missing_share=float(np.average(statistics[:, 0], weights=lengths)),
        chance=1 / len(classes),
    )
    keys = np.arange(len(series)) if groups is None else np.unique(groups.astype(str), return_inverse=True)[1]
    if min(len(np.unique(keys[targets == label])) for label in classes) < FEWEST_GROUPS:
        return found
    guesses = np.full(len(series), -1, dtype=np.int64)
    folds = folds_of(targets, keys, seed=seed)
    for fold in np.unique(folds):
        train, test = folds != fold, folds == fold
        if len(np.unique(targets[train])) < 2:
            continue
        forest = ExtraTreesClassifier(
            N_TREES, max_depth=4, min_samples_leaf=2, class_weight="balanced", random_state=seed % 2**32
        )
        guesses[test] = forest.fit(statistics[train], targets[train]).predict(statistics[test])
    accuracy = _balanced(guesses, targets[np.newaxis], classes)[0]
    reached = _balanced(guesses, _permuted(targets, keys, np.random.default_rng(seed)), classes)
    p_value = (1 + int((reached >= accuracy - 1e-12).sum())) / (1 + N_PERMUTATIONS)
    return replace(found, accuracy=float(accuracy), p_value=float(p_value))


def _permuted(
    targets: NDArray[np.int64], keys: NDArray[np.int64], generator: np.random.Generator
) -> NDArray[np.int64]:
    """``(N_PERMUTATIONS, n_series)``: classes of whole groups, or of series where a group has several classes."""
    _, firsts, inverse = np.unique(keys, return_index=True, return_inverse=True)
    if (targets[firsts][inverse] == targets).all():
        return np.stack([generator.permutation(targets[firsts])[inverse] for _ in range(N_PERMUTATIONS)])
    return np.stack([generator.permutation(targets) for _ in range(N_PERMUTATIONS)])


def _balanced(
    guesses: NDArray[np.int64], targets: NDArray[np.int64], classes: NDArray[np.int64]
) -> Floats:  # (n,) for targets (n, n_series)
    """Mean recall over the classes."""
    recalls = []
    for label in classes:
        own = targets == label
        recalls.append(((guesses == label) & own).sum(axis=1) / np.maximum(own.sum(axis=1), 1))
    return np.asarray(np.mean(recalls, axis=0))


def with_gaps_of(series: Series, donor: Series) -> Series:
    """A series that also misses what another does; the pattern is repeated where that one is shorter.

    >>> with_gaps_of(Series([1.0, 2.0, 3.0, 4.0]), Series([np.nan, 0.0])).samples
    array([[nan,  2., nan,  4.]])
    """
    missing = np.resize(missing_samples(donor.samples), series.n_samples)
    samples = np.where(missing, np.nan, series.samples.astype(np.float64))
    return replace(series, samples=samples, gaps_marked=True)


def exchanged_gaps(series: Series, donor: Series) -> Series:
    """A series with the gaps of another in place of its own, in which samples that it has are repeated.

    For series of which too little would be left with the gaps of both.

    >>> exchanged_gaps(Series([1.0, np.nan, np.nan, 4.0]), Series([np.nan, 0.0, 0.0, 0.0])).samples
    array([[nan,  1.,  4.,  4.]])
    """
    missing = missing_samples(series.samples)
    places = np.arange(series.n_samples)
    places[missing] = np.resize(np.flatnonzero(~missing), int(missing.sum()))
    return with_gaps_of(replace(series, samples=series.samples[:, places]), donor)


class SeriesScorer(Protocol):
    """Scores some of the training series, also after a change of their samples."""

    @property
    def window_length(self) -> int:
        """Samples of a window."""

    @property
    def stride(self) -> int:
        """Samples from one window to the next."""

    def scores(self, series: Sequence[Series], places: NDArray[np.int64]) -> Floats:
        """``(n, C)``; series k stands for the training series at ``places[k]``, which tells who may score it."""
        ...


def shift_by_gaps(
    finding: GapFinding,
    scorer: SeriesScorer,
    series: Sequence[Series],
    targets: NDArray[np.int64],
    *,
    tested: NDArray[np.int64],
    of_training: bool = False,
    seed: int,
) -> GapFinding:
    """The finding with how far scores move when gaps of another class are imposed, where gaps tell the class.

    shift = mean over series i of p_c(x_i with the gaps of a series of class c) - p_c(x_i),  c other than its own

    Parameters
    ----------
    scorer
        Of uncalibrated scores that do not depend on retrieval.
    tested
        Places of the series that gaps are imposed on. They should be series that the scorer was not fitted on: of
        those it was fitted on it may know the samples, whatever their gaps. Gaps come from any series.
    of_training
        Whether they are series that it was fitted on; kept with the finding.
    """
    pairs = _with_gaps_of_others(scorer, series, targets, tested, np.random.default_rng(seed))
    if not finding.differ or len(pairs) < FEWEST_SERIES:
        return finding
    places, imposed, classes = zip(*pairs, strict=True)
    which = np.array(places)
    moved = scorer.scores(imposed, which) - scorer.scores([series[place] for place in places], which)
    towards = moved[np.arange(len(which)), np.array(classes)]
    shift, error = float(towards.mean()), Z * float(towards.std(ddof=1)) / math.sqrt(len(towards))
    return replace(finding, shift=shift, low=shift - error, high=shift + error, of_training=of_training)


def _with_gaps_of_others(
    scorer: SeriesScorer,
    series: Sequence[Series],
    targets: NDArray[np.int64],
    tested: NDArray[np.int64],
    generator: np.random.Generator,
) -> list[tuple[int, Series, int]]:
    """Place of a series, the same with the gaps of one of another class, and that class; at most `MOST_SERIES`."""
    shape = {"window_length": scorer.window_length, "stride": scorer.stride}
    donors = [k for k, item in enumerate(series) if missing_samples(item.samples).any()]
    pairs: list[tuple[int, Series, int]] = []
    for place in generator.permutation(tested).tolist():
        others = [k for k in donors if targets[k] != targets[place]]
        if not others or len(pairs) == MOST_SERIES:
            continue
        donor = int(generator.choice(others))
        if windows_of(series[place], **shape).unusable.all():
            continue
        ways = (with_gaps_of(series[place], series[donor]), exchanged_gaps(series[place], series[donor]))
        usable = [item for item in ways if not windows_of(item, **shape).unusable.all()]
        if usable:
            pairs.append((place, usable[0], int(targets[donor])))
    return pairs
