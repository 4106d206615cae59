"""The analyses of this package, imported so that their names are known; a study chooses one with its settings.

Every module of the package is imported: an analysis is one file that registers itself.
"""

from __future__ import annotations

import importlib
import pkgutil

import raxss.benchmark.analyses
from raxss.benchmark.analyses.analysis import Analysis, find_analysis
from raxss.benchmark.study import Study, load_extensions


def analysis_for(study: Study, name: str) -> Analysis:
    """An analysis with the settings that a study gives it; an unknown analysis in the study is refused.

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
    for item in study.analyses:
        find_analysis(item)
    return find_analysis(name).from_settings(study.analyses.get(name, {}))


# Last, since probing.py takes `analysis_for` from here.
for _module in pkgutil.iter_modules(raxss.benchmark.analyses.__path__):
    importlib.import_module(f"{raxss.benchmark.analyses.__name__}.{_module.name}")
