"""Command ``raxss prepare``: recordings to a folder of labelled, preprocessed series.

raxss prepare bonn --classes F,N --out FOLDER
"""

from __future__ import annotations

import logging
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import typer

from raxss._core.atomic import check_writable, output_lock
from raxss._core.bounded import read_json
from raxss.cli.common import described, printable
from raxss.cli.table import names_from
from raxss.errors import ConfigError, LabelError, RecordingError, did_you_mean

if TYPE_CHECKING:
    from raxss.data.plan import CollectionPlan
    from raxss.data.prepare.preprocessing import Preparation


@described(
    source=typer.Argument(
        help="A BIDS root, a CSV manifest, a named dataset (see raxss datasets), or recordings with --labels."
    ),
    out="Output folder.",
    labels="Clinical sheet, or table recording,channel,label, for BIDS and recordings.",
    classes="Labels to keep, such as F,N.",
    pool="Average pooling, kernel/stride: 24/12 in the paper.",
    rate="Resample to this sampling rate in Hz.",
    gap="Value of missing samples in the files, such as -999; nan: samples that are NaN.",
    scaling="Scaling: series (z-score of each channel) or none.",
    crop="Seconds around seizure onset to keep, such as -10,20 (BIDS only).",
    workers=typer.Option(min=1, help="Number of worker processes."),
    unlabelled="Include series without a label.",
    strict="Stop if a file is missing or a series is empty.",
)
def prepare(
    source: str,
    out: Path,
    root: Path | None = None,
    labels: Path | None = None,
    classes: str | None = None,
    pool: str | None = None,
    rate: float | None = None,
    gap: str | None = None,
    scaling: str = "series",
    crop: str | None = None,
    workers: int = 1,
    unlabelled: bool = False,
    strict: bool = False,
    overwrite: bool = False,
) -> None:
    """Read recordings into a folder of labelled series for training.

    Recordings are read in blocks, so they may be longer than memory. Finished recordings are kept in OUT.preparing;
    after a kill, Ctrl-C or a full disk, the same command resumes from there with identical results.
    """
    from raxss.data.prepare.preparing import prepare as carry_out

    preparation = preparation_from(pool, rate, scaling, gap)
    check_writable(out)
    logging.getLogger("raxss").setLevel(logging.INFO)
    with output_lock(out):
        plan = plan_source(
            source, root=root, labels=labels, classes=classes, crop=crop, unlabelled=unlabelled
        )
        plan = replace(plan, settings={"crop": crop, "classes": classes, "unlabelled": unlabelled})
        options = {"unlabelled": unlabelled, "strict": strict, "overwrite": overwrite, "progress": True}
        carry_out(plan, out, preparation, workers=workers, **options)
    print_summary(out)


def preparation_from(
    pool: str | None, rate: float | None, scaling: str, gap: str | None = None
) -> Preparation:
    """The options as one setting."""
    from raxss.benchmark.reading import pooling_from
    from raxss.data.prepare.preprocessing import Preparation, gap_value

    return Preparation(
        pooling=pooling_from("--pool", pool),
        rate=rate,
        scaling=cast(Literal["none", "series"], scaling),
        gap=None if gap is None else gap_value(gap),
    )


def plan_source(
    source: str,
    *,
    root: Path | None = None,
    labels: Path | None = None,
    classes: str | None = None,
    crop: str | None = None,
    unlabelled: bool = False,
) -> CollectionPlan:
    """The plan of whatever a source is."""
    from raxss.data.bids import plan_bids
    from raxss.data.datasets.plans import plan_dataset
    from raxss.data.datasets.registry import DATASETS, find_dataset
    from raxss.data.manifests import plan_labelled, plan_manifest

    path, seconds = Path(source), seconds_from(crop)
    wanted = names_from(classes) if classes else None
    if any(folder.is_dir() for folder in path.glob("sub-*")):  # a BIDS tree
        plan = plan_bids(path, labels=labels, crop=seconds, only_labelled=not unlabelled)
        return only_classes(plan, wanted)
    name = path.resolve().name if path.is_dir() else source
    if name in DATASETS and (labels is None or not path.exists()):
        given = {"crop": seconds, "labels": labels, "only_labelled": False if unlabelled else None}
        options = {option: value for option, value in given.items() if value is not None}
        if "only_labelled" not in find_dataset(name).options:
            options.pop("only_labelled", None)  # every series of the dataset has a label
        return plan_dataset(name, root=path if path.is_dir() else root, classes=wanted, **options)
    if seconds is not None:
        raise ConfigError(
            "--crop counts from the seizure's onset, which only a BIDS tree tells; leave it out here."
        )
    if labels is not None:
        return only_classes(plan_labelled(path, labels), wanted)
    if path.is_dir():
        raise RecordingError(
            f"the folder {path.resolve().name!r} is neither a BIDS tree (no sub-* folders) nor a named dataset. "
            "Say what its channels are with --labels TABLE (recording,channel,label), or list recordings in a CSV."
        )
    if path.suffix.lower() == ".csv":
        return only_classes(plan_manifest(path, labels_required=not unlabelled), wanted)
    if path.is_file():
        raise RecordingError(
            f"the recording {path.name!r} needs labels to learn from: --labels TABLE (recording,channel,label)."
        )
    known = did_you_mean(source, DATASETS)
    raise RecordingError(f"there is no file, folder or named dataset {source!r}{known}")


def seconds_from(crop: str | None) -> tuple[float, float] | None:
    """``-10,20`` as two numbers."""
    if crop is None:
        return None
    try:
        first, last = (float(item) for item in crop.split(","))
    except ValueError as error:
        raise ConfigError(f"--crop is {crop!r}; two seconds are needed, such as -10,20.") from error
    return first, last


def only_classes(plan: CollectionPlan, classes: list[str] | None) -> CollectionPlan:
    """The series of some labels."""
    if classes is None:
        return plan
    known = sorted({item.label for _, item in plan if item.label is not None})
    for name in classes:
        if name not in known:
            raise LabelError(
                f"no series of {plan.source!r} has the label {name!r}{did_you_mean(name, known)}"
            )
    return plan.only(lambda series: series.label in classes)


def print_summary(folder: Path) -> None:
    """What the folder holds, what is not in it, and what to do next."""
    from raxss.data.prepare.folder import PROBLEMS, read_prepared

    facts = read_prepared(folder).facts
    problems = read_json(folder / PROBLEMS)
    labels = ", ".join(f"{name} {count}" for name, count in facts["labels"].items()) or "none"
    print(f"{facts['n_series']} series of {facts['n_recordings']} recordings; labels: {printable(labels)}")
    print(f"preparation: {facts['preparation'] or 'none'}; groups: {facts['group_by'] or 'none'}")
    kinds = {
        "absent": "absent files",
        "refused": "refused recordings",
        "unmatched": "unmatched",
        "left_out": "series left out",
        "with_gaps": "series with gaps",
        "recordings": "recordings with warnings",
    }
    if line := ", ".join(f"{what} {len(problems[kind])}" for kind, what in kinds.items() if problems[kind]):
        print(f"{line}: see {folder / PROBLEMS}", file=sys.stderr)
    name = shlex.quote(str(folder))
    following = (
        f"raxss fit {name} --out MODEL" if facts["labels"] else f"raxss predict MODEL {name} --out FILE"
    )
    print(f"The series are in {folder}; next: {following}")
