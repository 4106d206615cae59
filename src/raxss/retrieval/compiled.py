"""How loops are compiled and shared between threads.

Kernels release the interpreter lock and are plain sequential loops; ordinary Python threads run them side by
side. So there is no OpenMP or TBB pool to collide with torch's, and worker processes may fork at any time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import numba
import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile a kernel once and keep it on disk. Products and sums may fuse; nothing is reordered."""
    return cast(Function, numba.njit(cache=True, nogil=True, fastmath={"contract"})(function))


def compiled_sum(function: Function) -> Function:
    """Like `compiled`, for plain sums: their terms may be added in another, fixed order to vectorise."""
    return cast(Function, numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})(function))


def run_on_threads(work: Callable[[], Iterator[None]], *, n_tasks: int, n_threads: int | None = None) -> None:
    """Run ``work`` on each thread until its iterator ends; it pauses where it may be interrupted.

    As many threads as torch uses (a data-loading worker has it at one), but no more than there are tasks.
    Ctrl-C or an error in one thread stops the others at their next pause.
    """
    n_threads = min(n_threads or torch.get_num_threads(), n_tasks)
    stopped = threading.Event()

    def until_stopped() -> None:
        try:
            for _ in work():
                if stopped.is_set():
                    return
        except BaseException:
            stopped.set()
            raise

    if n_threads <= 1:
        until_stopped()
        return
    with ThreadPoolExecutor(n_threads, thread_name_prefix="raxss-retrieval") as threads:
        futures = [threads.submit(until_stopped) for _ in range(n_threads)]
        try:
            for future in futures:
                future.result()
        finally:
            stopped.set()
