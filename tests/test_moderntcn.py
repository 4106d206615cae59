import pytest
import torch
from torch.testing import assert_close

import naive_networks
from network_claims import (
    build,
    double,
    numpy_weights,
    parameters_without_gradient,
    seeded_on_one_thread,
    trained_a_little,
)
from raxss.errors import ConfigError
from raxss.method.backbones.moderntcn import TwoKernels, depthwise

_seeded = pytest.fixture(autouse=True)(seeded_on_one_thread)


@pytest.mark.parametrize(("large", "small"), [(51, 5), (7, 7), (3, 1)])
def test_at_prediction_one_kernel_does_what_two_did(rng, large, small):
    both = trained_a_little(torch.nn.Sequential(TwoKernels(4, large, small)), 4, 60)[0].float()
    rows = torch.randn(5, 4, 60)
    side_by_side = both.large_norm(depthwise(rows, both.large.weight))
    side_by_side = side_by_side + both.small_norm(depthwise(rows, both.small.weight))
    assert_close(both(rows), side_by_side, atol=1e-5, rtol=1e-5)
    weights = {f"x.{name}": value for name, value in numpy_weights(both).items()}
    expected = naive_networks.two_kernels(rows[0].double().numpy(), weights, "x")
    assert_close(both(rows)[0].detach().double(), double(expected), atol=1e-5, rtol=1e-5)


def test_in_training_each_convolution_is_normalised_over_batch_and_places():
    both = TwoKernels(3, 5, 3).train()
    with torch.no_grad():
        both.small_norm.weight.zero_()  # the large one alone
    mixed = both(torch.randn(6, 3, 40))
    assert_close(mixed.mean(dim=(0, 2)), torch.zeros(3), atol=1e-5, rtol=0)
    assert_close(mixed.var(dim=(0, 2), correction=0), torch.ones(3), atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("n_variates", "length", "options"),
    [
        (1, 64, {}),
        (3, 43, {"widths": (4, 6, 8), "n_blocks": 2, "expansion": 2}),
        (2, 21, {"patch_length": 6, "patch_stride": 6, "widths": [5]}),
    ],
)
def test_the_network_matches_a_slow_reading_of_the_paper(rng, n_variates, length, options):
    network = trained_a_little(build("moderntcn", n_variates, length, 3, **options), n_variates, length)
    for window in rng.normal(size=(2, n_variates, length)):
        expected = naive_networks.moderntcn(
            window,
            numpy_weights(network),
            n_stages=len(options.get("widths", (32, 64))),
            n_blocks=options.get("n_blocks", 1),
            patch_stride=options.get("patch_stride", 4),
        )
        assert_close(network(double(window)[None])[0].detach(), double(expected))


def test_the_last_sample_is_seen_whatever_the_length():
    for length in range(1, 14):
        network = build("moderntcn", window_length=length).eval()
        windows = torch.randn(1, 1, length).repeat(2, 1, 1)
        windows[1, 0, -1] += 1
        first, second = network.features(windows)
        assert not torch.allclose(first, second), length


@pytest.mark.parametrize(("length", "sizes"), [(1, [1, 1]), (24, [11, 5]), (1024, [51, 51])])
def test_kernels_reach_no_further_than_the_window(length, sizes):
    network = build("moderntcn", window_length=length)
    assert [stage[1].along_time.large.kernel_size[0] for stage in network.stages] == sizes


def test_with_one_variate_a_later_norm_takes_out_only_the_offsets_before_it():
    # with several, offsets differ between variates and the norm, which they share, leaves the difference
    missing = parameters_without_gradient("moderntcn", 1, 256)
    assert {".".join(key.split(".")[-2:]) for key in missing} <= {"large_norm.bias", "small_norm.bias"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": []}, "from 1 to 64 numbers, one a stage; got 0"),
        ({"widths": (8, 0)}, r"widths=\[8, 0\]"),
        ({"patch_length": 3}, "patch_length=3, patch_stride=4"),
        ({"large_kernel": 50}, "small_kernel=5, large_kernel=50"),
        ({"large_kernel": 3}, "small_kernel=5, large_kernel=3"),
    ],
)
def test_sizes_that_make_no_network_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        build("moderntcn", **options)
