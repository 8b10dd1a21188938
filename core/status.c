/* SPDX-License-Identifier: Apache-2.0 */
#include "core/status.h"

#include <poll.h>

/* FNV-1a. */
static uint32_t status_hash(uint32_t hash, const char *format)
{
    for (const char *c = format; *c; c++) hash = (hash ^ (unsigned char)*c) * 16777619;
    return hash;
}

static void status_set(struct error *err, enum status code, const char *format, va_list args)
{
    err->code = code;
    err->rank = -1;
    err->failure = FAILURE_NONE;
    err->cause = 0;
    err->format = status_hash(2166136261, format);
    err->printed = false;
    vsnprintf(err->text, sizeof err->text, format, args);
}

enum status error_set(struct error *err, enum status code, const char *format, ...)
{
    if (err) WITH_ARGS(format, status_set(err, code, format, args));
    return code;
}

enum status error_system(struct error *err, enum status code, int reason, const char *format, ...)
{
    if (!err) return code;
    WITH_ARGS(format, status_set(err, code, format, args));
    size_t used = strlen(err->text);
    snprintf(err->text + used, sizeof err->text - used, ": %s", strerror(reason));
    err->cause = reason;
    return code;
}

enum status error_blame(struct error *err, int rank, enum failure failure)
{
    if (!err) return STATUS_BUG;
    err->rank = rank;
    err->failure = failure;
    return err->code;
}

const char *failure_name(int failure)
{
    static const char *const names[] = {FAILURE_LIST(LISTED_WORD)};
    return failure >= 0 && failure < FAILURE_COUNT ? names[failure] : NULL;
}

enum status error_cause(struct error *err, int reason)
{
    if (!err) return STATUS_BUG;
    err->cause = reason;
    return err->code;
}

enum status error_mark_printed(struct error *err)
{
    if (!err) return STATUS_BUG;
    err->printed = true;
    return err->code;
}

bool error_is_transient(const struct error *err)
{
    static const int causes[] = {ENOSPC,    EDQUOT,       EIO,         ESTALE,   EAGAIN,     EINTR,        ETIMEDOUT,
                                 ENOMEM,    ENOBUFS,      ENFILE,      EMFILE,   EBUSY,      ENOLINK,      EREMOTEIO,
                                 EHOSTDOWN, EHOSTUNREACH, ENETUNREACH, ENETDOWN, ECONNRESET, ECONNREFUSED, ENOTCONN,
                                 ESHUTDOWN, ENOLCK,       EACCES,      EPERM,    EROFS};
    for (size_t i = 0; i < COUNT_OF(causes); i++)
        if (err->cause == causes[i]) return true;
    return false;
}

enum status error_hint(struct error *err, const char *format, ...)
{
    if (!err) return STATUS_BUG;
    if (!strstr(err->text, "; hint: ")) {
        size_t used = strlen(err->text);
        int n = snprintf(err->text + used, sizeof err->text - used, "; hint: ");
        used += (size_t)n < sizeof err->text - used ? (size_t)n : sizeof err->text - used - 1;
        WITH_ARGS(format, vsnprintf(err->text + used, sizeof err->text - used, format, args));
    }
    return err->code;
}

enum status error_prefix(struct error *err, const char *format, ...)
{
    if (!err) return STATUS_BUG;
    char old[sizeof err->text];
    memcpy(old, err->text, sizeof old);
    int n;
    WITH_ARGS(format, n = vsnprintf(err->text, sizeof err->text, format, args));
    err->format = status_hash(err->format, format);
    size_t used = n < 0 ? 0 : (size_t)n < sizeof err->text ? (size_t)n : sizeof err->text - 1;
    snprintf(err->text + used, sizeof err->text - used, ": %.*s", (int)(sizeof err->text - used), old);
    return err->code;
}

bool error_is_unreadable(const struct error *err)
{
    static const int absent[] = {ENOENT, ENOTDIR, EISDIR, ELOOP, ENAMETOOLONG};
    if (!err) return false;
    for (size_t i = 0; i < COUNT_OF(absent); i++)
        if (err->cause == absent[i]) return false;
    return err->cause != 0;
}

const char *status_name(enum status code)
{
    static const char *const names[] = {[STATUS_OK] = "finished",
                                        [STATUS_USAGE] = "usage",
                                        [STATUS_DATA] = "data",
                                        [STATUS_CHECKPOINT] = "checkpoint",
                                        [STATUS_DEVICE] = "device",
                                        [STATUS_PEER] = "peer",
                                        [STATUS_DIVERGED] = "diverged",
                                        [STATUS_BROKEN] = "broken",
                                        [STATUS_BUG] = "bug",
                                        [STATUS_REQUEUE] = "requeue",
                                        [STATUS_INTERRUPTED] = "interrupted"};
    const size_t number = code == STATUS_HELPED ? STATUS_OK : (size_t)code;
    return number < COUNT_OF(names) && names[number] ? names[number] : "unknown";
}

void bug_abort(const char *file, int line, const char *format, ...)
{
    enum { GLANCES = 20, GLANCE = 100 /* milliseconds: a reader may have paused, as with any final error */ };
    struct pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT};
    char text[1024];
    size_t used = (size_t)snprintf(text, sizeof text / 2, "ztrain: bug: %.300s:%d: ", file, line);
    WITH_ARGS(format, vsnprintf(text + used, sizeof text - used - 1, format, args));
    used = strlen(text);
    text[used++] = '\n';
    for (int i = 0; i < GLANCES; i++)
        if (poll(&ready, 1, GLANCE) > 0) {
            ssize_t ignored = write(STDERR_FILENO, text, used); /* nothing can be done about it */
            (void)ignored;
            break;
        }
#if ZTRAIN_BUG_ABORTS
    abort();
#endif
    _exit(STATUS_BUG);
}
