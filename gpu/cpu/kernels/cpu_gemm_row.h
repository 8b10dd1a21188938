/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_gemm_row.h: the product of a single row with a matrix, as in generation. A template, see ops_cpu.h. The bandwidth
 * of the memory is the limit: nothing is packed, and every thread reads a part of the matrix in order. One thread sums
 * an output, in an order that depends only on K. */

/* Outputs that are finished at a time; rows of W that are read side by side. */
enum { ROW_COLUMNS = 1024, ROW_DOTS = 4 };

/* sums[0 … rows) = x (K) · W, whose rows of K elements begin at w; `rows`, a constant, are read side by side. */
static ALWAYS_INLINE void row_dots_of(float *sums, const float *x, const void *w, int rows, int64_t K, enum dtype dtype)
{
    vf sum[ROW_DOTS] = {{0}};
    int64_t k = 0;
    for (; k + VF <= K; k += VF) {
        const vf values = vf_load(x, k, DTYPE_F32);
        for (int i = 0; i < rows; i++) sum[i] = vf_fma(values, vf_load(w, i * K + k, dtype), sum[i]);
    }
    if (k < K) {
        const vf values = vf_load_part(x, k, K - k, DTYPE_F32);
        for (int i = 0; i < rows; i++) sum[i] = vf_fma(values, vf_load_part(w, i * K + k, K - k, dtype), sum[i]);
    }
    for (int i = 0; i < rows; i++) sums[i] = vf_sum(sum[i]);
}

static ALWAYS_INLINE void row_dots(float *sums, const float *x, const void *w, int64_t count, int64_t K,
                                   enum dtype dtype)
{
    int64_t n = 0;
    for (; n + ROW_DOTS <= count; n += ROW_DOTS) row_dots_of(sums + n, x, at(w, n * K, dtype), ROW_DOTS, K, dtype);
    for (; n < count; n++) row_dots_of(sums + n, x, at(w, n * K, dtype), 1, K, dtype);
}

/* sums[0 … count) = x (K) · W, whose K rows begin at w, ld apart. */
static ALWAYS_INLINE void row_combination(float *sums, const float *x, const void *w, int64_t count, int64_t K,
                                          int64_t ld, enum dtype dtype)
{
    memset(sums, 0, (size_t)count * sizeof *sums);
    int64_t k = 0;
    for (; k + 8 <= K; k += 8) {
        for (int64_t n = 0; n < count; n += VF) {
            vf sum = vf_get(sums, n, count, DTYPE_F32);
            for (int64_t i = 0; i < 8; i++)
                sum = vf_fma(vf_set(x[k + i]), vf_get(at(w, (k + i) * ld, dtype), n, count, dtype), sum);
            vf_put(sums, n, count, sum, DTYPE_F32);
        }
    }
    for (; k < K; k++)
        for (int64_t n = 0; n < count; n += VF)
            vf_put(
                sums, n, count,
                vf_fma(vf_set(x[k]), vf_get(at(w, k * ld, dtype), n, count, dtype), vf_get(sums, n, count, DTYPE_F32)),
                DTYPE_F32);
}

static void row_product(struct stream *stream, const struct linear_fwd_args *a, const struct epilogue *e)
{
    struct scratch scratch = scratch_of(stream);
    float *x = scratch_take(&scratch, (size_t)round_up(a->K, VF) * sizeof *x);
    for (int64_t k = 0; k < a->K; k += VF) {
        WITH_DTYPE(a->dtype, vf_put(x, k, a->K, vf_get(a->x, k, a->K, DT), DTYPE_F32));
    }
    heartbeat_beat();
#pragma omp parallel if (a->N * a->K > WORTH_THREADS)
    {
        _Alignas(64) float sums[ROW_COLUMNS];
        const struct range mine = range_mine(a->N, 64);
        for (int64_t n = mine.first; n < mine.end; n += ROW_COLUMNS) {
            const int64_t count = min64(ROW_COLUMNS, mine.end - n);
            if (a->weights_in_out) {
                WITH_DTYPE(a->dtype, row_combination(sums, x, at(a->w, n, DT), count, a->K, a->N, DT));
            } else {
                WITH_DTYPE(a->dtype, row_dots(sums, x, at(a->w, n * a->K, DT), count, a->K, DT));
            }
            epilogue_rows(e, sums, ROW_COLUMNS, NULL, 0, 0, n, 1, count);
        }
    }
    heartbeat_beat();
}
