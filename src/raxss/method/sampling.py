"""Sampling of training windows (Alg. 1): order and batches of an epoch.

    n_windows (n_series,), n_samples (n_series,), seed, epoch -> order (sum n_windows,) -> batches

The windows of all series are numbered through: window k of series i has the index ``sum(n_windows[:i]) + k``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import ArrayLike, NDArray


def draw_probabilities(n_samples: ArrayLike) -> NDArray[np.float64]:
    """Probability of drawing each series next, while all have windows left (Alg. 1).

    Pr(series i) = T_i / sum_j T_j

    Examples
    --------
    >>> draw_probabilities([100, 300])
    array([0.25, 0.75])
    """
    lengths = np.asarray(n_samples, dtype=np.float64)
    return lengths / lengths.sum()


def epoch_order(n_windows: ArrayLike, n_samples: ArrayLike, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Every window once, in the order in which Alg. 1 draws them; fixed by seed and epoch.

    Each draw picks a series with probability T_i / sum T among the series that have windows left, then one of
    its remaining windows at random. Independent Poisson processes have the same law: series i has arrivals at
    rate T_i until its windows are used up, and as they are memoryless, the next arrival is of series i with
    probability T_i over the sum of those with windows left. So the epoch is all arrivals, sorted by time.

    Shapes: ``(n_series,)`` windows and samples of each series in, a permutation ``(sum(n_windows),)`` out.

    Examples
    --------
    >>> epoch_order([2, 3], [10, 15], seed=1, epoch=0)
    array([1, 0, 3, 2, 4])
    """
    counts = np.asarray(n_windows, dtype=np.int64)
    generator = np.random.default_rng([seed, epoch])
    series = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts

    arrivals = np.cumsum(generator.exponential(size=len(series)))
    arrivals -= np.repeat(np.concatenate([[0.0], arrivals])[first], counts)  # each series starts at time 0
    arrivals /= np.repeat(np.asarray(n_samples, dtype=np.float64), counts)

    # The window of each arrival, in a random order within its series: np.lexsort((keys, series)) in a fifth of the
    # time, because the series lie one after the other.
    keys = generator.random(len(series))
    shuffled = np.empty(len(series), dtype=np.int64)
    for begin, end in zip(first, first + counts, strict=True):
        shuffled[begin:end] = begin + np.argsort(keys[begin:end], kind="stable")
    return shuffled[np.argsort(arrivals, kind="stable")]


def epoch_orders(
    n_windows: ArrayLike, n_samples: ArrayLike, *, seed: int, epochs: Iterable[int]
) -> Generator[NDArray[np.int64], None, None]:
    """`epoch_order` of one epoch after the other; a thread prepares the next while one is in use.

    Two million windows take half a second to draw and sort, in which a GPU would be idle.
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
    """Cut the epoch into batches of ``batch_size`` windows; the last one may be smaller."""
    order = epoch_order(n_windows, n_samples, seed=seed, epoch=epoch)
    for first in range(0, len(order), batch_size):
        yield order[first : first + batch_size]


def share_alone(n_windows: ArrayLike, batch_size: int) -> float:
    """Expected share of windows that are the only one of their series in a batch.

    sum_i q_i (1 - q_i)^(B - 1)   where q_i is the share of series i among the windows; exact for many windows

    Examples
    --------
    >>> round(share_alone([100] * 50, 64), 2), round(share_alone([100] * 50, 250), 2)
    (0.28, 0.01)
    """
    counts = np.asarray(n_windows, dtype=np.float64)
    shares = counts / counts.sum()
    return float((shares * (1 - shares) ** (batch_size - 1)).sum())
