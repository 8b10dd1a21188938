#include "cmd/report/report_terminal.h"

#include "cmd/report/figures.h"
#include "cmd/report/spec_differences.h"
#include "core/memory.h"
#include "core/printable.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one run ------------------------------------------------------------- */

static enum ink state_ink(enum run_state state)
{
    return state == RUN_STOPPED ? INK_BAD : state == RUN_UNKNOWN ? INK_PLAIN : INK_GOOD;
}

static void put_title(FILE *out, const struct terminal_style *style, const struct watched_run *run)
{
    const struct run_history *h = &run->history;
    terminal_put(out, style, INK_BOLD, 0, PRINTABLE(run->name));
    fputs("  ", out);
    terminal_put(out, style, state_ink(run->state), 0, run_state_word(run->state));
    if (!h->step_lines)
        fputs(", no step yet", out);
    else
        fprintf(out, ", step %s", FIGURE(count, h->last_step));
    if (h->step_lines && run->total_steps)
        fprintf(out, " of %s (%s)", FIGURE(count, run->total_steps),
                FIGURE(percent, (double)h->last_step / (double)run->total_steps));
    if (h->epoch)
        fprintf(out, ", epoch %" PRId64, h->epoch);
    fputs("\n", out);
}

static void put_label(FILE *out, const struct terminal_style *style, const char *label)
{
    fputs("  ", out);
    terminal_put(out, style, INK_DIM, 12, label);
}

static void put_model(FILE *out, const struct terminal_style *style, const struct watched_run *run)
{
    if (!run->model.known)
        return;
    put_label(out, style, "model");
    fprintf(out, "%s, %s parameters, %s on %d rank%s\n", PRINTABLE(run->model.model_type),
            FIGURE(si, (double)run->model.parameters), run->model.dtype, run->model.world,
            run->model.world == 1 ? "" : "s");
}

static void put_trained(FILE *out, const struct terminal_style *style, const struct run_history *h)
{
    struct thin_cell rate = thin_total(&h->steps, STEP_RATE);
    if (!h->step_lines)
        return;
    put_label(out, style, "trained on");
    fprintf(out, "%s tokens in %s of steps, %s tokens/s on average\n", FIGURE(si, (double)h->tokens),
            FIGURE(time, h->seconds), FIGURE(si, thin_mean(&rate)));
}

static void put_best(FILE *out, const struct terminal_style *style, const struct run_history *h)
{
    if (!h->best_step)
        return;
    put_label(out, style, "best");
    fprintf(out, "%s %s after step %s", eval_metric_name(h->metric), FIGURE(plain, h->best),
            FIGURE(count, h->best_step));
    if (h->metric == EVAL_METRIC_LOSS && h->best < 700 && isfinite(h->last_eval[EVAL_PERPLEXITY]))
        fprintf(out, " (perplexity %s)", FIGURE(plain, exp(h->best)));
    fputs("\n", out);
}

static void put_events(FILE *out, const struct terminal_style *style, const struct watched_run *run)
{
    static const char *const plurals[] = {"checkpoints", "resumes", "restarts", "skipped steps", "epochs ended", NULL};
    STATIC_ASSERT(COUNT_OF(plurals) == HISTORY_EVENT_COUNT, "each kind has its plural");
    const char *before = "";
    for (int k = 0; k < HISTORY_EVENT_COUNT; k++) {
        const int64_t n = run->history.events[k].total;
        if (!n || !plurals[k])
            continue;
        if (!*before)
            put_label(out, style, "events");
        fprintf(out, "%s%s %s", before, FIGURE(count, n),
                n > 1                ? plurals[k]
                : k == HISTORY_EPOCH ? "epoch ended"
                                     : history_event_word((enum history_event_kind)k));
        before = ", ";
    }
    if (*before)
        fputs("\n", out);
    for (int i = 0; i < run->num_formers; i++) {
        const struct former_file *former = &run->formers[i];
        put_label(out, style, i ? "" : "left out");
        fprintf(out, "metrics.jsonl.%d: %s, up to step %s\n", former->number,
                former->same_course ? "a part that a resume left" : "an earlier run", FIGURE(count, former->last_step));
    }
}

/* A row of the table of metrics. */
static const struct row {
    const char *label;
    bool eval;
    int series;
    bool log_scale;
    const char *(*figure)(double value, char out[FIGURE_MAX]);
} rows[] = {
    {"loss", false, STEP_LOSS, true, figure_plain},
    {"eval_loss", true, EVAL_LOSS, true, figure_plain},
    {"accuracy", true, EVAL_ACCURACY, false, figure_percent},
    {"f1", true, EVAL_F1, false, figure_plain},
    {"grad_norm", false, STEP_GRAD_NORM, true, figure_plain},
    {"lr", false, STEP_LR, false, figure_plain},
    {"tokens/s", false, STEP_RATE, false, figure_si},
    {"mfu", false, STEP_MFU, false, figure_percent},
    {"device memory", false, STEP_DEVICE, false, figure_bytes},
    {"host memory", false, STEP_HOST, false, figure_bytes},
};

static void put_metrics(FILE *out, const struct terminal_style *style, const struct run_history *h)
{
    char text[FIGURE_MAX];
    if (!h->steps.count && !h->evals.count)
        return;
    fputs("\n  ", out);
    terminal_put(out, style, INK_DIM, 0, "                    last     lowest    highest\n");
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct thin *thin = rows[i].eval ? &h->evals : &h->steps;
        const struct thin_cell all = thin_total(thin, rows[i].series);
        if (!all.count && !all.bad)
            continue;
        fputs("  ", out);
        terminal_put(out, style, INK_PLAIN, 13, rows[i].label);
        terminal_put(out, style, INK_BOLD, -11,
                     rows[i].figure(rows[i].eval ? h->last_eval[rows[i].series] : h->last[rows[i].series], text));
        terminal_put(out, style, INK_PLAIN, -11, rows[i].figure(all.count ? all.min : NAN, text));
        terminal_put(out, style, INK_PLAIN, -11, rows[i].figure(all.count ? all.max : NAN, text));
        char *line = sparkline(thin, rows[i].series, style->columns - 51, rows[i].log_scale, style->utf8);
        fputs("  ", out);
        terminal_put(out, style, INK_LINE, 0, line);
        fputs("\n", out);
        free(line);
    }
}

/* Prints a text (owned) after a blank, or on a new line if it does not fit. Returns the column after it. */
static int put_word(FILE *out, const struct terminal_style *style, int column, char *text)
{
    const int width = terminal_width(text);
    const bool fits = column + 1 + width <= style->columns;
    fprintf(out, "%s%s", fits ? " " : "\n              ", text);
    free(text);
    return (fits ? column + 1 : 14) + width;
}

/* Where a step's time goes, on average. */
static void put_time(FILE *out, const struct terminal_style *style, const struct run_history *h)
{
    static const struct {
        enum step_series series;
        const char *label;
    } parts[] = {{STEP_DATA, "data"},     {STEP_FORWARD, "forward"},     {STEP_BACKWARD, "backward"},
                 {STEP_REDUCE, "reduce"}, {STEP_OPTIMIZER, "optimizer"}, {STEP_CHECKPOINT, "checkpoint"}};
    const struct thin_cell step = thin_total(&h->steps, STEP_STEP), saves = thin_total(&h->steps, STEP_CHECKPOINT);
    const double all = step.sum + saves.sum;
    double rest = 1;
    if (all <= 0)
        return;
    fputs("\n", out);
    put_label(out, style, "a step");
    int column = 14 + fprintf(out, "%s s:", FIGURE(plain, all / (double)step.count));
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        const struct thin_cell part = thin_total(&h->steps, parts[i].series);
        if (part.count)
            column =
                put_word(out, style, column, memory_printf("%s %s,", parts[i].label, FIGURE(percent, part.sum / all)));
        rest -= part.sum / all;
    }
    put_word(out, style, column, memory_printf("rest %s\n", FIGURE(percent, fmax(rest, 0))));
}

/* A text on a line of its own, cut at its end. */
static void put_line(FILE *out, const struct terminal_style *style, int columns, const char *text)
{
    const char *safe = PRINTABLE(text);
    terminal_put(out, style, INK_PLAIN, terminal_width(safe) > columns ? columns : 0, safe);
    fputs("\n", out);
}

/* The samples of the newest evaluation. */
static void put_samples(FILE *out, const struct terminal_style *style, const struct run_history *h)
{
    const struct history_sample *last = NULL, *sample;
    for (int i = 0; (sample = history_sample_at(h, i)); i++)
        last = sample;
    if (last)
        fprintf(out, "\n  samples after step %s\n", FIGURE(count, last->step));
    for (int i = 0; last && (sample = history_sample_at(h, i)); i++) {
        if (sample->step != last->step)
            continue;
        char *text = memory_printf("%s %s %s", sample->prompt, style->utf8 ? "→" : "->",
                                   sample->text + (sample->text[0] == ' '));
        fputs("    ", out);
        put_line(out, style, style->columns - 4, text);
        free(text);
    }
}

static void put_run(FILE *out, const struct terminal_style *style, const struct watched_run *run)
{
    put_title(out, style, run);
    put_model(out, style, run);
    put_trained(out, style, &run->history);
    put_best(out, style, &run->history);
    put_events(out, style, run);
    put_metrics(out, style, &run->history);
    put_time(out, style, &run->history);
    put_samples(out, style, &run->history);
}

/* ---- several runs -------------------------------------------------------- */

enum { MOST_FIELDS = 12, FIELD_TEXT = 64 };

/* The fields of a run's row in the table. */
static const char *const heads[] = {"run",     "state",  "step",     "loss", "best eval",
                                    "at step", "tokens", "tokens/s", "mfu",  "time"};

static void fill_fields(const struct watched_run *run, char fields[][FIELD_TEXT])
{
    const struct run_history *h = &run->history;
    const struct thin_cell rate = thin_total(&h->steps, STEP_RATE), mfu = thin_total(&h->steps, STEP_MFU);
    const char *const texts[] = {
        PRINTABLE(run->name),
        run_state_word(run->state),
        FIGURE(count, h->last_step),
        FIGURE(plain, h->last[STEP_LOSS]),
        FIGURE(plain, h->best),
        h->best_step ? FIGURE(count, h->best_step) : "-",
        FIGURE(si, (double)h->tokens),
        FIGURE(si, thin_mean(&rate)),
        FIGURE(percent, thin_mean(&mfu)),
        FIGURE(time, h->seconds),
    };
    STATIC_ASSERT(COUNT_OF(texts) == COUNT_OF(heads) && COUNT_OF(heads) <= MOST_FIELDS, "a field for each head");
    for (size_t f = 0; f < COUNT_OF(texts); f++)
        snprintf(fields[f], FIELD_TEXT, "%s", texts[f]);
}

/* A row of a table whose first `left` fields are set to the left. */
static void put_row(FILE *out, const struct terminal_style *style, enum ink ink, const int *widths, int count, int left,
                    char fields[][FIELD_TEXT])
{
    for (int f = 0; f < count; f++) {
        fputs(f ? "  " : "", out);
        terminal_put(out, style, ink, f < left ? widths[f] : -widths[f], fields[f]);
    }
}

static void put_table(FILE *out, const struct terminal_style *style, const struct watched_run *runs, int count)
{
    char fields[MOST_FIELDS][FIELD_TEXT];
    int widths[MOST_FIELDS], all = 0;
    const int n = COUNT_OF(heads);
    for (int f = 0; f < n; f++)
        widths[f] = terminal_width(heads[f]);
    for (int r = 0; r < count; r++) {
        fill_fields(&runs[r], fields);
        for (int f = 0; f < n; f++)
            widths[f] = terminal_width(fields[f]) > widths[f] ? terminal_width(fields[f]) : widths[f];
    }
    for (int f = 0; f < n; f++)
        all += widths[f] + 2;
    for (int f = 0; f < n; f++)
        snprintf(fields[f], FIELD_TEXT, "%s", heads[f]);
    put_row(out, style, INK_DIM, widths, n, 2, fields);
    fputs("\n", out);
    for (int r = 0; r < count; r++) {
        fill_fields(&runs[r], fields);
        put_row(out, style, INK_PLAIN, widths, n, 2, fields);
        if (style->columns - all >= 8) {
            char *line = sparkline(&runs[r].history.steps, STEP_LOSS, style->columns - all, true, style->utf8);
            fputs("  ", out);
            terminal_put(out, style, INK_LINE, 0, line);
            free(line);
        }
        fputs("\n", out);
    }
}

/* A row of a key and one value for each run. */
static void put_values(FILE *out, const struct terminal_style *style, int key_width, int value_width,
                       const struct watched_run *runs, int count, const char *key)
{
    terminal_put(out, style, INK_DIM, key_width, key ? PRINTABLE(key) : "differences");
    for (int r = 0; r < count; r++) {
        const char *value = key ? spec_pairs_find(&runs[r].spec, key) : runs[r].name;
        fputs("  ", out);
        const char *text = value ? PRINTABLE(value) : "-";
        const bool fits = r + 1 == count && terminal_width(text) <= value_width; /* no blanks at the line's end */
        terminal_put(out, style, key ? INK_PLAIN : INK_DIM, fits ? 0 : value_width, text);
    }
    fputs("\n", out);
}

static void put_differences(FILE *out, const struct terminal_style *style, const struct watched_run *runs, int count)
{
    const struct spec_differences all = spec_differences(runs, count);
    int key_width = 12, value_width = 8;
    for (int i = 0; i < all.count; i++) {
        const int width = terminal_width(all.keys[i]);
        key_width = width > key_width ? width : key_width;
    }
    key_width = key_width > 40 ? 40 : key_width;
    if ((style->columns - key_width) / count - 2 > value_width)
        value_width = (style->columns - key_width) / count - 2;
    value_width = value_width > 32 ? 32 : value_width;
    fputs("\n", out);
    if (all.count)
        put_values(out, style, key_width, value_width, runs, count, NULL);
    else
        fputs("The runs' specs do not differ.\n", out);
    for (int i = 0; i < all.count; i++)
        put_values(out, style, key_width, value_width, runs, count, all.keys[i]);
    free(all.keys);
}

void report_terminal(FILE *out, const struct terminal_style *style, const struct watched_run *runs, int count)
{
    if (count == 1) {
        put_run(out, style, runs);
        return;
    }
    put_table(out, style, runs, count);
    put_differences(out, style, runs, count);
}
