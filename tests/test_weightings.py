"""Every registered weighting keeps the promises of `Weighting`; a new one needs a line in EXAMPLES, and its name
in the docstring of `RAxSSClassifier`."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import rankdata

import naive
import raxss
from raxss import RAxSSClassifier, Series, retrieve, trace, windows_of
from raxss.errors import ConfigError
from raxss.estimator.config import Config
from raxss.estimator.fit import support_in_batch
from raxss.explain.export.report import report_of
from raxss.explain.faithfulness.randomisation import randomised_retrieval
from raxss.explain.findings import under_other_weights
from raxss.explain.neighbour_lists import weight_without
from raxss.method.aggregation import aggregate
from raxss.method.training.window_pool import Batch
from raxss.method.weighting import WEIGHTINGS, Weighting, influence, register_weighting, window_weights
from raxss.method.weighting.protocol import add_weightings
from toys import NETWORK, waves

#: Support (and what a gate adds, where there is one) of four windows -> influence, worked out by hand.
EXAMPLES = {
    "support": ([0.9, 0.5, np.nan, 0.5], None, [0.9, 0.5, np.nan, 0.5]),
    "uniform": ([0.9, 0.5, np.nan, 0.5], None, [0.0, 0.0, np.nan, 0.0]),
    "gated": ([0.9, 0.5, np.nan, 0.5], [0.5, -0.5, 1.0, 0.25], [1.4, 0.0, np.nan, 0.75]),
    "rank": ([0.9, 0.5, np.nan, 0.5], None, [1.0, 0.25, np.nan, 0.25]),
}

ALL = sorted(WEIGHTINGS)
HEADS = sorted(name for name, item in WEIGHTINGS.items() if not item.is_control)
FIXED = sorted(name for name, item in WEIGHTINGS.items() if not item.needs_generator)
TRAINED = sorted(name for name, item in WEIGHTINGS.items() if not (item.needs_gate and item.is_control))
TEMPERATURES = (0.003, 0.1, 5.0)


def gate_for(name, n, rng):
    return rng.normal(size=n) if WEIGHTINGS[name].needs_gate else None


def weights_of(name, support, *, temperature=0.1, gate=None, seed=0):
    values = influence(support, name, gate=gate, seed=seed)
    return window_weights(torch.from_numpy(values), temperature=temperature).numpy()


def random_supports(rng, n=40):
    """With ties, and windows that cannot be used."""
    support = rng.integers(-8, 9, n) / 8
    support[rng.random(n) < 0.2] = np.nan
    support[0] = 0.5
    return support


# The registry -----------------------------------------------------------------------------------------------------


def test_every_weighting_that_is_no_control_has_a_worked_example():
    assert set(EXAMPLES) == set(HEADS)


@pytest.mark.parametrize("name", HEADS)
def test_the_worked_example_holds(name):
    support, gate, expected = EXAMPLES[name]
    assert_allclose(influence(support, name, gate=gate), expected, atol=1e-15)


@pytest.mark.parametrize("name", ALL)
def test_where_no_window_can_be_used_no_influence_is_known(name):
    assert np.isnan(influence([np.nan, np.nan], name, gate=[0.0, 0.0])).all()


@pytest.mark.parametrize("name", ALL)
def test_names_that_a_weighting_gives_are_registered_and_lead_back(name):
    item = WEIGHTINGS[name]
    assert item.name == name
    assert item.family in WEIGHTINGS
    assert WEIGHTINGS[item.family].family == item.family
    assert not WEIGHTINGS[item.family].is_control
    assert item.inverse is None or WEIGHTINGS[item.inverse].inverse == name
    assert item.inverse is not None or item.needs_generator
    assert item.shuffled is None or WEIGHTINGS[item.shuffled].is_control
    for reason in (item.no_batch, item.no_batch_gradient, item.no_learned_temperature):
        assert reason == "" or reason.startswith(("which ", "whose ", "under which "))
        assert not reason.endswith(".")


def test_unknown_names_are_refused_with_all_that_are_known():
    with pytest.raises(ConfigError, match=f"one of {', '.join(WEIGHTINGS)}, got 'rnak'"):
        influence([0.5], "rnak")
    with pytest.raises(ConfigError, match=r"'rnak'; did you mean 'rank'.*rank-shuffled"):
        Config.from_parameters({"weighting": "rnak"})


def test_a_weighting_from_outside_is_known_with_its_controls_everywhere(rng):
    with pytest.raises(ConfigError, match="weighting"):
        RAxSSClassifier(**NETWORK, weighting="cubed").fit(waves(rng))

    @register_weighting("cubed")
    class Cubed(Weighting):
        def influence(self, support, *, gate=None, seed=0):
            return support**3

    try:
        with pytest.raises(ConfigError, match=r"the weighting name 'cubed' belongs to .*Cubed already"):
            register_weighting("cubed")(type(WEIGHTINGS["rank"]))
        with pytest.raises(ConfigError, match="'inverse' belongs to the inverse of"):
            add_weightings(Cubed("other"), Cubed("inverse"))
        assert "other" not in WEIGHTINGS
        series = waves(rng)
        model = RAxSSClassifier(**NETWORK, weighting="cubed").fit(series)
        found = model.explain(series[0])
        support = found.columns["support"]
        assert_allclose(found.columns["weight"], naive.window_weights((support**3).tolist(), 0.1), atol=1e-12)
        assert found.leaderboard(0)["weight_without"].notna().all()
        inverted = model.set_params(weighting="cubed-inverse").explain(series[0])
        assert any("'cubed-inverse' is a control" in warning for warning in inverted.warnings)
        with pytest.raises(ConfigError, match="'cubed', which is not defined among the windows"):
            RAxSSClassifier(**NETWORK, weighting="cubed", bank="batch").fit(series)
    finally:
        for name in [name for name, item in WEIGHTINGS.items() if item.family == "cubed"]:
            del WEIGHTINGS[name]


# Eq. (2) ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_weights_are_convex_and_0_where_a_window_cannot_be_used(rng, name, temperature):
    for n in (1, 2, 40):
        support, posteriors = random_supports(rng, n), rng.dirichlet([1, 1], n)
        given = support.copy(), posteriors.copy()
        settings = {"temperature": temperature, "weighting": name, "gate": gate_for(name, n, rng)}
        found = aggregate(posteriors, support, **settings)
        assert_array_equal(support, given[0])
        assert_array_equal(posteriors, given[1])
        assert_array_equal(np.isnan(found.influence), np.isnan(support))
        assert (found.weights >= 0).all()
        assert found.weights[np.isnan(support)].tolist() == [0.0] * int(np.isnan(support).sum())
        assert found.weights.sum() == pytest.approx(1, abs=1e-12)
        assert found.weighting == name
        posteriors[np.isnan(support)] = [np.nan, np.inf]
        again = aggregate(posteriors, support, **settings)
        assert_array_equal(again.series_probability, found.series_probability)


@pytest.mark.parametrize("name", HEADS)
def test_more_support_never_weighs_less(rng, name):
    support = random_supports(rng)
    support = support[~np.isnan(support)]
    weights = weights_of(name, support, gate=np.zeros(len(support)))
    order = np.argsort(support, kind="stable")
    assert (np.diff(weights[order]) >= -1e-15).all()


@pytest.mark.parametrize("name", FIXED)
def test_ties_weigh_the_same_and_order_does_not_matter(rng, name):
    support = random_supports(rng)
    gate = np.zeros(len(support))
    weights = weights_of(name, support, gate=gate)
    for value in np.unique(support[~np.isnan(support)]):
        assert np.ptp(weights[support == value]) == 0
    order = rng.permutation(len(support))
    assert_array_equal(influence(support[order], name, gate=gate), influence(support, name, gate=gate)[order])


@pytest.mark.parametrize("name", ALL)
def test_random_numbers_are_fixed_by_the_seed_and_others_do_not_look_at_it(rng, name):
    support, gate = random_supports(rng), np.zeros(40)
    first, again, other = (influence(support, name, gate=gate, seed=seed) for seed in (1, 1, 2))
    assert_array_equal(first, again)
    assert np.array_equal(first, other, equal_nan=True) != WEIGHTINGS[name].needs_generator


@pytest.mark.parametrize("name", sorted(name for name, item in WEIGHTINGS.items() if item.inverse))
def test_the_inverse_reverses_the_ranks(rng, name):
    support = random_supports(rng)
    support = support[~np.isnan(support)]
    gate = gate_for(name, len(support), rng)
    own, inverse = (influence(support, item, gate=gate) for item in (name, WEIGHTINGS[name].inverse))
    assert_array_equal(rankdata(own), rankdata(-inverse))
    own, inverse = (
        weights_of(item, support, gate=gate, temperature=1.0) for item in (name, WEIGHTINGS[name].inverse)
    )
    assert own @ inverse <= 1 / len(own) + 1e-15  # what weighs more under one weighs less under the other


@pytest.mark.parametrize("name", sorted(name for name, item in WEIGHTINGS.items() if item.shuffled))
def test_the_shuffled_control_is_a_permutation(rng, name):
    support = random_supports(rng)
    gate = gate_for(name, len(support), rng)
    own, shuffled = (influence(support, item, gate=gate) for item in (name, WEIGHTINGS[name].shuffled))
    assert_array_equal(np.sort(own), np.sort(shuffled))
    assert not np.array_equal(own, shuffled, equal_nan=True)


# In training ------------------------------------------------------------------------------------------------------


def batch_of(series, stride=8, length=32):
    """All windows of some series as one batch, and what retrieval finds for each."""
    cut = [windows_of(item, window_length=length, stride=stride) for item in series]
    found = [
        retrieve(item, window_length=length, stride=stride, n_neighbors=4, exclusion=8) for item in series
    ]
    batch = Batch(
        windows=torch.from_numpy(np.concatenate([item.samples for item in cut])),
        series=torch.from_numpy(np.repeat(np.arange(len(cut)), [len(item) for item in cut])),
        starts=torch.from_numpy(np.concatenate([item.starts + 10_000 * i for i, item in enumerate(cut)])),
        influence=torch.zeros(sum(map(len, cut))),
        flat=torch.from_numpy(np.concatenate([item.flat for item in found])),
    )
    return batch, found


@pytest.mark.parametrize("name", TRAINED)
def test_within_a_batch_of_whole_series_influence_is_that_of_the_whole_series(rng, name):
    lists = {"bank": "batch", "space": "signal", "n_neighbors": 4, "exclusion": 8}
    settings = lists | {"weighting": name, "series_loss_weight": 1.0}
    config, item = Config.from_parameters(settings), WEIGHTINGS[name]
    if item.no_batch:
        with pytest.raises(ConfigError, match=f"bank = 'batch' .* {name!r}, {item.no_batch}"):
            config.check_fit()
        with pytest.raises(ConfigError, match=f"{name!r}, {item.no_batch}"):
            item.batch_influence(torch.zeros(3), torch.zeros(3, dtype=torch.long), 1)
        return
    config.check_fit()
    batch, found = batch_of(waves(rng)[:4])
    support = support_in_batch(config, 32, n_series=5)
    if not item.needs_retrieval:
        assert support is None
        return
    expected = np.concatenate([item.pool_influence(each.support) for each in found])
    assert_allclose(support(batch, None), expected, atol=1e-9)
    order = torch.from_numpy(rng.permutation(len(expected)))
    mixed = Batch(*(values[order] for values in batch[:5]))
    assert_allclose(support(mixed, None), expected[order], atol=1e-9)


@pytest.mark.parametrize("name", TRAINED)
def test_gradients_reach_the_support_within_a_batch_or_learning_from_it_is_refused(rng, name):
    item = WEIGHTINGS[name]
    settings = {"weighting": name, "space": "features", "refresh": "batch", "series_loss_weight": 1.0}
    config = Config.from_parameters(settings)
    reason = item.no_batch or item.no_batch_gradient
    if item.needs_retrieval and reason:
        with pytest.raises(ConfigError, match=f"refresh = 'batch' .* {name!r}, {reason}"):
            config.check_fit()
    else:
        config.check_fit()
    if item.no_batch or not item.needs_retrieval:
        return
    support = torch.from_numpy(rng.uniform(-1, 1, 12)).requires_grad_()
    series = torch.from_numpy(rng.integers(3, size=12))
    values = item.batch_influence(support, series, 3)
    weights = window_weights(values, temperature=0.3, series=series, n_series=3)
    if item.no_batch_gradient:
        assert not weights.requires_grad
        return
    (slope,) = torch.autograd.grad(weights[0], support)
    assert torch.isfinite(slope).all()
    assert slope[0] != 0 or (series == series[0]).sum() == 1
    assert torch.autograd.gradcheck(lambda values: item.batch_influence(values, series, 3), (support,))


@pytest.mark.parametrize("name", TRAINED)
def test_a_learned_temperature_has_a_gradient_or_is_refused(rng, name):
    item = WEIGHTINGS[name]
    settings = {"temperature": "learned", "series_loss_weight": 1.0, "validation_fraction": 0.2}
    config = Config.from_parameters(settings | {"weighting": name, "space": "signal"})
    if item.no_learned_temperature:
        with pytest.raises(ConfigError, match=f"'learned' .* {name!r}, {item.no_learned_temperature}"):
            config.check_fit()
        return
    config.check_fit()
    temperature = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    values = torch.from_numpy(item.pool_influence(rng.uniform(-1, 1, 9)))
    window_weights(values, temperature=temperature)[2].backward()
    assert torch.isfinite(temperature.grad)
    assert temperature.grad != 0


@pytest.mark.parametrize("name", TRAINED)
def test_what_the_pool_of_training_holds_is_what_prediction_weighs_by(rng, name):
    support, item = random_supports(rng), WEIGHTINGS[name]
    assert_array_equal(
        item.pool_influence(support, seed=3), influence(support, name, gate=np.zeros(40), seed=3)
    )
    mean = item.mean_support(float(np.nanmean(item.pool_influence(support))))
    assert mean is None or mean == pytest.approx(np.nanmean(support))


# Evidence ---------------------------------------------------------------------------------------------------------


def random_lists(rng):
    """Similarities as retrieval rounds them, with ties; flat, lonely and unusable windows among them."""
    n, m = int(rng.integers(1, 12)), int(rng.integers(1, 5))
    bits = int(rng.choice([1, 3, 20]))
    similarity = -np.sort(-rng.integers(-(2**bits), 2**bits + 1, (n, m)) / 2**bits)
    nonfinite, flat = rng.random(n) < 0.15, rng.random(n) < 0.2
    nonfinite[0] = False
    flat &= ~nonfinite
    n_listed = rng.integers(rng.integers(2), m + 1, n)
    n_listed[rng.random(n) < 0.3] = 1
    n_listed[nonfinite] = 0
    similarity[flat] = 0.0
    similarity[np.arange(m) >= n_listed[:, None]] = np.nan
    return similarity, naive.support_of(similarity, flat, nonfinite)[0], flat


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_weight_without_a_neighbour_is_that_of_a_recomputation(name, temperature):
    rng = np.random.default_rng(69421)
    item, n_lonely, n_tied = WEIGHTINGS[name], 0, 0
    for _ in range(60):
        similarity, support, flat = random_lists(rng)
        gate = gate_for(name, len(support), rng)
        found = weight_without(similarity, support, flat, temperature=temperature, weighting=name, gate=gate)
        if item.needs_generator:
            assert np.isnan(found).all()
            continue
        assert_array_equal(np.isnan(found), np.isnan(similarity))
        for k, j in np.argwhere(~np.isnan(similarity)):
            left = similarity.copy()
            left[k, j] = np.nan
            again = naive.support_of(left, flat, np.isnan(support))[0]
            assert found[k, j] == pytest.approx(
                weights_of(name, again, temperature=temperature, gate=gate)[k], abs=1e-9
            )
        some = rng.permutation(len(support))[:3]
        assert_array_equal(
            weight_without(
                similarity, support, flat, temperature=temperature, weighting=name, gate=gate, rows=some
            ),
            found[some],
        )
        n_lonely += int((np.isnan(similarity).all(axis=1) & ~np.isnan(support) & ~flat).any())
        n_tied += int(len(np.unique(support)) < len(support))
    assert item.needs_generator or (n_lonely > 10 and n_tied > 10)


def explained(name, series, rng, **settings):
    found = retrieve(series, **{"window_length": 20, "stride": 5, "n_neighbors": 3} | settings)
    n = found.n_windows
    made = aggregate(rng.dirichlet([1, 1], n), found.support, weighting=name, gate=gate_for(name, n, rng))
    windows = windows_of(series, window_length=20, stride=5)
    return trace(series, windows, found, made, classes=["a", "b"])


@pytest.mark.parametrize("name", ALL)
def test_evidence_has_the_note_and_compares_with_the_inverse_of_the_family(rng, name):
    item = WEIGHTINGS[name]
    evidence = explained(name, Series(rng.normal(size=300), rate=10.0, name="noise"), rng)
    note = item.note()
    assert note is None or note in evidence.warnings
    assert (note is not None and repr(name) in note and "is a control" in note) == item.is_control
    other = under_other_weights(evidence)
    assert set(other) == {"uniform", "inverse"}
    inverse = WEIGHTINGS[item.family].inverse
    again = aggregate(
        np.stack([evidence.columns["posterior_a"], evidence.columns["posterior_b"]], axis=1),
        evidence.columns["support"],
        weighting=inverse,
        gate=evidence.columns.get("gate"),
    )
    assert_array_equal(other["inverse"], again.series_probability)


@pytest.mark.parametrize("name", ALL)
def test_windows_without_neighbours_weigh_the_same_but_for_a_gate(rng, name):
    evidence = explained(name, Series(rng.normal(size=60), name="short"), rng, exclusion=100)
    weights = evidence.columns["weight"]
    assert evidence.columns["lonely"].all()
    if not WEIGHTINGS[name].needs_gate:
        assert_allclose(weights, 1 / len(weights), atol=1e-15)
    assert evidence.neighbors.empty


# The whole chain --------------------------------------------------------------------------------------------------

CHAIN = NETWORK | {"series_loss_weight": 1.0, "exclusion": 8, "max_epochs": 1}


@pytest.fixture(scope="module")
def models():
    """Fitted under each weighting, controls of a gate under that of their family; when first used."""
    series, made = waves(np.random.default_rng(8)), {}

    def model(name):
        item = WEIGHTINGS[name]
        own = item.family if item.needs_gate else name
        if own not in made:
            made[own] = RAxSSClassifier(**CHAIN, weighting=own).fit(series[:12], validation=series[12:])
        return made[own].set_params(weighting=name), series

    return model


@pytest.mark.parametrize("name", ALL)
def test_fit_predict_explain_report_and_randomise(models, name):
    model, series = models(name)
    item, some = WEIGHTINGS[name], series[12:15]
    found = [model.explain(each) for each in some]
    assert_array_equal(model.predict_proba(some), [each.series_probability for each in found])
    for each in found:
        gate, columns = each.columns.get("gate"), each.columns
        if not item.needs_generator:
            values = influence(columns["support"], name, gate=gate)
            assert_allclose(columns["weight"], naive.window_weights(values.tolist(), 0.1), atol=1e-12)
    contents = report_of(found).contents
    assert contents["settings"]["weighting"] == name
    rows = next(randomised_retrieval(model.model_adapter(), list(some)))
    by = {row["control"]: row for row in rows}
    assert ("inverted" in by) == (item.inverse is not None)
    if item.inverse is not None:
        model.set_params(weighting=item.inverse)
        inverted = model.predict_proba(some[:1])[0]
        assert_allclose(by["inverted"]["probability"], inverted, atol=1e-8)
        assert (by["inverted"]["weights_moved"] > 0) == item.needs_retrieval


def fitted_in_batches(name):
    model = RAxSSClassifier(**CHAIN, weighting=name, bank="batch", batch_size=64)
    return model.fit(waves(np.random.default_rng(8))).backbone_.parameters()


@pytest.fixture(scope="module")
def by_support():
    return list(fitted_in_batches("support"))


@pytest.mark.parametrize("name", [name for name in TRAINED if not WEIGHTINGS[name].no_batch])
def test_training_with_the_batch_as_the_bank_uses_the_weighting(by_support, name):
    same = all(map(torch.equal, fitted_in_batches(name), by_support))
    assert same == (name == "support")


# Names ------------------------------------------------------------------------------------------------------------


def test_no_other_module_compares_the_name_of_a_weighting():
    sources, seen = Path(raxss.__file__).parent, set()
    for path in sorted(sources.rglob("*.py")):
        place = path.relative_to(sources).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Compare) and not place.startswith("method/weighting/"):
                sides = (node.left, *node.comparators)
                parts = [item for side in sides for item in (side, *getattr(side, "elts", ()))]
                names = {item.value for item in parts if isinstance(item, ast.Constant)}
                seen |= {(place, name) for name in names & set(WEIGHTINGS)}
    assert seen == {("benchmark/pages/overview.py", "shuffled")}  # labels


def test_the_estimator_documents_the_weightings_that_there_are():
    assert set(HEADS) <= set(re.findall(r'``"([^"]+)"``', RAxSSClassifier.__doc__))
