"""What can be asked of a fitted model, whatever it is?

    Series -> WindowAttribution: what each window said, what it weighed, what came out
    many altered copies of a series -> probabilities (n_copies, C), by the model's own way of predicting
    Series, class, stand-in -> Attribution: integrated gradients on samples

A `ModelAdapter` is the model as probes see it: `WindowModelAdapter` is that of windows and weights, of
`RAxSSClassifier`; others, such as attention pooling, are beside their estimators.
Next: deletion.py, the first probe.
"""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raxss.data.series import Series
from raxss.explain.faithfulness.gradients import gradient_of, integrated_gradients
from raxss.explain.faithfulness.perturbation import STAND_INS
from raxss.explain.faithfulness.perturbed_series import one_by_one, probabilities_of_copies
from raxss.explain.faithfulness.timeline import spread
from raxss.method.aggregation import posteriors_of
from raxss.method.inference import Prediction, Predictor
from raxss.method.windows import windows_of

Floats = NDArray[np.float64]
logger = logging.getLogger("raxss")
COPIES_BYTES = 2**28  # of altered copies that are held at once
SAMPLES_A_GRADIENT = {"cpu": 2**17, "cuda": 2**21}  # of the windows in one pass; a gradient keeps every layer


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowAttribution:
    """What a model said about one series.

    Attributes
    ----------
    starts
        ``(n_windows,)`` first samples.
    posteriors
        ``(n_windows, C)`` what each window says, as it is added up.
    weights
        ``(n_windows,)``, of sum 1.
    probability
        ``(C,)`` of the series.
    neighbors
        ``(n_windows, m)``, -1 where there is none; None where none were sought.
    """

    series: Series
    starts: NDArray[np.int64]
    window_length: int
    posteriors: Floats
    weights: Floats
    probability: Floats
    neighbors: NDArray[np.int64] | None = None

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
        """weight × (posterior - series probability): what the window adds beyond what all say; they sum to 0."""
        return self.weights * (self.posteriors[:, class_] - self.probability[class_])

    def centred(self, class_: int) -> Floats:
        """posterior - series probability; 0 for windows that do not count."""
        return np.where(self.weights > 0, self.posteriors[:, class_] - self.probability[class_], 0.0)

    def over_time(self, values: Floats) -> Floats:
        """Values of windows ``(n_windows,)`` -> of samples ``(n_samples,)``."""
        return spread(values, self.starts, window_length=self.window_length, n_samples=self.series.n_samples)


@dataclass(frozen=True, eq=False)
class Attribution:
    """Integrated gradients of one series.

    Attributes
    ----------
    samples
        ``(n_samples,)`` summed over variates.
    change, found
        By how much the score differs from that of the stand-in, weights held; and how much of it the attributions
        add up to. Far from each other: steps of the network that have no slope decide.
    """

    samples: Floats
    change: float
    found: float


class ModelAdapter(Protocol):
    """A fitted model, as probes see it."""

    @property
    def classes(self) -> tuple[Any, ...]:
        """Columns of every probability."""

    @property
    def window_length(self) -> int:
        """L, in samples."""

    @property
    def stride(self) -> int:
        """Samples from one window to the next."""

    @property
    def network(self) -> nn.Module:
        """What can be scrambled."""

    @property
    def device(self) -> torch.device:
        """Where the network is asked."""

    @property
    def retrieves(self) -> bool:
        """Whether weights come from neighbours."""

    @property
    def identity(self) -> dict[str, Any]:
        """All that decides what it says: the same again is the same subject."""

    def judged(self, series: Sequence[Series], *, with_lists: bool = False) -> Iterator[WindowAttribution]:
        """One after the other; ``with_lists``: with neighbours, where the model knows any."""

    def probabilities(self, series: Iterable[Series]) -> Floats:
        """``(n_series, C)``."""

    def with_network(self, network: nn.Module) -> Self:
        """The same with another network of the same shape."""

    def with_stride(self, stride: int) -> Self:
        """The same at another stride."""

    def attribution(
        self, judged: WindowAttribution, class_: int, stand_in: str, *, seed: int
    ) -> Attribution | None:
        """Integrated gradients from a stand-in; None where no gradient reaches the samples."""

    def layers(self, series: Sequence[Series]) -> Iterator[dict[str, Floats]]:
        """What each layer says of the windows of each series: name -> ``(n_windows, d)``."""


@dataclass(frozen=True, eq=False)
class WindowModelAdapter:
    """A model of windows whose posteriors are added up with weights.

    Attributes
    ----------
    predictor
        ``model.predictor()`` of a fitted `RAxSSClassifier`.

    Examples
    --------
    >>> from raxss import RAxSSClassifier
    >>> from raxss.data.datasets import load_synthetic
    >>> series = load_synthetic(8)
    >>> model = RAxSSClassifier(window_length=128, stride=128, max_epochs=1, random_state=0).fit(series)
    >>> subject = model.model_adapter()
    >>> judged = next(subject.judged([series[0]]))
    >>> bool(abs(judged.contributions(0).sum()) < 1e-9), len(judged.weights) == len(judged.starts)
    (True, True)
    """

    predictor: Predictor
    classes: tuple[Any, ...]

    @property
    def window_length(self) -> int:
        """L, in samples."""
        return self.predictor.window_length

    @property
    def stride(self) -> int:
        """Samples from one window to the next."""
        return self.predictor.stride

    @property
    def network(self) -> nn.Module:
        """What scores a window."""
        return self.predictor.backbone

    @property
    def device(self) -> torch.device:
        """Where the network is asked."""
        return self.predictor.device

    @property
    def retrieves(self) -> bool:
        """Whether weights, or what windows say, come from neighbours."""
        return self.predictor.retrieves

    @property
    def identity(self) -> dict[str, Any]:
        """Weights of the network, and the settings of the moment."""
        item = self.predictor
        fitted = (
            item.feature_mean,
            item.feature_scale,
            *(getattr(item.scaling, name) for name in ("mean", "deviation")),
        )
        return {
            "network": digest_of(self.network),
            "fitted": [np.asarray(values, dtype=np.float64).tolist() for values in fitted],
            "classes": [str(name) for name in self.classes],
            "windows": [item.window_length, item.stride],
            "retrieval": asdict(item.retrieval),
            "aggregation": [item.weighting, item.temperature, item.smoothing],
            "calibrated": None if item.calibration is None else item.calibration.method,
            "heads": None if item.heads is None else digest_of(item.heads),
            "seed": item.seed,
        }

    def judged(self, series: Sequence[Series], *, with_lists: bool = False) -> Iterator[WindowAttribution]:
        """One after the other."""
        for prediction in self.predictor.predictions(list(series), with_lists=with_lists):
            yield judgement_of(prediction)

    def probabilities(self, series: Iterable[Series]) -> Floats:
        """``(n_series, C)``, some at a time."""
        return in_portions(self._probabilities, series, len(self.classes))

    def _probabilities(self, series: list[Series]) -> Floats:
        try:
            return probabilities_of_copies(self.predictor, series)
        except torch.OutOfMemoryError:
            told = "%s has no room for many copies of a series at once; they are asked about one by one."
            logger.warning(told, self.predictor.device)
        # Out of the except block: what the failed pass held is free only when its traceback is.
        return one_by_one(self.predictor, series)

    def with_network(self, network: nn.Module) -> Self:
        """The same with another network."""
        return replace(self, predictor=replace(self.predictor, backbone=network))

    def with_stride(self, stride: int) -> Self:
        """The same at another stride."""
        return replace(self, predictor=replace(self.predictor, stride=stride))

    def attribution(
        self, judged: WindowAttribution, class_: int, stand_in: str, *, seed: int
    ) -> Attribution | None:
        """Of the weighted sum of posteriors as the network gives them, with weights held as they are."""
        predictor = self.predictor
        network = predictor.backbone.to(predictor.device).eval()

        def value(windows: Tensor, weights: Tensor) -> Tensor:
            return (posteriors_of(network(windows).float())[:, class_] * weights).sum()

        scaled = predictor.scaling.apply(judged.series)
        return attributed(
            value,
            scaled,
            judged,
            stand_in,
            network=network,
            stride=self.stride,
            device=predictor.device,
            seed=seed,
        )

    def layers(self, series: Sequence[Series]) -> Iterator[dict[str, Floats]]:
        """Every named child of the network, and the features that windows are compared by."""
        predictor = self.predictor
        network = predictor.backbone.to(predictor.device).eval()
        has_features = callable(getattr(network, "features", None))
        for item in series:
            scaled = predictor.scaling.apply(item)
            found = heard(network, scaled, self.window_length, self.stride, predictor.device)
            if has_features:
                scores = next(predictor.window_scores([item], with_features=True))
                assert scores.features is not None, "they were asked for"
                found["features"] = predictor.compared(scores.features)
            yield found


def digest_of(network: nn.Module) -> str:
    """Of all parameters and buffers.

    >>> digest_of(nn.ReLU())
    'e3b0c44298fc1c14'
    """
    digest = hashlib.sha256()
    for name, values in network.state_dict().items():
        digest.update(f"{name} {tuple(values.shape)}".encode())
        digest.update(np.ascontiguousarray(values.detach().cpu().numpy()).tobytes())
    return digest.hexdigest()[:16]


def judgement_of(prediction: Prediction) -> WindowAttribution:
    """What probes need of a prediction."""
    added = prediction.aggregation
    return WindowAttribution(
        series=prediction.series,
        starts=prediction.windows.starts,
        window_length=prediction.windows.length,
        posteriors=added.posteriors if added.smoothed is None else added.smoothed,
        weights=added.weights,
        probability=added.series_probability,
        neighbors=None if prediction.retrieval is None else prediction.retrieval.neighbors,
    )


def in_portions(
    probabilities: Callable[[list[Series]], Floats], series: Iterable[Series], n_classes: int
) -> Floats:
    """Ask about many series, which may be made on the way, without holding all of them.

    >>> told = in_portions(lambda some: np.full((len(some), 2), 0.5), (Series([1.0]) for _ in range(3)), 2)
    >>> told.shape
    (3, 2)
    """
    found: list[Floats] = [np.zeros((0, n_classes))]
    some: list[Series] = []
    held = 0
    for item in series:
        some.append(item)
        held += item.samples.nbytes
        if held >= COPIES_BYTES:
            found.append(probabilities(some))
            some, held = [], 0
    if some:
        found.append(probabilities(some))
    return np.concatenate(found)


def attributed(
    value: Callable[[Tensor, Tensor], Tensor],
    scaled: Series,
    judged: WindowAttribution,
    stand_in: str,
    *,
    network: nn.Module,
    stride: int,
    device: torch.device,
    seed: int,
) -> Attribution | None:
    """Integrated gradients of a sum over windows, some windows at a time, added up on the samples.

    Parameters
    ----------
    value
        Windows ``(n, n_variates, length)``, their weights ``(n,)`` -> their part of the sum.
    """
    length = judged.window_length
    baseline = scaled.with_samples(STAND_INS[stand_in](scaled.samples, seed))
    both = [
        torch.from_numpy(np.nan_to_num(np.array(windows_of(item, window_length=length, stride=stride).strip)))
        .float()
        .to(device)
        .unfold(1, length, stride)
        .transpose(0, 1)
        for item in (scaled, baseline)
    ]
    weights = torch.from_numpy(judged.weights).float().to(device)
    on_samples = np.zeros(max(scaled.n_samples, length))
    change = found = 0.0
    step = max(SAMPLES_A_GRADIENT[device.type] // (length * scaled.n_variates), 1)
    for first in range(0, len(weights), step):
        rows = torch.from_numpy(judged.starts[first : first + step] // stride).to(
            device
        )  # some may be left out
        windows, start = (item[rows] for item in both)
        share = weights[first : first + step]

        def some_value(x: Tensor, share: Tensor = share) -> Tensor:
            return value(x, share.repeat(len(x) // len(share)))  # of several steps at once

        if first == 0 and gradient_of(some_value, windows, network) is None:
            return None

        def gradient(x: Tensor, some_value: Callable[[Tensor], Tensor] = some_value) -> Tensor:
            slope = gradient_of(some_value, x, network)
            return torch.zeros_like(x) if slope is None else slope

        at_once = max(step // len(windows), 1)
        told = (
            integrated_gradients(gradient, windows, start, at_once=at_once).double().sum(dim=1).cpu().numpy()
        )
        with torch.no_grad():
            change += float(some_value(windows) - some_value(start))
        found += float(told.sum())
        for place, row in zip(judged.starts[first : first + step], told, strict=True):
            on_samples[place : place + length] += row
    return Attribution(on_samples[: scaled.n_samples], change, found)


def heard(
    network: nn.Module, scaled: Series, window_length: int, stride: int, device: torch.device
) -> dict[str, Floats]:
    """What every child and grandchild of a network says of the windows of a series.

    Of outputs with places in time, mean and deviation over them; layers with nothing to learn are left out.
    """
    windows = windows_of(scaled, window_length=window_length, stride=stride)
    strip = torch.from_numpy(np.nan_to_num(np.array(windows.strip, dtype=np.float32))).to(device)
    cut = strip.unfold(1, window_length, stride).transpose(0, 1)
    said: dict[str, list[Floats]] = {}
    hooks = [
        module.register_forward_hook(_listener(said.setdefault(name, []), len(cut)))
        for name, module in network.named_modules()
        if name and name.count(".") <= 1 and any(True for _ in module.parameters())
    ]
    try:
        with torch.no_grad():
            for some in cut.split(256):
                network(some.contiguous())
    finally:
        for hook in hooks:
            hook.remove()
    whole = {name: np.concatenate(parts) for name, parts in said.items() if parts}
    return {name: item for name, item in whole.items() if len(item) == len(cut)}


def _listener(parts: list[Floats], n_windows: int) -> Callable[[nn.Module, Any, Any], None]:
    def listen(module: nn.Module, given: Any, told: Any) -> None:
        out = told[0] if isinstance(told, tuple) else told
        if not isinstance(out, Tensor) or out.ndim < 2:
            return
        flat = out.detach().float()
        if flat.ndim > 2:
            places = flat.flatten(2)
            flat = torch.cat([places.mean(dim=-1), places.std(dim=-1, correction=0)], dim=1)
        parts.append(flat.double().cpu().numpy())

    return listen


def scrambled(network: nn.Module, names: Iterable[str], *, seed: int) -> nn.Module:
    """A copy in which the numbers of each tensor of these layers are dealt out anew.

    What a layer learned is gone, while its numbers are as large as before, so that what follows it still works.

    Examples
    --------
    >>> network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    >>> other = scrambled(network, ["1"], seed=0)
    >>> torch.equal(other[0].weight, network[0].weight), torch.equal(other[1].weight, network[1].weight)
    (True, False)
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
