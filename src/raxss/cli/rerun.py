"""``raxss rerun DIR SYSTEM SEED``: fit a run of a study again and compare it with the committed result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from raxss.cli.common import described, printable

if TYPE_CHECKING:
    from raxss.benchmark.rerun import Rerun


@described(
    folder=typer.Argument(metavar="DIR", help="Folder written by raxss table."),
    system=typer.Argument(help="System, such as sss."),
    seed=typer.Argument(help="Seed, such as 69421."),
    dataset="Dataset, for studies with several. Default: all.",
    study="Study file to use instead of the copy in DIR.",
)
def rerun(
    folder: Path,
    system: str,
    seed: int,
    dataset: str | None = None,
    study: Path | None = None,
    root: Path | None = None,
    device: str = "auto",
) -> None:
    """Repeat one fit of a study and compare the result with the committed one.

    Exit code 1 where it is further off than seeds are from each other. DIR is only read. The extensions that a
    study names are Python files, which are run.
    """
    from raxss.benchmark.rerun import rerun as repeated

    found = repeated(folder, system, seed, dataset=dataset, study=study, root=root, device=device)
    for item in found:
        tell(item)
    if not all(item.holds for item in found):
        raise typer.Exit(1)


def tell(again: Rerun) -> None:
    """Both figures side by side, the verdict, and what differs."""
    print(printable(f"{again.dataset}, {again.system}, seed {again.seed}"))
    print(f"  {'':10}{'committed':>14}{'now':>14}")
    for name, (old, new) in again.figures.items():
        print(f"  {name:10}{old:14.10f}{new:14.10f}")
    print(f"  {again.verdict()}.")
    for name, (then, now) in again.elsewhere.items():
        print(printable(f"  {name}: {then} then, {now} now"))
    for name, (then, today) in again.settings.items():
        print(
            printable(f"  the study would set {name} = {today!r} today; this fit has the committed {then!r}")
        )
