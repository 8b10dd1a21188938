/* SPDX-License-Identifier: Apache-2.0 */
/* manifest_text.h: the form of manifest.json, for manifest_write.c and manifest_read.c: a line for each member, or for
 * each element of a long list. */
#pragma once

#include "ckpt/manifest.h"

#define FORMAT "ztrain-checkpoint"
#define CHECKSUM_HEAD ",\n \"checksum\": \""
#define CHECKSUM_TAIL "\"\n}\n"

enum field_type { FIELD_INTEGER, FIELD_INT32, FIELD_REAL, FIELD_BOOL, FIELD_HASH, FIELD_METRIC };

/* A member of a part of "position", for both directions. */
struct field {
    const char *name;
    size_t offset; /* in struct train_position */
    enum field_type type;
    int64_t min;  /* of integers */
    bool if_true; /* FIELD_BOOL: absent if false */
};

#define AT(member) offsetof(struct train_position, member)
static const struct field position_fields[] = {
    {"step", AT(step), FIELD_INTEGER, 0, false},
    {"optimizer_step", AT(optimizer_step), FIELD_INTEGER, 0, false},
    {"epoch", AT(epoch), FIELD_INTEGER, 0, false},
    {"step_in_epoch", AT(step_in_epoch), FIELD_INTEGER, 0, false},
    {"skipped_in_row", AT(skipped_in_row), FIELD_INTEGER, 0, false},
    {"epoch_targets", AT(epoch_targets), FIELD_INTEGER, 0, false},
    {"tokens", AT(tokens), FIELD_INTEGER, 0, false},
    {"epoch_loss_sum", AT(epoch_loss_sum), FIELD_REAL, 0, false},
    {"epoch_end", AT(epoch_end), FIELD_BOOL, 0, false},
    {"evaluation_due", AT(evaluation_due), FIELD_BOOL, 0, true},
};
static const struct field stopping_fields[] = {
    {"data", AT(stopping.data), FIELD_HASH, 0, false},
    {"metric", AT(stopping.metric), FIELD_METRIC, 0, false},
    {"best", AT(stopping.best), FIELD_REAL, 0, false},
    {"evaluations", AT(stopping.evaluations), FIELD_INTEGER, 0, false},
    {"stopped", AT(stopped_early), FIELD_BOOL, 0, false},
};
static const struct field mean_loss_fields[] = {
    {"mean", AT(mean_loss.mean), FIELD_REAL, 0, false},
    {"steps", AT(mean_loss.steps), FIELD_INTEGER, 1, false},
};
static const struct field loss_scaler_fields[] = {
    {"scale", AT(scaler.scale), FIELD_REAL, 0, false},
    {"steps", AT(scaler.steps), FIELD_INTEGER, 0, false},
    {"last_overflow", AT(scaler.last_overflow), FIELD_INTEGER, -1, false},
    {"hysteresis", AT(scaler.hysteresis), FIELD_INT32, 1, false},
};
#undef AT
