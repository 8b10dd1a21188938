#include "core/flight/flight_start.h"

#include "core/flight/flight_ended.h"
#include "core/io.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool flight_start_is(const char *name)
{
    return name[0] >= '0' && name[0] <= '9';
}

/* 0: the name has none. */
static int64_t count_of(const char *name)
{
    int64_t count;
    int day, time, part;
    return sscanf(name, "%18" SCNd64 "-%8d-%6d-%3d", &count, &day, &time, &part) == 4 && count > 0 ? count : 0;
}

int flight_start_compare(const char *a, const char *b)
{
    const int64_t x = count_of(a), y = count_of(b);
    return x == y ? strcmp(a, b) : x < y ? -1 : 1;
}

int64_t flight_start_next(const char *flight)
{
    int64_t last = 0;
    struct flight_end end;
    DIR *entries = io_opendir(flight);
    for (struct dirent *entry; entries && (entry = io_readdir(entries));) {
        const int64_t count = count_of(entry->d_name);
        last = count > last ? count : last;
    }
    if (entries)
        io_closedir(entries);
    if (flight_ended_read(flight, &end) && count_of(end.start) > last)
        last = count_of(end.start);
    return last + 1;
}

void flight_start_name(int64_t count, struct timespec now, char name[FLIGHT_START_BYTES])
{
    struct tm utc;
    gmtime_r(&now.tv_sec, &utc);
    const int n = snprintf(name, FLIGHT_START_BYTES, "%04" PRId64 "-", count);
    const size_t time = strftime(name + n, 20, "%Y%m%d-%H%M%S", &utc);
    snprintf(name + n + time, FLIGHT_START_BYTES - (size_t)n - time, "-%03ld", now.tv_nsec / 1000000);
}
