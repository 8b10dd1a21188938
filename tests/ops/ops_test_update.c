/* SPDX-License-Identifier: Apache-2.0 */
/* ops_test_update.c: drivers of the optimizers. See ops_test.h for the terms. */
#include "core/training/philox.h"
#include "tests/ops/ops_test_drivers.h"
#include "tests/unit/fixtures/orthogonalize_reference.h"

enum { DECAY_SEGMENTS = 5 };
static struct decay_segment decay_segment_of(int64_t n, int s)
{
    const int64_t ends[DECAY_SEGMENTS] = {8, 64, n / 32 * 8, n / 16 * 8, n};
    return (struct decay_segment){ends[s], s % 2 ? 0.1f : 0};
}

static const struct decay_segment *decay_segments_of(struct harness *h)
{
    struct decay_segment segments[DECAY_SEGMENTS];
    for (int s = 0; s < DECAY_SEGMENTS; s++) segments[s] = decay_segment_of(h->c->N, s);
    return has(h, TYPES) ? device_bytes(h, segments, sizeof segments) : NULL;
}

static double decay_of_element(const struct harness *h, int64_t i, float weight_decay)
{
    int s = 0;
    while (has(h, TYPES) && i >= decay_segment_of(h->c->N, s).end) s++;
    return (double)(has(h, TYPES) ? decay_segment_of(h->c->N, s).weight_decay : weight_decay);
}

enum { ROUNDED_SEED = 1234, ROUNDED_STEP = 7, ROUNDED_UNIT = 5 };

/* WIDE_OUT: the parameter is fp32; LOSS_ONLY: there is none; else it has the case's dtype. EXTREME: a skipped step.
 * IN_PLACE: gradients in bf16; RMS: gradients and master weights; HALVES: the moments as well; `pad`: the place of
 * element 0. INVERSE: m becomes the gradient, so that its rounding is the only one */
static void adam_setup(struct harness *h)
{
    int64_t n = h->c->N;
    const bool narrow = has(h, RMS) || has(h, HALVES), exact = has(h, INVERSE);
    const enum dtype master = narrow ? DTYPE_BF16 : DTYPE_F32, moment = has(h, HALVES) ? DTYPE_BF16 : DTYPE_F32;
    h->w = tensor_in(h, "master", master, n, 1);
    h->q = tensor_in(h, "m", moment, n, 0.1);
    h->v = tensor_in(h, "v", moment, n, 0.1);
    for (int64_t i = 0; !h->timing && i < n; i++) tensor_set(h->v, i, fabs(h->v->host[i]) * 0.1);
    h->x = tensor_in(h, "grad", exact || (!narrow && !has(h, IN_PLACE)) ? DTYPE_F32 : DTYPE_BF16, n, 1);
    h->y = has(h, LOSS_ONLY) || narrow ? NULL : tensor_out(h, "param", wide_dtype(h), n, false);
    h->w->output = h->q->output = h->v->output = true;
    h->q->exact = exact;
    const struct step_state step = {.optimizer_step = ROUNDED_STEP,
                                    .lr = 1e-2,
                                    .beta1 = exact ? 0 : 0.9,
                                    .beta2 = 0.999,
                                    .grad_scale = exact ? 1 : 0.625f,
                                    .correction1 = 1 - 0.9 * 0.9,
                                    .correction2 = 1 - 0.999 * 0.999,
                                    .skipped = has(h, EXTREME)};
    h->args.adam = (struct adam_args){.n = n,
                                      .master = h->w->device,
                                      .m = h->q->device,
                                      .v = h->v->device,
                                      .master_dtype = master,
                                      .moment_dtype = moment,
                                      .rounding = {ROUNDED_SEED, ROUNDED_UNIT, h->c->pad},
                                      .grad = h->x->device,
                                      .grad_dtype = h->x->dtype,
                                      .step = device_bytes(h, &step, sizeof step),
                                      .param = h->y ? h->y->device : NULL,
                                      .param_dtype = wide_dtype(h),
                                      .eps = 1e-6f,
                                      .weight_decay = exact || has(h, TYPES) ? 0 : 0.1f,
                                      .segments = decay_segments_of(h),
                                      .adamw = !has(h, L2)};
}

/* A value of `state`, rounded if the state is bf16: by the random bits of philox.h, with the counter as
 * core/training/stochastic_rounding.h defines it. */
static double adam_rounded(const struct harness *h, const struct tensor *t, uint32_t state, int64_t i, double value)
{
    const uint64_t key = ROUNDED_SEED ^ 0x73746f6368617374u;
    const int64_t place = h->c->pad + i;
    const uint32_t keys[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    const uint32_t counter[4] = {(uint32_t)(place / 8), 0, state << 24 | ROUNDED_UNIT, ROUNDED_STEP};
    uint32_t words[4], bits;
    float x = (float)value;
    if (t->dtype == DTYPE_F32) return value;
    philox4x32(keys, counter, words);
    memcpy(&bits, &x, sizeof bits);
    bits += words[place % 8 / 2] >> 16 * (place % 2) & 0xffff;
    return bf16_to_f32((uint16_t)(bits >> 16));
}

static void adam_reference(struct harness *h)
{
    const struct adam_args *a = &h->args.adam;
    const double beta1 = has(h, INVERSE) ? 0 : 0.9, beta2 = 0.999;
    const double lr = (double)1e-2f, scale = has(h, INVERSE) ? 1 : 0.625;
    for (int64_t i = 0; i < a->n && !has(h, EXTREME); i++) {
        double w = h->w->host[i], g = h->x->host[i] * scale;
        if (a->adamw)
            w -= lr * decay_of_element(h, i, a->weight_decay) * w;
        else
            g += decay_of_element(h, i, a->weight_decay) * w;
        double m = beta1 * h->q->host[i] + (1 - beta1) * g;
        double v = beta2 * h->v->host[i] + (1 - beta2) * g * g;
        w -= lr * (m / (1 - 0.9 * 0.9)) / (sqrt(v / (1 - 0.999 * 0.999)) + (double)a->eps);
        h->w->expected[i] = adam_rounded(h, h->w, STATE_MASTER, i, w);
        h->q->expected[i] = adam_rounded(h, h->q, STATE_EXP_AVG, i, m);
        h->v->expected[i] = adam_rounded(h, h->v, STATE_EXP_AVG_SQ, i, v);
        if (h->y) h->y->expected[i] = w;
    }
}

/* Lion; L2: SGD, with IN_PLACE: with Nesterov's momentum, with RMS: without momentum. ACCUMULATE: the first update.
 * WIDE_OUT: the parameter is fp32; LOSS_ONLY: there is none. EXTREME: a skipped step. HALVES: gradients in bf16 */
static void momentum_setup(struct harness *h)
{
    const int64_t n = h->c->N;
    const bool sgd = has(h, L2), plain = has(h, RMS);
    h->w = tensor_in(h, "master", DTYPE_F32, n, 1);
    h->q = plain ? NULL : tensor_in(h, "m", DTYPE_F32, n, 0.1);
    h->x = tensor_in(h, "grad", has(h, HALVES) ? DTYPE_BF16 : DTYPE_F32, n, 1);
    for (int64_t i = 0; !h->timing && h->q && !sgd && i < n; i += 3) { /* the sign of 0 is 0 */
        tensor_set(h->q, i, 0);
        tensor_set(h->x, i, 0);
    }
    h->y = has(h, LOSS_ONLY) ? NULL : tensor_out(h, "param", wide_dtype(h), n, false);
    h->w->output = true;
    if (h->q) h->q->output = true;
    const struct step_state step = {.optimizer_step = has(h, ACCUMULATE) ? 1 : 2,
                                    .lr = 1e-2,
                                    .beta1 = 0.9,
                                    .beta2 = 0.99,
                                    .grad_scale = 0.625f,
                                    .skipped = has(h, EXTREME)};
    h->args.momentum = (struct momentum_args){
        .rule = sgd ? OPTIMIZER_SGD : OPTIMIZER_LION,
        .n = n,
        .master = h->w->device,
        .m = h->q ? h->q->device : NULL,
        .grad = h->x->device,
        .grad_dtype = h->x->dtype,
        .step = device_bytes(h, &step, sizeof step),
        .param = h->y ? h->y->device : NULL,
        .param_dtype = wide_dtype(h),
        .weight_decay = has(h, TYPES) ? 0 : 0.1f,
        .segments = decay_segments_of(h),
        .momentum = plain ? 0 : 0.75f,
        .dampening = has(h, IN_PLACE) || plain ? 0 : 0.25f,
        .nesterov = has(h, IN_PLACE),
    };
}

static void momentum_reference(struct harness *h)
{
    const struct momentum_args *a = &h->args.momentum;
    const double lr = (double)1e-2f, momentum = (double)a->momentum;
    for (int64_t i = 0; i < a->n && !has(h, EXTREME); i++) {
        double w = h->w->host[i], g = h->x->host[i] * 0.625, m = h->q ? h->q->host[i] : 0;
        const double decay = decay_of_element(h, i, a->weight_decay);
        if (a->rule == OPTIMIZER_LION) {
            double c = 0.9 * m + 0.1 * g;
            w -= lr * decay * w + lr * (c > 0 ? 1 : c < 0 ? -1 : 0);
            m = 0.99 * m + 0.01 * g;
        } else {
            g += decay * w;
            m = has(h, ACCUMULATE) ? g : momentum * m + (1 - (double)a->dampening) * g;
            w -= lr * (!h->q ? g : a->nesterov ? g + momentum * m : m);
        }
        h->w->expected[i] = w;
        if (h->q) h->q->expected[i] = m;
        if (h->y) h->y->expected[i] = w;
    }
}

/* IN_PLACE: with Nesterov's momentum; HALVES: gradients in bf16; EXTREME: a skipped step. */
static void muon_momentum_setup(struct harness *h)
{
    const int64_t n = h->c->N;
    h->q = tensor_in(h, "m", DTYPE_F32, n, 0.1);
    h->x = tensor_in(h, "grad", has(h, HALVES) ? DTYPE_BF16 : DTYPE_F32, n, 1);
    h->y = has(h, EXTREME) ? tensor_in(h, "update", DTYPE_BF16, n, 1) : tensor_out(h, "update", DTYPE_BF16, n, false);
    h->q->output = h->y->output = true;
    const struct step_state step = {.grad_scale = 0.625f, .skipped = has(h, EXTREME)};
    h->args.muon_momentum = (struct muon_momentum_args){.n = n,
                                                        .m = h->q->device,
                                                        .grad = h->x->device,
                                                        .grad_dtype = h->x->dtype,
                                                        .step = device_bytes(h, &step, sizeof step),
                                                        .update = h->y->device,
                                                        .momentum = 0.875f,
                                                        .nesterov = has(h, IN_PLACE)};
}

static void muon_momentum_reference(struct harness *h)
{
    for (int64_t i = 0; i < h->c->N && !has(h, EXTREME); i++) {
        double g = h->x->host[i] * 0.625, m = 0.875 * h->q->host[i] + 0.125 * g;
        h->q->expected[i] = m;
        h->y->expected[i] = has(h, IN_PLACE) ? 0.875 * m + 0.125 * g : m;
    }
}

/* (M, N) matrix, K iterations. IN_PLACE: y is x; EXTREME: x is 0. */
static void orthogonalize_setup(struct harness *h)
{
    const int64_t numel = h->c->M * h->c->N, n = h->c->M < h->c->N ? h->c->M : h->c->N;
    h->x = tensor_in(h, "x", DTYPE_BF16, numel, has(h, EXTREME) ? 0 : 3);
    h->y = h->x;
    if (!has(h, IN_PLACE)) h->y = tensor_out(h, "y", DTYPE_BF16, numel, false);
    h->y->output = true;
    h->y->tolerance = 0.03; /* a value that rounds the other way changes all that follow */
    h->args.orthogonalize = (struct orthogonalize_args){
        .rows = h->c->M,
        .cols = h->c->N,
        .steps = (int32_t)h->c->K,
        .x = h->x->device,
        .y = h->y->device,
        .product = arena_take(&h->arena, MEM_WORKSPACE, (size_t)numel * sizeof(float)),
        .iterate = arena_take(&h->arena, MEM_WORKSPACE, (size_t)numel * sizeof(uint16_t)),
        .gram = arena_take(&h->arena, MEM_WORKSPACE, (size_t)(n * n) * sizeof(uint16_t)),
        .polynomial = arena_take(&h->arena, MEM_WORKSPACE, (size_t)(n * n) * sizeof(uint16_t)),
        .sum = arena_take(&h->arena, MEM_WORKSPACE, sizeof(double)),
    };
}

static void orthogonalize_reference(struct harness *h)
{
    reference_orthogonalize(h->y->expected, h->x->host, h->c->M, h->c->N, h->c->K);
}

/* WIDE_OUT: the parameter is fp32; LOSS_ONLY: there is none; EXTREME: a skipped step */
static void muon_update_setup(struct harness *h)
{
    const int64_t n = h->c->N;
    h->w = tensor_in(h, "master", DTYPE_F32, n, 1);
    h->x = tensor_in(h, "update", DTYPE_BF16, n, 1);
    h->y = has(h, LOSS_ONLY) ? NULL : tensor_out(h, "param", wide_dtype(h), n, false);
    h->w->output = true;
    const struct step_state step = {.lr = 1e-2, .skipped = has(h, EXTREME)};
    h->args.muon_update = (struct muon_update_args){.n = n,
                                                    .master = h->w->device,
                                                    .update = h->x->device,
                                                    .step = device_bytes(h, &step, sizeof step),
                                                    .param = h->y ? h->y->device : NULL,
                                                    .param_dtype = wide_dtype(h),
                                                    .weight_decay = 0.25f,
                                                    .lr_factor = 5,
                                                    .adjust = 1.75};
}

static void muon_update_reference(struct harness *h)
{
    for (int64_t i = 0; i < h->c->N && !has(h, EXTREME); i++) {
        double w = h->w->host[i];
        w -= 0.05 * 0.25 * w;
        w -= 0.05 * 1.75 * h->x->host[i];
        h->w->expected[i] = w;
        if (h->y) h->y->expected[i] = w;
    }
}

FORWARD(adam);
FORWARD(momentum);
FORWARD(muon_momentum);
FORWARD(orthogonalize);
FORWARD(muon_update);
