/* SPDX-License-Identifier: Apache-2.0 */
#include "core/metrics/metrics_summary.h"

#include "core/fsutil.h"
#include "core/metrics/metrics_reader.h"

struct summing {
    struct metrics_summary *s;
    int64_t tokens_before; /* up to s->last_step */
    struct {
        char name[sizeof((struct metrics_summary *)0)->best_checkpoint];
        int64_t step;
    } newest; /* of the checkpoints so far; name "": none */
};

static double summary_number(const struct metrics_reader *line, const char *name)
{
    const json_t *value = json_object_get(line->object, name);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void add_step(struct summing *sum, const struct metrics_reader *line)
{
    struct metrics_summary *s = sum->s;
    int64_t tokens = json_integer_value(json_object_get(line->object, "tokens"));
    double seconds = json_number_value(json_object_get(json_object_get(line->object, "seconds"), "step"));
    if (s->steps == 0) s->first_step = line->step;
    if (line->step > s->last_step + 1) s->missing += line->step - s->last_step - 1;
    /* lines before it are missing, or in another file */
    if (line->step > s->last_step + 1 || (s->steps == 0 && line->step > 1))
        sum->tokens_before =
            tokens - llround(seconds * json_number_value(json_object_get(line->object, "tokens_per_s")));
    s->steps++;
    s->last_step = line->step;
    s->tokens += tokens - sum->tokens_before;
    sum->tokens_before = tokens;
    s->seconds += seconds;
}

static void add_evaluation(struct summing *sum, const struct metrics_reader *line, enum eval_metric metric,
                           enum eval_mode mode)
{
    struct metrics_summary *s = sum->s;
    const double value = summary_number(line, eval_metric_name(metric)); /* null: there was nothing to predict */
    if (isnan(value) || (s->best_step && !eval_metric_better(metric, mode, value, s->best[metric]))) return;
    for (int i = 0; i < EVAL_METRIC_COUNT; i++)
        s->best[i] = summary_number(line, eval_metric_name((enum eval_metric)i));
    s->perplexity = summary_number(line, "perplexity");
    s->best_step = line->step;
    memcpy(s->best_checkpoint, sum->newest.name, sizeof s->best_checkpoint); /* of those before it the nearest */
    s->checkpoint_step = sum->newest.step;
}

/* Of two equally near checkpoints the later one counts, because it holds the evaluated weights. */
static void add_checkpoint(struct summing *sum, const struct metrics_reader *line, const char *checkpoints)
{
    struct metrics_summary *s = sum->s;
    const char *name = metrics_reader_folder(line, "checkpoint");
    char path[FS_PATH_MAX];
    if (strlen(name) >= sizeof sum->newest.name ||
        fs_join(path, checkpoints, name, STATUS_CHECKPOINT, NULL) != STATUS_OK || !fs_is_dir(path))
        return;
    if (line->step >= sum->newest.step) {
        strcpy(sum->newest.name, name);
        sum->newest.step = line->step;
    }
    if (s->best_step &&
        (!*s->best_checkpoint || llabs(line->step - s->best_step) <= llabs(s->checkpoint_step - s->best_step))) {
        strcpy(s->best_checkpoint, name);
        s->checkpoint_step = line->step;
    }
}

enum status metrics_summarise(const char *path, const char *checkpoints, enum eval_metric metric, enum eval_mode mode,
                              struct metrics_summary *summary, struct error *err)
{
    struct summing sum = {.s = summary};
    RELEASED(metrics_reader_close) struct metrics_reader line = {0};
    *summary = (struct metrics_summary){.starts = 1, .best = {NAN}};
    TRY(metrics_reader_open(&line, path, err));
    for (bool begins = true; metrics_reader_next(&line); begins = begins && !line.object) {
        if (json_object_get(line.object, "checkpoint"))
            add_checkpoint(&sum, &line, checkpoints);
        else if (json_object_get(line.object, "loss"))
            add_step(&sum, &line);
        else if (json_object_get(line.object, "eval_loss"))
            add_evaluation(&sum, &line, metric, mode);
        else if (json_object_get(line.object, "resumed_from") && begins)
            summary->last_step = line.step; /* the run branched off: steps before, and the start, are another's */
        else if (json_object_get(line.object, "resumed_from"))
            summary->starts++;
    }
    return metrics_reader_check(&line, err);
}
