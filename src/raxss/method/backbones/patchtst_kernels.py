"""The loops of PatchTST on a CPU, forward, for one window after the other.

    a window's tokens, transposed: (width, n_slots) -> attended, transformed

Loops are written with vectors (raxss._core.vector_code). What belongs to a window is computed from that window
alone, so it does not depend on its neighbours in the batch.

Next: patchtst_back_kernels.py has the gradients; patchtst_numba.py strings the loops together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raxss._core.vector_code import (
    LANES,
    Bits,
    Floats,
    apart,
    compiled,
    every,
    inlined,
    inner,
    larger,
    load,
    power_of_two,
    splat,
    store,
    total,
    where_positive,
)
from raxss.method.backbones.patchtst_parts import (
    HEAD,
    HIDDEN,
    Dropout,
    Layer,
    PatchLayout,
    add_8,
    add_product,
    bell_of,
    clear,
    dot_8,
    fill_bits,
    fill_patches,
    fill_rows,
    kept,
    load_8,
    magnitude,
    normal_below,
    row_moments,
    scale_rows,
    scratch,
    store_8,
    token_rows,
    zeros_4,
)

SAFE = 64.0  # scores within +-SAFE need no maximum taken off before 2^score


@compiled
def attend(first: int, last: int, layer: Layer, layout: PatchLayout, moments: Floats) -> None:
    """Every token looks at every other: entering -> heads, softmax, summed and its moments (n_windows, 2 width)."""
    weights, n_slots, width = layer.weights, layout.n_slots, layout.width
    size = width * n_slots
    part = HEAD * n_slots
    tokens = scratch(size)
    query = scratch(size)
    key_value = scratch(2 * size)
    bounds = scratch(width)
    bits = np.empty(3 * n_slots, np.uint32)
    for window in range(first, last):
        scale_rows(tokens, layer.entering[window], layer.scale, layer.shift, n_slots)
        fill_rows(query, weights.query_bias, width, n_slots)
        add_product(query, width, weights.query, width, tokens, width, n_slots)
        token_rows(
            key_value, 2 * width, weights.key_value_rows, weights.key_value_bias, tokens, width, n_slots
        )
        column_bounds(bounds, key_value, width, layout.n_tokens)
        heads = layer.heads[window]
        for head in range(width // HEAD):
            if layer.on_attention.threshold:
                fill_bits(bits, layer.on_attention, head, window)
            own = head * part
            softmax = layer.softmax[window, 2 * head * n_slots :]
            keys, own_bounds = key_value[head * HEAD :], bounds[head * HEAD :]
            attend_head(heads[own:], softmax, query[own:], keys, own_bounds, bits, layer.on_attention, layout)
        out = layer.summed[window]
        fill_rows(out, weights.mix_bias, width, n_slots)
        add_product(out, width, weights.mix, width, heads, width, n_slots)
        for place in range(0, size, LANES):
            store(out, place, load(out, place) + load(tokens, place))
        row_moments(moments[window], out, layout)


@inner
def column_bounds(out: Floats, rows: Floats, width: int, n_tokens: int) -> None:
    """The largest absolute value of each of the keys' numbers, over all tokens."""
    apart()
    for column in range(0, width, LANES):
        largest = every(np.float32(0.0))
        for token in range(n_tokens):
            largest = larger(magnitude(load(rows, token * 2 * width + column)), largest)
        store(out, column, largest)


@inner
def attend_head(
    out: Floats,  # (HEAD, n_slots)
    softmax: Floats,  # (2, n_slots) out
    query: Floats,  # (HEAD, n_slots)
    key_value: Floats,  # (n_slots, 2 * width): HEAD numbers of a key, and width after them HEAD of a value
    bounds: Floats,  # (HEAD,)
    bits: Bits,
    dropout: Dropout,
    layout: PatchLayout,
) -> None:
    """LANES queries against one key after the other: attention weights live in registers only."""
    apart()
    n_tokens, n_slots, width = layout.n_tokens, layout.n_slots, layout.width
    zero = every(np.float32(0.0))
    item = every(np.float32(1.0))
    for slot in range(0, n_slots, LANES):
        q = load_8(query, slot, n_slots)
        start = zero
        if total(where_positive(largest_score(q, bounds) - every(np.float32(SAFE)), item, zero)) > 0:
            highest = every(np.float32(-np.inf))
            for token in range(n_tokens):
                highest = larger(dot_8(q, key_value, token * 2 * width, zero), highest)
            start = zero - highest
        powers = zero
        weighted = zeros_4() + zeros_4()
        rows = load(bits, slot)
        for token in range(n_tokens):
            power = power_of_two(dot_8(q, key_value, token * 2 * width, start))
            powers = powers + power
            if dropout.threshold:
                factor = splat(bits, n_slots + token)
                power = kept(rows, factor, splat(bits, 2 * n_slots + token), dropout.threshold, power)
            weighted = add_8(weighted, power, key_value, token * 2 * width + width)
        inverse = item / powers
        store(softmax, slot, start)
        store(softmax, n_slots + slot, inverse)
        store_8(out, slot, n_slots, inverse * every(dropout.factor), weighted)


@inlined
def largest_score(q: Any, bounds: Floats) -> Any:
    """No key's score can be larger than this, in absolute value."""
    low = (magnitude(q[0]), magnitude(q[1]), magnitude(q[2]), magnitude(q[3]))
    high = (magnitude(q[4]), magnitude(q[5]), magnitude(q[6]), magnitude(q[7]))
    return dot_8(low + high, bounds, 0, every(np.float32(0.0)))


# Each token by itself


@compiled
def transform(
    first: int, last: int, layer: Layer, scale: Floats, shift: Floats, layout: PatchLayout, moments: Floats
) -> None:
    """The feed-forward layer on scale * summed + shift, plus the attention's own output -> out and its moments."""
    weights, n_slots, width = layer.weights, layout.n_slots, layout.width
    n_hidden = len(weights.first_bias)
    normal = scratch(width * n_slots)
    hidden = scratch(HIDDEN * n_slots)
    bits = np.empty(n_slots + 2 * n_hidden, np.uint32)
    bias = weights.mix_bias + weights.second_bias
    for window in range(first, last):
        scale_rows(normal, layer.summed[window], scale, shift, n_slots)
        out = layer.out[window]
        fill_rows(out, bias, width, n_slots)
        add_product(out, width, weights.mix, width, layer.heads[window], width, n_slots)
        if layer.on_hidden.threshold:
            fill_bits(bits, layer.on_hidden, 0, window)
        for block in range(0, n_hidden, HIDDEN):
            rows = min(HIDDEN, n_hidden - block)
            fill_rows(hidden, weights.first_bias[block:], rows, n_slots)
            add_product(hidden, rows, weights.first[block * width :], width, normal, width, n_slots)
            activate(hidden, rows, bits, block, n_hidden, layer.on_hidden, n_slots)
            add_product(out, width, weights.second[block:], n_hidden, hidden, rows, n_slots)
        row_moments(moments[window], out, layout)


@inner
def activate(
    hidden: Floats, n_rows: int, bits: Bits, block: int, n_hidden: int, dropout: Dropout, n_slots: int
) -> None:
    """x -> x P(X < x), then dropout, in place."""
    apart()
    scale = every(dropout.factor)
    for row in range(n_rows):
        column = n_slots + block + row
        for slot in range(0, n_slots, LANES):
            place = row * n_slots + slot
            x = load(hidden, place)
            y = x * normal_below(x, bell_of(x))
            if dropout.threshold:
                factor, term = splat(bits, column), splat(bits, column + n_hidden)
                y = kept(load(bits, slot), factor, term, dropout.threshold, y * scale)
            store(hidden, place, y)


# The two ends: patches to tokens, tokens to features


@compiled
def embed(
    first: int,
    last: int,
    series: Floats,  # (n_windows, length)
    weight: Floats,  # (width, patch_length), flat
    start: Floats,  # (width * n_slots,) bias + positions
    layout: PatchLayout,
    tokens: Floats,  # (n_windows, width * n_slots) out
) -> None:
    """Patches to tokens."""
    n_slots, taps = layout.n_slots, layout.patch_length
    patches = scratch(taps * n_slots)
    clear(patches, len(patches))
    for window in range(first, last):
        fill_patches(patches, series[window], layout)
        out = tokens[window]
        for place in range(0, len(start), LANES):
            store(out, place, load(start, place))
        add_product(out, layout.width, weight, taps, patches, taps, n_slots)


@compiled
def write_features(
    first: int,
    last: int,
    entering: Floats,  # (n_windows, width * n_slots)
    scale: Floats,
    shift: Floats,
    layout: PatchLayout,
    features: Floats,  # (n_windows, n_tokens * width) out
) -> None:
    """scale * entering + shift, one row per token."""
    for window in range(first, last):
        out = features[window]
        tokens = entering[window]
        for row in range(layout.width):
            for token in range(layout.n_tokens):
                value = tokens[row * layout.n_slots + token]
                out[token * layout.width + row] = value * scale[row] + shift[row]
