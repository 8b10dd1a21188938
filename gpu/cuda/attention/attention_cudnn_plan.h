/* SPDX-License-Identifier: Apache-2.0 */
/* attention_cudnn_plan.h: one announced shape of attention, cuDNN's plan for it, and the execution of that plan.
 *
 * The stream's workspace, of plan->planned bytes:
 *
 *     | lse, delta (B, H, T) | ragged: lengths, offsets | sums of dq, if any | dropout: kept | padded: copies | cuDNN's
 * |
 *
 * lse and delta are those of all B sequences, or if ragged of a piece, like the others. kept (b, H, T, T; 16 bits):
 * which weights stay.
 *
 * A plan whose workspace would be large is made for an equal part of the sequences (a piece) and runs once per piece.
 * Ragged sequences always go in pieces, the last one filled up with empty ones: so one plan serves any number of
 * sequences, and none depends on the others. If lse of ops (H, M) and of cuDNN (B, H, T) differ in order, lse goes
 * through the workspace. One thread: the device's. */
#pragma once

#include "gpu/cuda/attention/attention_cudnn_graph.h"
#include "gpu/cuda/autotune.h"
#include "gpu/ops.h"

enum attention_plan_state {
    ATTENTION_PLANNED,  /* there is a plan, not yet tried */
    ATTENTION_VERIFIED, /* its results agree with ztrain's kernels */
    ATTENTION_REFUSED,  /* ztrain's kernels compute this shape */
    ATTENTION_SLOWER    /* they do, because they are faster than cuDNN with padding */
};

struct attention_plan {
    const struct cudnn_target *target; /* borrowed */
    struct attention_shape shape;
    struct attention_bwd_args announced; /* of which that is the shape */
    enum attention_direction direction;
    enum attention_plan_state state;
    struct cudnn_plan *cudnn_plan; /* owned; NULL: ATTENTION_REFUSED */
    int64_t piece;                 /* sequences that cudnn_plan computes at a time; a divisor of B, unless ragged */
    bool plain;                    /* struct attention_form */
    bool padded;                   /* ragged sequences are copied to places of T tokens each, and computed as dense */
    size_t memory;                 /* bytes of the GPU */
    size_t planned;                /* bytes of the stream's workspace: no plan that takes its place needs more */
    bool untried;                  /* ATTENTION_REFUSED: for lack of memory for the trial */
    char why[512];                 /* ATTENTION_REFUSED: the reason */
    bool logged;
    struct attention_plan *next; /* in the list of struct attention_cudnn */
};

/* The shape of an op, by which its plan is found. Ragged: T is the longest sequence, B the most sequences of a piece,
 * for which half of the places of a full micro-batch may be empty. */
struct attention_shape attention_shape_fwd(const struct attention_fwd_args *args);
struct attention_shape attention_shape_bwd(const struct attention_bwd_args *args);

/* Has cuDNN make the plan of plan->shape. STATUS_DEVICE: it cannot. */
enum status attention_plan_make(struct attention_plan *plan, struct error *err);

/* Whether the plan could be in the plain form, and is not. */
bool attention_plan_has_plain_form(const struct attention_plan *plan);

/* Makes a refused plan that has a plain form anew, in that form, with as much workspace as it needs; false: cuDNN
 * cannot, and the plan stays refused. */
bool attention_plan_make_plain(struct attention_plan *plan);

/* Plans for `piece` sequences whose workspace fits into plan->planned; returns their number. kernel: the only one that
 * will do; 0: any. */
int attention_plan_candidates(const struct attention_plan *plan, int64_t piece, uint64_t kernel,
                              struct cudnn_plan **candidates, int most);

/* The sizes of a piece that are worth a trial, the present one first: smaller workspaces may stay in the GPU's cache.
 * Returns their number. */
enum { ATTENTION_PIECES = 3 };
int attention_plan_pieces(const struct attention_plan *plan, int64_t pieces[ATTENTION_PIECES]);

/* Frees cuDNN's plan and keeps the reason. */
void attention_plan_refuse(struct attention_plan *plan, const char *why);

bool attention_shape_is_aligned(const struct attention_shape *shape); /* rows are aligned if the first one is */

/* For a trial: fills what dropout leaves in the workspace with NaN. */
void attention_plan_spoil(const struct attention_plan *plan, struct stream *stream);

/* Enqueues forward, or with `bwd` backward (fwd: &bwd->fwd). NULL, or cuDNN's reason of a failure. */
const char *attention_plan_run(const struct attention_plan *plan, struct stream *stream,
                               const struct attention_fwd_args *fwd, const struct attention_bwd_args *bwd);

/* Takes a plan's config from the cache, and leaves it planned; or tunes it, and leaves it verified or refused. Fails
 * (STATUS_DEVICE) where a candidate broke the GPU. */
enum status attention_autotune(struct autotuner *tuner, struct attention_plan *plan, struct error *err);

/* Leaves a planned plan verified or refused. */
enum status attention_verify(struct autotuner *tuner, struct attention_plan *plan, struct error *err);
