"""``raxss results DIR``: overview page of all studies."""

from __future__ import annotations

from pathlib import Path

import typer

from raxss.cli.common import counted, described


@described(
    folder=typer.Argument(
        metavar="DIR", help="Folder with one subfolder per study, each written by raxss table."
    )
)
def results(folder: Path) -> None:
    """Write one overview page of all studies in a folder: DIR/README.md and its plots.

    The page is generated from the tables of the studies. It begins with DIR/about.md, which is written by hand.
    """
    from raxss.benchmark.pages.overview import write_overview

    *plots, page = write_overview(folder)
    print(f"The page is {page}, with {counted(len(plots), 'plot')}.")
