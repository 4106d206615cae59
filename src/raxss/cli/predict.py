"""``raxss predict MODEL INPUT... --out FILE.csv``"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import pandas as pd

Model = Annotated[Path, typer.Argument(help="Model folder, as raxss fit wrote it.")]
Inputs = Annotated[
    list[Path],
    typer.Argument(help="Recordings (.npz, .npy, .csv, WFDB) or CSV manifests with a column 'path'."),
]
OutFile = Annotated[Path, typer.Option("--out", help="Table to write: .csv or .parquet.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]


def predict(
    model: Model, inputs: Inputs, out: OutFile, device: Device = "auto", overwrite: Overwrite = False
) -> None:
    """Score recordings: one row a series, with the probability of each class."""
    from raxss.errors import OutputError
    from raxss.storage import check_writable, refuse_existing, whole_file

    if out.suffix not in (".csv", ".parquet"):
        raise OutputError(22, f"{out.name!r} must end in .csv or .parquet, so that its format is known")
    refuse_existing(out, overwrite=overwrite)
    check_writable(out)
    table = prediction_table(model, inputs, device)
    with whole_file(out) as temporary:
        if out.suffix == ".csv":
            table.map(without_formula).to_csv(temporary, index=False)
        else:
            table.to_parquet(temporary, engine="pyarrow", index=False)
    print(f"{len(table)} predictions are in {out}")


def prediction_table(folder: Path, inputs: list[Path], device: str) -> pd.DataFrame:
    """One row a series."""
    import pandas as pd

    from raxss.estimator import RAxSSClassifier
    from raxss.progress import progress_bar
    from raxss.recordings.files import read_inputs

    model = RAxSSClassifier.from_pretrained(folder, device=device)
    series = read_inputs(inputs)
    rows: list[dict[str, Any]] = []
    with progress_bar(unit="series") as bar:
        for one in bar.track(series, description="predicting"):
            probability = model.predict_proba([one])[0]
            row = {"name": one.name, "predicted": model.classes_[probability.argmax()]}
            row |= {
                f"probability_{name}": value for name, value in zip(model.classes_, probability, strict=True)
            }
            rows.append(row | {"seconds": one.seconds} | ({} if one.label is None else {"label": one.label}))
    return pd.DataFrame(rows)


def without_formula(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula, made plain with a leading apostrophe.

    >>> without_formula("=cmd()"), without_formula("C3"), without_formula(-0.5)
    ("'=cmd()", 'C3', -0.5)
    """
    return (
        f"'{value}"
        if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
        else value
    )
