"""Measure ideas for networks on little data, each beside the same network without it.

    python scripts/measure_network_ideas.py --data FOLDER --out FOLDER --sets SET ... [--arms ...] [--folds 0 1]
    python scripts/measure_network_ideas.py --data FOLDER --out FOLDER --sets SET ... --check
    python scripts/measure_network_ideas.py --out FOLDER --page [--figures FILE]

Files, ``SET/SET.npz``, and parts are those of measure_default.py. The training part of run 0 is divided into three
inner folds that keep groups together; the test part is never used. The network is the one of the default mixture,
trained as `fit` trains it, up to ``--steps`` of the optimiser. Every fit writes one CSV with the posteriors of
held-out series (the plain mean over windows) and is skipped where that exists. ``--check`` compares the training
loop here with `RAxSSClassifier`, ``--page`` makes the tables, ``--figures`` a CSV with a row a fit.

Arms:

    base         as it is, seeds 0, 1 and 2
    average      weights of these, averaged over the last quarter of the steps
    ema          the same, an exponential average
    ensemble     mean of the window posteriors of the three
    distilled    one network that learns the ensemble's posteriors on the augmented windows
    distilled-b  the same, with teachers that normalise by the batch, as they did in training
    smoothing    targets of .9 and the rest spread over all classes
    mixup        windows mixed with those of other groups
    pretrained   contrast of two augmentations of a window first, as many steps, on training and held-out windows
                 without labels
    longer       no idea, but twice the steps: what `pretrained` has to be compared with
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from measure_default import load, parts
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedGroupKFold
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from raxss import RAxSSClassifier, Series
from raxss._core.atomic import write_text
from raxss.data.prepare.preprocessing import Scaling
from raxss.estimator.config import Config
from raxss.estimator.fit import augmentation_for, fresh_learner, show_windows
from raxss.method.aggregation import log_posteriors
from raxss.method.augmentation import STRONG, AugmentationConfig
from raxss.method.backbones.mixture import NETWORK
from raxss.method.sampling import epoch_orders
from raxss.method.training.loop import epoch_seed, pool_posteriors, update_batch_norm
from raxss.method.training.settings import TrainingPlan
from raxss.method.training.step import (
    Learner,
    adam,
    augmented,
    learning_rate,
    set_learning_rate,
    steps_an_epoch,
)
from raxss.method.training.window_pool import Batch, WindowPool
from raxss.method.windows import WindowConfig, plan_windows
from raxss.uncertainty.reliability import CLAMP

INNER_FOLDS, FOLDS_SEED = 3, 7
SEEDS = (0, 1, 2)  # of `base`, its averages and the ensemble
SMOOTHING = 0.1
MIXING = 0.2  # both parameters of the beta distribution
AVERAGED = 0.25  # the share of steps, the last, whose weights are averaged
DECAY = 0.99  # a step, of the exponential average
CONTRAST = {"temperature": 0.2, "width": 128, "d": 64}
NAME, OPTIONS = NETWORK["backbone"], {key: value for key, value in NETWORK.items() if key != "backbone"}
OF_EVERY_SEED = ("base", "average", "ema")
ARMS = (*OF_EVERY_SEED, "ensemble", "distilled", "distilled-b", "smoothing", "mixup", "pretrained", "longer")
CPU = torch.device("cpu")

#: Changed windows of a batch and their targets (batch, C) -> what the network is trained on.
Change = Callable[[Tensor, Tensor, Batch], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Fold:
    """All windows of one inner fold, and how a network is trained on them."""

    config: Config
    pool: WindowPool  # of training
    held_out: WindowPool
    everything: WindowPool  # of both
    groups: Tensor  # (n_series,) of training, as numbers
    n_classes: int
    plan: TrainingPlan
    augmentation: AugmentationConfig

    @property
    def n_steps(self) -> int:
        """Of the optimiser."""
        return self.plan.max_epochs * steps_an_epoch(self.plan, len(self.pool))

    def learner(self, seed: int) -> Learner:
        """The network with initial weights."""
        shape = self.pool.n_variates, self.pool.window_length, self.n_classes
        learner, _ = fresh_learner(self.config, *shape, seed=seed)
        assert learner is not None, "it is trained by gradients"
        show_windows(learner.backbone, self.pool, seed=seed)
        return learner


def inner_parts(found: dict[str, Any], fold: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of training and held-out series, all of the training part of run 0."""
    part, _ = parts(found, 0)
    splitter = StratifiedGroupKFold(INNER_FOLDS, shuffle=True, random_state=FOLDS_SEED)
    train, test = list(splitter.split(part, found["y"][part], found["g"][part]))[fold]
    return part[train], part[test]


def fold_of(found: dict[str, Any], fold: int, *, steps: int, stride: int | None, marks_padding: bool) -> Fold:
    """Windows and training plan of an inner fold, as `fit` has them; 0 steps: as many as `fit` takes."""
    train, test = inner_parts(found, fold)
    config = Config.from_parameters({"backbone": NAME, "backbone_options": OPTIONS})
    series = [Series(array, rate=found["rate"]) for array in found["arrays"]]
    scaling = Scaling.fit([series[k] for k in train], config.preparation.scaling)
    classes, targets = np.unique(found["y"], return_inverse=True)
    lengths = [series[k].n_samples for k in train]
    windows = plan_windows(WindowConfig(stride=stride or "auto"), lengths, rate=found["rate"])

    def pool_of(part: NDArray[np.int64]) -> WindowPool:
        cutting: dict[str, Any] = {"window_length": windows.window_length, "stride": windows.stride}
        cutting |= {"device": CPU, "marks_padding": marks_padding}
        pool = WindowPool.of_equals([scaling.apply(series[k]) for k in part], targets[part], **cutting)
        pool.with_mask = True  # the network takes it
        return pool

    pool = pool_of(train)
    plan = config.training.for_windows(len(pool), n_validation=0)
    if steps:
        plan = replace(plan, max_epochs=math.ceil(steps / steps_an_epoch(plan, len(pool))))
    return Fold(
        config,
        pool,
        held_out=pool_of(test),
        everything=pool_of(np.concatenate([train, test])),
        groups=torch.from_numpy(np.unique(found["g"][train], return_inverse=True)[1]),
        n_classes=len(classes),
        plan=plan,
        augmentation=augmentation_for(config, windows.window_length, n_series=len(train), trains=True),
    )


# Ideas: what a network is trained on, or how ---------------------------------------------------------------------


def unchanged(windows: Tensor, targets: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """The network as it is."""
    return windows, targets


def smoothed(windows: Tensor, targets: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Label smoothing: (1 - s) of the target, and s spread evenly over all classes."""
    return windows, (1 - SMOOTHING) * targets + SMOOTHING / targets.shape[1]


def mixing(groups: Tensor, n_variates: int) -> Change:
    """Mixup: lambda of a window and 1 - lambda of another of its batch, of another group; targets likewise.

    A sample is present where it is in one of the two.
    """

    def mixed(windows: Tensor, targets: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        own = groups[batch.series]
        scores = torch.rand(len(own), len(own)).masked_fill(own[:, None] == own, 0.0)
        scores = scores + 1e-9 * torch.eye(len(own))  # itself where there is no other group
        other = scores.argmax(dim=1)
        share = torch.distributions.Beta(MIXING, MIXING).sample((len(own),))
        values = torch.lerp(windows[other], windows, share[:, None, None])
        if batch.with_mask:
            values[:, n_variates:] = torch.maximum(windows[other, n_variates:], windows[:, n_variates:])
        return values, torch.lerp(targets[other], targets, share[:, None])

    return mixed


def taught(teachers: Sequence[nn.Module], *, by_batch: bool) -> Change:
    """Distillation: targets are the mean posteriors of teachers on the very windows, augmented.

    Statistics of batch normalisation are those of plain windows, which augmented ones may not have; ``by_batch``
    takes them from the batch.
    """
    teachers = [deepcopy(teacher) for teacher in teachers]
    for layer in (layer for teacher in teachers for layer in teacher.modules()):
        if by_batch and isinstance(layer, nn.BatchNorm1d):
            layer.running_mean = layer.running_var = None

    def posteriors(windows: Tensor, targets: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            found = [log_posteriors(teacher.eval()(windows)).exp() for teacher in teachers]
        return windows, torch.stack(found).mean(dim=0)

    return posteriors


class Averages:
    """Averages of weights over steps: plain over the last quarter, and exponential."""

    def __init__(self, n_steps: int) -> None:
        self._first, self._step = n_steps - int(AVERAGED * n_steps), 0
        self.kinds: dict[str, AveragedModel] = {}

    def __call__(self, backbone: nn.Module) -> None:
        """Add the weights after a step."""
        if not self.kinds:
            exponential = AveragedModel(backbone, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
            self.kinds = {"average": AveragedModel(backbone), "ema": exponential}
        self.kinds["ema"].update_parameters(backbone)
        if self._step >= self._first:
            self.kinds["average"].update_parameters(backbone)
        self._step += 1

    def networks(self, fold: Fold, seed: int) -> dict[str, nn.Module]:
        """Networks with averaged weights, and statistics of batch normalisation made anew."""
        for kind in self.kinds.values():
            update_batch_norm(kind.module, fold.pool, seed=epoch_seed(seed, fold.plan.max_epochs - 1))
        return {name: kind.module for name, kind in self.kinds.items()}


def contrast(left: Tensor, right: Tensor) -> Tensor:
    """NT-Xent (SimCLR): of all other windows, each must find its own other augmentation; ``(batch, d)`` twice."""
    both = F.normalize(torch.cat([left, right]), dim=1)
    scores = (both @ both.T / CONTRAST["temperature"]).fill_diagonal_(-torch.inf)
    return F.cross_entropy(scores, torch.arange(len(both)).roll(len(left)))


def pretrained(fold: Fold, seed: int) -> Learner:
    """The network after as many steps of `contrast` as training has, on windows of both parts without labels.

    Changes are the strong ones; the mask of padding stays as it is. The head is as initialised.
    """
    learner, pool, plan = fold.learner(seed), fold.everything, fold.plan
    backbone: Any = learner.backbone
    plan = replace(plan, schedule_steps=fold.n_steps)
    changes: dict[str, Any] = dict(STRONG)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(epoch_seed(seed, 10_000))
        width, d = int(CONTRAST["width"]), int(CONTRAST["d"])
        projection = nn.Sequential(nn.Linear(backbone.d, width), nn.ReLU(), nn.Linear(width, d))
        optimizer = adam(learner, plan, CPU)
        optimizer.add_param_group({"params": list(projection.parameters())})
        backbone.train()
        for step, indices in zip(range(fold.n_steps), endless_batches(pool, plan.batch_size), strict=False):
            set_learning_rate(optimizer, learning_rate(plan, step, len(pool)))
            batch = pool.take(indices)
            views = [augmented(batch, AugmentationConfig(**changes)) for _ in range(2)]
            left, right = projection(backbone.features(torch.cat(views))).chunk(2)
            optimizer.zero_grad(set_to_none=True)
            contrast(left, right).backward()
            optimizer.step()
    return learner


def endless_batches(pool: WindowPool, size: int) -> Iterator[Tensor]:
    """Whole batches of windows in a random order, again and again."""
    while True:
        for indices in torch.randperm(len(pool)).split(size):
            if len(indices) == min(size, len(pool)):
                yield indices


# Training and scores ---------------------------------------------------------------------------------------------


def trained(
    fold: Fold,
    seed: int,
    *,
    change: Change = unchanged,
    learner: Learner | None = None,
    on_step: Callable[[nn.Module], None] = lambda backbone: None,
) -> nn.Module:
    """The network after the epochs of the plan; without an idea that of `fit` without validation, to rounding."""
    learner = learner or fold.learner(seed)
    pool, plan, step = fold.pool, fold.plan, 0
    truth = F.one_hot(pool.targets, fold.n_classes).float()
    optimizer = adam(learner, plan, CPU)
    orders = epoch_orders(pool.n_windows, pool.n_samples, seed=seed, epochs=range(plan.max_epochs))
    with torch.random.fork_rng(devices=[]):
        for epoch, order in enumerate(orders):
            torch.manual_seed(epoch_seed(seed, epoch))  # dropout and augmentation
            learner.train()
            for indices in torch.from_numpy(order).split(plan.batch_size):
                set_learning_rate(optimizer, learning_rate(plan, step, len(pool)))
                batch = pool.take(indices)
                windows, targets = change(augmented(batch, fold.augmentation), truth[batch.series], batch)
                loss = -(targets * log_posteriors(learner.backbone(windows))).sum(dim=1).mean()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                on_step(learner.backbone)
                step += 1
        update_batch_norm(learner.backbone, pool, seed=epoch_seed(seed, plan.max_epochs - 1))
    return learner.backbone


def series_posteriors(networks: Sequence[nn.Module], pool: WindowPool) -> NDArray[np.float64]:
    """Mean posteriors ``(n_series, C)`` over the windows of each series, and over networks."""
    windows = torch.stack([pool_posteriors(network, pool) for network in networks]).double().mean(dim=0)
    sums = torch.zeros(pool.n_series, windows.shape[1], dtype=torch.float64).index_add(
        0, pool.series, windows
    )
    return (sums / torch.from_numpy(pool.n_windows)[:, None]).numpy()


class Networks:
    """Networks of one fold by arm and seed, trained when they are needed."""

    def __init__(self, fold: Fold) -> None:
        self.fold, self._bases = fold, dict[int, dict[str, nn.Module]]()

    def base(self, seed: int) -> dict[str, nn.Module]:
        """The network as it is, and the averages of its weights."""
        if seed not in self._bases:
            averages = Averages(self.fold.n_steps)
            network = trained(self.fold, seed, on_step=averages)
            self._bases[seed] = {"base": network} | averages.networks(self.fold, seed)
        return self._bases[seed]

    def of(self, arm: str, seed: int) -> list[nn.Module]:
        """The networks whose mean posteriors are the arm's."""
        fold = self.fold
        if arm in OF_EVERY_SEED:
            return [self.base(seed)[arm]]
        if arm == "pretrained":
            return [trained(fold, seed, learner=pretrained(fold, seed))]
        if arm == "longer":
            plan = replace(fold.plan, max_epochs=2 * fold.plan.max_epochs)
            return [trained(replace(fold, plan=plan), seed)]
        if arm == "smoothing":
            return [trained(fold, seed, change=smoothed)]
        if arm == "mixup":
            return [trained(fold, seed, change=mixing(fold.groups, fold.pool.n_variates))]
        teachers = [self.base(one)["base"] for one in SEEDS]
        change = taught(teachers, by_batch=arm == "distilled-b")
        return teachers if arm == "ensemble" else [trained(fold, seed, change=change)]


def measure(settings: argparse.Namespace) -> None:
    """Run what has no result yet."""
    for name in settings.sets:
        found = load(settings.data / name / f"{name}.npz")
        for k in settings.folds:
            fold = fold_of(found, k, steps=settings.steps, stride=settings.stride, marks_padding=True)
            networks, (_, test) = Networks(fold), inner_parts(found, k)
            for arm in settings.arms:
                for seed in SEEDS if arm in OF_EVERY_SEED else settings.seeds:
                    path = settings.out / f"{name}.{k}.{seed}.{arm}.csv"
                    if path.exists():
                        continue
                    began = time.perf_counter()
                    scores = series_posteriors(networks.of(arm, seed), fold.held_out)
                    known = {"n_steps": fold.n_steps * (1 + (arm == "longer")), "n_windows": len(fold.pool)}
                    known |= {"group": found["g"][test], "label": found["y"][test]}
                    table = pd.DataFrame(known).join(pd.DataFrame(scores, columns=np.unique(found["y"])))
                    write_text(path, table.to_csv(index=False, float_format="%.6g"))
                    print(f"{path.stem}: {shown(table)}, {time.perf_counter() - began:.1f} s", flush=True)


def check(settings: argparse.Namespace) -> None:
    """Print the figures of the arm `base`, and of `RAxSSClassifier` with the same network, on one fold.

    Alone it does not mark the padding behind short series as missing; the mixture, and the arms here, do.
    """
    for name in settings.sets:
        found = load(settings.data / name / f"{name}.npz")
        fold = fold_of(found, 0, steps=settings.steps, stride=settings.stride, marks_padding=False)
        train, test = inner_parts(found, 0)
        mine = series_posteriors([trained(fold, 0)], fold.held_out)
        series = [Series(array, rate=found["rate"]) for array in found["arrays"]]
        chosen: dict[str, Any] = {"max_epochs": fold.plan.max_epochs} if settings.steps else {}
        chosen |= {"stride": settings.stride or "auto", "backbone": NAME, "backbone_options": OPTIONS}
        model = RAxSSClassifier(validation_fraction=0.0, random_state=0, device="cpu", **chosen)
        model.fit([series[k] for k in train], found["y"][train])
        theirs = model.predict_proba([series[k] for k in test])
        for what, scores in {"here": mine, "RAxSSClassifier": theirs}.items():
            table = pd.DataFrame(scores, columns=np.unique(found["y"])).assign(label=found["y"][test])
            print(f"{name}, {what}: {shown(table)}")
        print(f"{name}: largest difference of a probability {np.abs(mine - theirs).max():.2g}", flush=True)


# Results ---------------------------------------------------------------------------------------------------------


def figures(table: pd.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Whether each series was right, and its log loss."""
    columns = [name for name in table if name not in ("n_steps", "n_windows", "group", "label")]
    scores, is_label = table[columns].to_numpy(), table["label"].to_numpy()[:, None] == np.array(columns)
    right = is_label[np.arange(len(scores)), scores.argmax(axis=1)].astype(np.float64)
    return right, -np.log(np.clip(scores[is_label], CLAMP, 1 - CLAMP))


def shown(table: pd.DataFrame) -> str:
    """Accuracy and log loss in words."""
    right, loss = figures(table)
    return f"accuracy {right.mean():.4f}, log loss {loss.mean():.4f}"


def read_fits(out: Path) -> pd.DataFrame:
    """One row a held-out series and fit."""
    found = []
    for path in sorted(out.glob("*.csv")):
        table = pd.read_csv(path, dtype={"label": str, "group": str}, float_precision="round_trip")
        rows = table[["n_steps", "n_windows", "group"]].copy()
        rows["set"], rows["fold"], rows["seed"], rows["arm"] = path.stem.split(".")
        rows["accuracy"], rows["log_loss"] = figures(table)
        found.append(rows.assign(place=np.arange(len(rows))))
    return pd.concat(found, ignore_index=True)


def figures_of(fits: pd.DataFrame) -> str:
    """CSV with the figures of every fit."""
    grouped = fits.groupby(["set", "fold", "seed", "arm", "n_windows", "n_steps"])
    found = grouped[["accuracy", "log_loss"]].mean()
    found.insert(0, "n_groups", grouped["group"].nunique())
    found.insert(0, "n_series", grouped.size())
    return found.reset_index().to_csv(index=False, float_format="%.4f", lineterminator="\n")


def paired(mine: pd.DataFrame, base: pd.DataFrame, figure: str) -> tuple[float, float]:
    """Mean difference over series of the same folds and its standard error over groups.

    Each side is a mean over its seeds. As `raxss.estimator.search.HeldOutLosses.paired`.
    """
    keys = ["fold", "group", "place"]
    gaps = (mine.groupby(keys)[figure].mean() - base.groupby(keys)[figure].mean()).dropna()
    mean = float(gaps.mean())
    sums = ((gaps - mean) / len(gaps)).groupby("group").sum().to_numpy()
    n = len(sums)
    return mean, math.sqrt(n / (n - 1) * float(sums @ sums))


def page(fits: pd.DataFrame) -> str:
    """Tables in Markdown: differences from `base` with standard errors, by set and over sets."""
    sets, lines = sorted(fits["set"].unique()), []
    parts_of = {(name, arm): part for (name, arm), part in fits.groupby(["set", "arm"])}
    for figure in ("log_loss", "accuracy"):
        bases = [parts_of[name, "base"] for name in sets]
        lines += [f"| {figure.replace('_', ' ')} | {' | '.join(sets)} | mean over sets | sets with less |"]
        lines += ["|" + "---|" * (len(sets) + 3)]
        own = [float(base[figure].mean()) for base in bases]
        lines += [f"| base | {' | '.join(f'{value:.3f}' for value in own)} | {np.mean(own):.3f} | |"]
        for arm in ARMS[1:]:
            known = [(parts_of.get((name, arm)), base) for name, base in zip(sets, bases, strict=True)]
            found = [None if mine is None else paired(mine, base, figure) for mine, base in known]
            means = [item[0] for item in found if item is not None] or [math.nan]
            cells = ["" if item is None else f"{item[0]:+.3f} ± {item[1]:.3f}" for item in found]
            error = np.std(means, ddof=1) / math.sqrt(len(means)) if len(means) > 1 else math.nan
            over_sets = f"{np.mean(means):+.3f} ± {error:.3f} | {sum(m < 0 for m in means)} of {len(means)}"
            lines.append(f"| {arm} less base | {' | '.join(cells)} | {over_sets} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Measure, check the loop, or write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=[])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--folds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="Of arms that are not base.")
    parser.add_argument("--steps", type=int, default=0, help="Of the optimiser; 0: as many as fit takes.")
    parser.add_argument("--stride", type=int, help="Of windows; by default that of fit.")
    parser.add_argument(
        "--check", action="store_true", help="Compare with RAxSSClassifier on the first fold."
    )
    parser.add_argument("--page", action="store_true", help="Print the tables of what is in --out.")
    parser.add_argument("--figures", type=Path, help="Write the figures of every fit in --out to this CSV.")
    settings = parser.parse_args()
    torch.set_num_threads(1)
    settings.out.mkdir(parents=True, exist_ok=True)
    if settings.figures is not None:
        write_text(settings.figures, figures_of(read_fits(settings.out)), overwrite=True)
    if settings.page:
        print(page(read_fits(settings.out)), end="")
    if settings.check:
        check(settings)
    elif settings.figures is None and not settings.page:
        measure(settings)


if __name__ == "__main__":
    main()
