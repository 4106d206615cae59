"""EDF and BDF: the European Data Format, its 24-bit sibling, and their plus variants with annotations.

Read signals.py and header.py (what a header states), onsets.py (when records began), then reading.py (samples).
"""

from __future__ import annotations

from pathlib import Path

from raxss.data.formats.edf.header import examine, read_header
from raxss.data.formats.edf.onsets import time_problems
from raxss.data.formats.edf.reading import EdfRecording
from raxss.data.formats.registry import Format, RecordingFacts, register_format
from raxss.data.problems import Problem, refusals


def inspect_edf(path: Path, root: Path) -> list[Problem]:
    """Everything that is wrong with an EDF or BDF file, by its header, size and record times.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "night.edf"
    >>> _ = path.write_bytes(b"0       " + b" " * 100)
    >>> print(inspect_edf(path, path.parent)[0].message)
    'night.edf' has 108 bytes, and the header alone of an EDF file has 256; it was cut off. Copy it again.
    """
    header, problems = examine(path, root)
    if header is not None and not refusals(problems):
        problems += time_problems(path, root, header)
    return problems


def open_edf(path: Path, root: Path, rate: float | None) -> EdfRecording:
    """Open an EDF or BDF file that was not refused; it states its rates itself."""
    return EdfRecording(path, root)


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
