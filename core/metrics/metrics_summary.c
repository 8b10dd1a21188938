/* metrics_summary.c: the file is read twice, line by line: the first pass finds the best evaluation, the second one the
 * checkpoint that is nearest to it. Memory does not grow with the file or with the number of starts. */
#include "core/metrics/metrics_summary.h"

#include "core/fsutil.h"
#include "core/memory.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t integer_of(const json_t *line, const char *name)
{
    return json_integer_value(json_object_get(line, name));
}

/* *tokens_before: the tokens up to s->last_step */
static void add_step(struct metrics_summary *s, const json_t *line, int64_t *tokens_before)
{
    int64_t step = integer_of(line, "step"), tokens = integer_of(line, "tokens");
    double seconds = json_number_value(json_object_get(json_object_get(line, "seconds"), "step"));
    if (s->steps == 0)
        s->first_step = step;
    if (step > s->last_step + 1)
        s->missing += step - s->last_step - 1;
    if (step > s->last_step + 1 || (s->steps == 0 && step > 1)) /* lines before it are missing, or in another file */
        *tokens_before = tokens - llround(seconds * json_number_value(json_object_get(line, "tokens_per_s")));
    s->steps++;
    s->last_step = step;
    s->tokens += tokens - *tokens_before;
    *tokens_before = tokens;
    s->seconds += seconds;
}

/* If this line begins the file, the run branched off: the steps before it, and the start, belong to another run. */
static void add_resume(struct metrics_summary *s, const json_t *line, bool begins_file)
{
    if (begins_file) {
        s->last_step = integer_of(line, "step");
        return;
    }
    s->starts++;
}

static double best_value(const struct metrics_summary *s, enum eval_metric metric)
{
    const double values[EVAL_METRIC_COUNT] = {s->best_loss, s->best_accuracy, s->best_f1};
    return values[metric];
}

static void add_evaluation(struct metrics_summary *s, const json_t *line, enum eval_metric metric, enum eval_mode mode)
{
    const json_t *value = json_object_get(line, eval_metric_name(metric)); /* null: there was nothing to predict */
    if (!json_is_number(value) ||
        (s->best_step && !eval_metric_better(metric, mode, json_number_value(value), best_value(s, metric))))
        return;
    s->best_loss = json_number_value(json_object_get(line, "eval_loss"));
    s->best_step = integer_of(line, "step");
    const json_t *accuracy = json_object_get(line, "accuracy");
    s->best_accuracy = json_is_number(accuracy) ? json_number_value(accuracy) : NAN;
    s->best_f1 = json_number_value(json_object_get(line, "f1"));
}

/* Of two equally near checkpoints the later one counts, because it holds the evaluated weights. */
static void add_checkpoint(struct metrics_summary *s, const json_t *line, const char *checkpoints)
{
    const char *folder = json_string_value(json_object_get(line, "checkpoint"));
    const char *name = folder ? fs_base_name(folder) : NULL;
    int64_t step = integer_of(line, "step");
    char path[FS_PATH_MAX];
    if (!name || strlen(name) >= sizeof s->best_checkpoint ||
        (*s->best_checkpoint && llabs(step - s->best_step) > llabs(s->checkpoint_step - s->best_step)) ||
        fs_join(path, checkpoints, name, STATUS_CHECKPOINT, NULL) != STATUS_OK || !fs_is_dir(path))
        return;
    snprintf(s->best_checkpoint, sizeof s->best_checkpoint, "%s", name);
    s->checkpoint_step = step;
}

enum status metrics_summarise(const char *path, const char *checkpoints, enum eval_metric metric, enum eval_mode mode,
                              struct metrics_summary *summary, struct error *err)
{
    *summary = (struct metrics_summary){.starts = 1, .best_loss = NAN};
    FILE *file;
    TRY(fs_open_stream(path, STATUS_CHECKPOINT, &file, err));
    char *text = NULL;
    size_t size = 0;
    ssize_t length;
    int64_t tokens_before = 0;
    bool begins_file = true;
    for (int pass = 0; pass < 2; pass++) {
        rewind(file);
        while ((length = memory_getline(&text, &size, file)) > 0) {
            static const char checkpoint_line[] = "{\"checkpoint\":";
            bool names_checkpoint = strncmp(text, checkpoint_line, sizeof checkpoint_line - 1) == 0;
            if (names_checkpoint != (pass == 1)) {
                begins_file = false;
                continue;
            }
            json_t *line = json_loadb(text, (size_t)length, 0, NULL);
            if (pass == 1)
                add_checkpoint(summary, line, checkpoints);
            else if (json_object_get(line, "loss"))
                add_step(summary, line, &tokens_before);
            else if (json_object_get(line, "eval_loss"))
                add_evaluation(summary, line, metric, mode);
            else if (json_object_get(line, "resumed_from"))
                add_resume(summary, line, begins_file);
            begins_file = begins_file && !line;
            json_decref(line);
        }
        if (!summary->best_step)
            break;
    }
    enum status status = STATUS_OK;
    if (ferror(file))
        status = error_set(err, STATUS_CHECKPOINT, "cannot read '%s': %s", path, strerror(errno));
    free(text);
    fclose(file);
    return status;
}
