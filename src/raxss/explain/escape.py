"""Escaping of untrusted names for figures and annotations.

Names of channels and files may hold control characters, direction marks, lone surrogates, or letters that the font
does not have. All of these are shown as escapes, so that nothing is hidden and nothing moves.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any


def plain(value: Any, longest: int = 60) -> str:
    """Text on one line: what cannot be drawn is escaped, the middle of a long text is left out.

    Examples
    --------
    >>> plain("POL  G1"), plain("a\\u202eb\\x1b[31m"), plain("n" * 99, 11)
    ('POL G1', 'a\\\\u202eb\\\\x1b[31m', 'nnnnn…nnnnn')
    """
    given = str(value)[:10_000]
    words = " ".join(given.split()) or given  # spaces alone are shown too
    text = "".join(
        letter if letter.isprintable() and ord(letter) in _drawable() else _escaped(letter)
        for letter in words
    )
    half = (longest - 1) // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[-half:]}"


def _escaped(letter: str) -> str:
    return (
        letter.encode("ascii", "backslashreplace").decode() if ord(letter) > 126 else f"\\x{ord(letter):02x}"
    )


@functools.cache
def _drawable() -> frozenset[int]:
    """Code points of the font that comes with matplotlib."""
    from matplotlib import get_data_path
    from matplotlib.ft2font import FT2Font

    path = Path(get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    return frozenset(FT2Font(str(path)).get_charmap())
