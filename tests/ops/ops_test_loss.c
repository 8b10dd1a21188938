/* SPDX-License-Identifier: Apache-2.0 */
/* ops_test_loss.c: drivers of cross-entropy, sums, and what is computed element by element. See ops_test.h for the
 * terms. */
#include "comm/sums.h"
#include "tests/ops/ops_test_drivers.h"

/* ---- cross-entropy: N is the vocabulary, K the padded one (or 0); L2: smoothed labels; RESIDUAL: scales and losses of
 * rows; BIAS: linear; P: tokens of a teacher, index_b, whose log-probabilities are b */

static const double teacher_temperature = 1.5, teacher_alpha = 0.75;

/* The teacher's probability of column j in row i. */
static double teacher_p(const struct harness *h, int64_t i, int64_t j)
{
    const int64_t K = h->c->P;
    double found = 0, total = 0;
    for (int64_t k = 0; k < K; k++) {
        const double p = exp(h->b->host[i * K + k] / teacher_temperature);
        total += p;
        if (h->index_b[i * K + k] == j) found = p;
    }
    return found / total;
}

static double cross_entropy_smoothing(const struct harness *h)
{
    return has(h, L2) ? (double)0.1f : 0;
}

/* The part of the gradient that is not wanted, where the logit is z. */
static double cross_entropy_p(const struct harness *h, double z, double lse)
{
    return has(h, BIAS) ? 0 : exp(z - lse);
}

/* The wanted probability of column j in row i. */
static double cross_entropy_wanted(const struct harness *h, int64_t i, int64_t j)
{
    const double smoothing = cross_entropy_smoothing(h);
    return (1 - smoothing) * (j == h->index_a[i]) + smoothing / (double)h->c->N;
}

/* The factor of dlogits; WIDE_OUT: without a loss scale; IN_PLACE: with a step's scale. */
static const float cross_entropy_scale = 0.125f;
static const float cross_entropy_loss_scale = 2;
static const float cross_entropy_step_scale = 1.5f;

static double cross_entropy_factor(const struct harness *h, int64_t i)
{
    const double of_step = has(h, IN_PLACE) ? (double)cross_entropy_step_scale : 1;
    const double of_row = has(h, RESIDUAL) ? h->w->host[i] : 1;
    return (double)cross_entropy_scale * of_step * of_row * (has(h, WIDE_OUT) ? 1 : (double)cross_entropy_loss_scale);
}

static void cross_entropy_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    h->limits.V = c->N;
    int64_t ld = c->N + c->pad, bytes = (int64_t)dtype_size(wide_dtype(h));
    int64_t ld_dlogits = has(h, IN_PLACE) ? ld * bytes / (int64_t)dtype_size(h->dtype) : c->N;
    h->index_a = random_ints(h, c->M, c->N);
    for (int64_t i = 2; i < c->M; i += 5) h->index_a[i] = -1;
    h->x = tensor_in(h, "logits", wide_dtype(h), c->M * ld, has(h, EXTREME) ? 80 : 4);
    h->loss = tensor_double(h, "loss_sum", 0.5);
    h->k = tensor_in(h, "loss_scale, step_scale", DTYPE_F32, 2, 1);
    if (!h->timing) {
        tensor_set(h->k, 0, cross_entropy_loss_scale);
        tensor_set(h->k, 1, cross_entropy_step_scale);
    }
    const float *scales = h->k->device;
    h->w = has(h, RESIDUAL) ? tensor_in(h, "row_scale", DTYPE_F32, c->M, 2) : NULL;
    h->y = has(h, RESIDUAL) ? tensor_out(h, "row_losses", DTYPE_F32, c->M, false) : NULL;
    h->b = c->P ? tensor_in(h, "teacher_logps", DTYPE_F32, c->M * c->P, 3) : NULL;
    h->index_b = c->P ? random_ints(h, c->M * c->P, c->N / c->P) : NULL;
    for (int64_t k = 0; k < c->M * c->P; k++) h->index_b[k] += (int32_t)(k % c->P * (c->N / c->P)); /* they rise */
    h->dx = NULL;
    if (!has(h, LOSS_ONLY)) {
        h->dx = tensor_out(h, "dlogits", h->dtype, c->M * ld_dlogits, false);
        if (has(h, IN_PLACE)) {
            h->dx->device = h->x->device;
            h->dx->alias = true;
            h->dx->name = "dlogits in place";
        }
    }
    h->args.cross_entropy =
        (struct cross_entropy_args){.dtype = h->dtype,
                                    .logits_dtype = wide_dtype(h),
                                    .M = c->M,
                                    .V = c->N,
                                    .V_padded = c->K,
                                    .ld_logits = ld,
                                    .ld_dlogits = ld_dlogits,
                                    .logits = h->x->device,
                                    .dlogits = h->dx ? h->dx->device : NULL,
                                    .targets = device_ints(h, h->index_a, c->M),
                                    .logit_scale = (float)factor_of(c),
                                    .softcap = (float)c->cap,
                                    .scale = cross_entropy_scale,
                                    .smoothing = (float)cross_entropy_smoothing(h),
                                    .linear = has(h, BIAS),
                                    .K = c->P,
                                    .teacher_ids = c->P ? device_ints(h, h->index_b, c->M * c->P) : NULL,
                                    .teacher_logps = h->b ? h->b->device : NULL,
                                    .temperature = (float)teacher_temperature,
                                    .alpha = (float)teacher_alpha,
                                    .row_scale = h->w ? h->w->device : NULL,
                                    .row_losses = h->y ? h->y->device : NULL,
                                    .step_scale = has(h, IN_PLACE) ? scales + 1 : NULL,
                                    .loss_scale = has(h, WIDE_OUT) ? NULL : scales,
                                    .loss_sum = h->loss->device};
}

/* The value whose softmax is taken; *slope: its derivative. */
static double mapped_logit(const struct op_case *c, double x, double *slope)
{
    double z = factor_of(c) * x, t = c->cap > 0 ? tanh(z / c->cap) : 0;
    *slope = factor_of(c) * (1 - t * t);
    return c->cap > 0 ? c->cap * t : z;
}

static double row_lse(const struct op_case *c, const double *x)
{
    double highest = -INFINITY, sum = 0, slope;
    for (int64_t j = 0; j < c->N; j++) highest = fmax(highest, mapped_logit(c, x[j], &slope));
    for (int64_t j = 0; j < c->N; j++) sum += exp(mapped_logit(c, x[j], &slope) - highest);
    return highest + log(sum);
}

/* log of the sum of exp(z / T) */
static double cool_lse(const struct op_case *c, const double *x)
{
    double highest = -INFINITY, sum = 0, slope;
    for (int64_t j = 0; j < c->N; j++) highest = fmax(highest, mapped_logit(c, x[j], &slope) / teacher_temperature);
    for (int64_t j = 0; j < c->N; j++) sum += exp(mapped_logit(c, x[j], &slope) / teacher_temperature - highest);
    return highest + log(sum);
}

/* T² · KL(t || softmax(z / T)) */
static double teacher_kl(const struct harness *h, int64_t i)
{
    const double *row = h->x->host + i * (h->c->N + h->c->pad), lse = cool_lse(h->c, row);
    double kl = 0, slope;
    for (int64_t j = 0; j < h->c->N; j++) {
        const double p = teacher_p(h, i, j);
        if (p > 0) kl += p * (log(p) - mapped_logit(h->c, row[j], &slope) / teacher_temperature + lse);
    }
    return teacher_temperature * teacher_temperature * kl;
}

static double cross_entropy_row_loss(const struct harness *h, int64_t i)
{
    const double *row = h->x->host + i * (h->c->N + h->c->pad);
    double sum = 0, slope;
    const double lse = has(h, BIAS) || h->index_a[i] < 0 ? 0 : row_lse(h->c, row);
    for (int64_t j = 0; h->index_a[i] >= 0 && j < h->c->N; j++)
        sum += cross_entropy_wanted(h, i, j) * (lse - mapped_logit(h->c, row[j], &slope));
    return h->c->P && h->index_a[i] >= 0 ? (1 - teacher_alpha) * sum + teacher_alpha * teacher_kl(h, i) : sum;
}

static void cross_entropy_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    for (int64_t i = 0; i < c->M; i++) {
        h->loss->expected[0] += cross_entropy_row_loss(h, i);
        if (h->y) h->y->expected[i] = cross_entropy_row_loss(h, i);
    }
    for (int64_t i = 0; h->dx && i < c->M; i++) {
        const double *row = h->x->host + i * (c->N + c->pad);
        double *dx = h->dx->expected + i * h->args.cross_entropy.ld_dlogits, lse = row_lse(c, row), slope;
        for (int64_t j = 0; j < c->N; j++) {
            const double z = mapped_logit(c, row[j], &slope);
            double by_z = cross_entropy_p(h, z, lse) - cross_entropy_wanted(h, i, j);
            if (c->P)
                by_z = (1 - teacher_alpha) * by_z +
                       teacher_alpha * teacher_temperature *
                           (exp(z / teacher_temperature - cool_lse(c, row)) - teacher_p(h, i, j));
            dx[j] = h->index_a[i] < 0 ? 0 : cross_entropy_factor(h, i) * by_z * slope;
        }
        for (int64_t j = c->N; j < c->K; j++) dx[j] = 0;
    }
}

static double cross_entropy_loss(struct harness *h)
{
    double sum = 0;
    for (int64_t i = 0; i < h->c->M; i++) sum += cross_entropy_factor(h, i) * cross_entropy_row_loss(h, i);
    return sum;
}

static int cross_entropy_pairs(struct harness *h, struct gradient_pair *pairs)
{
    pairs[0] = (struct gradient_pair){h->x, h->dx};
    return h->dx && h->x->n == h->dx->n && !h->c->pad; /* the same element of both */
}

/* ---- element by element -------------------------------------------------- */

static void add_setup(struct harness *h)
{
    h->x = input(h, "a", h->c->N);
    h->w = h->c->K == 1 ? NULL : input(h, "b", h->c->N); /* K: summands; 0: two */
    h->y = output_over(h, h->x, "y", h->c->N);
    h->dy = h->c->offset ? tensor_in(h, "factor", h->dtype, 1, 2) : NULL;
    h->args.add = (struct add_args){.dtype = h->dtype,
                                    .n = h->c->N,
                                    .y = h->y->device,
                                    .a = h->x->device,
                                    .b = h->w ? h->w->device : NULL,
                                    .factor = h->dy ? h->dy->device : NULL};
}

static void add_reference(struct harness *h)
{
    for (int64_t i = 0; i < h->c->N; i++)
        h->y->expected[i] = (h->x->host[i] + (h->w ? h->w->host[i] : 0)) * (h->dy ? h->dy->host[0] : 1);
}

/* fp32 to the case's dtype; with WIDE_OUT back; with IN_PLACE from the dtype to itself (not really in place); with
 * HALVES from bf16 to fp16, or back. Rounds to nearest and does nothing else. */
static void cast_setup(struct harness *h)
{
    enum dtype src = has(h, WIDE_OUT) || has(h, IN_PLACE) ? h->dtype : DTYPE_F32;
    enum dtype dst = has(h, WIDE_OUT) ? DTYPE_F32 : h->dtype;
    if (has(h, HALVES) && h->dtype != DTYPE_F32) src = h->dtype == DTYPE_BF16 ? DTYPE_F16 : DTYPE_BF16;
    h->x = tensor_in(h, "src", src, h->c->N, has(h, EXTREME) ? 3.3e38 : 1);
    for (int64_t i = 3; has(h, EXTREME) && !h->timing && i < h->c->N; i += 7)
        tensor_set(h->x, i, i % 2 ? NAN : INFINITY);
    h->y = tensor_out(h, "dst", dst, h->c->N, false);
    h->y->exact = true;
    h->args.cast = (struct cast_args){dst, src, h->c->N, h->y->device, h->x->device};
}

static void cast_reference(struct harness *h)
{
    for (int64_t i = 0; i < h->c->N; i++) h->y->expected[i] = tensor_round(h->y, h->x->host[i]);
}

/* fp32 into the case's dtype; with WIDE_OUT the other way. */
static void accumulate_setup(struct harness *h)
{
    enum dtype src = has(h, WIDE_OUT) ? h->dtype : DTYPE_F32, dst = has(h, WIDE_OUT) ? DTYPE_F32 : h->dtype;
    h->x = tensor_in(h, "src", src, h->c->N, 1);
    h->y = tensor_out(h, "dst", dst, h->c->N, has(h, ACCUMULATE));
    h->y->exact = true;
    h->args.accumulate = (struct accumulate_args){
        dst, src, h->c->N, h->y->device, h->x->device, has(h, EXTREME) ? 1 / 3.0f : 1, has(h, ACCUMULATE)};
}

static void accumulate_reference(struct harness *h)
{
    const double scale = (double)h->args.accumulate.scale;
    for (int64_t i = 0; i < h->c->N; i++) {
        double x = h->x->host[i] * scale + (has(h, ACCUMULATE) ? h->y->host[i] : 0);
        h->y->expected[i] = tensor_round(h->y, (double)(float)x); /* in fp32 first */
    }
}

static void *element_at(const struct tensor *t, int64_t i)
{
    return (char *)t->device + i * (int64_t)dtype_size(t->dtype);
}

/* M ranks, K the own one; values of very different sizes, so that the order of sums shows. IN_PLACE, in fp32: the own
 * contribution is where the sum goes. NARROW: the sum is bf16. */
static void sum_ranks_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    const int64_t n = c->N, pad = c->pad;
    const bool in_place = has(h, IN_PLACE) && h->dtype == DTYPE_F32;
    h->x = tensor_in(h, "inbox", h->dtype, c->M * n + pad, 1);
    h->w = tensor_in(h, "own", h->dtype, n + pad, 1);
    for (int64_t i = 0; !h->timing && i < c->M * n; i++) {
        const double scale = ldexp(1, (int)(i * 7 % 23) - 11);
        const bool own = i / n == c->K;
        tensor_set(h->x, pad + i, own ? NAN : scale * h->x->host[pad + i]);
        if (own) tensor_set(h->w, pad + i % n, scale * h->w->host[pad + i % n]);
    }
    h->y = in_place ? h->w : tensor_out(h, "out", has(h, NARROW) ? DTYPE_BF16 : DTYPE_F32, n + pad, has(h, ACCUMULATE));
    h->y->output = h->y->exact = true;
    h->args.sum_ranks = (struct sum_ranks_args){.dtype = h->dtype,
                                                .out_dtype = h->y->dtype,
                                                .n = n,
                                                .ranks = c->M,
                                                .rank = c->K,
                                                .out = element_at(h->y, pad),
                                                .own = element_at(h->w, pad),
                                                .inbox = element_at(h->x, pad),
                                                .accumulate = has(h, ACCUMULATE)};
}

/* Each sum of two floats is exact in double, but for the last rounding. The host's collectives have the same bits. */
static void sum_ranks_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    const int64_t pad = c->pad;
    for (int64_t i = 0; i < c->N; i++) {
        const bool starts = has(h, ACCUMULATE);
        float own = (float)h->w->host[pad + i], sum = starts ? (float)h->y->host[pad + i] : 0, other = sum, in[9];
        const void *all[9];
        for (int64_t r = 0; r < c->M; r++) {
            in[r] = r == c->K ? own : (float)h->x->host[pad + r * c->N + i];
            all[r] = &in[r];
            sum = r == 0 && !starts ? in[r] : (float)((double)sum + (double)in[r]);
        }
        sum_ranks(&other, DTYPE_F32, all, (int)c->M, 1, DTYPE_F32, starts ? SUM_FROM_OUT : SUM_ALONE);
        ASSERT(memcmp(&sum, &other, sizeof sum) == 0);
        h->y->expected[pad + i] = tensor_round(h->y, (double)sum);
    }
}

static void sumsq_setup(struct harness *h)
{
    h->x = tensor_in(h, "x", has(h, HALVES) ? DTYPE_BF16 : DTYPE_F32, h->c->N, has(h, EXTREME) ? 1e30 : 1);
    h->loss = tensor_double(h, "out", NAN);
    h->loss->tolerance = 1e-12;
    h->args.sumsq = (struct sumsq_args){h->x->dtype, h->c->N, h->x->device, h->loss->device};
}

static void sumsq_reference(struct harness *h)
{
    h->loss->expected[0] = sum_of_products(h->x->host, h->x->host, h->c->N);
}

static const struct step_schedule schedule = {.base = 7,
                                              .rates = {{1e-3, 0.1, 0.01, 0.9, 0.99}, {2e-3, 0.2, 0.02, 0.8, 0.98}}};

/* M units, K ranks; window: the clip. EXTREME: a slice overflowed; ACCUMULATE: one update was made that the base
 * does not count; LOSS_ONLY: no loss scaling; HALVES: gradients are 4 times as large */
static void decide_step_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    bool scaled = !has(h, LOSS_ONLY);
    h->x = tensor_doubles_in(h, "reports", c->K * (c->M + 1));
    if (has(h, EXTREME) && !h->timing) tensor_set(h->x, (c->K - 1) * (c->M + 1) + c->M / 2, INFINITY);
    struct step_state state = {.optimizer_step = has(h, ACCUMULATE) ? 8 : 7,
                               .scaler = {.scale = scaled ? 64 : 1, .steps = 9, .last_overflow = 5, .hysteresis = 1}};
    struct step_state *device = device_bytes(h, &state, sizeof state);
    h->y = tensor_alias(h, "loss_sum, grad_norm, lr, corrections, betas", &device->loss_sum, 7, true);
    h->w = tensor_alias(h, "loss scales, grad_scale", &device->loss_scale, 3, false);
    h->args.decide_step = (struct decide_step_args){
        .world = (int32_t)c->K,
        .units = (int32_t)c->M,
        .turns = c->K % 2 == 0 ? 2 : 1,
        .reports = h->x->device,
        .grad_factor = has(h, HALVES) ? 4 : 1,
        .clip = (double)c->window,
        .scaler = {.dynamic = scaled, .hysteresis = 2, .window = 3, .min_scale = 1},
        .schedule = device_bytes(h, &schedule, sizeof schedule),
        .state = device,
    };
}

static void decide_step_reference(struct harness *h)
{
    const struct decide_step_args *a = &h->args.decide_step;
    double sum = 0, loss = 0, scale = a->scaler.dynamic ? 64 : 1;
    for (int r = 0; r < a->world; r++) {
        for (int u = 0; u < a->units; u++) sum += h->x->host[r * (a->units + 1) + u];
        loss += h->x->host[r * (a->units + 1) + a->units];
    }
    const struct step_rates *rates = &schedule.rates[has(h, ACCUMULATE) ? 1 : 0];
    double norm = sqrt(sum) / scale / a->grad_factor,
           clip = a->clip > 0 && norm > a->clip ? a->clip / (norm + 1e-6) : 1;
    const double y[] = {loss, norm, rates->lr, rates->correction1, rates->correction2, rates->beta1, rates->beta2};
    memcpy(h->y->expected, y, sizeof y);
    /* step 9: an overflow takes the last of the hysteresis; without one, the window of 3 is full */
    h->w->expected[0] = scale * (!a->scaler.dynamic ? 1 : isfinite(sum) ? 2 : 0.5);
    h->w->expected[1] = scale;
    h->w->expected[2] = clip / scale / a->grad_factor;
}

/* EXTREME: two elements are not finite; LOSS_ONLY: not enabled; HALVES: in bf16 */
static void find_nonfinite_setup(struct harness *h)
{
    int64_t n = h->c->N;
    int32_t enabled = !has(h, LOSS_ONLY);
    h->x = tensor_in(h, "x", has(h, HALVES) ? DTYPE_BF16 : DTYPE_F32, n, 1);
    if (has(h, EXTREME) && !h->timing) {
        tensor_set(h->x, n / 2, -INFINITY);
        tensor_set(h->x, n - 1, NAN);
    }
    h->y = tensor_index(h, "index", -7);
    h->args.find_nonfinite =
        (struct find_nonfinite_args){h->x->dtype, n, h->x->device, device_ints(h, &enabled, 1), h->y->device};
}

static void find_nonfinite_reference(struct harness *h)
{
    if (!has(h, LOSS_ONLY)) h->y->expected[0] = (double)(has(h, EXTREME) ? h->c->N / 2 : h->c->N);
}

/* TYPES: five segments of weight decay, in elements 0 … n - 1; the second and the fourth have it. */

BACKWARD(cross_entropy, cross_entropy_loss, cross_entropy_pairs);
FORWARD(add);
FORWARD(cast);
FORWARD(accumulate);
FORWARD(sum_ranks);
FORWARD(sumsq);
FORWARD(decide_step);
FORWARD(find_nonfinite);
