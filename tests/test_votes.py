"""Votes of cases: the equations against a slow twin, shares that add up, and groups that leave."""

from dataclasses import replace

import numpy as np
import pytest

from naive import case_score
from raxss.errors import ConfigError, DataError
from raxss.library.search import CaseSearch
from raxss.library.vote_fit import LabelledScore
from raxss.library.votes import CaseScore, LabelledCases, largest_share, visible_cases, votes

SETTINGS = {"n_cases": 5, "most_a_group": 2}


def drawn(seed, *, n_groups=8, n_classes=3, width=4, n_windows=6):
    """A library of random keys, and a random series that is like nothing in particular."""
    rng = np.random.default_rng(seed)
    n_cases = int(rng.integers(n_groups, 4 * n_groups))
    groups = np.concatenate([np.arange(n_groups), rng.integers(0, n_groups, n_cases - n_groups)])
    labels = rng.integers(0, n_classes, n_cases)
    case = np.repeat(np.arange(n_cases), rng.integers(1, 4, n_cases))
    keys = rng.normal(size=(len(case), width)).astype(np.float32)
    names = tuple(f"g{number}" for number in range(n_groups))
    queries = rng.normal(size=(n_windows, width))
    weights = rng.dirichlet(np.ones(n_windows))
    posteriors = rng.dirichlet(np.ones(n_classes), size=n_windows)
    return keys, case, labels, groups, names, queries, weights, posteriors


def scored(seed, *, own=None, prior=None, mixing=0.6, least=None, **sizes):
    keys, case, labels, groups, names, queries, weights, posteriors = drawn(seed, **sizes)
    search = CaseSearch([(keys, case)], groups=[names[group] for group in groups])
    # The search numbers groups as they come, the names here are in order: so they do.
    assert search.groups == names
    cases = LabelledCases(labels, groups, names, n_classes=posteriors.shape[1])
    visible = visible_cases(
        cases, ("",) * len(cases), own_groups=() if own is None else (own,), digest="none"
    )
    nearest = search.nearest(queries, groups=[own], **SETTINGS)
    return CaseScore(
        weights=weights, posteriors=posteriors, nearest=nearest, cases=cases, visible=visible, mixing=mixing,
        tau=0.2, prior=prior, most_a_group=SETTINGS["most_a_group"], least_similarity=least,
    )  # fmt: skip


@pytest.mark.parametrize("prior", [None, (0.2, 0.5, 0.3)])
@pytest.mark.parametrize("own", [None, "g3"])
@pytest.mark.parametrize("least", [None, 0.8])
def test_a_score_is_that_of_the_slow_twin(prior, own, least):
    for seed in range(10):
        found = scored(seed, own=own, prior=None if prior is None else np.array(prior), least=least)
        keys, case, labels, groups, names, queries, weights, posteriors = drawn(seed)
        expected = case_score(
            keys, case, labels, groups, queries, weights, posteriors, own=None if own is None else names.index(own),
            prior=prior, mixing=0.6, tau=0.2, least=least, **SETTINGS,
        )  # fmt: skip
        np.testing.assert_allclose(found.probability, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("mixing", [0.0, 0.3, 1.0])
def test_contributions_of_windows_and_cases_add_up_to_the_score(mixing):
    for seed in range(20):
        found = scored(seed, mixing=mixing, own="g1", least=0.5)
        parts = found.contributions()
        assert (parts >= 0).all()
        np.testing.assert_allclose(parts.sum(axis=(0, 1)), found.probability, rtol=0, atol=1e-12)
        assert found.probability.sum() == pytest.approx(1, abs=1e-12)
        of_groups = found.shares_of_groups()
        assert of_groups.sum() + found.from_model.sum() == pytest.approx(1, abs=1e-12)
        assert of_groups[1] == 0  # its own
        assert of_groups.sum() == pytest.approx((found.weights * found.mixing_of_windows).sum(), abs=1e-12)


def test_without_a_group_is_what_a_library_answers_that_never_had_it_in_1000_draws():
    worst, moved = 0.0, []
    for seed in range(1000):
        own = "g2" if seed % 2 else None
        prior = np.array([0.5, 0.3, 0.2]) if seed % 3 == 0 else None
        whole = scored(seed, own=own, prior=prior)
        leaving = f"g{seed % 8}"
        found = whole.without(leaving).probability
        keys, case, labels, groups, names, queries, *_ = drawn(seed)
        stays = groups != names.index(leaving)
        kept = np.flatnonzero(stays)
        rows = stays[case]
        search = CaseSearch(
            [(keys[rows], np.searchsorted(kept, case[rows]))], groups=[names[group] for group in groups[kept]]
        )
        numbers = np.array([search.groups.index(names[group]) for group in groups[kept]])
        cases = LabelledCases(labels[kept], numbers, search.groups, n_classes=3)
        rebuilt = replace(
            whole,
            cases=cases,
            nearest=search.nearest(queries, groups=[own], **SETTINGS),
            visible=visible_cases(cases, ("",) * len(kept), own_groups=(own,), digest="none"),
        )
        worst = max(worst, float(np.abs(found - rebuilt.probability).max()))
        moved.append(np.abs(found - whole.probability).max())
    assert worst <= 1e-12
    assert np.mean(np.array(moved) > 1e-6) > 0.5  # or nothing was tested


def test_slopes_are_derivatives_with_respect_to_similarities():
    score, step = scored(5), 1e-6
    lists = score.lists
    v = score.cases.weights(visible=score.visible, most_a_group=score.most_a_group)
    for place in range(3):
        slopes = score.slopes(place)
        for row, rank in ((0, 0), (2, 3), (5, 4)):
            moved = []
            for sign in (-1, 1):
                similarity = lists.similarity.copy()
                similarity[row, rank] += sign * step
                _, q = votes(
                    lists._replace(similarity=similarity), v, score.cases.labels, tau=score.tau, n_classes=3
                )
                moved.append(score.mixing * float(score.weights @ q[:, place]))
            assert slopes[row, rank] == pytest.approx((moved[1] - moved[0]) / (2 * step), abs=1e-8)


def test_every_group_counts_the_same_whatever_it_has():
    cases = LabelledCases([0, 0, 0, 1], [0, 0, 0, 1], ("many", "one"), n_classes=2)
    v = cases.weights()
    assert [v[:3].sum(), v[3]] == pytest.approx([1.0, 1.0])
    v = cases.weights(prior=[0.9, 0.1])
    assert [v[:3].sum(), v[3]] == pytest.approx([0.9, 0.1])


def test_cases_of_one_class_do_not_vote_and_neither_do_those_that_a_group_leaves():
    for seed in range(20):
        whole = scored(seed, n_groups=4, n_classes=2, mixing=1.0)
        labels = (whole.cases.groups == 3).astype(int)  # the second class is of one group alone
        cases = LabelledCases(labels, whole.cases.groups, whole.cases.group_names, n_classes=2)
        whole = replace(whole, cases=cases)
        assert whole.shares_of_groups().sum() == pytest.approx(1)
        alone = whole.without("g3")
        assert not alone.mixing_of_windows.any()
        np.testing.assert_allclose(alone.probability, alone.weights @ alone.posteriors, rtol=0, atol=1e-15)
        unseen = replace(whole, visible=whole.visible & (labels == 0))
        np.testing.assert_allclose(unseen.probability, alone.probability, rtol=0, atol=1e-15)
        # So neither lambda nor tau can be fitted by it: it is the same for all.
        item = LabelledScore(score=unseen, label=0, group="g")
        assert np.ptp(item.probabilities(0.1, (0.0, 0.5, 1.0))) < 1e-15


@pytest.mark.parametrize("prior", [None, (0.5, 0.5)])
def test_fifty_recordings_of_a_group_weigh_as_much_as_one_where_two_can_be_listed(prior):
    labels, groups = [0] * 50 + [1], [0] * 50 + [1]
    search = CaseSearch([(np.ones((51, 3)), np.arange(51))], groups=["many"] * 50 + ["one"])
    score = CaseScore(
        weights=np.ones(1), posteriors=np.full((1, 2), 0.5), visible=np.ones(51, bool), mixing=1.0, tau=0.1,
        nearest=search.nearest(np.ones((1, 3)), n_cases=10, most_a_group=2), most_a_group=2,
        cases=LabelledCases(labels, groups, ("many", "one"), n_classes=2),
        prior=None if prior is None else np.array(prior),
    )  # fmt: skip
    np.testing.assert_allclose(score.probability, [0.5, 0.5], rtol=0, atol=1e-12)
    np.testing.assert_allclose(score.shares_of_groups(), [0.5, 0.5], rtol=0, atol=1e-12)


def test_a_window_that_no_case_is_near_keeps_its_own_posterior():
    far = scored(1, least=2.0)  # no cosine is as large
    assert not far.is_near.any()
    np.testing.assert_allclose(far.probability, far.weights @ far.posteriors, rtol=0, atol=1e-15)
    assert far.effective_groups == 0
    assert far.shares_by_name() == {}
    alone = scored(1, n_groups=1, own="g0")  # a library of the query's own group alone
    assert alone.nearest.empty.all()
    np.testing.assert_allclose(alone.probability, alone.weights @ alone.posteriors, rtol=0, atol=1e-15)


def test_effective_groups_count_those_that_decide():
    for seed in range(10):
        score = scored(seed)
        shares = score.shares_by_name()
        assert list(shares.values()) == sorted(shares.values(), reverse=True)
        assert 1 <= score.effective_groups <= len(shares) + 1e-9
    assert list(score.shares_by_name(most=2)) == list(shares)[:2]


def test_large_similarities_and_small_temperatures_do_not_overflow():
    lists = scored(3).lists._replace(similarity=scored(3).lists.similarity * 1e6)
    a, _ = votes(lists, np.full(100, 1e-300), np.zeros(100, dtype=int), tau=1e-3, n_classes=2)
    np.testing.assert_allclose(a.sum(axis=1), 1)


def test_settings_and_shapes_that_do_not_fit_are_refused():
    score = scored(0)
    with pytest.raises(ConfigError, match=r"mixing is 1\.5"):
        replace(score, mixing=1.5)
    with pytest.raises(ConfigError, match="tau is 0"):
        replace(score, tau=0)
    with pytest.raises(ConfigError, match=r"prior is \[0\.5, 0\.5\]; needed is a probability of each of 3"):
        replace(score, prior=np.array([0.5, 0.5]))
    with pytest.raises(ConfigError, match="no group 'nobody' among the 8"):
        score.without("nobody")
    with pytest.raises(ConfigError, match="without group 'g0' already"):
        score.without("g0").without("g1")
    with pytest.raises(DataError, match=r"weights of shape \(5,\)"):
        replace(score, weights=score.weights[1:])
    with pytest.raises(DataError, match="label numbers 0 to 2; needed are numbers from 0 to 1"):
        LabelledCases([0, 2], [0, 0], ("a",), n_classes=2)
    with pytest.raises(DataError, match=r"labels of shape \(1,\) and groups of shape \(2,\)"):
        LabelledCases([0], [0, 0], ("a",), n_classes=2)


def test_the_largest_share_of_a_group_among_listed_cases():
    assert largest_share(np.array([[0, 1], [2, -1]]), np.array([1, 1, 0]), 2) == (1, pytest.approx(2 / 3))
    assert largest_share(np.array([[-1]]), np.array([0]), 1) == (0, 0.0)
