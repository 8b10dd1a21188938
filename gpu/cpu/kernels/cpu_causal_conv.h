/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_causal_conv.h: convolution of each channel over the last tokens of its sequence. A template, see ops_cpu.h. A
 * task is a vector of channels of a part of the rows: it walks down the rows with its taps in registers. */

/* The weights of a vector of channels; taps that a shorter convolution lacks are the first ones, 0. */
static ALWAYS_INLINE void conv_weights(vf w[CONV_TAPS], const void *weight, int64_t c, int64_t C, int64_t K,
                                       enum dtype dtype)
{
    for (int j = 0; j < CONV_TAPS; j++) {
        const int64_t tap = j - (CONV_TAPS - K);
        w[j] = vf_zero();
        for (int64_t l = 0; tap >= 0 && l < min64(VF, C - c); l++)
            w[j][l] = dtype_load(weight, (c + l) * K + tap, dtype);
    }
}

static int64_t conv_sequence_of(const int32_t *seq_start, int64_t row)
{
    int64_t s = 0;
    while (row >= seq_start[s + 1]) s++;
    return s;
}

/* Rows of x that a convolution at `row` reads, in registers; the last one is moved in by conv_step(). */
static ALWAYS_INLINE void conv_window(vf x[CONV_TAPS], const void *rows, int64_t ld, int64_t row, int64_t start,
                                      int64_t c, int64_t C, enum dtype dtype)
{
    for (int64_t j = 0; j < CONV_TAPS; j++) {
        const int64_t from = row - CONV_TAPS + j;
        x[j] = from >= start ? vf_get(at(rows, from * ld, dtype), c, C, dtype) : vf_zero();
    }
}

/* Moves the row in; returns the sum. */
static ALWAYS_INLINE vf conv_step(vf x[CONV_TAPS], const vf w[CONV_TAPS], vf row)
{
    vf sum = vf_zero();
    for (int j = 0; j < CONV_TAPS; j++) {
        x[j] = j + 1 < CONV_TAPS ? x[j + 1] : row;
        sum += w[j] * x[j];
    }
    return sum;
}

/* What comes before a sequence, from its state, and after it. */
static ALWAYS_INLINE void conv_state(const struct causal_conv_fwd_args *a, int64_t s, vf x[CONV_TAPS], int64_t c,
                                     bool save, enum dtype dtype)
{
    for (int64_t j = 0; a->state && j < a->K; j++) {
        void *row = at(a->state, (s * a->K + j) * a->C, dtype);
        if (save)
            vf_put(row, c, a->C, x[CONV_TAPS - a->K + j], dtype);
        else
            x[CONV_TAPS - a->K + j] = vf_get(row, c, a->C, dtype);
    }
}

static ALWAYS_INLINE void conv_fwd_rows(const struct causal_conv_fwd_args *a, struct range rows, int64_t c,
                                        enum dtype dtype)
{
    int64_t s = conv_sequence_of(a->seq_start, rows.first);
    vf w[CONV_TAPS], x[CONV_TAPS];
    conv_weights(w, a->weight, c, a->C, a->K, dtype);
    conv_window(x, a->x, a->ld_x, rows.first, a->seq_start[s], c, a->C, dtype);
    for (int64_t i = rows.first; i < rows.end; i++) {
        for (; i >= a->seq_start[s + 1]; s++) conv_window(x, a->x, a->ld_x, i, i, c, a->C, dtype);
        if (i == a->seq_start[s]) conv_state(a, s, x, c, false, dtype);
        vf y = conv_step(x, w, vf_get(at(a->x, i * a->ld_x, dtype), c, a->C, dtype));
        vf_put(at(a->y, i * a->ld_y, dtype), c, a->C, y * vf_sigmoid(y, dtype != DTYPE_F32), dtype);
        if (i + 1 == a->seq_start[s + 1]) conv_state(a, s, x, c, true, dtype);
    }
}

static void op_causal_conv_fwd(struct stream *stream, const struct causal_conv_fwd_args *a)
{
    ASSERT(a->K >= 1 && a->K <= CONV_TAPS);
    (void)stream;
    heartbeat_beat();
    const int64_t parts = a->state ? 1 : row_parts(a->M), tiles = a->M ? (a->C + VF - 1) / VF : 0;
#pragma omp parallel for schedule(static) if (a->M * a->C > WORTH_THREADS)
    for (int64_t item = 0; item < parts * tiles; item++) {
        const struct range rows = range_part(a->M, 1, parts, item / tiles);
        WITH_DTYPE(a->dtype, conv_fwd_rows(a, rows, item % tiles * VF, DT));
    }
}

/* dx of a row is written CONV_TAPS - 1 rows later, when all gradients of sums that it is part of are in registers.
 * dweight (CONV_TAPS, stride): the sums of these rows. */
static ALWAYS_INLINE void conv_bwd_rows(const struct causal_conv_bwd_args *a, struct range rows, int64_t c,
                                        float *dweight, int64_t stride, enum dtype dtype)
{
    int64_t s = conv_sequence_of(a->seq_start, rows.first), written = s;
    vf w[CONV_TAPS], x[CONV_TAPS], d[CONV_TAPS] = {{0}}, dw[CONV_TAPS] = {{0}};
    conv_weights(w, a->weight, c, a->C, a->K, dtype);
    conv_window(x, a->x, a->ld_x, rows.first, a->seq_start[s], c, a->C, dtype);
    for (int64_t i = rows.first; i < rows.end + CONV_TAPS - 1; i++) {
        for (int j = 0; j + 1 < CONV_TAPS; j++) d[j] = d[j + 1];
        d[CONV_TAPS - 1] = vf_zero();
        if (i < a->M) {
            for (; i >= a->seq_start[s + 1]; s++) conv_window(x, a->x, a->ld_x, i, i, c, a->C, dtype);
            vf y = conv_step(x, w, vf_get(at(a->x, i * a->ld_x, dtype), c, a->C, dtype));
            vf g = vf_sigmoid(y, false); /* dweight is fp32 */
            vf dy = vf_get(at(a->dy, i * a->ld_dy, dtype), c, a->C, dtype) * g * (1.0f + y * (1.0f - g));
            d[CONV_TAPS - 1] = dy;
            for (int j = 0; j < CONV_TAPS && i < rows.end; j++) dw[j] += dy * x[j];
        }
        const int64_t row = i - (CONV_TAPS - 1);
        if (row < rows.first) continue;
        vf dx = vf_zero();
        while (row >= a->seq_start[written + 1]) written++;
        for (int64_t j = 0; j < CONV_TAPS && row + j < a->seq_start[written + 1]; j++)
            dx += w[CONV_TAPS - 1 - j] * d[j];
        vf_put(at(a->dx, row * a->ld_dx, dtype), c, a->C, dx, dtype);
    }
    for (int j = 0; j < CONV_TAPS; j++) vf_put(dweight + j * stride, c, a->C, dw[j], DTYPE_F32);
}

static void op_causal_conv_bwd(struct stream *stream, const struct causal_conv_bwd_args *a)
{
    ASSERT(a->K >= 1 && a->K <= CONV_TAPS);
    heartbeat_beat();
    struct scratch scratch = scratch_of(stream);
    const int64_t stride = round_up(a->C, SUMS_GRAIN), parts = row_parts(a->M);
    const int64_t tiles = (a->C + VF - 1) / VF, rows_tiles = a->M ? tiles : 0;
    float *partial = scratch_take(&scratch, (size_t)(parts * CONV_TAPS * stride) * sizeof *partial);
#pragma omp parallel if (a->M * a->C > WORTH_THREADS)
    {
#pragma omp for schedule(static)
        for (int64_t item = 0; item < parts * rows_tiles; item++) {
            const int64_t part = item / tiles;
            const struct range rows = range_part(a->M, 1, parts, part);
            WITH_DTYPE(a->dtype,
                       conv_bwd_rows(a, rows, item % tiles * VF, partial + part * CONV_TAPS * stride, stride, DT));
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < a->C * a->K; i++) {
            float sum = 0;
            for (int64_t part = 0; part < parts && a->dweight && a->M; part++)
                sum += partial[(part * CONV_TAPS + CONV_TAPS - a->K + i % a->K) * stride + i / a->K];
            if (a->dweight) a->dweight[i] = a->accumulate ? a->dweight[i] + sum : sum;
        }
    }
}
