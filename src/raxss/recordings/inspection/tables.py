"""What is in the tables and JSON files beside a recording?

    .tsv -> Table; .json -> dict; or Refused, with what is wrong

Sizes are bounded, nothing outside the root is opened, and no cell is quoted: events and participants are
about people. Next: bids.py holds the content against the recording.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raxss.errors import RecordingError, shown
from raxss.recordings import tables
from raxss.recordings.inspection.confinement import open_confined, problem_of_opening
from raxss.recordings.inspection.fields import Refused, not_downloaded, quoted
from raxss.recordings.tables import Table
from raxss.strict_json import DuplicateKeyError, loads

JSON_BYTES = 2**22


def read_table(path: Path, root: Path) -> Table:
    """A tab-separated table, as `raxss.recordings.tables` reads it; what that refuses is a problem with a code.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "channels.tsv"
    >>> _ = path.write_text("name\\ttype\\nG1\\tECOG\\n")
    >>> read_table(path, path.parent).values("type")
    ('ECOG',)
    """
    _refuse_unopenable(path, root)
    try:
        return tables.read_table(path)
    except RecordingError as error:
        raise Refused("sidecar-damaged", str(error)) from None


def read_json(path: Path, root: Path) -> dict[str, Any]:
    """A JSON object.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "ieeg.json"
    >>> _ = path.write_text('{"SamplingFrequency": 1000}')
    >>> read_json(path, path.parent)
    {'SamplingFrequency': 1000}
    """
    text = _text_of(path, root, JSON_BYTES)
    try:
        value = loads(text)
    except DuplicateKeyError as error:  # the name of a field is quoted, never a value
        found = f"has the field {quoted(error.key)} twice; which value counts is not certain"
        raise _damaged(path, found) from None
    except (ValueError, RecursionError):  # bad syntax, thousands of digits; nested without end
        raise _damaged(path, "is not JSON") from None
    if not isinstance(value, dict):
        raise _damaged(path, "holds no JSON object ({...})")
    return value


def _refuse_unopenable(path: Path, root: Path) -> None:
    problem = problem_of_opening(path, root)
    if problem is not None and problem.code == "not-found" and not_downloaded(path, root):
        raise Refused(
            "not-found", f"{shown(path)} is not downloaded: there is only a git-annex link. Fetch it."
        )
    if problem is not None:
        raise Refused(problem.code, problem.message)


def _text_of(path: Path, root: Path, most_bytes: int) -> str:
    _refuse_unopenable(path, root)
    with open_confined(path, root) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise _damaged(path, f"is longer than {most_bytes:,} bytes, which no real one is")
    if b"\0" in content:
        raise _damaged(path, "has NUL bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _damaged(path, "is not text in UTF-8") from None


def _damaged(path: Path, found: str) -> Refused:
    return Refused("sidecar-damaged", f"{shown(path)} {found}. Correct it, or copy it again.")
