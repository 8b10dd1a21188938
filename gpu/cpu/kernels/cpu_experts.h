/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_experts.h: the routing of tokens to experts, and their rows. A template, see ops_cpu.h. */

/* ---- routing ------------------------------------------------------------- */

static int64_t route_best(const float *values, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (values[i] > values[best]) best = i;
    return best;
}

/* Groups that are not among the best lose their candidates. */
static void route_groups(const struct route_args *a, float *choice)
{
    const int64_t size = a->E / a->groups;
    float scores[ROUTE_MAX_GROUPS];
    bool kept[ROUTE_MAX_GROUPS] = {false};
    for (int64_t g = 0; g < a->groups; g++) {
        float first = -INFINITY, second = -INFINITY;
        for (int64_t e = g * size; e < (g + 1) * size; e++) {
            const float x = choice[e];
            second = x > first ? first : x > second ? x : second;
            first = x > first ? x : first;
        }
        scores[g] = first + second;
    }
    for (int64_t i = 0; i < a->top_groups; i++) {
        const int64_t best = route_best(scores, a->groups);
        kept[best] = true;
        scores[best] = -INFINITY;
    }
    for (int64_t e = 0; e < a->E; e++)
        if (!kept[e / size]) choice[e] = -INFINITY;
}

/* probs of a token, and their lse; `choice` gets what the experts are chosen by. */
static ALWAYS_INLINE void route_scores(const struct route_args *a, int64_t m, float *choice, enum dtype dtype)
{
    float *probs = a->probs + m * a->E, highest = -INFINITY, sum = 0;
    const void *logits = at(a->logits, m * a->E, dtype);
    for (int64_t e = 0; e < a->E; e += VF) vf_put(choice, e, a->E, vf_get(logits, e, a->E, dtype), DTYPE_F32);
    for (int64_t e = 0; e < a->E; e++) highest = choice[e] > highest ? choice[e] : highest;
    for (int64_t e = 0; e < a->E; e += VF)
        vf_put(probs, e, a->E, vf_exp(vf_get(choice, e, a->E, DTYPE_F32) - highest), DTYPE_F32);
    for (int64_t e = 0; e < a->E; e++) sum += probs[e];
    if (a->lse) a->lse[m] = highest + logf(sum);
    for (int64_t e = 0; e < a->E; e += VF) {
        const vf x = vf_get(choice, e, a->E, DTYPE_F32), p = vf_get(probs, e, a->E, DTYPE_F32) / sum;
        vf_put(probs, e, a->E, a->sigmoid ? vf_sigmoid(x, false) : p, DTYPE_F32);
    }
    for (int64_t e = 0; (a->bias || a->groups) && e < a->E; e++) choice[e] = probs[e] + (a->bias ? a->bias[e] : 0);
}

static void route_token(const struct route_args *a, int64_t m)
{
    float choice[ROUTE_MAX_EXPERTS], sum = a->sigmoid ? route_eps : 0, *weights = a->weights + m * a->k;
    WITH_DTYPE(a->dtype, route_scores(a, m, choice, DT));
    if (a->groups) route_groups(a, choice);
    for (int64_t j = 0; j < a->k; j++) {
        const int64_t best = route_best(choice, a->E);
        a->experts[m * a->k + j] = (int32_t)best;
        choice[best] = -INFINITY;
        weights[j] = a->probs[m * a->E + best];
        sum += weights[j];
    }
    for (int64_t j = 0; j < a->k; j++) weights[j] = (a->normalize ? weights[j] / sum : weights[j]) * a->scale;
}

/* What is added up over tokens, for some of the experts. */
static void route_sums(const struct route_args *a, struct range experts)
{
    for (int64_t m = 0; m < a->counted; m++) {
        for (int64_t j = 0; a->counts && j < a->k; j++) {
            const int64_t e = a->experts[m * a->k + j];
            if (e >= experts.first && e < experts.end) a->counts[e]++;
        }
        for (int64_t e = experts.first; a->prob_sums && e < experts.end; e++)
            a->prob_sums[e] += (double)a->probs[m * a->E + e];
    }
}

static void op_route(struct stream *stream, const struct route_args *a)
{
    (void)stream;
    ASSERT(a->E <= ROUTE_MAX_EXPERTS && a->groups <= ROUTE_MAX_GROUPS && a->k <= a->E);
    heartbeat_beat();
#pragma omp parallel if (a->M * a->E > WORTH_THREADS)
    {
        const struct range rows = range_mine(a->M, 1);
        for (int64_t m = rows.first; m < rows.end; m++) route_token(a, m);
#pragma omp barrier
        route_sums(a, range_mine(a->E, 16));
    }
}

/* The gradient of probs into dprobs. */
static void route_bwd_probs(const struct route_bwd_args *a, int64_t m, float loss_scale, float *dprobs)
{
    const float *probs = a->probs + m * a->E, *w = a->weights + m * a->k, *dw = a->dweights + m * a->k;
    float sum = a->sigmoid ? route_eps : 0, dot = 0;
    for (int64_t e = 0; e < a->E; e++)
        dprobs[e] = a->counts && m < a->counted ? a->aux_scale * loss_scale * (float)a->counts[e] : 0;
    for (int64_t j = 0; j < a->k; j++) {
        sum += probs[a->experts[m * a->k + j]];
        dot += w[j] * dw[j];
    }
    for (int64_t j = 0; j < a->k; j++)
        dprobs[a->experts[m * a->k + j]] += a->normalize ? (a->scale * dw[j] - dot) / sum : a->scale * dw[j];
}

static ALWAYS_INLINE void route_bwd_token(const struct route_bwd_args *a, int64_t m, float loss_scale, enum dtype dtype)
{
    float dprobs[ROUTE_MAX_EXPERTS], dot = 0;
    const float *probs = a->probs + m * a->E;
    route_bwd_probs(a, m, loss_scale, dprobs);
    for (int64_t e = 0; !a->sigmoid && e < a->E; e++) dot += probs[e] * dprobs[e];
    if (a->lse && m < a->counted) dot -= 2 * a->z_scale * loss_scale * a->lse[m];
    for (int64_t e = 0; e < a->E; e += VF) {
        const vf p = vf_get(probs, e, a->E, DTYPE_F32), d = vf_get(dprobs, e, a->E, DTYPE_F32);
        vf_put(at(a->dlogits, m * a->E, dtype), e, a->E, a->sigmoid ? d * p * (1.0f - p) : p * (d - dot), dtype);
    }
}

static void route_bwd_rows(const struct route_bwd_args *a, struct range rows)
{
    const float loss_scale = a->loss_scale ? *a->loss_scale : 1;
    ASSERT(a->E <= ROUTE_MAX_EXPERTS && !(a->lse && a->sigmoid));
    for (int64_t m = rows.first; m < rows.end; m++) WITH_DTYPE(a->dtype, route_bwd_token(a, m, loss_scale, DT));
}

OP_IN_PARTS(route_bwd, a->M * a->E, a->M, 1, route_bwd_rows(a, part))

static void op_sum_experts(struct stream *stream, const struct sum_experts_args *a)
{
    double sum = 0;
    (void)stream;
    for (int64_t e = 0; e < a->E; e++) {
        sum += (double)a->counts[e] * a->prob_sums[e];
        a->loads[e] += (double)a->counts[e];
    }
    *a->aux_sum += a->scale * sum;
}

/* The expert of an assignment, from `first` on; -1: another. */
static int64_t permuted(const struct permute_experts_args *a, int64_t i)
{
    const int64_t expert = a->experts[i] - a->first;
    return expert < a->E ? max64(expert, -1) : -1;
}

static void op_permute_experts(struct stream *stream, const struct permute_experts_args *a)
{
    int32_t next[ROUTE_MAX_EXPERTS];
    (void)stream;
    ASSERT(a->first + a->E <= ROUTE_MAX_EXPERTS);
    heartbeat_beat();
    memset(a->offsets, 0, (size_t)(a->E + 1) * sizeof *a->offsets);
    for (int64_t i = 0; i < a->M * a->k; i++)
        if (permuted(a, i) >= 0) a->offsets[permuted(a, i) + 1]++;
    for (int64_t e = 0; e < a->E; e++) {
        next[e] = a->offsets[e];
        a->offsets[e + 1] += a->offsets[e];
    }
    for (int64_t i = 0; i < a->M * a->k; i++) a->places[i] = permuted(a, i) < 0 ? -1 : next[permuted(a, i)]++;
}

/* ---- rows ---------------------------------------------------------------- */

static void gather_tokens_rows(const struct gather_tokens_args *a, struct range assignments)
{
    for (int64_t i = assignments.first; i < assignments.end; i++)
        if (a->places[i] >= 0)
            memcpy(at(a->xe, a->places[i] * a->C, a->dtype), at(a->x, i / a->k * a->C, a->dtype),
                   (size_t)a->C * dtype_size(a->dtype));
}

OP_IN_PARTS(gather_tokens, a->M * a->k * a->C, a->M * a->k, 1, gather_tokens_rows(a, part))

static ALWAYS_INLINE void combine_tokens_rows(const struct combine_tokens_args *a, struct range rows, enum dtype dtype)
{
    for (int64_t m = rows.first; m < rows.end; m++) {
        void *y = at(a->y, m * a->C, dtype);
        for (int64_t c = 0; c < a->C; c += VF) {
            vf sum = a->accumulate ? vf_get(y, c, a->C, dtype) : vf_zero();
            for (int64_t i = m * a->k; i < (m + 1) * a->k; i++) {
                const int64_t place = a->places ? a->places[i] : i;
                if (place < 0) continue;
                const vf x = vf_get(at(a->ye, place * a->C, dtype), c, a->C, dtype);
                sum = vf_fma(vf_set(a->weights ? a->weights[i] : 1), x, sum);
            }
            vf_put(y, c, a->C, sum, dtype);
        }
    }
}

OP_IN_PARTS(combine_tokens, a->M * a->k * a->C, a->M, 1, WITH_DTYPE(a->dtype, combine_tokens_rows(a, part, DT)))

static ALWAYS_INLINE void scale_rows_bwd_rows(const struct scale_rows_bwd_args *a, struct range rows, enum dtype dtype)
{
    for (int64_t m = rows.first; m < rows.end; m++) {
        const void *dy = at(a->dy, m * a->C, dtype), *x = at(a->x, m * a->C, dtype);
        vf dot = vf_zero();
        for (int64_t c = 0; c < a->C; c += VF) {
            const vf d = vf_get(dy, c, a->C, dtype);
            dot = vf_fma(d, vf_get(x, c, a->C, dtype), dot);
            vf_put(at(a->dx, m * a->C, dtype), c, a->C, d * a->weights[m], dtype);
        }
        a->dweights[m] = vf_sum(dot);
    }
}

OP_IN_PARTS(scale_rows_bwd, a->M * a->C, a->M, 1, WITH_DTYPE(a->dtype, scale_rows_bwd_rows(a, part, DT)))

static ALWAYS_INLINE void combine_bias_bwd_rows(const struct combine_bias_bwd_args *a, struct range rows,
                                                enum dtype dtype)
{
    for (int64_t i = rows.first; i < rows.end; i++) {
        const void *dy = at(a->dy, i / a->k * a->C, dtype), *bias = at(a->bias, a->experts[i] * a->C, dtype);
        vf dot = vf_zero();
        for (int64_t c = 0; c < a->C; c += VF)
            dot = vf_fma(vf_get(dy, c, a->C, dtype), vf_get(bias, c, a->C, dtype), dot);
        a->dweights[i] += vf_sum(dot);
    }
}

OP_IN_PARTS(combine_bias_bwd, a->M * a->k * a->C, a->M * a->k, 1,
            WITH_DTYPE(a->dtype, combine_bias_bwd_rows(a, part, DT)))

static ALWAYS_INLINE void experts_swiglu_bwd_row(const struct experts_swiglu_bwd_args *a, int64_t i, enum dtype dtype)
{
    const int64_t row = a->places[i];
    const void *dh = at(a->dh, row * a->F, dtype), *from = at(a->gate_up, row * 2 * a->F, dtype);
    void *h = at(a->h, row * a->F, dtype), *to = at(a->dgate_up, row * 2 * a->F, dtype);
    const vf weight = vf_set(a->weights[i]);
    vf dot = vf_zero();
    if (a->row_weights) a->row_weights[row] = a->weights[i];
    for (int64_t j = 0; j < a->F; j += VF) {
        const struct vf_pair pair = pair_get(from, j, a->F, a->interleaved, dtype);
        const vf d = vf_get(dh, j, a->F, dtype);
        const struct swiglu_parts s = swiglu_parts(pair, a->limit, a->alpha, dtype);
        dot = vf_fma(s.h, d, dot);
        pair_put(to, j, a->F, a->interleaved, (struct vf_pair){weight * d * s.dgate, weight * d * s.dup}, dtype);
        vf_put(h, j, a->F, weight * s.h, dtype);
    }
    a->dweights[i] = vf_sum(dot);
}

static void experts_swiglu_bwd_part(const struct experts_swiglu_bwd_args *a, struct range part)
{
    ASSERT(a->limit > 0 || !a->interleaved);
    for (int64_t i = part.first; i < part.end; i++)
        if (a->places[i] < 0)
            a->dweights[i] = 0;
        else
            WITH_DTYPE(a->dtype, experts_swiglu_bwd_row(a, i, DT));
}

OP_IN_PARTS(experts_swiglu_bwd, a->M * a->F, a->M, 1, experts_swiglu_bwd_part(a, part))
