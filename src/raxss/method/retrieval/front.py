"""Within-series retrieval (Eq. 1): the nearest windows of every window, and its support.

    samples (n_variates, n_samples) -> similarity, neighbors (n_windows, n_neighbors), support (n_windows,)

`retrieve` and `retrieve_many` check the settings, choose an implementation and turn neighbor lists into
support. Labels are never used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from raxss._core.memory import in_batches, refuse_too_large
from raxss._core.settings import at_least
from raxss._core.threads import each_on_threads, now_and_then
from raxss.data.series import Series
from raxss.errors import ConfigError, DataError, one_of
from raxss.method.retrieval.diagonal import nearest_by_diagonals, nearest_on_cpu, suits_diagonals
from raxss.method.retrieval.on_torch import nearest_of_each
from raxss.method.retrieval.search import Retrieval, Search, WindowFlag, search_features, search_signal
from raxss.method.windows import window_starts

MEASURES = ("pearson", "cosine")
BANKS = ("series", "local", "sampled")
BANK_SIZE = 65_536
_STRETCH = 512  # windows that a sampled bank takes in a row: long enough that steps along diagonals pay
_LEAST_STRETCHES = 16  # that it takes anyway
_BYTES_A_WINDOW, _BYTES_A_SAMPLE = 40, 40  # that a search holds at its peak, besides its lists
REFRESHES = ("never", "epoch", "batch")
MOST_NEIGHBORS = 10_000
MOST_WINDOW_LENGTHS = 8  # a larger float for exclusion or spread is surely meant in samples


@dataclass(frozen=True, kw_only=True)
class RetrievalConfig:
    """Which windows count as neighbours, and how alike they are (Eq. 1)."""

    space: Literal["signal", "features"] = "features"  # the paper's is "signal"
    measure: Literal["pearson", "cosine"] = "pearson"  # phi
    n_neighbors: int = 10  # m
    exclusion: int | float = 0.5  # samples if an integer, a share of L if a float; the paper has 0
    spread: int | float = 0  # likewise, between listed neighbours
    bank: Literal["series", "batch", "local", "sampled"] = "series"  # candidates; see the estimator
    bank_size: int = 65_536  # windows in a local or sampled bank
    refresh: Literal["never", "epoch", "batch"] = "never"  # of feature-space support, in training
    projection: int = 0  # dimensions of a learned linear map in which features are compared; 0: as they are

    def __post_init__(self) -> None:
        one_of("retrieval.space", self.space, ("signal", "features"))
        one_of("retrieval.measure", self.measure, MEASURES)
        one_of("retrieval.bank", self.bank, ("series", "batch", "local", "sampled"))
        one_of("retrieval.refresh", self.refresh, REFRESHES)
        at_least("retrieval.n_neighbors", self.n_neighbors, 1)
        if self.n_neighbors > MOST_NEIGHBORS:
            raise ConfigError(
                f"retrieval.n_neighbors is {self.n_neighbors}; at most {MOST_NEIGHBORS} are allowed, because every "
                "window keeps its list. The paper has 10."
            )
        at_least("retrieval.bank_size", self.bank_size, 1)
        at_least("retrieval.projection", self.projection, 0)
        at_least("retrieval.exclusion", self.exclusion, 0, whole=False)
        at_least("retrieval.spread", self.spread, 0, whole=False)
        for name in ("exclusion", "spread"):
            value = getattr(self, name)
            if isinstance(value, float) and value > MOST_WINDOW_LENGTHS:
                raise ConfigError(
                    f"retrieval.{name} = {value} would be {value:g} window lengths, because it is a float; at "
                    f"most {MOST_WINDOW_LENGTHS} are allowed. For a number of samples, write it as an integer: "
                    f"{value:.0f}."
                )

    def samples_of(self, name: Literal["exclusion", "spread"], window_length: int) -> int:
        """`exclusion` or `spread` in samples."""
        value = getattr(self, name)
        return round(value * window_length) if isinstance(value, float) else int(value)


def retrieve(
    samples: ArrayLike | Series,
    *,
    window_length: int,
    stride: int = 1,
    measure: str = "pearson",
    n_neighbors: int = 10,
    exclusion: int = 0,
    spread: int = 0,
    bank: str = "series",
    bank_size: int = BANK_SIZE,
    features: ArrayLike | None = None,
    device: str = "cpu",
    on_progress: Callable[[float], None] | None = None,
) -> Retrieval:
    r"""Find the nearest windows of every window within its own series, exactly. Implements Eq. (1).

    s̄_k = (1/m) sum_{j in N_k} phi(w_k, w_j),  N_k the m nearest windows other than w_k

    Parameters
    ----------
    samples
        ``(n_samples,)`` or ``(n_variates, n_samples)``, or a `Series`. NaN and infinities are accepted
        as missing samples: a window with up to half of them is compared over the samples that it shares with the
        other, a quarter of the window at least; one with more is never a neighbor, and its own list is empty.
    window_length, stride
        L, and the distance between window starts, in samples.
    measure
        phi. ``"pearson"`` takes each variate's mean off the window first, ``"cosine"`` does not. Products and
        norms are summed over the variates.
    n_neighbors
        m. Where fewer windows are eligible, support is the mean over those.
    exclusion
        A window that starts within ``exclusion`` samples of the query (inclusive) is not its neighbor. 0 excludes
        only the window itself; then nearly all neighbors are shifted copies. Half a window finds recurrences.
    spread
        Listed neighbors start more than ``spread`` samples apart, chosen greedily from the best down.
    bank
        ``"series"``: every window may be a neighbor. For very long series, where that takes time with the
        square of the length: ``"local"``, those that lie at most ``bank_size // 2`` windows before or after
        the query; or ``"sampled"``, the same ``bank_size`` windows for every query, in stretches of some
        hundred, evenly spread over the series (nothing is drawn at random).
    bank_size
        Of a local or sampled bank, in windows. A series that has no more is searched whole.
    features
        ``(n_windows, d)``: compare these vectors instead of the windows. Times, exclusion and unusable
        windows still come from the samples, and so do flat ones, by Pearson's rule: a dead signal recurs
        perfectly in any space. A vector that is not finite makes its window unusable too.
    device
        ``"cpu"`` or a torch device such as ``"cuda"``. The lists are the same.
    on_progress
        Called with the share that is done, from 0 to 1, at most ten times a second and once at the end.

    Returns
    -------
    Lists, support and flags, see `Retrieval`. Similarities are rounded to multiples of 2^-32, so that windows
    equally near tie exactly; of equals the earlier start comes first.

    Examples
    --------
    >>> found = retrieve([0, 1, 0, 5, 5, 0, 1, 0], window_length=3, n_neighbors=2, exclusion=2)
    >>> found.neighbors[0], found.similarity[0]
    (array([5, 3]), array([1. , 0.5]))
    >>> found.support.round(2)
    array([ 0.75, -0.4 ,  0.5 ,  0.5 , -0.4 ,  0.75])
    """
    (found,) = retrieve_many(
        [samples],
        window_length=window_length,
        stride=stride,
        measure=measure,
        n_neighbors=n_neighbors,
        exclusion=exclusion,
        spread=spread,
        bank=bank,
        bank_size=bank_size,
        features=None if features is None else [features],
        device=device,
        on_progress=on_progress,
    )
    return found


@dataclass(frozen=True, eq=False)
class PlannedSearch:
    """A search of one series before it is run; `result` makes a `Retrieval` of the lists that it finds."""

    search: Search
    starts: NDArray[np.int64]  # (n_windows,) first sample of each window
    padded: bool  # the series is shorter than one window
    settings: dict[str, Any]  # of the call, as `Retrieval` keeps them

    def result(self, similarity: NDArray[np.float64], neighbors: NDArray[np.int64]) -> Retrieval:
        """Support and flags from the lists ``(n_windows, n_neighbors)``, which are modified and kept."""
        search = self.search
        neighbors[search.nonfinite] = -1
        similarity[neighbors < 0] = np.nan
        n_listed = np.isfinite(similarity).sum(axis=1)
        listed = n_listed > 0
        lonely = ~listed & ~search.nonfinite
        support = np.nansum(similarity, axis=1) / np.maximum(n_listed, 1)
        support[lonely & ~search.flat] = support[listed].mean() if listed.any() else 0.0
        support[search.nonfinite] = np.nan
        flags = (
            search.flat * WindowFlag.FLAT
            + search.nonfinite * WindowFlag.NONFINITE
            + lonely * WindowFlag.LONELY
            + self.padded * WindowFlag.PADDED
            + search.with_gaps * WindowFlag.GAPS
        ).astype(np.uint8)
        return Retrieval(
            similarity=similarity,
            neighbors=neighbors,
            support=support,
            starts=self.starts,
            flags=flags,
            **self.settings,
        )


def plan_search(
    samples: ArrayLike | Series,
    *,
    window_length: int,
    stride: int = 1,
    measure: str = "pearson",
    n_neighbors: int = 10,
    exclusion: int = 0,
    spread: int = 0,
    bank: str = "series",
    bank_size: int = BANK_SIZE,
    features: ArrayLike | None = None,
) -> PlannedSearch:
    """Check the settings of `retrieve` and prepare the windows for comparison."""
    array = (samples if isinstance(samples, Series) else Series(samples, name="samples")).samples
    array = np.ascontiguousarray(array, dtype=np.float64)
    settings = {
        "window_length": _whole("window_length", window_length, least=1),
        "stride": _whole("stride", stride, least=1),
        "measure": one_of("measure", measure, MEASURES),
        "n_neighbors": _whole("n_neighbors", n_neighbors, least=1),
        "exclusion": _whole("exclusion", exclusion, least=0),
        "spread": _whole("spread", spread, least=0),
        "space": "signal" if features is None else "features",
    }
    starts = window_starts(array.shape[1], window_length=window_length, stride=stride)
    n_windows, size = len(starts), _whole("bank_size", bank_size, least=1)
    if one_of("bank", str(bank), BANKS) == "series" or size >= n_windows:
        bank, size = "series", 0
    settings |= {"bank": bank, "bank_size": size}
    refuse_too_large(
        n_windows * (16 * n_neighbors + _BYTES_A_WINDOW) + array.size * _BYTES_A_SAMPLE,
        f"retrieval of {n_windows:,} windows with {n_neighbors} neighbors each",
        "Take a coarser stride, fewer neighbors, or a part of the series.",
    )
    search = search_signal(
        array,
        window_length=min(window_length, array.shape[1]),  # padding is never looked at
        stride=stride,
        measure=measure,
        bank=_sampled_bank(size, n_windows) if bank == "sampled" else None,
        n_neighbors=n_neighbors,
        exclusion=exclusion,
        spread=spread,
        reach=size // 2 if bank == "local" else None,
    )
    if features is not None:
        search = search_features(_feature_rows(features, n_windows), search, measure=measure)
    return PlannedSearch(search, starts, array.shape[1] < window_length, settings)


def windows_without_shape(
    samples: ArrayLike | Series, *, window_length: int, stride: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Flat windows by Pearson's rule, and those with more than half missing, ``(n_windows,)`` each."""
    planned = plan_search(samples, window_length=window_length, stride=stride, n_neighbors=1)
    return planned.search.flat, planned.search.nonfinite


def _whole(name: str, value: Any, *, least: int) -> int:
    hint = " (it counts samples; half a window is window_length // 2)" if isinstance(value, float) else ""
    number = int(value) if isinstance(value, np.integer) else value
    at_least(name, number, least, otherwise=hint)
    return int(number)


def _sampled_bank(size: int, n_windows: int) -> NDArray[np.int64]:
    """The middle of each of many equal parts of the series, ``size`` windows in all."""
    n_stretches = min(max(size // _STRETCH, _LEAST_STRETCHES), size)
    parts = np.arange(n_stretches + 1) * n_windows // n_stretches
    lengths = np.diff(np.arange(n_stretches + 1) * size // n_stretches)
    firsts = parts[:-1] + (np.diff(parts) - lengths) // 2
    return np.concatenate([np.arange(first, first + n) for first, n in zip(firsts, lengths, strict=True)])


def _feature_rows(features: ArrayLike, n_windows: int) -> NDArray[np.float64]:
    rows = np.asarray(features)
    if rows.ndim != 2 or rows.shape[0] != n_windows or rows.shape[1] == 0:
        raise DataError(
            f"features have shape {rows.shape}, but the series has {n_windows} windows; needed is "
            f"({n_windows}, d), one vector per window at this window_length and stride."
        )
    return np.ascontiguousarray(rows, dtype=np.float64)


_SAMPLES_AT_ONCE = 2**24  # of the series that are sent to a GPU together: about 1 GB of host memory

Task = tuple[ArrayLike | Series, dict[str, Any]]  # a series and the settings of its search


def retrieve_many(
    series: Sequence[ArrayLike | Series],
    *,
    features: Sequence[ArrayLike] | None = None,
    device: str = "cpu",
    on_progress: Callable[[float], None] | None = None,
    **settings: Any,
) -> list[Retrieval]:
    """`retrieve` of many series, each within its own, with the same settings; ``features``: an array per series.

    Examples
    --------
    >>> short, long = retrieve_many([[0, 1, 0, 5, 5], [0, 1, 0, 5, 5, 0, 1, 0]], window_length=3, n_neighbors=2)
    >>> short.n_windows, long.n_windows
    (3, 6)
    """
    if features is not None and len(features) != len(series):
        raise DataError(
            f"features of {len(features)} series were given for {len(series)} series; needed is one array "
            "(n_windows, d) a series, or None to compare the windows themselves."
        )
    tasks = [
        (item, {**settings, "features": None if features is None else features[which]})
        for which, item in enumerate(series)
    ]
    report = now_and_then(on_progress)
    found = _on_cpu(tasks, report) if device == "cpu" else _on_device(tasks, device, report)
    if on_progress is not None:
        on_progress(1.0)
    return found


def _on_cpu(tasks: list[Task], report: Callable[[float], None]) -> list[Retrieval]:
    """Long series on all threads, one after another; then the others, each on one thread."""
    costs = [float(_n_samples(samples)) ** 2 for samples, _ in tasks]
    total = max(sum(costs), 1.0)
    found: dict[int, Retrieval] = {}
    done = 0.0

    def report_part(cost: float, share: float) -> None:
        report((done + cost * share) / total)

    for which, (samples, settings) in enumerate(tasks):
        # One thread would still be busy with such a series when the others are through.
        if len(tasks) == 1 or costs[which] * torch.get_num_threads() > total:
            planned, on_progress = plan_search(samples, **settings), partial(report_part, costs[which])
            found[which] = planned.result(*nearest_on_cpu(planned.search, on_progress=on_progress))
            done += costs[which]

    def on_one_thread(which: int) -> Retrieval | PlannedSearch:
        samples, settings = tasks[which]
        planned = plan_search(samples, **settings)
        if planned.search.with_gaps.any() or not suits_diagonals(planned.search):
            return planned  # matrix products have threads of their own
        return planned.result(*nearest_by_diagonals(planned.search, n_threads=1))

    rest = sorted(set(range(len(tasks))) - set(found), key=lambda which: -costs[which])
    results = each_on_threads(on_one_thread, rest, partial(report_part, total - done))
    for which, result in zip(rest, results, strict=True):
        if isinstance(result, PlannedSearch):
            result = result.result(*nearest_on_cpu(result.search))
        found[which] = result
    return [found[which] for which in range(len(tasks))]


def _on_device(tasks: list[Task], device: str, report: Callable[[float], None]) -> list[Retrieval]:
    """As many series at once as memory allows: prepared on threads, searched together."""
    found: list[Retrieval] = []
    for batch in in_batches(tasks, lambda task: _n_samples(task[0]), _SAMPLES_AT_ONCE):
        planned = each_on_threads(lambda task: plan_search(task[0], **task[1]), batch)
        lists = nearest_of_each([item.search for item in planned], device)
        found += each_on_threads(
            lambda pair: pair[0].result(*pair[1]), list(zip(planned, lists, strict=True))
        )
        report(len(found) / len(tasks))
    return found


def _n_samples(samples: ArrayLike | Series) -> int:
    return samples.n_samples if isinstance(samples, Series) else int((np.shape(samples) or (0,))[-1])
