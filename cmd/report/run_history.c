#include "cmd/report/run_history.h"

#include "core/fsutil.h"
#include "core/io.h"
#include "core/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* More than any run has, and few enough for an int64_t: a damaged line may have any number. */
static const double MOST_TOKENS = 9e18, MOST_SECONDS = 1e15;

static const char *const eval_names[] = {
#define EVAL_NAME(name, member) member,
    EVAL_SERIES(EVAL_NAME)
#undef EVAL_NAME
};
static const char *const event_words[] = {
#define EVENT_WORD(name, word) word,
    HISTORY_EVENT_KINDS(EVENT_WORD)
#undef EVENT_WORD
};

const char *history_event_word(enum history_event_kind kind)
{
    return event_words[kind];
}

const char *eval_series_name(enum eval_series series)
{
    return eval_names[series];
}

void run_history_init(struct run_history *history, const char *path, enum eval_metric metric, enum eval_mode mode)
{
    *history = (struct run_history){.path = memory_text(path), .metric = metric, .mode = mode, .best = NAN};
    thin_init(&history->steps, STEP_SERIES_COUNT, HISTORY_BUCKETS);
    thin_init(&history->evals, EVAL_SERIES_COUNT, HISTORY_BUCKETS);
    for (int s = 0; s < STEP_SERIES_COUNT; s++)
        history->last[s] = NAN;
    for (int s = 0; s < EVAL_SERIES_COUNT; s++)
        history->last_eval[s] = NAN;
}

static void sample_release(struct history_sample *sample)
{
    free(sample->prompt);
    free(sample->text);
    *sample = (struct history_sample){.prompt = NULL};
}

void run_history_release(struct run_history *history)
{
    thin_release(&history->steps);
    thin_release(&history->evals);
    for (int k = 0; k < HISTORY_EVENT_COUNT; k++)
        free(history->events[k].items);
    for (int i = 0; history->samples && i < HISTORY_SAMPLES; i++)
        sample_release(&history->samples[i]);
    free(history->samples);
    free(history->path);
    *history = (struct run_history){.path = NULL};
}

/* ---- lines --------------------------------------------------------------- */

/* Copies at most `room` - 1 bytes, and no half character of UTF-8. */
static void copy_text(char *out, size_t room, const char *text)
{
    size_t n = strlen(text);
    if (n >= room)
        for (n = room - 1; n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80;)
            n--;
    memcpy(out, text, n);
    out[n] = 0;
}

/* The value at `step` of a series that grows, in a bucket that has the step. */
static double value_at(const struct thin *steps, int bucket, enum step_series series, int64_t step)
{
    const struct thin_bucket *b = &steps->buckets[bucket];
    const struct thin_cell *cell = thin_at(steps, bucket, series);
    double part = b->last > b->first ? (double)(step - b->first) / (double)(b->last - b->first) : 1;
    return cell->min + fmax(0, fmin(part, 1)) * (cell->max - cell->min);
}

/* A checkpoint's line may follow those of later steps (checkpoint.writer.decoupled): the event is placed where its step
 * was, within a bucket as if the steps were alike. */
static void place_event(const struct run_history *history, struct history_event *event)
{
    const struct thin *steps = &history->steps;
    int bucket = steps->count - 1;
    event->tokens = history->tokens;
    event->seconds = history->seconds;
    if (event->step >= history->last_step)
        return;
    while (bucket > 0 && steps->buckets[bucket].first > event->step)
        bucket--;
    if (bucket < 0 || steps->buckets[bucket].first > event->step)
        return;
    if (thin_at(steps, bucket, STEP_TOKENS)->count)
        event->tokens = (int64_t)value_at(steps, bucket, STEP_TOKENS, event->step);
    event->seconds = value_at(steps, bucket, STEP_TIME, event->step);
}

static void add_event(struct run_history *history, enum history_event_kind kind, int64_t step, const char *text)
{
    struct history_events *events = &history->events[kind];
    if (!events->items) {
        events->items = memory_zeroed(HISTORY_EVENTS, sizeof *events->items);
        events->stride = 1;
    }
    if (events->total++ % events->stride)
        return;
    if (events->count == HISTORY_EVENTS) {
        for (int i = 0; 2 * i < HISTORY_EVENTS; i++)
            events->items[i] = events->items[2 * i];
        events->count = HISTORY_EVENTS / 2;
        events->stride *= 2;
        if ((events->total - 1) % events->stride)
            return;
    }
    struct history_event *event = &events->items[events->count++];
    *event = (struct history_event){.step = step};
    place_event(history, event);
    copy_text(event->text, sizeof event->text, text ? text : "");
}

/* Values that no run has, as damaged lines may have them, do not count. */
static void timed_mean_add(struct timed_mean *mean, double value, double seconds)
{
    if (!isfinite(value) || fabs(value * seconds) > MOST_TOKENS || !(seconds > 0 && seconds < MOST_SECONDS))
        return;
    mean->sum += value * seconds;
    mean->seconds += seconds;
}

double timed_mean(const struct timed_mean *mean)
{
    return mean->seconds > 0 ? mean->sum / mean->seconds : NAN;
}

static void take_step(struct run_history *history, struct step_line *line)
{
    if (line->step <= history->last_step) {
        history->unordered++;
        return;
    }
    if (isfinite(line->values[STEP_STEP]) && line->values[STEP_STEP] > 0)
        history->seconds = fmin(history->seconds + line->values[STEP_STEP], MOST_SECONDS);
    line->values[STEP_TIME] = history->seconds;
    line->present |= 1ULL << STEP_TIME;
    if (isfinite(line->values[STEP_TOKENS])) {
        line->values[STEP_TOKENS] = fmax(0, fmin(line->values[STEP_TOKENS], MOST_TOKENS));
        history->tokens = (int64_t)line->values[STEP_TOKENS];
    }
    timed_mean_add(&history->rate, line->values[STEP_RATE], line->values[STEP_STEP]);
    timed_mean_add(&history->mfu, line->values[STEP_MFU], line->values[STEP_STEP]);
    thin_add(&history->steps, line->step, line->values, line->present);
    memcpy(history->last, line->values, sizeof history->last);
    history->step_lines++;
    history->last_step = line->step;
    history->epoch = line->epoch;
    if (line->skipped)
        add_event(history, HISTORY_SKIPPED, line->step, NULL);
}

static void take_best(struct run_history *history, const double *values, int64_t step)
{
    static const enum eval_series series[] = {EVAL_LOSS, EVAL_ACCURACY, EVAL_F1};
    STATIC_ASSERT(COUNT_OF(series) == EVAL_METRIC_COUNT, "the metrics of eval_metric.h");
    double value = values[series[history->metric]];
    if (isfinite(value) && eval_metric_better(history->metric, history->mode, value, history->best)) {
        history->best = value;
        history->best_step = step;
    }
}

static void take_eval(struct run_history *history, const json_t *object, int64_t step)
{
    double values[EVAL_SERIES_COUNT];
    uint64_t present = 1ULL << EVAL_TOKENS | 1ULL << EVAL_TIME;
    for (int s = 0; s < EVAL_SERIES_COUNT; s++) {
        const json_t *value = *eval_names[s] ? json_object_get(object, eval_names[s]) : NULL;
        values[s] = json_is_number(value) ? json_number_value(value) : NAN;
        if (value)
            present |= 1ULL << s;
    }
    values[EVAL_TOKENS] = (double)history->tokens;
    values[EVAL_TIME] = history->seconds;
    if (step < history->last_eval_step) {
        history->unordered++;
        return;
    }
    thin_add(&history->evals, step, values, present);
    memcpy(history->last_eval, values, sizeof values);
    history->last_eval_step = step;
    take_best(history, values, step);
}

/* The ids of a prompt or a sample without text, "17, 4, 99". */
static char *ids_text(const json_t *ids)
{
    char *text;
    size_t bytes, i;
    json_t *id;
    FILE *out = memory_stream(&text, &bytes);
    json_array_foreach(ids, i, id) if (json_is_integer(id) && i < HISTORY_TEXT / 8)
        fprintf(out, "%s%" JSON_INTEGER_FORMAT, i ? ", " : "", json_integer_value(id));
    fclose(out);
    return text;
}

static char *cut_text(const char *text)
{
    char cut[HISTORY_TEXT + 1];
    copy_text(cut, sizeof cut, text);
    return memory_printf("%s%s", cut, strlen(cut) < strlen(text) ? "…" : "");
}

static void take_sample(struct run_history *history, const json_t *object, int64_t step)
{
    const json_t *text = json_object_get(object, "text"), *ids = json_object_get(object, "tokens");
    const char *prompt = json_string_value(json_object_get(object, "prompt"));
    if (!history->samples)
        history->samples = memory_zeroed(HISTORY_SAMPLES, sizeof *history->samples);
    struct history_sample *sample = &history->samples[history->num_samples++ % HISTORY_SAMPLES];
    sample_release(sample);
    sample->step = step;
    sample->number = json_integer_value(json_object_get(object, "sample"));
    sample->prompt = prompt ? cut_text(prompt) : ids_text(json_object_get(object, "prompt_tokens"));
    sample->ids = !json_is_string(text);
    sample->text = sample->ids ? ids_text(ids) : cut_text(json_string_value(text));
}

const struct history_sample *history_sample_at(const struct run_history *history, int i)
{
    int64_t kept = history->num_samples < HISTORY_SAMPLES ? history->num_samples : HISTORY_SAMPLES;
    return i < kept ? &history->samples[(history->num_samples - kept + i) % HISTORY_SAMPLES] : NULL;
}

static void take_epoch_end(struct run_history *history, const json_t *number, int64_t step)
{
    char text[64];
    history->epochs_ended = json_integer_value(number);
    if (history->epochs_ended > 0)
        history->steps_per_epoch = step / history->epochs_ended;
    snprintf(text, sizeof text, "epoch %" PRId64, history->epochs_ended);
    add_event(history, HISTORY_EPOCH, step, text);
}

/* A restart after a failure, or the failure that no restart followed. */
static void take_failure(struct run_history *history, enum history_event_kind kind, const json_t *object, int64_t step)
{
    const char *cause = json_string_value(json_object_get(object, "cause"));
    char *text =
        memory_printf("exit code %" JSON_INTEGER_FORMAT "%s%s",
                      json_integer_value(json_object_get(object, "exit_code")), cause ? ": " : "", cause ? cause : "");
    add_event(history, kind, step, text);
    free(text);
}

/* Kinds of lines that this reader does not know are passed over. */
static void take_object_line(struct run_history *history, const json_t *object, int64_t step)
{
    const json_t *member;
    if (json_object_get(object, "eval_loss"))
        take_eval(history, object, step);
    else if ((member = json_object_get(object, "epoch_end")))
        take_epoch_end(history, member, step);
    else if (json_is_string(member = json_object_get(object, "early_stop")))
        add_event(history, HISTORY_EARLY, step, json_string_value(member));
    else if (json_is_string(member = json_object_get(object, "checkpoint")))
        add_event(history, HISTORY_CHECKPOINT, step, fs_base_name(json_string_value(member)));
    else if (json_is_string(member = json_object_get(object, "resumed_from")))
        add_event(history, HISTORY_RESUME, step, fs_base_name(json_string_value(member)));
    else if (json_object_get(object, "restart"))
        take_failure(history, HISTORY_RESTART, object, step);
    else if (json_object_get(object, "gave_up")) /* where the steps have come to; `step` is that of a checkpoint */
        take_failure(history, HISTORY_FAILURE, object, history->last_step);
    else if (json_object_get(object, "sample"))
        take_sample(history, object, step);
}

static void damaged_line(struct run_history *history)
{
    if (!history->damaged++)
        history->first_damaged = history->lines;
}

void run_history_line(struct run_history *history, const char *text, size_t bytes)
{
    struct step_line line;
    history->lines++;
    if (quick_step_line(text, bytes, &line)) {
        take_step(history, &line);
        return;
    }
    json_t *object = json_loadb(text, bytes, 0, NULL);
    const json_t *step = json_object_get(object, "step");
    if (!json_is_integer(step) || json_integer_value(step) < 0)
        damaged_line(history);
    else if (json_step_line(object, &line))
        take_step(history, &line);
    else
        take_object_line(history, object, json_integer_value(step));
    json_decref(object);
}

/* ---- the file ------------------------------------------------------------ */

/* The part of the file that is in memory: `used` bytes, of which the first `done` have been taken. */
struct window {
    char *data;
    size_t room, used, done;
    bool skipping; /* inside a line that is too long */
};

/* Takes the whole lines of the window. */
static void take_lines(struct run_history *history, struct window *window)
{
    char *end;
    while ((end = memchr(window->data + window->done, '\n', window->used - window->done))) {
        size_t bytes = (size_t)(end - window->data) - window->done;
        if (window->skipping) {
            history->lines++;
            damaged_line(history);
        } else {
            run_history_line(history, window->data + window->done, bytes);
        }
        window->skipping = false;
        window->done += bytes + 1;
        history->offset += (int64_t)bytes + 1;
    }
}

/* Makes room for more bytes of the file. */
static void window_move(struct run_history *history, struct window *window)
{
    memmove(window->data, window->data + window->done, window->used - window->done);
    window->used -= window->done;
    window->done = 0;
    if (window->used == window->room && window->room >= HISTORY_LINE) {
        history->offset += (int64_t)window->used;
        window->used = 0;
        window->skipping = true;
    } else if (window->used == window->room) {
        window->room *= 2;
        window->data = memory_resize(window->data, window->room);
    }
}

static enum status read_lines(struct run_history *history, int fd, struct error *err)
{
    struct window window = {.room = 1 << 18};
    window.data = memory_alloc(window.room);
    int64_t at = history->offset;
    ssize_t n;
    while ((n = io_pread(fd, window.data + window.used, window.room - window.used, at)) > 0 ||
           (n < 0 && errno == EINTR)) {
        if (n < 0)
            continue;
        at += n;
        window.used += (size_t)n;
        take_lines(history, &window);
        window_move(history, &window);
    }
    int reason = errno;
    history->torn = window.used > 0 || window.skipping;
    if (window.skipping)
        history->offset = at - 1; /* so that a later call takes up to its end for one more damaged line */
    free(window.data);
    return n < 0 ? error_system(err, STATUS_CHECKPOINT, reason, "cannot read '%s'", history->path) : STATUS_OK;
}

/* Forgets all that was read. */
static void start_over(struct run_history *history)
{
    char *path = history->path;
    enum eval_metric metric = history->metric;
    enum eval_mode mode = history->mode;
    history->path = NULL;
    run_history_release(history);
    run_history_init(history, path, metric, mode);
    free(path);
}

enum status run_history_read(struct run_history *history, bool *changed, struct error *err)
{
    struct stat facts;
    int64_t bytes;
    int fd;
    enum status status = fs_open_read(history->path, STATUS_CHECKPOINT, &fd, &bytes, err);
    *changed = false;
    if (status != STATUS_OK)
        return status;
    bool known = history->inode != 0;
    if (fstat(fd, &facts)) {
        status = error_system(err, STATUS_CHECKPOINT, errno, "cannot look at '%s'", history->path);
        io_close(fd);
        return status;
    }
    if (known && (facts.st_dev != history->device || facts.st_ino != history->inode || bytes < history->offset)) {
        start_over(history);
        *changed = true;
    }
    history->device = facts.st_dev;
    history->inode = facts.st_ino;
    int64_t before = history->lines;
    status = read_lines(history, fd, err);
    *changed = *changed || history->lines != before || !known;
    io_close(fd);
    return status;
}
