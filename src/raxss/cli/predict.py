"""``raxss predict MODEL INPUT... --out FILE.csv``"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import pandas as pd

    from raxss.estimator import RAxSSClassifier
    from raxss.recordings.series import Series, SeriesCollection

Model = Annotated[Path, typer.Argument(help="Model folder, as raxss fit wrote it.")]
Inputs = Annotated[
    list[Path],
    typer.Argument(
        help="Recordings (.edf, .bdf, .vhdr, WFDB, .npz, .npy, .csv), CSV manifests with a column 'path', BIDS "
        "roots, or folders that raxss prepare made."
    ),
]
SplitFile = Annotated[
    Path | None, typer.Option("--split", help="Take only the test part of this split of a prepared folder.")
]
OutFile = Annotated[Path, typer.Option("--out", help="Table to write: .csv or .parquet.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Bank = Annotated[
    str | None,
    typer.Option(
        help="Where to seek neighbours instead of where the model says: series (all windows), local (those nearest "
        "in time) or sampled (stretches of all of it). The latter two are for recordings of many hours."
    ),
]
BankSize = Annotated[int | None, typer.Option(help="Windows in a local or sampled bank.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]


def predict(
    model: Model,
    inputs: Inputs,
    out: OutFile,
    device: Device = "auto",
    split: SplitFile = None,
    bank: Bank = None,
    bank_size: BankSize = None,
    overwrite: Overwrite = False,
) -> None:
    """Score recordings: one row a series, with the probability of each class."""
    from raxss.errors import OutputError
    from raxss.storage import check_writable, refuse_existing, whole_file

    if out.suffix not in (".csv", ".parquet"):
        raise OutputError(22, f"{out.name!r} must end in .csv or .parquet, so that its format is known")
    refuse_existing(out, overwrite=overwrite)
    check_writable(out)
    classifier = opened_model(model, device, bank, bank_size)
    table = prediction_table(classifier, inputs, split)
    with whole_file(out) as temporary:
        if out.suffix == ".csv":
            table.map(without_formula).to_csv(temporary, index=False)
        else:
            table.to_parquet(temporary, engine="pyarrow", index=False)
    print(f"{len(table)} predictions are in {out}")


def opened_model(folder: Path, device: str, bank: str | None, bank_size: int | None) -> RAxSSClassifier:
    """The model, with a bar on terminals, and with another bank where one is asked for."""
    from raxss.estimator import RAxSSClassifier

    model = RAxSSClassifier.from_pretrained(folder, device=device)
    changes: dict[str, Any] = {"bank": bank, "bank_size": bank_size}
    model.set_params(verbose=1, **{name: value for name, value in changes.items() if value is not None})
    _ = model.config  # a wrong setting is told before recordings are read
    return model


def prediction_table(model: RAxSSClassifier, inputs: list[Path], split: Path | None) -> pd.DataFrame:
    """One row a series."""
    import pandas as pd

    series = series_for(model, inputs, split)
    rows: list[dict[str, Any]] = []
    for one, probability in zip(series, model.predict_proba(series), strict=True):
        row = {"name": one.name, "predicted": model.classes_[probability.argmax()]}
        row |= {f"probability_{name}": value for name, value in zip(model.classes_, probability, strict=True)}
        rows.append(row | {"seconds": one.seconds} | ({} if one.label is None else {"label": one.label}))
    return pd.DataFrame(rows)


def series_for(model: RAxSSClassifier, inputs: list[Path], split: Path | None = None) -> SeriesCollection:
    """What the inputs hold, prepared as the model's training data were."""
    from raxss.preparation import Preparation
    from raxss.prepared import is_prepared, read_prepared
    from raxss.recordings.bids import is_bids_root, read_bids
    from raxss.recordings.files import read_inputs
    from raxss.recordings.series import SeriesCollection
    from raxss.splits import Split

    wanted = Preparation.parse(model.preparation_)
    series: list[Series] = []
    files: list[Path] = []
    for path in inputs:
        if is_prepared(path):
            series += read_prepared(path, verify=True)
        elif is_bids_root(path):
            series += map(wanted.apply, read_bids(path, only_labelled=False))
        else:
            files.append(path)
    if files or not inputs:
        series += map(wanted.apply, read_inputs(files))
    collection = SeriesCollection(series)
    if split is None:
        return collection
    test = Split.read(split, collection.names).parts(collection)[2]
    refuse_seen(model, test, split)
    return test


def refuse_seen(model: RAxSSClassifier, test: SeriesCollection, split: Path) -> None:
    """A test part that the model has learned from tests nothing."""
    from raxss.errors import DataError, listed

    learned = set(model.training_data_.get("series", ()))
    if seen := [one.name for one in test if one.digest in learned]:
        raise DataError(
            f"the model has learned from {len(seen)} of {len(test)} series of the test part of {split.name!r}: "
            f"{listed(map(repr, seen))}. Fit it with --split {split.name}, or predict without --split."
        )


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
