"""ds003029: intracranial EEG of seizures as a BIDS tree with a clinical sheet, the data of the paper.

Its files are listed with checksums (tables/ds003029_*.tsv), so ``raxss datasets download`` can fetch and check it.
Its summary is the paper's table, one row a centre.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from raxss._core.atomic import json_ready
from raxss.data.bids import CLINICAL_SHEET, bids_table, plan_bids
from raxss.data.datasets.dataset import Dataset
from raxss.data.datasets.registry import register_dataset
from raxss.data.plan import CollectionPlan

TABLES = Path(__file__).parents[1] / "tables"
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
SHOWN = {  # columns of the printed table
    "soz_patients": "with SOZ",
    "soz_share": "SOZ share",
    "rate": "rate (Hz)",
    "paper": "paper: patients / with SOZ / series / share",
}


class DS003029(Dataset):
    """See the facts below."""

    def plan(self, folder: Path, **options: Any) -> CollectionPlan:
        """One series a channel and run; options are those of `raxss.data.bids.plan_bids`, such as a crop."""
        if not any(folder.glob("sub-*")):
            return self.planned(folder)
        plan = plan_bids(folder, **options)  # finds the clinical sheet itself
        return replace(plan, source=self.name, where_to_get=self.where_to_get if plan.absent else "")

    def classes(self, **options: Any) -> tuple[str, ...]:
        """The onset zone and the rest, or what the option ``label`` names instead."""
        return (*self.labels, *([options["label"]] if options.get("label") else []))

    def summary(self, folder: Path) -> tuple[str, dict[str, Any]]:
        """The paper's table, from the sidecars and, where it is there, the clinical sheet."""
        if not any(folder.glob("sub-*")):
            raise self.nothing_there()
        table, note = summarise_centres(bids_table(folder))  # finds the clinical sheet itself
        shown = table.rename(columns=SHOWN)
        shown["with SOZ"] = ["n/a" if n is None or n != n else f"{n:.0f}" for n in shown["with SOZ"]]
        shown["SOZ share"] = ["n/a" if share != share else f"{share:.2%}" for share in shown["SOZ share"]]
        text = "\n".join([shown.to_string(index=False, line_width=None), "", note])
        return text, {"centres": [json_ready(row) for row in table.to_dict("records")], "notes": [note]}


register_dataset(
    DS003029(
        name="ds003029",
        about=(
            "iEEG of seizures, 35 patients of 4 centres, 106 runs; "
            "seizure onset zone by channel (the paper's data)"
        ),
        licence="CC0",
        size=11_083_782_694,
        citation=(
            "Li A et al. (2019). Neural Fragility as an EEG Marker of the Seizure Onset Zone. "
            "doi:10.1101/862797"
        ),
        doi="10.18112/openneuro.ds003029.v1.0.5",
        source="https://openneuro.org/datasets/ds003029/versions/1.0.5 (raxss datasets download ds003029)",
        tables=(TABLES / "ds003029_sidecars.tsv", TABLES / "ds003029_signals.tsv"),
        labels=(SOZ, "other"),
        rate=None,  # 250 to 2000 Hz, by centre
        group_by="patient",
        base="https://s3.amazonaws.com/openneuro.org/ds003029",
        label_file=CLINICAL_SHEET.as_posix(),
        options=tuple(
            parameter for parameter in inspect.signature(plan_bids).parameters if parameter != "root"
        ),
    )
)


# The paper's table --------------------------------------------------------------------------------------------


def summarise_centres(channels: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The paper's table and a note on it, from the rows of `raxss.data.bids.bids_table`.

    One row a centre: ``centre, patients, soz_patients, runs, channels, series, soz_share, type, rate, outcomes,
    paper``. ``channels`` are all that channels.tsv lists; ``series`` are the good intracranial ones. Both are of
    patients with SOZ labels alone, where it is known who has them.
    """
    known = bool((channels["label"] == SOZ).any())
    rows = [_centre_row(str(name), part, known) for name, part in channels.groupby("centre", sort=False)]
    order = {name: place for place, name in enumerate(PAPER)}
    rows.sort(key=lambda row: (order.get(row["centre"], len(order)), row["centre"]))
    return pd.DataFrame(rows), _note(known)


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
        "type": ", ".join(INTRACRANIAL[item] for item in sorted(intracranial["type"].str.upper().unique())),
        "rate": _span(intracranial["rate"]),
        "outcomes": ", ".join(f"{name} {n}" for name, n in sorted(outcomes.items())),
        "paper": "{} / {} / {} / {:.2%}".format(*PAPER[shown]) if shown in PAPER else "n/a",
    }


def _span(rates: pd.Series[float]) -> str:
    """From the lowest to the highest, to a tenth of a Hz."""
    if rates.notna().sum() == 0:
        return "n/a"
    low, high = round(float(rates.min()), 1), round(float(rates.max()), 1)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _note(known: bool) -> str:
    counted = (
        "Channels are all that channels.tsv lists, as the paper counts them; series are the good ECoG and sEEG "
        "channels among them, which is what raxss makes series of."
    )
    if known:
        return f"{counted} Both are of patients with SOZ labels alone."
    return (
        f"{counted} Both are of all patients, because who has SOZ labels is not known: they are in "
        f"{CLINICAL_SHEET.as_posix()}, which is not there. To get it: raxss datasets download ds003029 "
        "--only 'sourcedata/*'"
    )
