"""Opening a recording of any format, after an inspection of its header.

    path -> its format -> inspection: refused, or not -> Recording (channels, segments; samples on request)

Nothing decodes a file before it was inspected, and nothing it points to is followed out of its folder.
"""

from __future__ import annotations

import os
from pathlib import Path

from raxss.data.confinement import problem_of_opening, root_of
from raxss.data.formats.fields import inspected, open_unrefused
from raxss.data.formats.registry import FORMATS, all_suffixes, format_of, header_of
from raxss.data.problems import Problem, refusals
from raxss.data.recording import Recording
from raxss.errors import RecordingError, display_name

UNEXPECTED = "raxss did not expect this"  # tests check that no message says so


def open_recording(
    path: Path | str, *, root: Path | None = None, inspect: bool = True, rate: float | None = None
) -> Recording:
    """Open a recording: EDF, BDF, BrainVision, WFDB, ``.npz``, ``.npy``, ``.csv`` or any other registered format.

    Parameters
    ----------
    path
        A file; of BrainVision any of the three, of WFDB any or the bare name of the record.
    root
        The folder that no pointer or link may leave; by default the BIDS root around the file, else its own folder.
    inspect
        Inspect it first. False is only for callers that have just done so themselves.
    rate
        Samples per second of a ``.npz``, ``.npy`` or ``.csv`` that states none; 1 by default: times count samples.

    Returns
    -------
    Recording
        With the inspection's warnings in ``problems``. Samples of arrays and tables are in memory; of all else they
        are read on request.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> path = Path(tempfile.mkdtemp()) / "night.npz"
    >>> np.savez(path, samples=[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], rate=100.0, channels=["C3", "C4"])
    >>> with open_recording(path) as night:
    ...     night.channels[1], night.read([1], start=1)
    (Channel(name='C4', rate=100.0, unit=''), array([[5., 6.]]))
    """
    path = Path(path)
    if inspect and os.path.isdir(path):
        found = f"recording {display_name(path)} is a folder; a file of type {_types()} is needed"
        to_do = "For many recordings, write a manifest: a CSV with a column 'path'."
        raise RecordingError(f"{found}. {to_do}")
    problems = inspect_recording(path, root=root) if inspect else []
    if refused := refusals(problems):
        reasons = " ".join(f"[{problem.code}] {problem.message}" for problem in refused)
        raise RecordingError(f"recording {display_name(path)} was not opened: {reasons}")
    header, known = header_of(path), format_of(path)
    if known is None:
        raise RecordingError(_unknown(path).message)
    recording = known.open(header, root or root_of(header), rate)
    recording.problems = tuple(problems)
    return recording


def inspect_recording(path: Path, *, root: Path | None = None) -> list[Problem]:
    """What is wrong with a recording by its header and sizes; nothing is decoded, and nothing is raised.

    >>> [problem.code for problem in inspect_recording(Path("no-such.edf"))]
    ['not-found']
    """

    def look(problems: list[Problem]) -> None:
        header, known = header_of(path), format_of(path)
        around = root or root_of(header)
        if known is None:
            problems.append(problem_of_opening(path, around) or _unknown(path))
            return
        open_unrefused(header, around).close()
        problems += known.inspect(header, around)

    try:
        return inspected(path, look)[1]
    except Exception as error:  # a fault of ours must not stop the look at other files
        return [unexpected(path, error)]


def unexpected(path: Path, error: Exception) -> Problem:
    """The problem that an inspection itself failed, without what the error quotes."""
    found = f"{display_name(path)} cannot be understood ({type(error).__name__}; {UNEXPECTED})"
    return Problem("header-damaged", f"{found}. Please report it, without the file.")


def is_channelwise(path: Path) -> bool:
    """Whether every channel of a recording is a series of its own, as in EDF, BDF and BrainVision files.

    >>> is_channelwise(Path("night.EDF")), is_channelwise(Path("night.npz"))
    (True, False)
    """
    known = format_of(path)
    return known is not None and known.by_channel


def files_of(path: Path) -> tuple[Path, ...]:
    """Every file that a recording consists of: the header and what it points to."""
    header, known = header_of(path), format_of(path)
    beside = () if known is None or known.files is None else known.files(header)
    return (header, *dict.fromkeys(beside))


def _unknown(path: Path) -> Problem:
    kind = f"of type {display_name(path.suffix)}" if path.suffix else "of unknown type"
    message = f"{display_name(path)} is {kind}; recordings are of type {_types()}."
    return Problem("not-a-recording", message)


def _types() -> str:
    bare = " or ".join(entry.name for entry in FORMATS.values() if entry.bare_names)
    return f"{', '.join(all_suffixes())}, or a {bare} record's name"
