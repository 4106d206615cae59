"""Multiple-instance learning: windows pooled by a learned attention (MILLET, Early et al., ICLR 2024).

    windows (n, n_variates, length) -> features h (n, d) -> attention a (n, 1) in (0, 1)
        attention:    logits of a series = classifier(mean over its windows of a_k h_k)
        conjunctive:  logits of a series = mean over its windows of a_k classifier(h_k)

The windows of RAxSS are the instances and the paper's PatchTST their encoder. Trained as Alg. 1 trains: a batch
holds windows drawn from several series and is pooled within each over the windows drawn; at prediction over all
windows. Next: rocket.py, whose features are not learned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if
from torch import Tensor, nn

from raxss.benchmark.baselines.common import Given
from raxss.benchmark.baselines.loop import Indices, NetworkBaseline
from raxss.data.series import Series
from raxss.errors import SignalError, one_of
from raxss.estimator.fit import show_windows
from raxss.method.aggregation import log_posteriors, posteriors_of
from raxss.method.backbones.protocol import build_backbone, features_of
from raxss.method.sampling import epoch_batches
from raxss.method.training.settings import TrainingPlan
from raxss.method.training.step import autocast_type, mixed_precision
from raxss.method.training.window_pool import WindowPool
from raxss.method.window_scorer import exact_arithmetic, pick_device
from raxss.method.windows import WindowConfig

POOLINGS = ("attention", "conjunctive")
ATTENTION_WIDTH = 8  # of the layer inside the attention, as in MILLET


class BagNetwork(nn.Module):
    """An encoder of windows, an attention over them, and a classifier.

    The backbone has ``features(windows) -> (n, d)``. Its own last layer, where it is linear and called ``head``, is
    the classifier; else a new one is made. ``example`` are windows ``(n, n_variates, length)``, to find d.

    >>> backbone = build_backbone("patchtst", n_variates=1, window_length=64, n_outputs=1)
    >>> network = BagNetwork(backbone, torch.zeros(2, 1, 64), n_outputs=1, pooling="conjunctive")
    >>> two_series = torch.tensor([0, 1, 1])
    >>> sums, counts = network(torch.zeros(3, 1, 64), two_series, 2)
    >>> network.logits_of(sums, counts).shape
    torch.Size([2, 1])
    """

    def __init__(
        self,
        backbone: nn.Module,
        example: Tensor,
        *,
        n_outputs: int,
        pooling: Literal["attention", "conjunctive"],
    ) -> None:
        super().__init__()
        with torch.no_grad():
            width = features_of(backbone.eval(), example).shape[1]
        own = getattr(backbone, "head", None)
        self.backbone, self.pooling = backbone, pooling
        self.attention = nn.Sequential(
            nn.Linear(width, ATTENTION_WIDTH), nn.Tanh(), nn.Linear(ATTENTION_WIDTH, 1), nn.Sigmoid()
        )
        self.classifier = own if isinstance(own, nn.Linear) else nn.Linear(width, n_outputs)

    def window_values(self, windows: Tensor) -> Tensor:
        """Values to average over windows: a_k h_k ``(n, d)``, or a_k logits_k ``(n, n_outputs)``."""
        features = features_of(self.backbone, windows)
        attended = self.attention(features)
        values: Tensor = attended * (features if self.pooling == "attention" else self.classifier(features))
        return values

    def forward(self, windows: Tensor, series: Tensor, n_series: int) -> tuple[Tensor, Tensor]:
        """Sums of `window_values` ``(n_series, ..)`` and counts of the windows ``(n_series,)`` of each series."""
        values = self.window_values(windows).float()
        sums = values.new_zeros(n_series, values.shape[1]).index_add(0, series, values)
        counts = values.new_zeros(n_series).index_add(0, series, torch.ones_like(values[:, 0]))
        return sums, counts

    def logits_of(self, sums: Tensor, counts: Tensor) -> Tensor:
        """``(n_series, n_outputs)``; a series without windows has those of an average of 0."""
        means = sums / counts.clamp_min(1)[:, None]
        logits: Tensor = self.classifier(means) if self.pooling == "attention" else means
        return logits


@dataclass(eq=False, repr=False)
class MILClassifier(NetworkBaseline):
    """Windows pooled by a learned attention.

    Parameters
    ----------
    pooling
        ``"attention"`` or ``"conjunctive"``; see the head of this module.
    backbone, backbone_options, window_length, stride, scaling
        As of `RAxSSClassifier`; the backbone must have features.
    lr, start_lr, final_lr, warmup_steps, schedule_steps, weight_decay, batch_size, max_epochs, patience
        Likewise; the defaults are the paper's.
    validation_fraction, precision, device, random_state
        Likewise.

    Attributes
    ----------
    classes_, backbone_, scaling_, window_length_, history_, best_epoch_
    """

    pooling: Literal["attention", "conjunctive"] = "conjunctive"
    _: KW_ONLY
    backbone: Any = "patchtst"
    window_length: int = 1024
    stride: int = 128
    lr: float = 3e-4
    warmup_steps: int = 100
    schedule_steps: int = 700
    weight_decay: float = 1e-6
    batch_size: int = 8192
    patience: int = 5
    precision: Literal["auto", "float32", "bfloat16"] = "auto"

    def _check_parameters(self) -> None:
        one_of("pooling", self.pooling, POOLINGS)
        super()._check_parameters()
        WindowConfig(window_length=self.window_length, stride=self.stride)

    def _learn(self, given: Given) -> None:
        self.window_length_ = min(self.window_length, max(item.n_samples for item in given.series))
        super()._learn(given)

    def _before_training(self, pool: WindowPool) -> None:
        show_windows(self.backbone_.backbone, pool, seed=self.seed_)

    @available_if(lambda self: self.pooling == "conjunctive")  # type: ignore[untyped-decorator]
    def window_probabilities(self, X: Any) -> Iterator[NDArray[np.float64]]:
        """Posteriors of each window, ``(n_windows_i, C)`` of one series after the other, without unusable windows.

        With conjunctive pooling only: the posteriors of a_k logits_k, whose mean decides.
        """
        for pool in self._pools_one_by_one(self._checked(X)):
            with torch.inference_mode(), exact_arithmetic():
                values = torch.cat(
                    [self.backbone_.window_values(windows).float() for windows in pool.all_windows()]
                )
            yield posteriors_of(values.double()).cpu().numpy()

    def _pools_one_by_one(self, series: list[Series]) -> Iterator[WindowPool]:
        """Each series by itself, so that its score does not depend on others."""
        device = pick_device(self.device)
        self.backbone_.to(device).eval()
        for item in series:
            pool = self._pool([item], np.zeros(1, dtype=np.int64), device)
            if len(pool) == 0:
                raise SignalError(
                    f"no window of series {item.name!r} can be used: more than half of the samples of each are "
                    "missing. Leave this series out, or fill its gaps."
                )
            yield pool

    def _batches(self, pool: WindowPool, config: TrainingPlan, epoch: int) -> list[Indices]:
        """Windows drawn as Alg. 1 draws them."""
        return list(
            epoch_batches(
                pool.n_windows, pool.n_samples, batch_size=config.batch_size, seed=self.seed_, epoch=epoch
            )
        )

    def _loss_over(self, pool: WindowPool, config: TrainingPlan) -> Callable[[Indices], Tensor]:
        """A batch of windows -> mean over the series in it of -log p."""
        autocast = autocast_type(config, pool.device)

        def loss_of(batch: Indices) -> Tensor:
            windows, series, *_ = pool.take(torch.from_numpy(batch).to(pool.starts.device))
            with mixed_precision(pool.device, autocast):
                sums, counts = self.backbone_(windows, series, pool.n_series)
            logarithms = log_posteriors(self.backbone_.logits_of(sums, counts))
            losses = -logarithms.gather(1, pool.targets[:, None])[:, 0]
            present = (counts > 0).float()
            return (losses * present).sum() / present.sum()

        return loss_of

    def _logits(self, pool: WindowPool) -> Tensor:
        """``(n_series, n_outputs)`` over all windows of a pool, dropout off."""
        self.backbone_.eval()
        sums = counts = torch.zeros((), device=pool.device)
        n_seen = 0
        with torch.inference_mode(), exact_arithmetic():
            for windows in pool.all_windows():
                series = pool.series[n_seen : n_seen + len(windows)].to(pool.device)
                part, count = self.backbone_(windows, series, pool.n_series)
                sums, counts, n_seen = sums + part, counts + count, n_seen + len(windows)
            logits: Tensor = self.backbone_.logits_of(sums, counts)
            return logits

    def _pool(self, series: list[Series], targets: NDArray[np.int64], device: torch.device) -> WindowPool:
        """Scaled series, ready for Alg. 1; windows with more than half of it missing are left out."""
        scaled = [self.scaling_.apply(item) for item in series]
        return WindowPool.of_equals(
            scaled, targets, window_length=self.window_length_, stride=self.stride, device=device
        )

    def _build(self, n_outputs: int) -> BagNetwork:
        backbone = build_backbone(
            self.backbone,
            n_variates=self.n_variates_,
            window_length=self.window_length_,
            n_outputs=n_outputs,
            options=self.backbone_options,
        )
        example = torch.zeros(2, self.n_variates_, self.window_length_)
        return BagNetwork(backbone, example, n_outputs=n_outputs, pooling=self.pooling)
