"""Compare settings of `tuned` by cross-validation inside the training series of a study's first fold.

    python scripts/try_settings.py studies/bonn.toml --root FOLDER --out trials.csv \\
        'as it is={}' 'longer={"max_epochs": 12}'

The test series of the first fold are never loaded into a model: its training series are split again, into inner
folds. A row for each setting and fold; an interrupted command resumes. With --noise, the same models also predict
test series in white noise of 10 and 0 dB.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from raxss._core.atomic import write_text
from raxss.benchmark.analyses.artefacts import noisy
from raxss.benchmark.runs import Run, fit_run, plan_run
from raxss.benchmark.study import Study
from raxss.benchmark.table import Work, opened
from raxss.data.prepare.folder import read_prepared
from raxss.data.splits import folds
from raxss.metrics import score

SYSTEM = "tuned"
NOISE = {"auc_10dB": 10, "auc_0dB": 0}


def inner_runs(
    study: Study, arguments: argparse.Namespace, settings: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, int, Run]]:
    """Name, inner fold and fit of each setting, one inner fold after the other."""
    home = arguments.out.with_suffix("")
    with opened(study, home, work=Work(device=arguments.device), root=arguments.root) as table:
        ((view, system),) = table.rows([SYSTEM])
        seed = study.seeds[0]
        outer = view.splits[seed]
        inside = np.sort(np.concatenate([outer.train, outer.validation]))
        part = read_prepared(view.folder)[inside]
        for fold, item in enumerate(folds(part, by=outer.by, n_folds=arguments.folds, seed=0)):
            split = replace(
                item, train=inside[item.train], validation=inside[item.validation], test=inside[item.test]
            )
            if set(outer.test) & {*split.train, *split.validation, *split.test}:
                raise AssertionError("a test series of the outer fold is in an inner one")
            inner = replace(view, splits={seed: split})
            for name, own in settings.items():
                changed = system.with_settings(SYSTEM, own)
                yield name, fold, plan_run(study, inner, changed, seed, home, device=arguments.device)


def figures_of(run: Run, *, noise: bool) -> dict[str, float]:
    """Fit, and score the inner test series."""
    model, test = fit_run(run)
    classes, positive = np.asarray(model.classes_), run.view.positive

    def scored(series: Any) -> dict[str, float]:
        found = model.predict_proba(series)
        return score(test.labels, found, classes=classes, positive=positive, f1_classes=run.view.f1_classes)

    found = {name: scored(test)[name] for name in ("auc", "f1", "accuracy")}
    spoiled = {name: [noisy(item, level) for item in test] for name, level in NOISE.items() if noise}
    return found | {name: scored(some)["auc"] for name, some in spoiled.items()}


def main() -> None:
    """Try every setting on every inner fold that is not done yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("settings", nargs="+", help="NAME={...}: settings in JSON")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--noise", action="store_true")
    arguments = parser.parse_args()
    settings = {
        name: json.loads(own) for name, _, own in (setting.partition("=") for setting in arguments.settings)
    }
    rows: list[dict[Any, Any]] = (
        pd.read_csv(arguments.out).to_dict("records") if arguments.out.exists() else []
    )
    done = {(row["settings"], row["fold"]) for row in rows}
    for name, fold, run in inner_runs(Study.read(arguments.study), arguments, settings):
        if (name, fold) not in done:
            rows.append({"settings": name, "fold": fold, **figures_of(run, noise=arguments.noise)})
            write_text(arguments.out, pd.DataFrame(rows).to_csv(index=False))
            print(rows[-1], flush=True)


if __name__ == "__main__":
    main()
