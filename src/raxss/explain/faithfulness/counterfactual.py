"""What if this window had looked otherwise, and how little would have changed the decision?

    ModelAdapter, WindowAttribution -> the strongest window replaced (neighbour, surrogate, mean) -> score anew
                       -> the fewest stretches found whose replacement changes the decision

The same is done to a window at random, because to replace anything changes something. The set of stretches is
found greedily, so it is an upper bound: a smaller one may exist.
Next: stability.py leaves the signal nearly as it is.
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
from raxss.explain.faithfulness.perturbation import FADE, STAND_INS, replaced

Floats = NDArray[np.float64]
STRONGEST, ANY = PLACES = ("strongest", "random")
NEIGHBOUR = "neighbour"
AHEAD = 3  # stretches whose fate is asked about at once: 7 copies


def replaced_windows(
    subject: ModelAdapter, judged: WindowAttribution, *, seed: int = 0, n_random: int = 3
) -> list[dict[str, Any]]:
    """How far the score of the predicted class falls when one window is replaced.

    Rows: ``window``, ``strongest`` (by contribution) or ``random`` (mean of some); ``by``, ``neighbour`` (the most
    similar window, where neighbours are known), ``surrogate`` or ``mean``; ``fall``, of the score, negative where
    it rises.

    Examples
    --------
    >>> from raxss import RAxSSClassifier
    >>> from raxss.data.datasets import load_synthetic
    >>> series = load_synthetic(8)
    >>> model = RAxSSClassifier(window_length=128, stride=128, max_epochs=1, random_state=0).fit(series)
    >>> subject = model.model_adapter()
    >>> judged = next(subject.judged([series[0]], with_lists=True))
    >>> [(one["window"], one["by"]) for one in replaced_windows(subject, judged)][:3]
    [('strongest', 'neighbour'), ('strongest', 'surrogate'), ('strongest', 'mean')]
    """
    class_ = judged.predicted
    strongest = int(judged.contributions(class_).argmax())
    others = np.setdiff1d(np.flatnonzero(judged.weights > 0), [strongest])
    generator = np.random.default_rng(seed)
    drawn = generator.permutation(others)[:n_random].tolist()
    made = {name: make(judged.series.samples, seed) for name, make in STAND_INS.items()}
    asked: list[tuple[str, str, Series]] = []
    for place, windows in ((STRONGEST, [strongest]), (ANY, drawn)):
        for window in windows:
            copy = _with_neighbour(judged, window)
            asked += [(place, NEIGHBOUR, copy)] if copy is not None else []
            asked += [(place, name, _with(judged, window, stand_in)) for name, stand_in in made.items()]
    told = judged.probability[class_] - subject.probabilities(item for *_, item in asked)[:, class_]
    falls: dict[tuple[str, str], list[float]] = {}
    for (place, by, _), fall in zip(asked, told, strict=True):
        falls.setdefault((place, by), []).append(float(fall))
    return [{"window": place, "by": by, "fall": float(np.mean(some))} for (place, by), some in falls.items()]


def _with(judged: WindowAttribution, window: int, stand_in: Floats) -> Series:
    taken = np.zeros(judged.series.n_samples, dtype=bool)
    start = int(judged.starts[window])
    taken[start : start + judged.window_length] = True
    return replaced(judged.series, stand_in, taken, fade=judged.window_length // FADE // 8)


def _with_neighbour(judged: WindowAttribution, window: int) -> Series | None:
    """The window's samples are those of its best neighbour, brought to its place."""
    if judged.neighbors is None or judged.neighbors[window, 0] < 0:
        return None
    start, other = int(judged.starts[window]), int(judged.starts[judged.neighbors[window, 0]])
    stand_in = np.array(judged.series.samples, dtype=np.float64)
    end = min(judged.window_length, judged.series.n_samples - max(start, other))
    stand_in[:, start : start + end] = stand_in[:, other : other + end].copy()
    return _with(judged, window, stand_in)


def without_needless(
    chosen: NDArray[np.bool_],
    candidates: NDArray[np.intp],
    still_flips: Callable[[list[NDArray[np.bool_]]], NDArray[np.bool_]],
) -> NDArray[np.bool_]:
    """Put candidates back one after the other, each where the decision stays flipped without it.

    Whether one can go depends on which went before it. All that may come of the next few is asked at once, because
    many copies hardly take longer than one.

    >>> three = np.array([True, True, True])
    >>> without_needless(three, np.array([0, 1]), lambda some: np.array([one.sum() >= 2 for one in some]))
    array([False,  True,  True])
    """
    chosen = chosen.copy()
    for first in range(0, len(candidates), AHEAD):
        some = candidates[first : first + AHEAD]
        asked: dict[tuple[bool, ...], NDArray[np.bool_]] = {}
        for n in range(len(some)):
            for gone in product((False, True), repeat=n):
                left = chosen.copy()
                left[some[:n][np.array(gone, dtype=bool)]] = False
                left[some[n]] = False
                asked[gone] = left
        told = dict(zip(asked, still_flips(list(asked.values())), strict=True))
        went: tuple[bool, ...] = ()
        for item in some:
            went = (*went, bool(told[went]))
            chosen[item] = not went[-1]
    return chosen


def smallest_flip(
    subject: ModelAdapter,
    judged: WindowAttribution,
    stand_in: str,
    *,
    seed: int = 0,
    effects: dict[str, Floats] | None = None,
) -> dict[str, Any]:
    """Stretches whose replacement changes the decision, as few as were found.

    First those that change the score most by themselves, one more at a time; of the first set that flips, each that
    turns out not to be needed is put back.

    Returns
    -------
    ``flips``, whether replacing all in that order ever changes the decision; ``share`` and ``seconds`` of what is
    replaced then (an upper bound of the least), ``stretches``, their indices.

    Examples
    --------
    >>> from raxss import RAxSSClassifier
    >>> from raxss.data.datasets import load_synthetic
    >>> series = load_synthetic(8)
    >>> model = RAxSSClassifier(window_length=128, stride=128, max_epochs=1, random_state=0).fit(series)
    >>> subject = model.model_adapter()
    >>> sorted(smallest_flip(subject, next(subject.judged([series[0]])), "mean"))
    ['flips', 'seconds', 'share', 'stretches']
    """
    class_ = judged.predicted
    stretches = Stretches.of(judged.series, judged.window_length, seed=seed, effects=effects)
    order = np.argsort(alone(subject, stretches, stand_in)[:, class_], kind="stable")
    place = np.empty(len(order), dtype=int)
    place[order] = np.arange(len(order))
    sets = [place < size for size in range(1, len(order) + 1)]
    told = subject.probabilities(stretches.without(stand_in, entry) for entry in sets)
    flipped = np.flatnonzero(told.argmax(axis=1) != class_)
    if not len(flipped):
        return {"flips": False, "share": None, "seconds": None, "stretches": []}
    weakest_first = order[: flipped[0]][::-1]  # the last that was added is needed

    def still_flips(some: list[NDArray[np.bool_]]) -> NDArray[np.bool_]:
        told = subject.probabilities(stretches.without(stand_in, item) for item in some)
        return np.asarray(told.argmax(axis=1) != class_)

    chosen = without_needless(sets[flipped[0]], weakest_first, still_flips)
    share = float(stretches.shares[chosen].sum())
    return {
        "flips": True,
        "share": share,
        "seconds": share * judged.series.seconds,
        "stretches": np.flatnonzero(chosen).tolist(),
    }
