"""BrainVision: a text header (.vhdr), a file of samples (.eeg) and a marker file (.vmrk).

Read header.py (what the header states), markers.py (where recording was interrupted), then reading.py (samples).
"""

from __future__ import annotations

from pathlib import Path

from raxss.data.formats.brainvision.header import BrainVisionHeader, examine
from raxss.data.formats.brainvision.reading import BrainVisionRecording
from raxss.data.formats.registry import RecordingFacts, header_format, register_format


def _files(path: Path, header: BrainVisionHeader) -> list[Path]:
    return [header.data_file, *([] if header.marker_file is None else [header.marker_file])]


def _facts(header: BrainVisionHeader) -> RecordingFacts:
    seconds = header.n_samples / header.rate if len(header.segment_starts) == 1 else None
    return RecordingFacts(header.names, [header.rate] * header.n_channels, header.units, seconds)


register_format(
    header_format(
        examine,
        BrainVisionRecording,
        files=_files,
        facts=_facts,
        name="BrainVision",
        suffixes=(".vhdr",),
        companions=(".eeg", ".vmrk"),
        data_suffixes=(".eeg", ".dat", ".seg"),
        by_channel=True,
        datatypes=("ieeg", "eeg"),
    )
)
