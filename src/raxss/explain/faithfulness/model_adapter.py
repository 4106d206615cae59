"""Model adapters: the interface through which faithfulness probes use a fitted model.

    Series -> WindowAttribution: posteriors and weights of windows, probability of the series
    many perturbed copies of a series -> probabilities (n_copies, C), by the model's own way of predicting
    Series, class, baseline -> GradientAttribution: integrated gradients on samples

`WindowModelAdapter` is that of `RAxSSClassifier`; others, such as attention pooling, are beside their estimators.
"""

from __future__ import annotations

import copy
import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raxss.data.series import Series
from raxss.explain.faithfulness.gradients import gradient_of, integrated_gradients
from raxss.explain.faithfulness.perturbation import BASELINES
from raxss.explain.faithfulness.perturbed_series import one_by_one, probabilities_of_copies
from raxss.explain.faithfulness.timeline import spread
from raxss.method.aggregation import posteriors_of
from raxss.method.backbones.protocol import handles_missing
from raxss.method.backbones.window_classifiers import is_fitted_at_once
from raxss.method.context import ContextRule, add_context, takes_context
from raxss.method.inference import Predictor
from raxss.method.window_scorer import context_for, strip_for
from raxss.method.windows import missing_samples, network_strip, windows_of

Floats = NDArray[np.float64]
logger = logging.getLogger("raxss")
NO_GRADIENTS = "does not apply: the window classifiers have no gradients"
NO_LAYERS = "does not apply: the window classifiers have no layers"
COPIES_BYTES = 2**28  # of perturbed copies that are held at once
SAMPLES_A_GRADIENT = {"cpu": 2**17, "cuda": 2**21}  # of the windows in one pass; a gradient keeps every layer


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowAttribution:
    """Windows of one series with their posteriors and weights, and its probability."""

    series: Series
    starts: NDArray[np.int64]  # (n_windows,) first samples
    window_length: int
    posteriors: Floats  # (n_windows, C), smoothed where the model smooths them
    weights: Floats  # (n_windows,), of sum 1
    probability: Floats  # (C,) of the series
    neighbors: NDArray[np.int64] | None = None  # (n_windows, m), -1: none; None where none were sought

    @property
    def predicted(self) -> int:
        """Place of the most likely class."""
        return int(self.probability.argmax())

    @property
    def weights_differ(self) -> bool:
        """Whether some windows weigh more than others; equal weights put nothing in order."""
        used = self.weights[self.weights > 0]
        return bool(len(used) > 1 and np.ptp(used) > 1e-9 * used.max())

    def contributions(self, class_: int) -> Floats:
        """weight × (posterior - series probability); they sum to 0."""
        return self.weights * (self.posteriors[:, class_] - self.probability[class_])

    def centred(self, class_: int) -> Floats:
        """posterior - series probability; 0 for windows that do not count."""
        return np.where(self.weights > 0, self.posteriors[:, class_] - self.probability[class_], 0.0)

    def over_time(self, values: Floats) -> Floats:
        """Values of windows ``(n_windows,)`` -> of samples ``(n_samples,)``."""
        return spread(values, self.starts, window_length=self.window_length, n_samples=self.series.n_samples)


@dataclass(frozen=True, eq=False)
class GradientAttribution:
    """Integrated gradients of one series."""

    samples: Floats  # (n_samples,) summed over variates
    change: float  # difference of the score from that of the baseline, weights held
    found: float  # sum of the attributions; far from `change` where steps without a slope decide


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelAdapter(ABC):
    """Interface of a fitted model for the probes."""

    classes: tuple[Any, ...]  # columns of every probability
    window_length: int
    stride: int
    network: nn.Module  # that scores windows
    device: torch.device
    retrieves: bool  # whether weights, or what windows say, come from neighbours

    @property
    def is_fitted_at_once(self) -> bool:
        """Whether window classifiers score windows, alone or beside a network: they have no gradients."""
        return is_fitted_at_once(self.network)

    @property
    def has_layers(self) -> bool:
        """Whether there are layers to randomise: of a network, also where it is a member of a mixture."""
        return not self.is_fitted_at_once or any(True for _ in self.network.parameters())

    @property
    def takes_context(self) -> bool:
        """Whether scores depend on the context of windows."""
        return takes_context(self.network)

    @property
    def identity(self) -> dict[str, Any]:
        """All that decides its outputs, for hashes."""
        return {
            "network": digest_of(self.network),
            "classes": [str(name) for name in self.classes],
            "windows": [self.window_length, self.stride],
        }

    @abstractmethod
    def attributions(
        self, series: Sequence[Series], *, with_lists: bool = False
    ) -> Iterator[WindowAttribution]:
        """One for each series; ``with_lists``: with neighbours, where the model has any."""

    def probabilities(self, series: Iterable[Series]) -> Floats:
        """``(n_series, C)``, some series at a time, so that not all are held."""
        found: list[Floats] = [np.zeros((0, len(self.classes)))]
        some: list[Series] = []
        held = 0
        for item in series:
            some.append(item)
            held += item.samples.nbytes
            if held >= COPIES_BYTES:
                found.append(self._probabilities(some))
                some, held = [], 0
        if some:
            found.append(self._probabilities(some))
        return np.concatenate(found)

    @abstractmethod
    def _probabilities(self, series: list[Series]) -> Floats:
        """Of series that are held at once."""

    @abstractmethod
    def with_network(self, network: nn.Module) -> Self:
        """The same with another network of the same shape."""

    @abstractmethod
    def with_stride(self, stride: int) -> Self:
        """The same at another stride."""

    @abstractmethod
    def gradient_attribution(
        self, attribution: WindowAttribution, class_: int, baseline: str, *, seed: int
    ) -> GradientAttribution | None:
        """Integrated gradients from a baseline; None where no gradient reaches the samples."""

    @abstractmethod
    def layers(self, series: Sequence[Series]) -> Iterator[dict[str, Floats]]:
        """Outputs of each layer for the windows of each series: name -> ``(n_windows, d)``."""

    def _gradients(
        self,
        value: Callable[[Tensor, Tensor], Tensor],
        scaled: Series,
        attribution: WindowAttribution,
        baseline: str,
        seed: int,
    ) -> GradientAttribution | None:
        """Integrated gradients of a sum over windows, some windows at a time, added up on the samples.

        ``value``: windows ``(n, n_variates, length)``, weights ``(n,)`` -> their part of the sum.
        """
        length, stride, device, network = attribution.window_length, self.stride, self.device, self.network
        start_of_path = scaled.with_samples(BASELINES[baseline](scaled.samples, seed))
        cut = windows_of(scaled, window_length=length, stride=stride)
        own, context = (
            strip_for(network, cut),
            context_for(network, cut),
        )  # the context is the same along the path
        missing = missing_samples(own)
        masked = bool(missing.any()) and handles_missing(network)  # the mask is the same along the path
        strips = [network_strip(own, with_mask=masked)]
        path = windows_of(start_of_path, window_length=length, stride=stride).strip
        strips.append(network_strip(np.where(missing, np.nan, path), with_mask=masked))
        both = [
            torch.from_numpy(strip).to(device).unfold(1, length, stride).transpose(0, 1) for strip in strips
        ]
        weights = torch.from_numpy(attribution.weights).float().to(device)
        on_samples = np.zeros(max(scaled.n_samples, length))
        change = found = 0.0
        step = max(SAMPLES_A_GRADIENT[device.type] // (length * scaled.n_variates), 1)
        for first in range(0, len(weights), step):
            starts = attribution.starts[first : first + step]  # some may be left out
            rows = torch.from_numpy(starts // stride).to(device)
            where = None if context is None else context[starts // stride].to(device)
            windows, start = (add_context(item[rows], where) for item in both)
            share = weights[first : first + step]

            def some_value(x: Tensor, share: Tensor = share) -> Tensor:
                return value(x, share.repeat(len(x) // len(share)))  # of several steps at once

            if first == 0 and gradient_of(some_value, windows, network) is None:
                return None

            def gradient(x: Tensor, some_value: Callable[[Tensor], Tensor] = some_value) -> Tensor:
                slope = gradient_of(some_value, x, network)
                return torch.zeros_like(x) if slope is None else slope

            at_once = max(step // len(windows), 1)
            gradients = integrated_gradients(gradient, windows, start, at_once=at_once)
            values = gradients.double().sum(dim=1).cpu().numpy()
            with torch.no_grad():
                change += float(some_value(windows) - some_value(start))
            found += float(values.sum())
            for place, row in zip(starts, values, strict=True):
                on_samples[place : place + length] += row
        return GradientAttribution(on_samples[: scaled.n_samples], change, found)

    def _layer_outputs(self, network: nn.Module, scaled: Series) -> dict[str, Floats]:
        """Outputs of every child and grandchild of a network for the windows of a series.

        Of outputs with a time axis, mean and deviation over it; layers without parameters are left out.
        """
        windows = windows_of(scaled, window_length=self.window_length, stride=self.stride)
        samples, context = strip_for(network, windows), context_for(network, windows)
        masked = bool(missing_samples(samples).any()) and handles_missing(network)
        strip = torch.from_numpy(network_strip(samples, with_mask=masked)).to(self.device)
        cut = strip.unfold(1, self.window_length, self.stride).transpose(0, 1)
        outputs: dict[str, list[Floats]] = {}

        def record(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
            output = output[0] if isinstance(output, tuple) else output
            if not isinstance(output, Tensor) or output.ndim < 2:
                return
            flat = output.detach().float()
            if flat.ndim > 2:
                places = flat.flatten(2)
                flat = torch.cat([places.mean(dim=-1), places.std(dim=-1, correction=0)], dim=1)
            outputs.setdefault(name, []).append(flat.double().cpu().numpy())

        hooks = [
            module.register_forward_hook(partial(record, name))
            for name, module in network.named_modules()
            if name and name.count(".") <= 1 and any(True for _ in module.parameters())
        ]
        try:
            with torch.no_grad():
                for first in range(0, len(cut), 256):
                    which = slice(first, first + 256)
                    where = None if context is None else context[which].to(self.device)
                    network(add_context(cut[which].contiguous(), where))
        finally:
            for hook in hooks:
                hook.remove()
        whole = {name: np.concatenate(parts) for name, parts in outputs.items()}
        return {name: item for name, item in whole.items() if len(item) == len(cut)}


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowModelAdapter(ModelAdapter):
    """A model of windows whose posteriors are added up with weights."""

    predictor: Predictor

    @classmethod
    def of(cls, predictor: Predictor, classes: tuple[Any, ...]) -> Self:
        """Adapter of a predictor."""
        return cls(
            predictor=predictor,
            classes=classes,
            window_length=predictor.window_length,
            stride=predictor.stride,
            network=predictor.backbone,
            device=predictor.device,
            retrieves=predictor.retrieves,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """Weights of the network, and the settings of the moment."""
        item = self.predictor
        fitted = (item.feature_mean, item.feature_scale, item.scaling.mean, item.scaling.deviation)
        return super().identity | {
            "fitted": [np.asarray(values, dtype=np.float64).tolist() for values in fitted],
            "retrieval": asdict(item.retrieval),
            "aggregation": [item.weighting, item.temperature, item.smoothing],
            "calibrated": None if item.calibration is None else item.calibration.method,
            "heads": None if item.heads is None else digest_of(item.heads),
            "seed": item.seed,
        }

    def attributions(
        self, series: Sequence[Series], *, with_lists: bool = False
    ) -> Iterator[WindowAttribution]:
        """One for each series."""
        for prediction in self.predictor.predictions(list(series), with_lists=with_lists):
            added = prediction.aggregation
            yield WindowAttribution(
                series=prediction.series,
                starts=prediction.windows.starts,
                window_length=prediction.windows.length,
                posteriors=added.posteriors if added.smoothed is None else added.smoothed,
                weights=added.weights,
                probability=added.series_probability,
                neighbors=None if prediction.retrieval is None else prediction.retrieval.neighbors,
            )

    def _probabilities(self, series: list[Series]) -> Floats:
        try:
            return probabilities_of_copies(self.predictor, series)
        except torch.OutOfMemoryError:
            message = "%s has no room for many copies of a series at once; they are scored one by one."
            logger.warning(message, self.device)
        # Out of the except block: what the failed pass held is free only when its traceback is.
        return one_by_one(self.predictor, series)

    def with_network(self, network: nn.Module) -> Self:
        """The same with another network."""
        return self.of(replace(self.predictor, backbone=network), self.classes)

    def with_context(self, rule: ContextRule) -> Self:
        """The same with another context of windows."""
        return self.of(replace(self.predictor, context=rule), self.classes)

    def with_stride(self, stride: int) -> Self:
        """The same at another stride."""
        return self.of(replace(self.predictor, stride=stride), self.classes)

    def gradient_attribution(
        self, attribution: WindowAttribution, class_: int, baseline: str, *, seed: int
    ) -> GradientAttribution | None:
        """Of the weighted sum of posteriors as the network gives them, with weights held as they are."""
        if self.is_fitted_at_once:
            return None
        network = self.network.to(self.device).eval()

        def value(windows: Tensor, weights: Tensor) -> Tensor:
            return (posteriors_of(network(windows).float())[:, class_] * weights).sum()

        scaled = self.predictor.scaling.apply(attribution.series)
        return self._gradients(value, scaled, attribution, baseline, seed)

    def layers(self, series: Sequence[Series]) -> Iterator[dict[str, Floats]]:
        """Every named child of the network, and the features that windows are compared by."""
        predictor = self.predictor
        network = self.network.to(self.device).eval()
        has_features = callable(getattr(network, "features", None))
        for item in series:
            found = self._layer_outputs(network, predictor.scaling.apply(item))
            if has_features:
                scores = next(predictor.window_scores([item], with_features=True))
                assert scores.features is not None, "with_features=True returns them"
                found["features"] = predictor.compared(scores.features)
            yield found


def digest_of(network: nn.Module) -> str:
    """First 16 hex digits of the SHA-256 of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, values in network.state_dict().items():
        digest.update(f"{name} {tuple(values.shape)}".encode())
        digest.update(np.ascontiguousarray(values.detach().cpu().numpy()).tobytes())
    return digest.hexdigest()[:16]


def scrambled(network: nn.Module, names: Iterable[str], *, seed: int) -> nn.Module:
    """Copy of a network in which the values of each tensor of these layers are permuted.

    What a layer learned is lost, while its values are as large as before, so that the layers after it still work.
    """
    other = copy.deepcopy(network)
    generator = torch.Generator().manual_seed(seed)
    wanted = tuple(names)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if any(name == item or name.startswith(f"{item}.") for item in wanted):
                values = parameter.flatten()
                order = torch.randperm(len(values), generator=generator).to(values.device)
                parameter.copy_(values[order].view_as(parameter))
    return other
