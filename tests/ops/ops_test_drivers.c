/* SPDX-License-Identifier: Apache-2.0 */
/* ops_test_drivers.c: the drivers by op, and what they have in common. */
#include "tests/ops/ops_test_drivers.h"

#define DRIVER_OF(name) &name##_driver,
const struct driver *const op_drivers[OPS_COUNT] = {OPS_LIST(DRIVER_OF)};

bool has(const struct harness *h, unsigned flag)
{
    return h->c->flags & flag;
}

struct tensor *weight(struct harness *h, const char *name, int64_t n)
{
    return tensor_in(h, name, h->dtype, n, 0.5);
}

struct tensor *input(struct harness *h, const char *name, int64_t n)
{
    return tensor_in(h, name, h->dtype, n, has(h, EXTREME) ? 30 : 1);
}

struct tensor *output(struct harness *h, const char *name, enum dtype dtype, int64_t n)
{
    return tensor_out(h, name, dtype, n, has(h, ACCUMULATE));
}

struct tensor *output_over(struct harness *h, struct tensor *over, const char *name, int64_t n)
{
    if (!has(h, IN_PLACE)) return tensor_out(h, name, h->dtype, n, false);
    over->output = true;
    return over;
}

void sums_setup(struct harness *h, int64_t C)
{
    if (!has(h, BIAS)) return;
    h->shift = tensor_in(h, "shift", DTYPE_F32, C, 0);
    h->sums = output(h, "sums", DTYPE_F32, C);
    h->sums->tolerance = h->dtype == DTYPE_F32 ? 0 : h->dtype == DTYPE_BF16 ? 1.6e-2 : 2e-3; /* of rounded values */
}

void sums_reference(const struct harness *h, int64_t rows, const double *dx)
{
    const int64_t C = h->sums ? h->sums->n : 0;
    for (int64_t j = 0; j < C; j++) {
        h->sums->expected[j] = h->sums->accumulated ? h->sums->host[j] : 0;
        for (int64_t i = 0; i < rows; i++) h->sums->expected[j] += tensor_round(h->dx, dx[i * C + j]);
    }
}

const double *shifted(struct harness *h, int64_t rows, int64_t C)
{
    if (!h->shift) return h->x->host;
    double *x = host_memory(h, (size_t)(rows * C) * sizeof *x);
    for (int64_t i = 0; i < rows * C; i++) x[i] = h->x->host[i] + h->shift->host[i % C];
    return x;
}

int with_sums(const struct harness *h, struct gradient_pair *pairs, int count)
{
    if (h->sums) pairs[count++] = (struct gradient_pair){h->shift, h->sums};
    return count;
}

double sum_of_products(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

void start_sum(struct harness *h, struct tensor *t)
{
    for (int64_t i = 0; i < t->n; i++) t->expected[i] = has(h, ACCUMULATE) ? t->host[i] : 0;
}

double factor_of(const struct op_case *c)
{
    return c->factor != 0 ? c->factor : 1;
}

int weight_pairs(struct harness *h, struct gradient_pair *pairs)
{
    int count = 0;
    pairs[count++] = (struct gradient_pair){h->w, h->dw};
    if (h->db) pairs[count++] = (struct gradient_pair){h->b, h->db};
    return count;
}

int input_and_weight_pairs(struct harness *h, struct gradient_pair *pairs)
{
    pairs[0] = (struct gradient_pair){h->x, h->dx};
    return with_sums(h, pairs, 1 + weight_pairs(h, pairs + 1));
}

int input_pairs(struct harness *h, struct gradient_pair *pairs)
{
    pairs[0] = (struct gradient_pair){h->x, h->dx};
    return with_sums(h, pairs, 1);
}

enum dtype wide_dtype(struct harness *h)
{
    return has(h, WIDE_OUT) ? DTYPE_F32 : h->dtype;
}

int sequences(struct harness *h, const int32_t **seq_start, int32_t *longest)
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
