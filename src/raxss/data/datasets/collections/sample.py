"""Sample: 400 short ECGs of CinC 2017 that come with the package."""

from __future__ import annotations

from pathlib import Path

from raxss.data.datasets.dataset import SeriesDataset
from raxss.data.datasets.registry import register_dataset
from raxss.data.datasets.sample import RATE, load_sample

FILE = Path(__file__).parents[1] / "sample" / "cinc2017.npz"

register_dataset(
    SeriesDataset(
        name="sample",
        about="400 single-lead ECGs of 10 to 60 s, atrial fibrillation or normal rhythm; part of cinc2017",
        licence="ODC-By 1.0",
        size=2_000_443,
        citation="Clifford GD et al. (2017). AF Classification from a Short Single Lead ECG Recording. CinC 44.",
        doi="10.22489/CinC.2017.065-469",
        source="https://physionet.org/content/challenge-2017/1.0.0/",
        where="package",
        labels=("AF", "normal"),
        rate=RATE,
        group_by="recording",
        load=load_sample,
        inputs=(FILE,),
    )
)
