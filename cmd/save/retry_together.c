#include "cmd/save/retry_together.h"

#include "cmd/run/stop_signal.h"
#include "core/clock.h"
#include "core/heartbeat.h"

#include <math.h>
#include <time.h>

static const double first_pause = 0.2, longest_pause = 10, glance = 0.2; /* seconds */

void retry_together_begin(struct retry_together *patience)
{
    patience->began = seconds_now();
    patience->pause = first_pause;
}

double retry_together_left(const struct retry_together *patience)
{
    double now = seconds_now(), limit = patience->last ? patience->last_limit : patience->limit;
    return fmin(patience->began + limit, deadline_latest(patience->deadline)) - now;
}

static void rest_with_progress(double seconds)
{
    const struct timespec pause = {.tv_nsec = (long)(seconds * 1e9)};
    nanosleep(&pause, NULL);
    heartbeat_beat();
}

enum status retry_together_again(struct retry_together *patience, bool *again, struct error *err)
{
    const bool leads = comm_rank(patience->comm) == 0;
    double due = seconds_now() + patience->pause;
    patience->pause = fmin(2 * patience->pause, longest_pause);
    for (;;) {
        bool was_last = patience->last;
        if (leads) /* the job's end may move meanwhile */
            deadline_look_again(patience->deadline);
        double votes[] = {stop_signal_pending() ? 1.0 : 0.0, leads && retry_together_left(patience) <= 0 ? 1.0 : 0.0,
                          leads && seconds_now() >= due ? 1.0 : 0.0};
        TRY(comm_sum(patience->comm, votes, COUNT_OF(votes), err));
        patience->last |= votes[0] > 0;
        *again = votes[1] == 0 || patience->last != was_last; /* a longer limit applies from now on */
        if (!*again || votes[2] > 0)
            return STATUS_OK;
        rest_with_progress(glance);
    }
}
