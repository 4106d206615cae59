"""What is in a dataset, in a few numbers?

    one row a channel and run of a BIDS tree -> the paper's table: one row a centre
    a plan                                   -> series, classes, rates, lengths, groups

From headers and tables; no samples are kept. Next: plans.py makes the series that are counted here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from raxss.data.bids import CLINICAL_SHEET, bids_table
from raxss.data.datasets.folders import folder_of
from raxss.data.datasets.plans import where_to_get
from raxss.data.datasets.registry import DS003029
from raxss.data.plan import CollectionPlan, sample_range
from raxss.errors import DataError

# Appendix of the paper: patients, patients with SOZ, series, share of SOZ series. Its UMH is UMF in the files.
PAPER = {
    "JHH": (7, 3, 1458, 0.0748),
    "NIH": (14, 11, 3057, 0.1223),
    "UMMC": (9, 9, 2967, 0.0556),
    "UMH (umf)": (5, 1, 129, 0.2558),
}
CENTRES = {"JHH": "JHH", "NIH": "NIH", "UMMC": "UMMC", "UMF": "UMH (umf)"}
INTRACRANIAL = {"ECOG": "ECoG", "SEEG": "sEEG"}
SOZ = "soz"


@dataclass(frozen=True)
class CentreSummary:
    """The paper's table, and why a column of it may be empty.

    Attributes
    ----------
    table
        One row a centre: ``centre, patients, soz_patients, runs, channels, series, soz_share, type, rate,
        outcomes, paper``. ``channels`` are all that channels.tsv lists; ``series`` are the good intracranial
        ones. Both are of patients with SOZ labels alone, where it is known who has them.
    notes
        Whole sentences.
    """

    table: pd.DataFrame
    notes: tuple[str, ...]


def summarise_centres(channels: pd.DataFrame) -> CentreSummary:
    """The paper's table from one row a channel and run, as `raxss.data.bids.bids_table` gives it.

    Examples
    --------
    >>> rows = pd.DataFrame({
    ...     "patient": ["pt01"] * 3, "centre": "NIH", "recording": "run-01", "type": ["ECOG", "ECOG", "MISC"],
    ...     "status": "good", "rate": 1000.0, "label": ["soz", "other", None], "outcome": "S"})
    >>> summarise_centres(rows).table[["centre", "patients", "soz_patients", "channels", "series", "soz_share"]]
      centre  patients  soz_patients  channels  series  soz_share
    0    NIH         1             1         3       2        0.5
    """
    known = bool((channels["label"] == SOZ).any())
    rows = [_centre_row(str(name), part, known) for name, part in channels.groupby("centre", sort=False)]
    order = {name: place for place, name in enumerate(PAPER)}
    rows.sort(key=lambda row: (order.get(row["centre"], len(order)), row["centre"]))
    return CentreSummary(pd.DataFrame(rows), _notes(known))


def summarise_ds003029(root: Path | str | None = None) -> CentreSummary:
    """The paper's table from the sidecars and, where it is there, the clinical sheet below a root."""
    folder = folder_of(DS003029, root)
    if not any(folder.glob("sub-*")):
        raise DataError(f"nothing of dataset 'ds003029' is there. {where_to_get(DS003029)}")
    return summarise_centres(bids_table(folder))  # finds the clinical sheet itself


def summarise_plan(plan: CollectionPlan) -> dict[str, Any]:
    """Series, classes, rates, lengths and groups of a plan; opens every recording, reads no samples.

    Examples
    --------
    >>> from raxss.data.datasets.plans import plan_dataset
    >>> summarise_plan(plan_dataset("sample"))["classes"]
    {'AF': 200, 'normal': 200}
    """
    lengths: list[int] = []
    rates: set[float] = set()
    for one in plan.recordings:
        with one.open_recording() as recording:
            for series in one.series:
                start, stop = sample_range(recording, series)
                lengths.append(stop - start)
                rates.add(recording.channels[series.channels[0]].rate)
    classes = Counter(str(series.label) for _, series in plan)
    groups = {series.origin.get(plan.group_by or "") for _, series in plan} - {None}
    return {
        "series": len(plan),
        "classes": dict(sorted(classes.items())),
        "variates": sorted({len(series.channels) for _, series in plan}),
        "rates": sorted(rates),
        "shortest": min(lengths, default=0),
        "median": float(np.median(lengths)) if lengths else 0.0,
        "longest": max(lengths, default=0),
        "group_by": plan.group_by,
        "groups": len(groups),
        "absent": len(plan.absent),
    }


def _centre_row(centre: str, rows: pd.DataFrame, known: bool) -> dict[str, Any]:
    shown = CENTRES.get(centre.upper(), centre)
    patients = rows["patient"].nunique()
    annotated = rows.loc[rows["label"] == SOZ, "patient"].unique()
    counted = rows[rows["patient"].isin(annotated)] if known else rows
    kinds = counted["type"].str.upper()
    series = counted[kinds.isin(INTRACRANIAL) & (counted["status"].str.lower() != "bad")]
    share = float((series["label"] == SOZ).mean()) if known and len(series) else float("nan")
    outcomes = rows.drop_duplicates("patient")["outcome"].fillna("n/a").value_counts()
    intracranial = rows[rows["type"].str.upper().isin(INTRACRANIAL)]
    return {
        "centre": shown,
        "patients": patients,
        "soz_patients": len(annotated) if known else None,
        "runs": int(counted[["patient", "recording"]].drop_duplicates().shape[0]),
        "channels": len(counted),
        "series": len(series),
        "soz_share": share,
        "type": ", ".join(INTRACRANIAL[one] for one in sorted(intracranial["type"].str.upper().unique())),
        "rate": _span(intracranial["rate"]),
        "outcomes": ", ".join(f"{name} {n}" for name, n in sorted(outcomes.items())),
        "paper": _paper(shown),
    }


def _span(rates: pd.Series[float]) -> str:
    """From the lowest to the highest, to a tenth of a Hz."""
    if rates.notna().sum() == 0:
        return "n/a"
    low, high = round(float(rates.min()), 1), round(float(rates.max()), 1)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _paper(centre: str) -> str:
    if centre not in PAPER:
        return "n/a"
    patients, with_soz, series, share = PAPER[centre]
    return f"{patients} / {with_soz} / {series} / {share:.2%}"


def _notes(known: bool) -> tuple[str, ...]:
    counted = (
        "Channels are all that channels.tsv lists, as the paper counts them; series are the good ECoG and sEEG "
        "channels among them, which is what raxss makes series of."
    )
    if known:
        return (f"{counted} Both are of patients with SOZ labels alone.",)
    return (
        f"{counted} Both are of all patients, because who has SOZ labels is not known: they are in "
        f"{CLINICAL_SHEET.as_posix()}, which is not there. To get it: raxss datasets download ds003029 "
        "--only 'sourcedata/*'",
    )
