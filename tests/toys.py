"""Small series and networks that several tests share."""

import contextlib
import signal
import warnings

import numpy as np
import torch
from torch import nn

from raxss import Series, SeriesCollection
from raxss.method.training.settings import TrainingPlan
from raxss.method.training.window_pool import WindowPool

SMALL = {"window_length": 32, "stride": 8, "max_epochs": 2, "random_state": 0, "device": "cpu"}
SIGNAL = SMALL | {"space": "signal", "temperature": 0.1}  # weighted by support of the signal
NETWORK = SIGNAL | {"backbone": "convnet-fine"}  # trained by gradients


def waves(rng, n_series=18, n_classes=2, n_variates=1, labels=("slow", "fast", "faster")):
    """Oscillations whose speed is their class, of differing lengths, three series a group."""
    series = []
    for index in range(n_series):
        kind = index % n_classes
        time = np.arange(rng.integers(60, 200))
        wave = np.sin(time * (0.15 + 0.35 * kind) + rng.uniform(0, 6, size=(n_variates, 1)))
        samples = wave + 0.3 * rng.normal(size=wave.shape)
        series.append(
            Series(samples, rate=10.0, label=labels[kind], group=f"group-{index // 6}", name=f"wave {index}")
        )
    return SeriesCollection(series)


def planted(kind, n_series=60, n_classes=2, length=300, seed=0):
    """Noise of differing lengths, in which the class is the ``kind``: a frequency, a level, ...; or "none"."""
    rng = np.random.default_rng(seed)
    targets = np.arange(n_series) % n_classes
    motifs = [np.convolve(rng.normal(size=24), np.hanning(7), "same") for _ in range(n_classes)]
    series = []
    for target, n in zip(targets, rng.integers(int(0.8 * length), length + 1, size=n_series), strict=True):
        places, samples = np.arange(n), rng.normal(size=n)
        if kind == "frequency":
            samples = 0.7 * samples + np.sin(2 * np.pi * places * (0.03 + 0.04 * target) + rng.uniform(0, 6))
        elif kind == "amplitude":
            samples *= 1 + 0.8 * target
        elif kind == "level":
            samples += target
        elif kind == "trend":
            samples += 3 * (target - (n_classes - 1) / 2) * (places / n - 0.5)
        elif kind == "motif":
            for start in rng.integers(0, n - 24, size=n // 60):
                samples[start : start + 24] += 2.5 * motifs[target] / motifs[target].std()
        series.append(Series(samples))
    return series, targets


def pool_of(series, window_length=32, stride=8):
    """Windows of equal influence, of two classes in turn."""
    shape = {"window_length": window_length, "stride": stride, "device": torch.device("cpu")}
    return WindowPool.of_equals(list(series), np.arange(len(series)) % 2, **shape)


class StopAfter:
    """A callback that ends the process after an epoch, as a kill would."""

    on_train_begin = on_step = on_train_end = lambda *_: None

    def __init__(self, epoch):
        self.epoch = epoch

    def on_epoch_end(self, record):
        if record["epoch"] == self.epoch:
            raise SystemExit


class Tiny(nn.Module):
    """A network without features."""

    def __init__(self, n_variates, window_length, n_outputs):
        super().__init__()
        self.linear = nn.Linear(n_variates * window_length, n_outputs)

    def forward(self, windows):
        return self.linear(windows.flatten(1))


class Plain(Tiny):
    """A network with features but without logits_of."""

    def features(self, windows):
        return windows.flatten(1)


class Headed(Plain):
    """A network whose logits are a function of its features."""

    def logits_of(self, features):
        return self.linear(features)

    def forward(self, windows):
        return self.logits_of(self.features(windows))


class Greedy(nn.Module):
    """Allocates a petabyte when it is trained on a batch of 48."""

    def __init__(self, window_length):
        super().__init__()
        self.head = nn.Linear(window_length, 1)

    def forward(self, windows):
        if len(windows) == 48:
            torch.empty(10**15, dtype=torch.uint8, device=windows.device)
        return self.head(windows[:, 0])


def weights_of(learner):
    """A copy of all parameters and buffers, on the CPU."""
    return {name: value.cpu().clone() for name, value in learner.state_dict().items()}


def assert_same_bits(first, second):
    """Of two such copies."""
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert value.dtype == second[name].dtype, name
        assert torch.equal(value, second[name]), name


@contextlib.contextmanager
def waiting(mode):
    """Torch's mode for calls that synchronise with a GPU: "error" raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def hears_ctrl_c():
    """For child processes: those of a shell's background job ignore Ctrl-C otherwise."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def training_plan(**settings):
    """Settings of training with numbers in place of "auto"."""
    numbers = {"batch_size": 64, "max_epochs": 20, "patience": 5, "update_batch_norm": False}
    return TrainingPlan(**(numbers | settings))
