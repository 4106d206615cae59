"""Checks of settings in study files: sections, lists of names, numbers; each raises a ConfigError."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from raxss.errors import ConfigError, did_you_mean


def section(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The settings under a name; empty if it is absent."""
    found = tables.get(name, {})
    if not isinstance(found, Mapping):
        raise ConfigError(f"{name!r} must be a section with settings, [{name}], got {found!r}.")
    return found


def refuse_unknown(where: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise at an unknown setting, with the nearest known one.

    >>> refuse_unknown("[split]", {"bye": 3}, ["by", "kind"])
    Traceback (most recent call last):
    ...
    raxss.errors.ConfigError: [split] has no setting 'bye'; did you mean 'by'? Known: by, kind.
    """
    names = list(known)
    for name in given:
        if name not in names:
            raise ConfigError(f"{where} has no setting {name!r}{did_you_mean(name, names)}")


def fields_of(kind: Any) -> list[str]:
    """Names of the fields of a dataclass."""
    return [field.name for field in dataclasses.fields(kind)]


def names_in(what: str, given: Any) -> tuple[str, ...]:
    """A list of names as a tuple."""
    if not isinstance(given, list) or not all(isinstance(item, str) and item for item in given):
        raise ConfigError(f"{what} is {given!r}; needed is a list of names.")
    return tuple(given)


def whole(what: str, given: Any, least: int) -> int:
    """A whole number of at least ``least``."""
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise ConfigError(f"{what} is {given!r}; needed is a whole number of at least {least}.")
    return given


def is_number(value: object) -> bool:
    """Whether a value is a finite number; booleans are none.

    >>> is_number(0.5), is_number(True), is_number("0.5")
    (True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
