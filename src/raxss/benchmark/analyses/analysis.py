"""Registry of analyses: what can be asked of each fitted model of a study.

    @register_analysis("name") on a class -> ANALYSES; a name -> find_analysis -> the class

An analysis is a frozen dataclass. Its fields are its settings, which a study file may set in ``[analysis.NAME]``.
Its method `ask` puts questions to one fitted model; an answer is the probability of every test series. The rest has
a default: which fits are taken, the rows of the tidy table, the tables beside the page, and the page.
Next: probing.py carries analyses out; robustness.py is an example.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar, runtime_checkable

import pandas as pd

from raxss._core.atomic import json_ready, sha256_of
from raxss.benchmark.analyses.probe import Answer, Asked, Probe, Probed
from raxss.benchmark.evaluation_set import View
from raxss.benchmark.pages.files import write_all
from raxss.benchmark.pages.markdown import TITLES, difference, p_text, render, table, with_interval
from raxss.benchmark.pages.tidy import (
    answer_rows,
    as_written,
    corrected,
    difference_row,
    draws_of,
    headline,
    mean_row,
    of_fits,
    over_seeds,
    part,
    settings_in,
    settings_of,
    tidy,
    wide,
)
from raxss.benchmark.prediction_tables import about, by_dataset, by_system, devices_in, failures
from raxss.benchmark.reading import refuse_unknown
from raxss.benchmark.statistics import N_RESAMPLES
from raxss.benchmark.study import Study
from raxss.benchmark.table import Outcome
from raxss.errors import ConfigError, did_you_mean

Frame = pd.DataFrame
Plots = dict[str, bytes]  # file name -> PNG


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Questions to every fitted model of a study. Subclass it, write `ask`, and register the class.

    Attributes
    ----------
    name
        Given by `register_analysis`; results lie in a folder of this name.
    title
        Of its page, after the study's name; also what ``raxss analyse --help`` says of it.
    kinds
        Kinds of systems whose models can be asked (`raxss.benchmark.systems.System`); empty: every kind.
    revision
        Raise it when the same settings come to give other answers: kept answers are then computed again.
    template
        Of its page: a file beside the templates of this package, or a path of your own.
    outputs
        Where the page and its figures are in the output folder, for the command line.

    Examples
    --------
    >>> @register_analysis("louder")
    ... @dataclass(frozen=True, kw_only=True)
    ... class Louder(Analysis):
    ...     title: ClassVar[str] = "do louder recordings change the score?"
    ...     gains: tuple[float, ...] = (1.0, 2.0)
    ...
    ...     def ask(self, asked):
    ...         louder = ([one.with_samples(gain * one.samples) for one in asked.test] for gain in self.gains)
    ...         return [Answer(question={"gain": gain}, probabilities=asked.model.predict_proba(series))
    ...                 for gain, series in zip(self.gains, louder)]
    >>> Louder.from_settings({"gains": [1.0, 4.0]})
    Louder(gains=(1.0, 4.0))
    >>> Louder.from_settings({"gain": [4.0]})
    Traceback (most recent call last):
    ...
    raxss.errors.ConfigError: [analysis.louder] has no setting 'gain'; did you mean 'gains'? Known: gains.
    >>> del ANALYSES["louder"]
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    kinds: ClassVar[tuple[str, ...]] = ("windows",)
    revision: ClassVar[int] = 0
    template: ClassVar[str] = "analysis.md.j2"
    outputs: ClassVar[tuple[str, str]] = ("{name}/README.md", "{name}/comparisons.csv")

    # Settings

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """From the section ``[analysis.NAME]`` of a study file; lists become tuples."""
        refuse_unknown(f"[analysis.{cls.name}]", settings, [item.name for item in dataclasses.fields(cls)])
        return cls(**{name: _frozen(value) for name, value in settings.items()})

    def decides(self) -> Mapping[str, Any]:
        """All that decides the answers beside the fit; part of the hash of a result."""
        return {self.name: json_ready(asdict(self)), "revision": self.revision}

    # Questions to one fitted model

    def fits(self, view: View, seed: int) -> Sequence[tuple[View, Probe]]:
        """The fits of one system and seed, and who asks each; by default the fit that the study has."""
        return [(view, self)]

    def ask(self, asked: Asked) -> list[Answer]:
        """Ask one fitted model everything. The same model gives the same answers."""
        raise NotImplementedError(
            f"analysis {self.name!r} does not say what it asks: its method ask is missing."
        )

    # Rows, tables and page

    def rows(self, probed: Sequence[Probed], *, n_resamples: int = N_RESAMPLES) -> Frame:
        """The tidy table: figures of fits, means over seeds, and their differences from the first question."""
        rows = answer_rows(probed)
        for dataset, of_dataset in by_dataset(probed):
            metric = headline(of_dataset[0].result)
            for system, own in by_system(of_dataset):
                questions, results = _by_question(own)
                draws = draws_of(results, metric, n_resamples)
                at = {"dataset": dataset, "system": system}
                rows += [at | questions[key] | mean_row(draws[key], metric) for key in questions]
                first, *others = questions
                differences = [difference_row(draws[key], draws[first], metric) for key in others]
                at["reference"] = in_words(questions[first])
                rows += corrected(
                    [at | questions[key] | item for key, item in zip(others, differences, strict=True)]
                )
        return tidy(rows)

    def tables(self, rows: Frame) -> dict[str, Frame]:
        """Name -> a view of the rows, a CSV file beside the page."""
        settings = settings_in(rows)
        compared = over_seeds(rows, differences=True).rename(columns={"value": "difference"})
        kept = ["dataset", "system", "metric", *settings, "reference", "difference", "low", "high", "p"]
        return {
            "answers": wide(of_fits(rows), ["dataset", "system", "seed", "fold", *settings]),
            "comparisons": compared[[*kept, "n_seeds", "n_groups", "p_holm"]],
        }

    def page(self, rows: Frame, metric: str) -> tuple[dict[str, Any], Plots]:
        """What the template says of one dataset, and plots; from its rows alone."""
        means, compared = (over_seeds(rows, differences=item) for item in (False, True))
        settings = [name for name in settings_in(rows) if means[name].notna().any()]
        systems = []
        for system in dict.fromkeys(means["system"]):
            by_question = {
                _key(row, settings): row for row in part(compared, system=system).to_dict("records")
            }
            lines = []
            for row in part(means, system=system).to_dict("records"):
                other = by_question.get(_key(row, settings))
                figure = with_interval(row["value"], row["low"], row["high"], metric)
                apart = ["–", "–"]
                if other is not None:
                    apart = [
                        difference({**other, "difference": other["value"]}, metric),
                        p_text(other["p_holm"]),
                    ]
                lines.append(
                    [*("–" if row[name] != row[name] else row[name] for name in settings), figure, *apart]
                )
            header = [*settings, TITLES.get(metric, metric), "difference", "p"]
            systems.append({"name": system, "table": table(header, lines)})
        return {"systems": systems, "references": "; ".join(dict.fromkeys(compared["reference"]))}, {}

    def write(
        self,
        probed: Sequence[Probed],
        *,
        facts: Sequence[Mapping[str, Any]],
        errors: Sequence[Mapping[str, Any]],
        out: Path | str,
        study_name: str,
        n_resamples: int = N_RESAMPLES,
    ) -> tuple[list[Path], Frame]:
        """Write tables, plots and page, each file whole and the page last; these files, and the rows behind them.

        Parameters
        ----------
        probed
            Fits that this analysis has asked.
        facts, errors
            What was noted beside the results, and of those that failed.
        """
        rows = tidy(self.rows(probed, n_resamples=n_resamples), study=study_name, analysis=self.name)
        shown = as_written(rows)
        datasets: list[dict[str, Any]] = []
        plots: Plots = {}
        for name, own in by_dataset(probed):
            metric = headline(own[0].result)
            block, pictures = self.page(part(shown, dataset=name), metric)
            datasets.append({"name": name, "metric": TITLES.get(metric, metric), **about(own), **block})
            plots |= pictures
        page = render(
            self.template,
            name=self.name,
            title=self.title,
            study=study_name,
            n_done=len(probed),
            datasets=datasets,
            failed=failures(errors),
            n_failed=len(errors),
            devices=devices_in(facts),
        )
        tables = self.tables(rows) if len(rows) else {}
        return write_all(out, tables, plots, page), rows


def in_words(question: Mapping[str, Any]) -> str:
    """A question as text.

    >>> in_words({"kind": "drift", "level": 0.1, "fold": None})
    'kind drift, level 0.1'
    """
    return ", ".join(f"{name} {value}" for name, value in question.items() if value is not None)


def _by_question(own: Sequence[Probed]) -> tuple[dict[str, dict[str, Any]], dict[str, list[Any]]]:
    """Of the fits of one system: what was asked, and the results by question."""
    questions: dict[str, dict[str, Any]] = {}
    results: dict[str, list[Any]] = {}
    for item in own:
        for place, answer in enumerate(item.answers):
            settings = settings_of(answer.question)
            key = json.dumps(settings, default=str)
            questions[key] = settings
            results.setdefault(key, []).append(item.answer_as_result(place, key))
    return questions, results


def _key(row: Mapping[Any, Any], settings: Sequence[str]) -> str:
    return repr([row[name] for name in settings])


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


# Analyses by name ---------------------------------------------------------------------------------------------


@runtime_checkable
class RunsItself(Protocol):
    """An analysis that is more than questions to single fits: it refits, or keeps parts of its own.

    Both take the options of `raxss.benchmark.analyses.probing.run_analysis`: ``work, only, seeds, root``.
    """

    def run_study(self, study: Study, out: Path | str, **options: Any) -> AnalysisOutcome:
        """Carry it out as far as it is not done yet, and write its page."""

    def list_study(self, study: Study, out: Path | str, **options: Any) -> list[tuple[str, str]]:
        """Its fits, and whether each is done."""


@dataclass(frozen=True, eq=False)
class AnalysisOutcome(Outcome):
    """What there is of an analysis after a run.

    Attributes
    ----------
    rows
        The tidy table that its page was made from.
    """

    rows: Frame = field(default_factory=lambda: tidy([]))


ANALYSES: dict[str, type[Analysis]] = {}
"""Name -> class."""

Kind = TypeVar("Kind", bound=type[Analysis])


def register_analysis(name: str) -> Callable[[Kind], Kind]:
    """Make an analysis known by name, to `run_analysis`, to study files and to ``raxss analyse``.

    `Analysis` has an example. From the command line, name the Python file in ``extensions`` of the study.
    """

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
    """The class of a registered analysis.

    >>> find_analysis("reweihgting")
    Traceback (most recent call last):
    ...
    raxss.errors.ConfigError: there is no analysis 'reweihgting'... For one of your own see register_analysis.
    """
    if name not in ANALYSES:
        raise ConfigError(
            f"there is no analysis {name!r}{did_you_mean(name, sorted(ANALYSES))} For one of your own see "
            "register_analysis."
        )
    return ANALYSES[name]


@dataclass(frozen=True, kw_only=True)
class ForeignProbe:
    """An analysis of an extension as it travels to a worker, who imports the extension before anything is asked."""

    name: str
    settings: Mapping[str, Any]
    decided: Mapping[str, Any]

    def decides(self) -> Mapping[str, Any]:
        """What the analysis says, and the extensions that it may come from."""
        return self.decided

    def ask(self, asked: Asked) -> list[Answer]:
        """Ask as the analysis does."""
        return find_analysis(self.name)(**self.settings).ask(asked)


def travelling(probe: Probe, extensions: Iterable[Path]) -> Probe:
    """A probe that other processes can read, whoever has written it."""
    if not isinstance(probe, Analysis) or type(probe).__module__.startswith("raxss."):
        return probe
    settings = {item.name: getattr(probe, item.name) for item in dataclasses.fields(probe)}
    digests = [sha256_of(file) for file in extensions]
    return ForeignProbe(
        name=probe.name, settings=settings, decided={**probe.decides(), "extensions": digests}
    )


def _place(kind: type[Analysis]) -> str:
    """Module and name of a class; the same again when a notebook cell runs twice."""
    return f"{kind.__module__}.{kind.__qualname__}"
