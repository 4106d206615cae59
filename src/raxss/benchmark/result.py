"""What does one run of a comparison leave behind?

    one fit of one system on one split -> RunResult -> a JSON file that appears whole, and says when it is not

The file holds what the numbers of the table come from: the probability of every test series. The same run on
the same device gives the same bytes; how long it took, and where, lies in a file beside it.
Next: runs.py makes them; pages/report.py puts them into a table.
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
from raxss.errors import DataError

FORMAT = "raxss cell 1"
ADDED = frozenset({"f1_classes", "changes"})  # later than the format: written where they say something


@dataclass(frozen=True, eq=False, kw_only=True)
class RunResult:
    """How one system, trained with one seed on one split, did on the test part.

    Attributes
    ----------
    dataset, system, seed, fold
        Which run it is. ``fold`` is None for a single split, else the fold or the group left out.
    config_hash
        Of everything that decides the numbers: data, split, settings.
    classes, positive
        Columns of ``probabilities``; the class that F1, AUC and average precision are about, None where there are
        more than two.
    f1_classes
        Of more than two: those whose F1 is averaged; all where it is empty.
    changes
        What was done to the data beyond its preparation: ``sources`` that were joined, the ``crop`` to random
        lengths, ``shuffled`` labels, and the ``seed`` of the last two; empty where nothing was.
    settings
        As resolved: those of the estimator, and what was chosen on validation.
    split
        What was kept together, how it was balanced, how many series in each part.
    names, labels, groups
        ``(n_test,)`` of the test series; groups are what a bootstrap draws.
    probabilities
        ``(n_test, C)``.
    window_accuracy
        Share of the test windows with the right class; None for systems that score no windows.
    validation
        Figures on the validation part.
    n_parameters
        Of the network, None where there is none.

    Examples
    --------
    >>> import tempfile
    >>> result = RunResult(dataset="toy", system="sss", seed=1, config_hash="ab12", classes=("a", "b"),
    ...                     positive="b", names=("s1", "s2"), labels=("a", "b"), groups=("g1", "g2"),
    ...                     probabilities=np.array([[0.9, 0.1], [0.2, 0.8]]))
    >>> place = Path(tempfile.mkdtemp()) / "cell.json"
    >>> result.write(place)
    >>> RunResult.read(place).probabilities
    array([[0.9, 0.1],
           [0.2, 0.8]])
    """

    dataset: str
    system: str
    seed: int
    fold: str | None = None
    config_hash: str
    classes: tuple[Any, ...]
    positive: Any = None
    f1_classes: tuple[Any, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    split: dict[str, Any] = field(default_factory=dict)
    names: tuple[str, ...]
    labels: tuple[Any, ...]
    groups: tuple[str, ...]
    probabilities: NDArray[np.float64]
    window_accuracy: float | None = None
    validation: dict[str, float] = field(default_factory=dict)
    n_parameters: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As it is kept; what was added later than the format only where it says something."""
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
        """As JSON, with a seal over its content."""
        write_sealed(path, {"format": FORMAT, **self.to_json()})

    @classmethod
    def read(cls, path: Path | str) -> RunResult:
        """Read what `write` wrote; refuse a file that was cut short or changed."""
        with damage_reported(path):
            return cls.from_sealed(read_json(path))

    @classmethod
    def from_sealed(cls, content: Mapping[str, Any]) -> RunResult:
        """Read the content of a file; ValueError where it was changed."""
        known = unsealed(content, FORMAT)
        return cls.from_json({name: value for name, value in known.items() if name != "format"})


# Files that say when they are not whole -----------------------------------------------------------------------


@contextmanager
def damage_reported(path: Path | str) -> Iterator[None]:
    """Whatever goes wrong in reading a result means that the file is not what was written."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"{Path(path).name!r} cannot be read as the result of a run ({error}); it was cut short or changed. "
            "Remove it and run the study again: what is missing is computed anew."
        ) from error
