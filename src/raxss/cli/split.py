"""Command ``raxss split``: training, validation and test sets without shared groups.

raxss split DATA --by patient --seed 69421 --out split.json
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, cast

from raxss._core.atomic import reserved_output, whole_folder
from raxss.cli.common import described
from raxss.errors import ConfigError

if TYPE_CHECKING:
    from raxss.data.series import SeriesCollection
    from raxss.data.splits import Split

SPLITTING = {  # options that raxss audit-split has as well
    "by": "What stays together: patient, pair, recording, electrode, centre, or channel (the paper's, leaky). "
    "Default: the widest that is known.",
    "seed": "Random seed of the split.",
    "fractions": "Fractions of training, validation and test set.",
    "folds": "Number of cross-validation folds; one split per fold.",
    "leave_out": "Leave-one-group-out: one split per centre (or patient, ...).",
    "balance": "none; train_val (after the split); before_split, sss_nih_quarter (SSS's, which change the test "
    "set).",
}


@described(**SPLITTING, out="FILE.json; with --folds or --leave-out, a folder with one file per split.")
def split(
    data: str,
    out: Path,
    by: str | None = None,
    seed: int = 69421,
    fractions: str = "0.7,0.1,0.2",
    folds: int | None = None,
    leave_out: str | None = None,
    balance: str = "none",
    root: Path | None = None,
    overwrite: bool = False,
) -> None:
    """Split series into training, validation and test set, keeping groups together."""
    from raxss.cli.fit import read_data
    from raxss.data.splits import weak_parts

    with reserved_output(out, overwrite=overwrite):
        series = read_data(data, root)
        splits = make_splits(series, by, seed, fractions, folds, leave_out, balance)
        if folds is None and leave_out is None:
            splits[0].save(out, series.names, overwrite=overwrite)
        else:
            with whole_folder(out, overwrite=overwrite) as folder:
                for number, item in enumerate(splits):
                    item.save(folder / file_name(number, item), series.names, overwrite=None)
    for item in splits:
        print(line_of(item, series))
        for warning in weak_parts(series, item).values():
            print(f"warning: {warning}.")
    print(f"Kept in {out}. Next: raxss audit-split {data} --split {out}")


def make_splits(
    series: SeriesCollection,
    by: str | None,
    seed: int,
    fractions: str,
    folds: int | None,
    leave_out: str | None,
    balance: str,
) -> list[Split]:
    """The splits that the options ask for."""
    from raxss.data.splits import Balance, leave_one_out, split_series
    from raxss.data.splits import folds as make_folds

    balancing = cast(Balance, balance)  # refused there if it is none of them
    if folds is not None and leave_out is not None:
        raise ConfigError("--folds and --leave-out are two ways to test every series; give one of them.")
    if leave_out is not None:
        if by is not None:
            raise ConfigError(f"--leave-out {leave_out} says what stays together; leave --by {by} out.")
        return list(leave_one_out(series, level=leave_out, seed=seed, balance=balancing).values())
    if folds is not None:
        return make_folds(series, by=by, n_folds=folds, seed=seed, balance=balancing)
    try:
        train, validation, test = (float(item) for item in fractions.split(","))
    except ValueError:
        raise ConfigError(
            f"--fractions is {fractions!r}; needed are three numbers with commas between, such as 0.7,0.1,0.2."
        ) from None
    return [split_series(series, by=by, fractions=(train, validation, test), seed=seed, balance=balancing)]


def file_name(number: int, split: Split) -> str:
    """``fold-3.json``, ``centre-NIH.json``; what a file name cannot hold becomes ``-``."""
    if split.description.startswith("leave one"):
        return f"{number:03d}-{split.by}-{re.sub(r'[^A-Za-z0-9_.]+', '-', split.fold or '')}.json"
    return f"fold-{split.fold}.json"


def line_of(split: Split, series: SeriesCollection) -> str:
    """One split in one line: what it is, and how many of each class are in each part."""
    parts = []
    for name in ("train", "validation", "test", "dropped"):
        members = getattr(split, name)
        classes = Counter(str(series[int(index)].label) for index in members)
        shares = ", ".join(f"{label} {count}" for label, count in sorted(classes.items()))
        parts += [f"{name} {len(members)}" + (f" ({shares})" if shares else "")] if len(members) else []
    return f"{title_of(split)}: {'; '.join(parts)}"


def title_of(split: Split) -> str:
    """Description of a split, and its fold."""
    return split.description if split.fold is None else f"{split.description}, {split.fold}"
