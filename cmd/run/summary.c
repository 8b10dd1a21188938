#include "cmd/run/summary.h"

#include "cmd/run/console.h"
#include "core/log.h"
#include "core/metrics/metrics_summary.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* "step 29", "steps 1 to 400", "316 of 400 steps, whose lines metrics.jsonl has,", all with what they "took" */
static void name_steps(const struct metrics_summary *s, char *text, size_t size)
{
    if (s->missing)
        snprintf(text, size, "%" PRId64 " of %" PRId64 " steps, whose line%s metrics.jsonl has,", s->steps,
                 s->steps + s->missing, s->steps == 1 ? "" : "s");
    else if (s->steps == 1)
        snprintf(text, size, "step %" PRId64, s->last_step);
    else
        snprintf(text, size, "steps %" PRId64 " to %" PRId64, s->first_step, s->last_step);
}

/* As console_duration(), and a time that rounds to nothing in milliseconds. */
static void name_duration(double seconds, char *text, size_t size)
{
    if (seconds < 1)
        snprintf(text, size, "%.0f ms", seconds * 1e3);
    else
        console_duration(seconds, text, size);
}

static void log_time(const struct metrics_summary *s, double process_seconds)
{
    char which[128], steps[32], process[32], starts[64] = "";
    name_steps(s, which, sizeof which);
    name_duration(s->seconds, steps, sizeof steps);
    name_duration(process_seconds, process, sizeof process);
    if (s->starts > 1)
        snprintf(starts, sizeof starts, ", over %" PRId64 " starts", s->starts);
    log_info("time: %s took %s%s: %.0f tokens/s on average; this process ran for %s", which, steps, starts,
             (double)s->tokens / s->seconds, process);
}

static void log_best(const struct metrics_summary *s, const char *checkpoints)
{
    char where[4096];
    if (!*s->best_checkpoint)
        snprintf(where, sizeof where, "no checkpoint of this history is left");
    else if (s->checkpoint_step == s->best_step)
        snprintf(where, sizeof where, "its checkpoint is %s/%s", checkpoints, s->best_checkpoint);
    else
        snprintf(where, sizeof where, "its checkpoint is not kept, the nearest is %s/%s", checkpoints,
                 s->best_checkpoint);
    if (isnan(s->best_accuracy))
        log_info("best evaluation: after step %" PRId64 ", eval_loss %.4f, perplexity %.2f; %s", s->best_step,
                 s->best_loss, exp(s->best_loss), where);
    else
        log_info("best evaluation: after step %" PRId64 ", eval_loss %.4f, accuracy %.4f, f1 %.4f; %s", s->best_step,
                 s->best_loss, s->best_accuracy, s->best_f1, where);
}

void summary_log(const struct run_spec *spec, const char *metrics_path, const char *checkpoints, double process_seconds)
{
    struct metrics_summary summary;
    struct error err;
    if (metrics_summarise(metrics_path, checkpoints, spec->checkpoint.metric, spec->checkpoint.mode, &summary, &err) !=
        STATUS_OK) {
        log_warn("the run's summary: %s", err.text);
        return;
    }
    if (summary.steps && summary.seconds > 0)
        log_time(&summary, process_seconds);
    if (summary.best_step)
        log_best(&summary, checkpoints);
}
