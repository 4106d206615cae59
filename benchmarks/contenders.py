"""The contenders of the retrieval benchmark, and how each is called.

    samples (n_samples,), case -> seconds, similarity and neighbors (n_windows, 10), best first

Everybody gets raw samples and all cores, and the clock runs from samples to lists. Two things that a reader
should know about the peers:

- stumpy knows stride 1 only, and excludes what starts within a quarter of a window. It is compared, answers
  and time, with ours at stride 1 and that exclusion; at any other stride its time is still that of stride 1.
- The BLAS inside faiss's wheel does not recognise every processor, and falls back to very old instructions
  where it does not. So faiss runs twice: as installed, and in a process that tells its BLAS the processor.

Next: retrieval.py lets them run.
"""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.common import cpu_flags, n_cores, timed
from raxss.method.retrieval import retrieve

N_NEIGHBORS = 10
OURS_ERROR = 1e-6  # against float64 brute force
FLOAT32_ERROR = 2e-5  # how far an honest answer in single precision may be off


@dataclass(frozen=True)
class Case:
    """One setting that every contender gets."""

    n_samples: int
    window_length: int
    stride: int
    exclusion: int = 0

    @property
    def n_windows(self) -> int:
        """How many windows the series has."""
        return (self.n_samples - self.window_length) // self.stride + 1

    @property
    def pairs(self) -> int:
        """Every two windows once: phi is symmetric."""
        return self.n_windows * (self.n_windows - 1) // 2

    @property
    def macs(self) -> int:
        """Multiply-adds of the recurrence: each pair's product takes up ``stride`` terms and drops as many."""
        return self.pairs * 2 * self.stride

    @property
    def zoned(self) -> Case:
        """The same with stumpy's exclusion zone, which reaches a quarter of a window, inclusive."""
        return replace(self, exclusion=math.ceil(self.window_length / 4))

    def __str__(self) -> str:
        return f"{self.n_samples:,} samples, L {self.window_length}, stride {self.stride}"


class Answer(NamedTuple):
    """The ten nearest of every window, best first."""

    similarity: NDArray[np.float64]
    neighbors: NDArray[np.int64]


Samples = NDArray[np.float64]
Search = Callable[[Samples, Case], Answer]


@dataclass(frozen=True)
class Contender:
    """Somebody who answers a case.

    Attributes
    ----------
    search
        The answer and the seconds it took.
    tolerance
        How far its similarities may be from the truth.
    most_samples
        Longer series are not given to it.
    only_stride
        The one stride that it knows, or None for any.
    """

    name: str
    search: Callable[[Samples, Case], tuple[float, Answer]]
    tolerance: float
    most_samples: int = 200_000
    only_stride: int | None = None


def by_raxss(samples: Samples, case: Case) -> Answer:
    """The package under test, through its front door."""
    found = retrieve(
        samples,
        window_length=case.window_length,
        stride=case.stride,
        n_neighbors=N_NEIGHBORS,
        exclusion=case.exclusion,
    )
    return Answer(found.similarity, found.neighbors)


def by_torch(samples: Samples, case: Case) -> Answer:
    """All windows normalised once in single precision, then a block of rows at a time."""
    windows = torch.from_numpy(unit_windows(samples, case))
    similarity = torch.empty(len(windows), N_NEIGHBORS)
    neighbors = torch.empty(len(windows), N_NEIGHBORS, dtype=torch.int64)
    for first in range(0, len(windows), 1024):
        rows = slice(first, first + 1024)
        block = windows[rows] @ windows.T
        block[:, rows].fill_diagonal_(-torch.inf)
        similarity[rows], neighbors[rows] = block.topk(N_NEIGHBORS, dim=1)
    return Answer(similarity.double().numpy(), neighbors.numpy())


def by_faiss(samples: Samples, case: Case) -> Answer:
    """An exact inner-product index of the normalised windows; one neighbor more, since it finds the query too."""
    import faiss

    faiss.omp_set_num_threads(n_cores())
    windows = unit_windows(samples, case)
    index = faiss.IndexFlatIP(case.window_length)
    index.add(windows)
    similarity, neighbors = index.search(windows, N_NEIGHBORS + 1)
    others = neighbors != np.arange(len(windows))[:, np.newaxis]
    others[others.all(axis=1), -1] = False  # where equals have crowded out the query itself
    shape = (len(windows), N_NEIGHBORS)
    return Answer(similarity[others].reshape(shape).astype(np.float64), neighbors[others].reshape(shape))


def by_stumpy(samples: Samples, case: Case) -> Answer:
    """The matrix profile with ten neighbors; its distances are of z-normalised windows, d² = 2 L (1 - r)."""
    import stumpy

    profile = stumpy.stump(samples, case.window_length, k=N_NEIGHBORS)
    distance = np.asarray(profile.P_, dtype=np.float64)
    return Answer(1.0 - distance**2 / (2 * case.window_length), np.asarray(profile.I_, dtype=np.int64))


def unit_windows(samples: Samples, case: Case) -> NDArray[np.float32]:
    """Centred windows of norm 1 in single precision, ``(n_windows, length)``."""
    series = torch.from_numpy(samples - samples.mean()).float()
    windows = series.unfold(0, case.window_length, case.stride)
    windows = windows - windows.mean(dim=1, keepdim=True)
    windows /= torch.linalg.vector_norm(windows, dim=1, keepdim=True)
    return windows.numpy()


def clocked(search: Search) -> Callable[[Samples, Case], tuple[float, Answer]]:
    """The same, with the seconds it took."""

    def timed_search(samples: Samples, case: Case) -> tuple[float, Answer]:
        seconds, answer = timed(lambda: search(samples, case))
        return seconds, answer

    return timed_search


OURS = Contender("raxss", clocked(by_raxss), tolerance=OURS_ERROR, most_samples=10**9)
TORCH, FAISS, FAISS_TOLD, STUMPY = "blocked torch", "faiss", "faiss, BLAS told", "stumpy"


@contextmanager
def installed_peers() -> Iterator[list[Contender]]:
    """Those that are here; the process of the second faiss lives as long as the block."""
    present = [Contender(TORCH, clocked(by_torch), tolerance=FLOAT32_ERROR)]
    if importlib.util.find_spec("stumpy"):
        present.append(Contender(STUMPY, clocked(by_stumpy), tolerance=OURS_ERROR, only_stride=1))
    if not importlib.util.find_spec("faiss"):
        yield present
        return
    present.append(Contender(FAISS, clocked(by_faiss), tolerance=FLOAT32_ERROR))
    with process_with(blas_environment()) as pool:

        def elsewhere(samples: Samples, case: Case) -> tuple[float, Answer]:
            return pool.submit(_faiss_here, samples, case).result()

        present.append(Contender(FAISS_TOLD, elsewhere, tolerance=FLOAT32_ERROR))
        yield present


def _faiss_here(samples: Samples, case: Case) -> tuple[float, Answer]:
    return clocked(by_faiss)(samples, case)


def blas_environment() -> dict[str, str]:
    """What tells an OpenBLAS that does not know this processor which of its kernels to take."""
    flags = cpu_flags()
    kind = "SkylakeX" if "avx512f" in flags else "Haswell" if "avx2" in flags else ""
    return {"OPENBLAS_CORETYPE": kind} if kind else {}


def blas_of_faiss() -> list[str]:
    """Which kind of processor the BLAS of faiss takes this one for, as installed; empty if it was not loaded."""
    if "faiss" not in sys.modules:
        return []
    from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

    loaded = [item for item in threadpool_info() if "faiss" in str(item.get("filepath"))]
    return sorted({str(item["architecture"]) for item in loaded if item.get("architecture")})


@contextmanager
def process_with(variables: dict[str, str]) -> Iterator[ProcessPoolExecutor]:
    """A fresh process that sees some environment variables from its start, since libraries read them once."""
    before = {name: os.environ.get(name) for name in variables}
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    try:
        os.environ.update(variables)
        try:
            pool.submit(int).result()  # the process starts with its first task
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
        yield pool
    finally:
        pool.shutdown()
