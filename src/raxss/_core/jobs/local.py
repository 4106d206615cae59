"""Worker processes of this machine that share the items.

    task, items -> one joblib (loky) worker a slot, one item at a time -> (position, result or Failure)

Every worker has a pool of its own, so that one that dies takes nothing with it but the item it was at.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from raxss._core.jobs.outcome import Failure, Item, Result, died, failure_of, thread_settings

Task = Callable[[Item], Result | Failure]
LOOKS_EVERY = 1.0  # seconds between a worker's checks that its parent is still running


def each_here(
    task: Task[Item, Result],
    items: Iterable[Item],
    n_workers: int | None,
    n_threads: int | None,
    retries: int,
) -> Iterator[tuple[int, Result | Failure]]:
    """See `raxss._core.jobs.each_result`."""
    if n_workers is None:
        from joblib import cpu_count

        n_workers = max(1, cpu_count() // (n_threads or 1))  # affinity and the limits of a container count
    if n_workers > 1:
        yield from _in_processes(task, items, n_workers, n_threads, retries)
        return
    for position, item in enumerate(items):
        with threads_limited(n_threads):  # not while whoever takes the result is at work
            result = task(item)
        yield position, result


# In this process ----------------------------------------------------------------------------------------------


@contextmanager
def threads_limited(n_threads: int | None) -> Iterator[None]:
    """Fix the threads of libraries that are loaded already, and set them back."""
    if n_threads is None:
        yield
        return
    import numba
    import torch
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    of_torch = torch.get_num_threads()  # before numba, whose first call sets the number of OpenMP for all
    of_numba = numba.get_num_threads()
    with ExitStack() as back:
        back.callback(torch.set_num_threads, of_torch)  # the last to be set back, for the same reason
        back.enter_context(threadpool_limits(n_threads))
        torch.set_num_threads(n_threads)
        back.callback(numba.set_num_threads, of_numba)
        numba.set_num_threads(min(n_threads, numba.config.NUMBA_NUM_THREADS))
        yield


# In processes of their own ------------------------------------------------------------------------------------


def _in_processes(
    task: Task[Item, Result], items: Iterable[Item], n_workers: int, n_threads: int | None, retries: int
) -> Iterator[tuple[int, Result | Failure]]:
    """Give every free worker the next item; one whose worker died goes first."""
    # joblib warns of these where nothing is wrong: a worker without children is ended, a worker is replaced
    warnings.filterwarnings("ignore", message="Failed to kill subprocesses")
    warnings.filterwarnings("ignore", message="A worker stopped while some jobs were given")
    waiting = enumerate(items)
    again: list[tuple[int, Item]] = []
    deaths: Counter[int] = Counter()
    running: dict[Future[Any], tuple[_Worker, int, Item]] = {}
    idle: list[_Worker] = []
    finished: tuple[int, Result | Failure] | None = None
    with _ending() as alive:
        while True:
            while len(running) < n_workers:
                following = again.pop() if again else next(waiting, None)
                if following is None:
                    break
                if not idle:
                    idle.append(_Worker(n_threads))
                    alive.append(idle[-1])
                worker = idle.pop()
                try:
                    running[worker.begin(task, following[1])] = worker, *following
                except BrokenProcessPool:  # it died while it had nothing to do
                    alive.remove(worker)
                    worker.end_now()
                    again.append(following)
            if finished is not None:
                yield finished  # after the refill: no worker waits for whoever takes the result
            if not running:
                return
            done = wait(running, return_when=FIRST_COMPLETED).done.pop()
            worker, position, item = running.pop(done)
            error = done.exception()
            finished = position, done.result() if error is None else failure_of(error)
            if not isinstance(error, BrokenProcessPool):
                idle.append(worker)
                continue
            alive.remove(worker)
            worker.end_now()
            if (how := _exit_codes(error)) is None:  # it could not read the item, and would not the next time
                continue
            deaths[position] += 1
            finished = (position, died(deaths[position], how)) if deaths[position] > retries else None
            if finished is None:
                again.append((position, item))


def _exit_codes(error: BrokenProcessPool) -> str | None:
    """Exit code of a worker that died, such as ``SIGKILL(-9)``; None if it did not die."""
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    if not isinstance(error, TerminatedWorkerError):
        return None
    codes = re.search(r"exit codes of the workers are \{(.*)\}", str(error))
    return codes[1] if codes else "exit code unknown"


class _Worker:
    """One process, started when it is first given something to do."""

    def __init__(self, n_threads: int | None) -> None:
        from joblib.externals.loky import ProcessPoolExecutor

        # the variables are set before the process loads anything
        self._pool = ProcessPoolExecutor(
            1, env=thread_settings(n_threads), initializer=_end_with, initargs=(os.getpid(),)
        )

    def begin(self, task: Task[Item, Result], item: Item) -> Future[Any]:
        with _interrupts_held():
            return self._pool.submit(task, item)

    def end(self) -> None:
        self._pool.shutdown(wait=True)

    def end_now(self) -> None:
        # Not shutdown(kill_workers=True): loky's own thread stumbles over an item that waits to be sent.
        with _interrupts_held():
            for process in list(self._pool._processes or ()):
                with suppress(OSError):
                    os.kill(process, signal.SIGKILL)
            self._pool.shutdown(wait=True)


@contextmanager
def _ending() -> Iterator[list[_Worker]]:
    """A list for the workers that are started, all of which are ended with the block."""
    alive: list[_Worker] = []
    try:
        yield alive
    except BaseException:
        for worker in alive:
            worker.end_now()
        raise
    for worker in alive:
        worker.end()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Delay Ctrl-C, so that workers that are started meanwhile do not get it; this process gets it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    held: list[int] = []
    acts = threading.current_thread() is threading.main_thread()  # no other thread is ever interrupted
    handler = signal.getsignal(signal.SIGINT) if acts else None
    if handler is not None:  # else a program around Python has its own, which could not be put back
        signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
        if held:
            signal.raise_signal(signal.SIGINT)


def _end_with(parent: int) -> None:
    """In a worker: exit when the parent process has ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOKS_EVERY)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
