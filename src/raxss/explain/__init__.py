"""Explanations of series scores: evidence, figures, reports, exports, and tests of their faithfulness.

tracing.py makes the evidence of a prediction, series_evidence.py holds it, figures.py draws it. findings.py ranks
the channels of a recording. export/ writes reports (report/), tables, MNE annotations and BIDS derivatives.
"""

from raxss.explain.evidence import safe_name
from raxss.explain.export.annotations import mne_annotations
from raxss.explain.export.report import report_of
from raxss.explain.export.report.page import Report
from raxss.explain.export.tables import write_tables
from raxss.explain.figures import plot_contributions, plot_overlay
from raxss.explain.series_evidence import SeriesEvidence
from raxss.explain.tracing import trace

__all__ = [
    "SeriesEvidence",
    "trace",
    "write_tables",
    "safe_name",
    "plot_overlay",
    "plot_contributions",
    "Report",
    "report_of",
    "mne_annotations",
]
