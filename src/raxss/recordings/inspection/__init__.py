"""What is wrong with this file, before anything decodes it?"""

from raxss.recordings.inspection.problems import CODES, Inspection, Problem, Verdict

__all__ = ["CODES", "Inspection", "Problem", "Verdict"]
