"""Page of a comparison: README.md from the tables results, summary, pooled and comparisons.

The words are in report.md.j2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from raxss.benchmark.evaluation_set import slug
from raxss.benchmark.pages.markdown import (
    NONE,
    TITLES,
    Markdown,
    difference,
    number,
    p_text,
    render,
    shown,
    table,
    with_interval,
)
from raxss.benchmark.result import NOT_RUN
from raxss.benchmark.statistics import CHANCE, REFERENCES, CriticalDifference
from raxss.metrics import FEWEST_GROUPS, METRICS

SHOWN = ("f1", "auc", "accuracy")  # differences of these are on the page; the others are in the file
BALANCES = {
    "none": "no, classes have their natural shares",
    "train_val": "in training and validation, after the split; the test part has the natural shares",
    "before_split": "before the split, so the test part does not have the natural shares",
    "sss_nih_quarter": "before the split, as SSS does, a quarter of NIH kept; the test part has other shares",
}
FEW_GROUPS = 20  # of fewer a bootstrap is rough
TOO_RARE = 0.01  # with shuffled labels, a p below this is suspicious

Frame = pd.DataFrame


def plot_name(dataset: str) -> str:
    """File name of the plot of a dataset."""
    return f"plots/auc-{slug(dataset)}.png"


def in_words(changes: Mapping[str, Any]) -> str:
    """Description of the ``changes`` of a `raxss.benchmark.result.RunResult`.

    >>> print(in_words({"crop": [0.2, 1.0], "shuffled": True, "seed": 7}))
    each series cut to a random 20 to 100 % of its length (seed 7); labels shuffled (seed 7)
    """
    parts = []
    if sources := changes.get("sources"):
        named = []
        for source in sources:
            data = "" if source["data"] == source["centre"] else source["data"]
            taken = [f"{name} as {source['rename'][name]}" if name in source["rename"] else name
                     for name in source["classes"] or source["rename"]]  # fmt: skip
            about = "; ".join(filter(None, (data, ", ".join(taken))))
            named.append(source["centre"] + (f" ({about})" if about else ""))
        parts.append(f"joined from {' and '.join(named)}, each a centre")
    seed = f" (seed {changes.get('seed')})"
    if crop := changes.get("crop"):
        low, high = (f"{100 * share:g}" for share in crop)
        parts.append(f"each series cut to a random {low} to {high} % of its length{seed}")
    if changes.get("shuffled"):
        parts.append(f"labels shuffled{seed}")
    return "; ".join(parts)


def make_page(
    study_name: str,
    tables: Mapping[str, Frame],
    *,
    plots: Sequence[str] = (),
    ranks: CriticalDifference | None = None,
    unranked: Sequence[str] = (),
) -> str:
    """The text of the page, from ``results``, ``summary``, ``pooled`` and ``comparisons`` as read from their files.

    ``plots`` are the names of the plots that there are; ``ranks`` those of the systems in all blocks, ``unranked``
    the other systems.
    """
    runs = tables["results"]
    slow = runs["error"].str.startswith(NOT_RUN)
    failed = runs[(runs["error"] != "") & ~slow]
    done = runs[runs["error"] == ""]
    names = [name for name in runs["dataset"].unique() if name]
    datasets = [
        _dataset(name, {key: entry[entry["dataset"] == name] for key, entry in tables.items()}, plots)
        for name in names
    ]
    return render(
        "report.md.j2",
        study=study_name,
        datasets=datasets,
        failed=_failures(failed),
        not_run=_failures(
            runs[slow].assign(error=runs["error"].str.removeprefix(f"{NOT_RUN}: ")), column="reason"
        ),
        n_not_run=int(slow.sum()),
        n_failed=len(failed),
        n_done=len(done),
        ranks=ranks,
        p_friedman="" if ranks is None else p_text(ranks.p_friedman),
        unranked=", ".join(unranked),
        few_groups=FEW_GROUPS,
        fewest_groups=FEWEST_GROUPS,
        devices=_known(done["device"]),
        threads=" or ".join(str(int(item)) for item in sorted(done["n_threads"].dropna().unique())),
        n_warned=int((done["n_warnings"] > 0).sum()),
    )


def _dataset(name: str, tables: Mapping[str, Frame], plots: Sequence[str]) -> dict[str, Any]:
    """Variables of the template for one dataset."""
    runs, compared, pooled = tables["results"], tables["comparisons"], tables["pooled"]
    done = runs[runs["error"] == ""]
    block: dict[str, Any] = {"name": name, "any": not done.empty, "n_seeds": done["seed"].nunique()}
    if done.empty:
        return block
    summary = tables["summary"]
    tests = done.drop_duplicates(["seed", "fold"])
    seeds_are_folds = block["n_seeds"] > 1 and tests["seed"].is_unique and tests["fold"].is_unique
    by_chance = compared[compared["reference"] == CHANCE]
    references = [item for item in compared["reference"].unique() if item != CHANCE]
    return block | {
        "seeds": ", ".join(str(int(item)) for item in sorted(done["seed"].unique())),
        "seeds_are_folds": seeds_are_folds,
        "splits": _known(done["split"]) or "not told",
        "leaky": bool(done["leaky"].any()),
        "balances": "; ".join(BALANCES.get(item, item) for item in done["balance"].unique() if item),
        "n_test": _span(tests["n_test"]),
        "n_groups": _span(tests["n_groups"]),
        "fewest_groups": int(pooled["n_groups"].min()),
        "positive": tests["positive"].iloc[0],
        "f1_classes": tests["f1_classes"].iloc[0],
        "shuffled": bool(done["shuffled"].any()),
        "data": _known(done["data"]),
        "shares": _shares(tests),
        "baseline": _baseline(tests),
        "table": _main_table(summary),
        "candidates": _candidate_table(done),
        "variants": [
            (item["system"], item["about"]) for item in summary[summary["base"] != ""].to_dict("records")
        ],
        "headline": TITLES[summary["headline"].iloc[0]].removesuffix(" %"),
        "incomplete": ", ".join(summary.loc[summary["n_seeds"] < block["n_seeds"], "system"]),
        "without_auc": bool(done["auc"].isna().any()),
        "plot": Markdown(plot_name(name)) if plot_name(name) in plots else None,
        "dotted": Markdown(" Dotted: the mean of SSS." if REFERENCES[0] in set(summary["system"]) else ""),
        "differences": [
            (reference, _difference_table(compared[compared["reference"] == reference]))
            for reference in references
        ],
        "by_chance": _chance_table(by_chance),
        "mean_auc": f"{by_chance['difference'].mean() + 0.5:.3f}",
        "judged": bool(by_chance["p_holm"].notna().any()),
        "found": ", ".join(by_chance.loc[by_chance["p_holm"] < TOO_RARE, "system"]),
        "pooled": _pooled_table(pooled),
        "each_once": bool((pooled["each_once"] == 1).all()),
    }


def _main_table(summary: Frame) -> Markdown:
    columns: dict[str, list[str]] = {"system": summary["system"].tolist()}
    for name in ("f1", "auc", "accuracy", *METRICS[3:], "window_accuracy"):
        means, deviations = summary[f"{name}_mean"], summary[f"{name}_sd"]
        if means.notna().any():
            columns[TITLES[name]] = [_mean(*pair, name) for pair in zip(means, deviations, strict=True)]
    if (summary["choice"] != "").any():
        columns["chosen"] = [choice or NONE for choice in summary["choice"]]
    columns["parameters"] = [_count(value) for value in summary["n_parameters"]]
    columns["seconds"] = [_seconds(value) for value in summary["seconds_mean"]]
    if summary["seconds_of_choice"].notna().any():
        columns["seconds of choice"] = [_seconds(value) for value in summary["seconds_of_choice"]]
    return table(list(columns), list(zip(*columns.values(), strict=True)))


def _candidate_table(done: Frame) -> Markdown | None:
    """The candidates that searches chose, with the seeds; None where no choice of a search is known."""
    if "candidate" not in done:
        return None
    chosen = done[done["candidate"] != ""]
    rows = []
    for (system, candidate), own in chosen.groupby(["system", "candidate"], sort=False):
        seeds = own["seed"].astype(int).astype(str)
        if chosen.duplicated(["system", "seed"]).any():
            seeds += " (" + own["fold"] + ")"
        rows.append([system, candidate, ", ".join(seeds)])
    return table(["system", "candidate", "seeds"], rows) if rows else None


def _difference_table(compared: Frame) -> Markdown:
    header = ["system", *(title for name in SHOWN for title in (TITLES[name], "p"))]
    rows = []
    for system, own in compared.groupby("system", sort=False):
        by_metric = {item["metric"]: item for item in own.to_dict("records")}
        pairs = [(difference(by_metric[name], name), p_text(by_metric[name]["p_holm"])) for name in SHOWN]
        rows.append([system, *(text for pair in pairs for text in pair)])
    return table(header, rows)


def _chance_table(by_chance: Frame) -> Markdown:
    rows = [
        [item["system"], difference(item, "auc"), p_text(item["p_holm"])]
        for item in by_chance.to_dict("records")
    ]
    return table(["system", "AUC − 0.5", "p"], rows)


def _pooled_table(pooled: Frame) -> Markdown:
    rows = []
    for item in pooled.to_dict("records"):
        figures = [
            with_interval(item[name], item[f"{name}_low"], item[f"{name}_high"], name) for name in SHOWN
        ]
        rows.append([item["system"], *figures, _count(item["n_predictions"]), _count(item["n_series"])])
    return table(["system", *(TITLES[name] for name in SHOWN), "predictions", "series"], rows)


def _failures(failed: Frame, *, column: str = "error") -> Markdown:
    rows = [
        [item["dataset"], item["system"], _count(item["seed"]).replace(" ", ""), item["error"]]
        for item in failed.to_dict("records")
    ]
    return table(["dataset", "system", "seed", column], rows)


def _shares(tests: Frame) -> str:
    """Mean over seeds of each class's share of the test part."""
    counts = pd.DataFrame([json.loads(test) for test in tests["test_classes"]])
    shares = counts.div(counts.sum(axis=1), axis=0).mean()
    return ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares.items())


def _baseline(tests: Frame) -> str:
    """Metrics without a model: every series positive, or of the most frequent class."""
    counts = [json.loads(test) for test in tests["test_classes"]]
    positive = tests["positive"].iloc[0]
    most = np.mean([max(count.values()) / sum(count.values()) for count in counts])
    frequent = f"always the most frequent class of the test part: accuracy {100 * most:.1f} %"
    if not positive:
        return f"{frequent}, AUC 0.500."
    share = np.array([count[positive] / sum(count.values()) for count in counts])
    f1 = np.mean(2 * share / (1 + share))
    return (
        f"calling every series {positive}: F1 {f1:.3f}, AUC 0.500, accuracy {100 * share.mean():.1f} %, average "
        f"precision {share.mean():.3f}; {frequent}."
    )


# Numbers ------------------------------------------------------------------------------------------------------


def _mean(mean: float, deviation: float, name: str) -> str:
    if np.isnan(mean):
        return NONE
    return number(mean, name) + ("" if np.isnan(deviation) else f" ± {number(deviation, name)}")


def _count(value: float) -> str:
    return shown(value, lambda known: f"{int(known):,}".replace(",", " "))


def _seconds(value: float) -> str:
    return shown(value, "{:.1f}".format)


def _known(values: pd.Series) -> str:
    return "; ".join(item for item in values.unique() if item)


def _span(values: pd.Series) -> str:
    low, high = int(values.min()), int(values.max())
    return str(low) if low == high else f"{low} to {high}"
