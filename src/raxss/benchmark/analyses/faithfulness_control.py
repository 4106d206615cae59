"""Controls of faithfulness: models whose explanations are known to be faithful, or not.

    planted: noise with a motif at known places; a network that learned it  -> evidence must find the motifs
    random weights: the same network, never trained                         -> must look unfaithful
    class by position: one half of each series is louder, which one is the class -> nearly all rests on the context
    context says nothing: all of a series is louder, or nothing              -> nearly nothing rests on it

Of the first two the label depends on the motif alone, and series without it have as many other shapes of the same
energy. The page of every run shows them beside its own numbers; the last two, of the probe of context alone, are
there where a model takes context.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from raxss.data.series import Series
from raxss.data.synthetic import MotifCollection, make_motif_series
from raxss.estimator.classifier import RAxSSClassifier
from raxss.explain.faithfulness.localisation import truth_of
from raxss.explain.faithfulness.running import CONTEXT, Parts, Plan, run_probes

PLANTED, BLANK = CONTROLS = ("planted motifs", "random weights")
BY_POSITION, NO_CONTEXT = CONTEXT_CONTROLS = ("class by position", "context says nothing")
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


#: Of trees: a head would add the context to what it makes of the samples, and position alone says nothing.
CONTEXT_SETTINGS: dict[str, Any] = {
    "backbone": "extra-trees",
    "context": True,
    "window_length": 64,
    "stride": 32,
    "temperature": 0.5,
}
LOUDER = 3.0


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


def loud_halves(*, by_position: bool, seed: int = 69421) -> list[Series]:
    """White noise of 600 to 900 samples; of every other series the second half is louder, else the first.

    Not ``by_position``: every other series is louder throughout. Over windows the classes are then the same in
    context; else they are the same in all but the context.
    """
    generator, found = np.random.default_rng(seed), []
    for k in range(N_TRAINING + N_HELD):
        samples = generator.normal(size=int(generator.integers(600, 900)))
        late = np.arange(len(samples)) >= len(samples) // 2
        louder = (late if k % 2 else ~late) if by_position else np.full(len(samples), k % 2 == 1)
        label = ("early", "late")[k % 2] if by_position else ("quiet", "loud")[k % 2]
        found.append(Series(np.where(louder, LOUDER, 1.0) * samples, label=label, name=f"noise-{k:03d}"))
    return found


def run_context_controls(
    out: Path | str, *, plan: Plan | None = None, device: str = "auto", quiet: bool = False
) -> dict[str, Parts]:
    """Both controls of the probe of context, kept results included."""
    plan = replace(plan or Plan(), n_series=None, probes=(CONTEXT,))
    found = {}
    for name in CONTEXT_CONTROLS:
        series = loud_halves(by_position=name == BY_POSITION, seed=plan.seed)
        model = RAxSSClassifier(**CONTEXT_SETTINGS, random_state=plan.seed, device=device)
        adapter = model.fit(series[:N_TRAINING]).model_adapter()
        about = {"model": name}
        found[name] = run_probes(adapter, series[N_TRAINING:], out, plan=plan, about=about, quiet=quiet)
    return found


def controls_beside(
    found: Iterable[Parts], out: Path | str, *, plan: Plan | None = None, device: str = "auto"
) -> dict[str, Parts]:
    """The controls that a page shows: those of context where a model was asked about it."""
    controls = run_controls(out, plan=plan, device=device)
    if any(item is not None for parts in found for item in parts.by_series.get(CONTEXT, ())):
        controls |= run_context_controls(out, plan=plan, device=device)
    return controls
