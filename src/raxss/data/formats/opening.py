"""How is a recording of any format opened?

    path -> inspection: refused, or not -> Recording (channels, segments; samples when asked for)

Nothing decodes a file before it was inspected, and nothing it points to is followed out of its folder.
Next: files.py makes series of recordings; bids.py labels their channels.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from raxss.data.formats.array_files import open_array
from raxss.data.formats.brainvision_files import BrainVisionRecording
from raxss.data.formats.edf_files import EdfRecording
from raxss.data.formats.known import SUFFIXES
from raxss.data.formats.wfdb_files import WfdbRecording
from raxss.data.inspection import brainvision, wfdb
from raxss.data.inspection.front import header_of, inspect_file
from raxss.data.problems import Problem, refusals
from raxss.data.recording import Recording
from raxss.errors import RecordingError, shown

CHANNELWISE = (".edf", ".bdf", ".vhdr")


def open_recording(
    path: Path | str, *, root: Path | None = None, inspect: bool = True, rate: float | None = None
) -> Recording:
    """Open a recording: EDF, BDF, BrainVision, WFDB, ``.npz``, ``.npy`` or ``.csv``.

    Parameters
    ----------
    path
        A file; of BrainVision any of the three, of WFDB any or the bare name of the record.
    root
        The folder that no pointer or link may leave: by default the BIDS root that the file lies in, else its own
        folder.
    inspect
        Inspect it first. False is only for callers that have just done so themselves.
    rate
        Samples per second of a ``.npz``, ``.npy`` or ``.csv`` that tells none itself; 1 otherwise, so that times
        count samples.

    Returns
    -------
    Recording
        With the inspection's warnings in ``problems``. Samples of ``.npz``, ``.npy`` and ``.csv`` are in memory; of
        all else they are read when asked for.

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
    problems = _inspected(path, root) if inspect else ()
    recording = _opened(header_of(path), root, rate)
    recording.problems = problems
    return recording


def is_channelwise(path: Path) -> bool:
    """Whether a file is an EDF, BDF or BrainVision recording, of which every channel is a series of its own.

    >>> is_channelwise(Path("night.EDF")), is_channelwise(Path("night.npz"))
    (True, False)
    """
    return header_of(path).suffix.lower() in CHANNELWISE


def _opened(file: Path, root: Path | None, rate: float | None) -> Recording:
    """The recording that this file is, or is the header of."""
    suffix = file.suffix.lower()
    if suffix in (".edf", ".bdf"):
        return EdfRecording(file, root)
    if suffix == ".vhdr":
        return BrainVisionRecording(file)
    return WfdbRecording(file) if suffix == ".hea" else open_array(file, root, rate=rate)


def _inspected(path: Path, root: Path | None) -> tuple[Problem, ...]:
    """The warnings about a file; an error with its coded problems if it is refused."""
    if os.path.isdir(path):
        raise RecordingError(
            f"recording {shown(path)} is a folder; a file of type {', '.join(SUFFIXES)} or the name of a WFDB "
            "record is needed. For many recordings, write a manifest: a CSV with a column 'path'."
        )
    problems = inspect_file(path, root=root).problems
    if refused := refusals(problems):
        told = " ".join(f"[{one.code}] {one.message}" for one in refused)
        raise RecordingError(f"recording {shown(path)} was not opened: {told}")
    return problems


def files_of(path: Path) -> tuple[Path, ...]:
    """Every file that a recording consists of: the header and what it points to."""
    header = header_of(path)
    pointed: Iterable[Path | None] = ()
    if header.suffix.lower() == ".vhdr":
        told = brainvision.read_header(header)
        pointed = (told.data_file, told.marker_file)
    elif header.suffix.lower() == ".hea":
        pointed = _files_of_wfdb(header)
    return (header, *dict.fromkeys(one for one in pointed if one is not None))


def _files_of_wfdb(header: Path) -> list[Path]:
    told = wfdb.read_header(header)
    files = [header.parent / one.file for one in told.signals]
    for segment, _ in told.segments:
        if segment != "~":
            inner = header.with_name(f"{segment}.hea")
            files += [inner, *_files_of_wfdb(inner)]
    return files
