"""Inspection of recordings before they are trusted: headers, sidecars, whole BIDS datasets, and signals.

What is looked at in one file is up to its format (formats/). Read sidecars.py and bids.py (tables beside a
recording), signals.py (what is wrong with the samples), then front.py, the way in: `inspect_file`, `inspect_paths`.
"""

from raxss.data.inspection.front import inspect_file, inspect_paths
from raxss.data.problems import CODES, Inspection, Problem, Verdict

__all__ = ["CODES", "Inspection", "Problem", "Verdict", "inspect_file", "inspect_paths"]
