"""The loops of PatchTST on a CPU, forward, and the parts that the backward ones share.

    a window's tokens, transposed: (width, n_slots), n_slots = n_tokens rounded up, so that LANES neighbouring
    tokens sit in one register -> attended, transformed

Loops are written with vectors (raxss._core.vector_code). Neither the attention weights nor the masks of dropout are
ever stored: a mask is a function of (seed, window, query, key), made again in the backward pass. What belongs to a
window is computed from that window alone, so it does not depend on its neighbours in the batch.
Next: patchtst_back_kernels.py has the gradients; patchtst_numba.py calls the loops in order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types

from raxss._core.vector_code import (
    BITS,
    FLOATS,
    LANES,
    Bits,
    Floats,
    apart,
    compiled,
    every,
    fused,
    inlined,
    inner,
    larger,
    load,
    on_floats,
    power_of_two,
    primitive,
    splat,
    store,
    total,
    where_positive,
)

SLOTS = 4 * LANES  # tokens are padded to a multiple of this: matrix products go four vectors at a time
COLUMNS = 2 * LANES  # and the width of tokens must be a multiple of this: two vectors at a time
CHUNK = 32  # windows whose gradients are summed apart; one thread's piece of work
HEAD = 8  # numbers per head, unrolled below
HIDDEN = 32  # rows of the feed-forward layer at a time, so that they stay in the nearest cache
SAFE = 64.0  # scores within +-SAFE need no maximum taken off before 2^score


# What the loops are given: sizes, dropout, and one layer


class PatchLayout(NamedTuple):
    """Sizes of a window and its tokens."""

    n_tokens: int
    n_slots: int  # tokens, rounded up to whole vectors
    width: int
    patch_length: int
    patch_stride: int
    real: Floats  # (n_slots,) 1 for a token, 0 for padding


class Dropout(NamedTuple):
    """What is kept is multiplied by ``factor``. Each stream has a mask of its own for every window."""

    seed: np.uint64
    stream: int
    threshold: np.uint32  # of 2^32: the share that is kept; 0 means all
    factor: np.float32


class LayerWeights(NamedTuple):
    """One encoder layer's parameters, flat, in the orders that the loops read them."""

    query: Floats  # (width, width), times log2(e) / sqrt(HEAD), so that weights are powers of two
    query_bias: Floats
    query_rows: Floats  # its transpose
    key_value: Floats  # (2 width, width)
    key_value_bias: Floats
    key_value_rows: Floats  # its transpose
    projections_back: Floats  # (width, 3 width): query, key and value as they are, transposed
    mix: Floats  # (width, width)
    mix_bias: Floats
    mix_back: Floats
    first: Floats  # (n_hidden, width)
    first_bias: Floats
    first_back: Floats  # (width, n_hidden)
    second: Floats  # (width, n_hidden)
    second_bias: Floats
    second_back: Floats  # (n_hidden, width)


class Layer(NamedTuple):
    """One encoder layer: parameters, dropout, and arrays with one row per window."""

    weights: LayerWeights
    on_attention: Dropout
    on_hidden: Dropout
    scale: Floats  # (width,)
    shift: Floats  # tokens = scale * entering + shift
    entering: Floats  # (n_windows, width * n_slots), before scale and shift
    heads: Floats  # outputs of the heads, before they are mixed
    softmax: Floats  # (n_windows, n_heads * 2 * n_slots) what is added to scores, 1 / sum of powers
    summed: Floats  # tokens + mixed heads: what the first normalisation sees
    out: Floats  # transformed + mixed heads: what the second normalisation sees


# Instructions that PatchTST alone needs


@primitive
def kept(typing: Any, rows: Any, factors: Any, terms: Any, threshold: Any, value: Any) -> Any:
    """``value`` in lanes that dropout keeps, else 0.

    Kept where row * factor + term < threshold, modulo 2^32: rows, factors and terms are random, so any two
    decisions are independent.
    """

    def emit(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        drawn = builder.add(builder.mul(values[0], values[1]), values[2])
        bound = BITS.emitter(context, builder).spread(values[3])
        zeros = FLOATS.emitter(context, builder).constant(0.0)
        return builder.select(builder.icmp_unsigned("<", drawn, bound), values[4], zeros)

    return FLOATS(BITS, BITS, BITS, types.uint32, FLOATS), emit


@primitive
def tail_ratio(typing: Any, vector: Any) -> Any:
    """P(X > x) exp(x^2 / 2) for standard normal X as a function of 1 / (1 + 0.3 x), relative error 2e-7."""
    return on_floats(lambda do, x: do.polynomial(_TAIL, x), 1)


_TAIL = (  # least relative error for x from 0 to 14
    7.1692552e-06,
    0.11948768,
    0.12192040,
    0.094683282,
    0.14253613,
    -0.076507404,
    0.22866093,
    -0.16916654,
    0.038378377,
)


# Four vectors or eight at a time


@inlined
def load_4(array: Floats, at: int, step: int) -> Any:
    """Four vectors, ``step`` apart."""
    return load(array, at), load(array, at + step), load(array, at + 2 * step), load(array, at + 3 * step)


@inlined
def store_4(array: Floats, at: int, step: int, a: Any) -> None:
    """Put four vectors, ``step`` apart."""
    store(array, at, a[0])
    store(array, at + step, a[1])
    store(array, at + 2 * step, a[2])
    store(array, at + 3 * step, a[3])


@inlined
def fused_4(item: Any, a: Any, b: Any) -> Any:
    """one * a + b, four times."""
    return fused(item, a[0], b[0]), fused(item, a[1], b[1]), fused(item, a[2], b[2]), fused(item, a[3], b[3])


@inlined
def zeros_4() -> Any:
    """Four vectors of 0."""
    zero = every(np.float32(0.0))
    return zero, zero, zero, zero


@inlined
def load_8(array: Floats, at: int, step: int) -> Any:
    """Eight vectors, ``step`` apart."""
    return load_4(array, at, step) + load_4(array, at + 4 * step, step)


@inlined
def dot_8(a: Any, array: Floats, at: int, start: Any) -> Any:
    """start + the product of eight vectors with eight neighbouring numbers."""
    start = fused(a[0], splat(array, at), start)
    start = fused(a[1], splat(array, at + 1), start)
    start = fused(a[2], splat(array, at + 2), start)
    start = fused(a[3], splat(array, at + 3), start)
    start = fused(a[4], splat(array, at + 4), start)
    start = fused(a[5], splat(array, at + 5), start)
    start = fused(a[6], splat(array, at + 6), start)
    return fused(a[7], splat(array, at + 7), start)


@inlined
def add_8(sums: Any, factor: Any, array: Floats, at: int) -> Any:
    """Eight sums, each plus the factor times one of eight neighbouring numbers."""
    return (
        fused(factor, splat(array, at), sums[0]),
        fused(factor, splat(array, at + 1), sums[1]),
        fused(factor, splat(array, at + 2), sums[2]),
        fused(factor, splat(array, at + 3), sums[3]),
        fused(factor, splat(array, at + 4), sums[4]),
        fused(factor, splat(array, at + 5), sums[5]),
        fused(factor, splat(array, at + 6), sums[6]),
        fused(factor, splat(array, at + 7), sums[7]),
    )


@inlined
def store_8(array: Floats, at: int, step: int, factor: Any, a: Any) -> None:
    """Put eight vectors times a factor, ``step`` apart."""
    store_4(array, at, step, (factor * a[0], factor * a[1], factor * a[2], factor * a[3]))
    store_4(array, at + 4 * step, step, (factor * a[4], factor * a[5], factor * a[6], factor * a[7]))


@inlined
def magnitude(a: Any) -> Any:
    """Absolute values."""
    return larger(a, every(np.float32(0.0)) - a)


@inner
def scratch(size: int) -> Floats:
    """Working space whose vectors lie within one cache line each, which doubles the speed of loading them."""
    apart()
    memory = np.empty(size + 16, np.float32)
    start = (-memory.ctypes.data) % 64 // 4
    return memory[start : start + size]


# Matrix products. Tokens of a window are flat (n_rows * n_slots).


@inner
def add_product(
    out: Floats,  # (n_out, n_slots)
    n_out: int,
    weight: Floats,  # (n_out, n_in), rows step apart
    step: int,
    entering: Floats,  # (n_in, n_slots)
    n_in: int,
    n_slots: int,
) -> None:
    """out += weight @ entering, with tokens in lanes."""
    apart()
    for row in range(0, n_out, 4):
        for slot in range(0, n_slots, SLOTS):
            place = row * n_slots + slot
            a = load_4(out, place, LANES)
            b = load_4(out, place + n_slots, LANES)
            c = load_4(out, place + 2 * n_slots, LANES)
            d = load_4(out, place + 3 * n_slots, LANES)
            for column in range(n_in):
                x = load_4(entering, column * n_slots + slot, LANES)
                factor = row * step + column
                a = fused_4(splat(weight, factor), x, a)
                b = fused_4(splat(weight, factor + step), x, b)
                c = fused_4(splat(weight, factor + 2 * step), x, c)
                d = fused_4(splat(weight, factor + 3 * step), x, d)
            store_4(out, place, LANES, a)
            store_4(out, place + n_slots, LANES, b)
            store_4(out, place + 2 * n_slots, LANES, c)
            store_4(out, place + 3 * n_slots, LANES, d)


@inner
def token_rows(
    out: Floats,  # (n_slots, n_out)
    n_out: int,
    weight: Floats,  # (n_in, n_out)
    bias: Floats,  # (n_out,)
    entering: Floats,  # (n_in, n_slots)
    n_in: int,
    n_slots: int,
) -> None:
    """out = entering^T @ weight + bias: one row per token, with outputs in lanes."""
    apart()
    for slot in range(0, n_slots, 4):
        for column in range(0, n_out, COLUMNS):
            start = load(bias, column)
            a = (start, start, start, start)
            start = load(bias, column + LANES)
            b = (start, start, start, start)
            for row in range(n_in):
                place = row * n_slots + slot
                x = (
                    splat(entering, place),
                    splat(entering, place + 1),
                    splat(entering, place + 2),
                    splat(entering, place + 3),
                )
                a = fused_4(load(weight, row * n_out + column), x, a)
                b = fused_4(load(weight, row * n_out + column + LANES), x, b)
            store_4(out, slot * n_out + column, n_out, a)
            store_4(out, slot * n_out + column + LANES, n_out, b)


@inner
def fill_rows(out: Floats, values: Floats, n_rows: int, n_slots: int) -> None:
    """One number per row."""
    apart()
    for row in range(n_rows):
        value = splat(values, row)
        for slot in range(0, n_slots, LANES):
            store(out, row * n_slots + slot, value)


@inner
def clear(out: Floats, size: int) -> None:
    """Set ``size`` numbers to 0."""
    apart()
    for place in range(0, size, LANES):
        store(out, place, every(np.float32(0.0)))


@inner
def scale_rows(out: Floats, entering: Floats, scale: Floats, shift: Floats, n_slots: int) -> None:
    """out = scale * entering + shift, with one pair per row: a normalisation whose moments are known."""
    apart()
    for row in range(len(scale)):
        factor = splat(scale, row)
        term = splat(shift, row)
        for slot in range(0, n_slots, LANES):
            place = row * n_slots + slot
            store(out, place, fused(load(entering, place), factor, term))


@inner
def row_moments(out: Floats, tokens: Floats, layout: PatchLayout) -> None:
    """Mean and sum of squared distances from it, per row over the real tokens: (2 * width,)."""
    apart()
    n_slots = layout.n_slots
    for row in range(layout.width):
        summed = every(np.float32(0.0))
        for slot in range(0, n_slots, LANES):
            summed = fused(load(tokens, row * n_slots + slot), load(layout.real, slot), summed)
        mean = total(summed) / np.float32(layout.n_tokens)
        squares = every(np.float32(0.0))
        for slot in range(0, n_slots, LANES):
            off = (load(tokens, row * n_slots + slot) - every(mean)) * load(layout.real, slot)
            squares = fused(off, off, squares)
        out[row] = mean
        out[layout.width + row] = total(squares)


# Dropout: which numbers are kept


@inlined
def mixed(bits: np.uint32) -> np.uint32:
    """Thirty-two bits, each of which depends on all that went in."""
    bits = np.uint32((bits ^ (bits >> np.uint32(16))) * np.uint32(0x21F0AAAD))
    bits = np.uint32((bits ^ (bits >> np.uint32(15))) * np.uint32(0x735A2D97))
    return np.uint32(bits ^ (bits >> np.uint32(15)))


@inner
def fill_bits(out: Bits, dropout: Dropout, head: int, window: int) -> None:
    """Random bits for the mask of one window: rows, then factors of columns, then terms of columns."""
    apart()
    key = mixed(np.uint32(dropout.seed >> np.uint64(32)) ^ mixed(np.uint32(window)))
    key = mixed(np.uint32(dropout.seed) ^ key)
    key = mixed(np.uint32(dropout.stream + head) ^ key)
    for place in range(len(out)):
        out[place] = mixed(key + np.uint32(place) * np.uint32(0x9E3779B9))


# GELU


@inlined
def bell_of(x: Any) -> Any:
    """exp(-x^2 / 2)"""
    return power_of_two(x * x * every(np.float32(-0.5 * np.log2(np.e))))


@inlined
def normal_below(x: Any, bell: Any) -> Any:
    """P(X < x) for standard normal X, error 1e-7, given bell = exp(-x^2 / 2)."""
    item = every(np.float32(1.0))
    tail = tail_ratio(item / fused(magnitude(x), every(np.float32(0.3)), item)) * bell
    return where_positive(x, item - tail, tail)


@inner
def fill_patches(patches: Floats, samples: Floats, layout: PatchLayout) -> None:
    """Neighbouring samples of each token; beyond the end, the last one is repeated."""
    apart()
    last = len(samples) - 1
    for offset in range(layout.patch_length):
        for token in range(layout.n_tokens):
            place = min(token * layout.patch_stride + offset, last)
            patches[offset * layout.n_slots + token] = samples[place]


# Attention


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
