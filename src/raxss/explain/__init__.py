"""Why did a series get its score?

tracing.py takes a prediction apart into what series_evidence.py holds; tables of many series are in
export/tables.py, pictures in figures.py. Of a whole recording findings.py tells, which export/annotations.py takes
to MNE, export/derivatives.py to BIDS and export/pdf.py to paper. The page to open is in export/report/.
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
