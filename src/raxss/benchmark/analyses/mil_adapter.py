"""Adapter of attention-pooling models for the probes of faithfulness.

    MILClassifier -> MILModelAdapter: weights are attention shares, posteriors those of the window classifier

With attention pooling, logits of a series are the classifier's of a mean of features, no sum over windows: weight
times posterior is then a proxy (as in MILLET), and probes measure how good it is. With conjunctive pooling logits
add up, probabilities do not. Integrated gradients are those of the pooled mean.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raxss.benchmark.baselines.common import require_finite
from raxss.benchmark.baselines.mil import BagNetwork, MILClassifier
from raxss.data.series import Series
from raxss.explain.faithfulness.model_adapter import (
    GradientAttribution,
    ModelAdapter,
    WindowAttribution,
)
from raxss.explain.faithfulness.perturbed_series import distinct_windows, portions
from raxss.method.aggregation import posteriors_of
from raxss.method.backbones.protocol import features_of
from raxss.method.window_scorer import exact_arithmetic, pick_device
from raxss.method.windows import windows_of

Floats = NDArray[np.float64]
logger = logging.getLogger("raxss")


@dataclass(frozen=True, eq=False, kw_only=True)
class MILModelAdapter(ModelAdapter):
    """A fitted `MILClassifier` with the interface of a model adapter; nothing is retrieved."""

    model: MILClassifier
    network: BagNetwork  # encoder, attention and classifier

    @classmethod
    def of(cls, model: MILClassifier) -> Self:
        """Adapter of a model."""
        return cls(
            model=model,
            classes=tuple(model.classes_.tolist()),
            window_length=int(model.window_length_),
            stride=int(model.stride),
            network=model.backbone_,
            device=pick_device(model.device),
            retrieves=False,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """Weights of the network, and the settings of the moment."""
        scaling = self.model.scaling_
        return super().identity | {
            "fitted": [scaling.mode, scaling.mean.tolist(), scaling.deviation.tolist()],
            "pooling": self.model.pooling,
        }

    def attributions(
        self, series: Sequence[Series], *, with_lists: bool = False
    ) -> Iterator[WindowAttribution]:
        """One after the other; there are no neighbours."""
        for item, pool in zip(series, self.model._pools_one_by_one(list(series)), strict=True):
            attended, posteriors, summed = self._parts(pool.all_windows())
            logits = self.network.logits_of(summed, torch.tensor([len(attended)], device=summed.device))
            yield WindowAttribution(
                series=item,
                starts=_starts(item, self.window_length, self.stride),
                window_length=self.window_length,
                posteriors=posteriors,
                weights=attended / attended.sum(),
                probability=posteriors_of(logits.double())[0].detach().cpu().numpy(),
            )

    def _parts(self, portions: Iterable[Tensor]) -> tuple[Floats, Floats, Tensor]:
        """Attention ``(n,)``, posteriors ``(n, C)`` and the sum of what is averaged ``(1, ..)``."""
        network, attended, posteriors, summed = self.network, [], [], []
        with torch.inference_mode(), exact_arithmetic():
            for windows in portions:
                features = features_of(network.backbone, windows)
                share = network.attention(features).float()
                logits = network.classifier(features).float()
                value = share * (features.float() if network.pooling == "attention" else logits)
                attended.append(share[:, 0].double().cpu().numpy())
                posteriors.append(posteriors_of(logits.double()).cpu().numpy())
                summed.append(value.sum(dim=0, keepdim=True))
        return np.concatenate(attended), np.concatenate(posteriors), torch.stack(summed).sum(dim=0)

    def _probabilities(self, series: list[Series]) -> Floats:
        """Many copies at once; a window that occurs in several passes the network once."""
        found = np.empty((len(series), len(self.classes)))
        for places in portions(series, window_length=self.window_length, stride=self.stride):
            some = [series[place] for place in places]
            try:
                found[places] = self._at_once(some)
                continue
            except torch.OutOfMemoryError:
                logger.warning(
                    "there is no memory for many copies of a series at once; they are predicted one by one."
                )
            # Out of the except block: what the failed pass held is free only when its traceback is.
            found[places] = self.model._probabilities(some)
        return found

    def _at_once(self, copies: list[Series]) -> Floats:
        """Of copies of one length: sums of what is averaged, by counts of distinct windows in each."""
        device, network = self.device, self.network
        network.to(device).eval()
        scaled = [self.model.scaling_.apply(item) for item in copies]
        cut = [windows_of(entry, window_length=self.window_length, stride=self.stride) for entry in scaled]
        distinct = distinct_windows(cut)
        usable = np.stack([~windows.unusable for windows in cut])
        if not usable.any(axis=1).all():
            return self.model._probabilities(copies)  # which raises
        counts = np.zeros((len(copies), len(distinct)), dtype=np.float32)
        rows = np.broadcast_to(np.arange(len(copies))[:, None], usable.shape)
        np.add.at(counts, (rows[usable], distinct.places[usable]), 1.0)
        sums: Tensor | None = None
        with torch.inference_mode(), exact_arithmetic():
            for which, windows in distinct.passes(device):
                own = torch.from_numpy(counts[:, which]).to(device)
                part = own.double() @ network.window_values(windows).double()
                sums = part if sums is None else sums + part
            assert sums is not None, "a series has one window at least"
            logits = network.logits_of(sums.float(), torch.from_numpy(usable.sum(axis=1)).to(device))
        return require_finite(posteriors_of(logits.double()).cpu().numpy(), copies)

    def with_network(self, network: nn.Module) -> Self:
        """The same with another network."""
        other = copy.copy(self.model)
        other.backbone_ = network
        return self.of(other)

    def with_stride(self, stride: int) -> Self:
        """The same at another stride."""
        other = copy.copy(self.model)
        other.stride = stride
        return self.of(other)

    def gradient_attribution(
        self, attribution: WindowAttribution, class_: int, baseline: str, *, seed: int
    ) -> GradientAttribution | None:
        """Of a sum over windows that has the slope of the probability where the signal is.

        The probability is a function of one mean over windows. Along the path its slope is held at the signal's own
        mean, so that windows can be looked at some at a time.
        """
        device = self.device
        network = self.network.to(device).eval()
        scaled = self.model.scaling_.apply(attribution.series)
        (pool,) = self.model._pools_one_by_one([attribution.series])
        *_, summed = self._parts(pool.all_windows())
        n = len(attribution.weights)
        mean = (summed / n).detach().clone().requires_grad_(True)
        with torch.enable_grad():
            logits = network.classifier(mean) if network.pooling == "attention" else mean
            (slope,) = torch.autograd.grad(posteriors_of(logits.float())[0, class_], mean)

        def value(windows: Tensor, weights: Tensor) -> Tensor:
            return (network.window_values(windows).float() @ slope[0]).sum() / n

        return self._gradients(value, scaled, attribution, baseline, seed)

    def layers(self, series: Sequence[Series]) -> Iterator[dict[str, Floats]]:
        """Every named child of the encoder, and the features that attention reads."""
        device = self.device
        backbone = self.network.backbone.to(device).eval()
        for item in series:
            scaled = self.model.scaling_.apply(item)
            found = self._layer_outputs(backbone, scaled)
            (pool,) = self.model._pools_one_by_one([item])
            with torch.inference_mode():
                some = [features_of(backbone, windows).double().cpu() for windows in pool.all_windows()]
            found["features"] = torch.cat(some).numpy()
            yield {name: rows for name, rows in found.items() if len(rows) == len(found["features"])}


def _starts(series: Series, window_length: int, stride: int) -> NDArray[np.int64]:
    """Of the windows that are used: those with half of their samples at least."""
    windows = windows_of(series, window_length=window_length, stride=stride)
    return windows.starts[~windows.unusable]
