"""``raxss table STUDY.toml --out DIR``"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from raxss.cli.options import Device, Root
from raxss.cli.terminal import printable

if TYPE_CHECKING:
    from raxss.benchmark.table import Outcome

StudyFile = Annotated[Path, typer.Argument(help="TOML file: datasets, splits, systems, seeds, budget.")]
Out = Annotated[Path, typer.Option("--out", help="Folder for results, table and plots.")]
Engine = Annotated[str, typer.Option(help="local (processes of this machine) or ray (a cluster).")]
Workers = Annotated[int, typer.Option(min=1, help="Fits at once.")]
Address = Annotated[str | None, typer.Option(help="Of a Ray cluster; without it one is started here.")]
Only = Annotated[str | None, typer.Option(help="Some of the study's systems: sss,gru.")]
Seeds = Annotated[str | None, typer.Option(help="Some of the study's seeds: 69421,69422.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the fits, and which are done; write nothing.")]


class StudyWork(NamedTuple):
    """Functions that run and list the fits of a study, and the paths of page and figures below the results."""

    run: Callable[..., Outcome]
    list_all: Callable[..., list[tuple[str, str]]]
    page: str = "README.md"
    figures: str = "results.csv"


def study_command(about: str, work: Callable[[], StudyWork]) -> Callable[..., None]:
    """A command with the options of all studies; ``work`` is called only when it runs, so that imports are late."""

    def command(
        study: StudyFile,
        out: Out,
        engine: Engine = "local",
        workers: Workers = 1,
        address: Address = None,
        device: Device = "auto",
        only: Only = None,
        seeds: Seeds = None,
        root: Root = None,
        dry_run: DryRun = False,
    ) -> None:
        carry_out(
            work(), study, out, engine=engine, workers=workers, address=address, device=device, only=only,
            seeds=seeds, root=root, dry_run=dry_run,
        )  # fmt: skip

    command.__doc__ = about
    return command


def carry_out(
    todo: StudyWork,
    study: Path,
    out: Path,
    *,
    engine: str,
    workers: int,
    address: str | None,
    device: str,
    only: str | None,
    seeds: str | None,
    root: Path | None,
    dry_run: bool,
) -> None:
    """Run the fits of a study, or list them, and say what to read."""
    from raxss.benchmark.study import Study
    from raxss.benchmark.table import Work
    from raxss.errors import one_of

    one_of("--engine", engine, ("local", "ray"))
    read = Study.read(study)
    work = Work(engine=engine, n_workers=workers, address=address, device=device)
    some = {"only": names_from(only), "seeds": numbers_from(seeds), "root": root}
    if dry_run:
        for fit, state in todo.list_all(read, out, work=work, **some):
            print(f"{state:>20}  {fit}")
        return
    try:
        outcome = todo.run(read, out, work=work, **some)
    except KeyboardInterrupt:
        print(f"Stopped. What is done is kept in {out}; the same command goes on.", file=sys.stderr)
        raise typer.Exit(130) from None
    tell(outcome, out / todo.page, out / todo.figures)


def _of_tables() -> StudyWork:
    from raxss.benchmark.table import list_table, run_table

    return StudyWork(run_table, list_table)


table = study_command(
    """Compare systems on the same splits, and write the table with its intervals.

    Each fit leaves a file of its own; after a kill, Ctrl-C or an error the same command goes on with what is
    missing. The extensions that a study names are Python files, which are run.
    """,
    _of_tables,
)


def names_from(text: str | None) -> list[str]:
    """``a,b`` as two names."""
    return [item.strip() for item in (text or "").split(",") if item.strip()]


def numbers_from(text: str | None) -> list[int]:
    """``1,2`` as two numbers."""
    from raxss.errors import ConfigError

    try:
        return [int(name) for name in names_from(text)]
    except ValueError:
        raise ConfigError(f"--seeds is {text!r}; whole numbers are needed, such as 69421,69422.") from None


def tell(outcome: Outcome, page: Path, figures: Path) -> None:
    """Print counts, errors and the paths of the results; exit code 1 if anything of this run failed."""
    print(f"{len(outcome.results)} results, {len(outcome.errors)} failed, {outcome.n_missing} not run yet.")
    for error in outcome.errors:
        where = f"{error.get('dataset')}, {error.get('system')}, seed {error.get('seed')}"
        why = f"{error.get('type')}: {error.get('message')}"
        print(f"raxss: failed: {printable(where)}: {printable(why)}", file=sys.stderr)
    if outcome.files:
        print(f"The table is in {page}, its figures in {figures}.")
    if outcome.n_failed:
        raise typer.Exit(1)
