/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_norm.h: LayerNorm and RMSNorm over rows, RMSNorm over heads. A template, see ops_cpu.h. Gradients of the weights
 * are sums over parts of the rows, which are then added in the order of the parts. */

static ALWAYS_INLINE void norm_fwd_row(const struct norm_fwd_args *a, int64_t i, enum dtype dtype)
{
    const int64_t C = a->C;
    const void *x = at(a->x, i * C, dtype);
    vf sum = vf_zero();
    if (a->delta) {
        const void *delta = at(a->delta, i * C, dtype);
        void *x_out = at(a->x_out, i * C, dtype);
        for (int64_t j = 0; j < C; j += VF)
            vf_put(x_out, j, C, vf_get(x, j, C, dtype) + vf_get(delta, j, C, dtype) * a->delta_scale, dtype);
        x = x_out;
    }
    float mean = 0;
    vf square = vf_zero();
    if (a->kind == NORM_LAYER) {
        for (int64_t j = 0; j < C; j += VF) sum += vf_get(x, j, C, dtype);
        mean = vf_sum(sum) / (float)C;
        a->mean[i] = mean;
        int64_t whole = C / VF * VF;
        for (int64_t j = 0; j < whole; j += VF) {
            vf d = vf_load(x, j, dtype) - mean;
            square += d * d;
        }
        if (whole < C) {
            vf d = vf_load_part(x, whole, C - whole, dtype) - mean;
            square += vf_select(vf_lanes_below(C - whole), d * d, vf_zero());
        }
    } else {
        square = vf_dot(x, x, C, dtype);
    }
    float rstd = 1.0f / sqrtf(vf_sum(square) / (float)C + a->eps);
    a->rstd[i] = rstd;
    void *y = at(a->y, i * C, dtype);
    for (int64_t j = 0; j < C; j += VF) {
        vf v = (vf_get(x, j, C, dtype) - mean) * rstd * (vf_get(a->weight, j, C, dtype) + a->weight_offset);
        if (a->bias) v += vf_get(a->bias, j, C, dtype);
        vf_put(y, j, C, v, dtype);
    }
}

static void norm_fwd_part(const struct norm_fwd_args *a, struct range rows)
{
    ASSERT(a->kind == NORM_RMS || a->mean);
    for (int64_t i = rows.first; i < rows.end; i++) WITH_DTYPE(a->dtype, norm_fwd_row(a, i, DT));
}

OP_IN_PARTS(norm_fwd, a->M * a->C, a->M, 1, norm_fwd_part(a, part))

/* With n = (x - mean) · rstd and g = dy · (weight_offset + weight): adds dy · n to dweight and dy to dbias, the sums of
 * a part of the rows; then dx = dres + rstd · (g - mean(g) - n · mean(g · n)), where RMSNorm has no mean(g), which is
 * added to dx_sums as it was rounded. dbias and dx_sums may be NULL. */
static ALWAYS_INLINE void norm_bwd_row(const struct norm_bwd_args *a, int64_t i, float *dweight, float *dbias,
                                       float *dx_sums, enum dtype dtype)
{
    const int64_t C = a->C;
    const float mean = a->kind == NORM_LAYER ? a->mean[i] : 0, rstd = a->rstd[i];
    const void *x = at(a->x, i * C, dtype), *dy = at(a->dy, i * C, dtype);
    const void *dres = a->dres ? at(a->dres, i * C, dtype) : NULL;
    void *dx = at(a->dx, i * C, dtype);
    vf sum_g = vf_zero(), sum_gn = vf_zero();
    for (int64_t j = 0; j < C; j += VF) {
        vf d = vf_get(dy, j, C, dtype), n = (vf_get(x, j, C, dtype) - mean) * rstd;
        vf g = d * (vf_get(a->weight, j, C, dtype) + a->weight_offset);
        sum_g += g;
        sum_gn += g * n; /* d and g are zero in the lanes beyond C */
        vf_put(dweight, j, C, vf_get(dweight, j, C, DTYPE_F32) + d * n, DTYPE_F32);
        if (dbias) vf_put(dbias, j, C, vf_get(dbias, j, C, DTYPE_F32) + d, DTYPE_F32);
    }
    const float mean_g = a->kind == NORM_LAYER ? vf_sum(sum_g) / (float)C : 0, mean_gn = vf_sum(sum_gn) / (float)C;
    for (int64_t j = 0; j < C; j += VF) {
        vf n = (vf_get(x, j, C, dtype) - mean) * rstd;
        vf g = vf_get(dy, j, C, dtype) * (vf_get(a->weight, j, C, dtype) + a->weight_offset);
        vf v = rstd * (g - mean_g - n * mean_gn);
        if (dres) v += vf_get(dres, j, C, dtype);
        vf_put(dx, j, C, v, dtype);
        if (dx_sums) vf_put(dx_sums, j, C, vf_get(dx_sums, j, C, DTYPE_F32) + vf_get(dx, j, C, dtype), DTYPE_F32);
    }
}

/* sums (+)= the sums of some columns of x over its rows, which are ld apart */
static ALWAYS_INLINE void norm_column_sums(float *sums, const void *x, int64_t ld, int64_t rows, struct range columns,
                                           enum dtype dtype, bool accumulate)
{
    for (int64_t j = columns.first; j < columns.end; j += VF) {
        vf sum = accumulate ? vf_get(sums, j, columns.end, DTYPE_F32) : vf_zero();
        for (int64_t i = 0; i < rows; i++) sum += vf_get(at(x, i * ld, dtype), j, columns.end, dtype);
        vf_put(sums, j, columns.end, sum, DTYPE_F32);
    }
}

static void op_norm_bwd(struct stream *stream, const struct norm_bwd_args *a)
{
    heartbeat_beat();
    struct scratch scratch = scratch_of(stream);
    const int64_t stride = round_up(a->C, SUMS_GRAIN), parts = row_parts(a->M);
    float *partial = scratch_take(&scratch, (size_t)(parts * NORM_SUMS * stride) * sizeof *partial);
#pragma omp parallel if (a->M * a->C > WORTH_THREADS)
    {
#pragma omp for schedule(static)
        for (int64_t part = 0; part < parts; part++) {
            float *dweight = partial + part * NORM_SUMS * stride, *dbias = a->dbias ? dweight + stride : NULL;
            float *dx_sums = a->dx_sums ? dweight + 2 * stride : NULL;
            memset(dweight, 0, (size_t)(NORM_SUMS * stride) * sizeof *dweight);
            struct range rows = range_part(a->M, 1, parts, part);
            for (int64_t i = rows.first; i < rows.end; i++) {
                WITH_DTYPE(a->dtype, norm_bwd_row(a, i, dweight, dbias, dx_sums, DT));
            }
        }
        struct range columns = range_mine(a->C, 16);
        const int64_t part = NORM_SUMS * stride;
        float *const sums[NORM_SUMS] = {a->dweight, a->dbias, a->dx_sums};
        for (int i = 0; i < NORM_SUMS; i++)
            if (sums[i])
                norm_column_sums(sums[i], partial + i * stride, part, parts, columns, DTYPE_F32,
                                 i < 2 ? a->accumulate : a->accumulate_sums);
    }
}

/* ---- RMSNorm of every head ----------------------------------------------- */

static ALWAYS_INLINE void head_norm_fwd_rows(const struct head_norm_fwd_args *a, struct range rows, enum dtype dtype)
{
    const int64_t D = a->D;
    const bool half = dtype != DTYPE_F32;
    for (int64_t i = rows.first; i < rows.end; i++) {
        for (int64_t h = 0; h < a->heads; h++) {
            const void *x = at(a->x, i * a->ld_x + h * D, dtype);
            void *y = at(a->y, i * a->ld_y + h * D, dtype);
            float rstd = 1.0f / sqrtf(vf_sum(vf_dot(x, x, D, dtype)) / (float)D + a->eps);
            a->rstd[i * a->heads + h] = rstd;
            const void *gate = a->gate ? at(a->gate, i * a->ld_gate + h * D, dtype) : NULL;
            for (int64_t j = 0; j < D; j += VF) {
                vf n = vf_get(x, j, D, dtype) * rstd * (vf_get(a->weight, j, D, dtype) + a->weight_offset);
                vf z = a->gate ? vf_get(gate, j, D, dtype) : vf_zero();
                vf_put(y, j, D, a->gate ? n * z * vf_sigmoid(z, half) : n, dtype);
            }
        }
    }
}

static void head_norm_fwd_part(const struct head_norm_fwd_args *a, struct range part)
{
    const struct rope_args rope = rope_of_head_norm(a);
    ASSERT(!a->gate || !a->positions);
    WITH_DTYPE(a->dtype, head_norm_fwd_rows(a, part, DT));
    if (a->positions) rope_part(&rope, part);
}

OP_IN_PARTS(head_norm_fwd, a->M * a->heads * a->D, a->M, 1, head_norm_fwd_part(a, part))

/* gated: scratch for D gradients of the normed and weighted values. */
static ALWAYS_INLINE void head_norm_bwd_rows(const struct head_norm_bwd_args *a, struct range rows, float *dweight,
                                             float *gated, enum dtype dtype)
{
    const int64_t D = a->D;
    for (int64_t i = rows.first; i < rows.end; i++) {
        for (int64_t h = 0; h < a->heads; h++) {
            const void *x = at(a->x, i * a->ld_x + h * D, dtype), *dy = at(a->dy, i * a->ld_dy + h * D, dtype);
            const void *gate = a->gate ? at(a->gate, i * a->ld_gate + h * D, dtype) : NULL;
            void *dx = at(a->dx, i * a->ld_dx + h * D, dtype);
            const void *dres = a->dres ? at(a->dres, i * a->ld_dx + h * D, dtype) : NULL;
            void *dgate = a->gate ? at(a->dgate, i * a->ld_gate + h * D, dtype) : NULL;
            float rstd = a->rstd[i * a->heads + h];
            vf sum = vf_zero();
            for (int64_t j = 0; j < D; j += VF) {
                vf d = vf_get(dy, j, D, dtype), n = vf_get(x, j, D, dtype) * rstd;
                vf w = vf_get(a->weight, j, D, dtype) + a->weight_offset;
                if (a->gate) {
                    vf z = vf_get(gate, j, D, dtype), s = vf_sigmoid(z, false); /* dweight is fp32 */
                    vf_put(dgate, j, D, d * n * w * s * (1.0f + z * (1.0f - s)), dtype);
                    d *= z * s;
                }
                vf_put(gated, j, D, d * w, DTYPE_F32);
                sum += d * w * n;
                vf_put(dweight, j, D, vf_get(dweight, j, D, DTYPE_F32) + d * n, DTYPE_F32);
            }
            float mean = vf_sum(sum) / (float)D;
            for (int64_t j = 0; j < D; j += VF) {
                vf g = rstd * (vf_get(gated, j, D, DTYPE_F32) - vf_get(x, j, D, dtype) * rstd * mean);
                vf_put(dx, j, D, dres ? g + vf_get(dres, j, D, dtype) : g, dtype);
            }
        }
    }
}

static void op_head_norm_bwd(struct stream *stream, const struct head_norm_bwd_args *a)
{
    heartbeat_beat();
    struct scratch scratch = scratch_of(stream);
    const int64_t stride = round_up(a->D, SUMS_GRAIN), parts = row_parts(a->M);
    float *partial = scratch_take(&scratch, (size_t)(parts * 2 * stride) * sizeof *partial);
#pragma omp parallel if (a->M * a->heads * a->D > WORTH_THREADS)
    {
#pragma omp for schedule(static)
        for (int64_t part = 0; part < parts; part++) {
            float *dweight = partial + part * 2 * stride;
            memset(dweight, 0, (size_t)stride * sizeof *dweight);
            struct range rows = range_part(a->M, 1, parts, part);
            WITH_DTYPE(a->dtype, head_norm_bwd_rows(a, rows, dweight, dweight + stride, DT));
        }
        if (a->dweight)
            norm_column_sums(a->dweight, partial, 2 * stride, parts, range_mine(a->D, 16), DTYPE_F32, a->accumulate);
    }
}
