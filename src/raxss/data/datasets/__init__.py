"""Named datasets: registry, facts, plans, download.

    "sample"          400 single-lead ECGs of CinC 2017, inside the package
    "synthetic"       noise with a motif planted in one class, made on the spot
    "bern-barcelona", "bonn", "cinc2017", "watch", "ds003029"   on a disk, below a root
                                                                        ->  CollectionPlan, SeriesCollection

One module of collections/ has all that raxss knows of a dataset; dataset.py is their base class, and
`register_dataset` makes one of your own known. Next: prepare/ makes samples ready for a network.
"""

from raxss.data.datasets.collections.synthetic import (
    load_synthetic,  # collections/ registers all of its modules
)
from raxss.data.datasets.dataset import Dataset, SeriesDataset
from raxss.data.datasets.plans import OnDisk, folder_of, load_dataset, on_disk, plan_dataset
from raxss.data.datasets.registry import DATASETS, find_dataset, register_dataset
from raxss.data.datasets.sample import load_sample

__all__ = [
    "DATASETS",
    "Dataset",
    "OnDisk",
    "SeriesDataset",
    "find_dataset",
    "folder_of",
    "load_dataset",
    "load_sample",
    "load_synthetic",
    "on_disk",
    "plan_dataset",
    "register_dataset",
]
