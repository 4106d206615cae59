"""Settings of votes: how many cases, of whom, compared by what, and how far they count.

VoteSettings, mode -> what is held, and what vote_fit.py fits (tau, mixing, least_similarity)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from raxss._core.settings import at_least, is_number
from raxss.errors import ConfigError, did_you_mean, one_of

EVIDENCE, VOTES, MIXED = "evidence", "votes", "mixed"
MODES = (EVIDENCE, VOTES, MIXED)
LIBRARY, SITE = "library", "site"
STANDARDISED_BY = (LIBRARY, SITE)


@dataclass(frozen=True, kw_only=True)
class VoteSettings:
    """Settings of `with_library`; None is fitted, on recordings that the model was not trained on (`fit_votes`).

    Parameters
    ----------
    n_cases
        m, how many cases a window is compared with.
    most_a_group
        c, the most of them that are of one group; as many more are fetched, for scores without a group.
    tau
        How much more the most similar cases count, above 0: a case whose cosine is larger by tau counts e times as
        much. None: fitted on groups of the library that the model was not trained on, where there are enough, else
        on ``fit_on``, else 1.
    mixing
        lambda in mode ``"mixed"``, 0 (the model alone) to 1 (cases alone). None: fitted. The other modes state it.
    prior
        Probability of each class in the order of ``classes_``, to which cases are weighted. None: classes have the
        shares that groups give them.
    local_site
        Cases of this site come before all others; recordings to be scored are taken to be of it.
    least_similarity
        A window whose best case has a smaller cosine does not vote; -1: every window votes. None: fitted, so that
        one in a hundred windows of the recordings that it is fitted on (as for tau) would not; then windows that
        are much farther from every case than those do not vote either. With none to fit it on every window votes.
    standardise_by
        ``"library"``: features by mean and scale over all groups. ``"site"``: keys by those of their own site, and
        a recording by those of ``local_site``, else of its centre if the library has it, else of the library.

    Examples
    --------
    >>> VoteSettings(n_cases=5, tau=0.1).n_cases
    5
    >>> VoteSettings(tau=0)
    Traceback (most recent call last):
    ...
    raxss.errors.ConfigError: tau is 0; needed is a number above 0, or None to have it fitted.
    """

    n_cases: int = 10
    most_a_group: int = 2
    tau: float | None = None
    mixing: float | None = None
    prior: tuple[float, ...] | None = None
    local_site: str | None = None
    least_similarity: float | None = None
    standardise_by: str = LIBRARY

    def __post_init__(self) -> None:
        at_least("n_cases", self.n_cases, 1)
        at_least("most_a_group", self.most_a_group, 1)
        one_of("standardise_by", self.standardise_by, STANDARDISED_BY)
        if self.tau is not None and not (is_number(self.tau) and self.tau > 0):
            raise ConfigError(f"tau is {self.tau!r}; needed is a number above 0, or None to have it fitted.")
        for name, least in (("mixing", 0), ("least_similarity", -1)):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and least <= value <= 1):
                raise ConfigError(
                    f"{name} is {value!r}; needed is a number from {least} to 1, or None to have it fitted."
                )
        if self.prior is not None:
            if isinstance(self.prior, str | Mapping) or not isinstance(self.prior, Iterable):
                raise ConfigError(
                    f"prior is {self.prior!r}; needed is a probability of each class, in the order of classes_: "
                    "(0.5, 0.5) for instance."
                )
            prior = tuple(self.prior)
            if not all(is_number(value) and value >= 0 for value in prior) or sum(prior) <= 0:
                raise ConfigError(
                    f"prior is {list(prior)!r}; needed is a probability of each class, at least 0 and not all 0."
                )
            object.__setattr__(self, "prior", prior)
        if self.local_site is not None and not isinstance(self.local_site, str):
            raise ConfigError(
                f"local_site is {self.local_site!r}; needed is the name of a site of the library."
            )

    @property
    def as_json(self) -> dict[str, Any]:
        """Plain values by name; `from_json` reads them."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Settings from their plain values; ConfigError for unknown names."""
        known = [field.name for field in fields(cls)]
        for name in content:
            if name not in known:
                raise ConfigError(f"there is no setting {name!r} of votes{did_you_mean(name, known)}")
        return cls(**content)

    def mixing_of(self, mode: str) -> float | None:
        """lambda of a mode; None where it is fitted.

        >>> VoteSettings().mixing_of("votes"), VoteSettings(mixing=0.3).mixing_of("mixed")
        (1.0, 0.3)
        """
        one_of("mode", mode, MODES)
        return {EVIDENCE: 0.0, VOTES: 1.0}.get(mode, self.mixing)
