"""Systems of a comparison: estimators by name, with their settings.

    name -> System -> an estimator: fit(series, validation=series), predict_proba(series) -> (n_series, C)

A study adds variants with `System.with_settings`: ``base = "sss"``, ``backbone = "timesnet"``. baselines/ has the
estimators that are not RAxSS.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from raxss._core.renames import current_settings
from raxss.benchmark.reading import refuse_unknown
from raxss.errors import ConfigError, did_you_mean
from raxss.estimator.config import Config, setting_homes
from raxss.method.windows import WindowConfig

Kind = Literal[
    "windows", "fixed", "default", "search", "rocket", "sequence", "mil", "forest", "trivial",
    "padded", "neighbour", "statistics",
]  # fmt: skip
#: Kind -> module and class of its estimator, imported when needed.
ESTIMATORS: dict[Kind, tuple[str, str]] = {
    "windows": ("raxss.estimator.classifier", "RAxSSClassifier"),
    "fixed": ("raxss.estimator.classifier", "RAxSSClassifier"),
    "default": ("raxss.estimator.classifier", "RAxSSClassifier"),
    "search": ("raxss.estimator.auto", "AutoRAxSS"),
    "sequence": ("raxss.benchmark.baselines.sequences", "SequenceClassifier"),
    "mil": ("raxss.benchmark.baselines.mil", "MILClassifier"),
    "rocket": ("raxss.benchmark.baselines.rocket", "RocketClassifier"),
    "forest": ("raxss.benchmark.baselines.forest", "ForestClassifier"),
    "trivial": ("raxss.benchmark.baselines.trivial", "AllPositiveClassifier"),
    "padded": ("raxss.benchmark.baselines.padded", "PaddedClassifier"),
    "neighbour": ("raxss.benchmark.baselines.neighbour", "NeighbourClassifier"),
    "statistics": ("raxss.benchmark.baselines.statistics_forest", "StatisticsForestClassifier"),
}
#: Kinds that get nothing from a study but the series: no windows, no budget, no preparation, no validation set.
ON_THEIR_OWN: tuple[Kind, ...] = ("default", "search")
#: Kinds that choose, stop and fit nothing on validation series, so that they learn from them too.
WITHOUT_VALIDATION: tuple[Kind, ...] = (*ON_THEIR_OWN, "forest", "padded", "neighbour", "statistics")

#: The lengths L among which fixed-length systems choose on validation, as SSS's baselines do.
LENGTHS = (1000, 3000, 5000, 10000)

#: Those settings of all networks that count windows, or steps over windows; a system with one item a series has
#: its own values.
BUDGET_OF_WINDOWS = ("batch_size", "lr", "start_lr", "final_lr", "warmup_steps", "schedule_steps")
#: Settings of a study for all networks. Losses are not among them: they define a system.
BUDGET = ("max_epochs", "patience", *BUDGET_OF_WINDOWS, "weight_decay", "precision")
BY_THE_STUDY = ("random_state", "device", "callbacks", "verbose", "folder")
#: Parameters of the search that no study sets: results would depend on the machine, or on Python objects.
NOT_OF_A_STUDY = {"budget": "n_trials, which gives the same result everywhere", "candidates": "n_trials"}

#: For networks with one item a series; the paper's batches of 8192 windows would be one step an epoch there.
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
    """One system of a comparison.

    The kind ``windows`` is `RAxSSClassifier`, trained on windows; ``fixed`` is the same on the first L samples of
    each series, as one window (`pad_trunc`). ``default`` is `RAxSSClassifier()` and ``search`` `AutoRAxSS`, both on
    their own: nothing that a study says of windows, training or preparation reaches them. The others are those of
    baselines/.

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
    settings: Mapping[str, Any] = field(default_factory=dict)  # parameters that differ from the preset
    revision: int = 0  # raised when the same settings give other numbers, so that results are computed again
    base: str | None = None  # the system that a variant is compared with

    @property
    def is_network(self) -> bool:
        """Whether it is trained by gradients, so that a training budget applies."""
        return self.kind in ("windows", "fixed", "sequence", "mil")

    @property
    def uses_windows(self) -> bool:
        """Whether the windows of the study are its windows."""
        return self.kind in ("windows", "mil")

    @property
    def is_on_its_own(self) -> bool:
        """Whether it gets the series as they were recorded, and none of the study's settings."""
        return self.kind in ON_THEIR_OWN

    @property
    def keeps_parts(self) -> bool:
        """Whether its estimator has a ``folder``, from which a fit that was killed goes on."""
        return self.kind == "search"

    @property
    def uses_device(self) -> bool:
        """Whether it computes on the study's device."""
        if self.kind == "rocket":
            return self.settings.get("transform") != "minirocket"
        return self.is_network or self.is_on_its_own

    @property
    def scores_windows(self) -> bool:
        """Whether it has a probability for each window, and so a window accuracy."""
        return self.kind in ("windows", "default") or self.settings.get("pooling") == "conjunctive"

    def learns_from_all(self, parameters: Mapping[str, Any]) -> bool:
        """Whether nothing is chosen, stopped or fitted on the validation series, so it learns from them too."""
        if not self.is_network:
            return self.kind in WITHOUT_VALIDATION
        config = _config_of(parameters)
        fitted = config.calibration.calibration != "none" or config.calibration.decision_threshold != "argmax"
        return not (config.training.patience != 0 or fitted or config.fits_temperature_on_validation)

    def with_settings(self, name: str, settings: Mapping[str, Any]) -> System:
        """The system under another name, or its own, with other estimator parameters.

        A table, such as ``backbone_options``, is merged with that of the base key by key; an empty one empties it,
        and another backbone starts without options.
        """
        settings = self._current(settings)
        if self.kind == "default" and name == self.name and settings:
            raise ConfigError(
                f"system {name!r} is {self.description}, and the study sets {', '.join(settings)} of it. Leave "
                f'that out, or make a variant: [system.NAME] with base = "{name}".'
            )
        known = [parameter for parameter in _parameters_of(self.kind) if parameter not in BY_THE_STUDY]
        if self.kind == "fixed":
            known.remove("stride")  # one window a series is what makes it that
        for setting in settings if self.kind == "search" else ():
            if setting in NOT_OF_A_STUDY:
                raise ConfigError(f"system {name!r} sets {setting!r}; set {NOT_OF_A_STUDY[setting]}.")
        for setting in set(settings) & set(BY_THE_STUDY):
            raise ConfigError(
                f"system {name!r} sets {setting!r}, which the study decides for all systems. Leave it out."
            )
        refuse_unknown(f"system {name!r}", settings, known)
        merged = self._merged(settings)
        try:  # the settings that RAxSS has; the estimator checks the others
            config = _config_of(self._start() | merged)
            if self.kind in ("windows", "fixed", "default"):
                config.check_fit(validation_given=self.kind != "default")
        except ConfigError as error:
            raise ConfigError(f"system {name!r}: {error}") from error
        if name == self.name:
            return replace(self, settings=merged)
        listed = ", ".join(f"{name} = {value!r}" for name, value in settings.items()) or "its own settings"
        return replace(
            self, name=name, description=f"{self.name} with {listed}", settings=merged, base=self.name
        )

    def _current(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings under current names; the names of backbone options depend on the backbone."""
        own = (self._start() | dict(self.settings)).get("backbone")
        found = current_settings({**settings, "backbone": settings.get("backbone", own)})  # in their order
        return {name: found[name] for name in found if name != "backbone" or "backbone" in settings}

    def _merged(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """This system's settings updated with others, tables key by key."""
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

    def choices_for(self, longest: int) -> list[dict[str, Any]]:
        """Settings to choose from on the validation series of the first seed; ``[{}]``: no choice.

        Lengths go up to and including the first that is not below ``longest``, the samples of the longest series.

        >>> SYSTEMS["patchtst"].choices_for(4097)
        [{'window_length': 1000}, {'window_length': 3000}, {'window_length': 5000}]
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
        """Every parameter of the estimator but seed and device, as recorded with a result.

        ``training`` is the study's budget for all networks (`BUDGET`); its batch sizes, rates and schedules are
        meant for windows, so they do not apply to systems with one item a series. ``choice`` is one of
        `choices_for`, ``longest`` the samples of the longest series, ``positive`` for `all-positive`. A system on
        its own has the same parameters whatever these are.
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
        refuse_unknown(f"system {self.name!r}", self.settings, defaults)  # `with_settings` checks earlier
        left_out = (*BY_THE_STUDY, *(NOT_OF_A_STUDY if self.kind == "search" else ()))
        return {name: settings.get(name, value) for name, value in defaults.items() if name not in left_out}

    def make(self, windows: WindowConfig, *, seed: int, device: str = "auto", **options: Any) -> Any:
        """An unfitted estimator; options are those of `parameters`."""
        return self.estimator(self.parameters(windows, **options), seed=seed, device=device)

    def estimator(self, parameters: Mapping[str, Any], *, seed: int, device: str) -> Any:
        """An unfitted estimator with these parameters."""
        return _estimator(self.kind)(**parameters, random_state=seed, device=device)

    def _start(self) -> dict[str, Any]:
        """Settings of the preset, or for one item a series, before this system's own."""
        if not self.is_network:
            return {}
        preset = Config.preset(self.preset).parameters()
        for name in ("window_length", "stride"):  # they belong to the data
            preset.pop(name)
        return preset if self.kind in ("windows", "mil") else preset | ONE_ITEM_A_SERIES

    def _budget(self, training: Mapping[str, Any]) -> dict[str, Any]:
        """The part of the study's budget that applies to this system."""
        if not self.is_network:
            return {}
        other = () if self.kind in ("windows", "mil") else BUDGET_OF_WINDOWS
        return {name: value for name, value in training.items() if name not in other}


def _config_of(parameters: Mapping[str, Any]) -> Config:
    """The parameters of an estimator that are settings of RAxSS."""
    homes = setting_homes()
    return Config.from_parameters({name: value for name, value in parameters.items() if name in homes})


def find_system(name: str, extra: Mapping[str, System] | None = None) -> System:
    """The system of that name, among ours and ``extra``.

    >>> find_system("patchts")
    Traceback (most recent call last):
    ...
    raxss.errors.ConfigError: there is no system 'patchts'; did you mean 'patchtst'? Known: ...
    """
    known = {**SYSTEMS, **PEERS, **(extra or {})}
    if name not in known:
        raise ConfigError(f"there is no system {name!r}{did_you_mean(name, known)}")
    return known[name]


def _estimator(kind: Kind) -> Any:
    module, name = ESTIMATORS[kind]
    return getattr(importlib.import_module(module), name)


def _parameters_of(kind: Kind) -> dict[str, Any]:
    """Parameter -> default of the estimator of a kind."""
    return {name: item.default for name, item in inspect.signature(_estimator(kind)).parameters.items()}


def _system(name: str, kind: Kind, description: str, preset: str = "paper", **settings: Any) -> System:
    return System(name=name, kind=kind, description=description, preset=preset, settings=settings)


_WINDOW_LOSS: dict[str, Any] = {"weighting": "uniform", "window_loss_weight": 1.0, "series_loss_weight": 0.0}

_ALL = (
    _system("raxss-cosine", "windows", "RAxSS as in the paper, similarity: cosine", measure="cosine"),
    _system("raxss-pearson", "windows", "RAxSS as in the paper, similarity: Pearson", measure="pearson"),
    _system("sss", "windows", "Stochastic Sparse Sampling: the plain mean", "sss"),
    _system(
        "sss-calibrated",
        "windows",
        "SSS, window probabilities calibrated (isotonic)",
        "sss",
        calibration="isotonic",
    ),
    _system("patchtst", "fixed", "PatchTST on the first L samples", backbone="patchtst", **_WINDOW_LOSS),
    _system("timesnet", "fixed", "TimesNet on the first L samples", backbone="timesnet", **_WINDOW_LOSS),
    _system("moderntcn", "fixed", "ModernTCN on the first L samples", backbone="moderntcn", **_WINDOW_LOSS),
    _system("dlinear", "fixed", "DLinear on the first L samples", backbone="dlinear", **_WINDOW_LOSS),
    System(
        name="rocket",
        description="ROCKET, 10,000 kernels, and a linear classifier, on the first L samples",
        kind="rocket",
        settings={"transform": "rocket"},
        revision=1,  # 0: kernels drawn and applied by aeon
    ),
    _system("mamba", "sequence", "Mamba over patches of the whole series", backbone="mamba"),
    _system("gru", "sequence", "GRU over patches of the whole series", backbone="gru"),
    _system("lstm", "sequence", "LSTM over patches of the whole series", backbone="lstm"),
    _system(
        "patchtst-window",
        "windows",
        "PatchTST trained on single windows; the plain mean of their probabilities",
        **_WINDOW_LOSS,
    ),
    _system(
        "attention-mil",
        "mil",
        "windows pooled by attention before the classifier (MILLET)",
        pooling="attention",
    ),
    _system(
        "conjunctive-mil",
        "mil",
        "window logits weighted by attention (MILLET, conjunctive)",
        pooling="conjunctive",
    ),
    _system(
        "minirocket",
        "rocket",
        "MiniROCKET and a linear classifier, on the first L samples",
        transform="minirocket",
    ),
    _system("features-forest", "forest", "hand-made features without scale, and a random forest"),
    _system("all-positive", "trivial", "says the positive class of every series"),
    _system("tuned", "windows", "what did best in our measurements", "tuned"),
    _system("recommended", "default", "RAxSSClassifier(), without any settings"),
    _system("auto", "search", "AutoRAxSS: settings found on the training series", n_trials=8),
)
#: On whole series padded with zeros to the longest of training, or on their statistics.
_PEERS = (
    _system(
        "minirocket-padded",
        "padded",
        "MiniROCKET and ridge regression (aeon), padded",
        transform="minirocket",
    ),
    _system(
        "multirocket-hydra",
        "padded",
        "MultiROCKET, Hydra and ridge regression (aeon), padded",
        transform="multirocket-hydra",
    ),
    _system("dtw-1nn", "neighbour", "nearest neighbour by DTW in a band of 10 % (aeon), padded"),
    _system("statistics-forest", "statistics", "statistics and band powers of series, and a random forest"),
)

SYSTEMS: dict[str, System] = {system.name: system for system in _ALL}
"""Every system of ``systems = "all"``, by name."""

PEERS: dict[str, System] = {system.name: system for system in _PEERS}
"""Further systems, for the studies that name them."""
