/* metrics.c: each line is one JSON object and is written with one write(), so that a reader never sees half a line
 * unless the machine died while it was written.
 *
 * A resume never truncates the file. The lines that stay are written to a new one in three steps:
 *
 *   1  link    metrics.jsonl      is also called metrics.jsonl.N
 *   2  write   metrics.jsonl.tmp  fsync
 *   3  rename  metrics.jsonl.tmp  to metrics.jsonl; fsync of the folder
 *
 * After a kill either the former file exists (after step 1 under two names, which the next resume notices) or the new
 * one. */
#include "core/metrics/metrics.h"

#include "core/faults.h"
#include "core/fsutil.h"
#include "core/heartbeat.h"
#include "core/io.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/metrics/line_queue.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct metrics {
    int fd;
    char *path;
    struct line_queue queue;
};

static enum status io_error(const struct metrics *metrics, const char *what, struct error *err)
{
    return error_set(err, STATUS_CHECKPOINT, "cannot %s '%s': %s", what, metrics->path, strerror(errno));
}

/* ---- writing a new file -------------------------------------------------- */

struct sink {
    int fd;
    const char *path; /* for messages; borrowed */
    size_t used;
    char data[1 << 16];
};

static enum status sink_flush(struct sink *sink, struct error *err)
{
    size_t bytes = sink->used;
    sink->used = 0;
    return fs_write(sink->fd, sink->path, sink->data, bytes, STATUS_CHECKPOINT, err);
}

static enum status sink_add(struct sink *sink, const char *data, size_t bytes, struct error *err)
{
    while (bytes > 0) {
        size_t room = sizeof sink->data - sink->used, n = bytes < room ? bytes : room;
        memcpy(sink->data + sink->used, data, n);
        sink->used += n;
        data += n;
        bytes -= n;
        if (sink->used == sizeof sink->data)
            TRY(sink_flush(sink, err));
    }
    return STATUS_OK;
}

/* ---- reading a file ------------------------------------------------------ */

/* Reads a file line by line. Lines may be damaged: they may have any length and any bytes. */
struct reader {
    FILE *file;
    const char *path; /* borrowed */
    char *text;       /* the line, with its newline if it has one; owned */
    size_t room, length;
    int64_t number; /* from 1 */
    json_t *object; /* NULL: damaged; owned */
};

/* `path` must outlive the reader. */
static enum status reader_open(struct reader *reader, const char *path, struct error *err)
{
    *reader = (struct reader){.path = path};
    return fs_open_stream(path, STATUS_CHECKPOINT, &reader->file, err);
}

static void reader_close(struct reader *reader)
{
    if (reader->file)
        fclose(reader->file);
    json_decref(reader->object);
    free(reader->text);
    *reader = (struct reader){.file = NULL};
}

/* Reads the next line. Returns false at the end, or after an error (ferror). */
static bool reader_next(struct reader *reader)
{
    json_decref(reader->object);
    reader->object = NULL;
    struct slow_call call;
    heartbeat_slow_begin(&call, "reading", reader->path, -1);
    ssize_t n = memory_getline(&reader->text, &reader->room, reader->file);
    heartbeat_slow_end(&call);
    if (n < 0)
        return false;
    heartbeat_beat();
    reader->length = (size_t)n;
    reader->number++;
    reader->object = json_loadb(reader->text, reader->length, 0, NULL);
    if (reader->object && !json_is_integer(json_object_get(reader->object, "step"))) {
        json_decref(reader->object);
        reader->object = NULL;
    }
    return true;
}

/* Reads on to the next line that is not damaged. */
static bool reader_next_good(struct reader *reader)
{
    while (reader_next(reader))
        if (reader->object)
            return true;
    return false;
}

static int64_t step_of(const struct reader *reader)
{
    return json_integer_value(json_object_get(reader->object, "step"));
}

/* "step-00000020" for ".../checkpoints/step-00000020"; "" if the line has no such member. */
static const char *checkpoint_of(const struct reader *reader, const char *member)
{
    const char *path = json_string_value(json_object_get(reader->object, member));
    return path ? fs_base_name(path) : "";
}

/* Whether the line reports an evaluation, the end of an epoch, or a checkpoint that was written after those. */
static bool follows_evaluation(const struct reader *reader)
{
    return json_object_get(reader->object, "eval_loss") || json_object_get(reader->object, "sample") ||
           json_object_get(reader->object, "epoch_end") || !strncmp(checkpoint_of(reader, "checkpoint"), "epoch-", 6) ||
           !strncmp(checkpoint_of(reader, "resumed_from"), "epoch-", 6);
}

/* The steps without a line, up to a step that has one. */
struct holes {
    int64_t reached; /* the last step that is known to have a line, or to need none */
    int64_t steps;   /* number of steps without a line */
    int ranges;
    char text[160]; /* the first ranges: "54 to 139, 200" */
};

enum { HOLES_NAMED = 4 };

static void holes_reach(struct holes *holes, int64_t step)
{
    int64_t from = holes->reached + 1, to = step - 1;
    if (step > holes->reached)
        holes->reached = step;
    if (from > to)
        return;
    holes->steps += to - from + 1;
    const char *comma = holes->ranges ? ", " : "";
    size_t used = strlen(holes->text), room = sizeof holes->text - used;
    if (++holes->ranges > HOLES_NAMED)
        snprintf(holes->text + used, room, "%s", holes->ranges == HOLES_NAMED + 1 ? ", …" : "");
    else if (from == to)
        snprintf(holes->text + used, room, "%s%" PRId64, comma, from);
    else
        snprintf(holes->text + used, room, "%s%" PRId64 " to %" PRId64, comma, from, to);
}

static void holes_warn(const struct holes *holes, const char *path)
{
    if (holes->steps == 1)
        log_warn(
            "'%s' lacks the line of step %s: it was lost, and the summary at the end of the run leaves the step out",
            path, holes->text);
    else if (holes->steps)
        log_warn("'%s' lacks the lines of steps %s (%" PRId64 " in all): they were lost, and the summary at the end of "
                 "the run leaves these steps out",
                 path, holes->text, holes->steps);
}

/* The part of a history that a file holds. */
struct survey {
    struct holes holes;     /* up to the resumed checkpoint's step */
    int64_t left_out;       /* lines, including a torn last one */
    int64_t damaged, first; /* lines in the middle, and the number of the first */
    bool open_end;          /* the last line that stays has no newline */
    bool has_checkpoint;    /* the file has the line of the resumed checkpoint */
};

/* Reads the whole file. Lines that stay are also written to `out`, unless it is NULL, each with a newline. */
static enum status read_history(struct reader *reader, const char *path, const struct metrics_history *history,
                                struct sink *out, struct survey *survey, struct error *err)
{
    bool begun = false;
    *survey = (struct survey){.left_out = 0};
    while (reader_next(reader)) {
        if (reader->object && !begun) { /* a run that branched off: the steps before belong to another run */
            begun = true;
            if (json_object_get(reader->object, "resumed_from"))
                survey->holes.reached = step_of(reader);
        }
        bool ends = reader->text[reader->length - 1] == '\n', last = history->step == step_of(reader);
        if (!reader->object || step_of(reader) > history->step ||
            (last && history->evaluation_due && follows_evaluation(reader))) {
            survey->left_out++;
            if (!reader->object && ends && !survey->damaged++)
                survey->first = reader->number;
            continue;
        }
        survey->open_end = !ends;
        if (json_object_get(reader->object, "loss"))
            holes_reach(&survey->holes, step_of(reader));
        if (last && !strcmp(checkpoint_of(reader, "checkpoint"), fs_base_name(history->checkpoint)))
            survey->has_checkpoint = true;
        if (out)
            TRY(sink_add(out, reader->text, reader->length, err));
        if (out && !ends)
            TRY(sink_add(out, "\n", 1, err));
    }
    if (ferror(reader->file))
        return error_set(err, STATUS_CHECKPOINT, "cannot read '%s': %s", path, strerror(errno));
    holes_reach(&survey->holes, history->step + 1);
    return STATUS_OK;
}

/* ---- the former file ----------------------------------------------------- */

/* out = path.SUFFIX */
static enum status path_with_suffix(const char *path, const char *suffix, char out[FS_PATH_MAX], struct error *err)
{
    int n = snprintf(out, FS_PATH_MAX, "%s.%s", path, suffix);
    if (n < 0 || n >= FS_PATH_MAX)
        return error_set(err, STATUS_CHECKPOINT, "path too long: '%.200s…'", path);
    return STATUS_OK;
}

static enum status numbered(const char *path, int number, char out[FS_PATH_MAX], struct error *err)
{
    char suffix[16];
    snprintf(suffix, sizeof suffix, "%d", number);
    return path_with_suffix(path, suffix, out, err);
}

enum metrics_number metrics_number(const char *path, int number)
{
    char other[FS_PATH_MAX];
    struct stat own, facts;
    if (numbered(path, number, other, NULL) != STATUS_OK)
        return METRICS_NUMBER_TAKEN;
    if (io_lstat(other, &facts))
        return METRICS_NUMBER_FREE;
    bool same = !io_lstat(path, &own) && own.st_dev == facts.st_dev && own.st_ino == facts.st_ino;
    return same ? METRICS_NUMBER_KEPT : METRICS_NUMBER_TAKEN;
}

enum status metrics_keep(const char *path, int number, struct error *err)
{
    char former[FS_PATH_MAX], folder[FS_PATH_MAX];
    if (!fs_exists(path) || metrics_number(path, number) == METRICS_NUMBER_KEPT)
        return STATUS_OK;
    TRY(numbered(path, number, former, err));
    if (fault_link(path, former)) {
        if (errno != EPERM && errno != ENOTSUP && errno != ENOSYS && errno != EMLINK)
            return error_set(err, STATUS_CHECKPOINT, "cannot keep '%s' as '%s': %s", path, former, strerror(errno));
        return fs_copy_file(path, former, STATUS_CHECKPOINT, NULL, err); /* this file system has no hard links */
    }
    fs_parent(path, folder);
    return fs_sync_dir(folder, STATUS_CHECKPOINT, err);
}

/* Whether <path>.NUMBER (0: <path>) has the line. *branch_step is set as by metrics_find(). */
static bool has_line(const char *path, int number, const struct metrics_checkpoint_line *line, int64_t *branch_step)
{
    char name[FS_PATH_MAX];
    bool has = false;
    struct reader own, other = {.file = NULL};
    *branch_step = 0;
    snprintf(name, sizeof name, "%s", path);
    if (!number || numbered(path, number, name, NULL) == STATUS_OK)
        reader_open(&other, name, NULL);
    bool same = reader_open(&own, path, NULL) == STATUS_OK;
    while (other.file && reader_next_good(&other)) {
        same =
            same && reader_next_good(&own) && own.length == other.length && !memcmp(own.text, other.text, own.length);
        if (same && step_of(&other) > *branch_step) /* a checkpoint's line may come after those of later steps */
            *branch_step = step_of(&other);
        if (step_of(&other) == line->step && !strcmp(checkpoint_of(&other, "checkpoint"), line->name) &&
            json_integer_value(json_object_get(other.object, "bytes")) == line->bytes)
            has = true;
    }
    reader_close(&own);
    reader_close(&other);
    return has;
}

/* The highest N among the files <path>.N; 0 if there are none. */
static int highest_number(const char *path)
{
    char folder[FS_PATH_MAX];
    const char *name = fs_base_name(path);
    size_t length = strlen(name);
    long highest = 0;
    fs_parent(path, folder);
    DIR *entries = io_opendir(folder);
    for (struct dirent *entry; entries && (entry = io_readdir(entries));) {
        char *end = NULL;
        if (strncmp(entry->d_name, name, length) != 0 || entry->d_name[length] != '.')
            continue;
        long n = strtol(entry->d_name + length + 1, &end, 10);
        if (!*end && n > highest && n < INT_MAX)
            highest = n;
    }
    if (entries)
        io_closedir(entries);
    return (int)highest;
}

int metrics_find(const char *path, const struct metrics_checkpoint_line *line, int first, int64_t *branch_step)
{
    if (has_line(path, first, line, branch_step))
        return first;
    if (first && has_line(path, 0, line, branch_step))
        return 0;
    for (int number = highest_number(path); number > 0; number--)
        if (number != first && has_line(path, number, line, branch_step))
            return number;
    return -1;
}

/* Writes the lines of `from` that stay (NULL: none) to a new file, which then replaces metrics->path. */
static enum status rewrite(struct metrics *metrics, const char *from, const struct metrics_history *history,
                           struct error *err)
{
    enum status status = STATUS_OK;
    char fresh[FS_PATH_MAX], folder[FS_PATH_MAX];
    struct survey survey;
    struct reader reader = {.file = NULL};
    struct sink sink = {.fd = -1, .path = fresh};
    TRY(metrics_keep(metrics->path, history->former, err));
    TRY(path_with_suffix(metrics->path, "tmp", fresh, err));
    TRY(fs_open_file(fresh, O_WRONLY | O_CREAT | O_TRUNC, STATUS_CHECKPOINT, &sink.fd, err));
    if (from) {
        TRY_END(reader_open(&reader, from, err));
        TRY_END(read_history(&reader, from, history, &sink, &survey, err));
    }
    TRY_END(sink_flush(&sink, err));
    if (fault_fsync(sink.fd))
        TRY_END(error_set(err, STATUS_CHECKPOINT, "cannot write '%s': %s", fresh, strerror(errno)));
    if (fault_rename(fresh, metrics->path, 0))
        TRY_END(
            error_set(err, STATUS_CHECKPOINT, "cannot rename '%s' to '%s': %s", fresh, metrics->path, strerror(errno)));
    fs_parent(metrics->path, folder);
    status = fs_sync_dir(folder, STATUS_CHECKPOINT, err);
end:
    reader_close(&reader);
    io_close(sink.fd);
    if (status != STATUS_OK)
        io_unlink(fresh);
    return status;
}

/* Ensures that the file holds the lines of the history and no others. */
static enum status take_history(struct metrics *metrics, const struct metrics_history *history, struct survey *survey,
                                struct error *err)
{
    char former[FS_PATH_MAX], from[FS_PATH_MAX];
    struct reader reader = {.file = NULL};
    *survey = (struct survey){.has_checkpoint = false};
    TRY(numbered(metrics->path, history->former, former, err));
    if (history->from < 0)
        return fs_exists(metrics->path) ? rewrite(metrics, NULL, history, err) : STATUS_OK;
    snprintf(from, sizeof from, "%s", metrics->path);
    if (history->from)
        TRY(numbered(metrics->path, history->from, from, err));
    else if (!fs_exists(from)) {
        holes_reach(&survey->holes, history->step + 1);
        holes_warn(&survey->holes, metrics->path);
        return STATUS_OK;
    }
    TRY(reader_open(&reader, from, err));
    enum status status = read_history(&reader, from, history, NULL, survey, err);
    reader_close(&reader);
    TRY(status);
    if (survey->damaged == 1)
        log_warn("'%s': line %" PRId64 " is damaged; it is left out of the new file, and '%s' keeps it", from,
                 survey->first, history->from ? from : former);
    else if (survey->damaged)
        log_warn("'%s': %" PRId64 " lines are damaged, the first is line %" PRId64
                 "; they are left out of the new file, "
                 "and '%s' keeps them",
                 from, survey->damaged, survey->first, history->from ? from : former);
    holes_warn(&survey->holes, metrics->path);
    if (!survey->left_out && !history->from && !fs_exists(former))
        return STATUS_OK;
    survey->open_end = false;
    return rewrite(metrics, from, history, err);
}

/* Renames an earlier run's file to the first free one of PATH.1, PATH.2, … */
static enum status move_aside(struct metrics *metrics, struct error *err)
{
    struct stat facts;
    if (io_stat(metrics->path, &facts))
        return errno == ENOENT ? STATUS_OK : io_error(metrics, "look at", err);
    for (int n = 1;; n++) {
        char *aside = memory_printf("%s.%d", metrics->path, n);
        bool taken = !io_lstat(aside, &facts);
        int failed = taken ? 0 : io_rename(metrics->path, aside);
        free(aside);
        if (!taken)
            return failed ? io_error(metrics, "move aside", err) : STATUS_OK;
    }
}

/* Adds text that was lost in a kill: the newline of the last line, and the checkpoint's line. */
static enum status complete(struct metrics *metrics, const struct metrics_history *history, const struct survey *survey,
                            struct error *err)
{
    if (survey->open_end && fault_write(metrics->fd, "\n", 1) != 1)
        return io_error(metrics, "write", err);
    if (!survey->has_checkpoint)
        return metrics_checkpoint(metrics, history->checkpoint, history->step, history->bytes, NAN, NAN, err);
    return STATUS_OK;
}

enum status metrics_open(const char *path, const struct metrics_history *history, struct metrics **out,
                         struct error *err)
{
    enum status status;
    struct survey survey;
    struct metrics *metrics = memory_zeroed(1, sizeof *metrics);
    metrics->path = memory_text(path);
    metrics->fd = -1;
    if (history)
        TRY_GOTO(take_history(metrics, history, &survey, err));
    else
        TRY_GOTO(move_aside(metrics, err));
    TRY_GOTO(fs_open_file(path, O_RDWR | O_CREAT | O_APPEND, STATUS_CHECKPOINT, &metrics->fd, err));
    line_queue_init(&metrics->queue, metrics->fd, metrics->path);
    if (history)
        TRY_GOTO(complete(metrics, history, &survey, err));
    *out = metrics;
    return STATUS_OK;
fail:
    metrics_close(metrics);
    return status;
}

void metrics_ask_owner(struct metrics *metrics, enum status (*still_owner)(void *owner, struct error *err), void *owner)
{
    metrics->queue.still_owner = still_owner;
    metrics->queue.owner = owner;
}

bool metrics_drain(struct metrics *metrics, double seconds)
{
    return line_queue_drain(&metrics->queue, seconds);
}

void metrics_close(struct metrics *metrics)
{
    if (!metrics)
        return;
    if (metrics->queue.waiting)
        line_queue_drain(&metrics->queue, 0);
    line_queue_release(&metrics->queue);
    if (metrics->fd >= 0)
        io_close(metrics->fd);
    free(metrics->path);
    free(metrics);
}

/* ---- lines --------------------------------------------------------------- */

struct line {
    char text[4096];
    size_t used;
};

static void line_add(struct line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void line_add(struct line *line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line->text + line->used, sizeof line->text - line->used, format, args);
    va_end(args);
    ASSERT(n >= 0 && (size_t)n < sizeof line->text - line->used);
    line->used += (size_t)n;
}

/* Adds ,"name":value with this many digits; null for NaN and infinity, which JSON does not have. */
static void line_real(struct line *line, const char *name, double value, int digits)
{
    if (isfinite(value))
        line_add(line, ",\"%s\":%.*g", name, digits, value);
    else
        line_add(line, ",\"%s\":null", name);
}

/* Adds "name":"value", escaped as JSON requires. */
static void line_string(struct line *line, const char *name, const char *value)
{
    json_t *string = json_string(value);
    char *text = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    line_add(line, "\"%s\":%s", name, text ? text : "null");
    free(text);
    json_decref(string);
}

static enum status line_write(struct metrics *metrics, struct line *line, struct error *err)
{
    line_add(line, "}\n");
    return line_queue_add(&metrics->queue, line->text, line->used, err);
}

enum { EXACT = 17, ROUGH = 6 };

/* The sources of a mixture as JSON, {"PATH":{"samples":…,"epochs":…,"targets":…},…}: paths have any length. */
static char *sources_text(const struct step_metrics *m)
{
    json_t *all = json_object();
    for (int i = 0; i < m->num_sources; i++) {
        const struct source_metrics *s = &m->sources[i];
        json_object_set_new(all, s->path,
                            json_pack("{sIsfsI}", "samples", (json_int_t)s->samples, "epochs", s->epochs, "targets",
                                      (json_int_t)s->targets));
    }
    char *text = json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(ROUGH));
    json_decref(all);
    ASSERT(text); /* the spec's paths are UTF-8 */
    return text;
}

/* Writes a line that ends with the sources of a mixture. */
static enum status line_write_sources(struct metrics *metrics, struct line *line, const struct step_metrics *m,
                                      struct error *err)
{
    char *sources = sources_text(m);
    char *whole = memory_printf("%.*s,\"sources\":%s}\n", (int)line->used, line->text, sources);
    enum status status = line_queue_add(&metrics->queue, whole, strlen(whole), err);
    free(whole);
    free(sources);
    return status;
}

enum status metrics_step(struct metrics *metrics, const struct step_metrics *m, struct error *err)
{
    struct line line = {.used = 0};
    line_add(&line, "{\"step\":%" PRId64 ",\"epoch\":%" PRId64, m->step, m->epoch);
    line_real(&line, "loss", m->loss, EXACT);
    line_real(&line, "grad_norm", m->grad_norm, EXACT);
    line_real(&line, "lr", m->lr, EXACT);
    line_real(&line, "loss_scale", m->loss_scale, EXACT);
    line_add(&line, ",\"skipped\":%s,\"tokens\":%" PRId64 ",\"targets\":%" PRId64, m->skipped ? "true" : "false",
             m->tokens, m->targets);
    line_real(&line, "tokens_per_s", m->tokens_per_s, ROUGH);
    line_real(&line, "mfu", m->mfu < 0 ? NAN : m->mfu, ROUGH);
    line_add(&line, ",\"memory_bytes\":{\"device\":%" PRId64 ",\"host\":%" PRId64 "}", m->memory_device,
             m->memory_host);
    line_add(&line, ",\"seconds\":{\"step\":%.6f", m->seconds.step);
    line_real(&line, "data", m->seconds.data, ROUGH);
    line_real(&line, "forward", m->seconds.forward, ROUGH);
    line_real(&line, "backward", m->seconds.backward, ROUGH);
    line_real(&line, "reduce", m->seconds.reduce, ROUGH);
    line_real(&line, "optimizer", m->seconds.optimizer, ROUGH);
    line_real(&line, "checkpoint", m->seconds.checkpoint, ROUGH);
    line_add(&line, "}");
    if (m->num_sources > 0)
        return line_write_sources(metrics, &line, m, err);
    return line_write(metrics, &line, err);
}

enum status metrics_eval(struct metrics *metrics, int64_t step, int64_t epoch, double eval_loss, int64_t targets,
                         const struct class_scores *scores, struct error *err)
{
    struct line line = {.used = 0};
    line_add(&line, "{\"step\":%" PRId64 ",\"epoch\":%" PRId64, step, epoch);
    line_real(&line, "eval_loss", eval_loss, EXACT);
    if (scores) {
        line_real(&line, "accuracy", scores->accuracy, EXACT);
        line_real(&line, "f1", scores->f1, EXACT);
        line_add(&line, ",\"eval_samples\":%" PRId64, targets);
    } else {
        line_real(&line, "perplexity", exp(eval_loss), EXACT);
        line_add(&line, ",\"eval_tokens\":%" PRId64, targets);
    }
    return line_write(metrics, &line, err);
}

/* kind: "epoch_end" or "epoch_part". */
static enum status write_epoch(struct metrics *metrics, const char *kind, int64_t epoch, int64_t step,
                               double train_loss, struct error *err)
{
    struct line line = {.used = 0};
    line_add(&line, "{\"%s\":%" PRId64 ",\"step\":%" PRId64, kind, epoch, step);
    line_real(&line, "train_loss", train_loss, EXACT);
    return line_write(metrics, &line, err);
}

enum status metrics_epoch_end(struct metrics *metrics, int64_t epoch, int64_t step, double train_loss,
                              struct error *err)
{
    return write_epoch(metrics, "epoch_end", epoch, step, train_loss, err);
}

enum status metrics_epoch_part(struct metrics *metrics, int64_t epoch, int64_t step, double train_loss,
                               struct error *err)
{
    return write_epoch(metrics, "epoch_part", epoch, step, train_loss, err);
}

static json_t *token_array(const int32_t *tokens, int64_t count)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < count; i++)
        json_array_append_new(array, json_integer(tokens[i]));
    return array;
}

enum status metrics_sample(struct metrics *metrics, int64_t step, int64_t epoch, const struct sample_metrics *s,
                           struct error *err)
{
    json_t *line = json_pack("{sIsIsi}", "step", (json_int_t)step, "epoch", (json_int_t)epoch, "sample", s->number);
    json_object_set_new(line, s->prompt ? "prompt" : "prompt_tokens",
                        s->prompt ? json_string(s->prompt) : token_array(s->prompt_tokens, s->num_prompt));
    json_object_set_new(line, s->prompt ? "text" : "tokens",
                        s->prompt ? json_string(s->text) : token_array(s->tokens, s->num_tokens));
    char *object = json_dumps(line, JSON_COMPACT | JSON_PRESERVE_ORDER);
    char *whole = memory_printf("%s\n", object ? object : "{}");
    const enum status status = line_queue_add(&metrics->queue, whole, strlen(whole), err);
    free(whole);
    free(object);
    json_decref(line);
    return status;
}

/* The numbers of the samples from one source of a mixture, or (-1) of all samples. */
static json_t *sample_numbers(const struct spike_metrics *spike, int source)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < spike->num_samples; i++)
        if (source < 0 || spike->sources[i] == source)
            json_array_append_new(array, json_integer(spike->samples[i]));
    return array;
}

enum status metrics_spike(struct metrics *metrics, const struct spike_metrics *spike, struct error *err)
{
    struct line line = {.used = 0};
    json_t *samples = spike->num_sources ? json_object() : sample_numbers(spike, -1);
    for (int s = 0; s < spike->num_sources; s++)
        json_object_set_new(samples, spike->paths[s], sample_numbers(spike, s));
    char *text = json_dumps(samples, JSON_COMPACT);
    line_add(&line, "{\"loss_spike\":%.*g,\"step\":%" PRId64 ",\"epoch\":%" PRId64, ROUGH, spike->factor, spike->step,
             spike->epoch);
    line_real(&line, "spike_loss", spike->loss, EXACT);
    line_real(&line, "mean_loss", spike->mean, EXACT);
    line_real(&line, "spike_grad_norm", spike->grad_norm, EXACT);
    char *whole = memory_printf("%s,\"samples\":%s}\n", line.text, text ? text : "[]");
    const enum status status = line_queue_add(&metrics->queue, whole, strlen(whole), err);
    free(whole);
    free(text);
    json_decref(samples);
    return status;
}

enum status metrics_corruption(struct metrics *metrics, const struct corruption_metrics *m, struct error *err)
{
    struct line line = {.used = 0};
    line_add(&line, "{\"corruption\":\"%s\",\"step\":%" PRId64 ",", m->what, m->step);
    if (m->other >= 0) {
        line_add(&line, "\"ranks\":[%d,%d]", m->other, m->rank);
    } else {
        line_add(&line, "\"rank\":%d,", m->rank);
        line_string(&line, "host", m->host);
    }
    line_add(&line, ",");
    if (m->tensor)
        line_string(&line, "tensor", m->tensor);
    else
        line_add(&line, "\"tensor\":null");
    return line_write(metrics, &line, err);
}

enum status metrics_early_stop(struct metrics *metrics, int64_t step, const struct early_stop *stopping,
                               struct error *err)
{
    struct line line = {.used = 0};
    line_add(&line, "{\"early_stop\":\"%s\",\"step\":%" PRId64, eval_metric_name(stopping->metric), step);
    line_real(&line, "best", stopping->best, EXACT);
    line_add(&line, ",\"evaluations\":%" PRId64, stopping->evaluations);
    return line_write(metrics, &line, err);
}

enum status metrics_checkpoint(struct metrics *metrics, const char *folder, int64_t step, int64_t bytes,
                               double seconds_stalled, double seconds_total, struct error *err)
{
    struct line line = {.used = 0};
    line_add(&line, "{");
    line_string(&line, "checkpoint", folder);
    line_add(&line, ",\"step\":%" PRId64 ",\"bytes\":%" PRId64, step, bytes);
    line_real(&line, "seconds_stalled", seconds_stalled, ROUGH);
    line_real(&line, "seconds_total", seconds_total, ROUGH);
    return line_write(metrics, &line, err);
}

enum status metrics_restart(struct metrics *metrics, int number, int64_t step, int code, const char *cause,
                            struct error *err)
{
    struct line line = {.used = 0};
    line_add(&line, "{\"restart\":%d,\"step\":%" PRId64 ",\"exit_code\":%d,", number, step, code);
    line_string(&line, "cause", cause);
    return line_write(metrics, &line, err);
}

/* Appends a whole line to a file that a killed process may have left with half a line at its end. */
static enum status append_line(const char *path, const struct line *line, struct error *err)
{
    char last = '\n';
    struct stat facts;
    enum status status = STATUS_OK;
    int fd;
    TRY(fs_open_file(path, O_RDWR | O_APPEND, STATUS_CHECKPOINT, &fd, err));
    if (io_stat(path, &facts) == 0 && facts.st_size > 0 && io_pread(fd, &last, 1, facts.st_size - 1) == 1 &&
        last != '\n')
        status = fs_write(fd, path, "\n", 1, STATUS_CHECKPOINT, err);
    if (status == STATUS_OK)
        status = fs_write(fd, path, line->text, line->used, STATUS_CHECKPOINT, err);
    if (io_close(fd) != 0 && status == STATUS_OK)
        status = error_system(err, STATUS_CHECKPOINT, errno, "cannot close '%s'", path);
    return status;
}

enum status metrics_gave_up(const char *path, int restarts, int64_t step, int code, const char *cause,
                            struct error *err)
{
    struct line line = {.used = 0};
    line_add(&line, "{\"gave_up\":%d,\"step\":%" PRId64 ",\"exit_code\":%d,", restarts, step, code);
    line_string(&line, "cause", cause);
    line_add(&line, "}\n");
    return append_line(path, &line, err);
}

enum status metrics_resume(struct metrics *metrics, const char *folder, int64_t step, struct error *err)
{
    struct line line = {.used = 0};
    line_add(&line, "{");
    line_string(&line, "resumed_from", folder);
    line_add(&line, ",\"step\":%" PRId64, step);
    return line_write(metrics, &line, err);
}

enum status metrics_flush(struct metrics *metrics, struct error *err)
{
    struct error local = {.code = STATUS_OK}, *why = err ? err : &local;
    line_queue_drain(&metrics->queue, 0);
    if (fault_fsync(metrics->fd) == 0)
        return STATUS_OK;
    enum status status = error_system(why, STATUS_CHECKPOINT, errno, "cannot flush '%s'", metrics->path);
    if (!error_is_transient(why))
        return status;
    log_warn("%s; its newest lines may be lost; training continues", why->text);
    return STATUS_OK;
}
