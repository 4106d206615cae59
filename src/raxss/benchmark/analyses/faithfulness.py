"""Analysis of faithfulness: can the explanations of a study's systems be trusted?

    Study, systems, seed -> each fitted as its run is -> probes on its test series -> DIR/<dataset>/README.md

    DIR/data/, DIR/splits/    as `raxss table` makes them; its own folder is refused, because its page would be lost
    DIR/<dataset>/parts/      results of each probe, series by series
    DIR/<dataset>/models/     one file for each system that is done
    DIR/README.md             the verdicts of all datasets, also of earlier runs

An interrupted run resumes with the next series.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from raxss._core.atomic import canonical_hash, json_ready, write_text
from raxss._core.store import computed_once
from raxss.benchmark.analyses.analysis import Analysis, of_kinds, register_analysis
from raxss.benchmark.analyses.faithfulness_control import controls_beside
from raxss.benchmark.analyses.faithfulness_report import rows_of, write_faithfulness, write_index
from raxss.benchmark.analyses.mil_adapter import MILModelAdapter
from raxss.benchmark.baselines.mil import MILClassifier
from raxss.benchmark.evaluation_set import View, slug
from raxss.benchmark.pages.tidy import tidy
from raxss.benchmark.result import RunResult
from raxss.benchmark.runs import Run, fit_run, plan_run
from raxss.benchmark.study import Study
from raxss.benchmark.systems import System
from raxss.benchmark.table import HERE, OpenedStudy, Outcome, Work, opened
from raxss.errors import ConfigError
from raxss.estimator.classifier import RAxSSClassifier
from raxss.explain.faithfulness.deletion import N_RANDOM, N_STEPS
from raxss.explain.faithfulness.model_adapter import ModelAdapter
from raxss.explain.faithfulness.running import PROBES, REVISION, STABILITY, Parts, Plan, run_probes
from raxss.method.window_scorer import pick_device


def subject_of(model: Any) -> ModelAdapter:
    """Adapter of a fitted model for probes."""
    if isinstance(model, RAxSSClassifier):
        return model.model_adapter()
    if isinstance(model, MILClassifier):
        return MILModelAdapter.of(model)
    raise ConfigError(
        f"a {type(model).__name__} shows no windows with weights, so there is no explanation to ask about. Give a "
        "RAxSSClassifier or a MILClassifier."
    )


@register_analysis("faithfulness")
@dataclass(frozen=True, kw_only=True)
class Faithfulness(Analysis):
    """Probes of one fold of each system: perturbed signals, swapped neighbours, randomised networks.

    Each system is refitted, for stability also with another seed. Every dataset has its own page. Settings are
    those of `raxss.explain.faithfulness.running.Plan`; 0 series stands for all.
    """

    title: ClassVar[str] = "how far can the explanations be trusted?"
    kinds: ClassVar[tuple[str, ...]] = ("windows", "mil")
    outputs: ClassVar[tuple[str, str]] = ("README.md", "*/summary.csv")

    n_series: int = 40
    seed: int = 69421
    probes: tuple[str, ...] = PROBES
    n_steps: int = N_STEPS
    n_random: int = N_RANDOM
    controls: bool = True  # whether planted motifs and random weights are probed too

    def __post_init__(self) -> None:
        _ = self.plan  # checks the settings

    @property
    def plan(self) -> Plan:
        """Plan of the probes."""
        settings = {item: getattr(self, item) for item in ("seed", "probes", "n_steps", "n_random")}
        return Plan(n_series=self.n_series or None, **settings)

    def run_study(self, study: Study, out: Path | str, **options: Any) -> Outcome:
        """Refit one seed of each system, the first by default, probe it on its test series, and write the pages."""
        study, device = self._checked(study, **options)
        if (Path(out) / "results.csv").exists():
            raise ConfigError(
                f"{Path(out).name!r} has the table of a study, whose page would be replaced. Choose another folder."
            )
        pages, rows, results, n_run = [], [], [], 0
        with opened(study, out, **options) as table:
            seed = table.seeds[0]
            for view, fits in self._fits(study, table, device):
                home = table.out / slug(view.name)
                n_run += sum(not fit.place.exists() for fit in fits)
                found = {fit.run.system.name: fit.parts() for fit in fits}
                results += [fit.result(found[fit.run.system.name]) for fit in fits]
                beside = {}
                if self.controls:
                    beside = controls_beside(
                        found.values(), table.out / "controls", plan=self.plan, device=device
                    )
                title = f"{view.name}, fold {study.seeds.index(seed)}"
                written = write_faithfulness(found, out=home, title=title, controls=beside)
                pages.append(written[-1])
                rows.append(rows_of(found).assign(dataset=view.name, seed=seed))
            write_index(table.out)
        all_rows = tidy(pd.concat(rows, ignore_index=True), study=study.name, analysis=self.name)
        return Outcome(results, [], n_run, files=pages, rows=all_rows)

    def list_study(self, study: Study, out: Path | str, **options: Any) -> list[tuple[str, str]]:
        """The fits of `run_study`, and whether each is done."""
        study, device = self._checked(study, **options)
        with opened(study, out, read_only=True, **options) as table:
            fits = [fit for _, some in self._fits(study, table, device) for fit in some]
            return [(str(fit.run), "done" if fit.place.exists() else "to do") for fit in fits]

    def _fits(self, study: Study, table: OpenedStudy, device: str) -> Iterator[tuple[View, list[_Fit]]]:
        """The fits of each dataset."""
        seed = table.seeds[0]
        for view, rows in itertools.groupby(table.rows(table.names), key=itemgetter(0)):
            home = table.out / slug(view.name)
            yield view, [_Fit.of(study, view, system, seed, home, self.plan, device) for _, system in rows]

    def _checked(
        self,
        study: Study,
        *,
        work: Work = HERE,
        only: Sequence[str] = (),
        seeds: Sequence[int] = (),
        **_: Any,
    ) -> tuple[Study, str]:
        """The study with the systems that can be probed, and the device."""
        if work.engine != "local" or work.n_workers != 1:
            raise ConfigError(
                f"faithfulness probes one fit after the other in this process, but {work.n_workers} workers of the "
                f"engine {work.engine!r} were given; leave both out."
            )
        if len(seeds) > 1:
            raise ConfigError(
                f"faithfulness probes one seed, but {list(seeds)} were named; choose one of them."
            )
        return of_kinds(study, self.kinds, only), work.device


def seed_of(study: Study, fold: int) -> int:
    """The seed of a fold, counted from 0.

    >>> seed_of(Study.from_toml('seeds = [4, 7]\\n[dataset]\\ndata = "synthetic"'), 1)
    7
    """
    if not 0 <= fold < len(study.seeds):
        raise ConfigError(
            f"fold is {fold}; the study has the seeds {list(study.seeds)}: 0 to {len(study.seeds) - 1}."
        )
    return study.seeds[fold]


def another_seed(study: Study, seed: int) -> int:
    """The study's next seed, or the next number if it has one.

    >>> study = Study.from_toml('systems = ["sss"]\\nseeds = [4, 7]\\n[dataset]\\ndata = "synthetic"')
    >>> another_seed(study, 4), another_seed(study, 7)
    (7, 4)
    """
    seeds = list(dict.fromkeys(study.seeds))
    return seeds[(seeds.index(seed) + 1) % len(seeds)] if len(seeds) > 1 else seed + 1


def with_seed(run: Run, seed: int) -> Run:
    """The run with another seed on the same split; it is none of the study, and not kept."""
    return replace(run, seed=seed, view=replace(run.view, splits={seed: run.split}))


@dataclass(frozen=True, eq=False)
class _Fit:
    """One system of one dataset, and the file with the results of its probes."""

    run: Run
    second: int | None  # seed of the fit for stability
    plan: Plan
    home: Path
    place: Path
    key: str

    @classmethod
    def of(
        cls, study: Study, view: View, system: System, seed: int, home: Path, plan: Plan, device: str
    ) -> _Fit:
        """Its file is named after the hash of run and plan."""
        run = plan_run(study, view, system, seed, home, device=str(pick_device(device)))
        second = another_seed(study, seed) if STABILITY in plan.probes else None
        digest = canonical_hash(json_ready([REVISION, run.config_hash, asdict(plan), second]))[:12]
        place = home / "models" / f"{slug(system.name)}-{digest}.json"
        return cls(run, second, plan, home, place, digest)

    def parts(self) -> Parts:
        """Kept or new results of the probes."""
        write_text(self.place.parent / ".gitignore", "*\n")  # like the parts that they hold
        return Parts(**computed_once(self.place, self.key, self._compute))

    def result(self, parts: Parts) -> RunResult:
        """Predictions of the probed series."""
        run = self.run
        return RunResult(
            dataset=run.view.name,
            system=run.system.name,
            seed=run.seed,
            fold=run.split.fold,
            config_hash=run.config_hash,
            classes=run.view.classes,
            positive=run.view.positive,
            names=tuple(item["name"] for item in parts.series),
            labels=tuple(item["label"] for item in parts.series),
            groups=tuple(item["group"] for item in parts.series),
            probabilities=np.array([item["probability"] for item in parts.series]),
        )

    def _compute(self) -> dict[str, Any]:
        run = self.run
        model, test = fit_run(run)
        other = None if self.second is None else subject_of(fit_run(with_seed(run, self.second))[0])
        about = {
            "model": run.system.name,
            "dataset": run.view.name,
            "seed": run.seed,
            "other_seed": self.second,
            "settings": json_ready(run.settings),
        }
        found = run_probes(subject_of(model), test, self.home, plan=self.plan, other=other, about=about)
        return asdict(found)
