"""Writes the model folder ``model_0_1``, as raxss wrote model folders before they were sealed (commit 2874f18).

Run once with the code of that commit, from its root, and never again: newer code writes another format.

    git worktree add /tmp/raxss-0.1 2874f18 && cd /tmp/raxss-0.1
    PYTHONPATH=src:tests python .../tests/data/make_model_0_1.py .../tests/data

Beside the folder stands what that code said of the series it was fitted on: ``model_0_1.csv``.
"""

import sys
from pathlib import Path

import numpy as np

from raxss import RAxSSClassifier
from toys import waves

if __name__ == "__main__":
    place = Path(sys.argv[1])
    series = waves(np.random.default_rng(17), n_series=36)
    model = RAxSSClassifier(
        backbone_options={"width": 2},
        window_length=32,
        stride=8,
        max_epochs=3,
        validation_fraction=0.4,
        calibration="isotonic",
        temperature=0.07,
        random_state=0,
        device="cpu",
    ).fit(series)
    model.save_pretrained(place / "model_0_1")
    np.savetxt(place / "model_0_1.csv", model.predict_proba(series), fmt="%.17g", delimiter=",")
