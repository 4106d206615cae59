"""``raxss explain MODEL INPUT... --out FOLDER --pdf --bids-derivatives ROOT``"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raxss.cli.predict import Bank, BankSize, Device, Inputs, Model, Overwrite, opened_model, series_for

if TYPE_CHECKING:
    from raxss.estimator import RAxSSClassifier
    from raxss.evidence import SeriesEvidence
    from raxss.evidence.derivatives import Derivatives
    from raxss.evidence.findings import RecordingFindings
    from raxss.recordings.series import SeriesCollection


class Format(StrEnum):
    """What can be written for each series."""

    JSON = "json"
    PARQUET = "parquet"
    FIGURES = "figures"


OutFolder = Annotated[
    Path | None, typer.Option("--out", help="Folder to write, with one folder a series in it.")
]
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
Pdf = Annotated[
    bool,
    typer.Option(
        "--pdf", help="Also write one PDF a recording into --out: A4 pages, to be printed and read."
    ),
]
DerivativesRoot = Annotated[
    Path | None,
    typer.Option(
        "--bids-derivatives",
        help="Write channels.tsv (probability, rank), events.tsv (strongest windows) and their sidecars into this "
        "BIDS derivative dataset, such as BIDS/derivatives/raxss. For BIDS roots and recordings inside them.",
    ),
]
RankBy = Annotated[
    str | None,
    typer.Option(
        help="The class whose probability ranks channels in --pdf and --bids-derivatives; the last one otherwise."
    ),
]


def explain(
    model: Model,
    inputs: Inputs,
    out: OutFolder = None,
    device: Device = "auto",
    top: Top = 50,
    formats: Formats = None,
    one_table: OneTable = False,
    pdf: Pdf = False,
    bids_derivatives: DerivativesRoot = None,
    rank_by: RankBy = None,
    bank: Bank = None,
    bank_size: BankSize = None,
    overwrite: Overwrite = False,
) -> None:
    """Show why: windows, weights and neighbours of each recording as JSON, Parquet and figures."""
    if one_table and (formats or pdf):
        raise typer.BadParameter("--one-table writes Parquet tables; leave --format and --pdf out")
    if out is None and bids_derivatives is None:
        raise typer.BadParameter("say where to write: --out FOLDER, --bids-derivatives ROOT, or both")
    if pdf and out is None:
        raise typer.BadParameter("--pdf writes into the folder --out; give one")
    from raxss.model_folder import told_of_model
    from raxss.storage import check_writable, refuse_existing

    if out is not None:
        refuse_existing(out, overwrite=overwrite)
        check_writable(out)
    classifier = opened_model(model, device, bank, bank_size)
    about = told_of_model(model) | {"config_hash": classifier.current_config.hash}
    derivatives = None
    if bids_derivatives is None:
        series = series_for(classifier, inputs)
    else:
        derivatives = opened_derivatives(bids_derivatives, inputs, classifier, about, rank_by, overwrite)
        wanted = list(derivatives.runs) if out is not None else derivatives.missing()
        if not wanted:
            print(f"All {len(derivatives.runs)} recordings are in {bids_derivatives} already, by this model.")
            return
        series = series_of_runs(classifier, derivatives, wanted)

    tell: list[Callable[[RecordingFindings], None]] = [] if derivatives is None else [derivatives.write]
    if out is not None:
        write_out(classifier, series, out, about, tell, top, formats, one_table, pdf, rank_by, overwrite)
    else:
        for one in passed_on(classifier, series, tell, rank_by):
            del one  # or it would be held while the next is computed
    if derivatives is not None:
        n_there = sum(map(derivatives.is_there, derivatives.runs))
        missing = len(derivatives.runs) - n_there
        left_out = f"; {missing} could not be read, as told above" if missing else ""
        print(f"The derivatives of {n_there} recordings are in {bids_derivatives}{left_out}")


def write_out(
    classifier: RAxSSClassifier,
    series: SeriesCollection,
    out: Path,
    about: dict[str, Any],
    tell: list[Callable[[RecordingFindings], None]],
    top: int,
    formats: list[Format] | None,
    one_table: bool,
    pdf: bool,
    rank_by: str | None,
    overwrite: bool,
) -> None:
    """The folder, and whatever else is told of each recording on the way."""
    from raxss.evidence import safe_name, write_tables
    from raxss.evidence.trail import FORMATS
    from raxss.storage import whole_folder

    if one_table:
        evidence = passed_on(classifier, series, tell, rank_by)
        write_tables(evidence, out, top=top or None, overwrite=overwrite)
        print(
            f"The evidence for {len(series)} series is in {out}: summary.parquet first, then windows.parquet"
        )
        return
    wanted = tuple(formats or FORMATS)
    with whole_folder(out, overwrite=overwrite) as folder:
        if pdf:
            from raxss.evidence.printed import N_CHANNELS, write_pdf

            tell = [*tell, lambda one: write_pdf(one, folder / f"{safe_name(one.name)}.pdf", model=about)]
        for one in passed_on(classifier, series, tell, rank_by, N_CHANNELS if pdf else 0):
            one.save(folder, top=top or None, formats=wanted)
            del one  # or it would be held while the next is computed
    first = "overlay.png first, then evidence.json" if Format.FIGURES in wanted else "evidence.json first"
    print(f"The evidence for {len(series)} series is in {out}: {first}")


def passed_on(
    classifier: RAxSSClassifier,
    series: SeriesCollection,
    tell: list[Callable[[RecordingFindings], None]],
    rank_by: str | None,
    n_best: int = 0,
) -> Iterator[SeriesEvidence]:
    """The evidence of each series, and at the end of each recording what is to be told of it."""
    from raxss.evidence.findings import watched

    if not tell:
        return classifier.explain_each(series)

    def tell_all(findings: RecordingFindings) -> None:
        for one in tell:
            one(findings)

    together = by_recording(series)
    return watched(classifier.explain_each(together), tell_all, class_=rank_by, n_best=n_best)


def by_recording(series: SeriesCollection) -> SeriesCollection:
    """The series of one recording one after the other, recordings in the order of their first."""
    from raxss.recordings.series import SeriesCollection

    names = [one.origin.get("recording", one.name) for one in series]
    first = {name: place for place, name in reversed(list(enumerate(names)))}
    order = sorted(range(len(series)), key=lambda place: first[names[place]])
    return SeriesCollection(series[place] for place in order)


def opened_derivatives(
    root: Path,
    inputs: list[Path],
    classifier: RAxSSClassifier,
    about: dict[str, Any],
    rank_by: str | None,
    overwrite: bool,
) -> Derivatives:
    """The derivative dataset of the tree that the inputs are of, or an error before any work is done."""
    from raxss.evidence.derivatives import find_source, open_derivatives
    from raxss.storage import check_writable

    source, recordings = find_source(inputs)
    opened = open_derivatives(
        root,
        source,
        model=about,
        classes=classifier.classes_.tolist(),
        recordings=recordings,
        class_=rank_by,
        overwrite=overwrite,
    )
    check_writable(root)
    return opened


def series_of_runs(
    classifier: RAxSSClassifier, derivatives: Derivatives, wanted: list[str]
) -> SeriesCollection:
    """The good channels of these recordings, by the tree's own tables, prepared as the training data were."""
    from raxss.preparation import Preparation
    from raxss.recordings.bids import read_bids
    from raxss.recordings.series import SeriesCollection

    prepare = Preparation.parse(classifier.preparation_).apply
    found = read_bids(derivatives.tree.root, only_labelled=False, recordings=wanted)
    return SeriesCollection(map(prepare, found))
