"""CUDA path of retrieval: nearest windows of many series in one launch, without writing similarities to memory.

    Searches -> similarity, neighbors (n_windows, n_neighbors) of each

The recurrence of diagonal.py in float64 matrix instructions. cuda_layout.py copies the series to the device,
cuda_plan.py assigns the work of blocks. walk.cu is the kernel, anchors.cu makes the full products that it
starts from, merge.cu joins lists of parts.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raxss._core.memory import free_on_gpu
from raxss._core.threads import each_on_threads
from raxss.method.retrieval.cuda_layout import SHAPES, Layout, Shape, depth_of, lay_out_on, shared_bytes
from raxss.method.retrieval.cuda_plan import Tables, plan
from raxss.method.retrieval.kernels import NO_KEY, first_eligible, read_keys
from raxss.method.retrieval.search import Lists, Search

LEAST_CAPABILITY = (8, 0)  # of the device: float64 matrix instructions, of 8 rows; from 9.0 on, of 16

_MEMORY_SHARE = 0.4  # of the free memory, for the anchors' products
_PLACE_BITS = 29  # of a key, as in walk.cu
_FAR = 2**30  # in windows: no limit

_launching = threading.Lock()


@functools.cache
def why_not(device: torch.device) -> str | None:
    """Why the kernel cannot run on this device, or None if it can. Compiles it, once a process."""
    if torch.version.hip is not None:
        return "it is written for CUDA"
    if not hasattr(torch.cuda, "_compile_kernel"):
        return f"torch {torch.__version__} cannot compile it; 2.11 can"
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        return "{} has compute capability {}.{}, and float64 matrix instructions need {}.{}".format(
            torch.cuda.get_device_name(device), *capability, *LEAST_CAPABILITY
        )
    try:
        _kernel("anchors", device)
        _walk_kernel(device, SHAPES[0], 12)
        _kernel("merge", device)
    except Exception as error:  # the compiler, the driver or their versions: torch raises what it finds
        return f"compiling it failed ({(str(error).strip().splitlines() or [type(error).__name__])[0]})"
    return None


def nearest_on_cuda(searches: Sequence[Search], device: torch.device) -> list[Lists]:
    """Exact lists of every search, the same as on the CPU. Searches of one kind share a launch."""
    found: dict[int, Lists] = {}
    kinds: dict[tuple[Any, ...], list[int]] = {}
    for place, search in enumerate(searches):
        kinds.setdefault(_kind(search), []).append(place)
    with torch.cuda.device(device):
        for places in kinds.values():
            some = [searches[place] for place in places]
            found.update(zip(places, _nearest(some, device), strict=True))
    return [found[place] for place in range(len(searches))]


def _kind(search: Search) -> tuple[Any, ...]:
    """Settings that searches of one launch share."""
    windows = search.window_length, search.stride, search.centred, len(search.samples)
    return *windows, search.n_neighbors, search.gap, search.reach


def _nearest(searches: list[Search], device: torch.device) -> list[Lists]:
    """Lists of searches of one kind, in one launch."""
    layout = lay_out_on(device, searches)
    keys = _to_host(walk(layout)).numpy()
    shapes = [(search.n_windows, search.n_neighbors) for search in searches]
    found = [(np.empty(shape), np.empty(shape, np.int64)) for shape in shapes]

    def read(which: int) -> None:
        search, origin = searches[which], int(layout.origins[which])
        read_keys(keys[origin : origin + search.n_windows], _PLACE_BITS, *found[which])
        if search.flat.any():
            queries = np.flatnonzero(search.flat)
            first_eligible(queries, search.bank, search.gap, *found[which], search.farthest)

    each_on_threads(read, range(len(searches)))
    return found


def walk(layout: Layout) -> Tensor:
    """Lists as keys ``(n_places, n_neighbors)``, on the device."""
    device = layout.phases.device
    keys = torch.full((layout.n_places, layout.searches[0].n_neighbors), NO_KEY, device=device)
    for tables in plan(layout, _most_products(device)):
        launch(layout, tables, keys)
    return keys


def launch(layout: Layout, tables: Tables, keys: Tensor) -> None:
    """Find the lists of the rows in the tables: anchors, walk, merge."""
    first, device, shape = layout.searches[0], layout.phases.device, layout.shape
    products = anchors_products(layout, tables)
    partial = torch.empty((tables.n_partial, first.n_neighbors), dtype=torch.int64, device=device)
    kernel, shared = _walk_kernel(device, shape, depth_of(first)), shared_bytes(first, shape)
    with _launching:
        if shared > kernel._max_shared_mem_bytes:
            kernel.set_shared_memory_config(shared)
    reach = _FAR if first.reach is None else min(first.reach, _FAR)
    kernel(
        grid=(len(tables.blocks), 1, 1),
        block=(32 * shape.warps, 1, 1),
        args=[
            *(layout.columns, layout.rows, layout.inverses, layout.row_inverses, layout.row_norms, products),
            *(tables.row_anchors, tables.column_anchors, tables.blocks, tables.segments, keys, partial),
            *(first.n_neighbors, min(first.gap, _FAR), reach),
        ],
        shared_mem=shared,
    )
    if tables.n_partial:
        _kernel("merge", device)(
            grid=(len(tables.merges), 1, 1),
            block=(128, 1, 1),
            args=[partial, tables.merges, keys, first.n_neighbors, shape.rows],
        )


def anchors_products(layout: Layout, tables: Tables) -> Tensor:
    """Full products of the anchors with the windows in the tables."""
    first, device = layout.searches[0], layout.phases.device
    products = torch.empty(tables.n_products, dtype=torch.float64, device=device)
    _kernel("anchors", device)(
        grid=(len(tables.tasks), 1, 1),
        block=(128, 1, 1),
        args=[
            *(layout.phases, layout.means, tables.anchors, tables.groups, tables.tasks, products),
            *(len(first.samples), first.stride, first.window_length, layout.n_places),
        ],
    )
    return products


def _walk_kernel(device: torch.device, shape: Shape, depth: int) -> Any:
    return _kernel("walk", device, TILES=shape.tiles, WARPS=shape.warps, STEPS=depth // 4)


@functools.cache
def _kernel(name: str, device: torch.device, **constants: int) -> Any:
    """The kernel in the file of its name, compiled for this device and with these constants."""
    source = resources.files("raxss.method.retrieval").joinpath(f"{name}.cu").read_text(encoding="utf-8")
    options = [f"-D{constant}={value}" for constant, value in constants.items()]
    with torch.cuda.device(device):
        return torch.cuda._compile_kernel(source, name, nvcc_options=options)


def _most_products(device: torch.device) -> int:
    """Upper bound of the full products of one launch."""
    return int(_MEMORY_SHARE * free_on_gpu(device)) // 8


def _to_host(tensor: Tensor) -> Tensor:
    """A copy in pinned memory, several times as fast to send."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor)
