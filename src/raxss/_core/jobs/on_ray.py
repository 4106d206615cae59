"""Ray tasks on a cluster, or on this machine, that share the items.

    task, items -> one Ray task an item, so many at once -> (position, result or Failure)

A cluster that is given is used and left running. Without one, Ray is started on this machine: on the loopback
address alone, with a token, without usage reports and dashboard, its files in a folder of its own; and
stopped again. Ray is imported here and nowhere else, after the variables that it reads have been set.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from raxss._core.jobs.outcome import Failure, Item, Result, died, failure_of, thread_settings
from raxss.errors import ConfigError, MissingExtraError

Task = Callable[[Item], Result | Failure]

OBJECT_STORE = 256 * 2**20  # bytes; results are small, and what does not fit goes to the disk
SECONDS_TO_ANSWER, SECONDS_TO_CONNECT = 5.0, 40.0
LOOPBACK = "127.0.0.1"
SEES_GPUS = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    "RAY_LOG_TO_DRIVER": "0",
    "RAY_DEDUP_LOGS": "1",
    SEES_GPUS: "0",  # a task that claims no GPU sees them nevertheless, as of 2.60 by itself
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # messages about workers that died: they are run again, or are a Failure
}
DEATHS = (
    "WorkerCrashedError",
    "OutOfMemoryError",
    "NodeDiedError",
    "LocalRayletDiedError",
    "ObjectLostError",
)
ONLY_HERE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # "0": Ray listens on the loopback address, on Linux too


def each_on_ray(
    task: Task[Item, Result],
    items: Iterable[Item],
    n_workers: int | None,
    n_threads: int | None,
    address: str | None,
    retries: int,
) -> Iterator[tuple[int, Result | Failure]]:
    """See `raxss._core.jobs.each_result`."""
    with _connected(address, n_workers, n_threads, retries) as ray:
        n_cores = n_threads or 1
        _check_fits(ray, n_cores)
        n_at_once = n_workers or max(1, int(ray.cluster_resources().get("CPU", 1)) // n_cores)
        # A task claims no GPU: several small fits may share one.
        begin = ray.remote(num_cpus=n_cores, max_retries=retries, retry_exceptions=False)(_run).remote
        waiting = enumerate(items)
        running: dict[Any, int] = {}
        finished: tuple[int, Result | Failure] | None = None
        while True:
            while len(running) < n_at_once and (following := next(waiting, None)) is not None:
                running[begin(task, following[1])] = following[0]
            if finished is not None:
                yield finished
            if not running:
                return
            (done,), _ = ray.wait(list(running))
            finished = running.pop(done), _result_of(ray, done, retries)


def check_ray(address: str | None) -> None:
    """Raise if Ray is not installed, or if nothing answers at the address."""
    if find_spec("ray") is None:
        raise MissingExtraError("engine 'ray' needs Ray. Install it with: pip install 'raxss[cluster]'")
    if address is not None:
        _check_answers(address)


def _check_fits(ray: Any, n_cores: int) -> None:
    """Raise if no machine has so many cores: Ray would wait for ever for one that has."""
    largest = max((int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]), default=0)
    if largest < n_cores:
        raise ConfigError(
            f"each worker is to have {n_cores} threads, and the largest machine of the Ray cluster has {largest} "
            f"cores; at most {largest} threads are needed (--threads on the command line, n_threads in Python)."
        )


def _run(task: Task[Item, Result], item: Item) -> Result | Failure:  # Ray takes functions, no partial ones
    return task(item)


def _result_of(ray: Any, done: Any, retries: int) -> Any:
    """The result of a task, or a Failure."""
    try:
        return ray.get(done)
    except ray.exceptions.RayTaskError as error:  # the worker could not read the item, or write the result
        return failure_of(error.cause if isinstance(error.cause, BaseException) else error)
    except tuple(getattr(ray.exceptions, name) for name in DEATHS) as error:
        return died(retries + 1, f"{type(error).__name__}: {str(error).splitlines()[0]}")
    except ray.exceptions.RayError as error:
        return failure_of(error)


# Connection to a cluster --------------------------------------------------------------------------------------


@contextmanager
def _connected(
    address: str | None, n_workers: int | None, n_threads: int | None, retries: int
) -> Iterator[Any]:
    """Ray, connected to the cluster at the address, or to one that is stopped at the end of the block."""
    with ExitStack() as undo:
        settings = {**QUIET, ONLY_HERE: "1"} if address else _settings_here(n_threads, retries)
        undo.enter_context(_environment(settings))
        ray = import_module("ray")
        if ray.is_initialized():
            raise ConfigError(
                "Ray is connected already in this process, and engine 'ray' makes a connection of its own. Call "
                "ray.shutdown() first."
            )
        _read_again(only_here=address is None)
        undo.callback(ray.shutdown)  # of a cluster that was given, this ends the connection alone
        if address is None:
            folder = _short_folder()
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            undo.callback(ray.shutdown)  # before its folder goes
            _start(ray, folder, n_workers, n_threads)
        else:
            _connect(ray, address, n_threads)
        yield ray


def _settings_here(n_threads: int | None, retries: int) -> dict[str, str]:
    """Environment variables of a cluster on this machine."""
    has_token = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    token = {} if has_token else {"RAY_AUTH_TOKEN": _token()}
    return {
        **QUIET,
        **token,
        **thread_settings(n_threads),
        ONLY_HERE: "0",
        "RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "token"),
        "RAY_task_oom_retries": str(retries),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # workers import what this process could
    }


@cache
def _token() -> str:
    """The token of this process, held in memory and given to the processes it starts, never written to a file."""
    return secrets.token_hex(32)


def _read_again(*, only_here: bool) -> None:
    """Make Ray read variables again that it reads when it is imported."""
    with suppress(ImportError, AttributeError):
        constants: Any = import_module("ray._private.ray_constants")
        constants.ENABLE_RAY_CLUSTER = not only_here
        raylet: Any = import_module("ray._raylet")
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


def _short_folder() -> str:
    """A temporary folder with a short path: Ray puts sockets there, whose paths have at most 107 bytes."""
    place = tempfile.gettempdir()
    return tempfile.mkdtemp(
        prefix="raxss-", dir="/tmp" if len(place) > 20 and os.path.isdir("/tmp") else place
    )


def _start(ray: Any, folder: str, n_workers: int | None, n_threads: int | None) -> None:
    n_cores = n_threads or 1
    ray.init(
        "local",  # never one that RAY_ADDRESS names
        num_cpus=None if n_workers is None else n_workers * n_cores,
        object_store_memory=OBJECT_STORE,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=folder,
    )
    if (found := ray.util.get_node_ip_address()) != LOOPBACK:
        raise ConfigError(
            f"Ray {ray.__version__} listens on {found}, where other machines reach it, and not on {LOOPBACK} as it "
            "was set to; it was stopped. Use another version, or start a cluster yourself and give its address."
        )


def _connect(ray: Any, address: str, n_threads: int | None) -> None:
    _check_usable(address)
    ray.init(
        address,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": {**thread_settings(n_threads), SEES_GPUS: "0"}},
    )


def _check_usable(address: str) -> None:
    """Raise if another process cannot connect: Ray itself tries for 15 minutes where something else answers."""
    command = [sys.executable, "-c", "import ray, sys; ray.init(sys.argv[1], log_to_driver=False)", address]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_TO_CONNECT)
        problem = (
            None if tried.returncode == 0 else (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
        )
    except subprocess.TimeoutExpired:
        problem = f"it did not answer as one within {SECONDS_TO_CONNECT:.0f} s"
    if problem is not None:
        raise ConfigError(
            f"the Ray cluster at {address!r} cannot be used: {problem}. It must run, with the versions of Python "
            "and Ray that are here, and know the token (RAY_AUTH_TOKEN) if it asks for one. Start one with `ray "
            "start --head`, or leave the address out to use this machine."
        )


def _check_answers(address: str) -> None:
    """Raise if an address is malformed, or nothing listens there."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(
            f"the address of a Ray cluster is {address!r}; needed is 'auto', 'host:port' or 'ray://host:port'."
        )
    if address.startswith("ray://") and find_spec("grpc") is None:
        raise MissingExtraError(f"the address {address!r} needs Ray's client: pip install 'ray[client]'")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"nothing answers at {address!r} ({error}); a running Ray cluster is needed there. Start one with "
            "`ray start --head`, or leave the address out to use this machine."
        ) from error


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Environment variables of this process and those that it starts, set for the block."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
