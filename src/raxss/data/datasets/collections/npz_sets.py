"""Fifteen further sets, each one ``.npz`` with all series end to end, in ROOT/more/NAME/NAME.npz.

    flat (n_variates, all samples), lengths, y, g, rate, for some split, site -> a plan: one series for each length

``g`` is what must stay together: a person, or the series itself where persons are not known. ``rate`` is 0 where it
is not known, which is a rate of 1 here. ``split`` is the official one: ``train`` or ``test``.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
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
from raxss.data.prepare.preprocessing import UNKNOWN_RATE
from raxss.data.recording import ArrayRecording, Recording
from raxss.errors import RecordingError, display_name, join_names

BY_SERIES = ("lengths", "y", "g")
PARTS = ("train", "test")
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class NpzSet(Dataset):
    """One of the sets; see the facts below."""

    n_variates: int = 1
    has_split: bool = False
    has_site: bool = False  # which becomes the centre

    def plan(self, folder: Path, **options: Any) -> CollectionPlan:
        """One series for each length."""
        path = folder / f"{self.name}.npz"
        if not path.is_file():
            return self.planned(folder)
        arrays = self._arrays(path, folder)
        ends = np.cumsum(arrays["lengths"], dtype=np.int64).tolist()
        recordings = []
        for place, (name, end) in enumerate(zip(self._names(arrays), ends, strict=True)):
            length, label, group = (arrays[key][place] for key in BY_SERIES)
            origin = {"recording": name} | ({"patient": str(group)} if self.group_by == "patient" else {})
            if self.has_site:
                origin["centre"] = str(arrays["site"][place])
            series = SeriesPlan(name, tuple(range(self.n_variates)), label=str(label), origin=origin)
            opening = partial(_open, self, name, path, folder, end - int(length), end)
            recordings.append(RecordingPlan(name, (path,), opening, (series,)))
        return self.planned(folder, recordings)

    def official_parts(self, folder: Path) -> dict[str, str]:
        """See `Dataset`."""
        if not self.has_split:
            return {}
        arrays = self._arrays(folder / f"{self.name}.npz", folder)
        return dict(zip(self._names(arrays), arrays["split"].tolist(), strict=True))

    def _names(self, arrays: Arrays) -> list[str]:
        return [f"{self.name}-{place:04d}" for place in range(len(arrays["lengths"]))]

    def _arrays(self, path: Path, folder: Path) -> Arrays:
        found = path.stat()
        return _read(self, path, folder, (found.st_mtime_ns, found.st_size))


def _open(dataset: NpzSet, name: str, path: Path, folder: Path, start: int, stop: int) -> Recording:
    samples = dataset._arrays(path, folder)["flat"][:, start:stop]
    return ArrayRecording(name, samples.astype(np.float32), rate=dataset.rate or UNKNOWN_RATE)


@lru_cache(maxsize=1)
def _read(dataset: NpzSet, path: Path, folder: Path, stamp: tuple[int, int]) -> Arrays:
    """All arrays of the file, once a process; ``stamp`` notices a file that changed."""
    what = f"the data {display_name(path)} of {dataset.name}"
    needed = [*BY_SERIES, *(["split"] * dataset.has_split), *(["site"] * dataset.has_site)]
    with readable(what), open_confined(path, folder) as file, zipfile.ZipFile(file) as archive:
        arrays = {
            key: load_member(archive, archive.getinfo(f"{key}.npy"), f"{what}, array {key!r},")
            for key in ("flat", "rate", *needed)
        }
    _check_shapes(dataset, arrays, needed, what)
    _check_values(dataset, arrays, what)
    return arrays


def _check_shapes(dataset: NpzSet, arrays: Arrays, needed: list[str], what: str) -> None:
    """Refuse arrays that do not fit each other."""
    flat, lengths = arrays["flat"], arrays["lengths"]
    fits = (
        flat.ndim == 2
        and flat.dtype.kind in "iuf"
        and flat.shape[0] == dataset.n_variates
        and all(arrays[key].shape == lengths.shape for key in needed)
        and lengths.ndim == 1
        and lengths.dtype.kind in "iu"
        and (lengths > 0).all()
        and int(lengths.sum(dtype=np.int64)) == flat.shape[1]
    )
    if not fits:
        total = lengths.sum(dtype=np.float64) if lengths.dtype.kind in "iuf" else np.nan
        raise RecordingError(
            f"{what} has flat of shape {flat.shape} and {lengths.size} lengths that add up to {total:.0f}; needed "
            f"are ({dataset.n_variates}, sum of the lengths), and {', '.join(needed[1:])} as long as lengths. Copy "
            "it again."
        )


def _check_values(dataset: NpzSet, arrays: Arrays, what: str) -> None:
    """Refuse labels, parts and a rate that are not those of the set."""
    strange = sorted(set(arrays["y"].astype(str).tolist()) - set(dataset.labels))
    if strange:
        raise RecordingError(
            f"{what} has the labels {join_names(map(repr, strange), 3)}; needed are {', '.join(dataset.labels)}. "
            "Copy it again."
        )
    others = sorted(set(arrays["split"].astype(str).tolist()) - set(PARTS)) if dataset.has_split else []
    if others:
        raise RecordingError(
            f"{what} has a split into {join_names(map(repr, others), 3)}; needed are 'train' and 'test'. Copy it "
            "again."
        )
    rate = arrays["rate"]
    found = float(rate.reshape(-1)[0]) if rate.size == 1 and rate.dtype.kind in "iuf" else np.nan
    if not np.isclose(found or UNKNOWN_RATE, dataset.rate or UNKNOWN_RATE):
        raise RecordingError(
            f"{what} has the rate {found:g}; needed is {dataset.rate:g}, or 0 where it is not known. Copy it again."
        )


# The sets -------------------------------------------------------------------------------------------------------

UCR = (
    "Dau HA, Keogh E et al. (2019). The UCR time series archive. IEEE/CAA J. Autom. Sinica 6(6); "
    "www.cs.ucr.edu/~eamonn/time_series_data_2018"
)


def _set(
    name: str, about: str, labels: str, *, size: int, source: str, rate: float = UNKNOWN_RATE, **facts: Any
) -> None:
    arrays = "flat, lengths, y, g, rate" + ", split" * facts.get("has_split", False)
    arrays += ", site" * facts.get("has_site", False)
    register_dataset(
        NpzSet(
            name=name,
            about=about,
            labels=tuple(labels.split()),
            size=size,
            source=f"{source}, written as {name}.npz with the arrays {arrays}",
            rate=rate,
            folder=f"more/{name}",
            files=((f"{name}.npz",),),
            **facts,
        )
    )


def _ucr(name: str, about: str, labels: str, size: int) -> None:
    """A set of the UCR archive: its TRAIN rows, then its TEST rows, without the padding of some."""
    _set(
        name,
        about,
        labels,
        size=size,
        source=f"the UCR archive of 2018 ({name}_TRAIN.tsv, {name}_TEST.tsv)",
        licence="UCR archive: free for research, with citation",
        citation=UCR,
        doi="",
        group_by="recording",
        has_split=True,
    )


TEN = "1 10 2 3 4 5 6 7 8 9"

_ucr("AllGestureWiimoteX", "ten gestures, x axis of a game controller, 2 to 385 samples", TEN, 103_073)
_ucr("ECG200", "heartbeats, normal or of an infarction, 96 samples", "-1 1", 72_860)
_ucr(
    "EOGHorizontalSignal",
    "twelve characters written with the eyes, horizontal EOG, 1250 samples",
    "1 10 11 12 2 3 4 5 6 7 8 9",
    2_881_485,
)
_ucr(
    "GestureMidAirD1",
    "26 gestures in the air, first coordinate of a hand, 80 to 360 samples",
    " ".join(sorted(map(str, range(1, 27)))),
    209_559,
)
_ucr("GesturePebbleZ1", "six gestures, z axis of a watch, 100 to 455 samples", "1 2 3 4 5 6", 140_613)
_ucr(
    "PickupGestureWiimoteZ",
    "ten people by how they pick something up, z axis of a game controller, 29 to 361 samples",
    TEN,
    10_904,
)
_ucr(
    "PLAID",
    "eleven appliances by their current, 101 to 1344 samples; five series are in both parts of its split",
    "0 1 10 2 3 4 5 6 7 8 9",
    1_216_794,
)
_ucr("TwoLeadECG", "which of two leads a heartbeat is from, 82 samples", "1 2", 300_669)

_set(
    "JapaneseVowels",
    "nine speakers by 12 cepstral coefficients of a vowel, 7 to 29 frames",
    "1 2 3 4 5 6 7 8 9",
    size=438_927,
    source="the UEA archive, as in the package aeon (JapaneseVowels_TRAIN.ts, JapaneseVowels_TEST.ts)",
    licence="CC BY 4.0",
    citation="Kudo M, Toyama J, Shimbo M (1999). Pattern Recognit. Lett. 20, 1103-1111.",
    doi="",
    group_by="recording",
    n_variates=12,
    has_split=True,
)
_set(
    "FSDD4k",
    "spoken digits of six people, 0.1 to 2.3 s at 4 kHz; its split has all six in both parts",
    "0 1 2 3 4 5 6 7 8 9",
    size=8_512_885,
    source="github.com/Jakobovski/free-spoken-digit-dataset (recordings), at half their rate",
    licence="CC BY-SA 4.0",
    citation="Jackson Z et al. (2018). Free Spoken Digit Dataset.",
    doi="10.5281/zenodo.1342401",
    rate=4000.0,
    group_by="patient",
    has_split=True,
)
_set(
    "PascalHeart",
    "heart sounds in five classes from a phone and a stethoscope, 0.8 to 28 s at 1 kHz",
    "artifact extrahls extrastole murmur normal",
    size=6_697_382,
    source="the PASCAL heart sounds challenge of 2011 (sets A and B, the labelled parts), at 1 kHz",
    licence="for research; none is stated",
    citation="Bentley P et al. (2011). The PASCAL Classifying Heart Sounds Challenge (CHSC2011).",
    doi="",
    rate=1000.0,
    group_by="patient",
    has_site=True,
)
_set(
    "CinC2011",
    "is an ECG of 10 s from a phone usable? Leads I, II, V1 and V5 at 125 Hz",
    "acceptable unacceptable",
    size=4_156_870,
    source="physionet.org/content/challenge-2011 (set-a), at a quarter of its rate",
    licence="ODC-By 1.0",
    citation="Silva I, Moody GB, Celi L (2011). Computing in Cardiology 38, 273-276.",
    doi="",
    rate=125.0,
    group_by="recording",
    n_variates=4,
)
_set(
    "GaitNDD",
    "gait in three neurodegenerative diseases and controls, 12 measures of each of 122 to 310 strides",
    "als control hunt park",
    size=355_064,
    source="physionet.org/content/gaitndd/1.0.0",
    licence="ODC-By 1.0",
    citation="Hausdorff JM et al. (2000). J. Appl. Physiol. 88, 2045-2053.",
    doi="",
    group_by="patient",
    n_variates=12,
)
_set(
    "KneeEMG",
    "knee abnormality from four muscles of 22 people in three movements, 5 to 69 s at 1 kHz",
    "abnormal normal",
    size=7_067_691,
    source="UCI dataset 278, EMG in lower limb (N_TXT, A_TXT), without the goniometer",
    licence="CC BY 4.0",
    citation="Sanchez O, Sotelo J, Gonzales M, Hernandez G (2014). EMG dataset in Lower Limb. UCI ML Repository.",
    doi="10.24432/C5ZW3V",
    rate=1000.0,
    group_by="patient",
    n_variates=4,
)
_set(
    "DepresjonDays",
    "activity of 55 people with depression or without, one day at a sample a minute",
    "condition control",
    size=1_013_499,
    source="datasets.simula.no/depresjon, cut into whole days",
    licence="free for research and education, with citation",
    citation="Garcia-Ceja E et al. (2018). Depresjon: a motor activity database. ACM MMSys.",
    doi="",
    rate=1 / 60,
    group_by="patient",
)
