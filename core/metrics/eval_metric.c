#include "core/metrics/eval_metric.h"

#include <math.h>
#include <string.h>

const char *eval_metric_name(enum eval_metric metric)
{
    static const char *const names[EVAL_METRIC_COUNT] = {"eval_loss", "accuracy", "f1"};
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
    if (isnan(a) || isnan(b))
        return !isnan(a) && isnan(b);
    if (mode == EVAL_MODE_AUTO)
        mode = metric == EVAL_METRIC_LOSS ? EVAL_MODE_MIN : EVAL_MODE_MAX;
    return mode == EVAL_MODE_MIN ? a < b : a > b;
}

double eval_scores_value(const struct eval_scores *scores, enum eval_metric metric)
{
    return scores->known ? scores->values[metric] : NAN;
}
