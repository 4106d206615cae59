"""The search for cases is that of a plain double loop: exclusions, caps, local site, spare cases, ties."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import naive
from raxss.errors import ConfigError, DataError, EmptyDataError, SignalError
from raxss.library import search as search_module
from raxss.library.search import CaseSearch
from raxss.library.search_kernels import HAS_BYTE_PRODUCTS
from raxss.library.search_on_torch import KeysOnDevice
from raxss.library.search_values import PackedKeys, PlainKeys

CLOSE = 1e-6


def on_torch_cpu(keys, *, cosine):
    return KeysOnDevice(keys, cosine=cosine, device=torch.device("cpu"))


WAYS = [
    pytest.param(
        PackedKeys,
        id="bytes",
        marks=pytest.mark.skipif(not HAS_BYTE_PRODUCTS, reason="no AVX-512 VNNI on this processor"),
    ),
    pytest.param(PlainKeys, id="singles"),
    pytest.param(on_torch_cpu, id="torch"),
]


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Each way of computing values, whatever the processor would choose."""
    monkeypatch.setattr(search_module, "values_of", request.param)


def random_cases(rng, *, n_cases, d, n_groups, most_keys=6, clustered=False):
    """Keys, case of each, groups, sites; some keys are doubled, some are zeros."""
    counts = rng.integers(1, most_keys + 1, n_cases)
    cases = rng.permutation(np.repeat(np.arange(n_cases), counts))
    keys = rng.normal(size=(len(cases), d))
    if clustered:
        keys = rng.normal(size=(3, d))[rng.integers(3, size=len(cases))] + 0.03 * keys
    keys[rng.random(len(cases)) < 0.05] = 0.0
    doubled = rng.random(len(cases)) < 0.2
    keys[doubled] = keys[rng.integers(len(cases), size=int(doubled.sum()))]
    groups = [f"p{number}" for number in rng.integers(n_groups, size=n_cases)]
    sites = [("here", "there", "elsewhere")[number] for number in rng.integers(3, size=n_cases)]
    return keys.astype(np.float32), cases, groups, sites


def check(found, queries, keys, cases, groups, *, measure, most_a_group, local, group_of, excluded_of):
    """Lists are those of the plain loop: similarities, and cases and keys up to ties."""
    for row, query in enumerate(queries):
        width = found.fetched.cases.shape[1]
        expected = naive.nearest_cases(
            query.tolist(),
            keys.astype(float).tolist(),
            cases,
            groups,
            measure=measure,
            n_cases=width,
            group=group_of(row),
            excluded=excluded_of(row),
            most_a_group=most_a_group,
            local=local,
        )
        n = len(expected)
        listed, best, similarity = (array[row] for array in found.fetched)
        assert_allclose(similarity[:n], [value for *_, value in expected], atol=CLOSE, rtol=CLOSE)
        assert (listed[n:] == -1).all()
        assert (best[n:] == -1).all()
        assert np.isnan(similarity[n:]).all()
        assert_array_equal(listed[:n], [case for case, *_ in expected])
        assert_array_equal(best[:n], [key for _, key, _ in expected])


@pytest.mark.parametrize("measure", ["cosine", "euclidean"])
@pytest.mark.parametrize("d", [1, 3, 17, 64, 300])
def test_lists_are_those_of_a_plain_loop(way, measure, d):
    rng = np.random.default_rng([69421, d])
    for n_cases, n_groups, m, cap, site, clustered in [
        (1, 1, 3, None, None, False),
        (7, 2, 4, 1, "here", False),
        (60, 9, 5, 2, None, True),
        (60, 9, 5, 2, "here", False),
        (75, 60, 100, None, "nowhere", False),
        (90, 3, 8, 3, "there", True),
    ]:
        keys, cases, groups, sites = random_cases(
            rng, n_cases=n_cases, d=d, n_groups=n_groups, clustered=clustered
        )
        queries = rng.normal(size=(6, d))
        queries[1], queries[2] = 0.0, keys[0]
        series = np.array([0, 0, 1, 1, 2, 2])
        own = ["p0", "stranger", None]
        excluded = [[], rng.random(n_cases) < 0.3, [n_cases - 1]]
        search = CaseSearch([(keys, cases)], groups, sites=sites, measure=measure)
        found = search.nearest(
            queries,
            n_cases=m,
            series=series,
            groups=own,
            excluded=excluded,
            most_a_group=cap,
            local_site=site,
        )
        left_out = [set(), set(np.flatnonzero(excluded[1])), {n_cases - 1}]
        check(
            found,
            queries,
            keys,
            cases,
            groups,
            measure=measure,
            most_a_group=cap,
            local=[name == site for name in sites],
            group_of=lambda row: own[series[row]],  # noqa: B023
            excluded_of=lambda row: left_out[series[row]],  # noqa: B023
        )
        assert_array_equal(found.group_unknown, series == 2)
        n_own = np.array([groups.count(name) for name in own])[series]
        assert_array_equal(found.n_own_group, n_own)
        assert_array_equal(found.n_eligible, n_cases - n_own - found.n_excluded)
        assert_array_equal(found.empty, found.cases[:, 0] == -1)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), cap=st.integers(1, 3), m=st.integers(1, 6), local=st.booleans())
def test_without_a_group_lists_are_those_of_a_library_without_it(seed, cap, m, local):
    rng = np.random.default_rng(seed)
    keys, cases, groups, sites = random_cases(rng, n_cases=20, d=5, n_groups=6, clustered=seed % 2 == 0)
    queries = rng.normal(size=(4, 5))
    chosen = {"n_cases": m, "most_a_group": cap, "local_site": "here" if local else None, "groups": ["p1"]}
    found = CaseSearch([(keys, cases)], groups, sites=sites).nearest(queries, **chosen)
    for gone in sorted(set(groups)):
        stay = np.array([name != gone for name in groups])
        rebuilt = CaseSearch(
            [(keys[stay[cases]], (np.cumsum(stay) - 1)[cases[stay[cases]]])],
            [name for name in groups if name != gone],
            sites=[site for site, stays in zip(sites, stay, strict=True) if stays],
        ).nearest(queries, **chosen)
        left = found.without(gone)
        case_of, key_of = np.append(np.flatnonzero(stay), -1), np.append(np.flatnonzero(stay[cases]), -1)
        assert_array_equal(left.cases, case_of[rebuilt.cases])
        assert_array_equal(left.keys, key_of[rebuilt.keys])
        assert_array_equal(left.similarity, rebuilt.similarity)


def test_without_a_group_that_leaves_too_little_is_refused():
    found = CaseSearch([(np.eye(3), [0, 1, 2])], ["a", "a", "b"]).nearest(np.ones((2, 3)), n_cases=2)
    assert_array_equal(found.without("nobody").cases, found.cases)
    with pytest.raises(ConfigError, match=r"2 cases of group 'a' are listed for query 0, but only 0"):
        found.without("a")


def test_all_ways_give_the_same_bits(monkeypatch):
    """Blocks, one of them not contiguous and one in float64, or all at once; bytes, singles, torch."""
    rng = np.random.default_rng(69421)
    keys, cases, groups, _ = random_cases(rng, n_cases=300, d=33, n_groups=40)
    order = np.argsort(cases, kind="stable")
    keys, cases = keys[order], cases[order]
    cut = np.searchsorted(cases, [100, 180])
    parts = list(zip(np.split(keys, cut), np.split(cases, cut), strict=True))
    parts[0] = np.asfortranarray(parts[0][0]), parts[0][1]
    parts[1] = parts[1][0].astype(np.float64), parts[1][1]
    queries = rng.normal(size=(70, 33))
    answers = []
    for make in (PlainKeys, on_torch_cpu, *([PackedKeys] if HAS_BYTE_PRODUCTS else [])):
        monkeypatch.setattr(search_module, "values_of", make)
        for blocks in ([(keys, cases)], parts):
            for rows in (8, 256):
                monkeypatch.setattr(search_module, "ROWS_AT_ONCE", rows)
                answers.append(CaseSearch(blocks, groups).nearest(queries, n_cases=7, most_a_group=2))
    for answer in answers[1:]:
        for array, first in zip(answer.fetched, answers[0].fetched, strict=True):
            assert_array_equal(array, first)


def test_blocks_may_stay_on_disk(tmp_path):
    rng = np.random.default_rng(69421)
    blocks = []
    for place in range(3):
        np.save(tmp_path / f"{place}.npy", rng.normal(size=(8, 5)).astype(np.float32))
        blocks.append(
            (np.load(tmp_path / f"{place}.npy", mmap_mode="r"), np.repeat([2 * place, 2 * place + 1], 4))
        )
    search = CaseSearch(blocks, list("abcdef"))
    assert all(
        np.shares_memory(kept, given) for kept, (given, _) in zip(search._keys.blocks, blocks, strict=True)
    )
    together = CaseSearch(
        [(np.concatenate([keys for keys, _ in blocks]), np.repeat(np.arange(6), 4))], list("abcdef")
    )
    queries = rng.normal(size=(9, 5))
    assert_array_equal(search.nearest(queries).fetched.keys, together.nearest(queries).fetched.keys)


def test_cases_of_equal_content_are_left_out():
    search = CaseSearch([(np.eye(3), [0, 1, 2])], ["a", "b", "c"], contents=["x", None, "x"])
    found = search.nearest(np.ones((2, 3)), n_cases=2, series=[0, 1], contents=["x", None], groups=["a", "b"])
    assert_array_equal(found.cases, [[1, -1], [0, 2]])
    assert_array_equal(found.n_excluded, [1, 0])
    assert_array_equal(found.n_own_group, [1, 1])


def test_a_query_without_cases_says_so():
    search = CaseSearch([(np.eye(2), [0, 1])], ["a", "a"])
    found = search.nearest(np.ones((2, 2)), series=[0, 1], groups=["a", None])
    assert_array_equal(found.empty, [True, False])
    assert_array_equal(found.group_unknown, [False, True])
    assert (found.cases[0] == -1).all()
    assert np.isnan(found.similarity[0]).all()
    assert repr(found) == "NearestCases(2 queries, 10 cases each, 1 empty, 1 of an unknown group)"
    assert search.nearest(np.empty((0, 2))).cases.shape == (0, 10)


def test_queries_of_any_size_and_keys_near_the_limits_of_single_precision(way):
    keys = np.array([[1e-42, 2e-42], [3e38, 1e38], [1.0, 0.0], [0.0, 0.0]], np.float32)
    search = CaseSearch([(keys, [0, 1, 2, 3])], list("abcd"))
    found = search.nearest(np.array([[1e300, 2e300], [1e-310, 0.0]]), n_cases=4)
    assert_array_equal(found.cases, [[0, 1, 2, 3], [2, 1, 0, 3]])
    assert_allclose(found.similarity[0], [1.0, 5 / np.sqrt(50), 1 / np.sqrt(5), 0.0], atol=1e-6)


@pytest.mark.parametrize("size", [1e-18, 3e-22, 1e-22, 5e-23, 2e-23, 1e-30])
def test_distances_below_single_precision_are_compared(way, monkeypatch, size):
    monkeypatch.setattr(naive, "TIE", 0.0)
    rng = np.random.default_rng(69421)
    n_cases, d = 150, 2
    keys = (rng.normal(size=(n_cases, d)) * size).astype(np.float32)
    queries = rng.normal(size=(40, d)) * size
    groups = [f"p{case}" for case in range(n_cases)]
    search = CaseSearch([(keys, np.arange(n_cases))], groups, measure="euclidean")
    check(
        search.nearest(queries, n_cases=5),
        queries,
        keys,
        np.arange(n_cases),
        groups,
        measure="euclidean",
        most_a_group=None,
        local=[],
        group_of=lambda row: None,
        excluded_of=lambda row: set(),
    )


def test_products_beyond_single_precision_are_compared(way):
    """Where q·k overflows, a case must not look as if it had been left out, nor be like anything."""
    rng = np.random.default_rng(69421)
    n_cases, d = 60, 64
    keys = (rng.normal(size=(n_cases, d)) * 0.7e38).clip(-3e38, 3e38).astype(np.float32)
    keys[:20] = np.sign(keys[:20]) * 3e38
    keys[-20:] *= np.float32(1e-38)
    queries = np.concatenate([keys[:3], -keys[:3], keys[-2:], rng.normal(size=(4, d))]).astype(float)
    groups = [f"p{case}" for case in range(n_cases)]
    found = CaseSearch([(keys, np.arange(n_cases))], groups).nearest(queries, n_cases=n_cases)
    assert (found.cases >= 0).all()
    check(
        found,
        queries,
        keys,
        np.arange(n_cases),
        groups,
        measure="cosine",
        most_a_group=None,
        local=[],
        group_of=lambda row: None,
        excluded_of=lambda row: set(),
    )


@pytest.mark.parametrize("measure", ["cosine", "euclidean"])
def test_the_precision_of_products_is_that_of_the_search_not_of_its_making(monkeypatch, measure):
    monkeypatch.setattr(search_module, "values_of", on_torch_cpu)
    search = CaseSearch([(np.eye(3), [0, 1, 2])], list("abc"), measure=measure)
    query = np.array([[0.6, 0.8, 0.0]])
    errors = {}
    for precision in ("highest", "high", "medium"):
        monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda precision=precision: precision)
        errors[precision] = float(search._values.prepare(query).errors.b[0])
    assert errors["highest"] < 2.0**-15 < 2.0**-9 <= errors["high"] < 2.0**-6 <= errors["medium"]


def test_groups_of_another_type_are_refused_and_unknown_ones_are_not():
    search = CaseSearch([(np.eye(2), [0, 1])], [7, 8])
    with pytest.raises(
        DataError, match="group of series 0 is '7', of type str, but groups of cases are of type int, as 7"
    ):
        search.nearest(np.ones((1, 2)), groups=["7"])
    for own, n_own in [(7, 1), (7.0, 1), (np.int64(7), 1), (9, 0), (np.float32(9), 0), (None, 0)]:
        assert search.nearest(np.ones((1, 2)), groups=[own]).n_own_group.tolist() == [n_own]
    named = CaseSearch([(np.eye(2), [0, 1])], ["7", np.str_("8")])
    assert named.nearest(np.ones((1, 2)), groups=[np.str_("7")]).n_own_group.tolist() == [1]
    assert named.nearest(np.ones((1, 2)), groups=["9"]).n_own_group.tolist() == [0]
    for own in (7, ("7", "8")):
        with pytest.raises(DataError, match="Give both as the same type"):
            named.nearest(np.ones((1, 2)), groups=[own])


def test_lists_are_right_where_the_bounds_rule_nothing_out(way, monkeypatch):
    """A thousand copies of one key: all of them are compared in float64, some rows at a time."""
    monkeypatch.setattr(search_module, "_PAIRS_AT_ONCE", 1500)
    keys = np.tile([[1.0, 2.0, 3.0]], (1000, 1))
    search = CaseSearch([(keys, np.arange(1000))], [f"p{case // 10}" for case in range(1000)])
    found = search.nearest([[1.0, 1.0, 1.0]] * 5, n_cases=4, most_a_group=2)
    assert_array_equal(found.fetched.cases, [[0, 1, 10, 11, 20, 21]] * 5)


@pytest.mark.parametrize(
    ("blocks", "groups", "error", "message"),
    [
        ([], [], EmptyDataError, "the library has no keys"),
        ([(np.empty((0, 3)), [])], [], EmptyDataError, "the library has no keys"),
        ([(np.ones(3), [0])], ["a"], DataError, r"keys of block 0 have shape \(3,\)"),
        ([(np.ones((2, 3)), [0])], ["a"], DataError, r"block 0 has 2 keys and cases of shape \(1,\)"),
        ([(np.ones((1, 3)), [0.5])], ["a"], DataError, r"type float64"),
        ([(np.ones((1, 3)), [4])], ["a"], DataError, r"block 0 names case 4, but there are 1 cases"),
        ([(np.ones((1, 3)), [-2])], ["a"], DataError, r"block 0 names case -2, but there are 1 cases"),
        ([(np.ones((1, 3)), [0]), (np.ones((1, 2)), [1])], ["a", "b"], DataError, "2 and 3 components"),
        ([(np.ones((1, 3)), [1])], ["a", "b"], DataError, "case 0 has no keys"),
        ([(np.ones((1, 3)), [0])] * 2, ["a"], DataError, "case 0 has keys in blocks 0 and 1"),
        ([(np.ones((1, 3)), [0]), ([[1, np.nan, 1]], [1])], ["a", "b"], SignalError, r"key 0 of block 1 \(case"),
    ],
)  # fmt: skip
def test_keys_that_cannot_be_used_are_refused(blocks, groups, error, message):
    with pytest.raises(error, match=message):
        CaseSearch(blocks, groups)


@pytest.mark.parametrize(
    ("queries", "settings", "error", "message"),
    [
        (np.ones((2, 4)), {}, DataError, r"shape \(2, 4\), but \(n_queries, 3\)"),
        ([[1.0, 2.0, np.inf]], {}, SignalError, "query 0 is not finite"),
        (np.ones((1, 3)), {"n_cases": 0}, ConfigError, "n_cases must be a whole number of at least 1, got 0"),
        (np.ones((1, 3)), {"most_a_group": 1.5}, ConfigError, "most_a_group must be a whole number"),
        (np.ones((1, 3)), {"spare": -1}, ConfigError, "spare must be a whole number of at least 0"),
        (np.ones((1, 3)), {"series": [0, 1]}, DataError, r"series has shape \(2,\)"),
        (np.ones((1, 3)), {"series": [-1]}, DataError, "series has the number -1"),
        (np.ones((1, 3)), {"series": [1], "groups": ["a"]}, DataError, "groups has 1 entries, but queries"),
        (np.ones((1, 3)), {"groups": ["a"], "contents": ["x", "y"]}, DataError, "groups has 1 entries"),
        (np.ones((1, 3)), {"excluded": [[7]]}, DataError, r"values from 7 to 7, but numbers of cases \(0 to 1\)"),
        (np.ones((1, 3)), {"excluded": [[True]]}, DataError, "excluded of series 0 is of type bool"),
        (np.ones((1, 3)), {"local_site": "here"}, ConfigError, "local_site is 'here'"),
        (np.ones((9999, 3)), {"n_cases": 10**12}, DataError, "1,000,000,000,000 cases for 9,999 queries"),
    ],
)  # fmt: skip
def test_questions_that_cannot_be_answered_are_refused(queries, settings, error, message):
    search = CaseSearch([(np.eye(3)[:2], [0, 1])], ["a", "b"])
    with pytest.raises(error, match=message):
        search.nearest(queries, **settings)


def test_measures_and_facts_are_checked():
    with pytest.raises(ConfigError, match=re.escape("measure is 'cosin'; did you mean 'cosine'?")):
        CaseSearch([(np.eye(2), [0, 1])], ["a", "b"], measure="cosin")
    with pytest.raises(DataError, match="sites has 1 entries, but there are 2 cases"):
        CaseSearch([(np.eye(2), [0, 1])], ["a", "b"], sites=["here"])
    with pytest.raises(DataError, match=r"key 1 is as large as 1e\+20"):
        CaseSearch([([[1.0], [1e20]], [0, 1])], ["a", "b"], measure="euclidean")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("measure", ["cosine", "euclidean"])
def test_a_gpu_gives_the_lists_of_the_cpu(measure):
    rng = np.random.default_rng(69421)
    keys, cases, groups, sites = random_cases(rng, n_cases=5000, d=64, n_groups=700, most_keys=24)
    queries = rng.normal(size=(500, 64))
    answers = [
        CaseSearch([(keys, cases)], groups, sites=sites, measure=measure, device=device).nearest(
            queries, groups=["p3"], most_a_group=2, local_site="here"
        )
        for device in ("cpu", "cuda")
    ]
    for first, second in zip(answers[0].fetched, answers[1].fetched, strict=True):
        assert_array_equal(first, second)
