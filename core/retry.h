/* SPDX-License-Identifier: Apache-2.0 */
/* retry.h: retries on one rank while a disk or file server fails.
 *
 *     struct retry retry = {.limit = 30, .stopped = …};
 *     do
 *         status = read_it(…, err);
 *     while (retry_again(&retry, &status, err));
 *
 * Each attempt opens its file again, because a stale handle stays stale. Beats while it waits. */
#pragma once

#include "core/status.h"

/* All zero: no retries. */
struct retry {
    double limit;         /* seconds since the first failure */
    int (*stopped)(void); /* not 0: this process was asked to stop, which ends the waiting; may be NULL */
    double end, pause;    /* seconds_now(), seconds; 0 before the first failure */
};

/* Called after an attempt to read. Returns false if it succeeded, if *err is not a failure to read
 * (error_is_unreadable()), or if the limit has passed, with one attempt at its end. Else waits, longer each time, up to
 * five seconds, warns the first time, and returns true. Asked to stop: false, STATUS_REQUEUE in *status and err. */
bool retry_again(struct retry *retry, enum status *status, struct error *err);
