"""``raxss reweigh STUDY.toml --out DIR`` and ``raxss robustness STUDY.toml --out DIR``"""

from __future__ import annotations

from functools import partial
from typing import Any

from raxss.cli.fit import Root
from raxss.cli.table import (
    Address,
    Device,
    DryRun,
    Engine,
    Only,
    Out,
    Seeds,
    StudyFile,
    Workers,
    carry_out,
)


def reweigh(
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
    """Fit once, then ask about every weighting: do the weights of windows carry information, and do they help?

    Systems are those of the study that weigh windows. The page, DIR/reweighting/README.md, has each weighting
    beside its inverted and shuffled twin. DIR may be that of a table of the same study, whose prepared data is used
    again; after a kill the same command goes on with what is missing.
    """
    _ask(
        "reweighting", study, out, engine=engine, workers=workers, address=address, device=device, only=only,
        seeds=seeds, root=root, dry_run=dry_run,
    )  # fmt: skip


def robustness(
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
    """Fit on clean signals, then ask about spoiled ones: artefacts, noise, short recordings, few training series.

    Systems are those of the study that weigh windows. The page, DIR/robustness/README.md, compares each with the
    same model under uniform weights, and with sss. DIR may be that of a table of the same study; after a kill the
    same command goes on with what is missing.
    """
    _ask(
        "robustness", study, out, engine=engine, workers=workers, address=address, device=device, only=only,
        seeds=seeds, root=root, dry_run=dry_run,
    )  # fmt: skip


def _ask(question: str, *given: Any, **options: Any) -> None:
    from raxss.benchmark.analyses.probing import list_probe, run_probe

    carry_out(
        partial(run_probe, question),
        partial(list_probe, question),
        *given,
        **options,
        page=f"{question}/README.md",
        figures=f"{question}/comparisons.csv",
    )
