// Full products of some windows (anchors) with ranges of windows of the same series, where walk.cu starts from.
//
//   anchors (groups of 16), samples by phase  ->  products, each anchor's at an offset of its own
//
// One warp takes 16 anchors by 64 windows with float64 matrix instructions. The windows' samples
// are read where they lie: sample (a * stride + p) of window g is phases[p][g + a].

#define GROUP 16
#define TILES 8  // of 8 windows each

// 16 anchors by 8 windows by 8 samples; lane l holds anchors l / 4 and l / 4 + 8 of samples l % 4 and l % 4 + 4,
// and window l / 4 of these samples. The halves of the anchors are the first index of the sums.
__device__ __forceinline__ void multiply(double (&low)[2], double (&up)[2], const double (&a)[4], double x,
                                         double y) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+d"(low[0]), "+d"(low[1]), "+d"(up[0]), "+d"(up[1])
                 : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(x), "d"(y));
#else
#define MULTIPLY(sum, a, b)                                                                         \
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};" \
                 : "+d"(sum[0]), "+d"(sum[1])                                                       \
                 : "d"(a), "d"(b))
    MULTIPLY(low, a[0], x);
    MULTIPLY(up, a[1], x);
    MULTIPLY(low, a[2], y);
    MULTIPLY(up, a[3], y);
#endif
}

extern "C" __global__ void __launch_bounds__(128) anchors(
    const double* __restrict__ phases,  // (n_variates * stride, n_places) samples by their place within a stride
    const double* __restrict__ means,   // (n_variates, n_places) of the windows
    const long long* __restrict__ places,  // (n_groups, 16) of the anchors
    const long long* __restrict__ groups,  // (n_groups, 3, 16): where their products go, from and to which window
    const long long* __restrict__ tasks,   // (n_blocks, 2): group, first window
    double* __restrict__ products,
    int n_variates, int stride, int length, int n_places) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const long long group = tasks[2 * blockIdx.x];
    const long long first = tasks[2 * blockIdx.x + 1] + warp * 8 * TILES;
    const long long* where = groups + group * 3 * GROUP;
    double sums[2][TILES][2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) sums[half][tile][0] = sums[half][tile][1] = 0.0;

    const int row = lane >> 2, step = lane & 3;  // of the matrix instruction's operands
    const long long low = places[group * GROUP + row], up = places[group * GROUP + row + 8];
    for (int variate = 0; variate < n_variates; ++variate) {
        const double* mean = means + (long long)variate * n_places;
        const double mean_low = mean[low], mean_up = mean[up];
        double rest[2] = {0.0, 0.0};  // what rounding leaves of the anchors' sums
        for (int phase = 0; phase < stride; ++phase) {
            const double* samples = phases + (long long)(variate * stride + phase) * n_places;
            const int depth = (length - phase + stride - 1) / stride;  // samples of this phase
            // x[t] and y[t]: 4 samples, and the 4 behind them, of the windows of tile t. Eight samples on, a
            // tile's are those that the next tile has now.
            const double* b = samples + first + row + step;
            double x[TILES], y[TILES];
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                x[tile] = b[8 * tile];
                y[tile] = b[8 * tile + 4];
            }
            b += 8 * TILES;
            const double *a_low = samples + low + step, *a_up = samples + up + step;
            double now[4] = {a_low[0], a_up[0], a_low[4], a_up[4]};
#pragma unroll 1
            for (int place = 0; place < depth; place += 8) {
                const double next_x = b[place], next_y = b[place + 4];
                const double next[4] = {a_low[place + 8], a_up[place + 8], a_low[place + 12], a_up[place + 12]};
                const bool inside = place + step < depth, inside_4 = place + step + 4 < depth;
                const double a[4] = {inside ? now[0] - mean_low : 0.0, inside ? now[1] - mean_up : 0.0,
                                     inside_4 ? now[2] - mean_low : 0.0, inside_4 ? now[3] - mean_up : 0.0};
                rest[0] += a[0] + a[2];
                rest[1] += a[1] + a[3];
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile)
                    multiply(sums[0][tile], sums[1][tile], a, x[tile], y[tile]);
#pragma unroll
                for (int tile = 0; tile + 1 < TILES; ++tile) {
                    x[tile] = x[tile + 1];
                    y[tile] = y[tile + 1];
                }
                x[TILES - 1] = next_x;
                y[TILES - 1] = next_y;
#pragma unroll
                for (int part = 0; part < 4; ++part) now[part] = next[part];
            }
        }
        // The windows were not centred, which matters only as far as the anchor's sum is not 0.
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            rest[half] += __shfl_xor_sync(0xffffffffu, rest[half], 1);
            rest[half] += __shfl_xor_sync(0xffffffffu, rest[half], 2);
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                for (int side = 0; side < 2; ++side)
                    sums[half][tile][side] -= rest[half] * mean[first + 8 * tile + 2 * step + side];
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int anchor = 8 * half + row;
        const long long target = where[anchor], from = where[GROUP + anchor], to = where[2 * GROUP + anchor];
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                const long long window = first + 8 * tile + 2 * step + side;
                if (window < from || window >= to) continue;
                products[target + window] = sums[half][tile][side];
            }
    }
}
