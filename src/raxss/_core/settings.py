"""Checks of settings, and their values as TOML; every stage has a dataclass of its own that uses them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from raxss.errors import ConfigError


def is_number(value: object) -> bool:
    """Whether a value is a finite number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def at_least(name: str, value: object, least: int, *, whole: bool = True, otherwise: str = "") -> None:
    """Refuse a setting that is not a number of at least ``least``."""
    if not (is_number(value) and isinstance(value, int if whole else int | float) and value >= least):
        raise ConfigError(
            f"{name} must be {'a whole number' if whole else 'a number'} of at least {least}{otherwise}, got "
            f"{value!r}."
        )


def toml_value(value: Any) -> str:
    """A value as TOML spells it; JSON's spelling is the same for strings, numbers, booleans and lists."""
    if isinstance(value, Mapping):
        items = ", ".join(f"{_toml_key(str(key))} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {items} }}" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if not isinstance(value, str | bool | int | float):
        raise ConfigError(
            f"backbone.backbone_options holds {value!r}, which a settings file cannot; needed is text, a number, "
            "true or false, or a list or mapping of these. Leave it out, or give the backbone as a callable."
        )
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigError(
            f"backbone.backbone_options holds {value}, which is larger than the 64 bits of a whole number in a "
            "settings file. Give it as a float, or as text."
        )
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # inf, nan: as TOML spells them
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)
