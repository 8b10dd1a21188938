/* SPDX-License-Identifier: Apache-2.0 */
/* run_metrics.h: what a metrics.jsonl tells of a run, thinned, in memory that does not grow with the file. */
#pragma once

#include "cmd/report/thin.h"
#include "core/metrics/metrics.h"

#include <sys/types.h>

enum {
    REPORT_BUCKETS = 2048,
    REPORT_EVENTS = 512,  /* of a kind; of more, every second, fourth, … is kept */
    REPORT_SAMPLES = 240, /* the newest ones */
    REPORT_TEXT = 2000    /* bytes of a sample's prompt and text */
};

/* The numbers of metrics.h, and the time of the steps so far. */
enum { STEP_TIME = STEP_FIELDS, STEP_SERIES };

/* The values of an evaluation, and where it lies on the axes. */
enum eval_series { EVAL_LOSS, EVAL_PERPLEXITY, EVAL_ACCURACY, EVAL_F1, EVAL_REWARDS, EVAL_VALUES };
enum { EVAL_TOKENS = EVAL_VALUES, EVAL_TIME, EVAL_SERIES };
extern const char *const eval_members[EVAL_VALUES]; /* in the line */

enum report_event_kind {
    EVENT_CHECKPOINT,
    EVENT_RESUME,
    EVENT_RESTART,
    EVENT_SKIPPED,
    EVENT_EPOCH,
    EVENT_EARLY,
    EVENT_FAILURE,
    REPORT_EVENT_COUNT
};
extern const char *const event_words[REPORT_EVENT_COUNT];

struct report_event {
    int64_t step, tokens;
    double seconds;
    char text[96]; /* a checkpoint's name, a restart's cause, …; "" */
};

struct report_events {
    struct report_event *items; /* (REPORT_EVENTS) owned; NULL: none */
    int count;
    int64_t total, stride; /* total: also those that were left out */
};

struct report_sample {
    int64_t step, number; /* number: which prompt, from 1 */
    char *prompt, *text;  /* owned; token ids where there is no text */
    bool ids;
};

/* A mean that counts each step by its seconds: of rates, what all steps did in all of their time. */
struct timed_mean {
    double sum, seconds;
};

struct run_metrics {
    char *path; /* of metrics.jsonl; owned */
    struct thin steps, evals;
    struct report_events events[REPORT_EVENT_COUNT];
    struct report_sample *samples; /* (REPORT_SAMPLES) owned, a ring of the newest */
    int64_t num_samples;           /* all of them */

    int64_t lines, damaged, first_damaged; /* lines; those that are not an object with a step; the first one's number */
    int64_t unordered;                     /* lines of steps that had come before; they are left out */
    bool torn;                             /* the last line has no end */

    int64_t step_lines, last_step, epoch, tokens, steps_per_epoch;
    double seconds;              /* of the steps, without evaluations and checkpoints */
    struct timed_mean rate, mfu; /* tokens/s, the share of the peak */
    double last[STEP_SERIES];    /* of the last step; NAN: it has none */
    json_t *load;                /* then, each expert's share of the choices; owned; NULL: there are no experts */
    double last_eval[EVAL_SERIES];
    int64_t last_eval_step; /* 0: none */
    enum eval_metric metric;
    enum eval_mode mode;
    double best;       /* NAN: there was no evaluation */
    int64_t best_step; /* the first that has it */

    dev_t device; /* the file that was read, and how far */
    ino_t inode;
    int64_t offset;
};

/* metric, mode: by which the best evaluation is chosen. path is copied. */
void run_metrics_init(struct run_metrics *metrics, const char *path, enum eval_metric metric, enum eval_mode mode);
void run_metrics_release(struct run_metrics *metrics);

/* Reads what was added since the last call, or a new file; *changed: any. STATUS_CHECKPOINT: it cannot be read. */
enum status run_metrics_read(struct run_metrics *metrics, bool *changed, struct error *err);

/* NAN: no step has the value and its time. */
double timed_mean(const struct timed_mean *mean);

/* The i-th of the samples that are kept, from the oldest; NULL: there are no more. */
const struct report_sample *report_sample_at(const struct run_metrics *metrics, int i);
