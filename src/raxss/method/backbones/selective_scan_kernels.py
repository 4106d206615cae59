"""The inner loops of the selective scan on a CPU, for one series.

    x, delta (length, width), A (n_states, width), B, C (length, n_states), D (width,)
        -> y (length, width), and the gradients of all

`LANES` neighbouring channels sit in one register.

Next: selective_scan_numba.py calls them.
"""

from __future__ import annotations

import numpy as np

from raxss._core.vector_code import (
    LANES,
    Floats,
    compiled,
    every,
    fused,
    load,
    precise_power_of_two,
    splat,
    store,
    total,
)

CHUNK = 16  # steps from one kept state to the next; those between stay in the nearest caches
LOG2_E = np.float32(1.4426950408889634)


@compiled
def forward_one(
    x: Floats,  # (length, width)
    delta: Floats,
    A: Floats,  # (n_states, width)
    B: Floats,  # (length, n_states)
    C: Floats,
    D: Floats,  # (width,)
    y: Floats,  # out, (length, width)
    states: Floats,  # out, (n_chunks, n_states, width): before each chunk; or (0, ..) to keep none
) -> None:
    """One series, forward."""
    (length, width), n_states = x.shape, A.shape[0]
    keeps = states.shape[0] > 0
    x, delta, A, B, C, y, states = (
        x.ravel(), delta.ravel(), A.ravel(), B.ravel(), C.ravel(), y.ravel(), states.ravel(),
    )  # fmt: skip
    A = A * LOG2_E
    state = np.zeros(n_states * LANES, np.float32)
    for first in range(0, width, LANES):
        state[:] = 0
        for t in range(length):
            if keeps and t % CHUNK == 0:
                for n in range(n_states):
                    store(states, (t // CHUNK * n_states + n) * width + first, load(state, n * LANES))
            step, value = load(delta, t * width + first), load(x, t * width + first)
            enters = step * value
            read = load(D, first) * value
            for n in range(n_states):
                kept = precise_power_of_two(step * load(A, n * width + first))
                now = fused(kept, load(state, n * LANES), enters * splat(B, t * n_states + n))
                store(state, n * LANES, now)
                read = fused(now, splat(C, t * n_states + n), read)
            store(y, t * width + first, read)


@compiled
def backward_one(
    x: Floats,  # (length, width)
    delta: Floats,
    A: Floats,  # (n_states, width)
    B: Floats,  # (length, n_states)
    C: Floats,
    D: Floats,  # (width,)
    grad_y: Floats,  # (length, width)
    states: Floats,  # (n_chunks, n_states, width): before each chunk
    grad_x: Floats,  # out, as their names say
    grad_delta: Floats,
    grad_A: Floats,
    grad_B: Floats,
    grad_C: Floats,
    grad_D: Floats,
) -> None:
    """One series, backward: chunks from the last to the first, each walked forward again and then back.

    With g_t the gradient of h_t:  g_t = C_t dy_t + exp(delta_{t+1} A) g_{t+1}, and all else follows from it.
    """
    (length, width), n_states = x.shape, A.shape[0]
    x, delta, A, B, C, grad_y = x.ravel(), delta.ravel(), A.ravel(), B.ravel(), C.ravel(), grad_y.ravel()
    states, grad_x, grad_delta, grad_A = states.ravel(), grad_x.ravel(), grad_delta.ravel(), grad_A.ravel()
    grad_B, grad_C = grad_B.ravel(), grad_C.ravel()
    zero = every(np.float32(0.0))
    log_A = A * LOG2_E
    grad_state = np.zeros(n_states * width, np.float32)  # exp(delta_{t+1} A) g_{t+1}
    # Of each step and state four vectors side by side, or they would meet in the same places of the cache: the
    # state before the step, what is kept of it, and two sums over the channels.
    four = 4 * LANES
    row, of_kept, of_B, of_C = n_states * four, LANES, 2 * LANES, 3 * LANES
    walked = np.zeros((CHUNK + 1) * row, np.float32)
    grad_A[:] = 0
    grad_D[:] = 0
    for start in range((length - 1) // CHUNK * CHUNK, -1, -CHUNK):
        n_steps = min(CHUNK, length - start)
        for first in range(0, width, LANES):
            for n in range(n_states):
                store(walked, n * four, load(states, (start // CHUNK * n_states + n) * width + first))
            for i in range(n_steps):
                at, scalar = (start + i) * width + first, (start + i) * n_states
                step = load(delta, at)
                enters = step * load(x, at)
                for n in range(n_states):
                    place = i * row + n * four
                    kept = precise_power_of_two(step * load(log_A, n * width + first))
                    store(walked, place + of_kept, kept)
                    store(
                        walked, place + row, fused(kept, load(walked, place), enters * splat(B, scalar + n))
                    )
            for i in range(n_steps - 1, -1, -1):
                at, scalar = (start + i) * width + first, (start + i) * n_states
                step, value, given = load(delta, at), load(x, at), load(grad_y, at)
                enters = step * value
                of_step, of_enters = zero, zero
                for n in range(n_states):
                    place, channel = i * row + n * four, n * width + first
                    of_state = fused(given, splat(C, scalar + n), load(grad_state, channel))
                    passed_on = of_state * load(walked, place + of_kept)
                    store(grad_state, channel, passed_on)
                    of_power = passed_on * load(walked, place)  # by delta A
                    of_step = fused(of_power, load(A, channel), of_step)
                    store(grad_A, channel, fused(of_power, step, load(grad_A, channel)))
                    of_enters = fused(of_state, splat(B, scalar + n), of_enters)
                    sum_B, sum_C = load(walked, place + of_B), load(walked, place + of_C)
                    store(walked, place + of_B, fused(of_state, enters, sum_B))
                    store(walked, place + of_C, fused(given, load(walked, place + row), sum_C))
                store(grad_delta, at, fused(of_enters, value, of_step))
                store(grad_x, at, fused(of_enters, step, given * load(D, first)))
                store(grad_D, first, fused(given, value, load(grad_D, first)))
        for place in range(n_steps * n_states):
            grad_B[start * n_states + place] = total(load(walked, place * four + of_B))
            grad_C[start * n_states + place] = total(load(walked, place * four + of_C))
            store(walked, place * four + of_B, zero)
            store(walked, place * four + of_C, zero)
