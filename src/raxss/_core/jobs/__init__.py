"""Parallel map of a function over items: in this process, in several processes, or on a Ray cluster.

    function, items -> each_result -> (position, result or Failure), in the order in which they finish

An item that fails does not stop the others; a worker that dies is replaced, and its item is run again.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from raxss._core.jobs.outcome import Failure, Item, Result, attempt
from raxss._core.version import __version__
from raxss.errors import ConfigError, OutputError, display_name, one_of

__all__ = ["ENGINES", "Failure", "check_engine", "each_result"]

ENGINES = ("local", "ray")


def each_result(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    engine: str = "local",  # "ray": a cluster, whose nodes need the same raxss and the same paths
    n_workers: int | None = 1,  # items worked on at once; 1, locally: in this process; None: one a core
    n_threads: int | None = None,  # of each worker's numerical libraries; None leaves that to them
    address: str
    | None = None,  # of a Ray cluster: "auto", "host:port", "ray://host:port"; None: one is started
    retries: int = 2,  # how often an item is run again after its worker died; not after its function raised
    shared_folder: Path | None = None,  # where the function writes; a worker that does not see it says so
) -> Generator[tuple[int, Result | Failure], None, None]:
    """Run a function on every item, and give each result with the item's position as soon as it is there.

    The function is one of a module; items are taken as workers become free. Close the iterator
    (``contextlib.closing``) if it may be left early: that ends the workers at once.

    >>> for position, result in each_result(float, ["1.5", "two", "3"]):
    ...     print(position, result)
    0 1.5
    1 ValueError: could not convert string to float: 'two'
    2 3.0
    """
    check_engine(engine, address)
    counts = (("n_workers", n_workers, 1), ("n_threads", n_threads, 1), ("retries", retries, 0))
    for name, value, least in counts:
        if value is not None and value < least:
            raise ConfigError(f"{name} is {value}; a whole number of at least {least} is needed.")

    def results() -> Generator[tuple[int, Result | Failure], None, None]:
        with _mark_in(shared_folder) as mark:
            task = partial(attempt, function, version=__version__, mark=mark)
            if engine == "ray":
                from raxss._core.jobs.on_ray import each_on_ray

                yield from each_on_ray(task, items, n_workers, n_threads, address, retries)
            else:
                from raxss._core.jobs.local import each_here

                yield from each_here(task, items, n_workers, n_threads, retries)

    return results()  # settings are checked before the first result is taken


def check_engine(engine: str, address: str | None = None) -> None:
    """Raise if an engine cannot be used: an unknown name, a missing package, no cluster at the address."""
    one_of("engine", engine, ENGINES)
    if engine == "ray":
        from raxss._core.jobs.on_ray import check_ray

        check_ray(address)
    elif address is not None:
        raise ConfigError(
            f"an address ({address!r}) is for engine 'ray', and the engine is {engine!r}; leave one of them out."
        )


@contextmanager
def _mark_in(folder: Path | None) -> Iterator[Path | None]:
    """A temporary file in the shared folder, by which workers recognise it."""
    if folder is None:
        yield None
        return
    mark = Path(os.path.abspath(folder)) / f".shared-{secrets.token_hex(8)}"
    try:
        mark.write_text("Workers of a running command look for this file.\n")
    except OSError as error:
        raise OutputError(
            error.errno, f"cannot write into {display_name(folder)}: {error.strerror}. Choose another folder."
        ) from error
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)
