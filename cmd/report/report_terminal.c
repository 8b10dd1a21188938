/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/report/report_views.h"

#include "core/memory.h"
#include "core/printable.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one run ------------------------------------------------------------- */

static enum ink report_state_ink(enum run_state state)
{
    return state == RUN_STOPPED ? INK_BAD : state == RUN_UNKNOWN ? INK_PLAIN : INK_GOOD;
}

/* text: owned. */
static void put_part(struct terminal_line *line, enum ink ink, char *text)
{
    terminal_line_put(line, ink, text);
    free(text);
}

static void put_title(FILE *out, const struct terminal_style *style, const struct watched_run *run)
{
    const struct run_metrics *h = &run->metrics;
    struct terminal_line line = {.out = out, .style = style};
    const char *name = PRINTABLE(run->name);
    terminal_put(out, style, INK_BOLD, terminal_width(name) > style->columns ? style->columns : 0, name);
    line.column = terminal_width(name);
    line.indent = 2;
    put_part(&line, report_state_ink(run->state), memory_printf("  %s", run_state_word(run->state)));
    if (!h->step_lines)
        terminal_line_put(&line, INK_PLAIN, ", no step yet");
    else
        put_part(&line, INK_PLAIN, memory_printf(", step %s", FIGURE(count, h->last_step)));
    if (h->step_lines && run->total_steps)
        put_part(&line, INK_PLAIN,
                 memory_printf(" of %s (%s)", FIGURE(count, run->total_steps),
                               FIGURE(percent, (double)h->last_step / (double)run->total_steps)));
    if (h->epoch)
        put_part(&line, INK_PLAIN, memory_printf(", epoch %" PRId64, h->epoch));
    fputs("\n", out);
}

enum { LABEL = 14 }; /* columns of a label and the blanks around it */

/* Begins a line after a label. */
static struct terminal_line put_label(FILE *out, const struct terminal_style *style, const char *label)
{
    fputs("  ", out);
    terminal_put(out, style, INK_DIM, LABEL - 2, label);
    return (struct terminal_line){.out = out, .style = style, .indent = LABEL, .column = LABEL};
}

/* text: owned. */
static void put_fact(FILE *out, const struct terminal_style *style, const char *label, char *text)
{
    struct terminal_line line = put_label(out, style, label);
    put_part(&line, INK_PLAIN, text);
    fputs("\n", out);
}

static void put_facts(FILE *out, const struct terminal_style *style, const struct watched_run *run)
{
    const struct run_metrics *h = &run->metrics;
    if (run->model.known)
        put_fact(out, style, "model",
                 memory_printf("%s, %s parameters, %s on %d rank%s", PRINTABLE(run->model.model_type),
                               FIGURE(si, (double)run->model.parameters), run->model.dtype, run->model.world,
                               run->model.world == 1 ? "" : "s"));
    if (h->step_lines)
        put_fact(out, style, "trained on",
                 memory_printf("%s tokens in %s of steps, %s tokens/s on average", FIGURE(si, (double)h->tokens),
                               FIGURE(time, h->seconds), FIGURE(si, timed_mean(&h->rate))));
    if (!h->best_step)
        return;
    const bool loss = h->metric == EVAL_METRIC_LOSS && h->best < 700 && isfinite(h->last_eval[EVAL_PERPLEXITY]);
    char *perplexity = loss ? memory_printf(" (perplexity %s)", FIGURE(plain, exp(h->best))) : memory_text("");
    put_fact(out, style, "best",
             memory_printf("%s %s after step %s%s", eval_metric_name(h->metric), FIGURE(plain, h->best),
                           FIGURE(count, h->best_step), perplexity));
    free(perplexity);
}

static void put_events(FILE *out, const struct terminal_style *style, const struct watched_run *run)
{
    static const char *const words[REPORT_EVENT_COUNT][2] = {[EVENT_CHECKPOINT] = {"checkpoint", "checkpoints"},
                                                             [EVENT_RESUME] = {"resume", "resumes"},
                                                             [EVENT_RESTART] = {"restart", "restarts"},
                                                             [EVENT_SKIPPED] = {"skipped step", "skipped steps"},
                                                             [EVENT_EPOCH] = {"epoch ended", "epochs ended"}};
    const char *before = "";
    char *text;
    size_t bytes;
    FILE *all = memory_stream(&text, &bytes);
    for (int k = 0; k <= EVENT_EPOCH; k++) {
        const int64_t n = run->metrics.events[k].total;
        if (!n)
            continue;
        fprintf(all, "%s%s %s", before, FIGURE(count, n), words[k][n > 1]);
        before = ", ";
    }
    fclose(all);
    if (*text)
        put_fact(out, style, "events", text);
    else
        free(text);
    const struct report_events *failures = &run->metrics.events[EVENT_FAILURE];
    if (failures->count && run->state == RUN_STOPPED)
        put_fact(out, style, "failed", memory_text(PRINTABLE(failures->items[failures->count - 1].text)));
    for (int i = 0; i < run->num_formers; i++) {
        const struct former_file *former = &run->formers[i];
        put_fact(out, style, i ? "" : "left out",
                 memory_printf("metrics.jsonl.%d: %s, up to step %s", former->number,
                               former->same_history ? "a part that a resume left" : "an earlier run",
                               FIGURE(count, former->last_step)));
    }
}

static const struct {
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

static void put_metrics(FILE *out, const struct terminal_style *style, const struct run_metrics *h)
{
    char text[FIGURE_MAX];
    if (!h->steps.count && !h->evals.count)
        return;
    fputs("\n  ", out);
    const bool extremes = style->columns >= 60;
    terminal_put(out, style, INK_DIM, 0,
                 extremes ? "                    last     lowest    highest\n" : "                    last\n");
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct thin *thin = rows[i].eval ? &h->evals : &h->steps;
        const struct thin_cell all = thin_total(thin, rows[i].series);
        if (!all.count && !all.bad)
            continue;
        fputs("  ", out);
        terminal_put(out, style, INK_PLAIN, 13, rows[i].label);
        terminal_put(out, style, INK_BOLD, -11,
                     rows[i].figure(rows[i].eval ? h->last_eval[rows[i].series] : h->last[rows[i].series], text));
        if (extremes) {
            terminal_put(out, style, INK_PLAIN, -11, rows[i].figure(all.count ? all.min : NAN, text));
            terminal_put(out, style, INK_PLAIN, -11, rows[i].figure(all.count ? all.max : NAN, text));
        }
        char *line =
            sparkline(thin, rows[i].series, style->columns - (extremes ? 51 : 29), rows[i].log_scale, style->utf8);
        fputs("  ", out);
        terminal_put(out, style, INK_LINE, 0, line);
        fputs("\n", out);
        free(line);
    }
}

static void put_time(FILE *out, const struct terminal_style *style, const struct run_metrics *h)
{
    const struct thin_cell step = thin_total(&h->steps, STEP_SECONDS), saves = thin_total(&h->steps, STEP_CHECKPOINT);
    const double all = step.sum + saves.sum;
    double rest = 1;
    if (all <= 0)
        return;
    fputs("\n", out);
    struct terminal_line line = put_label(out, style, "a step");
    put_part(&line, INK_PLAIN, memory_printf("%s s:", FIGURE(plain, all / (double)step.count)));
    for (int s = STEP_DATA; s <= STEP_CHECKPOINT; s++) {
        const struct thin_cell part = thin_total(&h->steps, s);
        if (part.count)
            put_part(&line, INK_PLAIN,
                     memory_printf(" %s %s,", step_fields[s].member, FIGURE(percent, part.sum / all)));
        rest -= part.sum / all;
    }
    put_part(&line, INK_PLAIN, memory_printf(" rest %s", FIGURE(percent, fmax(rest, 0))));
    fputs("\n", out);
}

/* A printable copy of a text, with blanks for its line ends and tabs. */
static char *report_one_line(const char *text)
{
    const size_t room = 4 * strlen(text) + 8; /* of \xNN for each byte */
    char *blank = memory_text(text), *buffer = memory_alloc(room);
    for (char *c = blank; (c = strpbrk(c, "\n\r\t"));)
        *c = ' ';
    char *line = memory_text(printable(blank, buffer, room));
    free(buffer);
    free(blank);
    return line;
}

/* A prompt and its continuation on one line. Where it has no room for both, the prompt loses its beginning, down to
 * half of the line, and then the continuation its end. */
static void put_sample(FILE *out, const struct terminal_style *style, int columns, const struct report_sample *sample)
{
    char *prompt = report_one_line(sample->prompt), *text = report_one_line(sample->text + (sample->text[0] == ' '));
    char *after = memory_printf(" %s %s", style->utf8 ? "→" : "->", text);
    const int left = columns - terminal_width(after), room = left > columns / 2 ? left : columns / 2;
    const bool cut = terminal_width(prompt) > room;
    char *line = cut ? memory_printf("%s%s%s", style->utf8 ? "…" : "~", terminal_tail(prompt, room - 1), after)
                     : memory_printf("%s%s", prompt, after);
    terminal_put(out, style, INK_PLAIN, terminal_width(line) > columns ? columns : 0, line);
    fputs("\n", out);
    free(line);
    free(after);
    free(text);
    free(prompt);
}

/* The samples of the newest evaluation. */
static void put_samples(FILE *out, const struct terminal_style *style, const struct run_metrics *h)
{
    const struct report_sample *last = NULL, *sample;
    for (int i = 0; (sample = report_sample_at(h, i)); i++)
        last = sample;
    if (last)
        fprintf(out, "\n  samples after step %s\n", FIGURE(count, last->step));
    for (int i = 0; last && (sample = report_sample_at(h, i)); i++) {
        if (sample->step != last->step)
            continue;
        fputs("    ", out);
        put_sample(out, style, style->columns - 4, sample);
    }
}

static void put_run(FILE *out, const struct terminal_style *style, const struct watched_run *run)
{
    put_title(out, style, run);
    put_facts(out, style, run);
    put_events(out, style, run);
    put_metrics(out, style, &run->metrics);
    put_time(out, style, &run->metrics);
    put_samples(out, style, &run->metrics);
}

/* ---- several runs -------------------------------------------------------- */

/* The fields of a run's row in the table. */
static const char *const heads[] = {"run",     "state",  "step",     "loss", "best eval",
                                    "at step", "tokens", "tokens/s", "mfu",  "time"};
enum { FIELDS = COUNT_OF(heads), FIELD_TEXT = 64 };
static const int spare[] = {8, 9, 6, 5, 7, 4}; /* left out where room is short: mfu first, then time, … */

static void fill_report_fields(const struct watched_run *run, char fields[FIELDS][FIELD_TEXT])
{
    const struct run_metrics *h = &run->metrics;
    const char *const texts[] = {
        PRINTABLE(run->name),
        run_state_word(run->state),
        FIGURE(count, h->last_step),
        FIGURE(plain, h->last[STEP_LOSS]),
        FIGURE(plain, h->best),
        h->best_step ? FIGURE(count, h->best_step) : "-",
        FIGURE(si, (double)h->tokens),
        FIGURE(si, timed_mean(&h->rate)),
        FIGURE(percent, timed_mean(&h->mfu)),
        FIGURE(time, h->seconds),
    };
    STATIC_ASSERT(COUNT_OF(texts) == FIELDS, "a field for each head");
    for (int f = 0; f < FIELDS; f++)
        snprintf(fields[f], FIELD_TEXT, "%s", texts[f]);
}

/* A row of the table: name and state set to the left, the others to the right; those of width 0 are left out. */
static void put_row(FILE *out, const struct terminal_style *style, enum ink ink, const int widths[FIELDS],
                    char fields[FIELDS][FIELD_TEXT])
{
    for (int f = 0; f < FIELDS; f++) {
        if (!widths[f])
            continue;
        fputs(f ? "  " : "", out);
        terminal_put(out, style, ink, f < 2 ? widths[f] : -widths[f], fields[f]);
    }
}

/* The widths of the table's fields, with 0 for those that the terminal has no room for. Returns their sum, with two
 * blanks for each. */
static int choose_report_widths(int columns, const struct watched_run *runs, int count, int widths[FIELDS])
{
    char fields[FIELDS][FIELD_TEXT];
    int all = 0;
    for (int f = 0; f < FIELDS; f++)
        widths[f] = terminal_width(heads[f]);
    for (int r = 0; r < count; r++) {
        fill_report_fields(&runs[r], fields);
        for (int f = 0; f < FIELDS; f++)
            widths[f] = terminal_width(fields[f]) > widths[f] ? terminal_width(fields[f]) : widths[f];
    }
    for (int f = 0; f < FIELDS; f++)
        all += widths[f] + 2;
    for (size_t i = 0; i < COUNT_OF(spare) && all - 2 > columns; i++) {
        all -= widths[spare[i]] + 2;
        widths[spare[i]] = 0;
    }
    const int over = all - 2 - columns, most = widths[0] > 8 ? widths[0] - 8 : 0; /* the name keeps 8 characters */
    const int cut = over < 0 ? 0 : over < most ? over : most;
    widths[0] -= cut;
    return all - cut;
}

static void put_table(FILE *out, const struct terminal_style *style, const struct watched_run *runs, int count)
{
    char fields[FIELDS][FIELD_TEXT];
    int widths[FIELDS];
    const int all = choose_report_widths(style->columns, runs, count, widths);
    for (int f = 0; f < FIELDS; f++)
        snprintf(fields[f], FIELD_TEXT, "%s", heads[f]);
    put_row(out, style, INK_DIM, widths, fields);
    fputs("\n", out);
    for (int r = 0; r < count; r++) {
        fill_report_fields(&runs[r], fields);
        put_row(out, style, INK_PLAIN, widths, fields);
        if (style->columns - all >= 8) {
            char *line = sparkline(&runs[r].metrics.steps, STEP_LOSS, style->columns - all, true, style->utf8);
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
        const char *value = key ? spec_pairs_find(runs[r].spec, key) : runs[r].name;
        fputs("  ", out);
        const char *text = value ? PRINTABLE(value) : "-";
        const bool fits = r + 1 == count && terminal_width(text) <= value_width; /* no blanks at the line's end */
        terminal_put(out, style, key ? INK_PLAIN : INK_DIM, fits ? 0 : value_width, text);
    }
    fputs("\n", out);
}

/* A key, and below it a line for each run, where the terminal has no room for values side by side. */
static void put_values_below(FILE *out, const struct terminal_style *style, const struct watched_run *runs, int count,
                             const char *key)
{
    terminal_put(out, style, INK_DIM, terminal_width(key) > style->columns ? style->columns : 0, PRINTABLE(key));
    for (int r = 0; r < count; r++) {
        const char *value = spec_pairs_find(runs[r].spec, key);
        struct terminal_line line = {.out = out, .style = style, .indent = 4};
        fputs("\n", out);
        put_part(&line, INK_PLAIN, memory_printf("  %s: %s", PRINTABLE(runs[r].name), value ? PRINTABLE(value) : "-"));
    }
    fputs("\n", out);
}

static void put_differences(FILE *out, const struct terminal_style *style, const struct watched_run *runs, int count)
{
    enum { LEAST_VALUE = 8, MOST_VALUE = 32, LEAST_KEY = 12, MOST_KEY = 40 };
    const struct spec_differences all = watched_runs_differences(runs, count);
    int key_width = LEAST_KEY;
    for (int i = 0; i < all.count; i++) {
        const int width = terminal_width(all.keys[i]);
        key_width = width > key_width ? width : key_width;
    }
    key_width = key_width > MOST_KEY ? MOST_KEY : key_width;
    const int room = (style->columns - key_width) / count - 2, value_width = room > MOST_VALUE ? MOST_VALUE : room;
    fputs("\n", out);
    if (!all.count)
        fputs("The runs' specs do not differ.\n", out);
    else if (room >= LEAST_VALUE)
        put_values(out, style, key_width, value_width, runs, count, NULL);
    for (int i = 0; i < all.count; i++) {
        if (room >= LEAST_VALUE)
            put_values(out, style, key_width, value_width, runs, count, all.keys[i]);
        else
            put_values_below(out, style, runs, count, all.keys[i]);
    }
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
