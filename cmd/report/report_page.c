/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/report/report_views.h"

/* null: not finite. Whole numbers have no fraction, for the page's size. */
static json_t *page_real(double value)
{
    if (!isfinite(value)) return json_null();
    return value == floor(value) && fabs(value) < 1e6 ? json_integer((json_int_t)value) : json_real(value);
}

/* What of a bucket; MIN_AT, MAX_AT: how many steps after its first one an extreme is. */
enum part { MEAN, MIN, MAX, MIN_AT, MAX_AT };

/* A number of a series for each bucket. */
static json_t *page_values(const struct thin *thin, int series, enum part part)
{
    json_t *list = json_array();
    for (int b = 0; b < thin->count; b++) {
        const struct thin_cell *cell = thin_at(thin, b, series);
        const int64_t first = cell->count ? thin->buckets[b].first : 0; /* else the steps are 0, too */
        const double values[] = {
            [MEAN] = thin_mean(cell),
            [MIN] = cell->count ? cell->min : NAN,
            [MAX] = cell->count ? cell->max : NAN,
            [MIN_AT] = (double)(cell->min_step - first),
            [MAX_AT] = (double)(cell->max_step - first),
        };
        json_array_append_new(list, part < MIN_AT ? page_real(values[part]) : json_integer((json_int_t)values[part]));
    }
    return list;
}

/* The buckets; page_add_series() adds the series. */
static json_t *page_thin(const struct thin *thin, int tokens, int time)
{
    json_t *first = json_array(), *last = json_array();
    for (int b = 0; b < thin->count; b++) {
        json_array_append_new(first, json_integer(thin->buckets[b].first));
        json_array_append_new(last, json_integer(thin->buckets[b].last));
    }
    return json_pack("{sIsosososos{}}", "per", (json_int_t)thin->per, "first", first, "last", last, "tokens",
                     page_values(thin, tokens, MAX), "time", page_values(thin, time, MAX), "series");
}

/* A series: its means; of buckets with several rows the extremes, with places if drawn; [bucket, count] not finite. */
static void page_add_series(json_t *curves, const char *name, const struct thin *thin, int series, bool places)
{
    static const char *const names[] = {"mean", "low", "high", "low_at", "high_at"};
    const struct thin_cell all = thin_total(thin, series);
    const int count = thin->per == 1 ? 1 : places ? 5 : 3;
    if (!all.count && !all.bad) return;
    json_t *object = json_object(), *bad = json_array();
    for (int i = 0; i < count; i++) json_object_set_new(object, names[i], page_values(thin, series, (enum part)i));
    for (int b = 0; b < thin->count; b++)
        if (thin_at(thin, b, series)->bad)
            json_array_append_new(bad, json_pack("[iI]", b, (json_int_t)thin_at(thin, b, series)->bad));
    json_object_set_new(object, "bad", bad);
    json_object_set_new(json_object_get(curves, "series"), name, object);
}

/* ---- runs ---------------------------------------------------------------- */

static json_t *page_facts(const struct watched_run *run)
{
    const struct run_metrics *m = &run->metrics;
    const bool perplexity = m->metric == EVAL_METRIC_LOSS && isfinite(m->last_eval[EVAL_PERPLEXITY]);
    json_t *facts = json_pack(
        "{ssssss sIsIsIsI sosososo ssso sIsosIsI}", "name", PRINTABLE(run->name), "folder", PRINTABLE(run->folder),
        "state", run_state_words[run->state], "step", (json_int_t)m->last_step, "length", (json_int_t)run->total_steps,
        "epoch", (json_int_t)m->epoch, "trained_tokens", (json_int_t)m->tokens, "seconds", page_real(m->seconds),
        "rate", page_real(timed_mean(&m->rate)), "mfu", page_real(timed_mean(&m->mfu)), "loss",
        page_real(m->last[STEP_LOSS]), "metric", eval_metric_name(m->metric), "best", page_real(m->best), "best_step",
        (json_int_t)m->best_step, "perplexity", page_real(perplexity ? exp(m->best) : NAN), "damaged",
        (json_int_t)m->damaged, "unordered", (json_int_t)m->unordered);
    if (!run->model.known) return facts;
    json_object_set_new(facts, "parameters", json_integer(run->model.parameters));
    json_object_set_new(facts, "world", json_integer(run->model.world));
    json_object_set_new(facts, "model_type", json_string(run->model.model_type));
    json_object_set_new(facts, "dtype", json_string(run->model.dtype));
    return facts;
}

static json_t *page_run(const struct watched_run *run)
{
    const struct run_metrics *m = &run->metrics;
    json_t *object = page_facts(run), *formers = json_array(), *samples = json_array();
    for (const struct former_file *former = run->formers; former < run->formers + run->num_formers; former++)
        json_array_append_new(formers, json_pack("{sisIsb}", "number", former->number, "step",
                                                 (json_int_t)former->last_step, "same", (int)former->same_history));
    const struct report_sample *sample;
    for (int i = 0; (sample = report_sample_at(m, i)); i++)
        json_array_append_new(samples, json_pack("{sIsIsssssi}", "step", (json_int_t)sample->step, "number",
                                                 (json_int_t)sample->number, "prompt", sample->prompt, "text",
                                                 sample->text, "ids", (int)sample->ids));
    json_object_set(object, "load", m->load);
    json_t *totals = json_object(), *list = json_array();
    for (int k = 0; k < REPORT_EVENT_COUNT; k++) {
        json_object_set_new(totals, event_words[k], json_integer(m->events[k].total));
        for (int i = 0; i < m->events[k].count; i++) {
            const struct report_event *event = &m->events[k].items[i];
            json_array_append_new(list, json_pack("{sssssIsIso}", "kind", event_words[k], "text", event->text, "step",
                                                  (json_int_t)event->step, "tokens", (json_int_t)event->tokens, "time",
                                                  page_real(event->seconds)));
        }
    }
    json_t *steps = page_thin(&m->steps, STEP_TOKENS, STEP_TIME);
    for (int s = 0; s < STEP_FIELDS; s++)
        if (step_fields[s].curve) page_add_series(steps, step_fields[s].member, &m->steps, s, s < STEP_SECONDS);
    json_t *evals = page_thin(&m->evals, EVAL_TOKENS, EVAL_TIME);
    for (int s = 0; s < EVAL_VALUES; s++) page_add_series(evals, eval_members[s], &m->evals, s, true);
    json_auto_t *rest =
        json_pack("{sosososIsososo}", "formers", formers, "totals", totals, "events", list, "num_samples",
                  (json_int_t)m->num_samples, "samples", samples, "steps", steps, "evals", evals);
    json_object_update(object, rest);
    return object;
}

/* As text that may stand inside a script element. */
static void page_put_data(FILE *out, const struct watched_run *runs, int count, double reload)
{
    char made[64];
    const time_t now = time(NULL);
    struct tm utc;
    strftime(made, sizeof made, "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&now, &utc));
    RELEASED(string_list_release) struct string_list keys = watched_runs_differences(runs, count);
    json_t *list = json_array(), *differences = json_array(); /* [[key, the first run's value or null, …], …] */
    for (int r = 0; r < count; r++) json_array_append_new(list, page_run(&runs[r]));
    for (int i = 0; i < keys.count; i++) {
        json_t *row = json_pack("[s]", keys.items[i]);
        for (int r = 0; r < count; r++)
            json_array_append_new(row, json_pack("s?", spec_pairs_find(runs[r].spec, keys.items[i])));
        json_array_append_new(differences, row);
    }
    json_auto_t *data =
        json_pack("{sssososo}", "made", made, "reload", page_real(reload), "runs", list, "differences", differences);
    OWNED char *text = json_dumps(data, JSON_COMPACT | JSON_REAL_PRECISION(6));
    ASSERT(text); /* all texts are UTF-8 */
    for (const char *c = text; *c; c++)
        if (strchr("<>&\x7F", *c))
            fprintf(out, "\\u%04x", *c);
        else
            fputc(*c, out);
}

/* ---- the page ------------------------------------------------------------ */

/* The assembler puts the files into the program; their paths start at the source tree's root, where make runs. */
/* clang-format off */
#define EMBED(name)                                                                     \
    extern const char ztrain_page_##name[], ztrain_page_##name##_end[];                 \
    __asm__(".pushsection .rodata\n"                                                    \
            ".globl ztrain_page_" #name "\n.globl ztrain_page_" #name "_end\n"          \
            ".hidden ztrain_page_" #name "\n.hidden ztrain_page_" #name "_end\n"        \
            "ztrain_page_" #name ":\n.incbin \"cmd/report/page." #name "\"\n"           \
            "ztrain_page_" #name "_end:\n.popsection\n")
/* clang-format on */

EMBED(html);
EMBED(css);
EMBED(js);

static void page_put_text(FILE *out, const char *begin, const char *end)
{
    fwrite(begin, 1, (size_t)(end - begin), out);
}

/* Writes the page's frame from *at up to the mark, and moves *at after it. */
static void page_put_up_to(FILE *out, const char **at, const char *mark)
{
    const char *found = memmem(*at, (size_t)(ztrain_page_html_end - *at), mark, strlen(mark));
    ASSERT(found);
    page_put_text(out, *at, found);
    *at = found + strlen(mark);
}

enum status report_page(const char *path, struct watched_run *runs, int count, double reload, struct error *err)
{
    const char *at = ztrain_page_html;
    OWNED char *text = NULL;
    size_t bytes;
    for (int r = 0; r < count; r++) {
        const int share = PAGE_BUCKETS / count;
        thin_reduce(&runs[r].metrics.steps, share);
        thin_reduce(&runs[r].metrics.evals, share);
    }
    FILE *out = memory_stream(&text, &bytes);
    page_put_up_to(out, &at, "@STYLE@");
    page_put_text(out, ztrain_page_css, ztrain_page_css_end);
    page_put_up_to(out, &at, "@DATA@");
    page_put_data(out, runs, count, reload);
    page_put_up_to(out, &at, "@SCRIPT@");
    page_put_text(out, ztrain_page_js, ztrain_page_js_end);
    page_put_text(out, at, ztrain_page_html_end);
    fclose(out);
    return named_file_write(path, text, bytes, STATUS_CHECKPOINT, err);
}
