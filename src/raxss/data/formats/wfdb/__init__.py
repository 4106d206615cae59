"""WFDB, PhysioNet's format: a text header (.hea) and files of samples (.dat, .mat), perhaps in several segments.

Read header.py (what the header states), values.py and checking.py (whether the data files agree with it), then
reading.py (samples).
"""

from __future__ import annotations

from pathlib import Path

from raxss.data.formats.registry import Format, register_format
from raxss.data.formats.wfdb.checking import inspect_wfdb, read_header
from raxss.data.formats.wfdb.reading import WfdbRecording


def open_wfdb(path: Path, root: Path, rate: float | None) -> WfdbRecording:
    """Open a record that was not refused, given by its header, which states the rate."""
    return WfdbRecording(path)


def wfdb_files(path: Path) -> list[Path]:
    """The files that the header points to, and those of its segments."""
    header = read_header(path)
    files = [path.parent / signal.file for signal in header.signals]
    for segment, _ in header.segments:
        if segment != "~":  # a gap has no file
            inner = path.with_name(f"{segment}.hea")
            files += [inner, *wfdb_files(inner)]
    return files


register_format(
    Format(
        name="WFDB",
        suffixes=(".hea",),
        inspect=inspect_wfdb,
        open=open_wfdb,
        companions=(".dat", ".mat"),
        data_suffixes=(".dat", ".mat"),
        files=wfdb_files,
        bare_names=True,
        packages=("wfdb",),
        extra="bids",
    )
)
