"""What is compared, on which data, split how, and how often?

    STUDY.toml -> Study: datasets, preparation, windows, split, systems, seeds, budget

A study is read and checked as a whole before anything runs; what it does not know it refuses, with the nearest
name. Paths in it count from the folder that the file lies in. Its extensions are Python files, which are run:
take studies from people whose code you would run.
Next: views.py opens the data and makes the splits; cells.py has the single fits.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

from raxss.backbones import BACKBONES
from raxss.config import TrainingConfig, WindowConfig
from raxss.errors import ConfigError, RAxSSError, nearest, one_of
from raxss.preparation import Preparation
from raxss.splits import LEVELS, Balance
from raxss.storage import sha256_of
from raxss.study.systems import BUDGET, SYSTEMS, System, find_system

SEEDS = (69421, 69422, 69423, 69424, 69425)  # the paper's
KINDS = ("single", "folds", "leave-one-out", "per-centre")
BUILT_IN = frozenset(SYSTEMS)  # before any extension adds its own
ALL = "all"
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}")  # systems and extensions give names to files


@dataclass(frozen=True, kw_only=True)
class SplitPlan:
    """How series are set aside, seed by seed.

    Attributes
    ----------
    kind
        ``single``: each seed draws its own split. ``folds``: one split into ``n_folds``, and the k-th seed tests
        the k-th, so that each series is tested once. ``leave-one-out``: each centre in turn is the test part of a
        model of the others. ``per-centre``: a ``single`` split within each centre.
    by
        What stays together; the widest that is known where it is not given.
    fractions
        For training, validation and test. Where centres are left out, the first two share the others.
    only
        Centres to test on; all that there are where it is empty.
    """

    kind: Literal["single", "folds", "leave-one-out", "per-centre"] = "single"
    by: str | None = None
    fractions: tuple[float, float, float] = (0.7, 0.1, 0.2)
    balance: Balance = "none"
    n_folds: int = 5
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        one_of("split.kind", self.kind, KINDS)
        one_of("split.balance", self.balance, get_args(Balance))
        if self.by is not None:
            one_of("split.by", self.by, LEVELS)
        shares = tuple(self.fractions)
        if len(shares) != 3 or not all(_is_number(one) for one in shares) or not math.isclose(sum(shares), 1):
            raise ConfigError(
                f"split.fractions is {list(shares)}; needed are three shares, for training, validation and test, "
                "that add up to 1."
            )
        if min(shares) <= 0:
            raise ConfigError(
                f"split.fractions is {list(shares)}; each part needs a share above 0: training stops by "
                "validation, and the table is about the test."
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
        if self.only and self.kind not in ("leave-one-out", "per-centre"):
            raise ConfigError(
                f"split.only names centres, which kind = {self.kind!r} does not ask for. Leave it out."
            )
        object.__setattr__(self, "fractions", shares)
        object.__setattr__(self, "only", tuple(self.only))


@dataclass(frozen=True, kw_only=True)
class StudyDataset:
    """One dataset of a study, with what is done to it.

    Attributes
    ----------
    name
        How the table calls it.
    data
        A registered dataset, or the path of a prepared folder or a manifest.
    positive
        The class that F1 and AUC are about; without it the first of ``classes``, or the first that the registered
        dataset has, else the last by name.
    """

    name: str
    data: str
    classes: tuple[str, ...] = ()
    positive: str | None = None
    preparation: Preparation = field(default_factory=Preparation)
    windows: WindowConfig = field(default_factory=WindowConfig)
    split: SplitPlan = field(default_factory=SplitPlan)


@dataclass(frozen=True, kw_only=True)
class Study:
    """A comparison: which systems, on which data, how often, with which budget.

    Attributes
    ----------
    systems
        Names; ``("all",)`` stands for every one there is.
    n_threads
        Of each fit; part of what decides the numbers, to their last bits.
    training
        Settings of `TrainingConfig` for all networks: epochs, batches, learning rates.
    settings
        By system: settings of its own; one with ``base`` is a new system.
    extensions
        Python files to import before a fit.
    folder
        What paths count from.

    Examples
    --------
    >>> study = Study.from_toml('''
    ... systems = ["sss", "sss-timesnet"]
    ... seeds = [1, 2]
    ... [dataset]
    ... data = "synthetic"
    ... windows = { window_length = 128, stride = 64 }
    ... [training]
    ... max_epochs = 3
    ... [system.sss-timesnet]
    ... base = "sss"
    ... backbone = "timesnet"
    ... ''')
    >>> study.datasets[0].name, study.seeds, list(study.compared())
    ('synthetic', (1, 2), ['sss', 'sss-timesnet'])
    >>> Study.from_toml('[dataset]\\ndata = "synthetic"\\nstride = 5')
    Traceback (most recent call last):
    ...
    raxss.errors.ConfigError: [dataset] has no setting 'stride'. Known: ...
    """

    name: str = "study"
    datasets: tuple[StudyDataset, ...]
    systems: tuple[str, ...] = (ALL,)
    seeds: tuple[int, ...] = SEEDS
    n_threads: int = 1
    training: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    extensions: tuple[Path, ...] = ()
    folder: Path = Path()

    @classmethod
    def read(cls, path: Path | str) -> Study:
        """Read a study file."""
        path = Path(path)
        try:
            return cls.from_toml(path.read_text("utf-8"), folder=path.absolute().parent, name=path.stem)
        except RAxSSError as error:
            raise ConfigError(f"in the study {path.name!r}: {error}") from error
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
            raise ConfigError(
                f"cannot read the study {path.name!r}: {reason}. Give a TOML file, such as studies/smoke.toml."
            ) from error

    @classmethod
    def from_toml(cls, text: str, *, folder: Path = Path(), name: str = "study") -> Study:
        """Check a study's text; ``name`` is for one that does not tell its own."""
        tables = _tables(text)
        known = ("name", "systems", "seeds", "n_threads", "extensions")
        sections = ("dataset", "preparation", "windows", "split", "training", "system")
        _refuse_unknown("the study", tables, (*known, *sections))
        own = _section(tables, "system")
        study = cls(
            name=str(tables.get("name", name)),
            datasets=_datasets(tables),
            systems=_systems(tables.get("systems", ALL)),
            seeds=_seeds(tables.get("seeds", list(SEEDS))),
            n_threads=_whole("n_threads", tables.get("n_threads", 1), 1),
            training=_training(_section(tables, "training")),
            settings={one: dict(_section(own, one)) for one in own},
            extensions=_extensions(tables.get("extensions", []), folder),
            folder=folder,
        )
        for system in study.settings:
            if not FILE_NAME.fullmatch(system):
                raise ConfigError(
                    f"a system is called {system!r}; its results are named after it, so letters, digits, '.', '-' "
                    "and '_' are needed."
                )
        if not study.extensions:  # else they may add systems and backbones: asked once they are imported
            study.compared()
        return study

    def compared(self) -> dict[str, System]:
        """Every system that is compared, by name; call `load_extensions` before.

        What nobody knows is refused, also in settings of systems that are not compared here.
        """
        own: dict[str, System] = {}
        for name, given in self.settings.items():
            settings = dict(given)
            base = settings.pop("base", name)
            if not isinstance(base, str):
                raise ConfigError(f"system {name!r} has base = {base!r}; needed is the name of a system.")
            own[name] = find_system(base, own).with_settings(name, settings)
            backbone = settings.get("backbone")
            if backbone is not None and not (isinstance(backbone, str) and backbone in BACKBONES):
                raise ConfigError(
                    f"system {name!r} has the backbone {backbone!r}, which there is not"
                    f"{nearest(str(backbone), sorted(BACKBONES))} One of your own comes with a Python file in "
                    "extensions."
                )
        wanted = self.systems if self.systems != (ALL,) else tuple(dict.fromkeys([*SYSTEMS, *own]))
        return {name: find_system(name, own) for name in wanted}

    def narrowed(self, *, only: Iterable[str] = (), seeds: Iterable[int] = ()) -> tuple[list[str], list[int]]:
        """Some of the study's systems and seeds, in its order; all of them where none are named."""
        only, seeds, compared = list(only), list(seeds), list(self.compared())
        for name in only:
            if name not in compared:
                raise ConfigError(f"the study has no system {name!r}{nearest(name, compared)}")
        for seed in seeds:
            if seed not in self.seeds:
                raise ConfigError(f"the study has no seed {seed}{nearest(str(seed), map(str, self.seeds))}")
        return (
            [one for one in compared if not only or one in only],
            [one for one in self.seeds if not seeds or one in seeds],
        )


def load_extensions(files: Iterable[Path]) -> None:
    """Import Python files, once each: they register backbones and systems. This runs their code."""
    for file in files:
        name = f"raxss_extension_{file.stem}"
        digest = sha256_of(file)
        if getattr(sys.modules.get(name), "digest_of_extension", None) == digest:
            continue
        module = ModuleType(name)
        vars(module).update({"__file__": str(file), "digest_of_extension": digest})
        sys.modules[name] = module  # a dataclass looks its own module up
        try:
            # Compiled here: Python's import would take a .pyc of the same second and size for this file.
            exec(compile(file.read_bytes(), str(file), "exec"), vars(module))
        except Exception as error:
            del sys.modules[name]
            raise ConfigError(
                f"the extension {file.name!r} cannot be imported: {type(error).__name__}: {error}."
            ) from error


# Reading the tables -------------------------------------------------------------------------------------------


def _tables(text: str) -> dict[str, Any]:
    """What the text holds: sections, lists, texts and numbers, no deeper than Python can follow."""
    try:
        tables = tomllib.loads(text)
        json.dumps(tables, default=_refuse_value)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the study is not valid TOML: {error}.") from error
    except RecursionError as error:
        raise ConfigError(
            "the study has sections or lists inside each other, hundreds deep; no setting needs more than three."
        ) from error
    return tables


def _refuse_value(value: Any) -> None:
    """Of what TOML knows, JSON has no dates and times; nor has any setting."""
    raise ConfigError(f"the study holds the date or time {value}, which no setting is; put text in quotes.")


def _datasets(tables: Mapping[str, Any]) -> tuple[StudyDataset, ...]:
    """Every dataset, with the study's preparation, windows and split where it has none of its own."""
    given = tables.get("dataset", [])
    given = [given] if isinstance(given, Mapping) else given
    if not isinstance(given, list) or not given or not all(isinstance(one, Mapping) for one in given):
        raise ConfigError(
            "the study has no dataset; add a section [dataset] with data = a registered dataset (see raxss "
            "datasets), a folder that raxss prepare made, or a manifest."
        )
    datasets = tuple(_dataset(one, tables) for one in given)
    names = Counter(one.name for one in datasets)
    if repeated := [name for name, count in names.items() if count > 1]:
        raise ConfigError(
            f"{names[repeated[0]]} datasets are called {repeated[0]!r}; give each a name of its own: name = ..."
        )
    return datasets


def _dataset(given: Mapping[str, Any], tables: Mapping[str, Any]) -> StudyDataset:
    known = ("data", "name", "classes", "positive", "preparation", "windows", "split")
    _refuse_unknown("[dataset]", given, known)
    data = given.get("data")
    if not isinstance(data, str) or not data:
        raise ConfigError(f"[dataset] has data = {data!r}; needed is a registered dataset or a path.")
    merged = {
        stage: {**_section(tables, stage), **_section(given, stage)}
        for stage in ("preparation", "windows", "split")
    }
    own = _section(given, "split")
    if own.get("kind") == "leave-one-out" and "by" not in own:
        merged["split"].pop("by", None)  # it was meant for the study's other datasets
    _refuse_unknown("[windows]", merged["windows"], _fields(WindowConfig))
    _refuse_unknown("[split]", merged["split"], _fields(SplitPlan))
    classes = _names("dataset.classes", given.get("classes", []))
    positive = given.get("positive")
    if positive is not None and classes and positive not in classes:
        raise ConfigError(f"dataset.positive is {positive!r}{nearest(str(positive), classes)}")
    if "only" in merged["split"]:
        merged["split"]["only"] = _names("split.only", merged["split"]["only"])
    if "n_folds" in merged["split"]:
        _whole("split.n_folds", merged["split"]["n_folds"], 2)
    if not isinstance(merged["split"].get("fractions", []), list):
        raise ConfigError(f"split.fractions is {merged['split']['fractions']!r}; needed is a list of three.")
    return StudyDataset(
        name=str(given.get("name", Path(data).stem)),
        data=data,
        classes=classes,
        positive=None if positive is None else str(positive),
        preparation=_preparation(merged["preparation"]),
        windows=WindowConfig(**merged["windows"]),
        split=SplitPlan(**merged["split"]),
    )


def _preparation(given: Mapping[str, Any]) -> Preparation:
    _refuse_unknown("[preparation]", given, ("pool", "rate", "scaling"))
    pooling = None
    if (pool := given.get("pool")) is not None:
        found = re.fullmatch(r"(\d+)/(\d+)", str(pool))
        if found is None:
            raise ConfigError(
                f"preparation.pool is {pool!r}; a kernel and a stride are needed, such as '24/12'."
            )
        pooling = int(found[1]), int(found[2])
    rate = given.get("rate")
    if rate is not None and not _is_number(rate):
        raise ConfigError(f"preparation.rate is {rate!r}; needed is a number of samples per second.")
    return Preparation(pooling=pooling, rate=rate, scaling=given.get("scaling", "none"))


def _training(given: Mapping[str, Any]) -> dict[str, Any]:
    _refuse_unknown("[training]", given, BUDGET)
    dataclasses.replace(TrainingConfig(), **given)
    return dict(given)


def _systems(given: Any) -> tuple[str, ...]:
    if given == ALL:
        return (ALL,)
    names = _names("systems", given)
    if not names:
        raise ConfigError(f"systems is empty; name at least one, or 'all'. Known: {', '.join(SYSTEMS)}.")
    return tuple(dict.fromkeys(names))


def _seeds(given: Any) -> tuple[int, ...]:
    if not isinstance(given, list) or not given:
        raise ConfigError(f"seeds is {given!r}; needed is a list of whole numbers, such as {list(SEEDS)}.")
    seeds = tuple(_whole("a seed", one, 0) for one in given)
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds is {given}, which has one twice; each is one run.")
    return seeds


def _extensions(given: Any, folder: Path) -> tuple[Path, ...]:
    files = tuple(folder / one for one in _names("extensions", given))
    for file in files:
        if file.suffix != ".py" or not FILE_NAME.fullmatch(file.stem):
            raise ConfigError(f"the extension {file.name!r} is no Python file; needed is NAME.py.")
        if not file.is_file():
            raise ConfigError(
                f"the extension {file.name!r} is not there; its path counts from the study's folder."
            )
    stems = Counter(file.stem for file in files)
    if repeated := [stem for stem, count in stems.items() if count > 1]:
        raise ConfigError(
            f"two extensions are called {repeated[0]!r}; each is imported by its name. Rename one."
        )
    return files


def _section(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = tables.get(name, {})
    if not isinstance(found, Mapping):
        raise ConfigError(f"{name!r} must be a section with settings, [{name}], got {found!r}.")
    return found


def _refuse_unknown(where: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    names = list(known)
    for name in given:
        if name not in names:
            raise ConfigError(f"{where} has no setting {name!r}{nearest(name, names)}")


def _fields(kind: Any) -> list[str]:
    return [one.name for one in dataclasses.fields(kind)]


def _names(what: str, given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(one, str) and one for one in given):
        raise ConfigError(f"{what} is {given!r}; needed is a list of names.")
    return tuple(given)


def _whole(what: str, given: Any, least: int) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise ConfigError(f"{what} is {given!r}; needed is a whole number of at least {least}.")
    return given


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
