/* stop_vote.c: see stop_vote.h. */
#include "cmd/train/stop_vote.h"

#include "cmd/run/stop_signal.h"
#include "cmd/save/background_save.h"
#include "core/clock.h"
#include "core/flight/flight.h"

#include <math.h>

static const double vote_seconds = 1; /* between two votes on stopping within a step, at least */

/* On rank 0, at a vote: the number of micro-batches until the next one, as many as take vote_seconds at the pace since
 * the last vote. At most twice the last interval: a host that is ahead of its device measures too little time. */
static double next_vote(struct vote *vote)
{
    double now = seconds_now(), most = 2 * (double)(vote->interval > 0 ? vote->interval : 1);
    int64_t done = vote->interval - vote->left;
    double each = done > 0 ? (now - vote->at) / (double)done : INFINITY;
    vote->at = now;
    return fmin(fmax(floor(vote_seconds / each), 1), most);
}

enum status stop_vote(struct run *run, struct error *err)
{
    bool leads = run->boot->rank == 0, near = leads && deadline_is_near(&run->deadline, seconds_now());
    double stops[3 + BACKGROUND_VOTES] = {stop_signal_pending() ? 1.0 : 0.0, near ? 1.0 : 0.0,
                                          leads ? next_vote(&run->vote) : 0};
    background_save_vote(run, &stops[3]);
    const uint64_t entry = flight_begin(FLIGHT_VOTE, -1, 0, -1);
    TRY(comm_sum(run->comm, stops, COUNT_OF(stops), err));
    flight_end(entry);
    run->deadline_near = stops[1] > 0;
    run->stop = stops[0] > 0 || run->deadline_near;
    run->vote.interval = run->vote.left = (int64_t)stops[2];
    return background_save_advance(run, &stops[3], err);
}

enum status stop_vote_within_step(void *context, struct stepper *stepper, bool *stop, struct error *err)
{
    struct run *run = context;
    *stop = false;
    if (--run->vote.left > 0)
        return STATUS_OK;
    stepper_keep_up(stepper);
    TRY(stop_vote(run, err));
    *stop = run->stop;
    return STATUS_OK;
}
