"""Runner of analyses: every fit of a study is evaluated, and an interrupted run resumes.

    Study, name of an analysis, DIR -> runs with a probe -> DIR/<analysis>/README.md, *.csv, plots

    DIR/data/, DIR/splits/    as `raxss table` makes them; the same folder may be used for both
    DIR/<analysis>/cells/     while it runs, one file for each fit with its evaluations; errors
    DIR/<analysis>/cells.parquet  at the end: all of them, packed

Every module of this package is imported, so that analyses register themselves.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import raxss.benchmark.analyses
from raxss._core.jobs import check_engine
from raxss.benchmark.analyses.analysis import (
    Analysis,
    AnalysisOutcome,
    RunsItself,
    find_analysis,
    importable_probe,
)
from raxss.benchmark.analyses.evaluation import EvaluatedRun
from raxss.benchmark.packed import facts_of, pack_runs, read_facts
from raxss.benchmark.runs import Run, evaluated
from raxss.benchmark.study import Study, load_extensions
from raxss.benchmark.table import OpenedStudy, Work, listed, opened, state_of, warn_of_sources
from raxss.errors import ConfigError

for _module in pkgutil.iter_modules(raxss.benchmark.analyses.__path__):
    importlib.import_module(f"{raxss.benchmark.analyses.__name__}.{_module.name}")


def analysis_for(study: Study, name: str) -> Analysis:
    """An analysis with the settings of a study; unknown analyses in the study are refused.

    >>> study = Study.from_toml('''
    ... [dataset]
    ... data = "synthetic"
    ... [analysis.robustness]
    ... conditions = [["drift", 0.1]]
    ... training = []
    ... ''')
    >>> analysis_for(study, "robustness")
    Robustness(conditions=(('drift', 0.1),), training=())
    """
    load_extensions(study.extensions)  # they may register analyses
    for known in study.analyses:
        find_analysis(known)
    return find_analysis(name).from_settings(study.analyses.get(name, {}))


def run_analysis(
    name: str,
    study: Study,
    out: Path | str,
    *,
    work: Work | None = None,
    only: Iterable[str] = (),
    seeds: Iterable[int] = (),
    root: Path | str | None = None,
) -> AnalysisOutcome:
    """Run an analysis of a study, as far as it is not done yet, and write its page.

    Parameters
    ----------
    name
        Of `raxss.benchmark.analyses.analysis.ANALYSES`; its settings are those of the study, or its defaults.
    only, seeds, root
        As in `raxss.benchmark.table.run_table`.

    Examples
    --------
    >>> import tempfile
    >>> study = Study.from_toml('''
    ... systems = ["recommended"]
    ... seeds = [1]
    ... training = { max_epochs = 1 }
    ... [dataset]
    ... data = "synthetic"
    ... windows = { window_length = 128, stride = 64 }
    ... [analysis.reweighting]
    ... temperatures = [0.1]
    ... ''')
    >>> outcome = run_analysis("reweighting", study, tempfile.mkdtemp(), work=Work(device="cpu"))
    >>> [(one.system, len(one.names)) for one in outcome.results], outcome.files[-1].name
    ([('recommended', 8)], 'README.md')
    """
    work, only, seeds = work or Work(), list(only), list(seeds)
    check_engine(work.engine, work.address)  # before hours of preparation, not after
    analysis = analysis_for(study, name)
    if isinstance(analysis, RunsItself):
        return analysis.run_study(study, out, work=work, only=only, seeds=seeds, root=root)
    study = of_kinds(study, analysis.kinds, only)
    with opened(study, out, work, root) as table:
        chosen = study.narrowed(only=only, seeds=seeds)
        try:
            table.run(name, _runs(analysis, study, table, *chosen))
        except KeyboardInterrupt:
            _outcome(analysis, study, table)  # of what is done so far
            raise
        outcome = _outcome(analysis, study, table)
        pack_runs(table.out / name)
        return outcome


def list_analysis(
    name: str,
    study: Study,
    out: Path | str,
    *,
    work: Work | None = None,
    only: Iterable[str] = (),
    seeds: Iterable[int] = (),
    root: Path | str | None = None,
) -> list[tuple[str, str]]:
    """Every fit of `run_analysis`, and whether it is done; as `raxss.benchmark.table.list_table`."""
    work, only, seeds = work or Work(), list(only), list(seeds)
    analysis = analysis_for(study, name)
    if isinstance(analysis, RunsItself):
        return analysis.list_study(study, out, work=work, only=only, seeds=seeds, root=root)
    study = of_kinds(study, analysis.kinds, only)
    with listed(study, out, work, root) as table:
        runs = _runs(analysis, study, table, *study.narrowed(only=only, seeds=seeds))
        return [(f"{run}, {len(run.split.train)} training series", state_of(run)) for run in runs]


def of_kinds(study: Study, kinds: Sequence[str], only: Iterable[str] = ()) -> Study:
    """The study with its systems of these kinds; ``only`` may name no other.

    >>> study = Study.from_toml('systems = ["sss", "rocket", "gru"]\\n[dataset]\\ndata = "synthetic"')
    >>> of_kinds(study, ["windows"]).systems, of_kinds(study, []).systems
    (('sss',), ('sss', 'rocket', 'gru'))
    """
    load_extensions(study.extensions)
    compared = study.compared()
    names = tuple(name for name, system in compared.items() if not kinds or system.kind in kinds)
    for name in only:
        if name in compared and name not in names:
            raise ConfigError(
                f"system {name!r} gives windows no weights of their own, which this analysis needs. Systems of the "
                f"study that do: {', '.join(names) or 'none'}."
            )
    if not names:
        raise ConfigError(
            f"none of the study's systems ({', '.join(compared)}) gives windows weights. Add one that does, such "
            "as 'recommended' or 'sss'."
        )
    return replace(study, systems=names)


def _runs(
    analysis: Analysis, study: Study, table: OpenedStudy, names: Sequence[str], seeds: Sequence[int]
) -> list[Run]:
    """Ordered by seed, dataset, system."""
    fits = {
        (view.name, seed): analysis.fits(view, seed)
        for seed in seeds
        for view in dict.fromkeys(view for view, _ in table.rows(names))
    }
    return [
        table.probing(fitted_on, system, seed, importable_probe(probe, study.extensions), analysis.name)
        for seed in seeds
        for view, system in table.rows(names)
        for fitted_on, probe in fits[view.name, seed]
    ]


def _outcome(analysis: Analysis, study: Study, table: OpenedStudy) -> AnalysisOutcome:
    """All evaluations of the whole study that there are, and its page."""
    found: list[EvaluatedRun] = []
    facts: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    n_missing = 0
    for run in _runs(analysis, study, table, list(study.compared()), study.seeds):
        result = evaluated(run)
        if result is not None:
            found.append(result)
            facts.append(facts_of(run.place))
        elif run.error_place.exists():
            errors.append(read_facts(run.error_place))
        else:
            n_missing += 1
    place = table.out / analysis.name
    warn_of_sources(facts, place)
    outcome = AnalysisOutcome([item.result for item in found], errors, table.n_run, table.n_failed, n_missing)
    if not found and not errors:
        return outcome
    files, rows = analysis.write(found, facts=facts, errors=errors, out=place, study_name=study.name)
    return replace(outcome, files=files, rows=rows)
