// On what share of a window's places is a fixed kernel above a threshold? One block a window and group.
//
//   x (n_windows, n_rows, length), cuts (n_groups, 84, 2 * PAIRS)  ->  shares (n_windows, n_groups, 84, 2 * PAIRS)
//
// A kernel has nine taps: three are 2, six are -1. So it is 3 (x_a + x_b + x_c) - (x_0 + ... + x_8), and the nine
// samples around a place, once in registers, serve all 84. Two counts share a word, 16 bits each.

#define TAPS 9
#define KERNELS 84
#define PLACES 8  // that a thread holds at once

extern "C" __global__ void shares(
    const float* __restrict__ x,
    const int* __restrict__ rows,       // (n_groups,) which row of x a group looks at
    const int* __restrict__ dilations,  // (n_groups,) samples from tap to tap
    const float* __restrict__ cuts,
    float* __restrict__ out,
    int n_rows, int n_groups, int length) {
    __shared__ unsigned counts[KERNELS * PAIRS];
    const int group = blockIdx.y, reach = dilations[group];
    const float* line = x + ((long long)blockIdx.x * n_rows + rows[group]) * length;
    for (int i = threadIdx.x; i < KERNELS * PAIRS; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    for (int first = 0; first < length; first += blockDim.x * PLACES) {
        float near[TAPS][PLACES], all[PLACES];
#pragma unroll
        for (int p = 0; p < PLACES; ++p) {
            const int t = first + p * blockDim.x + threadIdx.x;
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < TAPS; ++j) {
                const int at = t + (j - TAPS / 2) * reach;
                near[j][p] = at >= 0 && at < length ? line[at] : 0.0f;
                sum += near[j][p];
            }
            all[p] = t < length ? sum : __int_as_float(0x7f800000);  // behind the end nothing is above anything
        }
        int k = 0;
#pragma unroll
        for (int a = 0; a < TAPS; ++a)
#pragma unroll
            for (int b = a + 1; b < TAPS; ++b)
#pragma unroll
                for (int c = b + 1; c < TAPS; ++c, ++k) {
                    float z[PLACES];
#pragma unroll
                    for (int p = 0; p < PLACES; ++p) z[p] = fmaf(3.0f, near[a][p] + near[b][p] + near[c][p], -all[p]);
#pragma unroll
                    for (int q = 0; q < PAIRS; ++q) {
                        const float2 cut = ((const float2*)cuts)[((long long)group * KERNELS + k) * PAIRS + q];
                        unsigned n = 0;
#pragma unroll
                        for (int p = 0; p < PLACES; ++p) n += (z[p] > cut.x ? 1u : 0u) + (z[p] > cut.y ? 65536u : 0u);
                        n = __reduce_add_sync(0xffffffffu, n);
                        if (threadIdx.x % 32 == 0) atomicAdd(&counts[k * PAIRS + q], n);
                    }
                }
    }
    __syncthreads();
    float* mine = out + ((long long)blockIdx.x * n_groups + group) * (2 * KERNELS * PAIRS);
    for (int i = threadIdx.x; i < KERNELS * PAIRS; i += blockDim.x) {
        mine[2 * i] = (float)(counts[i] & 0xffffu) / (float)length;
        mine[2 * i + 1] = (float)(counts[i] >> 16) / (float)length;
    }
}
