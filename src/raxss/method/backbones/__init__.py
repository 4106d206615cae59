"""How likely is each class, seen from one window?

    windows (batch, n_variates, length) -> logits (batch, n_outputs)

One file per network. Any torch module that maps these shapes serves as well: see `protocol`, which also says
how to register one. Next: ../aggregation.py makes one decision of many windows.
"""

from raxss.method.backbones.convnet import ConvNet, FineConvNet
from raxss.method.backbones.dlinear import DLinear
from raxss.method.backbones.ensemble import Ensemble
from raxss.method.backbones.mamba import Mamba
from raxss.method.backbones.moderntcn import ModernTCN
from raxss.method.backbones.multiview import MultiView
from raxss.method.backbones.patchtst import PatchTST
from raxss.method.backbones.protocol import (
    BACKBONES,
    Backbone,
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
    "Backbone",
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
