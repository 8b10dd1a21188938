/* log.c: see log.h. What is said before the log file is open is kept and begins the file, so that a start that is
 * refused needs to make no file, and a run's log still has its first words. */
#include "core/log.h"

#include "core/memory.h"
#include "core/printable.h"
#include "core/progress.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static struct {
    pthread_mutex_t mutex;
    int rank, world;
    char host[256];
    FILE *file;
    bool opened;         /* once */
    size_t early_bytes;  /* of `early`, without the terminating 0 */
    char early[1 << 15]; /* lines from before; more than fit are only on the terminal */
} logger = {.mutex = PTHREAD_MUTEX_INITIALIZER, .world = 1};

void log_identity(int rank, int world, const char *host)
{
    pthread_mutex_lock(&logger.mutex);
    logger.rank = rank;
    logger.world = world;
    snprintf(logger.host, sizeof logger.host, "%s", host ? PRINTABLE(host) : "");
    pthread_mutex_unlock(&logger.mutex);
}

enum status log_open(const char *path, struct error *err)
{
    if (!path)
        return STATUS_OK;
    FILE *file = memory_fopen(path, "ae");
    if (!file)
        return error_set(err, STATUS_CHECKPOINT, "cannot open log file '%s': %s", path, strerror(errno));
    pthread_mutex_lock(&logger.mutex);
    if (logger.file)
        fclose(logger.file);
    logger.file = file;
    fwrite(logger.early, 1, logger.early_bytes, file);
    fflush(file);
    logger.early_bytes = 0;
    logger.opened = true;
    pthread_mutex_unlock(&logger.mutex);
    return STATUS_OK;
}

void log_close(void)
{
    pthread_mutex_lock(&logger.mutex);
    if (logger.file)
        fclose(logger.file);
    logger.file = NULL;
    pthread_mutex_unlock(&logger.mutex);
}

void log_wait_writable(FILE *stream)
{
    struct pollfd ready = {.fd = fileno(stream), .events = POLLOUT};
    int n;
    while ((n = poll(&ready, 1, 100)) == 0 || (n < 0 && errno == EINTR))
        progress_tick();
}

/* To the file, with the time, or to what is kept until there is one. */
static void keep_line(const char *prefix, const char *text)
{
    char stamp[32];
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &parts);
    static const char format[] = "%s.%03ldZ %s%s\n";
    if (logger.file) {
        fprintf(logger.file, format, stamp, now.tv_nsec / 1000000, prefix, text);
        fflush(logger.file);
    } else if (!logger.opened) {
        size_t left = sizeof logger.early - logger.early_bytes;
        int n = snprintf(logger.early + logger.early_bytes, left, format, stamp, now.tv_nsec / 1000000, prefix, text);
        if (n > 0 && (size_t)n < left)
            logger.early_bytes += (size_t)n;
    }
}

/* To `terminal` (or NULL) with `prefix` and the rank, if the text does not begin with it, and to the file. The caller
 * holds no lock. */
static void write_line(FILE *terminal, const char *prefix, int name_rank, const char *raw)
{
    char escaped[2 * 4096];
    const char *text = printable(raw, escaped, sizeof escaped);
    pthread_mutex_lock(&logger.mutex);
    if (terminal) {
        log_wait_writable(terminal);
        char who[sizeof logger.host + 32] = "";
        if (name_rank && logger.world > 1)
            snprintf(who, sizeof who, "rank %d on %s: ", logger.rank, logger.host);
        fprintf(terminal, "%s%s%s\n", prefix, strncmp(text, who, strlen(who)) == 0 ? "" : who, text);
        fflush(terminal);
    }
    keep_line(prefix, text);
    pthread_mutex_unlock(&logger.mutex);
}

#define FORMAT_LINE(buffer, format)                      \
    char buffer[4096];                                   \
    do {                                                 \
        va_list args_;                                   \
        va_start(args_, format);                         \
        vsnprintf(buffer, sizeof buffer, format, args_); \
        va_end(args_);                                   \
    } while (0)

void log_info(const char *format, ...)
{
    FORMAT_LINE(text, format);
    write_line(logger.rank == 0 ? stdout : NULL, "", 0, text);
}

void log_warn(const char *format, ...)
{
    FORMAT_LINE(text, format);
    write_line(stderr, "ztrain: warning: ", 1, text);
}

void log_debug(const char *format, ...)
{
    FORMAT_LINE(text, format);
    write_line(NULL, "", 0, text);
}

void log_error(const struct error *err)
{
    fflush(stdout);
    write_line(stderr, "ztrain: error: ", 1, err->text);
}
