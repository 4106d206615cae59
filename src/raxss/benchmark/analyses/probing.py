"""How are many questions asked of every fit of a study, and gone on with after an end that nobody planned?

    Study, "reweighting" or "robustness", DIR -> cells with a probe -> DIR/<question>/README.md, *.csv, plots

    DIR/data/, DIR/splits/    as `raxss table` makes them; the same folder may be used for both
    DIR/<question>/cells/     while they run, one file for each fit with all its answers; errors
    DIR/<question>/cells.parquet  at the end: all of them, packed

Systems are those of the study that weigh windows; they choose nothing on validation.
Next: reweighting_report.py and robustness_report.py make tables and pages from the answers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from raxss._core.jobs import check_engine
from raxss.benchmark.analyses import robustness
from raxss.benchmark.analyses.probe import Probe, Probed
from raxss.benchmark.analyses.reweighting import Reweighting
from raxss.benchmark.evaluation_set import View
from raxss.benchmark.packed import facts_of, pack_cells, read_facts
from raxss.benchmark.runs import Cell, answered
from raxss.benchmark.study import Study, load_extensions
from raxss.benchmark.table import Outcome, Table, Work, listed, opened, state_of, tell_sources
from raxss.errors import ConfigError


class Question(NamedTuple):
    """What is asked: which fits it takes of one view and seed, and who writes its page."""

    fits: Callable[[View, int], Sequence[tuple[View, Probe]]]
    writer: Callable[[], Callable[..., list[Path]]]


def _reweighting_page() -> Callable[..., list[Path]]:
    from raxss.benchmark.analyses.reweighting_report import (
        write_reweighting,  # matplotlib takes a while to import
    )

    return write_reweighting


def _robustness_page() -> Callable[..., list[Path]]:
    from raxss.benchmark.analyses.robustness_report import write_robustness

    return write_robustness


QUESTIONS = {
    "reweighting": Question(lambda view, _: [(view, Reweighting())], _reweighting_page),
    "robustness": Question(robustness.fits_of, _robustness_page),
}


def run_probe(
    question: str,
    study: Study,
    out: Path | str,
    *,
    work: Work | None = None,
    only: Iterable[str] = (),
    seeds: Iterable[int] = (),
    root: Path | str | None = None,
) -> Outcome:
    """Ask a question of every fit of a study, as far as it is not answered yet, and write its page.

    Parameters
    ----------
    question
        One of `QUESTIONS`.
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
    ... ''')
    >>> outcome = run_probe("reweighting", study, tempfile.mkdtemp(), work=Work(device="cpu"))
    >>> [(one.system, len(one.names)) for one in outcome.results], outcome.files[-1].name
    ([('recommended', 8)], 'README.md')
    """
    work = work or Work()
    check_engine(work.engine, work.address)  # before hours of preparation, not after
    study = of_windows(study, only)
    with opened(study, out, work, root) as table:
        chosen = study.narrowed(only=only, seeds=seeds)
        try:
            table.run(question, _cells(question, table, *chosen))
        except KeyboardInterrupt:
            _outcome(question, study, table)  # of what is done so far
            raise
        outcome = _outcome(question, study, table)
        pack_cells(table.out / question)
        return outcome


def list_probe(
    question: str,
    study: Study,
    out: Path | str,
    *,
    work: Work | None = None,
    only: Iterable[str] = (),
    seeds: Iterable[int] = (),
    root: Path | str | None = None,
) -> list[tuple[str, str]]:
    """Every fit that `run_probe` would do, and whether it is done; as `raxss.benchmark.table.list_table`."""
    study = of_windows(study, only)
    with listed(study, out, work or Work(), root) as table:
        cells = _cells(question, table, *study.narrowed(only=only, seeds=seeds))
        return [(f"{cell}, {len(cell.split.train)} training series", state_of(cell)) for cell in cells]


def of_windows(study: Study, only: Iterable[str] = ()) -> Study:
    """The same study with those of its systems that weigh windows; a system that does not may not be named.

    >>> study = Study.from_toml('systems = ["sss", "rocket", "gru"]\\n[dataset]\\ndata = "synthetic"')
    >>> of_windows(study).systems
    ('sss',)
    """
    load_extensions(study.extensions)
    compared = study.compared()
    names = tuple(name for name, one in compared.items() if one.kind == "windows")
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


def _cells(question: str, table: Table, names: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """One seed after the other; of each, the fits of one system after those of another."""
    fits = {
        (view.name, seed): QUESTIONS[question].fits(view, seed)
        for seed in seeds
        for view in dict.fromkeys(view for view, _ in table.rows(names))
    }
    return [
        table.probing(fitted_on, system, seed, probe, question)
        for seed in seeds
        for view, system in table.rows(names)
        for fitted_on, probe in fits[view.name, seed]
    ]


def _outcome(question: str, study: Study, table: Table) -> Outcome:
    """Everything that is answered, of the whole study, and its page."""
    found: list[Probed] = []
    facts: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    n_missing = 0
    for cell in _cells(question, table, list(study.compared()), study.seeds):
        probed = answered(cell)
        if probed is not None:
            found.append(probed)
            facts.append(facts_of(cell.place))
        elif cell.error_place.exists():
            errors.append(read_facts(cell.error_place))
        else:
            n_missing += 1
    place = table.out / question
    tell_sources(facts, place)
    files: list[Path] = []
    if found or errors:
        write = QUESTIONS[question].writer()
        files = write(found, facts=facts, errors=errors, out=place, study_name=study.name)
    results = [one.result for one in found]
    return Outcome(results, errors, table.n_run, table.n_failed, n_missing, files)
