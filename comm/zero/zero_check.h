/* SPDX-License-Identifier: Apache-2.0 */
/* zero_check.h: finds what a rank computes wrongly or what changes in its memory (train.check_interval_steps).
 *
 *     zero_check_note()        after the update before the step: hashes of the rank's parameters and optimizer state
 *     zero_begin_step()
 *       zero_check_pass(0)     all micro-batches: hashes of the gradients
 *       zero_check_pass(1)     all micro-batches again, from the same samples, parameters and random numbers
 *     zero_check_compare()     the hashes of both passes are equal, and those of the state have not changed
 *     zero_finish_step()
 *
 * Gradients are hashed before they are reduced, so that a wrong one names its rank, and the own slice of the sums after
 * that. At stage 3 the ranks also compare the units that they have gathered. State on a disk is not hashed. A checked
 * step overlaps less, because hashing waits for streams, and has the bits of any other. */
#pragma once

#include "comm/zero/zero.h"

/* The first that applies: a changed parameter explains gradients that differ. */
enum zero_finding {
    FINDING_STATE,     /* parameters or state of the rank have changed */
    FINDING_GRADIENTS, /* the rank has computed two different gradients */
    FINDING_LOSS,      /* or losses */
    FINDING_GATHERED,  /* a gathered unit is not that of most ranks */
    FINDING_SPLIT,     /* gathered units differ, and no more than half of the ranks agree */
    FINDING_REDUCED,   /* all gradients agree, but not the rank's slice of their sum */
    FINDING_NONE,
};

/* The same on all ranks. */
struct zero_check_result {
    enum zero_finding finding;
    int rank, ranks;                  /* the lowest rank that it concerns, and how many */
    int other;                        /* FINDING_SPLIT: a rank that differs from `rank` */
    const char *what;                 /* "parameters", "exp_avg", …, "gradients" */
    const struct unit_info *unit;     /* the rank's first that differs; NULL: FINDING_LOSS */
    const struct tensor_info *tensor; /* in it; NULL: of no single tensor */
};

/* Before the functions below. */
void zero_check_enable(struct zero *zero);

/* Between steps; hashes what the rank keeps. */
enum status zero_check_note(struct zero *zero, struct error *err);
bool zero_check_is_noted(const struct zero *zero); /* and no result has used it */

/* Before the first micro-batch of a pass. Collective. */
enum status zero_check_pass(struct zero *zero, int pass, int64_t step, struct stream *compute, struct error *err);

/* After the last micro-batch. losses: this rank's of both passes (2, layout->parts). Collective. */
enum status zero_check_compare(struct zero *zero, const double *losses, struct stream *compute,
                               struct zero_check_result *result, struct error *err);

/* The step is broken off: hashing ends. */
void zero_check_drop(struct zero *zero);
