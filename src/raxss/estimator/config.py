"""Which settings make up a run, where do they come from, and how are they written down?

    preset (paper, sss, recommended) or TOML -> Config -> TOML with every setting that was used

One frozen dataclass a stage, composed in `Config`. Field names are unique over the stages, so that the
estimator can have them as plain parameters; augmentation is one parameter there, a mapping of its settings.
A preset is about the method; window length and stride belong to the data, so presets leave them at their
defaults.
Next: estimator.py takes these as parameters; training.py reads the stages.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np

from raxss._core.atomic import write_text
from raxss._core.bounded import read_toml_text, toml_of
from raxss._core.renames import SETTING, current_backbone, current_names, current_tables, former_tables
from raxss.errors import ConfigError, nearest, one_of
from raxss.method.aggregation import GATED, WEIGHTINGS, Weighting
from raxss.method.augmentation import AugmentationConfig
from raxss.uncertainty.calibration import LEVELS, METHODS, Level, Method

MOST_WINDOWS = 8  # a larger float for exclusion or spread is surely meant in samples
MOST_NEIGHBORS = 10_000
BANKS = ("series", "batch", "local", "sampled")
REFRESHES = ("never", "epoch", "batch")
#: Settings that came later, with what stands for the time before them: so they do not change a hash.
ADDED_LATER: Mapping[str, Any] = {
    "refresh": "never",
    "projection": 0,
    "smoothing": 0.0,
    "augmentation": {},
    "calibration_level": "window",
    "conformal_alpha": 0.1,
    "update_batch_norm": False,
}
FEWEST_STEPS = 600  # of an optimiser, for "auto"; with fewer, small sets were not even fitted
STEPS_AN_EPOCH = 8  # at least, for "auto", while batches stay within these sizes:
BATCH_SIZES = (8, 64)
EPOCHS = (20, 200)  # least and most, for "auto"
LOOKS = 20  # at the validation part in all, for "auto"
LEARNED_LOSS = 0.005  # for "auto": nothing is left to learn from windows that are all but certain
FEWEST_TO_CHOOSE = 50  # validation series, for "auto": the accuracy of fewer is off by .07 and more by chance
PRESETS = ("paper", "sss", "recommended")
SIGNALS = ("eeg", "ecg", "motion")  # for which `recommended` has settings of its own


@dataclass(frozen=True, kw_only=True)
class PreparationConfig:
    """What happens to the samples before windows are cut."""

    scaling: Literal["train", "series", "none"] = "train"  # one mean and deviation a variate; z-score; as is

    def __post_init__(self) -> None:
        one_of("preparation.scaling", self.scaling, ("train", "series", "none"))


@dataclass(frozen=True, kw_only=True)
class WindowConfig:
    """How a series is cut into windows."""

    window_length: int = 1024  # L
    stride: int = 128  # the paper's 5 goes with its pooled iEEG; belongs to the data, not to the method

    def __post_init__(self) -> None:
        _at_least("windows.window_length", self.window_length, 1)
        _at_least("windows.stride", self.stride, 1)


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """Which network scores a window (f_theta)."""

    backbone: Any = "convnet-fine"  # a name, or a callable (n_variates, window_length, n_outputs) -> module
    backbone_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.backbone_options, Mapping):
            raise ConfigError(
                f"backbone.backbone_options must be a mapping of names to values, got {self.backbone_options!r}."
            )
        _toml_value(self.backbone_options)  # better now than when the fitted model is saved
        network, options = current_backbone(self.backbone, self.backbone_options)
        object.__setattr__(self, "backbone", network)
        object.__setattr__(self, "backbone_options", options)


@dataclass(frozen=True, kw_only=True)
class RetrievalConfig:
    """Which windows count as neighbours, and how alike they are (Eq. 1)."""

    space: Literal["signal", "features"] = "signal"  # "signal" is the paper's
    measure: Literal["pearson", "cosine"] = "pearson"  # phi
    n_neighbors: int = 10  # m
    exclusion: int | float = 0.5  # samples if an integer, a share of L if a float; the paper has 0
    spread: int | float = 0  # likewise, between listed neighbours
    bank: Literal["series", "batch", "local", "sampled"] = (
        "series"  # who may be a neighbour; see the estimator
    )
    bank_size: int = 65_536  # windows in a local or sampled bank
    refresh: Literal["never", "epoch", "batch"] = "never"  # of feature-space support, in training
    projection: int = 0  # dimensions of a learned linear map in which features are compared; 0: as they are

    def __post_init__(self) -> None:
        one_of("retrieval.space", self.space, ("signal", "features"))
        one_of("retrieval.measure", self.measure, ("pearson", "cosine"))
        one_of("retrieval.bank", self.bank, BANKS)
        one_of("retrieval.refresh", self.refresh, REFRESHES)
        _at_least("retrieval.n_neighbors", self.n_neighbors, 1)
        if self.n_neighbors > MOST_NEIGHBORS:
            raise ConfigError(
                f"retrieval.n_neighbors is {self.n_neighbors}; at most {MOST_NEIGHBORS} are allowed, because every "
                "window keeps its list. The paper has 10."
            )
        _at_least("retrieval.bank_size", self.bank_size, 1)
        _at_least("retrieval.projection", self.projection, 0)
        _at_least("retrieval.exclusion", self.exclusion, 0, whole=False)
        _at_least("retrieval.spread", self.spread, 0, whole=False)
        for name in ("exclusion", "spread"):
            value = getattr(self, name)
            if isinstance(value, float) and value > MOST_WINDOWS:
                raise ConfigError(
                    f"retrieval.{name} = {value} would be {value:g} window lengths, because it is a float; at most "
                    f"{MOST_WINDOWS} are allowed. For a number of samples, write it as an integer: {value:.0f}."
                )

    def samples_of(self, name: Literal["exclusion", "spread"], window_length: int) -> int:
        """`exclusion` or `spread` in samples.

        >>> RetrievalConfig(exclusion=0.5).samples_of("exclusion", 1024)
        512
        """
        value = getattr(self, name)
        return round(value * window_length) if isinstance(value, float) else int(value)


@dataclass(frozen=True, kw_only=True)
class AggregationConfig:
    """How windows share the series decision (Eqs. 2-3)."""

    weighting: Weighting = "support"  # "uniform" is plain SSS
    temperature: float | Literal["learned"] = 0.1  # tau; the paper asks tau > 0 and reports no value
    smoothing: float = 0.0  # how much of a window's posterior is that of its neighbours; 0 to 1

    def __post_init__(self) -> None:
        one_of("aggregation.weighting", self.weighting, (*WEIGHTINGS, *GATED))
        if not (_is_number(self.smoothing) and 0 <= self.smoothing <= 1):
            raise ConfigError(
                f"aggregation.smoothing must be a number from 0 (a window speaks for itself) to 1 (its neighbours "
                f"speak for it), got {self.smoothing!r}."
            )
        if self.temperature != "learned" and not (_is_number(self.temperature) and self.temperature > 0):
            raise ConfigError(
                f"aggregation.temperature must be a number > 0 or 'learned', got {self.temperature!r}. For the "
                "plain SSS mean, set aggregation.weighting = 'uniform'."
            )


@dataclass(frozen=True, kw_only=True)
class CalibrationConfig:
    """How probabilities are set right, and how sure a set of classes should be; fitted on the validation part."""

    calibration: Method = "none"  # SSS's headline has "isotonic"
    calibration_level: Level = "window"  # before windows are added up, as in SSS; "series": after
    conformal_alpha: float = 0.1  # prediction sets may miss this share of the series; 0: none are made

    def __post_init__(self) -> None:
        one_of("calibration.calibration", self.calibration, METHODS)
        one_of("calibration.calibration_level", self.calibration_level, LEVELS)
        if not (_is_number(self.conformal_alpha) and 0 <= self.conformal_alpha < 1):
            raise ConfigError(
                f"calibration.conformal_alpha must be at least 0 (no prediction sets) and below 1, got "
                f"{self.conformal_alpha!r}."
            )


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How theta is found: loss, optimiser, schedule, early stopping."""

    window_loss_weight: float = 1.0  # the paper's alpha: 0 there
    series_loss_weight: float = 0.0  # the paper's beta: 1 there
    batch_size: int | Literal["auto"] = "auto"  # see `for_windows` for what "auto" becomes
    max_epochs: int | Literal["auto"] = "auto"
    patience: int | Literal["auto"] = "auto"  # epochs without a better validation part; 0: never stop early
    lr: float = 1e-3  # the largest learning rate
    start_lr: float = 0.0
    final_lr: float = 1e-6
    warmup_steps: int = 100
    schedule_steps: int = 0  # step at which the cosine reaches final_lr; 0: the last step of max_epochs
    weight_decay: float = 1e-6
    validation_fraction: float = 0.125  # of what fit is given: an eighth of 80 % is the paper's 10 %
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 where a GPU has it
    update_batch_norm: bool = True  # recompute statistics over the training windows before they are used

    def __post_init__(self) -> None:
        for name, least in {"batch_size": 1, "max_epochs": 1, "patience": 0}.items():
            if getattr(self, name) != "auto":
                _at_least(f"training.{name}", getattr(self, name), least, otherwise=" or 'auto'")
        for name in ("warmup_steps", "schedule_steps"):
            _at_least(f"training.{name}", getattr(self, name), 0)
        if not isinstance(self.update_batch_norm, bool):
            raise ConfigError(
                f"training.update_batch_norm must be true or false, got {self.update_batch_norm!r}."
            )
        for name in (
            "window_loss_weight",
            "series_loss_weight",
            "lr",
            "start_lr",
            "final_lr",
            "weight_decay",
        ):
            _at_least(f"training.{name}", getattr(self, name), 0, whole=False)
        if self.window_loss_weight + self.series_loss_weight == 0:
            raise ConfigError(
                "training.window_loss_weight and training.series_loss_weight are both 0, so nothing would be "
                "learned. Set one of them above 0."
            )
        if not (_is_number(self.validation_fraction) and 0 <= self.validation_fraction < 1):
            raise ConfigError(
                "training.validation_fraction must be at least 0 and below 1, got "
                f"{self.validation_fraction!r}."
            )
        one_of("training.precision", self.precision, ("auto", "float32", "bfloat16"))

    def for_windows(self, n_windows: int, *, n_validation: int = FEWEST_TO_CHOOSE) -> TrainingPlan:
        """The same settings with a number in place of every ``"auto"``, for so many training windows.

        Batches hold an eighth of the windows, from 8 to 64 of them, so that even a small set has several steps an
        epoch. There are 20 epochs, or as many more (200 at most) as make 600 steps, unless the loss falls below
        .005 before. Patience is a quarter of the epochs; with fewer than 50 validation series, which would choose
        an epoch by chance, there is no early stopping, and the last epoch is kept. A number that was given stays.

        Parameters
        ----------
        n_validation
            Series of the validation part.

        Examples
        --------
        >>> plan = TrainingConfig().for_windows(44, n_validation=6)
        >>> plan.batch_size, plan.max_epochs, plan.patience, plan.chooses_epoch
        (8, 100, 0, False)
        >>> plan = TrainingConfig().for_windows(10_000)
        >>> plan.batch_size, plan.max_epochs, plan.patience, plan.chooses_epoch
        (64, 20, 5, True)
        """
        if self.batch_size == "auto":
            power_of_two = 2 ** int(math.log2(max(n_windows // STEPS_AN_EPOCH, 1)))
            batch_size = min(max(power_of_two, BATCH_SIZES[0]), BATCH_SIZES[1])
        else:
            batch_size = self.batch_size
        if self.max_epochs == "auto":
            needed = math.ceil(FEWEST_STEPS / math.ceil(max(n_windows, 1) / batch_size))
            max_epochs = min(max(needed, EPOCHS[0]), EPOCHS[1])
        else:
            max_epochs = self.max_epochs
        chooses = self.patience != "auto" or n_validation >= FEWEST_TO_CHOOSE
        if self.patience == "auto":
            patience = max(math.ceil(max_epochs / 4), 5) if chooses else 0
        else:
            patience = self.patience
        settings = {setting.name: getattr(self, setting.name) for setting in dataclasses.fields(self)}
        numbers = {"batch_size": batch_size, "max_epochs": max_epochs, "patience": patience}
        automatic = self.max_epochs == "auto"
        return TrainingPlan(
            **(settings | numbers),
            chooses_epoch=chooses,
            validate_every=max(max_epochs // LOOKS, 1) if automatic else 1,
            stop_loss=LEARNED_LOSS if automatic else 0.0,
        )


@dataclass(frozen=True, kw_only=True)
class TrainingPlan(TrainingConfig):
    """`TrainingConfig` with every ``"auto"`` resolved; made by `TrainingConfig.for_windows`."""

    batch_size: int
    max_epochs: int
    patience: int
    chooses_epoch: bool = True  # whether the validation part does; else the last epoch is kept
    validate_every: int = 1  # so many epochs, and after the last
    stop_loss: float = 0.0  # training ends with an epoch whose mean loss is below this


@dataclass(frozen=True, kw_only=True)
class Config:
    """Every setting of the method.

    Examples
    --------
    >>> config = Config.preset("paper")
    >>> config.backbone.backbone, config.retrieval.exclusion, config.training.series_loss_weight
    ('patchtst', 0, 1.0)
    >>> Config.from_toml(config.to_toml()) == config
    True
    >>> Config.from_toml("[retrieval]\\nmesure = 'cosine'")
    Traceback (most recent call last):
    ...
    raxss.errors.ConfigError: unknown setting 'retrieval.mesure'; did you mean 'measure'? ...
    """

    preparation: PreparationConfig = field(default_factory=PreparationConfig)
    windows: WindowConfig = field(default_factory=WindowConfig)
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    retrieval: RetrievalConfig = field(default_factory=RetrievalConfig)
    aggregation: AggregationConfig = field(default_factory=AggregationConfig)
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def check_fit(self, *, validation_given: bool = False) -> None:
        """Refuse settings that do not go together in training; at prediction they may be changed at will.

        Parameters
        ----------
        validation_given
            Whether there is a validation part that need not be set aside.
        """
        without_validation = self.training.validation_fraction == 0 and not validation_given
        if self.calibration.calibration != "none" and without_validation:
            raise ConfigError(
                f"calibration.calibration = {self.calibration.calibration!r} is fitted on the validation part, but "
                "training.validation_fraction is 0. Set it above 0, give fit a validation part, or set calibration "
                "= 'none'."
            )
        retrieval, weighting = self.retrieval, self.aggregation.weighting
        if retrieval.bank == "batch" and weighting in ("shuffled", "random"):
            raise ConfigError(
                f"retrieval.bank = 'batch' does not go with aggregation.weighting = {weighting!r}, whose weights "
                "belong to a whole series. Set retrieval.bank = 'series'."
            )
        if retrieval.bank == "batch" and (retrieval.spread > 0 or retrieval.space == "features"):
            raise ConfigError(
                f"retrieval.bank = 'batch' goes with spread = 0 and space = 'signal', got spread = "
                f"{retrieval.spread} and space = {retrieval.space!r}. Set retrieval.bank = 'series'."
            )
        self._check_refresh()
        self._check_heads()
        if self.aggregation.temperature == "learned":
            if weighting not in ("support", "inverse", "gated"):
                raise ConfigError(
                    f"aggregation.temperature = 'learned' does not go with weighting = {weighting!r}, under which "
                    "there is nothing to learn it from. Set weighting = 'support', or a number."
                )
            if without_validation and self.fits_temperature_on_validation:
                raise ConfigError(
                    "aggregation.temperature = 'learned' is fitted on the validation part here, but "
                    "training.validation_fraction is 0. Set it above 0, or give the temperature a number."
                )

    def _check_refresh(self) -> None:
        """Refuse support in feature space that training could not have, or that it would have no use for."""
        retrieval = self.retrieval
        if retrieval.refresh == "never":
            return
        if retrieval.space == "signal":
            raise ConfigError(
                f"retrieval.refresh = {retrieval.refresh!r} goes with space = 'features', whose support changes "
                "with the network, got space = 'signal'. Set retrieval.space = 'features', or refresh = 'never'."
            )
        if retrieval.spread > 0 or retrieval.bank != "series":
            raise ConfigError(
                f"retrieval.refresh = {retrieval.refresh!r} goes with spread = 0 and bank = 'series', got spread = "
                f"{retrieval.spread} and bank = {retrieval.bank!r}. Set both so for fitting; prediction may change "
                "them."
            )
        if retrieval.refresh == "batch" and self.aggregation.weighting in ("shuffled", "random"):
            raise ConfigError(
                f"retrieval.refresh = 'batch' does not go with aggregation.weighting = "
                f"{self.aggregation.weighting!r}, whose weights belong to a whole series. Set refresh = 'epoch'."
            )
        if retrieval.refresh == "batch" and self.training.series_loss_weight == 0:
            raise ConfigError(
                "retrieval.refresh = 'batch' is for the series loss, but training.series_loss_weight is 0, so that "
                "nothing would look at the weights in a batch. Set it above 0, or refresh = 'epoch'."
            )

    def _check_heads(self) -> None:
        """Refuse a gate or a projection that nothing would teach."""
        retrieval, weighting = self.retrieval, self.aggregation.weighting
        if weighting in ("gated-inverse", "gated-shuffled"):
            raise ConfigError(
                f"aggregation.weighting = {weighting!r} is a control, for prediction with a model that was fitted "
                "with weighting = 'gated'. Fit with that, then set_params(weighting=...)."
            )
        if weighting == "gated" and self.training.series_loss_weight == 0:
            raise ConfigError(
                "aggregation.weighting = 'gated' is learned by the series loss, but training.series_loss_weight is "
                "0. Set it above 0, or weighting = 'support'."
            )
        if weighting == "gated" and retrieval.space == "features" and retrieval.refresh == "never":
            raise ConfigError(
                "aggregation.weighting = 'gated' in space = 'features' needs the support that it is added to in "
                "training as well, but retrieval.refresh is 'never'. Set refresh = 'epoch' or 'batch'."
            )
        if retrieval.projection > 0 and (retrieval.refresh != "batch" or weighting == "uniform"):
            raise ConfigError(
                f"retrieval.projection = {retrieval.projection} is learned through the support within a batch; it "
                f"needs space = 'features', refresh = 'batch' and weights that depend on it, got refresh = "
                f"{retrieval.refresh!r} and weighting = {weighting!r}. Set these, or projection = 0."
            )

    @property
    def learns_from_features(self) -> bool:
        """Whether a step looks at features: for a gate, or for support within the batch."""
        weighting = self.aggregation.weighting
        return weighting == "gated" or (self.retrieval.refresh == "batch" and weighting != "uniform")

    @property
    def learns_temperature_by_gradient(self) -> bool:
        """Whether tau is trained with theta; else, where it is learned, it is fitted on the validation part.

        The window loss does not see tau, and without a refresh feature-space support begins when training is over.
        """
        supported = self.retrieval.space == "signal" or self.retrieval.refresh != "never"
        in_loss = self.training.series_loss_weight > 0 and supported
        return self.aggregation.temperature == "learned" and in_loss

    @property
    def fits_temperature_on_validation(self) -> bool:
        """Whether tau is learned, but not with theta."""
        return self.aggregation.temperature == "learned" and not self.learns_temperature_by_gradient

    @classmethod
    def preset(cls, name: str, *, signal: str | None = None) -> Config:
        """One of the named methods: `paper`, `sss`, `recommended`.

        Parameters
        ----------
        signal
            ``"eeg"``, ``"ecg"`` or ``"motion"``: which views of a window `recommended` takes, and how it changes
            training windows, for signals of this kind.

        >>> Config.preset("recommended", signal="eeg").backbone.backbone_options
        {'views': ['ppv']}
        """
        if name not in PRESETS:
            raise ConfigError(f"unknown preset {name!r}{nearest(name, PRESETS)}")
        found = cls.from_toml(_preset_text(name))
        if signal is None:
            return found
        one_of("signal", signal, SIGNALS)
        if name != "recommended":
            raise ConfigError(
                f"signal = {signal!r} goes with the preset 'recommended'; {name!r} is one method for all signals. "
                "Leave signal out."
            )
        return cls.from_toml(_preset_text(f"signal-{signal}"), start=found)

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any]) -> Config:
        """Settings as a model folder keeps them: `tables`, of this version or of an earlier one.

        A setting that an earlier version did not have gets the value that stands for the time before it, which need
        not be the default of today.

        >>> tables = Config().tables()
        >>> del tables["training"]["update_batch_norm"]
        >>> Config.from_tables(tables).training.update_batch_norm
        False
        """
        homes = setting_homes()
        before: dict[str, dict[str, Any]] = {}
        for name, value in ADDED_LATER.items():
            if name != "augmentation":
                before.setdefault(homes[name], {})[name] = value
        return cls().updated(before).updated(tables)

    @classmethod
    def from_file(cls, path: Path | str, *, start: Config | None = None) -> Config:
        """Read a TOML file; see `from_toml`."""
        try:
            return cls.from_toml(read_toml_text(path, "the file"), start=start)
        except ConfigError as error:
            raise ConfigError(f"in the settings file {Path(path).name!r}: {error}") from error
        except OSError as error:
            raise ConfigError(
                f"cannot read the settings file {Path(path).name!r}: {error.strerror}. "
                f"Give a TOML file, or one of the presets: {', '.join(PRESETS)}."
            ) from error

    @classmethod
    def from_toml(cls, text: str, *, start: Config | None = None) -> Config:
        """Read settings; what is not mentioned is as in ``start``, what is not known is refused.

        A line ``preset = "paper"`` at the top starts from that preset, with ``signal = "ecg"`` from its settings
        for such signals. Without either, from the defaults.
        """
        tables = toml_of(text, "the file")
        if "preset" in tables:
            start = cls.preset(tables.pop("preset"), signal=tables.pop("signal", None))
        return (start or cls()).updated(tables)

    def updated(self, tables: Mapping[str, Any]) -> Config:
        """The same settings with some of them changed: ``{"retrieval": {"measure": "cosine"}}``."""
        stages = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        for stage, settings in current_tables(tables).items():
            if stage not in stages:
                raise ConfigError(f"unknown section {stage!r}{nearest(stage, stages)}")
            if not isinstance(settings, Mapping):
                raise ConfigError(f"{stage!r} must be a section with settings, [{stage}], got {settings!r}.")
            known = [one.name for one in dataclasses.fields(stages[stage])]
            for name in settings:
                if name not in known:
                    raise ConfigError(f"unknown setting '{stage}.{name}'{nearest(name, known)}")
            stages[stage] = dataclasses.replace(stages[stage], **settings)
        return Config(**stages)

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> Config:
        """Sort plain parameters (``measure="cosine"``) into their stages; numpy's scalars become Python's.

        >>> Config.from_parameters({"augmentation": {"flip": 0.5}}).augmentation.flip
        0.5
        """
        stages: dict[str, dict[str, Any]] = {}
        homes = setting_homes()
        for name, value in current_names(parameters, SETTING).items():
            if name not in homes:
                raise ConfigError(f"unknown setting {name!r}{nearest(name, homes)}")
            if name == "augmentation":
                stages[name] = _augmentation_table(value)
            else:
                stages.setdefault(homes[name], {})[name] = _plain(value)
        return cls().updated(stages)

    def parameters(self) -> dict[str, Any]:
        """Every setting as one flat mapping, as the estimator takes them."""
        homes = {name: stage for name, stage in setting_homes().items() if name != "augmentation"}
        augmentation = {name: value for name, value in self.tables()["augmentation"].items() if value}
        flat = {name: getattr(getattr(self, stage), name) for name, stage in homes.items()}
        return flat | {"augmentation": augmentation}

    def tables(self) -> dict[str, dict[str, Any]]:
        """Every setting by stage, in plain types."""
        tables = {}
        for stage in dataclasses.fields(self):
            one = getattr(self, stage.name)
            tables[stage.name] = {item.name: getattr(one, item.name) for item in dataclasses.fields(one)}
        network = tables["backbone"]
        if not isinstance(network["backbone"], str):
            factory = getattr(network["backbone"], "func", network["backbone"])  # what a partial calls
            name = getattr(factory, "__qualname__", type(factory).__qualname__)
            network["backbone"] = f"{factory.__module__}:{name}"
        network["backbone_options"] = dict(network["backbone_options"])
        return tables

    def to_toml(self) -> str:
        """Every setting, also those that were left at their defaults."""
        blocks = []
        for stage, settings in self.tables().items():
            lines = [f"{name} = {_toml_value(value)}" for name, value in settings.items()]
            blocks.append("\n".join([f"[{stage}]", *lines]))
        return "\n\n".join(blocks) + "\n"

    def save(self, path: Path | str) -> None:
        """Write `to_toml` to a file."""
        write_text(path, self.to_toml())

    @property
    def hash(self) -> str:
        """Twelve hex digits that are the same for the same settings."""
        tables = self.tables()
        for stage in ("calibration", "augmentation"):
            if getattr(self, stage) == getattr(Config(), stage):
                del tables[stage]  # so that settings from before there was one keep their hash
        tables = former_tables({stage: without_additions(settings) for stage, settings in tables.items()})
        return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()[:12]


def without_additions(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those that came later and say what was true before them; for hashes.

    >>> without_additions({"measure": "cosine", "smoothing": 0.0, "projection": 8})
    {'measure': 'cosine', 'projection': 8}
    """
    return {name: value for name, value in settings.items() if ADDED_LATER.get(name, object()) != value}


def _preset_text(name: str) -> str:
    return (resources.files("raxss.estimator") / "presets" / f"{name}.toml").read_text("utf-8")


def setting_homes() -> dict[str, str]:
    """Which stage each parameter of the estimator belongs to; augmentation is one parameter and a stage.

    >>> setting_homes()["temperature"], setting_homes()["augmentation"]
    ('aggregation', 'augmentation')
    """
    homes = {
        setting.name: stage.name
        for stage in dataclasses.fields(Config)
        if stage.name != "augmentation"
        for setting in dataclasses.fields(getattr(Config(), stage.name))
    }
    return homes | {"augmentation": "augmentation"}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value  # a grid search gives these


def _augmentation_table(given: object) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"augmentation must be a mapping of kinds to numbers, such as {{'flip': 0.5}}, got {given!r}. Known: "
            f"{', '.join(one.name for one in dataclasses.fields(AugmentationConfig))}."
        )
    return {name: _plain(value) for name, value in given.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _at_least(name: str, value: object, least: int, *, whole: bool = True, otherwise: str = "") -> None:
    if not (_is_number(value) and isinstance(value, int if whole else int | float) and value >= least):
        raise ConfigError(
            f"{name} must be {'a whole number' if whole else 'a number'} of at least {least}{otherwise}, got "
            f"{value!r}."
        )


def _toml_value(value: Any) -> str:
    """A value as TOML spells it; JSON's spelling is the same for strings, numbers, booleans and lists."""
    if isinstance(value, Mapping):
        return (
            "{ "
            + ", ".join(f"{_toml_key(str(key))} = {_toml_value(one)}" for key, one in value.items())
            + " }"
            if value
            else "{}"
        )
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    if not isinstance(value, str | bool | int | float):
        raise ConfigError(
            f"backbone.backbone_options holds {value!r}, which a settings file cannot; needed is text, a number, "
            "true or false, or a list or mapping of these. Leave it out, or give the backbone as a callable."
        )
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # inf, nan: as TOML spells them
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_value(key)
