"""Datasets of a study: [[dataset]] of STUDY.toml -> StudyDataset: data or sources, preparation, windows, split.

Several sources become one collection in which each is a centre. Series may be cut to random lengths, and labels
shuffled; both are drawn once for the whole study (transforms.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from raxss._core.settings import is_number
from raxss.benchmark.reading import (
    fields_of,
    names_in,
    pooling_from,
    refuse_repeated,
    refuse_unknown,
    section,
    whole,
)
from raxss.data.prepare.preprocessing import Preparation
from raxss.data.splits import LEVELS, Balance
from raxss.errors import ConfigError, one_of
from raxss.method.windows import WindowConfig

HEADLINES = ("auc", "f1", "accuracy")
WINDOWS = {"window_length": 1024, "stride": 128}  # of a study that says nothing of them
KINDS = ("single", "folds", "official", "leave-one-out", "per-centre")
SHUFFLED = "labels shuffled"  # in the name of every such dataset


@dataclass(frozen=True, kw_only=True)
class SplitPlan:
    """Splits into training, validation and test series, by seed.

    The kind ``single``: each seed draws its own split. ``folds``: ``n_folds`` folds, and the k-th seed tests the
    k-th. ``official``: the published split of the dataset, and each seed draws its own validation series from the
    training part. ``leave-one-out``: each centre in turn is tested with a model of the others. ``per-centre``: a
    ``single`` split within each centre.
    """

    kind: Literal["single", "folds", "official", "leave-one-out", "per-centre"] = "single"
    by: str | None = None  # level of the groups that stay together; the widest known one by default
    fractions: tuple[float, float, float] = (0.7, 0.1, 0.2)  # of training, validation and test
    balance: Balance = "none"
    n_folds: int = 5
    only: tuple[str, ...] = ()  # centres to test on; all if empty

    def __post_init__(self) -> None:
        one_of("split.kind", self.kind, KINDS)
        one_of("split.balance", self.balance, get_args(Balance))
        if self.by is not None:
            one_of("split.by", self.by, LEVELS)
        shares = tuple(self.fractions)
        numbers = len(shares) == 3 and all(is_number(share) and share > 0 for share in shares)
        if not numbers or not math.isclose(sum(shares), 1):
            raise ConfigError(
                f"split.fractions is {list(shares)}; needed are three shares above 0, for training, validation and "
                "test, that add up to 1."
            )
        if self.kind == "folds" and not math.isclose(shares[2], 1 / self.n_folds):
            raise ConfigError(
                f"split.fractions gives the test {shares[2]:g}, but each of {self.n_folds} folds tests "
                f"{1 / self.n_folds:g}. Change n_folds or fractions."
            )
        if self.kind == "leave-one-out" and self.by is not None:
            raise ConfigError(
                f"split.by = {self.by!r} does not go with kind = 'leave-one-out', which keeps centres together. "
                "Leave it out."
            )
        for name, given in (("by", self.by is not None), ("balance", self.balance != "none")):
            if self.kind == "official" and given:
                raise ConfigError(
                    f"split.{name} = {getattr(self, name)!r} does not go with kind = 'official', which is as "
                    "it was published. Leave it out."
                )
        if self.only and self.kind not in ("leave-one-out", "per-centre"):
            raise ConfigError(
                f"split.only names centres, which kind = {self.kind!r} does not use. Leave it out."
            )
        object.__setattr__(self, "fractions", shares)
        object.__setattr__(self, "only", tuple(self.only))


@dataclass(frozen=True, kw_only=True)
class Source:
    """One of several collections that a dataset is joined from."""

    data: str
    centre: str  # of all its series, and prefix of their names, patients and recordings
    classes: tuple[str, ...] = ()  # of the data, to take; all if empty
    rename: Mapping[str, str] = field(default_factory=dict)  # class of the data -> class of the study


@dataclass(frozen=True, kw_only=True)
class StudyDataset:
    """One dataset of a study.

    ``positive`` is by default the first of ``classes``, or the first of the registered dataset, else the last by
    name.
    """

    name: str
    data: str = ""  # a registered dataset, or the path of a prepared folder or a manifest; empty with sources
    sources: tuple[Source, ...] = ()  # collections that are joined
    classes: tuple[str, ...] = ()
    positive: str | None = None  # class of F1 and AUC
    f1_classes: tuple[str, ...] = ()  # of more than two: those whose F1 is averaged; all if empty
    crop: tuple[float, float] | None = (
        None  # least and largest share of its length that each series is cut to
    )
    shuffled: bool = False  # labels are permuted at random
    headline: Literal["auc", "f1", "accuracy"] = "auc"  # the metric that systems are ordered by
    preparation: Preparation = field(default_factory=Preparation)
    windows: WindowConfig = field(default_factory=lambda: WindowConfig(**WINDOWS))
    split: SplitPlan = field(default_factory=SplitPlan)


# Reading ------------------------------------------------------------------------------------------------------


def datasets_in(tables: Mapping[str, Any]) -> tuple[StudyDataset, ...]:
    """Every dataset of a study's tables; preparation, windows and split default to those of the study.

    >>> tables = {"dataset": {"source": [{"data": "bern-barcelona"},
    ...                                  {"data": "bonn", "rename": {"F": "focal", "N": "nonfocal"}}]}}
    >>> (dataset,) = datasets_in(tables)
    >>> dataset.name, [one.centre for one in dataset.sources]
    ('bern-barcelona and bonn', ['bern-barcelona', 'bonn'])
    """
    given = tables.get("dataset", [])
    given = [given] if isinstance(given, Mapping) else given
    if not isinstance(given, list) or not given or not all(isinstance(item, Mapping) for item in given):
        raise ConfigError(
            "the study has no dataset; add a section [dataset] with data = a registered dataset (see raxss "
            "datasets), a folder that raxss prepare made, or a manifest."
        )
    datasets = tuple(_dataset(item, tables) for item in given)
    advice = "give each a name of its own: name = ..."
    refuse_repeated((dataset.name for dataset in datasets), "datasets are called", advice)
    return datasets


def _dataset(given: Mapping[str, Any], tables: Mapping[str, Any]) -> StudyDataset:
    stages = ("preparation", "windows", "split")
    about = ("data", "source", "name", "classes", "positive", "f1_classes", "crop", "shuffled", "headline")
    refuse_unknown("[dataset]", given, (*about, *stages))
    sources = _sources(given.get("source", []))
    data = given.get("data")
    if sources and data is not None:
        raise ConfigError(
            f"[dataset] has data = {data!r} and sources; it is made of one or of the others. Make the data one of "
            "the sources: [[dataset.source]]."
        )
    if not sources:
        data = _data("[dataset]", data)
    merged = {stage: {**section(tables, stage), **section(given, stage)} for stage in stages}
    own = section(given, "split")
    if own.get("kind") == "leave-one-out" and "by" not in own:
        merged["split"].pop("by", None)  # it was meant for the study's other datasets
    if own.get("kind") == "official":
        merged["split"] = {"fractions": [0.7, 0.1, 0.2], **own}  # of which the first two count
    refuse_unknown("[windows]", merged["windows"], fields_of(WindowConfig))
    refuse_unknown("[split]", merged["split"], fields_of(SplitPlan))
    classes = names_in("dataset.classes", given.get("classes", []))
    positive = given.get("positive")
    f1_classes = names_in("dataset.f1_classes", given.get("f1_classes", []))
    refuse_repeated(f1_classes, "of dataset.f1_classes are", "once is enough.")
    if classes:
        for label in f1_classes:
            one_of("dataset.f1_classes", label, classes)
        if positive is not None:
            one_of("dataset.positive", str(positive), classes)
    if "only" in merged["split"]:
        merged["split"]["only"] = names_in("split.only", merged["split"]["only"])
    if "n_folds" in merged["split"]:
        whole("split.n_folds", merged["split"]["n_folds"], 2)
    if not isinstance(merged["split"].get("fractions", []), list):
        raise ConfigError(f"split.fractions is {merged['split']['fractions']!r}; needed is a list of three.")
    shuffled = given.get("shuffled", False)
    if not isinstance(shuffled, bool):
        raise ConfigError(f"dataset.shuffled is {shuffled!r}; needed is true or false.")
    headline = given.get("headline", HEADLINES[0])
    one_of("dataset.headline", headline, HEADLINES)
    name = str(
        given.get("name", Path(data).stem if data else " and ".join(source.centre for source in sources))
    )
    return StudyDataset(
        name=f"{name}, {SHUFFLED}" if shuffled and SHUFFLED not in name else name,
        data=data or "",
        sources=sources,
        classes=classes,
        positive=None if positive is None else str(positive),
        f1_classes=f1_classes,
        crop=_crop(given.get("crop")),
        shuffled=shuffled,
        headline=headline,
        preparation=_preparation(merged["preparation"]),
        windows=WindowConfig(**(WINDOWS | merged["windows"])),
        split=SplitPlan(**merged["split"]),
    )


def _data(where: str, given: Any) -> str:
    if not isinstance(given, str) or not given:
        raise ConfigError(f"{where} has data = {given!r}; needed is a registered dataset or a path.")
    return given


def _sources(given: Any) -> tuple[Source, ...]:
    if not isinstance(given, list) or not all(isinstance(item, Mapping) for item in given):
        raise ConfigError(
            f"dataset.source is {given!r}; needed are sections, [[dataset.source]], each with its data."
        )
    sources = tuple(_source(item) for item in given)
    advice = "each is one of its own. Give another name: centre = ..."
    refuse_repeated((source.centre for source in sources), "sources are the centre", advice)
    return sources


def _source(given: Mapping[str, Any]) -> Source:
    where = "[[dataset.source]]"
    refuse_unknown(where, given, ("data", "classes", "rename", "centre"))
    data = _data(where, given.get("data"))
    centre = given.get("centre", Path(data).stem)
    if not isinstance(centre, str) or not centre or "/" in centre:
        raise ConfigError(
            f"source {data!r} has centre = {centre!r}; needed is a name without '/', which parts it from the names "
            "of its series."
        )
    classes = names_in("source.classes", given.get("classes", []))
    rename = section(given, "rename")
    for old, new in rename.items():
        if not isinstance(new, str) or not new:
            raise ConfigError(
                f"source {data!r} renames {old!r} to {new!r}; needed are names of classes, such as "
                'rename = { F = "focal" }.'
            )
        if classes:
            one_of(f"a class that source {data!r} renames", old, classes)
    return Source(data=data, centre=centre, classes=classes, rename=dict(rename))


def _crop(given: Any) -> tuple[float, float] | None:
    if given is None:
        return None
    shares = given if isinstance(given, list) and all(is_number(item) for item in given) else []
    if len(shares) != 2 or not 0 < shares[0] <= shares[1] <= 1:
        raise ConfigError(
            f"dataset.crop is {given!r}; needed are the least and the largest share of its length that a series is "
            "cut to, above 0 and at most 1, such as [0.2, 1.0]."
        )
    return float(shares[0]), float(shares[1])


def _preparation(given: Mapping[str, Any]) -> Preparation:
    refuse_unknown("[preparation]", given, ("pool", "rate", "scaling"))
    pooling = pooling_from("preparation.pool", given.get("pool"))
    rate = given.get("rate")
    if rate is not None and not is_number(rate):
        raise ConfigError(f"preparation.rate is {rate!r}; needed is a number of samples per second.")
    return Preparation(pooling=pooling, rate=rate, scaling=given.get("scaling", "none"))
