#include "cmd/report/report_page.h"

#include "cmd/report/page_text.h"
#include "cmd/report/spec_differences.h"
#include "core/memory.h"
#include "core/named_file.h"
#include "core/printable.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- JSON ---------------------------------------------------------------- */

/* A text in UTF-8 as a string that may stand inside a script element. */
static void put_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < 0x20 || c == 0x7F || c == '<' || c == '>' || c == '&')
            fprintf(out, "\\u%04x", c);
        else
            fputc(c, out);
    }
    fputc('"', out);
}

/* "name":"text", followed by a comma. */
static void put_text(FILE *out, const char *name, const char *text)
{
    fprintf(out, "\"%s\":", name);
    put_string(out, text);
    fputc(',', out);
}

static void put_real(FILE *out, double value)
{
    if (isfinite(value))
        fprintf(out, "%.6g", value);
    else
        fputs("null", out);
}

static void put_member(FILE *out, const char *name, double value)
{
    fprintf(out, "\"%s\":", name);
    put_real(out, value);
    fputc(',', out);
}

static void put_integer(FILE *out, const char *name, int64_t value)
{
    fprintf(out, "\"%s\":%" PRId64 ",", name, value);
}

/* ---- curves -------------------------------------------------------------- */

static double cell_min(const struct thin_cell *cell)
{
    return cell->count ? cell->min : NAN;
}

static double cell_max(const struct thin_cell *cell)
{
    return cell->count ? cell->max : NAN;
}

/* "name":[…] of a series, a number for each bucket. */
static void put_array(FILE *out, const char *name, const struct thin *thin, int series,
                      double (*value)(const struct thin_cell *cell))
{
    fprintf(out, "\"%s\":[", name);
    for (int b = 0; b < thin->count; b++) {
        fputs(b ? "," : "", out);
        put_real(out, value(thin_at(thin, b, series)));
    }
    fputs("],", out);
}

/* "low_at":[…],"high_at":[…]: how many steps after its bucket's first one each extreme has its step. */
static void put_places(FILE *out, const struct thin *thin, int series)
{
    fputs("\"low_at\":[", out);
    for (int b = 0; b < thin->count; b++) {
        const struct thin_cell *cell = thin_at(thin, b, series);
        fprintf(out, "%s%" PRId64, b ? "," : "", cell->count ? cell->min_step - thin->buckets[b].first : 0);
    }
    fputs("],\"high_at\":[", out);
    for (int b = 0; b < thin->count; b++) {
        const struct thin_cell *cell = thin_at(thin, b, series);
        fprintf(out, "%s%" PRId64, b ? "," : "", cell->count ? cell->max_step - thin->buckets[b].first : 0);
    }
    fputs("],", out);
}

/* "bad":[[bucket,count],…], the values that are not finite. */
static void put_bad(FILE *out, const struct thin *thin, int series)
{
    const char *before = "";
    fputs("\"bad\":[", out);
    for (int b = 0; b < thin->count; b++) {
        const struct thin_cell *cell = thin_at(thin, b, series);
        if (!cell->bad)
            continue;
        fprintf(out, "%s[%d,%" PRId64 "]", before, b, cell->bad);
        before = ",";
    }
    fputs("]", out);
}

/* A series: its means, and where buckets hold several rows also the extremes, with their places if they are drawn. */
static void put_series(FILE *out, const char *name, const struct thin *thin, int series, bool places)
{
    const struct thin_cell all = thin_total(thin, series);
    if (!all.count && !all.bad)
        return;
    fprintf(out, "\"%s\":{", name);
    put_array(out, "mean", thin, series, thin_mean);
    if (thin->per > 1) {
        put_array(out, "low", thin, series, cell_min);
        put_array(out, "high", thin, series, cell_max);
        if (places)
            put_places(out, thin, series);
    }
    put_bad(out, thin, series);
    fputs("},", out);
}

static void put_axis(FILE *out, const struct thin *thin, int tokens, int time)
{
    fprintf(out, "\"per\":%" PRId64 ",\"first\":[", thin->per);
    for (int b = 0; b < thin->count; b++)
        fprintf(out, "%s%" PRId64, b ? "," : "", thin->buckets[b].first);
    fputs("],\"last\":[", out);
    for (int b = 0; b < thin->count; b++)
        fprintf(out, "%s%" PRId64, b ? "," : "", thin->buckets[b].last);
    fputs("],", out);
    put_array(out, "tokens", thin, tokens, cell_max);
    put_array(out, "time", thin, time, cell_max);
    fputs("\"series\":{", out);
}

/* Ends an object whose last member is followed by a comma. */
static void put_end(FILE *out)
{
    fputs("\"end\":0}", out);
}

static void put_curves(FILE *out, const struct run_metrics *h)
{
    fputs("\"steps\":{", out);
    put_axis(out, &h->steps, STEP_TOKENS, STEP_TIME);
    for (int s = STEP_LOSS; s < STEP_SERIES_COUNT; s++)
        put_series(out, step_series_name((enum step_series)s), &h->steps, s, s < STEP_STEP);
    put_end(out);
    fputs("},\"evals\":{", out);
    put_axis(out, &h->evals, EVAL_TOKENS, EVAL_TIME);
    for (int s = EVAL_LOSS; s < EVAL_SERIES_COUNT; s++)
        put_series(out, eval_series_name((enum eval_series)s), &h->evals, s, true);
    put_end(out);
    fputs("},", out);
}

/* ---- runs ---------------------------------------------------------------- */

static void put_facts(FILE *out, const struct watched_run *run)
{
    const struct run_metrics *h = &run->metrics;
    put_text(out, "name", PRINTABLE(run->name));
    put_text(out, "folder", PRINTABLE(run->folder));
    put_text(out, "state", run_state_word(run->state));
    put_integer(out, "step", h->last_step);
    put_integer(out, "length", run->total_steps);
    put_integer(out, "epoch", h->epoch);
    put_integer(out, "trained_tokens", h->tokens);
    put_member(out, "seconds", h->seconds);
    put_member(out, "rate", timed_mean(&h->rate));
    put_member(out, "mfu", timed_mean(&h->mfu));
    put_member(out, "loss", h->last[STEP_LOSS]);
    put_text(out, "metric", eval_metric_name(h->metric));
    put_member(out, "best", h->best);
    put_integer(out, "best_step", h->best_step);
    put_member(out, "perplexity",
               h->metric == EVAL_METRIC_LOSS && isfinite(h->last_eval[EVAL_PERPLEXITY]) ? exp(h->best) : NAN);
    put_integer(out, "damaged", h->damaged);
    put_integer(out, "unordered", h->unordered);
    if (!run->model.known)
        return;
    put_integer(out, "parameters", run->model.parameters);
    put_integer(out, "world", run->model.world);
    put_text(out, "model_type", run->model.model_type);
    put_text(out, "dtype", run->model.dtype);
}

static void put_formers(FILE *out, const struct watched_run *run)
{
    fputs("\"formers\":[", out);
    for (int i = 0; i < run->num_formers; i++)
        fprintf(out, "%s{\"number\":%d,\"step\":%" PRId64 ",\"same\":%s}", i ? "," : "", run->formers[i].number,
                run->formers[i].last_step, run->formers[i].same_history ? "true" : "false");
    fputs("],", out);
}

static void put_events(FILE *out, const struct run_metrics *h)
{
    const char *before = "";
    fputs("\"totals\":{", out);
    for (int k = 0; k < REPORT_EVENT_COUNT; k++)
        put_integer(out, report_event_word((enum report_event_kind)k), h->events[k].total);
    put_end(out);
    fputs(",\"events\":[", out);
    for (int k = 0; k < REPORT_EVENT_COUNT; k++)
        for (int i = 0; i < h->events[k].count; i++) {
            const struct report_event *event = &h->events[k].items[i];
            fprintf(out, "%s{", before);
            put_text(out, "kind", report_event_word((enum report_event_kind)k));
            put_text(out, "text", event->text);
            put_integer(out, "step", event->step);
            put_integer(out, "tokens", event->tokens);
            put_member(out, "time", event->seconds);
            put_end(out);
            before = ",";
        }
    fputs("],", out);
}

static void put_samples(FILE *out, const struct run_metrics *h)
{
    const struct report_sample *sample;
    put_integer(out, "num_samples", h->num_samples);
    fputs("\"samples\":[", out);
    for (int i = 0; (sample = report_sample_at(h, i)); i++) {
        fputs(i ? ",{" : "{", out);
        put_integer(out, "step", sample->step);
        put_integer(out, "number", sample->number);
        put_text(out, "prompt", sample->prompt);
        put_text(out, "text", sample->text);
        put_integer(out, "ids", sample->ids);
        put_end(out);
    }
    fputs("],", out);
}

static void put_run(FILE *out, const struct watched_run *run)
{
    fputc('{', out);
    put_facts(out, run);
    put_formers(out, run);
    put_events(out, &run->metrics);
    put_samples(out, &run->metrics);
    put_curves(out, &run->metrics);
    put_end(out);
}

/* [[key, the first run's value or null, …], …] */
static void put_differences(FILE *out, const struct watched_run *runs, int count)
{
    const struct spec_differences all = spec_differences(runs, count);
    fputs("\"differences\":[", out);
    for (int i = 0; i < all.count; i++) {
        fputs(i ? ",[" : "[", out);
        put_string(out, all.keys[i]);
        for (int r = 0; r < count; r++) {
            const char *value = spec_pairs_find(&runs[r].spec, all.keys[i]);
            fputc(',', out);
            if (value)
                put_string(out, value);
            else
                fputs("null", out);
        }
        fputc(']', out);
    }
    fputs("]", out);
    free(all.keys);
}

static void put_data(FILE *out, const struct watched_run *runs, int count, double reload)
{
    char made[64];
    const time_t now = time(NULL);
    struct tm utc;
    strftime(made, sizeof made, "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&now, &utc));
    fputc('{', out);
    put_text(out, "made", made);
    put_member(out, "reload", reload);
    fputs("\"runs\":[", out);
    for (int r = 0; r < count; r++) {
        fputs(r ? "," : "", out);
        put_run(out, &runs[r]);
    }
    fputs("],", out);
    put_differences(out, runs, count);
    fputc('}', out);
}

/* ---- the page ------------------------------------------------------------ */

/* Writes the text from *at up to the mark, and moves *at after it. */
static void put_up_to(FILE *out, const char **at, const char *end, const char *mark)
{
    const char *found = memmem(*at, (size_t)(end - *at), mark, strlen(mark));
    ASSERT(found);
    fwrite(*at, 1, (size_t)(found - *at), out);
    *at = found + strlen(mark);
}

static void put_file(FILE *out, enum page_file file)
{
    size_t bytes;
    const char *text = page_text(file, &bytes);
    fwrite(text, 1, bytes, out);
}

static void put_page(FILE *out, const struct watched_run *runs, int count, double reload)
{
    size_t bytes;
    const char *at = page_text(PAGE_HTML, &bytes), *end = at + bytes;
    put_up_to(out, &at, end, "@STYLE@");
    put_file(out, PAGE_CSS);
    put_up_to(out, &at, end, "@DATA@");
    put_data(out, runs, count, reload);
    put_up_to(out, &at, end, "@SCRIPT@");
    put_file(out, PAGE_JS);
    fwrite(at, 1, (size_t)(end - at), out);
}

enum status report_page(const char *path, struct watched_run *runs, int count, double reload, struct error *err)
{
    char *text;
    size_t bytes;
    for (int r = 0; r < count; r++) {
        const int share = PAGE_BUCKETS / count;
        thin_reduce(&runs[r].metrics.steps, share);
        thin_reduce(&runs[r].metrics.evals, share);
    }
    FILE *out = memory_stream(&text, &bytes);
    put_page(out, runs, count, reload);
    fclose(out);
    enum status status = named_file_write(path, text, bytes, STATUS_CHECKPOINT, err);
    free(text);
    return status;
}
