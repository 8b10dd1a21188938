/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/report/run_metrics.h"

#include "core/metrics/metrics_reader.h"

/* More than any run has, and few enough for an int64_t: a damaged line may have any number. */
static const double MOST_TOKENS = 9e18, MOST_SECONDS = 1e15;

const char *const eval_members[] = {[EVAL_LOSS] = "eval_loss",
                                    [EVAL_PERPLEXITY] = "perplexity",
                                    [EVAL_ACCURACY] = "accuracy",
                                    [EVAL_F1] = "f1",
                                    [EVAL_REWARDS] = "rewards/accuracies"};
const char *const event_words[] = {
    [EVENT_CHECKPOINT] = "checkpoint", [EVENT_RESUME] = "resume",         [EVENT_RESTART] = "restart",
    [EVENT_SKIPPED] = "skipped step",  [EVENT_EPOCH] = "end of an epoch", [EVENT_EARLY] = "early stopping",
    [EVENT_FAILURE] = "failure"};

/* Sets up everything but path, metric and mode. */
static void begin_reading(struct run_metrics *metrics)
{
    *metrics =
        (struct run_metrics){.path = metrics->path, .metric = metrics->metric, .mode = metrics->mode, .best = NAN};
    thin_init(&metrics->steps, STEP_SERIES, REPORT_BUCKETS);
    thin_init(&metrics->evals, EVAL_SERIES, REPORT_BUCKETS);
    for (int s = 0; s < STEP_SERIES; s++) metrics->last[s] = NAN;
    for (int s = 0; s < EVAL_SERIES; s++) metrics->last_eval[s] = NAN;
}

void run_metrics_init(struct run_metrics *metrics, const char *path, enum eval_metric metric, enum eval_mode mode)
{
    *metrics = (struct run_metrics){.path = memory_text(path), .metric = metric, .mode = mode};
    begin_reading(metrics);
}

static void sample_release(struct report_sample *sample)
{
    free(sample->prompt);
    free(sample->text);
    *sample = (struct report_sample){.prompt = NULL};
}

static void forget_lines(struct run_metrics *metrics)
{
    thin_release(&metrics->steps);
    thin_release(&metrics->evals);
    json_decref(metrics->load);
    for (int k = 0; k < REPORT_EVENT_COUNT; k++) free(metrics->events[k].items);
    for (int i = 0; metrics->samples && i < REPORT_SAMPLES; i++) sample_release(&metrics->samples[i]);
    free(metrics->samples);
}

void run_metrics_release(struct run_metrics *metrics)
{
    forget_lines(metrics);
    free(metrics->path);
    *metrics = (struct run_metrics){.path = NULL};
}

/* Copies at most `room` - 1 bytes, and no half character of UTF-8. */
static void copy_metrics_text(char *out, size_t room, const char *text)
{
    size_t n = strlen(text);
    if (n >= room)
        for (n = room - 1; n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80;) n--;
    memcpy(out, text, n);
    out[n] = 0;
}

/* The value at `step` of a series that grows, in a bucket that has the step. */
static double metrics_value_at(const struct thin *steps, int bucket, int series, int64_t step)
{
    const struct thin_bucket *b = &steps->buckets[bucket];
    const struct thin_cell *cell = thin_at(steps, bucket, series);
    double part = b->last > b->first ? (double)(step - b->first) / (double)(b->last - b->first) : 1;
    return cell->min + fmax(0, fmin(part, 1)) * (cell->max - cell->min);
}

/* A checkpoint's line may follow those of later steps (decoupled): the event stands where its step was. */
static void place_event(const struct run_metrics *metrics, struct report_event *event)
{
    const struct thin *steps = &metrics->steps;
    int bucket = steps->count - 1;
    event->tokens = metrics->tokens;
    event->seconds = metrics->seconds;
    if (event->step >= metrics->last_step) return;
    while (bucket > 0 && steps->buckets[bucket].first > event->step) bucket--;
    if (bucket < 0 || steps->buckets[bucket].first > event->step) return;
    if (thin_at(steps, bucket, STEP_TOKENS)->count)
        event->tokens = (int64_t)metrics_value_at(steps, bucket, STEP_TOKENS, event->step);
    event->seconds = metrics_value_at(steps, bucket, STEP_TIME, event->step);
}

static void add_event(struct run_metrics *metrics, enum report_event_kind kind, int64_t step, const char *text)
{
    struct report_events *events = &metrics->events[kind];
    if (!events->items) {
        events->items = memory_zeroed(REPORT_EVENTS, sizeof *events->items);
        events->stride = 1;
    }
    if (events->count == REPORT_EVENTS && events->total % events->stride == 0) {
        for (int i = 0; 2 * i < REPORT_EVENTS; i++) events->items[i] = events->items[2 * i];
        events->count = REPORT_EVENTS / 2;
        events->stride *= 2;
    }
    if (events->total++ % events->stride) return;
    struct report_event *event = &events->items[events->count++];
    *event = (struct report_event){.step = step};
    place_event(metrics, event);
    copy_metrics_text(event->text, sizeof event->text, text ? text : "");
}

/* Values that no run has, as damaged lines may have them, do not count. */
static void timed_mean_add(struct timed_mean *mean, double value, double seconds)
{
    if (!isfinite(value) || fabs(value * seconds) > MOST_TOKENS || !(seconds > 0 && seconds < MOST_SECONDS)) return;
    mean->sum += value * seconds;
    mean->seconds += seconds;
}

double timed_mean(const struct timed_mean *mean)
{
    return mean->seconds > 0 ? mean->sum / mean->seconds : NAN;
}

/* values: (STEP_SERIES); NAN also for null. Returns the bits of those that are there; a loss without targets is not. */
static uint64_t metrics_step_values(const json_t *object, double *values)
{
    uint64_t present = 0;
    for (int s = 0; s < STEP_FIELDS; s++) {
        const struct step_field *field = &step_fields[s];
        const json_t *parent = *field->object ? json_object_get(object, field->object) : object;
        const json_t *value = json_object_get(parent, field->member);
        const bool is_number = json_is_number(value);
        values[s] = is_number ? json_number_value(value) : NAN;
        if (is_number || (json_is_null(value) && (s == STEP_LOSS || s == STEP_GRAD_NORM))) present |= 1ULL << s;
    }
    if (values[STEP_TARGETS] == 0 && isnan(values[STEP_LOSS])) present &= ~(1ULL << STEP_LOSS);
    return present;
}

static void take_step(struct run_metrics *metrics, const json_t *object, int64_t step)
{
    double values[STEP_SERIES];
    uint64_t present = metrics_step_values(object, values) | 1ULL << STEP_TIME;
    if (step <= metrics->last_step) {
        metrics->unordered++;
        return;
    }
    if (isfinite(values[STEP_SECONDS]) && values[STEP_SECONDS] > 0)
        metrics->seconds = fmin(metrics->seconds + values[STEP_SECONDS], MOST_SECONDS);
    values[STEP_TIME] = metrics->seconds;
    if (isfinite(values[STEP_TOKENS])) {
        values[STEP_TOKENS] = fmax(0, fmin(values[STEP_TOKENS], MOST_TOKENS));
        metrics->tokens = (int64_t)values[STEP_TOKENS];
    }
    timed_mean_add(&metrics->rate, values[STEP_RATE], values[STEP_SECONDS]);
    timed_mean_add(&metrics->mfu, values[STEP_MFU], values[STEP_SECONDS]);
    thin_add(&metrics->steps, step, values, present);
    memcpy(metrics->last, values, sizeof metrics->last);
    json_decref(metrics->load);
    metrics->load = json_incref(json_object_get(json_object_get(object, "experts"), "load"));
    metrics->step_lines++;
    metrics->last_step = step;
    metrics->epoch = json_integer_value(json_object_get(object, "epoch"));
    if (json_is_true(json_object_get(object, "skipped"))) add_event(metrics, EVENT_SKIPPED, step, NULL);
}

static void take_eval(struct run_metrics *metrics, const json_t *object, int64_t step)
{
    static const enum eval_series series[] = {EVAL_LOSS, EVAL_ACCURACY, EVAL_F1, EVAL_REWARDS};
    STATIC_ASSERT(COUNT_OF(series) == EVAL_METRIC_COUNT, "the metrics of eval_metric.h");
    double values[EVAL_SERIES];
    uint64_t present = 1ULL << EVAL_TOKENS | 1ULL << EVAL_TIME;
    for (int s = 0; s < EVAL_VALUES; s++) {
        const json_t *value = json_object_get(object, eval_members[s]);
        values[s] = json_is_number(value) ? json_number_value(value) : NAN;
        if (value) present |= 1ULL << s;
    }
    values[EVAL_TOKENS] = (double)metrics->tokens;
    values[EVAL_TIME] = metrics->seconds;
    if (step < metrics->last_eval_step) {
        metrics->unordered++;
        return;
    }
    thin_add(&metrics->evals, step, values, present);
    memcpy(metrics->last_eval, values, sizeof values);
    metrics->last_eval_step = step;
    const double value = values[series[metrics->metric]];
    if (isfinite(value) && eval_metric_better(metrics->metric, metrics->mode, value, metrics->best)) {
        metrics->best = value;
        metrics->best_step = step;
    }
}

/* The ids of a prompt or a sample without text, "17, 4, 99". */
static char *metrics_ids_text(const json_t *ids)
{
    char *text;
    size_t i;
    json_t *id;
    FILE *out = memory_stream(&text, NULL);
    json_array_foreach (ids, i, id)
        if (json_is_integer(id) && i < REPORT_TEXT / 8)
            fprintf(out, "%s%" JSON_INTEGER_FORMAT, i ? ", " : "", json_integer_value(id));
    fclose(out);
    return text;
}

static char *cut_metrics_text(const char *text)
{
    char cut[REPORT_TEXT + 1];
    copy_metrics_text(cut, sizeof cut, text);
    return memory_printf("%s%s", cut, strlen(cut) < strlen(text) ? "…" : "");
}

static void take_sample(struct run_metrics *metrics, const json_t *object, int64_t step)
{
    const json_t *text = json_object_get(object, "text"), *ids = json_object_get(object, "tokens");
    const char *prompt = json_string_value(json_object_get(object, "prompt"));
    if (!metrics->samples) metrics->samples = memory_zeroed(REPORT_SAMPLES, sizeof *metrics->samples);
    struct report_sample *sample = &metrics->samples[metrics->num_samples++ % REPORT_SAMPLES];
    sample_release(sample);
    sample->step = step;
    sample->number = json_integer_value(json_object_get(object, "sample"));
    sample->prompt = prompt ? cut_metrics_text(prompt) : metrics_ids_text(json_object_get(object, "prompt_tokens"));
    sample->ids = !json_is_string(text);
    sample->text = sample->ids ? metrics_ids_text(ids) : cut_metrics_text(json_string_value(text));
}

const struct report_sample *report_sample_at(const struct run_metrics *metrics, int i)
{
    int64_t kept = metrics->num_samples < REPORT_SAMPLES ? metrics->num_samples : REPORT_SAMPLES;
    return i < kept ? &metrics->samples[(metrics->num_samples - kept + i) % REPORT_SAMPLES] : NULL;
}

/* A restart after a failure, or the failure that no restart followed. */
static void take_failure(struct run_metrics *metrics, enum report_event_kind kind, const json_t *object, int64_t step)
{
    const char *cause = json_string_value(json_object_get(object, "cause"));
    OWNED char *text =
        memory_printf("exit code %" JSON_INTEGER_FORMAT "%s%s",
                      json_integer_value(json_object_get(object, "exit_code")), cause ? ": " : "", cause ? cause : "");
    add_event(metrics, kind, step, text);
}

/* Kinds of lines that this reader does not know are passed over. */
static void take_object(struct run_metrics *metrics, const json_t *object, int64_t step)
{
    const json_t *member;
    char text[64];
    if (json_object_get(object, "loss"))
        take_step(metrics, object, step);
    else if (json_object_get(object, "eval_loss"))
        take_eval(metrics, object, step);
    else if ((member = json_object_get(object, "epoch_end"))) {
        const int64_t ended = json_integer_value(member);
        if (ended > 0) metrics->steps_per_epoch = step / ended;
        snprintf(text, sizeof text, "epoch %" PRId64, ended);
        add_event(metrics, EVENT_EPOCH, step, text);
    } else if (json_is_string(member = json_object_get(object, "early_stop")))
        add_event(metrics, EVENT_EARLY, step, json_string_value(member));
    else if (json_is_string(member = json_object_get(object, "checkpoint")))
        add_event(metrics, EVENT_CHECKPOINT, step, basename(json_string_value(member)));
    else if (json_is_string(member = json_object_get(object, "resumed_from")))
        add_event(metrics, EVENT_RESUME, step, basename(json_string_value(member)));
    else if (json_object_get(object, "restart"))
        take_failure(metrics, EVENT_RESTART, object, step);
    else if (json_object_get(object, "gave_up")) /* where the steps have come to; `step` is that of a checkpoint */
        take_failure(metrics, EVENT_FAILURE, object, metrics->last_step);
    else if (json_object_get(object, "sample"))
        take_sample(metrics, object, step);
}

/* object: NULL where the line is not JSON. */
static void take_line(struct run_metrics *metrics, const json_t *object)
{
    const json_t *step = json_object_get(object, "step");
    metrics->lines++;
    if (json_is_integer(step) && json_integer_value(step) >= 0)
        take_object(metrics, object, json_integer_value(step));
    else if (!metrics->damaged++)
        metrics->first_damaged = metrics->lines;
}

enum status run_metrics_read(struct run_metrics *metrics, bool *changed, struct error *err)
{
    struct stat facts;
    RELEASED(metrics_reader_close) struct metrics_reader reader = {0};
    *changed = false;
    TRY(metrics_reader_open(&reader, metrics->path, err));
    if (fstat(fileno(reader.file), &facts))
        return error_system(err, STATUS_CHECKPOINT, errno, "cannot look at '%s'", metrics->path);
    const bool known = metrics->inode != 0;
    if (known &&
        (facts.st_dev != metrics->device || facts.st_ino != metrics->inode || facts.st_size < metrics->offset)) {
        forget_lines(metrics);
        begin_reading(metrics);
        *changed = true;
    }
    metrics->device = facts.st_dev;
    metrics->inode = facts.st_ino;
    const int64_t before = metrics->lines;
    metrics->torn = false;
    errno = 0;
    const bool seeks = fseeko(reader.file, metrics->offset, SEEK_SET) == 0; /* to the lines that are new */
    while (seeks && metrics_reader_next(&reader)) {
        metrics->torn = reader.text[reader.length - 1] != '\n';
        if (metrics->torn) break;
        metrics->offset += (int64_t)reader.length;
        take_line(metrics, reader.object);
    }
    *changed = *changed || metrics->lines != before || !known;
    return seeks ? metrics_reader_check(&reader, err) : STATUS_OK;
}
