"""Commands ``raxss table``, which runs a study, and ``raxss analyse``, which evaluates its fitted models.

raxss table STUDY.toml --out DIR, and the analyses: raxss analyse NAME STUDY.toml --out DIR
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from raxss.cli.common import described, printable
from raxss.errors import ConfigError, one_of

if TYPE_CHECKING:
    from raxss.benchmark.table import Outcome

NO_ANALYSIS = ""  # in place of a name: the table


@described(
    name=typer.Argument(help="Name of an analysis; see the list below."),
    study=typer.Argument(help="Study file (TOML): datasets, splits, systems, seeds, budget."),
    out="Output folder for results, table and plots.",
    engine="local (processes on this machine) or ray (a cluster).",
    workers=typer.Option(min=1, help="Number of parallel fits."),
    address="Address of a Ray cluster. Default: start Ray on this machine.",
    only="Comma-separated subset of the systems: sss,gru.",
    seeds="Comma-separated subset of the seeds: 69421,69422.",
    dry_run="List the fits and their state; write nothing.",
)
def _carry_out(
    name: str,
    study: Path,
    out: Path,
    engine: str = "local",
    workers: int = 1,
    address: str | None = None,
    device: str = "auto",
    only: str | None = None,
    seeds: str | None = None,
    root: Path | None = None,
    dry_run: bool = False,
) -> None:
    """Run the fits of a study, or list them, and print where the page is."""
    from raxss.benchmark.study import Study
    from raxss.benchmark.table import Work

    one_of("--engine", engine, ("local", "ray"))
    run, list_all, page, figures = work_of(name)
    read = Study.read(study)
    work = Work(engine=engine, n_workers=workers, address=address, device=device)
    some = {"only": names_from(only), "seeds": numbers_from(seeds), "root": root}
    if dry_run:
        for fit, state in list_all(read, out, work=work, **some):
            print(f"{state:>20}  {fit}")
        return
    try:
        outcome = run(read, out, work=work, **some)
    except KeyboardInterrupt:
        print(f"Stopped. What is done is kept in {out}; the same command goes on.", file=sys.stderr)
        raise typer.Exit(130) from None
    tell(outcome, out / page, out / figures)


def work_of(name: str) -> tuple[Callable[..., Outcome], Callable[..., list[tuple[str, str]]], str, str]:
    """Functions that run and list the fits of an analysis, and the paths of its page and figures."""
    if name == NO_ANALYSIS:
        from raxss.benchmark.table import list_table, run_table

        return run_table, list_table, "README.md", "results.csv"
    from raxss.benchmark.analyses.analysis import ANALYSES, Analysis
    from raxss.benchmark.analyses.by_name import list_analysis, run_analysis  # imports all that are built in

    page, figures = ANALYSES.get(name, Analysis).outputs  # one of an extension has the default outputs
    return (
        partial(run_analysis, name),
        partial(list_analysis, name),
        page.format(name=name),
        figures.format(name=name),
    )


def _command(about: str, *name: Any) -> Callable[..., None]:
    """`_carry_out` as a command with this help; its first argument is the name, if none is given here."""
    command: Any = partial(_carry_out, *name)
    command.__doc__ = about
    command.__annotations__ = {}  # typer asks for it, and takes the types from the signature
    return command


table = _command(
    """Compare systems on the same splits and write a table with confidence intervals.

    Each finished fit is saved; after a kill, Ctrl-C or an error, the same command runs what is missing. The
    extensions named in a study are Python files, which are executed.
    """,
    NO_ANALYSIS,
)
analyse = _command(
    """Fit the systems of a study and analyse each fitted model: weighting, robustness, calibration.

    Settings of an analysis are in the section \\[analysis.NAME] of the study; your own analyses are Python files
    in its extensions. Writes DIR/NAME/README.md. DIR may be the folder of raxss table for the same study, whose
    prepared data is used again. An interrupted run resumes with the same command.
    """,
)
reweigh = _command(
    """Fit once, then evaluate every weighting: do the window weights carry information, and do they help?

    Uses the systems of the study that weight windows. Writes DIR/reweighting/README.md, with each weighting
    beside its inverted and shuffled control. DIR may be the folder of raxss table for the same study, whose
    prepared data is used again. An interrupted run resumes with the same command.
    """,
    "reweighting",
)
robustness = _command(
    """Fit on clean signals, then evaluate on artefacts, noise, short recordings and few training series.

    Uses the systems of the study that weight windows. Writes DIR/robustness/README.md, which compares each with the
    same model under uniform weights and with sss. DIR may be the folder of raxss table for the same study. An
    interrupted run resumes with the same command.
    """,
    "robustness",
)


class ListsAnalyses(TyperCommand):
    """A command whose help ends with the registered analyses, which are imported for that alone."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Help, then the registry."""
        import raxss.benchmark.analyses.by_name  # noqa: F401
        from raxss.benchmark.analyses.analysis import ANALYSES

        named = [f"{name}: {kind.title}" for name, kind in sorted(ANALYSES.items())]
        self.epilog = "Analyses:\n\n" + "\n\n".join(named)
        super().format_help(ctx, formatter)


def names_from(text: str | None) -> list[str]:
    """``a,b`` as two names."""
    return [item.strip() for item in (text or "").split(",") if item.strip()]


def numbers_from(text: str | None) -> list[int]:
    """``1,2`` as two numbers."""
    try:
        return [int(name) for name in names_from(text)]
    except ValueError:
        raise ConfigError(f"--seeds is {text!r}; whole numbers are needed, such as 69421,69422.") from None


def tell(outcome: Outcome, page: Path, figures: Path) -> None:
    """Print counts, errors and the paths of the results; exit code 1 if anything of this run failed."""
    from raxss.benchmark.result import NOT_RUN

    too_slow = [error for error in outcome.errors if error.get("type") == NOT_RUN]
    also = f"{len(too_slow)} not run, as they would take too long, " if too_slow else ""
    n_failed = len(outcome.errors) - len(too_slow)
    print(f"{len(outcome.results)} results, {n_failed} failed, {also}{outcome.n_missing} not run yet.")
    for error in outcome.errors:
        where = f"{error.get('dataset')}, {error.get('system')}, seed {error.get('seed')}"
        why = f"{error.get('type')}: {error.get('message')}"
        state = "not run" if error in too_slow else "failed"
        print(f"raxss: {state}: {printable(where)}: {printable(why)}", file=sys.stderr)
    if outcome.files:
        print(f"The table is in {page}, its figures in {figures}.")
    if outcome.n_failed:
        raise typer.Exit(1)
