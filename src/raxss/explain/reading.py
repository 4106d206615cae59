"""Reader of saved evidence, with validation of every field.

    evidence.json, windows.parquet, neighbors.parquet -> the parts of `SeriesEvidence`, each of the right kind

Files may have been changed by hand or damaged; such a folder is refused when it is loaded, not when it is shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raxss._core.bounded import MAX_JSON_MEMORY, json_memory, json_of, read_bytes
from raxss.errors import DataError, display_name
from raxss.explain.neighbour_lists import Columns, columns_of
from raxss.uncertainty.bootstrap import Interval

MAX_WHOLE_BYTES = 2**25  # up to which evidence.json is read whole
MAX_HEAD_BYTES = 2**22  # of the part before its tables
TABLES = (b',\n  "windows_left_out": {', b',\n  "windows": [')  # begin what is in the Parquet files as well
FLAGS = ("flat", "nonfinite", "lonely", "padded")
OF_NEIGHBORS = ("window", "rank", "neighbor", "start_s", "end_s", "similarity", "overlap_s")


def read_head(path: Path) -> dict[str, Any]:
    """Contents of evidence.json without its tables.

    Of a long recording the tables have hundreds of megabytes, and `SeriesEvidence.load` has them from the Parquet
    files. So of a large file only the part before them is read, which is how raxss writes it.
    """
    size, what = path.stat().st_size, display_name(path)
    if size <= MAX_WHOLE_BYTES:
        content = read_bytes(path, what, MAX_WHOLE_BYTES, why="a longer one is read up to its tables")
        if json_memory(content) <= MAX_JSON_MEMORY:
            return _object(json_of(content, what))
        content = content[:MAX_HEAD_BYTES]
    else:
        with open(path, "rb") as file:
            content = file.read(MAX_HEAD_BYTES)
    ends = [place for place in map(content.find, TABLES) if place >= 0]
    if not ends:
        raise DataError(
            f"{what} has {size:,} bytes, and no tables begin in its first {MAX_HEAD_BYTES:,}; up to "
            f"{MAX_WHOLE_BYTES:,} bytes it is read whole, of a longer one what stands before its tables, because "
            "those are in the Parquet files"
        )
    return _object(json_of(content[: min(ends)] + b"\n}", what))


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError("evidence.json holds no JSON object")
    return value


def summary_of(head: Mapping[str, Any], names: list[str], later: tuple[str, ...]) -> dict[str, Any]:
    """The fields of `SeriesEvidence` besides its tables, from the head of evidence.json."""
    found: dict[str, Any] = {name: head[name] for name in names if name not in later}
    classes = found["classes"] = tuple(_listed("classes", head["classes"]))
    for class_ in (*classes, head["label"], head["predicted"]):
        _need(
            class_ is None or isinstance(class_, str | int | float), "a class or label is a text or a number"
        )
    _need(bool(classes) and len(set(map(str, classes))) == len(classes), "each class is there once")
    _need(head["predicted"] in classes, "what was predicted is one of the classes")
    found["predicted"] = classes[classes.index(head["predicted"])]
    _need(isinstance(head["name"], str), "the name is a text")
    for name in ("rate", "seconds", "effective_windows", "effective_share", "overlap_share"):
        found[name] = np.nan if name == "overlap_share" and head[name] is None else number(name, head[name])
    _need(found["rate"] > 0 and found["seconds"] > 0, "rate and seconds are above 0")
    found["series_probability"] = _numbers("series_probability", head["series_probability"], len(classes))
    _need(isinstance(head["settings"], dict), "settings are an object")
    _texts("warnings", head["warnings"])
    if head.get("calibrated_probability") is not None:
        given = head["calibrated_probability"]
        found["calibrated_probability"] = _numbers("calibrated_probability", given, len(classes))
        _need("calibration" in head["settings"], "settings tell the calibration")
    if head.get("from_context") is not None:
        found["from_context"] = _numbers("from_context", head["from_context"], len(classes))
    if head.get("interval") is not None:
        found["interval"] = _interval(head["interval"], len(classes))
    if head.get("prediction_set") is not None:
        found["prediction_set"] = tuple(_listed("prediction_set", head["prediction_set"]))
        _need(
            all(item in classes for item in found["prediction_set"]), "the prediction set has classes alone"
        )
        alpha = number("conformal_alpha", head["settings"].get("conformal_alpha"))
        _need(0 <= alpha <= 1, "conformal_alpha is from 0 to 1")
    if head.get("notes") is not None:
        found["notes"] = tuple(_texts("notes", head["notes"]))
    return found


def columns_checked(windows: pd.DataFrame, neighbors: pd.DataFrame, classes: tuple[Any, ...]) -> Columns:
    """The columns of the windows; refused where one that is used is missing or holds no numbers."""
    columns = columns_of(windows)
    numbers = ["window", "start_s", "end_s", "support", "weight"]
    numbers += [f"{what}_{class_}" for class_ in classes for what in ("posterior", "contribution")]
    for table, names, kinds, what in (
        (windows, numbers, "iuf", "windows have numbers"),
        (windows, FLAGS, "b", "windows have truth values"),
        (neighbors, OF_NEIGHBORS, "iuf", "neighbors have numbers"),
    ):
        for name in names:
            _need(name in table and table[name].dtype.kind in kinds, f"{what} in {name[:40]!r}")
    _need(len(windows) > 0, "there is a window")
    _need(bool((columns["window"] == np.arange(len(windows))).all()), "windows are numbered from 0")
    return columns


def number(name: str, value: Any) -> float:
    """A finite number; no text, no truth value."""
    _need(isinstance(value, int | float) and not isinstance(value, bool), f"{name} is a number")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    _need(math.isfinite(found), f"{name} is finite")
    return found


def _numbers(name: str, values: Any, length: int) -> NDArray[np.float64]:
    found = np.array([number(name, value) for value in _listed(name, values)], dtype=np.float64)
    _need(found.shape == (length,), f"{name} has a number for each class")
    return found


def _interval(value: Any, n_classes: int) -> Interval:
    _need(isinstance(value, dict) and isinstance(value.get("method"), str), "the interval names its method")
    low, high = (_numbers(f"interval.{name}", value.get(name), n_classes) for name in ("low", "high"))
    level = value.get("level")
    return Interval(low, high, value["method"], None if level is None else number("interval.level", level))


def _listed(name: str, value: Any) -> list[Any]:
    _need(isinstance(value, list), f"{name} is a list")
    return list(value)


def _texts(name: str, value: Any) -> list[str]:
    _need(all(isinstance(item, str) for item in _listed(name, value)), f"{name} are texts")
    return list(value)


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise DataError(f"needed is that {what}")
