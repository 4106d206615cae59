"""Committed tables under results/ agree with the committed predictions, and have every system."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from raxss.benchmark.packed import read_run, runs_in
from raxss.benchmark.result import NOT_RUN, RunResult
from raxss.benchmark.systems import SYSTEMS

RESULTS = Path(__file__).parents[1] / "results"
NOT_YET = {"recommended", "auto"}  # came later: studies are run for them one by one
FOLDERS = sorted(item.parent.name for item in RESULTS.glob("*/results.csv"))


@pytest.mark.parametrize("folder", ["bern-barcelona", "bonn", "cinc2017", "cinc2017-af", "watch"])
def test_every_system_has_five_folds_of_every_main_dataset_with_its_time(folder):
    table = pd.read_csv(RESULTS / folder / "results.csv")
    assert set(SYSTEMS) - NOT_YET <= set(table["system"]) <= set(SYSTEMS)
    assert (table.groupby("system")["fold"].nunique() == 5).all()
    assert len(table) == 5 * table["system"].nunique()
    assert (table["seconds"] > 0).all()
    assert table["error"].isna().all()


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_row_is_what_scikit_learn_makes_of_its_predictions(folder):
    table = pd.read_csv(RESULTS / folder / "results.csv")
    table = table[~table["error"].fillna("").str.startswith(NOT_RUN)]
    cells = {}
    for place in runs_in(RESULTS / folder):
        item = read_run(place, RunResult)  # its seal is looked at
        cells[item.dataset, item.system, item.seed, item.config_hash] = item
    assert len(cells) == len(table) > 0
    for row in table.itertuples():
        item = cells[row.dataset, row.system, row.seed, row.config_hash]
        labels = np.array(item.labels)
        guessed = np.array(item.classes)[item.probabilities.argmax(axis=1)]
        assert row.accuracy == pytest.approx(accuracy_score(labels, guessed))
        if item.positive is not None:
            positive = labels == item.positive
            scores = item.probabilities[:, item.classes.index(item.positive)]
            assert row.auc == pytest.approx(roc_auc_score(positive, scores))
            assert row.f1 == pytest.approx(f1_score(positive, guessed == item.positive))
        # Every test series once, and each with its group.
        assert len(set(item.names)) == len(item.names) == len(item.groups) == row.n_test
