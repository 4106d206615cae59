"""Plan or load a dataset by its name.

    name, root, classes -> CollectionPlan: one RecordingPlan a file (or member of a zip) -> SeriesCollection

Only names, tables and headers are read for a plan. What should be there and is not stands in ``absent``, with
where to get it.
Next: raxss.data.plan reads what was planned; raxss.data.prepare writes it to a disk.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from raxss.data.datasets.folders import folder_of
from raxss.data.datasets.registry import find_dataset
from raxss.data.plan import CollectionPlan
from raxss.data.series import SeriesCollection
from raxss.errors import ConfigError, DataError, RAxSSWarning, did_you_mean, join_names

N_LISTED = 5  # absent files that a message names one by one


def plan_dataset(
    name: str, *, root: Path | str | None = None, classes: Sequence[str] | None = None, **options: Any
) -> CollectionPlan:
    """What a named dataset holds, and how to read it.

    Parameters
    ----------
    root
        The folder that holds the dataset's folder, or that folder itself; ``RAXSS_DATA`` otherwise.
        ``"sample"`` and ``"synthetic"`` need none.
    classes
        Labels to keep, ``("F", "N")`` for Bonn's channel task; all of them otherwise.
    options
        What the dataset has in ``options``: of ds003029 what `raxss.data.bids.plan_bids` takes, such as a crop
        around seizure onset.

    Examples
    --------
    >>> plan = plan_dataset("sample", classes=["AF"])
    >>> len(plan), plan.group_by
    (200, 'recording')
    """
    dataset = find_dataset(name)
    known = dataset.classes(**options)
    for label in classes or ():
        if label not in known:
            raise DataError(f"dataset {name!r} has no class {label!r}{did_you_mean(label, known)}")
    for option in options:
        if option not in dataset.options:
            known = dataset.options
            what = did_you_mean(option, known) if known else "; only root and classes are needed."
            raise ConfigError(f"dataset {name!r} takes no option {option!r}{what}")
    folder = folder_of(dataset, root)
    plan = dataset.plan(folder, **options) if folder.is_dir() else dataset.planned(folder)
    if classes is None:
        return plan
    recordings = [
        replace(recording, series=tuple(series for series in recording.series if series.label in classes))
        for recording in plan.recordings
    ]
    absent = dataset.needed_for(classes, plan.absent)
    return replace(
        plan, recordings=tuple(recording for recording in recordings if recording.series), absent=absent
    )


def load_dataset(
    name: str, *, root: Path | str | None = None, classes: Sequence[str] | None = None
) -> SeriesCollection:
    """The collection of that name, all of it in memory.

    Parameters
    ----------
    root, classes
        See `plan_dataset`.

    Examples
    --------
    >>> load_dataset("synthetic")
    SeriesCollection(40 series of ... samples, labels: motif 20, noise 20)
    >>> load_dataset("sample", classes=["AF"])
    SeriesCollection(200 series of ... samples, labels: AF 200)
    """
    plan = plan_dataset(name, root=root, classes=classes)
    _check_complete(plan)
    return find_dataset(name).read(plan)


def _check_complete(plan: CollectionPlan) -> None:
    """Raise if nothing can be read; warn if something is missing."""
    if not plan.absent and len(plan):
        return
    missing = "no series were found."
    if plan.absent:
        count = "1 file is" if len(plan.absent) == 1 else f"{len(plan.absent)} files are"
        missing = f"{count} absent: {join_names(plan.absent, N_LISTED)}."
    if not len(plan):
        raise DataError(
            f"nothing of dataset {plan.source!r} can be read; {missing} {plan.where_to_get}".rstrip()
        )
    warnings.warn(
        f"dataset {plan.source!r} is not complete and is used as far as it is there; {missing} {plan.where_to_get}",
        RAxSSWarning,
        stacklevel=3,
    )
