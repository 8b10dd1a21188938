/* SPDX-License-Identifier: Apache-2.0 */
/* ops_test_linear.c: drivers of linear layers, RoPE, SwiGLU and tanh. See ops_test.h for the terms. */
#include "tests/ops/ops_test_drivers.h"

/* ---- SwiGLU, GeGLU ------------------------------------------------------- */

enum { GATE_LIMIT = 1 }; /* with BIAS; interleaved with HALVES */
static const double gate_alpha = 1.7;

/* What multiplies `up`. */
static double gate_value(const struct harness *h, double g)
{
    return has(h, GELU) ? ref_gelu(g, false) : g * ref_sigmoid(g);
}

static double gate_slope(const struct harness *h, double g)
{
    const double s = ref_sigmoid(g);
    return has(h, GELU) ? ref_gelu_grad(g, false) : s + g * s * (1 - s);
}

/* out (M, F) of gate and up (M, 2F) */
static void gate_values(const struct harness *h, int64_t F, const double *gate_up, double *out)
{
    for (int64_t i = 0; i < h->c->M; i++)
        for (int64_t j = 0; j < F; j++)
            out[i * F + j] = gate_value(h, gate_up[i * 2 * F + j]) * gate_up[i * 2 * F + F + j];
}

/* The gradient (M, 2F) of gate and up from that of their SwiGLU. */
static void gate_gradient(const struct harness *h, int64_t F, const double *gate_up, const double *d, double *out)
{
    for (int64_t i = 0; i < h->c->M; i++) {
        for (int64_t j = 0; j < F; j++) {
            double g = gate_up[i * 2 * F + j], u = gate_up[i * 2 * F + F + j];
            out[i * 2 * F + j] = d[i * F + j] * u * gate_slope(h, g);
            out[i * 2 * F + F + j] = d[i * F + j] * gate_value(h, g);
        }
    }
}

/* ---- linear -------------------------------------------------------------- */

static void linear_limits(struct harness *h)
{
    h->limits.max_linear_n = h->c->N;
    h->limits.max_linear_k = h->c->K;
}

static void linear_fwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    int64_t ld = c->N + c->pad;
    linear_limits(h);
    h->x = input(h, "x", c->M * (c->K + c->gap));
    h->w = weight(h, "w", c->N * c->K);
    h->b = has(h, BIAS) ? input(h, "bias", c->N) : NULL;
    h->y = tensor_out(h, "y", wide_dtype(h), c->M * ld, has(h, ADDED));
    h->aux = has(h, GELU) && !has(h, GATED) ? tensor_out(h, "aux", h->dtype, c->M * c->N, false) : NULL;
    h->q = has(h, GATED) ? tensor_out(h, "gated", h->dtype, c->M * c->N / 2, false) : NULL;
    h->args.linear_fwd = (struct linear_fwd_args){.dtype = h->dtype,
                                                  .y_dtype = wide_dtype(h),
                                                  .weights_in_out = has(h, IN_OUT),
                                                  .M = c->M,
                                                  .N = c->N,
                                                  .K = c->K,
                                                  .y = h->y->device,
                                                  .ld_y = c->pad ? ld : 0,
                                                  .x = h->x->device,
                                                  .ld_x = c->gap ? c->K + c->gap : 0,
                                                  .w = h->w->device,
                                                  .bias = h->b ? h->b->device : NULL,
                                                  .gelu = h->aux != NULL,
                                                  .gelu_erf = has(h, ERF),
                                                  .aux = h->aux ? h->aux->device : NULL,
                                                  .gated = h->q ? h->q->device : NULL,
                                                  .gated_gelu = h->q && has(h, GELU),
                                                  .accumulate = has(h, ADDED)};
}

/* The case's M rows of n elements, `pad` elements between them. */
static double *dense_rows(struct harness *h, const double *rows, int64_t n, int64_t pad)
{
    double *dense = host_memory(h, (size_t)(h->c->M * n) * sizeof *dense);
    for (int64_t i = 0; i < h->c->M; i++) memcpy(dense + i * n, rows + i * (n + pad), (size_t)n * sizeof *dense);
    return dense;
}

static void linear_fwd_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    int64_t ld = c->N + c->pad;
    double *y = host_memory(h, (size_t)(c->M * c->N) * sizeof *y);
    ref_linear(c->M, c->N, c->K, has(h, IN_OUT), dense_rows(h, h->x->host, c->K, c->gap), h->w->host,
               h->b ? h->b->host : NULL, y);
    for (int64_t i = 0; i < c->M; i++) {
        for (int64_t j = 0; j < c->N; j++) {
            double v = y[i * c->N + j] + (has(h, ADDED) ? h->y->host[i * ld + j] : 0);
            if (h->aux) h->aux->expected[i * c->N + j] = v;
            h->y->expected[i * ld + j] = h->aux ? ref_gelu(v, has(h, ERF)) : v;
        }
    }
    if (h->q) gate_values(h, c->N / 2, h->y->expected, h->q->expected);
}

static double *dense_dy(struct harness *h)
{
    return dense_rows(h, h->dy->host, h->c->N, h->c->pad);
}

/* gate_up, which becomes its own gradient. */
static void gate_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    h->x = input(h, "gate_up", c->M * 2 * c->K);
    h->dx = output_over(h, h->x, "dgate_up", c->M * 2 * c->K);
}

/* Device memory for n elements, which nobody looks at. */
static void *scratch(struct harness *h, int64_t n)
{
    const size_t bytes = (size_t)n * dtype_size(h->dtype);
    return device_bytes(h, host_memory(h, bytes + 1), bytes);
}

static void linear_bwd_input_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    linear_limits(h);
    h->dy = input(h, "dy", c->M * (c->N + c->pad));
    h->w = weight(h, "w", c->N * c->K);
    const bool gated = has(h, GATED);
    const int64_t ld = c->K + c->gap;
    if (gated)
        gate_setup(h);
    else
        h->x = input(h, has(h, GELU) ? "gelu_aux" : "x", c->M * ld);
    if (!gated) h->dx = tensor_out(h, "dx", h->dtype, c->M * ld, has(h, ADDED));
    h->dx->accumulated = false; /* the loss knows what is added to */
    sums_setup(h, c->K);
    h->args.linear_bwd_input = (struct linear_bwd_input_args){.dtype = h->dtype,
                                                              .weights_in_out = has(h, IN_OUT),
                                                              .M = c->M,
                                                              .N = c->N,
                                                              .K = c->K,
                                                              .dx = gated ? scratch(h, c->M * c->K) : h->dx->device,
                                                              .dy = h->dy->device,
                                                              .ld_dy = c->pad ? c->N + c->pad : 0,
                                                              .w = h->w->device,
                                                              .gelu_aux = has(h, GELU) && !gated ? h->x->device : NULL,
                                                              .gelu_erf = has(h, ERF),
                                                              .accumulate = has(h, ADDED),
                                                              .dbias = h->sums ? h->sums->device : NULL,
                                                              .accumulate_dbias = has(h, ACCUMULATE),
                                                              .gate_up = gated ? h->dx->device : NULL,
                                                              .gated_gelu = gated && has(h, GELU),
                                                              .ld_dx = c->gap ? ld : 0};
}

static void linear_bwd_input_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    const int64_t ld = c->K + c->gap;
    double *dx = host_memory(h, (size_t)(c->M * c->K) * sizeof *dx);
    ref_linear(c->M, c->K, c->N, !has(h, IN_OUT), dense_dy(h), h->w->host, NULL, dx);
    if (has(h, GATED)) {
        gate_gradient(h, c->K, h->x->host, dx, h->dx->expected);
        return;
    }
    for (int64_t i = 0; i < c->M; i++) {
        for (int64_t j = 0; j < c->K; j++) {
            const double sum = dx[i * c->K + j] + (has(h, ADDED) ? h->dx->host[i * ld + j] : 0);
            const double slope = has(h, GELU) ? ref_gelu_grad(h->x->host[i * ld + j], has(h, ERF)) : 1;
            h->dx->expected[i * ld + j] = sum * slope;
        }
    }
    sums_reference(h, c->M, dense_rows(h, h->dx->expected, c->K, c->gap));
}

/* The layer's input as the layer before computes it: dense. */
static const double *linear_input(struct harness *h)
{
    const struct op_case *c = h->c;
    if (has(h, GATED)) {
        double *gated = host_memory(h, (size_t)(c->M * c->K) * sizeof *gated);
        gate_values(h, c->K, h->x->host, gated);
        return gated;
    }
    double *x = dense_rows(h, h->x->host, c->K, c->gap);
    for (int64_t i = 0; i < c->M * c->K; i++) {
        x[i] += h->shift ? h->shift->host[i % c->K] : 0;
        x[i] = has(h, GELU) ? ref_gelu(x[i], has(h, ERF)) : x[i];
    }
    return x;
}

/* With a dx that is added to, the gradient of what else the input was used for. */
static double linear_loss(struct harness *h)
{
    const struct op_case *c = h->c;
    const int64_t ld = c->K + c->gap;
    double *y = host_memory(h, (size_t)(c->M * c->N) * sizeof *y), loss = 0;
    const double *x = linear_input(h);
    ref_linear(c->M, c->N, c->K, has(h, IN_OUT), x, h->w->host, h->db ? h->b->host : NULL, y);
    for (int64_t i = 0; has(h, ADDED) && i < c->M * ld; i++)
        loss += h->dx->host[i] * (i % ld < c->K ? x[i / ld * c->K + i % ld] : h->x->host[i]);
    return loss + sum_of_products(y, dense_dy(h), c->M * c->N);
}

static void linear_bwd_weight_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    linear_limits(h);
    h->dy = input(h, "dy", c->M * (c->N + c->pad));
    h->x = input(h, "x", c->M * (c->K + c->gap));
    h->w = weight(h, "w", c->N * c->K);
    h->b = weight(h, "bias", c->N);
    const bool narrow = has(h, NARROW) && h->dtype == DTYPE_BF16;
    h->dw = output(h, "dw", narrow ? DTYPE_BF16 : DTYPE_F32, c->N * c->K);
    h->db = has(h, BIAS) ? output(h, "dbias", DTYPE_F32, c->N) : NULL;
    h->args.linear_bwd_weight = (struct linear_bwd_weight_args){.dtype = h->dtype,
                                                                .dw_dtype = narrow ? DTYPE_BF16 : DTYPE_F32,
                                                                .weights_in_out = has(h, IN_OUT),
                                                                .M = c->M,
                                                                .N = c->N,
                                                                .K = c->K,
                                                                .dw = h->dw->device,
                                                                .dbias = h->db ? h->db->device : NULL,
                                                                .dy = h->dy->device,
                                                                .ld_dy = c->pad ? c->N + c->pad : 0,
                                                                .x = h->x->device,
                                                                .accumulate = has(h, ACCUMULATE),
                                                                .accumulate_dbias = has(h, ACCUMULATE) && !narrow,
                                                                .null_first = c->H,
                                                                .null_count = c->KV,
                                                                .ld_x = c->gap ? c->K + c->gap : 0};
}

/* Whether the case says that column j of dy adds up to 0, which random values do not: they must not be added up. */
static bool is_null(const struct op_case *c, int64_t j)
{
    return j >= c->H && j < c->H + c->KV;
}

/* The loss as a function of the weights and biases that have a gradient. */
static double linear_weight_loss(struct harness *h)
{
    const struct op_case *c = h->c;
    double loss = linear_loss(h);
    for (int64_t i = 0; h->db && i < c->M; i++)
        for (int64_t j = c->H; j < c->H + c->KV; j++) loss -= h->dy->host[i * (c->N + c->pad) + j] * h->b->host[j];
    return loss;
}

static void linear_bwd_weight_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    int64_t ld = c->N + c->pad;
    start_sum(h, h->dw);
    if (h->db) start_sum(h, h->db);
    for (int64_t j = 0; h->db && !h->args.linear_bwd_weight.accumulate_dbias && j < c->N; j++) h->db->expected[j] = 0;
    for (int64_t i = 0; i < c->M; i++) {
        for (int64_t j = 0; j < c->N; j++) {
            double d = h->dy->host[i * ld + j];
            for (int64_t l = 0; l < c->K; l++)
                h->dw->expected[has(h, IN_OUT) ? l * c->N + j : j * c->K + l] +=
                    d * h->x->host[i * (c->K + c->gap) + l];
            if (h->db && !is_null(c, j)) h->db->expected[j] += d;
        }
    }
}

/* ---- RoPE ---------------------------------------------------------------- */

static int64_t rotary_of(const struct op_case *c)
{
    return c->K ? c->K : c->D;
}

static void rope_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    int64_t ld = c->H * c->D + c->pad;
    h->index_b = random_ints(h, c->M, c->P);
    h->q = tensor_in(h, "cos_table", DTYPE_F32, c->P * rotary_of(c) / 2, 1);
    h->k = tensor_in(h, "sin_table", DTYPE_F32, c->P * rotary_of(c) / 2, 1);
    h->x = tensor_in(h, "forward x", DTYPE_F32, c->M * ld, 1); /* for the gradient check only */
    h->y = input(h, "x", c->M * ld);
    h->y->output = true;
    h->args.rope = (struct rope_args){.dtype = h->dtype,
                                      .M = c->M,
                                      .heads = c->H,
                                      .D = c->D,
                                      .ld = ld,
                                      .R = rotary_of(c),
                                      .x = h->y->device,
                                      .positions = device_ints(h, h->index_b, c->M),
                                      .cos_table = h->q->device,
                                      .sin_table = h->k->device,
                                      .inverse = has(h, INVERSE),
                                      .pairs = has(h, PAIRS)};
}

static void rope_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    ref_rope(c->M, c->H, c->D, rotary_of(c), c->H * c->D + c->pad, h->y->expected, h->index_b, h->q->host, h->k->host,
             has(h, INVERSE), has(h, PAIRS));
}

/* With `inverse`, in place on a gradient, the op is its own backward. */
static double rope_loss(struct harness *h)
{
    const struct op_case *c = h->c;
    double *y = host_memory(h, (size_t)h->x->n * sizeof *y);
    memcpy(y, h->x->host, (size_t)h->x->n * sizeof *y);
    ref_rope(c->M, c->H, c->D, rotary_of(c), c->H * c->D + c->pad, y, h->index_b, h->q->host, h->k->host,
             !has(h, INVERSE), has(h, PAIRS));
    return sum_of_products(y, h->y->host, h->x->n);
}

static int rope_pairs(struct harness *h, struct gradient_pair *pairs)
{
    pairs[0] = (struct gradient_pair){h->x, h->y};
    return 1;
}

/* ---- the order of heads: H outer ones of N ------------------------------- */

static void swap_heads_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    h->x = input(h, "x", c->M * (c->H * c->N * c->D + c->pad));
    h->y = tensor_out(h, "y", h->dtype, h->x->n, false);
    h->args.swap_heads = (struct swap_heads_args){h->dtype, c->M, c->H, c->N, c->D, c->pad, h->y->device, h->x->device};
}

static void swap_heads_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    const int64_t heads = c->H * c->N * c->D, width = heads + c->pad;
    for (int64_t i = 0; i < c->M; i++) {
        for (int64_t outer = 0; outer < c->H; outer++)
            for (int64_t inner = 0; inner < c->N; inner++)
                for (int64_t d = 0; d < c->D; d++)
                    h->y->expected[i * width + (inner * c->H + outer) * c->D + d] =
                        h->x->host[i * width + (outer * c->N + inner) * c->D + d];
        for (int64_t j = heads; j < width; j++) h->y->expected[i * width + j] = h->x->host[i * width + j];
    }
}

/* ---- a gate -------------------------------------------------------------- */

/* With GELU of the gate, the rows of x are apart, else those of the gate. */
static int64_t gate_ld(const struct harness *h, bool of_x)
{
    return h->c->N + (has(h, GELU) == of_x ? h->c->pad : 0);
}

static double gate_open(const struct harness *h, double gate)
{
    return has(h, GELU) ? gate_value(h, gate) : ref_sigmoid(gate);
}

static void gate_fwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    h->x = input(h, "x", c->M * gate_ld(h, true));
    h->w = input(h, "gate", c->M * gate_ld(h, false));
    h->y = tensor_out(h, "y", h->dtype, c->M * c->N, false);
    h->args.gate_fwd = (struct gate_fwd_args){.dtype = h->dtype,
                                              .M = c->M,
                                              .C = c->N,
                                              .ld_gate = gate_ld(h, false),
                                              .y = h->y->device,
                                              .x = h->x->device,
                                              .gate = h->w->device,
                                              .ld_x = has(h, GELU) ? gate_ld(h, true) : 0,
                                              .gelu = has(h, GELU)};
}

static void gate_fwd_values(const struct harness *h, double *y)
{
    const struct op_case *c = h->c;
    for (int64_t i = 0; i < c->M * c->N; i++) {
        const int64_t row = i / c->N, j = i % c->N;
        y[i] = h->x->host[row * gate_ld(h, true) + j] * gate_open(h, h->w->host[row * gate_ld(h, false) + j]);
    }
}

static void gate_fwd_reference(struct harness *h)
{
    gate_fwd_values(h, h->y->expected);
}

static void gate_bwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    const bool gelu = has(h, GELU); /* then dx is in place of x, and dgate of the gate */
    h->x = input(h, "x", c->M * gate_ld(h, true));
    h->w = input(h, "gate", c->M * gate_ld(h, false));
    h->dy = input(h, "dy", c->M * c->N);
    h->dx = output_over(h, gelu ? h->x : h->dy, "dx", c->M * gate_ld(h, true));
    h->dw = gelu ? output_over(h, h->w, "dgate", c->M * gate_ld(h, false))
                 : tensor_out(h, "dgate", h->dtype, c->M * gate_ld(h, false), false);
    h->args.gate_bwd = (struct gate_bwd_args){.dtype = h->dtype,
                                              .M = c->M,
                                              .C = c->N,
                                              .ld_gate = gate_ld(h, false),
                                              .dx = h->dx->device,
                                              .dgate = h->dw->device,
                                              .dy = h->dy->device,
                                              .x = h->x->device,
                                              .gate = h->w->device,
                                              .ld_x = gelu ? gate_ld(h, true) : 0,
                                              .gelu = gelu};
}

static void gate_bwd_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    for (int64_t i = 0; i < c->M * c->N; i++) {
        const int64_t row = i / c->N, j = i % c->N, at = row * gate_ld(h, false) + j, at_x = row * gate_ld(h, true) + j;
        const double gate = h->w->host[at], open = gate_open(h, gate);
        h->dx->expected[at_x] = h->dy->host[i] * open;
        h->dw->expected[at] =
            h->dy->host[i] * h->x->host[at_x] * (has(h, GELU) ? gate_slope(h, gate) : open * (1 - open));
    }
}

static double gate_loss(struct harness *h)
{
    double *y = host_memory(h, (size_t)h->dy->n * sizeof *y);
    gate_fwd_values(h, y);
    return sum_of_products(y, h->dy->host, h->dy->n);
}

static int gate_pairs(struct harness *h, struct gradient_pair *pairs)
{
    pairs[0] = (struct gradient_pair){h->x, h->dx};
    pairs[1] = (struct gradient_pair){h->w, h->dw};
    return 2;
}

/* ---- SwiGLU and GeGLU as ops of their own -------------------------------- */

static bool is_limited(const struct harness *h)
{
    return has(h, BIAS);
}

/* SwiGLU of the element (i, j) of F a row; with d, its gradient times d into `gradient`. */
static double swiglu_of(const struct harness *h, int64_t i, int64_t j, double d, double *gradient)
{
    const int64_t F = h->c->N, row = i * 2 * F;
    const int64_t gate = row + (has(h, HALVES) ? 2 * j : j), up = has(h, HALVES) ? gate + 1 : gate + F;
    const double most = is_limited(h) ? GATE_LIMIT : (double)INFINITY, alpha = is_limited(h) ? gate_alpha : 1,
                 one = is_limited(h) ? 1 : 0, x = h->x->host[gate], y = h->x->host[up], g = fmin(x, most),
                 u = fmax(fmin(y, most), -most), s = ref_sigmoid(alpha * g);
    if (gradient) {
        gradient[gate] = x > most ? 0 : d * (u + one) * (s + alpha * g * s * (1 - s));
        gradient[up] = fabs(y) > most ? 0 : d * g * s;
    }
    return g * s * (u + one);
}

static void swiglu_values(const struct harness *h, double *out)
{
    if (!is_limited(h)) gate_values(h, h->c->N, h->x->host, out);
    for (int64_t i = 0; is_limited(h) && i < h->c->M * h->c->N; i++)
        out[i] = swiglu_of(h, i / h->c->N, i % h->c->N, 0, NULL);
}

/* pad: the number of the M rows that are missing. */
static const int32_t *rows_in(struct harness *h)
{
    int32_t *rows = host_memory(h, sizeof *rows);
    *rows = (int32_t)(h->c->M - h->c->pad);
    return h->c->pad ? device_ints(h, rows, 1) : NULL;
}

static struct tensor *swiglu_input(struct harness *h, int64_t rows)
{
    return tensor_in(h, "gate_up", h->dtype, rows * 2 * h->c->N, has(h, EXTREME) ? 30 : is_limited(h) ? 2 : 1);
}

static void swiglu_fwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    h->limits.F = c->N;
    h->x = swiglu_input(h, c->M);
    h->y = tensor_out(h, "h", h->dtype, c->M * c->N, false);
    h->args.swiglu_fwd =
        (struct swiglu_fwd_args){h->dtype,          c->M,         c->N,           h->y->device,
                                 h->x->device,      has(h, GELU), has(h, HALVES), is_limited(h) ? GATE_LIMIT : 0,
                                 (float)gate_alpha, rows_in(h)};
}

static void swiglu_fwd_reference(struct harness *h)
{
    swiglu_values(h, h->y->expected);
    for (int64_t i = (h->c->M - h->c->pad) * h->c->N; i < h->y->n; i++) h->y->expected[i] = NAN;
}

static void swiglu_bwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    h->limits.F = c->N;
    h->x = swiglu_input(h, c->M);
    h->dy = input(h, "dh", c->M * c->N);
    h->dx = output_over(h, h->x, "dgate_up", c->M * 2 * c->N);
    h->args.swiglu_bwd =
        (struct swiglu_bwd_args){h->dtype, c->M, c->N, h->dx->device, h->dy->device, h->x->device, has(h, GELU)};
}

static void swiglu_bwd_reference(struct harness *h)
{
    gate_gradient(h, h->c->N, h->x->host, h->dy->host, h->dx->expected);
}

static double swiglu_loss(struct harness *h)
{
    double *y = host_memory(h, (size_t)h->dy->n * sizeof *y);
    swiglu_values(h, y);
    return sum_of_products(y, h->dy->host, h->dy->n);
}

/* pad: of the five experts some are another rank's. With a limit, the weights by row are asked for. */
static void experts_swiglu_bwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    const int64_t n = c->M * c->KV;
    h->limits.F = c->N;
    h->limits.max_expert_rows = n;
    h->index_a = random_places(h);
    h->x = swiglu_input(h, n);
    h->dy = input(h, "dh", n * c->N);
    h->w = tensor_in(h, "weights", DTYPE_F32, n, 1);
    h->dx = output_over(h, h->x, "dgate_up", n * 2 * c->N);
    h->y = output_over(h, h->dy, "h", n * c->N);
    h->dw = tensor_out(h, "dweights", DTYPE_F32, n, false);
    h->dw->tolerance = h->dtype == DTYPE_F32 ? 0 : 1e-3; /* of sigmoids for 16 bits */
    h->rstd = is_limited(h) ? tensor_out(h, "row_weights", DTYPE_F32, n, false) : NULL;
    h->db = NULL; /* an earlier case's */
    h->args.experts_swiglu_bwd = (struct experts_swiglu_bwd_args){.dtype = h->dtype,
                                                                  .M = n,
                                                                  .F = c->N,
                                                                  .dgate_up = h->dx->device,
                                                                  .h = h->y->device,
                                                                  .dh = h->dy->device,
                                                                  .gate_up = h->x->device,
                                                                  .interleaved = has(h, HALVES),
                                                                  .limit = is_limited(h) ? GATE_LIMIT : 0,
                                                                  .alpha = (float)gate_alpha,
                                                                  .weights = h->w->device,
                                                                  .dweights = h->dw->device,
                                                                  .places = device_ints(h, h->index_a, n),
                                                                  .row_weights = h->rstd ? h->rstd->device : NULL};
}

static void experts_swiglu_bwd_reference(struct harness *h)
{
    const int64_t F = h->c->N;
    for (int64_t i = 0; i < h->w->n; i++) {
        const int64_t row = h->index_a[i];
        const double weight = h->w->host[i];
        h->dw->expected[i] = 0;
        if (row < 0) continue;
        for (int64_t j = 0; j < F; j++) {
            const double d = h->dy->host[row * F + j], value = swiglu_of(h, row, j, weight * d, h->dx->expected);
            h->dw->expected[i] += value * d;
            h->y->expected[row * F + j] = weight * value;
        }
        if (h->rstd) h->rstd->expected[row] = weight;
    }
}

static double experts_swiglu_loss(struct harness *h)
{
    double loss = 0;
    for (int64_t i = 0; i < h->w->n; i++)
        for (int64_t j = 0; h->index_a[i] >= 0 && j < h->c->N; j++)
            loss += h->w->host[i] * swiglu_of(h, h->index_a[i], j, 0, NULL) * h->dy->host[h->index_a[i] * h->c->N + j];
    return loss;
}

/* ---- tanh ---------------------------------------------------------------- */

static void tanh_fwd_setup(struct harness *h)
{
    h->x = input(h, "x", h->c->N);
    h->y = output_over(h, h->x, "y", h->c->N);
    h->args.tanh_fwd = (struct tanh_fwd_args){h->dtype, h->c->N, h->y->device, h->x->device};
}

static void tanh_fwd_reference(struct harness *h)
{
    for (int64_t i = 0; i < h->c->N; i++) h->y->expected[i] = tanh(h->x->host[i]);
}

static void tanh_bwd_setup(struct harness *h)
{
    h->x = tensor_in(h, "forward x", DTYPE_F32, h->c->N, 2); /* for the gradient check only */
    h->w = tensor_in(h, "y", h->dtype, h->c->N, 1);
    for (int64_t i = 0; !h->timing && i < h->c->N; i++) tensor_set(h->w, i, tanh(h->x->host[i]));
    h->dy = input(h, "dy", h->c->N);
    h->dx = output_over(h, h->dy, "dx", h->c->N);
    h->args.tanh_bwd = (struct tanh_bwd_args){h->dtype, h->c->N, h->dx->device, h->dy->device, h->w->device};
}

static void tanh_bwd_reference(struct harness *h)
{
    for (int64_t i = 0; i < h->c->N; i++) h->dx->expected[i] = h->dy->host[i] * (1 - h->w->host[i] * h->w->host[i]);
}

static double tanh_loss(struct harness *h)
{
    double loss = 0;
    for (int64_t i = 0; i < h->c->N; i++) loss += tanh(h->x->host[i]) * h->dy->host[i];
    return loss;
}

FORWARD(linear_fwd);
BACKWARD(linear_bwd_input, linear_loss, input_pairs);
BACKWARD(linear_bwd_weight, linear_weight_loss, weight_pairs);
BACKWARD(rope, rope_loss, rope_pairs);
FORWARD(swap_heads);
FORWARD(gate_fwd);
BACKWARD(gate_bwd, gate_loss, gate_pairs);
FORWARD(swiglu_fwd);
BACKWARD(swiglu_bwd, swiglu_loss, input_pairs);
BACKWARD(experts_swiglu_bwd, experts_swiglu_loss, input_and_weight_pairs);
FORWARD(tanh_fwd);
BACKWARD(tanh_bwd, tanh_loss, input_pairs);
