"""Checks of settings in study files: sections, lists of names, numbers; each raises a ConfigError."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
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


def refuse_repeated(names: Iterable[str], what: str, advice: str) -> None:
    """Raise if a name comes more than once.

    >>> refuse_repeated(["a", "b", "a"], "datasets are called", "rename one.")
    Traceback (most recent call last):
    ...
    raxss.errors.ConfigError: 2 datasets are called 'a'; rename one.
    """
    for name, count in Counter(names).items():
        if count > 1:
            raise ConfigError(f"{count} {what} {name!r}; {advice}")


def pooling_from(what: str, given: Any) -> tuple[int, int] | None:
    """``24/12`` as two numbers."""
    if given is None:
        return None
    found = re.fullmatch(r"(\d+)/(\d+)", str(given), re.ASCII)
    if found is None:
        raise ConfigError(f"{what} is {given!r}; a kernel and a stride are needed, such as '24/12'.")
    return int(found[1]), int(found[2])
