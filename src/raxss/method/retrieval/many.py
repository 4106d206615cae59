"""How far does the rest of each of many series agree with its windows?

    series (n_series) -> Retrieval of each

Exactly what `retrieve` finds in each, sooner: a GPU searches all series in one launch, and a CPU gives each thread
a series of its own, since the threads would spend a short series waiting for one another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from raxss._core.threads import each_on_threads, now_and_then
from raxss.data.series import Series
from raxss.errors import DataError
from raxss.method.retrieval.diagonal import nearest_by_diagonals, nearest_on_cpu, suits_diagonals
from raxss.method.retrieval.front import BANK_SIZE, PlannedSearch, ask, retrieve
from raxss.method.retrieval.on_torch import nearest_of_each
from raxss.method.retrieval.result import Retrieval

_SAMPLES_AT_ONCE = 2**24  # that are laid out together for a GPU: about 1 GB of host memory

Task = tuple[ArrayLike | Series, dict[str, Any]]  # a series and the settings of its search


def retrieve_many(
    series: Sequence[ArrayLike | Series],
    *,
    window_length: int,
    stride: int = 1,
    measure: str = "pearson",
    n_neighbors: int = 10,
    exclusion: int = 0,
    spread: int = 0,
    bank: str | ArrayLike = "series",
    bank_size: int = BANK_SIZE,
    features: Sequence[ArrayLike] | None = None,
    device: str = "cpu",
    on_progress: Callable[[float], None] | None = None,
) -> list[Retrieval]:
    """Find the nearest windows of every window of every series, each within its own series.

    Parameters
    ----------
    series
        Of any lengths; see `retrieve` for what one may be, and for the other settings.
    features
        One array ``(n_windows, d)`` a series: compare these vectors instead of the windows.
    on_progress
        Called with the share that is done, from 0 to 1, at most ten times a second and once at the end.

    Returns
    -------
    ``[retrieve(one, ...) for one in series]``, the same lists.

    Examples
    --------
    >>> short, long = retrieve_many([[0, 1, 0, 5, 5], [0, 1, 0, 5, 5, 0, 1, 0]], window_length=3, n_neighbors=2)
    >>> short.n_windows, long.n_windows
    (3, 6)
    >>> long.neighbors[0]
    array([5, 2])
    """
    if features is not None and len(features) != len(series):
        raise DataError(
            f"features of {len(features)} series were given for {len(series)} series; needed is one array "
            "(n_windows, d) a series, or None to compare the windows themselves."
        )

    settings: dict[str, Any] = {
        "window_length": window_length,
        "stride": stride,
        "measure": measure,
        "n_neighbors": n_neighbors,
        "exclusion": exclusion,
        "spread": spread,
        "bank": bank,
        "bank_size": bank_size,
    }
    tasks = [
        (one, {**settings, "features": None if features is None else features[which]})
        for which, one in enumerate(series)
    ]
    tell = now_and_then(on_progress)
    found = _on_cpu(tasks, tell) if device == "cpu" else _on_device(tasks, device, tell)
    if on_progress is not None:
        on_progress(1.0)
    return found


def _on_cpu(tasks: list[Task], tell: Callable[[float], None]) -> list[Retrieval]:
    """Long series on all threads, one after another; then the others, each on one thread."""
    costs = [float(_n_samples(one)) ** 2 for one, _ in tasks]
    total = sum(costs)
    found: dict[int, Retrieval] = {}
    done = 0.0
    for which, (one, settings) in enumerate(tasks):
        # One thread would still be busy with such a series when the others are through.
        if costs[which] * torch.get_num_threads() > total:
            tell_part = partial(_tell_part, tell, done / total, costs[which] / total)
            found[which] = retrieve(one, **settings, on_progress=tell_part)
            done += costs[which]

    def on_one_thread(which: int) -> Retrieval | PlannedSearch:
        one, settings = tasks[which]
        question = ask(one, **settings)
        if not suits_diagonals(question.search):
            return question  # matrix products have threads of their own
        return question.answered(*nearest_by_diagonals(question.search, n_threads=1))

    rest = sorted(set(range(len(tasks))) - set(found), key=lambda which: -costs[which])
    tell_rest = partial(_tell_part, tell, done / max(total, 1.0), 1.0 - done / max(total, 1.0))
    for which, answer in zip(rest, each_on_threads(on_one_thread, rest, tell_rest), strict=True):
        if isinstance(answer, PlannedSearch):
            answer = answer.answered(*nearest_on_cpu(answer.search))
        found[which] = answer
    return [found[which] for which in range(len(tasks))]


def _on_device(tasks: list[Task], device: str, tell: Callable[[float], None]) -> list[Retrieval]:
    """As many series at once as memory allows: laid out on threads, searched together, answered on threads."""
    found: list[Retrieval] = []
    for batch in _batches(tasks):
        questions = each_on_threads(lambda task: ask(task[0], **task[1]), batch)
        lists = nearest_of_each([question.search for question in questions], device)
        found += each_on_threads(
            lambda pair: pair[0].answered(*pair[1]), list(zip(questions, lists, strict=True))
        )
        tell(len(found) / len(tasks))
    return found


def _tell_part(tell: Callable[[float], None], begin: float, part: float, share: float) -> None:
    """Progress within a part of the whole."""
    tell(begin + part * share)


def _batches(tasks: list[Task]) -> Iterator[list[Task]]:
    """Consecutive series of a bounded number of samples together, at least one."""
    batch: list[Task] = []
    total = 0
    for task in tasks:
        if batch and total + _n_samples(task[0]) > _SAMPLES_AT_ONCE:
            yield batch
            batch, total = [], 0
        batch.append(task)
        total += _n_samples(task[0])
    if batch:
        yield batch


def _n_samples(one: ArrayLike | Series) -> int:
    """Length of a series."""
    return int(one.samples.shape[1] if isinstance(one, Series) else (np.shape(one) or (0,))[-1])
