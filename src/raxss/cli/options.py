"""Arguments and options that several commands have, each with its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    str,
    typer.Argument(
        help="Folder written by raxss prepare, named dataset (see raxss datasets), or CSV manifest: "
        "path,label,group[,rate,channel]."
    ),
]
Root = Annotated[
    Path | None, typer.Option(help="Folder with the named datasets. Default: the variable RAXSS_DATA.")
]
Model = Annotated[Path, typer.Argument(help="Model folder written by raxss fit.")]
Inputs = Annotated[
    list[Path],
    typer.Argument(
        help="Recordings (.edf, .bdf, .vhdr, WFDB, .npz, .npy, .csv), CSV manifests with a column 'path', BIDS "
        "roots, or folders that raxss prepare made."
    ),
]
Preset = Annotated[str, typer.Option(help="Preset: paper, sss or recommended.")]
Seed = Annotated[int, typer.Option(help="Random seed of split, initial weights and order of windows.")]
Epochs = Annotated[int | None, typer.Option("--max-epochs", help="Maximum number of epochs.")]
Device = Annotated[str, typer.Option(help="Device: auto, cpu or cuda.")]
Bank = Annotated[
    str | None,
    typer.Option(
        help="Windows that may be neighbours, overriding the model: series (all windows), local (those nearest in "
        "time) or sampled (segments spread over the series); the latter two for recordings of many hours."
    ),
]
BankSize = Annotated[int | None, typer.Option(help="Number of windows in a local or sampled bank.")]
InputRate = Annotated[
    float | None,
    typer.Option("--rate", help="Sampling rate in Hz of files that do not state it (.npy, .npz, .csv)."),
]
Resample = Annotated[
    bool,
    typer.Option(
        "--resample",
        help="Resample recordings to the sampling rate of the training series, with anti-aliasing. Otherwise, "
        "rates that differ by more than a tenth are refused.",
    ),
]
TestPart = Annotated[
    Path | None, typer.Option("--split", help="Use only the test set of this split of a prepared folder.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing output.")]
