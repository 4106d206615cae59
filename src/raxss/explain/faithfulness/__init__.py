"""Tests of explanations: faithfulness, stability and localisation of evidence.

    ModelAdapter (a model as probes see it), series -> probes -> measures with intervals -> a verdict in words

Evidence adds up to the score by construction, which does not show that the score rests on it. So signals are
perturbed, neighbours swapped and networks randomised, and every probe has a control whose outcome is known.
Reading order: timeline.py, perturbation.py, gradients.py, perturbed_series.py, model_adapter.py; one file a
probe; running.py.
"""

from raxss.explain.faithfulness.counterfactual import replaced_windows, smallest_flip
from raxss.explain.faithfulness.deletion import Deleted, delete_and_insert
from raxss.explain.faithfulness.linear_probing import held_features, linear_probe, properties
from raxss.explain.faithfulness.localisation import (
    Found,
    average_precisions,
    band_power,
    in_windows,
    line_length,
    located,
    shift_test,
    truth_of,
    windows_that_know,
)
from raxss.explain.faithfulness.marks import Mark, as_marked, read_events, read_marked, truth_from
from raxss.explain.faithfulness.measures import mean_curves, measures_of, summarised
from raxss.explain.faithfulness.model_adapter import ModelAdapter, WindowAttribution, WindowModelAdapter
from raxss.explain.faithfulness.one_series import SeriesFaithfulness, faithfulness_of
from raxss.explain.faithfulness.randomisation import randomised_network, randomised_retrieval
from raxss.explain.faithfulness.running import PROBES, Parts, Plan, run_probes
from raxss.explain.faithfulness.stability import changed_a_little
from raxss.explain.faithfulness.verdict import PAGE, Statement, statements, verdict, verdict_for_report

__all__ = [
    "ModelAdapter",
    "WindowModelAdapter",
    "WindowAttribution",
    "delete_and_insert",
    "Deleted",
    "located",
    "Found",
    "truth_of",
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
    "randomised_retrieval",
    "randomised_network",
    "replaced_windows",
    "smallest_flip",
    "changed_a_little",
    "held_features",
    "linear_probe",
    "properties",
    "faithfulness_of",
    "SeriesFaithfulness",
    "run_probes",
    "Plan",
    "Parts",
    "PROBES",
    "measures_of",
    "summarised",
    "mean_curves",
    "statements",
    "Statement",
    "verdict",
    "PAGE",
    "verdict_for_report",
]
