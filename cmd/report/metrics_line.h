/* metrics_line.h: one line of a metrics.jsonl (docs/operations.md lists the kinds of lines and their fields). */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is drawn of a step. X(NAME, object that holds the member or "", member, whether null means "not finite"). */
#define STEP_SERIES(X)                          \
    X(TOKENS, "", "tokens", false)              \
    X(TIME, "", "", false)                      \
    X(LOSS, "", "loss", true)                   \
    X(GRAD_NORM, "", "grad_norm", true)         \
    X(LR, "", "lr", false)                      \
    X(LOSS_SCALE, "", "loss_scale", false)      \
    X(RATE, "", "tokens_per_s", false)          \
    X(MFU, "", "mfu", false)                    \
    X(DEVICE, "memory_bytes", "device", false)  \
    X(HOST, "memory_bytes", "host", false)      \
    X(STEP, "seconds", "step", false)           \
    X(DATA, "seconds", "data", false)           \
    X(FORWARD, "seconds", "forward", false)     \
    X(BACKWARD, "seconds", "backward", false)   \
    X(REDUCE, "seconds", "reduce", false)       \
    X(OPTIMIZER, "seconds", "optimizer", false) \
    X(CHECKPOINT, "seconds", "checkpoint", false)

enum step_series {
#define STEP_ENUM(name, object, member, bad) STEP_##name,
    STEP_SERIES(STEP_ENUM)
#undef STEP_ENUM
        STEP_SERIES_COUNT
};

/* The time of a step is in no field: run_metrics.c adds up the steps' seconds. */
struct step_line {
    int64_t step, epoch, targets; /* targets: -1 where the line has none */
    bool skipped;
    double values[STEP_SERIES_COUNT];
    uint64_t present; /* bits of the series that the line has; NAN where it has null for "not finite" */
};

/* The member's name, "tokens_per_s"; of a part of a step's time "forward"; the time axis has none: "". */
const char *step_series_name(enum step_series series);

/* Reads the line of a step as ztrain writes it, without an allocation. Returns false for every other line, also a
 * sound one with members in it that this reader does not expect: json_step_line() decides then. */
bool quick_step_line(const char *text, size_t bytes, struct step_line *line);

/* The same from a parsed object. Returns false if it is not a step's. */
bool json_step_line(const json_t *object, struct step_line *line);
