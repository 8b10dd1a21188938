/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_delta_rule.h: the gated delta rule in chunks, forward and backward. A template, see ops_cpu.h.
 *
 * Within a chunk, with G the running sum of g, D[i][j] = exp(G[i] - G[j]) for j <= i, and S the state before it:
 *
 *     A = beta D (K Kᵀ), below the diagonal     P = D (Q Kᵀ)     R = beta (V - exp(G) K S)     X = (1 + A)⁻¹ R
 *     out = exp(G) Q S + P X                    S = exp(G[last]) S + (exp(G[last] - G) K)ᵀ X
 *
 * Backward first computes S before each chunk, and X, again. Its gradients of G follow from those of Q and K: a row of
 * Q, and of K where it is multiplied from the left, has the factor exp(G), and where from the right, exp(-G). In the
 * same way beta's follow from those of V and of K from the left.
 *
 * A task is a sequence and a key head with its value heads. All numbers are fp32, and products run on micro_f32(). */

/* Rows of a matrix in scratch memory; all are a multiple of 4 of them, and of columns to be read. */
struct delta_matrix {
    float *at;
    int64_t ld;
};

/* What a task has in memory: matrices of one chunk's rows, and of a head. */
struct delta_task {
    const struct delta_rule_fwd_args *a;
    const struct delta_rule_bwd_args *bwd; /* or NULL */
    int64_t start, length, head, group, chunks;
    struct delta_matrix q, k, k_scaled, q_scaled, k_turned, kk, qk, decay, lower, weights;
    struct delta_matrix x, out, states; /* states: S of each value head */
    struct delta_matrix dq, dk, dq_head, dk_head, dout, dout_scaled, dr, x_scaled, x_turned, d_kk, d_qk;
    struct delta_matrix dstates, dstate_turned;
    float *kept;                                        /* of each value head, for each chunk: Sᵀ before it, then X */
    float q_length[DELTA_CHUNK], k_length[DELTA_CHUNK]; /* 1 / length */
    float beta[DELTA_CHUNK], sums[DELTA_CHUNK];         /* of the value head: beta, G */
    float from_start[DELTA_CHUNK], to_end[DELTA_CHUNK]; /* exp(G), exp(G[last] - G) */
    int64_t first, count, rows; /* of the chunk: its first token of the sequence, tokens, these rounded up to 4 */
};

static struct delta_matrix delta_take(float **next, int64_t rows, int64_t columns)
{
    struct delta_matrix matrix = {*next, DELTA_LD(columns)};
    *next += round_up(rows, 4) * matrix.ld;
    return matrix;
}

static struct delta_matrix delta_kept_state(const struct delta_task *t, int64_t head, int64_t chunk)
{
    const int64_t state = round_up(t->a->Dv, 4) * t->q.ld, x = DELTA_CHUNK * t->x.ld;
    return (struct delta_matrix){t->kept + (head * t->chunks + chunk) * (state + x), t->q.ld};
}

static struct delta_matrix delta_kept_x(const struct delta_task *t, int64_t head, int64_t chunk)
{
    return (struct delta_matrix){delta_kept_state(t, head, chunk).at + round_up(t->a->Dv, 4) * t->q.ld, t->x.ld};
}

/* The matrices of a thread, in DELTA_THREAD_FLOATS. */
static void delta_place(struct delta_task *t, float *next)
{
    const int64_t n = DELTA_CHUNK, Dk = t->a->Dk, Dv = t->a->Dv;
    struct delta_matrix *const by_key[] = {&t->q,  &t->k,  &t->k_scaled, &t->q_scaled,
                                           &t->dq, &t->dk, &t->dq_head,  &t->dk_head};
    struct delta_matrix *const by_value[] = {&t->x, &t->out, &t->dout, &t->dout_scaled, &t->dr, &t->x_scaled};
    struct delta_matrix *const square[] = {&t->kk, &t->qk, &t->decay, &t->lower, &t->weights, &t->d_kk, &t->d_qk};
    for (size_t i = 0; i < COUNT_OF(by_key); i++) *by_key[i] = delta_take(&next, n, Dk);
    for (size_t i = 0; i < COUNT_OF(by_value); i++) *by_value[i] = delta_take(&next, n, Dv);
    for (size_t i = 0; i < COUNT_OF(square); i++) *square[i] = delta_take(&next, n, n);
    t->k_turned = delta_take(&next, Dk, n);
    t->x_turned = delta_take(&next, Dv, n);
    t->dstate_turned = delta_take(&next, Dv, Dk);
    t->states = delta_take(&next, t->group * round_up(Dk, 4), Dv);
    t->dstates = delta_take(&next, t->group * round_up(Dk, 4), Dv);
    t->kept = next;
}

static struct delta_matrix delta_state_of(const struct delta_task *t, struct delta_matrix states, int64_t head)
{
    return (struct delta_matrix){states.at + head * round_up(t->a->Dk, 4) * states.ld, states.ld};
}

/* c (m, n) = keep · c + a (m, k) · b (k, n). a_turned: a holds its transpose. m is a multiple of 4. */
static void delta_product(struct delta_matrix c, struct delta_matrix a, bool a_turned, struct delta_matrix b, int64_t m,
                          int64_t n, int64_t k, float keep)
{
    _Alignas(64) float tile[MR * NR];
    for (int64_t j = 0; j < n; j += NR) {
        const uint32_t *columns = (const uint32_t *)(const void *)(b.at + j);
        for (int64_t i = 0, rows; i < m; i += rows) {
            const uint32_t *from = (const uint32_t *)(const void *)(a.at + (a_turned ? i : i * a.ld));
            rows = m - i >= MR ? MR : SHORT_MR;
            WITH_BOOL(TURNED, a_turned,
                      WITH_BOOL(WHOLE, rows == MR,
                                micro_f32_with(k, from, TURNED ? 1 : a.ld, TURNED ? a.ld : 1, columns, b.ld, tile,
                                               WHOLE ? MR : SHORT_MR, NV)));
            for (int64_t r = 0; r < rows; r++) {
                float *to = c.at + (i + r) * c.ld + j;
                for (int64_t l = 0; l < NR; l += VF) {
                    vf x = vf_load(tile, r * NR + l, DTYPE_F32);
                    vf_store(to, l, keep != 0 ? keep * vf_load(to, l, DTYPE_F32) + x : x, DTYPE_F32);
                }
            }
        }
    }
}

/* to (columns, rows) = fromᵀ; both counts are rounded up to 4. */
static void delta_turn(struct delta_matrix to, struct delta_matrix from, int64_t rows, int64_t columns)
{
    quad_turn(to.at, to.ld, from.at, from.ld, rows, columns);
}

/* x = (1 + lower)⁻¹ x, or with `turned` (1 + lowerᵀ)⁻¹ x */
static void delta_solve(const struct delta_task *t, struct delta_matrix x, bool turned)
{
    enum { WIDE = 8 }; /* vectors at a time */
    for (int64_t column = 0; column < t->a->Dv; column += WIDE * VF) {
        const int64_t width = min64(WIDE, (t->a->Dv - column + VF - 1) / VF);
        for (int64_t step = 1; step < t->rows; step++) {
            const int64_t i = turned ? t->rows - 1 - step : step;
            vf sum[WIDE] = {{0}};
            for (int64_t s = 0; s < step; s++) {
                const int64_t j = turned ? t->rows - 1 - s : s;
                const float factor = turned ? t->lower.at[j * t->lower.ld + i] : t->lower.at[i * t->lower.ld + j];
                const float *row = x.at + j * x.ld + column;
                if (width == WIDE) {
#pragma GCC unroll 8
                    for (int l = 0; l < WIDE; l++) sum[l] += factor * vf_load(row, l * VF, DTYPE_F32);
                } else {
                    for (int64_t l = 0; l < width; l++) sum[l] += factor * vf_load(row, l * VF, DTYPE_F32);
                }
            }
            float *to = x.at + i * x.ld + column;
            for (int64_t l = 0; l < width; l++)
                vf_store(to, l * VF, vf_load(to, l * VF, DTYPE_F32) - sum[l], DTYPE_F32);
        }
    }
}

/* to[i] = factor[i] · from[i]; factor NULL: 1. Adds with `add`. */
static void delta_scale(const struct delta_task *t, struct delta_matrix to, struct delta_matrix from,
                        const float *factor, int64_t columns, bool add)
{
    for (int64_t i = 0; i < t->rows; i++) {
        const float by = factor ? factor[i] : 1;
        for (int64_t j = 0; j < columns; j += VF) {
            vf x = by * vf_load(from.at, i * from.ld + j, DTYPE_F32);
            vf_store(to.at, i * to.ld + j, add ? x + vf_load(to.at, i * to.ld + j, DTYPE_F32) : x, DTYPE_F32);
        }
    }
}

static float delta_dot(struct delta_matrix x, struct delta_matrix y, int64_t row, int64_t n)
{
    return vf_sum(vf_dot(x.at + row * x.ld, y.at + row * y.ld, n, DTYPE_F32));
}

/* ---- tokens of a chunk --------------------------------------------------- */

/* The chunk's rows of one head; those beyond its tokens, and columns up to a whole vector, are 0. */
static void delta_load(const struct delta_task *t, struct delta_matrix to, const void *x, int64_t ld, int64_t head,
                       int64_t D)
{
    const enum dtype dtype = t->a->dtype;
    for (int64_t i = 0; i < t->rows; i++) {
        const void *from = at(x, (t->start + t->first + min64(i, t->count - 1)) * ld + head * D, dtype);
        for (int64_t j = 0; j < D; j += VF) {
            vf value = vf_zero();
            if (i < t->count) WITH_DTYPE(dtype, value = vf_get(from, j, D, DT));
            vf_store(to.at, i * to.ld + j, value, DTYPE_F32);
        }
    }
}

static void delta_save(const struct delta_task *t, void *x, int64_t ld, int64_t head, int64_t D,
                       struct delta_matrix from)
{
    for (int64_t i = 0; i < t->count; i++) {
        void *to = at(x, (t->start + t->first + i) * ld + head * D, t->a->dtype);
        for (int64_t j = 0; j < D; j += VF)
            WITH_DTYPE(t->a->dtype, vf_put(to, j, D, vf_get(from.at + i * from.ld, j, D, DTYPE_F32), DT));
    }
}

static void delta_unit_length(const struct delta_task *t, struct delta_matrix x, float *lengths, float scale)
{
    float factors[DELTA_CHUNK];
    for (int64_t i = 0; i < t->rows; i++) {
        lengths[i] = 1 / sqrtf(delta_dot(x, x, i, t->a->Dk) + 1e-6f);
        factors[i] = lengths[i] * scale;
    }
    delta_scale(t, x, x, factors, t->a->Dk, false);
}

/* q, k and their products, which all value heads of the task share. */
static void delta_chunk(struct delta_task *t, int64_t chunk, bool with_q)
{
    const struct delta_rule_fwd_args *a = t->a;
    t->first = chunk * DELTA_CHUNK;
    t->count = min64(DELTA_CHUNK, t->length - t->first);
    t->rows = round_up(t->count, 4);
    delta_load(t, t->k, a->k, a->ld_qkv, t->head, a->Dk);
    delta_unit_length(t, t->k, t->k_length, 1);
    delta_turn(t->k_turned, t->k, t->rows, a->Dk);
    delta_product(t->kk, t->k, false, t->k_turned, t->rows, t->rows, a->Dk, 0);
    if (with_q) {
        delta_load(t, t->q, a->q, a->ld_qkv, t->head, a->Dk);
        delta_unit_length(t, t->q, t->q_length, 1 / sqrtf((float)a->Dk));
        delta_product(t->qk, t->q, false, t->k_turned, t->rows, t->rows, a->Dk, 0);
    }
}

static float delta_softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

/* beta, G and D of a value head, and A and P. */
static void delta_gates(struct delta_task *t, int64_t h)
{
    const struct delta_rule_fwd_args *a = t->a;
    const float rate = expf(dtype_load(a->a_log, h, a->dtype)), bias = dtype_load(a->dt_bias, h, a->dtype);
    float sum = 0;
    for (int64_t i = 0; i < t->rows; i++) {
        const int64_t from = (t->start + t->first + i) * a->ld_ab + h;
        const bool is_token = i < t->count;
        t->beta[i] = is_token ? 1 / (1 + expf(-dtype_load(a->b, from, a->dtype))) : 0;
        sum -= is_token ? rate * delta_softplus(dtype_load(a->a, from, a->dtype) + bias) : 0;
        t->sums[i] = sum;
    }
    for (int64_t i = 0; i < t->rows; i++) {
        t->from_start[i] = expf(t->sums[i]);
        t->to_end[i] = expf(sum - t->sums[i]);
        for (int64_t j = 0; j < t->rows; j += VF) {
            const int64_t place = i * t->decay.ld + j;
            vf d = vf_exp(t->sums[i] - vf_get(t->sums, j, DELTA_CHUNK, DTYPE_F32));
            d = vf_select(vf_lanes_below(i + 1 - j), d, vf_zero());
            vf lower = d * t->beta[i] * vf_load(t->kk.at, place, DTYPE_F32);
            vf weights = d * vf_load(t->qk.at, place, DTYPE_F32);
            vf_store(t->decay.at, place, d, DTYPE_F32);
            vf_store(t->lower.at, place, vf_select(vf_lanes_below(i - j), lower, vf_zero()), DTYPE_F32);
            vf_store(t->weights.at, place, vf_select(vf_lanes_below(i + 1 - j), weights, vf_zero()), DTYPE_F32);
        }
    }
}

/* ---- forward ------------------------------------------------------------- */

/* X of a chunk, its out if it is wanted, and the state after it. `head`: of the task's value heads. */
static void delta_forward(struct delta_task *t, int64_t head, bool with_out)
{
    const struct delta_rule_fwd_args *a = t->a;
    const struct delta_matrix state = delta_state_of(t, t->states, head);
    const int64_t h = t->head * t->group + head, n = t->rows;
    float minus[DELTA_CHUNK];
    delta_gates(t, h);
    for (int64_t i = 0; i < n; i++) minus[i] = -t->beta[i] * t->from_start[i];
    delta_load(t, t->x, a->v, a->ld_qkv, h, a->Dv);
    delta_scale(t, t->x, t->x, t->beta, a->Dv, false);
    delta_scale(t, t->k_scaled, t->k, minus, a->Dk, false);
    delta_product(t->x, t->k_scaled, false, state, n, a->Dv, a->Dk, 1);
    delta_solve(t, t->x, false);
    if (with_out) {
        delta_scale(t, t->q_scaled, t->q, t->from_start, a->Dk, false);
        delta_product(t->out, t->q_scaled, false, state, n, a->Dv, a->Dk, 0);
        delta_product(t->out, t->weights, false, t->x, n, a->Dv, n, 1);
        delta_save(t, a->out, a->ld_o, h, a->Dv, t->out);
    }
    delta_scale(t, t->k_scaled, t->k, t->to_end, a->Dk, false);
    delta_product(state, t->k_scaled, true, t->x, round_up(a->Dk, 4), a->Dv, n, t->from_start[n - 1]);
}

/* The states of the task's value heads: 0, or those of the op; with `save` back to the op. */
static void delta_states(const struct delta_task *t, int64_t sequence, bool save)
{
    const struct delta_rule_fwd_args *a = t->a;
    if (!save) memset(t->states.at, 0, (size_t)(t->group * round_up(a->Dk, 4) * t->states.ld) * sizeof *t->states.at);
    for (int64_t i = 0; a->state && i < t->group * a->Dk; i++) {
        float *own = delta_state_of(t, t->states, i / a->Dk).at + i % a->Dk * t->states.ld;
        float *op = a->state + ((sequence * a->Hv + t->head * t->group) * a->Dk + i) * a->Dv;
        memcpy(save ? op : own, save ? own : op, (size_t)a->Dv * sizeof *own);
    }
}

static void delta_begin(struct delta_task *t, const struct delta_rule_fwd_args *a, int64_t item)
{
    const int64_t sequence = item / a->Hk;
    t->a = a;
    t->start = a->seq_start[sequence];
    t->length = a->seq_start[sequence + 1] - t->start;
    t->chunks = (t->length + DELTA_CHUNK - 1) / DELTA_CHUNK;
    t->head = item % a->Hk;
    t->group = a->Hv / a->Hk;
}

static void delta_fwd_task(const struct delta_rule_fwd_args *a, int64_t item, float *room)
{
    struct delta_task t = {0};
    delta_begin(&t, a, item);
    delta_place(&t, room);
    delta_states(&t, item / a->Hk, false);
    for (int64_t chunk = 0; chunk < t.chunks; chunk++) {
        delta_chunk(&t, chunk, true);
        for (int64_t head = 0; head < t.group; head++) delta_forward(&t, head, true);
    }
    delta_states(&t, item / a->Hk, true);
}

static void op_delta_rule_fwd(struct stream *stream, const struct delta_rule_fwd_args *a)
{
    heartbeat_beat();
    struct scratch scratch = scratch_of(stream);
    const int64_t floats = delta_thread_floats(a, false);
    float *threads = scratch_take(&scratch, (size_t)(team_next() * floats) * sizeof *threads);
#pragma omp parallel for schedule(dynamic) if (a->M * a->Hv * a->Dk * a->Dv > WORTH_THREADS)
    for (int64_t item = 0; item < a->num_seqs * a->Hk; item++) delta_fwd_task(a, item, threads + team_rank() * floats);
}

/* ---- backward ------------------------------------------------------------ */

/* d_kk and d_qk become the gradients of the products K Kᵀ and Q Kᵀ, from those of A and P. */
static void delta_bwd_squares(const struct delta_task *t)
{
    for (int64_t i = 0; i < t->rows; i++) {
        for (int64_t j = 0; j < t->rows; j += VF) {
            const int64_t place = i * t->decay.ld + j;
            vf d = vf_load(t->decay.at, place, DTYPE_F32);
            vf kk = -t->beta[i] * d * vf_load(t->d_kk.at, place, DTYPE_F32);
            vf qk = d * vf_load(t->d_qk.at, place, DTYPE_F32);
            vf_store(t->d_kk.at, place, vf_select(vf_lanes_below(i - j), kk, vf_zero()), DTYPE_F32);
            vf_store(t->d_qk.at, place, vf_select(vf_lanes_below(i + 1 - j), qk, vf_zero()), DTYPE_F32);
        }
    }
}

/* The gradients of a and b from those of G and of log(beta), and their sums for a_log and dt_bias. */
static void delta_bwd_gates(const struct delta_task *t, int64_t h, const float *dsums, const float *dlog_beta,
                            double sums[2])
{
    const struct delta_rule_bwd_args *b = t->bwd;
    const struct delta_rule_fwd_args *a = &b->fwd;
    const float rate = expf(dtype_load(a->a_log, h, a->dtype)), bias = dtype_load(a->dt_bias, h, a->dtype);
    float dg = 0;
    for (int64_t i = t->count - 1; i >= 0; i--) {
        const int64_t place = (t->start + t->first + i) * a->ld_ab + h;
        const float x = dtype_load(a->a, place, a->dtype) + bias;
        dg += dsums[i];
        const float dx = -dg * rate / (1 + expf(-x));
        dtype_store(b->da, place, dx, a->dtype);
        dtype_store(b->db, place, dlog_beta[i] * (1 - t->beta[i]), a->dtype);
        sums[0] -= (double)(dg * rate * delta_softplus(x));
        sums[1] += (double)dx;
    }
}

/* dr: the gradient of R. dout_scaled and x are set. */
static void delta_bwd_solve(struct delta_task *t, struct delta_matrix dstate, bool last)
{
    const int64_t Dk = t->a->Dk, Dv = t->a->Dv, n = t->rows;
    delta_product(t->dr, t->weights, true, t->dout, n, Dv, n, 0);
    if (!last) {
        delta_scale(t, t->k_scaled, t->k, t->to_end, Dk, false);
        delta_product(t->dr, t->k_scaled, false, dstate, n, Dv, Dk, 1);
    }
    delta_solve(t, t->dr, true);
}

/* The gradients of a value head's chunk; dq and dk are added up for the key head. */
static void delta_backward(struct delta_task *t, int64_t head, int64_t chunk, double sums[2])
{
    const struct delta_rule_bwd_args *b = t->bwd;
    const int64_t h = t->head * t->group + head, Dk = b->fwd.Dk, Dv = b->fwd.Dv, n = t->rows;
    const bool last = chunk + 1 == t->chunks;
    const struct delta_matrix dstate = delta_state_of(t, t->dstates, head), x = delta_kept_x(t, head, chunk);
    const struct delta_matrix state_turned = delta_kept_state(t, head, chunk);
    float minus[DELTA_CHUNK], left[DELTA_CHUNK], dsums[DELTA_CHUNK];
    delta_gates(t, h);
    delta_load(t, t->dout, b->dout, b->fwd.ld_o, h, Dv);
    delta_scale(t, t->dout_scaled, t->dout, t->from_start, Dv, false);
    delta_bwd_solve(t, dstate, last);
    delta_turn(t->x_turned, x, n, Dv);
    delta_product(t->d_qk, t->dout, false, t->x_turned, n, n, Dv, 0);
    delta_product(t->d_kk, t->dr, false, t->x_turned, n, n, Dv, 0);
    delta_bwd_squares(t);
    delta_product(t->dq_head, t->dout_scaled, false, state_turned, n, Dk, Dv, 0);
    delta_product(t->dq_head, t->d_qk, false, t->k, n, Dk, n, 1);
    for (int64_t i = 0; i < n; i++) minus[i] = -t->beta[i] * t->from_start[i];
    delta_scale(t, t->x_scaled, t->dr, minus, Dv, false); /* the gradient of K S */
    delta_product(t->dk_head, t->x_scaled, false, state_turned, n, Dk, Dv, 0);
    delta_product(t->dk_head, t->d_kk, false, t->k, n, Dk, n, 1);
    for (int64_t i = 0; i < n; i++) left[i] = delta_dot(t->k, t->dk_head, i, Dk);
    if (!last) delta_turn(t->dstate_turned, dstate, round_up(Dk, 4), Dv);
    delta_product(dstate, t->q, true, t->dout_scaled, round_up(Dk, 4), Dv, n, last ? 0 : t->from_start[n - 1]);
    delta_product(dstate, t->k, true, t->x_scaled, round_up(Dk, 4), Dv, n, 1);
    if (!last) {
        delta_scale(t, t->x_scaled, x, t->to_end, Dv, false);
        delta_product(t->dk_head, t->x_scaled, false, t->dstate_turned, n, Dk, Dv, 1);
    }
    delta_product(t->dk_head, t->d_kk, true, t->k, n, Dk, n, 1);
    delta_product(t->dk_head, t->d_qk, true, t->q, n, Dk, n, 1);
    for (int64_t i = 0; i < n; i++)
        dsums[i] = delta_dot(t->q, t->dq_head, i, Dk) + 2 * left[i] - delta_dot(t->k, t->dk_head, i, Dk);
    for (int64_t j = 0; !last && j < Dv; j++)
        dsums[t->count - 1] += delta_dot(delta_kept_state(t, head, chunk + 1), t->dstate_turned, j, Dk);
    delta_scale(t, t->dr, t->dr, t->beta, Dv, false);
    delta_save(t, b->dv, b->fwd.ld_qkv, h, Dv, t->dr);
    delta_load(t, t->out, b->fwd.v, b->fwd.ld_qkv, h, Dv);
    for (int64_t i = 0; i < n; i++) left[i] += delta_dot(t->out, t->dr, i, Dv);
    delta_bwd_gates(t, h, dsums, left, sums);
    delta_scale(t, t->dq, t->dq_head, NULL, Dk, head > 0);
    delta_scale(t, t->dk, t->dk_head, NULL, Dk, head > 0);
}

/* dx = the gradient of a row from that of the row with unit length times `scale`, which x holds. */
static void delta_bwd_length(const struct delta_task *t, struct delta_matrix dx, struct delta_matrix x,
                             const float *lengths, float scale)
{
    for (int64_t i = 0; i < t->count; i++) {
        const float along = delta_dot(x, dx, i, t->a->Dk) * lengths[i] / scale, by = scale * lengths[i];
        for (int64_t j = 0; j < t->a->Dk; j += VF) {
            float *to = dx.at + i * dx.ld + j;
            vf_store(to, 0, by * vf_load(to, 0, DTYPE_F32) - along * vf_load(x.at, i * x.ld + j, DTYPE_F32), DTYPE_F32);
        }
    }
}

/* Keeps Sᵀ before each chunk, and its X. */
static void delta_recompute(struct delta_task *t)
{
    const int64_t Dk = round_up(t->a->Dk, 4), Dv = t->a->Dv;
    delta_states(t, 0, false);
    for (int64_t chunk = 0; chunk < t->chunks; chunk++) {
        delta_chunk(t, chunk, false);
        for (int64_t head = 0; head < t->group; head++) {
            delta_turn(delta_kept_state(t, head, chunk), delta_state_of(t, t->states, head), Dk, Dv);
            delta_forward(t, head, false);
            delta_scale(t, delta_kept_x(t, head, chunk), t->x, NULL, Dv, false);
        }
    }
}

/* sums (Hv, 2): of the gradients of a_log and dt_bias. */
static void delta_bwd_task(const struct delta_rule_bwd_args *b, int64_t item, float *room, double *sums)
{
    const struct delta_rule_fwd_args *a = &b->fwd;
    struct delta_task t = {.bwd = b};
    delta_begin(&t, a, item);
    delta_place(&t, room);
    delta_recompute(&t);
    sums += item % a->Hk * t.group * 2;
    memset(sums, 0, (size_t)(2 * t.group) * sizeof *sums);
    for (int64_t chunk = t.chunks - 1; chunk >= 0; chunk--) {
        delta_chunk(&t, chunk, true);
        for (int64_t head = 0; head < t.group; head++) delta_backward(&t, head, chunk, sums + 2 * head);
        delta_bwd_length(&t, t.dq, t.q, t.q_length, 1 / sqrtf((float)a->Dk));
        delta_bwd_length(&t, t.dk, t.k, t.k_length, 1);
        delta_save(&t, b->dq, a->ld_qkv, t.head, a->Dk, t.dq);
        delta_save(&t, b->dk, a->ld_qkv, t.head, a->Dk, t.dk);
    }
}

static void op_delta_rule_bwd(struct stream *stream, const struct delta_rule_bwd_args *b)
{
    const struct delta_rule_fwd_args *a = &b->fwd;
    heartbeat_beat();
    struct scratch scratch = scratch_of(stream);
    const int64_t floats = delta_thread_floats(a, true), tasks = a->num_seqs * a->Hk;
    double *sums = scratch_take(&scratch, (size_t)(a->num_seqs * a->Hv * 2) * sizeof *sums);
    float *threads = scratch_take(&scratch, (size_t)(team_next() * floats) * sizeof *threads);
#pragma omp parallel for schedule(dynamic) if (a->M * a->Hv * a->Dk * a->Dv > WORTH_THREADS)
    for (int64_t item = 0; item < tasks; item++)
        delta_bwd_task(b, item, threads + team_rank() * floats, sums + item / a->Hk * a->Hv * 2);
    float *const to[] = {b->da_log, b->ddt_bias};
    for (int64_t i = 0; i < 2 * a->Hv; i++) {
        double sum = 0;
        for (int64_t s = 0; s < a->num_seqs; s++) sum += sums[s * a->Hv * 2 + i];
        if (to[i % 2]) to[i % 2][i / 2] = (b->accumulate ? to[i % 2][i / 2] : 0) + (float)sum;
    }
}
