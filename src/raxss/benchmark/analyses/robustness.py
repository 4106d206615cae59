"""What is left of a model when its signals are spoiled, noisy or short, or when it has seen few of them?

    a fitted model, test series -> each condition -> spoiled copies -> one pass of the network, one retrieval
        -> probabilities with the model's own weights, and with equal ones

The model is the one fitted on clean data; few training series are fits of their own, on some of the groups.
Next: robustness_report.py draws the curves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raxss.benchmark.analyses.artefacts import ARTEFACTS, MIXED, noisy, shortened, spoiled
from raxss.benchmark.analyses.probe import Answer, Asked
from raxss.benchmark.analyses.reweighting import weighed
from raxss.benchmark.evaluation_set import View
from raxss.data.prepare.folder import read_prepared
from raxss.data.series import Series, SeriesCollection
from raxss.data.splits import groups_by, hold_out
from raxss.errors import ConfigError, one_of
from raxss.method.weighting.protocol import weighting_named

CLEAN, NOISE, SHORT, TRAINING = "clean", "noise", "shortened", "training"
SPOILED = (*ARTEFACTS, MIXED)
#: Kind -> its levels, the mildest first: shares of the samples, decibels, shares of the length, of training groups.
LEVELS: dict[str, tuple[float, ...]] = {
    CLEAN: (0.0,),
    **dict.fromkeys(SPOILED, (0.05, 0.1, 0.2, 0.35, 0.5)),
    NOISE: (20.0, 10.0, 5.0, 0.0),
    SHORT: (0.5, 0.25, 0.1),
    TRAINING: (0.5, 0.25, 0.1),
}
OWN, UNIFORM = "own", "uniform"
REVISION = 1  # raised where the same conditions came to mean other signals

Condition = tuple[str, float]  # kind, level


def conditions_at_test() -> tuple[Condition, ...]:
    """Everything that is done to test series of one fit.

    >>> len(conditions_at_test()), conditions_at_test()[:2]
    (33, (('clean', 0.0), ('drift', 0.05)))
    """
    return tuple((kind, level) for kind, levels in LEVELS.items() if kind != TRAINING for level in levels)


def changed(series: Series, kind: str, level: float, *, window_length: int) -> Series:
    """One series under a condition; ``window_length`` is the least that a shortened one keeps.

    >>> clean = Series(np.sin(np.arange(1000.0)), rate=100.0, name="a")
    >>> changed(clean, "shortened", 0.1, window_length=300).n_samples
    300
    """
    one_of("the kind of a condition", kind, tuple(LEVELS))
    if kind in SPOILED:
        return spoiled(series, kind, level)
    if kind == NOISE:
        return noisy(series, level)
    if kind == SHORT:
        return shortened(series, level, at_least=window_length)
    return series  # clean; or it is the training that was cut


@dataclass(frozen=True, kw_only=True)
class Robustness:
    """The probe of `raxss robustness`: the test part under every condition, by own weights and by equal ones."""

    conditions: Sequence[Condition] = conditions_at_test()

    def __post_init__(self) -> None:
        for kind, _ in self.conditions:
            one_of("the kind of a condition", kind, tuple(LEVELS))

    def decides(self) -> dict[str, Any]:
        """The conditions."""
        return {"robustness": [list(one) for one in self.conditions], "revision": REVISION}

    def ask(self, asked: Asked) -> list[Answer]:
        """One answer a condition and weighting; a model whose weights are equal gives one a condition."""
        own = asked.model.weighting
        names = [OWN, UNIFORM] if weighting_named(own).needs_retrieval else [OWN]
        answers = []
        for kind, level in self.conditions:
            series = SeriesCollection(
                changed(one, kind, level, window_length=asked.window_length) for one in asked.test
            )
            found = weighed(asked.model, series, [own, UNIFORM][: len(names)])
            answers += [
                Answer(question={"kind": kind, "level": level, "weights": name}, probabilities=one)
                for name, one in zip(names, found, strict=True)
            ]
        return answers


def with_fewer_groups(view: View, seed: int, share: float) -> View:
    """The same view, of one seed, with a share of its training groups: stratified, and the same for all systems.

    What is left of a smaller share is part of what is left of a larger one. Validation and test stay as they are.
    """
    if not 0 < share < 1:
        raise ConfigError(f"the share of training groups is {share}; needed is a number between 0 and 1.")
    split = view.splits[seed]
    collection = read_prepared(view.folder)
    by = (
        "channel" if split.by == "centre" else split.by
    )  # there are few centres: series are taken away one by one
    _, groups = groups_by(collection, by)
    codes = {group: code for code, group in enumerate(dict.fromkeys(groups))}
    kept, rest = hold_out(
        collection[split.train].labels,
        fraction=1 - share,
        seed=seed,
        groups=[codes[groups[index]] for index in split.train],
    )
    fewer = replace(
        split,
        train=split.train[kept],
        dropped=np.sort(np.concatenate([split.dropped, split.train[rest]])),
        description=f"{split.description}, {100 * share:g} % of the training groups",
    )
    return replace(view, splits={seed: fewer})


def fits_of(view: View, seed: int) -> list[tuple[View, Robustness]]:
    """What one system and seed take: a fit for all that is done to test series, one for each share of training."""
    few = [
        (with_fewer_groups(view, seed, share), Robustness(conditions=((TRAINING, share),)))
        for share in LEVELS[TRAINING]
    ]
    return [(view, Robustness()), *few]
