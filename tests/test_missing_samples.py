"""Networks and missing samples: what lies under a mask is never looked at, and whole windows are as without one."""

import itertools
import math

import numpy as np
import pytest
import torch

import naive
from raxss.data.series import Series
from raxss.method.augmentation import AugmentationConfig, augment_with_gaps
from raxss.method.backbones import BACKBONES, build_backbone
from raxss.method.backbones.convnet import places_present
from raxss.method.backbones.multiview import MultiView, known_derivatives, with_derivatives
from raxss.method.backbones.ppv import of_places_present, plain_shares, shares
from raxss.method.backbones.protocol import handles_missing, split_mask
from raxss.method.backbones.revin import RevIN
from raxss.method.retrieval.batch import batch_support
from raxss.method.training.window_pool import WindowPool
from raxss.method.window_scorer import score_windows
from raxss.method.windows import network_strip, windows_of

CPU = torch.device("cpu")
MASKED = ["convnet", "convnet-fine", "multiview", "ensemble"]


def masked_windows(rng, n=7, n_variates=2, length=128, share=0.3):
    """Windows with 0 where missing and the mask as last row."""
    windows = torch.from_numpy(rng.normal(size=(n, n_variates, length))).float()
    present = torch.ones(n, 1, length)
    for window in range(1, n):  # the first is whole
        first = rng.integers(length)
        present[window, 0, first : first + int(share * length)] = 0.0
    return torch.cat([windows * present, present], dim=1)


def built(name, length=128, n_variates=2, **options):
    torch.manual_seed(0)
    network = build_backbone(
        name, n_variates=n_variates, window_length=length, n_outputs=3, options=options
    ).eval()
    if callable(getattr(network, "look_at", None)):
        network.look_at(torch.randn(40, n_variates, length, generator=torch.Generator().manual_seed(1)))
    return network


def test_networks_that_take_a_mask_say_so():
    found = [name for name in sorted(BACKBONES) if handles_missing(built(name, length=64, n_variates=1))]
    assert found == sorted(MASKED)


@pytest.mark.parametrize("revin", [False, True])
@pytest.mark.parametrize("length", [12, 40, 128, 500])
@pytest.mark.parametrize("name", MASKED)
def test_a_mask_of_ones_changes_nothing(rng, name, length, revin):
    options = {"options": {"revin": revin}} if name == "ensemble" else {"revin": revin}
    network = built(name, length, **options)
    windows = torch.from_numpy(rng.normal(size=(5, 2, length))).float()
    close = 5e-2 if revin and name in ("multiview", "ensemble") else 1e-4  # a share changes by a whole place
    with torch.no_grad():
        torch.testing.assert_close(
            network(torch.cat([windows, torch.ones(5, 1, length)], dim=1)),
            network(windows),
            atol=close,
            rtol=1e-4,
        )


@pytest.mark.parametrize("name", MASKED)
def test_a_window_is_scored_by_itself_whatever_the_gaps_of_others(rng, name):
    network, windows = built(name), masked_windows(rng)
    with torch.no_grad():
        together, alone = network(windows), torch.cat([network(window[None]) for window in windows])
        torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)
        assert torch.isfinite(together).all()


@pytest.mark.parametrize("name", MASKED)
def test_windows_without_a_single_sample_still_have_finite_scores_and_gradients(name):
    network = built(name).train()
    logits = network(torch.zeros(4, 3, 128))
    assert torch.isfinite(logits).all()
    logits.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in network.parameters() if p.grad is not None)


def test_pooling_over_time_is_over_places_that_are_present(rng):
    network = built("convnet", n_variates=1, length=256)
    windows = torch.from_numpy(rng.normal(size=(1, 1, 256))).float()
    present = torch.ones(1, 1, 256)
    present[..., 128:] = 0.0
    with torch.no_grad():
        maps = network.layers(windows * present)
        expected = maps[..., places_present(present, maps.shape[-1])[0, 0] > 0]
        found = network.features(torch.cat([windows * present, present], dim=1))
    torch.testing.assert_close(found[0], torch.cat([expected.mean(dim=-1), expected.amax(dim=-1)], dim=1)[0])


@pytest.mark.parametrize("n_places", [1, 3, 32, 100, 256])
def test_places_of_a_mask_that_is_a_view_are_counted_one_by_one(rng, n_places):
    strip = torch.from_numpy((rng.random((2, 900)) > 0.5).astype(np.float32))
    present = strip.unfold(1, 256, 16).permute(1, 0, 2)[:, 1:]  # overlapping rows, a dimension of size 1
    found = places_present(present, n_places)
    for window, place in itertools.product(range(len(present)), range(n_places)):
        begin, end = 256 * place // n_places, math.ceil(256 * (place + 1) / n_places)
        assert found[window, 0, place] == float(present[window, 0, begin:end].mean() >= 0.5)


def test_normalisation_of_a_window_is_by_the_samples_present(rng):
    windows = torch.from_numpy(rng.normal(3, 2, size=(4, 2, 50))).float()
    present = torch.from_numpy((rng.random((4, 1, 50)) > 0.4).astype(np.float32))
    found = RevIN(2, affine=False)(windows * present, present)
    for window in range(4):
        here = present[window, 0] > 0
        torch.testing.assert_close(
            found[window][:, here], RevIN(2, affine=False)(windows[window : window + 1, :, here])[0]
        )
        assert (found[window][:, ~here] == 0).all()


def test_derivatives_next_to_a_gap_are_missing(rng):
    present = torch.ones(1, 1, 20)
    present[..., 7:9] = 0.0
    windows = torch.from_numpy(rng.normal(size=(1, 1, 20))).float() * present
    found, known = with_derivatives(windows, 2, present), known_derivatives(present, 2)
    assert np.flatnonzero(known[0, 0] == 0).tolist() == [7, 8, 9, 10]
    assert (found[0, 1, [7, 8, 9]] == 0).all()
    assert (found[0, 2, [7, 8, 9, 10]] == 0).all()
    torch.testing.assert_close(
        found[0, 1][known_derivatives(present, 1)[0, 0] > 0].std(correction=0), torch.tensor(1.0)
    )


@pytest.mark.parametrize("dilation", [1, 3])
def test_ppv_of_a_window_with_gaps_is_over_places_without_a_missing_tap(rng, dilation):
    x = rng.normal(size=(2, 1, 60)).astype(np.float32)
    x[0, 0, 20:25] = x[1, 0, 50] = np.nan
    cuts = torch.from_numpy(rng.normal(size=(1, 84, 3)).astype(np.float32))
    rows, steps = torch.zeros(1, dtype=torch.int32), torch.full((1,), dilation, dtype=torch.int32)
    present = torch.from_numpy(np.isfinite(x).astype(np.float32))
    nothing = torch.tensor(torch.nan)
    for way in (shares, plain_shares):
        found = of_places_present(
            way(torch.from_numpy(x), rows, steps, cuts), present, [dilation], otherwise=nothing
        )
        for window in range(2):
            for kernel in (0, 41, 83):
                weights = np.full((1, 9), -1.0)
                weights[0, list(naive.combinations(range(9), 3))[kernel]] = 2.0
                outputs = np.array(
                    naive.kernel_outputs(
                        x[window], weights, [0], bias=0.0, dilation=dilation, padding=4 * dilation
                    )
                )
                outputs = outputs[~np.isnan(outputs)]
                expected = [(outputs > cut).mean() for cut in cuts[0, kernel].numpy()]
                np.testing.assert_allclose(found[window, 0, kernel], expected, atol=1e-5)


def test_ppv_without_a_whole_place_is_that_of_the_training_windows():
    ppv = MultiView(1, 64, 1, views=["ppv"], derivatives=0).eval().views["textures"]
    ppv.look_at(torch.randn(20, 1, 64, generator=torch.Generator().manual_seed(0)))
    with torch.no_grad():
        found = ppv(torch.zeros(3, 1, 64), torch.zeros(3, 1, 64))
        torch.testing.assert_close(found, ppv.map.bias.expand(3, -1))  # shares are 0 after standardisation


def test_thresholds_are_taken_from_what_is_present(rng):
    windows = masked_windows(rng, n=40, n_variates=1)
    network = MultiView(1, 128, 1, views=["ppv"])
    network.look_at(windows)
    ppv = network.views["textures"]
    assert torch.isfinite(ppv.cuts).all()
    assert torch.isfinite(ppv.mean).all()
    whole = MultiView(1, 128, 1, views=["ppv"])
    whole.look_at(torch.from_numpy(rng.normal(size=(400, 1, 128))).float())
    assert (ppv.mean - whole.views["textures"].mean).abs().mean() < 0.05


# Strips and pools -------------------------------------------------------------------------------------------


def test_a_missing_variate_makes_the_sample_missing_for_the_network():
    strip = network_strip(np.array([[1.0, 2.0, 3.0], [4.0, np.inf, 6.0]]), with_mask=True)
    np.testing.assert_array_equal(strip, [[1, 0, 3], [4, 0, 6], [1, 0, 1]])
    values, present = split_mask(torch.from_numpy(strip)[None], 2)
    assert present.shape == (1, 1, 3)
    assert split_mask(values, 2)[1] is None


class Rows(torch.nn.Module):
    """Sum of each row of a window, so that what a network gets can be seen."""

    def __init__(self, handles):
        super().__init__()
        self.handles_missing = handles

    def forward(self, windows):
        return windows.sum(dim=2)[:, -1:]


@pytest.mark.parametrize("handles", [False, True])
def test_only_networks_that_take_it_get_the_mask(handles):
    samples = np.arange(40.0)
    whole, gaps = Series(samples), Series(np.where(samples == 25, np.nan, samples), gaps_marked=True)
    for series in (whole, gaps):
        windows = windows_of(series, window_length=10, stride=10)
        found = score_windows(Rows(handles), windows, device=CPU)[0][:, 0].tolist()
        sums = np.nan_to_num(series.samples[0]).reshape(4, 10).sum(axis=1).tolist()
        assert found == ([10, 10, 9, 10] if handles and series is gaps else sums)
        pool = WindowPool.of_equals([series], np.zeros(1), window_length=10, stride=10, device=CPU)
        pool.with_mask = handles
        assert Rows(handles)(pool.gather(torch.arange(4)))[:, 0].tolist() == found
        batch = pool.take(torch.arange(4))
        assert batch.values.shape == (4, 1, 10)
        assert (batch.present is None) == (series is whole)


def test_support_within_a_batch_is_over_the_samples_that_both_have(rng):
    samples = rng.normal(size=(2, 300)).cumsum(axis=1)
    samples[:, rng.random(300) < 0.1] = np.nan
    windows = windows_of(Series(samples), window_length=24, stride=6)
    strip = torch.from_numpy(network_strip(samples, with_mask=True)).unfold(1, 24, 6).transpose(0, 1)
    usable = torch.from_numpy(~windows.unusable)
    for measure in ("pearson", "cosine"):
        expected = naive.retrieve(
            samples.astype(np.float32), 24, 6, measure=measure, n_neighbors=4, exclusion=12
        )
        found = batch_support(
            strip[usable, :2], torch.zeros(int(usable.sum()), dtype=torch.int64),
            torch.from_numpy(windows.starts)[usable], torch.zeros(int(usable.sum()), dtype=torch.bool),
            measure=measure, n_neighbors=4, exclusion=12, present=strip[usable, 2:],
        )  # fmt: skip
        np.testing.assert_allclose(found, expected.support[usable.numpy()], atol=1e-6)


# Augmentation -----------------------------------------------------------------------------------------------


def test_augmented_gaps_stay_gaps_and_nothing_leaks_out_of_them(rng):
    settings = AugmentationConfig(
        flip=0.5, reverse=0.5, gain=0.1, noise=0.1, stretch=0.2, mask=0.3, mirror=(0,), drop=0.3
    )
    windows = masked_windows(rng, n=64)
    values, present = windows[:, :2], windows[:, 2:]
    torch.manual_seed(0)
    found, where = augment_with_gaps(values, present, settings)
    assert ((where == 0) | (where == 1)).all()
    assert (found[(where == 0).expand_as(found)] == 0).all()
    torch.manual_seed(0)
    filled, again = augment_with_gaps(values + 1e6 * (1 - present), present, AugmentationConfig(stretch=0.2))
    torch.manual_seed(0)
    empty, _ = augment_with_gaps(values, present, AugmentationConfig(stretch=0.2))
    torch.testing.assert_close(filled, empty, atol=2e-1, rtol=0)  # a thousandth of 1e6 would be 1e3
    assert (again[0] == 1).all()
