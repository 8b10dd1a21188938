/* SPDX-License-Identifier: Apache-2.0 */
/* ops_test_attention.c: drivers of attention and dropout. See ops_test.h for the terms. */
#include "core/training/philox.h"
#include "tests/ops/ops_test_drivers.h"

/* ---- attention ----------------------------------------------------------- */

/* ---- dropout: L2 where an op has it -------------------------------------- */

enum { DROPPED_SEED = 99, DROPPED_LAYER = 3, DROPPED_THRESHOLD = 16384 /* a quarter */ };

/* The number of a token, by its row. */
static uint64_t token_number(int64_t row)
{
    return (uint64_t)row * 7 + ((uint64_t)1 << 33);
}

/* The factor of an element by the random bits of philox.h, with the counter as core/training/dropout.h defines it. */
static double dropped_factor(enum dropout_kind kind, int64_t row, uint32_t a, uint32_t b, int element)
{
    const uint64_t key = DROPPED_SEED ^ 0x64726f706f757421u, number = token_number(row);
    const uint32_t keys[2] = {(uint32_t)key, (uint32_t)(key >> 32) ^ (DROPPED_LAYER << 8 | (uint32_t)kind)};
    const uint32_t counter[4] = {(uint32_t)number, (uint32_t)(number >> 32), a, b};
    uint32_t words[4];
    philox4x32(keys, counter, words);
    return (words[element / 2] >> 16 * (element % 2) & 0xffff) < DROPPED_THRESHOLD ? 0 : 4.0 / 3;
}

static double attention_kept(int64_t start, int64_t q, int64_t k, int64_t h)
{
    const uint32_t a = (uint32_t)(k / 4) | (uint32_t)(h % 1024) << 22, b = (uint32_t)(q / 2) | (uint32_t)(h / 1024)
                                                                                                   << 23;
    return dropped_factor(DROPOUT_ATTENTION, start, a, b, (int)(q % 2 * 4 + k % 4));
}

static struct dropout dropout_of_case(struct harness *h, enum dropout_kind kind)
{
    struct dropout dropout = dropout_of(has(h, L2) ? 0.25 : 0, DROPPED_SEED, kind, DROPPED_LAYER);
    uint64_t *numbers = host_memory(h, (size_t)(h->c->M + 1) * sizeof *numbers);
    for (int64_t i = 0; i < h->c->M; i++) numbers[i] = token_number(i);
    dropout.tokens = device_bytes(h, numbers, (size_t)(h->c->M + 1) * sizeof *numbers);
    return dropout;
}

static void dropout_setup(struct harness *h)
{
    h->x = input(h, "x", h->c->M * h->c->N);
    h->y = output_over(h, h->x, "y", h->c->M * h->c->N);
    h->args.dropout = (struct dropout_args){h->dtype,     h->c->M,      h->c->N,
                                            h->y->device, h->x->device, dropout_of_case(h, DROPOUT_MLP_OUTPUT)};
}

static void dropout_reference(struct harness *h)
{
    for (int64_t i = 0; i < h->c->M * h->c->N; i++) {
        const int64_t row = i / h->c->N, column = i % h->c->N;
        h->y->expected[i] =
            h->x->host[i] * dropped_factor(DROPOUT_MLP_OUTPUT, row, (uint32_t)(column / 8), 0, (int)(column % 8));
    }
}

static struct ref_attention attention_of(struct harness *h)
{
    const struct op_case *c = h->c;
    const int32_t *seq_start;
    int32_t longest;
    int count = sequences(h, &seq_start, &longest);
    return (struct ref_attention){c->M,
                                  c->H,
                                  c->KV,
                                  c->D,
                                  c->H * c->D + c->pad,
                                  c->KV * c->D + c->pad,
                                  c->KV * c->D + 2 * c->pad,
                                  c->H * c->D + c->gap,
                                  c->window,
                                  1 / sqrt((double)c->D),
                                  c->cap,
                                  count,
                                  seq_start,
                                  h->q->host,
                                  h->k->host,
                                  h->v->host,
                                  has(h, L2) ? attention_kept : NULL,
                                  has(h, BIDIRECTIONAL),
                                  h->w ? h->w->host : NULL};
}

static void attention_inputs(struct harness *h)
{
    const struct op_case *c = h->c;
    h->q = tensor_in(h, "q", h->dtype, c->M * (c->H * c->D + c->pad), has(h, EXTREME) ? 6 : 1.5);
    h->k = tensor_in(h, "k", h->dtype, c->M * (c->KV * c->D + c->pad), has(h, EXTREME) ? 6 : 1.5);
    h->v = tensor_in(h, "v", h->dtype, c->M * (c->KV * c->D + 2 * c->pad), 1);
    h->w = has(h, SINKS) ? tensor_in(h, "sinks", h->dtype, c->H, has(h, EXTREME) ? 90 : 2) : NULL;
}

/* out and lse become those of attention. */
static void attention_results(struct harness *h, const struct ref_attention *r)
{
    if (h->timing) return;
    double *out = host_memory(h, (size_t)(h->o->n + h->lse->n) * sizeof *out), *lse = out + h->o->n;
    ref_attention(r, out, lse);
    for (int64_t i = 0; i < h->o->n; i++) tensor_set(h->o, i, out[i]);
    for (int64_t i = 0; i < h->lse->n; i++) tensor_set(h->lse, i, lse[i]);
}

/* Announces them, too. */
static struct attention_bwd_args attention_args(struct harness *h, const struct ref_attention *r)
{
    const struct op_case *c = h->c;
    h->limits.attention[0] =
        (struct attention_bwd_args){.fwd = {.dtype = h->dtype,
                                            .M = c->M,
                                            .H = c->H,
                                            .KV = c->KV,
                                            .D = c->D,
                                            .ld_q = r->ld_q,
                                            .ld_k = r->ld_k,
                                            .ld_v = r->ld_v,
                                            .ld_o = r->ld_o,
                                            .scale = (float)r->scale,
                                            .softcap = (float)c->cap,
                                            .window = c->window,
                                            .num_seqs = r->num_seqs,
                                            .max_seq = h->limits.max_seq,
                                            .seq_start = device_ints(h, r->seq_start, r->num_seqs + 1),
                                            .q = h->q->device,
                                            .k = h->k->device,
                                            .v = h->v->device,
                                            .out = h->o->device,
                                            .lse = h->lse->device,
                                            .dropout = dropout_of_case(h, DROPOUT_ATTENTION),
                                            .bidirectional = has(h, BIDIRECTIONAL),
                                            .ragged = c->M != r->num_seqs * (int64_t)h->limits.max_seq},
                                    .ld_dq = r->ld_q,
                                    .ld_dk = r->ld_k,
                                    .ld_dv = r->ld_v};
    h->limits.num_attention = 1;
    return h->limits.attention[0];
}

static void attention_fwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    attention_inputs(h);
    h->o = tensor_out(h, "out", h->dtype, c->M * c->H * c->D, false);
    h->lse = tensor_out(h, "lse", DTYPE_F32, c->M * c->H, false);
    struct ref_attention r = attention_of(h);
    h->args.attention_fwd = attention_args(h, &r).fwd;
}

static void attention_fwd_reference(struct harness *h)
{
    struct ref_attention r = attention_of(h);
    ref_attention(&r, h->o->expected, h->lse->expected);
}

/* P: the tokens that the cache holds already; K: its capacity. LOSS_ONLY: the new tokens are stored, no more. */
static void attention_decode_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    const int64_t cache = c->KV * c->K * c->D;
    attention_inputs(h);
    h->dk = tensor_out(h, "k_cache", h->dtype, cache, true);
    h->dv = tensor_out(h, "v_cache", h->dtype, cache, true);
    h->dk->exact = h->dv->exact = true;
    h->o = has(h, LOSS_ONLY) ? NULL : tensor_out(h, "out", h->dtype, c->M * c->H * c->D, false);
    h->limits.max_seq = (int32_t)c->K;
    h->args.attention_decode = (struct attention_decode_args){.dtype = h->dtype,
                                                              .M = c->M,
                                                              .H = c->H,
                                                              .KV = c->KV,
                                                              .D = c->D,
                                                              .ld_q = c->H * c->D + c->pad,
                                                              .ld_k = c->KV * c->D + c->pad,
                                                              .ld_v = c->KV * c->D + 2 * c->pad,
                                                              .ld_o = c->H * c->D,
                                                              .scale = (float)(1 / sqrt((double)c->D)),
                                                              .softcap = (float)c->cap,
                                                              .window = c->window,
                                                              .start = c->P,
                                                              .capacity = c->K,
                                                              .q = h->o ? h->q->device : NULL,
                                                              .k = h->k->device,
                                                              .v = h->v->device,
                                                              .k_cache = h->dk->device,
                                                              .v_cache = h->dv->device,
                                                              .out = h->o ? h->o->device : NULL,
                                                              .sinks = h->w ? h->w->device : NULL};
}

/* The cache with the new tokens, and a row for each token as ordinary attention has it. */
static void decode_fill(const struct op_case *c, const struct tensor *cache, const struct tensor *rows, int64_t ld,
                        double *all)
{
    for (int64_t i = 0; i < cache->n; i++) cache->expected[i] = cache->host[i];
    for (int64_t kv = 0; kv < c->KV; kv++) {
        double *head = cache->expected + kv * c->K * c->D;
        for (int64_t i = 0; i < c->M * c->D; i++)
            head[c->P * c->D + i] = rows->host[i / c->D * ld + kv * c->D + i % c->D];
        for (int64_t i = 0; i < (c->P + c->M) * c->D; i++) all[(i / c->D * c->KV + kv) * c->D + i % c->D] = head[i];
    }
}

/* Ordinary attention of the whole sequence, of which the last rows count. */
static void attention_decode_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    const struct attention_decode_args *a = &h->args.attention_decode;
    const int64_t T = c->P + c->M, heads = c->H * c->D, kv = c->KV * c->D;
    const int32_t seq_start[] = {0, (int32_t)T};
    double *q = host_memory(h, (size_t)(T * (2 * heads + 2 * kv) + 1) * sizeof *q), *out = q + T * heads;
    double *k = out + T * heads, *v = k + T * kv;
    decode_fill(c, h->dk, h->k, a->ld_k, k);
    decode_fill(c, h->dv, h->v, a->ld_v, v);
    for (int64_t i = 0; i < c->M * heads; i++) q[c->P * heads + i] = h->q->host[i / heads * a->ld_q + i % heads];
    const struct ref_attention r = {.M = T,
                                    .H = c->H,
                                    .KV = c->KV,
                                    .D = c->D,
                                    .ld_q = heads,
                                    .ld_k = kv,
                                    .ld_v = kv,
                                    .ld_o = heads,
                                    .window = c->window,
                                    .scale = 1 / sqrt((double)c->D),
                                    .cap = c->cap,
                                    .num_seqs = 1,
                                    .seq_start = seq_start,
                                    .q = q,
                                    .k = k,
                                    .v = v,
                                    .sinks = h->w ? h->w->host : NULL};
    ref_attention(&r, out, NULL);
    for (int64_t i = 0; h->o && i < c->M * heads; i++) h->o->expected[i] = out[c->P * heads + i];
}

static void attention_bwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    attention_inputs(h);
    h->o = tensor_in(h, "out", h->dtype, c->M * c->H * c->D, 1);
    h->dout = tensor_in(h, "dout", h->dtype, c->M * c->H * c->D, 1);
    h->lse = tensor_in(h, "lse", DTYPE_F32, c->M * c->H, 1);
    h->dq = tensor_out(h, "dq", h->dtype, h->q->n, false);
    h->dk = tensor_out(h, "dk", h->dtype, h->k->n, false);
    h->dv = tensor_out(h, "dv", h->dtype, h->v->n, false);
    for (struct tensor *t = h->dq; t <= h->dv; t++) {
        t->absolute = 1e-6;
        if (h->dtype != DTYPE_F32) /* P and dS are rounded before they are multiplied, as in every fused attention */
            t->tolerance = h->dtype == DTYPE_BF16 ? 3.6e-2 : 4.5e-3;
        if (has(h, EXTREME)) /* scores in the hundreds; probabilities amplify the rounding of `out` */
            t->tolerance = h->dtype == DTYPE_BF16 ? 4e-2 : h->dtype == DTYPE_F16 ? 5e-3 : 1e-4;
    }
    struct ref_attention r = attention_of(h);
    attention_results(h, &r);
    struct attention_bwd_args args = attention_args(h, &r);
    args.dout = h->dout->device;
    args.dq = h->dq->device;
    args.dk = h->dk->device;
    args.dv = h->dv->device;
    h->args.attention_bwd = args;
    h->limits.backward = true;
}

static void attention_bwd_reference(struct harness *h)
{
    struct ref_attention r = attention_of(h);
    ref_attention_bwd(&r, h->dout->host, h->dq->expected, h->dk->expected, h->dv->expected);
}

static double attention_loss(struct harness *h)
{
    struct ref_attention r = attention_of(h);
    double *out = host_memory(h, (size_t)h->o->n * sizeof *out);
    ref_attention(&r, out, NULL);
    return sum_of_products(out, h->dout->host, h->o->n);
}

static int attention_pairs(struct harness *h, struct gradient_pair *pairs)
{
    pairs[0] = (struct gradient_pair){h->q, h->dq};
    pairs[1] = (struct gradient_pair){h->k, h->dk};
    pairs[2] = (struct gradient_pair){h->v, h->dv};
    return 3;
}

/* ---- sinks --------------------------------------------------------------- */

/* Rows of out are `gap` apart. */
static void attention_sink_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    attention_inputs(h);
    h->o = tensor_in(h, "out", h->dtype, c->M * (c->H * c->D + c->gap), 1);
    h->lse = tensor_in(h, "lse", DTYPE_F32, c->M * c->H, 1);
}

/* Of attention without sinks, which becomes that with them. */
static void attention_sink_fwd_setup(struct harness *h)
{
    attention_sink_setup(h);
    h->o->output = h->lse->output = true;
    struct ref_attention r = attention_of(h);
    r.sinks = NULL;
    attention_results(h, &r);
    h->args.attention_sink_fwd = (struct attention_sink_fwd_args){h->dtype, h->c->M,      h->c->H,        h->c->D,
                                                                  r.ld_o,   h->o->device, h->lse->device, h->w->device};
}

static void attention_sink_fwd_reference(struct harness *h)
{
    attention_fwd_reference(h);
}

static void attention_sink_bwd_setup(struct harness *h)
{
    attention_sink_setup(h);
    h->dout = tensor_in(h, "dout", h->dtype, h->o->n, 1);
    h->dw = output(h, "dsinks", DTYPE_F32, h->c->H);
    h->db = NULL;
    struct ref_attention r = attention_of(h);
    attention_results(h, &r);
    h->args.attention_sink_bwd = (struct attention_sink_bwd_args){
        h->dtype,       h->c->M,      h->c->H,       h->c->D,           r.ld_o, h->o->device, h->dout->device,
        h->lse->device, h->w->device, h->dw->device, has(h, ACCUMULATE)};
}

static void attention_sink_bwd_reference(struct harness *h)
{
    const struct attention_sink_bwd_args *a = &h->args.attention_sink_bwd;
    start_sum(h, h->dw);
    for (int64_t i = 0; i < a->H * a->M; i++) {
        const int64_t head = i / a->M, row = i % a->M * a->ld_o + head * a->D;
        h->dw->expected[head] -=
            exp(h->w->host[head] - h->lse->host[i]) * sum_of_products(h->o->host + row, h->dout->host + row, a->D);
    }
}

FORWARD(attention_fwd);
BACKWARD(attention_bwd, attention_loss, attention_pairs);
FORWARD(attention_decode);
FORWARD(attention_sink_fwd);
BACKWARD(attention_sink_bwd, attention_loss, weight_pairs);
FORWARD(dropout);
