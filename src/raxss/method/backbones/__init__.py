"""Backbones: networks that score a window (f_theta), one file each.

    windows (batch, n_variates, length) -> logits (batch, n_outputs)

Every module of this package is imported here, so a new file that calls `register_backbone` is known by its name
everywhere. Any torch module that maps these shapes serves as well: see `protocol`.
Next: ../aggregation.py aggregates the scores of many windows.
"""

import importlib
import pkgutil

from raxss.method.backbones.convnet import ConvNet, FineConvNet
from raxss.method.backbones.dlinear import DLinear
from raxss.method.backbones.ensemble import Ensemble
from raxss.method.backbones.mamba import Mamba
from raxss.method.backbones.moderntcn import ModernTCN
from raxss.method.backbones.multiview import MultiView
from raxss.method.backbones.patchtst import PatchTST
from raxss.method.backbones.protocol import (
    BACKBONES,
    build_backbone,
    describe,
    features_of,
    logits_and_features,
    n_outputs_for,
    n_parameters,
    register_backbone,
)
from raxss.method.backbones.recurrent import GRU, LSTM
from raxss.method.backbones.revin import RevIN
from raxss.method.backbones.timesnet import TimesNet

__all__ = [
    "BACKBONES",
    "ConvNet",
    "DLinear",
    "Ensemble",
    "FineConvNet",
    "GRU",
    "LSTM",
    "Mamba",
    "ModernTCN",
    "MultiView",
    "PatchTST",
    "RevIN",
    "TimesNet",
    "build_backbone",
    "describe",
    "features_of",
    "logits_and_features",
    "n_outputs_for",
    "n_parameters",
    "register_backbone",
]

# Kernels are imported by the networks that use them, where their compilers are installed.
_KERNELS = ("_kernels", "_numba", "_parts", "_triton")

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.endswith(_KERNELS):
        importlib.import_module(f"{__name__}.{_module.name}")
