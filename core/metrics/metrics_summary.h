/* SPDX-License-Identifier: Apache-2.0 */
/* metrics_summary.h: summarises a metrics.jsonl: the whole run, over all of its starts. */
#pragma once

#include "core/metrics/eval_metric.h"

struct metrics_summary {
    int64_t steps, starts;          /* number of step lines; how often the run was started */
    int64_t missing;                /* steps up to last_step whose lines are missing */
    int64_t first_step, last_step;  /* of those lines; first_step is not 1 in a run that branched off */
    int64_t tokens;                 /* of the steps that have lines */
    double seconds;                 /* the time of those steps, without evaluations and checkpoints */
    double perplexity;              /* of the best evaluation; NAN: it has none */
    double best[EVAL_METRIC_COUNT]; /* of the best evaluation; NAN: it has no such metric, or nothing was evaluated */
    int64_t best_step;              /* the step after which it was first measured; 0: none */
    char best_checkpoint[256]; /* name of the checkpoint in the folder `checkpoints` that is nearest to it; "": none */
    int64_t checkpoint_step;   /* its step */
};

/* Reads `path` and skips damaged lines. metric, mode: by which the best evaluation is chosen. Only checkpoints that are
 * still in the folder `checkpoints` count. STATUS_CHECKPOINT: the file cannot be read. */
enum status metrics_summarise(const char *path, const char *checkpoints, enum eval_metric metric, enum eval_mode mode,
                              struct metrics_summary *summary, struct error *err);
