/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_embedding.h: the embedding, forward and backward. A template, see ops_cpu.h. */

static ALWAYS_INLINE void embedding_fwd_rows(const struct embedding_fwd_args *a, struct range rows, enum dtype dtype)
{
    for (int64_t i = rows.first; i < rows.end; i++) {
        void *out = at(a->out, i * a->C, dtype);
        const void *token = at(a->wte, a->tokens[i] * a->C, dtype);
        const void *position = a->wpe ? at(a->wpe, a->positions[i] * a->C, dtype) : NULL;
        const void *type = a->wse ? at(a->wse, a->types[i] * a->C, dtype) : NULL;
        for (int64_t j = 0; j < a->C; j += VF) {
            vf x = vf_get(token, j, a->C, dtype);
            if (position) x += vf_get(position, j, a->C, dtype);
            if (type) x += vf_get(type, j, a->C, dtype);
            vf_put(out, j, a->C, x * a->scale, dtype);
        }
    }
}

OP_IN_PARTS(embedding_fwd, a->M * a->C, a->M, 1, WITH_DTYPE(a->dtype, embedding_fwd_rows(a, part, DT)))

/* A thread adds up its columns over all rows in order: no two threads add to the same element. */
static ALWAYS_INLINE void embedding_bwd_columns(const struct embedding_bwd_args *a, struct range columns,
                                                enum dtype dtype)
{
    for (int64_t i = 0; i < a->M; i++) {
        const void *dout = at(a->dout, i * a->C, dtype);
        float *token = a->dwte && a->tokens[i] != a->padding ? a->dwte + a->tokens[i] * a->C : NULL;
        float *position = a->dwpe ? a->dwpe + a->positions[i] * a->C : NULL;
        float *type = a->dwse ? a->dwse + a->types[i] * a->C : NULL;
        for (int64_t j = columns.first; j < columns.end; j += VF) {
            vf d = vf_get(dout, j, columns.end, dtype) * a->scale;
            if (token) vf_put(token, j, columns.end, vf_get(token, j, columns.end, DTYPE_F32) + d, DTYPE_F32);
            if (position) vf_put(position, j, columns.end, vf_get(position, j, columns.end, DTYPE_F32) + d, DTYPE_F32);
            if (type) vf_put(type, j, columns.end, vf_get(type, j, columns.end, DTYPE_F32) + d, DTYPE_F32);
        }
    }
}

static void embedding_zero_floats(float *x, int64_t n)
{
    IN_PARTS(n, n, 1024,
             if (part.end > part.first) memset(x + part.first, 0, (size_t)(part.end - part.first) * sizeof *x));
}

static void op_embedding_bwd(struct stream *stream, const struct embedding_bwd_args *a)
{
    (void)stream;
    heartbeat_beat();
    if (a->dwte && !a->accumulate_wte) embedding_zero_floats(a->dwte, a->V * a->C);
    if (a->dwpe && !a->accumulate_wpe) embedding_zero_floats(a->dwpe, a->P * a->C);
    if (a->dwse && !a->accumulate_wse) embedding_zero_floats(a->dwse, a->S * a->C);
    IN_PARTS(a->M * a->C, a->C, 16, WITH_DTYPE(a->dtype, embedding_bwd_columns(a, part, DT)));
}
