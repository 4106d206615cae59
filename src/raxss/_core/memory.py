"""Free memory of the machine, its container or a GPU, and an error before work that would not fit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from raxss.errors import DataError

if TYPE_CHECKING:
    import torch

Item = TypeVar("Item")

_MEMINFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")  # where the limit of a container is


def available_memory() -> int | None:
    """Bytes that can be taken without swapping or being killed; None if unknown."""
    known = [n_bytes for n_bytes in (_of_the_machine(), _of_the_container()) if n_bytes is not None]
    return min(known, default=None)


def available_bytes(device: torch.device) -> int | None:
    """Free memory of a device in bytes; None if unknown."""
    return free_on_gpu(device) if device.type == "cuda" else available_memory()


def free_on_gpu(device: torch.device) -> int:
    """Bytes of a CUDA device that can still be had, what torch holds idle included."""
    import torch

    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + idle


def gigabytes(n_bytes: float) -> str:
    """For messages.

    >>> gigabytes(2.34e9), gigabytes(5e6)
    ('2.3 GB', '5.0 MB')
    """
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.1f} MB"


def in_batches(items: Iterable[Item], size: Callable[[Item], int], most: int) -> Iterator[list[Item]]:
    """Consecutive items whose sizes add up to at most ``most``, or a single larger one.

    >>> list(in_batches(["a", "bb", "ccc", "d"], len, 3))
    [['a', 'bb'], ['ccc'], ['d']]
    """
    batch: list[Item] = []
    total = 0
    for item in items:
        if batch and total + size(item) > most:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size(item)
    if batch:
        yield batch


def refuse_too_large(n_bytes: int, what: str, advice: str) -> None:
    """Raise if something that needs so many bytes does not fit into memory."""
    free = available_memory()
    if free is not None and n_bytes > free:
        raise DataError(
            f"{what} needs {n_bytes / 1e9:,.1f} GB of memory, but {free / 1e9:,.1f} GB are free. {advice}"
        )


def _of_the_machine() -> int | None:
    try:
        for line in _MEMINFO.read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _of_the_container() -> int | None:
    try:
        most = (_GROUP / "memory.max").read_text("ascii").strip()
        used = int((_GROUP / "memory.current").read_text("ascii"))
        kept = dict(line.split() for line in (_GROUP / "memory.stat").read_text("ascii").splitlines())
        return None if most == "max" else int(most) - used + int(kept.get("inactive_file", 0))
    except (OSError, ValueError):
        return None
