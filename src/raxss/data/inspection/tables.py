"""Tables and JSON files beside a recording, read with bounds and below the root alone.

    .tsv -> Table; .json -> dict; or Refused, with what is wrong

Sizes are bounded, nothing outside the root is opened, and no cell is quoted: events and participants are
about people. Next: bids.py holds the content against the recording.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raxss._core.bounded import json_of, read_open
from raxss.data import tables
from raxss.data.formats.fields import Refused, open_unrefused
from raxss.data.tables import Table
from raxss.errors import DataError, RecordingError, display_name

JSON_BYTES = 2**22


def read_table(path: Path, root: Path, *, most_rows: int = tables.MAX_TABLE_ROWS) -> Table:
    """A tab-separated table, as `raxss.data.tables` reads it; what that refuses is a problem with a code."""
    open_unrefused(path, root).close()
    try:
        return tables.read_table(path, most_rows=most_rows)
    except RecordingError as error:
        raise Refused("sidecar-damaged", str(error)) from None


def read_json(path: Path, root: Path) -> dict[str, Any]:
    """A JSON object."""
    why = "no JSON file beside a recording is longer"
    try:
        with open_unrefused(path, root) as file:
            content = read_open(file, display_name(path), JSON_BYTES, why=why)
        value = json_of(content, display_name(path), finite=False)
    except DataError as error:
        raise Refused("sidecar-damaged", str(error)) from None
    if not isinstance(value, dict):
        raise Refused("sidecar-damaged", f"{display_name(path)} holds no JSON object ({{...}}). Correct it.")
    return value
