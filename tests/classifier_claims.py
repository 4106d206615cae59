"""Helpers for tests of window classifiers."""

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from raxss.method.aggregation import posteriors_of
from raxss.method.backbones import build_backbone
from raxss.method.backbones.window_classifiers import TrainingWindows

#: Options with which a classifier is fitted quickly.
OPTIONS = {
    "extra-trees": {"n_trees": 30},
    "forest": {"n_trees": 30},
    "logistic": {},
    "mixture": {"members": [{"backbone": "ridge"}, {"backbone": "extra-trees", "n_trees": 30}]},
    "ridge": {},
}
SKLEARN = "scikit-learn"  # stands for a classifier of scikit-learn that is passed by itself
N_FOLDS = 3
LENGTH = 64


def build(name, n_variates=1, window_length=LENGTH, n_classes=2, **options):
    backbone = LogisticRegression(C=0.1, max_iter=1000) if name == SKLEARN else name
    return build_backbone(
        backbone,
        n_variates=n_variates,
        window_length=window_length,
        n_outputs=1 if n_classes == 2 else n_classes,
        options=OPTIONS.get(name, {}) | options,
    )


def training_on(windows, targets, **changes):
    """Two windows of each series, series dealt over folds."""
    n = len(targets)
    series = np.arange(n) // 2
    given = {"weights": np.ones(n), "folds": series // int(targets.max() + 1) % N_FOLDS, "seed": 3} | changes
    return TrainingWindows(
        windows=windows, targets=targets, series=series, n_classes=int(targets.max()) + 1, **given
    )


def rhythms(rng, n=48, n_variates=1, length=LENGTH, n_classes=2, noise=0.3):
    """Windows in pairs, whose rhythm is that of their class, and their classes."""
    targets = np.arange(n) // 2 % n_classes
    time = np.arange(length) + rng.integers(100, size=(n, 1, 1))
    waves = np.sin(2 * np.pi * time * (targets[:, None, None] + 1) / 16)
    windows = waves + noise * rng.normal(size=(n, n_variates, length))
    return torch.tensor(windows, dtype=torch.float32), targets


def posteriors_by(classifier, windows):
    with torch.no_grad():
        return posteriors_of(classifier.eval()(windows)).numpy()
