#include "core/progress.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

static _Atomic uint64_t private_counter;
_Atomic(_Atomic uint64_t *) progress_counter = &private_counter;

enum { TICK_NS = 200 * 1000 * 1000, TICKS_MAX = 10 * 60 * 5 };

struct slow_call {
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    bool end;
};

static void *tick_meanwhile(void *argument)
{
    struct slow_call *call = argument;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    pthread_mutex_lock(&call->mutex);
    for (int ticks = 0; !call->end && ticks < TICKS_MAX; ticks++) {
        until.tv_nsec += TICK_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&call->ended, &call->mutex, &until);
        progress_tick();
    }
    pthread_mutex_unlock(&call->mutex);
    return NULL;
}

int progress_fsync(int fd)
{
    struct slow_call call = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    pthread_condattr_t monotonic; /* somebody may set the clock meanwhile */
    pthread_t thread;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&call.ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    bool runs = pthread_create(&thread, NULL, tick_meanwhile, &call) == 0; /* else it has to be quick */
    int result = fsync(fd), reason = errno;
    if (runs) {
        pthread_mutex_lock(&call.mutex);
        call.end = true;
        pthread_cond_signal(&call.ended);
        pthread_mutex_unlock(&call.mutex);
        pthread_join(thread, NULL);
    }
    pthread_cond_destroy(&call.ended);
    errno = reason;
    return result;
}
