/* ops_test_drivers.c: the inputs and the expected outputs of each op. See ops_test.h for the terms. */
#include "core/philox.h"
#include "tests/ops/ops_test.h"
#include "tests/unit/orthogonalize_reference.h"

#include <math.h>
#include <string.h>

static bool has(const struct harness *h, unsigned flag)
{
    return h->c->flags & flag;
}

static struct tensor *weight(struct harness *h, const char *name, int64_t n)
{
    return tensor_in(h, name, h->dtype, n, 0.5);
}

static struct tensor *input(struct harness *h, const char *name, int64_t n)
{
    return tensor_in(h, name, h->dtype, n, has(h, EXTREME) ? 30 : 1);
}

static struct tensor *output(struct harness *h, const char *name, enum dtype dtype, int64_t n)
{
    return tensor_out(h, name, dtype, n, has(h, ACCUMULATE));
}

/* An output that overwrites an input if the case is in place. */
static struct tensor *output_over(struct harness *h, struct tensor *over, const char *name, int64_t n)
{
    if (!has(h, IN_PLACE))
        return tensor_out(h, name, h->dtype, n, false);
    over->output = true;
    return over;
}

/* The sums of dx over rows, the gradient of the bias of the layer before, if the case has them. */
static void sums_setup(struct harness *h, int64_t C)
{
    if (!has(h, BIAS))
        return;
    h->shift = tensor_in(h, "shift", DTYPE_F32, C, 0);
    h->sums = output(h, "sums", DTYPE_F32, C);
    h->sums->tolerance = h->dtype == DTYPE_F32 ? 0 : h->dtype == DTYPE_BF16 ? 1.6e-2 : 2e-3; /* of rounded values */
}

static void sums_reference(const struct harness *h, int64_t rows, const double *dx)
{
    const int64_t C = h->sums ? h->sums->n : 0;
    for (int64_t j = 0; j < C; j++) {
        h->sums->expected[j] = h->sums->accumulated ? h->sums->host[j] : 0;
        for (int64_t i = 0; i < rows; i++)
            h->sums->expected[j] += tensor_round(h->dx, dx[i * C + j]);
    }
}

/* x (rows, C) as the loss has it: with the shift. */
static const double *shifted(struct harness *h, int64_t rows, int64_t C)
{
    if (!h->shift)
        return h->x->host;
    double *x = host_memory(h, (size_t)(rows * C) * sizeof *x);
    for (int64_t i = 0; i < rows * C; i++)
        x[i] = h->x->host[i] + h->shift->host[i % C];
    return x;
}

/* The last pair: the shift and its gradient. Returns the number of pairs. */
static int with_sums(const struct harness *h, struct gradient_pair *pairs, int count)
{
    if (h->sums)
        pairs[count++] = (struct gradient_pair){h->shift, h->sums};
    return count;
}

static double sum_of_products(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* expected = host (the values before the op) for accumulating outputs, 0 for others */
static void start_sum(struct harness *h, struct tensor *t)
{
    for (int64_t i = 0; i < t->n; i++)
        t->expected[i] = has(h, ACCUMULATE) ? t->host[i] : 0;
}

/* What the op multiplies by. */
static double factor_of(const struct op_case *c)
{
    return c->factor != 0 ? c->factor : 1;
}

/* ---- embedding: K is the vocabulary -------------------------------------- */

enum { TYPE_COUNT = 3 };

static void embedding_fwd_setup(struct harness *h)
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
    h->limits.C = c->N;
    h->limits.V = c->K;
    h->index_a = random_ints(h, c->M, c->K);
    h->index_b = random_ints(h, c->M, c->P);
    h->w = weight(h, "wte", c->K * c->N);
    h->b = has(h, WPE) ? weight(h, "wpe", c->P * c->N) : NULL;
    h->types = has(h, TYPES) ? weight(h, "wse", TYPE_COUNT * c->N) : NULL;
    h->index_c = has(h, TYPES) ? random_ints(h, c->M, TYPE_COUNT) : NULL;
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
                                                        has(h, ACCUMULATE)};
}

static void embedding_bwd_reference(struct harness *h)
{
    int64_t C = h->c->N;
    start_sum(h, h->dw);
    if (h->db)
        start_sum(h, h->db);
    if (h->dtypes)
        start_sum(h, h->dtypes);
    for (int64_t i = 0; i < h->c->M; i++) {
        for (int64_t j = 0; j < C; j++) {
            if (h->dtypes)
                h->dtypes->expected[h->index_c[i] * C + j] += factor_of(h->c) * h->dout->host[i * C + j];
            h->dw->expected[h->index_a[i] * C + j] += factor_of(h->c) * h->dout->host[i * C + j];
            if (h->db)
                h->db->expected[h->index_b[i] * C + j] += factor_of(h->c) * h->dout->host[i * C + j];
        }
    }
}

static double embedding_loss(struct harness *h)
{
    double *out = host_memory(h, (size_t)h->dout->n * sizeof *out);
    embedding_values(h, out);
    return sum_of_products(out, h->dout->host, h->dout->n);
}

static int embedding_pairs(struct harness *h, struct gradient_pair *pairs)
{
    int count = 0;
    pairs[count++] = (struct gradient_pair){h->w, h->dw};
    if (h->db)
        pairs[count++] = (struct gradient_pair){h->b, h->db};
    if (h->dtypes)
        pairs[count++] = (struct gradient_pair){h->types, h->dtypes};
    return count;
}

static int weight_pairs(struct harness *h, struct gradient_pair *pairs)
{
    int count = 0;
    pairs[count++] = (struct gradient_pair){h->w, h->dw};
    if (h->db)
        pairs[count++] = (struct gradient_pair){h->b, h->db};
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
    for (int64_t i = 0; i < h->w->n; i++)
        factors[i] = h->w->host[i] + h->c->offset;
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
            if (h->mean)
                tensor_set(h->mean, i, mean[i]);
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
    if (h->db)
        start_sum(h, h->db);
    ref_norm_bwd(has(h, RMS), h->c->M, h->c->N, h->x->host, norm_factors(h), h->dy->host,
                 h->mean ? h->mean->host : NULL, h->rstd->host, h->dx->expected, h->dw->expected,
                 h->db ? h->db->expected : NULL);
    for (int64_t i = 0; h->res && i < h->dx->n; i++)
        h->dx->expected[i] += h->res->host[i];
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

static int input_and_weight_pairs(struct harness *h, struct gradient_pair *pairs)
{
    pairs[0] = (struct gradient_pair){h->x, h->dx};
    return with_sums(h, pairs, 1 + weight_pairs(h, pairs + 1));
}

/* ---- linear -------------------------------------------------------------- */

static enum dtype wide_dtype(struct harness *h)
{
    return has(h, WIDE_OUT) ? DTYPE_F32 : h->dtype;
}

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
    h->x = input(h, "x", c->M * c->K);
    h->w = weight(h, "w", c->N * c->K);
    h->b = has(h, BIAS) ? input(h, "bias", c->N) : NULL;
    h->y = tensor_out(h, "y", wide_dtype(h), c->M * ld, false);
    h->aux = has(h, GELU) ? tensor_out(h, "aux", h->dtype, c->M * c->N, false) : NULL;
    h->args.linear_fwd = (struct linear_fwd_args){.dtype = h->dtype,
                                                  .y_dtype = wide_dtype(h),
                                                  .weights_in_out = has(h, IN_OUT),
                                                  .M = c->M,
                                                  .N = c->N,
                                                  .K = c->K,
                                                  .y = h->y->device,
                                                  .ld_y = c->pad ? ld : 0,
                                                  .x = h->x->device,
                                                  .w = h->w->device,
                                                  .bias = h->b ? h->b->device : NULL,
                                                  .gelu = has(h, GELU),
                                                  .gelu_erf = has(h, ERF),
                                                  .aux = h->aux ? h->aux->device : NULL};
}

static void linear_fwd_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    int64_t ld = c->N + c->pad;
    double *y = host_memory(h, (size_t)(c->M * c->N) * sizeof *y);
    ref_linear(c->M, c->N, c->K, has(h, IN_OUT), h->x->host, h->w->host, h->b ? h->b->host : NULL, y);
    for (int64_t i = 0; i < c->M; i++) {
        for (int64_t j = 0; j < c->N; j++) {
            double v = y[i * c->N + j];
            if (h->aux)
                h->aux->expected[i * c->N + j] = v;
            h->y->expected[i * ld + j] = h->aux ? ref_gelu(v, has(h, ERF)) : v;
        }
    }
}

/* dy, with `pad` elements between its rows */
static void dense_dy(struct harness *h, double *dense)
{
    const struct op_case *c = h->c;
    for (int64_t i = 0; i < c->M; i++)
        memcpy(dense + i * c->N, h->dy->host + i * (c->N + c->pad), (size_t)c->N * sizeof *dense);
}

static void linear_bwd_input_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    linear_limits(h);
    h->dy = input(h, "dy", c->M * (c->N + c->pad));
    h->w = weight(h, "w", c->N * c->K);
    h->x = input(h, has(h, GELU) ? "gelu_aux" : "x", c->M * c->K);
    const bool adds = has(h, ACCUMULATE) && !has(h, BIAS);
    h->dx = tensor_out(h, "dx", h->dtype, c->M * c->K, adds);
    sums_setup(h, c->K);
    h->args.linear_bwd_input = (struct linear_bwd_input_args){.dtype = h->dtype,
                                                              .weights_in_out = has(h, IN_OUT),
                                                              .M = c->M,
                                                              .N = c->N,
                                                              .K = c->K,
                                                              .dx = h->dx->device,
                                                              .dy = h->dy->device,
                                                              .ld_dy = c->pad ? c->N + c->pad : 0,
                                                              .w = h->w->device,
                                                              .gelu_aux = has(h, GELU) ? h->x->device : NULL,
                                                              .gelu_erf = has(h, ERF),
                                                              .accumulate = adds,
                                                              .dbias = h->sums ? h->sums->device : NULL,
                                                              .accumulate_dbias = has(h, ACCUMULATE)};
}

static void linear_bwd_input_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    double *dy = host_memory(h, (size_t)(c->M * (c->N + c->K)) * sizeof *dy), *dx = dy + c->M * c->N;
    dense_dy(h, dy);
    ref_linear(c->M, c->K, c->N, !has(h, IN_OUT), dy, h->w->host, NULL, dx);
    for (int64_t i = 0; i < h->dx->n; i++) {
        h->dx->expected[i] = h->dx->accumulated ? h->dx->host[i] : 0;
        h->dx->expected[i] += has(h, GELU) ? dx[i] * ref_gelu_grad(h->x->host[i], has(h, ERF)) : dx[i];
    }
    sums_reference(h, c->M, h->dx->expected);
}

static double linear_loss(struct harness *h)
{
    const struct op_case *c = h->c;
    double *dy = host_memory(h, (size_t)(2 * c->M * c->N + c->M * c->K) * sizeof *dy);
    double *y = dy + c->M * c->N, *x = y + c->M * c->N;
    const double *before = shifted(h, c->M, c->K);
    dense_dy(h, dy);
    for (int64_t i = 0; i < c->M * c->K; i++)
        x[i] = has(h, GELU) ? ref_gelu(before[i], has(h, ERF)) : before[i];
    ref_linear(c->M, c->N, c->K, has(h, IN_OUT), x, h->w->host, h->db ? h->b->host : NULL, y);
    return sum_of_products(y, dy, c->M * c->N);
}

static int input_pairs(struct harness *h, struct gradient_pair *pairs)
{
    pairs[0] = (struct gradient_pair){h->x, h->dx};
    return with_sums(h, pairs, 1);
}

static void linear_bwd_weight_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    linear_limits(h);
    h->dy = input(h, "dy", c->M * (c->N + c->pad));
    h->x = input(h, "x", c->M * c->K);
    h->w = weight(h, "w", c->N * c->K);
    h->b = weight(h, "bias", c->N);
    h->dw = output(h, "dw", DTYPE_F32, c->N * c->K);
    h->db = has(h, BIAS) ? output(h, "dbias", DTYPE_F32, c->N) : NULL;
    h->args.linear_bwd_weight = (struct linear_bwd_weight_args){.dtype = h->dtype,
                                                                .weights_in_out = has(h, IN_OUT),
                                                                .M = c->M,
                                                                .N = c->N,
                                                                .K = c->K,
                                                                .dw = h->dw->device,
                                                                .dbias = h->db ? h->db->device : NULL,
                                                                .dy = h->dy->device,
                                                                .ld_dy = c->pad ? c->N + c->pad : 0,
                                                                .x = h->x->device,
                                                                .accumulate = has(h, ACCUMULATE)};
}

static void linear_bwd_weight_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    int64_t ld = c->N + c->pad;
    start_sum(h, h->dw);
    if (h->db)
        start_sum(h, h->db);
    for (int64_t i = 0; i < c->M; i++) {
        for (int64_t j = 0; j < c->N; j++) {
            double d = h->dy->host[i * ld + j];
            for (int64_t l = 0; l < c->K; l++)
                h->dw->expected[has(h, IN_OUT) ? l * c->N + j : j * c->K + l] += d * h->x->host[i * c->K + l];
            if (h->db)
                h->db->expected[j] += d;
        }
    }
}

/* ---- RMSNorm of heads ---------------------------------------------------- */

static void dense_rows(const struct op_case *c, const double *from, double *dense)
{
    int64_t n = c->H * c->D;
    for (int64_t i = 0; i < c->M; i++)
        memcpy(dense + i * n, from + i * (n + c->pad), (size_t)n * sizeof *dense);
}

static void spread_rows(const struct op_case *c, const double *dense, double *to)
{
    int64_t n = c->H * c->D;
    for (int64_t i = 0; i < c->M; i++)
        memcpy(to + i * (n + c->pad), dense + i * n, (size_t)n * sizeof *dense);
}

static void head_norm_fwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    int64_t ld = c->H * c->D + c->pad;
    h->x = input(h, "x", c->M * ld);
    h->w = weight(h, "weight", c->D);
    h->y = tensor_out(h, "y", h->dtype, c->M * ld, false);
    h->rstd = tensor_out(h, "rstd", DTYPE_F32, c->M * c->H, false);
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
                                                        .rstd = h->rstd->device};
}

static void head_norm_fwd_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    int64_t n = c->M * c->H * c->D;
    double *x = host_memory(h, (size_t)(2 * n) * sizeof *x), *y = x + n;
    dense_rows(c, h->x->host, x);
    ref_norm(true, c->M * c->H, c->D, 1e-3f, x, norm_factors(h), NULL, y, NULL, h->rstd->expected);
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
    if (!h->timing) {
        double *x = host_memory(h, (size_t)(3 * n) * sizeof *x), *y = x + n, *rstd = y + n;
        dense_rows(c, h->x->host, x);
        ref_norm(true, c->M * c->H, c->D, 1e-3f, x, norm_factors(h), NULL, y, NULL, rstd);
        for (int64_t i = 0; i < c->M * c->H; i++)
            tensor_set(h->rstd, i, rstd[i]);
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
                                                        .accumulate = has(h, ACCUMULATE)};
}

static void head_norm_bwd_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    int64_t n = c->M * c->H * c->D;
    double *x = host_memory(h, (size_t)(3 * n) * sizeof *x), *dy = x + n, *dx = dy + n;
    dense_rows(c, h->x->host, x);
    dense_rows(c, h->dy->host, dy);
    start_sum(h, h->dw);
    ref_norm_bwd(true, c->M * c->H, c->D, x, norm_factors(h), dy, NULL, h->rstd->host, dx, h->dw->expected, NULL);
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
    return sum_of_products(y, dy, n);
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
                                      .inverse = has(h, INVERSE)};
}

static void rope_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    ref_rope(c->M, c->H, c->D, rotary_of(c), c->H * c->D + c->pad, h->y->expected, h->index_b, h->q->host, h->k->host,
             has(h, INVERSE));
}

/* With `inverse`, in place on a gradient, the op is its own backward. */
static double rope_loss(struct harness *h)
{
    const struct op_case *c = h->c;
    double *y = host_memory(h, (size_t)h->x->n * sizeof *y);
    memcpy(y, h->x->host, (size_t)h->x->n * sizeof *y);
    ref_rope(c->M, c->H, c->D, rotary_of(c), c->H * c->D + c->pad, y, h->index_b, h->q->host, h->k->host,
             !has(h, INVERSE));
    return sum_of_products(y, h->y->host, h->x->n);
}

static int rope_pairs(struct harness *h, struct gradient_pair *pairs)
{
    pairs[0] = (struct gradient_pair){h->x, h->y};
    return 1;
}

/* ---- attention ----------------------------------------------------------- */

static int sequences(struct harness *h, const int32_t **seq_start, int32_t *longest)
{
    int32_t *start = host_memory(h, (MAX_SEQS + 1) * sizeof *start);
    int count = 0;
    *longest = 0;
    for (; count < MAX_SEQS && h->c->lengths[count]; count++) {
        start[count + 1] = start[count] + h->c->lengths[count];
        *longest = h->c->lengths[count] > *longest ? h->c->lengths[count] : *longest;
    }
    *seq_start = start;
    h->limits.max_seqs = count;
    h->limits.max_seq = *longest;
    return count;
}

/* ---- dropout: L2 where an op has it -------------------------------------- */

enum { DROPPED_SEED = 99, DROPPED_LAYER = 3, DROPPED_THRESHOLD = 16384 /* a quarter */ };

/* The number of a token, by its row. */
static uint64_t token_number(int64_t row)
{
    return (uint64_t)row * 7 + ((uint64_t)1 << 33);
}

/* The factor of an element by the random bits of philox.h, with the counter as core/dropout.h defines it. */
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
    for (int64_t i = 0; i < h->c->M; i++)
        numbers[i] = token_number(i);
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
                                  c->H * c->D,
                                  c->window,
                                  1 / sqrt((double)c->D),
                                  c->cap,
                                  count,
                                  seq_start,
                                  h->q->host,
                                  h->k->host,
                                  h->v->host,
                                  has(h, L2) ? attention_kept : NULL,
                                  has(h, BIDIRECTIONAL)};
}

static void attention_inputs(struct harness *h)
{
    const struct op_case *c = h->c;
    h->q = tensor_in(h, "q", h->dtype, c->M * (c->H * c->D + c->pad), has(h, EXTREME) ? 6 : 1.5);
    h->k = tensor_in(h, "k", h->dtype, c->M * (c->KV * c->D + c->pad), has(h, EXTREME) ? 6 : 1.5);
    h->v = tensor_in(h, "v", h->dtype, c->M * (c->KV * c->D + 2 * c->pad), 1);
}

static void attention_fwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    attention_inputs(h);
    h->o = tensor_out(h, "out", h->dtype, c->M * c->H * c->D, false);
    h->lse = tensor_out(h, "lse", DTYPE_F32, c->M * c->H, false);
    struct ref_attention r = attention_of(h);
    h->args.attention_fwd = (struct attention_fwd_args){.dtype = h->dtype,
                                                        .M = c->M,
                                                        .H = c->H,
                                                        .KV = c->KV,
                                                        .D = c->D,
                                                        .ld_q = r.ld_q,
                                                        .ld_k = r.ld_k,
                                                        .ld_v = r.ld_v,
                                                        .ld_o = r.ld_o,
                                                        .scale = (float)r.scale,
                                                        .softcap = (float)c->cap,
                                                        .window = c->window,
                                                        .num_seqs = r.num_seqs,
                                                        .max_seq = h->limits.max_seq,
                                                        .seq_start = device_ints(h, r.seq_start, r.num_seqs + 1),
                                                        .q = h->q->device,
                                                        .k = h->k->device,
                                                        .v = h->v->device,
                                                        .out = h->o->device,
                                                        .lse = h->lse->device,
                                                        .dropout = dropout_of_case(h, DROPOUT_ATTENTION),
                                                        .bidirectional = has(h, BIDIRECTIONAL),
                                                        .ragged = c->M != r.num_seqs * (int64_t)h->limits.max_seq};
    h->limits.attention_fwd = h->args.attention_fwd;
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
    h->q = tensor_in(h, "q", h->dtype, c->M * (c->H * c->D + c->pad), has(h, EXTREME) ? 6 : 1.5);
    h->k = tensor_in(h, "k", h->dtype, c->M * (c->KV * c->D + c->pad), has(h, EXTREME) ? 6 : 1.5);
    h->v = tensor_in(h, "v", h->dtype, c->M * (c->KV * c->D + 2 * c->pad), 1);
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
                                                              .out = h->o ? h->o->device : NULL};
}

/* The cache with the new tokens, and a row for each token as ordinary attention has it. */
static void decode_fill(const struct op_case *c, const struct tensor *cache, const struct tensor *rows, int64_t ld,
                        double *all)
{
    for (int64_t i = 0; i < cache->n; i++)
        cache->expected[i] = cache->host[i];
    for (int64_t kv = 0; kv < c->KV; kv++) {
        double *head = cache->expected + kv * c->K * c->D;
        for (int64_t i = 0; i < c->M * c->D; i++)
            head[c->P * c->D + i] = rows->host[i / c->D * ld + kv * c->D + i % c->D];
        for (int64_t i = 0; i < (c->P + c->M) * c->D; i++)
            all[(i / c->D * c->KV + kv) * c->D + i % c->D] = head[i];
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
    for (int64_t i = 0; i < c->M * heads; i++)
        q[c->P * heads + i] = h->q->host[i / heads * a->ld_q + i % heads];
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
                                    .v = v};
    ref_attention(&r, out, NULL);
    for (int64_t i = 0; h->o && i < c->M * heads; i++)
        h->o->expected[i] = out[c->P * heads + i];
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
    if (!h->timing) {
        double *out = host_memory(h, (size_t)(h->o->n + h->lse->n) * sizeof *out), *lse = out + h->o->n;
        ref_attention(&r, out, lse);
        for (int64_t i = 0; i < h->o->n; i++)
            tensor_set(h->o, i, out[i]);
        for (int64_t i = 0; i < h->lse->n; i++)
            tensor_set(h->lse, i, lse[i]);
    }
    h->args.attention_bwd = (struct attention_bwd_args){.dtype = h->dtype,
                                                        .M = c->M,
                                                        .H = c->H,
                                                        .KV = c->KV,
                                                        .D = c->D,
                                                        .ld_q = r.ld_q,
                                                        .ld_k = r.ld_k,
                                                        .ld_v = r.ld_v,
                                                        .ld_o = r.ld_o,
                                                        .ld_dq = r.ld_q,
                                                        .ld_dk = r.ld_k,
                                                        .ld_dv = r.ld_v,
                                                        .scale = (float)r.scale,
                                                        .softcap = (float)c->cap,
                                                        .window = c->window,
                                                        .num_seqs = r.num_seqs,
                                                        .max_seq = h->limits.max_seq,
                                                        .seq_start = device_ints(h, r.seq_start, r.num_seqs + 1),
                                                        .q = h->q->device,
                                                        .k = h->k->device,
                                                        .v = h->v->device,
                                                        .out = h->o->device,
                                                        .dout = h->dout->device,
                                                        .lse = h->lse->device,
                                                        .dq = h->dq->device,
                                                        .dk = h->dk->device,
                                                        .dv = h->dv->device,
                                                        .dropout = dropout_of_case(h, DROPOUT_ATTENTION),
                                                        .bidirectional = has(h, BIDIRECTIONAL),
                                                        .ragged = c->M != r.num_seqs * (int64_t)h->limits.max_seq};
    h->limits.attention_bwd = h->args.attention_bwd;
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

/* ---- SwiGLU, GeGLU ------------------------------------------------------- */

static void swiglu_fwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    h->limits.F = c->N;
    h->x = input(h, "gate_up", c->M * 2 * c->N);
    h->y = tensor_out(h, "h", h->dtype, c->M * c->N, false);
    h->args.swiglu_fwd = (struct swiglu_fwd_args){h->dtype, c->M, c->N, h->y->device, h->x->device, has(h, GELU)};
}

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

static void swiglu_values(struct harness *h, double *out)
{
    int64_t F = h->c->N;
    for (int64_t i = 0; i < h->c->M; i++) {
        for (int64_t j = 0; j < F; j++) {
            double g = h->x->host[i * 2 * F + j], u = h->x->host[i * 2 * F + F + j];
            out[i * F + j] = gate_value(h, g) * u;
        }
    }
}

static void swiglu_fwd_reference(struct harness *h)
{
    swiglu_values(h, h->y->expected);
}

static void swiglu_bwd_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    h->limits.F = c->N;
    h->x = input(h, "gate_up", c->M * 2 * c->N);
    h->dy = input(h, "dh", c->M * c->N);
    h->dx = output_over(h, h->x, "dgate_up", c->M * 2 * c->N);
    h->args.swiglu_bwd =
        (struct swiglu_bwd_args){h->dtype, c->M, c->N, h->dx->device, h->dy->device, h->x->device, has(h, GELU)};
}

static void swiglu_bwd_reference(struct harness *h)
{
    int64_t F = h->c->N;
    for (int64_t i = 0; i < h->c->M; i++) {
        for (int64_t j = 0; j < F; j++) {
            double g = h->x->host[i * 2 * F + j], u = h->x->host[i * 2 * F + F + j];
            double d = h->dy->host[i * F + j];
            h->dx->expected[i * 2 * F + j] = d * u * gate_slope(h, g);
            h->dx->expected[i * 2 * F + F + j] = d * gate_value(h, g);
        }
    }
}

static double swiglu_loss(struct harness *h)
{
    double *y = host_memory(h, (size_t)h->dy->n * sizeof *y);
    swiglu_values(h, y);
    return sum_of_products(y, h->dy->host, h->dy->n);
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
    for (int64_t i = 0; i < h->c->N; i++)
        h->y->expected[i] = tanh(h->x->host[i]);
}

static void tanh_bwd_setup(struct harness *h)
{
    h->x = tensor_in(h, "forward x", DTYPE_F32, h->c->N, 2); /* for the gradient check only */
    h->w = tensor_in(h, "y", h->dtype, h->c->N, 1);
    for (int64_t i = 0; !h->timing && i < h->c->N; i++)
        tensor_set(h->w, i, tanh(h->x->host[i]));
    h->dy = input(h, "dy", h->c->N);
    h->dx = output_over(h, h->dy, "dx", h->c->N);
    h->args.tanh_bwd = (struct tanh_bwd_args){h->dtype, h->c->N, h->dx->device, h->dy->device, h->w->device};
}

static void tanh_bwd_reference(struct harness *h)
{
    for (int64_t i = 0; i < h->c->N; i++)
        h->dx->expected[i] = h->dy->host[i] * (1 - h->w->host[i] * h->w->host[i]);
}

static double tanh_loss(struct harness *h)
{
    double loss = 0;
    for (int64_t i = 0; i < h->c->N; i++)
        loss += tanh(h->x->host[i]) * h->dy->host[i];
    return loss;
}

/* ---- cross-entropy: N is the vocabulary, K the padded one (or 0); L2: smoothed labels ---- */

static double cross_entropy_smoothing(const struct harness *h)
{
    return has(h, L2) ? (double)0.1f : 0;
}

/* The wanted probability of column j in row i. */
static double cross_entropy_wanted(const struct harness *h, int64_t i, int64_t j)
{
    const double smoothing = cross_entropy_smoothing(h);
    return (1 - smoothing) * (j == h->index_a[i]) + smoothing / (double)h->c->N;
}

/* The factor of dlogits; WIDE_OUT: without a loss scale. */
static const float cross_entropy_scale = 0.125f;
static const float cross_entropy_loss_scale = 2;

static double cross_entropy_factor(const struct harness *h)
{
    return (double)cross_entropy_scale * (has(h, WIDE_OUT) ? 1 : (double)cross_entropy_loss_scale);
}

static void cross_entropy_setup(struct harness *h)
{
    const struct op_case *c = h->c;
    h->limits.V = c->N;
    int64_t ld = c->N + c->pad, bytes = (int64_t)dtype_size(wide_dtype(h));
    int64_t ld_dlogits = has(h, IN_PLACE) ? ld * bytes / (int64_t)dtype_size(h->dtype) : c->N;
    h->index_a = random_ints(h, c->M, c->N);
    for (int64_t i = 2; i < c->M; i += 5)
        h->index_a[i] = -1;
    h->x = tensor_in(h, "logits", wide_dtype(h), c->M * ld, has(h, EXTREME) ? 80 : 4);
    h->loss = tensor_double(h, "loss_sum", 0.5);
    h->k = tensor_in(h, "loss_scale", DTYPE_F32, 1, 1);
    if (!h->timing)
        tensor_set(h->k, 0, cross_entropy_loss_scale);
    h->dx = NULL;
    if (!has(h, LOSS_ONLY)) {
        h->dx = tensor_out(h, "dlogits", h->dtype, c->M * ld_dlogits, false);
        if (has(h, IN_PLACE)) {
            h->dx->device = h->x->device;
            h->dx->alias = true;
            h->dx->name = "dlogits in place";
        }
    }
    h->args.cross_entropy = (struct cross_entropy_args){.dtype = h->dtype,
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
                                                        .loss_scale = has(h, WIDE_OUT) ? NULL : h->k->device,
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
    for (int64_t j = 0; j < c->N; j++)
        highest = fmax(highest, mapped_logit(c, x[j], &slope));
    for (int64_t j = 0; j < c->N; j++)
        sum += exp(mapped_logit(c, x[j], &slope) - highest);
    return highest + log(sum);
}

static double cross_entropy_sum(struct harness *h)
{
    double sum = 0, slope;
    for (int64_t i = 0; i < h->c->M; i++) {
        const double *row = h->x->host + i * (h->c->N + h->c->pad);
        const double lse = h->index_a[i] >= 0 ? row_lse(h->c, row) : 0;
        for (int64_t j = 0; h->index_a[i] >= 0 && j < h->c->N; j++)
            sum += cross_entropy_wanted(h, i, j) * (lse - mapped_logit(h->c, row[j], &slope));
    }
    return sum;
}

static void cross_entropy_reference(struct harness *h)
{
    const struct op_case *c = h->c;
    h->loss->expected[0] = h->loss->host[0] + cross_entropy_sum(h);
    for (int64_t i = 0; h->dx && i < c->M; i++) {
        const double *row = h->x->host + i * (c->N + c->pad);
        double *dx = h->dx->expected + i * h->args.cross_entropy.ld_dlogits, lse = row_lse(c, row), slope;
        for (int64_t j = 0; j < c->N; j++) {
            double p = exp(mapped_logit(c, row[j], &slope) - lse);
            dx[j] = h->index_a[i] < 0 ? 0 : cross_entropy_factor(h) * (p - cross_entropy_wanted(h, i, j)) * slope;
        }
        for (int64_t j = c->N; j < c->K; j++)
            dx[j] = 0;
    }
}

static double cross_entropy_loss(struct harness *h)
{
    return cross_entropy_factor(h) * cross_entropy_sum(h);
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
    h->w = input(h, "b", h->c->N);
    h->y = output_over(h, h->x, "y", h->c->N);
    h->args.add = (struct add_args){h->dtype, h->c->N, h->y->device, h->x->device, h->w->device};
}

static void add_reference(struct harness *h)
{
    for (int64_t i = 0; i < h->c->N; i++)
        h->y->expected[i] = h->x->host[i] + h->w->host[i];
}

/* fp32 to the case's dtype; with WIDE_OUT back; with IN_PLACE from the dtype to itself (not really in place); with
 * HALVES from bf16 to fp16, or back. Rounds to nearest and does nothing else. */
static void cast_setup(struct harness *h)
{
    enum dtype src = has(h, WIDE_OUT) || has(h, IN_PLACE) ? h->dtype : DTYPE_F32;
    enum dtype dst = has(h, WIDE_OUT) ? DTYPE_F32 : h->dtype;
    if (has(h, HALVES) && h->dtype != DTYPE_F32)
        src = h->dtype == DTYPE_BF16 ? DTYPE_F16 : DTYPE_BF16;
    h->x = tensor_in(h, "src", src, h->c->N, has(h, EXTREME) ? 3.3e38 : 1);
    for (int64_t i = 3; has(h, EXTREME) && !h->timing && i < h->c->N; i += 7)
        tensor_set(h->x, i, i % 2 ? NAN : INFINITY);
    h->y = tensor_out(h, "dst", dst, h->c->N, false);
    h->y->exact = true;
    h->args.cast = (struct cast_args){dst, src, h->c->N, h->y->device, h->x->device};
}

static void cast_reference(struct harness *h)
{
    for (int64_t i = 0; i < h->c->N; i++)
        h->y->expected[i] = tensor_round(h->y, h->x->host[i]);
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
    if (has(h, EXTREME) && !h->timing)
        tensor_set(h->x, (c->K - 1) * (c->M + 1) + c->M / 2, INFINITY);
    struct step_state state = {.optimizer_step = has(h, ACCUMULATE) ? 8 : 7,
                               .scaler = {.scale = scaled ? 64 : 1, .steps = 9, .last_overflow = 5, .hysteresis = 1}};
    struct step_state *device = device_bytes(h, &state, sizeof state);
    h->y = tensor_alias(h, "loss_sum, grad_norm, lr, corrections, betas", &device->loss_sum, 7, true);
    h->w = tensor_alias(h, "loss scales, grad_scale", &device->loss_scale, 3, false);
    h->args.decide_step = (struct decide_step_args){
        .world = (int32_t)c->K,
        .units = (int32_t)c->M,
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
        for (int u = 0; u < a->units; u++)
            sum += h->x->host[r * (a->units + 1) + u];
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
    if (!has(h, LOSS_ONLY))
        h->y->expected[0] = (double)(has(h, EXTREME) ? h->c->N / 2 : h->c->N);
}

/* TYPES: five segments of weight decay, in elements 0 … n - 1; the second and the fourth have it. */
enum { DECAY_SEGMENTS = 5 };
static struct decay_segment decay_segment_of(int64_t n, int s)
{
    const int64_t ends[DECAY_SEGMENTS] = {8, 64, n / 32 * 8, n / 16 * 8, n};
    return (struct decay_segment){ends[s], s % 2 ? 0.1f : 0};
}

static const struct decay_segment *decay_segments_of(struct harness *h)
{
    struct decay_segment segments[DECAY_SEGMENTS];
    for (int s = 0; s < DECAY_SEGMENTS; s++)
        segments[s] = decay_segment_of(h->c->N, s);
    return has(h, TYPES) ? device_bytes(h, segments, sizeof segments) : NULL;
}

static double decay_of_element(const struct harness *h, int64_t i, float weight_decay)
{
    int s = 0;
    while (has(h, TYPES) && i >= decay_segment_of(h->c->N, s).end)
        s++;
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
    for (int64_t i = 0; !h->timing && i < n; i++)
        tensor_set(h->v, i, fabs(h->v->host[i]) * 0.1);
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
 * core/stochastic_rounding.h defines it. */
static double adam_rounded(const struct harness *h, const struct tensor *t, uint32_t state, int64_t i, double value)
{
    const uint64_t key = ROUNDED_SEED ^ 0x73746f6368617374u;
    const int64_t place = h->c->pad + i;
    const uint32_t keys[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    const uint32_t counter[4] = {(uint32_t)(place / 8), 0, state << 24 | ROUNDED_UNIT, ROUNDED_STEP};
    uint32_t words[4], bits;
    float x = (float)value;
    if (t->dtype == DTYPE_F32)
        return value;
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
        if (h->y)
            h->y->expected[i] = w;
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
    if (h->q)
        h->q->output = true;
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
        if (h->q)
            h->q->expected[i] = m;
        if (h->y)
            h->y->expected[i] = w;
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
    if (!has(h, IN_PLACE))
        h->y = tensor_out(h, "y", DTYPE_BF16, numel, false);
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
        if (h->y)
            h->y->expected[i] = w;
    }
}

#define FORWARD(name)                                     \
    {                                                     \
#name, name##_setup, name##_reference, NULL, NULL \
    }
#define BACKWARD(name, loss, pairs)                        \
    {                                                      \
#name, name##_setup, name##_reference, loss, pairs \
    }
const struct driver op_drivers[OPS_COUNT] = {
    FORWARD(embedding_fwd),
    BACKWARD(embedding_bwd, embedding_loss, embedding_pairs),
    FORWARD(norm_fwd),
    BACKWARD(norm_bwd, norm_loss, input_and_weight_pairs),
    FORWARD(linear_fwd),
    BACKWARD(linear_bwd_input, linear_loss, input_pairs),
    BACKWARD(linear_bwd_weight, linear_loss, weight_pairs),
    FORWARD(head_norm_fwd),
    BACKWARD(head_norm_bwd, head_norm_loss, input_and_weight_pairs),
    BACKWARD(rope, rope_loss, rope_pairs),
    FORWARD(attention_fwd),
    BACKWARD(attention_bwd, attention_loss, attention_pairs),
    FORWARD(attention_decode),
    FORWARD(swiglu_fwd),
    BACKWARD(swiglu_bwd, swiglu_loss, input_pairs),
    FORWARD(tanh_fwd),
    BACKWARD(tanh_bwd, tanh_loss, input_pairs),
    BACKWARD(cross_entropy, cross_entropy_loss, cross_entropy_pairs),
    FORWARD(add),
    FORWARD(dropout),
    FORWARD(cast),
    FORWARD(accumulate),
    FORWARD(sumsq),
    FORWARD(decide_step),
    FORWARD(find_nonfinite),
    FORWARD(adam),
    FORWARD(momentum),
    FORWARD(muon_momentum),
    FORWARD(orthogonalize),
    FORWARD(muon_update),
};
