"""Renamed backbones, their options and values, in one table.

    settings file, study, config.json -> current_* -> the same under today's names, with a DeprecationWarning
    settings that are hashed          -> former_settings -> the same under their first names, so that hashes stay

To rename something that stands in files, add it to `RENAMES` and use the new name everywhere else, also for
what is written. Entries stay: hashes of committed results and of model folders are made of the old names.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from raxss.errors import ConfigError

BACKBONE = "backbone"

#: Kind of name -> old name -> new name. Options and values of a backbone come under its new name.
RENAMES: dict[str, dict[str, str]] = {
    BACKBONE: {"committee": "ensemble"},
    "option of multiview": {"d_textures": "d_ppv"},
    "view of multiview": {"textures": "ppv"},
}
#: (backbone, option) -> kind of the names that are its value.
VALUES = {("multiview", "views"): "view of multiview", ("ensemble", "of"): BACKBONE}

Rename = Callable[[str, Any], Any]  # kind, name -> name


def current_settings(settings: Mapping[str, Any], *, warn: bool = True) -> dict[str, Any]:
    """Parameters of an estimator with today's names of the backbone, its options and values."""
    found = dict(settings)
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
    return found


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
    kind = f"option of {backbone}"
    renamed = {rename(kind, option): value for option, value in found.items()}
    if len(renamed) < len(found):
        twice = next(new for old, new in RENAMES[kind].items() if old in found and new in found)
        raise ConfigError(
            f"the {kind} {twice!r} is given twice, once under another name. Remove one of them."
        )
    return renamed


def _each(value: Any, rename: Callable[[Any], Any]) -> Any:
    """A value, or each of several; what stays the same stays the object that it is."""
    if not isinstance(value, list | tuple):
        return rename(value)
    renamed = [rename(item) for item in value]
    return value if renamed == list(value) else renamed
