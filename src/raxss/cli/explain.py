"""Command ``raxss explain``: reports and evidence of recordings, as files or BIDS derivatives.

raxss explain MODEL INPUT... --out FOLDER, or --out REPORT.html, or --bids-derivatives ROOT
"""

from __future__ import annotations

import warnings
from collections import deque
from contextlib import ExitStack
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from raxss._core.atomic import check_writable, reserved_output
from raxss.cli.common import counted, described, printable, refuse_if
from raxss.cli.predict import GAP_HELP, number_of_gap, series_for, tell_seen
from raxss.errors import DataError, RAxSSWarning, display_name, join_names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from raxss.data.series import Series
    from raxss.estimator.classifier import RAxSSClassifier
    from raxss.explain.series_evidence import SeriesEvidence

    Batch = dict[str, list[Series]]  # recordings whose series are in memory at once


class OutputFormat(StrEnum):
    """What can be written: the report of each recording, the others for each of its series."""

    REPORT = "report"
    JSON = "json"
    PARQUET = "parquet"
    FIGURES = "figures"


@described(
    out="Output folder, with one subfolder per recording; or a file name ending in .html, for only the report of "
    "one recording.",
    top=typer.Option(min=0, help="Number of windows whose neighbour lists are kept; 0 keeps all."),
    formats=typer.Option("--format", help="Output format; may be given more than once. Default: all."),
    gap=GAP_HELP,
    positive="Class by whose probability channels are ranked. Default: the class with the fewest training series. "
    "The report page can rank by any class.",
    one_table="Write all series into one windows.parquet, neighbors.parquet and summary.parquet, with a column "
    "'series': for recordings of many channels.",
    bids_derivatives="Write channels.tsv (probability, rank), events.tsv (strongest windows) and their sidecars "
    "into this BIDS derivative dataset, such as BIDS/derivatives/raxss. For BIDS roots and recordings inside them.",
)
def explain(
    model: Path,
    inputs: list[Path],
    out: Path | None = None,
    device: str = "auto",
    top: int = 50,
    formats: list[OutputFormat] | None = None,
    positive: str | None = None,
    one_table: bool = False,
    bids_derivatives: Path | None = None,
    faithfulness: Path | None = None,
    bank: str | None = None,
    bank_size: int | None = None,
    rate: float | None = None,
    resample: bool = False,
    gap: str | None = None,
    overwrite: bool = False,
) -> None:
    """Explain predictions: an offline HTML report per recording, and JSON, Parquet, figures or BIDS derivatives."""
    alone = out is not None and out.suffix.lower() == ".html"
    refuse_if(one_table and formats, "--one-table writes Parquet tables; leave --format out")
    refuse_if(
        alone and (one_table or formats),
        "--out that ends in .html is the report alone; leave --one-table and --format out",
    )
    refuse_if(
        out is None and bids_derivatives is None,
        "say where to write: --out FOLDER or REPORT.html, --bids-derivatives ROOT, or both",
    )
    refuse_if(
        out is None and (formats or one_table),
        "--format and --one-table are about what is written to --out; give one",
    )

    with ExitStack() as locks:
        if out is not None:
            locks.enter_context(reserved_output(out, overwrite=overwrite))
        from raxss.estimator.batch import open_model, refuse_unused_rate
        from raxss.estimator.persistence import describe_model
        from raxss.explain.export.derivatives import find_source, open_derivatives
        from raxss.explain.export.tables import write_tables
        from raxss.explain.export.writing import write_recordings, write_report
        from raxss.explain.findings import class_of, model_facts, watched

        classifier = open_model(model, device, bank, bank_size, verbose=1)
        about = model_facts(describe_model(classifier))
        class_ = None if positive is None else class_of(classifier.classes_.tolist(), positive)
        derivatives = None
        if bids_derivatives is None:
            batches = batches_of(classifier, inputs, rate, resample, gap)
        else:
            source, names = find_source(inputs)
            derivatives = open_derivatives(
                bids_derivatives,
                source,
                recordings=names,
                overwrite=overwrite,
                model=about,
                classes=about["classes"],
                class_=class_,
            )
            check_writable(bids_derivatives)
            wanted = list(derivatives.runs) if out is not None else derivatives.missing()
            if not wanted:
                count = counted(len(derivatives.runs), "recording")
                print(printable(f"Nothing to do: {bids_derivatives} has {count} already, by this model."))
                return
            refuse_unused_rate(rate, [])
            locks.enter_context(derivatives.locked(wanted))
            batches = batches_of_tree(classifier, derivatives.tree.root, wanted, resample=resample, gap=gap)

        if faithfulness is not None and out is not None:
            about = with_verdict(about, faithfulness, out.parent if alone else out / "recording")
        recordings: Iterator[tuple[str, list[Series]]] = iter(())
        if out is not None and not one_table:  # without a writer that takes names, all batches would be kept
            recordings, batches = named_first(batches)
        states: list[str] = []  # of each series: whether the model was fitted on it
        evidence = noted(chain.from_iterable(map(classifier.explain_each, map(flat, batches))), states)
        when_done = None if derivatives is None else derivatives.write
        common: dict[str, Any] = {"model": about, "positive": class_, "when_done": when_done}
        line = "The evidence for {} series is in {}: summary.parquet first, then windows.parquet"
        if out is None:
            deque(watched(evidence, when_done, class_=class_, model=about), maxlen=0)
        elif one_table:
            rows = watched(evidence, when_done, class_=class_, model=about)
            write_tables(rows, out, top=top or None, overwrite=overwrite)
        elif alone:
            name = only_recording(recordings, out)
            write_report(evidence, out, name=name, overwrite=overwrite, **common)
            line = "The report of {} series is {}: open it in any browser, no network is needed"
        else:
            chosen = {item.value for item in formats or OutputFormat}
            common |= {"formats": chosen, "top": top or None}
            write_recordings(evidence, recordings, out, overwrite=overwrite, **common)
            line = f"The evidence for {{}} series is in {{}}: {first_look(chosen)}"
        if out is not None:
            print(printable(line.format(len(states), out)))
        if derivatives is not None:
            there = [name for name in derivatives.runs if derivatives.is_there(name)]
            missing = len(derivatives.runs) - len(there)
            left_out = f"; {missing} could not be read, as told above" if missing else ""
            count = counted(len(there), "recording")
            print(printable(f"The derivatives of {count} are in {bids_derivatives}{left_out}"))
        tell_seen(states)


def with_verdict(about: dict[str, Any], folder: Path, beside: Path) -> dict[str, Any]:
    """Facts of the model, with the verdict on its faithfulness; reports lie in ``beside``."""
    from raxss.explain.faithfulness.verdict import verdict_for_report

    found = verdict_for_report(folder, weights_sha256=str(about["weights_sha256"]), beside=beside)
    return about | {"faithfulness": found}


def only_recording(recordings: Iterator[tuple[str, Any]], out: Path) -> str:
    """One file is about one recording."""
    names = [name for name, _ in islice(recordings, 2)]
    if len(names) > 1:
        raise DataError(
            f"{out.name!r} takes the report of one recording, but more were given: {join_names(map(repr, names))}. "
            "Give one, or a folder as --out."
        )
    return names[0]


def batches_of(
    classifier: RAxSSClassifier, inputs: list[Path], rate: float | None, resample: bool, gap: str | None
) -> Iterator[Batch]:
    """Recordings with their series: of a BIDS tree one at a time, of files all at once."""
    from raxss.data.bids import is_bids_root
    from raxss.data.prepare.folder import is_prepared
    from raxss.estimator.batch import refuse_unused_rate
    from raxss.explain.findings import by_recording

    roots = [path for path in inputs if is_bids_root(path) and not is_prepared(path)]
    others = [path for path in inputs if path not in roots]
    refuse_unused_rate(rate, others)
    for root in roots:
        yield from batches_of_tree(classifier, root, resample=resample, gap=gap)
    if others:
        yield by_recording(series_for(classifier, others, rate=rate, resample=resample, gap=gap))


def batches_of_tree(
    classifier: RAxSSClassifier,
    root: Path,
    wanted: list[str] | None = None,
    *,
    resample: bool = False,
    gap: str | None = None,
) -> Iterator[Batch]:
    """The good channels of a tree's recordings, by its own tables, prepared as the training data were.

    A recording that the model cannot take is left out with a warning, unless it is the only one.
    """
    from raxss.data.bids import plan_to_read
    from raxss.estimator.batch import FromPlan

    preparation = classifier.preparation_of_model(resample=resample, gap=number_of_gap(gap))
    plan = plan_to_read(root, only_labelled=False, recordings=wanted)
    n_left_out = 0
    for recording in plan.recordings:
        try:
            series = FromPlan(recording, plan.group_by).read(preparation)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they come when it is explained
                classifier.known_series(series)
        except DataError as error:
            n_left_out += 1
            if n_left_out == len(plan.recordings):
                raise
            warnings.warn(
                f"recording {display_name(recording.name)} is left out: {error}", RAxSSWarning, stacklevel=2
            )
            continue
        yield {recording.name: series}


def named_first(batches: Iterator[Batch]) -> tuple[Iterator[tuple[str, list[Series]]], Iterator[Batch]]:
    """The recordings of each batch, and then the batch, which is kept in between (`itertools.tee` keeps dozens)."""
    waiting: deque[Batch] = deque()

    def recordings() -> Iterator[tuple[str, list[Series]]]:
        for batch in batches:
            waiting.append(batch)
            yield from batch.items()

    def later() -> Iterator[Batch]:
        while waiting:
            yield waiting.popleft()

    return recordings(), later()


def flat(batch: Batch) -> list[Series]:
    """All series of a batch; a function, because a comprehension would hold the batch while the next is read."""
    return [series for some in batch.values() for series in some]


def noted(evidence: Iterable[SeriesEvidence], states: list[str]) -> Iterator[SeriesEvidence]:
    """Pass evidence on, and note of each series whether the model was fitted on it."""
    for item in evidence:
        states.append(item.seen_in_training)
        yield item
        del item  # or it would be held while the next is computed


def first_look(chosen: Collection[str]) -> str:
    """What to open first of all that was written."""
    if "report" in chosen:
        return "report.html first, in any browser; no network is needed"
    return "overlay.png first, then evidence.json" if "figures" in chosen else "evidence.json first"
