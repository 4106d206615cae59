"""Evaluation sets: the prepared series of a study, and their folds or splits into training, validation and test.

    Study, folder -> prepared data -> View: one block of rows of the table, with a Split for each seed

Every dataset is prepared once, on disk, so that workers map it, and so that its content has a hash. Several views
may share one: all centres, each centre alone, each centre left out.
"""

from __future__ import annotations

import errno
import hashlib
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raxss._core.atomic import canonical_hash, make_folder, write_text
from raxss.benchmark.dataset import Source, StudyDataset
from raxss.benchmark.reading import refuse_repeated
from raxss.benchmark.study import Study
from raxss.benchmark.systems import System
from raxss.benchmark.transforms import described_changes, is_changed, plan_changes, refuse_absent
from raxss.data.datasets.plans import folder_of, plan_dataset
from raxss.data.datasets.registry import DATASETS
from raxss.data.manifests import plan_manifest
from raxss.data.plan import CollectionPlan
from raxss.data.prepare.folder import PreparedCollection, is_prepared, read_prepared
from raxss.data.prepare.preparing import is_prepared_from, prepare
from raxss.data.prepare.preprocessing import Preparation
from raxss.data.series import SeriesCollection
from raxss.data.splits import (
    PARTS,
    Split,
    folds,
    group_of,
    groups_by,
    leave_one_out,
    official_split,
    split_series,
)
from raxss.errors import ConfigError, DataError, LabelError, OutputError, RAxSSWarning, did_you_mean
from raxss.method.retrieval.front import RetrievalConfig
from raxss.method.weighting.protocol import weighting_named
from raxss.method.weighting.support import UNIFORM
from raxss.method.windows import WindowConfig

N_NEIGHBORS = RetrievalConfig().n_neighbors  # also for systems without retrieval
MOST_SHORT = 0.1  # share of series that may have fewer windows than neighbours


@dataclass(frozen=True, eq=False, kw_only=True)
class View:
    """One block of rows of the table: a dataset, or one centre of it; classes as in `RunResult`."""

    name: str
    folder: Path  # of the prepared series
    content: str  # hash of their content
    windows: WindowConfig
    splits: dict[int, Split]  # by seed; indices into the prepared collection
    classes: tuple[str, ...]
    positive: str | None
    longest: int  # samples of the longest series
    f1_classes: tuple[str, ...] = ()
    changes: Mapping[str, Any] = field(default_factory=dict)
    headline: str = "auc"
    as_recorded: View | None = None  # the same series and splits without preparation; None: they have none

    def seen_by(self, system: System) -> View:
        """The view that a system gets: one on its own gets series without the study's preparation."""
        return self.as_recorded if system.is_on_its_own and self.as_recorded is not None else self

    @property
    def scoring(self) -> dict[str, Any]:
        """Classes, as options of `raxss.metrics.score`."""
        return {"classes": self.classes, "positive": self.positive, "f1_classes": self.f1_classes}


def views_of(
    study: Study, folder: Path, *, root: Path | str | None = None, scratch: Path | None = None
) -> list[View]:
    """Prepare the data of a study below a folder, check it, and split it for every seed.

    ``root`` is the folder with the registered datasets; ``RAXSS_DATA`` otherwise. If ``scratch`` is given, what
    ``folder`` does not have is prepared there, and ``folder`` is only read.
    """
    if scratch is None:
        make_folder(folder)
        write_text(folder / ".gitignore", "*\n")  # patients' signals; they can be made again
    systems = study.compared().values()
    views: list[View] = []
    for dataset in study.datasets:
        try:
            collection = _open_dataset(study, dataset, folder, root, scratch)
            parts = _official_parts(dataset, root)
            made = _views(dataset, collection, study.seeds, systems, parts)
            bare = replace(dataset, preparation=needed_preparation(dataset))
            if bare != dataset and any(system.is_on_its_own for system in systems):
                made = _with_recorded(made, collection, _open_dataset(study, bare, folder, root, scratch))
            views += made
        except (DataError, ConfigError) as error:
            raise type(error)(f"dataset {dataset.name!r}: {error}") from error
    advice = "a dataset, and a centre of another. Give one of the datasets another name."
    refuse_repeated((view.name for view in views), "blocks of the table would be called", advice)
    return views


def _official_parts(dataset: StudyDataset, root: Path | str | None) -> Mapping[str, str]:
    """Part of every series in the published split; empty where the study asks for another."""
    if dataset.split.kind != "official":
        return {}
    named = DATASETS.get(dataset.data)
    found = {} if named is None else named.official_parts(folder_of(named, root))
    if not found:
        raise ConfigError(
            "split.kind = 'official' needs a dataset with a published split, which "
            f"{dataset.data or 'sources'!r} does not have. Choose another kind, such as 'folds'."
        )
    return found


def needed_preparation(dataset: StudyDataset) -> Preparation:
    """What the series need to be one dataset, without what a study chose: one rate, where there are sources.

    >>> str(needed_preparation(StudyDataset(name="ecg", data="bonn", preparation=Preparation(pooling=(24, 12)))))
    ''
    """
    return Preparation(rate=dataset.preparation.rate if dataset.sources else None)


def _with_recorded(
    views: Sequence[View], collection: PreparedCollection, recorded: PreparedCollection
) -> list[View]:
    """The views, each with its twin of the series as they were recorded; splits are the same by name."""
    lengths = [item.n_samples for item in recorded]
    found = []
    for view in views:
        splits = {
            seed: _by_name(split, collection.names, recorded.names) for seed, split in view.splits.items()
        }
        used = [getattr(split, part) for split in splits.values() for part in (*PARTS, "dropped")]
        twin = replace(
            view,
            folder=recorded.folder,
            content=recorded.collection_hash,
            splits=splits,
            longest=max(lengths[entry] for entry in np.unique(np.concatenate(used))),
        )
        found.append(replace(view, as_recorded=twin))
    return found


def _by_name(split: Split, names: Sequence[str], others: Sequence[str]) -> Split:
    """The split with indices into a collection that has the same series, maybe in another order."""
    place = {name: index for index, name in enumerate(others)}
    absent = [name for name in names if name not in place]
    if absent:
        raise DataError(
            f"{len(absent)} series are there with the study's preparation, and not without it, the first is "
            f"{absent[0]!r}. Leave [preparation] out, or the systems that take series as they were recorded."
        )
    parts: dict[str, Any] = {
        part: np.sort(np.array([place[names[index]] for index in getattr(split, part)], dtype=np.int64))
        for part in (*PARTS, "dropped")
    }
    return replace(split, **parts)


def _open_dataset(
    study: Study, dataset: StudyDataset, folder: Path, root: Path | str | None, scratch: Path | None
) -> PreparedCollection:
    """The prepared series of a dataset, prepared if necessary."""
    sources, seed = dataset.sources or (dataset,), study.seeds[0]
    collections = [
        _open_data(item, dataset.preparation, study.folder, folder, root=root, scratch=scratch)
        for item in sources
    ]
    if not is_changed(dataset):
        return collections[0]
    plan, preparation = plan_changes(dataset, collections, seed=seed)
    stem = "-".join(Path(item.data).stem for item in sources)
    facts = [[item.data, list(item.classes)] for item in sources]
    wanted = [facts, list(dataset.classes), described_changes(dataset, seed), dataset.split.by]
    home = folder / _home(f"{stem}-changed", [*wanted, str(dataset.preparation)])
    return _prepared(plan, home, preparation, scratch)


def _open_data(
    source: Source | StudyDataset,
    preparation: Preparation,
    beside: Path,
    folder: Path,
    *,
    root: Path | str | None,
    scratch: Path | None,
) -> PreparedCollection:
    data, place = source.data, beside / source.data
    if is_prepared(place):
        collection = read_prepared(place, verify=True)
        if str(preparation) and str(preparation) != str(collection.preparation):
            raise ConfigError(
                f"the study asks for {str(preparation)!r}, but {place.name!r} was prepared with "
                f"{str(collection.preparation) or 'nothing'!r}. Prepare it anew, or leave [preparation] out."
            )
        return collection
    if data in DATASETS:
        plan = plan_dataset(data, root=root, classes=source.classes or None)
    elif place.suffix.lower() == ".csv":
        plan = plan_manifest(place)
    else:
        raise DataError(
            f"there is no dataset {data!r}{did_you_mean(data, DATASETS)} Data of your own is a folder "
            "that raxss prepare made, or a CSV manifest; its path counts from the study's folder."
        )
    home = folder / _home(Path(data).stem, [data, list(source.classes), str(preparation)])
    return _prepared(plan, home, preparation, scratch)


def _prepared(
    plan: CollectionPlan, home: Path, preparation: Preparation, scratch: Path | None
) -> PreparedCollection:
    if scratch is not None:
        if is_prepared_from(plan, home, preparation):
            return read_prepared(home)
        home = scratch / home.name
    try:
        prepare(plan, home, preparation, progress=True)
    except OutputError as error:
        if error.errno != errno.EEXIST:
            raise
        prepare(plan, home, preparation, overwrite=True, progress=True)  # the source has changed
    return read_prepared(home)


def _home(stem: str, wanted: Sequence[Any]) -> str:
    """Name of the folder of this data."""
    return f"{slug(stem)}-{canonical_hash(wanted)[:8]}"


def is_view_of(view: str, dataset: str) -> bool:
    """Whether a view of this name is the whole dataset, or a centre of it.

    >>> is_view_of("ds003029", "ds003029"), is_view_of("ds003029: JHH", "ds003029")
    (True, True)
    """
    return view == dataset or view.startswith(f"{dataset}: ")


def slug(name: str) -> str:
    """A name as part of a file name; a changed one gets a few digits of its hash.

    >>> slug("bonn"), slug("one centre: JHH")
    ('bonn', 'one-centre-JHH-76444b')
    """
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:60].strip("-.")
    return clean if clean == name else f"{clean}-{hashlib.sha256(name.encode()).hexdigest()[:6]}".lstrip("-")


# From series to views -----------------------------------------------------------------------------------------


def _views(
    dataset: StudyDataset,
    collection: PreparedCollection,
    seeds: Sequence[int],
    systems: Iterable[System],
    parts: Mapping[str, str],
) -> list[View]:
    members = _members(dataset, collection)
    series = collection[members]
    if any(system.uses_windows for system in systems):
        check_windows(series, dataset.windows, dataset=dataset.name)
    for system in systems:
        _check_windows_of(system, series, dataset)
    classes = tuple(np.unique(series.labels).tolist())
    positive = _positive(dataset, classes)
    f1_classes = _f1_classes(dataset, classes)
    views = []
    for name, splits in _splits(dataset, series, seeds, parts).items():
        used = [getattr(item, part) for item in splits.values() for part in (*PARTS, "dropped")]
        views.append(
            View(
                name=name,
                folder=collection.folder,
                content=collection.collection_hash,
                windows=dataset.windows,
                splits={seed: _of_whole(split, members) for seed, split in splits.items()},
                classes=classes,
                positive=positive,
                longest=max(series[int(entry)].n_samples for entry in np.unique(np.concatenate(used))),
                f1_classes=f1_classes,
                changes=described_changes(dataset, seeds[0]),
                headline=dataset.headline,
            )
        )
    return views


def _members(dataset: StudyDataset, collection: PreparedCollection) -> NDArray[np.int64]:
    """Indices of the series of the study's classes."""
    labels = collection.labels
    known = np.unique(labels).tolist()
    refuse_absent("no series has the class", dataset.classes, known)
    kept = np.isin(labels, dataset.classes) if dataset.classes else np.ones(len(labels), dtype=bool)
    if len(np.unique(labels[kept])) < 2:
        raise LabelError(
            f"all {int(kept.sum())} series are of one class, {str(labels[kept][0])!r}; at least two are needed to "
            "compare classifiers."
        )
    return np.flatnonzero(kept)


def _positive(dataset: StudyDataset, classes: tuple[str, ...]) -> str | None:
    """Positive class of F1 and AUC; None of more than two classes, for which they are averages."""
    if dataset.positive is not None:
        refuse_absent("no series has the positive class", [dataset.positive], classes)
        if len(classes) > 2:
            raise LabelError(
                f"positive is {dataset.positive!r}, but there are {len(classes)} classes, {', '.join(classes)}; it "
                "is for two. Leave it out, or name two classes."
            )
        return dataset.positive
    if len(classes) > 2:
        return None
    named = dataset.classes or tuple(
        source.rename.get(label, label)
        for source in dataset.sources or (Source(data=dataset.data, centre=""),)
        for label in source.classes or (DATASETS[source.data].labels if source.data in DATASETS else ())
    )
    return next((label for label in named if label in classes), classes[-1])


def _f1_classes(dataset: StudyDataset, classes: tuple[str, ...]) -> tuple[str, ...]:
    refuse_absent("no series has the class of f1_classes", dataset.f1_classes, classes)
    if dataset.f1_classes and len(classes) == 2:
        raise LabelError(
            f"f1_classes is {', '.join(dataset.f1_classes)}, but there are two classes, {', '.join(classes)}, and "
            "F1 is that of one: name it as positive."
        )
    return dataset.f1_classes


def _check_windows_of(system: System, series: SeriesCollection, dataset: StudyDataset) -> None:
    """`check_windows` of a system whose windows differ from the study's."""
    windows = dataset.windows
    if not system.uses_windows:
        return
    settings = system.parameters(windows)
    own = WindowConfig(window_length=settings["window_length"], stride=settings["stride"])
    weighting = weighting_named(settings.get("weighting", UNIFORM))
    retrieves = weighting.needs_retrieval or settings.get("smoothing", 0) > 0
    n_neighbors = settings["n_neighbors"] if retrieves else N_NEIGHBORS
    if (own, n_neighbors) != (windows, N_NEIGHBORS):
        check_windows(series, own, n_neighbors=n_neighbors, dataset=dataset.name, system=system.name)


def check_windows(
    series: SeriesCollection,
    windows: WindowConfig,
    *,
    n_neighbors: int = N_NEIGHBORS,
    dataset: str | None = None,
    system: str | None = None,
) -> None:
    """Warn if more than a tenth of the series have fewer windows than a window has neighbours.

    The dataset is named, and ``system`` if the settings are its own. Windows that `fit` chooses are not looked at.
    """
    if isinstance(windows.window_length, str) or isinstance(windows.stride, str):
        return
    needed = n_neighbors + 1
    lengths = np.array([item.n_samples for item in series])
    n_windows = np.maximum(lengths - windows.window_length, 0) // windows.stride + 1
    n_short = int((n_windows < needed).sum())
    if n_short > MOST_SHORT * len(series):
        median = int(np.median(lengths))
        longest = max(median // 4, 1)
        stride = max((median - longest) // (2 * needed), 1)
        of, section = ("", "windows") if system is None else (f"system {system!r}: ", f"system.{system}")
        of = of if dataset is None else f"dataset {dataset!r}: {of}"
        warnings.warn(
            f"{of}{n_short} of {len(series)} series have fewer than {needed} windows of {windows.window_length} "
            f"samples at stride {windows.stride} (series have {lengths.min()} to {lengths.max()} samples, median "
            f"{median}), and at most a tenth should: {n_neighbors} neighbours of a window need them. Use windows "
            f"of at most a quarter of the median, such as {section}.window_length = {longest}, "
            f"stride = {stride}.",
            RAxSSWarning,
            stacklevel=2,
        )


# Splits -------------------------------------------------------------------------------------------------------


def _splits(
    dataset: StudyDataset, series: SeriesCollection, seeds: Sequence[int], parts: Mapping[str, str]
) -> dict[str, dict[int, Split]]:
    """View -> seed -> split of these series."""
    plan = dataset.split
    settings: dict[str, Any] = {"by": plan.by, "balance": plan.balance}
    if plan.kind == "single":
        return {
            dataset.name: {
                seed: split_series(series, fractions=plan.fractions, seed=seed, **settings) for seed in seeds
            }
        }
    if plan.kind == "folds":
        if len(seeds) > plan.n_folds:
            raise ConfigError(
                f"the study has {len(seeds)} seeds and {plan.n_folds} folds; each seed tests a fold of its own, so "
                "split.n_folds must be at least the number of seeds."
            )
        made = folds(series, n_folds=plan.n_folds, seed=seeds[0], validation=plan.fractions[1], **settings)
        named = [replace(item, description=f"{plan.n_folds} folds by {item.description}") for item in made]
        return {dataset.name: dict(zip(seeds, named, strict=False))}
    share = plan.fractions[1] / (plan.fractions[0] + plan.fractions[1])
    if plan.kind == "official":
        made_by = {seed: official_split(series, parts, seed=seed, validation=share) for seed in seeds}
        return {dataset.name: made_by}
    centres = _centres(series, plan.only)
    if plan.kind == "leave-one-out":
        by_seed = {
            seed: leave_one_out(series, seed=seed, validation=share, balance=plan.balance) for seed in seeds
        }
        return {
            f"{dataset.name}: {centre}": {seed: by_seed[seed][centre] for seed in seeds} for centre in centres
        }
    return {
        f"{dataset.name}: {centre}": {
            seed: _within_centre(series, members, centre, fractions=plan.fractions, seed=seed, **settings)
            for seed in seeds
        }
        for centre, members in centres.items()
    }


def _within_centre(
    series: SeriesCollection, members: NDArray[np.int64], centre: str, **settings: Any
) -> Split:
    try:
        split = split_series(series[members], **settings)
    except DataError as error:
        raise DataError(f"centre {centre!r}: {error}") from error
    split = replace(split, fold=centre, description=f"one centre, by {split.description}")
    return _of_whole(split, members)


def _centres(series: SeriesCollection, only: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """Centre -> its series."""
    _, groups = groups_by(series, "centre")
    of_series = np.array([str(group) for group in groups])
    known = np.unique(of_series).tolist()
    for centre in only:
        if centre not in known:
            raise ConfigError(f"split.only names the centre {centre!r}{did_you_mean(centre, known)}")
    return {centre: np.flatnonzero(of_series == centre) for centre in only or known}


def _of_whole(split: Split, members: NDArray[np.int64]) -> Split:
    """The split with indices into the whole collection."""
    parts = {name: members[getattr(split, name)] for name in ("train", "validation", "test", "dropped")}
    return replace(split, **parts)


def bootstrap_groups(collection: SeriesCollection, split: Split) -> list[str]:
    """Group of each test series at the widest known level, for a bootstrap."""
    try:
        level, groups = groups_by(collection, None)
    except DataError:  # a wider level is known of some only
        level, groups = split.by, [group_of(item, split.by) for item in collection]
    if level == "channel":
        return collection[split.test].names
    tested = [groups[index] for index in split.test]
    return ["/".join(map(str, item)) if isinstance(item, tuple) else str(item) for item in tested]
