"""Settings of the estimator: composition, presets, TOML files, hashes.

    preset (paper, sss, tuned, recommended) or TOML -> Config -> TOML with every setting that was used

Each stage has its settings in a frozen dataclass of its own; `Config` composes them. Field names are unique
over the stages, so that the estimator can have them as plain parameters; augmentation is one parameter there,
``"auto"`` or a mapping of its settings. `Config()` has the defaults of the estimator. Presets leave window length
and stride, which depend on the data, at their defaults.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np

from raxss._core.atomic import canonical_hash
from raxss._core.bounded import read_toml_text, toml_of
from raxss._core.renames import SETTING, current_names, current_tables, former_tables
from raxss._core.settings import toml_value
from raxss.data.prepare.preprocessing import PreparationConfig
from raxss.errors import ConfigError, did_you_mean, one_of
from raxss.method.aggregation import AggregationConfig
from raxss.method.augmentation import AUTO, AugmentationConfig
from raxss.method.backbones.protocol import BackboneConfig
from raxss.method.retrieval.front import RetrievalConfig
from raxss.method.training.settings import TrainingConfig
from raxss.method.weighting.protocol import weighting_named
from raxss.method.windows import WindowConfig
from raxss.uncertainty.calibration import CalibrationConfig

#: Settings added after the first hashes, with the value that earlier versions had: left out of hashes.
ADDED_LATER: Mapping[str, Any] = {
    "refresh": "never",
    "projection": 0,
    "smoothing": 0.0,
    "augmentation": {},
    "calibration_level": "window",
    "conformal_alpha": 0.1,
    "update_batch_norm": False,
    "class_weight": {},
    "decision_threshold": "argmax",
    "missing": "refuse",
    "share_missing": False,
    "context": False,
}
PRESETS = ("paper", "sss", "tuned", "recommended")
SIGNALS = ("eeg", "ecg", "motion")  # for which `tuned` has settings of its own


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of the method.

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
    augmentation: AugmentationConfig | Literal["auto"] = AUTO  # chosen by `fit`
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def check_fit(self, *, validation_given: bool = False) -> None:
        """Refuse settings that do not go together in training; prediction may change them.

        ``validation_given``: whether validation series are passed to `fit`.
        """
        without_validation = self.training.validation_fraction == 0 and not validation_given
        if self.calibration.calibration != "none" and without_validation:
            raise ConfigError(
                f"calibration.calibration = {self.calibration.calibration!r} is fitted on the validation set, but "
                "training.validation_fraction is 0. Set it above 0, give fit a validation set, or set calibration "
                "= 'none'."
            )
        retrieval, weighting = self.retrieval, weighting_named(self.aggregation.weighting)
        if retrieval.bank == "batch" and weighting.no_batch:
            raise ConfigError(
                f"retrieval.bank = 'batch' does not go with aggregation.weighting = {weighting.name!r}, "
                f"{weighting.no_batch}. Set retrieval.bank = 'series'."
            )
        if retrieval.bank == "batch" and (retrieval.spread > 0 or retrieval.space == "features"):
            raise ConfigError(
                f"retrieval.bank = 'batch' goes with spread = 0 and space = 'signal', got spread = "
                f"{retrieval.spread} and space = {retrieval.space!r}. Set retrieval.bank = 'series'."
            )
        self._check_refresh()
        self._check_heads()
        if self.aggregation.temperature == "learned":
            if weighting.no_learned_temperature:
                raise ConfigError(
                    f"aggregation.temperature = 'learned' does not go with weighting = {weighting.name!r}, "
                    f"{weighting.no_learned_temperature}. Set weighting = 'support', or a number."
                )
            if without_validation and self.fits_temperature_on_validation:
                raise ConfigError(
                    "aggregation.temperature = 'learned' is fitted on the validation set here, but "
                    "training.validation_fraction is 0. Set it above 0, or give the temperature a number."
                )

    def _check_refresh(self) -> None:
        """Refuse a refresh of feature-space support that training cannot compute or would not use."""
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
        weighting = weighting_named(self.aggregation.weighting)
        reason = weighting.no_batch or weighting.no_batch_gradient
        if retrieval.refresh == "batch" and weighting.needs_retrieval and reason:
            raise ConfigError(
                f"retrieval.refresh = 'batch' does not go with aggregation.weighting = {weighting.name!r}, "
                f"{reason}. Set refresh = 'epoch'."
            )
        if retrieval.refresh == "batch" and self.training.series_loss_weight == 0:
            raise ConfigError(
                "retrieval.refresh = 'batch' is for the series loss, but training.series_loss_weight is 0, so that "
                "nothing would look at the weights in a batch. Set it above 0, or refresh = 'epoch'."
            )

    def _check_heads(self) -> None:
        """Refuse a gate or a projection that no loss would train."""
        retrieval, weighting = self.retrieval, weighting_named(self.aggregation.weighting)
        if weighting.needs_gate and weighting.is_control:
            raise ConfigError(
                f"aggregation.weighting = {weighting.name!r} is a control, for prediction with a model that was "
                f"fitted with weighting = {weighting.family!r}. Fit with that, then set_params(weighting=...)."
            )
        if weighting.needs_gate and self.training.series_loss_weight == 0:
            raise ConfigError(
                f"aggregation.weighting = {weighting.name!r} is learned by the series loss, but "
                "training.series_loss_weight is 0. Set it above 0, or weighting = 'support'."
            )
        if weighting.needs_gate and retrieval.space == "features" and retrieval.refresh == "never":
            raise ConfigError(
                f"aggregation.weighting = {weighting.name!r} in space = 'features' needs the support that it is "
                "added to in training as well, but retrieval.refresh is 'never'. Set refresh = 'epoch' or 'batch'."
            )
        if retrieval.projection > 0 and (retrieval.refresh != "batch" or not weighting.needs_retrieval):
            raise ConfigError(
                f"retrieval.projection = {retrieval.projection} is learned through the support within a batch; it "
                f"needs space = 'features', refresh = 'batch' and weights that depend on it, got refresh = "
                f"{retrieval.refresh!r} and weighting = {weighting.name!r}. Set these, or projection = 0."
            )

    @property
    def learns_from_features(self) -> bool:
        """Whether a training step needs features: for a gate, or for support within the batch."""
        weighting = weighting_named(self.aggregation.weighting)
        return weighting.needs_gate or (self.retrieval.refresh == "batch" and weighting.needs_retrieval)

    @property
    def learns_temperature_by_gradient(self) -> bool:
        """Whether tau is trained with theta; else, where it is learned, it is fitted on the validation set.

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
        """One of the named methods: `paper`, `sss`, `tuned`, or `recommended`, which is `Config()`.

        Parameters
        ----------
        signal
            ``"eeg"``, ``"ecg"`` or ``"motion"``: views and augmentation of `tuned` for such signals.

        >>> Config.preset("tuned", signal="eeg").backbone.backbone_options
        {'views': ['ppv']}
        """
        if name not in PRESETS:
            raise ConfigError(f"unknown preset {name!r}{did_you_mean(name, PRESETS)}")
        found = cls.from_toml(_preset_text(name))
        if signal is None:
            return found
        one_of("signal", signal, SIGNALS)
        if name != "tuned":
            raise ConfigError(
                f"signal = {signal!r} goes with the preset 'tuned'; {name!r} is one method for all signals. Choose "
                "'tuned' (--preset tuned), or leave signal out."
            )
        return cls.from_toml(_preset_text(f"signal-{signal}"), start=found)

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any]) -> Config:
        """Settings as a model folder keeps them: `tables`, of this version or of an earlier one.

        Settings that an earlier version did not have get the values of `ADDED_LATER`, not the defaults of today.
        """
        homes = setting_homes()
        before: dict[str, dict[str, Any]] = {"augmentation": ADDED_LATER["augmentation"]}
        for name, value in ADDED_LATER.items():
            if name != "augmentation":
                before.setdefault(homes[name], {})[name] = value
        if tables.get("augmentation") == AUTO:
            raise ConfigError(
                "augmentation is 'auto', which fit resolves; a fitted model has a section of settings."
            )
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
        """Read settings on top of ``start`` (default: `Config()`); unknown ones are refused.

        A line ``preset = "paper"`` at the top starts from that preset, with ``signal = "ecg"`` from its settings
        for such signals.
        """
        tables = toml_of(text, "the file")
        if "preset" in tables:
            start = cls.preset(tables.pop("preset"), signal=tables.pop("signal", None))
        return (start or cls()).updated(tables)

    def updated(self, tables: Mapping[str, Any]) -> Config:
        """A copy with changes, by stage: ``{"retrieval": {"measure": "cosine"}}``.

        A section ``augmentation`` replaces ``"auto"``: nothing but its own settings is changed in a window then.
        """
        stages = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        for stage, settings in current_tables(tables).items():
            if stage not in stages:
                raise ConfigError(f"unknown section {stage!r}{did_you_mean(stage, stages)}")
            if stage == "augmentation" and settings == AUTO:
                stages[stage] = AUTO
                continue
            if stages[stage] == AUTO:
                stages[stage] = AugmentationConfig()  # a section replaces it
            if not isinstance(settings, Mapping):
                raise ConfigError(f"{stage!r} must be a section with settings, [{stage}], got {settings!r}.")
            known = [item.name for item in dataclasses.fields(stages[stage])]
            for name in settings:
                if name not in known:
                    raise ConfigError(f"unknown setting '{stage}.{name}'{did_you_mean(name, known)}")
            stages[stage] = dataclasses.replace(stages[stage], **settings)
        return Config(**stages)

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> Config:
        """Sort plain parameters (``measure="cosine"``) into their stages; numpy's scalars become Python's."""
        stages: dict[str, Any] = {}
        homes = setting_homes()
        for name, value in current_names(parameters, SETTING).items():
            if name not in homes:
                raise ConfigError(f"unknown setting {name!r}{did_you_mean(name, homes)}")
            if name == "augmentation":
                stages[name] = _augmentation_table(value)
            else:
                stages.setdefault(homes[name], {})[name] = _plain(value)
        return cls().updated(stages)

    def parameters(self) -> dict[str, Any]:
        """Every setting as one flat mapping, as the estimator takes them."""
        homes = {name: stage for name, stage in setting_homes().items() if name != "augmentation"}
        augmentation = self.tables()["augmentation"]
        if augmentation != AUTO:
            augmentation = {name: value for name, value in augmentation.items() if value}
        flat = {name: getattr(getattr(self, stage), name) for name, stage in homes.items()}
        return flat | {"augmentation": augmentation}

    def tables(self) -> dict[str, Any]:
        """Every setting by stage, in plain types; automatic augmentation is ``"auto"`` in place of a table."""
        tables: dict[str, Any] = {}
        for stage in dataclasses.fields(self):
            entry = getattr(self, stage.name)
            if entry == AUTO:
                tables[stage.name] = AUTO
                continue
            tables[stage.name] = {item.name: getattr(entry, item.name) for item in dataclasses.fields(entry)}
        network = tables["backbone"]
        if not isinstance(network["backbone"], str):
            factory = getattr(network["backbone"], "func", network["backbone"])  # what a partial calls
            name = getattr(factory, "__qualname__", type(factory).__qualname__)
            network["backbone"] = f"{factory.__module__}:{name}"
        network["backbone_options"] = dict(network["backbone_options"])
        if not isinstance(tables["training"]["class_weight"], str):
            tables["training"]["class_weight"] = dict(tables["training"]["class_weight"])
        return tables

    def to_toml(self) -> str:
        """Every setting, also those that were left at their defaults."""
        tables, blocks = self.tables(), []
        if self.augmentation == AUTO:
            blocks.append(f"augmentation = {toml_value(tables.pop('augmentation'))}")  # above all sections
        for stage, settings in tables.items():
            lines = [f"{name} = {toml_value(value)}" for name, value in settings.items()]
            blocks.append("\n".join([f"[{stage}]", *lines]))
        return "\n\n".join(blocks) + "\n"

    @property
    def hash(self) -> str:
        """Hash of all settings, twelve hex digits."""
        tables = self.tables()
        for stage, absent in (("calibration", CalibrationConfig()), ("augmentation", AugmentationConfig())):
            if getattr(self, stage) == absent:
                del tables[stage]  # so that settings from before these stages keep their hash
        tables = former_tables(
            {stage: item if item == AUTO else without_additions(item) for stage, item in tables.items()}
        )
        return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def score_hash(self) -> str:
        """Hash, twelve hex digits, of the settings that the uncalibrated scores of a fitted network depend on.

        >>> Config().score_hash == Config.from_parameters({"calibration": "isotonic"}).score_hash
        True
        """
        tables = self.tables()
        tables["windows"] = {"stride": tables["windows"]["stride"]}
        kept = {name: without_additions(tables[name]) for name in ("windows", "retrieval", "aggregation")}
        kept["retrieval"].pop("refresh", None)  # of training
        return canonical_hash(former_tables(kept))[:12]

    @property
    def decision_hash(self) -> str:
        """Hash, twelve hex digits, of the settings that the scores of a fitted network depend on."""
        calibration = [self.calibration.calibration, self.calibration.calibration_level]
        return canonical_hash([self.score_hash, *calibration])[:12]


def without_additions(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those of `ADDED_LATER` that have the value of earlier versions; for hashes."""
    return {name: value for name, value in settings.items() if ADDED_LATER.get(name, object()) != value}


def _preset_text(name: str) -> str:
    return (resources.files("raxss.estimator") / "presets" / f"{name}.toml").read_text("utf-8")


def setting_homes() -> dict[str, str]:
    """Parameter of the estimator -> its stage; augmentation is both."""
    homes = {
        setting.name: stage.name
        for stage in dataclasses.fields(Config)
        if stage.name != "augmentation"
        for setting in dataclasses.fields(getattr(Config(), stage.name))
    }
    return homes | {"augmentation": "augmentation"}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value  # a grid search gives these


def _augmentation_table(given: object) -> dict[str, Any] | Literal["auto"]:
    if isinstance(given, str) and given == AUTO:  # numpy's strings, too
        return AUTO
    if not isinstance(given, Mapping):
        raise ConfigError(
            "augmentation must be a mapping of kinds to numbers, such as {'flip': 0.5}, or 'auto', got "
            f"{given!r}. Known: {', '.join(item.name for item in dataclasses.fields(AugmentationConfig))}."
        )
    return {name: _plain(value) for name, value in given.items()}
