"""Synthetic: noise with a motif that recurs in one class, made on the spot."""

from __future__ import annotations

from raxss.data.datasets.dataset import SeriesDataset
from raxss.data.datasets.registry import register_dataset
from raxss.data.series import SeriesCollection
from raxss.data.synthetic import make_motif_series


def load_synthetic(n_series: int = 40, *, seed: int = 69421) -> SeriesCollection:
    """Series of noise, half of them with a motif planted five times and more (`make_motif_series` says where)."""
    return make_motif_series(n_series, seed=seed).series


register_dataset(
    SeriesDataset(
        name="synthetic",
        about="40 series of coloured noise, half of them with a motif that recurs; made on the spot",
        licence="MIT",
        size=0,
        citation="none needed",
        doi="",
        source="raxss.data.synthetic",
        labels=("motif", "noise"),
        rate=100.0,
        group_by="recording",
        load=load_synthetic,
    )
)
