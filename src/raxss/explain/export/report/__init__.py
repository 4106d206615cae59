"""Report of one recording, a page that opens offline: contents.py, page.py (the file), viewer/ (its script)."""

from raxss.explain.export.report.contents import report_of
from raxss.explain.export.report.page import Report

__all__ = ["Report", "report_of"]
