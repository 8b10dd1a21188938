/* SPDX-License-Identifier: Apache-2.0 */
#include "core/clock.h"

#include <stdint.h>
#include <stdio.h>

double seconds_now(void)
{
    return clock_seconds(CLOCK_MONOTONIC);
}

double clock_seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

const char *clock_date(double seconds, char out[32])
{
    const time_t whole = (time_t)seconds;
    struct tm local;
    if (!localtime_r(&whole, &local) || !strftime(out, 32, "%Y-%m-%d %H:%M:%S", &local)) snprintf(out, 32, "?");
    return out;
}

void condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

struct timespec time_after(double seconds)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    int64_t ns = end.tv_nsec + (int64_t)(seconds * 1e9);
    end.tv_sec += ns / 1000000000;
    end.tv_nsec = ns % 1000000000;
    return end;
}
