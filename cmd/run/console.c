#include "cmd/run/console.h"

#include "core/log.h"
#include "core/metrics/step_fields.h"
#include "core/output.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

void console_init(struct console *console, bool silent, int64_t steps_per_print, int64_t total_steps, bool breakdown)
{
    *console = (struct console){
        .terminal = isatty(STDOUT_FILENO),
        .silent = silent,
        .breakdown = breakdown,
        .steps_per_print = steps_per_print,
        .total_steps = total_steps,
    };
}

void console_duration(double seconds, char *out, size_t size)
{
    int64_t s = seconds < 0 ? 0 : (int64_t)(seconds + 0.5);
    if (s >= 3600)
        snprintf(out, size, "%" PRId64 ":%02d:%02d", s / 3600, (int)(s / 60 % 60), (int)(s % 60));
    else
        snprintf(out, size, "%d:%02d", (int)(s / 60), (int)(s % 60));
}

/* Columns of stdout's terminal; INT_MAX if they are unknown. */
static int terminal_columns(void)
{
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : INT_MAX;
}

/* Renews the line. The terminal must not wrap it, or it could not be renewed: so it loses first the norm and the
 * rate, then its end. */
static void show_line(struct console *console, const char *step, const char *rates, const char *speed)
{
    int columns = terminal_columns() - 1;
    if ((int)(strlen(step) + strlen(rates) + strlen(speed)) > columns)
        rates = "";
    char line[300];
    snprintf(line, sizeof line, "%s%s%s", step, rates, speed);
    char text[sizeof line + 8];
    int n = snprintf(text, sizeof text, "\r\033[K%.*s", columns, line);
    output_put(OUTLET_STDOUT, text, (size_t)n, OUTPUT_RENEWED);
    console->line_open = true;
}

/* Where the step's time went: its parts, and the rest. Those of a graph are not timed. */
static void log_breakdown(const struct step_metrics *m)
{
    const bool graph = isnan(m->seconds.forward);
    char parts[256];
    int used = 0;
    double other = m->seconds.step;
    for (int f = STEP_DATA; f <= (graph ? STEP_DATA : STEP_OPTIMIZER); f++) {
        const double seconds = step_field_value(m, (enum step_field_index)f);
        used += snprintf(parts + used, sizeof parts - (size_t)used, "%s %.3f + ", step_fields[f].member, seconds);
        other -= seconds;
    }
    log_info("  seconds: step %.3f = %s%sother %.3f; checkpoint %.3f", m->seconds.step, parts,
             graph ? "a graph, whose parts are not timed, and " : "", other, m->seconds.checkpoint);
}

void console_step(struct console *console, const struct step_metrics *m)
{
    double seconds = m->seconds.step;
    console->smoothed_step_seconds =
        console->smoothed_step_seconds > 0 ? 0.9 * console->smoothed_step_seconds + 0.1 * seconds : seconds;
    if (console->silent)
        return;
    bool due = m->step % console->steps_per_print == 0 || m->step == console->total_steps || m->step == 1;
    if (!console->terminal && !due)
        return;

    char left[32], mfu[64] = "";
    console_duration(console->smoothed_step_seconds * (double)(console->total_steps - m->step), left, sizeof left);
    if (m->mfu >= 0)
        snprintf(mfu, sizeof mfu, "  mfu %.1f%%", 100 * m->mfu);
    if (m->mfu >= 0 && m->of_ceiling >= 0)
        snprintf(mfu, sizeof mfu, "  mfu %.1f%% (%.1f%% of measured)", 100 * m->mfu, 100 * m->of_ceiling);
    char step[96], rates[64], speed[192];
    snprintf(step, sizeof step, "step %" PRId64 "/%" PRId64 "  epoch %" PRId64 "  loss %.4f", m->step,
             console->total_steps, m->epoch, m->loss);
    snprintf(rates, sizeof rates, "  grad_norm %.3f  lr %.3e", m->grad_norm, m->lr);
    snprintf(speed, sizeof speed, "  %.0f tokens/s%s  %s left%s", m->tokens_per_s, mfu, left,
             m->skipped ? "  SKIPPED" : "");
    if (console->terminal) {
        show_line(console, step, rates, speed);
        if (due)
            log_debug("%s%s%s", step, rates, speed); /* the log file has plain lines in both cases */
        if (!(console->breakdown && due))
            return;
        console_break(console);
    } else {
        log_info("%s%s%s", step, rates, speed);
    }
    if (console->breakdown && due)
        log_breakdown(m);
}

void console_break(struct console *console)
{
    if (console->line_open) {
        output_put(OUTLET_STDOUT, "\n", 1, OUTPUT_LINE);
        console->line_open = false;
    }
}
