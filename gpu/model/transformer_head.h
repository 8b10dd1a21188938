/* transformer_head.h: unit L+1, the head: final norm, logits and loss. */
#pragma once

#include "gpu/model/transformer_unit.h"

/* From the last block's residual stream to *pass->loss_sum. */
enum status head_evaluate(const struct pass *pass);

/* The same, then backward to transformer.dres. */
enum status head_train(const struct pass *pass);

/* To the logits of the last token, as transformer_continue() gives them. */
enum status head_next(const struct pass *pass, void *logits);

/* The arguments of the matrix products of a chunk of M rows of logits. */
struct linear_fwd_args head_fwd_args(const struct transformer *t, const struct unit *unit, int64_t M, const void *x);
struct linear_bwd_weight_args head_bwd_weight_args(const struct transformer *t, const struct unit *unit, int64_t M,
                                                   const void *x);
struct linear_bwd_input_args head_bwd_input_args(const struct transformer *t, const struct unit *unit, int64_t M,
                                                 void *dx);
