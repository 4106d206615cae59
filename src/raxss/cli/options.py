"""Arguments and options that several commands have, each with its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    str,
    typer.Argument(
        help="A folder that raxss prepare made, a named dataset (see raxss datasets), or a CSV manifest: "
        "path,label,group[,rate,channel]."
    ),
]
Root = Annotated[Path | None, typer.Option(help="Folder with the named datasets; RAXSS_DATA otherwise.")]
Model = Annotated[Path, typer.Argument(help="Model folder, as raxss fit wrote it.")]
Inputs = Annotated[
    list[Path],
    typer.Argument(
        help="Recordings (.edf, .bdf, .vhdr, WFDB, .npz, .npy, .csv), CSV manifests with a column 'path', BIDS "
        "roots, or folders that raxss prepare made."
    ),
]
Preset = Annotated[str, typer.Option(help="paper, sss or recommended.")]
Seed = Annotated[int, typer.Option(help="Draws split, weights and order of windows.")]
Epochs = Annotated[int | None, typer.Option("--max-epochs", help="Epochs at most.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Bank = Annotated[
    str | None,
    typer.Option(
        help="Where to seek neighbours instead of where the model says: series (all windows), local (those nearest "
        "in time) or sampled (stretches of all of it). The latter two are for recordings of many hours."
    ),
]
BankSize = Annotated[int | None, typer.Option(help="Windows in a local or sampled bank.")]
InputRate = Annotated[
    float | None,
    typer.Option("--rate", help="Samples per second of files that do not say (.npy, .npz, .csv)."),
]
Resample = Annotated[
    bool,
    typer.Option(
        "--resample",
        help="Bring recordings of another sampling rate to that of the training series, without aliasing. Without "
        "it, rates that differ by more than a tenth are refused.",
    ),
]
TestPart = Annotated[
    Path | None, typer.Option("--split", help="Take only the test part of this split of a prepared folder.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]
