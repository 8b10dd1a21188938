/* step_fields.h: the numbers of a step: a row each, in the order of its line in metrics.jsonl.
 *
 * metrics.c writes the line by it, the monitors (cmd/run/monitor.h) take their tags from it, and ztrain report reads
 * the line by it. A new metric is a member of struct step_metrics and a row here. */
#pragma once

#include "core/metrics/metrics.h"

#include <stddef.h>

enum step_field_index {
    STEP_NUMBER,
    STEP_EPOCH,
    STEP_LOSS,
    STEP_GRAD_NORM,
    STEP_LR,
    STEP_LOSS_SCALE,
    STEP_SKIPPED,
    STEP_TOKENS,
    STEP_TARGETS,
    STEP_RATE,
    STEP_MFU,
    STEP_DEVICE,
    STEP_HOST,
    STEP_SECONDS, /* and its parts: */
    STEP_DATA,
    STEP_FORWARD,
    STEP_BACKWARD,
    STEP_REDUCE,
    STEP_OPTIMIZER,
    STEP_CHECKPOINT,
    STEP_FIELDS
};

/* FLAG: bool; INTEGER: int64_t; the others: double. EXACT: 17 digits, as bits must repeat; ROUGH: 6 digits; SHARE: the
 * same, negative if unknown; SECONDS: six decimals. */
enum step_type {
    STEP_TYPE_FLAG,
    STEP_TYPE_INTEGER,
    STEP_TYPE_EXACT,
    STEP_TYPE_ROUGH,
    STEP_TYPE_SHARE,
    STEP_TYPE_SECONDS
};

struct step_field {
    const char *object, *member; /* in the line; object "": the line's own */
    enum step_type type;
    size_t offset;   /* in struct step_metrics */
    bool curve;      /* the report draws it */
    int order;       /* from 1, among the scalars of the monitors; 0: none */
    const char *tag; /* there */
};
enum { STEP_SCALARS = 7 };

extern const struct step_field step_fields[STEP_FIELDS];

/* A number of the step. NAN: unknown. */
double step_field_value(const struct step_metrics *metrics, enum step_field_index field);
