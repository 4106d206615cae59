"""Calibration of probabilities: isotonic, temperature scaling, Venn-Abers.

    posteriors (n_windows, C)      -> calibrated posteriors, before windows are aggregated    level "window"
    scores of series (n_series, C) -> calibrated scores, after aggregation                    level "series"

A calibration is a map of probabilities, fitted on the validation set (estimator/fit.py). At the level of
windows (as in SSS) contributions still add up to the score. At the level of series it comes after the sum, so
evidence shows both numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from raxss._core.settings import is_number
from raxss.errors import ConfigError, did_you_mean, one_of
from raxss.uncertainty.calibration.maps import (
    Calibration,
    IsotonicCalibration,
    TemperatureCalibration,
    VennAbersCalibration,
)

__all__ = [
    "CALIBRATIONS",
    "DECISIONS",
    "LEVELS",
    "METHODS",
    "Calibration",
    "CalibrationConfig",
    "Decision",
    "IsotonicCalibration",
    "Level",
    "Method",
    "TemperatureCalibration",
    "VennAbersCalibration",
    "calibration_in_use",
    "calibration_named",
]

Method = Literal["none", "isotonic", "temperature", "venn-abers"]
METHODS: tuple[str, ...] = get_args(Method)
Level = Literal["window", "series"]
LEVELS: tuple[str, ...] = get_args(Level)
Decision = Literal["argmax", "tuned"]
DECISIONS: tuple[str, ...] = get_args(Decision)

#: Name -> class of the map; every method but ``"none"`` is here.
CALIBRATIONS: dict[str, type[Calibration]] = {
    kind.method: kind for kind in (IsotonicCalibration, TemperatureCalibration, VennAbersCalibration)
}


@dataclass(frozen=True, kw_only=True)
class CalibrationConfig:
    """Calibration, prediction sets and decision threshold, all fitted on series that were not trained on."""

    calibration: Method = "none"  # SSS's headline has "isotonic"
    calibration_level: Level = "window"  # before aggregation, as in SSS; "series": after
    conformal_alpha: float = 0.1  # prediction sets may miss this share of the series; 0: none are made
    decision_threshold: Decision = (
        "argmax"  # predict names the most probable class, or one by a tuned threshold
    )

    def __post_init__(self) -> None:
        one_of("calibration.calibration", self.calibration, METHODS)
        one_of("calibration.calibration_level", self.calibration_level, LEVELS)
        one_of("calibration.decision_threshold", self.decision_threshold, DECISIONS)
        if not (is_number(self.conformal_alpha) and 0 <= self.conformal_alpha < 1):
            raise ConfigError(
                f"calibration.conformal_alpha must be at least 0 (no prediction sets) and below 1, got "
                f"{self.conformal_alpha!r}."
            )


def calibration_named(method: str) -> type[Calibration]:
    """The class of a calibration."""
    if method not in CALIBRATIONS:
        raise ConfigError(f"there is no calibration {method!r}{did_you_mean(method, CALIBRATIONS)}")
    return CALIBRATIONS[method]


def calibration_in_use(
    fitted: Calibration | None, requested: str, *, fitted_level: str = "window", level: str = "window"
) -> Calibration | None:
    """The fitted map, or None where it is switched off; no other can be switched on."""
    if requested == "none":
        return None
    if fitted is None or fitted.method != requested:
        method = "none" if fitted is None else fitted.method
        raise ConfigError(
            f"calibration is {requested!r}, but the model was fitted with calibration = {method!r}, so there is no "
            f"map to apply. Fit again with calibration={requested!r}, or set_params(calibration={method!r})."
        )
    if level != fitted_level:
        raise ConfigError(
            f"calibration_level is {level!r}, but the map was fitted on scores of level {fitted_level!r} and "
            f"does not apply to others. Fit again with calibration_level={level!r}, or "
            f"set_params(calibration_level={fitted_level!r})."
        )
    return fitted
