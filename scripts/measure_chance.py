"""Test for leakage: are the scores of systems on shuffled labels those of chance?

    python scripts/measure_chance.py --root FOLDER --study results/cinc2017-af-shuffled --out results/chance

The study shuffles labels once for all its systems, so that they deviate from .5 together. Here their mean is
tested, and two quick classifiers get many other shuffles. Half an hour of one core; the same seed gives the same
tables. about.md of the output folder is written by hand and begins the page.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import roc_auc_score

from raxss._core.atomic import make_folder, write_text
from raxss.benchmark.baselines.common import first_samples
from raxss.benchmark.baselines.forest import feature_table
from raxss.benchmark.baselines.rocket import SpanClassifier
from raxss.benchmark.baselines.rocket_features import draw_kernels, kernel_features, normalised
from raxss.benchmark.pages.markdown import table
from raxss.benchmark.rerun import committed_run, committed_table
from raxss.benchmark.transforms import shuffled_labels
from raxss.data.datasets import load_dataset
from raxss.data.series import SeriesCollection
from raxss.data.splits import folds

SEED = 69421
POSITIVE = "AF"
N_PERMUTATIONS = 10_000
N_DRAWS = {"forest": 100, "kernels": 30}  # the second is slow
N_TREES = 100
N_KERNELS = 2_000
LONGEST = 10_000  # samples that kernels see
CONSTANT = "all-positive"  # has no order, so nothing to test

Matrix = NDArray[np.float64]
Labels = NDArray[np.bool_]
Judge = Callable[[Matrix, Labels, Matrix], Matrix]  # training features and labels, test features -> scores


# All systems of one draw, together ----------------------------------------------------------------------------


def ranks_of(study: Path) -> tuple[dict[str, dict[int, Matrix]], dict[int, Labels]]:
    """System -> seed -> ranks of its test scores; seed -> shuffled labels; series ordered by name."""
    ranks: dict[str, dict[int, Matrix]] = {}
    dealt: dict[int, Labels] = {}
    for row in committed_table(study).to_dict("records"):  # the runs of the table, no others
        if row["system"] == CONSTANT:
            continue
        found, _ = committed_run(study, row)
        order = np.argsort(found.names)
        scores = np.asarray(found.probabilities)[order, list(found.classes).index(POSITIVE)]
        ranks.setdefault(found.system, {})[found.seed] = rankdata(scores)
        dealt[found.seed] = np.asarray(found.labels)[order] == POSITIVE
    return ranks, dealt


def mean_aucs(ranks: dict[int, Matrix], dealt: dict[int, Labels]) -> Matrix:
    """AUC of each system, mean over seeds, from ranks ``(n_systems, n_series)`` by seed:

    AUC = (sum of the ranks of positives - n₁ (n₁ + 1) / 2) / (n₁ n₀)
    """
    of_seeds = []
    for seed, own in ranks.items():
        n_positive = dealt[seed].sum()
        above = own[:, dealt[seed]].sum(axis=1) - n_positive * (n_positive + 1) / 2
        of_seeds.append(above / (n_positive * (~dealt[seed]).sum()))
    return np.mean(of_seeds, axis=0)


def joint_test(study: Path) -> dict[str, float]:
    """Permutation test of the mean and of the largest deviation, the same test labels for all systems."""
    ranks, dealt = ranks_of(study)
    stacked = {seed: np.stack([rank[seed] for rank in ranks.values()]) for seed in dealt}
    found = mean_aucs(stacked, dealt)
    generator = np.random.default_rng(SEED)
    permuted = np.stack(
        [
            mean_aucs(stacked, {seed: generator.permutation(item) for seed, item in dealt.items()})
            for _ in range(N_PERMUTATIONS)
        ]
    )
    far, farthest = abs(found.mean() - 0.5), np.abs(found - 0.5).max()
    return {
        "systems": len(ranks),
        "above .5": int((found > 0.5).sum()),
        "mean AUC": float(found.mean()),
        "deviation by chance": float(permuted.mean(axis=1).std()),
        "p of the mean": float(
            (1 + (np.abs(permuted.mean(axis=1) - 0.5) >= far).sum()) / (1 + N_PERMUTATIONS)
        ),
        "largest deviation": float(farthest),
        "p of the largest": float(
            (1 + (np.abs(permuted - 0.5).max(axis=1) >= farthest).sum()) / (1 + N_PERMUTATIONS)
        ),
    }


# Many draws ---------------------------------------------------------------------------------------------------


def forest(train: Matrix, labels: Labels, test: Matrix) -> Matrix:
    """Scores of a random forest on hand-made features."""
    return np.asarray(
        RandomForestClassifier(N_TREES, random_state=SEED).fit(train, labels).predict_proba(test)[:, 1]
    )


def kernels(train: Matrix, labels: Labels, test: Matrix) -> Matrix:
    """Scores of a logistic regression on random kernels."""
    return SpanClassifier(train, labels.astype(int)).fit(1.0).predict_proba(test)[:, 1]


def draw_auc(series: SeriesCollection, features: Matrix, judge: Judge, seed: int) -> float:
    """Mean AUC over five folds with shuffled labels."""
    labels = shuffled_labels(series, by="recording", seed=seed)
    dealt = SeriesCollection(replace(item, label=label) for item, label in zip(series, labels, strict=True))
    positive = np.asarray(labels) == POSITIVE
    found = []
    for split in folds(dealt, by="recording", seed=seed):
        learned = np.concatenate([split.train, split.validation])
        scores = judge(features[learned], positive[learned], features[split.test])
        found.append(roc_auc_score(positive[split.test], scores))
    return float(np.mean(found))


def many_draws(root: Path) -> pd.DataFrame:
    """A row for each draw: the AUC of the forest and, of the first draws, that of the kernels."""
    series = load_dataset("cinc2017", root=root, classes=[POSITIVE, "normal"])
    by_hand = feature_table(series)
    longest = min(LONGEST, max(item.n_samples for item in series))
    drawn = draw_kernels(longest, n_kernels=N_KERNELS, n_variates=1, seed=SEED)
    by_kernels = kernel_features(normalised(first_samples(list(series), longest)), drawn).astype(float)
    judges = {"forest": (by_hand, forest), "kernels": (by_kernels, kernels)}
    rows = []
    for draw in range(max(N_DRAWS.values())):
        seed = SEED + 1 + draw
        drawn_now = [name for name, n_draws in N_DRAWS.items() if draw < n_draws]
        rows.append({"seed": seed} | {name: draw_auc(series, *judges[name], seed) for name in drawn_now})
        print(rows[-1], flush=True)
    return pd.DataFrame(rows)


# The page -----------------------------------------------------------------------------------------------------

ABOUT = """# Shuffled labels: chance, or a leak?

Made by `scripts/measure_chance.py` from {study} and {n} other draws of the labels.
"""


def main() -> None:
    """Measure, or take what was measured before, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--study", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    out = make_folder(arguments.out)
    place, by_hand = out / "draws.csv", out / "about.md"
    if not place.exists():
        write_text(place, many_draws(arguments.root).to_csv(index=False))
    draws = pd.read_csv(place)[["forest", "kernels"]]
    text = ABOUT.format(study=f"[{arguments.study.name}](../{arguments.study.name}/README.md)", n=len(draws))
    text += f"\n{by_hand.read_text('utf-8')}" if by_hand.exists() else ""
    joint = [
        [what, value if isinstance(value, int) else f"{value:.4f}"]
        for what, value in joint_test(arguments.study).items()
    ]
    text += f"\n## All systems of the study's draw, together\n\n{table(['what', 'value'], joint)}\n"
    text += f"\n{N_PERMUTATIONS} permutations of the test labels within folds, the same for all systems.\n"
    rows = []
    for name, item in ((name, draws[name].dropna()) for name in N_DRAWS):
        numbers = (item.mean(), item.std() / len(item) ** 0.5, item.std(), item.min(), item.max())
        rows.append([name, len(item), *(f"{number:.4f}" for number in numbers)])
    header = ["what", "draws", "mean AUC", "its standard error", "deviation of a draw", "lowest", "highest"]
    text += f"\n## Other draws\n\n{table(header, rows)}\n"
    text += "\nForest: of hand-made features. Kernels: random ones, logistic regression. Every draw: `draws.csv`.\n"
    write_text(out / "README.md", text)
    print(f"The tables are in {out / 'README.md'}")


if __name__ == "__main__":
    main()
