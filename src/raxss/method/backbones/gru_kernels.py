"""The inner loops of a GRU on a CPU, for one series.

    of_tokens (n_tokens, 3 * width) -> states (n_tokens, width), and back

`LANES` neighbouring units sit in one register.

Next: gru_numba.py calls them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raxss._core.vector_code import (
    LANES,
    Floats,
    compiled,
    every,
    fused,
    inlined,
    larger,
    load,
    power_of_two,
    splat,
    store,
)

LOG2_E = np.float32(1.4426950408889634)
LEAST = np.float32(-80.0)  # below, a sigmoid is 0 to float32


@inlined
def sigmoid(values: Any) -> Any:
    """1 / (1 + exp(-x)), NaN for NaN."""
    item = every(np.float32(1.0))
    return item / (item + power_of_two(larger(every(LEAST), values) * every(-LOG2_E)))


@compiled
def forward_one(
    of_tokens: Floats,  # (n_tokens, 3 * width)
    weight: Floats,  # (width, 3 * width)
    bias: Floats,  # (3 * width,)
    states: Floats,  # out, (n_tokens, width)
    gates: Floats,  # out, (n_tokens, 4 * width): r, z, n, W_n h + b_n; or (0, ..) to keep none
) -> None:
    """One series, forward."""
    n_tokens, width = states.shape
    keeps = gates.shape[0] > 0
    of_tokens, weight, states, gates = of_tokens.ravel(), weight.ravel(), states.ravel(), gates.ravel()
    item, two, zero = every(np.float32(1.0)), every(np.float32(2.0)), every(np.float32(0.0))
    state = np.zeros(width, np.float32)
    for t in range(n_tokens):
        for unit in range(0, width, LANES):
            reset, update, new = load(bias, unit), load(bias, width + unit), load(bias, 2 * width + unit)
            more_reset, more_update, more_new = zero, zero, zero  # two sums each: one would wait for itself
            for k in range(0, width, 2):
                at = k * 3 * width + unit
                value = splat(state, k)
                reset = fused(value, load(weight, at), reset)
                update = fused(value, load(weight, at + width), update)
                new = fused(value, load(weight, at + 2 * width), new)
                at += 3 * width
                value = splat(state, k + 1)
                more_reset = fused(value, load(weight, at), more_reset)
                more_update = fused(value, load(weight, at + width), more_update)
                more_new = fused(value, load(weight, at + 2 * width), more_new)
            at = t * 3 * width + unit
            of_state = new + more_new
            r = sigmoid(load(of_tokens, at) + reset + more_reset)
            z = sigmoid(load(of_tokens, at + width) + update + more_update)
            n = two * sigmoid(two * fused(r, of_state, load(of_tokens, at + 2 * width))) - item  # tanh
            store(states, t * width + unit, fused(z, load(state, unit) - n, n))
            if keeps:
                at = t * 4 * width + unit
                store(gates, at, r)
                store(gates, at + width, z)
                store(gates, at + 2 * width, n)
                store(gates, at + 3 * width, of_state)
        for unit in range(0, width, LANES):
            store(state, unit, load(states, t * width + unit))


@compiled
def backward_one(
    weight: Floats,  # (3 * width, width)
    states: Floats,  # (n_tokens, width)
    gates: Floats,  # (n_tokens, 4 * width)
    grad_states: Floats,  # (n_tokens, width)
    grad_tokens: Floats,  # out, (n_tokens, 3 * width): by of_tokens
    grad_products: Floats,  # out, (n_tokens, 3 * width): by W h + b
) -> None:
    """One series, backward."""
    n_tokens, width = states.shape
    weight, states, gates, grad_states = weight.ravel(), states.ravel(), gates.ravel(), grad_states.ravel()
    grad_tokens, grad_products = grad_tokens.ravel(), grad_products.ravel()
    item, zero = every(np.float32(1.0)), every(np.float32(0.0))
    passed_on = np.zeros(width, np.float32)  # by the state before, so far
    for t in range(n_tokens - 1, -1, -1):
        first = t * 3 * width
        for unit in range(0, width, LANES):
            at = t * 4 * width + unit
            r, z, n, of_state = (
                load(gates, at), load(gates, at + width), load(gates, at + 2 * width), load(gates, at + 3 * width),
            )  # fmt: skip
            before = load(states, (t - 1) * width + unit) if t > 0 else zero
            given = load(grad_states, t * width + unit) + load(passed_on, unit)
            of_new = given * (item - z) * (item - n * n)
            of_update = given * (before - n) * z * (item - z)
            of_reset = of_new * of_state * r * (item - r)
            store(grad_tokens, first + unit, of_reset)
            store(grad_tokens, first + width + unit, of_update)
            store(grad_tokens, first + 2 * width + unit, of_new)
            store(grad_products, first + unit, of_reset)
            store(grad_products, first + width + unit, of_update)
            store(grad_products, first + 2 * width + unit, of_new * r)
            store(passed_on, unit, given * z)
        for unit in range(0, width, LANES):
            by_reset, by_update, by_new = load(passed_on, unit), zero, zero
            more_reset, more_update, more_new = zero, zero, zero
            for k in range(0, width, 2):
                at, here = k * width + unit, first + k
                by_reset = fused(splat(grad_products, here), load(weight, at), by_reset)
                more_reset = fused(splat(grad_products, here + 1), load(weight, at + width), more_reset)
                at, here = at + width * width, here + width
                by_update = fused(splat(grad_products, here), load(weight, at), by_update)
                more_update = fused(splat(grad_products, here + 1), load(weight, at + width), more_update)
                at, here = at + width * width, here + width
                by_new = fused(splat(grad_products, here), load(weight, at), by_new)
                more_new = fused(splat(grad_products, here + 1), load(weight, at + width), more_new)
            store(passed_on, unit, (by_reset + more_reset) + (by_update + more_update) + (by_new + more_new))
