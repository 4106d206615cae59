"""The page docs/scaling.md from the results.

    results/<machine>/{scaling,retrieval,training}.json -> docs/scaling.md, docs/scaling.png

Every figure in the page comes from those files through the model of scaling.py; the words around them are here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import RESULTS, number, table
from benchmarks.report import Everything, read_all
from benchmarks.scaling import (
    N_NEIGHBORS,
    STRIDE,
    WINDOW_LENGTH,
    Archive,
    Costs,
    archive_cost,
    costs_of,
    entries,
    fit,
    modelled_seconds,
    terms_of_retrieval,
)
from benchmarks.telling import Results
from raxss._core import atomic as storage

DOCS = Path(__file__).parents[1] / "docs"
BANK_SIZE = 65_536  # windows of a local bank, as in the settings of raxss: a little over an hour
HOUR, DAY = Archive(hours=1.0), Archive(hours=24.0)


def _share_of_entries(n_windows: int) -> float:
    """Changes of lists in percent of the comparisons, of which every pair is two."""
    return 100 * entries(n_windows) / (n_windows * (n_windows - 1))


def write(results: Path = RESULTS, docs: Path = DOCS) -> str:
    """Write the page and its figure; the text is also returned."""
    everything = read_all(results)
    if any("scaling" in parts for parts in everything.values()):
        storage.write_bytes(docs / "scaling.png", figure(everything))
    text = page(everything)
    storage.write_text(docs / "scaling.md", text)
    return text


def page(everything: Everything) -> str:
    """The text of docs/scaling.md."""
    costs = {name: _costs(parts) for name, parts in everything.items() if "scaling" in parts}
    sections = [_HEAD, _MODEL]
    if not costs:
        return (
            "\n\n".join([*sections, "Nothing has been measured yet: `python -m benchmarks scaling`."]) + "\n"
        )
    sections += [
        "## Measured",
        "![Cost against length, windows, batch and channels on logarithmic axes; lines are the model](scaling.png)",
        _measured_tables(everything, costs),
        *([_KERNEL] if any("retrieval-gpu" in everything[name] for name in costs) else []),
        *_terms(everything),
        "## An archive of 10,000 patients",
        _ARCHIVE,
        _archive_table(everything, costs),
        _break_even(costs),
    ]
    return "\n\n".join(sections) + "\n"


_HEAD = """# What does it cost, and how does that grow?

Written by `python -m benchmarks report` from measurements (`python -m benchmarks scaling`, on the CPU or with
`--device cuda`); every figure below is computed from the files in `benchmarks/results/`. How raxss stands beside
other libraries is in [benchmarks/RESULTS.md](../benchmarks/RESULTS.md)."""

_MODEL = f"""## The model

A channel of *T* samples has *n* = (*T* − *L*) / *s* + 1 windows of length *L* at stride *s*. At the paper's
settings (1 kHz pooled 24/12, *L* = {WINDOW_LENGTH}, *s* = {STRIDE}, *m* = {N_NEIGHBORS} neighbours) an hour of one
channel is 299,999 pooled samples and {HOUR.windows_per_series:,} windows. What is done with them:

| work             | grows with            | formula                                                            |
|------------------|-----------------------|--------------------------------------------------------------------|
| retrieval, exact | the square of windows | *n*(*n* − 1)/2 pairs × (2 *s* + *c*) multiply-adds, anchors, lists |
| retrieval, local | windows × bank        | *n* × *b*/2 pairs at the same price; *b* windows in the bank       |
| network          | windows               | *n* × operations of a window / rate; every batch pays a start      |
| weights          | windows               | one exponential a window, too little to be seen                    |
| evidence         | windows               | a row a window and the lists of the strongest: bytes on disk       |

*Pairs.* Neighbouring windows share all but *s* samples at each end. Along a diagonal of the window-by-window
matrix a dot product is the one before it plus *s* products that enter minus *s* that leave: 2 *s* multiply-adds
instead of *L*. *c* is what a pair costs besides, whatever the stride: it is scaled by two norms and compared with
the worst entries of two lists. The similarity is symmetric, so every two windows meet once.

*Anchors.* The recurrence starts anew at the edges of tiles, with full products of *L* multiply-adds. There is one
such product for every so many pairs, so it adds a small price per pair that grows with *L*.

*Lists.* The k-th window that is met is among the best *m* so far with probability *m*/*k*, so a list is changed
*m* (1 + ln(*n*/*m*)) times if windows are met in no order. That is {_share_of_entries(3_796):.1f} % of all
comparisons at 3,796 windows and {_share_of_entries(199_796):.2f} % at 199,796, and why a pair of a
short series seems dearer.

*Memory.* Retrieval holds the lists and a few numbers a window, O(*n* × *m*), never a similarity matrix; a
prediction holds the windows of one channel and no more. So the length of a channel decides how much memory is
needed, and the number of channels does not.

*Many machines.* Channels do not know of each other. Work is handed out by the channel and nothing is exchanged, so
64 GPUs take a 64th of the time of one, as long as channels outnumber them by far and the disks keep up."""

_KERNEL = """On a GPU a pair is so cheap that the host's work on the lists hides it at every length measured here.
Its price is therefore that of the kernel alone, in the part retrieval-gpu; what is left is lists and calls."""

_ARCHIVE = f"""Prediction with evidence of every channel, computed from the constants above by `archive_cost` in
`benchmarks/scaling.py`. Assumed: 100 channels a patient, recorded at 1 kHz, pooled 24/12, *L* = {WINDOW_LENGTH},
*s* = {STRIDE}, *m* = {N_NEIGHBORS}; an hour or a day each. *Exact* compares all windows of a channel, *local* each
with the {BANK_SIZE:,} nearest in time (`bank="local"`). Two cores are taken to be twice as fast as one. It starts
from prepared series: reading and pooling raw recordings is not in it, and at two bytes a sample a day of this
archive is {2e-12 * DAY.n_series * 86_400 * DAY.rate:.0f} TB to read."""


# ------------------------------------------------------------------------------------------------- tables


def _costs(parts: dict[str, Results]) -> Costs:
    """The model of one machine."""
    kernel = parts["retrieval-gpu"]["results"] if "retrieval-gpu" in parts else None
    return costs_of(parts["scaling"]["results"], kernel)


def _measured_tables(everything: Everything, costs: dict[str, Costs]) -> str:
    def row(text: str, value: Callable[[Costs], float]) -> list[Any]:
        return [text, *(number(value(cost)) for cost in costs.values())]

    threads = {name: everything[name]["scaling"]["results"]["settings"]["threads"] for name in costs}
    titles = [f"{name} ({threads[name]} threads)" if name.startswith("cpu") else name for name in costs]
    return table(
        ["fitted constant", *titles],
        [
            row("retrieval, ns a pair", lambda item: item.pair_s * 1e9),
            row("retrieval, ns an entry of a list", lambda item: item.entry_s * 1e9),
            row("retrieval, ms a series", lambda item: item.call_s * 1e3),
            row("network, µs a window", lambda item: item.network_s * 1e6),
            row("network, ms a batch", lambda item: item.batch_s * 1e3),
            row("whole chain but retrieval, µs a window", lambda item: item.window_s * 1e6),
            row("evidence, bytes a window", lambda item: item.evidence_bytes),
        ],
    )


def _terms(everything: Everything) -> list[str]:
    """What retrieval costs, split up over strides and lengths; from the comparison with other libraries."""
    sentences = []
    for name, parts in everything.items():
        cases = parts["retrieval"]["results"]["cases"] if "retrieval" in parts else []
        if terms := terms_of_retrieval(cases):
            threads = parts["retrieval"]["results"]["settings"]["threads"]
            off = [abs(modelled_seconds(terms, case) / case["ours"]["seconds"] - 1) for case in cases]
            ns = {term: number(seconds * 1e9) for term, seconds in terms.items()}
            sentences.append(
                f"Over all lengths and strides of the comparison with other libraries ({name}, {threads} threads), "
                f"a pair takes 2 *s* × {ns['multiply_add']} + {ns['pair']} + *L* × {ns['pair_and_sample']} ns, an "
                f"entry of a list {ns['entry']} ns, a sample {ns['sample']} ns and a call "
                f"{number(terms['call'] * 1e3)} ms; half of the {len(cases)} times are within "
                f"{100 * float(np.median(off)):.0f} % of that, all within {100 * max(off):.0f} %. So a pair costs "
                "the same at every length; a short series has more entries for each of its pairs."
            )
    return sentences


def _archive_table(everything: Everything, costs: dict[str, Costs]) -> str:
    rows = []
    for archive in (HOUR, DAY):
        for bank, bank_size in (("exact", None), ("local", BANK_SIZE)):
            for name, workers, machine in _workers(everything, costs):
                cost = archive_cost(costs[machine], archive, bank_size=bank_size, workers=workers)
                rows.append(
                    [
                        f"{archive.hours:g} h",
                        bank,
                        name,
                        duration(cost["search_hours"]),
                        duration(cost["window_hours"]),
                        duration(cost["hours"]),
                        cost["evidence_tb"],
                    ]
                )
    return table(
        ["each", "neighbours", "on", "retrieval", "network and evidence", "together", "evidence, TB"], rows
    )


def _break_even(costs: dict[str, Costs]) -> str:
    """From which length on the search is what takes longest: where n²/2 pairs cost as much as n windows."""
    lengths = []
    for name, cost in costs.items():
        n_windows = 2 * cost.window_s / max(cost.pair_s, 1e-15)
        lengths.append(f"{duration(n_windows / HOUR.windows_per_series)} of signal on {name}")
    return (
        f"Exact retrieval takes as long as all else together at {', '.join(lengths)}. Beyond, it grows with the "
        "square of the length, and a local bank is what keeps it straight. What that does to support is measured "
        "in the part `bank` of the results."
    )


def _workers(everything: Everything, costs: dict[str, Costs]) -> list[tuple[str, float, str]]:
    """Who is in the archive's table: a name, how many times the measured machine, and that machine."""
    found = []
    for machine in costs:
        threads = everything[machine]["scaling"]["results"]["settings"]["threads"]
        if machine.startswith("cpu"):
            found.append(("1 CPU core", 1 / threads, machine))
        else:
            gpu = machine.upper()
            found += [(f"1 {gpu}", 1.0, machine), (f"64 {gpu}", 64.0, machine)]
    return found


def duration(hours: float) -> str:
    """Hours as people say them.

    >>> duration(0.2), duration(30), duration(100), duration(20_000)
    ('12 minutes', '30 hours', '4.2 days', '2.3 years')
    """
    for unit, length in (("years", 365.25 * 24), ("days", 24.0), ("hours", 1.0)):
        if hours >= 2 * length:
            return f"{number(float(f'{hours / length:.2g}'))} {unit}"
    return f"{number(float(f'{hours * 60:.2g}'))} minutes"


# ------------------------------------------------------------------------------------------------- figure


def figure(everything: Everything) -> bytes:
    """Four panels on logarithmic axes, points measured, lines modelled: length, windows, batch, channels."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

    picture = Figure(figsize=(10, 7), layout="constrained")
    axes = picture.subplots(2, 2)
    for colour, (machine, parts) in enumerate(everything.items()):
        if "scaling" in parts:
            _draw_scaling(axes, machine, f"C{colour}", parts["scaling"]["results"], _costs(parts))
        if "retrieval" in parts:
            _draw_strides(axes[0, 1], machine, parts["retrieval"]["results"]["cases"])
    for axis, x, y in (
        (axes[0, 0], f"samples of a series (stride {STRIDE})", "retrieval, s"),
        (axes[0, 1], "windows of a series", "retrieval, s"),
        (axes[1, 0], "windows in a batch", "network, windows/s"),
        (axes[1, 1], "channels", "prediction with evidence, s"),
    ):
        axis.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(
            EngFormatter(sep="")
        )  # 20k, 50k: powers of ten alone would be one label
        axis.xaxis.set_minor_locator(NullLocator())
        axis.grid(which="both", alpha=0.25)
        if axis.has_data():
            axis.legend(fontsize="small")
    buffer = BytesIO()
    picture.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()


def _draw_scaling(axes: Any, machine: str, colour: str, scaling: dict[str, Any], costs: Costs) -> None:
    """One machine's three series of measurements."""
    retrieval, network, prediction = (scaling[name] for name in ("retrieval", "network", "prediction"))
    _panel(
        axes[0, 0],
        machine,
        colour,
        [row["n_samples"] for row in retrieval],
        [row["seconds"] for row in retrieval],
        [
            costs.call_s + row["pairs"] * costs.pair_s + entries(row["n_windows"]) * costs.entry_s
            for row in retrieval
        ],
    )
    batches = [row["batch"] for row in network]
    modelled = [batch / (costs.batch_s + batch * costs.network_s) for batch in batches]
    _panel(axes[1, 0], machine, colour, batches, [row["windows_per_s"] for row in network], modelled)
    channels = [row["channels"] for row in prediction]
    seconds = [row["seconds"] for row in prediction]
    start, each = fit([[1.0] * len(channels), channels], seconds)
    _panel(axes[1, 1], machine, colour, channels, seconds, [start + each * n for n in channels])


def _draw_strides(axis: Any, machine: str, cases: Sequence[dict[str, Any]]) -> None:
    """Retrieval over the number of windows, for every stride, and what the price of a pair says."""
    terms = terms_of_retrieval(cases)
    for place, stride in enumerate(sorted({case["stride"] for case in cases})):
        some = [case for case in cases if (case["stride"], case["window_length"]) == (stride, WINDOW_LENGTH)]
        seconds = [item["ours"]["seconds"] for item in some]
        modelled = [modelled_seconds(terms, item) if terms else float("nan") for item in some]
        label = f"{machine}, stride {stride}"
        _panel(axis, label, f"C{place}", [item["n_windows"] for item in some], seconds, modelled)


def _panel(
    axis: Any, name: str, colour: str, x: Sequence[float], y: Sequence[float], model: Sequence[float]
) -> None:
    axis.plot(x, y, "o", color=colour, label=name)
    axis.plot(x, model, "-", color=colour, alpha=0.6)
