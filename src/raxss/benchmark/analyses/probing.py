"""Runner of analyses: every fit of a study is asked, and a run that was cut short goes on.

    Study, name of an analysis, DIR -> cells with a probe -> DIR/<analysis>/README.md, *.csv, plots

    DIR/data/, DIR/splits/    as `raxss table` makes them; the same folder may be used for both
    DIR/<analysis>/cells/     while they run, one file for each fit with all its answers; errors
    DIR/<analysis>/cells.parquet  at the end: all of them, packed

Systems are those of the study whose kind the analysis can ask; they choose nothing on validation.
Next: reweighting_analysis.py and robustness.py make tables and pages from the answers alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from raxss._core.jobs import check_engine
from raxss.benchmark.analyses.analysis import Analysis, AnalysisOutcome, RunsItself, travelling
from raxss.benchmark.analyses.builtin import analysis_for
from raxss.benchmark.analyses.probe import Probed
from raxss.benchmark.packed import facts_of, pack_cells, read_facts
from raxss.benchmark.runs import Cell, answered
from raxss.benchmark.study import Study, load_extensions
from raxss.benchmark.table import OpenedStudy, Work, listed, opened, state_of, tell_sources
from raxss.errors import ConfigError


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
    """Carry an analysis of a study out, as far as it is not done yet, and write its page.

    Parameters
    ----------
    name
        Of `raxss.benchmark.analyses.analysis.ANALYSES`; its settings are those of the study, or its defaults.
    only, seeds, root
        As in `raxss.benchmark.table.run_table`.

    Returns
    -------
    ``results`` are those of the fits as they are, on the test part as it is.

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
            table.run(name, _cells(analysis, study, table, *chosen))
        except KeyboardInterrupt:
            _outcome(analysis, study, table)  # of what is done so far
            raise
        outcome = _outcome(analysis, study, table)
        pack_cells(table.out / name)
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
    """Every fit that `run_analysis` would do, and whether it is done; as `raxss.benchmark.table.list_table`."""
    work, only, seeds = work or Work(), list(only), list(seeds)
    analysis = analysis_for(study, name)
    if isinstance(analysis, RunsItself):
        return analysis.list_study(study, out, work=work, only=only, seeds=seeds, root=root)
    study = of_kinds(study, analysis.kinds, only)
    with listed(study, out, work, root) as table:
        cells = _cells(analysis, study, table, *study.narrowed(only=only, seeds=seeds))
        return [(f"{cell}, {len(cell.split.train)} training series", state_of(cell)) for cell in cells]


def of_kinds(study: Study, kinds: Sequence[str], only: Iterable[str] = ()) -> Study:
    """The same study with those of its systems that can be asked; one that cannot may not be named.

    >>> study = Study.from_toml('systems = ["sss", "rocket", "gru"]\\n[dataset]\\ndata = "synthetic"')
    >>> of_kinds(study, ["windows"]).systems, of_kinds(study, []).systems
    (('sss',), ('sss', 'rocket', 'gru'))
    """
    load_extensions(study.extensions)
    compared = study.compared()
    names = tuple(name for name, item in compared.items() if not kinds or item.kind in kinds)
    for name in only:
        if name in compared and name not in names:
            raise ConfigError(
                f"system {name!r} gives windows no weights of their own, so this cannot be asked of it. Those of "
                f"the study that do: {', '.join(names) or 'none'}."
            )
    if not names:
        raise ConfigError(
            f"none of the study's systems ({', '.join(compared)}) gives windows weights. Add one that does, such "
            "as 'recommended' or 'sss'."
        )
    return replace(study, systems=names)


def _cells(
    analysis: Analysis, study: Study, table: OpenedStudy, names: Sequence[str], seeds: Sequence[int]
) -> list[Cell]:
    """One seed after the other; of each, the fits of one system after those of another."""
    fits = {
        (view.name, seed): analysis.fits(view, seed)
        for seed in seeds
        for view in dict.fromkeys(view for view, _ in table.rows(names))
    }
    return [
        table.probing(fitted_on, system, seed, travelling(probe, study.extensions), analysis.name)
        for seed in seeds
        for view, system in table.rows(names)
        for fitted_on, probe in fits[view.name, seed]
    ]


def _outcome(analysis: Analysis, study: Study, table: OpenedStudy) -> AnalysisOutcome:
    """Everything that is answered, of the whole study, and its page."""
    found: list[Probed] = []
    facts: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    n_missing = 0
    for cell in _cells(analysis, study, table, list(study.compared()), study.seeds):
        probed = answered(cell)
        if probed is not None:
            found.append(probed)
            facts.append(facts_of(cell.place))
        elif cell.error_place.exists():
            errors.append(read_facts(cell.error_place))
        else:
            n_missing += 1
    place = table.out / analysis.name
    tell_sources(facts, place)
    outcome = AnalysisOutcome([item.result for item in found], errors, table.n_run, table.n_failed, n_missing)
    if not found and not errors:
        return outcome
    files, rows = analysis.write(found, facts=facts, errors=errors, out=place, study_name=study.name)
    return replace(outcome, files=files, rows=rows)
