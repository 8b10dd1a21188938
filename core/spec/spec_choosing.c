/* spec_choosing.c: the rules of the keys that choose a checkpoint, or the run's end, by its evaluations. */
#include "core/spec/spec_keys.h"

/* A key that reads evaluations: it needs data to evaluate on if it is used, and in any case a metric that the task
 * has. */
static void check_metric(struct spec_context *ctx, const struct spec_full *full, const struct spec_node *root,
                         const char *key, bool used, const char *metric_key, enum eval_metric metric)
{
    const struct spec_node *node = spec_find(root, key), *named = spec_find(root, metric_key);
    if (used && !full->spec.data.validation.count)
        spec_error(
            ctx, node->key_pos,
            "'%s' needs evaluations, and data.validation is not set; hint: set it to a shard that is not in data.train",
            key);
    if (metric != EVAL_METRIC_LOSS && named && full->spec.model.task != TASK_SEQUENCE_CLASSIFICATION)
        spec_error(ctx, named->pos,
                   "'%s' %s is measured with model.task sequence_classification only; hint: use eval_loss", metric_key,
                   eval_metric_name(metric));
}

/* early_stopping without a patience would do nothing. */
static void check_patience(struct spec_context *ctx, const struct spec_node *root)
{
    static const char *const others[] = {"train.early_stopping.metric", "train.early_stopping.min_delta"};
    for (int i = 0; i < (int)(sizeof others / sizeof others[0]); i++) {
        const struct spec_node *node = spec_find(root, others[i]);
        if (node && node->kind != NODE_NULL && !spec_find(root, "train.early_stopping.patience"))
            spec_error(ctx, node->key_pos,
                       "'%s' needs train.early_stopping.patience: the number of evaluations without an improvement "
                       "after which the run ends",
                       others[i]);
    }
}

void spec_check_choosing(struct spec_context *ctx, const struct spec_full *full, const struct spec_node *root)
{
    const struct run_spec *spec = &full->spec;
    check_patience(ctx, root);
    check_metric(ctx, full, root, "train.early_stopping.patience", spec->train.early_stopping.patience > 0,
                 "train.early_stopping.metric", spec->train.early_stopping.metric);
    check_metric(ctx, full, root, "checkpoint.keep_best", spec->checkpoint.keep_best > 0, "checkpoint.metric",
                 spec->checkpoint.metric);
}
