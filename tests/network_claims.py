"""Helpers for tests of networks."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raxss.method.backbones import build_backbone
from raxss.method.backbones.revin import RevIN


def seeded_on_one_thread():
    """Body of a fixture: `pytest.fixture(autouse=True)(seeded_on_one_thread)`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # these networks are too small to share out
    torch.manual_seed(69421)
    yield
    torch.set_num_threads(threads)


def build(name, n_variates=1, window_length=64, n_outputs=1, **options):
    return build_backbone(
        name, n_variates=n_variates, window_length=window_length, n_outputs=n_outputs, options=options
    )


def double(values):
    return torch.tensor(np.asarray(values), dtype=torch.float64)


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


def sizes_of_terms(revin: nn.Module, standardised: Tensor) -> dict[str, float]:
    """RevIN's gradients are sums over all samples that mostly cancel: what their terms add up to without signs.

    How far rounding moves such a sum goes by that, not by what is left of it, and differs between processors.
    """
    if not isinstance(revin, RevIN):
        return {}
    with torch.no_grad():
        before = (standardised - revin.offset) / revin.gain
        of_variates = {"gain": standardised.grad * before, "offset": standardised.grad}
        return {
            f"revin.{name}": float(of_variate.abs().sum((0, 2)).max())
            for name, of_variate in of_variates.items()
        }
