/* SPDX-License-Identifier: Apache-2.0 */
/* ops_test_norm.c: drivers of the embedding and of norms. See ops_test.h for the terms. */
#include "tests/ops/ops_test_drivers.h"

/* ---- embedding: K is the vocabulary -------------------------------------- */

enum { TYPE_COUNT = 3 };

static void embedding_inputs(struct harness *h)
{
    const struct op_case *c = h->c;
    h->limits.C = c->N;
    h->limits.V = c->K;
    h->index_a = random_ints(h, c->M, c->K);
    h->index_b = random_ints(h, c->M, c->P);
    h->w = weight(h, "wte", c->K * c->N);
    h->b = has(h, WPE) ? weight(h, "wpe", c->P * c->N) : NULL;
    h->types = has(h, TYPES) ? weight(h, "wse", TYPE_COUNT * c->N) : NULL;
    h->index_c = has(h, TYPES) ? random_ints(h, c->M, TYPE_COUNT) : NULL;
}

static void embedding_fwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    embedding_inputs(h);
    h->y = tensor_out(h, "out", h->dtype, c->M * c->N, false);
    h->args.embedding_fwd = (struct embedding_fwd_args){h->dtype,
                                                        c->M,
                                                        c->N,
                                                        h->y->device,
                                                        device_ints(h, h->index_a, c->M),
                                                        device_ints(h, h->index_b, c->M),
                                                        h->w->device,
                                                        h->b ? h->b->device : NULL,
                                                        (float)factor_of(c),
                                                        h->types ? device_ints(h, h->index_c, c->M) : NULL,
                                                        h->types ? h->types->device : NULL};
}

static void embedding_values(struct harness *h, double *out)
{
    int64_t C = h->c->N;
    for (int64_t i = 0; i < h->c->M; i++)
        for (int64_t j = 0; j < C; j++)
            out[i * C + j] =
                factor_of(h->c) * (h->w->host[h->index_a[i] * C + j] + (h->b ? h->b->host[h->index_b[i] * C + j] : 0) +
                                   (h->types ? h->types->host[h->index_c[i] * C + j] : 0));
}

static void embedding_fwd_reference(struct harness *h)
{
    embedding_values(h, h->y->expected);
}

static void embedding_bwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    embedding_inputs(h);
    h->dout = input(h, "dout", c->M * c->N);
    h->dw = output(h, "dwte", DTYPE_F32, c->K * c->N);
    h->db = has(h, WPE) ? output(h, "dwpe", DTYPE_F32, c->P * c->N) : NULL;
    h->dtypes = has(h, TYPES) ? output(h, "dwse", DTYPE_F32, TYPE_COUNT * c->N) : NULL;
    h->args.embedding_bwd = (struct embedding_bwd_args){h->dtype,
                                                        c->M,
                                                        c->N,
                                                        c->K,
                                                        c->P,
                                                        h->dw->device,
                                                        h->db ? h->db->device : NULL,
                                                        has(h, ACCUMULATE),
                                                        has(h, ACCUMULATE),
                                                        h->dout->device,
                                                        device_ints(h, h->index_a, c->M),
                                                        device_ints(h, h->index_b, c->M),
                                                        (float)factor_of(c),
                                                        TYPE_COUNT,
                                                        h->dtypes ? device_ints(h, h->index_c, c->M) : NULL,
                                                        h->dtypes ? h->dtypes->device : NULL,
                                                        has(h, ACCUMULATE),
                                                        has(h, PADDING) ? c->K / 2 : -1};
}

static void embedding_bwd_reference(struct harness *h)
{
    int64_t C = h->c->N;
    start_sum(h, h->dw);
    if (h->db) start_sum(h, h->db);
    if (h->dtypes) start_sum(h, h->dtypes);
    for (int64_t i = 0; i < h->c->M; i++) {
        for (int64_t j = 0; j < C; j++) {
            if (h->dtypes) h->dtypes->expected[h->index_c[i] * C + j] += factor_of(h->c) * h->dout->host[i * C + j];
            if (h->index_a[i] != h->args.embedding_bwd.padding)
                h->dw->expected[h->index_a[i] * C + j] += factor_of(h->c) * h->dout->host[i * C + j];
            if (h->db) h->db->expected[h->index_b[i] * C + j] += factor_of(h->c) * h->dout->host[i * C + j];
        }
    }
}

static double embedding_loss(struct harness *h)
{
    double *out = host_memory(h, (size_t)h->dout->n * sizeof *out);
    embedding_values(h, out);
    for (int64_t i = 0; has(h, PADDING) && i < h->c->M; i++) /* its rows of the table are constants */
        for (int64_t j = 0, C = h->c->N; h->index_a[i] == h->c->K / 2 && j < C; j++)
            out[i * C + j] -= factor_of(h->c) * h->w->host[h->c->K / 2 * C + j];
    return sum_of_products(out, h->dout->host, h->dout->n);
}

static int embedding_pairs(struct harness *h, struct gradient_pair *pairs)
{
    int count = 0;
    pairs[count++] = (struct gradient_pair){h->w, h->dw};
    if (h->db) pairs[count++] = (struct gradient_pair){h->b, h->db};
    if (h->dtypes) pairs[count++] = (struct gradient_pair){h->types, h->dtypes};
    return count;
}

/* ---- norm ---------------------------------------------------------------- */

static enum norm_kind norm_kind_of(struct harness *h)
{
    return has(h, RMS) ? NORM_RMS : NORM_LAYER;
}

/* The factors of the normed values: the weights, with their offset. */
static const double *norm_factors(struct harness *h)
{
    double *factors = host_memory(h, (size_t)h->w->n * sizeof *factors);
    for (int64_t i = 0; i < h->w->n; i++) factors[i] = h->w->host[i] + h->c->offset;
    return factors;
}

static void norm_fwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    h->limits.C = c->N;
    int64_t n = c->M * c->N;
    h->x = input(h, "x", n);
    h->res = has(h, RESIDUAL) ? input(h, "delta", n) : NULL;
    h->o = h->res ? output_over(h, h->x, "x_out", n) : NULL;
    h->w = weight(h, "weight", c->N);
    h->b = has(h, RMS) ? NULL : weight(h, "bias", c->N);
    h->y = tensor_out(h, "y", h->dtype, n, false);
    h->mean = has(h, RMS) ? NULL : tensor_out(h, "mean", DTYPE_F32, c->M, false);
    h->rstd = tensor_out(h, "rstd", DTYPE_F32, c->M, false);
    h->args.norm_fwd = (struct norm_fwd_args){.dtype = h->dtype,
                                              .kind = norm_kind_of(h),
                                              .M = c->M,
                                              .C = c->N,
                                              .eps = 1e-3f,
                                              .y = h->y->device,
                                              .x_out = h->o ? h->o->device : NULL,
                                              .x = h->x->device,
                                              .delta = h->res ? h->res->device : NULL,
                                              .delta_scale = (float)factor_of(c),
                                              .weight = h->w->device,
                                              .weight_offset = (float)h->c->offset,
                                              .bias = h->b ? h->b->device : NULL,
                                              .mean = h->mean ? h->mean->device : NULL,
                                              .rstd = h->rstd->device};
}

static void norm_fwd_reference(struct harness *h)
{
    const double *x = h->x->host;
    if (h->res) {
        for (int64_t i = 0; i < h->x->n; i++)
            h->o->expected[i] = tensor_round(h->o, h->x->host[i] + factor_of(h->c) * h->res->host[i]);
        x = h->o->expected;
    }
    ref_norm(has(h, RMS), h->c->M, h->c->N, 1e-3f, x, norm_factors(h), h->b ? h->b->host : NULL, h->y->expected,
             h->mean ? h->mean->expected : NULL, h->rstd->expected);
}

static void norm_bwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    h->limits.C = c->N;
    int64_t n = c->M * c->N;
    h->x = input(h, "x", n);
    h->w = weight(h, "weight", c->N);
    h->b = weight(h, "bias", c->N);
    h->dy = input(h, "dy", n);
    h->res = has(h, RESIDUAL) ? input(h, "dres", n) : NULL;
    h->dx = h->res ? output_over(h, h->res, "dx", n) : tensor_out(h, "dx", h->dtype, n, false);
    h->dw = output(h, "dweight", DTYPE_F32, c->N);
    h->db = has(h, RMS) ? NULL : output(h, "dbias", DTYPE_F32, c->N);
    sums_setup(h, c->N);
    h->mean = has(h, RMS) ? NULL : tensor_in(h, "mean", DTYPE_F32, c->M, 0.1);
    h->rstd = tensor_in(h, "rstd", DTYPE_F32, c->M, 1);
    if (!h->timing) {
        double *y = host_memory(h, (size_t)(n + 2 * c->M) * sizeof *y), *mean = y + n, *rstd = mean + c->M;
        ref_norm(has(h, RMS), c->M, c->N, 1e-3f, h->x->host, norm_factors(h), NULL, y, mean, rstd);
        for (int64_t i = 0; i < c->M; i++) {
            if (h->mean) tensor_set(h->mean, i, mean[i]);
            tensor_set(h->rstd, i, rstd[i]);
        }
    }
    h->args.norm_bwd = (struct norm_bwd_args){.dtype = h->dtype,
                                              .kind = norm_kind_of(h),
                                              .M = c->M,
                                              .C = c->N,
                                              .dx = h->dx->device,
                                              .dres = h->res ? h->res->device : NULL,
                                              .dy = h->dy->device,
                                              .x = h->x->device,
                                              .weight = h->w->device,
                                              .weight_offset = (float)h->c->offset,
                                              .mean = h->mean ? h->mean->device : NULL,
                                              .rstd = h->rstd->device,
                                              .dweight = h->dw->device,
                                              .dbias = h->db ? h->db->device : NULL,
                                              .dx_sums = h->sums ? h->sums->device : NULL,
                                              .accumulate = has(h, ACCUMULATE),
                                              .accumulate_sums = has(h, ACCUMULATE)};
}

static void norm_bwd_reference(struct harness *h)
{
    start_sum(h, h->dw);
    if (h->db) start_sum(h, h->db);
    ref_norm_bwd(has(h, RMS), h->c->M, h->c->N, h->x->host, norm_factors(h), h->dy->host,
                 h->mean ? h->mean->host : NULL, h->rstd->host, h->dx->expected, h->dw->expected,
                 h->db ? h->db->expected : NULL);
    for (int64_t i = 0; h->res && i < h->dx->n; i++) h->dx->expected[i] += h->res->host[i];
    sums_reference(h, h->c->M, h->dx->expected);
}

static double norm_loss(struct harness *h)
{
    const double *x = shifted(h, h->c->M, h->c->N);
    double *y = host_memory(h, (size_t)h->x->n * sizeof *y);
    ref_norm(has(h, RMS), h->c->M, h->c->N, 1e-3f, x, norm_factors(h), h->db ? h->b->host : NULL, y, NULL, NULL);
    double loss = sum_of_products(y, h->dy->host, h->x->n);
    return loss + (h->res ? sum_of_products(x, h->res->host, h->x->n) : 0);
}

/* ---- RMSNorm of heads ---------------------------------------------------- */

static void dense_rows(const struct op_case *c, const double *from, double *dense)
{
    int64_t n = c->H * c->D;
    for (int64_t i = 0; i < c->M; i++) memcpy(dense + i * n, from + i * (n + c->pad), (size_t)n * sizeof *dense);
}

static void spread_rows(const struct op_case *c, const double *dense, double *to)
{
    int64_t n = c->H * c->D;
    for (int64_t i = 0; i < c->M; i++) memcpy(to + i * (n + c->pad), dense + i * n, (size_t)n * sizeof *dense);
}

/* y (M · H · D) times silu(gate), if the case has a gate. */
static void gate_rows(struct harness *h, double *y)
{
    const int64_t n = h->c->H * h->c->D;
    for (int64_t i = 0; has(h, GATED) && i < h->c->M * n; i++) {
        const double gate = h->aux->host[i / n * (n + h->c->pad) + i % n];
        y[i] *= gate * ref_sigmoid(gate);
    }
}

/* P: rows of RoPE's tables; N: elements of a head that it turns, if not all. */
static int64_t head_rotary(const struct op_case *c)
{
    return c->N ? c->N : c->D;
}

static void head_norm_fwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    int64_t ld = c->H * c->D + c->pad;
    h->x = input(h, "x", c->M * ld);
    h->w = weight(h, "weight", c->D);
    h->y = tensor_out(h, "y", h->dtype, c->M * ld, false);
    h->rstd = tensor_out(h, "rstd", DTYPE_F32, c->M * c->H, false);
    h->aux = has(h, GATED) ? input(h, "gate", c->M * ld) : NULL;
    h->index_b = c->P ? random_ints(h, c->M, c->P) : NULL;
    h->q = c->P ? tensor_in(h, "cos_table", DTYPE_F32, c->P * head_rotary(c) / 2, 1) : NULL;
    h->k = c->P ? tensor_in(h, "sin_table", DTYPE_F32, c->P * head_rotary(c) / 2, 1) : NULL;
    h->args.head_norm_fwd = (struct head_norm_fwd_args){.dtype = h->dtype,
                                                        .M = c->M,
                                                        .heads = c->H,
                                                        .D = c->D,
                                                        .ld_x = ld,
                                                        .ld_y = ld,
                                                        .eps = 1e-3f,
                                                        .y = h->y->device,
                                                        .x = h->x->device,
                                                        .weight = h->w->device,
                                                        .weight_offset = (float)h->c->offset,
                                                        .rstd = h->rstd->device,
                                                        .gate = h->aux ? h->aux->device : NULL,
                                                        .ld_gate = ld,
                                                        .R = head_rotary(c),
                                                        .positions = c->P ? device_ints(h, h->index_b, c->M) : NULL,
                                                        .cos_table = c->P ? h->q->device : NULL,
                                                        .sin_table = c->P ? h->k->device : NULL,
                                                        .pairs = has(h, PAIRS)};
}

static void head_norm_fwd_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    int64_t n = c->M * c->H * c->D;
    double *x = host_memory(h, (size_t)(2 * n) * sizeof *x), *y = x + n;
    dense_rows(c, h->x->host, x);
    ref_norm(true, c->M * c->H, c->D, 1e-3f, x, norm_factors(h), NULL, y, NULL, h->rstd->expected);
    gate_rows(h, y);
    for (int64_t i = 0; c->P && i < n; i++) y[i] = tensor_round(h->y, y[i]);
    if (c->P)
        ref_rope(c->M, c->H, c->D, head_rotary(c), c->H * c->D, y, h->index_b, h->q->host, h->k->host, false,
                 has(h, PAIRS));
    spread_rows(c, y, h->y->expected);
}

static void head_norm_bwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    int64_t ld = c->H * c->D + c->pad, n = c->M * c->H * c->D;
    h->x = input(h, "x", c->M * ld);
    h->w = weight(h, "weight", c->D);
    h->dy = input(h, "dy", c->M * ld);
    h->rstd = tensor_in(h, "rstd", DTYPE_F32, c->M * c->H, 1);
    h->dx = output_over(h, h->dy, "dx", c->M * ld);
    h->dw = output(h, "dweight", DTYPE_F32, c->D);
    h->db = NULL;
    h->aux = has(h, GATED) ? input(h, "gate", c->M * ld) : NULL;
    h->o = h->aux ? tensor_out(h, "dgate", h->dtype, c->M * ld, false) : NULL;
    h->res = has(h, ADDED) ? input(h, "dres", c->M * ld) : NULL;
    if (!h->timing) {
        double *x = host_memory(h, (size_t)(3 * n) * sizeof *x), *y = x + n, *rstd = y + n;
        dense_rows(c, h->x->host, x);
        ref_norm(true, c->M * c->H, c->D, 1e-3f, x, norm_factors(h), NULL, y, NULL, rstd);
        for (int64_t i = 0; i < c->M * c->H; i++) tensor_set(h->rstd, i, rstd[i]);
    }
    h->args.head_norm_bwd = (struct head_norm_bwd_args){.dtype = h->dtype,
                                                        .M = c->M,
                                                        .heads = c->H,
                                                        .D = c->D,
                                                        .ld_x = ld,
                                                        .ld_dy = ld,
                                                        .ld_dx = ld,
                                                        .dx = h->dx->device,
                                                        .dy = h->dy->device,
                                                        .x = h->x->device,
                                                        .weight = h->w->device,
                                                        .weight_offset = (float)h->c->offset,
                                                        .rstd = h->rstd->device,
                                                        .dweight = h->dw->device,
                                                        .accumulate = has(h, ACCUMULATE),
                                                        .gate = h->aux ? h->aux->device : NULL,
                                                        .dgate = h->o ? h->o->device : NULL,
                                                        .ld_gate = ld,
                                                        .dres = h->res ? h->res->device : NULL};
}

/* dgate from dy and the normed and weighted values. */
static void gate_gradients(struct harness *h, const double *dy, const double *y)
{
    const int64_t n = h->c->H * h->c->D;
    for (int64_t i = 0; i < h->c->M * n; i++) {
        const int64_t place = i / n * (n + h->c->pad) + i % n;
        const double gate = h->aux->host[place], sigmoid = ref_sigmoid(gate);
        h->o->expected[place] = dy[i] * y[i] * sigmoid * (1 + gate * (1 - sigmoid));
    }
}

static void head_norm_bwd_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    int64_t n = c->M * c->H * c->D;
    double *x = host_memory(h, (size_t)(3 * n) * sizeof *x), *dy = x + n, *dx = dy + n;
    dense_rows(c, h->x->host, x);
    dense_rows(c, h->dy->host, dy);
    start_sum(h, h->dw);
    if (h->aux) {
        ref_norm(true, c->M * c->H, c->D, 1e-3f, x, norm_factors(h), NULL, dx, NULL, NULL);
        gate_gradients(h, dy, dx);
    }
    gate_rows(h, dy);
    ref_norm_bwd(true, c->M * c->H, c->D, x, norm_factors(h), dy, NULL, h->rstd->host, dx, h->dw->expected, NULL);
    if (h->res) dense_rows(c, h->res->host, dy);
    for (int64_t i = 0; h->res && i < n; i++) dx[i] += dy[i];
    spread_rows(c, dx, h->dx->expected);
}

static double head_norm_loss(struct harness *h)
{
    const struct op_case *c = h->c;
    int64_t n = c->M * c->H * c->D;
    double *x = host_memory(h, (size_t)(3 * n) * sizeof *x), *dy = x + n, *y = dy + n;
    dense_rows(c, h->x->host, x);
    dense_rows(c, h->dy->host, dy);
    ref_norm(true, c->M * c->H, c->D, 1e-3f, x, norm_factors(h), NULL, y, NULL, NULL);
    gate_rows(h, y);
    const double loss = sum_of_products(y, dy, n);
    if (!h->res) return loss;
    dense_rows(c, h->res->host, dy);
    return loss + sum_of_products(x, dy, n);
}

static int head_norm_pairs(struct harness *h, struct gradient_pair *pairs)
{
    const int count = input_and_weight_pairs(h, pairs);
    pairs[count] = (struct gradient_pair){h->aux, h->o};
    return count + (h->aux != NULL);
}

FORWARD(embedding_fwd);
BACKWARD(embedding_bwd, embedding_loss, embedding_pairs);
FORWARD(norm_fwd);
BACKWARD(norm_bwd, norm_loss, input_and_weight_pairs);
FORWARD(head_norm_fwd);
BACKWARD(head_norm_bwd, head_norm_loss, head_norm_pairs);
