/* thread.h: threads beside the main one. Signals are for the main thread: these have all of them blocked. */
#ifndef ZTRAIN_CORE_THREAD_H
#define ZTRAIN_CORE_THREAD_H

#include <pthread.h>
#include <stddef.h>

/* Starts body(argument). thread NULL: nobody joins it. stack_bytes 0: the system's. Returns 0 or an errno. */
int thread_start(pthread_t *thread, size_t stack_bytes, void *(*body)(void *argument), void *argument);

#endif
