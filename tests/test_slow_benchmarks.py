"""stumpy compiles for a minute in every process, so what is compared with it waits for `make test-slow`."""

import numpy as np
import pytest
from benchmarks import common, retrieval
from benchmarks.contenders import Case, by_raxss, by_stumpy
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
