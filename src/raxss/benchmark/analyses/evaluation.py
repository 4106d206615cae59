"""Evaluations of one fitted model under several settings, and the sealed JSON file that keeps them.

    FittedModel: model, test series without labels, validation series -> Probe.evaluate -> Evaluations
    RunResult, Evaluations -> EvaluatedRun -> a JSON file

An evaluation is the probability of every test series, so that evaluations are compared as systems are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from raxss._core.bounded import read_json
from raxss._core.store import unsealed, write_sealed
from raxss.benchmark.result import RunResult, damage_reported
from raxss.data.series import SeriesCollection
from raxss.metrics import score

FORMAT = "raxss probe 1"


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedModel:
    """A fitted model and the series to evaluate it on."""

    model: Any
    test: SeriesCollection  # without labels
    validation: SeriesCollection  # with labels; empty if it has one class only
    positive: Any = None
    f1_classes: Sequence[Any] = ()
    window_length: int = 1  # of the study, in samples; a system may have its own

    def validation_score(self, probabilities: NDArray[np.float64]) -> dict[str, float]:
        """Metrics of probabilities of the validation series."""
        classes = self.model.classes_
        return score(self.validation.labels, probabilities, classes=classes, positive=self.positive,
                     f1_classes=self.f1_classes)  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True)
class Evaluation:
    """Predictions of a model under one setting."""

    settings: Mapping[str, Any]  # {"kind": "drift", "level": 0.1, "weights": "own"}
    probabilities: NDArray[np.float64]  # (n_test, C)
    validation: Mapping[str, float] = field(default_factory=dict)  # metrics of the validation series
    values: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)  # (n_test,), other results


class Probe(Protocol):
    """Evaluates one fitted model."""

    def decides(self) -> Mapping[str, Any]:
        """Everything besides the fit that decides the evaluations; part of the hash of a run."""

    def evaluate(self, fitted: FittedModel) -> list[Evaluation]:
        """Evaluate under every setting; deterministic."""


@dataclass(frozen=True, eq=False, kw_only=True)
class EvaluatedRun:
    """A run with its evaluations; ``result`` is that of the model as fitted, on the unchanged test series."""

    result: RunResult
    evaluations: tuple[Evaluation, ...]

    @property
    def config_hash(self) -> str:
        """Hash of everything that decides fit and evaluations."""
        return self.result.config_hash

    def as_result(self, place: int, name: str = "") -> RunResult:
        """One evaluation as the result of a system of this name."""
        return replace(self.result, system=name, probabilities=self.evaluations[place].probabilities)

    def write(self, path: Path | str) -> None:
        """Write sealed JSON without spaces; the names in the file are those of its first version."""
        answers = [
            {"question": item.settings, "probabilities": item.probabilities, "validation": item.validation}
            | ({"values": item.values} if item.values else {})
            for item in self.evaluations
        ]
        content = {"format": FORMAT, "cell": self.result.to_json(), "answers": answers}
        write_sealed(path, content, indent=None)

    @classmethod
    def read(cls, path: Path | str) -> EvaluatedRun:
        """Read a file of `write`; refuse a damaged one."""
        with damage_reported(path):
            return cls.from_sealed(read_json(path))

    @classmethod
    def from_sealed(cls, content: Mapping[str, Any]) -> EvaluatedRun:
        """Read the content of a file; ValueError if it was changed."""
        known = unsealed(content, FORMAT)
        evaluations = tuple(
            Evaluation(
                settings=item["question"],
                probabilities=np.array(item["probabilities"], dtype=np.float64),
                validation=item["validation"],
                values={
                    name: np.array(some, dtype=np.float64) for name, some in item.get("values", {}).items()
                },
            )
            for item in known["answers"]
        )
        return cls(result=RunResult.from_json(known["cell"]), evaluations=evaluations)
