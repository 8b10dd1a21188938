#include "core/metrics/early_stop.h"

#include <math.h>

static bool improves(const struct early_stop_rules *rules, double value, double best)
{
    bool falls = eval_metric_better(rules->metric, EVAL_MODE_AUTO, 0, 1); /* the lower value is the better one */
    double nearly = value + (falls ? rules->min_delta : -rules->min_delta);
    return eval_metric_better(rules->metric, EVAL_MODE_AUTO, nearly, best);
}

void early_stop_update(struct early_stop *state, const struct early_stop_rules *rules, const struct eval_scores *scores)
{
    if (!rules->patience) {
        *state = (struct early_stop){.begun = false};
        return;
    }
    double value = eval_scores_value(scores, rules->metric);
    if (!state->begun || state->metric != rules->metric || state->data != scores->data)
        *state = (struct early_stop){.begun = true, .metric = rules->metric, .data = scores->data, .best = NAN};
    if (improves(rules, value, state->best)) {
        state->best = value;
        state->evaluations = 0;
    } else
        state->evaluations++;
}

bool early_stop_reached(const struct early_stop *state, const struct early_stop_rules *rules)
{
    return rules->patience && state->begun && state->metric == rules->metric && state->evaluations >= rules->patience;
}
