/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h: elapsed time by the monotonic clock, which cannot be set; times of day. */
#pragma once

#include <pthread.h>
#include <time.h>

/* Seconds since some moment before the program started; and those of another clock of clock_gettime(). */
double seconds_now(void);
double clock_seconds(clockid_t clock);

/* "2026-11-23 14:30:50", local time, of seconds since 1970. */
const char *clock_date(double seconds, char out[32]);

/* Initialises a condition whose timed waits take a deadline from time_after(). */
void condition_init(pthread_cond_t *condition);
struct timespec time_after(double seconds);
