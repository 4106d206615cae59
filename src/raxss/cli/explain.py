"""``raxss explain MODEL INPUT... --out FOLDER``"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from raxss.cli.predict import Bank, BankSize, Device, Inputs, Model, Overwrite, opened_model, series_for


class Format(StrEnum):
    """What can be written for each series."""

    JSON = "json"
    PARQUET = "parquet"
    FIGURES = "figures"


OutFolder = Annotated[Path, typer.Option("--out", help="Folder to write, with one folder a series in it.")]
Top = Annotated[int, typer.Option(help="Keep the neighbour lists of so many windows; 0 keeps all.")]
Formats = Annotated[
    list[Format] | None, typer.Option("--format", help="Write only this; may be given more than once.")
]
OneTable = Annotated[
    bool,
    typer.Option(
        "--one-table",
        help="Write all series into one windows.parquet, neighbors.parquet and summary.parquet, with a column "
        "'series': for recordings of many channels.",
    ),
]


def explain(
    model: Model,
    inputs: Inputs,
    out: OutFolder,
    device: Device = "auto",
    top: Top = 50,
    formats: Formats = None,
    one_table: OneTable = False,
    bank: Bank = None,
    bank_size: BankSize = None,
    overwrite: Overwrite = False,
) -> None:
    """Show why: windows, weights and neighbours of each recording as JSON, Parquet and figures."""
    if one_table and formats:
        raise typer.BadParameter("--one-table writes Parquet tables; leave --format out")
    from raxss.evidence import write_tables
    from raxss.evidence.trail import FORMATS
    from raxss.storage import check_writable, refuse_existing, whole_folder

    refuse_existing(out, overwrite=overwrite)
    check_writable(out)
    classifier = opened_model(model, device, bank, bank_size)
    series = series_for(classifier, inputs)
    evidence = classifier.explain_each(series)
    if one_table:
        write_tables(evidence, out, top=top or None, overwrite=overwrite)
        print(
            f"The evidence for {len(series)} series is in {out}: summary.parquet first, then windows.parquet"
        )
        return
    wanted = tuple(formats or FORMATS)
    with whole_folder(out, overwrite=overwrite) as folder:
        for one in evidence:
            one.save(folder, top=top or None, formats=wanted)
            del one  # or it would be held while the next is computed
    first = "overlay.png first, then evidence.json" if Format.FIGURES in wanted else "evidence.json first"
    print(f"The evidence for {len(series)} series is in {out}: {first}")
