"""Exceptions and warnings, and helpers for their messages.

All errors are `RAxSSError`, and the builtin error that fits as well; those about series are `DataError`.
Each message names the thing, what was found, what was needed and what to do.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


class RAxSSError(Exception):
    """Base class of all errors that raxss raises."""


class DataError(RAxSSError, ValueError):
    """The series given cannot be used as they are."""


class EmptyDataError(DataError):
    """No series, or a series without samples."""


class LabelError(DataError):
    """Labels are missing, of another length than the series, or of one class only."""


class SignalError(DataError):
    """Samples are not finite, or nothing usable is left."""


class VariateMismatchError(DataError):
    """Series do not have the number of variates that was expected."""


class RateMismatchError(DataError):
    """Series have a sampling rate that differs by more than a tenth from every rate that the model learned from."""


class RecordingError(DataError):
    """A recording or manifest is missing, unreadable or inconsistent."""


class ConfigError(RAxSSError, ValueError):
    """A setting is unknown or out of range."""


class BackboneError(RAxSSError, TypeError):
    """A network does not meet the backbone protocol."""


class TrainingError(RAxSSError, ArithmeticError):
    """The training loss is NaN or infinite."""


class ModelError(RAxSSError, ValueError):
    """A model folder or checkpoint is missing, corrupt or made by something else."""


class LibraryError(RAxSSError, ValueError):
    """A case library is missing, corrupt, of another encoder, or cannot take these recordings."""


class OutputError(RAxSSError, OSError):
    """A file or folder cannot be written."""


class OutputInUseError(OutputError):
    """Another process or thread is writing this output."""


class MissingExtraError(RAxSSError, ImportError):
    """An optional dependency is needed and not installed."""


class TooSlowError(RAxSSError, RuntimeError):
    """What was asked for would take longer than is allowed, and was not begun; the message has the estimate."""


class RAxSSWarning(UserWarning):
    """Base class of all warnings of raxss."""


class SignalWarning(RAxSSWarning):
    """The signal has a property that affects how results should be read."""


class NotLearnedWarning(RAxSSWarning):
    """A model does not fit its training series, is at chance on others, or is clearly worse than a forest."""


class GapsLearnedWarning(RAxSSWarning):
    """Missing samples differ by class, and the scores of a fitted model follow them."""


class SearchWarning(RAxSSWarning):
    """A search for settings could not compare what it should: too little time, or too few groups of a class."""


class ModelWarning(RAxSSWarning):
    """A model folder is used, but could not be checked in full."""


class LibraryWarning(RAxSSWarning):
    """A case library can be used, but something in it affects how what it says should be read."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown name.

    >>> did_you_mean("papr", ["paper", "sss"])
    "; did you mean 'paper'? Known: paper, sss."
    """
    names = list(known)
    matches = difflib.get_close_matches(str(name), names, n=1)
    guess = f"; did you mean {matches[0]!r}?" if matches else "."
    return f"{guess} Known: {', '.join(names) or 'none'}."


def display_name(path: Path | str) -> str:
    """How errors name a file: in quotes, without this machine's folders, shortened where it is very long.

    >>> print(display_name(Path("data/night.npz")), display_name("n" * 300))
    'night.npz' 'nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn...nnnnnnnnnn'
    """
    name = path if isinstance(path, str) else path.name or str(path)
    return repr(name if len(name) <= 100 else f"{name[:40]}...{name[-10:]}")


def without_folders(text: str) -> str:
    """A message without the folders of any absolute path in it, for what is kept and may be shown to others.

    A path in quotes ends with them; one without ends at the last stroke of its line, because names of folders
    may hold spaces. Web addresses and closing tags (``</b>``) stay.

    >>> without_folders("no file '/home/ann lee/night.edf', see https://example.org/help/")
    "no file 'night.edf', see https://example.org/help/"
    """
    quoted = r"""(['"])(?:[A-Za-z]:)?[\\/][^'"\n]*[\\/]([^'"\n\\/]*)\1"""
    bare = r"""(?<![\w.:/'"])(?:[A-Za-z]:)?[\\/](?=[^\s\\/])(?!\w+>)(?:(?!https?://)[^\n'"])*[\\/]"""
    return re.sub(bare, "", re.sub(quoted, r"\1\2\1", text))


def join_names(names: Iterable[str], most: int = 10) -> str:
    """The first of many names, and how many more there are.

    >>> join_names(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    every = list(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


def one_of(name: str, value: Any, allowed: Sequence[str]) -> Any:
    """The value of a setting, if it is one of those that there are."""
    if value not in allowed:
        raise ConfigError(f"{name} is {value!r}{did_you_mean(str(value), allowed)}")
    return value
