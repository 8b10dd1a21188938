/* early_stop.h: ends a run whose evaluations do not improve any more (train.early_stopping). */
#pragma once

#include "core/metrics/eval_metric.h"

#include <stdint.h>

struct early_stop_rules {
    int64_t patience; /* evaluations in a row without an improvement; 0: the run does not end early */
    enum eval_metric metric;
    double min_delta; /* an improvement by no more than this does not count */
};

/* The count so far, a part of a checkpoint's position. All zero: no evaluation yet. */
struct early_stop {
    bool begun;
    enum eval_metric metric; /* that `best` is of */
    uint64_t data;           /* likewise: eval_scores.data */
    double best;             /* the best value so far; NAN: no evaluation gave a number */
    int64_t evaluations;     /* since then */
};

/* Counts an evaluation. Another metric or other data begin anew; without patience nothing is counted. */
void early_stop_update(struct early_stop *state, const struct early_stop_rules *rules,
                       const struct eval_scores *scores);

bool early_stop_reached(const struct early_stop *state, const struct early_stop_rules *rules);
