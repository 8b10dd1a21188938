/* SPDX-License-Identifier: Apache-2.0 */
/* parameter_verbs.h: the four verbs through which the transformer uses parameters at every ZeRO stage, by comm/zero.
 *
 *   acquire      work enqueued on `stream` from now on may read the unit's parameters
 *   release      no further work will read them; the memory may be reused after the work enqueued so far
 *   grads        returns where the gradients of the unit's trained tensors go
 *   grads_ready  all work that writes the unit's gradients in this micro-batch is enqueued; their reduction may start
 *                after it
 *
 * The order of calls in a micro-batch, with blocks 1 … L and head L+1. Each unit is acquired and released, where
 * nothing else is written:
 *
 *   training     PASS_FORWARD   0, 1 … L
 *                PASS_BACKWARD  L+1, forward and backward (tied: while 0 is acquired too), then L … 1; each calls
 *                               grads before its ops and grads_ready after its release. Last 0: grads and grads_ready
 *                               only, it is not acquired unless the token embedding has an adapter, or
 *                               layers have inputs of their own
 *   evaluation   PASS_EVALUATION  0, 1 … L, L+1 (tied: while 0 is acquired too)
 *
 * Backward ends with the first unit that has a tensor that is trained (tensor_table_first_trained()): those before it
 * get grads and grads_ready only, and their gradients are zeros.
 *
 * grads may be called several times before grads_ready and returns the same (tied: head first, embedding last); the
 * caller overwrites a tensor only in its first use. After an error no verb is called. */
#pragma once

#include "core/model/tensor_table.h"
#include "gpu/device.h"

enum param_pass { PASS_FORWARD, PASS_BACKWARD, PASS_EVALUATION };

/* The flat ranges of the units that are acquired together and of those with their frozen tensors, in the compute dtype.
 * NULL: there are none. */
struct unit_params {
    const void *trained[UNIT_PARTS], *frozen[UNIT_PARTS];
};

/* Where a unit's gradients go. adds: they are added to the values that are there; else every element of every tensor is
 * overwritten, and gaps may stay unwritten or become zeros. A constant (role_is_constant()) is like a gap. */
struct unit_grads {
    float *grads[UNIT_PARTS];  /* fp32, laid out as the unit; NULL: matrix_sums has all, or no such unit */
    int64_t numel[UNIT_PARTS]; /* elements of the unit that are here; 0: none, or no such unit */
    bool adds;
    void *matrix_sums[UNIT_PARTS]; /* bf16, alike: a block's matrices, which `grads` does not get; all NULL, or none */
    bool matrix_adds;
};

/* Each rank has some of the experts, and those of a group have all. A gather brings the ranks' rows (count elements of
 * each, in the order of ranks) to every one; a reduction adds up the parts that the ranks have of each one's. */
struct token_exchange {
    bool reduces;
    const void *send;
    void *recv;  /* of a gather: (ranks, count), of dtype; of a reduction: fp32 (count) */
    void *inbox; /* of a reduction on a GPU: room for (ranks, count) of dtype */
    int64_t count;
    enum dtype dtype;
};

struct param_verbs {
    void *self;
    enum status (*acquire)(void *self, int unit, enum param_pass pass, struct stream *stream,
                           struct unit_params *params, struct error *err);
    void (*release)(void *self, int unit, enum param_pass pass, struct stream *stream);
    enum status (*grads)(void *self, int unit, struct stream *stream, struct unit_grads *grads, struct error *err);
    enum status (*grads_ready)(void *self, int unit, struct stream *stream, struct error *err);
    /* With experts that ranks share: `count` exchanges of one kind, after the work on `stream` and before what follows.
     * Every rank calls it as often, whatever its tokens choose, and without tokens too. */
    void (*exchange)(void *self, const struct token_exchange *exchanges, int count, struct stream *stream);
};
