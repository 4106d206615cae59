"""Ensembles: one member trained on each window, the mean of all at prediction, contributions that add up."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from network_claims import build, seeded_on_one_thread
from raxss import Config, RAxSSClassifier
from raxss.errors import BackboneError, ConfigError, ModelError
from raxss.method.aggregation import posteriors_of
from raxss.method.backbones import BACKBONES, ensemble, n_parameters, register_backbone
from raxss.method.backbones.ensemble import mean_posterior
from raxss.method.backbones.protocol import known_n_features
from resealed import reseal
from toys import SIGNAL, Headed, Plain, Tiny, waves

OF_TWO = {"of": "convnet", "members": 2, "options": {"width": 4}}
_seeded = pytest.fixture(autouse=True)(seeded_on_one_thread)


def gradients_by_member(network):
    """Whether anything in each member would move."""
    return [
        any(parameter.grad is not None and bool(parameter.grad.any()) for parameter in member.parameters())
        for member in network.members
    ]


# Training ---------------------------------------------------------------------------------------------


def test_in_training_a_windows_logits_are_its_members():
    network = build("ensemble", of="dlinear", members=3, n_outputs=4).train()
    windows = torch.randn(8, 1, 64)
    logits = network(windows)
    for k in range(8):
        assert_close(logits[k], network.members[k % 3](windows[k : k + 1])[0])
    assert_close(network.logits_of(network.features(windows)), logits)


@pytest.mark.parametrize("of", ["multiview", "convnet", "patchtst", "gru"])
@pytest.mark.parametrize("n_windows", [1, 2, 4])
def test_a_batch_smaller_than_the_ensemble_trains_its_first_members(of, n_windows):
    network = build("ensemble", of=of, members=3, window_length=17).train()
    logits = network(torch.randn(n_windows, 1, 17))
    assert logits.shape == (n_windows, 1)
    logits.sum().backward()
    assert gradients_by_member(network) == [k < n_windows for k in range(3)]
    assert all(
        parameter.grad is None or parameter.grad.isfinite().all() for parameter in network.parameters()
    )


# The mean of all -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_outputs", [1, 2, 5])
def test_the_posterior_is_the_mean_of_the_members(n_outputs):
    network = build("ensemble", n_outputs=n_outputs, of="dlinear", members=3).eval()
    for member in network.members:
        member.head.weight.data *= 30  # so that they disagree
    windows = torch.randn(6, 1, 64)
    posteriors = torch.stack([posteriors_of(member(windows)) for member in network.members])
    assert posteriors.std(dim=0).max() > 0.05
    assert_close(posteriors_of(network(windows)), posteriors.mean(dim=0))


def test_a_member_that_is_certain_does_not_overflow():
    found = mean_posterior([torch.tensor([[1000.0], [-1000.0]]), torch.tensor([[-1000.0], [-1000.0]])])
    assert_close(found, torch.tensor([[0.0], [-1000.0]]))
    assert_close(mean_posterior([torch.tensor([[1000.0, 0, 0]])]).exp(), torch.tensor([[1.0, 0, 0]]))


@pytest.mark.parametrize("of", sorted(set(BACKBONES) - {"ensemble"}))
def test_every_network_of_the_package_can_be_a_member(of):
    network = build("ensemble", n_variates=2, n_outputs=3, of=of, members=2)
    assert network.training
    network(torch.randn(5, 2, 64)).sum().backward()
    assert gradients_by_member(network) == [True, True]
    windows = torch.randn(5, 2, 64)
    features = network.eval().features(windows)
    assert features.shape == (5, sum(network.widths))
    assert torch.equal(features[:, : network.widths[0]], network.members[0].features(windows))
    assert torch.equal(network.logits_of(features), network(windows))
    assert network.capturable == getattr(network.members[0], "capturable", False)


def test_members_that_want_to_see_windows_see_them():
    network = build("ensemble", members=[{}, {"views": ["shapes"]}])
    network.look_at(torch.randn(40, 1, 64))
    assert network.members[0].views["textures"].cuts.any()
    build("ensemble", of="gru").look_at(torch.randn(4, 1, 64))  # none has look_at


# In the whole chain -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    series = waves(np.random.default_rng(69421), n_classes=3)
    options = {"members": [{"width": 4}, {"width": 8, "derivatives": 0}], "options": {"n_dilations": 3}}
    with contextmanager(seeded_on_one_thread)():  # as the tests
        return RAxSSClassifier("ensemble", backbone_options=options, **SIGNAL).fit(series), series


@pytest.mark.parametrize("space", ["signal", "features"])
def test_contributions_of_a_fitted_ensemble_add_up_to_its_score(fitted, space):
    model, series = fitted
    model.set_params(space=space)
    scores = model.predict_proba(series)
    posteriors = list(model.window_probabilities(series))
    for item, score, posterior in zip(model.explain(series), scores, posteriors, strict=True):
        weights = item.windows["weight"].to_numpy()
        np.testing.assert_allclose(weights @ posterior, score, atol=1e-6)
        contributions = item.windows[[f"contribution_{name}" for name in model.classes_]].to_numpy()
        np.testing.assert_allclose(contributions, weights[:, None] * posterior, atol=1e-7)
        np.testing.assert_allclose(contributions.sum(axis=0), score, atol=1e-12)
    model.set_params(space="signal")


def test_a_model_comes_back_as_it_went_with_the_table_of_each_member(fitted, tmp_path):
    model, series = fitted
    folder = model.save_pretrained(tmp_path / "m")
    loaded = RAxSSClassifier.from_pretrained(folder, device="cpu")
    np.testing.assert_array_equal(loaded.predict_proba(series), model.predict_proba(series))
    settings = Config.from_file(folder / "settings.toml")
    assert settings.hash == model.config_.hash
    assert settings.backbone.backbone_options["members"] == [{"width": 4}, {"width": 8, "derivatives": 0}]
    assert [member.derivatives for member in loaded.backbone_.members] == [1, 0]


def test_a_model_with_another_number_of_members_is_refused(fitted, tmp_path):
    folder = fitted[0].save_pretrained(tmp_path / "m")
    reseal(folder, lambda facts: facts["settings"]["backbone"]["backbone_options"]["members"].insert(0, {}))
    with pytest.raises(ModelError, match=r"(?s)'m' cannot be read: .*members\.2"):
        RAxSSClassifier.from_pretrained(folder, device="cpu")


@pytest.mark.parametrize(
    "settings",
    [
        {"space": "features", "refresh": "batch", "projection": 4},
        {"space": "features", "refresh": "epoch", "weighting": "gated"},
    ],
)
def test_a_gate_and_a_projection_read_the_features_of_all_members(rng, settings):
    series = waves(rng)
    learned = {**SIGNAL, **settings, "series_loss_weight": 1.0, "batch_size": 256}
    model = RAxSSClassifier("ensemble", backbone_options=OF_TWO, **learned).fit(series)
    assert len(model.heads_.mean) == sum(model.backbone_.widths) == 2 * 64
    item = model.explain(series[0])
    assert item.windows["weight"].sum() == pytest.approx(1)


# Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("members", [0, -3, True, 2.5, "four", [], ["convnet"], [{}, 3], {"width": 3}, None])
def test_members_that_are_no_number_and_no_list_of_tables_are_refused(members):
    with pytest.raises(ConfigError, match=r"needed is a number of members, at least 1, or a list") as raised:
        build("ensemble", members=members)
    assert f"members is {members!r} and" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"options": ["width"]}, r"options is \['width'\]; needed is"),
        ({"members": 10**12}, "members must be at most 64, got 1000000000000"),
        ({"members": [{}] * 65}, "members must be at most 64, got 65"),
        ({"of": "multivew"}, "there is no backbone 'multivew'; did you mean 'multiview'"),
        ({"member": 3}, "'ensemble' has no option 'member'; did you mean 'members'"),
        (
            {"of": "convnet", "members": [{}, {"widht": 3}]},
            "'convnet' has no option 'widht'; did you mean 'width'",
        ),
        ({"of": "ensemble"}, "cannot be made of ensembles"),
    ],
)
def test_options_that_make_no_ensemble_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        build("ensemble", **options)


def test_an_ensemble_that_would_fill_the_memory_is_refused_at_its_first_member(monkeypatch):
    each = n_parameters(build("convnet", width=4))
    monkeypatch.setattr(ensemble, "MOST_PARAMETERS", 3 * each)
    build("ensemble", of="convnet", members=3, options={"width": 4})
    message = (
        rf"4 members of some {each:,} parameters are more than an ensemble may have, {3 * each:,} in all"
    )
    with pytest.raises(ConfigError, match=message):
        build("ensemble", of="convnet", members=4, options={"width": 4})


@pytest.mark.parametrize("network", [Tiny, Plain])
def test_networks_without_features_or_logits_of_are_refused(network):
    try:
        register_backbone("mine")(network)
        with pytest.raises(BackboneError, match=rf"of 'mine' .* {network.__name__} lacks features.*Add both"):
            build("ensemble", of="mine")
    finally:
        BACKBONES.pop("mine", None)


def test_a_users_network_with_features_and_head_can_be_a_member():
    try:
        register_backbone("mine")(Headed)
        network = build("ensemble", of="mine", members=2).eval()
    finally:
        BACKBONES.pop("mine", None)
    windows = torch.randn(3, 1, 64)
    expected = sum(member(windows).sigmoid() for member in network.members) / 2
    assert_close(network(windows).sigmoid(), expected)
    assert not network.capturable
    assert network.widths == [64, 64]
    assert known_n_features(network) == 128
