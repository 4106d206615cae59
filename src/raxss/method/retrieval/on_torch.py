"""Torch path of retrieval: nearest windows on a torch device, such as a GPU.

    Searches -> similarity, neighbors (n_windows, n_neighbors) of each

On a CUDA device the kernel of on_cuda.py takes the searches that it supports, all series at once. The others
are float64 matrix products, short series of one shape in one product and long ones in blocks of bounded size.
Similarities become keys (keys.py), and the largest keys are the nearest windows, ties in order. What does not
fit into device memory is searched on the CPU.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from raxss._core.memory import free_on_gpu, gigabytes, in_batches
from raxss.errors import ConfigError
from raxss.method.retrieval.cuda_layout import bytes_needed, too_much_for_it
from raxss.method.retrieval.diagonal import nearest_on_cpu, suits_diagonals
from raxss.method.retrieval.keys import INELIGIBLE, keys_of, largest_keys
from raxss.method.retrieval.on_cuda import nearest_on_cuda, why_not
from raxss.method.retrieval.search import Lists, Search
from raxss.method.retrieval.shared_samples import join_gaps

_BLOCK_VALUES = 2**24  # 64-bit values in one block: 128 MB
_LEAST_BLOCK_VALUES = 2**18
_COPIES = 8  # of a block, that are alive at once
_WINDOWS_OF_A_SHORT_SERIES = 1024  # at most; its whole matrix is small

_SLOWER = "The slower torch path takes its place, with the same lists."

_log = logging.getLogger("raxss")


def nearest_of_each(
    searches: Sequence[Search], device: str, *, block_values: int = _BLOCK_VALUES
) -> list[Lists]:
    """Exact lists of many series on a torch device, together where that is faster."""
    place = _device(device)
    with_gaps, searches = searches, [search.without_gaps for search in searches]
    found: dict[int, Lists] = {}
    for which, search in enumerate(searches):
        if len(search.bank) == 0 or search.gap >= search.n_windows:  # nothing is eligible
            found[which] = search.empty_lists()
    if place.type == "cuda":
        _walk(searches, place, found)
    _multiply_together(searches, place, found, block_values)
    for which, search in enumerate(searches):
        if which not in found:
            found[which] = _by_products_within_memory(search, place, block_values)
    return [_join_within_memory(search, found[which], place) for which, search in enumerate(with_gaps)]


def _join_within_memory(search: Search, found: Lists, place: torch.device) -> Lists:
    """`join_gaps` on the device, on the CPU where it has no room."""
    try:
        return join_gaps(search, found, place)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        _warn_once(
            f"{place} has no room to compare windows with gaps; it is done on the CPU, with the same lists."
        )
        return join_gaps(search, found, torch.device("cpu"))


def _walk(searches: Sequence[Search], place: torch.device, found: dict[int, Lists]) -> None:  # GPU only
    """Find the lists of all searches that the CUDA kernel supports."""
    suited = []
    for which, search in enumerate(searches):
        if which in found or not suits_diagonals(search):
            continue
        reason = too_much_for_it(search, place)
        if reason is None:
            suited.append(which)
        else:
            _warn_once(f"the fused retrieval kernel is not used: {reason}. {_SLOWER}")
    if not suited:
        return
    reason = why_not(place)
    if reason is not None:
        _warn_once(f"the fused retrieval kernel cannot be used on {place}: {reason}. {_SLOWER}")
        return
    for batch in _batches(searches, suited, place):
        some = [searches[which] for which in batch]
        try:
            found.update(zip(batch, nearest_on_cuda(some, place), strict=True))
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            _warn_once(
                f"{place} ran out of memory in the fused retrieval kernel, which needs about "
                f"{gigabytes(bytes_needed(some))}. {_SLOWER}"
            )


def _batches(
    searches: Sequence[Search], suited: list[int], place: torch.device
) -> Iterator[list[int]]:  # GPU only
    """Searches that fit into device memory together; one that does not fit alone is left out with a warning."""
    free = free_on_gpu(place)
    needed = {which: bytes_needed([searches[which]]) for which in suited}
    for which, alone in needed.items():
        if alone > free:
            _warn_once(
                f"a search of {searches[which].n_windows} windows needs {gigabytes(alone)} for the fused "
                f"retrieval kernel, and {place} has {gigabytes(free)} free. {_SLOWER}"
            )
    fitting = (which for which in suited if needed[which] <= free)
    return in_batches(fitting, lambda which: needed[which], free // 2)


def _by_products_within_memory(search: Search, place: torch.device, block_values: int) -> Lists:
    """Lists by products in blocks as large as the memory allows; on the CPU where not even small ones fit."""
    if place.type != "cuda":
        return nearest_by_products(search, place, block_values=block_values)
    block_values = min(block_values, free_on_gpu(place) // (8 * _COPIES))
    while block_values >= _LEAST_BLOCK_VALUES:
        try:
            return nearest_by_products(search, place, block_values=block_values)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            block_values //= 4
    needed = 8 * (_COPIES * _LEAST_BLOCK_VALUES + search.samples.size + 4 * search.n_windows)
    _warn_once(
        f"a search of {search.n_windows} windows needs at least {gigabytes(needed)} on {place}, which has "
        f"{gigabytes(free_on_gpu(place))} free; it is done on the CPU, with the same lists."
    )
    return nearest_on_cpu(search)


def nearest_by_products(search: Search, place: torch.device, *, block_values: int = _BLOCK_VALUES) -> Lists:
    """Exact lists by float64 matrix products, keys and topk."""
    n_values = search.window_length * len(search.samples)
    similarity, neighbors = search.empty_lists()
    if len(search.bank) == 0:
        return similarity, neighbors
    windows = _UnitWindows(search, place)
    columns = max(block_values // n_values, 1)
    n_bank = min(len(search.bank), columns + 2 * search.farthest)
    rows = max(min(block_values // n_bank, columns), 1)
    for first in range(0, search.n_windows, rows):
        queries = torch.arange(first, min(first + rows, search.n_windows), device=place)
        near = search.bank_near(first, first + len(queries))
        if len(near) == 0:
            continue
        bank = torch.from_numpy(near).to(place)
        vectors = windows.take(queries)
        keys = torch.empty((len(queries), len(bank)), dtype=torch.int64, device=place)
        for column in range(0, len(bank), columns):
            part = slice(column, column + columns)
            keys[:, part] = keys_of(vectors @ windows.take(bank[part]).T, column)
        distance = (bank - queries[:, None]).abs_()
        keys[(distance < search.gap) | (distance > search.farthest)] = INELIGIBLE
        alike, places = largest_keys(keys, bank, search.n_neighbors, search.spread_gap)
        which = slice(first, first + len(queries)), slice(0, places.shape[1])
        similarity[which] = alike
        neighbors[which] = np.where(places >= 0, near[places], -1)
    return similarity, neighbors


def _multiply_together(
    searches: Sequence[Search], place: torch.device, found: dict[int, Lists], block_values: int
) -> None:
    """Find the lists of short series of one shape in one product, to save launches."""
    kinds: dict[tuple[int, ...], list[int]] = {}
    for which, search in enumerate(searches):
        if which not in found and search.n_windows <= _WINDOWS_OF_A_SHORT_SERIES:
            sizes = *search.samples.shape, search.window_length, search.stride
            rules = search.n_neighbors, search.gap, search.spread_gap, search.farthest
            kinds.setdefault((*sizes, *rules), []).append(which)
    for places in kinds.values():
        example = searches[places[0]]
        widest = max(example.n_windows, example.window_length * len(example.samples))
        n_at_once = block_values // (example.n_windows * widest)
        if place.type == "cuda":
            n_at_once = min(n_at_once, free_on_gpu(place) // (8 * _COPIES * example.n_windows * widest))
        if n_at_once < 2:
            continue
        for first in range(0, len(places), n_at_once):
            some = places[first : first + n_at_once]
            try:
                lists = nearest_by_one_product([searches[which] for which in some], place)
            except torch.OutOfMemoryError:  # one by one, in smaller blocks, they may fit
                torch.cuda.empty_cache()
                return
            found.update(zip(some, lists, strict=True))


def nearest_by_one_product(searches: Sequence[Search], place: torch.device) -> list[Lists]:
    """Exact lists of searches of one shape and one set of rules, all in one float64 product."""
    first = searches[0]
    samples, means, norms = (
        torch.from_numpy(np.stack([getattr(search, name) for search in searches])).to(place)
        for name in ("samples", "means", "divisors")
    )
    vectors = samples.unfold(2, first.window_length, first.stride) - means[..., None]
    vectors = (vectors / norms[:, None, :, None]).transpose(1, 2).flatten(2)  # (searches, windows, values)
    bank = torch.arange(first.n_windows, device=place)
    keys = keys_of(vectors @ vectors.transpose(1, 2))
    distance = (bank - bank[:, None]).abs_()
    in_bank = np.zeros((len(searches), first.n_windows), dtype=bool)
    for which, search in enumerate(searches):
        in_bank[which, search.bank] = True
    barred = (distance < first.gap) | (distance > first.farthest)
    keys.masked_fill_(barred | ~torch.from_numpy(in_bank).to(place)[:, None], INELIGIBLE)
    best = largest_keys(keys.flatten(0, 1), bank, first.n_neighbors, first.spread_gap)
    similarity, neighbors = (item.reshape(len(searches), first.n_windows, -1) for item in best)
    found = [search.empty_lists() for search in searches]
    for which, (alike, near) in enumerate(found):
        n_listed = neighbors.shape[2]
        alike[:, :n_listed], near[:, :n_listed] = similarity[which], neighbors[which]
    return found


class _UnitWindows:
    """Normalised windows, computed on the device in parts."""

    def __init__(self, search: Search, device: torch.device) -> None:
        self._samples = torch.from_numpy(search.samples).to(device)
        self._windows = self._samples.unfold(1, search.window_length, search.stride)
        self._means = torch.from_numpy(search.means).to(device)
        self._norms = torch.from_numpy(search.divisors).to(device)

    def take(self, which: torch.Tensor) -> torch.Tensor:
        """``(n, n_variates * window_length)`` vectors of norm 1, zeros for flat windows."""
        vectors = self._windows[:, which] - self._means[:, which, None]
        vectors /= self._norms[which, None]
        return vectors.transpose(0, 1).reshape(len(which), -1)


def _device(name: str) -> torch.device:
    """The device of this name; refused where it is not available."""
    try:
        place = torch.device(name)
        place = torch.empty(1, device=place).device  # with its number
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).splitlines() or ["unavailable"])[0]
        raise ConfigError(
            f"device {name!r} cannot be used ({reason}). Use 'cpu', or a torch device of this machine."
        ) from error
    return place


@functools.cache
def _warn_once(message: str) -> None:
    """Log a warning once a process."""
    _log.warning(message)
