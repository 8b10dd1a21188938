/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_attention_decode.h: attention of a few new tokens over a cache of keys and values. A template, see ops_cpu.h. A
 * head of a query is one task. It reads each key and value once, so nothing is packed; the softmax runs over
 * DECODE_KEYS keys at a time, as in cpu_attention.h. */

enum { DECODE_KEYS = 512 }; /* scores that exist at a time */
_Static_assert((int)DECODE_KEYS <= 2 * (int)ATTENTION_ROWS * (int)GEMM_MAX_NR, "attention's scratch has room");

static void decode_store(const struct attention_decode_args *a, void *cache, const void *rows, int64_t ld)
{
    const size_t bytes = (size_t)a->D * dtype_size(a->dtype);
    for (int64_t i = 0; i < a->M; i++)
        for (int64_t kv = 0; kv < a->KV; kv++)
            memcpy(at(cache, (kv * a->capacity + a->start + i) * a->D, a->dtype),
                   at(rows, i * ld + kv * a->D, a->dtype), bytes);
}

static ALWAYS_INLINE float decode_dot(const void *x, const float *y, int64_t n, enum dtype dtype)
{
    vf sum = vf_zero();
    for (int64_t j = 0; j < n; j += VF) sum += vf_get(x, j, n, dtype) * vf_get(y, j, n, DTYPE_F32);
    return vf_sum(sum);
}

/* A query's running softmax: the highest score so far, the sum of the weights, and (D) that of the weighted values. */
struct decode_sums {
    float highest, sum;
    float *values;
};

/* Adds `count` (at most DECODE_KEYS) keys and values. scores: scratch for DECODE_KEYS. */
static ALWAYS_INLINE void decode_block(const struct attention_decode_args *a, const float *q, const void *keys,
                                       const void *values, int64_t count, float *scores, struct decode_sums *sums,
                                       enum dtype dtype)
{
    for (int64_t i = 0; i < count; i++) scores[i] = decode_dot(at(keys, i * a->D, dtype), q, a->D, dtype) * a->scale;
    for (int64_t i = 0; i < count && a->softcap > 0; i += VF)
        vf_put(scores, i, count, a->softcap * vf_tanh(vf_get(scores, i, count, DTYPE_F32) / a->softcap), DTYPE_F32);
    float top = sums->highest;
    for (int64_t i = 0; i < count; i++) top = scores[i] > top ? scores[i] : top;
    const float keep = sums->highest == -INFINITY ? 0 : expf(sums->highest - top);
    vf total = vf_zero();
    for (int64_t i = 0; i < count; i += VF) {
        vf p = vf_exp(vf_get(scores, i, count, DTYPE_F32) - top);
        p = vf_select(vf_lanes_below(count - i), p, vf_zero());
        vf_put(scores, i, count, p, DTYPE_F32);
        total += p;
    }
    for (int64_t j = 0; j < a->D; j += VF) {
        vf sum = vf_get(sums->values, j, a->D, DTYPE_F32) * keep;
        for (int64_t i = 0; i < count; i++) sum += scores[i] * vf_get(at(values, i * a->D, dtype), j, a->D, dtype);
        vf_put(sums->values, j, a->D, sum, DTYPE_F32);
    }
    sums->highest = top;
    sums->sum = sums->sum * keep + vf_sum(total);
}

/* One head of one query. floats: scratch for DECODE_KEYS + 2 D, with D rounded up to whole vectors. */
static ALWAYS_INLINE void decode_head(const struct attention_decode_args *a, int64_t m, int64_t h, float *room,
                                      enum dtype t)
{
    const int64_t padded = round_up(a->D, VF), head = h / (a->H / a->KV) * a->capacity * a->D;
    const int64_t position = a->start + m;
    float *scores = room, *q = scores + DECODE_KEYS;
    struct decode_sums sums = {a->sinks ? dtype_load(a->sinks, h, t) : -INFINITY, a->sinks != NULL, q + padded};
    for (int64_t j = 0; j < a->D; j += VF)
        vf_put(q, j, a->D, vf_get(at(a->q, m * a->ld_q + h * a->D, t), j, a->D, t), DTYPE_F32);
    memset(sums.values, 0, (size_t)padded * sizeof *sums.values);
    int64_t key = a->window > 0 && position >= a->window ? position - a->window + 1 : 0;
    for (; key <= position; key += DECODE_KEYS)
        decode_block(a, q, at(a->k_cache, head + key * a->D, t), at(a->v_cache, head + key * a->D, t),
                     min64(DECODE_KEYS, position + 1 - key), scores, &sums, t);
    const float factor = 1 / sums.sum;
    for (int64_t j = 0; j < a->D; j += VF)
        vf_put(at(a->out, m * a->ld_o + h * a->D, t), j, a->D, vf_get(sums.values, j, a->D, DTYPE_F32) * factor, t);
}

static void op_attention_decode(struct stream *stream, const struct attention_decode_args *a)
{
    ASSERT(a->start >= 0 && a->start + a->M <= a->capacity);
    heartbeat_beat();
    decode_store(a, a->k_cache, a->k, a->ld_k);
    decode_store(a, a->v_cache, a->v, a->ld_v);
    if (!a->q) return;
    struct scratch scratch = scratch_of(stream);
    const int64_t thread_floats = ATTENTION_THREAD_FLOATS(a->D); /* more than enough */
    float *threads = scratch_take(&scratch, (size_t)(team_next() * thread_floats) * sizeof *threads);
#pragma omp parallel for schedule(static) if (a->M * a->H * (a->start + a->M) * a->D > WORTH_THREADS)
    for (int64_t item = 0; item < a->M * a->H; item++) {
        float *mine = threads + team_rank() * thread_floats;
        WITH_DTYPE(a->dtype, decode_head(a, item / a->H, item % a->H, mine, DT));
    }
}
