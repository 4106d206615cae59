"""Which systems are compared, and how is the estimator of each made?

    name -> System -> an estimator: fit(series, validation=series), predict_proba(series) -> (n_series, C)

Every row of the table is one entry here: what it is called, what kind of estimator it is, and how its settings
differ from the paper's. A study adds variants with `System.with_settings`: ``base = "sss"``,
``backbone = "timesnet"``. Next: runs.py fits each on each split; baselines/ holds those that are not RAxSS.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from raxss._core.renames import current_settings
from raxss.errors import ConfigError, did_you_mean
from raxss.estimator.config import Config, setting_homes
from raxss.method.windows import WindowConfig

Kind = Literal["windows", "fixed", "rocket", "sequence", "mil", "forest", "trivial"]

#: The lengths L among which fixed-length systems choose on validation, as SSS's baselines do.
LENGTHS = (1000, 3000, 5000, 10000)

#: What a study may set for all networks at once. Losses are not among them: they make a system what it is.
BUDGET = (
    "max_epochs",
    "patience",
    "batch_size",
    "lr",
    "start_lr",
    "final_lr",
    "warmup_steps",
    "schedule_steps",
    "weight_decay",
    "precision",
)
#: Those that count windows, or steps over windows; a system with one item a series has its own.
BUDGET_OF_WINDOWS = ("batch_size", "warmup_steps", "schedule_steps", "lr", "start_lr", "final_lr")
BY_THE_STUDY = ("random_state", "device", "callbacks", "verbose")

#: For networks that read a series as one item. The paper's 8192 windows a batch would be one step an epoch there.
ONE_ITEM_A_SERIES = {
    "batch_size": 16,
    "max_epochs": 50,
    "patience": 15,
    "lr": 1e-3,
    "start_lr": 0.0,
    "final_lr": 1e-6,
    "warmup_steps": 20,
    "schedule_steps": 0,
    "weight_decay": 1e-4,
}


@dataclass(frozen=True, kw_only=True)
class System:
    """One row of the table.

    Attributes
    ----------
    name, description
        For the study file and the report.
    kind
        ``windows``: `RAxSSClassifier`, trained on windows. ``fixed``: the same on the first L samples of each
        series, as one window (`pad_trunc`). ``rocket``, ``sequence``, ``mil``, ``forest``, ``trivial``: see
        baselines/.
    preset
        Where the settings start from, for kinds with a preset.
    settings
        Estimator parameters that differ from it.
    revision
        Raised where the same settings came to give other numbers, so that results from before are made anew.
    base
        Of a variant: the system that it is compared with.

    Examples
    --------
    >>> SYSTEMS["patchtst"].choices_for(4097)
    [{'window_length': 1000}, {'window_length': 3000}, {'window_length': 5000}]
    >>> mine = SYSTEMS["sss"].with_settings("sss-conv", {"backbone": "convnet"})
    >>> mine.base, mine.description
    ('sss', "sss with backbone = 'convnet'")
    >>> model = mine.make(WindowConfig(window_length=256, stride=32), seed=1, training={"max_epochs": 2})
    >>> model.backbone, model.weighting, model.max_epochs
    ('convnet', 'uniform', 2)
    """

    name: str
    description: str
    kind: Kind
    preset: str = "paper"
    settings: Mapping[str, Any] = field(default_factory=dict)
    revision: int = 0
    base: str | None = None

    @property
    def is_network(self) -> bool:
        """Whether it is trained by gradients, so that a training budget reaches it."""
        return self.kind in ("windows", "fixed", "sequence", "mil")

    @property
    def uses_device(self) -> bool:
        """Whether it computes on the study's device, so that its numbers are that device's up to rounding."""
        return self.is_network or (self.kind == "rocket" and self.settings.get("transform") != "minirocket")

    @property
    def scores_windows(self) -> bool:
        """Whether it gives each of many windows a probability, so that window accuracy means something."""
        return self.kind == "windows" or self.settings.get("pooling") == "conjunctive"

    def learns_from_all(self, parameters: Mapping[str, Any]) -> bool:
        """Whether nothing of it is chosen, stopped or fitted by the validation part: so it learns from that too.

        Parameters
        ----------
        parameters
            As resolved, from `parameters`.

        >>> windows = WindowConfig()
        >>> [name for name, one in SYSTEMS.items() if one.learns_from_all(one.parameters(windows))]
        ['features-forest', 'recommended']
        """
        if not self.is_network:
            return self.kind == "forest"
        config = _config_of(parameters)
        calibrated = config.calibration.calibration != "none"
        return not (config.training.patience != 0 or calibrated or config.fits_temperature_on_validation)

    def with_settings(self, name: str, settings: Mapping[str, Any]) -> System:
        """The same system under another name, or its own, with other estimator parameters.

        A table, such as ``backbone_options``, is merged with that of the base key by key; an empty one empties it,
        and another backbone begins without options.
        """
        settings = self._current(settings)
        known = [parameter for parameter in _parameters_of(self.kind) if parameter not in BY_THE_STUDY]
        if self.kind == "fixed":
            known.remove("stride")  # one window a series is what makes it that
        for setting in settings:
            if setting in BY_THE_STUDY:
                raise ConfigError(
                    f"system {name!r} sets {setting!r}, which the study decides for all systems. Leave it out."
                )
            if setting not in known:
                raise ConfigError(f"system {name!r} has no setting {setting!r}{did_you_mean(setting, known)}")
        merged = self._merged(settings)
        self._check_values(name, merged)
        if name == self.name:
            return replace(self, settings=merged)
        told = f"{self.name} with {_told(settings)}"
        return replace(self, name=name, description=told, settings=merged, base=self.name)

    def _current(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings for this system under today's names; which options a backbone has depends on the backbone."""
        own = (self._start() | dict(self.settings)).get("backbone")
        found = current_settings({**settings, "backbone": settings.get("backbone", own)})  # in their order
        return {name: found[name] for name in found if name != "backbone" or "backbone" in settings}

    def _merged(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """This system's settings and others that win over them, tables key by key."""
        before = self._start() | dict(self.settings)
        merged = {**self.settings, **settings}
        another = settings.get("backbone", before.get("backbone")) != before.get("backbone")
        if another and before.get("backbone_options"):
            before["backbone_options"] = {}  # they were those of another network
            merged["backbone_options"] = settings.get("backbone_options", {})
        for setting, value in settings.items():
            if isinstance(value, Mapping) and value and isinstance(before.get(setting), Mapping):
                merged[setting] = {**before[setting], **value}
        return merged

    def _check_values(self, name: str, settings: Mapping[str, Any]) -> None:
        """Before anything runs, as far as RAxSS has settings of these names; the rest is for the estimator."""
        try:
            config = _config_of(self._start() | {**self.settings, **settings})
            if self.kind in ("windows", "fixed"):
                config.check_fit(validation_given=True)
        except ConfigError as error:
            raise ConfigError(f"system {name!r}: {error}") from error

    def choices_for(self, longest: int) -> list[dict[str, Any]]:
        """Among what the first seed's validation part chooses; ``[{}]``: there is nothing to choose.

        Parameters
        ----------
        longest
            Samples of the longest series. Lengths go up to and including the first that is not below it.
        """
        if self.kind not in ("fixed", "rocket") or "window_length" in self.settings:
            return [{}]
        n_below = sum(length < longest for length in LENGTHS)
        return [{"window_length": length} for length in LENGTHS[: n_below + 1]]

    def parameters(
        self,
        windows: WindowConfig,
        *,
        training: Mapping[str, Any] | None = None,
        choice: Mapping[str, Any] | None = None,
        longest: int = 1,
        positive: Any = None,
    ) -> dict[str, Any]:
        """Every parameter of the estimator but seed and device: what a result file writes down.

        Parameters
        ----------
        windows
            L and stride of the study.
        training
            The study's budget for all networks (`BUDGET`). Batch sizes, rates and schedules there are meant for
            windows, so they do not reach systems that read a series as one item.
        choice
            One of `choices_for`.
        longest
            Samples of the longest series.
        positive
            The class that F1 and AUC are about; `all-positive` names it.
        """
        settings = self._start() | self._budget(training or {}) | dict(self.settings)
        if self.kind in ("windows", "mil"):
            settings = {"window_length": windows.window_length, "stride": windows.stride} | settings
        if self.kind in ("fixed", "rocket"):
            settings = self.choices_for(longest)[-1] | settings | dict(choice or {})
        if self.kind == "fixed":
            settings["stride"] = max(longest, settings["window_length"])  # so that each series is one window
        if self.kind == "trivial" and positive is not None:
            settings.setdefault("positive", positive)
        defaults = _parameters_of(self.kind)
        unknown = [name for name in self.settings if name not in defaults]
        if unknown:  # of a system made by hand; `with_settings` asks before
            raise ConfigError(
                f"system {self.name!r} has no setting {unknown[0]!r}{did_you_mean(unknown[0], defaults)}"
            )
        return {
            name: settings.get(name, value) for name, value in defaults.items() if name not in BY_THE_STUDY
        }

    def make(
        self,
        windows: WindowConfig,
        *,
        seed: int,
        device: str = "auto",
        training: Mapping[str, Any] | None = None,
        choice: Mapping[str, Any] | None = None,
        longest: int = 1,
        positive: Any = None,
    ) -> Any:
        """An unfitted estimator; see `parameters`."""
        parameters = self.parameters(
            windows, training=training, choice=choice, longest=longest, positive=positive
        )
        return _estimator(self.kind)(**parameters, random_state=seed, device=device)

    def _start(self) -> dict[str, Any]:
        """What the preset says, or what suits one item a series, before this system's own settings."""
        if not self.is_network:
            return {}
        preset = Config.preset(self.preset).parameters()
        for name in ("window_length", "stride"):  # they belong to the data
            preset.pop(name)
        return preset if self.kind in ("windows", "mil") else preset | ONE_ITEM_A_SERIES

    def _budget(self, training: Mapping[str, Any]) -> dict[str, Any]:
        for name in training:
            if name not in BUDGET:
                raise ConfigError(
                    f"the training budget of all systems has no setting {name!r}{did_you_mean(name, BUDGET)} What "
                    "belongs to one system goes into its own section, [system.NAME]."
                )
        if not self.is_network:
            return {}
        in_windows = self.kind in ("windows", "mil")
        return {
            name: value for name, value in training.items() if in_windows or name not in BUDGET_OF_WINDOWS
        }


def _config_of(parameters: Mapping[str, Any]) -> Config:
    """Those of an estimator's parameters that are settings of RAxSS."""
    homes = setting_homes()
    return Config.from_parameters(
        {parameter: value for parameter, value in parameters.items() if parameter in homes}
    )


def find_system(name: str, extra: Mapping[str, System] | None = None) -> System:
    """The system of that name, among ours and ``extra``.

    >>> find_system("patchts")
    Traceback (most recent call last):
    ...
    raxss.errors.ConfigError: there is no system 'patchts'; did you mean 'patchtst'? Known: ...
    """
    known = {**SYSTEMS, **(extra or {})}
    if name not in known:
        raise ConfigError(f"there is no system {name!r}{did_you_mean(name, known)}")
    return known[name]


def _estimator(kind: Kind) -> Any:
    """The class behind a kind, imported where it is needed: to list what there is should not load all of it."""
    match kind:
        case "windows" | "fixed":
            from raxss.estimator.classifier import RAxSSClassifier

            return RAxSSClassifier
        case "sequence":
            from raxss.benchmark.baselines.sequences import SequenceClassifier

            return SequenceClassifier
        case "mil":
            from raxss.benchmark.baselines.mil import MILClassifier

            return MILClassifier
        case "rocket":
            from raxss.benchmark.baselines.rocket import RocketClassifier

            return RocketClassifier
        case "forest":
            from raxss.benchmark.baselines.forest import ForestClassifier

            return ForestClassifier
        case "trivial":
            from raxss.benchmark.baselines.trivial import AllPositiveClassifier

            return AllPositiveClassifier


def _parameters_of(kind: Kind) -> dict[str, Any]:
    """Parameter -> default of the estimator behind a kind."""
    parameters = inspect.signature(_estimator(kind)).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters}


def _told(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in settings.items()) or "its own settings"


_UNIFORM_WINDOW_LOSS = {"weighting": "uniform", "window_loss_weight": 1.0, "series_loss_weight": 0.0}

_ALL = (
    System(
        name="raxss-cosine",
        description="RAxSS as in the paper, similarity: cosine",
        kind="windows",
        settings={"measure": "cosine"},
    ),
    System(
        name="raxss-pearson",
        description="RAxSS as in the paper, similarity: Pearson",
        kind="windows",
        settings={"measure": "pearson"},
    ),
    System(
        name="sss", description="Stochastic Sparse Sampling: the plain mean", kind="windows", preset="sss"
    ),
    System(
        name="sss-calibrated",
        description="SSS, window probabilities calibrated (isotonic)",
        kind="windows",
        preset="sss",
        settings={"calibration": "isotonic"},
    ),
    System(
        name="patchtst",
        description="PatchTST on the first L samples",
        kind="fixed",
        settings={"backbone": "patchtst", **_UNIFORM_WINDOW_LOSS},
    ),
    System(
        name="timesnet",
        description="TimesNet on the first L samples",
        kind="fixed",
        settings={"backbone": "timesnet", **_UNIFORM_WINDOW_LOSS},
    ),
    System(
        name="moderntcn",
        description="ModernTCN on the first L samples",
        kind="fixed",
        settings={"backbone": "moderntcn", **_UNIFORM_WINDOW_LOSS},
    ),
    System(
        name="dlinear",
        description="DLinear on the first L samples",
        kind="fixed",
        settings={"backbone": "dlinear", **_UNIFORM_WINDOW_LOSS},
    ),
    System(
        name="rocket",
        description="ROCKET, 10,000 kernels, and a linear classifier, on the first L samples",
        kind="rocket",
        settings={"transform": "rocket"},
        revision=1,  # 0: kernels drawn and applied by aeon
    ),
    System(
        name="mamba",
        description="Mamba over patches of the whole series",
        kind="sequence",
        settings={"backbone": "mamba"},
    ),
    System(
        name="gru",
        description="GRU over patches of the whole series",
        kind="sequence",
        settings={"backbone": "gru"},
    ),
    System(
        name="lstm",
        description="LSTM over patches of the whole series",
        kind="sequence",
        settings={"backbone": "lstm"},
    ),
    System(
        name="patchtst-window",
        description="PatchTST trained on single windows; the plain mean of their probabilities",
        kind="windows",
        settings=_UNIFORM_WINDOW_LOSS,
    ),
    System(
        name="attention-mil",
        description="windows pooled by attention before the classifier (MILLET)",
        kind="mil",
        settings={"pooling": "attention"},
    ),
    System(
        name="conjunctive-mil",
        description="window logits weighted by attention (MILLET, conjunctive)",
        kind="mil",
        settings={"pooling": "conjunctive"},
    ),
    System(
        name="minirocket",
        description="MiniROCKET and a linear classifier, on the first L samples",
        kind="rocket",
        settings={"transform": "minirocket"},
    ),
    System(
        name="features-forest",
        description="hand-made features without scale, and a random forest",
        kind="forest",
    ),
    System(name="all-positive", description="says the positive class of every series", kind="trivial"),
    System(
        name="recommended",
        description="what our measurements favour",
        kind="windows",
        preset="recommended",
    ),
)

SYSTEMS: dict[str, System] = {item.name: item for item in _ALL}
"""Every system of the table, by name."""
