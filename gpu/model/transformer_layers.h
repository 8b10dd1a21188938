/* SPDX-License-Identifier: Apache-2.0 */
/* transformer_layers.h: the matrix products and the norms of a unit, as the blocks and the head use them. */
#pragma once

#include "gpu/model/transformer_unit.h"

/* The arguments of one matrix product, forward and backward, for M rows of x and y. */
struct linear_fwd_args linear_fwd_args(const struct transformer *t, const struct unit *unit, enum linear which,
                                       int64_t M, void *y, const void *x, void *aux);
struct linear_bwd_weight_args linear_bwd_weight_args(const struct transformer *t, const struct unit *unit,
                                                     enum linear which, int64_t M, const void *dy, const void *x);
struct linear_bwd_input_args linear_bwd_input_args(const struct transformer *t, const struct unit *unit,
                                                   enum linear which, int64_t M, void *dx, const void *dy, void *aux);

/* A product for the pass's rows from `first` on, with what the adapters of its matrix add; unit: the one with these.
 * Backward: the gradients of the weight and its bias, unless they are frozen (both, or only the bias), then, unless dx
 * is NULL, dx = what goes back, or += with `adds`. */
void linear_run(const struct pass *pass, const struct unit *unit, enum linear which, int64_t first,
                const struct linear_fwd_args *args);
void linear_run_backward(const struct pass *pass, const struct unit *unit, enum linear which, int64_t first,
                         const struct linear_bwd_weight_args *weight, struct linear_bwd_input_args input, bool adds);

/* y = x · W + bias. The up product has an `aux`: y = gelu(aux), aux = x · W + bias; or in a gated MLP aux is SwiGLU or
 * GeGLU of y, unless transformer_gates_again(). */
void linear_forward(const struct pass *pass, const struct unit *unit, enum linear which, void *y, const void *x,
                    void *aux);

/* The gradients of weight and bias (unless bias_summed, or frozen) from dy and x, then, unless dx is NULL, dx = dy ·
 * Wᵀ. The down product has the `aux` of the up product: dx also goes back through its GELU, with the gradient of its
 * bias if that is bias_summed; or gate and up become their gradient, and dx is scratch. */
void linear_backward(const struct pass *pass, const struct unit *unit, enum linear which, void *dx, const void *dy,
                     const void *x, void *aux);

/* The dropout of a kind in a layer (the embedding: 0); nothing is dropped in evaluation. */
struct dropout dropout_at(const struct pass *pass, enum dropout_kind kind, int64_t layer);

/* Drops from x (M, C) to y, which may be x, as forward and backward do alike. Returns y; x where nothing is dropped.
 * drop_rows(): of the rows from `first` on, at which x and y begin. */
const void *drop(const struct pass *pass, enum dropout_kind kind, int64_t layer, void *y, const void *x);
const void *drop_rows(const struct pass *pass, enum dropout_kind kind, int64_t layer, int64_t first, int64_t rows,
                      void *y, const void *x);

/* dst = scale · src, or with `adds` (scale 1) dst + src, n elements. */
void accumulate_to(const struct pass *pass, int64_t n, void *dst, enum dtype dst_dtype, const void *src,
                   enum dtype src_dtype, float scale, bool adds);

/* y = factor · (a + b), rows of the residual stream; b NULL: 0, factor NULL: 1. */
void add_rows(const struct pass *pass, void *y, const void *a, const void *b, const void *factor);

/* A norm of the residual stream: its tensors and what it keeps. */
struct norm {
    enum tensor_role weight, bias;
    void *res, *y;           /* dt (M, C) input and output */
    float *mean, *rstd;      /* (M) */
    const void *weight_copy; /* dt (C), for a backward whose unit is not acquired; else NULL */
};

/* res = x + residual_multiplier · delta, y = norm(res). delta NULL: res holds the sum already, and x is not read. */
void norm_forward(const struct pass *pass, const struct unit *unit, struct norm norm, const void *x, const void *delta);

/* Where a norm's backward leaves the sums of dx over rows; `to` (C), NULL: nowhere. */
struct row_sums {
    float *to;
    bool accumulate;
};

/* The gradient of the product's bias, if it is bias_summed. */
struct row_sums bias_sums(const struct transformer *t, const struct unit *unit, enum linear which);

/* dx = dres (NULL: 0) + the gradient that comes through the norm from dy, the gradient of its output. */
void norm_backward(const struct pass *pass, const struct unit *unit, struct norm norm, void *dx, const void *dy,
                   const void *dres, struct row_sums sums);
