"""What is wrong with this file, before anything decodes it?

Read problems.py (what can be said), confinement.py (what may be opened), then one module a format, signals.py
(what is wrong with the samples) and front.py, the way in: `inspect_file` and `inspect_paths`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raxss.data.problems import CODES, Inspection, Problem, Verdict

if TYPE_CHECKING:
    from raxss.data.inspection.front import inspect_file, inspect_paths

__all__ = ["CODES", "Inspection", "Problem", "Verdict", "inspect_file", "inspect_paths"]


def __getattr__(name: str) -> Any:
    # Recordings carry problems, and the front door opens recordings: it is imported when first asked for.
    if name in ("inspect_file", "inspect_paths"):
        from raxss.data.inspection import front

        return getattr(front, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
