"""``raxss check PATH... [--json]``: inspect recordings before they are decoded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from raxss.cli.common import described, printable

if TYPE_CHECKING:
    from raxss.data.problems import Inspection


@described(
    paths=typer.Argument(help="Recordings, BIDS datasets, or folders of recordings.", show_default=False),
    as_json=typer.Option("--json", help="Print a list of {path, verdict, problems: [{code, message}]}."),
    signals=typer.Option(help="Inspect the signals as well, not only headers and file sizes."),
)
def check(paths: list[Path], as_json: bool = False, signals: bool = True) -> None:
    """Inspect recordings for damage and inconsistencies before they are decoded.

    Verdicts are ok, warning (it can be read, and you should know) and refused. Exit code 1 if any is refused.
    """
    from raxss.data.inspection.front import iter_paths

    inspections = []
    for inspection in iter_paths(paths, signals=signals):
        inspections.append(inspection)
        if not as_json:
            print("\n".join(lines_of(inspection)), flush=True)
    if as_json:
        print(json.dumps([item.as_json() for item in inspections], indent=2))
    if notes := [note for item in inspections for note in item.notes]:
        more = f" (and {len(notes) - 1} more recordings)" if len(notes) > 1 else ""
        typer.echo(f"raxss: {_in_one_line(notes[0])}{more}", err=True)
    if any(item.verdict == "refused" for item in inspections):
        raise typer.Exit(1)


def lines_of(inspection: Inspection) -> list[str]:
    """As a person reads it: the verdict and the file, then one line per problem.

    >>> from raxss.data.inspection import Inspection, Problem
    >>> flat = Problem("flat", "'night.edf' has a channel 'C3' that is flat")
    >>> print("\\n".join(lines_of(Inspection("night.edf", (flat,)))))
    warning  night.edf
        flat: 'night.edf' has a channel 'C3' that is flat
    """
    return [
        f"{inspection.verdict:<8} {_in_one_line(inspection.path)}",
        *(f"    {problem.code}: {_in_one_line(problem.message)}" for problem in inspection.problems),
    ]


def _in_one_line(text: str) -> str:
    return printable(text).replace("\n", "?")
