"""Analyses of a study by name; every module of this package is imported, so that analyses register themselves."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any

import raxss.benchmark.analyses
from raxss.benchmark.analyses.analysis import Analysis, find_analysis
from raxss.benchmark.study import Study, load_extensions
from raxss.benchmark.table import Outcome

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


def run_analysis(name: str, study: Study, out: Path | str, **options: Any) -> Outcome:
    """Run an analysis with the study's settings, as far as it is not done yet, and write its page.

    Options are those of `raxss.benchmark.table.opened`.
    """
    return analysis_for(study, name).run_study(study, out, **options)


def list_analysis(name: str, study: Study, out: Path | str, **options: Any) -> list[tuple[str, str]]:
    """Every fit of `run_analysis`, and whether it is done; as `raxss.benchmark.table.list_table`."""
    return analysis_for(study, name).list_study(study, out, **options)
