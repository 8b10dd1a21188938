/* metrics.c: one JSON object a line, written with one write() each, so that a reader never sees half a line unless the
 * machine died in it; such a torn last line is cut off on resume. */
#include "core/metrics.h"

#include "core/io.h"
#include "core/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
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
};

static enum status io_error(const struct metrics *metrics, const char *what, struct error *err)
{
    return error_set(err, STATUS_CHECKPOINT, "cannot %s '%s': %s", what, metrics->path, strerror(errno));
}

/* An evaluation's line or an epoch's end. */
static bool is_after_step(const json_t *line)
{
    return json_object_get(line, "eval_loss") || json_object_get(line, "epoch_end");
}

/* Where the lines up to and with `last_step` end. Lines are in the order of steps; the first later, damaged or overlong
 * one ends what is kept. */
static enum status find_cut(struct metrics *metrics, FILE *file, int64_t last_step, bool evaluation_due, off_t *cut,
                            struct error *err)
{
    char line[8192];
    *cut = 0;
    while (fgets(line, sizeof line, file)) {
        size_t length = strlen(line);
        if (!length || line[length - 1] != '\n')
            break;
        json_t *object = json_loadb(line, length, 0, NULL);
        json_t *step = json_object_get(object, "step");
        bool keep = json_is_integer(step) && json_integer_value(step) <= last_step;
        if (keep && evaluation_due && json_integer_value(step) == last_step)
            keep = !is_after_step(object);
        json_decref(object);
        if (!keep)
            break;
        *cut += (off_t)length;
    }
    return ferror(file) ? io_error(metrics, "read", err) : STATUS_OK;
}

static enum status cut_after(struct metrics *metrics, int64_t last_step, bool evaluation_due, struct error *err)
{
    int copy = dup(metrics->fd);
    FILE *file = copy < 0 ? NULL : memory_fdopen(copy, "r");
    if (!file) {
        if (copy >= 0)
            io_close(copy);
        return io_error(metrics, "read", err);
    }
    off_t cut;
    enum status status = find_cut(metrics, file, last_step, evaluation_due, &cut, err);
    fclose(file);
    if (status == STATUS_OK && (io_ftruncate(metrics->fd, cut) || lseek(metrics->fd, 0, SEEK_END) < 0))
        status = io_error(metrics, "cut", err);
    return status;
}

/* An earlier run's file becomes PATH.1, PATH.2, … */
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

enum status metrics_open(const char *path, int64_t resume_step, bool evaluation_due, struct metrics **out,
                         struct error *err)
{
    enum status status;
    struct metrics *metrics = memory_zeroed(1, sizeof *metrics);
    metrics->path = memory_text(path);
    metrics->fd = -1;
    if (resume_step < 0)
        TRY_GOTO(move_aside(metrics, err));
    metrics->fd = io_open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (metrics->fd < 0) {
        status = io_error(metrics, "open", err);
        goto fail;
    }
    if (resume_step >= 0)
        TRY_GOTO(cut_after(metrics, resume_step, evaluation_due, err));
    *out = metrics;
    return STATUS_OK;
fail:
    metrics_close(metrics);
    return status;
}

void metrics_close(struct metrics *metrics)
{
    if (!metrics)
        return;
    if (metrics->fd >= 0)
        io_close(metrics->fd);
    free(metrics->path);
    free(metrics);
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

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

/* ,"name":value with all digits; JSON has no NaN or infinity: null */
static void line_real(struct line *line, const char *name, double value, int digits)
{
    if (isfinite(value))
        line_add(line, ",\"%s\":%.*g", name, digits, value);
    else
        line_add(line, ",\"%s\":null", name);
}

/* a string as JSON writes it */
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
    for (size_t done = 0; done < line->used;) {
        ssize_t n = io_write(metrics->fd, line->text + done, line->used - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return io_error(metrics, "write", err);
        done += (size_t)n;
    }
    return STATUS_OK;
}

enum { EXACT = 17, ROUGH = 6 };

enum status metrics_step(struct metrics *metrics, const struct step_metrics *m, struct error *err)
{
    struct line line = {.used = 0};
    line_add(&line, "{\"step\":%" PRId64 ",\"epoch\":%" PRId64, m->step, m->epoch);
    line_real(&line, "loss", m->loss, EXACT);
    line_real(&line, "grad_norm", m->grad_norm, EXACT);
    line_real(&line, "lr", m->lr, EXACT);
    line_real(&line, "loss_scale", m->loss_scale, EXACT);
    line_add(&line, ",\"skipped\":%s,\"tokens\":%" PRId64, m->skipped ? "true" : "false", m->tokens);
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
    return line_write(metrics, &line, err);
}

enum status metrics_eval(struct metrics *metrics, int64_t step, int64_t epoch, double eval_loss, int64_t eval_tokens,
                         struct error *err)
{
    struct line line = {.used = 0};
    line_add(&line, "{\"step\":%" PRId64 ",\"epoch\":%" PRId64, step, epoch);
    line_real(&line, "eval_loss", eval_loss, EXACT);
    line_real(&line, "perplexity", exp(eval_loss), EXACT);
    line_add(&line, ",\"eval_tokens\":%" PRId64, eval_tokens);
    return line_write(metrics, &line, err);
}

enum status metrics_epoch_end(struct metrics *metrics, int64_t epoch, int64_t step, double train_loss,
                              struct error *err)
{
    struct line line = {.used = 0};
    line_add(&line, "{\"epoch_end\":%" PRId64 ",\"step\":%" PRId64, epoch, step);
    line_real(&line, "train_loss", train_loss, EXACT);
    return line_write(metrics, &line, err);
}

enum status metrics_checkpoint(struct metrics *metrics, const char *folder, int64_t step, int64_t bytes,
                               double seconds_stalled, struct error *err)
{
    struct line line = {.used = 0};
    line_add(&line, "{");
    line_string(&line, "checkpoint", folder);
    line_add(&line, ",\"step\":%" PRId64 ",\"bytes\":%" PRId64, step, bytes);
    line_real(&line, "seconds_stalled", seconds_stalled, ROUGH);
    return line_write(metrics, &line, err);
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
    return io_fsync(metrics->fd) ? io_error(metrics, "flush", err) : STATUS_OK;
}
