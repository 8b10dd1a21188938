/* SPDX-License-Identifier: Apache-2.0 */
/* heartbeat.h: a counter that shows that this rank is alive and makes progress.
 *
 * Ops, collectives and I/O advance it; peers watch it in shared memory (comm/control/watchdog.h), and name a rank
 * without a heartbeat for comm.timeout_seconds as hanging. Any thread beats.
 *
 * During a slow call (on a disk, a file server, into a library) the heartbeat thread beats, unless the process is
 * stopped; a call of more than comm.io_timeout_seconds is stuck, and reported. During a device call, which may load,
 * compile, or wait for the device, it beats for DEVICE_CALL_SECONDS at most. */
#pragma once

#include "core/status.h"
#include <stdatomic.h>

extern _Atomic(_Atomic uint64_t *) heartbeat_counter; /* points at a private counter until comm/ moves it */

static inline void heartbeat_beat(void)
{
    _Atomic uint64_t *counter = atomic_load_explicit(&heartbeat_counter, memory_order_acquire);
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* Sleeps for less than a second, and beats. */
void heartbeat_pause(double seconds);

/* One slow call, on its caller's stack. Calls may nest; each thread has its own. */
struct slow_call {
    const char *doing; /* "reading" */
    const char *path;  /* borrowed until the end; NULL: the file of fd */
    int fd;
    double seconds; /* counted by the heartbeat thread */
    bool reported;
    struct slow_call *previous, *next; /* list of all calls in progress in this process */
};

/* Called before and after the slow call; errno stays. core/io.h has the system calls on files with both around them. */
void heartbeat_slow_begin(struct slow_call *call, const char *doing, const char *path, int fd);
void heartbeat_slow_end(struct slow_call *call);

/* The rest of the block is a slow call. */
#define SLOW(doing, path, fd)                            \
    struct slow_call slow_ RELEASED(heartbeat_slow_end); \
    heartbeat_slow_begin(&slow_, doing, path, fd)

enum { DEVICE_CALL_SECONDS = 600 };

/* Before and after a device call, which costs two atomic additions each. They may nest. Any thread. */
void heartbeat_device_begin(void);
void heartbeat_device_end(void);

bool heartbeat_in_device_call(void);

/* Whether a slow call or a device call of this process is in progress: the emulated GPU asks at each of its calls. */
bool heartbeat_is_patient(void);

/* text = "reading '/data/x.bin'", the call in progress that began first; "" if there is none. */
void heartbeat_slow_describe(char *text, size_t size);

/* Starts the heartbeat thread, one at a time: every beat_seconds it beats if a device call or a slow call younger than
 * limit_seconds is in progress. An older one is named to stuck(), once. Returns 0 or an errno. */
int heartbeat_thread_start(double beat, double limit, void (*stuck)(const char *text, void *context), void *context);
void heartbeat_thread_stop(void);
