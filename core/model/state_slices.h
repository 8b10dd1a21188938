/* SPDX-License-Identifier: Apache-2.0 */
/* state_slices.h: the kinds of training state that a checkpoint holds, and access to one rank's slices of them.
 *
 * comm/zero owns the slices; ckpt/ reads and fills them. Which elements a slice has: core/model/shard.h. */
#pragma once

#include "core/status.h"

/* Each is one fp32 value for each parameter that is trained: the master weights, Adam's m (Lion's, SGD's and Muon's
 * momentum) and Adam's v (of Muon's matrices 0). A run has the first ones: as many as its optimizer needs
 * (optimizer_moments()). An adapter's base has its parameters as master weights, and no other state;
 * it is in no checkpoint. Moments in 8 bits are words of another meaning (shard.h). */
enum state_kind { STATE_MASTER, STATE_EXP_AVG, STATE_EXP_AVG_SQ, STATE_KIND_COUNT };

/* "master", "exp_avg", "exp_avg_sq": in checkpoints and messages. */
extern const char *const state_kind_names[STATE_KIND_COUNT];

/* SLICE_READ: the slice holds its current values. SLICE_WRITE: the caller fills all of it. */
enum slice_access { SLICE_READ, SLICE_WRITE };

/* The slices of one rank. */
struct state_slices {
    void *owner;
    int count;         /* kinds of state that the rank has: the first ones of enum state_kind */
    bool weights_only; /* a checkpoint may have more */
    /* *slice: the rank's slice of `unit` (state_words() floats, with padding) in host memory, up to the next call. */
    enum status (*get)(void *owner, enum slice_access access, enum state_kind kind, int unit, float **slice,
                       struct error *err);
};

static inline enum status state_slice(struct state_slices slices, enum slice_access access, enum state_kind kind,
                                      int unit, float **slice, struct error *err)
{
    return slices.get(slices.owner, access, kind, unit, slice, err);
}
