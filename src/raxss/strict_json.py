"""JSON text in which every name of an object stands once.

Python's decoder keeps the last of two values with one name and says nothing: a sidecar with two
``SamplingFrequency`` would be read at a rate that nobody chose.
"""

from __future__ import annotations

import json
from typing import Any


class DuplicateKeyError(ValueError):
    """An object of a JSON text has one name twice; ``key`` is the name."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"the field {key[:40]!r} stands twice in one object")


def loads(text: str | bytes) -> Any:
    """`json.loads`, which refuses an object that has a name twice.

    Examples
    --------
    >>> loads('{"SamplingFrequency": 250}')
    {'SamplingFrequency': 250}
    >>> loads('{"rate": 250, "rate": 500}')
    Traceback (most recent call last):
    raxss.strict_json.DuplicateKeyError: the field 'rate' stands twice in one object
    """
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise DuplicateKeyError(key)
        found[key] = value
    return found
