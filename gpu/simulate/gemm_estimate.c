/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_estimate.c: the time of a matrix product by its shape.
 *
 * A kernel cuts the output into tiles, and every multiprocessor computes one tile at a time; the last round ("wave")
 * may leave most of them idle. Where there are few tiles, K is cut as well (split-K) and the parts are added up. So
 *
 *     time = start + waves x (K x time of a tile's column of K + time to store a tile) [+ adding up the parts]
 *
 * The constants were fitted for the H100 to NVIDIA's offline model of matrix products (PyPI nvidia-matmul-heuristics
 * 0.1.0.27, target H100 SXM, CUTLASS 3) at the shapes of seven models of GPT-2, Llama and Qwen2.5. Of 224 shapes
 * (scripts/gemm-times.py writes them to tests/unit/fixtures/gemm_times.h) 209 agree within 5 %, all but one within
 * 20 %, all together within 1 %. On top come 4 %, by which published measurements were slower than that model, and the
 * sustained rate as a cap: power limits large products. */
#include "gpu/cuda/cuda_workspace.h"
#include "gpu/simulate/op_estimate.h"

/* Tiles that cublasLt's kernels for Hopper use, and how much slower than the 256 x 128 one they are for an element. */
static const struct tile {
    int64_t m, n;
    double slower;
} tiles[] = {{256, 128, 1}, {128, 256, 1}, {128, 192, 1.146}, {192, 128, 1.146}, {128, 128, 1.1}};

static const double start_seconds = 10e-6; /* launch, first loads, last stores */
static const double store_share = 0.511;   /* of the memory's bandwidth, while tiles are stored */
static const double copy_share = 0.9;      /* the same for a plain copy */
static const double measured = 1.04;
enum { SPLIT_MAX = 8 };

static double tile_estimate(const struct gpu_model *gpu, double flops, const struct tile *tile, int64_t M, int64_t N,
                            double K, int split, double out_bytes)
{
    const double area = (double)(tile->m * tile->n), sms = gpu->sms;
    const double count = ceil((double)M / (double)tile->m) * ceil((double)N / (double)tile->n) * split;
    const double waves = ceil(count / sms), stored = split > 1 ? sizeof(float) : out_bytes;
    const double column = 2 * area * sms / (flops * gpu->rates.clock) * (gpu->rates.mma_sync ? 1 : tile->slower);
    const double compute = K / split * column, store = area * stored * sms / (gpu->bytes * store_share);
    double seconds = start_seconds + waves * (compute + store);
    if (gpu->rates.mma_sync) seconds = start_seconds + waves * fmax(compute, store) + fmin(compute, store);
    if (split > 1) {
        double parts = (double)M * (double)N * (sizeof(float) * split + out_bytes);
        seconds += start_seconds + parts / (gpu->bytes * copy_share);
    }
    return seconds;
}

double gemm_estimate(const struct gpu_model *gpu, enum dtype dtype, int64_t M, int64_t N, int64_t K, double out_bytes)
{
    const double flops = gpu->flops[dtype], work = 2 * (double)M * (double)N * (double)K;
    double best = INFINITY;
    const double split_bytes = (double)cuda_gemm_workspace((size_t)(gpu->memory_gib * (double)(1 << 30)));
    if (work == 0) return 0;
    for (size_t i = 0; i < COUNT_OF(tiles); i++) {
        for (int split = 1; split <= SPLIT_MAX; split++) {
            if (split > 1 && (double)M * (double)N * sizeof(float) * split > split_bytes) break;
            best = fmin(best, tile_estimate(gpu, flops, &tiles[i], M, N, (double)K, split, out_bytes));
        }
    }
    return fmax(best * measured, work / (flops * gpu->rates.sustained));
}

double grouped_estimate(const struct gpu_model *gpu, enum dtype dtype, int64_t M, int64_t N, int64_t K,
                        double out_bytes)
{
    const double flops = gpu->flops[dtype], work = 2 * (double)M * (double)N * (double)K;
    const double tiled = tile_estimate(gpu, flops, &tiles[COUNT_OF(tiles) - 1], M, N, (double)K, 1, out_bytes);
    return fmax(tiled * measured, work / (flops * gpu->rates.sustained));
}
