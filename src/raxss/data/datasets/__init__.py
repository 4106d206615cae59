"""Which collections of series can be asked for by name?

    "sample"          400 single-lead ECGs of CinC 2017, inside the package
    "synthetic"       noise with a motif planted in one class, made on the spot
    "bern-barcelona", "bonn", "cinc2017", "watch", "ds003029"   on a disk, below a root
                                                                        ->  CollectionPlan, SeriesCollection

What they are, their licences and where they come from: registry.py. Next: preparation.py makes their samples ready
for a network.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from raxss.data.datasets.folders import OnDisk, folder_of, on_disk
from raxss.data.datasets.plans import plan_dataset
from raxss.data.datasets.registry import DATASETS, Dataset, find_dataset
from raxss.data.datasets.sample import load_sample
from raxss.data.plan import CollectionPlan, read_plan
from raxss.data.series import SeriesCollection
from raxss.data.synthetic import make_motif_series
from raxss.errors import DataError, RAxSSWarning, listed

__all__ = [
    "DATASETS",
    "Dataset",
    "OnDisk",
    "find_dataset",
    "folder_of",
    "load_dataset",
    "load_sample",
    "load_synthetic",
    "on_disk",
    "plan_dataset",
]

N_LISTED = 5  # absent files that a message names one by one


def load_synthetic(n_series: int = 40, *, seed: int = 69421) -> SeriesCollection:
    """Series of noise, half of them with a motif planted five times and more.

    Only the series; `raxss.data.synthetic.make_motif_series` also says where the motifs are.

    Examples
    --------
    >>> load_synthetic(6)
    SeriesCollection(6 series of ... samples, labels: motif 3, noise 3)
    """
    return make_motif_series(n_series, seed=seed).series


def load_dataset(
    name: str, *, root: Path | str | None = None, classes: Sequence[str] | None = None
) -> SeriesCollection:
    """The collection of that name, all of it in memory.

    Parameters
    ----------
    root
        The folder that holds the dataset's folder, or that folder itself; ``RAXSS_DATA`` otherwise.
        ``"sample"`` and ``"synthetic"`` need none.
    classes
        Labels to keep, such as ``("F", "N")`` of Bonn; all of them otherwise.

    Examples
    --------
    >>> load_dataset("synthetic")
    SeriesCollection(40 series of ... samples, labels: motif 20, noise 20)
    >>> load_dataset("sample", classes=["AF"])
    SeriesCollection(200 series of ... samples, labels: AF 200)
    """
    plan = plan_dataset(name, root=root, classes=classes)
    if find_dataset(name).where == "disk":
        _require(plan)
        return read_plan(plan)
    whole = load_sample() if name == "sample" else load_synthetic()
    return SeriesCollection(
        replace(one, origin={"recording": one.name})
        for one in whole
        if classes is None or one.label in classes
    )


def _count(n_files: int) -> str:
    return "1 file is" if n_files == 1 else f"{n_files} files are"


def _require(plan: CollectionPlan) -> None:
    """Stop where nothing can be read; say what is missing where something can."""
    if not plan.absent and len(plan):
        return
    missing = (
        f"{_count(len(plan.absent))} absent: {listed(plan.absent, N_LISTED)}."
        if plan.absent
        else "no series were found."
    )
    if not len(plan):
        raise DataError(
            f"nothing of dataset {plan.source!r} can be read; {missing} {plan.where_to_get}".rstrip()
        )
    warnings.warn(
        f"dataset {plan.source!r} is not complete and is used as far as it is there; {missing} {plan.where_to_get}",
        RAxSSWarning,
        stacklevel=3,
    )
