"""The report of the benchmarks: goals, figures and reasons.

    results/<machine>/<part>.json, NOTES.md -> RESULTS.md, docs/scaling.md

    python -m benchmarks report

Nothing is measured here and nothing is typed by hand: the same files give the same text. NOTES.md holds, under the
name of a goal, why it stops where it does. Next: scaling_page.py for the page about growth.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, number, table
from benchmarks.contenders import FAISS, FAISS_TOLD, STUMPY, TORCH
from benchmarks.telling import FLOOR_UNITS, Results, part_tables
from raxss._core import atomic as storage

NOTES = Path(__file__).parent / "NOTES.md"
PARTS = (
    "retrieval",
    "retrieval-gpu",
    "cases",
    "network",
    "training",
    "seed",
    "prediction",
    "long",
    "bank",
    "scaling",
    "all",
)
Everything = dict[str, dict[str, Results]]  # machine -> part -> what its file holds


@dataclass(frozen=True)
class Goal:
    """One figure that the project has set itself.

    Attributes
    ----------
    key
        Its heading in NOTES.md.
    figure
        Finds it in the results of its part; what is missing there is a KeyError.
    beside
        More that a reader should see next to the figure.
    """

    key: str
    text: str
    machine: str
    part: str
    figure: Callable[[Results], float]
    wanted: float
    at_least: bool
    unit: str = ""
    beside: Callable[[Results], str] = lambda results: ""

    def reached(self, value: float) -> bool:
        """Whether a value is on the right side of what is wanted."""
        return value >= self.wanted if self.at_least else value <= self.wanted

    @property
    def wanted_text(self) -> str:
        """Such as 'at least 10 times'."""
        return f"{'at least' if self.at_least else 'at most'} {_plain(self.wanted)}{self.unit and ' ' + self.unit}"


# ------------------------------------------------------------------------------------------------ the goals


def _goal_case(results: Results, stride: int | None = None) -> Results:
    wanted = results["settings"]["goal"]
    size = (wanted["n_samples"], wanted["window_length"], wanted["stride"] if stride is None else stride)
    for result in results["cases"]:
        if (result["n_samples"], result["window_length"], result["stride"]) == size:
            return dict(result)
    raise KeyError(size)


def _ratio(peer: str) -> Callable[[Results], float]:
    return lambda results: float(_goal_case(results)["peers"][peer]["ratio"])


def _faiss_beside(results: Results) -> str:
    ratio = _goal_case(results)["peers"][FAISS_TOLD]["ratio"]
    kinds = ", ".join(results["settings"]["blas_of_faiss"])
    return f"its BLAS takes this processor for {kinds}; told the right one: {number(ratio)} times"


def _stumpy_beside(results: Results) -> str:
    at_one = _goal_case(results, stride=1)["peers"][STUMPY]
    return f"at stride 1 with its exclusion, the same question to both: {number(at_one['ratio'])} times"


def _largest_error(results: Results) -> float:
    return max(float(result["ours"]["error"]) for result in results["cases"])


def _unevenness(results: Results) -> float:
    """Largest over smallest cost of a pair at the goal's length and stride."""
    goal = results["settings"]["goal"]
    costs = [
        result["ours"]["ns_per_pair"]
        for result in results["cases"]
        if (result["window_length"], result["stride"]) == (goal["window_length"], goal["stride"])
    ]
    return float(max(costs) / min(costs))


def _costs_beside(results: Results) -> str:
    goal = results["settings"]["goal"]
    costs = [
        f"{result['n_samples']:,}: {number(result['ours']['ns_per_pair'])}"
        for result in results["cases"]
        if (result["window_length"], result["stride"]) == (goal["window_length"], goal["stride"])
    ]
    return f"ns a pair at {', '.join(costs)}"


def _memory_growth(results: Results) -> float:
    """Bytes per window and neighbour of the longest series over those of the one before it."""
    before, longest = sorted(results["memory"], key=lambda item: item["n_windows"])[-2:]
    return float(longest["bytes_per_window_and_neighbor"] / before["bytes_per_window_and_neighbor"])


def _memory_beside(results: Results) -> str:
    longest = max(results["memory"], key=lambda item: item["n_windows"])
    return f"{number(longest['added_mb'])} MB for {longest['n_windows']:,} windows"


def _share_beside(results: Results) -> str:
    ours, peak = _goal_case(results)["ours"], results["peaks"]["float64_gmacs"]
    return (
        f"{number(ours['gmacs'])} of {number(peak)} x 10⁹ multiply-adds a second, "
        f"{ours['share_of_float64_peak']:.0%} of the float64 peak"
    )


def _gpu_beside(results: Results) -> str:
    many, floors = results["many"], results["floors"]
    operations = [f"{units} {number(floors[f'{name}_ms'])} ms" for name, units in FLOOR_UNITS.items()]
    return (
        f"torch in tf32 {number(results['torch_tf32_ms'])} ms; floors: bytes {number(floors['bytes_ms'])} ms, "
        f"operations in {', '.join(operations)}; "
        f"{many['n_series']} series in one launch {number(many['kernel_ms'])} ms"
    )


def _prediction_beside(results: Results) -> str:
    share = results["network"]["share_of_matmul"]
    return (
        f"{results['n_windows']:,} windows, {number(results['windows_per_second'])} a second; the network reaches "
        f"{share:.0%} of the machine's matmul rate"
    )


def _day_gb(results: Results) -> float:
    """Only a whole day says how much memory a whole day takes."""
    if results["hours"] < 24:
        raise KeyError("hours")
    return float(results["peak_gb"])


def _long_beside(results: Results) -> str:
    return (
        f"{results['n_windows']:,} windows in {number(results['seconds'])} s, bank {results['bank']} of "
        f"{results['bank_windows']:,} windows"
    )


def at(*path: str) -> Callable[[Results], float]:
    """The figure at a place in the results.

    >>> at("a", "b")({"a": {"b": 2}})
    2.0
    """

    def figure(results: Results) -> float:
        found: Any = results
        for name in path:
            found = found[name]
        return float(found)

    return figure


GOALS = (
    Goal(
        "retrieval-torch",
        "Retrieval on two cores, times blocked torch (200 k samples, L = 1024, stride 5, m = 10)",
        "cpu2",
        "retrieval",
        _ratio(TORCH),
        10,
        at_least=True,
        unit="times",
        beside=_share_beside,
    ),
    Goal(
        "retrieval-faiss",
        "the same, times `faiss.IndexFlatIP` as installed",
        "cpu2",
        "retrieval",
        _ratio(FAISS),
        50,
        at_least=True,
        unit="times",
        beside=_faiss_beside,
    ),
    Goal(
        "retrieval-stumpy",
        "the same, times `stumpy.stump(k=10)` at its stride 1",
        "cpu2",
        "retrieval",
        _ratio(STUMPY),
        100,
        at_least=True,
        unit="times",
        beside=_stumpy_beside,
    ),
    Goal(
        "retrieval-error",
        "Largest error of retrieval on the CPU against float64 brute force, all sizes",
        "cpu2",
        "retrieval",
        _largest_error,
        1e-6,
        at_least=False,
    ),
    Goal(
        "retrieval-flat",
        "Cost of a pair from 20 k to 1 M samples, largest over smallest (L = 1024, stride 5)",
        "cpu2",
        "retrieval",
        _unevenness,
        1.25,
        at_least=False,
        unit="times",
        beside=_costs_beside,
    ),
    Goal(
        "retrieval-memory",
        "Memory O(windows x m): bytes per window and neighbour at 1 M samples over those at 200 k",
        "cpu2",
        "retrieval",
        _memory_growth,
        1.25,
        at_least=False,
        unit="times",
        beside=_memory_beside,
    ),
    Goal(
        "retrieval-gpu",
        "Retrieval on one H200, 39,796 windows, L = 1024, top 10",
        "h200",
        "retrieval-gpu",
        at("ours_ms"),
        4,
        at_least=False,
        unit="ms",
        beside=_gpu_beside,
    ),
    Goal(
        "retrieval-gpu-error",
        "its largest error against float64",
        "h200",
        "retrieval-gpu",
        at("error"),
        1e-5,
        at_least=False,
        beside=lambda results: f"on {len(results['errors'])} signals that are hard to sum",
    ),
    Goal(
        "training-gpu",
        "Training steps on one H200, windows a second",
        "h200",
        "training",
        at("windows_per_second", "raxss"),
        1_000_000,
        at_least=True,
        unit="windows/s",
        beside=lambda results: f"{number(at('times_the_reference')(results))} times the reference (goal 40)",
    ),
    Goal(
        "training-cpu",
        "Training steps on two cores, windows a second",
        "cpu2",
        "training",
        at("windows_per_second", "raxss"),
        1_500,
        at_least=True,
        unit="windows/s",
        beside=lambda results: f"{number(at('times_the_reference')(results))} times the reference (goal 10)",
    ),
    Goal(
        "seed",
        "One seed at the paper's size on one H200, retrieval included",
        "h200",
        "seed",
        at("seconds"),
        120,
        at_least=False,
        unit="s",
    ),
    Goal(
        "prediction-gpu",
        "100 channels of 300 s with evidence on one H200",
        "h200",
        "prediction",
        at("seconds"),
        2,
        at_least=False,
        unit="s",
        beside=_prediction_beside,
    ),
    Goal(
        "prediction-cpu",
        "the same on two cores",
        "cpu2",
        "prediction",
        at("seconds"),
        120,
        at_least=False,
        unit="s",
        beside=_prediction_beside,
    ),
    Goal(
        "long",
        "Memory to predict a 24 h channel at 1 kHz with evidence on the CPU",
        "cpu2",
        "long",
        _day_gb,
        2,
        at_least=False,
        unit="GB",
        beside=_long_beside,
    ),
    Goal(
        "bench",
        "`make bench` on two cores",
        "cpu2",
        "all",
        lambda results: float(results["seconds"]) / 60,
        30,
        at_least=False,
        unit="minutes",
    ),
)


# ----------------------------------------------------------------------------------------------- the report


def write(results: Path = RESULTS, out: Path | None = None) -> str:
    """Write RESULTS.md beside the folder of results; the text is also returned."""
    everything = read_all(results)
    text = report(everything, read_notes(NOTES))
    storage.write_text(out or results.parent / "RESULTS.md", text)
    return text


def read_all(results: Path) -> Everything:
    """Every file of every machine; CPUs first, then by name."""
    machines = sorted(
        (item for item in results.iterdir() if item.is_dir()) if results.is_dir() else [],
        key=lambda item: (not item.name.startswith("cpu"), item.name),
    )
    return {
        machine.name: {
            part: _read(machine / f"{part}.json") for part in PARTS if (machine / f"{part}.json").exists()
        }
        for machine in machines
    }


def _read(path: Path) -> Results:
    found: Results = json.loads(path.read_text())
    return found


def read_notes(path: Path) -> dict[str, str]:
    """The paragraphs under each heading.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "NOTES.md"
    >>> _ = path.write_text("# Notes\\n\\n## seed\\n\\nThe disk was slow.\\n")
    >>> read_notes(path)
    {'seed': 'The disk was slow.'}
    """
    if not path.exists():
        return {}
    parts = re.split(r"^## (\S+)\s*$", path.read_text(), flags=re.MULTILINE)
    return {key: text.strip() for key, text in zip(parts[1::2], parts[2::2], strict=True) if text.strip()}


def report(everything: Everything, notes: dict[str, str]) -> str:
    """The whole text."""
    sections = [
        "# Results",
        "Written by `python -m benchmarks report` from the files under `results/`; `make bench` measures them "
        "anew. How the cost of each kind of work grows: [docs/scaling.md](../docs/scaling.md).",
        "## Goals",
        _goal_table(everything),
        *_reasons(everything, notes),
    ]
    for machine, parts in everything.items():
        if parts:
            sections += [f"## {machine}", _hardware(parts)]
        for part, record in parts.items():
            if part != "all":
                sections += [
                    f"### {machine}: {part}",
                    _provenance(record),
                    part_tables(part, record["results"]),
                ]
    return "\n\n".join(sections) + "\n"


def goal_figure(goal: Goal, everything: Everything) -> float | None:
    """What was measured for a goal; None where nothing was."""
    record = everything.get(goal.machine, {}).get(goal.part)
    if record is None:
        return None
    try:
        return goal.figure(record if goal.part == "all" else record["results"])
    except (KeyError, IndexError, TypeError, ValueError):
        return None


def _goal_table(everything: Everything) -> str:
    rows = []
    for goal in GOALS:
        value = goal_figure(goal, everything)
        if value is None:
            rows.append([goal.text, goal.wanted_text, goal.machine, "not measured", "", ""])
            continue
        results = everything[goal.machine][goal.part]
        try:
            beside = goal.beside(results if goal.part == "all" else results["results"])
        except (KeyError, IndexError, TypeError):
            beside = ""
        reached = "reached" if goal.reached(value) else "**missed**"
        rows.append([goal.text, goal.wanted_text, goal.machine, number(value), reached, beside])
    return table(["goal", "wanted", "machine", "measured", "", "beside it"], rows)


def _reasons(everything: Everything, notes: dict[str, str]) -> list[str]:
    """Why a goal was missed, and whatever else the notes have to say about one."""
    reasons = []
    for goal in GOALS:
        value = goal_figure(goal, everything)
        missed = value is not None and not goal.reached(value)
        if goal.key in notes:
            reasons.append(f"**{goal.text}.** {notes[goal.key]}")
        elif missed:
            reasons.append(f"**{goal.text}.** Missed; no reason is written down in NOTES.md yet.")
    return ["### What stands behind these figures", *reasons] if reasons else []


def _hardware(parts: dict[str, Results]) -> str:
    record = next(iter(parts.values()))
    machine = record["machine"]
    lines = [f"{machine['cpu']}, {machine['cores']} cores, {number(machine['memory_gb'])} GB"]
    if machine.get("gpu"):
        gpu = machine["gpu"]
        lines.append(
            f"{gpu['name']}, {number(gpu['memory_gb'])} GB, driver {gpu['driver']}, CUDA {gpu['cuda']}"
        )
    return "; ".join(lines) + f"; {machine['system']}."


def _provenance(record: Results) -> str:
    """When, with what, and how busy the machine was."""
    versions = ", ".join(f"{name} {version}" for name, version in record["machine"]["versions"].items())
    return (
        f"{record['date']}, {number(record['seconds'])} s in all, seed {record['seed']}, load before the start "
        f"{number(record['machine']['load'])}; {versions}."
    )


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:g}"
