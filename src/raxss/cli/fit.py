"""``raxss fit sample --out MODEL``: train a model."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from raxss._core.atomic import check_writable, output_lock, refuse_existing, remove
from raxss.cli.common import described, refuse_if
from raxss.errors import ModelError, RecordingError

if TYPE_CHECKING:
    from raxss.data.series import SeriesCollection
    from raxss.estimator.config import Config


AUTO = "auto"  # the preset that is a search
DEFAULT_BUDGET = "10min"


@described(
    out="Model folder to write.",
    preset="Preset: paper, sss, tuned, or recommended: the defaults of the estimator. auto: settings are chosen by "
    "a search on the training series, within --budget.",
    budget="With --preset auto, time for search and final fit: 90s, 10m, 2h. Default: 10m.",
    trials="With --preset auto, number of candidates to compare, in place of a budget; the result then depends on "
    "data and seed alone.",
    signal="Signal type, with --preset tuned: eeg, ecg or motion. Adds the settings for this type of signal.",
    config="TOML file with settings that override the preset.",
    window_length="Window length in samples; by default chosen from the lengths of the series.",
    stride="Step between windows in samples; by default an eighth of a window.",
    calibration="Calibration method: none, isotonic, temperature or venn-abers.",
    calibration_level="window: calibrate window posteriors before aggregation; series: calibrate the aggregated "
    "score (evidence shows both numbers).",
    conformal_alpha="Miscoverage rate of prediction sets; 0: no sets.",
    decision_threshold="argmax: predict the most probable class; tuned: by a threshold with the largest balanced "
    "accuracy out of fold (on the validation set, or by three refits).",
    class_weight="balanced: series of rare classes count more in training, in inverse proportion to the size "
    "of their class. For weights of your own, use --config.",
    gap="Value of missing samples in the files, such as -999; nan: samples that are NaN. The model remembers it.",
    share_missing="Give the network the share of missing samples of each window as an input.",
    context="Give the backbone the position of each window, and its level and amplitude against the series. "
    "--preset auto tries it by itself.",
    split="Split file written by raxss split: trains on its training set, stops early on its validation set.",
    resume="Resume from the checkpoint of an interrupted run.",
)
def fit(
    data: str,
    out: Path,
    preset: str = "recommended",
    signal: str | None = None,
    config: Path | None = None,
    window_length: int | None = None,
    stride: int | None = None,
    max_epochs: int | None = None,
    calibration: str | None = None,
    calibration_level: str | None = None,
    conformal_alpha: float | None = None,
    decision_threshold: str | None = None,
    class_weight: str | None = None,
    seed: int = 69421,
    device: str = "auto",
    root: Path | None = None,
    split: Path | None = None,
    gap: str | None = None,
    share_missing: bool = False,
    context: bool = False,
    budget: str | None = None,
    trials: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """Train a model on labelled series.

    During training a checkpoint is written to MODEL.checkpoint; after a kill or Ctrl-C, the same command with
    --resume continues from it. Ctrl-C saves the best model so far, unless MODEL exists already; a second Ctrl-C
    during saving keeps only the checkpoint. The last line of output states what was kept.

    With --preset auto, the finished fits of the search are kept in MODEL.search meanwhile, and --resume goes on
    from them. Training and validation set of a split are searched together, by an inner cross-validation.
    """
    if preset == AUTO:
        chosen = {
            "--config": config,
            "--signal": signal,
            "--window-length": window_length,
            "--stride": stride,
            "--max-epochs": max_epochs,
            "--context": context or None,
        }
        for option, value in chosen.items():
            refuse_if(
                value is not None, f"{option} does not go with --preset auto, which chooses settings itself."
            )
        shared = {
            "calibration": calibration,
            "calibration_level": calibration_level,
            "conformal_alpha": conformal_alpha,
            "decision_threshold": decision_threshold,
            "class_weight": class_weight,
            "share_missing": share_missing or None,
        }
        search_and_save(
            lambda: read_data(data, root, gap=gap),
            out,
            split=split,
            resume=resume,
            overwrite=overwrite,
            budget=budget or DEFAULT_BUDGET,
            n_trials=trials,
            random_state=seed,
            device=device,
            **{name: value for name, value in shared.items() if value is not None},
        )
        return
    for option, value in (("--budget", budget), ("--trials", trials)):
        refuse_if(
            value is not None,
            f"{option} goes with --preset auto, got --preset {preset}. Leave one of them out.",
        )
    settings = settings_from(
        preset,
        config,
        signal=signal,
        window_length=window_length,
        stride=stride,
        max_epochs=max_epochs,
        calibration=calibration,
        calibration_level=calibration_level,
        conformal_alpha=conformal_alpha,
        decision_threshold=decision_threshold,
        class_weight=class_weight,
        share_missing=share_missing or None,
        context=context or None,
    )
    shown, out = out, out.absolute()  # "." has no name to put a checkpoint beside
    checkpoint = out.with_name(out.name + ".checkpoint")
    with output_lock(out):
        unfinished = resume and was_interrupted(out)
        overwrite = overwrite or unfinished
        refuse_existing(out, overwrite=overwrite)
        check_writable(out)
        before = identity(out)
        try:
            from raxss.estimator.classifier import RAxSSClassifier

            keeps_older = not unfinished and (out / "config.json").exists()
            series, validation, description = training_parts(read_data(data, root, gap=gap), split)
            if checkpoint.exists() and not resume:
                checkpoint.unlink()
            logging.getLogger("raxss").setLevel(logging.INFO)
            model = RAxSSClassifier.from_config(settings, random_state=seed, device=device, verbose=1)
            model.fit(series, validation=validation, checkpoint=checkpoint, resume=resume)
            model.training_data_["split"] = description
            if not (model.interrupted_ and keeps_older):
                model.save_pretrained(out, overwrite=overwrite)
            if model.interrupted_:
                raise KeyboardInterrupt
            checkpoint.unlink(missing_ok=True)
        except KeyboardInterrupt:
            print(f"Stopped. {what_is_kept(out, before, checkpoint, shown)}", file=sys.stderr)
            raise typer.Exit(130) from None
    print(whats_next(shown))


def whats_next(shown: Path) -> str:
    """The last line of a run that is over."""
    return (
        f"The model is in {shown}. Read {shown / 'README.md'}; next: raxss predict {shown} INPUT --out FILE"
    )


def search_and_save(
    read: Callable[[], SeriesCollection],
    out: Path,
    *,
    split: Path | None,
    resume: bool,
    overwrite: bool,
    **parameters: Any,
) -> None:
    """``--preset auto``: search, print the table of what was tried, and write the model folder."""
    shown, out = out, out.absolute()
    kept = out.with_name(out.name + ".search")
    with output_lock(out):
        refuse_existing(out, overwrite=overwrite)
        check_writable(out)
        try:
            from rich.console import Console

            from raxss.data.series import SeriesCollection
            from raxss.estimator.auto import AutoRAxSS, refuse_foreign_folder

            refuse_foreign_folder(kept)  # with --resume as well: it is removed in the end
            if not resume:
                remove(kept)
            auto = AutoRAxSS(folder=kept, verbose=1, **parameters)
            train, validation, description = training_parts(read(), split)
            series = train if validation is None else SeriesCollection([*train, *validation])
            logging.getLogger("raxss").setLevel(logging.INFO)
            auto.fit(series)
            model = auto.best_estimator_
            if model.interrupted_:
                raise KeyboardInterrupt
            model.training_data_["split"] = description
            auto.save_pretrained(out, overwrite=overwrite)
            remove(kept)
        except KeyboardInterrupt:
            what = (
                f"the finished fits are kept in {kept.name}, and the same command with --resume goes on from there"
                if kept.exists()
                else "no fit had been finished"
            )
            print(f"Stopped. No model was written; {what}.", file=sys.stderr)
            raise typer.Exit(130) from None
    console = Console(width=140)
    console.print(auto.search_report_.table())
    print(auto.search_report_.summary)
    print(f"Why each was tried: {shown / 'search.html'}")
    print(whats_next(shown))


def identity(folder: Path) -> tuple[int, int] | None:
    """Device and inode of a folder, which another in its place does not have; None where there is none."""
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def what_is_kept(out: Path, before: tuple[int, int] | None, checkpoint: Path, shown: Path) -> str:
    """What an interrupted run left, by what is on the disk: Ctrl-C may come at any moment, and twice.

    ``before``: the `identity` of the model folder when the run began.
    """
    facts = model_facts(out)
    if identity(out) != before and not facts.get("interrupted"):
        return f"Training was over: the model in {shown} is complete."
    if identity(out) != before:
        model = f"The best model so far (epoch {facts.get('best_epoch')}) is kept in {shown}"
    elif facts:
        model = f"The older model was left as it is in {shown}, and no new one was written"
    else:
        model = "No model was written"
    from raxss.method.training.checkpoints import epoch_of_checkpoint

    epoch = epoch_of_checkpoint(checkpoint)
    if epoch is None:
        return f"{model}; there is no checkpoint, so the same command begins anew."
    return (
        f"{model}; the checkpoint {checkpoint.name} is kept (epoch {epoch}), and the same command with --resume "
        "goes on from there."
    )


def was_interrupted(folder: Path) -> bool:
    """Whether a model folder holds the best of a run that was stopped."""
    return model_facts(folder).get("interrupted") is True


def model_facts(folder: Path) -> dict[str, Any]:
    """What config.json of a model folder says; empty where there is none that can be read."""
    from raxss._core.sealing import read_facts

    try:
        return read_facts(folder)
    except ModelError:
        return {}


def settings_from(
    preset: str, config: Path | None, *, signal: str | None = None, **overrides: int | float | str | None
) -> Config:
    """Preset, then the TOML file, then single options; later ones win."""
    from raxss.estimator.config import Config, setting_homes

    settings = Config.preset(preset, signal=signal)
    if config is not None:
        settings = Config.from_file(config, start=settings)
    homes = setting_homes()
    for name, value in overrides.items():
        if value is not None:
            settings = settings.updated({homes[name]: {name: value}})
    return settings


def training_parts(
    series: SeriesCollection, split: Path | None
) -> tuple[SeriesCollection, SeriesCollection | None, str | None]:
    """What training may see: all of it, or the first two parts of a split, and what kind of split it is."""
    if split is None:
        return series, None, None
    from raxss.data.splits import Split

    read = Split.read(split, series.names)
    train, validation, _ = read.parts(series)
    return train, validation if len(validation) else None, read.description


def read_data(data: str, root: Path | None = None, *, gap: str | None = None) -> SeriesCollection:
    """A prepared folder or a manifest if there is one at that place, else a named dataset.

    ``gap``: the value of missing samples.
    """
    found = _read_data(data, root)
    if gap is None:
        return found
    from raxss.data.prepare.preprocessing import Preparation, gap_value
    from raxss.data.series import SeriesCollection

    return SeriesCollection(map(Preparation(gap=gap_value(gap)).apply, found))


def _read_data(data: str, root: Path | None) -> SeriesCollection:
    from raxss.data.datasets import load_dataset
    from raxss.data.files import read_manifest
    from raxss.data.prepare.folder import is_prepared, read_prepared

    if data.endswith(".csv") or os.path.isfile(data):
        return read_manifest(data)
    if is_prepared(Path(data)):
        return read_prepared(data, verify=True)
    if os.path.isdir(data) and os.listdir(data):
        raise RecordingError(
            f"{Path(data).name!r} is a folder that raxss did not prepare; training needs labelled series. Make "
            f"them first: raxss prepare {Path(data).name} --out prepared."
        )
    return load_dataset(data, root=root)
