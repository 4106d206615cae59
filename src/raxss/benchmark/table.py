"""Runner of studies: data, trials, runs and report; an interrupted study resumes.

Study, DIR -> data -> trials, by which settings are chosen -> runs -> results.csv, README.md, plots

DIR/study.toml, data/, splits/   copy of the study; prepared series, made again if removed; splits
DIR/choices/, cells/             chosen settings; while it runs, a file for each trial and each run
DIR/cells.parquet                at its end: all of these, packed
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from raxss._core.atomic import output_lock, write_json, write_text
from raxss._core.jobs import check_engine, each_result
from raxss._core.jobs.outcome import Failure
from raxss._core.progress import progress_bar
from raxss.benchmark.analyses.evaluation import Probe
from raxss.benchmark.evaluation_set import View, slug, views_of
from raxss.benchmark.packed import facts_of, pack_runs, read_facts
from raxss.benchmark.result import NOT_RUN, RunResult
from raxss.benchmark.runs import Run, done, execute, plan_run
from raxss.benchmark.study import Study, load_extensions
from raxss.benchmark.systems import System
from raxss.data.prepare.folder import read_prepared
from raxss.method.window_scorer import pick_device

STUDY_FILE = "study.toml"
Choice = dict[str, Any]
logger = logging.getLogger("raxss")


@dataclass(frozen=True, kw_only=True)
class Work:
    """Options of `raxss._core.jobs.each_result`, and the device: ``auto``, ``cpu`` or ``cuda``."""

    engine: str = "local"
    n_workers: int = 1
    address: str | None = None
    device: str = "auto"


HERE = Work()  # one fit at a time, in this process


@dataclass(frozen=True, eq=False)
class Outcome:
    """Results of a study, and the files of its report, the page last."""

    results: list[RunResult]  # of every run that is done, now or earlier
    errors: list[dict[str, Any]]  # of every run that failed: dataset, system, seed, fold, type, message
    n_run: int = 0  # runs and trials executed now
    n_failed: int = 0
    n_missing: int = 0  # runs that are neither done nor failed
    files: list[Path] = field(default_factory=list)
    rows: Any = None  # of an analysis: the tidy table that its page was made from


def run_table(study: Study, out: Path | str, **options: Any) -> Outcome:
    """Run a study, as far as it is not done yet, and write its report of everything that is done.

    Options are those of `opened`.

    >>> import tempfile
    >>> study = Study.from_toml('''
    ... systems = ["all-positive"]
    ... seeds = [1]
    ... [dataset]
    ... data = "synthetic"
    ... windows = { window_length = 128, stride = 64 }
    ... ''')
    >>> outcome = run_table(study, tempfile.mkdtemp())
    >>> [(one.system, len(one.names), one.split["description"]) for one in outcome.results]
    [('all-positive', 8, 'recording')]
    """
    with opened(study, out, **options) as table:
        if study.text:
            write_text(Path(out) / STUDY_FILE, study.text)
        try:
            table.run("trials", table.trials())
            table.write_choices()
            table.run("cells", table.runs(table.names, table.seeds))
        except KeyboardInterrupt:
            table.outcome()  # of what is done so far
            raise
        outcome = table.outcome()
        pack_runs(table.out)
        return outcome


def list_table(study: Study, out: Path | str, **options: Any) -> list[tuple[str, str]]:
    """Every fit of `run_table`, and whether it is done; nothing is written to ``out``.

    Data that is not prepared there is prepared in a temporary folder, because the fits depend on it.
    """
    with opened(study, out, read_only=True, **options) as table:
        fits = [*table.trials(), *table.runs(table.names, table.seeds)]
        waiting = [row for row in table.rows(table.names) if table.choice_of(*row) is None]
        return [(str(run), state_of(run)) for run in fits] + [
            (f"{view.name}, {system.name}, seed {seed}", "waits for its choice")
            for view, system in waiting
            for seed in table.seeds
        ]


def state_of(run: Run) -> str:
    """Whether a run is done, failed, takes too long or is to do, as listed."""
    if done(run):
        return "done"
    if not run.error_place.exists():
        return "to do"
    return "took too long" if read_facts(run.error_place).get("type") == NOT_RUN else "failed before"


class OpenedStudy:
    """A study with its data and a locked output folder; ``n_run`` and ``n_failed`` count runs and trials.

    ``names`` and ``seeds`` are the systems and seeds that were selected.
    """

    def __init__(
        self, study: Study, out: Path, work: Work, views: list[View], selected: tuple[list[str], list[int]]
    ) -> None:
        self._study, self.out, self._work, self._views = study, out, work, views
        self.names, self.seeds = selected
        self._systems = study.compared()
        self._device = str(pick_device(work.device))
        self.n_run = self.n_failed = 0

    def rows(self, names: Sequence[str] | None = None) -> list[tuple[View, System]]:
        """Every pair of a dataset and a system."""
        wanted = [item for name, item in self._systems.items() if names is None or name in names]
        return [(view, system) for view in self._views for system in wanted]

    # Choices: made on the validation series of the first seed, kept for all seeds

    def trials(self) -> list[Run]:
        """A trial for each setting to choose from."""
        return [trial for row in self.rows(self.names) for trial in self._trials_of(*row)]

    def _trials_of(self, view: View, system: System) -> list[Run]:
        choices = system.choices_for(view.longest)
        if len(choices) == 1:
            return []
        first = self._study.seeds[0]
        return [self._run(view, system, first, choice=item, trial=True) for item in choices]

    def choice_of(self, view: View, system: System) -> Choice | None:
        """The chosen settings; None while a trial is missing."""
        trials = self._trials_of(view, system)
        if not trials:
            return system.choices_for(view.longest)[0]
        results = [done(trial) for trial in trials]
        if None in results:
            return None
        return dict(trials[best_of([item.validation for item in results])].choice)

    def write_choices(self) -> None:
        """Write the choices, for readers only: they are made again from the trials."""
        for view, system in self.rows(self.names):
            trials = self._trials_of(view, system)
            choice = self.choice_of(view, system) if trials else None
            if choice is None:
                continue
            description = {
                "dataset": view.name,
                "system": system.name,
                "choice": choice,
                "by": "F1 of the validation series, ties by AUC, then the first",
                "seed": self._study.seeds[0],
                "trials": [{**trial.choice, **done(trial).validation} for trial in trials],
            }
            write_json(self.out / "choices" / slug(view.name) / f"{slug(system.name)}.json", description)

    # Runs

    def runs(self, names: Sequence[str] | None, seeds: Sequence[int]) -> list[Run]:
        """Runs whose choice is made, one seed after the other."""
        rows = [(*row, self.choice_of(*row)) for row in self.rows(names)]
        return [
            self._run(view, system, seed, choice=choice)
            for seed in seeds
            for view, system, choice in rows
            if choice is not None
        ]

    def _run(self, view: View, system: System, seed: int, *, choice: Choice, trial: bool = False) -> Run:
        return plan_run(
            self._study, view, system, seed, self.out, device=self._device, choice=choice, trial=trial
        )

    def probing(self, view: View, system: System, seed: int, probe: Probe, part: str) -> Run:
        """A run with a probe, kept in a subfolder."""
        return plan_run(self._study, view, system, seed, self.out / part, device=self._device, probe=probe)

    def run(self, title: str, runs: Sequence[Run]) -> None:
        """Execute the runs that are not done; one that fails leaves its error, and the others go on."""
        todo = [item for item in runs if done(item) is None]
        if not todo:
            return
        totals = Counter(item.system.name for item in runs)
        before = totals - Counter(entry.system.name for entry in todo)
        work = self._work
        running = each_result(
            execute,
            todo,
            engine=work.engine,
            n_workers=work.n_workers,
            n_threads=self._study.n_threads,
            address=work.address,
            shared_folder=self.out / "data",
        )
        with fit_bars(f"{self._study.name}: {title}", totals, before) as count, closing(running):
            for position, result in running:  # an early end ends the workers
                run = todo[position]
                self.n_run += 1
                if isinstance(result, Failure):
                    self.n_failed += result.kind != NOT_RUN
                    write_json(run.error_place, _error_of(run, result))
                count(run.system.name, isinstance(result, Failure))

    # What there is

    def outcome(self) -> Outcome:
        """Results of the whole study, and its report."""
        from raxss.benchmark.pages.report import write_report  # matplotlib takes a while to import

        kept, errors, n_missing = kept_of(self.runs(None, self._study.seeds))
        results = [result for _, result in kept]
        facts = {(run.view.name, run.system.name, run.seed): self._facts(run) for run, _ in kept}
        for row in self.rows():
            if self.choice_of(*row) is None:
                failed = [self._without_choice(*row, seed) for seed in self._study.seeds]
                errors += [error for error in failed if error is not None]
                n_missing += sum(error is None for error in failed)
        warn_of_sources(facts.values(), self.out)
        files: list[Path] = []
        if results or errors:
            files = write_report(
                results,
                facts=facts,
                errors=errors,
                out=self.out,
                study_name=self._study.name,
                headlines={value.name: value.headline for value in self._views},
                variants={name: item for name, item in self._systems.items() if item.base is not None},
            )
        return Outcome(results, errors, self.n_run, self.n_failed, n_missing, files)

    def _facts(self, run: Run) -> dict[str, Any]:
        """Facts of a run, with the duration of its trials."""
        trials = [facts_of(trial.place) for trial in self._trials_of(run.view, run.system)]
        seconds = sum(float(trial.get("seconds", 0.0)) for trial in trials)
        return facts_of(run.place) | ({"seconds_of_choice": round(seconds, 3)} if trials else {})

    def _without_choice(self, view: View, system: System, seed: int) -> dict[str, Any] | None:
        """The error of a run whose choice cannot be made since a trial failed."""
        for trial in self._trials_of(view, system):
            if done(trial) is None and trial.error_place.exists():
                error = read_facts(trial.error_place)
                choice = ", ".join(f"{name} = {value}" for name, value in trial.choice.items())
                message = f"its trial with {choice} failed: {error.get('message', '')}"
                return {**error, "seed": seed, "fold": view.splits[seed].fold, "message": message}
        return None


def kept_of(runs: Iterable[Run]) -> tuple[list[tuple[Run, Any]], list[dict[str, Any]], int]:
    """Runs with their kept results, errors of the runs that failed, and the number of all others."""
    kept: list[tuple[Run, Any]] = []
    errors: list[dict[str, Any]] = []
    n_missing = 0
    for run in runs:
        result = done(run)
        if result is not None:
            kept.append((run, result))
        elif run.error_place.exists():
            errors.append(read_facts(run.error_place))
        else:
            n_missing += 1
    return kept, errors, n_missing


def best_of(figures: Sequence[Mapping[str, float]]) -> int:
    """Index of the best trial: by F1 of series, ties by AUC, then the first."""

    def rank(place: int) -> list[float]:
        known = [figures[place].get(name) for name in ("f1", "auc")]
        return [-math.inf if value is None else value for value in known]

    return max(range(len(figures)), key=rank)


@contextmanager
def fit_bars(title: str, totals: Counter[str], done: Counter[str]) -> Iterator[Callable[[str, bool], None]]:
    """Progress bars of all fits and of each system; yields a function that counts a fit, and whether it failed."""
    n_failed: Counter[str] = Counter()
    with progress_bar(unit="fits") as bars:
        whole = bars.add_task(title, total=totals.total(), completed=done.total())
        tasks = {name: bars.add_task(name, total=n, completed=done[name]) for name, n in totals.items()}

        def count(name: str, failed: bool) -> None:
            n_failed[name] += failed
            text = f"{name} ({n_failed[name]} failed)" if n_failed[name] else name
            bars.advance(whole)
            bars.update(tasks[name], advance=1, description=text)

        yield count


def _error_of(run: Run, failure: Failure) -> dict[str, Any]:
    return {
        "dataset": run.view.name,
        "system": run.system.name,
        "seed": run.seed,
        "fold": run.split.fold,
        "split": run.split.description,
        "config_hash": run.config_hash,
        "type": failure.kind,
        "message": failure.message,
        "frames": failure.details.splitlines(),
    }


def warn_of_sources(facts: Iterable[Mapping[str, Any]], out: Path) -> None:
    """Warn if results come from several versions of the code."""
    sources = {str(fact.get("source", "unknown")) for fact in facts}
    if len(sources) > 1:
        logger.warning(
            "the results in %r come from %d states of the code; for a table from one, remove its folders cells "
            "and choices and its file cells.parquet, and run the study again",
            out.name,
            len(sources),
        )


@contextmanager
def opened(
    study: Study,
    out: Path | str,
    *,
    work: Work = HERE,
    only: Iterable[str] = (),
    seeds: Iterable[int] = (),
    root: Path | str | None = None,
    read_only: bool = False,
) -> Iterator[OpenedStudy]:
    """The study with its data, in a locked folder, or with ``read_only`` in one that nothing is written to.

    ``only`` and ``seeds`` select systems and seeds, all by default; ``root`` is the folder with the registered
    datasets, ``RAXSS_DATA`` otherwise.
    """
    load_extensions(study.extensions)
    selected = study.narrowed(only=only, seeds=seeds)
    out = Path(os.path.abspath(out))
    if read_only:
        with tempfile.TemporaryDirectory(prefix="raxss-") as scratch:  # closed to other users
            views = views_of(study, out / "data", root=root, scratch=Path(scratch))
            yield OpenedStudy(study, out, work, views, selected)
        return
    check_engine(work.engine, work.address)  # before hours of preparation, not after
    with output_lock(os.path.realpath(out)):
        views = views_of(study, out / "data", root=root)
        _write_splits(views, out / "splits")
        yield OpenedStudy(study, out, work, views, selected)


def _write_splits(views: Iterable[View], folder: Path) -> None:
    """Write splits for `raxss audit-split`; series outside of a view count as dropped."""
    for view in views:
        names = read_prepared(view.folder).names
        for seed, split in view.splits.items():
            used = np.concatenate([split.train, split.validation, split.test])
            others = np.setdiff1d(np.arange(len(names)), used)
            place = folder / slug(view.name) / f"{seed}.json"
            replace(split, dropped=others).save(place, names, overwrite=None)
