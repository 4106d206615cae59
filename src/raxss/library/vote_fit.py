"""Fit of votes: tau, lambda, and how near a case must be, on recordings that the model was not trained on.

    CaseIndex, which cases the model was trained on
      -> stored windows of the others, own group left out              -> least_similarity, most_distance, tau
    labelled series that the model was not fitted on, own group left out -> lambda, tau, and those that the library
                                                                            leaves open -> FittedVotes

A model keeps its training recordings farther apart than new ones, also where each is compared with other groups
alone: on them the sharpest tau looks best, and the nearness asked for is more than new recordings have. So a group
with such a recording is left out of the fit, and with too few other groups nothing is fitted on the library.

With P_i(lambda, tau) of votes.py, E = .01 and groups g of series i,

    L(lambda, tau) = sum over g of mean over i in g of log((1 - E) P_i[y_i] + E / C)  -  SHRINKAGE lambda

so that every group counts once. The last term is the logarithm of the prior of lambda, proportional to
exp(-SHRINKAGE lambda) on [0, 1]: cases must explain the series better than the model does, by e^SHRINKAGE in all
where they are to decide alone. With many groups it no longer matters.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from raxss._core.settings import is_number
from raxss.errors import ConfigError
from raxss.library.case_index import CaseIndex, OwnCases
from raxss.library.vote_settings import EVIDENCE, VoteSettings
from raxss.library.votes import CaseScore, Flags, Floats

TAUS = (1.0, 0.5, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02)  # of equals the first is taken
MIXINGS = tuple(np.linspace(0, 1, 21).round(2).tolist())
SHRINKAGE = 4.0
DEFAULT_MIXING = 0.1  # where nothing is at hand to fit it on
DEFAULT_TAU = 1.0  # likewise: the cases listed count nearly alike, so that nothing rests on small differences
ENOUGH_UNSEEN = 10  # groups that the model was not trained on, of a library with others
FAR = 0.01  # share of the library's own windows, groups counting alike, that would not vote
#: A window that is this many times as far from every case as all but that share of the library's own windows are
#: from other groups does not vote. Cosines alone found none of ten strange toy signals, this found all of them, and
#: no new person; on recordings it was not measured yet.
FARTHER = 2.0
FLOOR = 0.01  # E
MOST_RECORDINGS = 512  # of the library that the fit leaves out one after the other, spread evenly
MOST_WINDOWS = 2**13  # of these, altogether

GIVEN = "given"
BY_MODE = "by mode"
ON_LIBRARY = "leave-one-group-out on the library"
ON_UNSEEN = "leave-one-group-out on the groups of the library that the model was not trained on"
ON_SERIES = "labelled series, own group left out"
BY_DEFAULT = "default, nothing to fit it on"


@dataclass(frozen=True, kw_only=True)
class FittedVotes:
    """What votes count with, and how that was found.

    Examples
    --------
    >>> found = FittedVotes(library="f" * 32, state="0" * 64, tau=0.1, mixing=0.0, least_similarity=None,
    ...                     most_distance=None, tau_from=ON_LIBRARY, mixing_from=BY_MODE,
    ...                     least_similarity_from=GIVEN)
    >>> FittedVotes.from_json(found.as_json) == found
    True
    """

    library: str  # id
    state: str  # of the library that it was fitted on
    tau: float
    mixing: float  # lambda
    least_similarity: float | None  # None: no limit
    most_distance: float | None  # None: no limit
    tau_from: str
    mixing_from: str
    least_similarity_from: str  # most_distance comes from the same, or is none where the other is given
    n_groups: int = 0  # of the labelled series that lambda or tau was fitted on
    n_series: int = 0
    gain: float = 0.0  # L without its prior, above that of the model alone, in nats over all those groups

    @property
    def as_json(self) -> dict[str, Any]:
        """Plain values by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read what `as_json` gave; ConfigError for what does not fit."""
        names = {field.name for field in fields(cls)}
        if set(content) != names:
            raise ConfigError(
                f"fitted votes have the entries {sorted(content)}; needed are {sorted(names)}. Fit them again."
            )
        found = cls(**content)
        ranges = {
            "tau": (0.0, np.inf), "mixing": (0.0, 1.0), "gain": (-np.inf, np.inf), "least_similarity": (-1.0, 1.0),
            "most_distance": (0.0, np.inf), "n_groups": (0, np.inf), "n_series": (0, np.inf),
        }  # fmt: skip
        for name, (low, high) in ranges.items():
            value = getattr(found, name)
            if value is None and name in ("least_similarity", "most_distance"):
                continue
            if not (is_number(value) and low <= value <= high) or (name == "tau" and value == 0):
                above = "above 0" if name == "tau" else f"from {low:g} to {high:g}"
                raise ConfigError(
                    f"fitted votes have {name} {value!r}; needed is a number {above}. Fit them again."
                )
        for name in ("library", "state", "tau_from", "mixing_from", "least_similarity_from"):
            if not isinstance(getattr(found, name), str):
                raise ConfigError(
                    f"fitted votes have {name} {getattr(found, name)!r}; needed is text. Fit them again."
                )
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class LabelledScore:
    """A series with its label and group, and its score with cases, by which votes are fitted."""

    score: CaseScore  # tau and mixing in it are replaced
    label: int
    group: Hashable

    def probabilities(self, tau: float, mixings: Sequence[float]) -> Floats:  # (n_mixings,)
        """P[y] at each lambda, of which it is a straight line: lambda enters no weight.

        The same at all where nothing votes: where cases are of one class for instance (`CaseScore`).
        """
        full = replace(self.score, tau=tau, mixing=1.0).probability[self.label]
        none = self.score.weights @ self.score.posteriors[:, self.label]
        found: Floats = none + np.asarray(mixings) * (full - none)
        return found


def log_likelihoods(scores: Sequence[LabelledScore], tau: float, mixings: Sequence[float]) -> Floats:
    """L without its prior at each lambda, ``(n_mixings,)``; every group counts once."""
    n_classes = scores[0].score.cases.n_classes
    by_group: dict[Hashable, list[Floats]] = {}
    for item in scores:
        smoothed = (1 - FLOOR) * item.probabilities(tau, mixings) + FLOOR / n_classes
        by_group.setdefault(item.group, []).append(np.log(smoothed))
    means = [np.mean(values, axis=0) for values in by_group.values()]
    total: Floats = np.sum(means, axis=0)
    return total


def fit_votes(
    index: CaseIndex,
    settings: VoteSettings,
    *,
    mode: str,
    scores: Sequence[LabelledScore] = (),
    seen: Flags | None = None,
) -> FittedVotes:
    """Fit what the settings leave open.

    Parameters
    ----------
    mode
        See `VoteSettings.mixing_of`.
    scores
        Of labelled series that the model was not fitted on, with their own groups left out. None: tau is fitted on
        the library alone, and lambda of mode ``"mixed"`` is `DEFAULT_MIXING`.
    seen
        ``(n_cases,)`` cases that the model was trained on; None: no case. Where a group has one, nothing is fitted
        on the group, and where fewer than `ENOUGH_UNSEEN` are left, nothing on the library: then limits and tau
        come from ``scores``, and without them there are no limits and tau is `DEFAULT_TAU`. So too where the
        library has nothing to fit them on: a single group, or one class without each.

    Examples
    --------
    Two patients of either class, on either side of the origin.

    >>> import numpy as np
    >>> from raxss.library.search import CaseSearch
    >>> keys = [np.full((2, 3), value, np.float32) for value in (1, 2, -1, -2)]
    >>> groups = ("ann", "bob", "cid", "dan")
    >>> from raxss.library.votes import LabelledCases
    >>> search = CaseSearch([(part, [n, n]) for n, part in enumerate(keys)], groups=groups)
    >>> index = CaseIndex(
    ...     library="f" * 32, state="0", sites=("bern",), classes=(0, 1), search=search,
    ...     labelled=LabelledCases([0, 0, 1, 1], [0, 1, 2, 3], groups, n_classes=2), case_names=groups,
    ...     case_sites=("bern",) * 4, digests=groups, group_units=("patient",) * 4, start_s=np.zeros(8),
    ...     end_s=np.ones(8), key_case=np.repeat(np.arange(4), 2), standardise_by="library",
    ...     standardisations={}, blocks=tuple(keys))
    >>> found = fit_votes(index, VoteSettings(), mode="votes")
    >>> found.mixing, found.tau < 0.3, round(found.least_similarity, 6)
    (1.0, True, 1.0)
    """
    any_seen = seen is not None and bool(seen.any())
    on_library = ON_UNSEEN if any_seen else ON_LIBRARY
    least, least_from, most = settings.least_similarity, GIVEN, None
    own = _own_scores(index, settings, seen) if least is None or settings.tau is None else []
    if least is None:
        least, most = _limits(own or scores)
        least_from = BY_DEFAULT if least is None else on_library if own else ON_SERIES
    least = None if least is None or least <= -1 else float(least)

    tau, tau_from = settings.tau, GIVEN
    if tau is None:
        voting = _voting(own, least, most)
        tau, tau_from = DEFAULT_TAU, BY_DEFAULT
        if voting:
            values = [log_likelihoods(voting, candidate, (1.0,))[0] for candidate in TAUS]
            tau, tau_from = TAUS[int(np.argmax(values))], on_library

    mixing, mixing_from = settings.mixing_of(mode), GIVEN if mode == "mixed" else BY_MODE
    gain, n_groups, n_series = 0.0, 0, 0
    known = _voting(scores, least, most)
    # Evidence shows who votes, and nothing rests on it: tau of the library will do where it has one.
    needed = tau_from == BY_DEFAULT if mode == EVIDENCE else mixing is None or settings.tau is None
    if known and needed:
        mixings = (1.0,) if mode == EVIDENCE else MIXINGS if mixing is None else (float(mixing),)
        # The library's own tau comes first, so that it stays where nothing speaks for another.
        own_tau = float(tau)
        taus = sorted(TAUS, key=lambda value: abs(np.log(value / own_tau))) if tau_from != GIVEN else [tau]
        table = np.stack([log_likelihoods(known, candidate, mixings) for candidate in taus], axis=1)
        penalised = table - SHRINKAGE * np.asarray(mixings)[:, None]
        row, column = np.unravel_index(int(np.argmax(penalised)), penalised.shape)
        if mixing is None:
            mixing, mixing_from = mixings[row], ON_SERIES
        if tau_from != GIVEN and mixings[row] > 0:
            tau, tau_from = taus[column], ON_SERIES
        gain = float(table[row, column] - log_likelihoods(known, tau, (0.0,))[0])
        n_groups, n_series = len({item.group for item in known}), len(known)
    if mixing is None:
        mixing, mixing_from = DEFAULT_MIXING, BY_DEFAULT
    return FittedVotes(
        library=index.library,
        state=index.state,
        tau=float(tau),
        mixing=float(mixing),
        least_similarity=least,
        most_distance=most,
        tau_from=tau_from,
        mixing_from=mixing_from,
        least_similarity_from=least_from,
        n_groups=n_groups,
        n_series=n_series,
        gain=gain,
    )


def _voting(scores: Sequence[LabelledScore], least: float | None, most: float | None) -> list[LabelledScore]:
    """Those by which tau and lambda can be told, with the limits: not where cases of one class never vote."""
    return [
        replace(item, score=replace(item.score, least_similarity=least, most_distance=most))
        for item in scores
        if len(item.score.labels_that_vote) > 1
    ]


def _own_scores(index: CaseIndex, settings: VoteSettings, seen: Flags | None) -> list[LabelledScore]:
    """The library's own recordings by cases of other groups alone; those of the local site where it has enough.

    None of groups with a recording that the model was trained on, and none at all where too few groups are left.
    """
    group_of_case = index.labelled.groups
    cases, enough = np.arange(len(index)), 2
    if seen is not None and seen.any():
        cases, enough = cases[~np.isin(group_of_case, group_of_case[seen])], ENOUGH_UNSEEN
    if settings.local_site is not None:
        local = cases[np.array(index.case_sites)[cases] == settings.local_site]
        if len(np.unique(group_of_case[local])) >= enough:
            cases = local
    if len(np.unique(group_of_case[cases])) < enough:
        return []
    n = min(len(cases), MOST_RECORDINGS)
    cases = cases[np.linspace(0, len(cases) - 1, n).round().astype(np.int64)]  # pseudonyms: in no order
    names, n_classes = index.labelled.group_names, index.labelled.n_classes
    lists = index.nearest_of_cases(cases, settings, most_windows=max(MOST_WINDOWS // len(cases), 2))
    found = []
    for case, (nearest, norms) in zip(cases.tolist(), lists, strict=True):
        n, group = len(nearest.cases), names[index.labelled.groups[case]]
        own = OwnCases(groups=(str(group),))
        score = CaseScore(
            weights=np.full(n, 1 / n),
            # Where no case is near nothing is known of the class: a score of the model would not be honest.
            posteriors=np.full((n, n_classes), 1 / n_classes),
            nearest=nearest,
            cases=index.labelled,
            visible=index.visible(own, index.digests[case]),
            mixing=1.0,
            tau=1.0,
            norms=norms,
            key_norms=index.key_norms,
            prior=None if settings.prior is None else np.array(settings.prior),
            most_a_group=settings.most_a_group,
        )
        found.append(LabelledScore(score=score, label=int(index.labelled.labels[case]), group=group))
    return found


def _limits(scores: Sequence[LabelledScore]) -> tuple[float | None, float | None]:
    """least_similarity and most_distance by windows of these series; None where there is no window with a case."""
    if not scores:
        return None, None
    least = _extreme(scores, [best_similarity(item.score.nearest.similarity) for item in scores])
    farthest = _extreme(scores, [-item.score.distances for item in scores])
    return least, None if farthest is None else -FARTHER * farthest


def _extreme(own: Sequence[LabelledScore], values: Sequence[Floats]) -> float | None:
    """The quantile `FAR` of a value of each window, groups counting alike; None where no window has any."""
    n_windows: dict[Hashable, int] = {}
    for item in own:
        n_windows[item.group] = n_windows.get(item.group, 0) + len(item.score.weights)
    weights = [np.full(len(item.score.weights), 1 / n_windows[item.group]) for item in own]
    every, shares = np.concatenate(values), np.concatenate(weights)
    there = np.isfinite(every)
    if not there.any():
        return None
    order = np.argsort(every[there])
    reached = np.cumsum(shares[there][order])
    place = int(np.searchsorted(reached, FAR * reached[-1]))
    return float(every[there][order][place])


def best_similarity(similarity: NDArray[np.float64]) -> NDArray[np.float64]:
    """``(n_windows,)`` the largest of ``(n_windows, m)``, -inf without a case.

    >>> best_similarity(np.array([[0.2, 0.5], [np.nan, np.nan]]))
    array([ 0.5, -inf])
    """
    found: NDArray[np.float64] = np.where(np.isnan(similarity), -np.inf, similarity).max(
        axis=1, initial=-np.inf
    )
    return found
