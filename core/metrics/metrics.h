/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.h: rank 0 writes metrics.jsonl (docs/run-folder.md). Numbers that must repeat have 17 digits. */
#pragma once

#include "core/core.h"
#include "core/metrics/eval_metric.h"
#include "core/metrics/metrics_history.h"
#include "core/training/settings.h"

struct metrics;

/* A source of a mixture (data.train). */
struct source_metrics {
    const char *path; /* as data.train names it (borrowed) */
    int64_t samples;  /* taken since the start of the run */
    double epochs;    /* passes over the source that they are */
    int64_t targets;  /* of this step */
};

struct step_metrics {
    int64_t step, epoch, tokens, targets;                      /* targets: of this step, the divisor of its loss */
    double loss, grad_norm, lr, loss_scale, tokens_per_s, mfu; /* mfu < 0: unknown (null) */
    double of_ceiling; /* like mfu, but relative to this device's measured peak; for the console */
    bool skipped;
    bool hashed;
    uint64_t hash; /* of the parameters after the step (train.hash_interval_steps), if hashed */
    int64_t memory_device, memory_host;
    /* with experts: the mean auxiliary loss of the micro-batches (NAN: the routers have none); the number of tokens
     * that each expert got in all layers (borrowed), the entropy of their shares, and the largest share */
    double aux_loss, load_entropy, max_load;
    const double *loads;
    int num_experts;                 /* else 0 */
    enum preference_loss preference; /* NONE: there are no preference_values */
    double preference_values[PREFERENCE_VALUES];
    const struct source_metrics *sources; /* (num_sources) borrowed */
    int num_sources;                      /* of a mixture; else 0 */
    struct {
        /* forward to optimizer: NAN if they were not timed (null) */
        double step, data, forward, backward, reduce, optimizer, checkpoint;
    } seconds;
};

/* Opens <path> for appending. `history` NULL: the file starts empty (metrics_history_leave()). Otherwise it has the
 * lines of the history (metrics_history_take()) and of the resumed checkpoint. STATUS_CHECKPOINT: cannot. */
enum status metrics_open(const char *path, const struct metrics_history *past, struct metrics **out, struct error *err);

void metrics_close(struct metrics *metrics);
RELEASER(metrics_drop, struct metrics, metrics_close)

/* Sets the check that the file still belongs to this run (line_queue.h). */
void metrics_ask_owner(struct metrics *m, enum status (*still_owner)(void *owner, struct error *err), void *owner);

/* Tries for this many seconds to write the lines that wait. Returns false, after a warning, if some are lost. */
bool metrics_drain(struct metrics *metrics, double seconds);

/* These write one line each; while the disk is full or fails, lines wait in memory (line_queue.h). */
enum status metrics_step(struct metrics *metrics, const struct step_metrics *m, struct error *err);
/* targets: that the loss is the mean of; samples with scores (a classifier's) or preference (PREFERENCE_VALUES). */
enum status metrics_eval(struct metrics *metrics, int64_t step, int64_t epoch, double eval_loss, int64_t targets,
                         const struct class_scores *scores, const double *preference, struct error *err);
/* A continuation of train.samples, in the number's turn from 1. */
struct sample_metrics {
    int number;
    const char *prompt, *text; /* of a prompt that is text: UTF-8 without NUL; else NULL, and the tokens count */
    const int32_t *prompt_tokens, *tokens;
    int64_t num_prompt, num_tokens;
};
enum status metrics_sample(struct metrics *metrics, int64_t step, int64_t epoch, const struct sample_metrics *sample,
                           struct error *err);
/* With virtual ranks: from `step` on the bits may be others. text: "isa: avx512, now avx2". */
enum status metrics_kernels_changed(struct metrics *metrics, const char *text, int64_t step, struct error *err);
/* The ranks were started again (--max-restarts) after a failure: the restart's number, the step that it begins from. */
enum status metrics_restart(struct metrics *metrics, int number, int64_t step, int code, const char *cause,
                            struct error *err);
/* The supervisor gives up; step: of the newest checkpoint (0: none). Appends to the file, which no rank has open. */
enum status metrics_gave_up(const char *path, int times, int64_t step, int code, const char *cause, struct error *err);
/* The mean training loss of an epoch that ends, or of its steps so far. */
enum status metrics_epoch(struct metrics *m, bool ends, int64_t epoch, int64_t step, double loss, struct error *err);

/* The run ends early after `step`. */
enum status metrics_early_stop(struct metrics *m, int64_t step, const struct early_stop *stopping, struct error *err);

/* A loss that stands out (loss_spike.h), and the samples of its step. */
struct spike_metrics {
    const struct step_metrics *of;
    double mean, factor; /* mean: of the losses before it; NAN: there are none */
    int64_t num_samples;
    const int64_t *samples;   /* (num_samples) their numbers (token_stream.h) */
    const int *sources;       /* (num_samples) of a mixture */
    int num_sources;          /* 0: no mixture */
    const char *const *paths; /* (num_sources) */
};
enum status metrics_spike(struct metrics *metrics, const struct spike_metrics *spike, struct error *err);

/* Silent corruption that ends the run: what differs on a rank after `step`, or between two ranks. */
struct corruption_metrics {
    int64_t step;
    int rank, other;  /* other >= 0: one of the two ranks; the line has their numbers instead of rank and host */
    const char *host; /* of rank */
    const char *what, *tensor; /* tensor: or a unit; NULL: of none */
};
enum status metrics_corruption(struct metrics *metrics, const struct corruption_metrics *m, struct error *err);

/* A checkpoint: its bytes, the seconds that training waited for it, and those until it was whole. NAN: not known. */
enum status metrics_checkpoint(struct metrics *metrics, const char *folder, int64_t step, int64_t bytes,
                               double seconds_stalled, double seconds_total, struct error *err);
/* ranks: those that continue */
enum status metrics_resume(struct metrics *metrics, const char *folder, int64_t step, int ranks, struct error *err);

/* fsync, before a checkpoint is written that follows these lines. */
enum status metrics_flush(struct metrics *metrics, struct error *err);

/* ---- numbers of a step --------------------------------------------------- */

/* A row for each number of a step (struct step_metrics), in the line's order: also for monitors and ztrain report. */

/* clang-format off */
enum step_field_index {
    STEP_NUMBER, STEP_EPOCH, STEP_LOSS, STEP_GRAD_NORM, STEP_LR, STEP_LOSS_SCALE, STEP_SKIPPED, STEP_TOKENS,
    STEP_TARGETS, STEP_RATE, STEP_MFU, STEP_AUX_LOSS,
    STEP_REWARDS_CHOSEN, STEP_REWARDS_REJECTED, STEP_REWARDS_ACCURACIES, STEP_REWARDS_MARGINS, STEP_LOGPS_CHOSEN, STEP_LOGPS_REJECTED, STEP_KL,
    STEP_DEVICE, STEP_HOST, STEP_SECONDS /* and its parts: */, STEP_DATA,
    STEP_FORWARD, STEP_BACKWARD, STEP_REDUCE, STEP_OPTIMIZER, STEP_CHECKPOINT, STEP_ENTROPY, STEP_MAX_LOAD,
    STEP_FIELDS
};
/* clang-format on */

/* FLAG: bool; INTEGER: int64_t; else double. EXACT: 17 digits; ROUGH: 6; SHARE: 6, negative: unknown; SECONDS: %.6f. */
enum step_type { AS_FLAG, AS_INTEGER, AS_EXACT, AS_ROUGH, AS_SHARE, AS_SECONDS };

/* The runs that have a number. */
enum step_field_of { OF_ALL, OF_EXPERTS, OF_PREFERENCES, OF_LOGPS, OF_PAIRS, OF_KTO };

struct step_field {
    const char *object, *member; /* in the line; object "": the line's own */
    enum step_type type;
    size_t offset;   /* in struct step_metrics */
    bool curve;      /* the report draws it */
    int order;       /* from 1, among the scalars of the monitors; 0: none */
    const char *tag; /* there */
    enum step_field_of of;
};
enum { STEP_SCALARS = 15 };

extern const struct step_field step_fields[STEP_FIELDS];

/* Whether the step has it. */
bool step_field_is_of(enum step_field_index field, const struct step_metrics *metrics);

/* A number of the step. NAN: unknown. */
double step_field_value(const struct step_metrics *metrics, enum step_field_index field);

/* Fills load_entropy and max_load. */
void step_metrics_count_loads(struct step_metrics *metrics);

/* A named number of a step, as monitors write it. */
struct scalar {
    const char *tag; /* "Train/Samples/lr"; borrowed */
    double value;
};
