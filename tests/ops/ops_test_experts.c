/* SPDX-License-Identifier: Apache-2.0 */
/* ops_test_experts.c: drivers of mixtures of experts: M tokens, H experts of which each token has KV; N columns of a
 * row. Routing: P groups of which D are chosen, factor: of the weights; GELU: sigmoid, RMS: normalized, TYPES: with
 * what the auxiliary losses need, IN_PLACE: many equal logits. Products: N x K; P: how rows are split, pad: rows of no
 * expert. See ops_test.h for the terms. */
#include "tests/ops/ops_test_drivers.h"

/* ---- routing ------------------------------------------------------------- */

static const double ref_aux = 0.3, ref_z = 0.1;

static struct tensor *logits_in(struct harness *h, const char *name, enum dtype dtype)
{
    struct tensor *t = tensor_in(h, name, dtype, h->c->M * h->c->H, has(h, EXTREME) ? 30 : 3);
    for (int64_t i = 0; !h->timing && has(h, IN_PLACE) && i < t->n; i++) tensor_set(t, i, floor(t->host[i]));
    return t;
}

/* Returns the log of the sum of exponentials. */
static double ref_probs(const struct harness *h, const double *logits, double *probs)
{
    double highest = -INFINITY, sum = 0;
    for (int64_t e = 0; e < h->c->H; e++) highest = fmax(highest, logits[e]);
    for (int64_t e = 0; e < h->c->H; e++) sum += exp(logits[e] - highest);
    for (int64_t e = 0; e < h->c->H; e++)
        probs[e] = has(h, GELU) ? ref_sigmoid(logits[e]) : exp(logits[e] - highest) / sum;
    return highest + log(sum);
}

static int64_t ref_best(const double *x, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 0; i < n; i++) best = x[i] > x[best] ? i : best;
    return best;
}

static void ref_drop_groups(const struct op_case *c, double *choice)
{
    double scores[64];
    const int64_t size = c->H / c->P;
    for (int64_t g = 0; g < c->P; g++) {
        double *group = choice + g * size;
        const int64_t best = ref_best(group, size);
        const double first = group[best];
        group[best] = -INFINITY;
        scores[g] = first + group[ref_best(group, size)];
        group[best] = first;
    }
    for (int64_t i = 0; i < c->D; i++) scores[ref_best(scores, c->P)] = -INFINITY;
    for (int64_t e = 0; e < c->H; e++)
        if (isfinite(scores[e / size])) choice[e] = -INFINITY;
}

static void ref_choose(struct harness *h, const double *logits, const double *probs, const double *bias,
                       int32_t *experts)
{
    const struct op_case *c = h->c;
    double choice[1024];
    for (int64_t e = 0; e < c->H; e++) choice[e] = bias || c->P ? probs[e] + (bias ? bias[e] : 0) : logits[e];
    if (c->P) ref_drop_groups(c, choice);
    for (int64_t j = 0; j < c->KV; j++) {
        experts[j] = (int32_t)ref_best(choice, c->H);
        choice[experts[j]] = -INFINITY;
    }
}

static void ref_weights(const struct harness *h, const double *probs, const int32_t *experts, double *weights)
{
    double sum = 0;
    for (int64_t j = 0; j < h->c->KV; j++) sum += probs[experts[j]];
    for (int64_t j = 0; j < h->c->KV; j++) weights[j] = factor_of(h->c) * probs[experts[j]] / (has(h, RMS) ? sum : 1);
}

/* The last third of the tokens does not count. */
static int64_t counted_of(const struct harness *h)
{
    return has(h, TYPES) ? h->c->M - h->c->M / 3 : 0;
}

static void route_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    const int64_t counted = counted_of(h);
    h->limits.max_expert_rows = c->M * c->KV;
    h->x = logits_in(h, "logits", h->dtype);
    h->b = has(h, BIAS) ? tensor_in(h, "bias", DTYPE_F32, c->H, 0.2) : NULL;
    h->y = tensor_out(h, "probs", DTYPE_F32, c->M * c->H, false);
    h->o = tensor_ints(h, "experts", c->M * c->KV);
    h->w = tensor_out(h, "weights", DTYPE_F32, c->M * c->KV, false);
    h->lse = counted ? tensor_out(h, "lse", DTYPE_F32, c->M, false) : NULL;
    h->k = counted ? tensor_ints(h, "counts", c->H) : NULL;
    h->v = counted ? tensor_doubles_in(h, "prob_sums", c->H) : NULL;
    if (counted) h->v->output = true;
    h->args.route = (struct route_args){.dtype = h->dtype,
                                        .M = c->M,
                                        .E = c->H,
                                        .k = c->KV,
                                        .sigmoid = has(h, GELU),
                                        .normalize = has(h, RMS),
                                        .scale = (float)factor_of(c),
                                        .groups = c->P,
                                        .top_groups = c->D,
                                        .logits = h->x->device,
                                        .bias = h->b ? h->b->device : NULL,
                                        .probs = h->y->device,
                                        .experts = h->o->device,
                                        .weights = h->w->device,
                                        .lse = counted ? h->lse->device : NULL,
                                        .counted = counted,
                                        .counts = counted ? h->k->device : NULL,
                                        .prob_sums = counted ? h->v->device : NULL};
}

static void route_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    for (int64_t m = 0; m < c->M; m++) {
        int32_t experts[64];
        double *probs = h->y->expected + m * c->H;
        const double lse = ref_probs(h, h->x->host + m * c->H, probs);
        ref_choose(h, h->x->host + m * c->H, probs, h->b ? h->b->host : NULL, experts);
        ref_weights(h, probs, experts, h->w->expected + m * c->KV);
        for (int64_t j = 0; j < c->KV; j++) h->o->expected[m * c->KV + j] = experts[j];
        if (!counted_of(h)) continue;
        h->lse->expected[m] = lse;
        if (m >= counted_of(h)) continue;
        for (int64_t j = 0; j < c->KV; j++) h->k->expected[experts[j]]++;
        for (int64_t e = 0; e < c->H; e++) h->v->expected[e] += probs[e];
    }
}

static void route_bwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    const int64_t counted = counted_of(h);
    const bool z = counted && !has(h, GELU);
    const float scale = 2;
    int32_t *counts = random_ints(h, c->H, 9);
    h->x = logits_in(h, "forward logits", DTYPE_F32); /* for the gradient check only */
    h->index_a = host_memory(h, (size_t)(c->M * c->KV) * sizeof *counts);
    for (int64_t i = 0; h->timing && i < c->M * c->KV; i++)
        h->index_a[i] = (int32_t)((i / c->KV * 7 + i % c->KV) % c->H);
    h->index_b = counts;
    h->y = tensor_in(h, "probs", DTYPE_F32, c->M * c->H, 1);
    h->w = tensor_in(h, "weights", DTYPE_F32, c->M * c->KV, 1);
    h->lse = tensor_in(h, "lse", DTYPE_F32, c->M, 1);
    h->dw = tensor_in(h, "dweights", DTYPE_F32, c->M * c->KV, 1);
    for (int64_t m = 0; !h->timing && m < c->M; m++) {
        double *probs = h->y->host + m * c->H;
        const double lse = ref_probs(h, h->x->host + m * c->H, probs);
        ref_choose(h, h->x->host + m * c->H, probs, NULL, h->index_a + m * c->KV);
        ref_weights(h, probs, h->index_a + m * c->KV, h->w->host + m * c->KV);
        tensor_set(h->lse, m, lse);
        for (int64_t e = 0; e < c->H; e++) tensor_set(h->y, m * c->H + e, probs[e]);
        for (int64_t j = 0; j < c->KV; j++) tensor_set(h->w, m * c->KV + j, h->w->host[m * c->KV + j]);
    }
    h->dx = tensor_out(h, "dlogits", h->dtype, c->M * c->H, false);
    h->args.route_bwd = (struct route_bwd_args){.dtype = h->dtype,
                                                .M = c->M,
                                                .E = c->H,
                                                .k = c->KV,
                                                .sigmoid = has(h, GELU),
                                                .normalize = has(h, RMS),
                                                .scale = (float)factor_of(c),
                                                .dlogits = h->dx->device,
                                                .probs = h->y->device,
                                                .weights = h->w->device,
                                                .dweights = h->dw->device,
                                                .experts = device_ints(h, h->index_a, c->M * c->KV),
                                                .counted = counted,
                                                .counts = counted ? device_ints(h, counts, c->H) : NULL,
                                                .lse = z ? h->lse->device : NULL,
                                                .aux_scale = (float)(ref_aux / (double)scale),
                                                .z_scale = (float)(ref_z / (double)scale),
                                                .loss_scale = counted ? device_bytes(h, &scale, sizeof scale) : NULL};
}

/* What the gradient of a token is of. */
static double route_token_loss(struct harness *h, int64_t m, const double *logits)
{
    const struct op_case *c = h->c;
    double probs[1024], weights[64], loss = 0;
    const double lse = ref_probs(h, logits, probs);
    ref_weights(h, probs, h->index_a + m * c->KV, weights);
    for (int64_t j = 0; j < c->KV; j++) loss += weights[j] * h->dw->host[m * c->KV + j];
    if (m >= counted_of(h)) return loss;
    for (int64_t e = 0; e < c->H; e++) loss += ref_aux * probs[e] * h->index_b[e];
    return loss + (has(h, GELU) ? 0 : ref_z * lse * lse);
}

static double route_loss(struct harness *h)
{
    double loss = 0;
    for (int64_t m = 0; m < h->c->M; m++) loss += route_token_loss(h, m, h->x->host + m * h->c->H);
    return loss;
}

/* From the derivative by each probability, which the weights' formula gives. */
static void route_bwd_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    for (int64_t m = 0; m < c->M; m++) {
        double dprobs[1024] = {0}, sum = 0, dot = 0, inner = 0;
        const double *probs = h->y->host + m * c->H, *dw = h->dw->host + m * c->KV;
        const int32_t *experts = h->index_a + m * c->KV;
        const bool counts = m < counted_of(h);
        for (int64_t e = 0; counts && e < c->H; e++) dprobs[e] = ref_aux * h->index_b[e];
        for (int64_t j = 0; j < c->KV; j++) sum += probs[experts[j]];
        for (int64_t j = 0; j < c->KV; j++) dot += dw[j] * probs[experts[j]] / sum;
        for (int64_t j = 0; j < c->KV; j++)
            dprobs[experts[j]] += factor_of(c) * (has(h, RMS) ? (dw[j] - dot) / sum : dw[j]);
        for (int64_t e = 0; e < c->H; e++) inner += dprobs[e] * probs[e];
        for (int64_t e = 0; e < c->H; e++) {
            const double p = probs[e], z = counts ? 2 * ref_z * h->lse->host[m] * p : 0;
            h->dx->expected[m * c->H + e] = has(h, GELU) ? dprobs[e] * p * (1 - p) : p * (dprobs[e] - inner) + z;
        }
    }
}

/* ---- rows ---------------------------------------------------------------- */

/* The places of assignments to experts [first, first + E) in their order by expert. */
static int32_t *ref_permute(struct harness *h, int64_t first, int64_t E, const int32_t *experts, int32_t *offsets)
{
    const int64_t n = h->c->M * h->c->KV;
    int32_t *places = host_memory(h, (size_t)n * sizeof *places), count = 0;
    for (int64_t i = 0; i < n; i++) places[i] = -1;
    for (int64_t e = 0; e < E; e++) {
        if (offsets) offsets[e] = count;
        for (int64_t i = 0; i < n; i++)
            if (experts[i] == first + e) places[i] = count++;
    }
    if (offsets) offsets[E] = count;
    return places;
}

int32_t *random_places(struct harness *h)
{
    const int64_t n = h->c->M * h->c->KV, E = 5;
    if (!h->timing) return ref_permute(h, h->c->pad, E - h->c->pad, random_ints(h, n, E), NULL);
    int32_t *places = host_memory(h, (size_t)n * sizeof *places);
    for (int64_t i = 0; i < n; i++) places[i] = (int32_t)(i % h->c->KV * h->c->M + i / h->c->KV);
    return places;
}

static void sum_experts_setup(struct harness *h)
{
    const int64_t E = h->c->H;
    h->index_a = random_ints(h, E, 9);
    h->x = tensor_doubles_in(h, "prob_sums", E);
    h->y = tensor_doubles_in(h, "loads", E);
    h->loss = tensor_double(h, "aux_sum", 2);
    h->y->output = true;
    h->args.sum_experts = (struct sum_experts_args){.E = E,
                                                    .scale = factor_of(h->c),
                                                    .counts = device_ints(h, h->index_a, E),
                                                    .prob_sums = h->x->device,
                                                    .aux_sum = h->loss->device,
                                                    .loads = h->y->device};
}

static void sum_experts_reference(struct harness *h)
{
    for (int64_t e = 0; e < h->c->H; e++) {
        h->loss->expected[0] += factor_of(h->c) * h->index_a[e] * h->x->host[e];
        h->y->expected[e] += h->index_a[e];
    }
}

static void permute_experts_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    const int64_t n = c->M * c->KV;
    h->limits.max_expert_rows = n;
    h->index_a = random_ints(h, n, c->P ? 1 : c->H + 2 * c->pad);
    for (int64_t i = 0; c->P && i < n; i++) h->index_a[i] = (int32_t)c->P;
    for (int64_t i = 0; c->pad && i < n; i += 5) h->index_a[i] = -1;
    h->x = tensor_ints(h, "offsets", c->H + 1);
    h->y = tensor_ints(h, "places", n);
    h->args.permute_experts = (struct permute_experts_args){
        c->M, c->H, c->KV, device_ints(h, h->index_a, n), h->x->device, h->y->device, c->pad};
}

static void permute_experts_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    const int64_t n = c->M * c->KV;
    int32_t *offsets = host_memory(h, (size_t)(c->H + 1) * sizeof *offsets);
    const int32_t *places = ref_permute(h, c->pad, c->H, h->index_a, offsets);
    for (int64_t e = 0; e <= c->H; e++) h->x->expected[e] = offsets[e];
    for (int64_t i = 0; i < n; i++) h->y->expected[i] = places[i];
}

static void gather_tokens_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    const int64_t n = c->M * c->KV;
    h->index_a = random_places(h);
    h->x = input(h, "x", c->M * c->N);
    h->y = tensor_out(h, "xe", h->dtype, n * c->N, false);
    h->args.gather_tokens = (struct gather_tokens_args){
        h->dtype, c->M, c->KV, c->N, h->y->device, h->x->device, device_ints(h, h->index_a, n)};
}

static void gather_tokens_reference(struct harness *h)
{
    const int64_t C = h->c->N;
    for (int64_t i = 0; i < h->y->n; i++)
        if (h->index_a[i / C] >= 0)
            h->y->expected[h->index_a[i / C] * C + i % C] = h->x->host[i / C / h->c->KV * C + i % C];
}

/* LOSS_ONLY: without weights; IN_OUT: without places */
static void combine_tokens_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    h->index_a = random_places(h);
    for (int64_t i = 0; has(h, IN_OUT) && i < c->M * c->KV; i++) h->index_a[i] = (int32_t)i;
    h->x = input(h, "ye", c->M * c->KV * c->N);
    h->w = has(h, LOSS_ONLY) ? NULL : tensor_in(h, "weights", DTYPE_F32, c->M * c->KV, 1);
    h->y = output(h, "y", h->dtype, c->M * c->N);
    h->args.combine_tokens =
        (struct combine_tokens_args){.dtype = h->dtype,
                                     .M = c->M,
                                     .k = c->KV,
                                     .C = c->N,
                                     .y = h->y->device,
                                     .ye = h->x->device,
                                     .weights = h->w ? h->w->device : NULL,
                                     .places = has(h, IN_OUT) ? NULL : device_ints(h, h->index_a, c->M * c->KV),
                                     .accumulate = has(h, ACCUMULATE)};
}

static void ref_combine(const struct harness *h, double *y)
{
    const int64_t C = h->c->N, k = h->c->KV;
    for (int64_t i = 0; i < h->c->M * k; i++)
        for (int64_t c = 0; h->index_a[i] >= 0 && c < C; c++)
            y[i / k * C + c] += (h->w ? h->w->host[i] : 1) * h->x->host[h->index_a[i] * C + c];
}

static void combine_tokens_reference(struct harness *h)
{
    start_sum(h, h->y);
    ref_combine(h, h->y->expected);
}

static void scale_rows_bwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    h->x = input(h, "x", c->M * c->N);
    h->w = tensor_in(h, "weights", DTYPE_F32, c->M, 1);
    h->dy = input(h, "dy", c->M * c->N);
    h->dx = output_over(h, h->x, "dx", c->M * c->N);
    h->dw = tensor_out(h, "dweights", DTYPE_F32, c->M, false);
    h->db = NULL; /* an earlier case's */
    h->args.scale_rows_bwd = (struct scale_rows_bwd_args){h->dtype,      c->M,         c->N,         h->dx->device,
                                                          h->dy->device, h->x->device, h->w->device, h->dw->device};
}

static void scale_rows_bwd_reference(struct harness *h)
{
    const int64_t C = h->c->N;
    for (int64_t i = 0; i < h->x->n; i++) h->dx->expected[i] = h->w->host[i / C] * h->dy->host[i];
    for (int64_t m = 0; m < h->c->M; m++)
        h->dw->expected[m] = sum_of_products(h->dy->host + m * C, h->x->host + m * C, C);
}

static double scale_rows_loss(struct harness *h)
{
    const int64_t C = h->c->N;
    double loss = 0;
    for (int64_t m = 0; m < h->c->M; m++)
        loss += h->w->host[m] * sum_of_products(h->dy->host + m * C, h->x->host + m * C, C);
    return loss;
}

static void combine_bias_bwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    const int64_t n = c->M * c->KV;
    h->index_a = random_ints(h, n, c->H);
    h->b = input(h, "bias", c->H * c->N);
    h->dy = input(h, "dy", c->M * c->N);
    h->dw = output(h, "dweights", DTYPE_F32, n);
    h->args.combine_bias_bwd = (struct combine_bias_bwd_args){.dtype = h->dtype,
                                                              .M = c->M,
                                                              .k = c->KV,
                                                              .E = c->H,
                                                              .C = c->N,
                                                              .dweights = h->dw->device,
                                                              .bias = h->b->device,
                                                              .dy = h->dy->device,
                                                              .experts = device_ints(h, h->index_a, n)};
}

static void combine_bias_bwd_reference(struct harness *h)
{
    const int64_t C = h->c->N, k = h->c->KV;
    start_sum(h, h->dw);
    for (int64_t i = 0; i < h->dw->n; i++)
        h->dw->expected[i] += sum_of_products(h->dy->host + i / k * C, h->b->host + h->index_a[i] * C, C);
}

/* ---- products ------------------------------------------------------------ */

enum { SPLIT_RANDOM, SPLIT_EVEN, SPLIT_ONE, SPLIT_SKEWED };

static const int32_t *offsets_in(struct harness *h)
{
    const struct op_case *c = h->c;
    const int64_t rows = c->M - c->pad;
    int32_t *offsets = host_memory(h, (size_t)(c->H + 1) * sizeof *offsets);
    const int32_t *choices = random_ints(h, rows, 2 * c->H);
    h->limits.max_expert_rows = c->M + 1;
    for (int64_t i = 0; i < rows; i++) {
        const int64_t random = choices[i] >= c->H ? choices[i] % (c->H / 2 + 1) : choices[i];
        const int64_t expert = c->P == SPLIT_EVEN     ? i * c->H / rows
                               : c->P == SPLIT_ONE    ? c->H - 1
                               : c->P == SPLIT_SKEWED ? (i % 8 < 6 ? 0 : choices[i] % c->H)
                                                      : random;
        offsets[expert + 1]++;
    }
    for (int64_t e = 0; e < c->H; e++) offsets[e + 1] += offsets[e];
    h->index_a = offsets;
    return device_ints(h, offsets, c->H + 1);
}

static void ref_grouped(const struct harness *h, const double *x, const double *bias, double *y)
{
    const struct op_case *c = h->c;
    for (int64_t e = 0; e < c->H; e++) {
        const int64_t first = h->index_a[e];
        ref_linear(h->index_a[e + 1] - first, c->N, c->K, has(h, IN_OUT), x + first * c->K,
                   h->w->host + e * c->N * c->K, bias ? bias + e * c->N : NULL, y + first * c->N);
    }
}

/* To expected, if the op adds: what was there in the experts' rows of n elements. */
static void grouped_added(struct harness *h, struct tensor *t, int64_t n)
{
    for (int64_t i = 0; has(h, ACCUMULATE) && i < h->index_a[h->c->H] * n; i++) t->expected[i] += t->host[i];
}

static void grouped_linear_fwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    h->x = input(h, "x", c->M * c->K);
    h->w = weight(h, "w", c->H * c->N * c->K);
    h->b = has(h, BIAS) ? input(h, "bias", c->H * c->N) : NULL;
    h->y = output(h, "y", h->dtype, c->M * c->N);
    h->args.grouped_linear_fwd = (struct grouped_linear_fwd_args){.dtype = h->dtype,
                                                                  .weights_in_out = has(h, IN_OUT),
                                                                  .M = c->M,
                                                                  .N = c->N,
                                                                  .K = c->K,
                                                                  .E = c->H,
                                                                  .y = h->y->device,
                                                                  .x = h->x->device,
                                                                  .w = h->w->device,
                                                                  .bias = h->b ? h->b->device : NULL,
                                                                  .offsets = offsets_in(h),
                                                                  .accumulate = has(h, ACCUMULATE)};
}

static void grouped_linear_fwd_reference(struct harness *h)
{
    ref_grouped(h, h->x->host, h->b ? h->b->host : NULL, h->y->expected);
    grouped_added(h, h->y, h->c->N);
}

static void grouped_linear_bwd_input_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    h->x = input(h, "x", c->M * c->K); /* for the gradient check only */
    h->w = weight(h, "w", c->H * c->N * c->K);
    h->dy = input(h, "dy", c->M * c->N);
    h->dx = output(h, "dx", h->dtype, c->M * c->K);
    h->args.grouped_linear_bwd_input = (struct grouped_linear_bwd_input_args){
        h->dtype,      has(h, IN_OUT),    c->M, c->N, c->K, c->H, h->dx->device, h->dy->device, h->w->device,
        offsets_in(h), has(h, ACCUMULATE)};
}

static void grouped_linear_bwd_input_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    for (int64_t e = 0; e < c->H; e++) {
        const int64_t first = h->index_a[e];
        ref_linear(h->index_a[e + 1] - first, c->K, c->N, !has(h, IN_OUT), h->dy->host + first * c->N,
                   h->w->host + e * c->N * c->K, NULL, h->dx->expected + first * c->K);
    }
    grouped_added(h, h->dx, c->K);
}

static double grouped_loss(struct harness *h)
{
    const int64_t N = h->c->N;
    double *y = host_memory(h, (size_t)h->dy->n * sizeof *y);
    ref_grouped(h, h->x->host, NULL, y);
    for (int64_t e = 0; h->db && e < h->c->H; e++)
        for (int64_t i = h->index_a[e] * N; i < h->index_a[e + 1] * N; i++)
            y[i] += h->b->host[e * N + i % N] * (h->rstd ? h->rstd->host[i / N] : 1);
    return sum_of_products(y, h->dy->host, h->index_a[h->c->H] * N);
}

static int grouped_input_pairs(struct harness *h, struct gradient_pair *pairs)
{
    h->db = NULL;
    return input_pairs(h, pairs);
}

/* RMS: with weights of rows, in rstd. */
static void grouped_linear_bwd_weight_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    const bool narrow = has(h, NARROW) && h->dtype == DTYPE_BF16;
    h->dy = input(h, "dy", c->M * c->N);
    h->x = input(h, "x", c->M * c->K);
    h->w = weight(h, "w", c->H * c->N * c->K);
    h->b = weight(h, "bias", c->H * c->N);
    h->dw = output(h, "dw", narrow ? DTYPE_BF16 : DTYPE_F32, c->H * c->N * c->K);
    h->db = has(h, BIAS) ? output(h, "dbias", DTYPE_F32, c->H * c->N) : NULL;
    h->rstd = has(h, RMS) ? tensor_in(h, "row_weights", DTYPE_F32, c->M, 1) : NULL;
    h->args.grouped_linear_bwd_weight =
        (struct grouped_linear_bwd_weight_args){.dtype = h->dtype,
                                                .dw_dtype = h->dw->dtype,
                                                .weights_in_out = has(h, IN_OUT),
                                                .M = c->M,
                                                .N = c->N,
                                                .K = c->K,
                                                .E = c->H,
                                                .dw = h->dw->device,
                                                .dbias = h->db ? h->db->device : NULL,
                                                .dy = h->dy->device,
                                                .x = h->x->device,
                                                .offsets = offsets_in(h),
                                                .accumulate = has(h, ACCUMULATE),
                                                .accumulate_dbias = has(h, ACCUMULATE),
                                                .row_weights = h->rstd ? h->rstd->device : NULL};
}

static void grouped_linear_bwd_weight_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    start_sum(h, h->dw);
    if (h->db) start_sum(h, h->db);
    for (int64_t e = 0; e < c->H; e++) {
        double *dw = h->dw->expected + e * c->N * c->K;
        for (int64_t i = h->index_a[e]; i < h->index_a[e + 1]; i++) {
            for (int64_t j = 0; j < c->N; j++) {
                const double d = h->dy->host[i * c->N + j];
                for (int64_t l = 0; l < c->K; l++)
                    dw[has(h, IN_OUT) ? l * c->N + j : j * c->K + l] += d * h->x->host[i * c->K + l];
                if (h->db) h->db->expected[e * c->N + j] += d * (h->rstd ? h->rstd->host[i] : 1);
            }
        }
    }
}

FORWARD(route);
BACKWARD(route_bwd, route_loss, input_pairs);
FORWARD(sum_experts);
FORWARD(permute_experts);
FORWARD(gather_tokens);
FORWARD(combine_tokens);
FORWARD(combine_bias_bwd);
BACKWARD(scale_rows_bwd, scale_rows_loss, input_and_weight_pairs);
FORWARD(grouped_linear_fwd);
BACKWARD(grouped_linear_bwd_input, grouped_loss, grouped_input_pairs);
BACKWARD(grouped_linear_bwd_weight, grouped_loss, weight_pairs);
