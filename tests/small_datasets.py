"""Small copies of the named datasets, in their own formats: every class, several groups, few samples.

To add a dataset, add a line to `SMALL`: what writes a few of its files into a folder.
"""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from raxss.data.datasets import DATASETS
from raxss.data.datasets.collections.npz_sets import NpzSet


def noise(*shape):
    """Whole numbers, other ones for every name that they are written under."""
    return np.random.default_rng([69421, *shape]).integers(-99, 99, size=shape[1:])


def texts(folder: Path, names, *, shape, delimiter=" "):
    """One table of numbers a name, with the number of rows that the published ones have."""
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(exist_ok=True)
        np.savetxt(folder / f"{name}.txt", noise(number, *shape), fmt="%d", delimiter=delimiter)


def wfdb_records(folder: Path, labels):
    """A record for each label, as the challenge has them: a header, and 16-bit samples behind a MATLAB header."""
    pytest.importorskip("wfdb")  # reads them
    folder.mkdir()
    for number, _ in enumerate(labels):
        name, samples = f"A{number:05d}", noise(number, 400).astype("<i2")
        header = np.array([30, 1, 400, 0, 4], "<i4").tobytes() + b"val\0"
        (folder / f"{name}.mat").write_bytes(header + samples.tobytes())
        (folder / f"{name}.hea").write_text(
            f"{name} 1 300 400 05:05:15 1/05/2000\n{name}.mat 16+24 1000/mV 16 0 {samples[0]} 0 0 ECG\n"
        )
    rows = [f"A{number:05d},{label}" for number, label in enumerate(labels)]
    (folder / "REFERENCE.csv").write_text("\n".join(rows) + "\n")


def one_archive(folder: Path, *, n_classes, n_subjects):
    """All series in one array, with their lengths, classes and subjects."""
    n_series = n_classes * n_subjects
    lengths = 60 + np.arange(n_series)
    np.savez(
        folder / "watch.npz",
        X=noise(0, lengths.sum(), 6).astype(float),
        lengths=lengths,
        y=np.arange(n_series) % n_classes,
        subject=1 + np.arange(n_series) // n_classes,
        side=np.zeros(n_series, dtype=int),
    )


def all_in_one(folder: Path, name):
    """One of the sets that are an archive of all series: two of every class, of two groups."""
    facts = DATASETS[name]
    labels = np.array([*facts.labels] * 2)
    groups = np.repeat(["a", "b"], len(facts.labels))
    lengths = 40 + np.arange(len(labels))
    further = {"split": np.where(groups == "a", "train", "test")} if facts.has_split else {}
    further |= {"site": groups} if facts.has_site else {}
    np.savez(
        folder / f"{name}.npz",
        flat=noise(0, facts.n_variates, lengths.sum()).astype(np.float32),
        lengths=lengths,
        y=labels,
        g=groups,
        rate=0.0 if facts.rate == 1 else facts.rate,
        **further,
    )


def bids(folder: Path):
    """Patients of four centres with a clinical sheet."""
    pytest.importorskip("pybv")
    from make_bids import make_bids

    make_bids(folder, patients_per_centre=1)


SMALL = {
    "bern-barcelona": lambda folder: texts(
        folder, [f"Data_{kind}_Ind000{n}" for kind in "FN" for n in (1, 2)], shape=(10240, 2), delimiter=","
    ),
    "bonn": lambda folder: texts(
        folder, [f"{kind}/{kind}00{n}" for kind in "ZONFS" for n in (1, 2)], shape=(4097, 1)
    ),
    "cinc2017": lambda folder: wfdb_records(folder / "training2017", "NAO~NAO~"),
    "watch": lambda folder: one_archive(folder, n_classes=7, n_subjects=2),
    "ds003029": bids,
    **{name: partial(all_in_one, name=name) for name, item in DATASETS.items() if isinstance(item, NpzSet)},
    "tremor": lambda folder: texts(folder, ["ann-rest", "ann-held", "bob-rest", "bob-held"], shape=(80, 1)),
}
