"""``raxss results DIR``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="With a folder of raxss table for each study.")]


def results(folder: Folder) -> None:
    """Write one page about all studies of a folder: DIR/README.md and its plots.

    It is made from the tables of the studies alone. What is written by hand goes into DIR/about.md, which the page
    begins with.
    """
    from raxss.benchmark.pages.overview import write_overview

    *plots, page = write_overview(folder)
    print(f"The page is {page}, with {len(plots)} plot{'' if len(plots) == 1 else 's'}.")
