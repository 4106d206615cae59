"""The inner loops of the search for cases: products of bytes, lists under a cap a group, exact similarities.

    keys (n, d) -> packed whole numbers, scales, residuals          `pack_keys`, `fill_lanes`
    packed keys and queries -> values (n_rows, n_columns), coarse    `largest_of_cases`, or `reduce_products`
    values, their errors -> cases worth a closer look                `first_lists`, `further_cases`
    pairs of a query and a case -> similarity in float64, key        `exact_pairs`
    the same -> lists                                                `final_lists`

A *column* is a case, in the order in which keys were packed; `LANES` columns side by side are a *bundle*. A value
is the similarity of the best key of a case, up to an error that is known:

    |value - similarity| <= a r + b h + c + e h^2       a, b, c of the row; r, h of the column; e of the measure

What the error rules out is never looked at again; what it does not is computed in float64. So lists are exact.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from raxss._core.threads import compiled, compiled_sum
from raxss._core.vector_code import VectorEmitter, processor_features

LANES = 16  # cases side by side in one register
ROWS = 8  # queries that share what is loaded of the keys
VECTORS = 3  # keys of a case at once: ROWS x VECTORS sums stay in registers
LEVELS = 127  # a component is a whole number up to this, times the scale of its vector
WORD = 4  # components in one lane
GRID = 2.0**-32  # cosine similarities are rounded to it, so that equals tie however they were summed
MOST_COMPONENTS = 2**15  # sums of products of bytes then fit into 32 bits
HAS_BYTE_PRODUCTS = {"avx512f", "avx512bw", "avx512vnni"} <= processor_features()

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Whole = NDArray[np.int64]

_BYTE_PRODUCTS = "llvm.x86.avx512.vpdpbusd.512"  # adds 4 products of bytes, unsigned by signed, to each sum
_int: Any = np.int64  # numbers that are written out have types of their own, and calls would compile for each
_INDEX, _PLACE = ir.IntType(64), ir.IntType(32)
_ROUNDER = 1.5 * 2.0**52 * GRID  # adding and subtracting it leaves a multiple of GRID


# ------------------------------------------------------------------------------------- products of whole numbers


def _tile(n_vectors: int) -> Any:
    """The largest of ``n_vectors`` keys of each of LANES cases, for ROWS queries, into ``best``."""

    def tile(
        typing_context: Any,
        words: Any,  # of keys: of each vector (n_words, LANES)
        scales: Any,  # of each vector (LANES,)
        shifts: Any,  # likewise
        vector: Any,  # the first
        query_words: Any,  # of each block of ROWS queries (n_words, ROWS)
        query_starts: Any,  # (n_rows,)
        query_scales: Any,  # (n_rows,)
        row: Any,  # the first
        n_words: Any,
        best: Any,  # (ROWS, LANES) in and out
    ) -> Any:
        given = (words, scales, shifts, vector, query_words, query_starts, query_scales, row, n_words, best)

        def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            whole = VectorEmitter(context, builder, ir.IntType(32), LANES)
            do = VectorEmitter(context, builder, ir.FloatType(), LANES)
            vector, row, n_words = values[3], values[7], values[8]
            lanes, rows = ir.Constant(_INDEX, LANES), ir.Constant(_INDEX, ROWS)

            def at(emitter: VectorEmitter, which: int, *offsets: Any) -> Any:
                return emitter.address(signature.args[which], values[which], *offsets)

            length = builder.mul(n_words, lanes)
            keys = [at(whole, 0, builder.mul(vector, length))]
            for _ in range(1, n_vectors):
                keys.append(whole.advance(keys[-1], length))
            queries = at(whole, 4, builder.mul(row, n_words))
            sums = []
            for other in range(ROWS):
                start = whole.spread(builder.load(at(whole, 5, row, other)))
                sums.append([cgutils.alloca_once_value(builder, start) for _ in keys])
            with cgutils.for_range(builder, n_words, intp=_INDEX) as word:
                offset = builder.mul(word.index, lanes)
                vectors = [whole.load(whole.advance(key, offset)) for key in keys]
                line = whole.advance(queries, builder.mul(word.index, rows))
                for other in range(ROWS):
                    query = whole.spread(builder.load(whole.advance(line, other)))
                    for key, total in zip(vectors, sums[other], strict=True):
                        terms = [builder.load(total), key, query]
                        builder.store(whole.call(_BYTE_PRODUCTS, whole.vector, terms), total)
            first = builder.mul(vector, lanes)
            for other in range(ROWS):
                place = at(do, 9, other * LANES)
                largest, factor = do.load(place), do.spread(builder.load(at(do, 6, row, other)))
                for which, total in enumerate(sums[other]):
                    value = builder.sitofp(builder.load(total), do.vector)
                    value = builder.fmul(value, do.load(at(do, 1, first, which * LANES)))
                    value = do.fused(value, factor, do.load(at(do, 2, first, which * LANES)))
                    largest = do.larger(value, largest)
                do.store(largest, place)
            return context.get_dummy_value()

        return types.void(*given), emit

    return intrinsic(tile)


_one, _two, _three = (_tile(n_vectors) for n_vectors in (1, 2, 3))


@intrinsic  # type: ignore[untyped-decorator]
def _finish(typing_context: Any, best: Any, at: Any, base: Any, out: Any, out_at: Any) -> Any:
    """Put best + base, LANES of them; return their largest."""
    signature = types.float32(best, at, base, out, out_at)

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        do = VectorEmitter(context, builder, ir.FloatType(), LANES)
        vector = do.load(do.address(signature.args[0], values[0], values[1]))
        vector = builder.fadd(vector, do.spread(values[2]))
        do.store(vector, do.address(signature.args[3], values[3], values[4]))
        for half in (8, 4, 2, 1):
            vector = do.larger(vector, do.shuffle(vector, vector, [lane ^ half for lane in range(LANES)]))
        return builder.extract_element(vector, ir.Constant(_PLACE, 0))

    return signature, emit


class Packed(NamedTuple):
    """Keys as whole numbers, by bundle: of each of LANES cases the first key, then the second, ..."""

    words: NDArray[np.uint32]  # (n_vectors * n_words * LANES,)
    scales: Singles  # (n_vectors * LANES,) a key is its whole numbers times its scale, plus the centre
    shifts: Singles  # (n_vectors * LANES,) -|key|^2 for distances, else 0
    starts: Whole  # (n_bundles + 1,) vectors of each bundle


class PackedQueries(NamedTuple):
    """Queries as whole numbers, by blocks of ROWS."""

    words: NDArray[np.uint32]  # (n_blocks * n_words * ROWS,)
    starts: NDArray[np.int32]  # (n_rows,) what takes back that bytes of keys are stored 128 too high
    scales: Singles  # (n_rows,)
    bases: Singles  # (n_rows,) to be added to every value


@compiled
def largest_of_cases(
    keys: Packed,
    queries: PackedQueries,
    n_words: int,
    first: int,  # row; divides by ROWS
    values: Singles,  # (n_rows, n_columns), flat, out
    coarse: Singles,  # (n_rows, n_bundles) out: the largest of a bundle
) -> None:
    """Values of some rows: of each case the largest over its keys."""
    n_rows, n_bundles = coarse.shape
    best = np.empty(ROWS * LANES, np.float32)
    words, scales, shifts, starts = keys
    query_words, query_starts, query_scales, bases = queries
    for bundle in range(n_bundles):
        for row in range(first, first + n_rows, ROWS):
            best[:] = -np.inf
            vector, end = starts[bundle], starts[bundle + 1]
            rest = (query_words, query_starts, query_scales, row, n_words, best)
            while vector < end:
                if end - vector >= VECTORS:
                    _three(words, scales, shifts, vector, *rest)
                elif end - vector == 2:
                    _two(words, scales, shifts, vector, *rest)
                else:
                    _one(words, scales, shifts, vector, *rest)
                vector += VECTORS
            for other in range(ROWS):
                place = row - first + other
                out = (place * n_bundles + bundle) * LANES
                coarse[place, bundle] = _finish(best, other * LANES, bases[row + other], values, out)


@compiled_sum
def norms_of(vectors: NDArray[Any], norms: Floats) -> None:
    """Euclidean norms in float64 of rows in any precision; infinite or NaN where a row is not finite."""
    for row in range(len(vectors)):
        total = 0.0
        for k in range(vectors.shape[1]):
            total += np.float64(vectors[row, k]) * np.float64(vectors[row, k])
        norms[row] = np.sqrt(total)


@compiled_sum
def pack_keys(
    keys: Singles,  # (n, d)
    norms: Floats,  # (n,)
    unit: bool,  # whether keys are divided by their norms
    centre: Floats,  # (d,)
    places: Whole,  # (n,) where its scale goes: vector * LANES + lane
    packed: Packed,  # out
    residuals: Floats,  # (n,) out: |k' - scale * whole numbers|
    lengths: Floats,  # (n,) out: |scale * whole numbers|
) -> None:
    """Put keys as whole numbers, and say how far these are off: k' = k / |k| - centre, or k - centre."""
    n, d = keys.shape
    n_words = (d + WORD - 1) // WORD
    bytes_ = np.zeros(n_words * WORD, np.uint32)
    values = np.zeros(d)
    for row in range(n):
        gain = 1.0
        if unit:
            gain = 0.0 if norms[row] == 0.0 else 1.0 / norms[row]
        largest, squares = 0.0, 0.0
        for k in range(d):
            values[k] = keys[row, k] * gain - centre[k]
            squares += values[k] * values[k]
            largest = max(largest, abs(values[k]))
        scale = np.float64(np.float32(largest / LEVELS))
        inverse = 1.0 / scale if scale > 0.0 else 0.0
        off, length = 0.0, 0.0
        for k in range(d):
            level = np.rint(min(max(values[k] * inverse, -127.0), 127.0))
            off += (values[k] - scale * level) ** 2
            length += level * level
            bytes_[k] = np.uint32(np.int32(level) + 128)
        for k in range(d, n_words * WORD):
            bytes_[k] = 128
        residuals[row], lengths[row] = np.sqrt(off), scale * np.sqrt(length)
        packed.scales[places[row]] = scale
        packed.shifts[places[row]] = 0.0 if unit else -squares
        vector, lane = places[row] // LANES, places[row] % LANES
        at = vector * n_words * LANES + lane
        for word in range(n_words):
            four = bytes_[WORD * word : WORD * word + WORD]
            packed.words[at + word * LANES] = (
                four[0] | (four[1] << np.uint32(8)) | (four[2] << np.uint32(16)) | (four[3] << np.uint32(24))
            )


@compiled
def fill_lanes(packed: Packed, n_words: int, counts: Whole) -> None:
    """Where a case has fewer keys than others of its bundle, repeat its last; counts: keys of each column."""
    for column in range(len(counts)):
        bundle, lane = column // LANES, column % LANES
        first, end = packed.starts[bundle], packed.starts[bundle + 1]
        if counts[column] == 0:
            continue
        last = first + counts[column] - 1
        for vector in range(last + 1, end):
            packed.scales[vector * LANES + lane] = packed.scales[last * LANES + lane]
            packed.shifts[vector * LANES + lane] = packed.shifts[last * LANES + lane]
            for word in range(n_words):
                at, source = (vector * n_words + word) * LANES + lane, (last * n_words + word) * LANES + lane
                packed.words[at] = packed.words[source]


@compiled_sum
def pack_queries(
    queries: Floats,  # (n, d) unit vectors, or centred ones
    packed: PackedQueries,  # out
    residuals: Floats,  # (n,) out
) -> None:
    """Put queries as whole numbers; rows beyond the last are zeros."""
    n, d = queries.shape
    n_words = (d + WORD - 1) // WORD
    for row in range(n):
        largest = 0.0
        for k in range(d):
            largest = max(largest, abs(queries[row, k]))
        scale = np.float64(np.float32(largest / LEVELS))
        inverse = 1.0 / scale if scale > 0.0 else 0.0
        off, total = 0.0, 0
        at = row // ROWS * ROWS * n_words + row % ROWS
        for word in range(n_words):
            bits = np.uint32(0)
            for k in range(word * WORD, min((word + 1) * WORD, d)):
                level = np.rint(min(max(queries[row, k] * inverse, -127.0), 127.0))
                off += (queries[row, k] - scale * level) ** 2
                total += _int(level)
                bits |= np.uint32(np.int64(level) & 255) << np.uint32((k - word * WORD) * 8)
            packed.words[at + word * ROWS] = bits
        packed.starts[row] = -128 * total
        packed.scales[row] = scale
        residuals[row] = np.sqrt(off)


@compiled
def reduce_products(
    products: Singles,  # (n_rows, n_keys) with some keys, those of a case side by side
    starts: Whole,  # (n_cases + 1,) of the cases among them
    first_column: int,
    gains: Floats,  # (n_keys,) by which products are multiplied
    shifts: Floats,  # (n_keys,) what is then added
    bases: Singles,  # (n_rows,) to be added to every value
    values: Singles,  # (n_rows, n_columns) out
) -> None:
    """Values from plain products: of each case the largest over its keys."""
    for row in range(len(products)):
        for case in range(len(starts) - 1):
            best = -np.inf
            for key in range(starts[case], starts[case + 1]):
                best = max(best, products[row, key] * gains[key] + shifts[key])
            values[row, first_column + case] = best + bases[row]


@compiled
def reduce_bundles(values: Singles, coarse: Singles) -> None:
    """The largest value of each bundle."""
    for row in range(len(values)):
        for bundle in range(coarse.shape[1]):
            best = np.float32(-np.inf)
            for column in range(bundle * LANES, (bundle + 1) * LANES):
                best = max(best, values[row, column])
            coarse[row, bundle] = best


# ------------------------------------------------------------------------------------------ which cases are listed


class Columns(NamedTuple):
    """The cases by column, and what is known of them; padding has the case -1."""

    cases: Whole  # (n_columns,)
    places: Whole  # (n_cases,) the column of each case
    groups: Whole  # (n_cases,)
    local: NDArray[np.bool_]  # (n_cases,) of the local site
    local_cases: Whole
    residuals: Floats  # (n_columns,) r
    lengths: Floats  # (n_columns,) h
    bundle_residuals: Floats  # (n_bundles,) the largest
    bundle_lengths: Floats


class Errors(NamedTuple):
    """Of values: a r + b h + c + e h^2."""

    a: Floats  # (n_rows,)
    b: Floats
    c: Floats
    e: float


class Rules(NamedTuple):
    """What may be listed for whom. Lists of cases are cut out of one array by starts."""

    most_a_group: int
    groups: Whole  # (n_rows,) of queries; -1 where unknown
    series: Whole  # (n_rows,)
    own_starts: Whole  # (n_groups + 1,)
    own_cases: Whole  # cases of each group
    excluded_starts: Whole  # (n_series + 1,)
    excluded_cases: Whole  # cases that a series must not see


class Entries(NamedTuple):
    """The list of one query while it is made, in no order."""

    tiers: Whole  # (m,) 1: local site
    values: Floats
    cases: Whole
    groups: Whole
    keys: Whole


@compiled
def new_entries(n_listed: int) -> Entries:
    """Room for a list."""
    return Entries(
        np.empty(n_listed, np.int64),
        np.empty(n_listed),
        np.empty(n_listed, np.int64),
        np.empty(n_listed, np.int64),
        np.empty(n_listed, np.int64),
    )


@compiled
def _better(tier: int, value: float, case: int, entries: Entries, place: int) -> bool:
    """Local first, then the more similar, then the earlier."""
    if tier != entries.tiers[place]:
        return tier > entries.tiers[place]
    if value != entries.values[place]:
        return value > entries.values[place]
    return case < entries.cases[place]


@compiled
def _worst(entries: Entries, n: int, group: int) -> int:
    """The place of the worst entry, of a group or (-1) of all; -1 where there is none."""
    worst = -1
    for place in range(n):
        if (group == -1 or entries.groups[place] == group) and (
            worst == -1
            or _better(entries.tiers[worst], entries.values[worst], entries.cases[worst], entries, place)
        ):
            worst = place
    return worst


@compiled
def _count(entries: Entries, n: int, group: int) -> int:
    total = 0
    for place in range(n):
        total += entries.groups[place] == group
    return total


@compiled
def offer(
    entries: Entries, n: int, most_a_group: int, tier: int, value: float, case: int, group: int, key: int
) -> int:
    """Put a case into a list if it belongs there; return how many are listed now.

    Lists under a cap a group are the independent sets of a matroid, so the order of arrival does not matter: a
    new case replaces the worst of what keeps it out, its group or the whole list, if it is better.
    """
    if _count(entries, n, group) >= most_a_group:
        place = _worst(entries, n, group)
    elif n < len(entries.values):
        place = n
    else:
        place = _worst(entries, n, _int(-1))
    if place == n:
        n += 1
    elif not _better(tier, value, case, entries, place):
        return n
    entries.tiers[place], entries.values[place], entries.cases[place] = tier, value, case
    entries.groups[place], entries.keys[place] = group, key
    return n


@compiled
def _error(a: float, b: float, c: float, e: float, residual: float, length: float) -> float:
    return a * residual + b * length + c + e * length * length


@compiled
def exclude(
    values: Singles,  # (n_rows, n_columns) in and out: -inf where a case must not be listed
    columns: Columns,
    rules: Rules,
    n_own: Whole,  # (n_rows,) out: cases of the own group
    n_others: Whole,  # (n_rows,) out: further ones that were excluded
) -> None:
    """Take out the cases of each query's own group, and those that its series must not see."""
    for row in range(len(values)):
        group, series = rules.groups[row], rules.series[row]
        n_own[row], n_others[row] = 0, 0
        if group >= 0:
            for place in range(rules.own_starts[group], rules.own_starts[group + 1]):
                values[row, columns.places[rules.own_cases[place]]] = -np.inf
                n_own[row] += 1
        for place in range(rules.excluded_starts[series], rules.excluded_starts[series + 1]):
            case = rules.excluded_cases[place]
            if values[row, columns.places[case]] > -np.inf:
                values[row, columns.places[case]] = -np.inf
                n_others[row] += 1


@compiled
def first_lists(
    values: Singles,
    coarse: Singles,
    columns: Columns,
    errors: Errors,
    rules: Rules,
    listed: Whole,  # (n_rows, m) out: cases; -1 where there is none
) -> None:
    """The best cases by what their similarity is at least."""
    m, cap = listed.shape[1], rules.most_a_group
    local, other, none = _int(1), _int(0), _int(-1)
    cases, groups, residuals, lengths = columns.cases, columns.groups, columns.residuals, columns.lengths
    entries = new_entries(m)
    for row in range(len(values)):
        a, b, c, e = errors.a[row], errors.b[row], errors.c[row], errors.e
        n = _int(0)
        for case in columns.local_cases:
            column = columns.places[case]
            value = values[row, column]
            if value > -np.inf:
                low = value - _error(a, b, c, e, residuals[column], lengths[column])
                n = offer(entries, n, cap, local, low, case, groups[case], none)
        worst = _worst(entries, n, none) if n == m else none
        bar = entries.values[worst] if worst >= 0 else -np.inf
        for bundle in range(coarse.shape[1]):
            if coarse[row, bundle] < bar:
                continue
            if worst >= 0 and entries.tiers[worst] == 1:
                break
            for column in range(bundle * LANES, (bundle + 1) * LANES):
                value, case = values[row, column], cases[column]
                if value < bar or value == -np.inf or case < 0 or columns.local[case]:
                    continue
                low = value - _error(a, b, c, e, residuals[column], lengths[column])
                if low >= bar:
                    n = offer(entries, n, cap, other, low, case, groups[case], none)
                    worst = _worst(entries, n, none) if n == m else none
                    bar = entries.values[worst] if worst >= 0 else -np.inf
        for place in range(m):
            listed[row, place] = entries.cases[place] if place < n else -1


@compiled
def further_cases(
    values: Singles,
    coarse: Singles,
    columns: Columns,
    errors: Errors,
    rules: Rules,
    blank: NDArray[np.bool_],  # (n_rows,) rows whose first list is final, since they are as similar to all
    listed: Whole,  # (n_rows, m)
    similarity: Floats,  # (n_rows, m) of these, exact
    counts: Whole,  # (n_rows,) out
    found: Whole,  # out: the cases of all rows, one after another, as far as there is room
) -> int:
    """All other cases that the errors cannot rule out, and how many there are."""
    m, cap = listed.shape[1], rules.most_a_group
    local, other, none = _int(1), _int(0), _int(-1)
    cases, groups, residuals, lengths = columns.cases, columns.groups, columns.residuals, columns.lengths
    entries = new_entries(m)
    n_found = 0
    for row in range(len(values)):
        counts[row] = -n_found
        a, b, c, e = errors.a[row], errors.b[row], errors.c[row], errors.e
        n = _int(0)
        for place in range(m):
            case = listed[row, place]
            if case >= 0:
                tier = _int(columns.local[case])
                n = offer(entries, n, cap, tier, similarity[row, place], case, groups[case], none)
        worst = _worst(entries, n, none) if n == m else none
        only_local = worst >= 0 and entries.tiers[worst] == 1
        for case in columns.local_cases:
            column = columns.places[case]
            value = values[row, column]
            if value > -np.inf and not blank[row]:
                high = value + _error(a, b, c, e, residuals[column], lengths[column])
                if _may_enter(local, high, case, groups[case], entries, n, cap, worst):
                    if n_found < len(found):
                        found[n_found] = case
                    n_found += 1
        bar = entries.values[worst] if worst >= 0 else -np.inf
        for bundle in range(0 if only_local or blank[row] else coarse.shape[1]):
            residual, length = columns.bundle_residuals[bundle], columns.bundle_lengths[bundle]
            if coarse[row, bundle] + _error(a, b, c, e, residual, length) < bar:
                continue
            for column in range(bundle * LANES, (bundle + 1) * LANES):
                value, case = values[row, column], cases[column]
                high = value + _error(a, b, c, e, residuals[column], lengths[column])
                if high < bar or value == -np.inf or case < 0 or columns.local[case]:
                    continue
                if _may_enter(other, high, case, groups[case], entries, n, cap, worst):
                    if n_found < len(found):
                        found[n_found] = case
                    n_found += 1
        counts[row] += n_found
    return n_found


@compiled
def _may_enter(
    tier: int, high: float, case: int, group: int, entries: Entries, n: int, most_a_group: int, worst: int
) -> bool:
    """Whether a case that is not listed may be better than what keeps it out."""
    if worst >= 0 and not _reaches(tier, high, entries, worst):
        return False
    for place in range(n):
        if entries.cases[place] == case:
            return False
    if _count(entries, n, group) >= most_a_group:
        return _reaches(tier, high, entries, _worst(entries, n, group))
    return True


@compiled
def _reaches(tier: int, high: float, entries: Entries, place: int) -> bool:
    if tier != entries.tiers[place]:
        return tier > entries.tiers[place]
    return high >= entries.values[place]


@compiled
def final_lists(
    starts: Whole,  # (n_rows + 1,) of each row's pairs
    cases: Whole,  # (n_pairs,)
    similarity: Floats,  # (n_pairs,) exact
    keys: Whole,  # (n_pairs,)
    columns: Columns,
    most_a_group: int,
    out_cases: Whole,  # (n_rows, m) out, best first; -1 where there is none
    out_keys: Whole,  # likewise
    out_similarity: Floats,  # likewise; NaN
) -> None:
    """The lists, from all cases that could not be ruled out."""
    m = out_cases.shape[1]
    entries = new_entries(m)
    for row in range(len(out_cases)):
        n = _int(0)
        for pair in range(starts[row], starts[row + 1]):
            case = cases[pair]
            tier, group = _int(columns.local[case]), columns.groups[case]
            n = offer(entries, n, most_a_group, tier, similarity[pair], case, group, keys[pair])
        for rank in range(m):
            out_cases[row, rank], out_keys[row, rank], out_similarity[row, rank] = -1, -1, np.nan
        for place in range(n):
            rank = 0
            for other in range(n):
                rank += _better(
                    entries.tiers[other], entries.values[other], entries.cases[other], entries, place
                )
            out_cases[row, rank] = entries.cases[place]
            out_keys[row, rank] = entries.keys[place]
            out_similarity[row, rank] = entries.values[place]


# ---------------------------------------------------------------------------------------------- exact similarities


@compiled_sum
def exact_pairs(
    which: Whole,  # pairs whose case has its keys in this block
    rows: Whole,  # (n_pairs,) the query
    cases: Whole,  # (n_pairs,)
    queries: Floats,  # (n_rows, d) of norm 1 or 0 for cosine, else as they are
    block: Singles,  # (n, d) keys as they were given
    block_start: int,  # the first one's number
    norms: Floats,  # (n_keys,)
    order: Whole,  # (n_keys,) by case, then as given
    starts: Whole,  # (n_cases + 1,)
    cosine: bool,
    similarity: Floats,  # (n_pairs,) out
    keys: Whole,  # (n_pairs,) out: the best key, of equals the earliest
) -> None:
    """Similarity of the best key of a case, in float64."""
    d = block.shape[1]
    for pair in which:
        query = queries[rows[pair]]
        best, best_key = -np.inf, -1
        for place in range(starts[cases[pair]], starts[cases[pair] + 1]):
            key = block[order[place] - block_start]
            total = 0.0
            if cosine:
                for k in range(d):
                    total += query[k] * key[k]
                norm = norms[order[place]]
                total = 0.0 if norm == 0.0 else total / norm
                total = min(max((total + _ROUNDER) - _ROUNDER, -1.0), 1.0)
            else:
                for k in range(d):
                    total -= (query[k] - key[k]) ** 2
            if total > best:
                best, best_key = total, order[place]
        similarity[pair], keys[pair] = best, best_key
