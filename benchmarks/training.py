"""One step of training, and one seed of the paper.

    python -m benchmarks.training step [--device cuda] [--json FILE]
    python -m benchmarks.training seed [--device cuda] [--epochs 50] [--json FILE]

`step_rate`: windows a second of whole training steps (sample, gather, forward, segment softmax, loss, backward,
update), ours through `raxss.method.training.loop.train` and the plain reference of sss_reference.py, in turn,
medians over rounds. Before any number is shown, both compute the loss of one batch from equal weights, and must
agree.
`one_seed`: the paper's preset on series as long as those of ds003029, through the public estimator.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.signal import lfilter
from torch import Tensor

from benchmarks import sss_reference
from benchmarks.common import SEED, Disagreement, recorded, table, tell, timed
from raxss import RAxSSClassifier, Series
from raxss._core import atomic as storage
from raxss.estimator import fit as fitting
from raxss.estimator.config import Config
from raxss.method.backbones import build_backbone, n_parameters
from raxss.method.training import loop as training
from raxss.method.training.loop import train, train_epoch
from raxss.method.training.settings import TrainingConfig, TrainingPlan
from raxss.method.training.step import (
    STEPS_BEFORE_REPLAY,
    Learner,
    adam,
    autocast_type,
    batch_loss,
    reproducible,
    step_for,
)
from raxss.method.training.step_memory import step_bytes
from raxss.method.training.window_pool import Batch, WindowPool

LENGTHS = Path(__file__).with_name("ds003029_lengths.csv")
STRIDE = 5
POOLING = 24, 12  # kernel and stride of the paper's average pooling
DIFFERENCE = 1e-4  # of two losses in single precision, from equal weights
DIFFERENCE_MIXED = 2e-2  # the same where ours multiplies in bfloat16


# One step -------------------------------------------------------------------------------------------------


def step_rate(
    device: str = "cpu",
    *,
    batch: int = 8192,
    reference_batch: int | None = None,
    n_steps: int | None = None,
    n_reference_steps: int | None = None,
    n_rounds: int = 3,
    n_series: int = 560,
    window_length: int = 1024,
    n_workers: int = 0,
) -> dict[str, Any]:
    """Windows a second of whole training steps: ours, the reference, and the reference without its loader.

    Parameters
    ----------
    batch, reference_batch
        Windows a step. On a CPU the reference takes 1024 at a time: 8192 would take a minute and much memory,
        and its time goes with the number of windows.
    n_steps, n_reference_steps
        Steps that one round times; ours are one epoch of that many.
    n_workers
        Of the reference's loader; 0, its default, loads in the training process.
    """
    on_gpu = torch.device(device).type == "cuda"
    reference_batch = reference_batch or (batch if on_gpu else min(batch, 1024))
    n_steps, n_reference_steps = n_steps or (256 if on_gpu else 1), n_reference_steps or (8 if on_gpu else 1)
    n_windows = max(n_steps * batch, n_reference_steps * reference_batch)
    task = Task.of(n_series, n_windows, window_length, device)
    agreement = _agreement(task, min(reference_batch, 1024))
    contenders: dict[str, Callable[[], float]] = {
        "raxss": lambda: _our_rate(task, batch),
        "reference": _reference(task, reference_batch, n_reference_steps, n_workers),
        "reference without its loader": _reference(task, reference_batch, n_reference_steps, None),
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(n_rounds):
        for name, run in contenders.items():
            rates[name].append(run())
            tell(f"round {turn + 1} of {n_rounds}: {name} {rates[name][-1]:,.0f} windows/s")
    medians = {name: statistics.median(every) for name, every in rates.items()}
    return {
        "settings": {
            "preset": "paper",
            "n_series": n_series,
            "window_length": window_length,
            "batch": batch,
            "reference_batch": reference_batch,
            "steps_a_round": n_steps,
            "reference_steps_a_round": n_reference_steps,
            "rounds": n_rounds,
            "reference_workers": n_workers,
            "threads": torch.get_num_threads(),
            "precision": str(task.autocast or torch.float32),
        },
        "agreement": agreement,
        "windows_per_second": medians,
        "every_round": rates,
        "times_the_reference": medians["raxss"] / medians["reference"],
        "times_the_reference_without_its_loader": medians["raxss"] / medians["reference without its loader"],
        "memory_of_a_step_gb": _memory_of_a_step(task, batch),
        "parts_ms": _parts(task, batch, n_repeats=20 if on_gpu else 1),
    }


@dataclass(frozen=True, eq=False)
class Task:
    """Noise that all contenders learn from: what it is does not matter for how long a step takes."""

    series: list[NDArray[np.float32]]
    labels: NDArray[np.int64]
    window_length: int
    device: torch.device

    @classmethod
    def of(cls, n_series: int, n_windows: int, window_length: int, device: str) -> Task:
        """Series of about equal lengths that have so many windows in all."""
        rng = np.random.default_rng(SEED)
        counts = np.full(n_series, n_windows // n_series) + (np.arange(n_series) < n_windows % n_series)
        lengths = window_length + STRIDE * (counts[counts > 0] - 1)
        series = [rng.normal(size=n).astype(np.float32) for n in lengths]
        return cls(series, np.arange(len(series)) % 2, window_length, torch.device(device))

    @property
    def autocast(self) -> torch.dtype | None:
        """What our training multiplies in."""
        return autocast_type(TrainingConfig(), self.device)

    def pool(self) -> WindowPool:
        """For ours, with support drawn at random."""
        rng = np.random.default_rng(SEED)
        counts = [(len(item) - self.window_length) // STRIDE + 1 for item in self.series]
        return WindowPool(
            [Series(item) for item in self.series],
            self.labels,
            [rng.uniform(0.8, 1.0, size=count) for count in counts],
            [np.zeros(count, dtype=bool) for count in counts],
            window_length=self.window_length,
            stride=STRIDE,
            device=self.device,
        )

    def learner(self, **options: float) -> Learner:
        """Ours, with the initial weights of one seed."""
        torch.manual_seed(SEED)
        backbone = build_backbone(
            "patchtst", n_variates=1, window_length=self.window_length, n_outputs=1, options=options
        )
        return Learner(backbone, temperature=0.1, learned=False).to(self.device)

    def optimizer(self, learner: Learner) -> torch.optim.Optimizer:
        """As `raxss.method.training.loop.train` has it."""
        return adam(learner, _paper_training(1), self.device)

    def score(self, learner: Learner, windows: Tensor, precision: torch.dtype | None) -> Tensor:
        """Logits of our network under this precision."""
        with torch.autocast(self.device.type, precision or torch.bfloat16, enabled=precision is not None):
            logits: Tensor = learner.backbone(windows)
        return logits.float()


def _paper_training(batch: int) -> TrainingPlan:
    """The paper's training, for two epochs."""
    changed = {"batch_size": batch, "max_epochs": 2, "patience": 0}
    return Config.preset("paper").updated({"training": changed}).training.for_windows(batch)


class _Clock:
    """A callback that notes when training began, when each epoch ended, and when it was over."""

    def __init__(self) -> None:
        self.begun = self.ended = 0.0
        self.epochs: list[float] = []

    def on_train_begin(self, n_epochs: int, n_steps: int) -> None:
        self.begun = time.perf_counter()

    def on_step(self, epoch: int, step: int) -> None:
        pass

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        self.epochs.append(time.perf_counter())

    def on_train_end(self) -> None:
        self.ended = time.perf_counter()


def _our_rate(task: Task, batch: int) -> float:
    """Two epochs; the first, in which kernels may be compiled, is not counted."""
    pool, clock, config = task.pool(), _Clock(), _paper_training(batch)
    train(task.learner(), pool, None, config=config, seed=SEED, fingerprint="bench", callbacks=[clock])
    first, second = clock.epochs
    return len(pool) / (second - first)


def _reference(task: Task, batch: int, n_steps: int, n_workers: int | None) -> Callable[[], float]:
    """A function that times so many steps; where no workers are named the batches lie on the device, ready."""
    dataset = sss_reference.WindowDataset(
        task.series, task.labels.tolist(), window_length=task.window_length, stride=STRIDE
    )
    loader = sss_reference.loader_of(dataset, batch_size=batch, n_workers=n_workers or 0, seed=SEED)
    torch.manual_seed(SEED)
    network = sss_reference.TextbookPatchTST(task.window_length).to(task.device)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-4, weight_decay=1e-6)
    stream: Iterator[Any] = itertools.chain.from_iterable(itertools.repeat(loader))  # epoch after epoch
    windows, indices, truth = (item.to(task.device) for item in next(stream))
    few = slice(min(batch, 64))
    sss_reference.train_on(network, optimizer, [(windows[few], indices[few], truth[few])], task.device)

    def run() -> float:
        batches: Iterator[Any] = itertools.islice(stream, n_steps)
        if n_workers is None:
            batches = itertools.repeat((windows, indices, truth), n_steps)
        seconds, log = timed(
            lambda: sss_reference.train_on(network, optimizer, batches, task.device), str(task.device)
        )
        return len(log) * batch / seconds

    return run


def _agreement(task: Task, batch: int) -> dict[str, Any]:
    """The loss of one batch from equal weights, without dropout and with equal shares for all windows.

    Both networks are in training mode: BatchNorm takes the statistics of the batch.
    """
    pool = task.pool()
    learner = task.learner(dropout=0.0, attention_dropout=0.0).train()
    reference = sss_reference.TextbookPatchTST(task.window_length, dropout=0.0).to(task.device).train()
    sss_reference.copy_weights(learner.backbone, reference)
    picked = np.sort(np.random.default_rng(SEED).permutation(len(pool))[:batch])
    taken = pool.take(torch.from_numpy(picked).to(task.device))

    def ours(precision: torch.dtype | None) -> float:
        logits = task.score(learner, taken.windows, precision)
        equal = torch.zeros_like(taken.influence)
        return _paper_loss(logits, taken._replace(influence=equal), pool, learner).item()

    with torch.no_grad():
        with reproducible(task.device):
            exact, mixed = ours(None), ours(task.autocast)
        logits, labels = reference(taken.windows), pool.targets[taken.series].float()
        theirs = sss_reference.series_loss(logits, taken.series, labels).item()
    if not abs(exact - theirs) <= DIFFERENCE or not abs(mixed - theirs) <= DIFFERENCE_MIXED:
        raise Disagreement(
            f"from equal weights the loss is {exact:.7f} (in training precision {mixed:.7f}), the reference's "
            f"{theirs:.7f}"
        )
    return {
        "loss": exact,
        "difference": abs(exact - theirs),
        "difference_in_training_precision": abs(mixed - theirs),
        "parameters": [n_parameters(learner.backbone), n_parameters(reference)],
    }


def _paper_loss(logits: Tensor, batch: Batch, pool: WindowPool, learner: Learner) -> Tensor:
    return batch_loss(
        logits,
        batch.influence,
        batch.series,
        pool.targets,
        temperature=learner.temperature,
        window_loss_weight=0.0,
        series_loss_weight=1.0,
    )


def _memory_of_a_step(task: Task, batch: int) -> dict[str, float | None]:
    """The figures known before training starts, and on a GPU what one step took at its peak."""
    learner, pool = task.learner(), task.pool()
    kept = step_bytes(learner.backbone, pool, batch, autocast=task.autocast)
    if task.device.type != "cuda":
        return {"kept_for_the_way_back": kept / 1e9, "peak": None}
    torch.cuda.reset_peak_memory_stats(task.device)
    before = torch.cuda.memory_allocated(task.device)
    _steps(task, learner, pool, batch, 1)
    peak = torch.cuda.max_memory_allocated(task.device) - before
    return {"kept_for_the_way_back": kept / 1e9, "peak": peak / 1e9}


def _steps(
    task: Task,
    learner: Learner,
    pool: WindowPool,
    batch: int,
    n_steps: int,
    on_step: Callable[[int], None] = lambda step: None,
) -> None:
    """So many steps as training takes them."""
    config, optimizer = _paper_training(batch), task.optimizer(learner)
    step = step_for(learner, pool, optimizer, config=config, autocast=task.autocast)
    order = np.arange(n_steps * batch) % len(pool)
    train_epoch(step, learner, pool, optimizer, config=config, order=order, first_step=0, on_step=on_step)


def _parts(task: Task, batch: int, *, n_repeats: int) -> dict[str, float]:
    """Where the time of one of our steps goes, in milliseconds.

    On a GPU what the device is busy with; the last line is how long the host takes to queue a whole step. As long
    as that is less than the sum of the others, the GPU never waits for the host.
    """
    pool, learner = task.pool(), task.learner().train()
    optimizer = task.optimizer(learner)
    measure = _busy_seconds if task.device.type == "cuda" else timed
    seconds: dict[str, list[float]] = {}

    def part(name: str, work: Callable[..., Any], *arguments: Any) -> Any:
        took, result = measure(lambda: work(*arguments))
        seconds.setdefault(name, []).append(took)
        return result

    with reproducible(task.device):
        for _ in range(n_repeats + 1):  # the first is not counted
            indices = torch.from_numpy(np.random.default_rng(SEED).permutation(len(pool))[:batch])
            taken = part("gather", pool.take, indices.to(task.device))
            logits = part("network, forward", task.score, learner, taken.windows, task.autocast)
            leaf = logits.detach().requires_grad_()  # so that the way back can be timed in two parts
            loss = part("segment softmax and loss", _paper_loss, leaf, taken, pool, learner)
            part("loss, backward", loss.backward)
            part("network, backward", logits.backward, leaf.grad)
            part("update", optimizer.step)
            optimizer.zero_grad()
        if task.device.type == "cuda":
            ticks: list[float] = []
            # A learner of its own: while this one's last pass is kept, a step of it cannot be recorded.
            _steps(task, task.learner(), pool, batch, 24, lambda step: ticks.append(time.perf_counter()))
            # The first steps are queued piece by piece; those behind the recording as one graph each.
            seconds["host, to queue a step in pieces"] = np.diff(ticks[: STEPS_BEFORE_REPLAY + 1]).tolist()
            seconds["host, to queue a step"] = np.diff(ticks[STEPS_BEFORE_REPLAY + 2 :]).tolist()[:8]
    return {name: 1e3 * statistics.median(every[1:]) for name, every in seconds.items()}


def _busy_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """How long a GPU is busy with some work: it is kept asleep until the host has queued all of it."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(50_000_000)  # some 30 ms
    begin.record()
    result = work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3, result


# One seed -------------------------------------------------------------------------------------------------


def one_seed(
    device: str = "cpu",
    *,
    n_epochs: int = 50,
    n_train: int = 561,
    n_validation: int = 80,
    window_length: int = 1024,
    stride: int = 5,
    **parameters: Any,
) -> dict[str, Any]:
    """One seed of the paper's preset, every epoch of it, through the public estimator, retrieval included.

    Series have the lengths of ds003029's channels after pooling 24/12, and a synthetic signal. A checkpoint is
    written after every epoch. ``parameters`` are further parameters of the estimator.
    """
    begin = time.perf_counter()
    train_series = synthetic_series(recorded_lengths(n_train), seed=SEED)
    held = synthetic_series(recorded_lengths(n_validation), seed=SEED + 1)
    made = time.perf_counter() - begin
    clock, spent = _Clock(), dict[str, float]()
    model = RAxSSClassifier.from_preset(
        "paper",
        window_length=window_length,
        stride=stride,
        max_epochs=n_epochs,
        patience=0,
        device=device,
        random_state=SEED,
        callbacks=[clock],
        **parameters,
    )
    with tempfile.TemporaryDirectory() as folder, _accounted(spent):
        begin = time.perf_counter()
        model.fit(train_series, validation=held, checkpoint=Path(folder) / "seed.checkpoint")
        _wait(device)
        end = time.perf_counter()
    history = model.history_
    n_windows = int(history["windows"].iloc[0])
    in_training = clock.ended - clock.begun
    known = {
        "retrieval": spent["retrieval"],
        "preparation": clock.begun - begin - spent["retrieval"],
        "validation": spent["validation"],
        "checkpoints": spent["checkpoints"],
        "training": in_training - spent["validation"] - spent["checkpoints"],
        "afterwards": end - clock.ended,
    }
    return {
        "settings": {
            "preset": "paper",
            "n_train": n_train,
            "n_validation": n_validation,
            "window_length": window_length,
            "stride": stride,
            "epochs": len(history),
            "windows_an_epoch": n_windows,
            "batch": model.batch_size,
        },
        "seconds": end - begin,
        "seconds_by_part": known,
        "seconds_an_epoch": statistics.median(np.diff([clock.begun, *clock.epochs]).tolist()),
        "windows_per_second": n_windows * len(history) / known["training"],
        "making_the_signal": made,
        "loss": [float(history["train_loss"].iloc[0]), float(history["train_loss"].iloc[-1])],
        "validation_accuracy": float(history["validation_accuracy"].max()),
    }


def recorded_lengths(n_series: int) -> NDArray[np.int64]:
    """Lengths after pooling of so many channels of ds003029, at equal steps through all of them by length.

    >>> recorded_lengths(3)
    array([ 9003, 17432, 28180])
    """
    with LENGTHS.open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    kernel, stride = POOLING
    lengths = np.sort(
        np.repeat(
            [(int(row["n_samples"]) - kernel) // stride + 1 for row in rows],
            [int(row["n_channels"]) for row in rows],
        )
    )
    return lengths[((np.arange(n_series) + 0.5) / n_series * len(lengths)).astype(int)]


def synthetic_series(lengths: NDArray[np.int64], *, seed: int) -> list[Series]:
    """Slowly varying noise, labelled in turn; every other series has bursts of a faster rhythm."""
    rng = np.random.default_rng(seed)
    lengths, rate = rng.permutation(lengths), 1000 / POOLING[1]
    series = []
    for index, n_samples in enumerate(lengths.tolist()):
        samples = lfilter([1.0], [1.0, -0.9], rng.normal(size=n_samples))
        if index % 2:
            phase = 2 * np.pi * 12 * np.arange(n_samples) / rate + rng.uniform(0, 2 * np.pi)
            samples += 2.0 * np.sin(phase) * (np.sin(phase / 40) > 0)
        name = f"synthetic-{seed}-{index:03d}"
        series.append(
            Series(
                samples.astype(np.float32), rate, label=("other", "onset")[index % 2], group=name, name=name
            )
        )
    return series


@contextlib.contextmanager
def _accounted(spent: dict[str, float]) -> Iterator[None]:
    """Note how long `fit` spends in retrieval, in validation and in writing checkpoints."""
    spent |= dict.fromkeys(("retrieval", "validation", "checkpoints"), 0.0)

    def counted(account: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **settings: Any) -> Any:
            begin = time.perf_counter()
            try:
                return work(*arguments, **settings)
            finally:
                spent[account] += time.perf_counter() - begin

        return wrapped

    with contextlib.ExitStack() as stack:
        for account, module, name in (
            ("retrieval", fitting, "cached_retrieve_many"),
            ("validation", training, "validate"),
            ("checkpoints", training, "save_checkpoint"),
        ):
            stack.enter_context(mock.patch.object(module, name, counted(account, getattr(module, name))))
        yield


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


# By hand --------------------------------------------------------------------------------------------------


def tell_step(results: dict[str, Any]) -> str:
    """The table of `step_rate`."""
    settings, rates = results["settings"], results["windows_per_second"]
    rows = [
        [name, settings["batch" if name == "raxss" else "reference_batch"], rate, rates["raxss"] / rate]
        for name, rate in rates.items()
    ]
    parts = ", ".join(f"{name} {value:.3g}" for name, value in results["parts_ms"].items())
    return (
        table(["", "batch", "windows/s", "raxss is times as fast"], rows)
        + f"\none step of raxss in ms: {parts}"
        + f"\nthe losses differ by {results['agreement']['difference']:.1g} (float32), "
        f"{results['agreement']['difference_in_training_precision']:.1g} ({settings['precision']})"
    )


def tell_seed(results: dict[str, Any]) -> str:
    """The table of `one_seed`."""
    rows = [*results["seconds_by_part"].items(), ("all", results["seconds"])]
    settings = results["settings"]
    return (
        f"{settings['epochs']} epochs of {settings['windows_an_epoch']:,} windows, {settings['n_train']} series\n"
        + table(["", "seconds"], rows)
        + f"\n{results['windows_per_second']:,.0f} windows/s in training; loss "
        + f"{results['loss'][0]:.3f} to {results['loss'][1]:.3f}, best validation accuracy "
        + f"{results['validation_accuracy']:.3f}"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", choices=("step", "seed"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of ours in a round")
    parser.add_argument("--reference-steps", type=int)
    parser.add_argument("--workers", type=int, default=0, help="of the reference's loader")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--stride", type=int, default=5, help="of the windows of one seed")
    parser.add_argument("--series", type=int, help="560 for step, 561 for seed")
    settings = parser.parse_args(arguments)
    if settings.part == "step":
        record = recorded(
            "step",
            settings.device,
            lambda: step_rate(
                settings.device,
                batch=settings.batch,
                n_rounds=settings.rounds,
                n_steps=settings.steps,
                n_reference_steps=settings.reference_steps,
                n_series=settings.series or 560,
                n_workers=settings.workers,
            ),
        )
        print(tell_step(record["results"]))
    else:
        n_train = settings.series or 561
        record = recorded(
            "seed",
            settings.device,
            lambda: one_seed(
                settings.device,
                n_epochs=settings.epochs,
                n_train=n_train,
                n_validation=max(round(n_train / 7), 2),
                stride=settings.stride,
                batch_size=settings.batch,
            ),
        )
        print(tell_seed(record["results"]))
    if settings.json:
        storage.write_json(settings.json, record)


if __name__ == "__main__":
    main()
