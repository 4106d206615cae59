"""Controls of faithfulness: models whose explanations are known to be faithful, or not.

    planted: noise with a motif at known places; a network that learned it  -> evidence must find the motifs
    random weights: the same network, never trained                         -> must look unfaithful

The label depends on the motif alone, and series without it have as many other shapes of the same energy. The page
of every run shows the controls beside its own numbers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from raxss.data.synthetic import MotifCollection, make_motif_series
from raxss.estimator.classifier import RAxSSClassifier
from raxss.explain.faithfulness.localisation import truth_of
from raxss.explain.faithfulness.running import Parts, Plan, run_probes

PLANTED, BLANK = CONTROLS = ("planted motifs", "random weights")
N_TRAINING, N_HELD = 48, 16
N_STEPS, N_RANDOM = 5, 2  # of their deletion curves
MOTIF = "motif"
#: Windows of half a motif, the resolution of evidence.
SETTINGS: dict[str, Any] = {
    "window_length": 64,
    "stride": 16,
    "space": "features",
    "scaling": "series",
    "temperature": 0.5,
    "validation_fraction": 0.0,
    "max_epochs": 3,
    # fixed, not chosen by the estimator: committed pages were made with these controls
    "batch_size": 64,
    "patience": 5,
    "augmentation": {},
    "update_batch_norm": False,
}


def planted_series(*, seed: int = 69421) -> MotifCollection:
    """Series of 15 to 25 s, every other with motifs of 1.28 s; they cover a third of it."""
    return make_motif_series(N_TRAINING + N_HELD, n_samples=(1500, 2500), motif_length=128, seed=seed)


def control_model(
    planted: MotifCollection, *, trained: bool, seed: int = 69421, device: str = "auto"
) -> RAxSSClassifier:
    """A convolutional network, trained or with its initial weights."""
    rates = {} if trained else {"lr": 0.0, "start_lr": 0.0, "final_lr": 0.0, "max_epochs": 1}
    model = RAxSSClassifier("convnet", **{**SETTINGS, **rates}, random_state=seed, device=device)
    return model.fit(planted.series[:N_TRAINING])


def run_controls(
    out: Path | str, *, plan: Plan | None = None, device: str = "auto", quiet: bool = False
) -> dict[str, Parts]:
    """Both controls through all probes, kept results included.

    Of the plan, seed and probes are used; series are the 16 held out, and curves have few steps.
    """
    plan = replace(plan or Plan(), n_series=None, n_steps=N_STEPS, n_random=N_RANDOM)
    planted = planted_series(seed=plan.seed)
    held = planted.series[N_TRAINING:]
    starts = planted.motif_starts[N_TRAINING:]
    truth = {
        item.name: truth_of([(int(start), planted.motif_length) for start in own], item.n_samples)
        for item, own in zip(held, starts, strict=True)
        if len(own)
    }
    found = {}
    for name in CONTROLS:
        model = control_model(planted, trained=name == PLANTED, seed=plan.seed, device=device)
        found[name] = run_probes(
            model.model_adapter(),
            held,
            out,
            plan=plan,
            truth=truth,
            event_class=MOTIF,
            about={"model": name},
            quiet=quiet,
        )
    return found
