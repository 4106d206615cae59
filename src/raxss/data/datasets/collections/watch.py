"""Watch: six axes of a smart watch, one file that holds all series one after the other."""

from __future__ import annotations

import zipfile
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raxss.data.confinement import open_confined
from raxss.data.datasets.archives import readable
from raxss.data.datasets.dataset import Dataset
from raxss.data.datasets.registry import register_dataset
from raxss.data.formats.numpy_arrays import load_member
from raxss.data.plan import CollectionPlan, RecordingPlan, SeriesPlan
from raxss.data.recording import ArrayRecording, Recording
from raxss.errors import RecordingError, display_name

FILE = "watch.npz"
RATE = 50.0
EXERCISES = ("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW")
AXES = ("ax", "ay", "az", "wx", "wy", "wz")
PER_SERIES = ("lengths", "y", "subject", "side")


class Watch(Dataset):
    """See the facts below."""

    def plan(self, folder: Path, **options: Any) -> CollectionPlan:
        """One series of six variates for each exercise of a subject and side."""
        path = folder / FILE
        if not path.is_file():
            return self.planned(folder)
        arrays = _arrays(path, folder)
        ends = np.cumsum(arrays["lengths"], dtype=np.int64)
        recordings = []
        for end, length, kind, subject, side in zip(
            ends.tolist(), *(arrays[key].tolist() for key in PER_SERIES), strict=True
        ):
            name = f"subject{subject:02d}-{EXERCISES[kind]}-{'right' if side else 'left'}"
            series = SeriesPlan(
                name,
                tuple(range(len(AXES))),
                label=EXERCISES[kind],
                origin={"patient": f"subject{subject:02d}", "recording": name},
            )
            opening = partial(_open, name, path, folder, end - length, end)
            recordings.append(RecordingPlan(name, (path,), opening, (series,)))
        return self.planned(folder, recordings)


def _open(name: str, path: Path, folder: Path, start: int, stop: int) -> Recording:
    samples = _arrays(path, folder)["X"][start:stop].T
    return ArrayRecording(name, samples, rate=RATE, names=AXES)


def _arrays(path: Path, folder: Path) -> dict[str, NDArray[Any]]:
    found = path.stat()
    return _read(path, folder, (found.st_mtime_ns, found.st_size))


@lru_cache(maxsize=1)
def _read(path: Path, folder: Path, stamp: tuple[int, int]) -> dict[str, NDArray[Any]]:
    """All arrays of the file, once a process; ``stamp`` notices a file that changed."""
    what = f"the data {display_name(path)} of watch"
    with readable(what), open_confined(path, folder) as file, zipfile.ZipFile(file) as archive:
        arrays = {
            key: load_member(archive, archive.getinfo(f"{key}.npy"), f"{what}, array {key!r},")
            for key in ("X", *PER_SERIES)
        }
    samples, lengths, kinds = arrays["X"], arrays["lengths"], arrays["y"]
    whole = all(
        arrays[key].ndim == 1 and arrays[key].dtype.kind in "iu" and len(arrays[key]) == len(lengths)
        for key in PER_SERIES
    )
    fits = (
        whole
        and samples.ndim == 2
        and samples.dtype.kind == "f"
        and samples.shape[1] == len(AXES)
        and (lengths > 0).all()
        and int(lengths.sum(dtype=np.int64)) == len(samples)
        and ((kinds >= 0) & (kinds < len(EXERCISES))).all()
    )
    if not fits:
        raise RecordingError(
            f"{what} has X of shape {samples.shape} and {len(lengths)} lengths that add up to "
            f"{lengths.sum(dtype=np.float64):.0f}; needed are (sum of the lengths, {len(AXES)}), and y, "
            "subject and side as long as lengths. Copy it again."
        )
    return arrays


register_dataset(
    Watch(
        name="watch",
        about="six axes of a smart watch during 7 shoulder exercises of 10 subjects, 19 to 52 s",
        licence="BSD (of the package seglearn)",
        size=5_360_635,
        citation=(
            "Burns DM et al. (2018). Shoulder physiotherapy exercise recognition: machine learning the inertial "
            "signals from a smartwatch. Physiol. Meas. 39, 075007."
        ),
        doi="10.1088/1361-6579/aacfd9",
        source="https://github.com/dmbee/seglearn (its data file, as watch.npz)",
        files=((FILE,),),
        labels=EXERCISES,
        rate=RATE,
        group_by="patient",
    )
)
