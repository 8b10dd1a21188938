/* SPDX-License-Identifier: Apache-2.0 */
#include "core/metrics/eval_metric.h"

const char *eval_metric_name(enum eval_metric metric)
{
    static const char *const names[EVAL_METRIC_COUNT] = {"eval_loss", "accuracy", "f1", "rewards/accuracies"};
    return names[metric];
}

enum eval_metric eval_metric_find(const char *name)
{
    int metric = 0;
    while (metric < EVAL_METRIC_COUNT && (!name || strcmp(name, eval_metric_name((enum eval_metric)metric)) != 0))
        metric++;
    return (enum eval_metric)metric;
}

bool eval_metric_better(enum eval_metric metric, enum eval_mode mode, double a, double b)
{
    if (isnan(a) || isnan(b)) return !isnan(a) && isnan(b);
    if (mode == EVAL_MODE_AUTO) mode = metric == EVAL_METRIC_LOSS ? EVAL_MODE_MIN : EVAL_MODE_MAX;
    return mode == EVAL_MODE_MIN ? a < b : a > b;
}

double eval_scores_value(const struct eval_scores *scores, enum eval_metric metric)
{
    return scores->known ? scores->values[metric] : NAN;
}

void class_counts_add(double *counts, int64_t classes, const float *logits, int32_t label)
{
    ASSERT(label >= 0 && label < classes);
    int64_t best = 0;
    for (int64_t i = 1; i < classes; i++)
        if (logits[i] > logits[best]) best = i;
    counts[label] += best == label;
    counts[classes + best]++;
    counts[2 * classes + label]++;
}

struct class_scores class_scores_of(const double *counts, int64_t classes)
{
    const double *right = counts, *predicted = counts + classes, *actual = counts + 2 * classes;
    double hits = 0, samples = 0, sum = 0, present = 0;
    for (int64_t i = 0; i < classes; i++) {
        hits += right[i];
        samples += actual[i];
        if (predicted[i] + actual[i] == 0) continue;
        sum += 2 * right[i] / (predicted[i] + actual[i]);
        present++;
    }
    struct class_scores scores = {.accuracy = samples > 0 ? hits / samples : NAN};
    if (classes == 2)
        scores.f1 = right[1] > 0 ? 2 * right[1] / (predicted[1] + actual[1]) : 0;
    else
        scores.f1 = present > 0 ? sum / present : 0;
    return scores;
}

void early_stop_update(struct early_stop *state, const struct early_stop_rules *rules, const struct eval_scores *scores)
{
    if (!rules->patience) {
        *state = (struct early_stop){.begun = false};
        return;
    }
    const double value = eval_scores_value(scores, rules->metric);
    const bool falls = eval_metric_better(rules->metric, EVAL_MODE_AUTO, 0, 1); /* the lower value is the better one */
    const double nearly = value + (falls ? rules->min_delta : -rules->min_delta);
    if (!state->begun || state->metric != rules->metric || state->data != scores->data)
        *state = (struct early_stop){.begun = true, .metric = rules->metric, .data = scores->data, .best = NAN};
    state->evaluations++;
    if (!eval_metric_better(rules->metric, EVAL_MODE_AUTO, nearly, state->best)) return;
    state->best = value;
    state->evaluations = 0;
}

bool early_stop_reached(const struct early_stop *state, const struct early_stop_rules *rules)
{
    return rules->patience && state->begun && state->metric == rules->metric && state->evaluations >= rules->patience;
}
