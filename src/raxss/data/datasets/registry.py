"""Which datasets have a name, what are they, and may they be used?

    a name -> Dataset: what it is, licence, citation, where it comes from, where it lies on a disk

Only facts: nothing is opened here. Next: folders.py finds a dataset on the disk; plans.py says what is in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from raxss.errors import DataError, nearest

Where = Literal["package", "made", "disk"]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """One named dataset.

    Attributes
    ----------
    size
        Bytes of the whole, as published or as the parts that raxss asks for.
    source
        Where to get it.
    where
        ``"package"``: comes with raxss; ``"made"``: computed on the spot; ``"disk"``: looked for below a root.
    folder
        Its folder below the root.
    files
        What must be there: for each part the names that will do, relative to the folder, the published one
        first; ``*`` stands for anything. Empty where a table of the dataset itself says it.
    labels
        The classes, as series carry them.
    group_by
        What must not sit on both sides of a split: a level of `raxss.data.series.ORIGINS`.
    may_ship
        Whether its licence lets it be part of a package under the MIT licence.
    base
        Address below which its files lie one by one, for those that raxss can fetch.

    Examples
    --------
    >>> DATASETS["bonn"].licence
    'CC BY 4.0, research and education only'
    """

    name: str
    about: str
    licence: str
    size: int
    citation: str
    doi: str
    source: str
    where: Where
    labels: tuple[str, ...]
    group_by: str
    may_ship: bool
    folder: str = ""
    files: tuple[tuple[str, ...], ...] = ()
    base: str = ""


SAMPLE = Dataset(
    name="sample",
    about="400 single-lead ECGs of 10 to 60 s, atrial fibrillation or normal rhythm; part of cinc2017",
    licence="ODC-By 1.0",
    size=2_000_443,
    citation="Clifford GD et al. (2017). AF Classification from a Short Single Lead ECG Recording. CinC 44.",
    doi="10.22489/CinC.2017.065-469",
    source="https://physionet.org/content/challenge-2017/1.0.0/",
    where="package",
    labels=("AF", "normal"),
    group_by="recording",
    may_ship=True,
)

SYNTHETIC = Dataset(
    name="synthetic",
    about="40 series of coloured noise, half of them with a motif that recurs; made on the spot",
    licence="MIT",
    size=0,
    citation="none needed",
    doi="",
    source="raxss.data.synthetic",
    where="made",
    labels=("motif", "noise"),
    group_by="recording",
    may_ship=True,
)

BERN_BARCELONA = Dataset(
    name="bern-barcelona",
    about="intracranial EEG, pairs of neighbouring channels of 20 s, focal or non-focal; 5 patients pooled",
    licence="CC BY 4.0, research and education only",
    size=10_962_571,
    citation=(
        "Andrzejak RG, Schindler K, Rummel C (2012). Nonrandomness, nonlinear dependence, and nonstationarity of "
        "electroencephalographic recordings from epilepsy patients. Phys. Rev. E 86, 046206."
    ),
    doi="10.34810/data502",
    source="https://doi.org/10.34810/data502",
    where="disk",
    folder="bern-barcelona",
    files=(
        ("Data_F_50.zip", "Data_F*.zip", "Data_F*.txt", "*/Data_F*.txt"),
        ("Data_N_50.zip", "Data_N*.zip", "Data_N*.txt", "*/Data_N*.txt"),
    ),
    labels=("focal", "nonfocal"),
    group_by="pair",
    may_ship=False,
)

BONN = Dataset(
    name="bonn",
    about="five sets (Z O N F S) of 100 single EEG channels of 23.6 s; F against N: epileptogenic zone or opposite",
    licence="CC BY 4.0, research and education only",
    size=3_204_868,
    citation="Andrzejak RG et al. (2001). Phys. Rev. E 64, 061907.",
    doi="10.34810/data490",
    source="https://doi.org/10.34810/data490",
    where="disk",
    folder="bonn",
    files=tuple(
        (f"{letter}.zip", f"{letter.lower()}.zip", f"{letter}/{letter}*", f"*/{letter}/{letter}*")
        for letter in "ZONFS"
    ),
    labels=("Z", "O", "N", "F", "S"),
    group_by="recording",
    may_ship=False,
)

CINC2017 = Dataset(
    name="cinc2017",
    about="single-lead ECGs of 9 to 61 s from a hand-held recorder: normal rhythm, AF, other rhythm, too noisy",
    licence="ODC-By 1.0",
    size=165_000_000,  # of all 8528 records, about
    citation="Clifford GD et al. (2017). AF Classification from a Short Single Lead ECG Recording. CinC 44.",
    doi="10.22489/CinC.2017.065-469",
    source="https://physionet.org/content/challenge-2017/1.0.0/",
    where="disk",
    folder="cinc2017",
    files=(("training2017/REFERENCE.csv", "REFERENCE.csv"),),  # and every record that it names
    labels=("normal", "AF", "other", "noisy"),
    group_by="recording",
    may_ship=True,
)

WATCH = Dataset(
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
    where="disk",
    folder="watch",
    files=(("watch.npz",),),
    labels=("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW"),
    group_by="patient",
    may_ship=True,
)

DS003029 = Dataset(
    name="ds003029",
    about="iEEG of seizures, 35 patients of 4 centres, 106 runs; seizure onset zone by channel (the paper's data)",
    licence="CC0",
    size=11_083_782_694,
    citation="Li A et al. (2019). Neural Fragility as an EEG Marker of the Seizure Onset Zone. doi:10.1101/862797",
    doi="10.18112/openneuro.ds003029.v1.0.5",
    source="https://openneuro.org/datasets/ds003029/versions/1.0.5 (raxss datasets download ds003029)",
    where="disk",
    folder="ds003029",
    labels=("soz", "other"),
    group_by="patient",
    may_ship=True,
    base="https://s3.amazonaws.com/openneuro.org/ds003029",
)

DATASETS: dict[str, Dataset] = {
    one.name: one for one in (SAMPLE, SYNTHETIC, BERN_BARCELONA, BONN, CINC2017, WATCH, DS003029)
}


def find_dataset(name: str) -> Dataset:
    """The dataset of that name.

    Examples
    --------
    >>> find_dataset("bonn").group_by
    'recording'
    """
    if name not in DATASETS:
        raise DataError(
            f"there is no dataset {name!r}{nearest(name, DATASETS)} For data of your own, pass a CSV manifest with "
            "columns path, label and group."
        )
    return DATASETS[name]
