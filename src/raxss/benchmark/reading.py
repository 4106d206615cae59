"""How is a setting taken from a table of a study, and what is refused?

    a table that TOML made, a name -> a section, names, a whole number; or a ConfigError that says what was needed

Next: dataset.py and study.py read the whole file with these.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from raxss.errors import ConfigError, did_you_mean


def section(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The settings under a name; none where it is not there.

    >>> section({"windows": {"stride": 5}}, "windows"), section({}, "split")
    ({'stride': 5}, {})
    """
    found = tables.get(name, {})
    if not isinstance(found, Mapping):
        raise ConfigError(f"{name!r} must be a section with settings, [{name}], got {found!r}.")
    return found


def refuse_unknown(where: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Stop at a setting that there is not, with the nearest that there is.

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
    """The settings that a dataclass takes.

    >>> from raxss.method.windows import WindowConfig
    >>> fields_of(WindowConfig)
    ['window_length', 'stride']
    """
    return [field.name for field in dataclasses.fields(kind)]


def names_in(what: str, given: Any) -> tuple[str, ...]:
    """A list of names.

    >>> names_in("split.only", ["JHH", "NIH"])
    ('JHH', 'NIH')
    """
    if not isinstance(given, list) or not all(isinstance(item, str) and item for item in given):
        raise ConfigError(f"{what} is {given!r}; needed is a list of names.")
    return tuple(given)


def whole(what: str, given: Any, least: int) -> int:
    """A whole number of at least ``least``.

    >>> whole("n_threads", 2, least=1)
    2
    """
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise ConfigError(f"{what} is {given!r}; needed is a whole number of at least {least}.")
    return given


def is_number(value: object) -> bool:
    """Whether it is finite and a number; True and False are none.

    >>> is_number(0.5), is_number(True), is_number("0.5")
    (True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
