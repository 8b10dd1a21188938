/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h: elapsed time by the monotonic clock, which cannot be set. */
#pragma once

#include <pthread.h>
#include <time.h>

/* Seconds since some moment before the program started. */
double seconds_now(void);

/* Initialises a condition whose timed waits take a deadline from time_after(). */
void condition_init(pthread_cond_t *condition);
struct timespec time_after(double seconds);
