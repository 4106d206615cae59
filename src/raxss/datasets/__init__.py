"""Which collections of series can be asked for by name?

    "sample"     400 single-lead ECGs of CinC 2017, inside the package  ->  SeriesCollection
    "synthetic"  noise with a motif planted in one class, made on the spot  ->  SeriesCollection

Next: preparation.py makes their samples ready for a network.
"""

from __future__ import annotations

from collections.abc import Callable

from raxss.datasets.sample import load_sample
from raxss.errors import DataError, nearest
from raxss.recordings.series import SeriesCollection
from raxss.recordings.synthetic import make_motif_series

__all__ = ["DATASETS", "load_dataset", "load_sample", "load_synthetic"]


def load_synthetic(n_series: int = 40, *, seed: int = 69421) -> SeriesCollection:
    """Series of noise, half of them with a motif planted five times and more.

    Only the series; `raxss.recordings.synthetic.make_motif_series` also says where the motifs are.

    Examples
    --------
    >>> load_synthetic(6)
    SeriesCollection(6 series of ... samples, labels: motif 3, noise 3)
    """
    return make_motif_series(n_series, seed=seed).series


DATASETS: dict[str, Callable[[], SeriesCollection]] = {"sample": load_sample, "synthetic": load_synthetic}


def load_dataset(name: str) -> SeriesCollection:
    """The collection of that name.

    Examples
    --------
    >>> load_dataset("synthetic")
    SeriesCollection(40 series of ... samples, labels: motif 20, noise 20)
    """
    if name not in DATASETS:
        raise DataError(
            f"there is no dataset {name!r}{nearest(name, DATASETS)} For data of your own, pass a CSV manifest with "
            "columns path, label and group."
        )
    return DATASETS[name]()
