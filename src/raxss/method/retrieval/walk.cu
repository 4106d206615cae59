// Nearest windows of every window of many series: the recurrence of diagonal.py in float64 matrix instructions.
//
//   factors of rows and columns, products of the anchors  ->  lists (n_rows, n_neighbors), best first, as keys
//
//   c(i, j) = c(i-1, j-1) + sum over terms of row[i] * column[j]
//
// A block owns ROWS consecutive rows and their lists, in shared memory. Each of its warps sweeps segments of
// columns with 16 x CHUNK sums in registers, ROWS = 16 * CHUNK. Sum (a, b) is at row (a * CHUNK + t) % ROWS and
// at column t + b when the sweep is at t. One step of the sweep takes all sums one row down and one column on,
// so it is one product of matrices, 16 rows by CHUNK columns, added to the sums where they are: nothing passes
// from lane to lane. Below the last row a sum goes on at the first one, on the diagonal that no other sum is
// on. So every pair comes by exactly once, and a sweep needs only few columns at a time.
//
// Two factors are no terms. Factor 1 of the columns holds their full product with the block's first row
// (anchors.cu), and of the rows only the first has it: there sums begin. Factor 0 does the same for the
// diagonals that begin in the first column. Segments begin ROWS columns early, until each sum has begun once.
// Windows much quieter than those before them have full products of their own.
//
// Similarities never leave the registers: the high half of c / |column| is compared with what the row's list
// asks for; the few that pass wait in a queue of the warp until there are 32, and are then rounded and listed
// together. So that there are few from the beginning, each warp first sweeps a little of its columns only to
// see how near they come: see first_bar.
//
// A key is the similarity on the grid of 2^-32, an integer of 34 bits, and behind it the window's place from
// the end: the larger key is the nearer window, of equals the earlier one. Lists do not depend on the order of
// arrival, so neither on which warp comes first.

// Compiled with TILES (of 8 columns), WARPS (of a block) and STEPS (of 4 factors): see Shape in cuda_layout.py.
#define DEPTH (4 * STEPS)
#define CHUNK (8 * TILES)
#define ROWS (16 * CHUNK)
#define GROUP_SIZE (CHUNK * DEPTH + 4)            // 4 more, so that lanes read from different banks
#define PITCH (DEPTH + (STEPS % 2 == 0 ? 4 : 0))  // of a column, for the same reason
#define WARM 16   // chunks, until each sum has begun
#define PROBED 8  // chunks
#define FULL 0xffffffffu
#define PLACE_BITS 29
#define LAST_PLACE ((1LL << PLACE_BITS) - 1)
#define COLUMN_BITS 22
#define NO_KEY (-0x7fffffffffffffffLL - 1)
#define NO_ANCHOR (-(1LL << 61))
#define GRID 2.3283064365386963e-10  // 2^-32

// Where in the shared memory what lies, in doubles. First, (16, CHUNK, DEPTH) factors of the rows; then
#define RINGS_AT (16 * GROUP_SIZE)                               // (WARPS, 4 * CHUNK, PITCH) factors of columns
#define RING_INVERSES_AT (RINGS_AT + WARPS * 4 * CHUNK * PITCH)  // (WARPS, 4 * CHUNK) 1 / norm of columns
#define INVERSES_AT (RING_INVERSES_AT + WARPS * 4 * CHUNK)       // (ROWS,) 1 / norm
#define NORMS_AT (INVERSES_AT + ROWS)                            // (ROWS,)
#define QUEUES_AT (NORMS_AT + ROWS)          // (WARPS, 64) c / |column| of what waits to be listed
#define WHERES_AT (QUEUES_AT + 64 * WARPS)   // (WARPS, 64) its row and column, as int
#define BARS_AT (WHERES_AT + 32 * WARPS)     // (ROWS,) what the high half of c / |column| must reach, as float
#define KEYS_AT (BARS_AT + ROWS / 2)         // (ROWS, n_neighbors) the lists
extern __shared__ __align__(16) double shared[];

#define KEYS ((long long*)(shared + KEYS_AT))
#define BARS ((float*)(shared + BARS_AT))
#define PROBES ((float*)(shared + KEYS_AT))  // (ROWS, 2 * n_neighbors), before there are lists

struct Block {
    long long origin, start_at;
    int first_row, n_rows, n_windows, low, high, n_neighbors, gap, reach;
};
__shared__ Block mine;

// The high half of a double, read as a float: in the same order, and NaN stays NaN.
__device__ __forceinline__ float high(double value) { return __int_as_float(__double2hiint(value)); }

// 16 rows by 8 columns by 4 factors. Lane l has rows l / 4 and l / 4 + 8 and column l / 4 of factor l % 4, and the
// sums of columns 2 * (l % 4) and the next, first of its upper row, then of its lower one.
__device__ __forceinline__ void multiply(double (&sums)[4], const double (&a)[2], double b) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 "
                 "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+d"(sums[0]), "+d"(sums[1]), "+d"(sums[2]), "+d"(sums[3])
                 : "d"(a[0]), "d"(a[1]), "d"(b));
#else
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(sums[0]), "+d"(sums[1]) : "d"(a[0]), "d"(b));
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(sums[2]), "+d"(sums[3]) : "d"(a[1]), "d"(b));
#endif
}

// N doubles from global to shared memory, without waiting for them; zeros if they are not there.
template <int N>
__device__ __forceinline__ void copy(double* to, const double* from, bool there) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    const int n_bytes = there ? 8 * N : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(from), "n"(8 * N), "r"(n_bytes));
}

__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// The compiler must not take this for the value that it was: rather than keep what it worked out from it, where
// most threads never come by, it is to work it out again.
__device__ __forceinline__ void forget(double& value) { asm volatile("" : "+d"(value)); }

// The key of a pair.
__device__ __forceinline__ long long key_of(double scaled, double inverse_row, int column) {
    const double value = __dmul_rn(scaled, inverse_row);
    const double rounder = 1572864.0;  // 1.5 * 2^52 * 2^-32: adding it leaves a multiple of the grid
    long long steps = __double_as_longlong(__dadd_rn(value, rounder)) - __double_as_longlong(rounder);
    steps = min(max(steps, -(1LL << 32)), 1LL << 32);
    return value == value ? (steps << PLACE_BITS) + (LAST_PLACE - column) : NO_KEY;
}

// List what waits, up to 32 at once, and move what is behind them to the front. A key goes down the list of its
// row from the best rank: wherever it is nearer it takes the place, and goes on with the key that it found
// there. So each rank keeps the best of all keys that ever come by, whatever their order, and warps need not
// wait for each other.
__device__ __noinline__ int list_waiting(int n_waiting, int base) {
    const int lane = threadIdx.x & 31, at = 2 * (threadIdx.x & ~31) + lane, n_neighbors = mine.n_neighbors;
    double* scaled = shared + QUEUES_AT + at;
    int* where = (int*)(shared + WHERES_AT) + at;
    int slot = -1;
    long long key = NO_KEY;
    __syncwarp();
    if (lane < n_waiting) {
        slot = *where >> COLUMN_BITS;
        key = key_of(*scaled, shared[INVERSES_AT + slot], base + (*where & ((1 << COLUMN_BITS) - 1)));
        if (key <= *(volatile long long*)&KEYS[(slot + 1) * n_neighbors - 1]) slot = -1;  // it only rises
    }
    if (slot >= 0) {
        long long* list = KEYS + slot * n_neighbors;
#pragma unroll 1
        for (int rank = 0; rank < n_neighbors; ++rank)
            if (key > *(volatile long long*)&list[rank]) key = min(key, atomicMax(&list[rank], key));
        // Two steps of the grid lower, since what is compared with it is not rounded yet. If two warps write at
        // once, the lower bar may stay: it lets more through, that is all.
        const long long last = *(volatile long long*)&list[n_neighbors - 1];
        const double asked = (double)((last >> PLACE_BITS) - 2) * GRID * shared[NORMS_AT + slot];
        volatile float* bar = BARS + slot;
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

// So many groups of columns have come so near, and each has a window: the list of the row can only ask for more.
__device__ __forceinline__ float first_bar(int slot, int n_groups, int n_neighbors) {
    const float* best = PROBES + slot * 2 * n_neighbors;
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
    return high(value - fabs(value) * 0x1p-19 - 2.0 * GRID * shared[NORMS_AT + slot]);
}

// Segments from the one around the diagonal outwards: there the best neighbors usually are, so bars rise early.
__device__ __forceinline__ int outwards(int turn, int centre, int n) {
    const int both = min(centre, n - 1 - centre);
    if (turn <= 2 * both) return turn & 1 ? centre + (turn + 1) / 2 : centre - turn / 2;
    return centre > n - 1 - centre ? n - 1 - turn : turn;
}

// Begin to bring the factors of a chunk of columns into the ring: its third, and the fourth, a copy of the
// first, so that a chunk and the next one always lie one behind the other.
__device__ __forceinline__ void fetch(double* ring, int third, int column, const double* __restrict__ columns,
                                      const double* __restrict__ products) {
    const int pieces = 2 * STEPS + 1;  // factor 0, factor 1, the others in pairs
    for (int at = threadIdx.x & 31; at < CHUNK * pieces; at += 32) {
        const int which = at / pieces, piece = at % pieces, here = column + which;
        const bool there = here >= 0 && here < mine.n_windows;
        const double* from = columns + (mine.origin + (there ? here : 0)) * DEPTH;
        double* to = ring + (third * CHUNK + which) * PITCH;
        const bool started = here >= mine.low && here < mine.high;
        const double* start = products + mine.start_at + mine.origin + (started ? here : mine.low);
#pragma unroll 1
        for (int again = 0; again < (third == 0 ? 2 : 1); ++again, to += 3 * CHUNK * PITCH) {
            if (piece == 0) copy<1>(to, from, there);
            else if (piece == 1) copy<1>(to + 1, start, started);
            else copy<2>(to + 2 * piece - 2, from + 2 * piece - 2, there);
        }
    }
}

// One chunk: take all sums CHUNK rows down and CHUNK columns on, and list what comes near enough. Plain: nothing
// starts anew, and nothing is probed. Answers how many wait.
template <bool plain>
__device__ __forceinline__ int sweep(double (&sums)[TILES][4], int n_waiting, int at, int upper, int lower,
                                     int third, int begin, unsigned anew, int group, bool listing, bool probing,
                                     const double* __restrict__ products, const long long* __restrict__ row_anchors,
                                     const long long* __restrict__ column_anchors) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, quarter = lane & 3;
    const double* ring = shared + RINGS_AT + warp * 4 * CHUNK * PITCH;
    const double* ring_inverses = shared + RING_INVERSES_AT + warp * 4 * CHUNK;
    double* queue = shared + QUEUES_AT + 64 * warp;
    int* queue_where = (int*)(shared + WHERES_AT) + 64 * warp;
    const double* upper_at = shared + upper / CHUNK * GROUP_SIZE + quarter;
    const double* lower_at = shared + lower / CHUNK * GROUP_SIZE + quarter;
    const double* columns_at = ring + (third * CHUNK + lane / 4) * PITCH + quarter;
    const double* inverses_at = ring_inverses + third * CHUNK + 2 * quarter;
    double right[TILES], a[STEPS][2], b[TILES][STEPS];
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) right[tile] = inverses_at[8 * tile];
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        a[k][0] = upper_at[4 * k];
        a[k][1] = lower_at[4 * k];
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) b[tile][k] = columns_at[8 * tile * PITCH + 4 * k];
    }
#pragma unroll plain ? 4 : 1
    for (int step = 0; step < CHUNK; ++step) {
        const float bar[2] = {*(volatile float*)&BARS[upper + step], *(volatile float*)&BARS[lower + step]};
        double inverse[TILES][2];
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            inverse[tile][0] = right[tile];
            inverse[tile][1] = right[tile] = inverses_at[8 * tile + step + 1];
        }
#pragma unroll
        for (int k = 0; k < STEPS; ++k)
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) multiply(sums[tile], a[k], b[tile][k]);
        // The factors of the next step; the last one reads what it does not need.
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            a[k][0] = upper_at[(step + 1) * DEPTH + 4 * k];
            a[k][1] = lower_at[(step + 1) * DEPTH + 4 * k];
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
                b[tile][k] = columns_at[(step + 1 + 8 * tile) * PITCH + 4 * k];
        }
        const int column = at + step + 2 * quarter;
        if (!plain && anew >> step & 1) {
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                for (int part = 0; part < 4; ++part) {
                    const int slot = (part < 2 ? upper : lower) + step, here = column + 8 * tile + part % 2;
                    if (slot == 0 || slot >= mine.n_rows || here < mine.low || here >= mine.high) continue;
                    const long long row_place = mine.origin + mine.first_row + slot;
                    const long long column_place = mine.origin + here;
                    const long long by_row = row_anchors[row_place], by_column = column_anchors[column_place];
                    if (by_row > NO_ANCHOR) sums[tile][part] = products[by_row + column_place];
                    if (by_column > NO_ANCHOR) sums[tile][part] = products[by_column + row_place];
                }
        }
        if (!plain && probing) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int slot = (half ? lower : upper) + step;
                float best = -1e30f;
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                    for (int side = 0; side < 2; ++side) {
                        const int distance = abs(column + 8 * tile + side - mine.first_row - slot);
                        const float near = high(__dmul_rn(sums[tile][2 * half + side], inverse[tile][side]));
                        if (distance >= mine.gap && distance <= mine.reach) best = fmaxf(best, near);  // not if NaN
                    }
                best = fmaxf(best, __shfl_xor_sync(FULL, best, 1));
                best = fmaxf(best, __shfl_xor_sync(FULL, best, 2));
                volatile float* seen = PROBES + slot * 2 * mine.n_neighbors + group;
                if (quarter == 0) *seen = fmaxf(*seen, best);
            }
            continue;
        }
        if (!plain && !listing) continue;
        bool hit = false;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int part = 0; part < 4; ++part)
                hit |= high(__dmul_rn(sums[tile][part], inverse[tile][part % 2])) >= bar[part / 2];
        if (!__any_sync(FULL, hit)) continue;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            forget(inverse[tile][0]);
            forget(inverse[tile][1]);
        }
        unsigned passes = 0;  // which of the lane's pairs
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int part = 0; part < 4; ++part) {
                const int slot = (part < 2 ? upper : lower) + step;
                const int distance = abs(column + 8 * tile + part % 2 - mine.first_row - slot);
                const bool pass_it = high(__dmul_rn(sums[tile][part], inverse[tile][part % 2])) >= bar[part / 2];
                if (pass_it && distance >= mine.gap && distance <= mine.reach) passes |= 1u << (4 * tile + part);
            }
        // One of each lane at a time.
        while (const unsigned passing = __ballot_sync(FULL, passes != 0)) {
            if (passes) {
                const int one = __ffs(passes) - 1, place = n_waiting + __popc(passing & ((1u << lane) - 1));
                double sum = sums[0][0], factor = inverse[0][0];
#pragma unroll
                for (int other = 1; other < 4 * TILES; ++other)
                    if (other == one) sum = sums[other / 4][other % 4], factor = inverse[other / 4][other % 2];
                const int slot = (one % 4 < 2 ? upper : lower) + step;
                queue[place] = __dmul_rn(sum, factor);
                queue_where[place] = slot << COLUMN_BITS | (column + one / 4 * 8 + one % 2 - begin);
                passes &= passes - 1;
            }
            n_waiting += __popc(passing);
            if (n_waiting >= 32) n_waiting = list_waiting(n_waiting, begin);
        }
    }
    return n_waiting;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 16 / WARPS) walk(
    const double* __restrict__ columns,       // (n_places, DEPTH) factors: 1 in first columns, 0, terms, zeros
    const double* __restrict__ rows,          // (n_places, DEPTH) the same, terms with gain and sign
    const double* __restrict__ inverses,      // (n_places,) 1 / norm, 0 if flat, NaN if never a neighbor
    const double* __restrict__ row_inverses,  // (n_places,)
    const double* __restrict__ row_norms,     // (n_places,) infinite where a window lists nothing here
    const double* __restrict__ products,      // of the anchors
    const long long* __restrict__ row_anchors,     // (n_places,) where a row's full products lie, or NO_ANCHOR
    const long long* __restrict__ column_anchors,  // (n_places,) the same of columns
    const long long* __restrict__ blocks,    // (n_blocks, 12): origin, row, n_rows, n_windows, first segment,
                                             // n_segments, centre; products of the first row, from and to which
                                             // column; products of column 0; row of partial, if the
                                             // lists are of a part of the columns, else below 0
    const long long* __restrict__ segments,  // (n_segments, 2): where the sweep is at first, n_chunks
    long long* __restrict__ keys,            // (n_places, n_neighbors) out
    long long* __restrict__ partial,         // (n_partial, n_neighbors) out: lists of a part of the columns
    int n_neighbors, int gap, int reach) {
    __shared__ int turn;
    __shared__ unsigned fresh_rows;  // steps of a chunk at which some row starts anew
    const long long* block = blocks + 12 * blockIdx.x;
    const long long origin = block[0], column_at = block[10];
    const int first_row = (int)block[1], n_rows = (int)block[2], n_windows = (int)block[3];
    const int n_segments = (int)block[5], centre = (int)block[6];
    const long long* my_segments = segments + 2 * block[4];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (threadIdx.x == 0) {
        mine.origin = origin;
        mine.start_at = block[7];
        mine.first_row = first_row;
        mine.n_rows = n_rows;
        mine.n_windows = n_windows;
        mine.low = (int)block[8];
        mine.high = (int)block[9];
        mine.n_neighbors = n_neighbors;
        mine.gap = gap;
        mine.reach = reach;
        turn = WARPS;
        fresh_rows = 0;
    }
    __syncthreads();
    for (int place = threadIdx.x; place < ROWS * DEPTH; place += 32 * WARPS) {
        const int slot = place / DEPTH, factor = place % DEPTH;
        const long long at = origin + first_row + slot;
        double value = 0.0;
        if (slot == 0) value = factor == 1 ? 1.0 : 0.0;
        else if (slot >= n_rows || factor == 1) value = 0.0;
        else if (factor == 0) value = column_at > NO_ANCHOR ? products[column_at + at] : 0.0;
        else value = rows[at * DEPTH + factor];
        shared[slot / CHUNK * GROUP_SIZE + slot % CHUNK * DEPTH + factor] = value;
    }
    for (int slot = threadIdx.x; slot < ROWS; slot += 32 * WARPS) {
        const long long at = origin + first_row + slot;
        const bool lists_something = slot < n_rows && row_norms[at] < 1e300;
        shared[INVERSES_AT + slot] = lists_something ? row_inverses[at] : 0.0;
        shared[NORMS_AT + slot] = lists_something ? row_norms[at] : 0.0;
        if (slot > 0 && slot < n_rows && row_anchors[at] > NO_ANCHOR) atomicOr(&fresh_rows, 1u << slot % CHUNK);
        for (int place = 0; place < 2 * n_neighbors; ++place) PROBES[slot * 2 * n_neighbors + place] = -1e30f;
    }
    __syncthreads();

    double* ring = shared + RINGS_AT + warp * 4 * CHUNK * PITCH;
    double* ring_inverses = shared + RING_INVERSES_AT + warp * 4 * CHUNK;
    int n_waiting = 0;

    // Groups of columns to probe: as many as fit into the lists' room.
    const int n_probing = min(n_segments, WARPS);
    int parts = 1;
    while (2 * parts * n_probing <= 2 * n_neighbors && parts < PROBED) parts *= 2;
    const int n_groups = parts * n_probing <= 2 * n_neighbors ? parts * n_probing : 0;
    const bool probes = n_groups >= n_neighbors;

    double sums[TILES][4];
    volatile double kept[TILES][4];  // in local memory: of the first segment, before it was probed
    int which = warp, begin = 0, n_chunks = 0;
    // The first segment: warm up, probe, list; every other one: warm up, list.
    for (int pass = 0;; ++pass) {
        const bool warming = pass == 0 || (pass >= 3 && pass % 2 == 1), probing = pass == 1;
        const bool listing = !warming && !probing;
        if (warming) {
            if (pass > 0) {
                if (lane == 0) which = atomicAdd(&turn, 1);
                which = __shfl_sync(FULL, which, 0);
                if (which >= n_segments) break;
            }
            n_chunks = 0;
            if (which < n_segments) {
                const long long* segment = my_segments + 2 * outwards(which, centre, n_segments);
                begin = (int)segment[0];
                n_chunks = (int)segment[1];
            }
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                for (int part = 0; part < 4; ++part) sums[tile][part] = 0.0;
        } else if (probing || pass == 2) {
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                for (int part = 0; part < 4; ++part) {
                    if (probing) kept[tile][part] = sums[tile][part];
                    else sums[tile][part] = kept[tile][part];
                }
        }
        // Sums that are still left of the first column have nothing to warm up with.
        int chunk = warming && begin >= 0 && n_chunks > 0 ? 0 : WARM;
        int chunk_end = warming ? WARM : WARM + n_chunks;
        if (probing) chunk_end = probes ? WARM + min(n_chunks, PROBED) : WARM;

        int third = 0;
        bool fresh = false, fresh_next = false;  // whether a column of this chunk starts anew, or of the next
        if (chunk < chunk_end) {
            __syncwarp();
            for (int ahead = 0; ahead < 2; ++ahead) {
                const int column = begin + (chunk - WARM + ahead) * CHUNK;
                fetch(ring, ahead, column, columns, products);
                const int here = column + lane;
                const bool there = lane < CHUNK && here >= 0 && here < n_windows;
                const double inverse = there ? inverses[origin + here] : __hiloint2double(0x7ff80000, 0);
                if (lane < CHUNK) {
                    ring_inverses[ahead * CHUNK + lane] = inverse;
                    if (ahead == 0) ring_inverses[3 * CHUNK + lane] = inverse;
                }
                fresh = fresh_next;
                fresh_next = __any_sync(FULL, there && column_anchors[origin + here] > NO_ANCHOR);
            }
            wait_for_copies();
            __syncwarp();
        }
        for (; chunk < chunk_end; ++chunk) {
            const int at = begin + (chunk - WARM) * CHUNK;
            const int upper = (lane / 4 + chunk) % 16 * CHUNK, lower = (lane / 4 + chunk + 8) % 16 * CHUNK;
            const int next_third = third == 0 ? 2 : third - 1;  // of the chunk after the next
            fetch(ring, next_third, at + 2 * CHUNK, columns, products);
            const int here = at + 2 * CHUNK + lane;
            const bool there = lane < CHUNK && here >= 0 && here < n_windows;
            const double next_inverse = there ? inverses[origin + here] : __hiloint2double(0x7ff80000, 0);
            const bool next_fresh = there && column_anchors[origin + here] > NO_ANCHOR;

            const unsigned anew = fresh || fresh_next ? FULL : fresh_rows;
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                if (upper == 0) sums[tile][0] = sums[tile][1] = 0.0;
                if (lower == 0) sums[tile][2] = sums[tile][3] = 0.0;
            }
            if (listing && anew == 0)
                n_waiting = sweep<true>(sums, n_waiting, at, upper, lower, third, begin, 0, 0, false, false,
                                        products, row_anchors, column_anchors);
            else
                n_waiting = sweep<false>(sums, n_waiting, at, upper, lower, third, begin, anew,
                                         warp * parts + (chunk & (parts - 1)), listing, probing, products,
                                         row_anchors, column_anchors);
            if (lane < CHUNK) {
                ring_inverses[next_third * CHUNK + lane] = next_inverse;
                if (next_third == 0) ring_inverses[3 * CHUNK + lane] = next_inverse;
            }
            fresh = fresh_next;
            fresh_next = __any_sync(FULL, next_fresh);
            wait_for_copies();
            __syncwarp();
            third = third == 2 ? 0 : third + 1;
        }
        if (n_waiting > 0) n_waiting = list_waiting(n_waiting, begin);
        if (!probing) continue;

        __syncthreads();
        for (int slot = threadIdx.x; slot < ROWS; slot += 32 * WARPS) {
            const bool lists_something = shared[NORMS_AT + slot] > 0.0;
            BARS[slot] = !lists_something ? 1e30f : probes ? first_bar(slot, n_groups, n_neighbors) : -1e30f;
        }
        __syncthreads();
        for (int place = threadIdx.x; place < ROWS * n_neighbors; place += 32 * WARPS) KEYS[place] = NO_KEY;
        __syncthreads();
    }
    __syncthreads();
    for (int place = threadIdx.x; place < n_rows * n_neighbors; place += 32 * WARPS) {
        const bool whole = block[11] < 0;
        long long* lists = whole ? keys + (origin + first_row) * n_neighbors : partial + block[11] * n_neighbors;
        lists[place] = KEYS[place];
    }
}
