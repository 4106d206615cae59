"""``raxss audit-split DATA --split split.json [--model MODEL] [--json]``: test a split for leakage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from raxss._core.bounded import read_text
from raxss.cli.common import described, printable
from raxss.cli.split import SPLITTING, make_splits, title_of
from raxss.errors import DataError, RecordingError

MAX_NAMES_BYTES = 2**24

if TYPE_CHECKING:
    from raxss.data.leakage import Audit
    from raxss.data.series import SeriesCollection
    from raxss.data.splits import Split


@described(
    **SPLITTING,
    split="Split file or folder written by raxss split. By default the split is drawn here.",
    model=typer.Option(help="Model whose scaling and counts are compared with the split."),
    training_names="Text file with one series name per line: series that a model has been trained on.",
    as_json=typer.Option(
        "--json", help="Print {clean, findings: [{code, severity, message, split}], splits}."
    ),
)
def audit_split(
    data: str,
    split: Path | None = None,
    by: str | None = None,
    seed: int = 69421,
    fractions: str = "0.7,0.1,0.2",
    folds: int | None = None,
    leave_out: str | None = None,
    balance: str = "none",
    model: Path | None = None,
    training_names: Path | None = None,
    root: Path | None = None,
    as_json: bool = False,
) -> None:
    """Check a split for leakage between training, validation and test set.

    Looks for shared patients, pairs, recordings and electrodes, copied and resampled signals, balancing before the
    split, and statistics fitted across it. Exit code 0 if every split is clean, 1 if there is a leak.
    """
    from raxss.cli.fit import read_data
    from raxss.data.leakage import audit_split as audit
    from raxss.data.leakage import read_fitted

    series = read_data(data, root)
    scaling, digests = read_fitted(model) if model is not None else (None, None)
    names = None if training_names is None else read_names(training_names)
    if split is None:
        splits = make_splits(series, by, seed, fractions, folds, leave_out, balance)
    else:
        splits = read_splits(split, series)
    audits = [
        audit(series, entry, statistics=scaling, training_names=names, training_digests=digests)
        for entry in splits
    ]
    titles, clean = list(map(title_of, splits)), all(item.clean for item in audits)
    if as_json:
        both = [(title, item.as_json()) for title, item in zip(titles, audits, strict=True)]
        findings = [{**found, "split": title} for title, entry in both for found in entry["findings"]]
        checked = [
            {"split": title} | {name: entry[name] for name in ("clean", "checked")} for title, entry in both
        ]
        print(json.dumps({"clean": clean, "findings": findings, "splits": checked}, indent=2))
    else:
        for title, item in zip(titles, audits, strict=True):
            print(printable(f"split: {title}\n{table_of(item)}\n"))
    if not clean:
        raise typer.Exit(1)


def read_splits(path: Path, series: SeriesCollection) -> list[Split]:
    """One split from a file, or all from a folder."""
    from raxss.data.splits import Split

    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise RecordingError(f"the folder {path.name!r} has no .json file; give what `raxss split` wrote.")
    return [Split.read(file, series.names) for file in files]


def read_names(path: Path) -> list[str]:
    """The lines of a text file."""
    try:
        text = read_text(path, f"the file {path.name!r}", MAX_NAMES_BYTES, why="it holds names, one a line")
        return [line.strip() for line in text.splitlines() if line.strip()]
    except (OSError, DataError) as error:
        reason = type(error).__name__ if isinstance(error, OSError) else str(error)
        raise RecordingError(
            f"the names in {path.name!r} cannot be read ({reason}); needed is text, one a line."
        ) from error


def table_of(audit: Audit) -> str:
    """The checks with their counts, then the findings."""
    width = max(len(what) for what, _ in audit.checked)
    lines = [f"  {what:<{width}}  {of}" for what, of in audit.checked]
    lines += [f"{finding.severity}: {finding.code}: {finding.message}" for finding in audit.findings]
    return "\n".join([*lines, "clean" if audit.clean else "NOT clean"])
