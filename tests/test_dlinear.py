import numpy as np
import pytest
import torch
from torch.testing import assert_close

import naive_networks
from network_claims import build, numpy_weights, seeded_on_one_thread, trained_a_little
from raxss.errors import ConfigError
from raxss.method.backbones import n_parameters
from raxss.method.backbones.dlinear import moving_average

_seeded = pytest.fixture(autouse=True)(seeded_on_one_thread)


def test_at_ten_thousand_samples_of_six_variates_it_is_a_tenth_of_the_published_size():
    network = build("dlinear", n_variates=6, window_length=10_000)
    assert n_parameters(network) == 2 * (10_000 * 1024 + 1024) + 6 * 1024 + 1
    assert n_parameters(network) < 2 * 10_000**2 / 9


@pytest.mark.parametrize(("length", "size"), [(1, 25), (2, 25), (40, 25), (9, 3), (5, 1)])
def test_the_trend_is_the_mean_of_the_surroundings_with_the_ends_repeated(rng, length, size):
    rows = rng.normal(size=(2, length))
    expected = [naive_networks.moving_average(row, size) for row in rows]
    assert_close(moving_average(torch.tensor(rows)[None], size)[0], torch.tensor(np.array(expected)))


@pytest.mark.parametrize(("n_variates", "length"), [(1, 30), (3, 17)])
def test_the_network_matches_a_slow_reading_of_the_paper(rng, n_variates, length):
    network = trained_a_little(build("dlinear", n_variates, length, 3, average_over=5), n_variates, length)
    window = rng.normal(size=(n_variates, length))
    expected = naive_networks.dlinear(window, numpy_weights(network), average_over=5)
    assert_close(network(torch.tensor(window)[None])[0].detach(), torch.tensor(expected))


def test_fewer_components_can_be_every_function_that_more_can():
    wide = trained_a_little(build("dlinear", 2, 20, 3), 2, 20)
    narrow = build("dlinear", 2, 20, 3, n_components=2 * 3).double()
    with torch.no_grad():  # each component is what one output makes of one variate
        heads = wide.head.weight.unflatten(1, (2, 20)).flatten(0, 1)
        for layer in ("trend", "remainder"):
            getattr(narrow, layer).weight.copy_(heads @ getattr(wide, layer).weight)
            getattr(narrow, layer).bias.copy_(heads @ getattr(wide, layer).bias)
        picks = torch.zeros(3, 2, 6)  # (outputs, variates, components)
        for output in range(3):
            for variate in range(2):
                picks[output, variate, 2 * output + variate] = 1
        narrow.head.weight.copy_(picks.flatten(1))
        narrow.head.bias.copy_(wide.head.bias)
    windows = torch.randn(4, 2, 20, dtype=torch.float64)
    assert_close(narrow(windows), wide(windows))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"average_over": 24}, "average_over must be odd and at least 1, got 24"),
        ({"n_components": 0}, "n_components must be at least 1, got 0"),
        ({"window_length": 0}, "window_length must be at least 1, got 0"),
    ],
)
def test_sizes_that_make_no_network_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        build("dlinear", **options)
