"""Bern-Barcelona: intracranial EEG, a text file for each pair of neighbouring channels."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

from raxss.data.datasets.archives import TextFile, find_texts, read_numbers
from raxss.data.datasets.dataset import Dataset
from raxss.data.datasets.registry import register_dataset
from raxss.data.plan import CollectionPlan, RecordingPlan, SeriesPlan
from raxss.data.recording import ArrayRecording, Recording

RATE, N_SAMPLES = 512.0, 10240
TEXT = re.compile(r"Data_([FN])_Ind\d{4}\.txt", re.IGNORECASE)
CLASSES = {"F": "focal", "N": "nonfocal"}


class BernBarcelona(Dataset):
    """See the facts below."""

    def plan(self, folder: Path, **options: Any) -> CollectionPlan:
        """Two series a text, x and y, which are one pair."""
        texts, doubled = find_texts(folder, TEXT)
        recordings = []
        for stem, text in texts.items():
            letter, number = stem.split("_")[1], stem.removeprefix(f"DATA_{stem.split('_')[1]}_IND")
            name = f"Data_{letter}_Ind{number}"
            series = tuple(
                SeriesPlan(
                    f"{name}:{channel}",
                    (place,),
                    label=CLASSES[letter],
                    origin={"recording": name, "pair": name, "channel": channel},
                )
                for place, channel in enumerate("xy")
            )
            recordings.append(RecordingPlan(name, (text.file,), partial(_open, name, text, folder), series))
        return self.planned(folder, recordings, doubled)


def _open(name: str, text: TextFile, folder: Path) -> Recording:
    samples = read_numbers(text, folder, n_columns=2, n_rows=N_SAMPLES)
    return ArrayRecording(name, samples, rate=RATE, names=("x", "y"))


register_dataset(
    BernBarcelona(
        name="bern-barcelona",
        about="intracranial EEG, pairs of neighbouring channels of 20 s, focal or non-focal; 5 patients pooled",
        licence="CC BY 4.0, research and education only",
        size=10_962_571,
        citation=(
            "Andrzejak RG, Schindler K, Rummel C (2012). Nonrandomness, nonlinear dependence, and nonstationarity "
            "of electroencephalographic recordings from epilepsy patients. Phys. Rev. E 86, 046206."
        ),
        doi="10.34810/data502",
        source="https://doi.org/10.34810/data502",
        files=(
            ("Data_F_50.zip", "Data_F*.zip", "Data_F*.txt", "*/Data_F*.txt"),
            ("Data_N_50.zip", "Data_N*.zip", "Data_N*.txt", "*/Data_N*.txt"),
        ),
        labels=("focal", "nonfocal"),
        rate=RATE,
        group_by="pair",
    )
)
