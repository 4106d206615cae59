"""Command ``raxss faithfulness``: test the explanations of a model, or of the systems of a study.

raxss faithfulness MODEL DATA... --out DIR, or raxss faithfulness STUDY.toml --out DIR
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from raxss._core.atomic import output_lock
from raxss._core.bounded import read_json
from raxss.cli.common import described, refuse_if
from raxss.cli.predict import series_for, training_states
from raxss.cli.table import names_from
from raxss.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from raxss.data.series import SeriesCollection
    from raxss.estimator.classifier import RAxSSClassifier

N_SERIES, SEED = 40, 69421


@described(
    what=typer.Argument(
        help="Model folder, or a study (.toml) whose systems are fitted first; none: controls alone."
    ),
    data=typer.Argument(
        help="With a model: a named dataset, or recordings, manifests, BIDS roots or prepared folders. Series that "
        "the model has learned from are left out."
    ),
    out="Output folder for page, plots and tables.",
    n_series=typer.Option(min=0, help="Number of series, drawn at random and balanced over classes; 0: all."),
    seed="Seed of series, surrogates, random orders and randomised layers.",
    probes="Comma-separated subset of deletion,counterfactual,stability,localisation,context,retrieval,network,"
    "features.",
    marks="Table of marked events (.tsv: onset, duration, and channel or trial_type such as ripple_AHR3-4): does "
    "evidence lie there? Marks on pairs of contacts: their differences are asked about.",
    event_class="Class that the marks are evidence for. Default: the predicted class.",
    other="The same model trained with another seed, for the stability probe.",
    systems="With a study: comma-separated subset of its systems.",
    fold=typer.Option(min=0, help="With a study: index of the seed, from 0."),
    control=typer.Option(help="Also run the controls: planted motifs and random weights."),
)
def faithfulness(
    what: Path | None = None,
    data: list[str] | None = None,
    out: Path = Path("faithfulness"),
    n_series: int = N_SERIES,
    seed: int = SEED,
    probes: str | None = None,
    marks: Path | None = None,
    event_class: str | None = None,
    other: Path | None = None,
    split: Path | None = None,
    systems: str | None = None,
    fold: int = 0,
    control: bool = True,
    device: str = "auto",
    root: Path | None = None,
    rate: float | None = None,
    resample: bool = False,
) -> None:
    """Test the faithfulness of explanations: perturbation, retrieval and parameter randomisation, stability.

    Writes a page, DIR/README.md, with a verdict by stated rules. An interrupted run resumes with the same command.
    """
    from raxss.explain.faithfulness.running import CONTEXT, PROBES, Plan

    plan = Plan(n_series=n_series or None, seed=seed, probes=tuple(names_from(probes)) or PROBES)
    if what is not None and what.suffix.lower() == ".toml":
        refuse_if(
            data or marks or other or split or rate or resample,
            "a study has its own data; --marks, --other, --split, --rate and --resample go with a model",
        )
        options = {"n_series": n_series, "seed": seed, "probes": list(plan.probes), "controls": control}
        analyse_study(what, out, options, device, names_from(systems), fold, root)
        return
    refuse_if(what is not None and (systems or fold), "--systems and --fold go with a study")
    refuse_if(what is not None and not data, "say which recordings to score with the model")
    with output_lock(os.path.realpath(out)):
        from raxss.benchmark.analyses.faithfulness_control import (
            controls_beside,
            run_context_controls,
            run_controls,
        )
        from raxss.benchmark.analyses.faithfulness_report import write_faithfulness
        from raxss.estimator.batch import open_model
        from raxss.estimator.persistence import describe_model
        from raxss.explain.faithfulness.running import run_probes

        if what is None or data is None:
            found = run_controls(out / "controls", plan=plan, device=device)
            if CONTEXT in plan.probes:
                found |= run_context_controls(out / "controls", plan=plan, device=device)
            return print_verdicts(write_faithfulness(found, out=out, title="Controls")[-1])
        model = open_model(what, device)
        series = unseen(model, requested_series(model, data, split, root, rate, resample))
        series, truth = (series, None) if marks is None else marked(series, marks)
        second = None if other is None else open_model(other, device).model_adapter()
        about = {
            "model": what.name,
            "settings": model.current_config.hash,
            "weights_sha256": describe_model(model)["weights_sha256"],
        }
        result = run_probes(
            model.model_adapter(), model.known_series(series, warn=True), out, plan=plan, truth=truth,
            event_class=event_class, other=second, about=about,
        )  # fmt: skip
        controls = controls_beside([result], out / "controls", plan=plan, device=device) if control else {}
        page = write_faithfulness({what.name: result}, out=out, title=what.name, controls=controls)[-1]
        print_verdicts(page)


def analyse_study(
    file: Path,
    out: Path,
    options: dict[str, Any],
    device: str,
    systems: list[str],
    fold: int,
    root: Path | None,
) -> None:
    """Fit the systems of a study and probe them; options other than the defaults go before those of the study."""
    from raxss.benchmark.analyses.by_name import run_analysis
    from raxss.benchmark.analyses.faithfulness import seed_of
    from raxss.benchmark.study import Study
    from raxss.benchmark.table import Work
    from raxss.explain.faithfulness.running import PROBES

    study = Study.read(file)
    defaults = {"n_series": N_SERIES, "seed": SEED, "probes": list(PROBES), "controls": True}
    given = {name: value for name, value in options.items() if value != defaults[name]}
    analyses = {**study.analyses, "faithfulness": {**study.analyses.get("faithfulness", {}), **given}}
    study = replace(study, analyses=analyses)
    outcome = run_analysis(
        "faithfulness",
        study,
        out,
        work=Work(device=device),
        only=systems,
        seeds=[seed_of(study, fold)],
        root=root,
    )
    for page in outcome.files:
        print_verdicts(page)


def requested_series(
    model: RAxSSClassifier,
    data: list[str],
    split: Path | None,
    root: Path | None,
    rate: float | None,
    resample: bool,
) -> SeriesCollection:
    """A named dataset, prepared as the training data were; or files."""
    from raxss.data.datasets import load_dataset
    from raxss.data.datasets.registry import DATASETS
    from raxss.data.series import SeriesCollection

    if len(data) == 1 and data[0] in DATASETS and not Path(data[0]).exists():
        prepare = model.preparation_of_model(resample=resample).apply
        known = {None, *model.classes_.tolist()}
        loaded = load_dataset(data[0], root=root)
        return SeriesCollection(prepare(series) for series in loaded if series.label in known)
    return series_for(model, [Path(item) for item in data], split, rate=rate, resample=resample)


def marked(series: SeriesCollection, marks: Path) -> tuple[SeriesCollection, dict[str, NDArray[np.bool_]]]:
    """The series that the marks refer to, which may be differences of those given; and where marks are."""
    from raxss.data.series import SeriesCollection
    from raxss.explain.faithfulness.marks import read_marked

    found, truth = read_marked(marks, series)
    meant = SeriesCollection(found)
    if meant.names != series.names:
        print(
            f"The marks are about differences of contacts: {len(meant)} of these are asked about instead of "
            f"{len(series)} contacts."
        )
    return meant, truth


def unseen(model: RAxSSClassifier, series: SeriesCollection) -> SeriesCollection:
    """Series that the model has not learned from: its evidence for the others may be memory."""
    from raxss.data.series import SeriesCollection
    from raxss.data.training_overlap import MARKED

    states = training_states(model, series)
    new = SeriesCollection(item for item, state in zip(series, states, strict=True) if state not in MARKED)
    if not len(new):
        raise DataError(
            f"the model has learned from all {len(series)} series; its evidence for them may be memory. Give "
            "series that were held out, such as the test set of a split."
        )
    if len(new) < len(series):
        print(f"{len(series) - len(new)} series that the model has learned from are left out.")
    return new


def print_verdicts(page: Path) -> None:
    """The verdicts, and where to read on."""
    found = read_json(page.parent / "verdict.json")["verdicts"]
    for name, entry in found.items():
        print(f"{name}: {entry['verdict']} ({entry['why']})")
    print(f"The page is {page}")
