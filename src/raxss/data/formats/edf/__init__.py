"""EDF and BDF: the European Data Format, its 24-bit sibling, and their plus variants with annotations.

Read header.py (what a header states), onsets.py (when records began), then reading.py (samples).
"""

from __future__ import annotations

import os
from pathlib import Path

from raxss.data.formats.edf.header import EdfHeader, parse_header
from raxss.data.formats.edf.onsets import with_times
from raxss.data.formats.edf.reading import EdfRecording
from raxss.data.formats.fields import inspected, open_unrefused, trusted
from raxss.data.formats.registry import Format, RecordingFacts, register_format
from raxss.data.problems import Problem, refusals


def examine(path: Path, root: Path) -> tuple[EdfHeader | None, list[Problem]]:
    """The header, if it makes enough sense to have one, and what is wrong with it, the size and record times."""

    def look(problems: list[Problem]) -> EdfHeader | None:
        with open_unrefused(path, root) as file:
            header = parse_header(file, os.fstat(file.fileno()).st_size, path.suffix.lower(), problems)
            return None if header is None or refusals(problems) else with_times(file, header, problems)

    return inspected(path, look)


def inspect_edf(path: Path, root: Path) -> list[Problem]:
    """Everything that is wrong with an EDF or BDF file, by its header, size and record times.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "night.edf"
    >>> _ = path.write_bytes(b"0       " + b" " * 100)
    >>> print(inspect_edf(path, path.parent)[0].message)
    the file has 108 bytes, and the header alone of an EDF file has 256; it was cut off. Copy it again.
    """
    return examine(path, root)[1]


def read_header(path: Path, root: Path) -> EdfHeader:
    """The header of a file that can be read, or a RecordingError that says why it cannot."""
    return trusted(path, *examine(path, root))


def open_edf(path: Path, root: Path, rate: float | None) -> EdfRecording:
    """Open an EDF or BDF file that was not refused; it states its rates itself."""
    return EdfRecording(path, read_header(path, root))


def edf_facts(path: Path, root: Path) -> RecordingFacts:
    """What the header states, units as written."""
    header = read_header(path, root)
    signals = header.data_signals
    return RecordingFacts(
        [signal.label for signal in signals],
        [header.rate(signal) for signal in signals],
        [signal.unit for signal in signals],
        None if header.kind.endswith("+D") else header.n_records * header.record_seconds,
    )


def _format(name: str, datatypes: tuple[str, ...]) -> Format:
    return Format(
        name=name,
        suffixes=(f".{name.lower()}",),
        inspect=inspect_edf,
        open=open_edf,
        facts=edf_facts,
        by_channel=True,
        datatypes=datatypes,
        packages=("edfio",),
        extra="bids",
    )


register_format(_format("EDF", ("ieeg", "eeg")))
register_format(_format("BDF", ("eeg",)))  # BIDS allows it for scalp recordings alone
