"""How is a name shown that may hold anything?

    text of a file, a table or a person -> one line that is drawn as it reads

Names of channels and files come from outside: they may carry control characters, marks that turn the direction of
writing, half characters, or letters that no font at hand has. All of these are shown as escapes, so that nothing is
hidden and nothing moves. Next: figures.py and export/pdf.py draw it, export/annotations.py and
export/derivatives.py write it.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

FONT = "DejaVu Sans"  # comes with matplotlib, so it is the same everywhere


def plain(value: Any, longest: int = 60) -> str:
    """Any text on one line: what cannot be drawn as an escape, the middle of a long one left out.

    Examples
    --------
    >>> plain("POL  G1"), plain("a\\u202eb\\x1b[31m"), plain("n" * 99, 11)
    ('POL G1', 'a\\\\u202eb\\\\x1b[31m', 'nnnnn…nnnnn')
    """
    said = str(value)[:10_000]
    words = " ".join(said.split()) or said  # spaces alone are shown too
    text = "".join(
        word if word.isprintable() and ord(word) in _drawable() else _escaped(word) for word in words
    )
    half = (longest - 1) // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[-half:]}"


def _escaped(letter: str) -> str:
    return (
        letter.encode("ascii", "backslashreplace").decode() if ord(letter) > 126 else f"\\x{ord(letter):02x}"
    )


@functools.cache
def _drawable() -> frozenset[int]:
    """Code points that the font has."""
    from matplotlib import get_data_path
    from matplotlib.ft2font import FT2Font

    path = Path(get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    return frozenset(FT2Font(str(path)).get_charmap())
