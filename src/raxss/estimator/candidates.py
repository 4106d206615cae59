"""Candidates of the search for settings (`AutoRAxSS`): a short list, each with the reason why it is tried.

    series -> Facts: number, lengths, automatic windows -> candidates that suit them, with the parameters of each

A further candidate is one more line of `CANDIDATES`; search.py compares them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from raxss.data.series import Series
from raxss.errors import ConfigError
from raxss.estimator.inputs import known_rate
from raxss.method.augmentation import LIGHT, STRONG
from raxss.method.backbones.beats import FEWEST_SECONDS_OF_BEATS, RATES_OF_ECGS, holds_beats, shows_beats
from raxss.method.backbones.mixture import BEATS, MORE_VIEWS, NETWORK, members_for, resolved
from raxss.method.windows import LONGEST_WHOLE, MANY_SERIES, WindowConfig, plan_windows, usual_longest

DEFAULT = "default"
FEWEST_FOR_A_NETWORK = 100  # series, an eighth of which are its validation set
SHORTEST_WINDOW = 64


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What decides which candidates suit the series: no labels."""

    lengths: Sequence[int] = field(repr=False)
    n_variates: int = 1
    median: int
    window_length: int  # the automatic one
    rate: float | None = None  # Hz, where it is known
    has_beats: bool = False  # whether they show heart beats, which the default then has members for

    @classmethod
    def of(cls, series: Sequence[Series]) -> Self:
        """Facts about these series.

        >>> Facts.of([Series(np.zeros(4000)), Series(np.zeros(6000))])
        Facts(n_variates=1, median=5000, window_length=1250, rate=None, has_beats=False)
        """
        lengths = [item.n_samples for item in series]
        rate = known_rate(series)
        beats = shows_beats([item.samples for item in series], rate)
        least = FEWEST_SECONDS_OF_BEATS if beats else 0.0
        plan = plan_windows(WindowConfig(), lengths, rate=rate, least_seconds=least)
        return cls(
            lengths=tuple(lengths),
            n_variates=series[0].n_variates,
            median=int(np.median(lengths)),
            window_length=plan.window_length,
            rate=rate,
            has_beats=beats and holds_beats(plan.window_length, rate),
        )

    @property
    def n_series(self) -> int:
        """How many series there are."""
        return len(self.lengths)

    @property
    def members(self) -> list[dict[str, Any]]:
        """Members of the default mixture."""
        return members_for(self.lengths, self.n_variates, has_beats=self.has_beats)

    @property
    def classifiers(self) -> list[dict[str, Any]]:
        """Those of them that are no networks."""
        return [table for table in self.members if table != NETWORK]

    @property
    def are_long(self) -> bool:
        """Whether series are divided into several windows."""
        return usual_longest(self.lengths) > LONGEST_WHOLE

    @property
    def suit_a_network(self) -> bool:
        """Whether there are enough series for a network, but fewer than its being part of the default."""
        return FEWEST_FOR_A_NETWORK <= self.n_series < MANY_SERIES

    @property
    def may_have_beats(self) -> bool:
        """Whether beats could be found, but are not clear: a rate of ECGs, and windows of several beats."""
        low, high = RATES_OF_ECGS
        known = self.rate is not None and low <= self.rate <= high
        return known and not self.has_beats and holds_beats(self.window_length, self.rate)


Parameters = Mapping[str, Any]


def always(_: Facts) -> bool:
    """The candidate suits all series."""
    return True


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Settings that a search tries.

    Examples
    --------
    >>> Candidate(name="ridge", params={"backbone": "ridge"}, reason="PPV features alone").settings(None)
    {'backbone': 'ridge'}
    """

    name: str  # lower-case letters, digits and hyphens
    reason: str  # why it is tried, in one line
    params: (
        Parameters | Callable[[Facts], Parameters]
    )  # of `RAxSSClassifier`, where they differ from its defaults
    cost_hint: float = 1.0  # seconds of a fit beside the default's, training by gradients left out
    needs: Callable[[Facts], bool] = always  # whether it suits the series

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.name):
            raise ConfigError(
                f"the candidate name {self.name!r} cannot be used; needed are lower-case letters, digits and "
                "hyphens, as in 'short-windows'. Rename it."
            )

    def settings(self, facts: Facts | None) -> dict[str, Any]:
        """The parameters for these series."""
        return dict(self.params(facts) if callable(self.params) else self.params)  # type: ignore[arg-type]


def _quick(facts: Facts) -> Parameters:
    stride = {"stride": max(facts.window_length // 2, 1)} if facts.are_long else {}
    return {"backbone": "extra-trees", "backbone_options": {"n_trees": 100}, **stride}


def _mixture_of(facts: Facts, members: list[dict[str, Any]], **further: Any) -> Parameters:
    """The default with other members."""
    options = resolved({}, facts.lengths, facts.n_variates, has_beats=facts.has_beats) | {"members": members}
    return {"backbone_options": options, **further}


def _with_network(facts: Facts, **further: Any) -> Parameters:
    return _mixture_of(facts, [*facts.classifiers, dict(NETWORK)], **further)


def _with_more_views(facts: Facts) -> Parameters:
    return _mixture_of(facts, [*facts.members, *map(dict, MORE_VIEWS)])


def _without_more_views(facts: Facts) -> Parameters:
    return _mixture_of(facts, [table for table in facts.members if table not in MORE_VIEWS])


def _with_beats(facts: Facts) -> Parameters:
    return _mixture_of(facts, [*facts.members, *map(dict, BEATS)])


#: In the order in which they enter a search, which ``n_trials`` cuts; the others are compared with the first.
CANDIDATES: tuple[Candidate, ...] = (
    Candidate(name=DEFAULT, params={}, reason="the defaults, beside which the others are judged"),
    Candidate(
        name="no-network",
        params=lambda facts: _mixture_of(facts, facts.classifiers),
        needs=lambda facts: facts.n_series >= MANY_SERIES,
        reason="the default without its network, validated on all series",
    ),
    Candidate(
        name="trees",
        params={"backbone": "extra-trees"},
        cost_hint=0.2,
        reason="statistics of windows alone: best where amplitudes and spectra tell the class",
    ),
    Candidate(
        name="ridge",
        params={"backbone": "ridge"},
        cost_hint=0.35,
        reason="PPV features alone, which is MiniROCKET for windows: best where shapes tell the class",
    ),
    Candidate(
        name="ridge-normalised",
        params={"backbone": "ridge", "backbone_options": {"normalise": True}},
        cost_hint=0.35,
        reason="the same without level and scale of a window",
    ),
    Candidate(
        name="fewer-views",
        params=_without_more_views,
        needs=lambda facts: MORE_VIEWS[0] in facts.members,
        cost_hint=0.5,
        reason="PPV features and statistics alone, as for long series: fewer features, where they say it all",
    ),
    Candidate(
        name="series-scaling",
        params={"scaling": "series"},
        reason="each series at mean 0 and deviation 1: best where gains differ between recordings",
    ),
    Candidate(
        name="short-windows",
        params=lambda facts: {"window_length": facts.window_length // 2},
        needs=lambda facts: facts.are_long and facts.window_length // 2 >= SHORTEST_WINDOW,
        cost_hint=1.5,
        reason="windows of half the length: best for events that are short",
    ),
    Candidate(
        name="long-windows",
        params=lambda facts: {"window_length": 2 * facts.window_length},
        needs=lambda facts: facts.are_long and 2 * facts.window_length <= facts.median,
        cost_hint=0.8,
        reason="windows of twice the length: best for slow rhythms",
    ),
    Candidate(
        name="more-views",
        params=_with_more_views,
        needs=lambda facts: MORE_VIEWS[0] not in facts.members,
        cost_hint=1.6,
        reason="the default beside ridge regression on competing kernels and on more features of each PPV kernel",
    ),
    Candidate(
        name="context",
        params={"context": True},
        needs=lambda facts: facts.are_long,
        reason="the default with the position of windows, and their level and amplitude against the series",
    ),
    Candidate(
        name="network",
        params=_with_network,
        needs=lambda facts: facts.suit_a_network,
        reason="the default with a network, which it has from 400 series on",
    ),
    Candidate(
        name="strong-augmentation",
        params=lambda facts: _with_network(facts, augmentation=dict(STRONG)),
        needs=lambda facts: facts.suit_a_network,
        reason="a network that sees windows changed more strongly: best where recordings differ more than classes",
    ),
    Candidate(
        name="light-augmentation",
        params={"augmentation": dict(LIGHT)},
        needs=lambda facts: facts.n_series >= MANY_SERIES,
        reason="the default with smaller changes of windows, and no flips: best where polarity tells the class",
    ),
    Candidate(
        name="ensemble",
        params={"backbone": "ensemble", "backbone_options": {"members": 3}},
        needs=lambda facts: facts.n_series >= FEWEST_FOR_A_NETWORK,
        cost_hint=0.3,
        reason="three networks with all views, whose posteriors are averaged",
    ),
    Candidate(
        name="beats",
        params=_with_beats,
        needs=lambda facts: facts.may_have_beats,
        cost_hint=1.1,
        reason="the default beside extra trees and logistic regression on heart beats: best for rhythms of an ECG",
    ),
    Candidate(
        name="quick",
        params=_quick,
        cost_hint=0.15,
        reason="few trees, and few windows of long series: what is fitted where nothing else has time",
    ),
)


def candidates_for(
    facts: Facts, candidates: Sequence[Candidate] | None = None, *, most: int | None = None
) -> list[Candidate]:
    """The candidates that suit the series, in their order, the first ``most``.

    Examples
    --------
    >>> facts = Facts(lengths=[9000] * 40, median=9000, window_length=2250)
    >>> [candidate.name for candidate in candidates_for(facts, most=6)]
    ['default', 'trees', 'ridge', 'ridge-normalised', 'series-scaling', 'short-windows']
    """
    every: tuple[Any, ...] = CANDIDATES if candidates is None else tuple(candidates)
    names = [getattr(item, "name", item) for item in every]
    if not every or not all(isinstance(item, Candidate) for item in every) or len(set(names)) < len(names):
        raise ConfigError(
            f"candidates are {names!r}; needed are "
            "raxss.estimator.candidates.Candidate objects, at least one, each with a name of its own. Give such a "
            "list, or None."
        )
    first, *others = every
    return [first, *(item for item in others if item.needs(facts))][:most]
