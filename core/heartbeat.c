/* SPDX-License-Identifier: Apache-2.0 */
/* heartbeat.c: the calls in progress are a list of structs on their callers' stacks, under one mutex. */
#include "core/heartbeat.h"

#include "core/core.h"

static _Atomic uint64_t private_counter;
_Atomic(_Atomic uint64_t *) heartbeat_counter = &private_counter;

static struct {
    pthread_mutex_t mutex;
    struct slow_call *calls;
} slow = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static struct {
    _Atomic int inside;     /* device calls in progress */
    _Atomic uint64_t ended; /* device calls that are over */
    uint64_t seen;          /* the heartbeat thread's: `ended`, at its last look */
    double seconds;         /* the heartbeat thread's: since it changed */
} device_calls;

static struct {
    pthread_t thread;
    bool runs, stop; /* stop: under slow.mutex */
    pthread_cond_t stopped;
    double beat_seconds, limit_seconds;
    void (*stuck)(const char *text, void *context);
    void *context;
} watch;

void heartbeat_pause(double seconds)
{
    const struct timespec pause = {.tv_nsec = (long)(seconds * 1e9)};
    nanosleep(&pause, NULL);
    heartbeat_beat();
}

void heartbeat_slow_begin(struct slow_call *call, const char *doing, const char *path, int fd)
{
    const int reason = errno;
    *call = (struct slow_call){.doing = doing, .path = path, .fd = fd};
    LOCKED(&slow.mutex);
    call->next = slow.calls;
    if (slow.calls) slow.calls->previous = call;
    slow.calls = call;
    errno = reason;
}

void heartbeat_slow_end(struct slow_call *call)
{
    const int reason = errno;
    pthread_mutex_lock(&slow.mutex);
    if (call->previous)
        call->previous->next = call->next;
    else
        slow.calls = call->next;
    if (call->next) call->next->previous = call->previous;
    pthread_mutex_unlock(&slow.mutex);
    heartbeat_beat();
    errno = reason;
}

void heartbeat_device_begin(void)
{
    atomic_fetch_add_explicit(&device_calls.inside, 1, memory_order_relaxed);
}

void heartbeat_device_end(void)
{
    atomic_fetch_add_explicit(&device_calls.ended, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&device_calls.inside, 1, memory_order_relaxed);
    heartbeat_beat();
}

bool heartbeat_in_device_call(void)
{
    return atomic_load_explicit(&device_calls.inside, memory_order_relaxed) > 0;
}

bool heartbeat_is_patient(void)
{
    LOCKED(&slow.mutex);
    return slow.calls || heartbeat_in_device_call();
}

/* file = " '/data/x.bin'", or "" if a call has none. */
static void slow_call_file(const struct slow_call *call, char *file, size_t size)
{
    char link[64];
    file[0] = 0;
    if (call->path) {
        snprintf(file, size, " '%.2000s'", call->path);
    } else if (call->fd >= 0) { /* the kernel has the name without asking the file system */
        char target[2000];
        snprintf(link, sizeof link, "/proc/self/fd/%d", call->fd);
        ssize_t length = readlink(link, target, sizeof target);
        if (length > 0) snprintf(file, size, " '%.*s'", (int)length, target);
    }
}

void heartbeat_slow_describe(char *text, size_t size)
{
    char file[2048];
    text[0] = 0;
    LOCKED(&slow.mutex);
    const struct slow_call *call = slow.calls;
    while (call && call->next) call = call->next;
    if (call) {
        slow_call_file(call, file, sizeof file);
        snprintf(text, size, "%s%s", call->doing, file);
    }
}

/* Whether a device call of the last `seconds` seconds and maybe more keeps the rank alive. */
static bool count_device_call(double seconds)
{
    const uint64_t ended = atomic_load_explicit(&device_calls.ended, memory_order_relaxed);
    const bool inside = heartbeat_in_device_call();
    device_calls.seconds = inside && ended == device_calls.seen ? device_calls.seconds + seconds : 0;
    device_calls.seen = ended;
    return inside && device_calls.seconds < DEVICE_CALL_SECONDS;
}

/* Adds `seconds` to all calls. Whether one keeps the rank alive; *stuck: one that no longer does, not yet reported. */
static bool heartbeat_count(double seconds, struct slow_call **stuck)
{
    bool alive = count_device_call(seconds);
    *stuck = NULL;
    for (struct slow_call *call = slow.calls; call; call = call->next) {
        call->seconds += seconds;
        if (call->seconds < watch.limit_seconds)
            alive = true;
        else if (!call->reported)
            *stuck = call;
    }
    return alive;
}

static void *heartbeat_watch_loop(void *unused)
{
    (void)unused;
    char text[2500], file[2048];
    double last = seconds_now();
    pthread_setname_np(pthread_self(), "ztrain-watch");
    LOCKED(&slow.mutex);
    while (!watch.stop) {
        const struct timespec until = time_after(watch.beat_seconds);
        pthread_cond_timedwait(&watch.stopped, &slow.mutex, &until);
        const double now = seconds_now(),
                     longest = 2 * watch.beat_seconds; /* a longer pause: the process was stopped */
        struct slow_call *stuck;
        if (heartbeat_count(now - last < longest ? now - last : longest, &stuck)) heartbeat_beat();
        last = now;
        if (!stuck) continue;
        stuck->reported = true;
        slow_call_file(stuck, file, sizeof file);
        snprintf(text, sizeof text,
                 "no progress for %.3g s in %s%s (comm.io_timeout_seconds); hint: its file system or device hangs; "
                 "raise comm.io_timeout_seconds if it is only slow",
                 watch.limit_seconds, stuck->doing, file);
        pthread_mutex_unlock(&slow.mutex);
        watch.stuck(text, watch.context);
        pthread_mutex_lock(&slow.mutex);
    }
    return NULL;
}

int heartbeat_thread_start(double beat, double limit, void (*stuck)(const char *text, void *context), void *context)
{
    watch.beat_seconds = beat;
    watch.limit_seconds = limit;
    watch.stuck = stuck;
    watch.context = context;
    watch.stop = false;
    condition_init(&watch.stopped);
    int error = thread_start(&watch.thread, 0, heartbeat_watch_loop, NULL);
    watch.runs = error == 0;
    return error;
}

void heartbeat_thread_stop(void)
{
    if (!watch.runs) return;
    thread_tell(&watch.stop, &slow.mutex, &watch.stopped);
    pthread_join(watch.thread, NULL);
    pthread_cond_destroy(&watch.stopped);
    watch.runs = false;
}
