"""Prediction of many and of long series: memory, progress and series in flight change no figure."""

import gc
import logging
import weakref
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from raxss import RAxSSClassifier, Series
from raxss.errors import DataError, VariateMismatchError
from raxss.method.window_scorer import Scorer, score_windows
from raxss.method.windows import windows_of
from toys import SMALL


def test_explaining_each_gives_what_explaining_all_gives_and_lets_go_of_it(waves_model):
    model, series = waves_model
    expected = model.explain(series[:5])
    before = None
    for item, other in zip(model.explain_each(series[:5]), expected, strict=True):
        gc.collect()
        assert before is None or before() is None  # only one is held at a time
        pd.testing.assert_frame_equal(item.windows, other.windows, check_exact=True)
        pd.testing.assert_frame_equal(item.neighbors, other.neighbors, check_exact=True)
        before = weakref.ref(item)
        del item


def test_progress_moves_within_a_series_and_ends_at_one(waves_model, rng):
    model, series = waves_model
    long = Series(rng.normal(size=20_000), rate=10.0, name="long")  # 2497 windows, five passes
    shares: list[float] = []
    list(model.explain_each([long, series[0]], on_progress=shares.append))
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert len(set(shares)) >= 6


def test_a_terminal_sees_a_bar_that_moves_in_windows(waves_model, rng, monkeypatch, capsys):
    model, _ = waves_model
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    long = [rng.normal(size=20_000)]
    quiet = model.predict_proba(long)
    assert capsys.readouterr().err == ""
    model.set_params(verbose=1)
    np.testing.assert_array_equal(model.predict_proba(long), quiet)
    drawn = capsys.readouterr().err
    assert "2497/2497" in drawn
    assert "windows" in drawn


def test_uniform_weights_are_predicted_without_any_retrieval(waves_model, rng, monkeypatch):
    model, series = waves_model
    samples = series[0].samples.copy()
    samples[0, 20] = np.nan
    gap = replace(series[0], samples=samples, gaps_marked=True)
    model.set_params(weighting="uniform")
    expected = [item.series_probability for item in model.explain([gap, *series[1:4]])]

    def refuse(*_, **__):
        raise AssertionError("retrieval was called")

    monkeypatch.setattr("raxss.method.inference.cached_retrieve_many", refuse)
    np.testing.assert_array_equal(model.predict_proba([gap, *series[1:4]]), expected)
    assert RAxSSClassifier(**SMALL, weighting="uniform").fit(series).predict_proba(series).shape == (24, 2)


def test_half_precision_samples_are_computed_in_more(waves_model):
    model, series = waves_model
    half = [replace(item, samples=item.samples.astype(np.float16)) for item in series]
    single = [replace(item, samples=item.samples.astype(np.float32)) for item in half]
    np.testing.assert_array_equal(model.predict_proba(half), model.predict_proba(single))
    assert (
        np.abs(model.explain(half[0]).windows["support"] - model.explain(series[0]).windows["support"]).max()
        < 0.01
    )
    assert RAxSSClassifier(**SMALL).fit(half).predict_proba(half).shape == (24, 2)


def test_passes_cut_from_one_strip_score_as_windows_copied_one_by_one(waves_model, rng):
    network = waves_model[0].backbone_
    samples = rng.normal(size=(1, 9_000))
    samples[0, [50, 51, 4000]] = [np.nan, np.inf, -np.inf]
    windows = windows_of(Series(samples), window_length=32, stride=8)
    assert len(windows) > 2 * 512
    found, features = score_windows(network, windows, device=torch.device("cpu"), with_features=True)
    logits, vectors = [], []
    with torch.inference_mode():
        for first in range(0, len(windows), 512):
            plain = np.nan_to_num(windows.samples[first : first + 512], nan=0.0, posinf=0.0, neginf=0.0)
            mask = np.isfinite(windows.samples[first : first + 512])
            batch = torch.from_numpy(np.concatenate([plain, mask], axis=1, dtype=np.float32))
            logits.append(network(batch))
            vectors.append(network.features(batch))
    assert torch.equal(found, torch.cat(logits))
    np.testing.assert_array_equal(features, torch.cat(vectors).double().numpy())


class Cramped(nn.Module):
    """A network that no device has room for beyond some windows."""

    def __init__(self, most):
        super().__init__()
        self.most, self.seen = most, []
        self.head = nn.Linear(32, 1)

    def forward(self, windows):
        if len(windows) > self.most:
            raise torch.OutOfMemoryError(f"no room for {len(windows)}")
        self.seen.append(len(windows))
        return self.head(windows[:, 0])


def test_a_device_without_room_gets_smaller_passes_and_says_so_once(rng, caplog):
    windows = windows_of(Series(rng.normal(size=9_000)), window_length=32, stride=8)
    network = Cramped(150)
    scorer = Scorer(network, torch.device("cpu"))
    with caplog.at_level(logging.WARNING, logger="raxss"):
        both = [scorer.launch(windows).logits() for _ in range(2)]
    assert max(network.seen) == 128
    assert network.seen.count(128) == 2 * (len(windows) // 128)
    assert caplog.text.count("no room for 512 windows at once") == len(caplog.records) == 1
    with torch.inference_mode():
        plain = network.head(torch.from_numpy(windows.samples[:, 0].astype(np.float32)))
    assert torch.equal(both[0], both[1])
    torch.testing.assert_close(both[0], plain)


def test_a_device_without_any_room_ends_in_an_error_where_there_is_no_other(rng):
    windows = windows_of(Series(rng.normal(size=900)), window_length=32, stride=8)
    with pytest.raises(torch.OutOfMemoryError, match="no room for 32"):
        Scorer(Cramped(31), torch.device("cpu")).launch(windows)


def test_features_that_do_not_fit_are_refused_with_their_size(waves_model, monkeypatch):
    model, series = waves_model
    monkeypatch.setattr("raxss._core.memory.available_memory", lambda: 1000)
    model.set_params(space="features")
    with pytest.raises(DataError, match=r"windows by 96 features each needs .* Set space='signal'"):
        model.predict_proba(series[:1])


@pytest.mark.parametrize("space", ["signal", "features"])
def test_working_ahead_on_groups_of_series_changes_no_score(waves_model, monkeypatch, space):
    model, series = waves_model
    model.set_params(space=space)
    shares: list[float] = []
    one_by_one = [item.windows for item in model.explain_each(series)]
    monkeypatch.setattr("raxss.method.inference.SERIES_AHEAD", {"cpu": 1})
    monkeypatch.setattr("raxss.method.inference.LISTED_AT_ONCE", 300)
    together = [item.windows for item in model.explain_each(series, on_progress=shares.append)]
    for item, other in zip(one_by_one, together, strict=True):
        pd.testing.assert_frame_equal(item, other, check_exact=True)
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)


@pytest.mark.parametrize(("windows_of_a_long_series", "n_ahead"), [(1, 1), (10**6, 3)])
def test_a_gpu_is_a_few_short_series_ahead_but_one_long_one(
    waves_model, monkeypatch, windows_of_a_long_series, n_ahead
):
    model, series = waves_model
    launched: list[int] = []

    class Counting(Scorer):
        def launch(self, windows, **more):
            launched.append(len(windows))
            return super().launch(windows, **more)

    monkeypatch.setattr("raxss.method.inference.Scorer", Counting)
    monkeypatch.setattr("raxss.method.inference.SERIES_AHEAD", {"cpu": 3})
    monkeypatch.setattr("raxss.method.inference.WINDOWS_OF_A_LONG_SERIES", windows_of_a_long_series)
    ahead = [len(launched) - n_before - 1 for n_before, _ in enumerate(model.explain_each(series[:8]))]
    assert ahead == [n_ahead] * (8 - n_ahead) + [*range(n_ahead)][::-1]


def test_short_series_of_a_gpu_are_retrieved_together_up_to_a_bound(waves_model, monkeypatch):
    model, series = waves_model
    model.set_params(space="signal")
    monkeypatch.setattr("raxss.method.inference.LISTED_AT_ONCE", 300)
    predictor = model._predictor(None)
    on_gpu = replace(predictor, device=torch.device("cuda"))
    groups = list(on_gpu.groups(list(series)))
    assert [item.name for group in groups for item in group] == series.names
    assert max(map(len, groups)) > 1
    for group in groups:
        assert len(group) == 1 or 10 * sum(map(predictor.n_windows, group)) <= 300
    alone = list(predictor.groups(list(series)))
    assert [len(group) for group in alone] == [1] * 24


def test_wrong_series_are_refused_before_the_first_is_explained(waves_model):
    model, series = waves_model
    with pytest.raises(VariateMismatchError, match="series 'two' has 2 variates"):
        model.explain_each([*series[:2], Series(np.zeros((2, 50)), name="two")])
