"""Retrieval on the CPU beside torch, faiss and stumpy.

    python -m benchmarks retrieval [--json FILE]

Ours, a blocked matrix product with topk in torch, `faiss.IndexFlatIP` and `stumpy.stump(k=10)` get the same
samples in the same run, in turn, and all cores. Every answer is checked before its time counts: ours and theirs
against float64 brute force on some queries, theirs against ours on all. What would take a peer too long is
extrapolated from its own time, by the square of the number of windows, and marked.

Memory is taken in processes of their own, where no clock runs. Next: retrieval_gpu.py.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from benchmarks.common import SEED, Disagreement, make_signal, n_cores, peak_added, table, tell
from benchmarks.contenders import (
    FAISS,
    FAISS_TOLD,
    N_NEIGHBORS,
    OURS,
    STUMPY,
    TORCH,
    Answer,
    Case,
    Contender,
    Samples,
    blas_environment,
    blas_of_faiss,
    by_raxss,
    installed_peers,
)
from benchmarks.peaks import peak_rates

N_CHECKED = 200  # queries that brute force answers too
LONGEST_S = 300.0  # a peer that would take longer is not run, whatever the setting
LONGEST_ASIDE_S = 35.0  # the same away from the goal's size: all of it must fit into half an hour
GOAL = Case(200_000, 1024, 5)
SIZES = (20_000, 50_000, 200_000, 1_000_000)
CASES = tuple(
    Case(n_samples, length, stride)
    for n_samples in SIZES
    for length in (1024, 256)
    for stride in (1, 5, 64)
    if (n_samples, stride) != (1_000_000, 1)
)
MEMORY_CASES = tuple(Case(n_samples, 1024, 5) for n_samples in SIZES[1:])


def run(
    cases: Sequence[Case] = CASES,
    *,
    goal: Case = GOAL,
    memory_cases: Sequence[Case] = MEMORY_CASES,
    peers: Sequence[Contender] | None = None,
    longest_s: float = LONGEST_S,
    longest_aside_s: float = LONGEST_ASIDE_S,
    peak_seconds: float = 2.0,
) -> dict[str, Any]:
    """Ask everybody every case; see the header.

    Parameters
    ----------
    peers
        Instead of those that are installed.
    longest_s, longest_aside_s
        What a peer may take at the goal's samples and length, and elsewhere, before it is extrapolated.

    Raises
    ------
    Disagreement
        Where an answer is not the right one.
    """
    torch.set_num_threads(n_cores())
    peaks = peak_rates(seconds=peak_seconds)
    smallest_first = sorted(
        cases, key=lambda case: case.n_windows
    )  # what was seen small predicts what is large
    results = []
    with installed_peers() if peers is None else _given(peers) as contenders:
        _warm_up([OURS, *contenders])
        seen = _Seen()
        for place, case in enumerate(smallest_first, 1):
            at_goal = (case.n_samples, case.window_length) == (goal.n_samples, goal.window_length)
            longest = longest_s if at_goal else longest_aside_s
            results.append(_one_case(case, contenders, seen, longest, at_goal))
            _give_shares(results[-1], peaks)
            _tell(f"{place}/{len(cases)}: {case}", results[-1])
    results.sort(key=lambda item: (item["n_samples"], -item["window_length"], item["stride"]))
    _carry_over_strides(results)
    return {
        "settings": {
            "n_neighbors": N_NEIGHBORS,
            "measure": "pearson",
            "threads": n_cores(),
            "goal": asdict(goal),
            "queries_checked": N_CHECKED,
            "longest_s": longest_s,
            "longest_aside_s": longest_aside_s,
            "blas_environment": blas_environment(),
            "blas_of_faiss": blas_of_faiss(),
        },
        "peaks": peaks,
        "cases": results,
        "memory": [_memory(case) for case in memory_cases],
    }


@contextmanager
def _given(contenders: Sequence[Contender]) -> Iterator[Sequence[Contender]]:
    yield contenders


def _warm_up(contenders: Sequence[Contender]) -> None:
    """Compile and start everything on a small piece, so that the clock never sees it."""
    samples = make_signal(3_000)
    for contender in contenders:
        for length, stride in ((256, 1), (256, 5), (256, 64), (1024, 5)):
            if contender.only_stride in (None, stride):
                contender.search(samples, Case(len(samples), length, stride))


class _Seen:
    """What each contender took so far, to predict what it will take."""

    def __init__(self) -> None:
        self._largest: dict[tuple[str, int], tuple[int, float]] = {}

    def note(self, name: str, case: Case, seconds: float) -> None:
        """Remember the largest case."""
        key = (name, case.window_length)
        if case.n_windows >= self._largest.get(key, (0, 0.0))[0]:
            self._largest[key] = (case.n_windows, seconds)

    def predict(self, name: str, case: Case) -> dict[str, Any] | None:
        """Seconds by the square of the number of windows; None where nothing of this length was seen."""
        if (name, case.window_length) not in self._largest:
            return None
        n_windows, seconds = self._largest[name, case.window_length]
        return {"seconds": seconds * (case.n_windows / n_windows) ** 2, "from_windows": n_windows}


def _one_case(
    case: Case, contenders: Sequence[Contender], seen: _Seen, longest: float, patient: bool
) -> dict[str, Any]:
    """Everybody's time and answer for one case; who has an exclusion zone is met in a second round with it."""
    result: dict[str, Any] = {**asdict(case), "n_windows": case.n_windows, "pairs": case.pairs, "peers": {}}
    able = [contender for contender in contenders if case.n_samples <= contender.most_samples]
    plain = [item for item in able if item.only_stride is None]
    zoned = [item for item in able if item.only_stride == case.stride]
    result["ours"] = _meet(case, plain, result["peers"], seen, longest, patient)
    if any(_fits(item, case, seen, longest) for item in zoned):
        result["ours_with_exclusion"] = _meet(case.zoned, zoned, result["peers"], seen, longest, patient)
    else:  # nobody to meet: a zone does not change how long ours takes
        for item in zoned:
            result["peers"][item.name] = _extrapolated(item, case, seen, result["ours"]["seconds"])
    return result


def _fits(contender: Contender, case: Case, seen: _Seen, longest: float) -> bool:
    """Whether it may run: its time is not known yet, or short enough."""
    predicted = seen.predict(contender.name, case)
    return predicted is None or predicted["seconds"] <= longest


def _extrapolated(contender: Contender, case: Case, seen: _Seen, ours_s: float) -> dict[str, Any]:
    """What it would have taken, marked as such."""
    predicted = seen.predict(contender.name, case)
    assert predicted is not None, "it does not fit, so its time was predicted"
    return predicted | {"extrapolated": True, "ratio": predicted["seconds"] / ours_s}


def _meet(
    case: Case,
    peers: Sequence[Contender],
    figures: dict[str, Any],  # of each peer, filled here
    seen: _Seen,
    longest: float,
    patient: bool,
) -> dict[str, Any]:
    """Run ours and some peers in turn, check all answers, and write down the peers' figures; ours are returned."""
    samples = make_signal(case.n_samples)
    running = [peer for peer in peers if _fits(peer, case, seen, longest)]
    times, answers = _in_turn([OURS, *running], samples, case, patience=25.0 if patient else 4.0)
    errors = _checked([OURS, *running], answers, samples, case)
    ours_s = statistics.median(times[OURS.name])
    ours = {
        "seconds": ours_s,
        "runs": times[OURS.name],
        "ns_per_pair": ours_s / case.pairs * 1e9,
        "gmacs": case.macs / ours_s / 1e9,
        "error": errors[OURS.name],
    }
    for peer in peers:
        if peer not in running:
            figures[peer.name] = _extrapolated(peer, case, seen, ours_s)
    for peer in running:
        seconds = statistics.median(times[peer.name])
        seen.note(peer.name, case, seconds)
        figures[peer.name] = {
            "seconds": seconds,
            "runs": times[peer.name],
            "extrapolated": False,
            "ratio": seconds / ours_s,
            "error": errors[peer.name],
            "difference": largest_difference(answers[OURS.name], answers[peer.name]),
        }
    return ours


def _in_turn(
    contenders: Sequence[Contender], samples: Samples, case: Case, *, patience: float
) -> tuple[dict[str, list[float]], dict[str, Answer]]:
    """Three rounds, one after the other; who took longer than ``patience`` stays away from the later ones."""
    times: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    answers: dict[str, Answer] = {}
    for place in range(3):
        for contender in contenders:
            if place == 0 or times[contender.name][0] <= patience:
                seconds, answers[contender.name] = contender.search(samples, case)
                times[contender.name].append(seconds)
    return times, answers


# ------------------------------------------------------------------------------------------------ checking


def _checked(
    contenders: Sequence[Contender], answers: dict[str, Answer], samples: Samples, case: Case
) -> dict[str, float]:
    """Everybody's error against brute force on some queries; `Disagreement` names who is wrong."""
    rng = np.random.default_rng(SEED)
    queries = np.sort(rng.choice(case.n_windows, min(N_CHECKED, case.n_windows), replace=False))
    exact = brute_force(samples, case, queries)
    errors = {}
    for contender in contenders:
        errors[contender.name] = error_against(exact, queries, answers[contender.name])
        difference = largest_difference(answers[OURS.name], answers[contender.name])
        worst = max(errors[contender.name], difference)
        if not worst <= contender.tolerance:
            raise Disagreement(
                f"{contender.name} is wrong on {case}: its similarities are off by up to {worst:.2g}, allowed are "
                f"{contender.tolerance:.0e}. A time without the right answer says nothing."
            )
    return errors


def brute_force(samples: Samples, case: Case, queries: NDArray[np.int64]) -> NDArray[np.float64]:
    """Pearson similarity of some windows with all, straight from its definition; -inf where excluded."""
    every = sliding_window_view(samples - samples.mean(), case.window_length)[:: case.stride]
    unit = _unit(every[queries])
    exact = np.empty((len(queries), case.n_windows))
    for first in range(0, case.n_windows, 4096):
        block = slice(first, first + 4096)
        exact[:, block] = unit @ _unit(every[block]).T
    apart = np.abs(queries[:, np.newaxis] - np.arange(case.n_windows)) * case.stride
    exact[apart <= case.exclusion] = -np.inf
    return exact


def _unit(windows: NDArray[np.float64]) -> NDArray[np.float64]:
    centred = windows - windows.mean(axis=1, keepdims=True)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    return centred


def error_against(exact: NDArray[np.float64], queries: NDArray[np.int64], answer: Answer) -> float:
    """Largest error of the lists, and of the similarity given to each listed neighbor."""
    similarity, neighbors = answer.similarity[queries], answer.neighbors[queries]
    best = -np.sort(np.partition(-exact, N_NEIGHBORS, axis=1)[:, :N_NEIGHBORS], axis=1)
    listed = np.take_along_axis(exact, neighbors, axis=1)
    return float(max(np.abs(similarity - best).max(), np.abs(similarity - listed).max()))


def largest_difference(first: Answer, second: Answer) -> float:
    """Between two lists of similarities; infinite where they do not even have one shape."""
    if first.similarity.shape != second.similarity.shape:
        return math.inf
    return float(np.abs(first.similarity - second.similarity).max())


def _give_shares(result: dict[str, Any], peaks: dict[str, Any]) -> None:
    for ours in (result["ours"], result.get("ours_with_exclusion")):
        if ours is not None:
            ours["share_of_float64_peak"] = ours["gmacs"] / peaks["float64_gmacs"]
            ours["share_of_float32_peak"] = ours["gmacs"] / peaks["float32_gmacs"]


def _carry_over_strides(results: list[dict[str, Any]]) -> None:
    """Who knows one stride only takes that stride's time at every other one, and the row says so."""
    at_one = {(item["n_samples"], item["window_length"]): item for item in results if item["stride"] == 1}
    for item in results:
        theirs = at_one.get((item["n_samples"], item["window_length"]), {"peers": {}})["peers"].get(STUMPY)
        if item["stride"] != 1 and theirs is not None:
            item["peers"][STUMPY] = {
                "seconds": theirs["seconds"],
                "extrapolated": theirs["extrapolated"],
                "at_stride": 1,
                "ratio": theirs["seconds"] / item["ours"]["seconds"],
            }


# -------------------------------------------------------------------------------------------------- memory


def _memory(case: Case) -> dict[str, Any]:
    """Peak memory that ours adds, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.retrieval", json.dumps(asdict(case))]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    added: int = json.loads(output.splitlines()[-1])
    tell(f"retrieval, memory: {case}: {added / 2**20:.0f} MB")
    return {
        **asdict(case),
        "n_windows": case.n_windows,
        "added_mb": added / 2**20,
        "bytes_per_window_and_neighbor": added / (case.n_windows * N_NEIGHBORS),
    }


def _added_bytes(case: Case) -> int:
    """In that process: how much higher the peak is during the search than before it."""
    samples = make_signal(case.n_samples)
    by_raxss(samples[: 4 * case.window_length], case)
    return peak_added(lambda: by_raxss(samples, case))[0]


# ------------------------------------------------------------------------------------------------- telling


def _tell(place: str, result: dict[str, Any]) -> None:
    figures = {OURS.name: result["ours"]} | result["peers"]
    times = [
        f"{name} {'~' if figure.get('extrapolated') else ''}{figure['seconds']:.3g} s"
        for name, figure in figures.items()
    ]
    tell(f"retrieval {place}: {', '.join(times)}")


def tables(results: dict[str, Any]) -> str:
    """The results as Markdown: times and ratios, cost per pair, memory."""
    settings, peaks = results["settings"], results["peaks"]
    kinds = ", ".join(settings["blas_of_faiss"]) or "unknown"
    environment = (
        ", ".join(f"`{name}={value}`" for name, value in settings["blas_environment"].items()) or "nothing"
    )
    return "\n\n".join(
        [
            f"m = {settings['n_neighbors']}, Pearson, {settings['threads']} threads. Seconds from samples to "
            "lists, medians; in brackets how many times as long as ours. `~` is extrapolated from the peer's own "
            "time by the square of the number of windows. `†` is stumpy's time at stride 1, the only one it knows.",
            _speed_table(results["cases"]),
            f"*{FAISS}* is as installed; its BLAS takes this processor for: {kinds}. *{FAISS_TOLD}* is the same "
            f"library started with {environment}.",
            "Stride 1 with stumpy's exclusion zone (a quarter of a window), the same question to both:",
            _zone_table(results["cases"]),
            "Cost and accuracy of ours. A pair is two windows, every two once: n(n-1)/2. By recurrence it costs "
            "2 x stride multiply-adds. The machine's peak, measured in the same run, is "
            f"{peaks['float64_gmacs']:.0f} x 10⁹ multiply-adds a second in float64 and "
            f"{peaks['float32_gmacs']:.0f} in float32; torch's matrix product reaches "
            f"{peaks['float64_matmul_gmacs']:.0f} and {peaks['float32_matmul_gmacs']:.0f}. Error: against float64 "
            f"brute force on {settings['queries_checked']} queries. Last column: how far each peer's similarities "
            "are from ours.",
            _cost_table(results["cases"]),
            "Peak memory that a search adds, in a process of its own:",
            table(
                ["samples", "windows", "added MB", "bytes a window and neighbour"],
                [
                    [
                        result["n_samples"],
                        result["n_windows"],
                        result["added_mb"],
                        result["bytes_per_window_and_neighbor"],
                    ]
                    for result in results["memory"]
                ],
            ),
        ]
    )


def _speed_table(cases: Sequence[dict[str, Any]]) -> str:
    names = [
        name for name in (TORCH, FAISS, FAISS_TOLD, STUMPY) if any(name in case["peers"] for case in cases)
    ]
    return table(
        ["samples", "L", "stride", "windows", "raxss", *names],
        [
            [
                *(case[key] for key in ("n_samples", "window_length", "stride", "n_windows")),
                case["ours"]["seconds"],
                *(_peer_cell(case["peers"].get(name)) for name in names),
            ]
            for case in cases
        ],
    )


def _peer_cell(item: dict[str, Any] | None) -> str:
    if item is None:
        return ""
    seconds = (
        ("~" if item["extrapolated"] else "")
        + f"{item['seconds']:.3g}"
        + ("†" if "at_stride" in item else "")
    )
    return f"{seconds} ({item['ratio']:.3g})"


def _zone_table(cases: Sequence[dict[str, Any]]) -> str:
    zoned = [case for case in cases if "ours_with_exclusion" in case and STUMPY in case["peers"]]
    return table(
        ["samples", "L", "raxss", "stumpy", "similarities differ by"],
        [
            [
                item["n_samples"],
                item["window_length"],
                item["ours_with_exclusion"]["seconds"],
                _peer_cell(item["peers"][STUMPY]),
                item["peers"][STUMPY].get("difference"),
            ]
            for item in zoned
        ],
    )


def _cost_table(cases: Sequence[dict[str, Any]]) -> str:
    return table(
        [
            "samples",
            "L",
            "stride",
            "ns a pair",
            "10⁹ multiply-adds/s",
            "float64 peak",
            "error",
            "peers differ by",
        ],
        [
            [
                *(case[key] for key in ("n_samples", "window_length", "stride")),
                *(case["ours"][key] for key in ("ns_per_pair", "gmacs")),
                f"{case['ours']['share_of_float64_peak']:.0%}",
                f"{case['ours']['error']:.0e}",
                ", ".join(
                    f"{name} {peer['difference']:.0e}"
                    for name, peer in case["peers"].items()
                    if "difference" in peer
                ),
            ]
            for case in cases
        ],
    )


if __name__ == "__main__":
    print(_added_bytes(Case(**json.loads(sys.argv[1]))))
