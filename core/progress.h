/* progress.h: a counter that says "this rank is alive and getting somewhere".
 *
 * Ops, collectives and I/O tick it once per piece of work; comm/ lets it live in shared memory, where peers that wait
 * for this rank watch it: silence (no tick) of comm.timeout_seconds names a rank as hanging, however long a step takes.
 * One relaxed atomic add; any thread.
 *
 * A call that waits for something slow (a disk, a file server, a library that is loaded or compiles) cannot tick. It
 * says when it begins and ends, and a thread of the process, the watch, ticks meanwhile. That thread stands still where
 * the process is stopped, so peers still tell a rank that waits for its disk from one that hangs. A call that takes
 * longer than comm.io_timeout_seconds is stuck: the watch stops ticking for it and reports it. */
#ifndef ZTRAIN_CORE_PROGRESS_H
#define ZTRAIN_CORE_PROGRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

extern _Atomic(_Atomic uint64_t *) progress_counter; /* points at a private counter until comm/ moves it */

static inline void progress_tick(void)
{
    _Atomic uint64_t *counter = atomic_load_explicit(&progress_counter, memory_order_acquire);
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* One slow call, on its caller's stack. Calls may nest; each thread has its own. */
struct slow_call {
    const char *doing; /* "reading" */
    const char *path;  /* borrowed until the end; NULL: the file of fd */
    int fd;
    double seconds; /* counted by the watch */
    bool reported;
    struct slow_call *previous, *next; /* of all that go on in this process */
};

/* Around the call; costs a lock that is nearly always free. errno stays. core/io.h has the system calls on files with
 * both around them. */
void progress_slow_begin(struct slow_call *call, const char *doing, const char *path, int fd);
void progress_slow_end(struct slow_call *call);

/* Starts the watch: every tick_seconds it ticks while a slow call goes on that is younger than limit_seconds. One that
 * is older is given to stuck(), once, by the watch's own thread: text says what it does and to which file. Returns 0 or
 * an errno. One watch at a time. */
int progress_watch_start(double tick_seconds, double limit_seconds, void (*stuck)(const char *text, void *context),
                         void *context);
/* Ends it; no effect where none runs. */
void progress_watch_stop(void);

#endif
