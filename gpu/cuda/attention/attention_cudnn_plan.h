/* attention_cudnn_plan.h: one announced shape of attention, cuDNN's plan for it, and the execution of that plan.
 *
 * The stream's workspace, of plan->planned bytes:
 *
 *     | lse (B, H, T) | delta (B, H, T) | sums of dq, if unordered | kept, of a piece | workspace of cuDNN's plan |
 *
 * and for ragged sequences, of one piece, b sequences:
 *
 *     | lse (b, H, T) | delta (b, H, T) | lengths, offsets | sums of dq, if unordered | kept | workspace of cuDNN's
 * plan |
 *
 * `kept`, with dropout of the weights: which of them stay, 16 bits each (b, H, T, T), b sequences of a piece.
 *
 * A plan whose workspace would be large is made for an equal part of the sequences (a piece) and runs once per piece.
 * Ragged sequences always go in pieces, the last of which is filled up with empty ones: so one plan serves
 * micro-batches of any number of sequences, and what a sequence gives does not depend on the others. Ops have lse as
 * (H, M); where that is another order than cuDNN's (B, H, T), lse goes through the workspace. q, k, v and their
 * gradients are used where they lie. One thread: the device's. */
#pragma once

#include "gpu/cuda/attention/attention_cudnn_graph.h"
#include "gpu/cuda/autotune.h"
#include "gpu/ops.h"

enum attention_plan_state {
    ATTENTION_PLANNED,  /* there is a plan, not yet tried */
    ATTENTION_VERIFIED, /* its results agree with ztrain's kernels */
    ATTENTION_REFUSED   /* ztrain's kernels compute this shape */
};

struct attention_plan {
    const struct cudnn_target *target; /* borrowed */
    struct attention_shape shape;
    enum attention_direction direction;
    enum attention_plan_state state;
    struct cudnn_plan *cudnn_plan; /* owned; NULL: ATTENTION_REFUSED */
    int64_t piece;                 /* sequences that cudnn_plan computes at a time; a divisor of B, unless ragged */
    size_t planned;                /* bytes of the stream's workspace: no plan that takes its place needs more */
    char why[512];                 /* ATTENTION_REFUSED: the reason */
    bool logged;
    struct attention_plan *next; /* in the list of struct attention_cudnn */
};

/* The shape of an op, by which its plan is found. Ragged: B is the most sequences that a piece should have, for which
 * half of the places of a full micro-batch may be empty, and T the length of the longest sequence. */
struct attention_shape attention_shape_fwd(const struct attention_fwd_args *args);
struct attention_shape attention_shape_bwd(const struct attention_bwd_args *args);

/* Has cuDNN make the plan of plan->shape on a GPU of `memory` bytes. Sets cudnn_plan, piece and planned. STATUS_DEVICE,
 * with the reason: cuDNN cannot compute this shape. */
enum status attention_plan_make(struct attention_plan *plan, size_t memory, struct error *err);

/* Makes plans for `piece` sequences of the first proposals with which the workspace is at most plan->planned; returns
 * their number. kernel: the only one that will do; 0: any. */
int attention_plan_candidates(const struct attention_plan *plan, int64_t piece, uint64_t kernel,
                              struct cudnn_plan **candidates, int most);

/* The sizes of a piece that are worth a trial, the present one first; returns their number. Smaller ones are those
 * whose workspace may stay in the GPU's cache; ragged sequences keep theirs. */
enum { ATTENTION_PIECES = 3 };
int attention_plan_pieces(const struct attention_plan *plan, int64_t pieces[ATTENTION_PIECES]);

/* Frees cuDNN's plan and keeps the reason. */
void attention_plan_refuse(struct attention_plan *plan, const char *why);

/* Bytes that cuDNN's kernels need pointers and rows to be aligned to. */
enum { ATTENTION_ALIGN = 16 };
bool attention_shape_is_aligned(const struct attention_shape *shape); /* rows are aligned if the first one is */

/* For a trial: what dropout leaves of the stream's workspace is NaN now, until the next op. */
void attention_plan_spoil(const struct attention_plan *plan, struct stream *stream);

/* Enqueues the op on the stream: forward, or backward if `bwd` is not NULL, with attention_forward_of(bwd). NULL, or
 * the reason of a failure in cuDNN's words. */
const char *attention_plan_run(const struct attention_plan *plan, struct stream *stream,
                               const struct attention_fwd_args *fwd, const struct attention_bwd_args *bwd);

/* ---- attention_cudnn_autotune.c ------------------------------------------ */

/* Takes the config of a plan that is ATTENTION_PLANNED from the cache, and leaves it planned; or tunes it, and leaves
 * it verified or refused. No candidate needs more workspace than was announced. Fails (STATUS_DEVICE) where a candidate
 * broke the GPU. */
enum status attention_autotune(struct autotuner *tuner, struct attention_plan *plan, struct error *err);

/* Verifies a plan that is ATTENTION_PLANNED: it is verified or refused afterwards. */
enum status attention_verify(struct autotuner *tuner, struct attention_plan *plan, struct error *err);
