"""Renamed settings, values, keys and columns of files, in one table.

    settings file, study, config.json, table -> current_* -> the same under today's names, with a DeprecationWarning
    settings that are hashed                 -> former_*  -> the same under their first names, so that hashes stay

To rename something that stands in files, add it to `RENAMES` and use the new name everywhere else, also for
what is written. Entries stay: hashes of committed results and of model folders are made of the old names.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from raxss.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

SECTION = "section"  # of a settings file, and of the settings in config.json
SETTING = "setting"  # a parameter of the estimator
STUDY = "section of a study"
KEY = "key of config.json"
COLUMN = "column"  # of evidence, predictions and results
BACKBONE = "backbone"

#: Kind of name -> old name -> new name. Options and values of a backbone come under its new name.
RENAMES: dict[str, dict[str, str]] = {
    SECTION: {},
    SETTING: {},
    STUDY: {},
    KEY: {},
    COLUMN: {},
    BACKBONE: {"committee": "ensemble"},
    "option of multiview": {"d_textures": "d_ppv"},
    "view of multiview": {"textures": "ppv"},
}
#: (backbone, option) -> kind of the names that are its value.
VALUES = {("multiview", "views"): "view of multiview", ("ensemble", "of"): BACKBONE}

Rename = Callable[[str, Any], Any]  # kind, name -> name


def current_names(given: Mapping[str, Any], kind: str, *, warn: bool = True) -> dict[str, Any]:
    """The same mapping with today's names as keys; ConfigError if something is given under both names.

    ``kind`` is one of those in `RENAMES`; ``warn`` is False for files that nobody edits, such as results.

    >>> current_names({"views": ["shapes"], "d_textures": 8}, "option of multiview", warn=False)
    {'views': ['shapes'], 'd_ppv': 8}
    """
    return _keys(given, kind, _current if warn else _current_unwarned)


def current_columns(table: pd.DataFrame, *, warn: bool = True) -> pd.DataFrame:
    """The same table with today's names of columns; see `current_names`."""
    current_names(dict.fromkeys(map(str, table.columns)), COLUMN, warn=warn)
    return table.rename(columns=RENAMES[COLUMN])


def current_tables(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by section, ``{"retrieval": {"measure": "cosine"}}``, with today's names of both."""
    return {
        section: current_names(settings, SETTING) if isinstance(settings, Mapping) else settings
        for section, settings in current_names(tables, SECTION).items()
    }


def current_settings(settings: Mapping[str, Any], *, warn: bool = True) -> dict[str, Any]:
    """Parameters of an estimator with today's names of parameters and values."""
    found = current_names(settings, SETTING, warn=warn)
    if "backbone" not in found:
        return found
    found["backbone"], options = current_backbone(found["backbone"], found.get("backbone_options"), warn=warn)
    if "backbone_options" in found:
        found["backbone_options"] = options
    return found


def current_backbone(backbone: Any, options: Any, *, warn: bool = True) -> tuple[Any, Any]:
    """Name and options of a backbone under today's names; a callable and its options stay as they are.

    >>> current_backbone("committee", {"members": [{"views": "textures"}]}, warn=False)
    ('ensemble', {'members': [{'views': 'ppv'}]})
    """
    rename = _current if warn else _current_unwarned
    if not isinstance(backbone, str):
        return backbone, options
    today = rename(BACKBONE, backbone)
    return today, _options(today, options, rename)


def former_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of an estimator under their first names, for a hash.

    >>> former_settings({"backbone": "multiview", "backbone_options": {"views": ["shapes", "ppv"]}})
    {'backbone': 'multiview', 'backbone_options': {'views': ['shapes', 'textures']}}
    """
    found = current_settings(settings, warn=False)
    network = found.get("backbone")
    if isinstance(network, str):
        found["backbone"] = _former(BACKBONE, network)
        if "backbone_options" in found:
            found["backbone_options"] = _options(network, found["backbone_options"], _former)
    return _keys(found, SETTING, _former)


def former_tables(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by section under their first names, for a hash; a word in place of a section stays."""
    return {
        section: former_settings(settings) if isinstance(settings, Mapping) else settings
        for section, settings in _keys(tables, SECTION, _former).items()
    }


def warn_renamed(kind: str, old: str, new: str) -> None:
    """Warn of an old name, at the line outside of this package that led to it."""
    warnings.warn(
        f"the {kind} {old!r} is called {new!r} now; the old name is still read, but use the new one.",
        DeprecationWarning,
        stacklevel=user_stacklevel(),
    )


class RenamedAttribute:
    """An attribute or method of a class under its old name, with a DeprecationWarning."""

    def __init__(self, new: str) -> None:
        self._new = new

    def __set_name__(self, owner: type, name: str) -> None:
        self._old = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        found = getattr(instance, self._new)
        warn_renamed("attribute", self._old, self._new)
        return found


def user_stacklevel() -> int:
    """The ``stacklevel`` of a warning at the caller of the outermost function of raxss."""
    frame, level, found = sys._getframe(1), 1, 1
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == "raxss":
            found = level + 1
        frame, level = frame.f_back, level + 1
    return found


def _current_unwarned(kind: str, name: Any) -> Any:
    return RENAMES.get(kind, {}).get(name, name) if isinstance(name, str) else name


def _current(kind: str, name: Any) -> Any:
    new = _current_unwarned(kind, name)
    if new != name:
        warn_renamed(kind, name, new)
    return new


def _former(kind: str, name: Any) -> Any:
    if not isinstance(name, str):
        return name
    return next((old for old, new in RENAMES.get(kind, {}).items() if new == name), name)


def _keys(given: Mapping[str, Any], kind: str, rename: Rename) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in given.items():
        renamed = rename(kind, name)
        if renamed in found:
            raise ConfigError(
                f"the {kind} {renamed!r} is given twice, once under another name. Remove one of them."
            )
        found[renamed] = value
    return found


def _options(backbone: Any, options: Any, rename: Rename) -> Any:
    """Options of a backbone of this name, which is today's; members of an ensemble have options of their own."""
    if not (isinstance(backbone, str) and isinstance(options, Mapping)):
        return options
    found = dict(options)
    for option, value in options.items():
        if (backbone, option) in VALUES:
            found[option] = _each(value, partial(rename, VALUES[backbone, option]))
        elif backbone == "ensemble" and option in ("options", "members"):
            of = _current_unwarned(BACKBONE, options.get("of", "multiview"))
            found[option] = _each(value, partial(_options, of, rename=rename))
    return _keys(found, f"option of {backbone}", rename)


def _each(value: Any, rename: Callable[[Any], Any]) -> Any:
    """A value, or each of several; what stays the same stays the object that it is."""
    if not isinstance(value, list | tuple):
        return rename(value)
    renamed = [rename(item) for item in value]
    return value if renamed == list(value) else renamed
