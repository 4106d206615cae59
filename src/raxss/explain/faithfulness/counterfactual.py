"""Counterfactuals: scores with one window replaced, and the fewest replaced stretches that change a decision.

    ModelAdapter, WindowAttribution -> the strongest window replaced (neighbour, surrogate, mean) -> new score
                                    -> the fewest stretches found whose replacement changes the decision

The same is done to a random window, because any replacement changes something. The set of stretches is found
greedily, so it is an upper bound: a smaller one may exist.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raxss.data.series import Series
from raxss.explain.faithfulness.deletion import Stretches, alone
from raxss.explain.faithfulness.model_adapter import ModelAdapter, WindowAttribution
from raxss.explain.faithfulness.perturbation import BASELINES, FADE, replaced

Floats = NDArray[np.float64]
STRONGEST, ANY = PLACES = ("strongest", "random")
NEIGHBOUR = "neighbour"
AHEAD = 3  # stretches that are decided on together: 7 copies


def replaced_windows(
    adapter: ModelAdapter, attribution: WindowAttribution, *, seed: int = 0, n_random: int = 3
) -> list[dict[str, Any]]:
    """How far the score of the predicted class falls when one window is replaced.

    Rows: ``window``, ``strongest`` (by contribution) or ``random`` (mean of some); ``by``, ``neighbour`` (the most
    similar window, where neighbours are known), ``surrogate`` or ``mean``; ``fall``, of the score, negative where
    it rises.
    """
    class_ = attribution.predicted
    strongest = int(attribution.contributions(class_).argmax())
    others = np.setdiff1d(np.flatnonzero(attribution.weights > 0), [strongest])
    generator = np.random.default_rng(seed)
    drawn = generator.permutation(others)[:n_random].tolist()
    made = {name: make(attribution.series.samples, seed) for name, make in BASELINES.items()}
    copies: list[tuple[str, str, Series]] = []
    for place, windows in ((STRONGEST, [strongest]), (ANY, drawn)):
        for window in windows:
            copy = _with_neighbour(attribution, window)
            copies += [(place, NEIGHBOUR, copy)] if copy is not None else []
            copies += [(place, name, _with(attribution, window, baseline)) for name, baseline in made.items()]
    changes = attribution.probability[class_] - adapter.probabilities(copy for *_, copy in copies)[:, class_]
    falls: dict[tuple[str, str], list[float]] = {}
    for (place, by, _), fall in zip(copies, changes, strict=True):
        falls.setdefault((place, by), []).append(float(fall))
    return [{"window": place, "by": by, "fall": float(np.mean(some))} for (place, by), some in falls.items()]


def _with(attribution: WindowAttribution, window: int, baseline: Floats) -> Series:
    taken = np.zeros(attribution.series.n_samples, dtype=bool)
    start = int(attribution.starts[window])
    taken[start : start + attribution.window_length] = True
    return replaced(attribution.series, baseline, taken, fade=attribution.window_length // FADE // 8)


def _with_neighbour(attribution: WindowAttribution, window: int) -> Series | None:
    """The window's samples are those of its best neighbour, brought to its place."""
    if attribution.neighbors is None or attribution.neighbors[window, 0] < 0:
        return None
    start, other = int(attribution.starts[window]), int(attribution.starts[attribution.neighbors[window, 0]])
    baseline = np.array(attribution.series.samples, dtype=np.float64)
    end = min(attribution.window_length, attribution.series.n_samples - max(start, other))
    baseline[:, start : start + end] = baseline[:, other : other + end].copy()
    return _with(attribution, window, baseline)


def without_needless(
    chosen: NDArray[np.bool_],
    candidates: NDArray[np.intp],
    still_flips: Callable[[list[NDArray[np.bool_]]], NDArray[np.bool_]],
) -> NDArray[np.bool_]:
    """Put candidates back one after the other, each where the decision stays flipped without it.

    Whether one can go depends on which went before it. All outcomes of the next few are scored in one batch,
    because many copies hardly take longer than one.
    """
    chosen = chosen.copy()
    for first in range(0, len(candidates), AHEAD):
        some = candidates[first : first + AHEAD]
        outcomes: dict[tuple[bool, ...], NDArray[np.bool_]] = {}
        for n in range(len(some)):
            for gone in product((False, True), repeat=n):
                left = chosen.copy()
                left[some[:n][np.array(gone, dtype=bool)]] = False
                left[some[n]] = False
                outcomes[gone] = left
        flips = dict(zip(outcomes, still_flips(list(outcomes.values())), strict=True))
        went: tuple[bool, ...] = ()
        for stretch in some:
            went = (*went, bool(flips[went]))
            chosen[stretch] = not went[-1]
    return chosen


def smallest_flips(
    adapter: ModelAdapter,
    attribution: WindowAttribution,
    *,
    seed: int = 0,
    effects: dict[str, Floats] | None = None,
) -> dict[str, dict[str, Any]]:
    """Find few stretches whose replacement changes the decision, for each baseline.

    Those that change the score most by themselves are added one at a time; of the first set that flips, each that
    is not needed is put back.

    Returns
    -------
    Baseline -> ``flips``, whether replacing all in that order ever changes the decision; ``share`` and ``seconds``
    of what is replaced then (an upper bound of the least), ``stretches``, their indices.
    """
    stretches = Stretches.of(attribution.series, attribution.window_length, seed=seed, effects=effects)
    return {name: _smallest_flip(adapter, attribution, stretches, name) for name in BASELINES}


def _smallest_flip(
    adapter: ModelAdapter, attribution: WindowAttribution, stretches: Stretches, baseline: str
) -> dict[str, Any]:
    class_ = attribution.predicted
    order = np.argsort(alone(adapter, stretches, baseline)[:, class_], kind="stable")
    place = np.empty(len(order), dtype=int)
    place[order] = np.arange(len(order))
    sets = [place < size for size in range(1, len(order) + 1)]

    def still_flips(some: list[NDArray[np.bool_]]) -> NDArray[np.bool_]:
        probabilities = adapter.probabilities(stretches.without(baseline, chosen) for chosen in some)
        return np.asarray(probabilities.argmax(axis=1) != class_)

    flipped = np.flatnonzero(still_flips(sets))
    if not len(flipped):
        return {"flips": False, "share": None, "seconds": None, "stretches": []}
    weakest_first = order[: flipped[0]][::-1]  # the last that was added is needed
    chosen = without_needless(sets[flipped[0]], weakest_first, still_flips)
    share = float(stretches.shares[chosen].sum())
    return {
        "flips": True,
        "share": share,
        "seconds": share * attribution.series.seconds,
        "stretches": np.flatnonzero(chosen).tolist(),
    }
