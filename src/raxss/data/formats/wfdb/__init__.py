"""WFDB, PhysioNet's format: a text header (.hea) and files of samples (.dat, .mat), perhaps in several segments.

Read header.py (what the header states), values.py and checking.py (whether the data files agree with it), then
reading.py (samples).
"""

from __future__ import annotations

from pathlib import Path

from raxss.data.formats.registry import header_format, register_format
from raxss.data.formats.wfdb.checking import examine
from raxss.data.formats.wfdb.header import WfdbHeader
from raxss.data.formats.wfdb.reading import WfdbRecording


def _files(path: Path, header: WfdbHeader) -> list[Path]:
    """The files that the header points to, and those of its segments."""
    files = [path.parent / signal.file for signal in header.signals]
    for name, part in header.parts.items():
        files.append(path.with_name(f"{name}.hea"))
        files += [path.parent / signal.file for signal in part.signals if part.frames]
    return files


register_format(
    header_format(
        examine,
        WfdbRecording,
        files=_files,
        name="WFDB",
        suffixes=(".hea",),
        companions=(".dat", ".mat"),
        data_suffixes=(".dat", ".mat"),
        bare_names=True,
        packages=("wfdb",),
        extra="bids",
    )
)
