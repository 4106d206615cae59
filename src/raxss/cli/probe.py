"""``raxss analyse NAME STUDY.toml --out DIR``; ``raxss reweigh`` and ``raxss robustness`` are two of these"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from raxss.cli.options import Device, Root
from raxss.cli.table import (
    Address,
    DryRun,
    Engine,
    Only,
    Out,
    Seeds,
    StudyFile,
    StudyWork,
    Workers,
    carry_out,
    study_command,
)

Name = Annotated[str, typer.Argument(help="Of the analysis, one of those listed below.")]


class ListsAnalyses(TyperCommand):
    """A command whose help ends with the registered analyses, which are imported for that alone."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Help, then the registry."""
        import raxss.benchmark.analyses.probing  # noqa: F401
        from raxss.benchmark.analyses.analysis import ANALYSES

        named = [f"{name}: {kind.title}" for name, kind in sorted(ANALYSES.items())]
        self.epilog = "Analyses:\n\n" + "\n\n".join(named)
        super().format_help(ctx, formatter)


def analyse(
    name: Name,
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
    """Fit the systems of a study, and analyse each fitted model: its weights, its robustness, its calibration.

    The study sets an analysis up in a section [analysis.NAME]; analyses of your own come with a Python file in its
    extensions. The page is DIR/NAME/README.md. DIR may be that of a table of the same study, whose prepared data is
    used again; after a kill the same command goes on with what is missing.
    """
    carry_out(
        work_of(name), study, out, engine=engine, workers=workers, address=address, device=device, only=only,
        seeds=seeds, root=root, dry_run=dry_run,
    )  # fmt: skip


def work_of(name: str) -> StudyWork:
    """An analysis as a command carries it out; one that a study's extension brings has the usual outputs."""
    from raxss.benchmark.analyses.analysis import ANALYSES, Analysis
    from raxss.benchmark.analyses.probing import list_analysis, run_analysis  # imports all that are built in

    outputs = (path.format(name=name) for path in ANALYSES.get(name, Analysis).outputs)
    return StudyWork(partial(run_analysis, name), partial(list_analysis, name), *outputs)


reweigh = study_command(
    """Fit once, then ask about every weighting: do the weights of windows carry information, and do they help?

    Systems are those of the study that weigh windows. The page, DIR/reweighting/README.md, has each weighting
    beside its inverted and shuffled twin. DIR may be that of a table of the same study, whose prepared data is used
    again; after a kill the same command goes on with what is missing.
    """,
    partial(work_of, "reweighting"),
)
robustness = study_command(
    """Fit on clean signals, then ask about spoiled ones: artefacts, noise, short recordings, few training series.

    Systems are those of the study that weigh windows. The page, DIR/robustness/README.md, compares each with the
    same model under uniform weights, and with sss. DIR may be that of a table of the same study; after a kill the
    same command goes on with what is missing.
    """,
    partial(work_of, "robustness"),
)
