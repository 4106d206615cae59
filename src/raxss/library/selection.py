"""Selection of the windows of a recording that become cases.

    usable windows of a recording, their features (n_windows, d) -> indices of at most n of them, in order of time

By ``"spread"`` they are as far apart in time as they can be; by ``"k-medoids"`` they are those to which all others
are nearest. Either depends on the recording alone, so what is added before or after changes nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raxss._core.settings import at_least
from raxss.errors import one_of

SPREAD, K_MEDOIDS = "spread", "k-medoids"
MOST_COMPARED = 1000  # windows of a recording whose distances are computed, evenly spread over it
MOST_ROUNDS = 20  # in which medoids still move; they settle after a few


@dataclass(frozen=True, kw_only=True)
class Selection:
    """How windows are selected; a library keeps these settings.

    Examples
    --------
    >>> features = np.array([[0.0], [0.1], [5.0], [5.1], [5.2], [9.0]])
    >>> Selection(windows_a_recording=3).chosen(features, np.ones(6, bool))
    array([0, 3, 5])
    >>> Selection(windows_a_recording=3, selection="k-medoids").chosen(features, np.ones(6, bool))
    array([0, 3, 5])
    """

    windows_a_recording: int = 24
    selection: str = SPREAD
    seed: int = 0  # of the first medoids

    def __post_init__(self) -> None:
        at_least("windows_a_recording", self.windows_a_recording, 1)
        at_least("seed", self.seed, 0)
        one_of("selection", self.selection, (SPREAD, K_MEDOIDS))

    @property
    def settings(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        return asdict(self)

    def chosen(self, features: NDArray[Any], usable: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Indices of the windows that are kept, in order; at most ``windows_a_recording``, and only usable ones.

        Parameters
        ----------
        features
            ``(n_windows, d)``.
        usable
            ``(n_windows,)``.
        """
        places = np.flatnonzero(usable)
        if len(places) <= self.windows_a_recording:
            return places
        if self.selection == SPREAD:
            return places[evenly(len(places), self.windows_a_recording)]
        places = places[evenly(len(places), min(len(places), MOST_COMPARED))]
        return places[medoids(features[places], self.windows_a_recording, seed=self.seed)]


def evenly(n: int, n_chosen: int) -> NDArray[np.int64]:
    """``n_chosen`` of ``n`` places, first and last among them; the middle one where it is one.

    >>> evenly(10, 4), evenly(5, 1)
    (array([0, 3, 6, 9]), array([2]))
    """
    if n_chosen == 1:
        return np.array([(n - 1) // 2], dtype=np.int64)
    # Halves are rounded up, not to even, so that gaps differ by one at most.
    return (
        (2 * np.arange(n_chosen, dtype=np.int64) * (n - 1) + n_chosen - 1) // (2 * (n_chosen - 1))
    ).astype(np.int64)


def medoids(features: NDArray[Any], n_medoids: int, *, seed: int) -> NDArray[np.int64]:
    """Indices of ``n_medoids`` rows of ``(n, d)`` with small distances of all rows to the nearest; ascending.

    Features are brought to mean 0 and deviation 1 over the rows. The first medoid is drawn, each next one is the
    row farthest from those before, and then each moves to the centre of the rows nearest to it, until none moves.
    """
    values = np.asarray(features, dtype=np.float64)
    values = values - values.mean(axis=0)
    deviations = values.std(axis=0)
    values = values / np.where(deviations > 0, deviations, 1.0)
    squares = np.square(values).sum(axis=1)
    distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * values @ values.T, 0.0))
    np.fill_diagonal(distances, 0.0)
    found = [int(np.random.default_rng(seed).integers(len(values)))]
    nearest = distances[found[0]].copy()
    while len(found) < n_medoids:
        nearest[found] = -1.0  # rows that are equal to a medoid may be chosen, but not the same one twice
        found.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, distances[found[-1]])
    for _ in range(MOST_ROUNDS):
        owner = distances[:, found].argmin(axis=1)
        owner[found] = np.arange(n_medoids)  # also where two medoids are equal
        moved = []
        for which in range(n_medoids):
            members = np.flatnonzero(owner == which)
            moved.append(int(members[distances[np.ix_(members, members)].sum(axis=1).argmin()]))
        if moved == found:
            break
        found = moved
    return np.sort(np.asarray(found, dtype=np.int64))
