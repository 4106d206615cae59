"""Compiled loops, and threads that share them.

Kernels release the interpreter lock and are plain sequential loops; ordinary Python threads run them side by
side. So there is no OpenMP or TBB pool to collide with torch's, and worker processes may fork at any time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, TypeVar, cast

import numba
import torch

from raxss._core.kernel_cache import cached

REPORT_EVERY = 0.1  # seconds

Function = TypeVar("Function", bound=Callable[..., Any])
Item = TypeVar("Item")
Answer = TypeVar("Answer")


def compiled(function: Function) -> Function:
    """Compile a kernel once and keep it on disk. Products and sums may fuse; nothing is reordered."""
    return cast(Function, cached(numba.njit(nogil=True, fastmath={"contract"})(function)))


def compiled_sum(function: Function) -> Function:
    """Like `compiled`, for plain sums: their terms may be added in another, fixed order to vectorise."""
    return cast(Function, cached(numba.njit(nogil=True, fastmath={"contract", "reassoc"})(function)))


def run_on_threads(
    work: Callable[[], Iterator[None]],
    *,
    n_tasks: int,
    n_threads: int | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> None:
    """Run ``work`` on each thread until its iterator ends; it pauses after each task.

    As many threads as torch uses, but no more than there are tasks. Ctrl-C or an error in one thread stops
    the others at their next pause. ``on_progress`` is called in the calling thread.
    """
    n_threads = min(n_threads or torch.get_num_threads(), n_tasks)
    report = now_and_then(on_progress)
    stopped = threading.Event()
    n_done = [0] * n_threads

    def until_stopped(which: int) -> None:
        try:
            for _ in work():
                n_done[which] += 1
                if n_threads == 1:
                    report(n_done[0] / n_tasks)
                if stopped.is_set():
                    return
        except BaseException:
            stopped.set()
            raise

    if n_threads == 1:
        until_stopped(0)
    elif n_threads > 1:
        with ThreadPoolExecutor(n_threads, thread_name_prefix="raxss") as threads:
            futures = [threads.submit(until_stopped, which) for which in range(n_threads)]
            try:
                while wait(futures, REPORT_EVERY, FIRST_EXCEPTION).not_done and not stopped.is_set():
                    report(sum(n_done) / n_tasks)
                for future in futures:
                    future.result()
            finally:
                stopped.set()


def each_on_threads(
    function: Callable[[Item], Answer],
    items: Sequence[Item],
    on_progress: Callable[[float], None] | None = None,
) -> list[Answer]:
    """The function of each item, in their order, with the items shared between threads.

    >>> each_on_threads(lambda item: item * item, range(5))
    [0, 1, 4, 9, 16]
    """
    answers: dict[int, Answer] = {}
    pending = iter(enumerate(items))

    def work() -> Iterator[None]:
        for which, item in pending:
            answers[which] = function(item)
            yield

    run_on_threads(work, n_tasks=len(items), on_progress=on_progress)
    return [answers[which] for which in range(len(items))]


def now_and_then(on_progress: Callable[[float], None] | None) -> Callable[[float], None]:
    """The callback, but called not more often than ten times a second."""
    last = time.monotonic()

    def report(share: float) -> None:
        nonlocal last
        if on_progress is not None and time.monotonic() - last >= REPORT_EVERY:
            on_progress(share)
            last = time.monotonic()

    return report
