/* ops_cpu_attention.h: causal attention without the score matrix. A template, see ops_cpu.h. */

static ALWAYS_INLINE float dot(const void *x, const void *y, int64_t n, enum dtype dtype_x, enum dtype dtype_y)
{
    vf sum = vf_zero();
    for (int64_t j = 0; j < n; j += VF)
        sum += vf_get(x, j, n, dtype_x) * vf_get(y, j, n, dtype_y);
    return vf_sum(sum);
}

/* y (fp32) += factor · x */
static ALWAYS_INLINE void add_scaled(float *y, float factor, const void *x, int64_t n, enum dtype dtype)
{
    for (int64_t j = 0; j < n; j += VF)
        vf_put(y, j, n, vf_get(y, j, n, DTYPE_F32) + factor * vf_get(x, j, n, dtype), DTYPE_F32);
}

static ALWAYS_INLINE int64_t first_key(int64_t row, int64_t start, int64_t window)
{
    return window > 0 && row - window + 1 > start ? row - window + 1 : start;
}

static ALWAYS_INLINE void attention_fwd_row(const struct attention_fwd_args *a, int64_t start, int64_t row, int64_t h,
                                            float *out, enum dtype dtype)
{
    const int64_t D = a->D, kv = h / (a->H / a->KV);
    const void *q = at(a->q, row * a->ld_q + h * D, dtype);
    float highest = -INFINITY, sum = 0;
    memset(out, 0, (size_t)D * sizeof *out);
    for (int64_t key = first_key(row, start, a->window); key <= row; key++) {
        float score = a->scale * dot(q, at(a->k, key * a->ld_k + kv * D, dtype), D, dtype, dtype);
        float higher = score > highest ? score : highest;
        float keep = expf(highest - higher), p = expf(score - higher);
        for (int64_t j = 0; j < D; j += VF)
            vf_put(out, j, D, vf_get(out, j, D, DTYPE_F32) * keep, DTYPE_F32);
        add_scaled(out, p, at(a->v, key * a->ld_v + kv * D, dtype), D, dtype);
        sum = sum * keep + p;
        highest = higher;
    }
    void *o = at(a->out, row * a->ld_o + h * D, dtype);
    for (int64_t j = 0; j < D; j += VF)
        vf_put(o, j, D, vf_get(out, j, D, DTYPE_F32) * (1.0f / sum), dtype);
    a->lse[h * a->M + row] = highest + logf(sum);
}

static void op_attention_fwd(struct stream *stream, const struct attention_fwd_args *a)
{
    require_dtype(a->dtype);
    progress_tick();
    struct scratch scratch = scratch_of(stream);
    int64_t stride = (a->D + 15) / 16 * 16;
    float *out = scratch_take(&scratch, (size_t)(team_next() * stride) * sizeof *out);
    for (int32_t s = 0; s < a->num_seqs; s++) {
        int64_t start = a->seq_start[s], length = a->seq_start[s + 1] - start;
#pragma omp parallel for schedule(static)
        for (int64_t item = 0; item < a->H * length; item++) {
            int64_t h = item / length, row = start + item % length;
            if (a->dtype == DTYPE_F32)
                attention_fwd_row(a, start, row, h, out + team_rank() * stride, DTYPE_F32);
            else
                attention_fwd_row(a, start, row, h, out + team_rank() * stride, DTYPE_BF16);
        }
    }
}

/* All of one sequence and one key/value head. dk, dv: fp32 scratch (length, D); dq: scratch (D). */
static ALWAYS_INLINE void attention_bwd_head(const struct attention_bwd_args *a, int64_t start, int64_t length,
                                             int64_t kv, float *dq, float *dk, float *dv, enum dtype dtype)
{
    const int64_t D = a->D, group = a->H / a->KV;
    memset(dk, 0, (size_t)(length * D) * sizeof *dk);
    memset(dv, 0, (size_t)(length * D) * sizeof *dv);
    for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
        for (int64_t row = start; row < start + length; row++) {
            const void *q = at(a->q, row * a->ld_q + h * D, dtype);
            const void *out = at(a->out, row * a->ld_o + h * D, dtype);
            const void *dout = at(a->dout, row * a->ld_o + h * D, dtype);
            float delta = dot(out, dout, D, dtype, dtype), lse = a->lse[h * a->M + row];
            memset(dq, 0, (size_t)D * sizeof *dq);
            for (int64_t key = first_key(row, start, a->window); key <= row; key++) {
                const void *k = at(a->k, key * a->ld_k + kv * D, dtype), *v = at(a->v, key * a->ld_v + kv * D, dtype);
                float p = expf(a->scale * dot(q, k, D, dtype, dtype) - lse);
                float ds = p * (dot(dout, v, D, dtype, dtype) - delta) * a->scale;
                add_scaled(dv + (key - start) * D, p, dout, D, dtype);
                add_scaled(dk + (key - start) * D, ds, q, D, dtype);
                add_scaled(dq, ds, k, D, dtype);
            }
            void *to = at(a->dq, row * a->ld_dq + h * D, dtype);
            for (int64_t j = 0; j < D; j += VF)
                vf_put(to, j, D, vf_get(dq, j, D, DTYPE_F32), dtype);
        }
    }
    for (int64_t i = 0; i < length; i++) {
        void *to_k = at(a->dk, (start + i) * a->ld_dk + kv * D, dtype);
        void *to_v = at(a->dv, (start + i) * a->ld_dv + kv * D, dtype);
        for (int64_t j = 0; j < D; j += VF) {
            vf_put(to_k, j, D, vf_get(dk + i * D, j, D, DTYPE_F32), dtype);
            vf_put(to_v, j, D, vf_get(dv + i * D, j, D, DTYPE_F32), dtype);
        }
    }
}

static void op_attention_bwd(struct stream *stream, const struct attention_bwd_args *a)
{
    require_dtype(a->dtype);
    progress_tick();
    struct scratch scratch = scratch_of(stream);
    int64_t head_floats = (a->D + 15) / 16 * 16 + 2 * (int64_t)a->max_seq * a->D;
    head_floats = (head_floats + 15) / 16 * 16;
    float *floats = scratch_take(&scratch, (size_t)(team_next() * head_floats) * sizeof *floats);
#pragma omp parallel for schedule(static)
    for (int64_t item = 0; item < a->num_seqs * a->KV; item++) {
        int64_t s = item / a->KV, kv = item % a->KV, start = a->seq_start[s], length = a->seq_start[s + 1] - start;
        float *dq = floats + team_rank() * head_floats, *dk = dq + (a->D + 15) / 16 * 16, *dv = dk + length * a->D;
        if (a->dtype == DTYPE_F32)
            attention_bwd_head(a, start, length, kv, dq, dk, dv, DTYPE_F32);
        else
            attention_bwd_head(a, start, length, kv, dq, dk, dv, DTYPE_BF16);
    }
}
