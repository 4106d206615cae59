"""Which series does a named dataset hold, and how is each of them read?

    a dataset, its folder -> CollectionPlan: one RecordingPlan a file (or member of a zip)

Only names, tables and headers are read for a plan. What should be there and is not stands in ``absent``, with
where to get it.
Next: recordings/plan.py reads what was planned; prepared/ writes it to a disk.
"""

from __future__ import annotations

import inspect
import re
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raxss.data.bids import plan_bids
from raxss.data.confinement import open_confined
from raxss.data.datasets.archives import TextFile, find_texts, read_numbers
from raxss.data.datasets.folders import folder_of, in_folder, read_reference, record_folder
from raxss.data.datasets.registry import (
    BERN_BARCELONA,
    BONN,
    CINC2017,
    DS003029,
    WATCH,
    Dataset,
    find_dataset,
)
from raxss.data.datasets.sample import load_sample
from raxss.data.formats.numpy_arrays import load_member
from raxss.data.formats.opening import open_recording
from raxss.data.plan import CollectionPlan, RecordingPlan, SeriesPlan
from raxss.data.recording import ArrayRecording, Recording
from raxss.data.series import Series, SeriesCollection
from raxss.data.synthetic import make_motif_series
from raxss.errors import ConfigError, DataError, RecordingError, nearest, shown

BERN_RATE, BERN_SAMPLES = 512.0, 10240
BERN_TEXT = re.compile(r"Data_([FN])_Ind\d{4}\.txt", re.IGNORECASE)
BERN_CLASSES = {"F": "focal", "N": "nonfocal"}
BONN_RATE, BONN_SAMPLES = 173.61, 4097  # the paper says 4096; every file has one more
BONN_TEXT = re.compile(r"[ZONFS]\d{3}\.txt", re.IGNORECASE)
WATCH_RATE = 50.0
WATCH_AXES = ("ax", "ay", "az", "wx", "wy", "wz")
WATCH_ARRAYS = ("X", "lengths", "y", "subject", "side")


def plan_dataset(
    name: str, *, root: Path | str | None = None, classes: Sequence[str] | None = None, **options: Any
) -> CollectionPlan:
    """What a named dataset holds, and how to read it.

    Parameters
    ----------
    root
        The folder that holds the dataset's folder, or that folder itself; ``RAXSS_DATA`` otherwise.
    classes
        Labels to keep, ``("F", "N")`` for Bonn's channel task; all of them otherwise.
    options
        Of ds003029 alone: what `raxss.data.bids.plan_bids` takes, such as a crop around seizure onset.

    Examples
    --------
    >>> plan = plan_dataset("sample", classes=["AF"])
    >>> len(plan), plan.group_by
    (200, 'recording')
    """
    dataset = find_dataset(name)
    known = (*dataset.labels, *([options["label"]] if options.get("label") else []))
    for one in classes or ():
        if one not in known:
            raise DataError(f"dataset {name!r} has no class {one!r}{nearest(one, known)}")
    if options and dataset is not DS003029:
        raise ConfigError(
            f"dataset {name!r} takes no option {next(iter(options))!r}; only root and classes are needed."
        )
    if dataset.where != "disk":
        return _kept(_plan_collection(dataset), classes)
    folder = folder_of(dataset, root)
    if not folder.is_dir():
        absent = in_folder(dataset, folder).absent
        return CollectionPlan(name, folder, (), absent, where_to_get(dataset), group_by=dataset.group_by)
    if dataset is DS003029:
        return _kept(_plan_ds003029(folder, **options), classes)
    planners: dict[str, Callable[[Path], CollectionPlan]] = {
        BERN_BARCELONA.name: _plan_bern_barcelona,
        BONN.name: _plan_bonn,
        CINC2017.name: _plan_cinc2017,
        WATCH.name: _plan_watch,
    }
    return _kept(planners[name](folder), classes)


def where_to_get(dataset: Dataset) -> str:
    """One sentence for who lacks a dataset."""
    if dataset.base:
        return (
            f"Fetch it with: raxss datasets download {dataset.name} --root ROOT (no more than is missing is "
            f"fetched), or take it from {dataset.source.split()[0]}."
        )
    return (
        f"Get it from {dataset.source} (licence: {dataset.licence}) and put it into the folder {dataset.folder!r} "
        "below the root."
    )


def _kept(plan: CollectionPlan, classes: Sequence[str] | None) -> CollectionPlan:
    """The series of some classes, and the recordings that have any."""
    if classes is None:
        return plan
    recordings = [
        replace(one, series=tuple(series for series in one.series if series.label in classes))
        for one in plan.recordings
    ]
    absent = plan.absent
    if plan.source == BONN.name:  # a set that nobody asked for is not missed
        absent = tuple(name for name in absent if name.partition(".")[0] in classes)
    return replace(plan, recordings=tuple(one for one in recordings if one.series), absent=absent)


# Inside the package, and made on the spot


@lru_cache(maxsize=2)
def _collection(name: str) -> SeriesCollection:
    return load_sample() if name == "sample" else make_motif_series().series


def _plan_collection(dataset: Dataset) -> CollectionPlan:
    home = Path(str(files("raxss.data.datasets")))
    sources = (home / "sample" / "cinc2017.npz",) if dataset.where == "package" else ()
    recordings = tuple(
        RecordingPlan(
            one.name,
            sources,
            partial(_open_from_collection, dataset.name, place),
            (
                SeriesPlan(
                    one.name, tuple(range(one.n_variates)), label=one.label, origin={"recording": one.name}
                ),
            ),
        )
        for place, one in enumerate(_collection(dataset.name))
    )
    return CollectionPlan(dataset.name, home, recordings, group_by=dataset.group_by)


def _open_from_collection(name: str, place: int) -> Recording:
    series: Series = _collection(name)[place]
    return ArrayRecording(series.name, series.samples, rate=series.rate)


# Bern-Barcelona: a pair of channels a text


def _plan_bern_barcelona(folder: Path) -> CollectionPlan:
    texts, doubled = find_texts(folder, BERN_TEXT)
    recordings = []
    for stem, text in texts.items():
        letter, number = stem.split("_")[1], stem.removeprefix(f"DATA_{stem.split('_')[1]}_IND")
        name = f"Data_{letter}_Ind{number}"
        series = tuple(
            SeriesPlan(
                f"{name}:{channel}",
                (place,),
                label=BERN_CLASSES[letter],
                origin={"recording": name, "pair": name, "channel": channel},
            )
            for place, channel in enumerate("xy")
        )
        recordings.append(RecordingPlan(name, (text.file,), partial(_open_pair, name, text, folder), series))
    return _plan(BERN_BARCELONA, folder, recordings, doubled)


def _open_pair(name: str, text: TextFile, folder: Path) -> Recording:
    samples = read_numbers(text, folder, n_columns=2, n_rows=BERN_SAMPLES)
    return ArrayRecording(name, samples, rate=BERN_RATE, names=("x", "y"))


# Bonn: one channel a text


def _plan_bonn(folder: Path) -> CollectionPlan:
    texts, doubled = find_texts(folder, BONN_TEXT)
    ordered = sorted(texts.items(), key=lambda item: (BONN.labels.index(item[0][0]), item[0]))
    recordings = [
        RecordingPlan(
            stem,
            (text.file,),
            partial(_open_bonn, stem, text, folder),
            (SeriesPlan(stem, (0,), label=stem[0], origin={"recording": stem}),),
        )
        for stem, text in ordered
    ]
    return _plan(BONN, folder, recordings, doubled)


def _open_bonn(name: str, text: TextFile, folder: Path) -> Recording:
    samples = read_numbers(text, folder, n_columns=1, n_rows=BONN_SAMPLES)
    return ArrayRecording(name, samples, rate=BONN_RATE)


# CinC 2017: one WFDB record a series


def _plan_cinc2017(folder: Path) -> CollectionPlan:
    state = in_folder(CINC2017, folder)
    if state.absent == (CINC2017.files[0][0],):
        return _plan(CINC2017, folder, [], [])
    reference, labels = read_reference(folder)
    home = record_folder(reference, folder)
    missing = {Path(name).stem for name in state.absent}
    recordings = [
        RecordingPlan(
            name,
            (home / f"{name}.hea", home / f"{name}.mat", reference),
            partial(open_recording, home / f"{name}.hea", root=folder),
            (SeriesPlan(name, (0,), label=label, origin={"recording": name}),),
        )
        for name, label in sorted(labels.items())
        if name not in missing
    ]
    return _plan(CINC2017, folder, recordings, [])


# Watch: one array with all series, one after the other


def _plan_watch(folder: Path) -> CollectionPlan:
    path = folder / WATCH.files[0][0]
    if not path.is_file():
        return _plan(WATCH, folder, [], [])
    arrays = _watch_arrays(path, folder)
    ends = np.cumsum(arrays["lengths"], dtype=np.int64)
    recordings = []
    for end, length, kind, subject, side in zip(
        ends.tolist(), *(arrays[key].tolist() for key in WATCH_ARRAYS[1:]), strict=True
    ):
        name = f"subject{subject:02d}-{WATCH.labels[kind]}-{'right' if side else 'left'}"
        series = SeriesPlan(
            name,
            tuple(range(len(WATCH_AXES))),
            label=WATCH.labels[kind],
            origin={"patient": f"subject{subject:02d}", "recording": name},
        )
        opening = partial(_open_watch, name, path, folder, end - length, end)
        recordings.append(RecordingPlan(name, (path,), opening, (series,)))
    return _plan(WATCH, folder, recordings, [])


def _open_watch(name: str, path: Path, folder: Path, start: int, stop: int) -> Recording:
    samples = _watch_arrays(path, folder)["X"][start:stop].T
    return ArrayRecording(name, samples, rate=WATCH_RATE, names=WATCH_AXES)


def _watch_arrays(path: Path, folder: Path) -> dict[str, NDArray[Any]]:
    found = path.stat()
    return _read_watch(path, folder, (found.st_mtime_ns, found.st_size))


@lru_cache(maxsize=1)
def _read_watch(path: Path, folder: Path, stamp: tuple[int, int]) -> dict[str, NDArray[Any]]:
    """All arrays of the file, once a process; ``stamp`` notices a file that changed."""
    what = f"the data {shown(path)} of watch"
    try:
        with open_confined(path, folder) as file, zipfile.ZipFile(file) as archive:
            arrays = {
                key: load_member(archive, archive.getinfo(f"{key}.npy"), f"{what}, array {key!r},")
                for key in WATCH_ARRAYS
            }
    except RecordingError:
        raise
    except (OSError, KeyError, zipfile.BadZipFile, EOFError, ValueError) as error:
        said = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        raise RecordingError(f"{what} cannot be read ({said[:120]}). Copy it again.") from error
    samples, lengths, kinds = arrays["X"], arrays["lengths"], arrays["y"]
    per_series = {key: arrays[key] for key in WATCH_ARRAYS[1:]}
    whole = all(
        one.ndim == 1 and one.dtype.kind in "iu" and len(one) == len(lengths) for one in per_series.values()
    )
    fits = (
        whole
        and samples.ndim == 2
        and samples.dtype.kind == "f"
        and samples.shape[1] == len(WATCH_AXES)
        and (lengths > 0).all()
        and int(lengths.sum(dtype=np.int64)) == len(samples)
        and ((kinds >= 0) & (kinds < len(WATCH.labels))).all()
    )
    if not fits:
        raise RecordingError(
            f"{what} has X of shape {samples.shape} and {len(lengths)} lengths that add up to "
            f"{lengths.sum(dtype=np.float64):.0f}; needed are (sum of the lengths, {len(WATCH_AXES)}), and y, "
            "subject and side as long as lengths. Copy it again."
        )
    return arrays


# ds003029: a BIDS tree with a clinical sheet


def _plan_ds003029(folder: Path, **options: Any) -> CollectionPlan:
    known = [one for one in inspect.signature(plan_bids).parameters if one != "root"]
    for option in options:
        if option not in known:
            raise ConfigError(f"dataset 'ds003029' takes no option {option!r}{nearest(option, known)}")
    if not any(folder.glob("sub-*")):
        return _plan(DS003029, folder, [], [])
    plan = plan_bids(folder, **options)  # finds the clinical sheet itself
    return replace(plan, source=DS003029.name, where_to_get=where_to_get(DS003029) if plan.absent else "")


def _plan(
    dataset: Dataset, folder: Path, recordings: Sequence[RecordingPlan], unmatched: Sequence[str]
) -> CollectionPlan:
    absent = in_folder(dataset, folder).absent
    return CollectionPlan(
        dataset.name,
        folder,
        tuple(recordings),
        absent,
        where_to_get(dataset) if absent else "",
        tuple(unmatched),
        group_by=dataset.group_by,
    )
