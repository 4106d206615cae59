"""Verdict on a model: statements about its measures, by rules that were fixed in advance.

    summary (probe, of, measure, mean, low, high) -> Statements, each with its rule -> one verdict

A statement holds where its number is beyond a bound and its interval is too, does not hold where the interval lies
on the other side, and is unclear else. Where there are too few groups for an interval, it is unclear.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import numpy as np
import pandas as pd

from raxss._core.bounded import read_json
from raxss.errors import DataError, ModelError, display_name
from raxss.explain.faithfulness.context_moved import CHANGES
from raxss.explain.faithfulness.perturbation import BASELINES

Holds = Literal["yes", "no", "unclear"]
LEAST_GAIN = 0.02  # of probability, mean over a curve: less could be seen by nobody
LEAST_MOVE = 0.01  # of probability, when neighbours are swapped
MOST_LEFT = 0.5  # rank correlation, without its sign, of evidence with that of a destroyed network
STABLE = 0.8  # rank correlation
PAGE = "page.html"
Frame = pd.DataFrame


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One claim about a model."""

    probe: str
    claim: str
    rule: str  # by which number and bound the claim is judged
    holds: Holds
    mean: float  # that number, with its interval
    low: float
    high: float
    said: str  # in words


def beyond(mean: float, low: float, high: float, bound: float, *, above: bool = True) -> Holds:
    """Whether a number is beyond a bound, by its interval.

    >>> beyond(0.5, 0.4, 0.6, 0.3), beyond(0.1, 0.05, 0.2, 0.3), beyond(0.35, 0.2, 0.5, 0.3)
    ('yes', 'no', 'unclear')
    >>> beyond(0.5, np.nan, np.nan, 0.3)
    'unclear'
    """
    if np.isnan(low):
        return "unclear"
    if not above:
        mean, low, high, bound = -mean, -high, -low, -bound
    return "yes" if low > bound else "no" if high < bound else "unclear"


@dataclass(frozen=True)
class Rule:
    """How one claim is judged."""

    key: tuple[str, str, str]  # probe, of, measure: which number of the summary
    claim: str
    rule: str
    bound: float
    yes: str  # what is said where it holds; the number follows
    no: str
    unclear: str
    above: bool = True


def statements(summary: Frame, *, n_classes: int = 2) -> list[Statement]:
    """Every claim that the summary has numbers for."""
    numbers = {
        (str(row["probe"]), str(row["of"]), str(row["measure"])): (row["mean"], row["low"], row["high"])
        for row in summary.to_dict("records")
        if not np.isnan(row["mean"])
    }
    steps = [int(of.split()[1]) for probe, of, _ in numbers if probe == "network"]
    changes = dict.fromkeys(of for probe, of, _ in numbers if probe == "stability")
    found = []
    for rule in _rules(n_classes, max(steps, default=0), changes):
        if rule.key in numbers:
            mean, low, high = map(float, numbers[rule.key])
            holds = beyond(mean, low, high, rule.bound, above=rule.above)
            between = "" if np.isnan(low) else f" ({low:.3f} to {high:.3f})"
            found.append(
                Statement(
                    probe=rule.key[0],
                    claim=rule.claim,
                    rule=rule.rule,
                    holds=holds,
                    mean=mean,
                    low=low,
                    high=high,
                    said=f"{getattr(rule, holds)}: {mean:.3f}{between}",
                )
            )
    return found


def _rules(n_classes: int, n_steps: int, changes: Iterable[str]) -> Iterator[Rule]:
    """Rules about decisions, deletion, retrieval, context, the network, windows, events and stability."""
    yield Rule(
        ("decision", "model", "balanced accuracy"),
        "The model decides better than chance on these series.",
        f"balanced accuracy above {1 / n_classes:.2g}",
        1 / n_classes,
        "The model knows more than chance (balanced accuracy)",
        "The model does worse than chance, so its evidence is about nothing (balanced accuracy)",
        "That the model knows more than chance cannot be shown on these series (balanced accuracy)",
    )
    for baseline in BASELINES:
        yield Rule(
            ("deletion", f"{baseline}, contribution", "gain"),
            f"The score rests on the stretches that contributions point at (stand-in: {baseline}).",
            f"area gained over random orders, mean of deletion and insertion, above {LEAST_GAIN}",
            LEAST_GAIN,
            f"Replaced by the {baseline}, stretches that contributions name first move the score more "
            "than random ones (area gained)",
            f"Replaced by the {baseline}, stretches that contributions name first move the score hardly "
            "more than random ones (area gained)",
            f"Whether contributions name the stretches that matter, replaced by the {baseline}, is "
            "not clear (area gained)",
        )
        yield Rule(
            ("deletion", baseline, "gain of weights"),
            f"Weights improve on what posteriors alone would point at (stand-in: {baseline}).",
            "area gained by contribution less that by posterior alone, above 0",
            0.0,
            f"Weights help to find what matters ({baseline}; area gained beyond posteriors alone)",
            f"Weights harm: posteriors alone point better ({baseline}; area gained beyond them)",
            f"Weights add nothing that can be seen to what posteriors alone point at ({baseline}; "
            "area gained beyond them)",
        )
    for control in ("shuffled", "other series", "inverted"):
        neighbours = "neighbours of other series" if control == "other series" else f"neighbours {control}"
        yield Rule(
            ("retrieval", control, "moved"),
            f"The score depends on who the neighbours are ({control}).",
            f"mean distance of the predicted class's probability above {LEAST_MOVE}",
            LEAST_MOVE,
            f"With {neighbours} the score moves (mean distance)",
            f"With {neighbours} the score stays where it was, so lists of neighbours "
            "explain nothing of it (mean distance)",
            f"With {neighbours} the score may move a little (mean distance)",
        )
    yield Rule(
        ("retrieval", "inverted", "balanced accuracy lost"),
        "The decision is better with its neighbours than with inverted ones.",
        "balanced accuracy lost above 0",
        0.0,
        "With inverted neighbours decisions get worse (balanced accuracy lost)",
        "With inverted neighbours decisions get better (balanced accuracy lost)",
        "With inverted neighbours decisions are as good as can be seen (balanced accuracy lost)",
    )
    for change in CHANGES:
        yield Rule(
            ("context", change, "moved"),
            f"The score depends on where windows are, or how they differ from the rest (context {change}).",
            f"mean distance of the predicted class's probability above {LEAST_MOVE}",
            LEAST_MOVE,
            f"With the context of windows {change}, and their samples as they are, the score moves (mean distance)",
            f"With the context of windows {change} the score stays, so it rests on their samples (mean distance)",
            f"With the context of windows {change} the score may move a little (mean distance)",
        )
    last = f"step {n_steps}"
    yield Rule(
        ("network", last, "rank_correlation, size"),
        "Evidence depends on what the network has learned.",
        f"size of the rank correlation of contributions with those of the scrambled network below {MOST_LEFT}",
        MOST_LEFT,
        "When the network is destroyed, its evidence changes (size of the rank correlation of contributions)",
        "When the network is destroyed, its evidence stays, so it shows the signal and not the model "
        "(size of the rank correlation of contributions)",
        "Whether evidence changes enough when the network is destroyed is not clear (size of the "
        "rank correlation of contributions)",
        above=False,
    )
    yield Rule(
        ("network", last, "weight_correlation, size"),
        "Weights depend on what the network has learned.",
        f"size of the rank correlation of weights with those of the scrambled network below {MOST_LEFT}",
        MOST_LEFT,
        "When the network is destroyed, weights change (size of the rank correlation)",
        "When the network is destroyed, weights stay: they are about the signal, not about what was "
        "learned (size of the rank correlation)",
        "When the network is destroyed, weights change in part (size of the rank correlation)",
        above=False,
    )
    texts = {"neighbour": "its best neighbour", "surrogate": "a surrogate", "mean": "the mean"}
    for by, text in texts.items():
        yield Rule(
            ("counterfactual", by, "fall beyond random"),
            f"Replacing the strongest window (by {by}) lowers the score more than replacing any.",
            "fall of the score beyond that of random windows above 0",
            0.0,
            f"Without its strongest window (replaced by {text}) the score falls more than without a "
            "random one",
            f"Without its strongest window (replaced by {text}) the score falls less than without a "
            "random one",
            f"Its strongest window (replaced by {text}) matters no more than a random one, as "
            "far as can be seen",
        )
    yield Rule(
        ("localisation", "contributions", "above chance"),
        "Evidence lies where events are known to be.",
        "precision-recall area less that with the events moved in time above 0",
        0.0,
        "Evidence lies on the known events more than by chance (area beyond that of moved events)",
        "Evidence avoids the known events (area beyond that of moved events)",
        "Evidence cannot be seen to lie on the known events (area beyond that of moved events)",
    )
    texts = {
        "half the stride": "the stride (halved)",
        "twice the stride": "the stride (doubled)",
        "offset of half a stride": "where windows begin",
        "another seed": "the seed of training",
    }
    for change in changes:
        text = texts.get(change, change)
        yield Rule(
            ("stability", change, "rank_correlation"),
            f"Evidence is the same after a small change ({change}).",
            f"rank correlation of evidence over time above {STABLE}",
            STABLE,
            f"Evidence hardly depends on {text} (rank correlation)",
            f"Evidence depends on {text} (rank correlation)",
            f"Evidence may depend on {text} (rank correlation)",
        )


def verdict(found: list[Statement], *, has_layers: bool = True) -> tuple[str, str]:
    """One word, ``faithful``, ``partly faithful``, ``unfaithful`` or ``undecided``, and why.

    Judged by three things: the model decides better than chance, contributions point at stretches that move the
    score (for either baseline, and for neither the opposite), evidence goes when the network does. All hold:
    faithful. One of them fails: unfaithful. None of them has an answer: undecided. Else: partly. Window classifiers
    have no layers to destroy, and of a mixture only one member has (``has_layers=False``): they are judged by the
    other two, and the reason says so.

    >>> verdict([])
    ('undecided', 'nothing was asked that could be answered')
    """
    decides = [item.holds for item in found if item.probe == "decision"]
    points = [
        item.holds for item in found if item.probe == "deletion" and item.claim.startswith("The score rests")
    ]
    learned = [item.holds for item in found if item.probe == "network" and item.claim.startswith("Evidence")]
    destroyed = "its evidence goes when the network is destroyed"
    answers = {
        "it decides better than chance": _first(decides, ("no", "unclear", "yes")),
        "its contributions point at what moves the score": _first(points, ("yes", "unclear", "no")),
        destroyed: _first(learned, ("no", "unclear", "yes")),
    }
    known = {name: answer for name, answer in answers.items() if answer is not None}
    if not known:
        return "undecided", "nothing was asked that could be answered"
    by = {
        holds: [name for name, item in known.items() if item == holds] for holds in ("yes", "no", "unclear")
    }
    reasons = "; ".join(
        f"{word}: {', '.join(names)}"
        for word, names in (("holds", by["yes"]), ("does not hold", by["no"]), ("not clear", by["unclear"]))
        if names
    )
    if not has_layers:
        reasons += f"; does not apply: {destroyed}"
    if by["no"]:
        return "unfaithful", reasons
    if not by["unclear"]:
        return "faithful", reasons
    return ("partly faithful" if by["yes"] else "undecided"), reasons


def _first(found: Collection[Holds], order: tuple[Holds, ...]) -> Holds | None:
    """The first of the order that was found; None where nothing was."""
    return next((holds for holds in order if holds in found), None)


def verdict_for_report(
    folder: Path,  # that raxss faithfulness wrote
    *,
    weights_sha256: str,  # of the model that the report is by
    beside: Path,  # folder of the report
) -> dict[str, Any]:
    """Verdict, reason, sentences and a relative link, as `raxss.explain.export.report.contents` takes them."""
    try:
        found = read_json(folder / "verdict.json")
        by_weights = {
            about["weights_sha256"]: {
                **{key: str(found["verdicts"][name][key]) for key in ("verdict", "why")},
                "said": [[str(holds), str(text)] for holds, text in found["verdicts"][name]["said"]],
            }
            for name, about in found["about"].items()
            if "weights_sha256" in about  # controls are nobody's model
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{display_name(folder)} has no verdict that can be read ({type(error).__name__}: {error}); needed is "
            "a folder that raxss faithfulness wrote."
        ) from error
    if weights_sha256 not in by_weights:
        raise ModelError(
            f"what is in {display_name(folder)} is not about this model: it was made with weights "
            f"{display_name(str(next(iter(by_weights), 'unknown')))}, the model has "
            f"{display_name(weights_sha256)}. Run raxss faithfulness with this model, or leave --faithfulness out."
        )
    link = quote(Path(os.path.relpath(folder / PAGE, beside)).as_posix())
    return {**by_weights[weights_sha256], "link": link}
