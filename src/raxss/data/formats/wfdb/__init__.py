"""WFDB, PhysioNet's format: a text header (.hea) and files of samples (.dat, .mat), perhaps in several segments.

Read header.py (what the header states), values.py and checking.py (whether the data files agree with it), then
reading.py (samples).
"""

from __future__ import annotations

from pathlib import Path

from raxss.data.confinement import root_of
from raxss.data.formats.fields import trusted
from raxss.data.formats.registry import Format, register_format
from raxss.data.formats.wfdb.checking import examine
from raxss.data.formats.wfdb.header import WfdbHeader
from raxss.data.formats.wfdb.reading import WfdbRecording
from raxss.data.problems import Problem


def inspect_wfdb(path: Path, root: Path) -> list[Problem]:
    """What is wrong with a WFDB record, given by its header.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.hea").write_text("a 1 250 1000\\na.dat 16 200/mV\\n")
    >>> [problem.code for problem in inspect_wfdb(folder / "a.hea", folder)]
    ['not-found']
    """
    return examine(path, root)[1]


def read_header(path: Path, root: Path) -> WfdbHeader:
    """The header of a record that is not refused."""
    return trusted(path, *examine(path, root))


def open_wfdb(path: Path, root: Path, rate: float | None) -> WfdbRecording:
    """Open a record that was not refused, given by its header, which states the rate."""
    return WfdbRecording(path, read_header(path, root))


def wfdb_files(path: Path) -> list[Path]:
    """The files that the header points to, and those of its segments."""
    header = read_header(path, root_of(path))
    files = [path.parent / signal.file for signal in header.signals]
    for name, part in header.parts.items():
        files.append(path.with_name(f"{name}.hea"))
        files += [path.parent / signal.file for signal in part.signals if part.frames]
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
