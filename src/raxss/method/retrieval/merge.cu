// One list of each row from lists of parts of its columns.
//
//   lists (n_parts, rows_of_a_part, n_neighbors), best first, as keys  ->  (n_rows, n_neighbors)
//
// Where blocks of walk.cu would leave processors idle, each is divided by columns into several (cuda_plan.py).
// A block here merges the parts of one of them, a thread the lists of a row: no key is in two of them.

#define NO_KEY (-0x7fffffffffffffffLL - 1)
#define MOST_PARTS 8  // as in cuda_layout.py

extern "C" __global__ void merge(
    const long long* __restrict__ partial,  // (n_partial, n_neighbors)
    const long long* __restrict__ merges,   // (n_merges, 4): first row of partial, n_parts, place in keys, n_rows
    long long* __restrict__ keys,           // (n_places, n_neighbors) out
    int n_neighbors, int rows_of_a_part) {
    const long long* what = merges + 4 * blockIdx.x;
    const int n_parts = (int)what[1];
    for (int row = threadIdx.x; row < what[3]; row += blockDim.x) {
        const long long* lists = partial + (what[0] + row) * n_neighbors;
        int rank[MOST_PARTS] = {0};
        for (int place = 0; place < n_neighbors; ++place) {
            long long best = NO_KEY;
            int from = -1;
#pragma unroll
            for (int part = 0; part < MOST_PARTS; ++part) {
                if (part >= n_parts || rank[part] >= n_neighbors) continue;
                const long long key = lists[(long long)part * rows_of_a_part * n_neighbors + rank[part]];
                if (key > best) best = key, from = part;
            }
#pragma unroll
            for (int part = 0; part < MOST_PARTS; ++part) rank[part] += part == from;
            keys[(what[2] + row) * n_neighbors + place] = best;
        }
    }
}
