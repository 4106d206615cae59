"""One optimiser step: loss of a minibatch and update of theta and tau.

    a batch of windows -> logits -> weights, series probabilities (Eqs. 2-3) -> loss -> theta, tau

`take_step` is the body of Alg. 1's loop. On a GPU it is recorded once as a CUDA graph and replayed.
Next: loop.py takes one step after the other.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from raxss.method.aggregation import (
    aggregate_batch,
    log_posteriors,
    negative_log_likelihood,
    posteriors_of,
)
from raxss.method.augmentation import AugmentationConfig, augment, augment_with_gaps
from raxss.method.backbones.protocol import logits_and_features
from raxss.method.feature_heads import FeatureHeads
from raxss.method.sampling import share_alone
from raxss.method.training.settings import TrainingConfig, TrainingPlan
from raxss.method.training.window_pool import Batch, WindowPool

#: A batch, and the vectors compared in feature space (None in signal space) -> support (batch,)
BatchSupport = Callable[[Batch, Tensor | None], Tensor]

STEPS_BEFORE_REPLAY = 3  # of a CUDA graph
WINDOWS_A_SERIES = 5  # in a batch: less than one window in a hundred is then the only one of its series

logger = logging.getLogger("raxss")


class Learner(nn.Module):
    """All that is trained: the backbone, the temperature where it is learned, and the heads on features."""

    def __init__(
        self, backbone: nn.Module, *, temperature: float, learned: bool, heads: FeatureHeads | None = None
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.heads = heads
        log_temperature = torch.tensor(math.log(temperature))
        if learned:
            self.log_temperature = nn.Parameter(log_temperature)
        else:
            self.register_buffer("log_temperature", log_temperature)

    def scored(self, windows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits, and features where there are heads."""
        if self.heads is None:
            return self.backbone(windows), None
        return logits_and_features(self.backbone, windows)

    @property
    def temperature(self) -> Tensor:
        """tau; its logarithm is the parameter."""
        return self.log_temperature.exp()


def batch_loss(
    logits: Tensor,  # (batch, n_outputs)
    influence: Tensor,  # (batch,)
    series: Tensor,  # (batch,) index into targets
    targets: Tensor,  # (n_series,)
    *,
    temperature: Tensor,
    window_loss_weight: float,
    series_loss_weight: float,
    class_weights: Tensor | None = None,  # (C,)
) -> Tensor:
    """Loss of one batch of windows from several series.

    L_batch = beta · mean over series i in the batch of w_y(i) L(p-hat^(i), y^(i))
            + alpha · mean over windows k in the batch of w_y(i(k)) L(p_k, y^(i(k)))

    The paper has alpha = 0 and beta = 1. The window part averages over windows, so that a series counts as often as
    it was drawn; it depends on neither weights nor temperature. The weights w of the classes are 1 unless
    ``class_weights`` has them (class_weights.py); their mean over all training series is 1, not that over a batch.
    """
    loss = torch.zeros((), device=logits.device)
    counts = None if class_weights is None else class_weights[targets]  # (n_series,)
    if window_loss_weight > 0:
        picked = log_posteriors(logits).gather(1, targets[series][:, None])[:, 0]
        picked = picked if counts is None else picked * counts[series]
        loss = loss - window_loss_weight * picked.mean()
    if series_loss_weight > 0:
        n_series = len(targets)
        probability = aggregate_batch(
            posteriors_of(logits), influence, temperature=temperature, series=series, n_series=n_series
        )
        present = torch.zeros(n_series, device=logits.device).index_fill(0, series, 1.0)
        losses = negative_log_likelihood(probability, targets)
        losses = losses if counts is None else losses * counts
        loss = loss + series_loss_weight * (losses * present).sum() / present.sum()
    return loss


def batch_influence(
    heads: FeatureHeads | None, batch: Batch, features: Tensor | None, batch_support: BatchSupport | None
) -> Tensor:  # (batch,)
    """Logits of the weights: support, from the pool or within the batch, plus the gate."""
    compared = None
    if heads is not None and features is not None:
        features = heads.standardised(features)
        compared = heads.compared(features)
    influence = batch.influence if batch_support is None else batch_support(batch, compared)
    if heads is None or heads.gate is None:
        return influence
    gate: Tensor = heads.gate(features)
    return influence + gate


def augmented(batch: Batch, augmentation: AugmentationConfig) -> Tensor:
    """The windows of a batch, changed at random; with their mask, changed likewise, where they have one."""
    if batch.present is None:
        return batch.changed(augment(batch.values, augmentation), None)
    return batch.changed(*augment_with_gaps(batch.values, batch.present, augmentation))


def take_step(
    learner: Learner,
    pool: WindowPool,
    optimizer: torch.optim.Optimizer,
    indices: Tensor,  # (batch,)
    *,
    config: TrainingConfig,
    augmentation: AugmentationConfig | None = None,
    batch_support: BatchSupport | None = None,
    autocast: torch.dtype | None = None,
    class_weights: Tensor | None = None,  # (C,)
) -> Tensor:  # ()
    """The body of Alg. 1's loop for one batch; returns its loss, which a GPU may still be computing.

    In signal space Retrieve(w_k, x^(i)) does not depend on theta: it was done before the first epoch and is in
    ``pool.influence``; feature_support.py writes support in feature space there after every epoch. With
    ``batch_support`` it is computed here, from the windows of the batch or the features of their augmentations.
    """
    batch = pool.take(indices)
    if pool.plants_gaps:
        batch = pool.plant_gaps(batch)
    windows = batch.windows if augmentation is None else augmented(batch, augmentation)
    with mixed_precision(pool.device, autocast):
        logits, features = learner.scored(windows)  # Y_i <- f_theta(w) for all series at once
    loss = batch_loss(  # Aggregate, then the loss over the series present
        logits.float(),
        batch_influence(learner.heads, batch, features, batch_support),
        batch.series,
        pool.targets,
        temperature=learner.temperature,
        window_loss_weight=config.window_loss_weight,
        series_loss_weight=config.series_loss_weight,
        class_weights=class_weights,
    )
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()  # theta <- Update(theta, L_batch)
    return loss.detach()


class ReplayedStep:  # GPU only
    """A step recorded once as a CUDA graph and replayed from then on, with the same result.

    A step of the paper's network is some three hundred small kernels. A GPU runs them in 6 ms, but the host needs
    10 ms to queue them one by one; a graph is queued as one. ``step`` maps the indices of a batch to its loss
    without synchronising; batches of another size than ``n_windows`` (the last of an epoch) are not replayed.
    """

    def __init__(self, step: Callable[[Tensor], Tensor], n_windows: int) -> None:
        self._step, self._n_windows = step, n_windows
        self._n_plain = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._indices = self._loss = torch.zeros(0)

    def __call__(self, indices: Tensor) -> Tensor:
        """Take one step; the loss is overwritten by the next one."""
        if len(indices) != self._n_windows:
            return self._step(indices)
        if self._n_plain < STEPS_BEFORE_REPLAY:  # they compile kernels and make the optimiser's memory
            self._n_plain += 1
            return self._step(indices)
        if self._graph is None and not self._record(indices):
            return self._step(indices)
        assert self._graph is not None, "it was recorded"
        self._indices.copy_(indices)
        self._graph.replay()
        return self._loss

    def _record(self, indices: Tensor) -> bool:
        """Record a step without taking it; False with one warning where that fails."""
        graph, self._indices = torch.cuda.CUDAGraph(), indices.clone()
        try:
            with _restored_on_error(indices.device), torch.cuda.graph(graph):
                self._loss = self._step(self._indices)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            logger.warning("a step cannot be recorded (%s); it is queued in pieces, which is slower", error)
            self._n_windows = -1  # no batch has this size
            return False
        self._graph = graph
        return True


@contextmanager
def _restored_on_error(device: torch.device) -> Iterator[None]:  # GPU only
    """Restore the stream and the random generator that torch leaves in a recording that failed."""
    stream = torch.cuda.current_stream(device)
    try:
        yield
    except RuntimeError:
        torch.cuda.set_stream(stream)
        generator = torch.cuda.default_generators[stream.device_index]
        generator.graphsafe_set_state(generator.clone_state())  # a copy is not in recording mode
        raise


def step_for(
    learner: Learner,
    pool: WindowPool,
    optimizer: torch.optim.Optimizer,
    *,
    config: TrainingPlan,
    **options: Any,
) -> Callable[[Tensor], Tensor]:
    """`take_step` for this learner, pool and optimiser: indices of a batch -> its loss.

    It is replayed as a CUDA graph where all data are on a GPU and the network is ``capturable``.
    """
    step: Callable[[Tensor], Tensor] = partial(take_step, learner, pool, optimizer, config=config, **options)
    on_gpu = pool.device.type == "cuda" and not pool.on_host
    if on_gpu and getattr(learner.backbone, "capturable", False):
        return ReplayedStep(step, config.batch_size)
    return step


def warn_of_small_batches(
    learner: Learner, pool: WindowPool, config: TrainingPlan, batch_support: BatchSupport | None
) -> None:
    """Warn where weights are learned from batches that hold too few windows of a series.

    The only window of its series in a batch has the weight 1 whatever its influence, so that the series loss has no
    gradient for support, gate and temperature there.
    """
    gated = learner.heads is not None and learner.heads.gate is not None
    learns = {
        "support in feature space": learner.heads is not None and batch_support is not None,
        "the gate": gated,
        "the temperature": learner.log_temperature.requires_grad,
    }
    learned = " and ".join(name for name, whether in learns.items() if whether)
    enough = min(WINDOWS_A_SERIES * int((pool.n_windows > 0).sum()), len(pool))
    if not learned or config.series_loss_weight == 0 or config.batch_size >= enough:
        return
    alone = share_alone(pool.n_windows, config.batch_size)
    logger.warning(
        "with batch_size=%d some %.0f %% of the windows are alone of their series in a batch, where the series "
        "loss teaches nothing about %s. Set batch_size to %d or more.",
        config.batch_size,
        100 * alone,
        learned,
        enough,
    )


def steps_an_epoch(config: TrainingPlan, n_windows: int) -> int:
    """Batches in one epoch."""
    return math.ceil(n_windows / config.batch_size)


def learning_rate(config: TrainingPlan, step: int, n_windows: int) -> float:
    """Learning rate of a step: linear warm-up, then half a cosine down to the final rate."""
    last = config.schedule_steps or config.max_epochs * steps_an_epoch(config, n_windows)
    warmup = min(config.warmup_steps, last // 2)  # a short run must not be all warm-up
    if step < warmup:
        return config.start_lr + (config.lr - config.start_lr) * step / warmup
    share = min((step - warmup) / max(last - warmup, 1), 1.0)
    return config.final_lr + (config.lr - config.final_lr) * (1 + math.cos(math.pi * share)) / 2


def adam(learner: Learner, config: TrainingConfig, device: torch.device) -> torch.optim.Adam:
    """The Adam optimiser; fused on a GPU, with its rate on the device."""
    own = [value for name, value in learner.named_parameters() if name == "log_temperature"]
    others = [value for name, value in learner.named_parameters() if name != "log_temperature"]
    groups = [
        {"params": others, "weight_decay": config.weight_decay},
        {"params": own, "weight_decay": 0.0},  # decay would draw tau towards 1
    ]
    groups = [group for group in groups if group["params"]]
    if device.type == "cpu":
        return torch.optim.Adam(groups, lr=config.lr)
    return torch.optim.Adam(groups, lr=torch.tensor(config.lr, device=device), fused=True, capturable=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate from the next step on."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # in place: a recorded step reads it there
        else:
            group["lr"] = rate


def autocast_type(config: TrainingConfig, device: torch.device) -> torch.dtype | None:
    """Type of mixed precision, None for float32: ``"auto"`` is bfloat16 on GPUs that have it in hardware."""
    if config.precision == "bfloat16":
        return torch.bfloat16
    if config.precision == "float32" or device.type != "cuda":
        return None
    in_hardware = torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if in_hardware else None


def mixed_precision(device: torch.device, autocast: torch.dtype | None) -> AbstractContextManager[Any]:
    """Context of mixed precision; None: no change."""
    return torch.autocast(device.type, autocast) if autocast else nullcontext()


@contextmanager
def reproducible(device: torch.device) -> Iterator[None]:
    """Deterministic CUDA algorithms; the CPU's always are."""
    if device.type != "cuda":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    # It would also fill every uninitialised tensor with NaN, which costs time.
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        memory.fill_uninitialized_memory = filled
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
