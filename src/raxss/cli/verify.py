"""``raxss verify REPORT MODEL RECORDING``: compare a report with a new computation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from raxss.cli.common import described, printable
from raxss.cli.explain import batches_of_tree, with_verdict
from raxss.cli.predict import GAP_HELP, series_for
from raxss.errors import DataError, ModelError, display_name, join_names

if TYPE_CHECKING:
    from raxss.data.series import Series
    from raxss.estimator.classifier import RAxSSClassifier
    from raxss.explain.export.report.page import Report

N_PRINTED = 20  # differences


@described(
    gap=GAP_HELP,
    report=typer.Argument(metavar="REPORT", help="Report written by raxss explain: report.html."),
    recording=typer.Argument(
        metavar="RECORDING",
        help="What the report is of, as raxss explain was given it: a recording, or a BIDS root, manifest or "
        "prepared folder that has it.",
    ),
    positive="The same option as given to raxss explain.",
)
def verify(
    report: Path,
    model: Path,
    recording: Path,
    device: str = "auto",
    positive: str | None = None,
    faithfulness: Path | None = None,
    bank: str | None = None,
    bank_size: int | None = None,
    rate: float | None = None,
    resample: bool = False,
    gap: str | None = None,
) -> None:
    """Recompute a report from model and recording, and compare.

    Exit code 1 if anything differs: a number by more than 1e-6, a signal by more than one quantisation step, any
    text or any byte of the page.
    """
    from raxss.estimator.batch import open_model
    from raxss.estimator.persistence import describe_model
    from raxss.explain.export.report import report_of
    from raxss.explain.export.report.page import Report
    from raxss.explain.export.report.verifying import verify_report
    from raxss.explain.findings import class_of

    found = Report.read(report)
    classifier = open_model(model, device, bank, bank_size, verbose=1)
    about = describe_model(classifier)
    refuse_other_model(found, about, report.name, model.name)
    stated = found.contents.get("recording")
    recordings = recordings_in(recording, classifier, stated, rate=rate, resample=resample, gap=gap)
    name = recording_meant(found, recordings, report.name)
    class_ = None if positive is None else class_of(classifier.classes_.tolist(), positive)
    if faithfulness is not None:
        about = with_verdict(about, faithfulness, report.parent)
    again = report_of(classifier.explain_each(recordings[name]), name=name, model=about, positive=class_)
    result = verify_report(found, again)
    n_differences, n_values = len(result.differences), f"{result.n_values:,} values"
    if result.holds:
        print(printable(f"{report.name} says what {model.name} says of {name}: {n_values} are the same"))
        return
    for difference in result.differences[:N_PRINTED]:
        print(printable(difference))
    if n_differences > N_PRINTED:
        print(f"and {n_differences - N_PRINTED:,} more")
    verdict = f"{report.name} does not say what {model.name} says of {name}"
    print(printable(f"{verdict}: {n_differences:,} of {n_values} differ"))
    raise typer.Exit(1)


def refuse_other_model(report: Report, facts: Mapping[str, Any], name: str, model: str) -> None:
    """Raise if the report states other weights or settings than the model has."""
    stated = report.contents.get("model")
    for fact, what in (("weights_sha256", "weights"), ("config_hash", "settings")):
        value = stated.get(fact) if isinstance(stated, dict) else None
        if value != facts[fact]:
            raise ModelError(
                f"report {display_name(name)} says that it was made with {what} {display_name(str(value))}, but "
                f"model {display_name(model)} has {display_name(facts[fact])}. Give the model it was made with, "
                "and --bank as it was given then; or the report was changed."
            )


def recordings_in(
    path: Path,
    classifier: RAxSSClassifier,
    stated: Any,
    *,
    rate: float | None = None,
    resample: bool = False,
    gap: str | None = None,
) -> dict[str, list[Series]]:
    """Series by recording; of a BIDS tree, and of a file in one, only the run that the report names.

    A file in a tree may have been explained by itself, or, where derivatives were written, by the tree's tables:
    the name in the report decides.
    """
    from raxss.explain.export.derivatives import run_in_tree
    from raxss.explain.findings import by_recording

    if (root := run_in_tree(path, stated)) is None:
        return by_recording(series_for(classifier, [path], rate=rate, resample=resample, gap=gap))
    return next(batches_of_tree(classifier, root, [stated], resample=resample, gap=gap))


def recording_meant(report: Report, recordings: Iterable[str], name: str) -> str:
    """The recording that the report is of, among those that were found."""
    from raxss.explain.export.report.contents import title_of

    stated, names = report.contents.get("recording"), list(recordings)
    meant = [item for item in names if title_of(item) == stated]
    if len(meant) != 1:
        raise DataError(
            f"report {display_name(name)} says that it is of recording {display_name(str(stated))}; "
            f"{len(meant) or 'none'} of what was given is called so: {join_names(map(display_name, names), 5)}. "
            "Give the one it was made of; or the report was changed."
        )
    return meant[0]
