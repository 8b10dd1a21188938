/* SPDX-License-Identifier: Apache-2.0 */
/* thread.h: threads other than the main one, with all signals blocked, so that the main thread gets them; locks. */
#pragma once

#include "core/status.h"

/* Starts body(argument). thread NULL: a detached thread. stack_bytes 0: the system's default. Returns 0 or an errno. */
int thread_start(pthread_t *thread, size_t stack_bytes, void *(*body)(void *argument), void *argument);

/* Sets *said under the mutex, and wakes all who wait for the condition. */
void thread_tell(bool *said, pthread_mutex_t *mutex, pthread_cond_t *changed);

/* Holds a mutex up to the end of the block. */
#define LOCKED(mutex)                                         \
    pthread_mutex_t *locked_ RELEASED(thread_unlock) = mutex; \
    pthread_mutex_lock(locked_)

static inline void thread_unlock(pthread_mutex_t **mutex)
{
    pthread_mutex_unlock(*mutex);
}
