"""Settings of training: loss, optimiser, schedule, early stopping."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from raxss._core.settings import at_least, is_number
from raxss.errors import ConfigError, one_of
from raxss.method.class_weights import checked_class_weight

# For "auto":
FEWEST_STEPS = 600  # of the optimiser; with fewer, small sets were not even fitted
STEPS_AN_EPOCH = 8  # at least, within these batch sizes:
BATCH_SIZES = (8, 64)
EPOCHS = (20, 200)  # least and most, but
MOST_STEPS = (
    4000  # where 20 epochs are more than these, there are fewer: overlapping windows repeat each other
)
VALIDATIONS = 20  # in all
VALIDATION_FRACTION = 0.125  # an eighth of 80 % is the paper's 10 %
LEARNED_LOSS = 0.005  # below it training ends
FEWEST_TO_CHOOSE = 50  # validation series; the standard error of an accuracy over fewer is .07 and more


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How theta is found: loss, optimiser, schedule, early stopping."""

    window_loss_weight: float = 1.0  # the paper's alpha: 0 there
    series_loss_weight: float = 0.0  # the paper's beta: 1 there
    batch_size: int | Literal["auto"] = "auto"  # see `for_windows` for what "auto" becomes
    max_epochs: int | Literal["auto"] = "auto"
    patience: int | Literal["auto"] = "auto"  # epochs without a better validation score; 0: never stop
    lr: float = 1e-3  # the largest learning rate
    start_lr: float = 0.0
    final_lr: float = 1e-6
    warmup_steps: int = 100
    schedule_steps: int = 0  # step at which the cosine reaches final_lr; 0: the last step of max_epochs
    weight_decay: float = 1e-6
    #: Of what fit is given. "auto": none where every series is validated out of fold, else `VALIDATION_FRACTION`.
    validation_fraction: float | Literal["auto"] = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 where a GPU has it
    update_batch_norm: bool = True  # recompute statistics over the training windows before they are used
    class_weight: Mapping[str, float] | str = field(default_factory=dict)  # label -> weight, or "balanced"

    def __post_init__(self) -> None:
        for name, least in {"batch_size": 1, "max_epochs": 1, "patience": 0}.items():
            if getattr(self, name) != "auto":
                at_least(f"training.{name}", getattr(self, name), least, otherwise=" or 'auto'")
        for name in ("warmup_steps", "schedule_steps"):
            at_least(f"training.{name}", getattr(self, name), 0)
        if not isinstance(self.update_batch_norm, bool):
            raise ConfigError(
                f"training.update_batch_norm must be true or false, got {self.update_batch_norm!r}."
            )
        weights = ("window_loss_weight", "series_loss_weight", "weight_decay")
        for name in (*weights, "lr", "start_lr", "final_lr"):
            at_least(f"training.{name}", getattr(self, name), 0, whole=False)
        if self.window_loss_weight + self.series_loss_weight == 0:
            raise ConfigError(
                "training.window_loss_weight and training.series_loss_weight are both 0, so nothing would be "
                "learned. Set one of them above 0."
            )
        fraction = self.validation_fraction
        if fraction != "auto" and not (is_number(fraction) and 0 <= fraction < 1):
            raise ConfigError(
                "training.validation_fraction must be at least 0 and below 1, or 'auto', got "
                f"{self.validation_fraction!r}."
            )
        one_of("training.precision", self.precision, ("auto", "float32", "bfloat16"))
        object.__setattr__(self, "class_weight", checked_class_weight(self.class_weight))

    def for_windows(self, n_windows: int, *, n_validation: int = FEWEST_TO_CHOOSE) -> TrainingPlan:
        """Resolve ``"auto"`` for a number of training windows and of validation series.

        Batches hold an eighth of the windows, from 8 to 64. There are 20 epochs, or as many more (200 at most) as
        make 600 steps, or as many fewer as make 4000, unless the loss falls below .005 before. Patience is a
        quarter of the epochs; with fewer than 50 validation series, which would choose an epoch by chance, there is
        no early stopping.

        Examples
        --------
        >>> plan = TrainingConfig().for_windows(44, n_validation=6)
        >>> plan.batch_size, plan.max_epochs, plan.patience, plan.chooses_epoch
        (8, 100, 0, False)
        >>> plan = TrainingConfig().for_windows(10_000)
        >>> plan.batch_size, plan.max_epochs, plan.patience, plan.chooses_epoch
        (64, 20, 5, True)
        """
        if self.batch_size == "auto":
            power_of_two = 2 ** int(math.log2(max(n_windows // STEPS_AN_EPOCH, 1)))
            batch_size = min(max(power_of_two, BATCH_SIZES[0]), BATCH_SIZES[1])
        else:
            batch_size = self.batch_size
        if self.max_epochs == "auto":
            an_epoch = math.ceil(max(n_windows, 1) / batch_size)
            least = min(EPOCHS[0], math.ceil(MOST_STEPS / an_epoch))
            max_epochs = min(max(math.ceil(FEWEST_STEPS / an_epoch), least), EPOCHS[1])
        else:
            max_epochs = self.max_epochs
        chooses = self.patience != "auto" or n_validation >= FEWEST_TO_CHOOSE
        if self.patience == "auto":
            patience = max(math.ceil(max_epochs / 4), 5) if chooses else 0
        else:
            patience = self.patience
        settings = {setting.name: getattr(self, setting.name) for setting in dataclasses.fields(self)}
        numbers = {"batch_size": batch_size, "max_epochs": max_epochs, "patience": patience}
        automatic = self.max_epochs == "auto"
        return TrainingPlan(
            **(settings | numbers),
            chooses_epoch=chooses,
            validate_every=max(max_epochs // VALIDATIONS, 1) if automatic else 1,
            stop_loss=LEARNED_LOSS if automatic else 0.0,
        )


@dataclass(frozen=True, kw_only=True)
class TrainingPlan(TrainingConfig):
    """`TrainingConfig` with every ``"auto"`` resolved; made by `TrainingConfig.for_windows`."""

    batch_size: int
    max_epochs: int
    patience: int
    chooses_epoch: bool = True  # by the validation set; else the last epoch is kept
    validate_every: int = 1  # epochs, and after the last
    stop_loss: float = 0.0  # training ends with an epoch whose mean loss is below this

    def validates(self, epoch: int, loss: float) -> bool:
        """Whether the validation set is scored after an epoch, counted from 1: every n-th, and the last."""
        return epoch == self.max_epochs or loss < self.stop_loss or epoch % self.validate_every == 0
