/* SPDX-License-Identifier: Apache-2.0 */
/* transformer_experts.h: experts in the place of a layer's MLP. b: the buffers of a layer that has them. */
#pragma once

#include "gpu/model/transformer_unit.h"

/* From x (M, C) to inner and shared_out. */
void experts_forward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b, const void *x);

/* What policy mlp leaves of that for backward: from shared_inner to shared_out. */
void experts_again(const struct pass *pass, const struct unit *unit, const struct block_buffers *b);

/* From inner to y (M, C): what the experts of a token give, by their weights, and the shared one. */
void experts_combine(const struct pass *pass, const struct unit *unit, const struct block_buffers *b, void *y);

/* From dy (M, C) to dx (M, C), the gradient of x; x as in forward. */
void experts_backward(const struct pass *pass, const struct unit *unit, const struct block_buffers *b, const void *dy,
                      void *dx, const void *x);

/* In place of all of that in a pass without tokens: with experts that ranks share, what this rank's give for the tokens
 * of others. */
void experts_serve(const struct pass *pass, const struct unit *unit, int64_t block);

/* The experts' products of M tokens, to be announced, with one place for all memory; returns their number: none of
 * shared experts, whose rows end before the last. */
enum { EXPERT_PRODUCTS = 4 };
int experts_products(const struct transformer *t, int64_t M, void *place,
                     struct grouped_linear_fwd_args all[EXPERT_PRODUCTS]);

/* Before and after the blocks of a forward pass: the sums of the routers' numbers begin at 0, and are added to those of
 * the step. */
void experts_begin_pass(const struct pass *pass);
void experts_end_forward(const struct pass *pass);
