/* SPDX-License-Identifier: Apache-2.0 */
#include "core/retry.h"

#include "core/core.h"

static const double first_pause = 0.2, longest_pause = 5, glance = 0.1; /* seconds */

static bool is_stopped(const struct retry *retry)
{
    return retry->stopped && retry->stopped() != 0;
}

bool retry_again(struct retry *retry, enum status *status, struct error *err)
{
    double now = seconds_now();
    if (*status == STATUS_OK || *status == STATUS_DEVICE || !error_is_unreadable(err)) return false;
    if (retry->pause <= 0) {
        retry->end = now + retry->limit;
        retry->pause = first_pause;
        if (retry->limit > 0) log_warn("reading is tried again for %.3g s: %s", retry->limit, err->text);
    }
    if (now >= retry->end) return false;
    const double due = fmin(now + retry->pause, retry->end);
    for (double left; !is_stopped(retry) && (left = due - seconds_now()) > 0;) heartbeat_pause(fmin(left, glance));
    retry->pause = fmin(2 * retry->pause, longest_pause);
    if (!is_stopped(retry)) return true;
    log_warn("stopped on request while reading was tried again");
    *status = error_set(err, STATUS_REQUEUE, "stopped on request while reading was tried again");
    return false;
}
