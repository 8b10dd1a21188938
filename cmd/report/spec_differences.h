/* spec_differences.h: the keys of the run spec in which runs differ. */
#pragma once

#include "cmd/report/watched_run.h"

/* (count) keys in the order of the runs' files, without run.name and run.dir; the keys are the runs', the array is the
 * caller's to free. spec_pairs_find() has each run's value. */
struct spec_differences {
    const char **keys;
    int count;
};
struct spec_differences spec_differences(const struct watched_run *runs, int count);
