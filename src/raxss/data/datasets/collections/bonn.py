"""Bonn: EEG in five sets of 100 texts, one channel each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from raxss.data.datasets.archives import TextFile, find_texts, read_numbers
from raxss.data.datasets.dataset import Dataset
from raxss.data.datasets.registry import register_dataset
from raxss.data.plan import CollectionPlan, RecordingPlan, SeriesPlan
from raxss.data.recording import ArrayRecording, Recording

RATE, N_SAMPLES = 173.61, 4097  # the paper says 4096; every file has one more
SETS = "ZONFS"
TEXT = re.compile(rf"[{SETS}]\d{{3}}\.txt", re.IGNORECASE)


class Bonn(Dataset):
    """See the facts below."""

    def plan(self, folder: Path, **options: Any) -> CollectionPlan:
        """One series a text, in the order of the sets."""
        texts, doubled = find_texts(folder, TEXT)
        ordered = sorted(texts.items(), key=lambda item: (SETS.index(item[0][0]), item[0]))
        recordings = [
            RecordingPlan(
                stem,
                (text.file,),
                partial(_open, stem, text, folder),
                (SeriesPlan(stem, (0,), label=stem[0], origin={"recording": stem}),),
            )
            for stem, text in ordered
        ]
        return self.planned(folder, recordings, doubled)

    def needed_for(self, classes: Sequence[str], absent: Sequence[str]) -> tuple[str, ...]:
        """A set has a file of its own: Z.zip is not needed for F and N."""
        return tuple(name for name in absent if name.partition(".")[0] in classes)


def _open(name: str, text: TextFile, folder: Path) -> Recording:
    samples = read_numbers(text, folder, n_columns=1, n_rows=N_SAMPLES)
    return ArrayRecording(name, samples, rate=RATE)


register_dataset(
    Bonn(
        name="bonn",
        about=(
            "five sets (Z O N F S) of 100 single EEG channels of 23.6 s; "
            "F against N: epileptogenic zone or opposite"
        ),
        licence="CC BY 4.0, research and education only",
        size=3_204_868,
        citation="Andrzejak RG et al. (2001). Phys. Rev. E 64, 061907.",
        doi="10.34810/data490",
        source="https://doi.org/10.34810/data490",
        files=tuple(
            (f"{letter}.zip", f"{letter.lower()}.zip", f"{letter}/{letter}*", f"*/{letter}/{letter}*")
            for letter in SETS
        ),
        labels=tuple(SETS),
        rate=RATE,
        group_by="recording",
    )
)
