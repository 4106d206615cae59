"""BrainVision: a text header (.vhdr), a file of samples (.eeg) and a marker file (.vmrk).

Read header.py (what the header states), markers.py (where recording was interrupted), then reading.py (samples).
"""

from __future__ import annotations

from pathlib import Path

from raxss.data.confinement import root_of
from raxss.data.formats.brainvision.header import BrainVisionHeader, examine
from raxss.data.formats.brainvision.reading import BrainVisionRecording
from raxss.data.formats.fields import trusted
from raxss.data.formats.registry import Format, RecordingFacts, register_format
from raxss.data.problems import Problem


def inspect_brainvision(path: Path, root: Path) -> list[Problem]:
    """What is wrong with a BrainVision recording, given by its .vhdr file.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.vhdr").write_text("Brain Vision Data Exchange Header File Version 1.0\\n[Common Infos]\\n")
    >>> [problem.code for problem in inspect_brainvision(folder / "a.vhdr", folder)]
    ['header-damaged']
    """
    return examine(path, root)[1]


def read_header(path: Path, root: Path) -> BrainVisionHeader:
    """The header of a recording that is not refused."""
    return trusted(path, *examine(path, root))


def open_brainvision(path: Path, root: Path, rate: float | None) -> BrainVisionRecording:
    """Open a recording that was not refused, given by its header, which states the rate."""
    return BrainVisionRecording(path, read_header(path, root))


def brainvision_files(path: Path) -> list[Path]:
    """The files that the header points to: samples, and markers where there are any."""
    header = read_header(path, root_of(path))
    return [header.data_file, *([] if header.marker_file is None else [header.marker_file])]


def brainvision_facts(path: Path, root: Path) -> RecordingFacts:
    """What the header states, units as written."""
    header = read_header(path, root)
    seconds = header.n_samples / header.rate if len(header.segment_starts) == 1 else None
    return RecordingFacts(header.names, [header.rate] * header.n_channels, header.units, seconds)


register_format(
    Format(
        name="BrainVision",
        suffixes=(".vhdr",),
        inspect=inspect_brainvision,
        open=open_brainvision,
        companions=(".eeg", ".vmrk"),
        data_suffixes=(".eeg", ".dat", ".seg"),
        files=brainvision_files,
        facts=brainvision_facts,
        by_channel=True,
        datatypes=("ieeg", "eeg"),
        packages=("mne",),
        extra="bids",
    )
)
