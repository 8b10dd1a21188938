/* SPDX-License-Identifier: Apache-2.0 */
/* transformer_unit.h: a unit of the model in use, between acquiring and releasing it; and what each unit does. */
#pragma once

#include "gpu/model/transformer_state.h"

/* One pass over the units, forward or forward and backward: the values that all units share. */
struct pass {
    struct transformer *transformer;
    struct batch batch; /* its arrays are on the device */
    int64_t M;          /* batch.num_tokens */
    bool training;      /* there is dropout, if the model has any */
    const struct param_verbs *verbs;
    struct stream *stream;
    struct error *err;
    struct loss_factor factor;             /* training */
    double *loss_sum;                      /* device scalar */
    const struct sequence_loss *sequences; /* training; NULL: the losses of targets are summed */
    const struct batch *host_batch;        /* with sequences */
    const struct row_results *rows;        /* evaluation; may be NULL */
    double *expert_sums;                   /* device (1 + E), or NULL */
    /* evaluation of a classifier: the batch's targets, and where the logits of rows with a target go; else NULL */
    const int32_t *host_targets;
    float *host_logits;
    const struct kv_cache *cache;      /* generation: of the tokens before these, and gets these; else NULL */
    struct linear_products *announces; /* NULL, or products are added there, and nothing runs */
};

/* Runs an op in the pass, with the named members of its arguments. */
#define PASS_OP(pass, op, ...) RUN_OP((pass)->transformer->device->ops, op, (pass)->stream, __VA_ARGS__)

/* Runs a matrix product, or announces it. kind: fwd, bwd_input or bwd_weight. */
#define PASS_PRODUCT(pass, kind, args)                                                              \
    ((pass)->announces ? (void)((pass)->announces->kind[(pass)->announces->num_##kind++] = *(args)) \
                       : (pass)->transformer->device->ops->linear_##kind((pass)->stream, args))

/* A unit between unit_acquire() and unit_release(), its gradients between unit_grads() and unit_ready(). */
struct unit {
    int index;
    enum param_pass kind;
    struct unit_params params; /* dt */
    struct unit_grads to;      /* where its gradients go, set by unit_grads() */
};

/* The verbs of gpu/parameter_verbs.h for one unit. */
enum status unit_acquire(const struct pass *pass, struct unit *unit, int index, enum param_pass kind);
void unit_release(const struct pass *pass, const struct unit *unit);
/* In a pass without tokens no op will write the gradients: unit_grads() zeroes them, unless they accumulate. */
enum status unit_grads(const struct pass *pass, struct unit *unit);
enum status unit_ready(const struct pass *pass, const struct unit *unit);

/* The unit's tensor of that role and its gradient; NULL if the unit has no such tensor, or no gradient because it is
 * frozen. */
const void *unit_param(const struct transformer *t, const struct unit *unit, enum tensor_role role);
float *unit_grad(const struct transformer *t, const struct unit *unit, enum tensor_role role);

/* Where the gradient of a matrix goes: bf16 in matrix_sums, else fp32. */
void *unit_matrix_grad(const struct transformer *t, const struct unit *unit, enum tensor_role role);

/* ---- unit 0: embedding (transformer_embedding.c) ------------------------- */

/* Writes block 0's res1. */
enum status embedding_forward(const struct pass *pass, enum param_pass kind);

/* Adds up the gradients of the embeddings from dres; it needs no parameters. A tied head has already written the token
 * embedding's gradient: this function adds to it. */
enum status embedding_backward(const struct pass *pass);

/* ---- units 1 … L: blocks (transformer_block.c) --------------------------- */

/* `block` counts from 0. The residual stream comes in as the block before it left it, res2 + transformer.delta (block
 * 0: in res1), and is left in the same way. */
enum status block_forward(const struct pass *pass, int64_t block, enum param_pass kind);

/* In transformer.dres: from the gradient of the block's output to that of its input. */
enum status block_backward(const struct pass *pass, int64_t block);

/* The arguments of attention without its pointers. */
struct attention_bwd_args attention_bwd_sizes(const struct transformer *t, int64_t block, int64_t M, int32_t num_seqs,
                                              int32_t max_seq);

/* ---- unit L+1: head (transformer_head.c) --------------------------------- */

/* From the last block's residual stream to *pass->loss_sum. */
enum status head_evaluate(const struct pass *pass);

/* The same, then backward to transformer.dres. */
enum status head_train(const struct pass *pass);

/* To the logits of the last token, as transformer_continue() gives them. */
enum status head_next(const struct pass *pass, void *logits);

/* The matrix products of logits [first, first + rows), from x, the input of the head's matrix; then from dlogits, with
 * dx. unit: the head; matrix: the unit with its matrix, which is the token embedding if it is tied. */
void head_logits(const struct pass *pass, const struct unit *unit, const struct unit *matrix, int64_t first,
                 int64_t rows, const void *x);
void head_logits_bwd(const struct pass *pass, const struct unit *unit, const struct unit *matrix, int64_t first,
                     int64_t rows, const void *x, void *dx);
