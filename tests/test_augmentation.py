"""Augmentation: each change against a plain loop, its invariants, and that validation and support see none."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation
from torch import nn

import naive
from raxss import Config, RAxSSClassifier
from raxss.errors import ConfigError
from raxss.method.augmentation import (
    CHANGES,
    MEANINGS,
    AugmentationConfig,
    augment,
    drawn,
    rotations,
)
from raxss.method.training.step import Learner, step_for
from test_training import LENGTH, run, toy_pool
from toys import NETWORK, SIGNAL, SMALL, Tiny, training_plan, waves

KINDS = {
    "flip": 0.5,
    "reverse": 0.5,
    "gain": 0.3,
    "noise": 0.1,
    "stretch": 0.3,
    "mask": 0.4,
    "mirror": (0, 4, 5),
    "rotate": 0.5,
    "drop": 0.3,
}
ALL = AugmentationConfig(**KINDS)


def windows_of(rng, n_windows=12, n_variates=6, length=40):
    samples = rng.normal(size=(n_windows, n_variates, length)) + 3 * rng.normal(
        size=(n_windows, n_variates, 1)
    )
    return torch.from_numpy(samples.astype(np.float32))


def test_every_kind_is_tried_here_and_can_be_made():
    settings = {field.name for field in dataclasses.fields(AugmentationConfig)}
    assert set(KINDS) == settings == set(CHANGES) == {*MEANINGS, "mirror"}


# Against the plain loop ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [40, 41, 2, 1])
@pytest.mark.parametrize("kind", [*KINDS, "all"])
def test_a_change_is_what_the_plain_loop_makes_of_the_same_draws(rng, kind, length):
    settings = ALL if kind == "all" else AugmentationConfig(**{kind: KINDS[kind]})
    windows = windows_of(rng, length=length)
    before = windows.clone()
    torch.manual_seed(3)
    draws = drawn(windows, settings)
    torch.manual_seed(3)
    found = augment(windows, settings)
    assert set(draws) == (set(KINDS) if kind == "all" else {kind})
    expected = naive.augmented(windows.numpy(), {name: draw.numpy() for name, draw in draws.items()})
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-5)
    assert torch.equal(windows, before)


def test_rotations_are_those_of_scipy(rng):
    axes, angles = rng.normal(size=(50, 3)), rng.normal(size=50)
    found = rotations(torch.from_numpy(axes), torch.from_numpy(angles)).numpy()
    vectors = axes / np.linalg.norm(axes, axis=1, keepdims=True) * angles[:, None]
    np.testing.assert_allclose(found, Rotation.from_rotvec(vectors).as_matrix(), atol=1e-12)


# What each keeps ----------------------------------------------------------------------------------------------


def test_the_shares_of_windows_that_change_are_the_settings():
    torch.manual_seed(0)
    windows = torch.randn(20_000, 2, 4)
    settings = AugmentationConfig(
        flip=0.2, reverse=0.7, mirror=[1], drop=0.1, gain=0.25, noise=0.3, stretch=0.2
    )
    draws = drawn(windows, settings)
    assert float((draws["flip"] < 0).float().mean()) == pytest.approx(0.2, abs=0.01)
    assert float(draws["reverse"].float().mean()) == pytest.approx(0.7, abs=0.01)
    assert (draws["mirror"][:, 0] == 1).all()
    assert float((draws["mirror"][:, 1] < 0).float().mean()) == pytest.approx(0.5, abs=0.01)
    assert draws["drop"].float().mean(dim=0).tolist() == pytest.approx([0.1, 0.1], abs=0.01)
    assert float(draws["gain"].log().std()) == pytest.approx(0.25, abs=0.01)
    # the variance of noise whose deviation is uniform from 0 to x is x² / 3
    assert float(draws["noise"].var()) == pytest.approx(0.3**2 / 3, rel=0.05)
    assert float(draws["stretch"].min()) == pytest.approx(0.8, abs=0.001)
    assert float(draws["stretch"].max()) == pytest.approx(1.2, abs=0.001)
    matrices = drawn(torch.zeros(20_000, 3, 1), AugmentationConfig(rotate=0.25))["rotate"]
    angles = Rotation.from_matrix(matrices.double().numpy()).magnitude()
    assert np.sqrt((angles**2).mean()) == pytest.approx(0.25, abs=0.005)


# Without settings ------------------------------------------------------------------------------


def test_without_settings_nothing_is_drawn_and_the_windows_are_the_same_object(rng):
    windows = windows_of(rng)
    before = torch.get_rng_state()
    assert augment(windows, AugmentationConfig()) is windows
    assert torch.equal(torch.get_rng_state(), before)


# In training --------------------------------------------------------------------------------------------------


class Listener(nn.Module):
    """Records the windows that it is given, and in which mode."""

    def __init__(self, n_variates=1):
        super().__init__()
        self.head, self.shown = nn.Linear(n_variates * LENGTH, 1), []

    def forward(self, windows):
        self.shown.append((self.training, windows.clone()))
        return self.head(windows.flatten(1))


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_a_step_shows_the_network_changed_windows_in_full_precision(rng, autocast):
    pool = toy_pool(rng, n_variates=6)
    learner = Learner(Listener(6), temperature=0.1, learned=False).train()
    optimizer, indices = torch.optim.SGD(learner.parameters(), lr=0.0), torch.arange(20)
    step = step_for(learner, pool, optimizer, config=training_plan(), augmentation=ALL, autocast=autocast)
    torch.manual_seed(4)
    step(indices)
    torch.manual_seed(4)
    ((_, shown),) = learner.backbone.shown
    assert torch.equal(shown, augment(pool.gather(indices), ALL))
    assert shown.dtype == torch.float32


def test_support_within_a_batch_is_that_of_the_signal_as_it_is(rng):
    pool, seen = toy_pool(rng), []

    def support(batch, compared):
        seen.append(batch.windows.clone())
        return batch.influence

    learner = Learner(Listener(), temperature=0.1, learned=False).train()
    optimizer, indices = torch.optim.SGD(learner.parameters(), lr=0.0), torch.arange(20)
    settings = AugmentationConfig(flip=1.0, noise=0.5)
    config = training_plan(series_loss_weight=1.0)
    step_for(learner, pool, optimizer, config=config, augmentation=settings, batch_support=support)(indices)
    assert torch.equal(seen[0], pool.gather(indices))
    assert not torch.equal(learner.backbone.shown[0][1], seen[0])


def test_validation_sees_windows_as_they_are(rng):
    pools = toy_pool(rng), toy_pool(rng)
    learner = Learner(Listener(), temperature=0.1, learned=False)
    run(learner, *pools, max_epochs=2, augmentation=AugmentationConfig(flip=0.5, noise=0.1))
    as_they_are = {
        tuple(item) for pool in pools for item in pool.gather(torch.arange(len(pool)))[:, 0].tolist()
    }
    unchanged = {True: 0, False: 0}
    counts = {True: 0, False: 0}
    for training, windows in learner.backbone.shown[2:]:  # the first two measure the memory of a step
        counts[training] += len(windows)
        unchanged[training] += sum(tuple(window) in as_they_are for window in windows[:, 0].tolist())
    assert counts == {True: 2 * len(pools[0]), False: 2 * len(pools[1])}
    assert unchanged == {True: 0, False: counts[False]}


def test_the_same_seed_gives_the_same_fit_and_augmentation_another(rng):
    series = waves(rng, n_variates=6)
    kinds = KINDS | {"mirror": [0, 4]}
    fits = [
        RAxSSClassifier(Tiny, augmentation=item, **SIGNAL).fit(series).predict_proba(series)
        for item in (kinds, kinds, None)
    ]
    np.testing.assert_array_equal(fits[0], fits[1])
    assert np.abs(fits[0] - fits[2]).max() > 1e-3


@pytest.mark.parametrize(
    ("space", "compared"),
    [("signal", "pearson similarity of the signal"), ("features", "cosine similarity in feature space")],
)
def test_a_model_folder_and_its_card_name_augmentation_and_similarity(rng, tmp_path, space, compared):
    series = waves(rng, n_variates=3)
    model = RAxSSClassifier(
        **NETWORK
        | {"augmentation": {"flip": 0.5, "mirror": [0, 2]}, "space": space, "validation_fraction": 0.125}
    ).fit(series)
    again = RAxSSClassifier.from_pretrained(model.save_pretrained(tmp_path / "model"), device="cpu")
    assert again.config == model.config
    card = (tmp_path / "model" / "README.md").read_text()
    assert "stride 8; augmentation: flip 0.5, mirror 0 and 2\n" in card
    assert compared in card
    plain = RAxSSClassifier(augmentation=None, **SMALL).fit(series).save_pretrained(tmp_path / "plain")
    assert "at random" not in (plain / "README.md").read_text()


# Settings -----------------------------------------------------------------------------------------------------


def test_the_stage_is_a_section_in_a_file_and_a_mapping_in_the_estimator():
    text = "[augmentation]\nflip = 0.5\nmirror = [0, 4, 5]"
    config = Config.from_toml(text)
    assert config.augmentation == AugmentationConfig(flip=0.5, mirror=[0, 4, 5])
    assert config.parameters()["augmentation"] == {"flip": 0.5, "mirror": (0, 4, 5)}
    assert RAxSSClassifier(augmentation={"flip": 0.5, "mirror": [0, 4, 5]}).config == config
    assert RAxSSClassifier.from_config(config).config == config


def test_settings_that_change_nothing_have_the_hash_from_before_there_were_any():
    paper = Config.preset("paper").updated({"windows": {"window_length": 1024, "stride": 128}})
    assert paper.hash == "d03895445e62"
    nothing = paper.updated({"augmentation": {"flip": 0.0, "mirror": []}})
    assert nothing.hash == "d03895445e62"
    hashes = {Config(augmentation=AugmentationConfig(**{name: value})).hash for name, value in KINDS.items()}
    assert len(hashes | {Config().hash}) == len(KINDS) + 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"flp": 0.5}, r"unknown setting 'augmentation\.flp'; did you mean 'flip'"),
        ("flip", r"augmentation must be a mapping .* got 'flip'\. Known: flip, reverse, "),
        ({"flip": 1.5}, r"augmentation\.flip must be a number from 0 to 1, got 1\.5.* probability"),
        ({"gain": math.nan}, r"augmentation\.gain .* got nan"),
        ({"stretch": True}, r"augmentation\.stretch .* from 0 to 0\.9, got True"),
        ({"mask": "a third"}, r"augmentation\.mask .* got 'a third'"),
        ({"mirror": 2}, r"augmentation\.mirror must be a list of variates.* got 2\."),
        ({"mirror": [0, 0]}, r"augmentation\.mirror .* got \[0, 0\]"),
        ({"mirror": [-1]}, r"augmentation\.mirror .* got \[-1\]"),
        ({"mirror": [True]}, r"augmentation\.mirror .* got \[True\]"),
    ],
)
def test_a_kind_that_is_wrong_is_named_with_its_value(given, message):
    with pytest.raises(ConfigError, match=message):
        _ = RAxSSClassifier(augmentation=given).config


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mirror": [0, 4]}, r"mirror names variate 4, but the series have 4, numbered from 0 to 3"),
        ({"rotate": 0.1}, r"rotate turns variates three by three, but the series have 4\."),
    ],
)
def test_variates_that_are_not_there_are_refused_before_training(rng, given, message):
    with pytest.raises(ConfigError, match=message):
        RAxSSClassifier(augmentation=given, **SMALL).fit(waves(rng, n_variates=4))
