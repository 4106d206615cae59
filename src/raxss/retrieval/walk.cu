// Nearest windows of every window of many series, by the recurrence of diagonal.py, in float64 and in registers.
//
//   factors of rows and columns, products of the anchors  ->  lists (n_rows, n_neighbors), best first, as keys
//
// A block owns some consecutive rows and their lists, in shared memory. Each of its warps takes segments of columns
// and walks them strip by strip, 32 * COLUMNS wide, down all rows, 8 at a time: a lane has 8 x COLUMNS pairs in
// registers,
//
//   c(i, j) = c(i-1, j-1) + sum over terms of row[i] * column[j]
//
// first the sums, as a small matrix product, then along the diagonals, which pass from lane to lane and, by way of
// `edge`, from strip to strip. Segments begin, and rows begin, with full products (anchors.cu), and so do windows
// much quieter than those before them. Similarities never leave the registers: the high half of c / |column| is
// compared with what the row's list asks for; the few that pass wait in a queue of the warp until there are 32, and
// are then rounded and listed together. So that there are few from the beginning, each warp first walks one
// strip only to see how near its columns come: see probe and first_bar.
//
// A key is the similarity on the grid of 2^-32, an integer of 34 bits, and behind it the window's place from the
// end: the larger key is the nearer window, of equals the earlier one. Lists do not depend on the order of arrival,
// so neither on which warp comes first.

#ifndef COLUMNS
#define COLUMNS 8  // of a lane
#endif
#ifndef WARPS
#define WARPS 8  // of a block
#endif
#define WIDTH (32 * COLUMNS)
#define FULL 0xffffffffu
#define PLACE_BITS 29
#define LAST_PLACE ((1LL << PLACE_BITS) - 1)
#define NO_KEY (-0x7fffffffffffffffLL - 1)
#define NO_ANCHOR (-(1LL << 61))
#define GRID 2.3283064365386963e-10  // 2^-32

extern __shared__ double shared[];

// The lists of a block and what they ask for, in shared memory. Where they lie is kept as numbers, not as pointers:
// only if it sees `shared` itself does the compiler use the fast instructions for it.
struct Lists {
    int keys_at, inverse_at, norm_at, scaled_at, where_at, bar_at;  // in doubles
    int n_neighbors, gap, reach, first_row;

    // (n_rows, n_neighbors); before there are any, (n_rows, 2 * n_neighbors) floats of probe
    __device__ __forceinline__ long long* keys() const { return (long long*)(shared + keys_at); }
    // (n_rows,) 1 / norm
    __device__ __forceinline__ double* inverse() const { return shared + inverse_at; }
    // (n_rows,)
    __device__ __forceinline__ double* norm() const { return shared + norm_at; }
    // (WARPS, 64) c / |column| of what waits to be listed
    __device__ __forceinline__ double* scaled() const { return shared + scaled_at; }
    // (WARPS, 64) its row and, in the low byte, its column in the strip
    __device__ __forceinline__ int* where() const { return (int*)(shared + where_at); }
    // (n_rows,) what the high half of c / |column| must reach
    __device__ __forceinline__ float* bar() const { return (float*)(shared + bar_at); }
};
__shared__ Lists lists;

// The high half of a double, read as a float: in the same order, and NaN stays NaN.
__device__ __forceinline__ float high(double value) { return __int_as_float(__double2hiint(value)); }

// The key of a pair, or NO_KEY if it must not be listed.
__device__ __forceinline__ long long key_of(double scaled, double inverse_row, int row, int column, int gap,
                                            int reach) {
    const double value = __dmul_rn(scaled, inverse_row);
    const double rounder = 1572864.0;  // 1.5 * 2^52 * 2^-32: adding it leaves a multiple of the grid
    long long steps = __double_as_longlong(__dadd_rn(value, rounder)) - __double_as_longlong(rounder);
    steps = min(max(steps, -(1LL << 32)), 1LL << 32);
    const int distance = abs(column - row);
    const bool eligible = distance >= gap && distance <= reach && value == value;
    return eligible ? (steps << PLACE_BITS) + (LAST_PLACE - column) : NO_KEY;
}

// List what waits, up to 32 at once, and move what is behind them to the front. A key goes down the list of its row
// from the best rank: wherever it is nearer it takes the place, and goes on with the key that it found there. So each
// rank keeps the best of all keys that ever come by, whatever their order, and warps need not wait for each other.
__device__ __noinline__ int list_waiting(int n_waiting, int strip_column) {
    const int lane = threadIdx.x & 31, at = 2 * (threadIdx.x & ~31) + lane, n_neighbors = lists.n_neighbors;
    double* scaled = lists.scaled() + at;
    int* where = lists.where() + at;
    int slot = -1;
    long long key = NO_KEY;
    __syncwarp();
    if (lane < n_waiting) {
        slot = *where >> 8;
        key = key_of(*scaled, lists.inverse()[slot], lists.first_row + slot, strip_column + (*where & 255), lists.gap,
                     lists.reach);
        if (key <= *(volatile long long*)&lists.keys()[(slot + 1) * n_neighbors - 1]) slot = -1;  // it only rises
    }
    if (slot >= 0) {
        long long* list = lists.keys() + slot * n_neighbors;
#pragma unroll 1
        for (int rank = 0; rank < n_neighbors; ++rank)
            if (key > *(volatile long long*)&list[rank]) key = min(key, atomicMax(&list[rank], key));
        // Two steps of the grid lower, since what is compared with it is not rounded yet. If two warps write at once,
        // the lower bar may stay: it lets more through, that is all.
        const long long last = *(volatile long long*)&list[n_neighbors - 1];
        const double asked = (double)((last >> PLACE_BITS) - 2) * GRID * lists.norm()[slot];
        volatile float* bar = lists.bar() + slot;
        if (last != NO_KEY) *bar = fmaxf(*bar, high(asked));
    }
    __syncwarp();
    if (lane + 32 < n_waiting) {
        *scaled = scaled[32];
        *where = where[32];
    }
    __syncwarp();
    return max(n_waiting - 32, 0);
}

// How near the columns of a strip come to a row, in `parts` groups of lanes. Lanes with pairs that are too close, or
// too far apart, say nothing.
__device__ __forceinline__ void probe(int slot, int row, const double (&scaled)[COLUMNS], int column, int part,
                                      int parts, int stride) {
    const int lane = threadIdx.x & 31, behind = row - column, before = column + COLUMNS - 1 - row;
    const bool eligible = max(-behind, -before) >= lists.gap && max(behind, before) <= lists.reach;
    float best = -1e30f;
#pragma unroll
    for (int k = 0; k < COLUMNS; ++k) best = fmaxf(best, high(scaled[k]));  // of a number and NaN, the number
    if (!eligible) best = -1e30f;
    const int lanes = 32 / parts;
    for (int apart = 1; apart < lanes; apart *= 2) best = fmaxf(best, __shfl_xor_sync(FULL, best, apart));
    if (lane % lanes == 0) ((float*)lists.keys())[slot * stride + part + lane / lanes] = best;
}

// So many groups have come so near, and each has a window: the list of the row can only ask for more.
__device__ __forceinline__ float first_bar(int slot, int n_groups, int n_neighbors) {
    const float* best = (float*)lists.keys() + slot * 2 * n_neighbors;
    float bar = -1e30f;
    for (int one = 0; one < n_groups; ++one) {
        int rank = 0;
        for (int other = 0; other < n_groups; ++other)
            rank += best[other] > best[one] || (best[other] == best[one] && other < one);
        if (rank == n_neighbors - 1) bar = best[one];
    }
    if (bar < -1e29f) return bar;
    // What the low half may have held, and two steps of the grid, since lists go by rounded similarities.
    const double value = __hiloint2double(__float_as_int(bar), 0);
    return high(value - fabs(value) * 0x1p-19 - 2.0 * GRID * lists.norm()[slot]);
}

// From the steps of 8 x COLUMNS pairs to their products: each adds to the one before it on its diagonal.
template <bool restarts_inside>
__device__ __forceinline__ void along_diagonals(double (&sums)[8][COLUMNS], const double (&edge)[8], int lane,
                                                int row_mask, bool restarts, const double* __restrict__ products,
                                                const long long* __restrict__ row_anchors,
                                                const long long* __restrict__ column_anchors, long long row,
                                                long long column) {
#pragma unroll
    for (int r = 0; r < 8; ++r) {
        if (r > 0) {
            const double left = __shfl_up_sync(FULL, sums[r - 1][COLUMNS - 1], 1);
            sums[r][0] += lane == 0 ? edge[r - 1] : left;
#pragma unroll
            for (int k = 1; k < COLUMNS; ++k) sums[r][k] += sums[r - 1][k - 1];
        }
        if (restarts_inside) {
            if (row_mask >> r & 1) {
#pragma unroll
                for (int k = 0; k < COLUMNS; ++k) sums[r][k] = products[row_anchors[r] + column + k];
            }
            if (restarts) {
#pragma unroll
                for (int k = 0; k < COLUMNS; ++k)
                    if (column_anchors[k] > NO_ANCHOR) sums[r][k] = products[column_anchors[k] + row + r];
            }
        }
    }
}

// The factors of one term: of a lane's columns, and of 8 rows.
__device__ __forceinline__ void load(double (&x)[COLUMNS], double (&f)[8], const double* x_at, const double2* f_at) {
#pragma unroll
    for (int k = 0; k < COLUMNS; ++k) x[k] = x_at[32 * k];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        const double2 two = f_at[r];
        f[2 * r] = two.x;
        f[2 * r + 1] = two.y;
    }
}

// Segments from the one around the diagonal outwards: there the best neighbors usually are, so bars rise early.
__device__ __forceinline__ int outwards(int turn, int centre, int n) {
    const int both = min(centre, n - 1 - centre);
    if (turn <= 2 * both) return turn & 1 ? centre + (turn + 1) / 2 : centre - turn / 2;
    return centre > n - 1 - centre ? n - 1 - turn : turn;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) walk(
    const double* __restrict__ columns,       // (n_strips, n_terms, COLUMNS, 32) factors of the strip's windows
    const double* __restrict__ rows,          // (n_places / 8, n_terms, 8) the same, with gain and sign
    const double* __restrict__ inverses,      // (n_places,) 1 / norm, 0 if flat, NaN if never a neighbor
    const double* __restrict__ row_inverses,  // (n_places,)
    const double* __restrict__ row_norms,     // (n_places,) infinite where a window lists nothing here
    const double* __restrict__ products,      // of the anchors
    const long long* __restrict__ row_anchors,     // (n_places,) where a row's full products lie, if it has them
    const long long* __restrict__ row_masks,       // (n_places / 8,) which rows of 8 have them
    const long long* __restrict__ column_anchors,  // (n_places,) the same of columns, or NO_ANCHOR
    const long long* __restrict__ strip_flags,     // (n_strips,) whether any column of the strip has them
    const long long* __restrict__ blocks,    // (n_blocks, 6): origin, row, n_rows, first segment, n_segments, centre
    const long long* __restrict__ segments,  // (n_segments, 3): first column, n_strips, where the edge's products lie
    double* __restrict__ edges,              // (n_blocks, WARPS, max_rows) room to work in
    long long* __restrict__ keys,            // (n_places, n_neighbors) out
    int n_terms, int n_neighbors, int gap, int reach, int max_rows) {
    __shared__ int turn;
    const long long* block = blocks + 6 * blockIdx.x;
    const long long origin = block[0];
    const int first_row = (int)block[1], n_rows = (int)block[2];
    const int n_segments = (int)block[4], centre = (int)block[5];
    const long long* my_segments = segments + 3 * block[3];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int n_tiles = (n_rows + 7) / 8;

    double* column_factors = shared + warp * WIDTH * n_terms;  // (n_terms, COLUMNS, 32) of the warp's strip
    double* row_factors = shared + WARPS * WIDTH * n_terms;    // (n_tiles, n_terms, 8)
    double* edge = edges + ((long long)blockIdx.x * WARPS + warp) * max_rows;
    if (threadIdx.x == 0) {
        lists.keys_at = WARPS * WIDTH * n_terms + max_rows * n_terms;
        lists.inverse_at = lists.keys_at + max_rows * n_neighbors;
        lists.norm_at = lists.inverse_at + max_rows;
        lists.scaled_at = lists.norm_at + max_rows;
        lists.where_at = lists.scaled_at + 64 * WARPS;
        lists.bar_at = lists.where_at + 32 * WARPS;
        lists.first_row = first_row;
        lists.n_neighbors = n_neighbors;
        lists.gap = gap;
        lists.reach = reach;
        turn = 0;
    }
    __syncthreads();
    for (int place = threadIdx.x; place < n_tiles * 8 * n_terms; place += 32 * WARPS)
        row_factors[place] = rows[((origin + first_row) >> 3) * 8 * n_terms + place];
    for (int slot = threadIdx.x; slot < max_rows; slot += 32 * WARPS) {
        const long long at = origin + first_row + slot;
        const bool lists_something = slot < n_rows && row_norms[at] < 1e300;
        lists.inverse()[slot] = lists_something ? row_inverses[at] : 0.0;
        lists.norm()[slot] = lists_something ? row_norms[at] : 0.0;
    }
    const float* bars = lists.bar();
    double* queue = lists.scaled() + 64 * warp;
    int* queue_where = lists.where() + 64 * warp;
    int n_waiting = 0;
    __syncthreads();

    // Groups of columns to probe: as many as fit into the lists' room, at most 32 of each warp.
    const int n_probing = min(n_segments, WARPS);
    int parts = 1;
    while (2 * parts * n_probing <= 2 * n_neighbors && parts < 32) parts *= 2;
    const int n_groups = parts * n_probing <= 2 * n_neighbors ? parts * n_probing : 0;

    for (int probing = 1; probing >= 0; --probing) {
        int mine = warp;
        bool first_time = true;
        while (true) {
            if (!probing) {
                if (lane == 0) mine = atomicAdd(&turn, 1);
                mine = __shfl_sync(FULL, mine, 0);
            } else if (!first_time || n_groups < n_neighbors) {
                break;
            }
            first_time = false;
            if (mine >= n_segments) break;
            const long long* segment = my_segments + 3 * outwards(mine, centre, n_segments);
            const int segment_column = (int)segment[0], n_strips = (int)segment[1];
            const double* edge_products = products + segment[2] + origin + first_row;
            for (int slot = lane; slot < n_tiles * 8; slot += 32) edge[slot] = edge_products[slot];
            if (probing && n_strips == 0 && lane < parts)
                for (int slot = 0; slot < n_rows; ++slot)
                    ((float*)lists.keys())[slot * 2 * n_neighbors + warp * parts + lane] = -1e30f;

            for (int strip = 0; strip < (probing ? min(n_strips, 1) : n_strips); ++strip) {
                const int strip_column = segment_column + WIDTH * strip;
                const long long place = (origin + strip_column) / WIDTH;  // of the strip
                const int column = strip_column + COLUMNS * lane;
                const bool restarts = strip_flags[place] != 0;
                // Are even the pairs farthest apart too close to count?
                const bool silent = max(first_row + n_rows - 1 - strip_column,
                                        strip_column + WIDTH - 1 - first_row) < gap;
                const double2* from = (const double2*)(columns + place * WIDTH * n_terms);
                __syncwarp();
                for (int at = lane; at < WIDTH / 2 * n_terms; at += 32) ((double2*)column_factors)[at] = from[at];
                __syncwarp();
                double inverse[COLUMNS], before[COLUMNS];
#pragma unroll
                for (int k = 0; k < COLUMNS; ++k) {
                    inverse[k] = inverses[origin + column + k];
                    before[k] = 0.0;
                }
                double carried = 0.0;  // of the edge, from the tile before

                for (int tile = 0; tile < n_tiles; ++tile) {
                    const int row = first_row + 8 * tile;
                    const int row_mask = (int)row_masks[(origin + row) >> 3];
                    double edge_now[8];
#pragma unroll
                    for (int r = 0; r < 8; ++r) edge_now[r] = edge[8 * tile + r];
                    double sums[8][COLUMNS], x[COLUMNS], f[8];
                    const double* x_at = column_factors + lane;
                    const double2* f_at = (const double2*)(row_factors + tile * 8 * n_terms);
                    load(x, f, x_at, f_at);
                    const double left = __shfl_up_sync(FULL, before[COLUMNS - 1], 1);
#pragma unroll
                    for (int k = 0; k < COLUMNS; ++k) {
                        const double diagonal = k > 0 ? before[k > 0 ? k - 1 : 0] : lane == 0 ? carried : left;
                        sums[0][k] = fma(f[0], x[k], diagonal);
                    }
#pragma unroll
                    for (int r = 1; r < 8; ++r)
#pragma unroll
                        for (int k = 0; k < COLUMNS; ++k) sums[r][k] = f[r] * x[k];
#pragma unroll 2
                    for (int term = 1; term < n_terms; ++term) {
                        load(x, f, x_at += WIDTH, f_at += 4);
#pragma unroll
                        for (int r = 0; r < 8; ++r)
#pragma unroll
                            for (int k = 0; k < COLUMNS; ++k) sums[r][k] = fma(f[r], x[k], sums[r][k]);
                    }

                    if (row_mask != 0 || restarts)
                        along_diagonals<true>(sums, edge_now, lane, row_mask, restarts, products,
                                              row_anchors + origin + row, column_anchors + origin + column,
                                              origin + row, origin + column);
                    else
                        along_diagonals<false>(sums, edge_now, lane, 0, false, products, row_anchors, column_anchors,
                                               0, 0);
                    carried = edge_now[7];
                    __syncwarp();
                    if (lane == 31) {
#pragma unroll
                        for (int r = 0; r < 8; ++r) edge[8 * tile + r] = sums[r][COLUMNS - 1];
                    }
                    if (probing) {
#pragma unroll
                        for (int r = 0; r < 8; ++r) {
                            double scaled[COLUMNS];
#pragma unroll
                            for (int k = 0; k < COLUMNS; ++k) scaled[k] = __dmul_rn(sums[r][k], inverse[k]);
                            probe(8 * tile + r, row + r, scaled, column, warp * parts, parts, 2 * n_neighbors);
                        }
                    } else {
                        unsigned hits = 0;
#pragma unroll
                        for (int r = 0; r < 8; ++r) {
                            const float bar = *(volatile const float*)&bars[8 * tile + r];  // rises meanwhile
                            bool hit = false;
#pragma unroll
                            for (int k = 0; k < COLUMNS; ++k)
                                hit |= high(__dmul_rn(sums[r][k], inverse[k])) >= bar;
                            if (hit) hits |= 1u << r;
                        }
                        const unsigned any = silent ? 0u : __reduce_or_sync(FULL, hits);
                        if (any) {
#pragma unroll
                            for (int r = 0; r < 8; ++r)
                                if (any >> r & 1) {
                                    const float bar = *(volatile const float*)&bars[8 * tile + r];
#pragma unroll
                                    for (int k = 0; k < COLUMNS; ++k) {
                                        const double scaled = __dmul_rn(sums[r][k], inverse[k]);
                                        const bool passes = high(scaled) >= bar;
                                        const unsigned passing = __ballot_sync(FULL, passes);
                                        if (passing) {
                                            if (passes) {
                                                const int at = n_waiting + __popc(passing & ((1u << lane) - 1));
                                                queue[at] = scaled;
                                                queue_where[at] = (8 * tile + r) << 8 | (COLUMNS * lane + k);
                                            }
                                            n_waiting += __popc(passing);
                                            if (n_waiting >= 32) n_waiting = list_waiting(n_waiting, strip_column);
                                        }
                                    }
                                }
                        }
                    }
#pragma unroll
                    for (int k = 0; k < COLUMNS; ++k) before[k] = sums[7][k];
                    __syncwarp();
                }
                if (n_waiting > 0) n_waiting = list_waiting(n_waiting, strip_column);
            }
        }
        __syncthreads();
        if (probing) {
            for (int slot = threadIdx.x; slot < max_rows; slot += 32 * WARPS) {
                const bool lists_something = lists.norm()[slot] > 0.0;
                const bool probed = n_groups >= n_neighbors && lists_something;
                lists.bar()[slot] = probed ? first_bar(slot, n_groups, n_neighbors) : lists_something ? -1e30f : 1e30f;
            }
            __syncthreads();
            for (int place = threadIdx.x; place < max_rows * n_neighbors; place += 32 * WARPS)
                lists.keys()[place] = NO_KEY;
            __syncthreads();
        }
    }
    for (int place = threadIdx.x; place < n_rows * n_neighbors; place += 32 * WARPS)
        keys[(origin + first_row) * n_neighbors + place] = lists.keys()[place];
}
