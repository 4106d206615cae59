"""Result of one run: the predictions of one system, seed and split, as a sealed JSON file.

The same run on the same device gives the same bytes; duration and hardware are in a file beside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raxss._core.atomic import json_ready
from raxss._core.bounded import read_json
from raxss._core.store import unsealed, write_sealed
from raxss.errors import DataError, TooSlowError

FORMAT = "raxss cell 1"
NOT_RUN = TooSlowError.__name__  # begins the error of a fit that was not begun, since it would take too long
ADDED = frozenset({"f1_classes", "changes"})  # newer than the format: written unless empty


@dataclass(frozen=True, eq=False, kw_only=True)
class RunResult:
    """Test predictions of one system, trained with one seed on one split."""

    dataset: str
    system: str
    seed: int
    fold: str | None = None  # the fold or the group left out; None for a single split
    config_hash: str  # of everything that decides the numbers: data, split, settings
    classes: tuple[Any, ...]  # columns of ``probabilities``
    positive: Any = None  # None of more than two classes
    f1_classes: tuple[Any, ...] = ()  # of more than two: those whose F1 is averaged; all if empty
    changes: dict[str, Any] = field(default_factory=dict)  # of the data, see `transforms.described_changes`
    settings: dict[str, Any] = field(default_factory=dict)  # parameters of the estimator, and the choice
    split: dict[str, Any] = field(default_factory=dict)  # grouping, balancing and sizes of the parts
    names: tuple[str, ...]  # (n_test,)
    labels: tuple[Any, ...]  # (n_test,)
    groups: tuple[str, ...]  # (n_test,), drawn by a bootstrap
    probabilities: NDArray[np.float64]  # (n_test, C)
    window_accuracy: float | None = (
        None  # share of test windows with the right class, where windows are scored
    )
    validation: dict[str, float] = field(default_factory=dict)  # metrics of the validation series
    n_parameters: int | None = None

    @property
    def scoring(self) -> dict[str, Any]:
        """Classes, as options of `raxss.metrics.score`."""
        return {"classes": self.classes, "positive": self.positive, "f1_classes": self.f1_classes}

    def to_json(self) -> dict[str, Any]:
        """Content of the file."""
        content = json_ready(dataclasses.asdict(self))
        return {name: value for name, value in content.items() if value or name not in ADDED}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> RunResult:
        """Read `to_json`."""
        known = dict(content)
        for name in ("classes", "names", "labels", "groups", "f1_classes"):
            known[name] = tuple(known.get(name, ()) if name in ADDED else known[name])
        known["probabilities"] = np.array(known["probabilities"], dtype=np.float64)
        return cls(**known)

    def write(self, path: Path | str) -> None:
        """Write sealed JSON."""
        write_sealed(path, {"format": FORMAT, **self.to_json()})

    @classmethod
    def read(cls, path: Path | str) -> RunResult:
        """Read a file of `write`; refuse a damaged one."""
        with damage_reported(path):
            return cls.from_sealed(read_json(path))

    @classmethod
    def from_sealed(cls, content: Mapping[str, Any]) -> RunResult:
        """Read the content of a file; ValueError if it was changed."""
        known = unsealed(content, FORMAT)
        return cls.from_json({name: value for name, value in known.items() if name != "format"})


@contextmanager
def damage_reported(path: Path | str) -> Iterator[None]:
    """Raise DataError for whatever goes wrong in reading a result."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"{Path(path).name!r} cannot be read as the result of a run ({error}); it was cut short or changed. "
            "Remove it and run the study again: what is missing is computed anew."
        ) from error
