"""How are systems of a study asked whether their explanations can be trusted?

    Study, systems, fold -> each fitted as its cell is -> probes on its test series -> DIR/<dataset>/README.md

    DIR/data/, DIR/splits/    as `raxss table` makes them; its own folder is refused, because its page would be lost
    DIR/<dataset>/parts/      what each probe found, series by series
    DIR/<dataset>/models/     one file for each system that is done
    DIR/README.md             the verdicts of all datasets, also of earlier runs

After a kill the same command goes on: what is done is not fitted again, and what was begun goes on with the next
series. Next: faithfulness_report.py writes the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from raxss._core.atomic import canonical_hash, json_ready, write_text
from raxss._core.store import computed_once
from raxss.benchmark.analyses.faithfulness_control import run_controls
from raxss.benchmark.analyses.mil_adapter import MILSubject
from raxss.benchmark.baselines.mil import MILClassifier
from raxss.benchmark.evaluation_set import View, slug
from raxss.benchmark.runs import Cell, cell_of, fit_cell
from raxss.benchmark.study import Study, load_extensions
from raxss.benchmark.systems import System
from raxss.benchmark.table import Work, opened
from raxss.errors import ConfigError
from raxss.estimator.classifier import RAxSSClassifier
from raxss.explain.faithfulness.model_adapter import Subject
from raxss.explain.faithfulness.running import REVISION, STABILITY, Parts, Plan, run_probes
from raxss.method.window_scorer import pick_device

KINDS = ("windows", "mil")


def subject_of(model: Any) -> Subject:
    """A fitted model as probes see it: of windows and weights, or pooled by attention.

    >>> subject_of(42)
    Traceback (most recent call last):
    ...
    raxss.errors.ConfigError: a int shows no windows with weights, so there is no explanation to ask about. ...
    """
    if isinstance(model, RAxSSClassifier):
        return model.subject()
    if isinstance(model, MILClassifier):
        return MILSubject(model)
    raise ConfigError(
        f"a {type(model).__name__} shows no windows with weights, so there is no explanation to ask about. Give a "
        "RAxSSClassifier or a MILClassifier."
    )


def run_study(
    study: Study,
    out: Path | str,
    *,
    systems: Sequence[str] = (),
    fold: int = 0,
    plan: Plan | None = None,
    controls: bool = True,
    root: Path | str | None = None,
    device: str = "auto",
) -> list[Path]:
    """Refit one fold of each system, probe it on its test series, and write a page for each dataset.

    For stability each is fitted once more, on the same split with another seed.

    Parameters
    ----------
    systems
        Names of the study's; all that weigh or pool windows otherwise.
    fold
        Which of the study's seeds, from 0.
    controls
        Whether planted motifs and random weights are probed too, to be shown beside.

    Examples
    --------
    >>> import tempfile
    >>> study = Study.from_toml('''
    ... systems = ["sss"]
    ... seeds = [1]
    ... training = { max_epochs = 1 }
    ... [dataset]
    ... data = "synthetic"
    ... windows = { window_length = 256, stride = 128 }
    ... ''')
    >>> plan = Plan(n_series=2, probes=("stability",))
    >>> pages = run_study(study, tempfile.mkdtemp(), plan=plan, controls=False, device="cpu")
    >>> [page.name for page in pages]
    ['README.md']
    """
    from raxss.benchmark.analyses.faithfulness_report import (  # matplotlib takes a while to import
        write_faithfulness,
        write_index,
    )

    plan = plan or Plan()
    load_extensions(study.extensions)
    names = _names(study, systems)
    if not 0 <= fold < len(study.seeds):
        raise ConfigError(
            f"fold is {fold}; the study has the seeds {list(study.seeds)}: 0 to {len(study.seeds) - 1}."
        )
    if (Path(out) / "results.csv").exists():
        raise ConfigError(
            f"{Path(out).name!r} has the table of a study, whose page would be replaced. Choose another folder."
        )
    pages = []
    with opened(replace(study, systems=tuple(names)), out, Work(device=device), root) as table:
        rows = table.rows(names)
        for view in dict.fromkeys(view for view, _ in rows):
            found = {}
            home = table.out / slug(view.name)
            own = [system for of, system in rows if of is view]
            for system in own:
                found[system.name] = _probed(study, view, system, study.seeds[fold], home, plan, device)
            beside = run_controls(table.out / "controls", plan=plan, device=device) if controls else {}
            written = write_faithfulness(found, out=home, title=f"{view.name}, fold {fold}", controls=beside)
            pages.append(written[-1])
        write_index(table.out)
    return pages


def _names(study: Study, systems: Iterable[str]) -> list[str]:
    compared = study.compared()
    able = [name for name, one in compared.items() if one.kind in KINDS]
    chosen = list(systems) or able
    for name in chosen:
        if name not in able:
            raise ConfigError(
                f"system {name!r} is not among those of the study that weigh or pool windows: "
                f"{', '.join(able) or 'none'}. Name some of these."
            )
    return chosen


def another_seed(study: Study, seed: int) -> int:
    """The study's next seed, or the next number where it has one alone.

    >>> study = Study.from_toml('systems = ["sss"]\\nseeds = [4, 7]\\n[dataset]\\ndata = "synthetic"')
    >>> another_seed(study, 4), another_seed(study, 7)
    (7, 4)
    """
    seeds = list(dict.fromkeys(study.seeds))
    return seeds[(seeds.index(seed) + 1) % len(seeds)] if len(seeds) > 1 else seed + 1


def with_seed(cell: Cell, seed: int) -> Cell:
    """The same fit, on the same split, with other initial weights and another order of batches.

    It is no cell of the table, where a seed has a split of its own; nothing is kept of it.
    """
    return replace(cell, seed=seed, view=replace(cell.view, splits={seed: cell.split}))


def _probed(
    study: Study, view: View, system: System, seed: int, home: Path, plan: Plan, device: str
) -> Parts:
    """What was found before, or what is found now."""
    cell = cell_of(study, view, system, seed, home, device=str(pick_device(device)))
    second = another_seed(study, seed) if STABILITY in plan.probes else None
    digest = canonical_hash(json_ready([REVISION, cell.config_hash, asdict(plan), second]))[:12]

    def compute() -> dict[str, Any]:
        model, test = fit_cell(cell)
        other = None if second is None else subject_of(fit_cell(with_seed(cell, second))[0])
        about = {
            "model": system.name,
            "dataset": view.name,
            "seed": seed,
            "other_seed": second,
            "settings": json_ready(cell.settings),
        }
        parts = run_probes(subject_of(model), test, home, plan=plan, other=other, about=about)
        return asdict(parts)

    write_text(home / "models" / ".gitignore", "*\n")  # like the parts that they hold
    return Parts(**computed_once(home / "models" / f"{slug(system.name)}-{digest}.json", digest, compute))
