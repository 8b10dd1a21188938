/* SPDX-License-Identifier: Apache-2.0 */
/* eval_metric.h: the results of an evaluation, by which checkpoints are chosen and a run may end early. */
#pragma once

#include "core/status.h"

/* REWARDS: the share of pairs whose chosen answer has the higher reward. */
enum eval_metric { EVAL_METRIC_LOSS, EVAL_METRIC_ACCURACY, EVAL_METRIC_F1, EVAL_METRIC_REWARDS, EVAL_METRIC_COUNT };

/* Which of two values is better. AUTO: the lower loss, the higher other metric. */
enum eval_mode { EVAL_MODE_AUTO, EVAL_MODE_MIN, EVAL_MODE_MAX };

/* What an evaluation gave. */
struct eval_scores {
    bool known;                       /* false: there was no evaluation */
    uint64_t data;                    /* a fingerprint of the samples: only scores of the same data compare */
    double values[EVAL_METRIC_COUNT]; /* NAN: it has no such metric, or the value is not finite */
};

/* "eval_loss", "accuracy", "f1", "rewards/accuracies", as in metrics.jsonl. */
const char *eval_metric_name(enum eval_metric metric);

/* The metric of this name (NULL is allowed); EVAL_METRIC_COUNT: there is none. */
enum eval_metric eval_metric_find(const char *name);

/* Whether value `a` is better than `b`. A NAN is worse than every number, and no better than another NAN. */
bool eval_metric_better(enum eval_metric metric, enum eval_mode mode, double a, double b);

/* The scores' value of a metric; NAN if there was no evaluation. */
double eval_scores_value(const struct eval_scores *scores, enum eval_metric metric);

struct class_scores {
    double accuracy; /* NAN without samples */
    double f1;       /* two classes: that of class 1; more: the mean over the classes that occur or are predicted */
};

/* Counts that ranks can add up, (3, classes): samples of the class and predicted as it; predicted as it; of it. */
enum { CLASS_COUNT_ROWS = 3 };

/* Counts one sample of class `label` < classes, predicted as the largest of logits (classes), the first of equals. */
void class_counts_add(double *counts, int64_t classes, const float *logits, int32_t label);

/* As scikit-learn's accuracy_score and f1_score (average "binary" or "macro", zero_division 0). */
struct class_scores class_scores_of(const double *counts, int64_t classes);

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
void early_stop_update(struct early_stop *state, const struct early_stop_rules *rules, const struct eval_scores *at);

bool early_stop_reached(const struct early_stop *state, const struct early_stop_rules *rules);
