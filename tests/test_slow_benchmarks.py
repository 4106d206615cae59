"""stumpy compiles for a minute in every process, so what is compared with it waits for `make test-slow`."""

import numpy as np
import pytest
from benchmarks import common, retrieval
from benchmarks.contenders import STUMPY, Case, by_raxss, by_stumpy, installed_peers
from numpy.testing import assert_allclose

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _with_stumpy():
    pytest.importorskip("stumpy")


def test_stumpy_finds_what_brute_force_finds_outside_its_zone():
    case = Case(1_500, 256, 1).zoned
    samples = common.make_signal(case.n_samples)
    queries = np.arange(case.n_windows)
    exact = retrieval.brute_force(samples, case, queries)
    assert retrieval.error_against(exact, queries, by_stumpy(samples, case)) <= 1e-7


def test_the_zone_of_stumpy_is_no_wider_and_no_narrower_than_ours(rng):
    case = Case(1_500, 250, 1)  # 250 / 4 is not whole: the zone is rounded up
    assert case.zoned.exclusion == 63
    samples = (
        rng.normal(size=1_500).cumsum().cumsum()
    )  # smooth, so that the nearest are at the edge of the zone
    found = by_stumpy(samples, case.zoned)
    apart = np.abs(found.neighbors - np.arange(case.n_windows)[:, np.newaxis])
    assert apart.min() == 64
    assert_allclose(found.similarity, by_raxss(samples, case.zoned).similarity, atol=1e-7)


def test_stumpy_meets_ours_at_stride_one_and_keeps_its_time_at_others():
    cases = [Case(2_000, 256, 1), Case(2_000, 256, 5)]
    with installed_peers() as found:
        peers = [item for item in found if item.name == STUMPY]
        results = retrieval.run(cases, goal=cases[1], memory_cases=[], peers=peers, peak_seconds=0.05)
    at_one, at_five = results["cases"]
    assert at_one["peers"][STUMPY]["difference"] <= 1e-6
    assert at_one["ours_with_exclusion"]["error"] <= 1e-6
    assert at_five["peers"][STUMPY]["seconds"] == at_one["peers"][STUMPY]["seconds"]
    assert at_five["peers"][STUMPY]["at_stride"] == 1
