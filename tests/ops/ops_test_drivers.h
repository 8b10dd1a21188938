/* SPDX-License-Identifier: Apache-2.0 */
/* ops_test_drivers.h: what the drivers of ops have in common. Memory that these functions return lives as long as the
 * case. */
#pragma once

#include "tests/ops/ops_test.h"

#include <math.h>
#include <string.h>

/* The driver of an op without a gradient check, and with one: `loss` and `pairs` as in struct driver. */
#define FORWARD(name) const struct driver name##_driver = {#name, name##_setup, name##_reference, NULL, NULL}
#define BACKWARD(name, loss, pairs) \
    const struct driver name##_driver = {#name, name##_setup, name##_reference, loss, pairs}

#define DRIVER_DECLARED(name) extern const struct driver name##_driver;
OPS_LIST(DRIVER_DECLARED)

bool has(const struct harness *h, unsigned flag);
struct tensor *weight(struct harness *h, const char *name, int64_t n);
struct tensor *input(struct harness *h, const char *name, int64_t n);
struct tensor *output(struct harness *h, const char *name, enum dtype dtype, int64_t n);
/* An output that overwrites an input if the case is in place. */
struct tensor *output_over(struct harness *h, struct tensor *over, const char *name, int64_t n);
/* The sums of dx over rows, the gradient of the bias of the layer before, if the case has them. */
void sums_setup(struct harness *h, int64_t C);
void sums_reference(const struct harness *h, int64_t rows, const double *dx);
/* x (rows, C) as the loss has it: with the shift. */
const double *shifted(struct harness *h, int64_t rows, int64_t C);
/* The last pair: the shift and its gradient. Returns the number of pairs. */
int with_sums(const struct harness *h, struct gradient_pair *pairs, int count);
double sum_of_products(const double *a, const double *b, int64_t n);
/* expected = host (the values before the op) for accumulating outputs, 0 for others */
void start_sum(struct harness *h, struct tensor *t);
/* What the op multiplies by. */
double factor_of(const struct op_case *c);
int weight_pairs(struct harness *h, struct gradient_pair *pairs);
int input_and_weight_pairs(struct harness *h, struct gradient_pair *pairs);
int input_pairs(struct harness *h, struct gradient_pair *pairs);

/* Host: the places of M · KV assignments to five experts; -1 of `pad` of these. */
int32_t *random_places(struct harness *h);
enum dtype wide_dtype(struct harness *h);
/* The number of the case's sequences, where they start (one more than that), the longest; sets the limits. */
int sequences(struct harness *h, const int32_t **seq_start, int32_t *longest);
