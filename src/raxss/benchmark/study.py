"""Study files: STUDY.toml -> Study: datasets, preparation, windows, split, systems, seeds, budget.

A study is checked as a whole before anything runs; unknown names are refused. Paths are relative to the folder of
the file. Its extensions are Python files, which are run: use studies only from people whose code you would run.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from raxss._core.atomic import sha256_of
from raxss._core.bounded import read_toml_text, toml_of
from raxss._core.renames import SETTING, STUDY, current_names
from raxss.benchmark.dataset import StudyDataset, datasets_in
from raxss.benchmark.reading import names_in, refuse_repeated, refuse_unknown, section, whole
from raxss.benchmark.systems import BUDGET, PEERS, SYSTEMS, System, find_system
from raxss.errors import ConfigError, RAxSSError, did_you_mean
from raxss.method.backbones.protocol import known_backbones
from raxss.method.training.settings import TrainingConfig

SEEDS = (69421, 69422, 69423, 69424, 69425)  # the paper's
BUILT_IN = frozenset([*SYSTEMS, *PEERS])
ALL = "all"
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}")  # files are named after systems and extensions


@dataclass(frozen=True, kw_only=True)
class Study:
    """A comparison: which systems, on which data, how often, with which budget.

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
    """

    name: str = "study"
    datasets: tuple[StudyDataset, ...]
    systems: tuple[str, ...] = (ALL,)  # names
    seeds: tuple[int, ...] = SEEDS
    n_threads: int = 1  # of each fit; it changes the last bits of the numbers
    training: Mapping[str, Any] = field(default_factory=dict)  # of `TrainingConfig`, for all networks
    settings: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # by system; a new one has a ``base``
    analyses: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # settings by analysis
    extensions: tuple[Path, ...] = ()  # Python files to import before a fit
    folder: Path = Path()  # paths are relative to it
    text: str = field(default="", repr=False, compare=False)  # content of the file

    @classmethod
    def read(cls, path: Path | str) -> Study:
        """Read a study file."""
        path = Path(path)
        try:
            text = read_toml_text(path, "the file")
            return cls.from_toml(text, folder=path.absolute().parent, name=path.stem)
        except RAxSSError as error:
            raise ConfigError(f"in the study {path.name!r}: {error}") from error
        except OSError as error:
            raise ConfigError(
                f"cannot read the study {path.name!r}: {error.strerror}. Give a TOML file, such as "
                "studies/smoke.toml."
            ) from error

    @classmethod
    def from_toml(cls, text: str, *, folder: Path = Path(), name: str = "study") -> Study:
        """Read and check the text of a study; ``name`` is the default name."""
        tables = toml_of(text, "the study")
        json.dumps(tables, default=_refuse_value)
        tables = current_names(tables, STUDY)
        known = "name systems seeds n_threads extensions dataset preparation windows split training system analysis"
        refuse_unknown("the study", tables, known.split())
        own, analyses = section(tables, "system"), section(tables, "analysis")
        study = cls(
            name=str(tables.get("name", name)),
            datasets=datasets_in(tables),
            systems=_systems(tables.get("systems", ALL)),
            seeds=_seeds(tables.get("seeds", list(SEEDS))),
            n_threads=whole("n_threads", tables.get("n_threads", 1), 1),
            training=_training(section(tables, "training")),
            settings={item: dict(section(own, item)) for item in own},
            analyses={item: dict(section(analyses, item)) for item in analyses},
            extensions=_extensions(tables.get("extensions", []), folder),
            folder=folder,
            text=text,
        )
        for system in study.settings:
            if not FILE_NAME.fullmatch(system):
                raise ConfigError(
                    f"a system is called {system!r}; its results are named after it, so letters, digits, '.', '-' "
                    "and '_' are needed."
                )
        if not study.extensions:  # else checked once they are imported: they may add systems and backbones
            study.compared()
        return study

    def compared(self) -> dict[str, System]:
        """Name -> every system that is compared; call `load_extensions` before."""
        own: dict[str, System] = {}
        for name in self.settings:
            self._add_system(name, own)
        wanted = self.systems if self.systems != (ALL,) else tuple(dict.fromkeys([*SYSTEMS, *own]))
        return {name: find_system(name, own) for name in wanted}

    def _add_system(self, name: str, own: dict[str, System], above: tuple[str, ...] = ()) -> None:
        """Add a system with its own settings, after its base."""
        if name in own:
            return
        if name in above:
            raise ConfigError(
                f"systems build on each other in a circle: {' on '.join([*above, name])}. Give one of them another "
                "base."
            )
        settings = dict(self.settings[name])
        base = settings.pop("base", name)
        if not isinstance(base, str):
            raise ConfigError(f"system {name!r} has base = {base!r}; needed is the name of a system.")
        if base != name and base in self.settings:
            self._add_system(base, own, (*above, name))
        own[name] = find_system(base, own).with_settings(name, settings)
        backbone = own[name].settings["backbone"] if "backbone" in settings else None
        if backbone is not None and not (isinstance(backbone, str) and backbone in known_backbones()):
            raise ConfigError(
                f"system {name!r} has the backbone {backbone!r}, which there is not"
                f"{did_you_mean(str(backbone), sorted(known_backbones()))} One of your own comes with a Python "
                "file in extensions."
            )

    def narrowed(self, *, only: Iterable[str] = (), seeds: Iterable[int] = ()) -> tuple[list[str], list[int]]:
        """Selected systems and seeds in the order of the study; all by default."""
        only, seeds, compared = list(only), list(seeds), list(self.compared())
        for name in only:
            if name not in compared:
                raise ConfigError(f"the study has no system {name!r}{did_you_mean(name, compared)}")
        for seed in seeds:
            if seed not in self.seeds:
                raise ConfigError(
                    f"the study has no seed {seed}{did_you_mean(str(seed), map(str, self.seeds))}"
                )
        return (
            [entry for entry in compared if not only or entry in only],
            [item for item in self.seeds if not seeds or item in seeds],
        )


def load_extensions(files: Iterable[Path]) -> None:
    """Import Python files, once each, which runs their code: they register backbones, systems and analyses."""
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


def _refuse_value(value: Any) -> None:
    raise ConfigError(f"the study holds the date or time {value}, which no setting is; put text in quotes.")


def _training(given: Mapping[str, Any]) -> dict[str, Any]:
    given = current_names(given, SETTING)
    refuse_unknown("[training]", given, BUDGET)
    dataclasses.replace(TrainingConfig(), **given)
    return dict(given)


def _systems(given: Any) -> tuple[str, ...]:
    if given == ALL:
        return (ALL,)
    names = names_in("systems", given)
    if not names:
        raise ConfigError(
            f"systems is empty; name at least one, or 'all'. Known: {', '.join([*SYSTEMS, *PEERS])}."
        )
    return tuple(dict.fromkeys(names))


def _seeds(given: Any) -> tuple[int, ...]:
    if not isinstance(given, list) or not given:
        raise ConfigError(f"seeds is {given!r}; needed is a list of whole numbers, such as {list(SEEDS)}.")
    seeds = tuple(whole("a seed", item, 0) for item in given)
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds is {given}, which has one twice; each is one run.")
    return seeds


def _extensions(given: Any, folder: Path) -> tuple[Path, ...]:
    files = tuple(folder / item for item in names_in("extensions", given))
    for file in files:
        if file.suffix != ".py" or not FILE_NAME.fullmatch(file.stem):
            raise ConfigError(f"the extension {file.name!r} is no Python file; needed is NAME.py.")
        if not file.is_file():
            raise ConfigError(
                f"the extension {file.name!r} is not there; its path counts from the study's folder."
            )
    refuse_repeated(
        (file.stem for file in files), "extensions are called", "each is imported by its name. Rename one."
    )
    return files
