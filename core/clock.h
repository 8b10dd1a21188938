/* clock.h: seconds of the clock that only goes forward, whoever sets the time of day. */
#ifndef ZTRAIN_CORE_CLOCK_H
#define ZTRAIN_CORE_CLOCK_H

#include <time.h>

/* Seconds since some moment; differences are what counts. */
static inline double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
