/* SPDX-License-Identifier: Apache-2.0 */
/* log.c: lines from before the log file is open are kept, and begin it. A refused start creates no file. */
#include "core/log.h"

#include "core/core.h"
#include "core/output.h"

static struct {
    pthread_mutex_t mutex;
    int rank, world;
    char host[256];
    bool open, opened; /* the file is open, was open once */
    bool hides_details;
    size_t early_bytes;  /* of `early`, without the terminating 0 */
    char early[1 << 15]; /* lines from before; those that do not fit are only on the terminal */
} logger = {.mutex = PTHREAD_MUTEX_INITIALIZER, .world = 1};

void log_identity(int rank, int world, const char *host)
{
    LOCKED(&logger.mutex);
    logger.rank = rank;
    logger.world = world;
    snprintf(logger.host, sizeof logger.host, "%s", host ? PRINTABLE(host) : "");
}

static _Thread_local const char *log_name; /* log_subject() */

void log_subject(const char *name)
{
    log_name = name;
}

void log_show_details(bool show)
{
    logger.hides_details = !show;
}

enum status log_open(const char *path, struct error *err)
{
    if (!path) return STATUS_OK;
    int fd;
    TRY(fs_open_regular(path, O_WRONLY | O_CREAT | O_APPEND, STATUS_CHECKPOINT, &fd, NULL, err));
    int error = output_open(fd);
    if (error) {
        io_close(fd);
        return error_set(err, STATUS_DEVICE, "cannot start a thread: %s", strerror(error));
    }
    LOCKED(&logger.mutex);
    for (size_t at = 0, n; at < logger.early_bytes; at += n) {
        n = logger.early_bytes - at < OUTPUT_RECORD ? logger.early_bytes - at : OUTPUT_RECORD;
        output_put(OUTLET_FILE, logger.early + at, n, OUTPUT_LINE);
    }
    logger.early_bytes = 0;
    logger.open = logger.opened = true;
    return STATUS_OK;
}

void log_close(void)
{
    pthread_mutex_lock(&logger.mutex);
    logger.open = false;
    pthread_mutex_unlock(&logger.mutex);
    output_close();
    output_drain();
}

enum { TEXT_BYTES = 4096, LINE_BYTES = 2 * TEXT_BYTES + 512 /* escaped text, and the prefixes */ };
_Static_assert(LINE_BYTES <= (int)OUTPUT_RECORD, "a line is one record");

static void log_keep_line(const char *prefix, const char *text, enum output_kind kind)
{
    char stamp[32];
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &parts);
    char line[LINE_BYTES];
    int n = snprintf(line, sizeof line, "%s.%03ldZ %s%s\n", stamp, now.tv_nsec / 1000000, prefix, text);
    if (logger.open) {
        output_put(OUTLET_FILE, line, (size_t)n, kind);
    } else if (!logger.opened && (size_t)n <= sizeof logger.early - logger.early_bytes) {
        memcpy(logger.early + logger.early_bytes, line, (size_t)n);
        logger.early_bytes += (size_t)n;
    }
}

/* Writes a line with `prefix`, and the rank unless the text has it, to `out` and to the file. No lock is held. */
static void log_put_line(enum outlet out, const char *prefix, bool name_rank, const char *raw, enum output_kind kind)
{
    char escaped[2 * TEXT_BYTES];
    const char *text = printable(raw, escaped, sizeof escaped);
    LOCKED(&logger.mutex);
    if (out != OUTLET_FILE) {
        char who[sizeof logger.host + 32] = "", line[LINE_BYTES];
        if (name_rank && logger.world > 1) snprintf(who, sizeof who, "rank %d on %s: ", logger.rank, logger.host);
        int n = snprintf(line, sizeof line, "%s%s%s\n", prefix, strncmp(text, who, strlen(who)) == 0 ? "" : who, text);
        output_put(out, line, (size_t)n, kind);
    }
    log_keep_line(prefix, text, kind);
}

static void log_format(char text[TEXT_BYTES], const char *format, va_list args)
{
    const int used = log_name ? snprintf(text, TEXT_BYTES, "%.256s: ", log_name) : 0;
    vsnprintf(text + used, TEXT_BYTES - (size_t)used, format, args);
}

#define FORMAT_LINE(buffer, format) \
    char buffer[TEXT_BYTES];        \
    WITH_ARGS(format, log_format(buffer, format, args))

void log_info(const char *format, ...)
{
    FORMAT_LINE(text, format);
    log_put_line(logger.rank == 0 ? OUTLET_STDOUT : OUTLET_FILE, "", false, text, OUTPUT_LINE);
}

void log_detail(const char *format, ...)
{
    FORMAT_LINE(text, format);
    log_put_line(logger.rank == 0 && !logger.hides_details ? OUTLET_STDOUT : OUTLET_FILE, "", false, text, OUTPUT_LINE);
}

void log_warn(const char *format, ...)
{
    FORMAT_LINE(text, format);
    log_put_line(OUTLET_STDERR, "ztrain: warning: ", true, text, OUTPUT_LINE);
}

void log_line(const char *text)
{
    char line[LINE_BYTES];
    int n = snprintf(line, sizeof line, "%.*s\n", (int)sizeof line - 2, text);
    output_put(OUTLET_STDERR, line, (size_t)n, OUTPUT_LINE);
}

void log_debug(const char *format, ...)
{
    FORMAT_LINE(text, format);
    log_put_line(OUTLET_FILE, "", false, text, OUTPUT_LINE);
}

void log_error(const struct error *err)
{
    fflush(stdout);
    log_put_line(OUTLET_STDERR, "ztrain: error: ", true, err->text, OUTPUT_LAST);
    output_drain();
}

void log_error_once(struct error *err)
{
    if (!err->printed) log_error(err);
    error_mark_printed(err);
}
