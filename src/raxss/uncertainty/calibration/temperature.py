"""Temperature scaling of posteriors (Guo et al., 2017).

    posteriors (n, C), the class of each (n,) -> TemperatureCalibration: (n, C) -> (n, C)

One number, so it can be fitted on few rows and never changes which class is the most likely one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from raxss.errors import ConfigError
from raxss.uncertainty.calibration.maps import checked_rows, checked_sample

LEAST, MOST = 0.05, 20.0  # of T: rows that are all right would ask for 0
SMALLEST = 1e-300  # the logarithm of 0 is kept finite, so that 0 stays next to 0


@dataclass(frozen=True, eq=False)
class TemperatureCalibration:
    r"""Softmax of log p / T: above 1 less confident, below 1 more confident.

    T minimises the mean of -log p_y over the rows it is fitted on, between 0.05 and 20. For two classes this is the
    log-odds divided by T.

    Attributes
    ----------
    temperature
        T. Not the tau that makes weights of supports.
    n_classes
        C.

    Examples
    --------
    Nine of ten are right at a posterior of .99.

    >>> posteriors = [[0.01, 0.99]] * 10 + [[0.99, 0.01]] * 10
    >>> calibration = TemperatureCalibration.fit(posteriors, [0] + [1] * 9 + [1] + [0] * 9)
    >>> round(calibration.temperature, 3), calibration([[0.01, 0.99], [0.5, 0.5]]).round(3).tolist()
    (2.091, [[0.1, 0.9], [0.5, 0.5]])
    """

    method: ClassVar[str] = "temperature"
    temperature: float
    n_classes: int

    def __post_init__(self) -> None:
        if not LEAST <= self.temperature <= MOST:
            raise ConfigError(
                f"the temperature of a calibration is {self.temperature}; needed is one from {LEAST} to {MOST}."
            )
        if not (float(self.n_classes).is_integer() and self.n_classes >= 2):
            raise ConfigError(f"a calibration of {self.n_classes} classes; needed are two at least.")

    def __call__(self, posteriors: ArrayLike) -> NDArray[np.float64]:
        """``(n, C)`` -> ``(n, C)``; NaN stays NaN."""
        values = checked_rows(posteriors, self.n_classes)
        scaled: NDArray[np.float64] = softmax(_logarithms(values) / self.temperature, axis=1)
        return scaled

    @classmethod
    def fit(cls, posteriors: ArrayLike, targets: ArrayLike) -> Self:
        """From posteriors ``(n, C)`` and the class index of each row ``(n,)``."""
        values, classes = checked_sample(posteriors, targets)
        logarithms, rows = _logarithms(values), np.arange(len(values))

        def loss(log_temperature: float) -> float:
            scaled = log_softmax(logarithms / np.exp(log_temperature), axis=1)
            return -float(scaled[rows, classes].mean())

        bounds = (np.log(LEAST), np.log(MOST))
        found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-10})
        return cls(float(np.clip(np.exp(found.x), LEAST, MOST)), values.shape[1])

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """``temperature (1,)`` and ``n_classes (1,)``."""
        return {"temperature": np.array([self.temperature]), "n_classes": np.array([float(self.n_classes)])}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.float64]]) -> Self:
        """Read back `arrays`; anything else is refused."""
        kinds = {name: f"{array.dtype} {array.shape}" for name, array in sorted(arrays.items())}
        if kinds != dict.fromkeys(("n_classes", "temperature"), "float64 (1,)"):
            found = ", ".join(f"{name!r} {kind}" for name, kind in kinds.items())
            raise ConfigError(
                f"a temperature calibration has the arrays {found or 'none'}; needed are 'n_classes' and "
                "'temperature', each one float64."
            )
        n_classes = float(arrays["n_classes"][0])
        whole = int(n_classes) if n_classes.is_integer() else n_classes  # the other is refused
        return cls(float(arrays["temperature"][0]), whole)  # type: ignore[arg-type]


def _logarithms(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.log(np.maximum(values, SMALLEST))
