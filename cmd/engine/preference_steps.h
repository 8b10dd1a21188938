/* SPDX-License-Identifier: Apache-2.0 */
/* preference_steps.h: a rank's loss of preferences, added up on the host over the micro-batches of a step or of an
 * evaluation. */
#pragma once

#include "comm/comm.h"
#include "core/data/preference_loss.h"
#include "gpu/model/transformer.h"

struct preference_steps {
    struct sequence_loss head; /* owned memory (max_tokens); for train_job */
    const struct preference_settings *settings;
    struct comm *comm; /* NULL: a plan, which computes nothing */
    int turns;
    double *losses; /* owned (turns) */
    double *sums;   /* owned (turns, PREFERENCE_SUMS) */
};

/* All arguments are borrowed. */
struct preference_steps *preference_steps_new(const struct preference_settings *settings, struct comm *comm, int turns,
                                              int64_t max_tokens);
void preference_steps_free(struct preference_steps *steps); /* may be NULL */

/* All sums become 0. */
void preference_steps_begin(struct preference_steps *steps);

/* Adds a micro-batch whose row losses are in head.row_losses, and fills head.row_scale. turn: of its virtual rank.
 * Collective with KTO. */
enum status preference_steps_add(struct preference_steps *steps, const struct batch *batch, int turn,
                                 struct error *err);
