"""Policy of a library: what it may be used for, and what answers may show.

    policy.toml <-> Policy

The file is written when a library is built, and read when it is opened; a person may edit it, raxss never rewrites
it. Who shows something of a case asks `Policy.show` first. Purposes, roles, the smallest number of patients, expiry
and rounding are kept and checked here, and not yet enforced.
"""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass
from typing import Any

from raxss._core.bounded import toml_of
from raxss._core.settings import at_least, toml_value
from raxss.errors import ConfigError, LibraryError, did_you_mean, one_of

FORMAT = "raxss-policy-1"
SHOWN = ("nothing", "facts", "waveform")  # each includes those before
MOST_DIGITS = 15
_ABOUT = {
    "purposes": "what the cases may be used for, as GA4GH DUO codes; empty: not restricted",
    "roles": "who may query, by name; empty: everybody who can read this folder",
    "min_patients": "an answer rests on at least so many",
    "show": "of a case: nothing, facts (label, site, pseudonym, similarity) or also its waveform",
    "expiry": 'last day of use, as "2031-12-31"; empty: none',
    "similarity_digits": "decimals that similarities are rounded to; 0: not rounded",
}


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a library may be used for, and what may be shown.

    Examples
    --------
    >>> Policy.from_toml(Policy(show="waveform", min_patients=3).to_toml(), "policy.toml").min_patients
    3
    >>> Policy().may_show("waveform"), Policy().may_show("facts")
    (False, True)
    """

    purposes: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    min_patients: int = 1
    show: str = "facts"
    expiry: str = ""
    similarity_digits: int = 0

    def __post_init__(self) -> None:
        for name in ("purposes", "roles"):
            values = getattr(self, name)
            if not isinstance(values, list | tuple) or not all(isinstance(item, str) for item in values):
                raise ConfigError(f"{name} must be a list of texts, got {values!r}.")
            object.__setattr__(self, name, tuple(values))
        at_least("min_patients", self.min_patients, 1)
        at_least("similarity_digits", self.similarity_digits, 0)
        if self.similarity_digits > MOST_DIGITS:
            raise ConfigError(
                f"similarity_digits must be at most {MOST_DIGITS}, got {self.similarity_digits}."
            )
        one_of("show", self.show, SHOWN)
        try:
            _ = self.expiry and datetime.date.fromisoformat(self.expiry)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f'expiry must be a day as "2031-12-31", or empty, got {self.expiry!r}.'
            ) from error

    def may_show(self, what: str) -> bool:
        """Whether ``"facts"`` or ``"waveform"`` of a case may be shown."""
        one_of("what", what, SHOWN)
        return SHOWN.index(what) <= SHOWN.index(self.show)

    def to_toml(self) -> str:
        """The text of policy.toml: the same for the same policy."""
        lines = [f"format = {toml_value(FORMAT)}"]
        for name, value in asdict(self).items():
            lines += ["", f"# {_ABOUT[name]}", f"{name} = {toml_value(value)}"]
        return "\n".join(lines) + "\n"

    @classmethod
    def from_toml(cls, text: str, label: str) -> Policy:
        """The policy in a text; ``label`` names it in messages."""
        try:
            values: dict[str, Any] = toml_of(text, label)
            if values.pop("format", None) != FORMAT:
                raise ConfigError(f"its format is not {FORMAT!r}")
            for name in values:
                if name not in _ABOUT:
                    raise ConfigError(f"it has an unknown entry {name!r}{did_you_mean(name, _ABOUT)}")
            return cls(**values)
        except ConfigError as error:
            reason = str(error).removeprefix(f"{label} is ").rstrip(".")
            raise LibraryError(
                f"{label} cannot be used: {reason}. Correct the entry; Policy().to_toml() is an example."
            ) from error
