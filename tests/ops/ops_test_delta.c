/* SPDX-License-Identifier: Apache-2.0 */
/* ops_test_delta.c: drivers of the causal convolution (M, N channels, K taps) and of the gated delta rule (H value
 * heads, KV key heads, D the size of keys, P that of values, offset: of dt_bias). RESIDUAL: with a state. The
 * references go token by token. See ops_test.h for the terms. */
#include "tests/ops/ops_test_drivers.h"

/* ---- convolution --------------------------------------------------------- */

static const int32_t *delta_sequences(struct harness *h, int64_t *count)
{
    const int32_t *starts;
    int32_t longest;
    *count = sequences(h, &starts, &longest);
    return starts;
}

/* The conv's scratch is bounded by what the delta rule's channels need. */
static void conv_inputs(struct harness *h)
{
    const struct op_case *c = h->c;
    h->limits.delta_rule = (struct delta_rule_fwd_args){
        .M = c->M + 1, .Hk = 1, .Hv = 1, .Dk = 1, .Dv = c->N, .num_seqs = MAX_SEQS, .max_seq = c->M};
    h->limits.backward = true;
    h->x = input(h, "x", c->M * (c->N + c->pad));
    h->w = weight(h, "weight", c->N * c->K);
}

static void causal_conv_fwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    int64_t count;
    const int32_t *starts = delta_sequences(h, &count);
    conv_inputs(h);
    h->y = tensor_out(h, "y", h->dtype, c->M * c->N, false);
    h->res = has(h, RESIDUAL) ? tensor_out(h, "state", h->dtype, count * c->K * c->N, true) : NULL;
    h->args.causal_conv_fwd = (struct causal_conv_fwd_args){.dtype = h->dtype,
                                                            .M = c->M,
                                                            .C = c->N,
                                                            .K = c->K,
                                                            .ld_x = c->N + c->pad,
                                                            .ld_y = c->N,
                                                            .num_seqs = count,
                                                            .seq_start = device_ints(h, starts, count + 1),
                                                            .y = h->y->device,
                                                            .x = h->x->device,
                                                            .weight = h->w->device,
                                                            .state = h->res ? h->res->device : NULL};
}

/* The input `back` rows before token t of sequence s; NULL: none. */
static const double *conv_row(struct harness *h, const int32_t *starts, int64_t s, int64_t t, int64_t back)
{
    const struct op_case *c = h->c;
    if (t - back >= starts[s]) return h->x->host + (t - back) * (c->N + c->pad);
    return has(h, RESIDUAL) ? h->res->host + (s * c->K + c->K + t - back - starts[s]) * c->N : NULL;
}

/* The sums before silu, (M, N). */
static double *conv_sums(struct harness *h)
{
    const struct op_case *c = h->c;
    double *sums = host_memory(h, (size_t)(c->M * c->N) * sizeof *sums);
    int64_t count;
    const int32_t *starts = delta_sequences(h, &count);
    for (int64_t s = 0; s < count; s++)
        for (int64_t t = starts[s]; t < starts[s + 1]; t++)
            for (int64_t j = 0; j < c->K; j++) {
                const double *row = conv_row(h, starts, s, t, c->K - 1 - j);
                for (int64_t i = 0; row && i < c->N; i++) sums[t * c->N + i] += h->w->host[i * c->K + j] * row[i];
            }
    return sums;
}

static void causal_conv_fwd_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    const double *sums = conv_sums(h);
    int64_t count;
    const int32_t *starts = delta_sequences(h, &count);
    for (int64_t i = 0; i < h->y->n; i++) h->y->expected[i] = sums[i] * ref_sigmoid(sums[i]);
    for (int64_t i = 0; h->res && i < h->res->n; i++) {
        const int64_t s = i / (c->K * c->N), j = i / c->N % c->K;
        h->res->expected[i] = conv_row(h, starts, s, starts[s + 1] - 1, c->K - 1 - j)[i % c->N];
    }
}

static void causal_conv_bwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    int64_t count;
    const int32_t *starts = delta_sequences(h, &count);
    conv_inputs(h);
    h->dy = input(h, "dy", c->M * c->N);
    h->dx = tensor_out(h, "dx", h->dtype, c->M * c->N, false);
    h->dw = output(h, "dweight", DTYPE_F32, c->N * c->K);
    h->db = NULL;
    h->args.causal_conv_bwd = (struct causal_conv_bwd_args){.dtype = h->dtype,
                                                            .M = c->M,
                                                            .C = c->N,
                                                            .K = c->K,
                                                            .ld_x = c->N + c->pad,
                                                            .ld_dy = c->N,
                                                            .ld_dx = c->N,
                                                            .num_seqs = count,
                                                            .seq_start = device_ints(h, starts, count + 1),
                                                            .dx = h->dx->device,
                                                            .dy = h->dy->device,
                                                            .x = h->x->device,
                                                            .weight = h->w->device,
                                                            .dweight = h->dw->device,
                                                            .accumulate = has(h, ACCUMULATE)};
}

static void causal_conv_bwd_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    const double *sums = conv_sums(h);
    int64_t count;
    const int32_t *starts = delta_sequences(h, &count);
    start_sum(h, h->dw);
    for (int64_t i = 0; i < h->dx->n; i++) h->dx->expected[i] = 0;
    for (int64_t s = 0; s < count; s++)
        for (int64_t t = starts[s]; t < starts[s + 1]; t++)
            for (int64_t i = 0; i < c->N; i++) {
                const double y = sums[t * c->N + i], sigmoid = ref_sigmoid(y);
                const double d = h->dy->host[t * c->N + i] * sigmoid * (1 + y * (1 - sigmoid));
                for (int64_t j = 0; j < c->K && t - j >= starts[s]; j++) {
                    h->dx->expected[(t - j) * c->N + i] += d * h->w->host[i * c->K + c->K - 1 - j];
                    h->dw->expected[i * c->K + c->K - 1 - j] += d * h->x->host[(t - j) * (c->N + c->pad) + i];
                }
            }
}

static double conv_loss(struct harness *h)
{
    const double *sums = conv_sums(h);
    double loss = 0;
    for (int64_t i = 0; i < h->dy->n; i++) loss += sums[i] * ref_sigmoid(sums[i]) * h->dy->host[i];
    return loss;
}

static int conv_pairs(struct harness *h, struct gradient_pair *pairs)
{
    pairs[0] = (struct gradient_pair){h->w, h->dw};
    if (h->c->pad) /* x and dx differ in their rows */
        return 1;
    pairs[1] = (struct gradient_pair){h->x, h->dx};
    return 2;
}

/* ---- delta rule: a is x, b is b, a_log is w, dt_bias is aux --------------- */

static int64_t delta_ld(const struct op_case *c)
{
    return c->KV * c->D + c->H * c->P + c->pad;
}

static struct delta_rule_fwd_args delta_inputs(struct harness *h)
{
    const struct op_case *c = h->c;
    const int64_t rows = c->M * delta_ld(c);
    int64_t count;
    const int32_t *starts = delta_sequences(h, &count);
    h->q = input(h, "q", rows);
    h->k = input(h, "k", rows);
    h->v = input(h, "v", rows);
    h->x = input(h, "a", c->M * (c->H + c->pad));
    h->b = input(h, "b", c->M * (c->H + c->pad));
    h->w = weight(h, "a_log", c->H);
    h->aux = weight(h, "dt_bias", c->H);
    for (int64_t i = 0; !h->timing && i < c->H; i++) tensor_set(h->aux, i, h->aux->host[i] + c->offset);
    return (struct delta_rule_fwd_args){.dtype = h->dtype,
                                        .M = c->M,
                                        .Hk = c->KV,
                                        .Hv = c->H,
                                        .Dk = c->D,
                                        .Dv = c->P,
                                        .ld_qkv = delta_ld(c),
                                        .ld_ab = c->H + c->pad,
                                        .ld_o = c->H * c->P,
                                        .num_seqs = count,
                                        .max_seq = h->limits.max_seq,
                                        .seq_start = device_ints(h, starts, count + 1),
                                        .q = h->q->device,
                                        .k = h->k->device,
                                        .v = h->v->device,
                                        .a = h->x->device,
                                        .b = h->b->device,
                                        .a_log = h->w->device,
                                        .dt_bias = h->aux->device};
}

static void delta_rule_fwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    struct delta_rule_fwd_args a = delta_inputs(h);
    h->limits.delta_rule = a;
    h->o = tensor_out(h, "out", h->dtype, c->M * c->H * c->P, false);
    h->res = has(h, RESIDUAL) ? tensor_out(h, "state", DTYPE_F32, a.num_seqs * c->H * c->D * c->P, true) : NULL;
    a.out = h->o->device;
    a.state = h->res ? h->res->device : NULL;
    if (h->res) h->res->tolerance = 4e-5;
    h->o->tolerance = h->dtype == DTYPE_F32 ? 4e-5 : 0;
    h->args.delta_rule_fwd = a;
}

/* A token of a value head: its vectors, with the lengths of q and k, and what its gradients are computed from. */
struct delta_token {
    const double *q, *k, *v;
    double q_length, k_length, beta, gate, a, rate;
    int64_t row, head;
};

static double delta_length(const double *x, int64_t n)
{
    double sum = 1e-6;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

static struct delta_token delta_token_of(struct harness *h, int64_t t, int64_t head)
{
    const struct op_case *c = h->c;
    const int64_t row = t * delta_ld(c), key = row + head / (c->H / c->KV) * c->D, place = t * (c->H + c->pad) + head;
    struct delta_token token = {
        .q = h->q->host + key, .k = h->k->host + key, .v = h->v->host + row + head * c->P, .row = t, .head = head};
    token.q_length = delta_length(token.q, c->D) * sqrt((double)c->D);
    token.k_length = delta_length(token.k, c->D);
    token.beta = ref_sigmoid(h->b->host[place]);
    token.a = h->x->host[place] + h->aux->host[head];
    token.rate = exp(h->w->host[head]);
    token.gate = exp(-token.rate * log1p(exp(token.a)));
    return token;
}

/* s (D, P) becomes the next state; r (P) = v - the decayed stateᵀ · k; out (P) may be NULL. */
static void delta_step(const struct op_case *c, const struct delta_token *t, double *s, double *r, double *out)
{
    for (int64_t j = 0; j < c->P; j++) {
        r[j] = t->v[j];
        for (int64_t i = 0; i < c->D; i++) {
            s[i * c->P + j] *= t->gate;
            r[j] -= s[i * c->P + j] * t->k[i] / t->k_length;
        }
        for (int64_t i = 0; i < c->D; i++) s[i * c->P + j] += t->k[i] / t->k_length * t->beta * r[j];
        if (out) out[j] = 0;
        for (int64_t i = 0; out && i < c->D; i++) out[j] += s[i * c->P + j] * t->q[i] / t->q_length;
    }
}

/* out (M, H, P); states, if not NULL, (num_seqs, H, D, P) are read and overwritten. */
static void delta_values(struct harness *h, double *out, double *states)
{
    const struct op_case *c = h->c;
    const int64_t size = c->D * c->P;
    int64_t count;
    const int32_t *starts = delta_sequences(h, &count);
    double *r = host_memory(h, (size_t)(c->P + size) * sizeof *r), *zero = r + c->P;
    for (int64_t i = 0; i < count * c->H; i++) {
        double *s = states ? states + i * size : zero;
        for (int64_t j = 0; !states && j < size; j++) s[j] = 0;
        for (int64_t t = starts[i / c->H]; t < starts[i / c->H + 1]; t++) {
            const struct delta_token token = delta_token_of(h, t, i % c->H);
            delta_step(c, &token, s, r, out + (t * c->H + token.head) * c->P);
        }
    }
}

static void delta_rule_fwd_reference(struct harness *h)
{
    for (int64_t i = 0; h->res && i < h->res->n; i++) h->res->expected[i] = h->res->host[i];
    delta_values(h, h->o->expected, h->res ? h->res->expected : NULL);
}

static void delta_rule_bwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    const struct delta_rule_fwd_args a = delta_inputs(h);
    h->limits.delta_rule = a;
    h->limits.backward = true;
    h->dout = input(h, "dout", c->M * c->H * c->P);
    h->dq = tensor_out(h, "dq", h->dtype, h->q->n, false);
    h->dk = tensor_out(h, "dk", h->dtype, h->k->n, false);
    h->dv = tensor_out(h, "dv", h->dtype, h->v->n, false);
    h->dx = tensor_out(h, "da", h->dtype, h->x->n, false);
    h->db = tensor_out(h, "db", h->dtype, h->b->n, false);
    h->dw = output(h, "da_log", DTYPE_F32, c->H);
    h->sums = output(h, "ddt_bias", DTYPE_F32, c->H);
    for (struct tensor *t = h->dq; t <= h->sums; t++) {
        t->tolerance = t->dtype == DTYPE_F32 ? 1e-4 : 0;
        t->absolute = c->offset > 0 ? 1e-4 : 2e-6; /* what is left of gradients of decays that forget all */
    }
    h->args.delta_rule_bwd = (struct delta_rule_bwd_args){.fwd = a,
                                                          .dout = h->dout->device,
                                                          .dq = h->dq->device,
                                                          .dk = h->dk->device,
                                                          .dv = h->dv->device,
                                                          .da = h->dx->device,
                                                          .db = h->db->device,
                                                          .da_log = h->dw->device,
                                                          .ddt_bias = h->sums->device,
                                                          .accumulate = has(h, ACCUMULATE)};
}

/* dx += the gradient of x from that of x / length, times `length` over its own. */
static void delta_length_bwd(const double *x, const double *d, double length, double own, int64_t n, double *dx)
{
    double along = 0;
    for (int64_t i = 0; i < n; i++) along += x[i] * d[i];
    for (int64_t i = 0; i < n; i++) dx[i] += (d[i] - x[i] * along / (own * own)) / length;
}

/* The gradients of one token; `before` is the state before it, after the state, ds its gradient, which becomes that of
 * the state before. room: 2 D + 2 P. */
static void delta_step_bwd(struct harness *h, const struct delta_token *t, const double *before, const double *after,
                           double *ds, double *room)
{
    const struct op_case *c = h->c;
    const double *dout = h->dout->host + (t->row * c->H + t->head) * c->P;
    double *dq = room, *dk = dq + c->D, *r = dk + c->D, *dr = r + c->P, dbeta = 0, dgate = 0;
    const int64_t row = t->row * delta_ld(c), key = row + t->head / (c->H / c->KV) * c->D;
    const int64_t place = t->row * (c->H + c->pad) + t->head;
    memset(room, 0, (size_t)(2 * (c->D + c->P)) * sizeof *room);
    for (int64_t j = 0; j < c->P; j++) {
        r[j] = t->v[j];
        for (int64_t i = 0; i < c->D; i++) {
            r[j] -= t->gate * before[i * c->P + j] * t->k[i] / t->k_length;
            dq[i] += after[i * c->P + j] * dout[j];
            ds[i * c->P + j] += t->q[i] / t->q_length * dout[j];
            dr[j] += t->beta * ds[i * c->P + j] * t->k[i] / t->k_length;
        }
        dbeta += dr[j] / t->beta * r[j];
        h->dv->expected[row + t->head * c->P + j] = dr[j];
        for (int64_t i = 0; i < c->D; i++) {
            double *d = &ds[i * c->P + j];
            dk[i] += *d * t->beta * r[j] - t->gate * before[i * c->P + j] * dr[j];
            *d -= t->k[i] / t->k_length * dr[j];
            dgate += *d * before[i * c->P + j];
            *d *= t->gate;
        }
    }
    delta_length_bwd(t->q, dq, t->q_length, t->q_length / sqrt((double)c->D), c->D, h->dq->expected + key);
    delta_length_bwd(t->k, dk, t->k_length, t->k_length, c->D, h->dk->expected + key);
    const double dg = dgate * t->gate, da = -dg * t->rate * ref_sigmoid(t->a);
    h->dx->expected[place] = da;
    h->db->expected[place] = dbeta * t->beta * (1 - t->beta);
    h->dw->expected[t->head] -= dg * t->rate * log1p(exp(t->a));
    h->sums->expected[t->head] += da;
}

static void delta_rule_bwd_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    const int64_t size = c->D * c->P;
    int64_t count;
    const int32_t *starts = delta_sequences(h, &count);
    double *states = host_memory(h, (size_t)((c->M + 2) * size + 2 * (c->D + c->P)) * sizeof *states);
    double *ds = states + (c->M + 1) * size, *room = ds + size;
    start_sum(h, h->dw);
    start_sum(h, h->sums);
    for (int64_t i = 0; i < c->M * c->KV * c->D; i++) {
        const int64_t place = i / (c->KV * c->D) * delta_ld(c) + i % (c->KV * c->D);
        h->dq->expected[place] = h->dk->expected[place] = 0;
    }
    for (int64_t i = 0; i < count * c->H; i++) {
        const int64_t start = starts[i / c->H], length = starts[i / c->H + 1] - start;
        memset(states, 0, (size_t)size * sizeof *states);
        memset(ds, 0, (size_t)size * sizeof *ds);
        for (int64_t t = 0; t < length; t++) {
            const struct delta_token token = delta_token_of(h, start + t, i % c->H);
            memcpy(states + (t + 1) * size, states + t * size, (size_t)size * sizeof *states);
            delta_step(c, &token, states + (t + 1) * size, room, NULL);
        }
        for (int64_t t = length - 1; t >= 0; t--) {
            const struct delta_token token = delta_token_of(h, start + t, i % c->H);
            delta_step_bwd(h, &token, states + t * size, states + (t + 1) * size, ds, room);
        }
    }
}

static double delta_loss(struct harness *h)
{
    double *out = host_memory(h, (size_t)h->dout->n * sizeof *out);
    delta_values(h, out, NULL);
    return sum_of_products(out, h->dout->host, h->dout->n);
}

static int delta_pairs(struct harness *h, struct gradient_pair *pairs)
{
    const struct gradient_pair all[] = {{h->q, h->dq}, {h->k, h->dk}, {h->v, h->dv},    {h->x, h->dx},
                                        {h->b, h->db}, {h->w, h->dw}, {h->aux, h->sums}};
    memcpy(pairs, all, sizeof all);
    return (int)COUNT_OF(all);
}

FORWARD(causal_conv_fwd);
BACKWARD(causal_conv_bwd, conv_loss, conv_pairs);
FORWARD(delta_rule_fwd);
BACKWARD(delta_rule_bwd, delta_loss, delta_pairs);
