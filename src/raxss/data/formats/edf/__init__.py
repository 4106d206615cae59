"""EDF and BDF: the European Data Format, its 24-bit sibling, and their plus variants with annotations.

Read header.py (what a header states), onsets.py (when records began), then reading.py (samples).
"""

from __future__ import annotations

import os
from pathlib import Path

from raxss.data.formats.edf.header import EdfHeader, parse_header
from raxss.data.formats.edf.onsets import with_times
from raxss.data.formats.edf.reading import EdfRecording
from raxss.data.formats.fields import open_unrefused
from raxss.data.formats.registry import RecordingFacts, header_format, register_format
from raxss.data.problems import Problem, refusals


def examine(path: Path, root: Path, problems: list[Problem]) -> EdfHeader | None:
    """The header with the times of records, if it can be used; what is wrong is added to ``problems``."""
    with open_unrefused(path, root) as file:
        header = parse_header(file, os.fstat(file.fileno()).st_size, path.suffix.lower(), problems)
        return None if header is None or refusals(problems) else with_times(file, header, problems)


def _facts(header: EdfHeader) -> RecordingFacts:
    signals = header.data_signals
    return RecordingFacts(
        [signal.label for signal in signals],
        [header.rate(signal) for signal in signals],
        [signal.unit for signal in signals],
        None if header.kind.endswith("+D") else header.n_records * header.record_seconds,
    )


# BIDS allows BDF for scalp recordings alone
for _name, _datatypes in {"EDF": ("ieeg", "eeg"), "BDF": ("eeg",)}.items():
    register_format(
        header_format(
            examine,
            EdfRecording,
            facts=_facts,
            name=_name,
            suffixes=(f".{_name.lower()}",),
            by_channel=True,
            datatypes=_datatypes,
        )
    )
