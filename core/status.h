/* SPDX-License-Identifier: Apache-2.0 */
/* status.h: how a function reports an error: it returns `enum status`, whose values are the exit codes, and leaves a
 * message in its `struct error *`. Three severities:
 *   bug      ASSERT(): a mistake in ztrain; prints file and line, exits 70 at once
 *   fatal    a status other than STATUS_OK with a message: the user's input, the machine, a peer
 *   warning  log_warn(): the run continues
 *
 * A message names the object, what was expected, and the next step: "cannot open 'x': No such file; hint: …".
 * Lower case, no full stop, no rank (the log adds rank and host). */
#pragma once

/* What nearly every file needs of C and POSIX: those that have this header do not include it again. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

__BEGIN_DECLS

enum status {
    STATUS_HELPED = -1, /* the text of --help is printed, which is all that was asked for: main() exits with 0 */
    STATUS_OK = 0,
    STATUS_USAGE = 2,        /* command line or run spec */
    STATUS_DATA = 3,         /* token shards or model files */
    STATUS_CHECKPOINT = 4,   /* a checkpoint (or another file of the run) is damaged, absent, or not writable */
    STATUS_DEVICE = 5,       /* no such device at the start, or out of memory */
    STATUS_PEER = 6,         /* a peer, the network, or software on a sound GPU failed: these machines may work */
    STATUS_DIVERGED = 7,     /* non-finite for too long or at the end, or copies of the model differ */
    STATUS_BROKEN = 8,       /* a device, its driver or a library failed after the start: another machine may work */
    STATUS_BUG = 70,         /* a bug in ztrain */
    STATUS_REQUEUE = 75,     /* stopped on request with a checkpoint written */
    STATUS_INTERRUPTED = 130 /* a second SIGINT: ended at once, without a checkpoint */
};

/* What befell the rank that an error is about. Numbers and names leave the process: new ones come at the end. */
#define FAILURE_LIST(X)                                                                        \
    X(NONE, "none")               /* nothing that is known */                                  \
    X(ERROR, "error")             /* it ended by an error of its own */                        \
    X(DIED, "died")               /* its process is gone */                                    \
    X(LEFT, "left")               /* it left the job, and others had not finished */           \
    X(SILENT, "silent")           /* it hangs or is stopped */                                 \
    X(UNREACHABLE, "unreachable") /* the network or its machine is down */                     \
    X(ABSENT, "absent")           /* it has not come to the start */                           \
    X(DIVERGED, "diverged")       /* its copy of the model differs from those of most ranks */ \
    X(MEMORY, "memory")           /* it was killed for memory */                               \
    X(SOFTWARE, "software")       /* work on its GPU faulted, and the GPU is sound as far as is known */
#define FAILURE_ENTRY(name, word) FAILURE_##name,
enum failure { FAILURE_LIST(FAILURE_ENTRY) FAILURE_COUNT };

/* The message that goes with a status other than STATUS_OK. Caller's storage; no ownership. */
struct error {
    enum status code;
    int rank; /* that the text is about, and names; -1: none. error_blame() */
    enum failure failure;
    int cause;       /* the errno of the system call that failed; 0: none failed, or it is not known */
    uint32_t format; /* hash of the formats that made the text: what is said, whoever it is said of */
    bool printed;    /* the user has seen the message, or its like, from this process or another rank */
    char text[2048]; /* "what is wrong" or "what is wrong; hint: what to do" */
};

/* These return err's code; err may be NULL (error_set(), error_system(): `code`; the others: STATUS_BUG). */

/* Sets code and message: return error_set(err, …). A message too long for the buffer is cut. */
enum status error_set(struct error *err, enum status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Appends "; hint: …" to a message, once. */
enum status error_hint(struct error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts "CONTEXT: " in front of a message. */
enum status error_prefix(struct error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* error_set() for a system call that failed with `reason` (an errno): "…: No space left on device". */
enum status error_system(struct error *err, enum status code, int reason, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Sets the cause, an errno, after error_set(). */
enum status error_cause(struct error *err, int reason);

/* Says whom the text is about, after error_set(), which sets -1 and FAILURE_NONE. */
enum status error_blame(struct error *err, int rank, enum failure failure);

/* "died", "silent", …; NULL for numbers that are none of the enum. */
const char *failure_name(int failure);

/* Marks a message as printed, by this process or by another one for it. */
enum status error_mark_printed(struct error *err);

/* Whether the same call may succeed later: a full disk, a file server that is down, an expired ticket. */
bool error_is_transient(const struct error *err);

/* Whether a file exists but could not be read (EIO, ESTALE, EACCES, …), which is not damage. err NULL: false. */
bool error_is_unreadable(const struct error *err);

/* "usage", "data", …; "unknown" for numbers that are no exit code. */
const char *status_name(enum status code);

/* Prints a bug report with file and line and exits 70. Never returns. */
void bug_abort(const char *file, int line, const char *format, ...) __attribute__((noreturn, format(printf, 3, 4)));

/* Preconditions and invariants; kept in release builds. */
#define ASSERT(condition) ((condition) ? (void)0 : bug_abort(__FILE__, __LINE__, "assertion failed: %s", #condition))
#define BUG(...) bug_abort(__FILE__, __LINE__, __VA_ARGS__)

/* Leaves the function with the status of `expression` unless it is STATUS_OK. */
#define TRY(expression)                                   \
    do {                                                  \
        enum status try_status_ = (expression);           \
        if (try_status_ != STATUS_OK) return try_status_; \
    } while (0)

/* A local variable that is released where its block ends, also by TRY: RELEASED(text_release) struct text text = {0};
 * it has a value from the start. OWNED: a pointer, by free(). */
#define RELEASED(release) __attribute__((cleanup(release), unused))
#define OWNED RELEASED(status_free_owned)

static inline void status_free_owned(void *variable)
{
    void *memory;
    memcpy(&memory, variable, sizeof memory);
    free(memory);
}

/* RELEASER(checkpoint_drop, struct checkpoint, checkpoint_close) makes checkpoint_drop() for RELEASED pointers. */
#define RELEASER(name, type, release)       \
    static inline void name(type **pointer) \
    {                                       \
        release(*pointer);                  \
    }

/* The value of a pointer, which is NULL from then on, so that nothing releases it again: *out = TAKEN(set). */
#define TAKEN(pointer) status_take(&(pointer))
static inline void *status_take(void *variable)
{
    void *taken, *none = NULL;
    memcpy(&taken, variable, sizeof taken);
    memcpy(variable, &none, sizeof none);
    return taken;
}

/* Evaluates a call with `args`, the arguments that follow `last` of a function that takes any number of them. */
#define WITH_ARGS(last, call) \
    do {                      \
        va_list args;         \
        va_start(args, last); \
        (void)(call);         \
        va_end(args);         \
    } while (0)

/* With a local `enum status status`: unless it is STATUS_OK, TRY_GOTO jumps to `fail:`, TRY_END to `end:`. */
#define TRY_GOTO(expression)                \
    do {                                    \
        status = (expression);              \
        if (status != STATUS_OK) goto fail; \
    } while (0)
#define TRY_END(expression)                \
    do {                                   \
        status = (expression);             \
        if (status != STATUS_OK) goto end; \
    } while (0)

/* A condition on constants, in C11 and in C++ (the CUDA sources include these headers). */
#ifdef __cplusplus
#define STATIC_ASSERT(condition, message) static_assert(condition, message)
#else
#define STATIC_ASSERT(condition, message) _Static_assert(condition, message)
#endif

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* The words of a list of X(NAME, "word"): {LIST(LISTED_WORD)}; a function that gives a value's word. */
#define LISTED_WORD(name, word) word,
#define LISTED_NAMES(function, type, LIST)                      \
    static inline const char *function(type value)              \
    {                                                           \
        static const char *const names[] = {LIST(LISTED_WORD)}; \
        return names[value];                                    \
    }

__END_DECLS
