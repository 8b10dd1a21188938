/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/report/report_views.h"

/* text: owned. */
static void put_part(struct terminal_line *line, enum ink ink, char *text)
{
    terminal_line_put(line, ink, text);
    free(text);
}

static void put_title(const struct watched_run *run)
{
    const struct run_metrics *h = &run->metrics;
    struct terminal_line line = {.indent = 2};
    const char *name = PRINTABLE(run->name);
    terminal_put(INK_BOLD, terminal_width(name) > terminal.columns ? terminal.columns : 0, name);
    line.column = terminal_width(name);
    put_part(&line,
             run->state == RUN_STOPPED   ? INK_BAD
             : run->state == RUN_UNKNOWN ? INK_PLAIN
                                         : INK_GOOD,
             memory_printf("  %s", run_state_words[run->state]));
    if (!h->step_lines)
        terminal_line_put(&line, INK_PLAIN, ", no step yet");
    else
        put_part(&line, INK_PLAIN, memory_printf(", step %s", FIGURE(count, h->last_step)));
    if (h->step_lines && run->total_steps)
        put_part(&line, INK_PLAIN,
                 memory_printf(" of %s (%s)", FIGURE(count, run->total_steps),
                               FIGURE(percent, (double)h->last_step / (double)run->total_steps)));
    if (h->epoch) put_part(&line, INK_PLAIN, memory_printf(", epoch %" PRId64, h->epoch));
    putchar('\n');
}

enum { LABEL = 14 }; /* columns of a label and the blanks around it */

static struct terminal_line put_label(const char *label)
{
    fputs("  ", stdout);
    terminal_put(INK_DIM, LABEL - 2, label);
    return (struct terminal_line){.indent = LABEL, .column = LABEL};
}

/* text: owned. */
static void put_fact(const char *label, char *text)
{
    struct terminal_line line = put_label(label);
    put_part(&line, INK_PLAIN, text);
    putchar('\n');
}

static void put_facts(const struct watched_run *run)
{
    const struct run_metrics *h = &run->metrics;
    if (run->model.known)
        put_fact("model", memory_printf("%s, %s parameters, %s on %d rank%s", PRINTABLE(run->model.model_type),
                                        FIGURE(si, (double)run->model.parameters), run->model.dtype, run->model.world,
                                        PLURAL(run->model.world)));
    if (h->step_lines)
        put_fact("trained on",
                 memory_printf("%s tokens in %s of steps, %s tokens/s on average", FIGURE(si, (double)h->tokens),
                               FIGURE(time, h->seconds), FIGURE(si, timed_mean(&h->rate))));
    const size_t experts = json_array_size(h->load);
    double least = INFINITY;
    for (size_t e = 0; e < experts; e++) least = fmin(least, json_number_value(json_array_get(h->load, e)));
    if (experts)
        put_fact("last loads",
                 memory_printf("of %zu experts: %.3g %% to %.3g %%, even %.3g %%, entropy %s of %s, none dropped",
                               experts, 100 * least, 100 * h->last[STEP_MAX_LOAD], 100.0 / (double)experts,
                               FIGURE(plain, h->last[STEP_ENTROPY]), FIGURE(plain, log((double)experts))));
    if (!h->best_step) return;
    const bool loss = h->metric == EVAL_METRIC_LOSS && h->best < 700 && isfinite(h->last_eval[EVAL_PERPLEXITY]);
    OWNED char *perplexity = loss ? memory_printf(" (perplexity %s)", FIGURE(plain, exp(h->best))) : memory_text("");
    put_fact("best", memory_printf("%s %s after step %s%s", eval_metric_name(h->metric), FIGURE(plain, h->best),
                                   FIGURE(count, h->best_step), perplexity));
}

static void put_events(const struct watched_run *run)
{
    const char *before = "";
    OWNED char *text = NULL;
    FILE *all = memory_stream(&text, NULL);
    for (int k = 0; k <= EVENT_EPOCH; k++) {
        const int64_t n = run->metrics.events[k].total;
        if (!n) continue;
        fprintf(all, "%s%s %s%s%s", before, FIGURE(count, n), k == EVENT_EPOCH ? "epoch" : event_words[k],
                n > 1 ? "s" : "", k == EVENT_EPOCH ? " ended" : "");
        before = ", ";
    }
    fclose(all);
    if (*text) put_fact("events", TAKEN(text));
    const struct report_events *failures = &run->metrics.events[EVENT_FAILURE];
    if (failures->count && run->state == RUN_STOPPED)
        put_fact("failed", memory_text(PRINTABLE(failures->items[failures->count - 1].text)));
    for (int i = 0; i < run->num_formers; i++) {
        const struct former_file *former = &run->formers[i];
        put_fact(i ? "" : "left out",
                 memory_printf("metrics.jsonl.%d: %s, up to step %s", former->number,
                               former->same_history ? "a part that a resume left" : "an earlier run",
                               FIGURE(count, former->last_step)));
    }
}

static void put_sparkline(const struct thin *thin, int series, int columns, bool log_scale)
{
    OWNED char *line = sparkline(thin, series, columns, log_scale, terminal.utf8);
    fputs("  ", stdout);
    terminal_put(INK_LINE, 0, line);
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
    {"rewards/accuracies", true, EVAL_REWARDS, false, figure_percent},
    {"  of training", false, STEP_REWARDS_ACCURACIES, false, figure_percent},
    {"rewards/margins", false, STEP_REWARDS_MARGINS, false, figure_plain},
    {"logps/chosen", false, STEP_LOGPS_CHOSEN, false, figure_plain},
    {"logps/rejected", false, STEP_LOGPS_REJECTED, false, figure_plain},
    {"kl", false, STEP_KL, false, figure_plain},
    {"aux_loss", false, STEP_AUX_LOSS, false, figure_plain},
    {"load entropy", false, STEP_ENTROPY, false, figure_plain},
    {"largest load", false, STEP_MAX_LOAD, false, figure_percent},
    {"grad_norm", false, STEP_GRAD_NORM, true, figure_plain},
    {"lr", false, STEP_LR, false, figure_plain},
    {"tokens/s", false, STEP_RATE, false, figure_si},
    {"mfu", false, STEP_MFU, false, figure_percent},
    {"device memory", false, STEP_DEVICE, false, figure_bytes},
    {"host memory", false, STEP_HOST, false, figure_bytes},
};

static void put_metrics(const struct run_metrics *h)
{
    char text[FIGURE_MAX];
    if (!h->steps.count && !h->evals.count) return;
    fputs("\n  ", stdout);
    const bool extremes = terminal.columns >= 60;
    terminal_put(INK_DIM, 0,
                 extremes ? "                    last     lowest    highest\n" : "                    last\n");
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct thin *thin = rows[i].eval ? &h->evals : &h->steps;
        const struct thin_cell all = thin_total(thin, rows[i].series);
        if (!all.count && !all.bad) continue;
        fputs("  ", stdout);
        terminal_put(INK_PLAIN, 13, rows[i].label);
        terminal_put(INK_BOLD, -11,
                     rows[i].figure(rows[i].eval ? h->last_eval[rows[i].series] : h->last[rows[i].series], text));
        if (extremes) {
            terminal_put(INK_PLAIN, -11, rows[i].figure(all.count ? all.min : NAN, text));
            terminal_put(INK_PLAIN, -11, rows[i].figure(all.count ? all.max : NAN, text));
        }
        put_sparkline(thin, rows[i].series, terminal.columns - (extremes ? 51 : 29), rows[i].log_scale);
        putchar('\n');
    }
}

static void put_time(const struct run_metrics *h)
{
    const struct thin_cell step = thin_total(&h->steps, STEP_SECONDS), saves = thin_total(&h->steps, STEP_CHECKPOINT);
    const double all = step.sum + saves.sum;
    double rest = 1;
    if (all <= 0) return;
    putchar('\n');
    struct terminal_line line = put_label("a step");
    put_part(&line, INK_PLAIN, memory_printf("%s s:", FIGURE(plain, all / (double)step.count)));
    for (int s = STEP_DATA; s <= STEP_CHECKPOINT; s++) {
        const struct thin_cell part = thin_total(&h->steps, s);
        if (part.count)
            put_part(&line, INK_PLAIN,
                     memory_printf(" %s %s,", step_fields[s].member, FIGURE(percent, part.sum / all)));
        rest -= part.sum / all;
    }
    put_part(&line, INK_PLAIN, memory_printf(" rest %s", FIGURE(percent, fmax(rest, 0))));
    putchar('\n');
}

/* A printable copy of a text, with blanks for its line ends and tabs. */
static char *report_one_line(const char *text)
{
    const size_t room = 4 * strlen(text) + 8; /* of \xNN for each byte */
    OWNED char *blank = memory_text(text), *buffer = memory_alloc(room);
    for (char *c = blank; (c = strpbrk(c, "\n\r\t"));) *c = ' ';
    return memory_text(printable(blank, buffer, room));
}

/* A prompt and its continuation on one line. The prompt loses its beginning first, down to half of the line. */
static void put_sample(const struct report_sample *sample)
{
    const int columns = terminal.columns - 4;
    OWNED char *prompt = report_one_line(sample->prompt);
    OWNED char *text = report_one_line(sample->text + (sample->text[0] == ' '));
    OWNED char *after = memory_printf(" %s %s", terminal.utf8 ? "→" : "->", text);
    const int left = columns - terminal_width(after), room = left > columns / 2 ? left : columns / 2;
    const bool cut = terminal_width(prompt) > room;
    OWNED char *line = cut ? memory_printf("%s%s%s", terminal.utf8 ? "…" : "~", terminal_tail(prompt, room - 1), after)
                           : memory_printf("%s%s", prompt, after);
    fputs("    ", stdout);
    terminal_put(INK_PLAIN, terminal_width(line) > columns ? columns : 0, line);
    putchar('\n');
}

/* ---- several runs -------------------------------------------------------- */

static const char *const heads[] = {"run",     "state",  "step",     "loss", "best eval",
                                    "at step", "tokens", "tokens/s", "mfu",  "time"};
enum { FIELDS = COUNT_OF(heads), FIELD_TEXT = 64 };
static const int spare[] = {8, 9, 6, 5, 7, 4}; /* left out where room is short: mfu first, then time, … */

static void fill_report_fields(const struct watched_run *run, char fields[FIELDS][FIELD_TEXT])
{
    const struct run_metrics *h = &run->metrics;
    const char *const texts[] = {
        PRINTABLE(run->name),
        run_state_words[run->state],
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
    for (int f = 0; f < FIELDS; f++) snprintf(fields[f], FIELD_TEXT, "%s", texts[f]);
}

/* A row of the table: name and state set to the left, the others to the right; those of width 0 are left out. */
static void put_row(enum ink ink, const int widths[FIELDS], char fields[FIELDS][FIELD_TEXT])
{
    for (int f = 0; f < FIELDS; f++) {
        if (!widths[f]) continue;
        fputs(f ? "  " : "", stdout);
        terminal_put(ink, f < 2 ? widths[f] : -widths[f], fields[f]);
    }
}

/* The widths of the table's fields, 0 for those without room. Returns their sum, with two blanks for each. */
static int choose_report_widths(const struct watched_run *runs, int count, int widths[FIELDS])
{
    char fields[FIELDS][FIELD_TEXT];
    int all = 0;
    for (int f = 0; f < FIELDS; f++) widths[f] = terminal_width(heads[f]);
    for (int r = 0; r < count; r++) {
        fill_report_fields(&runs[r], fields);
        for (int f = 0; f < FIELDS; f++) widths[f] = (int)max64(widths[f], terminal_width(fields[f]));
    }
    for (int f = 0; f < FIELDS; f++) all += widths[f] + 2;
    for (size_t i = 0; i < COUNT_OF(spare) && all - 2 > terminal.columns; i++) {
        all -= widths[spare[i]] + 2;
        widths[spare[i]] = 0;
    }
    const int over = all - 2 - terminal.columns, most = widths[0] > 8 ? widths[0] - 8 : 0; /* the name keeps 8 */
    const int cut = over < 0 ? 0 : over < most ? over : most;
    widths[0] -= cut;
    return all - cut;
}

static void put_table(const struct watched_run *runs, int count)
{
    char fields[FIELDS][FIELD_TEXT];
    int widths[FIELDS];
    const int all = choose_report_widths(runs, count, widths);
    for (int f = 0; f < FIELDS; f++) snprintf(fields[f], FIELD_TEXT, "%s", heads[f]);
    put_row(INK_DIM, widths, fields);
    putchar('\n');
    for (int r = 0; r < count; r++) {
        fill_report_fields(&runs[r], fields);
        put_row(INK_PLAIN, widths, fields);
        if (terminal.columns - all >= 8) put_sparkline(&runs[r].metrics.steps, STEP_LOSS, terminal.columns - all, true);
        putchar('\n');
    }
}

static void put_values(int key_width, int value_width, const struct watched_run *runs, int count, const char *key)
{
    terminal_put(INK_DIM, key_width, key ? PRINTABLE(key) : "differences");
    for (int r = 0; r < count; r++) {
        const char *value = key ? spec_pairs_find(runs[r].spec, key) : runs[r].name;
        fputs("  ", stdout);
        const char *text = value ? PRINTABLE(value) : "-";
        const bool fits = r + 1 == count && terminal_width(text) <= value_width; /* no blanks at the line's end */
        terminal_put(key ? INK_PLAIN : INK_DIM, fits ? 0 : value_width, text);
    }
    putchar('\n');
}

/* A key, and below it a line for each run, where the terminal has no room for values side by side. */
static void put_values_below(const struct watched_run *runs, int count, const char *key)
{
    terminal_put(INK_DIM, terminal_width(key) > terminal.columns ? terminal.columns : 0, PRINTABLE(key));
    for (int r = 0; r < count; r++) {
        const char *value = spec_pairs_find(runs[r].spec, key);
        struct terminal_line line = {.indent = 4};
        putchar('\n');
        put_part(&line, INK_PLAIN, memory_printf("  %s: %s", PRINTABLE(runs[r].name), value ? PRINTABLE(value) : "-"));
    }
    putchar('\n');
}

static void put_differences(const struct watched_run *runs, int count)
{
    enum { LEAST_VALUE = 8, MOST_VALUE = 32, LEAST_KEY = 12, MOST_KEY = 40 };
    RELEASED(string_list_release) struct string_list all = watched_runs_differences(runs, count);
    int key_width = LEAST_KEY;
    for (int i = 0; i < all.count; i++) key_width = (int)max64(key_width, terminal_width(all.items[i]));
    key_width = (int)min64(key_width, MOST_KEY);
    const int room = (terminal.columns - key_width) / count - 2, value_width = room > MOST_VALUE ? MOST_VALUE : room;
    putchar('\n');
    if (!all.count)
        fputs("The runs' specs do not differ.\n", stdout);
    else if (room >= LEAST_VALUE)
        put_values(key_width, value_width, runs, count, NULL);
    for (int i = 0; i < all.count; i++) {
        if (room >= LEAST_VALUE)
            put_values(key_width, value_width, runs, count, all.items[i]);
        else
            put_values_below(runs, count, all.items[i]);
    }
}

void report_terminal(const struct watched_run *runs, int count)
{
    if (count > 1) {
        put_table(runs, count);
        put_differences(runs, count);
        return;
    }
    put_title(runs);
    put_facts(runs);
    put_events(runs);
    put_metrics(&runs->metrics);
    put_time(&runs->metrics);
    const struct report_sample *last = NULL, *sample;
    for (int i = 0; (sample = report_sample_at(&runs->metrics, i)); i++) last = sample;
    if (last) printf("\n  samples after step %s\n", FIGURE(count, last->step));
    for (int i = 0; last && (sample = report_sample_at(&runs->metrics, i)); i++)
        if (sample->step == last->step) put_sample(sample);
}
