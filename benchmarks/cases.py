"""The search among labelled cases beside faiss, usearch and torch.

    python -m benchmarks cases [--json FILE]

The question is that of a prediction: 40 recordings of 64 windows each, against keys of which 24 are of one case
and 72 of one group; the ten nearest cases of every window by their best key, none of the own group, at most two a
group. Everybody gets vectors of norm 1, prepared as they like, and all cores; the clock runs from queries to lists.

Peers know nothing of cases. They list the k nearest keys, from which lists are made by a compiled loop; queries
whose list is then not full are asked again with four times as many. *torch by case* takes the largest of each case
before it lists, which it can because all cases have as many keys side by side. k of each is the smallest power of
two with which nearly all of some queries are answered, found before the clock runs.

Every answer is checked before its time counts: ours against float64 brute force, theirs against ours. What would
take a peer too long is asked for some of the queries, its time scaled by their number, and marked.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.common import SEED, Disagreement, n_cores, table, tell, timed
from benchmarks.contenders import (
    FAISS_TOLD,
    FLOAT32_ERROR,
    OURS_ERROR,
    blas_environment,
    process_with,
)
from raxss._core.threads import compiled
from raxss.library.search import CaseSearch, NearestCases

N_SERIES, N_WINDOWS = 40, 64
KEYS_A_CASE, CASES_A_GROUP = 24, 3
N_CASES, MOST_A_GROUP = 10, 2
N_CHECKED = 40  # queries that brute force answers too
QUERIES_AT_ONCE = 256
_DISTANCES_AT_ONCE = 2**26
N_PROBED = 64  # queries that tell which k is fair
LONGEST_S = 8.0  # what would take a peer longer is asked for fewer queries
RAXSS, TORCH, TORCH_BY_CASE, USEARCH = "raxss", "torch", "torch by case", "usearch"

Floats = NDArray[np.float32]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Question:
    """One setting that every contender gets; keys are normal, or lie around 200 centres."""

    n_keys: int
    width: int
    clustered: bool = False
    n_series: int = N_SERIES
    n_windows: int = N_WINDOWS

    @property
    def n_cases(self) -> int:
        """As many as give about that many keys."""
        return round(self.n_keys / KEYS_A_CASE)

    @property
    def n_queries(self) -> int:
        """Windows of all recordings."""
        return self.n_series * self.n_windows

    def __str__(self) -> str:
        return f"{self.n_keys:,} {'clustered' if self.clustered else 'normal'} keys of {self.width}"


QUESTIONS = tuple(
    Question(n_keys, width, clustered)
    for n_keys in (16_000, 100_000, 1_000_000)
    for width in (64, 256)
    for clustered in (False, True)
    if not clustered or (width == 256 and n_keys > 16_000)
)


WARM = Question(2_400, 64)  # compiles and loads what there is, and does not count


class Vectors(NamedTuple):
    """What a question is about; vectors have norm 1."""

    queries: Floats  # (n_queries, width), recording after recording
    keys: Floats  # (n_cases * KEYS_A_CASE, width), case after case

    def own(self, question: Question) -> Whole:
        """``(n_queries,)`` the group of each query's recording, which is in the library too."""
        return np.repeat(np.arange(question.n_series), question.n_windows)


@lru_cache(maxsize=1)
def vectors_of(question: Question) -> Vectors:
    """The same in every process."""
    rng = np.random.default_rng(SEED)
    queries = rng.standard_normal((question.n_queries, question.width), np.float32)
    keys = rng.standard_normal((question.n_cases * KEYS_A_CASE, question.width), np.float32)
    if question.clustered:
        centres = 2 * rng.standard_normal((200, question.width), np.float32)
        queries += centres[np.repeat(rng.integers(200, size=question.n_series), question.n_windows)]
        of_case = rng.integers(200, size=question.n_cases)
        for case, centre in enumerate(of_case):  # in place: there may be a gigabyte of them
            keys[case * KEYS_A_CASE : (case + 1) * KEYS_A_CASE] += centres[centre]
    for some in (queries, keys):
        for first in range(0, len(some), 2**14):
            part = some[first : first + 2**14]
            part /= np.linalg.norm(part, axis=1, keepdims=True)
    return Vectors(queries, keys)


class Lists(NamedTuple):
    """The nearest cases of every query, best first, and their similarities."""

    cases: Whole  # (n, N_CASES), -1 where there is none
    similarity: NDArray[np.float64]


Nearest = Callable[
    [Floats, int], tuple[Floats, Whole]
]  # queries, k -> similarity and number of keys or cases


@compiled
def pick(
    similarity: NDArray[Any],  # (n, k) best first
    found: Whole,  # (n, k) keys or cases
    keys_a_case: int,  # 1 where they are cases
    own: Whole,  # (n,) group of each query
    out: Lists,
) -> None:
    """The first cases of a list of keys, without the own group and at most MOST_A_GROUP of any."""
    for row in range(len(found)):
        n = 0
        for place in range(found.shape[1]):
            case = found[row, place] // keys_a_case
            group, same, seen = case // CASES_A_GROUP, 0, False
            for other in range(n):
                seen = seen or out.cases[row, other] == case
                same += out.cases[row, other] // CASES_A_GROUP == group
            if seen or same == MOST_A_GROUP or group == own[row]:
                continue
            out.cases[row, n], out.similarity[row, n] = case, similarity[row, place]
            n += 1
            if n == N_CASES:
                break
        for place in range(n, N_CASES):
            out.cases[row, place] = -1


def lists_by(nearest: Nearest, queries: Floats, own: Whole, k: int, keys_a_case: int, n_all: int) -> Lists:
    """Lists made from the k nearest; four times as many for queries whose list is not full, and so on."""
    out = Lists(np.empty((len(queries), N_CASES), np.int64), np.empty((len(queries), N_CASES)))
    pick(*nearest(queries, k), keys_a_case, own, out)
    short = np.flatnonzero(out.cases[:, -1] < 0)
    if len(short) and k < n_all:
        again = lists_by(nearest, queries[short], own[short], min(4 * k, n_all), keys_a_case, n_all)
        out.cases[short], out.similarity[short] = again
    return out


# ------------------------------------------------------------------------------------------------- contenders


def nearest_by_faiss(vectors: Vectors) -> Nearest:
    """An exact inner-product index."""
    import faiss

    faiss.omp_set_num_threads(n_cores())
    index = faiss.IndexFlatIP(vectors.keys.shape[1])
    index.add(vectors.keys)
    return lambda queries, k: index.search(queries, k)


def nearest_by_usearch(vectors: Vectors) -> Nearest:
    """Exact search without an index; as many queries at once as have room, for it keeps all their distances."""
    index = importlib.import_module("usearch.index")

    def nearest(queries: Floats, k: int) -> tuple[Floats, Whole]:
        similarity, keys = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        n_at_once = max(_DISTANCES_AT_ONCE // len(vectors.keys), 1)
        for first in range(0, len(queries), n_at_once):
            some = slice(first, first + n_at_once)
            given = vectors.keys, queries[some], k, index.MetricKind.IP
            found = index.search(*given, exact=True, threads=n_cores())
            similarity[some] = 1 - found.distances.reshape(-1, k)
            keys[some] = found.keys.reshape(-1, k)
        return similarity, keys

    return nearest


def nearest_by_torch(vectors: Vectors, by_case: bool = False) -> Nearest:
    """A block of queries times all keys, the largest of each case if wanted, and topk."""
    keys = torch.from_numpy(vectors.keys)

    def nearest(queries: Floats, k: int) -> tuple[Floats, Whole]:
        found = []
        for block in torch.from_numpy(queries).split(QUERIES_AT_ONCE):
            products = block @ keys.T
            if by_case:
                products = products.view(len(block), -1, KEYS_A_CASE).amax(dim=2)
            found.append(products.topk(k, dim=1))
        return torch.cat([item[0] for item in found]).numpy(), torch.cat([item[1] for item in found]).numpy()

    return nearest


_NEAREST: dict[str, Callable[[Vectors], Nearest]] = {
    TORCH: nearest_by_torch,
    TORCH_BY_CASE: lambda vectors: nearest_by_torch(vectors, by_case=True),
    FAISS_TOLD: nearest_by_faiss,
    USEARCH: nearest_by_usearch,
}


class Peer:
    """A peer that was given the keys of a question."""

    def __init__(self, name: str, question: Question) -> None:
        torch.set_num_threads(n_cores())
        self._vectors = vectors_of(question)
        self._own = self._vectors.own(question)
        self._by_case = name == TORCH_BY_CASE
        self._n_all = question.n_cases * (1 if self._by_case else KEYS_A_CASE)
        self._nearest = _NEAREST[name](self._vectors)
        self.k = self._fair_k()

    def _fair_k(self) -> int:
        """The smallest power of two that answers 98 % of some queries."""
        queries, own = self._some(min(N_PROBED, len(self._own)))
        similarity, found = self._nearest(queries, min(1024, self._n_all))
        k = 16
        while k < found.shape[1]:
            out = Lists(np.empty((len(own), N_CASES), np.int64), np.empty((len(own), N_CASES)))
            part = np.ascontiguousarray(similarity[:, :k]), np.ascontiguousarray(found[:, :k])
            pick(*part, 1 if self._by_case else KEYS_A_CASE, own, out)
            if (out.cases[:, -1] >= 0).mean() >= 0.98:
                break
            k *= 2
        return min(k, self._n_all)

    def _some(self, n: int) -> tuple[Floats, Whole]:
        which = some_of(len(self._own), n)
        return self._vectors.queries[which], self._own[which]

    def answer(self, n: int) -> tuple[float, Lists]:
        """Lists of so many queries, and the seconds that they took."""
        queries, own = self._some(n)
        keys_a_case = 1 if self._by_case else KEYS_A_CASE
        return timed(lambda: lists_by(self._nearest, queries, own, self.k, keys_a_case, self._n_all))


_held: dict[tuple[str, Question], Peer] = {}  # in the process of the peers


def _ask_here(name: str, question: Question, n: int) -> tuple[float, Lists, int]:
    """Ask a peer, which is made when a question is new and kept until the next."""
    if any(other != question for _, other in _held):
        _held.clear()
    if (name, question) not in _held:
        _held[name, question] = Peer(name, question)
    peer = _held[name, question]
    return (*peer.answer(n), peer.k)


Ask = Callable[[str, Question, int], tuple[float, Lists, int]]  # name, question, queries -> seconds, lists, k


@contextmanager
def installed() -> Iterator[tuple[list[str], Ask]]:
    """Those that are here, in a process that tells the BLAS of faiss which processor this is."""
    names = [TORCH, TORCH_BY_CASE]
    names += [FAISS_TOLD] if importlib.util.find_spec("faiss") else []
    names += [USEARCH] if importlib.util.find_spec("usearch") else []
    with process_with(blas_environment()) as pool:
        yield names, lambda name, question, n: pool.submit(_ask_here, name, question, n).result()


# ---------------------------------------------------------------------------------------------------- the part


def run(
    questions: Sequence[Question] = QUESTIONS,
    *,
    longest_s: float = LONGEST_S,
    n_repeats: int = 3,
    only: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Ask everybody every question; see the header.

    Raises
    ------
    Disagreement
        Where an answer is not the right one.
    """
    torch.set_num_threads(n_cores())
    rates: dict[str, float] = {}  # products a second, of the question before
    results = []
    with installed() as (names, ask):
        peers = [name for name in names if only is None or name in only]
        _one(WARM, peers, ask, {}, longest_s, 1)
        for place, question in enumerate(questions, 1):
            results.append(_one(question, peers, ask, rates, longest_s, n_repeats))
            times = {RAXSS: results[-1]["ours"], **results[-1]["peers"]}
            told = ", ".join(f"{name} {figure['seconds']:.3g} s" for name, figure in times.items())
            tell(f"cases {place}/{len(questions)}: {question}: {told}")
    return {
        "settings": {
            "n_series": questions[0].n_series,
            "n_windows": questions[0].n_windows,
            "keys_a_case": KEYS_A_CASE,
            "cases_a_group": CASES_A_GROUP,
            "n_cases": N_CASES,
            "most_a_group": MOST_A_GROUP,
            "threads": n_cores(),
            "longest_s": longest_s,
            "blas_environment": blas_environment(),
        },
        "questions": results,
    }


def _one(
    question: Question,
    peers: Sequence[str],
    ask: Ask,
    rates: dict[str, float],  # products a second of each peer, in the question before
    longest_s: float,
    n_repeats: int,
) -> dict[str, Any]:
    """One question: everybody in turn, some times over, ours on both sides of each peer."""
    vectors, n = vectors_of(question), question.n_queries
    cases = np.repeat(np.arange(question.n_cases), KEYS_A_CASE)
    groups = (np.arange(question.n_cases) // CASES_A_GROUP).tolist()
    prepare_s, search = timed(lambda: CaseSearch([(vectors.keys, cases)], groups))
    own = vectors.own(question)
    chosen: dict[str, Any] = {"n_cases": N_CASES, "most_a_group": MOST_A_GROUP, "spare": 0}
    chosen |= {"series": own, "groups": list(range(question.n_series))}
    found = search.nearest(vectors.queries, **chosen)
    ours: list[float] = []
    figures: dict[str, dict[str, Any]] = {}
    products = question.n_keys * question.width * n
    for repeat in range(n_repeats):
        for name in peers:
            predicted = products / rates.get(name, math.inf)
            if repeat and predicted > longest_s / 4:
                continue  # once is enough for what takes long
            n_asked = n if predicted <= longest_s else max(int(n * longest_s / predicted), QUERIES_AT_ONCE)
            ours.append(timed(lambda: search.nearest(vectors.queries, **chosen))[0])
            seconds, lists, k = ask(name, question, min(n_asked, n))
            which = some_of(n, len(lists.cases))
            figure = figures.setdefault(name, {"all": [], "k": k, "n_asked": len(which)})
            figure["difference"] = _difference(name, question, lists, found.similarity[which])
            figure["all"].append(seconds * n / len(which))
            rates[name] = products / figure["all"][-1]
    for figure in figures.values():
        figure["seconds"] = statistics.median(figure.pop("all"))
        figure["ratio"] = figure["seconds"] / statistics.median(ours)
    error = _error(question, vectors, found)
    times = {"seconds": statistics.median(ours), "fastest_seconds": min(ours), "prepare_seconds": prepare_s}
    return {**asdict(question), "ours": {**times, "error": error}, "peers": figures}


def some_of(n: int, n_asked: int) -> Whole:
    """Queries of all recordings alike."""
    return np.linspace(0, n - 1, n_asked).astype(np.int64)


def _difference(name: str, question: Question, theirs: Lists, ours: NDArray[np.float64]) -> float:
    """How far similarities are apart; cases may change places where these are equal."""
    apart = float(np.abs(theirs.similarity - ours).max())
    if not apart <= FLOAT32_ERROR:
        raise Disagreement(f"{question}: similarities of {name} and ours differ by {apart:.1e}")
    return apart


def _error(question: Question, vectors: Vectors, found: NearestCases) -> float:
    """Of ours, against brute force in float64 on some queries."""
    which = some_of(question.n_queries, min(N_CHECKED, question.n_queries))
    queries = vectors.queries[which].astype(np.float64)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    best = np.empty((len(which), question.n_cases))
    for first in range(0, question.n_cases, 500):
        keys = vectors.keys[first * KEYS_A_CASE : (first + 500) * KEYS_A_CASE].astype(np.float64)
        keys /= np.linalg.norm(keys, axis=1, keepdims=True)
        best[:, first : first + 500] = (queries @ keys.T).reshape(len(which), -1, KEYS_A_CASE).max(axis=2)
    order = np.argsort(-best, axis=1, kind="stable")
    similarity = np.ascontiguousarray(np.take_along_axis(best, order, axis=1)).astype(np.float64)
    truth = Lists(np.empty((len(which), N_CASES), np.int64), np.empty((len(which), N_CASES)))
    pick(similarity, order, 1, vectors.own(question)[which], truth)
    error = float(np.abs(truth.similarity - found.similarity[which]).max())
    same = [set(a) == set(b) for a, b in zip(truth.cases, found.cases[which], strict=True)]
    if not (error <= OURS_ERROR and all(same)):
        raise Disagreement(f"{question}: ours is off by {error:.1e}, or lists other cases than brute force")
    return error


# ---------------------------------------------------------------------------------------------------- telling


def tables(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    settings, questions = results["settings"], results["questions"]
    names = list(dict.fromkeys(name for item in questions for name in item["peers"]))
    error = max(item["ours"]["error"] for item in questions)
    apart = max(
        (peer["difference"] for item in questions for peer in item["peers"].values()), default=math.nan
    )
    environment = ", ".join(f"`{name}={value}`" for name, value in settings["blas_environment"].items())
    return "\n\n".join(
        [
            f"{settings['n_series']} recordings of {settings['n_windows']} windows each; "
            f"{settings['keys_a_case']} keys a case, {settings['cases_a_group']} cases a group; the "
            f"{settings['n_cases']} nearest cases, at most {settings['most_a_group']} a group, none of the own; "
            f"{settings['threads']} threads. Seconds from queries to lists, medians; in brackets how many times as "
            "long as ours. Keys were prepared before; the column says how long ours took for it. `~` is scaled "
            "from some of the queries.",
            table(
                ["keys", "d", "", RAXSS, "prepared in", *names],
                [
                    [
                        item["n_keys"],
                        item["width"],
                        "clustered" if item["clustered"] else "normal",
                        *(item["ours"][key] for key in ("seconds", "prepare_seconds")),
                        *(_cell(item["peers"].get(name), settings) for name in names),
                    ]
                    for item in questions
                ],
            ),
            f"*{FAISS_TOLD}* was started with {environment or 'nothing'}. Largest error of ours against float64 "
            f"brute force on {N_CHECKED} queries: {error:.0e}, with the same sets of cases. Peers' similarities "
            f"are at most {apart:.0e} from ours.",
        ]
    )


def _cell(figure: dict[str, Any] | None, settings: dict[str, Any]) -> str:
    if figure is None:
        return ""
    scaled = "~" if figure["n_asked"] < settings["n_series"] * settings["n_windows"] else ""
    return f"{scaled}{figure['seconds']:.3g} ({figure['ratio']:.3g})"
