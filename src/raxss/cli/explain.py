"""``raxss explain MODEL INPUT... --out FOLDER``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raxss.cli.predict import Device, Inputs, Model, Overwrite, series_for

OutFolder = Annotated[Path, typer.Option("--out", help="Folder to write, with one folder a series in it.")]
Top = Annotated[int, typer.Option(help="Keep the neighbour lists of so many windows; 0 keeps all.")]


def explain(
    model: Model,
    inputs: Inputs,
    out: OutFolder,
    device: Device = "auto",
    top: Top = 50,
    overwrite: Overwrite = False,
) -> None:
    """Show why: windows, weights and neighbours of each recording as JSON, Parquet and figures."""
    from raxss.estimator import RAxSSClassifier
    from raxss.progress import progress_bar
    from raxss.storage import check_writable, refuse_existing, whole_folder

    refuse_existing(out, overwrite=overwrite)
    check_writable(out)
    classifier = RAxSSClassifier.from_pretrained(model, device=device)
    series = series_for(classifier, inputs)
    with whole_folder(out, overwrite=overwrite) as folder, progress_bar(unit="series") as bar:
        for one in bar.track(series, description="explaining"):
            classifier.explain(one).save(folder, top=top or None)
    print(f"The evidence for {len(series)} series is in {out}: overlay.png first, then evidence.json")
