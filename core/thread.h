/* SPDX-License-Identifier: Apache-2.0 */
/* thread.h: threads other than the main one. They have all signals blocked, so that the main thread gets them. */
#pragma once

#include <pthread.h>
#include <stddef.h>

/* Starts body(argument). thread NULL: a detached thread. stack_bytes 0: the system's default. Returns 0 or an errno. */
int thread_start(pthread_t *thread, size_t stack_bytes, void *(*body)(void *argument), void *argument);
