"""Text that is safe to print in a terminal."""

from __future__ import annotations


def printable(error: BaseException | str) -> str:
    """An error's text without control characters, which names from files may carry into a terminal.

    >>> printable(ValueError("channel \\x1b[31mC3"))
    'channel ?[31mC3'
    """
    text = str(error.strerror) if isinstance(error, OSError) and error.strerror else str(error)
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)
