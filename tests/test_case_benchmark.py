"""The benchmark of the search among cases: whoever answers wrongly is found, and what was scaled is marked."""

import json
from contextlib import contextmanager

import numpy as np
import pytest
from benchmarks import cases
from benchmarks.cases import Lists, Question
from benchmarks.common import Disagreement
from numpy.testing import assert_array_equal

import naive

TINY = Question(1_200, 8, clustered=True, n_series=3, n_windows=4)


@pytest.fixture
def here(monkeypatch):
    """Peers answer in this process; what each says can be changed."""
    cases._held.clear()
    monkeypatch.setattr(cases, "WARM", TINY)
    changed = {}

    def ask(name, question, n):
        seconds, lists, k = cases._ask_here(name, question, n)
        return (*changed.get(name, lambda seconds, lists: (seconds, lists))(seconds, lists), k)

    @contextmanager
    def installed():
        yield [cases.TORCH, cases.TORCH_BY_CASE], ask

    monkeypatch.setattr(cases, "installed", installed)
    yield changed
    cases._held.clear()


def test_all_give_the_lists_of_a_plain_loop(here):
    vectors = cases.vectors_of(TINY)
    own = vectors.own(TINY)
    groups = [case // cases.CASES_A_GROUP for case in range(TINY.n_cases)]
    of_key = np.repeat(np.arange(TINY.n_cases), cases.KEYS_A_CASE).tolist()
    for name in (cases.TORCH, cases.TORCH_BY_CASE):
        lists = cases.Peer(name, TINY).answer(TINY.n_queries)[1]
        for row in (0, 5, 11):
            expected = naive.nearest_cases(
                vectors.queries[row].astype(float).tolist(),
                vectors.keys.astype(float).tolist(),
                of_key,
                groups,
                measure="cosine",
                n_cases=cases.N_CASES,
                group=own[row],
                most_a_group=cases.MOST_A_GROUP,
            )
            assert_array_equal(lists.cases[row], [case for case, *_ in expected])


def test_a_run_has_everybodys_times_and_the_table_their_ratios(here):
    results = json.loads(json.dumps(cases.run([TINY])))
    (item,) = results["questions"]
    assert item["ours"]["error"] <= 1e-6
    assert set(item["peers"]) == {cases.TORCH, cases.TORCH_BY_CASE}
    for peer in item["peers"].values():
        assert peer["ratio"] == pytest.approx(peer["seconds"] / item["ours"]["seconds"])
        assert peer["n_asked"] == TINY.n_queries
    assert f"({item['peers'][cases.TORCH]['ratio']:.3g})" in cases.tables(results)
    assert "~" not in cases.tables(results).split("|", 1)[1].split("*", 1)[0]


def test_what_takes_too_long_is_asked_for_fewer_queries_and_marked(here, monkeypatch):
    monkeypatch.setattr(cases, "QUERIES_AT_ONCE", 3)
    here[cases.TORCH] = lambda seconds, lists: (100.0, lists)
    results = cases.run([TINY, TINY], n_repeats=1, only=[cases.TORCH])
    first, second = (item["peers"][cases.TORCH] for item in results["questions"])
    assert (first["n_asked"], first["seconds"]) == (12, 100.0)
    assert (second["n_asked"], second["seconds"]) == (3, 400.0)
    assert "~400 (" in cases.tables(results)


def test_a_peer_that_answers_wrongly_is_found(here):
    here[cases.TORCH] = lambda seconds, lists: (seconds, Lists(lists.cases, lists.similarity + 0.003))
    with pytest.raises(
        Disagreement, match=r"1,200 clustered keys of 8: similarities of torch and ours .* 3\.0e-03"
    ):
        cases.run([TINY])
