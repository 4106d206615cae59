"""Measure `RAxSSClassifier()`, without settings, beside MiniROCKET and a forest of whole-series statistics.

    python scripts/measure_default.py --data FOLDER --out FOLDER [--sets ...] [--systems ...] [--only 0 1 2]
    python scripts/measure_default.py --out FOLDER --page

FOLDER has one ``SET.npz`` a set: ``flat`` (variates x all samples end to end), ``lengths``, ``y``, ``g`` (groups),
``rate`` (0: unknown) and, where there is an official one, ``split``, or ``fold``, the fold that each series is
tested in. With an official split, run k has seed k; else run k tests the k-th fold: of ``fold``, or of five that
keep groups together. Every run writes one CSV of test probabilities, and is skipped where that exists. ``--page``
makes the table: means over runs, and for the forest the paired difference with an interval over test groups
(bootstrap, 95 %).
MiniROCKET is aeon's, on series padded with zeros at the end to the longest of training.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.model_selection import StratifiedGroupKFold

from raxss import RAxSSClassifier, Series
from raxss._core.atomic import write_text
from raxss.benchmark.baselines.statistics_forest import whole_series_features

FOLDS_SEED = 69421
#: Figures other than accuracy.
FIGURES = {
    "CinC2011": "auc",
    "KneeEMG": "auc",
    "DepresjonDays": "auc",
    "bern-barcelona": "auc",
    "bonn": "auc",
}
FIGURES |= {"cinc2017-af": "auc", "cinc2017": "f1"}
F1_CLASSES = ("normal", "AF", "other")  # of the challenge's score


def load(path: Path) -> dict[str, Any]:
    """Series, labels, groups and split of one file."""
    file = np.load(path, allow_pickle=False)
    flat, ends = file["flat"].astype(np.float32), np.cumsum(file["lengths"])
    arrays = [flat[:, end - n : end] for n, end in zip(file["lengths"], ends, strict=True)]
    split = file["split"].astype(str) if "split" in file.files else None
    fold = file["fold"] if "fold" in file.files else None
    return {
        "arrays": arrays,
        "y": file["y"].astype(str),
        "g": file["g"].astype(str),
        "rate": float(file["rate"]) or 1.0,
        "split": split,
        "fold": fold,
    }


def parts(found: dict[str, Any], run: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Training and test indices of a run."""
    if found["split"] is not None:
        return np.flatnonzero(found["split"] == "train"), np.flatnonzero(found["split"] == "test")
    if found["fold"] is not None:
        return np.flatnonzero(found["fold"] != run), np.flatnonzero(found["fold"] == run)
    splitter = StratifiedGroupKFold(5, shuffle=True, random_state=FOLDS_SEED)
    return list(splitter.split(found["y"], found["y"], found["g"]))[run]


def default(
    found: dict[str, Any], train: NDArray[np.int64], test: NDArray[np.int64], seed: int, device: str
) -> NDArray[np.float64]:
    """Test probabilities of the default."""
    series = [Series(array, rate=found["rate"]) for array in found["arrays"]]
    model = RAxSSClassifier(random_state=seed, device=device)
    model.fit([series[k] for k in train], found["y"][train], groups=found["g"][train])
    probability: NDArray[np.float64] = model.predict_proba([series[k] for k in test])
    return probability


def forest(
    found: dict[str, Any], train: NDArray[np.int64], test: NDArray[np.int64], seed: int, device: str
) -> NDArray[np.float64]:
    """Test probabilities of 300 trees on statistics and band powers of whole series."""
    table = np.array([whole_series_features(array) for array in found["arrays"]])
    trees = RandomForestClassifier(300, random_state=seed).fit(table[train], found["y"][train])
    return np.asarray(trees.predict_proba(table[test]))


def minirocket(
    found: dict[str, Any], train: NDArray[np.int64], test: NDArray[np.int64], seed: int, device: str
) -> NDArray[np.float64]:
    """Test decisions of aeon's MiniROCKET as probabilities of 0 and 1."""
    from aeon.classification.convolution_based import MiniRocketClassifier

    longest = max(max(found["arrays"][k].shape[1] for k in train), 9)
    padded = np.stack(
        [
            np.pad(array[:, :longest], ((0, 0), (0, max(longest - array.shape[1], 0))))
            for array in found["arrays"]
        ]
    )
    model = MiniRocketClassifier(random_state=seed).fit(padded[train], found["y"][train])
    classes = np.unique(found["y"][train])
    return (model.predict(padded[test])[:, None] == classes[None]).astype(float)


SYSTEMS: dict[str, Callable[..., NDArray[np.float64]]] = {
    "default": default,
    "minirocket": minirocket,
    "forest": forest,
}


def measure(settings: argparse.Namespace) -> None:
    """Run what has no result yet."""
    for name in settings.sets or sorted(path.stem for path in settings.data.glob("*.npz")):
        found = load(settings.data / f"{name}.npz")
        for run in settings.only:
            train, test = parts(found, run)
            for system in settings.systems:
                path = settings.out / f"{name}.{system}.{run}.csv"
                if path.exists():
                    continue
                began = time.perf_counter()
                probability = SYSTEMS[system](found, train, test, run, settings.device)
                seconds = time.perf_counter() - began
                table = pd.DataFrame(probability, columns=np.unique(found["y"][train]))
                table.insert(0, "label", found["y"][test])
                table.insert(0, "group", found["g"][test])
                write_text(path, table.to_csv(index=False, float_format="%.6g"))
                value = figure(name, table)
                print(f"{name} {system} {run}: {value:.4f} in {seconds:.1f} s", flush=True)


def figure(name: str, table: pd.DataFrame) -> float:
    """The figure of a set over its test series."""
    probability = table.drop(columns=["group", "label"])
    kind = FIGURES.get(name, "accuracy")
    if kind == "auc":
        return float(roc_auc_score(table["label"] == probability.columns[1], probability.iloc[:, 1]))
    predicted = probability.idxmax(axis=1)
    if kind == "f1":
        return float(f1_score(table["label"], predicted, labels=list(F1_CLASSES), average="macro"))
    return float((predicted == table["label"]).mean())


def paired_interval(
    name: str, ours: pd.DataFrame, theirs: pd.DataFrame, *, seed: int = 0
) -> tuple[float, float]:
    """95 % bootstrap interval over test groups of the difference of figures."""
    groups = np.unique(ours["group"])
    rows = {group: np.flatnonzero(ours["group"].to_numpy() == group) for group in groups}
    rng, found = np.random.default_rng(seed), []
    for _ in range(500):
        drawn = np.concatenate([rows[group] for group in rng.choice(groups, len(groups))])
        if ours["label"].iloc[drawn].nunique() > 1:
            found.append(figure(name, ours.iloc[drawn]) - figure(name, theirs.iloc[drawn]))
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high)


def read_runs(out: Path) -> dict[tuple[str, str], dict[int, pd.DataFrame]]:
    """Test probabilities by set and system, and by run."""
    found: dict[tuple[str, str], dict[int, pd.DataFrame]] = {}
    for path in sorted(out.glob("*.csv")):
        name, system, run = path.name.removesuffix(".csv").rsplit(".", 2)
        table = pd.read_csv(path, dtype={"label": str, "group": str}, float_precision="round_trip")
        found.setdefault((name, system), {})[int(run)] = table
    return found


def figures_of(runs: dict[tuple[str, str], dict[int, pd.DataFrame]]) -> str:
    """CSV with the figure of every run."""
    rows = [
        (name, FIGURES.get(name, "accuracy"), system, run, len(table), figure(name, table))
        for (name, system), tables in runs.items()
        for run, table in tables.items()
    ]
    columns = ["set", "figure", "system", "run", "n_test", "value"]
    return pd.DataFrame(rows, columns=columns).to_csv(index=False, float_format="%.4f")


def page(runs: dict[tuple[str, str], dict[int, pd.DataFrame]]) -> str:
    """The table of all results, in Markdown."""
    lines = ["| set | figure | runs | default | MiniROCKET | forest | default - forest, 95 % interval |"]
    lines.append("|" + "---|" * 7)
    for name in sorted({name for name, _ in runs}):
        means = []
        for system in SYSTEMS:
            values = [figure(name, table) for table in runs.get((name, system), {}).values()]
            means.append(f"{np.mean(values):.3f}" if values else "")
        ours, theirs = runs.get((name, "default"), {}), runs.get((name, "forest"), {})
        interval = ""
        if ours and set(ours) == set(theirs):
            together = [pd.concat([side[run] for run in ours], ignore_index=True) for side in (ours, theirs)]
            low, high = paired_interval(name, *together)
            interval = f"{float(means[0]) - float(means[2]):+.3f} [{low:+.3f}, {high:+.3f}]"
        shown = FIGURES.get(name, "accuracy")
        lines.append(f"| {name} | {shown} | {len(ours)} | {' | '.join(means)} | {interval} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, or write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--page", action="store_true", help="Print the table of what is in --out.")
    parser.add_argument("--figures", type=Path, help="Write the figure of every run in --out to this CSV.")
    settings = parser.parse_args()
    settings.out.mkdir(parents=True, exist_ok=True)
    if settings.figures is not None:
        write_text(settings.figures, figures_of(read_runs(settings.out)), overwrite=True)
    if settings.page:
        print(page(read_runs(settings.out)), end="")
    if settings.page or settings.figures is not None:
        return
    measure(settings)


if __name__ == "__main__":
    main()
