"""What else can be asked of one fitted model, and what does it leave behind?

    a fitted model, test series without labels, validation series -> Probe.ask -> Answers, one a question
    CellResult, Answers -> Probed -> a JSON file that appears whole, and says when it is not

A probe asks many things of one fit: other weights, spoiled signals. Each answer is the probability of every test
series, so that answers are compared as systems are.
Next: ../runs.py fits and asks; reweighting.py and robustness.py are probes; probing.py runs them.
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
from raxss.benchmark.result import CellResult, damage_told
from raxss.data.series import SeriesCollection
from raxss.metrics import score

FORMAT = "raxss probe 1"


@dataclass(frozen=True, eq=False, kw_only=True)
class Asked:
    """Whom a probe asks.

    Attributes
    ----------
    model
        Fitted, and final.
    test
        Its labels are taken off.
    validation
        With labels; empty where it has one class only, so that nothing can be judged by it.
    window_length
        Of the study, in samples; a system may have its own.
    """

    model: Any
    test: SeriesCollection
    validation: SeriesCollection
    positive: Any = None
    f1_classes: Sequence[Any] = ()
    window_length: int = 1

    def judged(self, probabilities: NDArray[np.float64]) -> dict[str, float]:
        """Figures of probabilities of the validation series."""
        return score(
            self.validation.labels,
            probabilities,
            classes=self.model.classes_,
            positive=self.positive,
            f1_classes=self.f1_classes,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Answer:
    """What a model said when it was asked one thing.

    Attributes
    ----------
    question
        What was asked, by name: ``{"kind": "drift", "level": 0.1, "weights": "own"}``.
    probabilities
        ``(n_test, C)``.
    validation
        Figures on the validation part, where it was asked too.
    values
        Name -> ``(n_test,)`` what else was found of each test series.
    """

    question: Mapping[str, Any]
    probabilities: NDArray[np.float64]
    validation: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


class Probe(Protocol):
    """What is asked of one fitted model."""

    def decides(self) -> Mapping[str, Any]:
        """All that decides its answers beside the fit; part of the hash of a cell."""

    def ask(self, asked: Asked) -> list[Answer]:
        """Ask everything. The same model gives the same answers."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Probed:
    """One fit with all that it was asked.

    Attributes
    ----------
    result
        Of the model as it was fitted, on the test part as it is.

    Examples
    --------
    >>> import tempfile
    >>> result = CellResult(dataset="toy", system="sss", seed=1, config_hash="ab12", classes=("a", "b"),
    ...                     positive="b", names=("s1",), labels=("a",), groups=("g1",),
    ...                     probabilities=np.array([[0.9, 0.1]]))
    >>> probed = Probed(result=result, answers=(
    ...     Answer(question={"kind": "noise", "level": 10}, probabilities=np.array([[0.6, 0.4]])),))
    >>> place = Path(tempfile.mkdtemp()) / "probed.json"
    >>> probed.write(place)
    >>> Probed.read(place).answer_as_result(0, "in noise").probabilities
    array([[0.6, 0.4]])
    """

    result: CellResult
    answers: tuple[Answer, ...]

    @property
    def config_hash(self) -> str:
        """Of everything that decides fit and answers."""
        return self.result.config_hash

    def answer_as_result(self, place: int, name: str) -> CellResult:
        """One answer as if a system of this name had given it, to be compared as systems are."""
        return replace(self.result, system=name, probabilities=self.answers[place].probabilities)

    def write(self, path: Path | str) -> None:
        """As JSON without spaces, with a seal over its content: a line for each number would be a long file."""
        answers = [
            {
                "question": answer.question,
                "probabilities": answer.probabilities,
                "validation": answer.validation,
            }
            | ({"values": answer.values} if answer.values else {})
            for answer in self.answers
        ]
        content = {"format": FORMAT, "cell": self.result.to_json(), "answers": answers}
        write_sealed(path, content, indent=None)

    @classmethod
    def read(cls, path: Path | str) -> Probed:
        """Read what `write` wrote; refuse a file that was cut short or changed."""
        with damage_told(path):
            return cls.from_sealed(read_json(path))

    @classmethod
    def from_sealed(cls, content: Mapping[str, Any]) -> Probed:
        """Read the content of a file; ValueError where it was changed."""
        known = unsealed(content, FORMAT)
        answers = tuple(
            Answer(
                question=item["question"],
                probabilities=np.array(item["probabilities"], dtype=np.float64),
                validation=item["validation"],
                values={
                    name: np.array(some, dtype=np.float64) for name, some in item.get("values", {}).items()
                },
            )
            for item in known["answers"]
        )
        return cls(result=CellResult.from_json(known["cell"]), answers=answers)
