"""Make the ECG sample that comes with the package.

    python scripts/make_sample.py --source FOLDER --out src/raxss/data/datasets/sample/cinc2017.npz

FOLDER holds `training2017/` with WFDB records and `REFERENCE.csv` (`record,label`) of the PhysioNet/CinC
Challenge 2017. Same folder, same seed: same content.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np
import wfdb
from numpy.typing import NDArray

from raxss._core.atomic import whole_file
from raxss.data.datasets.sample import RATE, UNITS_PER_MV

SEED = 69421
N_PER_CLASS = 200
CLASSES = {"A": "AF", "N": "normal"}  # letters of REFERENCE.csv, drawn in this order


def draw_records(source: Path) -> dict[str, str]:
    """Record name -> label: for each class sort the names, permute them by the seed, take the first 200."""
    with open(source / "training2017" / "REFERENCE.csv", newline="") as file:
        letters = dict(csv.reader(file))
    rng = np.random.default_rng(SEED)
    drawn: dict[str, str] = {}
    for letter, label in CLASSES.items():
        names = sorted(name for name, item in letters.items() if item == letter)
        drawn |= {names[position]: label for position in rng.permutation(len(names))[:N_PER_CLASS]}
    return dict(sorted(drawn.items()))


def read_counts(source: Path, name: str) -> NDArray[np.int16]:
    """The samples as the recorder counted them, ``(n_samples,)``."""
    record = wfdb.rdrecord(str(source / "training2017" / name), physical=False)
    if record.fs != RATE or record.adc_gain != [UNITS_PER_MV] or record.d_signal.shape[1] != 1:
        raise SystemExit(
            f"record {name}: found {record.fs} Hz, {record.adc_gain} units per mV; not the source"
        )
    return np.asarray(record.d_signal[:, 0]).astype(np.int16)


def encode(samples: NDArray[np.int16]) -> NDArray[np.uint8]:
    """Byte planes that deflate well: ``(n,)`` 16-bit samples -> ``(2, n)`` bytes, low and high.

    An ECG is smooth, so second differences are small; folding the sign into the lowest bit (0, -1, 1, -2 ->
    0, 1, 2, 3) makes nearly all high bytes 0. Arithmetic wraps at 16 bits and loses nothing.
    """
    bends = np.diff(samples, n=2, prepend=np.zeros(2, np.int16)).astype(np.int16)
    folded = ((bends << 1) ^ (bends >> 15)).view(np.uint16)
    return np.stack([folded & 0xFF, folded >> 8]).astype(np.uint8)


def make_sample(source: Path) -> dict[str, NDArray[Any]]:
    """The arrays of the sample file."""
    drawn = draw_records(source)
    samples = [read_counts(source, name) for name in drawn]
    return {
        "names": np.array(list(drawn)),
        "labels": np.array(list(drawn.values())),
        "lengths": np.array([len(item) for item in samples], dtype=np.int32),
        "planes": encode(np.concatenate(samples)),
    }


def main() -> None:
    """Read the source, draw, write one compressed file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with whole_file(arguments.out) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **make_sample(arguments.source))  # type: ignore[arg-type]
    print(f"{arguments.out}: {arguments.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
