"""Text that is safe to print in a terminal, and refusals of options that do not go together."""

from __future__ import annotations

import typer


def printable(error: BaseException | str) -> str:
    """An error's text without control characters, which names from files may carry into a terminal.

    >>> printable(ValueError("channel \\x1b[31mC3"))
    'channel ?[31mC3'
    """
    text = str(error.strerror) if isinstance(error, OSError) and error.strerror else str(error)
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def counted(number: int, noun: str) -> str:
    """``1 plot``, ``2 plots``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def refuse_if(wrong: object, message: str) -> None:
    """Exit with code 2 and this message where options are wrong."""
    if wrong:
        raise typer.BadParameter(message)
