/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_attention_sink.h: the sinks of attention. A template, see ops_cpu.h. */

static ALWAYS_INLINE void sink_fwd_rows(const struct attention_sink_fwd_args *a, struct range rows, enum dtype dtype)
{
    for (int64_t i = rows.first; i < rows.end; i++) {
        const int64_t m = i / a->H, h = i % a->H;
        void *out = at(a->out, m * a->ld_o + h * a->D, dtype);
        float *lse = a->lse + h * a->M + m;
        const float sink = dtype_load(a->sinks, h, dtype), share = 1 / (1 + expf(sink - *lse));
        for (int64_t j = 0; j < a->D; j += VF) vf_put(out, j, a->D, vf_get(out, j, a->D, dtype) * share, dtype);
        *lse = fmaxf(*lse, sink) + log1pf(expf(-fabsf(sink - *lse)));
    }
}

OP_IN_PARTS(attention_sink_fwd, a->M * a->H * a->D, a->M * a->H, 1, WITH_DTYPE(a->dtype, sink_fwd_rows(a, part, DT)))

/* sums (H): of these tokens. */
static ALWAYS_INLINE void sink_bwd_rows(const struct attention_sink_bwd_args *a, struct range rows, float *sums,
                                        enum dtype dtype)
{
    for (int64_t i = rows.first * a->H; i < rows.end * a->H; i++) {
        const int64_t m = i / a->H, h = i % a->H, first = m * a->ld_o + h * a->D;
        const void *out = at(a->out, first, dtype), *dout = at(a->dout, first, dtype);
        const float dot = vf_sum(vf_dot(out, dout, a->D, dtype));
        sums[h] -= expf(dtype_load(a->sinks, h, dtype) - a->lse[h * a->M + m]) * dot;
    }
}

static void op_attention_sink_bwd(struct stream *stream, const struct attention_sink_bwd_args *a)
{
    heartbeat_beat();
    struct scratch scratch = scratch_of(stream);
    const int64_t stride = round_up(a->H, SUMS_GRAIN), parts = row_parts(a->M);
    const size_t bytes = (size_t)(parts * stride) * sizeof(float);
    float *partial = scratch_take(&scratch, bytes);
    memset(partial, 0, bytes);
#pragma omp parallel if (a->M * a->H * a->D > WORTH_THREADS)
    {
#pragma omp for schedule(static)
        for (int64_t part = 0; part < parts; part++) {
            const struct range rows = range_part(a->M, 1, parts, part);
            WITH_DTYPE(a->dtype, sink_bwd_rows(a, rows, partial + part * stride, DT));
        }
        norm_column_sums(a->dsinks, partial, stride, parts, range_mine(a->H, 16), DTYPE_F32, a->accumulate);
    }
}
