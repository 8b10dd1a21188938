/* timed_call.c: see timed_call.h. Caller and thread share one small record; the last of the two frees it. */
#include "comm/launch/timed_call.h"

#include "core/clock.h"
#include "core/memory.h"
#include "core/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct call {
    int (*function)(void *);
    void *argument;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int result;
    bool returned, given_up;
};

static void call_free(struct call *call)
{
    pthread_cond_destroy(&call->changed);
    pthread_mutex_destroy(&call->mutex);
    free(call);
}

static void *call_thread(void *context)
{
    struct call *call = context;
    int result = call->function(call->argument);
    pthread_mutex_lock(&call->mutex);
    call->result = result;
    call->returned = true;
    bool last = call->given_up;
    pthread_cond_signal(&call->changed);
    pthread_mutex_unlock(&call->mutex);
    if (last) {
        free(call->argument);
        call_free(call);
    }
    return NULL;
}

enum timed_call_end timed_call(int (*function)(void *argument), void *argument, double seconds, int *result)
{
    struct call *call = memory_zeroed(1, sizeof *call);
    call->function = function;
    call->argument = argument;
    condition_init(&call->changed);
    pthread_mutex_init(&call->mutex, NULL);
    if (thread_start(NULL, 0, call_thread, call) != 0) {
        call_free(call);
        return CALL_NO_THREAD;
    }

    struct timespec end = time_after(seconds);
    pthread_mutex_lock(&call->mutex);
    while (!call->returned && pthread_cond_timedwait(&call->changed, &call->mutex, &end) != ETIMEDOUT)
        ;
    bool returned = call->returned;
    *result = call->result;
    call->given_up = !returned;
    pthread_mutex_unlock(&call->mutex);
    if (!returned)
        return CALL_LATE;
    call_free(call); /* the thread has unlocked it and does not touch it any more */
    return CALL_RETURNED;
}
