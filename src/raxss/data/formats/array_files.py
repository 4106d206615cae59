"""Recordings kept as arrays: what .npy, .npz and .csv files have in common.

a file, and how its format is looked at or read -> problems, or an ArrayRecording with the samples as stored

"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray

from raxss.data.confinement import open_confined
from raxss.data.formats.fields import Refused, inspected, open_unrefused
from raxss.data.formats.registry import Format
from raxss.data.problems import Problem
from raxss.data.recording import ArrayRecording, TooLongError
from raxss.errors import RecordingError, display_name

MOST_CHANNELS = 2**14
TIMES_TOLERANCE = 1e-3  # of a rate that is given: times in a file are rounded, and the given one is exact
RATE_UNKNOWN = Problem(
    "rate-unknown",
    "the file states no sampling rate: seconds count samples, here and in the look at signals, unless a rate is "
    "given with it. A .npz can hold one: numpy.savez(path, samples=..., rate=...).",
)


@dataclass(frozen=True, eq=False)
class ArrayContent:
    """``samples (n_variates, n_samples)``; rate, channel names and start where the file states them."""

    samples: NDArray[Any]
    rate: float | None = None
    channels: tuple[str, ...] = ()
    start_seconds: float = 0.0


Look = Callable[[BinaryIO, int], list[Problem]]
Read = Callable[[BinaryIO], ArrayContent]


def array_format(
    name: str, suffix: str, look: Look, read: Read, *, self_describing: bool = True, searched: bool = True
) -> Format:
    """A format of one file with one array, or several side by side, which is read into memory.

    ``look(open file, its size) -> problems`` raises `Refused`; ``read(open file) -> ArrayContent`` reads what was
    not refused; ``self_describing`` and ``searched`` are those of `Format`.
    """

    def inspect(path: Path, root: Path) -> list[Problem]:
        def looked_at(problems: list[Problem]) -> None:
            with open_unrefused(path, root) as file:
                problems += look(file, os.fstat(file.fileno()).st_size)

        return inspected(path, looked_at)[1]

    return Format(
        name=name,
        suffixes=(suffix,),
        inspect=inspect,
        open=lambda path, root, rate: _open_array(path, root, read, rate),
        searched=searched,
        self_describing=self_describing,
    )


def shape_problems(shape: tuple[int, ...]) -> list[Problem]:
    """Whether there are more channels than samples; far too many of them raise `Refused`."""
    if len(shape) == 1 or shape[0] <= min(shape[1], MOST_CHANNELS):
        return []
    message = f"there are {shape[0]:,} channels of {shape[1]:,} samples each; channels × time is needed"
    to_do = "Transpose it if time came first."
    if shape[0] > MOST_CHANNELS:  # each takes memory and time of its own
        raise Refused("too-large", f"{message}, with at most {MOST_CHANNELS:,} channels. {to_do}")
    return [Problem("shape-doubtful", f"{message}. {to_do}")]


def _open_array(path: Path, root: Path, read: Read, rate: float | None) -> ArrayRecording:
    """Read a recording that was not refused; any error of a decoder becomes a RecordingError."""
    called = f"recording {display_name(path)}"
    try:
        with open_confined(path, root) as file:
            content = read(file)
    except TooLongError as error:
        raise TooLongError(f"{called} cannot be read: {error}") from None
    except (RecordingError, Refused) as error:
        raise RecordingError(f"{called} cannot be read: {error}") from None
    except MemoryError:
        raise RecordingError(
            f"{called} needs more memory than there is. If it is really that long, cut it into several; if not, "
            "it is damaged: copy or write it again."
        ) from None
    except Exception as error:  # a parser quotes the file, so only the kind of error is shown
        kind = type(error).__name__
        raise RecordingError(f"{called} is damaged ({kind}). Copy or write it again.") from None
    if content.rate is not None and (rate is None or abs(content.rate - rate) > TIMES_TOLERANCE * rate):
        rate = content.rate  # callers of open_recording refuse another one than they were given
    rate = 1.0 if rate is None else rate
    if not (math.isfinite(rate) and rate > 0):
        raise RecordingError(f"{called} has a rate of {rate} Hz; a finite number above 0 is needed.")
    return ArrayRecording(
        path.name, content.samples, rate=rate, names=content.channels, start_seconds=content.start_seconds
    )
