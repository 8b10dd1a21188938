/* launcher_call.c: see launcher_call.h. Caller and thread share one small record; who is last frees it. */
#include "comm/launcher_call.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

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

static struct timespec time_after(double seconds)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    double nanoseconds = (double)end.tv_nsec + 1e9 * (seconds - (double)(time_t)seconds);
    end.tv_sec += (time_t)seconds + (time_t)(nanoseconds / 1e9);
    end.tv_nsec = (long)nanoseconds % 1000000000;
    return end;
}

static bool start_thread(struct call *call)
{
    pthread_t thread;
    pthread_attr_t detached;
    sigset_t all, old;
    sigfillset(&all);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = pthread_create(&thread, &detached, call_thread, call);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&detached);
    return error == 0;
}

enum launcher_call_end launcher_call(int (*function)(void *argument), void *argument, double seconds, int *result)
{
    struct call *call = calloc(1, sizeof *call);
    if (!call)
        return CALL_NO_THREAD;
    call->function = function;
    call->argument = argument;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&call->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&call->mutex, NULL);
    if (!start_thread(call)) {
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
    call_free(call); /* the thread touches it no more: it has unlocked */
    return CALL_RETURNED;
}
