/* SPDX-License-Identifier: Apache-2.0 */
#include "core/thread.h"

#include <signal.h>

int thread_start(pthread_t *thread, size_t stack_bytes, void *(*body)(void *argument), void *argument)
{
    pthread_t detached;
    pthread_attr_t attributes;
    sigset_t all, old;
    pthread_attr_init(&attributes);
    if (!thread) pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
#ifndef ZTRAIN_FAULTS /* instrumented builds need more */
    if (stack_bytes) pthread_attr_setstacksize(&attributes, stack_bytes);
#else
    (void)stack_bytes;
#endif
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = pthread_create(thread ? thread : &detached, &attributes, body, argument);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

void thread_tell(bool *said, pthread_mutex_t *mutex, pthread_cond_t *changed)
{
    LOCKED(mutex);
    *said = true;
    pthread_cond_broadcast(changed);
}
