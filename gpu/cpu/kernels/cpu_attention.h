/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_attention.h: attention without the score matrix, forward and backward. A template, see ops_cpu.h.
 *
 * A block of NR queries (for the gradients of k and v, of NR keys) lies in the lanes of the micro-kernel
 * (cpu_gemm_micro.h), the other side in its rows. So nothing is summed across lanes, and a block of probabilities is
 * the packed operand of the next product:
 *
 *     forward   S (keys, lanes) = K · Qᵀ      P = exp(scale S - running maximum)      Oᵀ (D, lanes) += Vᵀ · P
 *     dq        S, and dP (keys, lanes) = V · dOᵀ   dS = P (dP - delta) scale         dQᵀ (D, lanes) += Kᵀ · dS
 *     dk, dv    S (queries, lanes) = Q · Kᵀ, dP = dO · Vᵀ, dS     dVᵀ (D, lanes) += dOᵀ · P    dKᵀ += Qᵀ · dS
 *
 * With a soft cap, scale S becomes Z = cap · tanh(scale S / cap), and dS has the factor dZ/d(scale S) = 1 - (Z / cap)².
 *
 * P in backward is exp(scale S - lse); delta is the sum of out · dout over a row. Blocks that nothing sees are skipped.
 * Backward computes S and dP twice, two products in seven, so that blocks are independent: any number of threads gives
 * the same bits, without atomics.
 *
 * Where bf16 is multiplied in pairs (cpu_bf16.h), a block of P or dS is rounded to bf16, and pairs of its rows are
 * interleaved, before it becomes an operand. Sums stay fp32.
 *
 * The operands in rows are packed once, for a batch of units (a sequence and one key/value head with its query heads)
 * at a time, as many as fit in ATTENTION_BATCH_FLOATS of scratch. */

_Static_assert(ATTENTION_ROWS % MR == 0, "a block of scores consists of whole tiles");

/* What forward and backward share. */
struct attention {
    struct attention_fwd_args in;
    enum unit_kind kind;     /* of packed operands */
    int64_t group, padded_d; /* query heads of a key/value head; D rounded up to MR */
};

struct attention_unit {
    int64_t start, length, kv;
};

static struct attention_unit attention_unit_at(const struct attention *a, int64_t index)
{
    int64_t s = index / a->in.KV;
    return (struct attention_unit){a->in.seq_start[s], a->in.seq_start[s + 1] - a->in.seq_start[s], index % a->in.KV};
}

static struct attention attention_of(struct stream *stream, const struct attention_fwd_args *args)
{
    const enum unit_kind kind = gemm_block_kind(device_cpu_kernels(stream->device), args->dtype);
    return (struct attention){*args, kind, args->H / args->KV, round_up(args->D, MR)};
}

static int64_t units_of(const struct attention *a, int64_t elements)
{
    return a->kind == UNIT_PAIR ? (elements + 1) / 2 : elements;
}

/* The floats of a unit's operand in panels of MR tokens, and in panels of MR columns. */
static int64_t by_token_floats(const struct attention *a)
{
    return round_up(a->in.max_seq, MR) * units_of(a, a->in.D);
}

static int64_t by_column_floats(const struct attention *a)
{
    return a->padded_d * units_of(a, a->in.max_seq);
}

static ALWAYS_INLINE void attention_pack(float *dst, const void *x, int64_t row_stride, int64_t k_stride, int64_t rows,
                                         int width, int64_t k, const struct attention *a)
{
    WITH_UNIT(a->kind, pack_panel((uint32_t *)dst, x, row_stride, k_stride, (int)rows, width, k, KIND));
}

/* x: first token's row of one head, `length` rows ld apart. dst: panels of MR tokens, each (units of D, MR). */
static void pack_by_token(float *dst, const void *x, int64_t ld, int64_t length, const struct attention *a)
{
    for (int64_t i = 0; i < length; i += MR)
        attention_pack(dst + i * units_of(a, a->in.D), at(x, i * ld, a->in.dtype), ld, 1, min64(MR, length - i), MR,
                       a->in.D, a);
}

/* dst: panels of MR columns, each (units of length, MR). */
static void pack_by_column(float *dst, const void *x, int64_t ld, int64_t length, const struct attention *a)
{
    for (int64_t j = 0; j < a->in.D; j += MR)
        attention_pack(dst + j * units_of(a, length), at(x, j, a->in.dtype), 1, ld, min64(MR, a->in.D - j), MR, length,
                       a);
}

/* dst (units of D, NR): up to NR tokens as lanes. */
static void pack_lanes(float *dst, const void *x, int64_t ld, int64_t count, const struct attention *a)
{
    attention_pack(dst, x, ld, 1, min64(NR, count), NR, a->in.D, a);
}

static void attention_tile(int64_t units, const float *panel, const float *x, float *tile, const struct attention *a)
{
#if GEMM_HAS_PAIRS
    if (a->kind == UNIT_PAIR) {
        micro_pairs(units, (const uint32_t *)panel, (const uint32_t *)x, tile);
        return;
    }
#endif
    (void)a;
    micro_f32(units, (const uint32_t *)panel, (const uint32_t *)x, tile);
}

/* scores (rows, NR) = panels (rows, D) · lanes; rows is rounded up to MR. */
static void multiply_rows(float *out, const float *panels, const float *lanes, int64_t rows, const struct attention *a)
{
    const int64_t units = units_of(a, a->in.D);
    for (int64_t i = 0; i < rows; i += MR) attention_tile(units, panels + i * units, lanes, out + i * NR, a);
}

#if GEMM_HAS_PAIRS
/* weights (count, NR) become bf16 pairs of rows, (units, NR), in place. */
__attribute__((target("avx512bf16"))) static void pair_weights(float *weights, int64_t count)
{
    const __m512i turns = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int64_t row = 0; row < count; row += 2) {
        for (int64_t l = 0; l < NR; l += VF) {
            __m512 even = _mm512_loadu_ps(weights + row * NR + l);
            __m512 odd = row + 1 < count ? _mm512_loadu_ps(weights + (row + 1) * NR + l) : _mm512_setzero_ps();
            __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
            _mm512_storeu_si512(weights + row / 2 * NR + l, _mm512_permutexvar_epi16(turns, both));
        }
    }
}
#endif

/* sum (padded_d, NR) = sum · keep + columnsᵀ · weights, over rows row … row+count of a sequence of `length`; row is
 * even; keep (NR) or NULL for 1. Overwrites weights. */
static void add_columns(float *sum, const float *columns, float *weights, int64_t row, int64_t count, int64_t length,
                        const float *keep, const struct attention *a)
{
    _Alignas(64) float tile[MR * NR];
#if GEMM_HAS_PAIRS
    if (a->kind == UNIT_PAIR) pair_weights(weights, count);
#endif
    for (int64_t j = 0; j < a->padded_d; j += MR) {
        attention_tile(units_of(a, count), columns + j * units_of(a, length) + units_of(a, row) * MR, weights, tile, a);
        for (int64_t i = 0; i < MR; i++) {
            float *to = sum + (j + i) * NR;
            for (int64_t l = 0; l < NR; l += VF) {
                vf before = vf_load(to, l, DTYPE_F32);
                if (keep) before *= vf_load(keep, l, DTYPE_F32);
                vf_store(to, l, before + vf_load(tile, i * NR + l, DTYPE_F32), DTYPE_F32);
            }
        }
    }
}

/* Writes sum (padded_d, NR), times factor (NR) if not NULL, transposed to the rows of `x`. `turned` is scratch for
 * (NR, padded_d). */
static void store_lanes(void *x, int64_t ld, int64_t count, float *sum, const float *factor, float *turned,
                        const struct attention *a)
{
    for (int64_t j = 0; factor && j < a->in.D; j++)
        for (int64_t l = 0; l < NR; l += VF)
            vf_store(sum, j * NR + l, vf_load(sum, j * NR + l, DTYPE_F32) * vf_load(factor, l, DTYPE_F32), DTYPE_F32);
    quad_turn(turned, a->padded_d, sum, NR, a->padded_d, NR);
    for (int64_t i = 0; i < min64(NR, count); i++) {
        void *to = at(x, i * ld, a->in.dtype);
        const float *from = turned + i * a->padded_d;
        for (int64_t j = 0; j < a->in.D; j += VF) {
            WITH_DTYPE(a->in.dtype, vf_put(to, j, a->in.D, vf_get(from, j, a->in.D, DTYPE_F32), DT));
        }
    }
}

/* Lane l of vector v is token first + v · VF + l of the sequence. */
static ALWAYS_INLINE vi lane_tokens(int64_t first, int64_t v)
{
    vi tokens;
    for (int l = 0; l < VF; l++) tokens[l] = l;
    return tokens + (int32_t)(first + v * VF);
}

static ALWAYS_INLINE vi attends(vi query, vi key, int64_t window)
{
    vi seen = key <= query;
    return window > 0 ? seen & (query - key < (int32_t)window) : seen;
}

/* Whether every query of q_first … q_last sees every key of k_first … k_last. */
static bool all_seen(int64_t q_first, int64_t q_last, int64_t k_first, int64_t k_last, const struct attention *a)
{
    return a->in.bidirectional || (k_last <= q_first && (a->in.window <= 0 || q_last - k_first < a->in.window));
}

/* The keys [first, end) that queries q_first … q_last of a unit see; `first` is a multiple of MR. */
static struct range keys_of(int64_t q_first, int64_t q_last, const struct attention_unit *u, const struct attention *a)
{
    int64_t key = a->in.window > 0 && q_first - a->in.window + 1 > 0 ? q_first - a->in.window + 1 : 0;
    return (struct range){key / MR * MR, a->in.bidirectional ? u->length : q_last + 1};
}

/* The queries [first, end) that see keys k_first … k_last of a unit; `first` is a multiple of MR. */
static struct range queries_of(int64_t first, int64_t last, const struct attention_unit *u, const struct attention *a)
{
    if (a->in.bidirectional) return (struct range){0, u->length};
    return (struct range){first / MR * MR, a->in.window > 0 ? min64(u->length, last + a->in.window) : u->length};
}

/* ---- dropout ------------------------------------------------------------- */

/* Drops elements of a block x (rows, NR) of weights or their gradients, if there is dropout: of query head h, with keys
 * from `key` and queries from `query` on. by_key: the lanes are keys, the rows queries. */
static void drop_weights(float *x, int64_t rows, int64_t key, int64_t query, bool by_key, int64_t h,
                         const struct attention_unit *u, const struct attention *a)
{
    const struct dropout *d = &a->in.dropout;
    if (!d->threshold) return;
    const int64_t row_block = by_key ? DROPOUT_QUERIES : DROPOUT_KEYS, lane_block = DROPOUT_BLOCK / row_block;
    const int64_t row = by_key ? query : key, lane = by_key ? key : query;
    const uint64_t token = d->tokens[u->start];
    for (int64_t first = row / row_block * row_block; first < row + rows; first += row_block) {
        for (int64_t l = 0; l < NR; l += lane_block) {
            const int64_t q = by_key ? first : lane + l, k = by_key ? lane + l : first;
            uint32_t words[4];
            dropout_words(d, token, dropout_key_block(k, h), dropout_query_block(q, h), words);
            for (int e = 0; e < DROPOUT_BLOCK; e++) {
                const int64_t i = first - row + (by_key ? e / DROPOUT_KEYS : e % DROPOUT_KEYS);
                const int64_t j = l + (by_key ? e % DROPOUT_KEYS : e / DROPOUT_KEYS);
                if (i >= 0 && i < rows) x[i * NR + j] = dropout_keeps(d, words, e) ? x[i * NR + j] * d->scale : 0;
            }
        }
    }
}

/* ---- forward ------------------------------------------------------------- */

struct attention_scratch {
    float *scores, *products;      /* (ATTENTION_ROWS, NR) */
    float *lanes_a, *lanes_b;      /* (units of D, NR) */
    float *sum_a, *sum_b, *turned; /* (padded_d, NR) */
};

static struct attention_scratch attention_scratch_of(float *floats, const struct attention *a)
{
    struct attention_scratch t;
    t.scores = floats;
    t.products = t.scores + ATTENTION_ROWS * NR;
    t.lanes_a = t.products + ATTENTION_ROWS * NR;
    t.lanes_b = t.lanes_a + a->padded_d * NR;
    t.sum_a = t.lanes_b + a->padded_d * NR;
    t.sum_b = t.sum_a + a->padded_d * NR;
    t.turned = t.sum_b + a->padded_d * NR;
    return t;
}

/* What the softmax is taken of: the scaled score, or with `capped`, a constant, its soft cap. */
static ALWAYS_INLINE vf score_of(vf product, const struct attention *a, bool capped)
{
    vf x = product * a->in.scale;
    return capped ? a->in.softcap * vf_tanh(x / a->in.softcap) : x;
}

/* The gradient of the product from the gradient of z = score_of(product). */
static ALWAYS_INLINE vf product_gradient(vf dz, vf z, const struct attention *a, bool capped)
{
    vf t = z / a->in.softcap;
    return capped ? dz * a->in.scale * (1.0f - t * t) : dz * a->in.scale;
}

/* Runs a statement with two constants: whether numbers are halves, and whether scores are capped. */
#define WITH_SCORES(a, ...) \
    WITH_BOOL(HALF, (a)->in.dtype != DTYPE_F32, WITH_BOOL(CAPPED, (a)->in.softcap > 0, __VA_ARGS__))

/* Turns a block of scores into weights exp(score - highest). highest and sum are updated; keep is the factor for
 * earlier sums. All are per lane. */
static ALWAYS_INLINE void softmax_block(float *scores, int64_t count, int64_t key, int64_t query, bool masked,
                                        float *highest, float *sum, float *keep, const struct attention *a, bool half,
                                        bool capped)
{
    for (int64_t v = 0; v < NV; v++) {
        vf before = vf_load(highest, v * VF, DTYPE_F32), top = before;
        vi queries = lane_tokens(query, v);
        for (int64_t i = 0; i < count; i++) {
            vf x = score_of(vf_load(scores, i * NR + v * VF, DTYPE_F32), a, capped);
            if (masked)
                x = vf_select(attends(queries, (vi){0} + (int32_t)(key + i), a->in.window), x, vf_set(-INFINITY));
            vf_store(scores, i * NR + v * VF, x, DTYPE_F32);
            top = vf_max(x, top);
        }
        vf base = vf_select(top == -INFINITY, vf_zero(), top); /* nothing seen yet: weights of 0, not NaN */
        vf factor = vf_exp_for(before - base, half), total = vf_load(sum, v * VF, DTYPE_F32) * factor;
        for (int64_t i = 0; i < count; i++) {
            vf p = vf_exp_for(vf_load(scores, i * NR + v * VF, DTYPE_F32) - base, half);
            vf_store(scores, i * NR + v * VF, p, DTYPE_F32);
            total += p;
        }
        vf_store(highest, v * VF, top, DTYPE_F32);
        vf_store(sum, v * VF, total, DTYPE_F32);
        vf_store(keep, v * VF, factor, DTYPE_F32);
    }
}

static void attention_fwd_block(const struct attention *a, const struct attention_unit *u, int64_t h, int64_t query,
                                const float *keys, const float *values, struct attention_scratch t)
{
    _Alignas(64) float highest[NR], sum[NR], keep[NR];
    const int64_t row = u->start + query, count = min64(NR, u->length - query), last = query + count - 1;
    for (int64_t l = 0; l < NR; l++) {
        highest[l] = -INFINITY;
        sum[l] = 0;
    }
    memset(t.sum_a, 0, (size_t)(a->padded_d * NR) * sizeof *t.sum_a);
    pack_lanes(t.lanes_a, at(a->in.q, row * a->in.ld_q + h * a->in.D, a->in.dtype), a->in.ld_q, count, a);
    const struct range seen = keys_of(query, last, u, a);
    for (int64_t key = seen.first; key < seen.end; key += ATTENTION_ROWS) {
        int64_t rows = min64(ATTENTION_ROWS, seen.end - key);
        multiply_rows(t.scores, keys + key * units_of(a, a->in.D), t.lanes_a, rows, a);
        const bool masked = !all_seen(query, last, key, key + rows - 1, a);
        WITH_SCORES(a, softmax_block(t.scores, rows, key, query, masked, highest, sum, keep, a, HALF, CAPPED));
        drop_weights(t.scores, rows, key, query, false, h, u, a);
        add_columns(t.sum_a, values, t.scores, key, rows, u->length, keep, a);
    }
    float *lse = a->in.lse + h * a->in.M + row;
    for (int64_t l = 0; l < NR; l += VF) {
        vf total = vf_load(sum, l, DTYPE_F32);
        vf_put(keep, l, NR, vf_load(highest, l, DTYPE_F32) + vf_log(total), DTYPE_F32);
        vf_store(sum, l, 1.0f / total, DTYPE_F32);
    }
    memcpy(lse, keep, (size_t)count * sizeof *lse);
    store_lanes(at(a->in.out, row * a->in.ld_o + h * a->in.D, a->in.dtype), a->in.ld_o, count, t.sum_a, sum, t.turned,
                a);
}

static int64_t attention_batch(int64_t unit_floats)
{
    return unit_floats < ATTENTION_BATCH_FLOATS ? ATTENTION_BATCH_FLOATS / unit_floats : 1;
}

static void op_attention_fwd(struct stream *stream, const struct attention_fwd_args *args)
{
    const struct attention a = attention_of(stream, args);
    ASSERT(!a.in.bidirectional || a.in.window == 0);
    heartbeat_beat();
    if (a.in.M == 0) return;
    struct scratch scratch = scratch_of(stream);
    const int64_t thread_floats = ATTENTION_THREAD_FLOATS(a.in.D);
    float *threads = scratch_take(&scratch, (size_t)(team_next() * thread_floats) * sizeof *threads);
    const int64_t unit_floats = round_up(by_token_floats(&a) + by_column_floats(&a), 16);
    const int64_t units = args->num_seqs * a.in.KV, batch = min64(attention_batch(unit_floats), units);
    float *packed = scratch_take(&scratch, (size_t)(batch * unit_floats) * sizeof *packed);
    const int64_t blocks = (a.in.max_seq + NR - 1) / NR;
#pragma omp parallel
    {
        struct attention_scratch mine = attention_scratch_of(threads + team_rank() * thread_floats, &a);
        for (int64_t first = 0; first < units; first += batch) {
            int64_t count = min64(batch, units - first);
#pragma omp for schedule(dynamic)
            for (int64_t i = 0; i < count; i++) {
                struct attention_unit u = attention_unit_at(&a, first + i);
                float *keys = packed + i * unit_floats, *values = keys + by_token_floats(&a);
                pack_by_token(keys, at(args->k, u.start * args->ld_k + u.kv * a.in.D, a.in.dtype), args->ld_k, u.length,
                              &a);
                pack_by_column(values, at(args->v, u.start * args->ld_v + u.kv * a.in.D, a.in.dtype), args->ld_v,
                               u.length, &a);
            }
            /* the last blocks of queries see most keys, so they come first */
#pragma omp for schedule(dynamic)
            for (int64_t item = 0; item < count * a.group * blocks; item++) {
                int64_t i = item % count, query = (blocks - 1 - item / (count * a.group)) * NR;
                struct attention_unit u = attention_unit_at(&a, first + i);
                if (query >= u.length) continue;
                float *keys = packed + i * unit_floats, *values = keys + by_token_floats(&a);
                attention_fwd_block(&a, &u, u.kv * a.group + item / count % a.group, query, keys, values, mine);
            }
            heartbeat_beat();
        }
    }
}

/* ---- backward ------------------------------------------------------------ */

/* From scores (rows, NR) and dP in products to dS: in scores, where the lanes are queries, and lse and delta are per
 * lane; by_key, a constant: in products, where the lanes are keys, they are per row, and scores become P. */
static ALWAYS_INLINE void attention_gradient(float *scores, float *products, int64_t rows, int64_t key, int64_t query,
                                             bool by_key, bool masked, const float *lse, const float *delta,
                                             const struct attention *a, bool half, bool capped)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t v = 0; v < NV; v++) {
            const int64_t place = i * NR + v * VF;
            const vf base = by_key ? vf_set(lse[i]) : vf_load(lse, v * VF, DTYPE_F32);
            const vf d = by_key ? vf_set(delta[i]) : vf_load(delta, v * VF, DTYPE_F32);
            vf z = score_of(vf_load(scores, place, DTYPE_F32), a, capped), p = vf_exp_for(z - base, half);
            if (masked) {
                const vi queries = by_key ? (vi){0} + (int32_t)(query + i) : lane_tokens(query, v);
                const vi keys = by_key ? lane_tokens(key, v) : (vi){0} + (int32_t)(key + i);
                p = vf_select(attends(queries, keys, a->in.window), p, vf_zero());
            }
            if (by_key) vf_store(scores, place, p, DTYPE_F32);
            vf dz = p * (vf_load(products, place, DTYPE_F32) - d);
            vf_store(by_key ? products : scores, place, product_gradient(dz, z, a, capped), DTYPE_F32);
        }
    }
}

/* delta (length) of one head of one sequence */
static void attention_deltas(float *delta, const struct attention_bwd_args *args, const struct attention *a,
                             const struct attention_unit *u, int64_t h)
{
    for (int64_t i = 0; i < u->length; i++) {
        const int64_t first = (u->start + i) * args->fwd.ld_o + h * a->in.D;
        const void *out = at(args->fwd.out, first, a->in.dtype), *dout = at(args->dout, first, a->in.dtype);
        WITH_DTYPE(a->in.dtype, delta[i] = vf_sum(vf_dot(out, dout, a->in.D, DT)));
    }
}

/* The packed operands of a unit: those of its key/value head, then those of each query head. */
struct attention_operands {
    float *k_tokens, *v_tokens, *k_columns;
    float *q_tokens, *dout_tokens, *q_columns, *dout_columns, *deltas; /* of one query head */
};

static int64_t head_floats(const struct attention *a)
{
    return round_up(2 * by_token_floats(a) + 2 * by_column_floats(a) + a->in.max_seq, 16);
}

static int64_t bwd_unit_floats(const struct attention *a)
{
    return round_up(2 * by_token_floats(a) + by_column_floats(a), 16) + a->group * head_floats(a);
}

static struct attention_operands attention_operands_of(float *unit, int64_t head, const struct attention *a)
{
    struct attention_operands o;
    o.k_tokens = unit;
    o.v_tokens = o.k_tokens + by_token_floats(a);
    o.k_columns = o.v_tokens + by_token_floats(a);
    o.q_tokens = unit + round_up(2 * by_token_floats(a) + by_column_floats(a), 16) + head * head_floats(a);
    o.dout_tokens = o.q_tokens + by_token_floats(a);
    o.q_columns = o.dout_tokens + by_token_floats(a);
    o.dout_columns = o.q_columns + by_column_floats(a);
    o.deltas = o.dout_columns + by_column_floats(a);
    return o;
}

static void attention_pack_kv(const struct attention_bwd_args *args, const struct attention *a,
                              const struct attention_unit *u, struct attention_operands o)
{
    const void *k = at(args->fwd.k, u->start * args->fwd.ld_k + u->kv * a->in.D, a->in.dtype);
    pack_by_token(o.k_tokens, k, args->fwd.ld_k, u->length, a);
    pack_by_column(o.k_columns, k, args->fwd.ld_k, u->length, a);
    pack_by_token(o.v_tokens, at(args->fwd.v, u->start * args->fwd.ld_v + u->kv * a->in.D, a->in.dtype), args->fwd.ld_v,
                  u->length, a);
}

static void attention_pack_head(const struct attention_bwd_args *args, const struct attention *a,
                                const struct attention_unit *u, int64_t h, struct attention_operands o)
{
    const void *q = at(args->fwd.q, u->start * args->fwd.ld_q + h * a->in.D, a->in.dtype);
    const void *dout = at(args->dout, u->start * args->fwd.ld_o + h * a->in.D, a->in.dtype);
    pack_by_token(o.q_tokens, q, args->fwd.ld_q, u->length, a);
    pack_by_column(o.q_columns, q, args->fwd.ld_q, u->length, a);
    pack_by_token(o.dout_tokens, dout, args->fwd.ld_o, u->length, a);
    pack_by_column(o.dout_columns, dout, args->fwd.ld_o, u->length, a);
    attention_deltas(o.deltas, args, a, u, h);
}

static void attention_bwd_queries(const struct attention_bwd_args *args, const struct attention *a,
                                  const struct attention_unit *u, int64_t h, int64_t query, struct attention_operands o,
                                  struct attention_scratch t)
{
    _Alignas(64) float lse[NR], delta[NR];
    const int64_t row = u->start + query, count = min64(NR, u->length - query), last = query + count - 1;
    for (int64_t l = 0; l < NR; l++) {
        lse[l] = l < count ? args->fwd.lse[h * a->in.M + row + l] : INFINITY; /* lanes without a query: P = 0 */
        delta[l] = l < count ? o.deltas[query + l] : 0;
    }
    memset(t.sum_a, 0, (size_t)(a->padded_d * NR) * sizeof *t.sum_a);
    pack_lanes(t.lanes_a, at(args->fwd.q, row * args->fwd.ld_q + h * a->in.D, a->in.dtype), args->fwd.ld_q, count, a);
    pack_lanes(t.lanes_b, at(args->dout, row * args->fwd.ld_o + h * a->in.D, a->in.dtype), args->fwd.ld_o, count, a);
    const struct range seen = keys_of(query, last, u, a);
    for (int64_t key = seen.first; key < seen.end; key += ATTENTION_ROWS) {
        int64_t rows = min64(ATTENTION_ROWS, seen.end - key);
        multiply_rows(t.scores, o.k_tokens + key * units_of(a, a->in.D), t.lanes_a, rows, a);
        multiply_rows(t.products, o.v_tokens + key * units_of(a, a->in.D), t.lanes_b, rows, a);
        drop_weights(t.products, rows, key, query, false, h, u, a);
        const bool masked = !all_seen(query, last, key, key + rows - 1, a);
        WITH_SCORES(
            a, attention_gradient(t.scores, t.products, rows, key, query, false, masked, lse, delta, a, HALF, CAPPED));
        add_columns(t.sum_a, o.k_columns, t.scores, key, rows, u->length, NULL, a);
    }
    store_lanes(at(args->dq, row * args->ld_dq + h * a->in.D, a->in.dtype), args->ld_dq, count, t.sum_a, NULL, t.turned,
                a);
}

static void attention_bwd_keys(const struct attention_bwd_args *args, const struct attention *a,
                               const struct attention_unit *u, int64_t key, float *unit, struct attention_scratch t)
{
    const int64_t row = u->start + key, count = min64(NR, u->length - key), last = key + count - 1;
    const struct range seeing = queries_of(key, last, u, a);
    memset(t.sum_a, 0, (size_t)(a->padded_d * NR) * sizeof *t.sum_a);
    memset(t.sum_b, 0, (size_t)(a->padded_d * NR) * sizeof *t.sum_b);
    pack_lanes(t.lanes_a, at(args->fwd.k, row * args->fwd.ld_k + u->kv * a->in.D, a->in.dtype), args->fwd.ld_k, count,
               a);
    pack_lanes(t.lanes_b, at(args->fwd.v, row * args->fwd.ld_v + u->kv * a->in.D, a->in.dtype), args->fwd.ld_v, count,
               a);
    for (int64_t head = 0; head < a->group; head++) {
        struct attention_operands o = attention_operands_of(unit, head, a);
        const int64_t h = u->kv * a->group + head;
        const float *lse = args->fwd.lse + h * a->in.M + u->start;
        for (int64_t query = seeing.first; query < seeing.end; query += ATTENTION_ROWS) {
            int64_t rows = min64(ATTENTION_ROWS, seeing.end - query);
            multiply_rows(t.scores, o.q_tokens + query * units_of(a, a->in.D), t.lanes_a, rows, a);
            multiply_rows(t.products, o.dout_tokens + query * units_of(a, a->in.D), t.lanes_b, rows, a);
            drop_weights(t.products, rows, key, query, true, h, u, a);
            const bool masked = !all_seen(query, query + rows - 1, key, last, a);
            WITH_SCORES(a, attention_gradient(t.scores, t.products, rows, key, query, true, masked, lse + query,
                                              o.deltas + query, a, HALF, CAPPED));
            drop_weights(t.scores, rows, key, query, true, h, u, a);
            add_columns(t.sum_a, o.q_columns, t.products, query, rows, u->length, NULL, a);
            add_columns(t.sum_b, o.dout_columns, t.scores, query, rows, u->length, NULL, a);
        }
    }
    store_lanes(at(args->dk, row * args->ld_dk + u->kv * a->in.D, a->in.dtype), args->ld_dk, count, t.sum_a, NULL,
                t.turned, a);
    store_lanes(at(args->dv, row * args->ld_dv + u->kv * a->in.D, a->in.dtype), args->ld_dv, count, t.sum_b, NULL,
                t.turned, a);
}

static void op_attention_bwd(struct stream *stream, const struct attention_bwd_args *args)
{
    const struct attention a = attention_of(stream, &args->fwd);
    ASSERT(!a.in.bidirectional || a.in.window == 0);
    heartbeat_beat();
    if (a.in.M == 0) return;
    struct scratch scratch = scratch_of(stream);
    const int64_t thread_floats = ATTENTION_THREAD_FLOATS(a.in.D), unit_floats = bwd_unit_floats(&a);
    float *threads = scratch_take(&scratch, (size_t)(team_next() * thread_floats) * sizeof *threads);
    const int64_t units = args->fwd.num_seqs * a.in.KV, batch = min64(attention_batch(unit_floats), units);
    float *packed = scratch_take(&scratch, (size_t)(batch * unit_floats) * sizeof *packed);
    const int64_t blocks = (a.in.max_seq + NR - 1) / NR, heads_and_kv = a.group + 1;
#pragma omp parallel
    {
        struct attention_scratch mine = attention_scratch_of(threads + team_rank() * thread_floats, &a);
        for (int64_t first = 0; first < units; first += batch) {
            int64_t count = min64(batch, units - first);
#pragma omp for schedule(dynamic)
            for (int64_t item = 0; item < count * heads_and_kv; item++) {
                int64_t head = item / count - 1; /* -1: the key/value head */
                struct attention_unit u = attention_unit_at(&a, first + item % count);
                float *unit = packed + item % count * unit_floats;
                if (head < 0)
                    attention_pack_kv(args, &a, &u, attention_operands_of(unit, 0, &a));
                else
                    attention_pack_head(args, &a, &u, u.kv * a.group + head, attention_operands_of(unit, head, &a));
            }
            /* blocks of keys first, beginning with the earliest, which most queries see; then blocks of queries */
#pragma omp for schedule(dynamic)
            for (int64_t item = 0; item < count * heads_and_kv * blocks; item++) {
                int64_t i = item % count, rest = item / count;
                struct attention_unit u = attention_unit_at(&a, first + i);
                float *unit = packed + i * unit_floats;
                if (rest < blocks) {
                    if (rest * NR < u.length) attention_bwd_keys(args, &a, &u, rest * NR, unit, mine);
                    continue;
                }
                rest -= blocks;
                int64_t head = rest % a.group, query = (blocks - 1 - rest / a.group) * NR;
                if (query < u.length)
                    attention_bwd_queries(args, &a, &u, u.kv * a.group + head, query,
                                          attention_operands_of(unit, head, &a), mine);
            }
            heartbeat_beat();
        }
    }
}
