"""``raxss explain MODEL INPUT... --out FOLDER``, or ``--out REPORT.html``"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raxss.cli.predict import Bank, BankSize, Device, Inputs, Model, Overwrite, opened_model, series_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from raxss.evidence import SeriesEvidence
    from raxss.recordings.series import Series, SeriesCollection


class Format(StrEnum):
    """What can be written: the report of each recording, the others for each of its series."""

    REPORT = "report"

    JSON = "json"
    PARQUET = "parquet"
    FIGURES = "figures"


Out = Annotated[
    Path,
    typer.Option(
        "--out",
        help="Folder to write, with one folder a recording in it; or a name that ends in .html, for the report of "
        "one recording alone.",
    ),
]
Top = Annotated[int, typer.Option(help="Keep the neighbour lists of so many windows; 0 keeps all.")]
Formats = Annotated[
    list[Format] | None, typer.Option("--format", help="Write only this; may be given more than once.")
]
Positive = Annotated[
    str | None,
    typer.Option(
        help="Class by whose probability the report ranks channels when it opens; the one with the fewest training "
        "series otherwise."
    ),
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
    out: Out,
    device: Device = "auto",
    top: Top = 50,
    formats: Formats = None,
    positive: Positive = None,
    one_table: OneTable = False,
    bank: Bank = None,
    bank_size: BankSize = None,
    overwrite: Overwrite = False,
) -> None:
    """Show why: a report of each recording that opens in a browser, offline; JSON, Parquet and figures."""
    if one_table and formats:
        raise typer.BadParameter("--one-table writes Parquet tables; leave --format out")
    alone = out.suffix.lower() == ".html"
    if alone and (one_table or formats):
        raise typer.BadParameter(
            "--out that ends in .html is the report alone; leave --one-table and --format out"
        )
    from raxss.evidence import report_of, safe_name, write_tables
    from raxss.model_folder import describe_model
    from raxss.storage import check_writable, refuse_existing, whole_folder

    refuse_existing(out, overwrite=overwrite)
    check_writable(out)
    classifier = opened_model(model, device, bank, bank_size)
    recordings = by_recording(series_for(classifier, inputs))
    class_ = named_class(classifier.classes_, positive)
    if alone:
        refuse_several(list(recordings), out)
        ((name, series),) = recordings.items()
        report = classifier.report(series, name=name, positive=class_)
        report.save(out, overwrite=overwrite)
        print(f"The report of {len(series)} series is {out}: open it in any browser, no network is needed")
        return
    series = [one for some in recordings.values() for one in some]
    evidence = classifier.explain_each(series)
    if one_table:
        write_tables(evidence, out, top=top or None, overwrite=overwrite)
        print(
            f"The evidence for {len(series)} series is in {out}: summary.parquet first, then windows.parquet"
        )
        return
    wanted = set(formats or Format)
    facts = describe_model(classifier)
    with whole_folder(out, overwrite=overwrite) as folder:
        for name, some in recordings.items():
            place = folder / safe_name(some[0].name if len(some) == 1 else name)
            each = saved(islice(evidence, len(some)), place if len(some) > 1 else folder, top, wanted)
            if Format.REPORT in wanted:
                report_of(each, name=name, model=facts, positive=class_).save(place / "report.html")
            else:
                deque(each, maxlen=0)
    print(f"The evidence for {len(series)} series is in {out}: {first_look(wanted)}")


def by_recording(series: SeriesCollection) -> dict[str, list[Series]]:
    """Series of one recording together, in the order in which recordings first appear."""
    from raxss.evidence.report import recording_of

    found: dict[str, list[Series]] = {}
    for one in series:
        found.setdefault(recording_of(one), []).append(one)
    return found


def saved(
    evidence: Iterator[SeriesEvidence], folder: Path, top: int, wanted: set[Format]
) -> Iterator[SeriesEvidence]:
    """Write what is wanted of each series as it passes."""
    formats = [one.value for one in wanted if one is not Format.REPORT]
    for one in evidence:
        if formats:
            one.save(folder, top=top or None, formats=formats)
        yield one
        del one  # or it would be held while the next is computed


def named_class(classes: NDArray[Any], name: str | None) -> Any:
    """The class that reads like this, which the command line knows as text alone."""
    from raxss.errors import ConfigError, nearest

    if name is None:
        return None
    known = {str(one): one for one in classes.tolist()}
    if name not in known:
        raise ConfigError(f"--positive {name!r} is not a class of this model{nearest(name, known)}")
    return known[name]


def refuse_several(names: list[str], out: Path) -> None:
    """One file is about one recording."""
    from raxss.errors import DataError, listed

    if len(names) > 1:
        raise DataError(
            f"{out.name!r} takes the report of one recording, but {len(names)} were given: "
            f"{listed(map(repr, names))}. Give one, or a folder as --out."
        )


def first_look(wanted: set[Format]) -> str:
    """What to open first of all that was written."""
    if Format.REPORT in wanted:
        return "report.html first, in any browser; no network is needed"
    return "overlay.png first, then evidence.json" if Format.FIGURES in wanted else "evidence.json first"
