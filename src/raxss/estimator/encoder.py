"""Encoder of a fitted model: series to features of windows, as keys of a case library are made.

    RAxSSClassifier -> encoder_of -> ModelEncoder: fingerprint, classes, encode(series) -> EncodedSeries

Windows are scored by the same pass as in prediction (method/inference.py). Next: raxss/library/case_library.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raxss._core.atomic import canonical_hash
from raxss.data.prepare.preprocessing import Scaling
from raxss.data.series import Series
from raxss.errors import BackboneError
from raxss.estimator.config import Config
from raxss.library.encoder import EncodedSeries
from raxss.method.backbones.protocol import n_features
from raxss.method.feature_heads import FeatureHeads
from raxss.method.inference import Predictor
from raxss.method.training.checkpoints import state_of


class Encodable(Protocol):
    """What of a fitted `RAxSSClassifier` its encoder is made of; classifier.py imports this module."""

    classes_: NDArray[Any]
    n_variates_: int
    window_length_: int
    preparation_: str
    training_data_: dict[str, Any]
    backbone_: nn.Module
    scaling_: Scaling
    heads_: FeatureHeads | None
    feature_mean_: NDArray[np.float64]
    feature_scale_: NDArray[np.float64]

    @property
    def current_config(self) -> Config:
        """Settings."""
        ...

    def predictor(self) -> Predictor:
        """Of series."""
        ...

    def known_series(self, X: Any, *, warn: bool = False) -> list[Series]:
        """Series that fit the training data."""
        ...


@dataclass(frozen=True, eq=False)
class ModelEncoder:
    """A fitted `RAxSSClassifier` as `raxss.library.Encoder`.

    Its features are float32 and not standardised; gate and projection, which work on standardised ones, are left
    out. Posteriors are those of windows under the model's settings, calibrated where windows are. The settings are
    those at the time it was made.
    """

    model: Encodable
    fingerprint: str
    n_features: int
    _predictor: Predictor

    @property
    def classes(self) -> tuple[Any, ...]:
        """Labels in the order of the posteriors, as plain values."""
        return tuple(self.model.classes_.tolist())

    @property
    def facts(self) -> Mapping[str, Any]:
        """Window length, stride, rates, preparation, number of variates."""
        return _facts(self.model, self._predictor)

    def encode(self, series: Sequence[Series]) -> Iterator[EncodedSeries]:
        """Each series in its order; all are checked against the training data before the first is encoded."""
        known = self.model.known_series(list(series))
        return self._encoded(known)

    def _encoded(self, known: list[Series]) -> Iterator[EncodedSeries]:
        for scores in self._predictor.window_scores(known, with_features=True):
            assert scores.features is not None, "they were asked for"
            windows = scores.windows
            yield EncodedSeries(
                scores.series,
                start_s=windows.start_seconds,
                end_s=windows.end_seconds,
                features=scores.features.astype(np.float32),
                posteriors=scores.posteriors,
                usable=np.logical_not(windows.unusable),
                missing=windows.missing_share,
            )


def encoder_of(model: Encodable) -> ModelEncoder:
    """The encoder of a fitted model; its fingerprint is that of the weights and settings at this moment.

    Examples
    --------
    >>> from raxss import RAxSSClassifier
    >>> from raxss.data.datasets import load_synthetic
    >>> series = load_synthetic(8)
    >>> model = RAxSSClassifier(backbone="ridge", window_length=64, stride=32, random_state=0).fit(series)
    >>> encoder = encoder_of(model)
    >>> encoded = next(encoder.encode(series[:1]))
    >>> encoded.features.shape[1] == encoder.n_features, encoder.classes
    (True, ('motif', 'noise'))
    """
    predictor = model.predictor()
    if not callable(getattr(predictor.backbone, "features", None)):
        raise BackboneError(
            f"backbone {type(model.backbone_).__name__} has no method features(windows) -> (batch, d), which the "
            "keys of a case library are. Add it (the input of the network's last layer), or choose another "
            "backbone."
        )
    width = n_features(model.backbone_, model.n_variates_, model.window_length_)
    return ModelEncoder(model, _fingerprint(model, predictor), width, predictor.with_features_as_they_are())


def _facts(model: Encodable, predictor: Predictor) -> dict[str, Any]:
    return {
        "n_variates": model.n_variates_,
        "preparation": model.preparation_,
        "rates": [float(rate) for rate in model.training_data_["rates"]],
        "stride": predictor.stride,
        "window_length": predictor.window_length,
    }


def _fingerprint(model: Encodable, predictor: Predictor) -> str:
    """SHA-256 of all that changes features, whatever device the weights are on.

    The rates of the training series are not in it: they decide which series are accepted, not what becomes of them.
    """
    facts = {name: value for name, value in _facts(model, predictor).items() if name != "rates"}
    tensors = {f"backbone/{name}": value for name, value in state_of(model.backbone_).items()}
    tensors |= {
        "scaling/mean": torch.as_tensor(model.scaling_.mean),
        "scaling/deviation": torch.as_tensor(model.scaling_.deviation),
    }
    if model.heads_ is not None:  # which work on features that are standardised by the training windows
        tensors |= {f"heads/{name}": value for name, value in state_of(model.heads_).items()}
        tensors |= {
            "heads_mean": torch.as_tensor(model.feature_mean_),
            "heads_scale": torch.as_tensor(model.feature_scale_),
        }
    return canonical_hash(
        {
            **facts,
            "scaling": model.scaling_.mode,
            "backbone": model.current_config.tables()["backbone"],
            "tensors": {name: _digest(value) for name, value in tensors.items()},
        }
    )


def _digest(tensor: Tensor) -> str:
    """SHA-256 of dtype, shape and bytes."""
    plain = tensor.detach().to("cpu").contiguous()
    digest = hashlib.sha256(f"{plain.dtype} {tuple(plain.shape)}".encode())
    if plain.numel():
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
