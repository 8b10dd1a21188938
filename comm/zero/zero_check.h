/* zero_check.h: finds what a rank computes wrongly or what changes in its memory (train.check_interval_steps).
 *
 *     zero_check_note()        after the update before the step: hashes of the rank's parameters and optimizer state
 *     zero_begin_step()
 *       zero_check_pass(0)     all micro-batches: hashes of the gradients
 *       zero_check_pass(1)     all micro-batches again, from the same samples, parameters and random numbers
 *     zero_check_compare()     the hashes of both passes are equal, and those of the state have not changed
 *     zero_finish_step()
 *
 * The gradients are hashed as the rank has computed them, before they are reduced, so that a wrong one names its rank;
 * and the own slice of the sums after that. Between two updates nothing writes parameters and state. At stage 3 the
 * ranks also compare the units that they have gathered. State on a disk (nvme) is not hashed.
 *
 * Hashing waits for streams, and a unit's gradients are hashed before their reduction begins: a checked step does not
 * overlap them. Its bits are those of any other step. */
#pragma once

#include "comm/zero/zero.h"

/* What was found, the first that applies: a changed parameter explains gradients that differ, not the other way round.
 */
enum zero_finding {
    FINDING_STATE,     /* parameters or state of the rank have changed although nothing writes them */
    FINDING_GRADIENTS, /* the rank has computed two different gradients */
    FINDING_LOSS,      /* or losses */
    FINDING_GATHERED,  /* a unit that the rank has gathered is not that of most ranks */
    FINDING_SPLIT,     /* ranks have gathered different units, and no more than half of them the same one */
    FINDING_REDUCED,   /* all gradients agree, but not the rank's slice of their sum */
    FINDING_NONE,
};

/* The same on all ranks. */
struct zero_check_result {
    enum zero_finding finding;
    int rank, ranks;                  /* the lowest rank that it concerns, and how many */
    int other;                        /* FINDING_SPLIT: a rank that differs from `rank`; nobody knows which is right */
    const char *what;                 /* "parameters", "exp_avg", …, "gradients" */
    const struct unit_info *unit;     /* the rank's first that differs; NULL: FINDING_LOSS */
    const struct tensor_info *tensor; /* in it; NULL: of no single tensor */
};

/* Allocates what the other functions need; zero_free() frees it. */
void zero_check_enable(struct zero *zero);

/* Between steps; hashes what the rank keeps. */
enum status zero_check_note(struct zero *zero, struct error *err);
bool zero_check_is_noted(const struct zero *zero); /* and no result has used it */

/* Between zero_begin_step() or the other pass and the first micro-batch of this one. Collective. */
enum status zero_check_pass(struct zero *zero, int pass, int64_t step, struct stream *compute, struct error *err);

/* After the last micro-batch. losses: this rank's of both passes. Collective. */
enum status zero_check_compare(struct zero *zero, const double losses[2], struct stream *compute,
                               struct zero_check_result *result, struct error *err);

/* The step is broken off: hashing ends. */
void zero_check_drop(struct zero *zero);
