/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_pointwise.h: the ops whose elements are computed one by one. A template, see ops_cpu.h. */

/* ---- pairs --------------------------------------------------------------- */

struct vf_pair {
    vf first, second;
};

/* Of a row of n pairs, those from j on: elements j and n + j, or `interleaved` 2j and 2j + 1. */
static ALWAYS_INLINE struct vf_pair pair_get(const void *row, int64_t j, int64_t n, bool interleaved, enum dtype dtype)
{
    float x[2 * VF] = {0};
    struct vf_pair pair = {vf_zero(), vf_zero()};
    if (!interleaved) return (struct vf_pair){vf_get(row, j, n, dtype), vf_get(at(row, n, dtype), j, n, dtype)};
    for (int64_t i = 0; i < 2 && 2 * j + i * VF < 2 * n; i++)
        vf_store(x, i * VF, vf_get(row, 2 * j + i * VF, 2 * n, dtype), DTYPE_F32);
    for (int i = 0; i < VF; i++) {
        pair.first[i] = x[2 * i];
        pair.second[i] = x[2 * i + 1];
    }
    return pair;
}

static ALWAYS_INLINE void pair_put(void *row, int64_t j, int64_t n, bool interleaved, struct vf_pair pair,
                                   enum dtype dtype)
{
    float x[2 * VF];
    if (!interleaved) {
        vf_put(row, j, n, pair.first, dtype);
        vf_put(at(row, n, dtype), j, n, pair.second, dtype);
        return;
    }
    for (int i = 0; i < VF; i++) {
        x[2 * i] = pair.first[i];
        x[2 * i + 1] = pair.second[i];
    }
    for (int64_t i = 0; i < 2 && 2 * j + i * VF < 2 * n; i++)
        vf_put(row, 2 * j + i * VF, 2 * n, vf_load(x, i * VF, DTYPE_F32), dtype);
}

/* ---- RoPE ---------------------------------------------------------------- */

static ALWAYS_INLINE void rope_rows(const struct rope_args *a, struct range rows, bool pairs, enum dtype dtype)
{
    ASSERT(a->R % 2 == 0 && a->R > 0 && a->R <= a->D);
    int64_t half = a->R / 2;
    vf sign = vf_set(a->inverse ? -1.0f : 1.0f);
    for (int64_t i = rows.first; i < rows.end; i++) {
        const float *cosines = a->cos_table + a->positions[i] * half, *sines = a->sin_table + a->positions[i] * half;
        for (int64_t h = 0; h < a->heads; h++) {
            void *head = at(a->x, i * a->ld + h * a->D, dtype);
            for (int64_t j = 0; j < half; j += VF) {
                vf c = vf_get(cosines, j, half, DTYPE_F32), s = vf_get(sines, j, half, DTYPE_F32) * sign;
                const struct vf_pair p = pair_get(head, j, half, pairs, dtype);
                const struct vf_pair turned = {p.first * c - p.second * s, p.second * c + p.first * s};
                pair_put(head, j, half, pairs, turned, dtype);
            }
        }
    }
}

static void rope_part(const struct rope_args *a, struct range part)
{
    WITH_BOOL(PAIRS, a->pairs, WITH_DTYPE(a->dtype, rope_rows(a, part, PAIRS, DT)));
}

OP_IN_PARTS(rope, a->M * a->heads * a->D, a->M, 1, rope_part(a, part))

/* ---- the order of heads -------------------------------------------------- */

static void swap_heads_rows(const struct swap_heads_args *a, struct range rows)
{
    const int64_t heads = a->outer * a->inner, width = heads * a->D + a->rest;
    for (int64_t i = rows.first; i < rows.end; i++) {
        const char *x = at(a->x, i * width, a->dtype);
        char *y = at(a->y, i * width, a->dtype);
        for (int64_t h = 0; h < heads; h++)
            memcpy(at(y, (h % a->inner * a->outer + h / a->inner) * a->D, a->dtype), at(x, h * a->D, a->dtype),
                   (size_t)a->D * dtype_size(a->dtype));
        memcpy(at(y, heads * a->D, a->dtype), at(x, heads * a->D, a->dtype), (size_t)a->rest * dtype_size(a->dtype));
    }
}

OP_IN_PARTS(swap_heads, a->M * a->outer * a->inner * a->D, a->M, 1, swap_heads_rows(a, part))

/* ---- gates, SwiGLU, GeGLU ------------------------------------------------ */

/* What a value is multiplied with: this function of its gate. */
enum gate_kind { GATE_SIGMOID, GATE_SILU, GATE_GELU };

static ALWAYS_INLINE void gate_fwd_rows(const struct gate_fwd_args *a, struct range r, enum dtype dtype,
                                        enum gate_kind kind)
{
    const bool half = dtype != DTYPE_F32;
    const int64_t ld_x = a->ld_x ? a->ld_x : a->C;
    for (int64_t i = r.first; i < r.end; i++) {
        const void *x = at(a->x, i * ld_x, dtype), *gate = at(a->gate, i * a->ld_gate, dtype);
        void *y = at(a->y, i * a->C, dtype);
        for (int64_t j = 0; j < a->C; j += VF) {
            const vf g = vf_get(gate, j, a->C, dtype),
                     open = kind == GATE_GELU ? vf_gelu(g, half) : vf_sigmoid(g, half);
            vf_put(y, j, a->C, vf_get(x, j, a->C, dtype) * (kind == GATE_SILU ? g * open : open), dtype);
        }
    }
}

OP_IN_PARTS(gate_fwd, a->M * a->C, a->M, 1,
            WITH_BOOL(GELU, a->gelu, WITH_DTYPE(a->dtype, gate_fwd_rows(a, part, DT, GELU ? GATE_GELU : GATE_SIGMOID))))

static ALWAYS_INLINE void gate_bwd_rows(const struct gate_bwd_args *a, struct range r, enum dtype dtype,
                                        enum gate_kind kind)
{
    const bool half = dtype != DTYPE_F32;
    const int64_t ld_x = a->ld_x ? a->ld_x : a->C;
    for (int64_t i = r.first; i < r.end; i++) {
        const void *dy = at(a->dy, i * a->C, dtype), *x = at(a->x, i * ld_x, dtype);
        const void *gate = at(a->gate, i * a->ld_gate, dtype);
        void *dx = at(a->dx, i * ld_x, dtype), *dgate = at(a->dgate, i * a->ld_gate, dtype);
        for (int64_t j = 0; j < a->C; j += VF) {
            const vf d = vf_get(dy, j, a->C, dtype), u = vf_get(x, j, a->C, dtype), g = vf_get(gate, j, a->C, dtype),
                     open = kind == GATE_GELU ? vf_gelu(g, half) : vf_sigmoid(g, half);
            const vf slope = kind == GATE_SILU ? 1.0f + g * (1.0f - open) : 1.0f - open;
            vf_put(dgate, j, a->C, kind == GATE_GELU ? d * u * vf_gelu_grad(g, half) : d * u * open * slope, dtype);
            vf_put(dx, j, a->C, kind == GATE_SILU ? d * g * open : d * open, dtype);
        }
    }
}

OP_IN_PARTS(gate_bwd, a->M * a->C, a->M, 1,
            WITH_BOOL(GELU, a->gelu, WITH_DTYPE(a->dtype, gate_bwd_rows(a, part, DT, GELU ? GATE_GELU : GATE_SIGMOID))))

/* SwiGLU and its derivatives (swiglu_fwd_args). */
struct swiglu_parts {
    vf h, dgate, dup;
};

static ALWAYS_INLINE struct swiglu_parts swiglu_parts(struct vf_pair pair, float limit, float alpha, enum dtype dtype)
{
    const vf most = vf_set(limit > 0 ? limit : INFINITY), one = vf_set(limit > 0 ? 1 : 0);
    const vf scale = vf_set(limit > 0 ? alpha : 1), none = vf_zero();
    const vf g = vf_select(pair.first > most, most, pair.first);
    const vf u = vf_select(pair.second > most, most, vf_select(pair.second < -most, -most, pair.second));
    const vf s = vf_sigmoid(scale * g, dtype != DTYPE_F32);
    return (struct swiglu_parts){g * s * (u + one),
                                 vf_select(pair.first > most, none, (u + one) * s * (1.0f + scale * g * (1.0f - s))),
                                 vf_select(pair.second == u, g * s, none)};
}

static ALWAYS_INLINE void swiglu_limited_rows(const struct swiglu_fwd_args *a, struct range r, enum dtype dtype)
{
    for (int64_t i = r.first; i < r.end; i++) {
        for (int64_t j = 0; j < a->F; j += VF) {
            const struct vf_pair pair = pair_get(at(a->gate_up, i * 2 * a->F, dtype), j, a->F, a->interleaved, dtype);
            vf_put(at(a->h, i * a->F, dtype), j, a->F, swiglu_parts(pair, a->limit, a->alpha, dtype).h, dtype);
        }
    }
}

/* Without a limit, gate and up are two parts of a row. */
static void swiglu_fwd_part(const struct swiglu_fwd_args *a, struct range part)
{
    const void *up = at(a->gate_up, a->F, a->dtype);
    const struct gate_fwd_args gate = {a->dtype, a->M, a->F, 2 * a->F, a->h, up, a->gate_up, 2 * a->F, a->gelu};
    ASSERT(a->limit > 0 ? !a->gelu : !a->interleaved);
    if (a->limit > 0)
        WITH_DTYPE(a->dtype, swiglu_limited_rows(a, part, DT));
    else
        WITH_BOOL(GELU, a->gelu, WITH_DTYPE(a->dtype, gate_fwd_rows(&gate, part, DT, GELU ? GATE_GELU : GATE_SILU)));
}

OP_IN_PARTS(swiglu_fwd, a->M * a->F, a->rows ? *a->rows : a->M, 1, swiglu_fwd_part(a, part))

static void swiglu_bwd_part(const struct swiglu_bwd_args *a, struct range part)
{
    const void *up = at(a->gate_up, a->F, a->dtype);
    void *dup = at(a->dgate_up, a->F, a->dtype);
    const struct gate_bwd_args gate = {a->dtype, a->M, a->F,       2 * a->F, dup,    a->dgate_up,
                                       a->dh,    up,   a->gate_up, 2 * a->F, a->gelu};
    WITH_BOOL(GELU, a->gelu, WITH_DTYPE(a->dtype, gate_bwd_rows(&gate, part, DT, GELU ? GATE_GELU : GATE_SILU)));
}

OP_IN_PARTS(swiglu_bwd, a->M * a->F, a->M, 1, swiglu_bwd_part(a, part))

/* ---- tanh ---------------------------------------------------------------- */

static ALWAYS_INLINE void tanh_fwd_part(const struct tanh_fwd_args *a, struct range part, enum dtype dtype)
{
    for (int64_t i = part.first; i < part.end; i += VF)
        vf_put(a->y, i, part.end, vf_tanh(vf_get(a->x, i, part.end, dtype)), dtype);
}

OP_OF_ELEMENTS(tanh_fwd, WITH_DTYPE(a->dtype, tanh_fwd_part(a, part, DT)))

static ALWAYS_INLINE void tanh_bwd_part(const struct tanh_bwd_args *a, struct range part, enum dtype dtype)
{
    for (int64_t i = part.first; i < part.end; i += VF) {
        vf y = vf_get(a->y, i, part.end, dtype);
        vf_put(a->dx, i, part.end, vf_get(a->dy, i, part.end, dtype) * (1.0f - y * y), dtype);
    }
}

OP_OF_ELEMENTS(tanh_bwd, WITH_DTYPE(a->dtype, tanh_bwd_part(a, part, DT)))

/* ---- add, cast, accumulate, sum_ranks ------------------------------------ */

static ALWAYS_INLINE void add_part(const struct add_args *a, struct range part, enum dtype dtype)
{
    const float factor = a->factor ? dtype_load(a->factor, 0, dtype) : 1;
    for (int64_t i = part.first; i < part.end; i += VF) {
        const vf b = a->b ? vf_get(a->b, i, part.end, dtype) : vf_zero();
        vf_put(a->y, i, part.end, (vf_get(a->a, i, part.end, dtype) + b) * factor, dtype);
    }
}

OP_OF_ELEMENTS(add, WITH_DTYPE(a->dtype, add_part(a, part, DT)))

static ALWAYS_INLINE void dropout_rows(const struct dropout_args *a, struct range rows, enum dtype dtype)
{
    for (int64_t row = rows.first; row < rows.end; row++) {
        const void *x = at(a->x, row * a->C, dtype);
        void *y = at(a->y, row * a->C, dtype);
        for (int64_t j = 0; j < a->C; j += DROPOUT_BLOCK) {
            uint32_t words[4];
            float part[DROPOUT_BLOCK];
            const int64_t count = min64(a->C - j, DROPOUT_BLOCK);
            dropout_words(&a->dropout, a->dropout.tokens[row], (uint32_t)(j / DROPOUT_BLOCK), 0, words);
            for (int64_t i = 0; i < count; i++)
                part[i] =
                    dropout_keeps(&a->dropout, words, (int)i) ? dtype_load(x, j + i, dtype) * a->dropout.scale : 0;
            for (int64_t i = 0; i < count; i++) dtype_store(y, j + i, part[i], dtype);
        }
    }
}

OP_IN_PARTS(dropout, a->M * a->C, a->M, 1, WITH_DTYPE(a->dtype, dropout_rows(a, part, DT)))

static ALWAYS_INLINE void cast_part(const struct cast_args *a, struct range part, enum dtype dst, enum dtype src)
{
    if (dst == src && part.end > part.first) {
        memcpy(at(a->dst, part.first, dst), at(a->src, part.first, src),
               (size_t)(part.end - part.first) * dtype_size(src));
        return;
    }
    for (int64_t i = part.first; i < part.end; i += VF)
        vf_put(a->dst, i, part.end, vf_get(a->src, i, part.end, src), dst);
}

OP_OF_ELEMENTS(cast, WITH_DTYPES(a->dst_dtype, a->src_dtype, cast_part(a, part, DST, SRC)))

OP_IN_PARTS(dequantize, a->rows * a->cols, dequantize_count(a), 1, dequantize_units(a, part.first, part.end))

static ALWAYS_INLINE void accumulate_part(const struct accumulate_args *a, struct range part, enum dtype dst,
                                          enum dtype src)
{
    ASSERT(!a->accumulate || a->scale == 1);
    for (int64_t i = part.first; i < part.end; i += VF) {
        vf x = vf_get(a->src, i, part.end, src);
        x = a->accumulate ? vf_get(a->dst, i, part.end, dst) + x : x * a->scale;
        vf_put(a->dst, i, part.end, x, dst);
    }
}

OP_OF_ELEMENTS(accumulate, WITH_DTYPES(a->dst_dtype, a->src_dtype, accumulate_part(a, part, DST, SRC)))

static ALWAYS_INLINE void sum_ranks_part(const struct sum_ranks_args *a, struct range part, enum dtype out_dtype,
                                         enum dtype dtype)
{
    for (int64_t i = part.first; i < part.end; i += VF) {
        vf sum = a->accumulate ? vf_get(a->out, i, part.end, out_dtype) : vf_zero();
        for (int64_t r = 0; r < a->ranks; r++) {
            const void *from = r == a->rank ? a->own : at(a->inbox, r * a->n, dtype);
            vf x = vf_get(from, i, part.end, dtype);
            sum = r > 0 || a->accumulate ? sum + x : x; /* 0 + x is another number for -0 */
        }
        vf_put(a->out, i, part.end, sum, out_dtype);
    }
}

OP_OF_ELEMENTS(sum_ranks, WITH_DTYPES(a->out_dtype, a->dtype, sum_ranks_part(a, part, DST, SRC)))
