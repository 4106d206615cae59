"""Registry of analyses: evaluations of every fitted model of a study.

    @register_analysis("name") on a class -> ANALYSES; a name -> find_analysis -> the class

An analysis is a frozen dataclass. Its fields are its settings, which a study file may set in ``[analysis.NAME]``.
Its method `evaluate` predicts the test series with one fitted model under each of its settings. Everything else has
a default: which fits are taken, how they are run, the rows of the tidy table, the tables beside the page, the page.

    DIR/data/, DIR/splits/    as `raxss table` makes them; the same folder may be used for both
    DIR/<analysis>/cells/     while it runs, one file for each fit with its evaluations; errors
    DIR/<analysis>/cells.parquet  at the end: all of them, packed
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import pandas as pd

from raxss._core.atomic import json_ready, sha256_of
from raxss.benchmark.analyses.evaluation import EvaluatedRun, Evaluation, FittedModel, Probe
from raxss.benchmark.evaluation_set import View
from raxss.benchmark.packed import facts_of, pack_runs
from raxss.benchmark.pages.files import write_all
from raxss.benchmark.pages.markdown import (
    TITLES,
    Markdown,
    difference,
    p_text,
    render,
    shown,
    table,
    with_interval,
)
from raxss.benchmark.pages.report import failed_row
from raxss.benchmark.pages.tidy import (
    as_written,
    compared,
    difference_row,
    draws_of,
    evaluation_rows,
    headline,
    mean_row,
    of_fits,
    over_seeds,
    part,
    runs_by,
    settings_in,
    settings_of,
    tidy,
    wide,
)
from raxss.benchmark.reading import fields_of, refuse_unknown
from raxss.benchmark.runs import Run
from raxss.benchmark.statistics import N_RESAMPLES, corrected
from raxss.benchmark.study import Study, load_extensions
from raxss.benchmark.table import OpenedStudy, Outcome, kept_of, opened, state_of, warn_of_sources
from raxss.errors import ConfigError, did_you_mean

Frame = pd.DataFrame
Plots = dict[str, bytes]  # file name -> PNG


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Evaluations of every fitted model of a study. Subclass it, write `evaluate`, and register the class.

    >>> @register_analysis("louder")
    ... @dataclass(frozen=True, kw_only=True)
    ... class Louder(Analysis):
    ...     title: ClassVar[str] = "do louder recordings change the score?"
    ...     gains: tuple[float, ...] = (1.0, 2.0)
    ...
    ...     def evaluate(self, fitted):
    ...         louder = ([one.with_samples(gain * one.samples) for one in fitted.test] for gain in self.gains)
    ...         return [Evaluation(settings={"gain": gain}, probabilities=fitted.model.predict_proba(series))
    ...                 for gain, series in zip(self.gains, louder)]
    >>> Louder.from_settings({"gains": [1.0, 4.0]})
    Louder(gains=(1.0, 4.0))
    >>> Louder.from_settings({"gain": [4.0]})
    Traceback (most recent call last):
    ...
    raxss.errors.ConfigError: [analysis.louder] has no setting 'gain'; did you mean 'gains'? Known: gains.
    >>> del ANALYSES["louder"]
    """

    name: ClassVar[str] = ""  # given by `register_analysis`; results lie in a folder of this name
    title: ClassVar[str] = (
        ""  # of its page, after the study's name; also its line in ``raxss analyse --help``
    )
    #: Of systems that can be evaluated; empty: every kind.
    kinds: ClassVar[tuple[str, ...]] = ("windows", "default")
    revision: ClassVar[int] = 0  # raised when the same settings give other numbers, to compute them again
    template: ClassVar[str] = "analysis.md.j2"  # of its page
    #: Where the page and its figures are in the output folder, for the command line.
    outputs: ClassVar[tuple[str, str]] = ("{name}/README.md", "{name}/comparisons.csv")

    # Settings

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """From the section ``[analysis.NAME]`` of a study file; lists become tuples."""
        refuse_unknown(f"[analysis.{cls.name}]", settings, fields_of(cls))
        return cls(**{name: _frozen(value) for name, value in settings.items()})

    def decides(self) -> Mapping[str, Any]:
        """Everything besides the fit that decides the evaluations; part of the hash of a result."""
        return {self.name: json_ready(asdict(self)), "revision": self.revision}

    # Evaluations of one fitted model

    def fits(self, view: View, seed: int) -> Sequence[tuple[View, Probe]]:
        """The fits of one system and seed, each with its probe; by default the fit of the study."""
        return [(view, self)]

    def evaluate(self, fitted: FittedModel) -> list[Evaluation]:
        """Evaluate one fitted model under every setting; deterministic."""
        raise NotImplementedError(f"analysis {self.name!r} has no method evaluate; write one.")

    # Evaluations of a study

    def run_study(self, study: Study, out: Path | str, **options: Any) -> Outcome:
        """Evaluate every fit that is not done yet, and write the page; as `raxss.benchmark.table.run_table`."""
        study = of_kinds(study, self.kinds, options.get("only", ()))
        with opened(study, out, **options) as table:
            try:
                table.run(self.name, self.runs(study, table, table.names, table.seeds))
            except KeyboardInterrupt:
                self._outcome(study, table)  # of what is done so far
                raise
            outcome = self._outcome(study, table)
            pack_runs(table.out / self.name)
            return outcome

    def list_study(self, study: Study, out: Path | str, **options: Any) -> list[tuple[str, str]]:
        """Every fit of `run_study`, and whether it is done; nothing is written."""
        study = of_kinds(study, self.kinds, options.get("only", ()))
        with opened(study, out, read_only=True, **options) as table:
            runs = self.runs(study, table, table.names, table.seeds)
            return [(f"{run}, {len(run.split.train)} training series", state_of(run)) for run in runs]

    def runs(self, study: Study, table: OpenedStudy, names: Sequence[str], seeds: Sequence[int]) -> list[Run]:
        """Its runs, ordered by seed, dataset, system."""
        fits = {
            (view.name, seed): self.fits(view, seed)
            for seed in seeds
            for view in dict.fromkeys(view for view, _ in table.rows(names))
        }
        return [
            table.probing(fitted_on, system, seed, importable_probe(probe, study.extensions), self.name)
            for seed in seeds
            for view, system in table.rows(names)
            for fitted_on, probe in fits[view.name, seed]
        ]

    def _outcome(self, study: Study, table: OpenedStudy) -> Outcome:
        """All evaluations of the whole study that there are, and its page."""
        kept, errors, n_missing = kept_of(self.runs(study, table, list(study.compared()), study.seeds))
        found, facts = [run for _, run in kept], [facts_of(run.place) for run, _ in kept]
        place, results = table.out / self.name, [run.result for run in found]
        warn_of_sources(facts, place)
        files: list[Path] = []
        rows = tidy([])
        if found or errors:
            files, rows = self.write(found, facts=facts, errors=errors, out=place, study_name=study.name)
        return Outcome(results, errors, table.n_run, table.n_failed, n_missing, files, rows)

    # Rows, tables and page

    def rows(self, runs: Sequence[EvaluatedRun], *, n_resamples: int = N_RESAMPLES) -> Frame:
        """The tidy table: metrics of fits, means over seeds, and their differences from the first setting."""
        rows = evaluation_rows(runs)
        for dataset, of_dataset in runs_by("dataset", runs):
            metric = headline(of_dataset[0].result)
            for system, own in runs_by("system", of_dataset):
                settings: dict[str, dict[str, Any]] = {}
                results: dict[str, list[Any]] = {}
                for run in own:
                    for place, evaluation in enumerate(run.evaluations):
                        key = json.dumps(settings_of(evaluation.settings), default=str)
                        settings[key] = settings_of(evaluation.settings)
                        results.setdefault(key, []).append(run.as_result(place))
                draws = draws_of(results, metric, n_resamples)
                at = {"dataset": dataset, "system": system}
                rows += [at | settings[key] | mean_row(draws[key], metric) for key in settings]
                first, *others = settings
                at["reference"] = in_words(settings[first])
                rows += corrected(
                    [at | settings[key] | difference_row(draws[key], draws[first], metric) for key in others]
                )
        return tidy(rows)

    def tables(self, rows: Frame) -> dict[str, Frame]:
        """Name -> a view of the rows, a CSV file beside the page."""
        settings = settings_in(rows)
        differences = over_seeds(rows, differences=True).rename(columns={"value": "difference"})
        kept = ["dataset", "system", "metric", *settings, "reference", "difference", "low", "high", "p"]
        return {
            "answers": wide(of_fits(rows), ["dataset", "system", "seed", "fold", *settings]),
            "comparisons": differences[[*kept, "n_seeds", "n_groups", "p_holm"]],
        }

    def page(self, rows: Frame, metric: str) -> tuple[dict[str, Any], Plots]:
        """Variables of the template for one dataset, and plots; from its rows alone."""
        means, differences = over_seeds(rows, differences=False), compared(rows)
        settings = [name for name in settings_in(rows) if means[name].notna().any()]
        known = {_key(row, settings): row for row in differences.to_dict("records")}
        systems = []
        for system in dict.fromkeys(means["system"]):
            lines = []
            for row in part(means, system=system).to_dict("records"):
                other = known.get(_key(row, settings))
                apart = ["–", "–"] if other is None else [difference(other, metric), p_text(other["p_holm"])]
                figure = with_interval(row["value"], row["low"], row["high"], metric)
                lines.append([*(shown(row[name], str) for name in settings), figure, *apart])
            header = [*settings, TITLES.get(metric, metric), "difference", "p"]
            systems.append({"name": system, "table": table(header, lines)})
        return {"systems": systems, "references": "; ".join(dict.fromkeys(differences["reference"]))}, {}

    def write(
        self,
        runs: Sequence[EvaluatedRun],
        *,
        facts: Sequence[Mapping[str, Any]],
        errors: Sequence[Mapping[str, Any]],
        out: Path | str,
        study_name: str,
        n_resamples: int = N_RESAMPLES,
    ) -> tuple[list[Path], Frame]:
        """Write tables, plots and page, the page last; returns these files, and the rows behind them.

        ``facts`` were recorded with the results, ``errors`` with the runs that failed.
        """
        rows = tidy(self.rows(runs, n_resamples=n_resamples), study=study_name, analysis=self.name)
        rounded = as_written(rows)
        datasets: list[dict[str, Any]] = []
        plots: Plots = {}
        for name, own in runs_by("dataset", runs):
            metric = headline(own[0].result)
            block, pictures = self.page(part(rounded, dataset=name), metric)
            datasets.append({"name": name, "metric": TITLES.get(metric, metric), **_about(own), **block})
            plots |= pictures
        page = render(
            self.template,
            name=self.name,
            title=self.title,
            study=study_name,
            n_done=len(runs),
            datasets=datasets,
            failed=_failures(errors),
            n_failed=len(errors),
            devices="; ".join(sorted({str(fact["device"]) for fact in facts if "device" in fact})),
        )
        return write_all(out, self.tables(rows) if len(rows) else {}, plots, page), rows


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
            "as 'tuned' or 'sss'."
        )
    return replace(study, systems=names)


def in_words(settings: Mapping[str, Any]) -> str:
    """Settings as text.

    >>> in_words({"kind": "drift", "level": 0.1, "fold": None})
    'kind drift, level 0.1'
    """
    return ", ".join(f"{name} {value}" for name, value in settings.items() if value is not None)


def _key(row: Mapping[Any, Any], settings: Sequence[str]) -> str:
    return repr([row["system"], *(row[name] for name in settings)])


def _about(runs: Sequence[EvaluatedRun]) -> dict[str, Any]:
    """Seeds, test series and split of one dataset."""
    results = [run.result for run in runs]
    seeds = sorted({result.seed for result in results})
    return {
        "seeds": ", ".join(map(str, seeds)),
        "n_seeds": len(seeds),
        "n_groups": len({group for result in results for group in result.groups}),
        "n_series": len({name for result in results for name in result.names}),
        "split": results[0].split.get("description") or "not told",
        "leaky": any(result.split.get("leaky") for result in results),
        "positive": results[0].positive,
    }


def _failures(errors: Sequence[Mapping[str, Any]]) -> Markdown:
    rows = [failed_row(error) | {"split": error.get("split", "–")} for error in errors]
    header = ["dataset", "system", "seed", "split", "error"]
    return table(header, [[row[name] for name in header] for row in rows])


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


# Analyses by name ---------------------------------------------------------------------------------------------


ANALYSES: dict[str, type[Analysis]] = {}
"""Name -> class."""

Kind = TypeVar("Kind", bound=type[Analysis])


def register_analysis(name: str) -> Callable[[Kind], Kind]:
    """Register an analysis by name, for study files and ``raxss analyse``; `Analysis` has an example."""

    def register(kind: Kind) -> Kind:
        taken = ANALYSES.get(name)
        if taken is not None and _place(taken) != _place(kind):
            raise ConfigError(
                f"the analysis name {name!r} belongs to {_place(taken)} already and cannot also mean "
                f"{_place(kind)}. Register it under another name."
            )
        kind.name = name
        ANALYSES[name] = kind
        return kind

    return register


def find_analysis(name: str) -> type[Analysis]:
    """The class of a registered analysis."""
    if name not in ANALYSES:
        raise ConfigError(
            f"there is no analysis {name!r}{did_you_mean(name, sorted(ANALYSES))} For one of your own see "
            "register_analysis."
        )
    return ANALYSES[name]


@dataclass(frozen=True, kw_only=True)
class ExtensionProbe:
    """An analysis of an extension, by name: a worker imports the extension before it is looked up."""

    name: str
    settings: Mapping[str, Any]
    decided: Mapping[str, Any]

    def decides(self) -> Mapping[str, Any]:
        """As the analysis, and the hashes of the extensions."""
        return self.decided

    def evaluate(self, fitted: FittedModel) -> list[Evaluation]:
        """Evaluate with the analysis."""
        return find_analysis(self.name)(**self.settings).evaluate(fitted)


def importable_probe(probe: Probe, extensions: Iterable[Path]) -> Probe:
    """The probe in a form that a worker process can unpickle."""
    if not isinstance(probe, Analysis) or type(probe).__module__.startswith("raxss."):
        return probe
    settings = {setting.name: getattr(probe, setting.name) for setting in dataclasses.fields(probe)}
    decided = {**probe.decides(), "extensions": [sha256_of(file) for file in extensions]}
    return ExtensionProbe(name=probe.name, settings=settings, decided=decided)


def _place(kind: type[Analysis]) -> str:
    """Module and name of a class; the same again when a notebook cell runs twice."""
    return f"{kind.__module__}.{kind.__qualname__}"
