/* retry.h: doing again what a disk or file server refuses for a while, on one rank.
 *
 *     struct retry retry = {.limit = 30, .stopped = …};
 *     do
 *         status = read_it(…, err);
 *     while (retry_again(&retry, &status, err));
 *
 * The attempt opens its file anew: a handle that is stale stays so. The rank counts as alive while it waits. What all
 * ranks have to try again together is cmd/train/patience.h's. */
#ifndef ZTRAIN_CORE_RETRY_H
#define ZTRAIN_CORE_RETRY_H

#include "core/status.h"

#include <stdbool.h>

/* All zero: nothing is tried again. */
struct retry {
    double limit;         /* seconds since the first failure */
    int (*stopped)(void); /* not 0: this process was asked to stop, which ends the waiting; NULL: nobody asks */
    double end, pause;    /* seconds_now(), seconds; 0 before the first failure */
};

/* After an attempt to read. False: it went well, or *err is not for want of a disk that works (error_is_unreadable()),
 * or the limit is over, with one attempt at its end. Else waits, longer each time and five seconds at most, and says so
 * (log_warn) the first time. Asked to stop meanwhile: false, and *status and err become STATUS_REQUEUE's. */
bool retry_again(struct retry *retry, enum status *status, struct error *err);

#endif
