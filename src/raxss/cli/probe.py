"""``raxss reweigh STUDY.toml --out DIR`` and ``raxss robustness STUDY.toml --out DIR``"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from raxss.cli.table import study_command


def _probe(question: str, about: str) -> Callable[..., None]:
    def functions() -> tuple[Any, Any]:
        from raxss.benchmark.analyses.probing import list_probe, run_probe

        return partial(run_probe, question), partial(list_probe, question)

    pages = {"page": f"{question}/README.md", "figures": f"{question}/comparisons.csv"}
    return study_command(about, functions, **pages)


reweigh = _probe(
    "reweighting",
    """Fit once, then ask about every weighting: do the weights of windows carry information, and do they help?

    Systems are those of the study that weigh windows. The page, DIR/reweighting/README.md, has each weighting
    beside its inverted and shuffled twin. DIR may be that of a table of the same study, whose prepared data is used
    again; after a kill the same command goes on with what is missing.
    """,
)
robustness = _probe(
    "robustness",
    """Fit on clean signals, then ask about spoiled ones: artefacts, noise, short recordings, few training series.

    Systems are those of the study that weigh windows. The page, DIR/robustness/README.md, compares each with the
    same model under uniform weights, and with sss. DIR may be that of a table of the same study; after a kill the
    same command goes on with what is missing.
    """,
)
