"""A dataset of a user's own, in one file: nothing of the package is changed for it.

A file of your own ends with ``register_dataset(Tremor(...))``; the tests register this one for their time alone.

    tremor/<subject>-<class>.txt, one sample a line -> one series a file
"""

from functools import partial
from pathlib import Path

import numpy as np

from raxss.data.datasets import Dataset
from raxss.data.plan import RecordingPlan, SeriesPlan
from raxss.data.recording import ArrayRecording

RATE = 100.0


class Tremor(Dataset):
    """Acceleration of a hand."""

    def plan(self, folder: Path, **options):
        """One series a file."""
        recordings = []
        for file in sorted(folder.glob("*.txt")):
            subject, _, label = file.stem.partition("-")
            series = SeriesPlan(
                file.stem, (0,), label=label, origin={"patient": subject, "recording": file.stem}
            )
            recordings.append(RecordingPlan(file.stem, (file,), partial(open_tremor, file), (series,)))
        return self.planned(folder, recordings)


def open_tremor(file: Path) -> ArrayRecording:
    return ArrayRecording(file.stem, np.loadtxt(file, ndmin=2).T, rate=RATE)


TREMOR = Tremor(
    name="tremor",
    about="acceleration of a hand, at rest or held out",
    licence="CC0",
    size=12_000,
    citation="nobody (2026)",
    doi="",
    source="https://example.org/tremor",
    files=(("*-rest.txt",), ("*-held.txt",)),
    labels=("rest", "held"),
    rate=RATE,
    group_by="patient",
)
