"""Results of a part as Markdown tables.

    part, results -> Markdown tables

In the part's own way where it has one, else every figure by its name. Next: report.py puts them together.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.common import number, table

Results = dict[str, Any]
FLOOR_UNITS = {
    "float64_matrix": "float64 matrix units",
    "float64": "float64",
    "float32": "float32",
}  # of a GPU


def part_tables(part: str, results: Results) -> str:
    """The results of a part as Markdown: in the part's own way where it has one, else every figure by its name."""
    teller = _tellers().get(part)
    return _spaced(plain_tables(results) if teller is None else teller(results))


def _spaced(text: str) -> str:
    """With an empty line before and after each table, as Markdown wants it.

    >>> _spaced("times:\\n| a |\\n|---|\\nin ms")
    'times:\\n\\n| a |\\n|---|\\n\\nin ms'
    """
    lines = text.split("\n")
    spaced = lines[:1]
    for before, line in itertools.pairwise(lines):
        if before and line and before.startswith("|") != line.startswith("|"):
            spaced.append("")
        spaced.append(line)
    return "\n".join(spaced)


def _tellers() -> dict[str, Callable[[Results], str]]:
    from benchmarks import cases, retrieval, training

    return {
        "retrieval": retrieval.tables,
        "retrieval-gpu": _retrieval_gpu_tables,
        "cases": cases.tables,
        "network": _network_tables,
        "training": training.tell_step,
        "seed": training.tell_seed,
    }


def _retrieval_gpu_tables(results: Results) -> str:
    """Times beside ours, what no kernel could beat, many series at once, errors."""
    ours, floors, many = results["ours_ms"], results["floors"], results["many"]
    names = {
        "raxss, data on the device": ours,
        "torch, tf32 matmul and topk, data on the device": results["torch_tf32_ms"],
        "torch, float64 matmul and topk, from the host": results["torch_float64_ms"],
        "raxss, from samples to lists on the host": results["end_to_end_ms"],
        "of that, preparing on the CPU": results["preparing_on_the_cpu_ms"],
        f"floor: bytes over {number(floors['copy_tb_per_s'])} TB/s": floors["bytes_ms"],
    }
    for name, units in FLOOR_UNITS.items():
        rate = number(floors[f"{name}_tflops"])
        names[f"floor: operations over {rate} TFLOP/s ({units})"] = floors[f"{name}_ms"]
    together = f"{many['n_series']} series of {many['n_windows_each']:,} windows"
    return "\n\n".join(
        [
            f"{results['n_windows']:,} windows, "
            + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in results["settings"].items())
            + "; medians, contenders in turn:",
            table(["", "ms", "times ours"], [[name, ms, ms / ours] for name, ms in names.items()]),
            f"{together}:",
            table(
                ["", "ms"],
                [
                    ["one launch, data on the device", many["kernel_ms"]],
                    ["together, from samples to lists", many["end_to_end_ms"]],
                    ["one by one, from samples to lists", many["one_by_one_ms"]],
                ],
            ),
            "Largest error against float64 brute force:",
            table(["signal", "error"], results["errors"].items()),
        ]
    )


def _network_tables(results: Results) -> str:
    """Windows a second of each contender, and how many times as many ours does."""
    if "floors_ms" not in results:
        rates = results["windows_per_second"]
        rows = [
            [
                part,
                name,
                rate,
                rates[part]["ours"] / rate,
                results["share_of_matmul"][part] if name == "ours" else None,
            ]
            for part in rates
            for name, rate in rates[part].items()
        ]
        return table(["", "", "windows/s", "ours is times as fast", "share of the matmul rate"], rows) + (
            f"\n\nThe matmul rate is {number(results['matmul_gflops'])} x 10⁹ operations a second; features differ "
            f"by {number(results['difference'])}; a step of ours adds {number(results['step_gb'])} GB."
        )
    rows = [
        [part, name, result["windows_per_second"], result["milliseconds"], result["peak_added_gb"],
         results[part]["raxss"]["windows_per_second"] / result["windows_per_second"]]
        for part in ("training", "evaluation")
        for name, result in results[part].items()
    ]  # fmt: skip
    return "\n\n".join(
        [
            f"Batch {results['batch']:,}:",
            table(["", "", "windows/s", "ms", "peak GB", "ours is times as fast"], rows),
            "If only one thing took time, a training step would take:",
            table(
                ["", "ms"], [result for result in results["floors_ms"].items() if result[0] != "random_words"]
            ),
        ]
    )


def plain_tables(results: Results) -> str:
    """One table of all single figures, and one of each list of rows.

    >>> print(plain_tables({"seconds": 2.0, "parts": {"read": 0.5}, "rows": [{"a": 1}, {"a": 2, "b": 3}]}))
    |             | value |
    |-------------|-------|
    | seconds     | 2     |
    | parts: read | 0.5   |
    <BLANKLINE>
    rows:
    <BLANKLINE>
    | a   | b   |
    |-----|-----|
    | 1   |     |
    | 2   | 3   |
    """
    singles, lists = [], []
    for name, value in _flat(results):
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            columns = list(dict.fromkeys(key for item in value for key in item))
            lists.append(
                f"{name}:\n\n" + table(columns, [[_cell(item.get(key)) for key in columns] for item in value])
            )
        else:
            singles.append([name.replace("_", " "), _cell(value)])
    return "\n\n".join(([table(["", "value"], singles)] if singles else []) + lists)


def _flat(results: Results, before: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in results.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}: ")
        else:
            yield f"{before}{name}", value


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return ", ".join(number(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {number(item)}" for name, item in value.items())
    return value
