"""What the Triton kernels of PatchTST share: sizes, dropout, the normal distribution, tiles, statistics.

Next: patchtst_triton_kernels.py.
"""
# mypy: ignore-errors
# (the language below is Triton's, which only looks like Python)

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
WIDTH: tl.constexpr = tl.constexpr(32)  # d_model
HEAD: tl.constexpr = tl.constexpr(8)
N_HEADS: tl.constexpr = tl.constexpr(4)
PADDED: tl.constexpr = tl.constexpr(16)  # a head, for the matrix units
HIDDEN: tl.constexpr = tl.constexpr(128)  # d_ff
SCORE_SCALE: tl.constexpr = tl.constexpr(
    0.5100697233
)  # log2(e) / sqrt(8): exp(q k / sqrt(8)) as a power of 2
ROOT_OF_HEAD: tl.constexpr = tl.constexpr(0.35355339059)  # 1 / sqrt(8)
LN_2: tl.constexpr = tl.constexpr(0.69314718056)


# ---------------------------------------------------------------------------------------------------------- dropout
@triton.jit
def scramble(x):
    """A bijection of 32 bits in which every bit depends on every other (the end of MurmurHash3)."""
    x = x ^ (x >> 16)
    x = x * 0x85EBCA6B
    x = x ^ (x >> 13)
    x = x * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def stream_key(seed, STREAM: tl.constexpr):
    """One key per call and layer, from the 64 bits that torch drew."""
    bits = tl.load(seed)
    high, low = (bits >> 32).to(tl.uint32), bits.to(tl.uint32)
    return scramble(low ^ scramble(high + STREAM))


@triton.jit
def part_key(key, part):
    """One key per window and head."""
    return scramble(key + tl.cast(part, tl.uint32) * 0x9E3779B9)


@triton.jit
def row_key(key, index):
    """One key per query, or row of a tile."""
    return scramble(key + (index.to(tl.uint32) + 1) * 0x85EBCA77)


@triton.jit
def column_key(key, index):
    """One key per pair of columns."""
    return scramble((key ^ 0xA511E9B3) + (index.to(tl.uint32) + 1) * 0xC2B2AE3D)


@triton.jit
def words(rows, columns):
    """32 random bits for two decisions: the upper half for one element, the lower for another."""
    x = (rows ^ columns) * 0x9E3779B1
    x = x ^ (x >> 15)
    return x * 0x85EBCA77


@triton.jit
def kept(bits, limit, values, FAST: tl.constexpr):
    """Values whose bits reach the limit, 0 elsewhere."""
    limit = tl.cast(limit, tl.uint32)
    if FAST:  # left to itself, the compiler rounds first and then picks 16 bits at a time, at twice the cost
        return tl.inline_asm_elementwise(
            "{.reg .pred p; setp.ge.u32 p, $1, $2; selp.f32 $0, $3, 0f00000000, p;}", "=f,r,r,f",
            [bits, limit, values], tl.float32, True, 1,
        )  # fmt: skip
    else:
        return tl.where(bits >= limit, values, 0.0)


# ------------------------------------------------------------------------------------------------ small pieces
@triton.jit
def power_of_2(x, FAST: tl.constexpr):
    """2^x, by the special units."""
    if FAST:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    else:
        return tl.exp2(x)


@triton.jit
def reciprocal(x, FAST: tl.constexpr):
    """1 / x, by the special units."""
    if FAST:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    else:
        return 1.0 / x


@triton.jit
def normal(h, FAST: tl.constexpr):
    """Phi(h) = (1 + erf(h / sqrt 2)) / 2 and exp(-h^2 / 2); erf to 1.5e-7 (Abramowitz and Stegun 7.1.26)."""
    bell = power_of_2(h * h * (-0.5 * LOG2_E), FAST)
    t = reciprocal(tl.abs(h) * 0.23164189 + 1.0, FAST)
    tail = t * (
        0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)))
    )
    tail = tail * bell
    return tl.where(h >= 0, 1.0 - tail, tail), bell


@triton.jit
def tile(pointer, rows, valid):
    """Rows of 32 numbers, in float32; those beyond the end are 0."""
    columns = tl.arange(0, WIDTH)
    return tl.load(pointer + rows[:, None] * WIDTH + columns[None, :], mask=valid[:, None], other=0.0).to(
        tl.float32
    )


@triton.jit
def put_tile(pointer, rows, valid, values):
    """The way back of `tile`."""
    columns = tl.arange(0, WIDTH)
    tl.store(pointer + rows[:, None] * WIDTH + columns[None, :], values, mask=valid[:, None])


@triton.jit
def vector(pointer):
    """32 numbers, as a row."""
    return tl.load(pointer + tl.arange(0, WIDTH))[None, :]


@triton.jit
def head_weight(weight, head, SIZE: tl.constexpr, TYPE: tl.constexpr):
    """(32, SIZE): the columns of one head of x @ weight.T, with zeros beyond its 8."""
    wide, slim = tl.arange(0, WIDTH), tl.arange(0, SIZE)
    pointers = weight + (head * HEAD + slim[None, :]) * WIDTH + wide[:, None]
    return tl.load(pointers, mask=slim[None, :] < HEAD, other=0.0).to(TYPE)


@triton.jit
def head_bias(bias, head, SIZE: tl.constexpr):
    """The bias that belongs to `head_weight`."""
    slim = tl.arange(0, SIZE)
    return tl.load(bias + head * HEAD + slim, mask=slim < HEAD, other=0.0)[None, :]


@triton.jit
def seen(count, mean, squares, values, valid):
    """Running count, mean and sum of squared deviations of every place in a tile, with one more tile (Welford)."""
    count = tl.where(valid, count + 1.0, count)
    away = tl.where(valid[:, None], values - mean, 0.0)
    mean += away / tl.maximum(count, 1.0)[:, None]
    return count, mean, squares + away * (values - mean)


@triton.jit
def put_statistics(partials, count, mean, squares):
    """The places of a tile as one: count, mean and squares of each column (Chan et al.)."""
    total = tl.sum(count, 0)
    middle = tl.sum(mean * count[:, None], 0) / total
    away = mean - middle[None, :]
    place = partials + tl.program_id(0) * 3 * WIDTH + tl.arange(0, WIDTH)
    tl.store(place, tl.zeros((WIDTH,), tl.float32) + total)
    tl.store(place + WIDTH, middle)
    tl.store(place + 2 * WIDTH, tl.sum(squares + count[:, None] * away * away, 0))


@triton.jit
def put_sums(partials, item, other):
    """Two sums a column, of this program."""
    place = partials + tl.program_id(0) * 2 * WIDTH + tl.arange(0, WIDTH)
    tl.store(place, item)
    tl.store(place + WIDTH, other)


@triton.jit
def head_tile(pointer, rows, head, valid, SIZE: tl.constexpr):
    """(rows, SIZE): the numbers of one head, with zeros beyond its 8."""
    slim = tl.arange(0, SIZE)
    place = pointer + rows[:, None] * WIDTH + head * HEAD + slim[None, :]
    return tl.load(place, mask=valid[:, None] & (slim[None, :] < HEAD), other=0.0)


@triton.jit
def put_head(pointer, rows, head, valid, values):
    """The way back of `head_tile`, for 8 numbers."""
    slim = tl.arange(0, HEAD)
    tl.store(pointer + rows[:, None] * WIDTH + head * HEAD + slim[None, :], values, mask=valid[:, None])
