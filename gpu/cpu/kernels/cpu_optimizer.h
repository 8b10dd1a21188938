/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_optimizer.h: the end of a step: sum of squares, decision, Adam. A template, see ops_cpu.h. */

/* ---- sum of squares ------------------------------------------------------ */

static ALWAYS_INLINE double sumsq_part(const void *x, struct range part, enum dtype dtype)
{
    enum { LANES = 16 };
    double sums[LANES] = {0}, total = 0;
    int64_t i = part.first;
    for (; i + LANES <= part.end; i += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            double value = (double)dtype_load(x, i + lane, dtype);
            sums[lane] += value * value;
        }
    for (int lane = 0; i < part.end; i++, lane++) {
        double value = (double)dtype_load(x, i, dtype);
        sums[lane] += value * value;
    }
    for (int lane = 0; lane < LANES; lane++) total += sums[lane];
    return total;
}

static void op_sumsq(struct stream *stream, const struct sumsq_args *a)
{
    (void)stream;
    heartbeat_beat();
    double parts[SUMSQ_PARTS];
#pragma omp parallel for schedule(static) if (a->n > WORTH_THREADS)
    for (int64_t part = 0; part < SUMSQ_PARTS; part++) {
        struct range range = range_part(a->n, 1024, SUMSQ_PARTS, part);
        parts[part] = a->dtype == DTYPE_F32 ? sumsq_part(a->x, range, DTYPE_F32) : sumsq_part(a->x, range, DTYPE_BF16);
    }
    double sum = 0;
    for (int part = 0; part < SUMSQ_PARTS; part++) sum += parts[part];
    *a->out = sum;
}

/* ---- the step ------------------------------------------------------------ */

static void op_decide_step(struct stream *stream, const struct decide_step_args *a)
{
    (void)stream;
    heartbeat_beat();
    const int64_t made = a->state->optimizer_step - a->schedule->base;
    ASSERT(made >= 0 && made < STEP_RATES);
    ASSERT(a->grad_factor > 0);
    const ptrdiff_t row = a->units + 1;
    double total = 0;
    int bad_unit = -1;
    for (int u = 0; u < a->units; u++) {
        for (int r = 0; r < a->world; r++) total += a->reports[r * row + u];
        if (bad_unit < 0 && !isfinite(total)) bad_unit = u;
    }
    decide_by_sum(a, total, bad_unit);
}

static void op_find_nonfinite(struct stream *stream, const struct find_nonfinite_args *a)
{
    (void)stream;
    heartbeat_beat();
    if (!*a->enabled) return;
    int64_t i = 0;
    while (i < a->n && isfinite(dtype_load(a->x, i, a->dtype))) i++;
    *a->index = i;
}

/* ---- segments of weight decay -------------------------------------------- */

/* The part of [*first, end) that one segment has, and its weight decay; goes on to the next part. */
static inline struct range next_segment(const struct decay_segment *list, int64_t *first, int64_t end, float *decay)
{
    struct range part = {*first, end};
    const struct decay_segment *s = list;
    while (s && s->end <= *first) s++;
    if (s) {
        ASSERT(s->end % DECAY_ALIGN == 0 || s->end >= end);
        part.end = s->end < end ? s->end : end;
        *decay = s->weight_decay;
    }
    *first = part.end;
    return part;
}

/* Each thread does the last argument, a statement, for the segments of its part of the elements: `one` is the op's
 * arguments with the weight decay of `segment`. */
#define IN_SEGMENTS(type, grain, ...)                                                                    \
    IN_PARTS(a->n, a->n, grain, {                                                                        \
        struct type one = *a;                                                                            \
        for (int64_t first = part.first; first < part.end;) {                                            \
            const struct range segment = next_segment(a->segments, &first, part.end, &one.weight_decay); \
            __VA_ARGS__;                                                                                 \
        }                                                                                                \
    })

/* ---- Adam ---------------------------------------------------------------- */

/* Rounds where the GPU's kernel does (ops_cuda_optimizer.cu), at each level with FMA: offload keeps its bits. */
static ALWAYS_INLINE void adam_part(const struct adam_args *a, struct range part, enum dtype param_dtype)
{
    float scale = a->step->grad_scale, lr = (float)a->step->lr;
    float decay = a->adamw ? lr * a->weight_decay : 0, l2 = a->adamw ? 0 : a->weight_decay;
    float beta1 = (float)a->step->beta1, rest1 = (float)(1 - a->step->beta1), beta2 = (float)a->step->beta2;
    float rest2 = (float)(1 - a->step->beta2), inv_c1 = (float)(1 / a->step->correction1);
    float inv_root_c2 = (float)(1 / sqrt(a->step->correction2));
    for (int64_t i = part.first; i < part.end; i += VF) {
        vf w = vf_get(a->master, i, part.end, DTYPE_F32), g = vf_get(a->grad, i, part.end, DTYPE_F32) * scale;
        vf m = vf_get(a->m, i, part.end, DTYPE_F32), v = vf_get(a->v, i, part.end, DTYPE_F32);
        g = vf_fma(vf_set(l2), w, g);
        w = vf_fma(vf_set(-decay), w, w);
        m = vf_fma(vf_set(beta1), m, rest1 * g);
        v = vf_fma(vf_set(beta2), v, rest2 * g * g);
        w -= lr * (m * inv_c1) / vf_fma(vf_sqrt(v), vf_set(inv_root_c2), vf_set(a->eps));
        vf_put(a->m, i, part.end, m, DTYPE_F32);
        vf_put(a->v, i, part.end, v, DTYPE_F32);
        vf_put(a->master, i, part.end, w, DTYPE_F32);
        if (a->param) vf_put(a->param, i, part.end, w, param_dtype);
    }
}

/* bf16 goes through buffers of fp32 in the first-level cache, where adam_part() computes. */
enum { ADAM_BLOCKS = 64, ADAM_CHUNK = ADAM_BLOCKS * ROUNDING_BLOCK };

/* Elements [first, first + n) of an array: in place, or widened into the buffer. */
static ALWAYS_INLINE float *adam_widen(const void *array, enum dtype dtype, int64_t first, int64_t n, float *buffer)
{
    if (dtype == DTYPE_F32) return (float *)(uintptr_t)array + first;
    const uint16_t *from = (const uint16_t *)array + first;
    for (int64_t i = 0; i < n; i += VF) vf_put(buffer, i, n, vf_get(from, i, n, DTYPE_BF16), DTYPE_F32);
    return buffer;
}

/* Fills halves with the random bits of the n <= ADAM_CHUNK elements from `place`. Returns those of the first. */
static ALWAYS_INLINE const uint16_t *adam_random(const struct rounding_counter *counter, int64_t place, int64_t n,
                                                 uint16_t halves[ADAM_CHUNK + ROUNDING_BLOCK])
{
    uint32_t x0[ADAM_BLOCKS], x1[ADAM_BLOCKS], x2[ADAM_BLOCKS], x3[ADAM_BLOCKS];
    const uint32_t c1 = counter->words[1], c2 = counter->words[2], c3 = counter->words[3], k0 = counter->key[0],
                   k1 = counter->key[1];
    const uint64_t first = (uint64_t)place / ROUNDING_BLOCK;
#pragma omp simd
    for (int b = 0; b < ADAM_BLOCKS; b++) {
        uint64_t block = first + (uint64_t)b;
        uint32_t w0 = (uint32_t)block, w1 = c1 | (uint32_t)(block >> 32), w2 = c2, w3 = c3;
        philox_rounds(&w0, &w1, &w2, &w3, k0, k1);
        x0[b] = w0;
        x1[b] = w1;
        x2[b] = w2;
        x3[b] = w3;
    }
    for (int b = 0; b < ADAM_BLOCKS; b++) {
        const uint32_t words[4] = {x0[b], x1[b], x2[b], x3[b]};
        for (int i = 0; i < ROUNDING_BLOCK; i++) halves[b * ROUNDING_BLOCK + i] = (uint16_t)rounding_bits(words, i);
    }
    if (place % ROUNDING_BLOCK + n > ADAM_CHUNK) {
        uint32_t words[4];
        rounding_words(counter, first + ADAM_BLOCKS, words);
        for (int i = 0; i < ROUNDING_BLOCK; i++) halves[ADAM_CHUNK + i] = (uint16_t)rounding_bits(words, i);
    }
    return halves + place % ROUNDING_BLOCK;
}

/* Rounds a buffer back into a bf16 array; nothing to do for a state in fp32. */
static ALWAYS_INLINE void adam_round(const struct adam_args *a, enum state_kind state, enum dtype dtype, void *array,
                                     int64_t first, int64_t n, const float *buffer)
{
    if (dtype == DTYPE_F32) return;
    uint16_t halves[ADAM_CHUNK + ROUNDING_BLOCK], *to = (uint16_t *)array + first;
    struct rounding_counter counter = rounding_counter(a->rounding, a->step->optimizer_step, state);
    const uint16_t *random = adam_random(&counter, a->rounding.place + first, n, halves);
    int64_t i = 0;
    for (; i + VF <= n; i += VF) {
        vh bits;
        memcpy(&bits, random + i, sizeof bits);
        bits = vf_to_bf16_by(vf_load(buffer, i, DTYPE_F32), bits);
        memcpy(to + i, &bits, sizeof bits);
    }
    for (; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, buffer + i, sizeof bits);
        to[i] = bf16_round_stochastically(bits, random[i]);
    }
}

static void adam_part_narrow(const struct adam_args *a, struct range part)
{
    float w[ADAM_CHUNK], m[ADAM_CHUNK], v[ADAM_CHUNK], g[ADAM_CHUNK];
    for (int64_t first = part.first; first < part.end; first += ADAM_CHUNK) {
        int64_t n = part.end - first < ADAM_CHUNK ? part.end - first : ADAM_CHUNK;
        struct adam_args chunk = *a;
        chunk.master = adam_widen(a->master, a->master_dtype, first, n, w);
        chunk.m = adam_widen(a->m, a->moment_dtype, first, n, m);
        chunk.v = adam_widen(a->v, a->moment_dtype, first, n, v);
        chunk.grad = adam_widen(a->grad, a->grad_dtype, first, n, g);
        chunk.param = a->param ? at(a->param, first, a->param_dtype) : NULL;
        const struct range whole = {0, n};
        WITH_DTYPE(a->param_dtype, adam_part(&chunk, whole, DT));
        adam_round(a, STATE_MASTER, a->master_dtype, a->master, first, n, w);
        adam_round(a, STATE_EXP_AVG, a->moment_dtype, a->m, first, n, m);
        adam_round(a, STATE_EXP_AVG_SQ, a->moment_dtype, a->v, first, n, v);
    }
}

static void op_adam(struct stream *stream, const struct adam_args *a)
{
    (void)stream;
    heartbeat_beat();
    if (a->step->skipped) return;
    const bool wide = a->master_dtype == DTYPE_F32 && a->moment_dtype == DTYPE_F32;
    ASSERT(wide || (a->master_dtype == DTYPE_BF16 && !a->param));
    if (!wide || a->grad_dtype != DTYPE_F32)
        IN_SEGMENTS(adam_args, 64, adam_part_narrow(&one, segment));
    else
        IN_SEGMENTS(adam_args, 64, WITH_DTYPE(a->param_dtype, adam_part(&one, segment, DT)));
}

/* ---- Lion, SGD ----------------------------------------------------------- */

static ALWAYS_INLINE void momentum_part(const struct momentum_args *a, struct range part, bool lion, enum dtype param,
                                        enum dtype grad)
{
    const float scale = a->step->grad_scale, lr = (float)a->step->lr, decay = lr * a->weight_decay;
    const float beta1 = (float)a->step->beta1, rest1 = (float)(1 - a->step->beta1);
    const float beta2 = (float)a->step->beta2, rest2 = (float)(1 - a->step->beta2);
    const bool first = a->step->optimizer_step == 1;
    const float kept = first ? 0 : a->momentum, taken = first ? 1 : 1 - a->dampening;
    for (int64_t i = part.first; i < part.end; i += VF) {
        vf w = vf_get(a->master, i, part.end, DTYPE_F32), g = vf_get(a->grad, i, part.end, grad) * scale;
        vf m = a->m ? vf_get(a->m, i, part.end, DTYPE_F32) : vf_zero();
        if (lion) {
            vf c = vf_fma(vf_set(beta1), m, rest1 * g);
            vf step = vf_select(c > vf_zero(), vf_set(lr), vf_select(c < vf_zero(), vf_set(-lr), vf_zero()));
            w = vf_fma(vf_set(-decay), w, w) - step;
            m = vf_fma(vf_set(beta2), m, rest2 * g);
        } else {
            g = vf_fma(vf_set(a->weight_decay), w, g);
            m = vf_fma(vf_set(kept), m, taken * g);
            vf step = !a->m ? g : a->nesterov ? vf_fma(vf_set(a->momentum), m, g) : m;
            w = vf_fma(vf_set(-lr), step, w);
        }
        if (a->m) vf_put(a->m, i, part.end, m, DTYPE_F32);
        vf_put(a->master, i, part.end, w, DTYPE_F32);
        if (a->param) vf_put(a->param, i, part.end, w, param);
    }
}

static void op_momentum(struct stream *stream, const struct momentum_args *a)
{
    (void)stream;
    heartbeat_beat();
    ASSERT(a->rule == OPTIMIZER_SGD || (a->rule == OPTIMIZER_LION && a->m));
    if (a->step->skipped) return;
    IN_SEGMENTS(momentum_args, 64,
                WITH_BOOL(LION, a->rule == OPTIMIZER_LION,
                          WITH_BOOL(WIDE, a->grad_dtype == DTYPE_F32,
                                    WITH_DTYPE(a->param_dtype, momentum_part(&one, segment, LION, DT,
                                                                             WIDE ? DTYPE_F32 : DTYPE_BF16)))));
}
