"""What every network of the package must do, for tests to call with its name."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from raxss import RAxSSClassifier, Series, SeriesCollection
from raxss.method.backbones import build_backbone

LENGTHS = [1, 2, 17, 1024]
VARIATES = [1, 6]


def seeded_on_one_thread():
    """The body of a fixture."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # these networks are too small to share out
    torch.manual_seed(69421)
    yield
    torch.set_num_threads(threads)


def build(name, n_variates=1, window_length=64, n_outputs=1, **options):
    return build_backbone(
        name, n_variates=n_variates, window_length=window_length, n_outputs=n_outputs, options=options
    )


def assert_one_row_of_logits_a_window(name, n_variates, length):
    for n_outputs in (1, 3):
        network = build(name, n_variates, length, n_outputs)
        windows = torch.randn(3, n_variates, length)
        assert network.train()(windows).shape == (3, n_outputs)
        assert network(windows[:1]).shape == (1, n_outputs)  # the last batch of an epoch
        assert network.eval()(windows).shape == (3, n_outputs)
        features = network.features(windows)
        assert features.shape == (3, network.head.in_features)
        assert torch.equal(network.head(features), network(windows))


def parameters_without_gradient(name, n_variates, length, **options):
    """Names of parameters that a step of training would not move, or only by rounding."""
    network = build(name, n_variates, length, 3, **options).double().train()
    windows = torch.randn(8, n_variates, length, dtype=torch.float64)
    functional.cross_entropy(network(windows), torch.arange(8) % 3).backward()
    return [
        key
        for key, named_parameter in network.named_parameters()
        if named_parameter.grad is None or named_parameter.grad.abs().max() < 1e-12
    ]


def sawtooths(rng):
    """Ten series of two classes: rising and falling teeth, with the same spectrum, wherever they begin."""
    series = []
    for index in range(10):
        tooth = (np.arange(64) + rng.integers(16)) % 16 / 8 - 1
        samples = (tooth if index % 2 else -tooth) + 0.1 * rng.normal(size=64)
        series.append(Series(samples, label=index % 2, group=f"group {index}", name=f"tooth {index}"))
    return SeriesCollection(series)


def accuracy_on_ten_series(name, rng):
    """Of the series that it was fitted on, through the estimator."""
    series = sawtooths(rng)
    model = RAxSSClassifier(
        backbone=name,
        window_length=64,
        stride=64,
        lr=5e-3,
        warmup_steps=5,
        max_epochs=60,
        batch_size=64,
        augmentation=None,
        validation_fraction=0,
        device="cpu",
        random_state=0,
    ).fit(series)
    return model.score(series, [item.label for item in series])


def assert_scored_alone_as_among_others(name, n_variates, length):
    network = build(name, n_variates, length, 3).eval()
    windows = torch.randn(9, n_variates, length) * torch.tensor([0.1, 1, 10] * 3)[:, None, None]
    with torch.inference_mode():
        together = network(windows)
        assert torch.equal(network(windows), together)
        alone = torch.cat([network(window[None]) for window in windows])
        shuffled = network(windows.flip(0)).flip(0)
    assert_close(alone, together, atol=1e-5, rtol=1e-5)
    assert_close(shuffled, together, atol=1e-5, rtol=1e-5)


def trained_a_little(network: nn.Module, n_variates: int, length: int) -> nn.Module:
    """In double precision, with running statistics and offsets that differ from where they begin."""
    network = network.double().train()
    for _ in range(3):
        network(3 * torch.randn(16, n_variates, length, dtype=torch.float64) + 1)
    with torch.no_grad():
        for value in network.parameters():
            value += 0.1 * torch.randn_like(value)
    return network.eval()


def numpy_weights(network: nn.Module) -> dict[str, NDArray[np.float64]]:
    return {name: value.numpy() for name, value in network.state_dict().items()}
