"""The loops of PatchTST on a CPU, backward, for one window after the other.

    gradient of a window's features (n_tokens, width) -> of its tokens, of all parameters, of its samples

Gradients of parameters are summed over chunks of windows. Next: patchtst_numba.py strings the loops together.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from raxss._core.vector_code import (
    FLOATS,
    LANES,
    Bits,
    Floats,
    VectorEmitter,
    apart,
    compiled,
    every,
    fused,
    inlined,
    inner,
    load,
    power_of_two,
    primitive,
    splat,
    store,
    total,
    where_positive,
)
from raxss.method.backbones.patchtst_kernels import (
    CHUNK,
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
    fused_4,
    kept,
    load_4,
    load_8,
    normal_below,
    scale_rows,
    scratch,
    store_8,
    token_rows,
    zeros_4,
)

GROUP = 4  # windows whose products are summed before lanes are: gradients of weights


class Norm(NamedTuple):
    """How a gradient passes a normalisation of x: by * leaving + along * (x - mean) + constant."""

    mean: Floats  # (width,)
    inverse: Floats  # 1 / deviation
    by: Floats
    along: Floats
    constant: Floats


class LayerGradients(NamedTuple):
    """Sums of each chunk of windows: (n_chunks, size of the parameter)."""

    projections: Floats  # (3 width, width)
    projections_bias: Floats
    mix: Floats
    mix_bias: Floats
    first: Floats
    first_bias: Floats
    second: Floats
    second_bias: Floats


# Gradients of weights and biases


@primitive
def add_totals(typing: Any, array: Any, index: Any, step: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Add the sums over lanes of four times four vectors to a 4 x 4 block of a flat matrix, rows ``step`` apart."""

    def emit(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        do = FLOATS.emitter(context, builder)
        vectors = [builder.extract_value(four, place) for four in values[3:] for place in range(4)]
        block = LANES // 2
        while block:  # halves of two vectors side by side, so that no lane is idle
            half = len(vectors) // 2
            vectors = [_folded(do, *pair, block) for pair in zip(vectors[:half], vectors[half:], strict=True)]
            block //= 2
        four = VectorEmitter(context, builder, do.element, 4)
        for row in range(4):
            lanes = [
                (number % len(vectors)) * LANES + number // len(vectors)
                for number in range(4 * row, 4 * row + 4)
            ]
            sums = do.shuffle(vectors[0], vectors[-1], lanes)
            at = builder.add(values[1], builder.mul(values[2], ir.Constant(values[2].type, row)))
            place = four.address(sig.args[0], values[0], at)
            four.store(builder.fadd(four.load(place), sums), place)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, a, b, c, d), emit


def _folded(do: VectorEmitter, a: Any, b: Any, block: int) -> Any:
    """Each run of 2 * block lanes of ``a`` summed to block lanes, the same of ``b`` behind it."""
    runs = range(0, LANES, 2 * block)
    low = [start + lane + source for start in runs for source in (0, LANES) for lane in range(block)]
    high = [lane + block for lane in low]
    return do.builder.fadd(do.shuffle(a, b, low), do.shuffle(a, b, high))


@primitive
def repeated(typing: Any, vector: Any, part: Any) -> Any:
    """Each of the LANES / HEAD lanes of one eighth of a vector, HEAD times over."""
    which = part.literal_value

    def emit(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        lanes = [which * (LANES // HEAD) + lane // HEAD for lane in range(LANES)]
        return FLOATS.emitter(context, builder).shuffle(values[0], values[0], lanes)

    return FLOATS(FLOATS, part), emit


@inner
def add_weight_gradient(
    out: Floats,  # (n_out, n_in), rows step apart
    step: int,
    leaving: Floats,  # (n_windows, n_out * n_slots)
    n_out: int,
    entering: Floats,  # (n_windows, n_in * n_slots)
    n_in: int,
    n_slots: int,
) -> None:
    """out += the sum over windows and tokens of leaving x entering."""
    apart()
    for row in range(0, n_out, 4):
        for column in range(0, n_in, 4):
            a = zeros_4()
            b = zeros_4()
            c = zeros_4()
            d = zeros_4()
            for window in range(len(leaving)):
                gradient = leaving[window]
                tokens = entering[window]
                for slot in range(0, n_slots, LANES):
                    x = load_4(tokens, column * n_slots + slot, n_slots)
                    g = load_4(gradient, row * n_slots + slot, n_slots)
                    a = fused_4(g[0], x, a)
                    b = fused_4(g[1], x, b)
                    c = fused_4(g[2], x, c)
                    d = fused_4(g[3], x, d)
            add_totals(out, row * step + column, step, a, b, c, d)


@inner
def add_bias_gradient(
    out: Floats,  # (n_out,)
    leaving: Floats,  # (n_out, n_slots)
    n_out: int,
    n_slots: int,
) -> None:
    """out += the sum over tokens of leaving."""
    apart()
    for row in range(n_out):
        summed = every(np.float32(0.0))
        for slot in range(0, n_slots, LANES):
            summed = summed + load(leaving, row * n_slots + slot)
        out[row] += total(summed)


@inner
def scratch_of_group(size: int) -> Floats:
    """(GROUP, size)"""
    return scratch(GROUP * size).reshape((GROUP, size))


@inner
def pass_norm(gradient: Floats, tokens: Floats, norm: Norm, real: Floats) -> None:
    """Through a normalisation of tokens, from its output to its input, in place."""
    apart()
    n_slots = len(real)
    for row in range(len(norm.mean)):
        mean = splat(norm.mean, row)
        by = splat(norm.by, row)
        along = splat(norm.along, row)
        constant = splat(norm.constant, row)
        for slot in range(0, n_slots, LANES):
            place = row * n_slots + slot
            value = fused(load(gradient, place), by, fused(load(tokens, place) - mean, along, constant))
            store(gradient, place, value * load(real, slot))


@inner
def norm_sums(out: Floats, gradient: Floats, tokens: Floats, norm: Norm, n_slots: int) -> None:
    """The gradient, and its product with what was normalised, summed over tokens: (2 * width,)."""
    apart()
    width = len(norm.mean)
    for row in range(width):
        mean = splat(norm.mean, row)
        plain = every(np.float32(0.0))
        product = plain
        for slot in range(0, n_slots, LANES):
            value = load(gradient, row * n_slots + slot)
            plain = plain + value
            product = fused(value, load(tokens, row * n_slots + slot) - mean, product)
        out[row] = total(plain)
        out[width + row] = total(product) * norm.inverse[row]


@compiled
def read_feature_gradients(
    first: int,
    last: int,
    features: Floats,  # (n_windows, n_tokens * width) gradient
    tokens: Floats,  # (n_windows, width * n_slots) what the last normalisation saw
    norm: Norm,
    layout: PatchLayout,
    leaving: Floats,  # (n_windows, width * n_slots) out: the gradient with tokens in lanes
    sums: Floats,  # (n_windows, 2 * width) out
) -> None:
    """What comes back from the head."""
    n_slots, width = layout.n_slots, layout.width
    for window in range(first, last):
        gradient = features[window]
        out = leaving[window]
        for row in range(width):
            for token in range(layout.n_tokens):
                out[row * n_slots + token] = gradient[token * width + row]
            for token in range(layout.n_tokens, n_slots):
                out[row * n_slots + token] = 0
        norm_sums(sums[window], out, tokens[window], norm, n_slots)


@compiled
def transform_back(
    first: int,
    last: int,
    layer: Layer,
    scale: Floats,
    shift: Floats,  # what enters the feed-forward layer is scale * summed + shift
    first_norm: Norm,
    second_norm: Norm,
    layout: PatchLayout,
    leaving: Floats,  # (n_windows, width * n_slots) in: of the layer's output; out: of transformed + mixed heads
    entering: Floats,  # (n_windows, width * n_slots) out: of what enters the feed-forward layer
    sums: Floats,  # (n_windows, 2 * width) out
    gradients: LayerGradients,
) -> None:
    """The feed-forward layer and the normalisation after it."""
    chunk = first // CHUNK
    weights, dropout, n_slots, width = layer.weights, layer.on_hidden, layout.n_slots, layout.width
    size = width * n_slots
    n_hidden = len(weights.first_bias)
    normal = scratch_of_group(size)
    hidden = scratch_of_group(HIDDEN * n_slots)
    change = scratch_of_group(HIDDEN * n_slots)
    bits = np.empty((GROUP, n_slots + 2 * n_hidden), np.uint32)
    first_bias = gradients.first_bias[chunk]
    for start in range(first, last, GROUP):
        stop = min(start + GROUP, last)
        n = stop - start
        for window in range(start, stop):
            gradient = leaving[window]
            pass_norm(gradient, layer.out[window], second_norm, layout.real)
            add_bias_gradient(gradients.second_bias[chunk], gradient, width, n_slots)
            scale_rows(normal[window - start], layer.summed[window], scale, shift, n_slots)
            clear(entering[window], size)
            if dropout.threshold:
                fill_bits(bits[window - start], dropout, 0, window)
        for block in range(0, n_hidden, HIDDEN):
            rows = min(HIDDEN, n_hidden - block)
            from_first, from_second = weights.first[block * width :], weights.second_back[block * width :]
            for window in range(start, stop):
                x = hidden[window - start]
                g = change[window - start]
                fill_rows(x, weights.first_bias[block:], rows, n_slots)
                add_product(x, rows, from_first, width, normal[window - start], width, n_slots)
                clear(g, rows * n_slots)
                add_product(g, rows, from_second, width, leaving[window], width, n_slots)
                activate_back(x, g, rows, bits[window - start], block, n_hidden, dropout, n_slots)
                add_product(entering[window], width, weights.first_back[block:], n_hidden, g, rows, n_slots)
                add_bias_gradient(first_bias[block:], g, rows, n_slots)
            of_first = gradients.first[chunk, block * width :]
            add_weight_gradient(of_first, width, change[:n], rows, normal[:n], width, n_slots)
            of_second = gradients.second[chunk, block:]
            add_weight_gradient(of_second, n_hidden, leaving[start:stop], width, hidden[:n], rows, n_slots)
        for window in range(start, stop):
            norm_sums(sums[window], entering[window], layer.summed[window], first_norm, n_slots)


@inner
def activate_back(
    hidden: Floats,
    change: Floats,
    n_rows: int,
    bits: Bits,
    block: int,
    n_hidden: int,
    dropout: Dropout,
    n_slots: int,
) -> None:
    """hidden -> activated and dropped, change: from the output of that to its input; both in place."""
    apart()
    scale = every(dropout.factor)
    density = every(np.float32(1 / np.sqrt(2 * np.pi)))
    for row in range(n_rows):
        column = n_slots + block + row
        for slot in range(0, n_slots, LANES):
            place = row * n_slots + slot
            x = load(hidden, place)
            bell = bell_of(x)
            below = normal_below(x, bell)
            y = x * below
            g = load(change, place) * fused(x * density, bell, below)
            if dropout.threshold:
                rows, factor, term = load(bits, slot), splat(bits, column), splat(bits, column + n_hidden)
                y = kept(rows, factor, term, dropout.threshold, y * scale)
                g = kept(rows, factor, term, dropout.threshold, g * scale)
            store(hidden, place, y)
            store(change, place, g)


@compiled
def attend_back(
    first: int,
    last: int,
    layer: Layer,
    first_norm: Norm,
    before: Norm,  # the normalisation that saw entering
    layout: PatchLayout,
    gradient: Floats,  # (n_windows, width * n_slots) in: after the first normalisation; out: of tokens
    leaving: Floats,  # (n_windows, width * n_slots) gradient of transformed + mixed heads
    sums: Floats,  # (n_windows, 2 * width) out, for the normalisation before
    gradients: LayerGradients,
) -> None:
    """The first normalisation, and attention before it."""
    chunk = first // CHUNK
    weights, dropout, n_slots, width = layer.weights, layer.on_attention, layout.n_slots, layout.width
    size = width * n_slots
    part = HEAD * n_slots
    tokens = scratch_of_group(size)
    mixing = scratch_of_group(size)
    changes = scratch_of_group(3 * size)  # of queries, keys and values
    key_value = scratch(2 * size)
    query = scratch(size)
    head_gradient = scratch(size)
    head_rows = scratch(part)
    offsets = scratch(2 * n_slots)
    keys = scratch(part)
    space = scratch(3 * n_slots * LANES)
    bits = np.empty(3 * n_slots, np.uint32)
    clear(keys, part)
    for member in range(GROUP):
        clear(changes[member], 3 * size)
    for start in range(first, last, GROUP):
        stop = min(start + GROUP, last)
        n = stop - start
        for window in range(start, stop):
            x = tokens[window - start]
            g = gradient[window]
            mixed_gradient = mixing[window - start]
            change = changes[window - start]
            scale_rows(x, layer.entering[window], layer.scale, layer.shift, n_slots)
            pass_norm(g, layer.summed[window], first_norm, layout.real)
            for place in range(0, size, LANES):
                store(mixed_gradient, place, load(g, place) + load(leaving[window], place))
            add_bias_gradient(gradients.mix_bias[chunk], mixed_gradient, width, n_slots)
            clear(head_gradient, size)
            add_product(head_gradient, width, weights.mix_back, width, mixed_gradient, width, n_slots)
            token_rows(query, width, weights.query_rows, weights.query_bias, x, width, n_slots)
            fill_rows(key_value, weights.key_value_bias, 2 * width, n_slots)
            add_product(key_value, 2 * width, weights.key_value, width, x, width, n_slots)
            for head in range(width // HEAD):
                if dropout.threshold:
                    fill_bits(bits, dropout, head, window)
                own = head * part
                outputs, softmax = layer.heads[window, own:], layer.softmax[window, 2 * head * n_slots :]
                of_outputs = head_gradient[own:]
                output_gradient(head_rows, offsets, of_outputs, outputs, softmax, dropout.factor, n_slots)
                transpose(keys, key_value[own:], layout.n_tokens, n_slots)
                attend_head_back(
                    change[own:], query[head * HEAD :], key_value[own:], keys,
                    head_rows, offsets, bits, dropout, layout, space,
                )  # fmt: skip
            add_product(g, width, weights.projections_back, 3 * width, change, 3 * width, n_slots)
            add_bias_gradient(gradients.projections_bias[chunk], change, 3 * width, n_slots)
            norm_sums(sums[window], g, layer.entering[window], before, n_slots)
        of_projections, of_mix = gradients.projections[chunk], gradients.mix[chunk]
        add_weight_gradient(of_projections, width, changes[:n], 3 * width, tokens[:n], width, n_slots)
        add_weight_gradient(of_mix, width, mixing[:n], width, layer.heads[start:stop], width, n_slots)


@inner
def transpose(rows: Floats, tokens: Floats, n_tokens: int, n_slots: int) -> None:
    """(HEAD, n_slots) -> (n_slots, HEAD)"""
    apart()
    for token in range(n_tokens):
        for number in range(HEAD):
            rows[token * HEAD + number] = tokens[number * n_slots + token]


@inner
def output_gradient(
    rows: Floats,  # (n_slots, HEAD) out: gradient of a head's output, over the sum of powers
    offsets: Floats,  # (2, n_slots) out: what is added to scores, what is taken off their gradients
    head_gradient: Floats,  # (HEAD, n_slots) gradient, overwritten
    heads: Floats,  # (HEAD, n_slots) its output
    softmax: Floats,  # (2, n_slots)
    factor: Any,
    n_slots: int,
) -> None:
    """What all keys of a query share."""
    apart()
    for slot in range(0, n_slots, LANES):
        inverse = load(softmax, n_slots + slot)
        mean = every(np.float32(0.0))
        for place in range(slot, HEAD * n_slots, n_slots):
            value = load(head_gradient, place)
            mean = fused(value, load(heads, place), mean)
            store(head_gradient, place, value * inverse * every(factor))
        store(offsets, slot, load(softmax, slot))
        store(offsets, n_slots + slot, mean * inverse)
    transpose(rows, head_gradient, n_slots, n_slots)


@inner
def attend_head_back(
    changes: Floats,  # (3, width, n_slots) out: HEAD rows each of query, key and value
    query: Floats,  # (n_slots, width)
    key_value: Floats,  # (2, width, n_slots)
    keys: Floats,  # (n_slots, HEAD)
    head_gradient: Floats,  # (n_slots, HEAD) gradient of the head's output, over the sum of powers
    offsets: Floats,  # (2, n_slots)
    bits: Bits,
    dropout: Dropout,
    layout: PatchLayout,
    space: Floats,  # (3 * n_slots * LANES,)
) -> None:
    """LANES keys against one query after the other, in three loops that each fit into the registers."""
    apart()
    n_tokens, n_slots, width = layout.n_tokens, layout.n_slots, layout.width
    size = width * n_slots
    zero = every(np.float32(0.0))
    powers = space
    shifts = space[n_slots * LANES :]
    query_change = space[2 * n_slots * LANES :]
    clear(query_change, n_slots * LANES)
    for slot in range(0, n_tokens, LANES):
        inside = load(layout.real, slot)  # a key that is padding may have any score
        k = load_8(key_value, slot, n_slots)
        for token in range(n_tokens):
            power = power_of_two(dot_8(k, query, token * width, splat(offsets, token)))
            store(powers, token * LANES, where_positive(inside, power, zero))
        v = load_8(key_value, size + slot, n_slots)
        key_sums = zeros_4() + zeros_4()
        value_sums = zeros_4() + zeros_4()
        factors = load(bits, n_slots + slot)
        terms = load(bits, 2 * n_slots + slot)
        for token in range(n_tokens):
            power = load(powers, token * LANES)
            weight = power
            back = dot_8(v, head_gradient, token * HEAD, zero)
            if dropout.threshold:
                row = splat(bits, token)
                weight = kept(row, factors, terms, dropout.threshold, power)
                back = kept(row, factors, terms, dropout.threshold, back)
            shift = power * (back - splat(offsets, n_slots + token))
            value_sums = add_8(value_sums, weight, head_gradient, token * HEAD)
            key_sums = add_8(key_sums, shift, query, token * width)
            store(shifts, token * LANES, shift)
        store_8(changes, size + slot, n_slots, every(np.float32(np.log(2))), key_sums)
        store_8(changes, 2 * size + slot, n_slots, every(np.float32(1.0)), value_sums)
        some_keys = load_8(keys, slot * HEAD, LANES)
        for token in range(n_tokens):
            add_query_change(query_change, token * LANES, load(shifts, token * LANES), some_keys)
    for token in range(n_tokens):
        for number in range(HEAD):
            change = np.float32(0.0)
            for part in range(0, LANES, HEAD):
                change += query_change[token * LANES + part + number]
            changes[number * n_slots + token] = change * np.float32(1 / np.sqrt(HEAD))


@inlined
def add_query_change(query_change: Floats, at: int, shift: Any, keys: Any) -> None:
    """Scores' gradients times keys: the HEAD numbers of LANES / HEAD keys side by side."""
    a = fused(repeated(shift, 0), keys[0], load(query_change, at))
    b = repeated(shift, 1) * keys[1]
    a = fused(repeated(shift, 2), keys[2], a)
    b = fused(repeated(shift, 3), keys[3], b)
    a = fused(repeated(shift, 4), keys[4], a)
    b = fused(repeated(shift, 5), keys[5], b)
    a = fused(repeated(shift, 6), keys[6], a)
    b = fused(repeated(shift, 7), keys[7], b)
    store(query_change, at, a + b)


@compiled
def embed_back(
    first: int,
    last: int,
    gradient: Floats,  # (n_windows, width * n_slots)
    series: Floats,  # (n_windows, length)
    weight_back: Floats,  # (patch_length, width), flat
    layout: PatchLayout,
    weight: Floats,  # (n_chunks, width * patch_length) out
    start: Floats,  # (n_chunks, width * n_slots) out
    series_gradient: Floats,  # (n_windows, length) out, or empty where it is not needed
) -> None:
    """Tokens to patches, and to samples."""
    chunk = first // CHUNK
    n_slots, width, taps = layout.n_slots, layout.width, layout.patch_length
    patches = scratch_of_group(taps * n_slots)
    back = scratch(taps * n_slots)
    for member in range(GROUP):
        clear(patches[member], taps * n_slots)
    of_start = start[chunk]
    for begin in range(first, last, GROUP):
        stop = min(begin + GROUP, last)
        for window in range(begin, stop):
            g = gradient[window]
            fill_patches(patches[window - begin], series[window], layout)
            for place in range(0, width * n_slots, LANES):
                store(of_start, place, load(of_start, place) + load(g, place))
            if len(series_gradient):
                clear(back, taps * n_slots)
                add_product(back, taps, weight_back, width, g, width, n_slots)
                add_samples(series_gradient[window], back, layout)
        members = patches[: stop - begin]
        add_weight_gradient(weight[chunk], taps, gradient[begin:stop], width, members, taps, n_slots)


@inner
def add_samples(samples: Floats, patches: Floats, layout: PatchLayout) -> None:
    """The reverse of `fill_patches`: what patches share adds up."""
    samples[:] = 0
    for token in range(layout.n_tokens):
        for offset in range(layout.patch_length):
            place = min(token * layout.patch_stride + offset, len(samples) - 1)
            samples[place] += patches[offset * layout.n_slots + token]
