"""Command ``raxss datasets``: list, summarise and download named datasets.

raxss datasets, raxss datasets summary NAME, raxss datasets download ds003029 --root ROOT
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from raxss.cli.common import described
from raxss.errors import ConfigError, DataError, RAxSSError

if TYPE_CHECKING:
    from raxss.data.datasets.dataset import Dataset

app = typer.Typer(help="List, summarise and download the named datasets.")

AS_JSON = typer.Option("--json", help="Print JSON.")
NAME = typer.Argument(help="Name of a dataset, as listed by raxss datasets.")


@app.callback(invoke_without_command=True)
@described(as_json=AS_JSON)
def list_datasets(context: typer.Context, root: Path | None = None, as_json: bool = False) -> None:
    """List the named datasets: licence, size, citation, and what is on disk."""
    if context.invoked_subcommand is not None:
        return
    from raxss.data.datasets.registry import DATASETS

    facts = [_facts(item, root) for item in DATASETS.values()]
    if as_json:
        return print(json.dumps(facts, indent=2, ensure_ascii=False))
    width = max(len(fact["name"]) for fact in facts)
    for fact in facts:
        doi = f" doi:{fact['doi']}" if fact["doi"] else ""
        print(f"{fact['name']:<{width}}  {fact['on_disk']}; {fact['licence']}; {_megabytes(fact['size'])}")
        print(f"{'':<{width}}  {fact['about']}")
        print(f"{'':<{width}}  {fact['citation']}{doi}")
    if any(fact["state"] == "unknown" for fact in facts):
        print("\nWhat is on disk is not known: say where with --root or in the variable RAXSS_DATA.")


@app.command("summary")
@described(name=NAME, as_json=AS_JSON)
def summary(name: str = "ds003029", root: Path | None = None, as_json: bool = False) -> None:
    """Summarise a dataset; for ds003029, the table of the paper with one row per centre."""
    from raxss.data.datasets.plans import folder_of
    from raxss.data.datasets.registry import find_dataset

    dataset = find_dataset(name)
    text, facts = dataset.summary(folder_of(dataset, root))
    print(json.dumps(facts, indent=2, ensure_ascii=False) if as_json else text)


@app.command("download")
@described(
    name=NAME,
    base="Base URL of the files. Default: RAXSS_DATA_URL, or the public archive.",
    jobs=typer.Option(help="Number of parallel downloads.", min=1, max=64),
    only="A subject (sub-pt01) or a pattern of paths ('*.tsv'); may be given again for more. What concerns all "
    "subjects always comes along.",
    verify="Check files again that passed an earlier check.",
)
def download(
    name: str,
    root: Path | None = None,
    base: str | None = None,
    jobs: int = 4,
    only: list[str] | None = None,
    verify: bool = False,
) -> None:
    """Download a dataset from its public archive and check every file; interrupted downloads resume.

    The files go to ROOT/NAME. What is there and right is not fetched again.
    """
    from raxss._core.progress import progress_bar
    from raxss.data.datasets.dataset import choose
    from raxss.data.datasets.download import BASE_VARIABLE
    from raxss.data.datasets.download import download as fetch
    from raxss.data.datasets.plans import ROOT_VARIABLE, data_root, folder_of
    from raxss.data.datasets.registry import DATASETS, find_dataset

    dataset = find_dataset(name)
    if not dataset.base:
        others = ", ".join(item.name for item in DATASETS.values() if item.base)
        raise DataError(
            f"dataset {name!r} cannot be fetched by raxss; its source is {dataset.source} (licence: "
            f"{dataset.licence}). Only {others} can."
        )
    if data_root(root) is None:
        raise ConfigError(
            f"where dataset {name!r} goes is not known; give a folder with --root, or in the variable "
            f"{ROOT_VARIABLE}. The files are put into {dataset.folder!r} in it."
        )
    folder = folder_of(dataset, root)
    files = choose(dataset.listed(), only or [])
    n_bytes = sum(entry.size for entry in files)
    address = base or os.environ.get(BASE_VARIABLE) or dataset.base
    print(
        f"{len(files)} files, {_megabytes(n_bytes)}, {dataset.licence}. Please cite: {dataset.citation}",
        file=sys.stderr,
    )
    with progress_bar(unit="MB") as bar:
        task = bar.add_task(name, total=n_bytes / 1e6)
        options: dict[str, Any] = {"base": address, "jobs": jobs, "verify": verify}
        try:
            done = fetch(files, folder, on_bytes=lambda more: bar.advance(task, more / 1e6), **options)
        except KeyboardInterrupt:
            print("\nStopped. What was received is kept; the same command goes on.", file=sys.stderr)
            raise typer.Exit(130) from None
    print(
        f"{len(files)} files are there and right: {len(done.fetched)} fetched, {done.n_right} were there before."
    )
    if done.replaced:
        print(f"{len(done.replaced)} had other content and were replaced: {', '.join(done.replaced[:10])}")


def _facts(dataset: Dataset, root: Path | None) -> dict[str, Any]:
    from raxss.data.datasets.plans import on_disk

    named = ("name", "about", "licence", "size", "citation", "doi", "source")
    facts: dict[str, Any] = {name: getattr(dataset, name) for name in named}
    facts |= {"classes": list(dataset.labels), "group_by": dataset.group_by}
    try:
        found = on_disk(dataset, root)
    except RAxSSError as error:  # one damaged dataset must not hide the others
        return facts | {"state": "damaged", "on_disk": f"damaged ({error})", "n_present": 0, "n_wanted": 0}
    text = {"inside": "comes with raxss", "unknown": "on disk: not known"}.get(found.state, str(found))
    counts = {"n_present": found.n_present, "n_wanted": found.n_wanted}
    return facts | {"state": found.state, "on_disk": text} | counts


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.1f} MB"
