"""Tests of explanations: faithfulness, stability and localisation of evidence.

    ModelAdapter (a model as probes see it), series -> probes -> measures with intervals -> a verdict in words

Evidence adds up to the score by construction, which does not show that the score rests on it. So signals are
perturbed, neighbours swapped and networks randomised, and every probe has a control whose outcome is known.
Reading order: timeline.py, perturbation.py, perturbed_series.py, model_adapter.py; one file a probe; running.py.
"""

from raxss.explain.faithfulness.localisation import (
    average_precisions,
    band_power,
    in_windows,
    line_length,
    shift_test,
    windows_that_know,
)
from raxss.explain.faithfulness.marks import Mark, as_marked, read_events, read_marked, truth_from
from raxss.explain.faithfulness.measures import measures_of, summarised
from raxss.explain.faithfulness.model_adapter import WindowAttribution
from raxss.explain.faithfulness.running import Plan, SeriesFaithfulness, run_probes
from raxss.explain.faithfulness.verdict import statements, verdict

__all__ = [
    "WindowAttribution",
    "read_marked",
    "read_events",
    "Mark",
    "truth_from",
    "as_marked",
    "average_precisions",
    "shift_test",
    "windows_that_know",
    "in_windows",
    "band_power",
    "line_length",
    "SeriesFaithfulness",
    "run_probes",
    "Plan",
    "measures_of",
    "summarised",
    "statements",
    "verdict",
]
