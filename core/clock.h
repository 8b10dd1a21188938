/* clock.h: time that passes, by the clock that nobody sets. */
#ifndef ZTRAIN_CORE_CLOCK_H
#define ZTRAIN_CORE_CLOCK_H

#include <pthread.h>
#include <time.h>

/* Seconds since some moment before the program started. */
double seconds_now(void);

/* A condition whose timed waits end at a time_after(). */
void condition_init(pthread_cond_t *condition);
struct timespec time_after(double seconds);

#endif
