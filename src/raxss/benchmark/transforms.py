"""Transforms of datasets: joined collections, series cut to random lengths, shuffled labels.

    StudyDataset, PreparedCollections -> a prepared folder of its own, with a hash of its own

All draws come from the study's first seed and the names of series: every seed and system sees the same data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from raxss.benchmark.dataset import Source, StudyDataset
from raxss.data.plan import CollectionPlan, RecordingPlan, SeriesPlan
from raxss.data.prepare.folder import PreparedCollection
from raxss.data.prepare.preprocessing import Preparation
from raxss.data.recording import ArrayRecording, Recording
from raxss.data.series import ORIGINS, Series, SeriesCollection
from raxss.data.splits import GROUPS, groups_by
from raxss.errors import ConfigError, LabelError, VariateMismatchError, did_you_mean, join_names

SHUFFLING = 4  # its own stream of the seed; data/splits.py uses 0 to 2


def is_changed(dataset: StudyDataset) -> bool:
    """Whether any transform applies."""
    return bool(dataset.sources) or dataset.crop is not None or dataset.shuffled


def described_changes(dataset: StudyDataset, seed: int) -> dict[str, Any]:
    """The transforms, as recorded in a result; empty without any.

    >>> described_changes(StudyDataset(name="toy", data="bonn", crop=(0.2, 1.0)), seed=7)
    {'crop': [0.2, 1.0], 'seed': 7}
    """
    changes: dict[str, Any] = {}
    if dataset.sources:
        changes["sources"] = [
            {"centre": source.centre, "data": Path(source.data).stem, "classes": list(source.classes)}
            | {"rename": dict(source.rename)}
            for source in dataset.sources
        ]
    if dataset.crop is not None:
        changes["crop"] = list(dataset.crop)
    if dataset.shuffled:
        changes["shuffled"] = True
    return changes | ({"seed": seed} if dataset.crop is not None or dataset.shuffled else {})


def plan_changes(
    dataset: StudyDataset, collections: Sequence[PreparedCollection], *, seed: int
) -> tuple[CollectionPlan, Preparation]:
    """Plan of the transformed collection, and its preparation: cropped series are z-scored again.

    ``collections`` are the prepared data, or those of every source.
    """
    sources = dataset.sources or (Source(data=dataset.data, centre="", classes=dataset.classes),)
    planned = [_planned(*pair) for pair in zip(sources, collections, strict=True)]
    recordings = [item for some in planned for item in some]
    if dataset.sources:
        if dataset.classes:
            recordings = [value for value in recordings if value.series[0].label in dataset.classes]
        _refuse_strangers(dataset, collections, planned)
    if dataset.crop is not None:
        recordings = [_cropped(value, dataset.crop, seed) for value in recordings]
    group_by = _group_by(recordings, collections)
    if dataset.shuffled:
        recordings = _shuffled(recordings, group_by, dataset.split.by, seed)
    scaled = dataset.crop is not None and collections[0].preparation.scaling == "series"
    plan = CollectionPlan(
        source=" and ".join(Path(entry.data).stem for entry in sources),
        root=collections[0].folder.parent,
        recordings=tuple(recordings),
        group_by=group_by,
        settings={
            "made_from": [
                [collection.facts["source"], str(collection.preparation)] for collection in collections
            ],
            "changes": described_changes(dataset, seed),
        },
    )
    return plan, Preparation(scaling="series" if scaled else "none")


# Series as recordings of their own ----------------------------------------------------------------------------


def _planned(source: Source, collection: PreparedCollection) -> list[RecordingPlan]:
    """Every series taken from a source, with the study's class names."""
    known = np.unique(collection.labels).tolist()  # of all: refuses series that have none
    refuse_absent(
        f"source {source.data!r}: no series has the class", (*source.classes, *source.rename), known
    )
    return [
        _recording(row, collection.folder, source)
        for row in collection.table.to_dict("records")
        if not source.classes or row["label"] in source.classes
    ]


def refuse_absent(what: str, wanted: Iterable[str], known: Sequence[str]) -> None:
    """Raise LabelError, which begins with ``what``, at a class that is not known."""
    for label in wanted:
        if label not in known:
            raise LabelError(f"{what} {label!r}{did_you_mean(label, known)}")


def _recording(row: Mapping[Any, Any], folder: Path, source: Source) -> RecordingPlan:
    """One prepared series; with several sources, its name and groups begin with the centre."""
    origin = {level: row[level] for level in ORIGINS if isinstance(row[level], str)}
    name = str(row["name"])
    if source.centre:
        origin = {
            level: f"{source.centre}/{item}" if level in GROUPS else item for level, item in origin.items()
        }
        origin["centre"] = source.centre
        name = f"{source.centre}/{name}"
    file = folder / row["file"]
    shape = int(row["n_variates"]), int(row["n_samples"])
    unit = row["unit"] if isinstance(row["unit"], str) else ""
    timing = {"rate": float(row["rate"]), "start_seconds": float(row["start_seconds"])}
    opened = partial(_open, file, int(row["offset"]), shape, name=name, unit=unit, **timing)
    label = source.rename.get(row["label"], row["label"])
    series = SeriesPlan(name, tuple(range(shape[0])), label=label, origin=origin)
    return RecordingPlan(name, (file,), opened, (series,))


def _open(file: Path, offset: int, shape: tuple[int, int], *, name: str, **known: Any) -> Recording:
    """One series of a file of data/prepare/folder.py."""
    whole = np.load(file, mmap_mode="r", allow_pickle=False)
    return ArrayRecording(name, whole[offset : offset + shape[0] * shape[1]].reshape(shape), **known)


def _group_by(recordings: Sequence[RecordingPlan], collections: Sequence[PreparedCollection]) -> str | None:
    """The group level of the collections; if they differ, the widest that all series have."""
    named = {collection.facts["group_by"] for collection in collections}
    if len(named) == 1:
        return next(iter(named))
    return next(
        (level for level in GROUPS if all(level in item.series[0].origin for item in recordings)), None
    )


def _refuse_strangers(
    dataset: StudyDataset,
    collections: Sequence[PreparedCollection],
    planned: Sequence[Sequence[RecordingPlan]],
) -> None:
    """Refuse to join sources with different preparation, rates, variates or classes."""

    def by_source(values: Sequence[Any]) -> str:
        return "; ".join(f"{a.centre}: {b}" for a, b in zip(dataset.sources, values, strict=True))

    def differ(values: Sequence[str]) -> str:
        """Values by source, if they differ; else empty."""
        return "" if len(set(values)) == 1 else by_source(values)

    if found := differ([str(collection.preparation) or "nothing" for collection in collections]):
        raise ConfigError(
            f"the sources were prepared differently ({found}). Prepare them alike, or name data that the study "
            "prepares itself."
        )
    rates = [sorted(set(collection.table["rate"])) for collection in collections]
    if len({rate for some in rates for rate in some}) > 1:
        found = by_source([join_names((f"{rate:g}" for rate in some), 3) for some in rates])
        raise ConfigError(
            f"the sources have different rates (Hz: {found}), so a window would mean different times. Set one for "
            f"all: preparation.rate = {min(rate for some in rates for rate in some):g}."
        )
    counts = [sorted(set(collection.table["n_variates"])) for collection in collections]
    if found := differ([", ".join(map(str, some)) for some in counts]):
        raise VariateMismatchError(
            f"the sources have different numbers of variates ({found}); all series of a dataset need the same. "
            "Select the same channels of each."
        )
    labels = [sorted({str(item.series[0].label) for item in some}) for some in planned]
    if dataset.classes:
        labels = [[item for item in some if item in dataset.classes] for some in labels]
    if found := differ([", ".join(some) or "none" for some in labels]):
        raise LabelError(
            f"the sources have different classes ({found}), so a source's name would tell the class. Take or "
            "rename some: classes = [...], rename = { ... } in [[dataset.source]]."
        )


# Random lengths -----------------------------------------------------------------------------------------------


def random_cut(name: str, n_samples: int, crop: tuple[float, float], seed: int) -> tuple[int, int]:
    """First and last (exclusive) sample of a random cut: a log-uniform share of the length, at a random place.

    Depends on the seed and the name alone.

    >>> random_cut("Data_F_Ind0001:x", 10240, (0.2, 1.0), seed=69421)
    (3562, 8357)
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    first, second = ((int.from_bytes(digest[at : at + 8]) >> 11) / 2**53 for at in (0, 8))  # in [0, 1)
    low, high = crop
    length = max(1, min(n_samples, round(low * (high / low) ** first * n_samples)))
    start = int(second * (n_samples - length + 1))
    return start, start + length


def _cropped(recording: RecordingPlan, crop: tuple[float, float], seed: int) -> RecordingPlan:
    (series,) = recording.series
    with recording.open_recording() as opened:
        rate, begin = opened.channels[0].rate, opened.segments[0].start_seconds
        start, stop = random_cut(series.name, opened.n_samples(0), crop, seed)
    return replace(recording, series=(replace(series, crop=(begin + start / rate, begin + stop / rate)),))


# Shuffled labels ----------------------------------------------------------------------------------------------


def shuffled_labels(series: SeriesCollection, *, by: str | None, seed: int) -> list[Any]:
    """A random permutation of the labels, one a series.

    If every group has one label, labels of whole groups are permuted, so that each class keeps its number of
    groups; otherwise those of single series. Groups are those of ``by``, or of the widest known level.

    >>> pairs = SeriesCollection(
    ...     Series([0.0], label="ab"[k // 4], name=f"s{k}", origin={"pair": f"p{k // 2}"}) for k in range(8)
    ... )
    >>> shuffled_labels(pairs, by="pair", seed=1)
    ['b', 'b', 'a', 'a', 'a', 'a', 'b', 'b']
    """
    _, groups = groups_by(series, by)
    labels = series.labels.tolist()
    of_group: dict[Any, set[Any]] = {}
    for group, label in zip(groups, labels, strict=True):
        of_group.setdefault(group, set()).add(label)
    if any(len(some) > 1 for some in of_group.values()):
        groups = list(range(len(series)))
    by_name = sorted(range(len(series)), key=series.names.__getitem__)  # so that their order does not matter
    units = list(dict.fromkeys(groups[index] for index in by_name))
    old = {groups[index]: labels[index] for index in by_name}
    generator = np.random.default_rng([seed, SHUFFLING])
    new = dict(zip(units, (old[units[place]] for place in generator.permutation(len(units))), strict=True))
    return [new[group] for group in groups]


def _shuffled(
    recordings: Sequence[RecordingPlan], group_by: str | None, by: str | None, seed: int
) -> list[RecordingPlan]:
    plans = [entry.series[0] for entry in recordings]
    bare = SeriesCollection(  # for groups and labels alone
        Series(
            [0.0], label=item.label, group=item.origin.get(group_by or ""), name=item.name, origin=item.origin
        )
        for item in plans
    )
    labels = shuffled_labels(bare, by=by, seed=seed)
    return [
        replace(recording, series=(replace(plan, label=label),))
        for recording, plan, label in zip(recordings, plans, labels, strict=True)
    ]
