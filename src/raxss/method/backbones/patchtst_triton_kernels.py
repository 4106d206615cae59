"""Triton kernels of PatchTST, forward and backward, split only where batch normalisation must see all tokens.

    embed                windows -> tokens
    attend               tokens -> the outputs of the heads
    mix                  those -> attended, and the statistics of tokens + attended
    transform            tokens, attended -> the second sum, and the statistics of that
    normalise            the last sum -> features
    *_backward           the same in reverse; hidden values are computed again, not kept
    settle*              partial sums of all programs -> what batch normalisation needs, in a fixed order

Tokens lie in memory as ``(n_series * n_tokens, 32)``. Every program takes tiles or windows in turn and keeps its
own partial sums, so the same seed gives the same bits on the same device. Heads of 8 numbers are padded with zeros
to the 16 that the matrix units need. Every product is of a shape that Triton gives to the plain matrix
instructions (two warps, or fewer than 64 rows): Hopper's wide ones, on operands as slim as ours, gave wrong sums
and illegal reads of shared memory in Triton 3.6 (as in issue 11366 of triton-lang/triton). Next:
patchtst_triton.py launches them.
"""
# mypy: ignore-errors
# (the language below is Triton's, which only looks like Python)

import triton
import triton.language as tl

from raxss.method.backbones.patchtst_triton_parts import (
    HEAD,
    HIDDEN,
    LN_2,
    N_HEADS,
    PADDED,
    ROOT_OF_HEAD,
    SCORE_SCALE,
    WIDTH,
    column_key,
    head_bias,
    head_tile,
    head_weight,
    kept,
    normal,
    part_key,
    power_of_2,
    put_head,
    put_statistics,
    put_sums,
    put_tile,
    row_key,
    seen,
    stream_key,
    tile,
    vector,
    words,
)


# ------------------------------------------------------------------------------------------- windows -> tokens
@triton.jit
def patches(windows, series, length, stride, mean, deviation, rows, TAPS: tl.constexpr, PATCH: tl.constexpr):
    """(rows, TAPS): the normalised samples of each patch; the last sample is repeated beyond the end."""
    taps = tl.arange(0, TAPS)
    places = tl.minimum(rows[:, None] * stride + taps[None, :], length - 1)
    samples = tl.load(windows + tl.cast(series, tl.int64) * length + places).to(tl.float32)
    return tl.where(taps[None, :] < PATCH, (samples - mean) * deviation, 0.0)


@triton.jit
def embed(
    windows, level, gain, offset, weight, bias, positions, tokens,
    n_series, n_variates, n_tokens, length, stride, eps,
    TYPE: tl.constexpr, BLOCK: tl.constexpr, LENGTH: tl.constexpr, TAPS: tl.constexpr, PATCH: tl.constexpr,
    REVIN: tl.constexpr,
):  # fmt: skip
    """(n_series, length) -> RevIN, patches, projection and positions -> (n_series * n_tokens, 32)."""
    rows, taps, columns = tl.arange(0, BLOCK), tl.arange(0, TAPS), tl.arange(0, WIDTH)
    valid = rows < n_tokens
    turned = tl.load(weight + columns[None, :] * PATCH + taps[:, None], mask=taps[:, None] < PATCH, other=0.0)
    place = tile(positions, rows, valid) + vector(bias)
    for series in range(tl.program_id(0), n_series, tl.num_programs(0)):
        mean, deviation, factor, shift = 0.0, 1.0, 1.0, 0.0
        if REVIN:
            samples = tl.arange(0, LENGTH)
            there = samples < length
            values = tl.load(windows + tl.cast(series, tl.int64) * length + samples, mask=there, other=0.0)
            values = values.to(tl.float32)
            mean = tl.sum(values, 0) / length
            away = tl.where(there, values - mean, 0.0)
            deviation = tl.rsqrt(tl.sum(away * away, 0) / length + eps)
            factor = tl.load(gain + series % n_variates)
            shift = tl.load(offset + series % n_variates)
            tl.store(level + series * 2, mean)
            tl.store(level + series * 2 + 1, deviation)
        patch = patches(windows, series, length, stride, mean, deviation, rows, TAPS, PATCH)
        patch = (patch * factor + shift).to(TYPE)  # taps beyond the patch meet weights of 0
        found = tl.dot(patch, turned.to(TYPE), input_precision="ieee") + place
        put_tile(tokens + tl.cast(series, tl.int64) * n_tokens * WIDTH, rows, valid, found)


@triton.jit
def embed_backward(
    windows, level, d_tokens, partials_weight, partials_positions,
    n_windows, n_variates, n_tokens, length, stride,
    TYPE: tl.constexpr, BLOCK: tl.constexpr, TAPS: tl.constexpr, PATCH: tl.constexpr, REVIN: tl.constexpr,
):  # fmt: skip
    """Sums over the windows of one variate: d_tokens.T @ patches (32, TAPS), and d_tokens (n_tokens, 32)."""
    rows, taps, columns = tl.arange(0, BLOCK), tl.arange(0, TAPS), tl.arange(0, WIDTH)
    valid = rows < n_tokens
    d_weight = tl.zeros((WIDTH, TAPS), tl.float32)
    d_positions = tl.zeros((BLOCK, WIDTH), tl.float32)
    for window in range(tl.program_id(0), n_windows, tl.num_programs(0)):
        series = window * n_variates + tl.program_id(1)
        mean, deviation = 0.0, 1.0
        if REVIN:
            mean, deviation = tl.load(level + series * 2), tl.load(level + series * 2 + 1)
        patch = patches(windows, series, length, stride, mean, deviation, rows, TAPS, PATCH).to(TYPE)
        given = tile(d_tokens + tl.cast(series, tl.int64) * n_tokens * WIDTH, rows, valid)
        d_positions += given
        d_weight = tl.dot(tl.trans(given.to(TYPE)), patch, d_weight, input_precision="ieee")
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.store(partials_weight + program * WIDTH * TAPS + columns[:, None] * TAPS + taps[None, :], d_weight)
    put_tile(partials_positions + program * n_tokens * WIDTH, rows, valid, d_positions)


# --------------------------------------------------------------------------------------------------- attention
@triton.jit
def attend(
    sums, scale, shift, wq, bq, wk, bk, wv, bv, seed, heads, sizes,
    n_series, n_tokens, limit, drop_gain,
    TYPE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, FULL: tl.constexpr, STREAM: tl.constexpr,
    DROP: tl.constexpr, TRAIN: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """x = scale * sums + shift -> softmax(Q K^T / sqrt(8)) V of one head, and log2 of the softmax's sums."""
    HALF: tl.constexpr = BLOCK // 2
    half = tl.arange(0, HALF)
    a, b = vector(scale), vector(shift)
    head = tl.program_id(0) % N_HEADS
    to_query, query_bias = head_weight(wq, head, PADDED, TYPE), head_bias(bq, head, PADDED)
    to_key, key_bias = head_weight(wk, head, PADDED, TYPE), head_bias(bk, head, PADDED)
    to_value, value_bias = head_weight(wv, head, HEAD, TYPE), head_bias(bv, head, HEAD)
    stream = stream_key(seed, STREAM)
    for series in range(tl.program_id(0) // N_HEADS, n_series, tl.num_programs(0) // N_HEADS):
        here = tl.cast(series, tl.int64) * n_tokens * WIDTH
        x_near = (tile(sums + here, half, half < n_tokens) * a + b).to(TYPE)
        x_far = (tile(sums + here, half + HALF, half + HALF < n_tokens) * a + b).to(TYPE)
        k_near = tl.trans((tl.dot(x_near, to_key, input_precision="ieee") + key_bias).to(TYPE))
        k_far = tl.trans((tl.dot(x_far, to_key, input_precision="ieee") + key_bias).to(TYPE))
        v_near = (tl.dot(x_near, to_value, input_precision="ieee") + value_bias).to(TYPE)
        v_far = (tl.dot(x_far, to_value, input_precision="ieee") + value_bias).to(TYPE)
        key = part_key(stream, tl.cast(series, tl.int32) * N_HEADS + head)
        for part in range(BLOCK // ROWS):
            rows = part * ROWS + tl.arange(0, ROWS)
            valid = rows < n_tokens
            x = (tile(sums + here, rows, valid) * a + b).to(TYPE)
            q = tl.dot(x, to_query, input_precision="ieee") + query_bias
            q = (q * SCORE_SCALE).to(TYPE)
            near = tl.dot(q, k_near, input_precision="ieee")
            far = tl.dot(q, k_far, input_precision="ieee")
            if not FULL:
                near = tl.where(half[None, :] < n_tokens, near, -1e30)
                far = tl.where(half[None, :] + HALF < n_tokens, far, -1e30)
            top = tl.max(tl.maximum(near, far), 1)
            near = power_of_2(near - top[:, None], FAST)
            far = power_of_2(far - top[:, None], FAST)
            size = tl.sum(near + far, 1)
            if DROP:
                bits = words(row_key(key, rows)[:, None], column_key(key, half)[None, :])
                near, far = kept(bits, limit, near, FAST), kept(bits << 16, limit, far, FAST)
            o = tl.dot(near.to(TYPE), v_near, input_precision="ieee")
            o = tl.dot(far.to(TYPE), v_far, o, input_precision="ieee")
            put_head(heads + here, rows, head, valid, o * (drop_gain / size)[:, None])
            if TRAIN:
                place = sizes + (tl.cast(series, tl.int64) * N_HEADS + head) * n_tokens + rows
                tl.store(place, top + tl.log2(size), mask=valid)


@triton.jit
def mix(
    sums, scale, shift, heads, wo, bo, attended, partials, n_rows,
    TYPE: tl.constexpr, ROWS: tl.constexpr, TRAIN: tl.constexpr,
):  # fmt: skip
    """The outputs of the heads -> attended; statistics of x + attended."""
    columns = tl.arange(0, WIDTH)
    turned = tl.load(wo + columns[None, :] * WIDTH + columns[:, None]).to(TYPE)
    a, b, bias = vector(scale), vector(shift), vector(bo)
    count, mean = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS, WIDTH), tl.float32)
    squares = tl.zeros((ROWS, WIDTH), tl.float32)
    for number in range(tl.program_id(0), tl.cdiv(n_rows, ROWS), tl.num_programs(0)):
        rows = tl.cast(number, tl.int64) * ROWS + tl.arange(0, ROWS)
        valid = rows < n_rows
        o = tile(heads, rows, valid).to(TYPE)
        found = (tl.dot(o, turned, input_precision="ieee") + bias).to(TYPE)
        put_tile(attended, rows, valid, found)
        if TRAIN:
            added = tile(sums, rows, valid) * a + b + found.to(tl.float32)
            count, mean, squares = seen(count, mean, squares, added, valid)
    if TRAIN:
        put_statistics(partials, count, mean, squares)


@triton.jit
def mix_backward(
    normal_sums, d_sums, d_normal, c0, c1, c2, heads, wo, d_heads, partials, n_rows,
    TYPE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Gradients of both sums of the layer -> of attended -> of the heads' outputs and the mixing matrix."""
    columns = tl.arange(0, WIDTH)
    square = columns[:, None] * WIDTH + columns[None, :]
    weight = tl.load(wo + square).to(TYPE)
    d_weight = tl.zeros((WIDTH, WIDTH), tl.float32)
    for number in range(tl.program_id(0), tl.cdiv(n_rows, ROWS), tl.num_programs(0)):
        rows = tl.cast(number, tl.int64) * ROWS + tl.arange(0, ROWS)
        valid = rows < n_rows
        below = tile(d_normal, rows, valid) + tile(d_normal, rows + n_rows, valid)
        given = below * vector(c0) + tile(normal_sums, rows, valid) * vector(c1) + vector(c2)
        given += tile(d_sums, rows, valid)
        given = tl.where(valid[:, None], given, 0.0).to(TYPE)
        put_tile(d_heads, rows, valid, tl.dot(given, weight, input_precision="ieee"))
        o = tile(heads, rows, valid).to(TYPE)
        d_weight = tl.dot(tl.trans(given), o, d_weight, input_precision="ieee")
    tl.store(partials + tl.program_id(0) * WIDTH * WIDTH + square, d_weight)


@triton.jit
def attend_backward(
    sums, scale, shift, wq, bq, wk, bk, wv, bv, seed, heads, sizes, d_heads,
    d_query, d_key, d_value,
    n_series, n_tokens, limit, drop_gain,
    TYPE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, FULL: tl.constexpr, STREAM: tl.constexpr,
    DROP: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, keys and values of one head from those of its output.

    Scores are held transposed, (keys, queries): the gradients of keys and values take them from the registers.
    """
    HALF: tl.constexpr = BLOCK // 2
    half = tl.arange(0, HALF)
    a, b = vector(scale), vector(shift)
    head = tl.program_id(0) % N_HEADS
    to_query, query_bias = head_weight(wq, head, PADDED, TYPE), head_bias(bq, head, PADDED)
    to_key, key_bias = head_weight(wk, head, PADDED, TYPE), head_bias(bk, head, PADDED)
    to_value, value_bias = head_weight(wv, head, PADDED, TYPE), head_bias(bv, head, PADDED)
    # once more as slim as they are, for what is summed into results
    slim_query, slim_query_bias = head_weight(wq, head, HEAD, TYPE), head_bias(bq, head, HEAD)
    slim_key, slim_key_bias = head_weight(wk, head, HEAD, TYPE), head_bias(bk, head, HEAD)
    stream = stream_key(seed, STREAM)
    for series in range(tl.program_id(0) // N_HEADS, n_series, tl.num_programs(0) // N_HEADS):
        here = tl.cast(series, tl.int64) * n_tokens * WIDTH
        x_near = (tile(sums + here, half, half < n_tokens) * a + b).to(TYPE)
        x_far = (tile(sums + here, half + HALF, half + HALF < n_tokens) * a + b).to(TYPE)
        k_near = (tl.dot(x_near, to_key, input_precision="ieee") + key_bias).to(TYPE)
        k_far = (tl.dot(x_far, to_key, input_precision="ieee") + key_bias).to(TYPE)
        slim_near = (tl.dot(x_near, slim_key, input_precision="ieee") + slim_key_bias).to(TYPE)
        slim_far = (tl.dot(x_far, slim_key, input_precision="ieee") + slim_key_bias).to(TYPE)
        v_near = ((tl.dot(x_near, to_value, input_precision="ieee") + value_bias) * drop_gain).to(TYPE)
        v_far = ((tl.dot(x_far, to_value, input_precision="ieee") + value_bias) * drop_gain).to(TYPE)
        dk_near, dk_far = tl.zeros((HALF, HEAD), tl.float32), tl.zeros((HALF, HEAD), tl.float32)
        dv_near, dv_far = tl.zeros((HALF, HEAD), tl.float32), tl.zeros((HALF, HEAD), tl.float32)
        key = part_key(stream, tl.cast(series, tl.int32) * N_HEADS + head)
        for part in range(BLOCK // ROWS):
            rows = part * ROWS + tl.arange(0, ROWS)
            valid = rows < n_tokens
            x = (tile(sums + here, rows, valid) * a + b).to(TYPE)
            q = tl.dot(x, to_query, input_precision="ieee") + query_bias
            q = (q * SCORE_SCALE).to(TYPE)
            q_slim = tl.dot(x, slim_query, input_precision="ieee") + slim_query_bias
            q_slim = (q_slim * SCORE_SCALE).to(TYPE)
            d_o_padded = head_tile(d_heads + here, rows, head, valid, PADDED)
            d_o = head_tile(d_heads + here, rows, head, valid, HEAD)
            o = head_tile(heads + here, rows, head, valid, HEAD)
            shared = tl.sum(d_o.to(tl.float32) * o.to(tl.float32), 1)[None, :]
            place = sizes + (tl.cast(series, tl.int64) * N_HEADS + head) * n_tokens + rows
            size = tl.load(place, mask=valid, other=1e30)[None, :]
            if DROP:
                bits = words(row_key(key, rows)[None, :], column_key(key, half)[:, None])
            dq = tl.zeros((ROWS, HEAD), tl.float32)
            for side in tl.static_range(2):
                k, v, k_slim = (k_near, v_near, slim_near) if side == 0 else (k_far, v_far, slim_far)
                p = power_of_2(tl.dot(k, tl.trans(q), input_precision="ieee") - size, FAST)
                if not FULL:
                    p = tl.where(half[:, None] + side * HALF < n_tokens, p, 0.0)
                dp = tl.dot(v, tl.trans(d_o_padded), input_precision="ieee")
                p_kept = p
                if DROP:
                    p_kept = kept((bits << 16) if side == 1 else bits, limit, p, FAST)
                ds = (p_kept * dp - p * shared).to(TYPE)
                p_kept = p_kept.to(TYPE)
                if side == 0:
                    dv_near = tl.dot(p_kept, d_o, dv_near, input_precision="ieee")
                    dk_near = tl.dot(ds, q_slim, dk_near, input_precision="ieee")
                else:
                    dv_far = tl.dot(p_kept, d_o, dv_far, input_precision="ieee")
                    dk_far = tl.dot(ds, q_slim, dk_far, input_precision="ieee")
                dq = tl.dot(tl.trans(ds), k_slim, dq, input_precision="ieee")
            put_head(d_query + here, rows, head, valid, dq * ROOT_OF_HEAD)
        near, far = half < n_tokens, half + HALF < n_tokens
        put_head(d_key + here, half, head, near, dk_near * LN_2)
        put_head(d_key + here, half + HALF, head, far, dk_far * LN_2)
        put_head(d_value + here, half, head, near, dv_near * drop_gain)
        put_head(d_value + here, half + HALF, head, far, dv_far * drop_gain)


@triton.jit
def project_backward(
    sums, scale, shift, normal_sums, d_normal, c0, c1, c2, d_query, d_key, d_value,
    wq, wk, wv, d_tokens, low_mean, low_deviation, partials, n_rows,
    TYPE: tl.constexpr, ROWS: tl.constexpr, LOWER: tl.constexpr,
):  # fmt: skip
    """Gradients of the layer's tokens and of three projections; sums for the normalisation below."""
    columns = tl.arange(0, WIDTH)
    square = columns[:, None] * WIDTH + columns[None, :]
    by_query, by_key = tl.load(wq + square).to(TYPE), tl.load(wk + square).to(TYPE)
    by_value = tl.load(wv + square).to(TYPE)
    d_wq, d_wk = tl.zeros((WIDTH, WIDTH), tl.float32), tl.zeros((WIDTH, WIDTH), tl.float32)
    d_wv = tl.zeros((WIDTH, WIDTH), tl.float32)
    d_bq, d_bv = tl.zeros((ROWS, WIDTH), tl.float32), tl.zeros((ROWS, WIDTH), tl.float32)
    low_product = tl.zeros((ROWS, WIDTH), tl.float32)
    for number in range(tl.program_id(0), tl.cdiv(n_rows, ROWS), tl.num_programs(0)):
        rows = tl.cast(number, tl.int64) * ROWS + tl.arange(0, ROWS)
        valid = rows < n_rows
        raw = tile(sums, rows, valid)
        x = raw * vector(scale) + vector(shift)
        below = tile(d_normal, rows, valid) + tile(d_normal, rows + n_rows, valid)
        found = below * vector(c0) + tile(normal_sums, rows, valid) * vector(c1) + vector(c2)
        found = tl.where(valid[:, None], found, 0.0)
        x = x.to(TYPE)
        dq, dv = tile(d_query, rows, valid), tile(d_value, rows, valid)
        d_bq += dq
        d_bv += dv
        dq, dk, dv = dq.to(TYPE), tile(d_key, rows, valid).to(TYPE), dv.to(TYPE)
        found += tl.dot(dv, by_value, tl.dot(dk, by_key, tl.dot(dq, by_query, input_precision="ieee"),
                        input_precision="ieee"), input_precision="ieee")  # fmt: skip
        found = found.to(TYPE)
        put_tile(d_tokens, rows, valid, found)
        d_wq = tl.dot(tl.trans(dq), x, d_wq, input_precision="ieee")
        d_wk = tl.dot(tl.trans(dk), x, d_wk, input_precision="ieee")
        d_wv = tl.dot(tl.trans(dv), x, d_wv, input_precision="ieee")
        if LOWER:
            low_product += found.to(tl.float32) * (raw - vector(low_mean)) * vector(low_deviation)
    place = partials + tl.program_id(0) * (3 * WIDTH * WIDTH + 3 * WIDTH)
    tl.store(place + square, d_wq)
    tl.store(place + WIDTH * WIDTH + square, d_wk)
    tl.store(place + 2 * WIDTH * WIDTH + square, d_wv)
    tl.store(place + 3 * WIDTH * WIDTH + columns, tl.sum(d_bq, 0))
    tl.store(place + 3 * WIDTH * WIDTH + WIDTH + columns, tl.sum(d_bv, 0))
    tl.store(place + 3 * WIDTH * WIDTH + 2 * WIDTH + columns, tl.sum(low_product, 0))


# ------------------------------------------------------------------------------------------------ feed-forward
@triton.jit
def transform(
    sums, scale, shift, attended, norm_weight, norm_bias, norm_mean, norm_deviation, w1, b1, w2, b2, seed,
    normal_sums, out, partials, n_rows, limit, drop_gain,
    TYPE: tl.constexpr, ROWS: tl.constexpr, STREAM: tl.constexpr, DROP: tl.constexpr,
    TRAIN: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """norm(x + attended) -> linear, GELU, dropout, linear; plus attended. Also what the norm scales and shifts."""
    HALF: tl.constexpr = HIDDEN // 2
    half, columns = tl.arange(0, HALF), tl.arange(0, WIDTH)
    # (32, 64) and (64, 32): halves of the two matrices, turned
    inner = half[None, :] * WIDTH + columns[:, None]
    outer = columns[None, :] * HIDDEN + half[:, None]
    in_near, in_far = tl.load(w1 + inner).to(TYPE), tl.load(w1 + HALF * WIDTH + inner).to(TYPE)
    out_near, out_far = tl.load(w2 + outer).to(TYPE), tl.load(w2 + HALF + outer).to(TYPE)
    # (vectors are read where they are used: kept, they would cost a third of the registers)
    key = stream_key(seed, STREAM)
    count, mean = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS, WIDTH), tl.float32)
    squares = tl.zeros((ROWS, WIDTH), tl.float32)
    for number in range(tl.program_id(0), tl.cdiv(n_rows, ROWS), tl.num_programs(0)):
        rows = tl.cast(number, tl.int64) * ROWS + tl.arange(0, ROWS)
        valid = rows < n_rows
        added = tile(attended, rows, valid)
        z = tile(sums, rows, valid) * vector(scale) + vector(shift) + added
        z = ((z - vector(norm_mean)) * vector(norm_deviation)).to(TYPE)
        if TRAIN:
            put_tile(normal_sums, rows, valid, z)
        x = (z.to(tl.float32) * vector(norm_weight) + vector(norm_bias)).to(TYPE)
        near = tl.dot(x, in_near, input_precision="ieee") + tl.load(b1 + half)[None, :]
        near = near * normal(near, FAST)[0]
        far = tl.dot(x, in_far, input_precision="ieee") + tl.load(b1 + HALF + half)[None, :]
        far = far * normal(far, FAST)[0]
        if DROP:
            bits = words(row_key(key, rows)[:, None], column_key(key, half)[None, :])
            near, far = kept(bits, limit, near, FAST), kept(bits << 16, limit, far, FAST)
        found = tl.dot(near.to(TYPE), out_near, input_precision="ieee")
        found = tl.dot(far.to(TYPE), out_far, found, input_precision="ieee")
        found = (found * drop_gain + vector(b2) + added).to(TYPE)
        put_tile(out, rows, valid, found)
        if TRAIN:
            count, mean, squares = seen(count, mean, squares, found.to(tl.float32), valid)
    if TRAIN:
        put_statistics(partials, count, mean, squares)


@triton.jit
def transform_backward(
    normal_sums, norm_weight, norm_bias, out, d_out, c0, c1, c2, w1, b1, w2, seed, d_sums, d_normal, partials,
    n_rows, limit, drop_gain,
    TYPE: tl.constexpr, ROWS: tl.constexpr, STREAM: tl.constexpr, DROP: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Gradients of the second sum, of the normalised first one (in two parts, to be added), and of the weights.

    Each program takes half of the hidden numbers, 32 and their partners in dropout 64 further on. Of the first
    matrix it sums d_hidden.T @ normal_sums, from which follow the gradient of the matrix and
    all that the normalisation below needs.
    """
    HALF: tl.constexpr = HIDDEN // 2
    CHUNK: tl.constexpr = HIDDEN // 4
    side = tl.program_id(1)
    chunk, columns = side * CHUNK + tl.arange(0, CHUNK), tl.arange(0, WIDTH)
    inner = chunk[None, :] * WIDTH + columns[:, None]  # (32, 32), both
    outer = columns[:, None] * HIDDEN + chunk[None, :]
    in_near, in_far = tl.load(w1 + inner).to(TYPE), tl.load(w1 + HALF * WIDTH + inner).to(TYPE)
    out_near = (tl.load(w2 + outer) * drop_gain).to(TYPE)
    out_far = (tl.load(w2 + HALF + outer) * drop_gain).to(TYPE)
    # (vectors are read where they are used: kept, they would cost a third of the registers)
    key = stream_key(seed, STREAM)
    d_in_near, d_in_far = tl.zeros((WIDTH, CHUNK), tl.float32), tl.zeros((WIDTH, CHUNK), tl.float32)
    d_out_near, d_out_far = tl.zeros((WIDTH, CHUNK), tl.float32), tl.zeros((WIDTH, CHUNK), tl.float32)
    ones = tl.full((16, ROWS), 1.0, TYPE)  # sums over rows, by the matrix units
    d_b_near, d_b_far = tl.zeros((16, CHUNK), tl.float32), tl.zeros((16, CHUNK), tl.float32)
    d_normal += tl.cast(side, tl.int64) * n_rows * WIDTH
    for number in range(tl.program_id(0), tl.cdiv(n_rows, ROWS), tl.num_programs(0)):
        rows = tl.cast(number, tl.int64) * ROWS + tl.arange(0, ROWS)
        valid = rows < n_rows
        z = tile(normal_sums, rows, valid)
        x = (z * vector(norm_weight) + vector(norm_bias)).to(TYPE)
        z = z.to(TYPE)
        given = tile(d_out, rows, valid) * vector(c0) + tile(out, rows, valid) * vector(c1) + vector(c2)
        given = tl.where(valid[:, None], given, 0.0).to(TYPE)
        if side == 0:
            put_tile(d_sums, rows, valid, given)
        if DROP:
            bits = words(row_key(key, rows)[:, None], column_key(key, chunk)[None, :])
        found = tl.zeros((ROWS, WIDTH), tl.float32)
        for part in tl.static_range(2):
            into, outof = (in_near, out_near) if part == 0 else (in_far, out_far)
            h = tl.dot(x, into, input_precision="ieee") + tl.load(b1 + part * HALF + chunk)[None, :]
            share, bell = normal(h, FAST)
            slope = share + h * bell * 0.3989422804
            if DROP:
                chosen = (bits << 16) if part == 1 else bits
                share, slope = kept(chosen, limit, share, FAST), kept(chosen, limit, slope, FAST)
            active = h * share
            small = (tl.dot(given, outof, input_precision="ieee") * slope).to(TYPE)
            if part == 0:
                d_b_near = tl.dot(ones, small, d_b_near, input_precision="ieee")
                d_out_near = tl.dot(tl.trans(given), active.to(TYPE), d_out_near, input_precision="ieee")
                d_in_near = tl.dot(tl.trans(z), small, d_in_near, input_precision="ieee")
            else:
                d_b_far = tl.dot(ones, small, d_b_far, input_precision="ieee")
                d_out_far = tl.dot(tl.trans(given), active.to(TYPE), d_out_far, input_precision="ieee")
                d_in_far = tl.dot(tl.trans(z), small, d_in_far, input_precision="ieee")
            found = tl.dot(small, tl.trans(into), found, input_precision="ieee")
        put_tile(d_normal, rows, valid, found)
    place = partials + tl.program_id(0) * (2 * HIDDEN * WIDTH + HIDDEN)
    tl.store(place + inner, d_in_near)
    tl.store(place + HALF * WIDTH + inner, d_in_far)
    place += HIDDEN * WIDTH
    tl.store(place + outer, d_out_near * drop_gain)
    tl.store(place + HALF + outer, d_out_far * drop_gain)
    place += HIDDEN * WIDTH
    tl.store(place + chunk, tl.sum(d_b_near, 0) / 16)
    tl.store(place + HALF + chunk, tl.sum(d_b_far, 0) / 16)


# ----------------------------------------------------------------------------------------- batch normalisation
@triton.jit
def settle(
    partials, weight, bias, running_mean, running_variance, n_seen, settled,
    n_partials, eps, momentum, CHUNK: tl.constexpr,
):  # fmt: skip
    """Partial counts, means and squares -> scale, shift, mean, 1/deviation (4, 32); and the running statistics."""
    columns, chunk = tl.arange(0, WIDTH), tl.arange(0, CHUNK)
    total, weighted = tl.zeros((WIDTH,), tl.float32), tl.zeros((WIDTH,), tl.float32)
    for first in range(0, n_partials, CHUNK):
        there = (first + chunk)[:, None] < n_partials
        place = partials + (first + chunk)[:, None] * 3 * WIDTH + columns[None, :]
        counts = tl.load(place, mask=there, other=0.0)
        total += tl.sum(counts, 0)
        weighted += tl.sum(counts * tl.load(place + WIDTH, mask=there, other=0.0), 0)
    mean = weighted / total
    squares = tl.zeros((WIDTH,), tl.float32)
    for first in range(0, n_partials, CHUNK):
        there = (first + chunk)[:, None] < n_partials
        place = partials + (first + chunk)[:, None] * 3 * WIDTH + columns[None, :]
        away = tl.load(place + WIDTH, mask=there, other=0.0) - mean[None, :]
        counts = tl.load(place, mask=there, other=0.0)
        squares += tl.sum(tl.load(place + 2 * WIDTH, mask=there, other=0.0) + counts * away * away, 0)
    variance = squares / total
    deviation = 1.0 / tl.sqrt(variance + eps)
    scale = tl.load(weight + columns) * deviation
    tl.store(settled + columns, scale)
    tl.store(settled + WIDTH + columns, tl.load(bias + columns) - mean * scale)
    tl.store(settled + 2 * WIDTH + columns, mean)
    tl.store(settled + 3 * WIDTH + columns, deviation)
    old = tl.load(running_mean + columns)
    tl.store(running_mean + columns, old + momentum * (mean - old))
    old = tl.load(running_variance + columns)
    unbiased = squares / (total - 1.0)
    tl.store(running_variance + columns, old + momentum * (unbiased - old))
    tl.store(n_seen, tl.load(n_seen) + 1)


@triton.jit
def settle_backward(
    partials, settled, coefficients, d_weight, d_bias, n_partials, n_rows, FIRST: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Partial sums of dy and dy * z -> c0, c1, c2 with d_input = c0 dy + c1 t + c2; gradients of weight and bias.

    t is the second sum as it is, and the first one normalised: so are they kept.
    """
    columns, chunk = tl.arange(0, WIDTH), tl.arange(0, CHUNK)
    item, other = tl.zeros((WIDTH,), tl.float32), tl.zeros((WIDTH,), tl.float32)
    for first in range(0, n_partials, CHUNK):
        there = (first + chunk)[:, None] < n_partials
        place = partials + (first + chunk)[:, None] * 2 * WIDTH + columns[None, :]
        item += tl.sum(tl.load(place, mask=there, other=0.0), 0)
        other += tl.sum(tl.load(place + WIDTH, mask=there, other=0.0), 0)
    scale, mean = tl.load(settled + columns), tl.load(settled + 2 * WIDTH + columns)
    deviation = tl.load(settled + 3 * WIDTH + columns)
    slope = -scale * other / n_rows
    level = -scale * item / n_rows
    if FIRST:
        slope *= deviation
        level -= slope * mean
    tl.store(coefficients + columns, scale)
    tl.store(coefficients + WIDTH + columns, slope)
    tl.store(coefficients + 2 * WIDTH + columns, level)
    if not FIRST:  # both sums of a layer share one normalisation
        other += tl.load(d_weight + columns)
        item += tl.load(d_bias + columns)
    tl.store(d_weight + columns, other)
    tl.store(d_bias + columns, item)


@triton.jit
def normalise(sums, scale, shift, out, n_rows, TYPE: tl.constexpr, ROWS: tl.constexpr):
    """scale * sums + shift."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    valid = rows < n_rows
    put_tile(out, rows, valid, tile(sums, rows, valid) * vector(scale) + vector(shift))


@triton.jit
def normalise_backward(sums, d_out, mean, deviation, partials, n_rows, ROWS: tl.constexpr):
    """Sums of dy and of dy * (input - mean) / deviation, for the last normalisation."""
    item, other = tl.zeros((ROWS, WIDTH), tl.float32), tl.zeros((ROWS, WIDTH), tl.float32)
    for number in range(tl.program_id(0), tl.cdiv(n_rows, ROWS), tl.num_programs(0)):
        rows = tl.cast(number, tl.int64) * ROWS + tl.arange(0, ROWS)
        valid = rows < n_rows
        given = tile(d_out, rows, valid)
        item += given
        other += given * (tile(sums, rows, valid) - vector(mean)) * vector(deviation)
    put_sums(partials, tl.sum(item, 0), tl.sum(other, 0))
