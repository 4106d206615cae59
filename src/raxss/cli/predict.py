"""``raxss predict MODEL INPUT... --out FILE.csv``: score recordings."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from raxss._core.atomic import reserved_output, whole_file, without_formula
from raxss.cli.common import counted, described, printable, refuse_if
from raxss.errors import ConfigError, DataError, OutputError, display_name, join_names

if TYPE_CHECKING:
    import pandas as pd

    from raxss._core.jobs.outcome import Failure
    from raxss.data.series import Series, SeriesCollection
    from raxss.estimator.classifier import RAxSSClassifier


GAP_HELP = (
    "Value of missing samples in the files, such as -999; nan: samples that are NaN. Not needed where the model "
    "was fitted with it."
)


@described(
    out="Output table: .csv or .parquet.",
    gap=GAP_HELP,
    engine="Predict recordings in parallel and resume an interrupted run: local (processes on this machine) or ray "
    "(a cluster; needs the extra 'cluster').",
    workers=typer.Option(
        min=1, help="With --engine: number of parallel workers. Default: the number of cores."
    ),
    threads=typer.Option(
        min=1,
        help="With --engine: threads per worker. Default: as many as without --engine, so that results are "
        "identical to the last digit.",
    ),
    address="With --engine ray: auto, host:port or ray://host:port of a cluster whose nodes see model, recordings "
    "and --out under the same paths. Default: start Ray on this machine.",
)
def predict(
    model: Path,
    inputs: list[Path],
    out: Path,
    device: str = "auto",
    split: Path | None = None,
    bank: str | None = None,
    bank_size: int | None = None,
    rate: float | None = None,
    resample: bool = False,
    gap: str | None = None,
    engine: str | None = None,
    workers: int | None = None,
    threads: int | None = None,
    address: str | None = None,
    overwrite: bool = False,
) -> None:
    """Predict class probabilities and their uncertainty, one row per series.

    Columns: seen_in_training (whether the model was fitted on the series, recognised by its content: training,
    validation, in part, no or unknown), low_, high_ and interval (confidence interval of the probability, and its
    method), in_set_ and abstains (prediction set; a set of several classes or none means that the model abstains),
    uncalibrated_ (the weighted sum of window probabilities, where scores of series are calibrated), threshold_ or
    factor_ (where predicted is by a tuned decision threshold: the probability of that class from which on it is
    predicted, or for more than two classes the factor of each probability), seconds (empty without
    a sampling rate), warnings (out-of-distribution recordings, resampling).
    """
    cluster = any(item is not None for item in (workers, threads, address))
    refuse_if(engine is None and cluster, "--workers, --threads and --address need --engine")
    if out.suffix not in (".csv", ".parquet"):
        raise OutputError(22, f"{out.name!r} must end in .csv or .parquet, so that its format is known")
    with reserved_output(out, overwrite=overwrite):
        from raxss.estimator.batch import open_model, predict_archive, prediction_rows, prediction_table

        classifier = open_model(model, device, bank, bank_size, verbose=1)
        if engine is None:
            series = series_for(classifier, inputs, split, rate=rate, resample=resample, gap=gap)
            table = prediction_table(classifier.classes_, prediction_rows(classifier, series))
            tell_decision(classifier)
            write_table(table, out, overwrite=overwrite)
            return
        parts = out.with_name(f"{out.name}.parts")
        only = None if split is None else names_of_test(classifier, inputs, split)
        table, failures = predict_archive(
            model, inputs, parts, engine=engine, n_workers=workers, n_threads=threads, address=address,
            device=device, bank=bank, bank_size=bank_size, only=only, rate=rate, resample=resample,
            gap=number_of_gap(gap),
        )  # fmt: skip
        tell_decision(classifier)
        if len(table):
            write_table(table, out, overwrite=overwrite)
    if failures:
        tell_failures(failures, out, n_rows=len(table))


def write_table(table: pd.DataFrame, out: Path, *, overwrite: bool) -> None:
    """Whole or not at all."""
    with whole_file(out, overwrite=overwrite) as temporary:
        if out.suffix == ".csv":
            table.map(without_formula).to_csv(temporary, index=False)
        else:
            table.to_parquet(temporary, engine="pyarrow", index=False)
    print(printable(f"{len(table)} predictions are in {out}"))
    tell_seen(table["seen_in_training"].tolist())


def tell_decision(model: RAxSSClassifier) -> None:
    """Print the rule of a tuned decision threshold, where the predicted class is not the most probable one."""
    decision = model.uncertainty_summary().decision
    if decision is not None:
        rule = decision.describe(model.classes_)
        print(printable(f"the predicted class is by a tuned threshold: {rule}; tuned on {decision.origin}"))


def tell_seen(states: list[str]) -> None:
    """Print how many series the model was fitted on, or that this is not known."""
    from raxss.data.training_overlap import NO, summary_of

    if any(state != NO for state in states):
        print(summary_of(states, "series"))


def tell_failures(failures: Mapping[str, Failure], out: Path, *, n_rows: int) -> None:
    """Print every recording that has no row, and raise at the end, so that scripts notice."""
    for name, failure in failures.items():
        message = f"recording {display_name(name)} was not predicted: {printable(str(failure))}"
        print(f"raxss: {message}", file=sys.stderr)
    missing = f"{counted(len(failures), 'recording')} could not be predicted, as told above"
    raise DataError(
        f"{missing}; {out.name!r} has the {n_rows} rows of the others. Run the command again with --overwrite: "
        "what is done is not computed anew."
        if n_rows
        else f"{missing}, and no other was given; {out.name!r} was not written."
    )


def names_of_test(model: RAxSSClassifier, inputs: list[Path], split: Path) -> set[str]:
    """The series of the test set, without reading any that is not prepared."""
    from raxss.data.prepare.folder import is_prepared

    for path in inputs:
        if not is_prepared(path):
            raise ConfigError(
                f"--split with --engine needs folders that raxss prepare made, and {display_name(path)} is none. "
                "Prepare it, or leave one of the two out."
            )
    return set(series_for(model, inputs, split).names)


def series_for(
    model: RAxSSClassifier,
    inputs: list[Path],
    split: Path | None = None,
    *,
    rate: float | None = None,
    resample: bool = False,
    gap: str | None = None,
) -> SeriesCollection:
    """The series of the inputs, prepared as the model's training data were.

    ``rate``: of files that do not state one; ``resample``: bring all to the rate of the training data; ``gap``:
    value of missing samples, besides that of the training data.
    """
    from raxss.data.bids import is_bids_root, read_bids
    from raxss.data.files import read_inputs
    from raxss.data.prepare.folder import is_prepared, read_prepared
    from raxss.data.series import SeriesCollection
    from raxss.data.splits import Split
    from raxss.estimator.batch import refuse_unused_rate

    wanted = model.preparation_of_model(resample=resample, gap=number_of_gap(gap))
    series: list[Series] = []
    files: list[Path] = []
    for path in inputs:
        if is_prepared(path):
            series += read_prepared(path, verify=True)
        elif is_bids_root(path):
            series += map(wanted.apply, read_bids(path, only_labelled=False))
        else:
            files.append(path)
    refuse_unused_rate(rate, files)
    if files or not inputs:
        series += map(wanted.apply, read_inputs(files, rate=rate))
    collection = SeriesCollection(series)
    if split is None:
        return collection
    test = Split.read(split, collection.names).parts(collection)[2]
    refuse_seen(model, test, split)
    return test


def number_of_gap(gap: str | None) -> float | None:
    """The option ``--gap`` as a number."""
    from raxss.data.prepare.preprocessing import gap_value

    return None if gap is None else gap_value(gap)


def training_states(model: RAxSSClassifier, series: SeriesCollection) -> list[str]:
    """Of each series, whether the model was fitted on it; prints where that is not known."""
    from raxss.data.training_overlap import UNKNOWN, TrainingRecord, summary_of

    states = list(map(TrainingRecord.of(model.training_data_).state, series))
    if UNKNOWN in states:
        print(summary_of(states, "series"))
    return states


def refuse_seen(model: RAxSSClassifier, test: SeriesCollection, split: Path) -> None:
    """Raise if the model has learned from series of the test set."""
    from raxss.data.training_overlap import SEEN

    states = training_states(model, test)
    if seen := [item.name for item, state in zip(test, states, strict=True) if state in SEEN]:
        raise DataError(
            f"the model has learned from {len(seen)} of {len(test)} series of the test set of {split.name!r}: "
            f"{join_names(map(repr, seen))}. Fit it with --split {split.name}, or predict without --split."
        )
