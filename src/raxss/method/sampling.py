"""In which order does training visit the windows?

    n_windows (n_series,), n_samples (n_series,), seed, epoch -> order (sum n_windows,) -> batches

Implements the sampling of Alg. 1. The windows of all series are numbered through, series after series:
window k of series i has the index ``sum(n_windows[:i]) + k``.
Next: training/window_pool.py gathers each batch, training/step.py takes one step.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import ArrayLike, NDArray


def draw_probabilities(n_samples: ArrayLike) -> NDArray[np.float64]:
    """How likely each series is to be drawn next, while all have windows left.

    In Alg. 1, Pr(series i) = T_i / sum_j T_j

    Examples
    --------
    >>> draw_probabilities([100, 300])
    array([0.25, 0.75])
    """
    lengths = np.asarray(n_samples, dtype=np.float64)
    return lengths / lengths.sum()


def epoch_order(n_windows: ArrayLike, n_samples: ArrayLike, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Every window once, in the order in which Alg. 1 draws them.

    Each draw picks a series with probability T_i / sum T among the series that have windows left, then one
    of its remaining windows at random. Drawing one by one would be a long Python loop; a race of Poisson
    clocks gives the same law at once. Series i rings at rate T_i until its windows are used up. Because the
    clocks have no memory, the next to ring is series i with probability T_i over the sum of those that
    still run. Sorting all the rings by time is therefore the epoch.

    The order depends on seed and epoch alone, so a run that is resumed, or fed by any number of workers,
    sees the same windows.

    Parameters
    ----------
    n_windows, n_samples
        ``(n_series,)`` windows of each series, and its length T_i.

    Returns
    -------
    ``(sum(n_windows),)`` a permutation of the window indices.

    Examples
    --------
    >>> epoch_order([2, 3], [10, 15], seed=1, epoch=0)
    array([1, 0, 3, 2, 4])
    """
    counts = np.asarray(n_windows, dtype=np.int64)
    generator = np.random.default_rng([seed, epoch])
    series = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts

    waits = generator.exponential(size=len(series))
    rings = np.cumsum(waits)
    rings -= np.repeat(np.concatenate([[0.0], rings])[first], counts)  # every clock starts at 0
    rings /= np.repeat(np.asarray(n_samples, dtype=np.float64), counts)

    # Which of its windows a series hands out at its k-th ring: a random order within each series. That is
    # np.lexsort((lots, series)); the series lie one after the other, so each can be sorted by itself, in a fifth
    # of the time.
    lots = generator.random(len(series))
    shuffled = np.empty(len(series), dtype=np.int64)
    for begin, end in zip(first, first + counts, strict=True):
        shuffled[begin:end] = begin + np.argsort(lots[begin:end], kind="stable")
    return shuffled[np.argsort(rings, kind="stable")]


def epoch_orders(
    n_windows: ArrayLike, n_samples: ArrayLike, *, seed: int, epochs: Iterable[int]
) -> Generator[NDArray[np.int64], None, None]:
    """`epoch_order` of one epoch after the other; while one is trained on, a thread prepares the next.

    Two million windows take half a second to draw and sort, in which a GPU would stand still.

    Examples
    --------
    >>> [order.tolist() for order in epoch_orders([2, 3], [10, 15], seed=1, epochs=range(2))]
    [[1, 0, 3, 2, 4], [0, 2, 1, 4, 3]]
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="raxss-order") as thread:
        prepared: Future[NDArray[np.int64]] | None = None
        for epoch in epochs:
            following = thread.submit(epoch_order, n_windows, n_samples, seed=seed, epoch=epoch)
            if prepared is not None:
                yield prepared.result()
            prepared = following
        if prepared is not None:
            yield prepared.result()


def epoch_batches(
    n_windows: ArrayLike, n_samples: ArrayLike, *, batch_size: int, seed: int, epoch: int
) -> Iterator[NDArray[np.int64]]:
    """Cut the epoch into batches of ``batch_size`` windows; the last one may be smaller.

    Examples
    --------
    >>> [batch.tolist() for batch in epoch_batches([2, 3], [10, 15], batch_size=2, seed=1, epoch=0)]
    [[1, 0], [3, 2], [4]]
    """
    order = epoch_order(n_windows, n_samples, seed=seed, epoch=epoch)
    for first in range(0, len(order), batch_size):
        yield order[first : first + batch_size]


def share_alone(n_windows: ArrayLike, batch_size: int) -> float:
    """Which share of windows to expect alone of its series in a batch.

    sum_i q_i (1 - q_i)^(B - 1)   where q_i is the share of series i among the windows

    Exact where windows are many: in an epoch they are drawn without replacement, so a few less are alone.

    Examples
    --------
    >>> round(share_alone([100] * 50, 64), 2), round(share_alone([100] * 50, 250), 2)
    (0.28, 0.01)
    """
    counts = np.asarray(n_windows, dtype=np.float64)
    shares = counts / counts.sum()
    return float((shares * (1 - shares) ** (batch_size - 1)).sum())
