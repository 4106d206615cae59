"""Registry of named datasets.

    register_dataset(Dataset) -> DATASETS[name]

The modules of collections/ register theirs when the package is imported; others register from outside.
Next: collections/ has one module per dataset.
"""

from __future__ import annotations

from typing import TypeVar

from raxss.data.datasets.dataset import Dataset
from raxss.data.series import ORIGINS
from raxss.errors import ConfigError, DataError, did_you_mean

DATASETS: dict[str, Dataset] = {}
"""Name -> dataset: those inside the package first, then those to be copied, then those that raxss downloads."""

FACTS = ("name", "about", "licence", "citation", "source", "labels", "group_by")  # none of them may be empty

Kind = TypeVar("Kind", bound=Dataset)


def register_dataset(dataset: Kind) -> Kind:
    """Make a dataset known by its name: to `load_dataset`, study files, and the commands run from Python.

    Examples
    --------
    >>> from pathlib import Path
    >>> from raxss.data.datasets.dataset import SeriesDataset
    >>> from raxss.data.synthetic import make_motif_series
    >>> def load_toy():
    ...     return make_motif_series(4, seed=1).series
    >>> toy = register_dataset(SeriesDataset(
    ...     name="toy", about="four series of noise", licence="MIT", size=0, citation="none needed", doi="",
    ...     source="made on the spot", labels=("motif", "noise"), rate=100.0, group_by="recording", load=load_toy))
    >>> from raxss.data.datasets import load_dataset
    >>> load_dataset("toy")
    SeriesCollection(4 series of ... samples, labels: motif 2, noise 2)
    >>> del DATASETS["toy"]
    """
    if not isinstance(dataset, Dataset):
        raise ConfigError(
            f"register_dataset was given {dataset!r}; a Dataset object is needed. Make a subclass of "
            "raxss.data.datasets.Dataset with a method plan(folder), and pass an object of it."
        )
    lacking = [fact for fact in FACTS if not getattr(dataset, fact)]
    if lacking:
        raise ConfigError(f"dataset {dataset.name!r} says nothing about {', '.join(lacking)}. Fill these in.")
    if dataset.group_by not in ORIGINS:
        raise ConfigError(
            f"group_by of dataset {dataset.name!r} is {dataset.group_by!r}{did_you_mean(dataset.group_by, ORIGINS)}"
        )
    taken = DATASETS.get(dataset.name)
    if taken is not None and taken.defined_in != dataset.defined_in:
        raise ConfigError(
            f"the dataset name {dataset.name!r} belongs to {taken.defined_in} already and cannot also mean "
            f"{dataset.defined_in}. Register it under another name."
        )
    DATASETS[dataset.name] = dataset
    return dataset


def find_dataset(name: str) -> Dataset:
    """The dataset of that name."""
    if name not in DATASETS:
        raise DataError(
            f"there is no dataset {name!r}{did_you_mean(name, DATASETS)} For data of your own, pass a CSV manifest "
            "with columns path, label and group."
        )
    return DATASETS[name]
