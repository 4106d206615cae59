"""Vector instructions against numpy, lane by lane."""

import numpy as np
import pytest

from raxss._core import vector_code as vectors
from raxss._core.vector_code import (
    LANES,
    compiled,
    every,
    fused,
    larger,
    load,
    power_of_two,
    processor_features,
    splat,
    store,
    total,
    where_positive,
)

A, B, C = np.random.default_rng(0).normal(size=(3, LANES)).astype(np.float32)
POWERS = np.random.default_rng(1).uniform(-126, 126, size=64 * LANES).astype(np.float32)


@compiled
def operate(a, b, c, out):
    x, y, z = load(a, 0), load(b, 0), load(c, 0)
    results = (x + y, x - y, x * y, x / y, fused(x, y, z), larger(x, y), where_positive(x, y, z), splat(a, 1))
    for place, result in enumerate(results):
        store(out, place * LANES, result)
    store(out, 8 * LANES, every(np.float32(3.0)))
    return total(x)


@compiled
def powers_of_two(x, out):
    for place in range(0, len(x), LANES):
        store(out, place, power_of_two(load(x, place)))


def test_operations_are_those_of_numpy_in_every_lane():
    out = np.empty(9 * LANES, np.float32)
    summed = operate(A, B, C, out)
    once = (A.astype(np.float64) * B + C).astype(np.float32)  # exact product, rounded once
    expected = [A + B, A - B, A * B, A / B, once, np.maximum(A, B), np.where(A > 0, B, C), A[1], 3.0]
    for row, wanted in zip(out.reshape(9, LANES), expected, strict=True):
        np.testing.assert_array_equal(row, np.broadcast_to(np.float32(wanted), LANES))
    assert summed == pytest.approx(A.sum(dtype=np.float64), rel=1e-6)


def test_larger_takes_the_second_where_numbers_cannot_be_compared():
    out = np.empty(9 * LANES, np.float32)
    operate(np.full(LANES, np.nan, np.float32), B, C, out)
    np.testing.assert_array_equal(out[5 * LANES : 6 * LANES], B)


def test_powers_of_two_have_the_documented_error():
    found = np.empty(len(POWERS), np.float32)
    powers_of_two(POWERS, found)
    assert np.abs(found / np.exp2(POWERS.astype(np.float64)) - 1).max() < 2e-7


def test_the_power_of_0_is_1_and_nan_is_passed_on():
    x, found = np.zeros(LANES, np.float32), np.empty(LANES, np.float32)
    x[1] = np.nan
    powers_of_two(x, found)
    assert np.isnan(found[1])
    assert found[2:] == pytest.approx(1, rel=2e-7)


def test_features_are_those_that_numba_compiles_for(monkeypatch):
    monkeypatch.setattr(vectors.numba.config, "CPU_FEATURES", "+avx2,-avx512f,+fma")
    assert processor_features() == {"avx2", "fma"}
    monkeypatch.setattr(vectors.numba.config, "CPU_FEATURES", None)
    assert processor_features() == {
        name for name, present in vectors.binding.get_host_cpu_features().items() if present
    }
