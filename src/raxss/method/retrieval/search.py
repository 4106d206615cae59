"""Input and result of retrieval: `Search` (prepared windows and their bank) and `Retrieval` (lists and support).

    samples (n_variates, n_samples) or features (n_windows, d)  ->  Search: centred, scaled, means, norms, flags
    Retrieval: similarity, neighbors (n_windows, n_neighbors); support, starts, flags (n_windows,)

Every path (diagonal.py, blocked.py, on_torch.py) starts from a Search, so there is one rule for flat windows
and for missing samples. Windows with some samples missing are left to shared_samples.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntFlag

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from raxss._core.threads import compiled, compiled_sum
from raxss.method.retrieval.kernels import NONE
from raxss.method.windows import missing_samples, mostly_missing, n_missing

Lists = tuple[NDArray[np.float64], NDArray[np.int64]]  # similarity, neighbors (n_windows, n_neighbors)

_VALUES_AT_ONCE = 2**21  # of windows with gaps, whose means are taken together: 16 MB
FLAT_SHARE = 1e-6  # of the series' largest distance from its mean: a smaller deviation is no shape


class WindowFlag(IntFlag):
    """Flags of one window."""

    FLAT = 1  # no shape to compare: similarity 0 to every window, support 0
    NONFINITE = 2  # more than half of its samples are missing: never a neighbor, support NaN, weight 0
    LONELY = 4  # usable, but no window was eligible as its neighbor
    PADDED = 8  # the series is shorter than one window
    GAPS = 16  # some samples are missing, up to half: compared over the samples that both windows have


@dataclass(frozen=True, eq=False)
class Retrieval:
    """The nearest windows of every window of one series, and its support (Eq. 1).

    Attributes
    ----------
    similarity
        s_k^(j): ``(n_windows, n_neighbors)``, best first, NaN where there is no neighbor.
    neighbors
        N_k: ``(n_windows, n_neighbors)`` window indices, -1 where there is none.
    support
        s̄_k: ``(n_windows,)`` mean similarity of the neighbors that exist. 0 for a flat window, NaN for a
        window with more than half of its samples missing. A lonely window borrows the mean support of the
        windows that have neighbors; if none has, all supports are 0.
    starts
        ``(n_windows,)`` first sample of each window.
    flags
        ``(n_windows,)`` sums of `WindowFlag`.
    space
        ``"signal"`` where windows themselves were compared, ``"features"`` where given vectors were.
    bank, bank_size
        ``"series"``, ``"local"`` or ``"sampled"``; and the windows of a local or sampled bank, else 0.

    The remaining attributes are the settings used. All arrays are read-only.
    """

    similarity: NDArray[np.float64]
    neighbors: NDArray[np.int64]
    support: NDArray[np.float64]
    starts: NDArray[np.int64]
    flags: NDArray[np.uint8]
    window_length: int
    stride: int
    measure: str
    n_neighbors: int
    exclusion: int
    spread: int
    space: str
    bank: str = "series"
    bank_size: int = 0

    def __post_init__(self) -> None:
        for array in (self.similarity, self.neighbors, self.support, self.starts, self.flags):
            array.setflags(write=False)

    @property
    def n_windows(self) -> int:
        """Number of windows."""
        return len(self.starts)

    @property
    def flat(self) -> NDArray[np.bool_]:
        """``(n_windows,)`` windows without a shape to compare."""
        return (self.flags & WindowFlag.FLAT) != 0

    @property
    def nonfinite(self) -> NDArray[np.bool_]:
        """``(n_windows,)`` windows with more than half of their samples missing."""
        return (self.flags & WindowFlag.NONFINITE) != 0

    @property
    def with_gaps(self) -> NDArray[np.bool_]:
        """``(n_windows,)`` windows with some samples missing, up to half."""
        return (self.flags & WindowFlag.GAPS) != 0

    @property
    def lonely(self) -> NDArray[np.bool_]:
        """``(n_windows,)`` usable windows without any neighbor."""
        return (self.flags & WindowFlag.LONELY) != 0

    @property
    def has_neighbors(self) -> bool:
        """Whether any window has a neighbor; without one all supports are 0, which says nothing."""
        return not (self.lonely | self.nonfinite).all()

    @property
    def padded(self) -> NDArray[np.bool_]:
        """``(n_windows,)`` true for the one window of a series shorter than it."""
        return (self.flags & WindowFlag.PADDED) != 0

    @property
    def overlaps(self) -> NDArray[np.bool_]:
        """``(n_windows, n_neighbors)`` listed neighbors that share samples with their query."""
        distance = np.abs(self.starts[self.neighbors] - self.starts[:, np.newaxis])
        return (self.neighbors >= 0) & (distance < self.window_length)

    @property
    def overlap_share(self) -> float:
        """Share of all listed neighbors that overlap their query; NaN where none is listed."""
        listed = int((self.neighbors >= 0).sum())
        return float(self.overlaps.sum() / listed) if listed else float("nan")

    def __repr__(self) -> str:
        counts = {
            flag.name.lower(): int(((self.flags & flag) != 0).sum()) for flag in WindowFlag if flag.name
        }
        flagged = "".join(f", {count} {name}" for name, count in counts.items() if count)
        return (
            f"Retrieval({self.n_windows} windows of {self.window_length} at stride {self.stride}, "
            f"{self.measure}, {self.n_neighbors} neighbors{flagged})"
        )


@dataclass(frozen=True, eq=False)
class Search:
    """All windows of one series as queries, and the bank of candidate neighbors.

    A window j of the bank is eligible as neighbor of i if and only if gap <= |i - j| <= reach, and if they share
    enough samples where one of them has gaps.
    """

    # (n_variates, n_samples), 0 where not finite: scaled by a power of two to at most 1 and, under Pearson,
    # centred, so that offsets and units cost no digits
    samples: NDArray[np.float64]
    window_length: int
    stride: int
    centred: bool
    means: NDArray[np.float64]  # (n_variates, n_windows) subtracted under Pearson; zeros under cosine
    norms: NDArray[np.float64]  # (n_windows,) of the centred windows, over all variates
    flat: NDArray[np.bool_]  # (n_windows,) similarity 0 to all: shapeless under Pearson, all 0 under cosine
    shapeless: NDArray[np.bool_]  # (n_windows,) flat by Pearson's rule, under either measure
    nonfinite: NDArray[np.bool_]  # (n_windows,) more than half of the samples missing
    with_gaps: NDArray[np.bool_]  # (n_windows,) some missing, up to half
    present: NDArray[np.bool_]  # (n_samples,) not missing in any variate
    gap_means: NDArray[np.float64]  # (n_variates, n_with_gaps) as `means`, of the samples that are present
    gap_norms: NDArray[np.float64]  # (n_with_gaps,) likewise
    bank: NDArray[np.int64]  # (n_bank,) ascending indices of usable windows
    n_neighbors: int
    gap: int  # least distance from query to neighbor, in windows
    spread_gap: int  # least distance between neighbors, in windows
    reach: int | None = None  # greatest distance from query to neighbor, in windows; None: any

    @property
    def farthest(self) -> int:
        """The reach as a number."""
        return self.n_windows if self.reach is None else self.reach

    def bank_near(self, first: int, end: int) -> NDArray[np.int64]:
        """The part of the bank within reach of any query from ``first`` up to ``end``."""
        places = np.searchsorted(self.bank, [first - self.farthest, end + self.farthest])
        return self.bank[slice(*places)]

    @property
    def n_windows(self) -> int:
        """Number of queries."""
        return len(self.norms)

    @property
    def without_gaps(self) -> Search:
        """The same for whole windows alone, which any path can search; itself where no window has gaps.

        With a spread nothing is left in the bank: a window with gaps may keep whole ones out of a list.
        """
        if not self.with_gaps.any():
            return self
        whole = self.bank[~self.with_gaps[self.bank]]
        return replace(
            self,
            flat=self.flat & ~self.with_gaps,
            nonfinite=self.nonfinite | self.with_gaps,
            with_gaps=np.zeros_like(self.with_gaps),
            gap_means=self.gap_means[:, :0],
            gap_norms=self.gap_norms[:0],
            bank=whole if self.spread_gap == 1 else whole[:0],
        )

    def empty_lists(self) -> Lists:
        """Similarity and neighbors ``(n_windows, n_neighbors)`` with nothing listed yet."""
        shape = self.n_windows, self.n_neighbors
        return np.full(shape, NONE), np.full(shape, -1, np.int64)

    @property
    def windows(self) -> NDArray[np.float64]:
        """``(n_variates, n_windows, window_length)``, a view."""
        return sliding_window_view(self.samples, self.window_length, axis=1)[:, :: self.stride]

    @property
    def divisors(self) -> NDArray[np.float64]:
        """``(n_windows,)`` norms, infinite where a window cannot be compared: its unit vector is 0."""
        return np.where(self.flat | self.nonfinite, np.inf, self.norms)

    def unit_windows(self, which: NDArray[np.int64] | slice) -> NDArray[np.float64]:
        """Some windows as vectors of norm 1, ``(n, n_variates * window_length)``; zeros without a shape."""
        vectors = self.windows[:, which] - self.means[:, which, np.newaxis]
        vectors /= self.divisors[which, np.newaxis]
        return np.ascontiguousarray(vectors.transpose(1, 0, 2)).reshape(vectors.shape[1], -1)


def search_signal(
    samples: NDArray[np.float64],  # (n_variates, n_samples)
    *,
    window_length: int,
    stride: int,
    measure: str,
    bank: NDArray[np.int64] | None,  # ascending; None for all windows
    n_neighbors: int,
    exclusion: int,
    spread: int,
    reach: int | None = None,
) -> Search:
    """Prepare the windows of a series for comparison with one another."""
    finite = np.isfinite(samples)
    missing = missing_samples(samples)
    counts = n_missing(missing, window_length, stride)
    nonfinite = mostly_missing(counts, window_length)
    with_gaps = (counts > 0) & ~nonfinite
    candidates = np.arange(len(nonfinite)) if bank is None else bank
    # A power of two changes no digits, and squares can then neither overflow nor vanish.
    scaled = np.where(finite, samples, 0.0)
    scaled = np.ldexp(scaled, -int(np.frexp(np.abs(scaled).max())[1]))
    mean = scaled.sum(axis=1, keepdims=True) / np.maximum(finite.sum(axis=1, keepdims=True), 1)
    samples = np.where(finite, scaled - mean, 0.0)
    means = np.stack([sliding_means(variate, window_length)[::stride] for variate in samples])
    norms = _norms(samples, means, window_length, stride)
    shape = ~missing, np.flatnonzero(with_gaps), window_length, stride
    gap_means, gap_norms = _of_present(samples, *shape, centred=True)
    floor = FLAT_SHARE * np.abs(samples).max(axis=1, keepdims=True)
    flat = (norms <= floor * np.sqrt(window_length)).all(axis=0) & ~nonfinite
    flat[with_gaps] = (gap_norms <= floor * np.sqrt(window_length - counts[with_gaps])).all(axis=0)
    shapeless = flat
    if measure == "cosine":
        samples, means = scaled, np.zeros_like(means)
        norms = _norms(samples, means, window_length, stride)
        gap_means, gap_norms = _of_present(samples, *shape, centred=False)
        flat = (norms == 0.0).all(axis=0) & ~nonfinite
        flat[with_gaps] = (gap_norms == 0.0).all(axis=0)
    return Search(
        samples=samples,
        window_length=window_length,
        stride=stride,
        centred=measure == "pearson",
        means=means,
        norms=np.hypot.reduce(norms, axis=0),
        flat=flat,
        shapeless=shapeless,
        nonfinite=nonfinite,
        with_gaps=with_gaps,
        present=~missing,
        gap_means=gap_means,
        gap_norms=np.hypot.reduce(gap_norms, axis=0),
        bank=candidates[~nonfinite[candidates]],
        n_neighbors=n_neighbors,
        gap=exclusion // stride + 1,
        spread_gap=spread // stride + 1,
        reach=reach,
    )


def search_features(
    features: NDArray[np.float64],  # (n_windows, d)
    signal: Search,
    *,
    measure: str,
) -> Search:
    """Compare given vectors instead, as the windows of a series that concatenates them.

    Distances, unusable windows, and flat ones under either measure, are those of the signal. Vectors have no gaps:
    one that is not finite cannot be used.
    """
    length = features.shape[1]
    unusable = signal.nonfinite | missing_samples(features.T)
    search = search_signal(
        np.where(unusable[:, np.newaxis], np.nan, features).reshape(1, -1),
        window_length=length,
        stride=length,
        measure=measure,
        bank=signal.bank,
        n_neighbors=signal.n_neighbors,
        exclusion=(signal.gap - 1) * length,
        spread=(signal.spread_gap - 1) * length,
        reach=signal.reach,
    )
    return replace(search, flat=(search.flat | signal.shapeless) & ~search.nonfinite)


def _of_present(
    samples: NDArray[np.float64],  # (n_variates, n_samples)
    present: NDArray[np.bool_],  # (n_samples,)
    which: NDArray[np.int64],  # windows with gaps
    window_length: int,
    stride: int,
    *,
    centred: bool,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means (Pearson; else 0) and norms ``(n_variates, n)`` of windows with gaps, of the samples that they have."""
    means, norms = np.zeros((len(samples), len(which))), np.zeros((len(samples), len(which)))
    windows = sliding_window_view(samples, window_length, axis=1)[:, ::stride]
    masks = sliding_window_view(present, window_length)[::stride]
    n_at_once = max(_VALUES_AT_ONCE // (len(samples) * window_length), 1)
    for first in range(0, len(which), n_at_once):
        some = slice(first, first + n_at_once)
        values, mask = windows[:, which[some]], masks[which[some]]
        if centred:
            means[:, some] = values.sum(axis=2, where=mask) / mask.sum(axis=1)
        values = np.where(mask, values - means[:, some, np.newaxis], 0.0)
        largest = np.maximum(np.abs(values).max(axis=2), np.finfo(np.float64).tiny)  # squares may vanish
        norms[:, some] = largest * np.sqrt(np.square(values / largest[..., np.newaxis]).sum(axis=2))
    return means, norms


def _norms(
    samples: NDArray[np.float64], means: NDArray[np.float64], window_length: int, stride: int
) -> NDArray[np.float64]:
    """Norm of each centred window of each variate, ``(n_variates, n_windows)``."""
    pairs = zip(samples, means, strict=True)
    return np.stack([window_norms(*pair, window_length, stride) for pair in pairs])


@compiled
def sliding_means(samples: NDArray[np.float64], window_length: int) -> NDArray[np.float64]:
    """Mean of the window at every sample, ``(n_samples - window_length + 1,)``.

    Differences of running sums, which are kept with the part that each addition rounds away, so the mean of a
    quiet stretch does not suffer from what was loud before it.
    """
    total = np.zeros(len(samples) + 1)
    lost = np.zeros(len(samples) + 1)
    for place in range(len(samples)):
        old, new = total[place], samples[place]
        both = old + new
        kept = both - old
        total[place + 1] = both
        lost[place + 1] = lost[place] + ((old - (both - kept)) + (new - kept))
    means = np.empty(len(samples) - window_length + 1)
    for start in range(len(means)):
        end = start + window_length
        means[start] = ((total[end] - total[start]) + (lost[end] - lost[start])) / window_length
    return means


@compiled_sum
def window_norms(
    samples: NDArray[np.float64], means: NDArray[np.float64], window_length: int, stride: int
) -> NDArray[np.float64]:
    """Norm of each centred window of one variate, ``(n_windows,)``; tiny windows do not vanish in squaring."""
    norms = np.empty(len(means))
    for window in range(len(means)):
        mean = means[window]
        item = samples[window * stride : window * stride + window_length]
        squares = 0.0
        for place in range(window_length):
            squares += (item[place] - mean) ** 2
        if squares < 1e-200:
            largest = 0.0
            for place in range(window_length):
                largest = max(largest, abs(item[place] - mean))
            if largest > 0.0:
                squares = 0.0
                for place in range(window_length):
                    squares += ((item[place] - mean) / largest) ** 2
                norms[window] = largest * np.sqrt(squares)
                continue
        norms[window] = np.sqrt(squares)
    return norms
