"""Settings of calibration and prediction sets."""

from __future__ import annotations

from dataclasses import dataclass

from raxss._core.settings import is_number
from raxss.errors import ConfigError, one_of
from raxss.uncertainty.calibration import LEVELS, METHODS, Level, Method


@dataclass(frozen=True, kw_only=True)
class CalibrationConfig:
    """How probabilities are set right, and how sure a set of classes should be; fitted on the validation part."""

    calibration: Method = "none"  # SSS's headline has "isotonic"
    calibration_level: Level = "window"  # before windows are added up, as in SSS; "series": after
    conformal_alpha: float = 0.1  # prediction sets may miss this share of the series; 0: none are made

    def __post_init__(self) -> None:
        one_of("calibration.calibration", self.calibration, METHODS)
        one_of("calibration.calibration_level", self.calibration_level, LEVELS)
        if not (is_number(self.conformal_alpha) and 0 <= self.conformal_alpha < 1):
            raise ConfigError(
                f"calibration.conformal_alpha must be at least 0 (no prediction sets) and below 1, got "
                f"{self.conformal_alpha!r}."
            )
