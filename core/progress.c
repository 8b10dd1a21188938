#include "core/progress.h"

#include "core/clock.h"
#include "core/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

static _Atomic uint64_t private_counter;
_Atomic(_Atomic uint64_t *) progress_counter = &private_counter;

static const double TICK_SECONDS = 0.2;
enum { TICKS_MAX = 10 * 60 * 5 };

struct slow_call {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    bool end;
};

static void *tick_meanwhile(void *argument)
{
    struct slow_call *call = argument;
    pthread_mutex_lock(&call->mutex);
    for (int ticks = 0; !call->end && ticks < TICKS_MAX; ticks++) {
        const struct timespec until = time_after(TICK_SECONDS);
        pthread_cond_timedwait(&call->ended, &call->mutex, &until);
        progress_tick();
    }
    pthread_mutex_unlock(&call->mutex);
    return NULL;
}

static void slow_call_free(struct slow_call *call)
{
    pthread_cond_destroy(&call->ended);
    pthread_mutex_destroy(&call->mutex);
    free(call);
}

struct slow_call *progress_slow_begin(void)
{
    const int reason = errno;
    struct slow_call *call = calloc(1, sizeof *call);
    if (call) {
        pthread_mutex_init(&call->mutex, NULL);
        condition_init(&call->ended);
        if (thread_start(&call->thread, 0, tick_meanwhile, call) != 0) {
            slow_call_free(call);
            call = NULL;
        }
    }
    errno = reason;
    return call;
}

void progress_slow_end(struct slow_call *call)
{
    const int reason = errno;
    if (call) {
        pthread_mutex_lock(&call->mutex);
        call->end = true;
        pthread_cond_signal(&call->ended);
        pthread_mutex_unlock(&call->mutex);
        pthread_join(call->thread, NULL);
        slow_call_free(call);
    }
    errno = reason;
}

int progress_fsync(int fd)
{
    struct slow_call *call = progress_slow_begin();
    int result = fsync(fd);
    progress_slow_end(call);
    return result;
}
