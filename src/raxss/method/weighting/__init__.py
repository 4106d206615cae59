"""Weightings: the share of each window in the decision about its series (Eq. 2).

    support (n_windows,) -> influence (n_windows,) -> weights (n_windows,)

One file per weighting. Every module of this package is imported here, so a new file need only call
`register_weighting`, as code outside the package does.
"""

import importlib
import pkgutil

from raxss.method.weighting.protocol import (
    WEIGHTINGS,
    Weighting,
    influence,
    register_weighting,
    weighting_named,
    window_weights,
)
from raxss.method.weighting.support import UNIFORM

__all__ = [
    "UNIFORM",
    "WEIGHTINGS",
    "Weighting",
    "influence",
    "register_weighting",
    "weighting_named",
    "window_weights",
]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
