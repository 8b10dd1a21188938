/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/run/console.h"

#include "core/metrics/metrics_summary.h"
#include "core/output.h"

#include <sys/ioctl.h>

void console_init(struct console *console, const struct run_spec *spec, bool silent, int64_t total_steps)
{
    *console = (struct console){
        .terminal = isatty(STDOUT_FILENO) && !spec->run.group, /* several adapters have lines of their own */
        .silent = silent,
        .spec = spec,
        .total_steps = total_steps,
    };
}

/* "1:02:03" or "2:03" */
static void console_duration(double seconds, char *out, size_t size)
{
    int64_t s = seconds < 0 ? 0 : (int64_t)(seconds + 0.5);
    if (s >= 3600)
        snprintf(out, size, "%" PRId64 ":%02d:%02d", s / 3600, (int)(s / 60 % 60), (int)(s % 60));
    else
        snprintf(out, size, "%d:%02d", (int)(s / 60), (int)(s % 60));
}

void console_step(struct console *console, const struct step_metrics *m)
{
    double seconds = m->seconds.step;
    console->smoothed_step_seconds =
        console->smoothed_step_seconds > 0 ? 0.9 * console->smoothed_step_seconds + 0.1 * seconds : seconds;
    if (console->silent) return;
    bool due = m->step % console->spec->steps_per_print == 0 || m->step == console->total_steps || m->step == 1;
    if (!console->terminal && !due) return;

    char left[32], mfu[64] = "", step[96], rates[64], speed[192];
    console_duration(console->smoothed_step_seconds * (double)(console->total_steps - m->step), left, sizeof left);
    if (m->mfu >= 0) snprintf(mfu, sizeof mfu, "  mfu %.1f%%", 100 * m->mfu);
    if (m->mfu >= 0 && m->of_ceiling >= 0)
        snprintf(mfu, sizeof mfu, "  mfu %.1f%% (%.1f%% of measured)", 100 * m->mfu, 100 * m->of_ceiling);
    snprintf(step, sizeof step, "step %" PRId64 "/%" PRId64 "  epoch %" PRId64 "  loss %.4f", m->step,
             console->total_steps, m->epoch, m->loss);
    snprintf(rates, sizeof rates, "  grad_norm %.3f  lr %.3e", m->grad_norm, m->lr);
    snprintf(speed, sizeof speed, "  %.0f tokens/s%s  %s left%s", m->tokens_per_s, mfu, left,
             m->skipped ? "  SKIPPED" : "");
    if (due) /* the log file has plain lines in both cases */
        (console->terminal ? log_debug : log_info)("%s%s%s", step, rates, speed);
    if (console->terminal) { /* it must not wrap the line, or it could not be renewed: norm and rate go, then the end */
        struct winsize size;
        const int columns = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col - 1 : INT_MAX - 1;
        if ((int)(strlen(step) + strlen(rates) + strlen(speed)) > columns) *rates = '\0';
        char line[sizeof step + sizeof rates + sizeof speed], text[sizeof line + 8];
        snprintf(line, sizeof line, "%s%s%s", step, rates, speed);
        const int n = snprintf(text, sizeof text, "\r\033[K%.*s", columns, line);
        output_put(OUTLET_STDOUT, text, (size_t)n, OUTPUT_RENEWED);
        console->line_open = true;
    }
    if (!console->spec->wall_clock_breakdown || !due) return;
    const bool graph = isnan(m->seconds.forward); /* whose parts are not timed */
    char parts[256];
    int used = 0;
    double other = m->seconds.step;
    for (int f = STEP_DATA; f <= (graph ? STEP_DATA : STEP_OPTIMIZER); f++) {
        const double part = step_field_value(m, (enum step_field_index)f);
        used += snprintf(parts + used, sizeof parts - (size_t)used, "%s %.3f + ", step_fields[f].member, part);
        other -= part;
    }
    console_break(console);
    log_info("  seconds: step %.3f = %s%sother %.3f; checkpoint %.3f", m->seconds.step, parts,
             graph ? "a graph, whose parts are not timed, and " : "", other, m->seconds.checkpoint);
}

void console_break(struct console *console)
{
    if (console->line_open) {
        output_put(OUTLET_STDOUT, "\n", 1, OUTPUT_LINE);
        console->line_open = false;
    }
}

/* A time that rounds to nothing in milliseconds. */
static void console_name_duration(double seconds, char *text, size_t size)
{
    if (seconds < 1)
        snprintf(text, size, "%.0f ms", seconds * 1e3);
    else
        console_duration(seconds, text, size);
}

void console_summary(const struct run_spec *spec, const char *metrics_path, const char *checkpoints,
                     double process_seconds)
{
    struct metrics_summary summary, *s = &summary;
    struct error err;
    char which[128], steps[32], process[32], starts[64] = "", where[4096];
    if (metrics_summarise(metrics_path, checkpoints, spec->checkpoint.metric, spec->checkpoint.mode, s, &err) !=
        STATUS_OK) {
        log_warn("the run's summary: %s", err.text);
        return;
    }
    if (s->missing)
        snprintf(which, sizeof which, "%" PRId64 " of %" PRId64 " steps, whose line%s metrics.jsonl has,", s->steps,
                 s->steps + s->missing, PLURAL(s->steps));
    else if (s->steps == 1)
        snprintf(which, sizeof which, "step %" PRId64, s->last_step);
    else
        snprintf(which, sizeof which, "steps %" PRId64 " to %" PRId64, s->first_step, s->last_step);
    console_name_duration(s->seconds, steps, sizeof steps);
    console_name_duration(process_seconds, process, sizeof process);
    if (s->starts > 1) snprintf(starts, sizeof starts, ", over %" PRId64 " starts", s->starts);
    if (s->steps && s->seconds > 0)
        log_info("time: %s took %s%s: %.0f tokens/s on average; this process ran for %s", which, steps, starts,
                 (double)s->tokens / s->seconds, process);
    if (!*s->best_checkpoint)
        snprintf(where, sizeof where, "no checkpoint of this history is left");
    else
        snprintf(where, sizeof where, "its checkpoint is %s%s/%s",
                 s->checkpoint_step == s->best_step ? "" : "not kept, the nearest is ", checkpoints,
                 s->best_checkpoint);
    const double *best = s->best;
    char more[96] = "";
    if (!isnan(s->perplexity))
        snprintf(more, sizeof more, ", perplexity %.2f", s->perplexity);
    else if (!isnan(best[EVAL_METRIC_REWARDS]))
        snprintf(more, sizeof more, ", rewards/accuracies %.4f", best[EVAL_METRIC_REWARDS]);
    else if (!isnan(best[EVAL_METRIC_ACCURACY]))
        snprintf(more, sizeof more, ", accuracy %.4f, f1 %.4f", best[EVAL_METRIC_ACCURACY], best[EVAL_METRIC_F1]);
    if (s->best_step)
        log_info("best evaluation: after step %" PRId64 ", eval_loss %.4f%s; %s", s->best_step, best[EVAL_METRIC_LOSS],
                 more, where);
}
